//! Transactions that replace others: what may be replaced, and which of several is the last one.
//!
//! All requests that replace one another stand in one row ([`ReplacementRow`]), in the name of the first of them. A
//! replacement is made in the commit that adds it to the row as it was read: two at once are not.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{
    fault::{Class, ExecuteCode, Fault},
    ids::RequestId,
    networks::{Payload, Replacement, Resource, Signed},
    request::{Replaces, RequestState, SigningRequest, TransactionState},
};

use super::{replacement_claim::ReplacementClaim, reservations};
use crate::{
    chain_rpc::ChainRefusal,
    requests::account::ChainAccount,
    services::Services,
    store::rows::{self, ReplacementEntry, ReplacementRow, TransactionRow},
};

/// Most replacements of one transaction: each costs an eighth more than the one before.
const MAX_REPLACEMENTS: usize = 64;
/// Most of them with those that failed.
const MAX_TRIES: usize = 1_024;

/// A first request and those that are to replace its transaction or each other's.
pub struct ReplacementFamily {
    first: RequestId,
    /// The version of the row; 0 when there is none.
    version: u64,
    row: ReplacementRow,
    /// Those of the row, in its order.
    requests: Vec<SigningRequest>,
}

impl ReplacementFamily {
    /// That of a request, which may be any of them.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn load(services: &Services, request: &SigningRequest) -> Result<Self, Fault> {
        let first = request.first_of_place();
        let (row, version) = services
            .load::<ReplacementRow>(&rows::replacement_row(first))
            .await?
            .unwrap_or_default();
        let keys: Vec<_> = row
            .replacements
            .iter()
            .map(|entry| rows::request(entry.request))
            .collect();
        let mut requests = Vec::with_capacity(keys.len());
        for found in services.load_all::<SigningRequest>(&keys).await? {
            requests.push(found?.ok_or_else(|| Fault::bug("a replacement without a request"))?);
        }
        Ok(Self {
            first,
            version,
            row,
            requests,
        })
    }

    /// The replacements that were made after a request of the family, in their order.
    pub fn after(
        &self,
        request: RequestId,
    ) -> impl Iterator<Item = (ReplacementEntry, &SigningRequest)> {
        let all = self.row.replacements.iter().copied().zip(&self.requests);
        all.skip(place_after(&self.row, self.first, request))
    }

    /// The last of them that has not failed; `None` when there is none, so that the first one stands.
    fn newest(&self) -> Option<&SigningRequest> {
        let mut requests = self.requests.iter().rev();
        requests.find(|request| !request.state.is_given_up())
    }

    /// Whether no replacement that has not failed was made after a request of the family.
    pub fn is_newest(&self, request: RequestId) -> bool {
        self.after(request)
            .all(|(_, later)| later.state.is_given_up())
    }

    fn has(&self, request: RequestId) -> bool {
        self.first == request || self.requests.iter().any(|one| one.id == request)
    }
}

/// Where those stand in a row that were made after a request.
fn place_after(row: &ReplacementRow, first: RequestId, request: RequestId) -> usize {
    if request == first {
        return 0;
    }
    let place = row
        .replacements
        .iter()
        .position(|entry| entry.request == request);
    place.map_or(row.replacements.len(), |place| place.saturating_add(1))
}

/// The requests that were made after `request` to replace its transaction, as responses show them.
pub fn replaced_by(row: &ReplacementRow, request: &SigningRequest) -> Vec<String> {
    let later = row.replacements.iter();
    later
        .skip(place_after(row, request.first_of_place(), request.id))
        .map(|entry| entry.request.to_string())
        .collect()
}

/// What is wanted of a replacement.
pub struct ReplacementWish {
    /// By what.
    pub how: Replacement,
    /// The most that it may cost as fee, in the smallest unit of the coin.
    pub most_fee: Option<u128>,
    /// The newest block of the chain, when its policy asks.
    pub at_block: Option<u64>,
}

/// A request that replaces the transaction of another one, before it has an id.
pub struct ReplacementPlan {
    /// What it signs.
    pub payload: Payload,
    /// What it replaces.
    pub replaces: Replaces,
    /// Goes into its first commit.
    pub claim: ReplacementClaim,
}

