//! Metrics of nodes and cluster, through the `metrics` facade: they cost next to nothing if no recorder is
//! installed. Labels come from fixed lists, so that nobody on the bus can create more.

use std::time::Duration;

use covault_core::fault::Fault;
use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

const NODE_SESSIONS: &str = "covault_signer_sessions";
const NODE_SESSIONS_TOTAL: &str = "covault_signer_sessions_total";
const NODE_REFUSALS: &str = "covault_signer_refusals_total";
const NODE_BUSY: &str = "covault_signer_busy_total";
const NODE_CLAIM: &str = "covault_signer_claim_seconds";
const NODE_LOG_ENTRIES: &str = "covault_signer_claims_log_entries_total";
const NODE_LOG_FOLDS: &str = "covault_signer_claims_log_folds_total";
const NODE_KEYS: &str = "covault_signer_keys";
const NODE_BANS: &str = "covault_signer_bans";
const NODE_NONCES: &str = "covault_signer_nonces";
const ATTEMPTS: &str = "covault_signing_attempts_total";
const REFUSALS: &str = "covault_signing_refusals_total";
const CALLS: &str = "covault_cluster_calls";
const WAITING: &str = "covault_signing_waiting";
const BUS: &str = "covault_bus_seconds";
const SECOND_TEAMS: &str = "covault_signing_second_teams_total";

/// The fields that refusals may name; all others are "other".
const FIELDS: [&str; 39] = [
    "network",
    "rootPublicKey",
    "publicKey",
    "address",
    "payload",
    "unsigned",
    "inputs",
    "signers",
    "vault",
    "epoch",
    "path",
    "chainData",
    "request",
    "session",
    "digest",
    "scheme",
    "threshold",
    "dealers",
    "old",
    "new",
    "issuedAtMs",
    "expiresAtMs",
    "sentAtMs",
    "policy",
    "nonces",
    // The policy floor's.
    "kind",
    "recipient",
    "recipientIndices",
    "approvals",
    "fee",
    "price",
    "amount",
    // Of orders of all kinds.
    "from",
    "proof",
    "recipients",
    "holders",
    "root",
    "addresses",
    "confirmed",
];

/// Tells the recorder what the numbers mean. Call it once, after the recorder is installed.
pub fn describe() {
    describe_gauge!(NODE_SESSIONS, "Sessions that run on this node now");
    describe_counter!(
        NODE_SESSIONS_TOTAL,
        "Sessions of this node that ended, by kind (sign, keygen, reshare) and outcome (done, failed, timed_out)"
    );
    describe_counter!(
        NODE_REFUSALS,
        "Orders that this node refused, by class and by the field that was wrong"
    );
    describe_counter!(
        NODE_BUSY,
        "Orders that this node refused because it was overloaded"
    );
    describe_histogram!(NODE_CLAIM, Unit::Seconds, "Time until a claim was on disk");
    describe_counter!(
        NODE_LOG_ENTRIES,
        "Entries that were written to the log of this node's claims file, each synced to disk"
    );
    describe_counter!(
        NODE_LOG_FOLDS,
        "Times that the log of this node's claims file was moved into its database"
    );
    describe_gauge!(NODE_KEYS, "Keys that this node holds a share of");
    describe_gauge!(
        NODE_BANS,
        "Peers that this node has banned from a key because they cheated"
    );
    describe_gauge!(
        NODE_NONCES,
        "Preprocessed nonces that this node holds, of all keys"
    );
    describe_counter!(
        ATTEMPTS,
        "Attempts to sign with one set of signers, by outcome (signed, failed)"
    );
    describe_counter!(
        REFUSALS,
        "Orders that signers refused, by class and by the field that was wrong"
    );
    describe_gauge!(
        WAITING,
        "Requests that wait until their signers have room for them"
    );
    describe_counter!(
        SECOND_TEAMS,
        "Second attempts, started because the first took longer than almost all do"
    );
    describe_histogram!(
        BUS,
        Unit::Seconds,
        "Time until the bus had taken what was written to it at once"
    );
    describe_gauge!(CALLS, "Signatures and keys that signers are asked for now");
}

/// The field that a fault speaks of: `inputs` of "inputs[3].curve: ...".
fn field(fault: &Fault) -> &'static str {
    let Some(path) = fault.path() else {
        return "none";
    };
    let first = path.split(['.', '[']).next().unwrap_or_default();
    FIELDS
        .into_iter()
        .find(|field| *field == first)
        .unwrap_or("other")
}

