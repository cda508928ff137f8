//! Makes the wallets of nodes watch addresses (decision 0015).
//!
//! A node's wallet knows what happens to an address from the moment that it watches it. What was
//! before has to be looked up once, and that takes a node of mainnet minutes: its set of all
//! unspent outputs is gone through for the address, and what is found there and not in the wallet
//! is brought in by reading the blocks since. Only then does the address get the label by which a
//! node says that its wallet knows everything. All of that is kept by the node, so that it is
//! right to do it again from the start, whatever became of an earlier try.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::{
    batch::{BitcoinRpcResult, CoreRpc, RpcBatch, WALLET_NAME},
    behind, outpoint,
};
use crate::chain_rpc::{CallError, ChainError, Client, exchange::short, jsonrpc::RpcError};

/// How long a node may go through all unspent outputs, or read blocks. When it takes longer, it
/// continues by itself, and the next try finds what it has done.
const SCAN_TIMEOUT: Duration = Duration::from_secs(3_600);
/// The pause before a node that does so for another is asked again.
const PAUSE: Duration = Duration::from_secs(1);
/// Most addresses that wait: more do not come from wallets that are used.
const MAX_WAITING: usize = 1_000;
/// An address with more unspent outputs is not that of a wallet.
const MAX_OUTPUTS: usize = 10_000;
/// So many outputs are asked for at once.
const CHUNK: usize = 2_000;

/// RPC_WALLET_NOT_FOUND.
const NO_WALLET: i64 = -18;
/// RPC_WALLET_INVALID_LABEL_NAME: no address has the label.
const NO_LABEL: i64 = -11;
/// RPC_WALLET_ALREADY_LOADED.
const IS_LOADED: i64 = -35;
/// RPC_METHOD_NOT_FOUND.
const NO_METHOD: i64 = -32_601;

/// An address, in the forms that nodes want.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedAddress {
    /// As it is written on mainnet.
    pub address: String,
    /// Its script, in hex.
    pub script: String,
    /// As the nodes' chain writes it: a test chain does that in another way.
    pub local: String,
}

impl WatchedAddress {
    /// What says in a node's wallet that it knows everything about the address.
    fn label(&self) -> String {
        format!("{WALLET_NAME}:{}", self.address)
    }

    /// Adds the question whether a wallet knows everything about it.
    pub fn ask(&self, batch: RpcBatch) -> RpcBatch {
        batch.and("getaddressesbylabel", json!([self.label()]))
    }

    /// Reads the answer; `Err` when it makes no sense.
    pub fn is_watched(&self, said: &BitcoinRpcResult) -> Result<bool, String> {
        match said {
            Ok(labelled) => Ok(labelled.get(&self.local).is_some()),
            Err(error) if matches!(error.code, NO_WALLET | NO_LABEL) => Ok(false),
            Err(error) if error.code == NO_METHOD => Err(no_wallets()),
            Err(error) => Err(words(error)),
        }
    }
}

/// Why a node could not be made to watch addresses.
#[derive(Clone, Debug)]
struct WatchFailure {
    reason: String,
    /// One of the addresses has too many outputs; the others may do without it.
    too_many: bool,
}

impl From<String> for WatchFailure {
    fn from(reason: String) -> Self {
        Self {
            reason,
            too_many: false,
        }
    }
}

impl From<CallError<Infallible>> for WatchFailure {
    fn from(error: CallError<Infallible>) -> Self {
        Self {
            too_many: matches!(error, CallError::TooLong(_)),
            reason: error.into_reason(),
        }
    }
}

/// What became of an address: `None` while it is in progress.
type WatchOutcome = Option<Result<(), String>>;

/// Makes nodes watch addresses, one bundle of them after the other.
pub struct AddressWatcher {
    rpc: Arc<Client<CoreRpc>>,
    /// Held by who works.
    turn: tokio::sync::Mutex<()>,
    wanted: Mutex<WatchList>,
}

#[derive(Default)]
struct WatchList {
    /// Those that no task has taken yet.
    waiting: Vec<(WatchedAddress, watch::Sender<WatchOutcome>)>,
    /// All of them, by address.
    outcomes: BTreeMap<String, watch::Receiver<WatchOutcome>>,
}

impl AddressWatcher {
    /// Of these nodes.
    pub fn new(rpc: Arc<Client<CoreRpc>>) -> Self {
        Self {
            rpc,
            turn: tokio::sync::Mutex::default(),
            wanted: Mutex::default(),
        }
    }

