//! Threshold protocols behind one trait, as state machines without I/O.
//!
//! A session is fed messages whose senders are certain (the envelope was verified) and says what
//! to send. It never sees a network, a clock or another session. Sessions compute for
//! milliseconds (signing) to a second (key generation): run them on [`crate::pool`] threads.

#[cfg(feature = "cggmp24")]
mod ecdsa_cggmp24;
mod ecdsa_dkls23;
mod frost_ed25519;
mod gather;
pub mod private;
#[cfg(test)]
mod suite;

use std::sync::Arc;

use covault_core::{
    derive::{KeyPath, RootKey},
    fault::Fault,
    port::Entropy,
    scheme::Scheme,
    signature::Signature,
};
use zeroize::Zeroizing;

/// A party's place in the keygen's list of signers, counted from 1.
pub type Index = u8;

/// A message to another party of the session.
pub struct Outgoing {
    /// The recipient.
    pub to: Index,
    /// The round it belongs to, from 1.
    pub round: u16,
    /// Whether only the recipient may read it.
    pub private: bool,
    /// The content.
    pub body: Zeroizing<Vec<u8>>,
}

/// What a session wants after a step.
pub struct Turn<T> {
    /// To be sent, even when done.
    pub send: Vec<Outgoing>,
    /// The outcome, once there is one. The session is over then.
    pub done: Option<T>,
}

impl<T> Turn<T> {
    fn wait() -> Self {
        Self {
            send: Vec::new(),
            done: None,
        }
    }

    fn send(send: Vec<Outgoing>) -> Self {
        Self { send, done: None }
    }

    fn done(outcome: T) -> Self {
        Self {
            send: Vec::new(),
            done: Some(outcome),
        }
    }
}

/// Why a session ended without an outcome. It must not be fed any more, and nothing of it may
/// be used again: the next attempt starts from the first round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    /// For the log; holds no secret.
    pub reason: String,
    /// Who is to blame, where the protocol can tell.
    pub culprits: Vec<Index>,
    /// With whom no session on this key may ever be run again: they cheated in a way that
    /// leaks key material when repeated.
    pub ban: Vec<Index>,
}

impl Abort {
    fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            culprits: Vec::new(),
            ban: Vec::new(),
        }
    }

    fn blame(culprit: Index, reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            culprits: vec![culprit],
            ban: Vec::new(),
        }
    }
}

/// A run of a protocol, as one party sees it.
pub trait Session<T>: Send {
    /// The first step; once.
    ///
    /// # Errors
    /// [`Abort`].
    fn start(&mut self, entropy: &dyn Entropy) -> Result<Turn<T>, Abort>;

    /// Takes a message. The sender is certain, the content is not. Messages may come in any
    /// order; each (sender, round) comes once.
    ///
    /// # Errors
    /// [`Abort`].
    fn receive(
        &mut self,
        from: Index,
        round: u16,
        body: Zeroizing<Vec<u8>>,
    ) -> Result<Turn<T>, Abort>;

    /// Whose message is missing.
    fn waiting_for(&self) -> Vec<Index>;
}

/// Gives a set of primes that were made ahead ([`crate::primes`]), which is used up by that.
pub type PrimeSource = Box<dyn FnOnce() -> Result<Zeroizing<Vec<u8>>, Fault> + Send>;

/// The frame of a key generation.
#[derive(Clone, Debug)]
pub struct KeygenSetup {
    /// Hash of the order: binds every value to this run.
    pub context: [u8; 32],
    /// Our index.
    pub me: Index,
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

/// The frame of a signature.
#[derive(Clone, Debug)]
pub struct SignSetup {
    /// Hash of order, session, attempt and input: binds every value to this run.
    pub context: [u8; 32],
    /// Exactly threshold many indices, ours among them. The first collects: its session gives
    /// the signature, the others give none.
    pub signers: Vec<Index>,
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
}

/// A threshold signature scheme with its key generation.
pub trait Backend: Send + Sync {
    /// A key generation session.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when threshold or number of parties is impossible.
    fn keygen(&self, setup: KeygenSetup) -> Result<Box<dyn Session<KeyShare>>, Fault>;

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
        return Err(Fault::field("signers", "we are not one of them"));
    }
    Ok(())
}

/// Checks the signers of a setup against a share.
fn check_signers(setup: &SignSetup, me: Index, threshold: u8, parties: u8) -> Result<(), Fault> {
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
