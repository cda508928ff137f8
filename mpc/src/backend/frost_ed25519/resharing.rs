//! A new generation of shares.

use std::collections::BTreeMap;

use covault_core::port::Entropy;
use frost_ed25519::{
    Ed25519Sha512, VerifyingKey,
    keys::{KeyPackage, PublicKeyPackage, SigningShare, VerifyingShare},
};
use zeroize::{Zeroize as _, Zeroizing};

use super::{SHARE_VERSION, StoredShare, abort, identifier};
use crate::backend::{
    Abort, KeyShare, PlainShare, ReshareSetup, Session, SignerIndex, StepOutput,
    reshare::ReshareSession, round_collector::encode,
};

/// [`ReshareSession`], with its outcome as this backend stores it.
pub(super) struct FrostResharing {
    plain: ReshareSession<Ed25519Sha512>,
    threshold: u8,
}

crate::secrets::secret!(FrostResharing);

impl FrostResharing {
    pub(super) fn new(setup: ReshareSetup, share: Option<PlainShare>) -> Self {
        let threshold = setup.threshold;
        Self {
            plain: ReshareSession::new(setup, share),
            threshold,
        }
    }

    fn stored(
        &self,
        output: StepOutput<Option<PlainShare>>,
    ) -> Result<StepOutput<Option<KeyShare>>, Abort> {
        let done = match output.done {
            Some(Some(share)) => Some(Some(self.key_share(&share)?)),
            Some(None) => Some(None),
            None => None,
        };
        Ok(StepOutput {
            send: output.send,
            done,
        })
    }

    fn key_share(&self, share: &PlainShare) -> Result<KeyShare, Abort> {
        let failed = |error| abort(&error);
        let secret = SigningShare::deserialize(share.secret.as_slice()).map_err(failed)?;
        let verifying_key = VerifyingKey::deserialize(&share.root.public_key).map_err(failed)?;
        let mut verifying = BTreeMap::new();
        for (index, bytes) in &share.verifying {
            let point = VerifyingShare::deserialize(bytes).map_err(failed)?;
            verifying.insert(identifier(*index)?, point);
        }
        let threshold = self.threshold.into();
        let key = KeyPackage::new(
            identifier(share.index)?,
            secret,
            VerifyingShare::from(secret),
            verifying_key,
            threshold,
        );
        let public = PublicKeyPackage::new(verifying, verifying_key, Some(threshold));
        let mut stored = StoredShare {
            version: SHARE_VERSION,
            key: key.serialize().map_err(failed)?,
            public: public.serialize().map_err(failed)?,
        };
        let secret = encode(&stored);
        stored.key.zeroize();
        Ok(KeyShare {
            root: share.root.clone(),
            secret: secret?,
        })
    }
}

impl Session<Option<KeyShare>> for FrostResharing {
    fn start(&mut self, entropy: &dyn Entropy) -> Result<StepOutput<Option<KeyShare>>, Abort> {
        let output = self.plain.start(entropy)?;
        self.stored(output)
    }

    fn receive(
        &mut self,
        from: SignerIndex,
        round: u16,
        body: Zeroizing<Vec<u8>>,
    ) -> Result<StepOutput<Option<KeyShare>>, Abort> {
        let output = self.plain.receive(from, round, body)?;
        self.stored(output)
    }

    fn waiting_for(&self) -> Vec<SignerIndex> {
        self.plain.waiting_for()
    }

    fn last_round(&self) -> u16 {
        self.plain.last_round()
    }
}
