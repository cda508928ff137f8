//! Entry points for fuzz targets (`mpc/fuzz`, and in short `mpc/tests/fuzz.rs`): bytes of a hostile
//! peer, handed to everything that decodes such bytes. None may panic, whatever the bytes.
//!
//! Behind the feature `simulation`, which no release turns on.

mod approvals;
#[cfg(feature = "cggmp24")]
mod cggmp24;
mod orders;
mod sessions;
mod stored;

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use covault_core::{
    attest::{AttestOrder, MAX_ADDRESSES},
    order::{NodeId, ReshareOrder},
    port::Entropy,
};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

pub use approvals::{approval, approval_samples};
#[cfg(feature = "cggmp24")]
pub use cggmp24::{cggmp24_keygen, cggmp24_samples, cggmp24_sign, expect_panics};
pub use orders::orders;
pub use sessions::{
    FuzzInput, ahead_samples, keygen, keygen_samples, preprocess, reshare, reshare_samples,
    sealed_keygen, sealed_keygen_samples, sign, sign_samples,
};
pub use stored::{policy, stored, stored_samples};

use crate::{
    bus::memory::MemoryBus,
    envelope::{Envelope, EnvelopeCodec},
    identity::NodeIdentity,
    message::{self, Announcement, OrderReply, PreprocessMsg},
    node,
    preprocess::PeerNonces,
    questions::{NodeAnswer, NodeQuestionMsg},
    shares::ShareEpoch,
};

/// The same randomness every time, so that a finding can be replayed. Not for keys.
struct CounterEntropy(Mutex<(u8, u64)>);

impl CounterEntropy {
    fn new(name: u8) -> Self {
        Self(Mutex::new((name, 0)))
    }
}

impl Entropy for CounterEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.0.lock();
        for chunk in bytes.chunks_mut(32) {
            state.1 = state.1.wrapping_add(1);
            let hash = Sha256::new()
                .chain_update([state.0])
                .chain_update(state.1.to_be_bytes())
                .finalize();
            for (byte, random) in chunk.iter_mut().zip(hash) {
                *byte = random;
            }
        }
    }
}

/// What a target found; the fuzzer and the test stop at it.
pub type Finding = String;

fn finding(what: impl fmt::Display) -> Result<(), Finding> {
    Err(what.to_string())
}

/// Parses and opens an envelope. What parses must be written as it was read, and none may open:
/// the bytes have no signature of anybody's.
///
/// # Errors
/// What should not have happened.
pub fn envelope(data: &[u8]) -> Result<(), Finding> {
    static POST: OnceLock<EnvelopeCodec> = OnceLock::new();
    let codec = POST.get_or_init(|| {
        let entropy = Arc::new(CounterEntropy::new(0));
        let identity = Arc::new(NodeIdentity::generate(&*entropy));
        EnvelopeCodec::new(identity, MemoryBus::new(), entropy)
    });
    let Ok(mut envelope) = Envelope::parse(data.to_vec()) else {
        return Ok(());
    };
    if !data.starts_with(&envelope.encoded_header()) {
        return finding("the header reads back differently");
    }
    envelope.header.to = codec.id();
    if codec.open(&envelope).is_ok() {
        return finding("bytes of nobody have a valid signature");
    }
    Ok(())
}

/// Decodes what envelopes carry beside protocol messages. The first byte chooses which. What decodes
/// must be written as it was read, and is put to the first use that nodes make of it.
///
/// # Errors
/// What should not have happened.
pub fn messages(data: &[u8]) -> Result<(), Finding> {
    let Some((which, body)) = data.split_first() else {
        return Ok(());
    };
    let again = match which % 10 {
        0 => message::reencode::<message::SignOrderMsg>(body),
        1 => message::reencode::<message::KeygenOrderMsg>(body),
        2 => {
            if let Some(reply) = message::decode::<OrderReply>(body) {
                drop(reply.sanitized());
            }
            message::reencode::<OrderReply>(body)
        }
        3 => {
            if let Some(announcement) = message::decode::<Announcement>(body) {
                drop(announcement.sanitized());
            }
            message::reencode::<Announcement>(body)
                .or_else(|| message::reencode::<message::WitnessMsg>(body))
        }
        4 => {
            if let Some(request) = message::decode::<message::ReshareOrderMsg>(body) {
                reshare_order(&request.order)?;
            }
            message::reencode::<message::ReshareOrderMsg>(body)
        }
        5 => {
            if let Some(request) = message::decode::<message::ActivateMsg>(body) {
                reshare_order(&request.order)?;
                if node::check_proof(&request.order, &request.proof).is_ok() {
                    return finding("bytes of nobody prove that shares are on disk");
                }
            }
            message::reencode::<message::ActivateMsg>(body)
        }
        6 => {
            if let Some(answer) = message::decode::<NodeAnswer>(body) {
                drop(answer.sanitized());
            }
            message::reencode::<message::BackupOrderMsg>(body)
                .or_else(|| message::reencode::<NodeQuestionMsg>(body))
                .or_else(|| message::reencode::<NodeAnswer>(body))
        }
        8 => {
            if let Some(message) = message::decode::<message::RejectionMsg>(body) {
                drop(message.rejection.challenge());
            }
            message::reencode::<message::RejectionMsg>(body)
        }
        7 => {
            if let Some(request) = message::decode::<message::AttestOrderMsg>(body) {
                attest_order(&request.order)?;
            }
            message::reencode::<message::AttestOrderMsg>(body)
        }
        _ => {
            if let Some(news) = message::decode::<PreprocessMsg>(body) {
                hear(news)?;
            }
            message::reencode::<PreprocessMsg>(body)
        }
    };
    match again {
        Some(bytes) if bytes != body => finding("a message reads back differently"),
        _ => Ok(()),
    }
}

/// An order that passes its check makes a setup that no backend trips over.
fn reshare_order(order: &ReshareOrder) -> Result<(), Finding> {
    if order.check().is_err() {
        return Ok(());
    }
    let parties = order.parties();
    if parties.len() < order.new.holders.len() {
        return finding("a new holder is no party");
    }
    drop(order.statement());
    Ok(())
}

/// No address of an order made up by nobody is the one below a key of ours, and no text has more lines
/// than its fields.
fn attest_order(order: &AttestOrder) -> Result<(), Finding> {
    for statement in order.statements().take(MAX_ADDRESSES) {
        if statement.check_form().is_ok() && statement.text().lines().count() != 9 {
            return finding("a statement can be read in two ways");
        }
    }
    Ok(())
}

/// A peer's news of its nonces: what cannot be read is dropped, what can be is taken out once.
fn hear(news: PreprocessMsg) -> Result<(), Finding> {
    let PreprocessMsg::Made { of, floor, nonces } = news else {
        return Ok(());
    };
    let (root, epoch) = of;
    let of = ShareEpoch { root, epoch };
    let (peers, peer) = (PeerNonces::default(), NodeId([2; 32]));
    let ids: Vec<u64> = nonces.iter().map(|(id, _)| *id).collect();
    peers.heard(of.clone(), peer, floor, nonces);
    while peers.parse_some(&of, peer) {}
    for id in ids {
        let first = peers.take(&of, peer, &[id]);
        if first.is_some() && peers.take(&of, peer, &[id]).is_some() {
            return finding("commitments are given out twice");
        }
    }
    Ok(())
}
