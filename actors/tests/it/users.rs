//! People who use the console: enrolled by a link, signed in by a passkey, ended by a revocation.

use std::sync::atomic::Ordering;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_actors::{
    gateway::{Caller, Gateway},
    operations::{CreateUser, CreateWallet, LinkUser, ListUsers, RevokeUser},
    users::{Browser, SIGN_IN_MS, SignInAnswer, SignOut, SignedIn},
};
use covault_core::{
    approval::{ApproverLine, testing::TestPasskey, verified::VERIFIED},
    fault::{Class, Fault},
    schema::{admin, wire},
    user::{IDLE_MS, LINK_MS, SESSION_MS},
};

use crate::world::*;

const ORIGIN: &str = "https://console.example.com";
const BROWSER: Browser<'static> = Browser {
    user_agent: "Mozilla/5.0 (test)",
    address: "192.0.2.7",
    request_id: "call-1",
};

/// A world whose service has a console.
fn world() -> World {
    let mut world = World::new();
    world.settings.console_origin = ORIGIN.to_owned();
    world
}

/// The secret of a link.
fn secret(link: Option<admin::UserLink>) -> String {
    let url = link.unwrap().url;
    let secret = url.strip_prefix("https://console.example.com/enrol#");
    secret.unwrap_or_else(|| panic!("{url}")).to_owned()
}

async fn try_create(gateway: &Gateway, name: &str, role: &str) -> Result<String, Fault> {
    let request = admin::CreateUserRequest {
        name: name.into(),
        role: role.into(),
        vaults: Vec::new(),
        all_vaults: true,
    };
    let made = call::<CreateUser>(gateway, &admin(), request).await?;
    Ok(secret(made.link))
}

async fn link(gateway: &Gateway, name: &str) -> Result<String, Fault> {
    let request = admin::LinkUserRequest { name: name.into() };
    let made = call::<LinkUser>(gateway, &admin(), request).await?;
    Ok(secret(made.link))
}

async fn revoke(gateway: &Gateway, name: &str) {
    let request = admin::RevokeUserRequest { name: name.into() };
    call::<RevokeUser>(gateway, &admin(), request)
        .await
        .unwrap();
}

async fn listed(gateway: &Gateway) -> Vec<admin::User> {
    let request = admin::ListUsersRequest::default();
    call::<ListUsers>(gateway, &admin(), request)
        .await
        .unwrap()
        .users
}

/// The line of a passkey, which is the first of its person.
fn line(name: &str, number: u8) -> ApproverLine {
    TestPasskey::new(&format!("{name}@key-1"), number).line()
}

async fn enrol(gateway: &Gateway, link: &str, line: ApproverLine) -> Result<(), Fault> {
    gateway.accounts().enrol(link, line, BROWSER).await
}

/// What a browser sends to sign in with a passkey.
async fn answer(gateway: &Gateway, passkey: &TestPasskey, handle: &[u8]) -> SignInAnswer {
    let challenge = gateway.accounts().sign_in_challenge(ORIGIN).await.unwrap();
    SignInAnswer {
        token: challenge.token,
        credential_id: passkey.passkey.credential_id.clone(),
        user_handle: handle.to_vec(),
        assertion: passkey.assert(&challenge.challenge),
    }
}

async fn sign_in(gateway: &Gateway, answer: &SignInAnswer) -> Result<String, Fault> {
    let accounts = gateway.accounts();
    let cookie = accounts.sign_in(ORIGIN, answer, None, BROWSER).await?;
    Ok(cookie.to_string())
}

/// A person with a passkey, and the user handle.
async fn person(gateway: &Gateway, name: &str, role: &str) -> (TestPasskey, Vec<u8>) {
    let link = try_create(gateway, name, role).await.unwrap();
    let handle = gateway.accounts().enrolment(&link).await.unwrap().id;
    let passkey = TestPasskey::new(&format!("{name}@key-1"), 1);
    enrol(gateway, &link, passkey.line()).await.unwrap();
    (passkey, handle.as_bytes().to_vec())
}

async fn session(gateway: &Gateway, cookie: &str) -> Result<SignedIn, Fault> {
    gateway.accounts().session(cookie, true).await
}

