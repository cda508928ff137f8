//! Making signer nodes, admitting them, and what operators see of them.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};

use super::support::*;

const PASSPHRASE: &str = "seven random words are a good passphrase";

/// A folder with a signer's configuration.
struct SignerFixture {
    folder: tempfile::TempDir,
    redis: String,
    orchestrator: String,
}

impl SignerFixture {
    /// `redis` and `orchestrator` may be nowhere.
    fn new(redis: &str, orchestrator: &str) -> Self {
        let signer = Self {
            folder: tempfile::tempdir().unwrap(),
            redis: redis.to_owned(),
            orchestrator: orchestrator.to_owned(),
        };
        signer.configure("");
        signer
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the configuration, with more settings of [signer].
    fn configure(&self, more: &str) {
        let text = format!(
            "[bus]\nredis_url = \"{}\"\n[signer]\nname = \"vienna\"\ndata_dir = \"{}\"\ndevelopment = true\norchestrators = [\"{}\"]\n{more}\n",
            self.redis,
            self.path("data").display(),
            self.orchestrator,
        );
        fs::write(self.path("signer.toml"), text).unwrap();
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = covault();
        command
            .args(words)
            .arg("--config")
            .arg(self.path("signer.toml"))
            .stdin(std::process::Stdio::null());
        command
    }

    /// `covault node init` with a passphrase file in the data folder's place.
    fn init(&self) -> String {
        fs::create_dir_all(self.path("data")).unwrap();
        write_secret(&self.path("data/passphrase"), PASSPHRASE);
        line(&self.command(&["node", "init"]).output().unwrap())
    }
}

/// The one line on stdout of a command that succeeded.
fn line(output: &Output) -> String {
    assert!(output.status.success(), "{}", err(output));
    let out = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(out.lines().count(), 1, "{out}");
    out.trim().to_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A command that asks the orchestrator of `cluster`.
fn ask(cluster: &TestCluster, words: &[&str]) -> Output {
    covault()
        .args(words)
        .arg("--config")
        .arg(cluster.folder.path().join("serve.toml"))
        .output()
        .unwrap()
}

fn list(cluster: &TestCluster) -> Value {
    let output = ask(cluster, &["node", "list", "--json"]);
    assert!(output.status.success(), "{}", err(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A node in the list, by its key.
fn find<'a>(list: &'a Value, part: &str, line: &str) -> Option<&'a Value> {
    let nodes = list[part].as_array().unwrap();
    nodes
        .iter()
        .find(|node| node["publicKey"] == public_part(line))
}

#[test]
fn node_init__should_make_a_node_once_and_print_its_key() {
    let signer = SignerFixture::new("redis://127.0.0.1:1", "nowhere.pub");
    let output = signer.command(&["node", "init"]).output().unwrap();
    assert!(!output.status.success());
    for word in ["passphrase", "is missing", "LoadCredential", "terminal"] {
        assert!(err(&output).contains(word), "{}", err(&output));
    }
    let made = signer.init();
    assert!(
        made.starts_with("ssh-ed25519 AAAA") && made.ends_with(" vienna"),
        "{made}"
    );
    let public = fs::read_to_string(signer.path("data/identity.pub")).unwrap();
    assert_eq!(public.trim(), made);
    let before = fs::read(signer.path("data/keyring.age")).unwrap();
    assert!(!signer.path("data/shares").read_dir().unwrap().any(|_| true));

    let again = signer
        .command(&["node", "init", "--name", "it's"])
        .output()
        .unwrap();
    assert_eq!(public_part(&line(&again)), public_part(&made));
    assert!(
        err(&again).contains("nothing was changed"),
        "{}",
        err(&again)
    );
    assert_eq!(fs::read(signer.path("data/keyring.age")).unwrap(), before);

    // Neither an argument nor a plain variable: there is no such thing.
    let help = covault().args(["node", "init", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(!help.contains("--passphrase"), "{help}");
}

#[test]
fn node_init__should_take_a_systemd_credential_and_refuse_a_weak_one() {
    let orchestrator =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti";
    let signer = SignerFixture::new("redis://127.0.0.1:1", orchestrator);
    let credentials = signer.path("credentials");
    fs::create_dir(&credentials).unwrap();
    let init = |text: &str| {
        fs::write(credentials.join("covault-passphrase"), text).unwrap();
        signer
            .command(&["node", "init"])
            .env("CREDENTIALS_DIRECTORY", &credentials)
            .output()
            .unwrap()
    };
    let weak = init("hunter2\n");
    assert!(!weak.status.success());
    assert!(err(&weak).contains("16 or more"), "{}", err(&weak));
    assert!(!err(&weak).contains("hunter2"));
    line(&init(PASSPHRASE));
    // The same credential opens it, another one does not.
    let start = |text: &str| {
        fs::write(credentials.join("covault-passphrase"), text).unwrap();
        signer
            .command(&["signer"])
            .env("CREDENTIALS_DIRECTORY", &credentials)
            .output()
            .unwrap()
    };
    let wrong = start("eight random words are another passphrase");
    assert!(!wrong.status.success());
    assert!(err(&wrong).contains("wrong passphrase"), "{}", err(&wrong));
    assert!(!err(&wrong).contains("eight random"));
}

#[test]
fn signer__should_not_start_where_no_node_was_made() {
    let signer = SignerFixture::new("redis://127.0.0.1:1", "nowhere.pub");
    let output = signer.command(&["signer"]).output().unwrap();
    assert!(!output.status.success());
    assert!(
        err(&output).contains("covault node init"),
        "{}",
        err(&output)
    );
    assert!(!signer.path("data/identity").exists());
}

#[tokio::test]
async fn hangup__should_not_end_a_signer_that_starts_and_have_its_policy_read_when_it_serves() {
    let keys = tempfile::tempdir().unwrap();
    let orchestrator = keys.path().join("orchestrator.pub");
    let signer = SignerFixture::new("redis://127.0.0.1:1", orchestrator.to_str().unwrap());
    let key = signer.init();
    let policy = signer.path("data/policy.toml");
    fs::write(&policy, "version = 2\n").unwrap();
    let log = signer.path("log");
    let mut process = Process::start(&mut signer.command(&["signer"]), &log);
    eventually("it waits for the orchestrator's key", async || {
        let log = process.log();
        log.contains("waiting for a public key").then_some(())
    })
    .await;
    fs::write(&policy, "version = 2\nraw_signing = true\n").unwrap();
    process.signal("HUP");
    // Any key will do.
    let written = keys.path().join("new");
    fs::write(&written, key).unwrap();
    fs::rename(&written, &orchestrator).unwrap();
    eventually("it serves by the new policy", async || {
        assert!(!process.has_ended(), "{}", process.log());
        let log = process.log();
        let serves = log.contains("the signer node is up");
        (serves && log.contains("raw signing is on")).then_some(())
    })
    .await;
    // One that comes later is heard, too.
    fs::write(&policy, "version = 2\nraw_singing = true\n").unwrap();
    process.signal("HUP");
    eventually("it says what is wrong", async || {
        let log = process.log();
        log.contains("raw_singing: unknown key").then_some(())
    })
    .await;
}

#[test]
fn node_init__should_ask_on_a_terminal_twice_and_without_echo() {
    let signer = SignerFixture::new("redis://127.0.0.1:1", "nowhere.pub");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/terminal.py");
    let output = Command::new("python3")
        .arg(script)
        .arg(env!("CARGO_BIN_EXE_covault"))
        .args(["node", "init", "--config"])
        .arg(signer.path("signer.toml"))
        .env(
            "TYPED",
            format!("too short\n{PASSPHRASE}\nmistyped\n{PASSPHRASE}\n{PASSPHRASE}\n"),
        )
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}\n{}", err(&output));
    assert!(
        shown.contains("16 or more") && shown.contains("differ"),
        "{shown}"
    );
    assert!(
        shown.contains("covault node admit 'ssh-ed25519 AAAA"),
        "{shown}"
    );
    assert!(
        !shown.contains(PASSPHRASE) && !shown.contains("too short"),
        "{shown}"
    );
    // What was typed opens the keyring.
    write_secret(&signer.path("data/passphrase"), PASSPHRASE);
    assert!(signer.path("data/keyring.age").exists());
}

#[tokio::test]
async fn stranger__should_be_ignored_until_it_is_admitted_and_stay_while_it_holds_shares() {
    let mut cluster = TestCluster::start(8_000).await;
    let orchestrator = cluster.folder.path().join("orchestrator/identity.pub");
    let signer = SignerFixture::new(&cluster.redis.url(), orchestrator.to_str().unwrap());
    let made = signer.init();
    let mut node = Process::start(&mut signer.command(&["signer"]), &signer.path("log"));
    eventually("the stranger is shown", async || {
        node.assert_running();
        find(&list(&cluster), "wantToJoin", &made).cloned()
    })
    .await;
    assert!(find(&list(&cluster), "nodes", &made).is_none());
    let log = cluster.serve.log();
    let said = |line: &&str| {
        line.contains("ignoring an unknown node") && line.contains(&public_part(&made))
    };
    assert_eq!(
        log.lines().filter(said).count(),
        1,
        "once, however often it is heard"
    );
    let listing = ask(&cluster, &["node", "list"]);
    let listing = String::from_utf8(listing.stdout).unwrap();
    let advice = format!("covault node admit '{}'", public_part(&made));
    assert!(listing.contains(&advice), "{listing}");

    let signers = [cluster.keys[0].clone(), made.clone()].join(",");
    let create = || cluster.try_vault("new", &signers, &AUTOMATIC);
    let (done, _, said) = create();
    assert!(!done && said.contains(&advice), "{said}");

    let admitted = ask(&cluster, &["node", "admit", &made]);
    assert!(admitted.status.success(), "{}", err(&admitted));
    let live = async |cluster: &TestCluster| {
        let list = list(cluster);
        find(&list, "nodes", &made)
            .filter(|node| node["live"] == json!(true))
            .cloned()
    };
    let seen = eventually("the node is live", async || live(&cluster).await).await;
    assert_eq!(seen["name"], "vienna");
    assert_eq!(seen["version"], env!("CARGO_PKG_VERSION"));
    assert!(list(&cluster)["wantToJoin"].as_array().unwrap().is_empty());
    let (done, _, said) = create();
    assert!(done, "{said}");
    let removed = ask(&cluster, &["node", "remove", &made]);
    assert!(!removed.status.success());
    assert!(
        err(&removed).contains("holds shares of: new"),
        "{}",
        err(&removed)
    );

    // Admission outlives the orchestrator, and a dead node is seen to be away.
    cluster.kill_and_restart_serve().await;
    eventually(
        "the node is live, and has said that it holds both shares",
        async || (live(&cluster).await?["keys"] == json!(2)).then_some(()),
    )
    .await;
    node.kill();
    eventually("the node is away", async || {
        let list = list(&cluster);
        let node = find(&list, "nodes", &made)?;
        (node["live"] == json!(false) && node["keys"] == json!(2)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn metrics__should_show_a_node_that_died_and_the_bus() {
    let mut cluster = TestCluster::start(8_000).await;
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    let folder = cluster.folder.path().join("signer-1");
    let (certificate, key) = (folder.join("a.pem"), folder.join("a.key"));
    fs::copy(fixtures.join("a.pem"), &certificate).unwrap();
    fs::copy(fixtures.join("a.key"), &key).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let tls = format!("[tls]\ncertificate_file = {certificate:?}\nkey_file = {key:?}\n\n");
    let trusted = reqwest::Certificate::from_pem(&fs::read(&certificate).unwrap()).unwrap();
    let over_tls = reqwest::Client::builder()
        .tls_certs_only([trusted])
        .no_proxy()
        .build()
        .unwrap();
    let scrape = async |port: u16, scheme: &str| -> Option<String> {
        let url = format!("{scheme}://127.0.0.1:{port}/metrics");
        let client = if scheme == "https" {
            over_tls.clone()
        } else {
            http_client()
        };
        client.get(url).send().await.ok()?.text().await.ok()
    };
    let (serve_port, signer_port) = (free_port(), free_port());
    for (name, section, port, tls) in [
        ("serve", "[serve]", serve_port, ""),
        ("signer-1", "[signer]", signer_port, tls.as_str()),
    ] {
        let path = cluster.folder.path().join(format!("{name}.toml"));
        let text = fs::read_to_string(&path).unwrap().replace(
            section,
            &format!("{tls}{section}\nmetrics_listen = \"127.0.0.1:{port}\""),
        );
        fs::write(path, text).unwrap();
    }
    // It says farewell: no order goes to it before it is there again.
    assert_eq!(cluster.signers[0].terminate(), Some(0));
    cluster.restart_signer(0);
    cluster.restart_serve().await;
    let vault = cluster.create_vault("treasury");
    let solana = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
    for content in ["one", "two"] {
        let message = json!({"from": solana, "content": base64(content)});
        cluster.api.sign(json!({"solanaMessage": message})).await;
    }

    let text = scrape(serve_port, "http").await.unwrap();
    let sample = |text: &str, start: &str| -> Option<f64> {
        let found = text.lines().find(|line| line.starts_with(start))?;
        found.rsplit(' ').next()?.parse().ok()
    };
    let up = |index: usize| {
        let base64 = cluster.keys[index].split(' ').nth(1).unwrap();
        format!("covault_node_up{{node=\"{base64}\"")
    };
    for index in 0..3 {
        assert_eq!(sample(&text, &up(index)), Some(1.0), "{text}");
    }
    assert_eq!(sample(&text, "covault_bus_reachable"), Some(1.0), "{text}");
    let signed = sample(&text, "covault_signing_attempts_total{outcome=\"signed\"}");
    assert!(signed >= Some(2.0), "{text}");

    // Holdings are counted with every heartbeat.
    let text = eventually("the signer counts its keys", async || {
        let text = scrape(signer_port, "https").await?;
        let keys = sample(&text, "covault_signer_keys{node=\"signer-1\"}");
        (keys == Some(2.0)).then_some(text)
    })
    .await;
    assert_eq!(
        sample(&text, "covault_signer_bans{node=\"signer-1\"}"),
        Some(0.0),
        "{text}"
    );
    let claims = sample(
        &text,
        "covault_signer_claim_seconds_count{node=\"signer-1\"}",
    );
    assert!(claims >= Some(2.0), "{text}");
    assert!(
        text.contains("kind=\"keygen\"") && text.contains("outcome=\"done\""),
        "{text}"
    );

    let second = up(1);
    cluster.signers[1].kill();
    eventually("metrics show that the node is down", async || {
        (sample(&scrape(serve_port, "http").await?, &second) == Some(0.0)).then_some(())
    })
    .await;
    for process in [&mut cluster.serve, &mut cluster.signers[0]] {
        assert_eq!(process.terminate(), Some(0), "{}", process.log());
    }
}

#[tokio::test]
async fn signer__should_refuse_orders_that_name_others_than_its_peers() {
    let mut cluster = TestCluster::start(8_000).await;
    // The first signer pins the second, and nobody else.
    let path = cluster.folder.path().join("signer-1.toml");
    let text = fs::read_to_string(&path).unwrap();
    let pinned = format!("[signer]\npeers = [\"{}\"]", cluster.keys[1]);
    fs::write(path, text.replace("[signer]", &pinned)).unwrap();
    assert_eq!(cluster.signers[0].terminate(), Some(0));
    cluster.restart_signer(0);
    let all = cluster.keys.join(",");
    let create = |name: &str, signers: &str| cluster.try_vault(name, signers, &AUTOMATIC);
    let (done, _, sentence) = create("three", &all);
    assert!(!done);
    assert!(sentence.contains("signer.peers of this node"), "{sentence}");
    assert!(
        sentence.contains(&public_part(&cluster.keys[2])),
        "{sentence}"
    );
    let (done, _, said) = create("two", &cluster.keys[..2].join(","));
    assert!(done, "{said}");
}

#[tokio::test]
async fn signer__should_read_its_peers_again_when_it_is_asked_to() {
    let cluster = TestCluster::start(8_000).await;
    let path = cluster.folder.path().join("signer-1.toml");
    let text = fs::read_to_string(&path).unwrap();
    let reread = async |peers: &[&str], said: &str, times: usize| {
        let pinned = format!("[signer]\npeers = {peers:?}");
        fs::write(&path, text.replace("[signer]", &pinned)).unwrap();
        cluster.signers[0].signal("HUP");
        eventually("the signer has read its peers again", async || {
            let log = cluster.signers[0].log();
            (log.matches(said).count() == times).then_some(())
        })
        .await;
    };
    let all = cluster.keys.join(",");
    let refused = |name: &str| {
        let (done, _, sentence) = cluster.try_vault(name, &all, &AUTOMATIC);
        assert!(
            !done && sentence.contains("signer.peers of this node"),
            "{sentence}"
        );
    };
    let second = cluster.keys[1].as_str();
    reread(&[second], "a peer is listed now", 1).await;
    refused("three");
    reread(
        &["ssh-rsa AAAA"],
        "peers and log settings stay as they were",
        1,
    )
    .await;
    refused("still");
    // A file beside its own is one that it can open.
    fs::write(cluster.folder.path().join("three.pub"), &cluster.keys[2]).unwrap();
    reread(&[second, "three.pub"], "a peer is listed now", 2).await;
    let (done, _, said) = cluster.try_vault("all", &all, &AUTOMATIC);
    assert!(done, "{said}");
}

#[test]
fn node_primes__should_say_what_it_takes() {
    let signer = SignerFixture::new("redis://127.0.0.1:1", "nowhere.pub");
    let primes =
        |signer: &SignerFixture| signer.command(&["node", "primes", "--count", "0"]).output();
    if !cfg!(feature = "cggmp24") {
        let output = primes(&signer).unwrap();
        assert!(!output.status.success());
        assert!(
            err(&output).contains("--features cggmp24"),
            "{}",
            err(&output)
        );
        return;
    }
    let output = primes(&signer).unwrap();
    assert!(!output.status.success());
    assert!(
        err(&output).contains("covault node init"),
        "{}",
        err(&output)
    );
    signer.init();
    assert_eq!(line(&primes(&signer).unwrap()), "0");
}
