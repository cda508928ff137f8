//! The bus over Redis Streams.
//!
//! One stream per recipient, `covault:{namespace}:inbox:<id>`, and one for announcements; why,
//! is in `docs/decisions/0001-inbox-streams.md`. A writer task drains its queue into one
//! pipeline; a reader blocks in one XREAD on its own connection and trims behind itself. Every
//! key expires an hour after its last message, or up to a minute earlier.
//!
//! An identity has one reader at a time: a second one would miss what the first has trimmed. So
//! every process has an identity of its own.
//!
//! Who cannot read announces nothing: a node that is announced and deaf would be chosen to sign, and would not.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use covault_core::{backoff::Backoff, order::NodeId};
use redis::{RedisError, RedisResult, aio::MultiplexedConnection};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, sleep, timeout},
};

mod writer;

use self::writer::RedisWriter;
use super::{
    Bus, BusAddress, BusError, MAX_MESSAGE, QUEUE, QUEUE_BYTES, Subscription, SubscriptionSender,
    servers::{RedisServers, RedisTls},
};

/// How long a read blocks in Redis.
const BLOCK: Duration = Duration::from_secs(1);
/// The client's own default of 500 ms would end every blocking read.
const READ_TIMEOUT: Duration = Duration::from_secs(4);
const WRITE_TIMEOUT: Duration = Duration::from_secs(4);
/// Entries read at once, of each stream: with the largest messages 64 MiB.
const READ_COUNT: usize = 16;
/// Reads of one entry that may take too long before it is given up.
const MAX_SLOW_READS: u32 = 3;
/// The pauses before Redis is tried again.
const RETRIES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
/// Nothing is left of a stream so long after its last message.
const EXPIRE: Duration = Duration::from_secs(3600);
/// Ids of entries are milliseconds since the Unix epoch. From here on, the year 3000, one is no time: someone wrote it, so
/// that the stream has no id left for others.
const NO_TIME_MS: u64 = 32_503_680_000_000;
/// Different reasons for a failure that are logged before it works again.
const MAX_REASONS: usize = 8;

/// A bus over one Redis server at a time.
pub struct RedisBus {
    servers: RedisServers,
    prefix: String,
    queue: mpsc::Sender<QueuedMessage>,
    /// Room for what waits to be sent, in bytes.
    room: Arc<Semaphore>,
    reachable: Arc<AtomicBool>,
    /// Subscriptions that cannot be read now.
    deaf: Arc<AtomicUsize>,
}

struct QueuedMessage {
    to: BusAddress,
    message: Vec<u8>,
    queued: Instant,
    _room: OwnedSemaphorePermit,
}

impl RedisBus {
    /// A bus at `url` (`redis://[user:password@]host:port[/db]`, or with Redis Sentinel
    /// `redis-sentinel://[user:password@]host[:port][,host[:port]...]/name[/db]`). Clusters that
    /// share a server have different namespaces. Connects in the background, and again whenever the
    /// connection is lost. Call it within a tokio runtime.
    ///
    /// # Errors
    /// [`BusError::Unreachable`] when the URL is malformed.
    pub fn connect(url: &str, namespace: &str) -> Result<Arc<Self>, BusError> {
        Self::connect_for(url, namespace, EXPIRE)
    }

    /// As [`RedisBus::connect`]; over TLS where the URL begins with `rediss://` or `rediss-sentinel://`.
    ///
    /// # Errors
    /// As [`RedisBus::connect`]; when the certificates cannot be used, or are for a URL without TLS.
    pub fn connect_with(url: &str, namespace: &str, tls: &RedisTls) -> Result<Arc<Self>, BusError> {
        Ok(Self::over(RedisServers::of(url, tls)?, namespace, EXPIRE))
    }

    /// As [`RedisBus::connect`]; keys expire `expire` (whole seconds) after their last message.
    ///
    /// # Errors
    /// As [`RedisBus::connect`].
    pub fn connect_for(
        url: &str,
        namespace: &str,
        expire: Duration,
    ) -> Result<Arc<Self>, BusError> {
        let servers = RedisServers::of(url, &RedisTls::default())?;
        Ok(Self::over(servers, namespace, expire))
    }

    fn over(servers: RedisServers, namespace: &str, expire: Duration) -> Arc<Self> {
        let (queue, outgoing) = mpsc::channel(QUEUE);
        let bus = Arc::new(Self {
            servers: servers.clone(),
            prefix: format!("covault:{{{namespace}}}"),
            queue,
            room: Arc::new(Semaphore::new(QUEUE_BYTES)),
            reachable: Arc::new(AtomicBool::new(false)),
            deaf: Arc::default(),
        });
        let writer = RedisWriter {
            servers,
            prefix: bus.prefix.clone(),
            expire,
            reachable: Arc::clone(&bus.reachable),
            connection: None,
            expiring: HashMap::new(),
            reasons: SaidReasons::default(),
        };
        tokio::spawn(writer.run(outgoing));
        bus
    }
}

fn key(prefix: &str, address: BusAddress) -> String {
    match address {
        BusAddress::Inbox(id) => format!("{prefix}:inbox:{}", hex::encode(id.0)),
        BusAddress::Announcements => format!("{prefix}:announcements"),
    }
}

