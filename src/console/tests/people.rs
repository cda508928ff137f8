//! Enrolment, signing in, what each role sees.

use axum::Extension;
use covault_core::approval::ApproverLine;
use futures::StreamExt as _;

use super::*;

#[tokio::test]
async fn enrolment__should_show_line_and_words_once_for_a_link() {
    let world = World::new().await;
    let link = world.invite("treasurer", "approver", &[]).await;
    let passkey = TestPasskey::new("treasurer@key-1", 1);
    let (_, enrolled) = world.enrol(&passkey, &link).await;
    assert_eq!(enrolled.status, 200, "{}", enrolled.text);
    let shown = enrolled.json();
    // The line is the one that signers and command line read, with the proof in it.
    let line = ApproverLine::parse(shown["line"].as_str().unwrap()).unwrap();
    assert_eq!(line.passkey, passkey.passkey);
    assert_eq!(shown["words"], line.fingerprint().unwrap().join(" "));
    let again = world.post("/enrol/begin", "", &json!({"link": link})).await;
    assert_eq!(again.status, 401);
    assert!(
        again.json()["error"]
            .as_str()
            .unwrap()
            .contains("cannot be used")
    );

    // The second passkey has the next name, and nobody chooses another.
    let link = world.link("treasurer").await;
    let wrong = TestPasskey::new("treasurer@key-1", 2);
    assert_eq!(world.enrol(&wrong, &link).await.1.status, 400);
    let second = TestPasskey::new("treasurer@key-2", 2);
    let (handle, enrolled) = world.enrol(&second, &link).await;
    assert_eq!(enrolled.status, 200);
    let cookie = cookie_of(&world.try_sign_in(&second, &handle, "").await);
    let account = world.get("/account", &cookie).await;
    for part in [
        "treasurer@key-1",
        "treasurer@key-2",
        shown["words"].as_str().unwrap(),
    ] {
        assert!(account.text.contains(part), "{}", account.text);
    }
}

#[tokio::test]
async fn enrolment__should_refuse_a_passkey_that_proves_nothing() {
    let world = World::new().await;
    let link = world.invite("treasurer", "approver", &[]).await;
    let passkey = TestPasskey::new("treasurer@key-1", 1);
    let other = TestPasskey::new("treasurer@key-1", 2);
    let new = new_passkey(&passkey);
    let proof = world.post("/enrol/prove", "", &new).await.json();
    // Signed by another key, for another line, without its user, and for another page.
    let by_other = other.assert(&challenge(&proof));
    let for_other = passkey.assert(&other.passkey.enrol_challenge().unwrap());
    let mut unverified = passkey.authenticator_data();
    unverified[32] &= !0b100;
    let unverified = passkey.sign(
        unverified,
        passkey.client_data(&challenge(&proof)).into_bytes(),
    );
    let elsewhere = passkey
        .client_data(&challenge(&proof))
        .replace("console.", "evil.");
    let elsewhere = passkey.sign(passkey.authenticator_data(), elsewhere.into_bytes());
    for assertion in [by_other, for_other, unverified, elsewhere] {
        let credential = credential(&passkey, &assertion, "");
        let body = json!({"link": link, "passkey": new, "credential": credential});
        let refused = world.post("/enrol", "", &body).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
    }
    let credential = answer(&other, &proof, "");
    let body = json!({"link": link, "passkey": new, "credential": credential});
    assert_eq!(world.post("/enrol", "", &body).await.status, 400);
    // The link is as good as before.
    assert_eq!(world.enrol(&passkey, &link).await.1.status, 200);
}

