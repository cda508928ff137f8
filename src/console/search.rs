//! Finding a request again: by uuid, address and hash by an index, by any other text page by page.

use std::collections::{BTreeMap, BTreeSet};

use covault_actors::{
    gateway::{Caller, Gateway, RequestPlace},
    operations::GetSigningRequestDetails,
    users::SignedIn,
};
use covault_core::{
    fault::Fault,
    ids::{RequestId, VaultId},
    networks::Network,
    schema::wire,
};
use futures::{StreamExt as _, stream};

use super::{
    ConsoleCall,
    history_filter::{HistoryFilter, HistoryLook, HistoryPart, NextPage, PlaceText, goes_on, list},
    listing::shown,
    response::PageError,
    views::RequestView,
};

/// Requests that a page looks through for a text.
pub const SEARCH_PAGE: i64 = 100;
/// Requests of a page that are found by an address or a hash; with every vault at least some of each.
const FOUND: usize = 100;
const LEAST: usize = 5;
/// Vaults that are searched together.
const VAULTS: usize = 100;
/// Requests that are read at once.
const AT_ONCE: usize = 8;

/// By when they were made, as lists show them.
pub type ShownRequests = BTreeMap<(u64, String), RequestView>;

/// Who searches, and for what.
#[derive(Clone, Copy)]
pub struct Search<'a> {
    pub gateway: &'a Gateway,
    pub caller: &'a Caller,
    pub who: &'a SignedIn,
    pub filter: &'a HistoryFilter,
    pub now_ms: u64,
}

/// What the index has for a search.
#[derive(Default)]
pub struct IndexResults {
    pub found: ShownRequests,
    /// Requests that were read, of any status.
    pub read: usize,
    /// Behind which request the next page begins, where there may be one.
    pub next: Option<RequestPlace>,
    /// What of it was looked at, in words.
    looked: String,
    /// Vaults that were left out, in a sentence; empty without any.
    without: String,
    /// There is nothing more that the search is for.
    pub is_whole: bool,
}

impl IndexResults {
    /// What was looked at, in a sentence: of the texts, too, where `texts` says which.
    pub fn said(&self, texts: &str) -> String {
        let Self {
            found,
            looked,
            without,
            ..
        } = self;
        format!(
            "Found {}. Looked at {looked} that have this uuid or transaction hash, pay this address, or are of the wallet \
             that has it{texts}.{without}",
            found.len()
        )
    }

    fn newest_first(self) -> Vec<RequestView> {
        self.found.into_values().rev().collect()
    }
}

impl<'a> Search<'a> {
    /// By a filter, in the name of this person.
    pub fn of(
        call: &'a ConsoleCall<'_>,
        who: &'a SignedIn,
        caller: &'a Caller,
        filter: &'a HistoryFilter,
    ) -> Self {
        Self {
            gateway: call.gateway(),
            caller,
            who,
            filter,
            now_ms: call.now_ms(),
        }
    }

