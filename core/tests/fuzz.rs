//! The fuzz targets of `core/fuzz` in short: with what the golden vectors hold, whole, cut and
//! with single bytes changed, and with noise. `just fuzz-core` runs them for as long as one likes.

#![allow(non_snake_case, missing_docs)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../fuzz/src/lib.rs"]
mod targets;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::networks::Network;
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use serde_json::{Value, json};

/// Every text of the vectors of a network, and every base64 text as bytes.
fn samples(network: Network) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    fn collect(value: &Value, texts: &mut Vec<Vec<u8>>, bytes: &mut Vec<Vec<u8>>) {
        match value {
            Value::String(text) => {
                if let Ok(decoded) = STANDARD.decode(text) {
                    bytes.push(decoded);
                }
                texts.push(text.clone().into_bytes());
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, texts, bytes)),
            Value::Object(values) => values
                .values()
                .for_each(|value| collect(value, texts, bytes)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let path = format!(
        "{}/../tests/vectors/{}.json",
        env!("CARGO_MANIFEST_DIR"),
        network.key()
    );
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let (mut texts, mut bytes) = (Vec::new(), Vec::new());
    for list in ["vectors", "invalid"] {
        for case in file[list].as_array().unwrap() {
            collect(&case["input"], &mut texts, &mut bytes);
        }
    }
    assert!(!texts.is_empty());
    (texts, bytes)
}

/// Seeds for the fuzzer, where it asked for some.
fn keep(target: &str, samples: &[Vec<u8>]) {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one setting of this test; there is no configuration to read it from"
    )]
    let Ok(folder) = std::env::var("COVAULT_FUZZ_SEEDS") else {
        return;
    };
    let folder = std::path::Path::new(&folder).join(target);
    std::fs::create_dir_all(&folder).unwrap();
    for (number, sample) in samples.iter().enumerate() {
        std::fs::write(folder.join(number.to_string()), sample).unwrap();
    }
}

type Target = fn(&[u8]);
type BlockTarget = fn(&[u8]) -> usize;

fn feed(target: &str, samples: &[Vec<u8>], run: impl Fn(&[u8])) {
    keep(target, samples);
    samples.iter().for_each(|sample| run(sample));
    let harmed = (
        0..samples.len().max(1),
        any::<(usize, u8, bool)>(),
        any::<Vec<u8>>(),
    );
    let config = Config {
        cases: 400,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, rng)
        .run(&harmed, |(which, (place, change, cut), noise)| {
            run(&noise);
            if let Some(sample) = samples.get(which).filter(|sample| !sample.is_empty()) {
                let mut sample = sample.clone();
                let place = place % sample.len();
                sample[place] ^= change;
                if cut {
                    sample.truncate(place);
                }
                run(&sample);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn addresses__should_never_panic_and_have_one_canonical_form() {
    for network in Network::ALL {
        let (texts, _) = samples(network);
        feed(&format!("address_{}", network.key()), &texts, |data| {
            targets::address(network, data);
        });
    }
}

#[test]
fn custom_payloads__should_never_panic_and_have_fees_that_can_be_read() {
    let customs: [(Network, Target); 6] = [
        (Network::Evm, targets::evm_custom),
        (Network::Solana, targets::solana_custom),
        (Network::Stellar, targets::stellar_custom),
        (Network::Aptos, targets::aptos_custom),
        (Network::Sui, targets::sui_custom),
        (Network::Ton, targets::ton_custom),
    ];
    for (network, run) in customs {
        let (_, bytes) = samples(network);
        feed(&format!("custom_{}", network.key()), &bytes, run);
    }
}

/// A block with a transfer of the coin, and the word of a node about it: the transfer of a token.
fn block_samples() -> [(Network, Vec<u8>, BlockTarget); 2] {
    let topic = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";
    let word = |byte: u8| format!("{:0>64}", hex::encode([byte; 20]));
    let (token, amount) = (hex::encode([0xdd; 20]), format!("{:064x}", 5));
    let (own, parent, tx) = ([1; 32], [0; 32], [7; 32]);
    let hex0x = |bytes: &[u8]| format!("0x{}", hex::encode(bytes));
    let block = json!({"number": "0x7", "hash": hex0x(&own), "parentHash": hex0x(&parent), "timestamp": "0x9",
        "transactions": [{"hash": hex0x(&tx), "blockHash": hex0x(&own), "from": hex0x(&[2; 20]), "to": hex0x(&[3; 20]),
            "value": "0x5"}]});
    let logs = json!([{"address": format!("0x{token}"), "blockHash": hex0x(&own), "transactionHash": hex0x(&tx),
        "logIndex": "0x0", "topics": [format!("0x{topic}"), format!("0x{}", word(2)), format!("0x{}", word(3))],
        "data": format!("0x{amount}")}]);
    let evm = format!("{block}\n{logs}");
    let account = |byte: u8| format!("41{}", hex::encode([byte; 20]));
    let id = format!("{:016x}{}", 7, hex::encode([1; 24]));
    let value = json!({"owner_address": account(2), "to_address": account(3), "amount": 5});
    let block = json!({"blockID": id,
        "block_header": {"raw_data": {"number": 7, "parentHash": hex::encode(parent), "timestamp": 9_000}},
        "transactions": [{"txID": hex::encode(tx), "ret": [{"contractRet": "SUCCESS"}],
            "raw_data": {"contract": [{"type": "TransferContract", "parameter": {"value": value}}]}}]});
    let infos = json!([{"id": hex::encode(tx), "blockNumber": 7, "blockTimeStamp": 9_000, "fee": 3,
        "log": [{"address": token, "topics": [topic, word(2), word(3)], "data": amount}]}]);
    let tron = format!("{block}\n{infos}");
    [
        (Network::Evm, evm.into_bytes(), targets::evm_block),
        (Network::Tron, tron.into_bytes(), targets::tron_block),
    ]
}

#[test]
fn blocks__should_be_read_or_refused_whatever_a_node_says() {
    for ((network, sample, run), transfers) in block_samples().into_iter().zip([2, 3]) {
        assert_eq!(run(&sample), transfers, "{}", network.key());
        feed(&format!("block_{}", network.key()), &[sample], |data| {
            run(data);
        });
    }
}
