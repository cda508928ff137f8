//! A node's durable claims: what it has promised never to do again.
//!
//! - The first digest that a node agrees to sign for a request is the only one, for ever. It covers
//!   all inputs at once, so that a request cannot grow.
//! - A session attempt is run once, also after a restart.
//! - What the requests of a day let go is counted, each request once, when its first claim is
//!   granted: whatever becomes of the signature, the count stands.
//! - A peer that cheated in a way that leaks key material is banned from that key for good.
//! - A signing nonce made ahead ([`crate::nonces`]) is given out once: its deletion is in the
//!   transaction of the claim that uses it.
//!
//! A claim is on disk, fsynced, before its caller goes on. One thread writes: it drains its queue
//! into one transaction, so that many claims share the price of one commit. When a commit fails, the
//! writer ends, and so must its node: what is on disk is unknown until the file is opened again.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock, mpsc},
    thread,
};

use covault_core::{
    amount::U256,
    fault::{Class, Fault},
    ids::{RequestId, SessionId},
    order::NodeId,
};
use redb::{
    Database, Durability, ReadableDatabase as _, ReadableTable as _, TableDefinition,
    WriteTransaction,
};
use tokio::sync::{oneshot, watch};

use crate::{
    nonces::table::{self as nonce_table, NonceRow, ShareEpoch, Stored, Take},
    policy::Spending,
    pool::CpuPool,
};

/// Request -> digest over all its inputs.
const REQUESTS: TableDefinition<'_, &[u8; 16], &[u8; 32]> = TableDefinition::new("requests.1");
/// (session, attempt) -> when, in milliseconds since the Unix epoch.
const SESSIONS: TableDefinition<'_, (&[u8; 16], u32), u64> = TableDefinition::new("sessions.1");
/// (root public key, node) -> when, in milliseconds since the Unix epoch.
const BANS: TableDefinition<'_, (&[u8], &[u8; 32]), u64> = TableDefinition::new("bans.1");

/// (day, asset) -> what was let go, a big-endian number. Days since the Unix epoch, in UTC.
const SPENT: TableDefinition<'_, (u64, &str), &[u8; 32]> = TableDefinition::new("spent.1");

/// Milliseconds of a day.
const DAY_MS: u64 = 86_400_000;
/// Days that are kept, so that a clock that is set back finds its day.
const KEPT_DAYS: u64 = 7;
/// Claims that share one commit at most.
const BATCH: usize = 512;
/// Claims that wait at most.
const WAITING: usize = 8192;

/// Why a claim was not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The session attempt was run before.
    #[error("the session was run before")]
    SessionUsed,
    /// The request was signed for another digest before.
    #[error("another digest was claimed for this request")]
    OtherDigest,
    /// The day's total of this asset would be above its limit.
    #[error("the limit of {0} per day is reached")]
    OverDay(String),
    /// A nonce that was to be used is not there, or not any more.
    #[error("a nonce is gone")]
    NonceGone,
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
    /// What the request lets go: each asset once.
    pub spending: Vec<Spending>,
    /// Now, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// The claims file of a node that does not run; let go when dropped.
pub(crate) struct Held {
    _database: Database,
}

/// The nonces that the job has taken out, which is none but for a claim that names some.
type Outcome = Result<Vec<NonceRow>, ClaimError>;

enum Job {
    Claim(Claim, Option<Take>, oneshot::Sender<Outcome>),
    Ban {
        root: Vec<u8>,
        node: NodeId,
        now_ms: u64,
        reply: oneshot::Sender<Outcome>,
    },
    KeepNonces(ShareEpoch, Vec<NonceRow>, oneshot::Sender<Outcome>),
    BurnNonces(ShareEpoch, Vec<u64>, oneshot::Sender<Outcome>),
}

type Bans = HashSet<(Vec<u8>, NodeId)>;

/// The claims of one node. The file is locked while open: a folder serves one process.
pub struct Claims {
    writer: Writer,
    bans: Arc<RwLock<Bans>>,
    /// The nonces found when the file was opened, until somebody takes charge of them.
    stored: Mutex<Stored>,
    /// Closed when the writer is gone.
    alive: watch::Receiver<()>,
}

enum Writer {
    /// A thread.
    Thread(mpsc::SyncSender<Job>),
    /// Whoever claims; gone once the disk has failed.
    #[cfg(feature = "simulation")]
    Caller(Mutex<Option<(Database, watch::Sender<()>)>>),
}

impl Claims {
    /// Opens the file. Makes it when missing, if it `may_be_new`: a node that holds shares has made
    /// promises, and without them it could be made to sign anything again.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when it is missing but must not be, is damaged, or
    /// another process has it.
    pub fn open(path: &Path, may_be_new: bool) -> Result<Self, Fault> {
        let (database, loaded) =
            Self::open_file(path, may_be_new, |path| Ok(Database::open(path)?))?;
        Self::serve(database, loaded)
    }

