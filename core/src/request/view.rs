//! What the wire shows of a request. Statuses are projections of the inner state.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{PersonApproval, RequestEffect, RequestState, SigningRequest, TransactionState};
use crate::{
    approval::ApprovalTerms,
    fault::ExecuteCode,
    ids::DerivedFrom,
    networks::{
        Network, Payload, Signed,
        evm::calls::AbiTable,
        solana::{self, SolanaPayload, wire::WireTransaction},
    },
    schema::wire,
    signature::Signature,
};

use wire::{
    error::Code,
    signature_container::{EcdsaSignature, SignResponse, sign_response},
    signing_request::{Source, Status, source},
};

/// The parts of a state that the wire shows.
struct StateView<'a> {
    status: Status,
    failed_reason: &'a str,
    code: ExecuteCode,
    signatures: &'a [Signature],
    /// The transaction, once its hash may be shown.
    signed: Option<&'a Signed>,
}

impl StateView<'_> {
    fn tx_hash(&self) -> String {
        self.signed
            .map(|signed| signed.tx_hash.clone())
            .unwrap_or_default()
    }

    fn signed_transaction(&self) -> String {
        self.signed
            .map(|signed| signed.transaction.clone())
            .unwrap_or_default()
    }
}

fn show(state: &RequestState) -> StateView<'_> {
    let mut shown = StateView {
        status: Status::Pending,
        failed_reason: "",
        code: ExecuteCode::Unspecified,
        signatures: &[],
        signed: None,
    };
    match state {
        RequestState::Received
        | RequestState::Screened { .. }
        | RequestState::AwaitingApproval { .. }
        | RequestState::Preparing { .. }
        | RequestState::Prepared { .. }
        | RequestState::Signing { .. }
        | RequestState::InDoubt { .. } => {}
        RequestState::Signed { signatures, .. } | RequestState::Broadcasting { signatures, .. } => {
            shown.signatures = signatures;
        }
        RequestState::Succeeded {
            signatures, signed, ..
        } => {
            shown.status = Status::Succeeded;
            shown.signatures = signatures;
            shown.signed = signed.as_ref();
        }
        RequestState::Failed {
            reason,
            code,
            signatures,
        } => {
            shown.status = Status::Failed;
            shown.failed_reason = reason;
            shown.code = *code;
            shown.signatures = signatures;
        }
    }
    shown
}

/// What is shown of the approvals of a request.
pub(super) struct ApprovalCounts {
    /// What it waits for people to do; empty: nothing.
    pub pending_operation: &'static str,
    /// How many people have to approve, as far as the service knows.
    pub required: u32,
    /// How many of them are missing, while it waits.
    pub remaining: u32,
}

impl SigningRequest {
    fn waits_for_people(&self) -> bool {
        matches!(self.state, RequestState::AwaitingApproval { .. })
    }

    pub(super) fn approvals(&self, now_ms: u64) -> ApprovalCounts {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let required = self.consent.required(now_ms);
        let (pending_operation, remaining) = if self.waits_for_people() {
            let missing = required.saturating_sub(self.consent.count(now_ms));
            ("approve", missing)
        } else {
            ("", 0)
        };
        ApprovalCounts {
            pending_operation,
            required: count(required),
            remaining: count(remaining),
        }
    }

    /// Approvals that it lacks at `now_ms`, as far as is known; 0 unless it waits for people.
    pub fn remaining_approvals(&self, now_ms: u64) -> u32 {
        self.approvals(now_ms).remaining
    }

    /// What the wire shows of its state.
    pub fn status(&self) -> Status {
        show(&self.state).status
    }

