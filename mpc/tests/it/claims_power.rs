//! The power cut at every single operation of the disk below a node's claims: what it was told stands, whatever the disk
//! has lost. And what a disk has lost that lies about its syncs does not go unseen.

use covault_core::{
    amount::U256,
    fault::{Class, Fault},
    ids::{RequestId, SessionId},
    order::NodeId,
    testing::SystemEntropy,
};
use covault_mpc::{
    backend::PreprocessedNonce,
    claims::{Claim, ClaimError, Claims},
    policy::{PolicyScope, Spending, SpendingCounter},
    preprocess::{NonceSelection, NonceStore},
    shares::ShareEpoch,
};
use futures::executor::block_on;
use zeroize::Zeroizing;

use crate::disk::{Loss, SimulatedDisk};

/// Claims of one life: the log is folded several times.
const CLAIMS: u32 = 12;
/// Of a nonce: so many that those of one life are an entry of several pages.
const COMMITMENT_BYTES: usize = 700;
const ROOT: [u8; 33] = [5; 33];

fn claim(number: u32, limit: u64) -> Claim {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&number.to_be_bytes());
    Claim {
        session: SessionId::from_bytes(id),
        attempt: 0,
        digest: Some((RequestId::from_bytes(id), [7; 32])),
        transaction: None,
        spending: vec![Spending {
            counter: SpendingCounter {
                scope: PolicyScope::Node,
                asset: "evm:1".into(),
            },
            amount: U256::from(1),
            most_per_day: Some(U256::from(limit)),
            unapproved: None,
        }],
        now_ms: 1_800_000_000_000,
        root: Vec::new(),
        approved_until_ms: None,
        hold: None,
    }
}

fn shares() -> ShareEpoch {
    ShareEpoch {
        root: vec![3; 33],
        epoch: 0,
    }
}

/// What a node was told, over all its lives.
#[derive(Default)]
struct Told {
    /// Numbers of claims, from 1; with those that may have been granted without its knowing.
    asked: u32,
    granted: Vec<u32>,
    /// Numbers of nonces that were named.
    named: Vec<u64>,
    /// Of which they were told.
    kept: Vec<u64>,
    banned: Vec<NodeId>,
}

impl Told {
    /// What must be true of claims that were opened again.
    fn check(&self, claims: &Claims, nonces: &NonceStore, what: &str) {
        let age = claims.age();
        assert!(age.height >= self.height(), "{what}: {age:?}");
        for node in &self.banned {
            assert!(claims.banned(&ROOT, node), "{what}: {node:?}");
        }
        for number in &self.granted {
            let again = block_on(claims.claim(claim(*number, u64::MAX)));
            assert_eq!(again, Err(ClaimError::SessionUsed), "{what}: {number}");
            let other = Claim {
                session: SessionId::from_bytes([9; 16]),
                digest: claim(*number, 0)
                    .digest
                    .map(|(request, _)| (request, [8; 32])),
                ..claim(*number, u64::MAX)
            };
            let other = block_on(claims.claim(other));
            assert_eq!(other, Err(ClaimError::OtherDigest), "{what}: {number}");
        }
        let most = self.granted.len() as u64;
        let over = block_on(claims.claim(claim(u32::MAX, most)));
        let reached = matches!(over, Err(ClaimError::DailyLimitReached(_)));
        assert!(reached, "{what}: {over:?}");
        let ready: Vec<u64> = nonces.ready(&shares()).iter().map(|(id, _)| *id).collect();
        for id in &self.named {
            assert!(!ready.contains(id), "{what}: nonce {id} is there again");
        }
        for id in self.kept.iter().filter(|id| !self.named.contains(id)) {
            assert!(ready.contains(id), "{what}: nonce {id} is lost");
        }
    }

    /// What its peers have heard of.
    fn height(&self) -> u64 {
        (self.granted.len() + self.banned.len()) as u64
    }