#[async_trait]
impl Bus for RedisBus {
    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        if message.len() > MAX_MESSAGE {
            return Err(BusError::Refused("too large"));
        }
        if to == BusAddress::Announcements && self.deaf.load(Ordering::Relaxed) > 0 {
            // The next one is a second away.
            return Ok(());
        }
        let size = u32::try_from(message.len()).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room)
            .try_acquire_many_owned(size)
            .map_err(|_| BusError::Full("too many queued bytes"))?;
        self.queue
            .try_send(QueuedMessage {
                to,
                message,
                queued: Instant::now(),
                _room: room,
            })
            .map_err(|_| BusError::Full("too many queued messages"))
    }

    async fn subscribe(&self, me: NodeId, announcements: bool) -> Result<Subscription, BusError> {
        let (sender, subscription) = Subscription::channel();
        let mut streams = vec![StreamCursor::new(
            key(&self.prefix, BusAddress::Inbox(me)),
            true,
        )];
        if announcements {
            streams.push(StreamCursor::new(
                key(&self.prefix, BusAddress::Announcements),
                false,
            ));
        }
        let mut reader = RedisReader {
            servers: self.servers.clone(),
            reachable: Arc::clone(&self.reachable),
            streams,
            sender,
            count: READ_COUNT,
            slow: 0,
            hearing: SubscriptionState::new(Arc::clone(&self.deaf)),
            reasons: SaidReasons::default(),
        };
        // The position is taken before this returns, so that nothing sent from now on is missed;
        // with Redis away, there is nothing to miss.
        let connection = timeout(READ_TIMEOUT, reader.connect_and_read())
            .await
            .ok()
            .and_then(Result::ok);
        tokio::spawn(reader.run(connection));
        Ok(subscription)
    }

    fn reachable(&self) -> bool {
        self.reachable.load(Ordering::Relaxed) && self.deaf.load(Ordering::Relaxed) == 0
    }
}

/// The reasons of failures, each of which is said once until it works again.
#[derive(Default)]
struct SaidReasons(Vec<String>);

impl SaidReasons {
    fn is_new(&mut self, error: &RedisError) -> bool {
        let reason = error.to_string();
        if self.0.len() >= MAX_REASONS || self.0.contains(&reason) {
            return false;
        }
        self.0.push(reason);
        true
    }

    /// It works; whether anything was said since it last did.
    fn clear(&mut self) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }
}

/// Whether one subscription can be read. It cannot before it was.
struct SubscriptionState {
    deaf: Arc<AtomicUsize>,
    hears: bool,
}

impl SubscriptionState {
    fn new(deaf: Arc<AtomicUsize>) -> Self {
        deaf.fetch_add(1, Ordering::Relaxed);
        Self { deaf, hears: false }
    }

    fn set(&mut self, hears: bool) {
        match (self.hears, hears) {
            (false, true) => self.deaf.fetch_sub(1, Ordering::Relaxed),
            (true, false) => self.deaf.fetch_add(1, Ordering::Relaxed),
            _ => return,
        };
        self.hears = hears;
    }
}

impl Drop for SubscriptionState {
    fn drop(&mut self) {
        // What nobody reads blocks nothing.
        self.set(true);
    }
}

/// A position in a stream: the id of the last entry read, as (milliseconds, sequence).
struct StreamCursor {
    key: String,
    /// Only we read it, so we may remove what we have read.
    own: bool,
    last: Option<(u64, u64)>,
    trimmed: Option<(u64, u64)>,
}

impl StreamCursor {
    fn new(key: String, own: bool) -> Self {
        Self {
            key,
            own,
            last: None,
            trimmed: None,
        }
    }
}

struct RedisReader {
    servers: RedisServers,
    reachable: Arc<AtomicBool>,
    streams: Vec<StreamCursor>,
    sender: SubscriptionSender,
    /// Entries to ask for at once, of each stream.
    count: usize,
    /// Reads in a row that did not arrive in time.
    slow: u32,
    hearing: SubscriptionState,
    reasons: SaidReasons,
}

type StreamEntry = (String, Vec<Vec<u8>>);
type StreamReply = Vec<(String, Vec<StreamEntry>)>;

