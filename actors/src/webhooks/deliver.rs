//! Sends what is due, in one process for all: the one that has the lease.
//!
//! A notice waits in the store until its receiver has said 200, or for three days of tries. What comes of a try is one
//! commit, with what is sent after it: so an order holds per transfer, also over crashes, and nothing is lost. A crash
//! between the answer and the commit sends the same once more, under the same id.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use covault_core::{
    deposit::{DepositNetwork, SweepRoute, event::EventId},
    fault::Fault,
    ids::TokenId,
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use reqwest::Url;

use super::{
    budget::DeliveryBudget,
    sender::WebhookSender,
    sign::{WebhookKeys, WebhookSecret, headers},
};
use crate::{
    leases::LeaseScope,
    services::{Services, skip_unreadable},
    store::{
        Batch, CommitError, KeySpace, Precondition, Scan,
        deposit_rows::{self, Delivery, NoticeRow, WebhookSecretRow},
        rows,
    },
};

/// How often it is looked what is due, when nobody says so.
const INTERVAL: Duration = Duration::from_secs(1);
/// For how long a notice is tried, in milliseconds.
const PATIENCE_MS: u64 = 3 * 24 * 60 * 60 * 1_000;
/// Rows that one scan reads.
const PAGE: usize = 1_000;
/// Most characters of a problem that are kept.
const MAX_PROBLEM: usize = 300;
/// How often a commit is tried while rows change.
const TRIES: usize = 8;

/// Where something is sent.
type Destination = (TokenId, DepositNetwork);

pub enum Msg {
    /// It is time to look.
    LookDue,
    /// Something has come to its end.
    Ended {
        destination: Destination,
        id: EventId,
        /// `None`: it was not sent.
        success: Option<bool>,
    },
}

/// The actor.
pub struct WebhookDelivery;

pub struct DeliveryState {
    services: Arc<Services>,
    /// `None`: this process has no key, and sends nothing.
    means: Option<(Arc<WebhookKeys>, Arc<WebhookSender>)>,
    budgets: HashMap<Destination, DeliveryBudget>,
    on_the_way: HashSet<EventId>,
    /// The version of the lease under which the keys were published.
    published: Option<u64>,
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
            on_the_way: HashSet::new(),
            published: None,
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
                success,
            } => {
                state.on_the_way.remove(&id);
                state.budgets.entry(destination).or_default().end(success);
                if success == Some(true) {
                    state.services.notices_due.notify_one();
                }
            }
        }
        Ok(())
    }
}

