//! A vault whose ECDSA key is made by cggmp24, from its primes to a signature.

use covault_core::testing::ConstantEntropy;
use serde_json::json;

use super::support::*;

/// Everybody knows them: for tests only.
const PRIMES: [&[u8]; 2] = [
    include_bytes!("../../mpc/tests/fixtures/cggmp24-primes-for-tests-only-1.json"),
    include_bytes!("../../mpc/tests/fixtures/cggmp24-primes-for-tests-only-2.json"),
];

/// `covault node primes` of a signer: standard output and standard error.
fn primes(cluster: &TestCluster, index: usize, count: &str) -> (String, String) {
    let name = format!("signer-{}.toml", index + 1);
    let mut command = covault();
    command.args(["node", "primes", "--count", count, "--config"]);
    let (done, out, err) = outcome_of(command.arg(cluster.folder.path().join(name)));
    assert!(done, "{err}");
    (out, err)
}

/// COVAULT_REAL_PRIMES makes the primes rather than taking known ones: minutes.
#[tokio::test]
async fn cggmp24_vault__should_sign_once_its_nodes_have_primes() {
    // On a busy machine this signs for a minute.
    let cluster = TestCluster::start_prepared(200_000, "raw_signing = true", |folder| {
        let path = folder.join("serve.toml");
        configure(&path, "serve", "execute_wait_ms = 220000", "");
    })
    .await;
    let signers = cluster.keys[..2].join(",");
    let create = [
        "create",
        "--name",
        "vaulted",
        "--threshold",
        "2",
        "--ecdsa-backend",
        "cggmp24",
        "--approvals",
        "automatic",
        "--signers",
        &signers,
    ];
    // Without primes there is no key; what is missing is said, and where.
    let (done, _, err) = cluster.vault(&create);
    assert!(!done, "{err}");
    assert!(err.contains("covault node primes"), "{err}");
    let list = cluster.run(&["list"]);
    let mut lines = list.lines();
    let failed = lines.find(|line| line.contains("cggmp24") && line.contains("failed: "));
    assert!(
        failed.is_some_and(|line| line.contains("vaulted")),
        "{list}"
    );

    let real = std::env::var_os("COVAULT_REAL_PRIMES").is_some();
    for (index, known) in PRIMES.iter().enumerate() {
        assert_eq!(primes(&cluster, index, "0").0, "0\n");
        if real {
            let (out, err) = primes(&cluster, index, "1");
            assert_eq!(out, "1\n");
            for made in 0..=4 {
                let line = format!("set 1 of 1: {made} of 4 safe primes found");
                assert!(err.contains(&line), "{err}");
            }
            eprintln!("{err}");
        } else {
            let ahead = cluster.files(index).primes().unwrap();
            let set = [&[1], known.trim_ascii()].concat();
            ahead.add(&set, &ConstantEntropy(7)).unwrap();
            assert_eq!(primes(&cluster, index, "0").0, "1\n");
        }
    }
    // The same name again goes on where it stood.
    let (done, out, err) = cluster.vault(&create);
    assert!(done, "{err}");
    let vault = out.trim();
    for index in 0..2 {
        assert_eq!(
            primes(&cluster, index, "0").0,
            "0\n",
            "a set serves one key"
        );
    }
    let evm = cluster.api.wallet(vault, "NETWORK_TYPE_EVM").await;
    let solana = cluster.api.wallet(vault, "NETWORK_TYPE_SOLANA").await;
    cluster.assert_signs(&evm, &solana, "by cggmp24").await;
    let send = json!({"broadcastTx": false, "evmSendNative": {"chainId": "1", "from": evm,
        "to": "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be", "value": "1", "nonce": "0",
        "gasFee": {"maxFee": "10", "maxPriorityFee": "1", "gasLimit": "21000"}}});
    let outcome = cluster.api.sign(send).await;
    assert!(first_signature(&outcome)["ecdsaSignature"].is_object());

    // What such shares cannot do is said, and what can be done instead.
    let (done, shown, err) = cluster.vault(&["refresh", "--name", "vaulted"]);
    assert!(
        done && err.contains("its cggmp24 shares stay as they are"),
        "{err}"
    );
    assert!(shown.contains("frost-ed25519  epoch 1"), "{shown}");
    let asked = ["refresh", "--name", "vaulted", "--scheme", "cggmp24"];
    let (done, _, err) = cluster.vault(&asked);
    assert!(!done && err.contains("cggmp24"), "{err}");
}
