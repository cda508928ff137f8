//! What calls, permits and changes of accounts get past a policy: nothing.

use std::collections::BTreeSet;

use covault_core::payload::outflow::AccountChange;

use super::*;

const MULTICALL3: &str = "0xcA11bde05977b3631167028862bE2a173976CA11";
const PERMIT2: &str = "0x000000000022D473030F116dDEE9F6B43aC78BA3";

fn word(number: u64) -> Vec<u8> {
    U256::from(number).to_be_bytes::<32>().to_vec()
}

fn most() -> Vec<u8> {
    vec![0xff; 32]
}

fn account(address: &str) -> Vec<u8> {
    [vec![0; 12], hex::decode(&address[2..]).unwrap()].concat()
}

fn data(selector: u32, words: &[Vec<u8>]) -> Vec<u8> {
    [selector.to_be_bytes().to_vec(), words.concat()].concat()
}

/// With its length before it and zeros behind.
fn bytes(bytes: &[u8]) -> Vec<u8> {
    let mut all = [word(bytes.len() as u64), bytes.to_vec()].concat();
    all.resize(all.len().next_multiple_of(32), 0);
    all
}

fn approve(to: &str, amount: Vec<u8>) -> Vec<u8> {
    data(0x095e_a7b3, &[account(to), amount])
}

/// multicall(bytes[]) of one call.
fn multicall(call: &[u8]) -> Vec<u8> {
    data(0xac96_50d8, &[word(32), word(1), word(32), bytes(call)])
}

/// aggregate3((address,bool,bytes)[]) of one call.
fn aggregate3(to: &str, call: &[u8]) -> Vec<u8> {
    let one = [account(to), word(1), word(96), bytes(call)].concat();
    data(0x82ad_56cb, &[word(32), word(1), word(32), one])
}

/// A limit of 1 for the token, and a list with the contracts and Bob in it.
fn strict() -> (Policy, Policy) {
    let limit = format!(
        "custom_calls = [\"evm:1\"]\ntyped_data = [\"evm\"]\n\
         limits = [{{ asset = \"evm:1/{TOKEN}\", per_request = \"1\", per_day = \"1\" }}]"
    );
    let list = format!(
        "custom_calls = [\"evm:1\"]\ntyped_data = [\"evm\"]\n\
         recipients.evm = [\"{TOKEN}\", \"{MULTICALL3}\", \"{PERMIT2}\", \"{BOB}\"]"
    );
    (policy(&limit), policy(&list))
}