    /// Has nonces kept, as long as there is power. That promises nothing: little of what came before is folded behind one
    /// of them, and peers hear of nothing new.
    fn keep(&mut self, claims: &Claims, nonces: &NonceStore, count: u32, what: &str) -> Vec<u64> {
        let made = (0..count).map(|_| PreprocessedNonce {
            commitments: vec![1; COMMITMENT_BYTES],
            secret: Zeroizing::new(vec![2; 64]),
        });
        let kept = block_on(nonces.keep(claims, &shares(), made.collect(), &SystemEntropy));
        let ids: Vec<u64> = kept.unwrap_or_default().iter().map(|(id, _)| *id).collect();
        for id in &ids {
            assert!(!self.kept.contains(id), "{what}: number {id} again");
        }
        self.kept.extend(&ids);
        ids
    }

    /// One process on the disk, until it has done all it wants or the power goes.
    fn live(&mut self, disk: &SimulatedDisk, what: &str) {
        let claims = match Claims::on(disk.clone()) {
            Ok(claims) => claims,
            Err(fault) => {
                assert!(disk.is_dead(), "{what}: does not open: {fault:?}");
                return;
            }
        };
        let nonces = NonceStore::new(b"keyring", &claims).unwrap();
        if !disk.is_dead() {
            self.check_unless_dead(disk, &claims, &nonces, what);
        }
        for id in self.keep(&claims, &nonces, CLAIMS, what) {
            self.asked += 1;
            let take = NonceSelection {
                of: shares(),
                ids: vec![id],
            };
            let asked = claim(self.asked, u64::MAX);
            match block_on(nonces.claim(&claims, asked, Some(take))) {
                Ok(taken) => {
                    self.granted.push(self.asked);
                    self.named.push(id);
                    assert_eq!(nonces.open(taken).unwrap().len(), 1);
                    self.keep(&claims, &nonces, 1, what);
                    self.keep(&claims, &nonces, 1, what);
                    let mut node = NodeId([0; 32]);
                    node.0[..4].copy_from_slice(&self.asked.to_be_bytes());
                    if block_on(claims.ban(&ROOT, node, 1)).is_ok() {
                        self.banned.push(node);
                    }
                }
                // It may be used up or not: nothing was signed with it.
                Err(_) => {
                    assert!(disk.is_dead(), "{what}");
                    self.kept.retain(|kept| *kept != id);
                    return;
                }
            }
        }
    }

    fn check_unless_dead(
        &self,
        disk: &SimulatedDisk,
        claims: &Claims,
        nonces: &NonceStore,
        what: &str,
    ) {
        // What is refused is not written: the disk does not die of it.
        let before = disk.operations();
        self.check(claims, nonces, what);
        assert_eq!(disk.operations(), before, "{what}");
    }
}

/// A disk with a new claims file, and where its database begins.
fn new_file() -> (Vec<u8>, usize) {
    let disk = SimulatedDisk::holding(Vec::new());
    let _claims = Claims::on(disk.clone()).unwrap();
    let image = disk.after_power_cut(Loss::All, 0);
    let database = image.windows(4).position(|bytes| bytes == b"redb");
    (image, database.unwrap())
}

fn run(file: &(Vec<u8>, usize), cuts: &[usize], loss: Loss, seed: u64) {
    let what = format!("cut at operations {cuts:?}, {loss:?}, seed {seed}");
    let (mut image, database) = file.clone();
    let mut told = Told::default();
    for at in cuts {
        let disk = SimulatedDisk::cut_at(image, *at).with_database_at(database);
        told.live(&disk, &what);
        // Its thread closes the file a moment later.
        disk.cut();
        image = disk.after_power_cut(loss, seed);
    }
    let disk = SimulatedDisk::holding(image);
    told.live(&disk, &what);
    assert!(told.granted.len() >= CLAIMS as usize, "{what}");
}

/// The operations of the disk in one whole life.
fn operations(file: &(Vec<u8>, usize)) -> usize {
    let disk = SimulatedDisk::holding(file.0.clone());
    Told::default().live(&disk, "whole");
    disk.operations()
}

