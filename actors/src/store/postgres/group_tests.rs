#![allow(non_snake_case)]

use super::*;

fn key(name: u8) -> Key {
    Key::new(KeySpace::Wallet, &[&[name]])
}

type Reply = oneshot::Receiver<Result<(), CommitError>>;

fn job(batch: Batch) -> (Job, Waiting, Reply) {
    let (reply, answer) = oneshot::channel();
    let batch = Arc::new(Mutex::new(Some(batch)));
    let job = Job {
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

#[test]
fn waves__should_keep_apart_only_what_has_to_do_with_each_other() {
    let of = |batches: &[Batch]| waves(batches.iter());
    assert_eq!(of(&[batch(&[1], &[]), batch(&[2], &[])]), [0, 0]);
    assert_eq!(of(&[batch(&[1], &[]), batch(&[1], &[])]), [0, 1]);
    // A lease that everybody looks at keeps nobody apart.
    let looking = [1, 2, 3].map(|name| batch(&[name], &[9]));
    assert_eq!(of(&looking), [0, 0, 0]);
    // What is looked at, and written later, is looked at first.
    assert_eq!(of(&[batch(&[1], &[9]), batch(&[9], &[])]), [0, 0]);
    assert_eq!(of(&[batch(&[9], &[]), batch(&[1], &[9])]), [0, 1]);
    assert_eq!(
        of(&[
            batch(&[1], &[]),
            batch(&[1], &[9]),
            batch(&[9], &[]),
            batch(&[3], &[]),
        ]),
        [0, 1, 1, 0]
    );
    let mut absent = Batch::new();
    absent.check(key(9), Precondition::Absent);
    assert_eq!(of(&[absent.clone(), absent]), [0, 1]);
}

fn adding(chain: Chain, row: u8) -> Batch {
    let mut batch = batch(&[row], &[]);
    batch.append(chain, vec![row, 0]);
    batch.append(chain, vec![row, 1]);
    batch
}

fn vault() -> Chain {
    Chain::Vault(covault_core::ids::VaultId::from_bytes([7; 16]))
}

#[test]
fn waves__should_not_keep_apart_entries_of_one_chain() {
    let of = |batches: &[Batch]| waves(batches.iter());
    let one = || adding(Chain::Service, 1);
    let other = || adding(Chain::Service, 2);
    assert_eq!(of(&[one(), other(), adding(vault(), 3)]), [0, 0, 0]);
    // They stay in the order of their batches.
    assert_eq!(of(&[one(), one(), other()]), [0, 1, 1]);
    // Who names a head comes after those that were there first, and before those that come later.
    let mut began = Batch::new();
    began.check(rows::audit_head(Chain::Service), Precondition::Absent);
    let began = || began.clone();
    assert_eq!(of(&[began(), began(), one()]), [0, 1, 2]);
    assert_eq!(of(&[one(), began()]), [0, 1]);
    let mut rebroadcast_cache = Batch::new();
    rebroadcast_cache.check(rows::audit_head(Chain::Service), Precondition::Version(1));
    assert_eq!(of(&[one(), rebroadcast_cache.clone()]), [0, 1]);
    assert_eq!(of(&[rebroadcast_cache, one()]), [0, 0]);
}

#[test]
fn group__should_order_entries_by_chain_and_tell_whose_chain_is_damaged() {
    let (first, _, mut told_first) = job(adding(vault(), 1));
    let (second, _, mut told_second) = job(adding(Chain::Service, 2));
    // In a later wave.
    let (third, _, mut told_third) = job(adding(Chain::Service, 1));
    let mut waiting = VecDeque::from([first, second, third]);
    let group = Group::take(&mut waiting).unwrap();
    let rows = group.rows();
    assert_eq!((rows.ends, rows.entry_ends), (vec![2, 3], vec![4, 6]));
    assert_eq!(rows.entry_batches, [1, 1, 0, 0, 2, 2]);
    let (service, for_vault) = (Chain::Service.key(), vault().key());
    assert_eq!(
        rows.chains,
        [
            &service, &service, &for_vault, &for_vault, &service, &service
        ]
        .map(Clone::clone)
    );
    assert_eq!(
        rows.bodies,
        [[2, 0], [2, 1], [1, 0], [1, 1], [1, 0], [1, 1]]
    );
    group.answer(&[-3, 3]);
    let Err(CommitError::Unavailable(problem)) = told_first.try_recv().unwrap() else {
        panic!("it was taken")
    };
    assert!(
        problem.contains(&format!("the audit log {} is damaged", vault())),
        "{problem}"
    );
    assert_eq!(told_second.try_recv().unwrap(), Ok(()));
    let conflict = Err(CommitError::Conflict(key(1)));
    assert_eq!(told_third.try_recv().unwrap(), conflict);
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
    let group = Group::take(&mut waiting).unwrap();
    assert_eq!(group.len(), 255);
    assert!(waiting.is_empty());
    let (big, ..) = job({
        let mut big = Batch::new();
        big.put(key(0), Precondition::Any, vec![0; BYTES]);
        big
    });
    let (small, ..) = job(batch(&[1], &[]));
    waiting.extend([big, small]);
    assert_eq!(Group::take(&mut waiting).unwrap().len(), 1);
    assert_eq!(Group::take(&mut waiting).unwrap().len(), 1);
    assert!(Group::take(&mut waiting).is_none());
}

#[test]
fn group__should_tell_each_batch_its_own_outcome() {
    let (first, _, mut told_first) = job(batch(&[1, 2], &[3]));
    // In a later wave.
    let (second, _, mut told_second) = job(batch(&[1], &[]));
    let (third, _, mut told_third) = job(batch(&[4], &[3]));
    let mut waiting = VecDeque::from([first, second, third]);
    let group = Group::take(&mut waiting).unwrap();
    let (one, two, three, four) = (key(1).bytes, key(2).bytes, key(3).bytes, key(4).bytes);
    let rows = group.rows();
    assert_eq!(rows.ends, [5, 6]);
    assert_eq!(rows.batches, [0, 0, 0, 1, 1, 2]);
    assert_eq!(rows.keys, [&one, &two, &three, &four, &three, &one]);
    assert_eq!(rows.changes, [1, 1, 0, 1, 0, 1]);
    assert_eq!(rows.expects, [-1, -1, 1, -1, 1, -1]);
    group.answer(&[5]);
    assert_eq!(told_first.try_recv().unwrap(), Ok(()));
    assert_eq!(told_second.try_recv().unwrap(), Ok(()));
    let conflict = Err(CommitError::Conflict(key(3)));
    assert_eq!(told_third.try_recv().unwrap(), conflict);
}
