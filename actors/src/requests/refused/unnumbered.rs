//! Networks whose accounts do not number their transactions.
//!
//! Bitcoin and Sui: the same payment made again spends an output or object of the refused transaction, or what a
//! transaction makes that spends one; the chain takes one of the two. TRON, Solana, Sonic SVM, and Sui where an address
//! balance pays: it waits until as many nodes as it takes to end something say that the time of the refused one is over.

use std::collections::BTreeSet;

use covault_core::{
    fault::Fault,
    ids::RequestId,
    moment::utc,
    networks::{ChainData, Network, Resource},
    request::{SigningRequest, TransactionState},
};

use super::{
    ASKED, MEMORY_MS, NextRequest, Refused, RepeatBlocker, all, forget, is_any, is_same, note_late,
    paid_before, pays_the_same, read_page, settle_late, unread,
};
use crate::{
    chain_rpc::{ChainClient, TrackedTransaction, TransactionSighting, sightings_of_witnesses},
    requests::reservations,
    services::Services,
    store::rows::{self, TransactionRow},
};

/// So many transactions that wait on each other may lie between a refused one and the output that is spent: nodes keep no
/// more in their mempools.
const MOST_STEPS: usize = 25;

/// A payment that nodes refused, that is the same as the one that is to be built, and that can still come.
pub struct EarlierPayment {
    request: RequestId,
    tx_hash: String,
    /// What it uses up; never empty.
    inputs: BTreeSet<Resource>,
}

