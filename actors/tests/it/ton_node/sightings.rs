//! Where a transaction is that was sent.

use super::*;
use crate::one_witness::Witnesses;

fn tracked() -> TrackedTransaction {
    TrackedTransaction {
        signed: signed(),
        from: wallet().wallet_form(),
        sent_at_ms: BUILT * 1_000,
    }
}

/// The wallet's number is past the transaction's, which sent so many messages; `None` when it was another.
fn passed(messages: Option<usize>) -> TonTestState {
    let own = ledger::read_sent(&signed().transaction).unwrap().body_hash;
    let hash = messages.map_or([9; 32], |_| own);
    TonTestState {
        seqno: SEQNO + 1,
        transactions: vec![
            transaction(91, BUILT + 5, hash, messages.unwrap_or(1)),
            transaction(90, BUILT - 4_000, [1; 32], 1),
        ],
        ..TonTestState::default()
    }
}

fn at_time(time: u64) -> TonTestState {
    TonTestState {
        time,
        ..TonTestState::default()
    }
}

pub async fn witnesses() -> Witnesses {
    let node = async |state: TonTestState| TonTestNode::start(state).await.url;
    let own = ledger::read_sent(&signed().transaction).unwrap().body_hash;
    let elsewhere = TonTestState {
        transactions: vec![transaction(92, BUILT + 6, own, 1)],
        ..passed(Some(1))
    };
    Witnesses {
        chain: ChainKey::of(Network::Ton, None),
        liars: vec![
            ("final", node(elsewhere).await),
            ("failed for good", node(passed(Some(0))).await),
        ],
        honest: node(at_time(BUILT)).await,
        later: node(passed(Some(1))).await,
        transaction: tracked(),
        now_ms: 0,
        end: TransactionSighting::Final(Inclusion {
            block: 91,
            success: true,
        }),
    }
}

#[tokio::test]
async fn sightings__should_say_where_a_ton_transaction_is() {
    let at = |success| Inclusion { block: 91, success };
    let end = u64::from(END);
    for (state, expected) in [
        (passed(Some(1)), Ok(TransactionSighting::Final(at(true)))),
        (passed(Some(0)), Ok(TransactionSighting::Final(at(false)))),
        (passed(None), Ok(TransactionSighting::Replaced(None))),
        (at_time(BUILT), Ok(TransactionSighting::Missing)),
        (at_time(end + 59), Ok(TransactionSighting::Missing)),
        (at_time(end + 60), Ok(TransactionSighting::Expired)),
        (
            TonTestState {
                kind: "frozen",
                ..TonTestState::default()
            },
            Err(ChainError::Unknown(
                "the wallet's account is frozen; its earlier transactions cannot be seen".into(),
            )),
        ),
    ] {
        let node = TonTestNode::start(state).await;
        let sighted = connect(&[&node], 1).sightings(&[tracked()], 0).await;
        assert_eq!(sighted, [expected]);
    }
}

#[tokio::test]
async fn sightings__should_take_no_single_ton_node_s_word_for_the_end() {
    let honest = TonTestNode::start(at_time(BUILT)).await;
    for lie in [
        passed(Some(1)),
        passed(None),
        at_time(u64::from(END) + 3_600),
    ] {
        let liar = TonTestNode::start(lie).await;
        let chain = ChainKey::of(Network::Ton, None);
        for client in all_ways(chain, &liar.url, &honest.url) {
            never_ended(client, &tracked(), 0).await;
        }
    }
}

#[tokio::test]
async fn a_ton_transaction__should_be_found_where_one_node_has_later_ones_of_the_wallet() {
    let mut later = passed(Some(1));
    later
        .transactions
        .insert(0, transaction(95, BUILT + 9, [2; 32], 1));
    let (node, ahead) = (
        TonTestNode::start(passed(Some(1))).await,
        TonTestNode::start(later).await,
    );
    let sighted = connect(&[&node, &ahead], 2)
        .sightings(&[tracked()], 0)
        .await;
    let place = Inclusion {
        block: 91,
        success: true,
    };
    assert_eq!(sighted, [Ok(TransactionSighting::Final(place))]);
}
