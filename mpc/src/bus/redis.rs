//! The bus over Redis Streams.
//!
//! One stream per recipient, `covault:{namespace}:inbox:<id>`, and one for announcements; why,
//! is in `docs/decisions/0001-inbox-streams.md`. A writer task drains its queue into one
//! pipeline; a reader blocks in one XREAD on its own connection and trims behind itself. Every
//! key expires an hour after its last message.
//!
//! An identity has one reader at a time: a second one would miss what the first has trimmed. So
//! every process has an identity of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
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

use super::{
    Bus, BusAddress, BusError, MAX_MESSAGE, QUEUE, QUEUE_BYTES, Subscription, SubscriptionSender,
    servers::RedisServers,
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
/// A message that could not be sent for so long is dropped: its session is over.
const STALE: Duration = Duration::from_secs(30);
/// Nothing is left of a stream so long after its last message.
const EXPIRE: Duration = Duration::from_secs(3600);
/// Entries an unread stream holds at most, about.
const MAX_INBOX: usize = 8192;
const MAX_ANNOUNCEMENTS: usize = 512;
/// Ids of entries are milliseconds since the Unix epoch. From here on, the year 3000, one is no time: somebody wrote it, so
/// that the stream has no id left for others.
const NO_TIME_MS: u64 = 32_503_680_000_000;
/// What goes into one pipeline at most.
const BATCH_MESSAGES: usize = 512;
const BATCH_BYTES: usize = 4 << 20;

/// A bus over one Redis server at a time.
pub struct RedisBus {
    servers: RedisServers,
    prefix: String,
    queue: mpsc::Sender<QueuedMessage>,
    /// Room for what waits to be sent, in bytes.
    room: Arc<Semaphore>,
    reachable: Arc<AtomicBool>,
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

    /// As [`RedisBus::connect`]; keys expire `expire` (whole seconds) after their last message.
    ///
    /// # Errors
    /// As [`RedisBus::connect`].
    pub fn connect_for(
        url: &str,
        namespace: &str,
        expire: Duration,
    ) -> Result<Arc<Self>, BusError> {
        let servers = RedisServers::of(url)?;
        let (queue, outgoing) = mpsc::channel(QUEUE);
        let bus = Arc::new(Self {
            servers: servers.clone(),
            prefix: format!("covault:{{{namespace}}}"),
            queue,
            room: Arc::new(Semaphore::new(QUEUE_BYTES)),
            reachable: Arc::new(AtomicBool::new(false)),
        });
        let writer = RedisWriter {
            servers,
            prefix: bus.prefix.clone(),
            expire,
            reachable: Arc::clone(&bus.reachable),
            connection: None,
        };
        tokio::spawn(writer.run(outgoing));
        Ok(bus)
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
        };
        // The position is taken before this returns, so that nothing sent from now on is missed;
        // with Redis away, there is nothing to miss.
        let connection = timeout(READ_TIMEOUT, reader.connect())
            .await
            .ok()
            .and_then(Result::ok);
        tokio::spawn(reader.run(connection));
        Ok(subscription)
    }

    fn reachable(&self) -> bool {
        self.reachable.load(Ordering::Relaxed)
    }
}

struct RedisWriter {
    servers: RedisServers,
    prefix: String,
    expire: Duration,
    reachable: Arc<AtomicBool>,
    connection: Option<MultiplexedConnection>,
}

impl RedisWriter {
    async fn run(mut self, mut queue: mpsc::Receiver<QueuedMessage>) {
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

    /// Sends a batch, however long it takes. What was sent but not acknowledged is sent again:
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
                tracing::warn!(stream, messages = of_one.len(), %error, "redis: a stream takes no messages; they are dropped");
            } else {
                batches.extend([others, of_one]);
            }
        }
    }

    /// Sends a batch. `Some`: a stream of it takes nothing, and which one is not known.
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
            match self.attempt(&batch).await {
                Ok(()) => {
                    self.reachable.store(true, Ordering::Relaxed);
                    return None;
                }
                // A server that can do nothing now says so in other codes.
                Err(error) if matches!(error.code(), Some("ERR" | "WRONGTYPE")) => {
                    return Some((batch, error));
                }
                Err(error) => {
                    self.reachable.store(false, Ordering::Relaxed);
                    if failures == 0 {
                        tracing::warn!(%error, "redis: publish failed; retrying");
                    }
                    self.connection = None;
                    sleep(RETRIES.pause(failures)).await;
                    failures += 1;
                }
            }
        }
    }

    async fn attempt(&mut self, batch: &[QueuedMessage]) -> RedisResult<()> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            empty => empty.insert(self.servers.open(WRITE_TIMEOUT).await?),
        };
        let mut pipe = redis::pipe();
        // Or a connection that breaks in between would leave a key that never expires.
        pipe.atomic();
        let mut keys: Vec<(BusAddress, String)> = Vec::new();
        for QueuedMessage { to, message, .. } in batch {
            let key = match keys.iter().find(|(address, _)| address == to) {
                Some((_, key)) => key.clone(),
                None => {
                    let key = key(&self.prefix, *to);
                    keys.push((*to, key.clone()));
                    key
                }
            };
            let limit = match to {
                BusAddress::Inbox(_) => MAX_INBOX,
                BusAddress::Announcements => MAX_ANNOUNCEMENTS,
            };
            pipe.cmd("XADD")
                .arg(key)
                .arg("MAXLEN")
                .arg("~")
                .arg(limit)
                .arg("*")
                .arg("m")
                .arg(message.as_slice())
                .ignore();
        }
        for (_, key) in keys {
            pipe.cmd("EXPIRE")
                .arg(key)
                .arg(self.expire.as_secs())
                .ignore();
        }
        pipe.exec_async(connection).await
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
}

