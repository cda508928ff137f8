//! Tron nodes: the HTTP API of java-tron. Lite nodes have to answer questions about history
//! (`openHistoryQueryWhenLiteFN`): whether a transaction is there is one.
//!
//! That a request succeeded means that a node took its transaction: how a contract's call ends is
//! seen when it is mined. Calls are tried before they are signed.

mod balances;
mod blocks;
mod fees;
mod http;
mod refusals;
mod sightings;

use std::convert::Infallible;

use async_trait::async_trait;
use covault_core::{
    amount,
    fault::ExecuteCode,
    networks::{
        ChainData, DynNetworkRules as _, Payload, Queries,
        tron::{
            Block, ChainData as TronChainData, Queries as TronQueries, Tron, TronCall as Trigger,
            expires_ms, parse_address,
        },
    },
};
use serde_json::{Value, json};

use self::{
    fees::{AvailableResources, available_resources, burn_cost, check_fee_limit, prices},
    http::{TronHttp, TronQuery, post},
    refusals::{TronVerdict, expired, judge, refused},
};
use super::{
    BlockSource, BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainRefusal,
    EndpointHealth, FeeEstimate, Objection, ObjectionKind, SimulationOutcome, SimulationRequest,
    TokenFacts, TrackedTransaction, TransactionSighting, TransferBurn,
    client::{ChainCall, Client},
    evm::tokens,
    exchange::{ParsedResponse, short},
    is_void,
    pool::NodePool,
    resolve_refusal, sight_each,
    simulation::revert_reason,
    witnessed::witnessed,
};

/// Bytes that a transfer of TRX counts with, where the sender has no bandwidth left.
const TRANSFER_BYTES: u128 = 268;
/// Block 0 of mainnet.
const MAINNET: &str = "00000000000000001ebf88508a03865c71d452e25f4d51194196a1d22b6653dc";

/// How far a head block may be ahead of this machine's clock. A transaction lives 60 s from its
/// block: one of the future would make it live longer.
const MAX_AHEAD_MS: u64 = 30_000;
/// How old a head block may be; there is one every 3 s. The rest of the 60 s is for signing.
const MAX_BEHIND_MS: u64 = 20_000;
/// After this time blocks are not undone: 19 producers, 3 s each, have built on them.
const FINAL_MS: u64 = 60_000;

/// Selector of `balanceOf(address)` (TIP-20).
const BALANCE_OF: [u8; 4] = [0x70, 0xa0, 0x82, 0x31];
/// Selectors of `decimals()` and `symbol()`.
const DECIMALS: [u8; 4] = [0x31, 0x3c, 0xe5, 0x67];
const SYMBOL: [u8; 4] = [0x95, 0xd8, 0x9b, 0x41];
/// Selector of `transfer(address,uint256)` (TIP-20).
const TRANSFER: [u8; 4] = [0xa9, 0x05, 0x9c, 0xbb];

/// Bytes of a signed call beside its data, with the 64 that nodes add for its result.
const CALL_BYTES: u64 = 282;

/// Tron.
pub struct TronNode {
    http: Client<TronHttp>,
}

impl TronNode {
    /// The chain, through its nodes. They are to be on mainnet; only where all of them are on this
    /// machine is the chain not looked at: chains of tests have other first blocks.
    pub fn new(pool: NodePool) -> Self {
        let http = Client::new(pool, TronHttp);
        if http.is_local() {
            return Self { http };
        }
        let first = post("getblockbynum", json!({"num": 0})).reading(on_mainnet);
        Self {
            http: http.checked(first, |chain| Ok(chain.clone().err())),
        }
    }

    async fn fetch_chain_data(
        &self,
        queries: &TronQueries,
        now_ms: u64,
    ) -> Result<ChainData, ChainError> {
        let trial = async {
            match &queries.call {
                Some(trigger) => self.try_call(trigger).await,
                None => Ok(()),
            }
        };
        let head = last_block().reading(|block| check_block_time(block.clone(), now_ms));
        let head = async { self.http.ask(head).await.map_err(ChainError::from) };
        let (block, ()) = tokio::try_join!(head, trial)?;
        Ok(TronChainData::from(block).into())
    }

