//! `covault serve` and three `covault signer` processes over a real Redis.

use std::{collections::BTreeMap, fs, path::Path};

use covault_mpc::shares::{ShareRecord, ShareStore as _, age_file::AgeShareStore};
use secrecy::SecretString;
use serde_json::{Value, json};

use super::*;

/// The pieces apart, from the samples in deploy/ with ports and folder changed.
pub struct TestCluster {
    pub redis: Redis,
    pub serve: Process,
    pub signers: Vec<Process>,
    /// OpenSSH lines of the signers.
    pub keys: Vec<String>,
    pub api: ApiClient,
    pub admin_token: String,
    pub folder: tempfile::TempDir,
}

impl TestCluster {
    /// `deadline_ms` is how long a request may wait for signers, which sign raw messages too.
    pub async fn start(deadline_ms: u64) -> Self {
        Self::start_with(deadline_ms, "raw_signing = true").await
    }

    /// As [`TestCluster::start`], with another policy in every signer's policy file.
    pub async fn start_with(deadline_ms: u64, policy: &str) -> Self {
        Self::start_prepared(deadline_ms, policy, |_| ()).await
    }

    /// As [`TestCluster::start_with`]; `prepare` gets the folder with the configuration files before
    /// anything is started.
    pub async fn start_prepared(
        deadline_ms: u64,
        policy: &str,
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let open = |folder: &Path| {
            for index in 1..=3 {
                let path = folder.join(format!("signer-{index}.toml"));
                let sample = fs::read_to_string(&path).unwrap();
                fs::write(&path, open_to_all(&sample)).unwrap();
            }
            prepare(folder);
        };
        Self::start_from_samples(deadline_ms, Some(policy), open).await
    }

    /// As [`TestCluster::start_prepared`], with all that the samples pin; without `policy` their policy too.
    pub async fn start_from_samples(
        deadline_ms: u64,
        policy: Option<&str>,
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let redis = Redis::start(folder.path()).await;
        let port = free_port();
        let policy_file = folder.path().join("policy.toml");
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
        match policy {
            Some(policy) => {
                fs::write(&policy_file, format!("version = 2\n{policy}")).unwrap();
            }
            None => {
                fs::copy(samples.join("policy.toml"), &policy_file).unwrap();
            }
        }
        for name in ["serve", "signer-1", "signer-2", "signer-3"] {
            let text = fs::read_to_string(samples.join(format!("{name}.toml")))
                .unwrap()
                .replace("redis://127.0.0.1:6379", &redis.url())
                .replace("127.0.0.1:8080", &format!("127.0.0.1:{port}"))
                .replace("127.0.0.1:8081", "127.0.0.1:0")
                .replace("../data", folder.path().to_str().unwrap())
                .replace(
                    "signing_deadline_ms = 60000",
                    &format!("signing_deadline_ms = {deadline_ms}"),
                );
            fs::write(folder.path().join(format!("{name}.toml")), text).unwrap();
        }
        prepare(folder.path());
        let base = format!("http://{}", listen_of(folder.path()));
        let serve = Self::launch(folder.path(), "serve", "serve");
        let signers = (1..=3)
            .map(|index| Self::launch(folder.path(), "signer", &format!("signer-{index}")))
            .collect();
        let mut cluster = Self {
            redis,
            serve,
            signers,
            keys: Vec::new(),
            api: ApiClient::new(&base, ""),
            admin_token: String::new(),
            folder,
        };
        cluster.ready().await;
        let read = |path: &str| {
            fs::read_to_string(cluster.folder.path().join(path)).map(|text| text.trim().to_owned())
        };
        let keys = (1..=3)
            .map(|index| read(&format!("signer-{index}/identity.pub")).unwrap())
            .collect();
        let token = read("orchestrator/platform-token").unwrap();
        let admin_token = read("orchestrator/admin-token").unwrap();
        cluster.keys = keys;
        cluster.admin_token = admin_token;
        cluster.api = ApiClient::new(&base, &token);
        cluster.admit();
        cluster
    }

    fn launch(folder: &Path, role: &str, name: &str) -> Process {
        let mut command = covault_by(folder, name);
        command
            .args([role, "--config"])
            .arg(folder.join(format!("{name}.toml")));
        Process::start(&mut command, &folder.join(format!("{name}.log")))
    }

