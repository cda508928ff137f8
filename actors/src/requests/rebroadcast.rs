//! Transactions that a node accepted and no block included: nodes drop transactions that wait long, when they
//! are full or restart, and some transactions expire.
//!
//! Their requests are over, and nobody sends them. On networks with numbers whatever comes
//! after them would wait for ever. So before a request builds on what the nodes offer, it looks
//! whether another one that is over holds just that: then the nodes do not have its transaction.
//! One that can still come is sent again, the same bytes. One whose time is over, and which the chain
//! passed by, gives its number back: no block ever has it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use covault_core::{
    audit::AuditChain,
    fault::Fault,
    ids::RequestId,
    networks::{ChainData, ChainMoment, Resource, Signed},
    request::{RequestState, SigningRequest},
};
use parking_lot::Mutex;

use crate::{
    audit::{AuditActor, AuditNote},
    chain_rpc::{
        BroadcastOutcome, BroadcastRequest, ChainClient, ChainRefusal, Standing, everywhere,
    },
    requests::{account::ChainAccount, reservations},
    services::Services,
    store::{Batch, CommitError, Key, Precondition, Scan, rows},
};

/// How long a transaction may need from its request into a block before anyone looks after it,
/// in milliseconds.
const MIN_AGE_MS: u64 = 60_000;
/// By how much the chain's clock must have passed the end of a transaction, in milliseconds:
/// parts of a chain may be some seconds apart.
const EXPIRY_MARGIN_MS: u64 = 60_000;
/// For how long it holds what was found about an account, in milliseconds.
const CHECK_INTERVAL_MS: u64 = 15_000;
/// No more is sent again once that took so long, in milliseconds: a request waits for it.
const RESEND_TIMEOUT_MS: u64 = 10_000;
/// Numbers, outputs or objects, and replacements of one transaction that are looked after at once;
/// the rest next time.
const MAX_CHECKED: usize = 64;
/// Accounts of which is kept what was found.
const MAX_ACCOUNTS: usize = 1_000;

/// What was last found about the accounts of a vault. One request of an account looks, others wait
/// for what it finds.
#[derive(Default)]
pub struct RebroadcastCache(Mutex<HashMap<ChainAccount, Arc<tokio::sync::Mutex<AccountCheck>>>>);

/// What was found.
#[derive(Default)]
struct AccountCheck {
    /// When, in milliseconds since the Unix epoch.
    at_ms: u64,
    /// Why nothing may be built behind it.
    in_the_way: Option<String>,
}

impl RebroadcastCache {
    fn of(&self, account: &ChainAccount) -> Arc<tokio::sync::Mutex<AccountCheck>> {
        let mut accounts = self.0.lock();
        if accounts.len() >= MAX_ACCOUNTS {
            accounts.retain(|_, check| Arc::strong_count(check) > 1);
        }
        Arc::clone(accounts.entry(account.clone()).or_default())
    }
}

/// What is held, although the nodes offer it.
struct DroppedResource {
    resource: Resource,
    /// The row of the claim.
    key: Key,
    version: u64,
    /// Whose transactions use it, all of them over: that of the claim, and those that were to
    /// replace it. Never empty; the newest is the last.
    requests: Vec<FinishedRequest>,
}

/// A request whose transaction was sent or handed over.
struct FinishedRequest {
    request: SigningRequest,
    signed: Signed,
    sent: bool,
    /// Its time is over, and whether nodes have it is not known yet: its own actor sends it and asks.
    is_in_doubt: bool,
}

impl DroppedResource {
    fn nonce(&self) -> Option<u64> {
        match self.resource {
            Resource::Nonce(nonce) => Some(nonce),
            Resource::Object(_) | Resource::TxHash(_) => None,
        }
    }

    /// From when on none of the transactions can come.
    fn valid_until(&self) -> Result<Option<ChainMoment>, Fault> {
        let mut valid_until = Some(ChainMoment::ANY);
        for over in &self.requests {
            let one = over.request.network.rules().valid_until(&over.signed)?;
            valid_until = valid_until.zip(one).map(|(all, one)| all.and(one));
        }
        Ok(valid_until)
    }

    /// The transaction that the client wants: the newest. None of it is sent that the client took
    /// to send it itself, and nothing that it was to replace.
    fn wanted(&self) -> Option<&FinishedRequest> {
        self.requests.last().filter(|over| over.sent)
    }
}

