//! Approving and rejecting: each is one gesture of a passkey, in two steps. The first tells the browser what to have
//! signed, the second brings the signature to the vaults. Neither keeps anything: what is signed says all.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_actors::{
    operations::{ApproveSigningRequests, RejectSigningRequests},
    users::SignedIn,
};
use covault_core::{
    approval::{MAX_LIST, rejections_challenge},
    fault::{Class, Fault},
    ids::{RequestId, VaultId},
    schema::wire,
    user::UserRole,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    ConsoleCall,
    fee_estimates::{self, FeeWork, is_far},
    forbidden,
    pages::details,
    requests::{fee_work, shown_hash},
    response::{self, PageError, PageResponse},
    sessions::{PATIENCE_MS, PasskeyAssertion, check_form},
    text::Text,
};
use crate::{
    approving::{
        self, HOUR_MS, NO_BATCH_CONTRACTS, RequestToApprove, USUAL_HOURS, WantedTerms, asked,
        gesture,
    },
    units::{coin, coins, in_decimals, smallest},
};

/// The highest fee that a person names for a request.
#[derive(Deserialize)]
pub struct NamedFee {
    pub uuid: String,
    /// What the page has shown of it ([`shown_hash`]).
    pub shown: String,
    /// In coins, with a point.
    #[serde(default)]
    pub fee: String,
}

#[derive(Deserialize)]
struct BeginForm {
    form_token: String,
    items: Vec<NamedFee>,
    /// The person was asked whether fees that are far above what chains ask for are meant.
    #[serde(default)]
    meant: bool,
}

/// What is signed of one request.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApprovalItem {
    uuid: String,
    most_fee: String,
    valid_until_ms: u64,
}

#[derive(Deserialize)]
struct ApproveForm {
    form_token: String,
    items: Vec<ApprovalItem>,
    list: Vec<String>,
    credential: PasskeyAssertion,
}

/// A request to reject.
#[derive(Deserialize)]
pub struct ShownRequest {
    pub uuid: String,
    /// What the page has shown of it ([`shown_hash`]).
    pub shown: String,
}

/// Requests to reject, before their rejection is signed.
#[derive(Deserialize)]
pub struct BeginRejectForm {
    pub form_token: String,
    pub items: Vec<ShownRequest>,
    #[serde(default)]
    pub reason: String,
}

#[derive(Deserialize)]
struct RejectForm {
    form_token: String,
    uuids: Vec<String>,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    credential: Option<PasskeyAssertion>,
}

/// Refuses who may not approve, and forms that are not this session's.
fn check(signed_in: &SignedIn, form_token: &str, requests: usize) -> Result<(), PageError> {
    check_form(signed_in, form_token)?;
    if signed_in.user.role != UserRole::Approver {
        return Err(forbidden("only approvers approve and reject"));
    }
    if !(1..=MAX_LIST).contains(&requests) {
        let problem = "choose 1 to 100 requests";
        return Err(PageError::new(StatusCode::BAD_REQUEST, problem));
    }
    Ok(())
}

/// What the browser is to have signed, by a passkey of this person.
fn options(call: &ConsoleCall<'_>, signed_in: &SignedIn, challenge: &[u8; 32]) -> Value {
    let id = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let passkeys = signed_in.user.passkeys.iter();
    let passkeys: Vec<_> = passkeys
        .map(|key| json!({"type": "public-key", "id": id(&key.line.passkey.credential_id)}))
        .collect();
    json!({
        "challenge": id(challenge),
        "rpId": call.console.place.rp_id,
        "allowCredentials": passkeys,
        "userVerification": "required",
        "timeout": PATIENCE_MS,
    })
}

/// The signature, which must be of a passkey of the person who has signed in.
fn proof(
    signed_in: &SignedIn,
    credential: &PasskeyAssertion,
) -> Result<wire::PersonProof, PageError> {
    let (credential_id, assertion, _) = credential.decode()?;
    if signed_in.user.passkey(&credential_id).is_none() {
        return Err(forbidden(
            "this passkey belongs to another account than the one that has signed in: sign in with its account",
        ));
    }
    let proof = wire::WebAuthnProof {
        credential_id,
        authenticator_data: assertion.authenticator_data,
        client_data_json: assertion.client_data_json,
        signature: assertion.signature,
    };
    Ok(wire::PersonProof {
        r#type: Some(wire::person_proof::Type::WebAuthn(proof)),
    })
}

fn not_waiting(uuid: &str) -> PageError {
    let problem = format!("{uuid} no longer waits for approval: reload the page");
    Fault::new(Class::WrongState, problem).into()
}

/// Refuses what no longer waits, and what differs from what the page has shown.
fn check_shown(request: &wire::SigningRequest, shown: &str) -> Result<(), PageError> {
    let uuid = &request.uuid;
    let Some(subject) = &request.approval_subject else {
        return Err(not_waiting(uuid));
    };
    if shown_hash(subject) == shown {
        return Ok(());
    }
    let problem = format!(
        "{uuid} is no longer what this page has shown; nothing was signed: reload the page and compare it with what was \
         asked for"
    );
    Err(Fault::new(Class::WrongState, problem).into())
}

