//! `covault load` against a real cluster, and against an orchestrator that lies.

use serde_json::Value;

use super::support::*;

/// Runs it: its exit code, what it prints and what it says beside that.
fn load(base: &str, token: &std::path::Path, vault: &str, words: &[&str]) -> (i32, String, String) {
    let mut command = covault();
    command.args(["load", "--url", base, "--vault", vault, "--token-file"]);
    let output = command.arg(token).args(words).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load__should_sign_and_verify_in_every_scenario() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(&folder.path().join("dev"), &[]).await;
    let token = folder.path().join("platform-token");
    write_secret(&token, dev.info["platformToken"].as_str().unwrap());
    let run = |words: &[&str]| load(&dev.api.base, &token, &dev.vault, words);
    let short = [
        "--seconds",
        "2",
        "--warm-up",
        "0",
        "--wallets",
        "2",
        "--json",
    ];
    for scenario in ["ed25519", "ecdsa", "transfers", "mixed", "reads", "retries"] {
        let words = ["--scenario", scenario, "--clients", "4"];
        let (code, out, err) = run(&[&words[..], &short].concat());
        assert_eq!(code, 0, "{scenario}: {out}{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        assert!(report["signed"].as_u64() > Some(0), "{scenario}: {report}");
        assert_eq!(
            report["failed"],
            serde_json::json!({}),
            "{scenario}: {report}"
        );
        let reads = report["reads"].as_u64().unwrap();
        assert_eq!(reads > 0, scenario == "reads", "{report}");
    }

    // An open loop, with all that it can report. A second run takes the wallets of the first.
    let page = folder.path().join("load.html");
    let words = [
        "--scenario",
        "ecdsa",
        "--rate",
        "5",
        "--least-rate",
        "1000000",
    ];
    let html = ["--html", page.to_str().unwrap()];
    let (code, out, err) = run(&[&words[..], &short[..6], &html].concat());
    assert_eq!(code, 5, "{out}{err}");
    assert!(err.contains("signatures per second: "), "{err}");
    assert!(err.contains("and the limit is 1000000"), "{err}");
    assert!(out.contains("signed and verified"), "{out}");
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains("<polyline"), "{page}");

    for (words, problem) in [
        (vec!["--rate", "0"], "must be from 0.01 to 100000"),
        (vec!["--rate", "5", "--clients", "5"], "cannot be used with"),
        (
            vec!["--metrics", "http://127.0.0.1:1/metrics"],
            "--metrics: http://127.0.0.1:1/metrics gives no metrics",
        ),
    ] {
        let (code, out, err) = run(&[&words[..], &short].concat());
        assert!(code != 0 && err.contains(problem), "{problem}: {out}{err}");
    }
}

/// What a service says whose signatures are of something else: everything but these goes through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load__should_find_a_signature_of_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(&folder.path().join("dev"), &[]).await;
    let token = folder.path().join("platform-token");
    write_secret(&token, dev.info["platformToken"].as_str().unwrap());
    // Each answer that has signatures is the first one that had.
    let first = std::sync::Arc::new(tokio::sync::OnceCell::new());
    let (http, real) = (reqwest::Client::new(), dev.api.base.clone());
    let liar = axum::Router::new().fallback(move |call: axum::extract::Request| {
        let (first, http, real) = (first.clone(), http.clone(), real.clone());
        async move {
            let (parts, body) = call.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            let path = parts.uri.path().to_owned();
            let call = http.request(parts.method, format!("{real}{path}"));
            let mut headers = parts.headers;
            headers.remove("host");
            let answer = call.headers(headers).body(body).send().await.unwrap();
            let status = answer.status();
            let bytes = answer.bytes().await.unwrap();
            let bytes = match path.ends_with("executeSigningRequests") {
                true => first.get_or_init(|| async { bytes }).await.clone(),
                false => bytes,
            };
            (status, bytes)
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, liar).await.unwrap() });
    let words = [
        "--seconds",
        "1",
        "--warm-up",
        "0",
        "--wallets",
        "1",
        "--clients",
        "2",
    ];
    let (code, out, err) = tokio::task::block_in_place(|| load(&base, &token, &dev.vault, &words));
    assert_eq!(code, 1, "{out}{err}");
    assert!(err.contains("signatures or answers are wrong"), "{err}");
    assert!(
        out.contains("the signature is not from the wallet's key"),
        "{out}"
    );
}
