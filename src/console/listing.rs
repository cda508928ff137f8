//! Lists of requests: what waits, and what was.

use std::collections::HashMap;

use covault_actors::{
    operations::{GetPendingSigningRequests, GetSigningRequestList},
    users::SignedIn,
};
use covault_core::{
    schema::{json, wire},
    user::UserRole,
};
use futures::future::join_all;

use super::{
    Call,
    pages::vault_names,
    requests::{details, view},
    response::{Answer, Refused},
    text::Text,
    views::{ChoiceView, HistoryPage, InboxPage, RequestView, Shell},
};

/// Requests of a page of the inbox.
pub const INBOX: i64 = 50;
/// Requests of a page of the history.
const PAGE: i64 = 50;
/// Requests that are looked through for what is searched for, in pages of so many.
const SEARCHED: i64 = 500;
const SEARCH_PAGE: i64 = 100;
const STATUSES: [&str; 3] = ["pending", "succeeded", "failed"];

/// What waits for people, those first that expire first.
pub async fn inbox(call: &Call<'_>, signed_in: &SignedIn) -> Result<Answer, Refused> {
    let names = vault_names(call, signed_in).await?;
    let page = pending(call, signed_in, &call.parameter("after"), INBOX).await?;
    let mut next = None;
    if let Some(last) = page.last() {
        // A page of large requests has few of them, and more may follow all the same.
        let more = pending(call, signed_in, &last.uuid, 1).await?;
        next = (!more.is_empty()).then(|| last.uuid.clone());
    }
    let each = page.iter().map(|it| details(call, signed_in, &it.uuid));
    let mut requests = Vec::new();
    for found in join_all(each).await {
        // What has ended in between waits no more.
        let found = found?;
        if found.approval_subject.is_some() {
            requests.push(shown(&found, &names, signed_in, call.now_ms()));
        }
    }
    let waiting = call.parameter("after").is_empty().then_some(page.len());
    let mine = requests.iter().filter(|it| !it.is_mine).count();
    Answer::page(&InboxPage {
        shell: Shell::new(signed_in, "inbox"),
        count: match next.is_some() {
            true => format!("{mine}+"),
            false => mine.to_string(),
        },
        pending: waiting,
        requests,
        next,
        may_approve: signed_in.user.role == UserRole::Approver,
    })
}

/// A page of what waits, behind this request: so many at most, and fewer where they are large.
///
/// # Errors
/// When the store cannot be read.
pub async fn pending(
    call: &Call<'_>,
    signed_in: &SignedIn,
    after: &str,
    most: i64,
) -> Result<Vec<wire::SigningRequest>, Refused> {
    let request = wire::GetPendingSigningRequestsRequest {
        vault_uuid: String::new(),
        limit: Some(most),
        after_uuid: after.to_owned(),
    };
    let answer = call.operation::<GetPendingSigningRequests>(signed_in, &request);
    Ok(answer.await?.signing_requests)
}

fn shown(
    request: &wire::SigningRequest,
    names: &HashMap<String, String>,
    signed_in: &SignedIn,
    now_ms: u64,
) -> RequestView {
    let vault = request.vault_uuid.as_deref().unwrap_or_default();
    let name = names.get(vault).map_or("", String::as_str);
    view(request, name, &signed_in.user.name, now_ms).in_a_list()
}

