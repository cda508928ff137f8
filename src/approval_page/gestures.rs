//! Approving and rejecting on a node's page, one or several requests with one gesture of a passkey. Nothing is kept between
//! its two steps: what was signed says all, and the orchestrators are asked again.

use std::collections::{BTreeSet, HashMap};

use axum::http::StatusCode;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_core::{
    amount::{U256, parse_u128},
    approval::{
        Approval, ApprovalProof, ApprovalTerms, ApproverKey, GivenApproval, MAX_LIST, ProofFacts,
        Rejection, rejections_challenge,
    },
    fault::{Class, Fault},
    field,
    ids::{RequestId, VaultId},
    order::NodeId,
};
use covault_mpc::{
    questions::{ApprovedRequest, NodeAnswer, NodeOutcome, NodeQuestion},
    veto::log_rejected,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    PageCall,
    requests::{FoundRequests, WaitingRequest, not_waiting, waiting},
    sessions::{PageSession, check_form},
};
use crate::{
    approving::{gesture, gesture_of},
    console::{
        forbidden,
        gestures::{BeginRejectForm, NamedFee, asked_with},
        response::{self, PageError, PageResponse},
        sessions::{PATIENCE_MS, PasskeyAssertion},
        text::Text,
    },
};

/// Most characters of a reason to reject, as the service takes it.
const MAX_REASON: usize = 200;
/// What is said of a rejected request of which an orchestrator still tells.
const STILL_WAITS: &str = "an orchestrator still tells that it waits: reject it again, by itself";

#[derive(Deserialize)]
struct NodeBeginForm {
    form_token: String,
    items: Vec<NamedFee>,
}

/// What was signed of one request.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeApprovalItem {
    uuid: String,
    shown: String,
    most_fee: String,
    valid_until_ms: u64,
}

#[derive(Deserialize)]
struct NodeApproveForm {
    form_token: String,
    items: Vec<NodeApprovalItem>,
    credential: PasskeyAssertion,
}

#[derive(Deserialize)]
struct NodeRejectForm {
    form_token: String,
    uuids: Vec<String>,
    vault: String,
    #[serde(default)]
    reason: String,
    credential: PasskeyAssertion,
}

/// The requests that a form names: 1 to 100, each once.
fn ids_of<'a>(uuids: impl Iterator<Item = &'a String>) -> Result<Vec<RequestId>, PageError> {
    let ids: Result<Vec<RequestId>, _> = uuids.map(|uuid| uuid.parse()).collect();
    let ids = ids.map_err(|_| not_waiting())?;
    let different: BTreeSet<_> = ids.iter().collect();
    if !(1..=MAX_LIST).contains(&ids.len()) || different.len() < ids.len() {
        let problem = "choose 1 to 100 requests, each once";
        return Err(PageError::new(StatusCode::BAD_REQUEST, problem));
    }
    Ok(ids)
}

/// What the browser is to have signed, by a passkey of this person.
fn options(call: &PageCall<'_>, session: &PageSession, challenge: &[u8; 32]) -> Value {
    let id = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let passkeys = call.page.people.passkeys_of(&session.person);
    let passkeys: Vec<_> = passkeys
        .iter()
        .map(|known| json!({"type": "public-key", "id": id(known)}))
        .collect();
    json!({
        "challenge": id(challenge),
        "rpId": call.page.place.rp_id,
        "allowCredentials": passkeys,
        "userVerification": "required",
        "timeout": PATIENCE_MS,
    })
}

fn changed() -> PageError {
    let problem = "what the service tells of this request is not what this page has shown, nothing was signed for: load the \
                   page again and compare it with what was asked for";
    Fault::new(Class::WrongState, problem).into()
}

/// The one of those told that the page has shown.
fn as_shown<'a>(
    found: &'a FoundRequests,
    id: RequestId,
    shown: &str,
) -> Result<&'a WaitingRequest, PageError> {
    let of = found.requests.iter().filter(|it| it.id == id);
    if of.clone().next().is_none() {
        return Err(found.not_waiting());
    }
    of.into_iter()
        .find(|it| it.shown == shown)
        .ok_or_else(changed)
}

