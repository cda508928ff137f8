//! Calls of batch contracts that the policy names.

use covault_core::networks::evm::{
    Address,
    batch::{BatchCall, approval},
    parse_address,
};

use super::*;

const CONTRACT: &str = "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359";
const DAVE: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";

fn pays(token: Option<&str>, rows: &[(&str, u64)]) -> Vec<u8> {
    let address = |text: &str| -> Address { parse_address(text).unwrap() };
    let rows = rows.iter();
    BatchCall {
        token: token.map(address),
        rows: rows
            .map(|(to, amount)| (address(to), U256::from(*amount)))
            .collect(),
    }
    .encode()
}

fn allowance(spender: &str, amount: u64) -> Vec<u8> {
    approval(parse_address(spender).unwrap(), U256::from(amount))
}

/// As [`super::call`], without a value.
fn call(to: &str, input: Vec<u8>) -> (SigningOrder, Payload) {
    let kind = WireKind::EvmSendCustom(wire::EvmSendCustom {
        chain_id: 1,
        from: sender(Network::Evm),
        to: to.into(),
        value: "0".into(),
        input,
        gas_fee: gas(),
        nonce: Some(0),
    });
    order(Network::Evm, &kind, ChainData::Nothing)
}

#[test]
fn batch_contract__should_have_every_row_held_to_limits_and_recipients() {
    let rules = format!(
        "recipients.\"evm:1\" = [\"{BOB}\", \"{DAVE}\"]\n\
         limits = [{{ asset = \"evm:1/{TOKEN}\", per_request = \"10\", per_day = \"50\" }}]"
    );
    let known = policy(&format!(
        "batch_contracts = [\"evm:1:{CONTRACT}\"]\n{rules}"
    ));
    let good = call(CONTRACT, pays(Some(TOKEN), &[(BOB, 4), (DAVE, 6)]));
    let counted = of_node(&allowed(&known, good));
    let tokens: Vec<_> = counted
        .iter()
        .filter(|one| one.0.ends_with(TOKEN))
        .collect();
    assert_eq!(tokens.len(), 1);
    assert_eq!(tokens[0].1, U256::from(10));
    // The allowance pays nobody: what it is for is counted when it is paid.
    let counted = of_node(&allowed(&known, call(TOKEN, allowance(CONTRACT, 10))));
    assert!(
        counted.iter().all(|one| !one.0.ends_with(TOKEN)),
        "{counted:?}"
    );
    refused(
        &known,
        call(CONTRACT, pays(Some(TOKEN), &[(BOB, 4), (DAVE, 7)])),
        "amount: ",
    );
    refused(
        &known,
        call(CONTRACT, pays(Some(TOKEN), &[(BOB, 4), (EVE, 1)])),
        "recipient: is not in the list",
    );
    // An allowance for another one, and anything else that the contract might do, is a custom call as ever.
    let mut dirty = pays(Some(TOKEN), &[(BOB, 4)]);
    dirty.push(0);
    for other in [
        call(TOKEN, allowance(BOB, 1)),
        call(CONTRACT, vec![1, 2, 3, 4]),
        call(CONTRACT, dirty),
    ] {
        refused(&known, other, "kind: this signer's policy limits evm:1");
    }
}

#[test]
fn batch_contract__should_be_a_custom_call_unless_it_is_named_for_that_chain() {
    let batch = || call(CONTRACT, pays(Some(TOKEN), &[(BOB, 4)]));
    for named in [
        "",
        "batch_contracts = []\n",
        "batch_contracts = [\"evm:10:0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359\"]\n",
        "batch_contracts = [\"evm:1:0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be\"]\n",
    ] {
        let never = policy(&format!("{named}custom_calls = []"));
        refused(
            &never,
            batch(),
            "kind: this signer's policy does not allow custom calls",
        );
    }
    let named = format!("batch_contracts = [\"evm:1:{CONTRACT}\"]\ncustom_calls = []");
    allowed(&policy(&named), batch());
    assert!(
        policy(&named)
            .explain()
            .iter()
            .any(|line| line.contains(&format!("row by row: evm:1:{CONTRACT}")))
    );
    for (wrong, sentence) in [
        (
            "evm:0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
            "batch_contracts[0]: must be",
        ),
        (
            "solana:0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
            "batch_contracts[0]: must be",
        ),
        ("evm:1", "batch_contracts[0]: must be"),
        ("evm:1:0x12", "batch_contracts[0]: "),
    ] {
        let text = format!("version = 2\nbatch_contracts = [\"{wrong}\"]");
        let fault = Policy::parse(&text).unwrap_err();
        assert!(fault.message().starts_with(sentence), "{wrong}: {fault}");
    }
}

#[test]
fn allowance_for_a_batch_contract__should_be_of_a_listed_token() {
    let listed = policy(&format!(
        "batch_contracts = [\"evm:1:{CONTRACT}\"]\ncustom_calls = []\nonly_listed_assets = true\n\
         limits = [{{ asset = \"evm:1\", per_request = \"1000000000000000000\" }}, \
         {{ asset = \"evm:1/{TOKEN}\", per_request = \"10\" }}]"
    ));
    allowed(&listed, call(TOKEN, allowance(CONTRACT, 10)));
    // Any contract takes such a call for what it likes.
    refused(&listed, call(DAVE, allowance(CONTRACT, 10)), "amount: ");
}
