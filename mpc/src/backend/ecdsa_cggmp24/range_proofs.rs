//! The range proofs of signing, verified here.
//!
//! Each signer proves that what it encrypts in round 1 is small: that of its nonce share (psi 0) and
//! that of its mask (psi 1). Without these proofs one dishonest signer learns the others' shares
//! from how the products turn out. cggmp24 0.7.0-alpha.3 does not hold anyone to them: its closure
//! (`signing.rs`, "Verify psi0, psi1 proofs") leaves with `.err()?` when the first proof is *right*,
//! so a signer is blamed only when both are wrong. So each is verified here, by the same function
//! of paillier-zk, before round 2 is fed to the protocol.

use std::collections::BTreeMap;

use cggmp24::{
    ExecutionId, KeyShare as Share,
    fast_paillier::EncryptionKey,
    security_level::SecurityLevel as _,
    signing::msg::{Msg, MsgRound1a, MsgRound1b},
};
use paillier_zk::paillier_encryption_in_range_with_el_gamal as range;
use sha2::Sha256;

use super::{Secp256k1, SecurityLevel128};

/// What the crate binds these proofs to, with its tag and its field names.
#[derive(udigest::Digestable)]
#[udigest(tag = "dfns.cggmp24.signing.proof_enc")]
struct ProofBinding<'a> {
    sid: ExecutionId<'a>,
    prover: u16,
    num: u8,
}

/// The proofs of one session. Parties are named by their places among its signers.
pub(super) struct RangeProofs {
    sid: [u8; 32],
    /// Our parameters, under which all prove.
    ours: range::Aux,
    keys: Vec<EncryptionKey>,
    first: BTreeMap<u16, MsgRound1a<Secp256k1>>,
    second: BTreeMap<u16, MsgRound1b<Secp256k1>>,
}

impl RangeProofs {
    /// `signers` are the places that the signers had at key generation. `None` when the share does
    /// not know one.
    pub(super) fn new(
        sid: [u8; 32],
        share: &Share<Secp256k1, SecurityLevel128>,
        signers: &[u16],
    ) -> Option<Self> {
        let ours = share.aux.pedersen_params.get(usize::from(share.core.i))?;
        let keys = signers
            .iter()
            .map(|place| {
                let number = share.aux.N.get(usize::from(*place))?;
                Some(EncryptionKey::from_n(number.clone()))
            })
            .collect::<Option<_>>()?;
        Some(Self {
            sid,
            ours: ours.into(),
            keys,
            first: BTreeMap::new(),
            second: BTreeMap::new(),
        })
    }

    /// Takes note of a message; false when it completes what is proven and a proof is wrong.
    pub(super) fn hold(&mut self, from: u16, msg: &Msg<Secp256k1, Sha256>) -> bool {
        match msg {
            Msg::Round1a(first) => drop(self.first.insert(from, first.clone())),
            Msg::Round1b(second) => drop(self.second.insert(from, second.clone())),
            _ => return true,
        }
        let (Some(first), Some(second)) = (self.first.get(&from), self.second.get(&from)) else {
            return true;
        };
        let Some(key) = self.keys.get(usize::from(from)) else {
            return false;
        };
        let security = range::SecurityParams {
            l: SecurityLevel128::ELL,
            epsilon: SecurityLevel128::EPSILON,
        };
        [
            (0, &first.K, &first.A1, &first.A2, &second.psi0),
            (1, &first.G, &first.B1, &first.B2, &second.psi1),
        ]
        .into_iter()
        .all(|(num, ciphertext, b, x, proof)| {
            let bound = ProofBinding {
                sid: ExecutionId::new(&self.sid),
                prover: from,
                num,
            };
            let data = range::Data {
                key,
                ciphertext,
                a: &first.Y,
                b,
                x,
            };
            range::non_interactive::verify::<Secp256k1, Sha256>(
                &bound, &self.ours, data, proof, &security,
            )
            .is_ok()
        })
    }
}
