//! The terms by which people find a request again: the addresses that it pays, and the hashes of its
//! transaction. Each is a row in the commit that makes it true, so that no list has to be searched.

use covault_core::{
    fault::Fault,
    ids::VaultId,
    networks::Payload,
    request::{RequestState, SigningRequest},
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
    let mut terms = Vec::new();
    if let (None, Some(payload)) = (before, payload) {
        terms.extend(payload.recipients(request.network));
    }
    if before.is_none_or(|before| hashes(before).is_empty()) {
        // Several are joined by commas.
        let hashes = hashes(request).split(',');
        terms.extend(hashes.filter(|hash| !hash.is_empty()).map(str::to_owned));
    }
    for term in terms.into_iter().take(MAX_TERMS) {
        let part = requests_with(request.vault, &term);
        let created = request.created_at_ms.to_be_bytes();
        let parts = [part.bytes.as_slice(), &created, request.id.as_bytes()];
        let key = Key::new(part.space, &parts);
        batch.put(key, Precondition::Any, rows::encode(&())?);
    }
    Ok(())
}

/// The hashes of its transaction, as responses show them.
fn hashes(request: &SigningRequest) -> &str {
    match &request.state {
        RequestState::Succeeded {
            signed: Some(signed),
            ..
        } => &signed.tx_hash,
        _ => "",
    }
}
