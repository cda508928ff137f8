//! A signer node.
//!
//! It trusts nobody: an order must be signed by an orchestrator whose key it pins, still be
//! valid, name a share it holds, and show what it asks to sign. Then the node claims what it is
//! about to do, on disk, and only then uses its share.

mod ahead;
mod backups;
mod check;
mod life;
mod orders;
mod peers;
mod sessions;

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use covault_core::{
    derive::{ChildKey, RootKey},
    fault::Fault,
    ids::SessionId,
    order::{NodeId, SigningOrder},
    port::{Clock, Entropy, random_16},
};
use secrecy::SecretString;
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::{
    bus::Bus,
    claims::Claims,
    envelope::{EVERYONE, Envelope, Header, Kind, Post},
    identity::{NodeIdentity, openssh_line},
    message::{Announcement, Reply, encode},
    meter,
    nonces::Marks,
    policy::{Policy, Spending},
    pool::{CpuPool, Lane},
    primes::Primes,
    shares::{ShareStore, age_file::AgeFiles},
};
use ahead::Pools;
use life::Life;
use orders::Keys;
use sessions::Sessions;

/// How often deadlines are looked at.
const REAP: Duration = Duration::from_millis(100);
/// How long an earlier process of the same folder has to let go of it.
const TAKEOVER: Duration = Duration::from_secs(5);

/// Bytes of messages that wait to be verified, at most.
const MAX_UNVERIFIED: usize = 64 << 20;

/// Decides whether what an order shows is what it asks to sign, and may be signed.
pub trait OrderCheck: Send + Sync {
    /// Checks an order for a key that the node holds, and that has this child at the order's path.
    /// What it would let go, to be counted with the claim.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming what does not match or is forbidden.
    fn check(
        &self,
        order: &SigningOrder,
        root: &RootKey,
        child: &ChildKey,
    ) -> Result<Vec<Spending>, Fault>;
}

/// The check of every real node: rebuilds everything from payload and facts
/// ([`SigningOrder::verify`]), then applies the node's own policy.
pub struct Floor(pub Policy);

impl OrderCheck for Floor {
    fn check(
        &self,
        order: &SigningOrder,
        root: &RootKey,
        child: &ChildKey,
    ) -> Result<Vec<Spending>, Fault> {
        let payload = order.verify_child(root, child)?;
        self.0.check(order, &payload)
    }
}

/// Rebuilds everything, and allows whatever is what it says it is: [`Floor`] without a floor, for
/// simulations.
pub struct Rebuild;

impl OrderCheck for Rebuild {
    fn check(
        &self,
        order: &SigningOrder,
        root: &RootKey,
        child: &ChildKey,
    ) -> Result<Vec<Spending>, Fault> {
        order.verify_child(root, child).map(|_| Vec::new())
    }
}

/// What a node needs.
pub struct NodeConfig {
    /// The name it announces.
    pub name: String,
    /// Its identity.
    pub identity: Arc<NodeIdentity>,
    /// The bus it listens on.
    pub bus: Arc<dyn Bus>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Threads for cryptography; nodes of one process share them.
    pub pool: Arc<CpuPool>,
    /// Its own folder: keyring, share files, claims. Made when missing.
    pub folder: PathBuf,
    /// Opens the keyring.
    pub passphrase: SecretString,
    /// scrypt's work factor (log2 N, 1 to 22) when the keyring is made; 18 takes about a
    /// second. Lower ones are for random passphrases only.
    pub work_factor: u8,
    /// The orchestrators it takes orders from.
    pub trusted: Vec<NodeId>,
    /// The nodes it takes part in keys and signatures with; `None`: any that an orchestrator names.
    pub peers: Option<Vec<NodeId>>,
    /// What is checked before a share is used; [`Floor`] outside tests.
    pub check: Arc<dyn OrderCheck>,
    /// To whom alone it encrypts backups of its shares: age recipients (`age1...`). None: it makes
    /// no backups.
    pub backup_recipients: Vec<String>,
    /// How often it announces itself.
    pub heartbeat: Duration,
    /// How many signing nonces it makes ahead, per key.
    pub nonces: Marks,
}

