//! The terms by which people find a request again: the wallet that signs it, the addresses that it pays, and the hashes of
//! its transaction. Each is a row in the commit that makes it true, so that no list has to be searched.

use covault_core::{
    fault::Fault,
    ids::{RequestId, VaultId, WalletId},
    networks::Payload,
    request::SigningRequest,
};
use sha2::{Digest as _, Sha256};

use crate::store::{Batch, Key, KeySpace, Precondition, rows};

/// Most words of one request: more recipients than that are not found by their addresses.
const MAX_TERMS: usize = 256;
/// Bytes of a word's hash.
const HASH: usize = 16;

/// The part of [`KeySpace::RequestTerm`] in which the requests of a vault that have a word follow by their time of
/// creation. Whether its letters are upper case does not matter.
pub fn requests_with(vault: VaultId, term: &str) -> Key {
    let hash = Sha256::digest(term.to_lowercase());
    let hash = hash.get(..HASH).unwrap_or_default();
    Key::new(KeySpace::RequestTerm, &[vault.as_bytes(), hash])
}

/// The same of those that a wallet of the vault signs. It is no word: a wallet that is paid is found by its address.
pub fn requests_of_wallet(vault: VaultId, wallet: WalletId) -> Key {
    let parts: [&[u8]; 2] = [vault.as_bytes(), wallet.as_bytes()];
    Key::new(KeySpace::RequestTerm, &parts)
}

/// Where a request is in such a part: when it was made, in milliseconds since the Unix epoch, and its id.
pub type RequestPlace = (u64, RequestId);

/// The key of a request in such a part.
pub fn key(part: &Key, (created_at_ms, id): RequestPlace) -> Key {
    let created = created_at_ms.to_be_bytes();
    let parts = [part.bytes.as_slice(), &created, id.as_bytes()];
    Key::new(part.space, &parts)
}

/// The request of such a key; nothing where it is none.
pub fn place(part: &Key, key: &Key) -> Option<RequestPlace> {
    let rest = key.bytes.strip_prefix(part.bytes.as_slice())?;
    let (created, id) = rest.split_first_chunk()?;
    let id = RequestId::from_bytes(id.try_into().ok()?);
    Some((u64::from_be_bytes(*created), id))
}

/// Adds the rows of what a request has become known by: `before` is what it was, nothing when it is new.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when a row cannot be written.
pub fn add(
    batch: &mut Batch,
    before: Option<&SigningRequest>,
    request: &SigningRequest,
    payload: Option<&Payload>,
) -> Result<(), Fault> {
    let (mut parts, mut terms) = (Vec::new(), Vec::new());
    if before.is_none() {
        parts.push(requests_of_wallet(request.vault, request.wallet));
    }
    if let (None, Some(payload)) = (before, payload) {
        terms.extend(payload.recipients(request.network));
    }
    let known = before.map_or("", hashes);
    if known != hashes(request) {
        // Several are joined by commas.
        let hashes = hashes(request).split(',');
        terms.extend(hashes.filter(|hash| !hash.is_empty()).map(str::to_owned));
    }
    let terms = terms.iter().take(MAX_TERMS);
    parts.extend(terms.map(|term| requests_with(request.vault, term)));
    for part in parts {
        let key = key(&part, (request.created_at_ms, request.id));
        batch.put(key, Precondition::Any, rows::encode(&())?);
    }
    Ok(())
}

/// The hashes of its transaction, from when it is signed on: a block may have it although nodes refused it.
fn hashes(request: &SigningRequest) -> &str {
    request.state.tx_hash().unwrap_or_default()
}
