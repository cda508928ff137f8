#![allow(non_snake_case)]

mod approvals;
mod batches;
mod calls;
mod holds;
mod own_prices;
mod rejections;

use std::collections::BTreeSet;

use covault_core::{
    approval::OrderApprovals,
    derive::{KeyPath, RootKey},
    fault::{Class, ExecuteCode},
    ids::{RequestId, VaultId},
    networks::{ChainData, Network, Payload, WireKind, aptos, evm, solana, stellar, sui},
    order::SigningOrder,
    schema::wire::{self, evm_message},
    signature::Curve,
};

use super::*;

const BOB: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
const EVE: &str = "0x37b5ba07902c51ef69dE0BbEa42A11a1A94e3ff6";
const TOKEN: &str = "0xdAC17F958D2ee523a2206206994597C13D831ec7";
const SOL: &str = "CxvTXCepdDTH4PXUwU2Pf3FBi87L7VwXtzsgeAm1xVsS";
const OTHER_SOL: &str = "4Nd1mBQtrMJVYVfKf2PJy9NZUZdTAsp7D4xWLs4gDB4T";
/// When orders are checked.
const NOW_MS: u64 = 1_000;
/// What a transaction of 21,000 gas at 2 * 10 + 1 wei can cost.
const FEE: u64 = 441_000;

fn public_key(curve: Curve) -> Vec<u8> {
    let text = match curve {
        // The generator of secp256k1, and a base point multiple of Ed25519 (RFC 8032, test 1).
        Curve::Secp256k1 => "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798",
        Curve::Ed25519 => "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    };
    hex::decode(text).unwrap()
}

fn sender(network: Network) -> String {
    let chain = network.rules();
    chain.address(&public_key(network.curve())).unwrap()
}

/// An order as an orchestrator would make it.
fn order(network: Network, kind: &WireKind, chain_data: ChainData) -> (SigningOrder, Payload) {
    let public_key = public_key(network.curve());
    let payload = Payload::parse(kind).unwrap();
    let chain = network.rules();
    let unsigned = chain.build(&payload, &chain_data, &public_key).unwrap();
    let order = SigningOrder {
        request: RequestId::from_bytes([1; 16]),
        vault: VaultId::from_bytes([2; 16]),
        epoch: 0,
        network,
        root_public_key: public_key.clone(),
        path: KeyPath::new(Vec::new()).unwrap(),
        public_key,
        address: sender(network),
        payload: payload.encode(),
        chain_data,
        unsigned: unsigned.bytes,
        inputs: unsigned.signing,
        recipient_indices: Vec::new(),
        approvals: OrderApprovals::default(),
        issued_at_ms: 0,
        expires_at_ms: 0,
    };
    (order, payload)
}

fn fees() -> ChainData {
    ChainData::Evm(evm::ChainData {
        nonce: Some(0),
        eip1559: true,
        fees: Some(evm::Fees {
            estimate_gas: 21_000,
            base_fee: 10,
            max_priority_fee: 1,
        }),
    })
}

fn native(chain_id: u64, to: &str, value: u64) -> (SigningOrder, Payload) {
    let kind = WireKind::EvmSendNative(wire::EvmSendNative {
        chain_id,
        from: sender(Network::Evm),
        to: to.into(),
        value: value.to_string(),
        ..Default::default()
    });
    order(Network::Evm, &kind, fees())
}

fn gas() -> Option<wire::EvmGas> {
    Some(wire::EvmGas {
        max_fee: Some("10".into()),
        max_priority_fee: Some("1".into()),
        gas_limit: Some("100000".into()),
        ..Default::default()
    })
}

fn token(token: &str, to: &str, amount: u64) -> (SigningOrder, Payload) {
    let kind = WireKind::EvmSendErc20(wire::EvmSendErc20 {
        chain_id: 1,
        from: sender(Network::Evm),
        to: to.into(),
        token_contract_address: token.into(),
        amount: amount.to_string(),
        gas_fee: gas(),
        nonce: Some(0),
    });
    order(Network::Evm, &kind, ChainData::Nothing)
}

fn call(to: &str, input: Vec<u8>) -> (SigningOrder, Payload) {
    let kind = WireKind::EvmSendCustom(wire::EvmSendCustom {
        chain_id: 1,
        from: sender(Network::Evm),
        to: to.into(),
        value: "1".into(),
        input,
        gas_fee: gas(),
        nonce: Some(0),
    });
    order(Network::Evm, &kind, ChainData::Nothing)
}

fn text(form: evm_message::Type, content: &str) -> (SigningOrder, Payload) {
    let kind = WireKind::EvmMessage(wire::EvmMessage {
        chain_id: 1,
        from: sender(Network::Evm),
        r#type: form.into(),
        content: content.as_bytes().to_vec(),
    });
    order(Network::Evm, &kind, ChainData::Nothing)
}

fn message() -> (SigningOrder, Payload) {
    text(evm_message::Type::PersonalSign, "hello")
}

fn typed(domain: &str) -> (SigningOrder, Payload) {
    let content = format!(
        r#"{{"types": {{"A": [{{"name": "x", "type": "string"}}]}}, "primaryType": "A",
            "domain": {domain}, "message": {{"x": "y"}}}}"#
    );
    text(evm_message::Type::SignTypedData, &content)
}

fn raw(network: Network) -> (SigningOrder, Payload) {
    let kind = WireKind::RawMessage(wire::RawMessage {
        from: sender(network),
        content: vec![7; 32],
        ecdsa_hash_function: wire::EcdsaHashFunction::Sha256.into(),
    });
    order(network, &kind, ChainData::Nothing)
}

fn lamports(to: &str, value: u64) -> (SigningOrder, Payload) {
    priced_lamports(to, value, None)
}

/// A transfer that pays this much for a unit of what it computes, in micro-lamports.
fn priced_lamports(to: &str, value: u64, unit_price: Option<u64>) -> (SigningOrder, Payload) {
    let kind = WireKind::SolanaSendNative(wire::SolanaSendNative {
        from: sender(Network::Solana),
        to: to.into(),
        value: value.to_string(),
        chain_id: 0,
        ..Default::default()
    });
    let chain_data = solana::ChainData {
        recent_blockhash: SOL.into(),
        token: None,
        compute: unit_price.map(|unit_price| solana::ComputeBudget {
            unit_limit: 540,
            unit_price,
        }),
    };
    order(Network::Solana, &kind, ChainData::Solana(chain_data))
}

