//! What the wire shows of a request. Statuses are projections of the inner state.

use super::{RequestState, SigningRequest};
use crate::{
    fault::ExecuteCode,
    networks::{Network, Payload, Signed, evm::calls::AbiTable},
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
    sent: bool,
}

fn show(state: &RequestState) -> StateView<'_> {
    let mut shown = StateView {
        status: Status::Pending,
        failed_reason: "",
        code: ExecuteCode::Unspecified,
        signatures: &[],
        signed: None,
        sent: false,
    };
    match state {
        RequestState::Received
        | RequestState::Screened { .. }
        | RequestState::AwaitingApproval { .. }
        | RequestState::Preparing { .. }
        | RequestState::Prepared { .. }
        | RequestState::Signing { .. } => {}
        RequestState::Signed { signatures, .. } | RequestState::Broadcasting { signatures, .. } => {
            shown.signatures = signatures;
        }
        RequestState::Succeeded {
            signatures,
            signed,
            sent,
        } => {
            shown.status = Status::Succeeded;
            shown.signatures = signatures;
            shown.signed = signed.as_ref();
            shown.sent = *sent;
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

impl SigningRequest {
    /// The request as responses show it; without its payload where that can no longer be read.
    /// The call data of EVM transactions is put into words where it is one of `calls`.
    /// `simulation` is what came of trying the transaction, empty where nothing did.
    pub fn to_wire(&self, calls: &AbiTable, simulation: Vec<u8>) -> wire::SigningRequest {
        let shown = show(&self.state);
        let payload = Payload::decode(&self.payload).ok();
        wire::SigningRequest {
            uuid: self.id.to_string(),
            status: shown.status.into(),
            failed_reason: shown.failed_reason.to_owned(),
            tx_hash: shown
                .signed
                .map(|signed| signed.tx_hash.clone())
                .unwrap_or_default(),
            creation_timestamp: self.created_at_ms,
            r#type: payload.as_ref().map(Payload::echo),
            notes: self.notes.clone(),
            vault_uuid: Some(self.vault.to_string()),
            callback_client_signer_public_key: None,
            simulation,
            evm_input_data_decode: match &payload {
                Some(Payload::Evm(payload)) => {
                    payload.call_data().and_then(|input| calls.decode(&input))
                }
                _ => None,
            },
            signatures: container(shown.signatures),
            source: Some(Source {
                r#type: source::Type::Api.into(),
                website: String::new(),
            }),
        }
    }

    /// Whether `txHash` is the signature of a transaction that the client is to send itself: on
    /// Solana's networks a transaction is known by its first signature. Who may not see signatures
    /// must not see such a hash: with it the transaction can be sent.
    pub fn hash_is_signature(&self) -> bool {
        self.network == Network::Solana
            && matches!(self.state, RequestState::Succeeded { sent: false, .. })
    }

    /// What executeSigningRequests answers; `None` while the request is pending.
    /// `signedTransaction` is there for transactions that Covault did not send itself.
    pub fn outcome(&self) -> Option<wire::ExecuteSigningRequestsResponse> {
        let shown = show(&self.state);
        match shown.status {
            Status::Unspecified | Status::Pending => None,
            Status::Succeeded => Some(wire::ExecuteSigningRequestsResponse {
                error: None,
                tx_hash: shown
                    .signed
                    .map(|signed| signed.tx_hash.clone())
                    .unwrap_or_default(),
                signatures: container(shown.signatures),
                signed_transaction: shown
                    .signed
                    .filter(|_| !shown.sent)
                    .map(|signed| signed.transaction.clone())
                    .unwrap_or_default(),
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
