//! Approving and rejecting with a passkey.

use covault_actors::operations::{GetSigningRequestDetails, RejectSigningRequest};

use super::*;
use crate::console::requests::shown_hash;

impl World {
    pub async fn details(&self, uuid: &str) -> wire::SigningRequest {
        let request = wire::GetSigningRequestDetailsRequest { uuid: uuid.into() };
        let answer = self.call::<GetSigningRequestDetails>(&request).await;
        answer.signing_request.unwrap()
    }

    /// What the page of a request says that it has shown.
    pub async fn shown(&self, who: &PersonWithPasskey, uuid: &str) -> String {
        let page = self.get(&format!("/requests/{uuid}"), &who.cookie).await;
        let found = page.text.split_once("data-shown=\"");
        let (_, rest) = found.unwrap_or_else(|| panic!("{}", page.text));
        rest.split('"').next().unwrap().to_owned()
    }

    /// The first step of an approval of messages.
    pub async fn begin(&self, who: &PersonWithPasskey, uuids: &[&str]) -> Said {
        let mut items = Vec::new();
        for uuid in uuids {
            let shown = self.shown(who, uuid).await;
            items.push(json!({"uuid": uuid, "shown": shown, "fee": ""}));
        }
        let body = json!({"form_token": who.form_token, "items": items});
        self.post("/approve/begin", &who.cookie, &body).await
    }

    /// The second, signed by this passkey.
    pub async fn finish(
        &self,
        who: &PersonWithPasskey,
        begun: &Value,
        passkey: &TestPasskey,
    ) -> Said {
        let body = json!({
            "form_token": who.form_token,
            "items": begun["form"]["items"],
            "list": begun["form"]["list"],
            "credential": answer(passkey, begun, ""),
        });
        self.post("/approve", &who.cookie, &body).await
    }

    pub async fn approve(&self, who: &PersonWithPasskey, uuids: &[&str]) -> Said {
        let begun = self.begin(who, uuids).await;
        assert_eq!(begun.status, 200, "{}", begun.text);
        self.finish(who, &begun.json(), &who.passkey).await
    }
}

/// Two people, a vault that wants both, and a wallet.
async fn two() -> (World, PersonWithPasskey, PersonWithPasskey, String) {
    let world = World::new().await;
    let treasurer = world.person("treasurer", "approver", &[]).await;
    let controller = world.person("controller", "approver", &[]).await;
    let people = [
        ("treasurer", treasurer.line.as_str()),
        ("controller", controller.line.as_str()),
    ];
    let vault = world.vault("treasury", 2, &people).await;
    let from = world.wallet(&vault, "cash").await;
    (world, treasurer, controller, from)
}

#[tokio::test]
async fn approval__should_be_the_passkeys_of_who_has_signed_in() {
    let (world, treasurer, controller, from) = two().await;
    let uuid = world.message(&from, "hello", "").await;
    let begun = world.begin(&treasurer, &[&uuid]).await.json();
    assert_eq!(begun["publicKey"]["userVerification"], "required");
    assert_eq!(
        begun["publicKey"]["allowCredentials"][0]["id"],
        text(&treasurer.passkey.passkey.credential_id)
    );
    // A stolen session has no passkey; another person's is not this account's.
    let refused = world.finish(&treasurer, &begun, &controller.passkey).await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    let forged = TestPasskey::new("treasurer@key-1", 9);
    let mut body = json!({
        "form_token": treasurer.form_token,
        "items": begun["form"]["items"],
        "list": [],
        "credential": answer(&forged, &begun, ""),
    });
    body["credential"]["id"] = json!(text(&treasurer.passkey.passkey.credential_id));
    let refused = world.post("/approve", &treasurer.cookie, &body).await;
    assert_eq!(refused.status, 409, "{}", refused.text);
    // Signing in approves nothing, with the very passkey.
    let sign_in = world.post("/sign-in/begin", "", &json!({})).await.json();
    body["credential"] = answer(&treasurer.passkey, &sign_in, "");
    let refused = world.post("/approve", &treasurer.cookie, &body).await;
    assert_eq!(refused.status, 409, "{}", refused.text);
    assert_eq!(world.details(&uuid).await.approvals.len(), 0);

    let done = world.finish(&treasurer, &begun, &treasurer.passkey).await;
    assert_eq!(done.status, 200, "{}", done.text);
    assert_eq!(
        done.json()["results"][0]["text"],
        "approved; 1 more to approve it"
    );
    // A browser that sends the same once more: it counts once.
    let again = world.finish(&treasurer, &begun, &treasurer.passkey).await;
    assert_eq!((again.status, again.text), (done.status, done.text));
    let details = world.details(&uuid).await;
    assert_eq!(details.approvals.len(), 1);
    assert_eq!(details.approvals[0].person, "treasurer");
    // The page knows, and what others have approved counts together with this one.
    let page = world
        .get(&format!("/requests/{uuid}"), &treasurer.cookie)
        .await;
    assert!(!page.text.contains("data-approve>"), "{}", page.text);
    let second = world.begin(&controller, &[&uuid]).await.json();
    assert_eq!(
        second["form"]["items"][0]["validUntilMs"],
        details.approvals[0].valid_until_timestamp
    );
    let done = world
        .finish(&controller, &second, &controller.passkey)
        .await;
    assert_eq!(
        done.json()["results"][0]["text"],
        "approved; the signers sign it next"
    );
    // Their names are in the audit log, not those of tokens.
    let auditor = world.person("auditor", "auditor", &[]).await;
    let log = world
        .get("/audit?chain=service", &auditor.cookie)
        .await
        .text;
    assert!(
        log.contains("user:treasurer") && log.contains("SignedIn"),
        "{log}"
    );
}

