//! Payments that are held: since when this node knows enough approvals of them, and to whom something was signed that was
//! held. Where rows are lost, payments are held longer.

use std::collections::BTreeMap;

use redb::{ReadableTable as _, Table, TableDefinition, WriteTransaction};

use super::{ClaimError, ClaimsAge, windows::SpendingWindows};
use crate::policy::{HeldUntil, HoldCheck, HoldingRule};

/// The intent, and the rule.
type HeldKey = (&'static [u8; 32], &'static [u8; 32]);
/// When, and whose.
type HeldRow = (u64, &'static str);

/// (intent, rule) -> when one order with all the approvals that the rule needs was verified first, in milliseconds since
/// the Unix epoch; whose share of the table it is.
const HELD: TableDefinition<'_, HeldKey, HeldRow> = TableDefinition::new("held.1");
/// Person -> how many rows are of their share.
const SHARES: TableDefinition<'_, &str, u64> = TableDefinition::new("held_shares.1");
/// When old rows were let go last, in milliseconds since the Unix epoch.
const LET_GO: TableDefinition<'_, (), u64> = TableDefinition::new("held_let_go.1");
/// (recipient, rule) -> when something for the recipient was signed first that the rule applied to.
const KNOWN: TableDefinition<'_, (&str, &[u8; 32]), u64> =
    TableDefinition::new("known_recipients.1");

const HOUR_MS: u64 = 3_600_000;
/// Payments that one person's approvals can have noted: nobody uses up the room of others.
const MAX_OF_PERSON: u64 = 20_000;
/// How long they are noted at least, in milliseconds: 9 days, longer than anything is held and approved again.
const KEEP_MS: u64 = 9 * 24 * HOUR_MS;
/// How often old rows are let go at most, in milliseconds: it reads them all.
const LET_GO_MS: u64 = HOUR_MS;

pub(super) fn make(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    transaction.open_table(HELD)?;
    transaction.open_table(SHARES)?;
    transaction.open_table(LET_GO)?;
    transaction.open_table(KNOWN)?;
    Ok(())
}

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldQuery {
    /// Whether it may be signed: all approvals have to be there.
    ToSign,
    /// How long it would be held with the approvals that there are.
    ToNote,
}

/// Says whether the payment is held at `now_ms`, and notes from when on. The rules that apply when it is not. The outcome
/// is to be committed whatever it is: the time runs from then on. Nothing is noted without [`ClaimError::Held`], which is
/// logged: no time runs that nobody can see.
pub(super) fn check<'h>(
    transaction: &WriteTransaction,
    windows: &mut SpendingWindows,
    hold: &'h HoldCheck,
    asked: HoldQuery,
    age: &ClaimsAge,
    now_ms: u64,
) -> Result<Result<Vec<&'h HoldingRule>, ClaimError>, redb::Error> {
    let mut applying = Vec::new();
    let mut wanted = None;
    for rule in &hold.rules {
        if let Some((counter, amount, most)) = &rule.day
            && !windows.is_above(transaction, counter, *amount, *most, now_ms)?
        {
            continue;
        }
        match (&rule.missing, asked) {
            (None, _) => applying.push(rule),
            // Another policy may have let it through, which was replaced since.
            (Some(wants), HoldQuery::ToSign) => {
                return Ok(Err(ClaimError::ApprovalsMissing(wants.clone())));
            }
            (Some(wants), HoldQuery::ToNote) => {
                wanted.get_or_insert(wants);
            }
        }
    }
    let known = transaction.open_table(KNOWN)?;
    let mut held = transaction.open_table(HELD)?;
    let mut longest: Option<HeldUntil> = None;
    let mut fresh = Vec::new();
    for &rule in &applying {
        if rule.only_new_recipients && !pays_new(&known, hold, rule)? {
            continue;
        }
        let since_ms = match held.get((&hold.intent, &rule.id))? {
            Some(row) => row.value().0,
            None => {
                fresh.push(rule);
                // A clock that was set back makes nothing older than it is.
                age.time(now_ms)
            }
        };
        let until_ms = since_ms.saturating_add(rule.hours.saturating_mul(HOUR_MS));
        let longer = longest.as_ref().is_none_or(|it| it.until_ms < until_ms);
        // By the clock of now: one that was ahead once must not end holds before their time.
        if now_ms < until_ms && longer {
            longest = Some(HeldUntil {
                until_ms,
                hours: rule.hours,
                of: rule.of.clone(),
                request: hold.request,
                vault: hold.vault,
                network: hold.network,
            });
        }
    }
    let mut payers = Vec::new();
    for &rule in &fresh {
        match person_with_room(transaction, &mut held, rule, now_ms)? {
            Some(person) => payers.push((rule, person)),
            None => return Ok(Err(ClaimError::TooManyHeld)),
        }
    }
    let mut shares = transaction.open_table(SHARES)?;
    for (rule, person) in payers {
        let rows = shares.get(person)?.map_or(0, |rows| rows.value());
        shares.insert(person, rows.saturating_add(1))?;
        held.insert((&hold.intent, &rule.id), (age.time(now_ms), person))?;
    }
    Ok(match (longest, wanted) {
        (Some(held), _) => Err(ClaimError::Held(held)),
        // More of them are asked for before there is a transaction, which may be over before they come.
        (None, Some(wants)) => Err(ClaimError::ApprovalsMissing(wants.clone())),
        (None, None) => Ok(applying),
    })
}