/// Looks after the transactions that hold what nodes offer to a request of the account. Says why
/// nothing may be built behind them, where that is so.
///
/// # Errors
/// [`covault_core::fault::Class::Unavailable`] when the store cannot be read or written.
pub async fn rebroadcast_dropped(
    services: &Services,
    cache: &RebroadcastCache,
    client: &dyn ChainClient,
    account: &ChainAccount,
    candidate_inputs: &[Resource],
) -> Result<Option<String>, Fault> {
    // As a rule nobody holds any of it.
    if reservations::held(services, account, candidate_inputs)
        .await?
        .is_empty()
    {
        return Ok(None);
    }
    release_unknown(services, account, candidate_inputs).await?;
    if dropped_resources(services, account, candidate_inputs)
        .await?
        .is_empty()
    {
        return Ok(None);
    }
    let look = cache.of(account);
    let mut look = look.lock().await;
    let now_ms = services.now_ms();
    // A clock that was set back must not keep what was found before.
    if now_ms.abs_diff(look.at_ms) < CHECK_INTERVAL_MS {
        return Ok(look.in_the_way.clone());
    }
    let mut lost = dropped_resources(services, account, candidate_inputs).await?;
    let in_the_way = match release_expired(services, client, account, &lost, now_ms).await? {
        ExpiryOutcome::None => {
            lost.retain(|one| one.requests.iter().all(|over| !over.is_in_doubt));
            resend(services, client, &lost, now_ms).await?
        }
        ExpiryOutcome::Freed => None,
        ExpiryOutcome::NotKnown(reason) => Some(reason),
    };
    *look = AccountCheck {
        at_ms: now_ms,
        in_the_way: in_the_way.clone(),
    };
    Ok(in_the_way)
}

/// As [`rebroadcast_dropped`], for a transaction with a number that no node takes yet: after those that the
/// chain waits for.
///
/// # Errors
/// As there.
pub async fn rebroadcast_predecessors(
    services: &Services,
    cache: &RebroadcastCache,
    client: &dyn ChainClient,
    account: &ChainAccount,
    nonce: u64,
) -> Result<Option<String>, Fault> {
    match client.next_number(&account.address, ChainMoment::ANY).await {
        Ok(Some(next)) if next < nonce => {
            rebroadcast_dropped(services, cache, client, account, &[Resource::Nonce(next)]).await
        }
        // A network that waits for no number, or a node that does not know now.
        Ok(_) | Err(_) => Ok(None),
    }
}

