//! EVM chains.
//!
//! Transactions are EIP-1559 (type 2), or legacy ones with EIP-155 replay protection where the
//! chain has no base fee or the request names a gas price only. Messages are EIP-191 personal
//! sign and EIP-712 typed data.

mod address;
pub(crate) mod tx;
pub(crate) mod typed_data;

#[cfg(test)]
mod tests;

use alloy_primitives::{Address, B256, keccak256};
use k256::ecdsa::{RecoveryId, VerifyingKey};
use serde::{Deserialize, Serialize};

pub use self::address::{AddressError, parse_address};
use crate::{
    amount::U256,
    chain::{Chain, Signed, SigningInput, Unsigned, raw},
    fault::Fault,
    network::Network,
    payload::{
        Payload,
        evm::{EvmPayload, EvmTransaction},
    },
    signature::{Curve, Signature},
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
    /// Whether the chain's blocks have a base fee (EIP-1559). True unless known otherwise. Where
    /// not, the transaction is a legacy one and `maxPriorityFee` is ignored.
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
    fn address(&self, public_key: &[u8]) -> Result<String, Fault> {
        let key = (public_key.len() == 33)
            .then(|| VerifyingKey::from_sec1_bytes(public_key).ok())
            .flatten()
            .ok_or_else(|| Fault::bug("not a compressed secp256k1 public key"))?;
        Ok(address_of(&key)?.to_checksum(None))
    }

    fn parse_address(&self, text: &str) -> Result<String, Fault> {
        parse_address(text)
            .map(|address| address.to_checksum(None))
            .map_err(|error| Fault::new(crate::fault::Class::Invalid, error.to_string()))
    }

    fn needs(&self, payload: &Payload) -> super::Needs {
        match payload {
            Payload::Evm(EvmPayload::Transaction(transaction)) => {
                needs(transaction).map_or(super::Needs::Nothing, super::Needs::Evm)
            }
            Payload::Evm(EvmPayload::Message(_)) | Payload::Solana(_) | Payload::Raw(_) => {
                super::Needs::Nothing
            }
        }
    }

    fn build(
        &self,
        payload: &Payload,
        facts: &super::Facts,
        public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        let sender = self.address(public_key)?;
        match payload {
            Payload::Evm(evm) => {
                let kind = payload.kind();
                build(evm, facts, &sender).map_err(|fault| fault.under(kind))
            }
            Payload::Raw(payload) => {
                nothing_asked(facts)?;
                raw::build(Network::Evm, payload, &sender)
                    .map_err(|fault| fault.under("rawMessage"))
            }
            Payload::Solana(_) => Err(Fault::bug("a Solana payload for an EVM wallet")),
        }
    }

    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault> {
        tx::most_fee(unsigned)
    }

    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str> {
        tx::difference(built, shown)
    }

    fn assemble(
        &self,
        payload: &Payload,
        unsigned: &Unsigned,
        signatures: &[Signature],
    ) -> Result<Option<Signed>, Fault> {
        let [input] = unsigned.signing.as_slice() else {
            return Err(Fault::bug("an EVM payload has exactly one thing to sign"));
        };
        let [signature] = signatures else {
            return Err(Fault::bug("an EVM payload takes exactly one signature"));
        };
        let signature = checked(signature, &input.message, payload.from())?;
        match payload {
            Payload::Evm(EvmPayload::Transaction(_)) => {}
            Payload::Evm(EvmPayload::Message(_)) | Payload::Raw(_) => return Ok(None),
            Payload::Solana(_) => return Err(Fault::bug("a Solana payload for an EVM wallet")),
        }
        if keccak256(&unsigned.bytes).as_slice() != input.message {
            return Err(Fault::bug("the digest is not that of the transaction"));
        }
        tx::assemble(&unsigned.bytes, &signature).map(Some)
    }
}

/// What is asked about a transaction; `None` when it brings nonce and fees.
fn needs(transaction: &EvmTransaction) -> Option<Needs> {
    let (nonce, fees) = (transaction.nonce.is_none(), transaction.gas.is_none());
    if !nonce && !fees {
        return None;
    }
    Some(Needs {
        chain_id: transaction.chain_id,
        from: transaction.from.clone(),
        nonce,
        fees: fees.then(|| tx::call(&transaction.action)),
    })
}

fn build(payload: &EvmPayload, facts: &super::Facts, sender: &str) -> Result<Unsigned, Fault> {
    let transaction = match payload {
        EvmPayload::Transaction(transaction) => transaction,
        EvmPayload::Message(message) => {
            nothing_asked(facts)?;
            if message.from != sender {
                return Err(Fault::field("from", "is not the wallet's address"));
            }
            return Ok(Unsigned {
                bytes: Vec::new(),
                signing: vec![input(message.digest)],
            });
        }
    };
    if transaction.from != sender {
        return Err(Fault::field("from", "is not the wallet's address"));
    }
    // A transaction that brings everything may still be told that its chain has no base fee.
    let facts = match facts {
        super::Facts::Evm(facts) => facts,
        super::Facts::Nothing if needs(transaction).is_none() => &Facts {
            nonce: None,
            eip1559: true,
            fees: None,
        },
        super::Facts::Nothing | super::Facts::Solana(_) => {
            return Err(Fault::bug("the facts are not those that were asked for"));
        }
    };
    let bytes = tx::unsigned(transaction, facts)?;
    Ok(Unsigned {
        signing: vec![input(keccak256(&bytes))],
        bytes,
    })
}

fn nothing_asked(facts: &super::Facts) -> Result<(), Fault> {
    match facts {
        super::Facts::Nothing => Ok(()),
        super::Facts::Evm(_) | super::Facts::Solana(_) => {
            Err(Fault::bug("a message was built with facts"))
        }
    }
}

fn input(digest: B256) -> SigningInput {
    SigningInput {
        curve: Curve::Secp256k1,
        message: digest.to_vec(),
    }
}

/// The last 20 bytes of keccak256 over the uncompressed point without its 0x04.
fn address_of(key: &VerifyingKey) -> Result<Address, Fault> {
    let point = key.to_sec1_point(false);
    let bytes = point
        .as_bytes()
        .get(1..)
        .ok_or_else(|| Fault::bug("a public key without coordinates"))?;
    Ok(Address::from_raw_public_key(bytes))
}

/// The signature in alloy's type, when it is the sender's, with the right parity and low s
/// (EIP-2): a wrong parity bit would make the transaction that of another sender.
fn checked(
    signature: &Signature,
    digest: &[u8],
    sender: &str,
) -> Result<alloy_primitives::Signature, Fault> {
    let Signature::Ecdsa { r, s, y_parity } = signature else {
        return Err(Fault::bug("an EVM wallet signs with ECDSA"));
    };
    let odd = match y_parity {
        0 => false,
        1 => true,
        _ => return Err(Fault::bug("y parity is neither 0 nor 1")),
    };
    let ecdsa = k256::ecdsa::Signature::from_scalars(*r, *s)
        .map_err(|_| Fault::bug("r or s is out of range"))?;
    if ecdsa.normalize_s() != ecdsa {
        return Err(Fault::bug("s is not low"));
    }
    let key = VerifyingKey::recover_from_prehash(digest, &ecdsa, RecoveryId::new(odd, false))
        .map_err(|_| Fault::bug("no key is behind the signature"))?;
    if address_of(&key)?.to_checksum(None) != sender {
        return Err(Fault::bug("the signature is not the sender's"));
    }
    Ok(alloy_primitives::Signature::from_scalars_and_parity(
        B256::from(*r),
        B256::from(*s),
        odd,
    ))
}
