use super::*;
use crate::{
    attest::MadeKey, derive::RootKey, ids::SessionId, order::KeygenOrder, request::ApprovalRule,
    scheme::Scheme, wallet::generation::ReshareTarget,
};

fn node(number: u8) -> NodeId {
    NodeId([number; 32])
}

fn vault() -> Vault {
    let signers = vec![node(1), node(2), node(3)];
    let rule = ApprovalRule::automatic();
    let id = VaultId::from_bytes([9; 16]);
    Vault::new(id, "main", 2, signers, Scheme::Dkls23, rule, 7).unwrap()
}

fn with_key(mut vault: Vault, curve: Curve) -> Vault {
    let order = KeygenOrder {
        vault: vault.id,
        session: SessionId::from_bytes([1; 16]),
        scheme: Scheme::default_of(curve),
        threshold: 2,
        signers: vault.signers.clone(),
        issued_at_ms: 1,
        expires_at_ms: 2,
    };
    let root = RootKey {
        curve,
        public_key: vec![4; 32],
        chain_code: [5; 32],
    };
    let confirmed = vec![vec![6; 64]; 3];
    vault.claim(order.clone()).unwrap();
    vault.take(&order, MadeKey { root, confirmed }).unwrap();
    vault
}

fn live(vault: &mut Vault, curve: Curve) -> &mut LiveKey {
    let key = vault
        .keys
        .iter_mut()
        .find(|key| key.scheme.curve() == curve);
    match &mut key.unwrap().state {
        KeyState::Ready(live) => live,
        state => panic!("{state:?}"),
    }
}

fn statuses(requests: &[ManagementRequest], vault: &Vault) -> Vec<(Status, String)> {
    let shown = requests.iter().map(|request| request.to_wire(vault));
    shown
        .map(|shown| (shown.status(), shown.failed_reason))
        .collect()
}

#[test]
fn a_new_vault__should_come_with_requests_for_itself_and_its_keys() {
    let vault = vault();
    let requests = ManagementRequest::of_new(&vault);
    let of = |status| (status, String::new());
    let (pending, done) = (Status::Pending, Status::Succeeded);
    let expected = [of(done), of(pending), of(pending)];
    assert_eq!(statuses(&requests, &vault), expected);
    let ids: std::collections::BTreeSet<_> = requests.iter().map(|request| request.id).collect();
    assert_eq!(ids.len(), 3);
    assert_eq!(ManagementRequest::of_new(&vault), requests, "the same ids");

    let one = with_key(vault, Curve::Ed25519);
    let expected = [of(done), of(pending), of(done)];
    assert_eq!(statuses(&requests, &one), expected);

    let mut failed = one.clone();
    failed.keys[0].state = KeyState::Failed("no such backend".into());
    let reason = (Status::Failed, "no such backend".to_owned());
    let expected = [of(done), reason, of(done)];
    assert_eq!(statuses(&requests, &failed), expected);

    let shown = requests[0].to_wire(&one);
    let Some(Type::VaultCreation(creation)) = shown.r#type else {
        panic!("{shown:?}");
    };
    assert_eq!((creation.name.as_str(), creation.threshold), ("main", 2));
    assert_eq!(creation.signers.len(), 3);
    assert_eq!(shown.creation_timestamp, 7);
}

#[test]
fn a_node_that_gets_shares__should_have_a_request_for_each_key_until_it_holds_them() {
    let before = with_key(vault(), Curve::Ed25519);
    let mut wanted = before.clone();
    let target = ReshareTarget {
        threshold: 2,
        holders: vec![node(1), node(2), node(4)],
        lost: Vec::new(),
    };
    live(&mut wanted, Curve::Ed25519).want(target).unwrap();
    let begun = ManagementRequest::changed(&before, &wanted, 8);
    assert_eq!(begun.len(), 1, "node 3 only loses its share: {begun:?}");
    assert_eq!(
        statuses(&begun, &wanted),
        [(Status::Pending, String::new())]
    );
    // Repeating the wish begins nothing.
    assert_eq!(ManagementRequest::changed(&wanted, &wanted, 9), []);

    let mut cancelled = wanted.clone();
    live(&mut cancelled, Curve::Ed25519).cancel().unwrap();
    assert_eq!(ManagementRequest::changed(&wanted, &cancelled, 9), []);
    let refused = (Status::Failed, NOT_GRANTED.to_owned());
    assert_eq!(statuses(&begun, &cancelled).first(), Some(&refused));

    let mut granted = wanted.clone();
    let key = live(&mut granted, Curve::Ed25519);
    key.generation.epoch = 1;
    key.generation.holders = vec![node(1), node(2), node(4)];
    key.reshare = ReshareState::Idle;
    let ended = ManagementRequest::changed(&wanted, &granted, 9);
    assert_eq!(ended[0].id, begun[0].id);
    assert_eq!(
        statuses(&ended, &granted),
        [(Status::Succeeded, String::new())]
    );
    // Later it loses the share again, and had it nevertheless.
    let mut lost = granted.clone();
    live(&mut lost, Curve::Ed25519).generation.holders.pop();
    assert_eq!(
        statuses(&ended, &lost),
        [(Status::Succeeded, String::new())]
    );
    assert_eq!(statuses(&begun, &lost), [refused]);
}
