#![allow(non_snake_case, reason = "tests")]

use std::sync::{Arc, atomic::Ordering};

use covault_core::{
    attest::MadeKey,
    derive::RootKey,
    ids::SessionId,
    order::{Generation, KeygenOrder, NodeId, ReshareOrder, ReshareProof},
    request::ApprovalRule,
    scheme::Scheme,
    wallet::generation::{Activation, LiveKey, ReshareTarget},
};

use super::*;
use crate::{
    store::{Batch, Precondition, memory::MemoryStore},
    testing::CountingStore,
};

fn vault(number: u16) -> VaultId {
    let [high, low] = number.to_be_bytes();
    VaultId::from_bytes([high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
}

#[tokio::test]
async fn vaults_with_rows__should_be_found_among_those_of_others_and_with_very_many() {
    let inner = Arc::new(MemoryStore::new());
    let mut batch = Batch::new();
    // All even ones are others', and have some; of these only two have any, and one of them very many.
    let others = (0..2_000).step_by(2).map(|number| (number, 1));
    for (number, count) in others.chain([(7, 5_000), (1_501, 1)]) {
        for row in 0_u32..count {
            let key = Key::new(
                KeySpace::Outbox,
                &[vault(number).as_bytes(), &row.to_be_bytes()],
            );
            batch.put(key, Precondition::Absent, Vec::new());
        }
    }
    inner.commit(batch).await.unwrap();
    let store = CountingStore::new(inner);
    let ours: BTreeSet<_> = (1..2_000).step_by(2).map(vault).collect();
    let found = with_rows(&*store, KeySpace::Outbox, &ours).await.unwrap();
    assert_eq!(found, BTreeSet::from([vault(7), vault(1_501)]));
    let read = store.read.load(Ordering::SeqCst);
    assert!(read < 2_500, "{read}");
    let none = with_rows(&*store, KeySpace::Awaiting, &ours).await.unwrap();
    assert_eq!(none, BTreeSet::new());
}

fn target() -> ReshareTarget {
    ReshareTarget {
        threshold: 1,
        holders: vec![NodeId([1; 32])],
        lost: Vec::new(),
    }
}

fn reshare_order(scheme: Scheme, live: &LiveKey) -> ReshareOrder {
    ReshareOrder {
        vault: vault(0),
        session: SessionId::from_bytes([7; 16]),
        scheme,
        root_public_key: live.root.public_key.clone(),
        old: live.generation.clone(),
        dealers: live.generation.holders.clone(),
        new: Generation {
            epoch: 1,
            ..live.generation.clone()
        },
        issued_at_ms: 3,
        expires_at_ms: 4,
    }
}

/// Changes a key that is ready, or what its state is instead.
type KeyChange = fn(Scheme, LiveKey) -> KeyState;

fn keygen_order(scheme: Scheme) -> KeygenOrder {
    KeygenOrder {
        vault: vault(0),
        session: SessionId::from_bytes([6; 16]),
        scheme,
        threshold: 1,
        signers: vec![NodeId([1; 32])],
        issued_at_ms: 1,
        expires_at_ms: 2,
    }
}

const KEY_STATES: [(&str, bool, KeyChange); 8] = [
    ("ready", false, |_, live| KeyState::Ready(live)),
    ("wanted", true, |_, _| KeyState::Wanted),
    ("being made", true, |scheme, _| {
        KeyState::Generating(keygen_order(scheme))
    }),
    ("failed", true, |_, _| KeyState::Failed("refused".into())),
    ("new shares wanted", true, |_, live| {
        let reshare = ReshareState::Wanted(target());
        KeyState::Ready(LiveKey { reshare, ..live })
    }),
    ("new shares being made", true, |scheme, live| {
        let order = reshare_order(scheme, &live);
        let target = target();
        let reshare = ReshareState::Preparing { target, order };
        KeyState::Ready(LiveKey { reshare, ..live })
    }),
    ("new shares halted", true, |_, live| {
        let (target, reason) = (target(), "refused".into());
        let reshare = ReshareState::Halted { target, reason };
        KeyState::Ready(LiveKey { reshare, ..live })
    }),
    ("nodes to be told", true, |scheme, live| {
        let activation = Some(Activation {
            order: reshare_order(scheme, &live),
            proof: ReshareProof(Vec::new()),
            before: Vec::new(),
            untold: vec![NodeId([1; 32])],
            asked: true,
        });
        KeyState::Ready(LiveKey { activation, ..live })
    }),
];

/// A vault whose keys are there, one of them in another state.
fn vault_with(number: u16, changed: usize, change: KeyChange) -> Vault {
    let (signers, approval) = (
        [1, 2].map(|node| NodeId([node; 32])),
        ApprovalRule::automatic(),
    );
    let (id, name, ecdsa) = (vault(number), number.to_string(), Scheme::Dkls23);
    let mut made = Vault::new(id, &name, 2, signers.to_vec(), ecdsa, approval, 1).unwrap();
    for (place, key) in made.keys.iter_mut().enumerate() {
        let root = RootKey {
            curve: key.scheme.curve(),
            public_key: vec![4; 32],
            chain_code: [5; 32],
        };
        let confirmed = vec![vec![6; 64]];
        let live = LiveKey::new(MadeKey { root, confirmed }, 2, signers.to_vec());
        key.state = match place == changed {
            true => change(key.scheme, live),
            false => KeyState::Ready(live),
        };
    }
    made
}

#[tokio::test]
async fn vaults__should_be_unfinished_for_each_reason_that_there_is() {
    let store = MemoryStore::new();
    let mut batch = Batch::new();
    let mut table: Vec<(String, bool)> = Vec::new();
    let mut put = |what: String, expected: bool, vault: Option<Vault>, row: Option<Key>| {
        let number = u16::try_from(table.len()).unwrap();
        if let Some(vault) = vault {
            let row = rows::encode(&vault).unwrap();
            batch.put(rows::vault(vault.id), Precondition::Absent, row);
        }
        if let Some(key) = row {
            batch.put(key, Precondition::Absent, Vec::new());
        }
        table.push((what, expected));
        number + 1
    };
    let mut next = 0;
    for (what, expected, change) in KEY_STATES {
        for key in 0..2 {
            let made = vault_with(next, key, change);
            next = put(format!("{what}, key {key}"), expected, Some(made), None);
        }
    }
    let ready = KEY_STATES[0].2;
    for space in SPACES {
        let key = Key::new(space, &[vault(next).as_bytes(), b"row"]);
        let made = vault_with(next, 0, ready);
        next = put(format!("{space:?}"), true, Some(made), Some(key));
    }
    // Of these nothing is gone on with.
    for space in [KeySpace::Request, KeySpace::WalletIndex, KeySpace::Delay] {
        let key = Key::new(space, &[vault(next).as_bytes(), b"row"]);
        let made = vault_with(next, 0, ready);
        next = put(format!("{space:?}"), false, Some(made), Some(key));
    }
    let unreadable = rows::vault(vault(next));
    put("not to be read".into(), true, None, Some(unreadable));
    next = put("not there".into(), true, None, None);
    store.commit(batch).await.unwrap();
    let all: BTreeSet<_> = (0..next).map(vault).collect();
    let found = among(&store, &all).await.unwrap();
    for ((what, expected), number) in table.iter().zip(0..) {
        assert_eq!(found.contains(&vault(number)), *expected, "{what}");
    }
}
