//! A service that follows one chain for a shop, and the receiver of its webhooks.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Router, body::Bytes, extract::State};
use covault_actors::store::{
    Batch, Key, KeySpace, Precondition, Scan, Store,
    postgres::{Options, PostgresStore},
    redb::RedbStore,
};
use parking_lot::Mutex;
use secrecy::SecretString;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    support::{
        ApiClient, TestCluster, covault, eventually, outcome_of, postgres::Postgres, store_table,
    },
    usage,
};

pub const TARGET: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
/// Rows of one commit.
const PAGE: u64 = 20_000;

/// When events came, by the hash of the transaction and the event.
#[derive(Default)]
pub struct Arrivals(Mutex<BTreeMap<(String, String), Instant>>);

impl Arrivals {
    /// It with its URL.
    async fn start() -> (Arc<Self>, String) {
        let arrivals = Arc::new(Self::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let router = Router::new()
            .fallback(take)
            .with_state(Arc::clone(&arrivals));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (arrivals, url)
    }

    pub fn all(&self) -> Vec<Instant> {
        self.0.lock().values().copied().collect()
    }

    pub fn confirmed(&self, tx: &str) -> Option<Instant> {
        let event = "transfer.confirmed.v1".to_owned();
        self.0.lock().get(&(tx.to_owned(), event)).copied()
    }

    /// Waits for the event of a transaction.
    pub async fn until_confirmed(&self, tx: &str) -> Instant {
        loop {
            if let Some(at) = self.confirmed(tx) {
                return at;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn take(State(arrivals): State<Arc<Arrivals>>, body: Bytes) {
    let at = Instant::now();
    let event: Value = serde_json::from_slice(&body).unwrap();
    let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
    let mut all = arrivals.0.lock();
    all.entry((text("tx_hash"), text("event"))).or_insert(at);
}

pub struct Shop {
    pub cluster: TestCluster,
    pub vault: String,
    pub arrivals: Arc<Arrivals>,
    api: ApiClient,
    store_url: Option<String>,
    _server: Option<Postgres>,
}

impl Shop {
    /// A shop that is told of the coin of a chain, and of a token.
    pub async fn open(url: &str, chain: u64, token: &str, on_postgres: bool) -> Self {
        let server = on_postgres.then(Postgres::start);
        let store_url = server.as_ref().map(|server| server.database());
        let store = store_url.clone();
        let prepare = |folder: &Path| {
            let path = folder.join("serve.toml");
            let mut text = std::fs::read_to_string(&path).unwrap();
            if let Some(url) = &store {
                let table = store_table(folder, url);
                text = format!("{table}\n{text}");
            }
            let tables = format!(
                "[chains.evm.{chain}]\nrpc = [{url:?}]\nconfirmations = 1\ndeposit_poll_ms = 250\n\
                 [webhooks]\nallow = [\"127.0.0.1/32\"]\n"
            );
            std::fs::write(&path, format!("{tables}\n{text}")).unwrap();
        };
        let cluster = TestCluster::start_prepared(60_000, "raw_signing = true", prepare).await;
        let vault = cluster.create_vault("treasury");
        cluster.until_live(&[0, 1, 2]).await;
        let (arrivals, hook) = Arrivals::start().await;
        let make =
            "token create --name shop --kind sweep --vault treasury --access full".to_owned();
        let made = operator(&cluster, &make);
        let api_token = made.split_whitespace().last().unwrap().to_owned();
        let configure = format!(
            "sweep configure --token shop --network EVM --vault treasury --target {TARGET} --webhook {hook}"
        );
        operator(&cluster, &configure);
        for contract in [String::new(), format!(" --contract {token}")] {
            let add = format!("sweep asset add --token shop --chain {chain} --minimum 1{contract}");
            operator(&cluster, &add);
        }
        let api = ApiClient::new(&cluster.api.base, &api_token);
        Self {
            cluster,
            vault,
            arrivals,
            api,
            store_url,
            _server: server,
        }
    }

    pub async fn wallet(&self, reference: usize) -> String {
        let wallet = eventually("the vault has its keys", async || {
            let body = json!({"network": "EVM", "ref": format!("order-{reference}")});
            let (status, answer) = self.api.post("sweep/wallets", body).await;
            (status == 200).then_some(answer)
        })
        .await;
        wallet["address"].as_str().unwrap().to_owned()
    }

    pub fn operator(&self, words: &str) -> String {
        operator(&self.cluster, words)
    }

    /// MiB that the service holds.
    pub fn memory_mib(&self) -> f64 {
        usage::memory_mib(self.cluster.serve.pid(), "VmRSS")
    }

    /// Starts the service again. Seconds until it is ready.
    pub async fn start(&mut self) -> f64 {
        let started = Instant::now();
        self.cluster.start_serve();
        self.cluster.ready().await;
        started.elapsed().as_secs_f64()
    }

    /// Stops the service, and gives it so many deposit addresses beside its own: copies of the row of one.
    pub async fn stop_and_fill(&mut self, addresses: u64) {
        self.cluster.serve.kill();
        let store = self.store().await;
        let space = KeySpace::DepositAddress;
        let sample = store.scan(&Scan::prefix(space, &[], 1)).await.unwrap();
        let (key, row) = sample.first().expect("an address").clone();
        for page in 0..addresses.div_ceil(PAGE) {
            let mut batch = Batch::new();
            for number in page * PAGE..((page + 1) * PAGE).min(addresses) {
                let account = Sha256::digest(number.to_be_bytes());
                let mut bytes = key.bytes.clone();
                let begin = bytes.len() - 20;
                bytes[begin..].copy_from_slice(&account[..20]);
                let key = Key { space, bytes };
                batch.put(key, Precondition::Any, row.value.clone());
            }
            store.commit(batch).await.unwrap();
        }
    }

    async fn store(&self) -> Arc<dyn Store> {
        let Some(url) = &self.store_url else {
            let file = self.cluster.folder.path().join("orchestrator/store.redb");
            return Arc::new(RedbStore::open(&file).unwrap());
        };
        let options = Options {
            url: SecretString::from(url.clone()),
            readers: 4.try_into().unwrap(),
            patience: Duration::from_secs(600),
            alone: true,
        };
        Arc::new(PostgresStore::open(options).await.unwrap())
    }
}

fn operator(cluster: &TestCluster, words: &str) -> String {
    let mut command = covault();
    command.args(words.split(' ')).arg("--config");
    let config = cluster.folder.path().join("serve.toml");
    let (done, out, err) = outcome_of(command.arg(config));
    assert!(done, "{words}: {out}\n{err}");
    out
}
