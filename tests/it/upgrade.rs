//! An upgrade under load as docs/upgrading.md has it, a step back, and versions that are too far apart. The other build is
//! the last release (OTHER_COVAULT, which `tests/run` sets once there is one); until then it is this one, which
//! passes for the next version.

use std::fs;

use serde_json::{Value, json};

use super::support::*;

/// A program, as a file NAME.by of the cluster says it.
struct Build {
    by: String,
    version: String,
}

impl Build {
    /// This one, so many minor versions further on.
    fn passing_for(more: u64) -> Self {
        let own: Vec<u64> = env!("CARGO_PKG_VERSION")
            .split('.')
            .map(|part| part.parse().unwrap())
            .collect();
        let version = format!("{}.{}.{}", own[0], own[1] + more, own[2]);
        let by = match more {
            0 => String::new(),
            _ => format!("env COVAULT_VERSION_FOR_TESTS={version}"),
        };
        Self { by, version }
    }

    /// The program at this path. A script calls it, because what is called by `by` gets the path of this build first.
    fn at(path: &str, folder: &std::path::Path) -> Self {
        let printed = outcome_of(std::process::Command::new(path).arg("--version")).1;
        let script = folder.join("other-build");
        fs::write(&script, format!("#!/bin/sh\nshift\nexec {path:?} \"$@\"\n")).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&script, executable).unwrap();
        Self {
            by: script.to_str().unwrap().to_owned(),
            version: printed.split_whitespace().nth(1).unwrap().to_owned(),
        }
    }

    /// From which one an upgrade goes to which.
    fn of_upgrade(folder: &std::path::Path) -> [Self; 2] {
        match std::env::var("OTHER_COVAULT") {
            Ok(path) if !path.is_empty() => [Self::at(&path, folder), Self::passing_for(0)],
            _ => [Self::passing_for(0), Self::passing_for(1)],
        }
    }
}

/// Starts a signer by another program, and waits until it is heard with that version.
async fn replace_signer(fleet: &mut Fleet, index: usize, build: &Build) {
    let cluster = &mut fleet.cluster;
    let code = tokio::task::block_in_place(|| cluster.signers[index].terminate());
    assert_eq!(code, Some(0), "{}", cluster.signers[index].log());
    let by = cluster
        .folder
        .path()
        .join(format!("signer-{}.by", index + 1));
    fs::write(by, &build.by).unwrap();
    cluster.restart_signer(index);
    let key = public_part(&cluster.keys[index]);
    eventually("the signer is there with its version", async || {
        let node = node(&fleet.cluster, &key)?;
        (node["version"] == build.version && node["live"] == true).then_some(())
    })
    .await;
}

/// Starts an orchestrator by another program, and waits until it can work.
async fn replace_orchestrator(fleet: &mut Fleet, index: usize, build: &Build) {
    let code = tokio::task::block_in_place(|| fleet.process(index).terminate());
    assert_eq!(code, Some(0), "{}", fleet.process(index).log());
    let name = ["serve", "serve-2"][index];
    let by = fleet.cluster.folder.path().join(format!("{name}.by"));
    fs::write(by, &build.by).unwrap();
    fleet.restart(index);
    fleet.ready().await;
}

/// What `node list` says of one.
fn node(cluster: &TestCluster, key: &str) -> Option<Value> {
    let (_, out, _) = tokio::task::block_in_place(|| cluster.node(&["list", "--json"]));
    let list: Value = serde_json::from_str(&out).ok()?;
    let nodes = list["nodes"].as_array()?;
    nodes.iter().find(|node| node["publicKey"] == key).cloned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade__should_lose_nothing_with_signers_first_and_a_step_back() {
    let mut fleet = Fleet::start(&["all", "all"], "", None).await;
    let [old, new] = Build::of_upgrade(fleet.cluster.folder.path());
    for index in 0..3 {
        replace_signer(&mut fleet, index, &old).await;
    }
    for index in 0..2 {
        replace_orchestrator(&mut fleet, index, &old).await;
    }
    let vaults = fleet.vaults(&[0, 1]).await;
    let of = vaults.clone();
    let load = FleetLoad::start(&fleet.apis, 4, move |number| {
        of[number / 2 % 2].message(number)
    });
    load.go_on(6).await;
    for index in 0..3 {
        replace_signer(&mut fleet, index, &new).await;
        load.go_on(6).await;
    }
    for index in 0..2 {
        replace_orchestrator(&mut fleet, index, &new).await;
        load.go_on(6).await;
    }
    // A step back: an orchestrator first, then a signer; and forward again.
    for build in [&old, &new] {
        replace_orchestrator(&mut fleet, 1, build).await;
        load.go_on(6).await;
        replace_signer(&mut fleet, 0, build).await;
        load.go_on(6).await;
    }
    let accepted = load.end().await;
    fleet.assert_done(&accepted, &[0, 1]).await;
    assert_eq!(fleet.requests(), accepted.len());
    for vault in &vaults {
        let words = ["refresh", "--vault", &vault.id];
        tokio::task::block_in_place(|| fleet.cluster.run(&words));
        fleet
            .cluster
            .assert_signs(&vault.evm, &vault.solana, "refreshed")
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_too_far_apart__should_be_refused_with_a_sentence() {
    let mut fleet = Fleet::start(&["all", "all"], "", None).await;
    let vault = fleet.vaults(&[0]).await.remove(0);
    let (own, far) = (Build::passing_for(0), Build::passing_for(2));
    for (index, name) in ["serve.toml", "serve-2.toml"].into_iter().enumerate() {
        let file = fleet.cluster.folder.path().join(name);
        let text = fs::read_to_string(&file).unwrap();
        let long = "signing_deadline_ms = 60000";
        assert!(text.contains(long), "{text}");
        fs::write(&file, text.replace(long, "signing_deadline_ms = 8000")).unwrap();
        replace_orchestrator(&mut fleet, index, &own).await;
    }
    let sentence = format!("of version {}, too far from {}", far.version, own.version);
    let cluster = &fleet.cluster;
    cluster
        .assert_signs(&vault.evm, &vault.solana, "all are near")
        .await;
    // One of three: it is asked for nothing, and said to be too far.
    replace_signer(&mut fleet, 2, &far).await;
    let cluster = &fleet.cluster;
    cluster
        .assert_signs(&vault.evm, &vault.solana, "one is too far")
        .await;
    let (_, listed, _) = tokio::task::block_in_place(|| cluster.node(&["list"]));
    assert!(listed.contains("version"), "{listed}");
    // Two of three: a request fails, and says for whom it waited.
    replace_signer(&mut fleet, 1, &far).await;
    let api = &fleet.apis[0];
    let request = api.create(vault.message(1)).await;
    eventually("the request says for whom it waited", async || {
        let reason = api.details(&request).await["failedReason"].to_string();
        reason.contains(&sentence).then_some(())
    })
    .await;
    replace_signer(&mut fleet, 1, &own).await;
    let signed = fleet.apis[0].sign(vault.message(1)).await;
    assert_eq!(signed["error"], json!(null), "{signed}");
    // An orchestrator: both say so.
    replace_orchestrator(&mut fleet, 1, &far).await;
    for (index, other) in [(0, &far), (1, &own)] {
        let said = format!(
            "another orchestrator of this store runs version {}",
            other.version
        );
        eventually("the log says which version is too far", async || {
            fleet.process(index).log().contains(&said).then_some(())
        })
        .await;
    }
}
