//! Bitcoin nodes: the JSON-RPC of Bitcoin Core from version 25 on, and of what is made of it.
//!
//! The outputs of addresses come from a wallet of the node that has no keys and only watches
//! ([`watch`], decision 0015).

mod batch;
mod fees;
mod named;
mod refusals;
mod sightings;
mod transactions;
mod watch;

use std::{
    collections::{BTreeSet, HashMap},
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use covault_core::{
    fault::ExecuteCode,
    networks::{
        ChainData, Queries,
        bitcoin::{self as rules, ChainData as BitcoinChainData, UnspentOutput},
    },
};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

use self::{
    batch::{BitcoinRpcResult, CoreRpc, RpcBatch},
    refusals::{is_missing, judge, objection_kind},
    sightings::SpentSince,
    transactions::VerifiedOutput,
    watch::{AddressWatcher, WatchedAddress},
};
use super::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainRefusal, EndpointHealth,
    FeeEstimate, NodePool, Objection, Standing, TrackedTransaction, TransactionSighting,
    client::{CallError, ChainCall as _, Client},
    exchange::{ParsedResponse, short},
    jsonrpc::RpcError,
    resolve_refusal,
    witnessed::witnessed,
};

/// So many blocks may the nodes be apart.
const MAX_BLOCKS_APART: u64 = 3;
/// The first block of mainnet.
const GENESIS: &str = "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f";
/// A block of mainnet that is in none of the chains which left it: those begin as it does.
const CHECKPOINT: (u64, &str) = (
    840_000,
    "0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5",
);
/// The first block of every chain of regtest, whose coins are worth nothing.
const REGTEST: &str = "0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206";

/// How long a request waits for the nodes to find the outputs of an address that is new to them.
const REQUEST_PATIENCE: Duration = Duration::from_secs(900);
/// How long a balance query waits for them.
const BALANCE_PATIENCE: Duration = Duration::from_secs(10);
/// How often an address may turn out to be new to a node: each has its own wallet.
const ROUNDS: u32 = 3;
/// How long ago, in milliseconds, a transaction was made whose inputs a block has spent otherwise, before that
/// counts as final: six blocks.
const FINAL_MS: u64 = 3_600_000;
/// A node that knows of so many more blocks than it has is not up to date.
const MAX_BLOCKS_BEHIND: u64 = 3;
/// 21 million coins.
const MAX_SATOSHI: u64 = 2_100_000_000_000_000;

/// Bitcoin.
pub struct BitcoinNode {
    rpc: Arc<Client<CoreRpc>>,
    watch: Arc<AddressWatcher>,
    /// Outputs that are worth what the nodes say: that never changes.
    proven: Mutex<BTreeSet<VerifiedOutput>>,
    /// Of transactions that no node has, by their hashes and by how many nodes say it: since when what they spend is
    /// spent otherwise.
    spent_since: Mutex<HashMap<(String, usize), SpentSince>>,
}

/// An output that a node's wallet lists.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ListedOutput {
    output: UnspentOutput,
    /// It is in a block.
    confirmed: bool,
}

impl BitcoinNode {
    /// Bitcoin, through its nodes.
    pub fn new(pool: NodePool) -> Self {
        let (height, _) = CHECKPOINT;
        let which = RpcBatch::node()
            .and("getblockhash", json!([0]))
            .and("getblockhash", json!([height]));
        let rpc = Client::new(pool, CoreRpc);
        let local = rpc.is_local();
        let chain = which.reading(move |said| chain_of(said, local));
        let rpc = Arc::new(rpc.checked(chain, |chain| Ok(chain.clone().err())));
        Self {
            watch: Arc::new(AddressWatcher::new(Arc::clone(&rpc))),
            proven: Mutex::default(),
            spent_since: Mutex::default(),
            rpc,
        }
    }

