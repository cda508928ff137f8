//! A node's durable claims: what it has promised never to do again.
//!
//! - The first digest that a node agrees to sign for a request is the only one, for ever. It covers
//!   all inputs at once, so that a request cannot grow.
//! - A transaction whose inputs are signed one by one has one list of digests too, whichever request
//!   it is for: each digest binds the amount of its own input alone.
//! - A session attempt is run once, also after a restart.
//! - What requests let go is counted for 24 hours ([`windows`]), each request once, when its first
//!   claim is granted: whatever becomes of the signature, the count stands. A new holder of a key does not know what
//!   those before it have counted: to it, limits of a day are used up until none of that counts.
//! - A peer that cheated in a way that leaks key material is banned from that key for good.
//! - A file that was put back is noticed ([`ClaimsAge`]): other nodes remember how much it had promised.
//! - How long a payment was held is counted from when enough approvals of it were verified here first ([`holds`]), also
//!   over restarts.
//! - A signing nonce made ahead ([`crate::preprocess`]) is given out once: its deletion is in the
//!   entry of the claim that uses it.
//!
//! A claim is on disk, fsynced, before its caller continues. One thread writes: it drains its queue
//! into one entry of the [`log`], so that many claims share the price of one sync. What was logged goes
//! to the database in the same file later ([`rows`]). When a write fails, the writer ends, and so must
//! its node: what is on disk is unknown until the file is opened again.

mod file;
mod height;
mod holds;
mod log;
pub(crate) mod rows;
mod windows;
mod writer;

use std::{
    collections::HashSet,
    fs, io,
    path::Path,
    sync::{Arc, mpsc},
    thread,
};

use covault_core::{
    fault::{Class, Fault},
    ids::{RequestId, SessionId, VaultId},
    order::{NodeId, SigningOrder},
    signature::Curve,
};
use parking_lot::{Mutex, RwLock};
use redb::StorageBackend;
use sha2::{Digest as _, Sha256};
use tokio::sync::{oneshot, watch};

use height::BlockedEpochs;
pub use height::ClaimsAge;
pub(crate) use height::{LostClaims, PeerHeights};

#[cfg(feature = "simulation")]
use crate::simulated::SimFile;
use crate::{
    key_records::{JoinedKey, KeyRecord, KeyRecords, VaultKeys},
    policy::{HeldUntil, HoldCheck, Spending, SpendingCounter},
    pool::CpuPool,
    preprocess::table::{self as nonce_table, NonceRow, NonceSelection, StoredNonces},
    shares::ShareEpoch,
};
use file::{load, lock, make, refusal};
use rows::{LOG_PAGES, LogCounts, OpenError, RowKind, RowSpace, Rows, SMALL_LOG_PAGES};
use windows::SpendingWindows;
#[cfg(feature = "simulation")]
use writer::write_batch;
use writer::{WriteJob, write};

/// How far apart the clocks of two nodes that sign can be, in milliseconds: each a minute from the orchestrator's.
const CLOCKS_APART_MS: u64 = 2 * 60_000;

/// Request -> digest over all its inputs.
const REQUESTS: RowSpace<[u8; 16], [u8; 32]> = RowSpace::new(RowKind::Request);
/// Transaction with several inputs -> digest over all of them.
const TRANSACTIONS: RowSpace<[u8; 32], [u8; 32]> = RowSpace::new(RowKind::Transaction);
/// (session, attempt) -> when, in milliseconds since the Unix epoch.
const SESSIONS: RowSpace<([u8; 16], u32), u64> = RowSpace::new(RowKind::Session);
/// (root public key, node) -> when, in milliseconds since the Unix epoch.
const BANS: RowSpace<(Vec<u8>, [u8; 32]), u64> = RowSpace::new(RowKind::Ban);

/// Claims that wait at most.
const MAX_QUEUED_JOBS: usize = 8192;

