//! Networks whose accounts do not number their transactions.
//!
//! Bitcoin and Sui: the same payment made again spends an output or object of the refused transaction, or what a
//! transaction makes that spends one; the chain takes one of the two. TRON, Solana, Sonic SVM, and Sui where an address
//! balance pays: it waits until as many nodes as it takes to end something say that the time of the refused one is over.

use std::{collections::BTreeSet, sync::Arc};

use covault_core::{
    fault::Fault,
    ids::RequestId,
    moment::utc,
    networks::{ChainData, Resource},
    request::{RequestState, TransactionState},
};

use super::{
    ASKED, MEMORY_MS, NextRequest, RefusedPayment, RepeatBlocker, all, ended,
    ended::{end_ms, never_comes},
    forget, inputs_of, is_any,
    kept::KeptPayments,
    note_late, older, paid_before, pays_exactly_the_same, read_page, settle_late, unread, way_out,
};
use crate::{
    chain_rpc::{ChainClient, TrackedTransaction, TransactionSighting, sightings_of_witnesses},
    requests::{account::ChainAccount, reservations},
    services::Services,
    store::rows::{self, TransactionRow},
};

/// So many transactions that wait on each other may lie between a refused one and the output that is spent: nodes keep no
/// more in their mempools.
const MOST_STEPS: usize = 25;

/// A payment that nodes refused, that is the same as the one that is to be built, and that can still come.
pub struct EarlierPayment {
    pub(super) request: RequestId,
    pub(super) tx_hash: String,
    /// What is to be said of older ones of the same payment.
    pub(super) older: String,
    /// What it uses up; never empty.
    pub(super) inputs: BTreeSet<Resource>,
}

/// What was refused and pays the same as a request, and can still come. Forgets what can no longer.
///
/// # Errors
/// [`RepeatBlocker`] when the request may not be built now: one has come, or can come whatever the request spends. Also when
/// the store cannot be read.
pub async fn still_open(
    services: &Arc<Services>,
    client: &Arc<dyn ChainClient>,
    next: &NextRequest<'_>,
) -> Result<Vec<EarlierPayment>, RepeatBlocker> {
    let rules = next.account.network.rules();
    if rules.is_numbered() || !next.payload.is_transaction() {
        return Ok(Vec::new());
    }
    if !is_any(services, next.account).await.map_err(unread)? {
        return Ok(Vec::new());
    }
    let (same, over) = same_rows(services, next).await.map_err(unread)?;
    ended::look_at(services, client, next, over);
    let open = settle(services, &**client, next, same).await?;
    let mut earlier = Vec::with_capacity(open.len());
    for refused in &open {
        let inputs: BTreeSet<_> = inputs_of(next.account, refused).into_iter().collect();
        if inputs.is_empty() {
            return Err(waits_for_its_time(services, next, refused));
        }
        earlier.push(EarlierPayment {
            request: refused.request,
            tx_hash: refused.row.signed.tx_hash.clone(),
            older: older(refused),
            inputs,
        });
    }
    Ok(earlier)
}

/// The outputs or objects that a request has to spend, so that the chain takes none of the `earlier` ones besides.
///
/// # Errors
/// [`RepeatBlocker`] when it cannot have them now, also when the store cannot be read.
pub async fn required_inputs(
    services: &Services,
    client: &dyn ChainClient,
    next: &NextRequest<'_>,
    earlier: &[EarlierPayment],
    chain_data: &ChainData,
) -> Result<BTreeSet<Resource>, RepeatBlocker> {
    let rules = next.account.network.rules();
    let named = rules.named_inputs(next.payload);
    let offered = rules.candidate_inputs(chain_data).map_err(unread)?;
    let offered = offered.into_iter().collect();
    let mut required = BTreeSet::new();
    for one in earlier {
        let mut inputs = one.inputs.iter();
        if inputs.any(|input| named.contains(input) || required.contains(input)) {
            continue;
        }
        required.extend(tie(services, client, next, one, &offered).await?);
    }
    if !required.is_empty() {
        tracing::warn!(request = %next.request, inputs = ?required, "the same payment was refused, and no block is known to have it; what it spends is spent by this one, so that the chain takes one of the two");
    }
    Ok(required)
}

