//! Sui full nodes: `sui.rpc.v2` as gRPC-Web (docs/decisions/0017).
//!
//! That a request succeeded means that its transaction was executed, which is final on Sui. Whether
//! it did what it says is not looked at: one that fails takes its gas and moves its gas coins on.

mod proto;
mod refusals;
mod sightings;

use std::{collections::BTreeSet, time::Duration};

use async_trait::async_trait;
use covault_core::{
    fault::ExecuteCode,
    networks::{
        ChainData, Queries,
        sui::{
            ChainData as SuiChainData, CoinObject, CoinOrigin, GasUsed, MAX_COINS,
            Queries as SuiQueries, SUI, SentTransaction, SuiValidity, read_sent, simulation,
        },
    },
};

use self::proto::{
    BATCH_GET_OBJECTS, BatchGetObjectsRequest, BatchGetObjectsResponse, EXECUTE_TRANSACTION,
    EncodedBcs, ExecuteTransactionRequest, ExecutionError, ExecutionErrorKind, FieldMask,
    GET_BALANCE, GET_EPOCH, GET_SERVICE_INFO, GET_TRANSACTION, GetBalanceRequest,
    GetBalanceResponse, GetEpochRequest, GetEpochResponse, GetObjectRequest, GetServiceInfoRequest,
    GetServiceInfoResponse, GetTransactionRequest, LIST_OWNED_OBJECTS, ListOwnedObjectsRequest,
    ListOwnedObjectsResponse, Object, OwnerKind, SIMULATE_TRANSACTION, SimulateTransactionRequest,
    TransactionResponse,
};
use self::refusals::{SuiVerdict, expired, failed, judge};
use super::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainRefusal, EndpointHealth,
    FeeEstimate, Objection, ObjectionKind, SimulationOutcome, SimulationRequest,
    TrackedTransaction, TransactionSighting,
    client::{CallError, Client},
    exchange::short,
    grpc::{GrpcStatus, GrpcWeb},
    is_void,
    pool::NodePool,
    resolve_refusal, sight_each,
    witnessed::witnessed,
};

/// What a payment of SUI takes: the least computation that is charged, in units, and in MIST what its two coins
/// are charged for storage, less what comes back for the one that is spent.
const TRANSFER_GAS: u128 = 1_000;
const TRANSFER_STORAGE: u128 = 1_976_000 - 978_120;
/// The digest of mainnet's genesis checkpoint.
const MAINNET: &str = "4btiuiMPvEENsttpZC7CZ53DruC3MAgfznDbASZ7DR6S";
/// Objects of one page; nodes give no more, and some fewer.
const PAGE: u32 = 1000;
/// Pages that are asked for, of nodes whose pages are short.
const MAX_PAGES: usize = 20;
/// How long a node may take to execute: it answers when that is final, and validators may be busy.
const EXECUTION: Duration = Duration::from_secs(20);
/// How long the objects of a transaction may be unknown to the nodes before it is given up: the
/// one that makes them may come after it.
const MISSING_MS: u64 = 600_000;
/// By how much an epoch must be over before it is said of a transaction that it has expired, in
/// seconds: nodes behind one address need not all be at the last checkpoint.
const EXPIRY_MARGIN_S: u64 = 60;
/// Of how many objects of a transaction is looked up who used them.
const MAX_LOOKED_UP: usize = 100;

/// Sui.
pub struct SuiNode {
    grpc: Client<GrpcWeb>,
    /// All nodes are on this machine.
    local: bool,
}

/// What became of a transaction, as the objects tell that it wanted to use.
#[derive(Debug, PartialEq)]
enum TransactionFate {
    Executed,
    /// Another one used them, as far as it is known.
    Void {
        by: Option<String>,
    },
    Open,
}

impl SuiNode {
    /// The chain, through its nodes. They are to be on mainnet; only where all of them are on this
    /// machine may it be another chain, for tests.
    pub fn new(pool: NodePool) -> Self {
        let local = pool.is_local();
        let grpc = Client::new(pool, GrpcWeb);
        let grpc = match local {
            true => grpc,
            false => grpc.checked(GET_SERVICE_INFO.call(GetServiceInfoRequest {}), off_mainnet),
        };
        Self { grpc, local }
    }

