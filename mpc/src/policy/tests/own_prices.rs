//! Prices that a request names itself, on networks other than EVM and Aptos: who names them may be a hostile orchestrator
//! in the name of a client, and a miner may be who gets them.

use covault_core::networks::{bitcoin, tron};

use super::*;

/// What a wallet pays somebody on Bitcoin, at a rate of its own.
fn bitcoin_at(rate: u64) -> (SigningOrder, Payload) {
    let kind = WireKind::BtcSendNative(wire::BtcSendNative {
        recipients: vec![],
        from: sender(Network::Bitcoin),
        to: "bc1qcr8te4kr609gcawutmrza0j4xv80jy8z306fyu".into(),
        amount: "100000".into(),
        network_fee: rate,
        fee_level: 0,
        inputs: vec![],
    });
    let facts = bitcoin::ChainData {
        outputs: vec![bitcoin::UnspentOutput {
            txid: "1".repeat(64),
            vout: 0,
            value: 100_000_000,
        }],
        ..Default::default()
    };
    order(Network::Bitcoin, &kind, facts.into())
}

#[test]
fn rates_that_bitcoin_requests_name__should_have_a_ceiling() {
    // Of one input and two outputs it would be more than the highest fee that a node allows by itself.
    let fee = "most_fee.bitcoin = \"10000000\"\n";
    let limited = |rules: &str| policy(&format!("{fee}{rules}"));
    let none = limited("");
    allowed(&none, bitcoin_at(8_000));
    let fault = refused(&none, bitcoin_at(8_001), "price: is 8001 sat/vB");
    assert!(fault.message().contains("by the request"), "{fault}");
    assert!(fault.message().contains("most_own_price"), "{fault}");
    let raised = limited("most_own_price.bitcoin = \"8001\"");
    allowed(&raised, bitcoin_at(8_001));
    let tight = limited("most_price.bitcoin = \"5\"");
    allowed(&tight, bitcoin_at(20));
    refused(&tight, bitcoin_at(21), "price: is 21 sat/vB");
    let own = limited("most_own_price.bitcoin = \"19\"");
    refused(&own, bitcoin_at(20), "price: ");
}

#[test]
fn prices_that_sui_requests_name__should_have_a_ceiling() {
    let pay = |price: u64| {
        let kind = WireKind::SuiSendNative(wire::SuiSendNative {
            recipients: vec![],
            from: sender(Network::Sui),
            to: format!("0x{}", "22".repeat(32)),
            value: "5".into(),
            gas_fee: Some(wire::SuiGas {
                budget: Some("100000000".into()),
                price: Some(price.to_string()),
            }),
        });
        let facts = sui::ChainData {
            reference_gas_price: None,
            gas_used: None,
            sui_coins: vec![sui::CoinObject {
                object_id: format!("0x{}", "11".repeat(32)),
                version: 5,
                digest: bs58::encode([7; 32]).into_string(),
                balance: 2_000_000_000,
                origin: None,
            }],
            sui_address_balance: 0,
            coins: Vec::new(),
            coin_address_balance: 0,
            required: Vec::new(),
            validity: None,
        };
        order(Network::Sui, &kind, ChainData::Sui(facts))
    };
    let none = Policy::default();
    allowed(&none, pay(80_000));
    let dear = "price: is 80001 MIST per unit of gas by the request";
    refused(&none, pay(80_001), dear);
    allowed(&policy("most_own_price.sui = \"80001\""), pay(80_001));
}

/// A transaction that was made elsewhere: SetComputeUnitLimit and SetComputeUnitPrice, as often as it has prices.
fn solana_transaction(units: u32, prices: &[u64]) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let program = bs58::decode("ComputeBudget111111111111111111111111111111");
    let instruction = |variant: u8, value: &[u8]| {
        let length = u8::try_from(value.len() + 1).unwrap();
        [&[1, 0, length, variant][..], value].concat()
    };
    let mut instructions = vec![instruction(2, &units.to_le_bytes())];
    instructions.extend(
        prices
            .iter()
            .map(|price| instruction(3, &price.to_le_bytes())),
    );
    let message = [
        // One signer; of two accounts the second, the program, is only read; a blockhash
        &[1, 0, 1, 2][..],
        &public_key(Curve::Ed25519),
        &program.into_vec().unwrap(),
        &[7; 32],
        &[u8::try_from(instructions.len()).unwrap()],
        &instructions.concat(),
    ]
    .concat();
    STANDARD.encode([&[1][..], &[0; 64], &message].concat())
}

fn solana_made_elsewhere(transactions: Vec<String>) -> (SigningOrder, Payload) {
    let kind = WireKind::SolanaSendCustom(wire::SolanaSendCustom {
        from: sender(Network::Solana),
        tx_base64: transactions,
        chain_id: 101,
    });
    order(Network::Solana, &kind, ChainData::Nothing)
}

