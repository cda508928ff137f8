//! What the fuzz targets do with bytes that a client, a node or an orchestrator may send.

use std::collections::BTreeSet;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    deposit::transfer::Account,
    networks::{ChainData, DynNetworkRules, Network, Payload, Queries, WireKind},
    schema::wire,
    signature::Curve,
};

/// The generators of the two curves: public keys like any other.
const SECP256K1: [u8; 33] = [
    0x02, 0x79, 0xbe, 0x66, 0x7e, 0xf9, 0xdc, 0xbb, 0xac, 0x55, 0xa0, 0x62, 0x95, 0xce, 0x87, 0x0b,
    0x07, 0x02, 0x9b, 0xfc, 0xdb, 0x2d, 0xce, 0x28, 0xd9, 0x59, 0xf2, 0x81, 0x5b, 0x16, 0xf8, 0x17,
    0x98,
];
const ED25519: [u8; 32] = [
    0x58, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66,
    0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66,
];

fn chain(network: Network) -> &'static dyn DynNetworkRules {
    network.rules()
}

fn key(network: Network) -> &'static [u8] {
    match network.curve() {
        Curve::Secp256k1 => &SECP256K1,
        Curve::Ed25519 => &ED25519,
    }
}

/// The wallet that all payloads here are of.
pub fn wallet(network: Network) -> String {
    chain(network).address(key(network)).expect("a good key")
}

/// Reads a text as an address and as a token; what is read is in canonical form.
pub fn address(network: Network, data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let chain = chain(network);
    if let Ok(address) = chain.parse_address(text) {
        assert!(chain.parse_address(&address).is_ok(), "{address}");
    }
    if let Ok(token) = chain.parse_token(text) {
        assert_eq!(chain.parse_token(&token).as_deref(), Ok(token.as_str()));
    }
}

/// Takes a payload through all that is done with it before it is signed.
pub fn payload(network: Network, kind: &WireKind) {
    let Ok(payload) = Payload::parse(kind) else {
        return;
    };
    assert_eq!(Payload::decode(&payload.encode()).as_ref(), Ok(&payload));
    let _ = payload.outflow(network);
    let chain = chain(network);
    if chain.queries(&payload) != Queries::Nothing {
        return;
    }
    let Ok(unsigned) = chain.build(&payload, &ChainData::Nothing, key(network)) else {
        return;
    };
    chain
        .most_fee(&unsigned.bytes)
        .expect("what was built has a fee");
    chain
        .reservations(&payload, &unsigned)
        .expect("what was built uses something");
    assert_eq!(chain.difference(&unsigned.bytes, &unsigned.bytes), None);
}

/// solanaSendCustom of one transaction, or of two where the first byte says so.
pub fn solana_custom(data: &[u8]) {
    let parts: Vec<&[u8]> = match data.split_first() {
        Some((0xff, rest)) => vec![rest, rest],
        _ => vec![data],
    };
    let wire = wire::SolanaSendCustom {
        from: wallet(Network::Solana),
        tx_base64: parts.iter().map(|part| STANDARD.encode(part)).collect(),
        chain_id: 101,
    };
    payload(Network::Solana, &WireKind::SolanaSendCustom(wire));
}

/// stellarSendCustom.
pub fn stellar_custom(data: &[u8]) {
    let wire = wire::StellarSendCustom {
        from: wallet(Network::Stellar),
        tx_base64: STANDARD.encode(data),
    };
    payload(Network::Stellar, &WireKind::StellarSendCustom(wire));
}

/// aptosSendCustom, BCS or JSON.
pub fn aptos_custom(data: &[u8]) {
    let wire = wire::AptosSendCustom {
        chain_id: 1,
        from: wallet(Network::Aptos),
        payload: data.to_vec(),
        gas_fee: None,
        ..Default::default()
    };
    payload(Network::Aptos, &WireKind::AptosSendCustom(wire));
}

/// suiSendCustom, BCS or JSON.
pub fn sui_custom(data: &[u8]) {
    let wire = wire::SuiSendCustom {
        from: wallet(Network::Sui),
        payload: data.to_vec(),
        other_signatures: Vec::new(),
    };
    payload(Network::Sui, &WireKind::SuiSendCustom(wire));
}

/// tonSendCustom, a cell or JSON, and tonMessage.
pub fn ton_custom(data: &[u8]) {
    let from = wallet(Network::Ton);
    let wire = wire::TonSendCustom {
        from: from.clone(),
        payload: data.to_vec(),
    };
    payload(Network::Ton, &WireKind::TonSendCustom(wire));
    let wire = wire::TonMessage {
        from,
        content: data.to_vec(),
        ..Default::default()
    };
    payload(Network::Ton, &WireKind::TonMessage(wire));
}

/// evmMessage (typed data too) and evmSendCustom.
pub fn evm_custom(data: &[u8]) {
    let from = wallet(Network::Evm);
    let wire = wire::EvmMessage {
        chain_id: 1,
        from: from.clone(),
        content: data.to_vec(),
        ..Default::default()
    };
    payload(Network::Evm, &WireKind::EvmMessage(wire));
    let wire = wire::EvmSendCustom {
        chain_id: 1,
        to: from.clone(),
        from,
        value: "1".into(),
        input: data.to_vec(),
        gas_fee: Some(wire::EvmGas {
            max_fee: Some("1".into()),
            max_priority_fee: None,
            gas_limit: Some("1000000000".into()),
            ..Default::default()
        }),
        nonce: Some(0),
    };
    let _ = covault_core::networks::evm::calls::AbiTable::built_in().decode(data);
    payload(Network::Evm, &WireKind::EvmSendCustom(wire));
}

/// The two answers of a node that stand behind each other, as text.
fn two_answers(data: &[u8]) -> Option<[serde_json::Value; 2]> {
    let mut answers = data.splitn(2, |byte| *byte == b'\n');
    let mut next = || serde_json::from_slice(answers.next()?).ok();
    Some([next()?, next()?])
}

/// The token of the samples.
fn tokens() -> BTreeSet<Account> {
    BTreeSet::from([Account([0xdd; 20])])
}

/// A block of an EVM node and its logs: what is read is of the coin, or of a token that was asked for. How many transfers
/// those are.
pub fn evm_block(data: &[u8]) -> usize {
    use covault_core::networks::evm::transfers::EvmBlock;
    let Some([block, logs]) = two_answers(data) else {
        return 0;
    };
    let Ok(block) = EvmBlock::read(&block) else {
        return 0;
    };
    let _ = block.receipts(&logs);
    assert!(block.values().all(|moved| moved.asset.is_none()));
    let found = block.tokens(&logs, &tokens()).unwrap_or_default();
    for moved in &found.moved {
        assert!(moved.asset.is_some_and(|asset| tokens().contains(&asset)));
    }
    block.values().count() + found.moved.len()
}

/// The same of a TRON node, with the results of the block's transactions.
pub fn tron_block(data: &[u8]) -> usize {
    use covault_core::networks::tron::transfers::TronBlock;
    let Some([block, results]) = two_answers(data) else {
        return 0;
    };
    let Ok(block) = TronBlock::read(&block) else {
        return 0;
    };
    let found = block.transfers(&results, &tokens()).unwrap_or_default();
    for moved in &found {
        assert!(moved.moves_something());
        assert!(moved.asset.is_none_or(|asset| tokens().contains(&asset)));
    }
    found.len()
}
