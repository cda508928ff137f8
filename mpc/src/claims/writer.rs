//! The writer: batches of jobs, each commit durable before anyone is told.

use std::sync::mpsc;

use covault_core::{approval::MAX_VALIDITY_MS, ids::VaultId, order::NodeId, signature::Curve};
use tokio::sync::oneshot;

use super::{
    BANS, CLOCKS_APART_MS, CachedClaims, Claim, ClaimError, ClaimResult, ClaimsAge, LostClaims,
    PeerHeights, REQUESTS, SESSIONS, TRANSACTIONS,
    height::{self, SPENDING_WINDOW_MS},
    holds,
    rows::Rows,
    windows::SpendingWindows,
};
use crate::{
    key_records::{self, JoinedKey, KeyRecord},
    policy::{HoldCheck, Spending},
    preprocess::table::{self as nonce_table, NonceRow, NonceSelection},
    shares::ShareEpoch,
};

/// Claims that share one commit at most.
const MAX_BATCH: usize = 512;

pub(super) enum WriteJob {
    Claim(
        Box<Claim>,
        Option<NonceSelection>,
        oneshot::Sender<ClaimResult>,
    ),
    NoteApprovals(HoldCheck, u64, oneshot::Sender<ClaimResult>),
    Ban {
        root: Vec<u8>,
        node: NodeId,
        now_ms: u64,
        reply: oneshot::Sender<ClaimResult>,
    },
    NoteKey(Vec<u8>, Option<KeyRecord>, oneshot::Sender<ClaimResult>),
    NoteVaultKey((VaultId, Curve), Vec<u8>, oneshot::Sender<ClaimResult>),
    NoteJoined(Vec<u8>, JoinedKey, oneshot::Sender<ClaimResult>),
    KeepNonces(ShareEpoch, Vec<NonceRow>, oneshot::Sender<ClaimResult>),
    BurnNonces(ShareEpoch, Vec<u64>, oneshot::Sender<ClaimResult>),
    LostClaims(LostClaims, oneshot::Sender<ClaimResult>),
    Remember(PeerHeights, oneshot::Sender<ClaimResult>),
}

pub(super) fn write(
    mut rows: Rows,
    mut windows: SpendingWindows,
    jobs: &mpsc::Receiver<WriteJob>,
    known: &CachedClaims,
) {
    while let Ok(first) = jobs.recv() {
        let mut batch = vec![first];
        while batch.len() < MAX_BATCH {
            let Ok(next) = jobs.try_recv() else { break };
            batch.push(next);
        }
        if !write_batch(&mut rows, &mut windows, batch, known) {
            return;
        }
    }
}

/// Writes a batch and tells who waits; false when the disk has failed.
pub(super) fn write_batch(
    rows: &mut Rows,
    windows: &mut SpendingWindows,
    batch: Vec<WriteJob>,
    known: &CachedClaims,
) -> bool {
    // Nobody else changes it.
    let mut age = *known.age.read();
    let committed = commit(rows, windows, &batch, &mut age);
    if committed.is_ok() {
        *known.age.write() = age;
    }
    if let Err(error) = &committed {
        tracing::error!(%error, "claims cannot be written");
    }
    let failed = committed.as_ref().err().map(ToString::to_string);
    let mut outcomes = committed.unwrap_or_default().into_iter();
    for job in batch {
        let outcome = match &failed {
            Some(error) => Err(ClaimError::Store(error.clone())),
            None => outcomes
                .next()
                .unwrap_or_else(|| Err(ClaimError::Store("lost".into()))),
        };
        let reply = match job {
            WriteJob::Claim(_, _, reply)
            | WriteJob::NoteApprovals(_, _, reply)
            | WriteJob::NoteKey(_, _, reply)
            | WriteJob::NoteVaultKey(_, _, reply)
            | WriteJob::NoteJoined(_, _, reply)
            | WriteJob::KeepNonces(_, _, reply)
            | WriteJob::BurnNonces(_, _, reply)
            | WriteJob::LostClaims(_, reply)
            | WriteJob::Remember(_, reply) => reply,
            WriteJob::Ban {
                root, node, reply, ..
            } => {
                known.bans.write().insert((root, node));
                reply
            }
        };
        // Nobody waits: the claim stands anyway.
        let _ = reply.send(outcome);
    }
    if failed.is_some() {
        return false;
    }
    // Only now: nobody waits for it who was granted something.
    let folded = rows.fold_step();
    if let Err(error) = &folded {
        tracing::error!(%error, "claims cannot be written");
    }
    *known.log.write() = rows.counts();
    folded.is_ok()
}

