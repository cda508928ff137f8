//! `simulation`: what a node says that tried a transaction, beside its signing.

use std::sync::{Arc, atomic::Ordering};

use covault_actors::{
    chain_rpc::SimulationOutcome,
    operations::Resimulation,
    store::{KeySpace, Scan},
};
use covault_core::{
    fault::{Class, ExecuteCode, Fault},
    networks::Payload,
    schema::wire::ResimulationRequest,
};
use serde_json::{Value, json};

use crate::{chain_double::SimulationReply, world::*};

/// Waits for a request's simulation.
async fn simulation(gateway: &covault_actors::gateway::Gateway, uuid: &str) -> Value {
    loop {
        let shown = details(gateway, uuid).await.simulation;
        if !shown.is_empty() {
            return serde_json::from_slice(&shown).unwrap();
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

async fn rows(world: &World) -> usize {
    let all = Scan::prefix(KeySpace::Simulation, &[], 10_000);
    world.store.scan(&all).await.unwrap().len()
}

fn passes() -> SimulationReply {
    SimulationReply::Says(SimulationOutcome {
        units_used: Some("21000".into()),
        ..SimulationOutcome::passes(Some("0x2a".into()))
    })
}

#[tokio::test]
async fn simulation__should_be_shown_and_outlive_a_restart() {
    let world = World::new();
    world.evm.try_by(passes());
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let created = create(&gateway, send(&from)).await;
    assert_eq!(created.simulation, b"");
    assert_eq!(outcome(&gateway, &created.uuid).await.error, None);
    let expected = json!({"success": true, "result": "0x2a", "error": null,
        "unitsUsed": "21000", "logs": [], "truncated": false});
    assert_eq!(simulation(&gateway, &created.uuid).await, expected);

    // What was tried is what was built: the transaction with its nonce, and no other.
    let tried = world.evm.tried.lock().unwrap().clone();
    let [trial] = tried.as_slice() else {
        panic!("{tried:?}")
    };
    assert!(matches!(&trial.payload, Payload::Evm(_)));
    let transaction = covault_core::networks::evm::trial(&trial.unsigned.bytes).unwrap();
    assert_eq!((transaction.nonce, transaction.gas_limit), (0, 21_000));
    assert_eq!(
        transaction.to.unwrap().to_lowercase(),
        "0x00000000000000000000000000000000000000aa"
    );

    gateway.stop().await;
    let gateway = world.start().await;
    assert_eq!(simulation(&gateway, &created.uuid).await, expected);
    assert_eq!(rows(&world).await, 1);
    assert_eq!(world.evm.tried.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn simulation__should_not_decide_anything_when_it_fails() {
    let world = World::new();
    let words = "execution reverted: Nope";
    world
        .evm
        .try_by(SimulationReply::Says(SimulationOutcome::fails(words)));
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let created = create(&gateway, send(&from)).await;
    let ended = outcome(&gateway, &created.uuid).await;
    assert_eq!(ended.error, None);
    assert!(!ended.tx_hash.is_empty());
    let shown = simulation(&gateway, &created.uuid).await;
    assert_eq!(
        (&shown["success"], &shown["error"]),
        (&json!(false), &json!(words))
    );
    assert_eq!(world.evm.accepted(), 1);
}

#[tokio::test]
async fn simulation__should_hold_up_neither_requests_nor_the_end() {
    let world = World::new();
    world.evm.try_by(SimulationReply::NeverAnswers);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    // More than may be tried at once on one chain: the others go without, as long as these are waited for.
    let begun = tokio::time::Instant::now();
    let mut uuids = Vec::new();
    for _ in 0..80 {
        uuids.push(create(&gateway, send(&from)).await.uuid);
    }
    for uuid in &uuids {
        assert_eq!(outcome(&gateway, uuid).await.error, None);
        assert_eq!(details(&gateway, uuid).await.simulation, b"");
    }
    assert_eq!(world.evm.accepted(), 80);
    let tried = world.evm.tried.lock().unwrap().len();
    assert!(tried >= 61, "{tried}");
    if begun.elapsed() < std::time::Duration::from_secs(5) {
        assert_eq!(tried, 61);
    }
    gateway.stop().await;
    // None of it keeps the store open any longer.
    drop(gateway);
    assert_eq!(Arc::strong_count(&world.store), 1);
    assert_eq!(rows(&world).await, 0);
}

#[tokio::test]
async fn simulation__should_survive_a_client_that_panics() {
    let world = World::new();
    world.evm.try_by(SimulationReply::Panics);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    for _ in 0..3 {
        let uuid = create(&gateway, send(&from)).await.uuid;
        assert_eq!(outcome(&gateway, &uuid).await.error, None);
    }
    world.evm.try_by(passes());
    let uuid = create(&gateway, send(&from)).await.uuid;
    assert_eq!(simulation(&gateway, &uuid).await["success"], true);
}

#[tokio::test]
async fn simulation__should_be_empty_where_nothing_can_be_tried() {
    let world = World::new();
    world.evm.try_by(SimulationReply::Cannot);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let cannot = create(&gateway, send(&from)).await.uuid;
    assert_eq!(outcome(&gateway, &cannot).await.error, None);
    assert_eq!(world.evm.tried.lock().unwrap().len(), 1);

    // Messages are not tried at all.
    world.evm.try_by(passes());
    let message = create(&gateway, raw(&from)).await.uuid;
    assert_eq!(outcome(&gateway, &message).await.error, None);
    // What cannot be built has nothing to try.
    world.evm.broke.store(true, Ordering::SeqCst);
    let broke = create(&gateway, send(&from)).await.uuid;
    let ended = outcome(&gateway, &broke).await.error.unwrap();
    assert_eq!(
        ended.code,
        Some(
            covault_core::schema::wire::error::Code::ExecuteSigningRequestsErrorCode(
                ExecuteCode::InsufficientFunds as i32
            )
        )
    );
    gateway.stop().await;
    assert_eq!(world.evm.tried.lock().unwrap().len(), 1);
    let gateway = world.start().await;
    for uuid in [cannot, message, broke] {
        assert_eq!(details(&gateway, &uuid).await.simulation, b"");
    }
    assert_eq!(rows(&world).await, 0);
}

#[tokio::test]
async fn simulation__should_be_off_where_configuration_says_so() {
    let mut world = World::new();
    world.settings.simulate = false;
    world.evm.try_by(passes());
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let uuid = create(&gateway, send(&from)).await.uuid;
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
    gateway.stop().await;
    assert!(world.evm.tried.lock().unwrap().is_empty());
    assert_eq!(rows(&world).await, 0);
}

#[tokio::test]
async fn simulation__should_be_made_once_however_often_it_is_signed() {
    let world = World::new();
    world.evm.try_by(passes());
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    world.signers.failing.store(3, Ordering::SeqCst);
    let uuid = create(&gateway, send(&from)).await.uuid;
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
    assert_eq!(simulation(&gateway, &uuid).await["success"], true);
    assert_eq!(world.evm.tried.lock().unwrap().len(), 1);

    // It waits for signers; the process ends, and another goes on with it.
    world.signers.failing.store(usize::MAX, Ordering::SeqCst);
    let uuid = create(&gateway, send(&from)).await.uuid;
    let first = simulation(&gateway, &uuid).await;
    assert_eq!(details(&gateway, &uuid).await.status, 1);
    gateway.stop().await;
    world
        .evm
        .try_by(SimulationReply::Says(SimulationOutcome::fails("too late")));
    let gateway = world.start().await;
    world.signers.failing.store(0, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
    assert_eq!(simulation(&gateway, &uuid).await, first);
    assert_eq!(world.evm.tried.lock().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resimulation__should_replace_what_is_shown_while_the_request_waits_to_be_signed() {
    let world = World::new();
    world
        .evm
        .try_by(SimulationReply::Says(SimulationOutcome::fails("no funds")));
    world.signers.silent.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let again = async |caller: &covault_actors::gateway::Caller, uuid: &str| {
        let request = ResimulationRequest {
            signing_request_uuid: uuid.into(),
        };
        let shown = call::<Resimulation>(&gateway, caller, request).await?;
        Ok(shown.simulation)
    };
    let refused = async |uuid: &str| {
        let fault: Fault = again(&admin(), uuid).await.unwrap_err();
        (fault.class().clone(), fault.message().to_owned())
    };
    let pending = create(&gateway, send(&from)).await;
    assert_eq!(simulation(&gateway, &pending.uuid).await["success"], false);
    world.evm.try_by(passes());
    let shown = again(&admin(), &pending.uuid).await.unwrap();
    let read: Value = serde_json::from_slice(&shown).unwrap();
    assert_eq!(read["success"], true);
    assert_eq!(details(&gateway, &pending.uuid).await.simulation, shown);
    assert_eq!(rows(&world).await, 1);

    // What no node says replaces nothing.
    world.evm.try_by(SimulationReply::Cannot);
    assert_eq!(refused(&pending.uuid).await.0, Class::Unavailable);
    assert_eq!(details(&gateway, &pending.uuid).await.simulation, shown);
    let fault = again(&stranger(), &pending.uuid).await.unwrap_err();
    assert_eq!(fault.message(), "Invalid uuid");
    assert_eq!(refused("x").await.1, "Invalid uuid");
    let message = create(&gateway, raw(&from)).await;
    let (class, said) = refused(&message.uuid).await;
    assert_eq!(class, Class::WrongState);
    assert!(
        said.ends_with("a message has no effect on a chain"),
        "{said}"
    );
    world.evm.down.store(true, Ordering::SeqCst);
    let waiting = create(&gateway, send(&from)).await;
    let (class, said) = refused(&waiting.uuid).await;
    assert_eq!(class, Class::WrongState);
    assert!(said.ends_with("is not built yet"), "{said}");
}
