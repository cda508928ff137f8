//! What is sent.

use super::*;

fn broadcast_request(retried: bool, now: u64) -> BroadcastRequest {
    BroadcastRequest {
        signed: signed(),
        chain_data: found(SEQNO, true, None),
        age_ms: (now - BUILT) * 1_000,
        now_ms: now * 1_000,
        retried,
    }
}

/// It, in the chain.
fn here(lt: u64, messages: usize) -> Value {
    let sent = ledger::read_sent(&signed().transaction).unwrap();
    transaction(lt, BUILT + 5, sent.body_hash, messages)
}

/// Some other transaction of the wallet, after it was made.
fn other(lt: u64) -> Value {
    transaction(lt, BUILT + 3, [2; 32], 1)
}

/// Sends it, and checks what becomes of it, and how often the node got it.
async fn assert_outcome(
    state: TonTestState,
    broadcast_request: BroadcastRequest,
    expected: (&str, &str, usize),
) {
    assert_outcome_with(ExecuteCode::Unspecified, state, broadcast_request, expected).await;
}

async fn assert_outcome_with(
    code: ExecuteCode,
    state: TonTestState,
    broadcast_request: BroadcastRequest,
    (expected, words, sends): (&str, &str, usize),
) {
    let node = TonTestNode::start(state).await;
    let (verdict, found, reason) =
        verdict(connect(&[&node], 1).broadcast(&broadcast_request).await);
    let what = format!("{expected} {words}: {reason}");
    assert_eq!(
        (verdict, found, node.sent()),
        (expected, code, sends),
        "{what}"
    );
    assert!(reason.contains(words), "{what}");
}

fn verdict(outcome: BroadcastOutcome) -> (&'static str, ExecuteCode, String) {
    match outcome {
        BroadcastOutcome::Accepted => ("accepted", ExecuteCode::Unspecified, String::new()),
        BroadcastOutcome::Refused(refusal) => ("refused", refusal.code, refusal.reason),
        BroadcastOutcome::Doubtful(refusal, Standing::Void) => {
            ("void", refusal.code, refusal.reason)
        }
        BroadcastOutcome::Doubtful(refusal, _) => ("doubtful", refusal.code, refusal.reason),
        BroadcastOutcome::Unknown(reason) => ("unknown", ExecuteCode::Unspecified, reason),
    }
}

/// Some other transaction, from before it was made.
fn old() -> Value {
    transaction(50, BUILT - 400, [3; 32], 1)
}

/// A node for which the wallet's number is `seqno`, and these are its last transactions.
fn at(seqno: u32, transactions: &[Value]) -> TonTestState {
    TonTestState {
        seqno,
        transactions: transactions.to_vec(),
        ..TonTestState::default()
    }
}

fn first_try() -> BroadcastRequest {
    broadcast_request(false, BUILT + 10)
}

fn next_try() -> BroadcastRequest {
    broadcast_request(true, BUILT + 10)
}

pub async fn lies() -> Vec<Lie> {
    let lie = async |what, [liar, honest]: [TonTestState; 2], request| Lie {
        what,
        chain: ChainKey::of(Network::Ton, None),
        liar: TonTestNode::start(liar).await.url,
        honest: TonTestNode::start(honest).await.url,
        is_taken: false,
        request,
    };
    let says = |said| TonTestState {
        said,
        ..TonTestState::default()
    };
    vec![
        lie(
            "its signature",
            [says(rejected(135)), says(refusal("something"))],
            first_try(),
        )
        .await,
        lie(
            "it cannot pay, where the contract is not run yet",
            [
                TonTestState {
                    balance: VALUE,
                    ..says(refusal("before smart-contract execution"))
                },
                says(refusal("before smart-contract execution")),
            ],
            first_try(),
        )
        .await,
    ]
}

#[tokio::test]
async fn ton_broadcast__should_accept_what_is_in_a_block() {
    let then = |transactions: &[Value]| TonTestState {
        seqno_then: Some(SEQNO + 1),
        ..at(SEQNO, transactions)
    };
    let accepted = |sends| ("accepted", "", sends);
    let overtaken = |sends| ("void", "seqno", sends);
    let found = then(&[here(80, 1), old()]);
    assert_outcome(found, first_try(), accepted(1)).await;
    let below = then(&[other(99), here(80, 1), old()]);
    assert_outcome(below, first_try(), accepted(1)).await;
    assert_outcome(then(&[other(99), old()]), first_try(), overtaken(1)).await;
    // A wallet that has no more transactions.
    assert_outcome(then(&[other(99)]), first_try(), overtaken(1)).await;
    // It was there before.
    assert_outcome(at(8, &[here(80, 1)]), next_try(), accepted(0)).await;
    let later = broadcast_request(true, u64::from(END) + 999);
    let below = at(9, &[other(99), here(80, 1)]);
    assert_outcome(below, later, accepted(0)).await;
    assert_outcome(at(8, &[other(99), old()]), next_try(), overtaken(0)).await;
    // The wallet sent nothing, which the tracker says: it is there, and its number is used.
    assert_outcome(then(&[here(80, 0)]), first_try(), accepted(1)).await;
    assert_outcome(at(8, &[here(80, 0)]), next_try(), accepted(0)).await;
}

