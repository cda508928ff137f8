//! What there is to be told: found in the rows of what waits, of requests, and of nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use covault_core::{
    fault::Fault,
    ids::{RequestId, UserId},
    notification::{Notification, NotificationKind, NotificationSubject},
    order::NodeId,
    request::{RequestState, SigningRequest},
};

use super::audience::NotificationListener;
use crate::{
    lists::READ_CHUNK,
    nodes,
    services::{Services, skip_unreadable},
    store::{KeySpace, Scan, prefix_end, rows},
};

/// The newest of what waits in one vault that are looked at, and those of all vaults: whoever may ask for much must not fill
/// the memory of who tells it. What is older was looked at when it was new.
const OF_ONE_VAULT: usize = 2_000;
const OF_ALL_VAULTS: usize = 50_000;
/// Most requests that one look reads because they are new to it; the next look reads the rest.
const MOST_NEW: usize = 1_000;
/// Most that one person is told of at a time. What comes while so much is open is not told to that person.
const MOST_OPEN: usize = 1_000;
/// How long a node has to be away before anybody is told, in milliseconds.
const AWAY_MS: u64 = 60_000;

/// What a person is told of.
pub type NotificationKey = (UserId, NotificationSubject);

/// What was told, as far as more may come of it: all rows of [`KeySpace::Notification`].
pub type ToldNotifications = BTreeMap<NotificationKey, Notification>;

/// What has changed in it; `None`: it is over.
pub type ToldChanges = BTreeMap<NotificationKey, Option<Notification>>;

/// When a request was looked at while it waited, and when it is to be looked at again; in milliseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LookedAtRequest {
    /// When something was due for it.
    due_ms: u64,
    /// When the next approval of it ends.
    again_ms: u64,
}

/// Looks again and again, and remembers what it has looked at.
#[derive(Default)]
pub struct NotificationWatch {
    /// The requests that were looked at while they waited.
    looked_at: HashMap<RequestId, LookedAtRequest>,
    /// For whom that was.
    audience: Vec<(UserId, u64)>,
    /// Since when each node was found away, in milliseconds since the Unix epoch.
    away_since: HashMap<NodeId, u64>,
}

impl NotificationWatch {
    /// Looks what has changed. What it has found is found again until it is [`NotificationWatch::noted`].
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn look(
        &mut self,
        services: &Services,
        audience: &[NotificationListener],
        told: &ToldNotifications,
    ) -> Result<(ToldChanges, HashMap<RequestId, LookedAtRequest>), Fault> {
        let who: Vec<_> = audience
            .iter()
            .map(|it| (it.user.id, it.target.set_at_ms))
            .collect();
        if self.audience != who {
            // Who is new hears of what waits already.
            self.looked_at.clear();
            self.audience = who;
        }
        let mut changes = ToldChanges::new();
        let is_request = |it: &NotificationSubject| matches!(it, NotificationSubject::Request(_));
        let is_told_of = told.keys().any(|(_, subject)| is_request(subject));
        let waiting = match is_told_of || audience.iter().any(NotificationListener::approves) {
            true => waiting(services).await?,
            false => HashMap::new(),
        };
        self.looked_at.retain(|id, _| waiting.contains_key(id));
        let now_ms = services.now_ms();
        let is_new = |(id, due_ms): &(&RequestId, &u64)| {
            let known = self.looked_at.get(*id);
            known.is_none_or(|known| known.due_ms != **due_ms || known.again_ms <= now_ms)
        };
        let new = waiting.iter().filter(is_new).take(MOST_NEW);
        let new: Vec<_> = new.map(|(id, due_ms)| (*id, *due_ms)).collect();
        let mut looked_at = HashMap::new();
        if audience.iter().any(NotificationListener::approves) {
            looked_at = asked(services, audience, told, &new, &mut changes).await?;
        }
        ended(services, &waiting, told, &mut changes).await?;
        self.nodes(services, audience, told, &mut changes).await?;
        Ok((changes, looked_at))
    }

    /// What a look has found is written down.
    pub fn noted(&mut self, looked_at: HashMap<RequestId, LookedAtRequest>) {
        self.looked_at.extend(looked_at);
    }