/// Why a claim was not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The session attempt was run before.
    #[error("the session was run before")]
    SessionUsed,
    /// The request was signed for another digest before.
    #[error("another digest was claimed for this request")]
    OtherDigest,
    /// The same transaction was shown with other amounts before.
    #[error("other amounts were shown for the inputs of this transaction")]
    OtherAmounts,
    /// What went in 24 hours would be above the limit.
    #[error("the limit of {} in 24 hours is reached", .0.name())]
    DailyLimitReached(SpendingCounter),
    /// What went in 24 hours would be above what may go unapproved.
    #[error("approvals are missing: this signer {0}")]
    ApprovalsMissing(String),
    /// The payment is held for a time after its approvals.
    #[error("the payment is held until {}", .0.until_ms)]
    Held(HeldUntil),
    /// Those who have approved it have as many payments held as can be noted of them.
    #[error("too many held payments are stored")]
    TooManyHeld,
    /// Recent spending is unknown: an older copy of the claims file was restored.
    #[error("claims of this node are missing, so its limits and approvals count as used up")]
    SpendingUnknown,
    /// Recent spending is unknown: the node got its share of the key by a reshare.
    #[error("the holders before this node may have used up its limits until {0}")]
    SpentElsewhere(u64),
    /// A nonce that was to be used is not there, or no longer.
    #[error("a nonce was already used")]
    NonceMissing,
    /// The store failed; nothing is certain.
    #[error("the claims store failed: {0}")]
    Store(String),
}

/// What a session needs before it may run.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The session.
    pub session: SessionId,
    /// The attempt.
    pub attempt: u32,
    /// What is to be signed: a digest over all inputs; `None` for key generation.
    pub digest: Option<(RequestId, [u8; 32])>,
    /// The transaction, where its inputs are signed one by one
    /// ([`covault_core::networks::DynNetworkRules::signed_in_parts`]).
    pub transaction: Option<[u8; 32]>,
    /// What the request lets go: each counter once.
    pub spending: Vec<Spending>,
    /// The root public key; empty for key generation.
    pub root: Vec<u8>,
    /// Until when the approvals may be used that it rests on, which are good for one transaction, in milliseconds since
    /// the Unix epoch.
    pub approved_until_ms: Option<u64>,
    /// What tells whether it is held; `None`: it is not.
    pub hold: Option<HoldCheck>,
    /// Now, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

impl Claim {
    /// Of an order that was checked.
    ///
    /// # Errors
    /// [`Class::Bug`] when what it shows was not.
    pub(crate) fn of_order(
        (session, attempt): (SessionId, u32),
        order: &SigningOrder,
        (spending, approved, hold): (Vec<Spending>, bool, Option<HoldCheck>),
        now_ms: u64,
    ) -> Result<Self, Fault> {
        Ok(Self {
            session,
            attempt,
            digest: Some((order.request, digest(order))),
            transaction: order.network.rules().signed_in_parts(&order.unsigned)?,
            spending,
            root: order.root_public_key.clone(),
            approved_until_ms: approved.then_some(order.approvals.valid_until_ms),
            hold,
            now_ms,
        })
    }
}

/// What the claims remember of an order: the key, and the message of every input.
fn digest(order: &SigningOrder) -> [u8; 32] {
    let hash = Sha256::new()
        .chain_update(b"covault/claim")
        .chain_update(Sha256::digest(&order.public_key));
    order
        .inputs
        .iter()
        // Each of 32 bytes: their number shows in the length.
        .fold(hash, |hash, input| {
            hash.chain_update(Sha256::digest(&input.message))
        })
        .finalize()
        .into()
}

/// The claims file of a node that does not run; let go when dropped.
pub(crate) struct ClaimsLock {
    _rows: Rows,
}

/// The nonces that the job has taken out; only a claim that names nonces takes any.
type ClaimResult = Result<Vec<NonceRow>, ClaimError>;

type BanSet = HashSet<(Vec<u8>, NodeId)>;

/// What of the file is in memory, too.
#[derive(Default)]
struct CachedClaims {
    bans: RwLock<BanSet>,
    blocked: RwLock<BlockedEpochs>,
    age: RwLock<ClaimsAge>,
    log: RwLock<LogCounts>,
}

/// What a file has when it is opened.
struct LoadedClaims {
    known: CachedClaims,
    nonces: StoredNonces,
    peers: PeerHeights,
    windows: SpendingWindows,
    key_records: KeyRecords,
    vault_keys: VaultKeys,
}

/// The claims of one node. The file is locked while open: a folder serves one process.
pub struct Claims {
    writer: ClaimWriter,
    known: Arc<CachedClaims>,
    /// The nonces found when the file was opened, until a preprocessor takes them.
    stored: Mutex<StoredNonces>,
    /// The same for the heights of other nodes.
    peers: Mutex<PeerHeights>,
    /// The same for what was noted of keys.
    key_records: Mutex<KeyRecords>,
    /// The same for the keys of vaults.
    vault_keys: Mutex<VaultKeys>,
    /// Closed when the writer is gone.
    alive: watch::Receiver<()>,
}

/// What the writer's thread would have; the last is closed with it.
#[cfg(feature = "simulation")]
type DirectWriter = (Rows, SpendingWindows, watch::Sender<()>);

