//! Requests with several Solana transactions of which the chain takes some.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_actors::{chain_rpc::ChainEndpoints, chain_rpc::ChainKey, gateway::Gateway};
use covault_core::{
    port::Clock as _,
    schema::wire::{
        self, NetworkType, create_signing_request_request::Type as Kind,
        signing_request::Status as RequestStatus, transaction_state::Status,
    },
};
use serde_json::{Value, json};

use crate::{
    evm_node::{EvmTestNode, connect_to},
    rebroadcast::{noted, pass},
    solana_node::{JsonRpcReply, base58, healthy, key, value},
    tracker::{until, until_status},
    world::*,
};

/// Longer than a blockhash is good for.
const EXPIRED_MS: u64 = 400_000;

/// A chain whose blocks take what pays an odd number of lamports, and the others when it takes all.
#[derive(Default)]
struct Chain {
    takes_all: AtomicBool,
    /// Its first transactions fail in their blocks.
    fails: AtomicBool,
    /// The blockhash of the tests is over.
    over: AtomicBool,
    /// What it has, and whether it failed, by signature.
    taken: Mutex<BTreeMap<String, bool>>,
}

impl Chain {
    async fn start(self: &Arc<Self>, world: &World) -> EvmTestNode {
        let (chain, clock) = (Arc::clone(self), Arc::clone(&world.clock));
        EvmTestNode::start(move |method, params| match method {
            "sendTransaction" => chain.take(&params[0]),
            "getSignatureStatuses" => {
                let taken = chain.taken.lock().unwrap();
                let status = |signature: &Value| match taken.get(signature.as_str().unwrap()) {
                    None => Value::Null,
                    Some(failed) => {
                        let error = failed.then(|| json!({"InstructionError": [0, "X"]}));
                        json!({"slot": 1, "err": error, "confirmationStatus": "finalized"})
                    }
                };
                value(params[0].as_array().unwrap().iter().map(status).collect())
            }
            "isBlockhashValid" => value(json!(!chain.over.load(Ordering::SeqCst))),
            "getBlockTime" => Ok(json!(clock.now_ms() / 1_000)),
            _ => healthy(method, params),
        })
        .await
    }

    fn take(&self, transaction: &Value) -> JsonRpcReply {
        let no = |words: &str| Err((-32002, format!("Transaction simulation failed: {words}")));
        let bytes = STANDARD.decode(transaction.as_str().unwrap()).unwrap();
        let signature = base58(&bytes[1..65]);
        let mut taken = self.taken.lock().unwrap();
        if taken.contains_key(&signature) {
            return no("This transaction has already been processed");
        }
        if self.over.load(Ordering::SeqCst) {
            return no("Blockhash not found");
        }
        let odd = bytes[bytes.len() - 8] % 2 == 1;
        if !odd && !self.takes_all.load(Ordering::SeqCst) {
            return no("Error processing Instruction 0: custom program error: 0x1");
        }
        taken.insert(signature.clone(), self.fails.load(Ordering::SeqCst));
        Ok(json!(signature))
    }
}

/// A transfer of so many lamports.
fn transfer(from: &str, lamports: u8) -> String {
    let mut bytes = vec![1];
    bytes.extend([0; 64]);
    bytes.extend([1, 0, 1, 3]);
    bytes.extend(bs58::decode(from).into_vec().unwrap());
    bytes.extend(key(2));
    bytes.extend([0; 32]);
    bytes.extend(key(7));
    bytes.extend([1, 2, 2, 0, 1, 12, 2, 0, 0, 0, lamports, 0, 0, 0, 0, 0, 0, 0]);
    STANDARD.encode(bytes)
}

/// A wallet on a chain, and a request that pays these amounts.
async fn asked(
    sonic: bool,
    chain: &Arc<Chain>,
    lamports: &[u8],
) -> (World, Gateway, wire::SigningRequest) {
    let world = World::new();
    let node = chain.start(&world).await;
    let which = if sonic {
        ChainKey::SONIC
    } else {
        ChainKey::SOLANA
    };
    let client = connect_to(which, ChainEndpoints::new(vec![node.url]));
    let chains = world.chains().with(which, client);
    let gateway = world.start_with(Arc::clone(&world.store), chains).await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, NetworkType::Solana).await.address;
    let custom = wire::SolanaSendCustom {
        tx_base64: lamports.iter().map(|one| transfer(&from, *one)).collect(),
        from,
        chain_id: if sonic { 0 } else { 101 },
    };
    let kind = if sonic {
        Kind::SonicSvmSendCustom(custom)
    } else {
        Kind::SolanaSendCustom(custom)
    };
    let made = create(&gateway, kind).await;
    (world, gateway, made)
}

