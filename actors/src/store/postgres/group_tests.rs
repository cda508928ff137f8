#![allow(non_snake_case)]

use covault_core::audit::{AuditChain, ChainHead, LinkedEntry};

use super::*;
use crate::store::postgres::written_rows::WrittenRows;

fn key(name: u8) -> Key {
    Key::new(KeySpace::Wallet, &[&[name]])
}

type Reply = oneshot::Receiver<Result<(), CommitError>>;

fn job(batch: Batch) -> (CommitJob, QueuedJob, Reply) {
    let (reply, answer) = oneshot::channel();
    let batch = Arc::new(Mutex::new(Some(batch)));
    let job = CommitJob {
        batch: Arc::clone(&batch),
        reply,
    };
    (job, batch, answer)
}

/// Rows that are written, and rows that are only looked at.
fn batch(written: &[u8], seen: &[u8]) -> Batch {
    let mut batch = Batch::new();
    for name in written {
        batch.put(key(*name), Precondition::Any, vec![*name]);
    }
    for name in seen {
        batch.check(key(*name), Precondition::Version(1));
    }
    batch
}

fn group(batches: Vec<Batch>) -> CommitGroup {
    let (jobs, _): (VecDeque<_>, Vec<_>) = batches
        .into_iter()
        .map(|batch| {
            let (job, _, answer) = job(batch);
            (job, answer)
        })
        .unzip();
    let mut jobs = jobs;
    CommitGroup::take(&mut jobs).unwrap()
}

/// Rows of these names, each in version 1.
fn found(names: &[u8]) -> BTreeMap<Key, Row> {
    let rows = names.iter().map(|name| (key(*name), row(1, &[])));
    rows.collect()
}

fn row(version: u64, value: &[u8]) -> Row {
    let value = value.to_vec();
    Row { version, value }
}

#[test]
fn group__should_lock_what_it_names_and_share_tokens_that_it_only_looks_at() {
    let token = |name: u8| Key::new(KeySpace::Token, &[&[name]]);
    let mut first = batch(&[2], &[1]);
    first.check(token(1), Precondition::Version(4));
    first.check(token(2), Precondition::Version(4));
    let mut second = batch(&[1], &[]);
    second.put(token(2), Precondition::Version(4), vec![]);
    second.check(token(3), Precondition::Absent);
    second.append(AuditChain::Service, vec![]);
    second.check_once(key(3), Precondition::Absent);
    let locks = group(vec![first, second]).locks();
    let head = rows::audit_head(AuditChain::Service);
    let own = [key(1), key(2), token(2), token(3), head];
    assert_eq!(locks.own, BTreeSet::from(own));
    assert_eq!(locks.shared, BTreeSet::from([key(3), token(1)]));
}

/// What was written last: rows of these names in version 4, and the head of the service's chain.
fn written(names: &[u8]) -> (WrittenRows, ChainHead) {
    let entry = LinkedEntry::after(None, AuditChain::Service, vec![]).unwrap();
    let value = rows::encode(&entry.head()).unwrap();
    let head = (rows::audit_head(AuditChain::Service), row(7, &value));
    let mut known = WrittenRows::default();
    known.note(GroupChanges {
        updates: names.iter().map(|name| (key(*name), row(4, &[]))).collect(),
        inserts: vec![head],
        ..GroupChanges::default()
    });
    (known, entry.head())
}

