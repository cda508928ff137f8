//! Batch payments: the list, the content and state of one, and what a person can do with it now.
//!
//! A session alone moves no money: a batch is approved here only where the vault's rule has people approve its signing
//! requests with their passkeys.

use std::time::Duration;

use askama::Template;
use axum::http::StatusCode;
use covault_actors::{
    chain_rpc::ChainKey,
    operations::{
        ApproveBatchPayment, GetBalance, GetBatchPayment, ListBatchPayments, RejectBatchPayment,
        ResumeBatchPayment,
    },
    users::SignedIn,
};
use covault_core::{
    amount::{U256, parse_u256},
    fault::Fault,
    networks::{Network, outflow::Asset},
    schema::{
        admin::{self, BatchPaymentSummary},
        wire,
    },
    user::UserRole,
};

use super::{
    ConsoleCall,
    earlier_tries::SEND,
    facts,
    fee_estimates::{self, FeeWork},
    forbidden,
    pages::{details, vault_names},
    requests::view,
    response::{PageError, PageResponse},
    sessions,
    text::{Text, Time},
    views::{ChoiceView, RequestView, Shell},
};
use crate::{
    batch_sheet::{PaidAsset, is_formula},
    units::{coin, in_decimals, in_units},
};

/// Batches of a page, and how many pages of the service are looked through for one with a state.
const PAGE: usize = 50;
const LOOKS: usize = 5;
/// How long a page waits for its chain.
const PATIENCE: Duration = Duration::from_secs(2);
/// Signing requests of a batch that are shown, the newest.
const REQUESTS: usize = 10;
/// Of each of them those that replace its transaction, the newest.
const REPLACEMENTS: usize = 3;
const STATES: [&str; 5] = [
    "waits for approval",
    "on its way",
    "paid",
    "failed, can be resumed",
    "failed",
];

#[derive(Template)]
#[template(path = "batches.html")]
struct BatchesPage {
    shell: Shell,
    vaults: Vec<ChoiceView>,
    states: Vec<ChoiceView>,
    batches: Vec<BatchView>,
    /// What was looked through; empty for a page without a filter.
    seen: String,
    /// The address of the next page.
    next: Option<String>,
    /// The vault that is shown; empty where the person sees none.
    vault_uuid: String,
    may_make: bool,
}

/// A batch on a list, and at the head of its page.
pub struct BatchView {
    pub uuid: String,
    pub name: Text,
    pub notes: Text,
    pub kind: Text,
    pub from: Text,
    /// `evm:1`, `evm:1/0x...`
    pub asset: Text,
    pub recipients: u32,
    /// In coins; empty for a token.
    pub total: String,
    /// In the smallest unit.
    pub smallest: String,
    pub state: &'static str,
    /// What its colour is named after.
    pub status: &'static str,
    pub created: Time,
    pub failed: Text,
}

