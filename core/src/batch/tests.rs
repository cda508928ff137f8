#![allow(non_snake_case)]

use super::*;
use crate::{
    amount::U256,
    fault::Class,
    networks::{KnownChains, Network, Payload, outflow::ContentKind},
};

const EVM: [&str; 2] = [
    "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
    "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
];
const CONTRACT: &str = "0xdAC17F958D2ee523a2206206994597C13D831ec7";
const BITCOIN: [&str; 2] = [
    "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4",
    "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2",
];

fn sui(digit: &str) -> String {
    format!("0x{}", digit.repeat(64))
}

fn recipient(address: &str, amount: &str) -> wire::BatchPaymentRecipient {
    wire::BatchPaymentRecipient {
        address: address.into(),
        amount: amount.into(),
        notes: Some("rent".into()),
    }
}

fn evm_native(recipients: Vec<wire::BatchPaymentRecipient>) -> BatchWireKind {
    BatchWireKind::EvmBatchSendNative(wire::EvmBatchSendNative {
        chain_id: 1,
        from: EVM[0].into(),
        recipients,
    })
}

/// One good batch of each kind.
fn kinds() -> Vec<(BatchWireKind, &'static str, Network)> {
    let evm = |amount: &str| vec![recipient(&EVM[1].to_lowercase(), amount)];
    let coin = |digit: &str| vec![recipient(&sui(digit), "7")];
    vec![
        (evm_native(evm("7")), "evmBatchSendNative", Network::Evm),
        (
            BatchWireKind::EvmBatchSendErc20(wire::EvmBatchSendErc20 {
                chain_id: 10,
                from: EVM[0].to_lowercase(),
                token_contract_address: EVM[0].to_lowercase(),
                recipients: evm("8"),
            }),
            "evmBatchSendErc20",
            Network::Evm,
        ),
        (
            BatchWireKind::BtcBatchSendNative(wire::BtcBatchSendNative {
                from: BITCOIN[0].to_uppercase(),
                recipients: vec![recipient(BITCOIN[1], "1000")],
            }),
            "btcBatchSendNative",
            Network::Bitcoin,
        ),
        (
            BatchWireKind::SuiBatchSendNative(wire::SuiBatchSendNative {
                from: sui("A"),
                recipients: coin("b"),
            }),
            "suiBatchSendNative",
            Network::Sui,
        ),
        (
            BatchWireKind::SuiBatchSendCoin(wire::SuiBatchSendCoin {
                from: sui("a"),
                coin_tag: "0xabc::tok::TOK".into(),
                recipients: coin("b"),
            }),
            "suiBatchSendCoin",
            Network::Sui,
        ),
    ]
}

fn refused(kind: &BatchWireKind) -> String {
    let fault = BatchPayload::parse(kind).unwrap_err();
    assert_eq!(fault.class(), &Class::Invalid);
    fault.message().to_owned()
}

#[test]
fn parse__should_take_every_kind_and_keep_its_notes() {
    for (kind, name, network) in kinds() {
        let payment = BatchPayload::parse(&kind).unwrap();
        assert_eq!((payment.kind(), payment.network()), (name, network));
        assert_eq!(payment.recipients()[0].notes.as_deref(), Some("rent"));
        assert_eq!(BatchPayload::decode(&payment.encode()).unwrap(), payment);
        assert!(payment.check_wallet(network).is_ok());
        let fault = payment.check_wallet(Network::Ton).unwrap_err();
        let expected = format!("{name}.from: is a TON wallet");
        assert!(fault.message().starts_with(&expected), "{fault}");
    }
}

#[test]
fn parse__should_show_addresses_in_canonical_form() {
    let shown: Vec<_> = kinds()
        .iter()
        .map(|(kind, _, _)| BatchPayload::parse(kind).unwrap())
        .map(|payment| {
            (
                payment.from().to_owned(),
                payment.recipients()[0].address.clone(),
            )
        })
        .collect();
    let expected = [
        (EVM[0].to_owned(), EVM[1].to_owned()),
        (EVM[0].to_owned(), EVM[1].to_owned()),
        (BITCOIN[0].to_owned(), BITCOIN[1].to_owned()),
        (sui("a"), sui("b")),
        (sui("a"), sui("b")),
    ];
    assert_eq!(shown, expected);
    let erc20 = BatchPayload::parse(&kinds()[1].0).unwrap().echo();
    let BatchWireEcho::EvmBatchSendErc20(erc20) = erc20 else {
        panic!("{erc20:?}")
    };
    assert_eq!(erc20.token_contract_address, EVM[0]);
    let coin = BatchPayload::parse(&kinds()[4].0).unwrap().echo();
    let BatchWireEcho::SuiBatchSendCoin(coin) = coin else {
        panic!("{coin:?}")
    };
    assert_eq!(
        coin.coin_tag,
        format!("0x{:0>64}::tok::TOK", "abc"),
        "as suiSendCoin shows it"
    );
}

