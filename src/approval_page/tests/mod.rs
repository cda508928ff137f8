//! The page over its whole router, with a double of the orchestrators: a person with a passkey, and everyone else.

#![allow(non_snake_case)]

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering},
};

mod disagreeing;
mod several;
mod strangers;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_core::{
    approval::{Approval, ApprovalTerms, ApproverLine, PasskeyPublicKey, testing::TestPasskey},
    fault::Class,
    networks::{Network, Payload},
    schema::wire,
    testing::{ManualClock, SystemEntropy},
};
use covault_mpc::{
    node::ToldRequest,
    policy::Policy,
    questions::{ApprovedRequest, NodeOutcome},
};
use parking_lot::Mutex;
use prost::Message as _;
use serde_json::{Value, json};

use super::*;
use crate::console::tests::{Said, send};

const ORIGIN: &str = "https://approve.signer-1.example.com";
const RP_ID: &str = "approve.signer-1.example.com";
const NOW_MS: u64 = 1_800_000_000_000;
const VAULT: &str = "02020202-0202-4202-8202-020202020202";
/// Another vault of which the node has a share of the same root key, so to speak.
const OTHER: &str = "04040404-0404-4404-8404-040404040404";
const UUID: &str = "01020304-0506-4708-890a-0b0c0d0e0f10";
const FROM: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
const TO: &str = "0x00000000000000000000000000000000c0ffEE19";
const ROOT: [u8; 33] = [2; 33];

/// Orchestrators that tell what they are told to tell.
#[derive(Default)]
struct Told {
    requests: Mutex<Vec<ToldRequest>>,
    /// Those of them that do not answer.
    silent: Mutex<Vec<NodeId>>,
    vetoes: OnceLock<Arc<VetoStore>>,
    /// What they were brought.
    stored: Mutex<Vec<(NodeId, NodeQuestion)>>,
    /// What some of them answer instead of storing it.
    answers: Mutex<Vec<(NodeId, NodeAnswer)>>,
    /// Calls that wait, while this is locked.
    waiting: AtomicUsize,
    gate: tokio::sync::RwLock<()>,
}

#[async_trait]
impl WaitingRequests for Told {
    fn holds(&self, vault: VaultId, root_public_key: &[u8]) -> Result<bool, Fault> {
        Ok([VAULT.parse()?, OTHER.parse()?].contains(&vault) && root_public_key == ROOT)
    }

    fn signs_for(&self, vault: VaultId) -> Result<bool, Fault> {
        Ok([VAULT.parse()?, OTHER.parse()?].contains(&vault))
    }

    fn vetoes(&self) -> Result<Arc<VetoStore>, Fault> {
        Ok(Arc::clone(self.vetoes.get().unwrap()))
    }

    async fn pending(&self, _: &[RequestId]) -> Result<ToldRequests, Fault> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _open = self.gate.read().await;
        let silent = self.silent.lock().clone();
        Ok(ToldRequests {
            requests: self.requests.lock().clone(),
            more: !silent.is_empty(),
            silent,
        })
    }

    async fn act(
        &self,
        questions: Vec<(NodeId, NodeQuestion)>,
    ) -> Result<Vec<(NodeId, NodeAnswer)>, Fault> {
        let answers = questions.iter().map(|(to, question)| {
            let count = match question {
                NodeQuestion::Approve { requests, .. } => requests.len(),
                NodeQuestion::Reject { requests, .. } => requests.len(),
                NodeQuestion::Pending { .. } => panic!("asked as if it were done"),
            };
            let mut answers = self.answers.lock().clone().into_iter();
            let own = answers.find(|(by, _)| by == to);
            let outcomes = vec![NodeOutcome::Done { missing: 0 }; count];
            own.unwrap_or_else(|| {
                // What is rejected no longer waits there.
                if let NodeQuestion::Reject { requests, .. } = question {
                    self.ends(*to, requests);
                }
                (*to, NodeAnswer::Done { outcomes })
            })
        });
        let answers = answers.collect();
        self.stored.lock().extend(questions);
        Ok(answers)
    }
}