/// How the transaction of a request is replaced. What is outbid is the last one that was signed for its place in the
/// chain.
///
/// # Errors
/// [`Class::WrongState`] and [`Class::Invalid`] with the path `uuid` where it is not replaced, and why.
pub async fn plan(
    services: &Services,
    request: &SigningRequest,
    wish: ReplacementWish,
) -> Result<ReplacementPlan, Fault> {
    let payload = Payload::decode(&request.payload).map_err(Fault::bug)?;
    if !payload.is_transaction() {
        return Err(Fault::field(
            "uuid",
            "the request signs a message, which is on no chain",
        ));
    }
    let signed = replaceable(&request.state).map_err(wrong_state)?;
    refuse_settled(services, request, "").await?;
    let family = ReplacementFamily::load(services, request).await?;
    // Those that failed have replaced nothing, and must not keep a client from cancelling.
    let is_live = |request: &&SigningRequest| !request.state.is_given_up();
    if family.requests.iter().filter(is_live).count() >= MAX_REPLACEMENTS
        || family.requests.len() >= MAX_TRIES
    {
        return Err(wrong_state(&format!(
            "its transaction was replaced {MAX_REPLACEMENTS} times already"
        )));
    }
    let (mut payload, mut signed) = (payload, signed);
    if let Some(newest) = family.newest().filter(|newest| newest.id != request.id) {
        signed = replaceable(&newest.state).map_err(|problem| {
            wrong_state(&format!(
                "request {} already replaces it, and {problem}",
                newest.id
            ))
        })?;
        refuse_settled(services, newest, &format!("request {}: ", newest.id)).await?;
        let is_cancelled = family.after(request.id).any(|(_, later)| {
            let cancels = |replaces: &Replaces| replaces.how == Replacement::Cancel;
            !later.state.is_given_up() && later.replaces.as_ref().is_some_and(cancels)
        });
        if is_cancelled && wish.how == Replacement::SpeedUp {
            return Err(wrong_state(&format!(
                "request {} cancels it; name that one to speed it up",
                newest.id
            )));
        }
        payload = Payload::decode(&newest.payload).map_err(Fault::bug)?;
    }
    let account = ChainAccount::of(request, &payload);
    refuse_foreign(services, request, &family, &account, signed).await?;
    refuse_parent(services, &account, signed).await?;
    let payload = request
        .network
        .rules()
        .replacement(&payload, signed, wish.how)
        .map_err(|fault| match fault.class() {
            Class::Invalid => fault.at("uuid"),
            _ => fault,
        })?;
    Ok(ReplacementPlan {
        payload,
        replaces: Replaces {
            request: request.id,
            first: family.first,
            how: wish.how,
            most_fee: wish.most_fee,
        },
        claim: ReplacementClaim {
            first: family.first,
            version: family.version,
            row: family.row,
            at_block: wish.at_block,
        },
    })
}

/// The transaction of a request, when it is in the world or on its way there; else why it is not replaced.
fn replaceable(state: &RequestState) -> Result<&Signed, &'static str> {
    match state {
        RequestState::Succeeded {
            signed: Some(signed),
            sent: true,
            ..
        }
        | RequestState::Broadcasting { signed, .. } => Ok(signed),
        RequestState::Signed {
            signed: Some(signed),
            draft,
            ..
        } if draft.broadcast => Ok(signed),
        RequestState::Signed { .. } | RequestState::Succeeded { .. } => Err(
            "its transaction was handed over (broadcastTx=false), and is its client's to replace",
        ),
        RequestState::InDoubt { .. } => {
            Err("it was given up, and whether it has a transaction is not known")
        }
        RequestState::Failed { .. } => Err("it has failed, and has no transaction to replace"),
        RequestState::Prepared { .. } | RequestState::Signing { .. } => {
            Err("it is being signed; try again when it is sent")
        }
        RequestState::Received
        | RequestState::Screened { .. }
        | RequestState::AwaitingApproval { .. }
        | RequestState::Preparing { .. } => {
            Err("it is not signed yet; rejectSigningRequest ends it")
        }
    }
}