#[tokio::test]
async fn pages__should_be_for_those_who_have_signed_in() {
    let world = World::new().await;
    for path in [
        "/",
        "/history",
        "/vaults",
        "/nodes",
        "/tokens",
        "/users",
        "/settings",
        "/wallets/x",
        "/history.csv",
        "/audit",
        "/audit/verify",
        "/account",
        "/requests/x",
        "/events",
        "/nowhere",
    ] {
        let said = world.get(path, "").await;
        assert_eq!(
            (said.status, said.headers["location"].to_str().unwrap()),
            (303, "/sign-in"),
            "{path}"
        );
        assert!(said.text.is_empty());
    }
    let script = world.post("/approve/begin", "", &json!({})).await;
    assert_eq!(script.status, 401);
    assert!(script.json()["error"].is_string());
    for path in [
        "/sign-in",
        "/enrol",
        "/static/console.css",
        "/static/console.js",
    ] {
        assert_eq!(world.get(path, "").await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn roles_and_vaults__should_decide_what_is_seen() {
    let world = World::new().await;
    let approver = world.person("treasurer", "approver", &[]).await;
    let people = [("treasurer", approver.line.as_str())];
    let first = world.vault("first", 1, &people).await;
    let second = world.vault("second", 1, &people).await;
    let from = world.wallet(&first, "cash").await;
    let uuid = world.message(&from, "hello", "rent").await;
    let viewer = world.person("viewer", "viewer", &[&second]).await;
    let operator = world.person("operator", "operator", &[]).await;
    let auditor = world.person("auditor", "auditor", &[&first]).await;

    let inbox = world.get("/", &approver.cookie).await;
    assert!(inbox.text.contains("<title>(1) Inbox"), "{}", inbox.text);
    assert!(inbox.text.contains("rent") && inbox.text.contains(&uuid));
    let page = format!("/requests/{uuid}");
    for (who, sees) in [
        (&approver, true),
        (&operator, true),
        (&auditor, true),
        (&viewer, false),
    ] {
        let said = world.get(&page, &who.cookie).await;
        assert_eq!(said.status, if sees { 200 } else { 400 }, "{}", said.text);
        let vaults = world.get("/vaults", &who.cookie).await.text;
        assert_eq!(vaults.contains(&first), sees);
        let wallets = world.get(&format!("/vaults/{first}"), &who.cookie).await;
        assert_eq!(wallets.status == 200 && wallets.text.contains(&from), sees);
        let history = world.get("/history", &who.cookie).await.text;
        assert_eq!(history.contains(&uuid), sees);
        // Only an approver is offered to approve.
        let offered = said.text.contains("data-approve>");
        assert_eq!(offered, who.cookie == approver.cookie);
    }
    assert!(!world.get("/", &viewer.cookie).await.text.contains(&uuid));
    for (who, nodes, audit) in [
        (&approver, 403, 403),
        (&operator, 200, 403),
        (&auditor, 403, 200),
        (&viewer, 403, 403),
    ] {
        assert_eq!(world.get("/nodes", &who.cookie).await.status, nodes);
        assert_eq!(world.get("/audit", &who.cookie).await.status, audit);
    }
    // What belongs to no vault is not for one who sees one vault.
    let refused = world.get("/audit?chain=service", &auditor.cookie).await;
    assert_eq!(refused.status, 404, "{}", refused.text);
    let log = world.get("/audit", &auditor.cookie).await.text;
    assert!(
        !log.contains("SignedIn") && log.contains("vault first"),
        "{log}"
    );
    // The history finds by text and status.
    for (query, found) in [
        ("search=RENT", true),
        ("search=nothing", false),
        ("status=pending", true),
        ("status=failed", false),
        ("page=9", false),
    ] {
        let history = world
            .get(&format!("/history?vault={first}&{query}"), &approver.cookie)
            .await;
        assert_eq!(history.text.contains(&uuid), found, "{query}");
    }
}

#[tokio::test]
async fn session__should_end_with_the_person_who_had_it() {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    assert_eq!(world.get("/", &person.cookie).await.status, 200);
    let form = format!("form_token={}", person.form_token);
    let cookie = format!("{}={}", sessions::COOKIE, person.cookie);
    let headers = [
        ("cookie", cookie.as_str()),
        ("origin", ORIGIN),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    let out = world.send("POST", "/sign-out", &headers, form).await;
    assert_eq!(out.status, 303, "{}", out.text);
    assert!(
        out.headers["set-cookie"]
            .to_str()
            .unwrap()
            .contains("Max-Age=0")
    );
    assert_eq!(world.get("/", &person.cookie).await.status, 303);
    let again = world.try_sign_in(&person.passkey, &person.handle, "").await;
    let cookie = cookie_of(&again);
    assert_eq!(world.get("/", &cookie).await.status, 200);
    world.revoke("treasurer").await;
    assert_eq!(world.get("/", &cookie).await.status, 303);
    let again = world.try_sign_in(&person.passkey, &person.handle, "").await;
    assert_eq!(again.status, 401);
}

#[tokio::test]
async fn events__should_say_how_many_wait_and_then_what_changes() {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    let people = [("treasurer", person.line.as_str())];
    let vault = world.vault("treasury", 1, &people).await;
    let from = world.wallet(&vault, "cash").await;
    world.message(&from, "first", "").await;
    let cookie = format!("{}={}", sessions::COOKIE, person.cookie);
    let request = Request::builder()
        .uri("/events")
        .header("cookie", cookie)
        .body(Body::empty())
        .unwrap();
    let response = world.app.clone().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body().into_data_stream();
    let mut heard = String::new();
    let until = async |heard: &mut String, body: &mut axum::body::BodyDataStream, what: &str| {
        while !heard.contains(what) {
            let next = tokio::time::timeout(std::time::Duration::from_secs(20), body.next());
            let chunk = next.await.expect("in time").expect("more").unwrap();
            heard.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    };
    let inbox = world.get("/", &person.cookie).await;
    let (_, mark) = inbox.text.split_once("data-pending=\"").unwrap();
    let (mark, _) = mark.split_once('"').unwrap();
    let pending = format!("event: pending\ndata: {mark}\n");
    until(&mut heard, &mut body, &pending).await;
    world.message(&from, "second", "").await;
    until(&mut heard, &mut body, "event: changed").await;
    // Nothing of what it was.
    assert!(
        !heard.contains("treasury") && !heard.contains(&from),
        "{heard}"
    );
}

#[tokio::test]
async fn session__should_be_seen_and_ended_by_its_person_and_by_operators_without_revoking() {
    let inner = World::behind(1).await;
    let peer = Extension(Peer("10.0.0.1:4000".parse().unwrap()));
    let app = inner.app.clone().layer(peer);
    let world = World { app, ..inner };
    let person = world.person("treasurer", "approver", &[]).await;
    let begun = world.post("/sign-in/begin", "", &json!({})).await.json();
    let credential = answer(&person.passkey, &begun, &person.handle);
    let headers = [
        ("origin", ORIGIN),
        ("sec-fetch-site", "same-origin"),
        ("content-type", "application/json"),
        ("user-agent", "Test/1 <b>"),
        ("x-forwarded-for", "192.0.2.9"),
    ];
    let body = json!({"token": begun["token"], "credential": credential});
    let other = world.send("POST", "/sign-in", &headers, body.to_string());
    let other = cookie_of(&other.await);
    let page = world.get("/account", &person.cookie).await.text;
    assert_eq!(page.matches("last seen").count(), 2, "{page}");
    assert_eq!(page.matches("<strong>Here</strong>").count(), 1, "{page}");
    assert!(
        page.contains("from <bdi>192.0.2.9</bdi>: <bdi>Test/1 &#60;b&#62;</bdi>"),
        "{page}"
    );
    let elsewhere = async |cookie: &str, form_token: &str| {
        let cookie = format!("{}={cookie}", sessions::COOKIE);
        let headers = [
            ("cookie", cookie.as_str()),
            ("origin", ORIGIN),
            ("content-type", "application/x-www-form-urlencoded"),
        ];
        let form = format!("form_token={form_token}");
        world
            .send("POST", "/sign-out/elsewhere", &headers, form)
            .await
            .status
    };
    // With another session's form nothing ends.
    assert_eq!(elsewhere(&other, &person.form_token).await, 403);
    assert_eq!(world.get("/", &person.cookie).await.status, 200);
    assert_eq!(elsewhere(&person.cookie, &person.form_token).await, 303);
    assert_eq!(world.get("/", &other).await.status, 303);
    assert_eq!(world.get("/", &person.cookie).await.status, 200);
    // The operator's way. The account stays: the person signs in again.
    let request = admin::SignOutUserRequest {
        name: "treasurer".into(),
    };
    let user = world.call::<SignOutUser>(&request).await.user.unwrap();
    assert!(user.revoked_at_ms.is_none() && user.sessions.is_empty());
    assert_eq!(world.get("/", &person.cookie).await.status, 303);
    let again = world.try_sign_in(&person.passkey, &person.handle, "").await;
    assert_eq!(again.status, 200);
    let auditor = world.person("auditor", "auditor", &[]).await;
    let log = world
        .get("/audit?chain=service", &auditor.cookie)
        .await
        .text;
    assert_eq!(log.matches("SignedOut").count(), 2, "{log}");
}

#[tokio::test]
async fn next_page__should_name_nobody_whom_the_operator_does_not_see() {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    let people = [("treasurer", person.line.as_str())];
    let vault = world.vault("treasury", 1, &people).await;
    let other = world.vault("other", 1, &people).await;
    let operator = world.person("operator", "operator", &[&vault]).await;
    // With operator and treasurer it is one page, and a stranger before the next one.
    for number in 0..99 {
        world
            .invite(&format!("v{number:03}"), "viewer", &[&vault])
            .await;
    }
    world.invite("v097-of-others", "viewer", &[&other]).await;
    let page = world.get("/users", &operator.cookie).await.text;
    assert!(page.contains("href=\"/users?after=v097\""), "{page}");
    assert!(!page.contains("of-others"), "{page}");
    let page = world.get("/users?after=v097", &operator.cookie).await.text;
    assert!(
        page.contains(">v098<") && !page.contains("of-others"),
        "{page}"
    );
    assert!(!page.contains("after="), "{page}");
}
