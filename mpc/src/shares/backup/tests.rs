//! Backups, and the keys they give back.

#![allow(non_snake_case)]

use std::collections::BTreeMap;

use covault_core::signature::Curve;
use frost_core::keys::{IdentifierList, split};
use frost_ed25519::{SigningKey, VerifyingKey};
use secrecy::ExposeSecret as _;

use super::*;

/// The shares of a fixed key, 2-of-3, as records.
fn records() -> Vec<(ShareRecord, PlainShare)> {
    shared(2, 3, false)
}

/// The shares of a fixed key, as records; where it is known, with everybody's public counterpart.
fn shared(threshold: u16, count: u8, known: bool) -> Vec<(ShareRecord, PlainShare)> {
    let mut private = [0; 32];
    private[0] = 42;
    let key = SigningKey::deserialize(&private).unwrap();
    let root = RootKey {
        curve: Curve::Ed25519,
        public_key: VerifyingKey::from(&key).serialize().unwrap(),
        chain_code: [7; 32],
    };
    let (shares, public) = split(
        &key,
        count.into(),
        threshold,
        IdentifierList::Default,
        &mut rand_core_06::OsRng,
    )
    .unwrap();
    let verifying: BTreeMap<u8, Vec<u8>> = (1..)
        .zip(public.verifying_shares().values())
        .map(|(index, share)| (index, share.serialize().unwrap()))
        .filter(|_| known)
        .collect();
    (1..)
        .zip(shares.values())
        .map(|(index, share)| {
            let plain = PlainShare {
                root: root.clone(),
                index,
                secret: Zeroizing::new(share.signing_share().serialize().try_into().unwrap()),
                verifying: verifying.clone(),
            };
            let record = ShareRecord {
                vault: VaultId::from_bytes([1; 16]),
                epoch: 3,
                scheme: Scheme::FrostEd25519,
                session: SessionId::from_bytes([2; 16]),
                threshold,
                holders: (1..=count).map(|node| NodeId([node; 32])).collect(),
                order: None,
                lineage: ShareLineage::default(),
                restored: false,
                key: KeyShare {
                    root: root.clone(),
                    secret: Zeroizing::default(),
                },
            };
            (record, plain)
        })
        .collect()
}

fn sealed(record: &ShareRecord, plain: &PlainShare, identity: &Identity) -> Vec<u8> {
    let node = record.holders[usize::from(plain.index) - 1];
    export(record, plain, &node, &[identity.to_public()]).unwrap()
}

fn backups(change: impl Fn(usize, &mut ShareRecord, &mut PlainShare)) -> Vec<DecryptedBackup> {
    backups_of(records(), change)
}

fn backups_of(
    mut records: Vec<(ShareRecord, PlainShare)>,
    change: impl Fn(usize, &mut ShareRecord, &mut PlainShare),
) -> Vec<DecryptedBackup> {
    let identity = Identity::generate();
    for (place, (record, plain)) in records.iter_mut().enumerate() {
        change(place, record, plain);
    }
    records
        .iter()
        .map(|(record, plain)| {
            open(
                &sealed(record, plain, &identity),
                std::slice::from_ref(&identity),
            )
            .unwrap()
        })
        .collect()
}

#[test]
fn backup__should_be_refused_when_its_header_is_too_long_to_be_parsed_in_time() {
    let identity = Identity::generate();
    let (record, plain) = records().remove(0);
    let opens = |recipients: usize| {
        let mut all = vec![Identity::generate().to_public(); recipients];
        all.push(identity.to_public());
        let sealed = export(&record, &plain, &record.holders[0], &all).unwrap();
        open(&sealed, std::slice::from_ref(&identity)).is_ok()
    };
    assert!(opens(MAX_RECIPIENTS - 1));
    assert!(!opens(300));
    // Half a megabyte of stanzas, which took minutes.
    let long = [&b"age-encryption.org/v1\n"[..], &b"-> a\n\n".repeat(80_000)].concat();
    assert!(open(&long, std::slice::from_ref(&identity)).is_err());
    let line = identity.to_public().to_string();
    assert!(recipients(&vec![line.clone(); MAX_RECIPIENTS]).is_ok());
    assert!(recipients(&vec![line; MAX_RECIPIENTS + 1]).is_err());
}

#[test]
fn recover__should_give_the_key_from_any_threshold_of_backups() {
    let mut all = backups(|_, _, _| {});
    for _ in 0..3 {
        all.rotate_left(1);
        let key = recover(&all[..2]).unwrap();
        assert!(key.private_hex().starts_with("2a0000"));
        assert!(key.xprv().is_none());
    }
    assert!(recover(&all).is_ok());
}