    /// What an address can spend: its outputs that are in blocks and not spent in the mempool, and
    /// those of its own transactions that are in the mempool, unless only what is in blocks is wanted. Only those
    /// that are worth the first of `leasts`, in coins, with which the list is not too long to be read.
    async fn spendable(
        &self,
        place: &WatchedAddress,
        leasts: &[&str],
        in_blocks: bool,
        patience: Duration,
    ) -> Result<Vec<UnspentOutput>, ChainError> {
        for _ in 0..ROUNDS {
            let mut found = Ok(None);
            for least in leasts {
                found = self.listed(place, least).await;
                if !matches!(found, Err(CallError::TooLong(_))) {
                    break;
                }
            }
            if let Some(mut listed) = found? {
                listed.retain(|listed| listed.confirmed || !in_blocks);
                return self.trusted(&place.address, listed).await;
            }
            self.watch.ensure_watched(place, patience).await?;
        }
        Err(ChainError::Unknown(format!(
            "{}: not enough nodes know the outputs of the address yet",
            self.rpc.chain()
        )))
    }

    /// The forms of an address.
    async fn watched_address(&self, address: &str) -> Result<WatchedAddress, ChainError> {
        let parsed = rules::parse_address(address)
            .map_err(|error| refused(format!("the address {error}")))?;
        let script = parsed.script_pubkey().to_hex_string();
        if !self.rpc.is_local() {
            // Mainnet.
            let address = parsed.to_string();
            let local = address.clone();
            return Ok(WatchedAddress {
                address,
                script,
                local,
            });
        }
        let ask = RpcBatch::node().and("decodescript", json!([script]));
        let local = ask.reading(|said| {
            let decoded = said.first().and_then(|said| said.as_ref().ok());
            let local = decoded.and_then(|decoded| decoded.get("address")?.as_str());
            found_in(said, local.map(str::to_owned))
        });
        let local = self.rpc.ask(local).await?;
        Ok(WatchedAddress {
            address: address.to_owned(),
            script,
            local,
        })
    }

    /// What the wallets of nodes list, of what their owners call safe: in a block, or paid by
    /// transactions of addresses that they watch. `None` when too few of them watch the address.
    async fn listed(
        &self,
        place: &WatchedAddress,
        least: &str,
    ) -> Result<Option<Vec<ListedOutput>>, CallError<Infallible>> {
        let ask = RpcBatch::wallet().and("getblockchaininfo", json!([]));
        let ask = place.ask(ask).and(
            "listunspent",
            json!([0, 9_999_999, [place.local], false, {"minimumAmount": least}]),
        );
        // In one answer: what the wallet lists is all there is if it watches the address then.
        let is_new = AtomicBool::new(false);
        let ask = ask.about("the outputs of an address").reading(|said| {
            let [info, label, listed] = said.as_slice() else {
                return malformed(said);
            };
            if let Some(reason) = info.as_ref().ok().and_then(behind) {
                return ParsedResponse::Busy(reason);
            }
            match place.is_watched(label) {
                Ok(true) => {}
                Ok(false) => {
                    is_new.store(true, Ordering::Relaxed);
                    return ParsedResponse::Value(None);
                }
                Err(reason) => return ParsedResponse::Busy(reason),
            }
            let listed = listed.as_ref().ok();
            let listed = listed.filter(|_| info.is_ok());
            let listed = listed.and_then(|listed| read_list(listed, &place.script));
            found_in(said, listed.map(Some))
        });
        let listed = match self.rpc.quorum(&ask, Option::eq).await {
            Err(_) if is_new.load(Ordering::Relaxed) => None,
            listed => listed?,
        };
        if listed.is_some() || self.rpc.agree() > 1 {
            return Ok(listed);
        }
        // One node that watches it is enough: perhaps another cannot.
        let ask = |node| {
            let said = self.rpc.at(node, &ask);
            async move { said.await.ok().flatten() }
        };
        Ok(self.rpc.each(ask).await.into_iter().flatten().next())
    }

