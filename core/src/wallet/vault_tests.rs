#![allow(non_snake_case)]

use super::*;
use crate::{ids::SessionId, wallet::generation::ReshareState};

fn vault() -> Vault {
    let signers = vec![NodeId([1; 32]), NodeId([2; 32]), NodeId([3; 32])];
    let ecdsa = Scheme::Dkls23;
    Vault::new(
        VaultId::from_bytes([9; 16]),
        "main",
        2,
        signers,
        ecdsa,
        ApprovalRule::automatic(),
        7,
    )
    .unwrap()
}

fn order(vault: &Vault, curve: Curve, session: u8) -> KeygenOrder {
    KeygenOrder {
        vault: vault.id,
        session: SessionId::from_bytes([session; 16]),
        scheme: Scheme::default_of(curve),
        threshold: 2,
        signers: vault.signers.clone(),
        issued_at_ms: 1,
        expires_at_ms: 2,
    }
}

fn key(curve: Curve) -> MadeKey {
    MadeKey {
        root: RootKey {
            curve,
            public_key: vec![4; 32],
            chain_code: [5; 32],
        },
        confirmed: vec![vec![6; 64]; 3],
    }
}

#[test]
fn vault__should_be_ready_once_both_keys_are_there() {
    let mut vault = vault();
    for curve in Curve::ALL {
        assert!(!vault.ready());
        let order = order(&vault, curve, 1);
        vault.claim(order.clone()).unwrap();
        vault.take(&order, key(curve)).unwrap();
    }
    assert!(vault.ready());
    assert_eq!(vault.root(Curve::Ed25519), Some(&key(Curve::Ed25519).root));
}

#[test]
fn vault__should_never_replace_a_key() {
    let mut vault = vault();
    let first = order(&vault, Curve::Ed25519, 1);
    let second = order(&vault, Curve::Ed25519, 2);
    vault.claim(first.clone()).unwrap();
    vault.claim(second.clone()).unwrap();
    // The run that was given up comes in late.
    assert!(vault.take(&first, key(Curve::Ed25519)).is_err());
    vault.take(&second, key(Curve::Ed25519)).unwrap();
    assert!(vault.claim(first.clone()).is_err());
    assert!(vault.take(&second, key(Curve::Ed25519)).is_err());
    assert!(vault.give_up(&second, "no").is_err());
}

#[test]
fn reshare__should_be_of_every_key_or_of_those_named() {
    let mut vault = vault();
    let nodes = vault.signers.clone();
    let early = vault.want_reshare(None, &[], &[]).unwrap_err();
    assert_eq!(early.class(), &Class::WrongState);
    for curve in Curve::ALL {
        let order = order(&vault, curve, 1);
        vault.claim(order.clone()).unwrap();
        vault.take(&order, key(curve)).unwrap();
        assert_eq!(vault.generation(curve).unwrap().epoch, 0);
    }
    assert!(vault.cancel_reshare().is_err());
    let wanted = |vault: &Vault| {
        Curve::ALL.map(|curve| vault.live(curve).unwrap().reshare != ReshareState::Idle)
    };
    let one = Scheme::default_of(Curve::ALL[0]);
    vault.want_reshare(None, &[], &[one]).unwrap();
    assert_eq!(wanted(&vault), [true, false]);
    vault.cancel_reshare().unwrap();
    let four = [nodes.as_slice(), &[NodeId([4; 32])]].concat();
    vault
        .want_reshare(Some((3, &four)), &nodes[..1], &[])
        .unwrap();
    assert_eq!(wanted(&vault), [true, true]);
    let live = vault.live(Curve::Ed25519).unwrap().clone();
    let order = ReshareOrder {
        vault: vault.id,
        session: SessionId::from_bytes([2; 16]),
        scheme: Scheme::FrostEd25519,
        root_public_key: live.root.public_key,
        old: live.generation,
        dealers: nodes[1..].to_vec(),
        new: Generation {
            epoch: 1,
            threshold: 3,
            holders: four.clone(),
        },
        issued_at_ms: 1,
        expires_at_ms: 2,
    };
    vault.begin_reshare(order.clone()).unwrap();
    let parties = order.parties();
    let proof = ReshareProof(parties.iter().map(|node| (*node, vec![])).collect());
    vault.reshared(&order, proof).unwrap();
    assert_eq!(vault.generation(Curve::Ed25519), Some(&order.new));
    assert_eq!(vault.generation(Curve::Secp256k1).unwrap().epoch, 0);
    vault.confirmed(&order, &four).unwrap();
    assert!(vault.live(Curve::Ed25519).unwrap().activation.is_none());
    let unknown = vault.want_reshare(None, &[], &[Scheme::Cggmp24]);
    assert!(unknown.unwrap_err().message().starts_with("schemes: "));
}

