//! Webhooks: what the owners of addresses are told of transfers, sent until their receivers have it.
//!
//! | file | what |
//! |---|---|
//! | `guard.rs` | which addresses may be sent to |
//! | `sign.rs` | keys, secrets and the headers with the signatures |
//! | `published.rs` | which public keys are shown |
//! | `sender.rs` | one POST |
//! | `budget.rs` | how much is sent to one receiver at a time |
//! | `attempt.rs` | one try, and its outcome |
//! | `deliver.rs` | what is due |
//! | `expiry.rs` | what was told long ago |
//! | `view.rs` | what operators see of it |

mod attempt;
mod budget;
mod deliver;
pub mod expiry;
mod guard;
mod published;
mod sender;
mod sign;
mod view;

use std::sync::Arc;

use crate::mail::Mailer;

pub(crate) use attempt::pause_ms;
pub use deliver::WebhookDelivery;
pub use guard::TargetRules;
pub use published::shown_keys;
pub use sender::WebhookSender;
pub use sign::{WebhookKeys, WebhookSecret, headers, key_set};
pub use view::{DeliveryFilter, event_message};

/// What webhooks and notifications are sent with.
#[derive(Clone, Default)]
pub struct WebhookParts {
    /// The service's own keys; without one nothing is sent.
    pub keys: Option<Arc<WebhookKeys>>,
    /// Which addresses may be sent to.
    pub rules: TargetRules,
    /// Sends mail to people; `None`: nobody is told by mail.
    pub mailer: Option<Arc<Mailer>>,
}
