//! The rows by which a request is found as long as it waits for people: among all of its vault, and among those that name
//! a person, so that what waits for others hides none.

use std::collections::BTreeSet;

use covault_core::{
    fault::Fault,
    request::{RequestState, SigningRequest},
};
use sha2::{Digest as _, Sha256};

use crate::store::{Batch, Key, KeySpace, Precondition, rows};

/// The row by which a request is found as long as it waits for people.
pub fn row(request: &SigningRequest) -> Option<Key> {
    let waits = matches!(request.state, RequestState::AwaitingApproval { .. });
    waits.then(|| rows::awaiting(request.vault, request.consent.due_ms(), request.id))
}

/// The part of [`KeySpace::AwaitingPerson`] in which the requests of each vault that name a person follow in order.
pub fn of_person(name: &str) -> Key {
    let hash = Sha256::digest(name);
    let hash = hash.first_chunk::<16>().map_or(&[][..], |hash| hash);
    Key::new(KeySpace::AwaitingPerson, &[hash])
}

/// Adds what changes of these rows. `before` is what the request was; a new one never waited.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when a row cannot be written.
pub fn change(
    batch: &mut Batch,
    before: &SigningRequest,
    next: &SigningRequest,
) -> Result<(), Fault> {
    let (waited, waits) = (all(before), all(next));
    for key in waited.difference(&waits) {
        batch.delete(key.clone(), Precondition::Any);
    }
    for key in waits.difference(&waited) {
        batch.put(key.clone(), Precondition::Any, rows::encode(&())?);
    }
    Ok(())
}

/// [`row`], and one for each person whom the rule names as long as an approval would do something.
fn all(request: &SigningRequest) -> BTreeSet<Key> {
    let Some(row) = row(request) else {
        return BTreeSet::new();
    };
    let consent = &request.consent;
    let people = consent.rule.of.iter();
    let people = people.filter(|_| consent.held_until_ms == 0);
    let mut keys: BTreeSet<_> = people
        .map(|person| {
            let part = of_person(&person.name);
            Key::new(part.space, &[&part.bytes, &row.bytes])
        })
        .collect();
    keys.insert(row);
    keys
}
