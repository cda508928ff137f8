//! What blocks of TRON say about transfers: JSON of java-tron's HTTP API in, transfers out.
//!
//! A block names its transactions, and what became of them stands in a list of its own, which does not name the block's
//! hash: it must be about exactly the block's transactions, by their ids, and of its time. What does not fit is an error.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::U256;
use serde_json::Value;

use crate::deposit::transfer::{
    Account, BlockHeader, BlockRef, Candidate, CandidatePlace, TransferIndex,
};

/// keccak256 of `Transfer(address,address,uint256)` (TIP-20), as logs have it.
const TRANSFER_TOPIC: &str = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";
/// First byte of every address.
const PREFIX: u8 = 0x41;

/// Why a node's word about a block is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BlockError(pub &'static str);

/// A block with what its transactions are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TronBlock {
    /// Its place in the chain.
    pub header: BlockHeader,
    /// Its transactions by their ids.
    transactions: BTreeMap<[u8; 32], BlockTransaction>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockTransaction {
    /// Who has made it; `None` where the kind of the transaction is not known.
    owner: Option<Account>,
    /// What it moves by itself, if that has succeeded.
    moved: Option<MovedAmount>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MovedAmount {
    from: Account,
    to: Account,
    amount: [u8; 32],
}

/// The header of a block (`getblockbynum`, `getblockbyid`, `getnowblock`).
///
/// # Errors
/// [`BlockError`] when something is missing, or the id is not of the number.
pub fn read_header(block: &Value) -> Result<BlockHeader, BlockError> {
    let hash = block.get("blockID").and_then(hash);
    let hash = hash.ok_or(BlockError("the block has no id"))?;
    let raw = block.pointer("/block_header/raw_data");
    let raw = raw.ok_or(BlockError("the block has no header"))?;
    // Zeros are left out.
    let number = match raw.get("number") {
        None => 0,
        Some(number) => number
            .as_u64()
            .ok_or(BlockError("the block has no number"))?,
    };
    let (of_id, _) = hash
        .split_first_chunk::<8>()
        .ok_or(BlockError("the block has no id"))?;
    if u64::from_be_bytes(*of_id) != number {
        return Err(BlockError("the block id does not match the block number"));
    }
    let timestamp = raw.get("timestamp").and_then(Value::as_u64);
    Ok(BlockHeader {
        block: BlockRef { number, hash },
        parent: raw
            .get("parentHash")
            .and_then(self::hash)
            .ok_or(BlockError("the block has no parent"))?,
        timestamp_ms: timestamp.ok_or(BlockError("the block has no time"))?,
    })
}

impl TronBlock {
    /// A block with its transactions (`getblockbynum`).
    ///
    /// # Errors
    /// [`BlockError`] when something is missing, or a transaction is there twice.
    pub fn read(block: &Value) -> Result<Self, BlockError> {
        let header = read_header(block)?;
        let listed = match block.get("transactions") {
            None => &[],
            Some(listed) => listed
                .as_array()
                .map(Vec::as_slice)
                .ok_or(BlockError("the block has no list of transactions"))?,
        };
        // java-tron writes zeros for an empty block, or nothing.
        let root = block.pointer("/block_header/raw_data/txTrieRoot");
        let root = root.and_then(Value::as_str).unwrap_or_default();
        if listed.is_empty() && root.bytes().any(|digit| digit != b'0') {
            return Err(BlockError(
                "the block's root says that it has transactions, but none are listed",
            ));
        }
        let mut transactions = BTreeMap::new();
        for transaction in listed {
            let id = transaction.get("txID").and_then(hash);
            let id = id.ok_or(BlockError("a transaction of the block has no id"))?;
            let owner = transaction.pointer("/raw_data/contract/0/parameter/value/owner_address");
            let read = BlockTransaction {
                owner: owner.and_then(account),
                moved: moved(transaction)?,
            };
            if transactions.insert(id, read).is_some() {
                return Err(BlockError("the block has a transaction twice"));
            }
        }
        Ok(Self {
            header,
            transactions,
        })
    }

    /// What was moved: TRX by transactions and by contracts, and these tokens by what their contracts say. `infos` is what
    /// `gettransactioninfobyblocknum` says.
    ///
    /// # Errors
    /// [`BlockError`] when that is not about exactly the transactions of this block, or cannot be read.
    pub fn transfers(
        &self,
        infos: &Value,
        tokens: &BTreeSet<Account>,
    ) -> Result<Vec<Candidate>, BlockError> {
        let infos = infos.as_array();
        let infos = infos.ok_or(BlockError("the answer is not a list of results"))?;
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        for info in infos {
            let id = info.get("id").and_then(hash);
            let id = id.ok_or(BlockError("a result names no transaction"))?;
            let number = info.get("blockNumber").and_then(Value::as_u64);
            let time = info.get("blockTimeStamp").and_then(Value::as_u64);
            if number != Some(self.header.block.number) || time != Some(self.header.timestamp_ms) {
                return Err(BlockError("a result belongs to another block"));
            }
            let Some(transaction) = self.transactions.get(&id) else {
                return Err(BlockError(
                    "a result belongs to a transaction that is not in the block",
                ));
            };
            if !seen.insert(id) {
                return Err(BlockError("two results belong to the same transaction"));
            }
            if let (Some(owner), Some(fee)) = (transaction.owner, info.get("fee")) {
                let amount = sun(fee).ok_or(BlockError("the fee of a result cannot be read"))?;
                let place = CandidatePlace::Certain(TransferIndex::Fee);
                let fee = Candidate::fee(id, owner);
                found.push(Candidate {
                    place,
                    amount,
                    ..fee
                });
            }
            // Of what has failed nothing was moved, whatever its logs say.
            if info.get("result").and_then(Value::as_str) == Some("FAILED") {
                continue;
            }
            let candidate = |index, moved: MovedAmount, asset| Candidate {
                tx: id,
                place: CandidatePlace::Certain(index),
                from: moved.from,
                to: moved.to,
                asset,
                amount: moved.amount,
            };
            if let Some(moved) = transaction.moved {
                found.push(candidate(TransferIndex::Value, moved, None));
            }
            for (number, log) in numbered(info, "log")? {
                let Some((asset, moved)) = token_moved(log)? else {
                    continue;
                };
                if tokens.contains(&asset) {
                    found.push(candidate(TransferIndex::Log(number), moved, Some(asset)));
                }
            }
            for (number, internal) in numbered(info, "internal_transactions")? {
                if let Some(moved) = internal_moved(internal)? {
                    found.push(candidate(TransferIndex::Internal(number), moved, None));
                }
            }
        }
        if seen.len() != self.transactions.len() {
            return Err(BlockError(
                "the result of a transaction of the block is missing",
            ));
        }
        found.retain(Candidate::moves_something);
        Ok(found)
    }
}

/// A list in an object, with numbers from 0; nothing where there is none.
fn numbered<'a>(
    object: &'a Value,
    field: &str,
) -> Result<impl Iterator<Item = (u32, &'a Value)>, BlockError> {
    let list = match object.get(field) {
        None => &[],
        Some(list) => list
            .as_array()
            .map(Vec::as_slice)
            .ok_or(BlockError("a result has no list where it needs one"))?,
    };
    Ok((0..).zip(list))
}

