//! What became of the last request of a sweep. That something has arrived is read from the transfers that this service
//! follows itself; that it never will, from the state of the request and of those that replaced it.

use covault_core::{
    amount::U256,
    audit::AuditChain,
    deposit::{
        sweep::{SweepEvent, SweepJob, SweepState},
        transfer::Account,
    },
    fault::Fault,
    ids::RequestId,
    networks::Replacement,
    request::{RequestState, SigningRequest, TransactionState},
};

use super::{StoredJob, SweptWallet};
use crate::{
    audit::{AuditActor, AuditNote},
    requests::replacing::ReplacementFamily,
    services::skip_unreadable,
    store::{
        Batch, CommitError, Precondition, Scan,
        deposit_rows::{self, CursorRow, TransferRow},
        rows::{self, TransactionRow},
        sweep_rows::{self, SweepTotalRow},
    },
};

/// Transfers of one transaction that are read.
const PAGE: usize = 1_000;

/// How often a commit is tried beside sweeps of other wallets that end at the same time.
const TRIES: usize = 8;

/// What became of a request and of those that replaced it, as far as it matters to a sweep.
enum SweepRequestFate {
    /// It may still move something, or has: then the follower sees it soon.
    Open,
    /// None of them can ever move anything.
    Lost(LostRequest),
    /// A final block that was followed has one of them, and it succeeded there.
    Mined,
}

/// Why a request and those that replaced it can never move anything.
pub struct LostRequest {
    /// In words for people.
    pub reason: String,
    /// Whether a block has taken one of them, and its fee.
    pub is_paid: bool,
}

/// Looks at the request that a sweep waits for. Whether there is more to do now.
pub(super) async fn look(
    swept: &SweptWallet,
    stored: &StoredJob,
    id: RequestId,
) -> Result<bool, Fault> {
    let services = &swept.services;
    // Before the transfers: what a final block has of them by then is read.
    let finalized = finalized(swept).await?;
    let requests = family(swept, id)
        .await?
        .ok_or_else(|| Fault::bug("a sweep without its request"))?;
    let mut is_seen = false;
    for request in &requests {
        let Some(tx) = request.state.tx_hash().and_then(hash) else {
            continue;
        };
        let transfers = transfers(swept, &tx).await?;
        if has_arrived(swept, &stored.job, &transfers) {
            return arrived(swept, stored, &transfers).await;
        }
        is_seen |= is_seen_in(swept, &stored.job, &transfers);
    }
    // Its block may be final before it is as deep as confirmations ask for.
    if is_seen {
        return Ok(false);
    }
    let last_retry = swept.rules.retries.last;
    let event = match fate(swept, &requests, finalized).await? {
        SweepRequestFate::Open => return Ok(false),
        SweepRequestFate::Lost(LostRequest { reason, is_paid }) => SweepEvent::RequestLost {
            reason,
            paid_after: is_paid.then_some(last_retry),
        },
        // It is plain coin.
        SweepRequestFate::Mined if matches!(stored.job.state, SweepState::Funding { .. }) => {
            return arrived(swept, stored, &[]).await;
        }
        // Such as of a token that is no longer told. What is there now says how it continues.
        SweepRequestFate::Mined => SweepEvent::RequestLost {
            reason: "its transaction was mined, and no transfer of it is known".to_owned(),
            paid_after: Some(last_retry),
        },
    };
    let next = stored.job.step(event, services.now_ms())?;
    swept.tell(&next);
    swept.write(stored, next).await
}

/// Why a request and those that replaced it can never move anything; `None` while one can, or has.
pub(super) async fn why_lost(
    swept: &SweptWallet,
    id: RequestId,
) -> Result<Option<LostRequest>, Fault> {
    let Some(requests) = family(swept, id).await? else {
        return Ok(None);
    };
    let finalized = finalized(swept).await?;
    Ok(match fate(swept, &requests, finalized).await? {
        SweepRequestFate::Lost(why) => Some(why),
        SweepRequestFate::Open | SweepRequestFate::Mined => None,
    })
}

/// The request and those that were made to replace it.
async fn family(swept: &SweptWallet, id: RequestId) -> Result<Option<Vec<SigningRequest>>, Fault> {
    let Some((request, _)) = swept.services.request(id).await? else {
        return Ok(None);
    };
    let family = ReplacementFamily::load(&swept.services, &request).await?;
    let later = family.after(id).map(|(_, later)| later.clone());
    Ok(Some(std::iter::once(request).chain(later).collect()))
}

/// The number of the newest final block that was followed.
async fn finalized(swept: &SweptWallet) -> Result<Option<u64>, Fault> {
    let cursor = deposit_rows::cursor(swept.chain);
    let cursor = swept.services.load::<CursorRow>(&cursor).await?;
    Ok(cursor.map(|(cursor, _)| cursor.finalized.number))
}

fn hash(text: &str) -> Option<[u8; 32]> {
    let bytes = hex::decode(text.trim_start_matches("0x")).ok()?;
    bytes.try_into().ok()
}

