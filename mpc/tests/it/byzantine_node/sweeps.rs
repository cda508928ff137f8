//! What an orchestrator that lies can do with a vault of deposit wallets, whose policy is that of docs/sweeping.md: move
//! coin and tokens to the treasury and between the vault's own wallets, and nothing elsewhere; on EVM chains and on TRON.

use covault_core::networks::tron;

use super::*;

const USDT: &str = "0xdAC17F958D2ee523a2206206994597C13D831ec7";

fn gas() -> Option<wire::EvmGas> {
    Some(wire::EvmGas {
        max_fee: Some("21".into()),
        max_priority_fee: Some("1".into()),
        gas_limit: Some("100000".into()),
        ..Default::default()
    })
}

/// A vault whose treasury is Bob.
struct DepositVault(ByzantineFixture);

impl DepositVault {
    async fn start() -> Self {
        let policy = format!("[each_vault]\nown_wallets = true\nrecipients.evm = [\"{BOB}\"]");
        Self(ByzantineFixture::start(Curve::Secp256k1, &policy).await)
    }

    /// Another wallet of the vault.
    fn own(&self, index: u32) -> String {
        let path = KeyPath::of_wallet(Network::Evm, index).unwrap();
        let key = self.0.root.child(&path).unwrap().public_key;
        Network::Evm.rules().address(&key).unwrap()
    }

    /// An order for a payload, whose recipients are called the vault's wallets of these numbers.
    fn order(&self, kind: WireKind, own: &[u32]) -> ForgedRequest {
        let chain_data = ChainData::Evm(evm::ChainData {
            nonce: Some(4),
            eip1559: true,
            fees: None,
        });
        let payload = Payload::parse(&kind).unwrap();
        let mut order = self.0.order(&payload, chain_data);
        order.recipient_indices = own.to_vec();
        self.0.ask(order)
    }

    fn coin(&self, to: &str) -> WireKind {
        WireKind::EvmSendNative(wire::EvmSendNative {
            chain_id: 1,
            from: self.0.address(),
            to: to.into(),
            value: "5".into(),
            gas_fee: gas(),
            nonce: None,
        })
    }

    fn token(&self, to: &str) -> WireKind {
        WireKind::EvmSendErc20(wire::EvmSendErc20 {
            chain_id: 1,
            from: self.0.address(),
            to: to.into(),
            token_contract_address: USDT.into(),
            amount: "5".into(),
            gas_fee: gas(),
            nonce: None,
        })
    }