    async fn nodes(
        &mut self,
        services: &Services,
        audience: &[NotificationListener],
        told: &ToldNotifications,
        changes: &mut ToldChanges,
    ) -> Result<(), Fault> {
        let operators: Vec<_> = audience.iter().filter(|it| it.operates()).collect();
        let known = told.keys().filter_map(|(user, subject)| match subject {
            NotificationSubject::Node(node) => Some((*user, *node)),
            NotificationSubject::Request(_) => None,
        });
        let known: Vec<_> = known.collect();
        if operators.is_empty() && known.is_empty() {
            self.away_since.clear();
            return Ok(());
        }
        let now_ms = services.now_ms();
        let nodes = nodes::written(services).await?;
        let away = nodes.iter().filter(|node| !node.live).map(|node| node.id);
        let away: BTreeSet<_> = away.collect();
        self.away_since.retain(|node, _| away.contains(node));
        for node in &away {
            let since_ms = *self.away_since.entry(*node).or_insert(now_ms);
            if now_ms.saturating_sub(since_ms) < AWAY_MS {
                continue;
            }
            for operator in &operators {
                let whom = (operator.user.id, NotificationSubject::Node(*node));
                let kind = Some(NotificationKind::NodeAway);
                find(told, changes, whom, None, kind, false, now_ms);
            }
        }
        for (user, node) in known {
            if !away.contains(&node) {
                // The next time is another one.
                changes.insert((user, NotificationSubject::Node(node)), None);
            }
        }
        Ok(())
    }
}

/// The newest requests that wait in each vault, with when something is due for each, in milliseconds since the Unix epoch.
async fn waiting(services: &Services) -> Result<HashMap<RequestId, u64>, Fault> {
    let mut found = HashMap::new();
    let mut from = Some(Vec::new());
    while let Some(begin) = from
        && found.len() < OF_ALL_VAULTS
    {
        let first = Scan {
            from: Some(begin),
            ..Scan::prefix(KeySpace::Awaiting, &[], 1)
        };
        let first = services.store.scan(&first).await?.pop();
        let vault = first.and_then(|(key, _)| key.bytes.first_chunk::<16>().copied());
        let Some(vault) = vault else {
            break;
        };
        let newest = Scan {
            reverse: true,
            ..Scan::prefix(KeySpace::Awaiting, &vault, OF_ONE_VAULT)
        };
        let page = services.store.scan(&newest).await?;
        let keys = page.iter().filter_map(|(key, _)| rows::awaited(key));
        found.extend(keys.map(|(due_ms, id)| (id, due_ms)));
        from = prefix_end(&vault);
    }
    Ok(found)
}

/// Notes what a subject was found like.
fn find(
    told: &ToldNotifications,
    changes: &mut ToldChanges,
    whom: NotificationKey,
    of: Option<&SigningRequest>,
    kind: Option<NotificationKind>,
    is_over: bool,
    now_ms: u64,
) {
    let before = told.get(&whom);
    let new = || Notification::new(of.map(|request| request.vault));
    let found = before.cloned().unwrap_or_else(new);
    let found = found.found(kind, is_over, now_ms);
    if before != Some(&found) {
        let is_done = found.is_done();
        changes.insert(whom, (!is_done).then_some(found));
    }
}

/// Requests that have begun to wait, or do so for something else: those whom their rules name are told. Those that were
/// looked at.
async fn asked(
    services: &Services,
    audience: &[NotificationListener],
    told: &ToldNotifications,
    new: &[(RequestId, u64)],
    changes: &mut ToldChanges,
) -> Result<HashMap<RequestId, LookedAtRequest>, Fault> {
    let mut open: HashMap<UserId, usize> = HashMap::new();
    for (user, _) in told.keys() {
        let count = open.entry(*user).or_default();
        *count = count.saturating_add(1);
    }
    let mut looked_at = HashMap::new();
    for part in new.chunks(READ_CHUNK) {
        let now_ms = services.now_ms();
        let ids: Vec<_> = part.iter().map(|(id, _)| *id).collect();
        let found = requests(services, &ids).await?;
        for (id, due_ms) in part {
            let given = found.get(id).map(|request| request.consent.given.iter());
            let ends = given.into_iter().flatten();
            let ends = ends.map(|given| given.terms.valid_until_ms);
            let again_ms = ends.filter(|end_ms| *end_ms > now_ms).min();
            let looked = LookedAtRequest {
                due_ms: *due_ms,
                again_ms: again_ms.unwrap_or(u64::MAX),
            };
            looked_at.insert(*id, looked);
        }
        for request in found.into_values() {
            let people = audience.iter().filter(|it| it.approves());
            let people = people.filter(|it| it.user.reaches(request.vault));
            for person in people.filter(|it| is_named(&request, &it.user.name)) {
                let whom = (person.user.id, NotificationSubject::Request(request.id));
                let count = open.entry(person.user.id).or_default();
                if !told.contains_key(&whom) {
                    if *count >= MOST_OPEN {
                        continue;
                    }
                    *count = count.saturating_add(1);
                }
                let kind = asked_of(&request, &person.user.name, now_ms);
                find(told, changes, whom, Some(&request), kind, false, now_ms);
            }
        }
    }
    Ok(looked_at)
}