/// What a request has to spend so that the chain does not take an earlier one besides; `None` where it takes that one no
/// more.
async fn tie(
    services: &Services,
    client: &dyn ChainClient,
    next: &NextRequest<'_>,
    earlier: &EarlierPayment,
    offered: &BTreeSet<Resource>,
) -> Result<Option<Resource>, RepeatBlocker> {
    let rules = next.account.network.rules();
    let mut wanted: Vec<Resource> = earlier.inputs.iter().cloned().collect();
    let (mut holder, mut users) = (None, Vec::new());
    for _ in 0..MOST_STEPS {
        let held = reservations::held(services, next.account, &wanted).await;
        let held = held.map_err(unread)?;
        let mut free = wanted.iter().filter(|it| offered.contains(it));
        if let Some(free) = free.find(|it| !held.contains_key(it)) {
            return Ok(Some(free.clone()));
        }
        // Those who spend one of them are in the chain instead of it, and so is what spends what they make.
        let mut made = Vec::new();
        for input in held.keys() {
            let of_input = reservations::users(services, next.account, input).await;
            for user in of_input.map_err(unread)? {
                let found = services.request(user).await.map_err(unread)?;
                let Some((found, _)) = found else { continue };
                holder.get_or_insert((input.clone(), user));
                let Some(signed) = found.state.signed() else {
                    continue;
                };
                let spends = rules.exclusive_inputs(signed).map_err(unread)?;
                if !spends.contains(input) {
                    continue;
                }
                if pays_exactly_the_same(next, &found) {
                    return Ok(None);
                }
                made.extend(rules.sent_outputs(signed).map_err(unread)?);
                users.push(TrackedTransaction {
                    signed: signed.clone(),
                    from: found.address,
                    sent_at_ms: found.created_at_ms,
                });
            }
        }
        if made.is_empty() {
            break;
        }
        wanted = made;
    }
    // A block that has a later one has the first ones, too.
    users.truncate(ASKED);
    if is_one_in_block(services, client, &users).await {
        return Ok(None);
    }
    let EarlierPayment {
        request,
        tx_hash,
        older,
        ..
    } = earlier;
    let why = match holder {
        Some((input, holder)) => {
            format!(
                "what it spends is reserved by request {holder} ({})",
                name(&input)
            )
        }
        None => "nodes offer nothing of what it spends".to_owned(),
    };
    Err(RepeatBlocker::Wait(format!(
        "the same payment of request {request}, which nodes refused, can still come with the transaction {tx_hash}, and \
         {why}: paid now it could be paid twice; waiting until a block has one that spends the same{older}"
    )))
}

fn name(input: &Resource) -> &str {
    match input {
        Resource::Object(name) => name,
        Resource::Nonce(_) | Resource::TxHash(_) => "the transaction",
    }
}

/// Whether a block has one of these, as many nodes say as it takes to end something. All are asked about at once: a silent
/// node holds that up by its time only once.
async fn is_one_in_block(
    services: &Services,
    client: &dyn ChainClient,
    transactions: &[TrackedTransaction],
) -> bool {
    if transactions.is_empty() {
        return false;
    }
    let said = sightings_of_witnesses(client, transactions, services.now_ms()).await;
    said.iter().any(|said| {
        matches!(
            said,
            Ok(TransactionSighting::Mined(_) | TransactionSighting::Final(_))
        )
    })
}