#[test]
fn parse__should_name_the_recipient_that_is_wrong() {
    let good = recipient(EVM[1], "1");
    let with = |bad: wire::BatchPaymentRecipient| {
        refused(&evm_native(vec![good.clone(), good.clone(), bad]))
    };
    let typo = EVM[1].replace("fB69", "Fb69");
    for (bad, expected) in [
        (
            recipient(&typo, "1"),
            "address: has an invalid checksum (EIP-55): check for a typo",
        ),
        (recipient("", "1"), "address: is required"),
        (recipient("0x12", "1"), "address: must be 0x"),
        (recipient(EVM[1], "0"), "amount: must be more than 0"),
        (recipient(EVM[1], ""), "amount: is required"),
        (recipient(EVM[1], "1.5"), "amount: must be a whole number"),
        (recipient(EVM[1], "-1"), "amount: must be a whole number"),
        (
            recipient(EVM[1], &"9".repeat(80)),
            "amount: is too large: at most 256 bits",
        ),
    ] {
        let said = with(bad);
        let expected = format!("evmBatchSendNative.recipients[2].{expected}");
        assert!(said.starts_with(&expected), "{said}");
    }
    let mut long = good.clone();
    long.notes = Some("ü".repeat(500));
    assert!(BatchPayload::parse(&evm_native(vec![long.clone()])).is_ok());
    long.notes = Some("ü".repeat(501));
    assert_eq!(
        with(long),
        "evmBatchSendNative.recipients[2].notes: has more than 500 characters"
    );
}

#[test]
fn tokens__should_not_be_paid_to_where_nobody_gets_them_back() {
    for (to, expected) in [
        (EVM[0], "must not be the token's own contract"),
        (&format!("0x{:040}", 0), "must not be the zero address"),
    ] {
        let to = vec![recipient(EVM[1], "1"), recipient(to, "1")];
        assert_eq!(
            refused(&kind_of(&kinds()[1].0, to)),
            format!("evmBatchSendErc20.recipients[1].address: {expected}")
        );
    }
}

#[test]
fn parse__should_check_every_kind_by_its_network() {
    for (kind, name, network) in kinds() {
        let good = BatchPayload::parse(&kind).unwrap().recipients()[0].clone();
        for count in [0, 255] {
            let said = refused(&kind_of(&kind, vec![good.clone(); count]));
            assert_eq!(said, format!("{name}.recipients: must be 1 to 254"));
        }
        assert!(BatchPayload::parse(&kind_of(&kind, vec![good; 254])).is_ok());
        // An address of another network.
        let other = if network == Network::Bitcoin {
            EVM[0]
        } else {
            BITCOIN[0]
        };
        let said = refused(&kind_of(&kind, vec![recipient(other, "1000")]));
        let expected = format!("{name}.recipients[0].address: ");
        assert!(said.starts_with(&expected), "{said}");
    }
}

fn kind_of(kind: &BatchWireKind, to: Vec<wire::BatchPaymentRecipient>) -> BatchWireKind {
    let mut kind = kind.clone();
    let recipients = match &mut kind {
        BatchWireKind::EvmBatchSendNative(wire) => &mut wire.recipients,
        BatchWireKind::EvmBatchSendErc20(wire) => &mut wire.recipients,
        BatchWireKind::BtcBatchSendNative(wire) => &mut wire.recipients,
        BatchWireKind::SuiBatchSendNative(wire) => &mut wire.recipients,
        BatchWireKind::SuiBatchSendCoin(wire) => &mut wire.recipients,
    };
    *recipients = to;
    kind
}

#[test]
fn parse__should_refuse_more_than_there_can_be_in_all() {
    let most = crate::amount::U256::MAX.to_string();
    let two = |kind: usize, amount: &str| {
        let (kind, _, _) = &kinds()[kind];
        let address = BatchPayload::parse(kind).unwrap().recipients()[0]
            .address
            .clone();
        kind_of(kind, vec![recipient(&address, amount); 2])
    };
    assert_eq!(
        refused(&two(0, &most)),
        "evmBatchSendNative.recipients: total exceeds 256 bits"
    );
    assert_eq!(
        refused(&two(2, "2000000000000000")),
        "btcBatchSendNative.recipients: total exceeds the bitcoin supply"
    );
    assert_eq!(
        refused(&two(4, &u64::MAX.to_string())),
        "suiBatchSendCoin.recipients: total exceeds 64 bits"
    );
}

