//! What nodes answer, read.

use covault_core::{
    fault::ExecuteCode,
    networks::stellar::ledger::{self, FailureCause, LedgerAccount, SentEnvelope, StellarFailure},
};
use serde_json::Value;

use crate::chain_rpc::{
    ChainRefusal, Objection, ObjectionKind, SimulationOutcome, exchange::short, jsonrpc::RpcError,
};

/// The network takes no less, in stroops per operation.
const MIN_FEE: u32 = 100;
/// JSON-RPC: what was sent is not what the method takes.
const INVALID_PARAMS: i64 = -32602;
/// What a node says then of a transaction.
const INVALID_XDR: &str = "invalid_xdr";

/// What the nodes' ledgers have of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StellarTrace {
    /// One has it. With a `problem` it changed nothing, and the fee was taken.
    InLedger { problem: Option<String> },
    /// None of these has it.
    Nowhere(LedgerRange),
}

/// The ledgers that all nodes know that were asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LedgerRange {
    /// When the first closed, in seconds since the Unix epoch.
    pub(super) since: u64,
    /// When the last closed.
    pub(super) until: u64,
    /// The number of the last.
    pub(super) last: u64,
}

impl LedgerRange {
    pub(super) const ALL: Self = Self {
        since: 0,
        until: u64::MAX,
        last: u64::MAX,
    };
    pub(super) const NONE: Self = Self {
        since: u64::MAX,
        until: 0,
        last: 0,
    };

    /// Whether no later ledger can have the transaction. Until one has closed after its time, the
    /// next still can.
    pub(super) fn is_past(&self, sent: &SentEnvelope) -> bool {
        sent.max_time.is_some_and(|end| end < self.until)
            || sent
                .max_ledger
                .is_some_and(|end| u64::from(end) <= self.last)
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self {
            since: self.since.max(other.since),
            until: self.until.min(other.until),
            last: self.last.min(other.last),
        }
    }
}

/// Reads simulateTransaction.
pub(super) fn tried(answer: &Value) -> Option<SimulationOutcome> {
    // Every answer names the ledger that it is about.
    answer.get("latestLedger")?;
    if let Some(error) = answer.get("error") {
        return Some(SimulationOutcome::fails(error.as_str()?));
    }
    // What is returned is then what would be, were they there.
    if answer
        .get("restorePreamble")
        .is_some_and(|preamble| !preamble.is_null())
    {
        return Some(SimulationOutcome::fails(
            "entries of the ledger that it needs are archived, and must be restored first",
        ));
    }
    let returned = answer.pointer("/results/0/xdr").and_then(Value::as_str);
    Some(SimulationOutcome::passes(returned.map(str::to_owned)))
}

/// An answer to getLedgerEntries.
pub(super) struct LedgerEntries<'a> {
    pub(super) entries: &'a [Value],
    /// The number of the ledger that they are of.
    pub(super) last: u64,
}

impl<'a> LedgerEntries<'a> {
    pub(super) fn of(answer: &'a Value) -> Option<Self> {
        let entries: &[Value] = match answer.get("entries") {
            None | Some(Value::Null) => &[],
            Some(entries) => entries.as_array()?.as_slice(),
        };
        // Without it, it is no answer of such a node, and says nothing about what is absent.
        let last = answer.get("latestLedger")?.as_u64()?;
        Some(Self { entries, last })
    }

    pub(super) fn find(&self, key: &str) -> Option<&'a str> {
        let entry = self
            .entries
            .iter()
            .find(|entry| entry.get("key").and_then(Value::as_str) == Some(key))?;
        // What cannot be read later is no entry either.
        Some(entry.get("xdr").and_then(Value::as_str).unwrap_or_default())
    }

    /// An account, or `Some(None)` where there is none; `None` when what is there makes no sense.
    pub(super) fn account(&self, key: &str) -> Option<Option<LedgerAccount>> {
        match self.find(key) {
            None => Some(None),
            Some(entry) => ledger::read_account(key, entry).map(Some),
        }
    }
}

/// What to offer per operation, so that it is taken also when ledgers are full: nine of ten
/// transactions of the last ledgers were charged no more; half of them (slow), and all but one in a hundred
/// (fast). The network charges the same. Whether so much is believed is not decided here.
pub(super) fn base_fees(stats: &Value) -> Option<[u32; 3]> {
    let fee = |name: &str| {
        let fee = number(stats.pointer("/inclusionFee")?.get(name)?)?;
        u32::try_from(fee.clamp(MIN_FEE.into(), u32::MAX.into())).ok()
    };
    let normal = fee("p90")?;
    let (slow, fast) = (fee("p50").unwrap_or(normal), fee("p99").unwrap_or(normal));
    Some([slow.min(normal), normal, fast.max(normal)])
}

/// Whether a node cannot read the transaction.
pub(super) fn is_unreadable(error: &RpcError) -> bool {
    error.code == INVALID_PARAMS && error.message.contains(INVALID_XDR)
}

/// What a node has against a transaction that it does not take; `None` when it takes it, or cannot say.
pub(super) fn objection_of(said: Result<&Value, &RpcError>) -> Option<Objection> {
    let answer = match said {
        Err(error) if is_unreadable(error) => {
            let said = short(&error.message);
            return Some(Objection::new(ObjectionKind::Refused, said));
        }
        Err(_) => return None,
        Ok(answer) => answer,
    };
    if answer.get("status").and_then(Value::as_str) != Some("ERROR") {
        return None;
    }
    let Some(why) = failure_of(answer, "errorResultXdr") else {
        return Some(Objection::new(ObjectionKind::Refused, "without a reason"));
    };
    let kind = match why.cause {
        FailureCause::Sequence => ObjectionKind::Used,
        FailureCause::TooLate => ObjectionKind::Over,
        FailureCause::Later => ObjectionKind::Missing,
        FailureCause::Passing | FailureCause::Final => ObjectionKind::Refused,
    };
    Some(Objection::new(kind, why.name))
}

