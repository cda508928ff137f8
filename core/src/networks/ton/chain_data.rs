//! What a TON node is asked, and what it answers.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// What must be known before something is built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Queries {
    /// For a transaction.
    Transaction(TransactionQueries),
    /// For a message that does not bring them. Nothing of the chain.
    Message {
        /// Whether the domain of configuration is wanted.
        domain: bool,
        /// Whether the present time is wanted.
        timestamp: bool,
    },
}

/// What a TON node is asked for a transaction, in addition to seqno and state of the wallet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionQueries {
    /// The wallet, `UQ...`.
    pub from: String,
    /// What its messages carry together, in nanoton: the wallet must have that and the fee.
    pub value: u128,
    /// Whether a time until which the transaction is good is wanted (the request brings none).
    pub valid_until: bool,
    /// The recipient, `EQ...`, of which must be known whether a contract is there: of what is to bounce.
    pub recipient: Option<String>,
    /// Recipients, `EQ...`, at which a contract must be: of messages that the client made, bring no first state and
    /// bounce. From an empty address the coins would come back, and the transaction would have succeeded.
    pub contracts: BTreeSet<String>,
    /// For tonSendToken.
    pub jetton: Option<JettonQueries>,
}

/// What must be known about a jetton.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JettonQueries {
    /// The jetton's master contract, `EQ...`.
    pub master: String,
    /// What is to be sent, in the jetton's smallest unit: the wallet must have it.
    pub amount: u128,
    /// Whether its decimals are wanted.
    pub decimals: bool,
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChainData {
    /// For a transaction.
    Transaction(TransactionChainData),
    /// For a message: what [`Queries::Message`] asked for, and nothing else.
    Message {
        /// The domain that is signed for: of configuration.
        domain: Option<String>,
        /// The present time, in seconds since the Unix epoch.
        timestamp: Option<u64>,
    },
}

/// What a TON node said, and the clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionChainData {
    /// The number that was assigned to this transaction; from the node, the wallet's present one
    /// (get-method `seqno`; 0 when the wallet is not on the chain).
    pub seqno: u32,
    /// Whether the wallet contract is on the chain (account state `active`). While it is not, its
    /// code and first data go with the first transaction.
    pub deployed: bool,
    /// Until when the transaction is good, in seconds since the Unix epoch: by the clock.
    pub valid_until: Option<u32>,
    /// Whether a contract is at [`TransactionQueries::recipient`]; `None` where it was not asked.
    pub recipient_deployed: Option<bool>,
    /// For tonSendToken.
    pub jetton: Option<JettonChainData>,
}

/// What a TON node said about a jetton.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JettonChainData {
    /// The sender's jetton wallet (get-method `get_wallet_address` of the master).
    pub wallet: String,
    /// The master that this jetton wallet names (its get-method `get_wallet_data`). `None` when
    /// it is not on the chain: the sender has none of the jetton.
    pub master: Option<String>,
    /// The jetton's decimals (TEP-64; 9 when its content is on the chain and names none). `None`
    /// when they were not asked for, or cannot be read from the chain.
    pub decimals: Option<u8>,
}
