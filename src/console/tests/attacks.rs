//! What others try: from other sites, with what they have stolen, and through texts.

use std::net::SocketAddr;

use axum::Extension;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest as _, Sha256};

use super::*;
use crate::{
    api::admission::{Admission, AdmissionLimits, AnswerShare, CallRate},
    http::tests::routes::UNLIMITED,
};

#[tokio::test]
async fn another_site__should_have_nothing_done() {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    let cookie = format!("{}={}", sessions::COOKIE, person.cookie);
    let body = json!({"form_token": person.form_token, "items": []}).to_string();
    let send = async |more: &[(&str, &str)]| {
        let fixed = [
            ("cookie", cookie.as_str()),
            ("content-type", "application/json"),
            ("accept", "application/json"),
        ];
        let headers = [fixed.as_slice(), more].concat();
        world
            .send("POST", "/approve/begin", &headers, body.clone())
            .await
            .status
    };
    let own = ("origin", ORIGIN);
    for headers in [
        vec![],
        vec![("origin", "null")],
        vec![("origin", "https://evil.example")],
        vec![("origin", "https://evil.console.example.com")],
        vec![("origin", "https://example.com")],
        vec![("origin", "http://console.example.com")],
        vec![("origin", "https://console.example.com:8443")],
        vec![("origin", "https://console.example.com.evil.example")],
        vec![own, own],
        vec![own, ("origin", "https://evil.example")],
        vec![own, ("sec-fetch-site", "cross-site")],
        vec![own, ("sec-fetch-site", "same-site")],
        vec![own, ("sec-fetch-site", "none")],
        vec![
            own,
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "cross-site"),
        ],
    ] {
        assert_eq!(send(&headers).await, 403, "{headers:?}");
    }
    // As the page itself sends it: what is wrong then is that nothing was chosen.
    assert_eq!(send(&[own]).await, 400);
    assert_eq!(send(&[own, ("sec-fetch-site", "same-origin")]).await, 400);
    // A form cannot send this kind, and a page of another session has another token.
    let plain = [
        ("cookie", cookie.as_str()),
        own,
        ("content-type", "text/plain"),
        ("accept", "application/json"),
    ];
    assert_eq!(
        world
            .send("POST", "/approve/begin", &plain, body)
            .await
            .status,
        415
    );
    let other = world.person("controller", "approver", &[]).await;
    let forged = json!({"form_token": other.form_token, "items": []});
    let refused = world.post("/approve/begin", &person.cookie, &forged).await;
    assert_eq!(refused.status, 403);
    assert!(
        refused.json()["error"]
            .as_str()
            .unwrap()
            .contains("another session")
    );
    for method in ["PUT", "DELETE", "OPTIONS", "PATCH"] {
        let said = world
            .send(method, "/", &[("cookie", &cookie)], String::new())
            .await;
        assert_eq!(said.status, 405, "{method}");
    }
}

#[tokio::test]
async fn session__should_not_be_one_that_somebody_else_has_chosen() {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    let mallory = world.person("mallory", "viewer", &[]).await;
    // The attacker's own session, planted before the person signs in, does not become the person's.
    let signed_in = world
        .try_sign_in(&person.passkey, &person.handle, &mallory.cookie)
        .await;
    let cookie = cookie_of(&signed_in);
    assert_ne!(cookie, mallory.cookie);
    assert_eq!(
        world.get("/", &mallory.cookie).await.status,
        303,
        "it has ended"
    );
    let account = world.get("/account", &cookie).await;
    assert!(account.text.contains("treasurer@key-1"));
    // Two cookies of the name are none: a host beside this one has put one there.
    let both = format!("{0}={cookie}; {0}={1}", sessions::COOKIE, person.cookie);
    let said = world
        .send("GET", "/", &[("cookie", &both)], String::new())
        .await;
    assert_eq!(said.status, 303);
    // Nor is another name one.
    let plain = format!("covault-session={cookie}");
    let said = world
        .send("GET", "/", &[("cookie", &plain)], String::new())
        .await;
    assert_eq!(said.status, 303);
}

