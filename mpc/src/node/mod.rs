//! A signer node.
//!
//! It trusts nobody: an order must be signed by an orchestrator whose key it pins, still be
//! valid, name a share it holds, and show what it asks to sign. Then the node claims what it is
//! about to do, on disk, and only then uses its share.

mod approval_relay;
mod attest;
mod backups;
mod check;
mod client_signer;
mod clock;
mod freezing;
mod holding;
mod keygen_quota;
mod life;
mod order_check;
mod orders;
mod peers;
mod refusals;
mod rules;
mod sessions;
mod witness;

use std::{
    collections::{HashMap, hash_map::Entry},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use covault_core::{
    fault::Fault,
    ids::SessionId,
    order::NodeId,
    port::{Clock, Entropy, random_16},
    trace::Tracer,
    version::this_version,
};
use parking_lot::{Mutex, MutexGuard};
use secrecy::SecretString;
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::{
    bus::Bus,
    claims::Claims,
    entropy::EntropyHedge,
    envelope::{EVERYONE, Envelope, EnvelopeCodec, EnvelopeError, EnvelopeHeader, EnvelopeKind},
    freeze::{FreezeStore, Frozen},
    identity::NodeIdentity,
    loaded_keys::LoadedKeys,
    message::{
        Announcement, HaltReason, MAX_ANNOUNCEMENT, MAX_KEY_EXCHANGE, OrderReply, SKEW_MS, encode,
    },
    meter,
    permits::PermitStore,
    pool::{CpuPool, Priority},
    preprocess::{NodeServices, Preprocessor, Watermarks},
    primes::PrimeStore,
    proofs::ProofStore,
    questions::MAX_ANSWER,
    shares::{ShareStore, age_file::AgeShareStore},
    veto::VetoStore,
};
use approval_relay::RelayParts;
pub use approval_relay::{ApprovalRelay, ToldRequest, ToldRequests};
use client_signer::ClientSigner;
pub use client_signer::{ClientSignerConfig, SigningCallback};
use holding::RejectionWriter;
pub use keygen_quota::KeygenQuota;
use keygen_quota::QuotaTracker;
use life::Lifecycle;
pub(crate) use life::check_proof;
pub use order_check::{CurrentPolicy, OrderCheck, PolicyCheck, RebuildCheck};
pub use peers::{CurrentPeers, PinnedPeers};
use refusals::{MessageRefusal, MessageRefusals};
use rules::EffectiveKeyRules;
pub use rules::{KeyRules, ThresholdLimits};
use sessions::Sessions;
use witness::{Witness, WitnessReport};

/// How often deadlines are looked at.
const EXPIRE_INTERVAL: Duration = Duration::from_millis(100);
/// How long an earlier process of the same folder has to let go of it.
const TAKEOVER: Duration = Duration::from_secs(5);

/// Nonces are numbered from the time of the start, this many to a millisecond: more than are made.
const NUMBERS_PER_MS: u64 = 4096;

/// Bytes of messages that wait to be verified, at most.
const MAX_UNVERIFIED: usize = 64 << 20;
/// Bytes, and messages, that may wait in one sender's name: a flooding sender is dropped, not others.
const MAX_UNVERIFIED_EACH: usize = 16 << 20;
const MAX_WAITING_EACH: usize = 8192;

/// Tells a node that its process did not simply run on: that its machine was suspended, or was resumed
/// from a snapshot with all its memory. Whatever is in memory may then be in a second machine too:
/// nonces that both would use, sessions that both would answer.
pub trait ResumeDetector: Send + Sync {
    /// What has shown it, in words, from then on; asked before every step of a session.
    fn noticed(&self) -> Option<String>;
}

/// Nothing is watched.
pub struct NoResumeDetector;

impl ResumeDetector for NoResumeDetector {
    fn noticed(&self) -> Option<String> {
        None
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
    /// The nodes it takes part in keys and signatures with.
    pub peers: Arc<CurrentPeers>,
    /// What is checked before a share is used; [`PolicyCheck`] outside tests.
    pub check: Arc<dyn OrderCheck>,
    /// To whom alone it encrypts backups of its shares: age recipients (`age1...`). None: it makes
    /// no backups.
    pub backup_recipients: Vec<String>,
    /// What it lets an orchestrator make of the keys that it holds shares of.
    pub rules: KeyRules,
    /// How often it announces itself.
    pub heartbeat: Duration,
    /// How many signing nonces it makes ahead, per key.
    pub nonces: Watermarks,
    /// Notices that its machine was resumed: the node then ends, and a fresh start is safe.
    pub resumption: Arc<dyn ResumeDetector>,
    /// How many keys it makes for an orchestrator.
    pub keygen_quota: KeygenQuota,
    /// Makes it a client signer.
    pub client: Option<ClientSignerConfig>,
    /// Connects a page on which people approve.
    pub approval_relay: Option<Arc<ApprovalRelay>>,
    /// Records its part of requests that are traced.
    pub tracer: Tracer,
}

crate::secrets::secret!(NodeConfig);

/// A signer node.
pub struct Node {
    name: String,
    codec: Arc<EnvelopeCodec>,
    clock: Arc<dyn Clock>,
    entropy: Arc<EntropyHedge>,
    pool: Arc<CpuPool>,
    trusted: Vec<NodeId>,
    peers: Arc<CurrentPeers>,
    rules: EffectiveKeyRules,
    permits: PermitStore,
    freezes: FreezeStore,
    vetoes: Arc<VetoStore>,
    rejections: RejectionWriter,
    /// What was frozen when it was last looked at; `None`: that could not be read.
    frozen: Mutex<Option<Frozen>>,
    proofs: ProofStore,
    check: Arc<dyn OrderCheck>,
    shares: Box<dyn ShareStore>,
    /// Made ahead for the backend that needs some.
    primes: Arc<PrimeStore>,
    claims: Arc<Claims>,
    statements: attest::StatementsFolder,
    keys: Arc<LoadedKeys>,
    life: Lifecycle,
    preprocessor: Arc<Preprocessor>,
    quota_tracker: QuotaTracker,
    client: Option<ClientSigner>,
    approval_relay: Option<Arc<ApprovalRelay>>,
    tracer: Tracer,
    sessions: Sessions,
    /// Bytes of messages whose signature has not been looked at.
    unverified: AtomicUsize,
    /// The same for each sender that they name: messages, bytes.
    waiting: Mutex<HashMap<NodeId, (usize, usize)>>,
    refusals: MessageRefusals,
    /// The time of the last announcement.
    announced_ms: AtomicU64,
    resumption: Arc<dyn ResumeDetector>,
    /// Names this start of the node.
    boot: [u8; 16],
    witness: Witness,
    /// Where it keeps evidence of lies.
    evidence: PathBuf,
    /// False only where a simulation plants a fault.
    guarded: bool,
    runtime: Handle,
}

crate::secrets::secret!(Node);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// Grows always, since others ignore what they have heard before; but not when the clock was set back
/// by more than others put up with: they do not believe who speaks of another time than theirs.
fn time_to_announce(now_ms: u64, last_ms: u64) -> u64 {
    if last_ms > now_ms.saturating_add(SKEW_MS) {
        now_ms
    } else {
        now_ms.max(last_ms.saturating_add(1))
    }
}

impl Node {
    /// Opens the folder and serves orders until `shutdown` turns true or its sender is gone.
    ///
    /// # Errors
    /// When it cannot start (folder, keyring or claims unusable, or the bus refuses), when its claims
    /// can no longer be written, and when its machine was resumed. A bad message or order never ends it.
    pub async fn run(config: NodeConfig, shutdown: watch::Receiver<bool>) -> Result<(), Fault> {
        Self::run_and_tell(config, shutdown, || {}).await
    }

    /// As [`Node::run`]; calls `up` once the node has opened its files and takes orders.
    ///
    /// # Errors
    /// As [`Node::run`].
    pub async fn run_and_tell(
        config: NodeConfig,
        mut shutdown: watch::Receiver<bool>,
        up: impl FnOnce() + Send,
    ) -> Result<(), Fault> {
        let bus = Arc::clone(&config.bus);
        let heartbeat = config.heartbeat;
        let node = Arc::new(Self::open(config).await?);
        let stating = Arc::clone(&node);
        node.pool.block_on(move || stating.state_keys()).await?;
        let mut inbox = bus
            .subscribe(node.codec.id(), true)
            .await
            .map_err(|cause| {
                Fault::unavailable("the message bus is not available").caused_by(cause)
            })?;
        let mut heartbeat = interval(heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut expire_sessions = interval(EXPIRE_INTERVAL);
        expire_sessions.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tracing::info!(node = %node.name, keys = node.keys.count(), "signer node is up");
        up();
        node.preprocessor.replenish(true);
        let greeting = Arc::clone(&node);
        node.pool.block_on(move || greeting.greet_peers()).await?;
        loop {
            if *shutdown.borrow() {
                break;
            }
            tokio::select! {
                // In this order: a flood must not keep the node from its deadlines, and a
                // simulation must take the same turn every time.
                biased;
                changed = shutdown.changed() => if changed.is_err() { break },
                _ = heartbeat.tick() => {
                    node.announce(false);
                    node.poll_witnesses();
                    let renewing = Arc::clone(&node);
                    let renew = move || renewing.codec.renew_pair_keys();
                    node.pool.spawn(Priority::Signing, renew);
                }
                _ = expire_sessions.tick() => {
                    if let Some(what) = node.resumption.noticed() {
                        tracing::error!(node = %node.name, what, "this machine was resumed");
                        node.announce(true);
                        node.rejections_on_disk().await;
                        return Err(Fault::unavailable(format!(
                            "this machine was resumed: {what}; another machine may have a copy of its memory, so the \
                             node stops: start it again"
                        )));
                    }
                    node.look_for_freezes();
                    node.expire_sessions();
                    node.erase_retired();
                    node.resend_proofs();
                    node.write_rejections();
                    node.preprocessor.replenish(false);
                }
                () = node.claims.broken() => {
                    // Only a fresh start can tell what is on disk. Until then others sign.
                    node.announce(true);
                    node.rejections_on_disk().await;
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
        // Those that the disk did not take before.
        node.rejections_on_disk().await;
        node.save_heights().await;
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
            rules,
            heartbeat: _,
            nonces: watermarks,
            resumption,
            keygen_quota,
            client,
            approval_relay,
            tracer,
        } = config;
        let answers = folder.join("callback-answers.redb");
        let runtime = Handle::current();
        let evidence = folder.join("evidence");
        let permits = PermitStore::of(&folder);
        let freezes = FreezeStore::of(&folder);
        let vetoes = Arc::new(VetoStore::of(&folder));
        let proofs = ProofStore::of(&folder);
        let now_ms = clock.now_ms();
        // scrypt and the disk take their time.
        let opened = pool.block_on(move || {
            let shares = AgeShareStore::open(&folder, &passphrase, work_factor)?;
            let statements = attest::StatementsFolder::new(folder.clone());
            let primes = shares.primes()?;
            let new = !shares.any()?;
            Ok::<_, Fault>((shares, primes, new, statements, folder.join("claims.redb")))
        });
        let (shares, primes, new, statements, path) = opened.await??;
        // Before any share is in memory: who has the claims has the folder.
        let mut waited = Duration::ZERO;
        let claims = loop {
            match Claims::open_on(&pool, &path, new) {
                Ok(claims) => break claims,
                Err(fault) if waited >= TAKEOVER => return Err(fault),
                Err(_) => {
                    sleep(EXPIRE_INTERVAL).await;
                    waited += EXPIRE_INTERVAL;
                }
            }
        };
        let loaded = pool.block_on(move || {
            shares.sweep()?;
            let keys = LoadedKeys::load(shares.load_all()?)?;
            // An activation that was interrupted is finished. A clock that is behind takes nothing from
            // the time that the shares are kept.
            let retired_ms = now_ms.max(claims.age().newest_ms);
            for (vault, root, epoch) in keys.epochs() {
                shares.retire(vault, &root, epoch, retired_ms)?;
            }
            let life = Lifecycle::new(shares.load_pending()?, backup_recipients, proofs.open()?)?;
            let nonces = shares.nonces(&claims)?;
            Ok::<_, Fault>((shares, proofs, claims, keys, life, nonces))
        });
        let (shares, proofs, claims, keys, life, nonces) = loaded.await??;
        for key in keys.all() {
            let record = &key.record;
            let quorum = check::check_quorums(record.threshold, record.holders.len());
            if let Err(fault) = quorum
                && check.asks_approvals(record.vault)
            {
                let (vault, problem) = (record.vault, fault.message());
                tracing::warn!(
                    node = %name,
                    %vault,
                    problem,
                    "a vault's key is too small for approvals: requests that need approval are refused"
                );
            }
        }
        let opened_height = claims.age().height;
        // Also higher than in any copy of the folder that ran since this one was taken.
        let number = clock.now_ms().saturating_mul(NUMBERS_PER_MS);
        let burned = nonces.begin_anew(&claims, number).await;
        burned.map_err(|cause| {
            Fault::unavailable("the claims file cannot be written; is the disk full?")
                .caused_by(cause)
        })?;
        let hedge = nonces.hedge(entropy, Arc::clone(&clock));
        #[cfg(feature = "simulation")]
        let hedge = match pool.machine() {
            Some(machine) => hedge.simulated(machine.hedging),
            None => hedge,
        };
        let entropy = Arc::new(hedge);
        let notes = (claims.stored_key_records(), claims.stored_vault_keys());
        let quota_tracker =
            QuotaTracker::open(keygen_quota, notes, &claims, &keys, clock.now_ms()).await;
        let boot = random_16(&*entropy);
        #[cfg(feature = "simulation")]
        let guarded = pool.machine().is_none_or(|machine| !machine.unguarded);
        #[cfg(not(feature = "simulation"))]
        let guarded = true;
        let rules = EffectiveKeyRules::new(rules);
        // Without shares there is no promise that could be missing.
        let holders = (keys.count() > 0).then(|| keys.holders());
        let client = match client {
            Some(client) => {
                let own = identity.id();
                let opened = pool.block_on(move || ClientSigner::open(client, own, &answers));
                Some(opened.await??)
            }
            None => None,
        };
        let (claims, keys) = (Arc::new(claims), Arc::new(keys));
        let draws = Arc::clone(&entropy) as Arc<dyn Entropy>;
        let codec = EnvelopeCodec::new(identity, bus, draws).with_pair_keys(Arc::clone(&clock));
        let codec = Arc::new(codec);
        let services = NodeServices {
            name: name.clone(),
            codec: Arc::clone(&codec),
            clock: Arc::clone(&clock),
            entropy: Arc::clone(&entropy),
            pool: Arc::clone(&pool),
            runtime: runtime.clone(),
            claims: Arc::clone(&claims),
            keys: Arc::clone(&keys),
            orchestrators: trusted.clone(),
        };
        let preprocessor = Preprocessor::new(services, nonces, watermarks);
        if let Some(relay) = &approval_relay {
            relay.connect(RelayParts {
                codec: Arc::clone(&codec),
                keys: Arc::clone(&keys),
                vetoes: Arc::clone(&vetoes),
                clock: Arc::clone(&clock),
                entropy: Arc::clone(&entropy) as Arc<dyn Entropy>,
                orchestrators: trusted.clone(),
            });
        }
        let now_ms = clock.now_ms();
        let witness = Witness::new(now_ms, opened_height, holders, claims.stored_peers());
        Ok(Self {
            name,
            boot,
            resumption,
            witness,
            evidence,
            guarded,
            codec,
            clock,
            entropy,
            pool,
            trusted,
            peers,
            rules,
            permits,
            frozen: Mutex::new(freezes.list().ok()),
            freezes,
            vetoes,
            rejections: RejectionWriter::default(),
            proofs,
            check,
            shares: Box::new(shares),
            primes: Arc::new(primes),
            claims,
            statements,
            keys,
            life,
            preprocessor,
            quota_tracker,
            client,
            approval_relay,
            tracer,
            sessions: Sessions::default(),
            unverified: AtomicUsize::new(0),
            waiting: Mutex::default(),
            refusals: MessageRefusals::default(),
            announced_ms: AtomicU64::new(0),
            runtime,
        })
    }

    fn announce(&self, leaving: bool) {
        let last_ms = self.announced_ms.load(Ordering::Relaxed);
        let at_ms = time_to_announce(self.clock.now_ms(), last_ms);
        self.announced_ms.store(at_ms, Ordering::Relaxed);
        let bans = self.announced_bans();
        meter::holdings(&self.name, self.keys.count(), bans.len());
        meter::nonces(&self.name, self.preprocessor.ready_count());
        let log = self.claims.log_counts();
        meter::claims_log(&self.name, log.entries, log.folds);
        let WitnessReport {
            count,
            height,
            halted,
            others,
        } = self.witness_report(at_ms);
        let (frozen, mut halted) = self.announced_frozen(halted);
        if self.client.is_some() {
            halted.push(HaltReason::ClientSigner);
        }
        let announcement = Announcement {
            name: self.name.clone(),
            at_ms,
            leaving,
            boot: self.boot,
            version: this_version().to_owned(),
            keys: u32::try_from(self.keys.count()).unwrap_or(u32::MAX),
            bans,
            count,
            height,
            halted,
            others,
            threads: u16::try_from(self.pool.threads()).unwrap_or(u16::MAX),
            frozen,
            listed: self.listed(),
        };
        let header =
            EnvelopeHeader::outside_sessions(EnvelopeKind::Announcement, self.codec.id(), EVERYONE);
        let sent = encode(&announcement).and_then(|body| self.codec.send(header, &body));
        if let Err(fault) = sent {
            tracing::warn!(node = %self.name, ?fault, "cannot announce");
        }
    }

    /// Sorts a message of the bus. Everything that costs goes to the pool.
    fn take(self: &Arc<Self>, message: Vec<u8>) {
        let envelope = match Envelope::parse(message) {
            Ok(envelope) => envelope,
            // It does not even say whose it is.
            Err(error) => return self.drop_message(&EVERYONE, error.into()),
        };
        let EnvelopeHeader { kind, from, to, .. } = envelope.header;
        match kind {
            EnvelopeKind::Announcement => {
                let known = from == self.codec.id() || self.is_watched(&from);
                if to != EVERYONE || !known || envelope.size() > MAX_ANNOUNCEMENT {
                    return;
                }
            }
            _ if to != self.codec.id() => {
                return self.drop_message(&from, EnvelopeError::Misdirected.into());
            }
            EnvelopeKind::SigningOrder
            | EnvelopeKind::KeygenOrder
            | EnvelopeKind::ReshareOrder
            | EnvelopeKind::BackupOrder
            | EnvelopeKind::AttestOrder
            | EnvelopeKind::Rejection => {
                if !self.trusted.contains(&from) {
                    return self.drop_message(&from, MessageRefusal::UntrustedOrchestrator);
                }
            }
            // A proof is valid by itself, no matter who sends it.
            EnvelopeKind::Activate if self.trusted.contains(&from) => {}
            // Peers answer to those that we have shown them.
            EnvelopeKind::Activate | EnvelopeKind::Reply | EnvelopeKind::Protocol => {
                if !self.is_peer(&from) {
                    return self.drop_message(&from, MessageRefusal::NoPeer);
                }
            }
            EnvelopeKind::Nonces => {
                let trusted = self.trusted.contains(&from);
                if !trusted && !self.is_peer(&from) {
                    return self.drop_message(&from, MessageRefusal::NoPeer);
                }
                if !trusted && !self.keys.is_holder(&from) {
                    return self.drop_message(&from, MessageRefusal::NoHolder);
                }
            }
            // Nobody but the page that has asked wants to know it.
            EnvelopeKind::Answer => {
                let session = &envelope.header.session;
                let expects = |relay: &Arc<ApprovalRelay>| relay.expects(&from, session);
                let expected = self.approval_relay.as_ref().is_some_and(expects);
                if !expected || envelope.size() > MAX_ANSWER {
                    return;
                }
            }
            EnvelopeKind::Question => return,
            // Strangers cost nothing.
            EnvelopeKind::KeyExchange => {
                if !self.shares_pair_keys(&from) || envelope.size() > MAX_KEY_EXCHANGE {
                    return;
                }
            }
            EnvelopeKind::Witness => {
                // Orchestrators ask whether we are there.
                if !self.is_watched(&from) && !self.trusted.contains(&from) {
                    let why = match self.is_peer(&from) {
                        true => MessageRefusal::NoWitness,
                        false => MessageRefusal::NoPeer,
                    };
                    return self.drop_message(&from, why);
                }
            }
        }
        // Who is told that we have no such key gets a place among those that we agree on keys with: no stranger may use
        // them up, whose name is not even certain.
        if envelope.is_paired() && !self.shares_pair_keys(&from) {
            return self.drop_message(&from, MessageRefusal::NoHolder);
        }
        if kind == EnvelopeKind::Protocol && self.sessions.is_over(&envelope.header) {
            return;
        }
        // Nothing is kept or begun before the signature was verified, and only so much waits
        // for that.
        let size = envelope.size();
        if let Err(refusal) = self.admit(from, size) {
            return self.drop_message(&from, refusal);
        }
        let received_ms = self.clock.now_ms();
        let node = Arc::clone(self);
        let priority = match kind {
            EnvelopeKind::Protocol => self.sessions.priority_of(&envelope.header),
            _ => Priority::Signing,
        };
        self.pool.spawn(priority, move || {
            node.admitted(from, size);
            // It may have ended while this waited, and orders wait behind it.
            if kind == EnvelopeKind::Protocol && node.sessions.is_over(&envelope.header) {
                return;
            }
            if kind == EnvelopeKind::Announcement {
                // Anyone can announce anything.
                if let Ok(opened) = node.codec.open(&envelope) {
                    node.announced(&envelope, &opened);
                }
                return;
            }
            let header = envelope.header;
            match node.codec.open_in_place(envelope) {
                Ok(opened) if kind == EnvelopeKind::KeyExchange => {
                    node.codec.take_half(&from, &opened.body)
                }
                Ok(opened) if kind == EnvelopeKind::Witness => node.on_witness_msg(from, &opened),
                Ok(opened) if kind == EnvelopeKind::Answer => {
                    if let Some(relay) = &node.approval_relay {
                        relay.heard(from, &header.session, &opened.body);
                    }
                }
                Ok(opened) if kind == EnvelopeKind::Nonces => {
                    if let Err(error) = node.preprocessor.on_message(from, &opened) {
                        node.drop_message(&from, error.into());
                    }
                }
                Ok(opened) if kind == EnvelopeKind::Rejection => {
                    node.rejected(&header, &opened.body)
                }
                Ok(opened) if kind == EnvelopeKind::Reply => node.confirmed(&header, &opened),
                // Long, and nothing is signed with a share in the meantime; or of a peer, who shows as many as
                // it likes.
                Ok(opened)
                    if kind == EnvelopeKind::AttestOrder
                        || (kind == EnvelopeKind::Activate && !node.trusted.contains(&from)) =>
                {
                    let pool = Arc::clone(&node.pool);
                    pool.spawn(Priority::Keygen, move || {
                        node.order(&header, &opened, received_ms);
                    });
                }
                Ok(opened) if kind == EnvelopeKind::Protocol => {
                    node.protocol(header, opened, priority)
                }
                Ok(opened) => node.order(&header, &opened, received_ms),
                Err(error) => node.drop_message(&from, error.into()),
            }
        });
    }

    /// Makes room for a message that waits to be verified.
    fn admit(&self, from: NodeId, size: usize) -> Result<(), MessageRefusal> {
        let mut waiting = self.waiting.lock();
        let (messages, bytes) = waiting.get(&from).copied().unwrap_or_default();
        let (messages, bytes) = (messages.saturating_add(1), bytes.saturating_add(size));
        if messages > MAX_WAITING_EACH || bytes > MAX_UNVERIFIED_EACH {
            return Err(MessageRefusal::Flood);
        }
        let all = self.unverified.load(Ordering::Relaxed).saturating_add(size);
        if all > MAX_UNVERIFIED {
            return Err(MessageRefusal::Full);
        }
        self.unverified.fetch_add(size, Ordering::Relaxed);
        waiting.insert(from, (messages, bytes));
        Ok(())
    }

    /// The message waits no more.
    fn admitted(&self, from: NodeId, size: usize) {
        self.unverified.fetch_sub(size, Ordering::Relaxed);
        let mut waiting = self.waiting.lock();
        if let Entry::Occupied(mut entry) = waiting.entry(from) {
            let (messages, bytes) = entry.get_mut();
            *messages = messages.saturating_sub(1);
            *bytes = bytes.saturating_sub(size);
            if *messages == 0 {
                entry.remove();
            }
        }
    }

    /// Answers an orchestrator.
    fn reply(&self, to: NodeId, epoch: u32, session: SessionId, attempt: u32, reply: &OrderReply) {
        let header = EnvelopeHeader {
            kind: EnvelopeKind::Reply,
            sealed: true,
            epoch,
            session,
            attempt,
            round: 0,
            sequence: 0,
            from: self.codec.id(),
            to,
        };
        let sent = encode(reply).and_then(|body| self.codec.send(header, &body));
        if let Err(fault) = sent {
            tracing::warn!(node = %self.name, ?fault, "cannot reply");
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn announcements__should_grow_and_go_back_with_a_clock_that_was_set_back() {
        assert_eq!(time_to_announce(5_000, 0), 5_000);
        assert_eq!(time_to_announce(5_000, 5_000), 5_001);
        let hour_ms = 3_600_000;
        assert_eq!(time_to_announce(5_000, 5_000 + SKEW_MS), 5_001 + SKEW_MS);
        assert_eq!(time_to_announce(5_000, 5_000 + hour_ms), 5_000);
    }
}
