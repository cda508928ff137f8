#![allow(non_snake_case)]

use proptest::prelude::*;

use super::*;
use crate::{
    ids::{SessionId, VaultId},
    scheme::Scheme,
    signature::Curve,
};

fn nodes(ids: &[u8]) -> Vec<NodeId> {
    ids.iter().map(|id| NodeId([*id; 32])).collect()
}

fn key() -> LiveKey {
    let root = RootKey {
        curve: Curve::Ed25519,
        public_key: vec![4; 32],
        chain_code: [5; 32],
    };
    let confirmed = vec![vec![6; 64]; 3];
    LiveKey::new(MadeKey { root, confirmed }, 2, nodes(&[1, 2, 3]))
}

fn target(threshold: u16, ids: &[u8]) -> ReshareTarget {
    ReshareTarget {
        threshold,
        holders: nodes(ids),
        lost: vec![],
    }
}

fn order(key: &LiveKey, session: u8, to: &ReshareTarget) -> ReshareOrder {
    let dealers = key.generation.holders.iter();
    let dealers = dealers.filter(|node| !to.lost.contains(node));
    ReshareOrder {
        vault: VaultId::from_bytes([9; 16]),
        session: SessionId::from_bytes([session; 16]),
        scheme: Scheme::FrostEd25519,
        root_public_key: key.root.public_key.clone(),
        old: key.generation.clone(),
        dealers: dealers
            .take(key.generation.threshold.into())
            .copied()
            .collect(),
        new: Generation {
            epoch: key.next_epoch,
            threshold: to.threshold,
            holders: to.holders.clone(),
        },
        issued_at_ms: 1,
        expires_at_ms: 2,
    }
}

fn proof(order: &ReshareOrder) -> ReshareProof {
    let parties = order.parties().into_iter();
    ReshareProof(parties.map(|node| (node, vec![1; 64])).collect())
}

#[test]
fn reshare__should_switch_generations_with_the_proof_and_then_tell_the_nodes() {
    let mut key = key();
    let to = target(3, &[1, 2, 3, 4, 5]);
    key.want(to.clone()).unwrap();
    let order = order(&key, 1, &to);
    key.begin(order.clone()).unwrap();
    assert_eq!((key.generation.epoch, key.next_epoch), (0, 2));
    key.prepared(&order, proof(&order)).unwrap();
    assert_eq!(key.generation, order.new);
    assert_eq!(key.reshare, ReshareState::Idle);
    assert_eq!(key.untold(), nodes(&[1, 2, 3, 4, 5]));
    key.confirmed(&order, &nodes(&[1, 2, 3, 4])).unwrap();
    assert!(!key.is_confirmed());
    key.confirmed(&order, &nodes(&[5])).unwrap();
    assert_eq!(key.activation, None);
    assert!(key.is_confirmed());
    assert!(key.confirmed(&order, &[]).is_err());
    assert!(key.prepared(&order, proof(&order)).is_err());
}

#[test]
fn run_that_failed__should_be_followed_by_one_of_a_new_epoch() {
    let mut key = key();
    let to = target(2, &[1, 2, 3]);
    key.want(to.clone()).unwrap();
    let first = order(&key, 1, &to);
    key.begin(first.clone()).unwrap();
    // The epoch is used up, no matter how the run ended.
    assert!(key.begin(first.clone()).is_err());
    let second = order(&key, 2, &to);
    key.begin(second.clone()).unwrap();
    assert_eq!((first.new.epoch, second.new.epoch), (1, 2));
    // The first one comes in late.
    assert!(key.prepared(&first, proof(&first)).is_err());
    key.prepared(&second, proof(&second)).unwrap();
}

