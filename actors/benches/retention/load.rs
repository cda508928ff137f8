//! An orchestrator on a filled store, and what it is asked.

use std::{
    collections::BTreeMap,
    fs,
    future::Future,
    io::BufRead as _,
    sync::{Arc, atomic::AtomicU64, atomic::Ordering},
    time::Instant,
};

use covault_actors::gateway::{Caller, Gateway, Query, Receipt, View};
use covault_core::{
    ids::{TokenId, VaultId},
    schema::wire,
};

use crate::{
    Place, Report,
    fill::{self, Facts},
    service::{self, Chain},
};

struct Load {
    gateway: Gateway,
    caller: Caller,
    facts: Facts,
    next: AtomicU64,
    calls: BTreeMap<String, Vec<u64>>,
}

pub fn serve(place: &Place) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(serve_now(place));
    // As a service that ends: the store closes.
    drop(runtime);
}

async fn serve_now(place: &Place) {
    let facts: Facts = serde_json::from_slice(&fs::read(&place.facts).unwrap()).unwrap();
    let chain = Arc::new(Chain::default());
    // Earlier processes have paid too.
    let sent_file = place.facts.with_extension("sent");
    *chain.sent.lock().unwrap() = match fs::read(&sent_file) {
        Ok(sent) => serde_json::from_slice(&sent).unwrap(),
        Err(_) => {
            let payers = facts.payers.iter();
            payers.map(|payer| (payer.clone(), facts.paid)).collect()
        }
    };
    let caller = service::platform(TokenId::from_bytes(facts.token));
    let started = Instant::now();
    let store = fill::open(place).await;
    let vaults = facts.vaults.iter().map(|vault| vault.parse().unwrap());
    let signers = service::signers(&vaults.collect::<Vec<_>>());
    let gateway = service::start(Arc::clone(&store), signers, Arc::clone(&chain)).await;
    let mut load = Load {
        gateway,
        caller,
        next: AtomicU64::new(service::now_ms() % 1_000_000_000 * 1_000),
        facts,
        calls: BTreeMap::new(),
    };
    load.finished().await;
    load.vaults_are_there().await;
    let start_ms = started.elapsed().as_secs_f64() * 1e3;
    report(start_ms, BTreeMap::new());
    for line in std::io::stdin().lock().lines() {
        if line.unwrap() == "stop" {
            break;
        }
        load.round().await;
        let sent = serde_json::to_vec(&*chain.sent.lock().unwrap()).unwrap();
        fs::write(&sent_file, sent).unwrap();
        report(0.0, std::mem::take(&mut load.calls));
    }
    load.gateway.stop().await;
}

fn report(start_ms: f64, calls: BTreeMap<String, Vec<u64>>) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let report = Report {
        start_ms,
        rss: field("VmRSS:"),
        peak: field("VmHWM:"),
        calls,
    };
    println!("{}", serde_json::to_string(&report).unwrap());
}

