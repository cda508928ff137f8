//! One service with its signers, its Redis and its chain; what is in its store, and what it is asked.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use covault_actors::store::{
    Store,
    postgres::{Options, PostgresStore},
    redb::RedbStore,
};
use covault_core::audit::AuditChain;
use futures::StreamExt as _;
use secrecy::SecretString;
use serde_json::{Value, json};

use crate::{
    console_person::ConsolePerson,
    copies::{self, CopyPlan, SampleRequest},
    pages::PagePeople,
    support::{Anvil, TestCluster, base64, configure, free_port, postgres::Postgres, store_table},
    usage::{cpu_s, memory_mib},
};

const CHAIN: u64 = 31_337;
/// Requests that are really made; all others are copies of these.
const MADE: u64 = 200;
/// Accounts that pay, and as many that sign messages.
const ACCOUNTS: u64 = 10;
const BATCHES: usize = 50;
/// Payments that no block takes, of which copies are made.
const WAITING: u64 = 20;
/// Most addresses that are asked for.
const ADDRESSES: u64 = 1_000;

/// What is asked for, how often in a round, and how many milliseconds from one to the next.
pub const KINDS: [(&str, u32, u64); 16] = [
    ("a finished request", 200, 4),
    ("list of requests, page 1 of 10", 40, 4),
    ("list of requests, page 90 of 10", 40, 4),
    ("list of requests, page 10 of 100", 20, 20),
    ("a wallet by its address", 100, 4),
    ("a wallet by its reference", 100, 4),
    ("list of wallets, page 1 of 100", 30, 20),
    ("list of wallets, page 4 of 100", 30, 20),
    ("a batch payment", 50, 4),
    ("an idempotent repeat", 50, 4),
    ("a new wallet", 100, 8),
    ("a request", 40, 40),
    ("console: /", 50, 40),
    ("console: /history", 50, 40),
    ("console: /vaults", 50, 40),
    ("console: a finished request", 50, 40),
];

/// Where the console shows a request.
const SHOWN: &str = "/requests/";

/// What is made by asking for a request: accepted, and at its end. A payment in every second.
const REQUEST: [[&str; 2]; 2] = [
    ["a message is accepted", "a message is signed"],
    ["a payment is accepted", "a payment is sent"],
];

/// What is in the store of a service.
#[derive(Clone, Copy)]
pub struct ServiceSize {
    /// Finished requests.
    pub requests: u64,
    pub wallets: u64,
    /// Transactions that no block takes.
    pub open: u64,
    /// Requests that wait for people.
    pub pending: u64,
}

pub struct BenchService {
    pub cluster: TestCluster,
    anvil: Anvil,
    _chain_folder: tempfile::TempDir,
    /// The URL of its database; `None` of redb.
    url: Option<String>,
    http: reqwest::Client,
    pub requests: u64,
    pub wallets: u64,
    pub vaults: Vec<String>,
    addresses: Vec<String>,
    pub payers: Vec<String>,
    writers: Vec<String>,
    pub batches: Vec<String>,
    /// Who looks at the console.
    viewer: Option<ConsolePerson>,
    /// Who approves what waits; `None`: nothing does.
    pub pages: Option<PagePeople>,
    /// When the first of its requests was made.
    pub first_ms: u64,
    next: u64,
    counting: bool,
    /// Nanoseconds of each call, by what was asked.
    pub calls: BTreeMap<&'static str, Vec<u64>>,
}

impl BenchService {
    /// A service of this size.
    pub async fn start(size: ServiceSize, server: Option<&Postgres>) -> Self {
        let ServiceSize {
            requests,
            wallets,
            open,
            pending,
        } = size;
        assert_eq!(requests % MADE, 0, "a multiple of {MADE}");
        let chain_folder = tempfile::tempdir().unwrap();
        let anvil = Anvil::start(chain_folder.path(), CHAIN).await;
        let url = server.map(Postgres::database);
        let port = free_port();
        let prepare = |folder: &Path| {
            let chain = &anvil.url;
            let mut tables = format!(
                "[chains.evm.{CHAIN}]\nrpc = [{chain:?}]\n\
                 [limits]\nper_token_per_second = 0\nper_ip_per_second = 0\n\
                 [console]\nlisten = \"127.0.0.1:{port}\"\norigin = \"http://localhost:{port}\"\n"
            );
            if let Some(url) = &url {
                tables += &store_table(folder, url);
            }
            configure(&folder.join("serve.toml"), "serve", "", &tables);
        };
        let cluster = TestCluster::start_prepared(60_000, "raw_signing = true", prepare).await;
        let mut service = Self {
            cluster,
            anvil,
            _chain_folder: chain_folder,
            url,
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            requests,
            wallets,
            vaults: Vec::new(),
            addresses: Vec::new(),
            payers: Vec::new(),
            writers: Vec::new(),
            batches: Vec::new(),
            viewer: None,
            pages: None,
            first_ms: copies::first_ms(now_ms(), requests + open),
            next: now_ms() % 1_000_000 * 1_000_000,
            counting: false,
            calls: BTreeMap::new(),
        };
        for name in ["main", "other"] {
            service.vaults.push(service.cluster.create_vault(name));
        }
        let mut viewer = ConsolePerson::enrol(&service.cluster, port, "viewer", "viewer").await;
        viewer.sign_in().await;
        service.viewer = Some(viewer);
        service.make_wallets().await;
        if pending > 0 {
            service.pages = Some(PagePeople::make(&service, port, pending).await);
        }
        let made = service.make_requests().await;
        service.until_final(&made).await;
        let waiting = if open > 0 {
            service.make_waiting().await
        } else {
            Vec::new()
        };
        service.copy(made, waiting, open).await;
        service
    }

