//! Approvals: what people agree to before a request is signed, in the exact bytes that their devices sign,
//! and what an order carries of it.
//!
//! A person approves the intent, not the digest: nonce, blockhash and gas price are known only when the
//! transaction is built, after the person has left. Signers rebuild every field of an [`Approval`] from
//! their own view of the order; the highest fee and the end of validity alone come from outside, and are
//! bounded by checks.

mod approver;
mod approvers;
#[cfg(test)]
mod check_order_tests;
#[cfg(test)]
mod other_programs;
mod passkey;
mod proof;
mod rejection;
mod sign_in;
mod ssh;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "testing"))]
pub mod verified;
mod webauthn;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use approver::{ApproverKey, ApproverKeyId, ApproverLine, words};
pub use approvers::{ApprovalWay, Approved, Approvers, VerifiedApprovals};
pub use passkey::{Passkey, PasskeyPublicKey};
pub use proof::{ApprovalProof, GivenApproval, ProofFacts};
pub use rejection::{Rejection, rejection_challenge, rejections_challenge};
pub use sign_in::verify_sign_in;
pub use ssh::SSH_NAMESPACE;
pub use webauthn::WebAuthnAssertion;

use crate::{
    fault::Fault,
    ids::{RequestId, VaultId},
    networks::Network,
};

/// Version of the canonical bytes below. Raised when a field is added.
pub const APPROVAL_VERSION: u16 = 1;
/// Most approvals of one order.
pub const MAX_APPROVALS: usize = 16;
/// Most bytes of one approval, its list included ([`GivenApproval::size`]).
pub const MAX_APPROVAL_BYTES: usize = 4 << 10;
/// Most bytes of all approvals of one order.
pub const MAX_APPROVALS_BYTES: usize = 32 << 10;
/// Most requests that are approved with one gesture.
pub const MAX_LIST: usize = 100;
/// How far ahead the end of an approval's validity may be when a signer checks it, in milliseconds.
pub const MAX_VALIDITY_MS: u64 = 24 * 3600 * 1000;

const ONE: &str = "covault/approval";
const SEVERAL: &str = "covault/approvals";
const ENROL: &str = "covault/enrol";
const REJECTION: &str = "covault/rejection";
/// Separates rejections of several requests from everything else.
const REJECTIONS: &str = "covault/rejections";
/// Separates signing in to the console from everything else.
const SIGN_IN: &str = "covault/sign-in";
/// Separates changes of who approves from everything else.
const RULE_CHANGE: &str = "covault/approval-rule";

/// What a person approves: this payload, for this wallet, once, at this fee at most, until then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    /// The vault of the wallet.
    pub vault: VaultId,
    /// The vault's root public key on the network's curve (33 bytes secp256k1, 32 bytes Ed25519).
    pub root_public_key: Vec<u8>,
    /// The request, which signs one digest and never a second one.
    pub request: RequestId,
    /// The network of the wallet.
    pub network: Network,
    /// The wallet's address, in canonical form.
    pub address: String,
    /// SHA-256 of [`crate::order::SigningOrder::payload`].
    pub payload_sha256: [u8; 32],
    /// The most that the network may take as fee, in the coin's smallest unit, as shown to the person; 0 where
    /// no fee is paid.
    pub most_fee: u128,
    /// Until when it may be signed, in milliseconds since the Unix epoch.
    pub valid_until_ms: u64,
}

/// What an approval is bound by beside the request itself: all approvals of one order say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalTerms {
    /// As [`Approval::most_fee`].
    pub most_fee: u128,
    /// As [`Approval::valid_until_ms`].
    pub valid_until_ms: u64,
}

impl Approval {
    /// What a person approves of a request whose payload these bytes are
    /// ([`crate::order::SigningOrder::payload`]).
    pub fn new(
        vault: VaultId,
        root_public_key: &[u8],
        request: RequestId,
        network: Network,
        address: &str,
        payload: &[u8],
        terms: ApprovalTerms,
    ) -> Self {
        let ApprovalTerms {
            most_fee,
            valid_until_ms,
        } = terms;
        Self {
            vault,
            root_public_key: root_public_key.to_vec(),
            request,
            network,
            address: address.to_owned(),
            payload_sha256: Sha256::digest(payload).into(),
            most_fee,
            valid_until_ms,
        }
    }

