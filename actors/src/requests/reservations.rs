//! What requests reserve: nonces of accounts, outputs and objects, whole transactions. Each reservation is a
//! row that is written in the commit that stores the built transaction, and that no other request may hold.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{
    fault::Fault,
    ids::RequestId,
    networks::{Payload, Resource},
    request::{Draft, RequestState, SigningRequest, TransactionState},
};

use crate::{
    requests::account::ChainAccount,
    services::Services,
    store::{
        Key, KeySpace, Scan,
        rows::{self, TransactionRow},
    },
};

/// Numbers that are looked up at once.
const PAGE: usize = 512;

/// The row of a claim whose holder changes.
pub struct PassedClaim {
    /// It.
    pub key: Key,
    /// Its version: nobody else has changed it.
    pub version: u64,
    /// Who has it from now on; `None`: nobody.
    pub holder: Option<RequestId>,
}

/// What a draft holds. What the client named and another request holds is not in it.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when the draft is not what the network's rules made.
pub fn of(
    request: &SigningRequest,
    payload: &Payload,
    draft: &Draft,
) -> Result<BTreeSet<Resource>, Fault> {
    let chain = request.network.rules();
    let mut reservations: BTreeSet<_> = chain
        .reservations(payload, &draft.unsigned)?
        .into_iter()
        .collect();
    reservations
        .retain(|resource| draft.claim.is_some() || !matches!(resource, Resource::Nonce(_)));
    reservations.retain(|resource| !draft.shared.contains(resource));
    Ok(reservations)
}

/// What a draft uses and another request holds: numbers, outputs, objects.
///
/// # Errors
/// As [`of`].
pub fn replaced(
    request: &SigningRequest,
    payload: &Payload,
    draft: &Draft,
) -> Result<Vec<Resource>, Fault> {
    let chain = request.network.rules();
    let reservations = chain.reservations(payload, &draft.unsigned)?.into_iter();
    Ok(reservations
        .filter(|resource| match resource {
            Resource::Nonce(_) => draft.claim.is_none(),
            Resource::Object(_) | Resource::TxHash(_) => draft.shared.contains(resource),
        })
        .collect())
}

/// What of `named`, which a payload names, is held by another request whose transaction exists: it may be replaced.
/// With the holder and the version of its row. One that is not signed yet could still end without a transaction, and
/// what it lets go of would be nobody's.
///
/// # Errors
/// When the store cannot be read.
pub async fn replaceable(
    services: &Services,
    account: &ChainAccount,
    named: &[Resource],
    by: RequestId,
) -> Result<BTreeMap<Resource, (RequestId, u64)>, Fault> {
    let mut replaceable = BTreeMap::new();
    for resource in named {
        let key = rows::claim(account, resource);
        let Some((holder, version)) = services.load::<RequestId>(&key).await? else {
            continue;
        };
        if holder == by {
            continue;
        }
        let Some((request, _)) = services.request(holder).await? else {
            continue;
        };
        let is_over = request.state.is_given_up();
        if is_over || request.state.signed().is_some() {
            replaceable.insert(resource.clone(), (holder, version));
        }
    }
    Ok(replaceable)
}

/// What of `reservations` requests hold on disk, and which; with a number also those that follow it.
pub async fn held(
    services: &Services,
    account: &ChainAccount,
    reservations: &[Resource],
) -> Result<BTreeMap<Resource, RequestId>, Fault> {
    let mut held = BTreeMap::new();
    let is_number = |resource: &&Resource| matches!(resource, Resource::Nonce(_));
    let others: Vec<_> = reservations.iter().filter(|it| !is_number(it)).collect();
    let keys: Vec<_> = others.iter().map(|it| rows::claim(account, it)).collect();
    for (resource, holder) in others.into_iter().zip(services.load_all(&keys).await?) {
        if let Some(holder) = holder? {
            held.insert(resource.clone(), holder);
        }
    }
    for resource in reservations.iter().filter(is_number) {
        if let Resource::Nonce(from) = resource {
            let numbers = held_numbers(services, account, *from).await?;
            let numbers = numbers.into_iter();
            held.extend(numbers.map(|(number, holder)| (Resource::Nonce(number), holder)));
        }
    }
    Ok(held)
}

/// The numbers from one on that requests hold, and which.
async fn held_numbers(
    services: &Services,
    account: &ChainAccount,
    from: u64,
) -> Result<Vec<(u64, RequestId)>, Fault> {
    let hot = &services.held_leases.hot_numbers;
    let name = rows::account(account);
    if let Some(known) = hot.find(&name, from) {
        return Ok(known);
    }
    let scan = Scan {
        from: Some(rows::claim(account, &Resource::Nonce(from)).bytes),
        ..Scan::prefix(KeySpace::NonceReservation, &name, PAGE)
    };
    let read = services.lease_term.as_ref();
    let read = read.and_then(|lease_term| hot.begin(name, lease_term));
    let mut numbers = Vec::new();
    let page = services.store.scan(&scan).await?;
    for (key, row) in &page {
        if let Some(number) = rows::claimed_nonce(key) {
            numbers.push((number, rows::decode(&row.value)?));
        }
    }
    if let Some(read) = read.filter(|_| page.len() < PAGE) {
        read.keep(from, &numbers);
    }
    Ok(numbers)
}

/// The requests that have used something: the one that holds it, and those that were to replace it. At most
/// [`PAGE`] of these.
///
/// # Errors
/// When the store cannot be read.
pub async fn users(
    services: &Services,
    account: &ChainAccount,
    resource: &Resource,
) -> Result<Vec<RequestId>, Fault> {
    let claim = rows::claim(account, resource);
    let mut users: Vec<_> = holder(services, &claim).await?.into_iter().collect();
    let all = rows::replacements(account, resource);
    let all = Scan::prefix(all.space, &all.bytes, PAGE);
    for (_, row) in services.store.scan(&all).await? {
        users.push(rows::decode(&row.value)?);
    }
    Ok(users)
}

