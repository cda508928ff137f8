//! Threshold signing: backends, envelopes, buses, share files, signer nodes and the cluster client.
//!
//! A [`node::Node`] holds shares and signs what orders show it; a [`cluster::Cluster`] asks nodes
//! for keys and signatures. They meet on a [`bus::Bus`] that neither trusts: every message is an
//! [`envelope`] signed by its sender's [`identity`], and private ones are sealed.

pub mod backend;
pub mod bus;
pub mod claims;
pub mod cluster;
mod entropy;
pub mod envelope;
pub mod identity;
mod message;
pub mod meter;
pub mod node;
pub mod nonces;
pub mod policy;
pub mod pool;
pub mod primes;
mod runner;
pub mod shares;
#[cfg(test)]
mod test_support;
mod verify;
