//! Aptos and Movement fullnodes: their REST API.
//!
//! That a request succeeded means that a node took its transaction: how its call ends is seen when
//! it is executed. Calls whose gas the request does not bring are simulated before they are signed; of payments that bring
//! it the balance is looked at.

mod refusals;
mod sightings;

use std::convert::Infallible;

use async_trait::async_trait;
use covault_core::{
    fault::{ExecuteCode, Fault},
    networks::{
        ChainData, ChainMoment, FeeLevel, Queries, Signed,
        aptos::{
            Abi, ChainData as AptosChainData, CoinAmount, FunctionName, Queries as AptosQueries,
            RawTransaction, read_signed, simulation, to_simulate,
        },
    },
};
use parking_lot::Mutex;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

use self::refusals::{AptosError, AptosVerdict, NO_FEE, expired, failed, judge, of_the_number};
use super::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainRefusal, EndpointHealth,
    FeeEstimate, NodePool, NodeRequest, NodeRequestBody, NodeResponse, Objection, ObjectionKind,
    SimulationOutcome, SimulationRequest, TrackedTransaction, TransactionSighting, client::Client,
    exchange::short, fees::same_prices, is_void, resolve_refusal, rest::Rest, sight_each,
    witnessed::witnessed,
};

/// Units of gas that a transfer of the coin to an account that exists takes, with some room.
const TRANSFER_GAS: u128 = 20;
/// How long a transaction lives, in seconds: what fullnodes keep one for that cannot be executed
/// yet (`system_transaction_timeout_secs` of the mempool). Signing takes a minute at most, so that
/// nine are left for the queue behind the wallet's earlier numbers. Where one is lost, those that
/// wait behind its number are void after this time, and none of them comes as a surprise later.
const LIFETIME_S: u64 = 600;
/// By how much the chain's clock must have passed the end of a transaction that no node knows,
/// in seconds: nodes behind one address need not all be at the last block.
const EXPIRY_MARGIN_S: u64 = 60;
/// So many blocks may two nodes be apart that agree on the newest one: some seconds.
const BLOCKS_APART: u64 = 64;
/// How often a simulation is repeated while the account's own transactions are being executed.
const SIMULATIONS: u32 = 4;

/// The content type of a signed transaction.
const SIGNED: &str = "application/x.aptos.signed_transaction+bcs";
/// The chain's own coin: APT, or MOVE.
const COIN: &str = "0x1::aptos_coin::AptosCoin";
/// Where nothing is yet, as nodes that know no account without transactions say it.
const NO_ACCOUNT: &str = "account_not_found";

/// Aptos or Movement.
pub struct AptosNode {
    rest: Client<Rest>,
}

#[derive(Deserialize)]
struct MoveModule {
    abi: Option<ModuleAbi>,
}

#[derive(Deserialize)]
struct ModuleAbi {
    exposed_functions: Vec<ExposedFunction>,
}

#[derive(Deserialize)]
struct ExposedFunction {
    name: String,
    is_entry: bool,
    generic_type_params: Vec<IgnoredAny>,
    params: Vec<String>,
}

#[derive(Deserialize)]
struct AptosSimulation {
    success: bool,
    vm_status: String,
    gas_used: Value,
}

#[derive(Deserialize)]
struct AccountTransaction {
    hash: String,
    sequence_number: Value,
}

/// A signed transaction on its way.
struct SignedAptosTransaction {
    bytes: Vec<u8>,
    transaction: RawTransaction,
}

impl AptosNode {
    /// The chain `chain_id`, through its nodes. A transaction binds its chain: on another one it
    /// would be refused for good.
    pub fn new(chain_id: u64, pool: NodePool) -> Self {
        let rest = Client::new(pool, Rest::default());
        Self {
            rest: rest.checked(NodeRequest::get("", &[]), move |answer| {
                let found = field(answer, "chain_id").ok_or("the node named no chain")?;
                Ok((found != chain_id).then(|| {
                    format!("the node that is configured for chain {chain_id} is on chain {found}")
                }))
            }),
        }
    }

