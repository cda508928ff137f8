//! Threshold protocols behind one trait, as state machines without I/O.
//!
//! A session is fed messages whose senders are certain (the envelope was verified) and says what
//! to send. It never sees a network, a clock or another session. Sessions compute for
//! milliseconds (signing) to a second (key generation): run them on [`crate::pool`] threads.

#[cfg(feature = "cggmp24")]
pub(crate) mod ecdsa_cggmp24;
mod ecdsa_dkls23;
mod frost_ed25519;
pub mod private;
mod reshare;
#[cfg(test)]
mod reshare_tests;
mod round_collector;
#[cfg(test)]
mod suite;

use std::{collections::BTreeMap, sync::Arc};

use covault_core::{
    derive::{KeyPath, RootKey},
    fault::Fault,
    port::Entropy,
    scheme::Scheme,
    signature::Signature,
};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

pub use frost_ed25519::Commitments;

/// A party's place in the keygen's list of signers, counted from 1.
pub type SignerIndex = u8;

/// A message to another party of the session.
pub struct OutgoingMessage {
    /// The recipient.
    pub to: SignerIndex,
    /// The round it belongs to, from 1.
    pub round: u16,
    /// Whether only the recipient may read it.
    pub private: bool,
    /// The content.
    pub body: Zeroizing<Vec<u8>>,
}

crate::secrets::secret!(OutgoingMessage { body });

/// What a session wants after a step.
pub struct StepOutput<T> {
    /// To be sent, even when done.
    pub send: Vec<OutgoingMessage>,
    /// The outcome, once there is one. The session is over then.
    pub done: Option<T>,
}

impl<T> StepOutput<T> {
    fn wait() -> Self {
        Self {
            send: Vec::new(),
            done: None,
        }
    }

    fn send(send: Vec<OutgoingMessage>) -> Self {
        Self { send, done: None }
    }

    fn done(outcome: T) -> Self {
        Self {
            send: Vec::new(),
            done: Some(outcome),
        }
    }
}

/// Why a session ended without an outcome. It must no longer be fed, and nothing of it may
/// be used again: the next attempt starts from the first round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    /// For the log; holds no secret.
    pub reason: String,
    /// Who is to blame, where the protocol can tell.
    pub culprits: Vec<SignerIndex>,
    /// With whom no session on this key may ever be run again: they cheated in a way that
    /// leaks key material when repeated.
    pub ban: Vec<SignerIndex>,
    /// The protocol panicked: a defect of its code, whatever the peers sent.
    pub panicked: bool,
}

impl Abort {
    fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            culprits: Vec::new(),
            ban: Vec::new(),
            panicked: false,
        }
    }

    fn blame(culprit: SignerIndex, reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            culprits: vec![culprit],
            ban: Vec::new(),
            panicked: false,
        }
    }

    /// Of a protocol that panicked.
    #[cfg(feature = "cggmp24")]
    fn panicked() -> Self {
        Self {
            panicked: true,
            ..Self::new("the protocol panicked")
        }
    }
}

/// A run of a protocol, as one party sees it.
pub trait Session<T>: Send {
    /// The first step; once.
    ///
    /// # Errors
    /// [`Abort`].
    fn start(&mut self, entropy: &dyn Entropy) -> Result<StepOutput<T>, Abort>;

    /// Takes a message. The sender is certain, the content is not. Messages may come in any
    /// order; each (sender, round) comes once.
    ///
    /// # Errors
    /// [`Abort`].
    fn receive(
        &mut self,
        from: SignerIndex,
        round: u16,
        body: Zeroizing<Vec<u8>>,
    ) -> Result<StepOutput<T>, Abort>;

    /// Whose message is missing.
    fn waiting_for(&self) -> Vec<SignerIndex>;

    /// The last round that has messages.
    fn last_round(&self) -> u16;
}

/// Gives a set of primes that were made ahead ([`crate::primes`]), which is used up by that.
pub type PrimeSource = Box<dyn FnOnce() -> Result<Zeroizing<Vec<u8>>, Fault> + Send>;

/// The frame of a key generation.
#[derive(Clone, Debug)]
pub struct KeygenSetup {
    /// Hash of the order: binds every value to this run.
    pub context: [u8; 32],
    /// Our index.
    pub me: SignerIndex,
    /// Signers needed; 2 or more.
    pub threshold: u8,
    /// Number of parties; their indices are 1 to this.
    pub parties: u8,
}

/// A share as it is stored. Never printed; zeroized on drop.
pub struct KeyShare {
    /// The key that it is a share of.
    pub root: RootKey,
    /// The backend's own encoding of the share.
    pub secret: Zeroizing<Vec<u8>>,
}

