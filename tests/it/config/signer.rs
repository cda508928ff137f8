//! What can be wrong with a signer node's file, variables, folder and files, and with its bus.

use std::{fs, path::Path, process::Command};

use super::{KEY, PEER, Row, SECRET, STRANGER, Surroundings, mode};

/// What is right, in the folder too.
pub fn good(around: &Surroundings, folder: &Path, settings: &mut Vec<(String, String)>) {
    let copied = Command::new("cp")
        .arg("-a")
        .arg(&around.node)
        .arg(folder.join("data"))
        .status();
    assert!(copied.unwrap().success());
    let policy = folder.join("policy.toml");
    fs::write(&policy, "version = 2\n").unwrap();
    mode(&policy, 0o644);
    for (setting, value) in [
        ("bus.redis_url", format!("{:?}", around.redis_url())),
        ("signer.name", "\"vienna\"".to_owned()),
        ("signer.data_dir", "\"DIR/data\"".to_owned()),
        ("signer.orchestrators", format!("[{KEY:?}]")),
        ("signer.peers", format!("[{PEER:?}]")),
        ("signer.least_threshold", "2".to_owned()),
        ("signer.policy_file", "\"DIR/policy.toml\"".to_owned()),
        ("signer.sandbox", "false".to_owned()),
    ] {
        settings.push((setting.to_owned(), value));
    }
}

fn signer(name: &'static str) -> Row {
    Row::of("signer", name)
}

pub fn rows(around: &Surroundings) -> Vec<Row> {
    let mut rows = values();
    rows.extend(whom(around));
    rows.extend(files());
    rows
}

fn values() -> Vec<Row> {
    vec![
        signer("an identity that is gone")
            .set("signer.generate_passphrase", "true")
            .prepare(|folder| fs::remove_file(folder.join("data/identity")).unwrap())
            .says(&[
                "signer.identity_file: DIR/data/identity is missing, and DIR/data holds the keyring of a node",
                "bring the identity back",
            ]),
        signer("a threshold that is too high")
            .set("signer.least_threshold", "70000")
            .says_of_file(&["signer.least_threshold: 70000 is too high; use 65535 or less"]),
        signer("thresholds that exclude each other")
            .set("signer.least_threshold", "5")
            .set("signer.most_threshold", "3")
            .says_of_file(&[
                "signer.most_threshold: 3 is below signer.least_threshold, which is 5",
            ]),
        signer("no threshold")
            .set("signer.least_threshold", "0")
            .says(&["signer.least_threshold is 0", "Set what is missing"]),
        signer("a spare that is none")
            .set("signer.least_spare", "-2")
            .says_of_file(&["signer.least_spare: -2 is too low; use 0 or more"]),
        signer("too many nonces")
            .set("signer.nonce_pool_high", "5000")
            .says_of_file(&["signer.nonce_pool_high: 5000 is above 4096"]),
        signer("no name")
            .text("signer.name", "")
            .says_of_file(&["signer.name: \"\" cannot be used; use a name"]),
        signer("a vault that is none")
            .set("signer.vaults.treasury.peers", "[]")
            .says_of_file(&["signer.vaults.treasury: \"treasury\" is not the uuid of a vault"]),
        signer("metrics at no address")
            .text("signer.metrics_listen", "9464")
            .says_of_file(&["signer.metrics_listen: \"9464\" is not an address; use IP:PORT"]),
        signer("a variable for what is the file's alone")
            .variable("COVAULT_SIGNER_PEERS", "x")
            .says(&["COVAULT_SIGNER_PEERS: signer.peers is read from the configuration file only"]),
        signer("a client signer without its vault")
            .text("client_signer.callback_url", "http://127.0.0.1:1")
            .says(&["vault-uuid (client_signer.vault) is missing: name the only vault"]),
        signer("a client signer without a URL")
            .text("client_signer.callback_url", "ftp://u:hunter2@h")
            .text(
                "client_signer.vault",
                "f6b7d0e4-4d1e-4f0e-9d38-0f1d7e6b3c01",
            )
            .says(&["client_signer.callback_url: callback-url must be an http or https URL"]),
        signer("a recipient that is none")
            .set("signer.backup_recipients", "[\"age1nobody\"]")
            .says(&["signer.backup_recipients: age1nobody is not an age recipient"]),
    ]
}

