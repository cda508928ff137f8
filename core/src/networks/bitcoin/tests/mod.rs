#![allow(non_snake_case)]

mod coin_control;
mod transactions;

use bitcoin::{
    Amount, Psbt, Transaction, WitnessProgram, WitnessVersion, consensus::deserialize, secp256k1,
};
use proptest::prelude::*;

use super::{super::*, *};
use crate::{
    fault::ExecuteCode,
    networks::{
        self, DynNetworkRules, Payload, PayloadKind, WireKind,
        bitcoin::batch,
        outflow::{ChainScope, ContentKind},
    },
    schema::wire,
};

const BITCOIN: &dyn DynNetworkRules = &Bitcoin;

/// From BIP-173 and BIP-350.
const P2WPKH: &str = "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4";
const P2TR: &str = "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0";
const P2PKH: &str = "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa";
const P2SH: &str = "3P14159f73E4gFr7JterCCQh9QjiTjiZrG";

fn secret() -> secp256k1::SecretKey {
    secp256k1::SecretKey::from_slice(&[7; 32]).unwrap()
}

fn public_key() -> Vec<u8> {
    let secp = secp256k1::Secp256k1::signing_only();
    secret().public_key(&secp).serialize().to_vec()
}

fn own() -> ScriptBuf {
    own_script(&key(&public_key()).unwrap())
}

fn from() -> String {
    BITCOIN.address(&public_key()).unwrap()
}

fn wire(to: &str, amount: &str, network_fee: u64) -> wire::BtcSendNative {
    wire::BtcSendNative {
        from: from(),
        to: to.into(),
        amount: amount.into(),
        network_fee,
        ..Default::default()
    }
}

fn send(to: &str, amount: u64, network_fee: u64) -> Payload {
    let wire = wire(to, &amount.to_string(), network_fee);
    Payload::parse(&WireKind::BtcSendNative(wire)).unwrap()
}

fn batch_wire(recipients: &[(&str, u64)]) -> wire::BtcBatchSendNative {
    wire::BtcBatchSendNative {
        from: from(),
        recipients: recipients
            .iter()
            .map(|(address, amount)| wire::BatchPaymentRecipient {
                address: (*address).into(),
                amount: amount.to_string(),
                notes: Some("rent".into()),
            })
            .collect(),
    }
}

/// A batch payment.
fn many(recipients: &[(&str, u64)], rate: u64) -> Payload {
    Payload::Bitcoin(batch(&batch_wire(recipients), rate).unwrap())
}

/// Output `n` of the list has the txid `nn..` and the vout n.
fn unspent(values: &[u64]) -> Vec<UnspentOutput> {
    (0..)
        .zip(values)
        .map(|(n, value)| UnspentOutput {
            txid: hex::encode([u8::try_from(n % 256).unwrap(); 32]),
            vout: n,
            value: *value,
        })
        .collect()
}

fn chain_data(values: &[u64]) -> networks::ChainData {
    networks::ChainData::Bitcoin(ChainData {
        outputs: unspent(values),
        ..Default::default()
    })
}

fn build(payload: &Payload, chain_data: &networks::ChainData) -> Result<Unsigned, Fault> {
    BITCOIN.build(payload, chain_data, &public_key())
}

fn sign(input: &SigningInput) -> Signature {
    let secp = secp256k1::Secp256k1::signing_only();
    let message = secp256k1::Message::from_digest_slice(&input.message).unwrap();
    let compact = secp.sign_ecdsa(&message, &secret()).serialize_compact();
    let (r, s) = compact.split_at(32);
    let (r, s): ([u8; 32], [u8; 32]) = (r.try_into().unwrap(), s.try_into().unwrap());
    let ecdsa = k256::ecdsa::Signature::from_scalars(r, s).unwrap();
    let is_own = |parity: &u8| {
        let id = k256::ecdsa::RecoveryId::new(*parity == 1, false);
        k256::ecdsa::VerifyingKey::recover_from_prehash(&input.message, &ecdsa, id)
            .is_ok_and(|key| key.to_sec1_point(true).as_bytes() == public_key())
    };
    let y_parity = [0, 1].into_iter().find(is_own).unwrap();
    Signature::Ecdsa { r, s, y_parity }
}

fn signatures(unsigned: &Unsigned) -> Vec<Signature> {
    unsigned.signing.iter().map(sign).collect()
}

