//! The store of a server: PostgreSQL, in the schema `covault` of a database.
//!
//! One connection writes. It takes every batch that waits into one transaction of plain SQL (group
//! commit). Each batch is checked and applied on its own, in memory and in the order of arrival: first
//! by what the rows most likely are, which is one statement that writes if they are so; else, by the
//! rows as they are once they are locked. Reads go through a pool of connections.

mod group;
mod question;
mod server;
mod snapshot;
mod transaction;
mod writer;
mod written_rows;

use std::{
    collections::VecDeque,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use covault_core::fault::Fault;
use parking_lot::Mutex;
use secrecy::SecretString;
use sqlx::{
    PgConnection, PgPool,
    pool::PoolConnection,
    postgres::{PgPoolOptions, Postgres},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, timeout, timeout_at},
};

use self::{
    group::CommitJob,
    question::RowQuery,
    server::{ConnectionRole, PostgresServer, ServerProblem, StatementEffect},
    snapshot::FrozenState,
    writer::PostgresWriter,
    written_rows::WrittenRows,
};
use super::{Batch, CommitError, Key, ReadError, Row, RowMap, Scan, Snapshot, Store};

/// The longest key, in bytes: PostgreSQL's index takes some more.
const MAX_KEY: usize = 2_000;
/// The largest batch, in bytes: what PostgreSQL takes at once is less than four times that.
const MAX_BATCH: usize = 256 << 20;
/// The pause before a read is tried again.
const PAUSE: Duration = Duration::from_millis(50);

/// Where the database is and how it is used.
#[derive(Clone)]
pub struct Options {
    /// `postgres://user:password@host:port/database`, with the parameters of libpq's URLs that
    /// `docs/postgresql.md` names.
    pub url: SecretString,
    /// Most connections that read. One more writes.
    pub readers: NonZeroU32,
    /// How long a read may take, and a batch may wait for its commit to begin. The commit itself may
    /// take as long again.
    pub patience: Duration,
    /// Whether no other process may use the database in the meantime. Who does not demand that must check
    /// the row of a lease in every batch; who does is refused while any other is there.
    pub alone: bool,
}

/// See the module.
pub struct PostgresStore {
    shared: Arc<PostgresState>,
    jobs: mpsc::UnboundedSender<CommitJob>,
}

/// What reading and writing share.
struct PostgresState {
    server: PostgresServer,
    alone: bool,
    patience: Duration,
    readers: u32,
    /// The row of this process in `covault.writers`, and what the server calls its sessions.
    id: String,
    name: String,
    /// The number of the last commit of which everything is known. A server that does not have it
    /// is not to be read.
    acknowledged: Arc<AtomicI64>,
    gate: watch::Sender<ReadGate>,
    pool: Mutex<PgPool>,
}

/// Whether it may be read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ReadGate {
    Open,
    /// The outcome of a commit is not known.
    Doubt,
    /// Never again.
    Halted(String),
}

impl PostgresStore {
    /// Whether the database holds a store. Changes nothing.
    ///
    /// # Errors
    /// As [`PostgresStore::open`], where the server cannot be reached.
    pub async fn is_made(options: &Options) -> Result<bool, Fault> {
        let patience = options.patience;
        let server = PostgresServer::new(&options.url, patience * 2 / 5)?;
        let until = Instant::now() + patience;
        loop {
            match timeout(patience, has_schema(&server)).await {
                Ok(Ok(made)) => return Ok(made),
                Ok(Err(trouble)) if trouble.lasting || Instant::now() + PAUSE >= until => {
                    return Err(unusable(&trouble));
                }
                Err(_) => return Err(unusable(&ServerProblem::passing("it does not answer"))),
                Ok(Err(_)) => sleep(PAUSE * 4).await,
            }
        }
    }

    /// Connects, brings the schema up to date, and begins to write.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] for an invalid URL, else
    /// [`covault_core::fault::Class::Unavailable`]: the server cannot be reached within
    /// [`Options::patience`] or is not fit, another orchestrator uses the database, or its schema is
    /// newer than this program.
    pub async fn open(options: Options) -> Result<Self, Fault> {
        let Options {
            url,
            readers,
            patience,
            alone,
        } = options;
        // A server that is asked to stop in time need not be left alone with its work.
        let server = PostgresServer::new(&url, patience * 2 / 5)?;
        let until = Instant::now() + patience;
        let (connection, id) = loop {
            match begin(&server, alone, patience).await {
                Ok(begun) => break begun,
                Err(trouble) if trouble.lasting || Instant::now() + PAUSE >= until => {
                    return Err(unusable(&trouble));
                }
                Err(_) => sleep(PAUSE * 4).await,
            }
        };
        let name = name(&id);
        let acknowledged = Arc::default();
        let pool = pool(&server, &id, &acknowledged, readers.get(), patience);
        let shared = Arc::new(PostgresState {
            server,
            alone,
            patience,
            readers: readers.get(),
            id,
            name,
            acknowledged,
            gate: watch::channel(ReadGate::Open).0,
            pool: Mutex::new(pool),
        });
        let (jobs, queue) = mpsc::unbounded_channel();
        let writer = PostgresWriter {
            shared: Arc::clone(&shared),
            queue,
            waiting: VecDeque::new(),
            connection: Some(connection),
            number: 0,
            written: WrittenRows::default(),
        };
        tokio::spawn(writer.run());
        Ok(Self { shared, jobs })
    }
}

