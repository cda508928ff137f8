//! What an orchestrator that lies can do with a vault of deposit wallets, whose policy is that of docs/sweeping.md: move
//! coin and tokens to the treasury and between the vault's own wallets, and nothing elsewhere.

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
