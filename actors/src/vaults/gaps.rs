//! Fills gaps: a number of an account that no request uses, because the nodes refused the one that had it, while
//! transactions with later numbers wait behind it.
//!
//! What fills one is an ordinary request of the service's that moves nothing. It names no number: it gets the lowest
//! free one as any other request does, so it never takes the place of a client's. While a request of the account has
//! still to get its number none is made: that one gets the lowest, and it may be an earlier filler, of this process
//! or of one before it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use covault_core::{
    backoff::Backoff,
    fault::Fault,
    ids::RequestId,
    networks::{Payload, Resource},
    request::{RequestState, SigningRequest},
};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    admission::{ProposalContent, admit_own},
    vault_actors::VaultActors,
};
use crate::{
    chain_rpc::ChainKey,
    requests::{
        account::ChainAccount,
        reservations,
        tracking::{self, GapSuspect},
    },
    services::{Services, skip_unreadable},
    store::{Scan, rows},
};

/// Requests that wait for people which are looked at.
const PAGE: usize = 512;
/// How long after the first one that failed the next one comes.
const FIRST_PAUSE: Duration = Duration::from_secs(600);
/// The longest pause; what is older is forgotten.
const LONGEST_PAUSE: Duration = Duration::from_secs(86_400);
const PAUSES: Backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);

/// The newest request that was to fill a gap of an account.
struct LastFiller {
    request: RequestId,
    made_at_ms: u64,
    pause: Duration,
}

type LastFillers = Mutex<HashMap<ChainAccount, LastFiller>>;

/// Fills the gaps before what comes, until the process ends.
pub async fn run(vaults: VaultActors, arriving: UnboundedReceiver<GapSuspect>) {
    let last_fillers = Arc::new(LastFillers::default());
    let look = |suspect: GapSuspect| {
        let (vaults, last_fillers) = (vaults.clone(), Arc::clone(&last_fillers));
        async move {
            let (request, number) = (suspect.request, suspect.below);
            if let Some(filler) = fill(&vaults, suspect, &last_fillers).await? {
                tracing::warn!(%request, number, filler, "a transaction waits behind a nonce that no request uses; \
                    submitted an empty transaction with that nonce");
            }
            Ok(())
        }
    };
    let what = "filling a gap in the nonces of an account";
    tracking::process_all(arriving, what, |suspect| suspect.request, look).await;
}

/// Makes a request that uses a number, unless one uses it. Gives the uuid.
async fn fill(
    vaults: &VaultActors,
    suspect: GapSuspect,
    last_fillers: &LastFillers,
) -> Result<Option<String>, Fault> {
    let services = &*vaults.services;
    let GapSuspect {
        request,
        account,
        below,
    } = suspect;
    // First what costs no question to a node: mostly there is no gap.
    let Some(is_doubted) = is_unused(services, &account, below).await? else {
        return Ok(None);
    };
    let chain = ChainKey::of(account.network, account.chain_id);
    let next = services.chains.next_number(chain, &account.address).await?;
    // It may have been used long ago.
    if next.is_none_or(|next| next > below) {
        return Ok(None);
    }
    // Of a number in doubt the chain has to say that it waits for just that one.
    if is_doubted && next != Some(below) {
        return Ok(None);
    }
    // After the nodes, who may take their time: once it has failed nothing waits any longer.
    let Some((request, _)) = services.request(request).await? else {
        return Ok(None);
    };
    if matches!(request.state, RequestState::Failed { .. }) {
        return Ok(None);
    }
    let payload = Payload::decode(&request.payload).map_err(Fault::bug)?;
    let Some(filler) = account.network.rules().gap_filler(&payload) else {
        return Ok(None);
    };
    let now_ms = services.now_ms();
    let Some(pause) = next_pause(services, &account, last_fillers, now_ms).await? else {
        return Ok(None);
    };
    if waits_for_people(services, &request, &filler).await? {
        return Ok(None);
    }
    let content = ProposalContent::GapFiller {
        payload: filler,
        number: below,
    };
    let notes = format!(
        "made by the service: no request uses nonce {below}, and the transaction of request {} waits behind it",
        request.id
    );
    let Some(uuid) = admit_own(vaults, &request, content, notes).await? else {
        return Ok(None);
    };
    let last = LastFiller {
        request: uuid.parse().map_err(Fault::bug)?,
        made_at_ms: now_ms,
        pause,
    };
    let mut last_fillers = last_fillers.lock();
    last_fillers.retain(|_, last| !has_passed(LONGEST_PAUSE, last.made_at_ms, now_ms));
    last_fillers.insert(account, last);
    Ok(Some(uuid))
}

/// Whether no request has a number of the account: then, whether one in doubt has it, which sends nothing. `None` where one
/// has it.
async fn is_unused(
    services: &Services,
    account: &ChainAccount,
    number: u64,
) -> Result<Option<bool>, Fault> {
    let claim = rows::claim(account, &Resource::Nonce(number));
    let Some(holder) = reservations::holder(services, &claim).await? else {
        return Ok(Some(false));
    };
    let is_given_up = reservations::is_given_up(services, holder).await?;
    Ok(is_given_up.then_some(true))
}

/// Whether people are asked about such a filler of the account already, perhaps by a process before this one: it has
/// no number and no place in the account's queue. Those are looked at that expire first.
async fn waits_for_people(
    services: &Services,
    about: &SigningRequest,
    filler: &Payload,
) -> Result<bool, Fault> {
    let all = rows::awaiting_of(about.vault);
    let page = services
        .store
        .scan(&Scan::prefix(all.space, &all.bytes, PAGE))
        .await?;
    let ids = page.iter().filter_map(|(key, _)| rows::awaited(key));
    let keys: Vec<_> = ids.map(|(_, id)| rows::request(id)).collect();
    let filler = filler.encode();
    for found in services.load_all::<SigningRequest>(&keys).await? {
        let found = skip_unreadable(found, "a waiting request")?.flatten();
        if found.is_some_and(|found| found.wallet == about.wallet && found.payload == filler) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// How long the next one would have to wait if this one fails; `None` while it is too early for one.
async fn next_pause(
    services: &Services,
    account: &ChainAccount,
    last_fillers: &LastFillers,
    now_ms: u64,
) -> Result<Option<Duration>, Fault> {
    let last = last_fillers
        .lock()
        .get(account)
        .map(|last| (last.request, last.made_at_ms, last.pause));
    let Some((request, made_at_ms, pause)) = last else {
        return Ok(Some(FIRST_PAUSE));
    };
    let Some((request, _)) = services.request(request).await? else {
        return Ok(Some(FIRST_PAUSE));
    };
    Ok(match request.state {
        RequestState::Succeeded { .. } => Some(FIRST_PAUSE),
        RequestState::Failed { .. } if has_passed(pause, made_at_ms, now_ms) => {
            Some(PAUSES.after(pause))
        }
        _ => None,
    })
}

/// Whether a pause that began at a time is over, both in milliseconds since the Unix epoch.
fn has_passed(pause: Duration, since_ms: u64, now_ms: u64) -> bool {
    Duration::from_millis(now_ms.saturating_sub(since_ms)) >= pause
}
