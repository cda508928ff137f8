//! Answers what signer nodes ask for the people who approve on their pages ([`crate::approval_page`]): with ordinary
//! operations, so that a node learns and does nothing that an approver on the console would not.

use std::{collections::HashMap, sync::Arc};

use covault_actors::{
    gateway::{Caller, Gateway, Share, Shares},
    operations::{
        ApproveSigningRequests, GetPendingSigningRequests, GetSigningRequestDetails, Operation,
    },
};
use covault_core::{
    approval::{ApprovalProof, ApprovalTerms, GivenApproval, WebAuthnAssertion},
    fault::{Class, Fault},
    ids::RequestId,
    order::NodeId,
    schema::wire,
};
use covault_mpc::{
    cluster::{AskedQuestion, Cluster},
    questions::{MAX_PENDING, MAX_PENDING_BYTES, NodeAnswer, NodeQuestion},
};
use prost::Message as _;
use tokio::sync::mpsc;

use crate::{
    api,
    shutdown::{self, StopSignal},
};

/// Questions that are answered at once, shared by the nodes that ask.
const AT_ONCE: usize = 8;
/// Requests of a page that is read, and pages that are read for one question: other vaults may have many.
const PAGE: i64 = 100;
const PAGES: usize = 10;
/// What the calls are named in logs.
const NAME: &str = "question-of-a-node";

/// Answers the questions of nodes until `stop`.
pub async fn serve(
    mut questions: mpsc::Receiver<AskedQuestion>,
    cluster: Arc<Cluster>,
    gateway: Gateway,
    mut stop: StopSignal,
) {
    let shares: Arc<Shares<NodeId>> = Shares::new(AT_ONCE);
    loop {
        let asked = tokio::select! {
            () = shutdown::requested(&mut stop) => return,
            asked = questions.recv() => asked,
        };
        let Some(asked) = asked else {
            return;
        };
        match shares.take(&[asked.node], 1) {
            Ok(share) => {
                let (cluster, gateway) = (Arc::clone(&cluster), gateway.clone());
                tokio::spawn(answer(asked, cluster, gateway, share));
            }
            Err(fault) => send(&cluster, &asked, Err(fault)),
        }
    }
}

async fn answer(
    asked: AskedQuestion,
    cluster: Arc<Cluster>,
    gateway: Gateway,
    _share: Share<NodeId>,
) {
    let answers = NodeAnswers {
        gateway: &gateway,
        caller: Caller::service(NAME),
        node: asked.node,
    };
    let answer = match &asked.question {
        NodeQuestion::Pending { request: None } => answers.pending().await,
        NodeQuestion::Pending {
            request: Some(request),
        } => answers.one(*request).await,
        NodeQuestion::Approve {
            request,
            terms,
            given,
        } => answers.approve(*request, *terms, given).await,
    };
    send(&cluster, &asked, answer);
}

fn send(cluster: &Cluster, asked: &AskedQuestion, answer: Result<NodeAnswer, Fault>) {
    let answer = answer.unwrap_or_else(|fault| {
        tracing::info!(
            node = asked.node.openssh_line(""),
            ?fault,
            "a question of a node is refused"
        );
        NodeAnswer::Refused {
            problem: api::sentence(&fault, NAME),
        }
    });
    if let Err(fault) = cluster.answer(asked, &answer) {
        tracing::warn!(?fault, "failed to answer a node");
    }
}

/// What one node may know and do.
struct NodeAnswers<'a> {
    gateway: &'a Gateway,
    caller: Caller,
    node: NodeId,
}

