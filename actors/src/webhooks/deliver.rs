//! Sends what is due, in one process for all: the one that has the lease.
//!
//! A notice waits in the store until its receiver has said 200, or for three days of tries. What comes of a try is one
//! commit, with what is sent after it: so an order holds per transfer, also over crashes, and nothing is lost. A crash
//! between the answer and the commit sends the same once more, under the same id.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use covault_core::{
    deposit::{DepositNetwork, SweepRoute, event::EventId, lifecycle::Stage},
    fault::Fault,
    ids::TokenId,
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use reqwest::Url;

use super::{
    budget::DeliveryBudget,
    published,
    sender::WebhookSender,
    sign::{WebhookKeys, WebhookSecret, headers},
};
use crate::{
    leases::LeaseScope,
    services::{Services, skip_unreadable},
    store::{
        Batch, CommitError, KeySpace, Precondition, Scan,
        deposit_rows::{self, Delivery, NoticeAfterRow, NoticeRow, WebhookSecretRow},
        rows,
    },
};

/// How often it is looked what is due, when nobody says so.
const INTERVAL: Duration = Duration::from_secs(1);
/// For how long a notice is tried, in milliseconds.
const PATIENCE_MS: u64 = 3 * 24 * 60 * 60 * 1_000;
/// How often it is tried at least, whatever the clock says.
const LEAST_TRIES: u32 = 20;
/// How often it is looked for what is due later than anything can be, in milliseconds.
const LATE_INTERVAL_MS: u64 = 60_000;
/// Rows that one scan reads.
const PAGE: usize = 1_000;
/// Pages of what waits that are counted at most.
const MOST_COUNTED_PAGES: usize = 100;
/// Most characters of a problem that are kept.
const MAX_PROBLEM: usize = 300;
/// How often a commit is tried while rows change.
const TRIES: usize = 8;
/// Why nothing was sent.
const NO_SECRET: &str =
    "the token has no webhook secret: make one with covault sweep configure --new-webhook-secret";

/// Where something is sent.
type Destination = (TokenId, DepositNetwork);

pub enum Msg {
    /// It is time to look.
    LookDue,
    /// Something has come to its end.
    Ended {
        destination: Destination,
        id: EventId,
        end: AttemptEnd,
    },
}

/// What came of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The receiver has it.
    Delivered,
    /// The receiver does not have it.
    Refused,
    /// Nothing was sent, and the store says so.
    NotSent,
    /// What came of it was not written: the store is away, or has something that cannot be read.
    NotWritten,
}

/// An event that is not to be begun now.
#[derive(Clone, Copy)]
enum Held {
    /// It is on its way.
    OnTheWay {
        /// How often in a row what came of it was not written.
        failures: u32,
    },
    /// What came of the last tries was not written: it is left alone until then, so that others have their turn.
    Until {
        /// In milliseconds of the monotonic clock.
        at_ms: u64,
        /// How often in a row.
        failures: u32,
    },
}

/// The actor.
pub struct WebhookDelivery;

pub struct DeliveryState {
    services: Arc<Services>,
    /// `None`: this process has no key, and sends nothing.
    means: Option<(Arc<WebhookKeys>, Arc<WebhookSender>)>,
    budgets: HashMap<Destination, DeliveryBudget>,
    held: HashMap<EventId, Held>,
    /// When the keys were last published, in milliseconds of the monotonic clock, and under which version of the lease.
    published: Option<(u64, u64)>,
    /// When it was last looked for what is due too late, in milliseconds of the monotonic clock.
    looked_late_at_ms: Option<u64>,
    is_failing: bool,
}

