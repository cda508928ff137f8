//! What comes of balances of now.

use covault_core::amount::U256;

use super::*;

fn amount(amount: u64) -> [u8; 32] {
    U256::from(amount).to_be_bytes()
}

fn entry(block: u64, of: u64) -> LedgerEntry {
    LedgerEntry {
        block,
        is_send: false,
        is_fee: false,
        is_final: true,
        amount: amount(of),
    }
}

fn sent(block: u64, of: u64) -> LedgerEntry {
    LedgerEntry {
        is_send: true,
        ..entry(block, of)
    }
}

/// Of a wallet with these transfers, of which this was missing, and in doubt.
fn known(later: Vec<LedgerEntry>, missing: u64, doubt: Option<(u64, u64)>) -> KnownBalance {
    KnownBalance {
        base: (0, amount(0)),
        missing: amount(missing),
        doubt: doubt.map(|(block, of)| DoubtfulBalance {
            block,
            balance: amount(of),
        }),
        earlier: Vec::new(),
        later,
    }
}

fn at(block: u64, balance: u64) -> BalanceNow {
    BalanceNow {
        block,
        balance: amount(balance),
    }
}

/// Looked at after block 100, of which 81 are final.
fn of(known: &KnownBalance, balance: u64) -> Judgement {
    known.judge(at(100, balance), 100, 81)
}

/// It got 100 in block 50.
fn paid(missing: u64, doubt: Option<(u64, u64)>) -> KnownBalance {
    known(vec![entry(50, 100)], missing, doubt)
}

#[test]
fn difference__should_be_believed_when_two_looks_find_it_and_all_between_is_final() {
    assert_eq!(of(&paid(0, None), 100), Judgement::Explained);
    assert_eq!(of(&paid(0, None), 105), Judgement::InDoubt);
    let first = DoubtfulBalance {
        block: 70,
        balance: amount(105),
    };
    let doubt = paid(0, Some((70, 105)));
    assert_eq!(of(&doubt, 105), Judgement::More(first, amount(5)));
    assert_eq!(of(&paid(0, Some((70, 93))), 93), Judgement::Less(amount(7)));
    // It was another difference, or none is there now.
    assert_eq!(of(&doubt, 106), Judgement::InDoubt);
    assert_eq!(of(&doubt, 93), Judgement::InDoubt);
    assert_eq!(of(&doubt, 100), Judgement::Explained);
    // What came until then is not final.
    assert_eq!(of(&paid(0, Some((72, 105))), 105), Judgement::Later);
    // Both looks are at blocks of the same time.
    assert_eq!(
        paid(0, Some((85, 105))).judge(at(92, 105), 100, 99),
        Judgement::Later
    );
}

#[test]
fn what_is_missing__should_be_so_until_two_looks_say_that_it_is_back() {
    assert_eq!(of(&paid(7, None), 93), Judgement::Known);
    assert_eq!(of(&paid(7, None), 92), Judgement::InDoubt);
    // A node that is behind says once that nothing is missing.
    let one = paid(7, None);
    let judged = of(&one, 100);
    assert_eq!(judged, Judgement::InDoubt);
    assert_eq!(one.after(&judged, at(100, 100), 81).missing, amount(7));
    let two = paid(7, Some((70, 100)));
    let judged = of(&two, 100);
    assert_eq!(judged, Judgement::Explained);
    assert_eq!(two.after(&judged, at(100, 100), 81).missing, amount(0));
    // It is paid again, and nothing can be said of it.
    let busy = known(vec![entry(50, 100), entry(99, 5)], 7, None);
    let judged = of(&busy, 98);
    assert_eq!(judged, Judgement::Later);
    assert_eq!(busy.after(&judged, at(100, 98), 81).missing, amount(7));
}

#[test]
fn node_that_is_ahead_or_behind__should_invent_nothing() {
    // It knows what is in block 68 already, which is followed by now.
    let ahead = known(vec![entry(50, 100), entry(68, 5)], 0, Some((60, 105)));
    assert_eq!(of(&ahead, 105), Judgement::Explained);
    // The same again, of the same amount: what was seen at first is too near to a transfer.
    assert_eq!(of(&ahead, 110), Judgement::InDoubt);
    // It does not know yet what was paid a moment ago.
    for block in [90, 91, 100, 101] {
        let paid = known(vec![entry(50, 100), entry(block, 5)], 0, None);
        let expected = match block {
            90 => Judgement::InDoubt,
            _ => Judgement::Later,
        };
        assert_eq!(of(&paid, 100), expected, "{block}");
    }
}

/// What a node that is stuck has of a wallet that was swept since, it has at each look.
#[test]
fn stuck_node__should_not_make_a_deposit_of_what_was_swept() {
    let swept = || vec![entry(50, 300), sent(80, 300)];
    for doubt in [None, Some((60, 300)), Some((120, 300))] {
        let known = known(swept(), 0, doubt);
        assert_eq!(known.judge(at(60, 300), 150, 140), Judgement::Later);
        assert_eq!(known.judge(at(139, 300), 150, 140), Judgement::Later);
    }
    // The sweep is in what was compared last, and the node's block is before it.
    let compared = |doubt| KnownBalance {
        base: (131, amount(0)),
        earlier: vec![sent(130, 300)],
        ..known(Vec::new(), 0, doubt)
    };
    assert_eq!(
        compared(None).judge(at(139, 300), 145, 133),
        Judgement::Later
    );
    // It was near the first look.
    let near = compared(Some((135, 300)));
    assert_eq!(near.judge(at(150, 300), 150, 146), Judgement::InDoubt);
}

#[test]
fn balance_in_doubt__should_be_looked_at_again_when_it_can_be_judged_and_then_once_a_minute() {
    let doubt = DoubtfulBalance {
        block: 100,
        balance: amount(5),
    };
    assert_eq!(again_at(doubt, 81), 110);
    assert_eq!(again_at(doubt, 109), 110);
    assert_eq!(again_at(doubt, 110), 130);
}

#[test]
fn wallets_with_less__should_be_counted_once_in_a_round_and_by_what_changes_after_it() {
    let count = |looks: &[(bool, bool, bool)]| {
        let mut counts = ReconciliationCounts::default();
        for (is_round, was, is) in looks {
            count_missing(&mut counts, *is_round, *was, *is);
        }
        counts.missing
    };
    assert_eq!(
        count(&[
            (true, true, true),
            (true, false, false),
            (true, false, true)
        ]),
        2
    );
    assert_eq!(count(&[(true, true, true), (false, true, true)]), 1);
    assert_eq!(count(&[(true, true, true), (false, true, false)]), 0);
    assert_eq!(count(&[(true, false, false), (false, false, true)]), 1);
    assert_eq!(count(&[(true, true, false), (true, true, true)]), 1);
}