    /// The digest of the chain's genesis checkpoint; of nodes that are far it is known.
    async fn chain_identifier(&self) -> Result<String, ChainError> {
        if !self.local {
            return Ok(MAINNET.into());
        }
        let call = GET_SERVICE_INFO.call(GetServiceInfoRequest {});
        let read = |info: &GetServiceInfoResponse| info.chain_id.clone();
        Ok(self.grpc.query_quorum(call, read).await?)
    }

    /// The epoch and its reference gas price, MIST per unit.
    async fn epoch(&self) -> Result<(u64, u64), ChainError> {
        let request = GetEpochRequest {
            read_mask: FieldMask::of(&["epoch", "reference_gas_price"]),
        };
        let read = |answer: &GetEpochResponse| {
            let epoch = answer.epoch.as_ref()?;
            Some((epoch.epoch?, epoch.reference_gas_price?))
        };
        let call = GET_EPOCH.call(request);
        Ok(self.grpc.query_quorum(call, read).await?)
    }

    /// All that an address has of a coin, and what of it lies in no coin object.
    async fn units(&self, owner: &str, coin_type: &str) -> Result<(u64, u64), ChainError> {
        let request = GetBalanceRequest {
            owner: Some(owner.into()),
            coin_type: Some(coin_type.into()),
        };
        let read = |answer: &GetBalanceResponse| {
            let balance = answer.balance.as_ref()?;
            // Nodes from before SIP-58 do not name it.
            Some((balance.balance?, balance.address_balance.unwrap_or(0)))
        };
        let call = GET_BALANCE.call(request);
        Ok(self.grpc.query_quorum(call, read).await?)
    }

    /// Coin objects of an address, the richest first; with `origin` what they show their type by.
    async fn coins(
        &self,
        owner: &str,
        coin_type: &str,
        origin: bool,
    ) -> Result<Vec<CoinObject>, ChainError> {
        let mut paths = vec!["object_id", "version", "digest", "owner", "balance"];
        if origin {
            paths.extend(["previous_transaction", "storage_rebate"]);
        }
        let mut request = ListOwnedObjectsRequest {
            owner: Some(owner.into()),
            page_size: Some(PAGE),
            page_token: None,
            read_mask: FieldMask::of(&paths),
            object_type: Some(format!("0x2::coin::Coin<{coin_type}>")),
        };
        let read = |answer: &ListOwnedObjectsResponse| {
            let owned = answer.objects.iter();
            let owned = owned.filter(|object| is_owned_by(object, owner));
            let coins = owned.map(|object| coin(object.clone(), origin));
            let coins = coins.collect::<Option<Vec<_>>>()?;
            let next = answer.next_page_token.clone();
            let next = next.filter(|token| !token.is_empty());
            Some((coins, next))
        };
        let mut coins = Vec::new();
        // A coin whose balance changes between pages may be on two of them.
        let mut seen = BTreeSet::new();
        for _ in 0..MAX_PAGES {
            let call = LIST_OWNED_OBJECTS.call(request.clone());
            let same =
                |(one, _): &(Vec<CoinObject>, _), (other, _): &(Vec<CoinObject>, _)| one == other;
            let (page, next) = self.grpc.query_quorum_by(call, read, same).await?;
            let new = page
                .into_iter()
                .filter(|coin| seen.insert(coin.object_id.clone()));
            coins.extend(new);
            request.page_token = next;
            if request.page_token.is_none() || coins.len() >= MAX_COINS {
                break;
            }
        }
        coins.truncate(MAX_COINS);
        Ok(coins)
    }

    async fn fetch_chain_data(&self, queries: &SuiQueries) -> Result<SuiChainData, ChainError> {
        let payment = &queries.payment;
        let from = payment.from.as_str();
        let coins = async {
            match payment.token() {
                Some(token) => self.coins(from, token, true).await,
                None => Ok(Vec::new()),
            }
        };
        let units = async {
            match payment.token() {
                Some(token) => self.units(from, token).await,
                None => Ok((0, 0)),
            }
        };
        let (chain, (epoch, price), sui_coins, (_, sui_address_balance), coins, (_, coin_balance)) =
            tokio::try_join!(
                self.chain_identifier(),
                self.epoch(),
                self.coins(from, SUI, false),
                self.units(from, SUI),
                coins,
                units,
            )?;
        let mut chain_data = SuiChainData {
            reference_gas_price: queries.price.then_some(price),
            gas_used: None,
            sui_coins,
            sui_address_balance,
            coins,
            coin_address_balance: coin_balance,
            required: Vec::new(),
            validity: Some(SuiValidity {
                epoch,
                chain_identifier: chain,
                nonce: Some(u32::from_be_bytes(self.grpc.random())),
            }),
        };
        if queries.simulation {
            let transaction = simulation(queries, &chain_data).map_err(ChainError::cannot_build)?;
            chain_data.gas_used = Some(Box::new(self.simulated(transaction).await?));
        }
        Ok(chain_data)
    }