    /// Whether a call goes through and can be paid. Nodes take calls unseen, and one that fails
    /// costs what it burns anyway.
    async fn try_call(&self, trigger: &Trigger) -> Result<(), ChainError> {
        let balance = account(&trigger.from).about("an account").taking(sun);
        let (prices, balance) = tokio::try_join!(
            self.http.query_quorum(parameters(), prices),
            self.http.highest(balance),
        )?;
        let bytes = CALL_BYTES.saturating_add(trigger.data.len().try_into().unwrap_or(u64::MAX));
        let coins = |energy| burn_cost(energy, bytes, &prices, &AvailableResources::COINS_ONLY);
        // What nodes have to agree on: of the energy that they name, whether the limit and the coins are enough for it.
        let verdict = |tried: &Result<ConstantCallResult, String>| {
            let energy = tried.as_ref().ok()?.energy;
            let is_within = check_fee_limit(trigger, energy, &prices).is_ok();
            Some((is_within, balance >= coins(energy)))
        };
        let same = |one: &_, other: &_| verdict(one) == verdict(other);
        let said = self
            .http
            .voices(trial(trigger).reading(tried), same)
            .await?;
        let said: Vec<_> = said.into_iter().flatten().collect();
        let agreed = self
            .http
            .agreed_of(&said.iter().map(verdict).collect::<Vec<_>>());
        let agreed = agreed.ok_or_else(|| self.http.disagree("a call"))?;
        let of_these = said.into_iter().filter(|tried| verdict(tried) == agreed);
        let energy = match of_these.reduce(lower) {
            Some(Ok(tried)) => tried.energy,
            Some(Err(words)) => return Err(self.failure_reason(trigger, &words).await),
            None => return Err(self.http.disagree("a call").into()),
        };
        check_fee_limit(trigger, energy, &prices)?;
        if balance >= coins(energy) {
            return Ok(());
        }
        let means = self.available_resources(trigger).await?;
        let most = burn_cost(energy, bytes, &prices, &means);
        if balance >= most {
            return Ok(());
        }
        Err(refused(
            format!("the sender has {balance} sun, and the call burns {most} sun"),
            ExecuteCode::InsufficientGasFee,
        ))
    }

    async fn available_resources(
        &self,
        trigger: &Trigger,
    ) -> Result<AvailableResources, ChainError> {
        let resources = post(
            "getaccountresource",
            json!({"address": trigger.from, "visible": true}),
        );
        let contract = post(
            "getcontract",
            json!({"value": trigger.contract, "visible": true}),
        );
        let percent = |found: &Value| number(found, "consume_user_resource_percent");
        let resources = resources.about("resources").taking(available_resources);
        let (means, percent) = tokio::try_join!(
            self.http.highest(resources),
            self.http
                .query_quorum(contract.about("a contract"), percent),
        )?;
        Ok(AvailableResources { percent, ..means })
    }

    /// Why a call fails: contracts often do not say.
    async fn failure_reason(&self, trigger: &Trigger, words: &str) -> ChainError {
        let amount: Option<[u8; 32]> = trigger
            .data
            .strip_prefix(&TRANSFER)
            .and_then(|arguments| arguments.get(32..)?.try_into().ok());
        if let (Some(amount), Some(question)) =
            (amount, balance_of(&trigger.from, &trigger.contract))
            && let Ok(Some(word)) = self.http.ask(question.reading(holding)).await
            // Both are big-endian words.
            && word < amount
        {
            return refused(
                format!("the sender has less of the token than the amount; the node said: {words}"),
                ExecuteCode::InsufficientFunds,
            );
        }
        refused(
            format!("the call of the token's contract would fail; the node said: {words}"),
            ExecuteCode::Unspecified,
        )
    }

    async fn known(&self, id: &str) -> Result<bool, String> {
        let call = post("gettransactionbyid", json!({"value": id}));
        let found = |found: &Value| match found.get("txID").and_then(Value::as_str) {
            Some(other) => Ok(other.eq_ignore_ascii_case(id)),
            None if is_empty(found) => Ok(false),
            None => Err("the node's answer about a transaction makes no sense".to_owned()),
        };
        self.http.any(call, found).await
    }

    /// Whether every node has a head block in which, or after which, nothing of before `end_ms`
    /// can be mined.
    async fn all_are_past(&self, end_ms: u64) -> bool {
        let before = |block: &Block| Ok(block.timestamp_ms < end_ms);
        witnessed(self.http.any(last_block(), before)).await == Ok(false)
    }