#[test]
fn approvals__should_count_as_spends_for_who_may_take() {
    let (limit, list) = strict();
    let calls: [(&str, Vec<u8>); 9] = [
        // The attack: approve(attacker, 2^256 - 1).
        (TOKEN, approve(EVE, most())),
        // increaseAllowance, increaseApproval, setApprovalForAll
        (TOKEN, data(0x3950_9351, &[account(EVE), most()])),
        (TOKEN, data(0xd73d_d623, &[account(EVE), most()])),
        (TOKEN, data(0xa22c_b465, &[account(EVE), word(1)])),
        // transferFrom
        (
            TOKEN,
            data(0x23b8_72dd, &[account(BOB), account(EVE), word(2)]),
        ),
        // permit, with a signature made before
        (
            TOKEN,
            data(
                0xd505_accf,
                &[account(BOB), account(EVE), most(), most(), word(27)],
            ),
        ),
        // Permit2's approve(address,address,uint160,uint48)
        (
            PERMIT2,
            data(
                0x8751_7c45,
                &[account(TOKEN), account(EVE), word(2), word(9)],
            ),
        ),
        (TOKEN, multicall(&multicall(&approve(EVE, most())))),
        (
            MULTICALL3,
            aggregate3(MULTICALL3, &aggregate3(TOKEN, &approve(EVE, most()))),
        ),
    ];
    for (to, input) in calls {
        refused(
            &limit,
            call(to, input.clone()),
            "amount: with the fee, more",
        );
        let fault = refused(&list, call(to, input), "recipient: is not in the list");
        assert_eq!(fault.code(), ExecuteCode::AddressNotInWhitelist);
    }
    // For Bob, and as much as the limit is.
    for (to, input) in [
        (TOKEN, approve(BOB, word(1))),
        (MULTICALL3, aggregate3(TOKEN, &approve(BOB, word(1)))),
    ] {
        allowed(&limit, call(to, input.clone()));
        allowed(&list, call(to, input));
    }
    // Batch payments: disperseToken(address,address[],uint256[]).
    let pay = |to: &str, amount: u64| {
        let lists = [word(1), account(to), word(1), word(amount)];
        let head = [account(TOKEN), word(96), word(160)];
        call(
            MULTICALL3,
            data(0xc73a_2d60, &[head.concat(), lists.concat()]),
        )
    };
    allowed(&limit, pay(BOB, 1));
    allowed(&list, pay(BOB, 1));
    refused(&limit, pay(BOB, 2), "amount: ");
    refused(&list, pay(EVE, 1), "recipient: ");
    // Two of the greatest amounts are no more than one, and no error.
    let twice = [word(64), word(192)].concat();
    let both = [
        twice,
        bytes(&approve(BOB, most())),
        bytes(&approve(BOB, most())),
    ]
    .concat();
    let both = data(0xac96_50d8, &[word(32), word(2), both]);
    allowed(&policy(""), call(TOKEN, both.clone()));
    refused(&limit, call(TOKEN, both), "amount: with the fee, more");
}

#[test]
fn calls_that_cannot_be_read__should_satisfy_no_list_and_no_limit() {
    let (limit, list) = strict();
    let mut deep = approve(EVE, most());
    for _ in 0..20 {
        deep = multicall(&deep);
    }
    let wrong = data(0xac96_50d8, &[most(), most()]);
    for input in [deep, wrong] {
        refused(&limit, call(TOKEN, input.clone()), "amount: ");
        refused(&list, call(TOKEN, input), "recipient: cannot be seen");
    }
}

fn permit(domain: &str, spender: &str, amount: &str) -> (SigningOrder, Payload) {
    let content = format!(
        r#"{{"types": {{"Permit": [{{"name": "owner", "type": "address"}},
            {{"name": "spender", "type": "address"}}, {{"name": "value", "type": "uint256"}},
            {{"name": "nonce", "type": "uint256"}}, {{"name": "deadline", "type": "uint256"}}]}},
            "primaryType": "Permit", "domain": {domain}, "message": {{"owner": "{}",
            "spender": "{spender}", "value": "{amount}", "nonce": 0, "deadline": 1}}}}"#,
        sender(Network::Evm)
    );
    text(evm_message::Type::SignTypedData, &content)
}

fn permit2(spender: &str, amount: &str) -> (SigningOrder, Payload) {
    let content = format!(
        r#"{{"types": {{"PermitSingle": [{{"name": "details", "type": "PermitDetails"}},
            {{"name": "spender", "type": "address"}}, {{"name": "sigDeadline", "type": "uint256"}}],
            "PermitDetails": [{{"name": "token", "type": "address"}},
            {{"name": "amount", "type": "uint160"}}, {{"name": "expiration", "type": "uint48"}},
            {{"name": "nonce", "type": "uint48"}}]}}, "primaryType": "PermitSingle",
            "domain": {{"name": "Permit2", "chainId": 1, "verifyingContract": "{PERMIT2}"}},
            "message": {{"details": {{"token": "{TOKEN}", "amount": "{amount}", "expiration": 9,
            "nonce": 0}}, "spender": "{spender}", "sigDeadline": 9}}}}"#,
    );
    text(evm_message::Type::SignTypedData, &content)
}