#[tokio::test]
async fn sign_in__should_be_refused_alike_and_wait_after_five_wrong_tries() {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    let other = world.person("controller", "approver", &[]).await;
    let begun = async || world.post("/sign-in/begin", "", &json!({})).await.json();
    let send = async |token: &Value, credential: Value| {
        let body = json!({"token": token, "credential": credential});
        world.post("/sign-in", "", &body).await
    };
    // Replayed.
    let options = begun().await;
    let good = answer(&person.passkey, &options, &person.handle);
    assert_eq!(send(&options["token"], good.clone()).await.status, 200);
    let mut refusals = vec![send(&options["token"], good).await];
    // The other's handle, the other's credential, an unknown one.
    let options = begun().await;
    refusals.push(
        send(
            &options["token"],
            answer(&person.passkey, &options, &other.handle),
        )
        .await,
    );
    let mut mixed = answer(&other.passkey, &options, &other.handle);
    mixed["id"] = json!(text(&person.passkey.passkey.credential_id));
    refusals.push(send(&options["token"], mixed).await);
    let stranger = TestPasskey::new("treasurer@key-1", 7);
    refusals.push(
        send(
            &options["token"],
            answer(&stranger, &options, &person.handle),
        )
        .await,
    );
    refusals.push(
        send(
            &json!("x"),
            answer(&person.passkey, &options, &person.handle),
        )
        .await,
    );
    let said: std::collections::BTreeSet<_> = refusals.iter().map(|it| it.text.clone()).collect();
    assert!(
        refusals
            .iter()
            .all(|it| it.status == 401 && !it.headers.contains_key("set-cookie"))
    );
    assert_eq!(said.len(), 1, "{said:?}");
    // The passkey of this account was named four times; the fifth wrong one is the last.
    let options = begun().await;
    let wrong = answer(&person.passkey, &options, &other.handle);
    assert_eq!(send(&options["token"], wrong).await.status, 401);
    let options = begun().await;
    let right = send(
        &options["token"],
        answer(&person.passkey, &options, &person.handle),
    )
    .await;
    assert_eq!(right.status, 429, "{}", right.text);
    // A passkey that nobody has is answered alike: nobody learns which ones have accounts.
    for number in 1..=6 {
        let options = begun().await;
        let said = send(
            &options["token"],
            answer(&stranger, &options, &person.handle),
        )
        .await;
        // One wrong try of it was made above.
        assert_eq!(said.status, if number < 5 { 401 } else { 429 }, "{number}");
    }
    // Others at the same address still sign in.
    let options = begun().await;
    let right = send(
        &options["token"],
        answer(&other.passkey, &options, &other.handle),
    )
    .await;
    assert_eq!(right.status, 200);
}

#[tokio::test]
async fn links__should_not_be_guessed() {
    let world = World::new().await;
    for number in 0..20_u8 {
        let guess = json!({"link": text(&[number; 32])});
        assert_eq!(world.post("/enrol/begin", "", &guess).await.status, 401);
    }
    let old = json!({"link": text(&[0; 32])});
    for status in [401, 401, 401, 401, 429] {
        assert_eq!(world.post("/enrol/begin", "", &old).await.status, status);
    }
    // Wrong ones of others at the address keep nobody from a right one.
    let link = world.invite("treasurer", "approver", &[]).await;
    let said = world.post("/enrol/begin", "", &json!({"link": link})).await;
    assert_eq!(said.status, 200, "{}", said.text);
}