/// What a transaction moves by itself: `TransferContract` that has succeeded.
fn moved(transaction: &Value) -> Result<Option<MovedAmount>, BlockError> {
    let contract = transaction.pointer("/raw_data/contract/0");
    let kind = contract.and_then(|contract| contract.get("type"));
    if kind.and_then(Value::as_str) != Some("TransferContract") {
        return Ok(None);
    }
    let result = transaction.pointer("/ret/0/contractRet");
    match result.and_then(Value::as_str) {
        Some("SUCCESS") => {}
        Some(_) => return Ok(None),
        None => return Err(BlockError("a transfer has no result")),
    }
    let value = contract.and_then(|contract| contract.pointer("/parameter/value"));
    let read = |value: &Value| {
        Some(MovedAmount {
            from: account(value.get("owner_address")?)?,
            to: account(value.get("to_address")?)?,
            amount: sun(value.get("amount")?)?,
        })
    };
    let moved = value.and_then(read);
    Ok(Some(moved.ok_or(BlockError("a transfer cannot be read"))?))
}

/// What a log says of a token; `None` when it is not of a transfer: exactly three topics and 32 bytes.
fn token_moved(log: &Value) -> Result<Option<(Account, MovedAmount)>, BlockError> {
    let unreadable = BlockError("a log cannot be read");
    let address = log.get("address").and_then(Value::as_str);
    let mut asset = [0; 20];
    // Without the prefix, as the TVM has addresses.
    address
        .and_then(|address| hex::decode_to_slice(address, &mut asset).ok())
        .ok_or(unreadable)?;
    // What is empty is left out.
    let topics: &[Value] = match log.get("topics") {
        None => &[],
        Some(topics) => topics.as_array().ok_or(unreadable)?,
    };
    let data = log.get("data").and_then(Value::as_str).unwrap_or_default();
    let read = || {
        let [event, from, to] = topics else {
            return None;
        };
        if !event.as_str()?.eq_ignore_ascii_case(TRANSFER_TOPIC) {
            return None;
        }
        let mut amount = [0; 32];
        hex::decode_to_slice(data, &mut amount).ok()?;
        Some(MovedAmount {
            from: account_of_word(hash(from)?)?,
            to: account_of_word(hash(to)?)?,
            amount,
        })
    };
    Ok(read().map(|moved| (Account(asset), moved)))
}

