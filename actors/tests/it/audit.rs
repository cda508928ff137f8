//! The audit log is whole whatever happens, and tells what happened.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use covault_actors::{
    audit::AuditLog,
    gateway::Caller,
    operations::{
        AdmitNode, CreateToken, ListAuditChains, ListAuditEntries, RejectSigningRequest,
        RevokeToken,
    },
    store::{Batch, Key, KeySpace, Precondition, Store, memory::MemoryStore},
};
use covault_core::{
    audit::{AuditChain, AuditEntry, BEGAN, ChainChecker, ChainReport, VAULT_CHAIN},
    fault::Class,
    ids::{RequestId, TokenId},
    schema::{admin, wire},
};

use sha2::{Digest as _, Sha256};

use crate::world::*;

/// An entry as often as it has events, with one of them each.
fn apart(entry: AuditEntry) -> impl Iterator<Item = AuditEntry> {
    let events = entry.events.clone().into_iter();
    events.map(move |event| AuditEntry {
        events: vec![event],
        ..entry.clone()
    })
}

/// What happened.
pub fn event(entry: &AuditEntry) -> &str {
    &entry.events[0].event
}

/// Every event of a store's log with its entry, chain by chain, and what is wrong with them.
async fn read(store: &dyn Store) -> (BTreeMap<AuditChain, Vec<AuditEntry>>, Vec<ChainReport>) {
    let log = AuditLog(store);
    let (mut all, mut reports) = (BTreeMap::new(), Vec::new());
    let mut after = None;
    loop {
        let chains = log.chains(after).await.unwrap();
        let Some((last, _)) = chains.last() else {
            break;
        };
        after = Some(*last);
        for (chain, _) in chains {
            // Others may be writing: the entries are those below a head that existed the whole time.
            let (entries, report) = loop {
                let head = log.head(chain).await.unwrap();
                let mut checker = ChainChecker::new(chain, vec![]);
                let mut entries = Vec::new();
                let mut next = 0;
                loop {
                    let page = log.entries(chain, next).await.unwrap();
                    let Some((last, _)) = page.last() else {
                        break;
                    };
                    next = last + 1;
                    let read = page.iter().filter_map(|(_, linked)| checker.take(linked));
                    entries.extend(read.flat_map(apart));
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
pub async fn whole(store: &dyn Store, what: &str) -> BTreeMap<AuditChain, Vec<AuditEntry>> {
    let (all, reports) = read(store).await;
    for report in reports {
        assert_eq!(report.breaks, [], "{what}");
    }
    for chain in all[&AuditChain::Service]
        .iter()
        .filter(|it| event(it) == VAULT_CHAIN)
    {
        let of: AuditChain = chain.subject.parse().unwrap();
        assert!(all.contains_key(&of), "{what}: {of} is not there");
    }
    assert_eq!(event(&all[&AuditChain::Service][0]), BEGAN, "{what}");
    all
}

/// A whole log has one beginning and one end of each of these requests, in one vault.
pub async fn tells_of_each_once(store: &dyn Store, requests: &[RequestId], what: &str) {
    let all = whole(store, what).await;
    for id in requests {
        let subject = format!("request:{id}");
        let of: Vec<&AuditEntry> = all
            .values()
            .flatten()
            .filter(|entry| entry.subject == subject)
            .collect();
        let count = |name: &str| of.iter().filter(|entry| event(entry) == name).count();
        assert_eq!(count("Received"), 1, "{what}: {of:#?}");
        let ends = [
            "NodeAccepted",
            "NodeRefused",
            "HandedOver",
            "GaveUp",
            "Rejected",
        ];
        assert_eq!(
            ends.iter().map(|name| count(name)).sum::<usize>(),
            1,
            "{what}: {of:#?}"
        );
        assert_eq!(event(of[0]), "Received", "{what}");
        // Then its transaction is followed.
        assert!(count("Final") <= 1, "{what}: {of:#?}");
        let last = of.iter().rev().find(|entry| event(entry) != "Final");
        assert!(ends.contains(&event(last.unwrap())), "{what}");
    }
}

/// A client whose token reaches every vault.
fn client() -> Caller {
    Caller {
        token: TokenId::from_bytes([5; 16]),
        admin: None,
        ..admin()
    }
}

fn fact<'a>(entry: &'a AuditEntry, name: &str) -> &'a str {
    let found = entry.events[0].facts.iter().find(|(key, _)| key == name);
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
    let new = admin::CreateTokenRequest {
        name: "shop".into(),
        kind: "platform".into(),
        vaults: vec![vault.to_string()],
        access: "read-only".into(),
        ..Default::default()
    };
    let made = call::<CreateToken>(&gateway, &admin(), new).await.unwrap();
    let token = "shop".into();
    let revoke = admin::RevokeTokenRequest { token };
    call::<RevokeToken>(&gateway, &admin(), revoke)
        .await
        .unwrap();
    let all = whole(&*world.store, "").await;
    let service = &all[&AuditChain::Service];
    let events = |entries: &[AuditEntry]| {
        let events = entries.iter().map(|entry| event(entry).to_owned());
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
    assert_eq!(service[0].subject, "store");
    assert_eq!(
        service[1].subject,
        format!("node:{}", hex::encode(node(1).0))
    );
    let token = &service[5];
    assert_eq!(token.subject, format!("token:{}", made.token.unwrap().id));
    assert_eq!(token.by, "operator");
    assert_eq!(token.call, admin().request_id);
    assert_eq!(fact(token, "vaults"), vault.to_string());
    let of_vault = &all[&AuditChain::Vault(vault)];
    assert_eq!(event(&of_vault[0]), "VaultMade");
    assert_eq!(fact(&of_vault[0], "name"), "main");
    let of = |name: &str| of_vault.iter().find(|entry| event(entry) == name).unwrap();
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
    assert_eq!((event(last), last.by.as_str()), ("HandedOver", "service"));
    assert_eq!(fact(last, "state"), "Succeeded");
    // Nothing that opens anything.
    let secret = made.secret;
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
    let reject = wire::RejectSigningRequestRequest {
        uuid: uuid.clone(),
        rejection: None,
    };
    let who = client();
    call::<RejectSigningRequest>(&gateway, &who, reject)
        .await
        .unwrap();
    let all = whole(&*world.store, "").await;
    let rejected = all[&AuditChain::Vault(vault)]
        .iter()
        .find(|entry| event(entry) == "Rejected")
        .unwrap();
    assert_eq!(rejected.by, format!("token:{}", who.token));
    assert_eq!(rejected.subject, format!("request:{uuid}"));
}

#[tokio::test]
async fn the_log__should_be_told_to_operators_alone() {
    let world = World::new();
    let gateway = world.start().await;
    let chains = admin::ListAuditChainsRequest { after: None };
    let fault = call::<ListAuditChains>(&gateway, &client(), chains.clone()).await;
    assert_eq!(fault.unwrap_err().class(), &Class::Forbidden);
    let found = call::<ListAuditChains>(&gateway, &admin(), chains).await;
    assert_eq!(found.unwrap().chains.len(), 1);
    let chain = AuditChain::Service.to_string();
    let entries = admin::ListAuditEntriesRequest { chain, from: 1 };
    let fault = call::<ListAuditEntries>(&gateway, &client(), entries.clone()).await;
    assert_eq!(fault.unwrap_err().class(), &Class::Forbidden);
    let found = call::<ListAuditEntries>(&gateway, &admin(), entries).await;
    let admin::ListAuditEntriesResponse { entries, head } = found.unwrap();
    assert_eq!(entries.len(), 1);
    let entry = entries[0].clone();
    let (number, hash) = (entry.number, entry.hash);
    assert_eq!(head, Some(admin::AuditHead { number, hash }));
    let decoded = AuditEntry::decode(&entry.body).unwrap();
    let told = entry.report.unwrap();
    assert_eq!((told.at_ms, told.by), (decoded.at_ms, decoded.by.clone()));
    assert_eq!(
        (told.events[0].event.as_str(), event(&decoded)),
        (BEGAN, BEGAN)
    );
}

#[tokio::test]
async fn a_row_that_cannot_be_read__should_be_named() {
    let world = World::on(Arc::new(MemoryStore::new()));
    let gateway = world.start().await;
    admit(&gateway).await;
    let admit = async |number, name: &str| {
        let request = admin::AdmitNodeRequest {
            public_key: node(number).openssh_line(""),
            name: name.into(),
        };
        call::<AdmitNode>(&gateway, &admin(), request)
            .await
            .unwrap();
    };
    admit(1, "first").await;
    let key = Key::new(KeySpace::AuditEntry, &[&[0], &2_u64.to_be_bytes()]);
    let mut batch = Batch::new();
    batch.put(key, Precondition::Version(1), vec![1, 2, 3]);
    world.store.commit(batch).await.unwrap();
    let (_, reports) = read(&*world.store).await;
    assert_eq!(reports[0].breaks[0].number, 2);
    // Others go on.
    admit(9, "").await;
    assert_eq!(read(&*world.store).await.1[0].breaks, reports[0].breaks);
}