    /// Opens the file of a node whose folder is changed from outside: while this is held, no process
    /// has the folder. All nonces made ahead are burned; on disk when it returns.
    pub(crate) fn hold(path: &Path, may_be_new: bool) -> Result<Held, Fault> {
        let open = |path: &Path| Ok(Database::open(path)?);
        let (database, _) = Self::open_file(path, may_be_new, open)?;
        let burn = || {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            transaction.set_two_phase_commit(true);
            nonce_table::clear(&transaction)?;
            Ok::<_, redb::Error>(transaction.commit()?)
        };
        burn().map_err(|cause| {
            Fault::unavailable("the nonces in the claims file could not be burned").caused_by(cause)
        })?;
        Ok(Held {
            _database: database,
        })
    }

    /// As [`Claims::open`], for a node that uses this pool: on a simulated machine, its disk.
    pub(crate) fn open_on(pool: &CpuPool, path: &Path, may_be_new: bool) -> Result<Self, Fault> {
        #[cfg(feature = "simulation")]
        if let Some(machine) = pool.machine() {
            let disk = Arc::clone(&machine.disk);
            let open = |path: &Path| crate::simulated::open(path, disk);
            let (database, (bans, stored)) = Self::open_file(path, may_be_new, open)?;
            let (sender, alive) = watch::channel(());
            return Ok(Self {
                writer: Writer::Caller(Mutex::new(Some((database, sender)))),
                bans: Arc::new(RwLock::new(bans)),
                stored: Mutex::new(stored),
                alive,
            });
        }
        #[cfg(not(feature = "simulation"))]
        let _ = pool;
        Self::open(path, may_be_new)
    }

    fn open_file(
        path: &Path,
        may_be_new: bool,
        open: impl FnOnce(&Path) -> Result<Database, redb::Error>,
    ) -> Result<(Database, (Bans, Stored)), Fault> {
        let refuse = |problem: &str| {
            let sentence = format!("claims file {}: {problem}", path.display());
            Fault::new(Class::Invalid, sentence)
        };
        let failed = |cause: redb::Error| refuse("cannot be opened").caused_by(cause);
        let length = match fs::metadata(path) {
            Ok(metadata) => Some(metadata.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(refuse("cannot be read").caused_by(error)),
        };
        let new = length.is_none_or(|length| length == 0);
        if new && !may_be_new {
            return Err(refuse(
                "is missing, but this node holds shares: it does not know any more what it has promised \
                 never to sign. If it was moved, bring back this very file, never an older copy. If it \
                 is lost, move the folder shares away, start the node, and have it given new ones: \
                 covault vault refresh --lost KEY",
            ));
        }
        if new {
            make(path).map_err(|cause| refuse("cannot be made").caused_by(cause))?;
        }
        let database = open(path).map_err(failed)?;
        let loaded = load(&database).map_err(failed)?;
        Ok((database, loaded))
    }

    /// Claims in a database on storage of the caller's choice, for crash tests: nothing of it is
    /// locked against another process.
    ///
    /// # Errors
    /// [`Class::Invalid`] when it is damaged.
    pub fn on(storage: impl redb::StorageBackend) -> Result<Self, Fault> {
        let failed = |cause: redb::Error| {
            Fault::new(Class::Invalid, "the claims database is damaged").caused_by(cause)
        };
        let database = Database::builder()
            .create_with_backend(storage)
            .map_err(|cause| failed(cause.into()))?;
        let loaded = load(&database).map_err(failed)?;
        Self::serve(database, loaded)
    }

    fn serve(database: Database, (bans, stored): (Bans, Stored)) -> Result<Self, Fault> {
        let bans = Arc::new(RwLock::new(bans));
        let (queue, jobs) = mpsc::sync_channel(WAITING);
        let writer_bans = Arc::clone(&bans);
        let (sender, alive) = watch::channel(());
        thread::Builder::new()
            .name("covault-claims".into())
            .spawn(move || {
                // Dropped when the thread ends, however it ends.
                let _alive = sender;
                write(&database, &jobs, &writer_bans);
            })
            .map_err(Fault::bug)?;
        Ok(Self {
            writer: Writer::Thread(queue),
            bans,
            stored: Mutex::new(stored),
            alive,
        })
    }

    /// Returns when nothing can be claimed any more: the disk has failed.
    pub async fn broken(&self) {
        let mut alive = self.alive.clone();
        // Nothing is ever sent; an error says that the writer is gone.
        while alive.changed().await.is_ok() {}
    }

    /// Whether nothing can be claimed any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.alive.has_changed().is_err()
    }

