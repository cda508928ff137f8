//! A client signer as a process, with the public product's configuration file, and a program that decides for it.

mod batches;
mod tls;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    order::NodeId,
    schema::{DESCRIPTOR_SET, wire},
};
use ed25519_dalek::{Signature, Verifier as _};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
};

use super::support::*;

/// Where the chain has the batch contract.
const BATCH_CONTRACT: &str = "0x000000000000000000000000000000000000b47c";

/// What the program does with what it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Status(&'static str),
    /// This status, and 10 MB.
    Large(&'static str),
    Hang,
}

/// The program of the client.
struct Program {
    url: String,
    decision: Mutex<Decision>,
    /// Headers and body of each question.
    asked: Mutex<Vec<(String, Vec<u8>)>>,
}

impl Program {
    async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let program = Arc::new(Self {
            url: format!("http://{}/decide", listener.local_addr().unwrap()),
            decision: Mutex::new(Decision::Status("200 OK")),
            asked: Mutex::default(),
        });
        let serving = Arc::clone(&program);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(Arc::clone(&serving).answer(stream));
            }
        });
        program
    }

    /// Answers one question; the connection is not used again.
    async fn answer(self: Arc<Self>, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut read = Vec::new();
        let end = loop {
            if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                return;
            }
            let mut fours = read.windows(4);
            if let Some(end) = fours.position(|four| four == b"\r\n\r\n") {
                break end;
            }
        };
        let head = String::from_utf8(read[..end].to_vec()).unwrap();
        let length: usize = header(&head, "content-length").parse().unwrap();
        while read.len() < end + 4 + length {
            stream.read_buf(&mut read).await.unwrap();
        }
        self.asked
            .lock()
            .unwrap()
            .push((head, read[end + 4..].to_vec()));
        let decision = *self.decision.lock().unwrap();
        let (line, bytes) = match decision {
            Decision::Hang => return tokio::time::sleep(Duration::from_secs(60)).await,
            Decision::Status(line) => (line, 0),
            Decision::Large(line) => (line, 10 << 20),
        };
        let text = format!(
            "HTTP/1.1 {line}\r\nlocation: {}\r\nconnection: close\r\ncontent-length: {bytes}\r\n\r\n",
            self.url
        );
        let _ = stream.write_all(text.as_bytes()).await;
        let _ = stream.write_all(&vec![0; bytes]).await;
    }

    fn decide(&self, decision: Decision) {
        *self.decision.lock().unwrap() = decision;
    }

    /// How often it was asked about a request.
    fn count(&self, uuid: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        let mut ids = asked.iter().map(|(head, _)| header(head, "webhook-id"));
        ids.by_ref().filter(|id| id == uuid).count()
    }
}

fn header(head: &str, name: &str) -> String {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
    found
        .unwrap_or_else(|| panic!("{name}: {head}"))
        .1
        .to_owned()
}

/// A cluster whose manual vault has a client signer among its three holders.
struct World {
    anvil: Anvil,
    _chain_folder: tempfile::TempDir,
    cluster: TestCluster,
    program: Arc<Program>,
    config: PathBuf,
    client: Process,
    /// The client signer's OpenSSH line.
    key: String,
    vault: String,
    evm: String,
}

impl World {
    async fn start() -> Self {
        Self::start_asking(None, 31337).await
    }

