//! Sends what people are to be told, one message to each at a time, and writes down what was told.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use covault_core::{
    fault::Fault,
    ids::{RequestId, UserId},
    notification::{
        Notification, NotificationForm, NotificationSubject, NotificationTarget, SendPermit,
    },
};
use lettre::Address;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use reqwest::Url;

use super::{
    audience::{self, NotificationListener},
    message::{NotificationContent, NotificationMessage, NotificationWriter},
    watch::{NotificationKey, NotificationWatch, ToldChanges, ToldNotifications},
};
use crate::{
    leases::LeaseScope,
    mail::Mailer,
    services::{Services, skip_unreadable},
    store::{Batch, CommitError, KeySpace, Precondition, Scan, notification_rows, rows},
    webhooks::{WebhookKeys, WebhookSender, pause_ms},
};

/// Rows that are read at once, and that one commit changes at most.
const PAGE: usize = 500;
/// Most messages that are on their way: each is a socket, and a question to the resolver.
const MOST_ON_THE_WAY: usize = 32;
/// Most things that one message tells.
const MOST_AT_ONCE: usize = 400;
/// Most characters of a problem that are kept.
const MAX_PROBLEM: usize = 300;

pub enum Msg {
    /// It is time to look.
    LookDue,
    /// A message has come to its end.
    Ended(Box<SentNotification>),
}

/// A message that was sent, or was tried to be.
pub struct SentNotification {
    user: UserId,
    /// Where it was sent is that which was set then.
    set_at_ms: u64,
    content: NotificationContent,
    result: Result<(), String>,
}

/// The actor.
pub struct NotificationDelivery;

pub struct NotificationDeliveryState {
    services: Arc<Services>,
    /// `None`: this process has no key, and sends nothing.
    means: Option<(Arc<WebhookKeys>, Arc<WebhookSender>)>,
    /// The version of the lease under which `told` was read.
    under: Option<u64>,
    told: ToldNotifications,
    /// `told` is to be read again.
    is_stale: bool,
    audience: BTreeMap<UserId, NotificationListener>,
    watch: NotificationWatch,
    on_the_way: BTreeSet<UserId>,
    /// What was sent and could not be written down: written before anything else is sent to that person.
    unwritten: BTreeMap<UserId, SentNotification>,
    is_failing: bool,
}

