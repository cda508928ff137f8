//! The stored state of a followed chain, as its follower keeps it.

use covault_core::{
    deposit::{
        ring::HeaderRing,
        transfer::{BlockHeader, FollowedChain},
    },
    fault::Fault,
};

use super::change::OpenTransfers;
use crate::{
    services::Services,
    store::{
        KeySpace, Scan,
        deposit_rows::{self, CursorRow, TransferRow},
        rows,
    },
};

/// Rows that one question to the store names.
const KEYS: usize = 1_000;

/// See the module.
pub(super) struct StoredProgress {
    pub(super) lease_version: u64,
    /// The version of the cursor's row, and the blocks from the final one to the newest; `None` before the first start.
    pub(super) followed: Option<(u64, HeaderRing)>,
    pub(super) open: OpenTransfers,
}

impl StoredProgress {
    /// What the store has now.
    ///
    /// # Errors
    /// When the store cannot be read, or its rows do not fit each other.
    pub(super) async fn load(
        services: &Services,
        chain: FollowedChain,
        lease_version: u64,
    ) -> Result<Self, Fault> {
        let cursor = services
            .load::<CursorRow>(&deposit_rows::cursor(chain))
            .await?;
        let Some((cursor, version)) = cursor else {
            return Ok(Self {
                lease_version,
                followed: None,
                open: OpenTransfers::new(),
            });
        };
        let all = deposit_rows::headers(chain).bytes;
        let mut ring: Option<HeaderRing> = None;
        let mut next = Some(Scan::prefix(KeySpace::BlockHeader, &all, KEYS));
        while let Some(scan) = next {
            let page = services.store.scan(&scan).await?;
            for (_, row) in &page {
                let header = rows::decode::<BlockHeader>(&row.value)?;
                match &mut ring {
                    Some(ring) => ring.push(header)?,
                    None => ring = Some(HeaderRing::new(header)),
                }
            }
            next = scan.rest(&page);
        }
        let fits = |ring: &HeaderRing| {
            ring.head().block == cursor.head && ring.finalized().block == cursor.finalized
        };
        let ring = ring.filter(fits);
        let ring =
            ring.ok_or_else(|| Fault::bug("the headers of a chain do not fit its cursor"))?;
        let mut open = OpenTransfers::new();
        let all = deposit_rows::open_transfers(chain).bytes;
        let mut next = Some(Scan::prefix(KeySpace::OpenTransfer, &all, KEYS));
        while let Some(scan) = next {
            let page = services.store.scan(&scan).await?;
            let keys = page
                .iter()
                .filter_map(|(key, _)| deposit_rows::transfer_of_open(key));
            for row in services
                .load_all::<TransferRow>(&keys.collect::<Vec<_>>())
                .await?
            {
                let row = row?.ok_or_else(|| Fault::bug("an open transfer without a row"))?;
                open.insert(row.transfer.key(), row);
            }
            next = scan.rest(&page);
        }
        Ok(Self {
            lease_version,
            followed: Some((version, ring)),
            open,
        })
    }
}