crate::secrets::secret!(KeyShare { secret });

/// The frame of a signature.
#[derive(Clone, Debug)]
pub struct SignSetup {
    /// Hash of order, session, attempt and input: binds every value to this run.
    pub context: [u8; 32],
    /// Exactly threshold many indices, ours among them. The first collects: its session gives
    /// the signature, the others give none.
    pub signers: Vec<SignerIndex>,
    /// The child key that signs.
    pub path: KeyPath,
    /// What is handed to the algorithm: the 32-byte digest for ECDSA, the message for Ed25519.
    pub message: Vec<u8>,
}

/// A loaded share, ready to sign.
pub trait Signer: Send + Sync {
    /// A signing session.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when the setup does not fit the share.
    fn sign(&self, setup: SignSetup) -> Result<Box<dyn Session<Option<Signature>>>, Fault>;

    /// Whether nonces can be made ahead of their use.
    fn makes_nonces(&self) -> bool {
        false
    }

    /// Makes a nonce ahead of its use; `None` when the scheme cannot. It signs for every child.
    fn make_nonce(&self, _entropy: &dyn Entropy) -> Option<Result<PreprocessedNonce, Fault>> {
        None
    }

    /// A signing session without the round of commitments: `own` is a nonce of
    /// [`Signer::make_nonce`] that nobody will ever be given again, and `peers` has the
    /// commitments of every other signer.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when the setup does not fit the share or the
    /// nonces, or the scheme has none.
    fn sign_preprocessed(
        &self,
        _setup: SignSetup,
        _own: PreprocessedNonce,
        _peers: BTreeMap<SignerIndex, Arc<Commitments>>,
    ) -> Result<Box<dyn Session<Option<Signature>>>, Fault> {
        Err(Fault::field(
            "nonces",
            "this scheme does not preprocess nonces",
        ))
    }
}

/// A signing nonce made ahead. Good for one signature: a second one gives the share away. Never
/// printed; zeroized on drop.
pub struct PreprocessedNonce {
    /// What peers are told.
    pub commitments: Vec<u8>,
    /// The backend's own encoding of the secret.
    pub secret: Zeroizing<Vec<u8>>,
}

crate::secrets::secret!(PreprocessedNonce { secret });

/// The share of a key without what a scheme keeps beside it: a point of a polynomial whose value
/// at 0 is the private key (Shamir). Never printed; zeroized on drop.
pub struct PlainShare {
    /// The key that it is a share of.
    pub root: RootKey,
    /// Our index, the place of the point.
    pub index: SignerIndex,
    /// The value: 32 bytes, big-endian on secp256k1, little-endian on Ed25519.
    pub secret: Zeroizing<[u8; 32]>,
    /// The public counterparts of all holders' shares, by index, where known: 33 bytes compressed
    /// (secp256k1), 32 bytes (Ed25519).
    pub verifying: BTreeMap<SignerIndex, Vec<u8>>,
}

crate::secrets::secret!(PlainShare { secret });

/// As it is stored; the root key is stored beside it.
#[derive(Serialize, Deserialize)]
struct StoredPlainShare {
    version: u8,
    index: SignerIndex,
    secret: [u8; 32],
    verifying: BTreeMap<SignerIndex, Vec<u8>>,
}

crate::secrets::secret_form!(StoredPlainShare);

impl Drop for StoredPlainShare {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

/// Version of a stored plain share.
const PLAIN_VERSION: u8 = 1;

impl PlainShare {
    /// The share in bytes, without the root key. BCS, with a version.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when it cannot be encoded.
    pub fn encode(&self) -> Result<Zeroizing<Vec<u8>>, Fault> {
        let stored = StoredPlainShare {
            version: PLAIN_VERSION,
            index: self.index,
            secret: *self.secret,
            verifying: self.verifying.clone(),
        };
        round_collector::encode(&stored).map_err(|_| Fault::bug("a share cannot be encoded"))
    }

    /// Reads what [`PlainShare::encode`] gave for a share of `root`.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when it is damaged.
    pub fn decode(root: &RootKey, bytes: &[u8]) -> Result<Self, Fault> {
        let damaged = || Fault::bug("a plain share is damaged");
        let mut stored: StoredPlainShare = bcs::from_bytes(bytes).map_err(|_| damaged())?;
        if stored.version != PLAIN_VERSION {
            return Err(damaged());
        }
        Ok(Self {
            root: root.clone(),
            index: stored.index,
            secret: Zeroizing::new(stored.secret),
            verifying: std::mem::take(&mut stored.verifying),
        })
    }
}

/// An old holder that deals its share out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dealer {
    /// Its index in this run.
    pub party: SignerIndex,
    /// The index of its old share.
    pub old: SignerIndex,
}

