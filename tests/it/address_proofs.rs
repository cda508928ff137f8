//! Contract section 11: addresses come with statements of the signers, and a swapped one is found
//! by every verifier, with nothing but keys that the signers' operators gave out.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use covault_core::order::NodeId;
use covault_core::testing::SystemEntropy;
use covault_mpc::identity::NodeIdentity;
use serde_json::{Value, json};

use super::support::*;

const REFERENCE: &str = "order 0";

/// What a signer's operator gives to clients: `covault node keys`, while the signer runs.
fn node_keys(cluster: &TestCluster, index: usize) -> Value {
    let file = format!("signer-{}.toml", index + 1);
    let mut command = covault();
    command
        .args(["node", "keys", "--json", "--config"])
        .arg(cluster.folder.path().join(file));
    let (done, out, err) = outcome_of(&mut command);
    assert!(done, "{out}\n{err}");
    serde_json::from_str(&out).unwrap()
}

/// A field of the vault's key statement on the curve of EVM, on which all signers agree.
fn stated(cluster: &TestCluster, vault: &str, field: &str) -> String {
    let of = |index| {
        let keys = node_keys(cluster, index);
        assert_eq!(keys["node"], json!(public_part(&cluster.keys[index])));
        let texts = keys["keys"].as_array().unwrap().clone();
        let mut texts = texts.into_iter().map(|key| key["statement"].clone());
        let wanted = |text: &Value| {
            let text = text.as_str().unwrap();
            text.contains(&format!("vault: {vault}\n")) && text.contains("scheme: dkls23\n")
        };
        texts.find(wanted).unwrap().as_str().unwrap().to_owned()
    };
    let all: BTreeSet<String> = (0..3).map(of).collect();
    assert_eq!(all.len(), 1, "{all:?}");
    let text = all.into_iter().next().unwrap();
    let start = format!("{field}: ");
    let line = text.lines().find(|line| line.starts_with(&start)).unwrap();
    line[start.len()..].to_owned()
}

/// What a verifier says of each answer.
fn run(command: &mut Command, answers: &[Value], folder: &Path) -> Vec<String> {
    let file = folder.join("answers.jsonl");
    let lines: Vec<String> = answers.iter().map(Value::to_string).collect();
    fs::write(&file, lines.join("\n")).unwrap();
    command.stdin(fs::File::open(&file).unwrap());
    let (done, out, err) = outcome_of(command);
    let said: Vec<String> = out.lines().map(str::to_owned).collect();
    assert_eq!(said.len(), answers.len(), "{out}\n{err}");
    let refused = said.iter().any(|line| line.starts_with("refused: "));
    assert_eq!(done, !refused, "{out}\n{err}");
    said
}

/// What the verifiers in Rust, JavaScript and Python say of each answer.
fn verifiers(folder: &Path, pins: &Value, answers: &[Value]) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    // The same by options, where they can say it.
    if let Some(nodes) = pins["nodes"].as_array() {
        let nodes = nodes.iter().map(|line| line.as_str().unwrap());
        let mut rust = covault();
        rust.args(["address", "verify", "--threshold"]);
        rust.arg(pins["threshold"].to_string());
        for (option, field) in [
            ("--vault", "vault"),
            ("--ref", "ref"),
            ("--root-key", "rootKey"),
            ("--chain-code", "chainCode"),
            ("--network", "network"),
        ] {
            if let Some(value) = pins[field].as_str() {
                rust.args([option, value]);
            }
        }
        rust.arg("--node").args(nodes);
        commands.push(rust);
    }
    commands.extend(with_pins_file(folder, pins));
    let said = commands.iter_mut();
    said.map(|command| run(command, answers, folder)).collect()
}

/// The verifiers in Rust, JavaScript and Python, with a file of pins.
fn with_pins_file(folder: &Path, pins: &Value) -> [Command; 3] {
    let file = folder.join("pins.json");
    fs::write(&file, pins.to_string()).unwrap();
    let mut rust = covault();
    rust.args(["address", "verify", "--pins"]).arg(&file);
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let mut javascript = Command::new("node");
    javascript.arg(docs.join("verify-address.mjs")).arg(&file);
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/venv/bin/python");
    let mut python = Command::new(python);
    python.arg(docs.join("verify_address.py")).arg(&file);
    [rust, javascript, python]
}

async fn wallet(cluster: &TestCluster, vault: &str, reference: &str) -> Value {
    let body = json!({"vaultUuid": vault, "networkType": "NETWORK_TYPE_EVM", "ref": reference,
        "requireAddressProof": true});
    cluster.api.ok("createWallet", body).await
}