/// A signer node.
pub struct Node {
    name: String,
    post: Post,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    pool: Arc<CpuPool>,
    trusted: Vec<NodeId>,
    peers: Option<HashSet<NodeId>>,
    check: Arc<dyn OrderCheck>,
    shares: Box<dyn ShareStore>,
    /// Made ahead for the backend that needs some.
    primes: Arc<Primes>,
    claims: Claims,
    keys: Keys,
    life: Life,
    pools: Pools,
    sessions: Sessions,
    /// Bytes of messages whose signature has not been looked at.
    unverified: AtomicUsize,
    /// The time of the last announcement.
    announced_ms: AtomicU64,
    /// Names this start of the node.
    boot: [u8; 16],
    runtime: Handle,
}

impl Node {
    /// Opens the folder and serves orders until `shutdown` turns true or its sender is gone.
    ///
    /// # Errors
    /// When it cannot start (folder, keyring or claims unusable, or the bus refuses), and when its
    /// claims cannot be written any more. A bad message or order never ends it.
    pub async fn run(config: NodeConfig, mut shutdown: watch::Receiver<bool>) -> Result<(), Fault> {
        let bus = Arc::clone(&config.bus);
        let heartbeat = config.heartbeat;
        let node = Arc::new(Self::open(config).await?);
        let mut inbox = bus
            .subscribe(node.post.id(), false)
            .await
            .map_err(|cause| {
                Fault::unavailable("the message bus is not available").caused_by(cause)
            })?;
        let mut heartbeat = interval(heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reap = interval(REAP);
        reap.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tracing::info!(node = %node.name, keys = node.keys.count(), "signer node is up");
        node.tend(true);
        loop {
            if *shutdown.borrow() {
                break;
            }
            tokio::select! {
                changed = shutdown.changed() => if changed.is_err() { break },
                _ = heartbeat.tick() => node.announce(false),
                _ = reap.tick() => {
                    node.reap();
                    node.tend(false);
                }
                () = node.claims.broken() => {
                    // Only a fresh start can tell what is on disk. Until then others sign.
                    node.announce(true);
                    return Err(Fault::unavailable(
                        "the claims file cannot be written; is the disk full?",
                    ));
                }
                message = inbox.next() => match message {
                    Some(message) => node.take(message),
                    None => break,
                },
            }
        }
        node.announce(true);
        tracing::info!(node = %node.name, "signer node is down");
        Ok(())
    }

    async fn open(config: NodeConfig) -> Result<Self, Fault> {
        let NodeConfig {
            name,
            identity,
            bus,
            clock,
            entropy,
            pool,
            folder,
            passphrase,
            work_factor,
            trusted,
            peers,
            check,
            backup_recipients,
            heartbeat: _,
            nonces: marks,
        } = config;
        let runtime = Handle::current();
        // scrypt and the disk take their time.
        let opened = runtime.spawn_blocking(move || {
            let shares = AgeFiles::open(&folder, &passphrase, work_factor)?;
            let primes = shares.primes()?;
            let new = !shares.any()?;
            Ok::<_, Fault>((shares, primes, new, folder.join("claims.redb")))
        });
        let (shares, primes, new, path) = opened.await.map_err(Fault::bug)??;
        // Before any share is in memory: who has the claims has the folder.
        let mut waited = Duration::ZERO;
        let claims = loop {
            match Claims::open(&path, new) {
                Ok(claims) => break claims,
                Err(fault) if waited >= TAKEOVER => return Err(fault),
                Err(_) => {
                    sleep(REAP).await;
                    waited += REAP;
                }
            }
        };
        let loaded = runtime.spawn_blocking(move || {
            let keys = Keys::load(shares.load_all()?)?;
            // An activation that was interrupted is finished.
            for (vault, root, epoch) in keys.epochs() {
                shares.erase(vault, &root, epoch)?;
            }
            let life = Life::new(shares.load_pending()?, backup_recipients)?;
            let pools = Pools::new(shares.nonces(&claims)?, marks);
            Ok::<_, Fault>((shares, claims, keys, life, pools))
        });
        let (shares, claims, keys, life, pools) = loaded.await.map_err(Fault::bug)??;
        let boot = random_16(&*entropy);
        Ok(Self {
            name,
            boot,
            post: Post::new(identity, bus, Arc::clone(&entropy)),
            clock,
            entropy,
            pool,
            trusted,
            peers: peers.map(HashSet::from_iter),
            check,
            shares: Box::new(shares),
            primes: Arc::new(primes),
            claims,
            keys,
            life,
            pools,
            sessions: Sessions::default(),
            unverified: AtomicUsize::new(0),
            announced_ms: AtomicU64::new(0),
            runtime,
        })
    }

    fn announce(&self, leaving: bool) {
        // Grows always: others ignore what they have heard before.
        let last_ms = self.announced_ms.load(Ordering::Relaxed);
        let at_ms = self.clock.now_ms().max(last_ms.saturating_add(1));
        self.announced_ms.store(at_ms, Ordering::Relaxed);
        let bans = self.announced_bans();
        meter::holdings(&self.name, self.keys.count(), bans.len());
        let announcement = Announcement {
            name: self.name.clone(),
            at_ms,
            leaving,
            boot: self.boot,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            keys: u32::try_from(self.keys.count()).unwrap_or(u32::MAX),
            bans,
        };
        let header = Header {
            kind: Kind::Announcement,
            sealed: false,
            session: SessionId::from_bytes([0; 16]),
            attempt: 0,
            round: 0,
            sequence: 0,
            from: self.post.id(),
            to: EVERYONE,
        };
        let sent = encode(&announcement).and_then(|body| self.post.send(header, &body));
        if let Err(fault) = sent {
            tracing::warn!(node = %self.name, ?fault, "cannot announce");
        }
    }

    /// Sorts a message of the bus. Everything that costs goes to the pool.
    fn take(self: &Arc<Self>, message: Vec<u8>) {
        let Ok(envelope) = Envelope::parse(message) else {
            tracing::debug!(node = %self.name, "malformed envelope");
            return;
        };
        let Header { kind, from, to, .. } = envelope.header;
        match kind {
            _ if to != self.post.id() => return,
            Kind::SigningOrder
            | Kind::KeygenOrder
            | Kind::ReshareOrder
            | Kind::Activate
            | Kind::BackupOrder => {
                if !self.trusted.contains(&from) {
                    let from = openssh_line(&from, "");
                    tracing::warn!(node = %self.name, from, "order of a stranger ignored: its key is not among the orchestrators that this node trusts");
                    return;
                }
            }
            Kind::Protocol => {
                if !self.is_peer(&from) {
                    tracing::debug!(node = %self.name, ?from, "message of a node that is no peer");
                    return;
                }
            }
            Kind::Nonces => {
                if !self.trusted.contains(&from) && !self.keys.is_holder(&from) {
                    tracing::warn!(node = %self.name, ?from, "nonces of a stranger");
                    return;
                }
            }
            Kind::Reply | Kind::Announcement => return,
        }
        // Nothing is kept or begun before the signature was verified, and only so much waits
        // for that.
        let size = envelope.size();
        let waiting = self.unverified.fetch_add(size, Ordering::Relaxed);
        if waiting.saturating_add(size) > MAX_UNVERIFIED {
            self.unverified.fetch_sub(size, Ordering::Relaxed);
            tracing::warn!(node = %self.name, "too many messages wait; one dropped");
            return;
        }
        let received_ms = self.clock.now_ms();
        let node = Arc::clone(self);
        self.pool.spawn(Lane::Signing, move || {
            node.unverified.fetch_sub(size, Ordering::Relaxed);
            match node.post.open(&envelope) {
                Ok(opened) if kind == Kind::Nonces => node.nonce_news(from, &opened),
                Ok(opened) if kind == Kind::Protocol => node.protocol(envelope.header, opened),
                Ok(opened) => node.order(&envelope.header, &opened, received_ms),
                Err(error) => {
                    tracing::warn!(node = %node.name, ?from, %error, "message refused");
                }
            }
        });
    }

    /// Answers an orchestrator.
    fn reply(&self, to: NodeId, session: SessionId, attempt: u32, reply: &Reply) {
        let header = Header {
            kind: Kind::Reply,
            sealed: true,
            session,
            attempt,
            round: 0,
            sequence: 0,
            from: self.post.id(),
            to,
        };
        let sent = encode(reply).and_then(|body| self.post.send(header, &body));
        if let Err(fault) = sent {
            tracing::warn!(node = %self.name, ?fault, "cannot reply");
        }
    }
}
