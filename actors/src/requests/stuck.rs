//! Requests that are on their way, and which of them make no progress.

use covault_core::{fault::Fault, ids::RequestId, request::RequestEffect};

use crate::{
    services::{Services, skip_unreadable},
    store::{
        Scan,
        rows::{self, OutboxRow, TransactionRow},
    },
};

/// Some of the requests that are on their way.
#[derive(Default)]
pub struct OpenRequests {
    /// How many are being built, signed or sent.
    pub unsigned: usize,
    /// How many have a transaction that is followed.
    pub followed: usize,
    /// Those that make no progress, with the reason.
    pub stuck: Vec<(RequestId, String)>,
}

/// The requests of one page of [`crate::store::KeySpace::Outbox`], and the rest of the scan.
///
/// # Errors
/// When the store cannot be read.
pub async fn page(services: &Services, scan: Scan) -> Result<(OpenRequests, Option<Scan>), Fault> {
    let page = services.store.scan(&scan).await?;
    let (mut followed, mut waiting) = (Vec::new(), Vec::new());
    for (key, row) in &page {
        let Some(id) = rows::outbox_request(key) else {
            continue;
        };
        let effect = rows::decode::<OutboxRow>(&row.value);
        match skip_unreadable(effect, format_args!("effect of request {id}"))? {
            Some(row) if row.effect == RequestEffect::Track => followed.push(id),
            _ => waiting.push(id),
        }
    }
    let keys = |ids: &[RequestId], key: fn(RequestId) -> _| -> Vec<_> {
        ids.iter().map(|id| key(*id)).collect()
    };
    let mut stuck = Vec::new();
    let problems = services
        .load_all::<TransactionRow>(&keys(&followed, rows::transaction))
        .await?;
    for (id, problem) in followed.iter().zip(problems) {
        let problem = skip_unreadable(problem, format_args!("transaction of {id}"))?;
        stuck.extend(problem.flatten().and_then(|row| Some((*id, row.problem?))));
    }
    let delays = services
        .load_all::<String>(&keys(&waiting, rows::delay))
        .await?;
    for (id, delay) in waiting.iter().zip(delays) {
        let delay = skip_unreadable(delay, format_args!("delay of request {id}"))?;
        stuck.extend(delay.flatten().map(|reason| (*id, reason)));
    }
    let open = OpenRequests {
        unsigned: waiting.len(),
        followed: followed.len(),
        stuck,
    };
    Ok((open, scan.rest(&page)))
}
