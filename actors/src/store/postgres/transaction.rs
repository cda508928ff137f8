//! One group in one transaction, and its outcome when the answer was lost: plain SQL.
//!
//! There are two ways. The short one is a single statement: it writes what was decided about rows that
//! were guessed, if they are so. Else, the long one locks and reads the rows first.

use std::collections::BTreeMap;

use sqlx::{Connection as _, PgConnection};

use super::{
    group::{CommitGroup, GroupChanges, GroupLocks, GuessedChanges},
    server::{self, StatementEffect},
    written_rows::WrittenRows,
};
use crate::store::{Key, KeySpace, Row};

/// Locks rows in the order of their keys, so that two writers do not wait for each other; those that are only
/// looked at against changes alone. Space 31 is [`KeySpace::AuditHead`], the only one of which the values matter.
const LOCK: &str = "WITH own AS (SELECT r.space, r.key, r.version, \
        CASE WHEN r.space = 31 THEN r.value END AS value \
        FROM unnest($1::smallint[], $2::bytea[]) AS i(space, key) \
        JOIN covault.rows r ON r.space = i.space AND r.key = i.key \
        ORDER BY r.space, r.key FOR UPDATE OF r), \
    shared AS (SELECT r.space, r.key, r.version, NULL::bytea AS value \
        FROM unnest($3::smallint[], $4::bytea[]) AS i(space, key) \
        JOIN covault.rows r ON r.space = i.space AND r.key = i.key \
        ORDER BY r.space, r.key FOR SHARE OF r) \
    SELECT * FROM own UNION ALL SELECT * FROM shared";
/// Writes all that a group changes, and takes the number of the commit: one statement is one round trip. No row is in
/// it twice, as its parts do not see each other's changes.
const WRITE: &str = "WITH inserted AS (INSERT INTO covault.rows (space, key, version, value) \
        SELECT * FROM unnest($1::smallint[], $2::bytea[], $3::bigint[], $4::bytea[]) \
        AS i(space, key, version, value) ORDER BY i.space, i.key \
        ON CONFLICT (space, key) DO NOTHING RETURNING 1), \
    updated AS (UPDATE covault.rows r SET version = i.version, value = i.value \
        FROM unnest($5::smallint[], $6::bytea[], $7::bigint[], $8::bytea[]) \
        AS i(space, key, version, value) WHERE r.space = i.space AND r.key = i.key), \
    deleted AS (DELETE FROM covault.rows r USING unnest($9::smallint[], $10::bytea[]) AS i(space, key) \
        WHERE r.space = i.space AND r.key = i.key), \
    numbered AS (UPDATE covault.writers SET number = $12, written = now() \
        WHERE id = $11 AND number = $12 - 1 RETURNING 1) \
    SELECT (SELECT count(*) FROM inserted), (SELECT count(*) FROM numbered)";
const DELETE: &str = "DELETE FROM covault.rows r \
    USING unnest($1::smallint[], $2::bytea[]) AS i(space, key) \
    WHERE r.space = i.space AND r.key = i.key";
/// All of a commit, if rows are as they were guessed ($1 to $6: there, in these versions; $7 and $8: not there),
/// else nothing: it locks what is there, in the order of [`LOCK`], takes the number only if nothing is missing, and
/// writes only if it has the number. A row that another process makes at that moment is an error, and nothing is
/// written. So would be what was not written in full: it divides by zero. (`1 / 0` would be computed in advance.)
const WRITE_GUESSED: &str = "WITH own AS (SELECT 1 \
        FROM unnest($1::smallint[], $2::bytea[], $3::bigint[]) AS i(space, key, version) \
        JOIN covault.rows r ON r.space = i.space AND r.key = i.key \
        WHERE r.version = i.version ORDER BY r.space, r.key FOR UPDATE OF r), \
    shared AS (SELECT 1 \
        FROM unnest($4::smallint[], $5::bytea[], $6::bigint[]) AS i(space, key, version) \
        JOIN covault.rows r ON r.space = i.space AND r.key = i.key \
        WHERE r.version = i.version ORDER BY r.space, r.key FOR SHARE OF r), \
    locked AS (SELECT * FROM own UNION ALL SELECT * FROM shared), \
    surplus AS (SELECT 1 FROM unnest($7::smallint[], $8::bytea[]) AS i(space, key) \
        JOIN covault.rows r ON r.space = i.space AND r.key = i.key), \
    numbered AS (UPDATE covault.writers SET number = $10, written = now() \
        WHERE id = $9 AND number = $10 - 1 \
        AND (SELECT count(*) FROM locked) = cardinality($2) + cardinality($5) \
        AND (SELECT count(*) FROM surplus) = 0 RETURNING 1), \
    inserted AS (INSERT INTO covault.rows (space, key, version, value) \
        SELECT i.space, i.key, i.version, i.value \
        FROM unnest($11::smallint[], $12::bytea[], $13::bigint[], $14::bytea[]) \
        AS i(space, key, version, value) WHERE (SELECT count(*) FROM numbered) = 1 \
        ORDER BY i.space, i.key RETURNING 1), \
    updated AS (UPDATE covault.rows r SET version = i.version, value = i.value \
        FROM unnest($15::smallint[], $16::bytea[], $17::bigint[], $18::bytea[]) \
        AS i(space, key, version, value) WHERE r.space = i.space AND r.key = i.key \
        AND (SELECT count(*) FROM numbered) = 1 RETURNING 1), \
    deleted AS (DELETE FROM covault.rows r USING unnest($19::smallint[], $20::bytea[]) AS i(space, key) \
        WHERE r.space = i.space AND r.key = i.key \
        AND (SELECT count(*) FROM numbered) = 1 RETURNING 1) \
    SELECT CASE (SELECT count(*) FROM numbered) WHEN 0 THEN false \
        ELSE 1 / ((SELECT count(*) FROM inserted) = cardinality($12) \
            AND (SELECT count(*) FROM updated) = cardinality($16) \
            AND (SELECT count(*) FROM deleted) = cardinality($20))::integer = 1 END";