/// Those that pay the same, and of the others those whose time is over. Forgets those of which the transaction of a request
/// here has used what they spend for good.
async fn same_rows(
    services: &Services,
    next: &NextRequest<'_>,
) -> Result<(Vec<RefusedPayment>, Vec<RefusedPayment>), Fault> {
    let (mut same, mut ended, mut kept) = (Vec::new(), Vec::new(), KeptPayments::default());
    let now_ms = services.now_ms();
    let mut scan = Some(all(next.account));
    while let Some(asked) = scan {
        let (found, rest) = read_page(services, next, asked).await?;
        scan = rest;
        kept.add(&found);
        let inputs = found.iter().map(|refused| inputs_of(next.account, refused));
        let inputs: Vec<Vec<Resource>> = inputs.collect();
        let used = used_for_good(services, next, inputs.iter().flatten()).await?;
        let again = asked_again(services, next.account, &found).await?;
        let mut over = Vec::new();
        for ((refused, inputs), again) in found.into_iter().zip(inputs).zip(again) {
            match again {
                Some(AskedAgain::Settled) => {
                    over.push(refused);
                    continue;
                }
                // It is that one's to say what became of it.
                Some(AskedAgain::Sent) => continue,
                None => {}
            }
            let late_ms = refused.row.late.as_ref().map(|late| late.at_ms);
            let is_late = late_ms.is_some_and(|at_ms| now_ms.saturating_sub(at_ms) >= MEMORY_MS);
            let ends_ms = end_ms(next.account, &refused).filter(|_| late_ms.is_none());
            if is_late || inputs.iter().any(|input| used.contains(input)) {
                over.push(refused);
            } else if refused.is_same {
                same.push(refused);
            } else if ends_ms.is_some_and(|ends_ms| ends_ms <= now_ms) {
                ended.push(refused);
            }
        }
        forget(services, &over).await?;
        kept.leave_out(&over);
    }
    kept.bound(services).await?;
    Ok((same, ended))
}

/// What became of the very same transaction as a refused one, that its client had sent again by another request.
enum AskedAgain {
    /// Nodes have got it.
    Sent,
    /// It is known for good where it is, or that it never comes.
    Settled,
}

/// Those whose transaction another request has now, as it is; each in its place.
async fn asked_again(
    services: &Services,
    account: &ChainAccount,
    refused: &[RefusedPayment],
) -> Result<Vec<Option<AskedAgain>>, Fault> {
    let all = refused.iter().flat_map(|it| it.whole.iter().cloned());
    let all: Vec<Resource> = all.collect();
    let held = reservations::held(services, account, &all).await?;
    let mut again = Vec::with_capacity(refused.len());
    for one in refused {
        let mut holders = one.whole.iter().map(|it| held.get(it).copied());
        // Of several transactions another request may have some.
        let first = holders.next().flatten();
        let holder = first.filter(|first| holders.all(|it| it == Some(*first)));
        let holder = holder.filter(|_| one.row.late.is_none());
        again.push(match holder {
            Some(holder) => what_became_of(services, holder, &one.row.signed.tx_hash).await?,
            None => None,
        });
    }
    Ok(again)
}

/// Signed a second time it may have another hash (the signature itself on Solana), and the chain may have taken the refused one
/// instead: then the later one tells nothing of that before it is final, when the message of both is used up.
async fn what_became_of(
    services: &Services,
    request: RequestId,
    refused_hash: &str,
) -> Result<Option<AskedAgain>, Fault> {
    let place = rows::transaction(request);
    let place = services.load::<TransactionRow>(&place).await?;
    let place = place.map(|(row, _)| row.state);
    if matches!(place, Some(TransactionState::Final(_))) {
        return Ok(Some(AskedAgain::Settled));
    }
    let Some((request, _)) = services.request(request).await? else {
        return Ok(None);
    };
    if request.state.tx_hash() != Some(refused_hash) {
        return Ok(None);
    }
    if place.is_some_and(|place| place.is_settled()) {
        return Ok(Some(AskedAgain::Settled));
    }
    let is_sent = matches!(
        request.state,
        RequestState::Broadcasting { .. } | RequestState::Succeeded { sent: true, .. }
    );
    Ok(is_sent.then_some(AskedAgain::Sent))
}

