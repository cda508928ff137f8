//! Covault's pure domain: the schema, payload kinds, chains, signing orders and state machines.
//!
//! Nothing here opens a socket, reads a clock or draws randomness; those come through the
//! traits in [`port`]. Everything can therefore be replayed with a seed.

pub mod amount;
pub mod approval;
pub mod attest;
pub mod audit;
pub mod backoff;
pub mod batch;
pub mod deposit;
pub mod derive;
pub mod fault;
pub mod field;
pub mod ids;
pub mod moment;
pub mod networks;
pub mod notification;
pub mod order;
pub mod port;
pub mod rate;
pub mod request;
pub mod schema;
pub mod scheme;
pub mod signature;
#[cfg(feature = "testing")]
pub mod testing;
pub mod token;
pub mod trace;
pub mod turns;
pub mod user;
pub mod version;
pub mod wallet;
