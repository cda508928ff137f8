//! A token that is revoked ends the calls that had begun with it, whatever they wait for.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use covault_actors::{
    gateway::{Caller, Gateway, OperationResponse, RequestBody},
    operations::{
        self, AddWatchAddress, ConfigureSweep, CreateBatchPayment, CreateDepositWallet,
        CreateSigningRequest, CreateToken, CreateWallet, GetWalletInfo, ListTokens, Operation,
        RejectSigningRequest, RevokeToken, UpdateWallet,
    },
    store::{Batch, CommitError, KeySpace, Scan, Store},
    testing::{StoreCall, StoreDouble, ToldStore},
};
use covault_core::{
    deposit::DepositNetwork,
    fault::{Class, Fault},
    ids::VaultId,
    schema::{
        admin::{ConfigureSweepRequest, CreateTokenRequest, RevokeTokenRequest, Token},
        wire::{self, NetworkType, get_wallet_info_request::Wallet as AuditActor},
    },
    token::{AdminRole, TokenKind},
};
use prost::Message as _;

use tokio::sync::watch;

use crate::{
    batches::batch,
    tokens::{make, new_token, with},
    world::*,
};

const TARGET: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
const TRON: &str = "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t";

async fn revoke(gateway: &Gateway, token: &Token) {
    let request = RevokeTokenRequest {
        token: token.id.clone(),
    };
    call::<RevokeToken>(gateway, &admin(), request)
        .await
        .unwrap();
}

fn refused(fault: &Fault) {
    let said = (fault.class(), fault.message());
    assert_eq!(said, (&Class::Unauthenticated, "unauthenticated"));
}

/// What a call says that waits for a day.
async fn ask_outcome(
    gateway: &Gateway,
    caller: &Caller,
    uuid: &str,
) -> Result<wire::ExecuteSigningRequestsResponse, Fault> {
    // Far longer than it takes, far shorter than its patience.
    let asked = try_outcome(gateway, caller, uuid);
    tokio::time::timeout(Duration::from_secs(120), asked)
        .await
        .expect("it waits for nothing any more")
}