impl RedisReader {
    async fn run(mut self, mut connection: Option<MultiplexedConnection>) {
        let mut failures = 0;
        while !self.sender.is_closed() {
            let outcome = match &mut connection {
                Some(connection) => self.read(connection, Some(BLOCK)).await,
                empty => match self.connect_and_read().await {
                    Ok(fresh) => {
                        *empty = Some(fresh);
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
            };
            match outcome {
                Ok(()) => {
                    self.reachable.store(true, Ordering::Relaxed);
                    if self.reasons.clear() {
                        tracing::info!("redis: messages can be read again");
                    }
                    failures = 0;
                }
                Err(error) => {
                    self.reachable.store(false, Ordering::Relaxed);
                    self.hearing.set(false);
                    if self.reasons.is_new(&error) {
                        tracing::warn!(server = self.servers.place(), %error, "redis: read failed; nothing is announced until it succeeds; retrying");
                    }
                    connection = None;
                    sleep(RETRIES.pause(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    /// A connection that was read from: who may write and not read finds out here.
    async fn connect_and_read(&mut self) -> RedisResult<MultiplexedConnection> {
        let mut connection = self.connect().await?;
        self.read(&mut connection, None).await?;
        Ok(connection)
    }

    /// A connection, with every cursor at a place that the server knows: the end when we have
    /// not read before; the beginning when the server has lost what we had read, or its clock
    /// went back.
    async fn connect(&mut self) -> RedisResult<MultiplexedConnection> {
        let mut connection = self.servers.open(READ_TIMEOUT).await?;
        if self.slow >= MAX_SLOW_READS {
            // One entry alone does not come through. What waits is given up, not the node.
            let (seconds, micros): (u64, u64) =
                redis::cmd("TIME").query_async(&mut connection).await?;
            let now_ms = seconds.saturating_mul(1000).saturating_add(micros / 1000);
            for cursor in &mut self.streams {
                cursor.last = Some((now_ms, 0));
            }
            self.slow = 0;
            tracing::error!(
                "redis: an entry is too large to read in time; skipping all queued entries"
            );
            return Ok(connection);
        }
        for cursor in &mut self.streams {
            let newest: Vec<StreamEntry> = redis::cmd("XREVRANGE")
                .arg(&cursor.key)
                .arg("+")
                .arg("-")
                .arg("COUNT")
                .arg(1)
                .query_async(&mut connection)
                .await?;
            let newest = newest
                .first()
                .and_then(|(id, _)| parse_id(id))
                .unwrap_or((0, 0));
            cursor.last = Some(match cursor.last {
                None => newest,
                Some(last) if newest < last => (0, 0),
                Some(last) => last,
            });
        }
        self.remove_ended(&mut connection).await?;
        Ok(connection)
    }

    /// Removes streams that can have no more entries: they begin again. That loses what is in them, which others send again.
    async fn remove_ended(&mut self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        for cursor in &mut self.streams {
            if cursor.last.is_none_or(|(time_ms, _)| time_ms < NO_TIME_MS) {
                continue;
            }
            tracing::warn!(
                stream = cursor.key,
                "redis: an entry with the highest possible id was written; restarting the stream"
            );
            // Users of signers may not delete.
            redis::cmd("EXPIRE")
                .arg(&cursor.key)
                .arg(0)
                .exec_async(connection)
                .await?;
            (cursor.last, cursor.trimmed) = (Some((0, 0)), None);
        }
        Ok(())
    }

    /// Reads what there is, waiting so long for it.
    async fn read(
        &mut self,
        connection: &mut MultiplexedConnection,
        block: Option<Duration>,
    ) -> RedisResult<()> {
        let mut pipe = redis::pipe();
        for cursor in &mut self.streams {
            if cursor.own && cursor.trimmed != cursor.last {
                cursor.trimmed = cursor.last;
                if let Some((time, sequence)) = cursor.last {
                    let keep = format!("{time}-{}", sequence.saturating_add(1));
                    pipe.cmd("XTRIM")
                        .arg(&cursor.key)
                        .arg("MINID")
                        .arg(keep)
                        .ignore();
                }
            }
        }
        let read = pipe.cmd("XREAD").arg("COUNT").arg(self.count);
        if let Some(block) = block {
            let block_ms = u64::try_from(block.as_millis()).unwrap_or(1000);
            read.arg("BLOCK").arg(block_ms);
        }
        read.arg("STREAMS");
        for cursor in &self.streams {
            read.arg(&cursor.key);
        }
        for cursor in &self.streams {
            let (time, sequence) = cursor.last.unwrap_or_default();
            read.arg(format!("{time}-{sequence}"));
        }
        let answered: RedisResult<(Option<StreamReply>,)> = pipe.query_async(connection).await;
        if answered.as_ref().is_err_and(RedisError::is_timeout) {
            // Perhaps it was too much at once.
            self.slow = self.slow.saturating_add(u32::from(self.count == 1));
            self.count = 1;
        }
        let (streams,) = answered?;
        self.count = self.count.saturating_mul(2).min(READ_COUNT);
        self.slow = 0;
        self.hearing.set(true);
        for (key, entries) in streams.unwrap_or_default() {
            let Some(cursor) = self.streams.iter_mut().find(|cursor| cursor.key == key) else {
                continue;
            };
            for (id, mut fields) in entries {
                if let Some(id) = parse_id(&id) {
                    cursor.last = Some(id);
                }
                // One field, "m", and its value.
                let Some(message) = fields.pop() else {
                    continue;
                };
                if !self.sender.feed(message).await {
                    return Ok(());
                }
            }
        }
        self.remove_ended(connection).await
    }
}

fn parse_id(id: &str) -> Option<(u64, u64)> {
    let (time, sequence) = id.split_once('-')?;
    Some((time.parse().ok()?, sequence.parse().ok()?))
}

#[cfg(test)]
#[path = "../../tests/support/redis_server.rs"]
mod redis_server;

#[cfg(test)]
#[allow(non_snake_case)]
mod tests;
