//! What waits for the person who has signed in. Every page and every gesture asks the orchestrators anew: nothing that they
//! have told is kept.

use std::collections::{BTreeSet, HashMap};

use askama::Template;
use axum::http::StatusCode;
use covault_core::{
    amount::U256,
    approval::{Approval, ApprovalTerms, MAX_LIST},
    ids::{RequestId, VaultId},
    order::NodeId,
    schema::wire,
};
use covault_mpc::policy::{Policy, PolicyRequest, RuleProgress};
use prost::Message as _;

use super::{PageCall, sessions::PageSession};
use crate::{
    approving,
    console::{
        requests::{shown_hash, view},
        response::{PageError, PageResponse},
        standing::{ApprovalStanding, is_held},
        text::Text,
        totals,
        views::{FeePlaceView, RequestView, Shell, TotalView},
    },
};

/// A request that a rule of this node's policy asks the person for.
pub struct WaitingRequest {
    /// The orchestrators that tell of it.
    pub by: Vec<NodeId>,
    /// Its id.
    pub id: RequestId,
    /// Its vault.
    pub vault: VaultId,
    /// What is told of it.
    pub request: wire::SigningRequest,
    /// [`shown_hash`] of what is signed of it.
    pub shown: String,
    /// The rules that apply, or may.
    rules: Vec<RuleProgress>,
}

/// The same, as pages show it.
struct WaitingView {
    request: RequestView,
    rules: Vec<NodeRuleView>,
}

struct NodeRuleView {
    wants: Text,
    approved: Text,
    missing: usize,
    others: Text,
}

#[derive(Template)]
#[template(path = "node-inbox.html")]
struct NodeInboxPage {
    shell: Shell,
    requests: Vec<WaitingView>,
    /// The orchestrators know of more than they have told.
    has_more: bool,
}

