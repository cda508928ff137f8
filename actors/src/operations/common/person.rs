//! Signatures of people, as they arrive over the API.

use covault_core::{
    amount,
    approval::{ApprovalProof, ApprovalTerms, GivenApproval, WebAuthnAssertion},
    fault::Fault,
    order::NodeId,
    schema::wire::{self, person_proof::Type},
};

/// An approval. What is wrong with it is a field of `approval`.
pub fn approval(message: Option<wire::Approval>) -> Result<(ApprovalTerms, GivenApproval), Fault> {
    let missing = "is required: a token alone approves nothing; the person signs with `covault approve` or on a page of \
                   the service";
    let wire::Approval {
        most_fee,
        valid_until_ms,
        list,
        proof,
    } = message.ok_or_else(|| Fault::field("approval", missing))?;
    let parse = || {
        let most_fee = match most_fee.as_str() {
            "" => 0,
            text => amount::parse_u128(text).map_err(|error| Fault::field("mostFee", error))?,
        };
        let id = |(place, id): (usize, Vec<u8>)| {
            let problem = "must be 32 bytes";
            let id = id.try_into();
            id.map_err(|_| Fault::field(format_args!("list[{place}]"), problem))
        };
        let list: Result<Vec<_>, _> = list.into_iter().enumerate().map(id).collect();
        let terms = ApprovalTerms {
            most_fee,
            valid_until_ms,
        };
        let given = GivenApproval {
            list: list?,
            proof: self::proof(proof).map_err(|fault| fault.with_prefix("proof"))?,
        };
        Ok((terms, given))
    };
    parse().map_err(|fault: Fault| fault.with_prefix("approval"))
}

/// A signature. What is wrong with it is a field of it.
pub fn proof(message: Option<wire::PersonProof>) -> Result<ApprovalProof, Fault> {
    let kind = message
        .and_then(|message| message.r#type)
        .ok_or_else(|| Fault::field("type", "must be one of webAuthn, ssh and node"))?;
    Ok(match kind {
        Type::WebAuthn(wire::WebAuthnProof {
            credential_id,
            authenticator_data,
            client_data_json,
            signature,
        }) => ApprovalProof::WebAuthn {
            credential_id,
            assertion: WebAuthnAssertion {
                authenticator_data,
                client_data_json,
                signature,
            },
        },
        Type::Ssh(text) => ApprovalProof::Ssh(text),
        Type::Node(wire::NodeProof {
            public_key,
            signature,
        }) => ApprovalProof::Node {
            node: NodeId::parse_openssh_line(&public_key)
                .map_err(|fault| Fault::field("node.publicKey", fault.message()))?,
            signature,
        },
    })
}
