//! Blocks of EVM chains: `eth_getBlockByNumber`, then `eth_getLogs` by the hash that it named, then the receipts of what
//! matters. docs/deposits.md says how many calls that is.

use std::collections::BTreeSet;

use async_trait::async_trait;
use covault_core::{
    deposit::transfer::{Account, BlockHeader, BlockRef, Candidate, Transfer},
    fault::ExecuteCode,
    networks::evm::{
        balances,
        transfers::{
            BlockError, COIN_LOGS, EvmBlock, TRANSFER_TOPIC, TokenLogs, TransferReceipt,
            read_header, tokens_of,
        },
    },
};
use futures::future::try_join_all;
use serde_json::{Value, json};

use super::{EvmNode, knows_no_such_block};
use crate::chain_rpc::{
    BalanceNow, BlockBalances, BlockSource, ChainBlock, ChainError,
    blocks::{APART, final_blocks, newest_of, same_now},
    client::{ChainCall as _, Refusal as _},
    exchange::ParsedResponse,
    jsonrpc::{RpcCall, RpcCallError, RpcCalls, quantity},
};

/// Receipts in one HTTP request: one of a transaction with many logs may be a megabyte.
const RECEIPTS: usize = 10;

/// What a node said, or why it is not taken.
fn taken<T>(read: Result<T, BlockError>) -> ParsedResponse<T> {
    match read {
        Ok(value) => ParsedResponse::Value(value),
        Err(error) => {
            ParsedResponse::Malformed(format!("the node's answer is not accepted: {error}"))
        }
    }
}

fn unknown(error: BlockError) -> ChainError {
    ChainError::Unknown(format!("the nodes' answer is not accepted: {error}"))
}

impl EvmNode {
    /// The logs of the transfers of these tokens in a block.
    async fn token_logs(
        &self,
        block: &EvmBlock,
        tokens: &BTreeSet<Account>,
    ) -> Result<Vec<Candidate>, ChainError> {
        if tokens.is_empty() {
            return Ok(Vec::new());
        }
        if self.follow.receipts {
            return Ok(tokens_of(&self.all_receipts(block).await?, tokens));
        }
        let hash = |hash: &[u8]| format!("0x{}", hex::encode(hash));
        let addresses: Vec<_> = tokens.iter().map(|token| hash(&token.0)).collect();
        let filter = json!({
            "blockHash": hash(&block.header.block.hash),
            "address": addresses,
            "topics": [TRANSFER_TOPIC],
        });
        let call = RpcCall("eth_getLogs", json!([filter]));
        let call = call.reading(|logs: &Value| taken(block.tokens(logs, tokens)));
        let mut logs = self.rpc.quorum(call, TokenLogs::eq).await?;
        if !self.has_coin_logs() && !self.follow.traces {
            // The filters of full blocks name by chance what most chains never have. Where blocks are traced, a node without
            // its logs yet must not have their transfers told by the trace.
            logs.missing.remove(&COIN_LOGS);
        }
        if logs.missing.is_empty() {
            return Ok(logs.moved);
        }
        // A node that has the block, and not its logs yet, answers with none. Only the receipts can tell that from a
        // filter that is wrong.
        let receipts = self.all_receipts(block).await?;
        let read: BTreeSet<_> = receipts.iter().map(|receipt| receipt.tx).collect();
        let mut moved: BTreeSet<_> = tokens_of(&receipts, tokens).into_iter().collect();
        for one in logs.moved {
            match read.contains(&one.tx) {
                // Of a transaction that the block does not list, as those of state syncs: its own receipt confirms it.
                false => {
                    moved.insert(one);
                }
                true if moved.contains(&one) => {}
                true => return Err(unknown(BlockError("the receipts of the block lack a log"))),
            }
        }
        Ok(moved.into_iter().collect())
    }