impl Told {
    /// An orchestrator tells no longer of these.
    fn ends(&self, by: NodeId, requests: &[RequestId]) {
        let mut told = self.requests.lock();
        for one in &mut *told {
            let request = wire::SigningRequest::decode(one.request.as_slice());
            let id = request.map(|it| it.uuid.parse());
            if matches!(id, Ok(Ok(id)) if requests.contains(&id)) {
                one.by.retain(|it| *it != by);
            }
        }
        told.retain(|it| !it.by.is_empty());
    }
}

/// A payment of so many wei, as an orchestrator tells of it.
fn payment(uuid: &str, vault: &str, wei: &str) -> wire::SigningRequest {
    let kind = wire::create_signing_request_request::Type::EvmSendNative(wire::EvmSendNative {
        chain_id: 1,
        from: FROM.into(),
        to: TO.into(),
        value: wei.into(),
        ..Default::default()
    });
    wire::SigningRequest {
        uuid: uuid.into(),
        vault_uuid: Some(vault.into()),
        notes: Some("for \u{202e}<b>bread</b>".into()),
        required_approval_count: 1,
        remaining_approval_count: 1,
        approval_subject: Some(wire::ApprovalSubject {
            root_public_key: ROOT.to_vec(),
            network: Network::Evm.name().into(),
            address: FROM.into(),
            payload: Payload::parse(&kind).unwrap().encode(),
        }),
        ..Default::default()
    }
}

/// A page whose policy asks the treasurer for payments above 5 wei, and the director for messages.
struct World {
    app: Router,
    told: Arc<Told>,
    clock: Arc<ManualClock>,
    policy: Arc<CurrentPolicy>,
    links: EnrolmentLinks,
    folder: tempfile::TempDir,
}

fn treasurer() -> TestPasskey {
    TestPasskey::new("treasurer@node", 1).at(RP_ID, &[ORIGIN])
}

fn director() -> TestPasskey {
    TestPasskey::new("director@node", 2).at(RP_ID, &[ORIGIN])
}

fn policy(people: &[(&str, TestPasskey)]) -> Policy {
    let mut text = format!("version = 2\nnode_origins = [\"{ORIGIN}\"]\n");
    for (name, key) in people {
        let line = key.line().line().unwrap();
        text.push_str(&format!(
            "[[approver]]\nname = \"{name}\"\nkeys = [\"{line}\"]\n"
        ));
    }
    text.push_str(
        "[[approval]]\nneeds = 1\nof = [\"treasurer\"]\nabove = { asset = \"evm:1\", per_request = \"5\" }\n\
         [[approval]]\nneeds = 1\nof = [\"director\"]\nkinds = [\"evmMessage\"]\n",
    );
    Policy::parse(&text).unwrap()
}

