//! kill -9 at every step around the use of a nonce.
//!
//! A child process, this test binary again, signs with nonces of its store. At a step that the seed
//! picks it stops, and is killed. Its disk loses what was not synced, or keeps some of it. Then the
//! next child starts from what is left, and is asked again, also for nonces that were named before.
//! Whatever share came out of a child is kept: none of its nonces may ever sign twice.
//!
//! `COVAULT_NONCE_RUNS` says how many children there are, `COVAULT_NONCE_SEED` where the seeds begin.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::fs::FileExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use covault_core::testing::SystemEntropy;
use covault_core::{
    derive::{KeyPath, RootKey},
    ids::{RequestId, SessionId},
    port::Entropy,
    scheme::Scheme,
    signature::Signature,
};
use covault_mpc::{
    backend::{self, Commitments, KeyShare, KeygenSetup, Session, SignSetup, Signer, SignerIndex},
    claims::{Claim, Claims},
    preprocess::{NonceSelection, NonceStore},
    shares::ShareEpoch,
};
use zeroize::Zeroizing;

/// SplitMix64 (Steele, Lea, Flood 2014): choices that a seed repeats.
struct SplitMix64(u64);

impl SplitMix64 {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }
}

fn setup(message: &[u8]) -> SignSetup {
    SignSetup {
        context: [7; 32],
        signers: vec![1, 2],
        path: KeyPath::new(vec![0, 3]).unwrap(),
        message: message.to_vec(),
    }
}

fn shares_of(root: &RootKey) -> ShareEpoch {
    ShareEpoch {
        root: root.public_key.clone(),
        epoch: 0,
    }
}

fn load(folder: &Path) -> (RootKey, Arc<dyn Signer>) {
    let bytes = fs::read(folder.join("share")).unwrap();
    let (root, secret): (RootKey, Vec<u8>) = bcs::from_bytes(&bytes).unwrap();
    let share = KeyShare {
        root: root.clone(),
        secret: Zeroizing::new(secret),
    };
    let backend = backend::of(Scheme::FrostEd25519).unwrap();
    (root, backend.open(&share).unwrap())
}

// ---- the child ----

/// Counts steps, and stops for good at one of them.
struct CrashCounter {
    count: AtomicU64,
    kill_at: u64,
}

impl CrashCounter {
    fn pass(&self, name: &str, disk: Option<&CrashDisk>) {
        if self.count.fetch_add(1, Ordering::SeqCst) + 1 != self.kill_at {
            return;
        }
        if let Some(disk) = disk {
            disk.lose();
        }
        say(&format!("@kill {name}"));
        loop {
            std::thread::park();
        }
    }
}

/// A file whose writes are sure only once they are synced.
struct CrashDisk {
    file: File,
    waiting: Mutex<Vec<(u64, Vec<u8>)>>,
    steps: Arc<CrashCounter>,
    dice: Mutex<SplitMix64>,
}

impl std::fmt::Debug for CrashDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Disk")
    }
}

impl CrashDisk {
    /// The power fails: of what waits, some has come to the disk, in no order.
    fn lose(&self) {
        let mut dice = self.dice.lock().unwrap();
        let keeps = dice.roll(3);
        for (offset, bytes) in self.waiting.lock().unwrap().iter() {
            // None, some, or all.
            if keeps == 2 || (keeps == 1 && dice.roll(2) == 1) {
                self.file.write_all_at(bytes, *offset).unwrap();
            }
        }
    }
}

impl redb::StorageBackend for CrashDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)?;
        let end = offset + out.len() as u64;
        for (at, bytes) in self.waiting.lock().unwrap().iter() {
            let (from, to) = (offset.max(*at), end.min(at + bytes.len() as u64));
            if from < to {
                let source = &bytes[(from - at) as usize..(to - at) as usize];
                out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.steps.pass("set_len", Some(self));
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.steps.pass("sync", Some(self));
        for (offset, bytes) in self.waiting.lock().unwrap().drain(..) {
            self.file.write_all_at(&bytes, offset)?;
        }
        self.steps.pass("synced", None);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.steps.pass("write", Some(self));
        self.waiting.lock().unwrap().push((offset, data.to_vec()));
        Ok(())
    }
}

