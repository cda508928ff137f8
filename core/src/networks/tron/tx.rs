//! Tron transactions.

use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::{
    address::{Address, parse_address},
    chain_data::{ChainData, LIFETIME_MS, TronCall},
    payload::{TronAction, TronPayload},
    proto::{
        self, ContractParameter, TransactionRaw, TransferAssetContract, TransferContract,
        TriggerSmartContract,
    },
};
use crate::{amount::U256, fault::Fault, networks::rules::Signed};

/// Selector of `transfer(address,uint256)` (TIP-20, as EIP-20).
const TRANSFER: [u8; 4] = [0xa9, 0x05, 0x9c, 0xbb];

/// r, s and v.
const SIGNATURE_BYTES: usize = 65;
/// What nodes add to the size of a transaction for its result (`MAX_RESULT_SIZE_IN_TX`).
const RESULT_BYTES: u64 = 64;
/// sun per byte where an account's bandwidth is used up (chain parameter `getTransactionFee`).
const SUN_PER_BYTE: u64 = 1_000;
/// sun for a transfer to an account that is not there: `getCreateNewAccountFeeInSystemContract`
/// (1 TRX) and, where bandwidth does not cover it, `getCreateAccountFee` (0.1 TRX).
const ACTIVATION_SUN: u64 = 1_100_000;

/// The encoded `Transaction.raw`, which is hashed and signed.
pub(super) fn unsigned(payload: &TronPayload, chain_data: &ChainData) -> Result<Vec<u8>, Fault> {
    let owner_address = parse_address(&payload.from)
        .map_err(|error| Fault::field("from", error))?
        .to_bytes()
        .to_vec();
    let (contract, fee_limit) = match &payload.action {
        TronAction::SendNative { to, sun } => {
            let contract = TransferContract {
                owner_address,
                to_address: to.to_bytes().to_vec(),
                amount: *sun,
            };
            (contract.contract(), 0)
        }
        TronAction::SendTrc10 { to, asset, amount } => {
            let contract = TransferAssetContract {
                asset_name: asset.to_string().into_bytes(),
                owner_address,
                to_address: to.to_bytes().to_vec(),
                amount: *amount,
            };
            (contract.contract(), 0)
        }
        TronAction::SendTrc20 {
            to,
            token,
            amount,
            fee_limit,
        } => {
            let contract = TriggerSmartContract {
                owner_address,
                contract_address: token.to_bytes().to_vec(),
                data: transfer_data(to, amount),
            };
            (contract.contract(), *fee_limit)
        }
    };
    let BlockReference { bytes, hash } = reference(chain_data)?;
    let expiration_ms = chain_data
        .block
        .timestamp_ms
        .checked_add(LIFETIME_MS)
        .ok_or_else(|| Fault::bug("the block's timestamp is out of range"))?;
    // Past its expiration, or before its block, it would not be what was asked for.
    if !(chain_data.block.timestamp_ms..expiration_ms).contains(&chain_data.timestamp_ms) {
        return Err(Fault::bug("the timestamp is not within the lifetime"));
    }
    let int64 =
        |ms: u64| i64::try_from(ms).map_err(|_| Fault::bug("a timestamp does not fit 63 bits"));
    let raw = TransactionRaw {
        ref_block_bytes: bytes.to_vec(),
        ref_block_hash: hash.to_vec(),
        expiration: int64(expiration_ms)?,
        contract: vec![contract],
        timestamp: int64(chain_data.timestamp_ms)?,
        fee_limit,
    };
    Ok(raw.encode_to_vec())
}

/// How a transaction names the block without which it is void.
struct BlockReference {
    bytes: [u8; 2],
    hash: [u8; 8],
}

fn reference(chain_data: &ChainData) -> Result<BlockReference, Fault> {
    let (parts, _) = chain_data.block.id.as_chunks::<8>();
    let number = chain_data.block.number.to_be_bytes();
    match parts {
        // A block's id begins with its number.
        [first, hash, ..] if *first == number => {
            let [.., high, low] = number;
            Ok(BlockReference {
                bytes: [high, low],
                hash: *hash,
            })
        }
        _ => Err(Fault::bug("the block id does not match its number")),
    }
}

/// ABI encoding of `transfer` with its two static words.
fn transfer_data(to: &Address, amount: &U256) -> Vec<u8> {
    let mut data = TRANSFER.to_vec();
    data.extend_from_slice(to.to_word().as_slice());
    data.extend_from_slice(&amount.to_be_bytes::<32>());
    data
}

/// The call that is to be tried first; `None` where no contract is called.
pub(super) fn call(payload: &TronPayload) -> Option<TronCall> {
    match &payload.action {
        TronAction::SendNative { .. } | TronAction::SendTrc10 { .. } => None,
        TronAction::SendTrc20 {
            to,
            token,
            amount,
            fee_limit,
        } => Some(TronCall {
            from: payload.from.clone(),
            contract: token.to_string(),
            data: transfer_data(to, amount),
            fee_limit: fee_limit.unsigned_abs(),
        }),
    }
}

/// The transaction id, which is also what is signed: SHA-256 of the encoded `Transaction.raw`.
pub(super) fn id(unsigned: &[u8]) -> [u8; 32] {
    Sha256::digest(unsigned).into()
}

