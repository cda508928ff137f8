//! API tokens: made, looked up, revoked, and what they may do.

use std::sync::atomic::Ordering;

use covault_actors::{
    gateway::{AdminCaller, Caller, Gateway, VaultScope},
    operations::{
        AddWatchAddress, CancelReshare, CreateDepositWallet, CreateSigningRequest, CreateToken,
        CreateWallet, GetSigningRequestDetails, GetSigningRequestList, GetWalletInfo, ListNodes,
        ListTokens, RemoveNode, RevokeToken, ShowSweep,
    },
};
use covault_core::{
    fault::{Class, Fault},
    ids::{TokenId, VaultId},
    schema::{
        admin::{
            CancelReshareRequest, CreateTokenRequest, CreateTokenResponse, ListNodesRequest,
            ListTokensRequest, RemoveNodeRequest, RevokeTokenRequest, ShowSweepRequest, Token,
        },
        wire::{self, get_wallet_info_request::Wallet as AuditActor},
    },
    token::{AdminRole, ApiToken, TokenAccess, TokenHash, TokenKind, TokenVaults, is_token},
    trace::TraceParent,
};

use crate::world::*;

pub fn new_token(name: &str, kind: TokenKind) -> CreateTokenRequest {
    if let Some(role) = kind.role() {
        return CreateTokenRequest {
            name: name.into(),
            kind: kind.name().into(),
            role: role.name().into(),
            allow: vec!["127.0.0.1".into()],
            expires_at_ms: Some(u64::MAX),
            ..Default::default()
        };
    }
    CreateTokenRequest {
        name: name.into(),
        kind: kind.name().into(),
        all_vaults: true,
        access: "full".into(),
        ..Default::default()
    }
}

async fn try_make(
    gateway: &Gateway,
    new: CreateTokenRequest,
) -> Result<CreateTokenResponse, Fault> {
    call::<CreateToken>(gateway, &admin(), new).await
}

pub async fn make(gateway: &Gateway, new: CreateTokenRequest) -> CreateTokenResponse {
    try_make(gateway, new).await.unwrap()
}

async fn look_up(gateway: &Gateway, token: &str) -> Result<ApiToken, Fault> {
    let record = gateway.token(&TokenHash::of(token)).await?;
    let record = record.ok_or_else(Fault::unauthenticated)?;
    gateway.check_token(&record)?;
    Ok(record)
}

async fn revoke(gateway: &Gateway, which: &str) -> Result<Token, Fault> {
    let request = RevokeTokenRequest {
        token: which.into(),
    };
    let revoked = call::<RevokeToken>(gateway, &admin(), request).await?;
    Ok(revoked.token.unwrap())
}

async fn listed(gateway: &Gateway) -> Vec<Token> {
    listed_after(gateway, None).await.unwrap()
}

