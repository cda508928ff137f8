//! Clients that ask for signatures and payments all the time, as clients should: each call with an
//! idempotency key, and repeated with it until its answer is certain.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{
    ledger::{Submission, SubmissionKind, SubmissionLog},
    world::{CHAIN, TestRng, World},
};
use crate::support::*;

/// Clients at once.
const CLIENTS: u64 = 8;
/// The longest pause of a client, in milliseconds: about ten calls per second of all together.
const PAUSE_MS: u64 = 1_000;
/// How long a client waits for an answer before it takes the connection for dead.
const CREATE_PATIENCE: Duration = Duration::from_secs(15);
const EXECUTE_PATIENCE: Duration = Duration::from_secs(20);
/// How long anything may take once everything works again.
const END_PATIENCE: Duration = Duration::from_secs(240);

/// The clients, at work.
pub struct LoadGenerator {
    clients: Arc<Clients>,
    tasks: Vec<JoinHandle<()>>,
}

/// What came back.
enum Reply {
    Answered {
        status: u16,
        replayed: bool,
        text: String,
    },
    /// The connection broke, or nothing came in time: it was done, or not.
    Nothing,
}

struct Clients {
    /// Where the service is asked, in turns.
    bases: Vec<String>,
    token: String,
    http: reqwest::Client,
    evm: Vec<String>,
    solana: String,
    seed: u64,
    next: AtomicU64,
    turn: AtomicUsize,
    stopping: AtomicBool,
    ledger: Mutex<SubmissionLog>,
}

impl LoadGenerator {
    /// Clients of this world, who do the same again for the same seed (but for when).
    pub fn start(world: &World, seed: u64) -> Self {
        let clients = Arc::new(Clients {
            bases: bases(world),
            token: world.cluster.api.token.clone(),
            http: http_client(),
            evm: world.evm.clone(),
            solana: world.solana.clone(),
            seed,
            next: AtomicU64::new(0),
            turn: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            ledger: Mutex::new(SubmissionLog::new()),
        });
        let tasks = (0..CLIENTS).map(|client| {
            let clients = Arc::clone(&clients);
            let rng = TestRng::new(seed ^ ((client + 1) << 32));
            tokio::spawn(async move { clients.work(rng).await })
        });
        Self {
            tasks: tasks.collect(),
            clients,
        }
    }