/// The passkey of the person who has signed in that a credential is of.
fn key_of(
    call: &PageCall<'_>,
    session: &PageSession,
    credential: &PasskeyAssertion,
) -> Result<(ApproverKey, ApprovalProof), PageError> {
    let (credential_id, assertion, _) = credential.decode()?;
    let owner = call.page.people.find(&credential_id);
    let owner = owner.filter(|(person, _)| *person == session.person);
    let (_, passkey) = owner.ok_or_else(|| {
        forbidden("this is not a passkey of who has signed in, made for this page")
    })?;
    let proof = ApprovalProof::WebAuthn {
        credential_id,
        assertion,
    };
    Ok((ApproverKey::Passkey(Box::new(passkey)), proof))
}

/// Whether the proof is over this challenge, made on this page.
fn is_signed(
    call: &PageCall<'_>,
    key: &ApproverKey,
    proof: &ApprovalProof,
    challenge: &[u8; 32],
) -> bool {
    let facts = key.verify(proof, challenge);
    matches!(facts, Ok(ProofFacts::WebAuthn { origin, .. }) if origin == call.page.place.origin)
}

pub async fn begin_approval(
    call: &PageCall<'_>,
    session: &PageSession,
) -> Result<PageResponse, PageError> {
    let form: NodeBeginForm = response::json_of(call.head, &call.body)?;
    check_form(session, &form.form_token)?;
    let ids = ids_of(form.items.iter().map(|it| &it.uuid))?;
    let found = waiting(call, session, &ids).await?;
    let (mut all, mut items) = (Vec::new(), Vec::new());
    for (id, wanted) in ids.into_iter().zip(&form.items) {
        let one = as_shown(&found, id, &wanted.shown)?;
        // Where orchestrators tell different things of one, nobody knows which is to be paid.
        if found.requests.iter().filter(|it| it.id == id).count() > 1 {
            return Err(changed());
        }
        let asked = asked_with(&one.request, &wanted.fee, call.now_ms())?;
        items.push(json!({
            "uuid": id.to_string(),
            "shown": one.shown,
            "mostFee": asked.approval.most_fee.to_string(),
            "validUntilMs": asked.approval.valid_until_ms,
        }));
        all.push(asked);
    }
    let (challenge, _) = gesture(&all)?;
    Ok(PageResponse::json(&json!({
        "publicKey": options(call, session, &challenge),
        "form": {"items": items},
    })))
}

/// Brings the approvals to the orchestrators that tell of what was signed, to each what it tells of, and to those that have
/// not said in time what they tell of.
pub async fn approve(
    call: &PageCall<'_>,
    session: &PageSession,
) -> Result<PageResponse, PageError> {
    let form: NodeApproveForm = response::json_of(call.head, &call.body)?;
    check_form(session, &form.form_token)?;
    let ids = ids_of(form.items.iter().map(|it| &it.uuid))?;
    let (key, proof) = key_of(call, session, &form.credential)?;
    let found = waiting(call, session, &ids).await?;
    let (mut approvals, mut told_by) = (Vec::<Approval>::new(), Vec::new());
    for (id, item) in ids.iter().zip(&form.items) {
        let terms = ApprovalTerms {
            most_fee: parse_u128(&item.most_fee).map_err(|error| Fault::field("mostFee", error))?,
            valid_until_ms: item.valid_until_ms,
        };
        let one = as_shown(&found, *id, &item.shown)?;
        let approval = one.approval(terms);
        let approval =
            approval.map_err(|error| Fault::new(Class::Invalid, format!("{error:#}")))?;
        approvals.push(approval);
        told_by.push((
            ApprovedRequest {
                request: *id,
                terms,
            },
            &one.by,
        ));
    }
    let (challenge, list) = gesture_of(approvals.iter())?;
    if !is_signed(call, &key, &proof, &challenge) {
        return Err(changed());
    }
    for approval in &approvals {
        approval.check_terms(U256::ZERO, call.now_ms())?;
    }
    let given = GivenApproval { list, proof };
    let mut questions: HashMap<NodeId, Vec<ApprovedRequest>> = HashMap::new();
    for (approved, by) in told_by {
        for orchestrator in by.iter().chain(&found.silent) {
            questions.entry(*orchestrator).or_default().push(approved);
        }
    }
    let questions = questions.into_iter().map(|(to, requests)| {
        let given = given.clone();
        (to, NodeQuestion::Approve { requests, given })
    });
    let outcomes = brought(call, questions.collect()).await?;
    let person = &session.person;
    for approval in &approvals {
        let said = outcomes.get(&approval.request);
        if let Some(said) = said.filter(|it| it.missing.is_some()) {
            let (request, vault) = (approval.request, approval.vault);
            let by_all = said.refused.is_none() && !said.is_unheard;
            tracing::info!(person, %request, %vault, by_all, "approved on this node's page, as the service says");
        }
    }
    Ok(answer(&ids, &outcomes, |missing| match missing {
        0 => {
            "approved; the service says that enough have approved it by the vault's rule".to_owned()
        }
        missing => format!(
            "approved; {missing} more to approve it by the vault's rule, as the service says"
        ),
    }))
}