/// Frees what is held by requests that a restore has ended, where the nodes offer it: no block has their
/// transactions, if there are any. Whatever takes it next makes these void, or they it; never do both
/// come.
async fn release_unknown(
    services: &Services,
    account: &ChainAccount,
    candidate_inputs: &[Resource],
) -> Result<(), Fault> {
    for resource in candidate_inputs.iter().take(MAX_CHECKED) {
        if matches!(resource, Resource::TxHash(_)) {
            continue;
        }
        let key = rows::claim(account, resource);
        let Some((holder, version)) = services.load::<RequestId>(&key).await? else {
            continue;
        };
        let Some((request, _)) = services.request(holder).await? else {
            continue;
        };
        // Others that failed have let go of everything when they did.
        if !request.state.is_given_up() {
            continue;
        }
        let mut batch = Batch::new();
        if let Some(next) = reservations::successor(services, account, resource, holder).await? {
            // A request that lives uses it too.
            batch.put(key, Precondition::Version(version), rows::encode(&next)?);
            match services.store.commit(batch).await {
                Ok(()) | Err(CommitError::Conflict(_)) => continue,
                Err(error) => return Err(error.into()),
            }
        }
        batch.delete(key, Precondition::Version(version));
        let detail = match resource {
            Resource::Nonce(nonce) => format!("nonce {nonce} is free: the chain offers it"),
            Resource::Object(name) => format!("{name} is free: the chain offers it"),
            Resource::TxHash(_) => String::new(),
        };
        tracing::warn!(request = %holder, detail, "released what a restored request had reserved");
        add_audit_entry(services, &mut batch, &request, "Freed", &detail)?;
        match services.store.commit(batch).await {
            Ok(()) | Err(CommitError::Conflict(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What requests that are over hold of what is offered, and of the numbers right behind.
async fn dropped_resources(
    services: &Services,
    account: &ChainAccount,
    candidate_inputs: &[Resource],
) -> Result<Vec<DroppedResource>, Fault> {
    let mut lost = Vec::new();
    for resource in candidate_inputs.iter().take(MAX_CHECKED) {
        match resource {
            Resource::Nonce(first) => {
                for nonce in (*first..=u64::MAX).take(MAX_CHECKED) {
                    match held_by_finished(services, account, Resource::Nonce(nonce)).await? {
                        Some(one) => lost.push(one),
                        None => break,
                    }
                }
            }
            Resource::Object(_) => {
                lost.extend(held_by_finished(services, account, resource.clone()).await?)
            }
            // What nodes offer is another one each time.
            Resource::TxHash(_) => {}
        }
    }
    Ok(lost)
}

/// `None` when nobody holds it, or its holder is still active or has only just ended.
async fn held_by_finished(
    services: &Services,
    account: &ChainAccount,
    resource: Resource,
) -> Result<Option<DroppedResource>, Fault> {
    let key = rows::claim(account, &resource);
    let Some((holder, version)) = services.load::<RequestId>(&key).await? else {
        return Ok(None);
    };
    let mut users = vec![holder];
    if !matches!(resource, Resource::TxHash(_)) {
        let all = rows::replacements(account, &resource);
        let all = Scan::prefix(all.space, &all.bytes, MAX_CHECKED);
        for (_, row) in services.store.scan(&all).await? {
            users.push(rows::decode(&row.value)?);
        }
    }
    let mut requests = Vec::new();
    for user in users {
        let Some((request, _)) = services.request(user).await? else {
            return Ok(None);
        };
        let age_ms = services.now_ms().abs_diff(request.created_at_ms);
        match &request.state {
            RequestState::Failed { .. } | RequestState::InDoubt { .. } => continue,
            RequestState::Succeeded {
                signed: Some(signed),
                sent,
                ..
            } if age_ms >= MIN_AGE_MS && !signed.transaction.is_empty() => {
                requests.push(FinishedRequest {
                    signed: signed.clone(),
                    sent: *sent,
                    is_in_doubt: false,
                    request,
                })
            }
            RequestState::Broadcasting { signed, .. }
                if is_time_over(&request, signed, services.now_ms())? =>
            {
                requests.push(FinishedRequest {
                    signed: signed.clone(),
                    sent: true,
                    is_in_doubt: true,
                    request,
                })
            }
            _ => return Ok(None),
        }
    }
    requests.sort_by_key(|over| (over.request.created_at_ms, over.request.id));
    Ok((!requests.is_empty()).then_some(DroppedResource {
        resource,
        key,
        version,
        requests,
    }))
}

/// Whether a transaction is past its end by this machine's clock. Where a height ends it only the chain can tell.
fn is_time_over(request: &SigningRequest, signed: &Signed, now_ms: u64) -> Result<bool, Fault> {
    let end = request.network.rules().valid_until(signed)?;
    Ok(end.is_some_and(|end| {
        end.time_ms > 0 && end.time_ms.saturating_add(EXPIRY_MARGIN_MS) <= now_ms
    }))
}

/// What became of transactions whose time may be over.
enum ExpiryOutcome {
    /// There are none, or the chain has them.
    None,
    /// Some never came into the chain, and their numbers are free.
    Freed,
    /// It is not known yet; in words for people.
    NotKnown(String),
}

/// Releases the nonces of transactions that no block can include.
async fn release_expired(
    services: &Services,
    client: &dyn ChainClient,
    account: &ChainAccount,
    lost: &[DroppedResource],
    now_ms: u64,
) -> Result<ExpiryOutcome, Fault> {
    let mut over = Vec::new();
    let mut since = ChainMoment::ANY;
    for one in lost {
        let (Some(nonce), Some(mut end)) = (one.nonce(), one.valid_until()?) else {
            continue;
        };
        if end.time_ms > 0 {
            end.time_ms = end.time_ms.saturating_add(EXPIRY_MARGIN_MS);
        }
        // Of a height only the chain knows whether it has come.
        if end.time_ms <= now_ms {
            over.push((nonce, one));
            since = since.and(end);
        }
    }
    let Some((first, _)) = over.first() else {
        return Ok(ExpiryOutcome::None);
    };
    let why = match client.next_number(&account.address, since).await {
        Ok(Some(next)) => {
            over.retain(|(nonce, _)| *nonce >= next);
            if over.is_empty() {
                return Ok(ExpiryOutcome::None);
            }
            release(services, &over).await?;
            return Ok(ExpiryOutcome::Freed);
        }
        Ok(None) => "the chain has not passed its expiration yet".to_owned(),
        Err(error) => error.into_reason(),
    };
    Ok(ExpiryOutcome::NotKnown(format!(
        "the earlier transaction with nonce {first} has expired, and it is unknown whether it is \
         on the chain: {why}"
    )))
}

async fn release(services: &Services, over: &[(u64, &DroppedResource)]) -> Result<(), Fault> {
    let mut batch = Batch::new();
    for (nonce, one) in over {
        batch.delete(one.key.clone(), Precondition::Version(one.version));
        for FinishedRequest {
            request,
            signed,
            is_in_doubt,
            ..
        } in &one.requests
        {
            let detail = format!(
                "according to the chain's nodes, {} expired before any block included it; nonce {nonce} is free again",
                signed.tx_hash
            );
            if *is_in_doubt {
                tracing::warn!(request = %request.id, nonce, detail, "the nonce of a transaction in doubt is free");
                add_audit_entry(services, &mut batch, request, "Freed", &detail)?;
                continue;
            }
            tracing::warn!(request = %request.id, nonce, detail, "a transaction was dropped");
            services.counters.forgotten.lock().expired += 1;
            add_audit_entry(services, &mut batch, request, "Dropped", &detail)?;
        }
    }
    match services.store.commit(batch).await {
        // Another process has changed these rows, and has done the same.
        Ok(()) | Err(CommitError::Conflict(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sends transactions that nodes have lost once more, in the order of their numbers. Says what is
/// in the way of the numbers behind.
async fn resend(
    services: &Services,
    client: &dyn ChainClient,
    lost: &[DroppedResource],
    now_ms: u64,
) -> Result<Option<String>, Fault> {
    let mut done = BTreeSet::new();
    for one in lost {
        let Some(over) = one.wanted() else {
            match one.nonce() {
                // The client sends it, and those behind are of no use before.
                Some(nonce) => {
                    let request = one.requests.last().map(|over| over.request.id);
                    tracing::info!(
                        ?request,
                        nonce,
                        "the chain waits for a transaction that the client has to send"
                    );
                    break;
                }
                None => continue,
            }
        };
        if !done.insert(over.request.id) {
            continue;
        }
        let refused = match send_again(services, client, over).await? {
            SentAgain::Accepted => None,
            SentAgain::Refused(reason) => Some(reason),
            // The node that offered its number was behind. Those after it need not wait.
            SentAgain::Passed => continue,
            SentAgain::Unknown => break,
        };
        if let (Some(nonce), Some(reason)) = (one.nonce(), refused) {
            let then = match one.valid_until()? {
                Some(_) => "its nonce is free once it has expired",
                None => "a request that names this nonce replaces it",
            };
            let (hash, id) = (&over.signed.tx_hash, over.request.id);
            return Ok(Some(format!(
                "an earlier transaction, {hash} of request {id}, has the nonce {nonce}, is not on \
                 the chain, and no node accepts it now ({reason}); {then}"
            )));
        }
        if services.now_ms().abs_diff(now_ms) > RESEND_TIMEOUT_MS {
            break;
        }
    }
    Ok(None)
}

/// The outcome of sending a transaction once more.
pub enum SentAgain {
    /// A node has it again.
    Accepted,
    /// No node takes it now; why.
    Refused(String),
    /// Its number is used, or it can never come: a node is behind.
    Passed,
    /// No node answered.
    Unknown,
}

/// Sends the transaction of a request that is over once more, where it has no number. What the client has replaced
/// does not come back: of those that spend the same only the newest is sent.
///
/// # Errors
/// [`covault_core::fault::Class::Unavailable`] when the store cannot be read or written.
pub async fn send_again_alone(
    services: &Services,
    client: &dyn ChainClient,
    account: &ChainAccount,
    request: RequestId,
) -> Result<SentAgain, Fault> {
    let found = services.request(request).await?;
    if let Some((request, _)) = &found
        && is_replaced(services, account, request, &[]).await?
    {
        return Ok(SentAgain::Passed);
    }
    match found {
        Some((request, _)) => match request.state.clone() {
            RequestState::Succeeded {
                signed: Some(signed),
                sent: true,
                ..
            } => {
                let over = FinishedRequest {
                    request,
                    signed,
                    sent: true,
                    is_in_doubt: false,
                };
                send_again(services, client, &over).await
            }
            _ => Err(Fault::bug("a request that sent nothing")),
        },
        None => Err(Fault::bug("no such request")),
    }
}

/// Sends the transaction of a request that is over to every node, where it is the newest one for what it uses: a node
/// that says to have it may have passed it on to nobody. No audit entry: it is sent once a minute while no block takes it.
///
/// # Errors
/// [`covault_core::fault::Class::Unavailable`] when the store cannot be read.
pub async fn spread(
    services: &Services,
    client: &dyn ChainClient,
    account: &ChainAccount,
    request: RequestId,
    number: Option<u64>,
) -> Result<(), Fault> {
    let Some((request, _)) = services.request(request).await? else {
        return Ok(());
    };
    let uses: Vec<_> = number.into_iter().map(Resource::Nonce).collect();
    let signed = request.state.signed().cloned();
    let Some(signed) = signed.filter(|signed| !signed.transaction.is_empty()) else {
        return Ok(());
    };
    if is_replaced(services, account, &request, &uses).await? {
        return Ok(());
    }
    let now_ms = services.now_ms();
    let broadcast_request = BroadcastRequest {
        signed,
        chain_data: ChainData::Nothing,
        age_ms: now_ms.saturating_sub(request.created_at_ms),
        now_ms,
        retried: true,
    };
    let outcome = everywhere(client.broadcast(&broadcast_request)).await;
    tracing::info!(request = %request.id, ?outcome, "sent a transaction to every node again: it is in no block, or \
        does not become final");
    Ok(())
}

/// Whether a newer request of the account that has not failed spends what the transaction of a request does, or uses
/// some of the rest.
async fn is_replaced(
    services: &Services,
    account: &ChainAccount,
    request: &SigningRequest,
    uses: &[Resource],
) -> Result<bool, Fault> {
    let Some(signed) = request.state.signed() else {
        return Ok(false);
    };
    let age = |request: &SigningRequest| (request.created_at_ms, request.id);
    let spends = account.network.rules().sent_inputs(signed)?;
    for resource in spends.into_iter().chain(uses.iter().cloned()) {
        for user in reservations::users(services, account, &resource).await? {
            let newer = services
                .request(user)
                .await?
                .is_some_and(|(user, _)| age(&user) > age(request) && !user.state.is_given_up());
            if newer {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

async fn send_again(
    services: &Services,
    client: &dyn ChainClient,
    over: &FinishedRequest,
) -> Result<SentAgain, Fault> {
    let id = over.request.id;
    let now_ms = services.now_ms();
    let broadcast_request = BroadcastRequest {
        signed: over.signed.clone(),
        chain_data: ChainData::Nothing,
        age_ms: now_ms.saturating_sub(over.request.created_at_ms),
        now_ms,
        retried: true,
    };
    let hash = &over.signed.tx_hash;
    let (detail, came) = match client.broadcast(&broadcast_request).await {
        BroadcastOutcome::Accepted => {
            services.counters.forgotten.lock().taken += 1;
            (hash.clone(), SentAgain::Accepted)
        }
        BroadcastOutcome::Refused(ChainRefusal { reason, .. })
        | BroadcastOutcome::Doubtful(ChainRefusal { reason, .. }, Standing::Open) => {
            services.counters.forgotten.lock().refused += 1;
            let detail = format!("no node accepts {hash} now: {reason}");
            (detail, SentAgain::Refused(reason))
        }
        BroadcastOutcome::Doubtful(ChainRefusal { reason, .. }, standing) => {
            tracing::info!(request = %id, reason, ?standing, "the nonce of a transaction is used; a chain node is behind");
            return Ok(SentAgain::Passed);
        }
        BroadcastOutcome::Unknown(reason) => {
            tracing::warn!(request = %id, reason, "failed to rebroadcast a dropped transaction");
            return Ok(SentAgain::Unknown);
        }
    };
    tracing::warn!(request = %id, detail, "rebroadcast a dropped transaction");
    let mut batch = Batch::new();
    add_audit_entry(services, &mut batch, &over.request, "SentAgain", &detail)?;
    match services.store.commit(batch).await {
        Ok(()) | Err(CommitError::Conflict(_)) => Ok(came),
        Err(error) => Err(error.into()),
    }
}

/// Writes down what happened to a request that is over.
fn add_audit_entry(
    services: &Services,
    batch: &mut Batch,
    request: &SigningRequest,
    event: &str,
    detail: &str,
) -> Result<(), Fault> {
    AuditNote::for_request(&AuditActor::service(), request.id, event)
        .fact("state", request.state.name())
        .fact("detail", detail)
        .add_to(batch, AuditChain::Vault(request.vault), services.now_ms())
}
