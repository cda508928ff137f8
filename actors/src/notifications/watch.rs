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
    store::{KeySpace, Scan, rows},
};

/// Rows of what waits that are read at once.
const PAGE: usize = 1_000;
/// How long a node has to be away before anybody is told, in milliseconds.
const AWAY_MS: u64 = 60_000;

/// What a person is told of.
pub type NotificationKey = (UserId, NotificationSubject);

/// What was told, as far as more may come of it: all rows of [`KeySpace::Notification`].
pub type ToldNotifications = BTreeMap<NotificationKey, Notification>;

/// What has changed in it; `None`: it is over.
pub type ToldChanges = BTreeMap<NotificationKey, Option<Notification>>;

/// Looks again and again, and remembers what it has looked at.
#[derive(Default)]
pub struct NotificationWatch {
    /// The requests that were looked at while they waited, and when something was due for each, in milliseconds since
    /// the Unix epoch.
    looked_at: HashMap<RequestId, u64>,
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
    ) -> Result<(ToldChanges, HashMap<RequestId, u64>), Fault> {
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
        let is_new = |(id, due_ms): &(&RequestId, &u64)| self.looked_at.get(*id) != Some(*due_ms);
        let new: Vec<_> = waiting.iter().filter(is_new).map(|(id, _)| *id).collect();
        if audience.iter().any(NotificationListener::approves) {
            asked(services, audience, told, &new, &mut changes).await?;
        }
        ended(services, &waiting, told, &mut changes).await?;
        self.nodes(services, audience, told, &mut changes).await?;
        Ok((changes, waiting))
    }

    /// What a look has found is written down.
    pub fn noted(&mut self, waiting: HashMap<RequestId, u64>) {
        self.looked_at = waiting;
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

/// All requests that wait, with when something is due for each, in milliseconds since the Unix epoch.
async fn waiting(services: &Services) -> Result<HashMap<RequestId, u64>, Fault> {
    let mut found = HashMap::new();
    let mut next = Some(Scan::prefix(KeySpace::Awaiting, &[], PAGE));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        let keys = page.iter().filter_map(|(key, _)| rows::awaited(key));
        found.extend(keys.map(|(due_ms, id)| (id, due_ms)));
        next = scan.rest(&page);
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

/// Requests that have begun to wait, or do so for something else: those whom their rules name are told.
async fn asked(
    services: &Services,
    audience: &[NotificationListener],
    told: &ToldNotifications,
    new: &[RequestId],
    changes: &mut ToldChanges,
) -> Result<(), Fault> {
    for part in new.chunks(READ_CHUNK) {
        let now_ms = services.now_ms();
        for request in requests(services, part).await?.into_values() {
            let names = &request.consent.rule.of;
            let is_named =
                |it: &&NotificationListener| names.iter().any(|of| of.name == it.user.name);
            let people = audience.iter().filter(|it| it.approves());
            let people = people.filter(|it| it.user.reaches(request.vault));
            for person in people.filter(is_named) {
                let whom = (person.user.id, NotificationSubject::Request(request.id));
                let kind = asked_of(&request, &person.user.name, now_ms);
                find(told, changes, whom, Some(&request), kind, false, now_ms);
            }
        }
    }
    Ok(())
}

/// What a person is to be told of a request that waits; `None`: it does not wait for this person.
pub fn asked_of(request: &SigningRequest, name: &str, now_ms: u64) -> Option<NotificationKind> {
    request
        .asks(name, now_ms)
        .then_some(match request.consent.wanted {
            None => NotificationKind::Waits,
            Some(_) => NotificationKind::WaitsAgain,
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
                Some(RequestState::Failed { .. }) => (Some(NotificationKind::Failed), true),
                Some(RequestState::Succeeded { .. }) => (Some(NotificationKind::Signed), true),
                Some(RequestState::Signed { .. } | RequestState::Broadcasting { .. }) => {
                    (Some(NotificationKind::Signed), false)
                }
                // It was approved, and nothing is sure yet: a signer may want more.
                Some(
                    RequestState::Received
                    | RequestState::Screened { .. }
                    | RequestState::AwaitingApproval { .. }
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
