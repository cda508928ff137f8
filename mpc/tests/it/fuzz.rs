//! The fuzz targets in short: the same entry points, fed with what the honest say, changed at random,
//! and with noise. `just fuzz` runs them for as long as one likes, guided by coverage.
//!
//! `COVAULT_FUZZ_INPUTS` says how many inputs each target gets.

use covault_core::{
    approval::OrderApprovals,
    attest::{AttestOrder, AttestedAddress},
    derive::KeyPath,
    ids::{RequestId, SessionId, VaultId},
    networks::{ChainData, DynNetworkRules, Network, Payload, Queries, evm, solana},
    order::{
        BackupOrder, Generation, KeygenOrder, NodeId, ReshareOrder, ReshareProof, SigningOrder,
    },
    schema::{json, wire},
    scheme::Scheme,
};
use covault_mpc::fuzz::{self, Finding, FuzzInput};
use rand::{Rng as _, RngExt as _, SeedableRng as _, rngs::StdRng};
use serde::Serialize;
use serde_json::{Value, json};

/// Changes an input as a fuzzer would.
fn mutate(input: &mut Vec<u8>, dice: &mut StdRng) {
    for _ in 0..dice.random_range(1..4) {
        let at = dice.random_range(0..input.len().max(1));
        match dice.random_range(0..6) {
            0 => input.truncate(at),
            1 => input.extend_from_slice(&[0xff; 9]),
            2 if at < input.len() => {
                input.remove(at);
            }
            3 => input.insert(at.min(input.len()), dice.random()),
            // Lengths and tags like to be at the extremes.
            4 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff][dice.random_range(0..5)],
            _ if at < input.len() => input[at] ^= 1 << dice.random_range(0..8),
            _ => {}
        }
    }
}

fn inputs(default: u32) -> u32 {
    std::env::var("COVAULT_FUZZ_INPUTS").map_or(default, |text| text.parse().unwrap())
}

/// Feeds a target: samples themselves, then each changed in many ways, then noise. Runs of a slow
/// target go to their end with an honest message, so only one of them is.
fn feed(count: u32, samples: &[FuzzInput], target: impl Fn(&[u8]) -> Result<(), Finding>) {
    let mut dice = StdRng::seed_from_u64(3);
    let slow = count < 100;
    for sample in samples.iter().take(if slow { 1 } else { samples.len() }) {
        target(sample).unwrap();
    }
    for number in 0..count {
        let mut input = if samples.is_empty() || number % 4 == 3 {
            let mut noise = vec![0; dice.random_range(0..400)];
            dice.fill_bytes(&mut noise);
            noise
        } else {
            samples[dice.random_range(0..samples.len())].clone()
        };
        mutate(&mut input, &mut dice);
        if let Err(finding) = target(&input) {
            panic!("{finding}: {}", hex::encode(input));
        }
    }
}

/// Writes the inputs to begin with where `COVAULT_FUZZ_SEEDS` says, for the fuzzer.
fn keep(target: &str, inputs: &[Vec<u8>]) {
    let Some(folder) = std::env::var_os("COVAULT_FUZZ_SEEDS") else {
        return;
    };
    let folder = std::path::Path::new(&folder).join(target);
    std::fs::create_dir_all(&folder).unwrap();
    for (number, input) in inputs.iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number}")), input).unwrap();
    }
}

/// What the fuzzer found.
#[test]
fn fuzz__should_find_nothing_where_it_once_did() {
    // The proof of nobody for a new generation that nobody holds.
    let nobody = "05100101f5010101010101010101010101011002020202050000000000000000000000000000000000000000\
                  00000000000000000000000000000000000000000505000000000000040404040101";
    fuzz::messages(&hex::decode(nobody).unwrap()).unwrap();
    // Commitments that are good and are not those that the peer signs with.
    let told = "e74500b169f0dabb80c635fe39ffffa2a1b711927a7a0b773682e00f8d66303af72c2a7fba1dbf706d5b5d2c\
                931ef06a9f553ddcdfd2046c6fadf6272e598a98d60934070eff9b2ec335d2ec5bdf908fc39aad33d8887f97\
                e74fd56fb3d996fa308f77ba37d84d9d20fbf5febda6db4d20bad8f5febda6dbfc060f44820e455c29f297aa\
                2018b60a";
    fuzz::preprocess(&hex::decode(told).unwrap()).unwrap();
}