    /// The receipts of all transactions of a block: in one call, or one by one where the nodes do not have that.
    async fn all_receipts(&self, block: &EvmBlock) -> Result<Vec<TransferReceipt>, ChainError> {
        let hash = format!("0x{}", hex::encode(block.header.block.hash));
        let call = RpcCall("eth_getBlockReceipts", json!([hash]));
        let call = call.reading(|receipts: &Value| taken(block.receipts(receipts)));
        match self.rpc.quorum(call, Vec::eq).await {
            Ok(mut receipts) => {
                let missing = block.without_receipt(&receipts);
                receipts.extend(self.receipts_of(&block.header.block, &missing).await?);
                Ok(receipts)
            }
            Err(RpcCallError::Node(_)) => {
                let transactions: Vec<_> = block.transactions.iter().map(|it| it.hash).collect();
                self.receipts_of(&block.header.block, &transactions).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The receipts of these transactions of a block, in their order.
    async fn receipts_of(
        &self,
        block: &BlockRef,
        transactions: &[[u8; 32]],
    ) -> Result<Vec<TransferReceipt>, ChainError> {
        let mut receipts = Vec::with_capacity(transactions.len());
        for some in transactions.chunks(RECEIPTS) {
            let found = self.receipts(block, some).await?;
            let fit = found.iter().map(|receipt| &receipt.tx).eq(some);
            if !fit {
                return Err(unknown(BlockError("a receipt is missing")));
            }
            receipts.extend(found);
        }
        Ok(receipts)
    }

    async fn receipts(
        &self,
        block: &BlockRef,
        transactions: &[[u8; 32]],
    ) -> Result<Vec<TransferReceipt>, ChainError> {
        let call = |tx: &[u8; 32]| {
            let hash = format!("0x{}", hex::encode(tx));
            RpcCall("eth_getTransactionReceipt", json!([hash]))
        };
        let read = |receipt: &Value| taken(TransferReceipt::read(receipt, block));
        let several = RpcCalls(transactions.iter().map(call).collect());
        let several = several.reading(|answers: &Vec<Result<Value, _>>| {
            let receipts = answers.iter().map(|answer| match answer {
                Ok(receipt) => TransferReceipt::read(receipt, block),
                Err(_) => Err(BlockError("it gives no receipt")),
            });
            taken(receipts.collect::<Result<Vec<_>, _>>())
        });
        if transactions.len() > 1 {
            match self.rpc.quorum(several, Vec::eq).await {
                // It takes no two questions at once, or gave up on this many.
                Err(RpcCallError::Node(_)) => {}
                answer => return Ok(answer?),
            }
        }
        let each = transactions
            .iter()
            .map(|tx| self.rpc.quorum(call(tx).reading(read), TransferReceipt::eq));
        Ok(try_join_all(each).await?)
    }
}

#[async_trait]
impl BlockSource for EvmNode {
    async fn newest(&self) -> Result<u64, ChainError> {
        let number = |number: &Value| u64::try_from(quantity(number)?).ok();
        let same = |one: &u64, other: &u64| one.abs_diff(*other) <= APART;
        let call = RpcCall("eth_blockNumber", json!([])).taking(number);
        let said = self.rpc.voices(call, same).await?;
        let numbers = said.into_iter().collect::<Result<Vec<_>, _>>();
        let numbers = numbers.map_err(RpcCallError::Node)?;
        let newest = newest_of(numbers, self.rpc.agree());
        let newest = newest.ok_or_else(|| self.rpc.disagree("the newest block"))?;
        self.newest_is(newest);
        Ok(newest)
    }

    async fn newest_final(&self) -> Result<Vec<BlockRef>, ChainError> {
        let call = RpcCall("eth_getBlockByNumber", json!(["finalized", false]));
        let call = call.reading(|block: &Value| match block {
            // A chain that has just begun.
            Value::Null => ParsedResponse::Value(None),
            block => taken(read_header(block).map(|header| Some(header.block))),
        });
        // All are asked where one is stuck, or lies.
        let same = |one: &Option<BlockRef>, other: &Option<BlockRef>| match (one, other) {
            (Some(one), Some(other)) => one.number.abs_diff(other.number) <= APART,
            (one, other) => one == other,
        };
        let (mut named, mut without_word, mut refusal) = (Vec::new(), 0_usize, None);
        for one in self.rpc.voices(call, same).await? {
            match one {
                Ok(Some(block)) => named.push(block),
                Ok(None) => without_word = without_word.saturating_add(1),
                Err(error) if knows_no_such_block(&error) => {
                    without_word = without_word.saturating_add(1);
                }
                Err(error) => refusal = Some(error),
            }
        }
        let agree = self.rpc.agree();
        let blocks = final_blocks(named, agree);
        match refusal {
            _ if !blocks.is_empty() || without_word >= agree => Ok(blocks),
            Some(refusal) => Err(RpcCallError::Node(refusal).into()),
            None => Err(self.rpc.disagree("the newest final block").into()),
        }
    }

    fn traces(&self) -> &'static str {
        self.trace_method()
    }

    fn take_longest(&self) -> usize {
        self.rpc.take_longest()
    }

    async fn block(
        &self,
        number: u64,
        tokens: &BTreeSet<Account>,
    ) -> Result<Option<ChainBlock>, ChainError> {
        let params = json!([format!("{number:#x}"), true]);
        let call = RpcCall("eth_getBlockByNumber", params);
        let call = call.reading(|block: &Value| match block {
            Value::Null => ParsedResponse::Value(None),
            block => taken(EvmBlock::read(block).and_then(|block| {
                match block.header.block.number == number {
                    true => Ok(Some(block)),
                    false => Err(BlockError("it gives another block than was asked for")),
                }
            })),
        });
        let Some(block) = self.rpc.seconded_or_none(call).await? else {
            return Ok(None);
        };
        let mut candidates: Vec<_> = block.values().chain(block.fees()).collect();
        let mut asked = tokens.clone();
        if block.may_have_moved(&COIN_LOGS) {
            asked.insert(COIN_LOGS);
        }
        let logs = self.token_logs(&block, &asked).await?;
        let is_coin = |log: &Candidate| log.asset == Some(COIN_LOGS);
        let (coin, moved): (Vec<_>, Vec<_>) = logs.into_iter().partition(is_coin);
        candidates.extend(moved);
        candidates.extend(match block.passed_on_by_logs(&coin) {
            Some(passed_on) => {
                self.coin_logs_found();
                passed_on
            }
            None => self.passed_on(&block).await,
        });
        Ok(Some(ChainBlock {
            header: block.header,
            candidates,
        }))
    }

    async fn header_at(&self, number: u64) -> Result<BlockHeader, ChainError> {
        let params = json!([format!("{number:#x}"), false]);
        let call = RpcCall("eth_getBlockByNumber", params).reading(|block: &Value| {
            taken(
                read_header(block).and_then(|header| match header.block.number == number {
                    true => Ok(header),
                    false => Err(BlockError("it gives another block than was asked for")),
                }),
            )
        });
        Ok(self.rpc.quorum(call, BlockHeader::eq).await?)
    }

    async fn header_of(&self, block: &BlockRef) -> Result<BlockHeader, ChainError> {
        let params = json!([format!("0x{}", hex::encode(block.hash)), false]);
        let call = RpcCall("eth_getBlockByHash", params).reading(|found: &Value| {
            taken(
                read_header(found).and_then(|header| match header.block == *block {
                    true => Ok(header),
                    false => Err(BlockError("it gives another block than was asked for")),
                }),
            )
        });
        Ok(self.rpc.quorum(call, BlockHeader::eq).await?)
    }

    async fn confirm(
        &self,
        block: &BlockRef,
        candidates: &[Candidate],
    ) -> Result<Vec<Transfer>, ChainError> {
        let transactions: BTreeSet<_> = candidates.iter().map(|candidate| candidate.tx).collect();
        let transactions: Vec<_> = transactions.into_iter().collect();
        let receipts = self.receipts_of(block, &transactions).await?;
        let mut transfers = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let receipt = receipts.iter().find(|receipt| receipt.tx == candidate.tx);
            let receipt = receipt.ok_or(BlockError("a receipt is missing"));
            let transfer = receipt.and_then(|receipt| receipt.confirm(candidate));
            transfers.extend(transfer.map_err(unknown)?);
        }
        Ok(transfers)
    }

    fn has_balances(&self) -> bool {
        true
    }

    async fn balances(
        &self,
        block: u64,
        of: &[(Account, Option<Account>)],
    ) -> Result<BlockBalances, ChainError> {
        let mut found = Vec::with_capacity(of.len());
        for some in of.chunks(balances::MOST) {
            let params = json!([{"data": balances::call_data(some)}, format!("{block:#x}")]);
            let call = RpcCall("eth_call", params).reading(|returned: &Value| {
                taken(balances::read(returned, some.len()).map(|(_, said)| said))
            });
            match self.rpc.quorum(call, Vec::eq).await {
                Ok(balances) => found.extend(balances),
                // Most nodes keep the state of the last blocks only.
                Err(RpcCallError::Node(error)) => {
                    return Err(ChainError::refused(error.words(), ExecuteCode::Unspecified));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(BlockBalances {
            block,
            balances: found,
        })
    }

    async fn balances_now(
        &self,
        of: &[(Account, Option<Account>)],
    ) -> Result<Vec<Option<BalanceNow>>, ChainError> {
        let mut found = Vec::with_capacity(of.len());
        for some in of.chunks(balances::MOST) {
            let params = json!([{"data": balances::call_data(some)}, "latest"]);
            let call = RpcCall("eth_call", params)
                .reading(|returned: &Value| taken(balances::read(returned, some.len())));
            let (block, said) = self.rpc.quorum(call, same_now).await?;
            let now = |balance| BalanceNow { block, balance };
            found.extend(said.into_iter().map(|balance| balance.map(now)));
        }
        Ok(found)
    }
}
