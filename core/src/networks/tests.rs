#![allow(non_snake_case)]

use base64::{Engine as _, engine::general_purpose::STANDARD};
use proptest::prelude::*;

use super::*;
use crate::{
    fault::Class,
    networks::evm::*,
    schema::wire::{EvmGas as WireGas, evm_message, solana_message},
};

const ALICE: &str = "0x37b5ba07902c51ef69dE0BbEa42A11a1A94e3ff6";
const BOB: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
const BTC: &str = "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4";
const SOL: &str = "CxvTXCepdDTH4PXUwU2Pf3FBi87L7VwXtzsgeAm1xVsS";
const TON: &str = "UQCzhX8UMF-q7gamM_JgyU9yb1RojCQoua8cjcuufiMYwNKp";
const TRON: &str = "THzTXf73sKMCzyNaDGFn84jWuRZTJq6fxL";
const USDT: &str = "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t";
const XLM: &str = "GAPM4TUV6XTYQTOIGHZ4M7NI6EYJMXRZCIBXBQFOESIYLVTHW5PZSES2";
const XLM_ISSUER: &str = "GA5ZSEJYB37JRC5AVCIA5MOP4RHTM335X2KGX3IHOJAPP5RE34K4KZVN";
/// A v1 envelope of `XLM` that pays lumens.
const XLM_TX: &str = "AAAAAgAAAAAezk6V9eeITcgx88Z9qPEwll45EgNwwK4kkYXWZ7dfmQAAAGQAAFrzEHpAAQAAAAEAAAAAAAAAAAAAAABpBf2sAAAAAAAAAAEAAAAAAAAAAQAAAAC0v49DWDiDYE5bx7v1BZG06w03qY4j95a5WYD0ShIWAQAAAAAAAAAABfXhAAAAAAAAAAAA";
const APTOS: &str = "0x50fad405492e779413ce1d4d91c4e4b0d32ecd399b931d488cd4a07161f42c51";
const SUI_FROM: &str = "0x559b58c97f8a3dee4d7e09196e8bba1e7d30b8de78b58321aa86481933dc2ea6";
const SUI_TO: &str = "0x2e11e011732dddf470541604330633038cccb0c199170662795b0dd34bf742da";
/// 1 SUI split off a gas coin and transferred, BCS TransactionData.
const SUI_CUSTOM: &str = "000002000800ca9a3b0000000000202e11e011732dddf470541604330633038cccb0c199170662795b0dd34bf742da0202000101000001010300000000010100559b58c97f8a3dee4d7e09196e8bba1e7d30b8de78b58321aa86481933dc2ea60151628b67568e80477eae332f14509277be7cc87e4fcde7b7d8e75c36cbefb5567b00000000000000201e9e2fae47502761ba06111296737c6df5f10f4464d31124d914e7137c28dede559b58c97f8a3dee4d7e09196e8bba1e7d30b8de78b58321aa86481933dc2ea6ee02000000000000c0c62d000000000000";

fn gas(max_fee: &str, max_priority_fee: Option<&str>, gas_limit: &str) -> Option<WireGas> {
    Some(WireGas {
        max_fee: Some(max_fee.into()),
        max_priority_fee: max_priority_fee.map(Into::into),
        gas_limit: Some(gas_limit.into()),
        ..Default::default()
    })
}

fn native() -> wire::EvmSendNative {
    wire::EvmSendNative {
        chain_id: 1,
        from: ALICE.into(),
        to: BOB.into(),
        value: "1".into(),
        gas_fee: gas("2", Some("1"), "21000"),
        nonce: Some(0),
    }
}

fn custom() -> wire::EvmSendCustom {
    wire::EvmSendCustom {
        chain_id: 1,
        from: ALICE.into(),
        to: BOB.into(),
        value: "0".into(),
        ..Default::default()
    }
}

fn message(content: &[u8], form: evm_message::Type) -> WireKind {
    WireKind::EvmMessage(wire::EvmMessage {
        chain_id: 1,
        from: ALICE.into(),
        r#type: form.into(),
        content: content.to_vec(),
    })
}

fn raw(from: &str, content: &[u8], hash: wire::EcdsaHashFunction) -> WireKind {
    WireKind::RawMessage(wire::RawMessage {
        from: from.into(),
        content: content.to_vec(),
        ecdsa_hash_function: hash.into(),
    })
}

#[track_caller]
fn refused(kind: &WireKind, sentence: &str) {
    let fault = Payload::parse(kind).unwrap_err();
    assert_eq!(fault.class(), &crate::fault::Class::Invalid);
    assert!(fault.message().starts_with(sentence), "{fault}");
}

#[track_caller]
fn evm_transaction(kind: &WireKind) -> EvmTransaction {
    match Payload::parse(kind).unwrap() {
        Payload::Evm(EvmPayload::Transaction(transaction)) => transaction,
        other => panic!("{other:?}"),
    }
}

/// A transfer that was made elsewhere, without its signature.
fn solana_transaction(from: &str, lamports: u64) -> String {
    use crate::networks::solana::{parse_key, wire::WireTransaction};
    let from = parse_key(from).unwrap();
    let transfer = solana_system_interface::instruction::transfer(&from, &from, lamports);
    let message = ::solana_message::Message::new(&[transfer], Some(&from));
    let message = ::solana_message::VersionedMessage::Legacy(message);
    STANDARD.encode(WireTransaction::unsigned(message).unwrap().bytes())
}