/// Refuses a transaction that a block has, or that never comes. Also one whose first try to be sent has not come to
/// anything yet: a node may refuse it, so that its number is free for others.
async fn refuse_settled(
    services: &Services,
    request: &SigningRequest,
    prefix: &str,
) -> Result<(), Fault> {
    if !request.state.is_final()
        && services
            .load::<String>(&rows::delay(request.id))
            .await?
            .is_none()
    {
        return Err(wrong_state(&format!(
            "{prefix}it is just being sent; try again"
        )));
    }
    let known = services
        .load::<TransactionRow>(&rows::transaction(request.id))
        .await?;
    let problem = match known.map(|(row, _)| row.state) {
        None | Some(TransactionState::Pending) => return Ok(()),
        Some(TransactionState::Mined(to)) => format!("block {} has its transaction", to.block),
        Some(TransactionState::Final(to)) => {
            format!("its transaction is final, in block {}", to.block)
        }
        Some(TransactionState::Replaced { by: Some(hash) }) => {
            format!("{hash} has replaced its transaction and is final")
        }
        Some(TransactionState::Replaced { by: None }) => {
            "another transaction has replaced its transaction and is final".to_owned()
        }
        Some(TransactionState::Dropped) => "its transaction has expired".to_owned(),
        Some(TransactionState::Partial(_)) => "some of its transactions are final".to_owned(),
    };
    Err(wrong_state(&format!("{prefix}{problem}")))
}

/// Refuses a transaction whose number or inputs a client has given to a later request of its own: which of the two is
/// to be replaced is for the client to say.
async fn refuse_foreign(
    services: &Services,
    request: &SigningRequest,
    family: &ReplacementFamily,
    account: &ChainAccount,
    signed: &Signed,
) -> Result<(), Fault> {
    for user in users(services, account, signed).await? {
        if family.has(user) {
            continue;
        }
        let Some((other, _)) = services.request(user).await? else {
            continue;
        };
        let is_later = (other.created_at_ms, other.id) > (request.created_at_ms, request.id);
        if is_later && !other.state.is_given_up() {
            return Err(wrong_state(&format!(
                "request {user} was made later and uses the same nonce or inputs; name that one"
            )));
        }
    }
    Ok(())
}

/// Refuses a transaction whose change another payment of the wallet spends: without it that one could never come.
async fn refuse_parent(
    services: &Services,
    account: &ChainAccount,
    signed: &Signed,
) -> Result<(), Fault> {
    let outputs = account.network.rules().sent_outputs(signed)?;
    match child(services, account, &outputs, &BTreeMap::new()).await? {
        None => Ok(()),
        Some((_, child)) => Err(wrong_state(&format!(
            "request {child} spends what its transaction pays back to the wallet, and could not come without it; \
             speed up that one, which pays for both"
        ))),
    }
}

/// The outputs that are gone when `request` takes the place of those that use `shared` already: of each the newest
/// that is signed, as earlier ones have been replaced.
///
/// # Errors
/// When the store cannot be read.
pub async fn replaced_outputs(
    services: &Services,
    account: &ChainAccount,
    shared: impl IntoIterator<Item = &Resource>,
    request: RequestId,
) -> Result<BTreeSet<Resource>, Fault> {
    let mut outputs = BTreeSet::new();
    for resource in shared {
        let mut newest: Option<SigningRequest> = None;
        for user in reservations::users(services, account, resource).await? {
            let Some((user, _)) = services.request(user).await? else {
                continue;
            };
            let age = |request: &SigningRequest| (request.created_at_ms, request.id);
            let stands = user.id != request && user.state.signed().is_some();
            if stands && newest.as_ref().is_none_or(|other| age(&user) > age(other)) {
                newest = Some(user);
            }
        }
        if let Some(signed) = newest.as_ref().and_then(|newest| newest.state.signed()) {
            outputs.extend(account.network.rules().sent_outputs(signed)?);
        }
    }
    Ok(outputs)
}