#[test]
fn prices_of_solana_transactions_made_elsewhere__should_have_a_ceiling() {
    const MOST: u64 = 40_000_000;
    let none = Policy::default();
    let at = |prices: &[u64]| solana_made_elsewhere(vec![solana_transaction(500, prices)]);
    allowed(&none, at(&[]));
    allowed(&none, at(&[MOST]));
    let unit = "micro-lamports per unit of computation by the request";
    let dear = format!("price: is {} {unit}", MOST + 1);
    // Alone, behind a cheap one, and in the second of two transactions.
    refused(&none, at(&[MOST + 1]), &dear);
    refused(&none, at(&[1, MOST + 1]), &dear);
    refused(&none, at(&[MOST + 1, 1]), &dear);
    let second = vec![
        solana_transaction(500, &[1]),
        solana_transaction(500, &[MOST + 1]),
    ];
    refused(&none, solana_made_elsewhere(second), &dear);
    let raised = policy(&format!("most_own_price.solana = \"{}\"", MOST + 1));
    allowed(&raised, at(&[MOST + 1]));
    // What nodes name has the lower ceiling as before.
    refused(
        &raised,
        priced_lamports(SOL, 5, Some(10_000_001)),
        "price: is 10000001 ",
    );
}

/// Operations that do nothing any more (Inflation), in a transaction of the sender that offers `fee`.
fn stellar_transaction(fee: u32, operations: u8) -> Vec<u8> {
    let operation = [0, 0, 0, 0, 0, 0, 0, 9];
    [
        &public_key(Curve::Ed25519)[..],
        &fee.to_be_bytes(),
        &9_u64.to_be_bytes(),
        // No conditions, no memo
        &[0; 8],
        &[0, 0, 0, operations],
        &operation.repeat(operations.into()),
        // No extension, no signatures
        &[0; 8],
    ]
    .concat()
}

fn stellar_made_elsewhere(envelope: &[u8]) -> (SigningOrder, Payload) {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let kind = WireKind::StellarSendCustom(wire::StellarSendCustom {
        from: sender(Network::Stellar),
        tx_base64: STANDARD.encode(envelope),
    });
    order(Network::Stellar, &kind, ChainData::Nothing)
}

#[test]
fn fees_of_stellar_transactions_made_elsewhere__should_have_a_ceiling() {
    const MOST: u32 = 4_000_000;
    let none = Policy::default();
    let plain = |fee, operations| {
        let transaction = stellar_transaction(fee, operations);
        stellar_made_elsewhere(&[&[0, 0, 0, 2, 0, 0, 0, 0][..], &transaction].concat())
    };
    // A fee bump of one operation counts as two.
    let bump = |fee: u32| {
        let inner = [&[0, 0, 0, 2][..], &[0; 4], &stellar_transaction(100, 1)].concat();
        let envelope = [
            &[0, 0, 0, 5, 0, 0, 0, 0][..],
            &public_key(Curve::Ed25519),
            &u64::from(fee).to_be_bytes(),
            &inner,
            // No extension, no signatures
            &[0; 8],
        ];
        stellar_made_elsewhere(&envelope.concat())
    };
    allowed(&none, plain(MOST, 1));
    allowed(&none, plain(2 * MOST, 2));
    allowed(&none, bump(2 * MOST));
    let dear = "price: is 4000001 stroops per operation by the request";
    for order in [
        plain(MOST + 1, 1),
        plain(2 * MOST + 1, 2),
        bump(2 * MOST + 1),
    ] {
        refused(&none, order.clone(), dear);
        let raised = policy(&format!("most_own_price.stellar = \"{}\"", MOST + 1));
        allowed(&raised, order);
    }
}

/// Nothing in the bytes names a price: `fee_limit` is the most that a call burns, and counts as fee.
#[test]
fn fee_limits_of_tron__should_have_the_ceiling_of_fees() {
    let call = |fee_limit: u64| {
        let kind = WireKind::TronSendTrc20(wire::TronSendTrc20 {
            from: sender(Network::Tron),
            to: "TX39nY681TTGNLgVkaX7Nkq56F5YRePoMB".into(),
            contract_address: "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t".into(),
            amount: "5".into(),
            fee_limit: Some(fee_limit.to_string()),
        });
        let facts = tron::ChainData::from(tron::Block {
            number: 7,
            id: [&7_u64.to_be_bytes()[..], &[7; 24]]
                .concat()
                .try_into()
                .unwrap(),
            timestamp_ms: 1_700_000_000_000,
        });
        order(Network::Tron, &kind, facts.into())
    };
    let none = Policy::default();
    allowed(&none, call(150_000_000));
    refused(&none, call(200_000_000), "fee: ");
}
