//! `covault node freeze` and `covault node thaw`, on the machines of the built program's nodes.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::*;

/// A command of a signer's operator.
fn operator(cluster: &TestCluster, index: usize, arguments: &[&str]) -> (bool, String, String) {
    let file = format!("signer-{}.toml", index + 1);
    let mut command = covault();
    command.arg("node").args(arguments).arg("--config");
    outcome_of(command.arg(cluster.folder.path().join(file)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn freeze__should_hold_at_once_over_kills_and_be_shown() {
    let mut cluster = TestCluster::start(8_000).await;
    let vault = cluster.create_vault("treasury");
    let evm = cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await;
    let message = |number: usize| json!({"evmMessage": {"chainId": "1", "from": evm, "content": base64(format!("{number}"))}});
    cluster.api.sign(message(0)).await;
    assert!(
        cluster
            .run(&["show", "--name", "treasury"])
            .contains("can sign: 3 of 3 holders can, 2 are needed")
    );

    // A slip of the pen looks like none.
    let other = "01890a5d-ac96-774b-bcce-b302099a8057";
    let (done, _, err) = operator(&cluster, 0, &["freeze", "--vault", other]);
    assert!(!done && err.contains("has no share of the vault"), "{err}");
    let (done, _, err) = operator(&cluster, 0, &["freeze", "--vault", "treasury"]);
    assert!(!done && err.contains("not a uuid"), "{err}");

    let (done, out, err) = operator(&cluster, 0, &["freeze", "--vault", &vault]);
    assert!(
        done && out.contains(&format!("nothing for the vault {vault}")),
        "{out}{err}"
    );
    cluster.api.sign(message(1)).await;
    // While it is down.
    cluster.signers[1].kill();
    let (done, out, err) = operator(&cluster, 1, &["freeze"]);
    assert!(
        done && out.contains("this node signs nothing"),
        "{out}{err}"
    );
    cluster.restart_signer(1);
    cluster.signers[0].kill();
    cluster.restart_signer(0);
    cluster.until_live(&[0, 1, 2]).await;
    // The list is written down by an orchestrator, a moment after it has heard of it.
    let list = eventually("the list shows both", async || {
        let (_, list, _) = cluster.node(&["list"]);
        let shown = list.contains(&format!("signer-1 signs nothing for the vault {vault}"))
            && list.contains("signer-2 signs nothing: its operator has frozen it");
        shown.then_some(list)
    })
    .await;
    assert!(
        list.lines()
            .any(|line| line.trim_start().starts_with("frozen")),
        "{list}"
    );
    for shown in [
        cluster.run(&["show", "--name", "treasury"]),
        cluster.run(&["list"]),
    ] {
        assert!(
            shown.contains("CANNOT SIGN NOW: 1 of 3 holders can, 2 are needed"),
            "{shown}"
        );
    }
    let uuid = cluster.api.create(message(2)).await;
    let outcome = cluster.api.execute(&uuid).await;
    let said = outcome["error"]["message"].as_str().unwrap_or_default();
    assert!(
        said.contains("frozen by their operators (covault node thaw): signer-"),
        "{said}"
    );
    assert_eq!(outcome["signatures"], Value::Null);

    // What waits is signed once it is thawed.
    let uuid = cluster.api.create(message(3)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (done, out, err) = operator(&cluster, 0, &["thaw"]);
    assert!(
        done && err.contains("was not frozen as a whole") && out.contains(&vault),
        "{out}{err}"
    );
    let (done, out, err) = operator(&cluster, 0, &["thaw", "--vault", &vault]);
    assert!(done && out.contains("nothing is frozen"), "{out}{err}");
    let outcome = cluster.api.execute(&uuid).await;
    assert_eq!(outcome["error"], Value::Null, "{outcome}");
    let (done, ..) = operator(&cluster, 1, &["thaw"]);
    assert!(done);
    eventually("all can sign again", async || {
        let shown = cluster.run(&["show", "--name", "treasury"]);
        shown.contains("can sign: 3 of 3 holders can").then_some(())
    })
    .await;
}