/// What an answer to getTransaction says.
pub(super) fn trace_of(answer: &Value) -> StellarTrace {
    let time = |name| answer.get(name).and_then(number);
    match answer.get("status").and_then(Value::as_str) {
        Some("SUCCESS") => StellarTrace::InLedger { problem: None },
        Some("FAILED") => {
            let why = failure_of(answer, "resultXdr").map(|why| refusal(&why).reason);
            let problem = why.unwrap_or_else(|| "the network does not say why".into());
            StellarTrace::InLedger {
                problem: Some(problem),
            }
        }
        Some("NOT_FOUND") => {
            let span = || {
                Some(LedgerRange {
                    since: time("oldestLedgerCloseTime")?,
                    until: time("latestLedgerCloseTime")?,
                    last: time("latestLedger")?,
                })
            };
            StellarTrace::Nowhere(span().unwrap_or(LedgerRange::NONE))
        }
        _ => StellarTrace::Nowhere(LedgerRange::NONE),
    }
}

pub(super) fn failure_of(answer: &Value, field: &str) -> Option<StellarFailure> {
    ledger::read_result(answer.get(field)?.as_str()?).flatten()
}

pub(super) fn refusal(why: &StellarFailure) -> ChainRefusal {
    let StellarFailure {
        name, meaning, fee, ..
    } = why;
    let reason = match (why.code, meaning) {
        (ExecuteCode::InsufficientGasFee, Some(meaning)) => {
            format!("{meaning}, at least {fee} stroops; the network said: {name}")
        }
        (_, Some(meaning)) => format!("{meaning}; the network said: {name}"),
        (_, None) => format!("the network refused the transaction: {name}"),
    };
    ChainRefusal {
        reason,
        code: why.code,
    }
}

/// 64-bit numbers are text in this API, most of the time.
pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::String(digits) => digits.parse().ok(),
        value => value.as_u64(),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn base_fees__should_be_no_less_than_the_network_wants() {
        for (p90, expected) in [
            (json!("100"), Some(100)),
            (json!("0"), Some(100)),
            (json!("5017"), Some(5017)),
            (json!(250), Some(250)),
            (json!("18446744073709551615"), Some(u32::MAX)),
            (json!("-1"), None),
            (json!(null), None),
        ] {
            let stats = json!({"inclusionFee": {"p90": p90}});
            assert_eq!(base_fees(&stats), expected.map(|fee| [fee; 3]), "{stats}");
        }
        assert_eq!(base_fees(&json!({})), None);
        let stats = json!({"inclusionFee": {"p50": "120", "p90": "400", "p99": "9000000"}});
        assert_eq!(base_fees(&stats), Some([120, 400, 9_000_000]));
        // Levels are in order whatever a node says.
        let stats = json!({"inclusionFee": {"p50": "500", "p90": "400", "p99": "300"}});
        assert_eq!(base_fees(&stats), Some([400; 3]));
    }

    #[test]
    fn trace__should_count_only_ledgers_that_the_node_names() {
        let span = |answer: Value| match trace_of(&answer) {
            StellarTrace::Nowhere(span) => span,
            other => panic!("{other:?}"),
        };
        let known = json!({"status": "NOT_FOUND", "latestLedger": 9, "oldestLedger": 2,
            "latestLedgerCloseTime": "1700000500", "oldestLedgerCloseTime": "1700000000"});
        let expected = LedgerRange {
            since: 1_700_000_000,
            until: 1_700_000_500,
            last: 9,
        };
        assert_eq!(span(known), expected);
        for answer in [
            json!({"status": "NOT_FOUND"}),
            json!({"status": "NOT_FOUND", "latestLedger": 9}),
            json!({}),
            Value::Null,
        ] {
            assert_eq!(span(answer), LedgerRange::NONE);
        }
        assert_eq!(LedgerRange::ALL.and(expected), expected);
        assert_eq!(expected.and(LedgerRange::NONE), LedgerRange::NONE);
        for (status, fails) in [("SUCCESS", false), ("FAILED", true)] {
            let found = trace_of(&json!({"status": status}));
            assert!(
                matches!(found, StellarTrace::InLedger { problem } if problem.is_some() == fails)
            );
        }
    }

    #[test]
    fn entries__should_be_absent_only_in_an_answer() {
        for answer in [
            json!({"entries": [], "latestLedger": 3}),
            json!({"entries": null, "latestLedger": 3}),
            json!({"latestLedger": 3}),
        ] {
            let entries = LedgerEntries::of(&answer).unwrap();
            assert_eq!(entries.account("key"), Some(None));
        }
        for answer in [
            json!({"entries": []}),
            json!({"entries": 1, "latestLedger": 3}),
            Value::Null,
        ] {
            assert!(LedgerEntries::of(&answer).is_none());
        }
        let nonsense = json!({"entries": [{"key": "key"}], "latestLedger": 3});
        assert_eq!(LedgerEntries::of(&nonsense).unwrap().account("key"), None);
    }
}
