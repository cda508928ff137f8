//! What requests hold: numbers of accounts, outputs and objects, whole transactions. Each is a row
//! that is written in the commit that stores the built transaction, and that nobody else may hold.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{
    fault::Fault,
    ids::RequestId,
    networks::{Payload, Resource},
    request::{Draft, SigningRequest},
};

use crate::{
    account::ChainAccount,
    services::Services,
    store::{Key, KeySpace, Scan, rows},
};

/// Numbers that are looked up at once.
const PAGE: usize = 512;

/// What a draft holds. A number that the client chose and another request holds is not in it.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when the draft is not what the network's rules made.
pub fn of(
    request: &SigningRequest,
    payload: &Payload,
    draft: &Draft,
) -> Result<BTreeSet<Resource>, Fault> {
    let chain = request.network.rules();
    let mut reservations: BTreeSet<_> = chain
        .reservations(payload, &draft.unsigned)?
        .into_iter()
        .collect();
    reservations
        .retain(|resource| draft.claim.is_some() || !matches!(resource, Resource::Nonce(_)));
    Ok(reservations)
}

/// The numbers that a draft uses and another request holds.
///
/// # Errors
/// As [`of`].
pub fn replaced(
    request: &SigningRequest,
    payload: &Payload,
    draft: &Draft,
) -> Result<Vec<u64>, Fault> {
    let chain = request.network.rules();
    let reservations = chain.reservations(payload, &draft.unsigned)?.into_iter();
    Ok(reservations
        .filter_map(|resource| match resource {
            Resource::Nonce(nonce) if draft.claim.is_none() => Some(nonce),
            Resource::Nonce(_) | Resource::Object(_) | Resource::TxHash(_) => None,
        })
        .collect())
}

/// What of `reservations` requests hold on disk, and which; with a number also those that follow it.
pub async fn held(
    services: &Services,
    account: &ChainAccount,
    reservations: &[Resource],
) -> Result<BTreeMap<Resource, RequestId>, Fault> {
    let mut held = BTreeMap::new();
    for resource in reservations {
        let key = rows::claim(account, resource);
        let Resource::Nonce(_) = resource else {
            if let Some((holder, _)) = services.load::<RequestId>(&key).await? {
                held.insert(resource.clone(), holder);
            }
            continue;
        };
        let scan = Scan {
            from: Some(key.bytes),
            ..Scan::prefix(KeySpace::NonceReservation, &rows::account(account), PAGE)
        };
        for (key, row) in services.store.scan(&scan).await? {
            if let Some(nonce) = rows::claimed_nonce(&key) {
                held.insert(Resource::Nonce(nonce), rows::decode(&row.value)?);
            }
        }
    }
    Ok(held)
}

/// Which request holds the row of a claim.
pub async fn holder(services: &Services, key: &Key) -> Result<Option<RequestId>, Fault> {
    Ok(services.load(key).await?.map(|(holder, _)| holder))
}

/// Why something cannot be used, in words that a person can act on.
pub fn describe_holder(resource: &Resource, holder: RequestId) -> String {
    match resource {
        Resource::Nonce(nonce) => format!("nonce {nonce} is already reserved by request {holder}"),
        Resource::Object(name) => format!("{name} is already reserved by request {holder}"),
        Resource::TxHash(_) => {
            format!("an identical transaction is already pending in request {holder}")
        }
    }
}
