//! The admin operations about nodes and the life of keys, over the real gateway and signers that
//! make new shares when they are let.

mod rounds;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{Router, http::Method};
use covault_actors::port::{
    KeyRound, NodeBackup, NodeConfirmations, NodeView, SignerCluster, SigningAttempt,
};
use covault_core::{
    approval::Rejection,
    attest::MadeKey,
    fault::Fault,
    ids::SessionId,
    networks::VerifiedSignatures,
    order::{
        BackupOrder, KeygenOrder, NodeId, ProvenGeneration, ReshareOrder, ReshareOutcome,
        ReshareProof, SigningOrder,
    },
};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::routes::{TestRequest, app_over, known_key, post, signer};

const RECIPIENT: &str = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p";
/// No vault has it.
const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

/// Live signers whose work waits for a word.
struct GatedSigners {
    keys: watch::Receiver<bool>,
    shares: watch::Receiver<bool>,
}

async fn until(word: &watch::Receiver<bool>) {
    word.clone()
        .wait_for(|go| *go)
        .await
        .expect("somebody says it");
}

#[async_trait]
impl SignerCluster for GatedSigners {
    async fn keygen(&self, order: &KeygenOrder) -> Result<MadeKey, Fault> {
        until(&self.keys).await;
        Ok(known_key(order))
    }

    /// As long as it waits for its word.
    fn round(&self, _: &SessionId) -> Option<KeyRound> {
        Some(KeyRound { round: 3, of: 5 })
    }

    async fn sign(
        &self,
        _: &SigningOrder,
        _: &SigningAttempt,
    ) -> Result<VerifiedSignatures, Fault> {
        Err(Fault::unavailable("not today"))
    }

    async fn tell_of_rejection(
        &self,
        _: &Rejection,
        _: SessionId,
        _: &[NodeId],
    ) -> Result<(), Fault> {
        Ok(())
    }

    async fn reshare(&self, order: &ReshareOrder) -> Result<ReshareOutcome, Fault> {
        until(&self.shares).await;
        let parties = order.parties().into_iter();
        let proof = ReshareProof(parties.map(|node| (node, vec![0; 64])).collect());
        Ok(ReshareOutcome::Made(proof))
    }

    async fn activate(
        &self,
        _: &ReshareOrder,
        _: &ReshareProof,
        _: &[ProvenGeneration],
        nodes: &[NodeId],
    ) -> Result<NodeConfirmations, Fault> {
        Ok(nodes.iter().map(|node| (*node, Ok(()))).collect())
    }

    async fn backup(&self, order: &BackupOrder) -> Result<Vec<(NodeId, NodeBackup)>, Fault> {
        let holders = order.holders.iter().copied();
        let one = |node| match node == signer(3) {
            true => (node, Err(Fault::unavailable("is away"))),
            false => (node, Ok(vec![1, 2, 3])),
        };
        Ok(holders.map(one).collect())
    }

    fn check_recipient(&self, recipient: &str) -> Result<(), Fault> {
        crate::signers::check_recipient(recipient)
    }

    fn nodes(&self) -> Vec<NodeView> {
        let view = |seed| NodeView {
            name: format!("node-{seed}"),
            live: true,
            ..NodeView::unseen(signer(seed))
        };
        (1..=4).map(view).collect()
    }
}

fn key(seed: u8) -> String {
    signer(seed).openssh_line("")
}

/// A router with four admitted nodes, and the words that let them make keys and shares.
struct World {
    app: Router,
    keys: watch::Sender<bool>,
    shares: watch::Sender<bool>,
}

impl World {
    async fn new() -> Self {
        let (keys, may_keys) = watch::channel(false);
        let (shares, may_shares) = watch::channel(false);
        let signers = GatedSigners {
            keys: may_keys,
            shares: may_shares,
        };
        let app = app_over(Arc::new(signers), false).await;
        let world = Self { app, keys, shares };
        for seed in 1..=4 {
            let node = json!({"publicKey": key(seed)});
            assert_eq!(world.ask("admitNode", node).await.0, 200);
        }
        world
    }