async fn has_schema(server: &PostgresServer) -> Result<bool, ServerProblem> {
    let mut connection = server.connect("covault").await?;
    let made = sqlx::query_scalar("SELECT to_regnamespace('covault') IS NOT NULL");
    Ok(made.fetch_one(&mut connection).await?)
}

fn unusable(trouble: &ServerProblem) -> Fault {
    Fault::unavailable("the PostgreSQL store cannot be used").caused_by(&trouble.text)
}

fn name(id: &str) -> String {
    format!("covault writer {id}")
}

/// Registers a new writer, and gives the connection that it writes on, and its id.
async fn begin(
    server: &PostgresServer,
    alone: bool,
    patience: Duration,
) -> Result<(PgConnection, String), ServerProblem> {
    let silent = |_| ServerProblem::passing("it does not answer");
    let mut connection = server.connect("covault").await?;
    let joined = timeout(patience, server::join(&mut connection, alone)).await;
    joined.map_err(silent)??;
    // However long that takes.
    server::migrate(&mut connection).await?;
    timeout(patience, async {
        let id = register(&mut connection, alone).await?;
        sqlx::query("SELECT set_config('application_name', $1, false)")
            .bind(name(&id))
            .execute(&mut connection)
            .await?;
        Ok((connection, id))
    })
    .await
    .map_err(silent)?
}

async fn register(connection: &mut PgConnection, alone: bool) -> Result<String, sqlx::Error> {
    // Who wants to be alone and others never write at the same time, also where the server knows no
    // advisory locks: the former writer finds that it may not write.
    sqlx::query(
        "DELETE FROM covault.writers WHERE $1 OR alone OR written < now() - interval '30 days'",
    )
    .bind(alone)
    .execute(&mut *connection)
    .await?;
    sqlx::query_scalar("INSERT INTO covault.writers (alone) VALUES ($1) RETURNING id")
        .bind(alone)
        .fetch_one(connection)
        .await
}

fn pool(
    server: &PostgresServer,
    id: &str,
    acknowledged: &Arc<AtomicI64>,
    readers: u32,
    patience: Duration,
) -> PgPool {
    let (id, acknowledged) = (id.to_owned(), Arc::clone(acknowledged));
    let options = server.session(ConnectionRole::Reads, &format!("covault reader {id}"));
    PgPoolOptions::new()
        .max_connections(readers)
        .acquire_timeout(patience)
        // A broken one is found when it is used, and a read is just tried again.
        .test_before_acquire(false)
        .after_connect(move |connection, _| {
            let (id, acknowledged) = (id.clone(), Arc::clone(&acknowledged));
            Box::pin(async move {
                let least = acknowledged.load(Ordering::SeqCst);
                let refuse = |problem: String| sqlx::Error::Configuration(problem.into());
                let fit = server::examine(connection).await;
                fit.map_err(|trouble| refuse(trouble.text))?;
                let number: Option<i64> =
                    sqlx::query_scalar("SELECT number FROM covault.writers WHERE id = $1")
                        .bind(id)
                        .fetch_optional(connection)
                        .await?;
                if number.is_none_or(|number| number < least) {
                    return Err(refuse("it does not have the latest commits".into()));
                }
                Ok(())
            })
        })
        .connect_lazy_with(options)
}

impl PostgresState {
    fn halted(&self) -> Option<String> {
        match &*self.gate.borrow() {
            ReadGate::Halted(reason) => Some(reason.clone()),
            ReadGate::Open | ReadGate::Doubt => None,
        }
    }

    /// Nothing is read or written.
    fn halt(&self, reason: &str) -> String {
        tracing::error!("{reason}");
        self.gate.send_replace(ReadGate::Halted(reason.to_owned()));
        reason.to_owned()
    }

    fn doubt(&self) {
        self.turn(&ReadGate::Doubt);
    }

    fn open(&self) {
        self.turn(&ReadGate::Open);
    }