pub async fn begin_rejection(
    call: &PageCall<'_>,
    session: &PageSession,
) -> Result<PageResponse, PageError> {
    let form: BeginRejectForm = response::json_of(call.head, &call.body)?;
    check_form(session, &form.form_token)?;
    field::label("reason", &form.reason, MAX_REASON)?;
    // One that is told differently is on the page as often.
    let mut uuids: Vec<_> = form.items.iter().map(|it| &it.uuid).collect();
    uuids.sort_unstable();
    uuids.dedup();
    let ids = ids_of(uuids.into_iter())?;
    let found = waiting(call, session, &ids).await?;
    // Of the vault of what was shown, whatever else is told of the same ids.
    let mut vaults = BTreeSet::new();
    for item in &form.items {
        let id = item.uuid.parse().map_err(|_| not_waiting())?;
        vaults.insert(as_shown(&found, id, &item.shown)?.vault);
    }
    let mut vaults = vaults.into_iter();
    let (Some(vault), None) = (vaults.next(), vaults.next()) else {
        let problem = "these are requests of several vaults: reject those of each by themselves";
        return Err(PageError::new(StatusCode::BAD_REQUEST, problem));
    };
    let challenge = rejections_challenge(vault, &ids)?;
    let uuids: Vec<_> = ids.iter().map(RequestId::to_string).collect();
    Ok(PageResponse::json(&json!({
        "publicKey": options(call, session, &challenge),
        "form": {"uuids": uuids, "reason": form.reason, "vault": vault.to_string()},
    })))
}

