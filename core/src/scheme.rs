//! Threshold signature schemes: which protocol made a key, and signs with it.

use serde::{Deserialize, Serialize};

use crate::signature::Curve;

/// A threshold signature scheme. Chosen per vault and curve when the key is made; a key keeps its
/// scheme for life. Stored and sent by its place in this list: new ones go to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Scheme {
    /// FROST on Ed25519 (RFC 9591).
    FrostEd25519,
    /// ECDSA on secp256k1 by DKLs23 (eprint 2023/765): fast, by oblivious transfer.
    Dkls23,
    /// ECDSA on secp256k1 by CGGMP24 (eprint 2021/060): slow, by Paillier encryption; other
    /// code and other assumptions than [`Scheme::Dkls23`].
    Cggmp24,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Scheme; 3] = [Scheme::FrostEd25519, Scheme::Dkls23, Scheme::Cggmp24];

    /// The curve of its keys.
    pub fn curve(self) -> Curve {
        match self {
            Scheme::FrostEd25519 => Curve::Ed25519,
            Scheme::Dkls23 | Scheme::Cggmp24 => Curve::Secp256k1,
        }
    }

    /// A short name for logs, commands and configuration.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::FrostEd25519 => "frost-ed25519",
            Scheme::Dkls23 => "dkls23",
            Scheme::Cggmp24 => "cggmp24",
        }
    }

    /// Its place in [`Scheme::ALL`], as keys of rows have it.
    pub fn number(self) -> u8 {
        match self {
            Scheme::FrostEd25519 => 0,
            Scheme::Dkls23 => 1,
            Scheme::Cggmp24 => 2,
        }
    }

    /// The scheme of a number.
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|scheme| scheme.number() == number)
    }

    /// The scheme of a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == name)
    }

    /// Whether its keys can get a new generation of shares.
    pub fn reshares(self) -> bool {
        match self {
            Scheme::FrostEd25519 | Scheme::Dkls23 => true,
            Scheme::Cggmp24 => false,
        }
    }

    /// How many times as long as others its key generation may take. One that is given up for being
    /// slow has used up primes that take minutes to find.
    pub fn patience(self) -> u64 {
        match self {
            Scheme::FrostEd25519 | Scheme::Dkls23 => 1,
            Scheme::Cggmp24 => 4,
        }
    }

    /// What a key of this curve gets when nobody chooses.
    pub fn default_of(curve: Curve) -> Self {
        match curve {
            Curve::Secp256k1 => Scheme::Dkls23,
            Curve::Ed25519 => Scheme::FrostEd25519,
        }
    }
}