    /// The canonical bytes: the tag `covault/approval`, the version and every field, in BCS.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when a field cannot be serialized.
    pub fn canonical_bytes(&self) -> Result<Vec<u8>, Fault> {
        // Destructured without `..`, so that a new field cannot be left out.
        let Self {
            vault,
            root_public_key,
            request,
            network,
            address,
            payload_sha256,
            most_fee,
            valid_until_ms,
        } = self;
        tagged(
            ONE,
            &(
                vault,
                root_public_key,
                request,
                network,
                address,
                payload_sha256,
                most_fee,
                valid_until_ms,
            ),
        )
    }

    /// SHA-256 of the canonical bytes: the challenge that a device signs for this request alone, and its entry
    /// in the list of a gesture for several ([`list_challenge`]).
    ///
    /// # Errors
    /// As [`Approval::canonical_bytes`].
    pub fn id(&self) -> Result<[u8; 32], Fault> {
        Ok(Sha256::digest(self.canonical_bytes()?).into())
    }
}

/// The challenge of one gesture for several requests: SHA-256 of the tag `covault/approvals`, the version and
/// the `list` of their [`Approval::id`]s in BCS.
///
/// # Errors
/// [`crate::fault::Class::Invalid`], field `list`, when it is empty, has more than [`MAX_LIST`] entries, or is
/// not in ascending order without repetitions.
pub fn list_challenge(list: &[[u8; 32]]) -> Result<[u8; 32], Fault> {
    if list.is_empty() || list.len() > MAX_LIST {
        return Err(Fault::field(
            "list",
            format_args!("must be 1 to {MAX_LIST} requests"),
        ));
    }
    if !list.is_sorted_by(|one, next| one < next) {
        return Err(Fault::field("list", "must be sorted, without repetitions"));
    }
    tagged_hash(SEVERAL, &list)
}

/// What an order carries of approvals.
///
/// Its highest fee and end of validity are part of every [`Approval`] that was signed: all of one order say
/// the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderApprovals {
    /// As [`Approval::most_fee`].
    pub most_fee: u128,
    /// As [`Approval::valid_until_ms`].
    pub valid_until_ms: u64,
    /// One per approver; at most [`MAX_APPROVALS`]. Empty: nobody had to approve.
    pub given: Vec<GivenApproval>,
}

impl OrderApprovals {
    /// Checks the bounds, before anything else is done with them.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`], field `approvals` or one of it.
    pub fn check_bounds(&self) -> Result<(), Fault> {
        if self.given.len() > MAX_APPROVALS {
            return Err(Fault::field(
                "approvals",
                format_args!("must be at most {MAX_APPROVALS}"),
            ));
        }
        let mut total = 0_usize;
        for (place, given) in self.given.iter().enumerate() {
            let size = given.size();
            if size > MAX_APPROVAL_BYTES {
                return Err(Fault::field(
                    format_args!("approvals[{place}]"),
                    format_args!("must be at most {MAX_APPROVAL_BYTES} bytes"),
                ));
            }
            total = total.saturating_add(size);
        }
        if total > MAX_APPROVALS_BYTES {
            return Err(Fault::field(
                "approvals",
                format_args!("must be at most {MAX_APPROVALS_BYTES} bytes together"),
            ));
        }
        Ok(())
    }
}

/// What people sign who agree to a `change` of who approves: SHA-256 of the tag `covault/approval-rule`, the version and the
/// change in BCS.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when it cannot be serialized.
pub fn rule_change_challenge<T: Serialize>(change: &T) -> Result<[u8; 32], Fault> {
    tagged_hash(RULE_CHANGE, change)
}

/// The challenge of signing in to the console of this origin: SHA-256 of the tag `covault/sign-in`, the version, the origin
/// and the nonce in BCS. No approval has the same, so that neither stands for the other.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when a field cannot be serialized.
pub fn sign_in_challenge(origin: &str, nonce: &[u8; 32]) -> Result<[u8; 32], Fault> {
    tagged_hash(SIGN_IN, &(origin, nonce))
}

fn tagged_hash<T: Serialize>(tag: &str, fields: &T) -> Result<[u8; 32], Fault> {
    Ok(Sha256::digest(tagged(tag, fields)?).into())
}

fn tagged<T: Serialize>(tag: &str, fields: &T) -> Result<Vec<u8>, Fault> {
    bcs::to_bytes(&(tag, APPROVAL_VERSION, fields)).map_err(Fault::bug)
}