#[tokio::test]
async fn wrong_links__should_cost_their_address_more_than_right_ones() {
    let store = Arc::new(MemoryStore::new());
    let inner = World::with_api(store, 1, ChainClients::default(), |api| {
        let per_address = CallRate {
            per_second: 1,
            burst: 30,
        };
        api.admission = Admission::new(&AdmissionLimits {
            per_address,
            ..UNLIMITED
        });
    })
    .await;
    let peer: SocketAddr = "10.0.0.1:4000".parse().unwrap();
    let app = inner.app.clone().layer(Extension(Peer(peer)));
    let world = World { app, ..inner };
    let link = world.invite("treasurer", "approver", &[]).await;
    let begin = async |link: &str, forwarded: &str| {
        let headers = [
            ("origin", ORIGIN),
            ("content-type", "application/json"),
            ("accept", "application/json"),
            ("x-forwarded-for", forwarded),
        ];
        let body = json!({"link": link}).to_string();
        world
            .send("POST", "/enrol/begin", &headers, body)
            .await
            .status
    };
    let mut wrong = 0;
    while begin(&text(&[wrong; 32]), "203.0.113.1").await == 401 {
        wrong += 1;
    }
    assert!((3..=5).contains(&wrong), "{wrong}");
    assert_eq!(begin(&link, "203.0.113.1").await, 429);
    for _ in 0..10 {
        assert_eq!(begin(&link, "203.0.113.2").await, 200);
    }
}

#[tokio::test]
async fn texts_of_others__should_be_shown_as_texts() {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    let vault = world
        .vault(
            "v <script>alert(0)</script>",
            1,
            &[("treasurer", &person.line)],
        )
        .await;
    let from = world
        .wallet(&vault, "\"><img src=x onerror=alert(1)>")
        .await;
    // A wallet that calls itself like somebody whom one pays. What turns the direction of text is in no name.
    let named = wire::CreateWalletRequest {
        vault_uuid: vault.clone(),
        network_type: wire::NetworkType::Evm.into(),
        name: "bob\u{200b}.eth<b>".into(),
        r#ref: "bob\u{2060}.eth<img src=x>".into(),
        ..Default::default()
    };
    let named = world.call::<CreateWallet>(&named).await.details.unwrap();
    let paid = world.payment(&from, &named.address, 5, "").await;
    let notes = "<script>alert(2)</script>'\"&{{7*7}}\u{200b}\u{2060}";
    let uuid = world
        .message(&from, "</textarea><b>pay \u{202e}EVE\u{feff}", notes)
        .await;
    let pages = [
        "/".to_owned(),
        format!("/requests/{uuid}"),
        format!("/requests?uuid={uuid}"),
        format!("/requests/{paid}"),
        format!("/wallets/{}", named.address),
        "/history?search=%3Cscript%3E".to_owned(),
        "/vaults".to_owned(),
        format!("/vaults/{vault}"),
        "/account".to_owned(),
        "/sign-in".to_owned(),
        "/enrol".to_owned(),
        "/requests/%3Cscript%3E".to_owned(),
        "/nowhere%22%3E%3Cb%3E".to_owned(),
    ];
    for path in pages {
        let page = world.get(&path, &person.cookie).await;
        for raw in [
            "<script>alert",
            "<img",
            "</textarea><b>",
            "\u{200b}",
            "\u{2060}",
            "\u{202e}",
            "\u{feff}",
            "<b>",
        ] {
            assert!(
                !page.text.contains(raw),
                "{path} has {raw:?}: {}",
                page.text
            );
        }
        // Nothing inline: the policy would refuse it.
        for inline in ["style=", "onclick", "onload", "javascript:", "<style"] {
            assert!(!page.text.contains(inline), "{path}: {inline}");
        }
        let scripts = page.text.matches("<script").count();
        assert_eq!(
            scripts,
            page.text
                .matches("<script src=\"/static/console.js")
                .count(),
            "{path}"
        );
    }
    let page = world
        .get(&format!("/requests/{uuid}"), &person.cookie)
        .await
        .text;
    for shown in [
        "\\u{200b}",
        "\\u{2060}",
        "\\u{202e}",
        "\\u{feff}",
        "{{7*7}}",
        "&#60;script&#62;alert(2)",
    ] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    for (path, shown) in [
        (format!("/requests/{paid}"), "bob\\u{200b}.eth&#60;b&#62;"),
        (format!("/vaults/{vault}"), "bob\\u{2060}.eth&#60;img"),
    ] {
        let page = world.get(&path, &person.cookie).await.text;
        assert!(page.contains(shown), "{shown}: {page}");
    }
}

