//! The inbox: what waits for people.

use std::collections::HashMap;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_actors::{operations::GetPendingSigningRequests, users::SignedIn};
use covault_core::{fault::Class, schema::wire, user::UserRole};
use futures::future::join_all;
use sha2::{Digest as _, Sha256};

use super::{
    ConsoleCall,
    pages::vault_names,
    requests::{details, view},
    response::{PageError, PageResponse},
    text::Text,
    views::{InboxPage, RequestView, Shell},
};

/// Requests of a page of the inbox.
pub const INBOX: i64 = 50;

/// What waits for people, those first that expire first.
pub async fn inbox(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    let names = vault_names(call, signed_in).await?;
    let (page, mut next) = pending(call, signed_in, &call.parameter("after"), INBOX).await?;
    if let Some(after) = &next {
        let (more, _) = pending(call, signed_in, after, 1).await?;
        next = next.filter(|_| !more.is_empty());
    }
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
    let waiting = call.parameter("after").is_empty().then(|| mark(&page));
    let mine = requests
        .iter()
        .filter(|it| !it.is_mine && !it.is_held)
        .count();
    PageResponse::page(&InboxPage {
        shell: Shell::new(signed_in, "inbox"),
        count: match next.is_some() {
            true => format!("{mine}+"),
            false => mine.to_string(),
        },
        pending: waiting,
        requests: requests
            .into_iter()
            .map(RequestView::with_few_spends)
            .collect(),
        next,
        may_approve: signed_in.user.role == UserRole::Approver,
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
/// the next one is asked with, where more may follow.
///
/// # Errors
/// When the store cannot be read.
pub async fn pending(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    after: &str,
    most: i64,
) -> Result<(Vec<wire::SigningRequest>, Option<String>), PageError> {
    let request = wire::GetPendingSigningRequestsRequest {
        limit: Some(most),
        after: after.to_owned(),
        ..Default::default()
    };
    let answer = call.operation::<GetPendingSigningRequests>(signed_in, &request);
    let answer = answer.await?;
    let next = Some(answer.next).filter(|next| !next.is_empty());
    Ok((answer.signing_requests, next))
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