    async fn sequence_number(&self, account: &str) -> Result<u64, ChainError> {
        let call = NodeRequest::get(&format!("/accounts/{account}"), &[]);
        let read = |answer: &NodeResponse| match answer.status {
            200 => field(answer, "sequence_number"),
            404 if says(answer, &[NO_ACCOUNT]) => Some(0),
            _ => None,
        };
        Ok(self
            .rest
            .query_quorum(call.about("an account"), read)
            .await?)
    }

    /// The account's number in a version of the ledger; 0 for an account that is not there.
    async fn number_at(&self, account: &str, version: u64) -> Result<u64, ChainError> {
        let version = version.to_string();
        let call = NodeRequest::get(
            &format!("/accounts/{account}"),
            &[("ledger_version", &version)],
        );
        // A node that is behind has not got the version.
        let read = |answer: &NodeResponse| match answer.status {
            200 => field(answer, "sequence_number"),
            404 if says(answer, &[NO_ACCOUNT]) => Some(0),
            _ => None,
        };
        Ok(self
            .rest
            .query_quorum(call.about("an account"), read)
            .await?)
    }

    /// octa per unit of gas: slow, normal and fast. Nodes have to agree on the one of the level, or on all.
    async fn gas_unit_prices(&self, level: Option<FeeLevel>) -> Result<[u64; 3], ChainError> {
        let call = NodeRequest::get("/estimate_gas_price", &[]);
        let call = call.about("the gas price");
        let same = same_prices(level, |one, other| near(&one, &other));
        Ok(self.rest.query_quorum_by(call, gas_prices, same).await?)
    }

    /// What an account has of a coin type or fungible asset; `None` when that can be none.
    async fn units(&self, account: &str, asset: &str) -> Result<Option<u64>, ChainError> {
        self.units_by(account, asset, Option::eq).await
    }

    /// As [`AptosNode::units`], of nodes that say the same of it.
    async fn units_by(
        &self,
        account: &str,
        asset: &str,
        same: impl Fn(&Option<u64>, &Option<u64>) -> bool + Sync,
    ) -> Result<Option<u64>, ChainError> {
        let call = NodeRequest::get(&format!("/accounts/{account}/balance/{asset}"), &[]);
        let read = |answer: &NodeResponse| match answer.status {
            200 => answer.json::<Value>().as_ref().and_then(number).map(Some),
            404 if says(answer, &[NO_ACCOUNT, "resource_not_found"]) => Some(Some(0)),
            400 if says(answer, &["invalid_input", "web_framework_error"]) => Some(None),
            _ => None,
        };
        let call = call.about("a balance");
        Ok(self.rest.query_quorum_by(call, read, same).await?)
    }

    /// Whether the sender has what it is to pay, where that is not simulated.
    async fn check_means(&self, queries: &AptosQueries) -> Result<(), ChainError> {
        let Some(CoinAmount { coin, amount }) = &queries.pays else {
            return Ok(());
        };
        // Gas is never for nothing.
        let (field, least) = match coin {
            None => ("value", amount.saturating_add(1)),
            Some(_) => ("amount", *amount),
        };
        let lacks = |units: &Option<u64>| units.is_some_and(|units| units < least);
        let asset = coin.as_deref().unwrap_or(COIN);
        let same = |one: &_, other: &_| lacks(one) == lacks(other);
        // Where nobody says it now, it is not looked at.
        let units = self.units_by(&queries.from, asset, same).await;
        let units = units.unwrap_or(None);
        if !lacks(&units) {
            return Ok(());
        }
        let has = units.unwrap_or(0);
        let problem =
            format!("is {amount}, and the wallet has {has} of {asset}, for this and the gas");
        Err(ChainError::lacks(
            &Fault::field(field, problem).with_execute_code(ExecuteCode::InsufficientFunds),
        ))
    }

    async fn abi(&self, function: &FunctionName) -> Result<Abi, ChainError> {
        let FunctionName {
            address,
            module,
            name,
        } = function;
        let call = NodeRequest::get(&format!("/accounts/{address}/module/{module}"), &[]);
        let nowhere = [NO_ACCOUNT, "module_not_found", "resource_not_found"];
        let read = |answer: &NodeResponse| match answer.status {
            200 => Some(entry(answer.json::<MoveModule>()?, name)),
            404 if says(answer, &nowhere) => Some(Err("there is no such module")),
            _ => None,
        };
        let abi = self.rest.query_quorum(call.about("a module"), read).await?;
        abi.map_err(|problem| {
            let place = format!("{address}::{module}::{name}");
            ChainError::refused(
                format!("payload.function: {place} cannot be called: {problem}"),
                ExecuteCode::Unspecified,
            )
        })
    }