impl Load {
    /// A number below `most`, other each time.
    fn any(&self, most: u64) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Spread out, as those who ask are.
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % most
    }

    async fn timed<T>(&mut self, name: &str, call: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let answer = call.await;
        let took = u64::try_from(started.elapsed().as_nanos()).unwrap();
        self.calls.entry(name.to_owned()).or_default().push(took);
        answer
    }

    async fn ask(&mut self, name: &str, query: Query) -> View {
        let (gateway, caller) = (self.gateway.clone(), self.caller.clone());
        self.timed(name, gateway.view(&caller, query))
            .await
            .unwrap()
    }

    async fn finished(&mut self) {
        let uuid = fill::request_id(self.any(self.facts.requests)).to_string();
        let view = self.ask("a finished request", Query::SigningRequest { uuid });
        let View::SigningRequest(request) = view.await else {
            panic!("no request")
        };
        assert_eq!(request.status(), wire::signing_request::Status::Succeeded);
    }

    /// Asks until every vault can be asked.
    async fn vaults_are_there(&mut self) {
        for vault in self.facts.vaults.clone() {
            let query = Query::Wallets(wire::GetWalletListRequest {
                vault_uuid: vault,
                ..Default::default()
            });
            let View::Wallets(wallets) = self.ask("start", query).await else {
                panic!("no wallets")
            };
            assert!(!wallets.is_empty());
        }
        self.create(false).await;
        self.calls.clear();
    }

    async fn list(&mut self, page: i64) {
        let query = Query::SigningRequests(wire::GetSigningRequestListRequest {
            vault_uuid: self.facts.vaults[0].clone(),
            page: Some(page),
            limit: Some(10),
            ..Default::default()
        });
        let name = format!("list of requests, page {page}");
        let View::SigningRequests(found) = self.ask(&name, query).await else {
            panic!("no requests")
        };
        assert_eq!(found.len(), 10);
    }

    async fn create(&mut self, payment: bool) {
        let which = self.any(self.facts.writers.len() as u64) as usize;
        let (name, kind) = if payment {
            let payer = self.facts.payers[which].clone();
            ("a payment, made and sent", service::payment(&payer))
        } else {
            let writer = self.facts.writers[which].clone();
            ("a message, made and signed", service::message(&writer))
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let key = format!("{} {number}", std::process::id());
        let (gateway, caller) = (self.gateway.clone(), self.caller.clone());
        let call = service::complete(&gateway, &caller, kind, key);
        self.timed(name, call).await;
    }

    async fn round(&mut self) {
        for _ in 0..1_000 {
            self.finished().await;
        }
        for _ in 0..50 {
            self.list(1).await;
            self.list(90).await;
        }
        for _ in 0..500 {
            let which = self.any(self.facts.addresses.len() as u64) as usize;
            let address = self.facts.addresses[which].clone();
            let query = Query::WalletByAddress(address.clone());
            let View::Wallet(wallet) = self.ask("a wallet by its address", query).await else {
                panic!("no wallet")
            };
            assert_eq!(wallet.address, address);
            let number = self.any(self.facts.wallets);
            let query = Query::WalletByRef(format!("customer {number}"));
            let View::Wallet(_) = self.ask("a wallet by its reference", query).await else {
                panic!("no wallet")
            };
        }
        for _ in 0..50 {
            let which = self.any(self.facts.vaults.len() as u64) as usize;
            for page in [1, 2] {
                let query = Query::Wallets(wire::GetWalletListRequest {
                    vault_uuid: self.facts.vaults[which].clone(),
                    page: Some(page),
                    limit: Some(100),
                });
                let name = format!("list of wallets, page {page}");
                let View::Wallets(found) = self.ask(&name, query).await else {
                    panic!("no wallets")
                };
                assert_eq!(found.len(), 100);
            }
            let which = self.any(self.facts.batches.len() as u64) as usize;
            let uuid = self.facts.batches[which].clone();
            let query = Query::BatchPayment { uuid };
            let View::BatchPayment(_) = self.ask("a batch payment", query).await else {
                panic!("no batch")
            };
        }
        for _ in 0..50 {
            self.create(false).await;
            self.create(true).await;
            self.repeat().await;
        }
        for _ in 0..20 {
            let number = 1_000_000_000 + self.next.fetch_add(1, Ordering::Relaxed);
            let vault: VaultId = self.facts.vaults[0].parse().unwrap();
            let (gateway, caller) = (self.gateway.clone(), self.caller.clone());
            let call = service::make_wallet(&gateway, &caller, vault, number);
            self.timed("a new wallet", call).await;
        }
    }

    /// A call that was made before.
    async fn repeat(&mut self) {
        let number = self.any(self.facts.requests);
        let writer = self.facts.writers[0].clone();
        let (gateway, caller) = (self.gateway.clone(), self.caller.clone());
        let kind = service::message(&writer);
        let call = service::create(&gateway, &caller, kind, fill::key(number));
        let made = self.timed("an idempotent repeat", call).await.unwrap();
        assert!(made.replayed);
        let Receipt::SigningRequest(request) = made.receipt else {
            panic!("no request")
        };
        assert_eq!(request.uuid, fill::request_id(number).to_string());
    }
}