#[test]
fn fuzz__should_find_nothing_in_envelopes() {
    // Version, kind, no seal, and zeros; once with all kinds.
    let samples: Vec<Vec<u8>> = (0..8)
        .map(|kind| [&[0, 1, kind, kind & 1][..], &[0; 200]].concat())
        .collect();
    keep("envelope", &samples);
    feed(inputs(5_000), &samples, fuzz::envelope);
}

/// Samples that every release can read (`tests/wire`).
fn sample(name: &str) -> Vec<u8> {
    let path = format!("{}/../tests/wire/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    hex::decode(std::fs::read_to_string(path).unwrap().trim()).unwrap()
}

/// What a node of the network might have answered.
fn chain_data(chain: &dyn DynNetworkRules, payload: &Payload) -> ChainData {
    match chain.queries(payload) {
        Queries::Nothing => ChainData::Nothing,
        Queries::Evm(queries) => ChainData::Evm(evm::ChainData {
            nonce: queries.nonce.then_some(7),
            eip1559: true,
            fees: queries.fees.map(|_| evm::Fees {
                estimate_gas: 21_000,
                base_fee: 10,
                max_priority_fee: 1,
            }),
        }),
        Queries::Solana(_) => ChainData::Solana(solana::ChainData {
            recent_blockhash: "B6SMJHxrVJ3t3MXbarfPBmeBKs2k8EtpjZEo2uByrReR".to_owned(),
            token: None,
            compute: None,
        }),
        other => panic!("nothing is known about {other:?}"),
    }
}

/// Orders for what the golden vectors of a network ask, of wallets that are their vaults' root keys.
fn vectors(network: Network, file: &str) -> Vec<SigningOrder> {
    let path = format!(
        "{}/../tests/vectors/{file}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let chain = network.rules();
    let mut orders = Vec::new();
    for case in file["vectors"].as_array().unwrap() {
        let kind = case["kind"].as_str().unwrap().split('(').next().unwrap();
        let request = json!({ kind: case["input"] }).to_string();
        let request = json::decode::<wire::CreateSigningRequestRequest>(request.as_bytes());
        let Some(Ok(payload)) = request
            .ok()
            .and_then(|request| request.r#type)
            .map(|kind| Payload::parse(&kind))
        else {
            continue;
        };
        let public_key = hex::decode(case["key"]["publicKey"].as_str().unwrap()).unwrap();
        let chain_data = chain_data(chain, &payload);
        let Ok(built) = chain.build(&payload, &chain_data, &public_key) else {
            continue;
        };
        orders.push(SigningOrder {
            request: RequestId::from_bytes([1; 16]),
            vault: VaultId::from_bytes([2; 16]),
            epoch: 0,
            network,
            root_public_key: public_key.clone(),
            path: KeyPath::of_wallet(network, 0).unwrap(),
            address: chain.address(&public_key).unwrap(),
            public_key,
            payload: payload.encode(),
            chain_data,
            unsigned: built.bytes,
            inputs: built.signing,
            recipient_indices: Vec::new(),
            approvals: OrderApprovals::default(),
            issued_at_ms: 1,
            expires_at_ms: 2,
        });
    }
    assert!(orders.len() > 10, "{}", orders.len());
    orders
}

fn orders() -> Vec<SigningOrder> {
    [(Network::Evm, "evm"), (Network::Solana, "solana")]
        .into_iter()
        .flat_map(|(network, file)| vectors(network, file))
        .collect()
}

#[test]
fn fuzz__should_find_nothing_in_orders_replies_announcements_and_news() {
    let none: Vec<[u8; 32]> = Vec::new();
    let body = |which: u8, bytes: Vec<u8>| [vec![which], bytes].concat();
    fn bytes<T: Serialize>(fields: T) -> Vec<u8> {
        bcs::to_bytes(&fields).unwrap()
    }
    let (vault, session) = (VaultId::from_bytes([1; 16]), SessionId::from_bytes([2; 16]));
    let nodes = vec![NodeId([3; 32]), NodeId([4; 32])];
    let generation = |epoch| Generation {
        epoch,
        threshold: 2,
        holders: nodes.clone(),
    };
    let keygen = KeygenOrder {
        vault,
        session,
        scheme: Scheme::Dkls23,
        threshold: 2,
        signers: nodes.clone(),
        issued_at_ms: 1,
        expires_at_ms: 2,
    };
    let reshare = ReshareOrder {
        vault,
        session,
        scheme: Scheme::FrostEd25519,
        root_public_key: vec![5; 32],
        old: generation(0),
        dealers: nodes.clone(),
        new: generation(1),
        issued_at_ms: 1,
        expires_at_ms: 2,
    };
    let proof = ReshareProof(nodes.iter().map(|node| (*node, vec![6; 64])).collect());
    let backup = BackupOrder {
        vault,
        session,
        root_public_key: vec![5; 32],
        epoch: 1,
        holders: nodes.clone(),
        recipients: vec!["age1recipient".to_owned()],
        issued_at_ms: 1,
        expires_at_ms: 2,
    };
    let attest = AttestOrder {
        session,
        vault,
        epoch: 1,
        root_public_key: vec![5; 32],
        threshold: 2,
        holders: nodes.clone(),
        confirmed: vec![vec![9; 64]; nodes.len()],
        addresses: vec![AttestedAddress {
            path: KeyPath::new(vec![501, 7]).unwrap(),
            network: Network::Solana,
            address: "11111111111111111111111111111111".to_owned(),
            reference: "order 5".to_owned(),
        }],
    };
    let mut samples = vec![
        body(1, bytes((&keygen, 3_u64))),
        body(2, bytes((3_u8, &none, &none, "a reason"))),
        body(2, [&[0, 1, 1][..], &[7; 64]].concat()),
        body(2, bytes((4_u8, vec![8_u8; 64]))),
        body(3, sample("announcement-v1")),
        body(4, bytes((&reshare, 3_u64))),
        body(5, bytes((&reshare, proof, &none, 3_u64))),
        body(6, bytes((&backup, 3_u64))),
        body(7, bytes((&attest, 3_u64))),
        body(8, sample("nonce-news-v1-made")),
        body(8, sample("nonce-news-v1-ready")),
        body(8, sample("nonce-news-v1-ask")),
        body(0, vec![0; 600]),
    ];
    for order in orders().into_iter().step_by(7) {
        let named = vec![vec![1_u64], vec![2]];
        samples.push(body(
            0,
            bytes((order, session, &nodes, named, 9_u64, 3_u64)),
        ));
    }
    keep("messages", &samples);
    feed(inputs(20_000), &samples, fuzz::messages);
}

#[test]
fn fuzz__should_find_nothing_in_what_orders_show() {
    let samples: Vec<FuzzInput> = orders()
        .into_iter()
        .map(|order| {
            let SigningOrder {
                network,
                public_key,
                payload,
                chain_data,
                unsigned,
                inputs,
                ..
            } = order;
            let shown = (network, public_key, payload, chain_data, unsigned, inputs);
            bcs::to_bytes(&shown).unwrap()
        })
        .collect();
    keep("orders", &samples);
    feed(inputs(3_000), &samples, fuzz::orders);
}

#[test]
fn fuzz__should_find_nothing_in_approvals() {
    let samples = fuzz::approval_samples().unwrap();
    keep("approval", &samples);
    feed(inputs(10_000), &samples, fuzz::approval);
}

#[test]
fn fuzz__should_find_nothing_in_files() {
    let samples = fuzz::stored_samples().unwrap();
    keep("stored", &samples);
    feed(inputs(2_000), &samples, fuzz::stored);
}

#[test]
fn fuzz__should_find_nothing_in_policies() {
    let text = r#"
        version = 2
        networks = ["evm:1", "solana"]
        kinds = ["evmSendNative", "rawMessage"]
        raw_signing = true
        messages = false
        typed_data = ["evm:5"]
        custom_calls = ["solana"]
        unseen_recipients = ["evm:5"]
        account_changes = ["stellarSetOptions"]
        only_listed_assets = true
        [recipients]
        "evm:1" = ["0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be"]
        solana = ["FBz899oE5PeELESH9PFrMfEPLNYUdi7rj6bMJ7Ccviqs"]
        [most_fee]
        "evm" = "1000000000000000"
        [[limits]]
        asset = "evm:1"
        per_request = "1000000000000000000"
        [[limits]]
        asset = "solana"
        per_day = "10000000"
        [each_vault]
        only_listed_recipients = true
        [vaults."02020202-0202-0202-0202-020202020202"]
        messages = false
        [wallets."0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be"]
        kinds = ["evmSendNative"]
    "#;
    let mut samples = vec![text.as_bytes().to_vec()];
    samples.extend(text.lines().map(|line| line.trim().as_bytes().to_vec()));
    assert!(covault_mpc::policy::Policy::parse(text).is_ok());
    keep("policy", &samples);
    feed(inputs(5_000), &samples, fuzz::policy);
}

#[test]
fn fuzz__should_find_nothing_in_frost_key_generation() {
    let scheme = Scheme::FrostEd25519;
    let samples = fuzz::keygen_samples(scheme).unwrap();
    assert_eq!(samples.len(), 4);
    keep("frost_keygen", &samples);
    feed(inputs(400), &samples, |data| fuzz::keygen(scheme, data));
    let samples = fuzz::sealed_keygen_samples(scheme).unwrap();
    keep("sealed_keygen", &samples);
    feed(inputs(200), &samples, |data| {
        fuzz::sealed_keygen(scheme, data)
    });
}

#[test]
fn fuzz__should_find_nothing_in_frost_signing() {
    let scheme = Scheme::FrostEd25519;
    let samples = fuzz::sign_samples(scheme).unwrap();
    assert_eq!(samples.len(), 2);
    keep("frost_sign", &samples);
    feed(inputs(500), &samples, |data| fuzz::sign(scheme, data));
    let samples = fuzz::ahead_samples().unwrap();
    assert_eq!(samples.len(), 2);
    keep("frost_preprocess", &samples);
    feed(inputs(500), &samples, fuzz::preprocess);
}

#[test]
fn fuzz__should_find_nothing_in_resharing_of_frost() {
    let scheme = Scheme::FrostEd25519;
    let samples = fuzz::reshare_samples(scheme).unwrap();
    assert_eq!(samples.len(), 12);
    keep("frost_reshare", &samples);
    feed(inputs(400), &samples, |data| fuzz::reshare(scheme, data));
}

#[test]
fn fuzz__should_find_nothing_in_dkls23_key_generation() {
    let scheme = Scheme::Dkls23;
    let samples = fuzz::keygen_samples(scheme).unwrap();
    assert_eq!(samples.len(), 4);
    keep("dkls23_keygen", &samples);
    feed(inputs(3), &samples, |data| fuzz::keygen(scheme, data));
}

#[test]
fn fuzz__should_find_nothing_in_dkls23_signing() {
    let scheme = Scheme::Dkls23;
    let samples = fuzz::sign_samples(scheme).unwrap();
    assert_eq!(samples.len(), 3);
    keep("dkls23_sign", &samples);
    feed(inputs(60), &samples, |data| fuzz::sign(scheme, data));
}

#[test]
fn fuzz__should_find_nothing_in_resharing_of_dkls23() {
    let scheme = Scheme::Dkls23;
    let samples = fuzz::reshare_samples(scheme).unwrap();
    assert_eq!(samples.len(), 16);
    keep("dkls23_reshare", &samples);
    feed(inputs(4), &samples, |data| fuzz::reshare(scheme, data));
}

#[cfg(feature = "cggmp24")]
#[test]
fn fuzz__should_find_nothing_in_cggmp24() {
    let (keygen, sign) = fuzz::cggmp24_samples().unwrap();
    // Rounds 1 to 5 of the key, run and decoded; all of signing.
    assert_eq!((keygen.len(), sign.len()), (10, 6));
    keep("cggmp24_keygen", &keygen);
    keep("cggmp24_sign", &sign);
    feed(inputs(300), &keygen, fuzz::cggmp24_keygen);
    feed(inputs(200), &sign, fuzz::cggmp24_sign);
}
