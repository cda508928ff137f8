//! One try to send an event, and its outcome: one commit, with what is sent after it.

use std::{sync::Arc, time::Duration};

use covault_core::{
    backoff::Backoff,
    deposit::{DepositNetwork, event::EventId, lifecycle::Stage},
    fault::Fault,
    ids::TokenId,
};
use reqwest::Url;

use super::{
    sender::WebhookSender,
    sign::{WebhookKeys, WebhookSecret, headers},
};
use crate::{
    services::Services,
    store::{
        Batch, CommitError, Precondition,
        deposit_rows::{self, NoticeAfterRow, NoticeDelivery, NoticeRow, WebhookSecretRow},
        rows,
    },
};

/// For how long a notice is tried, in milliseconds.
const PATIENCE_MS: u64 = 3 * 24 * 60 * 60 * 1_000;
/// How often it is tried at least, whatever the clock says.
const LEAST_TRIES: u32 = 20;
/// Most characters of a problem that are kept.
const MAX_PROBLEM: usize = 300;
/// How often a commit is tried while rows change.
const TRIES: usize = 8;
/// Why nothing was sent.
const NO_SECRET: &str =
    "the token has no webhook secret: make one with covault sweep configure --new-webhook-secret";

/// Where something is sent.
pub(super) type Destination = (TokenId, DepositNetwork);

/// The outcome of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The receiver has it.
    Delivered,
    /// The receiver does not have it.
    Refused,
    /// Nothing was sent, and the store says so.
    NotSent,
    /// Its outcome could not be stored: the store is away, or has something that cannot be read.
    NotWritten,
}

/// One try.
pub(super) struct DeliveryAttempt {
    pub(super) services: Arc<Services>,
    pub(super) keys: Arc<WebhookKeys>,
    pub(super) sender: Arc<WebhookSender>,
    pub(super) destination: Destination,
    pub(super) url: Url,
    pub(super) id: EventId,
    pub(super) due_ms: u64,
}

impl DeliveryAttempt {
    pub(super) async fn run(self) -> Result<AttemptEnd, Fault> {
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

    /// Writes its outcome, with what is sent after it.
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

    fn count(&self, delivery: Option<&NoticeDelivery>) {
        let mut counts = self.services.counters.webhooks.lock();
        match delivery {
            None => {}
            Some(NoticeDelivery::Delivered { .. }) => {
                counts.delivered = counts.delivered.saturating_add(1);
            }
            Some(NoticeDelivery::Waiting { .. }) => counts.failed = counts.failed.saturating_add(1),
            Some(NoticeDelivery::Dead { .. }) => {
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
    ) -> Result<(Batch, Option<NoticeDelivery>), Fault> {
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
            Ok(()) => NoticeDelivery::Delivered { at_ms: now_ms },
            Err(problem) => {
                let problem: String = problem.chars().take(MAX_PROBLEM).collect();
                let is_over = now_ms.saturating_sub(first_ms) >= PATIENCE_MS;
                match is_over && row.attempts >= LEAST_TRIES {
                    true => NoticeDelivery::Dead {
                        at_ms: now_ms,
                        problem,
                    },
                    false => NoticeDelivery::Waiting { problem },
                }
            }
        };
        if let Some(over_at_ms) = row.over_at_ms() {
            let age = deposit_rows::notice_age(over_at_ms, self.id);
            batch.put(age, Precondition::Any, rows::encode(&())?);
            if let NoticeDelivery::Dead { problem, .. } = &row.delivery {
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
                // Anyone who writes one now finds this one over.
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

    /// It is no longer due.
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
pub(crate) fn pause_ms(services: &Services, tries: u32) -> u64 {
    let settings = &services.settings;
    let [first, most] = [
        settings.webhook_retry_first_ms,
        settings.webhook_retry_most_ms,
    ];
    let [first, most] = [first, most].map(Duration::from_millis);
    let longest = Backoff::new(first, most).pause(tries).as_millis();
    let longest = u64::try_from(longest).unwrap_or(u64::MAX);
    let mut random = [0; 8];
    services.entropy.fill(&mut random);
    // At least a twentieth: nothing is sent without a pause.
    let least = longest / 20;
    let span = longest.saturating_sub(least).saturating_add(1);
    least.saturating_add(u64::from_be_bytes(random) % span)
}
