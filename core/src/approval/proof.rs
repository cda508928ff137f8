//! The three proofs that a person, or a client signer, has approved.

use serde::{Deserialize, Serialize};

use super::{WebAuthnAssertion, list_challenge};
use crate::{fault::Fault, order::NodeId};

/// One approver's approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenApproval {
    /// Where one gesture approved several requests: the [`super::Approval::id`]s of all, in ascending order.
    /// Empty: it approved this one alone.
    pub list: Vec<[u8; 32]>,
    /// The proof.
    pub proof: ApprovalProof,
}

/// A signature over a challenge, with what a verifier needs beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApprovalProof {
    /// A passkey's, through a browser.
    WebAuthn {
        /// The credential's id; names the key in the policy.
        credential_id: Vec<u8>,
        /// The rest.
        assertion: WebAuthnAssertion,
    },
    /// `ssh-keygen -Y sign -n covault-approval` over the 32 bytes of the challenge: the text that it writes,
    /// from `-----BEGIN SSH SIGNATURE-----` on.
    Ssh(String),
    /// A client signer's, with its node key.
    Node {
        /// Whose.
        node: NodeId,
        /// Ed25519 over [`ApprovalProof::node_statement`], 64 bytes.
        signature: Vec<u8>,
    },
}

/// What a valid proof shows beside who gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProofFacts {
    /// A passkey's.
    WebAuthn {
        /// Of the page that asked, e.g. `https://console.example.com`.
        origin: String,
        /// A cloud can copy the passkey (flag BE).
        synced: bool,
    },
    /// An SSH key's.
    Ssh,
    /// A client signer's.
    Node,
}

impl ApprovalProof {
    /// What a client signer signs: a tag, then the challenge.
    pub fn node_statement(challenge: &[u8; 32]) -> Vec<u8> {
        [b"covault/approval-by-node".as_slice(), challenge].concat()
    }
}

impl GivenApproval {
    /// How many bytes count for the bounds.
    pub fn size(&self) -> usize {
        let proof = match &self.proof {
            ApprovalProof::WebAuthn {
                credential_id,
                assertion,
            } => credential_id.len().saturating_add(assertion.size()),
            ApprovalProof::Ssh(text) => text.len(),
            ApprovalProof::Node { node, signature } => node.0.len().saturating_add(signature.len()),
        };
        self.list.len().saturating_mul(32).saturating_add(proof)
    }

    /// The challenge that the proof must be over, for a request whose [`super::Approval::id`] is `id`.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`], field `list`: as [`list_challenge`], or without this request.
    pub fn challenge(&self, id: &[u8; 32]) -> Result<[u8; 32], Fault> {
        if self.list.is_empty() {
            return Ok(*id);
        }
        let challenge = list_challenge(&self.list)?;
        match self.list.binary_search(id) {
            Ok(_) => Ok(challenge),
            Err(_) => Err(Fault::field("list", "does not have this request")),
        }
    }
}