/// What is signed of a request with this highest fee, in coins as the person has written it.
///
/// # Errors
/// 400 when the fee is no amount, or the request is not what it is said to be.
pub fn asked_with(
    request: &wire::SigningRequest,
    fee: &str,
    now_ms: u64,
) -> Result<RequestToApprove, PageError> {
    let wrong = |problem: String| PageError::new(StatusCode::BAD_REQUEST, &problem);
    let decoded = approving::decode(request).map_err(|error| wrong(format!("{error:#}")))?;
    let fee = match decoded.payload.is_transaction() && decoded.payload.pays_fee() {
        false => 0,
        true => {
            let (unit, decimals) = coin(&decoded.payload.outflow(decoded.network).place);
            let fee = smallest(fee.trim(), decimals).filter(|fee| *fee > 0);
            fee.ok_or_else(|| {
                wrong(format!(
                    "{}: give the highest fee in {unit}, more than 0, digits with a point, at most {decimals} after it",
                    request.uuid
                ))
            })?
        }
    };
    let fee = fee.to_string();
    let terms = WantedTerms {
        most_fee: Some(&fee),
        until_ms: now_ms.saturating_add(USUAL_HOURS * HOUR_MS),
        own_end: false,
        confirms: true,
        batch_contracts: &NO_BATCH_CONTRACTS,
    };
    asked(request, terms, now_ms).map_err(|error| wrong(format!("{error:#}")))
}

pub async fn begin_approval(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    let form: BeginForm = response::json(call)?;
    check(signed_in, &form.form_token, form.items.len())?;
    let now_ms = call.now_ms();
    let (mut all, mut works) = (Vec::new(), Vec::new());
    for wanted in &form.items {
        let request = details(call, signed_in, &wanted.uuid).await?;
        check_shown(&request, &wanted.shown)?;
        let asked = asked_with(&request, &wanted.fee, now_ms)?;
        let decoded = approving::decode(&request).map_err(Fault::bug)?;
        works.extend(fee_work(&decoded).map(|work| (work, asked.approval.most_fee)));
        all.push(asked);
    }
    if !form.meant
        && let Some(question) = far_fees(call, signed_in, &works).await
    {
        return Ok(PageResponse::json(&json!({"question": question})));
    }
    let (challenge, list) = gesture(&all)?;
    let items = all.iter().map(|one| {
        json!({
            "uuid": one.uuid,
            "mostFee": one.approval.most_fee.to_string(),
            "validUntilMs": one.approval.valid_until_ms,
        })
    });
    let list = list.iter().map(hex::encode);
    Ok(PageResponse::json(&json!({
        "publicKey": options(call, signed_in, &challenge),
        "form": {
            "items": items.collect::<Vec<_>>(),
            "list": list.collect::<Vec<_>>(),
        },
    })))
}

/// What a person is asked who names fees that are far above what the nodes of their chains ask for, or of which these say nothing.
async fn far_fees(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    works: &[(FeeWork, u128)],
) -> Option<String> {
    let chains = works.iter().map(|(work, _)| work.chain);
    let asked = fee_estimates::ask(call, signed_in, chains).await;
    let costs = works
        .iter()
        .map(|(work, fee)| (work.chain, *fee, work.credible_cost(&asked)));
    let (unsaid, said): (Vec<_>, Vec<_>) = costs.partition(|(.., cost)| cost.is_none());
    let far = said.iter().filter(|(_, fee, cost)| is_far(*fee, *cost));
    let mut sentences = Vec::new();
    if let Some((chain, fee, cost)) = far.clone().max_by_key(|(_, fee, _)| *fee) {
        let (unit, decimals) = coin(chain);
        sentences.push(format!(
            "{} of these fees {} more than ten times what the nodes of the chain ask for: {} {unit} where about {} {unit} is \
             usual.",
            far.clone().count(),
            if far.count() == 1 { "is" } else { "are" },
            coins(*fee, decimals),
            in_decimals(cost.unwrap_or_default(), decimals),
        ));
    }
    if let Some((chain, fee, _)) = unsaid.iter().max_by_key(|(_, fee, _)| *fee) {
        let (unit, decimals) = coin(chain);
        sentences.push(format!(
            "Nobody says what {} of these transactions may cost, and you approve up to {} {unit} for one.",
            unsaid.len(),
            coins(*fee, decimals),
        ));
    }
    (!sentences.is_empty()).then(|| format!("{} Is that what you mean?", sentences.join(" ")))
}

