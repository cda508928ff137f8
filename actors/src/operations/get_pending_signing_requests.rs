use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
};

use async_trait::async_trait;
use covault_core::{
    fault::Fault,
    ids::{RequestId, VaultId},
    request::SigningRequest,
    schema::wire,
};

use super::{Operation, OperationCall, lookup::request_message};
use crate::{
    commands::caller::{Caller, VaultScope, vault_in_scope},
    lists::{MAX_PAGE, PageBytes, READ_CHUNK},
    requests::awaiting,
    services::{Services, skip_unreadable},
    store::{Key, KeySpace, Scan, rows},
};

/// Vaults of which the lists are merged.
const VAULTS: usize = 256;
/// Requests that one page looks at, at most, to find those that wait for one person.
const MOST_LOOKED_AT: usize = 1_000;
/// Fewest rows of a vault that are read at once.
const LEAST: usize = 16;

/// Lists the requests that wait for people, of a vault or of all that the token opens, those first that are due first: all of them, or a page. A page goes
/// on where the one before it has ended: it takes as long however many there are.
pub struct GetPendingSigningRequests;

#[async_trait]
impl Operation for GetPendingSigningRequests {
    const METHOD: &'static str = "mpcvault.platform.v1.PlatformAPI.GetPendingSigningRequests";
    type Request = wire::GetPendingSigningRequestsRequest;
    type Response = wire::GetPendingSigningRequestsResponse;

    async fn run(call: OperationCall<'_>, message: Self::Request) -> Result<Self::Response, Fault> {
        let (services, caller) = (call.services, call.caller);
        // Without a limit it is the whole list, as programs written for the public product take it to be.
        let limit = message.limit.filter(|limit| *limit != 0);
        let is_whole = limit.is_none();
        let limit = limit.unwrap_or(MAX_PAGE);
        if !(1..=MAX_PAGE).contains(&limit) {
            return Err(Fault::field("limit", format!("must be 1 to {MAX_PAGE}")));
        }
        let limit = usize::try_from(limit).map_err(Fault::bug)?;
        let after = match message.after.as_str() {
            "" => None,
            next => Some(Place::parse(next)?),
        };
        let person = match (message.only_mine, &caller.person) {
            (false, _) => None,
            (true, Some(person)) => Some(person.name.as_str()),
            (true, None) => {
                let problem = "is for people of the console: an API token approves nothing";
                return Err(Fault::field("onlyMine", problem));
            }
        };
        // What waits for others hides nothing: a person has a list of his own.
        let all = match person {
            None => Key::new(KeySpace::Awaiting, &[]),
            Some(name) => awaiting::of_person(name),
        };
        let parts = parts(services, caller, &message.vault_uuid, &all).await?;
        let now_ms = services.now_ms();
        let mut lists = PendingLists::new(services, (&all, parts), after, limit);
        let (mut signing_requests, mut bytes) = (Vec::new(), PageBytes::default());
        let (mut turn, mut last, mut looked_at) = (None, None, 0_usize);
        let goes_on = 'list: loop {
            let rest = match is_whole {
                true => limit,
                false => limit.saturating_sub(signing_requests.len()),
            };
            let page = lists.page(rest).await?;
            looked_at = looked_at.saturating_add(page.len());
            for part in page.chunks(READ_CHUNK) {
                let key = |place: &Place| rows::request(place.request);
                let keys: Vec<_> = part.iter().map(key).collect();
                let found = services.load_all::<SigningRequest>(&keys).await?;
                for (place, found) in part.iter().zip(found) {
                    let id = place.request;
                    let found = skip_unreadable(found, format_args!("request {id}"))?;
                    let found = found.flatten();
                    let found = found.filter(|it| person.is_none_or(|name| it.asks(name, now_ms)));
                    let Some(request) = found else {
                        last = Some(*place);
                        continue;
                    };
                    let mut message = request_message(services, caller, &request, None, None, None);
                    message.approval_subject = None;
                    match bytes.add(&message) {
                        Ok(()) => {
                            signing_requests.push(message);
                            last = Some(*place);
                        }
                        // A part of it would look like the whole.
                        Err(fault) if is_whole => return Err(fault),
                        // The next page begins with it.
                        Err(_) => break 'list true,
                    }
                }
            }
            if page.len() < rest {
                break false;
            }
            // Of many that wait for others, the next page looks at more.
            if !is_whole && (signing_requests.len() >= limit || looked_at >= MOST_LOOKED_AT) {
                break true;
            }
            // Long lists are for few callers at once.
            if is_whole && turn.is_none() {
                turn = Some(services.limits.far_pages.turn(caller.token).await?);
            }
        };
        Ok(wire::GetPendingSigningRequestsResponse {
            signing_requests,
            error: None,
            next: match last {
                Some(last) if goes_on => last.to_string(),
                Some(_) | None => String::new(),
            },
        })
    }
}

/// Where a request stands in the list: those are first for which something is due first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Milliseconds since the Unix epoch.
    due_ms: u64,
    request: RequestId,
    vault: VaultId,
}

