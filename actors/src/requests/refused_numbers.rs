//! Numbers that came free because the chain's nodes refused the transaction that had them, after its bytes had gone out.
//!
//! The nodes may have said the truth, and one of them may have brought it about: it names a price that the others find
//! too low, keeps the bytes, and names a later number for the payment that is made again. Then both can be mined. So
//! such a number is remembered until another transaction has used it for good. The next request of the account gets it,
//! whatever a node offers, and one that pays the same gets that of the one which was refused, also where it is higher: of
//! two transactions with one number the chain takes one. While something else holds that number, what pays the same
//! waits until as many nodes as it takes to end something say that a block has it. Where they
//! say that the number is used and no request here has used it, the refused transaction may have been paid after all, and
//! the request that would be the second payment fails with its hash, unsigned
//! (docs/decisions/0030-doubt-about-a-broadcast.md).

use std::collections::BTreeSet;

use covault_core::{
    audit::AuditChain,
    fault::Fault,
    ids::RequestId,
    networks::{Payload, Resource, outflow::ContentKind},
    request::{Draft, SigningRequest, TransactionState},
};

use crate::{
    account::ChainAccount,
    audit::{AuditActor, AuditNote},
    chain_rpc::{
        ChainClient, TrackedTransaction, TransactionSighting, next_number_of_witnesses,
        sightings_of_witnesses,
    },
    requests::reservations,
    services::Services,
    store::{
        Batch, CommitError, Key, KeySpace, Precondition, Scan,
        rows::{self, LateRow, RefusedRow, TransactionRow},
    },
};

/// Rows that are read at once.
const PAGE: usize = 256;
/// Most refused transactions of used numbers that nodes are asked about in one look; the next one asks about more.
const ASKED: usize = 32;
/// For how long a payment is refused that is the same as one which failed and was mined later; and for how long
/// what pays the same waits while no node shows what used its number. In milliseconds: a day.
const MEMORY_MS: u64 = 86_400_000;
/// By how much this machine's clock has to be past the end of a transaction that can then no longer come, in milliseconds.
const MARGIN_MS: u64 = 600_000;
/// So many numbers may be missing before that of the same payment, where the service fills them: each costs a fee.
const MOST_MISSING: u64 = 16;

/// Why a request is not built now.
pub enum NumberBlocker {
    /// It is not known yet what used an earlier number.
    Wait(String),
    /// It would perhaps be the second payment of what failed.
    PaidBefore(String),
}

/// The request that is to be built.
pub struct NextRequest<'a> {
    /// Which.
    pub request: RequestId,
    /// What it is to do.
    pub payload: &'a Payload,
    /// Its account.
    pub account: &'a ChainAccount,
}

/// The number that a request has to get.
pub struct Demand {
    /// It.
    pub number: u64,
    /// With any other one it would perhaps be a second payment: it waits where it cannot get this one.
    pub is_own: bool,
}

/// A remembered number.
struct Refused {
    key: Key,
    version: u64,
    number: u64,
    request: RequestId,
    row: RefusedRow,
    /// It pays what the request that is to be built pays.
    is_same: bool,
    holder: Holder,
}

/// Who has a remembered number now.
enum Holder {
    Nobody,
    /// A request whose transaction was replaced by another one with this number, for good.
    Replaced,
    /// A request whose transaction may be mined.
    Other(RequestId),
}

/// Remembers the number of a transaction that nodes refused, in the commit that ends its request. Nothing is
/// remembered where there are no numbers, or where it is another account's.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when the draft is not what the network's rules made.
pub fn remember(
    batch: &mut Batch,
    request: &SigningRequest,
    payload: Option<&Payload>,
    draft: &Draft,
) -> Result<(), Fault> {
    let (rules, signed) = (request.network.rules(), request.state.signed());
    let (Some(payload), Some(signed)) = (payload, signed) else {
        return Ok(());
    };
    let Ok(Some(number)) = rules.sent_number(signed, &request.address) else {
        return Ok(());
    };
    let uses = rules.reservations(payload, &draft.unsigned)?;
    if !uses.contains(&Resource::Nonce(number)) {
        return Ok(());
    }
    let account = ChainAccount::of(request, payload);
    let row = RefusedRow {
        signed: signed.clone(),
        sent_at_ms: draft.built_at_ms,
        late: None,
    };
    let key = rows::refused_number(&account, number, request.id);
    batch.put(key, Precondition::Any, rows::encode(&row)?);
    Ok(())
}