#[test]
fn screen__should_know_no_custom_chains() {
    let on = |chain_id| {
        let kind = BatchWireKind::EvmBatchSendNative(wire::EvmBatchSendNative {
            chain_id,
            from: EVM[0].into(),
            recipients: vec![recipient(EVM[1], "1")],
        });
        BatchPayload::parse(&kind)
    };
    let known = KnownChains {
        configured: [31337].into(),
    };
    for chain_id in [1, 31337] {
        assert!(on(chain_id).unwrap().screen(&known).is_ok());
    }
    let fault = on(424_242).unwrap().screen(&known).unwrap_err();
    assert_eq!(fault.message(), "Invalid chain id");
    for chain_id in [0, u64::MAX] {
        let said = on(chain_id).unwrap_err();
        let expected = "evmBatchSendNative.chainId: ";
        assert!(said.message().starts_with(expected), "{said}");
    }
}

#[test]
fn check_labels__should_count_characters_and_not_bytes() {
    assert!(check_labels(&"ü".repeat(85), &"鍵".repeat(1_000)).is_ok());
    let name = check_labels(&"ü".repeat(86), "").unwrap_err();
    assert_eq!(name.message(), "name: has more than 85 characters");
    let notes = check_labels("", &"a".repeat(1_001)).unwrap_err();
    assert_eq!(notes.message(), "notes: has more than 1000 characters");
}

fn request(stage: BatchStage, id: u8) -> BatchRequest {
    BatchRequest {
        stage,
        request: crate::ids::RequestId::from_bytes([id; 16]),
    }
}

fn progress() -> BatchProgress {
    BatchProgress {
        client_signer: None,
        requests: vec![
            request(BatchStage::Allowance, 1),
            request(BatchStage::Send, 2),
        ],
    }
}

fn states() -> [BatchState; 5] {
    let failed = |resumable| BatchState::Failed {
        reason: "nobody wanted it".to_owned(),
        progress: progress(),
        resumable,
    };
    [
        BatchState::Pending,
        BatchState::Approved(progress()),
        BatchState::Succeeded(progress()),
        failed(false),
        failed(true),
    ]
}

#[test]
fn step__should_have_exactly_the_transitions_of_the_matrix() {
    let events = || {
        let reason = || "no".to_owned();
        let request = request(BatchStage::Send, 3);
        [
            BatchEvent::Approved {
                client_signer: None,
                request,
            },
            BatchEvent::StepMade(request),
            BatchEvent::PaymentSent,
            BatchEvent::GaveUp {
                reason: reason(),
                resumable: true,
            },
            BatchEvent::Resumed(request),
            BatchEvent::Rejected { reason: reason() },
            BatchEvent::Restored { reason: reason() },
        ]
    };
    let mut matrix = String::new();
    for state in states() {
        let cells = events().map(|event| match state.clone().step(event, 1) {
            Ok(step) => {
                assert_eq!(step.audit.state, step.next.name());
                step.next.name()
            }
            Err(_) => ".",
        });
        matrix.push_str(&format!("{:<9} {}\n", state.name(), cells.join(" ")));
    }
    // Approved, StepMade, PaymentSent, GaveUp, Resumed, Rejected, Restored.
    assert_eq!(
        matrix,
        "Pending   Approved . . . . Failed Failed\n\
         Approved  . Approved Succeeded Failed . Failed Failed\n\
         Succeeded . . . . . . .\n\
         Failed    . . Succeeded . . . .\n\
         Failed    . . Succeeded . Approved Failed Failed\n"
    );
}

