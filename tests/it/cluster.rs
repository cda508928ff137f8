//! `covault serve` and three `covault signer` processes over a real Redis, from the sample
//! configuration in deploy/.

use std::{fs, path::Path};

use serde_json::json;

use super::support::*;

/// The pieces apart, from the samples in deploy/ with ports and folder changed.
struct Cluster {
    redis: Redis,
    serve: Process,
    signers: Vec<Process>,
    keys: Vec<String>,
    api: Api,
    admin_token: String,
    folder: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let redis = Redis::start(folder.path()).await;
        let port = free_port();
        let base = format!("http://127.0.0.1:{port}");
        for name in ["serve", "signer-1", "signer-2", "signer-3"] {
            let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("deploy/{name}.toml"));
            let text = fs::read_to_string(sample)
                .unwrap()
                .replace("redis://127.0.0.1:6379", &redis.url())
                .replace("127.0.0.1:8080", &format!("127.0.0.1:{port}"))
                .replace("./data", folder.path().to_str().unwrap())
                .replace("signing_deadline_ms = 60000", "signing_deadline_ms = 8000");
            fs::write(folder.path().join(format!("{name}.toml")), text).unwrap();
        }
        let serve = Self::launch(folder.path(), "serve", "serve");
        let signers = (1..=3)
            .map(|index| Self::launch(folder.path(), "signer", &format!("signer-{index}")))
            .collect();
        let mut cluster = Self {
            redis,
            serve,
            signers,
            keys: Vec::new(),
            api: Api::new(&base, ""),
            admin_token: String::new(),
            folder,
        };
        cluster.ready().await;
        let read = |path: &str| fs::read_to_string(cluster.folder.path().join(path)).map(|text| text.trim().to_owned());
        let keys = (1..=3).map(|index| read(&format!("signer-{index}/identity.pub")).unwrap()).collect();
        let token = read("orchestrator/platform-token").unwrap();
        let admin_token = read("orchestrator/admin-token").unwrap();
        cluster.keys = keys;
        cluster.admin_token = admin_token;
        cluster.api = Api::new(&base, &token);
        cluster
    }

    fn launch(folder: &Path, role: &str, name: &str) -> Process {
        let mut command = covault();
        command.args([role, "--config"]).arg(folder.join(format!("{name}.toml")));
        Process::start(&mut command, &folder.join(format!("{name}.log")))
    }

    /// The orchestrator answers and every signer has its identity.
    async fn ready(&mut self) {
        let folder = self.folder.path().to_owned();
        eventually("the cluster comes up", async || {
            self.serve.assert_running();
            self.signers.iter_mut().for_each(Process::assert_running);
            let identities = (1..=3).all(|index| folder.join(format!("signer-{index}/identity.pub")).exists());
            (identities && self.api.get("/readyz").await == 200).then_some(())
        })
        .await;
    }

    fn restart_signer(&mut self, index: usize) {
        self.signers[index] = Self::launch(self.folder.path(), "signer", &format!("signer-{}", index + 1));
    }

    /// `covault vault create`, and the vault's uuid.
    fn create_vault(&self, name: &str) -> String {
        let output = covault()
            .args(["vault", "create", "--name", name, "--threshold", "2", "--signers"])
            .arg(self.keys.join(","))
            .arg("--config")
            .arg(self.folder.path().join("serve.toml"))
            .output()
            .unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{out}\n{err}");
        let uuid = out.split_whitespace().find(|word| word.len() == 36 && word.matches('-').count() == 4);
        uuid.unwrap_or_else(|| panic!("no vault uuid in {out}")).to_owned()
    }

    /// Signs on both curves and checks with outside libraries.
    async fn assert_signs(&self, evm: &str, solana: &str, what: &str) {
        let digest = outside("sha256", json!({"content": base64(what)}))["digest"].clone();
        let outcome = self
            .api
            .sign(json!({"rawMessage": {"from": evm, "content": base64(what),
                "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}}))
            .await;
        let signature = &first_signature(&outcome)["ecdsaSignature"];
        assert_eq!(outside("recover", json!({"digest": digest, "signature": signature}))["address"], json!(evm), "{what}");
        let outcome = self.api.sign(json!({"solanaMessage": {"from": solana, "content": base64(what)}})).await;
        let signature = &first_signature(&outcome)["eddsaSignature"];
        let answer = outside("ed25519", json!({"content": base64(what), "signature": signature, "address": solana}));
        assert_eq!(answer["valid"], json!(true), "{what}");
    }
}

#[tokio::test]
async fn cluster__should_sign_while_two_of_three_signers_live_and_say_who_is_missing() {
    let mut cluster = Cluster::start().await;
    let vault = cluster.create_vault("treasury");
    let evm = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let solana = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
    cluster.assert_signs(&evm, &solana, "three signers").await;

    cluster.signers[1].kill();
    cluster.assert_signs(&evm, &solana, "one signer was killed").await;

    cluster.redis.restart().await;
    cluster.assert_signs(&evm, &solana, "Redis was restarted").await;

    cluster.signers[2].kill();
    let uuid = cluster.api.create(json!({"solanaMessage": {"from": solana, "content": base64("too few")}})).await;
    let outcome = cluster.api.execute(&uuid).await;
    let reason = outcome["error"]["message"].as_str().unwrap().to_owned();
    for index in [1, 2] {
        let key = cluster.keys[index].split_whitespace().nth(1).unwrap().to_owned();
        assert!(reason.contains(&key), "{reason} does not name {key}");
    }
    let alive = cluster.keys[0].split_whitespace().nth(1).unwrap();
    assert!(!reason.contains(alive), "{reason} names a node that lives");
    let details = cluster.api.details(&uuid).await;
    assert_eq!(details["status"], "STATUS_FAILED");
    assert_eq!(details["failedReason"], json!(reason));
    cluster.serve.assert_running();
    assert_eq!(cluster.api.get("/livez").await, 200);

    cluster.restart_signer(1);
    cluster.restart_signer(2);
    cluster.assert_signs(&evm, &solana, "the signers came back").await;
    for process in cluster.signers.iter_mut().chain([&mut cluster.serve]) {
        assert_eq!(process.terminate(), Some(0), "{}", process.log());
    }
}

#[tokio::test]
async fn transaction__should_reach_a_real_node_through_the_pieces_apart() {
    let anvil_folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(anvil_folder.path(), 31337).await;
    let mut cluster = Cluster::start().await;
    // The chain is configured as an operator would: in the file, then a restart.
    let path = cluster.folder.path().join("serve.toml");
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str(&format!("\n[chains.evm.31337]\nrpc = [\"{}\"]\n", anvil.url));
    fs::write(&path, text).unwrap();
    assert_eq!(cluster.serve.terminate(), Some(0));
    cluster.serve = Cluster::launch(cluster.folder.path(), "serve", "serve");
    cluster.ready().await;

    let vault = cluster.create_vault("payouts");
    assert_eq!(cluster.create_vault("payouts"), vault, "a name names one vault");
    let from = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    anvil.fund(&from, 1_000_000_000_000_000_000).await;
    let to = "0x00000000000000000000000000000000C0FFEE03";
    let outcome = cluster
        .api
        .sign(json!({"evmSendNative": {"chainId": "31337", "from": from, "to": to, "value": "12345"}}))
        .await;
    assert_eq!(anvil.receipt(outcome["txHash"].as_str().unwrap()).await["status"], "0x1");
    assert_eq!(anvil.balance(to).await, 12345);
}

#[tokio::test]
async fn admin_operations__should_need_the_admin_token() {
    let cluster = Cluster::start().await;
    for (token, expected) in [
        (cluster.api.token.as_str(), [401, 403].as_slice()),
        ("", &[401]),
        (cluster.admin_token.as_str(), &[200]),
    ] {
        let response = cluster
            .api
            .raw("/admin/v1/listVaults", |request| request.header("x-mtoken", token).json(&json!({})))
            .await;
        assert!(expected.contains(&response.status().as_u16()), "{token:.4}: {}", response.status());
    }
    let listing = covault()
        .args(["node", "list", "--config"])
        .arg(cluster.folder.path().join("serve.toml"))
        .output()
        .unwrap();
    let listing = String::from_utf8(listing.stdout).unwrap();
    for key in &cluster.keys {
        assert!(listing.contains(key.split_whitespace().nth(1).unwrap()), "{listing}");
    }
}
