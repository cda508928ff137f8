//! Signing sessions, and the loaded share that begins them.

use std::sync::Arc;

use cggmp24::{
    ExecutionId, KeyShare as Share, PrehashedDataToSign,
    generic_ec::Scalar,
    key_share::AnyKeyShare as _,
    signing::msg::{self, Msg},
};
use covault_core::{derive::RootKey, fault::Fault, signature::Signature};
use k256::ecdsa::{RecoveryId, VerifyingKey};
use rand_chacha_03::ChaCha20Rng;
use sha2::Sha256;

use super::{
    Secp256k1, SecurityLevel128, index,
    machine::{ThreadChannel, ThreadedSession, WireFormat, drive},
    place,
    range_proofs::RangeProofs,
};
use crate::backend::{Abort, Session, SignSetup, Signer, SignerIndex, check_signers};

pub(super) type SignMsg = Msg<Secp256k1, Sha256>;

/// Rounds of signing.
const LAST: u16 = 6;
/// Bytes of a message, at most; round 4 has the longest, of some 20,000.
const MAX_BODY: usize = 64 << 10;

/// A loaded share.
pub(super) struct Cggmp24Signer {
    root: RootKey,
    share: Arc<Share<Secp256k1, SecurityLevel128>>,
    me: SignerIndex,
    threshold: SignerIndex,
    parties: SignerIndex,
}

crate::secrets::secret!(Cggmp24Signer);

fn round(msg: &SignMsg) -> u16 {
    match msg {
        Msg::Round1a(_) => 1,
        Msg::Round1b(_) => 2,
        Msg::ReliabilityCheck(_) => 3,
        Msg::Round2(_) => 4,
        Msg::Round3(_) => 5,
        Msg::Round4(msg::MsgRound4 { .. }) => LAST,
    }
}

/// How the messages of signing look.
pub(super) fn wire(order: Vec<SignerIndex>, collector: Option<SignerIndex>) -> WireFormat<SignMsg> {
    WireFormat {
        order,
        round,
        to_one: &[2, 4],
        last: LAST,
        max_bytes: |_| MAX_BODY,
        collector,
    }
}

impl Cggmp24Signer {
    pub(super) fn new(
        root: RootKey,
        share: Share<Secp256k1, SecurityLevel128>,
    ) -> Result<Self, Fault> {
        let count = |number: u16| SignerIndex::try_from(number).map_err(Fault::bug);
        let public_key = share.shared_public_key().to_bytes(true);
        if root.public_key != public_key.as_bytes()
            || share.core.chain_code != Some(root.chain_code)
        {
            return Err(Fault::bug("a cggmp24 share is of another key"));
        }
        Ok(Self {
            me: index(share.core.i)?,
            threshold: count(share.min_signers())?,
            parties: count(share.n())?,
            root,
            share: Arc::new(share),
        })
    }
}

impl Signer for Cggmp24Signer {
    fn sign(&self, setup: SignSetup) -> Result<Box<dyn Session<Option<Signature>>>, Fault> {
        check_signers(&setup, self.me, self.threshold, self.parties)?;
        let digest: [u8; 32] = setup
            .message
            .as_slice()
            .try_into()
            .map_err(|_| Fault::field("message", "must be a digest of 32 bytes"))?;
        let child = self.root.child(&setup.path)?;
        let verifier = VerifyingKey::from_sec1_bytes(&child.public_key).map_err(Fault::bug)?;
        let collector = setup.signers.first().copied();
        // The same order for everyone, no matter who collects.
        let mut order = setup.signers.clone();
        order.sort_unstable();
        let peers = order
            .iter()
            .copied()
            .filter(|index| *index != self.me)
            .collect();
        // The last round is the collector's; a signature may be published, its shares not.
        let last = if collector == Some(self.me) {
            LAST
        } else {
            LAST - 1
        };
        let job = SigningJob {
            share: Arc::clone(&self.share),
            me: self.me,
            order,
            collector,
            path: setup.path.indices().to_vec(),
            context: setup.context,
            digest,
            verifier,
        };
        Ok(Box::new(ThreadedSession::new(
            self.me,
            peers,
            (1..=last).collect(),
            move |rng, link| job.run(rng, link),
        )))
    }
}

struct SigningJob {
    share: Arc<Share<Secp256k1, SecurityLevel128>>,
    me: SignerIndex,
    order: Vec<SignerIndex>,
    collector: Option<SignerIndex>,
    path: Vec<u32>,
    context: [u8; 32],
    digest: [u8; 32],
    verifier: VerifyingKey,
}

crate::secrets::secret!(SigningJob);

impl SigningJob {
    fn run(
        self,
        rng: &mut ChaCha20Rng,
        link: &mut ThreadChannel<Option<Signature>>,
    ) -> Result<Option<Signature>, Abort> {
        let place_of_me = self
            .order
            .iter()
            .position(|index| *index == self.me)
            .and_then(|at| u16::try_from(at).ok())
            .ok_or_else(|| Abort::new("we are not one of the signers"))?;
        let at_keygen: Vec<u16> = self.order.iter().map(|index| place(*index)).collect();
        let mut range_proofs = RangeProofs::new(self.context, &self.share, &at_keygen)
            .ok_or_else(|| Abort::new("the share lists no such signer"))?;
        let data = PrehashedDataToSign::from_scalar(Scalar::<Secp256k1>::from_be_bytes_mod_order(
            self.digest,
        ));
        let wire = wire(self.order, self.collector);
        let machine = cggmp24::signing(
            ExecutionId::new(&self.context),
            place_of_me,
            &at_keygen,
            &self.share,
        )
        .enforce_reliable_broadcast(true)
        .set_derivation_path(self.path)
        .map_err(|_| Abort::new("the path cannot be derived"))?
        .sign_sync(rng, &data);
        let proven = |from, msg: &SignMsg| range_proofs.hold(from, msg);
        let Some(signature) = drive(machine, &wire, link, proven)? else {
            return Ok(None);
        };
        let (mut r, mut s) = ([0; 32], [0; 32]);
        r.copy_from_slice(&signature.r.to_be_bytes());
        s.copy_from_slice(&signature.s.to_be_bytes());
        // The crate gives a low s (BIP-62), and no recovery bit. Finding it verifies, too.
        let recovery = k256::ecdsa::Signature::from_scalars(r, s)
            .and_then(|plain| {
                RecoveryId::trial_recovery_from_prehash(&self.verifier, &self.digest, &plain)
            })
            .map_err(|_| Abort::new("the signature is not of this key"))?;
        if recovery.is_x_reduced() {
            // R.x was above the group order (one in 2^127): r would not show it.
            return Err(Abort::new("the nonce point cannot be recovered"));
        }
        Ok(Some(Signature::Ecdsa {
            r,
            s,
            y_parity: recovery.is_y_odd().into(),
        }))
    }
}