    /// The request as responses show it; without its payload where that can no longer be read.
    /// The call data of EVM transactions is put into words where it is one of `calls`.
    /// `simulation` is the outcome of trying the transaction, empty where it was not tried, and `transaction` what
    /// is known of it on the chain. Those that replace it are another row's, and for the caller to add. Approvals are
    /// counted as they hold at `now_ms`, in milliseconds since the Unix epoch.
    pub fn to_wire(
        &self,
        calls: &AbiTable,
        simulation: Vec<u8>,
        transaction: Option<&TransactionState>,
        now_ms: u64,
    ) -> wire::SigningRequest {
        let shown = show(&self.state);
        let consent = &self.consent;
        let waits = self.waits_for_people();
        let approvals = self.approvals(now_ms);
        let payload = Payload::decode(&self.payload).ok();
        wire::SigningRequest {
            uuid: self.id.to_string(),
            status: shown.status.into(),
            failed_reason: shown.failed_reason.to_owned(),
            tx_hash: shown.tx_hash(),
            signed_transaction: shown.signed_transaction(),
            pending_operation: approvals.pending_operation.to_owned(),
            required_approval_count: approvals.required,
            remaining_approval_count: approvals.remaining,
            approvals: consent.given.iter().map(PersonApproval::to_wire).collect(),
            approval_expiry_timestamp: if waits { consent.expires_at_ms } else { 0 },
            approval_wanted: consent.wanted.clone().unwrap_or_default(),
            // Another row's, and for the caller to add.
            batch_payment_uuid: String::new(),
            approval_subject: waits.then(|| wire::ApprovalSubject {
                root_public_key: self.root_public_key.clone(),
                network: self.network.name().to_owned(),
                address: self.address.clone(),
                payload: self.payload.clone(),
            }),
            creation_timestamp: self.created_at_ms,
            r#type: payload.as_ref().map(Payload::echo),
            notes: self.notes.clone(),
            vault_uuid: Some(self.vault.to_string()),
            callback_client_signer_public_key: (consent.rule.client_signer())
                .map(|signer| signer.openssh_line("")),
            simulation,
            evm_input_data_decode: match &payload {
                Some(Payload::Evm(payload)) => {
                    payload.call_data().and_then(|input| calls.decode(&input))
                }
                _ => None,
            },
            signatures: container(shown.signatures),
            source: Some(Source {
                // What replaces the transaction of a sweep is a part of it.
                r#type: match self.first_of_place().derived_from() {
                    Some(DerivedFrom::Sweep) => source::Type::Sweep.into(),
                    Some(DerivedFrom::BatchPayment | DerivedFrom::Management) | None => {
                        source::Type::Api.into()
                    }
                },
                website: String::new(),
            }),
            token_transfer_fee: payload
                .as_ref()
                .and_then(|payload| self.token_transfer_fee(payload)),
            // Nothing was seen of it yet.
            transaction_state: match (transaction, self.state.effect()) {
                (None, Some(RequestEffect::Track)) => Some(TransactionState::Pending.to_wire()),
                (known, _) => known.map(TransactionState::to_wire),
            },
            replaces_uuid: self
                .replaces
                .as_ref()
                .map(|replaces| replaces.request.to_string())
                .unwrap_or_default(),
            replaced_by_uuids: Vec::new(),
        }
    }

    /// What the token takes of the amount that the request's transaction sends: the transaction says it.
    fn token_transfer_fee(&self, payload: &Payload) -> Option<String> {
        let Payload::Solana(SolanaPayload::SendToken(_)) = payload else {
            return None;
        };
        let transaction = match &self.state {
            RequestState::Prepared { draft, .. }
            | RequestState::Signing { draft, .. }
            | RequestState::Signed { draft, .. }
            | RequestState::Broadcasting { draft, .. } => {
                WireTransaction::parse(&draft.unsigned.bytes)
            }
            RequestState::Succeeded {
                signed: Some(signed),
                ..
            } => WireTransaction::parse(&STANDARD.decode(&signed.transaction).ok()?),
            _ => return None,
        };
        solana::transfer_fee(&transaction.ok()?).map(|fee| fee.to_string())
    }

    /// Whether `txHash` is the signature of a transaction that the client is to send itself: on
    /// Solana's networks a transaction is known by its first signature. Who may not see signatures
    /// must not see such a hash: with it the transaction can be sent.
    pub fn hash_is_signature(&self) -> bool {
        self.network == Network::Solana
            && matches!(self.state, RequestState::Succeeded { sent: false, .. })
    }

    /// What executeSigningRequests answers; `None` while the request is pending.
    pub fn outcome(&self) -> Option<wire::ExecuteSigningRequestsResponse> {
        let shown = show(&self.state);
        match shown.status {
            Status::Unspecified | Status::Pending => None,
            Status::Succeeded => Some(wire::ExecuteSigningRequestsResponse {
                error: None,
                tx_hash: shown.tx_hash(),
                signatures: container(shown.signatures),
                signed_transaction: shown.signed_transaction(),
            }),
            Status::Failed => Some(wire::ExecuteSigningRequestsResponse {
                error: Some(wire::Error {
                    message: shown.failed_reason.to_owned(),
                    code: Some(Code::ExecuteSigningRequestsErrorCode(
                        wire_code(shown.code).into(),
                    )),
                }),
                ..Default::default()
            }),
        }
    }
}