/// What was refused and pays the same as a request, and can still come. Forgets what can no longer.
///
/// # Errors
/// [`RepeatBlocker`] when the request may not be built now: one has come, or can come whatever the request spends. Also when
/// the store cannot be read.
pub async fn still_open(
    services: &Services,
    client: &dyn ChainClient,
    next: &NextRequest<'_>,
) -> Result<Vec<EarlierPayment>, RepeatBlocker> {
    let rules = next.account.network.rules();
    if rules.is_numbered() || !next.payload.is_transaction() {
        return Ok(Vec::new());
    }
    if !is_any(services, next.account).await.map_err(unread)? {
        return Ok(Vec::new());
    }
    let same = same_rows(services, next).await.map_err(unread)?;
    let open = settle(services, client, next, same).await?;
    let mut earlier = Vec::with_capacity(open.len());
    for refused in &open {
        let inputs: BTreeSet<_> = inputs_of(next, refused).into_iter().collect();
        if inputs.is_empty() {
            return Err(waits_for_its_time(services, next, refused));
        }
        earlier.push(EarlierPayment {
            request: refused.request,
            tx_hash: refused.row.signed.tx_hash.clone(),
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
                if pays_the_same(next, &found) {
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
        request, tx_hash, ..
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
         {why}: paid now it could be paid twice; waiting until a block has one that spends the same"
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

/// Those that pay the same. Forgets the others that can no longer come: the transaction of a request here has used what
/// they spend for good, or their time was over long ago by this machine's clock.
async fn same_rows(services: &Services, next: &NextRequest<'_>) -> Result<Vec<Refused>, Fault> {
    let mut same = Vec::new();
    let mut scan = Some(all(next.account));
    while let Some(asked) = scan {
        let (found, rest) = read_page(services, asked).await?;
        scan = rest;
        let inputs = found.iter().map(|refused| inputs_of(next, refused));
        let inputs: Vec<Vec<Resource>> = inputs.collect();
        let used = used_for_good(services, next, inputs.iter().flatten()).await?;
        let keys: Vec<_> = found.iter().map(|it| rows::request(it.request)).collect();
        let requests = services.load_all::<SigningRequest>(&keys).await?;
        let mut over = Vec::new();
        for ((mut refused, inputs), request) in found.into_iter().zip(inputs).zip(requests) {
            if inputs.iter().any(|input| used.contains(input)) {
                over.push(refused);
                continue;
            }
            refused.is_same = is_same(next, refused.request, request);
            if refused.is_same {
                same.push(refused);
            } else if is_long_over(services, next, &refused) {
                over.push(refused);
            }
        }
        forget(services, &over).await?;
    }
    Ok(same)
}

/// What a refused transaction uses up. One that cannot be read is as if it used nothing: it is waited for.
fn inputs_of(next: &NextRequest<'_>, refused: &Refused) -> Vec<Resource> {
    let inputs = next
        .account
        .network
        .rules()
        .exclusive_inputs(&refused.row.signed);
    inputs.unwrap_or_else(|fault| {
        tracing::error!(request = %refused.request, ?fault, "a refused transaction cannot be read");
        Vec::new()
    })
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

/// When a refused transaction can no longer come, by this machine's clock; `None` where that never is.
fn end_ms(next: &NextRequest<'_>, refused: &Refused) -> Option<u64> {
    let (rules, signed) = (next.account.network.rules(), &refused.row.signed);
    let end = rules.valid_until(signed).ok().flatten();
    let life = rules.longest_life_ms(signed).ok().flatten();
    end.map(|end| end.time_ms)
        .or_else(|| Some(refused.row.sent_at_ms.saturating_add(life?)))
}

/// Whether its time was over more than a day ago, by the longest that the network gives it.
fn is_long_over(services: &Services, next: &NextRequest<'_>, refused: &Refused) -> bool {
    let life = next
        .account
        .network
        .rules()
        .longest_life_ms(&refused.row.signed);
    let end = life.ok().flatten().map(|life| {
        let sent_at_ms = refused.row.sent_at_ms;
        sent_at_ms.saturating_add(life).saturating_add(MEMORY_MS)
    });
    end.is_some_and(|end_ms| end_ms <= services.now_ms())
}

fn waits_for_its_time(
    services: &Services,
    next: &NextRequest<'_>,
    refused: &Refused,
) -> RepeatBlocker {
    let (id, hash) = (refused.request, &refused.row.signed.tx_hash);
    let until = match end_ms(next, refused) {
        Some(end_ms) if end_ms > services.now_ms() => format!("until {}", utc(end_ms)),
        Some(_) => "as long as nodes do not say that its time is over".to_owned(),
        None => "until its nonce is used".to_owned(),
    };
    RepeatBlocker::Wait(format!(
        "the same payment of request {id}, which nodes refused, can still come with the transaction {hash} {until}: paid \
         now it could be paid twice"
    ))
}

/// Whether it counts that nodes say of a refused transaction that it never comes. They are asked in several calls; behind
/// one address there may be several nodes, and one that is behind says that it is nowhere while another one says that its time
/// is over. Who keeps it may send it in that moment. So they have to say so for some time, or its end be that long ago.
fn never_comes(services: &Services, next: &NextRequest<'_>, refused: &Refused) -> bool {
    let network = next.account.network;
    // Their answers fit together by themselves: by blocks that were put on another one, or by the slot of each.
    if matches!(network, Network::Bitcoin | Network::Solana) {
        return true;
    }
    let settling_ms = services.settings.settling_ms;
    let end = network.rules().valid_until(&refused.row.signed);
    let end_ms = end.ok().flatten().map(|end| end.time_ms);
    let is_past = |end_ms: u64| end_ms.saturating_add(settling_ms) <= services.now_ms();
    // Counted in any case.
    let is_said = services.refused_void.add(refused.request, settling_ms);
    is_said || end_ms.is_some_and(is_past)
}

/// Finds out what became of refused transactions that pay the same: forgets those that never come, and returns those
/// that can.
async fn settle(
    services: &Services,
    client: &dyn ChainClient,
    next: &NextRequest<'_>,
    same: Vec<Refused>,
) -> Result<Vec<Refused>, RepeatBlocker> {
    let now_ms = services.now_ms();
    let mut over = Vec::new();
    let (mut unsettled, mut paid) = settle_late(next, same, &mut over, now_ms);
    let mut open = unsettled.split_off(unsettled.len().min(ASKED));
    let tracked: Vec<_> = unsettled.iter().map(|it| it.tracked(next)).collect();
    let said = match (&paid, tracked.is_empty()) {
        (None, false) => sightings_of_witnesses(client, &tracked, now_ms).await,
        _ => Vec::new(),
    };
    for (refused, said) in unsettled.into_iter().zip(said) {
        if !matches!(
            said,
            Ok(TransactionSighting::Replaced(_) | TransactionSighting::Expired)
        ) {
            services.refused_void.clear(refused.request);
        }
        let (hash, id) = (&refused.row.signed.tx_hash, refused.request);
        // Whether it has come for good, and where.
        let late = match said {
            Ok(TransactionSighting::Replaced(_) | TransactionSighting::Expired)
                if never_comes(services, next, &refused) =>
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
                Some((true, Some(TransactionRow::settled(inclusion, now_ms))))
            }
            // Some of several.
            Ok(TransactionSighting::Partial(_)) => Some((true, None)),
            Ok(TransactionSighting::Mined(inclusion)) if inclusion.success => {
                paid = Some(paid_before(next, &refused, true));
                None
            }
            _ if is_long_over(services, next, &refused) => Some((false, None)),
            _ => None,
        };
        if let Some((is_certain, place)) = late {
            let noted = note_late(services, next, &refused, is_certain, place).await;
            noted.map_err(unread)?;
            paid = Some(paid_before(next, &refused, is_certain));
            break;
        }
        open.push(refused);
    }
    forget(services, &over).await.map_err(unread)?;
    paid.map_or(Ok(open), Err)
}