fn is_unauthenticated<T: std::fmt::Debug>(answer: Result<T, Fault>) {
    assert_eq!(answer.unwrap_err().class(), &Class::Unauthenticated);
}

#[tokio::test]
async fn link__should_enrol_one_passkey_once_and_in_time() {
    let world = world();
    let gateway = world.start().await;
    let first = try_create(&gateway, "treasurer", "approver").await.unwrap();
    for wrong in ["", "x", &first[1..], &first.to_uppercase()] {
        is_unauthenticated(enrol(&gateway, wrong, line("treasurer", 1)).await);
    }
    // A line of another person does not fit, whoever has the link.
    let fault = enrol(&gateway, &first, line("controller", 1))
        .await
        .unwrap_err();
    assert_eq!(fault.path(), Some("name"));
    // Nor one whose passkey has signed something else.
    let mut stolen = line("controller", 1);
    stolen.passkey.name = "treasurer@key-1".into();
    assert_eq!(
        enrol(&gateway, &first, stolen).await.unwrap_err().class(),
        &Class::Invalid
    );
    assert_eq!(
        gateway.accounts().enrolment(&first).await.unwrap().key_name,
        "treasurer@key-1"
    );
    enrol(&gateway, &first, line("treasurer", 1)).await.unwrap();
    is_unauthenticated(enrol(&gateway, &first, line("treasurer", 2)).await);
    is_unauthenticated(gateway.accounts().enrolment(&first).await.map(drop));

    // Another link replaces the one before it, and is over after a quarter of an hour.
    let second = link(&gateway, "treasurer").await.unwrap();
    let third = link(&gateway, "treasurer").await.unwrap();
    let next = TestPasskey::new("treasurer@key-2", 2).line();
    is_unauthenticated(enrol(&gateway, &second, next.clone()).await);
    world.clock.ahead_ms.fetch_add(LINK_MS, Ordering::SeqCst);
    is_unauthenticated(enrol(&gateway, &third, next.clone()).await);
    let fourth = link(&gateway, "treasurer").await.unwrap();
    world
        .clock
        .ahead_ms
        .fetch_add(LINK_MS - 30_000, Ordering::SeqCst);
    enrol(&gateway, &fourth, next).await.unwrap();
    let users = listed(&gateway).await;
    assert_eq!(users[0].passkeys.len(), 2);
    let lines: Vec<_> = users[0]
        .passkeys
        .iter()
        .map(|it| it.line.as_str())
        .collect();
    assert_eq!(lines[0], line("treasurer", 1).line().unwrap());
    assert_eq!(
        users[0].passkeys[0].words,
        line("treasurer", 1).fingerprint().unwrap().join(" ")
    );
}

#[tokio::test]
async fn passkey__should_be_of_one_account() {
    let gateway = world().start().await;
    let (passkey, _) = person(&gateway, "treasurer", "approver").await;
    let link = try_create(&gateway, "mallory", "viewer").await.unwrap();
    // The same credential id, under the name that the link asks for.
    let mut other = TestPasskey::new("mallory@key-1", 1);
    other.passkey.credential_id = passkey.passkey.credential_id.clone();
    let fault = enrol(&gateway, &link, other.line()).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Conflict);
    let owner = gateway
        .accounts()
        .owner(&passkey.passkey.credential_id)
        .await;
    assert!(owner.unwrap().is_some());
}

#[tokio::test]
async fn name__should_be_one_persons_for_ever() {
    let gateway = world().start().await;
    try_create(&gateway, "treasurer", "approver").await.unwrap();
    for (name, role) in [
        ("treasurer", "viewer"),
        ("<b>", "viewer"),
        ("", "viewer"),
        ("x", "root"),
    ] {
        try_create(&gateway, name, role).await.unwrap_err();
    }
    revoke(&gateway, "treasurer").await;
    revoke(&gateway, "treasurer").await;
    let fault = try_create(&gateway, "treasurer", "approver")
        .await
        .unwrap_err();
    assert_eq!(fault.class(), &Class::Conflict);
    assert_eq!(
        link(&gateway, "treasurer").await.unwrap_err().class(),
        &Class::WrongState
    );
    assert!(link(&gateway, "nobody").await.is_err());
    // Without a console there is nothing to link to.
    let gateway = World::new().start().await;
    let fault = try_create(&gateway, "treasurer", "approver")
        .await
        .unwrap_err();
    assert_eq!(fault.class(), &Class::WrongState);
    assert!(listed(&gateway).await.is_empty());
}

