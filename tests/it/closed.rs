//! A signer node starts closed, or not at all.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::json;

use super::support::*;

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti";
const PINS: &str = "peers = [\"{KEY}\"]\nleast_threshold = 2\n";

/// A folder with a node that was made, and its configuration.
struct NodeFixture {
    folder: tempfile::TempDir,
}

impl NodeFixture {
    fn new() -> Self {
        let node = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        node.configure("generate_passphrase = true\n");
        let (done, _, err) = outcome_of(&mut node.command(&["node", "init"]));
        assert!(done, "{err}");
        // Others may look into it.
        mode(node.folder.path(), 0o755);
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes its configuration, with more settings of the signer.
    fn configure(&self, more: &str) {
        let more = more.replace("{KEY}", KEY);
        let text = format!(
            "[bus]\nredis_url = \"redis://127.0.0.1:1\"\n[signer]\ndata_dir = {:?}\norchestrators = [\"{KEY}\"]\n{more}\n",
            self.path("data"),
        );
        fs::write(self.path("signer.toml"), text).unwrap();
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = covault();
        command.args(words).arg("--config");
        command.arg(self.path("signer.toml")).stdin(Stdio::null());
        command
    }

    /// What it says when it does not start.
    fn refusal(&self, variables: &[(&str, &str)]) -> String {
        let mut command = self.command(&["signer"]);
        let (done, _, err) = outcome_of(command.envs(variables.iter().copied()));
        assert!(!done, "{err}");
        err
    }

    /// It starts, and says this.
    async fn starts(&self, saying: &str) {
        let mut process = Process::start(&mut self.command(&["signer"]), &self.path("log"));
        eventually("the node is up", async || {
            process.assert_running();
            let log = process.log();
            (log.contains("the signer node is up") && log.contains(saying)).then_some(())
        })
        .await;
        process.kill();
        fs::remove_file(self.path("log")).unwrap();
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn signer__should_not_start_open_unless_it_is_for_development() {
    let node = NodeFixture::new();
    node.configure("");
    let all = ["signer.peers", "signer.least_threshold", "policy file"];
    let said = node.refusal(&[]);
    for missing in all {
        assert!(said.contains(missing), "{said}");
    }
    assert!(said.contains("signer.development = true"), "{said}");

    node.configure("development = true");
    node.starts("signer.development is true").await;

    let policy = node.path("policy.toml");
    fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/policy.toml"),
        &policy,
    )
    .unwrap();
    mode(&policy, 0o644);
    node.configure(&format!("{PINS}policy_file = {policy:?}\n"));
    node.starts("").await;
}

#[tokio::test]
async fn signer__should_take_no_rules_from_the_environment() {
    let node = NodeFixture::new();
    fs::write(node.path("data/policy.toml"), "").unwrap();
    node.configure(PINS);
    for (variable, value) in [
        ("COVAULT_SIGNER_PEERS", ""),
        ("COVAULT_SIGNER_POLICY_FILE", "/tmp/anything.toml"),
        ("COVAULT_SIGNER_ORCHESTRATORS", KEY),
        ("COVAULT_SIGNER_LEAST_THRESHOLD", "1"),
        ("COVAULT_SIGNER_DEVELOPMENT", "true"),
        ("COVAULT_SIGNER_DATA_DIR", "/tmp"),
    ] {
        let said = node.refusal(&[(variable, value)]);
        let sentence = "is read from the configuration file only";
        assert!(said.contains(variable) && said.contains(sentence), "{said}");
    }
}

#[tokio::test]
async fn signer__should_not_start_on_files_that_others_can_write() {
    let node = NodeFixture::new();
    let (config, policy, peer) = (
        node.path("signer.toml"),
        node.path("policy.toml"),
        node.path("peer.pub"),
    );
    fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/policy.toml"),
        &policy,
    )
    .unwrap();
    fs::write(&peer, format!("{KEY}\n")).unwrap();
    node.configure(&format!(
        "peers = [{peer:?}]\nleast_threshold = 2\npolicy_file = {policy:?}\n"
    ));
    for path in [&config, &policy, &peer] {
        mode(path, 0o644);
    }
    node.starts("").await;
    for path in [&config, &policy, &peer] {
        for exposed in [0o664, 0o646] {
            mode(path, exposed);
            let said = node.refusal(&[]);
            let advice = format!("chmod go-w {}", path.display());
            assert!(said.contains(&advice), "{said}");
        }
        mode(path, 0o644);
    }
    mode(node.folder.path(), 0o775);
    let said = node.refusal(&[]);
    let advice = format!("chmod go-w {}\n", node.folder.path().display());
    assert!(said.contains(&advice), "{said}");
    mode(node.folder.path(), 0o755);
    node.starts("").await;
    // The root of this machine can give files away.
    if std::os::unix::fs::chown(&policy, Some(12_345), None).is_ok() {
        let said = node.refusal(&[]);
        assert!(said.contains("belongs to user 12345"), "{said}");
    }
}

#[tokio::test]
async fn samples__should_make_keys_with_those_alone_that_they_pin() {
    let mut cluster = TestCluster::start_from_samples(60_000, None, |_| ()).await;
    let vault = cluster.create_vault("treasury");
    let evm = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let hello = json!({"evmMessage": {"chainId": "1", "from": evm, "content": base64("hello")}});
    let uuid = cluster.api.create(hello.clone()).await;
    let outcome = cluster.api.execute(&uuid).await;
    assert!(outcome["error"]["message"].is_string(), "{outcome}");
    // As README says for a first signature.
    let policy = cluster.folder.path().join("policy.toml");
    let text = fs::read_to_string(&policy).unwrap();
    let open = text.replace("\nmessages = false\n", "\nmessages = true\n");
    assert_ne!(open, text);
    fs::write(&policy, open).unwrap();
    for index in 0..3 {
        assert_eq!(cluster.signers[index].terminate(), Some(0));
        cluster.restart_signer(index);
    }
    cluster.until_live(&[0, 1, 2]).await;
    cluster.api.sign(hello).await;

    // A node that the orchestrator admits and the signers do not know.
    let fourth = cluster.add_signer().await;
    cluster.until_live(&[0, 1, 2, fourth]).await;
    let set = [&cluster.keys[0], &cluster.keys[fourth]].map(String::as_str);
    let (done, _, err) = cluster.try_vault("taken", &set.join(","), &AUTOMATIC);
    assert!(!done && err.contains("signer.peers of this node"), "{err}");
    assert_eq!(
        cluster.shares(0).len(),
        2,
        "the two keys of the first vault"
    );
}

/// A node that everything allows to start, as `signer__should_not_start_on_files_that_others_can_write`
/// has it.
fn good_node() -> NodeFixture {
    let node = NodeFixture::new();
    let (policy, peer) = (node.path("policy.toml"), node.path("peer.pub"));
    fs::write(&policy, "version = 2\n").unwrap();
    fs::write(&peer, format!("{KEY}\n")).unwrap();
    node.configure(&format!(
        "peers = [{peer:?}]\nleast_threshold = 2\npolicy_file = {policy:?}\n"
    ));
    for path in [&policy, &peer, &node.path("signer.toml")] {
        mode(path, 0o644);
    }
    node
}

/// Whether the node comes up, or ends.
async fn comes_up(node: &NodeFixture, config: &Path) -> bool {
    let mut command = covault();
    command.args(["signer", "--config"]).arg(config);
    command.stdin(Stdio::null());
    let log = node.path("log");
    let mut process = Process::start(&mut command, &log);
    let up = eventually("the node is up or has ended", async || {
        let up = process.log().contains("the signer node is up");
        (up || process.has_ended()).then_some(up)
    })
    .await;
    if up {
        process.kill();
    }
    fs::remove_file(log).unwrap();
    up
}

#[tokio::test]
async fn signer__should_not_start_on_a_file_whose_link_others_can_replace() {
    let node = good_node();
    let config = node.path("signer.toml");
    assert!(comes_up(&node, &config).await);
    // Anybody can put another link in its place.
    let open = node.path("open");
    fs::create_dir(&open).unwrap();
    std::os::unix::fs::symlink(&config, open.join("signer.toml")).unwrap();
    mode(&open, 0o777);
    assert!(!comes_up(&node, &open.join("signer.toml")).await);
}

#[tokio::test]
async fn signer__should_not_start_on_a_file_whose_folder_others_can_replace() {
    let node = good_node();
    // Anybody can move "kept" away, and put a folder or a link in its place.
    let (open, kept) = (node.path("open"), node.path("open/kept"));
    fs::create_dir_all(&kept).unwrap();
    fs::copy(node.path("signer.toml"), kept.join("signer.toml")).unwrap();
    for (path, bits) in [
        (kept.join("signer.toml"), 0o644),
        (kept.clone(), 0o755),
        (open, 0o777),
    ] {
        mode(&path, bits);
    }
    assert!(!comes_up(&node, &kept.join("signer.toml")).await);
}

#[tokio::test]
async fn signer__should_not_start_on_a_passphrase_that_others_can_read() {
    let node = good_node();
    let passphrase = node.path("data/passphrase");
    fs::copy(&passphrase, node.path("passphrase")).unwrap();
    mode(&node.path("passphrase"), 0o644);
    let text = fs::read_to_string(node.path("signer.toml")).unwrap();
    let named = format!("{text}passphrase_file = {:?}\n", node.path("passphrase"));
    fs::write(node.path("signer.toml"), named).unwrap();
    assert!(!comes_up(&node, &node.path("signer.toml")).await);
}

#[tokio::test]
async fn signer__should_not_start_in_a_folder_that_others_can_write() {
    let node = good_node();
    // Others could put an old claims.redb, or another identity, in the place of its own.
    mode(&node.path("data"), 0o777);
    assert!(!comes_up(&node, &node.path("signer.toml")).await);
}

#[tokio::test]
async fn signer__should_not_start_with_two_tables_of_one_vault() {
    let node = good_node();
    let text = fs::read_to_string(node.path("signer.toml")).unwrap();
    let two = "[signer.vaults.\"01890A5D-AC96-774B-BCCE-B302099A8057\"]\nleast_threshold = 3\n\
               [signer.vaults.\"01890a5d-ac96-774b-bcce-b302099a8057\"]\nleast_spare = 1\n";
    fs::write(node.path("signer.toml"), format!("{text}{two}")).unwrap();
    assert!(!comes_up(&node, &node.path("signer.toml")).await);
}

#[tokio::test]
async fn configuration__should_not_show_a_password_when_it_is_no_toml() {
    let node = good_node();
    for line in [
        "redis_url = \"redis://:hunter2@localhost",
        "redis_url = \"redis://:hunter2@localhost\" # a\nredis_url = \"redis://:hunter2@other\"",
    ] {
        fs::write(node.path("signer.toml"), format!("[bus]\n{line}\n")).unwrap();
        let said = node.refusal(&[]);
        assert!(!said.contains("hunter2"), "{said}");
    }
}