    /// What a transaction takes, with a gas coin of the node's own.
    async fn simulated(&self, transaction: Vec<u8>) -> Result<GasUsed, ChainError> {
        let call = SIMULATE_TRANSACTION.call(to_simulate(transaction));
        let outcome = self
            .grpc
            .query_quorum_by(call, outcome, |one, other| match (one, other) {
                (Ok(one), Ok(other)) => near(one, other),
                (Err(_), Err(_)) => true,
                _ => false,
            });
        outcome.await?.map_err(|error| failed(&error))
    }

    /// Whether a node knows that the transaction was executed.
    async fn known(&self, hash: &str) -> Result<bool, String> {
        let request = GetTransactionRequest {
            digest: Some(hash.into()),
            read_mask: FieldMask::of(&["digest"]),
        };
        let found = |answer: &TransactionResponse| match digest(answer) == Some(hash) {
            true => Ok(true),
            false => Err("the node answered about another transaction".into()),
        };
        self.grpc.any(GET_TRANSACTION.call(request), found).await
    }

    /// Whether the transaction's last epoch has passed, and by enough.
    async fn is_over(&self, sent: &SentTransaction, now_ms: u64) -> bool {
        let Some(last) = sent.last_epoch else {
            return false;
        };
        let request = GetEpochRequest {
            read_mask: FieldMask::of(&["epoch", "start"]),
        };
        let is_past = |answer: &GetEpochResponse| {
            let epoch = answer.epoch.as_ref()?;
            let begun = u64::try_from(epoch.start.as_ref()?.seconds).ok()?;
            let is_later = epoch.epoch? > last;
            Some(is_later && now_ms / 1_000 >= begun.saturating_add(EXPIRY_MARGIN_S))
        };
        let call = GET_EPOCH.call(request);
        witnessed(self.grpc.query_quorum(call, is_past)).await == Ok(true)
    }

    /// Who used the objects that the transaction wanted.
    async fn fate(&self, sent: &SentTransaction, hash: &str) -> TransactionFate {
        if sent.objects.is_empty() {
            return TransactionFate::Open;
        }
        match self
            .grpc
            .ask(BATCH_GET_OBJECTS.call(objects_of(sent)))
            .await
        {
            Ok(answer) => fate_of(&answer, sent, hash),
            Err(_) => TransactionFate::Open,
        }
    }

    /// What became of a transaction that may have arrived before and that no node was seen to
    /// know. A node that is behind does not know it yet: that alone says nothing.
    async fn in_doubt(
        &self,
        broadcast_request: &BroadcastRequest,
        sent: &SentTransaction,
        refusal: ChainRefusal,
    ) -> BroadcastOutcome {
        match self.fate(sent, &broadcast_request.signed.tx_hash).await {
            TransactionFate::Executed => BroadcastOutcome::Accepted,
            TransactionFate::Void { .. } => is_void(refusal, true),
            TransactionFate::Open if self.is_over(sent, broadcast_request.now_ms).await => {
                is_void(refusal, true)
            }
            TransactionFate::Open => BroadcastOutcome::Unknown(format!(
                "{}; it is not yet known whether an earlier attempt was executed",
                refusal.reason
            )),
        }
    }
}

