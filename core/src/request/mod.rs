//! A signing request: its states, events and effects.
//!
//! Everything here is pure. The orchestrator stores what [`RequestState::step`] returns in one commit,
//! and then runs the effects.

mod change;
mod consent;
mod machine;
mod rule_change;
mod transaction;
mod view;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{
    amount::U256,
    derive::KeyPath,
    fault::{Class, ExecuteCode, Fault},
    field,
    ids::{RequestId, SessionId, TokenId, VaultId, WalletId},
    networks::{ChainData, Network, Replacement, Resource, Signed, Unsigned},
    order::SigningOrder,
    signature::Signature,
};

pub use change::RequestChange;
pub use consent::{
    ApprovalMode, ApprovalRule, Approver, Consent, MAX_APPROVERS, PersonApproval, USUAL_EXPIRY_MS,
    WalletNeeds,
};
pub use machine::{
    AuditRecord, IllegalTransition, RequestEffect, RequestEvent, RequestStep, ReservationChange,
};
pub use rule_change::RuleChange;
pub use transaction::{Inclusion, TransactionPart, TransactionState};
pub use view::wire_signatures;

/// Most characters (Unicode scalar values) of a request's notes.
const MAX_NOTES: usize = 10_000;

/// Checks the notes of a request that is to be made.
///
/// # Errors
/// [`Class::Invalid`] naming the field.
pub fn check_notes(notes: Option<&str>) -> Result<(), Fault> {
    field::notes("notes", notes.unwrap_or_default(), MAX_NOTES)
}

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
    /// The request whose transaction it is to replace.
    pub replaces: Option<Replaces>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Who has to agree, and who has.
    pub consent: Consent,
    /// Where it stands.
    pub state: RequestState,
}

/// What a request is to replace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaces {
    /// The request that was named.
    pub request: RequestId,
    /// The first one of those whose transactions stand for the same place in the chain; not a replacement itself.
    pub first: RequestId,
    /// By what.
    pub how: Replacement,
    /// The most that the transaction may cost as fee, in the smallest unit of the coin; `None`: no limit of its own.
    pub most_fee: Option<u128>,
}

impl Replaces {
    /// Refuses an unsigned transaction that would cost more than was allowed: `fee` is the most that it can cost, in
    /// the smallest unit of the coin.
    ///
    /// # Errors
    /// [`Class::Invalid`] that names both.
    pub fn check_fee(&self, fee: U256) -> Result<(), Fault> {
        match self.most_fee {
            Some(most) if fee > U256::from(most) => Err(Fault::new(
                Class::Invalid,
                format!(
                    "replacing the earlier transaction may take a fee of {fee}, above the allowed maximum of {most} \
                     (in the smallest unit of the coin)"
                ),
            )
            .with_execute_code(ExecuteCode::InsufficientGasFee)),
            Some(_) | None => Ok(()),
        }
    }
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
    /// What the payload names and another request holds, whose transaction it replaces: outputs, objects.
    pub shared: BTreeSet<Resource>,
    /// Whether it is sent to the network once signed.
    pub broadcast: bool,
    /// When it was built, in milliseconds since the Unix epoch.
    pub built_at_ms: u64,
    /// When signing is given up, in milliseconds since the Unix epoch.
    pub deadline_ms: u64,
}