    /// What the clients know by now.
    pub fn ledger(&self) -> MutexGuard<'_, SubmissionLog> {
        self.clients.ledger()
    }

    /// Waits until the clients have heard something that this says of their ledger.
    pub async fn until(&self, what: &str, ready: impl Fn(&SubmissionLog) -> bool) {
        eventually(what, async || {
            assert!(
                self.tasks.iter().all(|task| !task.is_finished()),
                "a client has given up"
            );
            ready(&self.ledger()).then_some(())
        })
        .await;
    }

    /// Waits until this many more requests have been accepted and have ended.
    pub async fn goes_on(&self, what: &str) {
        let (accepted, ended) = self.ledger().counts();
        self.until(what, |ledger| {
            let (more, done) = ledger.counts();
            more >= accepted + 4 && done >= ended + 4
        })
        .await;
    }

    /// Ends the load. Whatever was asked for gets its certain answer, everything accepted ends, and
    /// the service signs as if nothing had been: everything must be up again.
    pub async fn finish(self) -> SubmissionLog {
        let clients = self.clients;
        clients.stopping.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
        let doubtful = clients.ledger().doubtful();
        let settle = futures::stream::iter(doubtful).for_each_concurrent(8, |number| {
            let clients = &clients;
            async move { clients.settle(number).await }
        });
        settle.await;
        // Also behind everything that was left undone: a payment of each account, a message of each
        // curve.
        let accounts = clients.evm.len();
        let last = (0..accounts)
            .map(|account| clients.payment(account))
            .collect::<Vec<_>>();
        let last = last
            .into_iter()
            .chain([clients.ed25519(), clients.ecdsa(0)]);
        for number in last {
            clients.settle(number).await;
        }
        let accepted = clients.ledger().unfinished();
        let until = Instant::now() + END_PATIENCE;
        let ends = futures::stream::iter(accepted).for_each_concurrent(16, |(number, uuid)| {
            let clients = &clients;
            async move {
                while !clients.execute(number, &uuid).await {
                    assert!(Instant::now() < until, "{uuid} does not end");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        });
        ends.await;
        Arc::into_inner(clients)
            .unwrap()
            .ledger
            .into_inner()
            .unwrap()
    }
}

fn bases(world: &World) -> Vec<String> {
    world.apis.iter().map(|api| api.base.clone()).collect()
}

/// Repeats every call of a ledger: the answers must be those of the first time.
pub async fn repeat_all(world: &World, ledger: &SubmissionLog) {
    let clients = Clients {
        bases: bases(world),
        token: world.cluster.api.token.clone(),
        http: http_client(),
        evm: Vec::new(),
        solana: String::new(),
        seed: 0,
        next: AtomicU64::new(0),
        turn: AtomicUsize::new(0),
        stopping: AtomicBool::new(false),
        ledger: Mutex::new(SubmissionLog::new()),
    };
    let repeats = futures::stream::iter(ledger.jobs.values()).for_each_concurrent(8, |job| {
        let clients = &clients;
        async move {
            let key = Some(job.key.as_str());
            let reply = clients.call(job.operation, key, &job.body, END_PATIENCE);
            let Reply::Answered {
                status,
                replayed,
                text,
            } = reply.await
            else {
                panic!("{}: no answer", job.key)
            };
            assert_eq!((status, replayed), (200, true), "{}: {text}", job.key);
            assert_eq!(Some(&text), job.told.as_ref(), "{}", job.key);
            let (Some(uuid), Some(outcome)) = (&job.uuid, &job.outcome) else {
                return;
            };
            let body = json!({"uuid": uuid});
            let reply = clients.call("executeSigningRequests", None, &body, END_PATIENCE);
            let Reply::Answered { status, text, .. } = reply.await else {
                panic!("{uuid}: no answer")
            };
            assert_eq!(status, 200, "{uuid}: {text}");
            let again: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(again, *outcome, "{uuid}");
        }
    });
    repeats.await;
}

impl Clients {
    fn ledger(&self) -> MutexGuard<'_, SubmissionLog> {
        self.ledger.lock().unwrap()
    }

    async fn call(
        &self,
        operation: &str,
        key: Option<&str>,
        body: &Value,
        patience: Duration,
    ) -> Reply {
        let turn = self.turn.fetch_add(1, Ordering::SeqCst);
        let base = &self.bases[turn % self.bases.len()];
        let mut call = self
            .http
            .post(format!("{base}/v1/{operation}"))
            .timeout(patience)
            .header("x-mtoken", &self.token)
            .json(body);
        if let Some(key) = key {
            call = call.header("idempotency-key", key);
        }
        let Ok(response) = call.send().await else {
            return Reply::Nothing;
        };
        let status = response.status().as_u16();
        let replayed = response
            .headers()
            .get("idempotency-replayed")
            .is_some_and(|value| value == "true");
        match response.text().await {
            Ok(text) => Reply::Answered {
                status,
                replayed,
                text,
            },
            Err(_) => Reply::Nothing,
        }
    }

    /// One client, until the load ends.
    async fn work(&self, mut rng: TestRng) {
        while !self.stopping.load(Ordering::SeqCst) {
            let account = usize::try_from(rng.roll()).unwrap() % self.evm.len();
            let number = match rng.within(0, 10) {
                0..=3 => self.payment(account),
                4..=6 => self.ed25519(),
                7 | 8 => self.ecdsa(account),
                _ => self.batch(account),
            };
            // Some wait for what they have asked for, some do not.
            let uuid = self.create(number, &mut rng).await;
            if let Some(uuid) = uuid.filter(|_| rng.within(0, 3) > 0) {
                self.execute(number, &uuid).await;
            }
            if rng.within(0, 8) == 0 {
                self.repeat(&mut rng).await;
            }
            tokio::time::sleep(Duration::from_millis(rng.within(0, PAUSE_MS))).await;
        }
    }

    /// Asks until it is accepted for certain; sometimes leaves that to [`LoadGenerator::finish`]. The uuid of a
    /// request that runs.
    async fn create(&self, number: u64, rng: &mut TestRng) -> Option<String> {
        while !self.stopping.load(Ordering::SeqCst) {
            if self.ask(number).await {
                let ledger = self.ledger();
                let job = &ledger.jobs[&number];
                // What a batch pays waits for a person.
                let runs = !matches!(job.kind, SubmissionKind::Batch);
                return job.uuid.clone().filter(|_| runs);
            }
            if rng.within(0, 12) == 0 {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(rng.within(50, 400))).await;
        }
        None
    }

    async fn settle(&self, number: u64) {
        let until = Instant::now() + END_PATIENCE;
        while !self.ask(number).await {
            assert!(
                Instant::now() < until,
                "call {number} gets no certain answer"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Calls once: whether it was accepted.
    async fn ask(&self, number: u64) -> bool {
        let (operation, key, body) = {
            let ledger = self.ledger();
            let job = &ledger.jobs[&number];
            (job.operation, job.key.clone(), job.body.clone())
        };
        let reply = self.call(operation, Some(&key), &body, CREATE_PATIENCE);
        let reply = reply.await;
        let mut ledger = self.ledger();
        match reply {
            Reply::Nothing => ledger.unanswered += 1,
            Reply::Answered {
                status: 503, text, ..
            } => ledger.refuse(&text),
            Reply::Answered {
                status: 200,
                replayed,
                text,
            } => {
                ledger.accept(number, replayed, text);
                return true;
            }
            Reply::Answered { status, text, .. } => panic!("{operation} {body}: {status} {text}"),
        }
        false
    }

    /// Repeats a call that was answered.
    async fn repeat(&self, rng: &mut TestRng) {
        let (operation, key, body, told) = {
            let ledger = self.ledger();
            let told = ledger.jobs.values().filter(|job| job.told.is_some());
            let told: Vec<_> = told.collect();
            let Some(which) = rng.roll().checked_rem(told.len() as u64) else {
                return;
            };
            let job = told[usize::try_from(which).unwrap()];
            let (key, body) = (job.key.clone(), job.body.clone());
            (job.operation, key, body, job.told.clone())
        };
        let reply = self.call(operation, Some(&key), &body, CREATE_PATIENCE);
        match reply.await {
            Reply::Answered {
                status: 200,
                replayed,
                text,
            } => assert_eq!((replayed, Some(text)), (true, told), "{key}"),
            Reply::Answered {
                status: 503, text, ..
            } => self.ledger().refuse(&text),
            Reply::Nothing => self.ledger().unanswered += 1,
            Reply::Answered { status, text, .. } => panic!("{key} again: {status} {text}"),
        }
    }

    /// Asks how it ended: whether it has.
    async fn execute(&self, number: u64, uuid: &str) -> bool {
        let body = json!({"uuid": uuid});
        let reply = self.call("executeSigningRequests", None, &body, EXECUTE_PATIENCE);
        match reply.await {
            Reply::Answered {
                status: 200, text, ..
            } => {
                let outcome = serde_json::from_str(&text).unwrap();
                self.ledger().end(number, outcome);
                true
            }
            Reply::Answered {
                status: 503, text, ..
            } => {
                self.ledger().refuse(&text);
                false
            }
            Reply::Nothing => false,
            Reply::Answered { status, text, .. } => panic!("{uuid}: {status} {text}"),
        }
    }

    fn note(
        &self,
        operation: &'static str,
        make: impl FnOnce(u64) -> (SubmissionKind, Value),
    ) -> u64 {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let (kind, body) = make(number);
        let key = format!("{:016x}-{number}", self.seed);
        let job = Submission::new(operation, key, kind, body);
        self.ledger().jobs.insert(number, job);
        number
    }

    /// A payment to an address of its own.
    fn payment(&self, account: usize) -> u64 {
        self.note("createSigningRequest", |number| {
            let from = self.evm[account].clone();
            let to = format!("0x{:016x}c0ffee{number:018x}", self.seed);
            let wei = 1_000_000_000 + u128::from(number);
            let body = json!({"evmSendNative": {"chainId": CHAIN.to_string(), "from": from,
                "to": to, "value": wei.to_string()}});
            (SubmissionKind::Payment { from, to, wei }, body)
        })
    }

    fn ed25519(&self) -> u64 {
        self.note("createSigningRequest", |number| {
            let content = base64(format!("message {number} of {}", self.seed));
            let body = json!({"rawMessage": {"from": self.solana, "content": content}});
            (SubmissionKind::Ed25519 { content }, body)
        })
    }

    fn ecdsa(&self, account: usize) -> u64 {
        self.note("createSigningRequest", |number| {
            let (content, from) = (base64(format!("message {number}")), &self.evm[account]);
            let body = json!({"rawMessage": {"from": from, "content": content,
                "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}});
            let from = from.clone();
            (SubmissionKind::Ecdsa { from, content }, body)
        })
    }

    fn batch(&self, account: usize) -> u64 {
        self.note("createBatchPayment", |number| {
            let from = &self.evm[account];
            let body = json!({"name": format!("wages {number}"), "evmBatchSendNative": {
                "chainId": CHAIN.to_string(), "from": from,
                "recipients": [{"address": from, "amount": "1"}]}});
            (SubmissionKind::Batch, body)
        })
    }
}