    /// A call of the token's contract that lets somebody else take tokens, or that sends them by another name.
    fn call(&self, selector: &str) -> WireKind {
        let to = EVE.trim_start_matches("0x").to_lowercase();
        let from = self.0.address().trim_start_matches("0x").to_lowercase();
        let words = match selector {
            "23b872dd" => format!("{from:0>64}{to:0>64}{:064x}", 5),
            _ => format!("{to:0>64}{:064x}", 5),
        };
        WireKind::EvmSendCustom(wire::EvmSendCustom {
            chain_id: 1,
            from: self.0.address(),
            to: USDT.into(),
            value: "0".into(),
            input: hex::decode(format!("{selector}{words}")).unwrap(),
            gas_fee: gas(),
            nonce: None,
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweeps__should_lead_nowhere_but_to_the_treasury_whatever_the_orchestrator_says() {
    let mut vault = DepositVault::start().await;
    let ninth = vault.own(9);
    for honest in [
        vault.order(vault.token(BOB), &[]),
        vault.order(vault.coin(BOB), &[]),
        vault.order(vault.coin(&ninth), &[9]),
    ] {
        vault.0.signed(&honest).await;
    }
    let mut lies = Vec::new();
    for of in [DepositVault::coin, DepositVault::token] {
        let starts = "recipient: ";
        lies.push((starts, vault.order(of(&vault, EVE), &[])));
        lies.push((starts, vault.order(of(&vault, &ninth), &[])));
        let starts = "recipientIndices[0]: ";
        lies.push((starts, vault.order(of(&vault, EVE), &[9])));
        lies.push((starts, vault.order(of(&vault, &ninth), &[8])));
        // What is shown is a sweep, and what is to be signed another transaction.
        let mut shown = vault.order(of(&vault, BOB), &[]);
        let other = vault.order(of(&vault, EVE), &[]).order;
        exchange(&mut shown, other);
        lies.push(("unsigned.recipient: ", shown));
    }
    // transfer, transferFrom, approve, increaseAllowance
    for selector in ["a9059cbb", "23b872dd", "095ea7b3", "39509351"] {
        lies.push(("", vault.order(vault.call(selector), &[])));
        lies.push(("", vault.order(vault.call(selector), &[9])));
    }
    for (starts, lie) in lies {
        let body = lie.body();
        for fault in vault.0.refused_body(&lie, &body, starts).await {
            assert!(fault.message().starts_with(starts), "{starts}: {fault:?}");
        }
    }
}

const BOB_TRON: &str = "TJRabPrwbZy45sbavfcjinPJC18kjpRTv8";
const EVE_TRON: &str = "TEkxiTehnzSmSe2XqrBj4w32RUN966rdz8";
const USDT_TRON: &str = "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t";

/// A wallet of a vault on TRON.
fn tron_wallet(fixture: &ByzantineFixture, index: u32) -> String {
    let path = KeyPath::of_wallet(Network::Tron, index).unwrap();
    let key = fixture.root.child(&path).unwrap().public_key;
    Network::Tron.rules().address(&key).unwrap()
}

fn tron_order(fixture: &ByzantineFixture, kind: WireKind, own: &[u32]) -> ForgedRequest {
    let mut id = [7; 32];
    id[..8].copy_from_slice(&9_u64.to_be_bytes());
    let block = tron::Block {
        number: 9,
        id,
        timestamp_ms: now_ms(),
    };
    let chain_data = ChainData::from(tron::ChainData::from(block));
    let payload = Payload::parse(&kind).unwrap();
    let path = KeyPath::of_wallet(Network::Tron, 5).unwrap();
    let mut order = fixture.order_of(Network::Tron, path, &payload, chain_data);
    order.recipient_indices = own.to_vec();
    fixture.ask(order)
}

fn trx(from: &str, to: &str) -> WireKind {
    WireKind::TronSendNative(wire::TronSendNative {
        from: from.into(),
        to: to.into(),
        value: "5".into(),
    })
}

fn trc20(from: &str, to: &str) -> WireKind {
    WireKind::TronSendTrc20(wire::TronSendTrc20 {
        from: from.into(),
        to: to.into(),
        contract_address: USDT_TRON.into(),
        amount: "5".into(),
        fee_limit: Some("16635625".into()),
    })
}

fn trc10(from: &str, to: &str) -> WireKind {
    WireKind::TronSendTrc10(wire::TronSendTrc10 {
        from: from.into(),
        to: to.into(),
        asset_name: "1000001".into(),
        amount: "5".into(),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweeps_on_tron__should_lead_nowhere_but_to_the_treasury_whatever_the_orchestrator_says() {
    let policy = format!("[each_vault]\nown_wallets = true\nrecipients.tron = [\"{BOB_TRON}\"]");
    let mut fixture = ByzantineFixture::start(Curve::Secp256k1, &policy).await;
    let (own, ninth) = (tron_wallet(&fixture, 5), tron_wallet(&fixture, 9));
    for honest in [
        tron_order(&fixture, trc20(&own, BOB_TRON), &[]),
        tron_order(&fixture, trx(&own, BOB_TRON), &[]),
        tron_order(&fixture, trx(&own, &ninth), &[9]),
    ] {
        fixture.signed(&honest).await;
    }
    let mut lies = Vec::new();
    for of in [trx, trc20, trc10] {
        let starts = "recipient: ";
        lies.push((starts, tron_order(&fixture, of(&own, EVE_TRON), &[])));
        lies.push((starts, tron_order(&fixture, of(&own, &ninth), &[])));
        let starts = "recipientIndices[0]: ";
        lies.push((starts, tron_order(&fixture, of(&own, EVE_TRON), &[9])));
        lies.push((starts, tron_order(&fixture, of(&own, &ninth), &[8])));
        // What is shown is a sweep, and what is to be signed another transaction.
        let mut shown = tron_order(&fixture, of(&own, BOB_TRON), &[]);
        let other = tron_order(&fixture, of(&own, EVE_TRON), &[]).order;
        exchange(&mut shown, other);
        lies.push(("unsigned.recipient: ", shown));
    }
    for (starts, lie) in lies {
        let body = lie.body();
        for fault in fixture.refused_body(&lie, &body, starts).await {
            assert!(fault.message().starts_with(starts), "{starts}: {fault:?}");
        }
    }
}
