//! Networks whose accounts number their transactions.
//!
//! The next request of the account gets the number of a refused transaction, whatever a node offers, and one that pays
//! the same gets that of the one which was refused, also where it is higher. While something else holds that number, what
//! pays the same waits until as many nodes as it takes to end something say that a block has it. Where they say that the
//! number is used and no request here has used it, the refused transaction may have been paid after all, and the request
//! that would be the second payment fails with its hash, unsigned.

use std::collections::BTreeSet;

use covault_core::{fault::Fault, ids::RequestId, networks::Resource, request::TransactionState};

use super::{
    ASKED, NextRequest, NonceHolder, RefusedPayment, RepeatBlocker, all,
    ended::{begin_anywhere, never_comes},
    forget, is_any,
    kept::KeptPayments,
    note_late, paid_before, pays_exactly_the_same, read_page, settle_late, unread, way_out,
};
use crate::{
    chain_rpc::{
        ChainClient, ChainError, TrackedTransaction, TransactionSighting, next_number_of_witnesses,
        sightings_of_witnesses,
    },
    requests::reservations,
    services::Services,
    store::rows::{self, TransactionRow},
};

/// By how much this machine's clock has to be past the end of a transaction that can then no longer come, in milliseconds.
const MARGIN_MS: u64 = 600_000;
/// So many numbers may be missing before that of the same payment, where the service fills them: each costs a fee.
const MOST_MISSING: u64 = 16;

/// The number that a request has to get.
pub struct NonceDemand {
    /// It.
    pub number: u64,
    /// With any other one it would perhaps be a second payment: it waits where it cannot get this one.
    pub is_own: bool,
}

/// The number that a request has to get although nodes offer it `offered` ones; `None` where they are right.
///
/// # Errors
/// [`RepeatBlocker`] when nothing may be built now, also when the store cannot be read.
pub async fn next_number(
    services: &Services,
    client: &dyn ChainClient,
    next: &NextRequest<'_>,
    offered: &[Resource],
) -> Result<Option<NonceDemand>, RepeatBlocker> {
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
            let may_be_used = |refused: &RefusedPayment| {
                matches!(refused.holder, NonceHolder::Nobody) && refused.number < offered
            };
            if open.iter().any(may_be_used) {
                return Err(RepeatBlocker::Wait(unsaid(error)));
            }
            0
        }
    };
    let (mut used, mut free, mut held) = (Vec::new(), Vec::new(), BTreeSet::new());
    for refused in open {
        match refused.holder {
            NonceHolder::Other(holder) => {
                held.insert((refused.number, holder));
            }
            NonceHolder::Nobody if refused.number >= first_unused => free.push(refused),
            NonceHolder::Nobody | NonceHolder::Replaced => used.push(refused),
        }
    }
    settle(services, client, next, used).await?;
    wait_for_holders(services, client, next, held).await?;
    let Some(lowest) = free.first().map(|refused| refused.number) else {
        return Ok(None);
    };
    // Its own first: with another number both could come.
    if let Some(own) = free.iter().find(|refused| refused.is_same) {
        let from = lowest.min(offered).max(first_unused);
        can_have(services, next, own, from).await?;
        return Ok(Some(demand(next, own, offered)));
    }
    let first = free.first().filter(|refused| refused.number < offered);
    Ok(first.map(|refused| demand(next, refused, offered)))
}

/// Why what pays the same waits where the nodes do not say which numbers are used.
fn unsaid(error: ChainError) -> String {
    let reason = error.into_reason();
    format!(
        "the same payment was refused, and it is not known whether its nonce is used by now: {reason}"
    )
}

fn demand(next: &NextRequest<'_>, refused: &RefusedPayment, offered: u64) -> NonceDemand {
    let (number, id, is_own) = (refused.number, refused.request, refused.is_same);
    tracing::warn!(request = %next.request, refused = %id, number, offered, is_own, "an earlier transaction with this nonce was refused, and no block is known to have it; it is used, whatever a node offers");
    NonceDemand { number, is_own }
}

/// Whether a request can have the number of the same payment now. Few numbers that are missing before it are filled where
/// transactions never end by themselves; elsewhere it waits until the refused one is over, or the numbers are used.
async fn can_have(
    services: &Services,
    next: &NextRequest<'_>,
    own: &RefusedPayment,
    from: u64,
) -> Result<(), RepeatBlocker> {
    let (number, id) = (own.number, own.request);
    let held = reservations::held(services, next.account, &[Resource::Nonce(from)]).await;
    let before = |resource: &&Resource| matches!(resource, Resource::Nonce(held) if (from..number).contains(held));
    let held = held.map_err(unread)?.keys().filter(before).count();
    let missing = number.saturating_sub(from);
    let missing = missing.saturating_sub(u64::try_from(held).unwrap_or(u64::MAX));
    if missing == 0 {
        return Ok(());
    }
    let end_ms = end_ms(next, own);
    if end_ms.is_none() && missing <= MOST_MISSING {
        return Ok(());
    }
    let left = end_ms.map_or_else(String::new, |end_ms| {
        let left_s = end_ms.saturating_sub(services.now_ms()) / 1_000;
        format!(" for {left_s} seconds")
    });
    let way_out = match end_ms {
        Some(_) => "",
        None => {
            "; make the payments before it first, or name that nonce in the request, or pay another amount"
        }
    };
    Err(RepeatBlocker::Wait(format!(
        "the same payment of request {id}, which nodes refused, can still come with nonce {number}{left}, and {missing} \
         nonces before it are not used: paid now it could be paid twice{way_out}"
    )))
}