/// A line in one write, which a pipe takes as a whole: the process may be killed by another of its threads.
fn say(line: &str) {
    io::stderr()
        .write_all(format!("{line}\n").as_bytes())
        .unwrap();
}

/// Run by the test below, with a folder.
#[test]
#[ignore = "the child of nonces__should_sign_once_through_kill_9"]
fn child__should_sign_until_it_is_killed() {
    let Ok(folder) = std::env::var("COVAULT_NONCE_CHILD") else {
        return;
    };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let folder = Path::new(&folder);
    let steps = Arc::new(CrashCounter {
        count: AtomicU64::new(0),
        kill_at: number("COVAULT_NONCE_KILL_AT"),
    });
    let path = folder.join("claims.redb");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap();
    let disk = CrashDisk {
        file,
        waiting: Mutex::default(),
        steps: Arc::clone(&steps),
        dice: Mutex::new(SplitMix64(number("COVAULT_NONCE_DICE"))),
    };
    let (root, signer) = load(folder);
    let of = shares_of(&root);
    let claims = Claims::on(disk).unwrap();
    let nonces = NonceStore::new(b"keyring", &claims).unwrap();
    if nonces.level(&of) < 4 {
        let made = (0..8).map(|_| signer.make_nonce(&SystemEntropy).unwrap().unwrap());
        let kept = nonces.keep(&claims, &of, made.collect(), &SystemEntropy);
        futures::executor::block_on(kept).unwrap();
    }
    for (id, commitments) in nonces.ready(&of) {
        say(&format!("@have {id} {}", hex::encode(commitments)));
    }
    steps.pass("ready", None);
    say("@ready");
    for line in io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let bytes = |place: usize| hex::decode(words[place]).unwrap();
        let (session, message, theirs) = (bytes(0), bytes(1), bytes(2));
        let ids: Vec<u64> = words[3..].iter().map(|id| id.parse().unwrap()).collect();
        let claim = Claim {
            session: SessionId::from_bytes(session.clone().try_into().unwrap()),
            attempt: 0,
            digest: Some((
                RequestId::from_bytes(session.try_into().unwrap()),
                message.clone().try_into().unwrap(),
            )),
            transaction: None,
            spending: Vec::new(),
            now_ms: 1,
            root: Vec::new(),
            approved_until_ms: None,
            hold: None,
        };
        let take = NonceSelection {
            of: of.clone(),
            ids,
        };
        steps.pass("asked", None);
        let taken = futures::executor::block_on(nonces.claim(&claims, claim, Some(take)));
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => {
                say(&format!("@refused {error}"));
                continue;
            }
        };
        steps.pass("claimed", None);
        let own = nonces.open(taken).unwrap().remove(0);
        steps.pass("opened", None);
        let theirs = Arc::new(Commitments::parse(theirs).unwrap());
        let peers = BTreeMap::from([(1, theirs)]);
        let mut session = signer
            .sign_preprocessed(setup(&message), own, peers)
            .unwrap();
        let output = session.start(&SystemEntropy).unwrap();
        steps.pass("share made", None);
        say(&format!(
            "@share {}",
            hex::encode(output.send[0].body.as_slice())
        ));
        steps.pass("share left", None);
    }
    say(&format!("@steps {}", steps.count.load(Ordering::SeqCst)));
}

// ---- the parent ----

fn keygen() -> BTreeMap<SignerIndex, KeyShare> {
    let mut parties: BTreeMap<SignerIndex, Box<dyn Session<KeyShare>>> = (1..=2)
        .map(|me| {
            let setup = KeygenSetup {
                context: [0; 32],
                me,
                threshold: 2,
                parties: 2,
            };
            let backend = backend::of(Scheme::FrostEd25519).unwrap();
            (me, backend.keygen(setup).unwrap())
        })
        .collect();
    let mut queue = Vec::new();
    for (me, session) in &mut parties {
        let output = session.start(&SystemEntropy).unwrap();
        queue.extend(output.send.into_iter().map(|message| (*me, message)));
    }
    let mut shares = BTreeMap::new();
    while let Some((from, message)) = queue.pop() {
        let to = message.to;
        let session = parties.get_mut(&to).unwrap();
        let output = session.receive(from, message.round, message.body).unwrap();
        queue.extend(output.send.into_iter().map(|message| (to, message)));
        shares.extend(output.done.map(|share| (to, share)));
    }
    shares
}