/// The same people, and a rule that holds payments.
fn holding_policy() -> Policy {
    let line = treasurer().line().line().unwrap();
    let text = format!(
        "version = 2\nnode_origins = [\"{ORIGIN}\"]\n[[approver]]\nname = \"treasurer\"\nkeys = [\"{line}\"]\n\
         [[approval]]\nneeds = 1\nof = [\"treasurer\"]\nhold_hours = 2\n"
    );
    Policy::parse(&text).unwrap()
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let told = Arc::new(Told::default());
        let _ = (told.vetoes).set(Arc::new(VetoStore::of(folder.path())));
        let clock = Arc::new(ManualClock::at(NOW_MS));
        let people = [("treasurer", treasurer()), ("director", director())];
        let policy = Arc::new(CurrentPolicy::new(policy(&people)));
        let app = router(ApprovalPageParts {
            node: "signer-1".into(),
            place: PageOrigin {
                origin: ORIGIN.into(),
                rp_id: RP_ID.into(),
                trusted_proxies: 0,
            },
            waiting: Arc::clone(&told) as _,
            policy: Arc::clone(&policy),
            folder: folder.path().to_owned(),
            clock: Arc::clone(&clock) as _,
            entropy: Arc::new(SystemEntropy),
        });
        Self {
            app,
            told,
            clock,
            policy,
            links: EnrolmentLinks::of(folder.path()),
            folder,
        }
    }

    fn tell(&self, requests: &[(u8, wire::SigningRequest)]) {
        let told = requests.iter().map(|(by, request)| ToldRequest {
            by: vec![NodeId([*by; 32])],
            request: request.encode_to_vec(),
        });
        *self.told.requests.lock() = told.collect();
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: String) -> Said {
        send(&self.app, method, path, headers, body).await
    }

    async fn get(&self, path: &str, cookie: &str) -> Said {
        let cookie = format!("{}={cookie}", sessions::COOKIE);
        self.send("GET", path, &[("cookie", &cookie)], String::new())
            .await
    }

    async fn post(&self, path: &str, cookie: &str, body: &Value) -> Said {
        self.post_from(ORIGIN, path, cookie, body).await
    }

    async fn post_from(&self, origin: &str, path: &str, cookie: &str, body: &Value) -> Said {
        let cookie = format!("{}={cookie}", sessions::COOKIE);
        let headers = [
            ("cookie", cookie.as_str()),
            ("origin", origin),
            ("content-type", "application/json"),
            ("accept", "application/json"),
        ];
        self.send("POST", path, &headers, body.to_string()).await
    }

    async fn try_sign_in(&self, passkey: &TestPasskey) -> (Value, Said) {
        let begun = self.post("/sign-in/begin", "", &json!({})).await.json();
        let body = json!({"token": begun["token"], "credential": answer(passkey, &begun)});
        let said = self.post("/sign-in", "", &body).await;
        (body, said)
    }

    /// Signs in: the cookie, and the token of the forms.
    async fn sign_in(&self, passkey: &TestPasskey) -> (String, String) {
        let (_, said) = self.try_sign_in(passkey).await;
        assert_eq!(said.status, 200, "{}", said.text);
        let line = said.headers["set-cookie"].to_str().unwrap();
        let (pair, terms) = line.split_once("; ").unwrap();
        let strict = "Path=/; Secure; HttpOnly; SameSite=Strict";
        assert!(terms.starts_with(strict), "{terms}");
        let (_, cookie) = pair.split_once('=').unwrap();
        let page = self.get("/", cookie).await;
        (
            cookie.to_owned(),
            between(&page.text, "name=\"form_token\" value=\""),
        )
    }

    /// Begins an approval of what the page of the request shows.
    async fn begin(&self, (cookie, form_token): &(String, String), fee: &str) -> (Value, Said) {
        let page = self.get(&format!("/requests/{UUID}"), cookie).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let shown = between(&page.text, "data-shown=\"");
        let items = json!([{"uuid": UUID, "shown": shown, "fee": fee}]);
        let form = json!({"form_token": form_token, "items": items});
        let begun = self.post("/approve/begin", cookie, &form).await;
        (form, begun)
    }
}

fn between(text: &str, begin: &str) -> String {
    let (_, rest) = text
        .split_once(begin)
        .unwrap_or_else(|| panic!("{begin}: {text}"));
    rest.split('"').next().unwrap().to_owned()
}

