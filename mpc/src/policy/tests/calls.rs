//! What calls, permits and changes of accounts get past a policy: nothing.

use std::collections::BTreeSet;

use covault_core::{ids::SessionId, networks::outflow::AccountChange};

use super::*;
use crate::claims::{Claim, ClaimError, Claims};

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
        assert_eq!(fault.execute_code(), ExecuteCode::AddressNotInWhitelist);
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
    type OrderBuilder<'a> = &'a dyn Fn(&str, &str) -> (SigningOrder, Payload);
    let forms: [OrderBuilder<'_>; 3] = [
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
    // Who is seen has to be in the list anyway.
    refused(&open, call(EVE, vec![1]), "recipient: is not in the list");
    let unstake = custom_aptos("0x1::stake::unlock");
    for (policy, allows) in [(&closed, false), (&open, true)] {
        assert_eq!(judged(policy, Network::Aptos, &unstake).is_ok(), allows);
    }
}

fn judged(policy: &Policy, network: Network, payload: &Payload) -> Result<Vec<Spending>, Fault> {
    let asked = PolicyRequest {
        vault: VaultId::from_bytes([2; 16]),
        network,
        payload,
        own_wallets: &BTreeSet::new(),
        fee: U256::ZERO,
        price: None,
        own_price: None,
    };
    Ok(policy.evaluate(&asked)?.spending)
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
        ..Default::default()
    });
    Payload::parse(&kind).unwrap()
}

/// A transaction that calls one function of the framework, in BCS.
fn custom_sui(module: &str, function: &str) -> Payload {
    let text = |text: &str| [&[text.len() as u8][..], text.as_bytes()].concat();
    let mut package = vec![0; 32];
    package[31] = 2;
    // No inputs, one command: a call
    let call = [
        vec![0, 1, 0],
        package,
        text(module),
        text(function),
        vec![0, 0],
    ];
    sui_of(&call.concat())
}

/// A transaction of these inputs and commands, in BCS, with one gas coin of the sender.
fn sui_of(program: &[u8]) -> Payload {
    let key = hex::decode(&sender(Network::Sui)[2..]).unwrap();
    Payload::parse(&sui_kind(program, &key, &key)).unwrap()
}

fn sui_kind(program: &[u8], sender_key: &[u8], owner: &[u8]) -> WireKind {
    let payload = [
        // V1, programmable
        &[0, 0][..],
        program,
        sender_key,
        // One gas coin: its id, version and digest; whose it is, price and budget; no end
        &[1],
        &[1; 32],
        &[3, 0, 0, 0, 0, 0, 0, 0],
        &[32],
        &[4; 32],
        owner,
        &10_u64.to_le_bytes(),
        &1000_u64.to_le_bytes(),
        &[0],
    ]
    .concat();
    WireKind::SuiSendCustom(wire::SuiSendCustom {
        from: sender(Network::Sui),
        payload,
        other_signatures: Vec::new(),
    })
}