async fn listed_after(gateway: &Gateway, after: Option<&str>) -> Result<Vec<Token>, Fault> {
    let request = ListTokensRequest {
        after: after.map(str::to_owned),
    };
    let listed = call::<ListTokens>(gateway, &admin(), request).await?;
    Ok(listed.tokens)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens__should_be_listed_from_any_of_them_on() {
    let world = World::new();
    let gateway = world.start().await;
    for number in 0..60 {
        make(
            &gateway,
            new_token(&format!("t{number}"), TokenKind::Platform),
        )
        .await;
    }
    let all = listed(&gateway).await;
    assert_eq!(all.len(), 60);
    let rest = listed_after(&gateway, Some(&all[29].id)).await.unwrap();
    assert_eq!(rest, all[30..]);
    let none = listed_after(&gateway, Some(&all[59].id)).await.unwrap();
    assert!(none.is_empty());
    let fault = listed_after(&gateway, Some("t5")).await.unwrap_err();
    is(&fault, &Class::Invalid, "after: is not the id of a token");
}

fn is(fault: &Fault, class: &Class, message: &str) {
    assert_eq!((fault.class(), fault.message()), (class, message));
}

fn is_forbidden<T: std::fmt::Debug>(answer: Result<T, Fault>) {
    assert_eq!(answer.unwrap_err().class(), &Class::Forbidden);
}

/// Who calls with a token.
pub fn with(token: &Token) -> Caller {
    let vaults = token.vaults.iter().map(|vault| vault.parse().unwrap());
    let admin = AdminRole::parse(&token.role).map(|role| AdminCaller {
        role,
        token: Some(token.name.clone()),
    });
    Caller {
        token: token.id.parse().unwrap(),
        vaults: if token.all_vaults {
            VaultScope::All
        } else {
            VaultScope::Only(vaults.collect())
        },
        access: match &admin {
            Some(admin) => admin.role.access(),
            None => TokenAccess::parse(&token.access).unwrap(),
        },
        admin,
        request_id: "test".into(),
        person: None,
        trace: TraceParent::Unknown,
    }
}

/// The record of a token that was made.
fn record_of(made: &CreateTokenResponse) -> ApiToken {
    let token = made.token.clone().unwrap();
    let vaults = token.vaults.iter().map(|vault| vault.parse().unwrap());
    ApiToken {
        id: token.id.parse().unwrap(),
        name: token.name,
        kind: TokenKind::parse(&token.kind, &token.role).unwrap(),
        vaults: if token.all_vaults {
            TokenVaults::All
        } else {
            TokenVaults::Only(vaults.collect())
        },
        access: TokenAccess::parse(&token.access).unwrap(),
        allow: token.allow.iter().map(|at| at.parse().unwrap()).collect(),
        created_at_ms: token.created_at_ms,
        expires_at_ms: token.expires_at_ms,
        revoked_at_ms: token.revoked_at_ms,
        hash: TokenHash::of(&made.secret),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token__should_be_known_until_it_is_revoked_by_any_process_on_the_store() {
    let world = World::new();
    let (one, two) = (world.start().await, world.start().await);
    let made = make(&one, new_token("shop", TokenKind::Platform)).await;
    let (text, token) = (made.secret.as_str(), made.token.as_ref().unwrap());
    assert!(is_token(text));
    assert_eq!(token.id, TokenHash::of(text).id().to_string());
    for gateway in [&one, &two] {
        assert_eq!(look_up(gateway, text).await.unwrap(), record_of(&made));
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
    let again = revoke(&two, &token.id).await.unwrap();
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
    let ends = CreateTokenRequest {
        expires_at_ms: Some(u64::MAX),
        ..new_token("long", TokenKind::Sweep)
    };
    let long = make(&gateway, ends).await;
    let now = covault_core::port::Clock::now_ms(&*world.clock);
    let ends = CreateTokenRequest {
        expires_at_ms: Some(now + 3_600_000),
        ..new_token("short", TokenKind::Sweep)
    };
    let short = make(&gateway, ends).await;
    gateway.stop().await;
    let gateway = world.start().await;
    let known = async |made: &CreateTokenResponse| {
        let found = look_up(&gateway, &made.secret).await;
        found.is_ok_and(|record| record == record_of(made))
    };
    assert!(known(&long).await && known(&short).await);
    world.clock.ahead_ms.fetch_add(3_600_001, Ordering::SeqCst);
    assert!(known(&long).await && !known(&short).await);
    let past = CreateTokenRequest {
        expires_at_ms: Some(now),
        ..new_token("past", TokenKind::Sweep)
    };
    let fault = try_make(&gateway, past).await.unwrap_err();
    is(&fault, &Class::Invalid, "expiresAtMs: is in the past");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names__should_belong_to_one_token_that_is_not_revoked() {
    let world = World::new();
    let gateway = world.start().await;
    let calls = (0..20).map(|_| try_make(&gateway, new_token("shop", TokenKind::Platform)));
    let (made, refused): (Vec<_>, Vec<_>) = futures::future::join_all(calls)
        .await
        .into_iter()
        .partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (1, 19));
    for fault in refused {
        assert_eq!(fault.unwrap_err().class(), &Class::Conflict);
    }
    revoke(&gateway, "shop").await.unwrap();
    let second = make(&gateway, new_token("shop", TokenKind::Sweep)).await;
    let listed = listed(&gateway).await;
    assert_eq!(listed.len(), 2);
    // The name is the second one's now.
    let revoked = revoke(&gateway, "shop").await.unwrap();
    assert_eq!(revoked.id, second.token.unwrap().id);
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
        admin: None,
        ..admin()
    };
    let (gateway, token) = (&gateway, || "a".to_owned());
    is_forbidden(call::<CreateToken>(gateway, &client, new_token("a", TokenKind::Platform)).await);
    let request = RevokeTokenRequest { token: token() };
    is_forbidden(call::<RevokeToken>(gateway, &client, request).await);
    let public_key = node(1).openssh_line("");
    is_forbidden(call::<RemoveNode>(gateway, &client, RemoveNodeRequest { public_key }).await);
    let vault_uuid = vault.to_string();
    let request = CancelReshareRequest { vault_uuid };
    is_forbidden(call::<CancelReshare>(gateway, &client, request).await);
    is_forbidden(call::<ListTokens>(gateway, &client, ListTokensRequest::default()).await);
    let request = ShowSweepRequest { token: token() };
    is_forbidden(call::<ShowSweep>(gateway, &client, request).await);
    is_forbidden(call::<ListNodes>(gateway, &client, ListNodesRequest {}).await);
    let of = |vaults: Vec<VaultId>| CreateTokenRequest {
        vaults: vaults.iter().map(ToString::to_string).collect(),
        all_vaults: false,
        ..new_token("a", TokenKind::Platform)
    };
    let unknown = VaultId::from_bytes([9; 16]);
    let fault = try_make(gateway, of(vec![vault, unknown]))
        .await
        .unwrap_err();
    is(&fault, &Class::Invalid, "vaults[1]: is not that of a vault");
    assert!(listed(gateway).await.is_empty());
    let made = make(gateway, of(vec![vault])).await;
    // It reaches that vault and no other.
    let other = crate::world::vault(gateway, "other").await;
    let caller = with(&made.token.unwrap());
    let request = |vault| wallet_request(vault, wire::NetworkType::Evm, "");
    let reached = call::<CreateWallet>(gateway, &caller, request(vault)).await;
    assert!(reached.is_ok());
    is_forbidden(call::<CreateWallet>(gateway, &caller, request(other)).await);
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
        access: TokenAccess::ReadOnly,
        admin: None,
        ..admin()
    };
    let asked = wire::GetSigningRequestDetailsRequest {
        uuid: signed.uuid.clone(),
    };
    let whole = details(&gateway, &signed.uuid).await;
    let seen = call::<GetSigningRequestDetails>(&gateway, &reader, asked).await;
    assert!(whole.signatures.is_some());
    let expected = wire::SigningRequest {
        signatures: None,
        ..whole
    };
    assert_eq!(seen.unwrap().signing_request, Some(expected));
    let asked = wire::GetWalletInfoRequest {
        wallet: Some(AuditActor::Address(from.clone())),
    };
    assert!(
        call::<GetWalletInfo>(&gateway, &reader, asked)
            .await
            .is_ok()
    );
    let only_reads = |fault: Fault| is(&fault, &Class::Forbidden, "this token is read-only");
    only_reads(
        try_outcome(&gateway, &reader, &signed.uuid)
            .await
            .unwrap_err(),
    );
    let asked = wallet_request(vault, wire::NetworkType::Evm, "");
    only_reads(
        call::<CreateWallet>(&gateway, &reader, asked)
            .await
            .unwrap_err(),
    );
    let asked = request(raw(&from));
    only_reads(
        call::<CreateSigningRequest>(&gateway, &reader, asked)
            .await
            .unwrap_err(),
    );
    let made = call::<CreateDepositWallet>(&gateway, &reader, Default::default()).await;
    only_reads(made.unwrap_err());
    let made = call::<AddWatchAddress>(&gateway, &reader, Default::default()).await;
    only_reads(made.unwrap_err());
    let made = call::<CreateToken>(&gateway, &reader, new_token("a", TokenKind::Platform)).await;
    only_reads(made.unwrap_err());
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
        access: TokenAccess::ReadOnly,
        admin: None,
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
                ..Default::default()
            });
        let asked = wire::CreateSigningRequestRequest {
            broadcast_tx: Some(sent),
            ..request(kind)
        };
        let made = created(try_create(&gateway, asked, None).await.unwrap());
        let hash = outcome(&gateway, &made.uuid).await.tx_hash;
        assert!(!hash.is_empty());
        assert_eq!(details(&gateway, &made.uuid).await.tx_hash, hash);
        let asked = wire::GetSigningRequestDetailsRequest {
            uuid: made.uuid.clone(),
        };
        let seen = call::<GetSigningRequestDetails>(&gateway, &reader, asked).await;
        let seen = seen.unwrap().signing_request.unwrap();
        let asked = wire::GetSigningRequestListRequest {
            vault_uuid: vault.to_string(),
            ..Default::default()
        };
        let listed = call::<GetSigningRequestList>(&gateway, &reader, asked).await;
        let listed = listed.unwrap().signing_requests;
        let listed = listed.into_iter().find(|it| it.uuid == made.uuid).unwrap();
        for seen in [seen, listed] {
            assert_eq!(seen.tx_hash, if sent { hash.as_str() } else { "" });
            assert_eq!(seen.signatures, None);
        }
    }
}
