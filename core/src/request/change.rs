//! What listeners are told of a request that has changed: no amount, no address, nothing that was signed.

use serde::{Serialize, Serializer};

use super::SigningRequest;
use crate::networks::Payload;

/// A request as an event shows it. Names and values are those of the API; times are text there, as all 64-bit
/// integers are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestChange {
    /// The request.
    pub uuid: String,
    /// Its vault.
    pub vault_uuid: String,
    /// The kind of its payload, such as `evmSendNative`; empty where that can no longer be read.
    pub kind: &'static str,
    /// `STATUS_PENDING`, `STATUS_SUCCEEDED` or `STATUS_FAILED`.
    pub status: &'static str,
    /// `approve` while it waits for people, else empty.
    pub pending_operation: &'static str,
    /// How many people have to approve, as far as the service knows.
    pub required_approval_count: u32,
    /// How many approvals are missing; 0 unless it waits for approval.
    pub remaining_approval_count: u32,
    /// When it changed, in milliseconds since the Unix epoch.
    #[serde(serialize_with = "text")]
    pub timestamp: u64,
}

fn text<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

impl SigningRequest {
    /// What is told of it as it is now, at `now_ms`, of a change at `at_ms`; both in milliseconds since the Unix
    /// epoch.
    pub fn change(&self, at_ms: u64, now_ms: u64) -> RequestChange {
        let approvals = self.approvals(now_ms);
        RequestChange {
            uuid: self.id.to_string(),
            vault_uuid: self.vault.to_string(),
            kind: Payload::decode(&self.payload).map_or("", |payload| payload.kind()),
            status: self.status().as_str_name(),
            pending_operation: approvals.pending_operation,
            required_approval_count: approvals.required,
            remaining_approval_count: approvals.remaining,
            timestamp: at_ms,
        }
    }
}