    /// The client signer asks at this URL; `None`: the program.
    async fn start_asking(callback: Option<String>, chain_id: u64) -> Self {
        let chain_folder = tempfile::tempdir().unwrap();
        let anvil = Anvil::start(chain_folder.path(), chain_id).await;
        let built = fs::read_to_string("deploy/contracts/CovaultBatch.json").unwrap();
        let built: Value = serde_json::from_str(&built).unwrap();
        let code = &built["contracts"]["CovaultBatch"]["runtime"];
        anvil
            .call("anvil_setCode", json!([BATCH_CONTRACT, code]))
            .await;
        let policy = format!(
            "raw_signing = true\nbatch_contracts = [\"evm:{chain_id}:{BATCH_CONTRACT}\"]\n"
        );
        let url = anvil.url.clone();
        let mut cluster = TestCluster::start_prepared(60_000, &policy, |folder| {
            let path = folder.join("serve.toml");
            let text = fs::read_to_string(&path).unwrap();
            let chain = format!(
                "[chains.evm.{chain_id}]\nrpc = [{url:?}]\nbatch_contract = \"{BATCH_CONTRACT}\"\n"
            );
            fs::write(&path, format!("{text}\n{chain}")).unwrap();
        })
        .await;
        let program = Program::start().await;
        let folder = cluster.folder.path().to_owned();
        let (own, person) = (folder.join("id_client"), folder.join("id_person"));
        for (path, password) in [(&own, "hunter2"), (&person, "")] {
            let made = Command::new("ssh-keygen")
                .args([
                    "-q",
                    "-t",
                    "ed25519",
                    "-N",
                    password,
                    "-C",
                    "production key",
                    "-f",
                ])
                .arg(path)
                .status();
            assert!(made.unwrap().success());
        }
        let key = fs::read_to_string(own.with_extension("pub")).unwrap();
        let key = key.trim().to_owned();
        let approver = format!("treasurer={}", person.with_extension("pub").display());
        let vault = cluster.create_vault_with(
            "treasury",
            &[
                "--approver",
                &approver,
                "--needs",
                "1",
                "--client-signer",
                &key,
            ],
        );
        let evm = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
        // The public product's file, and behind it what a node of ours needs.
        let health = free_port();
        let config = folder.join("config.yml");
        let peers: Vec<String> = cluster.keys.iter().map(|key| format!("{key:?}")).collect();
        let text = format!(
            "vault-uuid: {vault}\ncallback-url: {}\nssh:\n  private-key: {}\n  password: hunter2\nhttp-health:\n  \
             listening-addr: 127.0.0.1:{health}\nbus:\n  redis_url: {}\nsigner:\n  name: client\n  data_dir: {}\n  \
             generate_passphrase: true\n  development: true\n  orchestrators: [{}]\n  peers: [{}]\n  policy_file: {}\n",
            callback.as_ref().unwrap_or(&program.url),
            own.display(),
            cluster.redis.url(),
            folder.join("client").display(),
            folder.join("orchestrator/identity.pub").display(),
            peers.join(", "),
            folder.join("policy.toml").display(),
        );
        write_secret(&config, &text);
        let client = Self::launch(&config);
        let health = format!("http://127.0.0.1:{health}/health");
        eventually("the client signer is up", async || {
            let answer = http_client().get(&health).send().await.ok()?;
            (answer.status() == 200).then_some(())
        })
        .await;
        let (done, out, err) = cluster.node(&["admit", &key, "--name", "client"]);
        assert!(done, "{out}{err}");
        cluster.keys.push(key.clone());
        cluster.pin_peers();
        let signers = [&cluster.keys[0], &cluster.keys[1], &key]
            .map(String::as_str)
            .join(",");
        let mut reshare = cluster.vault_command(&[
            "reshare",
            "--vault",
            &vault,
            "--threshold",
            "2",
            "--signers",
            &signers,
        ]);
        let running = std::thread::spawn(move || outcome_of(&mut reshare));
        while !running.is_finished() {
            cluster.permit_asked();
            permit_asked(&config);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let (done, printed, err) = running.join().unwrap();
        assert!(done, "{printed}\n{err}");
        Self {
            anvil,
            _chain_folder: chain_folder,
            cluster,
            program,
            config,
            client,
            key,
            vault,
            evm,
        }
    }

    fn launch(config: &Path) -> Process {
        Self::launch_with(config, &[])
    }

    fn launch_with(config: &Path, variables: &[(&str, &Path)]) -> Process {
        let mut command = covault();
        command.envs(variables.iter().copied());
        // As the public product's client signer is started.
        command.args(["client-signer", "--config-path"]).arg(config);
        // Nobody is there: whoever is asked through it says no.
        for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
            command.env(name, "http://127.0.0.1:9");
        }
        Process::start(&mut command, &config.with_file_name("client.log"))
    }

