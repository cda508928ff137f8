//! The index of requests in the order of their creation, vault by vault.
//!
//! Every request writes its row with its first commit. Stores of versions before the index get the
//! rows of their requests at the first start; a mark says that they have them, so that no later start
//! looks at every request.

use covault_core::{fault::Fault, request::Request};

use crate::{
    context::Context,
    rows,
    store::{Batch, Expect, Scan, Space},
};

/// Rows that one commit writes at most.
const PAGE: usize = 256;

/// Adds the row of a new request to its first commit.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when it cannot be serialized.
pub fn add_to(batch: &mut Batch, request: &Request) -> Result<(), Fault> {
    let key = rows::request_index(request.vault, request.created_at_ms, request.id);
    batch.put(key, Expect::Any, rows::encode(&())?);
    Ok(())
}

/// Adds the requests of earlier versions to the index, once per store. When it ends in the middle
/// the next start begins again; nothing is written twice with another content.
///
/// # Errors
/// When the store cannot be read or written.
pub async fn complete(context: &Context) -> Result<(), Fault> {
    let store = &context.store;
    let done = rows::request_index_is_whole();
    if store.get(&done).await?.is_some() {
        return Ok(());
    }
    let mut found = 0_usize;
    let mut next = Some(Scan::prefix(Space::Request, &[], PAGE));
    while let Some(scan) = next {
        let page = store.scan(&scan).await?;
        let mut batch = Batch::new();
        for (key, row) in &page {
            match rows::decode::<Request>(&row.value) {
                Ok(request) => add_to(&mut batch, &request)?,
                // It cannot be shown either.
                Err(fault) => {
                    tracing::error!(
                        request = hex::encode(&key.bytes),
                        ?fault,
                        "a stored request cannot be read; lists will not have it"
                    );
                }
            }
        }
        found = found.saturating_add(batch.writes().len());
        let rest = scan.rest(&page);
        let last_page = rest.is_none();
        if last_page {
            batch.put(done.clone(), Expect::Any, rows::encode(&())?);
        }
        match store.commit(batch).await {
            Ok(()) => {}
            // Those to come write their own rows: the mark is wanted before there are many.
            Err(error) if last_page && found == 0 => {
                tracing::warn!(%error, "that no request is missing in lists could not be stored");
            }
            Err(error) => return Err(error.into()),
        }
        next = rest;
    }
    Ok(())
}