/// Checks the number that a client has named: where the same payment was refused with another one, and can still come with
/// that, both would be paid.
///
/// # Errors
/// [`RepeatBlocker`] when it may not be built now, also when the store cannot be read.
pub async fn check_named_number(
    services: &Services,
    client: &dyn ChainClient,
    next: &NextRequest<'_>,
    uses: impl FnOnce() -> Vec<Resource>,
) -> Result<(), RepeatBlocker> {
    let is_numbered = next.account.network.rules().is_numbered();
    if !is_numbered || !is_any(services, next.account).await.map_err(unread)? {
        return Ok(());
    }
    let uses = uses();
    // Without a number nothing comes of it that the chain could take besides; what it lacks it hears of.
    if !uses.iter().any(|it| matches!(it, Resource::Nonce(_))) {
        return Ok(());
    }
    let mut open = open_rows(services, next, 0).await.map_err(unread)?;
    // It takes the place of one of the refused ones: of several that pay the same each has its own number.
    let is_named = |refused: &RefusedPayment| uses.contains(&Resource::Nonce(refused.number));
    if open
        .iter()
        .any(|refused| refused.is_same && is_named(refused))
    {
        return Ok(());
    }
    open.retain(|refused| !is_named(refused));
    if open.is_empty() {
        return Ok(());
    }
    let said = next_number_of_witnesses(client, &next.account.address).await;
    let said = said.map_err(|error| RepeatBlocker::Wait(unsaid(error)))?;
    let first_unused = said.unwrap_or_default();
    let (mut used, mut held) = (Vec::new(), BTreeSet::new());
    for refused in open {
        let (number, id) = (refused.number, refused.request);
        match refused.holder {
            NonceHolder::Other(holder) => {
                held.insert((number, holder));
            }
            NonceHolder::Nobody if number >= first_unused => {
                return Err(RepeatBlocker::Refuse(format!(
                    "the same payment of request {id} was refused with nonce {number}, and can still come: with another \
                     nonce it could be paid twice; leave the nonce out, or name nonce {number}"
                )));
            }
            NonceHolder::Nobody | NonceHolder::Replaced => used.push(refused),
        }
    }
    settle(services, client, next, used).await?;
    wait_for_holders(services, client, next, held).await
}

/// Those that matter to a request to which nodes offer this number: the same payment, or lower ones that nobody has.
/// The lowest is first. Forgets those whose number the transaction of a request here has for good.
async fn open_rows(
    services: &Services,
    next: &NextRequest<'_>,
    offered: u64,
) -> Result<Vec<RefusedPayment>, Fault> {
    let (mut open, mut kept) = (Vec::new(), KeptPayments::default());
    let mut scan = Some(all(next.account));
    while let Some(asked) = scan {
        let (found, rest) = read_page(services, next, asked).await?;
        scan = rest;
        kept.add(&found);
        let of =
            |refused: &RefusedPayment| rows::claim(next.account, &Resource::Nonce(refused.number));
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
        let mut over = Vec::new();
        for (mut refused, holder) in found.into_iter().zip(holders) {
            refused.holder = match holder.map(|holder| (holder, state(holder))) {
                Some((_, Some(TransactionState::Final(_)))) => {
                    over.push(refused);
                    continue;
                }
                Some((_, Some(TransactionState::Replaced { .. }))) => NonceHolder::Replaced,
                Some((holder, _)) => NonceHolder::Other(holder),
                None => NonceHolder::Nobody,
            };
            let is_below = refused.number < offered;
            // What is below is asked for: no clock is needed to tell that it ends.
            let can_come = is_below || !is_over(services, next, &refused);
            refused.is_same &= can_come;
            if refused.is_same || is_below && !matches!(refused.holder, NonceHolder::Other(_)) {
                open.push(refused);
            }
        }
        forget(services, &over).await?;
        kept.leave_out(&over);
    }
    kept.bound(services).await?;
    Ok(open)
}

/// When a refused transaction can no longer come, by this machine's clock, by a margin; `None` where that never is.
fn end_ms(next: &NextRequest<'_>, refused: &RefusedPayment) -> Option<u64> {
    let rules = next.account.network.rules();
    let end = rules.valid_until(&refused.row.signed).ok().flatten()?;
    Some(match end.time_ms {
        0 => u64::MAX,
        time_ms => time_ms.saturating_add(MARGIN_MS),
    })
}

