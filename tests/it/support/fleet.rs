//! Several `covault serve` on one PostgreSQL and one Redis, with three signers, and clients of them.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{postgres::Postgres, *};

/// How long a client waits for an answer before it asks another process.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
pub struct Fleet {
    /// The first process is its `serve`.
    pub cluster: TestCluster,
    others: Vec<Process>,
    /// Each process's API.
    pub apis: Vec<ApiClient>,
    roles: Vec<String>,
    server: Postgres,
    database: String,
}

impl Fleet {
    /// One process per role, which all signers obey. `tables` goes into their configuration;
    /// `redis` is another one than the cluster's own.
    pub async fn start(roles: &[&str], tables: &str, redis: Option<&str>) -> Self {
        let server = Postgres::start();
        let url = server.database();
        let database = url.rsplit('/').next().unwrap().to_owned();
        let ports: Vec<u16> = (1..roles.len()).map(|_| free_port()).collect();
        let prepare = |folder: &Path| {
            share_store(folder, &url, roles, &ports, tables);
            let Some(redis) = redis else { return };
            for file in fs::read_dir(folder).unwrap() {
                let path = file.unwrap().path();
                if path.extension().is_some_and(|end| end == "toml") {
                    let text = fs::read_to_string(&path).unwrap();
                    let lines = text.lines().map(|line| match line.split_once(" = ") {
                        Some(("redis_url", _)) => format!("redis_url = {redis:?}"),
                        _ => line.to_owned(),
                    });
                    let text: Vec<String> = lines.collect();
                    fs::write(&path, text.join("\n")).unwrap();
                }
            }
        };
        let cluster = TestCluster::start_prepared(60_000, "raw_signing = true", prepare).await;
        let mut apis = vec![cluster.api.clone()];
        for port in ports {
            let base = format!("http://127.0.0.1:{port}");
            apis.push(ApiClient::new(&base, &cluster.api.token));
        }
        let mut fleet = Self {
            cluster,
            others: Vec::new(),
            apis,
            roles: roles.iter().map(ToString::to_string).collect(),
            server,
            database,
        };
        for index in 1..roles.len() {
            let process = fleet.launch(index);
            fleet.others.push(process);
        }
        fleet.ready().await;
        fleet.cluster.until_live(&[0, 1, 2]).await;
        fleet
    }

    fn launch(&self, index: usize) -> Process {
        launch_orchestrator(self.cluster.folder.path(), index, &self.roles[index])
    }

    pub fn process(&mut self, index: usize) -> &mut Process {
        match index {
            0 => &mut self.cluster.serve,
            _ => &mut self.others[index - 1],
        }
    }

    /// Starts one that has ended.
    pub fn restart(&mut self, index: usize) {
        *self.process(index) = self.launch(index);
    }

    /// Every process can work.
    pub async fn ready(&self) {
        until_ready(&self.apis).await;
    }

    /// What a question in SQL about the store gives.
    pub fn store(&self, sql: &str) -> String {
        tokio::task::block_in_place(|| self.server.query(&self.database, sql))
    }

    /// Which process has a vault.
    pub fn owner(&self, vault: &str) -> Option<usize> {
        let key = vault.replace('-', "");
        let name = self.store(&format!(
            "SELECT encode(m.value, 'escape') FROM covault.rows l \
             JOIN covault.rows m ON m.space = 41 AND position(m.key IN l.value) > 0 \
             WHERE l.space = 40 AND l.key = '\\x01{key}'"
        ));
        (0..self.roles.len()).find(|index| name.contains(&name_of(*index)))
    }

    /// Waits until a vault is with one of these processes.
    pub async fn owned(&self, vault: &str, by: &[usize]) -> usize {
        eventually("the vault is with another process", async || {
            self.owner(vault).filter(|owner| by.contains(owner))
        })
        .await
    }

    /// How many signing requests there are.
    pub fn requests(&self) -> usize {
        let count = self.store("SELECT count(*) FROM covault.rows WHERE space = 7");
        count.parse().unwrap()
    }