/// Builds, signs and reads the transaction, and gives what it spends with it.
fn run(payload: &Payload, chain_data: &networks::ChainData) -> (Transaction, Psbt) {
    let unsigned = build(payload, chain_data).unwrap();
    let signed = BITCOIN
        .assemble(payload, &unsigned, &signatures(&unsigned), &public_key())
        .unwrap()
        .unwrap();
    let transaction: Transaction = deserialize(&hex::decode(&signed.transaction).unwrap()).unwrap();
    assert_eq!(transaction.compute_txid().to_string(), signed.tx_hash);
    (transaction, Psbt::deserialize(&unsigned.bytes).unwrap())
}

// ---- addresses and payloads -------------------------------------------------------------

#[test]
fn address__should_be_of_mainnet_with_a_right_checksum() {
    for (text, canonical) in [
        (P2WPKH, P2WPKH),
        ("BC1QW508D6QEJXTDG4Y5R3ZARVARY0C5XW7KV8F3T4", P2WPKH),
        (P2TR, P2TR),
        (P2PKH, P2PKH),
        (P2SH, P2SH),
        // Version 16 (BIP-350).
        ("BC1SW50QGDZ25J", "bc1sw50qgdz25j"),
    ] {
        assert_eq!(BITCOIN.parse_address(text).unwrap(), canonical);
    }
    use AddressError::{Form, Network, NoKey};
    let long = "1".repeat(100_000);
    for (text, error) in [
        ("", Form),
        ("bc1", Form),
        (long.as_str(), Form),
        (" bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4", Form),
        ("bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t5", Form),
        ("bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kV8F3T4", Form),
        ("1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNb", Form),
        ("é", Form),
        // Litecoin.
        ("ltc1qw508d6qejxtdg4y5r3zarvary0c5xw7kgmn4n9", Form),
        ("tb1qw508d6qejxtdg4y5r3zarvary0c5xw7kxpjzsx", Network),
        ("mipcBbFg9gMiCh81Kj8tqqdgoZub1ZJRfn", Network),
        // Version 1 with 40 bytes (BIP-350) and the two of P2A.
        (
            "bc1pw508d6qejxtdg4y5r3zarvary0c5xw7kw508d6qejxtdg4y5r3zarvary0c5xw7kt5nd6y",
            NoKey,
        ),
        ("bc1pfeessrawgf", NoKey),
    ] {
        assert_eq!(parse_address(text), Err(error), "{}", text.len());
    }
    // No point has this x.
    let program = WitnessProgram::new(WitnessVersion::V1, &[0xff; 32]).unwrap();
    let no_point = Address::from_witness_program(program, KnownHrp::Mainnet).to_string();
    assert_eq!(parse_address(&no_point), Err(NoKey));
}

#[test]
fn key__should_be_compressed_and_on_the_curve() {
    // From BIP-173.
    let generator =
        hex::decode("0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798").unwrap();
    assert_eq!(BITCOIN.address(&generator).unwrap(), P2WPKH);
    let uncompressed = {
        let secp = secp256k1::Secp256k1::signing_only();
        secret().public_key(&secp).serialize_uncompressed()
    };
    for key in [&[][..], &[2; 32], &[0xff; 33], &[5; 33], &uncompressed] {
        assert_eq!(BITCOIN.address(key).unwrap_err().class(), &Class::Bug);
    }
    assert!(BITCOIN.parse_token(P2WPKH).is_err());
}