#[test]
fn group__should_guess_rows_as_batches_demand_and_as_they_were_written_last() {
    let (known, head) = written(&[1, 2, 3, 6]);
    let token = Key::new(KeySpace::Token, &[&[1]]);
    let mut first = batch(&[1], &[]);
    first.put(key(4), Precondition::Absent, vec![4]);
    // It has changed since this process wrote it; it is older than what this process wrote.
    first.put(key(2), Precondition::Version(9), vec![2]);
    first.check(token.clone(), Precondition::Version(5));
    first.append(AuditChain::Service, vec![1]);
    first.check_once(key(5), Precondition::Absent);
    let mut old = batch(&[], &[]);
    old.put(key(3), Precondition::Version(3), vec![]);
    let mut gone = batch(&[1], &[]);
    gone.delete(key(6), Precondition::Any);
    let mut group = group(vec![first, old, gone]);
    let guessed = group.guess(|key| known.find(key)).unwrap();
    let service = rows::audit_head(AuditChain::Service);
    let there = [(1, 4), (2, 9), (3, 4), (6, 4)].map(|(name, version)| (key(name), version));
    let mut own = Vec::from(there);
    own.push((service.clone(), 7));
    own.sort();
    assert_eq!((guessed.own, guessed.shared), (own, vec![(token, 5)]));
    let entry = rows::audit_entry(AuditChain::Service, head.number + 1);
    let absent = BTreeSet::from([key(4), key(5), entry.clone()]);
    assert_eq!(guessed.absent, absent);
    let changes = guessed.changes;
    let versions = |rows: Vec<(Key, Row)>| {
        let rows = rows.into_iter().map(|(key, row)| (key, row.version));
        BTreeMap::from_iter(rows)
    };
    assert_eq!(
        versions(changes.inserts),
        BTreeMap::from([(key(4), 1), (entry, 1)])
    );
    assert_eq!(
        versions(changes.updates),
        BTreeMap::from([(key(1), 6), (key(2), 10), (service, 8)])
    );
    assert_eq!((changes.deletes, changes.held), (vec![key(6)], vec![]));
    let conflict = Err(CommitError::Conflict(key(3)));
    assert_eq!(group.outcomes, [Ok(()), conflict, Ok(())]);
}

#[test]
fn group__should_not_guess_where_one_statement_cannot_see_to_it() {
    let (known, _) = written(&[1]);
    let with = |add: &dyn Fn(&mut Batch)| {
        let mut batch = batch(&[1], &[]);
        add(&mut batch);
        group(vec![batch])
    };
    let vault = AuditChain::Vault(covault_core::ids::VaultId::from_bytes([7; 16]));
    let refused: [&dyn Fn(&mut Batch); 4] = [
        &|batch| {
            batch.check(key(2), Precondition::Absent);
        },
        &|batch| {
            batch.delete(key(2), Precondition::Any);
        },
        &|batch| {
            batch.append(vault, vec![]);
        },
        // It adds nothing to the chain, whose value would be needed.
        &|batch| {
            batch.check(
                rows::audit_head(AuditChain::Service),
                Precondition::Version(7),
            );
        },
    ];
    for add in refused {
        assert_eq!(with(add).guess(|key| known.find(key)), None);
    }
    let mut appends = with(&|batch| {
        batch.append(AuditChain::Service, vec![]);
    });
    let guessed = appends.guess(|key| known.find(key)).unwrap();
    // An entry was in the way.
    appends.collided(guessed.changes);
    assert_eq!(appends.guess(|key| known.find(key)), None);
}

#[test]
fn group__should_write_what_is_left_of_all_batches_in_their_order() {
    let mut gone = Batch::new();
    gone.delete(key(2), Precondition::Any);
    gone.delete(key(7), Precondition::Any);
    gone.check(key(8), Precondition::Absent);
    let mut again = batch(&[3], &[]);
    again.put(key(2), Precondition::Absent, vec![22]);
    let mut made = Batch::new();
    made.put(key(6), Precondition::Absent, vec![]);
    let mut unmade = Batch::new();
    unmade.delete(key(6), Precondition::Version(1));
    let batches = vec![
        batch(&[1, 3], &[2]),
        batch(&[1], &[]),
        gone,
        again,
        made,
        unmade,
    ];
    let mut group = group(batches);
    let changes = group.decide(found(&[1, 2]));
    assert_eq!(
        changes,
        GroupChanges {
            inserts: vec![(key(3), row(2, &[3]))],
            updates: vec![(key(1), row(3, &[1])), (key(2), row(1, &[22]))],
            deletes: vec![key(7)],
            // Not there afterwards: nobody else may make them in the meantime.
            held: vec![key(6), key(8)],
        }
    );
    assert_eq!(group.outcomes, vec![Ok(()); 6]);
}