impl PersonApproval {
    fn to_wire(&self) -> wire::GivenApproval {
        let ApprovalTerms {
            most_fee,
            valid_until_ms,
        } = self.terms;
        wire::GivenApproval {
            person: self.person.clone(),
            timestamp: self.at_ms,
            most_fee: most_fee.to_string(),
            valid_until_timestamp: valid_until_ms,
        }
    }
}

fn container(signatures: &[Signature]) -> Option<wire::SignatureContainer> {
    (!signatures.is_empty()).then(|| wire_signatures(signatures))
}

/// Signatures in the form of contract section 2.
pub fn wire_signatures(signatures: &[Signature]) -> wire::SignatureContainer {
    let one = |signature: &Signature| match signature {
        Signature::Ecdsa { r, s, y_parity } => {
            sign_response::Signature::EcdsaSignature(EcdsaSignature {
                r: format!("0x{}", hex::encode(r)),
                s: format!("0x{}", hex::encode(s)),
                v: y_parity.to_string(),
            })
        }
        Signature::Ed25519 { .. } => {
            sign_response::Signature::EddsaSignature(signature.to_bytes().to_vec())
        }
    };
    wire::SignatureContainer {
        signatures: signatures
            .iter()
            .map(|signature| SignResponse {
                signature: Some(one(signature)),
            })
            .collect(),
    }
}

fn wire_code(code: ExecuteCode) -> wire::ExecuteSigningRequestsErrorCode {
    match code {
        ExecuteCode::Unspecified => wire::ExecuteSigningRequestsErrorCode::Unspecified,
        ExecuteCode::InsufficientFunds => wire::ExecuteSigningRequestsErrorCode::InsufficientFunds,
        ExecuteCode::AlreadyDenied => wire::ExecuteSigningRequestsErrorCode::AlreadyDenied,
        ExecuteCode::InsufficientGasFee => {
            wire::ExecuteSigningRequestsErrorCode::InsufficientGasFee
        }
        ExecuteCode::AddressNotInWhitelist => {
            wire::ExecuteSigningRequestsErrorCode::AddressNotInWhitelist
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn wire_signatures__should_have_the_form_of_the_contract() {
        let ecdsa = Signature::Ecdsa {
            r: [0; 32],
            s: [0xab; 32],
            y_parity: 1,
        };
        let eddsa = Signature::Ed25519 {
            r: [1; 32],
            s: [2; 32],
        };
        let shown = wire_signatures(&[ecdsa, eddsa]).signatures;
        let Some(sign_response::Signature::EcdsaSignature(first)) = &shown[0].signature else {
            panic!("{shown:?}");
        };
        assert_eq!(first.r, format!("0x{}", "0".repeat(64)));
        assert_eq!(first.s, format!("0x{}", "ab".repeat(32)));
        assert_eq!(first.v, "1");
        let Some(sign_response::Signature::EddsaSignature(second)) = &shown[1].signature else {
            panic!("{shown:?}");
        };
        assert_eq!(second, &[[1u8; 32], [2; 32]].concat());
    }

    #[test]
    fn show__should_call_pending_whatever_is_not_over() {
        let failed = RequestState::Failed {
            reason: "no".into(),
            code: ExecuteCode::AlreadyDenied,
            signatures: vec![],
        };
        assert_eq!(show(&RequestState::Received).status, Status::Pending);
        assert_eq!(
            show(&RequestState::Screened { broadcast: true }).status,
            Status::Pending
        );
        assert_eq!(show(&failed).status, Status::Failed);
        assert_eq!(show(&failed).failed_reason, "no");
    }
}
