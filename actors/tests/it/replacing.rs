//! Transactions that are replaced by request, and by the policy of their chain: of all that stand for one place in the
//! chain one comes, nothing is paid twice, and every hash is remembered.

use std::{sync::atomic::Ordering, time::Duration};

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::Decodable2718 as _;
use covault_actors::{
    chain_rpc::{ChainKey, Inclusion, SpeedUpPolicy, TransactionSighting},
    gateway::Gateway,
    operations::{GetSigningRequestList, RejectSigningRequest, ReplaceTransaction, UpdateWallet},
    store::{KeySpace, Scan},
};
use covault_core::{
    fault::{Class, Fault},
    schema::wire::{
        self, NetworkType, create_signing_request_request::Type as Kind,
        replace_transaction_request::Action, signing_request, transaction_state::Status,
    },
};

use crate::{
    rebroadcast::{noted, pass, sent},
    reservations::pay,
    tracker::{numbered, until, until_status},
    world::*,
};

const MINED: TransactionSighting = TransactionSighting::Mined(Inclusion {
    block: 8,
    success: true,
});
const FINAL: TransactionSighting = TransactionSighting::Final(Inclusion {
    block: 8,
    success: true,
});
/// The fee of a transfer at the double's prices, and of the second replacement of it.
const FEE: u128 = 21_000 * 2_000_001_000;

/// A chain that takes its time and lets transactions be replaced.
async fn world() -> (World, Gateway, String) {
    begin(World::new()).await
}

async fn begin(world: World) -> (World, Gateway, String) {
    *world.evm.sighting.lock().unwrap() = Some(TransactionSighting::Waiting);
    world.evm.replaceable.store(true, Ordering::SeqCst);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    (world, gateway, address)
}

fn asked(uuid: &str, action: Action) -> wire::ReplaceTransactionRequest {
    wire::ReplaceTransactionRequest {
        uuid: uuid.into(),
        action: action.into(),
        most_fee: None,
        notes: None,
    }
}

async fn try_replace(gateway: &Gateway, uuid: &str, action: Action) -> Result<String, Fault> {
    let made = call::<ReplaceTransaction>(gateway, &admin(), asked(uuid, action)).await?;
    Ok(made.signing_request.unwrap().uuid)
}

/// The uuid of a replacement that was sent, and its hash.
async fn replaced(gateway: &Gateway, uuid: &str, action: Action) -> (String, String) {
    let uuid = try_replace(gateway, uuid, action).await.unwrap();
    let outcome = outcome(gateway, &uuid).await;
    assert_eq!(outcome.error, None);
    (uuid, outcome.tx_hash)
}

/// The uuid and the hash of a payment that was sent.
async fn paid(gateway: &Gateway, address: &str) -> (String, String) {
    let made = create(gateway, send(address)).await;
    let outcome = outcome(gateway, &made.uuid).await;
    assert_eq!(outcome.error, None);
    (made.uuid, outcome.tx_hash)
}

/// The transactions that the chain was handed, in the order of their prices.
fn handed(world: &World) -> Vec<TxEnvelope> {
    let handed = world.evm.handed.lock().unwrap();
    let decode = |raw: &String| {
        let bytes = hex::decode(&raw[2..]).unwrap();
        TxEnvelope::decode_2718(&mut bytes.as_slice()).unwrap()
    };
    let mut all: Vec<_> = handed.iter().map(decode).collect();
    all.sort_by_key(TxEnvelope::max_fee_per_gas);
    all
}

fn refused(made: Result<String, Fault>, class: &Class, words: &str) {
    let fault = made.unwrap_err();
    assert_eq!(fault.class(), class, "{fault:?}");
    assert!(fault.message().contains(words), "{fault:?}");
}

