//! What clients were told, and whether the service and the chain agree with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::world::World;
use crate::support::*;

/// What a call is to bring about.
#[derive(Clone, Debug)]
pub enum SubmissionKind {
    Payment { from: String, to: String, wei: u128 },
    Ed25519 { content: String },
    Ecdsa { from: String, content: String },
    Batch,
}

/// A call with an idempotency key.
pub struct Submission {
    pub operation: &'static str,
    pub key: String,
    pub kind: SubmissionKind,
    pub body: Value,
    /// The answer that accepted it.
    pub told: Option<String>,
    pub uuid: Option<String>,
    /// What executeSigningRequests said of its end.
    pub outcome: Option<Value>,
}

impl Submission {
    pub fn new(operation: &'static str, key: String, kind: SubmissionKind, body: Value) -> Self {
        Self {
            operation,
            key,
            kind,
            body,
            told: None,
            uuid: None,
            outcome: None,
        }
    }

    fn succeeded(&self) -> bool {
        let outcome = self.outcome.as_ref();
        outcome.is_some_and(|outcome| outcome["error"].is_null())
    }
}

/// What all clients know together.
pub struct SubmissionLog {
    /// By the number of the call.
    pub jobs: BTreeMap<u64, Submission>,
    /// Calls that got no answer.
    pub unanswered: u64,
    /// Calls that were refused with 503, by what it said.
    pub refused: BTreeMap<String, u64>,
    /// Calls that turned out to have been accepted when they were repeated.
    pub doubts: u64,
    last_accepted: Instant,
    /// The longest time in which nothing was accepted.
    pub outage: Duration,
    began: Instant,
}

