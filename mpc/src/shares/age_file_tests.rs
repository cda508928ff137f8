#![allow(non_snake_case)]

use covault_core::signature::Curve;

use super::*;
use crate::test_support::SystemEntropy;

fn record() -> ShareRecord {
    ShareRecord {
        vault: VaultId::from_bytes([1; 16]),
        epoch: 0,
        scheme: Scheme::FrostEd25519,
        session: SessionId::from_bytes([2; 16]),
        threshold: 2,
        holders: vec![NodeId([3; 32]), NodeId([4; 32])],
        order: None,
        lineage: ShareLineage::default(),
        restored: false,
        key: KeyShare {
            root: RootKey {
                curve: Curve::Ed25519,
                public_key: vec![5; 32],
                chain_code: [6; 32],
            },
            secret: Zeroizing::new(b"the secret share".to_vec()),
        },
    }
}

fn open(folder: &Path, passphrase: &str) -> Result<AgeShareStore, Fault> {
    AgeShareStore::open(folder, &SecretString::from(passphrase.to_owned()), 4)
}

#[test]
fn shares__should_come_back_with_the_passphrase_only() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path(), "right")
        .unwrap()
        .save(&record())
        .unwrap();
    assert!(open(folder.path(), "wrong").is_err());
    let records = open(folder.path(), "right").unwrap().load_all().unwrap();
    assert_eq!(records.len(), 1);
    let (expected, got) = (record(), &records[0]);
    assert_eq!(
        (got.vault, got.epoch, got.session),
        (expected.vault, expected.epoch, expected.session)
    );
    assert_eq!(
        (got.threshold, &got.holders),
        (expected.threshold, &expected.holders)
    );
    assert_eq!(got.key.root, expected.key.root);
    assert_eq!(*got.key.secret, *expected.key.secret);
    assert_eq!(got.index_of(&NodeId([4; 32])), Some(2));
    assert_eq!(got.index_of(&NodeId([9; 32])), None);
}

#[test]
fn shares__should_never_be_overwritten_and_never_lie_open() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let files = open(folder.path(), "right").unwrap();
    files.save(&record()).unwrap();
    assert_eq!(files.save(&record()).unwrap_err().class(), &Class::Conflict);
    let entries: Vec<_> = fs::read_dir(&files.folder)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(entries.len(), 1);
    let path = entries[0].path();
    let bytes = fs::read(&path).unwrap();
    assert!(!bytes.windows(10).any(|window| window == b"the secret"));
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(
        fs::metadata(&files.folder).unwrap().permissions().mode() & 0o777,
        0o700
    );
}

#[test]
fn shares__should_be_refused_when_damaged_or_without_keyring() {
    let folder = tempfile::tempdir().unwrap();
    let files = open(folder.path(), "right").unwrap();
    files.save(&record()).unwrap();
    fs::write(files.folder.join("half.new"), b"an interrupted write").unwrap();
    assert_eq!(files.load_all().unwrap().len(), 1);
    let path = fs::read_dir(&files.folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "age"))
        .unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(files.load_all().is_err());
    fs::remove_file(folder.path().join("keyring.age")).unwrap();
    assert!(open(folder.path(), "right").is_err());
}

#[test]
fn sweep__should_erase_what_was_cut_off_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let files = open(folder.path(), "right").unwrap();
    files.save(&record()).unwrap();
    files.save_pending(&of_epoch(1)).unwrap();
    let primes = files.primes().unwrap();
    primes.add(b"a set", &SystemEntropy).unwrap();
    let share = files.files(IN_USE).unwrap().remove(0);
    // Killed between fsync and rename: the whole old share is in there.
    fs::copy(&share, share.with_extension("age.new")).unwrap();
    let taken = folder.path().join(PRIMES).join("00.taken");
    fs::write(&taken, b"taken, and then killed").unwrap();
    files.sweep().unwrap();
    assert_eq!(fs::read_dir(&files.folder).unwrap().count(), 2);
    assert_eq!(files.load_all().unwrap().len(), 1);
    assert_eq!(files.load_pending().unwrap().len(), 1);
    assert!(!taken.exists());
    assert_eq!(primes.count().unwrap(), 1);
}

