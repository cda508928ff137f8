//! One thread, a clock that jumps, and dice: everything that happens follows from the seed.

use std::{
    fmt::Display,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use covault_core::port::{Clock, Entropy};
pub use covault_core::testing::ConstantEntropy;
use covault_mpc::{
    pool::Priority,
    simulated::{SimDisk, SimMachine},
};
use rand::{Rng as _, RngExt as _, SeedableRng as _, rngs::StdRng};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

/// When the simulated world begins, in milliseconds since the Unix epoch.
const EPOCH_MS: u64 = 1_800_000_000_000;

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What the seed decides.
pub struct SeededRng(Mutex<StdRng>);

impl SeededRng {
    pub fn new(seed: u64, salt: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&salt.to_le_bytes());
        Self(Mutex::new(StdRng::from_seed(bytes)))
    }

    /// From `low` to `high`, both included.
    pub fn between(&self, low: u64, high: u64) -> u64 {
        self.0.lock().unwrap().random_range(low..=high)
    }

    pub fn below(&self, count: usize) -> usize {
        self.0.lock().unwrap().random_range(0..count)
    }

    /// True so many times in a thousand.
    pub fn chance(&self, of_thousand: u64) -> bool {
        of_thousand > 0 && self.between(0, 999) < of_thousand
    }

    pub fn bytes(&self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.fill(&mut bytes);
        bytes
    }
}

impl Entropy for SeededRng {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().unwrap().fill_bytes(bytes);
    }
}

/// The simulated time, as a machine whose clock is off by so much sees it.
#[derive(Clone, Copy)]
pub struct SimClock {
    start: Instant,
    pub skew_ms: i64,
}

impl SimClock {
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
            skew_ms: 0,
        }
    }

    pub fn skewed(self, skew_ms: i64) -> Self {
        Self { skew_ms, ..self }
    }

    /// Milliseconds since the world began.
    pub fn age_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap()
    }
}

impl Clock for SimClock {
    fn now_ms(&self) -> u64 {
        (EPOCH_MS + self.age_ms()).saturating_add_signed(self.skew_ms)
    }
}

/// From a start of a node, or of the orchestrator, to its end. What it does after its death does
/// not happen.
#[derive(Default)]
pub struct ProcessLife {
    dead: AtomicBool,
    death: Notify,
    /// Not only the process has ended.
    power_failed: AtomicBool,
    /// What it writes to.
    pub disk: Arc<SimDisk>,
}

impl ProcessLife {
    pub fn alive(&self) -> bool {
        !self.dead.load(Ordering::Relaxed)
    }

    /// The process is killed: what it has written is there.
    pub fn end(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.disk.stop();
        self.death.notify_one();
    }

    /// The power fails: what was not synced may be gone.
    pub fn lose_power(&self) {
        if self.alive() {
            self.power_failed.store(true, Ordering::Relaxed);
            self.end();
        }
    }

    pub fn power_failed(&self) -> bool {
        self.power_failed.load(Ordering::Relaxed)
    }

    pub async fn ended(&self) {
        self.death.notified().await;
    }
}

/// The machine of one life of a node: jobs take a moment, and overtake each other. Idle jobs are
/// begun one at a time, when nothing else waits.
pub fn machine(
    rng: &Arc<SeededRng>,
    life: &Arc<ProcessLife>,
    hedging: Option<[u8; 32]>,
    unguarded: bool,
) -> SimMachine {
    let (rng, disk) = (Arc::clone(rng), Arc::clone(&life.disk));
    let life = Arc::clone(life);
    let waiting = Arc::new(AtomicUsize::new(0));
    let output = Arc::new(tokio::sync::Mutex::new(()));
    SimMachine {
        run: Box::new(move |lane, job| {
            let (delay, life) = (rng.between(0, 3), Arc::clone(&life));
            let (waiting, output) = (Arc::clone(&waiting), Arc::clone(&output));
            if lane != Priority::Idle {
                waiting.fetch_add(1, Ordering::Relaxed);
            }
            tokio::spawn(async move {
                let idle = lane == Priority::Idle;
                let _turn = if idle {
                    Some(output.lock().await)
                } else {
                    None
                };
                sleep(ms(delay)).await;
                while idle && life.alive() && waiting.load(Ordering::Relaxed) > 0 {
                    sleep(ms(1)).await;
                }
                if life.alive() {
                    job();
                }
                if !idle {
                    waiting.fetch_sub(1, Ordering::Relaxed);
                }
            });
        }),
        disk,
        hedging,
        unguarded,
    }
}

/// What happened, as a hash, and as text if it is to be read.
pub struct Trace {
    clock: SimClock,
    hash: Mutex<(Sha256, u64)>,
    verbose: bool,
}

impl Trace {
    pub fn new(clock: SimClock, verbose: bool) -> Self {
        Self {
            clock,
            hash: Mutex::default(),
            verbose,
        }
    }

    pub fn note(&self, what: impl Display) {
        let line = format!("{:>7} {what}", self.clock.age_ms());
        if self.verbose {
            eprintln!("{line}");
        }
        let mut hash = self.hash.lock().unwrap();
        hash.0.update(line.as_bytes());
        hash.1 += 1;
    }

    /// The hash of all events, and their number.
    pub fn finish(&self) -> ([u8; 32], u64) {
        let hash = self.hash.lock().unwrap();
        (hash.0.clone().finalize().into(), hash.1)
    }
}