    fn message(&self, text: &str, signer: &str) -> Value {
        json!({"evmMessage": {"chainId": "1", "from": self.evm, "content": base64(text)},
            "callbackClientSignerPublicKey": signer})
    }

    async fn until_asked(&self, uuid: &str, times: usize) {
        eventually("the program is asked", async || {
            (self.program.count(uuid) >= times).then_some(())
        })
        .await;
    }

    async fn assert_signed(&self, uuid: &str) {
        let outcome = self.cluster.api.execute(uuid).await;
        assert_eq!(
            outcome["error"],
            Value::Null,
            "{outcome}\n{}",
            self.client.log()
        );
        first_signature(&outcome);
    }
}

/// `COVAULT_OUTSIDE` is a command, such as a script that writes a configuration and starts a published program with it. Its
/// environment has what such a configuration needs; its callback is at COVAULT_CALLBACK_PORT. `COVAULT_OUTSIDE_CHAIN` is the id
/// that the development chain has, for programs that have one built in.
#[tokio::test]
#[ignore = "runs a program that is not in the tree: just outside COMMAND"]
async fn program_of_others__should_run_with_a_client_signer() {
    let command = std::env::var("COVAULT_OUTSIDE").expect("COVAULT_OUTSIDE is a command");
    let port = free_port();
    let chain = std::env::var("COVAULT_OUTSIDE_CHAIN").map_or(31337, |id| id.parse().unwrap());
    let world = World::start_asking(Some(format!("http://127.0.0.1:{port}/")), chain).await;
    let api = &world.cluster.api;
    let log = world.cluster.serve.log();
    let (_, grpc) = log.split_once("grpc_address=").unwrap();
    let grpc = grpc.split_whitespace().next().unwrap().to_owned();
    let status = tokio::task::spawn_blocking({
        let mut program = Command::new("sh");
        program
            .args(["-c", &command])
            .env("COVAULT_URL", &api.base)
            .env("COVAULT_GRPC", grpc)
            .env("COVAULT_TOKEN", &api.token)
            .env("COVAULT_VAULT", &world.vault)
            .env("COVAULT_WALLET", &world.evm)
            .env("COVAULT_CHAIN_URL", &world.anvil.url)
            .env("COVAULT_CLIENT_SIGNER", &world.key)
            .env("COVAULT_CALLBACK_PORT", port.to_string());
        move || program.status().unwrap()
    });
    assert!(status.await.unwrap().success(), "{}", world.client.log());
}