    /// Claims; on disk when it returns.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub async fn claim(&self, claim: Claim) -> Result<(), ClaimError> {
        self.ask(|reply| Job::Claim(claim, None, reply)).await?;
        Ok(())
    }

    /// Claims, and takes the nonces that the session is to use out of the store, in one
    /// transaction; on disk when it returns. Also when the claim is refused they are gone.
    pub(crate) async fn claim_with(&self, claim: Claim, take: Option<Take>) -> Outcome {
        self.ask(|reply| Job::Claim(claim, take, reply)).await
    }

    /// Adds nonces; on disk when it returns.
    pub(crate) async fn keep_nonces(
        &self,
        of: ShareEpoch,
        rows: Vec<NonceRow>,
    ) -> Result<(), ClaimError> {
        self.ask(|reply| Job::KeepNonces(of, rows, reply)).await?;
        Ok(())
    }

    /// Deletes nonces; on disk when it returns. Those that are not there do no harm.
    pub(crate) async fn burn_nonces(
        &self,
        of: ShareEpoch,
        ids: Vec<u64>,
    ) -> Result<(), ClaimError> {
        self.ask(|reply| Job::BurnNonces(of, ids, reply)).await?;
        Ok(())
    }

    /// What the file held of nonces when it was opened; once.
    pub(crate) fn stored_nonces(&self) -> Stored {
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut stored)
    }

    /// Bans `node` from the key; on disk when it returns.
    ///
    /// # Errors
    /// [`ClaimError::Store`].
    pub async fn ban(&self, root: &[u8], node: NodeId, now_ms: u64) -> Result<(), ClaimError> {
        // In force at once, whatever becomes of the disk.
        self.ban_now(root, node);
        self.ask(|reply| Job::Ban {
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
        self.bans
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((root.to_vec(), node));
    }

    /// Every ban: the root public key and who is banned from it, in no order.
    pub fn bans(&self) -> Vec<(Vec<u8>, NodeId)> {
        let bans = self.bans.read().unwrap_or_else(PoisonError::into_inner);
        bans.iter().cloned().collect()
    }

    /// Whether `node` is banned from the key.
    pub fn banned(&self, root: &[u8], node: &NodeId) -> bool {
        let bans = self.bans.read().unwrap_or_else(PoisonError::into_inner);
        !bans.is_empty() && bans.contains(&(root.to_vec(), *node))
    }

    async fn ask(&self, job: impl FnOnce(oneshot::Sender<Outcome>) -> Job) -> Outcome {
        let (reply, outcome) = oneshot::channel();
        self.put(job(reply)).map_err(ClaimError::Store)?;
        outcome
            .await
            .unwrap_or_else(|_| Err(ClaimError::Store("the writer is gone".into())))
    }

    fn put(&self, job: Job) -> Result<(), String> {
        match &self.writer {
            Writer::Thread(queue) => queue.try_send(job).map_err(|error| match error {
                mpsc::TrySendError::Full(_) => "too many wait".into(),
                mpsc::TrySendError::Disconnected(_) => "the writer is gone".into(),
            }),
            #[cfg(feature = "simulation")]
            Writer::Caller(database) => {
                let mut database = database.lock().unwrap_or_else(PoisonError::into_inner);
                let (file, _) = database.as_ref().ok_or("the writer is gone")?;
                if !settle(file, vec![job], &self.bans) {
                    *database = None;
                }
                Ok(())
            }
        }
    }
}

/// Makes a new file, for its owner only. One that is cut off while redb lays it out never opens
/// again; therefore it gets its name once it is whole.
fn make(path: &Path) -> Result<(), redb::Error> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)?;
    load(&Database::builder().create_file(file.try_clone()?)?)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::File::open(folder)?.sync_all()?;
    Ok(())
}

/// Makes the tables that are missing, and reads bans and nonces.
fn load(database: &Database) -> Result<(Bans, Stored), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(REQUESTS)?;
    transaction.open_table(SESSIONS)?;
    transaction.open_table(BANS)?;
    transaction.open_table(SPENT)?;
    nonce_table::make(&transaction)?;
    transaction.commit()?;
    let mut bans = Bans::new();
    let transaction = database.begin_read()?;
    for entry in transaction.open_table(BANS)?.iter()? {
        let (key, _) = entry?;
        let (root, node) = key.value();
        bans.insert((root.to_vec(), NodeId(*node)));
    }
    Ok((bans, nonce_table::load(&transaction)?))
}

fn write(database: &Database, jobs: &mpsc::Receiver<Job>, bans: &RwLock<Bans>) {
    while let Ok(first) = jobs.recv() {
        let mut batch = vec![first];
        while batch.len() < BATCH {
            let Ok(next) = jobs.try_recv() else { break };
            batch.push(next);
        }
        if !settle(database, batch, bans) {
            return;
        }
    }
}

