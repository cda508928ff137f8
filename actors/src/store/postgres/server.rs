//! The server: where it is, whether it is fit, how sessions on it are set.

use std::{net::IpAddr, time::Duration};

use covault_core::fault::Fault;
use reqwest::Url;
use secrecy::{ExposeSecret as _, SecretString};
use sqlx::{
    ConnectOptions as _, Connection as _, PgConnection,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
    postgres::{PgConnectOptions, PgDatabaseError, PgSeverity, PgSslMode},
};

/// The oldest PostgreSQL that has what is used here.
const OLDEST: i32 = 130_000;
/// The session that holds this advisory lock is the only one that writes.
const ALONE: i64 = 0x0063_6f76_6175_6c74;
/// How long a session may do nothing in the middle of a commit.
const STALLED: &str = "2s";
/// How long a connection may take to come up, at most.
const CONNECTING: Duration = Duration::from_secs(5);

/// Parameters that a URL may have: others are refused, as what is misspelt would be ignored.
const PARAMETERS: [&str; 12] = [
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "options",
];

/// The changes of the schema, in order. `docs/postgresql.md` has the rules for a new one.
const MIGRATIONS: [(i64, &str, &str); 1] = [(1, "rows", include_str!("migrations/0001_rows.sql"))];

/// Why a server cannot be used.
#[derive(Debug)]
pub(super) struct ServerProblem {
    pub(super) text: String,
    /// It will not pass by itself.
    pub(super) lasting: bool,
}

impl ServerProblem {
    pub(super) fn passing(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            lasting: false,
        }
    }

    fn lasting(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            lasting: true,
        }
    }
}

impl From<sqlx::Error> for ServerProblem {
    fn from(error: sqlx::Error) -> Self {
        let lasting = match &error {
            // Wrong password, no such database, no such right.
            sqlx::Error::Database(error) => error.code().is_some_and(|code| {
                ["28", "3D", "42"]
                    .iter()
                    .any(|class| code.starts_with(class))
            }),
            sqlx::Error::Tls(_) => true,
            _ => false,
        };
        Self {
            text: describe(&error),
            lasting,
        }
    }
}

/// What a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    Writes,
    Reads,
}

/// Where the server is, and what it is told.
#[derive(Clone)]
pub(super) struct PostgresServer {
    options: PgConnectOptions,
    /// How long a statement may take.
    statement: Duration,
}

impl PostgresServer {
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] for what is no URL of a database.
    pub(super) fn new(url: &SecretString, statement: Duration) -> Result<Self, Fault> {
        // What is wrong is said without the URL: it may hold a password.
        let wrong = |problem: &str| Fault::field("store.url", problem);
        let form = "must look like postgres://user:password@host:5432/database";
        let url: Url = url
            .expose_secret()
            .trim()
            .parse()
            .map_err(|_| wrong(form))?;
        if !matches!(url.scheme(), "postgres" | "postgresql") {
            return Err(wrong(form));
        }
        for (name, _) in url.query_pairs() {
            if !PARAMETERS.contains(&&*name) {
                return Err(wrong(&format!(
                    "unknown parameter {name:?}; allowed: {}",
                    PARAMETERS.join(", ")
                )));
            }
        }
        let mut options = PgConnectOptions::from_url(&url)
            .map_err(|_| wrong("one of its parameters has an invalid value"))?;
        if options.get_database().is_none() {
            return Err(wrong("names no database"));
        }
        if !is_local(&options) {
            let names_mode = url.query_pairs().any(|(name, _)| name == "sslmode");
            if !names_mode && matches!(options.get_ssl_mode(), PgSslMode::Prefer) {
                options = options.ssl_mode(PgSslMode::VerifyFull);
            }
            if !matches!(
                options.get_ssl_mode(),
                PgSslMode::VerifyCa | PgSslMode::VerifyFull
            ) {
                tracing::warn!(
                    "store.url does not verify PostgreSQL's certificate, so anyone on the network path can read and \
                     change everything: use sslmode=verify-full"
                );
            }
        }
        Ok(Self {
            options: options.disable_statement_logging(),
            statement,
        })
    }

    /// How sessions for `role` are opened. `name` is what the server calls them.
    pub(super) fn session(&self, role: ConnectionRole, name: &str) -> PgConnectOptions {
        let statement = self.statement.as_millis().to_string();
        let lock = (self.statement / 2).as_millis().to_string();
        self.options.clone().application_name(name).options([
            // Every statement names its schema.
            ("search_path", "pg_catalog"),
            ("default_transaction_isolation", "read committed"),
            (
                "default_transaction_read_only",
                match role {
                    ConnectionRole::Writes => "off",
                    ConnectionRole::Reads => "on",
                },
            ),
            ("statement_timeout", statement.as_str()),
            ("lock_timeout", lock.as_str()),
            // Who stalls in the middle of a commit is not to keep its rows from others.
            ("idle_in_transaction_session_timeout", STALLED),
            // A server that lost us is to let go of our locks soon.
            ("tcp_keepalives_idle", "5"),
            ("tcp_keepalives_interval", "2"),
            ("tcp_keepalives_count", "3"),
            // Every read and write goes through the one index, whatever statistics say.
            ("enable_seqscan", "off"),
            ("enable_bitmapscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("jit", "off"),
            // Nor is there anything to plan again for each question.
            ("plan_cache_mode", "force_generic_plan"),
        ])
    }

    /// A session for writing on a server that is fit.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn connect(&self, name: &str) -> Result<PgConnection, ServerProblem> {
        let options = self.session(ConnectionRole::Writes, name);
        let limit = CONNECTING.min(self.statement);
        tokio::time::timeout(limit, async {
            let mut connection = options.connect().await?;
            examine(&mut connection).await?;
            Ok(connection)
        })
        .await
        .map_err(|_| ServerProblem::passing("it does not answer"))?
    }
}