    /// For `reason` a node does not take a transaction that it or another may have. Some say
    /// "duplicate" of what they refused before, and what one node has is not seen by the others
    /// until it is mined: it is `refusal` for good only when all of them are past its time.
    async fn wait_out(
        &self,
        broadcast_request: &BroadcastRequest,
        expires_ms: u64,
        reason: String,
        refusal: ChainRefusal,
    ) -> BroadcastOutcome {
        let end_ms = expires_ms.saturating_add(FINAL_MS);
        // In this order: what is mined between the questions is found by the second.
        let over = broadcast_request.now_ms >= end_ms && self.all_are_past(end_ms).await;
        match self.known(&broadcast_request.signed.tx_hash).await {
            Ok(true) => BroadcastOutcome::Accepted,
            Ok(false) if over => BroadcastOutcome::Refused(refusal),
            Ok(false) => BroadcastOutcome::Unknown(reason),
            Err(trouble) => BroadcastOutcome::Unknown(format!(
                "{reason}; another cannot say whether it has the transaction: {trouble}"
            )),
        }
    }
}

#[async_trait]
impl ChainClient for TronNode {
    async fn chain_data(&self, queries: &Queries, now_ms: u64) -> Result<ChainData, ChainError> {
        match queries {
            Queries::Nothing => Ok(ChainData::Nothing),
            Queries::Tron(queries) => self.fetch_chain_data(queries, now_ms).await,
            _ => Err(refused(
                "not a Tron question".into(),
                ExecuteCode::Unspecified,
            )),
        }
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        let expires_ms = match expires_ms(&broadcast_request.signed) {
            Ok(expires_ms) => expires_ms,
            Err(fault) => return BroadcastOutcome::Unknown(fault.message().to_owned()),
        };
        let call = post(
            "broadcasthex",
            json!({"transaction": broadcast_request.signed.transaction}),
        );
        let objection = |said: Result<&TronVerdict, &Infallible>| match said.ok()? {
            TronVerdict::Refused(refusal) => {
                Some(Objection::new(ObjectionKind::Refused, &*refusal.reason))
            }
            TronVerdict::Expired(reason) => Some(Objection::new(ObjectionKind::Over, &**reason)),
            TronVerdict::Accepted | TronVerdict::Duplicate(_) => None,
        };
        let (verdict, lost) = self.http.submit(call.reading(judge), objection).await;
        let doubt = lost || broadcast_request.retried;
        let (reason, refusal) = match verdict {
            Ok(TronVerdict::Accepted) => return BroadcastOutcome::Accepted,
            Ok(TronVerdict::Refused(refusal)) if !doubt => {
                let known = self.known(&broadcast_request.signed.tx_hash).await;
                return resolve_refusal(refusal, known, doubt);
            }
            Ok(TronVerdict::Expired(_)) if !doubt && broadcast_request.now_ms >= expires_ms => {
                let known = self.known(&broadcast_request.signed.tx_hash).await;
                return resolve_refusal(expired(), known, doubt);
            }
            Ok(TronVerdict::Refused(refusal)) => (refusal.reason.clone(), refusal),
            Ok(TronVerdict::Expired(reason) | TronVerdict::Duplicate(reason)) => {
                (reason, expired())
            }
            Err(error) => {
                let reason = error.into_reason();
                if broadcast_request.now_ms < expires_ms.saturating_add(FINAL_MS) {
                    return BroadcastOutcome::Unknown(reason);
                }
                (reason, expired())
            }
        };
        let outcome = self.wait_out(broadcast_request, expires_ms, reason, refusal);
        match outcome.await {
            BroadcastOutcome::Refused(refusal) => is_void(refusal, doubt),
            outcome => outcome,
        }
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        _now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        sight_each(transactions, |one| self.sight(one)).await
    }

    async fn fee_estimates(&self) -> Result<[FeeEstimate; 3], ChainError> {
        let prices = self.http.query_quorum(parameters(), prices);
        let price = prices.await?.byte;
        Ok([FeeEstimate::plain(price.into(), TRANSFER_BYTES, 0); 3])
    }

    async fn transfer_burn(&self, payload: &Payload) -> Result<TransferBurn, ChainError> {
        self.burn_of(payload).await
    }

    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError> {
        let account = account(address).about("a balance");
        let Some(token) = token else {
            return Ok(self.http.query_quorum(account, sun).await?.to_string());
        };
        if token.bytes().all(|digit| digit.is_ascii_digit()) {
            let asset = |found: &Value| asset(found, token);
            return Ok(self.http.query_quorum(account, asset).await?.to_string());
        }
        let question = balance_of(address, token)
            .ok_or_else(|| refused("not an address".into(), ExecuteCode::Unspecified))?;
        let holding = question.about("a balance").reading(holding);
        self.http
            .quorum(holding, Option::<[u8; 32]>::eq)
            .await?
            .and_then(|word| amount::hex_to_decimal(&hex::encode(word)))
            .ok_or_else(|| {
                refused(
                    "there is no token contract at this address".into(),
                    ExecuteCode::Unspecified,
                )
            })
    }