#[tokio::test]
async fn ton_broadcast__should_not_send_what_cannot_be_taken() {
    let earlier = ("unknown", "earlier", 0);
    assert_outcome(at(6, &[old()]), first_try(), earlier).await;
    let end = u64::from(END);
    let expired = ("refused", "expired", 0);
    assert_outcome(
        TonTestState::default(),
        broadcast_request(false, end),
        expired,
    )
    .await;
    let past = |time, seqno| TonTestState {
        time,
        ..at(seqno, &[old()])
    };
    let over = || broadcast_request(true, end);
    let void = ("void", "expired", 0);
    assert_outcome(past(end + 60, SEQNO), over(), void).await;
    assert_outcome(past(end + 60, 6), over(), void).await;
    let frozen = TonTestState {
        kind: "frozen",
        ..past(end + 60, SEQNO)
    };
    assert_outcome(frozen, over(), ("unknown", "frozen", 0)).await;
    let behind = ("unknown", "past it", 0);
    assert_outcome(past(end + 59, SEQNO), over(), behind).await;
    let poor = TonTestState {
        balance: VALUE - 1,
        ..TonTestState::default()
    };
    let funds = ExecuteCode::InsufficientFunds;
    assert_outcome_with(funds, poor, first_try(), ("refused", "nanoton", 0)).await;
}

#[tokio::test]
async fn ton_broadcast__should_refuse_only_what_can_never_be_taken() {
    let says = |said: Option<(u16, Value)>| TonTestState {
        said,
        ..TonTestState::default()
    };
    let not_run = || refusal("rejected by account A before smart-contract execution");
    let error = |status: u16, words: &str| {
        Some((status, json!({"ok": false, "error": words, "code": status})))
    };
    for (said, expected, words) in [
        (rejected(133), "unknown", "seqno"),
        (rejected(33), "unknown", "seqno"),
        (rejected(136), "unknown", "clock"),
        (rejected(135), "refused", "exit code 135"),
        (
            refusal("failed to parse external message"),
            "refused",
            "cannot read",
        ),
        (refusal("something"), "unknown", "something"),
        (not_run(), "unknown", "before"),
        (error(404, "Not Found"), "unknown", "Not Found"),
        (error(422, "what?"), "unknown", "what?"),
        (error(500, "LITE_SERVER_NETWORK"), "unknown", "HTTP 500"),
        (error(429, "Ratelimit exceed"), "unknown", "HTTP 429"),
        (
            Some((200, json!({"ok": false}))),
            "unknown",
            "without a reason",
        ),
        (None, "unknown", "TON"),
    ] {
        assert_outcome(says(said), first_try(), (expected, words, 1)).await;
    }
    // Where an earlier try may have arrived, only the chain can say.
    for said in [rejected(135), refusal("failed to parse external message")] {
        assert_outcome(says(said), next_try(), ("unknown", "", 1)).await;
    }
    let poor = TonTestState {
        balance: 9_000_000,
        ..says(not_run())
    };
    let fee = ExecuteCode::InsufficientGasFee;
    let expected = ("refused", "cannot pay the fees", 1);
    assert_outcome_with(fee, poor, first_try(), expected).await;
}

#[tokio::test]
async fn ton_broadcast__should_call_it_gone_only_when_every_node_says_so() {
    let without = at(SEQNO + 1, &[other(99), old()]);
    let with = at(SEQNO + 1, &[other(99), here(80, 1), old()]);
    let behind = at(SEQNO + 1, &[old()]);
    let (now, end) = (BUILT + 10, u64::from(END));
    let over = TonTestState {
        time: end + 60,
        ..TonTestState::default()
    };
    let slow = TonTestState::default();
    for (first, second, time, expected) in [
        (&without, &without, now, "void"),
        (&without, &with, now, "accepted"),
        (&with, &without, now, "accepted"),
        // The second does not have what the first has.
        (&without, &behind, now, "unknown"),
        (&over, &over, end, "void"),
        (&over, &slow, end, "unknown"),
    ] {
        let one = TonTestNode::start(first.clone()).await;
        let other = TonTestNode::start(second.clone()).await;
        let client = connect(&[&one, &other], 1);
        let (verdict, _, reason) = verdict(client.broadcast(&broadcast_request(true, time)).await);
        assert_eq!(verdict, expected, "{reason}");
        assert_eq!((one.sent(), other.sent()), (0, 0));
    }
}

#[tokio::test]
async fn ton_broadcast__should_send_what_only_one_of_two_nodes_calls_used_or_taken() {
    for lie in [&[other(99), old()], &[here(80, 1), old()]] {
        let liar = TonTestNode::start(at(SEQNO + 1, lie)).await;
        let honest = TonTestNode::start(at(SEQNO, &[old()])).await;
        // The liar is asked first, and believed about what ends nothing.
        let client = connect(&[&liar, &honest], 1);
        let (verdict, _, reason) = verdict(client.broadcast(&next_try()).await);
        assert!(["unknown", "accepted"].contains(&verdict), "{reason}");
        for _ in 0..1_000 {
            if honest.sent() == 1 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(honest.sent(), 1, "it never gets what the liar swallows");
    }
}

#[tokio::test]
async fn ton_broadcast__should_go_back_to_the_time_of_the_transaction() {
    // A node that gives two at once.
    let later: Vec<Value> = (60..100).rev().map(other).collect();
    let with = |earlier: &[Value]| TonTestState {
        page: 2,
        ..at(SEQNO + 1, &[&later, earlier].concat())
    };
    let accepted = ("accepted", "", 0);
    assert_outcome(with(&[here(59, 1)]), next_try(), accepted).await;
    // What is older than it cannot be it.
    let before = transaction(59, BUILT - 301, [3; 32], 1);
    let overtaken = ("void", "seqno", 0);
    assert_outcome(with(&[before, here(58, 1)]), next_try(), overtaken).await;
    // A node that leaves out the first.
    let hides = TonTestState {
        page: 0,
        ..at(SEQNO + 1, &[other(99), old()])
    };
    assert_outcome(hides, next_try(), ("unknown", "makes no sense", 0)).await;
}
