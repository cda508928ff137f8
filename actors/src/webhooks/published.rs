//! The public keys that are published: those that webhooks are signed with now, by any process. A key that
//! was replaced or has leaked must not stay accepted for ever.

use covault_core::fault::Fault;

use super::WebhookKeys;
use crate::{
    services::{Services, skip_unreadable},
    store::{
        Batch, KeySpace, Precondition, Scan,
        deposit_rows::{self, WebhookKeyRow},
        rows,
    },
};

/// Rows that one scan reads.
const PAGE: usize = 100;
/// How often who sends webhooks says with which keys, in milliseconds.
pub(super) const REFRESH_MS: u64 = 5 * 60 * 1_000;
/// For how long a key is shown after nothing is signed with it, in milliseconds: receivers refuse what is older
/// than five minutes.
const SHOWN_MS: u64 = 60 * 60 * 1_000;

/// Records with which keys this process signs, and forgets those that nobody signs with.
///
/// # Errors
/// When the store cannot be read or written.
pub(super) async fn publish(services: &Services, keys: &WebhookKeys) -> Result<(), Fault> {
    let now_ms = services.now_ms();
    let own = keys.public();
    let mut batch = Batch::new();
    for public in &own {
        let row = WebhookKeyRow { used_at_ms: now_ms };
        let key = deposit_rows::webhook_key(public);
        batch.put(key, Precondition::Any, rows::encode(&row)?);
    }
    for (public, row) in stored(services).await? {
        if !own.contains(&public) && !is_shown(&row, now_ms) {
            batch.delete(deposit_rows::webhook_key(&public), Precondition::Any);
        }
    }
    Ok(services.store.commit(batch).await?)
}

/// The public keys by which webhooks can be checked now.
///
/// # Errors
/// When the store cannot be read.
pub async fn shown_keys(services: &Services) -> Result<Vec<[u8; 32]>, Fault> {
    let now_ms = services.now_ms();
    let stored = stored(services).await?;
    let shown = stored.iter().filter(|(_, row)| is_shown(row, now_ms));
    let mut keys: Vec<_> = shown.map(|(public, _)| *public).collect();
    // They may not be written yet.
    if let (true, Some(own)) = (keys.is_empty(), &services.webhooks.keys) {
        keys.extend(own.public());
    }
    keys.sort_unstable();
    Ok(keys)
}

/// How far the clocks of processes are believed to be apart at most, in milliseconds.
const CLOCKS_APART_MS: u64 = 10 * 60 * 1_000;

fn is_shown(row: &WebhookKeyRow, now_ms: u64) -> bool {
    // Of a clock that was ahead, or of someone who wants it shown for ever.
    let is_possible = row.used_at_ms <= now_ms.saturating_add(CLOCKS_APART_MS);
    is_possible && now_ms.saturating_sub(row.used_at_ms) < SHOWN_MS
}

async fn stored(services: &Services) -> Result<Vec<([u8; 32], WebhookKeyRow)>, Fault> {
    let mut all = Vec::new();
    let mut next = Some(Scan::prefix(KeySpace::WebhookKey, &[], PAGE));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        for (key, row) in &page {
            let row = rows::decode::<WebhookKeyRow>(&row.value);
            let row = skip_unreadable(row, "a public key of webhooks")?;
            all.extend(deposit_rows::webhook_public_key(key).zip(row));
        }
        next = scan.rest(&page);
    }
    Ok(all)
}