fn is_over(services: &Services, next: &NextRequest<'_>, refused: &RefusedPayment) -> bool {
    end_ms(next, refused).is_some_and(|end_ms| end_ms <= services.now_ms())
}

/// Finds out what became of refused transactions whose numbers are used: forgets those where that was another one.
/// Where nobody knows, only what pays the same waits.
async fn settle(
    services: &Services,
    client: &dyn ChainClient,
    next: &NextRequest<'_>,
    used: Vec<RefusedPayment>,
) -> Result<(), RepeatBlocker> {
    let now_ms = services.now_ms();
    let mut over = Vec::new();
    let (mut unsettled, mut paid) = settle_late(next, used, &mut over, now_ms);
    let mut wait = None;
    // What pays the same is asked about first, and of the others not always the same ones.
    begin_anywhere(services, &mut unsettled);
    unsettled.sort_by_key(|refused| !refused.is_same);
    let not_asked = unsettled.split_off(unsettled.len().min(ASKED));
    let unknown = |refused: &RefusedPayment| {
        let (number, hash, id) = (refused.number, &refused.row.signed.tx_hash, refused.request);
        RepeatBlocker::Wait(format!(
            "nonce {number} is used on the chain, perhaps by the transaction {hash} of request {id}, which nodes had \
             refused; waiting until they say by which; {}",
            way_out(refused)
        ))
    };
    if let Some(same) = not_asked.iter().find(|refused| refused.is_same) {
        wait = Some(unknown(same));
    }
    let tracked: Vec<_> = unsettled
        .iter()
        .map(|it| it.tracked(next.account))
        .collect();
    let said = match (&paid, tracked.is_empty()) {
        (None, false) => sightings_of_witnesses(client, &tracked, now_ms).await,
        _ => Vec::new(),
    };
    for (refused, said) in unsettled.into_iter().zip(said) {
        let (hash, id, number) = (&refused.row.signed.tx_hash, refused.request, refused.number);
        if !matches!(
            said,
            Ok(TransactionSighting::Replaced(_) | TransactionSighting::Expired)
        ) {
            next.looks.void.clear(id);
        }
        match said {
            // Else one that is not kept may be what has come.
            Ok(TransactionSighting::Replaced(_) | TransactionSighting::Expired)
                if refused.row.unkept == 0
                    && never_comes(services, next.looks, next.account, &refused) =>
            {
                over.push(refused);
            }
            Ok(TransactionSighting::Final(inclusion)) if !inclusion.success => {
                tracing::warn!(request = %id, number, hash, "a transaction that nodes had refused is on the chain, where it failed and only cost its fee");
                over.push(refused);
            }
            Ok(TransactionSighting::Final(inclusion)) => {
                let place = TransactionRow::settled(inclusion, now_ms);
                let told = (Some(next.request), false);
                let noted = note_late(services, next.account, &refused, told, Some(place)).await;
                noted.map_err(unread)?;
                paid = Some(paid_before(next, &refused, false));
                break;
            }
            Ok(TransactionSighting::Mined(inclusion)) if inclusion.success && refused.is_same => {
                paid = Some(paid_before(next, &refused, false));
            }
            _ if refused.is_same => wait = Some(unknown(&refused)),
            _ => {}
        }
    }
    forget(services, &over).await.map_err(unread)?;
    paid.or(wait).map_or(Ok(()), Err)
}

/// Waits while requests that pay something else have the numbers of the same payment, until as many nodes as it takes
/// to end something say that blocks have their transactions: the refused ones could still come in their place.
async fn wait_for_holders(
    services: &Services,
    client: &dyn ChainClient,
    next: &NextRequest<'_>,
    held: BTreeSet<(u64, RequestId)>,
) -> Result<(), RepeatBlocker> {
    let wait = |(number, holder): (u64, RequestId)| {
        RepeatBlocker::Wait(format!(
            "the same payment was refused with nonce {number}, which request {holder} has now, and could still come in \
             its place; waiting until that one is in a block; where it never comes, give it up, or pay another amount"
        ))
    };
    let (mut asked, mut tracked) = (Vec::new(), Vec::new());
    for (number, holder) in held {
        let found = services.request(holder).await.map_err(unread)?;
        let signed = found.as_ref().and_then(|(found, _)| found.state.signed());
        let (Some((found, _)), Some(signed)) = (&found, signed) else {
            return Err(wait((number, holder)));
        };
        // Of these two the chain takes one.
        if pays_exactly_the_same(next, found) {
            continue;
        }
        asked.push((number, holder));
        tracked.push(TrackedTransaction {
            signed: signed.clone(),
            from: next.account.address.clone(),
            sent_at_ms: found.created_at_ms,
        });
    }
    if tracked.is_empty() {
        return Ok(());
    }
    let said = sightings_of_witnesses(client, &tracked, services.now_ms()).await;
    for (held, said) in asked.into_iter().zip(said) {
        if !matches!(
            said,
            Ok(TransactionSighting::Mined(_) | TransactionSighting::Final(_))
        ) {
            return Err(wait(held));
        }
    }
    Ok(())
}
