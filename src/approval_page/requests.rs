//! What waits for the person who has signed in, and the approval. Every page and every gesture asks the orchestrators
//! again: nothing that they have told is kept.

use std::collections::BTreeSet;

use askama::Template;
use axum::http::StatusCode;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_core::{
    amount::{U256, parse_u128},
    approval::{
        Approval, ApprovalProof, ApprovalTerms, ApproverKey, GivenApproval, MAX_LIST, ProofFacts,
    },
    fault::{Class, Fault},
    ids::{RequestId, VaultId},
    order::NodeId,
    schema::wire,
};
use covault_mpc::policy::{Policy, PolicyRequest, RuleProgress};
use prost::Message as _;
use serde::Deserialize;
use serde_json::json;

use super::{
    Call,
    sessions::{Session, check_form},
};
use crate::{
    approving::{self, gesture},
    console::{
        forbidden,
        gestures::{Item, Wanted, asked_with},
        requests::{shown_hash, view},
        response::{self, Answer, Refused},
        sessions::{Credential, PATIENCE_MS},
        text::Text,
        views::{RequestView, Shell},
    },
};

/// A request that a rule of this node's policy asks the person for.
struct WaitingRequest {
    /// The orchestrator that tells of it.
    by: NodeId,
    request: wire::SigningRequest,
    /// The rules that apply, or may.
    rules: Vec<RuleProgress>,
}

/// The same, as pages show it.
struct WaitingView {
    request: RequestView,
    rules: Vec<RuleView>,
}

struct RuleView {
    wants: Text,
    approved: Text,
    missing: usize,
    others: Text,
}

#[derive(Template)]
#[template(path = "node-inbox.html")]
struct InboxPage {
    shell: Shell,
    requests: Vec<WaitingView>,
    /// The orchestrators know of more than they have told.
    has_more: bool,
}

#[derive(Template)]
#[template(path = "node-request.html")]
struct RequestPage {
    shell: Shell,
    /// More than one: orchestrators tell different things of it.
    requests: Vec<WaitingView>,
    can_approve: bool,
}

impl WaitingRequest {
    fn view(&self, session: &Session, now_ms: u64) -> WaitingView {
        let vault = self.request.vault_uuid.as_deref().unwrap_or_default();
        let rules = self.rules.iter().map(|rule| RuleView {
            wants: Text::new(&rule.wants),
            approved: Text::new(rule.approved.join(", ")),
            missing: rule.missing,
            others: Text::new(rule.others.join(", ")),
        });
        WaitingView {
            request: view(&self.request, vault, &session.person, now_ms),
            rules: rules.collect(),
        }
    }

    /// What a person approves of it with these terms.
    fn approval(&self, id: RequestId, terms: ApprovalTerms) -> anyhow::Result<Approval> {
        let decoded = approving::decode(&self.request)?;
        let vault: VaultId = self
            .request
            .vault_uuid
            .as_deref()
            .unwrap_or_default()
            .parse()
            .map_err(crate::wiring::explain)?;
        let subject = decoded.subject;
        Ok(Approval::new(
            vault,
            &subject.root_public_key,
            id,
            decoded.network,
            &subject.address,
            &subject.payload,
            terms,
        ))
    }
}

/// The rules of the policy that apply to a request, where one asks this person; `None`: none does, or the node would refuse
/// it no matter who has approved it, or it is not what it is said to be.
fn rules_for(
    policy: &Policy,
    request: &wire::SigningRequest,
    person: &str,
    now_ms: u64,
) -> Option<Vec<RuleProgress>> {
    let decoded = approving::decode(request).ok()?;
    let outflow = decoded.payload.outflow(decoded.network);
    // Which of them are the vault's own is known when it is signed. Rules of approval do not depend on it.
    let recipients = outflow.spends.iter();
    let recipients: BTreeSet<String> = recipients.filter_map(|it| it.recipient.clone()).collect();
    let asked = PolicyRequest {
        vault: request.vault_uuid.as_deref()?.parse().ok()?,
        network: decoded.network,
        payload: &decoded.payload,
        fee: U256::ZERO,
        price: None,
        own_wallets: &recipients,
    };
    let fee = decoded.network.rules().fixed_fee(&decoded.payload);
    let verdict = policy.foresee(&asked, fee).ok()?;
    let given = request.approvals.iter();
    let given = given.filter(|it| it.valid_until_timestamp > now_ms);
    let approved: Vec<String> = given.map(|it| it.person.clone()).collect();
    let rules = verdict.progress(&approved);
    let asks = |rule: &RuleProgress| {
        rule.approved
            .iter()
            .chain(&rule.others)
            .any(|it| it == person)
    };
    rules.iter().any(asks).then_some(rules)
}