enum ClaimWriter {
    /// A thread.
    Thread(mpsc::SyncSender<WriteJob>),
    /// The writer of claims; gone once the disk has failed.
    #[cfg(feature = "simulation")]
    Caller(Box<Mutex<Option<DirectWriter>>>),
}

impl Claims {
    /// Opens the file. Makes it when missing, if it `may_be_new`: a node that holds shares has made
    /// promises, and without them it could be made to sign anything again.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when it is missing but must not be, is damaged, or
    /// another process has it.
    pub fn open(path: &Path, may_be_new: bool) -> Result<Self, Fault> {
        let (rows, loaded) = Self::open_file(path, may_be_new, LOG_PAGES, lock)?;
        Self::serve(rows, loaded)
    }

    /// Opens the file of a node whose folder is changed from outside: while this is held, no process
    /// has the folder. All nonces made ahead are burned; on disk when it returns.
    pub(crate) fn acquire_lock(path: &Path, may_be_new: bool) -> Result<ClaimsLock, Fault> {
        let (mut rows, _) = Self::open_file(path, may_be_new, LOG_PAGES, lock)?;
        let burned = nonce_table::clear(&mut rows).and_then(|()| rows.checkpoint());
        burned.map_err(|cause| {
            Fault::unavailable("failed to burn the nonces in the claims file").caused_by(cause)
        })?;
        Ok(ClaimsLock { _rows: rows })
    }

    /// What the file of a node that does not run has noted of keys.
    ///
    /// # Errors
    /// [`Class::Invalid`] when it is missing, damaged, or in use.
    pub fn key_records(path: &Path) -> Result<KeyRecords, Fault> {
        let (_, loaded) = Self::open_file(path, false, LOG_PAGES, lock)?;
        Ok(loaded.key_records)
    }

    /// As [`Claims::open`], for a node that uses this pool: on a simulated machine, its disk.
    pub(crate) fn open_on(pool: &CpuPool, path: &Path, may_be_new: bool) -> Result<Self, Fault> {
        #[cfg(feature = "simulation")]
        if let Some(machine) = pool.machine() {
            let disk = Arc::clone(&machine.disk);
            let open = |path: &Path| Ok(SimFile::new(lock(path)?, disk));
            let (rows, loaded) = Self::open_file(path, may_be_new, SMALL_LOG_PAGES, open)?;
            let (sender, alive) = watch::channel(());
            return Ok(Self {
                writer: ClaimWriter::Caller(Box::new(Mutex::new(Some((
                    rows,
                    loaded.windows,
                    sender,
                ))))),
                known: Arc::new(loaded.known),
                stored: Mutex::new(loaded.nonces),
                peers: Mutex::new(loaded.peers),
                key_records: Mutex::new(loaded.key_records),
                vault_keys: Mutex::new(loaded.vault_keys),
                alive,
            });
        }
        #[cfg(not(feature = "simulation"))]
        let _ = pool;
        Self::open(path, may_be_new)
    }

