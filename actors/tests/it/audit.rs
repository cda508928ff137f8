//! The audit log is whole whatever happens, and tells what happened.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use async_trait::async_trait;
use covault_actors::{
    audit::Log,
    gateway::{AuditQuery, AuditView, Caller, Command, Query, Receipt, View},
    store::{
        Batch, CommitError, Expect, Key, ReadError, Row, Scan, Space, Store, memory::MemoryStore,
    },
};
use covault_core::{
    audit::{BEGAN, Chain, Checker, Entry, Report, VAULT_CHAIN},
    fault::Class,
    ids::{RequestId, TokenId},
    order::NodeId,
    token::{Access, Kind, NewToken, Vaults},
};

use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};

use crate::world::*;

/// Every entry of a store's log, chain by chain, and what is wrong with them.
async fn read(store: &dyn Store) -> (BTreeMap<Chain, Vec<Entry>>, Vec<Report>) {
    let log = Log(store);
    let (mut all, mut reports) = (BTreeMap::new(), Vec::new());
    let mut after = None;
    loop {
        let chains = log.chains(after).await.unwrap();
        let Some((last, _)) = chains.last() else {
            break;
        };
        after = Some(*last);
        for (chain, _) in chains {
            // Somebody may be writing: the entries are those of a head that was there all the time.
            let (entries, report) = loop {
                let head = log.head(chain).await.unwrap();
                let mut checker = Checker::new(chain, vec![]);
                let mut entries = Vec::new();
                let mut next = 0;
                loop {
                    let page = log.entries(chain, next).await.unwrap();
                    let Some((last, _)) = page.last() else {
                        break;
                    };
                    next = last + 1;
                    entries.extend(page.iter().filter_map(|(_, linked)| checker.take(linked)));
                }
                if log.head(chain).await.unwrap() == head {
                    break (entries, checker.end(head));
                }
            };
            reports.push(report);
            all.insert(chain, entries);
        }
    }
    (all, reports)
}

/// Every entry of a log that is whole.
pub async fn whole(store: &dyn Store, what: &str) -> BTreeMap<Chain, Vec<Entry>> {
    let (all, reports) = read(store).await;
    for report in reports {
        assert_eq!(report.breaks, [], "{what}");
    }
    for chain in all[&Chain::Service]
        .iter()
        .filter(|it| it.event == VAULT_CHAIN)
    {
        let of: Chain = chain.subject.parse().unwrap();
        assert!(all.contains_key(&of), "{what}: {of} is not there");
    }
    assert_eq!(all[&Chain::Service][0].event, BEGAN, "{what}");
    all
}

/// A whole log has one beginning and one end of each of these requests, in one vault.
pub async fn tells_of_each_once(store: &dyn Store, requests: &[RequestId], what: &str) {
    let all = whole(store, what).await;
    for id in requests {
        let subject = format!("request:{id}");
        let of: Vec<&Entry> = all
            .values()
            .flatten()
            .filter(|entry| entry.subject == subject)
            .collect();
        let count = |event: &str| of.iter().filter(|entry| entry.event == event).count();
        assert_eq!(count("Received"), 1, "{what}: {of:#?}");
        let ends = [
            "NodeAccepted",
            "NodeRefused",
            "HandedOver",
            "GaveUp",
            "Rejected",
        ];
        assert_eq!(
            ends.iter().map(|event| count(event)).sum::<usize>(),
            1,
            "{what}: {of:#?}"
        );
        assert_eq!(of.first().unwrap().event, "Received", "{what}");
        assert!(ends.contains(&of.last().unwrap().event.as_str()), "{what}");
    }
}

/// A client whose token reaches every vault.
fn client() -> Caller {
    Caller {
        token: TokenId::from_bytes([5; 16]),
        operator: false,
        ..admin()
    }
}

