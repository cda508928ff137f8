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
//! (docs/decisions/0030-doubt-about-a-broadcast.md). It is forgotten when as many nodes as it takes to end something say what
//! became of it, or an operator says so ([`forgetting`]), and by no time alone.

mod ended;
pub mod forgetting;
mod kept;
mod looks;
mod numbers;
mod unnumbered;

use std::{collections::HashMap, sync::Arc};

use covault_core::{
    audit::AuditChain,
    fault::Fault,
    ids::RequestId,
    networks::{Payload, Purpose, Resource},
    request::{Draft, SigningRequest},
};
use sha2::{Digest as _, Sha256};

use self::{
    kept::{Payment, keep_newest},
    looks::{RefusedPayload, RefusedPayloads},
};

pub use self::{
    looks::RefusedLooks,
    numbers::{NonceDemand, check_named_number, next_number},
    unnumbered::{EarlierPayment, required_inputs, still_open},
};
use crate::{
    audit::{AuditActor, AuditNote},
    chain_rpc::{ChainClient, TrackedTransaction},
    requests::{account::ChainAccount, tx_builder},
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
/// For how long a payment is refused that is the same as one which failed and was mined later, in milliseconds: a day.
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
    /// Its client has built it, with all that it uses up: the very same payload is the very same transaction, which the
    /// chain takes once.
    pub is_whole: bool,
    /// What is in memory of refused transactions.
    pub looks: &'a Arc<RefusedLooks>,
}

/// A remembered transaction.
struct RefusedPayment {
    key: Key,
    version: u64,
    /// 0 where there are none.
    number: u64,
    request: RequestId,
    row: RefusedRow,
    /// What it pays and uses, where the chain takes one at most of all that have the same.
    payment: Option<Payment>,
    /// What stands for it as a whole, where its client has built it.
    whole: Vec<Resource>,
    /// When it can no longer come, by this machine's clock; the highest number where that is never.
    ends_ms: u64,
    /// It pays what the request that is to be built pays.
    is_same: bool,
    /// Who has its number, where there is one.
    holder: NonceHolder,
}

/// Who has a remembered number now.
enum NonceHolder {
    Nobody,
    /// A request whose transaction was replaced by another one with this number, for good.
    Replaced,
    /// A request whose transaction may be mined.
    Other(RequestId),
}

impl RefusedPayment {
    /// Its time is over and it is nowhere, but an older one may have come that is not kept: where only the message is the same,
    /// each has another signature, by which nodes are asked.
    fn may_be_an_older_one(&self) -> bool {
        self.row.unkept > 0 && !self.whole.is_empty()
    }