    fn open_file<S: StorageBackend>(
        path: &Path,
        may_be_new: bool,
        log_pages: u32,
        open: impl FnOnce(&Path) -> Result<S, redb::Error>,
    ) -> Result<(Rows, LoadedClaims), Fault> {
        let file = format!("claims file {}", path.display());
        let refuse = |problem: &str| Fault::new(Class::Invalid, format!("{file}: {problem}"));
        let length = match fs::metadata(path) {
            Ok(metadata) => Some(metadata.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(refuse("cannot be read").caused_by(error)),
        };
        let new = length.is_none_or(|length| length == 0);
        if new && !may_be_new {
            return Err(refuse(
                "is missing, but this node holds shares: it no longer knows what it must never sign. If it was \
                 moved, bring back this exact file, never an older copy. If it is lost, move the folder shares away, \
                 start the node, and have it given new ones: covault vault refresh --lost KEY",
            ));
        }
        if new {
            make(path, log_pages).map_err(|cause| refuse("cannot be made").caused_by(cause))?;
        }
        let storage = open(path).map_err(|cause| refusal(&file, cause.into()))?;
        load(Arc::new(storage)).map_err(|error| refusal(&file, error))
    }

    /// Claims on storage of the caller's choice, for crash tests: nothing of it is
    /// locked against another process.
    ///
    /// # Errors
    /// [`Class::Invalid`] when it is damaged.
    pub fn on(storage: impl StorageBackend) -> Result<Self, Fault> {
        let failed = |error: OpenError| refusal("the claims file", error);
        let storage: Arc<dyn StorageBackend> = Arc::new(storage);
        let length = storage
            .len()
            .map_err(|it| failed(redb::Error::Io(it).into()))?;
        if length == 0 {
            Rows::make(Arc::clone(&storage), SMALL_LOG_PAGES).map_err(|it| failed(it.into()))?;
        }
        let (rows, loaded) = load(storage).map_err(failed)?;
        Self::serve(rows, loaded)
    }

    fn serve(rows: Rows, loaded: LoadedClaims) -> Result<Self, Fault> {
        let (known, windows) = (Arc::new(loaded.known), loaded.windows);
        let (queue, jobs) = mpsc::sync_channel(MAX_QUEUED_JOBS);
        let writer_known = Arc::clone(&known);
        let (sender, alive) = watch::channel(());
        thread::Builder::new()
            .name("covault-claims".into())
            .spawn(move || {
                // Dropped when the thread ends, however it ends.
                let _alive = sender;
                write(rows, windows, &jobs, &writer_known);
            })
            .map_err(Fault::bug)?;
        Ok(Self {
            writer: ClaimWriter::Thread(queue),
            known,
            stored: Mutex::new(loaded.nonces),
            peers: Mutex::new(loaded.peers),
            key_records: Mutex::new(loaded.key_records),
            vault_keys: Mutex::new(loaded.vault_keys),
            alive,
        })
    }

    /// Returns when nothing can be claimed: the disk has failed.
    pub async fn broken(&self) {
        let mut alive = self.alive.clone();
        // Nothing is ever sent; an error says that the writer is gone.
        while alive.changed().await.is_ok() {}
    }

    /// Whether nothing can be claimed.
    pub(crate) fn is_broken(&self) -> bool {
        self.alive.has_changed().is_err()
    }

    /// Claims; on disk when it returns.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub async fn claim(&self, claim: Claim) -> Result<(), ClaimError> {
        self.ask(|reply| WriteJob::Claim(Box::new(claim), None, reply))
            .await?;
        Ok(())
    }

    /// Claims, and takes the nonces that the session is to use out of the store, in one
    /// batch; on disk when it returns. Also when the claim is refused they are gone.
    pub(crate) async fn claim_with(
        &self,
        claim: Claim,
        take: Option<NonceSelection>,
    ) -> ClaimResult {
        self.ask(|reply| WriteJob::Claim(Box::new(claim), take, reply))
            .await
    }

    /// Notes approvals of what is not to be signed yet, at `now_ms`; on disk when it returns.
    ///
    /// # Errors
    /// [`ClaimError::Held`] when it would be held now.
    pub async fn note_approvals(&self, hold: HoldCheck, now_ms: u64) -> Result<(), ClaimError> {
        self.ask(|reply| WriteJob::NoteApprovals(hold, now_ms, reply))
            .await?;
        Ok(())
    }

    /// Adds nonces; on disk when it returns.
    pub(crate) async fn keep_nonces(
        &self,
        of: ShareEpoch,
        rows: Vec<NonceRow>,
    ) -> Result<(), ClaimError> {
        self.ask(|reply| WriteJob::KeepNonces(of, rows, reply))
            .await?;
        Ok(())
    }

    /// Deletes nonces; on disk when it returns. Those that are not there do no harm.
    pub(crate) async fn burn_nonces(
        &self,
        of: ShareEpoch,
        ids: Vec<u64>,
    ) -> Result<(), ClaimError> {
        self.ask(|reply| WriteJob::BurnNonces(of, ids, reply))
            .await?;
        Ok(())
    }

    /// What the file held of nonces when it was opened; once.
    pub(crate) fn stored_nonces(&self) -> StoredNonces {
        std::mem::take(&mut *self.stored.lock())
    }

    /// How much the file has promised, and until when.
    pub fn age(&self) -> ClaimsAge {
        *self.known.age.read()
    }

    /// What was done with its log since it was opened.
    pub(crate) fn log_counts(&self) -> LogCounts {
        *self.known.log.read()
    }

    /// What the file held of other nodes' heights when it was opened; once.
    pub(crate) fn stored_peers(&self) -> PeerHeights {
        std::mem::take(&mut *self.peers.lock())
    }

    /// Notes heights of other nodes; on disk when it returns.
    pub(crate) async fn remember(&self, peers: PeerHeights) -> Result<(), ClaimError> {
        self.ask(|reply| WriteJob::Remember(peers, reply)).await?;
        Ok(())
    }

    /// Whether shares of this key and epoch must not sign: promises made for them are missing here.
    pub fn blocked(&self, root: &[u8], epoch: u32) -> bool {
        let blocked = self.known.blocked.read();
        blocked.get(root).is_some_and(|until| epoch <= *until)
    }

