//! What writes to the bus over Redis: batches, each in one pipeline.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{RedisError, RedisResult, aio::MultiplexedConnection};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use crate::meter;

use super::{BusAddress, QueuedMessage, RETRIES, RedisServers, SaidReasons, WRITE_TIMEOUT, key};

/// A message that could not be sent for so long is dropped: its session is over.
pub(super) const STALE: Duration = Duration::from_secs(30);
/// The expiry of a stream is put off so often while it has it.
const EXPIRE_PARTS: u32 = 60;
/// Streams whose expiry is remembered.
const MAX_EXPIRING: usize = 4096;
/// Entries an unread stream holds at most, about.
const MAX_INBOX: usize = 8192;
const MAX_ANNOUNCEMENTS: usize = 512;
/// What goes into one pipeline at most.
const BATCH_MESSAGES: usize = 512;
const BATCH_BYTES: usize = 4 << 20;

/// The task that writes: see the module above.
pub(super) struct RedisWriter {
    pub servers: RedisServers,
    pub prefix: String,
    pub expire: Duration,
    pub reachable: Arc<AtomicBool>,
    pub connection: Option<MultiplexedConnection>,
    /// When the expiry of a stream was last put off, over this connection.
    pub expiring: HashMap<BusAddress, Instant>,
    pub reasons: SaidReasons,
}

impl RedisWriter {
    pub(super) async fn run(mut self, mut queue: mpsc::Receiver<QueuedMessage>) {
        while let Some(first) = queue.recv().await {
            let mut bytes = first.message.len();
            let mut batch = vec![first];
            while bytes < BATCH_BYTES && batch.len() < BATCH_MESSAGES {
                let Ok(next) = queue.try_recv() else { break };
                bytes += next.message.len();
                batch.push(next);
            }
            self.deliver(batch).await;
        }
    }

    /// Sends a batch, however long it takes. What was sent when the connection broke is sent again:
    /// receivers drop duplicates. What is for a stream that takes nothing must not hold up the rest.
    async fn deliver(&mut self, batch: Vec<QueuedMessage>) {
        let mut batches = vec![batch];
        while let Some(batch) = batches.pop() {
            let Some((refused, error)) = self.deliver_whole(batch).await else {
                continue;
            };
            let Some(to) = refused.first().map(|message| message.to) else {
                continue;
            };
            let (of_one, others): (Vec<_>, Vec<_>) =
                refused.into_iter().partition(|message| message.to == to);
            if others.is_empty() {
                let stream = key(&self.prefix, to);
                tracing::warn!(stream, messages = of_one.len(), %error, "redis: a stream accepts no messages; \
                    dropping them");
            } else {
                batches.extend([others, of_one]);
            }
        }
    }

    /// Sends a batch. `Some`: what was not taken, and a stream of it takes nothing.
    async fn deliver_whole(
        &mut self,
        mut batch: Vec<QueuedMessage>,
    ) -> Option<(Vec<QueuedMessage>, RedisError)> {
        let mut failures = 0;
        loop {
            batch.retain(|message| message.queued.elapsed() < STALE);
            if batch.is_empty() {
                return None;
            }
            // Connecting takes longer, and says nothing of what each message waits for.
            let begun = self.connection.is_some().then(Instant::now);
            match self.attempt(&mut batch).await {
                Ok(()) => {
                    if let Some(begun) = begun {
                        meter::bus_written(begun.elapsed());
                    }
                    self.reachable.store(true, Ordering::Relaxed);
                    if self.reasons.clear() {
                        tracing::info!("redis: the stream accepts messages again");
                    }
                    return None;
                }
                // A server that can do nothing now says so in other codes.
                Err(error) if matches!(error.code(), Some("ERR" | "WRONGTYPE")) => {
                    return Some((batch, error));
                }
                Err(error) => {
                    self.reachable.store(false, Ordering::Relaxed);
                    if self.reasons.is_new(&error) {
                        tracing::warn!(server = self.servers.place(), %error, "redis: publish failed; retrying");
                    }
                    self.connection = None;
                    sleep(RETRIES.pause(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    /// Sends once. What is left in the batch was not taken: a message is not sent again because of others.
    async fn attempt(&mut self, batch: &mut Vec<QueuedMessage>) -> RedisResult<()> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            empty => {
                // Another server may not have the streams.
                self.expiring.clear();
                empty.insert(self.servers.open(WRITE_TIMEOUT).await?)
            }
        };
        // A clone is the same connection.
        let mut connection = connection.clone();
        let due = self.expire / EXPIRE_PARTS;
        let expires = |to: &BusAddress| {
            let put_off = self.expiring.get(to);
            put_off.is_some_and(|at| at.elapsed() < due)
        };
        if batch.iter().all(|message| expires(&message.to)) {
            self.add_to_existing(&mut connection, batch).await?;
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.add_expiring(&mut connection, batch).await
    }

    /// Adds messages, each to a stream that is there; left in the batch are those for which there was none.
    async fn add_to_existing(
        &self,
        connection: &mut MultiplexedConnection,
        batch: &mut Vec<QueuedMessage>,
    ) -> RedisResult<()> {
        let mut pipe = redis::pipe();
        pipe.ignore_errors();
        for QueuedMessage { to, message, .. } in batch.iter() {
            // A stream that is made here would never expire.
            let add = pipe.cmd("XADD").arg(key(&self.prefix, *to));
            finish_add(add.arg("NOMKSTREAM"), *to, message);
        }
        remove_added(batch, pipe.query_async(connection).await?)
    }

    /// Adds messages, and puts off the expiry of their streams.
    async fn add_expiring(
        &mut self,
        connection: &mut MultiplexedConnection,
        batch: &mut Vec<QueuedMessage>,
    ) -> RedisResult<()> {
        let mut pipe = redis::pipe();
        // Or a connection that breaks in between would leave a key that never expires.
        pipe.atomic().ignore_errors();
        let mut streams: Vec<BusAddress> = Vec::new();
        for QueuedMessage { to, message, .. } in batch.iter() {
            if !streams.contains(to) {
                streams.push(*to);
            }
            finish_add(pipe.cmd("XADD").arg(key(&self.prefix, *to)), *to, message);
        }
        for to in &streams {
            pipe.cmd("EXPIRE")
                .arg(key(&self.prefix, *to))
                .arg(self.expire.as_secs())
                .ignore();
        }
        remove_added(batch, pipe.query_async(connection).await?)?;
        if self.expiring.len() >= MAX_EXPIRING {
            self.expiring.clear();
        }
        let now = Instant::now();
        self.expiring
            .extend(streams.into_iter().map(|to| (to, now)));
        Ok(())
    }
}

/// Takes out of the batch what was added to its stream, as each result says. The first error.
fn remove_added(
    batch: &mut Vec<QueuedMessage>,
    results: Vec<RedisResult<Option<String>>>,
) -> RedisResult<()> {
    let mut added = results.iter().map(|result| matches!(result, Ok(Some(_))));
    batch.retain(|_| !added.next().unwrap_or_default());
    results.into_iter().try_for_each(|result| result.map(drop))
}

/// The rest of an XADD behind its key.
fn finish_add(command: &mut redis::Pipeline, to: BusAddress, message: &[u8]) {
    let limit = match to {
        BusAddress::Inbox(_) => MAX_INBOX,
        BusAddress::Announcements => MAX_ANNOUNCEMENTS,
    };
    command
        .arg("MAXLEN")
        .arg("~")
        .arg(limit)
        .arg("*")
        .arg("m")
        .arg(message);
}