#[test]
fn run__should_be_followed_by_one_from_what_nodes_have_shown() {
    let mut key = key();
    let to = target(2, &[1, 2, 3]);
    key.want(to.clone()).unwrap();
    let first = order(&key, 1, &to);
    key.begin(first.clone()).unwrap();
    let mut shown = order(&key, 7, &to);
    shown.new.epoch = 5;
    let later = |proven: Vec<ProvenGeneration>, epoch| LaterGenerations {
        proven,
        epoch,
        reason: no_reshare_running(),
    };
    let proven = ProvenGeneration {
        order: shown.clone(),
        proof: proof(&shown),
    };
    key.learned(&first, later(vec![proven], 0)).unwrap();
    assert_eq!((&key.generation, key.next_epoch), (&shown.new, 6));
    assert_eq!(key.untold(), nodes(&[1, 2, 3]));
    assert_eq!(key.reshare, ReshareState::Wanted(to.clone()));
    assert!(key.learned(&first, later(vec![], 9)).is_err());
    let second = order(&key, 2, &to);
    key.begin(second.clone()).unwrap();
    key.learned(&second, later(vec![], 9)).unwrap();
    assert_eq!((&key.generation, key.next_epoch), (&shown.new, 10));
    let third = order(&key, 3, &to);
    key.begin(third.clone()).unwrap();
    key.prepared(&third, proof(&third)).unwrap();
    assert_eq!(key.activation.unwrap().before[0].order, shown);
}

#[test]
fn order__should_be_refused_before_very_many_holders_are_looked_at() {
    let mut order = order(&key(), 1, &target(2, &[1, 2, 3]));
    order.check().unwrap();
    order.old.holders = (0..=MAX_SIGNERS)
        .map(|number| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_be_bytes());
            NodeId(id)
        })
        .collect();
    let fault = order.check().unwrap_err();
    assert_eq!(fault.message(), "old.holders: must be at most 255");
}

#[test]
fn cancel__should_leave_the_old_generation_and_use_up_the_epoch() {
    let mut key = key();
    assert!(key.cancel().is_err());
    let to = target(2, &[1, 2]);
    key.want(to.clone()).unwrap();
    key.cancel().unwrap();
    key.want(to.clone()).unwrap();
    let first = order(&key, 1, &to);
    key.begin(first.clone()).unwrap();
    key.cancel().unwrap();
    assert!(key.prepared(&first, proof(&first)).is_err());
    assert_eq!((key.generation.epoch, key.next_epoch), (0, 2));
    assert_eq!(key.begin(first).unwrap_err().class(), &Class::WrongState);
    // Too late once the new generation is in use.
    key.want(to.clone()).unwrap();
    let second = order(&key, 2, &to);
    key.begin(second.clone()).unwrap();
    key.prepared(&second, proof(&second)).unwrap();
    assert_eq!(key.cancel().unwrap_err().class(), &Class::WrongState);
    assert_eq!(key.generation.epoch, 2);
}

#[test]
fn next_reshare__should_not_wait_for_a_node_that_never_confirms() {
    let mut key = key();
    let same = target(2, &[1, 2, 3]);
    key.want(same.clone()).unwrap();
    let first = order(&key, 1, &same);
    key.begin(first.clone()).unwrap();
    key.prepared(&first, proof(&first)).unwrap();
    let other = target(2, &[1, 2, 4]);
    key.want(other.clone()).unwrap();
    let second = order(&key, 2, &other);
    key.begin(second.clone()).unwrap();
    // Nodes are still told about the first in the meantime.
    assert_eq!(key.activation.as_ref().unwrap().order, first);
    key.prepared(&second, proof(&second)).unwrap();
    assert!(key.confirmed(&first, &[]).is_err());
    // Node 3 never came, and node 4 is new.
    assert_eq!(key.untold(), nodes(&[1, 2, 4, 3]));
    key.confirmed(&second, &nodes(&[1, 2, 4])).unwrap();
    assert!(key.is_confirmed(), "who has left signs nothing");
    assert_eq!(key.untold(), nodes(&[3]));
    // A node that joins is told of everything that exists.
    key.want(same.clone()).unwrap();
    let third = order(&key, 3, &same);
    key.begin(third.clone()).unwrap();
    key.prepared(&third, proof(&third)).unwrap();
    assert_eq!(key.untold(), nodes(&[1, 2, 3, 4]));
    // It follows by what was proven since.
    let before = |key: &LiveKey| -> Vec<u32> {
        let activation = key.activation.as_ref().unwrap();
        let epochs = activation.before.iter().map(|it| it.order.new.epoch);
        epochs.collect()
    };
    assert_eq!(before(&key), [1, 2]);
    for epoch in 4..40 {
        key.want(same.clone()).unwrap();
        let next = order(&key, epoch, &same);
        key.begin(next.clone()).unwrap();
        key.prepared(&next, proof(&next)).unwrap();
    }
    assert_eq!(before(&key), (7..39).collect::<Vec<u32>>());
}