/// Whether nobody is between us and the server.
fn is_local(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    let loopback = || {
        host.parse()
            .is_ok_and(|address: IpAddr| address.is_loopback())
    };
    options.get_socket().is_some() || host.starts_with('/') || host == "localhost" || loopback()
}

/// Refuses a server on which what was committed might be lost, and has it wait for its disk.
///
/// # Errors
/// What is wrong with it.
pub(super) async fn examine(connection: &mut PgConnection) -> Result<(), ServerProblem> {
    // Never less than asked for: remote_apply waits for more than we need.
    let question = "SELECT current_setting('server_version_num')::integer, \
         (SELECT pg_encoding_to_char(encoding)::text FROM pg_database \
          WHERE datname = current_database()), \
         pg_is_in_recovery(), current_setting('fsync'), \
         set_config('synchronous_commit', CASE current_setting('synchronous_commit') \
          WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false)";
    let (version, encoding, recovers, fsync, _): (i32, String, bool, String, String) =
        sqlx::query_as(question).fetch_one(connection).await?;
    if version < OLDEST {
        return Err(ServerProblem::lasting(format!(
            "it is PostgreSQL {}, and {} is the oldest that can be used",
            version / 10_000,
            OLDEST / 10_000
        )));
    }
    if encoding != "UTF8" {
        return Err(ServerProblem::lasting(format!(
            "the database has the encoding {encoding}: make one with ENCODING 'UTF8'"
        )));
    }
    if recovers {
        // Until a failover is over.
        return Err(ServerProblem::passing(
            "it is a standby: the URL must lead to the primary",
        ));
    }
    if fsync != "on" {
        return Err(ServerProblem::lasting(
            "it runs with fsync = off, and would lose what it has confirmed: switch fsync on",
        ));
    }
    Ok(())
}

/// Makes this session the only one that writes, or one of several, as long as it lasts: who is to be
/// alone and who shares are never there at the same time.
///
/// # Errors
/// Why that is not possible now.
pub(super) async fn join(connection: &mut PgConnection, alone: bool) -> Result<(), ServerProblem> {
    let lock = if alone {
        "SELECT pg_try_advisory_lock($1)"
    } else {
        "SELECT pg_try_advisory_lock_shared($1)"
    };
    let joined: bool = sqlx::query_scalar(lock)
        .bind(ALONE)
        .fetch_one(&mut *connection)
        .await?;
    if joined {
        return Ok(());
    }
    let who: Option<String> = sqlx::query_scalar(
        "SELECT format('process %s, from %s, since %s', a.pid, coalesce(host(a.client_addr), \
         'this machine'), to_char(a.backend_start, 'YYYY-MM-DD HH24:MI:SS TZ')) \
         FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid \
         WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted \
         AND (l.classid::bigint << 32) + l.objid::bigint = $1 \
         AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
         LIMIT 1",
    )
    .bind(ALONE)
    .fetch_optional(connection)
    .await?;
    let who = who.as_deref().unwrap_or("it has just ended");
    Err(ServerProblem::passing(if alone {
        format!("another orchestrator uses this database ({who}): stop it first")
    } else {
        format!("another orchestrator uses this database exclusively ({who}): stop it first")
    }))
}

