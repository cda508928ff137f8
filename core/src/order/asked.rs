//! What a client signer shows the program that decides for it.

use super::{NodeId, SigningOrder};
use crate::{amount::U256, fault::Fault, networks::Payload, schema::wire};

impl SigningOrder {
    /// The most that the wallet can pay as fee, in the smallest unit of the coin: what approvals are bound by.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] when the payload cannot be read, [`crate::fault::Class::Bug`] when the
    /// transaction is not what the network's rules make.
    pub fn most_fee(&self) -> Result<U256, Fault> {
        match Payload::decode(&self.payload)?.pays_fee() {
            true => self.network.rules().most_fee(&self.unsigned),
            false => Ok(U256::ZERO),
        }
    }

    /// The signing request as its order shows it to the client signer that it names: what that has verified itself, and
    /// so without what only the orchestrator knows, such as notes.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] when the payload cannot be read.
    pub fn signing_request(&self, signer: &NodeId) -> Result<wire::SigningRequest, Fault> {
        Ok(wire::SigningRequest {
            uuid: self.request.to_string(),
            status: wire::signing_request::Status::Pending.into(),
            creation_timestamp: self.issued_at_ms,
            r#type: Some(Payload::decode(&self.payload)?.echo()),
            vault_uuid: Some(self.vault.to_string()),
            callback_client_signer_public_key: Some(signer.openssh_line("")),
            ..Default::default()
        })
    }
}