/// Brings a rejection to all orchestrators that tell of a request of it or have not answered, and has this node obey it where
/// the person could reject it by the node's own policy.
pub async fn reject(call: &PageCall<'_>, session: &PageSession) -> Result<PageResponse, PageError> {
    let form: NodeRejectForm = response::json_of(call.head, &call.body)?;
    check_form(session, &form.form_token)?;
    field::label("reason", &form.reason, MAX_REASON)?;
    let ids = ids_of(form.uuids.iter())?;
    let (key, proof) = key_of(call, session, &form.credential)?;
    let vault: VaultId = form.vault.parse().map_err(|_| not_waiting())?;
    if !is_signed(call, &key, &proof, &rejections_challenge(vault, &ids)?) {
        return Err(changed());
    }
    // What is signed is obeyed here, whatever orchestrators tell by now; of vaults that the node has no key of there is
    // nothing to obey.
    let RejectedHere {
        ids: here,
        is_unwritten,
        is_full,
    } = match call.page.waiting.signs_for(vault)? {
        true => reject_here(call, vault, &ids, &proof).await?,
        false => RejectedHere::default(),
    };
    let found = match waiting(call, session, &ids).await {
        Ok(found) => found,
        Err(error) if here.is_empty() => return Err(error),
        Err(_) => FoundRequests::default(),
    };
    if here.is_empty() && found.requests.is_empty() {
        return Err(found.not_waiting());
    }
    // The proof is of all of them together.
    let tellers = found.requests.iter().flat_map(|it| &it.by);
    let to: BTreeSet<NodeId> = tellers.chain(&found.silent).copied().collect();
    let several = to.len() > 1;
    let question = NodeQuestion::Reject {
        requests: ids.clone(),
        reason: form.reason,
        proof,
    };
    let questions = to.into_iter().map(|to| (to, question.clone()));
    let mut outcomes = match brought(call, questions.collect()).await {
        Ok(outcomes) => outcomes,
        Err(fault) if here.is_empty() => return Err(fault.into()),
        Err(fault) => {
            let refused = Some(fault.message().to_owned());
            let said = SaidOutcome {
                refused,
                ..SaidOutcome::default()
            };
            ids.iter().map(|id| (*id, said.clone())).collect()
        }
    };
    // Who says that it is done says so for itself alone: another one may go on with it.
    if several && let Ok(still) = waiting(call, session, &ids).await {
        for one in &still.requests {
            let said = outcomes.entry(one.id).or_default();
            if said.missing.take().is_some() {
                said.refused = Some(STILL_WAITS.to_owned());
            }
        }
    }
    for id in &ids {
        let is_here = here.contains(id);
        let said = outcomes.get_mut(id);
        let at_service = said.as_ref().is_some_and(|said| said.missing.is_some());
        let person = &session.person;
        tracing::info!(person, request = %id, %vault, is_here, at_service, "rejected on this node's page");
        if let Some(problem) = said.and_then(|said| said.refused.as_mut())
            && !at_service
            && is_here
        {
            let never = match is_unwritten {
                true => "does not sign",
                false => "never signs",
            };
            *problem = format!("{problem}. This node {never} it all the same");
        }
    }
    let said = match (here.is_empty(), is_full, is_unwritten) {
        (true, false, _) => "rejected, as the service says",
        (_, true, _) => {
            "rejected, as the service says. This node keeps no more rejections of yours, and may sign it: have its \
             administrator veto it (covault node veto)"
        }
        (false, false, false) => "rejected; this node never signs it",
        (false, false, true) => {
            "rejected; this node does not sign it, but could not write that down yet and forgets it when it stops before it \
             can: have its administrator veto it (covault node veto)"
        }
    };
    Ok(answer(&ids, &outcomes, |_| said.to_owned()))
}

/// What a rejection comes to on this node itself.
#[derive(Default)]
struct RejectedHere {
    /// Those of the requests that it does not sign from now on.
    ids: BTreeSet<RequestId>,
    /// Some of those are not on its disk.
    is_unwritten: bool,
    /// It was to reject others, and has no room.
    is_full: bool,
}

/// Has this node itself obey the rejection, where a rule with hold_hours of its policy names the person.
async fn reject_here(
    call: &PageCall<'_>,
    vault: VaultId,
    ids: &[RequestId],
    proof: &ApprovalProof,
) -> Result<RejectedHere, Fault> {
    let rejection = Rejection {
        vault,
        requests: ids.to_vec(),
        proof: proof.clone(),
    };
    let Ok(person) = call.page.people.policy().0.rejected_by(&rejection) else {
        return Ok(RejectedHere::default());
    };
    let vetoes = call.page.waiting.vetoes()?;
    // In force while the disk takes its time, and where it fails: the node tries again.
    let outcome = vetoes.reject(vault, &person, ids);
    let mut here: BTreeSet<_> = ids.iter().copied().collect();
    here.retain(|id| !outcome.no_room.contains(id));
    let kept = Vec::from_iter(here.iter().copied());
    let node = call.page.node.clone();
    let written = tokio::task::spawn_blocking(move || {
        let written = vetoes.write(|it| log_rejected(&node, it));
        // Others' rejections may be what failed, or have been written by others.
        (written, vetoes.are_written(vault, &kept))
    });
    let (written, are_written) = written.await.map_err(Fault::bug)?;
    if let Err(fault) = written {
        tracing::warn!(%vault, ?fault, "a rejection on this node's page was not written down");
    }
    Ok(RejectedHere {
        ids: here,
        is_unwritten: !are_written.unwrap_or(false),
        is_full: !outcome.no_room.is_empty(),
    })
}

