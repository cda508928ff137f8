//! The log of a claims file: a ring of pages in front of its database. An entry is what a batch changed. It takes whole
//! pages, so that no page with an entry that counts is ever written again, and is synced before anyone is told.
//!
//! Each page says which part of which entry it is, under a checksum. So the log is read without knowing where it begins:
//! of the pages that are not folded yet, the entries must follow each other without a gap. Only the last one may be
//! incomplete: the power went while it was written. Whatever else is missing was damaged, and nothing goes on then; so is
//! what the database knows to have been synced.

use std::{collections::BTreeMap, io, sync::Arc};

use redb::StorageBackend;
use serde::{Deserialize, Serialize};

/// Bytes of a page: what disks and file systems write at once.
pub(super) const PAGE: u64 = 4096;
const PAGE_BYTES: usize = 4096;
/// Checksum and [`PageHeader`].
const HEADER_BYTES: usize = 4 + 28;
/// Bytes of an entry in one page.
const PART_BYTES: usize = PAGE_BYTES - HEADER_BYTES;
const MAGIC: u64 = u64::from_le_bytes(*b"cvclaim\x01");

/// Begins a page, behind its checksum.
#[derive(Serialize, Deserialize)]
struct PageHeader {
    magic: u64,
    /// Number of the entry, from 1. Never given out twice.
    entry: u64,
    /// Place of the part in its entry.
    index: u32,
    /// Parts of the entry.
    count: u32,
    /// Bytes of the part.
    length: u32,
}

/// Why the entries that count cannot be read.
#[derive(Debug)]
pub(super) enum FindError {
    /// This entry is damaged, or missing.
    Damaged(u64),
    /// The disk does not give a page back: it may be of an entry that counts.
    Unreadable(io::Error),
}

/// The parts of an entry that were found.
struct FoundParts {
    count: u32,
    parts: BTreeMap<u32, Vec<u8>>,
}

/// See the module. When a write or a sync fails, what is on the disk is unknown: it must not be used any more.
pub(super) struct Log {
    storage: Arc<dyn StorageBackend>,
    /// Where its pages begin.
    offset: u64,
    /// How many there are.
    pages: u64,
    /// The page that is written next.
    head: u64,
    /// The number that was given out last.
    last: u64,
    /// Pages of entries that are not being folded.
    fresh: u64,
    /// Pages of entries that are.
    folding: u64,
}

impl Log {
    /// A log without entries that count.
    pub(super) fn new(storage: Arc<dyn StorageBackend>, offset: u64, pages: u64) -> Self {
        Self {
            storage,
            offset,
            pages,
            head: 0,
            last: 0,
            fresh: 0,
            folding: 0,
        }
    }

    fn position(&self, page: u64) -> u64 {
        self.offset.saturating_add(page.saturating_mul(PAGE))
    }

    /// The entries behind `folded`, in their order, of which those up to `reached` were synced for certain. All of them are
    /// to be folded before anything is added.
    pub(super) fn find(&mut self, folded: u64, reached: u64) -> Result<Vec<Vec<u8>>, FindError> {
        let mut found: BTreeMap<u64, FoundParts> = BTreeMap::new();
        self.last = folded;
        for page in 0..self.pages {
            let mut bytes = [0; PAGE_BYTES];
            self.storage
                .read(self.position(page), &mut bytes)
                .map_err(FindError::Unreadable)?;
            let Some((header, part)) = parse(&bytes) else {
                continue;
            };
            // Also of one that is incomplete: no number is given out twice.
            self.last = self.last.max(header.entry);
            if header.entry <= folded {
                continue;
            }
            let entry = found.entry(header.entry).or_insert_with(|| FoundParts {
                count: header.count,
                parts: BTreeMap::new(),
            });
            let again = entry.parts.insert(header.index, part.to_vec());
            if entry.count != header.count || again.is_some() {
                return Err(FindError::Damaged(header.entry));
            }
        }
        in_order(found, folded, reached)
    }