#[async_trait]
impl Actor for NotificationDelivery {
    type Msg = Msg;
    type State = NotificationDeliveryState;
    type Arguments = Arc<Services>;

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        services: Arc<Services>,
    ) -> Result<NotificationDeliveryState, ActorProcessingErr> {
        let parts = &services.webhooks;
        let means = match parts.keys.clone().filter(|_| services.runs_vaults) {
            Some(keys) => Some((keys, Arc::new(WebhookSender::new(parts.rules.clone())?))),
            None => None,
        };
        if means.is_some() {
            myself.cast(Msg::LookDue)?;
        }
        Ok(NotificationDeliveryState {
            services,
            means,
            under: None,
            told: ToldNotifications::new(),
            is_stale: true,
            audience: BTreeMap::new(),
            watch: NotificationWatch::default(),
            on_the_way: BTreeSet::new(),
            unwritten: BTreeMap::new(),
            is_failing: false,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut NotificationDeliveryState,
    ) -> Result<(), ActorProcessingErr> {
        let done = match message {
            Msg::LookDue => {
                let looked = state.look(&myself).await;
                let pause = state.services.settings.notify_interval_ms;
                myself.send_after(Duration::from_millis(pause), || Msg::LookDue);
                looked
            }
            Msg::Ended(sent) => state.ended(*sent, &myself).await,
        };
        if let Err(fault) = &done {
            if !state.is_failing {
                tracing::warn!(?fault, "failed to send notifications; retrying");
            }
            // What is known may not be what is stored.
            state.is_stale = true;
        }
        state.is_failing = done.is_err();
        Ok(())
    }
}

impl NotificationDeliveryState {
    /// The services under the lease; `None`: another process has it.
    fn here(&self) -> Option<(Services, u64)> {
        let lease = self.services.held_leases.get(LeaseScope::Webhooks)?;
        let version = lease.version();
        Some((self.services.with_lease(lease), version))
    }

    async fn look(&mut self, myself: &ActorRef<Msg>) -> Result<(), Fault> {
        let Some((services, version)) = self.here() else {
            self.under = None;
            self.told.clear();
            self.services.counters.notifications.lock().waiting = None;
            return Ok(());
        };
        if self.under != Some(version) {
            // What was sent before is told again by whoever had the lease in between, or was.
            self.unwritten.clear();
            self.watch = NotificationWatch::default();
            self.is_stale = true;
        }
        if self.is_stale {
            self.told = read(&services).await?;
            self.under = Some(version);
            self.is_stale = false;
        }
        let audience = audience::all(&services).await?;
        let (changes, waiting) = self.watch.look(&services, &audience, &self.told).await?;
        self.change(&services, changes).await?;
        self.watch.noted(waiting);
        self.give_up(&services).await?;
        self.audience = audience.into_iter().map(|it| (it.user.id, it)).collect();
        let pending = self
            .told
            .iter()
            .filter(|((user, _), it)| it.pending.is_some() && self.audience.contains_key(user));
        let pending = u64::try_from(pending.count()).unwrap_or(u64::MAX);
        services.counters.notifications.lock().waiting = Some(pending);
        let users: Vec<_> = self.audience.keys().copied().collect();
        for user in users {
            self.send_to(&services, user, myself).await?;
        }
        Ok(())
    }

    /// Writes changes down, and then knows them.
    async fn change(&mut self, services: &Services, changes: ToldChanges) -> Result<(), Fault> {
        let mut changes = changes.into_iter().peekable();
        while changes.peek().is_some() {
            let part: Vec<_> = changes.by_ref().take(PAGE).collect();
            let mut batch = Batch::new();
            for (whom, row) in &part {
                put(&mut batch, whom, row.as_ref())?;
            }
            services.store.commit(batch).await?;
            part.into_iter()
                .for_each(|(whom, row)| self.know(whom, row));
        }
        Ok(())
    }

    fn know(&mut self, whom: NotificationKey, row: Option<Notification>) {
        match row {
            Some(row) => self.told.insert(whom, row),
            None => self.told.remove(&whom),
        };
    }

    /// Gives up what was tried for too long.
    async fn give_up(&mut self, services: &Services) -> Result<(), Fault> {
        let now_ms = services.now_ms();
        let overdue = self.told.iter().filter_map(|(whom, row)| {
            let after = row.after(row.overdue(now_ms)?);
            Some((*whom, (!after.is_done()).then_some(after)))
        });
        let overdue: ToldChanges = overdue.collect();
        if overdue.is_empty() {
            return Ok(());
        }
        let count = u64::try_from(overdue.len()).unwrap_or(u64::MAX);
        self.change(services, overdue).await?;
        tracing::warn!(
            count,
            "notifications are given up: their receivers did not take them for three days"
        );
        let mut counts = services.counters.notifications.lock();
        counts.given_up = counts.given_up.saturating_add(count);
        Ok(())
    }

    /// Sends a person the next message, if there is one and it may be sent now.
    async fn send_to(
        &mut self,
        services: &Services,
        user: UserId,
        myself: &ActorRef<Msg>,
    ) -> Result<(), Fault> {
        if let Some(sent) = self.unwritten.remove(&user) {
            self.write(services, sent).await?;
        }
        let Some((keys, sender)) = self.means.clone() else {
            return Ok(());
        };
        let is_busy = self.on_the_way.contains(&user) || self.on_the_way.len() >= MOST_ON_THE_WAY;
        let listener = self.audience.get(&user).cloned().filter(|_| !is_busy);
        let Some(listener) = listener else {
            return Ok(());
        };
        let place =
            NotificationPlace::of(&listener.target, sender, services.webhooks.mailer.clone());
        let Some(place) = place else {
            return Ok(());
        };
        let writer = NotificationWriter {
            services,
            user: &listener.user,
            target: &listener.target,
        };
        while let Some(content) = self.next(&listener, services.now_ms()) {
            let told = &self.told;
            let known = |subject: &NotificationSubject| told.get(&(user, *subject)).cloned();
            if let Some(message) = writer.write(&content, known, &keys).await? {
                self.on_the_way.insert(user);
                let set_at_ms = listener.target.set_at_ms;
                let sent = SentNotification {
                    user,
                    set_at_ms,
                    content,
                    // Also when it panics: its place must be given back.
                    result: Err("it was not sent".into()),
                };
                begin(sent, place, message, myself.clone());
                return Ok(());
            }
            // It is no longer so: nobody is told.
            let now_ms = services.now_ms();
            let parts = content.parts().into_iter();
            let changes = parts.filter_map(|(subject, _)| {
                let row = told.get(&(user, subject))?.found(None, false, now_ms);
                Some(((user, subject), (!row.is_done()).then_some(row)))
            });
            let changes = changes.collect();
            self.change(services, changes).await?;
        }
        Ok(())
    }

    /// What a person is to be told next.
    fn next(&self, listener: &NotificationListener, now_ms: u64) -> Option<NotificationContent> {
        let NotificationTarget { is_new, pace, .. } = &listener.target;
        let permit = pace.permit(now_ms);
        if permit == SendPermit::Later {
            return None;
        }
        if *is_new {
            return Some(NotificationContent::Hello);
        }
        let mut pending: Vec<_> = of(&self.told, listener.user.id)
            .filter_map(|(subject, row)| row.pending.map(|(kind, at)| (at, subject, kind)))
            .collect();
        pending.sort_unstable();
        let mut parts = pending
            .into_iter()
            .map(|(_, subject, kind)| (subject, kind));
        if permit == SendPermit::Single {
            return parts
                .next()
                .map(|(subject, kind)| NotificationContent::One(subject, kind));
        }
        let parts: Vec<_> = parts.take(MOST_AT_ONCE).collect();
        match parts.as_slice() {
            [] => None,
            [(subject, kind)] => Some(NotificationContent::One(*subject, *kind)),
            _ => Some(NotificationContent::Several(parts)),
        }
    }

    async fn ended(&mut self, sent: SentNotification, myself: &ActorRef<Msg>) -> Result<(), Fault> {
        let user = sent.user;
        self.on_the_way.remove(&user);
        let here = self
            .here()
            .filter(|(_, version)| self.under == Some(*version));
        let Some((services, _)) = here else {
            // Whoever has the lease now tells it once more.
            return Ok(());
        };
        if self.is_stale {
            self.unwritten.insert(user, sent);
            return Ok(());
        }
        self.write(&services, sent).await?;
        self.send_to(&services, user, myself).await
    }

    /// Writes the outcome of a message down: what was told, and how it went, in one commit.
    async fn write(&mut self, services: &Services, sent: SentNotification) -> Result<(), Fault> {
        match self.outcome(services, &sent).await {
            Ok((changes, target)) => {
                self.count(&sent);
                changes
                    .into_iter()
                    .for_each(|(whom, row)| self.know(whom, row));
                let listener = self.audience.get_mut(&sent.user);
                if let (Some(target), Some(listener)) = (target, listener) {
                    listener.target = target;
                }
                Ok(())
            }
            Err(fault) => {
                self.unwritten.insert(sent.user, sent);
                Err(fault)
            }
        }
    }

    async fn outcome(
        &self,
        services: &Services,
        sent: &SentNotification,
    ) -> Result<(ToldChanges, Option<NotificationTarget>), Fault> {
        let SentNotification {
            user,
            set_at_ms,
            content,
            result,
        } = sent;
        let now_ms = services.now_ms();
        let mut changes = ToldChanges::new();
        if result.is_ok() {
            for (subject, kind) in content.parts() {
                let whom = (*user, subject);
                if let Some(row) = self.told.get(&whom) {
                    let after = row.after(kind);
                    changes.insert(whom, (!after.is_done()).then_some(after));
                }
            }
        }
        let mut batch = Batch::new();
        for (whom, row) in &changes {
            put(&mut batch, whom, row.as_ref())?;
        }
        let key = notification_rows::notification_target(*user);
        let target = services.load::<NotificationTarget>(&key).await?;
        // Where it was sent may be another one by now.
        let target = target.filter(|(target, _)| target.set_at_ms == *set_at_ms);
        let target = target.map(|(mut target, version)| {
            target.pace = match result {
                Ok(()) => target.pace.delivered(now_ms),
                Err(problem) => {
                    let problem = problem.chars().take(MAX_PROBLEM).collect();
                    let pause_ms = pause_ms(services, target.pace.failures);
                    target.pace.failed(problem, now_ms, pause_ms)
                }
            };
            target.is_new &= result.is_err() || *content != NotificationContent::Hello;
            (target, version)
        });
        if let Some((target, version)) = &target {
            batch.put(key, Precondition::Version(*version), rows::encode(target)?);
        }
        match services.store.commit(batch).await {
            Ok(()) => Ok((changes, target.map(|(target, _)| target))),
            Err(CommitError::Conflict(_)) => Err(Fault::unavailable(
                "where a person is told was changed at the same time",
            )),
            Err(error) => Err(error.into()),
        }
    }

    fn count(&self, sent: &SentNotification) {
        let mut counts = self.services.counters.notifications.lock();
        match &sent.result {
            Ok(()) => counts.delivered = counts.delivered.saturating_add(1),
            Err(problem) => {
                counts.failed = counts.failed.saturating_add(1);
                let user = sent.user;
                tracing::debug!(%user, problem, "a notification did not arrive; retrying");
            }
        }
    }
}

/// What one person was told, and is to be told.
fn of(
    told: &ToldNotifications,
    user: UserId,
) -> impl Iterator<Item = (NotificationSubject, &Notification)> {
    let first = NotificationSubject::Request(RequestId::from_bytes([0; 16]));
    let rows = told.range((user, first)..);
    let rows = rows.take_while(move |((of, _), _)| *of == user);
    rows.map(|((_, subject), row)| (*subject, row))
}

fn put(batch: &mut Batch, whom: &NotificationKey, row: Option<&Notification>) -> Result<(), Fault> {
    let key = notification_rows::notification(whom.0, &whom.1);
    // Nobody else writes them: the lease is part of the commit.
    match row {
        Some(row) => batch.put(key, Precondition::Any, rows::encode(row)?),
        None => batch.delete(key, Precondition::Any),
    };
    Ok(())
}

/// All that was told, as far as more may come of it.
async fn read(services: &Services) -> Result<ToldNotifications, Fault> {
    let mut told = ToldNotifications::new();
    let mut next = Some(Scan::prefix(KeySpace::Notification, &[], PAGE));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        for (key, row) in &page {
            let Some(whom) = notification_rows::split_notification(key) else {
                continue;
            };
            let row = rows::decode::<Notification>(&row.value);
            let row = skip_unreadable(row, "what a person was told")?;
            told.extend(row.map(|row| (whom, row)));
        }
        next = scan.rest(&page);
    }
    Ok(told)
}