    async fn fetch_chain_data(
        &self,
        queries: &AptosQueries,
        now_ms: u64,
    ) -> Result<AptosChainData, ChainError> {
        let price = async {
            match queries.gas_unit_price {
                true => {
                    let prices = self.gas_unit_prices(Some(queries.level)).await?;
                    Ok(Some(queries.level.of(prices)))
                }
                false => Ok(None),
            }
        };
        let abi = async {
            match &queries.abi {
                Some(function) => self.abi(function).await.map(Some),
                None => Ok(None),
            }
        };
        let balance = async {
            match queries.simulate {
                Some(_) => self.units(&queries.from, COIN).await,
                None => Ok(None),
            }
        };
        let number = async {
            match (queries.sequence_number, &queries.simulate) {
                (Some(number), None) => Ok(number),
                // What the account can run now is simulated.
                _ => self.sequence_number(&queries.from).await,
            }
        };
        let (sequence_number, gas_unit_price, abi, balance, ()) =
            tokio::try_join!(number, price, abi, balance, self.check_means(queries))?;
        let chain_data = AptosChainData {
            sequence_number,
            expiration_timestamp_secs: queries
                .expiration_timestamp_secs
                .unwrap_or((now_ms / 1_000).saturating_add(LIFETIME_S)),
            gas_unit_price,
            gas_used: None,
            abi,
        };
        let mut chain_data = match queries.simulate {
            Some(_) => {
                self.simulated(queries, chain_data, balance.unwrap_or(0))
                    .await?
            }
            None => chain_data,
        };
        if let Some(number) = queries.sequence_number {
            chain_data.sequence_number = number;
        }
        Ok(chain_data)
    }

    /// The facts with the gas that a simulation takes. The account's earlier transactions may be
    /// executed in between: then its number is another, and it can pay less gas.
    async fn simulated(
        &self,
        queries: &AptosQueries,
        mut chain_data: AptosChainData,
        mut balance: u64,
    ) -> Result<AptosChainData, ChainError> {
        let mut said = String::new();
        for _ in 0..SIMULATIONS {
            let bytes = simulation(queries, &chain_data, balance, None)
                .map_err(ChainError::cannot_build)?;
            let outcome = self.run(bytes).await?;
            if outcome.success {
                let used = number(&outcome.gas_used);
                chain_data.gas_used =
                    Some(used.ok_or_else(|| {
                        ChainError::unknown("the chain node's gas is not a number")
                    })?);
                return Ok(chain_data);
            }
            said = outcome.vm_status;
            let (of_number, of_fee) = (of_the_number(&said), said.contains(NO_FEE));
            if !of_number && !of_fee {
                return Err(failed(&said));
            }
            let number = self.sequence_number(&queries.from);
            let coins = self.units(&queries.from, COIN);
            let (number, coins) = tokio::try_join!(number, coins)?;
            let coins = coins.unwrap_or(0);
            if of_fee && coins >= balance {
                return Err(failed(&said));
            }
            (chain_data.sequence_number, balance) = (number, coins);
        }
        Err(ChainError::unknown(format!(
            "the chain node said: {}",
            short(&said)
        )))
    }

