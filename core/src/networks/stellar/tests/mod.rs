#![allow(non_snake_case)]

mod built;
mod custom;
mod ledgers;
mod means;

use ed25519_dalek::{Signer as _, SigningKey};
use proptest::prelude::*;
use stellar_xdr::{
    AccountId, Asset as XdrAsset, ClaimPredicate, Claimant, ClaimantV0, CreateClaimableBalanceOp,
    FeeBumpTransaction, FeeBumpTransactionExt, FeeBumpTransactionInnerTx, HostFunction,
    InvokeContractArgs, InvokeHostFunctionOp, Limits, Memo, MuxedAccount, MuxedAccountMed25519,
    Operation, OperationBody, PathPaymentStrictReceiveOp, PathPaymentStrictSendOp, PaymentOp,
    Preconditions, ScAddress, ScVal, SequenceNumber, SorobanTransactionData, TimeBounds, TimePoint,
    Transaction, TransactionEnvelope, TransactionExt, TransactionV0, TransactionV0Envelope,
    TransactionV0Ext, TransactionV1Envelope, Uint256, WriteXdr as _,
};

use super::{
    super::*,
    envelope::{MAX_BASE_FEE, NEW_ACCOUNT, decode},
    *,
};
use crate::{
    networks::{
        self, DynNetworkRules, FeeLevel, Payload, WireKind,
        outflow::{Asset, ChainScope, ContentKind, Outflow},
    },
    schema::wire,
};

const STELLAR: &dyn DynNetworkRules = &Stellar;

const TO: &str = "GC2L7D2DLA4IGYCOLPD3X5IFSG2OWDJXVGHCH54WXFMYB5CKCILAD5CT";
const MUXED: &str = "MA2PBV25UB5BFHT3PH7ME6RBTC3Z3KCEJZLT2AE4DGTXSRZJ4JOTWAAAAAAAAAAAA63GI";
const ISSUER: &str = "GA5ZSEJYB37JRC5AVCIA5MOP4RHTM335X2KGX3IHOJAPP5RE34K4KZVN";
const CONTRACT: &str = "CA3D5KRYM6CB7OWQ6TWYRR3Z4T7GNZLKERYNZGGA5SOAOPIFY6YQGAXE";

fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn public_key() -> Vec<u8> {
    key(7).verifying_key().to_bytes().to_vec()
}

fn from() -> String {
    STELLAR.address(&public_key()).unwrap()
}

fn send_to(to: &str, value: &str) -> Result<Payload, Fault> {
    Payload::parse(&WireKind::StellarSendNative(wire::StellarSendNative {
        from: from(),
        to: to.into(),
        value: value.into(),
        memo: String::new(),
        ..Default::default()
    }))
}

fn send() -> Payload {
    send_to(TO, "2.5").unwrap()
}

fn send_asset_wire(to: &str, code: &str, amount: &str) -> WireKind {
    WireKind::StellarSendAsset(wire::StellarSendAsset {
        from: from(),
        to: to.into(),
        asset_code: code.into(),
        asset_issuer: ISSUER.into(),
        amount: amount.into(),
        memo: "rent".into(),
        ..Default::default()
    })
}

fn send_asset() -> Payload {
    Payload::parse(&send_asset_wire(MUXED, "USDC", "0.0000001")).unwrap()
}

fn trust_wire(code: &str, issuer: &str) -> WireKind {
    WireKind::StellarChangeTrust(wire::StellarChangeTrust {
        from: from(),
        asset_code: code.into(),
        asset_issuer: issuer.into(),
        memo: String::new(),
        ..Default::default()
    })
}

fn trust() -> Payload {
    Payload::parse(&trust_wire("LONGASSET123", ISSUER)).unwrap()
}

fn custom_bytes(bytes: &[u8]) -> Result<Payload, Fault> {
    Payload::parse(&WireKind::StellarSendCustom(wire::StellarSendCustom {
        from: from(),
        tx_base64: STANDARD.encode(bytes),
    }))
}

