//! `covault serve` on a real PostgreSQL: what was accepted survives restarts of the server and kills
//! of the service.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde_json::{Value, json};

use super::support::{
    postgres::{PASSWORD, Postgres, tells_password},
    *,
};

/// A cluster whose orchestrator keeps its state in a new database; the database's URL.
async fn cluster_on(server: &Postgres, timeout_ms: u64) -> (TestCluster, String) {
    let url = server.database();
    let prepare = |folder: &Path| {
        let store = store_table(folder, &url) + &format!("timeout_ms = {timeout_ms}\n");
        configure(&folder.join("serve.toml"), "serve", "", &store);
    };
    let cluster = TestCluster::start_prepared(60_000, "raw_signing = true", prepare).await;
    (cluster, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres__should_lose_no_accepted_request_whatever_is_killed() {
    let mut server = Postgres::start();
    let (mut cluster, _) = cluster_on(&server, 60_000).await;
    let vault = cluster.create_vault("on-postgres");
    let evm = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let solana = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
    cluster.assert_signs(&evm, &solana, "before").await;

    let mut accepted = BTreeMap::new();
    for round in 0..6u64 {
        let load = (0..8).map(|index| {
            let api = cluster.api.clone();
            let content = base64(format!("round {round}, message {index}"));
            let from = if index % 4 == 0 { &evm } else { &solana };
            let body = json!({"rawMessage": {"from": from, "content": content,
                "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}});
            async move {
                // No answer, or 503: nothing was promised.
                let (status, answer) = api.attempt("createSigningRequest", &body).await?;
                if status == 503 {
                    return None;
                }
                assert_eq!(status, 200, "{answer}");
                let uuid = answer["signingRequest"]["uuid"].as_str().unwrap();
                Some((uuid.to_owned(), (index % 4 == 0, content)))
            }
        });
        let load = tokio::spawn(futures::future::join_all(load.collect::<Vec<_>>()));
        // Each round another moment, from "being accepted" to "being signed".
        tokio::time::sleep(Duration::from_millis(3 + 37 * round % 150)).await;
        match round % 3 {
            // kill -9 of the server, an ordered restart, kill -9 of the service.
            0 => tokio::task::block_in_place(|| server.restart()),
            1 => tokio::task::block_in_place(|| {
                server.stop();
                server.restart();
            }),
            _ => cluster.kill_and_restart_serve().await,
        }
        accepted.extend(load.await.unwrap().into_iter().flatten());
        cluster.ready().await;
    }
    assert!(!accepted.is_empty(), "nothing was accepted");

    // Both at once, and what was signed is what was asked for.
    server.kill();
    cluster.serve.kill();
    tokio::task::block_in_place(|| server.restart());
    cluster.kill_and_restart_serve().await;
    cluster.assert_signed_once(&accepted, &evm, &solana).await;
    cluster.assert_signs(&evm, &solana, "after").await;
    let data = cluster.folder.path().join("orchestrator");
    assert!(!data.join("store.redb").exists());
    assert!(!tells_password(&cluster.serve.log()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres__should_be_waited_for_and_have_one_orchestrator() {
    let mut server = Postgres::start();
    let (mut cluster, url) = cluster_on(&server, 10_000).await;
    let start = |settings: &[(&str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = covault();
        command
            .arg("serve")
            .env("COVAULT_SERVE_DATA_DIR", folder.path());
        command
            .env("COVAULT_SERVE_INIT", "true")
            .env("COVAULT_SERVE_LISTEN", "127.0.0.1:0")
            .env("COVAULT_SERVE_GRPC_LISTEN", "")
            .env("COVAULT_STORE_TIMEOUT_MS", "1000")
            .env("COVAULT_STORE_KIND", "postgres")
            .envs(settings.iter().copied());
        let (done, _, err) = outcome_of(&mut command);
        assert!(!done, "{err}");
        assert!(!tells_password(&err), "{err}");
        err
    };
    let second = start(&[("COVAULT_STORE_URL", &url)]);
    assert!(
        second.contains("another orchestrator uses this database"),
        "{second}"
    );
    let wrong = url.replace(PASSWORD, "wrong");
    let refused = start(&[("COVAULT_STORE_URL", &wrong)]);
    assert!(
        refused.contains("password authentication failed"),
        "{refused}"
    );
    let none = start(&[]);
    assert!(none.contains("COVAULT_STORE_URL"), "{none}");
    let both = start(&[("COVAULT_STORE_URL", &url), ("COVAULT_STORE_URL_FILE", "x")]);
    assert!(both.contains("leave one of them"), "{both}");

    // While it is away the service says so, and goes on when it is back.
    server.stop();
    eventually("the service is not ready", async || {
        (cluster.api.get("/readyz").await == 503).then_some(())
    })
    .await;
    tokio::task::block_in_place(|| server.restart());
    cluster.ready().await;
    let vault = cluster.create_vault("later");
    let solana = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
    assert!(!solana.is_empty());
    assert!(!tells_password(&cluster.serve.log()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres__should_be_backed_up_while_it_is_used_and_restored_into_an_empty_database() {
    let server = Postgres::start();
    let (mut cluster, _) = cluster_on(&server, 60_000).await;
    let vault = cluster.create_vault("on-postgres");
    let evm = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let solana = cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await;
    let message = |text: &str| json!({"solanaMessage": {"from": solana, "content": base64(text)}});
    let before = cluster.api.create(message("before")).await;
    cluster.api.execute(&before).await;
    let path = |name: &str| cluster.folder.path().join(name);
    let (config, file) = (path("serve.toml"), path("backup"));
    let run = |words: &[&str], settings: &[(&str, &Path)]| {
        let mut command = covault();
        command.args(words).arg("--config").arg(&config);
        outcome_of(command.envs(settings.iter().copied()))
    };
    let shown = file.to_str().unwrap();
    let (done, _, err) = run(&["backup", "create", "--plaintext", "--out", shown], &[]);
    assert!(done, "{err}");
    let after = cluster.api.create(message("after")).await;
    cluster.api.execute(&after).await;
    let (done, heads, err) = run(&["audit", "verify"], &[]);
    assert!(done, "{err}");

    // Not beside an orchestrator, and not over anything.
    let elsewhere = path("elsewhere");
    let restore = |settings: &[(&str, &Path)]| {
        let (done, _, err) = run(&["backup", "restore", shown], settings);
        assert!(!tells_password(&err), "{err}");
        (done, err)
    };
    let brief = Path::new("1000");
    let beside = [
        ("COVAULT_SERVE_DATA_DIR", elsewhere.as_path()),
        ("COVAULT_STORE_TIMEOUT_MS", brief),
    ];
    let (done, err) = restore(&beside);
    assert!(!done && err.contains("another orchestrator"), "{err}");
    assert_eq!(cluster.serve.terminate(), Some(0));
    let (done, err) = restore(&[]);
    assert!(!done && err.contains("is not empty"), "{err}");
    let (done, stopped, err) = run(&["audit", "verify", "--offline"], &[]);
    assert!(done, "{err}");
    assert_eq!(stopped, heads);

    // Into the other kind of store, too.
    let redb = [
        ("COVAULT_SERVE_DATA_DIR", elsewhere.as_path()),
        ("COVAULT_STORE_KIND", Path::new("redb")),
        ("COVAULT_STORE_URL_FILE", Path::new("")),
    ];
    let (done, err) = restore(&redb);
    assert!(done, "{err}");
    assert!(elsewhere.join("store.redb").exists());

    write_secret(&path("store-url"), &server.database());
    let (done, err) = restore(&[]);
    assert!(done && err.contains("covault backup resume"), "{err}");
    cluster.serve.kill();
    cluster.start_serve();
    eventually(
        "the restored service answers, and is not ready",
        async || (cluster.api.get("/livez").await == 200).then_some(()),
    )
    .await;
    assert_eq!(cluster.api.get("/readyz").await, 503);
    let status = |answer: Value| answer["status"].clone();
    assert_eq!(
        status(cluster.api.details(&before).await),
        json!("STATUS_SUCCEEDED")
    );
    let unknown = json!({"uuid": after});
    let (answer, _) = cluster.api.post("getSigningRequestDetails", unknown).await;
    assert_eq!(answer, 400);
    let (answer, _) = cluster
        .api
        .post("createSigningRequest", message("held"))
        .await;
    assert_eq!(answer, 503);
    let config = cluster.folder.path().join("serve.toml");
    let run = |words: &[&str]| {
        let mut command = covault();
        let (done, out, err) = outcome_of(command.args(words).arg("--config").arg(&config));
        assert!(done, "{err}");
        out
    };
    run(&["backup", "resume"]);
    cluster.assert_signs(&evm, &solana, "again").await;
    run(&["audit", "verify"]);
    assert!(run(&["audit", "export"]).contains("StoreRestored"));
    assert!(!tells_password(&cluster.serve.log()));
}