#[async_trait]
impl ChainClient for SuiNode {
    async fn chain_data(&self, queries: &Queries, _now_ms: u64) -> Result<ChainData, ChainError> {
        match queries {
            Queries::Sui(queries) => Ok(self.fetch_chain_data(queries).await?.into()),
            Queries::Nothing => Ok(ChainData::Nothing),
            _ => Err(ChainError::refused(
                "not a Sui question",
                ExecuteCode::Unspecified,
            )),
        }
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        let sent = match read_sent(&broadcast_request.signed.transaction) {
            Ok(sent) => sent,
            Err(_) => {
                return BroadcastOutcome::Refused(ChainRefusal {
                    reason: "the signed transaction cannot be read".into(),
                    code: ExecuteCode::Unspecified,
                });
            }
        };
        let hash = broadcast_request.signed.tx_hash.as_str();
        let request = ExecuteTransactionRequest {
            transaction: Some(EncodedBcs::of(sent.transaction.clone())),
            signatures: sent
                .signatures
                .iter()
                .cloned()
                .map(EncodedBcs::of)
                .collect(),
            read_mask: FieldMask::of(&["digest", "effects.status"]),
        };
        let call = EXECUTE_TRANSACTION.call(request).within(EXECUTION);
        // Those that lack an object may get it, but not for ever.
        let objection = |said: Result<&TransactionResponse, &GrpcStatus>| {
            let (kind, reason) = match judge(Err(said.err()?), hash) {
                SuiVerdict::Refused { refusal, itself } => {
                    let kind = match itself {
                        true => ObjectionKind::Used,
                        false => ObjectionKind::Refused,
                    };
                    (kind, refusal.reason)
                }
                SuiVerdict::Later {
                    reason,
                    missing: true,
                } => (ObjectionKind::Missing, reason),
                SuiVerdict::Accepted | SuiVerdict::Later { .. } => return None,
            };
            Some(Objection::new(kind, reason))
        };
        let (answer, lost) = self.grpc.submit(call, objection).await;
        let doubt = lost || broadcast_request.retried;
        let verdict = match answer {
            Ok(answer) => judge(Ok(&answer), hash),
            Err(CallError::Node(status)) => judge(Err(&status), hash),
            Err(error) => return BroadcastOutcome::Unknown(error.into_reason()),
        };
        match verdict {
            SuiVerdict::Accepted => BroadcastOutcome::Accepted,
            SuiVerdict::Later { reason, missing } => match self.known(hash).await {
                Ok(true) => BroadcastOutcome::Accepted,
                Ok(false) if self.is_over(&sent, broadcast_request.now_ms).await => {
                    is_void(expired(), doubt)
                }
                Ok(false) if missing && broadcast_request.age_ms >= MISSING_MS => {
                    let refusal = ChainRefusal {
                        reason,
                        code: ExecuteCode::Unspecified,
                    };
                    is_void(refusal, doubt)
                }
                Ok(false) | Err(_) => BroadcastOutcome::Unknown(reason),
            },
            SuiVerdict::Refused { refusal, itself } => {
                let known = self.known(hash).await;
                if itself && doubt && known == Ok(false) {
                    return self.in_doubt(broadcast_request, &sent, refusal).await;
                }
                resolve_refusal(refusal, known, doubt)
            }
        }
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        sight_each(transactions, |one| self.sight(one, now_ms)).await
    }

    async fn fee_estimates(&self) -> Result<[FeeEstimate; 3], ChainError> {
        let (_, price) = self.epoch().await?;
        let estimate = FeeEstimate::plain(price.into(), TRANSFER_GAS, TRANSFER_STORAGE);
        Ok([estimate; 3])
    }

    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError> {
        let (units, _) = self.units(address, token.unwrap_or(SUI)).await?;
        Ok(units.to_string())
    }

    async fn simulate(&self, trial: &SimulationRequest) -> Option<SimulationOutcome> {
        if trial.unsigned.bytes.is_empty() {
            return None;
        }
        let request = to_simulate(trial.unsigned.bytes.clone());
        let call = SIMULATE_TRANSACTION.call(request);
        let answer = self.grpc.query_best_effort(call).await.ok()?;
        match outcome(&answer)? {
            Ok(used) => Some(SimulationOutcome {
                units_used: Some(cost(&used).to_string()),
                ..SimulationOutcome::passes(None)
            }),
            // Perhaps this very transaction has taken it. One that uses up objects cannot be tried
            // any more then, and the node says so.
            Err(error) if error.kind() == ExecutionErrorKind::InsufficientFundsForWithdraw => None,
            Err(error) => Some(SimulationOutcome::fails(
                error.description.as_deref().unwrap_or("no reason"),
            )),
        }
    }

