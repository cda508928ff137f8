//! The page of one request, and of several that were chosen together.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use covault_actors::users::SignedIn;
use covault_core::{
    amount::parse_u128,
    approval::{MAX_LIST, words},
    networks::{Network, Payload, outflow::Spend},
    schema::{json, wire},
    user::UserRole,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{
    ConsoleCall, earlier_tries, facts,
    fee_estimates::{self, FeeView, FeeWork},
    pages::{details, vault_names},
    response::{PageError, PageResponse},
    standing::{ApprovalStanding, is_held, leading, status},
    text::{SpendView, Text, Time},
    totals,
    views::{
        ApprovalView, EarlierTry, FeePlaceView, OnChainView, RequestView, RequestsPage, SPENDS,
        Shell, sums_of,
    },
};
use crate::{
    approving::{self, DecodedApproval, contents},
    units::{coin, coins},
};

/// What of a request's JSON is not its payload.
const NOT_PAYLOAD: [&str; 7] = [
    "approvalSubject",
    "evmInputDataDecode",
    "signatures",
    "source",
    "transactionState",
    "approvals",
    "simulation",
];

/// Those that were chosen on a list.
pub async fn chosen(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    let uuids: BTreeSet<_> = call.parameters("uuid").into_iter().collect();
    if !(1..=MAX_LIST).contains(&uuids.len()) {
        let problem = "choose 1 to 100 requests in the inbox";
        return Err(PageError::new(StatusCode::BAD_REQUEST, problem));
    }
    page(call, signed_in, &Vec::from_iter(uuids)).await
}

pub async fn page(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    uuids: &[String],
) -> Result<PageResponse, PageError> {
    let names = vault_names(call, signed_in).await?;
    let mut found = Vec::new();
    for uuid in uuids {
        let request = details(call, signed_in, uuid).await?;
        let vault = request.vault_uuid.clone().unwrap_or_default();
        let name = names.get(&vault).cloned().unwrap_or_default();
        let view = view(&request, &name, &signed_in.user.name, call.now_ms());
        found.push((request, view));
    }
    let left_out = leave_out(&mut found);
    // Whoever approves nothing asks no chain.
    let may_approve = signed_in.user.role == UserRole::Approver;
    let offered = found
        .iter()
        .filter(|(_, view)| may_approve && view.is_offered());
    let works = offered.filter_map(|(_, view)| view.fee.as_ref());
    let chains: Vec<_> = works.map(|fee| fee.work.chain).collect();
    earlier_tries::add(call, signed_in, &mut found).await;
    let asked = fee_estimates::ask(call, signed_in, chains.into_iter());
    let (asked, ()) = futures::join!(asked, facts::add(call, signed_in, &mut found));
    for fee in found.iter_mut().filter_map(|(_, view)| view.fee.as_mut()) {
        fee.compare(&asked);
    }
    let mut requests: Vec<_> = found.into_iter().map(|(_, view)| view).collect();
    totals::mark_high_fees(&mut requests);
    let can_approve = may_approve && requests.iter().all(RequestView::is_offered);
    let can_reject = may_approve && can_be_rejected(&requests);
    let one_vault = requests
        .iter()
        .all(|it| Some(&it.vault_uuid) == requests.first().map(|it| &it.vault_uuid));
    PageResponse::page(&RequestsPage {
        shell: Shell::new(signed_in, "inbox"),
        has_totals: requests.len() > 1,
        totals: totals::of(&requests),
        unsummed: totals::unsummed(requests.iter()),
        fee_places: FeePlaceView::of(requests.iter()),
        left_out,
        can_approve,
        is_again: matches!(requests.as_slice(), [alone] if !alone.again.is_empty()),
        can_reject: can_reject && one_vault,
        requests,
    })
}

/// Takes those out that this person cannot approve (any more), where there are others that one gesture is to approve:
/// their uuids, and why.
fn leave_out(found: &mut Vec<(wire::SigningRequest, RequestView)>) -> Vec<(String, &'static str)> {
    if !found.iter().any(|(_, view)| view.is_offered()) {
        return Vec::new();
    }
    let (others, left): (Vec<_>, Vec<_>) = std::mem::take(found)
        .into_iter()
        .partition(|(_, view)| !view.is_offered());
    *found = left;
    let why = |view: RequestView| match &view {
        it if it.is_mine => "you have approved it",
        it if it.is_held => "it is held, and enough have approved it",
        it if !it.problem.is_empty() => "it cannot be shown",
        _ => "it no longer waits",
    };
    let said = others
        .into_iter()
        .map(|(request, view)| (request.uuid, why(view)));
    said.collect()
}

/// Whether all of them wait: what cannot be shown, and so not be approved, most needs to be rejected.
fn can_be_rejected(requests: &[RequestView]) -> bool {
    requests.iter().all(|it| !it.shown.is_empty())
}

/// What is shown of a request to this person at `now_ms`, in milliseconds since the Unix epoch.
pub fn view(
    request: &wire::SigningRequest,
    vault_name: &str,
    person: &str,
    now_ms: u64,
) -> RequestView {
    let decoded = approving::decode(request);
    let (mut spends, mut caution, mut fee, mut payload_hash, mut payload_words) =
        (Vec::new(), "", None, String::new(), String::new());
    let (mut network, mut wallet) = (Text::default(), Text::default());
    let (mut all_spends, mut batch_part) = (Vec::new(), None);
    let mut batch_spends = Vec::new();
    let problem = match &decoded {
        Err(error) if request.approval_subject.is_some() => Text::new(format!("{error:#}")),
        _ => Text::default(),
    };
    let fields = match decoded {
        Ok(decoded) => {
            let work = fee_work(&decoded);
            let outflow = decoded.payload.outflow(decoded.network);
            all_spends = outflow.spends;
            all_spends.retain(|it| !is_nothing(it));
            spends = spends_of(&all_spends, &decoded.fields);
            caution = approving::caution(outflow.nature);
            (batch_part, batch_spends) = approving::batch_part_and_spends(&decoded.payload);
            if let Some(work) = work {
                let (unit, decimals) = coin(&outflow.place);
                let known = leading(request, now_ms);
                let known = known.and_then(|it| parse_u128(&it.most_fee).ok());
                fee = Some(FeeView {
                    unit,
                    decimals,
                    place: outflow.place.to_string(),
                    known,
                    is_high: false,
                    value: known.map(|fee| coins(fee, decimals)).unwrap_or_default(),
                    work,
                    estimate: String::new(),
                    offered: None,
                    is_far: false,
                    exceeded: String::new(),
                });
            }
            let digest: [u8; 32] = Sha256::digest(&decoded.subject.payload).into();
            payload_hash = hex::encode(digest);
            payload_words = words(&digest).join(" ");
            network = Text::new(decoded.network.name());
            wallet = Text::new(&decoded.subject.address);
            decoded.fields
        }
        Err(_) => {
            let fields = payload_of(request);
            if let Some((payload, of)) = parse(&fields) {
                all_spends = payload.outflow(of).spends;
                all_spends.retain(|it| !is_nothing(it));
                (batch_part, batch_spends) = approving::batch_part_and_spends(&payload);
                spends = spends_of(&all_spends, &fields);
                network = Text::new(of.name());
                wallet = Text::new(payload.from());
            }
            fields
        }
    };
    let kind = fields
        .as_object()
        .and_then(|fields| fields.keys().next().cloned());
    let said = contents(&fields).into_iter();
    let said = said.map(|it| (it.label, Text::new(it.shown))).collect();
    let mut flat = Vec::new();
    flatten("", &fields, &mut flat);
    if wallet.is_empty() {
        let from = flat
            .iter()
            .find(|(name, _)| name.to_string().ends_with("from"));
        wallet = from.map(|(_, value)| value.clone()).unwrap_or_default();
    }
    let call = request.evm_input_data_decode.as_ref();
    let standing = ApprovalStanding::of(request, person, now_ms);
    RequestView {
        uuid: request.uuid.clone(),
        shown: request
            .approval_subject
            .as_ref()
            .map(shown_hash)
            .unwrap_or_default(),
        kind: Text::new(kind.unwrap_or_else(|| "request".to_owned())),
        status: status(request),
        waits: request.approval_subject.is_some() && problem.is_empty(),
        is_mine: standing == ApprovalStanding::Counts,
        is_held: request.approval_subject.is_some() && is_held(request),
        again: match standing {
            ApprovalStanding::Again(why) => why,
            ApprovalStanding::None | ApprovalStanding::Counts => "",
        },
        vault: Text::new(vault_name),
        vault_uuid: request.vault_uuid.clone().unwrap_or_default(),
        network,
        wallet,
        spends,
        more_spends: all_spends.len().saturating_sub(SPENDS),
        sums: sums_of(&all_spends),
        caution,
        batch_uuid: Text::new(&request.batch_payment_uuid),
        earlier_try: EarlierTry::None,
        batch_part,
        batch_spends,
        contract: None,
        fields: flat,
        contents: said,
        notes: Text::new(request.notes.as_deref().unwrap_or_default()),
        created: Time::new(request.creation_timestamp),
        expires: (request.approval_expiry_timestamp != 0)
            .then(|| Time::new(request.approval_expiry_timestamp)),
        payload_hash,
        payload_words,
        approvals: request
            .approvals
            .iter()
            .map(|it| approval(it, fee.as_ref()))
            .collect(),
        required: request.required_approval_count,
        remaining: request.remaining_approval_count,
        wanted: request.approval_wanted.lines().map(Text::new).collect(),
        simulation: simulation_of(&request.simulation),
        rule: None,
        function: Text::new(call.map(|call| call.function.as_str()).unwrap_or_default()),
        arguments: call
            .map(|call| call.args.iter())
            .into_iter()
            .flatten()
            .map(|it| {
                (
                    Text::new(format!("{} {}", it.r#type, it.name)),
                    Text::new(&it.data),
                )
            })
            .collect(),
        fee,
        failed: Text::new(&request.failed_reason),
        tx_hash: Text::new(&request.tx_hash),
        on_chain: request.transaction_state.as_ref().and_then(on_chain),
        replaced_by: request.replaced_by_uuids.iter().map(Text::new).collect(),
        replaces: Text::new(&request.replaces_uuid),
        problem,
    }
}

/// What a request that was signed came to: "succeeded" says that it was sent, not that anyone was paid.
fn on_chain(state: &wire::TransactionState) -> Option<OnChainView> {
    use wire::transaction_state::Status;
    let block = state.block.map_or_else(
        || "in a block".to_owned(),
        |block| format!("in block {block}"),
    );
    let is_good = state.success != Some(false);
    let (word, is_bad, sentence) = match state.status() {
        Status::Unspecified => return None,
        Status::Pending => ("pending", false, "sent, and in no block yet".to_owned()),
        Status::Mined if is_good => (
            "mined",
            false,
            format!("{block}, which the chain may still drop"),
        ),
        Status::Final if is_good => ("final", false, format!("{block}, for good")),
        Status::Mined => (
            "reverted",
            true,
            format!(
                "{block}, which the chain may still drop: it failed there and only paid its fee"
            ),
        ),
        Status::Final => (
            "reverted",
            true,
            format!("{block}, for good: it failed there and only paid its fee"),
        ),
        Status::Replaced => (
            "replaced",
            true,
            match state.replaced_by.as_str() {
                "" => "another transaction replaced it: it will never be in a block".to_owned(),
                by => format!("{by} replaced it: it will never be in a block"),
            },
        ),
        Status::Dropped => (
            "dropped",
            true,
            "expired: it will never be in a block".to_owned(),
        ),
        Status::Partial => (
            "partial",
            true,
            "some of its transactions are on the chain for good, others never will be".to_owned(),
        ),
    };
    Some(OnChainView {
        word,
        sentence: Text::new(sentence),
        is_bad,
    })
}

/// What makes the fee of a transaction; nothing where the wallet pays none.
pub fn fee_work(decoded: &DecodedApproval<'_>) -> Option<FeeWork> {
    let DecodedApproval {
        payload,
        network,
        fields,
        ..
    } = decoded;
    if !payload.is_transaction() || !payload.pays_fee() {
        return None;
    }
    let (_, listed) = approving::batch_part_and_spends(payload);
    let mut work = FeeWork::of(payload, &payload.outflow(*network), listed.len());
    work.chain.chain_id = work.chain.chain_id.or_else(|| number_of(fields, "chainId"));
    Some(work)
}

/// A number that a request names.
fn number_of(fields: &Value, name: &str) -> Option<u64> {
    let mut kinds = fields.as_object()?.values();
    match kinds.next()?.get(name)? {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    }
}

/// What leaves the wallet, with the decimals that the request names for its token, if it does.
fn spends_of(spends: &[Spend], fields: &Value) -> Vec<SpendView> {
    let (decimals, chain_id) = (number_of(fields, "decimals"), number_of(fields, "chainId"));
    let decimals = decimals.and_then(|it| usize::try_from(it).ok());
    // More fit no amount.
    let decimals = decimals.filter(|decimals| *decimals <= 77);
    let spends = spends.iter().take(SPENDS).map(SpendView::new);
    spends
        .map(|spend| SpendView {
            chain_id: spend.chain_id.or(chain_id),
            ..spend.with_decimals(decimals)
        })
        .collect()
}

/// Whether it is no payment that anyone could tell: what may happen is said in words.
fn is_nothing(spend: &Spend) -> bool {
    spend.amount.is_zero() && spend.recipient.is_none()
}

/// What a chain node said when it tried the transaction; as it is where it is no JSON.
fn simulation_of(bytes: &[u8]) -> Vec<(Text, Text)> {
    let mut found = Vec::new();
    match serde_json::from_slice::<Value>(bytes) {
        Ok(json) => flatten("", &json, &mut found),
        Err(_) if bytes.is_empty() => {}
        Err(_) => found.push((
            Text::new("result"),
            Text::new(String::from_utf8_lossy(bytes)),
        )),
    }
    found
}

fn approval(given: &wire::GivenApproval, fee: Option<&FeeView>) -> ApprovalView {
    let amount = parse_u128(&given.most_fee).ok();
    let in_coins = fee
        .zip(amount)
        .map(|(fee, amount)| format!("{} {}", coins(amount, fee.decimals), fee.unit));
    ApprovalView {
        person: Text::new(&given.person),
        at: Time::new(given.timestamp),
        until: Time::new(given.valid_until_timestamp),
        most_fee: in_coins.unwrap_or_default(),
    }
}

/// The payload of a request that does not wait, as JSON.
pub fn payload_of(request: &wire::SigningRequest) -> Value {
    let text = json::encode(request).unwrap_or_default();
    let mut all: Value = serde_json::from_str(&text).unwrap_or_default();
    if let Some(fields) = all.as_object_mut() {
        fields.retain(|name, value| value.is_object() && !NOT_PAYLOAD.contains(&name.as_str()));
    }
    all
}

/// What a request does that does not wait, and its network; nothing where a part of it was left out.
fn parse(fields: &Value) -> Option<(Payload, Network)> {
    let text = fields.to_string();
    let request: wire::CreateSigningRequestRequest = json::decode(text.as_bytes()).ok()?;
    let payload = Payload::parse(request.r#type.as_ref()?).ok()?;
    let mut networks = Network::ALL.into_iter();
    let network = networks.find(|network| payload.check_wallet(*network).is_ok())?;
    Some((payload, network))
}

/// Every field by its path. What is unset is left out.
fn flatten(path: &str, value: &Value, found: &mut Vec<(Text, Text)>) {
    let below = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    match value {
        Value::Null => {}
        Value::Object(fields) => {
            for (name, value) in fields {
                flatten(&below(name), value, found);
            }
        }
        Value::Array(items) => {
            for (place, value) in items.iter().enumerate() {
                flatten(&format!("{path}[{place}]"), value, found);
            }
        }
        Value::String(text) if text.is_empty() => {}
        Value::String(text) => found.push((Text::new(path), Text::new(text))),
        other => found.push((Text::new(path), Text::new(other.to_string()))),
    }
}

/// What a page has shown of a request, and what is signed of it is: SHA-256 of each part's SHA-256. The page sends it along,
/// because the row may have become another one since.
pub fn shown_hash(subject: &wire::ApprovalSubject) -> String {
    let parts = [
        subject.payload.as_slice(),
        subject.network.as_bytes(),
        subject.address.as_bytes(),
        subject.root_public_key.as_slice(),
    ];
    let mut all = Sha256::new();
    for part in parts {
        all.update(Sha256::digest(part));
    }
    hex::encode(all.finalize())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn wants__should_be_those_of_each_signer() {
        let first = "signer-1 wants 2 of treasurer, director by way of node (approved: treasurer)";
        let request = wire::SigningRequest {
            approval_wanted: format!("{first}\nsigner-2 wants 1 of \u{202e}cfo"),
            ..Default::default()
        };
        let shown = view(&request, "treasury", "treasurer", 0).wanted;
        let shown: Vec<_> = shown.iter().map(Text::to_string).collect();
        assert_eq!(shown, [first, "signer-2 wants 1 of \\u{202e}cfo"]);
    }

    #[test]
    fn request_that_cannot_be_shown__should_still_be_rejected() {
        let mut request = wire::SigningRequest {
            approval_subject: Some(wire::ApprovalSubject {
                root_public_key: vec![2; 33],
                network: "evm".into(),
                address: "0xab".into(),
                payload: vec![0xff; 9],
            }),
            ..Default::default()
        };
        let shown = view(&request, "treasury", "treasurer", 0);
        assert!(!shown.problem.is_empty() && !shown.waits);
        assert!(can_be_rejected(&[shown]));
        // What does not wait cannot.
        request.approval_subject = None;
        assert!(!can_be_rejected(&[view(
            &request,
            "treasury",
            "treasurer",
            0
        )]));
    }
}