fn policy(text: &str) -> Policy {
    Policy::parse(&format!("version = 2\n{text}")).unwrap()
}

/// Asset, amount and limit of the counters of the node.
fn of_node(spending: &[Spending]) -> Vec<(String, U256, Option<U256>)> {
    let of_node = |spending: &&Spending| spending.counter.scope == PolicyScope::Node;
    let counted = spending.iter().filter(of_node);
    counted
        .map(
            |Spending {
                 counter,
                 amount,
                 most_per_day,
                 ..
             }| { (counter.asset.clone(), *amount, *most_per_day) },
        )
        .collect()
}

/// The vault's root key.
fn root() -> RootKey {
    RootKey {
        curve: Curve::Secp256k1,
        public_key: public_key(Curve::Secp256k1),
        chain_code: [3; 32],
    }
}

#[track_caller]
fn allowed(policy: &Policy, (order, payload): (SigningOrder, Payload)) -> Vec<Spending> {
    policy.check(&order, &root(), &payload, NOW_MS).unwrap()
}

#[track_caller]
fn refused(policy: &Policy, (order, payload): (SigningOrder, Payload), starts: &str) -> Fault {
    let fault = policy.check(&order, &root(), &payload, NOW_MS).unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    assert!(fault.message().starts_with(starts), "{fault}");
    fault
}

#[test]
fn without_a_file__should_be_signed_everything_but_raw_messages() {
    let floor = Policy::production();
    assert_eq!(policy(""), floor);
    for order in [
        native(1, BOB, 5),
        native(424_242, BOB, 5),
        token(TOKEN, BOB, 5),
        call(BOB, vec![1]),
        call("", vec![1]),
        message(),
        typed("{}"),
        lamports(SOL, 5),
    ] {
        allowed(&floor, order);
    }
    for network in [Network::Evm, Network::Solana] {
        refused(
            &floor,
            raw(network),
            "kind: raw signing (rawMessage) is off",
        );
        assert!(allowed(&Policy::development(), raw(network)).is_empty());
    }
}

/// What an orchestrator tells its clients at once: nothing is built yet, and maybe no fee known.
#[test]
fn foresee__should_refuse_what_no_fee_makes_allowed_in_the_services_name() {
    let policy = policy(&format!(
        "most_fee.evm = \"10\"\nrecipients.evm = [\"{BOB}\"]\n\
         [vaults.\"{VAULT}\"]\n[[vaults.\"{VAULT}\".limits]]\nasset = \"evm:1\"\nper_request = \"5\"\n"
    ));
    let foresee = |policy: &Policy, (order, payload): (SigningOrder, Payload), fee: Option<u64>| {
        let asked = PolicyRequest {
            vault: order.vault,
            network: order.network,
            payload: &payload,
            fee: U256::ZERO,
            price: None,
            own_price: None,
            own_wallets: &BTreeSet::new(),
        };
        let verdict = policy.foresee(&asked, fee.map(U256::from));
        verdict
            .map(|_| ())
            .map_err(|fault| fault.message().to_owned())
    };
    let service = policy.clone().of_service();
    assert_eq!(foresee(&service, native(1, BOB, 4), None), Ok(()));
    assert_eq!(foresee(&service, native(1, BOB, 4), Some(1)), Ok(()));
    // Every transaction costs something.
    for (value, fee) in [(5, None), (4, Some(2))] {
        let refused = foresee(&service, native(1, BOB, value), fee).unwrap_err();
        let over =
            format!("with the fee, more evm:1 than this service's policy (vault {VAULT}) allows");
        assert!(refused.contains(&over), "{refused}");
    }
    let refused = foresee(&service, native(1, BOB, 1), Some(11)).unwrap_err();
    assert!(refused.starts_with("fee: could take more than this service's policy"));
    let refused = foresee(&service, native(1, EVE, 1), None).unwrap_err();
    assert!(refused.starts_with("recipient: is not in the list of this service's policy"));
    let of_signer = foresee(&policy, native(1, EVE, 1), None).unwrap_err();
    assert!(of_signer.starts_with("recipient: is not in the list of this signer's policy"));
}