    /// Notes that promises are missing. In force at once; on disk when it returns.
    pub(crate) async fn forgotten(&self, forgotten: LostClaims) -> Result<(), ClaimError> {
        self.forgotten_now(&forgotten);
        self.ask(|reply| WriteJob::LostClaims(forgotten, reply))
            .await?;
        Ok(())
    }

    /// The same until the process ends.
    pub(crate) fn forgotten_now(&self, forgotten: &LostClaims) {
        for (root, node) in &forgotten.bans {
            self.ban_now(root, *node);
        }
        let mut blocked = self.known.blocked.write();
        for (root, epoch) in &forgotten.blocked {
            height::block(&mut blocked, root, *epoch);
        }
    }

    /// What the file held of keys when it was opened; once.
    pub(crate) fn stored_key_records(&self) -> KeyRecords {
        std::mem::take(&mut *self.key_records.lock())
    }

    /// What the file held of the keys of vaults when it was opened; once.
    pub(crate) fn stored_vault_keys(&self) -> VaultKeys {
        std::mem::take(&mut *self.vault_keys.lock())
    }

    /// Notes which key of a curve is a vault's; on disk when it returns.
    pub(crate) async fn note_vault_key(
        &self,
        of: (VaultId, Curve),
        root: Vec<u8>,
    ) -> Result<(), ClaimError> {
        self.ask(|reply| WriteJob::NoteVaultKey(of, root, reply))
            .await?;
        Ok(())
    }

    /// Notes that this node gets a share of the key by a reshare; on disk when it returns.
    pub(crate) async fn note_joined(
        &self,
        root: Vec<u8>,
        joined: JoinedKey,
    ) -> Result<(), ClaimError> {
        self.ask(|reply| WriteJob::NoteJoined(root, joined, reply))
            .await?;
        Ok(())
    }

    /// Notes this of a key, or nothing; on disk when it returns.
    pub(crate) async fn note_key(
        &self,
        root: Vec<u8>,
        note: Option<KeyRecord>,
    ) -> Result<(), ClaimError> {
        self.ask(|reply| WriteJob::NoteKey(root, note, reply))
            .await?;
        Ok(())
    }

    /// Bans `node` from the key; on disk when it returns.
    ///
    /// # Errors
    /// [`ClaimError::Store`].
    pub async fn ban(&self, root: &[u8], node: NodeId, now_ms: u64) -> Result<(), ClaimError> {
        // In force at once, whatever becomes of the disk.
        self.ban_now(root, node);
        self.ask(|reply| WriteJob::Ban {
            root: root.to_vec(),
            node,
            now_ms,
            reply,
        })
        .await?;
        Ok(())
    }

    /// Bans `node` from the key until the process ends; [`Claims::ban`] makes it last.
    pub(crate) fn ban_now(&self, root: &[u8], node: NodeId) {
        let mut bans = self.known.bans.write();
        bans.insert((root.to_vec(), node));
    }

    /// Every ban: the root public key and who is banned from it, in no order.
    pub fn bans(&self) -> Vec<(Vec<u8>, NodeId)> {
        let bans = self.known.bans.read();
        bans.iter().cloned().collect()
    }

    /// Whether `node` is banned from the key.
    pub fn banned(&self, root: &[u8], node: &NodeId) -> bool {
        let bans = self.known.bans.read();
        !bans.is_empty() && bans.contains(&(root.to_vec(), *node))
    }

    async fn ask(&self, job: impl FnOnce(oneshot::Sender<ClaimResult>) -> WriteJob) -> ClaimResult {
        let (reply, outcome) = oneshot::channel();
        self.put(job(reply)).map_err(ClaimError::Store)?;
        outcome
            .await
            .unwrap_or_else(|_| Err(ClaimError::Store("the writer is gone".into())))
    }

    fn put(&self, job: WriteJob) -> Result<(), String> {
        match &self.writer {
            ClaimWriter::Thread(queue) => queue.try_send(job).map_err(|error| match error {
                mpsc::TrySendError::Full(_) => "too many wait".into(),
                mpsc::TrySendError::Disconnected(_) => "the writer is gone".into(),
            }),
            #[cfg(feature = "simulation")]
            ClaimWriter::Caller(writer) => {
                let mut writer = writer.lock();
                let (rows, windows, _) = writer.as_mut().ok_or("the writer is gone")?;
                if !write_batch(rows, windows, vec![job], &self.known) {
                    *writer = None;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
#[path = "claims_tests.rs"]
#[allow(non_snake_case)]
mod tests;
