//! The inbox: what waits for people.

use std::collections::HashMap;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_actors::{operations::GetPendingSigningRequests, users::SignedIn};
use covault_core::{fault::Class, schema::wire, user::UserRole};
use futures::future::join_all;
use sha2::{Digest as _, Sha256};

use super::{
    ConsoleCall,
    pages::{details, vault_names},
    requests::view,
    response::{PageError, PageResponse},
    text::Text,
    views::{InboxPage, RequestView, Shell},
};

/// Requests of a page of the inbox: as many as one gesture approves.
pub const INBOX: i64 = 100;
/// How often a page goes on where all that was looked at waits for others, 1,000 requests each time.
const LOOKS: usize = 20;

/// Which requests the inbox lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboxView {
    /// Those that wait for this person.
    Mine,
    /// All that wait in vaults that the person sees.
    All,
}

impl InboxView {
    /// The one that a call asks for. Nothing waits for who cannot approve.
    pub fn of(call: &ConsoleCall<'_>, signed_in: &SignedIn) -> Self {
        let may_approve = signed_in.user.role == UserRole::Approver;
        match may_approve && call.parameter("view") != "all" {
            true => Self::Mine,
            false => Self::All,
        }
    }
}

/// What waits for people, those first that expire first.
pub async fn inbox(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    let names = vault_names(call, signed_in).await?;
    let view = InboxView::of(call, signed_in);
    let after = call.parameter("after");
    let (page, mut next) = pending(call, signed_in, view, &after, INBOX).await?;
    if let Some(after) = &next {
        let (more, further) = pending(call, signed_in, view, after, 1).await?;
        next = next.filter(|_| !more.is_empty() || further.is_some());
    }
    let may_approve = signed_in.user.role == UserRole::Approver;
    let (mine, more) = match view {
        InboxView::Mine => (page.len(), next.is_some()),
        InboxView::All if may_approve => {
            let (mine, more) = pending(call, signed_in, InboxView::Mine, "", INBOX).await?;
            (mine.len(), more.is_some())
        }
        InboxView::All => (0, false),
    };
    let each = page.iter().map(|it| details(call, signed_in, &it.uuid));
    let mut requests = Vec::new();
    for (listed, found) in page.iter().zip(join_all(each).await) {
        match found {
            // What has ended in between waits no more.
            Ok(found) if found.approval_subject.is_none() => {}
            Ok(found) => requests.push(shown(&found, &names, signed_in, call.now_ms())),
            // One that cannot be read must not hide the others.
            Err(fault) if *fault.class() == Class::Bug => {
                tracing::error!(request = listed.uuid, ?fault, "a request cannot be shown");
                let mut view = shown(listed, &names, signed_in, call.now_ms());
                view.problem = Text::new("It cannot be read: the log of the service says why.");
                requests.push(view);
            }
            Err(fault) if *fault.class() == Class::Invalid => {}
            Err(fault) => return Err(fault.into()),
        }
    }
    let waiting = after.is_empty().then(|| mark(&page));
    PageResponse::page(&InboxPage {
        shell: Shell::new(signed_in, "inbox"),
        count: match (mine, more) {
            // Nobody knows how many.
            (0, true) => String::new(),
            (mine, true) => format!("{mine}+"),
            (mine, false) => mine.to_string(),
        },
        is_mine: view == InboxView::Mine,
        pending: waiting,
        requests: requests
            .into_iter()
            .map(RequestView::with_few_spends)
            .collect(),
        next,
        may_approve,
    })
}

/// Which requests these are: another one of them is another mark.
pub fn mark(page: &[wire::SigningRequest]) -> String {
    let mut hash = Sha256::new();
    page.iter().for_each(|request| hash.update(&request.uuid));
    let hash: [u8; 32] = hash.finalize().into();
    BASE64_URL_SAFE_NO_PAD.encode(hash)
}

/// A page of what waits, behind the page that has said this: so many at most, and fewer where they are large. And what
/// the next one is asked with, where more may follow. It is empty where there are none, or very many that this person has
/// approved come first.
///
/// # Errors
/// When the store cannot be read.
pub async fn pending(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    view: InboxView,
    after: &str,
    most: i64,
) -> Result<(Vec<wire::SigningRequest>, Option<String>), PageError> {
    let mut request = wire::GetPendingSigningRequestsRequest {
        limit: Some(most),
        after: after.to_owned(),
        only_mine: view == InboxView::Mine,
        ..Default::default()
    };
    let mut found = Vec::new();
    for _ in 0..LOOKS {
        let answer = call.operation::<GetPendingSigningRequests>(signed_in, &request);
        let answer = answer.await?;
        (found, request.after) = (answer.signing_requests, answer.next);
        if !found.is_empty() || request.after.is_empty() {
            break;
        }
    }
    let next = Some(request.after).filter(|next| !next.is_empty());
    Ok((found, next))
}

/// A request as lists show it to this person.
pub fn shown(
    request: &wire::SigningRequest,
    names: &HashMap<String, String>,
    signed_in: &SignedIn,
    now_ms: u64,
) -> RequestView {
    let vault = request.vault_uuid.as_deref().unwrap_or_default();
    let name = names.get(vault).map_or("", String::as_str);
    view(request, name, &signed_in.user.name, now_ms).in_a_list()
}