    /// The number of the last entry.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The number of a batch that goes to the database directly. So a gap shows when it is not there, and later entries are.
    pub(super) fn take_number(&mut self) -> u64 {
        self.last = self.last.saturating_add(1);
        self.last
    }

    /// Whether an entry fits, before others are folded.
    pub(super) fn has_room(&self, body: &[u8]) -> bool {
        let count = u64::try_from(body.len().div_ceil(PART_BYTES)).unwrap_or(u64::MAX);
        count.saturating_add(self.used()) <= self.pages
    }

    fn used(&self) -> u64 {
        self.fresh.saturating_add(self.folding)
    }

    /// Whether entries are to be folded.
    pub(super) fn is_half_full(&self) -> bool {
        self.used() >= self.pages / 2
    }

    /// All entries so far are being folded. The number of the last one.
    pub(super) fn begin_folding(&mut self) -> u64 {
        self.folding = self.used();
        self.fresh = 0;
        self.last
    }

    /// They are in the database: their pages are free.
    pub(super) fn folded(&mut self) {
        self.folding = 0;
    }

    /// Writes an entry that has room; on disk when it returns.
    pub(super) fn append(&mut self, body: &[u8]) -> io::Result<()> {
        let parts = body.chunks(PART_BYTES);
        let count = u32::try_from(parts.len()).map_err(io::Error::other)?;
        let entry = self.take_number();
        for (index, part) in (0..).zip(parts) {
            let header = PageHeader {
                magic: MAGIC,
                entry,
                index,
                count,
                length: u32::try_from(part.len()).map_err(io::Error::other)?,
            };
            let page = page(&header, part).map_err(io::Error::other)?;
            self.storage.write(self.position(self.head), &page)?;
            self.head = self.head.saturating_add(1);
            if self.head >= self.pages {
                self.head = 0;
            }
        }
        self.fresh = self.fresh.saturating_add(count.into());
        self.storage.sync_data()
    }
}

fn page(header: &PageHeader, part: &[u8]) -> bcs::Result<Vec<u8>> {
    let mut rest = bcs::to_bytes(header)?;
    rest.extend_from_slice(part);
    rest.resize(PAGE_BYTES.saturating_sub(4), 0);
    let mut page = crc32fast::hash(&rest).to_le_bytes().to_vec();
    page.append(&mut rest);
    Ok(page)
}

/// The page's header and part; `None`: it was never written, or not all of it.
fn parse(page: &[u8]) -> Option<(PageHeader, &[u8])> {
    let (checksum, rest) = page.split_first_chunk::<4>()?;
    let (header, part) = rest.split_at_checked(HEADER_BYTES.saturating_sub(4))?;
    let header: PageHeader = bcs::from_bytes(header).ok()?;
    let whole = header.magic == MAGIC
        && header.index < header.count
        && crc32fast::hash(rest) == u32::from_le_bytes(*checksum);
    let part = part.get(..usize::try_from(header.length).ok()?)?;
    whole.then_some((header, part))
}

/// The entries behind `folded`, without gaps. The last one may be incomplete, and is left out then, where nothing says that
/// it was synced.
fn in_order(
    found: BTreeMap<u64, FoundParts>,
    folded: u64,
    reached: u64,
) -> Result<Vec<Vec<u8>>, FindError> {
    let last = found.last_key_value().map(|(entry, _)| *entry);
    let mut entries = Vec::with_capacity(found.len());
    let mut next = folded.saturating_add(1);
    for (entry, FoundParts { count, parts }) in found {
        let whole = usize::try_from(count).is_ok_and(|count| count == parts.len());
        if entry != next || !whole && Some(entry) != last {
            return Err(FindError::Damaged(next));
        }
        if whole {
            entries.push(parts.into_values().flatten().collect());
            next = next.saturating_add(1);
        }
    }
    if next <= reached {
        return Err(FindError::Damaged(next));
    }
    Ok(entries)
}

#[cfg(test)]
#[path = "log_tests.rs"]
#[allow(non_snake_case)]
mod tests;
