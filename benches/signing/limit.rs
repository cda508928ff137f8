//! The limit of a service: the cryptography of three signer nodes, their claims on disk, sealed messages and a real
//! Redis, in one process with a thread for each core. No HTTP, no store, no audit.

use std::time::{Duration, Instant};

use covault_core::{derive::RootKey, signature::Curve};
use covault_mpc::preprocess::Watermarks;
use limit_support::{TestBus, TestCluster};

use crate::{Measured, usage};

#[path = "../../mpc/tests/support/mod.rs"]
mod limit_support;

/// How long a signature may take.
const PATIENCE_MS: u64 = 60_000;

/// Nodes that are ready to sign.
pub struct Limit {
    cluster: TestCluster,
    threshold: u16,
}

impl Limit {
    /// So many nodes, of which so many sign.
    pub async fn start(threshold: u16, nodes: usize) -> Self {
        let check = std::sync::Arc::new(covault_mpc::node::RebuildCheck);
        let bus = TestBus::redis();
        let cluster = TestCluster::start_pooled(bus, nodes, check, Watermarks::default()).await;
        cluster.until_live(nodes).await;
        Self { cluster, threshold }
    }

    /// A new key.
    pub async fn key(&self, curve: Curve) -> RootKey {
        let root = self.cluster.keygen(curve, self.threshold).await;
        // Nonces are made ahead.
        for _ in 0..4 {
            self.cluster.sign_well(&root, self.threshold).await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        root
    }

    /// Signs so many at a time. The CPU seconds that it took, with Redis.
    pub async fn run_for(&self, root: &RootKey, in_flight: usize, time: Duration) -> Measured {
        let redis = match &self.cluster.medium {
            TestBus::Redis(server) => server.pid(),
            TestBus::Memory(_) | TestBus::Other(_) => unreachable!("it is Redis"),
        };
        let cpu = || usage::cpu_s(std::process::id()) + usage::cpu_s(redis);
        let (before, started) = (cpu(), Instant::now());
        let workers = (0..in_flight).map(|_| async {
            let mut latencies = Vec::new();
            while started.elapsed() < time {
                let begun = Instant::now();
                let order = self.cluster.order(root);
                let signed = self.cluster.sign(&order, self.threshold, PATIENCE_MS);
                signed.await.unwrap();
                latencies.push(begun.elapsed());
            }
            latencies
        });
        let latencies: Vec<_> = futures::future::join_all(workers).await;
        Measured {
            latencies: latencies.into_iter().flatten().collect(),
            elapsed: started.elapsed(),
            cpu_s: cpu() - before,
        }
    }
}
