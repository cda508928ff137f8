//! The history: the requests of a vault, and how to find one again.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use askama::Template;
use axum::http::StatusCode;
use covault_actors::{
    gateway::{Caller, Gateway},
    operations::GetSigningRequestList,
    users::SignedIn,
};
use covault_core::{
    fault::Fault,
    ids::{RequestId, VaultId},
    networks::Network,
    schema::wire,
};
use prost::Message as _;
use serde_json::Value;

use super::{
    ConsoleCall,
    listing::shown,
    pages::vault_names,
    requests::{details, payload_of},
    response::{PageError, PageResponse},
    text::Text,
    views::{ChoiceView, RequestView, Shell},
};

use crate::approving::contents;

/// Requests of a page.
const PAGE: i64 = 50;
/// Requests that are looked through for a text, in pages of so many.
const SEARCHED: i64 = 500;
const SEARCH_PAGE: i64 = 100;
/// Bytes of requests behind which a search by text does not continue: some are nearly a MiB.
const SEARCHED_BYTES: usize = 16 << 20;
/// Requests that are found by an address or a hash; of each vault at least some.
const FOUND: usize = 100;
const LEAST: usize = 5;
/// Vaults that are searched together.
const VAULTS: usize = 100;
/// In place of a vault: all that the person sees.
const EVERY: &str = "every";
const STATUSES: [&str; 3] = ["pending", "succeeded", "failed"];

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

/// What is asked for.
pub struct HistoryFilter {
    /// The chosen vault; `None`: every one.
    pub vault: Option<String>,
    /// Empty: any.
    pub status: String,
    /// Empty: none.
    pub search: String,
    /// The vaults that the person sees, by uuid.
    pub names: HashMap<String, String>,
}

impl HistoryFilter {
    /// Of the query of a page.
    ///
    /// # Errors
    /// When the store cannot be read, and for a vault that the person does not see: another one's list is none of it.
    pub async fn of(call: &ConsoleCall<'_>, signed_in: &SignedIn) -> Result<Self, PageError> {
        let names = vault_names(call, signed_in).await?;
        let wanted = call.parameter("vault");
        let mut by_name: Vec<_> = names.iter().collect();
        by_name.sort_by_key(|(_, name)| *name);
        let first = by_name.first().map(|(uuid, _)| (*uuid).clone());
        let status = call.parameter("status");
        let search = call.parameter("search").trim().to_owned();
        Ok(Self {
            vault: match names.contains_key(&wanted) {
                true => Some(wanted),
                false if wanted == EVERY && !search.is_empty() => None,
                false if wanted.is_empty() || wanted == EVERY => first,
                false => {
                    let problem = "you see no such vault";
                    return Err(PageError::new(StatusCode::NOT_FOUND, problem));
                }
            },
            status: match STATUSES.contains(&status.as_str()) {
                true => status,
                false => String::new(),
            },
            search,
            names,
        })
    }

    /// Whether a request has the status.
    pub fn fits(&self, request: &wire::SigningRequest) -> bool {
        let name = request.status().as_str_name();
        let name = name.trim_start_matches("STATUS_").to_ascii_lowercase();
        self.status.is_empty() || name == self.status
    }

    /// Whether it has the text, too: in its uuid, its notes, what it pays or signs, a reason, or a hash.
    fn has_text(&self, request: &wire::SigningRequest) -> bool {
        let search = self.search.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&search);
        let own = [
            request.uuid.as_str(),
            request.notes.as_deref().unwrap_or_default(),
            &request.failed_reason,
            &request.tx_hash,
            &request.replaces_uuid,
            &request.batch_payment_uuid,
        ];
        let payload = payload_of(request);
        own.into_iter().any(has)
            || has_value(&payload, &has)
            || contents(&payload).iter().any(|it| has(it))
    }

    fn query(&self, more: &[(&str, &str)]) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("vault", self.vault.as_deref().unwrap_or(EVERY));
        for (name, value) in [("status", &self.status), ("search", &self.search)] {
            if !value.is_empty() {
                query.append_pair(name, value);
            }
        }
        for (name, value) in more {
            query.append_pair(name, value);
        }
        query.finish()
    }
}

/// Whether a value in the JSON of a payload, and not the name of one, is as it is looked for.
fn has_value(json: &Value, has: &impl Fn(&str) -> bool) -> bool {
    match json {
        Value::String(text) => has(text),
        Value::Number(number) => has(&number.to_string()),
        Value::Array(all) => all.iter().any(|it| has_value(it, has)),
        Value::Object(fields) => fields.values().any(|it| has_value(it, has)),
        Value::Null | Value::Bool(_) => false,
    }
}

