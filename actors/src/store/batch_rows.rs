//! The keys by which batch payments are found, and what decides whether one is paid again.

use covault_core::ids::{BatchId, RequestId, VaultId, WalletId};

use super::{Key, KeySpace};

/// [`KeySpace::BatchIndex`].
pub fn batch_index(vault: VaultId, created_at_ms: u64, batch: BatchId) -> Key {
    let created = created_at_ms.to_be_bytes();
    let parts: [&[u8]; 3] = [vault.as_bytes(), &created, batch.as_bytes()];
    Key::new(KeySpace::BatchIndex, &parts)
}

/// Where those of a vault begin.
pub fn batches_of(vault: VaultId) -> Key {
    Key::new(KeySpace::BatchIndex, &[vault.as_bytes()])
}

/// The batch of a [`batch_index`].
pub fn indexed_batch(key: &Key) -> Option<BatchId> {
    let (_, id) = key.bytes.split_last_chunk::<16>()?;
    Some(BatchId::from_bytes(*id))
}

/// [`KeySpace::OpenBatch`].
pub fn open_batch(vault: VaultId, batch: BatchId) -> Key {
    Key::new(KeySpace::OpenBatch, &[vault.as_bytes(), batch.as_bytes()])
}

/// Vault and batch of an [`open_batch`].
pub fn open_batch_of(key: &Key) -> Option<(VaultId, BatchId)> {
    let (vault, id) = key.bytes.split_first_chunk::<16>()?;
    let id = id.first_chunk::<16>()?;
    Some((VaultId::from_bytes(*vault), BatchId::from_bytes(*id)))
}

/// [`KeySpace::AskedRequest`].
pub fn asked_request(request: RequestId) -> Key {
    Key::new(KeySpace::AskedRequest, &[request.as_bytes()])
}

/// [`KeySpace::RequestBatch`].
pub fn request_batch(request: RequestId) -> Key {
    Key::new(KeySpace::RequestBatch, &[request.as_bytes()])
}

/// [`KeySpace::AllowanceBatch`].
pub fn allowance_batch(wallet: WalletId, chain_id: u64, token: &str) -> Key {
    let chain_id = chain_id.to_be_bytes();
    let parts: [&[u8]; 3] = [wallet.as_bytes(), &chain_id, token.as_bytes()];
    Key::new(KeySpace::AllowanceBatch, &parts)
}

/// [`KeySpace::Delay`] of a batch payment.
pub fn held_up(batch: BatchId) -> Key {
    Key::new(KeySpace::Delay, &[batch.as_bytes()])
}
