//! The audit log: one chain at a time, and whether its hashes fit.

use askama::Template;
use axum::http::StatusCode;
use covault_actors::{operations::ListAuditEntries, users::SignedIn};
use covault_core::{
    audit::{self, AuditChain, parse_hash},
    fault::Fault,
    schema::admin,
    token::TokenVaults,
    user::UserRole,
};

use super::{
    ConsoleCall, forbidden,
    pages::vault_names,
    response::{PageError, PageResponse},
    text::{Text, Time},
    views::{ChoiceView, Shell},
};

/// Entries of a page.
const ENTRIES: u64 = 100;
/// Entries that are checked for one page; the next page continues.
const CHECKED: u64 = 2_000;
/// The chain of what belongs to no vault.
const SERVICE: &str = "service";
/// What the first entry of a chain names as the hash before it.
const NO_HASH: [u8; 32] = [0; 32];

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    shell: Shell,
    chains: Vec<ChoiceView>,
    entries: Vec<AuditView>,
    older: Option<u64>,
    chain: Text,
    chain_uuid: String,
}

/// An entry of the audit log.
struct AuditView {
    number: u64,
    at: Time,
    by: Text,
    subject: Text,
    events: Vec<EventView>,
}

/// An event of an entry.
struct EventView {
    event: Text,
    facts: Vec<(Text, Text)>,
}

#[derive(Template)]
#[template(path = "verify.html")]
struct VerifyPage {
    shell: Shell,
    chain: Text,
    chain_uuid: String,
    first: u64,
    /// The last entry that was looked at; 0: there is none.
    last: u64,
    hash: String,
    /// What does not fit; empty: all of them do.
    problem: String,
    /// Whether more follow.
    goes_on: bool,
}

/// The chains that an auditor sees, and the one that the page is about.
struct AuditChoice {
    chains: Vec<(String, String)>,
    chain: String,
    name: String,
}

async fn chosen(call: &ConsoleCall<'_>, signed_in: &SignedIn) -> Result<AuditChoice, PageError> {
    if signed_in.user.role != UserRole::Auditor {
        return Err(forbidden("only auditors see the audit log"));
    }
    let names = vault_names(call, signed_in).await?;
    let mut chains: Vec<_> = names
        .iter()
        .map(|(uuid, name)| (format!("vault:{uuid}"), format!("vault {name}")))
        .collect();
    chains.sort_by(|one, other| one.1.cmp(&other.1));
    // What belongs to no vault is for those who see all of them.
    if signed_in.user.vaults == TokenVaults::All {
        chains.insert(0, (SERVICE.to_owned(), "the service".to_owned()));
    }
    let wanted = call.parameter("chain");
    let chosen = match wanted.as_str() {
        "" => chains.first(),
        // Never another one in its place.
        wanted => chains.iter().find(|(chain, _)| chain == wanted),
    };
    let Some((chain, name)) = chosen.cloned() else {
        return Err(PageError::new(
            StatusCode::NOT_FOUND,
            "there is no such log that you see",
        ));
    };
    Ok(AuditChoice {
        chains,
        chain,
        name,
    })
}

/// One chain, the newest entries first.
pub async fn page(call: &ConsoleCall<'_>, signed_in: &SignedIn) -> Result<PageResponse, PageError> {
    let AuditChoice {
        chains,
        chain,
        name,
    } = chosen(call, signed_in).await?;
    let head = head(call, &chain).await?;
    let before = call.parameter("before").parse();
    let end: u64 = before.unwrap_or_else(|_| head.saturating_add(1));
    let from = end.saturating_sub(ENTRIES);
    let request = admin::ListAuditEntriesRequest {
        chain: chain.clone(),
        from,
    };
    let found = call.look_up::<ListAuditEntries>(&request).await?.entries;
    let found = found.into_iter().filter(|entry| entry.at < end);
    let mut entries: Vec<_> = found
        .map(|entry| {
            let report = entry.report.unwrap_or_default();
            AuditView {
                number: entry.at,
                at: Time::new(report.at_ms),
                by: Text::new(&report.by),
                subject: Text::new(&report.subject),
                events: report.events.iter().map(event_view).collect(),
            }
        })
        .collect();
    entries.reverse();
    PageResponse::page(&AuditPage {
        shell: Shell::new(signed_in, "audit"),
        chains: chains
            .into_iter()
            .map(|(uuid, name)| ChoiceView {
                chosen: uuid == chain,
                uuid,
                name: Text::new(name),
            })
            .collect(),
        entries,
        older: (from > 1).then_some(from),
        chain: Text::new(name),
        chain_uuid: chain,
    })
}