#[test]
fn networks__should_bind_where_the_signature_is_good() {
    let one = policy(r#"networks = ["evm:1"]"#);
    allowed(&one, native(1, BOB, 5));
    allowed(&one, message());
    allowed(&one, typed(r#"{"chainId": 1}"#));
    refused(
        &one,
        native(10, BOB, 5),
        "network: this signer's policy does not allow evm:10",
    );
    refused(&one, lamports(SOL, 5), "network: ");
    // Good on any chain, whatever chain the request names.
    refused(&one, typed(r#"{"name": "n"}"#), "network: ");
    let raw_too = policy("networks = [\"evm:1\"]\nraw_signing = true");
    refused(&raw_too, raw(Network::Evm), "network: ");
    refused(&policy("networks = []"), message(), "network: ");
    let all = policy("networks = [\"evm\"]\nraw_signing = true");
    for order in [native(10, BOB, 5), typed("{}"), raw(Network::Evm)] {
        allowed(&all, order);
    }
    refused(&all, raw(Network::Solana), "network: ");
}

#[test]
fn kinds__should_be_those_that_are_listed() {
    let some = policy(r#"kinds = ["evmSendNative", "solanaSendNative"]"#);
    allowed(&some, native(1, BOB, 5));
    allowed(&some, lamports(SOL, 5));
    refused(
        &some,
        message(),
        "kind: this signer's policy does not allow evmMessage",
    );
    refused(&some, token(TOKEN, BOB, 5), "kind: ");
    let quiet = policy("messages = false");
    refused(&quiet, message(), "kind: messages (evmMessage) are off");
    // Listing it is not enough: raw signing has a switch of its own.
    refused(
        &policy(r#"kinds = ["rawMessage"]"#),
        raw(Network::Evm),
        "kind: raw signing",
    );
}

#[test]
fn recipients__should_be_those_that_are_listed() {
    let listed = policy(&format!(
        "recipients.evm = [\"{}\"]\nrecipients.\"evm:1\" = [\"{TOKEN}\"]\nrecipients.solana = []\ncustom_calls = [\"evm\"]",
        BOB.to_lowercase()
    ));
    allowed(&listed, native(1, BOB, 5));
    allowed(&listed, native(10, BOB, 5));
    allowed(&listed, native(1, TOKEN, 5));
    allowed(&listed, token(TOKEN, BOB, 5));
    // An empty list is nobody.
    refused(&listed, lamports(SOL, 5), "recipient: is not in the list");
    // The contract that is called.
    allowed(&listed, call(BOB, vec![1]));
    for order in [
        native(1, EVE, 5),
        native(10, TOKEN, 5),
        token(TOKEN, EVE, 5),
        call(EVE, vec![1]),
        // Tokens in disguise.
        call(TOKEN, transfer(EVE, 1)),
    ] {
        let fault = refused(&listed, order, "recipient: is not in the list");
        assert_eq!(fault.execute_code(), ExecuteCode::AddressNotInWhitelist);
    }
    allowed(&listed, call(TOKEN, transfer(BOB, 1)));
    // A contract that does not exist yet.
    refused(&listed, call("", vec![1]), "recipient: cannot be seen");
    let solana = policy(&format!("recipients.solana = [\"{SOL}\"]"));
    allowed(&solana, lamports(SOL, 5));
    refused(&solana, lamports(OTHER_SOL, 5), "recipient: ");
}

fn transfer(to: &str, amount: u8) -> Vec<u8> {
    let mut input = vec![0xa9, 0x05, 0x9c, 0xbb];
    input.extend([0; 12]);
    input.extend(hex::decode(&to[2..]).unwrap());
    input.extend([0; 31]);
    input.push(amount);
    input
}

#[test]
fn amounts__should_be_limited_per_request_with_the_fee() {
    let most = FEE + 5;
    let limited = policy(&format!(
        "limits = [{{ asset = \"evm:1\", per_request = \"{most}\", per_day = \"{}\" }},\n
         {{ asset = \"evm:1/{TOKEN}\", per_request = \"7\" }}]",
        most * 10
    ));
    let counted = allowed(&limited, native(1, BOB, 5));
    let expected = (
        "evm:1".to_owned(),
        U256::from(most),
        Some(U256::from(most * 10)),
    );
    assert_eq!(of_node(&counted), [expected]);
    let fault = refused(&limited, native(1, BOB, 6), "amount: ");
    assert!(
        fault
            .message()
            .ends_with("more evm:1 than this signer's policy allows per request")
    );
    // Another chain is another coin.
    allowed(&limited, native(10, BOB, 6));
    let counted = allowed(&policy(""), token(TOKEN, BOB, 7));
    let tokens: Vec<String> = of_node(&counted)
        .into_iter()
        .map(|(asset, amount, _)| format!("{amount} {asset}"))
        .collect();
    assert_eq!(
        tokens,
        ["1000000 evm:1".to_owned(), format!("7 evm:1/{TOKEN}")]
    );
    let dear = policy(&format!(
        "limits = [{{ asset = \"evm:1/{TOKEN}\", per_request = \"7\" }}]"
    ));
    allowed(&dear, token(TOKEN, BOB, 7));
    refused(&dear, token(TOKEN, BOB, 8), "amount: ");
    // The fee alone is too much of the coin.
    refused(
        &limited,
        token(TOKEN, BOB, 7),
        "amount: with the fee, more evm:1 ",
    );
    allowed(&dear, token(EVE, BOB, 8));
    let only = format!(
        "only_listed_assets = true\nlimits = [{{ asset = \"evm:1/{TOKEN}\", per_request = \"7\" }}]\n"
    );
    // The fee goes out in a coin that is not listed: the one who sets it may be who gets it.
    refused(
        &policy(&only),
        token(TOKEN, BOB, 7),
        "fee: this signer's policy allows listed assets only, and limits neither evm:1 nor",
    );
    let only = policy(&format!("{only}most_fee.\"evm:1\" = \"1000000\""));
    allowed(&only, token(TOKEN, BOB, 7));
    refused(
        &only,
        token(EVE, BOB, 1),
        "amount: this signer's policy has no limits for evm:1/",
    );
    refused(&only, lamports(SOL, 1), "amount: ");
}

#[test]
fn solana__should_have_one_limit_for_all_that_its_signatures_can_move() {
    let limited = policy("limits = [{ asset = \"solana\", per_request = \"5005\" }]");
    allowed(&limited, lamports(SOL, 5));
    refused(&limited, lamports(SOL, 6), "amount: ");
    let (mut order, _) = lamports(SOL, 6);
    let sonic = Payload::parse(&WireKind::SonicSvmSendNative(wire::SolanaSendNative {
        from: sender(Network::Solana),
        to: SOL.into(),
        value: "6".into(),
        chain_id: 0,
        ..Default::default()
    }));
    let sonic = sonic.unwrap();
    order.payload = sonic.encode();
    refused(&limited, (order, sonic), "amount: ");
}

#[test]
fn fees__should_be_limited_per_place() {
    let evm = policy(&format!("most_fee.\"evm:1\" = \"{FEE}\""));
    allowed(&evm, native(1, BOB, 5));
    // 1,000,000 wei.
    refused(
        &evm,
        token(TOKEN, BOB, 1),
        "fee: could take more than this signer's policy allows for evm:1",
    );
    let tight = policy(&format!("most_fee.evm = \"{}\"", FEE - 1));
    refused(&tight, native(1, BOB, 5), "fee: ");
    refused(&tight, native(10, BOB, 5), "fee: ");
    allowed(&tight, message());
    refused(
        &policy("most_fee.solana = \"4999\""),
        lamports(SOL, 5),
        "fee: ",
    );
    allowed(&policy("most_fee.solana = \"5000\""), lamports(SOL, 5));
}

/// A payment on Ethereum that names these fees itself.
fn payment_with(gas_fee: Option<wire::EvmGas>) -> WireKind {
    WireKind::EvmSendNative(wire::EvmSendNative {
        chain_id: 1,
        from: sender(Network::Evm),
        to: BOB.into(),
        value: "5".into(),
        gas_fee,
        nonce: Some(0),
    })
}

#[test]
fn prices_of_chain_nodes__should_have_a_ceiling() {
    let judged = |policy: &Policy, (order, payload): (SigningOrder, Payload), price| {
        policy
            .evaluate(&PolicyRequest {
                vault: order.vault,
                network: order.network,
                payload: &payload,
                fee: U256::ZERO,
                price,
                own_price: None,
                own_wallets: &BTreeSet::new(),
            })
            .map(drop)
            .map_err(|fault| fault.message().to_owned())
    };
    const GWEI: u128 = 1_000_000_000;
    let none = Policy::default();
    for (chain, most) in [(1, 1_000), (8453, 100), (31_337, 10_000)] {
        let price = most * GWEI;
        assert_eq!(judged(&none, native(chain, BOB, 5), Some(price)), Ok(()));
        let refusal = judged(&none, native(chain, BOB, 5), Some(price + 1)).unwrap_err();
        assert!(refusal.starts_with("price: is "), "{refusal}");
        assert!(refusal.contains("wei per unit of gas"), "{refusal}");
        assert_eq!(judged(&none, native(chain, BOB, 5), None), Ok(()));
    }
    let raised = policy("most_price.\"evm:1\" = \"2000000000000\"");
    assert_eq!(
        judged(&raised, native(1, BOB, 5), Some(2_000 * GWEI)),
        Ok(())
    );
    assert!(judged(&raised, native(8453, BOB, 5), Some(101 * GWEI)).is_err());
    let of_vault = policy("[each_vault]\nmost_price.evm = \"5\"");
    assert!(judged(&of_vault, native(1, BOB, 5), Some(6)).is_err());

    // The signer takes it from the order: twice the base fee, and the tip. What a request names itself has a ceiling of its own.
    let quoted = |gas_fee, max_priority_fee| {
        let kind = payment_with(gas_fee);
        let facts = evm::ChainData {
            nonce: None,
            eip1559: true,
            fees: Some(evm::Fees {
                estimate_gas: 21_000,
                base_fee: 400 * GWEI,
                max_priority_fee,
            }),
        };
        order(Network::Evm, &kind, facts.into())
    };
    allowed(&none, quoted(None, 200 * GWEI));
    refused(&none, quoted(None, 200 * GWEI + 1), "price: is ");
    allowed(&raised, quoted(None, 200 * GWEI + 1));
    let own_tip = wire::EvmGas {
        max_priority_fee: Some("1".into()),
        ..Default::default()
    };
    allowed(&none, quoted(Some(own_tip), 1_000_000 * GWEI));
}

/// A sweep names its own fees, and the signer cannot tell it from what a client wants: whoever names the price, an
/// orchestrator that is hostile or believes its node, must not burn a deposit.
#[test]
fn prices_that_requests_name__should_have_a_ceiling() {
    const GWEI: u64 = 1_000_000_000;
    let own = |most: u64, tip: Option<u64>| {
        let gas_fee = Some(wire::EvmGas {
            max_fee: (most > 0).then(|| most.to_string()),
            max_priority_fee: tip.map(|tip| tip.to_string()),
            gas_limit: Some("21000".into()),
            ..Default::default()
        });
        let kind = payment_with(gas_fee);
        let facts = evm::ChainData {
            nonce: None,
            eip1559: true,
            fees: (most == 0).then_some(evm::Fees {
                estimate_gas: 21_000,
                base_fee: 400,
                max_priority_fee: 1,
            }),
        };
        match most {
            0 => order(Network::Evm, &kind, facts.into()),
            _ => order(Network::Evm, &kind, ChainData::Nothing),
        }
    };
    let none = Policy::default();
    let most = 4_000 * GWEI;
    let raised = policy("most_own_price.\"evm:1\" = \"4200000000000\"");
    // As a coin sweep names it, of the kind without a tip, and a tip alone.
    for dear in [
        own(most + 1, Some(most + 1)),
        own(most + 1, None),
        own(0, Some(most)),
    ] {
        let fault = refused(&none, dear.clone(), "price: is 400000000");
        assert!(fault.message().contains("by the request"), "{fault}");
        allowed(&raised, dear);
    }
    allowed(&none, own(most, Some(most)));
    allowed(&none, own(most, None));
    // What is raised for nodes is raised for requests, and not the other way round.
    let nodes = policy("most_price.\"evm:1\" = \"1100000000000\"");
    allowed(&nodes, own(4_400 * GWEI, None));
    refused(&nodes, own(4_400 * GWEI + 1, None), "price: ");
    refused(&raised, own(4_200 * GWEI + 1, None), "price: ");
    let of_vault = policy("[each_vault]\nmost_price.evm = \"5\"");
    refused(&of_vault, own(21, None), "price: ");
    allowed(&of_vault, own(20, None));

    let gas = |price: u64| wire::AptosGas {
        max_gas_amount: Some("9".into()),
        gas_unit_price: Some(price.to_string()),
        ..Default::default()
    };
    let aptos = |price| {
        let kind = WireKind::AptosSendNative(wire::AptosSendNative {
            chain_id: 1,
            from: sender(Network::Aptos),
            to: format!("0x{}", "22".repeat(32)),
            value: "5".into(),
            gas_fee: Some(gas(price)),
            ..Default::default()
        });
        let facts = aptos::ChainData {
            sequence_number: 4,
            expiration_timestamp_secs: 300,
            gas_unit_price: None,
            gas_used: None,
            abi: None,
        };
        order(Network::Aptos, &kind, ChainData::Aptos(facts))
    };
    allowed(&none, aptos(40_000));
    refused(&none, aptos(40_001), "price: is 40001 octa");
}

#[test]
fn prices_of_bitcoin_nodes__should_have_a_ceiling() {
    use covault_core::networks::bitcoin::{
        Ancestors, ChainData as Facts, ReplacedFees, UnspentOutput,
    };

    let input = UnspentOutput {
        txid: "1".repeat(64),
        vout: 0,
        value: 100_000_000,
    };
    let pay = |change: fn(&mut Facts)| {
        let kind = WireKind::BtcSendNative(wire::BtcSendNative {
            recipients: vec![],
            from: sender(Network::Bitcoin),
            to: "bc1qcr8te4kr609gcawutmrza0j4xv80jy8z306fyu".into(),
            amount: "100000".into(),
            network_fee: 0,
            fee_level: wire::FeeLevel::Fast.into(),
            inputs: vec![format!("{}:{}", input.txid, input.vout)],
        });
        let mut facts = Facts {
            outputs: vec![input.clone()],
            fee_rate: Some(1_000),
            ..Default::default()
        };
        change(&mut facts);
        order(Network::Bitcoin, &kind, facts.into())
    };
    let none = Policy::default();
    allowed(&none, pay(|facts| facts.fee_rate = Some(2_000_000)));
    let absurd: [fn(&mut Facts); 3] = [
        |facts| facts.fee_rate = Some(2_000_001),
        |facts| {
            facts.ancestors = Some(Ancestors {
                vsize: 300_000,
                fees: 0,
            });
        },
        |facts| {
            facts.replaced = Some(ReplacedFees {
                fees: 300_000,
                rate: 1,
            });
        },
    ];
    let raised = policy("most_price.bitcoin = \"5000\"");
    for change in absurd {
        let fault = refused(&none, pay(change), "price: is ");
        assert!(
            fault.message().contains(" sat/vB according to chain nodes"),
            "{fault}"
        );
        allowed(&raised, pay(change));
    }
}

#[test]
fn prices_of_solana_nodes__should_have_a_ceiling() {
    let none = Policy::default();
    allowed(&none, priced_lamports(SOL, 5, Some(10_000_000)));
    // The fee of this one is far below what is allowed: 0.0000104 SOL.
    let dear = "price: is 10000001 micro-lamports per unit of computation according to chain nodes";
    refused(&none, priced_lamports(SOL, 5, Some(10_000_001)), dear);
    let raised = policy("most_price.solana = \"20000000\"");
    allowed(&raised, priced_lamports(SOL, 5, Some(20_000_000)));
    refused(
        &raised,
        priced_lamports(SOL, 5, Some(20_000_001)),
        "price: ",
    );
    // What nobody can pay is refused whatever the prices that are believed.
    let any = policy(&format!("most_price.solana = \"{}\"", u64::MAX));
    refused(&any, priced_lamports(SOL, 5, Some(u64::MAX)), "fee: ");
    refused(&none, priced_lamports(SOL, 5, Some(u64::MAX)), "");
    // The priority fee counts: 5,000 and 540 x 2.
    allowed(
        &policy("most_fee.solana = \"6080\""),
        priced_lamports(SOL, 5, Some(2_000_000)),
    );
    refused(
        &policy("most_fee.solana = \"6079\""),
        priced_lamports(SOL, 5, Some(2_000_000)),
        "fee: ",
    );
}

/// A transfer on a network whose nodes said that a unit costs so much.
fn priced(network: Network, chain_id: u64, price: u64) -> (SigningOrder, Payload) {
    let from = sender(network);
    let to = "0x22ab5b7c1e9d4f6d2e2ea5aef96e2a9a2e9e2f5c0d1b4c8f7a6b5d4e3f2a1b0c";
    let (kind, facts) = match network {
        Network::Aptos => (
            WireKind::AptosSendNative(wire::AptosSendNative {
                chain_id,
                from,
                to: to.into(),
                value: "5".into(),
                ..Default::default()
            }),
            ChainData::Aptos(aptos::ChainData {
                sequence_number: 4,
                expiration_timestamp_secs: 300,
                gas_unit_price: Some(price),
                gas_used: Some(9),
                abi: None,
            }),
        ),
        Network::Sui => (
            WireKind::SuiSendNative(wire::SuiSendNative {
                recipients: vec![],
                from,
                to: to.into(),
                value: "5".into(),
                gas_fee: None,
            }),
            ChainData::Sui(sui::ChainData {
                reference_gas_price: Some(price),
                gas_used: Some(Box::new(sui::GasUsed {
                    computation_cost: 1_000_000,
                    storage_cost: 1_976_000,
                    storage_rebate: 978_120,
                })),
                sui_coins: vec![sui::CoinObject {
                    object_id: format!("0x{}", "11".repeat(32)),
                    version: 5,
                    digest: bs58::encode([7; 32]).into_string(),
                    balance: 2_000_000_000_000_000_000,
                    origin: None,
                }],
                sui_address_balance: 0,
                coins: Vec::new(),
                coin_address_balance: 0,
                required: Vec::new(),
                validity: None,
            }),
        ),
        Network::Stellar => (
            WireKind::StellarSendNative(wire::StellarSendNative {
                from,
                to: "GA5ZSEJYB37JRC5AVCIA5MOP4RHTM335X2KGX3IHOJAPP5RE34K4KZVN".into(),
                value: "5".into(),
                ..Default::default()
            }),
            ChainData::Stellar(stellar::ChainData {
                sequence: 7,
                base_fee: price.try_into().unwrap(),
                max_time: 300,
                destination_exists: Some(true),
            }),
        ),
        other => panic!("{other:?}"),
    };
    order(network, &kind, facts)
}

/// The orchestrator is hostile, or believes its nodes: what it shows is what it would have signed.
#[test]
fn prices_of_aptos_sui_and_stellar_nodes__should_have_a_ceiling() {
    let none = Policy::default();
    let (aptos, sui, stellar) = (Network::Aptos, Network::Sui, Network::Stellar);
    for (network, chain_id, most, unit, name, absurd) in [
        (
            aptos,
            1,
            10_000,
            "octa per unit of gas",
            "aptos",
            10_000_000_000,
        ),
        (
            aptos,
            126,
            10_000,
            "octa per unit of gas",
            "aptos",
            10_000_000_000,
        ),
        (sui, 0, 20_000, "MIST per unit of gas", "sui", 99_999),
        (
            stellar,
            0,
            1_000_000,
            "stroops per operation",
            "stellar",
            100_000_000,
        ),
    ] {
        allowed(&none, priced(network, chain_id, most));
        let dear = priced(network, chain_id, most + 1);
        let fault = refused(
            &none,
            dear.clone(),
            &format!("price: is {} {unit}", most + 1),
        );
        assert!(fault.message().contains("most_price"), "{fault}");
        let raised = policy(&format!("most_price.{name} = \"{}\"", most + 1));
        allowed(&raised, dear);
        refused(&none, priced(network, chain_id, absurd), "");
    }
}

#[test]
fn what_nobody_can_tell__should_be_refused_where_something_is_limited() {
    let limits = [
        "limits = [{ asset = \"evm:1\", per_day = \"9000000\" }]".to_owned(),
        "only_listed_assets = true".to_owned(),
        format!("recipients.evm = [\"{BOB}\"]"),
    ];
    for limit in limits {
        let limited = policy(&limit);
        refused(
            &limited,
            call(BOB, vec![1]),
            "kind: this signer's policy limits evm:1",
        );
        refused(&limited, typed("{}"), "kind: ");
        // Where nothing is unknown, there is no doubt.
        allowed(&limited, message());
        let open = format!(
            "custom_calls = [\"evm:1\"]\ntyped_data = [\"evm\"]\nunseen_recipients = [\"evm\"]\n{limit}"
        );
        allowed(&policy(&open), typed("{}"));
    }
    let elsewhere = policy("limits = [{ asset = \"evm:10\", per_day = \"1\" }]");
    allowed(&elsewhere, call(BOB, vec![1]));
    allowed(&elsewhere, typed(r#"{"chainId": 1}"#));
    refused(&elsewhere, typed("{}"), "kind: ");
    let never = policy("custom_calls = []\ntyped_data = []");
    refused(
        &never,
        call(BOB, vec![1]),
        "kind: this signer's policy does not allow custom calls",
    );
    refused(
        &never,
        typed("{}"),
        "kind: this signer's policy does not allow typed data",
    );
    // A call without call data does what it says.
    allowed(&never, call(BOB, Vec::new()));
}

#[test]
fn file__should_name_the_key_that_is_wrong() {
    for (text, problem) in [
        (
            "raw_singing = true",
            "raw_singing: unknown key; allowed here: version, node_origins, approver, networks, kinds, raw_",
        ),
        ("raw_signing = 1", "raw_signing: must be true or false"),
        ("networks = \"evm\"", "networks: must be a list of strings"),
        ("networks = [\"evm\", 1]", "networks[1]: must be a string"),
        ("networks = [\"eth\"]", "networks[0]: is not a network"),
        (
            "kinds = [\"sendEverything\"]",
            "kinds[0]: is not a payload kind",
        ),
        ("typed_data = true", "typed_data: must be a list of strings"),
        ("recipients = []", "recipients: must be a table"),
        (
            "recipients.evm = [\"0x1\"]",
            "recipients.\"evm\"[0]: must be 0x and 40 hex digits",
        ),
        (
            "recipients.\"evm:x\" = []",
            "recipients.\"evm:x\": must be an EVM chain id",
        ),
        (
            "most_fee.evm = 5",
            "most_fee.\"evm\": must be a whole number in the smallest unit, as a",
        ),
        (
            "most_fee.evm = \"1.5\"",
            "most_fee.\"evm\": must be a whole number",
        ),
        ("limits = 5", "limits: must be tables"),
        ("limits = [5]", "limits[0]: must be a table"),
        (
            "[[limits]]\nper_day = \"1\"",
            "limits[0].asset: is required",
        ),
        (
            "[[limits]]\nasset = \"evm\"\nper_day = \"1\"",
            "limits[0].asset: must name its chain",
        ),
        ("[[limits]]\nasset = \"evm:1\"", "limits[0]: limits nothing"),
        (
            "[[limits]]\nasset = \"evm:1\"\nper_day = \"-1\"",
            "limits[0].per_day: must be a whole",
        ),
        (
            "[[limits]]\nasset = \"evm:1\"\nper_hour = \"1\"",
            "limits[0].per_hour: unknown key; allowed here: asset, per_request, per_day",
        ),
        (
            "[[limits]]\nasset = \"evm:1\"\nper_day = \"1\"\n[[limits]]\nasset = \"evm:1\"\nper_day = \"2\"",
            "limits[1].asset: already has limits",
        ),
        ("\nraw_signing = maybe", "line 3 is not TOML: "),
        (
            "raw_signing = true\nraw_signing = false",
            "line 3 is not TOML: ",
        ),
        ("each_vault = 1", "each_vault: must be a table of rules"),
        (
            "[each_wallet]\nversion = 2",
            "each_wallet.version: unknown key; allowed here: networks, ",
        ),
        ("vaults = []", "vaults: must be a table of tables"),
        (
            "[vaults.treasury]",
            "vaults.\"treasury\": must be the UUID of a vault",
        ),
        (
            "[vaults.\"02020202-0202-0202-0202-020202020202\".recipients]\nevm = [\"0x1\"]",
            "vaults.\"02020202-0202-0202-0202-020202020202\".recipients.\"evm\"[0]: must be 0x",
        ),
        (
            "[vaults.\"02020202-0202-0202-0202-02020202020A\"]\n[vaults.\"02020202-0202-0202-0202-02020202020a\"]",
            "vaults.\"02020202-0202-0202-0202-02020202020a\": already has rules",
        ),
        (
            "[wallets.\"0x12\"]",
            "wallets.\"0x12\": must be the address of a wallet",
        ),
    ] {
        let fault = Policy::parse(&format!("version = 2\n{text}")).unwrap_err();
        assert!(fault.message().starts_with(problem), "{text}: {fault}");
        assert_eq!(fault.class(), &Class::Invalid);
    }
}

#[test]
fn file__should_be_named_when_it_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    assert_eq!(Policy::read(&path).unwrap(), None);
    std::fs::write(&path, "version = 2\nraw = true").unwrap();
    let fault = Policy::read(&path).unwrap_err();
    let expected = format!("policy file {}: raw: unknown key", path.display());
    assert!(fault.message().starts_with(&expected), "{fault}");
    std::fs::write(&path, [0xff]).unwrap();
    assert!(
        Policy::read(&path)
            .unwrap_err()
            .message()
            .contains("cannot be read")
    );
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(
        Policy::read(&path)
            .unwrap_err()
            .message()
            .contains("cannot be read")
    );
}

#[test]
fn file__should_say_its_version() {
    for text in ["", "raw_signing = true", "version = 1", "version = \"2\""] {
        let fault = Policy::parse(text).unwrap_err();
        let starts =
            "version: must be 2: this Covault reads policy files that begin with version = 2";
        assert!(fault.message().starts_with(starts), "{text}: {fault}");
    }
}

#[test]
fn fees__should_have_a_ceiling_without_any_keys() {
    let dear = |priority_fee| {
        let (mut order, payload) = native(1, BOB, 5);
        let ChainData::Evm(chain_data) = &mut order.chain_data else {
            panic!("not of EVM");
        };
        let fees = chain_data.fees.as_mut().unwrap();
        (fees.estimate_gas, fees.max_priority_fee) = (1_000_000, priority_fee);
        let chain = Network::Evm.rules();
        let unsigned = chain
            .build(&payload, &order.chain_data, &order.public_key)
            .unwrap();
        (order.unsigned, order.inputs) = (unsigned.bytes, unsigned.signing);
        (order, payload)
    };
    // 0.1 ether for 1,000,000 gas.
    let fair = 100_000_000_000_000_000 / 1_000_000 - 20;
    for floor in [policy(""), Policy::production(), Policy::development()] {
        allowed(&floor, dear(fair));
        refused(
            &floor,
            dear(fair + 1),
            "fee: could take more than this signer's policy allows for evm; its operator can raise",
        );
    }
    // Raised by the operator alone, and for the chain that is named.
    let raised = "most_fee.\"evm:1\" = \"200000000000000000\"";
    allowed(&policy(raised), dear(fair + 1));
    let elsewhere = "most_fee.\"evm:10\" = \"200000000000000000\"";
    refused(&policy(elsewhere), dear(fair + 1), "fee: ");
    let of_vault = "[each_vault]\nmost_fee.evm = \"200000000000000000\"";
    refused(&policy(of_vault), dear(fair + 1), "fee: ");
}

#[test]
fn recipients__should_be_nobody_where_the_list_is_empty() {
    let nobody = policy("recipients.evm = []");
    for order in [native(1, BOB, 5), native(10, BOB, 5), token(TOKEN, BOB, 5)] {
        refused(
            &nobody,
            order,
            "recipient: is not in the list of this signer's policy for evm:",
        );
    }
    refused(
        &nobody,
        call(BOB, vec![1]),
        "kind: this signer's policy limits evm:1",
    );
    allowed(&nobody, lamports(SOL, 5));
    let listed = policy(&format!(
        "only_listed_recipients = true\nrecipients.evm = [\"{BOB}\"]"
    ));
    allowed(&listed, native(1, BOB, 5));
    refused(&listed, native(1, EVE, 5), "recipient: ");
    refused(
        &listed,
        lamports(SOL, 5),
        "recipient: is not in the list of this signer's policy for solana",
    );
}

const VAULT: &str = "02020202-0202-0202-0202-020202020202";

/// The same order of another vault.
fn in_vault(vault: u8, (mut order, payload): (SigningOrder, Payload)) -> (SigningOrder, Payload) {
    order.vault = VaultId::from_bytes([vault; 16]);
    (order, payload)
}

#[test]
fn vaults__should_have_recipients_of_their_own() {
    // A deposit vault sends to its treasury alone; the treasury to whom the node allows.
    let split = policy(&format!(
        "recipients.evm = [\"{BOB}\", \"{EVE}\"]\n[vaults.\"{VAULT}\".recipients]\nevm = [\"{BOB}\"]"
    ));
    allowed(&split, native(1, BOB, 5));
    let fault = refused(
        &split,
        native(1, EVE, 5),
        &format!("recipient: is not in the list of this signer's policy (vault {VAULT}) for evm:1"),
    );
    assert_eq!(fault.execute_code(), ExecuteCode::AddressNotInWhitelist);
    allowed(&split, in_vault(3, native(1, EVE, 5)));
    // A vault never allows what the node does not.
    let wider = policy(&format!(
        "recipients.evm = [\"{BOB}\"]\n[vaults.\"{VAULT}\".recipients]\nevm = [\"{EVE}\"]"
    ));
    for to in [BOB, EVE] {
        refused(&wider, native(1, to, 5), "recipient: ");
    }
    // Nor calls that would go round its list, nor raw bytes, unless it says so itself.
    let quiet = format!("[vaults.\"{VAULT}\"]\nrecipients.evm = [\"{BOB}\"]\n");
    let open = format!("raw_signing = true\ncustom_calls = [\"evm\"]\n{quiet}");
    refused(
        &policy(&open),
        call(BOB, vec![1]),
        &format!("kind: this signer's policy (vault {VAULT}) limits"),
    );
    refused(
        &policy(&open),
        raw(Network::Evm),
        "kind: raw signing (rawMessage) is off in this signer's policy (vault",
    );
    allowed(&policy(&open), in_vault(3, raw(Network::Evm)));
    let said = format!("{open}raw_signing = true\ncustom_calls = [\"evm:1\"]");
    allowed(&policy(&said), call(BOB, vec![1]));
    allowed(&policy(&said), raw(Network::Evm));
    let alone = format!("{quiet}raw_signing = true");
    refused(
        &policy(&alone),
        raw(Network::Evm),
        "kind: raw signing (rawMessage) is off in this signer's policy",
    );
}

/// An order of the vault `root`'s wallet 0 that pays `to`, and calls it its wallets `indices`.
fn to_own(root: &RootKey, to: &str, indices: &[u32]) -> (SigningOrder, Payload) {
    let (mut order, payload) = native(1, to, 5);
    order.root_public_key = root.public_key.clone();
    order.recipient_indices = indices.to_vec();
    (order, payload)
}

#[test]
fn own_wallets__should_be_derived_by_the_node_itself() {
    let own = policy("[each_vault]\nown_wallets = true");
    let root = root();
    let wallet = |network, index| {
        let child = root.child(&KeyPath::of_wallet(network, index).unwrap());
        Network::Evm
            .rules()
            .address(&child.unwrap().public_key)
            .unwrap()
    };
    let ninth = wallet(Network::Evm, 9);
    allowed(&own, to_own(&root, &ninth, &[9]));
    // What it says itself is worth nothing: it is the vault's key that says it.
    let starts = "recipientIndices[0]: is not another wallet of this vault that the payload pays";
    refused(&own, to_own(&root, EVE, &[9]), starts);
    refused(&own, to_own(&root, &ninth, &[8]), starts);
    refused(&own, to_own(&root, &ninth, &[u32::MAX]), starts);
    // The same key under another network's path, which nobody here can spend from.
    refused(&own, to_own(&root, &wallet(Network::Tron, 9), &[9]), starts);
    let starts = "recipientIndices[1]: ";
    refused(&own, to_own(&root, &ninth, &[9, 9]), starts);
    let fault = refused(
        &own,
        to_own(&root, &ninth, &[]),
        "recipient: is not in the list of",
    );
    assert_eq!(fault.execute_code(), ExecuteCode::AddressNotInWhitelist);
    refused(&own, to_own(&root, EVE, &[]), "recipient: ");
    // Of networks without a list, too, and beside those in a list.
    refused(&own, lamports(SOL, 5), "recipient: ");
    let listed = policy(&format!("own_wallets = true\nrecipients.evm = [\"{BOB}\"]"));
    allowed(&listed, to_own(&root, &ninth, &[9]));
    allowed(&listed, native(1, BOB, 5));
    refused(&listed, native(1, EVE, 5), "recipient: ");
    // Without the switch it is an address like others.
    let bob = policy(&format!("recipients.evm = [\"{BOB}\"]"));
    refused(&bob, to_own(&root, &ninth, &[9]), "recipient: ");
    refused(&own, call(BOB, vec![1]), "kind: ");
}

#[test]
fn each_vault__should_have_limits_and_counters_of_its_own() {
    let limit = |most: u64| format!("limits = [{{ asset = \"evm:1\", per_day = \"{most}\" }}]\n");
    let split = policy(&format!(
        "[each_vault]\n{}[vaults.\"{VAULT}\"]\n{}[each_wallet]\n{}",
        limit(1_000_000),
        limit(2_000_000),
        limit(500_000)
    ));
    let counted = |order| -> Vec<(String, Option<U256>)> {
        let spending = allowed(&split, order);
        assert!(spending.iter().all(|one| one.amount == U256::from(FEE + 5)));
        let name = |one: Spending| (one.counter.name(), one.most_per_day);
        spending.into_iter().map(name).collect()
    };
    let wallet = format!("wallet {} evm:1", sender(Network::Evm));
    let of = |vault: &str, most: u64| {
        let most = [None, Some(U256::from(most)), Some(U256::from(500_000))];
        let names = [
            "evm:1".to_owned(),
            format!("vault {vault} evm:1"),
            wallet.clone(),
        ];
        names.into_iter().zip(most).collect::<Vec<_>>()
    };
    assert_eq!(counted(native(1, BOB, 5)), of(VAULT, 2_000_000));
    let other = "03030303-0303-0303-0303-030303030303";
    assert_eq!(
        counted(in_vault(3, native(1, BOB, 5))),
        of(other, 1_000_000)
    );
    // Without limits, wallets are not counted: there may be any number of them.
    let names = |policy: &Policy| -> Vec<String> {
        let spending = allowed(policy, native(1, BOB, 5));
        spending.iter().map(|one| one.counter.name()).collect()
    };
    assert_eq!(
        names(&policy("")),
        ["evm:1".to_owned(), format!("vault {VAULT} evm:1")]
    );
}

#[test]
fn wallets__should_have_rules_of_their_own() {
    let address = sender(Network::Evm);
    let own = policy(&format!(
        "[each_wallet]\nrecipients.evm = []\n[wallets.\"{}\"]\nkinds = [\"evmSendNative\"]\n\
         limits = [{{ asset = \"evm:1\", per_request = \"{}\" }}]",
        address.to_lowercase(),
        FEE + 5
    ));
    allowed(&own, native(1, BOB, 5));
    refused(
        &own,
        native(1, BOB, 6),
        &format!(
            "amount: with the fee, more evm:1 than this signer's policy (wallet {address}) allows"
        ),
    );
    refused(&own, message(), "kind: this signer's policy (wallet ");
    // Its network's: the same key has other wallets elsewhere.
    allowed(&own, lamports(SOL, 5));
    let others = policy("[each_wallet]\nrecipients.evm = []");
    refused(
        &others,
        native(1, BOB, 5),
        "recipient: is not in the list of this signer's policy (wallet ",
    );
}

#[test]
fn explain__should_tell_all_rules() {
    let explained = policy(&format!(
        "recipients.evm = []\nmost_fee.evm = \"7\"\n\
         limits = [{{ asset = \"solana\", per_request = \"5\", per_day = \"9\" }}]\n\
         [each_vault]\nnetworks = []\n[each_wallet]\n[vaults.\"{VAULT}\"]\nraw_signing = false\n"
    ))
    .explain();
    for line in [
        "This signer, for all that it signs:",
        "  raw signing: off",
        "  recipients on evm: none",
        "  recipients elsewhere: anybody",
        "  fee of a transaction on evm: at most 7",
        "  fee of a transaction on solana: at most 50000000 (default)",
        "  solana: at most 5 per request, at most 9 in any 24 hours, with fees",
        "Each vault that is not named below, by itself:",
        "  networks: none alone",
        "Vault 02020202-0202-0202-0202-020202020202, by itself:",
    ] {
        assert!(
            explained.iter().any(|one| one == line),
            "{line}: {explained:#?}"
        );
    }
    assert!(!explained.iter().any(|line| line.starts_with("Each wallet")));
}

/// The lines of the sample, with its examples.
fn with_examples(sample: &str) -> String {
    sample
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(example) if !example.starts_with([' ', '#']) => format!("{example}\n"),
            _ => format!("{line}\n"),
        })
        .collect()
}

#[test]
fn sample__should_be_closed_as_it_stands_and_work_with_its_examples() {
    let sample = include_str!("../../../deploy/policy.toml");
    let closed = Policy::parse(sample).unwrap();
    for order in [
        native(1, BOB, 5),
        token(TOKEN, BOB, 5),
        call(BOB, vec![1]),
        call("", vec![1]),
        message(),
        typed("{}"),
        lamports(SOL, 5),
        raw(Network::Evm),
        raw(Network::Solana),
    ] {
        refused(&closed, order, "");
    }
    let open = Policy::parse(&with_examples(sample)).unwrap();
    allowed(&open, in_vault(3, native(1, BOB, 5)));
    refused(&open, in_vault(3, native(1, EVE, 5)), "recipient: ");
    refused(&open, in_vault(3, native(10, BOB, 5)), "network: ");
    refused(&open, in_vault(3, raw(Network::Evm)), "kind: ");
    refused(&open, in_vault(3, call(BOB, vec![1])), "kind: ");
    let shown = open.to_string();
    assert!(
        shown.contains("1 vaults and 1 wallets with rules of their own"),
        "{shown}"
    );
}
