//! What is read.

use sqlx::PgConnection;

use crate::store::{Key, Row, Scan, Space, prefix_end};

/// A row, or a page of rows.
pub(super) struct Question {
    statement: &'static str,
    space: Space,
    /// The key, or the first one that may come.
    first: Vec<u8>,
    /// How many at most, and how many are left out first.
    page: Option<(i64, i64)>,
    /// The first one that may not come any more.
    end: Option<Vec<u8>>,
}

impl Question {
    /// One row.
    pub(super) fn one(key: &Key) -> Self {
        Self {
            statement: "SELECT key, version, value FROM covault.rows WHERE space = $1 AND key = $2",
            space: key.space,
            first: key.bytes.clone(),
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
            first,
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
            .bind(i16::from(self.space as u8))
            .bind(&self.first);
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