#[test]
fn recover__should_say_why_there_is_no_key() {
    let says = |backups: &[DecryptedBackup], words: &str| {
        let fault = recover(backups).err().unwrap();
        assert!(fault.message().contains(words), "{fault:?}");
    };
    says(&[], "no backups");
    says(&backups(|_, _, _| {})[1..2], "too few");
    let other = backups(|place, record, _| record.epoch += u32::from(place == 1));
    says(&other[..2], "epochs 3 and 4");
    let other = backups(|place, record, _| {
        if place == 2 {
            record.vault = VaultId::from_bytes([9; 16]);
        }
    });
    says(&other, "different keys");
    let other = backups(|place, record, _| record.threshold += u16::from(place == 1));
    says(&other[..2], "disagree");
    let other = backups(|place, _, plain| plain.secret[0] ^= u8::from(place == 0));
    says(&other[..2], "no 2 of the backups give the key");
    // Of one node twice: the same share, and another one in its name.
    let mut same = backups(|_, _, _| {});
    same.truncate(1);
    same.extend(backups(|_, _, _| {}).into_iter().take(1));
    says(&same, "too few");
}

/// What one node's backup may be, as (epoch, threshold, chain code, secret) of a lying node.
type BackupForgery = fn(&mut ShareRecord, &mut PlainShare);

/// Lies of one node, and how each is called.
const LIES: [(BackupForgery, &str); 7] = [
    (|_, plain| plain.secret[0] ^= 1, "is wrong"),
    // Not a scalar at all.
    (|_, plain| *plain.secret = [0xff; 32], "is wrong"),
    (
        |_, plain| {
            plain.secret[0] ^= 1;
            let (index, bytes) = (plain.index, vec![7; 32]);
            plain.verifying.insert(index, bytes);
        },
        "is wrong",
    ),
    (|record, _| record.epoch += 1, "epoch 4"),
    (|record, _| record.epoch -= 1, "epoch 2"),
    (|record, _| record.threshold -= 1, "another threshold"),
    (
        |record, _| record.key.root.chain_code = [8; 32],
        "another chain code",
    ),
];

#[test]
fn recover__should_give_the_key_although_one_node_lies_and_name_it() {
    for (threshold, count, known) in [(2, 3, true), (3, 5, true), (2, 3, false), (3, 5, false)] {
        for (lie, words) in LIES {
            for byzantine in 0..usize::from(count) {
                let backups =
                    backups_of(shared(threshold, count, known), |place, record, plain| {
                        if place == byzantine {
                            lie(record, plain);
                        }
                    });
                let case = format!("{threshold}-of-{count}, {words}, node {byzantine}");
                let mut found = recover_all(&backups);
                assert_eq!(found.len(), 1, "{case}");
                let RecoveryReport { key, rejected, .. } = found.pop().unwrap();
                assert!(key.unwrap().private_hex().starts_with("2a0000"), "{case}");
                assert_eq!(rejected.len(), 1, "{case}: {rejected:?}");
                assert_eq!(rejected[0].place, byzantine, "{case}");
                assert!(rejected[0].why.contains(words), "{case}: {rejected:?}");
            }
        }
    }
}

#[test]
fn recover__should_take_the_generation_that_is_whole() {
    // A refresh that some were backed up before, and some after: as many as are needed of one.
    let other = backups(|place, record, plain| {
        if place == 0 {
            record.epoch += 1;
            plain.secret[0] ^= 1;
        }
    });
    let found = recover_all(&other).pop().unwrap();
    assert!(found.key.is_ok());
    assert_eq!(found.rejected[0].place, 0);
    // Another node's share of another key, under the same vault's name.
    let other = backups(|place, record, _| {
        if place == 1 {
            let last = record.key.root.public_key.len() - 1;
            record.key.root.public_key[last] ^= 1;
        }
    });
    let found = recover_all(&other);
    assert_eq!(found.len(), 2);
    assert_eq!(found.iter().filter(|one| one.key.is_ok()).count(), 1);
    // A hostile node speaks in another's name, and in its own.
    let mut all = backups(|_, _, _| {});
    all.truncate(2);
    all.extend(
        backups(|_, _, plain| plain.secret[0] ^= 1)
            .into_iter()
            .take(2),
    );
    all.rotate_left(1);
    let found = recover_all(&all).pop().unwrap();
    assert!(found.key.is_ok());
    let places: Vec<usize> = found.rejected.iter().map(|misfit| misfit.place).collect();
    assert_eq!(places, [1, 2]);
}