#[derive(Template)]
#[template(path = "batch.html")]
struct BatchPage {
    shell: Shell,
    batch: BatchView,
    vault: Text,
    vault_uuid: String,
    made_by: Text,
    maker_revoked: bool,
    /// The batch contract of its chain, where it needs one.
    contract: Text,
    needs_contract: bool,
    /// The total by the token's contract; empty for coins, and where it says nothing.
    by_chain: Text,
    /// Whose amounts those of the rows are.
    amounts: &'static str,
    rows: Vec<RowView>,
    duplicates: usize,
    money: Vec<(&'static str, String)>,
    /// What is missing, in a sentence; empty: nothing, or nobody knows.
    missing: String,
    held_up: Text,
    /// It failed after it let the contract take the total.
    leaves_allowance: bool,
    /// A request was made that was to pay its rows.
    has_earlier: bool,
    requests: Vec<(String, Option<RequestView>)>,
    /// What this person can do.
    may: AllowedActions,
}

/// What a person can do with a batch now.
#[derive(Default)]
struct AllowedActions {
    approve: bool,
    resume: bool,
    reject: bool,
    /// Why it cannot be approved or resumed here; empty otherwise.
    why_not: &'static str,
}

/// A payment.
struct RowView {
    number: usize,
    address: Text,
    /// In coins; empty for a token.
    amount: String,
    smallest: String,
    /// By the token's contract.
    by_chain: String,
    notes: Text,
    is_formula: bool,
    duplicate: bool,
}

/// What is paid by a kind: `evmBatchSendNative` with a chain and a token.
fn paid(batch: &BatchPaymentSummary) -> PaidAsset {
    let network = match batch.kind.get(..3) {
        Some("btc") => Network::Bitcoin,
        Some("sui") => Network::Sui,
        _ => Network::Evm,
    };
    PaidAsset {
        network,
        chain_id: (batch.chain_id != 0).then_some(batch.chain_id),
        token: Some(batch.token.clone()).filter(|token| !token.is_empty()),
    }
}

fn state(batch: &BatchPaymentSummary) -> (&'static str, &'static str) {
    let [waits, goes_on, is_paid, can_be_resumed, failed] = STATES;
    match (batch.status.as_str(), batch.approved, batch.resumable) {
        ("STATUS_PENDING", false, _) => (waits, "pending"),
        ("STATUS_PENDING", true, _) => (goes_on, "pending"),
        ("STATUS_SUCCEEDED", ..) => (is_paid, "succeeded"),
        (_, _, true) => (can_be_resumed, "failed"),
        (_, _, false) => (failed, "failed"),
    }
}

fn batch_view(batch: &BatchPaymentSummary) -> BatchView {
    let asset = paid(batch).asset();
    let total = parse_u256(&batch.total).unwrap_or_default();
    let (state, status) = state(batch);
    BatchView {
        uuid: batch.uuid.clone(),
        name: Text::new(&batch.name),
        notes: Text::new(&batch.notes),
        kind: Text::new(&batch.kind),
        from: Text::new(&batch.address),
        total: in_units(&asset, total),
        asset: Text::new(asset.to_string()),
        recipients: batch.recipients,
        smallest: batch.total.clone(),
        state,
        status,
        created: Time::new(batch.created_ms),
        failed: Text::new(&batch.failed_reason),
    }
}

/// The batches of a vault, the newest first.
pub async fn list(call: &ConsoleCall<'_>, signed_in: &SignedIn) -> Result<PageResponse, PageError> {
    let names = vault_names(call, signed_in).await?;
    let mut by_name: Vec<_> = names.iter().collect();
    by_name.sort_by_key(|(_, name)| *name);
    let wanted = call.parameter("vault");
    let vault = match wanted.as_str() {
        "" => by_name.first().map(|(uuid, _)| (*uuid).clone()),
        _ if names.contains_key(&wanted) => Some(wanted),
        _ => {
            let problem = "you see no such vault";
            return Err(PageError::new(StatusCode::NOT_FOUND, problem));
        }
    };
    let wanted = call.parameter("state");
    let wanted = STATES.into_iter().find(|state| *state == wanted);
    let mut next = Some(call.parameter("next")).filter(|next| !next.is_empty());
    let (mut batches, mut looked) = (Vec::new(), 0_usize);
    if let Some(vault) = &vault {
        for _ in 0..LOOKS {
            let request = admin::ListBatchPaymentsRequest {
                vault_uuid: vault.clone(),
                next: next.take(),
            };
            let page = call.operation::<ListBatchPayments>(signed_in, &request);
            let page = page.await?;
            next = page.next;
            looked = looked.saturating_add(page.batch_payments.len());
            let shown = page.batch_payments.iter().map(batch_view);
            batches.extend(shown.filter(|it| wanted.is_none_or(|wanted| it.state == wanted)));
            if next.is_none() || wanted.is_none() || batches.len() >= PAGE {
                break;
            }
        }
    }
    let choice = |uuid: &str, name: &str, chosen: bool| ChoiceView {
        uuid: uuid.to_owned(),
        name: Text::new(name),
        chosen,
    };
    let next = next.zip(vault.clone()).map(|(next, vault)| {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query
            .append_pair("vault", &vault)
            .append_pair("next", &next);
        if let Some(state) = wanted {
            query.append_pair("state", state);
        }
        format!("/batches?{}", query.finish())
    });
    PageResponse::page(&BatchesPage {
        shell: Shell::new(signed_in, "batches"),
        vaults: by_name
            .into_iter()
            .map(|(uuid, name)| choice(uuid, name, Some(uuid) == vault.as_ref()))
            .collect(),
        states: STATES
            .into_iter()
            .map(|state| choice(state, state, Some(state) == wanted))
            .collect(),
        seen: match wanted {
            Some(_) => format!("Found {} among {looked} batch payments.", batches.len()),
            None => String::new(),
        },
        batches,
        next,
        vault_uuid: vault.unwrap_or_default(),
        may_make: signed_in.user.role == UserRole::Approver,
    })
}

/// One batch: its rows, what it costs, its signing requests, and what can be done.
pub async fn page(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    uuid: &str,
) -> Result<PageResponse, PageError> {
    let request = admin::GetBatchPaymentRequest {
        uuid: uuid.to_owned(),
    };
    let found = call.operation::<GetBatchPayment>(signed_in, &request);
    let found = found.await?;
    let batch = found.batch_payment.ok_or_else(Fault::invalid_uuid)?;
    let paid = paid(&batch);
    let asset = paid.asset();
    let chain = ChainKey::of(paid.network, paid.chain_id);
    let said = match &paid.token {
        Some(token) => facts::token(call, signed_in, chain, token).await,
        None => None,
    };
    let total = parse_u256(&batch.total).unwrap_or_default();
    let rows: Vec<_> = (1_usize..)
        .zip(&found.rows)
        .map(|(number, row)| {
            let amount = parse_u256(&row.amount).unwrap_or_default();
            RowView {
                number,
                address: Text::new(&row.address),
                amount: in_units(&asset, amount),
                smallest: row.amount.clone(),
                by_chain: said
                    .as_ref()
                    .map(|it| it.in_units(amount))
                    .unwrap_or_default(),
                notes: Text::new(&row.notes),
                is_formula: is_formula(&row.notes),
                duplicate: row.duplicate,
            }
        })
        .collect();
    let names = vault_names(call, signed_in).await?;
    let vault = names.get(&batch.vault_uuid).cloned().unwrap_or_default();
    let mut requests = Vec::new();
    let listed = |it: &wire::SigningRequest| {
        view(it, &vault, &signed_in.user.name, call.now_ms())
            .in_a_list()
            .with_few_spends()
    };
    for made in batch.requests.iter().rev().take(REQUESTS) {
        let stage = stage(&made.stage);
        let shown = details(call, signed_in, &made.uuid).await.ok();
        for uuid in newest_replacements(shown.as_ref()) {
            let replacement = details(call, signed_in, uuid).await.ok();
            let name = format!("{stage}, sped up or cancelled: {uuid}");
            requests.push((name, replacement.as_ref().map(listed)));
        }
        let name = format!("{stage}: {}", made.uuid);
        requests.push((name, shown.as_ref().map(listed)));
    }
    let waits = state(&batch).1 == "pending" && !batch.approved;
    let asks = waits || batch.resumable;
    let (money, missing) = match asks {
        true => money(call, signed_in, &batch, &paid, total).await,
        false => (Vec::new(), String::new()),
    };
    let may = may(call, signed_in, &batch).await?;
    PageResponse::page(&BatchPage {
        shell: Shell::new(signed_in, "batches"),
        vault: Text::new(&vault),
        vault_uuid: batch.vault_uuid.clone(),
        made_by: Text::new(&batch.made_by),
        maker_revoked: batch.maker_revoked,
        contract: Text::new(&batch.batch_contract),
        needs_contract: paid.network == Network::Evm,
        amounts: facts::whose_amounts(said.as_ref()),
        by_chain: Text::new(said.map(|it| it.in_units(total)).unwrap_or_default()),
        duplicates: rows.iter().filter(|row| row.duplicate).count(),
        rows,
        money,
        missing,
        held_up: Text::new(&batch.held_up_by),
        leaves_allowance: leaves_allowance(&batch),
        has_earlier: batch.requests.iter().any(|made| made.stage == SEND),
        requests,
        may,
        batch: batch_view(&batch),
    })
}

/// The newest requests that were made to replace the transaction of this one, the newest first.
fn newest_replacements(request: Option<&wire::SigningRequest>) -> impl Iterator<Item = &String> {
    let replacements = request
        .into_iter()
        .flat_map(|it| it.replaced_by_uuids.iter().rev());
    replacements.take(REPLACEMENTS)
}

/// Whether it failed after it let the batch contract take its total.
fn leaves_allowance(batch: &BatchPaymentSummary) -> bool {
    let mut requests = batch.requests.iter();
    batch.status == "STATUS_FAILED" && requests.any(|made| made.stage == "allowance")
}

fn stage(stage: &str) -> &'static str {
    match stage {
        "resetAllowance" => "Allowance back to 0",
        "allowance" => "Allowance",
        _ => "Payment",
    }
}