/// The outputs of transactions whose place another request of the account takes, or has taken, and which that is.
/// Nodes offer them until they have heard of it, and nothing that spends them could come. Of several the one counts
/// that a block has, else the newest; not one that was handed over, as its client knows when it is sent.
///
/// # Errors
/// When the store cannot be read.
pub async fn outputs_replaced_by_others(
    services: &Services,
    account: &ChainAccount,
) -> Result<BTreeMap<Resource, RequestId>, Fault> {
    let rivals = reservations::rivals(services, account).await?;
    let ids: BTreeSet<RequestId> = rivals.iter().flatten().copied().collect();
    let requests: Vec<_> = ids.iter().map(|id| rows::request(*id)).collect();
    let requests = services.load_all::<SigningRequest>(&requests).await?;
    let places: Vec<_> = ids.iter().map(|id| rows::transaction(*id)).collect();
    let places = services.load_all::<TransactionRow>(&places).await?;
    let mut live = BTreeMap::new();
    for (request, place) in requests.into_iter().zip(places) {
        let Some(request) = request? else {
            continue;
        };
        let state = place?.map(|row| row.state);
        let in_block = matches!(
            state,
            Some(TransactionState::Mined(_) | TransactionState::Final(_))
        );
        let is_handed_over = matches!(request.state, RequestState::Succeeded { sent: false, .. });
        if in_block || !(is_handed_over || request.state.is_given_up()) {
            live.insert(request.id, ((in_block, request.created_at_ms), request));
        }
    }
    let mut outputs = BTreeMap::new();
    for rivals in rivals {
        let of_each = || rivals.iter().filter_map(|id| live.get(id));
        let Some((_, winner)) = of_each().max_by_key(|(rank, request)| (*rank, request.id)) else {
            continue;
        };
        for (_, loser) in of_each().filter(|(_, request)| request.id != winner.id) {
            if let Some(signed) = loser.state.signed() {
                let made = account.network.rules().sent_outputs(signed)?.into_iter();
                outputs.extend(made.map(|output| (output, winner.id)));
            }
        }
    }
    Ok(outputs)
}

/// Refuses what would take the place of a transaction whose outputs another payment of the wallet spends, or the new one
/// itself. `reserved` is what others are given that is not on disk yet.
///
/// # Errors
/// [`Class::Invalid`], and when the store cannot be read.
pub async fn refuse_eviction(
    services: &Services,
    account: &ChainAccount,
    named: &[Resource],
    outputs: &BTreeSet<Resource>,
    reserved: &BTreeMap<Resource, RequestId>,
) -> Result<(), Fault> {
    let refused = |problem: String| Err(Fault::field("btcSendNative.inputs", problem));
    if let Some(Resource::Object(name)) = named.iter().find(|name| outputs.contains(*name)) {
        return refused(format!(
            "{name} is made by a transaction that spends another one of them, and is gone when that is replaced"
        ));
    }
    match child(services, account, outputs, reserved).await? {
        Some((Resource::Object(name), child)) => refused(format!(
            "a transaction that uses one of them makes {name}, which request {child} spends and could not come \
             without; speed up that one, which pays for both"
        )),
        _ => Ok(()),
    }
}

/// A request that spends one of these outputs and may still come, and which it spends.
async fn child<'a>(
    services: &Services,
    account: &ChainAccount,
    outputs: impl IntoIterator<Item = &'a Resource>,
    reserved: &BTreeMap<Resource, RequestId>,
) -> Result<Option<(&'a Resource, RequestId)>, Fault> {
    for output in outputs {
        let mut spenders = reservations::users(services, account, output).await?;
        spenders.extend(reserved.get(output));
        for spender in spenders {
            let Some((request, _)) = services.request(spender).await? else {
                continue;
            };
            let known = services
                .load::<TransactionRow>(&rows::transaction(spender))
                .await?;
            let never_comes = matches!(request.state, RequestState::Failed { .. })
                || known.is_some_and(|(row, _)| {
                    matches!(
                        row.state,
                        TransactionState::Replaced { .. } | TransactionState::Dropped
                    )
                });
            if !never_comes {
                return Ok(Some((output, spender)));
            }
        }
    }
    Ok(None)
}

