//! What is read.

use sqlx::PgConnection;

use crate::store::{Key, KeySpace, Row, Scan, prefix_end};

/// A row, some rows, or a page of rows.
pub(super) struct Question {
    statement: &'static str,
    space: KeySpace,
    keys: Keys,
    /// How many at most, and how many are left out first.
    page: Option<(i64, i64)>,
    /// The first one that may not come any more.
    end: Option<Vec<u8>>,
}

enum Keys {
    /// The key, or the first one that may come.
    One(Vec<u8>),
    /// Those that are asked for.
    Some(Vec<Vec<u8>>),
}

impl Question {
    /// Some rows.
    pub(super) fn some(space: KeySpace, keys: &[Vec<u8>]) -> Self {
        Self {
            statement: "SELECT key, version, value FROM covault.rows \
                        WHERE space = $1 AND key = ANY($2)",
            space,
            keys: Keys::Some(keys.to_vec()),
            page: None,
            end: None,
        }
    }

    /// One row.
    pub(super) fn one(key: &Key) -> Self {
        Self {
            statement: "SELECT key, version, value FROM covault.rows WHERE space = $1 AND key = $2",
            space: key.space,
            keys: Keys::One(key.bytes.clone()),
            page: None,
            end: None,
        }
    }

    /// A page.
    pub(super) fn page(scan: &Scan) -> Self {
        let mut first = scan.prefix.clone();
        let mut end = prefix_end(&scan.prefix);
        if let Some(from) = &scan.from {
            if scan.reverse {
                // The smallest key after `from`.
                let after = [from.as_slice(), &[0]].concat();
                end = Some(match end {
                    Some(end) => end.min(after),
                    None => after,
                });
            } else {
                first = first.max(from.clone());
            }
        }
        let statement = match (end.is_some(), scan.reverse) {
            (true, false) => {
                "SELECT key, version, value FROM covault.rows WHERE space = $1 AND key >= $2 \
                 AND key < $5 ORDER BY space, key LIMIT $3 OFFSET $4"
            }
            (true, true) => {
                "SELECT key, version, value FROM covault.rows WHERE space = $1 AND key >= $2 \
                 AND key < $5 ORDER BY space DESC, key DESC LIMIT $3 OFFSET $4"
            }
            (false, false) => {
                "SELECT key, version, value FROM covault.rows WHERE space = $1 AND key >= $2 \
                 ORDER BY space, key LIMIT $3 OFFSET $4"
            }
            (false, true) => {
                "SELECT key, version, value FROM covault.rows WHERE space = $1 AND key >= $2 \
                 ORDER BY space DESC, key DESC LIMIT $3 OFFSET $4"
            }
        };
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        Self {
            statement,
            space: scan.space,
            keys: Keys::One(first),
            page: Some((number(scan.limit), number(scan.skip))),
            end,
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
        let mut query = sqlx::query_as::<_, (Vec<u8>, i64, Vec<u8>)>(self.statement)
            .bind(i16::from(self.space as u8));
        query = match &self.keys {
            Keys::One(key) => query.bind(key),
            Keys::Some(keys) => query.bind(keys),
        };
        if let Some((limit, skip)) = self.page {
            query = query.bind(limit).bind(skip);
        }
        if let Some(end) = &self.end {
            query = query.bind(end);
        }
        let found = query.fetch_all(connection).await?.into_iter();
        let row = |(bytes, version, value): (_, i64, _)| {
            let space = self.space;
            let version = version.cast_unsigned();
            (Key { space, bytes }, Row { version, value })
        };
        Ok(found.map(row).collect())
    }
}
