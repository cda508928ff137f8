//! One group in one transaction, and its outcome when the answer was lost: plain SQL.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{Connection as _, PgConnection};

use super::{
    group::{Changes, Group},
    server::{self, Effect},
};
use crate::store::{Key, KeySpace, Row};

/// Locks rows in the order of their keys, so that two writers do not wait for each other. Space 31 is
/// [`KeySpace::AuditHead`], the only one of which the values matter.
const LOCK: &str = "SELECT r.space, r.key, r.version, CASE WHEN r.space = 31 THEN r.value END \
    FROM unnest($1::smallint[], $2::bytea[]) AS i(space, key) \
    JOIN covault.rows r ON r.space = i.space AND r.key = i.key \
    ORDER BY r.space, r.key FOR UPDATE OF r";
const SHARE: &str = "SELECT r.space, r.key, r.version, NULL::bytea \
    FROM unnest($1::smallint[], $2::bytea[]) AS i(space, key) \
    JOIN covault.rows r ON r.space = i.space AND r.key = i.key \
    ORDER BY r.space, r.key FOR SHARE OF r";
const INSERT: &str = "INSERT INTO covault.rows (space, key, version, value) \
    SELECT * FROM unnest($1::smallint[], $2::bytea[], $3::bigint[], $4::bytea[]) \
    ON CONFLICT (space, key) DO NOTHING";
const UPDATE: &str = "UPDATE covault.rows r SET version = i.version, value = i.value \
    FROM unnest($1::smallint[], $2::bytea[], $3::bigint[], $4::bytea[]) \
    AS i(space, key, version, value) WHERE r.space = i.space AND r.key = i.key";
const DELETE: &str = "DELETE FROM covault.rows r \
    USING unnest($1::smallint[], $2::bytea[]) AS i(space, key) \
    WHERE r.space = i.space AND r.key = i.key";
const NUMBER: &str = "UPDATE covault.writers SET number = $2, written = now() \
    WHERE id = $1 AND number = $2 - 1";
/// It always writes, so that a commit which it tells of is on every disk that it has to be on. It waits
/// while the commit is still being done.
const SETTLE: &str = "UPDATE covault.writers \
    SET number = CASE WHEN number = $2 - 1 THEN $2 + 1 ELSE number END, written = now() \
    WHERE id = $1 RETURNING number";

/// Why a transaction did not end well.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) effect: Effect,
    pub(super) text: String,
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self {
            effect: server::effect(&error),
            text: server::describe(&error),
        }
    }
}

/// Commits a group under the next number of a writer. The group keeps what was decided.
///
/// # Errors
/// Why that failed. With [`Effect::Unknown`] it may have happened, or happen later.
pub(super) async fn commit(
    connection: &mut PgConnection,
    writer: &str,
    number: i64,
    group: &mut Group,
) -> Result<(), Failed> {
    let mut transaction = connection.begin().await?;
    match write(&mut transaction, writer, number, group).await {
        Ok(()) => Ok(transaction.commit().await?),
        Err(failed) => {
            transaction.rollback().await?;
            Err(failed)
        }
    }
}

async fn write(
    connection: &mut PgConnection,
    writer: &str,
    number: i64,
    group: &mut Group,
) -> Result<(), Failed> {
    let locks = group.locks();
    let mut rows = lock(connection, LOCK, &locks.own).await?;
    rows.append(&mut lock(connection, SHARE, &locks.shared).await?);
    let Changes {
        inserts,
        updates,
        deletes,
    } = group.decide(rows);
    if put(connection, INSERT, &inserts).await? != inserts.len() {
        group.collided(inserts);
        return Err(Failed {
            effect: Effect::Again,
            text: "another process created the same row".into(),
        });
    }
    put(connection, UPDATE, &updates).await?;
    if !deletes.is_empty() {
        let (spaces, keys) = columns(&deletes);
        let delete = sqlx::query(DELETE).bind(spaces).bind(keys);
        delete.execute(&mut *connection).await?;
    }
    let numbered = sqlx::query(NUMBER).bind(writer).bind(number);
    if numbered.execute(connection).await?.rows_affected() == 1 {
        return Ok(());
    }
    Err(Failed {
        effect: Effect::Unknown,
        text: "this process may not commit".into(),
    })
}

fn columns<'a>(keys: impl IntoIterator<Item = &'a Key>) -> (Vec<i16>, Vec<&'a [u8]>) {
    let column = |key: &'a Key| (key.space as i16, key.bytes.as_slice());
    keys.into_iter().map(column).unzip()
}

/// Locks those of some rows that there are, and gives them.
async fn lock(
    connection: &mut PgConnection,
    statement: &'static str,
    keys: &BTreeSet<Key>,
) -> Result<BTreeMap<Key, Row>, sqlx::Error> {
    if keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    let (spaces, keys) = columns(keys);
    let found = sqlx::query_as::<_, (i16, Vec<u8>, i64, Option<Vec<u8>>)>(statement)
        .bind(spaces)
        .bind(keys)
        .fetch_all(connection)
        .await?;
    let row = |(space, bytes, version, value): (i16, _, i64, Option<_>)| {
        let space = u8::try_from(space).ok().and_then(KeySpace::of)?;
        let (version, value) = (version.cast_unsigned(), value.unwrap_or_default());
        Some((Key { space, bytes }, Row { version, value }))
    };
    Ok(found.into_iter().filter_map(row).collect())
}

/// Writes rows, and gives how many were written.
async fn put(
    connection: &mut PgConnection,
    statement: &'static str,
    rows: &[(Key, Row)],
) -> Result<usize, sqlx::Error> {
    if rows.is_empty() {
        return Ok(0);
    }
    let (spaces, keys) = columns(rows.iter().map(|(key, _)| key));
    let rows = rows.iter().map(|(_, row)| row);
    let (versions, values): (Vec<_>, Vec<_>) = rows
        .map(|row| (row.version.cast_signed(), row.value.as_slice()))
        .unzip();
    let put = sqlx::query(statement)
        .bind(spaces)
        .bind(keys)
        .bind(versions)
        .bind(values);
    let done = put.execute(connection).await?.rows_affected();
    Ok(usize::try_from(done).unwrap_or(usize::MAX))
}

/// What is known of a commit whose answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
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
) -> Result<(Settled, i64), sqlx::Error> {
    let reached: Option<i64> = sqlx::query_scalar(SETTLE)
        .bind(writer)
        .bind(number)
        .fetch_optional(connection)
        .await?;
    let Some(reached) = reached else {
        return Ok((Settled::Replaced, number));
    };
    let settled = match reached - number {
        0 => Settled::Taken,
        1 => Settled::GivenUp,
        ..0 => Settled::Behind,
        2.. => Settled::Replaced,
    };
    Ok((settled, reached))
}
