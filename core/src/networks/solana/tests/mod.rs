#![allow(non_snake_case)]

mod budgets;
mod changes;
mod custom;
mod effects;
mod extensions;
mod lifetimes;
mod token;

use ed25519_dalek::{Signer as _, SigningKey};
use proptest::prelude::*;
use solana_hash::Hash;
use solana_message::{VersionedMessage, legacy, v0};
use solana_system_interface::instruction::transfer;

use super::{
    super::{wire::is_transaction_message, *},
    *,
};
use crate::{
    networks::{self, DynNetworkRules, FeeLevel, Payload, WireKind, evm},
    schema::wire,
};

const SOLANA: &dyn DynNetworkRules = &Solana;

const BLOCKHASH: &str = "B6SMJHxrVJ3t3MXbarfPBmeBKs2k8EtpjZEo2uByrReR";

fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

fn public_key() -> Vec<u8> {
    key().verifying_key().to_bytes().to_vec()
}

fn from() -> String {
    SOLANA.address(&public_key()).unwrap()
}

fn send() -> Payload {
    Payload::parse(&WireKind::SolanaSendNative(wire::SolanaSendNative {
        from: from(),
        to: Pubkey::new_from_array([9; 32]).to_string(),
        value: "5".into(),
        chain_id: 101,
        ..Default::default()
    }))
    .unwrap()
}

fn message(content: &[u8]) -> Result<Payload, Fault> {
    Payload::parse(&WireKind::SolanaMessage(wire::SolanaMessage {
        from: from(),
        r#type: 0,
        content: content.to_vec(),
    }))
}

fn chain_data() -> networks::ChainData {
    networks::ChainData::Solana(ChainData {
        recent_blockhash: BLOCKHASH.into(),
        token: None,
        compute: None,
    })
}

fn signature(message: &[u8]) -> Signature {
    let signature = key().sign(message);
    Signature::Ed25519 {
        r: *signature.r_bytes(),
        s: *signature.s_bytes(),
    }
}

#[test]
fn transfer__should_ask_for_a_blockhash_and_what_its_computation_costs() {
    let wanted = networks::Queries::Solana(Queries {
        chain_id: 101,
        blockhash: true,
        token: None,
        compute: Some(ComputeQueries {
            from: from(),
            to: Pubkey::new_from_array([9; 32]).to_string(),
            amount: 5,
            level: FeeLevel::Normal,
        }),
    });
    assert_eq!(SOLANA.queries(&send()), wanted);
    assert_eq!(
        SOLANA.queries(&message(b"x").unwrap()),
        networks::Queries::Nothing
    );
}

#[test]
fn transfer__should_be_readable_by_the_sdk() {
    let unsigned = SOLANA.build(&send(), &chain_data(), &public_key()).unwrap();
    let signed = SOLANA
        .assemble(
            &send(),
            &unsigned,
            &[signature(&unsigned.signing[0].message)],
            &public_key(),
        )
        .unwrap()
        .unwrap();
    let bytes = STANDARD.decode(&signed.transaction).unwrap();
    let transaction: solana_transaction::versioned::VersionedTransaction =
        wincode::deserialize_exact(&bytes).unwrap();
    assert!(transaction.sanitize().is_ok());
    assert_eq!(transaction.signatures[0].to_string(), signed.tx_hash);
    assert_eq!(transaction.message.serialize(), unsigned.signing[0].message);
    assert_eq!(
        transaction.message.recent_blockhash().to_string(),
        BLOCKHASH
    );
}

#[test]
fn build__should_refuse_facts_and_wallets_that_do_not_fit() {
    use crate::fault::Class;
    let class = |payload: &Payload, chain_data: &networks::ChainData, key: &[u8]| {
        SOLANA
            .build(payload, chain_data, key)
            .unwrap_err()
            .class()
            .clone()
    };
    let evm_facts = networks::ChainData::Evm(evm::ChainData {
        nonce: None,
        eip1559: true,
        fees: None,
    });
    let short = networks::ChainData::Solana(ChainData {
        recent_blockhash: "abc".into(),
        token: None,
        compute: None,
    });
    for chain_data in [&networks::ChainData::Nothing, &evm_facts, &short] {
        assert_eq!(class(&send(), chain_data, &public_key()), Class::Bug);
    }
    assert_eq!(
        class(&message(b"x").unwrap(), &chain_data(), &public_key()),
        Class::Bug
    );
    let other = SigningKey::from_bytes(&[8; 32]).verifying_key().to_bytes();
    assert_eq!(class(&send(), &chain_data(), &other), Class::Invalid);
    assert_eq!(class(&send(), &chain_data(), &[2; 31]), Class::Bug);
}