pub async fn approve(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    let form: ApproveForm = response::json(call)?;
    check(signed_in, &form.form_token, form.items.len())?;
    let proof = proof(signed_in, &form.credential)?;
    let list: Result<Vec<_>, _> = form.list.iter().map(hex::decode).collect();
    let list = list.map_err(|_| PageError::new(StatusCode::BAD_REQUEST, "list: is not hex"))?;
    // A call is about one vault, one highest fee and one end.
    let mut calls: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for ApprovalItem {
        uuid,
        most_fee,
        valid_until_ms,
    } in form.items
    {
        let request = details(call, signed_in, &uuid).await?;
        let of = (request.vault_uuid, most_fee, valid_until_ms);
        calls.entry(of).or_default().push(uuid);
    }
    let mut outcome = GestureOutcome::default();
    for ((_, most_fee, valid_until_ms), uuids) in calls {
        let request = wire::ApproveSigningRequestsRequest {
            uuids,
            approval: Some(wire::Approval {
                most_fee,
                valid_until_ms,
                list: list.clone(),
                proof: Some(proof.clone()),
            }),
        };
        match call
            .operation::<ApproveSigningRequests>(signed_in, &request)
            .await
        {
            Ok(answer) => outcome.add(answer.results, |missing| match missing {
                0 => "approved; the signers sign it next".to_owned(),
                missing => format!("approved; {missing} more to approve it"),
            }),
            Err(fault) => outcome.failed(&request.uuids, &fault, call.id),
        }
    }
    Ok(outcome.answer())
}

/// The requests of a rejection, all of one vault.
async fn of_one_vault(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    items: &[ShownRequest],
) -> Result<(VaultId, Vec<RequestId>), PageError> {
    let (mut vault, mut ids) = (None, Vec::new());
    for ShownRequest { uuid, shown } in items {
        let request = details(call, signed_in, uuid).await?;
        check_shown(&request, shown)?;
        let of: VaultId = request.vault_uuid.unwrap_or_default().parse()?;
        if *vault.get_or_insert(of) != of {
            let problem = "these requests belong to several vaults: reject the requests of each vault separately";
            return Err(PageError::new(StatusCode::BAD_REQUEST, problem));
        }
        ids.push(uuid.parse()?);
    }
    Ok((vault.ok_or_else(Fault::invalid_uuid)?, ids))
}

pub async fn begin_rejection(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    let form: BeginRejectForm = response::json(call)?;
    check(signed_in, &form.form_token, form.items.len())?;
    let (vault, ids) = of_one_vault(call, signed_in, &form.items).await?;
    let challenge = rejections_challenge(vault, &ids)?;
    let uuids: Vec<_> = form.items.into_iter().map(|it| it.uuid).collect();
    Ok(PageResponse::json(&json!({
        "publicKey": options(call, signed_in, &challenge),
        "form": {"uuids": uuids, "reason": form.reason},
    })))
}

pub async fn reject(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    let form: RejectForm = response::json(call)?;
    check(signed_in, &form.form_token, form.uuids.len())?;
    let credential = form.credential.as_ref();
    let credential = credential.ok_or_else(|| Fault::field("credential", "is required"))?;
    let request = wire::RejectSigningRequestsRequest {
        rejection: Some(proof(signed_in, credential)?),
        uuids: form.uuids,
        reason: form.reason,
    };
    let mut outcome = GestureOutcome::default();
    match call
        .operation::<RejectSigningRequests>(signed_in, &request)
        .await
    {
        Ok(answer) => outcome.add(answer.results, |_| "rejected".to_owned()),
        Err(fault) => outcome.failed(&request.uuids, &fault, call.id),
    }
    Ok(outcome.answer())
}

/// What became of each request of a gesture. Each stands for itself.
#[derive(Default)]
struct GestureOutcome {
    results: Vec<Value>,
    done: usize,
    /// Of what went wrong first.
    status: Option<StatusCode>,
}

impl GestureOutcome {
    fn add(&mut self, results: Vec<wire::SigningRequestResult>, done: impl Fn(u32) -> String) {
        for result in results {
            let (is_done, said) = match &result.error {
                None => (true, done(result.remaining_approval_count)),
                Some(error) => (false, format!("nothing was done: {}", error.message)),
            };
            match is_done {
                true => self.done = self.done.saturating_add(1),
                // The request is not as it was when the page was made, most likely.
                false => self.status = self.status.or(Some(StatusCode::CONFLICT)),
            }
            self.say(&result.uuid, is_done, &said);
        }
    }

    /// Without an answer they may be done anyway.
    fn failed(&mut self, uuids: &[String], fault: &Fault, id: &str) {
        let said = format!("not known to be done: {}", crate::api::sentence(fault, id));
        self.status = self
            .status
            .or(Some(crate::http::error::status(fault.class())));
        for uuid in uuids {
            self.say(uuid, false, &said);
        }
    }

    fn say(&mut self, uuid: &str, done: bool, said: &str) {
        let said = Text::new(said).to_string();
        self.results
            .push(json!({"uuid": uuid, "done": done, "text": said}));
    }

    fn answer(self) -> PageResponse {
        // When some are done, the answer is about each.
        let status = match self.done {
            0 => self.status.unwrap_or(StatusCode::OK),
            _ => StatusCode::OK,
        };
        PageResponse::json(&json!({"results": self.results})).with_status(status)
    }
}
