//! Transactions that a node took are followed until they are final, or never will be.

use std::{sync::atomic::Ordering, time::Duration};

use covault_actors::{
    chain_rpc::{ChainKey, Inclusion, SpeedUpPolicy, TransactionSighting},
    gateway::Gateway,
    operations::{GetSigningRequestDetails, GetSigningRequestList, ListStuckRequests},
};
use covault_core::schema::{
    admin::{ListStuckRequestsRequest, StuckRequest},
    wire::{self, create_signing_request_request::Type as Kind, transaction_state::Status},
};

use crate::{
    chain_double::FINAL,
    rebroadcast::{noted, pass, sent},
    world::*,
};

/// Longer than any chain of the tests may take without anybody being told.
const IMPATIENT_MS: u64 = 601_000;
/// After that, nodes that have lost a transaction get it again.
const RESEND_MS: u64 = 61_000;

fn mined(block: u64, success: bool) -> TransactionSighting {
    TransactionSighting::Mined(Inclusion { block, success })
}

fn sights(world: &World, sighting: TransactionSighting) {
    *world.evm.sighting.lock().unwrap() = Some(sighting);
}

/// The state of a request's transaction, as its details show it.
async fn state(gateway: &Gateway, uuid: &str) -> Option<wire::TransactionState> {
    let asked = wire::GetSigningRequestDetailsRequest { uuid: uuid.into() };
    let details = call::<GetSigningRequestDetails>(gateway, &admin(), asked).await;
    details.unwrap().signing_request.unwrap().transaction_state
}