/// An answer with changes to its details and to the proof.
fn changed(answer: &Value, details: &[(&str, &Value)], proof: &[(&str, &Value)]) -> Value {
    let mut answer = answer.clone();
    for (field, value) in details {
        answer["details"][*field] = (*value).clone();
    }
    for (field, value) in proof {
        answer["details"]["addressProof"][*field] = (*value).clone();
    }
    answer
}

#[tokio::test]
async fn orchestrator_that_swaps_addresses__should_be_found_every_time() {
    let cluster = TestCluster::start(20_000).await;
    let vault = cluster.create_vault("treasury");
    let other_vault = cluster.create_vault("another");
    let honest = wallet(&cluster, &vault, REFERENCE).await;
    let mut others = Vec::new();
    let mut elsewhere = Vec::new();
    for number in 1..=50 {
        let reference = format!("order {number}");
        others.push(wallet(&cluster, &vault, &reference).await);
        elsewhere.push(wallet(&cluster, &other_vault, &format!("there {number}")).await);
    }

    let nodes: Vec<String> = cluster.keys.iter().map(|key| public_part(key)).collect();
    let pins = json!({"nodes": nodes, "threshold": 2, "vault": vault, "ref": REFERENCE,
        "network": "NETWORK_TYPE_EVM", "rootKey": stated(&cluster, &vault, "root"),
        "chainCode": stated(&cluster, &vault, "chain code")});
    assert_eq!(stated(&cluster, &vault, "threshold"), "2");
    let address = honest["details"]["address"].as_str().unwrap();
    for said in verifiers(
        cluster.folder.path(),
        &pins,
        &[honest.clone(), honest["details"].clone()],
    ) {
        assert_eq!(said, [address, address]);
    }
    // The threshold is the client's, and so are the nodes.
    for (field, value) in [("threshold", json!(3)), ("nodes", json!([nodes[0]]))] {
        let mut pins = pins.clone();
        pins[field] = value;
        for said in verifiers(cluster.folder.path(), &pins, std::slice::from_ref(&honest)) {
            assert!(said[0].starts_with("refused: "), "{said:?}");
        }
    }

    let own: Vec<NodeIdentity> = (0..2)
        .map(|_| NodeIdentity::generate(&SystemEntropy))
        .collect();
    let mut holders: Vec<String> = nodes.iter().map(|line| hex_of(line)).collect();
    holders.sort_unstable();
    let holders = holders.join(" ");
    let signed = |answer: &Value, names: &dyn Fn(usize) -> String| {
        let proof = &answer["details"]["addressProof"];
        let field = |name: &str| proof[name].as_str().unwrap().to_owned();
        let text = format!(
            "covault address statement v1\nvault: {}\nroot: {}\nthreshold: 2\nholders: {holders}\npath: {}\nnetwork: {}\naddress: {}\nref: {}\n",
            field("vaultUuid"),
            field("rootPublicKey"),
            field("keyPath"),
            field("networkType"),
            field("address"),
            hex::encode(field("ref")),
        );
        let statement = |(place, identity): (usize, &NodeIdentity)| json!({"nodeKey": names(place), "signature": base64(identity.sign(text.as_bytes()))});
        let statements: Vec<Value> = own.iter().enumerate().map(statement).collect();
        changed(answer, &[], &[("statements", &json!(statements))])
    };
    let reference = json!(REFERENCE);
    let vault_uuid = json!(vault);
    let honest_proof = &honest["details"]["addressProof"];
    let mut lies = Vec::new();
    for number in 0..50_u8 {
        // An address of the orchestrator's own.
        let mine = json!(format!("0x{}", hex::encode([number + 1; 20])));
        let swapped = changed(&honest, &[("address", &mine)], &[]);
        let whole = changed(&swapped, &[], &[("address", &mine)]);
        let own_lines = |place: usize| own[place].openssh_line("");
        lies.push(signed(&whole, &own_lines));
        lies.push(signed(&whole, &|place| nodes[place].clone()));
        lies.push(changed(&whole, &[], &[("statements", &json!([]))]));
        let twice = &honest_proof["statements"][0];
        lies.push(changed(
            &whole,
            &[],
            &[("statements", &json!([twice, twice]))],
        ));
        lies.push(changed(&whole, &[("addressProof", &Value::Null)], &[]));
        lies.push(swapped);
        lies.push(whole);
        // Another address of the vault, made for another reference; and another vault's.
        for taken in [
            &others[usize::from(number)],
            &elsewhere[usize::from(number)],
        ] {
            let details = &taken["details"];
            lies.push(taken.clone());
            lies.push(changed(taken, &[("ref", &reference)], &[]));
            lies.push(changed(
                taken,
                &[("ref", &reference)],
                &[("ref", &reference)],
            ));
            let renamed = [("ref", &reference), ("vaultUuid", &vault_uuid)];
            lies.push(changed(taken, &renamed, &renamed));
            lies.push(changed(&honest, &[("address", &details["address"])], &[]));
            let address = [("address", &details["address"])];
            lies.push(changed(&honest, &address, &address));
        }
        // A statement with the statements of another one.
        let proof = &others[usize::from(number)]["details"]["addressProof"];
        lies.push(changed(
            &honest,
            &[],
            &[
                ("statements", &proof["statements"]),
                ("keyPath", &proof["keyPath"]),
            ],
        ));
    }
    assert_eq!(lies.len(), 1_000);
    assert!(lies.iter().all(|lie| *lie != honest));
    for said in verifiers(cluster.folder.path(), &pins, &lies) {
        let found = said.iter().filter(|line| line.starts_with("refused: "));
        assert_eq!(found.count(), 1_000);
    }
}