/// The transfers of a transaction that are known, to or from the wallet.
async fn transfers(swept: &SweptWallet, tx: &[u8; 32]) -> Result<Vec<TransferRow>, Fault> {
    let all = sweep_rows::transfers_of(swept.chain, tx);
    let scan = Scan::prefix(all.space, &all.bytes, PAGE);
    let mut found = Vec::new();
    for (_, row) in swept.services.store.scan(&scan).await? {
        let row = rows::decode::<TransferRow>(&row.value);
        found.extend(skip_unreadable(row, "a transfer of a sweep")?);
    }
    found.retain(|row| {
        row.transfer.account() == swept.account && row.transfer.owner.token == swept.token
    });
    Ok(found)
}

fn has_arrived(swept: &SweptWallet, job: &SweepJob, transfers: &[TransferRow]) -> bool {
    let is_funding = matches!(job.state, SweepState::Funding { .. });
    let is_enough = |row: &TransferRow| match is_funding {
        true => row.state.is_told(),
        false => row.state.is_final(),
    };
    let mut rows = transfers.iter();
    rows.any(|row| is_awaited(swept, job, row) && is_enough(row))
}

/// Whether what a sweep waits for is in a block that may be replaced, or is not deep enough yet.
fn is_seen_in(swept: &SweptWallet, job: &SweepJob, transfers: &[TransferRow]) -> bool {
    let mut rows = transfers.iter();
    rows.any(|row| is_awaited(swept, job, row) && row.state.is_open())
}

/// Whether a transfer of its transaction is what a sweep waits for.
fn is_awaited(swept: &SweptWallet, job: &SweepJob, row: &TransferRow) -> bool {
    let of = &row.transfer;
    match job.state {
        SweepState::Funding { .. } => !of.is_send && of.transfer.asset.is_none(),
        SweepState::Moving { .. } => {
            let is_it = of.is_send && of.transfer.asset == job.asset;
            is_it && !of.is_fee() && of.transfer.from == swept.account
        }
        SweepState::Due
        | SweepState::Funded
        | SweepState::Swept { .. }
        | SweepState::Gone
        | SweepState::Paused { .. } => false,
    }
}

async fn arrived(
    swept: &SweptWallet,
    stored: &StoredJob,
    transfers: &[TransferRow],
) -> Result<bool, Fault> {
    let now_ms = swept.services.now_ms();
    if matches!(stored.job.state, SweepState::Funding { .. }) {
        let next = stored.job.step(SweepEvent::TopUpArrived, now_ms)?;
        let top_up = next
            .top_up
            .ok_or_else(|| Fault::bug("a top-up that nobody asked for"))?;
        let change = TotalChange::TopUp(top_up.amount);
        return commit(swept, stored, &next, top_up.asset, change).await;
    }
    let next = stored.job.step(SweepEvent::MoveFinal, now_ms)?;
    let SweepState::Swept { amount } = next.state else {
        return Err(Fault::bug("a sweep that is not over at its end"));
    };
    let change = TotalChange::Swept(moved(swept, &next, amount, transfers));
    commit(swept, stored, &next, stored.job.asset, change).await
}

/// A top-up that had arrived never comes again: a reorganisation has taken it. It is counted no more.
pub(super) async fn top_up_lost(
    swept: &SweptWallet,
    stored: &StoredJob,
    LostRequest { reason, is_paid }: LostRequest,
) -> Result<bool, Fault> {
    let paid_after = is_paid.then_some(swept.rules.retries.last);
    let event = SweepEvent::TopUpLost { reason, paid_after };
    let next = stored.job.step(event, swept.services.now_ms())?;
    let top_up = stored.job.top_up;
    let top_up = top_up.ok_or_else(|| Fault::bug("a top-up that nobody asked for"))?;
    swept.tell(&next);
    let change = TotalChange::TopUpLost(top_up.amount);
    commit(swept, stored, &next, top_up.asset, change).await
}

/// What changes in the totals. Amounts are in the smallest unit, big-endian.
enum TotalChange {
    /// So much coin has arrived for the fee.
    TopUp([u8; 32]),
    /// It was taken back.
    TopUpLost([u8; 32]),
    /// A sweep has ended.
    Swept(SweepTotalRow),
}

impl TotalChange {
    fn apply(&self, total: &mut SweepTotalRow) {
        match self {
            Self::TopUp(amount) => add(&mut total.top_ups, *amount),
            Self::TopUpLost(amount) => {
                let rest = U256::from_be_bytes(total.top_ups);
                let rest = rest.saturating_sub(U256::from_be_bytes(*amount));
                total.top_ups = rest.to_be_bytes();
            }
            Self::Swept(more) => {
                total.sweeps = total.sweeps.saturating_add(more.sweeps);
                add(&mut total.amount, more.amount);
                add(&mut total.fees, more.fees);
            }
        }
    }
}