    fn health(&self) -> Vec<EndpointHealth> {
        self.grpc.health()
    }
}

fn to_simulate(transaction: Vec<u8>) -> SimulateTransactionRequest {
    SimulateTransactionRequest {
        transaction: Some(EncodedBcs::of(transaction)),
        read_mask: FieldMask::of(&["transaction.effects.status", "transaction.effects.gas_used"]),
        do_gas_selection: Some(false),
    }
}

/// What is wrong with a node's chain.
fn off_mainnet(info: &GetServiceInfoResponse) -> Result<Option<String>, String> {
    let found = info.chain_id.as_deref().ok_or("the node named no chain")?;
    let name = info.chain.as_deref().unwrap_or(found);
    Ok((found != MAINNET).then(|| {
        format!(
            "the node that is configured for Sui is on \"{}\", not on mainnet",
            short(name)
        )
    }))
}

/// The objects that a transaction wanted: each as it is now, and as this transaction would have left it.
fn objects_of(sent: &SentTransaction) -> BatchGetObjectsRequest {
    let versions = [None, Some(sent.next_version())];
    let objects = sent.objects.iter().take(MAX_LOOKED_UP);
    BatchGetObjectsRequest {
        requests: objects
            .flat_map(|object| {
                versions.map(|version| GetObjectRequest {
                    object_id: Some(object.object_id.clone()),
                    version,
                })
            })
            .collect(),
        read_mask: FieldMask::of(&["object_id", "version", "previous_transaction"]),
    }
}

/// What the answer to [`objects_of`] says.
fn fate_of(
    answer: &BatchGetObjectsResponse,
    sent: &SentTransaction,
    hash: &str,
) -> TransactionFate {
    let mut fate = TransactionFate::Open;
    for (wanted, found) in sent.objects.iter().zip(answer.objects.chunks(2)) {
        let found = found.iter().filter_map(|result| result.object.as_ref());
        for object in found.filter(|found| found.object_id.as_ref() == Some(&wanted.object_id)) {
            if object.previous_transaction.as_deref() == Some(hash) {
                return TransactionFate::Executed;
            }
            if object.version > Some(wanted.version) {
                fate = TransactionFate::Void {
                    by: object.previous_transaction.clone(),
                };
            }
        }
    }
    fate
}

fn digest(answer: &TransactionResponse) -> Option<&str> {
    answer.transaction.as_ref()?.digest.as_deref()
}

/// Whether a wallet can use an object as it is: those in a consensus stream have another input.
fn is_owned_by(object: &Object, address: &str) -> bool {
    let Some(owner) = &object.owner else {
        return false;
    };
    owner.kind() == OwnerKind::Address && owner.address.as_deref() == Some(address)
}

fn coin(object: Object, origin: bool) -> Option<CoinObject> {
    let origin = match origin {
        true => Some(CoinOrigin {
            previous_transaction: object.previous_transaction?,
            storage_rebate: object.storage_rebate?,
        }),
        false => None,
    };
    Some(CoinObject {
        object_id: object.object_id?,
        version: object.version?,
        digest: object.digest?,
        balance: object.balance?,
        origin,
    })
}

/// How a simulation ended.
fn outcome(answer: &TransactionResponse) -> Option<Result<GasUsed, ExecutionError>> {
    let effects = answer.transaction.as_ref()?.effects.as_ref()?;
    let status = effects.status.as_ref()?;
    if !status.success? {
        return Some(Err(status.error.clone().unwrap_or_default()));
    }
    let used = effects.gas_used.as_ref()?;
    Some(Ok(GasUsed {
        computation_cost: used.computation_cost?,
        storage_cost: used.storage_cost?,
        storage_rebate: used.storage_rebate?,
    }))
}

/// Whether two simulations are of one moment: others' transactions change what it takes.
fn near(one: &GasUsed, other: &GasUsed) -> bool {
    let (one, other) = (cost(one), cost(other));
    one.max(other) / 4 <= one.min(other)
}

/// In MIST, without what is given back for storage.
fn cost(used: &GasUsed) -> u64 {
    used.computation_cost.saturating_add(used.storage_cost)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests;