#[tokio::test]
async fn sign_in__should_take_each_signature_once_of_its_own_passkey_only() {
    let world = world();
    let gateway = world.start().await;
    let (treasurer, handle) = person(&gateway, "treasurer", "approver").await;
    let (controller, other_handle) = person(&gateway, "controller", "approver").await;
    let good = answer(&gateway, &treasurer, &handle).await;
    let cookie = sign_in(&gateway, &good).await.unwrap();
    assert_eq!(
        session(&gateway, &cookie).await.unwrap().user.name,
        "treasurer"
    );
    is_unauthenticated(sign_in(&gateway, &good).await);

    // Whose it is: by credential, by handle and by signature, all of one account.
    let mut wrong = Vec::new();
    wrong.push(answer(&gateway, &treasurer, &other_handle).await);
    wrong.push(answer(&gateway, &treasurer, &[]).await);
    let mut mixed = answer(&gateway, &controller, &handle).await;
    mixed.credential_id = treasurer.passkey.credential_id.clone();
    wrong.push(mixed);
    let stranger = TestPasskey::new("treasurer@key-1", 9);
    wrong.push(answer(&gateway, &stranger, &handle).await);
    // Another challenge than was given.
    let mut exchanged = answer(&gateway, &treasurer, &handle).await;
    exchanged.token = answer(&gateway, &treasurer, &handle).await.token;
    wrong.push(exchanged);
    let mut own = answer(&gateway, &treasurer, &handle).await;
    let mut bytes = BASE64_URL_SAFE_NO_PAD.decode(&own.token).unwrap();
    bytes[33] ^= 1;
    own.token = BASE64_URL_SAFE_NO_PAD.encode(bytes);
    wrong.push(own);
    // What approves something signs nobody in.
    let mut approval = answer(&gateway, &treasurer, &handle).await;
    approval.assertion = treasurer.line().possession;
    wrong.push(approval);
    // Another origin.
    let elsewhere = gateway
        .accounts()
        .sign_in_challenge("https://evil.example")
        .await
        .unwrap();
    wrong.push(SignInAnswer {
        token: elsewhere.token,
        assertion: treasurer.assert(&elsewhere.challenge),
        ..answer(&gateway, &treasurer, &handle).await
    });
    let mut said = std::collections::BTreeSet::new();
    for (place, wrong) in wrong.iter().enumerate() {
        let fault = sign_in(&gateway, wrong)
            .await
            .expect_err(&place.to_string());
        assert_eq!(fault.class(), &Class::Unauthenticated, "{place}");
        said.insert(fault.message().to_owned());
    }
    assert_eq!(said.len(), 1, "nobody learns why: {said:?}");
    let late = answer(&gateway, &treasurer, &handle).await;
    world.clock.ahead_ms.fetch_add(SIGN_IN_MS, Ordering::SeqCst);
    is_unauthenticated(sign_in(&gateway, &late).await);
}

/// A credential id is no secret, and whether it has an account is one.
#[tokio::test]
async fn refusals_to_sign_in__should_verify_the_same_whatever_is_wrong() {
    let gateway = world().start().await;
    let (treasurer, handle) = person(&gateway, "treasurer", "approver").await;
    let (gone, gone_handle) = person(&gateway, "controller", "approver").await;
    revoke(&gateway, "controller").await;
    let stranger = TestPasskey::new("treasurer@key-1", 9);
    let mut forged = answer(&gateway, &treasurer, &handle).await;
    forged.assertion = answer(&gateway, &stranger, &handle).await.assertion;
    let mut synced = answer(&gateway, &treasurer, &handle).await;
    synced.assertion = treasurer.clone().synced().assert(&[7; 32]);
    let refused = [
        answer(&gateway, &stranger, &handle).await,
        answer(&gateway, &stranger, &[0; 16]).await,
        answer(&gateway, &treasurer, &gone_handle).await,
        answer(&gateway, &gone, &gone_handle).await,
        forged,
        synced,
    ];
    let verified = || VERIFIED.with(|counts| counts.take());
    verified();
    for (place, refused) in refused.iter().enumerate() {
        is_unauthenticated(sign_in(&gateway, refused).await);
        assert_eq!(verified(), (1, 1), "{place}");
    }
    let good = answer(&gateway, &treasurer, &handle).await;
    sign_in(&gateway, &good).await.unwrap();
    assert_eq!(verified(), (1, 1));
}

