//! What operators see in their terminal: `covault status`, `top` and `doctor` as the service is well, degraded and cannot
//! sign. The screens are kept in target/tmp/screens.

use std::{fs, process::Command};

use serde_json::json;

use super::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn screens__should_show_how_the_service_is() {
    let mut cluster = TestCluster::start(8_000).await;
    let vault = cluster.create_vault("treasury");
    let folder = cluster.folder.path().to_owned();
    let config = folder.join("serve.toml").display().to_string();
    let [person, watcher] = ["person", "watcher"].map(|name| {
        let folder = folder.join(name);
        fs::create_dir(&folder).unwrap();
        Terminal::start(&folder, "screens")
    });
    let backup = folder.join("backup").display().to_string();
    let command = format!("covault backup create --plaintext --out {backup} --config {config}");
    let (code, shown) = person.run(&command).await;
    assert_eq!(code, "0", "{shown}");

    // Top follows while the rest changes.
    watcher.line(&format!("covault top --config {config}"));
    watcher
        .until(&["WELL: it signs", "nodes     3 of 3 live"])
        .await;
    watcher.until(&["per sec.  0.0 accepted"]).await;
    let from = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    for _ in 0..10 {
        let message = json!({"rawMessage": {"from": from, "content": "aGVsbG8=",
            "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}});
        cluster.api.create(message).await;
    }
    eventually("top shows how many there are a second", async || {
        let shown = watcher.screen();
        let rate = |what: &str| {
            let before = shown.split_once(what)?.0.split_whitespace().last()?;
            before.parse::<f64>().ok().filter(|rate| *rate > 0.0)
        };
        rate(" accepted").and(rate(" succeeded")).map(drop)
    })
    .await;
    let states = [
        ("well", "WELL", "0", None),
        ("degraded", "DEGRADED", "5", Some(0)),
        ("cannot-sign", "CANNOT SIGN", "6", Some(1)),
    ];
    for (name, words, code, signer) in states {
        if let Some(signer) = signer {
            let signer: usize = signer;
            cluster.signers[signer].kill();
        }
        let top = watcher.until(&[words]).await;
        assert!(top.lines().all(|line| line.chars().count() <= 80), "{top}");
        watcher.keep(&format!("top-{name}"));
        let (found, shown) = person
            .run(&format!("covault status --config {config}"))
            .await;
        assert_eq!(found, code, "{shown}");
        person.keep(&format!("status-{name}"));
        let (found, shown) = person
            .run(&format!("covault doctor --config {config}"))
            .await;
        // The machine of a test may be slow, or hold more Redis than it should.
        match name {
            "cannot-sign" => assert_eq!(found, "6", "{shown}"),
            _ => assert!(["0", "5"].contains(&found.as_str()), "{shown}"),
        }
        let vaults = match name {
            "cannot-sign" => "FAIL  vaults: 1 cannot sign: treasury: 1 of 2 signers",
            _ => "ok    vaults: all of 1 can sign",
        };
        assert!(shown.contains(vaults), "{shown}");
        person.keep(&format!("doctor-{name}"));
    }
    cluster.serve.kill();
    watcher
        .until(&["NO ANSWER for", "running?", "vaults    0 of 1 can sign"])
        .await;
    watcher.keep("top-no-answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top__should_leave_the_terminal_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(&folder.path().join("dev"), &[]).await;
    let token = folder.path().join("token");
    write_secret(&token, dev.info["adminToken"].as_str().unwrap());
    let url = dev.info["adminUrl"].as_str().unwrap();
    let top = format!("covault top --url {url} --token-file {}", token.display());
    let terminal = Terminal::start(folder.path(), "screens");
    let (_, before) = terminal.run("stty -a").await;
    let stty = |shown: &str| {
        let lines = shown.lines().filter(|line| line.contains("icanon"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(stty(&before).len(), 1, "{before}");
    for leave in ["q", "Escape", "C-c", "TERM", "INT"] {
        terminal.line(&format!("{top}; echo \"{leave}: top ended with $?.\""));
        terminal
            .until(&["q leaves", "vaults    1 of 1 can sign"])
            .await;
        assert_eq!(terminal.shown("#{alternate_on} #{cursor_flag}"), "1 0");
        match leave {
            "TERM" | "INT" => {
                let process = terminal.process().to_string();
                let kill = ["-s", leave, &process];
                assert!(Command::new("kill").args(kill).status().unwrap().success());
            }
            key => terminal.key(key),
        }
        eventually(&format!("{leave} leaves"), async || {
            (terminal.shown("#{alternate_on} #{cursor_flag}") == "0 1").then_some(())
        })
        .await;
        terminal
            .until(&[&format!("{leave}: top ended with 0.")])
            .await;
        let (code, after) = terminal.run("stty -a").await;
        assert_eq!(
            (code.as_str(), stty(&after)),
            ("0", stty(&before)),
            "{leave}"
        );
    }
    // Without a terminal it names what needs none.
    let (code, shown) = terminal.run(&format!("{top} | cat")).await;
    assert_eq!(code, "0", "that of cat: {shown}");
    assert!(
        shown.contains("needs a terminal; covault status"),
        "{shown}"
    );
}