fn witness(spender: &str, amount: &str, fields: &str) -> (SigningOrder, Payload) {
    let content = format!(
        r#"{{"types": {{"PermitWitnessTransferFrom": [
            {{"name": "permitted", "type": "TokenPermissions"}}, {fields},
            {{"name": "nonce", "type": "uint256"}}, {{"name": "deadline", "type": "uint256"}},
            {{"name": "witness", "type": "Order"}}],
            "TokenPermissions": [{{"name": "token", "type": "address"}},
            {{"name": "amount", "type": "uint256"}}], "Order": [{{"name": "x", "type": "string"}}]}},
            "primaryType": "PermitWitnessTransferFrom", "domain": {{"chainId": "0x1"}},
            "message": {{"permitted": {{"token": "{TOKEN}", "amount": "{amount}"}},
            "spender": "{spender}", "nonce": 1, "deadline": 2, "witness": {{"x": "y"}}}}}}"#,
    );
    text(evm_message::Type::SignTypedData, &content)
}

#[test]
fn permits__should_count_as_spends_for_who_may_take() {
    let (limit, list) = strict();
    let domain = format!(r#"{{"chainId": 1, "verifyingContract": "{TOKEN}"}}"#);
    let spender = r#"{"name": "spender", "type": "address"}"#;
    type Form<'a> = &'a dyn Fn(&str, &str) -> (SigningOrder, Payload);
    let forms: [Form<'_>; 3] = [
        &|to, amount| permit(&domain, to, amount),
        &permit2,
        &|to, amount| witness(to, amount, spender),
    ];
    for form in forms {
        allowed(&limit, form(EVE, "1"));
        allowed(&list, form(BOB, "1000"));
        refused(&limit, form(EVE, "2"), "amount: with the fee, more");
        refused(&list, form(EVE, "1"), "recipient: is not in the list");
    }
    // Nobody can tell what other data moves, or where it is good.
    for order in [
        typed(r#"{"chainId": 1}"#),
        permit(r#"{"name": "n"}"#, BOB, "1"),
        permit(r#"{"chainId": 1}"#, BOB, "1"),
    ] {
        refused(&list, order, "recipient: cannot be seen");
    }
}

#[test]
fn unseen_recipients__should_satisfy_no_list_unless_they_are_named() {
    let list = format!(
        "custom_calls = [\"evm\", \"aptos\"]\ntyped_data = [\"evm\"]\n\
         recipients.evm = [\"{BOB}\"]\nrecipients.aptos = []"
    );
    let named = format!("unseen_recipients = [\"evm:1\", \"aptos:1\"]\n{list}");
    let (closed, open) = (policy(&list), policy(&named));
    for order in [typed(r#"{"chainId": 1}"#), call("", vec![1])] {
        refused(
            &closed,
            (order.0.clone(), order.1.clone()),
            "recipient: cannot be seen",
        );
        allowed(&open, order);
    }
    // It is good elsewhere too.
    refused(&open, typed("{}"), "recipient: cannot be seen");
    // Who is seen has to be in the list all the same.
    refused(&open, call(EVE, vec![1]), "recipient: is not in the list");
    let unstake = custom_aptos("0x1::stake::unlock");
    for (policy, allows) in [(&closed, false), (&open, true)] {
        assert_eq!(judged(policy, Network::Aptos, &unstake).is_ok(), allows);
    }
}

fn judged(policy: &Policy, network: Network, payload: &Payload) -> Result<Vec<Spending>, Fault> {
    policy.judge(&Asked {
        vault: VaultId::from_bytes([2; 16]),
        network,
        payload,
        own_wallets: &BTreeSet::new(),
        fee: U256::ZERO,
    })
}

fn custom_aptos(function: &str) -> Payload {
    let payload = format!(
        r#"{{"type": "entry_function_payload", "function": "{function}", "arguments": []}}"#
    );
    let kind = WireKind::AptosSendCustom(wire::AptosSendCustom {
        chain_id: 1,
        from: sender(Network::Aptos),
        payload: payload.into_bytes(),
        gas_fee: None,
    });
    Payload::parse(&kind).unwrap()
}

/// A transaction that calls one function of the framework, in BCS.
fn custom_sui(module: &str, function: &str) -> Payload {
    let from = sender(Network::Sui);
    let key = hex::decode(&from[2..]).unwrap();
    let text = |text: &str| [&[text.len() as u8][..], text.as_bytes()].concat();
    let mut package = vec![0; 32];
    package[31] = 2;
    let coin = [
        vec![1; 32],
        vec![3, 0, 0, 0, 0, 0, 0, 0],
        vec![32],
        vec![4; 32],
    ]
    .concat();
    let amounts = [10_u64.to_le_bytes(), 1000_u64.to_le_bytes()].concat();
    let payload = [
        // V1, programmable, no inputs, one command: a call
        vec![0, 0, 0, 1, 0],
        package,
        text(module),
        text(function),
        vec![0, 0],
        key.clone(),
        vec![1],
        coin,
        key,
        amounts,
        vec![0],
    ]
    .concat();
    let kind = WireKind::SuiSendCustom(wire::SuiSendCustom { from, payload });
    Payload::parse(&kind).unwrap()
}

/// A transaction of one operation of the sender, in XDR.
fn custom_stellar(operation: &[u8]) -> Payload {
    let key = public_key(Curve::Ed25519);
    let envelope = [
        &[0, 0, 0, 2, 0, 0, 0, 0][..],
        &key,
        // Fee and sequence number; no conditions, no memo, one operation without a source
        &[0, 0, 0, 100],
        &9_u64.to_be_bytes(),
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
        operation,
        // No extension, no signatures
        &[0; 8],
    ]
    .concat();
    let kind = WireKind::StellarSendCustom(wire::StellarSendCustom {
        from: sender(Network::Stellar),
        tx_base64: base64(&envelope),
    });
    Payload::parse(&kind).unwrap()
}

/// A transaction of one instruction that names the wallet and two others.
fn custom_solana(program: [u8; 32], accounts: &[u8], data: &[u8]) -> Payload {
    let message = [
        &[1, 0, 1, 4][..],
        &public_key(Curve::Ed25519),
        &[8; 32],
        &[9; 32],
        &program,
        &[3; 32],
        &[1, 3, accounts.len() as u8],
        accounts,
        &[data.len() as u8],
        data,
    ]
    .concat();
    let transaction = [&[1][..], &[0; 64], &message].concat();
    let kind = WireKind::SolanaSendCustom(wire::SolanaSendCustom {
        from: sender(Network::Solana),
        tx_base64: vec![base64(&transaction)],
        chain_id: 101,
    });
    Payload::parse(&kind).unwrap()
}

fn base64(bytes: &[u8]) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    STANDARD.encode(bytes)
}

#[test]
fn hand_overs__should_be_refused_unless_they_are_named() {
    let token: [u8; 32] = bs58::decode("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
        .into_vec()
        .unwrap()
        .try_into()
        .unwrap();
    // SetOptions: a signer of weight 255
    let signer = [
        &[0, 0, 0, 5][..],
        &[0; 32],
        &[0, 0, 0, 1, 0, 0, 0, 0],
        &[6; 32],
        &[0, 0, 0, 255],
    ]
    .concat();
    let bump = [&[0, 0, 0, 11][..], &i64::MAX.to_be_bytes()].concat();
    let assign = [&[1, 0, 0, 0][..], &[6; 32]].concat();
    // Of an account's owner, to somebody
    let authority = [&[6, 2, 1][..], &[6; 32]].concat();
    let approve = [&[4][..], &u64::MAX.to_le_bytes()].concat();
    let attacks = [
        (
            "stellarSetOptions",
            Network::Stellar,
            custom_stellar(&signer),
        ),
        (
            "stellarBumpSequence",
            Network::Stellar,
            custom_stellar(&bump),
        ),
        (
            "solanaAssign",
            Network::Solana,
            custom_solana([0; 32], &[0], &assign),
        ),
        (
            "solanaSetAuthority",
            Network::Solana,
            custom_solana(token, &[1, 0], &authority),
        ),
        (
            "solanaApprove",
            Network::Solana,
            custom_solana(token, &[1, 2, 0], &approve),
        ),
        (
            "aptosKeyRotation",
            Network::Aptos,
            custom_aptos("0x1::account::rotate_authentication_key_call"),
        ),
        (
            "suiAddressAlias",
            Network::Sui,
            custom_sui("address_alias", "add"),
        ),
    ];
    let names: BTreeSet<&str> = attacks.iter().map(|(name, ..)| *name).collect();
    let all = AccountChange::ALL.iter().map(|change| change.name());
    assert_eq!(names, all.collect());
    for (name, network, payload) in &attacks {
        for policy in [Policy::production(), policy("account_changes = []")] {
            let fault = judged(&policy, *network, payload).unwrap_err();
            let starts = format!("kind: this signer's policy does not allow {name}");
            assert!(fault.public().starts_with(&starts), "{fault}");
        }
        let named = policy(&format!("account_changes = [\"{name}\"]"));
        assert!(judged(&named, *network, payload).is_ok(), "{name}");
        assert!(judged(&Policy::development(), *network, payload).is_ok());
        for (other, network, payload) in &attacks {
            assert_eq!(judged(&named, *network, payload).is_ok(), name == other);
        }
        // A vault can have less than its node, and no more.
        let less = format!("account_changes = [\"{name}\"]\neach_vault.account_changes = []");
        let more = format!("each_vault.account_changes = [\"{name}\"]");
        for text in [less, more] {
            assert!(judged(&policy(&text), *network, payload).is_err());
        }
    }
    // What only looks like one.
    let home = [&[0, 0, 0, 5][..], &[0; 36]].concat();
    let home = custom_stellar(&home);
    assert!(judged(&Policy::production(), Network::Stellar, &home).is_ok());
    let fault = Policy::parse("version = 2\naccount_changes = [\"everything\"]").unwrap_err();
    let expected = "account_changes[0]: is no change of an account: use one of stellarSetOptions, ";
    assert!(fault.public().starts_with(expected), "{fault}");
}

#[test]
fn approvals_of_solana__should_count_as_spends_beside() {
    let token: [u8; 32] = bs58::decode("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
        .into_vec()
        .unwrap()
        .try_into()
        .unwrap();
    let mint = bs58::encode([8; 32]).into_string();
    // ApproveChecked: source, mint, delegate, owner
    let approve = [&[13][..], &2_u64.to_le_bytes(), &[6]].concat();
    let payload = custom_solana(token, &[2, 1, 2, 0], &approve);
    let open = "account_changes = [\"solanaApprove\"]\ncustom_calls = [\"solana\"]\n";
    let limit = |most: u64| {
        let limit =
            format!("{open}limits = [{{ asset = \"solana/{mint}\", per_request = \"{most}\" }}]");
        judged(&policy(&limit), Network::Solana, &payload)
    };
    assert!(limit(1).unwrap_err().public().starts_with("amount: "));
    assert!(limit(2).is_ok());
    // A program that gets the signature is a recipient.
    let list = policy(&format!("{open}recipients.solana = [\"{mint}\"]"));
    let swap = custom_solana([7; 32], &[0], b"x");
    let fault = judged(&list, Network::Solana, &swap).unwrap_err();
    assert!(fault.public().starts_with("recipient: is not in the list"));
    let trusted = bs58::encode([7; 32]).into_string();
    let list = policy(&format!("{open}recipients.solana = [\"{trusted}\"]"));
    assert!(judged(&list, Network::Solana, &swap).is_ok());
}
