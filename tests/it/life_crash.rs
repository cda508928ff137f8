//! kill -9 of signer processes during a refresh or reshare: the vault signs all the time, the
//! reshare completes or is cancelled, and nothing is left of the old shares then.

use std::{fs, thread::JoinHandle, time::Duration};

use super::support::*;

/// The share files of a signer: curve, epoch, and whether it is pending.
fn files(cluster: &TestCluster, index: usize) -> Vec<(String, u32, bool)> {
    let folder = cluster.signer_folder(index).join("shares");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .filter_map(|file| {
            // VAULT.CURVE.EPOCH.KEY.age, or .pending; any other file is still being written.
            let name = file.unwrap().file_name().into_string().unwrap();
            let parts: Vec<&str> = name.split('.').collect();
            let [_, curve, epoch, _, state @ ("age" | "pending")] = parts[..] else {
                return None;
            };
            Some((curve.to_owned(), epoch.parse().unwrap(), state == "pending"))
        })
        .collect();
    files.sort();
    files
}

/// The epoch of a signer's share in use.
fn epoch(cluster: &TestCluster, index: usize, curve: &str) -> Option<u32> {
    let mut files = files(cluster, index).into_iter();
    files.find_map(|(of, epoch, pending)| (of == curve && !pending).then_some(epoch))
}

/// The epoch of a signer's newest share that waits for its activation.
fn prepared(cluster: &TestCluster, index: usize, curve: &str) -> Option<u32> {
    let files = files(cluster, index).into_iter();
    files
        .filter_map(|(of, epoch, pending)| (of == curve && pending).then_some(epoch))
        .max()
}

/// One share of each key, of these epochs; nothing older, nothing pending.
async fn until_only(cluster: &TestCluster, epochs: [u32; 2]) {
    let [secp256k1, ed25519] = epochs;
    let wanted = [
        ("ed25519".to_owned(), ed25519, false),
        ("secp256k1".to_owned(), secp256k1, false),
    ];
    eventually("the old shares are gone", async || {
        let clean = |index| files(cluster, index) == wanted;
        (0..3).all(clean).then_some(())
    })
    .await;
}

/// A command that an operator waits for in the meantime.
fn start(cluster: &TestCluster, arguments: &[&str]) -> JoinHandle<(bool, String, String)> {
    let mut command = cluster.vault_command(arguments);
    std::thread::spawn(move || outcome_of(&mut command))
}

/// Longer than a node needs to report what it has stored, on a busy machine.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
enum RestartTiming {
    /// The orchestrator activates the new shares while the signer is offline.
    After,
    /// The signer is back before that.
    Before,
    /// The orchestrator is killed, too.
    WithOrchestrator,
}

/// A vault, and a wallet on each curve.
struct WalletFixture {
    vault: String,
    evm: String,
    solana: String,
}

impl WalletFixture {
    async fn signs(&self, cluster: &TestCluster, what: &str) {
        cluster.assert_signs(&self.evm, &self.solana, what).await;
    }
}

#[tokio::test]
async fn killed_signer__should_stop_neither_the_vault_nor_its_new_shares() {
    let mut cluster = TestCluster::start(60_000).await;
    // The threshold goes up, and down again.
    for (setting, value) in [
        ("least_threshold", "2"),
        ("most_threshold", "3"),
        ("least_spare", "0"),
    ] {
        cluster.configure_signers(setting, value);
    }
    cluster.until_live(&[0, 1, 2]).await;
    let vault = cluster.create_vault("treasury");
    let fixture = WalletFixture {
        evm: cluster.api.wallet(&vault, "NETWORK_TYPE_EVM").await,
        solana: cluster.api.wallet(&vault, "NETWORK_TYPE_SOLANA").await,
        vault,
    };
    dies_between_prepare_and_activate(&mut cluster, &fixture).await;
    dies_whenever_it_likes(&mut cluster, &fixture).await;
    does_not_come_back(&mut cluster, &fixture).await;
}

async fn dies_between_prepare_and_activate(cluster: &mut TestCluster, fixture: &WalletFixture) {
    let vault = &*fixture.vault;
    let all = cluster.keys.join(",");
    let reshare = |threshold: &'static str| {
        let set = ["--threshold", threshold, "--signers", &all];
        [&["reshare", "--vault", vault][..], &set].concat()
    };
    let steps = [
        (0, RestartTiming::After, vec!["refresh", "--vault", vault]),
        (1, RestartTiming::Before, reshare("3")),
        (2, RestartTiming::WithOrchestrator, reshare("2")),
    ];
    for (victim, back, command) in steps {
        let what = format!("{back:?}");
        let (old, new, waiting) = freeze_when_all_have_prepared(cluster, &command).await;
        let new_ed25519 = epochs(cluster)[1];
        // Its message leaves once the share is on its disk. Without that message the reshare would not complete.
        tokio::time::sleep(ON_ITS_WAY).await;
        cluster.signers[victim].kill();
        assert_eq!(epoch(cluster, victim, "secp256k1"), Some(old), "{what}");
        match back {
            RestartTiming::After => {
                cluster.serve.thaw();
                // Two of three are enough, with the new shares.
                eventually("the new shares are in use", async || {
                    let others = (0..3).filter(|index| *index != victim);
                    let mut epochs = others.map(|index| epoch(cluster, index, "secp256k1"));
                    epochs.all(|epoch| epoch == Some(new)).then_some(())
                })
                .await;
                fixture.signs(cluster, &what).await;
                assert!(!waiting.is_finished(), "a node does not know of it yet");
                cluster.restart_signer(victim);
            }
            RestartTiming::Before => {
                cluster.restart_signer(victim);
                cluster.serve.thaw();
            }
            RestartTiming::WithOrchestrator => {
                cluster.serve.kill();
                cluster.restart_signer(victim);
                cluster.kill_and_restart_serve().await;
            }
        }
        let (done, out, err) = waiting.join().unwrap();
        assert!(done, "{what}: {out}\n{err}");
        // No matter which process was killed: the prepared shares are in use.
        until_only(cluster, [new, new_ed25519]).await;
        fixture.signs(cluster, &what).await;
    }
    // With the signer that was killed last, and without another one.
    cluster.signers[0].kill();
    fixture.signs(cluster, "with the last").await;
    cluster.restart_signer(0);
    cluster.until_live(&[0, 1, 2]).await;
}