/// What the person can do.
async fn may(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    batch: &BatchPaymentSummary,
) -> Result<AllowedActions, Fault> {
    let waits = state(batch).1 == "pending" && !batch.approved;
    if signed_in.user.role != UserRole::Approver {
        return Ok(AllowedActions {
            why_not: match waits || batch.resumable {
                true => "Approvers approve, resume and reject batch payments.",
                false => "",
            },
            ..AllowedActions::default()
        });
    }
    let caller = call.caller(signed_in);
    let vault = call
        .gateway()
        .pages(&caller)
        .vault(&batch.vault_uuid)
        .await?;
    let name = &signed_in.user.name;
    let is_named = vault.approvals.as_ref().is_some_and(|rule| {
        let mut of = rule.of.iter();
        of.any(|it| it.name == *name)
    });
    let concerned = is_named || batch.made_by == *name;
    let people = vault.approvals.is_some_and(|rule| {
        let mut wallets = rule.wallets.iter();
        rule.mode == "manual" || wallets.any(|it| it.address == batch.address && it.needs > 0)
    });
    Ok(AllowedActions {
        approve: concerned && waits && people,
        resume: concerned && batch.resumable && people,
        reject: concerned && (waits || batch.resumable || !batch.held_up_by.is_empty()),
        why_not: match (waits || batch.resumable, people, concerned) {
            (true, false, _) => {
                "Nobody approves the requests of this wallet with a passkey, so a browser does not start them: use \
                 covault batch approve or covault batch resume."
            }
            (true, true, false) => {
                "Whoever made it, and the people whom the vault's rule names, approve, resume and reject it."
            }
            _ => "",
        },
    })
}