/// A request that a child was sent.
struct SentRequest {
    message: Vec<u8>,
    /// The number it was told to use.
    id: u64,
    collector: Box<dyn Session<Option<Signature>>>,
}

/// A folder that children live and die in, and what they have let out.
struct CrashFixture {
    folder: tempfile::TempDir,
    root: RootKey,
    collector: Arc<dyn Signer>,
    /// Every nonce there ever was.
    known: BTreeMap<u64, Vec<u8>>,
    /// What signed what.
    signed: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Steps of a child that nobody kills.
    steps: u64,
}

/// How a child ended.
struct ChildExit {
    killed_at: Option<String>,
    shares: usize,
    refused: usize,
}

impl CrashFixture {
    fn new() -> Self {
        let mut shares = keygen();
        let own = shares.remove(&1).unwrap();
        let child = shares.remove(&2).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let bytes = bcs::to_bytes(&(&child.root, child.secret.to_vec())).unwrap();
        fs::write(folder.path().join("share"), bytes).unwrap();
        let backend = backend::of(Scheme::FrostEd25519).unwrap();
        let mut life = Self {
            folder,
            root: own.root.clone(),
            collector: backend.open(&own).unwrap(),
            known: BTreeMap::new(),
            signed: BTreeMap::new(),
            steps: 0,
        };
        // Without a kill: the file is made elsewhere and renamed when it is whole.
        let end = life.run(0, 0);
        assert_eq!(end.killed_at, None);
        assert!(end.shares > 0 && life.steps > 20, "{} steps", life.steps);
        life
    }

