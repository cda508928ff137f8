//! Claims that stand, whatever happens.

use std::sync::atomic::{AtomicBool, Ordering};

use covault_core::{
    amount::U256,
    approval::{MAX_VALIDITY_MS, OrderApprovals},
    derive::KeyPath,
    ids::VaultId,
    networks::{ChainData, Network, SigningInput},
    signature::Curve,
};

use super::{height::SPENDING_WINDOW_MS, *};
use crate::policy::{PolicyScope, UnapprovedLimit};

fn claim(session: u8, attempt: u32, digest: u8) -> Claim {
    Claim {
        session: SessionId::from_bytes([session; 16]),
        attempt,
        digest: Some((RequestId::from_bytes([1; 16]), [digest; 32])),
        transaction: None,
        spending: Vec::new(),
        now_ms: 1,
        root: Vec::new(),
        approved_until_ms: None,
        hold: None,
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
async fn claims__should_not_be_made_over_those_that_another_process_makes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("claims.redb");
    let unfinished = folder.path().join("claims.redb.new");
    let other = fs::File::create(&unfinished).unwrap();
    other.try_lock().unwrap();
    assert!(Claims::open(&path, true).is_err());
    assert!(unfinished.exists() && !path.exists());
    drop(other);
    // Each believes that there is none.
    let starts: Vec<_> = (0..8_u8)
        .map(|number| {
            let path = path.clone();
            thread::spawn(move || (number, Claims::open(&path, true)))
        })
        .collect();
    let mut opened = Vec::new();
    for start in starts {
        if let (number, Ok(claims)) = start.join().unwrap() {
            claims.claim(claim(number, 0, 7)).await.unwrap();
            opened.push((number, claims));
        }
    }
    let [(number, claims)] = <[_; 1]>::try_from(opened).ok().unwrap();
    // Nor by one that comes late.
    file::make(&path, LOG_PAGES).unwrap();
    assert!(!unfinished.exists());
    drop(claims);
    let again = reopen(&path).await.claim(claim(number, 0, 7)).await;
    assert_eq!(again, Err(ClaimError::SessionUsed));
}

#[tokio::test]
async fn claims__should_say_what_to_do_about_a_log_that_cannot_be_read() {
    let disk = FullableMemory::default();
    drop(Rows::make(Arc::new(disk.clone()), SMALL_LOG_PAGES).unwrap());
    disk.unreadable.store(true, Ordering::Relaxed);
    let fault = Claims::on(disk).err().unwrap();
    assert!(
        fault.message().contains("its log cannot be read"),
        "{fault:?}"
    );
    assert!(
        fault.message().contains("start the node again"),
        "{fault:?}"
    );
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

/// The writer thread closes the file a moment after its owner is dropped.
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
    assert!(fault.message().contains("is missing"), "{fault:?}");
    // Nor is an empty file taken for one without promises.
    fs::write(&path, b"").unwrap();
    assert!(Claims::open(&path, false).is_err());
    fs::remove_file(&path).unwrap();
    drop(Claims::open(&path, true).unwrap());
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(reopen(&path).await);
}

/// Memory that stops taking writes on command, or giving back the last page of the log.
#[derive(Clone, Debug, Default)]
struct FullableMemory {
    memory: Arc<redb::backends::InMemoryBackend>,
    full: Arc<AtomicBool>,
    unreadable: Arc<AtomicBool>,
}

impl redb::StorageBackend for FullableMemory {
    fn len(&self) -> io::Result<u64> {
        self.memory.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let last = u64::from(SMALL_LOG_PAGES) * log::PAGE;
        if offset == last && self.unreadable.load(Ordering::Relaxed) {
            return Err(io::Error::other("bad sector"));
        }
        self.memory.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.memory.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.full.load(Ordering::Relaxed) {
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
    let disk = FullableMemory::default();
    let full = Arc::clone(&disk.full);
    let claims = Claims::on(disk).unwrap();
    claims.claim(claim(1, 0, 7)).await.unwrap();
    full.store(true, Ordering::Relaxed);
    let refused = claims.claim(claim(2, 0, 7)).await;
    assert!(matches!(refused, Err(ClaimError::Store(_))), "{refused:?}");
    claims.broken().await;
    let refused = claims.claim(claim(3, 0, 7)).await;
    assert!(matches!(refused, Err(ClaimError::Store(_))), "{refused:?}");
}

#[test]
fn digest__should_cover_every_input() {
    let of = |messages: &[&[u8]]| {
        digest(&SigningOrder {
            request: RequestId::from_bytes([1; 16]),
            vault: VaultId::from_bytes([1; 16]),
            epoch: 0,
            network: Network::Solana,
            root_public_key: Vec::new(),
            path: KeyPath::new(vec![0]).unwrap(),
            public_key: vec![2; 32],
            address: String::new(),
            payload: Vec::new(),
            chain_data: ChainData::Nothing,
            unsigned: Vec::new(),
            inputs: messages
                .iter()
                .map(|message| SigningInput {
                    curve: Curve::Ed25519,
                    message: message.to_vec(),
                })
                .collect(),
            recipient_indices: Vec::new(),
            approvals: OrderApprovals::default(),
            issued_at_ms: 0,
            expires_at_ms: 0,
        })
    };
    assert_eq!(of(&[b"a"]), of(&[b"a"]));
    for other in [&[&b"a"[..], b"b"][..], &[b"b"], &[], &[b"a", b"a"]] {
        assert_ne!(of(&[b"a"]), of(other));
    }
    assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
}

#[tokio::test]
async fn claims__should_have_one_list_of_digests_for_a_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("claims.redb");
    let of = |request: u8, session: u8, transaction: u8, digest: u8| Claim {
        digest: Some((RequestId::from_bytes([request; 16]), [digest; 32])),
        transaction: Some([transaction; 32]),
        ..claim(session, 0, digest)
    };
    let claims = Claims::open(&path, true).unwrap();
    assert_eq!(claims.claim(of(1, 1, 1, 7)).await, Ok(()));
    // Another request for the same is the same.
    assert_eq!(claims.claim(of(2, 2, 1, 7)).await, Ok(()));
    assert_eq!(claims.claim(of(3, 3, 2, 8)).await, Ok(()));
    drop(claims);
    let claims = reopen(&path).await;
    assert_eq!(
        claims.claim(of(4, 4, 1, 9)).await,
        Err(ClaimError::OtherAmounts)
    );
    // What was refused is not claimed.
    assert_eq!(claims.claim(of(4, 4, 3, 9)).await, Ok(()));
}

#[tokio::test]
async fn approvals__should_be_refused_that_may_have_been_used_before_the_node_got_its_share() {
    let folder = tempfile::tempdir().unwrap();
    let claims = Claims::open(&folder.path().join("claims.redb"), true).unwrap();
    let root = vec![3; 33];
    let plain = |number: u8| Claim {
        digest: Some((RequestId::from_bytes([number; 16]), [number; 32])),
        ..claim(number, 0, number)
    };
    let approved = |number: u8, root: &[u8], valid_until_ms: u64| Claim {
        root: root.to_vec(),
        approved_until_ms: Some(valid_until_ms),
        ..plain(number)
    };
    claims.claim(approved(1, &root, 5)).await.unwrap();
    let joined = JoinedKey {
        at_ms: 1_000,
        held_before: true,
    };
    claims.note_joined(root.clone(), joined).await.unwrap();
    let unused_ms = 1_000 + MAX_VALIDITY_MS + CLOCKS_APART_MS;
    let refused = claims.claim(approved(2, &root, unused_ms - 1)).await;
    let Err(ClaimError::ApprovalsMissing(wants)) = refused else {
        panic!("{refused:?}");
    };
    assert!(wants.contains(&unused_ms.to_string()), "{wants}");
    claims.claim(approved(2, &root, unused_ms)).await.unwrap();
    // Another key; what this node has signed itself; and what needs no approval.
    claims.claim(approved(3, &[4; 33], 5)).await.unwrap();
    let again = Claim {
        attempt: 1,
        ..approved(1, &root, 5)
    };
    claims.claim(again).await.unwrap();
    claims.claim(plain(4)).await.unwrap();
}

/// A claim of what is counted against a limit of a day, and of what people have to approve above a day's sum.
fn counted(number: u8, root: &[u8], now_ms: u64, limit: Option<u64>, free: Option<u64>) -> Claim {
    let amount = |it: u64| U256::from(it);
    Claim {
        digest: Some((RequestId::from_bytes([number; 16]), [number; 32])),
        root: root.to_vec(),
        now_ms,
        spending: vec![Spending {
            counter: SpendingCounter {
                scope: PolicyScope::Node,
                asset: "evm:1".into(),
            },
            amount: amount(1),
            most_per_day: limit.map(amount),
            unapproved: free.map(|free| UnapprovedLimit {
                most_per_day: amount(free),
                wants: "wants 1 of treasurer".into(),
            }),
        }],
        ..claim(number, 0, number)
    }
}

/// Else who reshares a key could spend the limit of a day once more.
#[tokio::test]
async fn limits_of_a_day__should_count_as_used_up_where_the_holders_before_may_have_spent_them() {
    let folder = tempfile::tempdir().unwrap();
    let claims = Claims::open(&folder.path().join("claims.redb"), true).unwrap();
    let (new, kept) = (vec![3; 33], vec![4; 33]);
    let now_ms = 1_800_000_000_000;
    claims
        .claim(counted(1, &new, now_ms, Some(100), None))
        .await
        .unwrap();
    for (root, held_before) in [(&new, false), (&kept, true)] {
        let joined = JoinedKey {
            at_ms: now_ms,
            held_before,
        };
        claims.note_joined(root.clone(), joined).await.unwrap();
    }
    let known_ms = now_ms + SPENDING_WINDOW_MS + CLOCKS_APART_MS;
    for at_ms in [now_ms, known_ms - 1] {
        let refused = claims.claim(counted(2, &new, at_ms, Some(100), None)).await;
        assert_eq!(refused, Err(ClaimError::SpentElsewhere(known_ms)));
        // A limit is one whoever approves.
        let refused = claims.claim(counted(2, &new, at_ms, Some(100), Some(50)));
        assert_eq!(refused.await, Err(ClaimError::SpentElsewhere(known_ms)));
        let refused = claims.claim(counted(2, &new, at_ms, None, Some(100)));
        let Err(ClaimError::ApprovalsMissing(wants)) = refused.await else {
            panic!("more than people need not approve");
        };
        assert!(wants.starts_with("wants 1 of treasurer: until"), "{wants}");
    }
    // What nothing limits; what was claimed before; a key that it held before, and one that it made.
    let free = counted(3, &new, now_ms, None, None);
    claims.claim(free).await.unwrap();
    let again = Claim {
        attempt: 1,
        ..counted(1, &new, now_ms, Some(100), None)
    };
    claims.claim(again).await.unwrap();
    for (number, root) in [(4, kept), (5, vec![5; 33])] {
        let counted = counted(number, &root, now_ms, Some(100), Some(100));
        claims.claim(counted).await.unwrap();
    }
    // What it has counted itself counts on. It stays a new holder when it has been one already.
    let joined = JoinedKey {
        at_ms: now_ms + 1,
        held_before: true,
    };
    claims.note_joined(new.clone(), joined).await.unwrap();
    let refused = claims.claim(counted(6, &new, known_ms - 1, Some(100), None));
    assert_eq!(refused.await, Err(ClaimError::SpentElsewhere(known_ms)));
    claims
        .claim(counted(6, &new, known_ms, Some(100), Some(100)))
        .await
        .unwrap();
}