impl SubmissionLog {
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            jobs: BTreeMap::new(),
            unanswered: 0,
            refused: BTreeMap::new(),
            doubts: 0,
            last_accepted: now,
            outage: Duration::ZERO,
            began: now,
        }
    }

    /// How many requests were accepted, and how many of them have ended.
    pub fn counts(&self) -> (usize, usize) {
        let accepted = self.jobs.values().filter(|job| job.told.is_some());
        let ended = self.jobs.values().filter(|job| job.outcome.is_some());
        (accepted.count(), ended.count())
    }

    /// How many calls were refused or not answered.
    pub fn troubles(&self) -> u64 {
        self.unanswered + self.refusals()
    }

    /// How many calls were refused with 503.
    pub fn refusals(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Calls that may have been accepted or not.
    pub fn doubtful(&self) -> Vec<u64> {
        let doubtful = self.jobs.iter().filter(|(_, job)| job.told.is_none());
        doubtful.map(|(number, _)| *number).collect()
    }

    /// Signing requests whose end is not known.
    pub fn unfinished(&self) -> Vec<(u64, String)> {
        let open = self.jobs.iter().filter(|(_, job)| job.outcome.is_none());
        open.filter(|(_, job)| !matches!(job.kind, SubmissionKind::Batch))
            .map(|(number, job)| (*number, job.uuid.clone().unwrap()))
            .collect()
    }

    /// A call was refused with 503.
    pub fn refuse(&mut self, text: &str) {
        let answer: Value = serde_json::from_str(text).unwrap();
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(!message.is_empty(), "{answer}");
        *self.refused.entry(general(message)).or_default() += 1;
    }

    /// A call was accepted with this answer.
    pub fn accept(&mut self, number: u64, replayed: bool, text: String) {
        let now = Instant::now();
        self.outage = self.outage.max(now - self.last_accepted);
        self.last_accepted = now;
        self.doubts += u64::from(replayed);
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["error"], Value::Null, "{answer}");
        let job = self.jobs.get_mut(&number).unwrap();
        assert!(job.told.is_none());
        let made = match job.kind {
            SubmissionKind::Batch => &answer["batchPayment"],
            _ => &answer["signingRequest"],
        };
        assert_eq!(made["status"], "STATUS_PENDING", "{answer}");
        job.uuid = Some(made["uuid"].as_str().unwrap().to_owned());
        job.told = Some(text);
    }

    /// A request has ended like this.
    pub fn end(&mut self, number: u64, outcome: Value) {
        let job = self.jobs.get_mut(&number).unwrap();
        if let Some(before) = &job.outcome {
            assert_eq!(*before, outcome, "{:?} ended in two ways", job.uuid);
        }
        job.outcome = Some(outcome);
    }

    /// Requests that ended in failure, by the reason.
    pub fn failures(&self) -> BTreeMap<String, u64> {
        let mut reasons = BTreeMap::new();
        for job in self.jobs.values().filter(|job| !job.succeeded()) {
            if let Some(outcome) = &job.outcome {
                let reason = outcome["error"]["message"].as_str().unwrap();
                assert!(!reason.is_empty(), "{outcome}");
                *reasons.entry(general(reason)).or_default() += 1;
            }
        }
        reasons
    }

    /// Everything that was accepted has ended, once, and the service's lists, the chain and the
    /// signatures say the same.
    pub async fn check(&self, world: &World) {
        self.check_lists(world).await;
        self.check_signatures(world);
        self.check_chain(world).await;
    }

    /// The figures of a run, in words.
    pub fn figures(&self) -> String {
        let (accepted, ended) = self.counts();
        let succeeded = self.jobs.values().filter(|job| job.succeeded()).count();
        format!(
            "{accepted} accepted ({} of them known only from a repetition), {ended} ended: {succeeded} \
             succeeded, {} failed {:?}; {} times 503 {:?}, {} times no answer; longest time without an \
             acceptance {} ms; {} s in all",
            self.doubts,
            ended - succeeded,
            self.failures(),
            self.refusals(),
            self.refused,
            self.unanswered,
            self.outage.as_millis(),
            self.began.elapsed().as_secs(),
        )
    }

    /// The service has exactly these requests, in these states.
    async fn check_lists(&self, world: &World) {
        let api = &world.cluster.api;
        let mut listed = BTreeMap::new();
        for vault in &world.vaults {
            for page in 1.. {
                let body = json!({"vaultUuid": vault, "page": page, "limit": 100,
                    "sortOrder": "SORT_ORDER_ASC"});
                let answer = api.ok("getSigningRequestList", body).await;
                let requests = answer["signingRequests"].as_array().unwrap();
                // The vault itself and its keys are listed, too.
                let signed = |request: &&Value| {
                    let kinds = ["vaultCreation", "rootKeyGeneration"];
                    kinds.iter().all(|kind| request[kind].is_null())
                };
                for request in requests.iter().filter(signed) {
                    let uuid = request["uuid"].as_str().unwrap().to_owned();
                    let before = listed.insert(uuid, request.clone());
                    assert_eq!(before, None, "listed twice");
                }
                if requests.is_empty() {
                    break;
                }
            }
        }
        let mut batches = BTreeSet::new();
        for job in self.jobs.values() {
            let uuid = job.uuid.as_ref().unwrap();
            let told: Value = serde_json::from_str(job.told.as_ref().unwrap()).unwrap();
            if matches!(job.kind, SubmissionKind::Batch) {
                assert!(batches.insert(uuid), "{uuid} for two calls");
                let body = json!({"uuid": uuid});
                let shown = api.ok("getBatchPaymentDetails", body).await;
                assert_eq!(shown["batchPayment"], told["batchPayment"], "{uuid}");
                continue;
            }
            let shown = listed
                .remove(uuid)
                .unwrap_or_else(|| panic!("{uuid} is lost"));
            let reason = &job.outcome.as_ref().unwrap()["error"]["message"];
            if job.succeeded() {
                assert_eq!(shown["status"], "STATUS_SUCCEEDED", "{shown}");
            } else {
                assert_eq!(shown["status"], "STATUS_FAILED", "{shown}");
                assert_eq!(shown["failedReason"], *reason, "{shown}");
            }
        }
        // Nothing that nobody asked for, nothing twice for one key.
        assert!(listed.is_empty(), "asked for by nobody: {listed:?}");
    }

    /// Outside libraries accept every signature, and no two have a nonce in common.
    fn check_signatures(&self, world: &World) {
        let (mut digests, mut questions, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        let mut nonces = BTreeMap::new();
        for (number, job) in &self.jobs {
            if !job.succeeded() || matches!(job.kind, SubmissionKind::Batch) {
                continue;
            }
            let signature = first_signature(job.outcome.as_ref().unwrap());
            let nonce = match &signature["ecdsaSignature"]["R"] {
                Value::String(r) => r.clone(),
                _ => {
                    use base64::Engine as _;
                    let text = signature["eddsaSignature"].as_str().unwrap();
                    let bytes = base64::engine::general_purpose::STANDARD.decode(text);
                    hex::encode(&bytes.unwrap()[..32])
                }
            };
            if let Some(other) = nonces.insert(nonce, *number) {
                panic!("signatures {other} and {number} have one nonce");
            }
            match &job.kind {
                SubmissionKind::Ed25519 { content } => {
                    questions.push(json!({"ask": "ed25519", "content": content,
                        "signature": signature["eddsaSignature"], "address": world.solana}));
                    expected.push(json!({"valid": true}));
                }
                SubmissionKind::Ecdsa { from, content } => {
                    digests.push(json!({"ask": "sha256", "content": content}));
                    questions.push(json!({"ask": "recover", "digest": digests.len() - 1,
                        "signature": signature["ecdsaSignature"]}));
                    expected.push(json!({"address": from}));
                }
                SubmissionKind::Payment { .. } | SubmissionKind::Batch => {}
            }
        }
        let digests = outside("all", json!({"questions": digests}));
        for question in &mut questions {
            if let Some(place) = question["digest"].as_u64() {
                let place = usize::try_from(place).unwrap();
                question["digest"] = digests[place]["digest"].clone();
            }
        }
        let answers = outside("all", json!({"questions": questions}));
        assert_eq!(answers, json!(expected));
    }

    /// Each payment that succeeded is in the chain once, the others are not, and nothing else is.
    async fn check_chain(&self, world: &World) {
        let anvil = &world.anvil;
        // A number that came free is used by the next payment; then those behind it go.
        eventually("the chain has taken everything", async || {
            let status = anvil.call("txpool_status", json!([])).await;
            let waiting = hex_number(&status["pending"]) + hex_number(&status["queued"]);
            (waiting == 0).then_some(())
        })
        .await;
        let mut found = BTreeMap::new();
        let mut numbers = BTreeSet::new();
        let head = hex_number(&anvil.call("eth_blockNumber", json!([])).await);
        for block in 1..=head {
            let block = json!([format!("{block:#x}"), true]);
            let block = anvil.call("eth_getBlockByNumber", block).await;
            for transaction in block["transactions"].as_array().unwrap() {
                let (from, number) = (&transaction["from"], &transaction["nonce"]);
                let account = from.as_str().unwrap().to_lowercase();
                assert!(
                    numbers.insert((account, hex_number(number))),
                    "{transaction}"
                );
                let to = transaction["to"].as_str().unwrap().to_lowercase();
                let before = found.insert(to, transaction.clone());
                assert_eq!(before, None, "paid twice");
            }
        }
        let mut sent: BTreeMap<&str, u128> = BTreeMap::new();
        for job in self.jobs.values() {
            let SubmissionKind::Payment { from, to, wei } = &job.kind else {
                continue;
            };
            let transaction = found.remove(&to.to_lowercase());
            if !job.succeeded() {
                assert_eq!(transaction, None, "{:?} failed", job.uuid);
                assert_eq!(anvil.balance(to).await, 0);
                continue;
            }
            let transaction = transaction.unwrap_or_else(|| panic!("{:?} is not there", job.uuid));
            let outcome = job.outcome.as_ref().unwrap();
            assert_eq!(transaction["hash"], outcome["txHash"], "{outcome}");
            let payer = transaction["from"].as_str().unwrap();
            assert_eq!(payer.to_lowercase(), from.to_lowercase());
            assert_eq!(hex_number(&transaction["value"]), *wei);
            assert_eq!(anvil.balance(to).await, *wei);
            let receipt = anvil.receipt(outcome["txHash"].as_str().unwrap()).await;
            assert_eq!(receipt["status"], "0x1", "{receipt}");
            *sent.entry(from).or_default() += 1;
        }
        assert!(found.is_empty(), "asked for by nobody: {found:?}");
        for account in &world.evm {
            for tag in ["latest", "pending"] {
                let count = anvil.call("eth_getTransactionCount", json!([account, tag]));
                let sent = sent.get(account.as_str()).copied().unwrap_or_default();
                assert_eq!(hex_number(&count.await), sent, "{account} {tag}");
            }
        }
    }
}

/// A message without what differs from one request to the next.
fn general(message: &str) -> String {
    let words = message.split_whitespace().map(|word| {
        let special = word.len() > 12 && word.chars().any(|c| c.is_ascii_digit());
        if special { "*" } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}