/// The number that a request has to get although nodes offer it `offered` ones; `None` where they are right.
///
/// # Errors
/// [`NumberBlocker`] when nothing may be built now, also when the store cannot be read.
pub async fn next_number(
    services: &Services,
    client: &dyn ChainClient,
    next: &NextRequest<'_>,
    offered: &[Resource],
) -> Result<Option<Demand>, NumberBlocker> {
    let offered = offered.iter().find_map(|resource| match resource {
        Resource::Nonce(number) => Some(*number),
        Resource::Object(_) | Resource::TxHash(_) => None,
    });
    let Some(offered) = offered else {
        return Ok(None);
    };
    // As a rule there are none, and that is known without a question to the store.
    if !is_any(services, next.account).await.map_err(unread)? {
        return Ok(None);
    }
    let mut open = open_rows(services, next, offered).await.map_err(unread)?;
    if open.is_empty() {
        return Ok(None);
    }
    let said = next_number_of_witnesses(client, &next.account.address).await;
    let first_unused = match said {
        Ok(first_unused) => first_unused.unwrap_or_default(),
        Err(error) => {
            // With another number than that of the refused one, what pays something else is no second payment.
            open.retain(|refused| refused.is_same);
            let may_be_used = |refused: &Refused| {
                matches!(refused.holder, Holder::Nobody) && refused.number < offered
            };
            if open.iter().any(may_be_used) {
                let reason = error.into_reason();
                return Err(NumberBlocker::Wait(format!(
                    "the same payment was refused, and it is not known whether its nonce is used by now: {reason}"
                )));
            }
            0
        }
    };
    let (mut used, mut free, mut held) = (Vec::new(), Vec::new(), BTreeSet::new());
    for refused in open {
        match refused.holder {
            Holder::Other(holder) => {
                held.insert((refused.number, holder));
            }
            Holder::Nobody if refused.number >= first_unused => free.push(refused),
            Holder::Nobody | Holder::Replaced => used.push(refused),
        }
    }
    settle(services, client, next, used).await?;
    for (number, holder) in held {
        wait_for_holder(services, client, next, number, holder).await?;
    }
    let Some(lowest) = free.first().map(|refused| refused.number) else {
        return Ok(None);
    };
    // Its own first: with another number both could come.
    if let Some(own) = free.iter().find(|refused| refused.is_same) {
        let from = lowest.min(offered).max(first_unused);
        if can_have(services, next, own, from).await? {
            return Ok(Some(demand(next, own, offered)));
        }
    }
    let first = free.first().filter(|refused| refused.number < offered);
    Ok(first.map(|refused| demand(next, refused, offered)))
}

fn unread(fault: Fault) -> NumberBlocker {
    NumberBlocker::Wait(fault.message().to_owned())
}

fn demand(next: &NextRequest<'_>, refused: &Refused, offered: u64) -> Demand {
    let (number, id, is_own) = (refused.number, refused.request, refused.is_same);
    tracing::warn!(request = %next.request, refused = %id, number, offered, is_own, "an earlier transaction with this nonce was refused, and no block is known to have it; it is used, whatever a node offers");
    Demand { number, is_own }
}

/// Whether a request can have the number of the same payment. Numbers that are missing before it are filled where
/// transactions never end by themselves; elsewhere it waits until the refused one is over.
async fn can_have(
    services: &Services,
    next: &NextRequest<'_>,
    own: &Refused,
    from: u64,
) -> Result<bool, NumberBlocker> {
    let (number, id) = (own.number, own.request);
    let held = reservations::held(services, next.account, &[Resource::Nonce(from)]).await;
    let before = |resource: &&Resource| matches!(resource, Resource::Nonce(held) if (from..number).contains(held));
    let held = held.map_err(unread)?.keys().filter(before).count();
    let missing = number.saturating_sub(from);
    let missing = missing.saturating_sub(u64::try_from(held).unwrap_or(u64::MAX));
    if missing == 0 {
        return Ok(true);
    }
    if let Some(end_ms) = end_ms(next, own) {
        let left_s = end_ms.saturating_sub(services.now_ms()) / 1_000;
        return Err(NumberBlocker::Wait(format!(
            "the same payment of request {id}, which nodes refused, can still come with nonce {number} for {left_s} \
             seconds, and {missing} nonces before it are not used: paid now it could be paid twice"
        )));
    }
    if missing > MOST_MISSING {
        tracing::warn!(request = %next.request, refused = %id, number, missing, "the same payment was refused with a nonce that is too far ahead to be used now; it can still come once that is the wallet's next one");
    }
    Ok(missing <= MOST_MISSING)
}