    /// Whether any node has a transaction: `Ok(false)` when each of them shows that it has not.
    /// Adds to `absent` which of the outputs that it spends one of them does not have.
    async fn known(
        &self,
        txid: &str,
        inputs: &[UnspentOutput],
        absent: &Mutex<BTreeSet<usize>>,
        spent: &AtomicBool,
    ) -> Result<bool, String> {
        let ask = RpcBatch::wallet()
            .and("getrawtransaction", json!([txid, 1]))
            .and("gettransaction", json!([txid]))
            .and("getindexinfo", json!(["txindex"]))
            .and("getblockchaininfo", json!([]))
            .each(inputs, "gettxout", |input| {
                json!([input.txid, input.vout, true])
            })
            .each(inputs, "gettxout", |input| {
                json!([input.txid, input.vout, false])
            });
        let found = |said: &Vec<BitcoinRpcResult>| {
            let [raw, in_wallet, index, info, outputs @ ..] = said.as_slice() else {
                return Err("the node's answer makes no sense".to_owned());
            };
            if raw.as_ref().is_ok_and(is_there) || in_wallet.as_ref().is_ok_and(is_in_block) {
                return Ok(true);
            }
            let is_absent = |said: &BitcoinRpcResult| said.as_ref().is_ok_and(Value::is_null);
            let in_mempool = outputs.iter().take(inputs.len()).enumerate();
            let gone = in_mempool.filter(|(_, said)| is_absent(said));
            locked(absent).extend(gone.map(|(index, _)| index));
            if outputs.iter().skip(inputs.len()).any(is_absent) {
                spent.store(true, Ordering::Relaxed);
            }
            match info {
                Ok(info) => behind(info).map_or(Ok(()), Err)?,
                Err(error) => return Err(short(&error.message)),
            }
            // It is not in the mempool. Nor in a block, if those left one of the outputs that it
            // spends unspent, or if the node has an index of all transactions.
            let unspent = |said: &BitcoinRpcResult| said.as_ref().is_ok_and(Value::is_object);
            let indexed = index
                .as_ref()
                .ok()
                .and_then(|index| index.pointer("/txindex/synced"));
            if outputs.iter().any(unspent) || indexed == Some(&Value::Bool(true)) {
                return Ok(false);
            }
            Err(
                "a node cannot say which transaction spent the outputs: with txindex=1 it could"
                    .into(),
            )
        };
        self.rpc.any(ask, found).await
    }

    /// Whether one of these outputs is spent: as many nodes as it takes to end something have the transaction that it is
    /// of, and no longer the output. Else it may be that the transaction is not there yet.
    async fn is_spent(&self, outputs: &[&UnspentOutput]) -> bool {
        for output in outputs {
            let ask = RpcBatch::wallet()
                .and("gettxout", json!([output.txid, output.vout, true]))
                .and("gettransaction", json!([output.txid]))
                .and("getrawtransaction", json!([output.txid, 1]));
            let spent = |said: &Vec<BitcoinRpcResult>| {
                let [output, in_wallet, raw] = said.as_slice() else {
                    return false;
                };
                let gone = output.as_ref().is_ok_and(Value::is_null);
                let there = raw.as_ref().is_ok_and(is_there);
                gone && (there || in_wallet.as_ref().is_ok_and(is_settled))
            };
            let says_so = |node| {
                let said = self.rpc.at(node, &ask);
                async move { said.await.is_ok_and(|said| spent(&said)).then_some(()) }
            };
            if witnessed(self.rpc.witnesses(says_so)).await.is_some() {
                return true;
            }
        }
        false
    }