#[test]
fn group__should_tell_each_batch_its_own_outcome_and_write_nothing_of_the_refused() {
    let (first, _, mut told_first) = job(batch(&[1, 2], &[3]));
    let (second, _, mut told_second) = job(batch(&[1, 4], &[5]));
    let (third, _, mut told_third) = job({
        let mut third = batch(&[], &[3]);
        third.put(key(1), Precondition::Version(1), vec![]);
        third
    });
    let mut waiting = VecDeque::from([first, second, third]);
    let mut group = CommitGroup::take(&mut waiting).unwrap();
    let changes = group.decide(found(&[3]));
    let names: Vec<_> = changes.inserts.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!(names, [key(1), key(2)]);
    assert_eq!(changes.updates, []);
    group.answer();
    assert_eq!(told_first.try_recv().unwrap(), Ok(()));
    let conflict = Err(CommitError::Conflict(key(5)));
    assert_eq!(told_second.try_recv().unwrap(), conflict);
    assert_eq!(told_third.try_recv().unwrap(), Ok(()));
}

#[test]
fn group__should_look_behind_the_head_of_a_chain_when_an_entry_is_in_the_way() {
    let adding = |chain, name| {
        let mut batch = batch(&[name], &[]);
        batch.append(chain, vec![name]);
        batch
    };
    let vault = AuditChain::Vault(covault_core::ids::VaultId::from_bytes([7; 16]));
    let mut group = group(vec![
        adding(AuditChain::Service, 1),
        adding(vault, 2),
        adding(AuditChain::Service, 3),
    ]);
    let changes = group.decide(BTreeMap::new());
    let entry = |chain, number| rows::audit_entry(chain, number);
    let names: Vec<_> = changes.inserts.iter().map(|(key, _)| key.clone()).collect();
    let heads = [AuditChain::Service, vault].map(rows::audit_head);
    let entries = [
        entry(AuditChain::Service, 1),
        entry(AuditChain::Service, 2),
        entry(vault, 1),
    ];
    let wanted = [
        vec![key(1), key(2), key(3)],
        entries.to_vec(),
        heads.to_vec(),
    ];
    assert_eq!(names, wanted.concat());
    group.collided(changes);
    assert!(group.locks().own.is_superset(&BTreeSet::from(entries)));
    // One of them is there: nothing more goes to its chain, and the other chain goes on.
    let there = BTreeMap::from([(entry(AuditChain::Service, 1), row(1, &[]))]);
    let changes = group.decide(there);
    assert_eq!(changes.inserts.len(), 3);
    assert_eq!(changes.inserts[0].0, key(2));
    assert_eq!(changes.updates, []);
    let [first, second, third] = &group.outcomes[..] else {
        panic!("one each")
    };
    assert_eq!(second, &Ok(()));
    for refused in [first, third] {
        let Err(CommitError::Unavailable(problem)) = refused else {
            panic!("it was taken")
        };
        assert!(
            problem.contains("the audit log service is damaged"),
            "{problem}"
        );
    }
}

#[test]
fn group__should_take_what_is_wanted_up_to_its_limits() {
    let mut waiting = VecDeque::new();
    let mut all = Vec::new();
    for name in 0..=255u8 {
        let (job, batch, answer) = job(batch(&[name], &[]));
        waiting.push_back(job);
        all.push((batch, answer));
    }
    assert!(take(&all[3].0).is_some());
    let group = CommitGroup::take(&mut waiting).unwrap();
    assert_eq!(group.len(), 255);
    assert!(waiting.is_empty());
    let (big, ..) = job({
        let mut big = Batch::new();
        big.put(key(0), Precondition::Any, vec![0; BYTES]);
        big
    });
    let (small, ..) = job(batch(&[1], &[]));
    waiting.extend([big, small]);
    assert_eq!(CommitGroup::take(&mut waiting).unwrap().len(), 1);
    assert_eq!(CommitGroup::take(&mut waiting).unwrap().len(), 1);
    assert!(CommitGroup::take(&mut waiting).is_none());
}
