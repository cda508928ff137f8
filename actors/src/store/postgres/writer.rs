//! The one task that writes, on one connection: it takes what waits as one transaction.
//!
//! A commit whose answer is lost is settled before anything else happens: its number is looked up
//! in the database, or given up there, so that it cannot happen later. Until then nothing is read:
//! who was told that the outcome is not known finds it settled when it looks.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use covault_core::backoff::Backoff;
use sqlx::PgConnection;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    PostgresState,
    group::{CommitGroup, CommitJob},
    server::{self, ServerProblem, StatementEffect},
    transaction::{self, LostCommit, TransactionFailure},
    written_rows::WrittenRows,
};

/// The pauses before something that failed is tried again.
const RETRIES: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

pub(super) struct PostgresWriter {
    pub(super) shared: Arc<PostgresState>,
    pub(super) queue: mpsc::UnboundedReceiver<CommitJob>,
    pub(super) waiting: VecDeque<CommitJob>,
    pub(super) connection: Option<PgConnection>,
    /// The number of the last commit of which everything is known.
    pub(super) number: i64,
    /// What the next commit guesses by.
    pub(super) written: WrittenRows,
}

impl PostgresWriter {
    /// Writes until nobody can ask.
    pub(super) async fn run(mut self) {
        while self.some_wait().await {
            if self.shared.halted().is_some() {
                self.refuse_all();
            } else if self.connection.is_some() || self.reconnect().await {
                let group = CommitGroup::take(&mut self.waiting);
                if let Some(group) = group {
                    self.commit(group).await;
                }
            }
        }
        if let Some(connection) = self.connection {
            server::close(connection).await;
        }
    }

    /// Waits for a batch and takes all that wait; false when there will be none.
    async fn some_wait(&mut self) -> bool {
        if self.waiting.is_empty() {
            match self.queue.recv().await {
                Some(job) => self.waiting.push_back(job),
                None => return false,
            }
        }
        self.collect();
        true
    }

    fn collect(&mut self) {
        while let Ok(job) = self.queue.try_recv() {
            self.waiting.push_back(job);
        }
    }

    fn refuse_all(&mut self) {
        self.collect();
        let reason = self.shared.halted().unwrap_or_default();
        while let Some(group) = CommitGroup::take(&mut self.waiting) {
            group.fail(&reason);
        }
    }

    /// Reconnects while callers wait.
    async fn reconnect(&mut self) -> bool {
        let mut tries = 0;
        loop {
            match self.connect().await {
                Ok(_) => return true,
                Err(trouble) => tracing::warn!(trouble.text, "PostgreSQL cannot be used now"),
            }
            self.collect();
            self.waiting.retain(CommitJob::wanted);
            if self.waiting.is_empty() || self.shared.halted().is_some() {
                return false;
            }
            sleep(RETRIES.pause(tries)).await;
            tries += 1;
        }
    }

    /// Connects, and settles the commit with the next number, if there was one: true when it happened.
    /// No commit before it can happen after this.
    async fn connect(&mut self) -> Result<bool, ServerProblem> {
        let shared = Arc::clone(&self.shared);
        let mut connection = shared.server.connect(&shared.name).await?;
        let (settled, number) = timeout(shared.patience / 2, async {
            server::end_others(&mut connection, &shared.name).await?;
            server::join(&mut connection, shared.alone).await?;
            let settled = transaction::settle(&mut connection, &shared.id, self.number + 1).await?;
            Ok::<_, ServerProblem>(settled)
        })
        .await
        .map_err(|_| ServerProblem::passing("it does not answer"))??;
        match settled {
            LostCommit::Taken | LostCommit::GivenUp => {}
            LostCommit::Behind => {
                return Err(ServerProblem::passing(shared.halt(
                    "PostgreSQL has lost commits that it had confirmed: it was put back to an \
                     older state, or a standby without them became the primary. The store is \
                     halted; see \"When commits were lost\" in docs/postgresql.md",
                )));
            }
            LostCommit::Replaced => {
                return Err(ServerProblem::passing(shared.halt(
                    "another orchestrator has taken over this database, or it was put back to an \
                     older state: this process no longer reads or writes; stop it",
                )));
            }
        }
        self.note(number);
        self.written.clear();
        self.connection = Some(connection);
        // Sessions for reading may lead to a server that is the primary no more.
        shared.renew_pool();
        tracing::info!("connected to PostgreSQL again");
        Ok(settled == LostCommit::Taken)
    }

