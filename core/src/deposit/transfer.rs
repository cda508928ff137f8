//! A transfer, as a block of a chain has it.

use std::fmt;

use alloy_primitives::{Address, U256};
use serde::{Deserialize, Serialize};

use super::DepositNetwork;
use crate::{
    ids::{TokenId, VaultId, WalletId},
    networks::tron,
};

/// A chain whose blocks are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FollowedChain {
    /// An EVM chain, by its id.
    Evm(u64),
    /// TRON.
    Tron,
}

impl FollowedChain {
    /// The network of the deposits.
    pub fn network(self) -> DepositNetwork {
        match self {
            FollowedChain::Evm(_) => DepositNetwork::Evm,
            FollowedChain::Tron => DepositNetwork::Tron,
        }
    }

    /// The chain id; none on TRON.
    pub fn chain_id(self) -> Option<u64> {
        match self {
            FollowedChain::Evm(id) => Some(id),
            FollowedChain::Tron => None,
        }
    }

    /// Its part of the keys of rows, of which none begins another. On disk: never change it.
    pub fn key(self) -> [u8; 9] {
        let [a, b, c, d, e, f, g, h] = self.chain_id().unwrap_or_default().to_be_bytes();
        [self.network().number(), a, b, c, d, e, f, g, h]
    }

    /// The chain of [`FollowedChain::key`].
    pub fn of_key(key: [u8; 9]) -> Option<Self> {
        let [network, id @ ..] = key;
        match (network, u64::from_be_bytes(id)) {
            (1, id) => Some(FollowedChain::Evm(id)),
            (2, 0) => Some(FollowedChain::Tron),
            _ => None,
        }
    }
}

/// As people call it.
impl fmt::Display for FollowedChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FollowedChain::Evm(id) => write!(f, "EVM chain {id}"),
            FollowedChain::Tron => f.write_str("TRON"),
        }
    }
}

/// The 20 bytes of an address, which EVM chains and TRON write in two ways.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Account(pub [u8; 20]);

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({})", hex::encode(self.0))
    }
}

impl Account {
    /// The account of an address in canonical form; `None` when it is no address of the network.
    pub fn parse(network: DepositNetwork, address: &str) -> Option<Self> {
        match network {
            DepositNetwork::Evm => {
                let address = crate::networks::evm::parse_address(address).ok()?;
                Some(Self(address.into_array()))
            }
            DepositNetwork::Tron => {
                let [_, account @ ..] = tron::parse_address(address).ok()?.to_bytes();
                Some(Self(account))
            }
        }
    }

    /// The address as the network writes it: with the checksum of EIP-55, or in base58check.
    pub fn text(self, network: DepositNetwork) -> String {
        match network {
            DepositNetwork::Evm => Address::from(self.0).to_checksum(None),
            DepositNetwork::Tron => tron::Address::of_account(self.0).to_string(),
        }
    }
}

/// The other side where there is none, or none that is known.
pub const NOBODY: Account = Account([0; 20]);

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRef {
    /// Its height.
    pub number: u64,
    /// Its hash.
    pub hash: [u8; 32],
}

/// What is kept of a block that may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockHeader {
    /// Which.
    pub block: BlockRef,
    /// The hash of the block before it.
    pub parent: [u8; 32],
    /// When it was made by its own word, in milliseconds since the Unix epoch.
    pub timestamp_ms: u64,
}

/// Which transfer of a transaction. It is the same in whatever block the transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TransferIndex {
    /// The coin that the transaction itself moves.
    Value,
    /// The event with this number, of those of its transaction, from 0.
    Log(u32),
    /// The coin that a contract passes on: the internal transaction with this number, from 0.
    Internal(u32),
    /// What the sender has paid for the transaction. It is not told.
    Fee,
    /// What a balance has more than all transfers that are known make it.
    Balance,
    /// The value that the gas wallet of a sweep sends to pay a fee: in the books, and told to nobody.
    TopUp,
}

impl TransferIndex {
    /// Its part of the keys of rows. On disk: never change it.
    pub fn key(self) -> [u8; 5] {
        let (kind, number) = match self {
            // It is the value of its transaction, whatever it is for: there are no two.
            TransferIndex::Value | TransferIndex::TopUp => (1, 0),
            TransferIndex::Log(number) => (2, number),
            TransferIndex::Internal(number) => (3, number),
            TransferIndex::Fee => (4, 0),
            TransferIndex::Balance => (5, 0),
        };
        let [a, b, c, d] = u32::to_be_bytes(number);
        [kind, a, b, c, d]
    }
}

/// As events have it: `value`, `log-3`, `internal-0`, `balance`.
impl fmt::Display for TransferIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransferIndex::Value => f.write_str("value"),
            TransferIndex::TopUp => f.write_str("top-up"),
            TransferIndex::Log(number) => write!(f, "log-{number}"),
            TransferIndex::Internal(number) => write!(f, "internal-{number}"),
            TransferIndex::Fee => f.write_str("fee"),
            TransferIndex::Balance => f.write_str("balance"),
        }
    }
}

/// A transfer as a block shows it, before it is known whether it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// The hash of the transaction.
    pub tx: [u8; 32],
    /// Where it is.
    pub place: CandidatePlace,
    /// Who had it.
    pub from: Account,
    /// Who has it.
    pub to: Account,
    /// The contract of the token; `None`: the chain's coin.
    pub asset: Option<Account>,
    /// How much in the smallest unit, big-endian.
    pub amount: [u8; 32],
}

/// Where a block shows a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CandidatePlace {
    /// It is what the transaction itself moves, if that succeeds.
    Value,
    /// It is what the sender pays for the transaction, whatever becomes of it. How much, its receipt says.
    Fee,
    /// It is the log with this number, counted over the whole block.
    LogOfBlock(u64),
    /// It has happened, and which transfer of the transaction it is, is known.
    Certain(TransferIndex),
}

