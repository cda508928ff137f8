//! A person's signed rejection of requests.

use serde::{Deserialize, Serialize};

use super::{
    ApprovalProof, GivenApproval, MAX_APPROVAL_BYTES, MAX_LIST, REJECTION, REJECTIONS, tagged_hash,
};
use crate::{
    fault::Fault,
    ids::{RequestId, VaultId},
};

/// A rejection of requests of a vault with one gesture, as signers are told of it, and as it is written into a file for
/// their administrators. It is good for ever: a request that was rejected is never wanted again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// The vault.
    pub vault: VaultId,
    /// All that the gesture rejects, 1 to [`MAX_LIST`].
    pub requests: Vec<RequestId>,
    /// The person's, over [`rejections_challenge`].
    pub proof: ApprovalProof,
}

impl Rejection {
    /// What the person has signed. Checks the bounds first.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn challenge(&self) -> Result<[u8; 32], Fault> {
        let Self {
            vault,
            requests,
            proof,
        } = self;
        if !(1..=MAX_LIST).contains(&requests.len()) {
            let problem = format_args!("must be 1 to {MAX_LIST}");
            return Err(Fault::field("requests", problem));
        }
        let alone = GivenApproval {
            list: Vec::new(),
            proof: proof.clone(),
        };
        if alone.size() > MAX_APPROVAL_BYTES {
            let problem = format_args!("must be at most {MAX_APPROVAL_BYTES} bytes");
            return Err(Fault::field("proof", problem));
        }
        rejections_challenge(*vault, requests)
    }
}

/// The challenge of a rejection: SHA-256 of the tag `covault/rejection`, the version, the vault and the request in
/// BCS. No approval has the same, so that neither stands for the other.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when a field cannot be serialized.
pub fn rejection_challenge(vault: VaultId, request: RequestId) -> Result<[u8; 32], Fault> {
    tagged_hash(REJECTION, &(vault, request))
}

/// The challenge of one gesture that rejects these requests of a vault: that of the only one, or SHA-256 of the tag
/// `covault/rejections`, the version and the sorted list of their [`rejection_challenge`]s in BCS.
///
/// # Errors
/// As [`rejection_challenge`].
pub fn rejections_challenge(vault: VaultId, requests: &[RequestId]) -> Result<[u8; 32], Fault> {
    let each = requests.iter().map(|id| rejection_challenge(vault, *id));
    let mut each: Vec<_> = each.collect::<Result<_, _>>()?;
    each.sort_unstable();
    match each.as_slice() {
        [alone] => Ok(*alone),
        several => tagged_hash(REJECTIONS, &several),
    }
}
