//! Transactions that the chain's nodes refused after their bytes had gone out, and the same payment made again.
//!
//! The nodes may have said the truth, and one of them may have brought it about: it names a price that the others find
//! too low, or waits until the wallet cannot pay, keeps the bytes, and sends them when the client has paid again. Then both
//! come. So such a transaction is remembered until it can no longer come, and a request that pays the same is built so that
//! the chain takes one of the two, or waits:
//!
//! - with the number of the refused one ([`numbers`]);
//! - where there are none, with an output or object that the refused one spends, or, where it spends none, only when the
//!   time of the refused one is over ([`unnumbered`]).
//!
//! Where nodes show that the refused one has come after all, the request fails with its hash, unsigned
//! (docs/decisions/0030-doubt-about-a-broadcast.md).

mod numbers;
mod unnumbered;

use covault_core::{
    audit::AuditChain,
    fault::Fault,
    ids::RequestId,
    networks::{Payload, Resource, outflow::ContentKind},
    request::{Draft, SigningRequest},
};

pub use self::{
    numbers::{Demand, check_named_number, next_number},
    unnumbered::{required_inputs, still_open},
};
use crate::{
    account::ChainAccount,
    audit::{AuditActor, AuditNote},
    chain_rpc::TrackedTransaction,
    services::Services,
    store::{
        Batch, CommitError, Key, KeySpace, Precondition, Scan,
        rows::{self, LateRow, RefusedRow, TransactionRow},
    },
};

/// Rows that are read at once.
const PAGE: usize = 256;
/// Most refused transactions that nodes are asked about in one look; the next one asks about more.
const ASKED: usize = 32;
/// For how long a payment is refused that is the same as one which failed and was mined later; and for how long
/// what pays the same waits while no node shows what became of that. In milliseconds: a day.
const MEMORY_MS: u64 = 86_400_000;

/// Why a request is not built now.
pub enum RepeatBlocker {
    /// It is not known yet what became of an earlier transaction.
    Wait(String),
    /// It would perhaps be the second payment of what failed.
    Refuse(String),
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

/// A remembered transaction.
struct Refused {
    key: Key,
    version: u64,
    /// 0 where there are none.
    number: u64,
    request: RequestId,
    row: RefusedRow,
    /// It pays what the request that is to be built pays.
    is_same: bool,
    /// Who has its number, where there is one.
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

impl Refused {
    /// As nodes are asked about it.
    fn tracked(&self, next: &NextRequest<'_>) -> TrackedTransaction {
        TrackedTransaction {
            signed: self.row.signed.clone(),
            from: next.account.address.clone(),
            sent_at_ms: self.row.sent_at_ms,
        }
    }
}

/// Remembers a transaction that nodes refused, in the commit that ends its request; where there are numbers, only with one
/// of the wallet's own.
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
    let number = match rules.is_numbered() {
        true => rules.sent_number(signed, &request.address).ok().flatten(),
        false => Some(0),
    };
    let Some(number) = number else {
        return Ok(());
    };
    let uses = rules.reservations(payload, &draft.unsigned)?;
    if rules.is_numbered() && !uses.contains(&Resource::Nonce(number)) {
        return Ok(());
    }
    let account = ChainAccount::of(request, payload);
    let row = RefusedRow {
        signed: signed.clone(),
        sent_at_ms: draft.built_at_ms,
        late: None,
    };
    let key = rows::refused(&account, number, request.id);
    batch.put(key, Precondition::Any, rows::encode(&row)?);
    Ok(())
}

fn unread(fault: Fault) -> RepeatBlocker {
    RepeatBlocker::Wait(fault.message().to_owned())
}

/// Whether a transaction of the account is remembered. As a rule there is none, and that is known without a question to
/// the store.
async fn is_any(services: &Services, account: &ChainAccount) -> Result<bool, Fault> {
    let hot = &services.held_leases.hot_numbers;
    let name = rows::refused_name(&rows::account(account));
    if let Some(known) = hot.find(&name, 0) {
        return Ok(!known.is_empty());
    }
    let read = services.tenure.as_ref();
    let read = read.and_then(|tenure| hot.begin(name, tenure));
    let page = services.store.scan(&all(account)).await?;
    let keys = page.iter();
    let numbers: Vec<_> = keys
        .filter_map(|(key, _)| rows::split_refused(key))
        .map(|(_, number, request)| (number, request))
        .collect();
    if let Some(read) = read.filter(|_| page.len() < PAGE) {
        read.keep(0, &numbers);
    }
    Ok(!page.is_empty())
}

fn all(account: &ChainAccount) -> Scan {
    let name = rows::account(account);
    Scan::prefix(KeySpace::RefusedTransaction, &name, PAGE)
}

/// What the client of a request hears that is not built.
fn paid_before(next: &NextRequest<'_>, refused: &Refused, is_certain: bool) -> RepeatBlocker {
    let (hash, id) = (&refused.row.signed.tx_hash, refused.request);
    let with = match next.account.network.rules().is_numbered() {
        true => format!(", with nonce {}", refused.number),
        false => String::new(),
    };
    let came = match is_certain {
        true => "is on the chain after all",
        false => "may be on the chain after all",
    };
    RepeatBlocker::Refuse(format!(
        "the transaction {hash} of request {id}, which the chain's nodes had refused, {came}{with}: \
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
    // What only uses a number up pays nobody.
    let rules = next.account.network.rules();
    if rules.gap_filler(next.payload).as_ref() == Some(next.payload) {
        return false;
    }
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

/// Takes those out of `found` of which it is known that they are, or may be, on the chain after all, and says why the
/// request fails for one of them. `over` gets those that are to be forgotten.
fn settle_late(
    next: &NextRequest<'_>,
    found: Vec<Refused>,
    over: &mut Vec<Refused>,
    now_ms: u64,
) -> (Vec<Refused>, Option<RepeatBlocker>) {
    let (mut unsettled, mut paid) = (Vec::new(), None);
    for refused in found {
        let Some(late) = &refused.row.late else {
            unsettled.push(refused);
            continue;
        };
        if now_ms.saturating_sub(late.at_ms) >= MEMORY_MS {
            over.push(refused);
        } else if refused.is_same || late.told == next.request {
            paid = Some(paid_before(next, &refused, late.is_certain));
        }
    }
    (unsettled, paid)
}

/// Some remembered transactions of an account, of which nothing more is known, and where to go on.
async fn read_page(
    services: &Services,
    asked: Scan,
) -> Result<(Vec<Refused>, Option<Scan>), Fault> {
    let page = services.store.scan(&asked).await?;
    let rest = asked.rest(&page);
    let mut found = Vec::with_capacity(page.len());
    for (key, row) in page {
        if let Some((_, number, request)) = rows::split_refused(&key) {
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
    Ok((found, rest))
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
    let now = match next.account.network.rules().is_numbered() {
        true => format!("nonce {number} is used by now"),
        false => "it is, or may be, on the chain by now".to_owned(),
    };
    let detail = format!("{hash} was refused by the chain's nodes, and {now}");
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
            "another request of the wallet looks after an earlier transaction",
        )),
        Err(error) => Err(error.into()),
    }
}
