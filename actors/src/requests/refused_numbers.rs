//! Numbers that came free because the chain's nodes refused the transaction that had them, after its bytes had gone out.
//!
//! The nodes may have said the truth, and one of them may have brought it about: it names a price that the others find
//! too low, keeps the bytes, and names a later number for the payment that is made again. Then both can be mined. So
//! such a number is remembered until it is used for good. The next request of the account gets it, whatever a node
//! offers, and one that pays the same gets that of the one which was refused, also where it is higher: of two
//! transactions with one number the chain takes one. Where as many nodes as it takes to end something
//! say that the number is used and no request here has it, the refused transaction may have been paid after all, and
//! the request that would be the second payment fails with its hash, unsigned
//! (docs/decisions/0030-doubt-about-a-broadcast.md).

use covault_core::{
    audit::AuditChain,
    fault::Fault,
    ids::RequestId,
    networks::{Payload, Resource, Signed, outflow::ContentKind},
    request::{SigningRequest, TransactionState},
};

use crate::{
    account::ChainAccount,
    audit::{AuditActor, AuditNote},
    chain_rpc::{ChainClient, TrackedTransaction, TransactionSighting, next_number_of_witnesses},
    requests::reservations,
    services::Services,
    store::{
        Batch, CommitError, Key, KeySpace, Precondition, Scan,
        rows::{self, LateRow, RefusedRow, TransactionRow},
    },
};

/// Rows that are read at once.
const PAGE: usize = 256;
/// For how long a payment is refused that is the same as one which failed and was mined later; and for how long a
/// number waits that is used while no node shows by what. In milliseconds: a day.
const MEMORY_MS: u64 = 86_400_000;
/// By how much this machine's clock has to be past the end of a transaction that can then no longer come, in milliseconds.
const MARGIN_MS: u64 = 600_000;
/// By how much the number of the same payment may be ahead of the account's next one: each between costs a transaction.
const MOST_AHEAD: u64 = 16;

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

/// A remembered number.
struct Refused {
    key: Key,
    version: u64,
    number: u64,
    request: RequestId,
    row: RefusedRow,
    /// It pays what the request that is to be built pays.
    is_same: bool,
}

