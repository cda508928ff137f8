//! Admin tokens: what each role may do, and the name that the audit log has of it.

use covault_actors::{
    gateway::{Caller, Gateway},
    operations::{
        BeginBackup, CreateToken, GetBackupPart, ListAuditChains, ListNodes, ListTokens,
        ListVaults, RevokeToken,
    },
};
use covault_core::{
    audit::AuditChain,
    fault::{Class, Fault},
    schema::admin::{
        BeginBackupRequest, CreateTokenRequest, GetBackupPartRequest, ListAuditChainsRequest,
        RevokeTokenRequest,
    },
    token::{AdminRole, TokenHash, TokenKind},
};

use crate::{
    audit::whole,
    tokens::{make, new_token, with},
    world::*,
};

fn message<T: std::fmt::Debug>(answer: Result<T, Fault>) -> String {
    let fault = answer.unwrap_err();
    assert_eq!(fault.class(), &Class::Forbidden, "{fault}");
    fault.message().to_owned()
}

async fn caller(gateway: &Gateway, role: AdminRole) -> Caller {
    let made = make(gateway, new_token(role.name(), TokenKind::Admin(role))).await;
    let record = gateway.token(&TokenHash::of(&made.secret)).await.unwrap();
    assert_eq!(record.unwrap().kind, TokenKind::Admin(role));
    let token = made.token.unwrap();
    assert_eq!(
        (token.role.as_str(), token.access.as_str()),
        (role.name(), "")
    );
    with(&token)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_tokens__should_do_what_their_role_allows_under_their_name() {
    let world = World::new();
    let gateway = &world.start().await;
    let vault = vault(gateway, "main").await;
    let [operator, auditor, viewer] = [
        caller(gateway, AdminRole::Operator).await,
        caller(gateway, AdminRole::Auditor).await,
        caller(gateway, AdminRole::Viewer).await,
    ];
    for caller in [&operator, &auditor, &viewer] {
        let vaults = call::<ListVaults>(gateway, caller, Default::default()).await;
        assert_eq!(vaults.unwrap().vaults.len(), 1);
        assert!(
            call::<ListNodes>(gateway, caller, Default::default())
                .await
                .is_ok()
        );
        assert!(
            call::<ListTokens>(gateway, caller, Default::default())
                .await
                .is_ok()
        );
        // It opens the admin API and nothing else: vaults are reached with tokens of the platform.
        assert!(caller.admin.is_some());
    }
    let log = async |caller: &Caller| {
        call::<ListAuditChains>(gateway, caller, ListAuditChainsRequest::default()).await
    };
    assert!(log(&operator).await.is_ok() && log(&auditor).await.is_ok());
    let refused = message(log(&viewer).await);
    assert!(refused.contains("may not read the audit log"), "{refused}");
    for reader in [&auditor, &viewer] {
        let new = new_token("shop", TokenKind::Platform);
        let refused = [
            message(call::<CreateToken>(gateway, reader, new).await),
            message(call::<BeginBackup>(gateway, reader, BeginBackupRequest {}).await),
            message(call::<GetBackupPart>(gateway, reader, GetBackupPartRequest::default()).await),
        ];
        assert!(
            refused.iter().all(|said| said == "this token is read-only"),
            "{refused:?}"
        );
    }
    // An operator changes things, in its own name.
    let made =
        call::<CreateToken>(gateway, &operator, new_token("shop", TokenKind::Platform)).await;
    let made = made.unwrap().token.unwrap();
    let revoke = RevokeTokenRequest {
        token: made.id.clone(),
    };
    call::<RevokeToken>(gateway, &operator, revoke)
        .await
        .unwrap();
    let entries = &whole(&*world.store, "").await[&AuditChain::Service];
    let subject = format!("token:{}", made.id);
    let by: Vec<_> = entries
        .iter()
        .filter(|entry| entry.subject == subject)
        .collect();
    assert_eq!(by.len(), 2, "{entries:#?}");
    assert!(
        by.iter().all(|entry| entry.by == "admin:operator"),
        "{by:#?}"
    );

    // It makes no token that reaches further than itself; the token of the file does.
    let wider = || CreateTokenRequest {
        allow: vec!["0.0.0.0/0".into()],
        ..new_token("wider", TokenKind::Admin(AdminRole::Viewer))
    };
    let refused = message(call::<CreateToken>(gateway, &operator, wider()).await);
    assert!(
        refused.starts_with("allow: an admin token cannot make one"),
        "{refused}"
    );
    make(gateway, wider()).await;

    // What an admin token does not have is refused by name.
    let admin_token = || new_token("other", TokenKind::Admin(AdminRole::Operator));
    for (new, start) in [
        (
            CreateTokenRequest {
                access: "full".into(),
                ..admin_token()
            },
            "access: is not for an admin token",
        ),
        (
            CreateTokenRequest {
                all_vaults: true,
                ..admin_token()
            },
            "allVaults: is not for",
        ),
        (
            CreateTokenRequest {
                vaults: vec![vault.to_string()],
                ..admin_token()
            },
            "vaults: is not for",
        ),
        (
            CreateTokenRequest {
                role: "root".into(),
                ..admin_token()
            },
            "role: must be",
        ),
        (
            CreateTokenRequest {
                expires_at_ms: None,
                ..admin_token()
            },
            "expiresAtMs: is required",
        ),
        (
            CreateTokenRequest {
                allow: vec![],
                ..admin_token()
            },
            "allow: is required",
        ),
        (
            CreateTokenRequest {
                role: "viewer".into(),
                ..new_token("x", TokenKind::Sweep)
            },
            "role: is for admin",
        ),
    ] {
        let fault = call::<CreateToken>(gateway, &admin(), new)
            .await
            .unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
        assert!(fault.message().starts_with(start), "{start} {fault}");
    }
    // Once it is revoked, it opens nothing.
    let revoke = RevokeTokenRequest {
        token: "viewer".into(),
    };
    call::<RevokeToken>(gateway, &operator, revoke)
        .await
        .unwrap();
    let refused = call::<ListVaults>(gateway, &viewer, Default::default()).await;
    assert_eq!(refused.unwrap_err().class(), &Class::Unauthenticated);
}
