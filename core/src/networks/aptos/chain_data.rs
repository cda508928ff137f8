//! What an Aptos node is asked, and what it answers.

use serde::{Deserialize, Serialize};

use super::tx::EntryFunction;
use crate::networks::fee_level::FeeLevel;

/// What a node must be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queries {
    /// 1 for Aptos, 126 for Movement.
    pub chain_id: u8,
    /// The sender, whose sequence number is wanted where the request brings none, and for a simulation.
    pub from: String,
    /// Whether the gas price is wanted (the request brings no `gasUnitPrice`).
    pub gas_unit_price: bool,
    /// How soon a block should have it, for the gas price.
    pub level: FeeLevel,
    /// What is to be simulated, where the gas is wanted (the request brings no `maxGasAmount`).
    /// Last of all: [`simulation`] needs the other answers.
    pub simulate: Option<SimulationQuery>,
    /// What the sender has to have, where nothing is simulated: a payment that fails in a block costs its gas. That it has
    /// it is looked at before the transaction is built, and no fact.
    pub pays: Option<CoinAmount>,
    /// The function whose ABI is wanted, where its arguments are in JSON.
    pub abi: Option<FunctionName>,
    /// The number that the request brings: that of the account is not assigned.
    pub sequence_number: Option<u64>,
    /// When the transaction becomes void, where the request says: seconds since the Unix epoch.
    pub expiration_timestamp_secs: Option<u64>,
}

/// So much of a coin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoinAmount {
    /// A coin type or fungible asset; `None`: the chain's own coin, which has to be more than this, for the gas.
    pub coin: Option<String>,
    /// In its smallest unit.
    pub amount: u64,
}

/// A transaction whose gas is to be simulated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimulationQuery {
    /// What it calls.
    pub call: PlannedCall,
    /// octa per unit of gas, where the request brings it.
    pub gas_unit_price: Option<u64>,
}

/// A call that is to be simulated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlannedCall {
    /// It is complete.
    Entry(EntryFunction),
    /// JSON (see [`Call`]): complete with the ABI.
    Json(String),
}

/// The name of an entry function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionName {
    /// The account that has published its module: `0x` and 64 hex digits.
    pub address: String,
    /// The module.
    pub module: String,
    /// The function.
    pub name: String,
}

/// What a node said. A value is there where [`Queries`] asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainData {
    /// The number that was assigned to this transaction; as the node answers, the account's
    /// `sequence_number` (`GET /accounts/{address}`; 0 for an account that is not there).
    pub sequence_number: u64,
    /// When the transaction becomes void, in seconds since the Unix epoch: of the orchestrator's
    /// clock.
    pub expiration_timestamp_secs: u64,
    /// octa: of `GET /estimate_gas_price`, `gas_estimate` or that of the level.
    pub gas_unit_price: Option<u64>,
    /// Units: `gas_used` of `POST /transactions/simulate` with the bytes of [`simulation`].
    pub gas_used: Option<u64>,
    /// From `GET /accounts/{address}/module/{module}`, the entry of the function in
    /// `abi.exposed_functions`; one that is not `is_entry` cannot be called.
    pub abi: Option<Abi>,
}

/// What a function takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abi {
    /// `params`, e.g. `&signer`, `address`, `0x1::object::Object<T0>`.
    pub params: Vec<String>,
    /// How many `generic_type_params` there are.
    pub type_parameters: u64,
}