    /// The orchestrator answers and every signer has its identity.
    pub async fn ready(&mut self) {
        let folder = self.folder.path().to_owned();
        eventually("the cluster comes up", async || {
            self.serve.assert_running();
            self.signers.iter_mut().for_each(Process::assert_running);
            let identities =
                (1..=3).all(|index| folder.join(format!("signer-{index}/identity.pub")).exists());
            (identities && self.api.get("/readyz").await == 200).then_some(())
        })
        .await;
    }

    /// Starts the orchestrator, which has ended, and waits for nothing.
    pub fn start_serve(&mut self) {
        self.serve = Self::launch(self.folder.path(), "serve", "serve");
    }

    pub fn restart_signer(&mut self, index: usize) {
        self.signers[index] = Self::launch(
            self.folder.path(),
            "signer",
            &format!("signer-{}", index + 1),
        );
    }

    /// One more signer, with a configuration like the others'; its place in `signers`.
    pub async fn add_signer(&mut self) -> usize {
        let index = self.signers.len();
        let (first, name) = ("signer-1", format!("signer-{}", index + 1));
        let sample = self.folder.path().join("signer-1.toml");
        let text = fs::read_to_string(sample).unwrap().replace(first, &name);
        fs::write(self.folder.path().join(format!("{name}.toml")), text).unwrap();
        self.signers
            .push(Self::launch(self.folder.path(), "signer", &name));
        let key = self.public_key(index).await;
        self.keys.push(key);
        self.admit();
        index
    }

    /// Makes every signer know all the others: its configuration pins them.
    pub fn pin_peers(&mut self) {
        let keys: Vec<String> = self.keys.iter().map(|key| format!("{key:?}")).collect();
        self.configure_signers("peers", &format!("[{}]", keys.join(", ")));
    }

    /// Sets one of every signer's settings, and starts them again.
    pub fn configure_signers(&mut self, setting: &str, value: &str) {
        for index in 0..self.signers.len() {
            let path = self
                .folder
                .path()
                .join(format!("signer-{}.toml", index + 1));
            let text = fs::read_to_string(&path).unwrap();
            let others = text.lines().filter(|line| !line.starts_with(setting));
            let mut lines: Vec<String> = others.map(str::to_owned).collect();
            lines.push(format!("{setting} = {value}\n"));
            fs::write(&path, lines.join("\n")).unwrap();
            self.signers[index].kill();
            self.restart_signer(index);
        }
    }

    /// Waits until the orchestrator hears exactly these signers.
    pub async fn until_live(&self, signers: &[usize]) {
        eventually("the signers are live, and no others", async || {
            let (_, out, _) = self.node(&["list", "--json"]);
            let list: serde_json::Value = serde_json::from_str(&out).ok()?;
            let live = |key: &String| {
                let nodes = list["nodes"].as_array()?.iter();
                let mut nodes = nodes.filter(|node| node["publicKey"] == public_part(key));
                nodes.next()?["live"].as_bool()
            };
            let as_wanted = |(index, key)| live(key) == Some(signers.contains(&index));
            self.keys.iter().enumerate().all(as_wanted).then_some(())
        })
        .await;
    }

    /// The shares in a signer's folder, opened with its passphrase.
    pub fn shares(&self, index: usize) -> Vec<ShareRecord> {
        self.files(index).load_all().unwrap()
    }

    /// A signer's keyring and files.
    pub fn files(&self, index: usize) -> AgeShareStore {
        let folder = self.signer_folder(index);
        let passphrase = fs::read_to_string(folder.join("passphrase")).unwrap();
        AgeShareStore::open(&folder, &SecretString::from(passphrase.trim()), 1).unwrap()
    }

    /// A signer's OpenSSH line, once it has made its identity.
    pub async fn public_key(&self, index: usize) -> String {
        let path = self.signer_folder(index).join("identity.pub");
        eventually("the signer makes its identity", async || {
            let line = fs::read_to_string(&path).ok()?;
            Some(line.trim().to_owned()).filter(|line| !line.is_empty())
        })
        .await
    }