/// Writes a batch and tells who waits; false when the disk has failed.
fn settle(database: &Database, batch: Vec<Job>, bans: &RwLock<Bans>) -> bool {
    let committed = commit(database, &batch);
    if let Err(error) = &committed {
        tracing::error!(%error, "claims cannot be written");
    }
    let failed = committed.as_ref().err().map(ToString::to_string);
    let mut outcomes = committed.unwrap_or_default().into_iter();
    for job in batch {
        let outcome = match &failed {
            Some(error) => Err(ClaimError::Store(error.clone())),
            None => outcomes
                .next()
                .unwrap_or_else(|| Err(ClaimError::Store("lost".into()))),
        };
        let reply = match job {
            Job::Claim(_, _, reply)
            | Job::KeepNonces(_, _, reply)
            | Job::BurnNonces(_, _, reply) => reply,
            Job::Ban {
                root, node, reply, ..
            } => {
                bans.write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert((root, node));
                reply
            }
        };
        // Nobody waits any more: the claim stands all the same.
        let _ = reply.send(outcome);
    }
    failed.is_none()
}

/// All jobs of a batch in one transaction; each outcome counts only when the commit succeeds.
fn commit(database: &Database, batch: &[Job]) -> Result<Vec<Outcome>, redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    transaction.set_two_phase_commit(true);
    let mut outcomes = Vec::with_capacity(batch.len());
    for job in batch {
        outcomes.push(match job {
            Job::Claim(claim, take, _) => {
                // First, and whatever becomes of the claim: what was named once is used up.
                let taken = match take {
                    Some(take) => nonce_table::take(&transaction, take)?,
                    None => Some(Vec::new()),
                };
                match taken {
                    Some(rows) => grant(&transaction, claim)?.map(|()| rows),
                    None => Err(ClaimError::NonceGone),
                }
            }
            Job::KeepNonces(of, rows, _) => {
                nonce_table::keep(&transaction, of, rows)?;
                Ok(Vec::new())
            }
            Job::BurnNonces(of, ids, _) => {
                nonce_table::burn(&transaction, of, ids)?;
                Ok(Vec::new())
            }
            Job::Ban {
                root, node, now_ms, ..
            } => {
                transaction
                    .open_table(BANS)?
                    .insert((root.as_slice(), &node.0), *now_ms)?;
                Ok(Vec::new())
            }
        });
    }
    transaction.commit()?;
    Ok(outcomes)
}

fn grant(
    transaction: &WriteTransaction,
    claim: &Claim,
) -> Result<Result<(), ClaimError>, redb::Error> {
    let mut sessions = transaction.open_table(SESSIONS)?;
    let session = (claim.session.as_bytes(), claim.attempt);
    if sessions.get(session)?.is_some() {
        return Ok(Err(ClaimError::SessionUsed));
    }
    if let Some((request, digest)) = &claim.digest {
        let mut table = transaction.open_table(REQUESTS)?;
        let known = table
            .get(request.as_bytes())?
            .map(|known| known.value() == digest);
        match known {
            None => {
                if let Err(over) = count(transaction, &claim.spending, claim.now_ms)? {
                    return Ok(Err(over));
                }
                table.insert(request.as_bytes(), digest)?;
            }
            // The same transaction again: it cannot be sent twice, and was counted.
            Some(true) => {}
            Some(false) => return Ok(Err(ClaimError::OtherDigest)),
        }
    }
    sessions.insert(session, claim.now_ms)?;
    Ok(Ok(()))
}

/// Adds to the totals of the day; to none when one would be above its limit.
fn count(
    transaction: &WriteTransaction,
    spending: &[Spending],
    now_ms: u64,
) -> Result<Result<(), ClaimError>, redb::Error> {
    if spending.is_empty() {
        return Ok(Ok(()));
    }
    let day = now_ms / DAY_MS;
    let mut spent = transaction.open_table(SPENT)?;
    if spent
        .range((day, "")..(day.saturating_add(1), ""))?
        .next()
        .is_none()
    {
        spent.retain_in(..(day.saturating_sub(KEPT_DAYS), ""), |_, _| false)?;
    }
    let mut totals = Vec::with_capacity(spending.len());
    for Spending {
        asset,
        amount,
        most_per_day,
    } in spending
    {
        let known = spent
            .get((day, asset.as_str()))?
            .map_or(U256::ZERO, |known| U256::from_be_bytes(*known.value()));
        let total = known.saturating_add(*amount);
        if most_per_day.is_some_and(|most| total > most) {
            return Ok(Err(ClaimError::OverDay(asset.clone())));
        }
        totals.push((asset, total.to_be_bytes::<32>()));
    }
    for (asset, total) in totals {
        spent.insert((day, asset.as_str()), &total)?;
    }
    Ok(Ok(()))
}

#[cfg(test)]
#[path = "claims_tests.rs"]
#[allow(non_snake_case)]
mod tests;