/// It always writes, so that a commit which it tells of is on every disk that it has to be on. It waits
/// while the commit is still being done.
const SETTLE: &str = "UPDATE covault.writers \
    SET number = CASE WHEN number = $2 - 1 THEN $2 + 1 ELSE number END, written = now() \
    WHERE id = $1 RETURNING number";

/// Why a transaction did not end well.
#[derive(Debug)]
pub(super) struct TransactionFailure {
    pub(super) effect: StatementEffect,
    pub(super) text: String,
}

impl From<sqlx::Error> for TransactionFailure {
    fn from(error: sqlx::Error) -> Self {
        Self {
            effect: server::effect(&error),
            text: server::describe(&error),
        }
    }
}

/// Commits a group under the next number of a writer. The group keeps what was decided, and `written` what
/// was written.
///
/// # Errors
/// Why that failed. With [`StatementEffect::Unknown`] it may have happened, or happen later.
pub(super) async fn commit(
    connection: &mut PgConnection,
    writer: &str,
    number: i64,
    group: &mut CommitGroup,
    written: &mut WrittenRows,
) -> Result<(), TransactionFailure> {
    if let Some(guessed) = group.guess(|key| written.find(key))
        && write_guessed(connection, writer, number, &guessed).await?
    {
        written.note(guessed.changes);
        return Ok(());
    }
    let mut transaction = connection.begin().await?;
    match write(&mut transaction, writer, number, group).await {
        Ok(changes) => {
            transaction.commit().await?;
            written.note(changes);
            Ok(())
        }
        Err(failed) => {
            transaction.rollback().await?;
            Err(failed)
        }
    }
}