/// The requests that use one output or object, of each that was to be taken from the request that holds it.
///
/// # Errors
/// When the store cannot be read.
pub async fn rivals(
    services: &Services,
    account: &ChainAccount,
) -> Result<BTreeSet<BTreeSet<RequestId>>, Fault> {
    let mut users: BTreeMap<Resource, BTreeSet<RequestId>> = BTreeMap::new();
    let all = rows::replaced_objects(account);
    let mut scan = Some(Scan::prefix(all.space, &all.bytes, PAGE));
    while let Some(asked) = scan {
        let page = services.store.scan(&asked).await?;
        for (key, row) in &page {
            if let Some(resource) = rows::replaced_object(account, key) {
                let of_it = users.entry(resource).or_default();
                of_it.insert(rows::decode(&row.value)?);
            }
        }
        scan = asked.rest(&page);
    }
    let claims: Vec<_> = users.keys().map(|it| rows::claim(account, it)).collect();
    let holders = services.load_all::<RequestId>(&claims).await?;
    for (of_it, holder) in users.values_mut().zip(holders) {
        of_it.extend(holder?);
    }
    Ok(users.into_values().collect())
}

/// What becomes of the claims of a request whose transaction its client gives up: nobody has them, or the newest of
/// those that were to replace the transaction.
///
/// # Errors
/// When the store cannot be read, and [`covault_core::fault::Class::Bug`] when the request cannot.
pub async fn given_up(
    services: &Services,
    request: &SigningRequest,
    draft: &Draft,
) -> Result<Vec<PassedClaim>, Fault> {
    let payload = Payload::decode(&request.payload).map_err(Fault::bug)?;
    let account = ChainAccount::of(request, &payload);
    let chain = request.network.rules();
    let mut passed_on = Vec::new();
    for resource in chain.reservations(&payload, &draft.unsigned)? {
        let key = rows::claim(&account, &resource);
        let Some((holder, version)) = services.load::<RequestId>(&key).await? else {
            continue;
        };
        // Its time may have come, and another one has it.
        if holder != request.id {
            continue;
        }
        let holder = match resource {
            Resource::Nonce(_) | Resource::Object(_) => {
                successor(services, &account, &resource, request.id).await?
            }
            Resource::TxHash(_) => None,
        };
        passed_on.push(PassedClaim {
            key,
            version,
            holder,
        });
    }
    Ok(passed_on)
}

/// The claims on numbers that come free because no transaction with them ever comes, with the versions of their rows.
/// `ended` are the requests whose transactions are found to be over now, by no block taking them in their time.
///
/// # Errors
/// When the store cannot be read.
pub async fn ended(
    services: &Services,
    ended: &BTreeMap<RequestId, (ChainAccount, u64)>,
) -> Result<BTreeMap<Key, u64>, Fault> {
    let mut free = BTreeMap::new();
    for (account, number) in ended.values() {
        let number = Resource::Nonce(*number);
        let key = rows::claim(account, &number);
        let Some((_, version)) = services.load::<RequestId>(&key).await? else {
            continue;
        };
        let mut is_free = true;
        // One that was to replace another may still come.
        for user in users(services, account, &number).await? {
            is_free = is_free && (ended.contains_key(&user) || is_void(services, user).await?);
        }
        if is_free {
            free.insert(key, version);
        }
    }
    Ok(free)
}

/// Whether a request's transaction is known never to come.
async fn is_void(services: &Services, request: RequestId) -> Result<bool, Fault> {
    let row = services
        .load::<TransactionRow>(&rows::transaction(request))
        .await?;
    if row.is_some_and(|(row, _)| row.state == TransactionState::Dropped) {
        return Ok(true);
    }
    let request = services.request(request).await?;
    Ok(request.is_some_and(|(request, _)| matches!(request.state, RequestState::Failed { .. })))
}

/// The newest request but this one that has a transaction which uses the same, or is to get one.
///
/// # Errors
/// When the store cannot be read.
pub async fn successor(
    services: &Services,
    account: &ChainAccount,
    resource: &Resource,
    but: RequestId,
) -> Result<Option<RequestId>, Fault> {
    let mut newest = None;
    for user in users(services, account, resource).await? {
        if user == but {
            continue;
        }
        let Some((request, _)) = services.request(user).await? else {
            continue;
        };
        if !request.state.is_given_up() {
            newest = newest.max(Some((request.created_at_ms, user)));
        }
    }
    Ok(newest.map(|(_, user)| user))
}

/// Which request holds the row of a claim.
pub async fn holder(services: &Services, key: &Key) -> Result<Option<RequestId>, Fault> {
    Ok(services.load(key).await?.map(|(holder, _)| holder))
}

/// Whether the request that holds something is given up: it sends no transaction, and what it holds goes to anyone who gets it
/// of the chain.
///
/// # Errors
/// When the store cannot be read.
pub async fn is_given_up(services: &Services, holder: RequestId) -> Result<bool, Fault> {
    let holder = services.request(holder).await?;
    Ok(holder.is_some_and(|(holder, _)| holder.state.is_given_up()))
}

/// Why something cannot be used, in words that a person can act on.
pub fn describe_holder(resource: &Resource, holder: RequestId) -> String {
    match resource {
        Resource::Nonce(nonce) => format!("nonce {nonce} is already reserved by request {holder}"),
        Resource::Object(name) => format!("{name} is already reserved by request {holder}"),
        Resource::TxHash(_) => {
            format!("an identical transaction is already pending in request {holder}")
        }
    }
}