    /// What a simulation says: the most gas that one of the nodes names that have to agree. It fails only when it does for
    /// as many, and of these who says that another one may pass comes first.
    async fn run(&self, bytes: Vec<u8>) -> Result<AptosSimulation, ChainError> {
        let call = NodeRequest::post(
            "/transactions/simulate",
            NodeRequestBody::Bytes(SIGNED, bytes),
        )
        .costly();
        // All are asked where one fails or does not simulate.
        let passes = |answer: &NodeResponse| simulated(answer).ok().map(|outcome| outcome.success);
        let same = |one: &_, other: &_| passes(one) == passes(other);
        let said = self.rest.voices(call, same).await?;
        let said = said.iter().flatten().map(simulated);
        let (ran, mut errors): (Vec<_>, Vec<_>) = said.partition(Result::is_ok);
        let ran: Vec<AptosSimulation> = ran.into_iter().flatten().collect();
        let all_failed = ran.iter().all(|outcome| !outcome.success);
        let count = ran.len();
        let rank = |outcome: &AptosSimulation| {
            let said = &outcome.vm_status;
            // What is said of one that passes is no matter: the most gas counts.
            let may_pass = !outcome.success && (of_the_number(said) || said.contains(NO_FEE));
            (outcome.success, may_pass, number(&outcome.gas_used))
        };
        let best = ran.into_iter().max_by_key(rank);
        match best.filter(|_| !all_failed || count >= self.rest.agree()) {
            Some(outcome) => Ok(outcome),
            None => {
                // What is not known comes before what one node alone refuses.
                errors.sort_by_key(|error| matches!(error, Err(ChainError::Refused(_))));
                let enough = errors.len() >= self.rest.agree();
                let error = errors.into_iter().find_map(Result::err);
                let unsure = || ChainError::unknown("the nodes disagree about a simulation");
                Err(error.filter(|_| enough).unwrap_or_else(unsure))
            }
        }
    }

    /// Whether a node has the transaction, executed or waiting.
    async fn known(&self, hash: &str) -> Result<bool, String> {
        let call = NodeRequest::get(&format!("/transactions/by_hash/{hash}"), &[]);
        self.rest
            .any(call, |answer| {
                let named = answer.json::<Value>();
                let named = named.as_ref().and_then(|found| found.get("hash")?.as_str());
                match answer.status {
                    200 if named == Some(hash) => Ok(true),
                    404 if says(answer, &["transaction_not_found"]) => Ok(false),
                    _ => Err(format!("the node answered HTTP {}", answer.status)),
                }
            })
            .await
    }

    /// The hash of the transaction that was executed with the sender's number, where a node tells.
    async fn executed(&self, sent: &RawTransaction) -> Option<String> {
        let path = format!("/accounts/{}/transactions", sent.sender);
        let start = sent.sequence_number.to_string();
        let call = NodeRequest::get(&path, &[("start", &start), ("limit", "1")]);
        let read = |answer: &NodeResponse| {
            let found = answer.json::<Vec<AccountTransaction>>()?;
            let found = found.into_iter().next()?;
            (number(&found.sequence_number)? == sent.sequence_number).then_some(found.hash)
        };
        self.rest.query_quorum(call, read).await.ok()
    }

    /// Whether the chain's clock has passed the transaction's end, and by enough.
    async fn is_over(&self, sent: &RawTransaction) -> bool {
        let end = sent
            .expiration_timestamp_secs
            .saturating_add(EXPIRY_MARGIN_S);
        // In microseconds.
        let is_past =
            |answer: &NodeResponse| Some(field(answer, "ledger_timestamp")? / 1_000_000 >= end);
        let clock = NodeRequest::get("", &[]).about("the chain's clock");
        witnessed(self.rest.query_quorum(clock, is_past)).await == Ok(true)
    }

    /// What became of a transaction that may have arrived before and that no node was seen to
    /// know. A node that is behind does not know it yet: that alone says nothing.
    async fn in_doubt(
        &self,
        sent: &RawTransaction,
        hash: &str,
        refusal: ChainRefusal,
    ) -> BroadcastOutcome {
        match self.executed(sent).await {
            Some(executed) if executed == hash => BroadcastOutcome::Accepted,
            Some(_) => is_void(refusal, true),
            None if self.is_over(sent).await => is_void(refusal, true),
            None => BroadcastOutcome::Unknown(format!(
                "{}; it is not yet known whether an earlier attempt was executed",
                refusal.reason
            )),
        }
    }
}