/// Whether a number of the account is remembered.
async fn is_any(services: &Services, account: &ChainAccount) -> Result<bool, Fault> {
    let hot = &services.held_leases.hot_numbers;
    let name = rows::refused_numbers_name(&rows::account(account));
    if let Some(known) = hot.find(&name, 0) {
        return Ok(!known.is_empty());
    }
    let read = services.tenure.as_ref();
    let read = read.and_then(|tenure| hot.begin(name, tenure));
    let page = services.store.scan(&all(account)).await?;
    let keys = page.iter();
    let numbers: Vec<_> = keys
        .filter_map(|(key, _)| rows::split_refused_number(key))
        .map(|(_, number, request)| (number, request))
        .collect();
    if let Some(read) = read.filter(|_| page.len() < PAGE) {
        read.keep(0, &numbers);
    }
    Ok(!page.is_empty())
}

fn all(account: &ChainAccount) -> Scan {
    let name = rows::account(account);
    Scan::prefix(KeySpace::RefusedNumber, &name, PAGE)
}

/// Those that matter to a request to which nodes offer this number: the same payment, or lower ones that nobody has.
/// The lowest is first. Forgets those whose number the transaction of a request here has for good.
async fn open_rows(
    services: &Services,
    next: &NextRequest<'_>,
    offered: u64,
) -> Result<Vec<Refused>, Fault> {
    let mut open = Vec::new();
    let mut scan = Some(all(next.account));
    while let Some(asked) = scan {
        let page = services.store.scan(&asked).await?;
        scan = asked.rest(&page);
        let mut found = Vec::new();
        for (key, row) in page {
            if let Some((_, number, request)) = rows::split_refused_number(&key) {
                found.push(Refused {
                    number,
                    is_same: false,
                    request,
                    version: row.version,
                    row: rows::decode(&row.value)?,
                    key,
                    holder: Holder::Nobody,
                });
            }
        }
        let of = |refused: &Refused| rows::claim(next.account, &Resource::Nonce(refused.number));
        let holders: Vec<_> = found.iter().map(of).collect();
        let holders = services.load_all::<RequestId>(&holders).await?;
        let holders = holders.into_iter().collect::<Result<Vec<_>, _>>()?;
        let places: BTreeSet<RequestId> = holders.iter().flatten().copied().collect();
        let keys: Vec<_> = places.iter().map(|it| rows::transaction(*it)).collect();
        let known = services.load_all::<TransactionRow>(&keys).await?;
        let state = |holder: RequestId| {
            let at = places.iter().position(|it| *it == holder)?;
            Some(&known.get(at)?.as_ref().ok()?.as_ref()?.state)
        };
        let keys: Vec<_> = found.iter().map(|it| rows::request(it.request)).collect();
        let requests = services.load_all::<SigningRequest>(&keys).await?;
        let mut over = Vec::new();
        for ((mut refused, holder), request) in found.into_iter().zip(holders).zip(requests) {
            refused.holder = match holder.map(|holder| (holder, state(holder))) {
                Some((_, Some(TransactionState::Final(_)))) => {
                    over.push(refused);
                    continue;
                }
                Some((_, Some(TransactionState::Replaced { .. }))) => Holder::Replaced,
                Some((holder, _)) => Holder::Other(holder),
                None => Holder::Nobody,
            };
            let is_below = refused.number < offered;
            // What is below is asked for: no clock is needed to tell that it ends.
            let can_come = is_below || !is_over(services, next, &refused);
            refused.is_same = can_come && is_same(next, refused.request, request);
            if refused.is_same || is_below && !matches!(refused.holder, Holder::Other(_)) {
                open.push(refused);
            }
        }
        forget(services, &over).await?;
    }
    Ok(open)
}

/// When a refused transaction can no longer come, by this machine's clock, by a margin; `None` where that never is.
fn end_ms(next: &NextRequest<'_>, refused: &Refused) -> Option<u64> {
    let rules = next.account.network.rules();
    let end = rules.valid_until(&refused.row.signed).ok().flatten()?;
    Some(match end.time_ms {
        0 => u64::MAX,
        time_ms => time_ms.saturating_add(MARGIN_MS),
    })
}