#[tokio::test]
async fn several__should_be_approved_with_one_gesture_and_stand_for_themselves() {
    let (world, treasurer, controller, from) = two().await;
    let mut uuids = Vec::new();
    for number in 0..3 {
        uuids.push(world.message(&from, &format!("message {number}"), "").await);
    }
    let all: Vec<&str> = uuids.iter().map(String::as_str).collect();
    let begun = world.begin(&treasurer, &all).await.json();
    assert_eq!(begun["form"]["list"].as_array().unwrap().len(), 3);
    // One of them ends between the two steps: it is told so, and the others are approved.
    let request = wire::RejectSigningRequestRequest {
        uuid: uuids[1].clone(),
        rejection: None,
    };
    world.call::<RejectSigningRequest>(&request).await;
    let done = world.finish(&treasurer, &begun, &treasurer.passkey).await;
    assert_eq!(done.status, 200, "{}", done.text);
    let results = done.json()["results"].clone();
    let of = |uuid: &str| {
        let mut results = results.as_array().unwrap().iter();
        results.find(|it| it["uuid"] == uuid).unwrap().clone()
    };
    assert_eq!(of(&uuids[0])["done"], true);
    assert_eq!(of(&uuids[2])["done"], true);
    assert_eq!(of(&uuids[1])["done"], false);
    assert!(
        of(&uuids[1])["text"]
            .as_str()
            .unwrap()
            .starts_with("nothing was done: ")
    );
    // Alone, or at the first step, it is a conflict in words.
    let late = world.begin(&controller, &[&uuids[1]]).await;
    assert_eq!(late.status, 409);
    assert!(
        late.json()["error"]
            .as_str()
            .unwrap()
            .contains("no longer waits for approval")
    );
    let page = format!("/requests?uuid={}&uuid={}", uuids[0], uuids[2]);
    assert!(
        world
            .get(&page, &controller.cookie)
            .await
            .text
            .contains("2 signing requests")
    );
    // What ended is left out of a page of several, and of its gesture: the others can be approved.
    let page = format!(
        "/requests?uuid={}&uuid={}&uuid={}",
        uuids[0], uuids[1], uuids[2]
    );
    let page = world.get(&page, &controller.cookie).await.text;
    for said in ["2 signing requests", "it no longer waits", "data-approve>"] {
        assert!(page.contains(said), "{said}: {page}");
    }
    assert!(
        !page.contains(&format!("data-request=\"{}\"", uuids[1])),
        "{page}"
    );
    for query in ["/requests", "/requests?uuid=x"] {
        assert_eq!(world.get(query, &controller.cookie).await.status, 400);
    }
}

#[tokio::test]
async fn rejection__should_be_signed_and_have_its_reason() {
    let (world, treasurer, controller, from) = two().await;
    let uuid = world.message(&from, "hello", "").await;
    let approval = world.begin(&controller, &[&uuid]).await.json();
    let shown = world.shown(&treasurer, &uuid).await;
    let body = json!({
        "form_token": treasurer.form_token,
        "items": [{"uuid": uuid, "shown": shown}],
        "reason": "not ours",
    });
    let begun = world.post("/reject/begin", &treasurer.cookie, &body).await;
    assert_eq!(begun.status, 200, "{}", begun.text);
    let begun = begun.json();
    let send = async |credential: Value, reason: &str| {
        let body = json!({"form_token": treasurer.form_token, "uuids": [uuid], "reason": reason, "credential": credential});
        world.post("/reject", &treasurer.cookie, &body).await
    };
    // Neither without a signature nor with one of an approval.
    assert_eq!(send(Value::Null, "").await.status, 400);
    let approving = answer(&treasurer.passkey, &approval, "");
    assert_eq!(send(approving, "").await.status, 409);
    let signed = answer(&treasurer.passkey, &begun, "");
    assert_eq!(send(signed.clone(), "a\u{202e}b").await.status, 400);
    assert_eq!(send(signed.clone(), &"x".repeat(201)).await.status, 400);
    let done = send(signed, "not ours").await;
    assert_eq!(
        done.json()["results"][0]["text"],
        "rejected",
        "{}",
        done.text
    );
    let details = world.details(&uuid).await;
    assert_eq!(
        details.failed_reason,
        "rejected by treasurer (rejectSigningRequest): not ours"
    );
    // Who has the page open from before cannot approve it any more, and is told why.
    let late = world
        .finish(&controller, &approval, &controller.passkey)
        .await;
    assert_eq!(late.status, 409, "{}", late.text);
    assert!(
        late.json()["results"][0]["text"]
            .as_str()
            .unwrap()
            .starts_with("nothing was done: ")
    );
}