type StreamEntry = (String, Vec<Vec<u8>>);
type StreamReply = Vec<(String, Vec<StreamEntry>)>;

impl RedisReader {
    async fn run(mut self, mut connection: Option<MultiplexedConnection>) {
        let mut failures = 0;
        while !self.sender.is_closed() {
            let outcome = match &mut connection {
                Some(connection) => self.read(connection).await,
                empty => match self.connect().await {
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
                    failures = 0;
                }
                Err(error) => {
                    self.reachable.store(false, Ordering::Relaxed);
                    if error.is_timeout() && connection.is_some() {
                        // Perhaps it was too much at once.
                        self.slow = self.slow.saturating_add(u32::from(self.count == 1));
                        self.count = 1;
                    }
                    if failures == 0 {
                        tracing::warn!(%error, "redis: read failed; retrying");
                    }
                    connection = None;
                    sleep(RETRIES.pause(failures)).await;
                    failures += 1;
                }
            }
        }
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

    /// Removes streams that can have no more entries: they begin anew. That loses what is in them, which others send again.
    async fn remove_ended(&mut self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        for cursor in &mut self.streams {
            if cursor.last.is_none_or(|(time_ms, _)| time_ms < NO_TIME_MS) {
                continue;
            }
            tracing::warn!(
                stream = cursor.key,
                "redis: somebody wrote an entry after which there can be no other; the stream begins anew"
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

    async fn read(&mut self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
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
        let block = u64::try_from(BLOCK.as_millis()).unwrap_or(1000);
        let read = pipe
            .cmd("XREAD")
            .arg("COUNT")
            .arg(self.count)
            .arg("BLOCK")
            .arg(block)
            .arg("STREAMS");
        for cursor in &self.streams {
            read.arg(&cursor.key);
        }
        for cursor in &self.streams {
            let (time, sequence) = cursor.last.unwrap_or_default();
            read.arg(format!("{time}-{sequence}"));
        }
        let (streams,): (Option<StreamReply>,) = pipe.query_async(connection).await?;
        self.count = self.count.saturating_mul(2).min(READ_COUNT);
        self.slow = 0;
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
mod tests {
    use super::{redis_server::RedisServer, *};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn redis_bus__should_conform() {
        let server = RedisServer::start();
        super::super::conformance::run(|| RedisBus::connect(&server.url(), "one").unwrap()).await;
    }

    async fn until_received(bus: &RedisBus, id: NodeId, inbox: &mut Subscription, text: &[u8]) {
        // What was sent while Redis was away may be lost; what is sent later may not.
        timeout(Duration::from_secs(20), async {
            loop {
                bus.publish(BusAddress::Inbox(id), text.to_vec()).unwrap();
                match timeout(Duration::from_millis(200), inbox.next()).await {
                    Ok(Some(message)) if message == text => return,
                    _ => {}
                }
            }
        })
        .await
        .unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn redis_bus__should_survive_a_restart_that_loses_everything() {
        let mut server = RedisServer::start();
        let bus = RedisBus::connect(&server.url(), "one").unwrap();
        let id = NodeId([7; 32]);
        let mut inbox = bus.subscribe(id, true).await.unwrap();
        until_received(&bus, id, &mut inbox, b"before").await;
        server.restart();
        until_received(&bus, id, &mut inbox, b"after").await;
        assert!(bus.reachable());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn redis_bus__should_wait_for_a_server_that_comes_later() {
        let mut server = RedisServer::start();
        server.stop();
        let bus = RedisBus::connect(&server.url(), "one").unwrap();
        let id = NodeId([7; 32]);
        let mut inbox = bus.subscribe(id, false).await.unwrap();
        assert!(!bus.reachable());
        server.restart();
        until_received(&bus, id, &mut inbox, b"hello").await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn redis_bus__should_trim_behind_the_reader_and_expire_every_key() {
        let server = RedisServer::start();
        let bus = RedisBus::connect(&server.url(), "one").unwrap();
        let id = NodeId([7; 32]);
        let mut inbox = bus.subscribe(id, true).await.unwrap();
        for number in 0..100_u8 {
            bus.publish(BusAddress::Inbox(id), vec![number]).unwrap();
        }
        bus.publish(BusAddress::Announcements, vec![200]).unwrap();
        for _ in 0..101 {
            inbox.next().await.unwrap();
        }
        let mut connection = bus.servers.open(WRITE_TIMEOUT).await.unwrap();
        let key = key(&bus.prefix, BusAddress::Inbox(id));
        timeout(Duration::from_secs(10), async {
            loop {
                let length: usize = redis::cmd("XLEN")
                    .arg(&key)
                    .query_async(&mut connection)
                    .await
                    .unwrap();
                if length == 0 {
                    return;
                }
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .unwrap();
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("*")
            .query_async(&mut connection)
            .await
            .unwrap();
        assert_eq!(keys.len(), 2);
        for key in keys {
            let left: i64 = redis::cmd("TTL")
                .arg(&key)
                .query_async(&mut connection)
                .await
                .unwrap();
            assert!((1..=3600).contains(&left), "{key}: {left}");
        }
    }

    /// Whoever may write to a stream can write the last id that there is.
    async fn end(bus: &RedisBus, address: BusAddress) {
        let mut connection = bus.servers.open(WRITE_TIMEOUT).await.unwrap();
        let last = format!("{}-{}", u64::MAX, u64::MAX);
        redis::cmd("XADD")
            .arg(key(&bus.prefix, address))
            .arg(last)
            .arg("m")
            .arg("x")
            .exec_async(&mut connection)
            .await
            .unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn redis_bus__should_begin_streams_anew_that_have_no_id_left() {
        let server = RedisServer::start();
        let bus = RedisBus::connect(&server.url(), "one").unwrap();
        let id = NodeId([7; 32]);
        let mut inbox = bus.subscribe(id, true).await.unwrap();
        until_received(&bus, id, &mut inbox, b"before").await;
        end(&bus, BusAddress::Inbox(id)).await;
        until_received(&bus, id, &mut inbox, b"after").await;
        end(&bus, BusAddress::Announcements).await;
        timeout(Duration::from_secs(60), async {
            loop {
                bus.publish(BusAddress::Announcements, b"here".to_vec())
                    .unwrap();
                match timeout(Duration::from_millis(200), inbox.next()).await {
                    Ok(Some(message)) if message == b"here" => return,
                    _ => {}
                }
            }
        })
        .await
        .unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn redis_bus__should_deliver_to_others_what_one_stream_takes_nothing_of() {
        let server = RedisServer::start();
        let bus = RedisBus::connect(&server.url(), "one").unwrap();
        // Nobody reads it, and so nobody mends it.
        let ended = NodeId([8; 32]);
        end(&bus, BusAddress::Inbox(ended)).await;
        let id = NodeId([7; 32]);
        let mut inbox = bus.subscribe(id, false).await.unwrap();
        for number in 0..100_u8 {
            bus.publish(BusAddress::Inbox(ended), vec![number]).unwrap();
            bus.publish(BusAddress::Inbox(id), vec![number]).unwrap();
        }
        let mut seen = std::collections::BTreeSet::new();
        timeout(STALE / 2, async {
            while seen.len() < 100 {
                // What was taken beside an error comes again.
                seen.extend(inbox.next().await.unwrap());
            }
        })
        .await
        .unwrap();
        assert!(bus.reachable());
        // Its owner comes.
        let mut inbox = bus.subscribe(ended, false).await.unwrap();
        until_received(&bus, ended, &mut inbox, b"after").await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn redis_bus__should_keep_namespaces_apart() {
        let server = RedisServer::start();
        let one = RedisBus::connect(&server.url(), "one").unwrap();
        let two = RedisBus::connect(&server.url(), "two").unwrap();
        let id = NodeId([7; 32]);
        let mut inbox = two.subscribe(id, true).await.unwrap();
        one.publish(BusAddress::Inbox(id), b"from one".to_vec())
            .unwrap();
        until_received(&two, id, &mut inbox, b"from two").await;
        assert!(
            timeout(Duration::from_millis(300), inbox.next())
                .await
                .is_err()
        );
    }
}