    /// As nodes are asked about it.
    fn tracked(&self, account: &ChainAccount) -> TrackedTransaction {
        TrackedTransaction {
            signed: self.row.signed.clone(),
            from: account.address.clone(),
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
        unkept: 0,
        late: None,
    };
    let key = rows::refused(&account, number, request.id);
    batch.put(key, Precondition::Any, rows::encode(&row)?);
    Ok(())
}

/// Checks a transaction that its client has built, with all that it `uses` up: where the same was refused, and can still come
/// besides, both would be done.
///
/// # Errors
/// [`RepeatBlocker`] when it may not be signed now, also when the store cannot be read.
pub async fn check_built_by_client(
    services: &Arc<Services>,
    client: &Arc<dyn ChainClient>,
    next: &NextRequest<'_>,
    uses: &[Resource],
) -> Result<(), RepeatBlocker> {
    if next.account.network.rules().is_numbered() {
        let uses = || uses.to_vec();
        return check_named_number(services, &**client, next, uses).await;
    }
    // What cannot be built is told by its draft.
    if uses.is_empty() {
        return Ok(());
    }
    for one in still_open(services, client, next).await? {
        if uses.iter().any(|it| one.inputs.contains(it)) {
            continue;
        }
        let EarlierPayment {
            request,
            tx_hash,
            older,
            ..
        } = one;
        return Err(RepeatBlocker::Wait(format!(
            "the same of request {request}, which nodes refused, can still come with the transaction {tx_hash}, and this \
             one uses nothing that it uses: both could come; use one of its objects at the same version, or wait{older}"
        )));
    }
    Ok(())
}

fn unread(fault: Fault) -> RepeatBlocker {
    RepeatBlocker::Wait(fault.message().to_owned())
}

/// Whether a transaction of the account is remembered. As a rule there is none, and that is known without a question to
/// the store.
///
/// # Errors
/// When the store cannot be read.
pub async fn is_any(services: &Services, account: &ChainAccount) -> Result<bool, Fault> {
    let hot = &services.held_leases.hot_numbers;
    let name = rows::refused_name(&rows::account(account));
    if let Some(known) = hot.find(&name, 0) {
        return Ok(!known.is_empty());
    }
    let read = services.lease_term.as_ref();
    let read = read.and_then(|lease_term| hot.begin(name, lease_term));
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

/// What the client of a request hears that is not built; `is_partial` where only some of several transactions have come.
fn paid_before(
    next: &NextRequest<'_>,
    refused: &RefusedPayment,
    is_partial: bool,
) -> RepeatBlocker {
    let (hash, id) = (&refused.row.signed.tx_hash, refused.request);
    let with = match next.account.network.rules().is_numbered() {
        true => format!(", with nonce {}", refused.number),
        false => String::new(),
    };
    let came = match is_partial {
        true => "is in part on the chain after all",
        false => "is on the chain after all",
    };
    RepeatBlocker::Refuse(format!(
        "the transaction {hash} of request {id}, which the chain's nodes had refused, {came}{with}: \
         nothing was signed now; look it up before you pay again: the same payment fails for a day"
    ))
}

/// What helps where nodes do not say what became of a refused transaction.
fn way_out(refused: &RefusedPayment) -> String {
    let (id, older) = (refused.request, older(refused));
    format!(
        "where they never do, look it up at a node that you trust before you pay another amount, or an operator forgets it \
         (covault request forget-refused {id}){older}"
    )
}

/// What is to be said of older ones of the same payment that are not kept.
fn older(refused: &RefusedPayment) -> String {
    match refused.row.unkept {
        0 => String::new(),
        older => format!(
            "; {older} older ones of the same payment are not kept, and one of these may have come: look up what has used \
             the same nonce or outputs before an operator forgets it (--older {older})"
        ),
    }
}

/// What a request is to do, to be compared with what refused ones were to do.
struct SoughtPayment {
    purpose: Purpose,
    /// SHA-256 of its payload, where that is the whole transaction.
    whole: Option<[u8; 32]>,
    /// It only uses a number up: that pays nobody.
    is_filler: bool,
}

impl SoughtPayment {
    fn new(next: &NextRequest<'_>) -> Self {
        let network = next.account.network;
        let filler = network.rules().gap_filler(next.payload);
        Self {
            purpose: next.payload.purpose(network),
            whole: next.is_whole.then(|| hash(&next.payload.encode())),
            is_filler: filler.as_ref() == Some(next.payload),
        }
    }

    fn is_paid_by(&self, refused: &RefusedPayload) -> bool {
        // One transaction, whoever asks for it.
        let is_it = self.whole == Some(refused.hash);
        !self.is_filler && !is_it && self.purpose.is_same(&refused.purpose)
    }
}

fn hash(payload: &[u8]) -> [u8; 32] {
    Sha256::digest(payload).into()
}

/// What requests were to do, each in its place; one that cannot be read does not stop the wallet.
async fn payloads(
    services: &Services,
    read: &RefusedPayloads,
    account: &ChainAccount,
    requests: &[RequestId],
) -> Result<Vec<Option<Arc<RefusedPayload>>>, Fault> {
    let mut known: Vec<_> = requests.iter().map(|id| read.get(*id)).collect();
    let unread = requests.iter().zip(&mut known);
    let unread: Vec<_> = unread.filter(|(_, it)| it.is_none()).collect();
    let keys: Vec<_> = unread.iter().map(|(id, _)| rows::request(**id)).collect();
    let found = services.load_all::<SigningRequest>(&keys).await?;
    for ((id, place), found) in unread.into_iter().zip(found) {
        let payload = found.and_then(|request| {
            let of = |request| payload_of(services, account, request);
            request.as_ref().map(of).transpose()
        });
        match payload {
            Ok(Some(payload)) => {
                let payload = Arc::new(payload);
                read.keep(*id, Arc::clone(&payload));
                *place = Some(payload);
            }
            Ok(None) => {}
            Err(fault) => {
                tracing::error!(request = %id, ?fault, "a refused request cannot be read; whether it is paid again is not known");
            }
        }
    }
    Ok(known)
}

fn payload_of(
    services: &Services,
    account: &ChainAccount,
    request: &SigningRequest,
) -> Result<RefusedPayload, Fault> {
    let network = account.network;
    let payload = Payload::decode(&request.payload)?;
    let queries = tx_builder::queries(services, network, &payload);
    let whole = match tx_builder::local_chain_data(services, &payload, &queries) {
        Some(Ok(chain_data)) if payload.is_transaction() => {
            tx_builder::uses(network, &payload, &chain_data, &request.public_key)
        }
        _ => Vec::new(),
    };
    let is_whole = |it: &Resource| matches!(it, Resource::TxHash(_));
    Ok(RefusedPayload {
        purpose: payload.purpose(network),
        hash: hash(&request.payload),
        whole: whole.into_iter().filter(is_whole).collect(),
    })
}

/// Whether a request that the chain may take in place of a refused one pays that, to the memo.
fn pays_exactly_the_same(next: &NextRequest<'_>, other: &SigningRequest) -> bool {
    let sought = SoughtPayment::new(next);
    match Payload::decode(&other.payload) {
        Ok(payload) => {
            let purpose = payload.purpose(next.account.network);
            !sought.is_filler && sought.purpose.is_exactly_same(&purpose)
        }
        Err(error) => {
            tracing::error!(request = %other.id, ?error, "a request cannot be read; whether it is paid again is not known");
            false
        }
    }
}

/// Takes those out of `found` of which it is known that they are on the chain after all, and says why the request fails for
/// one of them. `over` gets those that are to be forgotten.
fn settle_late(
    next: &NextRequest<'_>,
    found: Vec<RefusedPayment>,
    over: &mut Vec<RefusedPayment>,
    now_ms: u64,
) -> (Vec<RefusedPayment>, Option<RepeatBlocker>) {
    let (mut unsettled, mut paid) = (Vec::new(), None);
    for refused in found {
        let Some(late) = &refused.row.late else {
            unsettled.push(refused);
            continue;
        };
        if now_ms.saturating_sub(late.at_ms) >= MEMORY_MS {
            over.push(refused);
        } else if refused.is_same || late.told == Some(next.request) {
            paid = Some(paid_before(next, &refused, late.is_partial));
        }
    }
    (unsettled, paid)
}

/// Some remembered transactions of an account, of which nothing more is known than whether they pay the same, and where to
/// go on. Of one payment only the newest stay.
async fn read_page(
    services: &Services,
    next: &NextRequest<'_>,
    asked: Scan,
) -> Result<(Vec<RefusedPayment>, Option<Scan>), Fault> {
    let page = services.store.scan(&asked).await?;
    let rest = asked.rest(&page);
    let mut found = Vec::with_capacity(page.len());
    for (key, row) in page {
        if let Some((_, number, request)) = rows::split_refused(&key) {
            found.push(RefusedPayment {
                number,
                is_same: false,
                request,
                version: row.version,
                row: rows::decode(&row.value)?,
                payment: None,
                whole: Vec::new(),
                ends_ms: u64::MAX,
                key,
                holder: NonceHolder::Nobody,
            });
        }
    }
    let requests: Vec<_> = found.iter().map(|it| it.request).collect();
    let payloads = payloads(services, &next.looks.payloads, next.account, &requests).await?;
    let (rules, sought) = (next.account.network.rules(), SoughtPayment::new(next));
    let mut alike: HashMap<Payment, Vec<usize>> = HashMap::new();
    for (index, (refused, payload)) in found.iter_mut().zip(payloads).enumerate() {
        let Some(payload) = payload else { continue };
        refused.is_same = sought.is_paid_by(&payload);
        refused.whole.clone_from(&payload.whole);
        refused.ends_ms = ended::order_of_end(next.account, refused);
        if refused.row.late.is_some() {
            continue;
        }
        let inputs = match rules.is_numbered() {
            true => Vec::new(),
            false => inputs_of(next.account, refused),
        };
        // Where nothing else is used up the chain takes the same message once, whatever its signature is.
        let inputs = match inputs.is_empty() && !rules.is_numbered() {
            true => payload.whole.clone(),
            false => inputs,
        };
        // Else nothing keeps the chain from taking both.
        if rules.is_numbered() || !inputs.is_empty() {
            let payment = Payment::new(refused.number, inputs, &payload.purpose);
            refused.payment = Some(payment.clone());
            alike.entry(payment).or_default().push(index);
        }
    }
    let found = keep_newest(services, found, alike.into_values()).await?;
    Ok((found, rest))
}

/// What a refused transaction uses up, where there are no numbers. One that cannot be read is as if it used nothing: it is
/// waited for.
fn inputs_of(account: &ChainAccount, refused: &RefusedPayment) -> Vec<Resource> {
    let inputs = account
        .network
        .rules()
        .exclusive_inputs(&refused.row.signed);
    inputs.unwrap_or_else(|fault| {
        tracing::error!(request = %refused.request, ?fault, "a refused transaction cannot be read");
        Vec::new()
    })
}

async fn forget(services: &Services, over: &[RefusedPayment]) -> Result<(), Fault> {
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

/// Stores that a refused transaction is on the chain after all, and which request fails for it, where one does. The
/// request of the refused one keeps its end, beside which stands where its transaction is.
async fn note_late(
    services: &Services,
    account: &ChainAccount,
    refused: &RefusedPayment,
    (told, is_partial): (Option<RequestId>, bool),
    place: Option<TransactionRow>,
) -> Result<(), Fault> {
    let now_ms = services.now_ms();
    let (hash, id, number) = (&refused.row.signed.tx_hash, refused.request, refused.number);
    let row = RefusedRow {
        late: Some(LateRow {
            at_ms: now_ms,
            told,
            is_partial,
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
    let now = match (account.network.rules().is_numbered(), is_partial) {
        (true, _) => format!("nonce {number} is used by now"),
        (false, false) => "it is on the chain by now".to_owned(),
        (false, true) => "a part of it is on the chain by now".to_owned(),
    };
    let detail = format!("{hash} was refused by the chain's nodes, and {now}");
    if let Some((request, _)) = services.request(id).await? {
        AuditNote::for_request(&AuditActor::service(), id, "MinedLate")
            .fact("state", request.state.name())
            .fact("detail", &detail)
            .add_to(&mut batch, AuditChain::Vault(request.vault), now_ms)?;
    }
    tracing::error!(request = %id, later = ?told, hash, number, is_partial, "a request failed because nodes refused its transaction, and the transaction is on the chain after all; what pays the same fails for a day and names it");
    match services.store.commit(batch).await {
        Ok(()) => Ok(()),
        Err(CommitError::Conflict(_)) => Err(Fault::unavailable(
            "another request of the wallet looks after an earlier transaction",
        )),
        Err(error) => Err(error.into()),
    }
}
