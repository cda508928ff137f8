//! EVM chains.

use serde::{Deserialize, Serialize};

use crate::{
    chain::{Chain, Signed, Unsigned},
    fault::Fault,
    payload::Payload,
    signature::Signature,
};

/// What an EVM node must be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// The chain.
    pub chain_id: u64,
    /// The sender, EIP-55.
    pub from: String,
    /// Whether the next nonce of the sender is wanted (the request brings none).
    pub nonce: bool,
    /// Whether fees and a gas estimate are wanted (the request brings no `gasFee`), and for what.
    pub fees: Option<Call>,
}

/// The call whose gas is to be estimated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The recipient or contract, EIP-55; `None` creates a contract.
    pub to: Option<String>,
    /// wei, decimal.
    pub value: String,
    /// Call data.
    pub data: Vec<u8>,
}

/// What an EVM node said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The nonce that was assigned to this transaction, where the request brought none.
    pub nonce: Option<u64>,
    /// Whether the chain's blocks have a base fee (EIP-1559). True unless known otherwise.
    pub eip1559: bool,
    /// Fees, where the request brought none.
    pub fees: Option<Fees>,
}

/// The network's present fees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fees {
    /// `eth_estimateGas`.
    pub estimate_gas: u64,
    /// Base fee of the latest block, wei; on a chain without one, `eth_gasPrice`.
    pub base_fee: u128,
    /// `eth_maxPriorityFeePerGas`, wei; 0 on a chain without a base fee.
    pub max_priority_fee: u128,
}

/// The EVM rules.
pub struct Evm;

impl Chain for Evm {
    fn address(&self, _public_key: &[u8]) -> Result<String, Fault> {
        todo!()
    }
    fn parse_address(&self, _text: &str) -> Result<String, Fault> {
        todo!()
    }
    fn needs(&self, _payload: &Payload) -> super::Needs {
        todo!()
    }
    fn build(
        &self,
        _payload: &Payload,
        _facts: &super::Facts,
        _public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        todo!()
    }
    fn assemble(
        &self,
        _payload: &Payload,
        _unsigned: &Unsigned,
        _signatures: &[Signature],
    ) -> Result<Option<Signed>, Fault> {
        todo!()
    }
}