fn custom(envelope: &TransactionEnvelope) -> Result<Payload, Fault> {
    custom_bytes(&envelope.to_xdr(Limits::none()).unwrap())
}

fn own_facts(destination_exists: Option<bool>) -> ChainData {
    ChainData {
        sequence: 41,
        base_fee: 100,
        max_time: 1_762_000_300,
        destination_exists,
    }
}

fn chain_data(destination_exists: Option<bool>) -> networks::ChainData {
    own_facts(destination_exists).into()
}

fn build(payload: &Payload, chain_data: &networks::ChainData) -> Result<Unsigned, Fault> {
    STELLAR.build(payload, chain_data, &public_key())
}

fn signature(message: &[u8]) -> Signature {
    let signature = key(7).sign(message);
    Signature::Ed25519 {
        r: *signature.r_bytes(),
        s: *signature.s_bytes(),
    }
}

fn muxed(text: &str) -> MuxedAccount {
    parse_address(text).unwrap()
}

fn native(to: &str, amount: i64) -> OperationBody {
    OperationBody::Payment(PaymentOp {
        destination: muxed(to),
        asset: XdrAsset::Native,
        amount,
    })
}

fn tx(source: &str, operations: Vec<Operation>) -> Transaction {
    Transaction {
        source_account: muxed(source),
        fee: 300,
        seq_num: SequenceNumber(9),
        cond: Preconditions::None,
        memo: Memo::None,
        operations: operations.try_into().unwrap(),
        ext: TransactionExt::V0,
    }
}

fn by(source: Option<&str>, body: OperationBody) -> Operation {
    Operation {
        source_account: source.map(muxed),
        body,
    }
}

fn v1(source: &str, bodies: Vec<OperationBody>) -> TransactionEnvelope {
    let operations = bodies.into_iter().map(|body| by(None, body));
    tx(source, operations.collect()).into()
}

fn v0(operations: Vec<Operation>) -> TransactionEnvelope {
    TransactionEnvelope::TxV0(TransactionV0Envelope {
        tx: TransactionV0 {
            source_account_ed25519: Uint256(key_of(&public_key()).unwrap()),
            fee: 300,
            seq_num: SequenceNumber(9),
            time_bounds: Some(TimeBounds {
                min_time: TimePoint(1),
                max_time: TimePoint(2),
            }),
            memo: Memo::Id(3),
            operations: operations.try_into().unwrap(),
            ext: TransactionV0Ext::V0,
        },
        signatures: Default::default(),
    })
}

fn bump(payer: &str, fee: i64, inner: Transaction) -> TransactionEnvelope {
    FeeBumpTransaction {
        fee_source: muxed(payer),
        fee,
        inner_tx: FeeBumpTransactionInnerTx::Tx(TransactionV1Envelope {
            tx: inner,
            signatures: Default::default(),
        }),
        ext: FeeBumpTransactionExt::V0,
    }
    .into()
}

/// Our own account under a number.
fn own_muxed() -> String {
    MuxedAccount::MuxedEd25519(MuxedAccountMed25519 {
        id: 5,
        ed25519: Uint256(key_of(&public_key()).unwrap()),
    })
    .to_string()
}

#[test]
fn valid_until__should_be_the_second_after_the_time_bound() {
    let of = |payload: &Payload, chain_data: &networks::ChainData| {
        let unsigned = build(payload, chain_data).unwrap();
        let made = [signature(&unsigned.signing[0].message)];
        let signed = STELLAR.assemble(payload, &unsigned, &made, &public_key());
        STELLAR.valid_until(&signed.unwrap().unwrap())
    };
    let end_ms = Some(ChainMoment::at_ms(1_762_000_301_000));
    assert_eq!(of(&send(), &chain_data(Some(true))), Ok(end_ms));
    let unbound = custom(&v1(&from(), vec![native(TO, 1)])).unwrap();
    assert_eq!(of(&unbound, &networks::ChainData::Nothing), Ok(None));
    let signed = Signed {
        transaction: "AAAA".into(),
        tx_hash: String::new(),
    };
    let fault = STELLAR.valid_until(&signed).unwrap_err();
    assert_eq!(fault.class(), &Class::Bug);
}