impl Place {
    /// Reads what [`fmt::Display`] writes.
    fn parse(text: &str) -> Result<Self, Fault> {
        let mut parts = text.split('.');
        let (due, request, vault) = (parts.next(), parts.next(), parts.next());
        let place = || {
            Some(Self {
                due_ms: due?.parse().ok()?,
                request: request?.parse().ok()?,
                vault: vault?.parse().ok()?,
            })
        };
        match (place(), parts.next()) {
            (Some(place), None) => Ok(place),
            (_, _) => Err(Fault::field("after", "is not the `next` of a page")),
        }
    }

    /// That of a row.
    fn of(key: &Key) -> Option<Self> {
        let (due_ms, request) = rows::awaited(key)?;
        let (rest, _) = key.bytes.split_last_chunk::<24>()?;
        let vault = VaultId::from_bytes(*rest.last_chunk()?);
        Some(Self {
            due_ms,
            request,
            vault,
        })
    }

    fn key(&self) -> Key {
        rows::awaiting(self.vault, self.due_ms, self.request)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            due_ms,
            request,
            vault,
        } = self;
        write!(f, "{due_ms}.{request}.{vault}")
    }
}

/// The vaults that are meant, each as a part of the list of all.
async fn parts(
    services: &Services,
    caller: &Caller,
    uuid: &str,
    all: &Key,
) -> Result<Vec<Key>, Fault> {
    let vaults: &[VaultId] = match (&caller.vaults, uuid) {
        (VaultScope::All, "") => return with_requests(services, all).await,
        (VaultScope::Only(vaults), "") => vaults,
        _ => {
            let vault = vault_in_scope(caller, uuid)?;
            if services.vault(vault).await?.is_none() {
                return Err(Fault::invalid_uuid());
            }
            &[vault]
        }
    };
    let part = |vault: &VaultId| Key::new(all.space, &[&all.bytes, vault.as_bytes()]);
    let parts: BTreeSet<_> = vaults.iter().map(part).collect();
    Ok(parts.into_iter().collect())
}

/// The vaults of which something waits. Beyond so many all that wait are one part, vault after vault.
async fn with_requests(services: &Services, all: &Key) -> Result<Vec<Key>, Fault> {
    let mut scan = Scan::prefix(all.space, &all.bytes, 1);
    let mut parts = Vec::new();
    while let Some((key, _)) = services.store.scan(&scan).await?.pop() {
        if parts.len() >= VAULTS {
            return Ok(vec![all.clone()]);
        }
        let rest = key.bytes.strip_prefix(all.bytes.as_slice());
        let Some(vault) = rest.and_then(|rest| rest.first_chunk::<16>()) else {
            break;
        };
        let part = Key::new(all.space, &[&all.bytes, vault]);
        scan.from = Some([part.bytes.as_slice(), &[u8::MAX; 25]].concat());
        parts.push(part);
    }
    Ok(parts)
}

/// What waits in several vaults, as one list: what is due first comes first, so that a vault of which much waits hides
/// no other.
struct PendingLists<'a> {
    services: &'a Services,
    parts: Vec<PendingPage>,
    /// Rows of a vault that are read at once.
    chunk: usize,
}

struct PendingPage {
    prefix: Key,
    /// Where to read on.
    from: Option<Vec<u8>>,
    /// What was read and not listed.
    rows: VecDeque<Place>,
    is_over: bool,
}

impl<'a> PendingLists<'a> {
    fn new(
        services: &'a Services,
        (all, prefixes): (&Key, Vec<Key>),
        after: Option<Place>,
        limit: usize,
    ) -> Self {
        let after = after.map(|after| [all.bytes.as_slice(), &after.key().bytes].concat());
        let chunk = limit
            .checked_div(prefixes.len())
            .unwrap_or(limit)
            .max(LEAST);
        let parts = prefixes.into_iter().map(|prefix| PendingPage {
            // The same place in each list.
            from: after.as_ref().and_then(|after| {
                let place = after.get(prefix.bytes.len()..)?;
                Some([&prefix.bytes, place, &[0]].concat())
            }),
            prefix,
            rows: VecDeque::new(),
            is_over: false,
        });
        Self {
            services,
            parts: parts.collect(),
            chunk,
        }
    }

    /// The next so many.
    async fn page(&mut self, limit: usize) -> Result<Vec<Place>, Fault> {
        let mut page = Vec::new();
        while page.len() < limit {
            for part in &mut self.parts {
                part.read(self.services, self.chunk).await?;
            }
            let parts = self.parts.iter_mut().filter(|part| !part.rows.is_empty());
            let Some(first) = parts.min_by_key(|part| part.rows.front().copied()) else {
                break;
            };
            page.extend(first.rows.pop_front());
        }
        Ok(page)
    }
}

impl PendingPage {
    /// Reads on where all that was read is listed.
    async fn read(&mut self, services: &Services, most: usize) -> Result<(), Fault> {
        while self.rows.is_empty() && !self.is_over {
            let mut scan = Scan::prefix(self.prefix.space, &self.prefix.bytes, most);
            scan.from = self.from.take();
            let rows = services.store.scan(&scan).await?;
            self.is_over = rows.len() < most;
            self.from = rows
                .last()
                .map(|(key, _)| [key.bytes.as_slice(), &[0]].concat());
            self.rows
                .extend(rows.iter().filter_map(|(key, _)| Place::of(key)));
        }
        Ok(())
    }
}
