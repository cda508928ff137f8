//! What accounts have now, each with the block that the node has named in the same answer: which node answers, and how far
//! behind it is, is not known otherwise.

use std::{collections::BTreeMap, time::Duration};

use covault_core::{
    deposit::{
        DepositNetwork,
        transfer::{Account, NOBODY},
    },
    networks::evm::balances,
};
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::{TronNode, http::post, tried};
use crate::chain_rpc::{
    BalanceNow, ChainError, blocks::same_now, client::ChainCall as _, exchange::ParsedResponse,
};

/// An account, and a token or the coin.
type Question = (Account, Option<Account>);

/// Balances of one call: a call that is tried may take some ten milliseconds at a node.
const TOGETHER: usize = 50;
/// Questions of one balance each that are asked at the same time.
const AT_ONCE: usize = 4;
/// How long balances of one call may take in all, also where they are asked for one by one: blocks wait for that.
const PATIENCE: Duration = Duration::from_secs(10);

impl TronNode {
    /// What accounts have. Each token is asked about by itself: one of which nodes say nothing holds up no other.
    pub(super) async fn all_balances(
        &self,
        of: &[Question],
    ) -> Result<Vec<Option<BalanceNow>>, ChainError> {
        let mut by_token: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (place, question) in of.iter().enumerate() {
            let (_, token) = question;
            let of_token: &mut Vec<_> = by_token.entry(*token).or_default();
            of_token.push((place, *question));
        }
        let (mut said, mut problem) = (BTreeMap::new(), None);
        for some in by_token.values().flat_map(|all| all.chunks(TOGETHER)) {
            let (places, questions): (Vec<_>, Vec<_>) = some.iter().copied().unzip();
            match self.balances_of(&questions).await {
                Ok(found) => said.extend(places.into_iter().zip(found)),
                Err(error) => problem = Some(error),
            }
        }
        match problem {
            Some(error) if said.is_empty() => Err(error),
            _ => Ok((0..of.len())
                .map(|place| said.get(&place).copied().flatten())
                .collect()),
        }
    }

    /// What accounts have, by one call, or by one call each: nodes that are not at the same block differ in what was just paid.
    async fn balances_of(&self, of: &[Question]) -> Result<Vec<Option<BalanceNow>>, ChainError> {
        let end = Instant::now() + PATIENCE;
        let problem = match self.said_until(end, of).await {
            Ok(said) => return Ok(said),
            Err(problem) => problem,
        };
        let each: Vec<_> = of.chunks(1).map(|one| self.said_until(end, one)).collect();
        let mut each = stream::iter(each).buffered(AT_ONCE);
        let (mut found, mut is_said) = (Vec::with_capacity(of.len()), false);
        while let Some(said) = each.next().await {
            is_said |= said.is_ok();
            found.push(said.ok().and_then(|said| said.first().copied().flatten()));
            if !is_said && found.len() >= AT_ONCE.min(of.len()) {
                return Err(problem);
            }
        }
        Ok(found)
    }

    async fn said_until(
        &self,
        end: Instant,
        of: &[Question],
    ) -> Result<Vec<Option<BalanceNow>>, ChainError> {
        let said = timeout_at(end, self.balances_together(of)).await;
        said.unwrap_or_else(|_| {
            Err(ChainError::unknown(
                "the nodes take too long to say balances",
            ))
        })
    }

    /// What accounts have, by one call of a program that is on no chain ([`balances`]).
    async fn balances_together(
        &self,
        of: &[Question],
    ) -> Result<Vec<Option<BalanceNow>>, ChainError> {
        let data = balances::call_data(of);
        let question = json!({
            "owner_address": NOBODY.text(DepositNetwork::Tron),
            "data": data.trim_start_matches("0x"),
            "visible": true,
        });
        let question = post("triggerconstantcontract", question).costly();
        let call = question.about("balances").reading(|found: &Value| {
            tried(found).and_then(|tried| {
                let output = match tried {
                    Ok(tried) => json!(format!("0x{}", hex::encode(tried.output))),
                    Err(words) => {
                        let problem =
                            format!("the node does not run the question for balances: {words}");
                        return ParsedResponse::Malformed(problem);
                    }
                };
                match balances::read(&output, of.len()) {
                    Ok(said) => ParsedResponse::Value(said),
                    Err(error) => ParsedResponse::Malformed(error.to_string()),
                }
            })
        });
        let (block, said) = self.http.quorum(call, same_now).await?;
        let now = |balance: Option<[u8; 32]>| balance.map(|balance| BalanceNow { block, balance });
        Ok(said.into_iter().map(now).collect())
    }
}
