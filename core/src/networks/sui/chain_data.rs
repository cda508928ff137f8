//! What a Sui node is asked, and what it answers.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{
    coins::{CoinObject, MAX_COINS},
    payment::SuiPayment,
};
use crate::{fault::Fault, networks::rules::unexpected_chain_data};

/// What a Sui node must be asked: always the sender's SUI coins and SUI address balance, those of
/// the type that is paid where it is a token, the epoch and the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queries {
    /// What is to be paid.
    pub payment: SuiPayment,
    /// Whether the reference gas price is wanted (the request brings no `gasFee.price`).
    pub price: bool,
    /// Whether the gas that [`simulation`] takes is wanted (the request brings no
    /// `gasFee.budget`). It is asked last: the simulated transaction is made of the other facts.
    pub simulation: bool,
}

/// What a Sui node said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainData {
    /// The epoch's reference gas price, MIST per unit, where it was asked for.
    pub reference_gas_price: Option<u64>,
    /// The gas that the simulation took, where it was asked for. (In a box so that facts of other
    /// networks need not have the size of these.)
    pub gas_used: Option<Box<GasUsed>>,
    /// Coin objects of SUI that the sender's address owns; at most [`MAX_COINS`]. Of those that a transaction
    /// is built with the first 256 pay.
    pub sui_coins: Vec<CoinObject>,
    /// The sender's SUI that lies in no coin object (SIP-58), MIST.
    pub sui_address_balance: u64,
    /// Coin objects of the token that is paid; at most [`MAX_COINS`]. Empty for SUI.
    pub coins: Vec<CoinObject>,
    /// The token that lies in no coin object (SIP-58), in its smallest unit; 0 for SUI.
    pub coin_address_balance: u64,
    /// Those of the coin objects, as `objectId:version`, that the transaction takes whatever else it takes. The
    /// orchestrator alone uses it, to choose: what a transaction is built with has none.
    pub required: Vec<String>,
    /// Epoch and chain, for what is paid out of address balances. A node is always asked.
    pub validity: Option<SuiValidity>,
}

/// What a simulated transaction took, in MIST (`effects.gasUsed`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GasUsed {
    /// Computation.
    pub computation_cost: u64,
    /// Storage that is bought.
    pub storage_cost: u64,
    /// Storage that is given back.
    pub storage_rebate: u64,
}

/// Where and when a transaction without coin objects is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuiValidity {
    /// The present epoch. Such a transaction is valid in this one and the next.
    pub epoch: u64,
    /// The digest of the chain's genesis checkpoint, base58.
    pub chain_identifier: String,
    /// What tells two equal transactions apart: any number, best a random one. `allocate` moves it
    /// on to one that is free.
    pub nonce: Option<u32>,
}

impl ChainData {
    /// Refuses what was not asked for: coins of no use, more than can be used, the same twice.
    pub(super) fn check(&self, payment: &SuiPayment) -> Result<(), Fault> {
        let unasked = !self.coins.is_empty() || self.coin_address_balance > 0;
        if payment.token().is_none() && unasked {
            return Err(unexpected_chain_data());
        }
        let mut seen = BTreeSet::new();
        for list in [&self.sui_coins, &self.coins] {
            if list.len() > MAX_COINS {
                return Err(unexpected_chain_data());
            }
            for coin in list {
                let reference = coin.reference()?;
                if !seen.insert(*reference.object_id()) {
                    return Err(Fault::bug("duplicate coin object"));
                }
            }
        }
        Ok(())
    }
}