/// Starts a command, and freezes the orchestrator when all signers have prepared their new share of the slower key
/// and none has activated it. Returns the epochs before and after, and the command. On a busy machine the
/// orchestrator may be frozen too early or too late: then the command ends, and is given again.
async fn freeze_when_all_have_prepared(
    cluster: &mut TestCluster,
    command: &[&str],
) -> (u32, u32, JoinHandle<(bool, String, String)>) {
    for _ in 0..5 {
        // Runs that were not permitted use up epochs, too.
        let [old, old_ed25519] = epochs(cluster);
        let waiting = start(cluster, command);
        // The Ed25519 key is done at once, the other takes a second at least.
        eventually("the first key has its new shares", async || {
            cluster.permit_asked();
            let done = |index| epoch(cluster, index, "ed25519") > Some(old_ed25519);
            (0..3).all(done).then_some(())
        })
        .await;
        cluster.serve.freeze();
        for _ in 0..200 {
            let newest = |index| prepared(cluster, index, "secp256k1");
            if let Some(new) = newest(0).filter(|new| *new > old)
                && (1..3).all(|index| newest(index) == Some(new))
            {
                return (old, new, waiting);
            }
            if (0..3).any(|index| epoch(cluster, index, "secp256k1") > Some(old)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        cluster.serve.thaw();
        let done = eventually("the command ends", async || {
            cluster.permit_asked();
            waiting.is_finished().then_some(())
        });
        done.await;
        let (done, out, err) = waiting.join().unwrap();
        assert!(done, "{out}\n{err}");
    }
    panic!("the orchestrator is never frozen in time");
}

/// How many moments are tried; COVAULT_CRASH_ROUNDS can raise it.
fn rounds() -> u64 {
    std::env::var("COVAULT_CRASH_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap())
}

/// In the middle; with more rounds, from "not heard of it" to "activated".
async fn dies_whenever_it_likes(cluster: &mut TestCluster, fixture: &WalletFixture) {
    for round in 0..rounds() {
        let victim = usize::try_from(round % 3).unwrap();
        let waiting = start(cluster, &["refresh", "--vault", &fixture.vault]);
        let moment = (811 + 1_319 * round) % 3_000;
        tokio::time::sleep(Duration::from_millis(moment)).await;
        cluster.signers[victim].kill();
        fixture.signs(cluster, "while it is away").await;
        cluster.restart_signer(victim);
        let (done, out, err) = waiting.join().unwrap();
        assert!(done, "killed after {moment} ms: {out}\n{err}");
        until_only(cluster, epochs(cluster)).await;
    }
}

/// Cancels a reshare that has not completed.
async fn does_not_come_back(cluster: &mut TestCluster, fixture: &WalletFixture) {
    let before = epochs(cluster);
    let waiting = start(cluster, &["refresh", "--vault", &fixture.vault]);
    eventually("it has begun", async || {
        let shown = cluster.run(&["show", "--vault", &fixture.vault]);
        shown.contains("in progress: reshare").then_some(())
    })
    .await;
    cluster.signers[2].kill();
    // For the key whose new shares are already in use it is too late, and the error says so.
    let (done, _, err) = cluster.vault(&["reshare", "--vault", &fixture.vault, "--cancel"]);
    assert!(
        done || err.contains("it is too late for the frost"),
        "{err}"
    );
    fixture.signs(cluster, "with the others").await;
    cluster.restart_signer(2);
    let (done, _, err) = waiting.join().unwrap();
    assert!(!done && err.contains("cancelled"), "{err}");
    cluster.until_live(&[0, 1, 2]).await;
    assert_eq!(epochs(cluster)[0], before[0]);
    cluster.signers[0].kill();
    fixture.signs(cluster, "with the one that was away").await;
    // The next one leaves nothing of what was prepared for this one.
    cluster.restart_signer(0);
    cluster.run(&["refresh", "--vault", &fixture.vault]);
    until_only(cluster, epochs(cluster)).await;
    assert!(epochs(cluster)[0] > before[0]);
}

/// The epochs of the shares in use.
fn epochs(cluster: &TestCluster) -> [u32; 2] {
    ["secp256k1", "ed25519"].map(|curve| epoch(cluster, 1, curve).unwrap())
}