#[async_trait]
impl ChainClient for AptosNode {
    async fn chain_data(&self, queries: &Queries, now_ms: u64) -> Result<ChainData, ChainError> {
        match queries {
            Queries::Aptos(queries) => Ok(self.fetch_chain_data(queries, now_ms).await?.into()),
            Queries::Nothing => Ok(ChainData::Nothing),
            _ => Err(ChainError::refused(
                "not an Aptos question",
                ExecuteCode::Unspecified,
            )),
        }
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        let Some(SignedAptosTransaction { bytes, transaction }) =
            SignedAptosTransaction::read(&broadcast_request.signed)
        else {
            return BroadcastOutcome::Refused(ChainRefusal {
                reason: "the signed transaction cannot be read".into(),
                code: ExecuteCode::Unspecified,
            });
        };
        let hash = broadcast_request.signed.tx_hash.as_str();
        let call = NodeRequest::post("/transactions", NodeRequestBody::Bytes(SIGNED, bytes));
        let objection = |said: Result<&NodeResponse, &Infallible>| match judge(said.ok()?) {
            AptosVerdict::Refused { refusal, itself } => {
                let kind = match itself {
                    true => ObjectionKind::Used,
                    false => ObjectionKind::Refused,
                };
                Some(Objection::new(kind, refusal.reason))
            }
            AptosVerdict::Accepted | AptosVerdict::Unknown(_) => None,
        };
        let (answer, lost) = self.rest.submit(call, objection).await;
        let doubt = lost || broadcast_request.retried;
        let verdict = match answer {
            Ok(answer) => judge(&answer),
            Err(error) => AptosVerdict::Unknown(error.into_reason()),
        };
        match verdict {
            AptosVerdict::Accepted => BroadcastOutcome::Accepted,
            AptosVerdict::Unknown(reason) => {
                if broadcast_request.now_ms / 1_000 <= transaction.expiration_timestamp_secs {
                    return BroadcastOutcome::Unknown(reason);
                }
                match self.known(hash).await {
                    Ok(true) => BroadcastOutcome::Accepted,
                    Ok(false) if self.is_over(&transaction).await => is_void(expired(), doubt),
                    Ok(false) | Err(_) => BroadcastOutcome::Unknown(reason),
                }
            }
            AptosVerdict::Refused { refusal, itself } => {
                let known = self.known(hash).await;
                if itself && doubt && known == Ok(false) {
                    return self.in_doubt(&transaction, hash, refusal).await;
                }
                resolve_refusal(refusal, known, doubt)
            }
        }
    }

    async fn next_number(
        &self,
        address: &str,
        since: ChainMoment,
    ) -> Result<Option<u64>, ChainError> {
        let newest = Mutex::new(0);
        let read = |answer: &NodeResponse| {
            // In microseconds.
            let is_later = field(answer, "ledger_timestamp")? / 1_000 >= since.time_ms
                && (since.height == 0 || field(answer, "block_height")? >= since.height);
            let version = field(answer, "ledger_version")?;
            if is_later {
                // Nodes are at different versions. That of one which lies is higher than it should
                // be, and others lack it, or lower, and does not count.
                let mut newest = newest.lock();
                *newest = version.max(*newest);
            }
            Some(is_later)
        };
        let call = NodeRequest::get("", &[]);
        if !self
            .rest
            .query_quorum(call.about("the chain's clock"), read)
            .await?
        {
            return Ok(None);
        }
        let version = newest.into_inner();
        self.number_at(address, version).await.map(Some)
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        sight_each(transactions, |one| self.sight(one, now_ms)).await
    }

    /// The height of the ledger: blocks, of which there are some each second.
    async fn head(&self) -> Result<Option<u64>, ChainError> {
        let height = |answer: &NodeResponse| field(answer, "block_height");
        let same = |one: &u64, other: &u64| one.abs_diff(*other) <= BLOCKS_APART;
        let call = NodeRequest::get("", &[]).about("the newest block");
        Ok(Some(self.rest.query_quorum_by(call, height, same).await?))
    }

    async fn fee_estimates(&self) -> Result<[FeeEstimate; 3], ChainError> {
        let prices = self.gas_unit_prices(None).await?;
        Ok(prices.map(|price| FeeEstimate::plain(price.into(), TRANSFER_GAS, 0)))
    }

    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError> {
        let units = self.units(address, token.unwrap_or(COIN)).await?;
        units.map(|units| units.to_string()).ok_or_else(|| {
            ChainError::refused(
                format!("is not a token of {}", self.rest.chain()),
                ExecuteCode::Unspecified,
            )
        })
    }