impl DeliveryState {
    async fn look(&mut self, myself: &ActorRef<Msg>) -> Result<(), Fault> {
        let lease = self.services.held_leases.get(LeaseScope::Webhooks);
        let (Some(lease), Some((keys, sender))) = (lease, self.means.clone()) else {
            return Ok(());
        };
        let version = lease.version();
        let services = Arc::new(self.services.with_lease(lease));
        if self.published != Some(version) {
            publish(&services, &keys).await?;
            self.published = Some(version);
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
                self.send_due(&services, means, myself, destination, &url)
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
        destination: Destination,
        url: &Url,
    ) -> Result<(), Fault> {
        let budget = self.budgets.entry(destination).or_default();
        let mut free = budget.free();
        if free == 0 {
            return Ok(());
        }
        let (token, network) = destination;
        let all = deposit_rows::due_notices(token, network);
        // Those on their way are due too, until they have come to their end.
        let limit = free.saturating_add(budget.on_the_way());
        let due = Scan::prefix(all.space, &all.bytes, limit);
        let now_ms = services.now_ms();
        for (key, _) in services.store.scan(&due).await? {
            let Some((due_ms, id)) = deposit_rows::due_event(&key) else {
                continue;
            };
            if due_ms > now_ms || free == 0 {
                break;
            }
            if !self.on_the_way.insert(id) {
                continue;
            }
            free -= 1;
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
            let myself = myself.clone();
            tokio::spawn(async move {
                let success = match attempt.run().await {
                    Ok(success) => success,
                    Err(fault) => {
                        tracing::warn!(%id, ?fault, "what came of a webhook was not written; it is sent again");
                        None
                    }
                };
                let _ = myself.cast(Msg::Ended {
                    destination,
                    id,
                    success,
                });
            });
        }
        Ok(())
    }
}

/// Shows the keys to whoever asks any process for them.
async fn publish(services: &Services, keys: &WebhookKeys) -> Result<(), Fault> {
    for public in keys.public() {
        let key = deposit_rows::webhook_key(&public);
        if services.store.get(&key).await?.is_some() {
            continue;
        }
        let mut batch = Batch::new();
        batch.put(key, Precondition::Any, rows::encode(&services.now_ms())?);
        services.store.commit(batch).await?;
    }
    Ok(())
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
    /// Whether the receiver has it; `None` when nothing was to be sent.
    async fn run(self) -> Result<Option<bool>, Fault> {
        let services = &self.services;
        let (token, _) = self.destination;
        let row = services
            .load::<NoticeRow>(&deposit_rows::notice(self.id))
            .await?;
        let Some((row, _)) = row.filter(|(row, _)| !row.is_over()) else {
            self.forget().await?;
            return Ok(None);
        };
        let secret = services
            .load::<WebhookSecretRow>(&deposit_rows::webhook_secret(token))
            .await?;
        let (secret, _) = secret.ok_or_else(|| Fault::bug("a webhook without a secret"))?;
        let secret = WebhookSecret::new(secret.secret);
        let began_ms = services.now_ms();
        let body = row.notice.body(self.id)?;
        let headers = headers(&self.keys, &secret, &self.id.to_string(), began_ms, &body)?;
        let sent = self.sender.send(&self.url, &headers, body).await;
        self.write(&sent, began_ms).await?;
        Ok(Some(sent.is_ok()))
    }

    /// Writes what came of it, with what is sent after it.
    async fn write(&self, sent: &Result<(), String>, began_ms: u64) -> Result<(), Fault> {
        for _ in 0..TRIES {
            match self
                .services
                .store
                .commit(self.outcome(sent, began_ms).await?)
                .await
            {
                Ok(()) => return Ok(()),
                // What comes after it was just written, or an operator has changed it.
                Err(CommitError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Fault::unavailable(
            "the rows of a webhook change all the time",
        ))
    }

    async fn outcome(&self, sent: &Result<(), String>, began_ms: u64) -> Result<Batch, Fault> {
        let services = &self.services;
        let (token, network) = self.destination;
        let now_ms = services.now_ms();
        let mut batch = Batch::new();
        let due = deposit_rows::notice_due(token, network, self.due_ms, self.id);
        batch.delete(due, Precondition::Any);
        let key = deposit_rows::notice(self.id);
        let Some((mut row, version)) = services.load::<NoticeRow>(&key).await? else {
            return Ok(batch);
        };
        if row.is_over() {
            return Ok(batch);
        }
        let first_ms = *row.first_tried_at_ms.get_or_insert(began_ms);
        let tries = row.attempts;
        row.attempts = tries.saturating_add(1);
        row.delivery = match sent {
            Ok(()) => Delivery::Delivered { at_ms: now_ms },
            Err(problem) => {
                let problem: String = problem.chars().take(MAX_PROBLEM).collect();
                match now_ms.saturating_sub(first_ms) >= PATIENCE_MS {
                    true => Delivery::Dead {
                        at_ms: now_ms,
                        problem,
                    },
                    false => Delivery::Waiting { problem },
                }
            }
        };
        if row.is_over() {
            if let Delivery::Dead { problem, .. } = &row.delivery {
                tracing::error!(id = %self.id, %token, problem, "a webhook is given up; covault webhook replay sends it again");
            }
            let after = deposit_rows::notice_after(self.id);
            match services.load::<EventId>(&after).await? {
                Some((next, version)) => {
                    batch.delete(after, Precondition::Version(version));
                    let due = deposit_rows::notice_due(token, network, now_ms, next);
                    batch.put(due, Precondition::Any, rows::encode(&())?);
                }
                // Whoever writes one now has to find this one over.
                None => {
                    batch.check(after, Precondition::Absent);
                }
            }
        } else {
            let at_ms = now_ms.saturating_add(self.pause_ms(tries));
            let due = deposit_rows::notice_due(token, network, at_ms, self.id);
            batch.put(due, Precondition::Any, rows::encode(&())?);
        }
        batch.put(key, Precondition::Version(version), rows::encode(&row)?);
        Ok(batch)
    }

    /// The pause after so many tries: anything up to a length that doubles, so that what failed together does not come
    /// back together.
    fn pause_ms(&self, tries: u32) -> u64 {
        let settings = &self.services.settings;
        let longest = settings
            .webhook_retry_first_ms
            .saturating_mul(1 << tries.min(20))
            .min(settings.webhook_retry_most_ms);
        let mut random = [0; 8];
        self.services.entropy.fill(&mut random);
        // At least a twentieth: nothing is sent without a pause.
        let least = longest / 20;
        let span = longest.saturating_sub(least).saturating_add(1);
        least.saturating_add(u64::from_be_bytes(random) % span)
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
