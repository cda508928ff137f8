//! Answers what signer nodes ask for the people who approve on their pages ([`crate::approval_page`]): with ordinary
//! operations, so that a node learns and does nothing that an approver on the console would not.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use covault_actors::{
    gateway::{Caller, Gateway, Share, Shares},
    operations::{
        ApproveSigningRequests, GetPendingSigningRequests, GetSigningRequestDetails, Operation,
        RejectSigningRequests,
    },
};
use covault_core::{
    approval::{ApprovalProof, GivenApproval, WebAuthnAssertion},
    fault::{Class, Fault},
    ids::RequestId,
    order::NodeId,
    schema::wire,
};
use covault_mpc::{
    cluster::{AskedQuestion, Cluster},
    questions::{
        ApprovedRequest, MAX_PENDING, MAX_PENDING_BYTES, NodeAnswer, NodeOutcome, NodeQuestion,
    },
};
use futures::future::join_all;
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
/// Requests that are read side by side: a node waits for all of a gesture.
const READS: usize = 16;
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
        NodeQuestion::Pending { requests } if requests.is_empty() => answers.pending().await,
        NodeQuestion::Pending { requests } => answers.these(requests).await,
        NodeQuestion::Approve { requests, given } => answers.approve(requests, given).await,
        NodeQuestion::Reject {
            requests,
            reason,
            proof,
        } => answers.reject(requests, reason, proof).await,
    };
    send(&cluster, &asked, answer);
}

