//! Makes the requests: at a pace, each to its signature.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use covault_actors::operations::{
    CreateSigningRequest, ExecuteSigningRequests, GetSigningRequestDetails, Operation,
};
use covault_core::schema::{json, wire};
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{
    meters::{MeterGrowth, ProcessMeters},
    workload::{LoadRequest, LoadWorkload},
};
use crate::cli::{
    client::{AdminClient, sentence_of},
    progress::ProgressSpinner,
};

/// How long one call may take.
const CALL: Duration = Duration::from_secs(60);
/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(120);
/// Open loop: requests that may be in flight. More only measure this program.
const MOST_IN_FLIGHT: usize = 20_000;
/// Different reasons that are kept.
const REASONS: usize = 20;

/// How requests follow each other.
#[derive(Clone, Copy, Debug)]
pub enum LoadPace {
    /// So many clients, each with one request at a time.
    Closed(u32),
    /// So many requests per second.
    Open(f64),
}

/// A request that was signed, in time since the measurement began.
pub struct SignedSample {
    /// When it was made, or was due.
    pub begun: f64,
    /// When it was signed.
    pub ended: f64,
    /// Seconds until it was accepted.
    pub accepted: f64,
}

impl SignedSample {
    /// Seconds until it was signed.
    pub fn latency(&self) -> f64 {
        self.ended - self.begun
    }
}

/// What became of the requests.
#[derive(Default)]
pub struct LoadOutcomes {
    pub signed: Vec<SignedSample>,
    /// Seconds that each reading took.
    pub reads: Vec<f64>,
    /// Not accepted for now.
    pub refused: u64,
    /// Not begun, as too many were in flight.
    pub left_out: u64,
    /// Why requests failed, and how many.
    pub failed: BTreeMap<String, u64>,
    /// What was wrong with answers, and with how many.
    pub wrong: BTreeMap<String, u64>,
}

/// A measurement.
pub struct LoadMeasurement {
    pub seconds: f64,
    pub outcomes: LoadOutcomes,
    pub metered: MeterGrowth,
}

/// What came of one request.
enum RequestEnd {
    Signed {
        accepted: Instant,
        at: Instant,
    },
    /// It may be made again after this time.
    Refused(Duration),
    Failed(String),
    Wrong(String),
}

/// What came of one call.
enum CallAnswer<T> {
    Given(T),
    Later(Duration),
    Refused(String),
}

pub struct LoadDriver {
    client: Arc<AdminClient>,
    workload: LoadWorkload,
    outcomes: Mutex<LoadOutcomes>,
}

impl LoadDriver {
    pub fn new(client: Arc<AdminClient>, workload: LoadWorkload) -> Self {
        Self {
            client,
            workload,
            outcomes: Mutex::default(),
        }
    }