/// Sends a message, and tells the actor its outcome.
fn begin(
    sent: SentNotification,
    place: NotificationPlace,
    message: NotificationMessage,
    myself: ActorRef<Msg>,
) {
    let outcome = NotificationEnd {
        myself,
        sent: Some(sent),
    };
    tokio::spawn(async move {
        // All of it, and not its field alone, is of this task.
        let mut outcome = outcome;
        let result = place.send(message).await;
        if let Some(sent) = &mut outcome.sent {
            sent.result = result;
        }
    });
}

/// Where one person is told, and what sends it there.
enum NotificationPlace {
    Url(Url, Arc<WebhookSender>),
    /// `None`: this process sends no mail any more.
    Address(Address, Option<Arc<Mailer>>),
}

impl NotificationPlace {
    fn of(
        target: &NotificationTarget,
        sender: Arc<WebhookSender>,
        mailer: Option<Arc<Mailer>>,
    ) -> Option<Self> {
        let url = Url::parse(&target.url.0).ok()?;
        Some(match target.form {
            NotificationForm::Mail => Self::Address(url.path().parse().ok()?, mailer),
            NotificationForm::Webhook(_) | NotificationForm::Slack => Self::Url(url, sender),
        })
    }

    async fn send(&self, message: NotificationMessage) -> Result<(), String> {
        match (self, message) {
            (Self::Url(url, sender), NotificationMessage::Post { headers, body }) => {
                sender.send(url, &headers, body).await
            }
            (Self::Address(to, Some(mailer)), NotificationMessage::Mail(mail)) => {
                mailer.send(to, &mail).await
            }
            (Self::Address(_, None), NotificationMessage::Mail(_)) => {
                Err("no mail server is named (notify.mail_server)".to_owned())
            }
            (Self::Url(..), NotificationMessage::Mail(_))
            | (Self::Address(..), NotificationMessage::Post { .. }) => {
                Err("a message of another form than its place".to_owned())
            }
        }
    }
}

/// Tells the actor the outcome of a message, once it is dropped.
struct NotificationEnd {
    myself: ActorRef<Msg>,
    sent: Option<SentNotification>,
}

impl Drop for NotificationEnd {
    fn drop(&mut self) {
        if let Some(sent) = self.sent.take() {
            // It may have ended.
            let _ = self.myself.cast(Msg::Ended(Box::new(sent)));
        }
    }
}
