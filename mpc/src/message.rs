//! What envelopes carry, beside protocol messages. BCS; the envelope has the version.

use covault_core::{
    derive::RootKey,
    fault::{Class, Fault},
    order::{KeygenOrder, NodeId, SigningOrder},
    signature::Signature,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// How far the clocks of orchestrator and nodes may be apart, in milliseconds.
pub(crate) const SKEW_MS: u64 = 60_000;

/// Characters of a peer's text that are kept.
const MAX_TEXT: usize = 300;
/// Nodes that a peer's reply can name.
const MAX_NAMED: usize = 64;

/// Orchestrator to node: sign this. The envelope's signature is the orchestrator's, over all of it.
#[derive(Serialize, Deserialize)]
pub(crate) struct SignRequest {
    pub order: SigningOrder,
    /// Exactly threshold many holders; the first collects.
    pub signers: Vec<NodeId>,
    /// How long the attempt has, in milliseconds. A duration, so that clocks need not agree.
    pub attempt_ms: u64,
    /// The orchestrator's clock, in milliseconds since the Unix epoch.
    pub sent_at_ms: u64,
}

/// Orchestrator to node: make this key. Signed as a [`SignRequest`] is.
#[derive(Serialize, Deserialize)]
pub(crate) struct KeygenRequest {
    pub order: KeygenOrder,
    /// The orchestrator's clock, in milliseconds since the Unix epoch.
    pub sent_at_ms: u64,
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

impl Reply {
    /// The reply with its texts cut to what logs, store and clients can be given.
    pub fn cleaned(self) -> Self {
        match self {
            Self::Refused(fault) => {
                let class = match fault.class() {
                    Class::Peer { culprits } => Class::Peer {
                        culprits: culprits
                            .iter()
                            .take(MAX_NAMED)
                            .map(|text| clean(text))
                            .collect(),
                    },
                    // These speak of the client and its token, which no node knows.
                    Class::Unauthenticated
                    | Class::Forbidden
                    | Class::TooLarge
                    | Class::Limited => Class::Invalid,
                    class => class.clone(),
                };
                Self::Refused(Fault::new(class, clean(fault.public())))
            }
            Self::Failed {
                mut culprits,
                mut missing,
                reason,
            } => {
                culprits.truncate(MAX_NAMED);
                missing.truncate(MAX_NAMED);
                Self::Failed {
                    culprits,
                    missing,
                    reason: clean(&reason),
                }
            }
            reply => reply,
        }
    }
}

/// A peer's text without control characters, of at most [`MAX_TEXT`] characters.
fn clean(text: &str) -> String {
    text.chars()
        .filter(|letter| !letter.is_control())
        .take(MAX_TEXT)
        .collect()
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

/// Decodes and encodes again; for fuzz targets.
#[cfg(feature = "simulation")]
pub(crate) fn again<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<Vec<u8>> {
    decode::<T>(bytes).and_then(|message| encode(&message).ok())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn reply__should_be_cut_to_what_can_be_shown() {
        let text = format!("no\u{1b}[2J\n{}", "x".repeat(5000));
        let reply = Reply::Refused(Fault::new(Class::Unauthenticated, text.clone())).cleaned();
        let Reply::Refused(fault) = reply else {
            panic!("another reply")
        };
        assert_eq!(fault.class(), &Class::Invalid);
        assert!(fault.public().starts_with("no[2Jxxx"));
        assert_eq!(fault.public().chars().count(), MAX_TEXT);
        let failed = Reply::Failed {
            culprits: vec![NodeId([1; 32]); 1000],
            missing: Vec::new(),
            reason: text,
        };
        let Reply::Failed {
            culprits, reason, ..
        } = failed.cleaned()
        else {
            panic!("another reply")
        };
        assert_eq!((culprits.len(), reason.len()), (MAX_NAMED, MAX_TEXT));
    }
}