/// A page with another name has the same person's passkey sign what this console has asked for.
#[tokio::test]
async fn passkey_of_another_page__should_neither_sign_in_nor_approve() {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    let vault = world
        .vault("treasury", 1, &[("treasurer", &person.line)])
        .await;
    let from = world.wallet(&vault, "cash").await;
    let uuid = world.message(&from, "hello", "").await;
    let elsewhere = ["https://evil.example"];
    for other in [
        person.passkey.clone().at("evil.example", &[ORIGIN]),
        person.passkey.clone().at(RP_ID, &elsewhere),
        person.passkey.clone().at("evil.example", &elsewhere),
    ] {
        let refused = world.try_sign_in(&other, &person.handle, "").await;
        assert_eq!(refused.status, 401, "{}", refused.text);
        let begun = world.begin(&person, &[&uuid]).await.json();
        let refused = world.finish(&person, &begun, &other).await;
        assert_eq!(refused.status, 409, "{}", refused.text);
        let said = refused.json()["results"][0]["text"].to_string();
        assert!(said.contains("nothing was done: "), "{said}");
    }
    assert!(world.details(&uuid).await.approvals.is_empty());
}

#[tokio::test]
async fn answers__should_tell_browsers_what_not_to_do() {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    for (path, cookie) in [
        ("/", person.cookie.as_str()),
        ("/sign-in", ""),
        ("/", ""),
        ("/nowhere", &person.cookie),
        ("/static/console.js", ""),
    ] {
        let said = world.get(path, cookie).await;
        let header = |name: &str| said.headers[name].to_str().unwrap().to_owned();
        let policy = header("content-security-policy");
        for part in [
            "default-src 'none'",
            "script-src 'self';",
            "style-src 'self';",
            "frame-ancestors 'none'",
            "form-action 'self'",
            "require-trusted-types-for 'script'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe"));
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("referrer-policy"), "same-origin");
        assert_eq!(header("cross-origin-opener-policy"), "same-origin");
        assert_eq!(header("strict-transport-security"), "max-age=31536000");
        // Also of the script: it is kept only under its version.
        assert_eq!(header("cache-control"), "no-store");
    }
}

#[tokio::test]
async fn bodies__should_be_small() {
    let world = World::new().await;
    let large = json!({"link": "x".repeat(70_000)});
    assert_eq!(world.post("/enrol/begin", "", &large).await.status, 413);
    for body in [json!([]), json!({}), json!({"link": 7})] {
        assert_eq!(
            world.post("/enrol/begin", "", &body).await.status,
            400,
            "{body}"
        );
    }
}

#[tokio::test]
async fn strangers_of_the_console__should_leave_the_api_its_places() {
    let world = World::new().await;
    let slow = |path: &str| {
        let request = Request::builder()
            .method("POST")
            .uri(path)
            .header("origin", ORIGIN)
            .header("content-length", "6000");
        let never_ends = Body::from_stream(futures::stream::pending::<Result<Bytes, Fault>>());
        let app = world.app.clone();
        let request = request.body(never_ends).unwrap();
        async move { app.oneshot(request).await.unwrap().status().as_u16() }
    };
    // Nothing is read of those who have not signed in.
    for path in ["/approve", "/reject/begin", "/sign-out", "/nowhere"] {
        let answered = tokio::time::timeout(Duration::from_secs(2), slow(path)).await;
        assert_eq!(answered.expect("at once"), 303, "{path}");
    }
    let free = world.api.admission.free_places();
    let mut waiting: Vec<_> = (0..STRANGERS).map(|_| Box::pin(slow("/sign-in"))).collect();
    for one in &mut waiting {
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(one.as_mut().poll(cx)));
        let answered = polled.await;
        if let std::task::Poll::Ready(status) = answered {
            assert_eq!(status, 503);
        }
    }
    assert_eq!(world.api.admission.free_places(), free);
    assert_eq!(slow("/enrol/begin").await, 503);
    drop(waiting);
    // Bodies of strangers are small.
    let large = json!({"link": "x".repeat(9000)});
    let refused = world.post("/enrol/begin", "", &large).await;
    assert_eq!(refused.status, 413, "{}", refused.text);
}