/// What orchestrators say that became of one request.
#[derive(Clone, Debug, Default)]
struct SaidOutcome {
    /// The most approvals that one of those finds missing that have stored it; `None`: none has.
    missing: Option<u32>,
    /// Why another one has not.
    refused: Option<String>,
    /// Another one has not answered.
    is_unheard: bool,
}

impl SaidOutcome {
    fn add(&mut self, outcome: NodeOutcome) {
        match outcome {
            NodeOutcome::Done { missing } => self.missing = self.missing.max(Some(missing)),
            NodeOutcome::Refused { problem } => self.refused = Some(problem),
        }
    }
}

/// What became of each request.
async fn brought(
    call: &PageCall<'_>,
    questions: Vec<(NodeId, NodeQuestion)>,
) -> Result<HashMap<RequestId, SaidOutcome>, Fault> {
    let mut asked: HashMap<NodeId, Vec<RequestId>> = questions
        .iter()
        .map(|(to, question)| (*to, about(question)))
        .collect();
    let mut all: HashMap<RequestId, SaidOutcome> = HashMap::new();
    for (by, answer) in call.page.waiting.act(questions).await? {
        let ids = asked.get(&by).map(Vec::as_slice).unwrap_or_default();
        let outcomes = match answer {
            NodeAnswer::Done { outcomes } if outcomes.len() == ids.len() => outcomes,
            NodeAnswer::Refused { problem } => {
                vec![NodeOutcome::Refused { problem }; ids.len()]
            }
            NodeAnswer::Done { .. } | NodeAnswer::Pending { .. } => continue,
        };
        for (id, outcome) in ids.iter().zip(outcomes) {
            all.entry(*id).or_default().add(outcome);
        }
        asked.remove(&by);
    }
    for id in asked.values().flatten() {
        all.entry(*id).or_default().is_unheard = true;
    }
    Ok(all)
}

fn about(question: &NodeQuestion) -> Vec<RequestId> {
    match question {
        NodeQuestion::Pending { requests } | NodeQuestion::Reject { requests, .. } => {
            requests.clone()
        }
        NodeQuestion::Approve { requests, .. } => requests.iter().map(|it| it.request).collect(),
    }
}

fn answer(
    ids: &[RequestId],
    outcomes: &HashMap<RequestId, SaidOutcome>,
    done: impl Fn(u32) -> String,
) -> PageResponse {
    let mut any = false;
    let results: Vec<_> = ids
        .iter()
        .map(|id| {
            let said = outcomes.get(id).cloned().unwrap_or_default();
            let text = match (said.missing, said.refused, said.is_unheard) {
                (Some(missing), Some(problem), _) => format!(
                    "{}. Another orchestrator has not taken it, it says: {problem}",
                    done(missing)
                ),
                (Some(missing), None, true) => format!(
                    "{}. Another orchestrator does not say what became of it",
                    done(missing)
                ),
                (Some(missing), None, false) => done(missing),
                (None, Some(problem), _) => {
                    format!("the service has not taken it, it says: {problem}")
                }
                (None, None, _) => "the service does not say what became of it".to_owned(),
            };
            let is_done = said.missing.is_some();
            any |= is_done;
            json!({"uuid": id.to_string(), "done": is_done, "text": Text::new(text).to_string()})
        })
        .collect();
    // When some are done, the answer is about each.
    let status = match any {
        true => StatusCode::OK,
        false => StatusCode::CONFLICT,
    };
    PageResponse::json(&json!({"results": results})).with_status(status)
}