#[test]
fn assemble__should_refuse_what_was_not_built() {
    let unsigned = SOLANA.build(&send(), &chain_data(), &public_key()).unwrap();
    let good = signature(&unsigned.signing[0].message);
    let ecdsa = Signature::Ecdsa {
        r: [1; 32],
        s: [1; 32],
        y_parity: 0,
    };
    for signatures in [&[][..], &[ecdsa], &[good.clone(), good.clone()]] {
        assert!(
            SOLANA
                .assemble(&send(), &unsigned, signatures, &public_key())
                .is_err()
        );
    }
    let mut other = unsigned.clone();
    other.bytes[80] ^= 1;
    assert!(
        SOLANA
            .assemble(&send(), &other, &[good], &public_key())
            .is_err()
    );
}

#[test]
fn assemble__should_give_nothing_for_a_message() {
    let payload = message(b"hello").unwrap();
    let unsigned = SOLANA
        .build(&payload, &networks::ChainData::Nothing, &public_key())
        .unwrap();
    assert_eq!(unsigned.signing[0].message, b"hello");
    assert!(unsigned.bytes.is_empty());
    let signature = signature(b"hello");
    assert_eq!(
        SOLANA.assemble(&payload, &unsigned, &[signature], &public_key()),
        Ok(None)
    );
}

#[test]
fn message__should_not_be_a_transaction_of_any_version() {
    let payer = Pubkey::new_from_array([1; 32]);
    let instruction = transfer(&payer, &Pubkey::new_from_array([2; 32]), 1);
    let hash = Hash::new_from_array([3; 32]);
    let legacy = legacy::Message::new_with_blockhash(
        std::slice::from_ref(&instruction),
        Some(&payer),
        &hash,
    );
    let v0 = v0::Message::try_compile(&payer, &[instruction], &[], hash).unwrap();
    for content in [
        VersionedMessage::Legacy(legacy).serialize(),
        VersionedMessage::V0(v0).serialize(),
    ] {
        let fault = message(&content).unwrap_err();
        assert!(
            fault
                .message()
                .starts_with("solanaMessage.content: is a transaction message"),
            "{fault}"
        );
        // Neither is what only begins like one: no node takes it for a transaction.
        let mut longer = content.clone();
        longer.push(0);
        assert!(message(&longer).is_ok());
        assert!(message(&content[..content.len() - 1]).is_ok());
    }
    assert!(message(b"").is_ok());
    assert!(message(b"\xffsolana offchain\x00rest").is_ok());
}

#[test]
fn address__should_be_base58_of_32_bytes() {
    for text in [
        "",
        "1",
        "0OIl",
        &"1".repeat(33),
        &"z".repeat(44),
        &"1".repeat(100_000),
        "é",
    ] {
        assert_eq!(parse_key(text), Err(AddressError::Form), "{}", text.len());
    }
    assert_eq!(parse_key(&"1".repeat(32)).unwrap().to_bytes(), [0; 32]);
    for key in [[0xff; 32], [0; 32], [2; 32]] {
        assert!(SOLANA.address(&key).is_err());
    }
}

proptest! {
    /// What is built says what the payload says, and nothing else.
    #[test]
    fn transfer__should_be_read_back(to: [u8; 32], lamports: u64, hash: [u8; 32]) {
        let to = Pubkey::new_from_array(to);
        let payload = Payload::parse(&WireKind::SolanaSendNative(wire::SolanaSendNative {
            from: from(),
            to: to.to_string(),
            value: lamports.to_string(),
            chain_id: 101,
            ..Default::default()
        }))
        .unwrap();
        let chain_data = networks::ChainData::Solana(ChainData {
            recent_blockhash: Hash::new_from_array(hash).to_string(),
            token: None,
            compute: None,
        });
        let unsigned = SOLANA.build(&payload, &chain_data, &public_key()).unwrap();
        let transaction = WireTransaction::parse(&unsigned.bytes).unwrap();
        let message = transaction.message();
        prop_assert_eq!(message.header().num_required_signatures, 1);
        prop_assert_eq!(message.recent_blockhash().to_bytes(), hash);
        prop_assert_eq!(message.instructions().len(), 1);
        let moved: Vec<_> = acts::acts(message, &parse_key(&from()).unwrap()).moves;
        prop_assert_eq!(moved, [effect::Movement {
            authority: effect::AccountRef::Named(parse_key(&from()).unwrap()),
            token: None,
            to: effect::AccountRef::Named(to),
            amount: lamports,
        }]);
    }

    #[test]
    fn address__should_return_what_was_written(bytes: [u8; 32]) {
        let text = Pubkey::new_from_array(bytes).to_string();
        prop_assert_eq!(parse_key(&text).unwrap().to_bytes(), bytes);
        prop_assert_eq!(SOLANA.parse_address(&text).unwrap(), text);
    }

    #[test]
    fn address__should_never_panic(text: String) {
        let _ = parse_key(&text);
    }

    #[test]
    fn detection__should_never_panic(version in prop::sample::select(vec![0, 1, 0x80, 0x81, 0xff]), bytes: Vec<u8>) {
        let mut bytes = bytes;
        bytes.insert(0, version);
        let _ = is_transaction_message(&bytes);
    }
}
