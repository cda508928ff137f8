//! API tokens: made, looked up, revoked, and what they may do.

use std::sync::atomic::Ordering;

use covault_actors::gateway::{
    Caller, Command, Gateway, MadeToken, Query, Receipt, VaultScope, View,
};
use covault_core::{
    fault::{Class, Fault},
    ids::{TokenId, VaultId},
    schema::wire,
    token::{Access, ApiToken, Kind, NewToken, TokenHash, Vaults, kind_of},
};
use secrecy::ExposeSecret as _;

use crate::world::*;

pub fn new_token(name: &str, kind: Kind) -> NewToken {
    NewToken {
        name: name.into(),
        kind,
        vaults: Vaults::All,
        access: Access::Full,
        allow: vec![],
        expires_at_ms: None,
    }
}

async fn try_make(gateway: &Gateway, new: NewToken) -> Result<MadeToken, Fault> {
    let command = Command::CreateToken(new);
    match gateway.submit(&admin(), command, None).await?.receipt {
        Receipt::TokenMade(made) => Ok(*made),
        other => panic!("{other:?}"),
    }
}

pub async fn make(gateway: &Gateway, new: NewToken) -> MadeToken {
    try_make(gateway, new).await.unwrap()
}

async fn look_up(gateway: &Gateway, token: &str) -> Result<ApiToken, Fault> {
    let query = Query::Authenticate(TokenHash::of(token));
    match gateway.view(&admin(), query).await? {
        View::Token(record) => Ok(*record),
        other => panic!("{other:?}"),
    }
}

async fn revoke(gateway: &Gateway, which: &str) -> Result<ApiToken, Fault> {
    let command = Command::RevokeToken(which.into());
    match gateway.submit(&admin(), command, None).await?.receipt {
        Receipt::Token(record) => Ok(*record),
        other => panic!("{other:?}"),
    }
}

async fn listed(gateway: &Gateway) -> Vec<ApiToken> {
    match gateway.view(&admin(), Query::Tokens).await.unwrap() {
        View::Tokens { tokens, .. } => tokens,
        other => panic!("{other:?}"),
    }
}

fn is(fault: &Fault, class: &Class, public: &str) {
    assert_eq!((fault.class(), fault.message()), (class, public));
}

