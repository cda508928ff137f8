//! Blocks of TRON: `getblockbynum`, and `gettransactioninfobyblocknum` for what became of its transactions. Final is what
//! `walletsolidity/getnowblock` says.

use std::collections::BTreeSet;

use async_trait::async_trait;
use covault_core::{
    deposit::transfer::{Account, BlockHeader, BlockRef, Candidate, CandidatePlace, Transfer},
    networks::tron::transfers::{BlockError, TronBlock, read_header},
};
use serde_json::{Value, json};

use super::{
    TronNode,
    http::{post, solid},
};
use crate::chain_rpc::{
    BlockSource, ChainBlock, ChainError, client::Call as _, exchange::ParsedResponse,
};

/// How far the newest blocks of nodes may be apart.
const MOST_APART: u64 = 64;

/// What a node said, or why it is not taken.
fn taken<T>(read: Result<T, BlockError>) -> ParsedResponse<T> {
    match read {
        Ok(value) => ParsedResponse::Value(value),
        Err(error) => ParsedResponse::Malformed(format!("the node is not believed: {error}")),
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

#[async_trait]
impl BlockSource for TronNode {
    async fn newest(&self) -> Result<u64, ChainError> {
        let call = post("getnowblock", json!({})).about("the newest block");
        let number = |block: &Value| Some(read_header(block).ok()?.block.number);
        let same = |one: &u64, other: &u64| one.abs_diff(*other) <= MOST_APART;
        Ok(self.http.query_quorum_by(call, number, same).await?)
    }

    /// The lowest that one of the nodes names that have to agree: one that is ahead may lie.
    async fn newest_final(&self) -> Result<Option<BlockRef>, ChainError> {
        let call = solid("getnowblock", json!({})).about("the newest solid block");
        let call = call.reading(|block: &Value| header_if(block, |_| true));
        let said = self.http.voices(call, |_, _| true).await?;
        let blocks = said.into_iter().flatten().map(|header| header.block);
        Ok(blocks.min_by_key(|block| block.number))
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
        let Some(block) = self.http.agreed(call, Option::eq).await? else {
            return Ok(None);
        };
        let call = post("gettransactioninfobyblocknum", json!({"num": number}));
        let call = call.about("the results of a block").list();
        let call = call.reading(|infos: &Value| taken(block.transfers(infos, tokens)));
        let candidates = self.http.agreed(call, Vec::eq).await?;
        Ok(Some(ChainBlock {
            header: block.header,
            candidates,
        }))
    }

    async fn header_at(&self, number: u64) -> Result<BlockHeader, ChainError> {
        let call = post("getblockbynum", json!({"num": number})).about("a block");
        let call = call.of_blocks();
        let call = call.reading(|block: &Value| header_if(block, |it| it.number == number));
        Ok(self.http.agreed(call, BlockHeader::eq).await?)
    }

    async fn header_of(&self, block: &BlockRef) -> Result<BlockHeader, ChainError> {
        let value = hex::encode(block.hash);
        let call = post("getblockbyid", json!({"value": value})).about("a block");
        let call = call.of_blocks();
        let call = call.reading(|found: &Value| header_if(found, |it| it == block));
        Ok(self.http.agreed(call, BlockHeader::eq).await?)
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
            CandidatePlace::Value | CandidatePlace::LogOfBlock(_) => {
                Err(ChainError::unknown("a transfer whose result is not known"))
            }
        };
        candidates.iter().map(transfer).collect()
    }
}