/// What waits for this person, and whether orchestrators know of more; with `request` of it alone.
async fn waiting(
    call: &Call<'_>,
    session: &Session,
    request: Option<RequestId>,
) -> Result<(Vec<WaitingRequest>, bool), Refused> {
    let page = call.page;
    let told = page.waiting.pending(request).await?;
    let (policy, now_ms) = (page.people.policy(), call.now_ms());
    let mut found = Vec::new();
    for told in told.requests {
        let Ok(mut told_request) = wire::SigningRequest::decode(told.request.as_slice()) else {
            continue;
        };
        // No honest orchestrator tells these, and a page would have many times their bytes.
        told_request.approvals.truncate(MAX_LIST);
        told_request.simulation = Default::default();
        told_request.evm_input_data_decode = None;
        told_request.replaced_by_uuids.clear();
        let id: Result<RequestId, _> = told_request.uuid.parse();
        if id.is_err() || request.is_some_and(|request| id != Ok(request)) {
            continue;
        }
        let vault = told_request.vault_uuid.as_deref().unwrap_or_default();
        let (Ok(vault), Some(subject)) = (vault.parse(), &told_request.approval_subject) else {
            continue;
        };
        if !page.waiting.holds(vault, &subject.root_public_key)? {
            continue;
        }
        if let Some(rules) = rules_for(&policy.0, &told_request, &session.person, now_ms) {
            found.push(WaitingRequest {
                by: told.by,
                request: told_request,
                rules,
            });
        }
    }
    // The same bytes told by several orchestrators are one request, whatever else they say of it.
    let mut known = BTreeSet::new();
    found.retain(|it| {
        let subject = it.request.approval_subject.as_ref().map(shown_hash);
        known.insert((it.request.uuid.clone(), subject))
    });
    Ok((found, told.more))
}

pub async fn list(call: &Call<'_>, session: &Session) -> Result<Answer, Refused> {
    let (found, has_more) = waiting(call, session, None).await?;
    let now_ms = call.now_ms();
    let requests = found.iter().map(|it| {
        let WaitingView { request, rules } = it.view(session, now_ms);
        let request = request.with_few_spends().in_a_list();
        WaitingView { request, rules }
    });
    Answer::page(&InboxPage {
        shell: call.shell(session),
        requests: requests.collect(),
        has_more,
    })
}

fn not_waiting() -> Refused {
    let problem = "no such request waits for you on this node: it may have ended, or this node's policy asks others";
    Refused::new(StatusCode::NOT_FOUND, problem)
}

pub async fn page(call: &Call<'_>, session: &Session, uuid: &str) -> Result<Answer, Refused> {
    let id: RequestId = uuid.parse().map_err(|_| not_waiting())?;
    let (found, _) = waiting(call, session, Some(id)).await?;
    if found.is_empty() {
        return Err(not_waiting());
    }
    let now_ms = call.now_ms();
    let requests: Vec<_> = found.iter().map(|it| it.view(session, now_ms)).collect();
    let can_approve = matches!(requests.as_slice(), [alone] if alone.request.is_offered());
    Answer::page(&RequestPage {
        shell: call.shell(session),
        requests,
        can_approve,
    })
}

#[derive(Deserialize)]
struct BeginForm {
    form_token: String,
    items: [Wanted; 1],
}

#[derive(Deserialize)]
struct ApproveForm {
    form_token: String,
    items: [Item; 1],
    credential: Credential,
}

