//! What a running process does to keep its secrets to itself.

use std::{fs, process::Command};

use super::support::*;

/// A line of a file about a process.
fn of_process(pid: u32, file: &str, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.lines().find(|line| line.starts_with(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
        .to_owned()
}

fn assert_no_dumps(pid: u32) {
    let limit = of_process(pid, "limits", "Max core file size");
    let limits: Vec<&str> = limit.split_whitespace().skip(4).take(2).collect();
    assert_eq!(limits, ["0", "0"], "{limit}");
    assert!(of_process(pid, "status", "NoNewPrivs").ends_with('1'));
    // The files about a process that cannot be dumped are not its user's but root's. As root:
    // another process of its user cannot look into it.
    let user = of_process(pid, "status", "Uid");
    let user = user.split_whitespace().nth(1).unwrap();
    let owner = Command::new("stat")
        .args(["--format=%u", &format!("/proc/{pid}/mem")])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&owner.stdout).trim(), "0");
    assert!(user == "0" || fs::File::open(format!("/proc/{pid}/mem")).is_err());
}

/// What the process said of itself at start.
fn said(process: &Process) -> String {
    let log = process.log();
    let line = log
        .lines()
        .find(|line| line.contains("this process protects itself"));
    line.unwrap_or_else(|| panic!("{log}")).to_owned()
}

#[tokio::test]
async fn processes__should_show_their_memory_to_nobody_and_open_no_others_files() {
    let mut cluster = TestCluster::start(8_000).await;
    cluster.until_live(&[0, 1, 2]).await;
    assert_no_dumps(cluster.serve.pid());
    assert!(said(&cluster.serve).contains("core_dumps=\"off\""));
    for signer in &cluster.signers {
        let pid = signer.pid();
        assert_no_dumps(pid);
        let said = said(signer);
        for word in ["core_dumps=\"off\"", "debuggers=\"kept out\""] {
            assert!(said.contains(word), "{said}");
        }
        // Memory is locked, or it says that it is not.
        let locked = of_process(pid, "status", "VmLck");
        let is_locked = !locked.contains(" 0 kB");
        assert_eq!(
            said.contains("memory=\"locked\""),
            is_locked,
            "{said}\n{locked}"
        );
        assert_eq!(said.contains("memory=\"NOT locked"), !is_locked, "{said}");
    }
    // In force, it still makes keys, signs, and finds Redis again.
    let vault = cluster.create_vault("treasury");
    let evm = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let solana = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
    cluster.assert_signs(&evm, &solana, "protected").await;
    cluster.redis.restart().await;
    cluster.until_live(&[0, 1, 2]).await;
    cluster
        .assert_signs(&evm, &solana, "after Redis was away")
        .await;
}

#[tokio::test]
async fn signer__should_open_nothing_outside_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let configure = |sandbox: bool| {
        let text = format!(
            "[bus]\nredis_url = \"redis://127.0.0.1:1\"\n[signer]\ndata_dir = {:?}\n\
             orchestrators = [\"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti\"]\n\
             generate_passphrase = true\ndevelopment = true\nsandbox = {sandbox}\n",
            path("data"),
        );
        fs::write(path("signer.toml"), text).unwrap();
    };
    let command = |words: &[&str]| {
        let mut command = covault();
        command.args(words).arg("--config").arg(path("signer.toml"));
        command
    };
    configure(true);
    let (done, _, err) = outcome_of(&mut command(&["node", "init"]));
    assert!(done, "{err}");
    // What the node opens in its folder leads out of it, and not into that of its configuration.
    let elsewhere = tempfile::tempdir().unwrap();
    let keyring = elsewhere.path().join("keyring.age");
    fs::rename(path("data/keyring.age"), &keyring).unwrap();
    std::os::unix::fs::symlink(&keyring, path("data/keyring.age")).unwrap();

    let is_up = |log: &str| log.contains(": signer node is up");
    configure(false);
    let mut process = Process::start(&mut command(&["signer"]), &path("open.log"));
    eventually("a node that is not confined is up", async || {
        process.assert_running();
        is_up(&process.log()).then_some(())
    })
    .await;
    assert!(said(&process).contains("all that its user may open"));
    process.kill();

    configure(true);
    let mut process = Process::start(&mut command(&["signer"]), &path("confined.log"));
    eventually("the node has started or ended", async || {
        let ended = process.has_ended();
        (ended || is_up(&process.log())).then_some(())
    })
    .await;
    let (said, log) = (said(&process), process.log());
    if said.contains("NOT confined") {
        assert!(is_up(&log), "{log}");
    } else {
        assert!(said.contains("its own only"), "{said}");
        assert!(process.has_ended() && !is_up(&log), "{log}");
        assert!(
            log.contains("keyring") && log.contains("cannot be read"),
            "{log}"
        );
    }
}

/// `covault recover` has whole keys in its memory, `covault node restore` and `node retired` shares.
#[tokio::test]
async fn commands_with_keys__should_show_their_memory_to_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("backup.age"), "x").unwrap();
    let pipe = Command::new("mkfifo").arg(path("identity")).status();
    assert!(pipe.unwrap().success());
    let mut command = covault();
    command
        .arg("recover")
        .arg("--backup")
        .arg(path("backup.age"));
    command.arg("--identity").arg(path("identity"));
    command.arg("--out").arg(path("keys.json"));
    let process = Process::start(&mut command, &path("log"));
    // Input begins: the command waits for the rest.
    let writer = fs::OpenOptions::new().write(true).open(path("identity"));
    assert_no_dumps(process.pid());
    drop(writer);
}
