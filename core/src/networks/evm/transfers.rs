//! What blocks of EVM chains say about transfers: JSON of a node (ethereum/execution-apis) in, transfers out.
//!
//! The node's word is checked against itself, and what does not fit is an error, never an empty answer: every
//! transaction and log names the block that was asked for, every log a transaction of that block and a contract that
//! was asked for, and whatever is told has a receipt that says the same.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Bloom, BloomInput, U256};
use serde_json::Value;

use crate::deposit::transfer::{
    Account, BlockHeader, BlockRef, Candidate, CandidatePlace, Transfer, TransferIndex,
};

/// keccak256 of `Transfer(address,address,uint256)` (EIP-20).
pub const TRANSFER_TOPIC: &str =
    "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";

/// Whose logs say what coin was moved, in the form of a token's (EIP-7708), on chains that have them. Nobody has code there.
pub const COIN_LOGS: Account = Account([
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0xff, 0xff, 0xff, 0xfe,
]);

/// The root of no transactions at all (the hash of an empty trie).
const NO_TRANSACTIONS: &str = "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421";

/// Why a node's word about a block is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BlockError(pub &'static str);

/// A block with what its transactions move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvmBlock {
    /// Its place in the chain.
    pub header: BlockHeader,
    /// Its transactions, in order.
    pub transactions: Vec<BlockTransaction>,
    /// Which contracts and events its logs may be of; `None` on chains whose blocks have none.
    bloom: Option<Bloom>,
}

/// What the logs of a block say of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenLogs {
    /// What was moved, in order.
    pub moved: Vec<Candidate>,
    /// Contracts that the block may have logs of, by its own filter, and of which none came. The filter is sometimes
    /// wrong in this direction, and never in the other.
    pub missing: BTreeSet<Account>,
}

