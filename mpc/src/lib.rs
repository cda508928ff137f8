//! Threshold signing: backends, envelopes, buses, share files, signer nodes and the cluster client.
//!
//! A [`node::Node`] holds shares and signs what orders show it; a [`cluster::Cluster`] asks nodes
//! for keys and signatures. They meet on a [`bus::Bus`] that neither trusts: every message is an
//! [`envelope`] signed by its sender's [`identity`], and private ones are sealed.

pub mod attest;
pub mod backend;
pub mod bus;
pub mod claims;
pub mod cluster;
pub mod enrolment_links;
mod entropy;
pub mod envelope;
pub mod evidence;
pub mod freeze;
#[cfg(feature = "simulation")]
pub mod fuzz;
pub mod identity;
pub mod key_records;
mod loaded_keys;
mod marks;
mod message;
pub mod meter;
#[cfg(feature = "simulation")]
pub mod mutate;
pub mod node;
pub mod permits;
pub mod policy;
pub mod pool;
pub mod preprocess;
pub mod primes;
mod proofs;
pub mod questions;
mod runner;
mod secrets;
pub mod shares;
#[cfg(feature = "simulation")]
pub mod simulated;
#[cfg(test)]
mod test_support;
mod verify;
pub mod veto;
