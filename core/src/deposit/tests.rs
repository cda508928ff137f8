#![allow(non_snake_case)]

use proptest::prelude::*;

use super::*;

const TRON: &str = "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t";
const EVM: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";

fn deposit(network: &str, reference: &str) -> Result<DepositCall, Fault> {
    DepositCall::parse(&wire::CreateDepositWalletRequest {
        network: network.into(),
        r#ref: reference.into(),
        ..Default::default()
    })
}

fn watch(network: &str, address: &str) -> Result<WatchCall, Fault> {
    WatchCall::parse(&wire::AddWatchAddressRequest {
        network: network.into(),
        address: address.into(),
    })
}

fn says<T: std::fmt::Debug>(result: Result<T, Fault>, reason: &str) {
    let fault = result.unwrap_err();
    assert_eq!((fault.class(), fault.message()), (&Class::Invalid, reason));
}

#[test]
fn deposit_call__should_give_the_first_reason_of_the_table() {
    says(deposit("", ""), "network required");
    for network in ["evm", "Tron", "BITCOIN", " EVM", "NETWORK_TYPE_EVM"] {
        says(deposit(network, ""), "network unsupported");
    }
    says(deposit("EVM", ""), "ref required");
    let longest = "r".repeat(128);
    for reference in [&format!("{longest}r"), "a b", "a/b", "é", "a\n", " "] {
        says(deposit("TRON", reference), "ref invalid");
    }
    for reference in [longest.as_str(), "0", "Az09-_.:@"] {
        for (name, network) in [("EVM", DepositNetwork::Evm), ("TRON", DepositNetwork::Tron)] {
            let expected = DepositCall {
                network,
                reference: reference.to_owned(),
                require_proof: false,
            };
            assert_eq!(deposit(name, reference).unwrap(), expected);
        }
    }
}

#[test]
fn watch_call__should_give_the_first_reason_of_the_table() {
    for network in ["", "EVM", "tron", "BITCOIN"] {
        says(watch(network, ""), "network unsupported");
    }
    says(watch("TRON", ""), "address required");
    let wrong_checksum = TRON.replace("6t", "6u");
    for address in [
        EVM,
        "x",
        &wrong_checksum,
        &format!(" {TRON}"),
        &TRON.to_lowercase(),
    ] {
        says(watch("TRON", address), "address invalid");
    }
    assert_eq!(watch("TRON", TRON).unwrap().address, TRON);
}

proptest! {
    #[test]
    fn calls__should_take_any_text(network in ".{0,9}", text in ".{0,200}") {
        for network in [network.as_str(), "TRON"] {
            let fits = (1..=128).contains(&text.len())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:@".contains(c));
            let known = DepositNetwork::parse(network).is_some();
            prop_assert_eq!(deposit(network, &text).is_ok(), known && fits);
            prop_assert!(watch(network, &text).is_err());
        }
    }
}

#[test]
fn target__should_be_an_address_of_the_network_that_somebody_can_have_the_key_of() {
    let evm = DepositNetwork::Evm;
    assert_eq!(evm.parse_target(&EVM.to_lowercase()).unwrap(), EVM);
    assert_eq!(DepositNetwork::Tron.parse_target(TRON).unwrap(), TRON);
    assert!(evm.parse_target(TRON).is_err());
    assert!(DepositNetwork::Tron.parse_target(EVM).is_err());
    for (network, zero) in [
        (evm, "0x0000000000000000000000000000000000000000"),
        (DepositNetwork::Tron, "T9yD14Nj9j7xAB4dbGeiX9h8unkKHxuWwb"),
    ] {
        let fault = network.parse_target(zero).unwrap_err();
        assert!(fault.message().contains("zero address"), "{fault}");
    }
}

#[test]
fn route__should_say_what_is_missing() {
    let vault = VaultId::from_bytes([1; 16]);
    let route = SweepRoute::default();
    says(route.deposit_vault(), "sweep config not configured");
    says(route.check_webhook(), "webhook not configured");
    let no_target = SweepRoute {
        vault: Some(vault),
        ..SweepRoute::default()
    };
    says(no_target.deposit_vault(), "sweep config not configured");
    let route = SweepRoute {
        vault: Some(vault),
        target: Some(EVM.into()),
        webhook: Some(Webhook("https://example.com/secret".into())),
        ..SweepRoute::default()
    };
    assert_eq!(route.deposit_vault().unwrap(), vault);
    assert!(route.check_webhook().is_ok());
    assert!(!format!("{route:?}").contains("secret"));
}

#[test]
fn top_up__should_be_no_fee_in_the_books() {
    use transfer::{Account, AddressOwner, FollowedChain, OwnedTransfer, Transfer, TransferIndex};
    let of = |index| OwnedTransfer {
        chain: FollowedChain::Evm(1),
        transfer: Transfer {
            tx: [1; 32],
            index,
            from: Account([2; 20]),
            to: Account([3; 20]),
            asset: None,
            amount: [4; 32],
        },
        is_send: false,
        owner: AddressOwner {
            token: crate::ids::TokenId::from_bytes([5; 16]),
            reference: "order-1".into(),
            wallet: None,
            since_ms: 0,
        },
    };
    assert!(of(TransferIndex::Fee).is_fee());
    assert!(!of(TransferIndex::TopUp).is_fee());
    assert!(!of(TransferIndex::Value).is_fee());
}
