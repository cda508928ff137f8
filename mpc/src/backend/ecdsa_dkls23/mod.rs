//! Threshold ECDSA on secp256k1: DKLs23 (Doerner, Kondi, Lee, shelat, eprint 2023/765), by the
//! dkls23 crate. That crate is not audited.
//!
//! Key generation, four rounds, every message sealed: (1) polynomial fragments; (2) commitments;
//! (3) proofs and openings, after everybody's commitments; (4) hash of everything that should
//! be the same for all, and of the outcome.
//!
//! Signing, three rounds: two between each pair, sealed, and one to the collector. The state
//! between rounds is used once and is never stored. The crate draws its own randomness from the
//! operating system.

mod keygen;
mod sign;

use std::sync::Arc;

use covault_core::fault::Fault;
use dkls23::protocols::{
    Abort as DklsAbort, AbortKind, AbortReason, PartiesMessage, Party, PartyIndex,
};
use k256::Secp256k1;

use super::{
    Abort, Backend, Index, KeyShare, KeygenSetup, PlainShare, ReshareSetup, Session, Signer,
    check_keygen,
};
use keygen::Keygen;
use sign::DklsSigner;

/// Version of the stored share.
const SHARE_VERSION: u8 = 1;

/// The backend.
pub(super) struct Dkls23;

impl Backend for Dkls23 {
    fn keygen(&self, setup: KeygenSetup) -> Result<Box<dyn Session<KeyShare>>, Fault> {
        check_keygen(&setup)?;
        Ok(Box::new(Keygen::new(setup)?))
    }

    fn reshare(
        &self,
        _setup: ReshareSetup,
        _share: Option<PlainShare>,
    ) -> Result<Box<dyn Session<Option<KeyShare>>>, Fault> {
        Err(Fault::bug("not built"))
    }

    fn plain(&self, _share: &KeyShare) -> Result<PlainShare, Fault> {
        Err(Fault::bug("not built"))
    }

    fn open(&self, share: &KeyShare) -> Result<Arc<dyn Signer>, Fault> {
        let (version, party) = share
            .secret
            .split_first()
            .ok_or_else(|| Fault::bug("an ECDSA share is empty"))?;
        if *version != SHARE_VERSION {
            return Err(Fault::bug("an ECDSA share has an unknown version"));
        }
        let party: Party<Secp256k1> =
            bcs::from_bytes(party).map_err(|_| Fault::bug("an ECDSA share is damaged"))?;
        Ok(Arc::new(DklsSigner::new(party)))
    }
}

fn party_index(index: Index) -> Result<PartyIndex, Abort> {
    PartyIndex::new(index).map_err(|_| Abort::new("no such index"))
}

/// Refuses a message that says it is of others than its sender and us.
fn between(from: Index, me: Index, parties: &PartiesMessage) -> Result<(), Abort> {
    if parties.sender.as_u8() == from && parties.receiver.as_u8() == me {
        return Ok(());
    }
    Err(Abort::blame(from, "spoke for or to another party"))
}

/// The protocol cannot always name who spoilt a step; with one other party, there is no question.
fn blame_only(mut abort: Abort, peers: &[Index]) -> Abort {
    if let ([peer], []) = (peers, abort.culprits.as_slice()) {
        abort.culprits.push(*peer);
    }
    abort
}

/// Whom the library names. A sender is named only where its message was at fault, never where
/// our own state was.
fn abort(abort: &DklsAbort) -> Abort {
    let culprit = match &abort.reason {
        AbortReason::SessionBindingMismatch { counterparty }
        | AbortReason::ProofVerificationFailed { counterparty }
        | AbortReason::CommitmentMismatch { counterparty }
        | AbortReason::TrivialInstancePoint { counterparty }
        | AbortReason::OtConsistencyCheckFailed { counterparty }
        | AbortReason::MultiplicationVerificationFailed { counterparty, .. }
        | AbortReason::GammaUInconsistency { counterparty }
        | AbortReason::ZeroShareDecommitFailed { counterparty } => Some(counterparty.as_u8()),
        AbortReason::ChainCodeCommitmentFailed { party } => Some(party.as_u8()),
        AbortReason::UnexpectedSender { sender } | AbortReason::DuplicateSender { sender } => {
            Some(sender.as_u8())
        }
        _ => None,
    }
    .filter(|culprit| *culprit != abort.index.as_u8());
    let ban = match &abort.kind {
        AbortKind::BanCounterparty(index) => vec![index.as_u8()],
        AbortKind::Recoverable => Vec::new(),
    };
    Abort {
        reason: abort.description(),
        culprits: culprit.into_iter().collect(),
        ban,
    }
}
