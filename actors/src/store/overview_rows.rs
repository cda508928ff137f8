//! The rows of [`KeySpace::Overview`].

use covault_core::ids::{RequestId, VaultId};
use serde::{Deserialize, Serialize};

use super::{Key, KeySpace};

/// How many vaults can sign, and what is on its way, as it was when it was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceCounts {
    /// When it was counted, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Vaults.
    pub vaults: VaultCounts,
    /// Signing requests.
    pub requests: OpenRequestCounts,
}

/// Vaults by whether they can sign.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VaultCounts {
    /// Enough holders of each key can sign.
    pub ready: u64,
    /// Too few holders of a key can sign.
    pub short: u64,
    /// A key is missing.
    pub no_keys: u64,
    /// The first of those that cannot sign, by name, with the reason.
    pub cannot_sign: Vec<String>,
    /// Of those that can sign: one signer fewer, and they cannot.
    pub no_spare: u64,
    /// The first of these, by name.
    pub without_spare: Vec<String>,
    /// Nodes that hold shares together and do not list each other, in words for people; the first of them.
    pub strangers: Vec<String>,
    /// Client signers that cannot sign, with the vault, in words for people; the first of them. Requests that name them wait;
    /// others do not.
    pub client_signers_away: Vec<String>,
}

impl VaultCounts {
    /// How many there are.
    pub fn all(&self) -> u64 {
        self.ready
            .saturating_add(self.short)
            .saturating_add(self.no_keys)
    }
}

/// Signing requests that are not over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRequestCounts {
    /// They wait for people.
    pub awaiting: u64,
    /// They are being built, signed or sent.
    pub unsigned: u64,
    /// A node has their transaction, which is not final.
    pub followed: u64,
    /// Of the last two: they make no progress.
    pub stuck: u64,
}

/// The last backup that was read to its end, and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupRow {
    /// Of which moment its state is, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The bytes of its rows.
    pub bytes: u64,
}

/// A request that has failed, without what it was about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedRequest {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The request.
    pub request: RequestId,
    /// Its vault.
    pub vault: VaultId,
    /// The kind of its payload.
    pub kind: String,
    /// The name of its [`covault_core::fault::ExecuteCode`].
    pub class: String,
    /// The state in which it was.
    pub during: String,
    /// Why, without amounts and addresses.
    pub reason: String,
}

/// The row of [`ServiceCounts`].
pub fn counts() -> Key {
    Key::new(KeySpace::Overview, &[&[1]])
}

/// The row of [`BackupRow`].
pub fn backup() -> Key {
    Key::new(KeySpace::Overview, &[&[2]])
}

/// The row of the last failures: [`FailedRequest`]s in the order in which they were written.
pub fn failures() -> Key {
    Key::new(KeySpace::Overview, &[&[3]])
}