/// A well-formed payload of every kind.
fn samples() -> Vec<WireKind> {
    let one = || "1".to_owned();
    let send = || wire::SolanaSendNative {
        from: SOL.into(),
        to: SOL.into(),
        value: one(),
        chain_id: 0,
        ..Default::default()
    };
    let token = || wire::SolanaSendSplToken {
        from: SOL.into(),
        to: SOL.into(),
        mint_address: SOL.into(),
        amount: one(),
        ..Default::default()
    };
    let foreign = || wire::SolanaSendCustom {
        from: SOL.into(),
        tx_base64: vec![solana_transaction(SOL, 1)],
        chain_id: 0,
    };
    vec![
        WireKind::EvmSendNative(native()),
        WireKind::EvmSendErc20(wire::EvmSendErc20 {
            chain_id: 1,
            from: ALICE.into(),
            to: BOB.into(),
            token_contract_address: ALICE.into(),
            amount: one(),
            ..Default::default()
        }),
        WireKind::EvmSendCustom(custom()),
        WireKind::BtcSendNative(wire::BtcSendNative {
            from: BTC.into(),
            to: BTC.into(),
            amount: "294".into(),
            network_fee: 1,
            ..Default::default()
        }),
        WireKind::TronSendNative(wire::TronSendNative {
            from: TRON.into(),
            to: USDT.into(),
            value: one(),
        }),
        WireKind::TronSendTrc10(wire::TronSendTrc10 {
            from: TRON.into(),
            to: USDT.into(),
            asset_name: one(),
            amount: one(),
        }),
        WireKind::TronSendTrc20(wire::TronSendTrc20 {
            from: TRON.into(),
            to: TRON.into(),
            contract_address: USDT.into(),
            amount: one(),
            fee_limit: None,
        }),
        WireKind::AptosSendNative(wire::AptosSendNative {
            chain_id: 1,
            from: APTOS.into(),
            to: APTOS.into(),
            value: one(),
            gas_fee: None,
            ..Default::default()
        }),
        WireKind::AptosSendCoin(wire::AptosSendCoin {
            chain_id: 126,
            from: APTOS.into(),
            to: APTOS.into(),
            coin_tag: APTOS.into(),
            amount: one(),
            gas_fee: None,
            ..Default::default()
        }),
        WireKind::AptosSendCustom(wire::AptosSendCustom {
            chain_id: 1,
            from: APTOS.into(),
            payload: br#"{"type":"entry_function_payload","function":"0x1::a::b"}"#.to_vec(),
            gas_fee: None,
            ..Default::default()
        }),
        WireKind::SuiSendNative(wire::SuiSendNative {
            recipients: vec![],
            from: SUI_FROM.into(),
            to: SUI_TO.into(),
            value: one(),
            gas_fee: None,
        }),
        WireKind::SuiSendCoin(wire::SuiSendCoin {
            recipients: vec![],
            from: SUI_FROM.into(),
            to: SUI_TO.into(),
            coin_tag: "0xabc::tok::TOK".into(),
            amount: one(),
            gas_fee: None,
        }),
        WireKind::SuiSendCustom(wire::SuiSendCustom {
            from: SUI_FROM.into(),
            payload: hex::decode(SUI_CUSTOM).unwrap(),
            other_signatures: Vec::new(),
        }),
        WireKind::SolanaSendNative(send()),
        WireKind::SolanaSendSplToken(token()),
        message(b"hello", evm_message::Type::Unspecified),
        WireKind::AptosMessage(wire::AptosMessage {
            from: APTOS.into(),
            content: Some(Default::default()),
            ..Default::default()
        }),
        WireKind::SolanaMessage(wire::SolanaMessage {
            from: SOL.into(),
            ..Default::default()
        }),
        raw(SOL, b"", wire::EcdsaHashFunction::Unspecified),
        WireKind::SuiMessage(wire::SuiMessage {
            from: SUI_FROM.into(),
            ..Default::default()
        }),
        WireKind::TonSendNative(wire::TonSendNative {
            from: TON.into(),
            to: TON.into(),
            value: one(),
            comment: "\u{e9}".repeat(512),
        }),
        WireKind::TonSendToken(wire::TonSendToken {
            from: TON.into(),
            to: TON.into(),
            mint_address: TON.into(),
            amount: one(),
            ..Default::default()
        }),
        WireKind::TonSendCustom(wire::TonSendCustom {
            from: TON.into(),
            payload: format!(r#"{{"messages":[{{"address":"{TON}","amount":"1"}}]}}"#).into(),
        }),
        WireKind::TonMessage(wire::TonMessage {
            from: TON.into(),
            ..Default::default()
        }),
        WireKind::SolanaSendCustom(foreign()),
        WireKind::SonicSvmSendNative(send()),
        WireKind::SonicSvmSendSplToken(token()),
        WireKind::SonicSvmSendCustom(foreign()),
        WireKind::StellarSendNative(wire::StellarSendNative {
            from: XLM.into(),
            to: XLM_ISSUER.into(),
            value: "0.5".into(),
            memo: "m".repeat(28),
            ..Default::default()
        }),
        WireKind::StellarSendAsset(wire::StellarSendAsset {
            from: XLM.into(),
            to: XLM_ISSUER.into(),
            asset_code: "USDC".into(),
            asset_issuer: XLM_ISSUER.into(),
            amount: one(),
            memo: String::new(),
            ..Default::default()
        }),
        WireKind::StellarSendCustom(wire::StellarSendCustom {
            from: XLM.into(),
            tx_base64: XLM_TX.into(),
        }),
        WireKind::StellarChangeTrust(wire::StellarChangeTrust {
            from: XLM.into(),
            asset_code: "USDC".into(),
            asset_issuer: XLM_ISSUER.into(),
            memo: String::new(),
            ..Default::default()
        }),
    ]
}

#[test]
fn kinds__should_all_be_accepted_under_their_names() {
    let samples = samples();
    let kinds: Vec<PayloadKind> = samples.iter().map(PayloadKind::of).collect();
    assert_eq!(kinds, PayloadKind::ALL);
    for (kind, wire) in kinds.iter().zip(&samples) {
        assert_eq!(Payload::parse(wire).unwrap().kind(), kind.name());
    }
}

#[test]
fn replacement__should_be_refused_where_nothing_ties_two_transactions_together() {
    let nothing = Signed {
        transaction: String::new(),
        tx_hash: String::new(),
    };
    let refused = |kind: &WireKind, network: Network, words: &str| {
        let payload = Payload::parse(kind).unwrap();
        for how in [Replacement::SpeedUp, Replacement::Cancel] {
            let fault = network.rules().replacement(&payload, &nothing, how);
            let fault = fault.unwrap_err();
            assert_eq!(fault.class(), &Class::Invalid, "{fault:?}");
            assert!(fault.message().contains(words), "{fault:?}");
        }
    };
    let solana = WireKind::SolanaSendNative(wire::SolanaSendNative {
        from: SOL.into(),
        to: SOL.into(),
        value: "1".into(),
        ..Default::default()
    });
    refused(&solana, Network::Solana, "blockhash");
    let sui = WireKind::SuiSendNative(wire::SuiSendNative {
        from: SUI_FROM.into(),
        to: SUI_TO.into(),
        value: "1".into(),
        ..Default::default()
    });
    refused(&sui, Network::Sui, "epoch");
    // What is no transaction is on no chain, on any network.
    refused(
        &message(b"hello", evm_message::Type::PersonalSign),
        Network::Evm,
        "makes no transaction",
    );
    refused(&solana, Network::Evm, "makes no transaction");
}

#[test]
fn gap_filler__should_pay_nobody_else_wherever_there_are_numbers() {
    let mut filled = BTreeSet::new();
    for payload in samples().iter().map(|kind| Payload::parse(kind).unwrap()) {
        for network in Network::ALL {
            let is_its = payload.is_transaction() && payload.check_wallet(network).is_ok();
            let rules = network.rules();
            let filler = rules.gap_filler(&payload);
            assert_eq!(
                filler.is_some(),
                is_its && rules.is_numbered(),
                "{network:?} {payload:?}"
            );
            let Some(filler) = filler else { continue };
            filled.insert(network);
            assert_eq!(filler.from(), payload.from());
            assert_eq!(filler.chain_id(), payload.chain_id());
            assert_eq!(rules.gap_filler(&filler).as_ref(), Some(&filler));
            // It is a request like any other.
            assert_eq!(Payload::parse(&filler.to_wire()).unwrap(), filler);
            let outflow = filler.outflow(network);
            assert_eq!(outflow.nature, outflow::ContentKind::Transfer);
            for spend in outflow.spends {
                assert!(spend.amount <= crate::amount::U256::from(1), "{spend:?}");
                assert_eq!(spend.recipient.as_deref(), Some(filler.from()));
            }
        }
    }
    assert_eq!(filled.len(), 4, "{filled:?}");
}

#[test]
fn kinds__should_name_what_is_wrong_with_their_shape() {
    for wire in samples() {
        let kind = PayloadKind::of(&wire);
        // An empty payload lacks something required.
        let field = prost::encoding::encode_key as fn(u32, _, &mut Vec<u8>);
        let mut bytes = Vec::new();
        let number = 1 + PayloadKind::ALL
            .iter()
            .position(|known| *known == kind)
            .unwrap();
        field(
            number.try_into().unwrap(),
            prost::encoding::WireType::LengthDelimited,
            &mut bytes,
        );
        bytes.push(0);
        let fault = Payload::decode(&bytes).unwrap_err();
        assert!(
            fault.message().starts_with(&format!("{}.", kind.name())),
            "{fault}"
        );
    }
    for (wire, sentence) in [
        (
            WireKind::SolanaSendCustom(wire::SolanaSendCustom {
                from: SOL.into(),
                tx_base64: vec!["AAAA".into(); 6],
                chain_id: 101,
            }),
            "solanaSendCustom.txBase64: must hold 1 to 5",
        ),
        (
            WireKind::AptosSendNative(wire::AptosSendNative {
                chain_id: 2,
                from: "a".into(),
                to: "b".into(),
                value: "1".into(),
                gas_fee: None,
                ..Default::default()
            }),
            "aptosSendNative.chainId: must be 1",
        ),
        (
            WireKind::SuiSendNative(wire::SuiSendNative {
                recipients: vec![],
                from: SUI_FROM.into(),
                to: SUI_TO.into(),
                value: "0x1".into(),
                gas_fee: None,
            }),
            "suiSendNative.value: must be a whole number",
        ),
    ] {
        refused(&wire, sentence);
    }
}

#[test]
fn evm__should_name_the_field_that_is_wrong() {
    type Change = fn(&mut wire::EvmSendNative);
    let cases: [(Change, &str); 15] = [
        (|tx| tx.chain_id = 0, "chainId: is required"),
        (|tx| tx.chain_id = 1 << 63, "chainId: is out of range"),
        (|tx| tx.from = String::new(), "from: is required"),
        (|tx| tx.to = String::new(), "to: is required"),
        (
            |tx| tx.to = BOB.replace("be", "BE"),
            "to: has an invalid checksum (EIP-55): check for a typo",
        ),
        (|tx| tx.value = String::new(), "value: is required"),
        (|tx| tx.value = "-1".into(), "value: must be a whole number"),
        (|tx| tx.nonce = Some(-1), "nonce: must not be negative"),
        (
            |tx| tx.gas_fee.as_mut().unwrap().max_priority_fee = Some(String::new()),
            "gasFee.maxPriorityFee: is required",
        ),
        (
            |tx| tx.gas_fee = gas("1", Some("2"), "21000"),
            "gasFee.maxPriorityFee: must not be above",
        ),
        (
            |tx| tx.gas_fee = gas("1", Some("1"), "20999"),
            "gasFee.gasLimit: must be at least 21000",
        ),
        (
            |tx| tx.gas_fee = gas("-1", None, "21000"),
            "gasFee.maxFee: must be a whole",
        ),
        (
            |tx| tx.gas_fee = gas("1", None, "18446744073709551616"),
            "gasFee.gasLimit: is too large",
        ),
        (
            |tx| tx.gas_fee = gas("340282366920938463463374607431768211456", None, "21000"),
            "gasFee.maxFee: is too large",
        ),
        (
            |tx| tx.value = "01".into(),
            "value: must not have leading zeros",
        ),
    ];
    for (change, sentence) in cases {
        let mut wire = native();
        change(&mut wire);
        refused(
            &WireKind::EvmSendNative(wire),
            &format!("evmSendNative.{sentence}"),
        );
    }
}

#[test]
fn evm_custom__should_create_a_contract_only_from_code() {
    let mut wire = custom();
    wire.to = String::new();
    refused(
        &WireKind::EvmSendCustom(wire.clone()),
        "evmSendCustom.to: is required, unless",
    );
    wire.input = vec![0x60, 0];
    let transaction = evm_transaction(&WireKind::EvmSendCustom(wire.clone()));
    assert!(matches!(
        transaction.action,
        EvmAction::SendCustom { to: None, .. }
    ));
    wire.gas_fee = gas("1", None, "53019");
    refused(
        &WireKind::EvmSendCustom(wire.clone()),
        "evmSendCustom.gasFee.gasLimit: must be at least 53020",
    );
    wire.gas_fee = gas("1", None, "53020");
    let transaction = evm_transaction(&WireKind::EvmSendCustom(wire));
    assert_eq!(transaction.gas.unwrap().max_priority_fee, None);
}

#[test]
fn evm_custom_chains__should_bring_fees_and_nonce() {
    let known = KnownChains {
        configured: [31337].into(),
    };
    let case = |change: fn(&mut wire::EvmSendNative)| {
        let mut wire = native();
        wire.chain_id = 987_654_321;
        change(&mut wire);
        Payload::parse(&WireKind::EvmSendNative(wire)).unwrap()
    };
    let complete = case(|_| {});
    assert_eq!(complete.screen(&known), Ok(()));
    assert!(!complete.may_broadcast(&known));
    let fault = case(|tx| tx.gas_fee = None).screen(&known).unwrap_err();
    assert!(
        fault
            .message()
            .starts_with("evmSendNative.gasFee: is required"),
        "{fault}"
    );
    for (change, field) in [
        (
            (|tx| tx.gas_fee.as_mut().unwrap().max_fee = None) as fn(&mut wire::EvmSendNative),
            "gasFee.maxFee",
        ),
        (
            |tx| tx.gas_fee.as_mut().unwrap().gas_limit = None,
            "gasFee.gasLimit",
        ),
    ] {
        let fault = case(change).screen(&known).unwrap_err();
        let sentence = format!("evmSendNative.{field}: is required");
        assert!(fault.message().starts_with(&sentence), "{fault}");
    }
    let fault = case(|tx| tx.nonce = None).screen(&known).unwrap_err();
    assert!(
        fault
            .message()
            .starts_with("evmSendNative.nonce: is required"),
        "{fault}"
    );
    for chain_id in BUILT_IN_EVM_CHAINS.into_iter().chain([31337]) {
        let mut wire = native();
        (wire.chain_id, wire.gas_fee, wire.nonce) = (chain_id, None, None);
        let payload = Payload::parse(&WireKind::EvmSendNative(wire)).unwrap();
        assert_eq!(payload.screen(&known), Ok(()));
        assert!(payload.may_broadcast(&known));
        assert_eq!(payload.chain_id(), Some(chain_id));
    }
}

#[test]
fn nonce__should_tell_zero_from_absent() {
    let mut wire = native();
    assert_eq!(
        evm_transaction(&WireKind::EvmSendNative(wire.clone())).nonce,
        Some(0)
    );
    wire.nonce = None;
    assert_eq!(evm_transaction(&WireKind::EvmSendNative(wire)).nonce, None);
}

#[test]
fn evm_message__should_obey_an_explicit_type_and_infer_one_otherwise() {
    use evm_message::Type::{PersonalSign, SignTypedData, Unspecified};
    let typed = br#"{"types":{"M":[{"name":"x","type":"uint8"}]},"primaryType":"M","domain":{},"message":{"x":1}}"#;
    let broken = br#"{"types":{},"primaryType":"M","domain":{},"message":{"x":1}}"#;
    for (content, given, shown) in [
        (&typed[..], Unspecified, SignTypedData),
        (&typed[..], SignTypedData, SignTypedData),
        (&typed[..], PersonalSign, PersonalSign),
        (&broken[..], PersonalSign, PersonalSign),
        (&b"hello"[..], Unspecified, PersonalSign),
        (&b""[..], Unspecified, PersonalSign),
        (&b"{\"types\":{}}"[..], Unspecified, PersonalSign),
    ] {
        let payload = Payload::parse(&message(content, given)).unwrap();
        let WireEcho::EvmMessage(echo) = payload.echo() else {
            panic!("{payload:?}")
        };
        assert_eq!(echo.r#type(), shown);
        assert_eq!(echo.content, content);
    }
    // What looks like typed data is never signed as text because something is wrong with it.
    refused(
        &message(broken, Unspecified),
        "evmMessage.content.primaryType: ",
    );
    refused(
        &message(b"hello", SignTypedData),
        "evmMessage.content: must be JSON",
    );
    let WireKind::EvmMessage(mut wire) = message(b"x", Unspecified) else {
        unreachable!()
    };
    wire.r#type = 3;
    refused(&WireKind::EvmMessage(wire.clone()), "evmMessage.type: ");
    (wire.r#type, wire.chain_id) = (0, 0);
    let payload = Payload::parse(&WireKind::EvmMessage(wire)).unwrap();
    assert_eq!(payload.chain_id(), None);
    assert!(!payload.may_broadcast(&KnownChains::default()));
}

#[test]
fn raw_message__should_need_a_hash_function_for_ecdsa_only() {
    use wire::EcdsaHashFunction::{Sha256, Unspecified, UseMessageDirectly};
    let check = |from: &str, content: &[u8], hash, wallet| {
        Payload::parse(&raw(from, content, hash))
            .unwrap()
            .check_wallet(wallet)
    };
    assert_eq!(check(ALICE, b"x", Sha256, Network::Evm), Ok(()));
    assert_eq!(
        check(ALICE, &[1; 32], UseMessageDirectly, Network::Evm),
        Ok(())
    );
    for content in [&[][..], &[1; 31], &[1; 33]] {
        let fault = check(ALICE, content, UseMessageDirectly, Network::Evm).unwrap_err();
        assert!(
            fault
                .message()
                .starts_with("rawMessage.content: must be exactly 32"),
            "{fault}"
        );
    }
    let fault = check(ALICE, b"x", Unspecified, Network::Evm).unwrap_err();
    assert!(
        fault
            .message()
            .starts_with("rawMessage.ecdsaHashFunction: is required"),
        "{fault}"
    );
    for hash in [Unspecified, Sha256, UseMessageDirectly] {
        assert_eq!(check(SOL, b"x", hash, Network::Solana), Ok(()));
    }
    let lower = Payload::parse(&raw(&ALICE.to_lowercase(), b"", Sha256)).unwrap();
    assert_eq!(lower.from(), ALICE);
    for from in ["", "0x12", "nobody"] {
        refused(&raw(from, b"", Sha256), "rawMessage.from: ");
    }
    let WireKind::RawMessage(mut unknown) = raw(ALICE, b"", Sha256) else {
        unreachable!()
    };
    unknown.ecdsa_hash_function = 3;
    refused(
        &WireKind::RawMessage(unknown),
        "rawMessage.ecdsaHashFunction: ",
    );
}

#[test]
fn wallet__should_be_of_the_network_of_the_kind() {
    let evm = Payload::parse(&WireKind::EvmSendNative(native())).unwrap();
    assert_eq!(evm.check_wallet(Network::Evm), Ok(()));
    assert_eq!(
        evm.check_wallet(Network::Tron).unwrap_err().message(),
        "evmSendNative.from: is a Tron wallet; this kind needs one of EVM"
    );
}

#[test]
fn solana__should_know_its_chain_ids() {
    let send = |chain_id| wire::SolanaSendNative {
        from: SOL.into(),
        to: SOL.into(),
        value: "0".into(),
        chain_id,
        ..Default::default()
    };
    for chain_id in [0, 101] {
        let payload = Payload::parse(&WireKind::SolanaSendNative(send(chain_id))).unwrap();
        assert_eq!(payload.chain_id(), Some(101));
        assert!(payload.may_broadcast(&KnownChains::default()));
    }
    refused(
        &WireKind::SolanaSendNative(send(103)),
        "solanaSendNative.chainId: ",
    );
    refused(
        &WireKind::SonicSvmSendNative(send(101)),
        "sonicSvmSendNative.chainId: ",
    );
    let payload = Payload::parse(&WireKind::SonicSvmSendNative(send(0))).unwrap();
    assert_eq!(payload.chain_id(), Some(0));
    assert_eq!(payload.kind(), "sonicSvmSendNative");
}

#[test]
fn solana_message__should_show_the_type_that_was_decided() {
    let wire = wire::SolanaMessage {
        from: SOL.into(),
        r#type: 0,
        content: b"hi".to_vec(),
    };
    let payload = Payload::parse(&WireKind::SolanaMessage(wire.clone())).unwrap();
    let WireEcho::SolanaMessage(echo) = payload.echo() else {
        panic!("{payload:?}")
    };
    assert_eq!(echo.r#type(), solana_message::Type::Default);
    let wire = wire::SolanaMessage { r#type: 2, ..wire };
    refused(&WireKind::SolanaMessage(wire), "solanaMessage.type: ");
}

#[test]
fn decode__should_take_canonical_bytes_only() {
    let payload = Payload::parse(&WireKind::EvmSendNative(native())).unwrap();
    let request = |kind: WireKind| wire::CreateSigningRequestRequest {
        r#type: Some(kind),
        ..Default::default()
    };
    assert_eq!(Payload::decode(&payload.encode()), Ok(payload.clone()));
    let mut lower = native();
    lower.to = lower.to.to_lowercase();
    let bytes = request(WireKind::EvmSendNative(lower)).encode_to_vec();
    assert!(
        Payload::decode(&bytes)
            .unwrap_err()
            .message()
            .contains("canonical")
    );
    let mut noted = request(WireKind::EvmSendNative(native()));
    noted.notes = Some("rent".into());
    assert!(Payload::decode(&noted.encode_to_vec()).is_err());
    let mut longer = payload.encode();
    longer.extend([0xf8, 0x7f, 0]);
    assert!(Payload::decode(&longer).is_err());
    assert!(Payload::decode(&[]).is_err());
    assert!(Payload::decode(&[0xff]).is_err());
}

fn address() -> impl Strategy<Value = String> {
    any::<[u8; 20]>().prop_map(|bytes| format!("0x{}", hex::encode(bytes)))
}

fn sui_address() -> impl Strategy<Value = String> {
    any::<[u8; 32]>().prop_map(|bytes| format!("0x{}", hex::encode_upper(bytes)))
}

fn sui_gas() -> impl Strategy<Value = Option<wire::SuiGas>> {
    let parts = (any::<Option<u64>>(), any::<Option<u64>>());
    prop::option::of(parts.prop_map(|(budget, price)| wire::SuiGas {
        budget: budget.map(|budget| (1 + budget % 50_000_000_000).to_string()),
        price: price.map(|price| price.max(1).to_string()),
    }))
}

fn key() -> impl Strategy<Value = String> {
    any::<[u8; 32]>().prop_map(|bytes| bs58::encode(bytes).into_string())
}

fn tron_address() -> impl Strategy<Value = String> {
    any::<[u8; 20]>().prop_map(|bytes| {
        let bytes = [&[0x41][..], &bytes].concat();
        bs58::encode(bytes).with_check().into_string()
    })
}

fn tron_kind() -> impl Strategy<Value = WireKind> {
    let addresses = (tron_address(), tron_address(), tron_address());
    let fee_limit = prop::option::of(1..=15_000_000_000_i64);
    (addresses, 1..=i64::MAX, 1..=i64::MAX, fee_limit, 0..3).prop_map(
        |((from, to, token), amount, asset, fee_limit, choice)| {
            let amount = amount.to_string();
            match choice {
                0 => WireKind::TronSendNative(wire::TronSendNative {
                    from,
                    to,
                    value: amount,
                }),
                1 => WireKind::TronSendTrc10(wire::TronSendTrc10 {
                    from,
                    to,
                    asset_name: asset.to_string(),
                    amount,
                }),
                _ => WireKind::TronSendTrc20(wire::TronSendTrc20 {
                    from,
                    to,
                    contract_address: token,
                    amount,
                    fee_limit: fee_limit.map(|limit| limit.to_string()),
                }),
            }
        },
    )
}

fn ton_kind() -> impl Strategy<Value = WireKind> {
    let address = || {
        any::<([u8; 32], bool)>().prop_map(|(account, bounce)| {
            crate::networks::ton::TonAddress {
                workchain: 0,
                account,
                bounce,
            }
            .to_string()
        })
    };
    let addresses = (address(), address(), address());
    let values = (
        0..=u128::MAX >> 8,
        "\\PC{0,50}",
        prop::option::of(0..256_i64),
    );
    let content = prop::collection::vec(any::<u8>(), 0..100);
    (addresses, values, content, 0..4).prop_map(
        |((from, to, mint_address), (amount, comment, decimals), content, choice)| match choice {
            0 => WireKind::TonSendNative(wire::TonSendNative {
                from,
                to,
                value: amount.to_string(),
                comment,
            }),
            1 => WireKind::TonSendToken(wire::TonSendToken {
                from,
                to,
                mint_address,
                amount: amount.to_string(),
                comment,
                decimals,
            }),
            2 => WireKind::TonSendCustom(wire::TonSendCustom {
                from,
                payload: format!(r#"{{"messages":[{{"address":"{to}","amount":"{amount}"}}]}}"#)
                    .into(),
            }),
            _ => WireKind::TonMessage(wire::TonMessage {
                from,
                r#type: 0,
                content,
            }),
        },
    )
}

fn fees() -> impl Strategy<Value = Option<WireGas>> {
    prop::option::of(
        (any::<u128>(), any::<Option<u128>>(), 10_000_000..u64::MAX).prop_map(
            |(max_fee, priority, gas_limit)| WireGas {
                max_fee: Some(max_fee.to_string()),
                max_priority_fee: priority.map(|fee| fee.min(max_fee).to_string()),
                gas_limit: Some(gas_limit.to_string()),
                ..Default::default()
            },
        ),
    )
}

fn built_kind() -> impl Strategy<Value = WireKind> {
    let common = (
        1..=i64::MAX as u64,
        address(),
        address(),
        any::<u128>(),
        fees(),
    );
    let nonce = || prop::option::of(0..=i64::MAX);
    let bytes = || prop::collection::vec(any::<u8>(), 0..100);
    prop_oneof![
        (common, nonce(), address(), bytes(), 0..4).prop_map(
            |((chain_id, from, to, value, gas_fee), nonce, other, input, choice)| {
                let value = value.to_string();
                match choice {
                    0 => WireKind::EvmSendNative(wire::EvmSendNative {
                        chain_id,
                        from,
                        to,
                        value,
                        gas_fee,
                        nonce,
                    }),
                    1 => WireKind::EvmSendErc20(wire::EvmSendErc20 {
                        chain_id,
                        from,
                        to,
                        token_contract_address: other,
                        amount: value,
                        gas_fee,
                        nonce,
                    }),
                    2 if !input.is_empty() => WireKind::EvmSendCustom(wire::EvmSendCustom {
                        chain_id,
                        from,
                        to: String::new(),
                        value,
                        input,
                        gas_fee,
                        nonce,
                    }),
                    _ => WireKind::EvmSendCustom(wire::EvmSendCustom {
                        chain_id,
                        from,
                        to,
                        value,
                        input,
                        gas_fee,
                        nonce,
                    }),
                }
            }
        ),
        (0..=i64::MAX as u64, address(), 0..2, bytes()).prop_map(
            |(chain_id, from, r#type, content)| WireKind::EvmMessage(wire::EvmMessage {
                chain_id,
                from,
                r#type,
                content,
            })
        ),
        (key(), key(), any::<u64>(), any::<bool>()).prop_map(|(from, to, value, sonic)| {
            let value = value.to_string();
            let wire = wire::SolanaSendNative {
                from,
                to,
                value,
                chain_id: 0,
                ..Default::default()
            };
            if sonic {
                WireKind::SonicSvmSendNative(wire)
            } else {
                WireKind::SolanaSendNative(wire)
            }
        }),
        (
            key(),
            key(),
            key(),
            any::<u64>(),
            any::<Option<u8>>(),
            any::<bool>()
        )
            .prop_map(|(from, to, mint_address, amount, decimals, sonic)| {
                let wire = wire::SolanaSendSplToken {
                    from,
                    to,
                    mint_address,
                    amount: amount.to_string(),
                    chain_id: 0,
                    decimals: decimals.map(Into::into),
                    ..Default::default()
                };
                if sonic {
                    WireKind::SonicSvmSendSplToken(wire)
                } else {
                    WireKind::SolanaSendSplToken(wire)
                }
            }),
        (
            key(),
            prop::collection::btree_set(any::<u64>(), 1..=5),
            any::<bool>()
        )
            .prop_map(|(from, lamports, sonic)| {
                let tx_base64 = lamports.iter();
                let wire = wire::SolanaSendCustom {
                    tx_base64: tx_base64
                        .map(|one| solana_transaction(&from, *one))
                        .collect(),
                    from,
                    chain_id: 0,
                };
                if sonic {
                    WireKind::SonicSvmSendCustom(wire)
                } else {
                    WireKind::SolanaSendCustom(wire)
                }
            }),
        (key(), 0..2, bytes()).prop_map(|(from, r#type, content)| {
            WireKind::SolanaMessage(wire::SolanaMessage {
                from,
                r#type,
                content,
            })
        }),
        tron_kind(),
        ton_kind(),
        (
            sui_address(),
            sui_address(),
            any::<u64>(),
            sui_gas(),
            0..4,
            bytes()
        )
            .prop_map(|(from, to, amount, gas_fee, choice, content)| {
                let amount = amount.to_string();
                match choice {
                    0 => WireKind::SuiSendNative(wire::SuiSendNative {
                        recipients: vec![],
                        from,
                        to,
                        value: amount,
                        gas_fee,
                    }),
                    1 => WireKind::SuiSendCoin(wire::SuiSendCoin {
                        recipients: vec![],
                        from,
                        to,
                        coin_tag: "0x2::lp::LP<0xABC::tok::TOK,0x2::sui::SUI>".into(),
                        amount,
                        gas_fee,
                    }),
                    2 => WireKind::SuiSendCustom(wire::SuiSendCustom {
                        from: SUI_FROM.into(),
                        payload: hex::decode(SUI_CUSTOM).unwrap(),
                        other_signatures: Vec::new(),
                    }),
                    _ => WireKind::SuiMessage(wire::SuiMessage {
                        from,
                        r#type: 0,
                        content,
                    }),
                }
            }),
        (prop_oneof![address(), key(), tron_address()], 0..3, bytes()).prop_map(
            |(from, hash, content)| {
                WireKind::RawMessage(wire::RawMessage {
                    from,
                    content,
                    ecdsa_hash_function: hash,
                })
            }
        ),
    ]
}

proptest! {
    #[test]
    fn payload__should_come_back_from_its_bytes(kind in built_kind()) {
        let payload = Payload::parse(&kind).unwrap();
        prop_assert_eq!(Payload::decode(&payload.encode()).unwrap(), payload.clone());
        prop_assert_eq!(PayloadKind::of(&kind), PayloadKind::of(&payload.to_wire()));
        prop_assert_eq!(PayloadKind::of(&kind), payload.payload_kind());
    }

    #[test]
    fn payload__should_never_panic_on_bytes(bytes: Vec<u8>) {
        let _ = Payload::decode(&bytes);
    }

    #[test]
    fn payload__should_never_panic_on_texts(from in ".{0,60}", to in ".{0,60}", value in ".{0,60}", chain_id: u64, nonce: Option<i64>) {
        let gas_fee = gas(&value, Some(&to), &from);
        let _ = Payload::parse(&WireKind::EvmSendNative(wire::EvmSendNative {
            chain_id, from: from.clone(), to: to.clone(), value: value.clone(), gas_fee, nonce,
        }));
        let _ = Payload::parse(&WireKind::SolanaSendNative(wire::SolanaSendNative {
            from, to, value, chain_id,
            ..Default::default()
        }));
    }
}

#[test]
fn payloads__should_do_the_same_whatever_their_numbers_fees_and_times_are() {
    use crate::networks::Network::{Evm, Solana, Stellar, Ton};
    let parse = |kind| Payload::parse(&kind).unwrap();
    let call = |nonce, data: &[u8]| {
        parse(WireKind::EvmSendCustom(wire::EvmSendCustom {
            input: data.to_vec(),
            nonce: Some(nonce),
            gas_fee: gas("2", Some("1"), "60000").filter(|_| nonce == 1),
            ..custom()
        }))
    };
    let xlm = |bytes: &[u8]| {
        parse(WireKind::StellarSendCustom(wire::StellarSendCustom {
            from: XLM.into(),
            tx_base64: STANDARD.encode(bytes),
        }))
    };
    // Fee, sequence number and the low byte of the amount are in fixed places.
    let envelope = STANDARD.decode(XLM_TX).unwrap();
    let changed = |at: usize| {
        let mut bytes = envelope.clone();
        bytes[at] ^= 1;
        xlm(&bytes)
    };
    let ton = |valid_until: u64, amount: &str| {
        let asked = serde_json::json!({"valid_until": valid_until, "messages": [{
            "address": TON, "amount": amount
        }]});
        parse(WireKind::TonSendCustom(wire::TonSendCustom {
            from: TON.into(),
            payload: asked.to_string().into_bytes(),
        }))
    };
    for (network, one, same, other) in [
        (Evm, call(0, &[7]), call(1, &[7]), call(1, &[8])),
        (
            Stellar,
            xlm(&envelope),
            changed(43),
            changed(envelope.len() - 9),
        ),
        (
            Stellar,
            xlm(&envelope),
            changed(51),
            changed(envelope.len() - 9),
        ),
        (
            Ton,
            ton(1_900_000_000, "5"),
            ton(1_900_000_001, "5"),
            ton(1_900_000_000, "6"),
        ),
    ] {
        assert!(one.does_the_same(&same, network), "{same:?}");
        assert!(!one.does_the_same(&other, network), "{other:?}");
        assert_ne!(one, same);
    }
    assert!(!xlm(&envelope).does_the_same(&call(0, &[7]), Solana));
}

#[test]
fn payments__should_be_no_substitute_for_each_other_with_another_memo() {
    use crate::networks::Network::Stellar;
    let parse = |kind| Payload::parse(&kind).unwrap();
    let pay = |memo: &str| {
        parse(WireKind::StellarSendNative(wire::StellarSendNative {
            from: XLM.into(),
            to: XLM_ISSUER.into(),
            value: "5".into(),
            memo: memo.into(),
            ..Default::default()
        }))
    };
    assert!(pay("a").does_the_same(&pay("b"), Stellar));
    assert!(!pay("a").does_exactly_the_same(&pay("b"), Stellar));
    assert!(pay("a").does_exactly_the_same(&pay("a"), Stellar));
}