#[tokio::test]
async fn session__should_end_when_idle_or_old_or_signed_out_or_replaced() {
    let world = world();
    let gateway = world.start().await;
    let (passkey, handle) = person(&gateway, "treasurer", "approver").await;
    let begin = async || {
        sign_in(&gateway, &answer(&gateway, &passkey, &handle).await)
            .await
            .unwrap()
    };
    let idle = begin().await;
    for wrong in ["", "x", &idle[1..], &idle.to_lowercase()] {
        is_unauthenticated(session(&gateway, wrong).await);
    }
    world
        .clock
        .ahead_ms
        .fetch_add(IDLE_MS - 60_000, Ordering::SeqCst);
    session(&gateway, &idle).await.unwrap();
    world
        .clock
        .ahead_ms
        .fetch_add(IDLE_MS - 60_000, Ordering::SeqCst);
    session(&gateway, &idle).await.unwrap();
    // What an open page asks by itself is no use of it.
    world
        .clock
        .ahead_ms
        .fetch_add(IDLE_MS - 60_000, Ordering::SeqCst);
    gateway.accounts().session(&idle, false).await.unwrap();
    world.clock.ahead_ms.fetch_add(60_000, Ordering::SeqCst);
    is_unauthenticated(session(&gateway, &idle).await);

    let old = begin().await;
    let mut last = Ok(());
    let mut passed = 0;
    while last.is_ok() {
        world
            .clock
            .ahead_ms
            .fetch_add(IDLE_MS / 2, Ordering::SeqCst);
        passed += IDLE_MS / 2;
        last = session(&gateway, &old).await.map(drop);
    }
    assert_eq!(passed, SESSION_MS);

    let out = begin().await;
    let who = session(&gateway, &out).await.unwrap();
    let accounts = gateway.accounts();
    let ended = accounts.sign_out(&who, &out, SignOut::Here, BROWSER).await;
    ended.unwrap();
    is_unauthenticated(session(&gateway, &out).await);
    // Who signs in anew has another secret, and the one before is worth nothing.
    let before = begin().await;
    let again = answer(&gateway, &passkey, &handle).await;
    let accounts = gateway.accounts();
    let after = accounts
        .sign_in(ORIGIN, &again, Some(&before), BROWSER)
        .await
        .unwrap();
    assert_ne!(*after, before);
    is_unauthenticated(session(&gateway, &before).await);
    session(&gateway, &after).await.unwrap();
}

#[tokio::test]
async fn revocation__should_end_all_sessions_and_calls_at_once() {
    let world = world();
    let gateway = world.start().await;
    let vault = vault(&gateway, "v").await;
    let (passkey, handle) = person(&gateway, "treasurer", "approver").await;
    let cookie = sign_in(&gateway, &answer(&gateway, &passkey, &handle).await)
        .await
        .unwrap();
    let signed_in = session(&gateway, &cookie).await.unwrap();
    let caller = Caller::person(&signed_in.user, "call-2");
    let wallet = || wire::CreateWalletRequest {
        vault_uuid: vault.to_string(),
        network_type: wire::NetworkType::Evm.into(),
        ..Default::default()
    };
    call::<CreateWallet>(&gateway, &caller, wallet())
        .await
        .unwrap();
    assert_eq!(listed(&gateway).await[0].sessions.len(), 1);
    revoke(&gateway, "treasurer").await;
    is_unauthenticated(session(&gateway, &cookie).await);
    is_unauthenticated(call::<CreateWallet>(&gateway, &caller, wallet()).await);
    is_unauthenticated(sign_in(&gateway, &answer(&gateway, &passkey, &handle).await).await);
    let users = listed(&gateway).await;
    assert!(users[0].sessions.is_empty() && users[0].revoked_at_ms.is_some());
}
