//! What a process tells the service manager, and a bus over TLS with a namespace of its own.

use std::{
    fs, io::ErrorKind, os::unix::net::UnixDatagram, path::Path, process::Command, time::Duration,
};

use super::support::*;

/// What is told on one socket until `last`.
fn told(socket: &UnixDatagram, last: &str) -> Vec<String> {
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut all = Vec::new();
    loop {
        let mut message = [0; 256];
        let length = match socket.recv(&mut message) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => panic!("{last} was not told, only {all:?}: {error}"),
        };
        let said = std::str::from_utf8(&message[..length]).unwrap();
        all.push(said.trim().to_owned());
        if said.trim() == last {
            return all;
        }
    }
}

/// A process that a service manager has started, which wants to hear of it each second.
fn managed(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = covault();
    command
        .args(arguments)
        .env("NOTIFY_SOCKET", socket)
        .env("WATCHDOG_USEC", "2000000")
        .current_dir(socket.parent().unwrap());
    command
}

fn terminate(process: &Process) {
    let pid = process.pid().to_string();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes__should_meet_over_tls_and_tell_the_service_manager_that_they_work() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let fixture = |name: &str| {
        let path = format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"));
        fs::canonicalize(path).unwrap()
    };
    let redis = Redis::start_tls(folder.path()).await;
    write_secret(&at("url"), &redis.url());
    write_secret(
        &at("client.key"),
        &fs::read_to_string(fixture("client.key")).unwrap(),
    );
    let bus = format!(
        "[bus]\nredis_url_file = \"url\"\nnamespace = \"staging\"\nca_file = {:?}\ncertificate_file = {:?}\nkey_file = \"client.key\"\n",
        fixture("a.pem"),
        fixture("client.pem"),
    );
    fs::write(
        at("serve.toml"),
        format!(
            "{bus}[serve]\nlisten = \"127.0.0.1:{}\"\ngrpc_listen = \"\"\ninit = true\ndata_dir = \"serve\"\n",
            free_port()
        ),
    )
    .unwrap();
    fs::write(
        at("signer.toml"),
        format!(
            "{bus}[signer]\nname = \"vienna\"\ndata_dir = \"signer\"\ndevelopment = true\ngenerate_passphrase = true\n\
             orchestrators = [\"serve/identity.pub\"]\n"
        ),
    )
    .unwrap();

    let mut processes = Vec::new();
    for role in ["serve", "signer"] {
        let path = at(&format!("{role}.sock"));
        let socket = UnixDatagram::bind(&path).unwrap();
        let config = at(&format!("{role}.toml"));
        let mut command = managed(&path, &[role, "--config", config.to_str().unwrap()]);
        // What is relative in a file is relative to the file.
        command.current_dir("/");
        let process = Process::start(&mut command, &at(&format!("{role}.log")));
        let said = told(&socket, "WATCHDOG=1");
        assert_eq!(said, ["READY=1", "WATCHDOG=1"], "{role}");
        processes.push((process, socket));
    }
    // The node has come over TLS, from within its sandbox.
    eventually("the node wants to join", async || {
        let mut list = covault();
        list.args(["node", "list", "--json", "--config"]);
        let (done, out, _) = outcome_of(list.arg(at("serve.toml")));
        (done && out.contains("vienna")).then_some(())
    })
    .await;
    let keys = redis.cli(&["KEYS", "*"]);
    assert!(!keys.trim().is_empty());
    for key in keys.lines() {
        assert!(key.starts_with("covault:{staging}:"), "{keys}");
    }
    let mut doctor = covault();
    doctor.args(["doctor", "--json", "--config", "serve.toml"]);
    let (_, out, err) = outcome_of(doctor.current_dir(folder.path()));
    assert!(out.contains("an answer takes"), "{out}{err}");

    for (process, socket) in &processes {
        terminate(process);
        told(socket, "STOPPING=1");
    }
}