    pub async fn call(&self, operation: &str, body: &Value) -> Value {
        self.keyed(operation, body, None).await
    }

    async fn keyed(&self, operation: &str, body: &Value, key: Option<&str>) -> Value {
        let api = &self.cluster.api;
        let url = format!("{}/v1/{operation}", api.base);
        let mut call = self.http.post(&url).header("x-mtoken", &api.token);
        if let Some(key) = key {
            call = call.header("idempotency-key", key);
        }
        let response = call.json(body).send().await.unwrap();
        let (status, bytes) = (response.status(), response.bytes().await.unwrap());
        let answer: Value = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| panic!("{url} {body}: {status} {bytes:?}"));
        assert_eq!(status.as_u16(), 200, "{operation} {body}: {answer}");
        assert_eq!(answer["error"], Value::Null, "{operation} {body}: {answer}");
        answer
    }

    async fn wallet(&self, vault: &str, number: u64) -> String {
        let network = match number / 2 % 2 {
            0 => "NETWORK_TYPE_EVM",
            _ => "NETWORK_TYPE_SOLANA",
        };
        let body = json!({"vaultUuid": vault, "networkType": network,
            "ref": format!("customer {number}"), "name": format!("wallet of customer {number}")});
        let answer = self.call("createWallet", &body).await;
        answer["details"]["address"].as_str().unwrap().to_owned()
    }

    async fn make_wallets(&mut self) {
        let stride = self.wallets.div_ceil(ADDRESSES);
        let made = futures::stream::iter(0..self.wallets).map(|number| {
            let service = &*self;
            // In turns: a vault, then the other one.
            let vault = &service.vaults[(number % 2) as usize];
            async move {
                let address = service.wallet(vault, number).await;
                if number > 0 && number.is_multiple_of(20_000) {
                    eprintln!("  {number} wallets are there");
                }
                let chosen = number.is_multiple_of(stride) || number < 4 * ACCOUNTS;
                chosen.then_some((number, address))
            }
        });
        let mut made: Vec<_> = made
            .buffer_unordered(64)
            .filter_map(async |it| it)
            .collect()
            .await;
        made.sort();
        for (number, address) in &made {
            // Those of the first vault, both networks.
            match number % 4 {
                0 if *number < 4 * ACCOUNTS => self.payers.push(address.clone()),
                2 if *number < 4 * ACCOUNTS => self.writers.push(address.clone()),
                _ => {}
            }
        }
        self.addresses = made.into_iter().map(|(_, address)| address).collect();
        for payer in &self.payers {
            self.anvil.fund(payer, 1_000_000_000_000_000_000_000).await;
        }
        for number in 0..BATCHES {
            let recipients: Vec<_> = (1..=20)
                .map(|amount| json!({"address": self.payers[0], "amount": amount.to_string()}))
                .collect();
            let from = &self.payers[number % self.payers.len()];
            let body = json!({"name": "salaries", "evmBatchSendNative": {
                "chainId": CHAIN.to_string(), "from": from, "recipients": recipients}});
            let answer = self.call("createBatchPayment", &body).await;
            let uuid = answer["batchPayment"]["uuid"].as_str().unwrap();
            self.batches.push(uuid.to_owned());
        }
    }

    fn message(&self, number: u64) -> Value {
        let from = &self.writers[(number / 2 % ACCOUNTS) as usize];
        json!({"notes": "the invoice of this month", "rawMessage": {"from": from,
            "content": base64(format!("{number:0200}"))}})
    }

    fn payment(&self, number: u64) -> Value {
        let from = &self.payers[(number / 2 % ACCOUNTS) as usize];
        json!({"notes": "the invoice of this month", "evmSendNative": {
            "chainId": CHAIN.to_string(), "from": from, "value": "5",
            "to": "0x00000000000000000000000000000000000000aa"}})
    }

    async fn create(&self, number: u64, key: &str) -> String {
        let body = match number % 2 {
            0 => self.message(number),
            _ => self.payment(number),
        };
        let answer = self.keyed("createSigningRequest", &body, Some(key)).await;
        answer["signingRequest"]["uuid"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    async fn end(&self, uuid: &str) {
        self.call("executeSigningRequests", &json!({"uuid": uuid}))
            .await;
    }

    async fn make_requests(&self) -> Vec<SampleRequest> {
        let mut made = Vec::new();
        for number in 0..MADE {
            let key = format!("template {number:011}");
            let uuid = self.create(number, &key).await;
            self.end(&uuid).await;
            made.push(SampleRequest { uuid, key });
        }
        made
    }

    /// Until nothing more can happen to their transactions.
    async fn until_final(&self, made: &[SampleRequest]) {
        self.anvil.call("anvil_mine", json!(["0x100"])).await;
        for request in made {
            loop {
                let asked = json!({"uuid": request.uuid});
                let answer = self.call("getSigningRequestDetails", &asked).await;
                let state = &answer["signingRequest"]["transactionState"];
                if state.is_null() || state["status"] == "STATUS_FINAL" {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }

    /// Payments that nodes have and no block takes.
    async fn make_waiting(&self) -> Vec<SampleRequest> {
        self.anvil.call("evm_setAutomine", json!([false])).await;
        let mut made = Vec::new();
        for number in 0..WAITING {
            let key = format!("waiting {number:012}");
            let uuid = self.create(2 * number + 1, &key).await;
            self.end(&uuid).await;
            made.push(SampleRequest { uuid, key });
        }
        made
    }

    /// Stops the service and fills its store.
    async fn copy(&mut self, made: Vec<SampleRequest>, waiting: Vec<SampleRequest>, open: u64) {
        assert_eq!(self.cluster.serve.terminate(), Some(0));
        let each = MADE / 2 / ACCOUNTS;
        let store = self.open().await;
        let chain = AuditChain::Vault(self.vaults[0].parse().unwrap());
        let templates = copies::templates(&store, chain, &made).await;
        let open_templates = copies::templates(&store, chain, &waiting).await;
        let copies = CopyPlan {
            store: Arc::clone(&store),
            chain,
            templates,
            requests: self.requests,
            before: 0,
            // Those of what waits.
            skipped: if open > 0 { WAITING / ACCOUNTS } else { 0 },
            each,
            first_ms: self.first_ms,
        };
        copies::make(copies).await;
        if open > 0 {
            let copies = CopyPlan {
                store,
                chain,
                templates: open_templates,
                requests: open,
                before: self.requests,
                skipped: 0,
                each: WAITING / ACCOUNTS,
                first_ms: self.first_ms,
            };
            return copies::make(copies).await;
        }
        drop(store);
        let sent = (self.requests / MADE + 1) * each;
        for payer in &self.payers {
            let number = json!([payer, format!("{sent:#x}")]);
            self.anvil.call("anvil_setNonce", number).await;
        }
    }

    async fn open(&self) -> Arc<dyn Store> {
        let Some(url) = &self.url else {
            return Arc::new(RedbStore::open(&self.file()).unwrap());
        };
        let options = Options {
            url: SecretString::from(url.clone()),
            readers: 4.try_into().unwrap(),
            patience: Duration::from_secs(600),
            alone: true,
        };
        Arc::new(PostgresStore::open(options).await.unwrap())
    }

    /// The name of its database; `None` of redb.
    pub fn database(&self) -> Option<&str> {
        Some(self.url.as_ref()?.rsplit_once('/')?.1)
    }

    pub fn file(&self) -> std::path::PathBuf {
        self.cluster.folder.path().join("orchestrator/store.redb")
    }

    /// Starts the service: milliseconds until it has answered about a request and accepted one.
    pub async fn launch(&mut self) -> f64 {
        self.counting = false;
        let started = Instant::now();
        self.cluster.start_serve();
        let url = format!("{}/livez", self.cluster.api.base);
        while self.http.get(&url).send().await.is_err() {
            self.cluster.serve.assert_running();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.ask("a finished request", Instant::now()).await;
        let number = self.another() & !1;
        let uuid = self.create(number, &format!("start {number}")).await;
        let took = started.elapsed().as_secs_f64() * 1e3;
        self.end(&uuid).await;
        took
    }

    pub fn stop(&mut self) {
        assert_eq!(self.cluster.serve.terminate(), Some(0));
    }

    pub fn kill(&mut self) {
        self.cluster.serve.kill();
    }

    /// Resident memory of the service and the most that was resident, in MiB.
    pub fn memory(&self) -> (f64, f64) {
        let of = |field| memory_mib(self.cluster.serve.pid(), field);
        (of("VmRSS"), of("VmHWM"))
    }

    /// CPU time of the service so far, in seconds.
    pub fn cpu_s(&self) -> f64 {
        cpu_s(self.cluster.serve.pid())
    }

    fn another(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A number below `most`, other each time.
    fn any(&mut self, most: u64) -> u64 {
        // Spread out, as those who ask are.
        self.another().wrapping_mul(0x9e37_79b9_7f4a_7c15) % most
    }

    fn note(&mut self, name: &'static str, started: Instant) {
        if !self.counting {
            return;
        }
        let took = u64::try_from(started.elapsed().as_nanos()).unwrap();
        self.calls.entry(name).or_default().push(took);
    }

    /// One of [`KINDS`], at a fixed rate. The time of a call counts from when it should have begun, so
    /// that a service that stalls does not hide it.
    pub async fn ask_at_rate(
        &mut self,
        (kind, times, every_ms): (&'static str, u32, u64),
        count: bool,
    ) {
        self.counting = count;
        let first = Instant::now() + Duration::from_millis(every_ms);
        for number in 0..times {
            let due = first + Duration::from_millis(every_ms) * number;
            // Timers are as exact as a millisecond.
            tokio::time::sleep_until((due - Duration::from_millis(2)).into()).await;
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            self.ask(kind, due).await;
        }
    }

    /// A page of the console.
    async fn look_at(&mut self, kind: &'static str, path: &str, started: Instant) {
        let viewer = self.viewer.as_ref().unwrap();
        let answer = viewer.page(path).send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert_eq!(status.as_u16(), 200, "{path}: {text}");
        self.note(kind, started);
    }

    /// One of [`KINDS`], once, with a time that counts from `started`.
    async fn ask(&mut self, kind: &'static str, started: Instant) {
        let vault = self.vaults[0].clone();
        let (operation, body) = match kind {
            "a request" => return self.request(started).await,
            "an idempotent repeat" => return self.repeat(started).await,
            "console: a finished request" => {
                let number = self.any(self.requests);
                let uuid = copies::request_id(self.first_ms, number);
                return self.look_at(kind, &format!("{SHOWN}{uuid}"), started).await;
            }
            page if page.starts_with("console: ") => {
                let path = page.trim_start_matches("console: ");
                return self.look_at(kind, path, started).await;
            }
            "a new wallet" => {
                let number = 1_000_000_000 + self.another();
                self.wallet(&vault, number).await;
                return self.note(kind, started);
            }
            "a finished request" => {
                let number = self.any(self.requests);
                let uuid = copies::request_id(self.first_ms, number).to_string();
                ("getSigningRequestDetails", json!({"uuid": uuid}))
            }
            "a wallet by its address" => {
                let which = self.any(self.addresses.len() as u64) as usize;
                ("getWalletInfo", json!({"address": self.addresses[which]}))
            }
            "a wallet by its reference" => {
                let number = self.any(self.wallets);
                (
                    "getWalletInfo",
                    json!({"ref": format!("customer {number}")}),
                )
            }
            "a batch payment" => {
                let which = self.any(self.batches.len() as u64) as usize;
                (
                    "getBatchPaymentDetails",
                    json!({"uuid": self.batches[which]}),
                )
            }
            list => {
                let (what, page) = list.split_once(", page ").unwrap();
                let (page, limit) = page.split_once(" of ").unwrap();
                let operation = match what {
                    "list of requests" => "getSigningRequestList",
                    _ => "getWalletList",
                };
                (
                    operation,
                    json!({"vaultUuid": vault, "page": page, "limit": limit}),
                )
            }
        };
        let answer = self.call(operation, &body).await;
        self.note(kind, started);
        let (fields, shown) = match operation {
            "getSigningRequestDetails" => ("signingRequest", 1),
            "getWalletInfo" => ("details", 1),
            "getBatchPaymentDetails" => ("batchPayment", 1),
            "getSigningRequestList" => ("signingRequests", 10),
            _ => ("detailsList", 100),
        };
        let found = answer[fields].as_array().map_or(1, Vec::len);
        assert!(
            !answer[fields].is_null() && found >= shown,
            "{kind}: {answer}"
        );
    }

    async fn request(&mut self, started: Instant) {
        let number = self.another();
        let names = REQUEST[(number % 2) as usize];
        let key = format!("request {number}");
        let uuid = self.create(number, &key).await;
        self.note(names[0], started);
        self.end(&uuid).await;
        self.note(names[1], started);
    }

    /// A call that was made before.
    async fn repeat(&mut self, started: Instant) {
        let number = self.any(self.requests);
        let body = self.message(0);
        let key = copies::key(number);
        let answer = self.keyed("createSigningRequest", &body, Some(&key)).await;
        self.note("an idempotent repeat", started);
        let uuid = copies::request_id(self.first_ms, number).to_string();
        assert_eq!(answer["signingRequest"]["uuid"], json!(uuid));
    }
}

/// Milliseconds since the Unix epoch.
fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}