/// An operation with its request.
#[derive(Clone)]
struct PreparedCall(&'static str, Vec<u8>);

fn asked<O: Operation>(request: &O::Request) -> PreparedCall {
    PreparedCall(O::METHOD, request.encode_to_vec())
}

impl PreparedCall {
    async fn call(
        &self,
        gateway: &Gateway,
        caller: &Caller,
        key: Option<&str>,
    ) -> Result<OperationResponse, Fault> {
        let operation = operations::find(self.0).unwrap();
        let key = key.map(str::to_owned);
        gateway
            .call(caller, operation, RequestBody::Protobuf(&self.1), key)
            .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token__should_open_nothing_once_it_is_revoked_also_for_who_was_let_in() {
    let mut world = World::new();
    world.settings.signing_deadline_ms = 600_000;
    world.settings.execute_wait_ms = 24 * 60 * 60 * 1_000;
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let made = make(&gateway, new_token("shop", TokenKind::Platform)).await;
    let token = made.token.unwrap();
    let caller = with(&token);
    let wallet = asked::<CreateWallet>(&wallet_request(vault, NetworkType::Evm, ""));
    wallet.call(&gateway, &caller, Some("k")).await.unwrap();
    world.signers.silent.store(true, Ordering::SeqCst);
    let pending = create(&gateway, raw(&from)).await;
    let waits = {
        let (gateway, caller, uuid) = (gateway.clone(), caller.clone(), pending.uuid.clone());
        tokio::spawn(async move { ask_outcome(&gateway, &caller, &uuid).await })
    };
    let info = asked::<GetWalletInfo>(&wire::GetWalletInfoRequest {
        wallet: Some(AuditActor::Address(from.clone())),
    });
    assert!(info.call(&gateway, &caller, None).await.is_ok());
    revoke(&gateway, &token).await;

    refused(&waits.await.unwrap().unwrap_err());
    refused(&info.call(&gateway, &caller, None).await.unwrap_err());
    // Nor does it get what it was answered before.
    for key in [None, Some("k")] {
        refused(&wallet.call(&gateway, &caller, key).await.unwrap_err());
    }
    // Others are not concerned.
    assert!(info.call(&gateway, &admin(), None).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_wait_with_one_token__should_ask_the_store_once_a_second_for_all() {
    const CALLS: usize = 100;
    let mut world = World::new();
    world.settings.signing_deadline_ms = 600_000;
    world.settings.execute_wait_ms = 24 * 60 * 60 * 1_000;
    let (waiting, asked) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (seen, counted) = (Arc::clone(&waiting), Arc::clone(&asked));
    let store = ToldStore::new(&world.store, move |call: StoreCall<'_>| {
        let StoreCall::Get(key) = call else { return };
        let count = match key.space {
            KeySpace::Request => &seen,
            KeySpace::Token | KeySpace::Outbox => &counted,
            _ => return,
        };
        count.fetch_add(1, Ordering::SeqCst);
    });
    let gateway = world.start_on(store).await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let made = make(&gateway, new_token("shop", TokenKind::Platform)).await;
    let token = made.token.unwrap();
    world.signers.silent.store(true, Ordering::SeqCst);
    let pending = create(&gateway, raw(&from)).await;
    while world.signers.unanswered.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    waiting.store(0, Ordering::SeqCst);
    let calls = (0..CALLS).map(|_| {
        let (gateway, caller, uuid) = (gateway.clone(), with(&token), pending.uuid.clone());
        tokio::spawn(async move { ask_outcome(&gateway, &caller, &uuid).await })
    });
    let calls: Vec<_> = calls.collect();
    while waiting.load(Ordering::SeqCst) < CALLS {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    asked.store(0, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let asked = asked.load(Ordering::SeqCst);
    assert!((1..=CALLS / 5).contains(&asked), "{asked}");
    revoke(&gateway, &token).await;
    for call in calls {
        refused(&call.await.unwrap().unwrap_err());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token__should_open_nothing_once_its_time_is_over() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let now_ms = covault_core::port::Clock::now_ms(&*world.clock);
    let ends = CreateTokenRequest {
        expires_at_ms: Some(now_ms + 3_600_000),
        ..new_token("shop", TokenKind::Platform)
    };
    let caller = with(&make(&gateway, ends).await.token.unwrap());
    let create = asked::<CreateSigningRequest>(&request(raw(&from)));
    create.call(&gateway, &caller, None).await.unwrap();
    world.clock.ahead_ms.fetch_add(3_600_001, Ordering::SeqCst);
    refused(&create.call(&gateway, &caller, None).await.unwrap_err());
    assert_eq!(world.requests().await.len(), 1);
}

/// A store in which a token is revoked right before the next commit of a kind.
struct RevokingStore {
    inner: Arc<dyn Store>,
    /// Which token, by what gateway, before a commit that writes to which space.
    plan: Mutex<Option<(Gateway, Token, KeySpace)>>,
    revoked: AtomicUsize,
}

#[async_trait]
impl StoreDouble for RevokingStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let plan = self.plan.lock().unwrap().take_if(|(_, _, space)| {
            let mut writes = batch.writes().iter();
            writes.any(|write| write.key.space == *space)
        });
        if let Some((gateway, token, _)) = plan {
            revoke(&gateway, &token).await;
            self.revoked.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.commit(batch).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command__should_do_nothing_when_its_token_is_revoked_before_its_commit() {
    let mut world = crate::processes::world();
    world.settings.signing_deadline_ms = 600_000;
    let store = Arc::new(RevokingStore {
        inner: Arc::clone(&world.store),
        plan: Mutex::default(),
        revoked: AtomicUsize::new(0),
    });
    let gateway = world.start_on(Arc::clone(&store) as Arc<dyn Store>).await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let operator = other_process(&world, Arc::clone(&world.store), vault).await;
    world.evm.down.store(true, Ordering::SeqCst);
    let waiting = create(&gateway, send(&from)).await.uuid;
    let sweep = wire::CreateDepositWalletRequest {
        network: "EVM".into(),
        r#ref: "r".into(),
        ..Default::default()
    };
    let watch = wire::AddWatchAddressRequest {
        network: "TRON".into(),
        address: TRON.into(),
    };
    let archive = wire::UpdateWalletRequest {
        address: from.clone(),
        status: "STATUS_ARCHIVED".into(),
        ..Default::default()
    };
    let reject = wire::RejectSigningRequestRequest {
        uuid: waiting.clone(),
        rejection: None,
    };
    let wallet = wallet_request(vault, NetworkType::Evm, "r");
    let (platform, sweeps) = (TokenKind::Platform, TokenKind::Sweep);
    let commands = [
        (platform, KeySpace::Wallet, asked::<CreateWallet>(&wallet)),
        (
            platform,
            KeySpace::Request,
            asked::<CreateSigningRequest>(&request(raw(&from))),
        ),
        (
            platform,
            KeySpace::Request,
            asked::<CreateSigningRequest>(&request(send(&from))),
        ),
        (
            platform,
            KeySpace::Batch,
            asked::<CreateBatchPayment>(&batch(&from, CHAIN)),
        ),
        (platform, KeySpace::Wallet, asked::<UpdateWallet>(&archive)),
        (
            platform,
            KeySpace::Request,
            asked::<RejectSigningRequest>(&reject),
        ),
        (
            sweeps,
            KeySpace::Wallet,
            asked::<CreateDepositWallet>(&sweep),
        ),
        (sweeps, KeySpace::Watch, asked::<AddWatchAddress>(&watch)),
        (
            TokenKind::Admin(AdminRole::Operator),
            KeySpace::TokenName,
            asked::<CreateToken>(&new_token("left behind", platform)),
        ),
    ];
    let count = async |space| {
        let all = Scan::prefix(space, &[], 1_000);
        world.store.scan(&all).await.unwrap().len()
    };
    let rows = async || {
        [
            count(KeySpace::Wallet).await,
            count(KeySpace::Request).await,
            count(KeySpace::Batch).await,
            count(KeySpace::Deposit).await,
            count(KeySpace::Watch).await,
            count(KeySpace::Idempotency).await,
        ]
    };
    let before = rows().await;
    for (number, (kind, space, command)) in commands.iter().enumerate() {
        let made = make(&operator, new_token(&format!("token {number}"), *kind)).await;
        let token = made.token.unwrap();
        if *kind == TokenKind::Sweep {
            for network in DepositNetwork::ALL {
                let change = ConfigureSweepRequest {
                    token: token.id.clone(),
                    network: network.name().into(),
                    vault_uuid: Some(vault.to_string()),
                    target: (network == DepositNetwork::Evm).then(|| TARGET.into()),
                    webhook: Some("https://example.com/".into()),
                    new_webhook_secret: false,
                };
                let configured = call::<ConfigureSweep>(&operator, &admin(), change).await;
                configured.unwrap();
            }
        }
        *store.plan.lock().unwrap() = Some((operator.clone(), token.clone(), *space));
        match command.call(&gateway, &with(&token), Some("k")).await {
            Err(fault) => refused(&fault),
            Ok(_) => panic!("{}", command.0),
        }
        assert_eq!(store.revoked.load(Ordering::SeqCst), number + 1);
        assert_eq!(rows().await, before, "{}", command.0);
    }
    let tokens = call::<ListTokens>(&operator, &admin(), Default::default()).await;
    let mut tokens = tokens.unwrap().tokens.into_iter();
    assert!(tokens.all(|token| token.name != "left behind"));
    // Nothing else came to harm: neither the wallet nor the request that was not rejected.
    world.evm.down.store(false, Ordering::SeqCst);
    assert_eq!(outcome(&gateway, &waiting).await.error, None);
    let made = call::<CreateWallet>(&gateway, &admin(), wallet).await;
    assert!(made.unwrap().details.is_some());
}

/// Another process on the same store, whose vault has looked for live requests: it will not work on
/// those that come later through the first one.
async fn other_process(world: &World, store: Arc<dyn Store>, vault: VaultId) -> Gateway {
    let gateway = world.start_on(store).await;
    evm_wallet(&gateway, vault).await;
    gateway
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome__should_be_seen_by_another_process_on_the_store() {
    let mut world = crate::processes::world();
    world.settings.signing_deadline_ms = 600_000;
    world.settings.execute_wait_ms = 24 * 60 * 60 * 1_000;
    let one = world.start().await;
    let vault = vault(&one, "main").await;
    let from = evm_wallet(&one, vault).await;
    let (read, mut reads) = watch::channel(0);
    let store = ToldStore::new(&world.store, move |call: StoreCall<'_>| {
        if matches!(call, StoreCall::Get(key) if key.space == KeySpace::Request) {
            read.send_modify(|reads| *reads += 1);
        }
    });
    let two = other_process(&world, store, vault).await;
    world.evm.down.store(true, Ordering::SeqCst);
    let pending = create(&one, send(&from)).await;
    let waits = {
        let (two, uuid) = (two.clone(), pending.uuid.clone());
        tokio::spawn(async move { ask_outcome(&two, &admin(), &uuid).await })
    };
    // It listens already when it looks.
    reads.wait_for(|reads| *reads >= 1).await.unwrap();
    world.evm.down.store(false, Ordering::SeqCst);
    assert_eq!(waits.await.unwrap().unwrap().error, None);
}
