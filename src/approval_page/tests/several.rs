//! Several requests in one gesture, rejections, and orchestrators that say different things.

use covault_core::approval::{list_challenge, rejections_challenge};
use covault_mpc::veto::{Veto, VetoStore};

use super::*;

pub const ETH: &str = "1000000000000000000";
pub const SECOND: &str = "01020304-0506-4708-890a-0b0c0d0e0f11";
const THIRD: &str = "01020304-0506-4708-890a-0b0c0d0e0f12";

fn id(uuid: &str) -> RequestId {
    uuid.parse().unwrap()
}

/// The requests of a page: their uuids, and what is shown of each.
fn items(page: &str, fee: &str) -> Vec<Value> {
    let parts = page.split("data-request=\"").skip(1);
    let item = |part: &str| {
        let uuid = part.split('"').next().unwrap();
        json!({"uuid": uuid, "shown": between(part, "data-shown=\""), "fee": fee})
    };
    parts.map(item).collect()
}

impl World {
    /// Does a gesture about what the page shows: what was begun, and the answer.
    pub async fn gesture(
        &self,
        (cookie, form_token): &(String, String),
        (page, path): (&str, &str),
        passkey: &TestPasskey,
    ) -> (Value, Said) {
        let page = self.get(page, cookie).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let form = json!({"form_token": form_token, "items": items(&page.text, "0.001"), "reason": "not ours"});
        let begun = self.post(&format!("{path}/begin"), cookie, &form).await;
        assert_eq!(begun.status, 200, "{}", begun.text);
        let begun = begun.json();
        let mut form = begun["form"].clone();
        form["form_token"] = json!(form_token);
        form["credential"] = answer(passkey, &begun);
        let said = self.post(path, cookie, &form).await;
        (begun, said)
    }

    fn veto(&self, uuid: &str) -> Option<Veto> {
        let store = VetoStore::of(self.folder.path());
        store.of_request(VAULT.parse().unwrap(), id(uuid)).unwrap()
    }
}

pub fn done(said: &Said) -> Vec<(bool, String)> {
    let results = said.json()["results"].as_array().unwrap().clone();
    let result = |it: &Value| (it["done"] == true, it["text"].as_str().unwrap().to_owned());
    results.iter().map(result).collect()
}

