//! A signing request: its states, events and effects.
//!
//! Everything here is pure. The orchestrator stores what [`RequestState::step`] returns in one commit,
//! and then runs the effects.

mod machine;
mod view;

use serde::{Deserialize, Serialize};

use crate::{
    derive::KeyPath,
    fault::ExecuteCode,
    ids::{RequestId, SessionId, TokenId, VaultId, WalletId},
    networks::{ChainData, Network, Signed, Unsigned},
    order::SigningOrder,
    signature::Signature,
};

pub use machine::{
    AuditRecord, IllegalTransition, RequestEffect, RequestEvent, RequestStep, ReservationChange,
};
pub use view::wire_signatures;

/// A signing request: what never changes, and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningRequest {
    /// The request.
    pub id: RequestId,
    /// The vault of the wallet.
    pub vault: VaultId,
    /// The wallet that signs.
    pub wallet: WalletId,
    /// The wallet's network.
    pub network: Network,
    /// The vault's root public key on the network's curve.
    pub root_public_key: Vec<u8>,
    /// The wallet's child key.
    pub path: KeyPath,
    /// The wallet's public key.
    pub public_key: Vec<u8>,
    /// The wallet's address.
    pub address: String,
    /// The payload as [`crate::networks::Payload::encode`] gives it.
    pub payload: Vec<u8>,
    /// The client's notes.
    pub notes: Option<String>,
    /// The token that asked.
    pub token: TokenId,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Where it stands.
    pub state: RequestState,
}

/// Who decides about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApprovalRule {
    /// Nobody: the vault signs at once.
    Automatic,
}

/// The nonce of an account, claimed by one request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NonceReservation {
    /// The network.
    pub network: Network,
    /// The chain.
    pub chain_id: u64,
    /// The account.
    pub address: String,
    /// The number.
    pub nonce: u64,
}

/// A transaction or message that was built: the only thing its request will ever sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draft {
    /// What the chain said.
    pub chain_data: ChainData,
    /// The bytes and digests.
    pub unsigned: Unsigned,
    /// The nonce that it holds, where it has one of its own.
    pub claim: Option<NonceReservation>,
    /// Whether it is sent to the network once signed.
    pub broadcast: bool,
    /// When it was built, in milliseconds since the Unix epoch.
    pub built_at_ms: u64,
    /// When signing is given up, in milliseconds since the Unix epoch.
    pub deadline_ms: u64,
}

/// Where a request stands. Each state carries exactly its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestState {
    /// It was decoded.
    Received,
    /// It passed the checks that need no approval.
    Screened {
        /// Whether it is to be sent once signed.
        broadcast: bool,
    },
    /// Somebody has to agree.
    AwaitingApproval {
        /// As in `Screened`.
        broadcast: bool,
        /// Who.
        rule: ApprovalRule,
    },
    /// Agreed; the chain is asked and the transaction built.
    Preparing {
        /// As in `Screened`.
        broadcast: bool,
        /// When it is given up, in milliseconds since the Unix epoch.
        deadline_ms: u64,
    },
    /// Built; its nonce is claimed.
    Prepared {
        /// What is to be signed.
        draft: Draft,
        /// Sessions that were used up.
        attempts: u32,
    },
    /// Signers are at work.
    Signing {
        /// What is being signed.
        draft: Draft,
        /// This session; 1 for the first.
        attempt: u32,
        /// The session, which is never used again.
        session: SessionId,
    },
    /// Signed: the point of no return.
    Signed {
        /// What was signed.
        draft: Draft,
        /// The signatures.
        signatures: Vec<Signature>,
        /// The signed transaction; `None` for messages.
        signed: Option<Signed>,
    },
    /// On its way to the network's nodes; only ever these bytes.
    Broadcasting {
        /// What was signed.
        draft: Draft,
        /// The signatures.
        signatures: Vec<Signature>,
        /// The bytes.
        signed: Signed,
    },
    /// Signed, and taken by a node where it was sent.
    Succeeded {
        /// The signatures.
        signatures: Vec<Signature>,
        /// The signed transaction; `None` for messages.
        signed: Option<Signed>,
        /// Whether it was sent.
        sent: bool,
    },
    /// Over.
    Failed {
        /// A sentence that a person can act on.
        reason: String,
        /// The code that executeSigningRequests reports.
        code: ExecuteCode,
        /// The signatures, where it had been signed.
        signatures: Vec<Signature>,
    },
}

impl RequestState {
    /// What was built, while it is not over.
    pub fn draft(&self) -> Option<&Draft> {
        match self {
            RequestState::Prepared { draft, .. }
            | RequestState::Signing { draft, .. }
            | RequestState::Signed { draft, .. }
            | RequestState::Broadcasting { draft, .. } => Some(draft),
            RequestState::Received
            | RequestState::Screened { .. }
            | RequestState::AwaitingApproval { .. }
            | RequestState::Preparing { .. }
            | RequestState::Succeeded { .. }
            | RequestState::Failed { .. } => None,
        }
    }
}

impl RequestState {
    /// Why a request in this state can no longer be rejected; `None` while it can.
    pub fn past_rejection(&self) -> Option<&'static str> {
        match self {
            RequestState::Received
            | RequestState::Screened { .. }
            | RequestState::AwaitingApproval { .. }
            | RequestState::Preparing { .. } => None,
            RequestState::Prepared { .. } | RequestState::Signing { .. } => {
                Some("it is being signed; a request can only be rejected before signing")
            }
            RequestState::Signed { .. } | RequestState::Broadcasting { .. } => {
                Some("it is signed; a request can only be rejected before signing")
            }
            RequestState::Succeeded { .. } => Some("it has already succeeded"),
            RequestState::Failed { .. } => Some("it was already rejected, or has failed"),
        }
    }
}

impl SigningRequest {
    /// The order that signers get for the draft that this request is signing, with the shares of
    /// `epoch`: those that are in use when they are asked. `None` outside of `Signing`.
    pub fn order(&self, epoch: u32, now_ms: u64) -> Option<SigningOrder> {
        let RequestState::Signing { draft, .. } = &self.state else {
            return None;
        };
        Some(SigningOrder {
            request: self.id,
            vault: self.vault,
            epoch,
            network: self.network,
            root_public_key: self.root_public_key.clone(),
            path: self.path.clone(),
            public_key: self.public_key.clone(),
            address: self.address.clone(),
            payload: self.payload.clone(),
            chain_data: draft.chain_data.clone(),
            unsigned: draft.unsigned.bytes.clone(),
            inputs: draft.unsigned.signing.clone(),
            recipient_indices: Vec::new(),
            issued_at_ms: now_ms,
            expires_at_ms: draft.deadline_ms,
        })
    }
}
