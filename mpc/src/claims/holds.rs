//! Payments that are held: since when this node knows of each approval of them, and to whom something was signed that
//! people had approved. Where rows are lost, payments are held longer.

use redb::{ReadableTable as _, ReadableTableMetadata as _, TableDefinition, WriteTransaction};

use super::{ClaimError, ClaimsAge, windows::SpendingWindows};
use crate::policy::HoldCheck;

/// (intent, approval) -> when it was verified first, in milliseconds since the Unix epoch.
const APPROVED: TableDefinition<'_, (&[u8; 32], &str), u64> = TableDefinition::new("approved.1");
/// (recipient, person) -> when something for the recipient was signed first that the person had approved.
const PAID: TableDefinition<'_, (&str, &str), u64> = TableDefinition::new("paid.1");

/// Approvals that are noted at most; each needs a person's signature.
const MAX_APPROVED: u64 = 100_000;
/// How long they are noted at least, in milliseconds: 30 days, longer than anything is held.
const KEEP_MS: u64 = 30 * 24 * 3_600_000;

pub(super) fn make(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    transaction.open_table(APPROVED)?;
    transaction.open_table(PAID)?;
    Ok(())
}

/// Notes the approvals, and says whether the payment is still held at `now_ms`. The outcome is to be committed whatever it
/// is: the time runs from then on.
pub(super) fn check(
    transaction: &WriteTransaction,
    windows: &mut SpendingWindows,
    hold: &HoldCheck,
    age: &ClaimsAge,
    now_ms: u64,
) -> Result<Result<(), ClaimError>, redb::Error> {
    let mut approved = transaction.open_table(APPROVED)?;
    for approval in hold.approvals() {
        let key = (&hold.intent, approval.as_str());
        if approved.get(key)?.is_some() {
            continue;
        }
        if approved.len()? >= MAX_APPROVED {
            approved.retain(|_, at_ms| at_ms.saturating_add(KEEP_MS) > now_ms)?;
        }
        if approved.len()? >= MAX_APPROVED {
            return Ok(Err(ClaimError::TooManyHeld));
        }
        // A clock that was set back makes nothing older than it is.
        approved.insert(key, age.time(now_ms))?;
    }
    let paid = transaction.open_table(PAID)?;
    // By the clock of now: one that was ahead once must not end holds before their time.
    let held = hold.held(
        now_ms,
        |approval| {
            let row = approved.get((&hold.intent, approval))?;
            Ok(row.map(|row| row.value()))
        },
        |counter, amount, most| windows.is_above(transaction, counter, amount, most, now_ms),
        |recipient, person| Ok::<_, redb::Error>(paid.get((recipient, person))?.is_some()),
    )?;
    Ok(match held {
        Some(held) => Err(ClaimError::Held(held)),
        None => Ok(()),
    })
}

/// Notes to whom something is signed.
pub(super) fn granted(
    transaction: &WriteTransaction,
    hold: &HoldCheck,
    now_ms: u64,
) -> Result<(), redb::Error> {
    let mut paid = transaction.open_table(PAID)?;
    for recipient in &hold.recipients {
        for person in hold.people() {
            let key = (recipient.as_str(), person);
            if paid.get(key)?.is_none() {
                paid.insert(key, now_ms)?;
            }
        }
    }
    Ok(())
}