#[test]
fn payload__should_name_the_field_that_is_wrong() {
    let own = from();
    for (wire, sentence) in [
        (wire("", "1000", 1), "to: is required"),
        (wire("bc1qxyz", "1000", 1), "to: must be a Bitcoin address"),
        (wire(P2WPKH, "", 1), "amount: is required"),
        (wire(P2WPKH, "1.5", 1), "amount: must be a whole number"),
        (wire(P2WPKH, "0", 1), "amount: must be more than 0"),
        (wire(P2WPKH, "293", 1), "amount: is dust"),
        (wire(P2TR, "329", 1), "amount: is dust"),
        (wire(P2SH, "539", 1), "amount: is dust"),
        (wire(P2PKH, "545", 1), "amount: is dust"),
        (
            wire(P2PKH, "2100000000000001", 1),
            "amount: exceeds the bitcoin supply",
        ),
        (wire(P2WPKH, "1000", 0), "networkFee: is required"),
        (wire(P2WPKH, "1000", 10_001), "networkFee: must be at most"),
        (
            wire(P2WPKH, "1000", u64::MAX),
            "networkFee: must be at most",
        ),
        (
            wire::BtcSendNative {
                from: String::new(),
                ..wire(P2WPKH, "1000", 1)
            },
            "from: is required",
        ),
        (
            wire::BtcSendNative {
                from: P2TR.into(),
                ..wire(P2WPKH, "1000", 1)
            },
            "from: is not the address of a wallet",
        ),
    ] {
        let fault = Payload::parse(&WireKind::BtcSendNative(wire)).unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
        let sentence = format!("btcSendNative.{sentence}");
        assert!(fault.message().starts_with(&sentence), "{fault}");
    }
    for (to, least) in [(P2WPKH, 294), (P2TR, 330), (P2SH, 540), (P2PKH, 546)] {
        send(to, least, 10_000);
    }
    // To oneself, in capitals: one canonical form.
    let payload = send(&own.to_uppercase(), 1000, 1);
    let WireKind::BtcSendNative(shown) = payload.to_wire() else {
        unreachable!()
    };
    assert_eq!((&shown.from, &shown.to), (&own, &own));
    assert_eq!(Payload::decode(&payload.encode()), Ok(payload));
}

#[test]
fn batch__should_be_checked_like_single_payments() {
    let all: Vec<(&str, u64)> = vec![(P2PKH, 1000); 255];
    let refused = |wire: &wire::BtcBatchSendNative, rate: u64, sentence: &str| {
        let fault = batch(wire, rate).unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
        assert!(fault.message().starts_with(sentence), "{fault}");
    };
    refused(&batch_wire(&[]), 1, "recipients: must be 1 to 254");
    refused(&batch_wire(&all), 1, "recipients: must be 1 to 254");
    refused(
        &batch_wire(&[(P2PKH, 1000), ("x", 1000)]),
        1,
        "recipients[1].address: must be",
    );
    refused(
        &batch_wire(&[(P2PKH, 1000), (P2PKH, 545)]),
        1,
        "recipients[1].amount: is dust",
    );
    let whole = Amount::MAX_MONEY.to_sat();
    refused(
        &batch_wire(&[(P2PKH, whole), (P2PKH, 1000)]),
        1,
        "recipients: total exceeds the bitcoin supply",
    );
    refused(&batch_wire(&all[..254]), 0, "networkFee: is required");
    assert_eq!(
        batch(&batch_wire(&all[..254]), 1)
            .unwrap()
            .payment()
            .outputs
            .len(),
        254
    );
}

#[test]
fn several_recipients__should_have_one_form_in_an_order() {
    for recipients in [&[(P2PKH, 1000)][..], &[(P2PKH, 1000), (P2TR, 2000)]] {
        let payload = many(recipients, 1);
        assert_eq!(payload.payload_kind(), PayloadKind::BtcSendNative);
        assert_eq!(Payload::decode(&payload.encode()), Ok(payload.clone()));
        let WireKind::BtcSendNative(shown) = payload.to_wire() else {
            unreachable!()
        };
        assert_eq!(shown.recipients.is_empty(), recipients.len() == 1);
        assert_eq!(shown.to.is_empty(), recipients.len() > 1);
    }
    let WireKind::BtcSendNative(several) = many(&[(P2PKH, 1000), (P2TR, 2000)], 1).to_wire() else {
        unreachable!()
    };
    let mut noted = several.clone();
    noted.recipients[1].notes = Some(String::new());
    for (wire, sentence) in [
        (
            wire::BtcSendNative {
                to: P2PKH.into(),
                ..several.clone()
            },
            "to: cannot be combined with recipients",
        ),
        (
            wire::BtcSendNative {
                amount: "1".into(),
                ..several
            },
            "amount: cannot be combined with recipients",
        ),
        (noted, "recipients[1].notes: must be left out"),
    ] {
        let fault = Payload::parse(&WireKind::BtcSendNative(wire)).unwrap_err();
        let sentence = format!("btcSendNative.{sentence}");
        assert!(fault.message().starts_with(&sentence), "{fault}");
    }
}