/// All jobs of a batch in one entry of the log; each outcome counts only when the commit succeeds.
fn commit(
    rows: &mut Rows,
    windows: &mut SpendingWindows,
    batch: &[WriteJob],
    age: &mut ClaimsAge,
) -> Result<Vec<ClaimResult>, redb::Error> {
    let before = *age;
    let mut outcomes = Vec::with_capacity(batch.len());
    for job in batch {
        outcomes.push(match job {
            WriteJob::Claim(claim, take, _) => {
                // First, and whatever becomes of the claim: what was named once is used up.
                let taken = match take {
                    Some(take) => nonce_table::take(rows, take)?,
                    None => Some(Vec::new()),
                };
                match taken {
                    Some(nonces) => grant(rows, windows, claim, age)?.map(|()| nonces),
                    None => Err(ClaimError::NonceMissing),
                }
            }
            WriteJob::NoteApprovals(hold, now_ms, _) => {
                let asked = holds::HoldQuery::ToNote;
                holds::check(rows, windows, hold, asked, age, *now_ms)?.map(|_| Vec::new())
            }
            WriteJob::NoteKey(root, note, _) => {
                key_records::put(rows, root, note.as_ref())?;
                Ok(Vec::new())
            }
            WriteJob::NoteVaultKey(of, root, _) => {
                key_records::put_vault(rows, *of, root)?;
                Ok(Vec::new())
            }
            WriteJob::NoteJoined(root, joined, _) => {
                key_records::put_joined(rows, root, *joined)?;
                Ok(Vec::new())
            }
            WriteJob::KeepNonces(of, nonces, _) => {
                nonce_table::keep(rows, of, nonces)?;
                Ok(Vec::new())
            }
            WriteJob::BurnNonces(of, ids, _) => {
                nonce_table::burn(rows, of, ids)?;
                Ok(Vec::new())
            }
            WriteJob::Ban {
                root, node, now_ms, ..
            } => {
                rows.put(&BANS, &(root.clone(), node.0), now_ms)?;
                age.height = age.height.saturating_add(1);
                Ok(Vec::new())
            }
            WriteJob::LostClaims(forgotten, _) => {
                height::forget(rows, forgotten, age)?;
                Ok(Vec::new())
            }
            WriteJob::Remember(peers, _) => {
                height::remember(rows, peers)?;
                Ok(Vec::new())
            }
        });
    }
    if *age != before {
        height::store(rows, age)?;
    }
    rows.commit()?;
    Ok(outcomes)
}

