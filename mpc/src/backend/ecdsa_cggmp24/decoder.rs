//! What a session does with a message before its protocol sees it, without a session: for fuzz targets.

use cggmp24::KeyShare as Share;
use zeroize::Zeroizing;

use super::{
    Secp256k1, SecurityLevel128,
    keygen::{CORE_LAST, aux_fits, aux_wire, core_wire},
    machine::{InboundMessage, read},
    place,
    range_proofs::RangeProofs,
    read_share, sign,
};
use crate::backend::{Abort, KeyShare, SignerIndex};

/// The two who talk, and the one who is not us.
const ORDER: [SignerIndex; 2] = [1, 2];
const PEER: SignerIndex = 2;

fn message(round: u16, body: &[u8]) -> InboundMessage {
    InboundMessage {
        from: PEER,
        round,
        body: Zeroizing::new(body.to_vec()),
    }
}

/// Decodes a message of key generation; of the primes' rounds, measures its numbers.
pub(crate) fn keygen(round: u16, body: &[u8]) -> Result<(), Abort> {
    let message = message(round, body);
    if round <= CORE_LAST {
        read(&core_wire(ORDER.to_vec()), &message, 1, &mut |_, _| true).map(drop)
    } else {
        let fits = &mut |_, msg: &_| aux_fits(msg);
        read(&aux_wire(ORDER.to_vec()), &message, 1, fits).map(drop)
    }
}

/// The decoder of a signing session of parties 1 and 2, as the first sees it.
pub(crate) struct SigningDecoder {
    context: [u8; 32],
    share: Share<Secp256k1, SecurityLevel128>,
}

impl SigningDecoder {
    /// `None` when the share is damaged.
    pub(crate) fn new(context: [u8; 32], share: &KeyShare) -> Option<Self> {
        let share = read_share(share).ok()?;
        Some(Self { context, share })
    }

    /// Decodes messages of one sender, as (round, body), and verifies the range proofs once all of
    /// what they are about is there. Gives what became of the last one.
    pub(crate) fn read(&self, messages: &[(u16, &[u8])]) -> Result<(), Abort> {
        let wire = sign::wire(ORDER.to_vec(), None);
        let mut range_proofs = RangeProofs::new(self.context, &self.share, &ORDER.map(place))
            .ok_or_else(|| Abort::new("the share lists no such signer"))?;
        let mut outcome = Ok(());
        for (round, body) in messages {
            let proven = &mut |from, msg: &_| range_proofs.hold(from, msg);
            outcome = read(&wire, &message(*round, body), 1, proven).map(drop);
        }
        outcome
    }
}
