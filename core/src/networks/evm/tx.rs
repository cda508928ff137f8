//! EVM transactions: EIP-1559, and legacy with EIP-155.

use alloy_consensus::{
    SignableTransaction, TxEip1559, TxLegacy,
    transaction::{RlpEcdsaDecodableTx as _, RlpEcdsaEncodableTx},
};
use alloy_primitives::{Address, Bytes, Signature, TxKind, U256, keccak256};
use alloy_rlp::{Decodable as _, Header};
use k256::ecdsa::{RecoveryId, VerifyingKey};

use super::{
    action::{CallParts, TRANSFER, intrinsic_gas, parts},
    address::address_of,
    chain_data::ChainData,
    payload::EvmTransaction,
};
use crate::{fault::Fault, networks::rules::Signed};

/// EIP-2718 type byte of an EIP-1559 transaction.
const EIP1559: u8 = 2;

/// The encoding that is hashed and signed.
pub(super) fn unsigned(
    transaction: &EvmTransaction,
    chain_data: &ChainData,
) -> Result<Vec<u8>, Fault> {
    let nonce = one_of("nonce", transaction.nonce, chain_data.nonce)?;
    let own = transaction.gas.clone().unwrap_or_default();
    let asked = chain_data.fees.as_ref();
    if own.is_complete() == asked.is_some() {
        return Err(misfit("fees"));
    }
    let gas_limit = match (own.gas_limit, asked) {
        (Some(limit), _) => limit,
        (None, Some(fees)) => {
            let intrinsic = intrinsic_gas(&transaction.action);
            if fees.estimate_gas < intrinsic {
                return Err(Fault::field(
                    "gasFee",
                    format_args!(
                        "the chain node's estimate is below the transaction's intrinsic gas, {intrinsic}"
                    ),
                ));
            }
            fees.estimate_gas
        }
        (None, None) => return Err(misfit("fees")),
    };
    let (max_fee, priority) = match (own.max_fee, asked) {
        (Some(max_fee), _) => (max_fee, own.max_priority_fee),
        (None, Some(fees)) if chain_data.eip1559 => {
            let priority = own.max_priority_fee.unwrap_or(fees.max_priority_fee);
            let max_fee = fees.base_fee.checked_mul(2);
            let max_fee = max_fee
                .and_then(|twice| twice.checked_add(priority))
                .ok_or_else(|| Fault::field("gasFee", "the chain node's fees are out of range"))?;
            (max_fee, Some(priority))
        }
        (None, Some(fees)) => (fees.base_fee, None),
        (None, None) => return Err(misfit("fees")),
    };
    let fees = (gas_limit, max_fee, priority);
    let CallParts { to, value, input } = parts(&transaction.action);
    let (to, input) = (TxKind::from(to), Bytes::from(input));
    Ok(match fees {
        (gas_limit, max_fee_per_gas, Some(max_priority_fee_per_gas)) if chain_data.eip1559 => {
            TxEip1559 {
                chain_id: transaction.chain_id,
                nonce,
                gas_limit,
                max_fee_per_gas,
                max_priority_fee_per_gas,
                to,
                value,
                access_list: Default::default(),
                input,
            }
            .encoded_for_signing()
        }
        (gas_limit, gas_price, _) => TxLegacy {
            chain_id: Some(transaction.chain_id),
            nonce,
            gas_price,
            gas_limit,
            to,
            value,
            input,
        }
        .encoded_for_signing(),
    })
}

/// Exactly one side brings it.
fn one_of<T>(what: &str, request: Option<T>, chain_data: Option<T>) -> Result<T, Fault> {
    match (request, chain_data) {
        (Some(value), None) | (None, Some(value)) => Ok(value),
        (Some(_), Some(_)) | (None, None) => Err(misfit(what)),
    }
}

fn misfit(what: &str) -> Fault {
    Fault::bug(format_args!(
        "{what}: the chain data does not match the queries"
    ))
}

/// Recipient and amount of call data that is `transfer(address,uint256)` (EIP-20). Contracts
/// ignore what stands after it, and some what stands before the 20 bytes of the address.
pub(crate) fn erc20_transfer(input: &[u8]) -> Option<(Address, U256)> {
    let (words, _) = input.strip_prefix(&TRANSFER)?.as_chunks::<32>();
    let [to, amount, ..] = words else {
        return None;
    };
    Some((
        Address::from_word((*to).into()),
        U256::from_be_bytes(*amount),
    ))
}