#[test]
fn claims__should_stand_wherever_the_power_is_cut() {
    let long = std::env::var_os("COVAULT_LONG_SUITE").is_some();
    let file = new_file();
    let operations = operations(&file);
    let mut runs = 0;
    for at in 1..=operations {
        for (which, loss) in Loss::EVERY.into_iter().enumerate() {
            // The short form takes every operation, each with one loss.
            if !long && which != at % Loss::EVERY.len() {
                continue;
            }
            let seed = (at * 10 + which) as u64;
            run(&file, &[at], loss, seed);
            run(&file, &[at, 1 + seed as usize * 7 % operations], loss, seed);
            runs += 2;
        }
    }
    println!("{operations} operations of the disk, {runs} runs with power cuts");
}

/// Where the pages of the log begin, and their size.
const PAGE: usize = 4096;

/// What a refused file has its operator do.
fn assert_refused(claims: Result<Claims, Fault>, what: &str) {
    let fault = claims.err().unwrap();
    assert_eq!(*fault.class(), Class::Invalid, "{what}: {fault:?}");
    let advice = "Check the disk. Move this file and the folder shares away";
    assert!(fault.message().contains(advice), "{what}: {fault:?}");
}

/// One life on a disk that lies from one operation on, until the power goes at another.
fn lie(file: &(Vec<u8>, usize), (from, cut): (usize, usize), losses: &[Loss]) -> usize {
    let disk = SimulatedDisk::cut_at(file.0.clone(), cut)
        .with_database_at(file.1)
        .lying_from(from);
    let mut told = Told::default();
    told.live(&disk, "a disk that lies");
    disk.cut();
    let mut noticed = 0;
    for loss in losses {
        let what = format!("lies from {from}, cut at {cut}, {loss:?}");
        let image = disk.after_power_cut(*loss, (from * 1_000 + cut) as u64);
        let claims = Claims::on(SimulatedDisk::holding(image));
        let Ok(claims) = claims else {
            assert_refused(claims, &what);
            noticed += 1;
            continue;
        };
        // Its peers have heard of more.
        if claims.age().height < told.height() {
            noticed += 1;
            continue;
        }
        let nonces = NonceStore::new(b"keyring", &claims).unwrap();
        told.kept.clear();
        told.check(&claims, &nonces, &what);
    }
    noticed
}

#[test]
fn claims__should_not_miss_unseen_what_a_lying_disk_has_lost() {
    let long = std::env::var_os("COVAULT_LONG_SUITE").is_some();
    let file = new_file();
    let operations = operations(&file);
    let (mut runs, mut noticed) = (0, 0);
    for cut in 2..=operations {
        for (which, before) in [cut - 1, 40, 12, 4].into_iter().enumerate() {
            let from = cut.saturating_sub(before).max(1);
            let mut losses = vec![Loss::BeforeDatabase, Loss::Database];
            match long {
                true => losses.extend(Loss::EVERY),
                false => losses.push(Loss::EVERY[(cut + which) % Loss::EVERY.len()]),
            }
            runs += losses.len();
            noticed += lie(&file, (from, cut), &losses);
        }
    }
    println!("{operations} operations of the disk, {noticed} of {runs} losses noticed");
    assert!(noticed > runs / 8);
}

#[test]
fn claims__should_not_open_without_an_entry_that_others_follow() {
    let (image, _) = new_file();
    let disk = SimulatedDisk::holding(image);
    let claims = Claims::on(disk.clone()).unwrap();
    for number in 1..3 {
        block_on(claims.claim(claim(number, u64::MAX))).unwrap();
    }
    let image = disk.image();
    let entry = |page: usize| PAGE * (page + 1)..PAGE * (page + 2);
    assert!(
        image[entry(1)].iter().any(|byte| *byte != 0) && image[entry(2)].iter().all(|it| *it == 0)
    );
    let mut damaged = image.clone();
    damaged[entry(0).start + 100] ^= 1;
    assert_refused(Claims::on(SimulatedDisk::holding(damaged)), "damaged");
    let again = Claims::on(SimulatedDisk::holding(image)).unwrap();
    assert_eq!(again.age().height, 2);
}