/// The requests of a vault, the newest first; those alone that have this status and this text in them, where it is asked
/// for.
pub async fn history(call: &Call<'_>, signed_in: &SignedIn) -> Result<Answer, Refused> {
    let names = vault_names(call, signed_in).await?;
    let (status, search) = (call.parameter("status"), call.parameter("search"));
    let search = search.trim();
    let mut choices: Vec<_> = names.iter().collect();
    choices.sort_by_key(|(_, name)| *name);
    let wanted = call.parameter("vault");
    let chosen = choices.iter().find(|(uuid, _)| **uuid == wanted);
    let chosen = chosen
        .or_else(|| choices.first())
        .map(|(uuid, _)| (*uuid).clone());
    let page: i64 = call
        .parameter("page")
        .parse()
        .unwrap_or(1)
        .clamp(1, 1_000_000);
    let is_filtered = !search.is_empty() || STATUSES.contains(&status.as_str());
    let (mut requests, mut seen, mut next) = (Vec::new(), String::new(), None);
    if let Some(vault) = &chosen {
        let (first, limit, most) = match is_filtered {
            true => (1, SEARCH_PAGE, SEARCHED / SEARCH_PAGE),
            false => (page, PAGE, 1),
        };
        let mut looked = 0_usize;
        let mut is_full = false;
        for number in first..first.saturating_add(most) {
            let found = list(call, signed_in, vault, number, limit).await?;
            looked = looked.saturating_add(found.len());
            is_full = i64::try_from(found.len()).is_ok_and(|found| found >= limit);
            let fits = found.iter().filter(|it| fits(it, &status, search));
            requests.extend(fits.map(|it| shown(it, &names, signed_in, call.now_ms())));
            if !is_full {
                break;
            }
        }
        if is_filtered {
            seen = format!(
                "Found {} among the newest {looked} requests of this vault.",
                requests.len()
            );
        } else if is_full {
            let query = form_urlencoded::Serializer::new(String::new())
                .append_pair("vault", vault)
                .append_pair("page", &page.saturating_add(1).to_string())
                .finish();
            next = Some(format!("/history?{query}"));
        }
    }
    let choice = |uuid: &str, name: &str, chosen: bool| ChoiceView {
        uuid: uuid.to_owned(),
        name: Text::new(name),
        chosen,
    };
    Answer::page(&HistoryPage {
        shell: Shell::new(signed_in, "history"),
        vaults: choices
            .into_iter()
            .map(|(uuid, name)| choice(uuid, name, Some(uuid) == chosen.as_ref()))
            .collect(),
        statuses: STATUSES
            .into_iter()
            .map(|name| choice(name, name, name == status))
            .collect(),
        search: Text::new(search),
        requests,
        seen,
        next,
    })
}

/// A page of the history. Where its requests are larger than an answer may be, it is asked for in parts.
async fn list(
    call: &Call<'_>,
    signed_in: &SignedIn,
    vault: &str,
    page: i64,
    limit: i64,
) -> Result<Vec<wire::SigningRequest>, Refused> {
    let mut found = Vec::new();
    // The next one is the last.
    let mut parts = vec![(page, limit)];
    while let Some((page, limit)) = parts.pop() {
        let request = wire::GetSigningRequestListRequest {
            vault_uuid: vault.to_owned(),
            page: Some(page),
            limit: Some(limit),
            ..Default::default()
        };
        let answer = call.operation::<GetSigningRequestList>(signed_in, &request);
        let parts_of = [2, 3, 5, 7].into_iter().find(|parts| limit % parts == 0);
        match (answer.await, parts_of) {
            (Ok(answer), _) => found.extend(answer.signing_requests),
            (Err(fault), Some(count)) if fault.path() == Some("limit") => {
                let first = page.saturating_sub(1).saturating_mul(count);
                let numbers = (1..=count).rev().map(|part| first.saturating_add(part));
                parts.extend(numbers.map(|number| (number, limit / count)));
            }
            (Err(fault), _) => return Err(fault.into()),
        }
    }
    Ok(found)
}

/// Whether a request has the status and the text: in its uuid, its notes, an address or a hash.
fn fits(request: &wire::SigningRequest, status: &str, search: &str) -> bool {
    let name = request.status().as_str_name();
    let name = name.trim_start_matches("STATUS_").to_ascii_lowercase();
    if STATUSES.contains(&status) && name != status {
        return false;
    }
    let text = json::encode(request).unwrap_or_default().to_lowercase();
    search.is_empty() || text.contains(&search.to_lowercase())
}