#[tokio::test]
async fn proof__should_follow_when_the_signers_were_away() {
    let mut cluster = TestCluster::start(20_000).await;
    let vault = cluster.create_vault("treasury");
    cluster.signers[1].kill();
    cluster.signers[2].kill();
    cluster.until_live(&[0]).await;
    let body = |reference: &str, demand: bool| {
        json!({"vaultUuid": vault, "networkType": "NETWORK_TYPE_EVM", "ref": reference,
            "requireAddressProof": demand})
    };
    let (status, refused) = cluster.api.post("createWallet", body("one", true)).await;
    assert_eq!(status, 503, "{refused}");
    let reason = refused["error"]["message"].as_str().unwrap();
    assert!(reason.starts_with("requireAddressProof: "), "{reason}");
    assert_eq!(refused["details"], Value::Null);
    let list = json!({"vaultUuid": vault});
    let wallets = cluster.api.ok("getWalletList", list.clone()).await;
    assert_eq!(wallets["detailsList"], json!([]));

    let made = cluster.api.ok("createWallet", body("one", false)).await;
    assert_eq!(made["details"]["addressProof"], Value::Null);
    let find = json!({"ref": "one"});
    let found = cluster.api.ok("getWalletInfo", find.clone()).await;
    assert_eq!(found["details"], made["details"]);

    // The next process goes on with it.
    assert_eq!(cluster.serve.terminate(), Some(0));
    cluster.restart_signer(1);
    cluster.restart_signer(2);
    cluster.start_serve();
    cluster.ready().await;
    let proof = eventually("the proof is there", async || {
        let found = cluster.api.ok("getWalletInfo", find.clone()).await;
        let proof = found["details"]["addressProof"].clone();
        proof.is_object().then_some(proof)
    })
    .await;
    assert_eq!(proof["address"], made["details"]["address"]);
    assert_eq!(proof["statements"].as_array().unwrap().len(), 2);
    let wallets = cluster.api.ok("getWalletList", list).await;
    assert_eq!(wallets["detailsList"][0]["addressProof"], proof);
    let again = cluster.api.ok("createWallet", body("two", true)).await;
    assert!(again["details"]["addressProof"].is_object());
}

/// The key of an OpenSSH line.
fn hex_of(line: &str) -> String {
    hex::encode(NodeId::parse_openssh_line(line).unwrap().0)
}

/// What a proof looks like that these nodes, of so many, have signed for these threshold and holders.
fn proof(signers: &[&NodeIdentity], threshold: u16, holders: &[&NodeIdentity]) -> Value {
    let (vault, root, path) = (
        "0f0e0d0c-0b0a-0908-0706-050403020100",
        "02".repeat(33),
        "m/60/7",
    );
    let address = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
    let mut keys: Vec<String> = holders.iter().map(|of| hex::encode(of.id().0)).collect();
    keys.sort_unstable();
    let text = format!(
        "covault address statement v1\nvault: {vault}\nroot: {root}\nthreshold: {threshold}\nholders: {}\n\
         path: {path}\nnetwork: NETWORK_TYPE_EVM\naddress: {address}\nref: \n",
        keys.join(" ")
    );
    let said = signers.iter().map(
        |of| json!({"nodeKey": of.openssh_line(""), "signature": base64(of.sign(text.as_bytes()))}),
    );
    json!({"address": address, "addressProof": {"vaultUuid": vault, "rootPublicKey": root,
        "keyPath": path, "networkType": "NETWORK_TYPE_EVM", "address": address, "ref": "",
        "threshold": threshold, "epoch": 0, "statements": said.collect::<Vec<_>>()}})
}