#[test]
fn forget_prepared__should_erase_what_waits_but_for_the_epoch_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let files = open(folder.path(), "right").unwrap();
    let mut other = of_epoch(3);
    other.vault = VaultId::from_bytes([7; 16]);
    files.save(&record()).unwrap();
    files.save_pending(&other).unwrap();
    for epoch in [1, 2, 5] {
        files.save_pending(&of_epoch(epoch)).unwrap();
    }
    let forget = || files.forget_prepared(record().vault, record().scheme, 2);
    assert_eq!(forget().unwrap(), 2);
    assert_eq!(forget().unwrap(), 0);
    assert_eq!(epochs(&files.load_pending().unwrap()), [2, 3]);
    assert_eq!(epochs(&files.load_all().unwrap()), [0]);
}

#[test]
fn keyring__should_not_be_made_anew_while_primes_need_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let files = open(folder.path(), "right").unwrap();
    let primes = files.primes().unwrap();
    primes.add(b"a set", &SystemEntropy).unwrap();
    fs::remove_file(folder.path().join(KEYRING)).unwrap();
    let fault = open(folder.path(), "right").err().unwrap();
    assert!(fault.message().contains("primes"), "{fault:?}");
    assert!(!folder.path().join(KEYRING).exists());
}

fn of_epoch(epoch: u32) -> ShareRecord {
    ShareRecord {
        epoch,
        order: Some([8; 32]),
        ..record()
    }
}

fn epochs(records: &[ShareRecord]) -> Vec<u32> {
    let mut epochs: Vec<u32> = records.iter().map(|record| record.epoch).collect();
    epochs.sort_unstable();
    epochs
}

#[test]
fn shares__should_be_pending_until_activated_and_retired_with_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let files = open(folder.path(), "right").unwrap();
    let (vault, root) = (record().vault, record().key.root);
    files.save(&record()).unwrap();
    // Of another key: nothing of it is ever touched.
    let mut other = of_epoch(0);
    other.key.root.public_key = vec![6; 32];
    files.save(&other).unwrap();
    for epoch in [2, 11] {
        files.save_pending(&of_epoch(epoch)).unwrap();
    }
    assert_eq!(epochs(&files.load_all().unwrap()), [0, 0]);
    assert_eq!(epochs(&files.load_pending().unwrap()), [2, 11]);
    assert!(files.activate(vault, &root, 5).is_err(), "there is none");
    for _ in 0..2 {
        files.activate(vault, &root, 2).unwrap();
        // As after a crash before the old one was erased, or while it was.
        for _ in 0..2 {
            let files = open(folder.path(), "right").unwrap();
            assert!(epochs(&files.load_all().unwrap()).contains(&2));
        }
        files.retire(vault, &root, 2, 7_000).unwrap();
    }
    assert_eq!(epochs(&files.load_all().unwrap()), [0, 2]);
    assert_eq!(epochs(&files.load_pending().unwrap()), [11]);
    assert!(files.load(vault, &root, 0, false).is_err());
    let loaded = files.load(vault, &root, 2, false).unwrap();
    assert_eq!((loaded.order, loaded.restored), (Some([8; 32]), false));
    files.retire(vault, &root, u32::MAX, 8_000).unwrap();
    assert_eq!(epochs(&files.load_all().unwrap()), [0]);
    assert!(files.load_pending().unwrap().is_empty());
    // They are all there, sealed as they were, until their time has come.
    let retired = |files: &AgeShareStore| -> Vec<(u32, u64, bool)> {
        let retired = files.retired().unwrap();
        let retired = retired.iter();
        retired
            .map(|it| (it.record.epoch, it.at_ms, it.was_in_use))
            .collect()
    };
    let all = [(0, 7_000, true), (2, 8_000, true), (11, 8_000, false)];
    assert_eq!(retired(&files), all);
    assert_eq!(
        *files.retired().unwrap()[0].record.key.secret,
        *record().key.secret
    );
    assert_eq!(files.count_retired(vault, &root).unwrap(), 3);
    assert_eq!(files.count_retired(vault, &other.key.root).unwrap(), 0);
    // Nothing goes of a key that a share is prepared of.
    let keep = [(vault, other.key.root.clone()), (vault, root.clone())];
    assert_eq!(files.erase_retired(8_000, &keep).unwrap(), 0);
    assert_eq!(files.erase_retired(8_000, &keep[..1]).unwrap(), 1);
    assert_eq!(retired(&files), all[1..]);
}