    fn spawn(&self, kill_at: u64, seed: u64) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "nonce_crash::child__should_sign_until_it_is_killed",
            ])
            .args(["--ignored", "--nocapture", "--test-threads=1"])
            .env("COVAULT_NONCE_CHILD", self.folder.path())
            .env("COVAULT_NONCE_KILL_AT", kill_at.to_string())
            .env("COVAULT_NONCE_DICE", seed.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// What the child is asked: fresh numbers, and by chance some that were named before.
    fn ask(&self, fresh: &[u64], dice: &mut SplitMix64) -> (SentRequest, String) {
        let mut message = vec![0; 32];
        SystemEntropy.fill(&mut message);
        let mut session = [0; 16];
        SystemEntropy.fill(&mut session);
        let old: Vec<u64> = self.known.keys().copied().collect();
        let id = match dice.roll(3) {
            0 => old[dice.roll(old.len() as u64) as usize],
            _ => fresh[dice.roll(fresh.len() as u64) as usize],
        };
        let own = self.collector.make_nonce(&SystemEntropy).unwrap().unwrap();
        let line = format!(
            "{} {} {} {id}\n",
            hex::encode(session),
            hex::encode(&message),
            hex::encode(&own.commitments)
        );
        let theirs = Commitments::parse(self.known[&id].clone()).unwrap();
        let peers = BTreeMap::from([(2, Arc::new(theirs))]);
        let mut collector = self
            .collector
            .sign_preprocessed(setup(&message), own, peers)
            .unwrap();
        collector.start(&SystemEntropy).unwrap();
        let asked = SentRequest {
            message,
            id,
            collector,
        };
        (asked, line)
    }

    /// One child, from its start to its end; asked for four signatures.
    fn run(&mut self, kill_at: u64, seed: u64) -> ChildExit {
        let mut dice = SplitMix64(seed);
        let mut child = self.spawn(kill_at, seed);
        let mut stdin = child.stdin.take();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut end = ChildExit {
            killed_at: None,
            shares: 0,
            refused: 0,
        };
        let mut fresh = Vec::new();
        let mut asked = std::collections::VecDeque::new();
        let mut log = Vec::new();
        let mut whole = false;
        for line in lines {
            let line = line.unwrap();
            log.push(line.clone());
            let words: Vec<&str> = line.split(' ').collect();
            match words[0] {
                "@have" => {
                    let (id, commitments) = (words[1].parse().unwrap(), hex::decode(words[2]));
                    let commitments = commitments.unwrap();
                    let known = self.known.entry(id).or_insert_with(|| commitments.clone());
                    assert_eq!(*known, commitments, "number {id} was given twice");
                    fresh.push(id);
                }
                "@ready" => {
                    let mut stdin = stdin.take().unwrap();
                    for _ in 0..4 {
                        let (request, line) = self.ask(&fresh, &mut dice);
                        asked.push_back(request);
                        // It may be dead already.
                        let _ = stdin.write_all(line.as_bytes());
                    }
                }
                "@refused" => {
                    asked.pop_front();
                    end.refused += 1;
                }
                "@share" => {
                    let SentRequest {
                        message,
                        id,
                        mut collector,
                    } = asked.pop_front().unwrap();
                    let body = Zeroizing::new(hex::decode(words[1]).unwrap());
                    // It is of this nonce and this message, or it would not fit.
                    let output = collector.receive(2, 2, body).unwrap();
                    self.verify(&message, &output.done.unwrap().unwrap());
                    let before = self.signed.insert(self.known[&id].clone(), message);
                    assert!(before.is_none(), "nonce {id} has signed twice");
                    end.shares += 1;
                }
                "@kill" => {
                    end.killed_at = Some(words[1..].join(" "));
                    // SIGKILL.
                    child.kill().unwrap();
                }
                "@steps" => {
                    whole = true;
                    self.steps = self.steps.max(words[1].parse().unwrap());
                }
                _ => {}
            }
        }
        child.wait().unwrap();
        assert!(
            whole || end.killed_at.is_some(),
            "the child failed: {log:?}"
        );
        end
    }

    fn verify(&self, message: &[u8], signature: &Signature) {
        let child = self.root.child(&setup(message).path).unwrap();
        let key = ed25519_dalek::VerifyingKey::try_from(&child.public_key[..]).unwrap();
        let plain = ed25519_dalek::Signature::from_bytes(&signature.to_bytes());
        key.verify_strict(message, &plain).unwrap();
    }
}

#[test]
fn nonces__should_sign_once_through_kill_9() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap())
    };
    let runs = number("COVAULT_NONCE_RUNS", 1000);
    let first = number("COVAULT_NONCE_SEED", 1);
    let mut life = CrashFixture::new();
    let mut steps = life.steps;
    let mut visited = BTreeSet::new();
    let (mut shares, mut refused) = (0, 0);
    let mut killed: BTreeMap<String, usize> = BTreeMap::new();
    for run in 0..runs {
        if run > 0 && run % 50 == 0 {
            life = CrashFixture::new();
        }
        let seed = first + run;
        // Each step in turn, and once round again with other dice.
        let kill_at = 1 + (run + first) % steps;
        visited.insert(kill_at);
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| life.run(kill_at, seed)));
        let end = outcome.unwrap_or_else(|_| {
            panic!("COVAULT_NONCE_RUNS={} COVAULT_NONCE_SEED={first} fails at seed {seed}, step {kill_at}", run + 1)
        });
        steps = steps.max(life.steps);
        shares += end.shares;
        refused += end.refused;
        *killed.entry(end.killed_at.unwrap_or_default()).or_default() += 1;
    }
    println!("{runs} children, {shares} shares, {refused} refused; killed at {killed:?}");
    assert!(shares > 0 && refused > 0);
    if runs >= 1000 {
        assert!((1..=steps).eq(visited), "of {steps} steps");
    }
    if runs >= 100 {
        let names: BTreeSet<&str> = killed.keys().map(String::as_str).collect();
        for name in [
            "write",
            "sync",
            "synced",
            "ready",
            "asked",
            "claimed",
            "opened",
            "share made",
            "share left",
        ] {
            assert!(
                names.contains(name),
                "no child was killed at {name}: {killed:?}"
            );
        }
    }
}
