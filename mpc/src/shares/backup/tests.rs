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
    let mut private = [0; 32];
    private[0] = 42;
    let key = SigningKey::deserialize(&private).unwrap();
    let root = RootKey {
        curve: Curve::Ed25519,
        public_key: VerifyingKey::from(&key).serialize().unwrap(),
        chain_code: [7; 32],
    };
    let (shares, _) = split(
        &key,
        3,
        2,
        IdentifierList::Default,
        &mut rand_core_06::OsRng,
    )
    .unwrap();
    (1..)
        .zip(shares.values())
        .map(|(index, share)| {
            let plain = PlainShare {
                root: root.clone(),
                index,
                secret: Zeroizing::new(share.signing_share().serialize().try_into().unwrap()),
                verifying: BTreeMap::new(),
            };
            let record = ShareRecord {
                vault: VaultId::from_bytes([1; 16]),
                epoch: 3,
                scheme: Scheme::FrostEd25519,
                session: SessionId::from_bytes([2; 16]),
                threshold: 2,
                holders: (1..=3).map(|node| NodeId([node; 32])).collect(),
                order: None,
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

fn backups(change: impl Fn(usize, &mut ShareRecord, &mut PlainShare)) -> Vec<Backup> {
    let identity = Identity::generate();
    let mut records = records();
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
fn recover__should_refuse_what_does_not_belong_together() {
    let says = |backups: &[Backup], words: &str| {
        let fault = recover(backups).err().unwrap();
        assert!(fault.public().contains(words), "{fault:?}");
    };
    says(&[], "no backups");
    says(&backups(|_, _, _| {})[1..2], "too few");
    let other = backups(|place, record, _| record.epoch += u32::from(place == 1));
    says(&other, "epochs 3 and 4");
    let other = backups(|place, record, _| {
        if place == 2 {
            record.vault = VaultId::from_bytes([9; 16]);
        }
    });
    says(&other, "different keys");
    let other = backups(|place, record, _| record.threshold += u16::from(place == 1));
    says(&other, "disagree");
    let other = backups(|place, _, plain| plain.secret[0] ^= u8::from(place == 0));
    says(&other, "do not give the key");
    assert!(recover(&other[1..]).is_ok());
    let mut same = backups(|_, _, _| {});
    let more = backups(|_, _, _| {});
    same.truncate(1);
    same.extend(more.into_iter().take(1));
    says(&same, "same node");
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
    assert!(fault.public().contains("version"), "{fault:?}");
    let foreign = age::encrypt(&identity.to_public(), b"a letter").unwrap();
    assert!(open(&foreign, &one).is_err());
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
    assert!(fault.public().contains("age1nonsense"), "{fault:?}");
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
    let backups: Vec<Backup> = lines
        .map(|line| open(&hex::decode(line).unwrap(), &identities).unwrap())
        .collect();
    assert_eq!((backups[0].epoch, backups[0].threshold), (3, 2));
    assert_eq!(backups[1].node, NodeId([2; 32]));
    let key = recover(&backups).unwrap();
    assert_eq!(key.root.chain_code, [7; 32]);
    assert!(key.private_hex().starts_with("2a0000"));
}