/// The frame of a new generation of shares.
#[derive(Clone, Debug)]
pub struct ReshareSetup {
    /// Hash of the order: binds every value to this run.
    pub context: [u8; 32],
    /// Our index in this run: new holders have 1 to `holders`, dealers that leave come after.
    pub me: SignerIndex,
    /// The root public key, which stays.
    pub root_public_key: Vec<u8>,
    /// New holders; their indices in the new generation are 1 to this.
    pub holders: u8,
    /// Signers needed in the new generation; 2 or more.
    pub threshold: u8,
    /// Exactly as many as the old threshold.
    pub dealers: Vec<Dealer>,
}

/// A threshold signature scheme with its key generation.
pub trait Backend: Send + Sync {
    /// A key generation session.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when threshold or number of parties is impossible.
    fn keygen(&self, setup: KeygenSetup) -> Result<Box<dyn Session<KeyShare>>, Fault>;

    /// A session that makes a new generation of shares. `share` is ours when we deal. The outcome
    /// is the new share, or `None` for a dealer that leaves.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when the setup is impossible, or keys of this scheme
    /// have no refresh.
    fn reshare(
        &self,
        setup: ReshareSetup,
        share: Option<PlainShare>,
    ) -> Result<Box<dyn Session<Option<KeyShare>>>, Fault>;

    /// The plain share in a stored one.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when it is damaged, and
    /// [`covault_core::fault::Class::Invalid`] when shares of this scheme have no such form.
    fn plain(&self, share: &KeyShare) -> Result<PlainShare, Fault>;

    /// Loads a share.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when it is damaged.
    fn open(&self, share: &KeyShare) -> Result<Arc<dyn Signer>, Fault>;

    /// Whether every party of a key generation needs primes that were made ahead.
    fn needs_primes(&self) -> bool {
        false
    }

    /// As [`Backend::keygen`], for backends that need primes.
    ///
    /// # Errors
    /// As [`Backend::keygen`].
    fn keygen_with(
        &self,
        setup: KeygenSetup,
        primes: PrimeSource,
    ) -> Result<Box<dyn Session<KeyShare>>, Fault> {
        drop(primes);
        self.keygen(setup)
    }
}

/// The backend of a scheme.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] when this build does not have it.
pub fn of(scheme: Scheme) -> Result<&'static dyn Backend, Fault> {
    match scheme {
        Scheme::FrostEd25519 => Ok(&frost_ed25519::Frost),
        Scheme::Dkls23 => Ok(&ecdsa_dkls23::Dkls23),
        #[cfg(feature = "cggmp24")]
        Scheme::Cggmp24 => Ok(&ecdsa_cggmp24::Cggmp24),
        #[cfg(not(feature = "cggmp24"))]
        Scheme::Cggmp24 => Err(Fault::field("scheme", MISSING)),
    }
}

/// What is said of a backend that this build lacks.
pub const MISSING: &str = "cggmp24 is not in this build of Covault: build it with `cargo build \
                           --release --features cggmp24`";

/// Makes the primes that one node needs for one key of a scheme that takes some; a minute or more
/// of one core. `made` hears how many of four there are, before each and at the end.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] when this build has no such scheme.
#[cfg_attr(not(feature = "cggmp24"), allow(unused_variables))]
pub fn make_primes(
    entropy: &dyn Entropy,
    made: impl FnMut(usize),
) -> Result<Zeroizing<Vec<u8>>, Fault> {
    #[cfg(feature = "cggmp24")]
    return ecdsa_cggmp24::make_primes(entropy, made);
    #[cfg(not(feature = "cggmp24"))]
    return Err(Fault::field("scheme", MISSING));
}

fn check_keygen(setup: &KeygenSetup) -> Result<(), Fault> {
    if setup.threshold < 2 || setup.threshold > setup.parties {
        return Err(Fault::field(
            "threshold",
            "must be 2 or more, and at most the number of signers",
        ));
    }
    if setup.me == 0 || setup.me > setup.parties {
        return Err(Fault::field("signers", "must include this node"));
    }
    Ok(())
}

/// Checks the signers of a setup against a share.
fn check_signers(
    setup: &SignSetup,
    me: SignerIndex,
    threshold: u8,
    parties: u8,
) -> Result<(), Fault> {
    let mut sorted = setup.signers.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() != setup.signers.len() || sorted.len() != usize::from(threshold) {
        return Err(Fault::field(
            "signers",
            format!("must be exactly {threshold} different nodes"),
        ));
    }
    if sorted.iter().any(|index| *index == 0 || *index > parties) || !sorted.contains(&me) {
        return Err(Fault::field("signers", "must hold shares, and be asked"));
    }
    Ok(())
}
