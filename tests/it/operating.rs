//! What operators ask the built program: whether it signs, and what is wrong with a configuration.

use std::{fs, process::Output};

use serde_json::{Value, json};

use super::support::*;

/// `covault status` of a cluster: its exit code, what it prints and what it says beside that.
fn status(cluster: &TestCluster, arguments: &[&str]) -> (i32, String, String) {
    let mut command = covault();
    command.arg("status").args(arguments).arg("--config");
    said(
        command
            .arg(cluster.folder.path().join("serve.toml"))
            .output(),
    )
}

fn said(output: std::io::Result<Output>) -> (i32, String, String) {
    let output = output.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The uuid of the only vault.
fn json_vault(cluster: &TestCluster) -> String {
    let mut command = covault();
    command.args(["vault", "list", "--json", "--config"]);
    let config = cluster.folder.path().join("serve.toml");
    let (_, out, _) = said(command.arg(config).output());
    let vaults: Value = serde_json::from_str(&out).unwrap();
    vaults["vaults"][0]["uuid"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_level__should_change_while_processes_run() {
    let cluster = TestCluster::start(8_000).await;
    let config = cluster.folder.path().join("serve.toml");
    let log_level = |level: &[&str]| {
        let mut command = covault();
        command.arg("log-level").args(level).arg("--config");
        said(command.arg(&config).output())
    };
    let (_, first, err) = log_level(&[]);
    let first = first.trim().to_owned();
    assert!(!first.is_empty(), "{err}");
    let (code, out, err) = log_level(&["infoo"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("level: \"infoo\" is not a level"), "{err}");
    let changed = format!("{first},covault::access=debug");
    let (code, out, err) = log_level(&[&changed]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(out.trim(), format!("{changed} (before: {first})"));
    assert_eq!(log_level(&[]).1.trim(), changed);
    cluster.api.post("getWalletList", json!({})).await;
    eventually("calls are logged", async || {
        let log = cluster.serve.log();
        log.contains("covault::access").then_some(())
    })
    .await;

    // A signer has its file, and takes all of it or nothing.
    let (signer, path) = (
        &cluster.signers[0],
        cluster.folder.path().join("signer-1.toml"),
    );
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("log.level = \"infoo\"\n{text}")).unwrap();
    signer.signal("HUP");
    eventually("what is wrong is refused", async || {
        let log = signer.log();
        let refused = log.contains("nothing was changed") && log.contains("is not a level");
        refused.then_some(())
    })
    .await;
    fs::write(&path, format!("log.level = \"debug\"\n{text}")).unwrap();
    signer.signal("HUP");
    eventually("the level has changed", async || {
        let log = signer.log();
        log.contains("the log settings were changed").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status__should_say_by_its_exit_code_whether_the_cluster_signs() {
    let mut cluster = TestCluster::start(8_000).await;
    cluster.create_vault("treasury");
    let (code, out, err) = status(&cluster, &[]);
    assert_eq!(code, 5, "{out}{err}");
    assert!(out.contains("backup    none was made"), "{out}");
    let mut backup = covault();
    backup.args(["backup", "create", "--plaintext", "--out"]);
    backup.arg(cluster.folder.path().join("backup"));
    let config = cluster.folder.path().join("serve.toml");
    let (code, _, err) = said(backup.arg("--config").arg(config).output());
    assert_eq!(code, 0, "{err}");
    let (code, out, err) = status(&cluster, &[]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("service   ready"), "{out}");
    assert!(out.contains("nodes     3 of 3 live"), "{out}");
    assert!(out.contains("vaults    1 of 1 can sign"), "{out}");

    cluster.signers[0].kill();
    let out = eventually("a node is away", async || {
        let (code, out, _) = status(&cluster, &[]);
        (code == 5).then_some(out)
    })
    .await;
    assert!(out.contains("away: signer-1"), "{out}");
    assert!(out.contains("no signer to spare: treasury"), "{out}");
    assert!(out.contains("vaults    1 of 1 can sign"), "{out}");

    cluster.signers[1].kill();
    eventually("the vault cannot sign", async || {
        (status(&cluster, &[]).0 == 6).then_some(())
    })
    .await;
    let (_, json, err) = status(&cluster, &["--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let nodes = json["nodes"].as_array().unwrap().iter();
    let away = nodes.filter(|node| node["live"] == false);
    assert_eq!(away.count(), 2, "{json}");
    let cannot = json["vaults"]["cannotSign"][0].as_str().unwrap();
    assert!(cannot.starts_with("treasury: 1 of 2 signers"), "{json}");
    assert!(err.contains("1 vault cannot sign"), "{err}");

    // What failed is told without what it was about.
    let (api, vault) = (&cluster.api, json_vault(&cluster));
    let from = api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let message = json!({"rawMessage": {"from": from, "content": "aGVsbG8=",
        "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_SHA256"}});
    let uuid = api.create(message).await;
    let out = eventually("the request has failed", async || {
        let (_, out, _) = status(&cluster, &[]);
        out.contains(&uuid).then_some(out)
    })
    .await;
    assert!(
        out.contains("vault treasury, rawMessage, unspecified"),
        "{out}"
    );
    assert!(!out.contains(&from), "{out}");

    // The bus is away, and so is everything.
    cluster.redis.stop();
    eventually("the service is not ready", async || {
        let (code, out, _) = status(&cluster, &[]);
        (code == 6 && out.contains("service   not ready: ")).then_some(())
    })
    .await;
    cluster.serve.kill();
    let (code, _, err) = status(&cluster, &[]);
    assert_eq!(code, 1);
    assert!(err.contains("does not answer; is it running?"), "{err}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor__should_find_what_is_wrong_with_bus_and_chain_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 31337).await;
    let mut redis = Redis::start(folder.path()).await;
    let file = folder.path().join("serve.toml");
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let (url, chain) = (redis.url(), anvil.chain_argument());
    let (id, node) = chain.split_once('=').unwrap();
    let other = node.replace("127.0.0.1", "localhost");
    let configure = |id: &str| {
        let text = format!(
            "[bus]\nredis_url = {url:?}\n[serve]\ndata_dir = {data:?}\nmax_connections = 8\n[chains.evm.{id}]\nrpc = [{node:?}, {other:?}]"
        );
        fs::write(&file, text).unwrap();
    };
    let doctor = || {
        let mut command = covault();
        command.args(["doctor", "--json", "--config"]).arg(&file);
        let (code, out, err) = said(command.output());
        let checks: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
        let failed = checks.as_array().unwrap().iter();
        let failed = failed.filter(|check| check["state"] == "fail");
        let failed: Vec<_> = failed.map(|check| check["what"].to_string()).collect();
        (code, out, failed)
    };
    configure(id);
    let (code, out, failed) = doctor();
    assert!(matches!(code, 0 | 5), "{out}");
    assert_eq!(failed, [""; 0], "{out}");
    assert!(out.contains("at block"), "{out}");

    // Of another chain than it is configured for, and no bus.
    configure("1");
    redis.stop();
    let (code, out, failed) = doctor();
    assert_eq!(code, 6, "{out}");
    assert_eq!(failed.len(), 3, "{out}");
    assert!(out.contains("31337"), "{out}");
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0, "it left nothing");
}

#[test]
fn config_check__should_name_every_problem_and_touch_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("serve.toml");
    let check = |text: &str, role: &str| {
        fs::write(&file, text).unwrap();
        let mut command = covault();
        command.args(["config", "check", "--role", role]).arg(&file);
        said(command.current_dir(folder.path()).output())
    };
    let (code, out, err) = check("", "serve");
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("no problem found"), "{out}");

    let wrong =
        "[serve]\nlisten = \"here\"\nlistn = 1\n[log]\nlevel = \"infoo\"\n[bus]\nredis_url = 5";
    let (code, out, err) = check(wrong, "serve");
    assert_eq!(code, 1);
    assert_eq!(out.lines().count(), 4, "{out}");
    for setting in [
        "serve.listen: ",
        "serve.listn",
        "log.level: ",
        "bus.redis_url",
    ] {
        assert!(out.contains(setting), "{out}");
    }
    assert!(err.contains("4 problems"), "{err}");

    // What a signer would be open without.
    let (code, out, _) = check("[signer]\nname = \"vienna\"", "signer");
    assert_eq!(code, 1);
    assert!(out.contains("signer.peers is empty"), "{out}");

    let mut command = covault();
    let shown = said(
        command
            .args(["config", "show", "--json"])
            .arg(&file)
            .output(),
    );
    let shown: Value = serde_json::from_str(&shown.1).unwrap();
    let name = shown.as_array().unwrap().iter();
    let mut name = name.filter(|setting| setting["setting"] == "signer.name");
    let name = name.next().unwrap();
    assert_eq!(name["value"], "\"vienna\"");
    assert_eq!(name["origin"], file.display().to_string());
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "only the file"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallet_and_request__should_be_listed_shown_and_watched() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 31337).await;
    let chain = anvil.chain_argument();
    // Where nothing listens: a payment waits.
    let arguments = ["--chain", "31337=http://127.0.0.1:1"];
    let dev = DevProcess::start(&folder.path().join("dev"), &arguments).await;
    let token = folder.path().join("platform-token");
    write_secret(&token, dev.info["platformToken"].as_str().unwrap());
    let run = |words: &[&str]| {
        let mut command = covault();
        command.args(words).args(["--url", &dev.api.base]);
        said(command.arg("--token-file").arg(&token).output())
    };
    let vault = dev.vault.as_str();
    let words = ["wallet", "create", "--vault", vault, "--network"];
    let (code, wallet, err) = run(&[&words[..], &["evm", "--name", "till"]].concat());
    let wallet = wallet.trim();
    assert!(code == 0 && wallet.starts_with("0x"), "{wallet}{err}");
    assert_eq!(run(&[&words[..], &["ethereum"]].concat()).0, 2);
    let (_, list, _) = run(&["wallet", "list", "--vault", vault]);
    let lines: Vec<_> = list.lines().collect();
    assert!(lines[0].contains("ADDRESS"), "{list}");
    let till = lines.iter().find(|line| line.contains(wallet)).unwrap();
    assert!(till.contains("active") && till.contains("till"), "{list}");
    let (_, list, _) = run(&["wallet", "list", "--vault", vault, "--json"]);
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["detailsList"][0]["address"], wallet);

    let content = base64("hello");
    let message =
        serde_json::json!({"evmMessage": {"chainId": 1, "from": wallet, "content": content}});
    let request = dev.api.create(message).await;
    let (code, watched, err) = run(&["request", "watch", &request]);
    assert_eq!(code, 0, "{watched}{err}");
    assert!(watched.trim_end().ends_with("succeeded"), "{watched}");
    let payment = serde_json::json!({"evmSendNative": {"chainId": 31337, "from": wallet, "to": wallet, "value": "1"}});
    let waiting = dev.api.create(payment).await;
    let (code, rejected, err) = run(&["reject", &waiting]);
    assert_eq!(code, 0, "{rejected}{err}");
    let (code, watched, err) = run(&["request", "watch", &waiting]);
    assert_eq!(code, 7, "{watched}{err}");
    assert!(err.contains("the request failed"), "{err}");
    let (_, shown, _) = run(&["request", "show", &waiting]);
    assert!(shown.contains("kind         evmSendNative"), "{shown}");
    assert!(shown.contains("status       failed"), "{shown}");
    let (_, list, _) = run(&["request", "list", "--vault", vault]);
    assert!(list.lines().next().unwrap().contains("CREATED"), "{list}");
    for words in [
        request.as_str(),
        "evmMessage",
        "succeeded",
        "evmSendNative",
        "failed",
    ] {
        assert!(list.contains(words), "{words}: {list}");
    }
    let (_, json, _) = run(&["request", "list", "--vault", vault, "--oldest", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(
        json["signingRequests"].as_array().unwrap().len() >= 2,
        "{json}"
    );

    // The orchestrator of the environment; a command line that names one counts instead.
    let admin = folder.path().join("admin-token");
    write_secret(&admin, dev.info["adminToken"].as_str().unwrap());
    let of_environment = |words: &[&str], address: &str| {
        let mut command = covault();
        command.args(words).env("COVAULT_ADDR", address);
        said(command.env("COVAULT_TOKEN_FILE", &admin).output())
    };
    let (code, list, err) = of_environment(&["vault", "list"], dev.admin_url());
    assert!(code == 0 && list.starts_with("UUID"), "{list}{err}");
    assert!(list.contains(vault), "{list}");
    let (code, _, err) = of_environment(&["vault", "list"], "localhost:8080");
    assert!(
        code == 1 && err.contains("COVAULT_ADDR: it is not a URL; use http://"),
        "{err}"
    );
    let words = [
        "vault",
        "list",
        "--url",
        "localhost:8080",
        "--token-file",
        "x",
    ];
    let (code, _, err) = of_environment(&words, dev.admin_url());
    assert!(
        code == 2 && err.contains("it is not a URL; use http://"),
        "{err}"
    );
    let quiet = ["batch", "list", "--vault", vault, "--quiet"];
    let (code, out, err) = of_environment(&quiet, dev.admin_url());
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));

    let (id, node) = chain.split_once('=').unwrap();
    let file = folder.path().join("chains.toml");
    let chains = |id: &str, nodes: &str| {
        fs::write(&file, format!("[chains.evm.{id}]\nrpc = [{nodes}]")).unwrap();
        let mut command = covault();
        said(
            command
                .args(["chain", "list", "--config"])
                .arg(&file)
                .output(),
        )
    };
    let (code, out, err) = chains(id, &format!("{node:?}"));
    assert!(code == 0 && out.contains("at block"), "{out}{err}");
    let (code, out, _) = chains(id, &format!("{node:?}, \"http://127.0.0.1:1/secret\""));
    assert!(code == 5 && !out.contains("secret"), "{out}");
    let (code, out, _) = chains("1", &format!("{node:?}"));
    assert!(code == 6 && out.contains("FAIL"), "{out}");
}
