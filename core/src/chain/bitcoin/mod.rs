//! Bitcoin. Not built yet.

use serde::{Deserialize, Serialize};

use crate::{
    amount::U256,
    chain::{Resource, Rules, Signed, Unsigned},
    fault::Fault,
    network::Network,
    payload::bitcoin::BitcoinPayload,
    signature::Signature,
};

/// What a node must be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Needs {}

/// What a node said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Facts {}

/// The Bitcoin rules.
pub struct Bitcoin;

impl Rules for Bitcoin {
    type Payload = BitcoinPayload;
    type Needs = Needs;
    type Facts = Facts;

    const NETWORK: Network = Network::Bitcoin;

    fn address(&self, _public_key: &[u8]) -> Result<String, Fault> {
        Err(Fault::bug("not built"))
    }

    fn parse_address(&self, _text: &str) -> Result<String, Fault> {
        Err(Fault::bug("not built"))
    }

    fn needs(&self, payload: &BitcoinPayload) -> Option<Needs> {
        match *payload {}
    }

    fn uses(&self, payload: &BitcoinPayload, _unsigned: &Unsigned) -> Result<Vec<Resource>, Fault> {
        match *payload {}
    }

    fn build(
        &self,
        payload: &BitcoinPayload,
        _facts: Option<&Facts>,
        _public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        match *payload {}
    }

    fn most_fee(&self, _unsigned: &[u8]) -> Result<U256, Fault> {
        Err(Fault::bug("not built"))
    }

    fn difference(&self, _built: &[u8], _shown: &[u8]) -> Option<&'static str> {
        None
    }

    fn assemble(
        &self,
        payload: &BitcoinPayload,
        _unsigned: &Unsigned,
        _signatures: &[Signature],
        _public_key: &[u8],
    ) -> Result<Signed, Fault> {
        match *payload {}
    }
}