#[test]
fn fee__should_be_that_of_the_one_who_pays_it() {
    let own = hex::decode(&sender(Network::Sui)[2..]).unwrap();
    let sui = |sender_key: &[u8], owner: &[u8]| {
        // No inputs, no commands.
        let kind = sui_kind(&[0, 0], sender_key, owner);
        order(Network::Sui, &kind, ChainData::Nothing)
    };
    let tight = policy("most_fee.sui = \"999\"");
    let enough = policy("most_fee.sui = \"1000\"");
    let coins = |spending: Vec<Spending>| {
        let amounts = spending.into_iter().map(|spent| spent.amount);
        amounts.collect::<BTreeSet<_>>()
    };
    allowed(&tight, sui(&own, &[9; 32]));
    refused(&tight, sui(&own, &own), "fee");
    refused(&tight, sui(&[9; 32], &own), "fee");
    let limited =
        policy("custom_calls = [\"sui\"]\n[[limits]]\nasset = \"sui\"\nper_day = \"1000\"");
    for (order, spent) in [
        (sui(&own, &[9; 32]), BTreeSet::new()),
        (sui(&[9; 32], &own), BTreeSet::from([U256::from(1_000_u64)])),
    ] {
        assert_eq!(coins(allowed(&limited, order.clone())), spent);
        allowed(&enough, order);
    }

    let raw = |from: &[u8]| {
        let sdk = include_str!("../../../../core/src/networks/aptos/fee_payer.json");
        let raw = sdk.split("\"raw\":\"").nth(1).unwrap();
        let mut raw = hex::decode(raw.split('"').next().unwrap()).unwrap();
        raw[..32].copy_from_slice(from);
        raw
    };
    let own = hex::decode(&sender(Network::Aptos)[2..]).unwrap();
    let aptos = |from: &[u8], payer: Option<&[u8]>| {
        let kind = WireKind::AptosSendCustom(wire::AptosSendCustom {
            chain_id: 1,
            from: sender(Network::Aptos),
            payload: raw(from),
            fee_payer: payer.map(|payer| format!("0x{}", hex::encode(payer))),
            ..Default::default()
        });
        order(Network::Aptos, &kind, ChainData::Nothing)
    };
    // 2,000 units at 100 octa.
    let tight = policy("most_fee.aptos = \"199999\"");
    allowed(&tight, aptos(&own, Some(&[9; 32])));
    refused(&tight, aptos(&own, None), "fee");
    refused(&tight, aptos(&[9; 32], Some(&own)), "fee");
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
    let token = token_program();
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
    // From an account's owner to another account
    let authority = [&[6, 2, 1][..], &[6; 32]].concat();
    let approve = [&[4][..], &u64::MAX.to_le_bytes()].concat();
    // Of a nonce account; of an account with a seed
    let nonce = [&[7, 0, 0, 0][..], &[6; 32]].concat();
    let attacks = [
        (
            "stellarBumpSequence",
            Network::Stellar,
            stellar_that_skips(),
        ),
        // Anyone who signs may stand at any place.
        (
            "solanaSetAuthority",
            Network::Solana,
            custom_solana([0; 32], &[1, 0], &nonce),
        ),
        (
            "solanaSetAuthority",
            Network::Solana,
            custom_solana([0; 32], &[1, 2, 2, 0], &nonce),
        ),
        (
            "solanaSetAuthority",
            Network::Solana,
            custom_solana(token, &[1, 2, 2, 0], &authority),
        ),
        (
            "solanaAssign",
            Network::Solana,
            custom_solana([0; 32], &[1, 0], &with_seed(10, &[])),
        ),
        (
            "solanaAssign",
            Network::Solana,
            custom_solana([0; 32], &[1, 2, 0], &with_seed(10, &[])),
        ),
        (
            "solanaAssign",
            Network::Solana,
            custom_solana([0; 32], &[1, 2, 2, 0], &with_seed(9, &[0; 8])),
        ),
        (
            "solanaApprove",
            Network::Solana,
            custom_solana(token, &[1, 2, 2, 2, 0], &approve),
        ),
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
        ("evmAddProxy", Network::Evm, adds_proxy()),
    ];
    let names: BTreeSet<&str> = attacks.iter().map(|(name, ..)| *name).collect();
    let all = AccountChange::ALL.iter().map(|change| change.name());
    assert_eq!(names, all.collect());
    for (name, network, payload) in &attacks {
        for policy in [Policy::production(), policy("account_changes = []")] {
            let fault = judged(&policy, *network, payload).unwrap_err();
            let starts = format!("kind: this signer's policy does not allow {name}");
            assert!(fault.message().starts_with(&starts), "{fault}");
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
    let expected =
        "account_changes[0]: is not a change of an account: use one of stellarSetOptions, ";
    assert!(fault.message().starts_with(expected), "{fault}");
}

#[test]
fn approvals_of_solana__should_count_as_spends_beside() {
    let token = token_program();
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
    assert!(limit(1).unwrap_err().message().starts_with("amount: "));
    assert!(limit(2).is_ok());
    // A program that gets the signature is a recipient.
    let list = policy(&format!("{open}recipients.solana = [\"{mint}\"]"));
    let swap = custom_solana([7; 32], &[0], b"x");
    let fault = judged(&list, Network::Solana, &swap).unwrap_err();
    assert!(fault.message().starts_with("recipient: is not in the list"));
    let trusted = bs58::encode([7; 32]).into_string();
    let list = policy(&format!("{open}recipients.solana = [\"{trusted}\"]"));
    assert!(judged(&list, Network::Solana, &swap).is_ok());
}

/// AllocateWithSeed or AssignWithSeed of an account that is derived from the wallet.
fn with_seed(variant: u8, space: &[u8]) -> Vec<u8> {
    let base = public_key(Curve::Ed25519);
    let seed = [&4_u64.to_le_bytes()[..], b"seed"].concat();
    [&[variant, 0, 0, 0][..], &base, &seed, space, &[6; 32]].concat()
}

/// The system program of Solana looks for the authority of a nonce account, and for the base of an
/// account with a seed, among all who sign an instruction, at whatever place they stand
/// (`InstructionContext::get_signers` of Agave, `signers.contains(..)`).
#[test]
fn signers_of_solana__should_count_at_any_place_of_the_accounts() {
    let mallory = [6; 32];
    let withdraw = [&[5, 0, 0, 0][..], &1_000_000_000_u64.to_le_bytes()].concat();
    let authorize = [&[7, 0, 0, 0][..], &mallory].concat();
    // Account 0 is the wallet, 1 and 2 are others.
    let mut got_through = Vec::new();
    for (name, accounts, data) in [
        // nonce account, recipient, two sysvars, anybody, and only then the authority
        ("WithdrawNonceAccount", &[1, 2, 2, 2, 2, 0][..], &withdraw),
        ("AuthorizeNonceAccount", &[1, 2, 0], &authorize),
        ("AllocateWithSeed", &[1, 2, 0], &with_seed(9, &[0; 8])),
        ("AssignWithSeed", &[1, 2, 0], &with_seed(10, &[])),
    ] {
        let payload = custom_solana([0; 32], accounts, data);
        // Nobody may receive, nothing may go, no account may change.
        let closed = policy(
            "custom_calls = [\"solana\"]\nonly_listed_recipients = true\n\
             recipients.solana = []\naccount_changes = []\n\
             limits = [{ asset = \"solana\", per_request = \"1\", per_day = \"1\" }]",
        );
        if let Ok(spending) = judged(&closed, Network::Solana, &payload) {
            got_through.push((name, spending.len()));
        }
    }
    assert!(got_through.is_empty(), "signed: {got_through:?}");
}

/// The SPL token program.
fn token_program() -> [u8; 32] {
    let id = bs58::decode("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA").into_vec();
    id.unwrap().try_into().unwrap()
}

/// A token of Solana whose mint stands in an address lookup table is still that token.
#[test]
fn mints_of_solana_in_a_table__should_not_get_past_a_limit() {
    let token = token_program();
    let mint = bs58::encode([5; 32]).into_string();
    // TransferChecked: source, mint, destination, owner
    let data = [&[12][..], &u64::MAX.to_le_bytes(), &[6]].concat();
    let message = [
        &[0x80, 1, 0, 1, 4][..],
        &public_key(Curve::Ed25519),
        &[8; 32],
        &[9; 32],
        &token,
        &[3; 32],
        // The mint is account 4: the first of the table.
        &[1, 3, 4, 1, 4, 2, 0, data.len() as u8],
        &data,
        &[1],
        &[7; 32],
        &[0, 1, 0],
    ]
    .concat();
    let transaction = [&[1][..], &[0; 64], &message].concat();
    let kind = WireKind::SolanaSendCustom(wire::SolanaSendCustom {
        from: sender(Network::Solana),
        tx_base64: vec![base64(&transaction)],
        chain_id: 101,
    });
    let payload = Payload::parse(&kind).unwrap();
    let limit = policy(&format!(
        "custom_calls = [\"solana\"]\n\
         limits = [{{ asset = \"solana/{mint}\", per_request = \"1\", per_day = \"1\" }}]"
    ));
    let judged = judged(&limit, Network::Solana, &payload);
    assert!(judged.is_err(), "{judged:?}");
}

/// Transfer names no mint, and the account that it takes from may hold any token.
#[test]
fn tokens_of_solana_without_their_mint__should_not_get_past_a_limit() {
    let token = token_program();
    let mint = bs58::encode([5; 32]).into_string();
    // Transfer: source, destination, owner
    let payload = |amount: u64| {
        let data = [&[3][..], &amount.to_le_bytes()].concat();
        custom_solana(token, &[1, 2, 0], &data)
    };
    let limit = policy(&format!(
        "custom_calls = [\"solana\"]\n\
         limits = [{{ asset = \"solana/{mint}\", per_request = \"1\", per_day = \"1\" }}]"
    ));
    let fault = judged(&limit, Network::Solana, &payload(2)).unwrap_err();
    assert!(fault.message().starts_with("amount: "), "{fault}");
    // As much as the limit is, and it counts.
    let counted = judged(&limit, Network::Solana, &payload(1)).unwrap();
    let limited = counted.iter().filter(|one| one.most_per_day.is_some());
    let assets: Vec<&str> = limited.map(|one| one.counter.asset.as_str()).collect();
    assert_eq!(assets, [format!("solana/{mint}")]);
    let listed = policy(
        "custom_calls = [\"solana\"]\nonly_listed_assets = true\n\
         limits = [{ asset = \"solana\", per_day = \"1\" }]",
    );
    assert!(judged(&listed, Network::Solana, &payload(1)).is_err());
}

/// The gas coin as a whole is all SUI that the gas coins hold.
#[test]
fn gas_coin_of_sui__should_count_when_it_goes_as_a_whole() {
    let bob = [0x0b; 32];
    let payload = sui_of(
        &[
            // One input, which is pure and of 32 bytes: the recipient
            &[1, 0, 32][..],
            &bob,
            // One command: TransferObjects of the gas coin to input 0
            &[1, 1, 1, 0, 1, 0, 0],
        ]
        .concat(),
    );
    let bob = format!("0x{}", hex::encode(bob));
    let limit = policy(&format!(
        "custom_calls = [\"sui\"]\nrecipients.sui = [\"{bob}\"]\n\
         limits = [{{ asset = \"sui\", per_request = \"1\", per_day = \"1\" }}]"
    ));
    let judged = judged(&limit, Network::Sui, &payload);
    assert!(judged.is_err(), "{judged:?}");
}

/// "Where it calls the framework's transfer functions, what they send counts"
/// (docs/policy-floor.md).
#[test]
fn transfers_of_aptos_between_stores__should_count() {
    let limit = policy(
        "custom_calls = [\"aptos:1\"]\nlimits = [{ asset = \"aptos:1\", per_request = \"1\", \
         per_day = \"1\" }]",
    );
    let mut got_through = Vec::new();
    for function in [
        "0x1::fungible_asset::transfer",
        "0x1::dispatchable_fungible_asset::transfer",
        "0x1::primary_fungible_store::transfer_assert_minimum_deposit",
        "0x1::object::transfer",
    ] {
        if let Ok(spending) = judged(&limit, Network::Aptos, &custom_aptos(function)) {
            got_through.push((function, spending.len()));
        }
    }
    assert!(got_through.is_empty(), "signed: {got_through:?}");
}

/// DAI has push, pull and move beside transfer; MKR (DSToken) an approve without an amount; stETH
/// counts in shares, too; AMPL sends all.
#[test]
fn kin_of_transfer_and_approve__should_count_as_spends() {
    let (limit, list) = strict();
    let mut got_through = Vec::new();
    let to = || vec![account(EVE), word(9)];
    let from_to = || vec![account(BOB), account(EVE), word(9)];
    for (signature, selector, words) in [
        ("push(address,uint256)", 0xb753_a98c, to()),
        ("move(address,address,uint256)", 0xbb35_783b, from_to()),
        ("approve(address)", 0xdaea_85c5, vec![account(EVE)]),
        ("transferShares(address,uint256)", 0x8fcb_4e5b, to()),
        (
            "transferSharesFrom(address,address,uint256)",
            0x6d78_0459,
            from_to(),
        ),
        ("transferAll(address)", 0xa3a7_e7f3, vec![account(EVE)]),
        // Paid by the wallet's allowance, credited to another account: ERC-4626 and Aave.
        (
            "deposit(uint256,address)",
            0x6e55_3f65,
            vec![word(9), account(EVE)],
        ),
        (
            "mint(uint256,address)",
            0x94bf_804d,
            vec![word(9), account(EVE)],
        ),
        (
            "supply(address,uint256,address,uint16)",
            0x617b_a037,
            vec![account(TOKEN), word(9), account(EVE), word(0)],
        ),
    ] {
        let (order, payload) = call(TOKEN, data(selector, &words));
        for (name, policy) in [("limit", &limit), ("list", &list)] {
            if policy.check(&order, &root(), &payload, NOW_MS).is_ok() {
                got_through.push((signature, name));
            }
        }
    }
    assert!(got_through.is_empty(), "signed: {got_through:?}");
}

/// Some chains keep their coin as a token, too: one balance under two names. CELO at 0x471E..., GLMR
/// of Moonbeam at 0x0802, METIS at 0xDeaD...0000.
#[test]
fn coins_of_evm_that_are_tokens_too__should_count_as_the_coin() {
    let mut got_through = Vec::new();
    for (chain_id, contract) in [
        (42_220, "0x471ece3750da237f93b8e339c536989b8978a438"),
        (1_284, "0x0000000000000000000000000000000000000802"),
        (1_088, "0xdeaddeaddeaddeaddeaddeaddeaddeaddead0000"),
    ] {
        let kind = WireKind::EvmSendErc20(wire::EvmSendErc20 {
            chain_id,
            from: sender(Network::Evm),
            to: BOB.into(),
            token_contract_address: contract.into(),
            amount: "1000000000000000000000000".into(),
            gas_fee: gas(),
            nonce: Some(0),
        });
        let limit = policy(&format!(
            "limits = [{{ asset = \"evm:{chain_id}\", per_request = \"1\", per_day = \"1\" }}]"
        ));
        let payload = Payload::parse(&kind).unwrap();
        if judged(&limit, Network::Evm, &payload).is_ok() {
            got_through.push(contract);
        }
    }
    assert!(got_through.is_empty(), "signed: {got_through:?}");
}

/// A signature of Bitcoin binds the amount of its own input alone (BIP-143). So two orders can be one
/// transaction: each tells the truth about one coin and understates, or overstates, the other. Neither
/// is wrong by itself; the claims remember what was shown.
#[tokio::test]
async fn fees_of_bitcoin__should_be_bounded_over_two_orders_of_one_transaction() {
    use covault_core::networks::bitcoin::{ChainData as Outputs, UnspentOutput};

    const BTC: u64 = 100_000_000;
    // The coins of the wallet as they are.
    let (large, small) = (20 * BTC, 10 * BTC);
    let listed = "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4";
    let pay = |large, small| {
        let kind = WireKind::BtcSendNative(wire::BtcSendNative {
            from: sender(Network::Bitcoin),
            to: listed.into(),
            // More than the large coin, so that both are spent.
            amount: (20 * BTC).to_string(),
            network_fee: 1,
            ..Default::default()
        });
        let coin = |digit: &str, value| UnspentOutput {
            txid: digit.repeat(64),
            vout: 0,
            value,
        };
        let outputs = vec![coin("1", large), coin("2", small)];
        order(
            Network::Bitcoin,
            &kind,
            Outputs {
                outputs,
                ..Default::default()
            }
            .into(),
        )
    };
    let bounded = policy(&format!(
        "recipients.bitcoin = [\"{listed}\"]\nmost_fee.bitcoin = \"10000\""
    ));
    // The transaction in a PSBT: behind magic, key and length.
    let transaction = |unsigned: &[u8]| unsigned[8..8 + usize::from(unsigned[7])].to_vec();
    let shown = 1_000;
    let (one, two) = (pay(large, shown), pay(large + shown - small, small));
    assert_eq!(transaction(&one.0.unsigned), transaction(&two.0.unsigned));
    let folder = tempfile::tempdir().unwrap();
    let claims = Claims::open(&folder.path().join("claims.redb"), true).unwrap();
    let mut signed = Vec::new();
    for (number, (order, payload)) in (1..).zip([one, two]) {
        let spending = bounded.check(&order, &root(), &payload, NOW_MS).unwrap();
        let session = (SessionId::from_bytes([number; 16]), 0);
        let order = SigningOrder {
            request: RequestId::from_bytes([number; 16]),
            ..order
        };
        let claim = Claim::of_order(session, &order, (spending, false, None), 1).unwrap();
        signed.push(claims.claim(claim).await);
    }
    // One gives the signature of the large coin, the other that of the small one: 20 BTC are paid,
    // and what is left of 30 goes to the miner of the block.
    assert!(
        signed == [Ok(()), Err(ClaimError::OtherAmounts)],
        "10 BTC of fee under a most_fee of 0.0001: {signed:?}"
    );
}

/// What a path payment sends goes to the market, as that of an offer does. A recipient in the list gets
/// as little as the order says, and who has made the market of the path the rest.
#[test]
fn path_payments_of_stellar__should_go_to_nobody_that_is_seen() {
    let bob = [7; 32];
    let listed = |key: &[u8]| Network::Stellar.rules().address(key).unwrap();
    // Any key of the curve will do for who is listed: its base point.
    let mut to = vec![0x66; 32];
    to[0] = 0x58;
    let native = [0; 4];
    // An asset that the attacker issues: a code of four letters, a key
    let worthless = [&[0, 0, 0, 1][..], b"EVIL", &[0; 4], &bob].concat();
    let path = [&1_u32.to_be_bytes()[..], &worthless].concat();
    let destination = [&[0; 4][..], &to].concat();
    let usdc = [&[0, 0, 0, 1][..], b"USDC", &[0; 4], &[8; 32]].concat();
    let (all, least) = (1_000_000_000_000_i64.to_be_bytes(), 1_i64.to_be_bytes());
    let list = policy(&format!(
        "custom_calls = [\"stellar\"]\nonly_listed_recipients = true\nrecipients.stellar = [\"{}\"]",
        listed(&to)
    ));
    let mut got_through = Vec::new();
    for (name, number, fields) in [
        (
            "PathPaymentStrictReceive",
            2,
            [&all[..], &destination, &native, &least, &path],
        ),
        (
            "PathPaymentStrictSend",
            13,
            [&all[..], &destination, &native, &least, &path],
        ),
    ] {
        let operation = [&[0, 0, 0, number][..], &usdc, &fields.concat()].concat();
        if judged(&list, Network::Stellar, &custom_stellar(&operation)).is_ok() {
            got_through.push(name);
        }
    }
    // The wallet pays the reserves of entries that another account opens: 0.5 XLM each.
    let sponsor = [&[0, 0, 0, 16][..], &[0; 4], &bob].concat();
    if judged(&list, Network::Stellar, &custom_stellar(&sponsor)).is_ok() {
        got_through.push("BeginSponsoringFutureReserves");
    }
    assert!(got_through.is_empty(), "signed: {got_through:?}");
}

/// What BumpSequence does, a precondition does too: with a lowest number (CAP-21) a transaction may skip
/// numbers, and after it the account has the transaction's. After the last number it can do nothing.
#[test]
fn sequence_numbers_of_stellar__should_not_be_skipped_without_bump_sequence() {
    let payload = stellar_that_skips();
    for policy in [Policy::production(), policy("account_changes = []")] {
        let judged = judged(&policy, Network::Stellar, &payload);
        assert!(judged.is_err(), "{judged:?}");
    }
}

fn stellar_that_skips() -> Payload {
    let envelope = [
        &[0, 0, 0, 2, 0, 0, 0, 0][..],
        &public_key(Curve::Ed25519),
        // Fee, and the last sequence number there is
        &[0, 0, 0, 100],
        &i64::MAX.to_be_bytes(),
        // Preconditions of version 2: no times, no ledgers, from number 0 on, nothing else
        &[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        &[0; 8 + 8 + 4 + 4],
        // No memo; one operation: SetOptions that sets nothing
        &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5],
        &[0; 36],
        &[0; 8],
    ]
    .concat();
    let kind = WireKind::StellarSendCustom(wire::StellarSendCustom {
        from: sender(Network::Stellar),
        tx_base64: base64(&envelope),
    });
    Payload::parse(&kind).unwrap()
}

/// A call of a contract on any chain, and a policy that limits what is named, or lists the contract and
/// Bob.
fn call_on(chain_id: u64, to: &str, input: Vec<u8>) -> Payload {
    let kind = WireKind::EvmSendCustom(wire::EvmSendCustom {
        chain_id,
        from: sender(Network::Evm),
        to: to.into(),
        value: "0".into(),
        input,
        gas_fee: gas(),
        nonce: Some(0),
    });
    Payload::parse(&kind).unwrap()
}

fn strict_on(chain_id: u64, asset: &str, contract: &str) -> [(&'static str, Policy); 2] {
    let limit = format!(
        "custom_calls = [\"evm:{chain_id}\"]\n\
         limits = [{{ asset = \"{asset}\", per_request = \"1\", per_day = \"1\" }}]"
    );
    let list = format!(
        "custom_calls = [\"evm:{chain_id}\"]\nrecipients.evm = [\"{contract}\", \"{BOB}\"]"
    );
    [("limit", policy(&limit)), ("list", policy(&list))]
}

/// Precompiles of Moonbeam act with the authority of who calls them, without a value or an allowance:
/// Batch (0x0808) makes any calls in the name of the wallet, which pays their values.
#[test]
fn batches_of_moonbeam__should_count_as_the_calls_that_they_make() {
    const BATCH: &str = "0x0000000000000000000000000000000000000808";
    // batchAll(address[],uint256[],bytes[],uint64[]): 1,000 GLMR to Eve, and a token's transfer to her.
    let pay = data(
        0x96e2_92b8,
        &[
            [word(128), word(192), word(256), word(352)].concat(),
            [word(1), account(EVE)].concat(),
            [
                word(1),
                U256::from(10)
                    .pow(U256::from(21))
                    .to_be_bytes::<32>()
                    .to_vec(),
            ]
            .concat(),
            [word(1), word(32), word(0)].concat(),
            word(0),
        ],
    );
    let transfer = data(0xa905_9cbb, &[account(EVE), most()]);
    let token = data(
        0x96e2_92b8,
        &[
            [word(128), word(192), word(224), word(416)].concat(),
            [word(1), account(TOKEN)].concat(),
            word(0),
            [word(1), word(32), bytes(&transfer)].concat(),
            word(0),
        ],
    );
    let mut got_through = Vec::new();
    for (asset, input) in [
        ("evm:1284".to_owned(), pay),
        (format!("evm:1284/{TOKEN}"), token),
    ] {
        let payload = call_on(1_284, BATCH, input);
        for (name, policy) in strict_on(1_284, &asset, BATCH) {
            if judged(&policy, Network::Evm, &payload).is_ok() {
                got_through.push((asset.clone(), name));
            }
        }
    }
    assert!(got_through.is_empty(), "signed: {got_through:?}");
}

/// Proxy (0x080b) of Moonbeam: who is added acts for the wallet from then on, and needs no other
/// signature ("these are refused, whatever else is allowed": docs/policy-floor.md).
#[test]
fn proxies_of_moonbeam__should_be_refused_as_changes_of_accounts() {
    let payload = adds_proxy();
    let limit = policy(
        "custom_calls = [\"evm:1284\"]\n\
         limits = [{ asset = \"evm:1284\", per_request = \"1\", per_day = \"1\" }]",
    );
    let judged = judged(&limit, Network::Evm, &payload);
    assert!(judged.is_err(), "signed: {judged:?}");
}

fn adds_proxy() -> Payload {
    // addProxy(address,uint8,uint32): any call, at once.
    let add = data(0x74a3_4dd3, &[account(EVE), word(0), word(0)]);
    call_on(1_284, "0x000000000000000000000000000000000000080b", add)
}

/// CELO, whose coin is counted through its contract, and its stable tokens have transferWithComment;
/// bridges of the OP stack take their tokens from who calls them without an allowance, as tokens of
/// LayerZero (OFT) do themselves.
#[test]
fn more_kin_of_transfer__should_count_as_spends() {
    const CELO: &str = "0x471EcE3750Da237f93B8E339c536989b8978a438";
    const BRIDGE: &str = "0x4200000000000000000000000000000000000010";
    let comment = data(0xe1d6_aceb, &[account(EVE), word(9), word(96), bytes(b"x")]);
    let withdraw = data(
        0xa3a7_9548,
        &[
            account(TOKEN),
            account(EVE),
            word(9),
            word(0),
            word(160),
            word(0),
        ],
    );
    let bridge = data(
        0x540a_bf73,
        &[
            [account(TOKEN), account(TOKEN), account(EVE), word(9)].concat(),
            [word(0), word(192), word(0)].concat(),
        ],
    );
    // send((uint32,bytes32,uint256,uint256,bytes,bytes,bytes),(uint256,uint256),address)
    let send = data(
        0xc7c7_f5b3,
        &[
            [word(128), word(0), word(0), account(EVE)].concat(),
            [word(30_101), account(EVE), word(9), word(9)].concat(),
            [word(224), word(256), word(288), word(0), word(0), word(0)].concat(),
        ],
    );
    let token = format!("evm:8453/{TOKEN}");
    let mut got_through = Vec::new();
    for (name, chain_id, asset, contract, input) in [
        ("transferWithComment", 42_220, "evm:42220", CELO, comment),
        ("withdrawTo", 8_453, &*token, BRIDGE, withdraw),
        ("bridgeERC20To", 8_453, &*token, BRIDGE, bridge),
        ("send", 8_453, &*token, TOKEN, send),
    ] {
        let payload = call_on(chain_id, contract, input);
        for (rule, policy) in strict_on(chain_id, asset, contract) {
            if judged(&policy, Network::Evm, &payload).is_ok() {
                got_through.push((name, rule));
            }
        }
    }
    assert!(got_through.is_empty(), "signed: {got_through:?}");
}
