//! `covault audit` as operators and auditors use it.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::support::*;

const EVM: &str = "NETWORK_TYPE_EVM";

/// Exit code, standard output and standard error of `covault audit` on a file.
fn verify(file: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let mut command = covault();
    command.args(["audit", "verify", "--file"]).arg(file);
    let output = command.args(more).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The place of the line of an entry of a chain.
fn place(lines: &[String], chain: &str, number: u64) -> usize {
    let mut all = lines.iter();
    let found = all.position(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["entry"]["chain"] == chain && line["entry"]["number"] == number
    });
    found.unwrap()
}

#[tokio::test]
async fn audit__should_be_exported_while_the_service_runs_and_name_what_was_tampered_with() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("dev");
    let mut dev = DevProcess::start(&data, &[]).await;
    let wallet = dev.api.wallet(&dev.vault, EVM).await;
    let sign = async |dev: &DevProcess, text: &str| {
        let content = base64(text);
        let message = json!({"evmMessage": {"chainId": "1", "from": wallet, "content": content}});
        dev.api.sign(message).await
    };
    sign(&dev, "first").await;
    let heads = folder.path().join("heads");
    fs::write(&heads, dev.command(&["audit", "verify"])).unwrap();
    let uuid = {
        let content = base64("second");
        let message = json!({"evmMessage": {"chainId": "1", "from": wallet, "content": content}});
        let uuid = dev.api.create(message).await;
        dev.api.execute(&uuid).await;
        uuid
    };

    // The running service, against what was kept before.
    let expect = heads.to_str().unwrap().to_owned();
    let (done, out, err) = dev.ask(&["audit", "verify", "--expect", &expect]);
    assert!(done && err.contains("whole: "), "{out}{err}");
    let chain = format!("vault:{}", dev.vault);
    assert!(out.contains("service ") && out.contains(&chain), "{out}");

    // An export says the same, and what happened.
    let file = folder.path().join("audit.jsonl");
    let path = file.to_str().unwrap().to_owned();
    dev.command(&["audit", "export", "--out", &path]);
    let (done, _, err) = dev.ask(&["audit", "export", "--out", &path]);
    assert!(!done && err.contains("cannot make"), "{err}");
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
    let of_request: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["entry"]["entry"].clone())
        .filter(|entry| entry["subject"] == format!("request:{uuid}"))
        .collect();
    let events: Vec<&str> = of_request
        .iter()
        .flat_map(|entry| entry["events"].as_array().unwrap())
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(
        events,
        [
            "Received",
            "PolicyPassed",
            "ApprovalAsked",
            "Approved",
            "Built",
            "SessionClaimed",
            "SignaturesMade",
            "HandedOver"
        ]
    );
    // One entry per commit.
    assert_eq!(of_request.len(), 2);
    assert!(of_request[0]["by"].as_str().unwrap().starts_with("token:"));
    assert!(!of_request[0]["call"].as_str().unwrap().is_empty());
    for secret in ["platformToken", "adminToken"] {
        assert!(!text.contains(dev.info[secret].as_str().unwrap()));
    }
    assert_eq!(verify(&file, &[]).0, Some(0));
    assert_eq!(verify(&file, &["--expect", &expect]).1, out);

    // Tampered with in every way, and named each time.
    let forged = folder.path().join("forged.jsonl");
    let says = |lines: &[String], more: &[&str], expected: &str| {
        fs::write(&forged, lines.join("\n") + "\n").unwrap();
        let (code, _, err) = verify(&forged, more);
        assert_eq!(code, Some(3), "{expected}: {err}");
        assert!(
            err.contains(&format!("BROKEN {expected}")),
            "{expected}: {err}"
        );
    };
    let third = place(&lines, &chain, 3);
    let mut changed = lines.clone();
    changed[third] = changed[third].replace("\"by\":\"", "\"by\":\"not ");
    says(&changed, &[], &format!("{chain}: entry 3 was modified"));
    let mut removed = lines.clone();
    removed.remove(third);
    says(&removed, &[], &format!("{chain}: entry 3 is missing"));
    let mut swapped = lines.clone();
    swapped.swap(third, third + 1);
    says(
        &swapped,
        &[],
        &format!("{chain}: entry 3 is out of order: it comes after 4"),
    );
    says(&lines[..lines.len() - 1], &[], "the file has no end");
    // An end that is cut off with its head, which shows against the heads that were kept alone.
    let (code, _, err) = verify(&heads, &[]);
    assert_eq!(code, Some(3), "heads are no export: {err}");
    let (code, _, err) = verify(&folder.path().join("nothing"), &[]);
    assert_eq!(
        (code, err.contains("cannot read")),
        (Some(1), true),
        "{err}"
    );
    let wrong = folder.path().join("wrong");
    let last = fs::read_to_string(&heads).unwrap();
    let last = last
        .lines()
        .find(|line| line.starts_with("vault:"))
        .unwrap();
    let words: Vec<&str> = last.split(' ').collect();
    let later = format!(
        "{} 1000000 {}\n{} {} {}",
        words[0],
        words[2],
        words[0],
        words[1],
        "0".repeat(64)
    );
    fs::write(&wrong, later).unwrap();
    let wrong = wrong.to_str().unwrap();
    let broken = format!("{chain}: entry 1000000 existed when the expected head was recorded");
    says(&lines, &["--expect", wrong], &broken);
    let broken = format!("{chain}: entry {} had a different hash", words[1]);
    says(&lines, &["--expect", wrong], &broken);

    // The store itself, which the running service keeps to itself.
    let offline = |more: &[&str]| {
        let mut command = covault();
        command.args(["audit", "verify", "--offline"]).args(more);
        command.env("COVAULT_SERVE_DATA_DIR", data.join("orchestrator"));
        outcome_of(&mut command)
    };
    let (done, _, err) = offline(&[]);
    assert!(!done && err.contains("another covault process"), "{err}");
    assert_eq!(dev.process.terminate(), Some(0));
    let (done, stopped, err) = offline(&["--expect", &expect]);
    assert!(done, "{err}");
    assert_eq!(stopped, out);
    dev.restart().await;
    sign(&dev, "third").await;
    let (done, later, err) = dev.ask(&["audit", "verify", "--expect", &path]);
    assert!(done, "{err}");
    assert_ne!(later, out);
}
