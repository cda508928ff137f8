//! Backups of the store, and what happens when one is restored: nothing a second time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use covault_actors::{
    backup::{self, BackupHeader, BackupReader, BackupWriter},
    chain_rpc::{Inclusion, TransactionSighting},
    gateway::{AdminCaller, Caller, Gateway, OperationResponse},
    operations::{
        BeginBackup, CreateSigningRequest, CreateWallet, GetBackupPart, GetSigningRequestDetails,
        GetStatus, LetClientsIn,
    },
    store::{Batch, CommitError, Key, KeySpace, RawRow, Scan, Store, memory::MemoryStore},
    testing::StoreDouble,
};
use covault_core::{
    audit::{AuditChain, KnownHeads},
    fault::{Class, Fault},
    ids::TokenId,
    schema::{
        admin,
        wire::{
            self, NetworkType, create_signing_request_request::Type as Kind,
            signing_request::Status, transaction_state,
        },
    },
    token::AdminRole,
};
use proptest::prelude::*;

use crate::{
    audit::{event, whole},
    chain_double::FINAL,
    world::*,
};

/// What a client may do.
fn client() -> Caller {
    Caller {
        token: TokenId::from_bytes([5; 16]),
        admin: None,
        ..admin()
    }
}

async fn begin(gateway: &Gateway, caller: &Caller) -> Result<String, Fault> {
    let request = admin::BeginBackupRequest {};
    let begun = call::<BeginBackup>(gateway, caller, request).await;
    begun.map(|begun| begun.backup)
}

async fn part(
    gateway: &Gateway,
    caller: &Caller,
    backup: &str,
    number: u64,
) -> Result<Vec<RawRow>, Fault> {
    let backup = backup.into();
    let request = admin::GetBackupPartRequest { backup, number };
    let part = call::<GetBackupPart>(gateway, caller, request).await?;
    let row = |admin::StoreRow { space, key, value }| RawRow {
        space: space.try_into().unwrap(),
        key,
        value,
    };
    Ok(part.rows.into_iter().map(row).collect())
}

/// A backup through the gateway, as the command line makes one.
pub async fn back_up(gateway: &Gateway) -> Vec<u8> {
    back_up_at(gateway, 1_700_000_000_000).await
}

/// The same, made at this time, in milliseconds since the Unix epoch.
pub async fn back_up_at(gateway: &Gateway, at_ms: u64) -> Vec<u8> {
    let id = self::begin(gateway, &admin()).await.unwrap();
    let begin = BackupHeader {
        at_ms,
        version: "1.2.3".into(),
    };
    let mut writer = BackupWriter::start(Vec::new(), begin).unwrap();
    let mut number = 0;
    loop {
        let rows = part(gateway, &admin(), &id, number).await.unwrap();
        number += 1;
        if rows.is_empty() {
            break;
        }
        writer.rows(rows).unwrap();
    }
    let written = writer.end().unwrap();
    part(gateway, &admin(), &id, number).await.unwrap();
    written
}

/// The same chains and signers with a new store, into which a backup was restored.
pub async fn restored(world: &World, backup: &[u8]) -> World {
    restored_at(world, backup, 5).await
}

/// The same, restored at this time, in milliseconds since the Unix epoch.
pub async fn restored_at(world: &World, backup: &[u8], now_ms: u64) -> World {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    backup::restore(&*store, backup, now_ms).await.unwrap();
    World {
        store,
        ..world.clone()
    }
}

pub async fn let_in(gateway: &Gateway, caller: &Caller) -> Result<(), Fault> {
    let request = admin::LetClientsInRequest {};
    let done = call::<LetClientsIn>(gateway, caller, request).await;
    done.map(|_| ())
}

/// Waits until a request has its nonce, or no longer needs one.
async fn until(world: &World, what: &str, mut is: impl AsyncFnMut() -> bool) {
    let _ = world;
    let search = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let patience = Duration::from_secs(60);
    assert!(
        tokio::time::timeout(patience, search).await.is_ok(),
        "{what}"
    );
}