/// What java-tron notes of internal transactions that move their value from the caller to the receiver (Program.java).
/// It also writes down what only changes stakes: resources that are delegated, frozen or taken back have a receiver and
/// a value, and move nothing to the receiver. What a contract withdraws while it ends is in its `suicide`, too.
const MOVING_NOTES: [&[u8]; 3] = [b"call", b"create", b"suicide"];

/// TRX that a contract passes on; `None` for calls without TRX, other coins (TRC-10), what was rejected, and whatever is
/// not known to move its value.
fn internal_moved(internal: &Value) -> Result<Option<MovedAmount>, BlockError> {
    let unreadable = BlockError("an internal transaction cannot be read");
    if internal.get("rejected").and_then(Value::as_bool) == Some(true) {
        return Ok(None);
    }
    let Some(values) = internal.get("callValueInfo") else {
        return Ok(None);
    };
    let values = values.as_array().ok_or(unreadable)?;
    let mut amount = U256::ZERO;
    for value in values {
        let Some(sun) = value.get("callValue") else {
            continue;
        };
        if value.get("tokenId").is_none() {
            let sun = sun.as_u64().ok_or(unreadable)?;
            amount = amount.saturating_add(U256::from(sun));
        }
    }
    if amount.is_zero() {
        return Ok(None);
    }
    let note = internal.get("note").and_then(Value::as_str);
    let note = note.and_then(|note| hex::decode(note).ok());
    if !MOVING_NOTES.contains(&note.ok_or(unreadable)?.as_slice()) {
        return Ok(None);
    }
    let read = || {
        Some(MovedAmount {
            from: account(internal.get("caller_address")?)?,
            to: account(internal.get("transferTo_address")?)?,
            amount: amount.to_be_bytes(),
        })
    };
    Ok(Some(read().ok_or(unreadable)?))
}

fn hash(value: &Value) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(value.as_str()?, &mut bytes).ok()?;
    Some(bytes)
}

/// 21 bytes in hex, the first of them 0x41.
fn account(value: &Value) -> Option<Account> {
    let mut bytes = [0; 21];
    hex::decode_to_slice(value.as_str()?, &mut bytes).ok()?;
    let [PREFIX, account @ ..] = bytes else {
        return None;
    };
    Some(Account(account))
}

fn account_of_word(word: [u8; 32]) -> Option<Account> {
    let (zeros, account) = word.split_last_chunk::<20>()?;
    let is_address = zeros.iter().all(|byte| *byte == 0);
    is_address.then_some(Account(*account))
}

fn sun(value: &Value) -> Option<[u8; 32]> {
    Some(U256::from(value.as_u64()?).to_be_bytes())
}

#[cfg(test)]
#[path = "transfers_tests.rs"]
mod tests;