/// Ends what the server still has of earlier sessions of this name: one that lost its client does
/// not know that yet, and holds locks.
///
/// # Errors
/// Why that is not possible now.
pub(super) async fn end_others(
    connection: &mut PgConnection,
    name: &str,
) -> Result<(), ServerProblem> {
    sqlx::query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE application_name = $1 AND pid <> pg_backend_pid() \
         AND usename = current_user AND datname = current_database()",
    )
    .bind(name)
    .fetch_all(connection)
    .await?;
    Ok(())
}

/// Brings the schema up to date, one process at a time.
///
/// # Errors
/// What is in the way; nothing was changed by the step that failed.
pub(super) async fn migrate(connection: &mut PgConnection) -> Result<(), ServerProblem> {
    let known = MIGRATIONS.map(|(version, name, sql)| {
        let sql = sqlx::SqlSafeStr::into_sql_str(sql);
        Migration::new(version, name.into(), MigrationType::Simple, sql, false)
    });
    let latest = MIGRATIONS.map(|(version, ..)| version);
    let latest = latest.last().copied().unwrap_or_default();
    let mut migrator = Migrator::with_migrations(known.into());
    migrator.dangerous_set_table_name("covault.migrations");
    let there: bool = sqlx::query_scalar("SELECT to_regnamespace('covault') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await?;
    if !there {
        // Not always: who may not make schemas can be given one.
        migrator.create_schema("covault");
    }
    sqlx::query("SET statement_timeout = 0")
        .execute(&mut *connection)
        .await?;
    let done = migrator.run(&mut *connection).await;
    if done.is_ok() {
        sqlx::query("RESET statement_timeout")
            .execute(connection)
            .await?;
    }
    done.map_err(|error| match error {
        MigrateError::VersionMissing(version) if version > latest => {
            ServerProblem::lasting(format!(
                "its schema is of version {version}, which a newer Covault made; this one knows \
             {latest}: start that newer version, or restore the backup from before the upgrade"
            ))
        }
        MigrateError::VersionMissing(version) | MigrateError::VersionMismatch(version) => {
            ServerProblem::lasting(format!(
                "version {version} of its schema is not the one of this Covault: the schema \
                 covault was made by a build that was never released, or changed by hand"
            ))
        }
        MigrateError::Execute(error) => error.into(),
        MigrateError::ExecuteMigration(error, version) => {
            let trouble = ServerProblem::from(error);
            let text = format!(
                "its schema cannot be migrated to version {version}: {}",
                trouble.text
            );
            ServerProblem { text, ..trouble }
        }
        other => ServerProblem::lasting(other.to_string()),
    })
}

/// An error for the log. What rows hold stays out of it.
pub(super) fn describe(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => match error.try_downcast_ref::<PgDatabaseError>() {
            Some(error) => format!("{} ({})", error.message(), error.code()),
            None => "the server refused".into(),
        },
        sqlx::Error::PoolTimedOut => "timed out waiting for a connection".into(),
        other => other.to_string(),
    }
}

/// What an error says of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatementEffect {
    /// It had none; the same again may work.
    Again,
    /// It had none; there is something in it that cannot be stored.
    Unfit,
    /// It had none, and would have none if it were repeated now.
    None,
    /// It is not known.
    Unknown,
}

/// See [`StatementEffect`].
pub(super) fn effect(error: &sqlx::Error) -> StatementEffect {
    let sqlx::Error::Database(error) = error else {
        return StatementEffect::Unknown;
    };
    let Some(error) = error.try_downcast_ref::<PgDatabaseError>() else {
        return StatementEffect::Unknown;
    };
    if error.severity() != PgSeverity::Error {
        // The session is over, perhaps after the commit.
        return StatementEffect::Unknown;
    }
    match error.code() {
        // Serialization failure, deadlock, another writer holds a row.
        "40001" | "40P01" | "55P03" => StatementEffect::Again,
        // It is the primary no more; it does not know whether it has committed.
        "25006" | "40003" => StatementEffect::Unknown,
        code => match code.get(..2) {
            Some("22" | "23" | "54") => StatementEffect::Unfit,
            Some("08" | "XX") | None => StatementEffect::Unknown,
            Some(_) => StatementEffect::None,
        },
    }
}

/// Ends a session in order.
pub(super) async fn close(connection: PgConnection) {
    // It may be broken: then there is nothing to end.
    let _ = connection.close().await;
}