/// The most that the transaction can cost in sun: its fee limit, which bounds what a contract
/// burns for energy; all its bytes, as if the account had no bandwidth; and for TRX and TRC-10 the
/// activation of a recipient that is not there. A vote of the chain that raises its prices is not
/// in it.
pub(super) fn most_fee(unsigned: &[u8]) -> Result<U256, Fault> {
    let decoded = decode(unsigned).ok_or_else(undecodable)?;
    let signed = signed(unsigned, vec![0; SIGNATURE_BYTES]).encoded_len();
    let bandwidth = u64::try_from(signed)
        .unwrap_or(u64::MAX)
        .saturating_add(RESULT_BYTES)
        .saturating_mul(SUN_PER_BYTE);
    let rest = match decoded.token {
        TronToken::Coin | TronToken::Trc10(_) => ACTIVATION_SUN,
        TronToken::Trc20(_) => decoded.fee_limit,
    };
    Ok(U256::from(bandwidth).saturating_add(U256::from(rest)))
}

/// The name of the first thing in which a transaction differs from another.
pub(super) fn difference(built: &[u8], shown: &[u8]) -> Option<&'static str> {
    let (built, shown) = (decode(built)?, decode(shown)?);
    let same = [
        ("from", built.owner == shown.owner),
        ("token", built.token == shown.token),
        ("recipient", built.to == shown.to),
        ("amount", built.amount == shown.amount),
        ("feeLimit", built.fee_limit == shown.fee_limit),
        ("block", built.block == shown.block),
        ("expiration", built.expiration == shown.expiration),
        ("timestamp", built.timestamp == shown.timestamp),
    ];
    same.into_iter()
        .find_map(|(what, same)| (!same).then_some(what))
}

/// Puts the signature (r, s and v) into what [`unsigned`] made.
pub(super) fn assemble(unsigned: &[u8], signature: Vec<u8>) -> Result<Signed, Fault> {
    decode(unsigned).ok_or_else(undecodable)?;
    let bytes = signed(unsigned, signature).encode_to_vec();
    Ok(Signed {
        transaction: hex::encode(bytes),
        tx_hash: hex::encode(id(unsigned)),
    })
}

/// Until when a signed transaction is good, in milliseconds since the Unix epoch: blocks of that time or later do
/// not take it.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when it is not one that this module made.
pub fn expires_ms(signed: &Signed) -> Result<u64, Fault> {
    let read = || {
        let bytes = hex::decode(&signed.transaction).ok()?;
        let sent = proto::SignedTransaction::decode(bytes.as_slice()).ok()?;
        u64::try_from(decode(&sent.raw_data)?.expiration).ok()
    };
    read().ok_or_else(undecodable)
}

fn signed(unsigned: &[u8], signature: Vec<u8>) -> proto::SignedTransaction {
    proto::SignedTransaction {
        raw_data: unsigned.to_vec(),
        signature: vec![signature],
    }
}

/// What moves.
#[derive(Debug, PartialEq)]
pub(super) enum TronToken {
    Coin,
    /// The asset's number in ASCII.
    Trc10(Vec<u8>),
    /// The contract.
    Trc20(Address),
}

/// A transaction, read back.
#[derive(Debug, PartialEq)]
pub(super) struct DecodedTransaction {
    pub owner: Address,
    pub token: TronToken,
    pub to: Address,
    pub amount: U256,
    /// sun; 0 where no contract is called.
    pub fee_limit: u64,
    /// `ref_block_bytes` and `ref_block_hash`.
    pub block: (Vec<u8>, Vec<u8>),
    /// ms since the Unix epoch.
    pub expiration: i64,
    /// ms since the Unix epoch.
    pub timestamp: i64,
}

/// Reads what [`unsigned`] makes; `None` for anything else, such as fields that it never sets.
pub(super) fn decode(unsigned: &[u8]) -> Option<DecodedTransaction> {
    let raw = TransactionRaw::decode(unsigned).ok()?;
    if raw.encode_to_vec() != unsigned {
        return None;
    }
    let [contract] = raw.contract.as_slice() else {
        return None;
    };
    let int64 = |amount: i64| u64::try_from(amount).ok().map(U256::from);
    let (owner, token, to, amount) = match contract.r#type {
        TransferContract::TYPE => {
            let contract = TransferContract::from_contract(contract)?;
            let to = Address::from_bytes(&contract.to_address)?;
            let amount = int64(contract.amount)?;
            (contract.owner_address, TronToken::Coin, to, amount)
        }
        TransferAssetContract::TYPE => {
            let contract = TransferAssetContract::from_contract(contract)?;
            let to = Address::from_bytes(&contract.to_address)?;
            let (token, amount) = (
                TronToken::Trc10(contract.asset_name),
                int64(contract.amount)?,
            );
            (contract.owner_address, token, to, amount)
        }
        TriggerSmartContract::TYPE => {
            let contract = TriggerSmartContract::from_contract(contract)?;
            let token = TronToken::Trc20(Address::from_bytes(&contract.contract_address)?);
            let (words, []) = contract.data.strip_prefix(&TRANSFER)?.as_chunks::<32>() else {
                return None;
            };
            let [to, amount] = words else {
                return None;
            };
            let (to, amount) = (Address::from_word(*to)?, U256::from_be_bytes(*amount));
            (contract.owner_address, token, to, amount)
        }
        _ => return None,
    };
    Some(DecodedTransaction {
        owner: Address::from_bytes(&owner)?,
        token,
        to,
        amount,
        fee_limit: raw.fee_limit.try_into().ok()?,
        block: (raw.ref_block_bytes, raw.ref_block_hash),
        expiration: raw.expiration,
        timestamp: raw.timestamp,
    })
}

fn undecodable() -> Fault {
    Fault::bug("the unsigned transaction cannot be read")
}