#[derive(Template)]
#[template(path = "node-request.html")]
struct RequestPage {
    shell: Shell,
    requests: Vec<WaitingView>,
    /// How many requests these are.
    count: usize,
    /// Orchestrators tell different things of one of them.
    is_told_differently: bool,
    /// What leaves in all, where there are several.
    totals: Vec<TotalView>,
    /// How many of them may move more than these sums.
    unsummed: usize,
    /// The chains on which several pay a fee.
    fee_places: Vec<FeePlaceView>,
    /// Those that were chosen and are not shown, and why.
    left_out: Vec<(String, &'static str)>,
    can_approve: bool,
    /// The vaults of those, each of which is rejected by itself.
    vaults: Vec<String>,
}

impl WaitingRequest {
    fn view(&self, session: &PageSession, now_ms: u64) -> WaitingView {
        let vault = self.request.vault_uuid.as_deref().unwrap_or_default();
        let rules = self.rules.iter().map(|rule| NodeRuleView {
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
    pub fn approval(&self, terms: ApprovalTerms) -> anyhow::Result<Approval> {
        let decoded = approving::decode(&self.request)?;
        let subject = decoded.subject;
        Ok(Approval::new(
            self.vault,
            &subject.root_public_key,
            self.id,
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
        own_price: None,
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

/// Whether an approval by this person would do something, by the words that stand beside what is signed.
fn is_asked_for(request: &wire::SigningRequest, person: &str, now_ms: u64) -> bool {
    let counts = ApprovalStanding::of(request, person, now_ms) == ApprovalStanding::Counts;
    !counts && !is_held(request)
}

/// What waits for a person.
#[derive(Default)]
pub struct FoundRequests {
    pub requests: Vec<WaitingRequest>,
    /// Orchestrators know of more, or have not answered.
    pub has_more: bool,
    /// Those that have not answered.
    pub silent: Vec<NodeId>,
}

impl FoundRequests {
    /// Why a request is not among them.
    pub fn not_waiting(&self) -> PageError {
        match self.has_more {
            true => {
                let problem = "nobody has told this node of such a request that waits for you, and not every orchestrator \
                               has told all: try again in a few seconds";
                PageError::new(StatusCode::NOT_FOUND, problem)
            }
            false => not_waiting(),
        }
    }
}

/// What waits for this person; with `requests` of these alone.
pub async fn waiting(
    call: &PageCall<'_>,
    session: &PageSession,
    requests: &[RequestId],
) -> Result<FoundRequests, PageError> {
    let page = call.page;
    let told = page.waiting.pending(requests).await?;
    let (policy, now_ms) = (page.people.policy(), call.now_ms());
    // The same bytes told by several orchestrators are one request, whatever else they say of it.
    let mut known: HashMap<(RequestId, VaultId, String), usize> = HashMap::new();
    let mut found: Vec<WaitingRequest> = Vec::new();
    for told in told.requests {
        let Ok(mut request) = wire::SigningRequest::decode(told.request.as_slice()) else {
            continue;
        };
        // No honest orchestrator tells these, and a page would have many times their bytes.
        request.approvals.truncate(MAX_LIST);
        request.simulation = Default::default();
        request.evm_input_data_decode = None;
        request.replaced_by_uuids.clear();
        let id = request.uuid.parse::<RequestId>().ok();
        let vault = request.vault_uuid.as_deref().unwrap_or_default().parse();
        let (Some(id), Ok(vault), Some(subject)) = (id, vault, &request.approval_subject) else {
            continue;
        };
        if !requests.is_empty() && !requests.contains(&id) {
            continue;
        }
        if !page.waiting.holds(vault, &subject.root_public_key)? {
            continue;
        }
        let shown = shown_hash(subject);
        let of = (id, vault, shown.clone());
        if let Some(known) = known.get(&of).and_then(|place| found.get_mut(*place)) {
            let others = told.by.into_iter().filter(|by| !known.by.contains(by));
            let others: Vec<_> = others.collect();
            known.by.extend(others);
            // Whoever is quickest must not take the button away: the words of one that has something to approve stay.
            let asked = |it: &wire::SigningRequest| is_asked_for(it, &session.person, now_ms);
            if !asked(&known.request)
                && asked(&request)
                && let Some(rules) = rules_for(&policy.0, &request, &session.person, now_ms)
            {
                (request.uuid, request.vault_uuid) = (id.to_string(), Some(vault.to_string()));
                (known.request, known.rules) = (request, rules);
            }
            continue;
        }
        if let Some(rules) = rules_for(&policy.0, &request, &session.person, now_ms) {
            known.insert(of, found.len());
            // In one spelling, whoever tells it.
            (request.uuid, request.vault_uuid) = (id.to_string(), Some(vault.to_string()));
            found.push(WaitingRequest {
                by: told.by,
                id,
                vault,
                request,
                shown,
                rules,
            });
        }
    }
    Ok(FoundRequests {
        requests: found,
        has_more: told.more,
        silent: told.silent,
    })
}

pub async fn list(call: &PageCall<'_>, session: &PageSession) -> Result<PageResponse, PageError> {
    let found = waiting(call, session, &[]).await?;
    let now_ms = call.now_ms();
    let requests = found.requests.iter().map(|it| {
        let WaitingView { request, rules } = it.view(session, now_ms);
        let request = request.with_few_spends().in_a_list();
        WaitingView { request, rules }
    });
    PageResponse::page(&NodeInboxPage {
        shell: call.shell(session),
        requests: requests.collect(),
        has_more: found.has_more,
    })
}

pub fn not_waiting() -> PageError {
    let problem = "no such request waits for you on this node: it may have ended, or this node's policy asks others";
    PageError::new(StatusCode::NOT_FOUND, problem)
}

/// The page of one request.
pub async fn one(
    call: &PageCall<'_>,
    session: &PageSession,
    uuid: &str,
) -> Result<PageResponse, PageError> {
    let id: RequestId = uuid.parse().map_err(|_| not_waiting())?;
    page(call, session, &[id]).await
}

/// The page of those that were chosen on the list.
pub async fn chosen(call: &PageCall<'_>, session: &PageSession) -> Result<PageResponse, PageError> {
    let query = call.head.uri.query().unwrap_or_default();
    let uuids = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "uuid");
    let ids: Result<BTreeSet<RequestId>, _> = uuids.map(|(_, uuid)| uuid.parse()).collect();
    let ids = Vec::from_iter(ids.map_err(|_| not_waiting())?);
    if !(1..=MAX_LIST).contains(&ids.len()) {
        let problem = "choose 1 to 100 requests in the list";
        return Err(PageError::new(StatusCode::BAD_REQUEST, problem));
    }
    page(call, session, &ids).await
}

async fn page(
    call: &PageCall<'_>,
    session: &PageSession,
    ids: &[RequestId],
) -> Result<PageResponse, PageError> {
    let found = waiting(call, session, ids).await?;
    if found.requests.is_empty() {
        return Err(found.not_waiting());
    }
    let found = found.requests;
    let now_ms = call.now_ms();
    let gone = ids
        .iter()
        .filter(|id| !found.iter().any(|it| it.id == **id));
    let mut left_out: Vec<_> = gone
        .map(|id| (id.to_string(), "it does not wait for you on this node"))
        .collect();
    let mut requests: Vec<_> = found.iter().map(|it| it.view(session, now_ms)).collect();
    let different = BTreeSet::from_iter(found.iter().map(|it| it.id)).len();
    let is_told_differently = different < found.len();
    // What one gesture is to approve is what there is to approve.
    if !is_told_differently && requests.iter().any(|it| it.request.is_offered()) {
        requests.retain(|it| {
            let is_offered = it.request.is_offered();
            if !is_offered {
                let why = "as the service says, your approval counts, or it is held";
                left_out.push((it.request.uuid.clone(), why));
            }
            is_offered
        });
    }
    let views = requests.iter().map(|it| &it.request);
    let count = BTreeSet::from_iter(views.clone().map(|it| &it.uuid)).len();
    let vaults: BTreeSet<_> = found.iter().map(|it| it.vault).collect();
    let can_approve = !is_told_differently && views.clone().all(RequestView::is_offered);
    let (totals, unsummed) = match count {
        1 => (Vec::new(), 0),
        _ => (totals::spends(views.clone()), totals::unsummed(views)),
    };
    PageResponse::page(&RequestPage {
        shell: call.shell(session),
        count,
        is_told_differently,
        totals,
        unsummed,
        fee_places: FeePlaceView::of(requests.iter().map(|it| &it.request)),
        left_out,
        can_approve,
        vaults: vaults.iter().map(VaultId::to_string).collect(),
        requests,
    })
}