#[test]
fn network__should_be_the_public_one() {
    let passphrase = "Public Global Stellar Network ; September 2015";
    assert_eq!(Sha256::digest(passphrase).as_slice(), NETWORK_ID);
}

// ---- addresses and assets ---------------------------------------------------------------

#[test]
fn address__should_be_an_account_or_a_muxed_one() {
    for text in [TO, MUXED, ISSUER] {
        assert_eq!(STELLAR.parse_address(text).unwrap(), text);
    }
    let seed = "SCDUEPYXRRHFFTZYWXK6ZYLRUTBRLVBP6JGBYUGROYSBA3TVUFBPGMM7";
    let changed = format!("{}A", &TO[..55]);
    for (text, error) in [
        ("", AddressError::Form),
        ("G", AddressError::Form),
        (&TO[..55], AddressError::Form),
        (&TO.to_lowercase(), AddressError::Form),
        (&format!("{TO}="), AddressError::Form),
        (&format!(" {TO}"), AddressError::Form),
        (&"A".repeat(100_000), AddressError::Form),
        ("\u{e9}", AddressError::Form),
        (&changed, AddressError::Checksum),
        (seed, AddressError::Seed),
        (CONTRACT, AddressError::Contract),
        // A hash, which cannot be paid either.
        (
            "XBU2RRGLXH3E5CQHTD3ODLDF2BWDCYUSSBLLZ5GNW7JXHDIYKXZWGTOG",
            AddressError::Form,
        ),
    ] {
        assert_eq!(parse_address(text), Err(error), "{text}");
    }
    assert_eq!(parse_account(MUXED), Err(AddressError::Muxed));
    for key in [[0xff; 32], [0; 32], [2; 32]] {
        assert!(STELLAR.address(&key).is_err());
    }
}

#[test]
fn token__should_be_code_and_issuer() {
    for code in ["X", "USDC", "yXLM", "ABCDE", "LONGASSET123", "0"] {
        let text = format!("{code}:{ISSUER}");
        assert_eq!(STELLAR.parse_token(&text).unwrap(), text);
        let asset = IssuedAsset::parse(&text).unwrap();
        assert_eq!(IssuedAsset::of(&asset.to_asset()), Some(asset));
        let asset = Asset::parse(&format!("stellar/{text}")).unwrap();
        assert_eq!(asset.token, Some(text));
    }
    for (text, error) in [
        ("USDC".into(), AssetError::Form),
        (format!(":{ISSUER}"), AssetError::Code),
        (format!("TOOLONGASSETC:{ISSUER}"), AssetError::Code),
        (format!("US-C:{ISSUER}"), AssetError::Code),
        (format!("US\\x43:{ISSUER}"), AssetError::Code),
        (format!("\u{e9}:{ISSUER}"), AssetError::Code),
        (
            format!("USDC:{MUXED}"),
            AssetError::Issuer(AddressError::Muxed),
        ),
        ("USDC:".into(), AssetError::Issuer(AddressError::Form)),
        (
            format!("USDC:{ISSUER}:"),
            AssetError::Issuer(AddressError::Form),
        ),
    ] {
        assert_eq!(IssuedAsset::parse(&text), Err(error), "{text}");
    }
}

// ---- requests ---------------------------------------------------------------------------

