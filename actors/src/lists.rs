//! Pages of lists.

use covault_core::fault::Fault;

use crate::{
    services::Services,
    store::{Key, Row, Scan},
};

/// Most entries of a page, and how many it has when nobody asks for fewer.
pub const MAX_PAGE: i64 = 100;
/// Entries that are read in one question: bounds what they take up beside what is answered.
pub const READ_CHUNK: usize = 25;
/// Rows that are passed over at once.
const STRIDE: usize = 10_000;

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
    services: &Services,
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
        Some(
            services
                .limits
                .far_pages
                .acquire()
                .await
                .map_err(Fault::bug)?,
        )
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