/// Balance and fee, and what is missing.
async fn money(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    batch: &BatchPaymentSummary,
    paid: &PaidAsset,
    total: U256,
) -> (Vec<(&'static str, String)>, String) {
    let coin_asset = Asset::coin(paid.asset().place);
    let (symbol, decimals) = coin(&coin_asset.place);
    let coins = |amount: U256| format!("{} {symbol}", in_decimals(amount, decimals));
    let balance = async |token: Option<&str>| {
        let request = wire::GetBalanceRequest {
            network_type: paid.network.to_wire().into(),
            chain_id: paid.chain_id.and_then(|id| id.try_into().ok()),
            wallet_address: batch.address.clone(),
            token_address: token.map(str::to_owned),
        };
        let said = call
            .operation::<GetBalance>(signed_in, &request)
            .await
            .ok()?;
        parse_u256(&said.balance).ok()
    };
    let end = tokio::time::Instant::now() + PATIENCE;
    // A chain that hangs keeps no page waiting.
    let (of_coin, of_token, fee) = futures::join!(
        tokio::time::timeout_at(end, balance(None)),
        tokio::time::timeout_at(end, async {
            match &paid.token {
                Some(token) => balance(Some(token)).await,
                None => None,
            }
        }),
        tokio::time::timeout_at(end, fee_about(call, signed_in, batch, paid))
    );
    let (of_coin, of_token, fee) = (
        of_coin.ok().flatten(),
        of_token.ok().flatten(),
        fee.ok().flatten(),
    );
    let mut lines = Vec::new();
    let mut missing = Vec::new();
    let unknown = "the chain's nodes do not say".to_owned();
    if paid.token.is_some() {
        let smallest = |amount: U256| format!("{amount} in the smallest unit");
        let said = of_token.map_or_else(|| unknown.clone(), smallest);
        lines.push(("Balance of the token", said));
        if let Some(lacks) = of_token.and_then(|it| lacks(it, total)) {
            missing.push(format!("{lacks} of the token, in the smallest unit"));
        }
    }
    lines.push((
        "Balance in coins",
        of_coin.map_or_else(|| unknown.clone(), coins),
    ));
    lines.push((
        "Fee, about",
        fee.map_or(unknown, |fee| {
            format!(
                "{} at most; the person who approves the signing request names the highest fee that counts",
                coins(fee)
            )
        }),
    ));
    let in_coins = match paid.token {
        Some(_) => U256::ZERO,
        None => total,
    };
    let needs = in_coins.saturating_add(fee.unwrap_or_default());
    if let Some(lacks) = of_coin.and_then(|it| lacks(it, needs)) {
        missing.push(coins(lacks));
    }
    let sentence = match missing.is_empty() {
        true => String::new(),
        false => format!("The wallet lacks {}.", missing.join(", and ")),
    };
    (lines, sentence)
}

fn lacks(has: U256, needs: U256) -> Option<U256> {
    needs.checked_sub(has).filter(|lacks| !lacks.is_zero())
}

/// What the transactions of a batch may cost, by what its chain's nodes ask for now.
async fn fee_about(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    batch: &BatchPaymentSummary,
    paid: &PaidAsset,
) -> Option<U256> {
    let work = FeeWork {
        chain: paid.asset().place,
        payments: batch.recipients.into(),
        other_calls: if paid.token.is_some() { 2 } else { 0 },
        is_transfer: false,
        is_unknown: false,
        gas: None,
        named: None,
    };
    let asked = fee_estimates::ask(call, signed_in, std::iter::once(work.chain)).await;
    work.cost(&asked)
}

/// A field of a form that was posted.
fn field(call: &ConsoleCall<'_>, name: &str) -> String {
    let mut pairs = form_urlencoded::parse(&call.body);
    let found = pairs.find(|(key, _)| key == name);
    found
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}

/// Refuses who may not decide about batches.
pub fn check_role(signed_in: &SignedIn) -> Result<(), PageError> {
    match signed_in.user.role {
        UserRole::Approver => Ok(()),
        _ => Err(forbidden(
            "only approvers make, approve, resume and reject batch payments",
        )),
    }
}

/// What a button of the page of a batch does; the way back to it.
pub async fn act(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    uuid: &str,
    what: &str,
) -> Result<PageResponse, PageError> {
    sessions::check_form(signed_in, &field(call, "form_token"))?;
    check_role(signed_in)?;
    let uuid = uuid.to_owned();
    let back = format!("/batches/{uuid}");
    match what {
        "approve" => {
            let request = admin::ApproveBatchPaymentRequest {
                uuid,
                // What the page has shown.
                total: Some(field(call, "total")),
                ..Default::default()
            };
            call.operation::<ApproveBatchPayment>(signed_in, &request)
                .await?;
        }
        "resume" => {
            let request = admin::ResumeBatchPaymentRequest { uuid };
            call.operation::<ResumeBatchPayment>(signed_in, &request)
                .await?;
        }
        "reject" => {
            let reason = field(call, "reason").trim().to_owned();
            let request = admin::RejectBatchPaymentRequest { uuid, reason };
            call.operation::<RejectBatchPayment>(signed_in, &request)
                .await?;
        }
        _ => {
            return Err(PageError::new(
                StatusCode::NOT_FOUND,
                "there is no such page",
            ));
        }
    }
    PageResponse::see_page(&back)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn lacks__should_be_what_is_missing() {
        let units = |amount: u64| U256::from(amount);
        assert_eq!(lacks(units(5), units(7)), Some(units(2)));
        assert_eq!(lacks(units(7), units(7)), None);
        assert_eq!(lacks(units(8), units(7)), None);
    }

    #[test]
    fn page_of_a_batch__should_show_the_newest_speed_ups_first() {
        let request = wire::SigningRequest {
            replaced_by_uuids: ["a", "b", "c", "d"].map(str::to_owned).into(),
            ..Default::default()
        };
        let shown: Vec<_> = newest_replacements(Some(&request)).collect();
        assert_eq!(shown, ["d", "c", "b"]);
        assert_eq!(newest_replacements(None).count(), 0);
    }

    #[test]
    fn state__should_have_a_word_for_each_status() {
        let batch = |status: &str, approved, resumable| BatchPaymentSummary {
            status: status.into(),
            approved,
            resumable,
            ..Default::default()
        };
        let words = [
            batch("STATUS_PENDING", false, false),
            batch("STATUS_PENDING", true, false),
            batch("STATUS_SUCCEEDED", true, false),
            batch("STATUS_FAILED", true, true),
            batch("STATUS_FAILED", false, false),
        ];
        assert_eq!(words.each_ref().map(|it| state(it).0), STATES);
    }
}
