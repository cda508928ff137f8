//! The OpenAPI document of a running service: schemathesis compares the two, and clients that are
//! generated from the document work.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use super::support::*;

fn file(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A program of tests/python.
fn python_tool(name: &str) -> Command {
    let path = file("tests/python/venv/bin").join(name);
    assert!(
        path.exists(),
        "{} is missing: run `bash tests/run` once",
        path.display()
    );
    Command::new(path)
}

/// Runs a program to its end and gives what it prints; it must succeed.
async fn run(mut command: Command) -> String {
    // Not the whole command: tokens are in its environment.
    let program = command.get_program().to_owned();
    // On another thread: the test's own tasks go on.
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}\n{}\n{}",
        program.display(),
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

fn variables(dev: &DevProcess) -> [(&'static str, String); 3] {
    [
        ("COVAULT_URL", dev.api.base.clone()),
        ("COVAULT_VAULT", dev.vault.clone()),
        ("COVAULT_TOKEN", dev.api.token.clone()),
    ]
}

/// A token of the sweep API with everything that its operations need.
fn sweep_token(dev: &DevProcess) -> String {
    let new = "--name sweep --kind sweep --access full --all-vaults";
    let api = dev.token(&new.split(' ').collect::<Vec<_>>());
    for (network, target) in [
        ("EVM", "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be"),
        ("TRON", "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t"),
    ] {
        let route = format!(
            "sweep configure --token sweep --network {network} --vault default --target {target} \
             --webhook https://example.com/hook"
        );
        dev.command(&route.split_whitespace().collect::<Vec<_>>());
    }
    api.token
}

/// The document that the service serves, in a file.
async fn document(dev: &DevProcess, folder: &Path) -> std::path::PathBuf {
    let url = format!("{}/openapi.json", dev.api.base);
    let response = http_client().get(url).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    let path = folder.join("document.json");
    fs::write(&path, response.text().await.unwrap()).unwrap();
    path
}

/// What call.ts and call.py print: one wallet made and found, one signature, one refusal.
async fn assert_called(dev: &DevProcess, printed: &str, name: &str) {
    let answer: Value = serde_json::from_str(printed.trim()).unwrap();
    let wallet = dev.api.ok("getWalletInfo", json!({"ref": name})).await;
    assert_eq!(
        answer,
        json!({
            "address": wallet["details"]["address"],
            "ref": name,
            "signatures": 1,
            "refused": "ref: is not that of a wallet",
            "status": 400,
        })
    );
}

#[tokio::test]
async fn service__should_be_as_its_document_says() {
    let folder = tempfile::tempdir().unwrap();
    let strict = [("COVAULT_IDEMPOTENCY_STRICT", "true")];
    let dev = DevProcess::start_with(&folder.path().join("dev"), &[], &strict).await;
    let mut command = python_tool("python");
    command
        .arg(file("tests/openapi/check.py"))
        .arg(folder.path())
        .env("COVAULT_SWEEP_TOKEN", sweep_token(&dev))
        .envs(variables(&dev));
    let printed = run(command).await;
    // It ends badly when a check failed; that it tried nothing, or got in nowhere, would be a
    // success too.
    assert!(!printed.contains("Authentication failed"), "{printed}");
    let operations = printed.lines().filter_map(|line| {
        let (_, number) = line.split_once("Tested:")?;
        number.trim().parse::<usize>().ok()
    });
    assert!(operations.max() >= Some(15), "{printed}");
}

/// A TypeScript file with a function for every example of the operations that take one kind of several: each makes the call
/// that `call` gives for an operation and its body.
fn every_kind(document: &Path, imports: &str, call: fn(&str, &Value) -> String) -> String {
    let text = fs::read_to_string(document).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let mut lines = vec![imports.to_owned()];
    for operation in ["createSigningRequest", "createBatchPayment"] {
        let body = &document["paths"][format!("/v1/{operation}")]["post"]["requestBody"];
        let examples = &body["content"]["application/json"]["examples"];
        for (kind, example) in examples.as_object().unwrap() {
            let call = call(operation, &example["value"]);
            lines.push(format!("export const {kind} = () => {call};"));
        }
    }
    // Tests of the document count the kinds; here none may get lost on the way.
    assert_eq!(lines.len(), 1 + 32 + 5);
    lines.join("\n")
}

/// A folder for a TypeScript client, with `script` as its program.
fn typescript_folder(folder: &Path, script: &str) -> std::path::PathBuf {
    let path = folder.join("typescript");
    fs::create_dir(&path).unwrap();
    for name in [script, "tsconfig.json"] {
        fs::copy(file("tests/openapi").join(name), path.join(name)).unwrap();
    }
    let libraries = node_tool("node_modules");
    std::os::unix::fs::symlink(libraries, path.join("node_modules")).unwrap();
    path
}

/// Compiles the folder of a client, and runs its program.
async fn compile_and_call(dev: &DevProcess, path: &Path, program: &str) -> String {
    let node = node_tool("node_modules/node/bin/node");
    let mut compile = Command::new(&node);
    compile
        .arg(node_tool("node_modules/.bin/tsc"))
        .arg("--project")
        .arg(path);
    run(compile).await;
    let mut call = Command::new(&node);
    call.arg(path.join("out").join(program))
        .envs(variables(dev));
    run(call).await
}

#[tokio::test]
async fn typescript_client__should_compile_every_kind_and_call() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(&folder.path().join("dev"), &[]).await;
    let path = typescript_folder(folder.path(), "call.ts");
    let document = document(&dev, folder.path()).await;
    let mut generate = Command::new(node_tool("node_modules/node/bin/node"));
    generate
        .arg(node_tool("node_modules/.bin/openapi-ts"))
        .args([
            "--client",
            "@hey-api/client-fetch",
            "--no-log-file",
            "--output",
        ])
        .arg(path.join("client"))
        .arg("--input")
        .arg(&document)
        .current_dir(&path);
    run(generate).await;
    let imports = "import { createBatchPayment, createSigningRequest } from \"./client\";";
    let kinds = every_kind(&document, imports, |operation, body| {
        format!("{operation}({{ body: {body} }})")
    });
    fs::write(path.join("kinds.ts"), kinds).unwrap();
    let printed = compile_and_call(&dev, &path, "call.js").await;
    assert_called(&dev, &printed, "from-typescript").await;
}

#[tokio::test]
async fn openapi_fetch_client__should_compile_every_kind_and_call() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(&folder.path().join("dev"), &[]).await;
    let path = typescript_folder(folder.path(), "fetch.ts");
    let document = document(&dev, folder.path()).await;
    let mut generate = Command::new(node_tool("node_modules/node/bin/node"));
    generate
        .arg(node_tool("node_modules/.bin/openapi-typescript"))
        .arg(&document)
        .arg("--output")
        .arg(path.join("api.d.ts"));
    run(generate).await;
    let imports = "import createClient from \"openapi-fetch\";\nimport type { paths } from \"./api\";\n\
                   const client = createClient<paths>();";
    let kinds = every_kind(&document, imports, |operation, body| {
        format!("client.POST(\"/v1/{operation}\", {{ body: {body} }})")
    });
    fs::write(path.join("kinds.ts"), kinds).unwrap();
    let printed = compile_and_call(&dev, &path, "fetch.js").await;
    assert_called(&dev, &printed, "from-openapi-fetch").await;
}

#[tokio::test]
async fn python_client__should_type_check_and_call() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(&folder.path().join("dev"), &[]).await;
    let path = folder.path().join("python");
    fs::create_dir(&path).unwrap();
    fs::copy(file("tests/openapi/call.py"), path.join("call.py")).unwrap();
    let mut generate = python_tool("openapi-python-client");
    generate
        .args(["generate", "--meta", "none", "--overwrite", "--path"])
        .arg(document(&dev, folder.path()).await)
        .arg("--config")
        .arg(file("tests/openapi/python.yaml"))
        .arg("--output-path")
        .arg(path.join("covault_client"))
        .current_dir(&path);
    let printed = run(generate).await;
    // It leaves out what it does not understand, and succeeds.
    assert!(!printed.to_lowercase().contains("warning"), "{printed}");
    let mut check = python_tool("mypy");
    check
        .args([
            "--strict",
            "--cache-dir",
            "mypy",
            "call.py",
            "covault_client",
        ])
        .current_dir(&path);
    run(check).await;
    let mut call = python_tool("python");
    call.arg(path.join("call.py")).envs(variables(&dev));
    assert_called(&dev, &run(call).await, "from-python").await;
}