/// The most that the transaction can cost in wei: all its gas at its highest price.
pub(super) fn most_fee(unsigned: &[u8]) -> Result<U256, Fault> {
    let decoded = decode(unsigned).map_err(undecodable)?;
    // 64 and 128 bits: it always fits.
    Ok(U256::from(decoded.gas_limit).saturating_mul(U256::from(decoded.most_price)))
}

/// What a node is to be told of a transaction to try it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulationCall {
    /// The recipient or contract, EIP-55; `None` creates a contract.
    pub to: Option<String>,
    /// wei.
    pub value: U256,
    /// Call data.
    pub data: Vec<u8>,
    /// The nonce.
    pub nonce: u64,
    /// Units.
    pub gas_limit: u64,
    /// wei per unit of gas: the gas price, or the highest one.
    pub most_price: u128,
    /// wei per unit of gas on top of the base fee; `None` in a legacy transaction.
    pub priority: Option<u128>,
}

/// Reads an unsigned transaction, to try it.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when it cannot be read.
pub fn trial(unsigned: &[u8]) -> Result<SimulationCall, Fault> {
    let decoded = decode(unsigned).map_err(undecodable)?;
    Ok(SimulationCall {
        to: decoded.to.to().map(|to| to.to_checksum(None)),
        value: decoded.value,
        data: decoded.input.to_vec(),
        nonce: decoded.nonce,
        gas_limit: decoded.gas_limit,
        most_price: decoded.most_price,
        priority: decoded.priority,
    })
}

/// The account and the nonce of a signed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentTransaction {
    /// The sender, EIP-55, recovered from the signature.
    pub from: String,
    /// The nonce.
    pub nonce: u64,
    /// Units.
    pub(super) gas_limit: u64,
    /// wei per unit of gas, at most.
    pub(super) max_fee: u128,
    /// wei per unit of gas for the block's maker; all of it in a legacy transaction.
    pub(super) max_priority_fee: u128,
}

/// Reads a signed transaction (EIP-2718).
///
/// # Errors
/// [`crate::fault::Class::Bug`] when it is not one that this module made.
pub fn read_sent(signed: &Signed) -> Result<SentTransaction, Fault> {
    let unreadable = || Fault::bug("the signed transaction cannot be read");
    let hex = signed.transaction.strip_prefix("0x");
    let bytes = hex.and_then(|hex| hex::decode(hex).ok());
    let bytes = bytes.ok_or_else(unreadable)?;
    let ((nonce, gas_limit), (max_fee, max_priority_fee), signature, hash) =
        match bytes.split_first() {
            Some((&EIP1559, mut fields)) => {
                let (tx, signature) =
                    TxEip1559::rlp_decode_with_signature(&mut fields).map_err(undecodable)?;
                let prices = (tx.max_fee_per_gas, tx.max_priority_fee_per_gas);
                (
                    (tx.nonce, tx.gas_limit),
                    prices,
                    signature,
                    tx.signature_hash(),
                )
            }
            _ => {
                let (tx, signature) = TxLegacy::rlp_decode_with_signature(&mut bytes.as_slice())
                    .map_err(undecodable)?;
                let prices = (tx.gas_price, tx.gas_price);
                (
                    (tx.nonce, tx.gas_limit),
                    prices,
                    signature,
                    tx.signature_hash(),
                )
            }
        };
    let (r, s) = (
        signature.r().to_be_bytes::<32>(),
        signature.s().to_be_bytes::<32>(),
    );
    let key = k256::ecdsa::Signature::from_scalars(r, s)
        .and_then(|scalars| {
            let parity = RecoveryId::new(signature.v(), false);
            VerifyingKey::recover_from_prehash(hash.as_slice(), &scalars, parity)
        })
        .map_err(|_| unreadable())?;
    Ok(SentTransaction {
        from: address_of(&key)?.to_checksum(None),
        nonce,
        gas_limit,
        max_fee,
        max_priority_fee,
    })
}

/// The nonce of a transaction.
pub(super) fn nonce(unsigned: &[u8]) -> Result<u64, Fault> {
    Ok(decode(unsigned).map_err(undecodable)?.nonce)
}