    fn note(&mut self, number: i64) {
        self.number = number;
        self.shared.acknowledged.store(number, Ordering::SeqCst);
    }

    /// Commits a group, and tells everyone in it.
    async fn commit(&mut self, group: CommitGroup) {
        self.commit_by(group, Instant::now() + self.shared.patience)
            .await;
    }

    async fn commit_by(&mut self, mut group: CommitGroup, until: Instant) {
        let mut tries = 0;
        loop {
            let Err(TransactionFailure { effect, text }) = self.attempt(&mut group).await else {
                return group.answer();
            };
            match effect {
                StatementEffect::Again => {}
                StatementEffect::Unfit if group.len() > 1 => {
                    // One of them cannot be stored: the others need not suffer for it.
                    for alone in group.split() {
                        if self.connection.is_some() && Instant::now() < until {
                            Box::pin(self.commit_by(alone, until)).await;
                        } else {
                            alone.fail("lost the connection to PostgreSQL, or it is too busy");
                        }
                    }
                    return;
                }
                StatementEffect::Unfit | StatementEffect::None => {
                    tracing::error!(text, batches = group.len(), "PostgreSQL refused to write");
                    return group.fail(&text);
                }
                StatementEffect::Unknown => {
                    tracing::warn!(text, "the answer to a commit was lost");
                    match self.settle(group, until).await {
                        Some(never) => group = never,
                        None => return,
                    }
                }
            }
            if Instant::now() + RETRIES.pause(tries) >= until {
                tracing::error!(text, batches = group.len(), "PostgreSQL accepts no commits");
                return group.fail(&text);
            }
            sleep(RETRIES.pause(tries)).await;
            tries += 1;
        }
    }

    async fn attempt(&mut self, group: &mut CommitGroup) -> Result<(), TransactionFailure> {
        let unknown = |text: &str| TransactionFailure {
            effect: StatementEffect::Unknown,
            text: text.into(),
        };
        let connection = self.connection.as_mut();
        let connection = connection.ok_or_else(|| unknown("there is no connection"))?;
        let next = self.number + 1;
        let commit =
            transaction::commit(connection, &self.shared.id, next, group, &mut self.written);
        let done = timeout(self.shared.patience / 2, commit).await;
        done.map_err(|_| unknown("it does not answer"))??;
        self.note(next);
        Ok(())
    }

    /// Finds out the outcome of a commit whose answer was lost, however long that takes. Gives the
    /// group back when it did not happen, and never will; tells it when it did, or when it is not
    /// known by `until`.
    async fn settle(&mut self, group: CommitGroup, until: Instant) -> Option<CommitGroup> {
        self.shared.doubt();
        self.connection = None;
        let mut group = Some(group);
        let mut tries = 0;
        loop {
            let limit = match group {
                Some(_) => until,
                None => Instant::now() + self.shared.patience,
            };
            let found = timeout_at(limit, self.connect()).await;
            match found.unwrap_or_else(|_| Err(ServerProblem::passing("it does not answer"))) {
                Ok(taken) => {
                    self.shared.open();
                    if taken && let Some(group) = group.take() {
                        group.answer();
                    }
                    return group;
                }
                Err(trouble) => tracing::warn!(trouble.text, "PostgreSQL cannot be used now"),
            }
            let over = match self.shared.halted() {
                Some(reason) => Some(reason),
                None if Instant::now() >= until => Some(
                    "PostgreSQL became unreachable during the commit, and did not recover in time"
                        .into(),
                ),
                None => None,
            };
            if let Some(reason) = over
                && let Some(group) = group.take()
            {
                group.fail(&reason);
            }
            // Nobody is left who could read before it is settled.
            let nobody = group.is_none() && self.queue.is_closed();
            if nobody || self.shared.halted().is_some() {
                return None;
            }
            sleep(RETRIES.pause(tries)).await;
            tries += 1;
        }
    }
}