#[tokio::test]
async fn several__should_be_approved_in_one_gesture_and_each_brought_to_who_tells_of_it() {
    let world = World::new();
    let payment = |uuid: &str, wei: &str| payment(uuid, VAULT, wei);
    world.tell(&[
        (7, payment(UUID, ETH)),
        (7, payment(SECOND, "2000000000000000000")),
        (8, payment(SECOND, "2000000000000000000")),
        (8, payment(THIRD, ETH)),
    ]);
    let session = world.sign_in(&treasurer()).await;
    let list = world.get("/", &session.0).await.text;
    assert_eq!(list.matches("name=\"uuid\"").count(), 3, "{list}");
    let page =
        format!("/requests?uuid={UUID}&uuid={SECOND}&uuid=01020304-0506-4708-890a-0b0c0d0e0f1f");
    let text = world.get(&page, &session.0).await.text;
    for part in [
        "2 signing requests",
        "3 ETH",
        "Approve all 2",
        "0b0c0d0e0f1f</a>: it does not wait for you",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // One orchestrator says that more are missing, the other stores nothing.
    let refused = NodeOutcome::Refused {
        problem: "no".into(),
    };
    *world.told.answers.lock() = vec![
        (
            NodeId([7; 32]),
            NodeAnswer::Done {
                outcomes: vec![NodeOutcome::Done { missing: 1 }, refused.clone()],
            },
        ),
        (
            NodeId([8; 32]),
            NodeAnswer::Done {
                outcomes: vec![NodeOutcome::Done { missing: 0 }],
            },
        ),
    ];
    let (begun, said) = world
        .gesture(&session, (&page, "/approve"), &treasurer())
        .await;
    assert_eq!(said.status, 200, "{}", said.text);
    let results = done(&said);
    assert!(
        results[0].0 && results[0].1.contains("1 more"),
        "{results:?}"
    );
    assert!(
        results[1].0 && results[1].1.contains("enough"),
        "{results:?}"
    );
    // What was signed is the list of both, and signers get it with each.
    let terms = ApprovalTerms {
        most_fee: 1_000_000_000_000_000,
        valid_until_ms: NOW_MS + 23 * 3_600_000,
    };
    let approval = |uuid: &str, wei: &str| {
        let subject = payment(uuid, wei).approval_subject.unwrap();
        let vault = VAULT.parse().unwrap();
        let payload = &subject.payload;
        Approval::new(vault, &ROOT, id(uuid), Network::Evm, FROM, payload, terms)
            .id()
            .unwrap()
    };
    let mut list = vec![approval(UUID, ETH), approval(SECOND, "2000000000000000000")];
    list.sort_unstable();
    let challenge = list_challenge(&list).unwrap();
    assert_eq!(begun["publicKey"]["challenge"], base64(&challenge));
    let mut stored = world.told.stored.lock().clone();
    stored.sort_by_key(|(by, _)| *by);
    let asked: Vec<_> = stored
        .iter()
        .map(|(by, question)| {
            let NodeQuestion::Approve { requests, given } = question else {
                panic!("{question:?}");
            };
            assert_eq!(given.list, list);
            let ids: Vec<_> = requests.iter().map(|it| it.request).collect();
            (*by, ids)
        })
        .collect();
    let expected = [
        (NodeId([7; 32]), vec![id(UUID), id(SECOND)]),
        (NodeId([8; 32]), vec![id(SECOND)]),
    ];
    assert_eq!(asked, expected);
    // Of none is anything stored.
    let outcomes = vec![refused; 2];
    *world.told.answers.lock() = vec![
        (NodeId([7; 32]), NodeAnswer::Done { outcomes }),
        (
            NodeId([8; 32]),
            NodeAnswer::Refused {
                problem: "<b>no</b>".into(),
            },
        ),
    ];
    let (_, said) = world
        .gesture(&session, (&page, "/approve"), &treasurer())
        .await;
    assert_eq!(said.status, 409, "{}", said.text);
    assert!(done(&said).iter().all(|(done, _)| !done));
    // Too many, and none.
    let many: Vec<_> = (0..101)
        .map(|n| format!("uuid=01020304-0506-4708-890a-{n:012}"))
        .collect();
    for (query, status) in [
        (many.join("&"), 400),
        (String::new(), 400),
        ("uuid=x".into(), 404),
    ] {
        let path = format!("/requests?{query}");
        assert_eq!(world.get(&path, &session.0).await.status, status, "{query}");
    }
}

#[tokio::test]
async fn rejection__should_go_to_all_who_tell_of_it_and_be_obeyed_by_this_node() {
    let world = World::new();
    let payment = |uuid: &str, wei: &str| payment(uuid, VAULT, wei);
    // What is told differently cannot be approved, but rejected.
    let told = [
        (7, payment(UUID, ETH)),
        (8, payment(UUID, "7000000000000000000")),
        (8, payment(SECOND, ETH)),
        (8, payment(THIRD, ETH)),
    ];
    world.tell(&told);
    let session = world.sign_in(&treasurer()).await;
    let page = format!("/requests?uuid={UUID}&uuid={SECOND}");
    let text = world.get(&page, &session.0).await.text;
    assert!(
        !text.contains("data-approve") && text.contains("Reject all 2"),
        "{text}"
    );
    // Where no rule of the policy holds anything, the service's word is all.
    let (begun, said) = world
        .gesture(&session, (&page, "/reject"), &treasurer())
        .await;
    assert_eq!(said.status, 200, "{}", said.text);
    for (done, text) in done(&said) {
        assert!(done && text == "rejected, as the service says", "{text}");
    }
    let ids = [id(UUID), id(SECOND)];
    let challenge = rejections_challenge(VAULT.parse().unwrap(), &ids).unwrap();
    assert_eq!(begun["publicKey"]["challenge"], base64(&challenge));
    let stored = world.told.stored.lock().clone();
    let to: Vec<_> = stored.iter().map(|(to, _)| *to).collect();
    assert_eq!(to, [NodeId([7; 32]), NodeId([8; 32])]);
    for (_, question) in &stored {
        let NodeQuestion::Reject {
            requests, reason, ..
        } = question
        else {
            panic!("{question:?}");
        };
        assert_eq!(
            (requests.as_slice(), reason.as_str()),
            (&ids[..], "not ours")
        );
    }
    assert_eq!(world.veto(UUID), None);

    // Where one does, the node obeys it, also when no orchestrator does.
    world.tell(&told);
    world.policy.replace(holding_policy());
    let problem = "no".to_owned();
    let refused = NodeAnswer::Refused { problem };
    *world.told.answers.lock() = [7, 8].map(|by| (NodeId([by; 32]), refused.clone())).into();
    let (begun, said) = world
        .gesture(&session, (&page, "/reject"), &treasurer())
        .await;
    assert_eq!(said.status, 409, "{}", said.text);
    for (_, text) in done(&said) {
        assert!(
            text.ends_with("This node never signs it all the same"),
            "{text}"
        );
    }
    assert_eq!(world.veto(UUID), Some(Veto::Person));
    assert_eq!(world.veto(SECOND), Some(Veto::Person));
    assert_eq!(world.veto(THIRD), None);

    // Signed for other requests, by another passkey, and with another session's form.
    let mut form = begun["form"].clone();
    form["form_token"] = json!(session.1);
    form["credential"] = answer(&treasurer(), &begun);
    form["uuids"] = json!([THIRD]);
    let said = world.post("/reject", &session.0, &form).await;
    assert_eq!(said.status, 409, "{}", said.text);
    form["uuids"] = begun["form"]["uuids"].clone();
    form["credential"] = answer(&director(), &begun);
    assert_eq!(world.post("/reject", &session.0, &form).await.status, 403);
    form["form_token"] = json!("x");
    assert_eq!(world.post("/reject", &session.0, &form).await.status, 403);
    assert_eq!(world.veto(THIRD), None);
    let long =
        json!({"form_token": session.1, "items": items(&text, ""), "reason": "x".repeat(201)});
    let said = world.post("/reject/begin", &session.0, &long).await;
    assert_eq!(said.status, 400, "{}", said.text);

    // What is signed is obeyed here, though nobody tells of it any longer; of another vault there is nothing to obey.
    let text = world
        .get(&format!("/requests/{THIRD}"), &session.0)
        .await
        .text;
    let begin = json!({"form_token": session.1, "items": items(&text, ""), "reason": ""});
    let begun = world.post("/reject/begin", &session.0, &begin).await;
    let begun: Value = serde_json::from_str(&begun.text).unwrap();
    world.tell(&[]);
    let mut form = begun["form"].clone();
    form["form_token"] = json!(session.1);
    form["credential"] = answer(&treasurer(), &begun);
    form["vault"] = json!("00000000-0000-4000-8000-00000000000f");
    let said = world.post("/reject", &session.0, &form).await;
    assert_eq!(
        (said.status, world.veto(THIRD)),
        (409, None),
        "{}",
        said.text
    );
    form["vault"] = begun["form"]["vault"].clone();
    let said = world.post("/reject", &session.0, &form).await;
    assert_eq!(said.status, 409, "{}", said.text);
    assert_eq!(world.veto(THIRD), Some(Veto::Person), "{}", said.text);
}
