//! Payments that are held: since when this node knows enough approvals of them, and to whom something was signed that was
//! held. Where rows are lost, payments are held longer.

use std::collections::BTreeMap;

use super::{
    ClaimError, ClaimsAge,
    rows::{RowKind, RowSpace, Rows},
    windows::SpendingWindows,
};
use crate::policy::{HeldUntil, HoldCheck, HoldingRule};

/// The intent, and the rule.
type HeldKey = ([u8; 32], [u8; 32]);
/// When, and whose.
type HeldRow = (u64, String);

/// (intent, rule) -> when one order with all the approvals that the rule needs was verified first, in milliseconds since
/// the Unix epoch; whose share of the rows it is.
const HELD: RowSpace<HeldKey, HeldRow> = RowSpace::new(RowKind::Held);
/// Person -> how many rows are of their share.
const SHARES: RowSpace<String, u64> = RowSpace::new(RowKind::HeldShare);
/// When old rows were let go last, in milliseconds since the Unix epoch.
const LET_GO: RowSpace<(), u64> = RowSpace::new(RowKind::HeldLetGo);
/// (recipient, rule) -> when something for the recipient was signed first that the rule applied to.
const KNOWN: RowSpace<(String, [u8; 32]), u64> = RowSpace::new(RowKind::KnownRecipient);

const HOUR_MS: u64 = 3_600_000;
/// Payments that one person's approvals can have noted: nobody uses up the room of others.
const MAX_OF_PERSON: u64 = 20_000;
/// How long they are noted at least, in milliseconds: 9 days, longer than anything is held and approved again.
const KEEP_MS: u64 = 9 * 24 * HOUR_MS;
/// How often old rows are let go at most, in milliseconds: it reads them all.
const LET_GO_MS: u64 = HOUR_MS;

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
    rows: &mut Rows,
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
            && !windows.is_above(rows, counter, *amount, *most, now_ms)?
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
    let mut longest: Option<HeldUntil> = None;
    let mut fresh = Vec::new();
    for &rule in &applying {
        if rule.only_new_recipients && !pays_new(rows, hold, rule)? {
            continue;
        }
        let since_ms = match rows.get(&HELD, &(hold.intent, rule.id))? {
            Some((since_ms, _)) => since_ms,
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
        match person_with_room(rows, rule, now_ms)? {
            Some(person) => payers.push((rule, person)),
            None => return Ok(Err(ClaimError::TooManyHeld)),
        }
    }
    for (rule, person) in payers {
        let count = rows.get(&SHARES, person)?.unwrap_or_default();
        rows.put(&SHARES, person, &count.saturating_add(1))?;
        let row = (age.time(now_ms), person.clone());
        rows.put(&HELD, &(hold.intent, rule.id), &row)?;
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
    rows: &mut Rows,
    rule: &'r HoldingRule,
    now_ms: u64,
) -> Result<Option<&'r String>, redb::Error> {
    for tidied in [false, true] {
        for person in &rule.approved {
            if rows.get(&SHARES, person)?.unwrap_or_default() < MAX_OF_PERSON {
                return Ok(Some(person));
            }
        }
        let last_ms = rows.get(&LET_GO, &())?.unwrap_or_default();
        // A last time that is ahead is one of a wrong clock.
        if tidied || (last_ms..last_ms.saturating_add(LET_GO_MS)).contains(&now_ms) {
            break;
        }
        rows.put(&LET_GO, &(), &now_ms)?;
        let_go(rows, now_ms)?;
    }
    Ok(None)
}

/// Lets go of what was noted long ago, and counts the shares again.
fn let_go(rows: &mut Rows, now_ms: u64) -> Result<(), redb::Error> {
    let mut old = Vec::new();
    let mut counted: BTreeMap<String, u64> = BTreeMap::new();
    rows.visit(&HELD, |key, (at_ms, person)| {
        if at_ms.saturating_add(KEEP_MS) <= now_ms {
            old.push(key);
        } else {
            let count = counted.entry(person).or_default();
            *count = count.saturating_add(1);
        }
    })?;
    let mut people = Vec::new();
    rows.visit(&SHARES, |person, _| people.push(person))?;
    for key in old {
        rows.delete(&HELD, &key)?;
    }
    for person in people {
        rows.delete(&SHARES, &person)?;
    }
    for (person, count) in counted {
        rows.put(&SHARES, &person, &count)?;
    }
    Ok(())
}

/// Whether it pays someone to whom nothing was signed yet that the rule applied to. What it does not apply to, such as a
/// little first, makes nobody known: who deceives or robs its people gets that approved as well.
fn pays_new(rows: &Rows, hold: &HoldCheck, rule: &HoldingRule) -> Result<bool, redb::Error> {
    if hold.has_unseen_recipients {
        return Ok(true);
    }
    for recipient in &hold.recipients {
        if rows.get(&KNOWN, &(recipient.clone(), rule.id))?.is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Notes to whom something is signed that these rules apply to.
pub(super) fn granted(
    rows: &mut Rows,
    hold: &HoldCheck,
    applying: &[&HoldingRule],
    now_ms: u64,
) -> Result<(), redb::Error> {
    if hold.has_unseen_recipients {
        return Ok(());
    }
    for rule in applying.iter().filter(|rule| rule.only_new_recipients) {
        for recipient in &hold.recipients {
            let key = (recipient.clone(), rule.id);
            if rows.get(&KNOWN, &key)?.is_none() {
                rows.put(&KNOWN, &key, &now_ms)?;
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
    use redb::backends::InMemoryBackend;

    use super::*;
    use crate::claims::rows::SMALL_LOG_PAGES;

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
        let storage = std::sync::Arc::new(InMemoryBackend::new());
        let mut rows = Rows::make(storage, SMALL_LOG_PAGES).unwrap();
        let mut windows = SpendingWindows::open(&rows).unwrap();
        let age = ClaimsAge::default();
        let begin_ms = 1_700_000_000_000;
        let mut ask = |number, people: &[&str], now_ms| {
            let hold = hold(number, people);
            let outcome = check(
                &mut rows,
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
        let mut count = 0;
        rows.visit(&HELD, |_, _| count += 1).unwrap();
        assert_eq!(count, 1);
    }
}