#[test]
fn outflow__should_be_all_recipients_and_no_change() {
    let payload = many(&[(P2PKH, 1000), (P2TR, 2000)], 1);
    for (payload, spends) in [
        (send(P2WPKH, 5000, 1), vec![(5000, P2WPKH)]),
        (payload, vec![(1000, P2PKH), (2000, P2TR)]),
    ] {
        let outflow = payload.outflow(Network::Bitcoin);
        assert_eq!(outflow.nature, ContentKind::Transfer);
        assert_eq!(outflow.place, ChainScope::network(Network::Bitcoin));
        let shown: Vec<_> = outflow
            .spends
            .iter()
            .map(|spend| {
                assert_eq!(spend.asset.to_string(), "bitcoin");
                (
                    spend.amount.to::<u64>(),
                    spend.recipient.as_deref().unwrap(),
                )
            })
            .collect();
        assert_eq!(shown, spends);
    }
}

// ---- facts ------------------------------------------------------------------------------

#[test]
fn needs__should_be_the_outputs_of_the_sender() {
    let queries = BITCOIN.queries(&send(P2PKH, 1000, 1));
    assert_eq!(
        queries,
        networks::Queries::Bitcoin(Queries {
            from: from(),
            inputs: vec![],
            fee_level: None,
        })
    );
    assert!(BITCOIN.is_sequenced(&queries));
    assert!(!BITCOIN.is_sequenced(&networks::Queries::Nothing));
}

#[test]
fn facts__should_come_back_from_their_bytes() {
    let chain_data = chain_data(&[1, u64::MAX]);
    let bytes = bcs::to_bytes(&chain_data).unwrap();
    assert_eq!(
        bcs::from_bytes::<networks::ChainData>(&bytes).unwrap(),
        chain_data
    );
    let queries = BITCOIN.queries(&send(P2PKH, 1000, 1));
    let bytes = bcs::to_bytes(&queries).unwrap();
    assert_eq!(
        bcs::from_bytes::<networks::Queries>(&bytes).unwrap(),
        queries
    );
}

fn taken(outputs: &[UnspentOutput]) -> BTreeSet<Resource> {
    outputs
        .iter()
        .map(|output| Resource::Object(format!("{}:{}", output.txid, output.vout)))
        .collect()
}

#[test]
fn settle__should_leave_out_what_is_taken_and_not_needed() {
    let payload = send(P2WPKH, 50_000, 1);
    let all = unspent(&[60_000, 70_000, 100_000, 10_000]);
    let allocate = |taken: &BTreeSet<Resource>| {
        let chain_data = networks::ChainData::Bitcoin(ChainData {
            outputs: all.clone(),
            ..Default::default()
        });
        BITCOIN.allocate(&payload, chain_data, taken).unwrap()
    };
    let only = |outputs: &[UnspentOutput]| {
        let outputs = outputs.to_vec();
        Allocation::ChainData(networks::ChainData::Bitcoin(ChainData {
            outputs,
            ..Default::default()
        }))
    };
    let chain_data = networks::ChainData::Bitcoin(ChainData {
        outputs: all.clone(),
        ..Default::default()
    });
    let candidate_inputs = BITCOIN.candidate_inputs(&chain_data).unwrap();
    assert_eq!(
        candidate_inputs.into_iter().collect::<BTreeSet<_>>(),
        taken(&all)
    );
    assert_eq!(allocate(&BTreeSet::new()), only(&all[2..3]));
    assert_eq!(allocate(&taken(&all[2..3])), only(&all[1..2]));
    assert_eq!(allocate(&taken(&all[1..3])), only(&all[..1]));
    // What is left does not pay; all together would.
    let Allocation::Wait(why) = allocate(&taken(&all[..3])) else {
        panic!()
    };
    assert!(why.ends_with("reserved by other requests of this wallet"));
    assert!(matches!(allocate(&taken(&all)), Allocation::Wait(_)));
    // In whatever case the node writes txids.
    let mut capitals = all.clone();
    capitals[2].txid = "0A".repeat(32);
    let held = BTreeSet::from([Resource::Object(format!("{}:2", "0a".repeat(32)))]);
    let chain_data = networks::ChainData::Bitcoin(ChainData {
        outputs: capitals,
        ..Default::default()
    });
    assert_eq!(
        BITCOIN.allocate(&payload, chain_data, &held).unwrap(),
        only(&all[1..2])
    );
}

#[test]
fn settle__should_give_facts_that_make_the_same_transaction() {
    let payload = send(P2WPKH, 50_000, 3);
    let whole = chain_data(&[20_000, 5000, 30_000, 20_000, 1]);
    let Allocation::ChainData(settled) = BITCOIN
        .allocate(&payload, whole.clone(), &BTreeSet::new())
        .unwrap()
    else {
        panic!()
    };
    assert_ne!(settled, whole);
    assert_eq!(build(&payload, &settled), build(&payload, &whole));
}