/// Remembers the number of a transaction that nodes refused, in the commit that ends its request. Nothing is
/// remembered where there are no numbers.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when the row cannot be serialized.
pub fn remember(
    batch: &mut Batch,
    request: &SigningRequest,
    payload: Option<&Payload>,
    signed: &Signed,
    sent_at_ms: u64,
) -> Result<(), Fault> {
    let rules = request.network.rules();
    let (Some(payload), Ok(Some(number))) = (payload, rules.sent_number(signed, &request.address))
    else {
        return Ok(());
    };
    let account = ChainAccount::of(request, payload);
    let row = RefusedRow {
        signed: signed.clone(),
        sent_at_ms,
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
) -> Result<Option<u64>, NumberBlocker> {
    let offered = offered.iter().find_map(|resource| match resource {
        Resource::Nonce(number) => Some(*number),
        Resource::Object(_) | Resource::TxHash(_) => None,
    });
    let Some(offered) = offered else {
        return Ok(None);
    };
    let unread = |fault: Fault| NumberBlocker::Wait(fault.message().to_owned());
    // As a rule there are none, and that is known without a question to the store.
    if !is_any(services, next.account).await.map_err(unread)? {
        return Ok(None);
    }
    let mut open = open_rows(services, next.account).await.map_err(unread)?;
    for refused in &mut open {
        // What is below is asked for: no clock is needed to tell that it ends.
        let can_come = refused.number < offered || !is_over(services, next, refused);
        refused.is_same = can_come
            && pays_the_same(services, next, refused.request)
                .await
                .map_err(unread)?;
    }
    open.retain(|refused| refused.is_same || refused.number < offered);
    if open.is_empty() {
        return Ok(None);
    }
    let said = next_number_of_witnesses(client, &next.account.address).await;
    let first_unused = said.ok().flatten().unwrap_or_default();
    let (used, free): (Vec<_>, Vec<_>) = open
        .into_iter()
        .partition(|refused| refused.number < first_unused);
    let mut waits = Ok(());
    for refused in used {
        match settle(services, client, next, refused).await {
            Err(paid @ NumberBlocker::PaidBefore(_)) => return Err(paid),
            Err(wait) => waits = Err(wait),
            Ok(()) => {}
        }
    }
    waits?;
    // Its own first: with another number both could come.
    let own = free.iter().find(|refused| refused.is_same);
    let Some(refused) = own.or_else(|| free.first()) else {
        return Ok(None);
    };
    let (number, id) = (refused.number, refused.request);
    if number > offered.saturating_add(MOST_AHEAD) {
        return Err(NumberBlocker::Wait(format!(
            "the same payment of request {id}, which nodes refused, can still be mined with nonce {number}, and the next \
             one is {offered}: paid now it could be paid twice"
        )));
    }
    tracing::warn!(request = %next.request, refused = %id, number, offered, "an earlier transaction with this nonce was refused, and no block is known to have it; it is used, whatever a node offers");
    Ok(Some(number))
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

/// Those whose number no request has now, the lowest first. Forgets those whose number is used for good by a request
/// here.
async fn open_rows(services: &Services, account: &ChainAccount) -> Result<Vec<Refused>, Fault> {
    let mut open = Vec::new();
    let mut scan = Some(all(account));
    while let Some(asked) = scan {
        let page = services.store.scan(&asked).await?;
        scan = asked.rest(&page);
        for (key, row) in page {
            let Some((_, number, request)) = rows::split_refused_number(&key) else {
                continue;
            };
            let refused = Refused {
                number,
                is_same: false,
                request,
                version: row.version,
                row: rows::decode(&row.value)?,
                key,
            };
            let claim = rows::claim(account, &Resource::Nonce(number));
            match reservations::holder(services, &claim).await? {
                None => open.push(refused),
                Some(holder) if is_used_by(services, holder).await? => {
                    forget(services, &refused).await?;
                }
                Some(_) => {}
            }
        }
    }
    Ok(open)
}

/// Whether the number of a request is used for good, by its transaction or by another one.
async fn is_used_by(services: &Services, holder: RequestId) -> Result<bool, Fault> {
    let place = services
        .load::<TransactionRow>(&rows::transaction(holder))
        .await?;
    Ok(place.is_some_and(|(place, _)| {
        place.state.is_settled() && place.state != TransactionState::Dropped
    }))
}

/// Whether the time of a refused transaction is over by this machine's clock, by a margin.
fn is_over(services: &Services, next: &NextRequest<'_>, refused: &Refused) -> bool {
    let rules = next.account.network.rules();
    let end = rules.valid_until(&refused.row.signed).ok().flatten();
    let past = |end_ms: u64| end_ms > 0 && end_ms.saturating_add(MARGIN_MS) <= services.now_ms();
    end.is_some_and(|end| past(end.time_ms))
}

/// Finds out what became of a refused transaction whose number is used: forgets it where that was another one.
async fn settle(
    services: &Services,
    client: &dyn ChainClient,
    next: &NextRequest<'_>,
    refused: Refused,
) -> Result<(), NumberBlocker> {
    let now_ms = services.now_ms();
    let unread = |fault: Fault| NumberBlocker::Wait(fault.message().to_owned());
    let number = refused.number;
    if let Some(late) = &refused.row.late {
        if now_ms.saturating_sub(late.at_ms) >= MEMORY_MS {
            return forget(services, &refused).await.map_err(unread);
        }
        return match refused.is_same || late.told == next.request {
            true => Err(paid_before(&refused, late.is_certain)),
            false => Ok(()),
        };
    }
    let transaction = TrackedTransaction {
        signed: refused.row.signed.clone(),
        from: next.account.address.clone(),
        sent_at_ms: refused.row.sent_at_ms,
    };
    let said = client.sightings(&[transaction], now_ms).await.pop();
    let (hash, id) = (&refused.row.signed.tx_hash, refused.request);
    match said {
        Some(Ok(TransactionSighting::Replaced(_) | TransactionSighting::Expired)) => {
            forget(services, &refused).await.map_err(unread)
        }
        Some(Ok(TransactionSighting::Final(inclusion))) if !inclusion.success => {
            tracing::warn!(request = %id, number, hash, "a transaction that nodes had refused is on the chain, where it failed and only cost its fee");
            forget(services, &refused).await.map_err(unread)
        }
        Some(Ok(TransactionSighting::Final(inclusion))) => {
            let place = TransactionRow::settled(inclusion, now_ms);
            note_late(services, next, &refused, true, Some(place))
                .await
                .map_err(unread)?;
            Err(paid_before(&refused, true))
        }
        Some(Ok(TransactionSighting::Mined(inclusion))) if inclusion.success => {
            note_late(services, next, &refused, true, None)
                .await
                .map_err(unread)?;
            Err(paid_before(&refused, true))
        }
        _ if now_ms.saturating_sub(refused.row.sent_at_ms) >= MEMORY_MS => {
            note_late(services, next, &refused, false, None)
                .await
                .map_err(unread)?;
            Err(paid_before(&refused, false))
        }
        _ => Err(NumberBlocker::Wait(format!(
            "nonce {number} is used on the chain, perhaps by the transaction {hash} of request {id}, which nodes had \
             refused; waiting until they say by which"
        ))),
    }
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
         nothing was signed now; look it up before you pay again"
    ))
}

/// Whether two requests pay the same.
async fn pays_the_same(
    services: &Services,
    next: &NextRequest<'_>,
    earlier: RequestId,
) -> Result<bool, Fault> {
    let Some((earlier, _)) = services.request(earlier).await? else {
        return Ok(false);
    };
    let payload = Payload::decode(&earlier.payload).map_err(Fault::bug)?;
    let outflow = payload.outflow(earlier.network);
    let is_transfer = outflow.nature == ContentKind::Transfer;
    Ok(payload == *next.payload
        || is_transfer && outflow == next.payload.outflow(next.account.network))
}

async fn forget(services: &Services, refused: &Refused) -> Result<(), Fault> {
    let mut batch = Batch::new();
    batch.delete(refused.key.clone(), Precondition::Version(refused.version));
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
