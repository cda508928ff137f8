//! Finding a request again: by uuid, address and hash by an index, by any other text page by page.

use std::collections::{BTreeMap, BTreeSet};

use covault_actors::users::SignedIn;
use covault_core::{
    fault::Fault,
    ids::{RequestId, VaultId},
    networks::Network,
};
use futures::{StreamExt as _, stream};

use super::{
    ConsoleCall,
    history_filter::{HistoryFilter, HistoryPart, LookedAt, goes_on, list},
    listing::shown,
    requests::details,
    response::PageError,
    views::RequestView,
};

/// Requests that a page looks through for a text, and a file.
const SEARCH_PAGE: i64 = 100;
const SEARCHED: i64 = 500;
/// Bytes of requests behind which the search of a file does not continue: some are nearly a MiB.
const SEARCHED_BYTES: usize = 16 << 20;
/// Requests that are found by an address or a hash; of each vault at least some.
const FOUND: usize = 100;
const LEAST: usize = 5;
/// Vaults that are searched together.
const VAULTS: usize = 100;
/// Requests that are read at once.
const AT_ONCE: usize = 8;

/// By when they were made, as lists show them.
pub type ShownRequests = BTreeMap<(u64, String), RequestView>;

/// Those of these that the person sees and the filter has. Each is cut at once: what is large is not kept.
pub async fn shown_of(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    filter: &HistoryFilter,
    ids: impl IntoIterator<Item = RequestId>,
) -> ShownRequests {
    let mut each = Vec::new();
    for id in ids {
        each.push(shown_one(call, signed_in, filter, id));
    }
    let found: Vec<_> = stream::iter(each).buffered(AT_ONCE).collect().await;
    found.into_iter().flatten().collect()
}

async fn shown_one(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    filter: &HistoryFilter,
    id: RequestId,
) -> Option<((u64, String), RequestView)> {
    // It may be nothing, or what this person does not see.
    let request = details(call, signed_in, &id.to_string()).await.ok()?;
    let fits = filter.fits(&request);
    let view = || shown(&request, &filter.names, signed_in, call.now_ms());
    fits.then(|| ((request.creation_timestamp, request.uuid.clone()), view()))
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

/// What the index has for a search.
#[derive(Default)]
struct IndexResults {
    found: ShownRequests,
    /// What of it was looked at, in words.
    looked: String,
    /// Vaults that were left out, in a sentence; empty without any.
    without: String,
    is_whole: bool,
}

impl IndexResults {
    /// What was looked at, in a sentence: of the texts, too, where `texts` says which.
    fn said(&self, texts: &str) -> String {
        let Self {
            found,
            looked,
            without,
            ..
        } = self;
        format!(
            "Found {}. Looked at {looked} that have this uuid or transaction hash, or pay this address{texts}.{without}",
            found.len()
        )
    }
}

/// A page of a search: first what the index has, if anything; then, page by page, what has the text.
pub async fn search_page(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    filter: &HistoryFilter,
    number: i64,
) -> Result<HistoryPart, PageError> {
    let mut results = match (&filter.vault, number) {
        (Some(_), 2..) => IndexResults::default(),
        _ => indexed(call, signed_in, filter).await?,
    };
    let texts = filter.vault.as_ref().filter(|_| results.found.is_empty());
    let Some(vault) = texts else {
        let more = match filter.vault {
            Some(_) => "; the next page looks for it in texts",
            None => "",
        };
        return Ok(HistoryPart {
            seen: results.said(more),
            requests: results.found.into_values().rev().collect(),
            next: filter.vault.is_some().then_some(2),
        });
    };
    let place = number.saturating_sub(1).max(1);
    let found = &mut results.found;
    let looked = with_text(call, signed_in, filter, (vault, place), found).await?;
    let before = place.saturating_mul(SEARCH_PAGE);
    let (caller, gateway) = (call.caller(signed_in), call.gateway());
    let is_full = goes_on(gateway, &caller, vault, before).await?;
    let seen = match number {
        1 => results.said(&newest_texts(looked.requests)),
        _ => format!(
            "Found {} by this text among {} requests of this vault, behind the newest {}.",
            results.found.len(),
            looked.requests,
            before.saturating_sub(SEARCH_PAGE)
        ),
    };
    Ok(HistoryPart {
        seen,
        requests: results.found.into_values().rev().collect(),
        next: is_full.then(|| place.saturating_add(2)),
    })
}

/// Which texts were looked at, in words.
fn newest_texts(looked: usize) -> String {
    format!(", and, by any other text, the newest {looked} requests of this vault")
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
    let mut results = indexed(call, signed_in, filter).await?;
    let mut texts = String::new();
    if let Some(vault) = &filter.vault {
        let (mut looked, mut bytes) = (0_usize, 0_usize);
        for place in 1..=SEARCHED / SEARCH_PAGE {
            let found = &mut results.found;
            let page = with_text(call, signed_in, filter, (vault, place), found).await?;
            looked = looked.saturating_add(page.requests);
            bytes = bytes.saturating_add(page.bytes);
            let is_last = i64::try_from(page.requests).is_ok_and(|count| count < SEARCH_PAGE);
            if is_last {
                break;
            }
            if bytes >= SEARCHED_BYTES || place == SEARCHED / SEARCH_PAGE {
                results.is_whole = false;
                break;
            }
        }
        texts = newest_texts(looked);
    }
    Ok(SearchResults {
        said: results.said(&texts),
        requests: results.found.into_values().rev().collect(),
        is_whole: results.is_whole,
    })
}

/// What the index has: by uuid, address and hash among all requests.
async fn indexed(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    filter: &HistoryFilter,
) -> Result<IndexResults, PageError> {
    let caller = call.caller(signed_in);
    let pages = call.gateway().pages(&caller);
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
    Ok(IndexResults {
        found: shown_of(call, signed_in, filter, ids).await,
        looked: match is_cut {
            true => format!("the newest {most} of each vault"),
            false => "all".to_owned(),
        },
        without: match left_out {
            0 => String::new(),
            left_out => format!(" {left_out} vaults were left out: choose one of them."),
        },
        is_whole: !is_cut && left_out == 0,
    })
}

/// Adds those that have the text, of a page of a vault's requests.
async fn with_text(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    filter: &HistoryFilter,
    (vault, place): (&str, i64),
    found: &mut ShownRequests,
) -> Result<LookedAt, Fault> {
    let (caller, now_ms) = (call.caller(signed_in), call.now_ms());
    list(call.gateway(), &caller, vault, (place, SEARCH_PAGE), |it| {
        if filter.fits(&it) && filter.has_text(&it) {
            let view = shown(&it, &filter.names, signed_in, now_ms);
            found.insert((it.creation_timestamp, it.uuid), view);
        }
    })
    .await
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

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

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