#[async_trait]
impl Actor for WebhookDelivery {
    type Msg = Msg;
    type State = DeliveryState;
    type Arguments = Arc<Services>;

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        services: Arc<Services>,
    ) -> Result<DeliveryState, ActorProcessingErr> {
        let parts = &services.webhooks;
        let means = match parts.keys.clone().filter(|_| services.runs_vaults) {
            Some(keys) => Some((keys, Arc::new(WebhookSender::new(parts.rules.clone())?))),
            None => None,
        };
        let state = DeliveryState {
            means,
            budgets: HashMap::new(),
            held: HashMap::new(),
            published: None,
            looked_late_at_ms: None,
            is_failing: false,
            services: Arc::clone(&services),
        };
        if state.means.is_some() {
            myself.send_interval(INTERVAL, || Msg::LookDue);
            tokio::spawn(async move {
                loop {
                    services.notices_due.notified().await;
                    if myself.cast(Msg::LookDue).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut DeliveryState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::LookDue => {
                let looked = state.look(&myself).await;
                if let Err(fault) = &looked
                    && !state.is_failing
                {
                    tracing::warn!(?fault, "webhooks cannot be sent now; trying again");
                }
                state.is_failing = looked.is_err();
            }
            Msg::Ended {
                destination,
                id,
                end,
            } => state.ended(destination, id, end),
        }
        Ok(())
    }
}

impl DeliveryState {
    async fn look(&mut self, myself: &ActorRef<Msg>) -> Result<(), Fault> {
        let lease = self.services.held_leases.get(LeaseScope::Webhooks);
        let (Some(lease), Some((keys, sender))) = (lease, self.means.clone()) else {
            self.services.counters.webhooks.lock().waiting = None;
            return Ok(());
        };
        let version = lease.version();
        let services = Arc::new(self.services.with_lease(lease));
        let monotonic_ms = services.monotonic.elapsed_ms();
        let is_known = self.published.is_some_and(|(at_ms, under)| {
            under == version && monotonic_ms.saturating_sub(at_ms) < published::REFRESH_MS
        });
        if !is_known {
            published::publish(&services, &keys).await?;
            self.published = Some((monotonic_ms, version));
        }
        let looks_late = self
            .looked_late_at_ms
            .is_none_or(|at_ms| monotonic_ms.saturating_sub(at_ms) >= LATE_INTERVAL_MS);
        if looks_late {
            self.looked_late_at_ms = Some(monotonic_ms);
            let waiting = waiting(&services).await?;
            services.counters.webhooks.lock().waiting = Some(waiting);
        }
        let mut next = Some(Scan::prefix(KeySpace::SweepRoute, &[], PAGE));
        while let Some(scan) = next {
            let page = services.store.scan(&scan).await?;
            for (key, row) in &page {
                let Some(destination) = rows::split_sweep_route(key) else {
                    continue;
                };
                let route = rows::decode::<SweepRoute>(&row.value);
                let route = skip_unreadable(route, "where webhooks are sent")?;
                let Some(webhook) = route.and_then(|route| route.webhook) else {
                    continue;
                };
                let Ok(url) = Url::parse(&webhook.0) else {
                    continue;
                };
                let means = (&keys, &sender);
                let target = (destination, &url);
                self.send_due(&services, means, myself, target, looks_late)
                    .await?;
            }
            next = scan.rest(&page);
        }
        Ok(())
    }

    /// Sends as much as one receiver may get now.
    async fn send_due(
        &mut self,
        services: &Arc<Services>,
        (keys, sender): (&Arc<WebhookKeys>, &Arc<WebhookSender>),
        myself: &ActorRef<Msg>,
        (destination, url): (Destination, &Url),
        looks_late: bool,
    ) -> Result<(), Fault> {
        for (due_ms, id, failures) in self.due(services, destination, looks_late).await? {
            self.held.insert(id, Held::OnTheWay { failures });
            self.budgets.entry(destination).or_default().begin();
            let attempt = Attempt {
                services: Arc::clone(services),
                keys: Arc::clone(keys),
                sender: Arc::clone(sender),
                destination,
                url: url.clone(),
                id,
                due_ms,
            };
            begin(attempt, myself.clone());
        }
        Ok(())
    }

    /// What is due and may be begun now, with how often in a row what came of it was not written: no more than the
    /// receiver may get.
    async fn due(
        &self,
        services: &Services,
        destination: Destination,
        looks_late: bool,
    ) -> Result<Vec<(u64, EventId, u32)>, Fault> {
        let budget = self.budgets.get(&destination).copied().unwrap_or_default();
        let mut due = Vec::new();
        if budget.free() == 0 {
            return Ok(due);
        }
        let (token, network) = destination;
        let all = deposit_rows::due_notices(token, network);
        // Those on their way are due too, until they have come to their end.
        let limit = budget.free().saturating_add(budget.on_the_way());
        let now_ms = services.now_ms();
        // No pause is longer: a clock that was wrong has said so.
        let latest_ms = now_ms.saturating_add(services.settings.webhook_retry_most_ms);
        let last = deposit_rows::notice_due(token, network, latest_ms, EventId([u8::MAX; 16]));
        let usual = Scan::prefix(all.space, &all.bytes, limit);
        let late = looks_late.then(|| Scan {
            from: Some(last.bytes),
            ..usual.clone()
        });
        for scan in [Some(usual), late].into_iter().flatten() {
            let is_late = scan.from.is_some();
            let mut next = Some(scan);
            while let Some(scan) = next {
                let page = services.store.scan(&scan).await?;
                next = scan.rest(&page);
                for (key, _) in &page {
                    let Some((due_ms, id)) = deposit_rows::due_event(key) else {
                        continue;
                    };
                    if due_ms > now_ms && !is_late {
                        next = None;
                        break;
                    }
                    if let Some(failures) = self.may_begin(id) {
                        due.push((due_ms, id, failures));
                    }
                    if due.len() == budget.free() {
                        return Ok(due);
                    }
                }
            }
        }
        Ok(due)
    }

    /// How often in a row what came of an event was not written; `None` when it is not to be begun now.
    fn may_begin(&self, id: EventId) -> Option<u32> {
        match self.held.get(&id) {
            None => Some(0),
            Some(Held::OnTheWay { .. }) => None,
            Some(Held::Until { at_ms, failures }) => {
                (self.services.monotonic.elapsed_ms() >= *at_ms).then_some(*failures)
            }
        }
    }

    fn ended(&mut self, destination: Destination, id: EventId, end: AttemptEnd) {
        let before = self.held.remove(&id);
        let success = match end {
            AttemptEnd::Delivered => Some(true),
            AttemptEnd::Refused => Some(false),
            AttemptEnd::NotSent => None,
            AttemptEnd::NotWritten => {
                let failures = match before {
                    Some(Held::OnTheWay { failures }) => failures,
                    Some(Held::Until { .. }) | None => 0,
                };
                let pause_ms = pause_ms(&self.services, failures);
                let held = Held::Until {
                    at_ms: self
                        .services
                        .monotonic
                        .elapsed_ms()
                        .saturating_add(pause_ms),
                    failures: failures.saturating_add(1),
                };
                self.held.insert(id, held);
                None
            }
        };
        self.budgets.entry(destination).or_default().end(success);
        if success == Some(true) {
            self.services.notices_due.notify_one();
        }
    }
}

/// How many events are due or wait for their next try.
async fn waiting(services: &Services) -> Result<u64, Fault> {
    let mut waiting = 0_u64;
    let mut next = Some(Scan::prefix(KeySpace::NoticeDue, &[], PAGE));
    for _ in 0..MOST_COUNTED_PAGES {
        let Some(scan) = next else { break };
        let page = services.store.scan(&scan).await?;
        waiting = waiting.saturating_add(u64::try_from(page.len()).unwrap_or(u64::MAX));
        next = scan.rest(&page);
    }
    Ok(waiting)
}

/// Sends one event, and tells the actor what came of it.
fn begin(attempt: Attempt, myself: ActorRef<Msg>) {
    let (destination, id) = (attempt.destination, attempt.id);
    tokio::spawn(async move {
        let end = attempt.run().await.unwrap_or_else(|fault| {
            tracing::warn!(%id, ?fault, "what came of a webhook was not written; it is sent again");
            AttemptEnd::NotWritten
        });
        let _ = myself.cast(Msg::Ended {
            destination,
            id,
            end,
        });
    });
}

/// One try.
struct Attempt {
    services: Arc<Services>,
    keys: Arc<WebhookKeys>,
    sender: Arc<WebhookSender>,
    destination: Destination,
    url: Url,
    id: EventId,
    due_ms: u64,
}

impl Attempt {
    async fn run(self) -> Result<AttemptEnd, Fault> {
        let services = &self.services;
        let (token, _) = self.destination;
        let row = services
            .load::<NoticeRow>(&deposit_rows::notice(self.id))
            .await?;
        let Some((row, _)) = row.filter(|(row, _)| !row.is_over()) else {
            self.forget().await?;
            return Ok(AttemptEnd::NotSent);
        };
        let secret = services
            .load::<WebhookSecretRow>(&deposit_rows::webhook_secret(token))
            .await?;
        let began_ms = services.now_ms();
        let Some((secret, _)) = secret else {
            self.write(&Err(NO_SECRET.into()), began_ms).await?;
            return Ok(AttemptEnd::NotSent);
        };
        let secret = WebhookSecret::new(secret.secret);
        let body = row.notice.body(self.id)?;
        let headers = headers(&self.keys, &secret, &self.id.to_string(), began_ms, &body)?;
        let sent = self.sender.send(&self.url, &headers, body).await;
        self.write(&sent, began_ms).await?;
        Ok(match sent {
            Ok(()) => AttemptEnd::Delivered,
            Err(_) => AttemptEnd::Refused,
        })
    }

    /// Writes what came of it, with what is sent after it.
    async fn write(&self, sent: &Result<(), String>, began_ms: u64) -> Result<(), Fault> {
        for _ in 0..TRIES {
            let (batch, delivery) = self.outcome(sent, began_ms).await?;
            match self.services.store.commit(batch).await {
                Ok(()) => {
                    self.count(delivery.as_ref());
                    return Ok(());
                }
                // What comes after it was just written, or an operator has changed it.
                Err(CommitError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Fault::unavailable(
            "the rows of a webhook change all the time",
        ))
    }

    fn count(&self, delivery: Option<&Delivery>) {
        let mut counts = self.services.counters.webhooks.lock();
        match delivery {
            None => {}
            Some(Delivery::Delivered { .. }) => {
                counts.delivered = counts.delivered.saturating_add(1);
            }
            Some(Delivery::Waiting { .. }) => counts.failed = counts.failed.saturating_add(1),
            Some(Delivery::Dead { .. }) => {
                counts.failed = counts.failed.saturating_add(1);
                counts.dead = counts.dead.saturating_add(1);
            }
        }
    }

    /// What is written, and what the event is then.
    async fn outcome(
        &self,
        sent: &Result<(), String>,
        began_ms: u64,
    ) -> Result<(Batch, Option<Delivery>), Fault> {
        let services = &self.services;
        let (token, network) = self.destination;
        let now_ms = services.now_ms();
        let mut batch = Batch::new();
        let due = deposit_rows::notice_due(token, network, self.due_ms, self.id);
        batch.delete(due, Precondition::Any);
        let key = deposit_rows::notice(self.id);
        let Some((mut row, version)) = services.load::<NoticeRow>(&key).await? else {
            return Ok((batch, None));
        };
        if row.is_over() {
            return Ok((batch, None));
        }
        let first_ms = *row.first_tried_at_ms.get_or_insert(began_ms);
        let tries = row.attempts;
        row.attempts = tries.saturating_add(1);
        row.delivery = match sent {
            Ok(()) => Delivery::Delivered { at_ms: now_ms },
            Err(problem) => {
                let problem: String = problem.chars().take(MAX_PROBLEM).collect();
                let is_over = now_ms.saturating_sub(first_ms) >= PATIENCE_MS;
                match is_over && row.attempts >= LEAST_TRIES {
                    true => Delivery::Dead {
                        at_ms: now_ms,
                        problem,
                    },
                    false => Delivery::Waiting { problem },
                }
            }
        };
        if let Some(over_at_ms) = row.over_at_ms() {
            let age = deposit_rows::notice_age(over_at_ms, self.id);
            batch.put(age, Precondition::Any, rows::encode(&())?);
            if let Delivery::Dead { problem, .. } = &row.delivery {
                tracing::error!(id = %self.id, %token, problem, "a webhook is given up; covault webhook replay sends it again");
            }
            let after = deposit_rows::notice_after(self.id);
            let is_last = row.notice.stage == Stage::Finalized;
            match services.load::<NoticeAfterRow>(&after).await? {
                Some((NoticeAfterRow::Next(next), version)) => {
                    batch.delete(after, Precondition::Version(version));
                    let due = deposit_rows::notice_due(token, network, now_ms, next);
                    batch.put(due, Precondition::Any, rows::encode(&())?);
                }
                // Whoever writes one now finds this one over.
                None if !is_last => {
                    let over = rows::encode(&NoticeAfterRow::Over)?;
                    batch.put(after, Precondition::Absent, over);
                }
                Some((NoticeAfterRow::Over, _)) | None => {}
            }
        } else {
            let at_ms = now_ms.saturating_add(pause_ms(services, tries));
            let due = deposit_rows::notice_due(token, network, at_ms, self.id);
            batch.put(due, Precondition::Any, rows::encode(&())?);
        }
        batch.put(key, Precondition::Version(version), rows::encode(&row)?);
        Ok((batch, Some(row.delivery)))
    }

    /// It is not due any more.
    async fn forget(&self) -> Result<(), Fault> {
        let (token, network) = self.destination;
        let due = deposit_rows::notice_due(token, network, self.due_ms, self.id);
        let mut batch = Batch::new();
        batch.delete(due, Precondition::Any);
        Ok(self.services.store.commit(batch).await?)
    }
}

/// The pause after so many tries, in milliseconds: anything up to a length that doubles, so that what failed together
/// does not come back together.
fn pause_ms(services: &Services, tries: u32) -> u64 {
    let settings = &services.settings;
    let longest = settings
        .webhook_retry_first_ms
        .saturating_mul(1 << tries.min(20))
        .min(settings.webhook_retry_most_ms);
    let mut random = [0; 8];
    services.entropy.fill(&mut random);
    // At least a twentieth: nothing is sent without a pause.
    let least = longest / 20;
    let span = longest.saturating_sub(least).saturating_add(1);
    least.saturating_add(u64::from_be_bytes(random) % span)
}
