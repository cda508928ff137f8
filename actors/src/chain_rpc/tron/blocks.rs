//! Blocks of TRON: `getblockbynum`, and `gettransactioninfobyblocknum` for what became of its transactions. Final is what
//! `walletsolidity` calls the newest.

use std::collections::BTreeSet;

use async_trait::async_trait;
use covault_core::{
    deposit::transfer::{Account, BlockHeader, BlockRef, Candidate, CandidatePlace, Transfer},
    networks::tron::transfers::{BlockError, TronBlock, read_header},
};
use serde_json::{Value, json};

use super::{
    TronNode,
    http::{TronQuery, post, solid},
};
use crate::chain_rpc::{
    BalanceNow, BlockSource, ChainBlock, ChainError,
    blocks::{APART, final_blocks, newest_of},
    client::ChainCall as _,
    exchange::ParsedResponse,
};

/// What a node said, or why it is not taken.
fn taken<T>(read: Result<T, BlockError>) -> ParsedResponse<T> {
    match read {
        Ok(value) => ParsedResponse::Value(value),
        Err(error) => {
            ParsedResponse::Malformed(format!("the node's answer is not accepted: {error}"))
        }
    }
}

/// A header, which is that of the block that was asked for.
fn header_if(block: &Value, is_it: impl Fn(&BlockRef) -> bool) -> ParsedResponse<BlockHeader> {
    taken(
        read_header(block).and_then(|header| match is_it(&header.block) {
            true => Ok(header),
            false => Err(BlockError("it gives another block than was asked for")),
        }),
    )
}

impl TronNode {
    /// The headers of the newest blocks that nodes name, of as many as have to agree. Whole blocks are megabytes: only
    /// nodes that do not know a call for headers are asked for them.
    async fn newest_headers(
        &self,
        of: fn(&str, Value) -> TronQuery,
        subject: &'static str,
    ) -> Result<Vec<BlockRef>, ChainError> {
        let same = |one: &BlockRef, other: &BlockRef| one.number.abs_diff(other.number) <= APART;
        let read = |block: &Value| taken(read_header(block).map(|header| header.block));
        let header = of("getblock", json!({"detail": false})).about(subject);
        let said = self
            .http
            .query_several_best_effort(header.reading(read))
            .await;
        let said: Vec<_> = said.into_iter().flatten().collect();
        let is_enough = said.len() >= self.http.agree();
        if is_enough
            && said
                .iter()
                .all(|one| said.iter().all(|other| same(one, other)))
        {
            return Ok(said);
        }
        let whole = of("getnowblock", json!({})).about(subject).of_blocks();
        let said = self.http.voices(whole.reading(read), same).await?;
        Ok(said.into_iter().flatten().collect())
    }
}

#[async_trait]
impl BlockSource for TronNode {
    async fn newest(&self) -> Result<u64, ChainError> {
        let said = self.newest_headers(post, "the newest block").await?;
        let numbers = said.into_iter().map(|block| block.number).collect();
        newest_of(numbers, self.http.agree())
            .ok_or_else(|| self.http.disagree("the newest block").into())
    }

    async fn newest_final(&self) -> Result<Vec<BlockRef>, ChainError> {
        let said = self.newest_headers(solid, "the newest solid block").await?;
        Ok(final_blocks(said, self.http.agree()))
    }

    fn traces(&self) -> &'static str {
        "gettransactioninfobyblocknum"
    }

    fn take_longest(&self) -> usize {
        self.http.take_longest()
    }

    async fn block(
        &self,
        number: u64,
        tokens: &BTreeSet<Account>,
    ) -> Result<Option<ChainBlock>, ChainError> {
        let call = post("getblockbynum", json!({"num": number})).about("a block");
        let call = call.of_blocks().reading(|block: &Value| {
            // A block that is not there is an empty object.
            if block.as_object().is_some_and(serde_json::Map::is_empty) {
                return ParsedResponse::Value(None);
            }
            taken(TronBlock::read(block).and_then(|block| {
                match block.header.block.number == number {
                    true => Ok(Some(block)),
                    false => Err(BlockError("it gives another block than was asked for")),
                }
            }))
        });
        let Some(block) = self.http.seconded_or_none(call).await? else {
            return Ok(None);
        };
        let call = post("gettransactioninfobyblocknum", json!({"num": number}));
        let call = call.about("the results of a block").list();
        let call = call.reading(|infos: &Value| taken(block.transfers(infos, tokens)));
        let candidates = self.http.quorum(call, Vec::eq).await?;
        Ok(Some(ChainBlock {
            header: block.header,
            candidates,
        }))
    }

    async fn header_at(&self, number: u64) -> Result<BlockHeader, ChainError> {
        let call = post("getblockbynum", json!({"num": number})).about("a block");
        let call = call.of_blocks();
        let call = call.reading(|block: &Value| header_if(block, |it| it.number == number));
        Ok(self.http.quorum(call, BlockHeader::eq).await?)
    }

    async fn header_of(&self, block: &BlockRef) -> Result<BlockHeader, ChainError> {
        let value = hex::encode(block.hash);
        let call = post("getblockbyid", json!({"value": value})).about("a block");
        let call = call.of_blocks();
        let call = call.reading(|found: &Value| header_if(found, |it| it == block));
        Ok(self.http.quorum(call, BlockHeader::eq).await?)
    }

    /// The block has said so.
    async fn confirm(
        &self,
        _: &BlockRef,
        candidates: &[Candidate],
    ) -> Result<Vec<Transfer>, ChainError> {
        let transfer = |candidate: &Candidate| match candidate.place {
            CandidatePlace::Certain(index) => Ok(Transfer {
                tx: candidate.tx,
                index,
                from: candidate.from,
                to: candidate.to,
                asset: candidate.asset,
                amount: candidate.amount,
            }),
            CandidatePlace::Value | CandidatePlace::Fee | CandidatePlace::LogOfBlock(_) => {
                Err(ChainError::unknown("a transfer whose result is not known"))
            }
        };
        candidates.iter().map(transfer).collect()
    }

    async fn balances_now(
        &self,
        of: &[(Account, Option<Account>)],
    ) -> Result<Vec<Option<BalanceNow>>, ChainError> {
        self.all_balances(of).await
    }
}