    /// A page of a search: first, page by page, what the index has, if anything; then what has the text. `before`: behind
    /// which request of the index it begins.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn page(
        &self,
        number: i64,
        before: Option<RequestPlace>,
    ) -> Result<HistoryPart, PageError> {
        let mut results = match (&self.filter.vault, number) {
            (Some(vault), 1) => self.in_vault(vault, before).await?,
            (Some(_), _) => IndexResults::default(),
            (None, _) => self.in_every_vault().await?,
        };
        let by_index = !results.found.is_empty() || results.next.is_some() || before.is_some();
        let texts = self.filter.vault.as_ref().filter(|_| !by_index);
        let Some(vault) = texts else {
            let (more, next) = match (&self.filter.vault, results.next) {
                (Some(_), Some(place)) => (
                    "; the next page goes on",
                    Some(NextPage::Before(PlaceText(place))),
                ),
                (Some(_), None) => (
                    "; the next page looks for it in texts",
                    Some(NextPage::Number(2)),
                ),
                (None, _) => ("", None),
            };
            return Ok(HistoryPart {
                seen: results.said(more),
                requests: results.newest_first(),
                next,
            });
        };
        let place = number.saturating_sub(1).max(1);
        let looked = self.with_text((vault, place), &mut results.found).await?;
        let before = place.saturating_mul(SEARCH_PAGE);
        let is_full = goes_on(self.gateway, self.caller, vault, before).await?;
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
            requests: results.newest_first(),
            next: is_full.then(|| NextPage::Number(place.saturating_add(2))),
        })
    }

    /// What the index has of a vault, behind a request: by uuid, address and hash among all requests.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn in_vault(
        &self,
        vault: &str,
        before: Option<RequestPlace>,
    ) -> Result<IndexResults, Fault> {
        let pages = self.gateway.pages(self.caller);
        let words = words(&self.filter.search);
        // One more says whether there is another page.
        let most = FOUND.saturating_add(1);
        let places = pages.requests_about(vault.parse()?, &words, before, most);
        let mut places = places.await?;
        let has_more = places.len() > FOUND;
        places.truncate(FOUND);
        let next = places.last().copied().filter(|_| has_more);
        let ids = places.iter().map(|(_, id)| *id);
        // A uuid names one request, wherever it is.
        let named = self.filter.uuid().filter(|_| before.is_none());
        Ok(IndexResults {
            found: self.shown_of(ids.chain(named)).await,
            looked: match (next, before) {
                (None, None) => "all".to_owned(),
                (None, Some(_)) => "the oldest".to_owned(),
                (Some(_), None) => format!("the newest {FOUND}"),
                (Some(_), Some(_)) => format!("{FOUND} older ones"),
            },
            without: String::new(),
            read: places.len(),
            is_whole: next.is_none(),
            next,
        })
    }

    /// What the index has of all vaults that the person sees; of many vaults fewer each.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn in_every_vault(&self) -> Result<IndexResults, Fault> {
        let pages = self.gateway.pages(self.caller);
        let words = words(&self.filter.search);
        let mut ids: BTreeSet<_> = self.filter.uuid().into_iter().collect();
        let mut vaults: Vec<_> = self.filter.names.iter().collect();
        vaults.sort_by_key(|(_, name)| *name);
        let left_out = vaults.len().saturating_sub(VAULTS);
        vaults.truncate(VAULTS);
        let most = FOUND.checked_div(vaults.len()).unwrap_or(FOUND).max(LEAST);
        let mut is_cut = false;
        for (uuid, _) in vaults {
            let vault: VaultId = uuid.parse()?;
            let found = pages.requests_about(vault, &words, None, most).await?;
            is_cut |= found.len() >= most;
            ids.extend(found.into_iter().map(|(_, id)| id));
        }
        Ok(IndexResults {
            read: ids.len(),
            found: self.shown_of(ids).await,
            looked: match is_cut {
                true => format!("the newest {most} of each vault"),
                false => "all".to_owned(),
            },
            without: match left_out {
                0 => String::new(),
                left_out => format!(" {left_out} vaults were left out: choose one of them."),
            },
            is_whole: !is_cut && left_out == 0,
            next: None,
        })
    }

    /// Adds those that have the text, of a page of a vault's requests.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn with_text(
        &self,
        (vault, place): (&str, i64),
        found: &mut ShownRequests,
    ) -> Result<HistoryLook, Fault> {
        let page = (place, SEARCH_PAGE);
        list(self.gateway, self.caller, vault, page, |it| {
            if self.filter.fits(&it) && self.filter.has_text(&it) {
                let view = self.view(&it);
                found.insert((it.creation_timestamp, it.uuid), view);
            }
        })
        .await
    }

    /// Those of these that the person sees and the filter has. Each is cut at once: what is large is not kept.
    pub async fn shown_of(&self, ids: impl IntoIterator<Item = RequestId>) -> ShownRequests {
        let each = ids.into_iter().map(|id| self.shown_one(id));
        let each: Vec<_> = each.collect();
        let found: Vec<_> = stream::iter(each).buffered(AT_ONCE).collect().await;
        found.into_iter().flatten().collect()
    }

    async fn shown_one(&self, id: RequestId) -> Option<((u64, String), RequestView)> {
        let uuid = id.to_string();
        let request = wire::GetSigningRequestDetailsRequest { uuid };
        let details =
            self.gateway
                .call_typed::<GetSigningRequestDetails>(self.caller, &request, None);
        // It may be nothing, or what this person does not see.
        let request = details.await.ok()?.0.signing_request?;
        let fits = self.filter.fits(&request);
        fits.then(|| {
            let view = self.view(&request);
            ((request.creation_timestamp, request.uuid), view)
        })
    }

    fn view(&self, request: &wire::SigningRequest) -> RequestView {
        shown(request, &self.filter.names, self.who, self.now_ms)
    }
}

/// Which texts were looked at, in words.
pub fn newest_texts(looked: usize) -> String {
    format!(", and, by any other text, the newest {looked} requests of this vault")
}

/// What a text may be: the address of a network in its canonical form, or a hash as it is.
fn words(search: &str) -> BTreeSet<String> {
    let networks = Network::ALL.into_iter();
    let mut words: BTreeSet<_> = networks
        .filter_map(|network| network.rules().parse_address(search).ok())
        .collect();
    words.insert(search.to_owned());
    words
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn words__should_be_canonical_addresses_of_each_network_and_the_text_itself() {
        let mixed = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
        assert_eq!(words(mixed), BTreeSet::from([mixed.to_owned()]));
        let lower = mixed.to_lowercase();
        assert_eq!(
            words(&lower),
            BTreeSet::from([mixed.to_owned(), lower.clone()])
        );
        // Aptos and Sui fill up with zeros.
        let short = words("0x2");
        assert!(short.contains("0x2"));
        assert!(short.contains(&format!("0x{:0>64}", 2)), "{short:?}");
        assert_eq!(words("Rent March"), BTreeSet::from(["Rent March".into()]));
    }
}
