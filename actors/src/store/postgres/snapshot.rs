//! One state of all rows, in a transaction of its own that only reads.

use async_trait::async_trait;
use sqlx::{ConnectOptions as _, PgConnection};
use tokio::sync::Mutex;

use super::server::{self, ConnectionRole, PostgresServer, ServerProblem};
use crate::store::{RawRow, ReadError, Snapshot};

/// How long the server keeps a state that nobody asks for: as long as it does, it can clear away nothing
/// that was changed since.
const KEPT: &str = "120s";
/// Most rows that are read at once.
const MOST: i64 = 4_096;

/// See the module. It ends with its connection.
pub(super) struct FrozenState(Mutex<PgConnection>);

impl FrozenState {
    /// Takes the present state. `id` and `least` are the row in `covault.writers` of who asks, and the
    /// number of the last commit that it must know.
    ///
    /// # Errors
    /// Why that is not possible now.
    pub(super) async fn take(
        server: &PostgresServer,
        id: &str,
        least: i64,
    ) -> Result<Self, ServerProblem> {
        let session = server.session(ConnectionRole::Reads, &format!("covault backup {id}"));
        let mut connection = session.connect().await?;
        server::examine(&mut connection).await?;
        sqlx::query("SELECT set_config('idle_in_transaction_session_timeout', $1, false)")
            .bind(KEPT)
            .execute(&mut connection)
            .await?;
        sqlx::query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            .execute(&mut connection)
            .await?;
        // The first look decides which state it is.
        let number: Option<i64> =
            sqlx::query_scalar("SELECT number FROM covault.writers WHERE id = $1")
                .bind(id)
                .fetch_optional(&mut connection)
                .await?;
        if number.is_none_or(|number| number < least) {
            return Err(ServerProblem::passing(
                "it does not have the latest commits",
            ));
        }
        Ok(Self(Mutex::new(connection)))
    }
}

#[async_trait]
impl Snapshot for FrozenState {
    async fn rows(&self, after: Option<&RawRow>, bytes: usize) -> Result<Vec<RawRow>, ReadError> {
        let (space, key) = after.map_or((-1, [].as_slice()), |row| {
            (i16::from(row.space), row.key.as_slice())
        });
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX).max(1);
        let mut connection = self.0.lock().await;
        let found = sqlx::query_as::<_, (i16, Vec<u8>, Vec<u8>)>(
            "SELECT space, key, value FROM ( \
              SELECT space, key, value, octet_length(key) + octet_length(value) AS size, \
               sum(octet_length(key) + octet_length(value)) OVER ( \
                ORDER BY space, key ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS total \
              FROM covault.rows WHERE (space, key) > ($1, $2) ORDER BY space, key LIMIT $3 \
             ) AS r WHERE total - size < $4 ORDER BY space, key",
        )
        .bind(space)
        .bind(key)
        .bind(MOST)
        .bind(bytes)
        .fetch_all(&mut *connection)
        .await
        .map_err(|error| ReadError(server::describe(&error)))?;
        found
            .into_iter()
            .map(|(space, key, value)| {
                let space = u8::try_from(space)
                    .map_err(|_| ReadError("a row without a kind".to_owned()))?;
                Ok(RawRow { space, key, value })
            })
            .collect()
    }
}