    /// Of contracts; a TRC-10 token is a number, which nodes would take for a broken address.
    async fn token_facts(&self, token: &str) -> Result<Option<TokenFacts>, ChainError> {
        if parse_address(token).is_err() {
            return Ok(None);
        }
        let ask = |selector: [u8; 4]| {
            let call = constant(token, token, &selector).about("a token");
            self.http.quorum(call.reading(output), String::eq)
        };
        let decimals = ask(DECIMALS).await?;
        // Some tokens have none.
        let symbol = ask(SYMBOL).await.unwrap_or_default();
        tokens::facts(&decimals, &symbol).map(Some)
    }

    /// Nodes try calls of contracts, and nothing else.
    async fn simulate(&self, trial: &SimulationRequest) -> Option<SimulationOutcome> {
        let Queries::Tron(TronQueries { call: Some(call) }) = Tron.queries(&trial.payload) else {
            return None;
        };
        let tried = self::trial(&call).reading(tried);
        Some(match self.http.query_best_effort(tried).await.ok()? {
            Ok(ConstantCallResult { energy, output }) => SimulationOutcome {
                units_used: Some(energy.to_string()),
                ..SimulationOutcome::passes(Some(format!("0x{}", hex::encode(output))))
            },
            Err(words) => SimulationOutcome::fails(&words),
        })
    }

    fn blocks(&self) -> Option<&dyn BlockSource> {
        Some(self)
    }

    fn health(&self) -> Vec<EndpointHealth> {
        self.http.health()
    }
}

fn last_block() -> impl ChainCall<TronHttp, Answer = Block> {
    let last = post("getnowblock", json!({}));
    last.about("its last block").taking(block)
}

fn parameters() -> TronQuery {
    post("getchainparameters", json!({})).about("prices")
}

fn account(address: &str) -> TronQuery {
    post("getaccount", json!({"address": address, "visible": true}))
}

fn constant(from: &str, contract: &str, data: &[u8]) -> TronQuery {
    post(
        "triggerconstantcontract",
        json!({
            "owner_address": from,
            "contract_address": contract,
            "data": hex::encode(data),
            "visible": true,
        }),
    )
    .costly()
}

fn trial(trigger: &Trigger) -> TronQuery {
    constant(&trigger.from, &trigger.contract, &trigger.data)
}

/// `None` when the owner is no address.
fn balance_of(owner: &str, contract: &str) -> Option<TronQuery> {
    let bytes = parse_address(owner).ok()?.to_bytes();
    // The TVM knows addresses without their prefix.
    let (_, bytes) = bytes.split_first()?;
    let data = [&BALANCE_OF[..], &[0; 12], bytes].concat();
    Some(constant(owner, contract, &data))
}

fn is_empty(found: &Value) -> bool {
    found.as_object().is_some_and(serde_json::Map::is_empty)
}

/// `Err` names the chain.
fn on_mainnet(first: &Value) -> ParsedResponse<Result<(), String>> {
    let id = first.get("blockID").and_then(Value::as_str);
    ParsedResponse::required("block 0", id).and_then(|id| {
        ParsedResponse::Value(if id.eq_ignore_ascii_case(MAINNET) {
            Ok(())
        } else {
            Err(format!(
                "the node that is configured for Tron is on another chain: its first block is {}",
                short(id)
            ))
        })
    })
}

fn block(found: &Value) -> Option<Block> {
    let header = found.pointer("/block_header/raw_data")?;
    let number = number(header, "number")?;
    let mut id = [0; 32];
    hex::decode_to_slice(found.get("blockID")?.as_str()?, &mut id).ok()?;
    let timestamp_ms = header.get("timestamp")?.as_u64()?;
    // The rules refuse what is not so.
    (id.first_chunk() == Some(&number.to_be_bytes())).then_some(Block {
        number,
        id,
        timestamp_ms,
    })
}

/// A node that is not of this time is passed over.
fn check_block_time(block: Block, now_ms: u64) -> ParsedResponse<Block> {
    let ahead_ms = block.timestamp_ms.saturating_sub(now_ms);
    let behind_ms = now_ms.saturating_sub(block.timestamp_ms);
    if ahead_ms > MAX_AHEAD_MS {
        ParsedResponse::Busy(format!(
            "the node's last block is {} s ahead of this machine's clock",
            ahead_ms / 1_000
        ))
    } else if behind_ms > MAX_BEHIND_MS {
        ParsedResponse::Busy(format!(
            "the node is behind: its last block is {} s old",
            behind_ms / 1_000
        ))
    } else {
        ParsedResponse::Value(block)
    }
}