fn event_view(event: &admin::AuditEvent) -> EventView {
    let facts = event.facts.iter();
    EventView {
        event: Text::new(&event.event),
        facts: facts
            .map(|fact| (Text::new(&fact.name), Text::new(&fact.value)))
            .collect(),
    }
}

/// The number of the last entry of a chain.
async fn head(call: &ConsoleCall<'_>, chain: &str) -> Result<u64, Fault> {
    // Behind every entry: what comes is the head alone.
    let request = admin::ListAuditEntriesRequest {
        chain: chain.to_owned(),
        from: u64::MAX,
    };
    let found = call.look_up::<ListAuditEntries>(&request).await?;
    Ok(found.head.map_or(0, |head| head.number))
}

/// Whether the entries of a chain fit together, a long page of them at a time. It says no more than the store does: who
/// could write a whole new chain is found out by a head that was kept elsewhere.
pub async fn verify(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    let AuditChoice { chain, name, .. } = chosen(call, signed_in).await?;
    let _place = call.console.long_reads.take(signed_in.user.id)?;
    let of: AuditChain = chain.parse()?;
    let from: u64 = call.parameter("from").parse().unwrap_or(1).max(1);
    let hash = call.parameter("hash");
    let last = head(call, &chain).await?;
    // A link that someone has sent is no reason to doubt the log.
    if from > last.max(1) {
        let problem = format!("from: the log has {last} entries");
        return Err(PageError::new(StatusCode::BAD_REQUEST, &problem));
    }
    let previous = match (from, hash.as_str()) {
        (1, _) | (_, "") => NO_HASH,
        (from, hash) => {
            let hash = parse_hash("hash", hash)?;
            check_link(call, &chain, from, &hash).await?;
            hash
        }
    };
    // Without what comes before, a part of a chain fits to nothing.
    let first = if previous == NO_HASH { 1 } else { from };
    let mut check = LinkCheck {
        next: first,
        hash: previous,
    };
    let (mut problem, mut goes_on) = (String::new(), false);
    'chain: loop {
        let request = admin::ListAuditEntriesRequest {
            chain: chain.clone(),
            from: check.next,
        };
        let page = call.look_up::<ListAuditEntries>(&request).await?;
        if page.entries.is_empty() {
            problem = check.end(page.head.as_ref());
            break;
        }
        for entry in &page.entries {
            if let Err(found) = check.take(of, entry) {
                problem = found;
                break 'chain;
            }
        }
        if check.next.saturating_sub(first) >= CHECKED && check.next <= last {
            goes_on = true;
            break;
        }
        tokio::task::yield_now().await;
    }
    PageResponse::page(&VerifyPage {
        shell: Shell::new(signed_in, "audit"),
        chain: Text::new(name),
        chain_uuid: chain,
        first,
        last: check.next.saturating_sub(1),
        hash: hex::encode(check.hash),
        problem,
        goes_on,
    })
}

/// Whether the entry before `from` has this hash, as the address of the page says.
async fn check_link(
    call: &ConsoleCall<'_>,
    chain: &str,
    from: u64,
    hash: &[u8; 32],
) -> Result<(), PageError> {
    let before = from.saturating_sub(1);
    let request = admin::ListAuditEntriesRequest {
        chain: chain.to_owned(),
        from: before,
    };
    let found = call.look_up::<ListAuditEntries>(&request).await?.entries;
    let found = found.first().filter(|entry| entry.at == before);
    if found.is_some_and(|entry| entry.hash == hex::encode(hash)) {
        return Ok(());
    }
    let problem = format!(
        "hash: it is not that of entry {before} of this log, so this link says nothing about the log; check it from its \
         first entry on"
    );
    Err(PageError::new(StatusCode::BAD_REQUEST, &problem))
}

