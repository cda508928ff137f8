//! What a claim costs its node: CPU and time of one at a time, and of sixteen at once, in a new file and in one that has
//! `COVAULT_BENCH_STORED` claims, on the disk of the folder that `COVAULT_BENCH_FOLDER` names (the system's for temporary files
//! if it names none). And how long it takes to open that one.

#![allow(missing_docs, clippy::print_stdout)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods
)]

use std::{
    env, fs,
    path::Path,
    time::{Duration, Instant},
};

use covault_core::{
    amount::U256,
    ids::{RequestId, SessionId},
};
use covault_mpc::{
    claims::{Claim, Claims},
    policy::{PolicyScope, Spending, SpendingCounter},
};
use futures::future::join_all;
use rustix::time::{ClockId, clock_gettime};
use sha2::{Digest as _, Sha256};

const BEGIN_MS: u64 = 1_800_000_000_000;

/// As in production: requests have the time in front, sessions are random.
fn claim(number: u64) -> Claim {
    let digest: [u8; 32] = Sha256::digest(number.to_le_bytes()).into();
    let mut request = [0; 16];
    let now_ms = BEGIN_MS + number * 3;
    request[..6].copy_from_slice(&now_ms.to_be_bytes()[2..]);
    request[6..].copy_from_slice(&digest[..10]);
    Claim {
        session: SessionId::from_bytes(digest[16..].try_into().unwrap()),
        attempt: 0,
        digest: Some((RequestId::from_bytes(request), digest)),
        transaction: None,
        spending: vec![Spending {
            counter: SpendingCounter {
                scope: PolicyScope::Node,
                asset: "evm:1".into(),
            },
            amount: U256::from(1),
            most_per_day: None,
            unapproved: None,
        }],
        now_ms,
        root: Vec::new(),
        approved_until_ms: None,
        hold: None,
    }
}

fn cpu_us() -> i64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec * 1_000_000 + used.tv_nsec / 1_000
}

async fn measure(claims: &Claims, from: u64, count: u64, at_once: u64) {
    let (cpu, begin) = (cpu_us(), Instant::now());
    let mut longest_us = 0;
    for first in (from..from + count).step_by(at_once as usize) {
        let group_begin = Instant::now();
        let group = (first..first + at_once).map(|number| claims.claim(claim(number)));
        for outcome in join_all(group).await {
            outcome.unwrap();
        }
        longest_us = longest_us.max(group_begin.elapsed().as_micros());
    }
    let cpu = (cpu_us() - cpu) as f64 / count as f64;
    let time = begin.elapsed().as_micros() as f64 / (count / at_once) as f64;
    println!(
        "{at_once:>3} at once: {cpu:>6.1} us of CPU a claim, {time:>7.1} us a group, longest {longest_us} us"
    );
}

/// How long it takes to open a copy of the file as it is: whole, or as a process leaves it that is killed.
fn time_open(path: &Path, what: &str) {
    let copy = path.with_extension("copy");
    fs::copy(path, &copy).unwrap();
    let (cpu, begin) = (cpu_us(), Instant::now());
    let claims = Claims::open(&copy, false).unwrap();
    let (cpu, time) = (cpu_us() - cpu, begin.elapsed());
    println!(
        "opened {what} in {} ms, {} ms of CPU",
        time.as_millis(),
        cpu / 1_000
    );
    drop(claims);
    fs::remove_file(copy).unwrap();
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let folder = match env::var("COVAULT_BENCH_FOLDER") {
        Ok(folder) => tempfile::tempdir_in(Path::new(&folder)).unwrap(),
        Err(_) => tempfile::tempdir().unwrap(),
    };
    // 10000000 is what the figures in docs/limits.md and docs/sizing.md are of.
    let stored: u64 = env::var("COVAULT_BENCH_STORED").map_or(50_000, |text| text.parse().unwrap());
    let path = folder.path().join("claims.redb");
    let claims = Claims::open(&path, true).unwrap();
    let begin = fs::metadata(&path).unwrap().len();
    let rounds = |mut from: u64, what: &str| {
        println!("{what}:");
        for _ in 0..3 {
            runtime.block_on(measure(&claims, from, 4_000, 1));
            runtime.block_on(measure(&claims, from + 4_000, 32_000, 16));
            from += 36_000;
        }
        from
    };
    let before = rounds(0, "a new file");
    runtime.block_on(measure(&claims, before, stored, 500));
    let grown = fs::metadata(&path).unwrap().len() - begin;
    println!(
        "{} bytes a claim, of {}",
        grown / (before + stored),
        before + stored
    );
    rounds(before + stored, "with those stored");
    time_open(&path, "after a kill");
    drop(claims);
    // Its thread closes it a moment later.
    let closed = (0..6_000).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        Claims::open(&path, false).is_ok()
    });
    assert!(closed);
    std::thread::sleep(Duration::from_secs(10));
    time_open(&path, "after an orderly end");
}