#[test]
fn check_sealed__should_tell_backups_from_other_bytes() {
    let (one, two) = (Identity::generate(), Identity::generate());
    let (record, plain) = &records()[0];
    let node = record.holders[0];
    let to = [one.to_public(), two.to_public()];
    let whole = export(record, plain, &node, &to).unwrap();
    assert_eq!(check_sealed(&whole, 2), Ok(()));
    let says = |sealed: &[u8], words: &str| {
        let fault = check_sealed(sealed, 2).unwrap_err();
        assert!(fault.message().contains(words), "{fault:?}");
    };
    says(b"", "not an age file");
    says(b"age-encryption.org/v1\nanything", "not an age file");
    says(&[7; 1000], "not an age file");
    says(&whole[..whole.len() / 3], "no");
    let body = whole.len() - whole.windows(4).position(|it| it == b"--- ").unwrap();
    // The line of the MAC, the nonce, and little more.
    says(&whole[..whole.len() - body + 48 + 16 + 10], "truncated");
    says(&vec![7; MAX_BACKUP + 1], "too large");
    says(&sealed(record, plain, &one), "to 1 recipients");
}

#[test]
fn backup__should_be_refused_when_damaged_or_not_ours() {
    let identity = Identity::generate();
    let (record, plain) = &records()[0];
    let mut sealed = sealed(record, plain, &identity);
    let one = [identity.clone()];
    assert!(open(b"nothing", &one).is_err());
    assert!(open(&sealed, &[Identity::generate()]).is_err());
    let last = sealed.len() - 1;
    sealed[last] ^= 1;
    assert!(open(&sealed, &one).is_err());
    let foreign = age::encrypt(&identity.to_public(), b"covault-backup\x09rest").unwrap();
    let fault = open(&foreign, &one).err().unwrap();
    assert!(fault.message().contains("version"), "{fault:?}");
    let foreign = age::encrypt(&identity.to_public(), b"a letter").unwrap();
    assert!(open(&foreign, &one).is_err());
}

#[test]
fn restore__should_refuse_a_share_that_could_never_sign() {
    let mut backup = backups(|_, _, _| {}).remove(0);
    backup.scheme = Scheme::Cggmp24;
    let folder = tempfile::tempdir().unwrap();
    let passphrase = SecretString::from("a passphrase");
    let fault = restore(folder.path(), &passphrase, 2, &backup.node, &backup).unwrap_err();
    assert_eq!(fault.class(), &Class::WrongState);
    assert!(fault.message().contains("covault recover"), "{fault:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn identities__should_be_read_from_a_file_and_never_quoted() {
    let identity = Identity::generate();
    let text = format!("# made today\n\n{}\n", identity.to_string().expose_secret());
    assert_eq!(identities(&text).unwrap().len(), 1);
    assert!(identities("# nothing\n").is_err());
    let fault = identities("AGE-SECRET-KEY-1WRONG").err().unwrap();
    assert!(!format!("{fault:?}").contains("WRONG"), "{fault:?}");
    let fault = recipients(&["age1nonsense".into()]).err().unwrap();
    assert!(fault.message().contains("age1nonsense"), "{fault:?}");
}

/// A backup of every version ever written opens for ever. The sample: an identity, made for it,
/// and two backups of [`records`] in hexadecimal.
#[test]
fn backup__should_open_from_its_sample() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/wire/backup-v1.txt");
    let sample = std::fs::read_to_string(path).unwrap_or_else(|_| {
        let identity = Identity::generate();
        let backups: Vec<String> = records()
            .iter()
            .take(2)
            .map(|(record, plain)| hex::encode(sealed(record, plain, &identity)))
            .collect();
        let secret = identity.to_string();
        let secret = secret.expose_secret();
        panic!(
            "{path} is missing; it would hold\n{secret}\n{}",
            backups.join("\n")
        )
    });
    let mut lines = sample.lines();
    let identities = identities(lines.next().unwrap()).unwrap();
    let backups: Vec<DecryptedBackup> = lines
        .map(|line| open(&hex::decode(line).unwrap(), &identities).unwrap())
        .collect();
    assert_eq!((backups[0].epoch, backups[0].threshold), (3, 2));
    assert_eq!(backups[1].node, NodeId([2; 32]));
    let key = recover(&backups).unwrap();
    assert_eq!(key.root.chain_code, [7; 32]);
    assert!(key.private_hex().starts_with("2a0000"));
}