/// The name of the first thing in which a transaction differs from another.
pub(super) fn difference(built: &[u8], shown: &[u8]) -> Option<&'static str> {
    let (built, shown) = (decode(built).ok()?, decode(shown).ok()?);
    if built.chain_id != shown.chain_id {
        return Some("chainId");
    }
    if built.to != shown.to {
        return Some("recipient");
    }
    if built.value != shown.value {
        return Some("amount");
    }
    if built.input != shown.input {
        let transfers = (erc20_transfer(&built.input), erc20_transfer(&shown.input));
        return Some(match transfers {
            (Some((built, _)), Some((shown, _))) if built != shown => "recipient",
            (Some((_, built)), Some((_, shown))) if built != shown => "amount",
            _ => "input",
        });
    }
    if built.nonce != shown.nonce {
        return Some("nonce");
    }
    (built != shown).then_some("gasFee")
}

#[derive(PartialEq)]
struct DecodedTransaction {
    chain_id: Option<u64>,
    nonce: u64,
    gas_limit: u64,
    /// wei per unit of gas.
    most_price: u128,
    /// `None` in a legacy transaction.
    priority: Option<u128>,
    to: TxKind,
    value: U256,
    input: Bytes,
}

fn decode(unsigned: &[u8]) -> alloy_rlp::Result<DecodedTransaction> {
    Ok(match unsigned.split_first() {
        Some((&EIP1559, mut fields)) => {
            let tx = TxEip1559::rlp_decode(&mut fields)?;
            DecodedTransaction {
                chain_id: Some(tx.chain_id),
                nonce: tx.nonce,
                gas_limit: tx.gas_limit,
                most_price: tx.max_fee_per_gas,
                priority: Some(tx.max_priority_fee_per_gas),
                to: tx.to,
                value: tx.value,
                input: tx.input,
            }
        }
        _ => {
            let tx = legacy(unsigned)?;
            DecodedTransaction {
                chain_id: tx.chain_id,
                nonce: tx.nonce,
                gas_limit: tx.gas_limit,
                most_price: tx.gas_price,
                priority: None,
                to: tx.to,
                value: tx.value,
                input: tx.input,
            }
        }
    })
}

/// Puts the signature into what [`unsigned`] made.
pub(super) fn assemble(unsigned: &[u8], signature: &Signature) -> Result<Signed, Fault> {
    let bytes = match unsigned.split_first() {
        Some((&EIP1559, mut fields)) => {
            let tx = TxEip1559::rlp_decode(&mut fields).map_err(undecodable)?;
            signed(&tx, unsigned, signature)?
        }
        Some(_) => signed(&legacy(unsigned).map_err(undecodable)?, unsigned, signature)?,
        None => return Err(Fault::bug("not an unsigned transaction")),
    };
    Ok(Signed {
        tx_hash: keccak256(&bytes).to_string(),
        transaction: format!("0x{}", hex::encode(bytes)),
    })
}

fn signed<T: SignableTransaction<Signature> + RlpEcdsaEncodableTx>(
    tx: &T,
    unsigned: &[u8],
    signature: &Signature,
) -> Result<Vec<u8>, Fault> {
    // What was signed is what is sent, byte for byte.
    if tx.encoded_for_signing() != unsigned {
        return Err(Fault::bug("the unsigned transaction is not canonical"));
    }
    let mut bytes = Vec::with_capacity(tx.eip2718_encoded_length(signature));
    tx.eip2718_encode(signature, &mut bytes);
    Ok(bytes)
}

/// The nine fields of EIP-155: six of the transaction, then chain id, 0, 0.
fn legacy(mut bytes: &[u8]) -> alloy_rlp::Result<TxLegacy> {
    let header = Header::decode(&mut bytes)?;
    if !header.list {
        return Err(alloy_rlp::Error::UnexpectedString);
    }
    let mut tx = TxLegacy::rlp_decode_fields(&mut bytes)?;
    tx.chain_id = Some(u64::decode(&mut bytes)?);
    Ok(tx)
}

fn undecodable(error: alloy_rlp::Error) -> Fault {
    Fault::bug(format_args!(
        "the unsigned transaction cannot be read: {error}"
    ))
}