    /// What a refusal means, which may come of the transaction itself being there.
    async fn weigh_refusal(
        &self,
        error: &RpcError,
        refusal: ChainRefusal,
        broadcast_request: &BroadcastRequest,
        lost: bool,
    ) -> BroadcastOutcome {
        let inputs = match &broadcast_request.chain_data {
            ChainData::Bitcoin(chain_data) => chain_data.outputs.as_slice(),
            _ => &[],
        };
        let (absent, spent) = (Mutex::default(), AtomicBool::new(false));
        let known = self
            .known(&broadcast_request.signed.tx_hash, inputs, &absent, &spent)
            .await;
        if known != Ok(true) && is_missing(error) {
            let absent: Vec<&UnspentOutput> = locked(&absent)
                .iter()
                .filter_map(|index| inputs.get(*index))
                .collect();
            if !self.is_spent(&absent).await {
                return BroadcastOutcome::Unknown(format!(
                    "the node does not know (yet) an output that the transaction spends: {}",
                    short(&error.message)
                ));
            }
        }
        match resolve_refusal(refusal, known, lost || broadcast_request.retried) {
            BroadcastOutcome::Doubtful(refusal, Standing::Open) if spent.into_inner() => {
                let standing = if broadcast_request.age_ms >= FINAL_MS {
                    Standing::Void
                } else {
                    Standing::Passed
                };
                BroadcastOutcome::Doubtful(refusal, standing)
            }
            outcome => outcome,
        }
    }
}

#[async_trait]
impl ChainClient for BitcoinNode {
    async fn chain_data(&self, queries: &Queries, _now_ms: u64) -> Result<ChainData, ChainError> {
        let queries = match queries {
            Queries::Bitcoin(queries) => queries,
            Queries::Nothing => return Ok(ChainData::Nothing),
            _ => return Err(refused("not a Bitcoin question".into())),
        };
        let place = self.watched_address(&queries.from).await?;
        // A replacement may spend nothing else that is in no block (BIP-125, rule 2), and what brings others
        // along would have to pay for those too.
        let named = &queries.inputs;
        // A flood of small outputs sent to an address must not keep it from paying.
        let leasts = ["0", "0.0001", "0.01"];
        let outputs = self.spendable(&place, &leasts, !named.is_empty(), REQUEST_PATIENCE);
        let mut outputs = self.proven(&place, outputs.await?).await?;
        let mut chain_data = BitcoinChainData::default();
        if let Some(level) = queries.fee_level {
            chain_data.fee_rate = Some(level.of(self.fee_rates().await?));
        }
        if !named.is_empty() {
            let (of_request, ancestors) = self.named(&place, named).await?;
            let is_other = |output: &UnspentOutput| {
                let same =
                    |one: &UnspentOutput| (&one.txid, one.vout) == (&output.txid, output.vout);
                !of_request.iter().any(same)
            };
            outputs.retain(is_other);
            if queries.fee_level.is_some() {
                let inputs: Vec<_> = of_request
                    .iter()
                    .map(|output| (output.txid.clone(), output.vout))
                    .collect();
                chain_data.replaced = self.replaced(&inputs).await;
            }
            chain_data.ancestors = ancestors;
            outputs.extend(of_request);
        }
        chain_data.outputs = outputs;
        Ok(chain_data.into())
    }

    async fn broadcast(&self, broadcast_request: &BroadcastRequest) -> BroadcastOutcome {
        // 0: no limit of the node to the fee. The payload has one, and the signers.
        let send = RpcBatch::node().and(
            "sendrawtransaction",
            json!([broadcast_request.signed.transaction, 0]),
        );
        let objection = |said: Result<&BitcoinRpcResult, &Infallible>| {
            let error = said.ok()?.as_ref().err()?;
            match judge(error) {
                BroadcastOutcome::Refused(refusal) => {
                    Some(Objection::new(objection_kind(error), refusal.reason))
                }
                _ => None,
            }
        };
        let (answer, lost) = self
            .rpc
            .submit(send.reading(|said| one(said)), objection)
            .await;
        let error = match answer {
            Ok(Ok(_)) => return BroadcastOutcome::Accepted,
            Ok(Err(error)) => error,
            Err(error) => return BroadcastOutcome::Unknown(error.into_reason()),
        };
        match judge(&error) {
            BroadcastOutcome::Refused(refusal) => {
                self.weigh_refusal(&error, refusal, broadcast_request, lost)
                    .await
            }
            verdict => verdict,
        }
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        now_ms: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        self.sight_all(transactions, now_ms).await
    }

