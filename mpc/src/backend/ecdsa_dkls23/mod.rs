//! Threshold ECDSA on secp256k1: DKLs23 (Doerner, Kondi, Lee, shelat, eprint 2023/765), by the
//! dkls23 crate. That crate is not audited.
//!
//! Key generation, four rounds, every message sealed: (1) polynomial fragments; (2) commitments;
//! (3) proofs and openings, after everyone's commitments; (4) hash of everything that should
//! be the same for all, and of the outcome.
//!
//! A new generation of shares, eight rounds: the four of [`super::reshare`], which give each new
//! holder its share without the state for signing, then the crate's complete refresh among the new
//! holders, which makes that state (and other shares again), as key generation does: (5) fragments,
//! (6) commitments, (7) proofs and openings, (8) hash of the outcome. Shares are plain Shamir shares;
//! what joins the two is ours, and as little audited as the crate.
//!
//! Signing, three rounds: two between each pair, sealed, and one to the collector. The state
//! between rounds is used once and is never stored. The crate draws its own randomness from the
//! operating system.

mod keygen;
mod resharing;
mod sign;

use std::{collections::BTreeMap, sync::Arc};

use covault_core::fault::Fault;
use dkls23::protocols::{
    Abort as DklsAbort, AbortKind, AbortReason, PartiesMessage, Party, PartyIndex, PublicKeyPackage,
};
use k256::{Secp256k1, elliptic_curve::sec1::ToSec1Point as _};
use zeroize::Zeroizing;

use super::{
    Abort, Backend, KeyShare, KeygenSetup, PlainShare, ReshareSetup, Session, Signer, SignerIndex,
    check_keygen, reshare, round_collector::encode,
};
use keygen::DklsKeygen;
use resharing::DklsResharing;
use sign::DklsSigner;

/// Version of the stored share.
const SHARE_VERSION: u8 = 1;

/// The backend.
pub(super) struct Dkls23;

impl Backend for Dkls23 {
    fn keygen(&self, setup: KeygenSetup) -> Result<Box<dyn Session<KeyShare>>, Fault> {
        check_keygen(&setup)?;
        Ok(Box::new(DklsKeygen::new(setup)?))
    }

    fn reshare(
        &self,
        setup: ReshareSetup,
        share: Option<PlainShare>,
    ) -> Result<Box<dyn Session<Option<KeyShare>>>, Fault> {
        reshare::check(&setup, share.as_ref())?;
        Ok(Box::new(DklsResharing::new(setup, share)?))
    }

    fn plain(&self, share: &KeyShare) -> Result<PlainShare, Fault> {
        let (party, package) = load(share)?;
        let mut verifying = BTreeMap::new();
        for index in 1..=party.parameters.share_count {
            let place = PartyIndex::new(index).map_err(Fault::bug)?;
            if let Some(point) = package.verifying_share(place) {
                verifying.insert(index, point.to_sec1_point(true).as_bytes().to_vec());
            }
        }
        Ok(PlainShare {
            root: share.root.clone(),
            index: party.party_index.as_u8(),
            secret: Zeroizing::new(party.poly_point.to_bytes().into()),
            verifying,
        })
    }

    fn open(&self, share: &KeyShare) -> Result<Arc<dyn Signer>, Fault> {
        let (party, _) = load(share)?;
        Ok(Arc::new(DklsSigner::new(party)))
    }
}

/// A stored share: the version, then party and public key package in BCS.
fn load(share: &KeyShare) -> Result<(Party<Secp256k1>, PublicKeyPackage<Secp256k1>), Fault> {
    let (version, stored) = share
        .secret
        .split_first()
        .ok_or_else(|| Fault::bug("an ECDSA share is empty"))?;
    if *version != SHARE_VERSION {
        return Err(Fault::bug("an ECDSA share has an unknown version"));
    }
    bcs::from_bytes(stored).map_err(|_| Fault::bug("an ECDSA share is damaged"))
}

/// As [`load`] reads it.
fn store(
    party: &Party<Secp256k1>,
    package: &PublicKeyPackage<Secp256k1>,
) -> Result<Zeroizing<Vec<u8>>, Abort> {
    let stored = encode(&(party, package))?;
    let mut secret = Zeroizing::new(Vec::with_capacity(stored.len().saturating_add(1)));
    secret.push(SHARE_VERSION);
    secret.extend_from_slice(&stored);
    Ok(secret)
}

/// Before each step: the crate draws its own randomness, from a generator that is in memory.
fn renew() -> Result<(), Abort> {
    match crate::entropy::renew_thread_generator() {
        true => Ok(()),
        false => Err(Abort::new("the operating system gives no randomness")),
    }
}

fn party_index(index: SignerIndex) -> Result<PartyIndex, Abort> {
    PartyIndex::new(index).map_err(|_| Abort::new("no such index"))
}

/// Refuses a message that says it is of others than its sender and us.
fn between(from: SignerIndex, me: SignerIndex, parties: &PartiesMessage) -> Result<(), Abort> {
    if parties.sender.as_u8() == from && parties.receiver.as_u8() == me {
        return Ok(());
    }
    Err(Abort::blame(from, "spoke for or to another party"))
}

/// The protocol cannot always name who spoilt a step; with one other party, there is no question.
fn blame_only(mut abort: Abort, peers: &[SignerIndex]) -> Abort {
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
        panicked: false,
    }
}