fn grant(
    rows: &mut Rows,
    windows: &mut SpendingWindows,
    claim: &Claim,
    age: &mut ClaimsAge,
) -> Result<Result<(), ClaimError>, redb::Error> {
    let session = (*claim.session.as_bytes(), claim.attempt);
    if rows.get(&SESSIONS, &session)?.is_some() {
        return Ok(Err(ClaimError::SessionUsed));
    }
    if let Some((request, digest)) = &claim.digest {
        if let Some(id) = &claim.transaction {
            let known = rows.get(&TRANSACTIONS, id)?;
            if known.is_some_and(|known| known != *digest) {
                return Ok(Err(ClaimError::OtherAmounts));
            }
        }
        let known = rows.get(&REQUESTS, request.as_bytes())?;
        match known.map(|known| known == *digest) {
            None => {
                // Time never runs back for limits.
                let now_ms = age.time(claim.now_ms);
                // While an approval is valid, it may have been used for a request that this node has forgotten.
                let unknown = |it: &Spending| it.most_per_day.is_some() || it.unapproved.is_some();
                if age.lacks_spending(now_ms)
                    && (claim.approved_until_ms.is_some() || claim.spending.iter().any(unknown))
                {
                    return Ok(Err(ClaimError::SpendingUnknown));
                }
                if let Some(until_ms) = claim.approved_until_ms
                    && let Some(wants) = used_by_others(rows, &claim.root, until_ms)?
                {
                    return Ok(Err(ClaimError::ApprovalsMissing(wants)));
                }
                if let Some(refused) = spent_by_others(rows, claim, now_ms)? {
                    return Ok(Err(refused));
                }
                // Not the latest time of a claim: the clock may have been ahead then.
                let mut holding = None;
                if let Some(hold) = &claim.hold {
                    let (asked, now_ms) = (holds::HoldQuery::ToSign, claim.now_ms);
                    match holds::check(rows, windows, hold, asked, age, now_ms)? {
                        Ok(applying) => holding = Some((hold, applying)),
                        Err(held) => return Ok(Err(held)),
                    }
                }
                if let Err(over) = windows.count(rows, &claim.spending, now_ms)? {
                    return Ok(Err(over));
                }
                if let Some((hold, applying)) = holding {
                    holds::granted(rows, hold, &applying, now_ms)?;
                }
                rows.put(&REQUESTS, request.as_bytes(), digest)?;
                if let Some(id) = &claim.transaction {
                    rows.put(&TRANSACTIONS, id, digest)?;
                }
            }
            // The same transaction again: it cannot be sent twice, and was counted.
            Some(true) => {}
            Some(false) => return Ok(Err(ClaimError::OtherDigest)),
        }
    }
    rows.put(&SESSIONS, &session, &claim.now_ms)?;
    age.granted(claim.now_ms);
    Ok(Ok(()))
}

/// What is wanted instead of approvals that the holders of the key before this node may have used for another
/// transaction; `None`: they cannot have. Each of them has taken approvals that were valid for [`MAX_VALIDITY_MS`] at most.
fn used_by_others(
    rows: &Rows,
    root: &[u8],
    approved_until_ms: u64,
) -> Result<Option<String>, redb::Error> {
    let joined_ms = key_records::joined_ms(rows, root)?;
    let unused_ms = joined_ms.map(|joined_ms| {
        joined_ms
            .saturating_add(MAX_VALIDITY_MS)
            .saturating_add(CLOCKS_APART_MS)
    });
    let unused_ms = unused_ms.filter(|unused_ms| approved_until_ms < *unused_ms);
    Ok(unused_ms.map(|unused_ms| {
        format!(
            "wants approvals that are valid until {unused_ms} (milliseconds since the Unix epoch) or later: it got its \
             share of the key by a reshare, and its former holders may have used earlier approvals"
        )
    }))
}

/// Why a claim cannot be counted, at `now_ms`, whose limits the holders of the key before this node may have used up:
/// their sums of a day are not known here. `None`: they are, or nothing of it is limited. People may approve what they
/// have to above a day's sum.
fn spent_by_others(
    rows: &Rows,
    claim: &Claim,
    now_ms: u64,
) -> Result<Option<ClaimError>, redb::Error> {
    let limited = claim.spending.iter().any(|it| it.most_per_day.is_some());
    let unapproved = claim.spending.iter().find_map(|it| it.unapproved.as_ref());
    if !limited && unapproved.is_none() {
        return Ok(None);
    }
    let since_ms = key_records::new_holder_ms(rows, &claim.root)?;
    let known_ms = since_ms.map(|since_ms| {
        since_ms
            .saturating_add(SPENDING_WINDOW_MS)
            .saturating_add(CLOCKS_APART_MS)
    });
    let Some(known_ms) = known_ms.filter(|known_ms| now_ms < *known_ms) else {
        return Ok(None);
    };
    Ok(match unapproved {
        _ if limited => Some(ClaimError::SpentElsewhere(known_ms)),
        Some(unapproved) => Some(ClaimError::ApprovalsMissing(format!(
            "{}: until {known_ms} (milliseconds since the Unix epoch) it does not know the day's sum, because it got its \
             share of the key by a reshare",
            unapproved.wants
        ))),
        None => None,
    })
}