/// A number of an object that leaves out zeros.
fn number(found: &Value, name: &str) -> Option<u64> {
    found.get(name).map_or(Some(0), Value::as_u64)
}

/// An account, or nothing where there is none.
fn is_account(found: &Value) -> bool {
    is_empty(found) || found.get("address").is_some()
}

fn sun(found: &Value) -> Option<u64> {
    is_account(found).then(|| number(found, "balance"))?
}

/// What an account holds of a TRC-10 asset.
fn asset(found: &Value, id: &str) -> Option<u64> {
    if !is_account(found) {
        return None;
    }
    let Some(assets) = found.get("assetV2") else {
        return Some(0);
    };
    let mut assets = assets.as_array()?.iter();
    let asset = assets.find(|asset| asset.get("key").and_then(Value::as_str) == Some(id));
    asset.map_or(Some(0), |asset| number(asset, "value"))
}

/// What a contract answers to `balanceOf`; `None` where there is no token.
fn holding(found: &Value) -> ParsedResponse<Option<[u8; 32]>> {
    // The first word, as ABI decoders read it. The contract is one that the client named: it can
    // answer anything.
    tried(found).and_then(|tried| {
        let tried = tried.ok();
        ParsedResponse::Value(tried.and_then(|tried| tried.output.first_chunk().copied()))
    })
}

/// What a call gives back, in hex digits with `0x`; nothing where it fails.
fn output(found: &Value) -> ParsedResponse<String> {
    tried(found).and_then(|tried| {
        let output = tried.map(|tried| hex::encode(tried.output));
        ParsedResponse::Value(format!("0x{}", output.unwrap_or_default()))
    })
}

/// How a trial went.
#[derive(Debug, PartialEq)]
struct ConstantCallResult {
    energy: u64,
    /// Not looked at in a `transfer`: that of the most used token says "false" of all that it does.
    output: Vec<u8>,
}

/// Of two trials that went alike the one that takes less.
fn lower(
    one: Result<ConstantCallResult, String>,
    other: Result<ConstantCallResult, String>,
) -> Result<ConstantCallResult, String> {
    match (&one, &other) {
        (Ok(first), Ok(second)) if second.energy < first.energy => other,
        _ => one,
    }
}

/// An answer of triggerconstantcontract; `Err` says why the call fails.
fn tried(found: &Value) -> ParsedResponse<Result<ConstantCallResult, String>> {
    let Some(result) = found.get("result").filter(|result| result.is_object()) else {
        return ParsedResponse::Malformed("the node's answer about a call makes no sense".into());
    };
    let said = words(result);
    match result.get("code").and_then(Value::as_str) {
        None | Some("SUCCESS") => {}
        Some("CONTRACT_VALIDATE_ERROR") if !said.contains("does not support constant") => {
            return ParsedResponse::Value(Err(said));
        }
        // An exception of the virtual machine; how long one may take depends on the node.
        Some("OTHER_ERROR") if said.contains(".vm.program.") && !said.contains("OutOfTime") => {
            return ParsedResponse::Value(Err(said));
        }
        Some(code) => {
            return ParsedResponse::Busy(format!("the node said {}: {said}", short(code)));
        }
    }
    let output = found
        .pointer("/constant_result/0")
        .and_then(Value::as_str)
        .and_then(|output| hex::decode(output).ok())
        .unwrap_or_default();
    let ended = found
        .pointer("/transaction/ret/0/ret")
        .and_then(Value::as_str);
    if ended == Some("FAILED") || !said.is_empty() {
        let reason = revert_reason(&output).map(|reason| format!(" ({reason})"));
        return ParsedResponse::Value(Err(said + &reason.unwrap_or_default()));
    }
    let energy = found.get("energy_used").and_then(Value::as_u64);
    ParsedResponse::required("a call", energy)
        .and_then(|energy| ParsedResponse::Value(Ok(ConstantCallResult { energy, output })))
}

/// What a node says in `message`: the methods differ in whether it is in hex.
fn words(found: &Value) -> String {
    let said = found.get("message").and_then(Value::as_str).unwrap_or("");
    let decoded = hex::decode(said)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    short(decoded.as_deref().unwrap_or(said))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests;
