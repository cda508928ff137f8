//! What people without a session try: to sign in, and to enrol.

use super::*;

#[tokio::test]
async fn session__should_be_of_a_passkey_of_the_policy_and_end() {
    let world = World::new();
    for path in ["/", &format!("/requests/{UUID}")] {
        let said = world.get(path, "x").await;
        assert_eq!(
            (said.status, said.headers["location"].to_str().unwrap()),
            (303, "/sign-in")
        );
    }
    assert_eq!(world.post("/approve", "x", &json!({})).await.status, 401);
    // Strangers, passkeys of another page of the same person, and what was signed there.
    let elsewhere = "https://other.approve.signer-1.example.com";
    for passkey in [
        TestPasskey::new("treasurer@node", 7).at(RP_ID, &[ORIGIN]),
        TestPasskey::new("treasurer@console", 1),
        treasurer().at(RP_ID, &[elsewhere]),
    ] {
        assert_eq!(world.try_sign_in(&passkey).await.1.status, 401);
    }
    let (used, said) = world.try_sign_in(&treasurer()).await;
    assert_eq!(said.status, 200);
    assert_eq!(world.post("/sign-in", "", &used).await.status, 401, "twice");
    let begun = world.post("/sign-in/begin", "", &json!({})).await.json();
    let body = json!({"token": begun["token"], "credential": answer(&treasurer(), &begun)});
    world
        .clock
        .0
        .fetch_add(5 * 60_000, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(world.post("/sign-in", "", &body).await.status, 401, "late");
    assert_eq!(
        world
            .post_from("https://evil.example", "/sign-in", "", &body)
            .await
            .status,
        403
    );

    let (cookie, form_token) = world.sign_in(&treasurer()).await;
    let page = world.get("/", &cookie).await;
    let policy_of_page = page.headers["content-security-policy"].to_str().unwrap();
    assert!(
        policy_of_page.contains("frame-ancestors 'none'") && !policy_of_page.contains("unsafe")
    );
    // Half an hour without a request.
    for (minutes, status) in [(29, 200), (30, 303)] {
        world
            .clock
            .0
            .fetch_add(minutes * 60_000, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(world.get("/", &cookie).await.status, status);
    }
    // Signed out, and taken out of the policy.
    let (cookie, other_token) = world.sign_in(&treasurer()).await;
    assert_ne!(form_token, other_token);
    let with_cookie = format!("{}={cookie}", sessions::COOKIE);
    let headers = [("cookie", with_cookie.as_str()), ("origin", ORIGIN)];
    let out = async |token: &str| {
        let body = format!("form_token={token}");
        world.send("POST", "/sign-out", &headers, body).await.status
    };
    assert_eq!(out(&form_token).await, 403);
    assert_eq!(world.get("/", &cookie).await.status, 200);
    assert_eq!(out(&other_token).await, 303);
    assert_eq!(world.get("/", &cookie).await.status, 303);
    let (cookie, _) = world.sign_in(&treasurer()).await;
    let replaced = TestPasskey::new("treasurer@node", 3).at(RP_ID, &[ORIGIN]);
    world
        .policy
        .replace(policy(&[("treasurer", replaced), ("director", director())]));
    assert_eq!(world.get("/", &cookie).await.status, 303);
    // Guesses with one passkey wait.
    for expected in [401, 401, 401, 401, 401, 429] {
        assert_eq!(world.try_sign_in(&treasurer()).await.1.status, expected);
    }
}

#[tokio::test]
async fn link__should_make_one_passkey_whose_line_the_page_shows() {
    let world = World::new();
    let secret = [5; 32];
    let new = TestPasskey::new("treasurer@node-2", 4).at(RP_ID, &[ORIGIN]);
    world
        .links
        .put(&secret, "treasurer@node-2", NOW_MS)
        .unwrap();
    assert_eq!(world.get("/enrol", "").await.status, 200);
    for wrong in ["", "x", &base64(&[6; 32])] {
        let said = world
            .post("/enrol/begin", "", &json!({"link": wrong}))
            .await;
        assert_eq!(said.status, 401, "{wrong}: {}", said.text);
    }
    let link = base64(&secret);
    let begun = world.post("/enrol/begin", "", &json!({"link": link})).await;
    assert_eq!(begun.status, 200, "{}", begun.text);
    let begun = begun.json();
    assert_eq!(begun["keyName"], "treasurer@node-2");
    assert_eq!(begun["publicKey"]["rp"]["id"], RP_ID);
    let known = base64(&treasurer().passkey.credential_id);
    assert_eq!(begun["publicKey"]["excludeCredentials"][0]["id"], known);
    let PasskeyPublicKey::Es256(point) = &new.passkey.public_key else {
        panic!("P-256 alone");
    };
    let begin = "3059301306072a8648ce3d020106082a8648ce3d030107034200";
    let made = json!({
        "keyName": "treasurer@node-2",
        "credentialId": base64(&new.passkey.credential_id),
        "publicKey": base64(&[hex::decode(begin).unwrap().as_slice(), point].concat()),
        "backupEligible": false,
    });
    let proof = world.post("/enrol/prove", "", &made).await.json();
    let form = |name: &str, by: &TestPasskey| {
        let mut made = made.clone();
        made["keyName"] = json!(name);
        json!({"link": link, "passkey": made, "credential": answer(by, &proof)})
    };
    // Another name than the link's, and another passkey's proof.
    for wrong in [
        form("director@node-2", &new),
        form("treasurer@node-2", &treasurer()),
    ] {
        let said = world.post("/enrol", "", &wrong).await;
        assert_eq!(said.status, 400, "{}", said.text);
    }
    // Nobody's signature is looked at without a link.
    let mut without_link = form("treasurer@node-2", &treasurer());
    without_link["link"] = json!(base64(&[6; 32]));
    let said = world.post("/enrol", "", &without_link).await;
    assert_eq!(said.status, 401, "{}", said.text);
    let good = form("treasurer@node-2", &new);
    let done = world.post("/enrol", "", &good).await;
    assert_eq!(done.status, 200, "{}", done.text);
    let done = done.json();
    let line = ApproverLine::parse(done["line"].as_str().unwrap()).unwrap();
    assert_eq!(line.passkey, new.passkey);
    assert_eq!(done["words"], line.fingerprint().unwrap().join(" "));
    // Once; and it signs in only when the policy has it.
    assert_eq!(world.post("/enrol", "", &good).await.status, 401);
    assert_eq!(world.try_sign_in(&new).await.1.status, 401);
    world.policy.replace(policy(&[
        ("treasurer", new.clone()),
        ("director", director()),
    ]));
    world.sign_in(&new).await;
    let fault = world.links.find(&secret, NOW_MS).unwrap_err();
    assert_eq!(*fault.class(), Class::Unauthenticated);
}

/// What is logged at `info` and above.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn strangers__should_not_fill_the_log() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let world = World::new();
    let stranger = TestPasskey::new("treasurer@node", 7).at(RP_ID, &[ORIGIN]);
    world.get("/", "x").await;
    world.get("/sign-in", "").await;
    world.get("/no-such-page", "").await;
    assert_eq!(world.try_sign_in(&stranger).await.1.status, 401);
    let said = world.post("/enrol/begin", "", &json!({"link": "x"})).await;
    assert_eq!(said.status, 401);
    let text = |log: &Log| String::from_utf8(log.0.lock().clone()).unwrap();
    assert_eq!(text(&log), "");
    // What people do who have signed in is logged.
    let (cookie, _) = world.sign_in(&treasurer()).await;
    assert_eq!(world.get("/requests/x", &cookie).await.status, 404);
    let text = text(&log);
    assert!(text.contains("signed in to this node's page"), "{text}");
    assert!(
        text.contains("refused") && text.contains("/requests/x"),
        "{text}"
    );
}

#[tokio::test]
async fn person__should_not_take_the_places_of_others() {
    let world = World::new();
    let treasurer = world.sign_in(&treasurer()).await;
    let director = world.sign_in(&director()).await;
    world.told.waiting.store(0, Ordering::Relaxed);
    let closed = world.told.gate.write().await;
    let mut calls: Vec<_> = (0..SIGNED_IN)
        .map(|_| world.get("/", &treasurer.0))
        .collect();
    calls.push(world.get("/", &director.0));
    let open = async {
        while world.told.waiting.load(Ordering::Relaxed) <= SIGNED_IN / 2 {
            tokio::task::yield_now().await;
        }
        drop(closed);
    };
    let (said, ()) = futures::join!(futures::future::join_all(calls), open);
    let served = said.iter().filter(|it| it.status == 200).count();
    assert_eq!(served, SIGNED_IN / 2 + 1);
    assert_eq!(said.last().unwrap().status, 200);
}