fn fact<'a>(entry: &'a Entry, name: &str) -> &'a str {
    let found = entry.facts.iter().find(|(key, _)| key == name);
    found.map_or("", |(_, value)| value)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log__should_say_who_did_what_in_the_order_in_which_it_happened() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let uuid = create(&gateway, raw(&address)).await.uuid;
    outcome(&gateway, &uuid).await;
    let new = NewToken {
        name: "shop".into(),
        kind: Kind::Platform,
        vaults: Vaults::Only(vec![vault]),
        access: Access::ReadOnly,
        allow: vec![],
        expires_at_ms: None,
    };
    let made = gateway
        .submit(&admin(), Command::CreateToken(new), None)
        .await
        .unwrap();
    let Receipt::TokenMade(made) = made.receipt else {
        panic!("no token")
    };
    let revoke = Command::RevokeToken("shop".into());
    gateway.submit(&admin(), revoke, None).await.unwrap();
    let all = whole(&*world.store, "").await;
    let service = &all[&Chain::Service];
    let events = |entries: &[Entry]| {
        let events = entries.iter().map(|entry| entry.event.clone());
        events.collect::<Vec<_>>()
    };
    assert_eq!(
        events(service),
        [
            BEGAN,
            "NodeAdmitted",
            "NodeAdmitted",
            "NodeAdmitted",
            VAULT_CHAIN,
            "TokenMade",
            "TokenRevoked"
        ]
    );
    assert_eq!(fact(&service[0], "before"), "nothing");
    assert_eq!(service[1].subject, format!("node:{}", "01".repeat(32)));
    let token = &service[5];
    assert_eq!(token.subject, format!("token:{}", made.record.id));
    assert_eq!(token.by, "operator");
    assert_eq!(token.call, admin().request_id);
    assert_eq!(fact(token, "vaults"), vault.to_string());
    let of_vault = &all[&Chain::Vault(vault)];
    assert_eq!(of_vault[0].event, "VaultMade");
    assert_eq!(fact(&of_vault[0], "name"), "main");
    let of = |event: &str| of_vault.iter().find(|entry| entry.event == event).unwrap();
    assert_eq!(fact(of("WalletMade"), "address"), address);
    assert_eq!(
        events(of_vault)
            .iter()
            .filter(|it| *it == "KeyMade")
            .count(),
        2
    );
    let received = of("Received");
    assert_eq!(received.subject, format!("request:{uuid}"));
    assert_eq!(fact(received, "payloadSha256").len(), 64);
    let last = of_vault.last().unwrap();
    assert_eq!(
        (last.event.as_str(), last.by.as_str()),
        ("HandedOver", "service")
    );
    assert_eq!(fact(last, "state"), "Succeeded");
    // Nothing that opens anything.
    let secret = made.secret.expose_secret().to_owned();
    let hash = hex::encode(Sha256::digest(secret.as_bytes()));
    let text = format!("{all:?}");
    assert!(!text.contains(&secret) && !text.contains(&hash));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log__should_name_who_rejected_a_request() {
    let world = World::new();
    world.evm.down.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let uuid = create(&gateway, send(&address)).await.uuid;
    let reject = Command::RejectSigningRequest { uuid: uuid.clone() };
    let who = client();
    gateway.submit(&who, reject, None).await.unwrap();
    let all = whole(&*world.store, "").await;
    let rejected = all[&Chain::Vault(vault)]
        .iter()
        .find(|entry| entry.event == "Rejected")
        .unwrap();
    assert_eq!(rejected.by, format!("token:{}", who.token));
    assert_eq!(rejected.subject, format!("request:{uuid}"));
}

#[tokio::test]
async fn the_log__should_be_told_to_operators_alone() {
    let world = World::new();
    let gateway = world.start().await;
    let query = |query| Query::Audit(query);
    let chains = AuditQuery::Chains(None);
    let fault = gateway.view(&client(), query(chains)).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Forbidden);
    let View::Audit(AuditView::Chains(found)) =
        gateway.view(&admin(), query(chains)).await.unwrap()
    else {
        panic!("no chains")
    };
    assert_eq!(found.len(), 1);
    let entries = AuditQuery::Entries(Chain::Service, 1);
    let View::Audit(AuditView::Entries { entries, head }) =
        gateway.view(&admin(), query(entries)).await.unwrap()
    else {
        panic!("no entries")
    };
    assert_eq!(entries.len(), 1);
    assert_eq!(head, Some(entries[0].1.head()));
}