    fn turn(&self, to: &ReadGate) {
        self.gate.send_modify(|gate| {
            if !matches!(gate, ReadGate::Halted(_)) {
                gate.clone_from(to);
            }
        });
    }

    fn pool(&self) -> PgPool {
        self.pool.lock().clone()
    }

    /// Drops every connection that reads.
    fn renew_pool(&self) {
        let new = pool(
            &self.server,
            &self.id,
            &self.acknowledged,
            self.readers,
            self.patience,
        );
        let mut pool = self.pool.lock();
        let old = std::mem::replace(&mut *pool, new);
        drop(pool);
        tokio::spawn(async move { old.close().await });
    }

    /// Waits until no outcome is open.
    ///
    /// # Errors
    /// Why nothing may be read.
    async fn settled(&self) -> Result<(), String> {
        let mut gate = self.gate.subscribe();
        match gate
            .wait_for(|gate| *gate != ReadGate::Doubt)
            .await
            .as_deref()
        {
            Ok(ReadGate::Halted(reason)) => Err(reason.clone()),
            Ok(ReadGate::Open | ReadGate::Doubt) => Ok(()),
            Err(_) => Err("the store is closed".into()),
        }
    }

    /// Reads, again and again while it is the connection that fails.
    async fn read(&self, question: &RowQuery) -> Result<Vec<(Key, Row)>, ReadError> {
        let until = Instant::now() + self.patience;
        let mut problem = "the outcome of a commit is not known yet".to_owned();
        let read = async {
            loop {
                if let Err(reason) = self.settled().await {
                    return Err(ReadError(reason));
                }
                let failed = match self.pool().acquire().await {
                    Ok(mut connection) => match question.ask(&mut connection).await {
                        Ok(found) => return Ok(found),
                        Err(error) => {
                            PoolConnection::<Postgres>::close_on_drop(&mut connection);
                            error
                        }
                    },
                    Err(error) => error,
                };
                problem = server::describe(&failed);
                let lasting = matches!(
                    server::effect(&failed),
                    StatementEffect::Unfit | StatementEffect::None
                );
                if lasting || Instant::now() + PAUSE >= until {
                    return Err(ReadError(std::mem::take(&mut problem)));
                }
                sleep(PAUSE).await;
            }
        };
        match timeout_at(until, read).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ReadError(problem)),
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let too_long = |write: &super::RowWrite| write.key.bytes.len() > MAX_KEY;
        if batch.writes().iter().any(too_long) || group::size(&batch) > MAX_BATCH {
            return Err(CommitError::Unavailable(format!(
                "a batch cannot be stored: it is larger than {MAX_BATCH} bytes, or has a key of \
                 more than {MAX_KEY}"
            )));
        }
        let (reply, mut answer) = oneshot::channel();
        let gone = || CommitError::Unavailable("the writer has stopped".into());
        let waiting = Arc::new(Mutex::new(Some(batch)));
        let job = CommitJob {
            batch: Arc::clone(&waiting),
            reply,
        };
        self.jobs.send(job).map_err(|_| gone())?;
        match timeout(self.shared.patience, &mut answer).await {
            Ok(answer) => answer.map_err(|_| gone())?,
            // Nobody has begun with it: it will not happen.
            Err(_) if group::take(&waiting).is_some() => Err(CommitError::Unavailable(
                "PostgreSQL cannot be reached, or is too busy".into(),
            )),
            // Now the writer sees to it that this ends.
            Err(_) => answer.await.map_err(|_| gone())?,
        }
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        let mut found = self.shared.read(&RowQuery::Some(vec![key.clone()])).await?;
        Ok(found.pop().map(|(_, row)| row))
    }

    async fn get_all(&self, keys: &[Key]) -> Result<RowMap, ReadError> {
        if keys.is_empty() {
            return Ok(RowMap::new());
        }
        let found = self.shared.read(&RowQuery::Some(keys.to_vec())).await?;
        Ok(found.into_iter().collect())
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        self.shared.read(&RowQuery::page(scan)).await
    }

    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, ReadError> {
        let shared = &self.shared;
        let take = async {
            shared.settled().await.map_err(ReadError)?;
            let least = shared.acknowledged.load(Ordering::SeqCst);
            match FrozenState::take(&shared.server, &shared.id, least).await {
                Ok(frozen) => Ok(Arc::new(frozen) as Arc<dyn Snapshot>),
                Err(trouble) => Err(ReadError(trouble.text)),
            }
        };
        match timeout(shared.patience, take).await {
            Ok(taken) => taken,
            Err(_) => Err(ReadError("PostgreSQL does not answer".into())),
        }
    }

    fn exclusive(&self) -> bool {
        self.shared.alone
    }
}

#[cfg(test)]
#[path = "postgres_tests.rs"]
mod tests;