#[test]
fn runs_without_success__should_leave_nodes_that_the_next_generation_is_told_to() {
    let mut key = key();
    let to = target(2, &[3, 4, 5]);
    key.want(to.clone()).unwrap();
    assert!(key.leftover.is_empty());
    let first = order(&key, 1, &to);
    key.begin(first.clone()).unwrap();
    key.halt(&first, "the disk of 5 is full").unwrap();
    assert!(key.halt(&first, "again").is_err());
    let halted = ReshareState::Halted {
        target: to.clone(),
        reason: "the disk of 5 is full".into(),
    };
    assert_eq!(key.reshare, halted);
    let late = order(&key, 2, &to);
    assert!(key.begin(late).is_err(), "nobody has asked again");
    // Asked again, and for something else; then not at all.
    key.want(target(2, &[1, 6])).unwrap();
    let second = order(&key, 2, &target(2, &[1, 6]));
    key.begin(second.clone()).unwrap();
    assert!(key.halt(&first, "late").is_err());
    key.cancel().unwrap();
    assert_eq!(key.leftover, nodes(&[3, 4, 5, 1, 6]));
    let same = target(2, &[1, 2, 3]);
    key.want(same.clone()).unwrap();
    let third = order(&key, 3, &same);
    key.begin(third.clone()).unwrap();
    key.prepared(&third, proof(&third)).unwrap();
    assert!(key.leftover.is_empty());
    let mut untold = key.untold().to_vec();
    untold.sort_unstable();
    assert_eq!(untold, nodes(&[1, 2, 3, 4, 5, 6]));
}

#[test]
fn wish__should_be_refused_where_it_cannot_be_one() {
    let problem = |target: ReshareTarget| key().want(target).unwrap_err().message().to_owned();
    assert!(problem(target(1, &[1, 2])).starts_with("threshold: "));
    assert!(problem(target(3, &[1, 2])).starts_with("threshold: "));
    assert!(problem(target(2, &[1, 1])).starts_with("signers: "));
    let lost = |ids: &[u8]| ReshareTarget {
        lost: nodes(ids),
        ..target(2, &[1, 2, 3])
    };
    assert!(problem(lost(&[7])).starts_with("lost: includes a node that holds no share"));
    assert!(problem(lost(&[1, 2])).starts_with("lost: too few shares"));
    let mut key = key();
    key.want(lost(&[1])).unwrap();
    key.want(lost(&[1])).unwrap();
    let other = key.want(target(2, &[1, 2])).unwrap_err();
    assert_eq!(other.class(), &Class::WrongState);
}

#[test]
fn run__should_be_the_one_that_is_wanted() {
    let wanted = ReshareTarget {
        lost: nodes(&[1]),
        ..target(2, &[1, 2, 4])
    };
    let mut key = key();
    key.want(wanted.clone()).unwrap();
    let good = order(&key, 1, &wanted);
    let spoil: [fn(&mut ReshareOrder); 7] = [
        |order| order.root_public_key = vec![7; 32],
        |order| order.old.epoch = 3,
        |order| order.old.holders = nodes(&[2, 3, 5]),
        |order| order.new.threshold = 3,
        |order| order.new.holders = nodes(&[1, 2, 3]),
        |order| order.new.epoch = 0,
        |order| order.dealers = nodes(&[1, 2]),
    ];
    for (number, spoil) in spoil.into_iter().enumerate() {
        let mut order = good.clone();
        spoil(&mut order);
        let fault = key.begin(order).unwrap_err();
        assert_eq!(fault.class(), &Class::Bug, "{number}");
    }
    key.begin(good.clone()).unwrap();
    let mut partial = proof(&good);
    partial.0.pop();
    assert_eq!(
        key.prepared(&good, partial).unwrap_err().class(),
        &Class::Bug
    );
    key.prepared(&good, proof(&good)).unwrap();
}

