//! Keys that a node was made to make, and that nobody uses.

use std::{fs, path::Path};

use serde_json::json;

use super::support::*;

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

#[tokio::test]
async fn unused_keys__should_be_cleared_by_the_operator_alone() {
    let mut cluster = TestCluster::start(8_000).await;
    cluster.configure_signers("unused_keys", "4");
    cluster.until_live(&[0, 1, 2]).await;
    let used = cluster.create_vault("treasury");
    let unused = cluster.create_vault("invented");
    let create = |cluster: &TestCluster, name: &str| {
        cluster.try_vault(name, &cluster.keys.join(","), &AUTOMATIC)
    };
    let (done, _, err) = create(&cluster, "one too many");
    assert!(!done && err.contains("covault node clear-unused"), "{err}");
    let solana = cluster.api.wallet(&used, "NETWORK_TYPE_SOLANA").await;
    let message = json!({"solanaMessage": {"from": solana, "content": base64("hello")}});
    cluster.api.sign(message.clone()).await;
    cluster.until_live(&[0, 1, 2]).await;

    let clear = |cluster: &TestCluster, index: usize, words: &[&str]| {
        let config = format!("signer-{}.toml", index + 1);
        let mut command = covault();
        command.args(["node", "clear-unused", "--config"]);
        command.arg(cluster.folder.path().join(config)).args(words);
        outcome_of(&mut command)
    };
    let (done, _, err) = clear(&cluster, 0, &[]);
    assert!(!done && err.contains("in use"), "it runs: {err}");
    for index in 0..3 {
        assert_eq!(cluster.signers[index].terminate(), Some(0));
        let (shares, cleared) = ["shares", "cleared"]
            .map(|name| cluster.signer_folder(index).join(name))
            .into();
        // It says what there is, and touches nothing.
        for words in [
            &[][..],
            &["--vault", &unused],
            &["--older-than", "30", "--yes"],
        ] {
            let (done, out, err) = clear(&cluster, index, words);
            assert!(done, "{err}");
            let of = |vault: &str| {
                let from = out.find(vault).unwrap();
                let lines = out[from..].lines().skip(1);
                lines.take(2).collect::<Vec<_>>().join("\n")
            };
            assert_eq!(of(&unused).matches("never signed").count(), 2, "{out}");
            assert_eq!(of(&unused).matches("made ").count(), 2, "{out}");
            let would = of(&unused).matches("would be cleared").count();
            assert_eq!(would, if words.len() == 2 { 2 } else { 0 }, "{out}");
            assert_eq!((count(&shares), count(&cleared)), (4, 0), "{out}");
        }
        let words = ["--vault", &unused, "--older-than", "30", "--yes"];
        let (done, out, err) = clear(&cluster, index, &words);
        assert!(done && out.contains("2 keys cleared"), "{out}\n{err}");
        assert_eq!((count(&shares), count(&cleared)), (2, 2));
        // Shares that have signed stay, no matter who names them.
        if index == 0 {
            let (done, out, err) = clear(&cluster, index, &["--vault", &used, "--yes"]);
            assert!(done, "{err}");
            let mut signed = out.lines().filter(|line| line.contains("last signed"));
            assert!(signed.all(|line| !line.contains("cleared")), "{out}");
        }
        cluster.restart_signer(index);
    }
    cluster.until_live(&[0, 1, 2]).await;
    cluster.api.sign(message).await;
    let (done, out, err) = create(&cluster, "one more");
    assert!(done, "{out}\n{err}");
}