#[test]
fn requests__should_name_the_field_that_is_wrong() {
    let native = |change: fn(&mut wire::StellarSendNative)| {
        let mut wire = wire::StellarSendNative {
            from: from(),
            to: TO.into(),
            value: "1".into(),
            memo: "m".into(),
            ..Default::default()
        };
        change(&mut wire);
        WireKind::StellarSendNative(wire)
    };
    for (kind, sentence) in [
        (native(|w| w.from.clear()), "stellarSendNative.from: is req"),
        (
            native(|w| w.from = MUXED.into()),
            "stellarSendNative.from: is a muxed",
        ),
        (
            native(|w| w.to.clear()),
            "stellarSendNative.to: is required",
        ),
        (
            native(|w| w.to = CONTRACT.into()),
            "stellarSendNative.to: is a contract",
        ),
        (
            native(|w| w.value.clear()),
            "stellarSendNative.value: is required",
        ),
        (
            native(|w| w.value = ".5".into()),
            "stellarSendNative.value: must be a decimal",
        ),
        (
            native(|w| w.value = "0.00".into()),
            "stellarSendNative.value: must be more than 0",
        ),
        (
            native(|w| w.value = "01".into()),
            "stellarSendNative.value: must not have leading",
        ),
        (
            native(|w| w.value = "9".repeat(13)),
            "stellarSendNative.value: is too large: at most 922",
        ),
        (
            native(|w| w.memo = "\u{e9}".repeat(15)),
            "stellarSendNative.memo: is too long: at most 28",
        ),
        (
            send_asset_wire(TO, "", "1"),
            "stellarSendAsset.assetCode: is required",
        ),
        (
            send_asset_wire(TO, "US-C", "1"),
            "stellarSendAsset.assetCode: must be 1 to 12",
        ),
        (
            send_asset_wire(TO, "USDC", "-3"),
            "stellarSendAsset.amount: must be a decimal",
        ),
        (
            trust_wire("USDC", ""),
            "stellarChangeTrust.assetIssuer: is required",
        ),
        (
            trust_wire("USDC", MUXED),
            "stellarChangeTrust.assetIssuer: is a muxed",
        ),
        (
            trust_wire("USDC", &from()),
            "stellarChangeTrust.assetIssuer: must not be the wallet",
        ),
    ] {
        let fault = Payload::parse(&kind).unwrap_err();
        assert_eq!(fault.class(), &Class::Invalid);
        assert!(fault.message().starts_with(sentence), "{fault}");
    }
}

#[test]
fn amounts__should_be_written_without_needless_zeros() {
    for (given, shown) in [
        ("10", "10"),
        ("10.0", "10"),
        ("1.5000000", "1.5"),
        ("0.0000001", "0.0000001"),
        ("100.0100", "100.01"),
        ("922337203685.4775807", "922337203685.4775807"),
    ] {
        let payload = send_to(TO, given).unwrap();
        let WireKind::StellarSendNative(wire) = payload.to_wire() else {
            unreachable!()
        };
        assert_eq!(wire.value, shown);
    }
}

/// (token, amount, recipient)
fn shown(outflow: &Outflow) -> Vec<(Option<&str>, String, Option<&str>)> {
    assert_eq!(outflow.place, ChainScope::network(Network::Stellar));
    outflow
        .spends
        .iter()
        .map(|spend| {
            assert_eq!(spend.asset.place, outflow.place);
            (
                spend.asset.token.as_deref(),
                spend.amount.to_string(),
                spend.recipient.as_deref(),
            )
        })
        .collect()
}

fn recipient() -> impl Strategy<Value = MuxedAccount> {
    (any::<[u8; 32]>(), any::<Option<u64>>()).prop_map(|(key, id)| match id {
        None => MuxedAccount::Ed25519(Uint256(key)),
        Some(id) => MuxedAccount::MuxedEd25519(MuxedAccountMed25519 {
            id,
            ed25519: Uint256(key),
        }),
    })
}

proptest! {
    #[test]
    fn address__should_return_what_was_written(address in recipient()) {
        let text = address.to_string();
        prop_assert_eq!(STELLAR.parse_address(&text).unwrap(), text.clone());
        prop_assert_eq!(parse_address(&text).unwrap(), address);
    }

    #[test]
    fn address__should_never_panic(text in "[GMSCX]?.{0,170}") {
        let _ = (parse_address(&text), IssuedAsset::parse(&text));
    }
}
