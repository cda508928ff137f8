//! Vaults whose requests people approve.

mod approving;
mod changing;
mod crashes;
mod ending;
mod held;
mod rule;
mod several;
mod telling;
mod waiting;
mod wanted;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use covault_actors::{
    chain_rpc::TransactionSighting,
    gateway::{Caller, Gateway, VaultScope},
    operations::{
        ApproveSigningRequest, CreateSigningRequest, CreateVault, GetPendingSigningRequests,
        GetSigningRequestList, RejectSigningRequest,
    },
    store::{KeySpace, Scan, Store, memory::MemoryStore},
};
use covault_core::{
    approval::{
        Approval, ApprovalProof, WebAuthnAssertion, list_challenge, rejection_challenge,
        rejections_challenge, testing::TestPasskey,
    },
    fault::{Class, Fault},
    ids::VaultId,
    networks::Network,
    order::NodeId,
    schema::{
        admin,
        wire::{
            self, ExecuteSigningRequestsErrorCode as ErrorCode, person_proof::Type as ProofType,
            signing_request::Status,
        },
    },
    token::TokenAccess,
};
use ed25519_dalek::{Signer as _, SigningKey};
use sha2::{Digest as _, Sha256};

use crate::{
    chain_double::FINAL,
    faulty_store::{FaultyStore, StoreFault},
    requests::code,
    world::*,
};

/// More than the chain of the tests takes, in wei.
const FEE: u128 = 1_000_000_000_000_000;
const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;

/// A person with a key.
enum Person {
    Passkey(Box<TestPasskey>),
    Key(Box<SigningKey>),
}

impl Person {
    fn key(seed: u8) -> Self {
        Self::Key(Box::new(SigningKey::from_bytes(&[seed; 32])))
    }

    fn passkey(name: &str, number: u8) -> Self {
        Self::Passkey(Box::new(TestPasskey::new(name, number)))
    }

    fn line(&self) -> String {
        match self {
            Self::Passkey(passkey) => passkey.line().line().unwrap(),
            Self::Key(key) => NodeId(key.verifying_key().to_bytes()).openssh_line(""),
        }
    }

    fn sign(&self, challenge: &[u8; 32]) -> wire::PersonProof {
        let proof = match self {
            Self::Passkey(passkey) => {
                let WebAuthnAssertion {
                    authenticator_data,
                    client_data_json,
                    signature,
                } = passkey.assert(challenge);
                ProofType::WebAuthn(wire::WebAuthnProof {
                    credential_id: passkey.passkey.credential_id.clone(),
                    authenticator_data,
                    client_data_json,
                    signature,
                })
            }
            Self::Key(key) => ProofType::Node(wire::NodeProof {
                public_key: self.line(),
                signature: key.sign(&ApprovalProof::node_statement(challenge)).to_vec(),
            }),
        };
        wire::PersonProof {
            r#type: Some(proof),
        }
    }

    /// This person's approval of what a request shows.
    fn approval(
        &self,
        request: &wire::SigningRequest,
        most_fee: u128,
        until_ms: u64,
    ) -> wire::Approval {
        let id = intent(request, most_fee, until_ms).id().unwrap();
        wire::Approval {
            most_fee: most_fee.to_string(),
            valid_until_ms: until_ms,
            list: Vec::new(),
            proof: Some(self.sign(&id)),
        }
    }
}

/// What a person's device builds of what it is shown.
fn intent(request: &wire::SigningRequest, most_fee: u128, valid_until_ms: u64) -> Approval {
    let subject = request.approval_subject.clone().unwrap();
    assert_eq!(subject.network, Network::Evm.name());
    Approval {
        vault: request.vault_uuid.clone().unwrap().parse().unwrap(),
        root_public_key: subject.root_public_key,
        request: request.uuid.parse().unwrap(),
        network: Network::Evm,
        address: subject.address,
        payload_sha256: Sha256::digest(&subject.payload).into(),
        most_fee,
        valid_until_ms,
    }
}

fn persons() -> [Person; 3] {
    [
        Person::passkey("treasurer", 1),
        Person::key(2),
        Person::passkey("director", 3),
    ]
}

