//! Rows beside a model of them.

use proptest::prelude::*;
use redb::backends::InMemoryBackend;

use super::*;

const NUMBERS: RowSpace<(Vec<u8>, u32), Vec<u8>> = RowSpace::new(RowKind::Peer);
/// Right before and behind them.
const OTHERS: [RowSpace<u8, u8>; 2] = [
    RowSpace::new(RowKind::Blocked),
    RowSpace::new(RowKind::Spent),
];

fn opened(storage: &Arc<InMemoryBackend>) -> Rows {
    let mut rows = Rows::open(Arc::clone(storage) as _).unwrap();
    rows.checkpoint().unwrap();
    rows
}

#[derive(Clone, Debug)]
enum RowStep {
    Put(u8, u16),
    Delete(u8),
    Commit,
    Fold,
    Checkpoint,
    Restart,
}

fn step() -> impl Strategy<Value = RowStep> {
    prop_oneof![
        8 => (any::<u8>(), prop_oneof![6 => 0..200_u16, 1 => 3_000..12_000_u16])
            .prop_map(|(key, length)| RowStep::Put(key, length)),
        4 => any::<u8>().prop_map(RowStep::Delete),
        6 => Just(RowStep::Commit),
        4 => Just(RowStep::Fold),
        1 => Just(RowStep::Checkpoint),
        2 => Just(RowStep::Restart),
    ]
}

fn key(number: u8) -> (Vec<u8>, u32) {
    (vec![number % 7; 3], (number / 7).into())
}

fn assert_same(rows: &Rows, model: &BTreeMap<(Vec<u8>, u32), Vec<u8>>) {
    let mut seen = BTreeMap::new();
    rows.visit(&NUMBERS, |key, value| {
        assert!(seen.insert(key, value).is_none(), "shown twice");
    })
    .unwrap();
    assert_eq!(seen, *model);
    for number in 0..=u8::MAX {
        let key = key(number);
        assert_eq!(rows.get(&NUMBERS, &key).unwrap(), model.get(&key).cloned());
    }
    for other in &OTHERS {
        assert_eq!(rows.get(other, &1).unwrap(), Some(1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rows__should_be_what_was_written_last_wherever_they_are(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let storage = Arc::new(InMemoryBackend::new());
        let mut rows = Rows::make(Arc::clone(&storage) as _, SMALL_LOG_PAGES).unwrap();
        for other in &OTHERS {
            rows.put(other, &1, &1).unwrap();
        }
        rows.commit().unwrap();
        let (mut model, mut batch) = (BTreeMap::new(), BTreeMap::new());
        for step in steps {
            match step {
                RowStep::Put(number, length) => {
                    let value = vec![number; length.into()];
                    rows.put(&NUMBERS, &key(number), &value).unwrap();
                    batch.insert(key(number), value);
                }
                RowStep::Delete(number) => {
                    rows.delete(&NUMBERS, &key(number)).unwrap();
                    batch.remove(&key(number));
                }
                RowStep::Commit => {
                    rows.commit().unwrap();
                    model = batch.clone();
                }
                RowStep::Fold => rows.fold_step().unwrap(),
                RowStep::Checkpoint => {
                    rows.checkpoint().unwrap();
                    model = batch.clone();
                }
                RowStep::Restart => {
                    drop(rows);
                    rows = opened(&storage);
                    batch = model.clone();
                }
            }
            assert_same(&rows, &batch);
        }
    }
}

#[test]
fn rows__should_be_shown_below_a_key() {
    const SPENT: RowSpace<([u8; 8], String), u8> = RowSpace::new(RowKind::Spent);
    let mut rows = Rows::make(Arc::new(InMemoryBackend::new()), SMALL_LOG_PAGES).unwrap();
    for bucket in [0, 255, 256, 257, u64::MAX] {
        rows.put(&SPENT, &(u64::to_be_bytes(bucket), "a".into()), &1)
            .unwrap();
        rows.checkpoint().unwrap();
    }
    let mut below = Vec::new();
    let end = 257_u64.to_be_bytes();
    rows.visit_below(&SPENT, &end, |(bucket, _), _| {
        below.push(u64::from_be_bytes(bucket));
    })
    .unwrap();
    below.sort_unstable();
    assert_eq!(below, [0, 255, 256]);
}

#[test]
fn rows__should_not_open_where_a_part_of_the_file_is_missing() {
    let storage = Arc::new(InMemoryBackend::new());
    drop(Rows::make(Arc::clone(&storage) as _, SMALL_LOG_PAGES).unwrap());
    let end = FileHeader::new(SMALL_LOG_PAGES).database();
    let length = storage.len().unwrap();
    let open = || Rows::open(Arc::clone(&storage) as _).err();
    assert!(open().is_none());
    // Another length of the log would make other bytes the database.
    storage.write(16, &[7]).unwrap();
    assert!(open().is_some());
    storage.write(16, &[SMALL_LOG_PAGES as u8]).unwrap();
    for left in [end, 100, 0] {
        storage.set_len(left).unwrap();
        assert!(open().is_some(), "{left}");
        assert_eq!(storage.len().unwrap(), left, "nothing was made anew");
    }
    storage.set_len(length).unwrap();
    assert!(open().is_some());
}