/// Which of these a transaction of a request here has used for good.
async fn used_for_good(
    services: &Services,
    next: &NextRequest<'_>,
    inputs: impl Iterator<Item = &Resource>,
) -> Result<BTreeSet<Resource>, Fault> {
    let inputs: Vec<Resource> = inputs.cloned().collect();
    let held = reservations::held(services, next.account, &inputs).await?;
    let keys: Vec<_> = held.values().map(|it| rows::transaction(*it)).collect();
    let known = services.load_all::<TransactionRow>(&keys).await?;
    let mut used = BTreeSet::new();
    for (input, row) in held.into_keys().zip(known) {
        if row?.is_some_and(|row| matches!(row.state, TransactionState::Final(_))) {
            used.insert(input);
        }
    }
    Ok(used)
}

fn waits_for_its_time(
    services: &Services,
    next: &NextRequest<'_>,
    refused: &RefusedPayment,
) -> RepeatBlocker {
    let (id, hash) = (refused.request, &refused.row.signed.tx_hash);
    let until = match end_ms(next.account, refused) {
        Some(end_ms) if end_ms > services.now_ms() => format!("until {}", utc(end_ms)),
        Some(_) => "as long as nodes do not say that its time is over".to_owned(),
        None => "until its nonce is used".to_owned(),
    };
    RepeatBlocker::Wait(format!(
        "the same payment of request {id}, which nodes refused, can still come with the transaction {hash} {until}: paid \
         now it could be paid twice; {}",
        way_out(refused)
    ))
}

/// Finds out what became of refused transactions that pay the same: forgets those that never come, and returns those
/// that can.
async fn settle(
    services: &Services,
    client: &dyn ChainClient,
    next: &NextRequest<'_>,
    same: Vec<RefusedPayment>,
) -> Result<Vec<RefusedPayment>, RepeatBlocker> {
    let now_ms = services.now_ms();
    let mut over = Vec::new();
    let (mut unsettled, mut paid) = settle_late(next, same, &mut over, now_ms);
    let mut open = unsettled.split_off(unsettled.len().min(ASKED));
    let tracked: Vec<_> = unsettled
        .iter()
        .map(|it| it.tracked(next.account))
        .collect();
    let said = match (&paid, tracked.is_empty()) {
        (None, false) => sightings_of_witnesses(client, &tracked, now_ms).await,
        _ => Vec::new(),
    };
    for (refused, said) in unsettled.into_iter().zip(said) {
        if !matches!(
            said,
            Ok(TransactionSighting::Replaced(_) | TransactionSighting::Expired)
        ) {
            next.looks.void.clear(refused.request);
        }
        let (hash, id) = (&refused.row.signed.tx_hash, refused.request);
        // Where it has come for good, all of it or some.
        let late = match said {
            // Else one that is not kept may be what has replaced it.
            Ok(TransactionSighting::Replaced(_)) if refused.row.unkept > 0 => None,
            Ok(TransactionSighting::Expired) if refused.may_be_an_older_one() => None,
            Ok(TransactionSighting::Replaced(_) | TransactionSighting::Expired)
                if never_comes(services, next.looks, next.account, &refused) =>
            {
                over.push(refused);
                continue;
            }
            Ok(TransactionSighting::Final(inclusion)) if !inclusion.success => {
                tracing::warn!(request = %id, hash, "a transaction that nodes had refused is on the chain, where it failed and only cost its fee");
                over.push(refused);
                continue;
            }
            Ok(TransactionSighting::Final(inclusion)) => {
                Some((false, Some(TransactionRow::settled(inclusion, now_ms))))
            }
            Ok(TransactionSighting::Partial(_)) => Some((true, None)),
            Ok(TransactionSighting::Mined(inclusion)) if inclusion.success => {
                paid = Some(paid_before(next, &refused, false));
                None
            }
            _ => None,
        };
        if let Some((is_partial, place)) = late {
            let told = (Some(next.request), is_partial);
            let noted = note_late(services, next.account, &refused, told, place).await;
            noted.map_err(unread)?;
            paid = Some(paid_before(next, &refused, is_partial));
            break;
        }
        open.push(refused);
    }
    forget(services, &over).await.map_err(unread)?;
    paid.map_or(Ok(open), Err)
}