fn is_named(request: &SigningRequest, name: &str) -> bool {
    let mut of = request.consent.rule.of.iter();
    of.any(|it| it.name == name)
}

/// What a person is to be told of a request that waits; `None`: nothing.
pub fn asked_of(request: &SigningRequest, name: &str, now_ms: u64) -> Option<NotificationKind> {
    let consent = &request.consent;
    let waits = matches!(request.state, RequestState::AwaitingApproval { .. });
    // Who may approve may reject, and has this time to do so.
    if waits && consent.held_until_ms > now_ms && is_named(request, name) {
        return Some(NotificationKind::Held);
    }
    let has_given = consent.given.iter().any(|it| it.person == name);
    request
        .asks(name, now_ms)
        .then_some(match consent.wanted.is_some() || has_given {
            false => NotificationKind::Waits,
            true => NotificationKind::WaitsAgain,
        })
}

/// Requests that people were told of, and that wait no longer.
async fn ended(
    services: &Services,
    waiting: &HashMap<RequestId, u64>,
    told: &ToldNotifications,
    changes: &mut ToldChanges,
) -> Result<(), Fault> {
    let mut open: BTreeMap<RequestId, Vec<NotificationKey>> = BTreeMap::new();
    for (whom, known) in told {
        if let NotificationSubject::Request(id) = whom.1
            && !known.is_over
            && !waiting.contains_key(&id)
        {
            open.entry(id).or_default().push(*whom);
        }
    }
    let ids: Vec<_> = open.keys().copied().collect();
    for part in ids.chunks(READ_CHUNK) {
        let now_ms = services.now_ms();
        let found = requests(services, part).await?;
        for id in part {
            let request = found.get(id);
            let (kind, is_over) = match request.map(|it| &it.state) {
                None => (None, true),
                // It waits, among more than a look has read.
                Some(RequestState::AwaitingApproval { .. }) => continue,
                Some(RequestState::Failed { .. }) => (Some(NotificationKind::Failed), true),
                Some(RequestState::Succeeded { .. }) => (Some(NotificationKind::Signed), true),
                Some(RequestState::Signed { .. } | RequestState::Broadcasting { .. }) => {
                    (Some(NotificationKind::Signed), false)
                }
                // It was approved, and nothing is sure yet: a signer may want more.
                Some(
                    RequestState::Received
                    | RequestState::Screened { .. }
                    | RequestState::Preparing { .. }
                    | RequestState::Prepared { .. }
                    | RequestState::Signing { .. }
                    | RequestState::InDoubt { .. },
                ) => (None, false),
            };
            for whom in open.get(id).into_iter().flatten() {
                find(told, changes, *whom, request, kind, is_over, now_ms);
            }
        }
    }
    Ok(())
}

/// Requests by id; without those that are gone or cannot be read.
///
/// # Errors
/// When the store cannot be read.
pub async fn requests(
    services: &Services,
    ids: &[RequestId],
) -> Result<BTreeMap<RequestId, SigningRequest>, Fault> {
    let keys: Vec<_> = ids.iter().map(|id| rows::request(*id)).collect();
    let found = services.load_all::<SigningRequest>(&keys).await?;
    let mut requests = BTreeMap::new();
    for (id, found) in ids.iter().zip(found) {
        let found = skip_unreadable(found, format_args!("request {id}"))?;
        requests.extend(found.flatten().map(|request| (*id, request)));
    }
    Ok(requests)
}