/// The requests that use the number of a transaction, or one of its inputs.
async fn users(
    services: &Services,
    account: &ChainAccount,
    signed: &Signed,
) -> Result<BTreeSet<RequestId>, Fault> {
    let rules = account.network.rules();
    let mut used = rules.sent_inputs(signed)?;
    used.extend(
        rules
            .sent_number(signed, &account.address)?
            .map(Resource::Nonce),
    );
    let mut users = BTreeSet::new();
    for resource in used {
        users.extend(reservations::users(services, account, &resource).await?);
    }
    Ok(users)
}

fn wrong_state(problem: &str) -> Fault {
    Fault::new(Class::WrongState, problem).at("uuid")
}

/// The last request whose transaction was signed to take the place of this one's: this one is not sent again then.
///
/// # Errors
/// When the store cannot be read.
pub async fn successor(
    services: &Services,
    request: &SigningRequest,
) -> Result<Option<RequestId>, Fault> {
    let family = ReplacementFamily::load(services, request).await?;
    let signed = family
        .after(request.id)
        .filter(|(_, later)| later.state.signed().is_some());
    Ok(signed.last().map(|(entry, _)| entry.request))
}

/// The hash of the transaction of ours that a block has in the place of this request's, as far as the store knows.
///
/// # Errors
/// When the store cannot be read.
pub async fn winner(
    services: &Services,
    request: RequestId,
    account: &ChainAccount,
    signed: &Signed,
) -> Result<Option<String>, Fault> {
    let Some((request, _)) = services.request(request).await? else {
        return Ok(None);
    };
    let family = ReplacementFamily::load(services, &request).await?;
    let mut rivals = users(services, account, signed).await?;
    rivals.insert(family.first);
    rivals.extend(family.requests.iter().map(|one| one.id));
    let has_block = |state: &TransactionState| {
        matches!(
            state,
            TransactionState::Mined(_) | TransactionState::Final(_)
        )
    };
    hash_of_one(services, rivals, request.id, has_block).await
}

/// As [`winner`], of a request whose transaction nobody has here: another one that has used what it `uses`. Its block is
/// final: the request fails by that, and what is in a block may be the word of one node.
///
/// # Errors
/// As there.
pub async fn rival(
    services: &Services,
    request: RequestId,
    account: &ChainAccount,
    uses: &[Resource],
) -> Result<Option<String>, Fault> {
    let mut rivals = BTreeSet::new();
    for resource in uses {
        rivals.extend(reservations::users(services, account, resource).await?);
    }
    let is_final = |state: &TransactionState| matches!(state, TransactionState::Final(_));
    hash_of_one(services, rivals, request, is_final).await
}

/// The hash of the transaction of one of these requests but `request` that is there as `such` says.
async fn hash_of_one(
    services: &Services,
    rivals: BTreeSet<RequestId>,
    request: RequestId,
    such: impl Fn(&TransactionState) -> bool,
) -> Result<Option<String>, Fault> {
    for rival in rivals {
        if rival == request {
            continue;
        }
        let known = services
            .load::<TransactionRow>(&rows::transaction(rival))
            .await?;
        if !known.is_some_and(|(row, _)| such(&row.state)) {
            continue;
        }
        let rival = services.request(rival).await?;
        if let Some(hash) = rival.as_ref().and_then(|(rival, _)| rival.state.tx_hash()) {
            return Ok(Some(hash.to_owned()));
        }
    }
    Ok(None)
}

/// The other request which uses the same and has the transaction with this hash.
///
/// # Errors
/// When the store cannot be read.
pub async fn user_with_hash(
    services: &Services,
    request: RequestId,
    account: &ChainAccount,
    uses: &[Resource],
    hash: &str,
) -> Result<Option<SigningRequest>, Fault> {
    for resource in uses {
        for user in reservations::users(services, account, resource).await? {
            let found = services.request(user).await?.map(|(user, _)| user);
            let found = found.filter(|user| user.state.tx_hash() == Some(hash));
            if user != request && found.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(None)
}

/// Why a transaction is not sent again that a later request, `successor`, replaces: its client does not want it any
/// more. Whether it has reached a node nevertheless is for the nodes to say.
pub fn superseded(successor: RequestId) -> ChainRefusal {
    ChainRefusal {
        reason: format!("request {successor} replaces it"),
        code: ExecuteCode::Unspecified,
    }
}