#[test]
fn settle__should_leave_it_to_build_to_refuse_what_nothing_can_pay() {
    let payload = send(P2WPKH, 50_000, 10);
    let poor = unspent(&[30_000, 20_000]);
    for held in [BTreeSet::new(), taken(&poor[..1])] {
        let chain_data = networks::ChainData::Bitcoin(ChainData {
            outputs: poor.clone(),
            ..Default::default()
        });
        let Allocation::ChainData(settled) = BITCOIN.allocate(&payload, chain_data, &held).unwrap()
        else {
            panic!()
        };
        let fault = build(&payload, &settled).unwrap_err();
        assert_eq!(fault.execute_code(), ExecuteCode::InsufficientFunds);
        // 42 + 2 * 272 + 124 weight units are 178 vB.
        assert_eq!(
            fault.message(),
            "btcSendNative.amount: exceeds the wallet's funds: it has 50000 spendable satoshi, and needs 51780 including the fee"
        );
    }
    let other = networks::ChainData::Solana(networks::solana::ChainData {
        recent_blockhash: String::new(),
        token: None,
        compute: None,
    });
    let fault = BITCOIN.allocate(&payload, other, &BTreeSet::new());
    assert_eq!(fault.unwrap_err().class(), &Class::Bug);
}

#[test]
fn build__should_refuse_what_cannot_be_paid() {
    let short = |payload: &Payload, values: &[u64], field: &str| {
        let fault = build(payload, &chain_data(values)).unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
        assert_eq!(fault.execute_code(), ExecuteCode::InsufficientFunds);
        let sentence = format!("btcSendNative.{field}: exceeds the wallet's funds: it has");
        assert!(fault.message().starts_with(&sentence), "{fault}");
    };
    short(&send(P2WPKH, 1000, 1), &[], "amount");
    // 110 vB without change.
    let payload = send(P2WPKH, 50_000, 2);
    short(&payload, &[50_219], "amount");
    assert!(build(&payload, &chain_data(&[50_220])).is_ok());
    let two = many(&[(P2PKH, 1000), (P2TR, 2000)], 1);
    short(&two, &[3000], "recipients");
    // Outputs that cost more than they bring do not help.
    short(
        &send(P2WPKH, 50_000, 1000),
        &[50_000, 60_000, 60_000],
        "amount",
    );
}

#[test]
fn build__should_take_as_many_inputs_as_signers_do_and_no_more() {
    // 300 outputs would pay for it, 252 do not.
    let payload = send(P2WPKH, 250_000, 1);
    let fault = build(&payload, &chain_data(&[1000; 300])).unwrap_err();
    assert!(
        fault
            .message()
            .starts_with("btcSendNative.amount: needs more than 252 outputs"),
        "{fault}"
    );
    assert_eq!(fault.execute_code(), ExecuteCode::Unspecified);
    // There is nothing to wait for.
    let settled = BITCOIN.allocate(&payload, chain_data(&[1000; 300]), &BTreeSet::new());
    assert!(matches!(settled, Ok(Allocation::ChainData(_))));

    // 252 inputs of 68 vB, and 42 vB for all else.
    let most = send(P2WPKH, 252 * 1000 - 252 * 68 - 42, 1);
    let (transaction, _) = run(&most, &chain_data(&[1000; 253]));
    assert_eq!(transaction.input.len(), 252);
    assert!(transaction.weight() < Transaction::MAX_STANDARD_WEIGHT);
    let too_many = send(P2WPKH, 252 * 1000 - 252 * 68 - 41, 1);
    assert!(build(&too_many, &chain_data(&[1000; 253])).is_err());
}