/// A draft whose signing people have interrupted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltDraft {
    /// It. Holds nothing as long as they are asked.
    pub draft: Draft,
    /// Sessions that were used up.
    pub attempts: u32,
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
    /// People have to approve it.
    AwaitingApproval {
        /// As in `Screened`.
        broadcast: bool,
        /// What it was signing when a signer wanted more approvals, and will continue with: it signs nothing else.
        built: Option<Box<BuiltDraft>>,
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
    /// Given up after signers were asked for its transaction: some may have signed it. Pending until a final block has
    /// it, or it can never come. After a restore it may even have been sent.
    InDoubt {
        /// What they were asked for. Holds nothing; after a restore, what it held before.
        draft: Box<Draft>,
        /// As in `Failed`.
        reason: String,
        /// As in `Failed`.
        code: ExecuteCode,
    },
    /// Signed, and taken by a node where it was sent.
    Succeeded {
        /// The signatures.
        signatures: Vec<Signature>,
        /// The signed transaction; `None` for messages. Without bytes where it was found in a block by its hash alone.
        signed: Option<Signed>,
        /// Whether it was sent.
        sent: bool,
        /// What was signed, where the client has the transaction to send: what that uses up is free when the
        /// client gives it up.
        handed_over: Option<Box<Draft>>,
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
    /// The signed transaction, where its bytes are here and the request has not failed.
    pub fn signed(&self) -> Option<&Signed> {
        self.transaction()
            .filter(|signed| !signed.transaction.is_empty())
    }

    /// The hash of the signed transaction, where there is one and the request has not failed.
    pub fn tx_hash(&self) -> Option<&str> {
        self.transaction().map(|signed| signed.tx_hash.as_str())
    }

    fn transaction(&self) -> Option<&Signed> {
        match self {
            RequestState::Signed { signed, .. } | RequestState::Succeeded { signed, .. } => {
                signed.as_ref()
            }
            RequestState::Broadcasting { signed, .. } => Some(signed),
            _ => None,
        }
    }

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
            | RequestState::InDoubt { .. }
            | RequestState::Succeeded { .. }
            | RequestState::Failed { .. } => None,
        }
    }
}

impl RequestState {
    /// Why a request in doubt is pending, in words for people.
    pub fn doubt(&self) -> Option<String> {
        let RequestState::InDoubt { reason, .. } = self else {
            return None;
        };
        Some(format!(
            "given up: {reason}. Signers may already have signed its transaction, so it stays pending until a final \
             block has that transaction or it can never be mined (it has expired, or a final transaction of \
             the wallet has used the same nonce, outputs or objects)"
        ))
    }

    /// What was signed, where the client has the transaction to send: the request can still be given up, so
    /// that the next one uses what it uses.
    pub fn handed_over(&self) -> Option<&Draft> {
        match self {
            RequestState::Succeeded { handed_over, .. } => handed_over.as_deref(),
            _ => None,
        }
    }

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
            RequestState::InDoubt { .. } => Some(
                "it was already given up, and is pending until its transaction can never be mined",
            ),
            RequestState::Succeeded {
                handed_over: Some(_),
                ..
            } => None,
            RequestState::Succeeded { .. } => Some("it has already succeeded"),
            RequestState::Failed { .. } => Some("it was already rejected, or has failed"),
        }
    }
}

impl SigningRequest {
    /// The first of the requests whose transactions stand for the same place in the chain as this one's: itself,
    /// unless it is a replacement.
    pub fn first_of_place(&self) -> RequestId {
        self.replaces
            .as_ref()
            .map_or(self.id, |replaces| replaces.first)
    }

    /// The order that signers get for the draft that this request is signing, with the shares of
    /// `epoch`: those that are in use when they are asked. `None` outside of `Signing`.
    pub fn order(&self, epoch: u32, now_ms: u64) -> Option<SigningOrder> {
        let RequestState::Signing { draft, .. } = &self.state else {
            return None;
        };
        Some(SigningOrder {
            chain_data: draft.chain_data.clone(),
            unsigned: draft.unsigned.bytes.clone(),
            inputs: draft.unsigned.signing.clone(),
            expires_at_ms: draft.deadline_ms,
            ..self.approval_notice(epoch, now_ms, draft.deadline_ms)
        })
    }

    /// Whether people have approved it and nothing is built yet: signers can be told of their approvals.
    pub fn has_approvals_to_tell(&self) -> bool {
        matches!(self.state, RequestState::Preparing { .. }) && !self.consent.given.is_empty()
    }

    /// What tells signers of the approvals that there are, before there is a transaction
    /// ([`SigningOrder::tells_of_approvals`]).
    pub fn approval_notice(&self, epoch: u32, now_ms: u64, expires_at_ms: u64) -> SigningOrder {
        SigningOrder {
            request: self.id,
            vault: self.vault,
            epoch,
            network: self.network,
            root_public_key: self.root_public_key.clone(),
            path: self.path.clone(),
            public_key: self.public_key.clone(),
            address: self.address.clone(),
            payload: self.payload.clone(),
            chain_data: ChainData::Nothing,
            unsigned: Vec::new(),
            inputs: Vec::new(),
            recipient_indices: Vec::new(),
            approvals: self.consent.order_approvals(now_ms),
            issued_at_ms: now_ms,
            expires_at_ms,
        }
    }
}