/// A store whose commits fail once, from a number on.
struct Failing(Arc<dyn Store>, std::sync::atomic::AtomicUsize);

#[async_trait]
impl Store for Failing {
    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        if self.1.fetch_sub(1, Ordering::SeqCst) == 1 {
            return Err(CommitError::Unavailable("no power".into()));
        }
        self.0.commit(batch).await
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        self.0.get(key).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        self.0.scan(scan).await
    }
}

/// What a version before there were chains left behind: a vault, and rows without a chain.
async fn old_store() -> (Arc<dyn Store>, covault_core::ids::VaultId, RequestId) {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    gateway.stop().await;
    let store = Arc::clone(&world.store);
    let mut batch = Batch::new();
    for space in [Space::AuditEntry, Space::AuditHead] {
        for (key, _) in store.scan(&Scan::prefix(space, &[], 1000)).await.unwrap() {
            batch.delete(key, Expect::Any);
        }
    }
    let request = RequestId::from_bytes([7; 16]);
    let key = Key::new(Space::Audit, &[request.as_bytes(), &1_u64.to_be_bytes()]);
    // The sample of tests/wire.
    let row = include_str!("../../../tests/wire/audit-v1.hex");
    batch.put(key, Expect::Absent, hex::decode(row.trim()).unwrap());
    store.commit(batch).await.unwrap();
    (store, vault, request)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chains__should_begin_once_in_an_old_store_wherever_its_start_is_cut() {
    for cut in 0..=2 {
        let (store, vault, request) = old_store().await;
        let world = World::on(Arc::clone(&store));
        let failing = Failing(Arc::clone(&store), cut.into());
        let started = world
            .try_start_with(Arc::new(failing), world.chains())
            .await;
        match started {
            Ok(gateway) => gateway.stop().await,
            Err(fault) => assert_eq!((fault.class(), cut > 0), (&Class::Unavailable, true)),
        }
        for _ in 0..2 {
            world.start().await.stop().await;
        }
        let all = whole(&*store, &format!("cut {cut}")).await;
        assert_eq!(all.len(), 2);
        for chain in [Chain::Service, Chain::Vault(vault)] {
            let began = &all[&chain][0];
            assert_eq!(began.event, BEGAN);
            assert!(fact(began, "before").starts_with("events without a chain"));
            let once = all[&chain].iter().filter(|it| it.event == BEGAN).count();
            assert_eq!(once, 1);
        }
        let older = Log(&*store).older(None).await.unwrap();
        assert_eq!(older.len(), 1);
        let ((of, number), trail) = &older[0];
        assert_eq!((*of, *number, trail.len()), (request, 1, 1));
        assert_eq!(trail[0].event, "Built");
        let rest = Log(&*store).older(Some((*of, *number))).await.unwrap();
        assert!(rest.is_empty());
    }
}

#[tokio::test]
async fn a_row_that_cannot_be_read__should_be_named() {
    let world = World::on(Arc::new(MemoryStore::new()));
    let gateway = world.start().await;
    admit(&gateway).await;
    let rename = Command::AdmitNode {
        id: NodeId([1; 32]),
        name: "first".into(),
    };
    gateway.submit(&admin(), rename, None).await.unwrap();
    let key = Key::new(Space::AuditEntry, &[&[0], &2_u64.to_be_bytes()]);
    let mut batch = Batch::new();
    batch.put(key, Expect::Version(1), vec![1, 2, 3]);
    world.store.commit(batch).await.unwrap();
    let (_, reports) = read(&*world.store).await;
    assert_eq!(reports[0].breaks[0].number, 2);
    // Others go on.
    let other = Command::AdmitNode {
        id: NodeId([9; 32]),
        name: String::new(),
    };
    gateway.submit(&admin(), other, None).await.unwrap();
    assert_eq!(read(&*world.store).await.1[0].breaks, reports[0].breaks);
}
