//! What envelopes carry, beside protocol messages. BCS; the envelope has the version.

use covault_core::{
    derive::RootKey,
    fault::Fault,
    order::{KeygenOrder, NodeId, SigningOrder},
    signature::Signature,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Orchestrator to node: sign this.
#[derive(Serialize, Deserialize)]
pub(crate) struct SignRequest {
    pub order: SigningOrder,
    /// The orchestrator's Ed25519 signature over the order's canonical bytes.
    pub signature: Vec<u8>,
    /// Exactly threshold many holders; the first collects.
    pub signers: Vec<NodeId>,
    /// When the attempt ends, in milliseconds since the Unix epoch.
    pub deadline_ms: u64,
}

/// Orchestrator to node: make this key.
#[derive(Serialize, Deserialize)]
pub(crate) struct KeygenRequest {
    pub order: KeygenOrder,
    /// The orchestrator's Ed25519 signature over the order's canonical bytes.
    pub signature: Vec<u8>,
}

/// Node to orchestrator.
#[derive(Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The collector's: one signature per input.
    Signed(Vec<Signature>),
    /// The key exists, and our share of it is on disk.
    KeyMade(RootKey),
    /// We will not.
    Refused(Fault),
    /// We tried.
    Failed {
        /// Who misbehaved.
        culprits: Vec<NodeId>,
        /// Whose message did not come.
        missing: Vec<NodeId>,
        /// Without secrets.
        reason: String,
    },
}

/// Node to everyone.
#[derive(Serialize, Deserialize)]
pub(crate) struct Announcement {
    /// The node's name.
    pub name: String,
    /// Its clock, in milliseconds since the Unix epoch; grows with each announcement.
    pub at_ms: u64,
    /// This is the last one for now.
    pub leaving: bool,
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, Fault> {
    bcs::to_bytes(message).map_err(|_| Fault::bug("a message could not be encoded"))
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    bcs::from_bytes(bytes).ok()
}
