//! What is read.

use sqlx::PgConnection;

use super::MAX_KEY;
use crate::store::{Key, KeySpace, Row, Scan, prefix_end};

/// Some rows, or a page of rows.
pub(super) enum RowQuery {
    Some(Vec<Key>),
    Page {
        space: KeySpace,
        /// The first key that may come, and the first one that may not.
        first: Vec<u8>,
        end: Vec<u8>,
        reverse: bool,
        limit: i64,
        skip: i64,
    },
}

impl RowQuery {
    /// A page.
    pub(super) fn page(scan: &Scan) -> Self {
        let mut first = scan.prefix.clone();
        // No key is as long as that: it comes after all of them.
        let mut end = prefix_end(&scan.prefix).unwrap_or_else(|| vec![u8::MAX; MAX_KEY + 1]);
        if let Some(from) = &scan.from {
            if scan.reverse {
                // The smallest key after `from`.
                end = end.min([from.as_slice(), &[0]].concat());
            } else {
                first = first.max(from.clone());
            }
        }
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        Self::Page {
            space: scan.space,
            first,
            end,
            reverse: scan.reverse,
            limit: number(scan.limit),
            skip: number(scan.skip),
        }
    }

    /// Asks it.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) async fn ask(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Vec<(Key, Row)>, sqlx::Error> {
        let (space, query) = match self {
            Self::Some(keys) => {
                let spaces: Vec<_> = keys.iter().map(|key| key.space as i16).collect();
                let names: Vec<_> = keys.iter().map(|key| key.bytes.as_slice()).collect();
                let first = keys.first().map(|key| key.space);
                let Some(space) = first.filter(|first| keys.iter().all(|key| key.space == *first))
                else {
                    return of_several_kinds(connection, spaces, names).await;
                };
                let query = sqlx::query_as::<_, (Vec<u8>, i64, Vec<u8>)>(
                    "SELECT key, version, value FROM covault.rows \
                     WHERE space = $1 AND key = ANY($2)",
                );
                (space, query.bind(space as i16).bind(names))
            }
            Self::Page {
                space,
                first,
                end,
                reverse,
                limit,
                skip,
            } => {
                let query = sqlx::query_as(if *reverse {
                    "SELECT key, version, value FROM covault.rows WHERE space = $1 AND key >= $2 \
                     AND key < $3 ORDER BY space DESC, key DESC LIMIT $4 OFFSET $5"
                } else {
                    "SELECT key, version, value FROM covault.rows WHERE space = $1 AND key >= $2 \
                     AND key < $3 ORDER BY space, key LIMIT $4 OFFSET $5"
                });
                let query = query.bind(*space as i16).bind(first).bind(end);
                (*space, query.bind(limit).bind(skip))
            }
        };
        let found = query.fetch_all(connection).await?.into_iter();
        let row = |(bytes, version, value): (_, i64, _)| {
            let version = version.cast_unsigned();
            (Key { space, bytes }, Row { version, value })
        };
        Ok(found.map(row).collect())
    }
}

async fn of_several_kinds(
    connection: &mut PgConnection,
    spaces: Vec<i16>,
    names: Vec<&[u8]>,
) -> Result<Vec<(Key, Row)>, sqlx::Error> {
    let query = sqlx::query_as::<_, (i16, Vec<u8>, i64, Vec<u8>)>(
        "SELECT r.space, r.key, r.version, r.value \
         FROM unnest($1::smallint[], $2::bytea[]) AS i(space, key) \
         JOIN covault.rows r ON r.space = i.space AND r.key = i.key",
    );
    let found = query.bind(spaces).bind(names).fetch_all(connection).await?;
    // What was asked for has a kind.
    let row = |(space, bytes, version, value): (i16, _, i64, _)| {
        let space = u8::try_from(space).ok().and_then(KeySpace::of)?;
        let version = version.cast_unsigned();
        Some((Key { space, bytes }, Row { version, value }))
    };
    Ok(found.into_iter().filter_map(row).collect())
}