fn send(cluster: &Cluster, asked: &AskedQuestion, answer: Result<NodeAnswer, Fault>) {
    let answer = answer.unwrap_or_else(|fault| {
        // As often as the node likes: its page says so, and a node must not fill the disk with words.
        tracing::debug!(
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
        let mut waiting: BTreeMap<String, VecDeque<String>> = BTreeMap::new();
        // One vault that cannot be read keeps nobody from the others.
        let (mut after, mut is_last, mut is_unread) = (String::new(), false, false);
        for _ in 0..PAGES {
            let page = wire::GetPendingSigningRequestsRequest {
                limit: Some(PAGE),
                after,
                ..Default::default()
            };
            let page = self.call::<GetPendingSigningRequests>(&page).await?;
            after = page.next;
            for listed in &page.signing_requests {
                let vault = listed.vault_uuid.clone().unwrap_or_default();
                let is_signer = match signers.get(&vault) {
                    Some(known) => *known,
                    None => {
                        let found = self.is_signer(&vault).await;
                        let found = found.unwrap_or_else(|fault| {
                            tracing::debug!(
                                vault,
                                ?fault,
                                "a node is not told what waits in a vault"
                            );
                            is_unread = true;
                            false
                        });
                        signers.insert(vault.clone(), found);
                        found
                    }
                };
                if is_signer {
                    let of_vault = waiting.entry(vault).or_default();
                    of_vault.push_back(listed.uuid.clone());
                }
            }
            is_last = after.is_empty();
            if is_last {
                break;
            }
        }
        // The vaults in turns: one of which much waits, or what is large, hides no other.
        let (mut requests, mut bytes) = (Vec::new(), 0_usize);
        let mut more = !is_last || is_unread;
        loop {
            let next = waiting.values_mut().filter_map(VecDeque::pop_front);
            let turn: Vec<String> = next.collect();
            if turn.is_empty() {
                return Ok(NodeAnswer::Pending { requests, more });
            }
            for uuid in turn {
                if requests.len() >= MAX_PENDING {
                    return Ok(NodeAnswer::Pending {
                        requests,
                        more: true,
                    });
                }
                match self.told(&uuid).await {
                    Ok(None) => {}
                    Ok(Some(told)) if bytes.saturating_add(told.len()) <= MAX_PENDING_BYTES => {
                        bytes = bytes.saturating_add(told.len());
                        requests.push(told);
                    }
                    Ok(Some(_)) => more = true,
                    Err(fault) => {
                        tracing::debug!(uuid, ?fault, "a node is not told of a request");
                        more = true;
                    }
                }
            }
        }
    }

    /// These requests, those of them that wait and whose signers the node is among.
    async fn these(&self, ids: &[RequestId]) -> Result<NodeAnswer, Fault> {
        let mut signers: HashMap<String, bool> = HashMap::new();
        let (mut requests, mut bytes, mut more) = (Vec::new(), 0_usize, false);
        for ids in ids.chunks(READS) {
            let told = join_all(ids.iter().map(|id| self.told_of(*id))).await;
            for (id, told) in ids.iter().zip(told) {
                // One that cannot be read keeps nobody from the others.
                match self.to_its_signers(&mut signers, told).await {
                    Ok(None) => {}
                    Ok(Some(told)) if bytes.saturating_add(told.len()) <= MAX_PENDING_BYTES => {
                        bytes = bytes.saturating_add(told.len());
                        requests.push(told);
                    }
                    Ok(Some(_)) => more = true,
                    Err(fault) => {
                        tracing::debug!(request = %id, ?fault, "a node is not told of a request");
                        more = true;
                    }
                }
            }
        }
        Ok(NodeAnswer::Pending { requests, more })
    }

    /// What is told of a request, when the node is among the signers of its vault; each vault is looked up once.
    async fn to_its_signers(
        &self,
        signers: &mut HashMap<String, bool>,
        told: Result<Option<Vec<u8>>, Fault>,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let Some(told) = told? else {
            return Ok(None);
        };
        let whole = wire::SigningRequest::decode(told.as_slice()).map_err(Fault::bug)?;
        let vault = whole.vault_uuid.unwrap_or_default();
        let is_signer = match signers.get(&vault) {
            Some(known) => *known,
            None => {
                let found = self.is_signer(&vault).await?;
                signers.insert(vault, found);
                found
            }
        };
        Ok(is_signer.then_some(told))
    }

    /// A request with its vault, when it waits and the node is among its signers.
    async fn of_its_vaults(&self, id: RequestId) -> Result<Option<(String, Vec<u8>)>, Fault> {
        let Some(told) = self.told_of(id).await? else {
            return Ok(None);
        };
        let whole = wire::SigningRequest::decode(told.as_slice()).map_err(Fault::bug)?;
        let vault = whole.vault_uuid.unwrap_or_default();
        let is_signer = self.is_signer(&vault).await?;
        Ok(is_signer.then_some((vault, told)))
    }

    async fn told_of(&self, id: RequestId) -> Result<Option<Vec<u8>>, Fault> {
        self.told(&id.to_string()).await
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

    /// The vault of a request that waits and whose signers the node is among. Of the vaults of others it learns nothing, and
    /// brings nothing there.
    async fn own_vault(&self, request: RequestId) -> Result<String, Fault> {
        let found = self.of_its_vaults(request).await?;
        found
            .map(|(vault, _)| vault)
            .ok_or_else(Fault::invalid_uuid)
    }

    /// Has approvals stored. Whose they are, and whether they are any, the operation finds out.
    async fn approve(
        &self,
        requests: &[ApprovedRequest],
        given: &GivenApproval,
    ) -> Result<NodeAnswer, Fault> {
        let proof = passkeys_proof(&given.proof)?;
        let mut outcomes = HashMap::new();
        // A call is about one vault, one highest fee and one end.
        let mut calls: BTreeMap<_, Vec<RequestId>> = BTreeMap::new();
        for ApprovedRequest { request, terms } in requests {
            match self.own_vault(*request).await {
                Ok(vault) => {
                    let call = (vault, terms.most_fee, terms.valid_until_ms);
                    calls.entry(call).or_default().push(*request);
                }
                Err(fault) => self.refused(&mut outcomes, &[*request], &fault),
            }
        }
        for ((_, most_fee, valid_until_ms), ids) in calls {
            let approval = wire::ApproveSigningRequestsRequest {
                uuids: ids.iter().map(RequestId::to_string).collect(),
                approval: Some(wire::Approval {
                    most_fee: most_fee.to_string(),
                    valid_until_ms,
                    list: given.list.iter().map(|id| id.to_vec()).collect(),
                    proof: Some(proof.clone()),
                }),
            };
            match self.call::<ApproveSigningRequests>(&approval).await {
                Ok(answer) => add(&mut outcomes, answer.results),
                Err(fault) => self.refused(&mut outcomes, &ids, &fault),
            }
        }
        let ids = requests.iter().map(|it| it.request);
        Ok(done(ids, outcomes))
    }

    /// Has a rejection stored, likewise. Its proof is of all of the requests together.
    async fn reject(
        &self,
        requests: &[RequestId],
        reason: &str,
        proof: &ApprovalProof,
    ) -> Result<NodeAnswer, Fault> {
        let proof = passkeys_proof(proof)?;
        let mut any = false;
        for request in requests {
            // What has ended, or was never here, keeps nobody from rejecting the others: its own result says so.
            let Some(told) = self.told_of(*request).await? else {
                continue;
            };
            let whole = wire::SigningRequest::decode(told.as_slice()).map_err(Fault::bug)?;
            if !self
                .is_signer(&whole.vault_uuid.unwrap_or_default())
                .await?
            {
                return Err(Fault::invalid_uuid());
            }
            any = true;
        }
        if !any {
            return Err(Fault::invalid_uuid());
        }
        let rejection = wire::RejectSigningRequestsRequest {
            uuids: requests.iter().map(RequestId::to_string).collect(),
            rejection: Some(proof),
            reason: reason.to_owned(),
        };
        let answer = self.call::<RejectSigningRequests>(&rejection).await?;
        let mut outcomes = HashMap::new();
        add(&mut outcomes, answer.results);
        Ok(done(requests.iter().copied(), outcomes))
    }

    fn refused(&self, outcomes: &mut Outcomes, ids: &[RequestId], fault: &Fault) {
        let problem = api::sentence(fault, NAME);
        tracing::debug!(
            node = self.node.openssh_line(""),
            ?fault,
            "an approval of a node's page is refused"
        );
        for id in ids {
            let problem = problem.clone();
            outcomes.insert(id.to_string(), NodeOutcome::Refused { problem });
        }
    }
}

/// What became of requests, by their ids.
type Outcomes = HashMap<String, NodeOutcome>;

fn add(outcomes: &mut Outcomes, results: Vec<wire::SigningRequestResult>) {
    for result in results {
        let outcome = match result.error {
            None => NodeOutcome::Done {
                missing: result.remaining_approval_count,
            },
            Some(error) => NodeOutcome::Refused {
                problem: error.message,
            },
        };
        outcomes.insert(result.uuid, outcome);
    }
}

fn done(ids: impl Iterator<Item = RequestId>, mut outcomes: Outcomes) -> NodeAnswer {
    let outcome = |id: RequestId| {
        let outcome = outcomes.remove(&id.to_string());
        outcome.unwrap_or_else(|| NodeOutcome::Refused {
            problem: "nothing is known of it".to_owned(),
        })
    };
    let outcomes = ids.map(outcome).collect();
    NodeAnswer::Done { outcomes }
}

/// The proof as operations take it. People use nothing but passkeys on pages.
fn passkeys_proof(proof: &ApprovalProof) -> Result<wire::PersonProof, Fault> {
    let ApprovalProof::WebAuthn {
        credential_id,
        assertion,
    } = proof
    else {
        return Err(Fault::field("proof", "is not a passkey's"));
    };
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
    Ok(wire::PersonProof {
        r#type: Some(wire::person_proof::Type::WebAuthn(proof)),
    })
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{
        approval::{
            Approval, ApprovalTerms, list_challenge, rejections_challenge, testing::TestPasskey,
        },
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
        assert_eq!(all, told(of(1).these(&[id]).await));
        let [request] = all.as_slice() else {
            panic!("{all:?}");
        };
        assert_eq!(
            (&request.uuid, request.notes.as_deref()),
            (&uuid, Some("a note"))
        );
        // Another node, and a request that is not there.
        assert!(told(of(9).pending().await).is_empty());
        assert!(told(of(9).these(&[id]).await).is_empty());
        let none = RequestId::from_bytes([7; 16]);
        assert!(told(of(1).these(&[none]).await).is_empty());
        let second = world.message(&from, "second", "a note").await;
        let third = world.message(&from, "third", "a note").await;
        let [second, third]: [RequestId; 2] = [second, third].map(|uuid| uuid.parse().unwrap());
        let both = told(of(1).these(&[second, none, third]).await);
        assert_eq!(both.len(), 2);

        // One gesture for two of them, with different ends.
        let now_ms = SystemClock.now_ms();
        let approval = |request: &wire::SigningRequest, hours: u64| {
            let subject = request.approval_subject.as_ref().unwrap();
            let terms = ApprovalTerms {
                most_fee: 0,
                valid_until_ms: now_ms + hours * 3_600_000,
            };
            let approval = Approval::new(
                vault.parse().unwrap(),
                &subject.root_public_key,
                request.uuid.parse().unwrap(),
                Network::Evm,
                &subject.address,
                &subject.payload,
                terms,
            );
            let request = approval.request;
            (ApprovedRequest { request, terms }, approval.id().unwrap())
        };
        let approvals = [approval(request, 20), approval(&both[0], 21)];
        let mut list = approvals.map(|(_, id)| id).to_vec();
        list.sort_unstable();
        let asked = approvals.map(|(asked, _)| asked);
        let given = |passkey: &TestPasskey| GivenApproval {
            list: list.clone(),
            ..passkey.given(passkey.assert(&list_challenge(&list).unwrap()))
        };
        let refused = |answer: Result<NodeAnswer, Fault>, why: &str| {
            let Ok(NodeAnswer::Done { outcomes }) = &answer else {
                panic!("{answer:?}");
            };
            let is_refused = |it: &NodeOutcome| matches!(it, NodeOutcome::Refused { problem } if problem.contains(why));
            assert!(outcomes.iter().all(is_refused), "{why}: {outcomes:?}");
        };
        let stranger = TestPasskey::new("treasurer@key-1", 9);
        let answer = of(1).approve(&asked, &given(&stranger)).await;
        refused(answer, "key belongs to no approver");
        // A node brings nothing to vaults of others.
        let good = given(&person.passkey);
        refused(of(9).approve(&asked, &good).await, "Invalid uuid");
        let outcomes = vec![NodeOutcome::Done { missing: 0 }; 2];
        assert_eq!(
            of(1).approve(&asked, &good).await,
            Ok(NodeAnswer::Done { outcomes })
        );
        let ssh = ApprovalProof::Ssh(String::new());
        let by_ssh = GivenApproval {
            list: Vec::new(),
            proof: ssh.clone(),
        };
        assert!(of(1).approve(&asked, &by_ssh).await.is_err());

        // The last one is rejected.
        let rejection = |passkey: &TestPasskey, ids: &[RequestId]| {
            let challenge = rejections_challenge(vault.parse().unwrap(), ids).unwrap();
            passkey.given(passkey.assert(&challenge)).proof
        };
        let good = rejection(&person.passkey, &[third]);
        assert!(of(9).reject(&[third], "", &good).await.is_err());
        assert!(of(1).reject(&[third], "", &ssh).await.is_err());
        let answer = of(1)
            .reject(&[third], "", &rejection(&stranger, &[third]))
            .await;
        refused(answer, "key belongs to no approver");
        // One of another request.
        let other = rejection(&person.passkey, &[second]);
        refused(of(1).reject(&[third], "", &other).await, "challenge");
        let answer = of(1).reject(&[third], "not ours", &good).await;
        let outcomes = vec![NodeOutcome::Done { missing: 0 }];
        assert_eq!(answer, Ok(NodeAnswer::Done { outcomes }));
        assert!(told(of(1).these(&[third]).await).is_empty());
    }
}