#[test]
fn reshare__should_leave_out_a_key_that_has_none_and_refuse_it_by_name() {
    let nodes: Vec<NodeId> = (1..=3).map(|number| NodeId([number; 32])).collect();
    let id = VaultId::from_bytes([9; 16]);
    let mut vault = Vault::new(
        id,
        "rare",
        2,
        nodes,
        Scheme::Cggmp24,
        ApprovalRule::automatic(),
        7,
    )
    .unwrap();
    for scheme in [Scheme::Cggmp24, Scheme::FrostEd25519] {
        let order = KeygenOrder {
            scheme,
            ..order(&vault, scheme.curve(), 1)
        };
        vault.claim(order.clone()).unwrap();
        vault.take(&order, key(scheme.curve())).unwrap();
    }
    vault.want_reshare(None, &[], &[]).unwrap();
    let reshare = |curve| vault.live(curve).unwrap().reshare.clone();
    assert_ne!(reshare(Curve::Ed25519), ReshareState::Idle);
    assert_eq!(reshare(Curve::Secp256k1), ReshareState::Idle);
    let fault = vault
        .want_reshare(None, &[], &[Scheme::Cggmp24])
        .unwrap_err();
    assert!(fault.message().contains("cggmp24 keys cannot be refreshed"));
}

#[test]
fn plan_again__should_change_what_is_not_there_and_nothing_else() {
    let mut vault = vault();
    let others = vec![NodeId([1; 32]), NodeId([4; 32]), NodeId([5; 32])];
    let first = order(&vault, Curve::Ed25519, 1);
    vault.claim(first.clone()).unwrap();
    // Nothing is there: both are wanted of the others, and what is under way is nobody's.
    vault
        .plan_again(3, others.clone(), Scheme::Cggmp24)
        .unwrap();
    assert!(vault.take(&first, key(Curve::Ed25519)).is_err());
    assert_eq!((vault.threshold, &vault.signers), (3, &others));
    assert_eq!(vault.ecdsa(), Scheme::Cggmp24);
    vault.plan_again(2, others.clone(), Scheme::Dkls23).unwrap();
    // One is there: it stays with whom it is.
    let made = order(&vault, Curve::Secp256k1, 2);
    vault.claim(made.clone()).unwrap();
    vault.take(&made, key(Curve::Secp256k1)).unwrap();
    let third = vec![NodeId([6; 32]), NodeId([7; 32])];
    let fault = vault.plan_again(2, third.clone(), Scheme::Cggmp24);
    assert_eq!(fault.unwrap_err().class(), &Class::WrongState);
    assert!(vault.plan_again(1, third.clone(), Scheme::Dkls23).is_err());
    vault.plan_again(2, third.clone(), Scheme::Dkls23).unwrap();
    assert_eq!(vault.generation(Curve::Secp256k1).unwrap().holders, others);
    let last = order(&vault, Curve::Ed25519, 3);
    vault.claim(last.clone()).unwrap();
    vault.take(&last, key(Curve::Ed25519)).unwrap();
    assert_eq!(vault.generation(Curve::Ed25519).unwrap().holders, third);
    // All are there.
    let fault = vault.plan_again(2, others, Scheme::Dkls23).unwrap_err();
    assert_eq!(fault.class(), &Class::WrongState);
}

#[test]
fn want_again__should_change_only_what_has_failed() {
    let mut vault = vault();
    let [first, second] = Curve::ALL.map(|curve| order(&vault, curve, 1));
    vault.claim(first.clone()).unwrap();
    vault.take(&first, key(first.scheme.curve())).unwrap();
    vault.claim(second.clone()).unwrap();
    vault.give_up(&second, "no").unwrap();
    vault.retry_failed_keys();
    assert_eq!(vault.failed_reason(), None);
    assert_eq!(
        vault.root(first.scheme.curve()),
        Some(&key(first.scheme.curve()).root)
    );
    vault.claim(second.clone()).unwrap();
    vault.take(&second, key(second.scheme.curve())).unwrap();
    assert!(vault.ready());
}

#[test]
fn new__should_refuse_what_cannot_sign() {
    let id = VaultId::from_bytes([9; 16]);
    let nodes = |ids: &[u8]| ids.iter().map(|id| NodeId([*id; 32])).collect::<Vec<_>>();
    let problem = |name: &str, threshold, signers| {
        Vault::new(
            id,
            name,
            threshold,
            signers,
            Scheme::Dkls23,
            ApprovalRule::automatic(),
            1,
        )
        .unwrap_err()
        .message()
        .to_owned()
    };
    assert_eq!(problem(" ", 2, nodes(&[1, 2])), "name: is required");
    assert_eq!(
        problem("v", 2, nodes(&[1, 1])),
        "signers: name one node twice"
    );
    assert!(problem("v", 1, nodes(&[1, 2])).starts_with("threshold: "));
    assert!(problem("v", 3, nodes(&[1, 2])).starts_with("threshold: "));
}

#[test]
fn new__should_take_the_ecdsa_scheme_that_is_asked_for() {
    let make = |ecdsa| {
        let signers = vec![NodeId([1; 32]), NodeId([2; 32])];
        Vault::new(
            VaultId::from_bytes([9; 16]),
            "v",
            2,
            signers,
            ecdsa,
            ApprovalRule::automatic(),
            1,
        )
    };
    let vault = make(Scheme::Cggmp24).unwrap();
    let schemes: Vec<_> = vault.keys.iter().map(|key| key.scheme).collect();
    assert_eq!(schemes.len(), 2);
    assert!(schemes.contains(&Scheme::Cggmp24) && schemes.contains(&Scheme::FrostEd25519));
    assert_eq!(vault.ecdsa(), Scheme::Cggmp24);
    let fault = make(Scheme::FrostEd25519).unwrap_err();
    assert_eq!(fault.message(), "ecdsaBackend: not an ECDSA backend");
}