#[tokio::test]
async fn others__should_not_approve_or_reject() {
    let (world, treasurer, _, from) = two().await;
    let uuid = world.message(&from, "hello", "").await;
    for role in ["viewer", "operator", "auditor"] {
        let who = world.person(role, role, &[]).await;
        assert_eq!(world.begin(&who, &[&uuid]).await.status, 403, "{role}");
        let shown = world.shown(&who, &uuid).await;
        let body = json!({
            "form_token": who.form_token,
            "items": [{"uuid": uuid, "shown": shown}],
            "uuids": [uuid],
        });
        assert_eq!(
            world.post("/reject/begin", &who.cookie, &body).await.status,
            403
        );
        assert_eq!(world.post("/reject", &who.cookie, &body).await.status, 403);
    }
    // An approver whom the rule does not name signs in vain.
    let stranger = world.person("stranger", "approver", &[]).await;
    let done = world.approve(&stranger, &[&uuid]).await;
    assert_eq!(done.status, 409);
    let said = done.json()["results"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(said.contains("belongs to no approver"), "{said}");
    // Revoked in the middle of a gesture.
    let begun = world.begin(&treasurer, &[&uuid]).await.json();
    world.revoke("treasurer").await;
    assert_eq!(
        world
            .finish(&treasurer, &begun, &treasurer.passkey)
            .await
            .status,
        401
    );
    assert!(world.details(&uuid).await.approvals.is_empty());
}

#[tokio::test]
async fn approval__should_be_of_what_the_page_has_shown() {
    let (world, treasurer, _, from) = two().await;
    let small = world.message(&from, "pay 1", "").await;
    let large = world.message(&from, "pay 1000", "").await;
    // The page was made when the row still held another payload.
    let shown = world.shown(&treasurer, &small).await;
    assert_eq!(shown.len(), 64);
    let items = json!([{"uuid": large, "shown": shown, "fee": ""}]);
    let body = json!({"form_token": treasurer.form_token, "items": items});
    for path in ["/approve/begin", "/reject/begin"] {
        let refused = world.post(path, &treasurer.cookie, &body).await;
        assert_eq!(refused.status, 409, "{path}: {}", refused.text);
        let error = refused.json()["error"].to_string();
        assert!(
            error.contains("no longer what this page has shown"),
            "{error}"
        );
    }
    // Nor without saying what was shown.
    let body = json!({"form_token": treasurer.form_token, "items": [{"uuid": large, "fee": ""}]});
    let refused = world.post("/approve/begin", &treasurer.cookie, &body).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    let begun = world.begin(&treasurer, &[&large]).await;
    assert_eq!(begun.status, 200, "{}", begun.text);
}

#[tokio::test]
async fn request_page__should_not_call_equal_words_a_proof() {
    let (world, treasurer, _, from) = two().await;
    let uuid = world.message(&from, "hello", "").await;
    let page = world
        .get(&format!("/requests/{uuid}"), &treasurer.cookie)
        .await
        .text;
    assert!(page.contains("Compare amount and recipient"), "{page}");
    assert!(!page.contains("tells the truth"), "{page}");
}

#[test]
fn what_is_shown__should_be_payload_network_address_and_root_key() {
    let subject = wire::ApprovalSubject {
        root_public_key: vec![1; 33],
        network: "evm".into(),
        address: "0xab".into(),
        payload: vec![2; 40],
    };
    let first = shown_hash(&subject);
    let change: [fn(&mut wire::ApprovalSubject); 4] = [
        |it| it.root_public_key[0] = 9,
        |it| it.network = "tron".into(),
        |it| it.address = "0xac".into(),
        |it| it.payload[39] = 3,
    ];
    for change in change {
        let mut other = subject.clone();
        change(&mut other);
        assert_ne!(shown_hash(&other), first);
    }
}