#[tokio::test]
async fn client_signer__should_decide_with_its_callback_and_be_asked_once() {
    let mut world = World::start().await;
    let api = world.cluster.api.clone();
    let bare = world.key.split(' ').nth(1).unwrap().to_owned();

    // What names it needs no person, and its yes: with the key in each form.
    for (text, signer) in [("one", world.key.clone()), ("two", bare.clone())] {
        let uuid = api.create(world.message(text, &signer)).await;
        world.assert_signed(&uuid).await;
        let shown = api.details(&uuid).await;
        let named = shown["callbackClientSignerPublicKey"]
            .as_str()
            .unwrap()
            .to_owned();
        assert_eq!(named, format!("ssh-ed25519 {bare}"));
        assert_eq!(world.program.count(&uuid), 1);
        let (head, body) = world.program.asked.lock().unwrap().last().cloned().unwrap();
        assert_eq!(header(&head, "content-type"), "application/octet-stream");
        let asked = wire::SigningRequest::decode(body.as_slice()).unwrap();
        assert_eq!(
            (asked.uuid, asked.vault_uuid),
            (uuid, Some(world.vault.clone()))
        );
        let signature = STANDARD.decode(header(&head, "signature")).unwrap();
        let signer = NodeId::parse_openssh_line(&world.key)
            .unwrap()
            .verifying_key()
            .unwrap();
        signer
            .verify(&body, &Signature::from_slice(&signature).unwrap())
            .unwrap();
    }
    world.program.decide(Decision::Large("200 OK"));
    let uuid = api.create(world.message("large", &world.key)).await;
    world.assert_signed(&uuid).await;

    // Without it a person decides.
    let uuid = api.create(world.message("unnamed", "")).await;
    let (status, body) = api
        .post("executeSigningRequests", json!({"uuid": uuid}))
        .await;
    assert_eq!(
        (status, &body["error"]["message"]),
        (403, &json!("ClientSignerPublicKey is required"))
    );
    // Nobody decides who has no share or is not named by the vault's rule, and no malformed key.
    for (signer, says) in [
        (
            world.cluster.keys[1].clone(),
            "is not a client signer of the vault's approval rule",
        ),
        (
            world.cluster.keys[2].clone(),
            "holds no share of this key of the vault",
        ),
        ("ssh-ed25519 AAAA".to_owned(), "must be an OpenSSH line"),
    ] {
        let (status, body) = api
            .post("createSigningRequest", world.message("x", &signer))
            .await;
        let said = body["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(status, 400, "{body}");
        assert!(
            said.starts_with("callbackClientSignerPublicKey: ") && said.contains(says),
            "{said}"
        );
        let wallet = json!({"vaultUuid": world.vault, "networkType": "NETWORK_TYPE_EVM",
            "callbackClientSignerPublicKey": signer});
        assert_eq!(api.post("createWallet", wallet).await.0, 400);
    }
    let wallet = json!({"vaultUuid": world.vault, "networkType": "NETWORK_TYPE_EVM",
        "callbackClientSignerPublicKey": world.key});
    api.ok("createWallet", wallet).await;

    // Everything else is a no, with its sentence.
    for (decision, says) in [
        (Decision::Status("199 Later"), "it gave no answer ("),
        (
            Decision::Status("204 No Content"),
            "it answered 204, and only 200 is a yes",
        ),
        (
            Decision::Status("301 Moved"),
            "it answered 301, and only 200 is a yes",
        ),
        (
            Decision::Status("401 No"),
            "it answered 401, and only 200 is a yes",
        ),
        (
            Decision::Status("500 No"),
            "it answered 500, and only 200 is a yes",
        ),
        (
            Decision::Large("500 No"),
            "it answered 500, and only 200 is a yes",
        ),
        (Decision::Hang, "it did not answer within 5 s"),
    ] {
        world.program.decide(decision);
        let uuid = api
            .create(world.message(&format!("{decision:?}"), &world.key))
            .await;
        let outcome = api.execute(&uuid).await;
        let error = &outcome["error"];
        let said = error["message"].as_str().unwrap_or_default();
        assert!(
            said.starts_with("client (ssh-ed25519 ")
                && said.contains(&format!("refused to sign: the callback denied it: {says}")),
            "{decision:?}: {outcome}"
        );
        let code = &error["executeSigningRequestsErrorCode"];
        assert!(
            code.as_str().unwrap().ends_with("ALREADY_DENIED"),
            "{outcome}"
        );
        assert_eq!(api.details(&uuid).await["status"], "STATUS_FAILED");
        assert_eq!(world.program.count(&uuid), 1, "{decision:?}");
    }

    batches::pay(&world).await;

    // Killed while it is being asked: asked again, once.
    world.program.decide(Decision::Hang);
    let uuid = api
        .create(world.message("killed while asking", &world.key))
        .await;
    world.until_asked(&uuid, 1).await;
    world.client.kill();
    world.program.decide(Decision::Status("200 OK"));
    world.client = World::launch(&world.config);
    world.assert_signed(&uuid).await;
    assert_eq!(world.program.count(&uuid), 2);

    // Killed between its yes and the session: not asked again.
    for signer in &world.cluster.signers {
        signer.signal("STOP");
    }
    let uuid = api
        .create(world.message("killed before the session", &world.key))
        .await;
    world.until_asked(&uuid, 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.client.kill();
    for signer in &world.cluster.signers {
        signer.signal("CONT");
    }
    world.client = World::launch(&world.config);
    world.assert_signed(&uuid).await;
    assert_eq!(world.program.count(&uuid), 1);

    let (done, listed, err) = world.cluster.node(&["list"]);
    assert!(done && listed.contains("client signer"), "{listed}{err}");
}

/// The program in Go, built in a folder with Debian's Go packages.
fn go_callback(folder: &Path) -> PathBuf {
    let program = folder.join("callback");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg("tests/go/callback.go")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("GOCACHE", folder.join("go-cache"))
        .env("GOFLAGS", "")
        .env("GO111MODULE", "off")
        .env("GOPATH", "/usr/share/gocode")
        .output()
        .unwrap_or_else(|why| panic!("go: bash tests/run installs it: {why}"));
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    program
}

/// A program in another language that decodes with the schema as it is committed.
async fn callback_program(folder: &Path, name: &str) -> (Process, String) {
    let port = free_port();
    let mut command = match name {
        "node" => {
            let mut command = Command::new(node_tool("node_modules/node/bin/node"));
            command.arg(node_tool("callback.mjs")).arg(port.to_string());
            command
        }
        _ => {
            let project = Path::new(env!("CARGO_MANIFEST_DIR"));
            let schema = folder.join("schema.fds");
            fs::write(&schema, DESCRIPTOR_SET).unwrap();
            let mut command = if name == "go" {
                Command::new(go_callback(folder))
            } else {
                let mut command = Command::new(project.join("tests/python/venv/bin/python"));
                command.arg(project.join("tests/python/callback.py"));
                command
            };
            command.arg(port.to_string()).arg(schema);
            command
        }
    };
    let mut process = Process::start(&mut command, &folder.join(format!("{name}.log")));
    eventually("the program listens", async || {
        process.assert_running();
        process.log().contains("listening").then_some(())
    })
    .await;
    (process, format!("http://127.0.0.1:{port}/decide"))
}

#[tokio::test]
async fn client_signer__should_be_decided_for_by_programs_in_other_languages() {
    let mut world = World::start().await;
    let api = world.cluster.api.clone();
    let folder = world.config.parent().unwrap().to_owned();
    let mut before = world.program.url.clone();
    for (name, kind) in [
        ("python", "evm_message"),
        ("node", "evmMessage"),
        ("go", "evm_message"),
    ] {
        let (program, url) = callback_program(&folder, name).await;
        let text = fs::read_to_string(&world.config).unwrap();
        write_secret(&world.config, &text.replace(&before, &url));
        before = url;
        world.client.kill();
        world.client = World::launch(&world.config);
        let uuid = api.create(world.message("approve", &world.key)).await;
        world.assert_signed(&uuid).await;
        let refused = api.create(world.message("refuse", &world.key)).await;
        let outcome = api.execute(&refused).await;
        let said = outcome["error"]["message"].as_str().unwrap_or_default();
        assert!(
            said.contains("it answered 403, and only 200 is a yes"),
            "{name}: {outcome}"
        );
        let asked = [(uuid, "approve"), (refused, "refuse")]
            .map(|(uuid, content)| format!("asked {uuid} {} {kind} {content}", world.vault));
        let log = program.log();
        let lines: Vec<&str> = log.lines().filter(|it| it.starts_with("asked")).collect();
        assert_eq!(lines, asked, "{name}");
    }
}