fn rule(mode: &str, needs: u32) -> admin::ApprovalRule {
    let names = ["treasurer", "controller", "director"];
    let mut of: Vec<_> = names
        .iter()
        .zip(persons())
        .map(|(name, person)| admin::Approver {
            name: (*name).to_owned(),
            keys: vec![person.line()],
        })
        .collect();
    // A second key is the same person's.
    of[0].keys.push(Person::key(9).line());
    admin::ApprovalRule {
        mode: mode.into(),
        needs,
        of,
        ..Default::default()
    }
}

pub async fn vault_with(gateway: &Gateway, approvals: admin::ApprovalRule) -> VaultId {
    assert!(admit(gateway).await);
    let request = admin::CreateVaultRequest {
        approvals: Some(approvals),
        ..vault_request("manual")
    };
    let made = call::<CreateVault>(gateway, &admin(), request).await;
    let vault = made.unwrap().vault.unwrap();
    ready(gateway, "manual").await;
    vault.uuid.parse().unwrap()
}

/// A vault in which two people have to approve.
pub async fn manual_vault(gateway: &Gateway) -> VaultId {
    vault_with(gateway, rule("manual", 2)).await
}

async fn manual(gateway: &Gateway) -> String {
    let vault = vault_with(gateway, rule("manual", 2)).await;
    evm_wallet(gateway, vault).await
}

async fn approve(
    gateway: &Gateway,
    uuid: &str,
    approval: wire::Approval,
) -> Result<wire::SigningRequest, Fault> {
    let request = wire::ApproveSigningRequestRequest {
        uuid: uuid.into(),
        approval: Some(approval),
    };
    let approved = call::<ApproveSigningRequest>(gateway, &admin(), request).await?;
    Ok(approved.signing_request.unwrap())
}

async fn reject(
    gateway: &Gateway,
    uuid: &str,
    rejection: Option<wire::PersonProof>,
) -> Result<(), Fault> {
    let request = wire::RejectSigningRequestRequest {
        uuid: uuid.into(),
        rejection,
    };
    call::<RejectSigningRequest>(gateway, &admin(), request).await?;
    Ok(())
}

async fn pending(
    gateway: &Gateway,
    caller: &Caller,
    vault_uuid: &str,
    after: &str,
    limit: i64,
) -> Result<Vec<String>, Fault> {
    let request = wire::GetPendingSigningRequestsRequest {
        vault_uuid: vault_uuid.into(),
        limit: Some(limit),
        after: after.into(),
        ..Default::default()
    };
    let found = call::<GetPendingSigningRequests>(gateway, caller, request).await?;
    let uuids = found.signing_requests.into_iter().map(|it| it.uuid);
    Ok(uuids.collect())
}

/// All that wait, so many to a page.
async fn all_pages(gateway: &Gateway, caller: &Caller, vault_uuid: &str, most: i64) -> Vec<String> {
    let mut request = wire::GetPendingSigningRequestsRequest {
        vault_uuid: vault_uuid.into(),
        limit: Some(most),
        ..Default::default()
    };
    let mut found = Vec::new();
    loop {
        let page = call::<GetPendingSigningRequests>(gateway, caller, request.clone()).await;
        let page = page.unwrap();
        found.extend(page.signing_requests.into_iter().map(|it| it.uuid));
        if page.next.is_empty() {
            return found;
        }
        request.after = page.next;
    }
}

/// A page, and what the next one is asked with.
async fn pending_after(
    gateway: &Gateway,
    caller: &Caller,
    after: &str,
    limit: i64,
) -> Result<(Vec<String>, String), Fault> {
    let request = wire::GetPendingSigningRequestsRequest {
        limit: Some(limit),
        after: after.into(),
        ..Default::default()
    };
    let found = call::<GetPendingSigningRequests>(gateway, caller, request).await?;
    let uuids = found.signing_requests.into_iter().map(|it| it.uuid);
    Ok((uuids.collect(), found.next))
}

/// Waits until people are asked about a request.
async fn waits(gateway: &Gateway, uuid: &str) -> wire::SigningRequest {
    loop {
        let shown = details(gateway, uuid).await;
        if shown.pending_operation == "approve" {
            return shown;
        }
        assert_eq!(shown.status(), Status::Pending);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn rows(world: &World, space: KeySpace) -> usize {
    let all = Scan::prefix(space, &[], 100_000);
    world.store.scan(&all).await.unwrap().len()
}