impl NodeAnswers<'_> {
    async fn call<O: Operation>(&self, request: &O::Request) -> Result<O::Response, Fault> {
        let called = self.gateway.call_typed::<O>(&self.caller, request, None);
        Ok(called.await?.0)
    }

    /// Whether the node is among the signers of the vault: what others' vaults pay is not its business.
    async fn is_signer(&self, vault: &str) -> Result<bool, Fault> {
        let vault = self.gateway.pages(&self.caller).vault(vault).await?;
        let is_it = |line: &String| NodeId::parse_openssh_line(line) == Ok(self.node);
        Ok(vault.signers.iter().any(is_it))
    }

    /// What waits, those first that are due first.
    async fn pending(&self) -> Result<NodeAnswer, Fault> {
        let mut signers: HashMap<String, bool> = HashMap::new();
        let (mut requests, mut bytes, mut after) = (Vec::new(), 0_usize, String::new());
        for _ in 0..PAGES {
            let page = wire::GetPendingSigningRequestsRequest {
                vault_uuid: String::new(),
                limit: Some(PAGE),
                after_uuid: after,
            };
            let page = self.call::<GetPendingSigningRequests>(&page).await?;
            let page = page.signing_requests;
            let Some(last) = page.last().map(|last| last.uuid.clone()) else {
                let more = false;
                return Ok(NodeAnswer::Pending { requests, more });
            };
            after = last;
            for listed in &page {
                let vault = listed.vault_uuid.clone().unwrap_or_default();
                let is_signer = match signers.get(&vault) {
                    Some(known) => *known,
                    None => {
                        let found = self.is_signer(&vault).await?;
                        signers.insert(vault, found);
                        found
                    }
                };
                if !is_signer {
                    continue;
                }
                let Some(told) = self.told(&listed.uuid).await? else {
                    continue;
                };
                bytes = bytes.saturating_add(told.len());
                if requests.len() >= MAX_PENDING || bytes > MAX_PENDING_BYTES {
                    let more = true;
                    return Ok(NodeAnswer::Pending { requests, more });
                }
                requests.push(told);
            }
        }
        let more = true;
        Ok(NodeAnswer::Pending { requests, more })
    }

    /// One request, when it waits and the node is among its signers.
    async fn one(&self, request: RequestId) -> Result<NodeAnswer, Fault> {
        let told = self.told(&request.to_string()).await?;
        let mut requests = Vec::new();
        if let Some(told) = told {
            let whole = wire::SigningRequest::decode(told.as_slice()).map_err(Fault::bug)?;
            let vault = whole.vault_uuid.unwrap_or_default();
            if told.len() <= MAX_PENDING_BYTES && self.is_signer(&vault).await? {
                requests.push(told);
            }
        }
        let more = false;
        Ok(NodeAnswer::Pending { requests, more })
    }

    /// What people are shown of a request that waits, in bytes.
    async fn told(&self, uuid: &str) -> Result<Option<Vec<u8>>, Fault> {
        let request = wire::GetSigningRequestDetailsRequest {
            uuid: uuid.to_owned(),
        };
        let details = self.call::<GetSigningRequestDetails>(&request).await;
        let request = match details {
            Ok(details) => details.signing_request,
            // It is gone, or was never there.
            Err(fault) if *fault.class() == Class::Invalid => None,
            Err(fault) => return Err(fault),
        };
        let told = request
            .filter(|it| it.approval_subject.is_some())
            .map(|it| {
                // The payload is in what is approved. Nothing else is shown there.
                let told = wire::SigningRequest {
                    uuid: it.uuid,
                    vault_uuid: it.vault_uuid,
                    notes: it.notes,
                    status: it.status,
                    creation_timestamp: it.creation_timestamp,
                    approval_expiry_timestamp: it.approval_expiry_timestamp,
                    approvals: it.approvals,
                    required_approval_count: it.required_approval_count,
                    remaining_approval_count: it.remaining_approval_count,
                    approval_wanted: it.approval_wanted,
                    approval_subject: it.approval_subject,
                    ..Default::default()
                };
                told.encode_to_vec()
            });
        Ok(told)
    }

    /// Has an approval stored. Whose it is, and whether it is one, the operation finds out.
    async fn approve(
        &self,
        request: RequestId,
        terms: ApprovalTerms,
        given: &GivenApproval,
    ) -> Result<NodeAnswer, Fault> {
        let ApprovalProof::WebAuthn {
            credential_id,
            assertion,
        } = &given.proof
        else {
            return Err(Fault::field("proof", "is not a passkey's"));
        };
        // Of the vaults of others it learns nothing here either.
        let waits = self.one(request).await?;
        if !matches!(&waits, NodeAnswer::Pending { requests, .. } if !requests.is_empty()) {
            return Err(Fault::invalid_uuid());
        }
        let WebAuthnAssertion {
            authenticator_data,
            client_data_json,
            signature,
        } = assertion.clone();
        let proof = wire::WebAuthnProof {
            credential_id: credential_id.clone(),
            authenticator_data,
            client_data_json,
            signature,
        };
        let approval = wire::ApproveSigningRequestsRequest {
            uuids: vec![request.to_string()],
            approval: Some(wire::Approval {
                most_fee: terms.most_fee.to_string(),
                valid_until_ms: terms.valid_until_ms,
                list: given.list.iter().map(|id| id.to_vec()).collect(),
                proof: Some(wire::PersonProof {
                    r#type: Some(wire::person_proof::Type::WebAuthn(proof)),
                }),
            }),
        };
        let answer = self.call::<ApproveSigningRequests>(&approval).await?;
        let result = answer.results.into_iter().next();
        let result = result.ok_or_else(|| Fault::bug("an approval without a result"))?;
        Ok(match result.error {
            None => NodeAnswer::Approved {
                missing: result.remaining_approval_count,
            },
            Some(error) => NodeAnswer::Refused {
                problem: error.message,
            },
        })
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{
        approval::{Approval, testing::TestPasskey},
        networks::Network,
        port::Clock as _,
    };

    use super::*;
    use crate::{adapters::SystemClock, console::tests::World, http::tests::routes::signer};

    fn told(answer: Result<NodeAnswer, Fault>) -> Vec<wire::SigningRequest> {
        let Ok(NodeAnswer::Pending { requests, more }) = answer else {
            panic!("{answer:?}");
        };
        assert!(!more);
        let decode = |bytes: &Vec<u8>| wire::SigningRequest::decode(bytes.as_slice()).unwrap();
        requests.iter().map(decode).collect()
    }

    #[tokio::test]
    async fn node__should_learn_what_waits_in_its_vaults_alone_and_bring_approvals() {
        let world = World::new().await;
        let person = world.person("treasurer", "approver", &[]).await;
        let vault = world
            .vault("treasury", 1, &[("treasurer", &person.line)])
            .await;
        let from = world.wallet(&vault, "hot").await;
        let uuid = world.message(&from, "hello", "a note").await;
        let of = |seed| NodeAnswers {
            gateway: &world.api.gateway,
            caller: Caller::service(NAME),
            node: signer(seed),
        };
        let id: RequestId = uuid.parse().unwrap();
        let all = told(of(1).pending().await);
        assert_eq!(all, told(of(1).one(id).await));
        let [request] = all.as_slice() else {
            panic!("{all:?}");
        };
        assert_eq!(
            (&request.uuid, request.notes.as_deref()),
            (&uuid, Some("a note"))
        );
        // Another node, and a request that is not there.
        assert!(told(of(9).pending().await).is_empty());
        assert!(told(of(9).one(id).await).is_empty());
        let none = RequestId::from_bytes([7; 16]);
        assert!(told(of(1).one(none).await).is_empty());

        let subject = request.approval_subject.as_ref().unwrap();
        let terms = ApprovalTerms {
            most_fee: 0,
            valid_until_ms: SystemClock.now_ms() + 20 * 3_600_000,
        };
        let approval = Approval::new(
            vault.parse().unwrap(),
            &subject.root_public_key,
            id,
            Network::Evm,
            &subject.address,
            &subject.payload,
            terms,
        );
        let given = |passkey: &TestPasskey| passkey.given(passkey.assert(&approval.id().unwrap()));
        let stranger = TestPasskey::new("treasurer@key-1", 9);
        let refused = of(1).approve(id, terms, &given(&stranger)).await.unwrap();
        let NodeAnswer::Refused { problem } = refused else {
            panic!("{refused:?}");
        };
        assert!(problem.contains("key belongs to no approver"), "{problem}");
        let approved = of(1).approve(id, terms, &given(&person.passkey)).await;
        assert_eq!(approved, Ok(NodeAnswer::Approved { missing: 0 }));
        let ssh = GivenApproval {
            list: Vec::new(),
            proof: ApprovalProof::Ssh(String::new()),
        };
        assert!(of(1).approve(id, terms, &ssh).await.is_err());
    }
}