    /// Makes requests for both times, and measures in the second.
    ///
    /// # Errors
    /// When metrics cannot be read.
    pub async fn run(
        self: Arc<Self>,
        pace: LoadPace,
        warm_up: Duration,
        time: Duration,
        meters: &ProcessMeters,
    ) -> anyhow::Result<LoadMeasurement> {
        let spinner = ProgressSpinner::start(format!("warming up for {} s", warm_up.as_secs()));
        let started = Instant::now() + warm_up;
        let end = started + time;
        let driver = Arc::clone(&self);
        let driving = tokio::spawn(async move {
            match pace {
                LoadPace::Closed(clients) => driver.closed(clients, started, end).await,
                LoadPace::Open(rate) => driver.open(rate, started, end).await,
            }
        });
        sleep_until(started).await;
        // What came before does not count.
        let before = meters.read().await?;
        while Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now()).as_secs();
            let signed = self.outcomes.lock().signed.len();
            spinner.next(format!("measuring: {signed} signed, {left} s left"));
            sleep_until(end.min(Instant::now() + Duration::from_secs(5))).await;
        }
        let after = meters.read().await?;
        spinner.next("waiting for the last requests");
        driving.await?;
        Ok(LoadMeasurement {
            seconds: time.as_secs_f64(),
            outcomes: std::mem::take(&mut *self.outcomes.lock()),
            metered: MeterGrowth { before, after },
        })
    }

    async fn closed(self: Arc<Self>, clients: u32, started: Instant, end: Instant) {
        let mut working = JoinSet::new();
        for _ in 0..clients {
            let driver = Arc::clone(&self);
            working.spawn(async move {
                while Instant::now() < end {
                    if let Some(wait) = driver.one(Instant::now(), started, end).await {
                        sleep(wait).await;
                    }
                }
            });
        }
        working.join_all().await;
    }

    async fn open(self: Arc<Self>, rate: f64, started: Instant, end: Instant) {
        let mut due = Instant::now();
        let every = Duration::from_secs_f64(1.0 / rate);
        let mut in_flight = JoinSet::new();
        while due < end {
            sleep_until(due).await;
            while in_flight.try_join_next().is_some() {}
            if in_flight.len() < MOST_IN_FLIGHT {
                let driver = Arc::clone(&self);
                in_flight.spawn(async move {
                    // Nobody asks again: it was due then.
                    let _ = driver.one(due, started, end).await;
                });
            } else if due >= started {
                self.outcomes.lock().left_out += 1;
            }
            due += every;
        }
        in_flight.join_all().await;
    }

    /// One request, and what came of it, where it is of the measured time. How long to wait before the next one.
    async fn one(&self, begun: Instant, started: Instant, end: Instant) -> Option<Duration> {
        let request = self.workload.next()?;
        let ended = self.end_of(&request, begun).await;
        let mut outcomes = self.outcomes.lock();
        // What is signed counts for the rate by its end, and for latency by its beginning. All else counts as well when
        // it began in the time.
        let is_counted = begun >= started && begun < end;
        match ended {
            RequestEnd::Signed { accepted, at } => {
                let since = |moment: Instant| match moment.checked_duration_since(started) {
                    Some(after) => after.as_secs_f64(),
                    None => -started.saturating_duration_since(moment).as_secs_f64(),
                };
                if at >= started {
                    outcomes.signed.push(SignedSample {
                        begun: since(begun),
                        ended: since(at),
                        accepted: since(accepted) - since(begun),
                    });
                }
            }
            RequestEnd::Refused(wait) => {
                outcomes.refused += u64::from(is_counted);
                return Some(wait);
            }
            RequestEnd::Failed(reason) if is_counted => count(&mut outcomes.failed, reason),
            RequestEnd::Failed(_) => {}
            // Never right, whenever it was.
            RequestEnd::Wrong(reason) => count(&mut outcomes.wrong, reason),
        }
        None
    }

    async fn end_of(&self, request: &LoadRequest, begun: Instant) -> RequestEnd {
        let uuid = match self.create(request).await {
            Ok(uuid) => uuid,
            Err(ended) => return ended,
        };
        let accepted = Instant::now();
        let asked = wire::ExecuteSigningRequestsRequest { uuid: uuid.clone() };
        let answer = loop {
            match self.ask::<ExecuteSigningRequests>(&asked, None).await {
                CallAnswer::Given(answer) => break answer,
                CallAnswer::Later(wait) if begun.elapsed() < REQUEST => {
                    sleep(wait.min(Duration::from_secs(1))).await;
                }
                CallAnswer::Later(_) => {
                    return RequestEnd::Failed(format!("not signed after {} s", REQUEST.as_secs()));
                }
                CallAnswer::Refused(reason) => return RequestEnd::Failed(reason),
            }
        };
        let at = Instant::now();
        if let Some(error) = answer.error {
            return RequestEnd::Failed(error.message);
        }
        if let Err(error) = self.workload.verify(request, answer) {
            return RequestEnd::Wrong(format!("{error:#}"));
        }
        let read = wire::GetSigningRequestDetailsRequest { uuid };
        for _ in 0..self.workload.scenario().reads() {
            let asked = Instant::now();
            match self.ask::<GetSigningRequestDetails>(&read, None).await {
                CallAnswer::Given(_) => {
                    let took = asked.elapsed().as_secs_f64();
                    self.outcomes.lock().reads.push(took);
                }
                CallAnswer::Later(wait) => sleep(wait).await,
                CallAnswer::Refused(reason) => return RequestEnd::Failed(reason),
            }
        }
        RequestEnd::Signed { accepted, at }
    }

    /// The uuid of the request once it is accepted.
    async fn create(&self, request: &LoadRequest) -> Result<String, RequestEnd> {
        let ask = |key| self.ask::<CreateSigningRequest>(&request.message, key);
        if !self.workload.scenario().repeats() {
            return uuid_of(ask(None).await);
        }
        let key = Some(request.idempotency_key.as_str());
        let (first, second) = tokio::join!(ask(key), ask(key));
        let (first, second) = match (uuid_of(first), uuid_of(second)) {
            (Ok(first), Ok(second)) => (first, second),
            // One of them was too early: the answer to the other is that to both.
            (Ok(first), Err(RequestEnd::Refused(wait)))
            | (Err(RequestEnd::Refused(wait)), Ok(first)) => {
                sleep(wait.min(Duration::from_secs(1))).await;
                (first, uuid_of(ask(key).await)?)
            }
            (Err(ended), _) | (_, Err(ended)) => return Err(ended),
        };
        match first == second {
            true => Ok(first),
            false => {
                let problem = "one idempotency key has made two requests";
                Err(RequestEnd::Wrong(problem.to_owned()))
            }
        }
    }

    async fn ask<O: Operation>(
        &self,
        request: &O::Request,
        idempotency_key: Option<&str>,
    ) -> CallAnswer<O::Response> {
        let response = self.client.post::<O>(request, idempotency_key, CALL).await;
        let response = match response {
            Ok(response) => response,
            Err(error) => return CallAnswer::Refused(format!("no answer: {}", error.root_cause())),
        };
        let status = response.status().as_u16();
        if matches!(status, 429 | 503) {
            let wait = response.headers().get("retry-after");
            let wait = wait.and_then(|wait| wait.to_str().ok()?.parse().ok());
            return CallAnswer::Later(Duration::from_secs(wait.unwrap_or(1)));
        }
        let text = response.bytes().await;
        let text = match text {
            Ok(text) => text,
            Err(error) => return CallAnswer::Refused(format!("no answer: {error}")),
        };
        if status != 200 {
            let said = sentence_of(&text).unwrap_or_else(|| "it does not say why".to_owned());
            let (_, name) = O::METHOD.rsplit_once('.').unwrap_or(("", O::METHOD));
            return CallAnswer::Refused(format!("{name}: {said} (HTTP {status})"));
        }
        match json::decode(&text) {
            Ok(answer) => CallAnswer::Given(answer),
            Err(fault) => CallAnswer::Refused(format!("not an answer: {}", fault.message())),
        }
    }
}

fn uuid_of(answer: CallAnswer<wire::CreateSigningRequestResponse>) -> Result<String, RequestEnd> {
    match answer {
        CallAnswer::Given(answer) => match answer.signing_request {
            Some(made) => Ok(made.uuid),
            None => Err(RequestEnd::Wrong("the answer has no request".to_owned())),
        },
        CallAnswer::Later(wait) => Err(RequestEnd::Refused(wait)),
        CallAnswer::Refused(reason) => Err(RequestEnd::Failed(reason)),
    }
}

fn count(reasons: &mut BTreeMap<String, u64>, reason: String) {
    let reason = match reasons.len() < REASONS || reasons.contains_key(&reason) {
        true => reason,
        false => "others".to_owned(),
    };
    let many = reasons.entry(reason).or_default();
    *many += 1;
}