    /// Vaults until each of these processes has one; they, in the order of the processes.
    pub async fn vaults(&self, of: &[usize]) -> Vec<TestVault> {
        let mut found: Vec<Option<TestVault>> = of.iter().map(|_| None).collect();
        for number in 0..24 {
            let name = format!("vault-{number}");
            let id = tokio::task::block_in_place(|| self.cluster.create_vault(&name));
            let owner = eventually("the vault is somewhere", async || self.owner(&id)).await;
            let place = of.iter().position(|index| *index == owner);
            if let Some(place) = place.filter(|place| found[*place].is_none()) {
                let api = &self.apis[0];
                found[place] = Some(TestVault {
                    evm: api.wallet(&id, "NETWORK_TYPE_EVM").await,
                    solana: api.wallet(&id, "NETWORK_TYPE_SOLANA").await,
                    id,
                });
            }
            if found.iter().all(Option::is_some) {
                return found.into_iter().flatten().collect();
            }
        }
        panic!("one process gets no vault");
    }

    /// Every accepted request ends well, each process tells the same of it, and a repeated call gets
    /// the same answer from each. `apis` are those that are asked.
    pub async fn assert_done(&self, accepted: &[Accepted], apis: &[usize]) {
        for (number, one) in accepted.iter().enumerate() {
            let first = &self.apis[apis[number % apis.len()]];
            let outcome = first.execute(&one.uuid).await;
            assert_eq!(outcome["error"], Value::Null, "{outcome}");
            for index in apis {
                let api = &self.apis[*index];
                assert_eq!(api.execute(&one.uuid).await, outcome);
                let again = api.keyed("createSigningRequest", &one.body, &one.key).await;
                let (status, answer) = again.unwrap();
                assert_eq!(status, 200, "{answer}");
                assert_eq!(answer, one.answer);
            }
        }
    }
}

/// Writes the configuration of one orchestrator per role, all on this store and with a cluster's
/// signers, from that of the cluster's own in `folder`, which is the first. `ports` are those of the
/// others' APIs, `tables` goes into each.
pub fn share_store(folder: &Path, url: &str, roles: &[&str], ports: &[u16], tables: &str) {
    let secret = folder.join("cluster-secret");
    write_secret(&secret, &format!("{}\n", "5e".repeat(32)));
    let store = store_table(folder, url);
    let mut identities = Vec::new();
    let sample = fs::read_to_string(folder.join("serve.toml")).unwrap();
    let listen = sample.lines().find(|line| line.starts_with("listen = "));
    let data = folder.join("orchestrator");
    for (index, role) in roles.iter().enumerate() {
        let (name, own) = (name_of(index), folder.join(folder_of(index)));
        identities.push(own.join("identity.pub"));
        let mut text = sample.replace(&format!("{data:?}"), &format!("{own:?}"));
        if index > 0 {
            let other = format!("listen = \"127.0.0.1:{}\"", ports[index - 1]);
            text = text.replace(listen.unwrap(), &other);
        }
        let tables = format!(
            "{store}\
             [cluster]\nname = {name:?}\nroles = {role:?}\nsecret_file = {secret:?}\n{tables}"
        );
        let path = folder.join(format!("{}.toml", config_of(index)));
        fs::write(&path, text).unwrap();
        let tokens = ["platform", "admin"].map(|kind| {
            let file = data.join(format!("{kind}-token"));
            format!("{kind}_token_file = {file:?}\n")
        });
        configure(&path, "serve", &tokens.concat(), &tables);
    }
    for number in 1..=3 {
        let path = folder.join(format!("signer-{number}.toml"));
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(|line| match line.split_once(" = ") {
            Some(("orchestrators", _)) => format!("orchestrators = {identities:?}"),
            _ => line.to_owned(),
        });
        let text: Vec<String> = lines.collect();
        fs::write(&path, text.join("\n")).unwrap();
    }
}

