//! Notifications: people are told that a request waits for them, what became of it, and that a signer node is away.
//!
//! | file | what |
//! |---|---|
//! | `audience.rs` | who is told, and where |
//! | `watch.rs` | what there is to be told |
//! | `message.rs` | what a message says |
//! | `deliver.rs` | sends it, and writes down what was told |
//!
//! One process does it for all: the one with the lease of the webhooks. What was told is a row, in the same commit as how
//! much the person was sent: a crash between a receiver's answer and that commit tells it once more, under the same id.

mod audience;
mod deliver;
mod message;
mod watch;

pub use audience::view;
pub use deliver::NotificationDelivery;