fn is_over(services: &Services, next: &NextRequest<'_>, refused: &Refused) -> bool {
    end_ms(next, refused).is_some_and(|end_ms| end_ms <= services.now_ms())
}

/// Finds out what became of refused transactions whose numbers are used: forgets those where that was another one.
/// Where nobody knows, only what pays the same waits.
async fn settle(
    services: &Services,
    client: &dyn ChainClient,
    next: &NextRequest<'_>,
    used: Vec<Refused>,
) -> Result<(), NumberBlocker> {
    let now_ms = services.now_ms();
    let (late, mut unsettled): (Vec<_>, Vec<_>) =
        used.into_iter().partition(|it| it.row.late.is_some());
    let mut over = Vec::new();
    let mut paid = None;
    for refused in late {
        let Some(late) = &refused.row.late else {
            continue;
        };
        if now_ms.saturating_sub(late.at_ms) >= MEMORY_MS {
            over.push(refused);
        } else if refused.is_same || late.told == next.request {
            paid = Some(paid_before(&refused, late.is_certain));
        }
    }
    let mut wait = None;
    // What pays the same is asked about first.
    unsettled.sort_by_key(|refused| !refused.is_same);
    let not_asked = unsettled.split_off(unsettled.len().min(ASKED));
    let unknown = |refused: &Refused| {
        let (number, hash, id) = (refused.number, &refused.row.signed.tx_hash, refused.request);
        NumberBlocker::Wait(format!(
            "nonce {number} is used on the chain, perhaps by the transaction {hash} of request {id}, which nodes had \
             refused; waiting until they say by which"
        ))
    };
    if let Some(same) = not_asked.iter().find(|refused| refused.is_same) {
        wait = Some(unknown(same));
    }
    let track = |refused: &Refused| TrackedTransaction {
        signed: refused.row.signed.clone(),
        from: next.account.address.clone(),
        sent_at_ms: refused.row.sent_at_ms,
    };
    let tracked: Vec<_> = unsettled.iter().map(track).collect();
    let said = match (&paid, tracked.is_empty()) {
        (None, false) => sightings_of_witnesses(client, &tracked, now_ms).await,
        _ => Vec::new(),
    };
    for (refused, said) in unsettled.into_iter().zip(said) {
        let (hash, id, number) = (&refused.row.signed.tx_hash, refused.request, refused.number);
        match said {
            Ok(TransactionSighting::Replaced(_) | TransactionSighting::Expired) => {
                over.push(refused);
            }
            Ok(TransactionSighting::Final(inclusion)) if !inclusion.success => {
                tracing::warn!(request = %id, number, hash, "a transaction that nodes had refused is on the chain, where it failed and only cost its fee");
                over.push(refused);
            }
            Ok(TransactionSighting::Final(inclusion)) => {
                let place = TransactionRow::settled(inclusion, now_ms);
                let noted = note_late(services, next, &refused, true, Some(place)).await;
                noted.map_err(unread)?;
                paid = Some(paid_before(&refused, true));
                break;
            }
            Ok(TransactionSighting::Mined(inclusion)) if inclusion.success && refused.is_same => {
                paid = Some(paid_before(&refused, true));
            }
            _ if now_ms.saturating_sub(refused.row.sent_at_ms) >= MEMORY_MS => {
                let noted = note_late(services, next, &refused, false, None).await;
                noted.map_err(unread)?;
                paid = Some(paid_before(&refused, false));
                break;
            }
            _ if refused.is_same => wait = Some(unknown(&refused)),
            _ => {}
        }
    }
    forget(services, &over).await.map_err(unread)?;
    paid.or(wait).map_or(Ok(()), Err)
}

/// Waits while a request that pays something else has the number of the same payment, until as many nodes as it takes
/// to end something say that a block has its transaction: the refused one could still come in its place.
async fn wait_for_holder(
    services: &Services,
    client: &dyn ChainClient,
    next: &NextRequest<'_>,
    number: u64,
    holder: RequestId,
) -> Result<(), NumberBlocker> {
    let found = services.request(holder).await.map_err(unread)?;
    let signed = found.as_ref().and_then(|(found, _)| found.state.signed());
    if let (Some((found, _)), Some(signed)) = (&found, signed) {
        if pays_the_same(next, found) {
            // Of these two the chain takes one.
            return Ok(());
        }
        let tracked = TrackedTransaction {
            signed: signed.clone(),
            from: next.account.address.clone(),
            sent_at_ms: found.created_at_ms,
        };
        let said = sightings_of_witnesses(client, &[tracked], services.now_ms()).await;
        if let Some(Ok(TransactionSighting::Mined(_) | TransactionSighting::Final(_))) =
            said.first()
        {
            return Ok(());
        }
    }
    Err(NumberBlocker::Wait(format!(
        "the same payment was refused with nonce {number}, which request {holder} has now, and could still come in its \
         place; waiting until that one is in a block"
    )))
}