/// The requests of a vault, the newest first; or those that are searched for.
pub async fn page(call: &ConsoleCall<'_>, signed_in: &SignedIn) -> Result<PageResponse, PageError> {
    let filter = HistoryFilter::of(call, signed_in).await?;
    let number: i64 = call
        .parameter("page")
        .parse()
        .unwrap_or(1)
        .clamp(1, 1_000_000);
    let now_ms = call.now_ms();
    let (mut found, mut seen, mut next) = (Vec::new(), String::new(), None);
    let place = call.console.histories.acquire().await;
    let _place = place.map_err(Fault::bug)?;
    if !filter.search.is_empty() {
        SearchResults {
            requests: found,
            said: seen,
            ..
        } = search(call, signed_in, &filter).await?;
    } else if let Some(vault) = &filter.vault {
        let caller = call.caller(signed_in);
        let gateway = call.gateway();
        // With a status, more of them are looked through until there is a page of those that have it.
        let most = match filter.status.is_empty() {
            true => 1,
            false => SEARCHED / PAGE,
        };
        let (mut looked, mut place, mut is_full) = (0_usize, number, true);
        for _ in 0..most {
            let looked_at = list(gateway, &caller, vault, (place, PAGE), |it| {
                if filter.fits(&it) {
                    found.push(shown(&it, &filter.names, signed_in, now_ms));
                }
            });
            looked = looked.saturating_add(looked_at.await?.requests);
            is_full = goes_on(gateway, &caller, vault, place.saturating_mul(PAGE)).await?;
            place = place.saturating_add(1);
            if !is_full || i64::try_from(found.len()).is_ok_and(|count| count >= PAGE) {
                break;
            }
        }
        if !filter.status.is_empty() {
            seen = format!(
                "Found {} among {looked} requests of this vault.",
                found.len()
            );
        }
        if is_full {
            let place = place.to_string();
            next = Some(format!("/history?{}", filter.query(&[("page", &place)])));
        }
    }
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
        requests: found
            .into_iter()
            .map(RequestView::with_few_spends)
            .collect(),
        vaults,
        statuses: STATUSES
            .into_iter()
            .map(|name| choice(name, name, name == filter.status))
            .collect(),
        search: Text::new(&filter.search),
        seen,
        next,
        export: export.then(|| format!("/history.csv?{}", filter.query(&[]))),
    })
}

/// What a search has found.
pub struct SearchResults {
    /// The newest first.
    pub requests: Vec<RequestView>,
    /// What was looked at, in words.
    pub said: String,
    /// There is nothing more that the search is for.
    pub is_whole: bool,
}

/// What is searched for, the newest first, and what was looked through: by uuid, address and hash among all requests, by
/// any other text among the newest of a vault.
///
/// # Errors
/// When the store cannot be read.
pub async fn search(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    filter: &HistoryFilter,
) -> Result<SearchResults, PageError> {
    let caller = call.caller(signed_in);
    let (gateway, pages) = (call.gateway(), call.gateway().pages(&caller));
    let mut ids = BTreeSet::new();
    if let Ok(id) = filter.search.to_lowercase().parse::<RequestId>() {
        ids.insert(id);
    }
    let mut vaults: Vec<_> = filter.names.iter().collect();
    vaults.retain(|(uuid, _)| filter.vault.as_ref().is_none_or(|chosen| chosen == *uuid));
    vaults.sort_by_key(|(_, name)| *name);
    let left_out = vaults.len().saturating_sub(VAULTS);
    vaults.truncate(VAULTS);
    // Of many vaults fewer each.
    let most = FOUND.checked_div(vaults.len()).unwrap_or(FOUND).max(LEAST);
    let mut is_cut = false;
    for (uuid, _) in vaults {
        let vault: VaultId = uuid.parse()?;
        for term in terms(&filter.search) {
            let found = pages.requests_with(vault, &term, most).await?;
            is_cut |= found.len() >= most;
            ids.extend(found);
        }
    }
    let mut found = BTreeMap::new();
    let now_ms = call.now_ms();
    // Cut at once: what is large is not kept.
    let mut add = |request: wire::SigningRequest| {
        if filter.fits(&request) {
            let view = shown(&request, &filter.names, signed_in, now_ms);
            found.insert((request.creation_timestamp, request.uuid), view);
        }
    };
    for id in &ids {
        // A uuid may be that of nothing, or of what this person does not see.
        if let Ok(request) = details(call, signed_in, &id.to_string()).await {
            add(request);
        }
    }
    let (mut looked, mut is_whole) = (0_usize, true);
    if let Some(vault) = &filter.vault {
        let mut bytes = 0_usize;
        for place in 1..=SEARCHED / SEARCH_PAGE {
            let page = list(gateway, &caller, vault, (place, SEARCH_PAGE), |it| {
                if filter.has_text(&it) {
                    add(it);
                }
            });
            let page = page.await?;
            looked = looked.saturating_add(page.requests);
            bytes = bytes.saturating_add(page.bytes);
            let is_full = i64::try_from(page.requests).is_ok_and(|len| len >= SEARCH_PAGE);
            is_whole = !is_full;
            if !is_full || bytes >= SEARCHED_BYTES {
                break;
            }
        }
    }
    let found: Vec<_> = found.into_values().rev().collect();
    let newest = match is_cut {
        true => format!("the newest {most} of each vault"),
        false => "all".to_owned(),
    };
    let without = match left_out {
        0 => String::new(),
        left_out => format!(" {left_out} vaults were left out: choose one of them."),
    };
    let text = match &filter.vault {
        Some(_) => format!(", and, by any other text, the newest {looked} requests of this vault"),
        None => String::new(),
    };
    let seen = format!(
        "Found {}. Looked at {newest} that have this uuid or transaction hash, or pay this address{text}.{without}",
        found.len()
    );
    Ok(SearchResults {
        requests: found,
        said: seen,
        is_whole: !is_cut && left_out == 0 && is_whole,
    })
}