/// Shares went from the first three of five nodes to the last three. One hostile node of each generation
/// is one too few in both.
#[test]
fn proof__should_be_complete_within_one_generation_of_shares() {
    let folder = tempfile::tempdir().unwrap();
    let made: Vec<NodeIdentity> = (0..5)
        .map(|_| NodeIdentity::generate(&SystemEntropy))
        .collect();
    let all: Vec<&NodeIdentity> = made.iter().collect();
    let (old, new) = (&all[..3], &all[2..]);
    let lines = |of: &[&NodeIdentity]| of.iter().map(|of| of.openssh_line("")).collect::<Vec<_>>();
    let vault = "0f0e0d0c-0b0a-0908-0706-050403020100";
    let pins = json!({"vault": vault, "generations": [
        {"nodes": lines(old), "threshold": 2}, {"nodes": lines(new), "threshold": 2}]});
    let mut honest = vec![
        proof(&all[..2], 2, old),
        proof(&all[1..3], 2, old),
        proof(&all[2..4], 2, new),
        proof(&all[2..], 2, new),
    ];
    // Who else has signed does no harm.
    honest.push(proof(&all, 2, new));
    for said in verifiers(folder.path(), &pins, &honest) {
        assert!(said.iter().all(|line| line.starts_with("0x")), "{said:?}");
    }
    let hostile = [all[0], all[3]];
    let mut lies = Vec::new();
    for threshold in 1..=3 {
        for holders in [old, new, &all[..], &hostile[..], &all[1..3], &[]] {
            lies.push(proof(&hostile, threshold, holders));
        }
    }
    // Two of one generation say that it has other holders, or another threshold.
    lies.push(proof(&all[..2], 1, old));
    lies.push(proof(&all[..2], 3, old));
    lies.push(proof(&all[..2], 2, &all[..2]));
    lies.push(proof(&all[..2], 2, new));
    lies.push(proof(&all[..2], 2, &all));
    // One statement of each generation.
    let mut mixed = proof(&[all[1]], 2, old);
    let other = proof(&[all[2]], 2, new)["addressProof"]["statements"][0].clone();
    let statements = mixed["addressProof"]["statements"].as_array_mut().unwrap();
    statements.push(other);
    lies.push(mixed);
    for said in verifiers(folder.path(), &pins, &lies) {
        assert!(
            said.iter().all(|line| line.starts_with("refused: ")),
            "{said:?}"
        );
    }
    // A generation alone.
    let pins = json!({"vault": vault, "nodes": lines(new), "threshold": 2});
    for said in verifiers(folder.path(), &pins, &honest) {
        let found: Vec<bool> = said.iter().map(|line| line.starts_with("0x")).collect();
        assert_eq!(found, [false, false, true, true, true]);
    }
}

/// Whatever an answer is, the next one is looked at; and pins that are not what they must be pin nothing.
#[test]
fn verifiers__should_refuse_what_is_of_the_wrong_type() {
    let folder = tempfile::tempdir().unwrap();
    let made: Vec<NodeIdentity> = (0..3)
        .map(|_| NodeIdentity::generate(&SystemEntropy))
        .collect();
    let all: Vec<&NodeIdentity> = made.iter().collect();
    let lines: Vec<String> = all.iter().map(|of| of.openssh_line("")).collect();
    let pins =
        json!({"vault": "0f0e0d0c-0b0a-0908-0706-050403020100", "nodes": lines, "threshold": 2});
    // Every statement is needed.
    let good = proof(&all[..2], 2, &all);
    let mut answers = vec![
        json!(5),
        json!([]),
        Value::Null,
        json!("text"),
        json!({"details": 5}),
    ];
    for wrong in [
        json!(5),
        json!([1]),
        json!({"a": 1}),
        json!("text"),
        Value::Null,
        json!(true),
    ] {
        for field in ["statements", "ref", "keyPath", "rootPublicKey", "vaultUuid"] {
            answers.push(changed_in(&good, field, &wrong));
        }
        let mut answer = good.clone();
        answer["addressProof"] = wrong.clone();
        answers.push(answer);
        for field in ["nodeKey", "signature"] {
            let mut answer = good.clone();
            answer["addressProof"]["statements"][0][field] = wrong.clone();
            answers.push(answer);
        }
    }
    answers.push(good.clone());
    for said in verifiers(folder.path(), &pins, &answers) {
        let (last, others) = said.split_last().unwrap();
        assert!(last.starts_with("0x"), "{said:?}");
        for (line, answer) in others.iter().zip(&answers) {
            assert!(line.starts_with("refused: "), "{line} {answer}");
        }
    }
    for threshold in [
        json!("1e0"),
        json!(0.5),
        json!(true),
        json!(0),
        json!(-1),
        json!("2"),
        Value::Null,
    ] {
        let mut pins = pins.clone();
        pins["threshold"] = threshold;
        for mut command in with_pins_file(folder.path(), &pins) {
            let file = folder.path().join("answers.jsonl");
            fs::write(&file, good.to_string()).unwrap();
            command.stdin(fs::File::open(&file).unwrap());
            let (done, out, _) = outcome_of(&mut command);
            assert!(!done && !out.contains("0x5aAeb"), "{pins} {out}");
        }
    }
}

