//! Pages of lists.

use covault_core::fault::Fault;
use prost::Message;

use crate::{
    commands::caller::Caller,
    services::Services,
    store::{Key, Row, Scan},
};

/// Most entries of a page, and how many it has when nobody asks for fewer.
pub const MAX_PAGE: i64 = 100;
/// Entries that are read in one question: bounds what they take up beside what is answered.
pub const READ_CHUNK: usize = 25;
/// Rows that are passed over at once.
const STRIDE: usize = 10_000;

/// Most bytes of a page, as protobuf; one entry may be larger.
const MAX_PAGE_BYTES: usize = 4 << 20;

/// Bytes around an entry.
const FRAME: usize = 5;

/// Counts the bytes of a page.
#[derive(Default)]
pub struct PageBytes {
    entries: usize,
    bytes: usize,
}

impl PageBytes {
    /// One entry more.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming `limit`, when the page gets too large.
    pub fn add(&mut self, entry: &impl Message) -> Result<(), Fault> {
        if self.fits(entry) {
            return Ok(());
        }
        let fit = self.entries - 1;
        let problem =
            format!("the page is larger than 4 MiB: only {fit} of its entries fit, ask for fewer");
        Err(Fault::field("limit", problem))
    }
}

impl PageBytes {
    /// One entry more, of a list that is read on from where a page ends. False when the page is full without it.
    pub fn fits(&mut self, entry: &impl Message) -> bool {
        // With what tells it from the one before.
        let bytes = entry.encoded_len().saturating_add(FRAME);
        self.bytes = self.bytes.saturating_add(bytes);
        self.entries += 1;
        self.bytes <= MAX_PAGE_BYTES || self.entries == 1
    }
}

/// A part of a list.
#[derive(Clone, Copy, Debug)]
pub struct PageRange {
    /// Entries before it.
    before: usize,
    /// Entries of it at most.
    limit: usize,
}

impl PageRange {
    /// Pages are counted from 1; 0, which the wire shows when a field is left out, means the first
    /// page, and the usual number of entries.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming the field.
    pub fn of(page: Option<i64>, limit: Option<i64>, usual: i64) -> Result<Self, Fault> {
        let page = page.filter(|page| *page != 0).unwrap_or(1);
        let limit = limit.filter(|limit| *limit != 0).unwrap_or(usual);
        if !(1..=MAX_PAGE).contains(&limit) {
            return Err(Fault::field("limit", format!("must be 1 to {MAX_PAGE}")));
        }
        let bad_page = |_| Fault::field("page", "must be 1 or more");
        let before = usize::try_from(page.saturating_sub(1)).map_err(bad_page)?;
        let limit = usize::try_from(limit).map_err(Fault::bug)?;
        Ok(Self {
            // No list is so long: past the end, as the caller will see.
            before: before.saturating_mul(limit),
            limit,
        })
    }
}

/// The rows of a page, of those whose keys start as `all` does. What is before the page is passed
/// over row by row: the further behind it is, the longer that takes. So it is done in strides, with
/// room for others between them, and for few callers at once.
///
/// # Errors
/// When the store cannot be read.
pub async fn page(
    (services, caller): (&Services, &Caller),
    all: &Key,
    reverse: bool,
    page: PageRange,
) -> Result<Vec<(Key, Row)>, Fault> {
    let rows = |from, skip, limit| Scan {
        reverse,
        from,
        skip,
        ..Scan::prefix(all.space, &all.bytes, limit)
    };
    let mut left = page.before;
    let mut from = None;
    let _turn = if left > STRIDE {
        Some(services.limits.far_pages.turn(caller.token).await?)
    } else {
        None
    };
    while left > STRIDE {
        let next = rows(from.take(), STRIDE, 1);
        let Some((key, _)) = services.store.scan(&next).await?.pop() else {
            return Ok(Vec::new());
        };
        from = Some(key.bytes);
        left = left.saturating_sub(STRIDE);
        tokio::task::yield_now().await;
    }
    let page = rows(from, left, page.limit);
    Ok(services.store.scan(&page).await?)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::schema::wire::Wallet;

    use super::*;

    fn entry(bytes: usize) -> Wallet {
        Wallet {
            name: "x".repeat(bytes),
            ..Default::default()
        }
    }

    #[test]
    fn page__should_end_before_it_is_too_large_unless_one_entry_is() {
        let mut page = PageBytes::default();
        assert!(page.fits(&entry(2 << 20)));
        assert!(page.fits(&entry((2 << 20) - 100)));
        assert!(!page.fits(&entry(100)));
        let mut page = PageBytes::default();
        assert!(page.fits(&entry(5 << 20)));
        assert!(!page.fits(&entry(0)));
        // Small ones count too.
        let mut page = PageBytes::default();
        let many = (0..1_000_000).take_while(|_| page.fits(&entry(0))).count();
        assert_eq!(many, MAX_PAGE_BYTES / FRAME);
    }
}