/// What the browser is to have signed.
pub async fn begin(call: &Call<'_>, session: &Session) -> Result<Answer, Refused> {
    let form: BeginForm = response::json_of(call.head, &call.body)?;
    check_form(session, &form.form_token)?;
    let [Wanted { uuid, shown, fee }] = form.items;
    let id: RequestId = uuid.parse().map_err(|_| not_waiting())?;
    let (found, _) = waiting(call, session, Some(id)).await?;
    let is_shown = |it: &&WaitingRequest| {
        let subject = it.request.approval_subject.as_ref();
        subject.is_some_and(|subject| shown_hash(subject) == shown)
    };
    let one = match found.as_slice() {
        [] => return Err(not_waiting()),
        several => several.iter().find(is_shown),
    };
    let one = one.ok_or_else(changed)?;
    let asked = asked_with(&one.request, &fee, call.now_ms())?;
    let (most_fee, valid_until_ms) = (asked.approval.most_fee, asked.approval.valid_until_ms);
    let (challenge, _) = gesture(&[asked])?;
    let id = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let passkeys = call.page.people.passkeys_of(&session.person);
    let passkeys: Vec<_> = passkeys
        .iter()
        .map(|known| json!({"type": "public-key", "id": id(known)}))
        .collect();
    Ok(Answer::json(&json!({
        "publicKey": {
            "challenge": id(&challenge),
            "rpId": call.page.place.rp_id,
            "allowCredentials": passkeys,
            "userVerification": "required",
            "timeout": PATIENCE_MS,
        },
        "form": {"items": [{
            "uuid": uuid,
            "mostFee": most_fee.to_string(),
            "validUntilMs": valid_until_ms,
        }]},
    })))
}

fn changed() -> Refused {
    let problem = "the service now describes this request differently than this page did; nothing was approved: reload \
                   the page and compare it with what was asked for";
    Fault::new(Class::WrongState, problem).into()
}

/// Brings the approval to the orchestrator that tells of what was signed.
pub async fn approve(call: &Call<'_>, session: &Session) -> Result<Answer, Refused> {
    let form: ApproveForm = response::json_of(call.head, &call.body)?;
    check_form(session, &form.form_token)?;
    let [item] = form.items;
    let id: RequestId = item.uuid.parse().map_err(|_| not_waiting())?;
    let terms = ApprovalTerms {
        most_fee: parse_u128(&item.most_fee).map_err(|error| Fault::field("mostFee", error))?,
        valid_until_ms: item.valid_until_ms,
    };
    let (credential_id, assertion, _) = form.credential.decode()?;
    let owner = call.page.people.find(&credential_id);
    let owner = owner.filter(|(person, _)| *person == session.person);
    let (person, passkey) = owner.ok_or_else(|| {
        forbidden("this passkey is not one that the person who has signed in made for this page")
    })?;
    let key = ApproverKey::Passkey(Box::new(passkey));
    let proof = ApprovalProof::WebAuthn {
        credential_id,
        assertion,
    };
    let (found, _) = waiting(call, session, Some(id)).await?;
    // An orchestrator is given what was signed of the bytes that it tells, and nothing else.
    let mut signed = None;
    for one in &found {
        let approval = one.approval(id, terms);
        let approval =
            approval.map_err(|error| Fault::new(Class::Invalid, format!("{error:#}")))?;
        let facts = key.verify(&proof, &approval.id()?);
        if matches!(facts, Ok(ProofFacts::WebAuthn { origin, .. }) if origin == call.page.place.origin)
        {
            signed = Some((one.by, approval));
            break;
        }
    }
    let (by, approval) = signed.ok_or_else(changed)?;
    approval.check_terms(U256::ZERO, call.now_ms())?;
    let given = GivenApproval {
        list: Vec::new(),
        proof,
    };
    let missing = call.page.waiting.approve(by, id, terms, given).await?;
    tracing::info!(person, request = %id, vault = %approval.vault, "approved on this node's page");
    let text = match missing {
        0 => {
            "approved; the service says that enough have approved it by the vault's rule".to_owned()
        }
        missing => format!(
            "approved; {missing} more to approve it by the vault's rule, as the service says"
        ),
    };
    let result = json!({"uuid": item.uuid, "done": true, "text": text});
    Ok(Answer::json(&json!({"results": [result]})))
}
