//! What envelopes carry, as far as the oracle reads it. The samples of the wire formats hold these
//! and the library's own types together.

#![allow(dead_code)]

use covault_core::{
    derive::RootKey,
    fault::Fault,
    ids::SessionId,
    order::{NodeId, ProvenGeneration, SigningOrder},
    signature::Signature,
    trace::TraceContext,
};
use serde::{Deserialize, de::DeserializeOwned};

/// Orchestrator to node.
#[derive(Deserialize)]
pub struct SignOrderMsg {
    pub order: SigningOrder,
    pub session: SessionId,
    pub signers: Vec<NodeId>,
    pub nonces: Vec<Vec<u64>>,
    pub attempt_ms: u64,
    pub sent_at_ms: u64,
    pub trace: Option<TraceContext>,
}

/// About nonces made ahead. The oracle reads nothing else of it.
#[derive(Deserialize)]
pub enum PreprocessMsg {
    Made {
        of: (Vec<u8>, u32),
        floor: u64,
        nonces: Vec<(u64, Vec<u8>)>,
    },
}

/// Node to orchestrator.
#[derive(Deserialize)]
pub enum OrderReply {
    Signed(Vec<Signature>),
    KeyMade {
        root: RootKey,
        transcript: [u8; 32],
        signature: Vec<u8>,
    },
    Refused(Fault),
    Failed {
        culprits: Vec<NodeId>,
        missing: Vec<NodeId>,
        reason: String,
        evidence: String,
    },
    Prepared(Vec<u8>),
    Activated,
    Backup(Vec<u8>),
    NoNonces {
        of: NodeId,
    },
    Attested(Vec<u8>),
    NotPermitted,
    Behind {
        fault: Fault,
        proven: Vec<ProvenGeneration>,
        epoch: u32,
    },
    Busy,
    Approved(Vec<u8>),
    Noted {
        held_until_ms: u64,
    },
    Round {
        round: u16,
        of: u16,
    },
}

/// `None` for other messages.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    bcs::from_bytes(bytes).ok()
}
