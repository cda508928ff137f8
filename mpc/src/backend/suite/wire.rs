//! Folders of nodes as older releases wrote them (`tests/wire/node-v1-*`, passphrase "for tests
//! only") open for ever, and their shares sign. A format that changes after a release gets samples
//! of its own beside these.
//!
//! `just record-wire` writes them anew, as long as nothing has been released.

use std::{collections::BTreeMap, path::PathBuf};

use covault_core::{
    ids::{SessionId, VaultId},
    order::NodeId,
    scheme::Scheme,
};
use secrecy::SecretString;

use super::{make_shares, open, quorums, sign_with};
use crate::{
    backend::{KeyShare, SignerIndex},
    shares::{ShareLineage, ShareRecord, ShareStore as _, age_file::AgeShareStore},
};

fn folder(party: SignerIndex) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/wire/node-v1-{party}"))
}

fn node(party: SignerIndex) -> AgeShareStore {
    AgeShareStore::open(&folder(party), &SecretString::from("for tests only"), 2).unwrap()
}

/// DKLs23 shares are large: of two parties only.
fn parties(scheme: Scheme) -> u8 {
    if scheme == Scheme::Dkls23 { 2 } else { 3 }
}

pub(super) fn old_shares(scheme: Scheme) -> BTreeMap<SignerIndex, KeyShare> {
    (1..=parties(scheme))
        .map(|party| {
            assert!(
                folder(party).exists(),
                "{} is missing",
                folder(party).display()
            );
            let record = node(party)
                .load_all()
                .unwrap()
                .into_iter()
                .find(|record| record.scheme == scheme)
                .unwrap();
            assert_eq!(record.index_of(&NodeId([party; 32])), Some(party));
            (party, record.key)
        })
        .collect()
}

pub(super) fn old_shares_sign(scheme: Scheme) {
    let (root, signers) = open(scheme, &old_shares(scheme));
    assert_eq!(root.curve, scheme.curve());
    sign_with(&root, &signers, &quorums(2, parties(scheme)));
}

#[test]
#[ignore = "writes the samples anew; see `just record-wire`"]
#[allow(non_snake_case)]
fn wire__record_nodes() {
    for party in 1..=3 {
        let _ = std::fs::remove_dir_all(folder(party));
    }
    for scheme in Scheme::ALL {
        if crate::backend::of(scheme).is_err() {
            panic!("record with --features cggmp24");
        }
        for (party, key) in make_shares(scheme, 2, parties(scheme)) {
            let record = ShareRecord {
                vault: VaultId::from_bytes([5; 16]),
                epoch: crate::shares::FIRST_EPOCH,
                scheme,
                session: SessionId::from_bytes([scheme.name().len() as u8; 16]),
                threshold: 2,
                holders: (1..=parties(scheme)).map(|it| NodeId([it; 32])).collect(),
                order: None,
                lineage: ShareLineage::default(),
                restored: false,
                key,
            };
            node(party).save(&record).unwrap();
        }
    }
}
