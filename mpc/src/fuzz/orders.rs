//! Target for what a hostile orchestrator shows: payload, facts, transaction and digests.

use std::sync::OnceLock;

use covault_core::{
    approval::OrderApprovals,
    derive::{ChildKey, KeyPath, RootKey},
    ids::{RequestId, VaultId},
    networks::{ChainData, Network, SigningInput},
    order::SigningOrder,
};
use serde::Deserialize;

use super::{Finding, finding};
use crate::{
    message,
    node::{OrderCheck as _, PolicyCheck},
    policy::Policy,
};

/// The fields that nodes decode or rebuild. The others are made to fit, so that these are reached.
#[derive(Deserialize)]
struct OrderFields {
    network: Network,
    public_key: Vec<u8>,
    payload: Vec<u8>,
    chain_data: ChainData,
    unsigned: Vec<u8>,
    inputs: Vec<SigningInput>,
}

/// Policies that ask all that can be asked.
fn floors() -> &'static [PolicyCheck] {
    static FLOORS: OnceLock<Vec<PolicyCheck>> = OnceLock::new();
    const STRICT: &str = r#"
        version = 2
        raw_signing = true
        messages = true
        only_listed_assets = true
        [recipients]
        "evm:5" = ["0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be"]
        [most_fee]
        "evm:1" = "1000000000000000"
        "solana" = "5000"
        [[limits]]
        asset = "evm:1"
        per_request = "1000000000000000000"
        per_day = "2000000000000000000"
        [[limits]]
        asset = "solana"
        per_day = "10000000"
        [each_wallet]
        only_listed_assets = false
        [vaults."02020202-0202-0202-0202-020202020202"]
        only_listed_recipients = true
        recipients.solana = []
    "#;
    FLOORS.get_or_init(|| {
        let mut floors = vec![
            PolicyCheck(Policy::production()),
            PolicyCheck(Policy::development()),
        ];
        floors.extend(Policy::parse(STRICT).map(PolicyCheck));
        floors
    })
}

/// Checks an order as a node does before it signs: BCS of (network, public key, payload, facts,
/// unsigned transaction, inputs), of a wallet whose key is what the data says.
///
/// # Errors
/// What should not have happened.
pub fn orders(data: &[u8]) -> Result<(), Finding> {
    if floors().len() != 3 {
        return finding("a policy cannot be read");
    }
    let Some(shown) = message::decode::<OrderFields>(data) else {
        return Ok(());
    };
    let OrderFields {
        network,
        public_key,
        payload,
        chain_data,
        unsigned,
        inputs,
    } = shown;
    let Ok(address) = network.rules().address(&public_key) else {
        return Ok(());
    };
    let path = KeyPath::of_wallet(network, 0).map_err(|fault| format!("{fault:?}"))?;
    let root = RootKey {
        curve: network.curve(),
        public_key: public_key.clone(),
        chain_code: [3; 32],
    };
    // As if the path led there, so that the fuzzer has the payload's sender in its hands.
    let child = ChildKey {
        public_key: public_key.clone(),
        tweak: [0; 32],
    };
    let order = SigningOrder {
        request: RequestId::from_bytes([1; 16]),
        vault: VaultId::from_bytes([2; 16]),
        epoch: 0,
        network,
        root_public_key: public_key.clone(),
        path,
        public_key,
        address,
        payload,
        chain_data,
        unsigned,
        inputs,
        recipient_indices: Vec::new(),
        approvals: OrderApprovals::default(),
        issued_at_ms: 1,
        expires_at_ms: 2,
    };
    for floor in floors() {
        if floor.check(&order, &root, &child, 1).is_err() {
            continue;
        }
        // What passes is what payload and chain data give, and nothing else passes.
        let mut other = order.clone();
        if let Some(input) = other.inputs.first_mut() {
            input.message.push(0);
        }
        if other != order && floor.check(&other, &root, &child, 1).is_ok() {
            return finding("another message passes for the same payload");
        }
    }
    drop(order.id());
    Ok(())
}