/// A block has one transaction, and each other one was replaced by it, for good.
fn settles(world: &World, hash: &str) {
    for transaction in handed(world) {
        let other = transaction.tx_hash().to_string();
        let fate = if other == hash {
            FINAL
        } else {
            TransactionSighting::Replaced(Some(hash.to_owned()))
        };
        world.evm.says(&other, fate);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement__should_be_an_ordinary_request_with_the_same_nonce_at_a_higher_price() {
    let (world, gateway, address) = world().await;
    let (first, first_hash) = paid(&gateway, &address).await;
    let mut wanted = asked(&first, Action::SpeedUp);
    wanted.notes = Some("hurry".into());
    let caller = admin();
    let keyed = async |wanted| {
        let made = call_with_key::<ReplaceTransaction>(&gateway, &caller, wanted, Some("k"));
        made.await.unwrap()
    };
    let (made, _) = keyed(wanted.clone()).await;
    let made = made.signing_request.unwrap();
    assert_eq!(made.replaces_uuid, first);
    assert_eq!(made.notes.as_deref(), Some("hurry"));
    // The key gives the same answer, and no other request.
    let (again, answer) = keyed(wanted).await;
    assert!(answer.replayed);
    assert_eq!(again.signing_request.as_ref(), Some(&made));
    let outcome = outcome(&gateway, &made.uuid).await;
    assert_eq!(outcome.error, None);

    let all = handed(&world);
    assert_eq!(all.len(), 2);
    let eighth = |price: u128| price + price.div_ceil(8);
    assert!(all[1].max_fee_per_gas() >= eighth(all[0].max_fee_per_gas()));
    let tip = |one: &TxEnvelope| one.max_priority_fee_per_gas().unwrap();
    assert!(tip(&all[1]) >= eighth(tip(&all[0])));
    let rest = |one: &TxEnvelope| (one.nonce(), one.to(), one.value(), one.gas_limit());
    assert_eq!(rest(&all[1]), rest(&all[0]));
    assert!(world.evm.has(&outcome.tx_hash) && !world.evm.has(&first_hash));

    // A second one outbids the first, whichever of the two is named.
    let (third, third_hash) = replaced(&gateway, &first, Action::SpeedUp).await;
    let all = handed(&world);
    assert!(all[2].max_fee_per_gas() >= eighth(all[1].max_fee_per_gas()));
    assert!(world.evm.has(&third_hash));
    assert_eq!(
        details(&gateway, &first).await.replaced_by_uuids,
        [made.uuid.clone(), third.clone()]
    );
    assert_eq!(
        details(&gateway, &made.uuid).await.replaced_by_uuids,
        std::slice::from_ref(&third)
    );
    let asked = wire::GetSigningRequestListRequest {
        vault_uuid: made.vault_uuid.unwrap(),
        ..Default::default()
    };
    let listed = call::<GetSigningRequestList>(&gateway, &admin(), asked).await;
    for listed in listed.unwrap().signing_requests {
        let shown = wire::SigningRequest {
            signed_transaction: String::new(),
            ..details(&gateway, &listed.uuid).await
        };
        assert_eq!(listed, shown);
    }
    assert!(noted(&world, "replaces", &first).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancellation__should_move_nothing() {
    let (world, gateway, address) = world().await;
    let (first, _) = paid(&gateway, &address).await;
    let (cancel, hash) = replaced(&gateway, &first, Action::Cancel).await;
    let shown = details(&gateway, &cancel).await;
    let Some(signing_request::Type::EvmSendNative(shown)) = shown.r#type else {
        panic!("{shown:?}")
    };
    assert_eq!((shown.to, shown.value), (address, "0".into()));
    assert!(world.evm.has(&hash));
    assert_eq!(world.evm.nonces(), [0]);
    // To speed up what was cancelled would take the cancellation back.
    let again = try_replace(&gateway, &first, Action::SpeedUp).await;
    refused(
        again,
        &Class::WrongState,
        &format!("request {cancel} cancels it"),
    );
    let (faster, hash) = replaced(&gateway, &cancel, Action::SpeedUp).await;
    assert_eq!(handed(&world)[2].value().to_string(), "0");
    assert!(world.evm.has(&hash));
    let again = try_replace(&gateway, &first, Action::SpeedUp).await;
    refused(
        again,
        &Class::WrongState,
        &format!("request {faster} cancels it"),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_hash__should_be_remembered_whichever_is_mined() {
    for original in [false, true] {
        let (world, gateway, address) = world().await;
        let (first, first_hash) = paid(&gateway, &address).await;
        let (second, second_hash) = replaced(&gateway, &first, Action::SpeedUp).await;
        let (third, third_hash) = replaced(&gateway, &first, Action::Cancel).await;
        let winner = if original { &first_hash } else { &second_hash };
        settles(&world, winner);
        for (uuid, hash) in [
            (first, first_hash.clone()),
            (second, second_hash.clone()),
            (third, third_hash),
        ] {
            if hash == *winner {
                until_status(&gateway, &uuid, Status::Final).await;
            } else {
                let shown = until_status(&gateway, &uuid, Status::Replaced).await;
                assert_eq!(&shown.replaced_by, winner);
            }
            let shown = details(&gateway, &uuid).await;
            assert_eq!(shown.tx_hash, hash);
        }
        assert_eq!(world.followed().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hash_that_took_a_place__should_be_found_where_nodes_do_not_say_it() {
    let (world, gateway, address) = world().await;
    let (first, first_hash) = paid(&gateway, &address).await;
    let (second, second_hash) = replaced(&gateway, &first, Action::SpeedUp).await;
    let (third, third_hash) = replaced(&gateway, &first, Action::SpeedUp).await;
    world.evm.says(&second_hash, MINED);
    until_status(&gateway, &second, Status::Mined).await;
    world
        .evm
        .says(&first_hash, TransactionSighting::Replaced(None));
    let shown = until_status(&gateway, &first, Status::Replaced).await;
    assert_eq!(shown.replaced_by, second_hash);
    // Not that of one which no block has.
    world
        .evm
        .says(&third_hash, TransactionSighting::Replaced(None));
    let shown = until_status(&gateway, &third, Status::Replaced).await;
    assert_eq!(shown.replaced_by, second_hash);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_that_a_block_has__should_not_be_replaced_in_the_name_of_the_first() {
    let (world, gateway, address) = world().await;
    let (first, _) = paid(&gateway, &address).await;
    let (second, hash) = replaced(&gateway, &first, Action::SpeedUp).await;
    world.evm.says(&hash, MINED);
    until_status(&gateway, &second, Status::Mined).await;
    for action in [Action::SpeedUp, Action::Cancel] {
        let again = try_replace(&gateway, &first, action).await;
        let words = format!("request {second}: block 8 has its transaction");
        refused(again, &Class::WrongState, &words);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_has_tried_itself_in_vain__should_be_in_nobody_s_way() {
    let (world, gateway, address) = world().await;
    let (first, _) = paid(&gateway, &address).await;
    world.evm.refuse.store(true, Ordering::SeqCst);
    let mut own = send_native(&address);
    (own.nonce, own.value) = (Some(0), "6".into());
    let own = create(&gateway, Kind::EvmSendNative(own)).await;
    assert!(outcome(&gateway, &own.uuid).await.error.is_some());
    world.evm.refuse.store(false, Ordering::SeqCst);
    replaced(&gateway, &first, Action::SpeedUp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_replaced__should_be_refused_with_the_reason() {
    let (world, gateway, address) = world().await;
    let invalid = &Class::Invalid;
    let wrong = &Class::WrongState;
    let speed_up = async |uuid: &str| try_replace(&gateway, uuid, Action::SpeedUp).await;
    refused(speed_up("x").await, invalid, "Invalid uuid");
    let unknown = "01890000-0000-7000-8000-000000000000";
    refused(speed_up(unknown).await, invalid, "Invalid uuid");
    let (first, first_hash) = paid(&gateway, &address).await;
    let foreign = asked(&first, Action::SpeedUp);
    let foreign = call::<ReplaceTransaction>(&gateway, &stranger(), foreign).await;
    refused(foreign.map(|_| String::new()), invalid, "Invalid uuid");
    let unspecified = try_replace(&gateway, &first, Action::Unspecified).await;
    refused(unspecified, invalid, "action: must be ACTION_SPEED_UP");
    for fee in ["", "1.5", "-1", "0x5", &"9".repeat(40)] {
        let mut wanted = asked(&first, Action::SpeedUp);
        wanted.most_fee = Some(fee.to_owned());
        let made = call::<ReplaceTransaction>(&gateway, &admin(), wanted).await;
        refused(made.map(|_| String::new()), invalid, "mostFee: ");
    }
    let message = create(&gateway, raw(&address)).await;
    outcome(&gateway, &message.uuid).await;
    refused(
        speed_up(&message.uuid).await,
        invalid,
        "uuid: the request signs a message",
    );
    let mut handed_over = request(send(&address));
    handed_over.broadcast_tx = Some(false);
    let handed_over = created(try_create(&gateway, handed_over, None).await.unwrap());
    outcome(&gateway, &handed_over.uuid).await;
    refused(
        speed_up(&handed_over.uuid).await,
        wrong,
        "uuid: its transaction was handed over",
    );

    // What is not signed yet is rejected instead.
    world.evm.down.store(true, Ordering::SeqCst);
    let waits = create(&gateway, send(&address)).await;
    refused(
        speed_up(&waits.uuid).await,
        wrong,
        "rejectSigningRequest ends it",
    );
    // There is one replacement at a time that is not signed yet.
    let second = speed_up(&first).await.unwrap();
    refused(
        speed_up(&first).await,
        wrong,
        &format!("request {second} already replaces it"),
    );
    let reject = |uuid: &str| wire::RejectSigningRequestRequest {
        uuid: uuid.into(),
        rejection: None,
    };
    for uuid in [&waits.uuid, &second] {
        let rejected = call::<RejectSigningRequest>(&gateway, &admin(), reject(uuid)).await;
        assert_eq!(rejected.unwrap().error, None);
    }
    refused(speed_up(&second).await, wrong, "uuid: it has failed");
    world.evm.down.store(false, Ordering::SeqCst);
    // One that failed is in nobody's way, and replaces nothing.
    let (third, _) = replaced(&gateway, &first, Action::SpeedUp).await;

    // A client has given the nonce to another request by itself.
    let mut own = send_native(&address);
    (own.nonce, own.value) = (Some(0), "6".into());
    let own = create(&gateway, Kind::EvmSendNative(own)).await;
    assert_eq!(outcome(&gateway, &own.uuid).await.error, None);
    refused(
        speed_up(&first).await,
        wrong,
        &format!("request {} was made later", own.uuid),
    );
    replaced(&gateway, &own.uuid, Action::SpeedUp).await;

    for (fate, status, words) in [
        (MINED, Status::Mined, "block 8 has its transaction"),
        (FINAL, Status::Final, "its transaction is final, in block 8"),
    ] {
        world.evm.says(&first_hash, fate);
        until_status(&gateway, &first, status).await;
        refused(speed_up(&first).await, wrong, words);
    }
    *world.evm.sighting.lock().unwrap() = Some(TransactionSighting::Replaced(Some(first_hash)));
    until_status(&gateway, &third, Status::Replaced).await;
    refused(
        speed_up(&third).await,
        wrong,
        "has replaced its transaction and is final",
    );

    let (last, _) = {
        *world.evm.sighting.lock().unwrap() = Some(TransactionSighting::Waiting);
        paid(&gateway, &address).await
    };
    let archive = wire::UpdateWalletRequest {
        address,
        name: String::new(),
        status: "STATUS_ARCHIVED".into(),
    };
    call::<UpdateWallet>(&gateway, &admin(), archive)
        .await
        .unwrap();
    refused(speed_up(&last).await, wrong, "uuid: the wallet is archived");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_networks_that_replace_none__should_be_refused() {
    let (world, gateway, _) = world().await;
    let vault = vault(&gateway, "other").await;
    *world.solana.sighting.lock().unwrap() = Some(TransactionSighting::Waiting);
    let from = wallet(&gateway, vault, NetworkType::Solana).await.address;
    let payment = Kind::SolanaSendNative(wire::SolanaSendNative {
        chain_id: 101,
        from: from.clone(),
        to: "CxvTXCepdDTH4PXUwU2Pf3FBi87L7VwXtzsgeAm1xVsS".into(),
        value: "5".into(),
        ..Default::default()
    });
    let made = create(&gateway, payment).await;
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
    let refusal = try_replace(&gateway, &made.uuid, Action::SpeedUp).await;
    refused(
        refusal,
        &Class::Invalid,
        "uuid: transactions of Solana cannot be replaced",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_that_costs_too_much__should_fail_before_it_is_signed() {
    let (world, gateway, address) = world().await;
    let (first, _) = paid(&gateway, &address).await;
    let signed = world.signers.requests();
    let mut wanted = asked(&first, Action::SpeedUp);
    wanted.most_fee = Some(FEE.to_string());
    let made = call::<ReplaceTransaction>(&gateway, &admin(), wanted.clone()).await;
    let made = made.unwrap().signing_request.unwrap();
    let error = outcome(&gateway, &made.uuid).await.error.unwrap();
    let needed = handed(&world)[0].max_fee_per_gas() * 9 / 8 * 21_000;
    assert!(
        error
            .message
            .contains(&format!("the allowed maximum of {FEE} ")),
        "{error:?}"
    );
    let price = error.message.split("a fee of ").nth(1).unwrap();
    let price: u128 = price.split(',').next().unwrap().parse().unwrap();
    assert!(
        (needed..needed + 100_000).contains(&price),
        "{price} {needed}"
    );
    assert_eq!(world.signers.requests(), signed, "nothing was signed");
    // Just enough is enough.
    wanted.most_fee = Some(price.to_string());
    let made = call::<ReplaceTransaction>(&gateway, &admin(), wanted).await;
    let made = made.unwrap().signing_request.unwrap();
    assert_eq!(outcome(&gateway, &made.uuid).await.error, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replacements_at_once__should_be_one() {
    let (world, gateway, address) = world().await;
    let (first, _) = paid(&gateway, &address).await;
    world.evm.down.store(true, Ordering::SeqCst);
    let all = (0..8).map(|_| try_replace(&gateway, &first, Action::SpeedUp));
    let all = futures::future::join_all(all).await;
    let made: Vec<_> = all
        .into_iter()
        .filter_map(|one| {
            one.map_err(|fault| {
                assert_eq!(fault.class(), &Class::WrongState, "{fault:?}");
            })
            .ok()
        })
        .collect();
    assert_eq!(made.len(), 1);
    assert_eq!(details(&gateway, &first).await.replaced_by_uuids, made);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_of_what_was_mined_meanwhile__should_be_void() {
    let (world, gateway, address) = world().await;
    let (first, first_hash) = paid(&gateway, &address).await;
    world.evm.used.store(1, Ordering::SeqCst);
    // The service has not heard of it yet.
    let made = try_replace(&gateway, &first, Action::SpeedUp)
        .await
        .unwrap();
    until(async || handed(&world).len() == 2).await;
    settles(&world, &first_hash);
    let error = outcome(&gateway, &made).await.error.unwrap();
    assert!(error.message.contains(&first_hash), "{error:?}");
    until_status(&gateway, &first, Status::Final).await;
    assert_eq!(world.evm.accepted(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_request_in_doubt__should_end_with_the_hash_that_took_its_place() {
    let (world, gateway, address) = world().await;
    // No node answers, and whether one has it is not known.
    world.evm.stuck.store(true, Ordering::SeqCst);
    let first = create(&gateway, send(&address)).await.uuid;
    until(async || noted(&world, "Delayed", "cannot be reached").await).await;
    let first_hash = handed(&world)[0].tx_hash().to_string();
    // It is replaced before it gets through.
    let second = try_replace(&gateway, &first, Action::Cancel).await.unwrap();
    until(async || handed(&world).len() == 2).await;
    world.evm.stuck.store(false, Ordering::SeqCst);
    let second_outcome = outcome(&gateway, &second).await;
    assert_eq!(second_outcome.error, None);
    let second_hash = second_outcome.tx_hash;
    // What was replaced is not sent again.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(world.evm.has(&second_hash) && !world.evm.has(&first_hash));
    world.evm.says(&second_hash, FINAL);
    world
        .evm
        .says(&first_hash, TransactionSighting::Replaced(None));
    let error = outcome(&gateway, &first).await.error.unwrap();
    assert!(error.message.contains(&second_hash), "{error:?}");
    until_status(&gateway, &second, Status::Final).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_that_failed__should_not_keep_the_first_from_being_sent_again() {
    let (world, gateway, address) = world().await;
    world.evm.stuck.store(true, Ordering::SeqCst);
    let first = create(&gateway, send(&address)).await.uuid;
    until(async || noted(&world, "Delayed", "cannot be reached").await).await;
    let mut wanted = asked(&first, Action::SpeedUp);
    wanted.most_fee = Some("1".into());
    let made = call::<ReplaceTransaction>(&gateway, &admin(), wanted).await;
    let second = made.unwrap().signing_request.unwrap().uuid;
    assert!(outcome(&gateway, &second).await.error.is_some());
    world.evm.stuck.store(false, Ordering::SeqCst);
    let sent = outcome(&gateway, &first).await;
    assert_eq!(sent.error, None);
    assert!(world.evm.has(&sent.tx_hash));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_just_being_sent__should_not_be_replaced_before_a_node_has_answered() {
    let (world, gateway, address) = world().await;
    world.evm.holds.store(true, Ordering::SeqCst);
    let first = create(&gateway, send(&address)).await.uuid;
    until(async || world.evm.sends.load(Ordering::SeqCst) == 1).await;
    let made = try_replace(&gateway, &first, Action::SpeedUp).await;
    refused(made, &Class::WrongState, "it is just being sent; try again");
    world.evm.holds.store(false, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &first).await.error, None);
    replaced(&gateway, &first, Action::SpeedUp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction__should_be_replaced_64_times_at_most() {
    let (world, gateway, address) = world().await;
    let (first, _) = paid(&gateway, &address).await;
    // Those that failed do not count.
    let mut wanted = asked(&first, Action::SpeedUp);
    wanted.most_fee = Some("1".into());
    let made = call::<ReplaceTransaction>(&gateway, &admin(), wanted).await;
    let failed = made.unwrap().signing_request.unwrap().uuid;
    assert!(outcome(&gateway, &failed).await.error.is_some());
    for _ in 0..64 {
        replaced(&gateway, &first, Action::SpeedUp).await;
    }
    let made = try_replace(&gateway, &first, Action::SpeedUp).await;
    refused(made, &Class::WrongState, "was replaced 64 times already");
    assert_eq!(world.evm.accepted(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_that_nodes_forget__the_last_should_be_sent_again() {
    let (world, gateway, address) = world().await;
    let (first, first_hash) = paid(&gateway, &address).await;
    let (_, second_hash) = replaced(&gateway, &first, Action::Cancel).await;
    let behind = sent(&gateway, send(&address)).await;
    world.evm.forget(0);
    until(async || {
        pass(&world, 1_000);
        world.evm.accepted() == 2
    })
    .await;
    assert!(world.evm.has(&second_hash) && world.evm.has(&behind) && !world.evm.has(&first_hash));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart__should_keep_a_replacement_and_what_it_replaces() {
    let (world, gateway, address) = world().await;
    let (first, _) = paid(&gateway, &address).await;
    world.evm.down.store(true, Ordering::SeqCst);
    let second = try_replace(&gateway, &first, Action::SpeedUp)
        .await
        .unwrap();
    gateway.stop().await;
    world.evm.down.store(false, Ordering::SeqCst);
    let gateway = world.start().await;
    let outcome = outcome(&gateway, &second).await;
    assert_eq!(outcome.error, None);
    assert_eq!(details(&gateway, &second).await.replaces_uuid, first);
    settles(&world, &outcome.tx_hash);
    let shown = until_status(&gateway, &first, Status::Replaced).await;
    assert_eq!(shown.replaced_by, outcome.tx_hash);
    until_status(&gateway, &second, Status::Final).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bitcoin_payment__should_be_replaced_unless_another_spends_its_change() {
    let (world, gateway, _) = world().await;
    let vault = vault(&gateway, "other").await;
    let address = wallet(&gateway, vault, NetworkType::Bitcoin).await.address;
    world.bitcoin.lost.store(true, Ordering::SeqCst);
    world.bitcoin.replaces.store(true, Ordering::SeqCst);
    world.bitcoin.fund(&address, 1, 1_000_000);
    let first = create(&gateway, pay(&address, 10_000)).await.uuid;
    assert_eq!(outcome(&gateway, &first).await.error, None);
    let (second, _) = replaced(&gateway, &first, Action::SpeedUp).await;
    assert_eq!(world.bitcoin.accepted(), 1, "in its place");
    // There is nothing but the change.
    let child = create(&gateway, pay(&address, 20_000)).await.uuid;
    assert_eq!(outcome(&gateway, &child).await.error, None);
    for action in [Action::SpeedUp, Action::Cancel] {
        for uuid in [&first, &second] {
            let made = try_replace(&gateway, uuid, action).await;
            let words = format!("request {child} spends what its transaction pays back");
            refused(made, &Class::WrongState, &words);
        }
    }
    replaced(&gateway, &child, Action::SpeedUp).await;
    assert_eq!(world.bitcoin.accepted(), 2);
    assert_eq!(world.bitcoin.conflicts.load(Ordering::SeqCst), 0);
}

/// With a policy: after three blocks, for no more than that fee.
fn speeds_up(world: &mut World, most_fee: u128) {
    let policy = SpeedUpPolicy {
        after_blocks: 3,
        most_fee,
    };
    world.speed_up = Some((ChainKey::evm(CHAIN), policy));
}

fn blocks(world: &World, count: u64) {
    world.evm.head.fetch_add(count, Ordering::SeqCst);
}

/// Whether the service itself has made a request that replaces this one's transaction.
async fn is_by_service(world: &World, uuid: &str) -> bool {
    let trail = Scan::prefix(KeySpace::AuditEntry, &[], 10_000);
    let trail = world.store.scan(&trail).await.unwrap();
    trail.iter().any(|(_, row)| {
        let text = String::from_utf8_lossy(&row.value);
        ["replaces", uuid, "Received", "service"]
            .iter()
            .all(|words| text.contains(words))
    })
}

/// Long enough for the pump to look again and again.
async fn a_while() {
    tokio::time::sleep(Duration::from_millis(250)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy__should_be_off_unless_it_is_set() {
    let (world, gateway, address) = world().await;
    paid(&gateway, &address).await;
    a_while().await;
    blocks(&world, 1_000);
    a_while().await;
    assert_eq!(handed(&world).len(), 1);
    assert_eq!(world.evm.heads.load(Ordering::SeqCst), 0, "nobody asks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy__should_replace_what_waits_for_so_many_blocks_until_the_cap() {
    let mut world = World::new();
    // Enough for two replacements.
    speeds_up(&mut world, FEE * 13 / 10);
    let (world, gateway, address) = begin(world).await;
    let (first, _) = paid(&gateway, &address).await;
    let behind = paid(&gateway, &address).await.0;
    a_while().await;
    blocks(&world, 2);
    a_while().await;
    assert_eq!(handed(&world).len(), 2, "it may wait for three");
    blocks(&world, 1);
    until(async || handed(&world).len() == 3).await;
    a_while().await;
    assert_eq!(handed(&world).len(), 3, "one for each wait");
    let second = details(&gateway, &first).await.replaced_by_uuids;
    assert_eq!(second.len(), 1);
    let shown = details(&gateway, &second[0]).await;
    assert_eq!(shown.replaces_uuid, first);
    let notes = shown.notes.unwrap();
    assert!(
        notes.contains(&first) && notes.contains("3 blocks"),
        "{notes}"
    );
    assert!(is_by_service(&world, &first).await, "the service asked");

    blocks(&world, 3);
    until(async || handed(&world).len() == 4).await;
    a_while().await;
    // The next one would cost too much.
    blocks(&world, 3);
    let third = details(&gateway, &first).await.replaced_by_uuids[1].clone();
    until(async || details(&gateway, &third).await.replaced_by_uuids.len() == 1).await;
    let failed = details(&gateway, &third).await.replaced_by_uuids[0].clone();
    let error = outcome(&gateway, &failed).await.error.unwrap();
    assert!(
        error.message.contains("above the allowed maximum"),
        "{error:?}"
    );
    for _ in 0..3 {
        blocks(&world, 30);
        a_while().await;
    }
    assert_eq!(handed(&world).len(), 4);
    assert_eq!(details(&gateway, &first).await.replaced_by_uuids.len(), 3);
    // What stands behind another number can only wait for it.
    assert_eq!(details(&gateway, &behind).await.replaced_by_uuids.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy__should_let_what_a_client_has_just_made_wait_anew() {
    let mut world = World::new();
    speeds_up(&mut world, FEE * 100);
    let (world, gateway, address) = begin(world).await;
    let (first, _) = paid(&gateway, &address).await;
    a_while().await;
    blocks(&world, 2);
    let (second, _) = replaced(&gateway, &first, Action::SpeedUp).await;
    a_while().await;
    // The first one has waited for three, and is not what stands for its place any more.
    blocks(&world, 1);
    a_while().await;
    assert_eq!(handed(&world).len(), 2);
    blocks(&world, 2);
    until(async || handed(&world).len() == 3).await;
    assert_eq!(details(&gateway, &second).await.replaced_by_uuids.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy__should_make_no_second_replacement_for_one_wait_after_a_restart() {
    let mut world = World::new();
    speeds_up(&mut world, FEE * 100);
    let (world, gateway, address) = begin(world).await;
    let (first, _) = paid(&gateway, &address).await;
    a_while().await;
    blocks(&world, 2);
    a_while().await;
    // The blocks before a restart count.
    gateway.stop().await;
    let gateway = world.start().await;
    blocks(&world, 1);
    until(async || handed(&world).len() == 2).await;
    let mut running = gateway;
    for _ in 0..2 {
        running.stop().await;
        running = world.start().await;
        a_while().await;
        assert_eq!(details(&running, &first).await.replaced_by_uuids.len(), 1);
    }
    assert_eq!(handed(&world).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy__should_try_again_later_what_failed_for_another_reason() {
    let mut world = World::new();
    speeds_up(&mut world, FEE * 100);
    world.settings.signing_deadline_ms = 1_500;
    let (world, gateway, address) = begin(world).await;
    let (first, _) = paid(&gateway, &address).await;
    a_while().await;
    *world.evm.unanswerable.lock().unwrap() = Some("5".into());
    blocks(&world, 3);
    until(async || !details(&gateway, &first).await.replaced_by_uuids.is_empty()).await;
    let failed = details(&gateway, &first).await.replaced_by_uuids[0].clone();
    assert!(outcome(&gateway, &failed).await.error.is_some());
    *world.evm.unanswerable.lock().unwrap() = None;
    a_while().await;
    assert_eq!(handed(&world).len(), 1, "not at once");
    blocks(&world, 3);
    until(async || handed(&world).len() == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy__should_count_anew_when_the_block_is_gone_that_had_it() {
    let mut world = World::new();
    speeds_up(&mut world, FEE * 100);
    let (world, gateway, address) = begin(world).await;
    let (first, hash) = paid(&gateway, &address).await;
    a_while().await;
    blocks(&world, 2);
    a_while().await;
    world.evm.says(&hash, MINED);
    until_status(&gateway, &first, Status::Mined).await;
    blocks(&world, 10);
    a_while().await;
    world.evm.says(&hash, TransactionSighting::Waiting);
    until_status(&gateway, &first, Status::Pending).await;
    blocks(&world, 2);
    a_while().await;
    assert_eq!(handed(&world).len(), 1, "it has waited for two");
    blocks(&world, 1);
    until(async || handed(&world).len() == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy__should_stop_after_three_of_its_own_that_failed() {
    let mut world = World::new();
    speeds_up(&mut world, FEE * 100);
    let (world, gateway, address) = begin(world).await;
    let (first, _) = paid(&gateway, &address).await;
    a_while().await;
    world.signers.refuse.store(true, Ordering::SeqCst);
    let made = async || details(&gateway, &first).await.replaced_by_uuids;
    for number in 1..=3 {
        blocks(&world, 3);
        until(async || made().await.len() == number).await;
        let failed = made().await.pop().unwrap();
        assert!(outcome(&gateway, &failed).await.error.is_some());
    }
    for _ in 0..3 {
        blocks(&world, 30);
        a_while().await;
    }
    assert_eq!(made().await.len(), 3);
    // A client still can.
    world.signers.refuse.store(false, Ordering::SeqCst);
    replaced(&gateway, &first, Action::SpeedUp).await;
    assert_eq!(handed(&world).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy__should_leave_what_waits_behind_another_number() {
    let mut world = World::new();
    speeds_up(&mut world, FEE * 100);
    let (world, gateway, address) = begin(world).await;
    // The chain waits for number 0, which nobody has.
    let behind = numbered(&gateway, &address, 1).await;
    a_while().await;
    for _ in 0..3 {
        blocks(&world, 30);
        a_while().await;
    }
    assert!(
        details(&gateway, &behind)
            .await
            .replaced_by_uuids
            .is_empty()
    );
    // Once it is its turn no wait is left.
    world.evm.used.store(1, Ordering::SeqCst);
    blocks(&world, 1);
    until(async || handed(&world).len() == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy__should_count_on_after_a_node_that_named_an_absurd_block() {
    let mut world = World::new();
    speeds_up(&mut world, FEE * 100);
    let (world, gateway, address) = begin(world).await;
    let is_asked = async || {
        let most = world.evm.heads.load(Ordering::SeqCst) + 3;
        until(async || world.evm.heads.load(Ordering::SeqCst) >= most).await;
    };
    world.evm.head.store(1_000_000, Ordering::SeqCst);
    let (first, _) = paid(&gateway, &address).await;
    is_asked().await;
    world.evm.head.store(100, Ordering::SeqCst);
    is_asked().await;
    assert_eq!(handed(&world).len(), 1);
    blocks(&world, 3);
    until(async || details(&gateway, &first).await.replaced_by_uuids.len() == 1).await;
}