/// What a transaction moves by itself, if it succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTransaction {
    /// Its hash.
    pub hash: [u8; 32],
    /// Who sent it.
    pub from: Account,
    /// Who is called; `None`: it creates a contract.
    pub to: Option<Account>,
    /// wei, big-endian.
    pub value: [u8; 32],
}

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferReceipt {
    /// Which.
    pub tx: [u8; 32],
    /// Whether it did what it was to do.
    pub success: bool,
    /// What its sender has paid for it, in wei, big-endian; `None` where the node does not say.
    pub fee: Option<[u8; 32]>,
    /// Its logs in order: the number within the block, and what it moves if it is one of a transfer.
    logs: Vec<(u64, Option<LogTransfer>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogTransfer {
    asset: Account,
    from: Account,
    to: Account,
    amount: [u8; 32],
}

/// The header of a block, with or without its transactions.
///
/// # Errors
/// [`BlockError`] when something is missing.
pub fn read_header(block: &Value) -> Result<BlockHeader, BlockError> {
    let number = number_in(block, "number").ok_or(BlockError("the block has no number"))?;
    let timestamp = number_in(block, "timestamp").and_then(|seconds| seconds.checked_mul(1_000));
    Ok(BlockHeader {
        block: BlockRef {
            number,
            hash: hash_in(block, "hash").ok_or(BlockError("the block has no hash"))?,
        },
        parent: hash_in(block, "parentHash").ok_or(BlockError("the block has no parent"))?,
        timestamp_ms: timestamp.ok_or(BlockError("the block has no time"))?,
    })
}

impl EvmBlock {
    /// A block with its whole transactions (`eth_getBlockByNumber` with `true`).
    ///
    /// # Errors
    /// [`BlockError`] when something is missing, or a transaction is said to be in another block.
    pub fn read(block: &Value) -> Result<Self, BlockError> {
        let header = read_header(block)?;
        let listed = block.get("transactions").and_then(Value::as_array);
        let listed = listed.ok_or(BlockError("the block has no list of transactions"))?;
        let mut transactions = Vec::with_capacity(listed.len());
        let mut hashes = BTreeSet::new();
        for transaction in listed {
            let of_block = hash_in(transaction, "blockHash");
            if of_block != Some(header.block.hash) {
                return Err(BlockError("a transaction of the block names another block"));
            }
            let read = BlockTransaction::read(transaction);
            let read = read.ok_or(BlockError("a transaction of the block cannot be read"))?;
            if !hashes.insert(read.hash) {
                return Err(BlockError("the block has a transaction twice"));
            }
            transactions.push(read);
        }
        // Only this way round: nodes of Polygon list transactions that the root does not know.
        let root = block.get("transactionsRoot").and_then(Value::as_str);
        if transactions.is_empty() && root.is_some_and(names_transactions) {
            return Err(BlockError(
                "the block's root says that it has transactions, but none are listed",
            ));
        }
        Ok(Self {
            header,
            transactions,
            bloom: block.get("logsBloom").and_then(bloom),
        })
    }

    /// What the transactions move by themselves, if they succeed.
    pub fn values(&self) -> impl Iterator<Item = Candidate> {
        self.transactions.iter().filter_map(|transaction| {
            let candidate = Candidate {
                tx: transaction.hash,
                place: CandidatePlace::Value,
                from: transaction.from,
                to: transaction.to?,
                asset: None,
                amount: transaction.value,
            };
            candidate.moves_something().then_some(candidate)
        })
    }

    /// What the senders of the transactions pay for them, whatever becomes of those.
    pub fn fees(&self) -> impl Iterator<Item = Candidate> {
        let transactions = self.transactions.iter();
        transactions.map(|transaction| Candidate::fee(transaction.hash, transaction.from))
    }

    /// What the logs of these contracts say was moved (`eth_getLogs` by the hash of the block). A log may be of a
    /// transaction that the block does not list, as those of Polygon's state syncs are: whether there is one, its receipt
    /// says.
    ///
    /// # Errors
    /// [`BlockError`] when a log is not of this block, of a contract or an event that was not asked for, there twice, or
    /// cannot be read.
    pub fn tokens(
        &self,
        logs: &Value,
        contracts: &BTreeSet<Account>,
    ) -> Result<TokenLogs, BlockError> {
        let logs = logs.as_array();
        let logs = logs.ok_or(BlockError("the answer is not a list of logs"))?;
        let (mut found, mut seen) = (BTreeMap::new(), BTreeSet::new());
        for log in logs {
            let (tx, number, moved) = read_log(log, &self.header.block)?;
            let asset = account_in(log, "address");
            let asked = asset.filter(|asset| contracts.contains(asset));
            seen.insert(asked.ok_or(BlockError(
                "a log is from a contract that was not asked for",
            ))?);
            let topic = log.get("topics").and_then(|topics| topics.get(0));
            let topic = topic.and_then(Value::as_str);
            if !topic.is_some_and(|topic| topic.eq_ignore_ascii_case(TRANSFER_TOPIC)) {
                return Err(BlockError("a log is an event that was not asked for"));
            }
            let candidate = moved.map(|moved| Candidate {
                tx,
                place: CandidatePlace::LogOfBlock(number),
                from: moved.from,
                to: moved.to,
                asset: Some(moved.asset),
                amount: moved.amount,
            });
            // Some nodes count the logs of one transaction of a block again: a number has to fit its receipt alone.
            if found.insert((number, tx), candidate).is_some() {
                return Err(BlockError("two logs of a transaction have the same number"));
            }
        }
        let candidates = found.into_values().flatten();
        let silent = contracts.difference(&seen).copied();
        Ok(TokenLogs {
            moved: candidates.filter(Candidate::moves_something).collect(),
            missing: silent.filter(|it| self.may_have_moved(it)).collect(),
        })
    }

    /// What contracts pass on, by the logs of the coin ([`COIN_LOGS`]) in their order; `None` where the block does not show
    /// that its chain has such logs. It does when they begin with what a transaction itself moves, as EIP-7708 wants of each
    /// that moves something. That one is left out: it is counted already.
    pub fn passed_on_by_logs(&self, logs: &[Candidate]) -> Option<Vec<Candidate>> {
        let values = self.values().map(|value| (value.tx, value));
        let values: BTreeMap<_, _> = values.collect();
        let (mut begun, mut is_shown, mut passed_on) = (BTreeSet::new(), false, Vec::new());
        for log in logs {
            let is_first = begun.insert(log.tx);
            match values.get(&log.tx).filter(|_| is_first) {
                Some(value) => {
                    let same = |of: &Candidate| (of.from, of.to, of.amount);
                    if same(value) != same(log) {
                        return None;
                    }
                    is_shown = true;
                }
                None => passed_on.push(Candidate {
                    asset: None,
                    ..*log
                }),
            }
        }
        is_shown.then_some(passed_on)
    }

    /// Whether the block may have a log of a transfer of this token, by its own filter.
    pub fn may_have_moved(&self, token: &Account) -> bool {
        let event = hex::decode(TRANSFER_TOPIC.trim_start_matches("0x"));
        let (Some(bloom), Ok(event)) = (&self.bloom, event) else {
            return false;
        };
        let has = |bytes: &[u8]| bloom.contains_input(BloomInput::Raw(bytes));
        has(&token.0) && has(&event)
    }

    /// The receipts of the block (`eth_getBlockReceipts`). [`EvmBlock::without_receipt`] says which are missing: nodes of
    /// Polygon leave out those of state syncs.
    ///
    /// # Errors
    /// [`BlockError`] when one is of another block, there twice, or cannot be read.
    pub fn receipts(&self, receipts: &Value) -> Result<Vec<TransferReceipt>, BlockError> {
        let listed = receipts.as_array();
        let listed = listed.ok_or(BlockError("the answer is not a list of receipts"))?;
        let receipts: Vec<_> = listed
            .iter()
            .map(|receipt| TransferReceipt::read(receipt, &self.header.block))
            .collect::<Result<_, _>>()?;
        let named: BTreeSet<_> = receipts.iter().map(|receipt| receipt.tx).collect();
        if named.len() != receipts.len() {
            return Err(BlockError("two receipts belong to the same transaction"));
        }
        Ok(receipts)
    }

    /// The transactions of the block that have none of these receipts, in their order.
    pub fn without_receipt(&self, receipts: &[TransferReceipt]) -> Vec<[u8; 32]> {
        let named: BTreeSet<_> = receipts.iter().map(|receipt| receipt.tx).collect();
        let hashes = self.transactions.iter().map(|it| it.hash);
        hashes.filter(|hash| !named.contains(hash)).collect()
    }
}

/// What receipts of a block say was moved of these tokens, in order.
pub fn tokens_of(receipts: &[TransferReceipt], contracts: &BTreeSet<Account>) -> Vec<Candidate> {
    let moved = receipts.iter().filter(|receipt| receipt.success);
    let moved = moved.flat_map(|receipt| {
        receipt.logs.iter().filter_map(|(number, moved)| {
            let moved = moved.filter(|moved| contracts.contains(&moved.asset))?;
            Some(Candidate {
                tx: receipt.tx,
                place: CandidatePlace::LogOfBlock(*number),
                from: moved.from,
                to: moved.to,
                asset: Some(moved.asset),
                amount: moved.amount,
            })
        })
    });
    let mut moved: Vec<_> = moved.filter(Candidate::moves_something).collect();
    moved.sort_by_key(|candidate| (candidate.place, candidate.tx));
    moved
}

/// Whether a root is of any transactions. Chains without roots have zeros there.
fn names_transactions(root: &str) -> bool {
    let digits = root.trim_start_matches("0x");
    !root.eq_ignore_ascii_case(NO_TRANSACTIONS) && digits.bytes().any(|digit| digit != b'0')
}

/// The filter of a block's logs; `None` for zeros: there are no logs, or the chain has no filters.
fn bloom(value: &Value) -> Option<Bloom> {
    let mut bloom = Bloom::ZERO;
    hex::decode_to_slice(value.as_str()?.strip_prefix("0x")?, bloom.as_mut_slice()).ok()?;
    (!bloom.is_zero()).then_some(bloom)
}

impl BlockTransaction {
    fn read(transaction: &Value) -> Option<Self> {
        let to = match transaction.get("to") {
            None | Some(Value::Null) => None,
            Some(to) => Some(account(to)?),
        };
        Some(Self {
            hash: hash_in(transaction, "hash")?,
            from: account_in(transaction, "from")?,
            to,
            value: amount(transaction.get("value")?)?,
        })
    }
}

impl TransferReceipt {
    /// A transfer of the transaction, by the receipt of its transaction; `None` when that has failed.
    ///
    /// # Errors
    /// [`BlockError`] when the receipt is of another transaction or contradicts what was said before.
    pub fn confirm(&self, candidate: &Candidate) -> Result<Option<Transfer>, BlockError> {
        if self.tx != candidate.tx {
            return Err(BlockError("the receipt belongs to another transaction"));
        }
        let mut amount = candidate.amount;
        let index = match candidate.place {
            CandidatePlace::Fee => match self.fee {
                Some(fee) => {
                    amount = fee;
                    TransferIndex::Fee
                }
                None => return Ok(None),
            },
            CandidatePlace::Value if !self.success => return Ok(None),
            CandidatePlace::Value => TransferIndex::Value,
            // Its trace is wrong: the balance tells what there is.
            CandidatePlace::Certain(_) if !self.success => return Ok(None),
            CandidatePlace::Certain(index) => index,
            CandidatePlace::LogOfBlock(number) => {
                let of = |(at, (is, _)): (usize, &(u64, _))| (*is == number).then_some(at);
                let at = self.logs.iter().enumerate().find_map(of);
                let at = at.ok_or(BlockError("the receipt does not have a log of the block"))?;
                let said = self.logs.get(at).and_then(|(_, moved)| *moved);
                let moved = LogTransfer {
                    asset: candidate.asset.unwrap_or(COIN_LOGS),
                    from: candidate.from,
                    to: candidate.to,
                    amount: candidate.amount,
                };
                if !self.success || said != Some(moved) {
                    return Err(BlockError("the receipt contradicts a log of the block"));
                }
                let at = u32::try_from(at);
                TransferIndex::Log(at.map_err(|_| BlockError("the receipt has too many logs"))?)
            }
        };
        Ok(Some(Transfer {
            tx: candidate.tx,
            index,
            from: candidate.from,
            to: candidate.to,
            asset: candidate.asset,
            amount,
        }))
    }

    /// The receipt of a transaction of a block.
    ///
    /// # Errors
    /// [`BlockError`] when there is none, it is of another block, or cannot be read.
    pub fn read(receipt: &Value, block: &BlockRef) -> Result<Self, BlockError> {
        if hash_in(receipt, "blockHash") != Some(block.hash) {
            return Err(BlockError("the receipt belongs to another block"));
        }
        let tx = hash_in(receipt, "transactionHash");
        let tx = tx.ok_or(BlockError("the receipt names no transaction"))?;
        let success = match number_in(receipt, "status") {
            Some(1) => true,
            Some(0) => false,
            _ => return Err(BlockError("the receipt has no status")),
        };
        let logs = receipt.get("logs").and_then(Value::as_array);
        let logs = logs.ok_or(BlockError("the receipt has no list of logs"))?;
        let read = |log: &Value| {
            let (of, number, moved) = read_log(log, block)?;
            match of == tx {
                true => Ok((number, moved)),
                false => Err(BlockError(
                    "a log of the receipt belongs to another transaction",
                )),
            }
        };
        Ok(Self {
            tx,
            success,
            fee: fee(receipt),
            logs: logs.iter().map(read).collect::<Result<_, _>>()?,
        })
    }
}

/// The gas that was used at the price that was paid, and what rollups charge beside it (`l1Fee` of OP stack chains and
/// others) for the data on the chain below. Not known on Mantle, whose `l1Fee` is in the gas too.
fn fee(receipt: &Value) -> Option<[u8; 32]> {
    if receipt.get("tokenRatio").is_some() {
        return None;
    }
    let number = |field: &str| {
        let amount = amount(receipt.get(field)?)?;
        Some(U256::from_be_bytes(amount))
    };
    let gas = number("gasUsed")?.checked_mul(number("effectiveGasPrice")?)?;
    let data = match receipt.get("l1Fee") {
        None | Some(Value::Null) => U256::ZERO,
        Some(_) => number("l1Fee")?,
    };
    Some(gas.checked_add(data)?.to_be_bytes())
}

/// The transaction of a log, its number within the block, and what it moves if it is one of a transfer of EIP-20:
/// exactly three topics and 32 bytes. Those of EIP-721 have four.
fn read_log(
    log: &Value,
    block: &BlockRef,
) -> Result<([u8; 32], u64, Option<LogTransfer>), BlockError> {
    if hash_in(log, "blockHash") != Some(block.hash) {
        return Err(BlockError("a log belongs to another block"));
    }
    if log.get("removed").and_then(Value::as_bool) == Some(true) {
        return Err(BlockError("a log belongs to a block that was replaced"));
    }
    let tx = hash_in(log, "transactionHash");
    let tx = tx.ok_or(BlockError("a log names no transaction"))?;
    let number = number_in(log, "logIndex").ok_or(BlockError("a log has no number"))?;
    let asset = account_in(log, "address").ok_or(BlockError("a log names no contract"))?;
    let topics = log.get("topics").and_then(Value::as_array);
    let topics = topics.ok_or(BlockError("a log has no topics"))?;
    let data = log.get("data").and_then(Value::as_str);
    let data = data.and_then(|data| data.strip_prefix("0x"));
    let data = data.ok_or(BlockError("a log has no data"))?;
    let moved = || {
        let [event, from, to] = topics.as_slice() else {
            return None;
        };
        if !event.as_str()?.eq_ignore_ascii_case(TRANSFER_TOPIC) {
            return None;
        }
        let mut amount = [0; 32];
        hex::decode_to_slice(data, &mut amount).ok()?;
        Some(LogTransfer {
            asset,
            from: account_of_word(hash(from)?)?,
            to: account_of_word(hash(to)?)?,
            amount,
        })
    };
    Ok((tx, number, moved()))
}

fn hash(value: &Value) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(value.as_str()?.strip_prefix("0x")?, &mut bytes).ok()?;
    Some(bytes)
}

pub(super) fn hash_in(object: &Value, field: &str) -> Option<[u8; 32]> {
    hash(object.get(field)?)
}

fn account(value: &Value) -> Option<Account> {
    let mut bytes = [0; 20];
    hex::decode_to_slice(value.as_str()?.strip_prefix("0x")?, &mut bytes).ok()?;
    Some(Account(bytes))
}

pub(super) fn account_in(object: &Value, field: &str) -> Option<Account> {
    account(object.get(field)?)
}

/// An address as events have it: 12 zeros before it.
fn account_of_word(word: [u8; 32]) -> Option<Account> {
    let (zeros, account) = word.split_last_chunk::<20>()?;
    let is_address = zeros.iter().all(|byte| *byte == 0);
    is_address.then_some(Account(*account))
}

pub(super) fn amount(value: &Value) -> Option<[u8; 32]> {
    let digits = value.as_str()?.strip_prefix("0x")?;
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex || !(1..=64).contains(&digits.len()) {
        return None;
    }
    Some(U256::from_str_radix(digits, 16).ok()?.to_be_bytes())
}

fn number_in(object: &Value, field: &str) -> Option<u64> {
    let digits = object.get(field)?.as_str()?.strip_prefix("0x")?;
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex
        .then(|| u64::from_str_radix(digits, 16).ok())
        .flatten()
}

#[cfg(test)]
#[path = "transfers_tests.rs"]
mod tests;
