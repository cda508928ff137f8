//! What the cryptography alone gives: both signers of a 2-of-3 key in one thread, no messages
//! signed or sealed, no disk, no network.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use covault_core::testing::SystemEntropy;
use covault_core::{
    derive::KeyPath,
    port::Entropy,
    scheme::Scheme,
    signature::{Curve, Signature},
};
use covault_mpc::backend::{self, KeyShare, KeygenSetup, Session, SignSetup, Signer, SignerIndex};

use crate::Measured;

/// Feeds sessions to each other until every one is done.
fn run<T>(mut parties: BTreeMap<SignerIndex, Box<dyn Session<T>>>) -> BTreeMap<SignerIndex, T> {
    let mut outcomes = BTreeMap::new();
    let mut queue = Vec::new();
    for (me, session) in &mut parties {
        let turn = session.start(&SystemEntropy).unwrap();
        queue.extend(turn.send.into_iter().map(|message| (*me, message)));
    }
    while let Some((from, message)) = queue.pop() {
        let to = message.to;
        let session = parties.get_mut(&to).unwrap();
        let turn = session.receive(from, message.round, message.body).unwrap();
        queue.extend(turn.send.into_iter().map(|message| (to, message)));
        outcomes.extend(turn.done.map(|done| (to, done)));
    }
    outcomes
}

fn key(curve: Curve) -> BTreeMap<SignerIndex, Arc<dyn Signer>> {
    let parties = (1..=3).map(|me| {
        let setup = KeygenSetup {
            context: [1; 32],
            me,
            threshold: 2,
            parties: 3,
        };
        (
            me,
            backend::of(Scheme::default_of(curve))
                .unwrap()
                .keygen(setup)
                .unwrap(),
        )
    });
    let shares: BTreeMap<SignerIndex, KeyShare> = run(parties.collect());
    let open = |(index, share): (SignerIndex, KeyShare)| {
        (
            index,
            backend::of(Scheme::default_of(curve))
                .unwrap()
                .open(&share)
                .unwrap(),
        )
    };
    shares.into_iter().map(open).collect()
}

fn sign(signers: &BTreeMap<SignerIndex, Arc<dyn Signer>>) -> Signature {
    let path = KeyPath::new(vec![0]).unwrap();
    let parties = [1, 2].map(|index| {
        let setup = SignSetup {
            context: [2; 32],
            signers: vec![1, 2],
            path: path.clone(),
            message: vec![3; 32],
        };
        (index, signers[&index].sign(setup).unwrap())
    });
    let outcomes = run(parties.into_iter().collect());
    outcomes
        .into_values()
        .flatten()
        .next()
        .expect("the collector has the signature")
}

/// Signs for `time` on each of `threads`.
pub fn run_for(curve: Curve, threads: usize, time: Duration) -> Measured {
    let signers = key(curve);
    sign(&signers);
    let started = Instant::now();
    let latencies = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut latencies = Vec::new();
                    while started.elapsed() < time {
                        let begun = Instant::now();
                        sign(&signers);
                        latencies.push(begun.elapsed());
                    }
                    latencies
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect()
    });
    Measured {
        latencies,
        elapsed: started.elapsed(),
        cpu_s: 0.0,
    }
}
