//! What is asked, and balances.

use std::collections::BTreeSet;

use super::*;

fn queries(jetton: Option<JettonQueries>) -> Queries {
    Queries::Ton(TonQueries::Transaction(TransactionQueries {
        from: wallet().wallet_form(),
        value: VALUE,
        valid_until: true,
        recipient: None,
        contracts: BTreeSet::new(),
        jetton,
    }))
}

/// A payment to [`OTHER`], from which it may come back.
fn to_contract() -> Queries {
    Queries::Ton(TonQueries::Transaction(TransactionQueries {
        from: wallet().wallet_form(),
        value: VALUE,
        valid_until: true,
        recipient: Some(OTHER.into()),
        contracts: BTreeSet::new(),
        jetton: None,
    }))
}

fn jetton(amount: u128) -> Option<JettonQueries> {
    Some(JettonQueries {
        master: MASTER.into(),
        amount,
        decimals: true,
    })
}

async fn chain_data(
    state: TonTestState,
    jetton: Option<JettonQueries>,
) -> Result<ChainData, ChainError> {
    let node = TonTestNode::start(state).await;
    let client = connect(&[&node], 1);
    client
        .chain_data(&queries(jetton), BUILT * 1_000 + 999)
        .await
}

/// Why facts are refused for good.
async fn never(state: TonTestState, jetton: Option<JettonQueries>) -> (ExecuteCode, String) {
    match chain_data(state, jetton).await {
        Err(ChainError::Refused(ChainRefusal { reason, code })) => (code, reason),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn ton_facts__should_be_what_the_node_says() {
    let new = TonTestState {
        kind: "uninitialized",
        ..TonTestState::default()
    };
    assert_eq!(
        chain_data(TonTestState::default(), None).await,
        Ok(found(7, true, None))
    );
    assert_eq!(chain_data(new, None).await, Ok(found(0, false, None)));
    let expected = JettonChainData {
        wallet: JETTON_WALLET.into(),
        master: Some(MASTER.into()),
        decimals: Some(9),
    };
    let with = |jetton| Ok(found(7, true, Some(jetton)));
    let all = jetton(1_000_000);
    assert_eq!(
        chain_data(TonTestState::default(), all.clone()).await,
        with(expected.clone())
    );
    // It is not there: the wallet has none.
    let absent = TonTestState {
        holding: ran(-13, json!([])),
        jetton_kind: "uninitialized",
        ..TonTestState::default()
    };
    let none = JettonChainData {
        master: None,
        ..expected.clone()
    };
    assert_eq!(chain_data(absent, all.clone()).await, with(none));
    // Of another jetton: the rules refuse that.
    let foreign = TonTestState {
        holding: holding(1, &wallet().wallet_form(), OTHER),
        ..TonTestState::default()
    };
    let other = JettonChainData {
        master: Some(OTHER.into()),
        ..expected
    };
    assert_eq!(chain_data(foreign, all).await, with(other));
}

#[tokio::test]
async fn ton_facts__should_be_refused_where_nothing_can_be_sent() {
    use ExecuteCode::{InsufficientFunds, InsufficientGasFee, Unspecified};
    let state = TonTestState::default;
    let poor = TonTestState {
        balance: VALUE + 3_575_599,
        ..state()
    };
    let frozen = TonTestState {
        kind: "frozen",
        ..state()
    };
    let closed = TonTestState {
        takes_signatures: false,
        ..state()
    };
    let no_master = TonTestState {
        jetton_wallet: ran(11, json!([])),
        ..state()
    };
    let strange = TonTestState {
        jetton_wallet: ran(0, json!([number(1)])),
        ..state()
    };
    let others = TonTestState {
        holding: holding(9, BOB, MASTER),
        ..state()
    };
    let no_wallet = TonTestState {
        holding: ran(11, json!([])),
        ..state()
    };
    for (state, amount, code, words) in [
        (
            poor,
            1,
            InsufficientFunds,
            "has 4575599 nanoton, and 1000000 are",
        ),
        (frozen, 1, InsufficientGasFee, "frozen"),
        (closed, 1, Unspecified, "signatures"),
        (no_master, 1, Unspecified, "mintAddress: is not the master"),
        (strange, 1, Unspecified, "mintAddress: is not the master"),
        (others, 1, Unspecified, "mintAddress: is not a valid jetton"),
        (
            no_wallet,
            1,
            Unspecified,
            "mintAddress: is not a valid jetton",
        ),
        (
            state(),
            1_000_001,
            InsufficientFunds,
            "mintAddress: the wallet holds 1000000",
        ),
    ] {
        let (found, reason) = never(state, jetton(amount)).await;
        assert_eq!(found, code, "{reason}");
        assert!(reason.contains(words), "{reason}");
    }
}

#[tokio::test]
async fn ton_facts__should_say_whether_a_contract_can_refuse_the_money() {
    let asked = async |recipient_kinds: &[&'static str]| {
        let mut nodes = Vec::new();
        for recipient_kind in recipient_kinds {
            let state = TonTestState {
                recipient_kind,
                ..TonTestState::default()
            };
            nodes.push(TonTestNode::start(state).await);
        }
        let nodes: Vec<_> = nodes.iter().collect();
        let client = connect(&nodes, nodes.len());
        client.chain_data(&to_contract(), BUILT * 1_000 + 999).await
    };
    for (kind, expected) in [("active", true), ("uninitialized", false)] {
        let Ok(ChainData::Ton(TonChainData::Transaction(found))) = asked(&[kind]).await else {
            panic!("{kind}")
        };
        assert_eq!(found.recipient_deployed, Some(expected));
    }
    let frozen = asked(&["frozen"]).await;
    assert!(
        matches!(&frozen, Err(ChainError::Refused(refusal)) if refusal.reason.contains("frozen")),
        "{frozen:?}"
    );
    // One node alone does not decide it.
    let two = asked(&["active", "uninitialized"]).await;
    assert!(matches!(two, Err(ChainError::Unknown(_))), "{two:?}");
}

#[tokio::test]
async fn what_an_application_made__should_not_be_sent_to_where_no_contract_is() {
    let asked = async |recipient_kind| {
        let state = TonTestState {
            recipient_kind,
            ..TonTestState::default()
        };
        let node = TonTestNode::start(state).await;
        let Queries::Ton(TonQueries::Transaction(queries)) = queries(None) else {
            unreachable!()
        };
        let queries = Queries::Ton(TonQueries::Transaction(TransactionQueries {
            contracts: BTreeSet::from([OTHER.to_owned()]),
            ..queries
        }));
        connect(&[&node], 1)
            .chain_data(&queries, BUILT * 1_000)
            .await
    };
    assert!(asked("active").await.is_ok());
    for (kind, sentence) in [("uninitialized", "no contract is"), ("frozen", "frozen")] {
        let refused = asked(kind).await;
        assert!(
            matches!(&refused, Err(ChainError::Refused(why)) if why.reason.contains(sentence)),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn ton_facts__should_not_come_of_one_node_where_two_have_to_agree() {
    let other = |change: fn(&mut TonTestState)| {
        let mut state = TonTestState::default();
        change(&mut state);
        state
    };
    for (other, agree) in [
        (other(|state| state.balance += 1), true),
        (other(|state| state.seqno = 8), false),
        (other(|state| state.balance = 1), false),
        (
            other(|state| state.jetton_wallet = ran(0, json!([cell(&slice(OTHER))]))),
            false,
        ),
        (
            other(|state| state.holding = holding(1_000_000, &wallet().wallet_form(), OTHER)),
            false,
        ),
    ] {
        let nodes = [
            TonTestNode::start(TonTestState::default()).await,
            TonTestNode::start(other).await,
        ];
        let client = connect(&[&nodes[0], &nodes[1]], 2);
        let chain_data = client.chain_data(&queries(jetton(1)), BUILT * 1_000).await;
        match chain_data {
            Ok(_) => assert!(agree),
            Err(ChainError::Unknown(reason)) => assert!(!agree, "{reason}"),
            Err(refused) => panic!("{refused:?}"),
        }
    }
}

#[tokio::test]
async fn ton_facts__should_not_come_of_the_data_of_another_wallet() {
    // Whose address is not that of the key in it.
    let queries = Queries::Ton(TonQueries::Transaction(TransactionQueries {
        from: WalletVersion::V4r2.address(&key()).unwrap().wallet_form(),
        value: 0,
        valid_until: false,
        recipient: None,
        contracts: BTreeSet::new(),
        jetton: None,
    }));
    let url = http_double::start(|_| {
        let body = json!({"ok": true, "result": {"balance": "1", "data": data(true, 9),
            "state": "active", "last_transaction_id": {"lt": "1", "hash": "a"}, "sync_utime": 1}});
        Some(HttpResponse::json(200, &body))
    })
    .await;
    let endpoints = ChainEndpoints::new(vec![url]);
    let client = connect_to(ChainKey::of(Network::Ton, None), endpoints);
    let chain_data = client.chain_data(&queries, 0).await;
    assert!(
        matches!(&chain_data, Err(ChainError::Unknown(reason)) if reason.contains("a wallet")),
        "{chain_data:?}"
    );
}

#[tokio::test]
async fn ton_balance__should_be_that_of_the_account_or_its_jetton_wallet() {
    let owner = wallet().wallet_form();
    let balance = async |state: TonTestState, token: Option<&str>| {
        let node = TonTestNode::start(state).await;
        connect(&[&node], 1).balance(&owner, token).await
    };
    let state = TonTestState::default;
    assert_eq!(balance(state(), None).await.as_deref(), Ok("5000000000"));
    let jetton = balance(state(), Some(MASTER)).await;
    assert_eq!(jetton.as_deref(), Ok("1000000"));
    let absent = TonTestState {
        holding: ran(-13, json!([])),
        jetton_kind: "uninitialized",
        ..state()
    };
    assert_eq!(balance(absent, Some(MASTER)).await.as_deref(), Ok("0"));
    for (jetton_wallet, holding, words) in [
        (
            ran(11, json!([])),
            json!(null),
            "is not the master contract",
        ),
        (
            state().jetton_wallet,
            holding(1, BOB, MASTER),
            "is not a valid jetton",
        ),
        (
            state().jetton_wallet,
            holding(1, &owner, OTHER),
            "is not a valid jetton",
        ),
    ] {
        let state = TonTestState {
            jetton_wallet,
            holding,
            ..state()
        };
        match balance(state, Some(MASTER)).await {
            Err(ChainError::Refused(refusal)) => {
                assert!(refusal.reason.starts_with(words), "{refusal:?}")
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn ton_next_number__should_be_that_of_a_state_which_is_late_enough() {
    let address = wallet().wallet_form();
    let node = TonTestNode::start(TonTestState::default()).await;
    let client = connect(&[&node], 1);
    let asked = async |since_ms| {
        let since = ChainMoment::at_ms(since_ms);
        client.next_number(&address, since).await
    };
    assert_eq!(asked(BUILT * 1_000).await, Ok(Some(SEQNO.into())));
    assert_eq!(asked(BUILT * 1_000 + 1).await, Ok(None));
    // It may have used numbers before, which are not seen.
    node.state.lock().unwrap().kind = "frozen";
    assert!(matches!(asked(0).await, Err(ChainError::Unknown(_))));

    let [early, late] = [BUILT - 1, BUILT].map(|time| TonTestState {
        time,
        ..TonTestState::default()
    });
    let nodes = [
        TonTestNode::start(early).await,
        TonTestNode::start(late).await,
    ];
    let client = connect(&[&nodes[0], &nodes[1]], 2);
    let next = client
        .next_number(&address, ChainMoment::at_ms(BUILT * 1_000))
        .await;
    assert!(matches!(next, Err(ChainError::Unknown(_))), "{next:?}");
}