#[test]
fn build__should_refuse_facts_and_wallets_that_do_not_fit() {
    let payload = send(P2WPKH, 1000, 1);
    let class =
        |chain_data: &networks::ChainData| build(&payload, chain_data).unwrap_err().class().clone();
    let changed = |change: fn(&mut Vec<UnspentOutput>)| {
        let mut outputs = unspent(&[100_000, 200_000]);
        change(&mut outputs);
        networks::ChainData::Bitcoin(ChainData {
            outputs,
            ..Default::default()
        })
    };
    let other = networks::ChainData::Solana(networks::solana::ChainData {
        recent_blockhash: String::new(),
        token: None,
        compute: None,
    });
    assert_eq!(class(&networks::ChainData::Nothing), Class::Bug);
    assert_eq!(class(&other), Class::Bug);
    for change in [
        (|outputs| outputs[0].txid.clear()) as fn(&mut Vec<UnspentOutput>),
        |outputs| outputs[0].txid.push('0'),
        |outputs| outputs[0].txid = "g".repeat(64),
        |outputs| outputs.push(outputs[0].clone()),
        // The same output, said in another way.
        |outputs| {
            outputs[0].txid = "0a".repeat(32);
            let txid = "0A".repeat(32);
            outputs.push(UnspentOutput {
                txid,
                ..outputs[0].clone()
            });
        },
    ] {
        assert_eq!(class(&changed(change)), Class::Bug);
        let chain_data = changed(change);
        assert!(
            BITCOIN
                .allocate(&payload, chain_data, &BTreeSet::new())
                .is_err()
        );
    }
    for change in [
        (|outputs| outputs[0].value = u64::MAX) as fn(&mut Vec<UnspentOutput>),
        |outputs| outputs[0].value = Amount::MAX_MONEY.to_sat(),
    ] {
        let fault = build(&payload, &changed(change)).unwrap_err();
        assert!(
            fault
                .message()
                .starts_with("btcSendNative.from: holds more than the bitcoin supply according to the chain node: check the node"),
            "{fault}"
        );
    }
    let secp = secp256k1::Secp256k1::signing_only();
    let stranger = secp256k1::SecretKey::from_slice(&[8; 32]).unwrap();
    let stranger = stranger.public_key(&secp).serialize();
    let fault = BITCOIN
        .build(&payload, &chain_data(&[100_000]), &stranger)
        .unwrap_err();
    assert_eq!(
        fault.message(),
        "btcSendNative.from: is not the wallet's address"
    );
}

// ---- whatever comes ---------------------------------------------------------------------

fn recipient() -> impl Strategy<Value = String> {
    let program = |version, length| {
        prop::collection::vec(any::<u8>(), length).prop_map(move |bytes| {
            let program = WitnessProgram::new(version, &bytes).unwrap();
            Address::from_witness_program(program, KnownHrp::Mainnet)
        })
    };
    let base58 = |version: u8| {
        any::<[u8; 20]>().prop_map(move |hash| {
            let bytes = [&[version][..], &hash].concat();
            bitcoin::base58::encode_check(&bytes)
        })
    };
    prop_oneof![
        program(WitnessVersion::V0, 20..=20).prop_map(|address| address.to_string()),
        program(WitnessVersion::V0, 32..=32).prop_map(|address| address.to_string()),
        program(WitnessVersion::V2, 2..=40).prop_map(|address| address.to_string()),
        program(WitnessVersion::V16, 2..=40).prop_map(|address| address.to_string()),
        Just(P2TR.to_owned()),
        base58(0),
        base58(5),
    ]
}

proptest! {
    #[test]
    fn address__should_never_panic(text in "((bc1|BC1|tb1|1|3)[0-9a-zA-Z]{0,90})|.{0,100}") {
        let _ = BITCOIN.parse_address(&text);
    }

    #[test]
    fn key__should_never_panic(bytes: Vec<u8>) {
        let _ = BITCOIN.address(&bytes);
    }

    #[test]
    fn facts__should_never_panic(outputs in prop::collection::vec(("[0-9a-fA-F]{64}|.{0,70}", any::<u32>(), any::<u64>()), 0..5)) {
        let outputs = outputs
            .into_iter()
            .map(|(txid, vout, value)| UnspentOutput { txid, vout, value })
            .collect();
        let chain_data = networks::ChainData::Bitcoin(ChainData { outputs, ..Default::default() });
        let payload = send(P2WPKH, 1000, 10_000);
        let _ = build(&payload, &chain_data);
        let _ = BITCOIN.allocate(&payload, chain_data, &BTreeSet::new());
    }

    #[test]
    fn address__should_return_what_was_written(address in recipient()) {
        prop_assert_eq!(BITCOIN.parse_address(&address).unwrap(), address.clone());
        if address.starts_with("bc1") {
            prop_assert_eq!(BITCOIN.parse_address(&address.to_uppercase()).unwrap(), address);
        }
    }

    #[test]
    fn payload__should_come_back_from_its_bytes(to in recipient(), amount in 546..=2_100_000_000_000_000_u64, rate in 1..=10_000_u64) {
        let payload = send(&to, amount, rate);
        prop_assert_eq!(Payload::decode(&payload.encode()), Ok(payload));
    }
}
