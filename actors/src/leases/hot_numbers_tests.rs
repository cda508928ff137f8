use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;
use crate::{
    leases::hot_rows::Fence,
    store::{Key, Row},
};

#[derive(Default)]
struct Term(AtomicBool);

impl LeaseTerm for Term {
    fn is_over(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    fn fence(&self) -> Fence {
        Fence {
            row: Key::new(KeySpace::Lease, &[]),
            version: 1,
        }
    }
}

const ACCOUNT_NAME: &[u8] = b"account\0";

fn holder(number: u8) -> RequestId {
    RequestId::from_bytes([number; 16])
}

fn key(number: u64) -> Key {
    Key::new(
        KeySpace::NonceReservation,
        &[ACCOUNT_NAME, &number.to_be_bytes()],
    )
}

fn taking(number: u64) -> Batch {
    let mut batch = Batch::new();
    let value = rows::encode(&holder(1)).unwrap();
    batch.put(key(number), Precondition::Absent, value);
    batch
}

fn freeing(number: u64) -> Batch {
    let mut batch = Batch::new();
    batch.delete(key(number), Precondition::Any);
    batch
}

fn lease() -> Arc<dyn LeaseTerm> {
    Arc::new(Term::default())
}

fn conflict(number: u64) -> Result<(), CommitError> {
    Err(CommitError::Conflict(key(number)))
}

fn numbers(found: Option<Vec<(u64, RequestId)>>) -> Option<Vec<u64>> {
    Some(found?.into_iter().map(|(number, _)| number).collect())
}

fn read(hot: &HotNumbers, lease: &Arc<dyn LeaseTerm>) {
    let read = hot.begin(ACCOUNT_NAME.to_vec(), lease).unwrap();
    read.keep(5, &[(6, holder(6))]);
}

fn find(hot: &HotNumbers) -> Option<Vec<u64>> {
    numbers(hot.find(ACCOUNT_NAME, 5))
}

#[test]
fn hot_numbers__should_follow_what_requests_take() {
    let (hot, lease) = (HotNumbers::default(), lease());
    assert_eq!(find(&hot), None);
    // One that is on its way while the store is read: the read may have missed it.
    let begun = hot.begin(ACCOUNT_NAME.to_vec(), &lease).unwrap();
    let seven = hot.change(&taking(7), Arc::clone(&lease)).unwrap();
    seven.done(&Ok(()));
    let eight = hot.change(&taking(8), Arc::clone(&lease)).unwrap();
    begun.keep(5, &[(6, holder(6))]);
    assert_eq!(find(&hot), Some(vec![6, 7]));
    eight.done(&Ok(()));
    assert_eq!(find(&hot), Some(vec![6, 7, 8]));
    assert_eq!(numbers(hot.find(ACCOUNT_NAME, 7)), Some(vec![7, 8]));
    // What is below was not read.
    assert_eq!(hot.find(ACCOUNT_NAME, 4), None);
}

#[test]
fn hot_numbers__should_be_read_again_when_one_is_freed() {
    let (hot, lease) = (HotNumbers::default(), lease());
    read(&hot, &lease);
    let earlier = hot.begin(ACCOUNT_NAME.to_vec(), &lease).unwrap();
    let change = hot.change(&freeing(6), Arc::clone(&lease)).unwrap();
    assert_eq!(find(&hot), None);
    // What was read before and while it is freed.
    earlier.keep(5, &[(6, holder(6))]);
    read(&hot, &lease);
    assert_eq!(find(&hot), None);
    let earlier = hot.begin(ACCOUNT_NAME.to_vec(), &lease).unwrap();
    change.done(&Ok(()));
    earlier.keep(5, &[(6, holder(6))]);
    assert_eq!(find(&hot), None);
    read(&hot, &lease);
    assert_eq!(find(&hot), Some(vec![6]));
}

#[test]
fn hot_numbers__should_not_keep_what_was_freed_before_it_was_known_to_be_taken() {
    let (hot, lease) = (HotNumbers::default(), lease());
    let taken = hot.change(&taking(7), Arc::clone(&lease)).unwrap();
    let freed = hot.change(&freeing(7), Arc::clone(&lease)).unwrap();
    freed.done(&Ok(()));
    taken.done(&Ok(()));
    read(&hot, &lease);
    assert_eq!(find(&hot), Some(vec![6]));
}

#[test]
fn hot_numbers__should_be_read_again_after_a_conflict() {
    let (hot, lease) = (HotNumbers::default(), lease());
    read(&hot, &lease);
    let change = hot.change(&taking(7), Arc::clone(&lease)).unwrap();
    change.done(&conflict(7));
    assert_eq!(find(&hot), None);
}

#[test]
fn hot_numbers__should_be_read_always_when_nobody_knows_what_became_of_a_commit() {
    for batch in [taking(7), freeing(6)] {
        for is_told in [true, false] {
            let (hot, lease) = (HotNumbers::default(), lease());
            read(&hot, &lease);
            let change = hot.change(&batch, Arc::clone(&lease)).unwrap();
            if is_told {
                change.done(&Err(CommitError::Unavailable("gone".into())));
            } else {
                drop(change);
            }
            read(&hot, &lease);
            assert_eq!(find(&hot), None);
            // Under the next lease it can no longer be done.
            let next = self::lease();
            read(&hot, &next);
            assert_eq!(find(&hot), Some(vec![6]));
        }
    }
}

#[test]
fn hot_numbers__should_end_with_their_lease() {
    let hot = HotNumbers::default();
    let first = Arc::new(Term::default());
    let lease = Arc::clone(&first) as Arc<dyn LeaseTerm>;
    read(&hot, &lease);
    let late = hot.begin(ACCOUNT_NAME.to_vec(), &lease).unwrap();
    let change = hot.change(&taking(9), Arc::clone(&lease)).unwrap();
    first.0.store(true, Ordering::SeqCst);
    assert_eq!(find(&hot), None);
    assert!(hot.begin(ACCOUNT_NAME.to_vec(), &lease).is_none());
    let next = self::lease();
    read(&hot, &next);
    late.keep(5, &[(8, holder(8))]);
    change.done(&Ok(()));
    // It may have been done while the lease lasted: it is read again.
    assert_ne!(find(&hot), Some(vec![6, 8]));
    read(&hot, &next);
    assert_eq!(find(&hot), Some(vec![6]));
}

#[test]
fn hot_numbers__should_stay_bounded() {
    let (hot, lease) = (HotNumbers::default(), lease());
    read(&hot, &lease);
    for number in 7..5_000 {
        let change = hot.change(&taking(number), Arc::clone(&lease)).unwrap();
        change.done(&Ok(()));
    }
    let known = hot.find(ACCOUNT_NAME, 4_990).unwrap();
    assert_eq!(known.len(), 10);
    assert_eq!(find(&hot), None);
    assert!(hot.0.lock().size <= OF_ONE + ACCOUNT);
    for number in 0..50_000_u32 {
        let read = hot.begin(number.to_be_bytes().to_vec(), &lease);
        read.unwrap().keep(5, &[(6, holder(6))]);
    }
    let remembered = hot.0.lock();
    let sizes = remembered.accounts.values().map(HotAccount::size);
    assert_eq!(remembered.size, sizes.sum::<usize>());
    assert!(remembered.size <= OF_ALL);
}

proptest! {
    /// Whatever is on its way and comes back in whatever order: what is known is what the store has, but for what
    /// is on its way.
    #[test]
    fn hot_numbers__should_know_nothing_that_is_not_so(
        steps in proptest::collection::vec((0..6_u8, 0..4_u64, any::<prop::sample::Index>()), 0..80)
    ) {
        let (hot, lease) = (HotNumbers::default(), lease());
        let mut store: BTreeMap<Key, Row> = BTreeMap::new();
        let mut flying: Vec<(NumbersChange<'_>, Result<(), CommitError>)> = Vec::new();
        let mut reading: Vec<(NumbersRead<'_>, Vec<(u64, RequestId)>)> = Vec::new();
        for (step, number, which) in steps {
            match step {
                0 | 1 => {
                    let batch = if step == 0 { taking(number) } else { freeing(number) };
                    let change = hot.change(&batch, Arc::clone(&lease)).unwrap();
                    let outcome = batch.apply(&mut store);
                    flying.push((change, outcome));
                }
                2 if !flying.is_empty() => {
                    let (change, outcome) = flying.remove(which.index(flying.len()));
                    change.done(&outcome);
                }
                3 => {
                    let read = hot.begin(ACCOUNT_NAME.to_vec(), &lease).unwrap();
                    let found = store.iter().map(|(key, row)| {
                        (rows::claimed_nonce(key).unwrap(), rows::decode(&row.value).unwrap())
                    });
                    reading.push((read, found.collect()));
                }
                4 if !reading.is_empty() => {
                    let (read, found) = reading.remove(which.index(reading.len()));
                    read.keep(0, &found);
                }
                _ => {}
            }
            if flying.is_empty() && let Some(known) = numbers(hot.find(ACCOUNT_NAME, 0)) {
                let stored: Vec<u64> = store.keys().filter_map(rows::claimed_nonce).collect();
                prop_assert_eq!(known, stored);
            }
        }
    }
}
