//! Several orchestrators on one PostgreSQL: work through each, and what happens when one is killed,
//! stalls, or is restarted, and when the primary Redis is lost.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
};

use super::support::*;

/// Signatures on both curves of a vault, through each process.
async fn assert_signs_everywhere(fleet: &Fleet, vault: &TestVault, what: &str) {
    for (index, api) in fleet.apis.iter().enumerate() {
        for number in [0, 1] {
            let body = vault.message(number);
            let kind = if number == 0 {
                "rawMessage"
            } else {
                "solanaMessage"
            };
            let content = body[kind]["content"].clone();
            let outcome = api.sign(body).await;
            let what = format!("{what}, process {index}");
            let content = content.as_str().unwrap();
            if number == 0 {
                assert_ecdsa(&outcome, content, &vault.evm, &what);
            } else {
                assert_ed25519(&outcome, content, &vault.solana, &what);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_process__should_be_taken_over_by_the_other() {
    let mut fleet = Fleet::start(&["all", "all"], "", None).await;
    let vaults = fleet.vaults(&[0, 1]).await;
    for vault in &vaults {
        assert_signs_everywhere(&fleet, vault, "both are there").await;
    }
    let before = fleet.requests();
    let of = vaults.clone();
    let load = FleetLoad::start(&fleet.apis, 4, move |number| {
        of[number / 2 % 2].message(number)
    });
    load.go_on(12).await;
    fleet.process(1).kill();
    let killed = Instant::now();
    // A client of the process that is left, about the vault of the other one.
    let left = &fleet.apis[..1];
    let refused = load.refused.clone();
    let first = patient(left, 1_000_001, vaults[1].message(1), &refused).await;
    let accepted_after = killed.elapsed();
    let outcome = fleet.apis[0].execute(&first.uuid).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    eprintln!(
        "after the kill the vault took a request again after {:.1} s and signed it after {:.1} s",
        accepted_after.as_secs_f64(),
        killed.elapsed().as_secs_f64()
    );
    assert_eq!(fleet.owner(&vaults[1].id), Some(0));
    load.go_on(12).await;
    let mut accepted = load.end().await;
    accepted.push(first);
    fleet.assert_done(&accepted, &[0]).await;

    // It comes back, gets a part of the vaults again, and knows all that was done.
    fleet.restart(1);
    fleet.ready().await;
    fleet.assert_done(&accepted, &[0, 1]).await;
    for vault in &vaults {
        assert_signs_everywhere(&fleet, vault, "it is back").await;
    }
    let made = fleet.requests() - before - 8;
    assert_eq!(made, accepted.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_process__should_do_nothing_any_more_and_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 31337).await;
    let chain = format!("[chains.evm.31337]\nrpc = [{:?}]\n", anvil.url);
    let mut fleet = Fleet::start(&["all", "all"], &chain, None).await;
    let vault = fleet.vaults(&[0]).await.remove(0);
    anvil.fund(&vault.evm, 1_000_000_000_000_000_000_000).await;
    let to = "0x00000000000000000000000000000000C0FFEE06";
    let from = vault.evm.clone();
    // Each its own amount: twice the same would be seen on the chain.
    let send = move |number: usize| {
        let value = (number + 1).to_string();
        json!({"evmSendNative": {"chainId": "31337", "from": from, "to": to, "value": value}})
    };
    let load = FleetLoad::start(&fleet.apis, 3, send);
    load.go_on(5).await;
    // In the middle of whatever it is at.
    fleet.process(0).freeze();
    let frozen = Instant::now();
    fleet.owned(&vault.id, &[1]).await;
    eprintln!(
        "taken over {:.1} s after the other one stalled",
        frozen.elapsed().as_secs_f64()
    );
    load.go_on(3).await;
    tokio::time::sleep(Duration::from_secs(8).saturating_sub(frozen.elapsed())).await;
    fleet.process(0).thaw();
    load.go_on(6).await;
    // It has found out, and serves what is with the other one.
    fleet.ready().await;
    let accepted = load.end().await;
    fleet.assert_done(&accepted, &[0, 1]).await;
    assert_eq!(fleet.requests(), accepted.len());
    let uuids: BTreeSet<&String> = accepted.iter().map(|one| &one.uuid).collect();
    assert_eq!(uuids.len(), accepted.len());
    assert_on_chain_once(&anvil, &fleet, &vault, to, &accepted).await;
}

/// Every request's transaction is on the chain, and nothing else of this sender.
async fn assert_on_chain_once(
    anvil: &Anvil,
    fleet: &Fleet,
    vault: &TestVault,
    to: &str,
    accepted: &[Accepted],
) {
    let mut sum = 0;
    let mut hashes = BTreeSet::new();
    for one in accepted {
        let details = fleet.apis[0].details(&one.uuid).await;
        let hash = details["txHash"].as_str().unwrap().to_owned();
        let receipt = anvil.receipt(&hash).await;
        assert_eq!(receipt["status"], "0x1");
        assert!(hashes.insert(hash), "one transaction for two requests");
        let value = one.body["evmSendNative"]["value"].as_str().unwrap();
        sum += value.parse::<u128>().unwrap();
    }
    let count = anvil
        .call("eth_getTransactionCount", json!([vault.evm, "latest"]))
        .await;
    assert_eq!(hex_number(&count), hashes.len() as u128);
    assert_eq!(anvil.balance(to).await, sum);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart__should_lose_nothing() {
    let mut fleet = Fleet::start(&["all", "all"], "", None).await;
    let vaults = fleet.vaults(&[0, 1]).await;
    let of = vaults.clone();
    let load = FleetLoad::start(&fleet.apis, 4, move |number| {
        of[number / 2 % 2].message(number)
    });
    load.go_on(8).await;
    for index in [0, 1] {
        let other = 1 - index;
        let began = Instant::now();
        let code = tokio::task::block_in_place(|| fleet.process(index).terminate());
        assert_eq!(code, Some(0), "{}", fleet.process(index).log());
        for vault in &vaults {
            fleet.owned(&vault.id, &[other]).await;
        }
        eprintln!(
            "process {index} ended and gave all away within {:.1} s",
            began.elapsed().as_secs_f64()
        );
        load.go_on(8).await;
        fleet.restart(index);
        fleet.ready().await;
        load.go_on(8).await;
    }
    let refused = load.refused.load(Ordering::SeqCst);
    let accepted = load.end().await;
    eprintln!(
        "{} accepted, {refused} calls got 503 or no answer and were repeated",
        accepted.len()
    );
    fleet.assert_done(&accepted, &[0, 1]).await;
    assert_eq!(fleet.requests(), accepted.len());
}

/// Sends messages to be signed to one process after the other, until it is told to end. Every answer must be a 200;
/// the process that leaves gives none once it listens no more.
fn strict_load(
    fleet: &Fleet,
    vaults: Vec<TestVault>,
    leaving: usize,
    end: Arc<AtomicBool>,
) -> JoinHandle<Vec<Accepted>> {
    let apis = fleet.apis.clone();
    tokio::spawn(async move {
        let mut accepted = Vec::new();
        for number in 0_usize.. {
            if end.load(Ordering::SeqCst) {
                break;
            }
            let (api, index) = (&apis[number % apis.len()], number % apis.len());
            let body = vaults[number / apis.len() % vaults.len()].message(number);
            let key = format!("strict {number}");
            match api.keyed("createSigningRequest", &body, &key).await {
                Some((status, answer)) => {
                    assert_eq!(status, 200, "{answer}");
                    let uuid = answer["signingRequest"]["uuid"].as_str().unwrap();
                    accepted.push(Accepted {
                        uuid: uuid.to_owned(),
                        key,
                        body,
                        answer,
                    });
                }
                None => assert_eq!(index, leaving, "no answer to call {number}"),
            }
        }
        accepted
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_process__should_give_its_vaults_away_and_answer_every_call() {
    let mut fleet = Fleet::start(&["all", "all"], "", None).await;
    let vaults = fleet.vaults(&[0, 1]).await;
    let end = Arc::new(AtomicBool::new(false));
    let load = strict_load(&fleet, vaults.clone(), 0, Arc::clone(&end));
    // A call whose body comes late holds the process up.
    let body = vaults[0].message(1).to_string();
    let address = fleet.apis[0].base.strip_prefix("http://").unwrap();
    let mut late = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/createSigningRequest HTTP/1.1\r\nhost: x\r\nx-mtoken: {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{{",
        fleet.apis[0].token,
        body.len()
    );
    late.write_all(head.as_bytes()).await.unwrap();
    let began = Instant::now();
    fleet.process(0).signal("TERM");
    fleet.owned(&vaults[0].id, &[1]).await;
    eprintln!(
        "its vault is with the other one {:.1} s after SIGTERM",
        began.elapsed().as_secs_f64()
    );
    // Here its body comes: it is sent on to where the vault is now.
    assert!(!fleet.process(0).has_ended());
    late.write_all(&body.as_bytes()[1..]).await.unwrap();
    let mut answer = String::new();
    late.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    eventually("the process has ended", async || {
        fleet.process(0).has_ended().then_some(())
    })
    .await;
    end.store(true, Ordering::SeqCst);
    let accepted = load.await.unwrap();
    fleet.assert_done(&accepted, &[1]).await;
    assert_eq!(fleet.requests(), accepted.len() + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles__should_work_through_the_process_that_listens() {
    let mut fleet = Fleet::start(&["http", "orchestrator", "orchestrator"], "", None).await;
    let front = fleet.apis[0].clone();
    // Those without an API say how they are, and nothing else.
    for index in [1, 2] {
        let orchestrator = &fleet.apis[index];
        assert_eq!(orchestrator.get("/livez").await, 200);
        let wallets = orchestrator
            .raw("/v1/getWalletList", |call| {
                call.header("x-mtoken", &orchestrator.token)
                    .json(&json!({}))
            })
            .await;
        assert_eq!(wallets.status().as_u16(), 404);
    }
    let vaults = fleet.vaults(&[1, 2]).await;
    let fronts = [front.clone()];
    for (number, vault) in vaults.iter().enumerate() {
        assert_ne!(fleet.owner(&vault.id), Some(0));
        let named = json!({"address": vault.evm, "name": format!("wallet {number}")});
        front.ok("updateWallet", named).await;
        let info = front
            .ok("getWalletInfo", json!({"address": vault.evm}))
            .await;
        assert!(
            info.to_string().contains(&format!("wallet {number}")),
            "{info}"
        );
    }
    let of = vaults.clone();
    let load = FleetLoad::start(&fronts, 4, move |number| of[number / 2 % 2].message(number));
    load.go_on(8).await;
    // One of the two goes: the front sends what was for it to the other one.
    fleet.process(1).kill();
    fleet.owned(&vaults[0].id, &[2]).await;
    load.go_on(8).await;
    let accepted = load.end().await;
    fleet.assert_done(&accepted, &[0]).await;
    assert_eq!(fleet.requests(), accepted.len());
    // Without any, commands wait and are refused, and questions are answered.
    fleet.process(2).kill();
    let body = vaults[0].message(1);
    let (status, answer) = front.post("createSigningRequest", body).await;
    assert_eq!(status, 503, "{answer}");
    let details = front.details(&accepted[0].uuid).await;
    assert_eq!(details["status"], "STATUS_SUCCEEDED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_primary_of_redis__should_be_replaced_by_its_replica() {
    let mut redis = Sentinels::start().await;
    let url = redis.url();
    let fleet = Fleet::start(&["all", "all"], "", Some(&url)).await;
    let vault = fleet.vaults(&[0]).await.remove(0);
    let of = vault.clone();
    let load = FleetLoad::start(&fleet.apis, 4, move |number| of.message(number));
    load.go_on(8).await;
    redis.servers[0].kill();
    let killed = Instant::now();
    redis.until_primary(1, 0).await;
    eprintln!(
        "the replica is the primary {:.1} s after the kill",
        killed.elapsed().as_secs_f64()
    );
    let refused = load.refused.clone();
    let first = patient(&fleet.apis[..1], 1_000_001, vault.message(1), &refused).await;
    let outcome = fleet.apis[0].execute(&first.uuid).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    eprintln!(
        "a signature {:.1} s after the kill",
        killed.elapsed().as_secs_f64()
    );
    load.go_on(8).await;
    // The old one comes back as a replica, and nobody works with it as if it were the primary.
    redis.restart(0);
    redis.until_primary(1, 1).await;
    load.go_on(8).await;
    // And back again.
    redis.servers[1].kill();
    redis.until_primary(0, 0).await;
    // Through the process that has to reach the other one over Redis.
    let second = patient(&fleet.apis[1..], 1_000_002, vault.message(1), &refused).await;
    load.go_on(8).await;
    let mut accepted = load.end().await;
    accepted.extend([first, second]);
    fleet.assert_done(&accepted, &[0, 1]).await;
    assert_eq!(fleet.requests(), accepted.len());
}