#[tokio::test]
async fn proxy_of_the_console__should_give_people_addresses_and_api_clients_none() {
    let inner = World::behind(1).await;
    // The API of the same process has clients of its own, without a proxy.
    assert_eq!(inner.api.trusted_proxies, 0);
    let person = inner.person("treasurer", "approver", &[]).await;
    let peer: SocketAddr = "10.0.0.1:4000".parse().unwrap();
    let app = inner.app.clone().layer(Extension(Peer(peer)));
    let world = World { app, ..inner };
    let sign_in = async |handle: &str, forwarded: &str| {
        let headers = [
            ("origin", ORIGIN),
            ("content-type", "application/json"),
            ("accept", "application/json"),
            ("x-forwarded-for", forwarded),
        ];
        let options = world
            .send("POST", "/sign-in/begin", &headers, "{}".into())
            .await
            .json();
        let credential = answer(&person.passkey, &options, handle);
        let body = json!({"token": options["token"], "credential": credential}).to_string();
        world.send("POST", "/sign-in", &headers, body).await.status
    };
    // Whatever stands before it is the client's own word.
    for guess in 0..5 {
        assert_eq!(
            sign_in("d3Jvbmc", &format!("192.0.2.{guess}, 203.0.113.1")).await,
            401
        );
    }
    assert_eq!(sign_in(&person.handle, "192.0.2.9, 203.0.113.1").await, 429);
    assert_eq!(sign_in(&person.handle, "192.0.2.9").await, 200);
}

#[tokio::test]
async fn script__should_be_kept_only_under_its_own_version_and_have_its_hash_on_the_page() {
    let world = World::new().await;
    let page = world.get("/sign-in", "").await.text;
    for file in ["/static/console.js", "/static/console.css"] {
        let (_, tag) = page.split_once(file).expect(file);
        let (version, tag) = tag.split_once('"').expect(file);
        let (_, tag) = tag.split_once("integrity=\"sha256-").expect(file);
        let (hash, _) = tag.split_once('"').expect(file);
        let kept = async |query: &str| {
            let said = world.get(&format!("{file}{query}"), "").await;
            let text = Sha256::digest(&said.text);
            assert_eq!(html_text(hash), BASE64_STANDARD.encode(text), "{file}");
            let caching = said.headers["cache-control"].to_str().unwrap();
            caching.contains("immutable")
        };
        assert!(kept(version).await, "{file}{version}");
        for other in ["", "?v=", "?v=next", &format!("{version}x")] {
            assert!(!kept(other).await, "{file}{other}");
        }
    }
}

/// What a browser reads of an attribute's value.
fn html_text(value: &str) -> String {
    value
        .replace("&#43;", "+")
        .replace("&#47;", "/")
        .replace("&#61;", "=")
}

#[tokio::test]
async fn pages__should_count_as_unread_answers() {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    let cookie = format!("{}={}", sessions::COOKIE, person.cookie);
    let load = async || {
        let request = Request::builder().uri("/account").header("cookie", &cookie);
        let request = request.body(Body::empty()).unwrap();
        world.app.clone().oneshot(request).await.unwrap()
    };
    // The connection takes it out and holds it until the page is read (src/http/reading.rs).
    let page = load().await;
    assert!(page.extensions().get::<AnswerShare>().is_some());
    assert_eq!(load().await.status(), 200);
}

#[test]
fn console__should_say_that_a_proxy_is_not_trusted() {
    let head = |name: &str| {
        let request = Request::builder().uri("/").header(name, "192.0.2.1");
        request.body(()).unwrap().into_parts().0
    };
    let was_said = AtomicBool::new(false);
    assert!(!note_proxy(
        &was_said,
        "console.trusted_proxies",
        0,
        &head("accept")
    ));
    assert!(!note_proxy(
        &was_said,
        "console.trusted_proxies",
        1,
        &head("x-forwarded-for")
    ));
    assert!(note_proxy(
        &was_said,
        "console.trusted_proxies",
        0,
        &head("x-forwarded-for")
    ));
    // Once.
    assert!(!note_proxy(
        &was_said,
        "console.trusted_proxies",
        0,
        &head("x-forwarded-for")
    ));
}