    fn wanted(&self) -> MutexGuard<'_, WatchList> {
        self.wanted.lock()
    }

    /// Has every node watch an address, and waits for it so long. The work continues when nobody
    /// waits.
    ///
    /// # Errors
    /// [`ChainError::Unknown`] when it takes longer, and when no node could.
    pub async fn ensure_watched(
        self: &Arc<Self>,
        place: &WatchedAddress,
        patience: Duration,
    ) -> Result<(), ChainError> {
        let mut outcome = self.enqueue(place)?;
        let done = tokio::time::timeout(patience, outcome.wait_for(Option::is_some));
        let problem = match done.await {
            Ok(Ok(outcome)) => match &*outcome {
                Some(Err(reason)) => reason.clone(),
                Some(Ok(())) | None => return Ok(()),
            },
            Ok(Err(_)) => "the scan for the outputs of the address was interrupted".into(),
            Err(_) => {
                "the nodes are scanning for the outputs of the address for the first time, which \
                       takes minutes; try again later"
                    .into()
            }
        };
        Err(ChainError::Unknown(format!(
            "{}: {problem}",
            self.rpc.chain()
        )))
    }

    fn enqueue(
        self: &Arc<Self>,
        place: &WatchedAddress,
    ) -> Result<watch::Receiver<WatchOutcome>, ChainError> {
        let mut wanted = self.wanted();
        // The task that tells the outcome may have ended.
        let in_work = wanted.outcomes.get(&place.address);
        if let Some(outcome) = in_work.filter(|outcome| outcome.has_changed().is_ok()) {
            return Ok(outcome.clone());
        }
        if wanted.waiting.len() >= MAX_WAITING {
            return Err(ChainError::Unknown(format!(
                "{}: too many addresses are being scanned at once; try again later",
                self.rpc.chain()
            )));
        }
        let (sender, outcome) = watch::channel(None);
        wanted.waiting.push((place.clone(), sender));
        wanted
            .outcomes
            .insert(place.address.clone(), outcome.clone());
        drop(wanted);
        let this = Arc::clone(self);
        tokio::spawn(async move { this.work().await });
        Ok(outcome)
    }

    /// Everything that waits, in its turn: another task may have done it.
    async fn work(&self) {
        let _turn = self.turn.lock().await;
        let bundle = std::mem::take(&mut self.wanted().waiting);
        if bundle.is_empty() {
            return;
        }
        let places: Vec<WatchedAddress> = bundle.iter().map(|(place, _)| place.clone()).collect();
        let by_node = self.rpc.each(|node| self.prepare(node, &places)).await;
        for (index, (place, sender)) in bundle.into_iter().enumerate() {
            // One node that watches it is enough for an answer.
            let mut outcome = Err("no node could be reached".to_owned());
            for result in by_node.iter().filter_map(|results| results.get(index)) {
                if outcome.is_err() {
                    outcome.clone_from(result);
                }
            }
            self.wanted().outcomes.remove(&place.address);
            sender.send_replace(Some(outcome));
        }
    }

    /// One node and some addresses; for each of them what went wrong.
    async fn prepare(&self, node: usize, places: &[WatchedAddress]) -> Vec<Result<(), String>> {
        match self.import_addresses(node, places).await {
            Err(stop) if stop.too_many && places.len() > 1 => {
                let mut results = Vec::with_capacity(places.len());
                for place in places {
                    let result = self
                        .import_addresses(node, std::slice::from_ref(place))
                        .await;
                    results.push(result.map_err(|stop| stop.reason));
                }
                results
            }
            result => vec![result.map_err(|stop| stop.reason); places.len()],
        }
    }

    /// All that one node has to do for some addresses.
    async fn import_addresses(
        &self,
        node: usize,
        places: &[WatchedAddress],
    ) -> Result<(), WatchFailure> {
        self.open_wallet(node).await?;
        let new = self.unwatched(node, places).await?;
        if new.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        // In this order: an address with a million outputs is not watched. The wallet
        // looks back some hours when it begins to watch, further than this can take.
        let unspent = self.unspent(node, &new).await?;
        self.follow(node, &new).await?;
        if let Some(height) = self.unseen_since(node, &new, &unspent).await? {
            self.read_blocks(node, height).await?;
        }
        self.label(node, &new).await?;
        let (chain, addresses, outputs) = (self.rpc.chain(), new.len(), unspent.len());
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let node = node + 1;
        tracing::info!(
            chain,
            node,
            addresses,
            outputs,
            took_ms,
            "a node's wallet now watches new addresses"
        );
        Ok(())
    }

    /// Creates the wallet, or loads it.
    async fn open_wallet(&self, node: usize) -> Result<(), WatchFailure> {
        let there = RpcBatch::wallet().and("getwalletinfo", json!([]));
        match self.one(node, &there).await? {
            Ok(_) => return Ok(()),
            Err(error) if error.code == NO_WALLET => {}
            Err(error) if error.code == NO_METHOD => return Err(no_wallets().into()),
            Err(error) => return Err(words(&error).into()),
        }
        // No private keys, blank, no passphrase, coins may be used again, of descriptors, loaded
        // when the node starts.
        let open = RpcBatch::node()
            .and(
                "createwallet",
                json!([WALLET_NAME, true, true, "", false, true, true]),
            )
            .and("loadwallet", json!([WALLET_NAME, true]))
            .within(SCAN_TIMEOUT);
        let said = self.ask(node, &open).await?;
        let is_open = said.iter().any(|said| match said {
            Ok(_) => true,
            Err(error) => error.code == IS_LOADED,
        });
        match said.last() {
            Some(Err(error)) if !is_open => Err(format!(
                "the node cannot open its wallet {WALLET_NAME}: {}",
                short(&error.message)
            )
            .into()),
            _ => Ok(()),
        }
    }

    /// Those of the addresses of which the node's wallet does not know everything.
    async fn unwatched(
        &self,
        node: usize,
        places: &[WatchedAddress],
    ) -> Result<Vec<WatchedAddress>, WatchFailure> {
        let ask = places
            .iter()
            .fold(RpcBatch::wallet(), |batch, place| place.ask(batch));
        let said = self.ask(node, &ask).await?;
        let mut new = Vec::new();
        for (place, said) in places.iter().zip(&said) {
            if !place.is_watched(said)? {
                new.push(place.clone());
            }
        }
        Ok(new)
    }

    /// All unspent outputs of the addresses that are in blocks, with the heights of these.
    async fn unspent(
        &self,
        node: usize,
        places: &[WatchedAddress],
    ) -> Result<BTreeMap<(String, u32), u64>, WatchFailure> {
        let info = self
            .one(node, &RpcBatch::node().and("getblockchaininfo", json!([])))
            .await?
            .map_err(|error| words(&error))?;
        if let Some(reason) = behind(&info) {
            return Err(reason.into());
        }
        let scripts: Vec<String> = places
            .iter()
            .map(|place| format!("raw({})", place.script))
            .collect();
        let scan = RpcBatch::node()
            .and("scantxoutset", json!(["start", scripts]))
            .within(SCAN_TIMEOUT);
        let found = self
            .when_free(node, &scan)
            .await?
            .map_err(|error| words(&error))?;
        let whole = found.get("success") == Some(&Value::Bool(true));
        let outputs = found.get("unspents").and_then(Value::as_array);
        let Some(outputs) = outputs.filter(|_| whole) else {
            return Err("the node aborted the scan for outputs".to_owned().into());
        };
        let mut of_each: BTreeMap<&str, usize> = BTreeMap::new();
        let mut unspent = BTreeMap::new();
        for output in outputs {
            let script = output.get("scriptPubKey").and_then(Value::as_str);
            let count = of_each.entry(script.unwrap_or_default()).or_default();
            *count += 1;
            if *count > MAX_OUTPUTS {
                return Err(WatchFailure {
                    reason: format!(
                        "the address has more than {MAX_OUTPUTS} unspent outputs: it is not watched"
                    ),
                    too_many: true,
                });
            }
            let height = output.get("height").and_then(Value::as_u64);
            let (place, height) = outpoint(output).zip(height).ok_or_else(nonsense)?;
            unspent.insert(place, height);
        }
        Ok(unspent)
    }

    /// The wallet watches the addresses from now on: all blocks from some hours ago, and the
    /// mempool.
    async fn follow(&self, node: usize, places: &[WatchedAddress]) -> Result<(), WatchFailure> {
        let scripts = places.iter().map(|place| &place.script);
        let sums = RpcBatch::node().each(scripts, "getdescriptorinfo", |script| {
            json!([format!("raw({script})")])
        });
        let mut imports = Vec::with_capacity(places.len());
        for said in self.ask(node, &sums).await? {
            let info = said.map_err(|error| words(&error))?;
            let descriptor = info.get("descriptor").and_then(Value::as_str);
            let descriptor = descriptor.ok_or_else(nonsense)?;
            imports.push(json!({"desc": descriptor, "timestamp": "now"}));
        }
        let import = RpcBatch::wallet()
            .and("importdescriptors", json!([imports]))
            .within(SCAN_TIMEOUT);
        let results = self
            .when_free(node, &import)
            .await?
            .map_err(|error| words(&error))?;
        let results = results.as_array().ok_or_else(nonsense)?;
        let failed = results
            .iter()
            .find(|result| result.get("success") != Some(&Value::Bool(true)));
        match failed {
            Some(result) => {
                let said = result.pointer("/error/message").and_then(Value::as_str);
                let said = short(said.unwrap_or("no reason"));
                Err(format!("the node's wallet cannot watch the address: {said}").into())
            }
            None if results.len() == places.len() => Ok(()),
            None => Err(nonsense().into()),
        }
    }

    /// The height from which the wallet has to read blocks so as to know what it does not: outputs
    /// that it has not seen, and outputs that it has not seen being spent, as a try that was cut
    /// off leaves them. `None` when it knows everything.
    async fn unseen_since(
        &self,
        node: usize,
        places: &[WatchedAddress],
        unspent: &BTreeMap<(String, u32), u64>,
    ) -> Result<Option<u64>, WatchFailure> {
        let locals: Vec<&str> = places.iter().map(|place| place.local.as_str()).collect();
        let ask = RpcBatch::wallet()
            .and("getblockchaininfo", json!([]))
            .and("listunspent", json!([1, 9_999_999, locals, true]));
        let said = self.ask(node, &ask).await?;
        let [Ok(info), Ok(listed)] = said.as_slice() else {
            let error = said.iter().find_map(|said| said.as_ref().err());
            return Err(error.map_or_else(nonsense, words).into());
        };
        let tip = info.get("blocks").and_then(Value::as_u64);
        let tip = tip.ok_or_else(nonsense)?;
        let mut known = BTreeMap::new();
        for output in listed.as_array().ok_or_else(nonsense)? {
            let depth = output.get("confirmations").and_then(Value::as_u64);
            let (place, depth) = outpoint(output).zip(depth).ok_or_else(nonsense)?;
            known.insert(place, (tip + 1).saturating_sub(depth));
        }
        let all: BTreeSet<&(String, u32)> = unspent.keys().chain(known.keys()).collect();
        let all: Vec<&(String, u32)> = all.into_iter().collect();
        let mut since = None;
        for some in all.chunks(CHUNK) {
            let ask =
                RpcBatch::node().each(some, "gettxout", |(txid, vout)| json!([txid, vout, false]));
            for (place, said) in some.iter().zip(self.ask(node, &ask).await?) {
                let is_there = !said.map_err(|error| words(&error))?.is_null();
                let height = match (known.get(*place), unspent.get(*place)) {
                    (Some(height), _) if !is_there => height,
                    (None, Some(height)) if is_there => height,
                    _ => continue,
                };
                since = Some(since.map_or(*height, |since: u64| since.min(*height)));
            }
        }
        Ok(since)
    }

    async fn read_blocks(&self, node: usize, height: u64) -> Result<(), WatchFailure> {
        let read = RpcBatch::wallet()
            .and("rescanblockchain", json!([height]))
            .within(SCAN_TIMEOUT);
        match self.when_free(node, &read).await? {
            Ok(_) => Ok(()),
            Err(error) => Err(format!(
                "the node cannot read the blocks from {height} on, which contain outputs of the \
                 address: {}",
                short(&error.message)
            )
            .into()),
        }
    }

    async fn label(&self, node: usize, places: &[WatchedAddress]) -> Result<(), WatchFailure> {
        let label = RpcBatch::wallet().each(places, "setlabel", |place| {
            json!([place.local, place.label()])
        });
        for said in self.ask(node, &label).await? {
            said.map_err(|error| words(&error))?;
        }
        Ok(())
    }

    async fn ask(
        &self,
        node: usize,
        batch: &RpcBatch,
    ) -> Result<Vec<BitcoinRpcResult>, WatchFailure> {
        Ok(self.rpc.at(node, batch).await?)
    }

    async fn one(&self, node: usize, batch: &RpcBatch) -> Result<BitcoinRpcResult, WatchFailure> {
        let mut said = self.ask(node, batch).await?;
        Ok(said.pop().ok_or_else(nonsense)?)
    }

    /// Asks for what a node does for one at a time.
    async fn when_free(
        &self,
        node: usize,
        batch: &RpcBatch,
    ) -> Result<BitcoinRpcResult, WatchFailure> {
        let begun = Instant::now();
        loop {
            let said = self.one(node, batch).await?;
            let taken = said.as_ref().is_err_and(is_taken);
            if !taken || begun.elapsed() >= SCAN_TIMEOUT {
                return Ok(said);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Whether the node already goes through outputs, or its wallet through blocks.
fn is_taken(error: &RpcError) -> bool {
    let said = error.message.to_ascii_lowercase();
    said.contains("scan already in progress") || said.contains("currently rescanning")
}

fn words(error: &RpcError) -> String {
    format!("the node said: {}", short(&error.message))
}

fn nonsense() -> String {
    "the node's answer makes no sense".into()
}

fn no_wallets() -> String {
    "the node's wallets are disabled: start bitcoind without disablewallet=1".into()
}
