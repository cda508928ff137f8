//! The history: the requests of a vault, and how to find one again.

use std::time::Duration;

use askama::Template;
use covault_actors::users::SignedIn;
use covault_core::{fault::Fault, ids::VaultId, schema::wire::signing_request::Status};

use super::{
    ConsoleCall,
    history_filter::{
        EVERY, HistoryFilter, HistoryPart, NextPage, PlaceText, STATUSES, goes_on, list,
    },
    listing::shown,
    response::{PageError, PageResponse},
    search::Search,
    text::Text,
    views::{ChoiceView, RequestView, Shell},
};

/// Requests of a page.
const PAGE: i64 = 50;
/// Requests that a page of a status looks through.
const SEARCHED: i64 = 500;
/// How long a person waits for a place, and how long it is looked.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Template)]
#[template(path = "history.html")]
struct HistoryPage {
    shell: Shell,
    vaults: Vec<ChoiceView>,
    statuses: Vec<ChoiceView>,
    search: Text,
    requests: Vec<RequestView>,
    /// What was looked through.
    seen: String,
    /// The address of the next page, where there may be one.
    next: Option<String>,
    /// The address of the same as a file; nothing where no vault is chosen.
    export: Option<String>,
}

/// The requests of a vault, the newest first; or those that are searched for.
pub async fn page(call: &ConsoleCall<'_>, signed_in: &SignedIn) -> Result<PageResponse, PageError> {
    let filter = HistoryFilter::of(call, signed_in).await?;
    let number: i64 = call
        .parameter("page")
        .parse()
        .unwrap_or(1)
        .clamp(1, 1_000_000);
    let places = &call.console.histories;
    let _place = places.wait(signed_in.user.id, PATIENCE).await?;
    let looked = tokio::time::timeout(PATIENCE, look(call, signed_in, &filter, number));
    let part = looked.await.map_err(|_| {
        Fault::unavailable(
            "this took too long: choose one vault, or search for a uuid, an address or a transaction hash",
        )
    })??;
    let choice = |uuid: &str, name: &str, chosen: bool| ChoiceView {
        uuid: uuid.to_owned(),
        name: Text::new(name),
        chosen,
    };
    let mut by_name: Vec<_> = filter.names.iter().collect();
    by_name.sort_by_key(|(_, name)| *name);
    let vaults = by_name.into_iter();
    let mut vaults: Vec<_> = vaults
        .map(|(uuid, name)| choice(uuid, name, Some(uuid) == filter.vault.as_ref()))
        .collect();
    if vaults.len() > 1 {
        vaults.push(choice(
            EVERY,
            "every vault (to search)",
            filter.vault.is_none(),
        ));
    }
    let export = !filter.names.is_empty();
    PageResponse::page(&HistoryPage {
        shell: Shell::new(signed_in, "history"),
        requests: part
            .requests
            .into_iter()
            .map(RequestView::with_few_spends)
            .collect(),
        vaults,
        statuses: STATUSES
            .into_iter()
            .map(|name| choice(name, name, name == filter.status))
            .collect(),
        search: Text::new(&filter.search),
        seen: part.seen,
        next: part
            .next
            .map(|next| format!("/history?{}", filter.query(Some(&next)))),
        export: export.then(|| format!("/history.csv?{}", filter.query(None))),
    })
}

/// A page of what the filter asks for.
async fn look(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    filter: &HistoryFilter,
    number: i64,
) -> Result<HistoryPart, PageError> {
    let caller = call.caller(signed_in);
    Ok(match (&filter.vault, filter.status()) {
        _ if !filter.search.is_empty() => {
            let before: Option<PlaceText> = call.parameter("before").parse().ok();
            let search = Search::of(call, signed_in, &caller, filter);
            search
                .page(number, before.map(|PlaceText(place)| place))
                .await?
        }
        (Some(vault), Some(status)) => {
            of_status(call, signed_in, filter, (vault, status), number).await?
        }
        (Some(vault), None) => newest(call, signed_in, filter, vault, number).await?,
        (None, _) => HistoryPart::default(),
    })
}

/// A page of all requests of a vault.
async fn newest(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    filter: &HistoryFilter,
    vault: &str,
    number: i64,
) -> Result<HistoryPart, PageError> {
    let (caller, gateway, now_ms) = (call.caller(signed_in), call.gateway(), call.now_ms());
    let mut requests = Vec::new();
    list(gateway, &caller, vault, (number, PAGE), |it| {
        requests.push(shown(&it, &filter.names, signed_in, now_ms));
    })
    .await?;
    let is_full = goes_on(gateway, &caller, vault, number.saturating_mul(PAGE)).await?;
    Ok(HistoryPart {
        requests,
        seen: String::new(),
        next: is_full.then(|| NextPage::Number(number.saturating_add(1))),
    })
}

/// Those of a status: rows are looked through until there is a page of them, and no more of them than a page may take.
async fn of_status(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    filter: &HistoryFilter,
    (vault, status): (&str, Status),
    number: i64,
) -> Result<HistoryPart, PageError> {
    let (caller, gateway) = (call.caller(signed_in), call.gateway());
    let (pages, id) = (gateway.pages(&caller), vault.parse::<VaultId>()?);
    let (mut ids, mut looked, mut place) = (Vec::new(), 0_usize, number);
    for _ in 0..SEARCHED / PAGE {
        let (found, count) = pages.requests_of_status(id, (place, PAGE), status).await?;
        ids.extend(found);
        looked = looked.saturating_add(count);
        if is_page(count) && !is_page(ids.len()) {
            place = place.saturating_add(1);
            continue;
        }
        break;
    }
    let before = place.min(number.saturating_add(SEARCHED / PAGE - 1));
    let is_full = goes_on(gateway, &caller, vault, before.saturating_mul(PAGE)).await?;
    let search = Search::of(call, signed_in, &caller, filter);
    let requests = search.shown_of(ids).await;
    Ok(HistoryPart {
        seen: format!(
            "Found {} among {looked} requests of this vault.",
            requests.len()
        ),
        requests: requests.into_values().rev().collect(),
        next: is_full.then(|| NextPage::Number(before.saturating_add(1))),
    })
}

/// Whether so many fill a page.
fn is_page(count: usize) -> bool {
    i64::try_from(count).is_ok_and(|count| count >= PAGE)
}
