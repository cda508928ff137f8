//! The power cut at every single operation of the disk below a node's claims: what it was told stands, whatever the disk
//! has lost.

use covault_core::{
    amount::U256,
    ids::{RequestId, SessionId},
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
}

impl Told {
    /// What must be true of claims that were opened again.
    fn check(&self, claims: &Claims, nonces: &NonceStore, what: &str) {
        assert!(
            claims.age().height >= self.granted.len() as u64,
            "{what}: {:?}",
            claims.age()
        );
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
        let made = (0..CLAIMS).map(|_| PreprocessedNonce {
            commitments: vec![1; 70],
            secret: Zeroizing::new(vec![2; 64]),
        });
        let kept = block_on(nonces.keep(&claims, &shares(), made.collect(), &SystemEntropy));
        let Ok(kept) = kept else { return };
        for (id, _) in &kept {
            assert!(!self.kept.contains(id), "{what}: number {id} again");
        }
        self.kept.extend(kept.iter().map(|(id, _)| *id));
        for (id, _) in kept {
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

#[test]
fn claims__should_stand_wherever_the_power_is_cut() {
    let long = std::env::var_os("COVAULT_LONG_SUITE").is_some();
    let file = new_file();
    let operations = {
        let disk = SimulatedDisk::holding(file.0.clone());
        Told::default().live(&disk, "whole");
        disk.operations()
    };
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