/// What a transaction has moved to the target, and its fee; `asked` is what it was to move.
fn moved(
    swept: &SweptWallet,
    job: &SweepJob,
    asked: [u8; 32],
    transfers: &[TransferRow],
) -> SweepTotalRow {
    let all = transfers.iter().map(|row| &row.transfer);
    let fees = all.clone().filter(|of| of.is_fee());
    // A token may take a part of it for itself.
    let network = swept.chain.network();
    let target = swept.route.target.as_deref();
    let target = target.and_then(|target| Account::parse(network, target));
    let at_target = all.filter(|of| of.is_send && Some(of.transfer.to) == target);
    let at_target = at_target.filter(|of| of.transfer.asset == job.asset && !of.is_fee());
    let mut amounts = at_target.map(|of| of.transfer.amount).peekable();
    let amount = match amounts.peek() {
        Some(_) => sum(amounts),
        // It went to the target of that time.
        None => asked,
    };
    SweepTotalRow {
        sweeps: 1,
        amount,
        top_ups: [0; 32],
        fees: sum(fees.map(|of| of.transfer.amount)),
    }
}

fn sum(amounts: impl Iterator<Item = [u8; 32]>) -> [u8; 32] {
    let mut all = [0; 32];
    amounts.for_each(|amount| add(&mut all, amount));
    all
}

fn add(to: &mut [u8; 32], amount: [u8; 32]) {
    let all = U256::from_be_bytes(*to).saturating_add(U256::from_be_bytes(amount));
    *to = all.to_be_bytes();
}

/// Writes the sweep, and what was swept of a coin or token in all, which other wallets change too.
async fn commit(
    swept: &SweptWallet,
    stored: &StoredJob,
    next: &SweepJob,
    asset: Option<Account>,
    change: TotalChange,
) -> Result<bool, Fault> {
    let services = &swept.services;
    let key = sweep_rows::total(swept.token, swept.chain, asset);
    for _ in 0..TRIES {
        let (mut total, expect) = match services.load::<SweepTotalRow>(&key).await? {
            Some((total, version)) => (total, Precondition::Version(version)),
            None => (SweepTotalRow::default(), Precondition::Absent),
        };
        change.apply(&mut total);
        let mut batch = Batch::new();
        swept.put(&mut batch, stored.version, next)?;
        batch.put(key.clone(), expect, rows::encode(&total)?);
        if let TotalChange::Swept(more) = &change {
            note(swept, next.asset, more, &mut batch)?;
        }
        match services.store.commit(batch).await {
            Ok(()) => return Ok(true),
            Err(CommitError::Conflict(conflict)) if conflict == key => {}
            Err(error) => return Err(super::commit_fault(error)),
        }
    }
    Err(super::changed_at_the_same_time())
}

fn note(
    swept: &SweptWallet,
    asset: Option<Account>,
    more: &SweepTotalRow,
    batch: &mut Batch,
) -> Result<(), Fault> {
    let network = swept.chain.network();
    let token = asset.map(|asset| asset.text(network));
    AuditNote::for_vault(&AuditActor::service(), swept.vault, "DepositSwept")
        .fact("chain", swept.chain)
        .fact("address", swept.address())
        .fact("token", token.unwrap_or_default())
        .fact("amount", U256::from_be_bytes(more.amount))
        .fact("fee", U256::from_be_bytes(more.fees))
        .add_to(
            batch,
            AuditChain::Vault(swept.vault),
            swept.services.now_ms(),
        )
}

/// What became of these requests; `finalized` is the newest final block that was followed.
async fn fate(
    swept: &SweptWallet,
    requests: &[SigningRequest],
    finalized: Option<u64>,
) -> Result<SweepRequestFate, Fault> {
    let (mut why, mut is_paid) = (None, false);
    for request in requests {
        if let RequestState::Failed { reason, .. } = &request.state {
            why = why.or_else(|| Some(reason.clone()));
            continue;
        }
        let cancels = request.replaces.as_ref();
        if cancels.is_some_and(|replaces| replaces.how == Replacement::Cancel) {
            continue;
        }
        let key = rows::transaction(request.id);
        let known = swept.services.load::<TransactionRow>(&key).await?;
        let settled = match known.map(|(row, _)| row.state) {
            Some(TransactionState::Final(inclusion)) if !inclusion.success => {
                is_paid = true;
                "its transaction has failed on the chain"
            }
            Some(TransactionState::Final(inclusion))
                if finalized.is_some_and(|finalized| inclusion.block <= finalized) =>
            {
                return Ok(SweepRequestFate::Mined);
            }
            Some(TransactionState::Replaced { .. }) => "another transaction has replaced it",
            Some(TransactionState::Dropped) => "its transaction was never mined",
            _ => return Ok(SweepRequestFate::Open),
        };
        why = Some(settled.to_owned());
    }
    let lost = why.map(|reason| SweepRequestFate::Lost(LostRequest { reason, is_paid }));
    Ok(lost.unwrap_or(SweepRequestFate::Open))
}
