//! Which requests of a history are asked for, and the pages of them.

use std::{collections::HashMap, fmt, str::FromStr};

use axum::http::StatusCode;
use covault_actors::{
    gateway::{Caller, Gateway, RequestPlace},
    operations::GetSigningRequestList,
    users::SignedIn,
};
use covault_core::{
    fault::Fault,
    ids::RequestId,
    schema::wire::{self, signing_request::Status},
};
use prost::Message as _;
use serde_json::Value;

use super::{
    ConsoleCall, pages::vault_names, requests::payload_of, response::PageError, views::RequestView,
};

use crate::approving::contents;

/// In place of a vault: all that the person sees.
pub const EVERY: &str = "every";
/// What a status may be.
pub const STATUSES: [&str; 3] = ["pending", "succeeded", "failed"];

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

    /// The status that is asked for.
    pub fn status(&self) -> Option<Status> {
        Status::from_str_name(&format!("STATUS_{}", self.status.to_uppercase()))
    }

    /// The request whose uuid is searched for.
    pub fn uuid(&self) -> Option<RequestId> {
        self.search.to_lowercase().parse().ok()
    }

    /// Whether a request has the status.
    pub fn fits(&self, request: &wire::SigningRequest) -> bool {
        let name = request.status().as_str_name();
        let name = name.trim_start_matches("STATUS_").to_ascii_lowercase();
        self.status.is_empty() || name == self.status
    }

    /// Whether it has the text, too: in its uuid, its notes, what it pays or signs, a reason, or a hash.
    pub fn has_text(&self, request: &wire::SigningRequest) -> bool {
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
            || contents(&payload).iter().any(|it| has(&it.shown))
    }

    /// As the query of a page: of which one, or of the first, without which files are asked for.
    pub fn query(&self, page: Option<&NextPage>) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("vault", self.vault.as_deref().unwrap_or(EVERY));
        for (name, value) in [("status", &self.status), ("search", &self.search)] {
            if !value.is_empty() {
                query.append_pair(name, value);
            }
        }
        match page {
            Some(NextPage::Number(number)) => {
                query.append_pair("page", &number.to_string());
            }
            Some(NextPage::Before(place)) => {
                query.append_pair("before", &place.to_string());
            }
            None => {}
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

/// What a page of the history lists.
#[derive(Default)]
pub struct HistoryPart {
    /// The newest first.
    pub requests: Vec<RequestView>,
    /// What was looked through, in words.
    pub seen: String,
    /// The next page, where there may be one.
    pub next: Option<NextPage>,
}

/// Behind which request of the index a page begins, as its address says it: `1764108642999-UUID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceText(pub RequestPlace);

impl fmt::Display for PlaceText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self((created_at_ms, id)) = self;
        write!(f, "{created_at_ms}-{id}")
    }
}

impl FromStr for PlaceText {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let (created, id) = text.split_once('-').ok_or_else(Fault::invalid_uuid)?;
        let created = created.parse().map_err(|_| Fault::invalid_uuid())?;
        Ok(Self((created, id.parse()?)))
    }
}

/// Another page of a history.
#[derive(Clone, Copy, Debug)]
pub enum NextPage {
    /// By its number.
    Number(i64),
    /// Of what an index has, behind a request.
    Before(PlaceText),
}

/// What was looked at.
pub struct HistoryLook {
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
) -> Result<HistoryLook, Fault> {
    let mut looked = HistoryLook {
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
    fn place__should_be_read_back_from_the_address_of_a_page() {
        let text = "1764108642999-00000000-0000-4000-8000-000000000001";
        let place: PlaceText = text.parse().unwrap();
        assert_eq!(place.0.0, 1_764_108_642_999);
        assert_eq!(place.to_string(), text);
        for wrong in [
            "",
            "-",
            "5",
            "5-",
            "-5",
            "x-00000000-0000-4000-8000-000000000001",
        ] {
            assert!(wrong.parse::<PlaceText>().is_err(), "{wrong}");
        }
    }
}
