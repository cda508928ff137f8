//! Threshold ECDSA on secp256k1: CGGMP24 (Canetti, Gennaro, Goldfeder, Makriyannis, Peled, eprint
//! 2021/060), by the cggmp24 crate. Kudelski audited an ancestor of it. It rests on Paillier
//! encryption and strong RSA where DKLs23 rests on oblivious transfer, shares no code with it, and
//! is some 300 times as slow: for keys that are rarely used.
//!
//! Key generation, ten rounds: (1) commitments; (2) their echo; (3) openings; (4) fragments of the
//! share, to each party its own; (5) proofs; then the Paillier keys and parameters of everyone:
//! (6) commitments; (7) their echo; (8) openings and proofs; (9) proofs; (10) hash of the outcome.
//! Each node needs safe primes for it that were made ahead ([`crate::primes`]).
//!
//! Signing, six rounds: (1) encrypted nonce shares; (2) proofs about them; (3) echo of round 1;
//! (4) products under encryption; (5) shares of the nonce's inverse; (6) signature shares, to the
//! collector. There are no presignatures: the message is fixed before round 1. Child keys are the
//! crate's BIP-32 shift. Shares cannot be refreshed.
//!
//! The crate does not compute in constant time, and does not clear its big integers.

#[cfg(feature = "simulation")]
pub(crate) mod decoder;
mod keygen;
mod machine;
mod range_proofs;
mod sign;

use std::{collections::BTreeMap, sync::Arc};

use cggmp24::{
    generic_ec::Scalar,
    key_share::{DirtyKeyShare, Validate as _},
};
use covault_core::{fault::Fault, port::Entropy};
use zeroize::Zeroizing;

use super::{
    Abort, Backend, KeyShare, KeygenSetup, PlainShare, PrimeSource, ReshareSetup, Session, Signer,
    SignerIndex, check_keygen,
};
use crate::entropy::EntropyRng;

/// Version of the stored share.
const SHARE_VERSION: u8 = 1;
/// Version of a set of primes.
const PRIMES_VERSION: u8 = 1;
/// Bytes that a stored share stays below; its buffer never grows.
const MAX_SHARE: usize = 1 << 20;

type Secp256k1 = cggmp24::supported_curves::Secp256k1;
type SecurityLevel128 = cggmp24::security_level::SecurityLevel128;
type PregeneratedPrimes = cggmp24::PregeneratedPrimes<SecurityLevel128>;

/// The backend.
pub(super) struct Cggmp24;

impl Backend for Cggmp24 {
    fn keygen(&self, _setup: KeygenSetup) -> Result<Box<dyn Session<KeyShare>>, Fault> {
        Err(Fault::bug("cggmp24 makes no key without primes"))
    }

    fn needs_primes(&self) -> bool {
        true
    }

    fn keygen_with(
        &self,
        setup: KeygenSetup,
        primes: PrimeSource,
    ) -> Result<Box<dyn Session<KeyShare>>, Fault> {
        check_keygen(&setup)?;
        Ok(Box::new(keygen::session(setup, primes)))
    }

    fn reshare(
        &self,
        _setup: ReshareSetup,
        _share: Option<PlainShare>,
    ) -> Result<Box<dyn Session<Option<KeyShare>>>, Fault> {
        Err(Fault::field("scheme", "cggmp24 keys have no refresh"))
    }

    fn plain(&self, share: &KeyShare) -> Result<PlainShare, Fault> {
        let key = read_share(share)?;
        let points = key.core.vss_setup.as_ref().map(|setup| &setup.I);
        let (mut verifying, mut regular) = (BTreeMap::new(), true);
        for (index, (place, public)) in (1..).zip((0..).zip(&key.core.public_shares)) {
            // The crate's parties are at 1, 2, 3: as everywhere else.
            let point = points.and_then(|points| points.get::<usize>(place));
            regular &= point.is_some_and(|point| *point.as_ref() == Scalar::from(index));
            verifying.insert(index, public.to_bytes(true).to_vec());
        }
        if !regular {
            return Err(Fault::bug(
                "the parties of a cggmp24 key are not where they should be",
            ));
        }
        let value: &Scalar<Secp256k1> = key.core.x.as_ref();
        let value = Zeroizing::new(value.to_be_bytes().as_bytes().to_vec());
        let mut secret = Zeroizing::new([0; 32]);
        secret.copy_from_slice(&value);
        Ok(PlainShare {
            root: share.root.clone(),
            index: index(key.core.i)?,
            secret,
            verifying,
        })
    }

    fn open(&self, share: &KeyShare) -> Result<Arc<dyn Signer>, Fault> {
        let key = read_share(share)?;
        Ok(Arc::new(sign::Cggmp24Signer::new(share.root.clone(), key)?))
    }
}

fn read_share(share: &KeyShare) -> Result<cggmp24::KeyShare<Secp256k1, SecurityLevel128>, Fault> {
    // The decoder's message could quote the content.
    let damaged = || Fault::bug("a cggmp24 share is damaged");
    let (version, body) = share.secret.split_first().ok_or_else(damaged)?;
    if *version != SHARE_VERSION {
        return Err(Fault::bug("a cggmp24 share has an unknown version"));
    }
    let key: DirtyKeyShare<Secp256k1, SecurityLevel128> =
        serde_json::from_slice(body).map_err(|_| damaged())?;
    if usize::from(key.core.i) >= key.aux.N.len() {
        return Err(damaged());
    }
    key.validate().map_err(|_| damaged())
}

/// Makes the four safe primes that one node needs for one key: a minute or more of one core.
/// `made` hears how many there are, before each and at the end.
pub(super) fn make_primes(
    entropy: &dyn Entropy,
    mut made: impl FnMut(usize),
) -> Result<Zeroizing<Vec<u8>>, Fault> {
    use cggmp24::{backend::Integer, security_level::SecurityLevel as _};
    let mut rng = EntropyRng(entropy);
    let mut count = 0;
    let primes = [(); 4].map(|()| {
        made(count);
        count += 1;
        Integer::generate_safe_prime(&mut rng, SecurityLevel128::RSA_PRIME_BITLEN)
    });
    made(count);
    let primes =
        PregeneratedPrimes::try_from(primes).map_err(|_| Fault::bug("a prime is too small"))?;
    let mut body = Zeroizing::new(Vec::with_capacity(MAX_SHARE));
    body.push(PRIMES_VERSION);
    serde_json::to_writer(&mut *body, &primes)
        .map_err(|_| Fault::bug("primes cannot be encoded"))?;
    Ok(body)
}

pub(crate) fn read_primes(set: &[u8]) -> Result<PregeneratedPrimes, Abort> {
    match set.split_first() {
        Some((&PRIMES_VERSION, body)) => serde_json::from_slice(body).ok(),
        _ => None,
    }
    .ok_or_else(|| Abort::new("a set of primes is damaged"))
}

fn index(place: u16) -> Result<SignerIndex, Fault> {
    SignerIndex::try_from(place.saturating_add(1)).map_err(Fault::bug)
}

/// The crate counts parties from 0.
fn place(index: SignerIndex) -> u16 {
    u16::from(index).saturating_sub(1)
}