pub(crate) fn sessions(node: &str, running: usize) {
    gauge!(NODE_SESSIONS, "node" => node.to_owned()).set(number(running));
}

pub(crate) fn session_ended(node: &str, kind: &'static str, outcome: &'static str) {
    counter!(NODE_SESSIONS_TOTAL, "node" => node.to_owned(), "kind" => kind, "outcome" => outcome)
        .increment(1);
}

pub(crate) fn node_refused(node: &str, fault: &Fault) {
    counter!(
        NODE_REFUSALS,
        "node" => node.to_owned(), "class" => fault.class().name(), "field" => field(fault)
    )
    .increment(1);
}

pub(crate) fn node_busy(node: &str) {
    counter!(NODE_BUSY, "node" => node.to_owned()).increment(1);
}

pub(crate) fn claimed(node: &str, took: Duration) {
    histogram!(NODE_CLAIM, "node" => node.to_owned()).record(took);
}

pub(crate) fn claims_log(node: &str, entries: u64, folds: u64) {
    counter!(NODE_LOG_ENTRIES, "node" => node.to_owned()).absolute(entries);
    counter!(NODE_LOG_FOLDS, "node" => node.to_owned()).absolute(folds);
}

pub(crate) fn holdings(node: &str, keys: usize, bans: usize) {
    gauge!(NODE_KEYS, "node" => node.to_owned()).set(number(keys));
    gauge!(NODE_BANS, "node" => node.to_owned()).set(number(bans));
}

pub(crate) fn nonces(node: &str, ready: usize) {
    gauge!(NODE_NONCES, "node" => node.to_owned()).set(number(ready));
}

pub(crate) fn attempted(signed: bool) {
    let outcome = if signed { "signed" } else { "failed" };
    counter!(ATTEMPTS, "outcome" => outcome).increment(1);
}

pub(crate) fn was_refused(fault: &Fault) {
    counter!(REFUSALS, "class" => fault.class().name(), "field" => field(fault)).increment(1);
}

pub(crate) fn waiting(now: usize) {
    gauge!(WAITING).set(number(now));
}

pub(crate) fn second_team() {
    counter!(SECOND_TEAMS).increment(1);
}

pub(crate) fn bus_written(took: Duration) {
    histogram!(BUS).record(took);
}

pub(crate) fn calls(now: usize) {
    gauge!(CALLS).set(number(now));
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn labels__should_come_from_fixed_lists() {
        let of = |fault: Fault| (fault.class().name(), field(&fault));
        assert_eq!(
            of(Fault::field("inputs[3].curve", "differs")),
            ("invalid", "inputs")
        );
        assert_eq!(
            of(Fault::field("whatever a payload says", "no")),
            ("invalid", "other")
        );
        // Counted in its own words: an alert on what the policy forbids must see it.
        for field in FIELDS {
            let (_, label) = of(Fault::field(field, "no"));
            assert_eq!(label, field);
        }
        assert_eq!(
            of(Fault::unavailable("a signer's disk failed")),
            ("unavailable", "none")
        );
    }

    /// Every field that a refusal of a node begins with, from the sources.
    #[test]
    fn refusals__should_each_have_a_label() {
        let sources = [
            include_str!("policy/mod.rs"),
            include_str!("policy/rules.rs"),
            include_str!("node/orders.rs"),
            include_str!("node/check.rs"),
            include_str!("node/life.rs"),
            include_str!("node/backups.rs"),
            include_str!("node/attest.rs"),
            include_str!("node/peers.rs"),
            include_str!("node/refusals.rs"),
            include_str!("loaded_keys.rs"),
            include_str!("../../core/src/order.rs"),
        ];
        let mut found = 0_usize;
        for source in sources {
            let code = source.split("#[cfg(test)]").next().unwrap();
            // Fault::field("name", ...), over one line or several.
            for call in code.split("Fault::field(").skip(1) {
                let argument = call.trim_start().trim_start_matches("format_args!(");
                let Some(quoted) = argument.strip_prefix('"') else {
                    continue;
                };
                let name = quoted.split(['"', '.', '[', ':']).next().unwrap();
                // "old" or "new", both in the list.
                if name == "{field}" {
                    continue;
                }
                let label = field(&Fault::field(name, "no"));
                assert_eq!(label, name, "add it to FIELDS");
                found += 1;
            }
        }
        assert!(found >= 30, "{found}");
    }
}