fn changed_in(answer: &Value, field: &str, value: &Value) -> Value {
    let mut answer = answer.clone();
    answer["addressProof"][field] = value.clone();
    answer
}

/// Not a test of speed: a figure to write down.
#[tokio::test]
#[ignore = "measures"]
async fn deposit_wallets__should_be_measured() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start_with(&folder.path().join("dev"), &[], &[]).await;
    let new = "--name sweep --kind sweep --access full --all-vaults";
    let api = dev.token(&new.split(' ').collect::<Vec<_>>());
    let route = "sweep configure --token sweep --network EVM --vault default --target \
                 0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
    dev.command(&route.split_whitespace().collect::<Vec<_>>());
    let began = std::time::Instant::now();
    let clients = (0..32).map(|client| {
        let api = api.clone();
        tokio::spawn(async move {
            for number in 0..60 {
                let body = json!({"network": "EVM", "ref": format!("{client}-{number}"),
                    "requireAddressProof": true});
                let (status, answer) = api.post("sweep/wallets", body).await;
                assert_eq!(status, 200, "{answer}");
                assert!(answer["addressProof"].is_object(), "{answer}");
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{:.0} deposit wallets with proofs per second",
        32.0 * 60.0 / seconds
    );
}

/// Who goes by a verifier's exit status must not be told that nothing is well.
#[test]
fn verifiers__should_not_end_well_when_they_have_verified_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let pins = folder.path().join("pins.json");
    let text = json!({"nodes": [], "threshold": 1, "vault": "v"}).to_string();
    fs::write(&pins, text).unwrap();
    // As a release folder that is called "current".
    let linked = folder.path().join("current");
    std::os::unix::fs::symlink(&docs, &linked).unwrap();
    let mut wrong = Vec::new();
    for (program, script) in [
        ("node", linked.join("verify-address.mjs")),
        ("node", docs.join("verify-address.mjs")),
        ("python3", docs.join("verify_address.py")),
    ] {
        for answers in ["", "{\"address\": \"0xthief\"}\n"] {
            let file = folder.path().join("answers");
            fs::write(&file, answers).unwrap();
            let mut command = Command::new(program);
            command.arg(&script).arg(&pins);
            command.stdin(fs::File::open(&file).unwrap());
            let (done, out, _) = outcome_of(&mut command);
            if done {
                wrong.push(format!("{} given {answers:?}: {out:?}", script.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// "Of several answers, a line for each": what an orchestrator answers must not make a line of its own.
#[test]
fn verifier__should_print_one_line_for_each_answer_whatever_is_in_it() {
    let line = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti";
    let folder = tempfile::tempdir().unwrap();
    let forged = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
    for field in ["vaultUuid", "networkType"] {
        let mut proof = json!({"vaultUuid": "v", "rootPublicKey": "", "keyPath": "m/60/0",
            "networkType": "NETWORK_TYPE_EVM", "address": "", "ref": "", "statements": []});
        proof[field] = json!(format!("x\n{forged}"));
        let file = folder.path().join("answer.json");
        fs::write(
            &file,
            json!({"address": "", "addressProof": proof}).to_string(),
        )
        .unwrap();
        let mut command = covault();
        command.args(["address", "verify"]).arg(&file);
        command.args(["--node", line, "--threshold", "1", "--vault", "v"]);
        command.args(["--network", "NETWORK_TYPE_EVM"]);
        let (_, out, _) = outcome_of(&mut command);
        assert_eq!(out.lines().count(), 1, "{out}");
    }
}