/// Whose share a new row is of; `None`: all who have approved it have used theirs up.
fn person_with_room<'r>(
    transaction: &WriteTransaction,
    held: &mut Table<'_, HeldKey, HeldRow>,
    rule: &'r HoldingRule,
    now_ms: u64,
) -> Result<Option<&'r str>, redb::Error> {
    let mut shares = transaction.open_table(SHARES)?;
    for tidied in [false, true] {
        for person in &rule.approved {
            let rows = shares.get(person.as_str())?.map_or(0, |rows| rows.value());
            if rows < MAX_OF_PERSON {
                return Ok(Some(person));
            }
        }
        let mut let_go = transaction.open_table(LET_GO)?;
        let last_ms = let_go.get(())?.map_or(0, |at_ms| at_ms.value());
        // A last time that is ahead is one of a wrong clock.
        if tidied || (last_ms..last_ms.saturating_add(LET_GO_MS)).contains(&now_ms) {
            break;
        }
        let_go.insert((), now_ms)?;
        held.retain(|_, (at_ms, _)| at_ms.saturating_add(KEEP_MS) > now_ms)?;
        let mut counted: BTreeMap<String, u64> = BTreeMap::new();
        for row in held.iter()? {
            let (_, row) = row?;
            let rows = counted.entry(row.value().1.to_owned()).or_default();
            *rows = rows.saturating_add(1);
        }
        shares.retain(|_, _| false)?;
        for (person, rows) in counted {
            shares.insert(person.as_str(), rows)?;
        }
    }
    Ok(None)
}

/// Whether it pays someone to whom nothing was signed yet that the rule applied to. What it does not apply to, such as a
/// little first, makes nobody known: who deceives or robs its people gets that approved as well.
fn pays_new(
    known: &impl redb::ReadableTable<(&'static str, &'static [u8; 32]), u64>,
    hold: &HoldCheck,
    rule: &HoldingRule,
) -> Result<bool, redb::Error> {
    if hold.has_unseen_recipients {
        return Ok(true);
    }
    for recipient in &hold.recipients {
        if known.get((recipient.as_str(), &rule.id))?.is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Notes to whom something is signed that these rules apply to.
pub(super) fn granted(
    transaction: &WriteTransaction,
    hold: &HoldCheck,
    applying: &[&HoldingRule],
    now_ms: u64,
) -> Result<(), redb::Error> {
    if hold.has_unseen_recipients {
        return Ok(());
    }
    let mut known = transaction.open_table(KNOWN)?;
    for rule in applying.iter().filter(|rule| rule.only_new_recipients) {
        for recipient in &hold.recipients {
            let key = (recipient.as_str(), &rule.id);
            if known.get(key)?.is_none() {
                known.insert(key, now_ms)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{
        ids::{RequestId, VaultId},
        networks::Network,
    };
    use redb::{Database, backends::InMemoryBackend};

    use super::*;

    fn hold(number: u64, people: &[&str]) -> HoldCheck {
        let mut intent = [0; 32];
        intent[..8].copy_from_slice(&number.to_be_bytes());
        HoldCheck {
            intent,
            request: RequestId::from_bytes([1; 16]),
            vault: VaultId::from_bytes([1; 16]),
            network: Network::Evm,
            recipients: ["somebody".to_owned()].into(),
            has_unseen_recipients: false,
            rules: vec![HoldingRule {
                id: [7; 32],
                hours: 1,
                only_new_recipients: false,
                of: "treasurer, controller".into(),
                approved: people.iter().map(|&it| it.to_owned()).collect(),
                missing: None,
                day: None,
            }],
        }
    }

    #[test]
    fn payments_of_one_person__should_not_use_up_the_room_of_others() {
        let database = Database::builder()
            .create_with_backend(InMemoryBackend::new())
            .unwrap();
        let transaction = database.begin_write().unwrap();
        make(&transaction).unwrap();
        let mut windows = SpendingWindows::open(&transaction).unwrap();
        let age = ClaimsAge::default();
        let begin_ms = 1_700_000_000_000;
        let mut ask = |number, people: &[&str], now_ms| {
            let hold = hold(number, people);
            let outcome = check(
                &transaction,
                &mut windows,
                &hold,
                HoldQuery::ToNote,
                &age,
                now_ms,
            );
            outcome.unwrap().map(|rules| rules.len())
        };
        for number in 0..MAX_OF_PERSON {
            assert!(matches!(
                ask(number, &["treasurer"], begin_ms),
                Err(ClaimError::Held(_))
            ));
        }
        let full = Err(ClaimError::TooManyHeld);
        assert_eq!(ask(MAX_OF_PERSON, &["treasurer"], begin_ms), full);
        // What is noted continues, and others have room, also for what he has approved with them.
        assert_eq!(ask(0, &["treasurer"], begin_ms + HOUR_MS), Ok(1));
        for (number, people) in [
            (MAX_OF_PERSON + 1, &["controller"] as &[&str]),
            (MAX_OF_PERSON + 2, &["controller", "treasurer"]),
        ] {
            let outcome = ask(number, people, begin_ms + 1);
            assert!(matches!(outcome, Err(ClaimError::Held(_))), "{outcome:?}");
        }
        let over_ms = begin_ms + KEEP_MS;
        assert_eq!(ask(MAX_OF_PERSON, &["treasurer"], over_ms - 1), full);
        // All rows are read once an hour at most.
        assert_eq!(ask(MAX_OF_PERSON, &["treasurer"], over_ms), full);
        let outcome = ask(MAX_OF_PERSON, &["treasurer"], over_ms + LET_GO_MS);
        assert!(matches!(outcome, Err(ClaimError::Held(_))), "{outcome:?}");
        let rows = transaction
            .open_table(HELD)
            .unwrap()
            .iter()
            .unwrap()
            .count();
        assert_eq!(rows, 1);
    }
}