/// What execute says of a request that is pending.
async fn says(gateway: &Gateway, uuid: &str, words: &str) {
    until(async || match try_outcome(gateway, &admin(), uuid).await {
        Err(fault) => fault.message().contains(words),
        Ok(outcome) => panic!("{outcome:?}"),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_which_a_part_was_paid__should_never_fail_and_should_say_which_part() {
    for sonic in [false, true] {
        let chain = Arc::<Chain>::default();
        let (world, gateway, made) = asked(sonic, &chain, &[1, 2, 3]).await;
        says(&gateway, &made.uuid, "transaction 2 of 3 was refused: ").await;
        // It may come yet, and what comes after it waits.
        assert_eq!(chain.taken.lock().unwrap().len(), 1);
        chain.over.store(true, Ordering::SeqCst);
        pass(&world, EXPIRED_MS);

        let done = outcome(&gateway, &made.uuid).await;
        assert_eq!(done.error, None);
        let hashes: Vec<&str> = done.tx_hash.split(',').collect();
        assert_eq!(hashes.len(), 3);
        assert_eq!(done.signed_transaction.split(',').count(), 3);
        let state = until_status(&gateway, &made.uuid, Status::Partial).await;
        assert_eq!((state.block, state.success), (Some(1), Some(false)));
        let parts: Vec<_> = state
            .parts
            .iter()
            .map(|part| (part.hash.as_str(), part.status(), part.block, part.success))
            .collect();
        assert_eq!(
            parts,
            [
                (hashes[0], Status::Final, Some(1), Some(true)),
                (hashes[1], Status::Dropped, None, None),
                (hashes[2], Status::Dropped, None, None),
            ]
        );
        let shown = details(&gateway, &made.uuid).await;
        assert_eq!(shown.status(), RequestStatus::Succeeded);
        assert_eq!(shown.tx_hash, done.tx_hash);
        assert_eq!(shown.signed_transaction, done.signed_transaction);
        assert_eq!(shown.failed_reason, "");
        for said in [
            format!("{}: block 1", hashes[0]),
            format!("{}: no block includes it, and none ever will", hashes[1]),
        ] {
            assert!(noted(&world, "Partial", &said).await, "{said}");
        }
        assert_eq!(world.followed().await, 0);
        assert_eq!(chain.taken.lock().unwrap().len(), 1, "paid once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_which_a_part_was_paid__should_go_on_when_the_rest_can_be() {
    let chain = Arc::<Chain>::default();
    let (world, gateway, made) = asked(false, &chain, &[1, 2, 3]).await;
    says(&gateway, &made.uuid, "transaction 2 of 3 was refused: ").await;
    // The wallet received what it was missing.
    chain.takes_all.store(true, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    let state = until_status(&gateway, &made.uuid, Status::Final).await;
    assert_eq!((state.success, state.parts.len()), (Some(true), 0));
    assert_eq!(chain.taken.lock().unwrap().len(), 3);
    assert_eq!(world.followed().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_first_part_failed_in_its_block__should_say_so_of_that_part() {
    let chain = Arc::<Chain>::default();
    chain.fails.store(true, Ordering::SeqCst);
    let (world, gateway, made) = asked(false, &chain, &[1, 3]).await;
    says(&gateway, &made.uuid, "transaction 1 of 2 failed: ").await;
    chain.over.store(true, Ordering::SeqCst);
    pass(&world, EXPIRED_MS);
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    let state = until_status(&gateway, &made.uuid, Status::Partial).await;
    let parts = state.parts.iter().map(|part| (part.status(), part.success));
    assert_eq!(
        parts.collect::<Vec<_>>(),
        [(Status::Final, Some(false)), (Status::Dropped, None)]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_which_nothing_was_paid__should_fail() {
    let chain = Arc::<Chain>::default();
    let (_world, gateway, made) = asked(false, &chain, &[2, 3]).await;
    let reason = outcome(&gateway, &made.uuid).await.error.unwrap().message;
    assert!(
        reason.starts_with("transaction 1 of 2 was refused: ")
            && reason.ends_with("; the later ones were not sent"),
        "{reason}"
    );
    assert!(chain.taken.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_was_paid__should_be_known_after_a_restart() {
    let chain = Arc::<Chain>::default();
    let (world, gateway, made) = asked(false, &chain, &[1, 2]).await;
    says(&gateway, &made.uuid, "transaction 2 of 2 was refused: ").await;
    gateway.stop().await;
    chain.over.store(true, Ordering::SeqCst);
    pass(&world, EXPIRED_MS);
    let node = chain.start(&world).await;
    let client = connect_to(ChainKey::SOLANA, ChainEndpoints::new(vec![node.url]));
    let chains = world.chains().with(ChainKey::SOLANA, client);
    let gateway = world.start_with(Arc::clone(&world.store), chains).await;
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    let state = until_status(&gateway, &made.uuid, Status::Partial).await;
    assert_eq!(state.parts.len(), 2);
    assert_eq!(chain.taken.lock().unwrap().len(), 1, "paid once");
}