fn base64(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// The passkey's answer to options.
fn answer(passkey: &TestPasskey, options: &Value) -> Value {
    let challenge = options["publicKey"]["challenge"].as_str().unwrap();
    let challenge = BASE64_URL_SAFE_NO_PAD.decode(challenge).unwrap();
    let assertion = passkey.assert(&challenge.try_into().unwrap());
    json!({
        "id": base64(&passkey.passkey.credential_id),
        "response": {
            "authenticatorData": base64(&assertion.authenticator_data),
            "clientDataJSON": base64(&assertion.client_data_json),
            "signature": base64(&assertion.signature),
            "userHandle": null,
        },
    })
}

#[tokio::test]
async fn person__should_approve_what_the_node_has_decoded_and_nothing_else() {
    let world = World::new();
    // Small payments, other vaults, and what cannot be read ask nobody.
    let other = "01020304-0506-4708-890a-0b0c0d0e0f1";
    let stranger = "03030303-0303-4303-8303-030303030303";
    world.tell(&[
        (7, payment(UUID, VAULT, "1000000000000000000")),
        (8, payment(UUID, VAULT, "1000000000000000000")),
        (7, payment(&format!("{other}1"), VAULT, "5")),
        (7, payment(&format!("{other}2"), stranger, "1000")),
        (7, payment("no uuid", VAULT, "1000")),
    ]);
    world.told.requests.lock().push(ToldRequest {
        by: vec![NodeId([7; 32])],
        request: vec![0xff; 9],
    });
    let session = world.sign_in(&treasurer()).await;
    let list = world.get("/", &session.0).await.text;
    assert_eq!(list.matches("href=\"/requests/").count(), 1, "{list}");
    assert!(list.contains("1 ETH") && list.contains(TO), "{list}");
    assert!(list.contains("signer node <bdi>signer-1</bdi>"), "{list}");
    let page = world
        .get(&format!("/requests/{UUID}"), &session.0)
        .await
        .text;
    let payload = payment(UUID, VAULT, "1000000000000000000")
        .approval_subject
        .unwrap()
        .payload;
    let approval = |wei: &str, terms| {
        let subject = payment(UUID, VAULT, wei).approval_subject.unwrap();
        let (vault, id) = (VAULT.parse().unwrap(), UUID.parse().unwrap());
        Approval::new(
            vault,
            &ROOT,
            id,
            Network::Evm,
            FROM,
            &subject.payload,
            terms,
        )
    };
    let none = ApprovalTerms {
        most_fee: 0,
        valid_until_ms: 0,
    };
    let words =
        covault_core::approval::words(&approval("1000000000000000000", none).payload_sha256);
    for part in [
        words.join(" ").as_str(),
        "wants 1 of treasurer: 1 of",
        "for \\u{202e}&#60;b&#62;bread&#60;/b&#62;",
    ] {
        let page = page.replace("</bdi>", "").replace("<bdi>", "");
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!payload.is_empty());

    // What the service says of others' fees is not filled in: a fee that nobody has looked at would be approved.
    let mut with_fee = payment(UUID, VAULT, "1000000000000000000");
    with_fee.approvals.push(wire::GivenApproval {
        person: "controller".into(),
        timestamp: NOW_MS,
        most_fee: "7000000000000000000".into(),
        valid_until_timestamp: NOW_MS + 20 * 3_600_000,
    });
    world.tell(&[(7, with_fee)]);
    let page = world
        .get(&format!("/requests/{UUID}"), &session.0)
        .await
        .text;
    assert!(
        page.contains("data-fee=\"evm:1\" value=\"\"") && page.contains("approved 7 ETH"),
        "{page}"
    );
    world.tell(&[(7, payment(UUID, VAULT, "1000000000000000000"))]);

    // A fee in coins, then the signature, which goes to the orchestrator that tells of it.
    for fee in ["", "1e3", "-1", "0.0000000000000000001"] {
        let (_, said) = world.begin(&session, fee).await;
        assert_eq!(said.status, 400, "{fee}: {}", said.text);
    }
    let (_, begun) = world.begin(&session, "0.001").await;
    assert_eq!(begun.status, 200, "{}", begun.text);
    let begun = begun.json();
    let terms = ApprovalTerms {
        most_fee: 1_000_000_000_000_000,
        valid_until_ms: NOW_MS + 23 * 3_600_000,
    };
    let expected = approval("1000000000000000000", terms).id().unwrap();
    assert_eq!(begun["publicKey"]["challenge"], base64(&expected));
    let form = |passkey: &TestPasskey| {
        let mut form = begun["form"].clone();
        form["form_token"] = json!(session.1);
        form["credential"] = answer(passkey, &begun);
        form
    };
    // A passkey of somebody else, and one of nobody.
    for foreign in [
        director(),
        TestPasskey::new("treasurer", 9).at(RP_ID, &[ORIGIN]),
    ] {
        let said = world.post("/approve", &session.0, &form(&foreign)).await;
        assert_eq!(said.status, 403, "{}", said.text);
    }
    // Not the session's form, another site, one twice, none.
    let mut wrong = form(&treasurer());
    wrong["form_token"] = json!("x");
    assert_eq!(world.post("/approve", &session.0, &wrong).await.status, 403);
    let said = world
        .post_from(
            "https://evil.example",
            "/approve",
            &session.0,
            &form(&treasurer()),
        )
        .await;
    assert_eq!(said.status, 403);
    let mut wrong = form(&treasurer());
    for items in [
        json!([begun["form"]["items"][0], begun["form"]["items"][0]]),
        json!([]),
    ] {
        wrong["items"] = items;
        assert_eq!(world.post("/approve", &session.0, &wrong).await.status, 400);
    }
    // Other terms than those that were signed, and an end that no signer takes.
    let mut wrong = form(&treasurer());
    wrong["items"][0]["mostFee"] = json!("1000000000000001");
    assert_eq!(world.post("/approve", &session.0, &wrong).await.status, 409);
    // Told another amount since.
    world.tell(&[(7, payment(UUID, VAULT, "1000"))]);
    let said = world
        .post("/approve", &session.0, &form(&treasurer()))
        .await;
    assert_eq!(said.status, 409, "{}", said.text);
    assert!(world.told.stored.lock().is_empty());
    world.tell(&[
        (8, payment(UUID, VAULT, "1000")),
        (7, payment(UUID, VAULT, "1000000000000000000")),
    ]);
    // Whoever signed it is told of, and no other.
    let said = world
        .post("/approve", &session.0, &form(&treasurer()))
        .await;
    assert_eq!(said.status, 200, "{}", said.text);
    assert_eq!(said.json()["results"][0]["done"], true);
    let stored = world.told.stored.lock().clone();
    let [(by, NodeQuestion::Approve { requests, given })] = stored.as_slice() else {
        panic!("{stored:?}");
    };
    let request = UUID.parse().unwrap();
    assert_eq!(*by, NodeId([7; 32]));
    assert_eq!(*requests, [ApprovedRequest { request, terms }]);
    let key = covault_core::approval::ApproverKey::Passkey(Box::new(treasurer().passkey));
    assert!(key.verify(&given.proof, &expected).is_ok());
}

#[tokio::test]
async fn page__should_not_offer_what_orchestrators_tell_differently_or_what_has_changed() {
    let world = World::new();
    world.tell(&[(7, payment(UUID, VAULT, "1000"))]);
    let session = world.sign_in(&treasurer()).await;
    let (form, begun) = world.begin(&session, "0.1").await;
    assert_eq!(begun.status, 200);
    let two = [
        (7, payment(UUID, VAULT, "1000")),
        (8, payment(UUID, VAULT, "1000000")),
    ];
    world.tell(&two);
    let page = world
        .get(&format!("/requests/{UUID}"), &session.0)
        .await
        .text;
    assert!(
        page.contains("different things") && !page.contains("data-approve"),
        "{page}"
    );
    world.tell(&two[1..]);
    let said = world.post("/approve/begin", &session.0, &form).await;
    assert_eq!(said.status, 409, "{}", said.text);
    // The policy asks somebody else for it.
    let director = world.sign_in(&director()).await;
    let path = format!("/requests/{UUID}");
    assert_eq!(world.get(&path, &director.0).await.status, 404);
    assert!(
        world
            .get("/", &director.0)
            .await
            .text
            .contains("Nothing waits for you")
    );
    assert_eq!(world.get("/requests/x", &session.0).await.status, 404);
    assert_eq!(world.get("/nodes", &session.0).await.status, 404);
}

#[test]
fn way__should_be_the_nodes_where_the_policy_names_the_origin() {
    let place = |origin: &str| PageOrigin {
        origin: origin.into(),
        rp_id: RP_ID.into(),
        trusted_proxies: 0,
    };
    let policy = policy(&[("treasurer", treasurer()), ("director", director())]);
    assert!(people::counts_as_node(&policy, &place(ORIGIN)));
    assert!(!people::counts_as_node(
        &policy,
        &place("https://console.example.com")
    ));
}