    /// Status and body.
    async fn ask(&self, operation: &str, body: Value) -> (u16, Value) {
        let path = format!("/admin/v1/{operation}");
        let mut ask = post(&path, body);
        ask.headers[0] = ("x-mtoken", "admin");
        let (status, _, body) = ask.of(&self.app).await;
        (status, body)
    }

    /// The vault in the answer to an operation that must succeed.
    async fn vault(&self, operation: &str, body: Value) -> Value {
        let (status, answer) = self.ask(operation, body).await;
        assert_eq!(status, 200, "{operation}: {answer}");
        answer["vault"].clone()
    }

    /// The uuid of a vault of the first three nodes; its keys come when they may.
    async fn create(&self) -> String {
        let vault = json!({"name": "v", "threshold": 2, "signers": [key(1), key(2), key(3)],
            "approvals": {"mode": "automatic"}});
        let vault = self.vault("createVault", vault).await;
        vault["uuid"].as_str().expect("uuid").to_owned()
    }

    /// The same, ready.
    async fn ready(&self) -> String {
        self.keys.send_replace(true);
        let uuid = self.create().await;
        self.until(|vault| vault["ready"] == true).await;
        uuid
    }

    async fn until(&self, fits: impl Fn(&Value) -> bool) -> Value {
        let found = async {
            loop {
                let (_, list) = self.ask("listVaults", json!({})).await;
                let vault = &list["vaults"][0];
                if fits(vault) {
                    return vault.clone();
                }
                tokio::task::yield_now().await;
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(20), found);
        found.await.expect("comes about")
    }

    async fn assert_refuses(&self, operation: &str, body: Value, status: u16, sentence: &str) {
        let (got, answer) = self.ask(operation, body.clone()).await;
        let message = answer["error"]["message"].as_str().expect("message");
        assert_eq!(got, status, "{operation} {body}: {answer}");
        assert!(
            message.starts_with(sentence),
            "{operation} {body}: {message}"
        );
        let code = &answer["error"]["serviceErrorCode"];
        assert_eq!(*code, "SERVICE_ERROR_CODE_UNSPECIFIED");
    }
}

/// What is in progress for each key: its step, or null.
fn work(vault: &Value) -> Vec<Value> {
    let keys = vault["keys"].as_array().expect("keys").iter();
    keys.map(|key| key["work"]["step"].clone()).collect()
}

fn epochs(vault: &Value) -> Vec<Value> {
    let keys = vault["keys"].as_array().expect("keys").iter();
    keys.map(|key| key["shares"]["epoch"].clone()).collect()
}

/// Every operation with a body that would do.
fn operations(vault: &str) -> [(&'static str, Value); 6] {
    [
        ("reshareVault", json!({"vaultUuid": vault})),
        (
            "reshareVault",
            json!({"vaultUuid": vault, "threshold": 2, "signers": [key(1), key(2), key(4)]}),
        ),
        ("cancelReshare", json!({"vaultUuid": vault})),
        (
            "backupVault",
            json!({"vaultUuid": vault, "recipients": [RECIPIENT]}),
        ),
        ("admitNode", json!({"publicKey": key(5)})),
        ("removeNode", json!({"publicKey": key(4)})),
    ]
}

#[tokio::test]
async fn admin__should_name_the_field_that_is_wrong() {
    let world = World::new().await;
    let vault = world.ready().await;
    let with = |fields: Value| {
        let mut body = json!({"vaultUuid": vault});
        let fields = fields.as_object().expect("fields").clone();
        body.as_object_mut().expect("object").extend(fields);
        body
    };
    let two = json!([key(1), key(2)]);
    let seventeen = vec![RECIPIENT; 17];
    let long = "x".repeat(65);
    for (operation, body, sentence) in [
        (
            "reshareVault",
            with(json!({"signers": two})),
            "threshold: is required with signers",
        ),
        (
            "reshareVault",
            with(json!({"threshold": 2})),
            "signers: are required with threshold",
        ),
        (
            "reshareVault",
            with(json!({"threshold": 3, "signers": two})),
            "threshold: must be at least 2 and at most the number of signers",
        ),
        (
            "reshareVault",
            with(json!({"threshold": 1, "signers": two})),
            "threshold: must be at least 2",
        ),
        (
            "reshareVault",
            with(json!({"threshold": "two", "signers": two})),
            "threshold: must be a whole number",
        ),
        (
            "reshareVault",
            with(json!({"threshold": -1})),
            "threshold: is out of range",
        ),
        (
            "reshareVault",
            with(json!({"threshold": 2, "signers": [key(1), key(1)]})),
            "signers: name one node twice",
        ),
        (
            "reshareVault",
            with(json!({"threshold": 2, "signers": [key(1), "ssh-rsa AAAA"]})),
            "signers[1]: must be an OpenSSH line",
        ),
        (
            "reshareVault",
            with(json!({"signers": [7]})),
            "signers[0]: must be a string",
        ),
        (
            "reshareVault",
            with(json!({"threshold": 2, "signers": [key(1), key(9)]})),
            &format!(
                "signers: {} is not admitted; admit it first: covault node admit",
                key(9)
            ),
        ),
        (
            "reshareVault",
            with(json!({"lost": ["signer-1"]})),
            "lost[0]: must be an OpenSSH line",
        ),
        (
            "reshareVault",
            with(json!({"lost": [key(4)]})),
            "lost: includes a node that holds no share",
        ),
        (
            "reshareVault",
            with(json!({"lost": two})),
            "lost: too few shares remain: 2 are required",
        ),
        (
            "reshareVault",
            with(json!({"schemes": ["dkls23", "gg18"]})),
            "schemes[1]: must be frost-ed25519",
        ),
        (
            "reshareVault",
            with(json!({"schemes": ["cggmp24"]})),
            "schemes: the vault has no cggmp24 key",
        ),
        (
            "reshareVault",
            with(json!({"treshold": 2})),
            "treshold: unknown field",
        ),
        ("cancelReshare", json!({}), "vaultUuid: is required"),
        (
            "cancelReshare",
            json!({"vaultUuid": 7}),
            "vaultUuid: must be a string",
        ),
        (
            "cancelReshare",
            with(json!({"schemes": []})),
            "schemes: unknown field",
        ),
        ("backupVault", with(json!({})), "recipients: is required"),
        (
            "backupVault",
            with(json!({"recipients": []})),
            "recipients: must be 1 to 16",
        ),
        (
            "backupVault",
            with(json!({"recipients": seventeen})),
            "recipients: must be 1 to 16",
        ),
        (
            "backupVault",
            with(json!({"recipients": [RECIPIENT, "age1nobody"]})),
            "recipients[1]: must be an age recipient",
        ),
        (
            "admitNode",
            json!({"name": "vienna"}),
            "publicKey: is required",
        ),
        (
            "admitNode",
            json!({"publicKey": "vienna"}),
            "publicKey: must be an OpenSSH line",
        ),
        (
            "admitNode",
            json!({"publicKey": key(5), "name": long}),
            "name: has more than 64",
        ),
        (
            "admitNode",
            json!({"publicKey": key(5), "name": "a\u{7}"}),
            "name: must not have control characters",
        ),
        (
            "removeNode",
            json!({"publicKey": ["x"]}),
            "publicKey: must be a string",
        ),
        (
            "removeNode",
            json!({"publicKey": key(9)}),
            "publicKey: is not the key of an admitted node",
        ),
        (
            "removeNode",
            json!({"publicKey": key(4), "force": true}),
            "force: unknown field",
        ),
        ("removeNode", json!([]), "the body must be a JSON object"),
    ] {
        world.assert_refuses(operation, body, 400, sentence).await;
    }
    for body in ["{", "", "{} {}"] {
        let mut ask = post("/admin/v1/cancelReshare", json!({}));
        ask.headers[0] = ("x-mtoken", "admin");
        ask.body = body.to_owned();
        let (status, _, answer) = ask.of(&world.app).await;
        assert_eq!(status, 400, "{body}: {answer}");
    }
    // Nothing of it has changed anything.
    let (_, nodes) = world.ask("listNodes", json!({})).await;
    assert_eq!(nodes["nodes"].as_array().map(Vec::len), Some(4));
    let vault = world.until(|_| true).await;
    assert_eq!(work(&vault), [Value::Null, Value::Null]);
    assert_eq!(epochs(&vault), [0, 0]);
}

#[tokio::test]
async fn admin__should_not_know_a_vault_that_is_not_there() {
    let world = World::new().await;
    for uuid in [NOBODY, "", "treasury", "../../etc/passwd"] {
        for (operation, body) in operations(uuid) {
            if body.get("vaultUuid").is_some() {
                world
                    .assert_refuses(operation, body, 400, "Invalid uuid")
                    .await;
            }
        }
    }
}

#[tokio::test]
async fn admin__should_open_with_the_admin_token_alone() {
    let world = World::new().await;
    let vault = world.ready().await;
    for (operation, body) in operations(&vault) {
        let path = format!("/admin/v1/{operation}");
        let ask = |token: Option<&'static str>| {
            let mut ask = post(&path, body.clone());
            ask.headers.retain(|(name, _)| *name != "x-mtoken");
            ask.headers.extend(token.map(|token| ("x-mtoken", token)));
            ask
        };
        for (ask, expected) in [
            (ask(None), 401),
            (ask(Some("Admin")), 401),
            (ask(Some("platform")), 403),
            (
                TestRequest {
                    method: Method::GET,
                    ..ask(Some("admin"))
                },
                405,
            ),
            (
                TestRequest {
                    headers: vec![("x-mtoken", "admin")],
                    ..ask(Some("admin"))
                },
                415,
            ),
        ] {
            let (status, _, answer) = ask.of(&world.app).await;
            assert_eq!(status, expected, "{operation}: {answer}");
            assert!(answer["error"]["message"].is_string(), "{answer}");
        }
    }
    let vault = world.until(|_| true).await;
    assert_eq!(work(&vault), [Value::Null, Value::Null]);
}

#[tokio::test]
async fn admin__should_wait_for_the_keys_of_a_vault() {
    let world = World::new().await;
    let vault = world.create().await;
    for (operation, body) in operations(&vault) {
        match operation {
            "cancelReshare" => {
                let sentence = "no refresh or reshare of this vault can be cancelled";
                world.assert_refuses(operation, body, 409, sentence).await;
            }
            "reshareVault" | "backupVault" => {
                let sentence = "the vault's keys do not exist yet";
                world.assert_refuses(operation, body, 409, sentence).await;
            }
            _ => {}
        }
    }
    // Its nodes are needed already.
    let node = json!({"publicKey": key(1)});
    world
        .assert_refuses(
            "removeNode",
            node,
            409,
            "vaults without keys name the node as a signer: v",
        )
        .await;
}

#[tokio::test]
async fn refresh__should_be_wanted_once_and_stand_in_the_way_of_another() {
    let world = World::new().await;
    let uuid = world.ready().await;
    let refresh = json!({"vaultUuid": uuid});
    let first = world.vault("reshareVault", refresh.clone()).await;
    assert_eq!(work(&first), ["preparing", "preparing"]);
    assert_eq!(epochs(&first), [0, 0]);
    let again = world.vault("reshareVault", refresh.clone()).await;
    assert_eq!(work(&again), work(&first));

    // Another wish waits; of both keys, and of one.
    let reshare = json!({"vaultUuid": uuid, "threshold": 2, "signers": [key(1), key(4)]});
    let mut one = reshare.clone();
    one["schemes"] = json!(["frost-ed25519"]);
    for other in [reshare.clone(), one] {
        let sentence = "another refresh or reshare of this vault is in progress";
        world
            .assert_refuses("reshareVault", other, 409, sentence)
            .await;
    }
    // What does not touch the shares goes on: backups, vaults, nodes.
    let backup = json!({"vaultUuid": uuid, "recipients": [RECIPIENT]});
    for _ in 0..2 {
        let (status, answer) = world.ask("backupVault", backup.clone()).await;
        assert_eq!(status, 200, "{answer}");
        let backups = answer["backups"].as_array().expect("backups");
        assert_eq!(backups.len(), 6);
        for backup in backups {
            let away = backup["publicKey"] == json!(format!("{} node-3", key(3)));
            let expected = if away {
                (Value::Null, json!("is away"))
            } else {
                (json!("AQID"), Value::Null)
            };
            assert_eq!(
                (backup["backup"].clone(), backup["problem"].clone()),
                expected
            );
            assert_eq!(
                (&backup["epoch"], &backup["threshold"]),
                (&json!(0), &json!(2))
            );
        }
    }
    assert_eq!(world.create().await, uuid, "a name names one vault");
    for name in ["", "graz", "graz"] {
        let node = json!({"publicKey": key(5), "name": name});
        let (status, answer) = world.ask("admitNode", node).await;
        assert_eq!((status, &answer["node"]["name"]), (200, &json!(name)));
    }
    let node = json!({"publicKey": key(5)});
    assert_eq!(
        world.ask("removeNode", node.clone()).await,
        (200, json!({}))
    );
    let sentence = "publicKey: is not the key of an admitted node";
    world
        .assert_refuses("removeNode", node, 400, sentence)
        .await;

    // Cancelled once; the epoch that was begun is never used again.
    let cancel = json!({"vaultUuid": uuid});
    let cancelled = world.vault("cancelReshare", cancel.clone()).await;
    assert_eq!(work(&cancelled), [Value::Null, Value::Null]);
    assert_eq!(epochs(&cancelled), [0, 0]);
    let sentence = "no refresh or reshare of this vault can be cancelled";
    world
        .assert_refuses("cancelReshare", cancel.clone(), 409, sentence)
        .await;

    // Now the other one. Who is to hold shares can no longer be removed, as little as who does.
    let wanted = world.vault("reshareVault", reshare.clone()).await;
    assert_eq!(work(&wanted), ["preparing", "preparing"]);
    let holders = &wanted["keys"][0]["work"]["holders"];
    assert_eq!(*holders, json!([key(1), key(4)]));
    for seed in [3, 4] {
        let node = json!({"publicKey": key(seed)});
        world
            .assert_refuses("removeNode", node, 409, "the node holds shares of: v")
            .await;
    }
    world.shares.send_replace(true);
    let done = world
        .until(|vault| work(vault) == [Value::Null, Value::Null])
        .await;
    let new = epochs(&done);
    assert!(new.iter().all(|epoch| epoch.as_u64() >= Some(2)), "{done}");
    assert_eq!(done["signers"], json!([key(1), key(4)]));
    world
        .assert_refuses("cancelReshare", cancel, 409, sentence)
        .await;
    let gone = json!({"publicKey": key(3)});
    assert_eq!(world.ask("removeNode", gone).await.0, 200);
    // The same wish when it has come about is a refresh of the same nodes.
    let again = world.vault("reshareVault", reshare).await;
    assert_eq!(again["threshold"], json!(2));
    let later = world
        .until(|vault| work(vault) == [Value::Null, Value::Null] && epochs(vault) != new)
        .await;
    assert_eq!(later["signers"], done["signers"]);
}