pub async fn until_status(gateway: &Gateway, uuid: &str, status: Status) -> wire::TransactionState {
    let search = async {
        loop {
            match state(gateway, uuid).await {
                Some(state) if state.status() == status => return state,
                _ => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(120), search).await;
    found.unwrap_or_else(|_| panic!("never {status:?}"))
}

pub async fn until(so: impl AsyncFn() -> bool) {
    for _ in 0..60_000 {
        if so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("it never comes");
}

pub async fn stuck(gateway: &Gateway) -> Vec<StuckRequest> {
    let asked = ListStuckRequestsRequest {};
    let listed = call::<ListStuckRequests>(gateway, &admin(), asked).await;
    listed.unwrap().requests
}

/// A world whose EVM chain takes its time, and the wallet in it.
async fn world() -> (World, Gateway, String) {
    begin(World::new()).await
}

async fn begin(world: World) -> (World, Gateway, String) {
    sights(&world, TransactionSighting::Waiting);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    (world, gateway, address)
}

/// A request that succeeded.
async fn succeeded(gateway: &Gateway, address: &str) -> String {
    let made = create(gateway, send(address)).await;
    assert_eq!(outcome(gateway, &made.uuid).await.error, None);
    made.uuid
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction__should_be_followed_until_it_is_final() {
    let (world, gateway, address) = world().await;
    let made = create(&gateway, send(&address)).await;
    assert_eq!(made.transaction_state, None);
    outcome(&gateway, &made.uuid).await;
    let pending = until_status(&gateway, &made.uuid, Status::Pending).await;
    assert_eq!((pending.block, pending.success), (None, None));
    assert_eq!(world.followed().await, 1);

    sights(&world, mined(7, true));
    let in_block = until_status(&gateway, &made.uuid, Status::Mined).await;
    assert_eq!((in_block.block, in_block.success), (Some(7), Some(true)));
    // Another block may have it after all.
    sights(&world, mined(8, false));
    until(async || state(&gateway, &made.uuid).await.unwrap().block == Some(8)).await;
    let inclusion = Inclusion {
        block: 8,
        success: false,
    };
    sights(&world, TransactionSighting::Final(inclusion));
    let done = until_status(&gateway, &made.uuid, Status::Final).await;
    assert_eq!((done.block, done.success), (Some(8), Some(false)));
    assert_eq!(world.followed().await, 0);
    assert!(noted(&world, "Final", "block 8, where it failed").await);

    let asked = wire::GetSigningRequestListRequest {
        vault_uuid: made.vault_uuid.unwrap(),
        ..Default::default()
    };
    let listed = call::<GetSigningRequestList>(&gateway, &admin(), asked).await;
    let listed = listed.unwrap().signing_requests;
    assert_eq!(listed[0].transaction_state, Some(done));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction__should_be_followed_on_after_a_restart() {
    let (world, gateway, address) = world().await;
    let uuid = succeeded(&gateway, &address).await;
    sights(&world, mined(7, true));
    until_status(&gateway, &uuid, Status::Mined).await;
    gateway.stop().await;
    let gateway = world.start().await;
    let still = state(&gateway, &uuid).await.unwrap();
    assert_eq!(still.status(), Status::Mined);
    *world.evm.sighting.lock().unwrap() = None;
    until_status(&gateway, &uuid, Status::Final).await;
    assert_eq!(world.followed().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reorganisation__should_be_seen_and_the_transaction_sent_again() {
    let (world, gateway, address) = world().await;
    let uuid = succeeded(&gateway, &address).await;
    sights(&world, mined(7, true));
    until_status(&gateway, &uuid, Status::Mined).await;
    let handed = world.evm.handed.lock().unwrap().len();
    world.evm.forget(0);
    until_status(&gateway, &uuid, Status::Pending).await;
    assert!(noted(&world, "Pending", "no block includes it").await);
    assert_eq!(world.evm.accepted(), 0);
    // No other request of the wallet has to come for that.
    pass(&world, RESEND_MS);
    until(async || world.evm.accepted() == 1).await;
    assert_eq!(
        world.evm.handed.lock().unwrap().len(),
        handed,
        "the same bytes"
    );
    until_status(&gateway, &uuid, Status::Mined).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_back__should_not_keep_nodes_from_what_they_have_lost() {
    const DAY_MS: u64 = 86_400_000;
    let mut world = World::new();
    // So that it is seen that they have lost it.
    world.settings.tracking_most_ms = 5;
    pass(&world, DAY_MS);
    let (world, gateway, address) = begin(world).await;
    let uuid = succeeded(&gateway, &address).await;
    world.evm.forget(0);
    tokio::time::sleep(Duration::from_millis(200)).await;
    world.clock.ahead_ms.fetch_sub(DAY_MS, Ordering::SeqCst);
    until(async || world.evm.accepted() == 1).await;
    until_status(&gateway, &uuid, Status::Pending).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_who_follows__should_lose_nothing_that_is_followed_or_in_doubt() {
    let mut world = World::new();
    let policy = SpeedUpPolicy {
        after_blocks: 1_000,
        most_fee: 1,
    };
    // So that the newest block is asked for.
    world.speed_up = Some((ChainKey::evm(CHAIN), policy));
    let (world, gateway, address) = begin(world).await;
    let followed = succeeded(&gateway, &address).await;
    world.evm.stuck.store(true, Ordering::SeqCst);
    let doubted = create(&gateway, send(&address)).await.uuid;
    until(async || noted(&world, "Delayed", "cannot be reached").await).await;
    world.evm.panicking_heads.store(3, Ordering::SeqCst);
    until(async || world.evm.panicking_heads.load(Ordering::SeqCst) == 0).await;
    world.evm.stuck.store(false, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &doubted).await.error, None);
    let later = succeeded(&gateway, &address).await;
    sights(&world, FINAL);
    for uuid in [followed, doubted, later] {
        until_status(&gateway, &uuid, Status::Final).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_about_one_transaction__should_leave_others_followed() {
    let (world, gateway, address) = world().await;
    let hash = sent(&gateway, send(&address)).await;
    *world.evm.unspeakable.lock().unwrap() = Some(hash);
    let mut others = Vec::new();
    for _ in 0..5 {
        others.push(succeeded(&gateway, &address).await);
    }
    sights(&world, FINAL);
    for uuid in others {
        until_status(&gateway, &uuid, Status::Final).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_lose_all__should_get_them_again_in_order() {
    let (world, gateway, address) = world().await;
    world.evm.in_order.store(true, Ordering::SeqCst);
    let mut hashes = Vec::new();
    for _ in 0..4 {
        hashes.push(sent(&gateway, send(&address)).await);
    }
    world.evm.forget(1);
    pass(&world, RESEND_MS);
    // Some look at nodes that have just lost it: it is only then that time begins to count.
    until(async || {
        pass(&world, 1_000);
        world.evm.accepted() == 4
    })
    .await;
    assert!(hashes.iter().all(|hash| world.evm.has(hash)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_never_comes__should_be_shown_as_that() {
    let (world, gateway, address) = world().await;
    let uuid = succeeded(&gateway, &address).await;
    sights(
        &world,
        TransactionSighting::Replaced(Some("0xother".into())),
    );
    let shown = until_status(&gateway, &uuid, Status::Replaced).await;
    assert_eq!(shown.replaced_by, "0xother");
    sights(&world, TransactionSighting::Expired);
    let uuid = succeeded(&gateway, &address).await;
    until_status(&gateway, &uuid, Status::Dropped).await;
    assert!(noted(&world, "Replaced", "0xother has replaced it").await);
    assert_eq!(world.followed().await, 0);
    let handed = world.evm.handed.lock().unwrap().len();
    pass(&world, RESEND_MS);
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(world.evm.handed.lock().unwrap().len(), handed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_behind__should_not_end_a_transaction() {
    let mut world = World::new();
    // Of the steady clock: what the other one says is no proof that time has passed.
    world.settings.settling_ms = 2_000;
    let (world, gateway, address) = begin(world).await;
    let uuid = succeeded(&gateway, &address).await;
    for end in [
        TransactionSighting::Replaced(None),
        TransactionSighting::Expired,
    ] {
        // They say so for a while, and then another one answers.
        for sighting in [end, TransactionSighting::Waiting] {
            sights(&world, sighting);
            tokio::time::sleep(Duration::from_millis(150)).await;
            pass(&world, IMPATIENT_MS - 10_000);
            let shown = state(&gateway, &uuid).await.unwrap();
            assert_eq!(shown.status(), Status::Pending);
        }
    }
    sights(&world, TransactionSighting::Expired);
    until_status(&gateway, &uuid, Status::Dropped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_with_only_errors_between_them__should_not_end_a_transaction() {
    let mut world = World::new();
    world.settings.settling_ms = 1_000;
    let (world, gateway, address) = begin(world).await;
    let uuid = succeeded(&gateway, &address).await;
    until_status(&gateway, &uuid, Status::Pending).await;
    let replaced = TransactionSighting::Replaced(None);
    sights(&world, replaced.clone());
    world.evm.asked_for(2).await;
    world.evm.down.store(true, Ordering::SeqCst);
    world.evm.asked_for(2).await;
    tokio::time::sleep(Duration::from_millis(2 * world.settings.settling_ms)).await;
    world.evm.down.store(false, Ordering::SeqCst);
    world.evm.asked_for(2).await;
    sights(&world, TransactionSighting::Waiting);
    world.evm.asked_for(2).await;
    let shown = state(&gateway, &uuid).await.unwrap();
    assert_eq!(shown.status(), Status::Pending);
    sights(&world, replaced);
    until_status(&gateway, &uuid, Status::Replaced).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stuck__should_be_listed_with_the_reason() {
    let (world, gateway, address) = world().await;
    let uuid = succeeded(&gateway, &address).await;
    assert_eq!(stuck(&gateway).await, []);
    pass(&world, IMPATIENT_MS);
    until(async || !stuck(&gateway).await.is_empty()).await;
    let listed = stuck(&gateway).await;
    assert_eq!((listed.len(), &listed[0].uuid), (1, &uuid));
    assert_eq!(listed[0].status, "STATUS_SUCCEEDED");
    assert!(
        listed[0].reason.contains("no block includes it"),
        "{listed:?}"
    );
    until(async || {
        let open = gateway.backlog().transactions;
        open.values()
            .any(|open| (open.pending, open.overdue) == (1, 1))
    })
    .await;

    // A request that waits, too.
    world.evm.stuck.store(true, Ordering::SeqCst);
    let waiting = create(&gateway, send(&address)).await;
    until(async || stuck(&gateway).await.len() == 2).await;
    let listed = stuck(&gateway).await;
    assert_eq!(
        (&listed[1].uuid, &*listed[1].status),
        (&waiting.uuid, "STATUS_PENDING")
    );
    assert!(listed[1].reason.contains("cannot be reached"), "{listed:?}");

    // What moves is not stuck.
    world.evm.stuck.store(false, Ordering::SeqCst);
    sights(&world, mined(7, true));
    until(async || stuck(&gateway).await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_transactions__should_be_asked_for_together() {
    let (world, gateway, address) = world().await;
    for _ in 0..30 {
        succeeded(&gateway, &address).await;
    }
    // Those that are due at about the same time go together.
    until(async || world.evm.most_sighted.load(Ordering::SeqCst) >= 15).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_sent__should_not_be_followed() {
    let (world, gateway, address) = world().await;
    let mut asked = request(send(&address));
    asked.broadcast_tx = Some(false);
    let (made, _) = try_create(&gateway, asked, None).await.unwrap();
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    assert_eq!(state(&gateway, &made.uuid).await, None);
    assert_eq!(world.followed().await, 0);
}

/// Longer than a transaction waits before the service looks for a nonce gap before it.
pub const GAP_MS: u64 = 61_000;

/// A payment with a number that the client names.
pub async fn numbered(gateway: &Gateway, address: &str, nonce: i64) -> String {
    let kind = match send(address) {
        Kind::EvmSendNative(payment) => Kind::EvmSendNative(wire::EvmSendNative {
            nonce: Some(nonce),
            ..payment
        }),
        other => panic!("{other:?}"),
    };
    let made = create(gateway, kind).await;
    assert_eq!(outcome(gateway, &made.uuid).await.error, None);
    made.uuid
}

/// The requests of the service's that fill gaps.
pub async fn fillers(gateway: &Gateway, vault: &str) -> Vec<wire::SigningRequest> {
    let asked = wire::GetSigningRequestListRequest {
        vault_uuid: vault.into(),
        ..Default::default()
    };
    let listed = call::<GetSigningRequestList>(gateway, &admin(), asked).await;
    let mut listed = listed.unwrap().signing_requests;
    listed.retain(|request| {
        let notes = request.notes.as_deref().unwrap_or_default();
        notes.contains("no request uses nonce")
    });
    listed
}

/// Long enough for the pump to look again and again.
pub async fn a_while() {
    tokio::time::sleep(Duration::from_millis(250)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gaps__should_be_filled_when_a_transaction_has_waited_behind_them() {
    let (world, gateway, address) = world().await;
    let behind = numbered(&gateway, &address, 2).await;
    let vault = details(&gateway, &behind).await.vault_uuid.unwrap();
    a_while().await;
    assert_eq!(world.evm.nonces(), [2], "it may not be for long");
    pass(&world, GAP_MS);
    until(async || world.evm.nonces() == [0, 2]).await;
    pass(&world, GAP_MS);
    until(async || world.evm.nonces() == [0, 1, 2]).await;
    pass(&world, GAP_MS);
    a_while().await;
    assert_eq!(
        world.evm.handed.lock().unwrap().len(),
        3,
        "one for each number"
    );
    let fillers = fillers(&gateway, &vault).await;
    assert_eq!(fillers.len(), 2);
    for filler in fillers {
        let notes = filler.notes.unwrap();
        assert!(notes.contains(&behind), "{notes}");
        let Some(wire::signing_request::Type::EvmSendNative(moved)) = filler.r#type else {
            panic!("{:?}", filler.r#type);
        };
        assert_eq!((moved.to, moved.value.as_str()), (address.clone(), "0"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gaps__should_be_left_to_requests_that_have_the_number() {
    let (world, gateway, address) = world().await;
    // The client has it, and may send it any time.
    let mut handed_over = request(send(&address));
    handed_over.broadcast_tx = Some(false);
    let made = try_create(&gateway, handed_over, None).await.unwrap().0;
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    succeeded(&gateway, &address).await;
    assert_eq!(world.evm.nonces(), [1]);
    for _ in 0..3 {
        pass(&world, GAP_MS);
        a_while().await;
    }
    assert!(
        fillers(&gateway, &made.vault_uuid.unwrap())
            .await
            .is_empty()
    );
    assert_eq!(world.evm.nonces(), [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gaps__should_get_no_second_filler_after_a_restart() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 3_600_000;
    let (world, gateway, address) = begin(world).await;
    let behind = numbered(&gateway, &address, 1).await;
    let vault = details(&gateway, &behind).await.vault_uuid.unwrap();
    // The first one gets no number yet.
    *world.evm.unanswerable.lock().unwrap() = Some("0".into());
    pass(&world, GAP_MS);
    until(async || fillers(&gateway, &vault).await.len() == 1).await;
    gateway.stop().await;
    let gateway = world.start().await;
    for _ in 0..3 {
        pass(&world, GAP_MS);
        a_while().await;
    }
    assert_eq!(fillers(&gateway, &vault).await.len(), 1);
    *world.evm.unanswerable.lock().unwrap() = None;
    until(async || world.evm.nonces() == [0, 1]).await;
    pass(&world, GAP_MS);
    a_while().await;
    assert_eq!(fillers(&gateway, &vault).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gaps__should_be_tried_again_later_when_filling_them_fails() {
    let (world, gateway, address) = world().await;
    let behind = numbered(&gateway, &address, 1).await;
    let vault = details(&gateway, &behind).await.vault_uuid.unwrap();
    world.evm.refuse.store(true, Ordering::SeqCst);
    pass(&world, GAP_MS);
    until(async || fillers(&gateway, &vault).await.len() == 1).await;
    for _ in 0..3 {
        pass(&world, GAP_MS);
        a_while().await;
    }
    assert_eq!(fillers(&gateway, &vault).await.len(), 1, "not at once");
    // After the second one twice as long passes.
    pass(&world, 600_000);
    until(async || fillers(&gateway, &vault).await.len() == 2).await;
    for _ in 0..4 {
        pass(&world, 180_000);
        a_while().await;
    }
    assert_eq!(fillers(&gateway, &vault).await.len(), 2);
    world.evm.refuse.store(false, Ordering::SeqCst);
    pass(&world, 600_000);
    until(async || world.evm.nonces() == [0, 1]).await;
    assert_eq!(fillers(&gateway, &vault).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gaps__should_not_be_seen_where_a_block_has_the_number() {
    // By a transaction that was made elsewhere.
    let world = World::new();
    world.evm.before(1);
    world.evm.used.store(1, Ordering::SeqCst);
    let (world, gateway, address) = begin(world).await;
    let behind = numbered(&gateway, &address, 1).await;
    let vault = details(&gateway, &behind).await.vault_uuid.unwrap();
    for _ in 0..3 {
        pass(&world, GAP_MS);
        a_while().await;
    }
    assert!(fillers(&gateway, &vault).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_a_node_does_not_show_for_a_moment__should_be_no_reorganisation() {
    let mut world = World::new();
    // Ten of these pass before it counts.
    world.settings.tracking_first_ms = 3_000;
    let (world, gateway, address) = begin(world).await;
    let uuid = succeeded(&gateway, &address).await;
    sights(&world, mined(7, true));
    until_status(&gateway, &uuid, Status::Mined).await;
    for sighting in [TransactionSighting::Waiting, TransactionSighting::Missing] {
        sights(&world, sighting);
        world.evm.asked_for(3).await;
        let shown = state(&gateway, &uuid).await.unwrap();
        assert_eq!((shown.status(), shown.block), (Status::Mined, Some(7)));
        sights(&world, mined(7, true));
        world.evm.asked_for(2).await;
    }
    sights(&world, FINAL);
    until_status(&gateway, &uuid, Status::Final).await;
    assert!(!noted(&world, "Pending", "no block includes it").await);
}

/// Longer than any chain of the tests may take to make a block final.
pub const NOT_FINAL_MS: u64 = 21_601_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_never_becomes_final__should_be_listed_however_often_it_changes() {
    let (world, gateway, address) = world().await;
    let uuid = succeeded(&gateway, &address).await;
    for block in 7..10 {
        sights(&world, mined(block, true));
        until(async || state(&gateway, &uuid).await.unwrap().block == Some(block)).await;
        assert_eq!(stuck(&gateway).await, []);
        pass(&world, NOT_FINAL_MS / 4);
    }
    // The node that says so names another one each time: time does not begin anew.
    pass(&world, NOT_FINAL_MS / 4 + 4);
    sights(&world, mined(10, true));
    until(async || !stuck(&gateway).await.is_empty()).await;
    let listed = stuck(&gateway).await;
    assert!(
        listed[0].reason.contains("does not become final"),
        "{listed:?}"
    );
    for (block, is_noted) in [(7, true), (8, false), (9, false), (10, false)] {
        assert_eq!(
            noted(&world, "Mined", &format!("block {block}")).await,
            is_noted
        );
    }
    sights(&world, FINAL);
    until_status(&gateway, &uuid, Status::Final).await;
    assert_eq!(stuck(&gateway).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nodes_say_nothing_about__should_be_listed() {
    let (world, gateway, address) = world().await;
    let uuid = succeeded(&gateway, &address).await;
    sights(&world, mined(7, true));
    until_status(&gateway, &uuid, Status::Mined).await;
    world.evm.down.store(true, Ordering::SeqCst);
    pass(&world, NOT_FINAL_MS);
    until(async || !stuck(&gateway).await.is_empty()).await;
    let listed = stuck(&gateway).await;
    assert!(listed[0].reason.contains("disagree"), "{listed:?}");
    world.evm.down.store(false, Ordering::SeqCst);
    sights(&world, FINAL);
    until_status(&gateway, &uuid, Status::Final).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_block_takes__should_be_sent_again_although_a_node_says_to_have_it() {
    let (world, gateway, address) = world().await;
    let uuid = succeeded(&gateway, &address).await;
    let hash = details(&gateway, &uuid).await.tx_hash;
    until_status(&gateway, &uuid, Status::Pending).await;
    assert!(world.evm.has(&hash));
    let broadcasts = || world.evm.sends.load(Ordering::SeqCst);
    let before = broadcasts();
    pass(&world, RESEND_MS);
    a_while().await;
    assert_eq!(broadcasts(), before, "it may take its time");
    pass(&world, IMPATIENT_MS);
    until(async || broadcasts() == before + 1).await;
    a_while().await;
    assert_eq!(broadcasts(), before + 1, "once a minute");
    pass(&world, RESEND_MS);
    until(async || broadcasts() == before + 2).await;
}
