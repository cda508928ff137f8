//! Signatures of `ssh-keygen -Y sign` (OpenSSH's PROTOCOL.sshsig).

use ed25519_dalek::VerifyingKey;
use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use sha2::{Digest as _, Sha256};
use ssh_key::{
    PublicKey, SshSig,
    public::{KeyData, SkEcdsaSha2NistP256},
};

use crate::fault::{Class, Fault};

/// The namespace of approvals: `ssh-keygen -Y sign -n covault-approval`.
pub const SSH_NAMESPACE: &str = "covault-approval";
/// Of the form of signatures.
const VERSION: u32 = 1;
/// What follows the signature of a key in a device: flags and counter.
const TRAILER: usize = 5;
const USER_PRESENT: u8 = 1;

/// Reads an SSH public key that can approve.
///
/// # Errors
/// [`Class::Invalid`] when it is no public key, or of an unsupported kind.
pub(super) fn parse(line: &str) -> Result<PublicKey, Fault> {
    let refuse = || {
        Fault::new(
            Class::Invalid,
            "must be an OpenSSH line: ssh-ed25519, sk-ssh-ed25519@openssh.com or \
             sk-ecdsa-sha2-nistp256@openssh.com",
        )
    };
    let key = PublicKey::from_openssh(line.trim()).map_err(|cause| refuse().caused_by(cause))?;
    let sound = |bytes: &[u8; 32]| VerifyingKey::from_bytes(bytes).is_ok_and(|key| !key.is_weak());
    let fits = match key.key_data() {
        KeyData::Ed25519(key) => sound(&key.0),
        KeyData::SkEd25519(key) => sound(&key.public_key().0),
        KeyData::SkEcdsaSha2NistP256(key) => {
            // A point has two forms; OpenSSH writes this one.
            !key.ec_point().is_compressed()
                && p256::ecdsa::VerifyingKey::from_encoded_point(key.ec_point()).is_ok()
        }
        _ => false,
    };
    if fits { Ok(key) } else { Err(refuse()) }
}

/// The public key itself, of one that [`parse`] takes: 32 bytes Ed25519, 65 bytes P-256.
pub(super) fn public_key(key: &KeyData) -> &[u8] {
    match key {
        KeyData::Ed25519(key) => &key.0,
        KeyData::SkEd25519(key) => &key.public_key().0,
        KeyData::SkEcdsaSha2NistP256(key) => key.ec_point().as_bytes(),
        _ => &[],
    }
}

/// The signature in a text from `-----BEGIN SSH SIGNATURE-----` on.
///
/// # Errors
/// [`Class::Invalid`], field `signature`.
pub(super) fn read(text: &str) -> Result<SshSig, Fault> {
    let wrong = || Fault::field("signature", "is not an SSH signature");
    let signature = SshSig::from_pem(text.trim()).map_err(|cause| wrong().caused_by(cause))?;
    // ssh-key takes 0 too.
    if signature.version() == VERSION {
        Ok(signature)
    } else {
        Err(wrong())
    }
}

/// Checks that `key` has signed `challenge` as an approval.
///
/// # Errors
/// As [`read`].
pub(super) fn verify(key: &PublicKey, text: &str, challenge: &[u8; 32]) -> Result<(), Fault> {
    let signature = read(text)?;
    let wrong = |problem: &str| Fault::field("signature", problem);
    if signature.namespace() != SSH_NAMESPACE {
        return Err(wrong("must be in the namespace covault-approval"));
    }
    let other = || wrong("is not this key's signature of this approval");
    match key.key_data() {
        KeyData::SkEcdsaSha2NistP256(device) if key.key_data() == signature.public_key() => {
            let signed = SshSig::signed_data(SSH_NAMESPACE, signature.hash_alg(), challenge)
                .map_err(|cause| other().caused_by(cause))?;
            verify_p256(device, &signed, signature.signature_bytes()).ok_or_else(other)?;
        }
        _ => key
            .verify(SSH_NAMESPACE, challenge, &signature)
            .map_err(|cause| other().caused_by(cause))?,
    }
    if matches!(
        key.key_data(),
        KeyData::SkEd25519(_) | KeyData::SkEcdsaSha2NistP256(_)
    ) {
        let trailer = signature.signature_bytes().last_chunk::<TRAILER>();
        if trailer.is_none_or(|[flags, ..]| flags & USER_PRESENT == 0) {
            return Err(wrong("the user did not touch the device (flag UP)"));
        }
    }
    Ok(())
}

/// Checks the signature of a key in a device (OpenSSH's PROTOCOL.u2f): two numbers, then [`TRAILER`]. By ring, which
/// takes a fifth of the time that ssh-key takes with p256.
fn verify_p256(key: &SkEcdsaSha2NistP256, signed: &[u8], signature: &[u8]) -> Option<()> {
    let (mut numbers, trailer) = signature.split_last_chunk::<TRAILER>()?;
    let fixed = [number(&mut numbers)?, number(&mut numbers)?].concat();
    let message = [
        Sha256::digest(key.application()).as_slice(),
        trailer,
        &Sha256::digest(signed),
    ]
    .concat();
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.ec_point())
        .verify(&message, &fixed)
        .ok()
        .filter(|()| numbers.is_empty())
}

/// Takes a number of at most 256 bits (`mpint`) from the front. That it is written in its one way, ssh-key has checked.
fn number(bytes: &mut &[u8]) -> Option<[u8; 32]> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (number, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    let number = number.strip_prefix(&[0]).unwrap_or(number);
    let mut padded = [0; 32];
    let begin = padded.len().checked_sub(number.len())?;
    padded.get_mut(begin..)?.copy_from_slice(number);
    Some(padded)
}
