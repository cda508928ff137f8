//! What a log holds after it was written, torn, damaged.

use redb::backends::InMemoryBackend;

use super::*;

const PAGES: u64 = 8;
const OFFSET: u64 = PAGE;

fn storage() -> Arc<InMemoryBackend> {
    let storage = InMemoryBackend::new();
    storage.set_len(OFFSET + PAGES * PAGE).unwrap();
    Arc::new(storage)
}

fn log(storage: &Arc<InMemoryBackend>) -> Log {
    Log::new(Arc::clone(storage) as _, OFFSET, PAGES)
}

fn found(storage: &Arc<InMemoryBackend>, folded: u64) -> Result<Vec<Vec<u8>>, u64> {
    found_up_to(storage, folded, 0)
}

/// Where those up to `reached` were synced for certain.
fn found_up_to(
    storage: &Arc<InMemoryBackend>,
    folded: u64,
    reached: u64,
) -> Result<Vec<Vec<u8>>, u64> {
    log(storage)
        .find(folded, reached)
        .map_err(|error| match error {
            FindError::Damaged(entry) => entry,
            FindError::Unreadable(error) => panic!("{error}"),
        })
}

fn flip(storage: &InMemoryBackend, page: u64, place: u64) {
    let mut byte = [0];
    let at = OFFSET + page * PAGE + place;
    storage.read(at, &mut byte).unwrap();
    storage.write(at, &[byte[0] ^ 1]).unwrap();
}

/// Of so many pages.
fn body(number: u8, pages: usize) -> Vec<u8> {
    vec![number; (pages - 1) * PART_BYTES + 1]
}

#[test]
fn log__should_give_back_what_is_not_folded_in_its_order() {
    let storage = storage();
    let mut log = log(&storage);
    assert_eq!(found(&storage, 0), Ok(vec![]));
    for (number, pages) in [(1, 1), (2, 3), (3, 2)] {
        assert!(log.has_room(&body(number, pages)));
        log.append(&body(number, pages)).unwrap();
    }
    assert!(log.is_half_full() && !log.has_room(&body(4, 3)));
    assert_eq!(
        found(&storage, 0),
        Ok(vec![body(1, 1), body(2, 3), body(3, 2)])
    );
    assert_eq!(found(&storage, 2), Ok(vec![body(3, 2)]));
    // What is being folded keeps its pages until it is.
    assert_eq!(log.begin_folding(), 3);
    assert!(!log.has_room(&body(4, 3)));
    log.folded();
    assert!(!log.is_half_full());
    // Round the end.
    log.append(&body(4, 4)).unwrap();
    assert_eq!(found(&storage, 3), Ok(vec![body(4, 4)]));
}

#[test]
fn log__should_cut_off_an_incomplete_entry_only_behind_all_others() {
    let storage = storage();
    let mut written = log(&storage);
    for (number, pages) in [(1, 1), (2, 3), (3, 2)] {
        written.append(&body(number, pages)).unwrap();
    }
    // Any byte of a page counts, also where nothing was written.
    for (page, place) in [(5, 0), (4, 3), (5, 20), (4, PAGE - 1), (5, 33)] {
        flip(&storage, page, place);
        assert_eq!(found(&storage, 0), Ok(vec![body(1, 1), body(2, 3)]));
        let mut again = log(&storage);
        again.find(0, 0).unwrap();
        assert_eq!(again.last(), 3, "a number is given out once");
        flip(&storage, page, place);
    }
    for (page, entry) in [(0, 1), (1, 2), (2, 2), (3, 2)] {
        for place in [0, 9, 30, 40, PAGE - 1] {
            flip(&storage, page, place);
            assert_eq!(found(&storage, 0), Err(entry), "page {page}, byte {place}");
            // What is folded does not count.
            assert_eq!(found(&storage, 2), Ok(vec![body(3, 2)]));
            flip(&storage, page, place);
        }
    }
    assert_eq!(found(&storage, 0).map(|entries| entries.len()), Ok(3));
}

#[test]
fn log__should_not_cut_off_what_was_synced_for_certain() {
    let storage = storage();
    let mut written = log(&storage);
    for (number, pages) in [(1, 1), (2, 3)] {
        written.append(&body(number, pages)).unwrap();
    }
    assert_eq!(found_up_to(&storage, 0, 2).map(|it| it.len()), Ok(2));
    assert_eq!(found_up_to(&storage, 2, 2), Ok(vec![]));
    for page in 1..4 {
        flip(&storage, page, 50);
        assert_eq!(found_up_to(&storage, 0, 1), Ok(vec![body(1, 1)]));
        assert_eq!(found_up_to(&storage, 0, 2), Err(2));
        flip(&storage, page, 50);
    }
    // Whole entries that are not there at all.
    assert_eq!(found_up_to(&storage, 0, 3), Err(3));
    assert_eq!(found_up_to(&storage, 4, 6), Err(5));
}

#[test]
fn log__should_show_that_a_batch_is_missing_which_went_to_the_database_directly() {
    let storage = storage();
    let mut written = log(&storage);
    written.append(&body(1, 1)).unwrap();
    assert_eq!(written.take_number(), 2);
    written.append(&body(3, 1)).unwrap();
    assert_eq!(found(&storage, 2), Ok(vec![body(3, 1)]));
    assert_eq!(found(&storage, 1), Err(2));
    assert_eq!(found(&storage, 0), Err(2));
}

/// A peer's announcement is in the rows: what it sends must not be taken for an entry.
#[test]
fn log__should_not_take_what_is_in_an_entry_for_another() {
    let storage = storage();
    let mut log = log(&storage);
    for shift in 0..PAGE_BYTES {
        // Of the entry behind the one that it is in.
        let header = PageHeader {
            magic: MAGIC,
            entry: log.last() + 2,
            index: 0,
            count: 1,
            length: 10,
        };
        let forged = page(&header, b"never sign").unwrap();
        let mut body = vec![0; shift];
        body.extend_from_slice(&forged);
        log.append(&body).unwrap();
        let entry = log.last();
        assert_eq!(found(&storage, entry - 1), Ok(vec![body]));
        log.begin_folding();
        log.folded();
    }
}