    /// The height of the nodes' chain.
    async fn head(&self) -> Result<Option<u64>, ChainError> {
        let ask = RpcBatch::node().and("getblockchaininfo", json!([]));
        let height = ask.about("the newest block").reading(|said| {
            let [Ok(info)] = said.as_slice() else {
                return malformed(said);
            };
            match behind(info) {
                Some(reason) => ParsedResponse::Busy(reason),
                None => found_in(said, info.get("blocks").and_then(Value::as_u64)),
            }
        });
        let same = |one: &u64, other: &u64| one.abs_diff(*other) <= MAX_BLOCKS_APART;
        Ok(Some(self.rpc.quorum(height, same).await?))
    }

    async fn fee_estimates(&self) -> Result<[FeeEstimate; 3], ChainError> {
        Ok(self.fee_rates().await?.map(fees::estimate))
    }

    /// What the address could spend now, as [`ChainClient::chain_data`] says: without what others have
    /// sent it that is in no block yet.
    async fn balance(&self, address: &str, token: Option<&str>) -> Result<String, ChainError> {
        if token.is_some() {
            return Err(refused("Bitcoin has no tokens".into()));
        }
        let place = self.watched_address(address).await?;
        let outputs = self
            .spendable(&place, &["0"], false, BALANCE_PATIENCE)
            .await?;
        let sum = outputs
            .iter()
            .try_fold(0u64, |sum, output| sum.checked_add(output.value));
        sum.map(|sum| sum.to_string())
            .ok_or_else(|| ChainError::Unknown("the node lists more bitcoin than there are".into()))
    }

    fn health(&self) -> Vec<EndpointHealth> {
        self.rpc.health()
    }
}

/// Whether a node is on mainnet, or, where all nodes are on this machine, on regtest: money must
/// not be taken for what it is not. Test networks of others have none.
fn chain_of(said: &[BitcoinRpcResult], local: bool) -> ParsedResponse<Result<(), String>> {
    let [Ok(first), later] = said else {
        return malformed(said);
    };
    match first.as_str() {
        Some(GENESIS) => match later {
            Ok(later) if later.as_str() == Some(CHECKPOINT.1) => ParsedResponse::Value(Ok(())),
            Ok(_) => ParsedResponse::Value(Err(
                "the node that is configured for Bitcoin is on a fork of the Bitcoin chain".into(),
            )),
            Err(_) => ParsedResponse::Busy(format!(
                "the node is still catching up with the chain: it has no block {} yet",
                CHECKPOINT.0
            )),
        },
        Some(REGTEST) if local => ParsedResponse::Value(Ok(())),
        Some(REGTEST) => ParsedResponse::Value(Err(
            "the node that is configured for Bitcoin is on regtest, which is accepted only from nodes on this machine"
                .into(),
        )),
        Some(_) => ParsedResponse::Value(Err(
            "the node that is configured for Bitcoin is not on mainnet".into(),
        )),
        None => malformed(said),
    }
}

/// Why a node's chain is not up to date, by its getblockchaininfo. A regtest has no others to
/// catch up with.
fn behind(info: &Value) -> Option<String> {
    if info.get("chain").and_then(Value::as_str) == Some("regtest") {
        return None;
    }
    let number = |name| info.get(name).and_then(Value::as_u64).unwrap_or_default();
    let (blocks, headers) = (number("blocks"), number("headers"));
    let starting = info.get("initialblockdownload") != Some(&Value::Bool(false));
    (starting || headers > blocks.saturating_add(MAX_BLOCKS_BEHIND)).then(|| {
        format!("the node is still catching up with the chain: it has {blocks} of {headers} blocks")
    })
}

