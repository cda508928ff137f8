//! A node's durable claims: what it has promised never to do again.
//!
//! - The first digest that a node agrees to sign for a request is the only one, for ever. It covers
//!   all inputs at once, so that a request cannot grow.
//! - A session attempt is run once, also after a restart.
//! - A peer that cheated in a way that leaks key material is banned from that key for good.
//!
//! A claim is on disk, fsynced, before its caller goes on. One thread writes: it drains its queue
//! into one transaction, so that many claims share the price of one commit. When a commit fails, the
//! writer ends, and so must its node: what is on disk is unknown until the file is opened again.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock, mpsc},
    thread,
};

use covault_core::{
    fault::{Class, Fault},
    ids::{RequestId, SessionId},
    order::NodeId,
};
use redb::{
    Database, Durability, ReadableDatabase as _, ReadableTable as _, TableDefinition,
    WriteTransaction,
};
use tokio::sync::{oneshot, watch};

use crate::pool::CpuPool;

/// Request -> digest over all its inputs.
const REQUESTS: TableDefinition<'_, &[u8; 16], &[u8; 32]> = TableDefinition::new("requests.1");
/// (session, attempt) -> when, in milliseconds since the Unix epoch.
const SESSIONS: TableDefinition<'_, (&[u8; 16], u32), u64> = TableDefinition::new("sessions.1");
/// (root public key, node) -> when, in milliseconds since the Unix epoch.
const BANS: TableDefinition<'_, (&[u8], &[u8; 32]), u64> = TableDefinition::new("bans.1");

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
    /// Now, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

enum Job {
    Claim(Claim, oneshot::Sender<Result<(), ClaimError>>),
    Ban {
        root: Vec<u8>,
        node: NodeId,
        now_ms: u64,
        reply: oneshot::Sender<Result<(), ClaimError>>,
    },
}

type Bans = HashSet<(Vec<u8>, NodeId)>;

/// The claims of one node. The file is locked while open: a folder serves one process.
pub struct Claims {
    writer: Writer,
    bans: Arc<RwLock<Bans>>,
    /// Closed when the writer is gone.
    alive: watch::Receiver<()>,
}

enum Writer {
    /// A thread.
    Thread(mpsc::SyncSender<Job>),
    /// Whoever claims; gone once the disk has failed.
    #[cfg(feature = "simulation")]
    Caller(std::sync::Mutex<Option<(Database, watch::Sender<()>)>>),
}

impl Claims {
    /// Opens the file. Makes it when missing, if it `may_be_new`: a node that holds shares has made
    /// promises, and without them it could be made to sign anything again.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when it is missing but must not be, is damaged, or
    /// another process has it.
    pub fn open(path: &Path, may_be_new: bool) -> Result<Self, Fault> {
        let (database, bans) = Self::open_file(path, may_be_new, |path| Ok(Database::open(path)?))?;
        Self::serve(database, bans)
    }

    /// As [`Claims::open`], for a node that uses this pool: on a simulated machine, its disk.
    pub(crate) fn open_on(pool: &CpuPool, path: &Path, may_be_new: bool) -> Result<Self, Fault> {
        #[cfg(feature = "simulation")]
        if let Some(machine) = pool.machine() {
            let full = Arc::clone(&machine.disk_full);
            let open = |path: &Path| crate::simulated::open(path, full);
            let (database, bans) = Self::open_file(path, may_be_new, open)?;
            let (sender, alive) = watch::channel(());
            return Ok(Self {
                writer: Writer::Caller(std::sync::Mutex::new(Some((database, sender)))),
                bans: Arc::new(RwLock::new(bans)),
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
    ) -> Result<(Database, Bans), Fault> {
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
                "is missing, but this node holds shares. Without it the node no longer knows what it \
                 has promised never to sign: put the file back",
            ));
        }
        if new {
            make(path).map_err(|cause| refuse("cannot be made").caused_by(cause))?;
        }
        let database = open(path).map_err(failed)?;
        let bans = load(&database).map_err(failed)?;
        Ok((database, bans))
    }