/// What can happen to a key.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Want(bool),
    Begin,
    Prepared,
    PreparedLate,
    Confirmed(u8),
    Halt,
    Cancel,
}

fn anything() -> impl Strategy<Value = Happens> {
    prop_oneof![
        any::<bool>().prop_map(Happens::Want),
        Just(Happens::Begin),
        Just(Happens::Prepared),
        Just(Happens::PreparedLate),
        (1_u8..=4).prop_map(Happens::Confirmed),
        Just(Happens::Halt),
        Just(Happens::Cancel),
    ]
}

proptest! {
    #[test]
    fn life__should_never_use_an_epoch_twice_or_go_back(
        events in prop::collection::vec(anything(), 0..60),
    ) {
        let mut key = key();
        let mut runs: Vec<ReshareOrder> = Vec::new();
        // Who may hold a share of any run, or of the beginning, and is not one of the present.
        let mut holding: Vec<NodeId> = key.generation.holders.clone();
        for (number, event) in events.into_iter().enumerate() {
            let before = key.clone();
            let done = match event {
                Happens::Want(same) => {
                    let ids: &[u8] = if same { &[1, 2, 3] } else { &[2, 3, 4] };
                    key.want(target(2, ids))
                }
                Happens::Begin => match key.reshare.clone() {
                    ReshareState::Wanted(to) | ReshareState::Preparing { target: to, .. } => {
                        let order = order(&key, u8::try_from(number).unwrap(), &to);
                        prop_assert!(runs.iter().all(|run| run.new.epoch < order.new.epoch));
                        runs.push(order.clone());
                        key.begin(order)
                    }
                    ReshareState::Idle | ReshareState::Halted { .. } => continue,
                },
                Happens::Prepared | Happens::PreparedLate => {
                    let back = usize::from(matches!(event, Happens::PreparedLate));
                    let Some(run) = runs.iter().rev().nth(back) else { continue };
                    key.prepared(run, proof(run))
                }
                Happens::Confirmed(id) => match key.activation.clone() {
                    Some(activation) => {
                        let node = NodeId([id; 32]);
                        holding.retain(|it| *it != node);
                        key.confirmed(&activation.order, &[node])
                    }
                    None => continue,
                },
                Happens::Halt => match runs.last() {
                    Some(run) => key.halt(run, "it failed"),
                    None => continue,
                },
                Happens::Cancel => key.cancel(),
            };
            if done.is_err() {
                prop_assert_eq!(&key, &before, "a refusal changes nothing");
            }
            if let Happens::Begin = event {
                holding.extend(&key.leftover);
            }
            for node in &holding {
                let known = [&key.generation.holders, &key.leftover].into_iter().flatten();
                let mut known = known.chain(key.untold());
                prop_assert!(known.any(|it| it == node), "{node:?} is forgotten");
            }
            prop_assert_eq!(&key.root, &before.root);
            prop_assert!(key.generation.epoch >= before.generation.epoch);
            prop_assert!(key.next_epoch > key.generation.epoch);
            if key.generation != before.generation {
                let run = runs.last().unwrap();
                prop_assert_eq!(&run.old, &before.generation);
                prop_assert_eq!(&run.new, &key.generation);
            }
        }
    }
}

#[test]
fn restores__should_pass_no_epochs_that_nobody_can_have_used() {
    let mut key = key();
    let now_ms = 1_000 * 60_000;
    key.restored(600, now_ms, "restored");
    assert_eq!(key.next_epoch, 601);
    for _ in 0..5 {
        key.restored(600, now_ms, "restored");
        assert_eq!(key.next_epoch, 1_002);
    }
    // Never back, whatever the clock says.
    key.restored(600, 0, "restored");
    assert_eq!(key.next_epoch, 1_002);
}