fn whom(around: &Surroundings) -> Vec<Row> {
    let used = &around.used;
    let taken = format!("signer.metrics_listen: cannot listen on {used}; choose another address");
    let with_tls = around.redis_tls.url();
    vec![
        signer("no orchestrator")
            .set("signer.orchestrators", "[]")
            .says(&["signer.orchestrators is empty: name the orchestrator's public key"]),
        signer("an orchestrator that is none")
            .set("signer.orchestrators", "[\"ssh-ed25519 AAAA\"]")
            .says(&["signer.orchestrators: ssh-ed25519 AAAA: must be an OpenSSH line"]),
        signer("no peer")
            .set("signer.peers", "[]")
            .says(&["signer.peers is empty (name the public keys of the other signer nodes"]),
        signer("a peer that is none")
            .set("signer.peers", "[\"ssh-rsa AAAA\"]")
            .says(&["signer.peers: ssh-rsa AAAA: must be an OpenSSH line: ssh-ed25519"]),
        signer("a port of metrics in use")
            .text("signer.metrics_listen", used)
            .says(&[&taken]),
        signer("a wrong password of the bus")
            .text(
                "bus.redis_url",
                &around.redis_url().replace(SECRET, "hunter2x"),
            )
            .says(&[
                "bus.redis_url: Redis at ",
                "refuses the user or password of this URL",
            ]),
        signer("a bus with TLS without it")
            .text("bus.redis_url", &with_tls.replace("rediss://", "redis://"))
            .says(&[
                "bus.redis_url: begins with redis://",
                "requires TLS; use rediss://",
            ]),
    ]
}

fn files() -> Vec<Row> {
    let remove =
        |name: &'static str| move |folder: &Path| fs::remove_file(folder.join(name)).unwrap();
    let open = |name: &'static str, to: u32| move |folder: &Path| mode(&folder.join(name), to);
    vec![
        signer("no node")
            .prepare(|folder| fs::remove_dir_all(folder.join("data")).unwrap())
            .says(&["there is no signer node in DIR/data: make one with covault node init"]),
        signer("a configuration that others can write")
            .prepare(open("conf.toml", 0o666))
            .says(&[
                "DIR/conf.toml can be written by others",
                "chmod go-w DIR/conf.toml",
            ]),
        signer("a policy that is not there")
            .prepare(remove("policy.toml"))
            .says(&[
                "the policy file DIR/policy.toml is missing",
                "signer.policy_file",
            ]),
        signer("a policy with a key that is none")
            .file("policy.toml", "version = 2\nraw_singing = true\n", 0o644)
            .says(&["signer.policy_file: policy file DIR/policy.toml: raw_singing: unknown key"]),
        signer("a policy of another version")
            .file("policy.toml", "version = 99\n", 0o644)
            .says(&["signer.policy_file: policy file DIR/policy.toml: version: must be 2"]),
        signer("a policy that others can write")
            .prepare(open("policy.toml", 0o666))
            .says(&[
                "signer.policy_file: DIR/policy.toml can be written by others",
                "chmod go-w",
            ]),
        signer("a passphrase that others can read")
            .prepare(open("data/passphrase", 0o644))
            .says(&[
                "signer.passphrase_file: others than its owner",
                "chmod 600 DIR/data/passphrase",
            ]),
        signer("a wrong passphrase")
            .private("data/passphrase", &SECRET.repeat(4))
            .says(&["keyring DIR/data/keyring.age: cannot be opened: wrong passphrase"]),
        signer("no passphrase")
            .prepare(remove("data/passphrase"))
            .says(&[
                "the passphrase file DIR/data/passphrase is missing",
                "bring it back",
            ]),
        signer("a passphrase that is not where it should be")
            .text("signer.passphrase_file", "DIR/none")
            .says(&[
                "signer.passphrase_file: the passphrase file DIR/none is missing",
                "bring it back",
            ]),
        signer("an identity that others can read")
            .prepare(open("data/identity", 0o644))
            .says(&["signer.identity_file: identity file DIR/data/identity: others can read it"]),
        signer("an identity that is none")
            .private("data/identity", SECRET)
            .says(&["signer.identity_file: identity file DIR/data/identity: is not an OpenSSH"]),
        signer("a folder without a node")
            .text("signer.data_dir", "DIR/none")
            .says(&["there is no signer node in DIR/none: make one with covault node init"]),
        signer("a keyring that is none")
            .private("data/keyring.age", "x")
            .says(&["keyring DIR/data/keyring.age: cannot be opened"]),
        signer("a folder that others can write")
            .prepare(open("data", 0o777))
            .says(&[
                "signer.data_dir: DIR/data can be written by others",
                "chmod go-w DIR/data",
            ]),
        signer("a folder of another user")
            .prepare(|folder| {
                // Who is not root can give nothing away.
                let path = folder.join("data");
                let given = std::os::unix::fs::chown(&path, Some(STRANGER), Some(STRANGER));
                if given.is_err() {
                    mode(&path, 0o777);
                }
            })
            .says(&["signer.data_dir: DIR/data "]),
        signer("a folder of an orchestrator")
            .private("data/store.redb", "")
            .says(&["signer.data_dir: DIR/data is the folder of an orchestrator; name another"]),
    ]
}