    fn serve(database: Database, bans: Bans) -> Result<Self, Fault> {
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
            alive,
        })
    }

    /// Returns when nothing can be claimed any more: the disk has failed.
    pub async fn broken(&self) {
        let mut alive = self.alive.clone();
        // Nothing is ever sent; an error says that the writer is gone.
        while alive.changed().await.is_ok() {}
    }

    /// Claims; on disk when it returns.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub async fn claim(&self, claim: Claim) -> Result<(), ClaimError> {
        self.ask(|reply| Job::Claim(claim, reply)).await
    }

    /// Bans `node` from the key; on disk when it returns.
    ///
    /// # Errors
    /// [`ClaimError::Store`].
    pub async fn ban(&self, root: &[u8], node: NodeId, now_ms: u64) -> Result<(), ClaimError> {
        // In force at once, whatever becomes of the disk.
        self.bans
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((root.to_vec(), node));
        self.ask(|reply| Job::Ban {
            root: root.to_vec(),
            node,
            now_ms,
            reply,
        })
        .await
    }

    /// Whether `node` is banned from the key.
    pub fn banned(&self, root: &[u8], node: &NodeId) -> bool {
        let bans = self.bans.read().unwrap_or_else(PoisonError::into_inner);
        !bans.is_empty() && bans.contains(&(root.to_vec(), *node))
    }

    async fn ask(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<(), ClaimError>>) -> Job,
    ) -> Result<(), ClaimError> {
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

/// Makes the tables that are missing, and reads the bans.
fn load(database: &Database) -> Result<Bans, redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(REQUESTS)?;
    transaction.open_table(SESSIONS)?;
    transaction.open_table(BANS)?;
    transaction.commit()?;
    let mut bans = Bans::new();
    for entry in database.begin_read()?.open_table(BANS)?.iter()? {
        let (key, _) = entry?;
        let (root, node) = key.value();
        bans.insert((root.to_vec(), NodeId(*node)));
    }
    Ok(bans)
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
            Job::Claim(_, reply) => reply,
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
fn commit(database: &Database, batch: &[Job]) -> Result<Vec<Result<(), ClaimError>>, redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    transaction.set_two_phase_commit(true);
    let mut outcomes = Vec::with_capacity(batch.len());
    for job in batch {
        outcomes.push(match job {
            Job::Claim(claim, _) => grant(&transaction, claim)?,
            Job::Ban {
                root, node, now_ms, ..
            } => {
                transaction
                    .open_table(BANS)?
                    .insert((root.as_slice(), &node.0), *now_ms)?;
                Ok(())
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
                table.insert(request.as_bytes(), digest)?;
            }
            Some(true) => {}
            Some(false) => return Ok(Err(ClaimError::OtherDigest)),
        }
    }
    sessions.insert(session, claim.now_ms)?;
    Ok(Ok(()))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn claim(session: u8, attempt: u32, digest: u8) -> Claim {
        Claim {
            session: SessionId::from_bytes([session; 16]),
            attempt,
            digest: Some((RequestId::from_bytes([1; 16]), [digest; 32])),
            now_ms: 1,
        }
    }

    #[tokio::test]
    async fn claims__should_open_after_a_first_start_that_was_cut_off() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claims.redb");
        // What redb leaves when it is killed before it has written its magic number.
        fs::write(folder.path().join("claims.redb.new"), [0; 4096]).unwrap();
        let claims = Claims::open(&path, true).unwrap();
        claims.claim(claim(1, 0, 7)).await.unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[tokio::test]
    async fn claims__should_stand_across_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claims.redb");
        let claims = Claims::open(&path, true).unwrap();
        claims.claim(claim(1, 0, 7)).await.unwrap();
        claims.ban(&[5; 33], NodeId([6; 32]), 1).await.unwrap();
        assert!(
            Claims::open(&path, true).is_err(),
            "a second process must not have it"
        );
        drop(claims);
        let claims = reopen(&path).await;
        assert_eq!(
            claims.claim(claim(1, 0, 7)).await,
            Err(ClaimError::SessionUsed)
        );
        assert_eq!(
            claims.claim(claim(2, 0, 9)).await,
            Err(ClaimError::OtherDigest)
        );
        // The refused claim left nothing behind: the session may still be used.
        assert_eq!(claims.claim(claim(2, 0, 7)).await, Ok(()));
        assert_eq!(claims.claim(claim(2, 1, 7)).await, Ok(()));
        assert!(claims.banned(&[5; 33], &NodeId([6; 32])));
        assert!(!claims.banned(&[4; 33], &NodeId([6; 32])));
        assert!(!claims.banned(&[5; 33], &NodeId([5; 32])));
    }

    /// The writer thread lets go of the file a moment after its owner.
    async fn reopen(path: &Path) -> Claims {
        for _ in 0..500 {
            if let Ok(claims) = Claims::open(path, false) {
                return claims;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("the claims file stays locked");
    }

    #[tokio::test]
    async fn claims__should_let_one_of_many_rivals_win() {
        let folder = tempfile::tempdir().unwrap();
        let claims = Arc::new(Claims::open(&folder.path().join("claims.redb"), true).unwrap());
        let rivals: Vec<_> = (0..100_u8)
            .map(|digest| {
                let claims = Arc::clone(&claims);
                tokio::spawn(async move { claims.claim(claim(digest, 0, digest)).await })
            })
            .collect();
        let mut won = 0;
        for rival in rivals {
            match rival.await.unwrap() {
                Ok(()) => won += 1,
                Err(error) => assert_eq!(error, ClaimError::OtherDigest),
            }
        }
        assert_eq!(won, 1);
    }

    #[tokio::test]
    async fn claims__should_not_be_made_anew_where_they_were_lost() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claims.redb");
        let fault = Claims::open(&path, false).err().unwrap();
        assert!(fault.public().contains("is missing"), "{fault:?}");
        // Nor is an empty file taken for one without promises.
        fs::write(&path, b"").unwrap();
        assert!(Claims::open(&path, false).is_err());
        fs::remove_file(&path).unwrap();
        drop(Claims::open(&path, true).unwrap());
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(reopen(&path).await);
    }

    /// Memory that stops taking writes on command.
    #[derive(Debug, Default)]
    struct Disk {
        memory: redb::backends::InMemoryBackend,
        full: Arc<std::sync::atomic::AtomicBool>,
    }

    impl redb::StorageBackend for Disk {
        fn len(&self) -> io::Result<u64> {
            self.memory.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.memory.read(offset, out)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.memory.set_len(len)
        }

        fn sync_data(&self) -> io::Result<()> {
            if self.full.load(std::sync::atomic::Ordering::Relaxed) {
                return Err(io::Error::other("no space left"));
            }
            self.memory.sync_data()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.memory.write(offset, data)
        }
    }

    #[tokio::test]
    async fn claims__should_say_that_they_are_broken_when_the_disk_fails() {
        let disk = Disk::default();
        let full = Arc::clone(&disk.full);
        let database = Database::builder().create_with_backend(disk).unwrap();
        let bans = load(&database).unwrap();
        let claims = Claims::serve(database, bans).unwrap();
        claims.claim(claim(1, 0, 7)).await.unwrap();
        full.store(true, std::sync::atomic::Ordering::Relaxed);
        let refused = claims.claim(claim(2, 0, 7)).await;
        assert!(matches!(refused, Err(ClaimError::Store(_))), "{refused:?}");
        claims.broken().await;
        let refused = claims.claim(claim(3, 0, 7)).await;
        assert!(matches!(refused, Err(ClaimError::Store(_))), "{refused:?}");
    }
}