/// How far a chain was found to fit.
struct LinkCheck {
    /// The number that is to come.
    next: u64,
    /// The hash of the entry before.
    hash: [u8; 32],
}

impl LinkCheck {
    /// The next entry. What is wrong with it, in words.
    fn take(&mut self, chain: AuditChain, entry: &admin::AuditEntry) -> Result<(), String> {
        let number = self.next;
        if entry.at != number || entry.number != number {
            return Err(format!("entry {number} is missing or not in its place"));
        }
        let unreadable = |_| format!("entry {number} has no hash");
        let previous = parse_hash("previous", &entry.previous).map_err(unreadable)?;
        let says = parse_hash("hash", &entry.hash).map_err(unreadable)?;
        if audit::hash(chain, number, &previous, &entry.body) != says {
            return Err(format!("entry {number} was changed: its hash does not fit"));
        }
        if previous != self.hash {
            return Err(format!(
                "entry {number} does not follow the one before it: one of them was changed"
            ));
        }
        self.hash = says;
        self.next = number.saturating_add(1);
        Ok(())
    }

    /// There are no more: whether the head is the last of them.
    fn end(&self, head: Option<&admin::AuditHead>) -> String {
        let last = self.next.saturating_sub(1);
        match head {
            None if last == 0 => String::new(),
            Some(head) if head.number == last && head.hash == hex::encode(self.hash) => {
                String::new()
            }
            // Written while this was read.
            Some(head) if head.number > last => format!(
                "the entries end with {last}, and the head says {}: reload the page; if this message stays, the end was \
                 cut off",
                head.number
            ),
            _ => format!("the head of the chain is not entry {last}: the log was changed"),
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::audit::LinkedEntry;

    use super::*;

    fn chain() -> Vec<admin::AuditEntry> {
        let mut head = None;
        let mut entries = Vec::new();
        for number in 1..=3_u8 {
            let linked =
                LinkedEntry::after(head.as_ref(), AuditChain::Service, vec![number]).unwrap();
            head = Some(linked.head());
            entries.push(admin::AuditEntry {
                at: linked.number,
                number: linked.number,
                previous: hex::encode(linked.previous),
                hash: hex::encode(linked.hash),
                report: None,
                body: linked.body,
            });
        }
        entries
    }

    /// What is said of these entries and this head.
    fn said(entries: &[admin::AuditEntry], head: (u64, &str)) -> String {
        let mut check = LinkCheck {
            next: 1,
            hash: NO_HASH,
        };
        for entry in entries {
            if let Err(problem) = check.take(AuditChain::Service, entry) {
                return problem;
            }
        }
        check.end(Some(&admin::AuditHead {
            number: head.0,
            hash: head.1.to_owned(),
        }))
    }

    #[test]
    fn verify__should_find_what_was_changed_taken_away_and_put_in() {
        let whole = chain();
        let head = whole[2].hash.clone();
        assert_eq!(said(&whole, (3, &head)), "");
        let mut changed = whole.clone();
        changed[1].body = vec![9];
        assert!(said(&changed, (3, &head)).contains("entry 2 was changed"));
        let mut taken = whole.clone();
        taken.remove(1);
        assert!(said(&taken, (3, &head)).contains("entry 2 is missing"));
        // A body and its hash were changed together.
        let mut rehashed = changed;
        let previous = parse_hash("", &whole[0].hash).unwrap();
        let hash = audit::hash(AuditChain::Service, 2, &previous, &[9]);
        rehashed[1].hash = hex::encode(hash);
        assert!(said(&rehashed, (3, &head)).contains("entry 3 does not follow"));
        assert!(said(&whole[..2], (3, &head)).contains("the head says 3"));
        assert!(said(&whole, (2, &whole[1].hash)).contains("not entry 3"));
        assert!(said(&whole, (3, &whole[1].hash)).contains("not entry 3"));
    }
}