#[test]
fn step__should_make_no_request_twice_and_not_without_end() {
    let again = BatchEvent::StepMade(request(BatchStage::Send, 2));
    assert!(BatchState::Approved(progress()).step(again, 1).is_err());
    let batch = BatchId::from_bytes([9; 16]);
    let mut progress = BatchProgress::default();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..MAX_REQUESTS {
        let next = progress.next_request(batch, BatchStage::Send);
        assert_eq!(next, progress.next_request(batch, BatchStage::Send));
        assert!(seen.insert(next.request));
        let other = progress.next_request(BatchId::from_bytes([8; 16]), BatchStage::Send);
        assert_ne!(next.request, other.request);
        let step = BatchState::Approved(progress).step(BatchEvent::StepMade(next), 1);
        progress = step.unwrap().next.progress().unwrap().clone();
    }
    let next = progress.next_request(batch, BatchStage::Send);
    let full = BatchState::Approved(progress);
    let refused = full.clone().step(BatchEvent::StepMade(next), 1);
    assert!(refused.is_err());
    let gave_up = BatchEvent::GaveUp {
        reason: "x".to_owned(),
        resumable: true,
    };
    let ended = full.step(gave_up, 1).unwrap().next;
    assert!(matches!(ended, BatchState::Failed { resumable, .. } if !resumable));
}

#[test]
fn payload__should_pay_every_recipient_in_one_request() {
    for (kind, name, network) in kinds() {
        let payment = BatchPayload::parse(&kind).unwrap();
        let contract = Some(CONTRACT);
        let payload = payment.payload(BatchStage::Send, contract).unwrap();
        assert_eq!(payload.from(), payment.from(), "{name}");
        payload.check_wallet(network).unwrap();
        assert_eq!(Payload::decode(&payload.encode()), Ok(payload.clone()));
        let known = [(1, CONTRACT), (10, CONTRACT)].map(|(chain, contract)| {
            (
                chain,
                crate::networks::evm::parse_address(contract).unwrap(),
            )
        });
        let outflow = match &payload {
            Payload::Evm(payload) => payload.batch_outflow(&known.into()).unwrap(),
            _ => payload.outflow(network),
        };
        assert_eq!(outflow.nature, ContentKind::Transfer, "{name}");
        let paid = outflow.spends.iter();
        let paid: Vec<_> = paid
            .map(|spend| (spend.recipient.clone().unwrap(), spend.amount.to_string()))
            .collect();
        let expected = payment.recipients().iter();
        let expected: Vec<_> = expected
            .map(|recipient| (recipient.address.clone(), recipient.amount.clone()))
            .collect();
        assert_eq!(paid, expected, "{name}");
        // What a contract without an owner gets is lost.
        if payment.needs_contract() {
            let own = payment.payload(BatchStage::Send, Some(&payment.recipients()[0].address));
            assert_eq!(*own.unwrap_err().class(), Class::WrongState, "{name}");
        }
        // Only a token needs an allowance, and only EVM chains a contract.
        let allowance = payment.payload(BatchStage::Allowance, contract);
        assert_eq!(allowance.is_ok(), payment.allowance_token().is_some());
        if payment.needs_contract() {
            let fault = payment.payload(BatchStage::Send, None).unwrap_err();
            assert_eq!(*fault.class(), Class::WrongState);
            assert!(fault.message().contains(".batch_contract"), "{fault}");
        }
    }
}

#[test]
fn first_stage__should_ask_for_exactly_the_total() {
    let kinds = kinds();
    let native = BatchPayload::parse(&kinds[0].0).unwrap();
    assert_eq!(native.first_stage(U256::ZERO), BatchStage::Send);
    let token = BatchPayload::parse(&kinds[1].0).unwrap();
    assert_eq!(token.total(), U256::from(8));
    for (allowance, stage) in [
        (0, BatchStage::Allowance),
        (7, BatchStage::ResetAllowance),
        (8, BatchStage::Send),
        (9, BatchStage::ResetAllowance),
    ] {
        assert_eq!(token.first_stage(U256::from(allowance)), stage);
    }
}

#[test]
fn to_wire__should_show_states_and_the_kind() {
    let payment = BatchPayload::parse(&kinds()[0].0).unwrap();
    let batch = |state| BatchPayment {
        id: BatchId::from_bytes([1; 16]),
        vault: VaultId::from_bytes([2; 16]),
        wallet: WalletId::from_bytes([3; 16]),
        name: "salaries".into(),
        notes: "May".into(),
        payment: payment.encode(),
        token: TokenId::from_bytes([4; 16]),
        created_at_ms: 5,
        state,
    };
    let statuses = states().map(|state| {
        let shown = batch(state).to_wire();
        assert_eq!(shown.r#type, Some(payment.echo()));
        (shown.status(), shown.failed_reason)
    });
    assert_eq!(
        statuses,
        [
            (Status::Pending, String::new()),
            (Status::Pending, String::new()),
            (Status::Succeeded, String::new()),
            (Status::Failed, "nobody wanted it".to_owned()),
            (Status::Failed, "nobody wanted it".to_owned()),
        ]
    );
}