/// Who calls with a token.
pub fn with(record: &ApiToken) -> Caller {
    Caller {
        token: record.id,
        vaults: match &record.vaults {
            Vaults::All => VaultScope::All,
            Vaults::Only(vaults) => VaultScope::Only(vaults.clone()),
        },
        access: record.access,
        operator: false,
        request_id: "test".into(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token__should_be_known_until_it_is_revoked_by_any_process_on_the_store() {
    let world = World::new();
    let (one, two) = (world.start().await, world.start().await);
    let made = make(&one, new_token("shop", Kind::Platform)).await;
    let text = made.secret.expose_secret();
    assert_eq!(kind_of(text), Some(Kind::Platform));
    assert_eq!(made.record.id, TokenHash::of(text).id());
    for gateway in [&one, &two] {
        assert_eq!(look_up(gateway, text).await.unwrap(), made.record);
        let fault = look_up(gateway, &text[..text.len() - 1]).await.unwrap_err();
        is(&fault, &Class::Unauthenticated, "unauthenticated");
    }
    // Nothing that is stored or shown holds the token.
    assert!(!format!("{made:?}").contains(&text[4..]));
    let revoked = revoke(&one, "shop").await.unwrap();
    assert!(revoked.revoked_at_ms.is_some());
    for gateway in [&two, &one] {
        let fault = look_up(gateway, text).await.unwrap_err();
        is(&fault, &Class::Unauthenticated, "unauthenticated");
    }
    // It stays listed, and revoking it again changes nothing.
    let again = revoke(&two, &made.record.id.to_string()).await.unwrap();
    assert_eq!(again, revoked);
    assert_eq!(listed(&two).await, [revoked]);
    assert_eq!(
        revoke(&one, "shop").await.unwrap_err().class(),
        &Class::Invalid
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token__should_be_known_after_a_restart_and_not_after_its_end() {
    let world = World::new();
    let gateway = world.start().await;
    let ends = NewToken {
        expires_at_ms: Some(u64::MAX),
        ..new_token("long", Kind::Sweep)
    };
    let long = make(&gateway, ends).await;
    let now = covault_core::port::Clock::now_ms(&*world.clock);
    let ends = NewToken {
        expires_at_ms: Some(now + 3_600_000),
        ..new_token("short", Kind::Sweep)
    };
    let short = make(&gateway, ends).await;
    gateway.stop().await;
    let gateway = world.start().await;
    let known = async |made: &MadeToken| {
        look_up(&gateway, made.secret.expose_secret())
            .await
            .is_ok_and(|record| record == made.record)
    };
    assert!(known(&long).await && known(&short).await);
    world.clock.ahead_ms.fetch_add(3_600_001, Ordering::SeqCst);
    assert!(known(&long).await && !known(&short).await);
    let past = NewToken {
        expires_at_ms: Some(now),
        ..new_token("past", Kind::Sweep)
    };
    let fault = try_make(&gateway, past).await.unwrap_err();
    is(&fault, &Class::Invalid, "expiresAtMs: is in the past");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names__should_belong_to_one_token_that_is_not_revoked() {
    let world = World::new();
    let gateway = world.start().await;
    let calls = (0..20).map(|_| try_make(&gateway, new_token("shop", Kind::Platform)));
    let (made, refused): (Vec<_>, Vec<_>) = futures::future::join_all(calls)
        .await
        .into_iter()
        .partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (1, 19));
    for fault in refused {
        assert_eq!(fault.unwrap_err().class(), &Class::Conflict);
    }
    revoke(&gateway, "shop").await.unwrap();
    let second = make(&gateway, new_token("shop", Kind::Sweep)).await;
    let listed = listed(&gateway).await;
    assert_eq!(listed.len(), 2);
    // The name is the second one's now.
    let revoked = revoke(&gateway, "shop").await.unwrap();
    assert_eq!(revoked.id, second.record.id);
    for which in ["", "shop", "7c9e6679-7425-40de-944b-e07fc1f90ae7"] {
        let fault = revoke(&gateway, which).await.unwrap_err();
        assert!(fault.message().starts_with("token: "), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens__should_be_for_operators_and_vaults_that_are_there() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    // A token that reaches every vault is no operator.
    let client = Caller {
        operator: false,
        ..admin()
    };
    for command in [
        Command::CreateToken(new_token("a", Kind::Platform)),
        Command::RevokeToken("a".into()),
        Command::RemoveNode(covault_core::order::NodeId([1; 32])),
        Command::CancelReshare {
            vault: vault.to_string(),
        },
    ] {
        let fault = gateway.submit(&client, command, None).await.unwrap_err();
        assert_eq!(fault.class(), &Class::Forbidden);
    }
    for query in [
        Query::Tokens,
        Query::Sweep("a".into()),
        Query::Nodes,
        Query::ChainNodes,
        Query::Stuck,
    ] {
        let fault = gateway.view(&client, query).await.unwrap_err();
        assert_eq!(fault.class(), &Class::Forbidden);
    }
    let of = |vaults: Vec<VaultId>| NewToken {
        vaults: Vaults::Only(vaults),
        ..new_token("a", Kind::Platform)
    };
    let unknown = VaultId::from_bytes([9; 16]);
    let fault = try_make(&gateway, of(vec![vault, unknown]))
        .await
        .unwrap_err();
    is(&fault, &Class::Invalid, "vaults[1]: is not that of a vault");
    assert!(listed(&gateway).await.is_empty());
    let made = make(&gateway, of(vec![vault])).await;
    // It reaches that vault and no other.
    let other = crate::world::vault(&gateway, "other").await;
    let caller = with(&made.record);
    let create = |vault| wallet_command(vault, wire::NetworkType::Evm, "");
    assert!(gateway.submit(&caller, create(vault), None).await.is_ok());
    let fault = gateway
        .submit(&caller, create(other), None)
        .await
        .unwrap_err();
    assert_eq!(fault.class(), &Class::Forbidden);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers__should_see_everything_but_signatures_and_change_nothing() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = evm_wallet(&gateway, vault).await;
    let signed = create(&gateway, raw(&from)).await;
    assert!(outcome(&gateway, &signed.uuid).await.error.is_none());
    let reader = Caller {
        token: TokenId::from_bytes([5; 16]),
        access: Access::ReadOnly,
        operator: false,
        ..admin()
    };
    let query = |caller: Caller, query| {
        let gateway = gateway.clone();
        async move { gateway.view(&caller, query).await }
    };
    let uuid = || Query::SigningRequest {
        uuid: signed.uuid.clone(),
    };
    let View::SigningRequest(whole) = query(admin(), uuid()).await.unwrap() else {
        panic!("no request")
    };
    let View::SigningRequest(seen) = query(reader.clone(), uuid()).await.unwrap() else {
        panic!("no request")
    };
    assert!(whole.signatures.is_some());
    let expected = wire::SigningRequest {
        signatures: None,
        ..*whole
    };
    assert_eq!(*seen, expected);
    let wallet = query(reader.clone(), Query::WalletByAddress(from.clone())).await;
    assert!(matches!(wallet, Ok(View::Wallet(_))));
    let execute = Query::Outcome {
        uuid: signed.uuid.clone(),
        timeout_ms: 1,
    };
    let fault = query(reader.clone(), execute).await.unwrap_err();
    is(&fault, &Class::Forbidden, "this token can only read");
    for command in [
        wallet_command(vault, wire::NetworkType::Evm, ""),
        Command::CreateSigningRequest(request(raw(&from))),
        Command::CreateDepositWallet(wire::CreateDepositWalletRequest::default()),
        Command::AddWatchAddress(wire::AddWatchAddressRequest::default()),
        Command::CreateToken(new_token("a", Kind::Platform)),
    ] {
        let fault = gateway.submit(&reader, command, None).await.unwrap_err();
        is(&fault, &Class::Forbidden, "this token can only read");
    }
    assert_eq!(world.requests().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers__should_not_see_a_hash_that_is_a_signature_they_could_use() {
    let world = World::new();
    let gateway = world.start().await;
    let vault = vault(&gateway, "main").await;
    let from = wallet(&gateway, vault, wire::NetworkType::Solana)
        .await
        .address;
    let reader = Caller {
        token: TokenId::from_bytes([5; 16]),
        access: Access::ReadOnly,
        operator: false,
        ..admin()
    };
    // Sent, it is what everybody can look up on the chain.
    for sent in [true, false] {
        let kind =
            wire::create_signing_request_request::Type::SolanaSendNative(wire::SolanaSendNative {
                to: from.clone(),
                from: from.clone(),
                value: if sent { "1" } else { "2" }.into(),
                chain_id: 101,
            });
        let asked = wire::CreateSigningRequestRequest {
            broadcast_tx: Some(sent),
            ..request(kind)
        };
        let made = created(try_create(&gateway, asked, None).await.unwrap());
        let hash = outcome(&gateway, &made.uuid).await.tx_hash;
        assert!(!hash.is_empty());
        assert_eq!(details(&gateway, &made.uuid).await.tx_hash, hash);
        let query = Query::SigningRequest {
            uuid: made.uuid.clone(),
        };
        let View::SigningRequest(seen) = gateway.view(&reader, query).await.unwrap() else {
            panic!("no request")
        };
        let list = Query::SigningRequests(wire::GetSigningRequestListRequest {
            vault_uuid: vault.to_string(),
            ..Default::default()
        });
        let View::SigningRequests(listed) = gateway.view(&reader, list).await.unwrap() else {
            panic!("no requests")
        };
        let listed = listed.into_iter().find(|it| it.uuid == made.uuid).unwrap();
        for seen in [*seen, listed] {
            assert_eq!(seen.tx_hash, if sent { hash.as_str() } else { "" });
            assert_eq!(seen.signatures, None);
        }
    }
}