impl Candidate {
    /// What the sender of a transaction pays for it.
    pub fn fee(tx: [u8; 32], sender: Account) -> Self {
        Self {
            tx,
            place: CandidatePlace::Fee,
            from: sender,
            to: NOBODY,
            asset: None,
            amount: [0; 32],
        }
    }

    /// Whether it is a fee: of interest to who keeps the books of the sender, and to nobody else.
    pub fn is_fee(&self) -> bool {
        matches!(
            self.place,
            CandidatePlace::Fee | CandidatePlace::Certain(TransferIndex::Fee)
        )
    }

    /// As [`Transfer::moves_something`].
    pub fn moves_something(&self) -> bool {
        self.amount != [0; 32] && self.from != self.to
    }
}

/// What was moved by whom to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The hash of the transaction.
    pub tx: [u8; 32],
    /// Which of its transfers.
    pub index: TransferIndex,
    /// Who had it.
    pub from: Account,
    /// Who has it.
    pub to: Account,
    /// The contract of the token; `None`: the chain's coin.
    pub asset: Option<Account>,
    /// How much in the smallest unit, big-endian.
    pub amount: [u8; 32],
}

impl Transfer {
    /// Whether it is told of: something, from one account to another. Zero amounts are how addresses are
    /// poisoned, and what an account sends itself changes nothing.
    pub fn moves_something(&self) -> bool {
        self.amount != [0; 32] && self.from != self.to
    }

    /// How much, in decimal digits.
    pub fn amount_text(&self) -> String {
        U256::from_be_bytes(self.amount).to_string()
    }
}

/// Who is told of an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressOwner {
    /// The API token that asked for it: its webhook is told.
    pub token: TokenId,
    /// The reference of a deposit wallet; empty for an address that is only watched.
    pub reference: String,
    /// The wallet and its vault; `None` for an address that is only watched.
    pub wallet: Option<(WalletId, VaultId)>,
    /// Blocks before this moment are not told, in milliseconds since the Unix epoch. 0 for a deposit wallet: its
    /// address is not older than itself.
    pub since_ms: u64,
}

/// An address that is ours, or watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DepositAddress {
    /// All that are told: a deposit wallet has one, a watched address one per token.
    pub owners: Vec<AddressOwner>,
}

impl DepositAddress {
    /// Adds one; false when it is there.
    pub fn add(&mut self, owner: AddressOwner) -> bool {
        let is_there = self.owners.iter().any(|other| other.token == owner.token);
        if !is_there {
            self.owners.push(owner);
        }
        !is_there
    }
}

/// A transfer as one side of it is told it: who receives, or who sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnedTransfer {
    /// Where.
    pub chain: FollowedChain,
    /// What.
    pub transfer: Transfer,
    /// The address of ours has sent it, and not received it.
    pub is_send: bool,
    /// Who is told.
    pub owner: AddressOwner,
}

impl OwnedTransfer {
    /// Whether it is a fee that was paid. A top-up is none, though nobody is told of it either.
    pub fn is_fee(&self) -> bool {
        self.transfer.index == TransferIndex::Fee
    }

    /// The address of ours.
    pub fn account(&self) -> Account {
        match self.is_send {
            true => self.transfer.from,
            false => self.transfer.to,
        }
    }

    /// What no other one has: its part of the keys of rows. On disk: never change it.
    pub fn key(&self) -> Vec<u8> {
        let Transfer { tx, index, .. } = &self.transfer;
        [
            &self.chain.key() as &[u8],
            tx,
            &index.key(),
            &[u8::from(self.is_send)],
            self.owner.token.as_bytes(),
        ]
        .concat()
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn accounts__should_be_written_as_their_network_writes_them() {
        for (network, text) in [
            (
                DepositNetwork::Evm,
                "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
            ),
            (DepositNetwork::Tron, "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t"),
        ] {
            let account = Account::parse(network, text).unwrap();
            assert_eq!(account.text(network), text);
        }
        assert_eq!(Account::parse(DepositNetwork::Evm, "T"), None);
        assert_eq!(Account::parse(DepositNetwork::Tron, "0x00"), None);
    }

    #[test]
    fn chains__should_be_found_again_by_their_keys() {
        for chain in [
            FollowedChain::Evm(1),
            FollowedChain::Evm(u64::MAX),
            FollowedChain::Tron,
        ] {
            assert_eq!(FollowedChain::of_key(chain.key()), Some(chain));
        }
        assert_eq!(FollowedChain::of_key([3; 9]), None);
    }

    #[test]
    fn indexes__should_have_one_key_each() {
        let all = [
            TransferIndex::Value,
            TransferIndex::Log(0),
            TransferIndex::Log(1),
            TransferIndex::Log(u32::MAX),
            TransferIndex::Internal(0),
            TransferIndex::Fee,
            TransferIndex::Balance,
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(
                all.iter()
                    .skip(at + 1)
                    .all(|other| other.key() != one.key())
            );
        }
        assert_eq!(TransferIndex::Value.to_string(), "value");
        assert_eq!(TransferIndex::Log(7).to_string(), "log-7");
    }

    #[test]
    fn moves_something__should_leave_out_dust_of_nothing_and_circles() {
        let of = |from: u8, to: u8, amount: u8| Transfer {
            tx: [1; 32],
            index: TransferIndex::Value,
            from: Account([from; 20]),
            to: Account([to; 20]),
            asset: None,
            amount: [amount; 32],
        };
        assert!(of(1, 2, 1).moves_something());
        assert!(!of(1, 2, 0).moves_something());
        assert!(!of(1, 1, 1).moves_something());
    }
}