/// What a text may be: the address of a network in its canonical form, or a hash as it is.
fn terms(search: &str) -> BTreeSet<String> {
    let networks = Network::ALL.into_iter();
    let mut terms: BTreeSet<_> = networks
        .filter_map(|network| network.rules().parse_address(search).ok())
        .map(|address| address.to_lowercase())
        .collect();
    terms.insert(search.to_lowercase());
    terms
}

/// What was looked at.
pub struct LookedAt {
    pub requests: usize,
    /// As protobuf.
    pub bytes: usize,
}

/// Has `each` take the requests of a page, which is a number and how many it has. Where they are larger than an answer may
/// be, they are asked for in parts: no more than one answer is held at once. Pages are counted from the newest: when a new
/// request comes in between, one may come twice.
///
/// # Errors
/// When the store cannot be read.
pub async fn list(
    gateway: &Gateway,
    caller: &Caller,
    vault: &str,
    page: (i64, i64),
    mut each: impl FnMut(wire::SigningRequest),
) -> Result<LookedAt, Fault> {
    let mut looked = LookedAt {
        requests: 0,
        bytes: 0,
    };
    // The next one is the last.
    let mut parts = vec![page];
    while let Some((page, limit)) = parts.pop() {
        let request = wire::GetSigningRequestListRequest {
            vault_uuid: vault.to_owned(),
            page: Some(page),
            limit: Some(limit),
            ..Default::default()
        };
        let answer = gateway.call_typed::<GetSigningRequestList>(caller, &request, None);
        let parts_of = [2, 3, 5, 7].into_iter().find(|parts| limit % parts == 0);
        match (answer.await, parts_of) {
            (Ok((answer, _)), _) => {
                for request in answer.signing_requests {
                    looked.requests = looked.requests.saturating_add(1);
                    looked.bytes = looked.bytes.saturating_add(request.encoded_len());
                    each(request);
                }
                tokio::task::yield_now().await;
            }
            (Err(fault), Some(count)) if fault.path() == Some("limit") => {
                let first = page.saturating_sub(1).saturating_mul(count);
                let numbers = (1..=count).rev().map(|part| first.saturating_add(part));
                parts.extend(numbers.map(|number| (number, limit / count)));
            }
            (Err(fault), _) => return Err(fault),
        }
    }
    Ok(looked)
}

/// Whether a vault has more than so many requests. A page with fewer than it could have is not the last for that: what
/// cannot be read is left out of it.
///
/// # Errors
/// When the store cannot be read.
pub async fn goes_on(
    gateway: &Gateway,
    caller: &Caller,
    vault: &str,
    before: i64,
) -> Result<bool, Fault> {
    let next = list(gateway, caller, vault, (before.saturating_add(1), 1), drop);
    Ok(next.await?.requests > 0)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn search__should_look_at_values_and_not_at_how_they_are_stored() {
        let request = wire::SigningRequest {
            notes: Some("say \"hello\" to\nus".into()),
            r#type: Some(wire::signing_request::Type::EvmMessage(wire::EvmMessage {
                chain_id: 1,
                from: "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be".into(),
                content: b"Good Morning".to_vec(),
                r#type: Default::default(),
            })),
            ..Default::default()
        };
        let finds = |search: &str| {
            let filter = HistoryFilter {
                vault: None,
                status: String::new(),
                search: search.to_owned(),
                names: HashMap::new(),
            };
            filter.has_text(&request)
        };
        for text in ["\"hello\"", "TO\nUS", "78befdbc", "good morning"] {
            assert!(finds(text), "{text}");
        }
        for text in [
            "notes",
            "status",
            "evmMessage",
            "approvalSubject",
            "\\\"hello",
        ] {
            assert!(!finds(text), "{text}");
        }
    }

    #[test]
    fn terms__should_be_canonical_addresses_of_each_network_and_the_text_itself() {
        let mixed = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
        assert_eq!(terms(mixed), BTreeSet::from([mixed.to_lowercase()]));
        // Aptos and Sui fill up with zeros.
        let short = terms("0x2");
        assert!(short.contains("0x2"));
        assert!(short.contains(&format!("0x{:0>64}", 2)), "{short:?}");
        assert_eq!(terms("Rent March"), BTreeSet::from(["rent march".into()]));
    }
}