/// Starts the orchestrator of this number, whose configuration [`share_store`] wrote.
pub fn launch_orchestrator(folder: &Path, index: usize, role: &str) -> Process {
    let config = config_of(index);
    let mut command = covault_by(folder, &config);
    command
        .args(["serve", "--roles", role, "--config"])
        .arg(folder.join(format!("{config}.toml")));
    Process::start(&mut command, &folder.join(format!("{config}.log")))
}

fn config_of(index: usize) -> String {
    match index {
        0 => "serve".into(),
        _ => format!("serve-{}", index + 1),
    }
}

fn folder_of(index: usize) -> String {
    match index {
        0 => "orchestrator".into(),
        _ => format!("orchestrator-{}", index + 1),
    }
}

fn name_of(index: usize) -> String {
    format!("process-{}", index + 1)
}

/// A vault with a wallet on each curve.
#[derive(Clone)]
pub struct TestVault {
    pub id: String,
    pub evm: String,
    pub solana: String,
}

impl TestVault {
    /// A message to be signed; every fourth with ECDSA.
    pub fn message(&self, number: usize) -> Value {
        let content = base64(format!("message {number}"));
        if number.is_multiple_of(4) {
            json!({"rawMessage": {"from": self.evm, "content": content,
                "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}})
        } else {
            json!({"solanaMessage": {"from": self.solana, "content": content}})
        }
    }
}

/// A request that was accepted.
pub struct Accepted {
    pub key: String,
    pub body: Value,
    pub uuid: String,
    pub answer: Value,
}

/// Clients that send requests, one after the other each, and repeat what was not answered with 200
/// through the next process, with the same key. Any other refusal than 503 fails.
pub struct FleetLoad {
    ending: Arc<AtomicBool>,
    /// Requests that were accepted by now, and calls that were refused.
    pub accepted: Arc<AtomicUsize>,
    pub refused: Arc<AtomicUsize>,
    clients: JoinSet<Vec<Accepted>>,
}

impl FleetLoad {
    pub fn start(
        apis: &[ApiClient],
        clients: usize,
        body: impl Fn(usize) -> Value + Clone + Send + 'static,
    ) -> Self {
        let mut load = Self {
            ending: Arc::default(),
            accepted: Arc::default(),
            refused: Arc::default(),
            clients: JoinSet::new(),
        };
        let next = Arc::new(AtomicUsize::new(0));
        for _ in 0..clients {
            let (apis, body, next) = (apis.to_vec(), body.clone(), Arc::clone(&next));
            let ending = Arc::clone(&load.ending);
            let (accepted, refused) = (Arc::clone(&load.accepted), Arc::clone(&load.refused));
            load.clients.spawn(async move {
                let mut made = Vec::new();
                while !ending.load(Ordering::SeqCst) {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    made.push(patient(&apis, number, body(number), &refused).await);
                    accepted.fetch_add(1, Ordering::SeqCst);
                }
                made
            });
        }
        load
    }

    /// Waits until this many more requests were accepted.
    pub async fn go_on(&self, more: usize) {
        let goal = self.accepted.load(Ordering::SeqCst) + more;
        eventually("requests are accepted", async || {
            (self.accepted.load(Ordering::SeqCst) >= goal).then_some(())
        })
        .await;
    }

    /// Has the clients come to their end; all that was accepted.
    pub async fn end(self) -> Vec<Accepted> {
        self.ending.store(true, Ordering::SeqCst);
        let all = self.clients.join_all().await;
        all.into_iter().flatten().collect()
    }
}

/// A call that is repeated until it is accepted.
pub async fn patient(
    apis: &[ApiClient],
    number: usize,
    body: Value,
    refused: &AtomicUsize,
) -> Accepted {
    let key = format!("key {number}");
    let started = std::time::Instant::now();
    for tries in 0_usize.. {
        assert!(started.elapsed() < PATIENCE, "{key} is not accepted");
        let api = &apis[(number + tries) % apis.len()];
        let call = api.keyed("createSigningRequest", &body, &key);
        // No answer: the process has ended, or hangs.
        match tokio::time::timeout(CLIENT_PATIENCE, call).await {
            Ok(Some((200, answer))) => {
                let uuid = answer["signingRequest"]["uuid"].as_str().unwrap();
                return Accepted {
                    uuid: uuid.to_owned(),
                    key,
                    body,
                    answer,
                };
            }
            Ok(Some((status, answer))) => assert_eq!(status, 503, "{answer}"),
            Ok(None) | Err(_) => {}
        }
        refused.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    unreachable!()
}

/// One Redis primary, one replica, and three Sentinels.
pub struct Sentinels {
    /// Both, in the order in which they were the primary.
    pub servers: [Process; 2],
    ports: [u16; 2],
    sentinels: Vec<(Process, u16)>,
    folder: tempfile::TempDir,
}

impl Sentinels {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ports = [free_port(), free_port()];
        let first = Self::server(folder.path(), ports[0], None);
        let second = Self::server(folder.path(), ports[1], Some(ports[0]));
        let sentinels = (0..3).map(|_| {
            let port = free_port();
            let file = folder.path().join(format!("sentinel-{port}.conf"));
            let text = format!(
                "port {port}\nbind 127.0.0.1\ndir {:?}\n\
                 sentinel monitor main 127.0.0.1 {} 2\n\
                 sentinel down-after-milliseconds main 3000\n\
                 sentinel failover-timeout main 4000\n",
                folder.path(),
                ports[0]
            );
            fs::write(&file, text).unwrap();
            let mut command = std::process::Command::new("redis-server");
            command.arg(&file).arg("--sentinel");
            let log = folder.path().join(format!("sentinel-{port}.log"));
            (Process::start(&mut command, &log), port)
        });
        let sentinels = sentinels.collect();
        let started = Self {
            servers: [first, second],
            ports,
            sentinels,
            folder,
        };
        eventually(
            "the Sentinels know each other and the replica",
            async || {
                let know = |(_, port): &(Process, u16)| {
                    let told = cli(*port, &["SENTINEL", "MASTER", "main"]);
                    let of = |name: &str| {
                        let mut lines = told.lines().skip_while(|line| *line != name);
                        lines.nth(1).map(str::to_owned)
                    };
                    of("num-other-sentinels").as_deref() == Some("2")
                        && of("num-slaves").as_deref() == Some("1")
                        && of("flags").as_deref() == Some("master")
                };
                let linked =
                    cli(ports[1], &["INFO", "replication"]).contains("master_link_status:up");
                (linked && started.sentinels.iter().all(know)).then_some(())
            },
        )
        .await;
        started
    }

    fn server(folder: &Path, port: u16, of: Option<u16>) -> Process {
        let mut command = std::process::Command::new("redis-server");
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(folder);
        if let Some(of) = of {
            command.args(["--replicaof", "127.0.0.1", &of.to_string()]);
        }
        Process::start(&mut command, &folder.join(format!("redis-{port}.log")))
    }

    /// For `bus.redis_url`.
    pub fn url(&self) -> String {
        let all = self.sentinels.iter();
        let all: Vec<String> = all.map(|(_, port)| format!("127.0.0.1:{port}")).collect();
        format!("redis-sentinel://{}/main", all.join(","))
    }

    /// Starts a server that was killed, as it was started at first: alone. The Sentinels make it a
    /// replica.
    pub fn restart(&mut self, index: usize) {
        self.servers[index] = Self::server(self.folder.path(), self.ports[index], None);
    }

    /// Waits until this one is the primary, with so many replicas that follow it.
    pub async fn until_primary(&self, index: usize, replicas: usize) {
        eventually("the primary is another one", async || {
            let told = cli(self.ports[index], &["INFO", "replication"]);
            let followers = told.matches("state=online").count();
            (told.contains("role:master") && followers >= replicas).then_some(())
        })
        .await;
    }
}

/// What `redis-cli` prints; nothing when it cannot connect.
fn cli(port: u16, arguments: &[&str]) -> String {
    let output = std::process::Command::new("redis-cli")
        .args(["-h", "127.0.0.1", "-p", &port.to_string()])
        .args(arguments)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).replace('\r', "")
}
