//! What a client gets when it asks with another's wallet; platform/ has all other errors.

use serde_json::{Value, json};

use super::support::*;

/// Every create kind of the schema is known: an ordinary request of another's wallet is refused for
/// its wallet, and for nothing else.
#[tokio::test]
async fn every_kind__should_be_taken_from_wallets_of_ones_own_only() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(&folder.path().join("dev"), &[]).await;
    let vectors = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let mut refused = std::collections::BTreeSet::new();
    for name in [
        "evm", "bitcoin", "tron", "aptos", "sui", "ton", "stellar", "solana", "sonic", "raw",
    ] {
        let text = std::fs::read_to_string(vectors.join(format!("{name}.json"))).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        for case in file["vectors"].as_array().unwrap() {
            let kind = case["kind"].as_str().unwrap();
            // Batches are another operation; kinds with a note in brackets are no kinds of the schema.
            let no_kind =
                kind == "addressDerivation" || kind.contains("Batch") || kind.contains('(');
            // The first case of each kind is an ordinary one.
            if no_kind || !refused.insert(kind.to_owned()) {
                continue;
            }
            let (status, answer) = dev
                .api
                .post("createSigningRequest", json!({kind: case["input"]}))
                .await;
            assert_eq!(status, 400, "{kind}: {answer}");
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(
                message.starts_with(&format!("{kind}.from: ")),
                "{kind}: {message}"
            );
        }
    }
    assert_eq!(refused.len(), 32, "only {refused:?}");
}