/// Commits what was decided about rows that were guessed, in one statement; false when they are not so, and
/// nothing was written.
///
/// # Errors
/// As [`commit`].
async fn write_guessed(
    connection: &mut PgConnection,
    writer: &str,
    number: i64,
    guessed: &GuessedChanges,
) -> Result<bool, TransactionFailure> {
    let mut write = sqlx::query_scalar::<_, bool>(WRITE_GUESSED);
    for there in [&guessed.own, &guessed.shared] {
        let (spaces, keys) = columns(there.iter().map(|(key, _)| key));
        let versions = there.iter().map(|(_, version)| version.cast_signed());
        let versions: Vec<i64> = versions.collect();
        write = write.bind(spaces).bind(keys).bind(versions);
    }
    let (spaces, keys) = columns(&guessed.absent);
    write = write.bind(spaces).bind(keys).bind(writer).bind(number);
    let changes = &guessed.changes;
    for rows in [&changes.inserts, &changes.updates] {
        let rows = rows.iter().map(|(key, row)| (key, row));
        let (spaces, keys, versions, values) = rows_as_columns(rows);
        write = write.bind(spaces).bind(keys).bind(versions).bind(values);
    }
    let (spaces, keys) = columns(&changes.deletes);
    write = write.bind(spaces).bind(keys);
    // All of the answer: that the statement is committed comes after its row.
    match write.fetch_all(connection).await {
        Ok(answer) => Ok(answer == [true]),
        // A row is there that must not be, or something cannot be stored: the long way finds out.
        Err(error) if server::effect(&error) == StatementEffect::Unfit => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn write(
    connection: &mut PgConnection,
    writer: &str,
    number: i64,
    group: &mut CommitGroup,
) -> Result<GroupChanges, TransactionFailure> {
    let rows = lock(connection, &group.locks()).await?;
    let changes = group.decide(rows);
    let held = changes.held.iter().map(|key| (key, HELD));
    let inserts = changes.inserts.iter().map(|(key, row)| (key, row));
    let (inserted, numbered): (i64, i64) = {
        let (spaces, keys, versions, values) = rows_as_columns(inserts.chain(held));
        let write = sqlx::query_as(WRITE);
        let write = write.bind(spaces).bind(keys).bind(versions).bind(values);
        let updates = changes.updates.iter().map(|(key, row)| (key, row));
        let (spaces, keys, versions, values) = rows_as_columns(updates);
        let write = write.bind(spaces).bind(keys).bind(versions).bind(values);
        let (spaces, keys) = columns(&changes.deletes);
        let write = write.bind(spaces).bind(keys).bind(writer).bind(number);
        write.fetch_one(&mut *connection).await?
    };
    if usize::try_from(inserted) != Ok(changes.inserts.len() + changes.held.len()) {
        group.collided(changes);
        return Err(TransactionFailure {
            effect: StatementEffect::Again,
            text: "another process created the same row".into(),
        });
    }
    if numbered != 1 {
        return Err(TransactionFailure {
            effect: StatementEffect::Unknown,
            text: "this process may not commit".into(),
        });
    }
    if !changes.held.is_empty() {
        let (spaces, keys) = columns(&changes.held);
        let delete = sqlx::query(DELETE).bind(spaces).bind(keys);
        delete.execute(connection).await?;
    }
    Ok(changes)
}

/// What stands where a row must not be, until the commit.
const HELD: &Row = &Row {
    version: 1,
    value: vec![],
};

fn columns<'a>(keys: impl IntoIterator<Item = &'a Key>) -> (Vec<i16>, Vec<&'a [u8]>) {
    let column = |key: &'a Key| (key.space as i16, key.bytes.as_slice());
    keys.into_iter().map(column).unzip()
}

type RowColumns<'a> = (Vec<i16>, Vec<&'a [u8]>, Vec<i64>, Vec<&'a [u8]>);

fn rows_as_columns<'a>(rows: impl Iterator<Item = (&'a Key, &'a Row)>) -> RowColumns<'a> {
    let mut columns = RowColumns::default();
    for (key, row) in rows {
        columns.0.push(key.space as i16);
        columns.1.push(&key.bytes);
        columns.2.push(row.version.cast_signed());
        columns.3.push(&row.value);
    }
    columns
}

/// Locks those of some rows that there are, and gives them.
async fn lock(
    connection: &mut PgConnection,
    locks: &GroupLocks,
) -> Result<BTreeMap<Key, Row>, sqlx::Error> {
    let (own, own_keys) = columns(&locks.own);
    let (shared, shared_keys) = columns(&locks.shared);
    let found = sqlx::query_as::<_, (i16, Vec<u8>, i64, Option<Vec<u8>>)>(LOCK)
        .bind(own)
        .bind(own_keys)
        .bind(shared)
        .bind(shared_keys)
        .fetch_all(connection)
        .await?;
    let row = |(space, bytes, version, value): (i16, _, i64, Option<_>)| {
        let space = u8::try_from(space).ok().and_then(KeySpace::of)?;
        let (version, value) = (version.cast_unsigned(), value.unwrap_or_default());
        Some((Key { space, bytes }, Row { version, value }))
    };
    Ok(found.into_iter().filter_map(row).collect())
}

/// What is known of a commit whose answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostCommit {
    /// It happened.
    Taken,
    /// It did not, and never will.
    GivenUp,
    /// An earlier one that was answered is not there.
    Behind,
    /// The writer was replaced.
    Replaced,
}

/// Finds out the outcome of the commit with a number, or abandons it; and the number that the writer
/// is at from now on.
///
/// A commit takes the number from `number - 1` to `number`, giving up takes it to `number + 1`: who asks
/// again hears the same, and a commit that arrives late finds a number that is not its own.
///
/// # Errors
/// Those of the connection: then it must be asked again.
pub(super) async fn settle(
    connection: &mut PgConnection,
    writer: &str,
    number: i64,
) -> Result<(LostCommit, i64), sqlx::Error> {
    let reached: Option<i64> = sqlx::query_scalar(SETTLE)
        .bind(writer)
        .bind(number)
        .fetch_optional(connection)
        .await?;
    let Some(reached) = reached else {
        return Ok((LostCommit::Replaced, number));
    };
    let settled = match reached - number {
        0 => LostCommit::Taken,
        1 => LostCommit::GivenUp,
        ..0 => LostCommit::Behind,
        2.. => LostCommit::Replaced,
    };
    Ok((settled, reached))
}