    pub fn signer_folder(&self, index: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("signer-{}", index + 1))
    }

    /// `covault node ...` against this orchestrator: whether it succeeded, and what it printed.
    pub fn node(&self, arguments: &[&str]) -> (bool, String, String) {
        let mut command = covault();
        command.arg("node").args(arguments).arg("--config");
        outcome_of(command.arg(self.folder.path().join("serve.toml")))
    }

    /// `covault vault ...` against this orchestrator.
    pub fn vault_command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = covault();
        command
            .arg("vault")
            .args(arguments)
            .arg("--config")
            .arg(self.folder.path().join("serve.toml"));
        command
    }

    /// Has the operator of every signer permit what its node was asked for.
    pub fn permit_asked(&self) {
        for index in 0..self.signers.len() {
            let file = format!("signer-{}.toml", index + 1);
            permit_asked(&self.folder.path().join(file));
        }
    }

    /// `covault vault ...`, while the operators permit what is asked for.
    pub fn run_permitted(&self, arguments: &[&str]) -> String {
        let mut command = self.vault_command(arguments);
        let running = std::thread::spawn(move || outcome_of(&mut command));
        while !running.is_finished() {
            self.permit_asked();
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        let (done, printed, err) = running.join().unwrap();
        assert!(done, "{printed}\n{err}");
        printed
    }

    /// Runs it: whether it succeeded, standard output, standard error.
    pub fn vault(&self, arguments: &[&str]) -> (bool, String, String) {
        outcome_of(&mut self.vault_command(arguments))
    }

    /// Runs one that must succeed; its standard output.
    pub fn run(&self, arguments: &[&str]) -> String {
        let (done, out, err) = self.vault(arguments);
        assert!(done, "{arguments:?}: {out}\n{err}");
        out
    }

    /// kill -9 on the orchestrator, and a new process on the same data.
    pub async fn kill_and_restart_serve(&mut self) {
        self.serve.kill();
        self.serve = Self::launch(self.folder.path(), "serve", "serve");
        self.ready().await;
    }

    /// SIGTERM, and a new process on the same configuration.
    pub async fn restart_serve(&mut self) {
        assert_eq!(self.serve.terminate(), Some(0), "{}", self.serve.log());
        self.serve = Self::launch(self.folder.path(), "serve", "serve");
        self.ready().await;
    }

    /// `covault node admit` for every signer.
    pub fn admit(&self) {
        let output = covault()
            .args(["node", "admit", "--config"])
            .arg(self.folder.path().join("serve.toml"))
            .args(&self.keys)
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{err}");
    }

    /// `covault vault create`, and the vault's uuid.
    pub fn create_vault(&self, name: &str) -> String {
        self.create_vault_with(name, &AUTOMATIC)
    }

    /// `covault vault create` of a vault of these signers, 2 of which sign: whether it was made, and what was printed.
    pub fn try_vault(&self, name: &str, signers: &str, more: &[&str]) -> (bool, String, String) {
        let words = [
            "create",
            "--name",
            name,
            "--threshold",
            "2",
            "--signers",
            signers,
        ];
        self.vault(&[&words[..], more].concat())
    }

    /// The same, with what is said of its approvals.
    pub fn create_vault_with(&self, name: &str, approvals: &[&str]) -> String {
        let (done, out, err) = self.try_vault(name, &self.keys.join(","), approvals);
        assert!(done, "{out}\n{err}");
        let uuid = out
            .split_whitespace()
            .find(|word| word.len() == 36 && word.matches('-').count() == 4);
        uuid.unwrap_or_else(|| panic!("no vault uuid in {out}"))
            .to_owned()
    }

    /// Signs on both curves and checks with outside libraries.
    pub async fn assert_signs(&self, evm: &str, solana: &str, what: &str) {
        let message = json!({"rawMessage": {"from": evm, "content": base64(what),
            "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}});
        assert_ecdsa(&self.api.sign(message).await, &base64(what), evm, what);
        let message = json!({"solanaMessage": {"from": solana, "content": base64(what)}});
        assert_ed25519(&self.api.sign(message).await, &base64(what), solana, what);
    }

    /// Each of these requests (uuid; whether it is ECDSA; content in base64) ends in a signature of what
    /// was asked for, and, asked again, in the same one: never a second one.
    pub async fn assert_signed_once(
        &self,
        accepted: &BTreeMap<String, (bool, String)>,
        evm: &str,
        solana: &str,
    ) {
        for (uuid, (ecdsa, content)) in accepted {
            let outcome = self.api.execute(uuid).await;
            assert_eq!(outcome["error"], Value::Null, "{outcome}");
            if *ecdsa {
                assert_ecdsa(&outcome, content, evm, uuid);
            } else {
                assert_ed25519(&outcome, content, solana, uuid);
            }
            assert_eq!(self.api.execute(uuid).await, outcome);
        }
    }
}

/// The binary by the words in the file NAME.by when there is one, such as "ip netns exec inside".
pub fn covault_by(folder: &Path, name: &str) -> std::process::Command {
    let by = fs::read_to_string(folder.join(format!("{name}.by"))).unwrap_or_default();
    let mut words = by.split_whitespace();
    match words.next() {
        None => covault(),
        Some(program) => {
            let mut command = std::process::Command::new(program);
            command.args(words).arg(env!("CARGO_BIN_EXE_covault"));
            command
        }
    }
}

/// For a vault that signs at once.
pub const AUTOMATIC: [&str; 2] = ["--approvals", "automatic"];

/// Where the orchestrator of this folder listens.
fn listen_of(folder: &Path) -> String {
    let text = fs::read_to_string(folder.join("serve.toml")).unwrap();
    // Tables before it may have listeners of their own.
    let mut lines = text.lines().skip_while(|line| *line != "[serve]");
    let listen = lines.find_map(|line| line.strip_prefix("listen = "));
    listen.unwrap().trim_matches('"').to_owned()
}

/// A signer's configuration without what the sample pins: tests name nodes that it does not know.
fn open_to_all(sample: &str) -> String {
    let pins = ["peers = ", "least_threshold = ", "least_spare = "];
    let lines = sample.lines();
    let open = lines.filter(|line| !pins.iter().any(|pin| line.starts_with(pin)));
    let open = open.collect::<Vec<_>>().join("\n");
    open.replace("[signer]", "[signer]\ndevelopment = true") + "\n"
}

/// Has the operator of the node with this configuration permit what it was asked for.
pub fn permit_asked(config: &Path) {
    let permit = |code: &[&str]| {
        let mut command = covault();
        command.args(["node", "permit"]).args(code).arg("--config");
        outcome_of(command.arg(config))
    };
    let (_, asked, _) = permit(&[]);
    for line in asked.lines().filter(|line| line.contains("not permitted")) {
        let code = line.split_whitespace().next().unwrap();
        let (done, printed, err) = permit(&[code]);
        // What needs no permit of this node may have happened in the meantime.
        let over = err.contains("no order for the change");
        assert!(
            over || done && printed.contains("permitted"),
            "{printed}{err}"
        );
    }
}

/// `ssh-ed25519 AAAA...`, without what follows.
pub fn public_part(line: &str) -> String {
    line.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Changes a configuration file: settings for one of its tables, and tables in front of all.
pub fn configure(path: &Path, table: &str, settings: &str, before: &str) {
    let text = fs::read_to_string(path).unwrap();
    let table = format!("[{table}]");
    assert!(text.contains(&table), "{text}");
    let changed = text.replace(&table, &format!("{table}\n{settings}"));
    fs::write(path, format!("{before}\n{changed}")).unwrap();
}

/// The table of a configuration file that names a database of PostgreSQL; more of its settings may
/// follow. The URL goes into a file of the folder.
pub fn store_table(folder: &Path, url: &str) -> String {
    let file = folder.join("store-url");
    write_secret(&file, &format!("{url}\n"));
    format!("[store]\nkind = \"postgres\"\nurl_file = {file:?}\n")
}

/// Waits until each of these orchestrators can work.
pub async fn until_ready(apis: &[ApiClient]) {
    for api in apis {
        eventually("an orchestrator is ready", async || {
            (api.get("/readyz").await == 200).then_some(())
        })
        .await;
    }
}

/// Runs a command to its end: whether it succeeded, standard output, standard error.
pub fn outcome_of(command: &mut std::process::Command) -> (bool, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.success(),
        text(output.stdout),
        text(output.stderr),
    )
}
