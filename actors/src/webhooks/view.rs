//! Webhooks as operators see them.

use covault_core::{deposit::event::EventId, fault::Fault, schema::admin};

use crate::store::deposit_rows::{NoticeDelivery, NoticeRow};

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryFilter(Option<&'static str>);

impl DeliveryFilter {
    /// By the name of a state; all of them without one.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming `state`.
    pub fn parse(state: &str) -> Result<Self, Fault> {
        let all = ["waiting", "delivered", "dead"];
        match all.into_iter().find(|name| *name == state) {
            None if !state.is_empty() => {
                Err(Fault::field("state", "must be waiting, delivered or dead"))
            }
            found => Ok(Self(found)),
        }
    }

    /// Whether it is one of them.
    pub fn takes(self, delivery: &NoticeDelivery) -> bool {
        self.0.is_none_or(|name| name == name_of(delivery))
    }
}

fn name_of(delivery: &NoticeDelivery) -> &'static str {
    match delivery {
        NoticeDelivery::Waiting { .. } => "waiting",
        NoticeDelivery::Delivered { .. } => "delivered",
        NoticeDelivery::Dead { .. } => "dead",
    }
}

/// An event.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when its body cannot be written.
pub fn event_message(id: EventId, row: &NoticeRow) -> Result<admin::WebhookEvent, Fault> {
    let problem = match &row.delivery {
        NoticeDelivery::Waiting { problem } | NoticeDelivery::Dead { problem, .. } => {
            problem.clone()
        }
        NoticeDelivery::Delivered { .. } => String::new(),
    };
    Ok(admin::WebhookEvent {
        id: id.to_string(),
        token: row.notice.transfer.owner.token.to_string(),
        body: String::from_utf8(row.notice.body(id)?).map_err(Fault::bug)?,
        state: name_of(&row.delivery).to_owned(),
        attempts: row.attempts,
        problem,
        created_at_ms: row.created_at_ms,
    })
}