/// What the client of a request hears that is not built.
fn paid_before(refused: &Refused, is_certain: bool) -> NumberBlocker {
    let (hash, id, number) = (&refused.row.signed.tx_hash, refused.request, refused.number);
    let came = match is_certain {
        true => "is on the chain after all",
        false => "may be on the chain after all",
    };
    NumberBlocker::PaidBefore(format!(
        "the transaction {hash} of request {id}, which the chain's nodes had refused, {came}, with nonce {number}: \
         nothing was signed now; look it up before you pay again: the same payment fails for a day"
    ))
}

/// Whether a refused request pays what is to be built; one that cannot be read does not stop the wallet.
fn is_same(
    next: &NextRequest<'_>,
    id: RequestId,
    request: Result<Option<SigningRequest>, Fault>,
) -> bool {
    match request {
        Ok(request) => request.is_some_and(|request| pays_the_same(next, &request)),
        Err(fault) => {
            tracing::error!(request = %id, ?fault, "a refused request cannot be read; whether it is paid again is not known");
            false
        }
    }
}

fn pays_the_same(next: &NextRequest<'_>, earlier: &SigningRequest) -> bool {
    let payload = match Payload::decode(&earlier.payload) {
        Ok(payload) => payload,
        Err(error) => {
            tracing::error!(request = %earlier.id, ?error, "a request cannot be read; whether it is paid again is not known");
            return false;
        }
    };
    let outflow = payload.outflow(earlier.network);
    let is_transfer = outflow.nature == ContentKind::Transfer;
    payload == *next.payload || is_transfer && outflow == next.payload.outflow(next.account.network)
}

async fn forget(services: &Services, over: &[Refused]) -> Result<(), Fault> {
    if over.is_empty() {
        return Ok(());
    }
    let mut batch = Batch::new();
    for refused in over {
        batch.delete(refused.key.clone(), Precondition::Version(refused.version));
    }
    match services.store.commit(batch).await {
        // Another request has done it.
        Ok(()) | Err(CommitError::Conflict(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Stores that a refused transaction is, or may be, on the chain after all, and which request fails for it. The
/// request of the refused one keeps its end, beside which stands where its transaction is.
async fn note_late(
    services: &Services,
    next: &NextRequest<'_>,
    refused: &Refused,
    is_certain: bool,
    place: Option<TransactionRow>,
) -> Result<(), Fault> {
    let now_ms = services.now_ms();
    let (hash, id, number) = (&refused.row.signed.tx_hash, refused.request, refused.number);
    let row = RefusedRow {
        late: Some(LateRow {
            at_ms: now_ms,
            told: next.request,
            is_certain,
        }),
        ..refused.row.clone()
    };
    let mut batch = Batch::new();
    batch.put(
        refused.key.clone(),
        Precondition::Version(refused.version),
        rows::encode(&row)?,
    );
    if let Some(place) = place {
        batch.put(
            rows::transaction(id),
            Precondition::Any,
            rows::encode(&place)?,
        );
    }
    let detail =
        format!("{hash} was refused by the chain's nodes, and nonce {number} is used by now");
    if let Some((request, _)) = services.request(id).await? {
        AuditNote::for_request(&AuditActor::service(), id, "MinedLate")
            .fact("state", request.state.name())
            .fact("detail", &detail)
            .add_to(&mut batch, AuditChain::Vault(request.vault), now_ms)?;
    }
    tracing::error!(request = %id, later = %next.request, hash, number, is_certain, "a request failed because nodes refused its transaction, and the transaction is, or may be, on the chain after all; the next request of the wallet fails and names it");
    match services.store.commit(batch).await {
        Ok(()) => Ok(()),
        Err(CommitError::Conflict(_)) => Err(Fault::unavailable(
            "another request of the wallet looks after an earlier nonce",
        )),
        Err(error) => Err(error.into()),
    }
}