    async fn simulate(&self, trial: &SimulationRequest) -> Option<SimulationOutcome> {
        // One whose fee another pays is simulated by nobody.
        let bytes = to_simulate(&trial.unsigned.bytes, Some(&trial.public_key)).ok()?;
        let call = NodeRequest::post(
            "/transactions/simulate",
            NodeRequestBody::Bytes(SIGNED, bytes),
        )
        .costly();
        let answer = self.rest.query_best_effort(call).await.ok()?;
        let outcomes = answer
            .is_success()
            .then(|| answer.json::<Vec<AptosSimulation>>())??;
        let outcome = outcomes.into_iter().next()?;
        // Earlier transactions of the account are not executed yet, or this very one is.
        if !outcome.success && of_the_number(&outcome.vm_status) {
            return None;
        }
        let units_used = number(&outcome.gas_used).map(|units| units.to_string());
        Some(if outcome.success {
            SimulationOutcome {
                units_used,
                ..SimulationOutcome::passes(None)
            }
        } else {
            SimulationOutcome {
                units_used,
                ..SimulationOutcome::fails(&outcome.vm_status)
            }
        })
    }

    fn health(&self) -> Vec<EndpointHealth> {
        self.rest.health()
    }
}

impl SignedAptosTransaction {
    /// Reads what [`covault_core::networks::DynNetworkRules::assemble`] made.
    fn read(signed: &Signed) -> Option<Self> {
        let (bytes, transaction) = read_signed(signed).ok()?;
        Some(Self { bytes, transaction })
    }
}

/// Numbers of 64 bits are strings in a node's JSON, smaller ones are numbers.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    }
}

/// What a node says of a simulation.
fn simulated(answer: &NodeResponse) -> Result<AptosSimulation, ChainError> {
    if answer.is_success() {
        let outcomes = answer.json::<Vec<AptosSimulation>>().unwrap_or_default();
        return outcomes
            .into_iter()
            .next()
            .ok_or_else(|| ChainError::unknown("the chain node's simulation makes no sense"));
    }
    Err(match answer.json::<AptosError>() {
        // Nodes from before AIP-92 cannot read it either.
        Some(problem) if problem.error_code == "invalid_input" => ChainError::refused(
            format!(
                "the chain node cannot simulate the transaction (with gasFee.maxGasAmount it \
                 is not asked to); it said: {}",
                short(&problem.message)
            ),
            ExecuteCode::Unspecified,
        ),
        _ => ChainError::unknown(format!(
            "the chain node does not simulate: {}",
            answer.words()
        )),
    })
}

fn field(answer: &NodeResponse, name: &str) -> Option<u64> {
    let found = answer.is_success().then(|| answer.json::<Value>())??;
    number(found.get(name)?)
}

/// Reads `GET /estimate_gas_price`: nodes may name no price but the normal one.
fn gas_prices(answer: &NodeResponse) -> Option<[u64; 3]> {
    let normal = field(answer, "gas_estimate")?;
    let slow = field(answer, "deprioritized_gas_estimate").unwrap_or(normal);
    let fast = field(answer, "prioritized_gas_estimate").unwrap_or(normal);
    Some([slow.min(normal), normal, fast.max(normal)])
}

/// Whether an error is one of these, of a node and not of something before it.
fn says(answer: &NodeResponse, codes: &[&str]) -> bool {
    let problem = answer.json::<AptosError>();
    problem.is_some_and(|problem| codes.contains(&problem.error_code.as_str()))
}

/// Whether two prices are those of one moment. Nodes see other transactions wait.
fn near(one: &u64, other: &u64) -> bool {
    one.max(other) / 4 <= *one.min(other)
}

/// What an entry function of a module takes.
fn entry(module: MoveModule, name: &str) -> Result<Abi, &'static str> {
    let abi = module.abi.ok_or("the chain node cannot read its module")?;
    let mut functions = abi.exposed_functions.into_iter();
    let function = functions
        .find(|function| function.name == name)
        .ok_or("its module has no such function")?;
    if !function.is_entry {
        return Err("it is not an entry function");
    }
    Ok(Abi {
        type_parameters: function
            .generic_type_params
            .len()
            .try_into()
            .unwrap_or(u64::MAX),
        params: function.params,
    })
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn near__should_be_the_prices_of_one_moment() {
        for (one, other, expected) in [
            (100, 150, true),
            (100, 400, true),
            (0, 0, true),
            (100, 404, false),
            (100, u64::MAX, false),
        ] {
            assert_eq!(near(&one, &other), expected, "{one} {other}");
            assert_eq!(near(&other, &one), expected, "{one} {other}");
        }
    }
}