pub async fn claims(world: &World) -> usize {
    let claims = Scan::prefix(KeySpace::NonceReservation, &[], 100);
    world.store.scan(&claims).await.unwrap().len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore__should_end_what_was_not_signed_and_free_its_number_once_the_chain_offers_it() {
    let world = World::new();
    *world.evm.unheard.lock().unwrap() = Some(TransactionSighting::Missing);
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let over = create(&gateway, send(&address)).await;
    outcome(&gateway, &over.uuid).await;
    // One is being signed, and has the number 1; the next one waits for the chain.
    world.signers.silent.store(true, Ordering::SeqCst);
    let signing = create(&gateway, send(&address)).await;
    until(&world, "the second number", async || {
        claims(&world).await == 2
    })
    .await;
    world.evm.down.store(true, Ordering::SeqCst);
    let waits = create(&gateway, send(&address)).await;
    let backup = back_up(&gateway).await;
    gateway.stop().await;

    world.signers.silent.store(false, Ordering::SeqCst);
    world.evm.down.store(false, Ordering::SeqCst);
    let asked = world.signers.requests();
    let world = restored(&world, &backup).await;
    let gateway = world.start().await;
    // It has no transaction here.
    let shown = details(&gateway, &waits.uuid).await;
    assert_eq!(shown.status(), Status::Failed);
    let words = ["restored from a backup", "check the chain"];
    for words in words {
        let reason = &shown.failed_reason;
        assert!(reason.contains(words), "{reason}");
    }
    // This one has, and it may be mined.
    assert_eq!(
        details(&gateway, &signing.uuid).await.status(),
        Status::Pending
    );
    assert_eq!(
        details(&gateway, &over.uuid).await.status(),
        Status::Succeeded
    );
    assert_eq!(world.pending().await, 1);
    assert_eq!(claims(&world).await, 2, "it may have been used");
    assert_eq!(world.signers.requests(), asked, "nobody was asked to sign");
    let_in(&gateway, &admin()).await.unwrap();
    let fault = try_outcome(&gateway, &admin(), &signing.uuid)
        .await
        .unwrap_err();
    for words in words.into_iter().chain(["stays pending"]) {
        assert!(fault.message().contains(words), "{fault}");
    }
    let next = create(&gateway, send(&address)).await;
    assert_eq!(outcome(&gateway, &next.uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0, 1], "no gap");
    // Which is what shows that it never comes.
    *world.evm.unheard.lock().unwrap() = Some(TransactionSighting::Replaced(None));
    let error = outcome(&gateway, &signing.uuid).await.error.unwrap();
    let by = details(&gateway, &next.uuid).await.tx_hash;
    let expected = format!("nonce 1 was used by the transaction {by}, which is final");
    assert!(error.message.ends_with(&expected), "{error:?}");
    let all = whole(&*world.store, "").await;
    let of_vault = &all[&AuditChain::Vault(vault)];
    let events = |of: &str| {
        let subject = format!("request:{of}");
        let of = of_vault.iter().filter(|entry| entry.subject == subject);
        of.map(event).collect::<Vec<_>>()
    };
    assert_eq!(events(&waits.uuid).last(), Some(&"Restored"));
    let signing = events(&signing.uuid);
    let last = ["Restored", "Freed", "NeverComes"];
    assert_eq!(signing[signing.len() - 3..], last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore__should_keep_a_number_that_the_chain_has() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    world.signers.silent.store(true, Ordering::SeqCst);
    let first = create(&gateway, send(&address)).await;
    until(&world, "a number", async || claims(&world).await == 1).await;
    let backup = back_up(&gateway).await;
    // After the backup it is sent.
    gateway.stop().await;
    world.signers.silent.store(false, Ordering::SeqCst);
    let gateway = world.start().await;
    assert_eq!(outcome(&gateway, &first.uuid).await.error, None);
    gateway.stop().await;
    let world = restored(&world, &backup).await;
    // The number is used, by the transaction that nobody has here.
    *world.evm.unheard.lock().unwrap() = Some(TransactionSighting::Replaced(None));
    let gateway = world.start().await;
    let_in(&gateway, &admin()).await.unwrap();
    let next = create(&gateway, send(&address)).await;
    assert_eq!(outcome(&gateway, &next.uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0, 1]);
    assert_eq!(world.evm.handed.lock().unwrap().len(), 2);
    // Who pays again what is called failed pays twice.
    world.evm.asked_for(40).await;
    tokio::time::sleep(Duration::from_millis(2 * world.settings.settling_ms)).await;
    let shown = details(&gateway, &first.uuid).await;
    assert_eq!(shown.status(), Status::Pending, "{}", shown.failed_reason);
    gateway.stop().await;
    let gateway = world.start().await;
    world.evm.asked_for(40).await;
    let shown = details(&gateway, &first.uuid).await;
    assert_eq!(shown.status(), Status::Pending, "{}", shown.failed_reason);
}

/// A request of which a backup has the transaction, and no signature; it was sent since. With what it was sent as.
pub async fn sent_since() -> (World, Vec<u8>, String, wire::SigningRequest) {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    world.signers.silent.store(true, Ordering::SeqCst);
    let first = create(&gateway, send(&address)).await.uuid;
    until(&world, "a number", async || claims(&world).await == 1).await;
    let backup = back_up(&gateway).await;
    gateway.stop().await;
    world.signers.silent.store(false, Ordering::SeqCst);
    let gateway = world.start().await;
    assert_eq!(outcome(&gateway, &first).await.error, None);
    let sent = details(&gateway, &first).await;
    gateway.stop().await;
    (world, backup, address, sent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore__should_succeed_with_what_was_mined_since_the_backup() {
    let (world, backup, _, sent) = sent_since().await;
    let world = restored(&world, &backup).await;
    let by = TransactionSighting::Replaced(Some(sent.tx_hash.clone()));
    *world.evm.unheard.lock().unwrap() = Some(by);
    // Its block may still go.
    let mined = TransactionSighting::Mined(Inclusion {
        block: 9,
        success: true,
    });
    world.evm.says(&sent.tx_hash, mined);
    let gateway = world.start().await;
    world.evm.asked_for(40).await;
    tokio::time::sleep(Duration::from_millis(2 * world.settings.settling_ms)).await;
    let shown = details(&gateway, &sent.uuid).await;
    assert_eq!(shown.status(), Status::Pending, "{}", shown.failed_reason);
    world.evm.says(&sent.tx_hash, FINAL);
    until(&world, "it is found", async || {
        details(&gateway, &sent.uuid).await.status() == Status::Succeeded
    })
    .await;
    for _ in 0..2 {
        let gateway = world.start().await;
        let shown = details(&gateway, &sent.uuid).await;
        assert_eq!(shown.tx_hash, sent.tx_hash);
        assert_eq!(shown.signed_transaction, sent.signed_transaction);
        assert_eq!(shown.signatures, sent.signatures);
        let state = shown.transaction_state.unwrap();
        assert_eq!(state.status(), transaction_state::Status::Final);
        assert_eq!((state.block, state.success), (Some(9), Some(true)));
        assert_eq!(world.pending().await, 0, "nothing is left to do");
        assert_eq!(world.followed().await, 0);
        gateway.stop().await;
    }
    assert_eq!(world.evm.accepted(), 1, "nothing was sent for it");
    let all = whole(&*world.store, "").await;
    let found = |chain: &AuditChain| all[chain].iter().any(|it| event(it) == "FoundFinal");
    assert!(all.keys().any(found));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore__should_fail_what_a_transaction_has_made_void_that_the_store_does_not_know() {
    let (world, backup, address, sent) = sent_since().await;
    // In another store of the same backup its number went to another request.
    world.evm.forget(0);
    let other = restored(&world, &backup).await;
    *other.evm.unheard.lock().unwrap() = Some(TransactionSighting::Missing);
    let gateway = other.start().await;
    let_in(&gateway, &admin()).await.unwrap();
    let payment = wire::EvmSendNative {
        value: "6".into(),
        ..send_native(&address)
    };
    let payment = create(&gateway, Kind::EvmSendNative(payment)).await.uuid;
    let by = outcome(&gateway, &payment).await.tx_hash;
    assert_eq!(other.evm.nonces(), [0]);
    gateway.stop().await;
    let world = restored(&world, &backup).await;
    *world.evm.unheard.lock().unwrap() = Some(TransactionSighting::Replaced(Some(by.clone())));
    let gateway = world.start().await;
    let_in(&gateway, &admin()).await.unwrap();
    let error = outcome(&gateway, &sent.uuid).await.error.unwrap();
    let words = format!("nonce 0 was used by the transaction {by}, which is final");
    assert!(error.message.ends_with(&words), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore__should_not_take_the_same_payment_of_a_later_request_for_its_own() {
    let (world, backup, address, sent) = sent_since().await;
    world.evm.forget(0);
    let world = restored(&world, &backup).await;
    *world.evm.unheard.lock().unwrap() = Some(TransactionSighting::Missing);
    let gateway = world.start().await;
    let_in(&gateway, &admin()).await.unwrap();
    // The client asks again, and gets the very same transaction.
    let again = create(&gateway, send(&address)).await.uuid;
    let by = outcome(&gateway, &again).await.tx_hash;
    assert_eq!(world.evm.nonces(), [0]);
    *world.evm.unheard.lock().unwrap() = Some(TransactionSighting::Replaced(Some(by.clone())));
    let error = outcome(&gateway, &sent.uuid).await.error.unwrap();
    let words = format!("nonce 0 was used by the transaction {by}, which is final");
    assert!(error.message.ends_with(&words), "{error:?}");
    let shown = details(&gateway, &again).await;
    assert_eq!(shown.status(), Status::Succeeded);
}

/// No chain ever shows whether a message was signed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore__should_fail_a_message_that_was_being_signed() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    world.signers.silent.store(true, Ordering::SeqCst);
    let message = create(&gateway, raw(&address)).await;
    let backup = back_up(&gateway).await;
    gateway.stop().await;
    world.signers.silent.store(false, Ordering::SeqCst);
    let world = restored(&world, &backup).await;
    let gateway = world.start().await;
    let shown = details(&gateway, &message.uuid).await;
    assert_eq!(shown.status(), Status::Failed);
    let reason = &shown.failed_reason;
    assert!(reason.contains("signed or sent after that"), "{reason}");
    assert_eq!(world.pending().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore__should_send_the_same_bytes_of_what_was_signed() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    world.evm.stuck.store(true, Ordering::SeqCst);
    let request = create(&gateway, send(&address)).await;
    until(&world, "it is handed to the node", async || {
        !world.evm.handed.lock().unwrap().is_empty()
    })
    .await;
    let backup = back_up(&gateway).await;
    gateway.stop().await;
    world.evm.stuck.store(false, Ordering::SeqCst);
    let asked = world.signers.requests();
    let world = restored(&world, &backup).await;
    let gateway = world.start().await;
    assert_eq!(outcome(&gateway, &request.uuid).await.error, None);
    assert_eq!(world.evm.nonces(), [0]);
    assert_eq!(world.evm.handed.lock().unwrap().len(), 1, "the same bytes");
    assert_eq!(world.signers.requests(), asked);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore__should_keep_clients_out_until_an_operator_lets_them_in() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    let sign = async |gateway: &Gateway,
                      key|
           -> Result<(wire::SigningRequest, OperationResponse), Fault> {
        let request = request(raw(&address));
        let made = call_with_key::<CreateSigningRequest>(gateway, &client(), request, key).await;
        made.map(|(response, answer)| (response.signing_request.unwrap(), answer))
    };
    let (first, _) = sign(&gateway, Some("once")).await.unwrap();
    outcome(&gateway, &first.uuid).await;
    let refused = let_in(&gateway, &admin()).await;
    assert_eq!(refused.unwrap_err().class(), &Class::WrongState);
    let backup = back_up(&gateway).await;
    gateway.stop().await;
    let world = restored(&world, &backup).await;
    for _ in 0..2 {
        let gateway = world.start().await;
        let fault = sign(&gateway, Some("once")).await.unwrap_err();
        assert_eq!(fault.class(), &Class::Unavailable);
        assert!(fault.message().contains("covault backup resume"), "{fault}");
        // To look is allowed, and so is what operators do.
        let uuid = first.uuid.clone();
        let request = wire::GetSigningRequestDetailsRequest { uuid };
        call::<GetSigningRequestDetails>(&gateway, &client(), request)
            .await
            .unwrap();
        let made = wallet(&gateway, vault, NetworkType::Evm).await;
        assert_ne!(made.address, address);
        // Whose token has a row may have been revoked since the backup.
        let named = Caller {
            admin: Some(AdminCaller {
                role: AdminRole::Operator,
                token: Some("anna".into()),
            }),
            ..admin()
        };
        let refused = let_in(&gateway, &named).await.unwrap_err();
        assert_eq!(refused.class(), &Class::Unavailable);
        gateway.stop().await;
    }
    let gateway = world.start().await;
    let refused = let_in(&gateway, &client()).await;
    assert_eq!(refused.unwrap_err().class(), &Class::Forbidden);
    let_in(&gateway, &admin()).await.unwrap();
    let (again, answer) = sign(&gateway, Some("once")).await.unwrap();
    assert!(answer.replayed, "its key is known");
    assert_eq!(again.uuid, first.uuid);
    gateway.stop().await;
    let gateway = world.start().await;
    sign(&gateway, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore__should_pass_the_numbers_of_wallets_that_may_have_been_given_out() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let before = wallet(&gateway, vault, NetworkType::Evm).await;
    let backup = back_up(&gateway).await;
    let given_out = wallet(&gateway, vault, NetworkType::Evm).await;
    gateway.stop().await;
    let world = restored(&world, &backup).await;
    for number in 0..2 {
        let gateway = world.start().await;
        let made = wallet(&gateway, vault, NetworkType::Evm).await;
        assert_ne!(made.address, given_out.address);
        assert_ne!(made.address, before.address);
        assert_eq!(made.key_path, format!("m/60/{}", 1_000_001 + number));
        gateway.stop().await;
    }
}

/// A store whose commits fail from a number on.
struct LimitedStore(Arc<dyn Store>, AtomicUsize);

#[async_trait]
impl StoreDouble for LimitedStore {
    fn inner(&self) -> &dyn Store {
        &*self.0
    }

    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let left = self.1.load(Ordering::SeqCst);
        if left == 0 {
            return Err(CommitError::Unavailable("no power".into()));
        }
        self.1.store(left - 1, Ordering::SeqCst);
        self.0.commit(batch).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore__should_come_to_the_same_end_wherever_it_is_cut_off() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let address = evm_wallet(&gateway, vault).await;
    world.signers.silent.store(true, Ordering::SeqCst);
    let signing = create(&gateway, send(&address)).await;
    until(&world, "a number", async || claims(&world).await == 1).await;
    let backup = back_up(&gateway).await;
    gateway.stop().await;
    world.signers.silent.store(false, Ordering::SeqCst);

    // While rows are written: nothing starts on the store.
    let mut cut = 0;
    loop {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let limited = LimitedStore(Arc::clone(&store), cut.into());
        let done = backup::restore(&limited, backup.as_slice(), 5).await;
        if done.is_ok() {
            break;
        }
        let half = World {
            store: Arc::clone(&store),
            ..world.clone()
        };
        let started = half.try_start_with(Arc::clone(&store), half.chains()).await;
        match started {
            // Nothing was written at all.
            Ok(_) => assert_eq!(cut, 0),
            Err(fault) => {
                assert!(fault.message().contains("did not finish"), "{fault}");
                // The next try begins again, whatever the one before left.
                let done = backup::restore(&*store, backup.as_slice(), 5).await;
                done.unwrap();
                let fresh = restored(&world, &backup).await;
                assert_eq!(every_row(&half).await, every_row(&fresh).await);
            }
        }
        cut += 1;
    }
    assert!(cut >= 3, "{cut}");

    // While the first start sees to what is left.
    for cut in 0.. {
        let world = restored(&world, &backup).await;
        let limited = Arc::new(LimitedStore(Arc::clone(&world.store), cut.into()));
        let first = world.try_start_with(limited, world.chains()).await;
        let cut_off = first.is_err();
        if let Ok(gateway) = first {
            gateway.stop().await;
        }
        let gateway = world.start().await;
        assert_eq!(
            details(&gateway, &signing.uuid).await.status(),
            Status::Pending
        );
        let request = wallet_request(vault, NetworkType::Evm, "");
        let fault = call::<CreateWallet>(&gateway, &client(), request).await;
        assert_eq!(fault.unwrap_err().class(), &Class::Unavailable);
        let all = whole(&*world.store, &format!("cut {cut}")).await;
        let once = |chain: AuditChain, name: &str| {
            all[&chain].iter().filter(|it| event(it) == name).count()
        };
        assert_eq!(once(AuditChain::Service, "StoreRestored"), 1);
        assert_eq!(once(AuditChain::Vault(vault), "Restored"), 1);
        gateway.stop().await;
        if !cut_off {
            assert!(cut >= 3, "{cut}");
            break;
        }
    }
}

/// All rows but those of the store itself and of the processes that use it.
async fn every_row(world: &World) -> Vec<(Key, Vec<u8>)> {
    let mut rows = Vec::new();
    for space in KeySpace::ALL {
        let of_processes = [
            KeySpace::Probe,
            KeySpace::Restore,
            KeySpace::Lease,
            KeySpace::Member,
            KeySpace::NodeStatus,
            KeySpace::Overview,
        ];
        if !of_processes.contains(&space) {
            let scan = Scan::prefix(space, &[], 10_000);
            let found = world.store.scan(&scan).await.unwrap();
            rows.extend(found.into_iter().map(|(key, row)| (key, row.value)));
        }
    }
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore__should_take_a_whole_backup_and_an_empty_store_alone() {
    let world = World::new();
    let gateway = world.start().await;
    admit(&gateway).await;
    let backup = back_up(&gateway).await;
    let contents = backup::check(backup.as_slice(), KnownHeads::new()).unwrap();
    assert_eq!(contents.begin.version, "1.2.3");
    assert!(contents.audit.iter().all(|chain| chain.breaks.is_empty()));
    assert_eq!((contents.vaults, contents.live), (0, 0));
    let fault = backup::restore(&*world.store, backup.as_slice(), 5)
        .await
        .unwrap_err();
    assert_eq!(fault.class(), &Class::Conflict);
    assert!(fault.message().contains("not empty"), "{fault}");
    let new = restored(&world, &backup).await;
    assert_eq!(every_row(&new).await, every_row(&world).await);
    // One of a version to come.
    let begin = BackupHeader {
        at_ms: 1,
        version: "9.9".into(),
    };
    let mut newer = BackupWriter::start(Vec::new(), begin).unwrap();
    let row = RawRow {
        space: 250,
        key: vec![1],
        value: vec![],
    };
    newer.rows(vec![row]).unwrap();
    let fault = backup::check(newer.end().unwrap().as_slice(), KnownHeads::new()).unwrap_err();
    assert!(fault.message().contains("Covault 9.9"), "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup__should_be_one_state_for_operators_one_at_a_time() {
    let world = World::new();
    let gateway = world.start().await;
    let fault = begin(&gateway, &client()).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Forbidden);
    let id = begin(&gateway, &admin()).await.unwrap();
    let fault = begin(&gateway, &admin()).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Conflict);
    let part = async |caller: Caller, number| part(&gateway, &caller, &id, number).await;
    assert_eq!(
        part(client(), 0).await.unwrap_err().class(),
        &Class::Forbidden
    );
    assert_eq!(
        part(admin(), 1).await.unwrap_err().class(),
        &Class::Conflict
    );
    // What comes later is not in it.
    admit(&gateway).await;
    let rows = part(admin(), 0).await.unwrap();
    assert!(rows.iter().all(|row| row.space != KeySpace::Node as u8));
    assert_eq!(
        part(admin(), 0).await.unwrap_err().class(),
        &Class::Conflict
    );
    assert!(part(admin(), 1).await.unwrap().is_empty());
    back_up(&gateway).await;
    assert_eq!(
        part(admin(), 2).await.unwrap_err().class(),
        &Class::Conflict
    );
    // No one reads it any longer: after a minute another backup may begin.
    begin(&gateway, &admin()).await.unwrap();
    world.clock.ahead_ms.fetch_add(60_000, Ordering::SeqCst);
    back_up(&gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup__should_count_as_made_once_its_reader_has_kept_it() {
    let world = World::new();
    let gateway = world.start().await;
    let id = begin(&gateway, &admin()).await.unwrap();
    let part = async |number| part(&gateway, &admin(), &id, number).await.unwrap();
    let last = async || {
        let status = call::<GetStatus>(&gateway, &admin(), admin::GetStatusRequest {}).await;
        status.unwrap().last_backup
    };
    assert!(!part(0).await.is_empty());
    assert!(part(1).await.is_empty());
    assert_eq!(last().await, None, "its file may not be on a disk");
    assert!(part(2).await.is_empty());
    assert!(last().await.is_some());
}

/// A small backup, without a store.
fn sample() -> Vec<u8> {
    let begin = BackupHeader {
        at_ms: 1,
        version: "1".into(),
    };
    let mut writer = BackupWriter::start(Vec::new(), begin).unwrap();
    for number in 0..3u8 {
        let row = RawRow {
            space: KeySpace::VaultName as u8,
            key: vec![number],
            value: vec![number; 20],
        };
        writer.rows(vec![row]).unwrap();
    }
    writer.end().unwrap()
}

fn whole_backup(bytes: &[u8]) -> bool {
    let Ok(mut reader) = BackupReader::start(bytes) else {
        return false;
    };
    loop {
        match reader.page() {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

proptest! {
    #[test]
    fn any_change_of_a_backup__should_be_found(place: prop::sample::Index, bit in 0_u8..8) {
        let mut bytes = sample();
        prop_assert!(whole_backup(&bytes));
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        prop_assert!(!whole_backup(&bytes));
    }

    #[test]
    fn a_backup_that_is_cut_off__should_be_found(place: prop::sample::Index, more: bool) {
        let mut bytes = sample();
        if more {
            bytes.push(0);
        } else {
            bytes.truncate(place.index(bytes.len()));
        }
        prop_assert!(!whole_backup(&bytes));
    }
}

#[test]
fn rows_that_are_out_of_order__should_be_refused() {
    let begin = BackupHeader {
        at_ms: 1,
        version: "1".into(),
    };
    let mut writer = BackupWriter::start(Vec::new(), begin).unwrap();
    let row = RawRow {
        space: 2,
        key: vec![1],
        value: vec![],
    };
    writer.rows(vec![row.clone(), row]).unwrap();
    assert!(!whole_backup(&writer.end().unwrap()));
}