/// Reads a listunspent of outputs of one script. In order, so that the lists of two nodes can be
/// compared.
fn read_list(list: &Value, script: &str) -> Option<Vec<ListedOutput>> {
    let mut outputs = list
        .as_array()?
        .iter()
        .map(|entry| {
            let (txid, vout) = outpoint(entry)?;
            let value = satoshi(entry.get("amount")?)?;
            let confirmed = entry.get("confirmations")?.as_u64()? > 0;
            let is_its = entry.get("scriptPubKey")?.as_str()? == script;
            is_its.then_some(ListedOutput {
                output: UnspentOutput { txid, vout, value },
                confirmed,
            })
        })
        .collect::<Option<Vec<_>>>()?;
    outputs.sort_by(|one, other| {
        let key = |listed: &ListedOutput| (listed.output.txid.clone(), listed.output.vout);
        key(one).cmp(&key(other))
    });
    Some(outputs)
}

/// Transaction and number of an output.
fn outpoint(entry: &Value) -> Option<(String, u32)> {
    let txid = entry.get("txid")?.as_str()?;
    let vout = u32::try_from(entry.get("vout")?.as_u64()?).ok()?;
    let is_id = txid.len() == 64 && txid.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_id.then(|| (txid.to_ascii_lowercase(), vout))
}

/// Satoshi, of an amount in coins as a node's JSON has it, by its digits. These are exact also
/// where serde_json goes by way of a double: two amounts up to 21 million coins are further apart
/// than two doubles, so that the shortest digits of the double are those that were read.
fn satoshi(coins: &Value) -> Option<u64> {
    let text = coins.as_number()?.to_string();
    let (digits, exponent) = match text.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (text.as_str(), 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let decimals = i32::try_from(fraction.len()).ok()?;
    let shift = exponent.checked_add(8)?.checked_sub(decimals)?;
    let power = 10u64.checked_pow(shift.unsigned_abs())?;
    let digits = format!("{whole}{fraction}").parse::<u64>().ok()?;
    let satoshi = if shift >= 0 {
        digits.checked_mul(power)
    } else {
        (digits.checked_rem(power) == Some(0)).then(|| digits / power)
    };
    satoshi.filter(|satoshi| *satoshi <= MAX_SATOSHI)
}

/// Whether a transaction that getrawtransaction found is in the mempool or in the chain. One with
/// an index also finds those of blocks that were left behind.
fn is_there(found: &Value) -> bool {
    found.get("blockhash").is_none() || is_in_block(found)
}

/// Whether getrawtransaction or gettransaction says that a transaction is in a block of the chain.
fn is_in_block(found: &Value) -> bool {
    let depth = found.get("confirmations").and_then(Value::as_i64);
    depth.is_some_and(|depth| depth > 0)
}

/// Whether the wallet has seen a transaction come into a block, or another one that makes it void.
fn is_settled(found: &Value) -> bool {
    let depth = found.get("confirmations").and_then(Value::as_i64);
    depth.is_some_and(|depth| depth != 0)
}

/// The answer to the only call of a batch.
fn one(said: &[BitcoinRpcResult]) -> ParsedResponse<BitcoinRpcResult> {
    match said {
        [one] => ParsedResponse::Value(one.clone()),
        _ => malformed(said),
    }
}

/// What was found in an answer, which cannot be read where that is nothing.
fn found_in<T>(said: &[BitcoinRpcResult], found: Option<T>) -> ParsedResponse<T> {
    found.map_or_else(|| malformed(said), ParsedResponse::Value)
}

/// An answer that cannot be read, with an error that is in it.
fn malformed<T>(said: &[BitcoinRpcResult]) -> ParsedResponse<T> {
    let error = said.iter().find_map(|said| said.as_ref().err());
    ParsedResponse::Malformed(match error {
        Some(error) => format!("the node said: {}", short(&error.message)),
        None => "the node's answer makes no sense".into(),
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

fn refused(reason: String) -> ChainError {
    ChainError::Refused(ChainRefusal {
        reason,
        code: ExecuteCode::Unspecified,
    })
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests;
