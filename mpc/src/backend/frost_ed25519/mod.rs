//! FROST on Ed25519 (RFC 9591) with its distributed key generation (Komlo and Goldberg,
//! eprint 2020/852), by the frost-ed25519 crate.
//!
//! Key generation, four rounds: (1) package and commitment to a part of the chain code; (2) hash
//! of everyone's first message, so that a sender who told different peers different things is
//! noticed before any secret leaves; (3) secret package, sealed, and the part of the chain code;
//! (4) hash of the outcome.
//!
//! Signing, two rounds: commitments to all, signature shares to the collector. Nonces live in
//! the session and die with it. With commitments that were exchanged ahead ([`crate::nonces`])
//! only the second round is left. RFC 9591 allows that (section 5.1), and its binding factor covers
//! message, all commitments and the key that signs, so that a nonce committed to under the root
//! share may sign for any child.

mod keygen;
mod preprocess;
mod resharing;
mod sign;

use std::{collections::BTreeMap, sync::Arc};

use covault_core::fault::Fault;
use frost_ed25519::{
    Error, Identifier,
    keys::{KeyPackage, PublicKeyPackage},
};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

use super::{
    Abort, Backend, KeyShare, KeygenSetup, PlainShare, ReshareSetup, Session, Signer, SignerIndex,
    check_keygen, reshare,
};
use keygen::FrostKeygen;
pub use preprocess::Commitments;
use resharing::FrostResharing;
use sign::{FrostSigner, LoadedShare};

/// Version of the stored share.
const SHARE_VERSION: u8 = 1;

/// The backend.
pub(in crate::backend) struct Frost;

impl Backend for Frost {
    fn keygen(&self, setup: KeygenSetup) -> Result<Box<dyn Session<KeyShare>>, Fault> {
        check_keygen(&setup)?;
        Ok(Box::new(FrostKeygen::new(setup)))
    }

    fn reshare(
        &self,
        setup: ReshareSetup,
        share: Option<PlainShare>,
    ) -> Result<Box<dyn Session<Option<KeyShare>>>, Fault> {
        reshare::check(&setup, share.as_ref())?;
        Ok(Box::new(FrostResharing::new(setup, share)))
    }

    fn plain(&self, share: &KeyShare) -> Result<PlainShare, Fault> {
        let (key, public, index) = load(share)?;
        let damaged = |_| Fault::bug("a FROST share is damaged");
        let serialized = Zeroizing::new(key.signing_share().serialize());
        let mut secret = Zeroizing::new([0; 32]);
        if serialized.len() != secret.len() {
            return Err(Fault::bug("a FROST share is not of 32 bytes"));
        }
        secret.copy_from_slice(&serialized);
        let mut verifying = BTreeMap::new();
        for (identifier, share) in public.verifying_shares() {
            let index = index_of(identifier, public.max_signers())
                .ok_or_else(|| Fault::bug("a FROST share has no index"))?;
            verifying.insert(index, share.serialize().map_err(damaged)?);
        }
        Ok(PlainShare {
            root: share.root.clone(),
            index,
            secret,
            verifying,
        })
    }

    fn open(&self, share: &KeyShare) -> Result<Arc<dyn Signer>, Fault> {
        let (key, public, me) = load(share)?;
        Ok(Arc::new(FrostSigner::new(LoadedShare {
            root: share.root.clone(),
            key,
            public,
            me,
        })))
    }
}

/// The packages of a stored share, and its index.
fn load(share: &KeyShare) -> Result<(KeyPackage, PublicKeyPackage, SignerIndex), Fault> {
    let damaged = |_| Fault::bug("a FROST share is damaged");
    let stored: StoredShare =
        bcs::from_bytes(&share.secret).map_err(|_| Fault::bug("a FROST share is damaged"))?;
    if stored.version != SHARE_VERSION {
        return Err(Fault::bug("a FROST share has an unknown version"));
    }
    let key = KeyPackage::deserialize(&stored.key).map_err(damaged)?;
    let public = PublicKeyPackage::deserialize(&stored.public).map_err(damaged)?;
    let me = index_of(key.identifier(), public.max_signers())
        .ok_or_else(|| Fault::bug("a FROST share has no index"))?;
    Ok((key, public, me))
}

#[derive(Serialize, Deserialize)]
struct StoredShare {
    version: u8,
    key: Vec<u8>,
    public: Vec<u8>,
}

crate::secrets::secret_form!(StoredShare);

impl Drop for StoredShare {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

fn identifier(index: SignerIndex) -> Result<Identifier, Abort> {
    Identifier::try_from(u16::from(index)).map_err(|_| Abort::new("no such index"))
}

fn index_of(identifier: &Identifier, parties: u16) -> Option<SignerIndex> {
    (1..=parties)
        .find(|index| Identifier::try_from(*index).as_ref() == Ok(identifier))
        .and_then(|index| SignerIndex::try_from(index).ok())
}

/// Blames those whom the library names.
fn abort(error: &Error) -> Abort {
    let culprits = error
        .culprits()
        .iter()
        .filter_map(|id| index_of(id, SignerIndex::MAX.into()))
        .collect();
    Abort {
        reason: error.to_string(),
        culprits,
        ban: Vec::new(),
        panicked: false,
    }
}
