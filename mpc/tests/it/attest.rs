//! Nodes state only addresses that they have derived themselves, and what they state can be checked
//! with their keys alone.

use std::{sync::Arc, time::Duration};

use crate::support::*;
use covault_core::{
    attest::{AttestOrder, AttestedAddress, MAX_ADDRESSES},
    derive::{KeyPath, RootKey},
    fault::{Class, Fault},
    ids::{SessionId, VaultId},
    networks::Network,
    order::NodeId,
    port::random_16,
    signature::Curve,
};
use covault_mpc::{
    attest::{KeyStatements, has_signed},
    envelope::{EVERYONE, Envelope, EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
    identity::NodeIdentity,
    node::{KeyRules, ThresholdLimits},
    permits::PermitStore,
};
use tokio::{task::JoinHandle, time::interval};

const PATIENCE: Duration = Duration::from_secs(5);

fn path(network: Network, index: u32) -> KeyPath {
    KeyPath::of_wallet(network, index).unwrap()
}

pub fn address(root: &RootKey, network: Network, index: u32, reference: &str) -> AttestedAddress {
    let path = path(network, index);
    let child = root.child(&path).unwrap();
    AttestedAddress {
        address: network.rules().address(&child.public_key).unwrap(),
        path,
        network,
        reference: reference.to_owned(),
    }
}

pub fn order(test: &TestCluster, root: &RootKey, addresses: Vec<AttestedAddress>) -> AttestOrder {
    AttestOrder {
        session: SessionId::from_random(random_16(&SystemEntropy)),
        vault: test.vault,
        epoch: 0,
        root_public_key: root.public_key.clone(),
        threshold: 2,
        holders: test.holders(),
        confirmed: test.confirmed(root),
        addresses,
    }
}

async fn ask(
    test: &TestCluster,
    order: &AttestOrder,
) -> Result<Vec<(NodeId, Vec<[u8; 64]>)>, Fault> {
    test.cluster
        .attest(order, &test.holders(), 2, PATIENCE)
        .await
}

fn networks(curve: Curve) -> impl Iterator<Item = Network> {
    let of_curve = move |network: &Network| network.curve() == curve;
    Network::ALL.into_iter().filter(of_curve)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node__should_state_nothing_that_it_did_not_derive() {
    let test = TestCluster::start(TestBus::memory(), 3).await;
    test.until_live(3).await;
    let ecdsa = test.keygen(Curve::Secp256k1, 2).await;
    let eddsa = test.keygen(Curve::Ed25519, 2).await;
    for root in [&ecdsa, &eddsa] {
        let good: Vec<AttestedAddress> = networks(root.curve)
            .flat_map(|network| [0, 1, 1 << 30].map(|index| (network, index)))
            .map(|(network, index)| address(root, network, index, "order\n5"))
            .collect();
        let asked = order(&test, root, good.clone());
        let stated = ask(&test, &asked).await.unwrap();
        assert_eq!(stated.len(), 2);
        for (node, signatures) in &stated {
            assert!(test.holders().contains(node));
            for (statement, signature) in asked.statements().zip(signatures) {
                assert!(has_signed(node, &statement.text(), signature));
                let other = NodeId([9; 32]);
                assert!(!has_signed(&other, &statement.text(), signature));
            }
        }

        // Each alone, and each among good ones.
        let network = networks(root.curve).next().unwrap();
        let sound = address(root, network, 5, "");
        let mut lies = vec![
            AttestedAddress {
                path: path(network, 6),
                ..sound.clone()
            },
            AttestedAddress {
                reference: "r".repeat(501),
                ..sound.clone()
            },
            AttestedAddress {
                address: sound.address.to_lowercase() + " ",
                ..sound.clone()
            },
            address(
                &RootKey {
                    chain_code: [1; 32],
                    ..root.clone()
                },
                network,
                5,
                "",
            ),
        ];
        for other in Network::ALL.into_iter().filter(|other| *other != network) {
            lies.push(AttestedAddress {
                network: other,
                ..sound.clone()
            });
            // The key of another network's path.
            let path = path(other, 5);
            let child = root.child(&path).unwrap();
            lies.push(AttestedAddress {
                address: network.rules().address(&child.public_key).unwrap(),
                path,
                ..sound.clone()
            });
        }
        for lie in lies {
            for addresses in [vec![lie.clone()], vec![sound.clone(), lie.clone()]] {
                let refused = ask(&test, &order(&test, root, addresses)).await;
                assert!(refused.is_err(), "{lie:?}");
            }
        }
        let refused = async |order: AttestOrder| {
            let refused = ask(&test, &order).await.unwrap_err();
            assert_eq!(refused.class(), &Class::Unavailable);
        };
        let stranger = VaultId::from_bytes([7; 16]);
        refused(AttestOrder {
            vault: stranger,
            ..order(&test, root, vec![sound.clone()])
        })
        .await;
        let unknown = RootKey {
            public_key: root.child(&path(network, 1)).unwrap().public_key,
            ..root.clone()
        };
        refused(AttestOrder {
            confirmed: test.confirmed(root),
            ..order(&test, &unknown, vec![address(&unknown, network, 5, "")])
        })
        .await;
        // Another threshold, other holders.
        let fitting = order(&test, root, vec![sound.clone()]);
        for threshold in [0, 1, 3] {
            refused(AttestOrder {
                threshold,
                ..fitting.clone()
            })
            .await;
        }
        let mut others = vec![vec![], fitting.holders.clone(), fitting.holders.clone()];
        others[1].pop();
        others[2].push(NodeId([9; 32]));
        for holders in others {
            refused(AttestOrder {
                holders,
                ..fitting.clone()
            })
            .await;
        }
        refused(order(&test, root, vec![])).await;
        refused(order(&test, root, vec![sound.clone(); MAX_ADDRESSES + 1])).await;
        let full = order(&test, root, vec![sound.clone(); MAX_ADDRESSES]);
        ask(&test, &full).await.unwrap();
    }

    // An orchestrator that no node pins.
    let stranger = Arc::new(NodeIdentity::generate(&SystemEntropy));
    let cluster = start_cluster(&test.medium, &stranger).await;
    let asked = order(&test, &ecdsa, vec![address(&ecdsa, Network::Evm, 5, "")]);
    for _ in 0..40 {
        if cluster.nodes().iter().filter(|node| node.live).count() == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let patience = Duration::from_secs(1);
    let refused = cluster.attest(&asked, &test.holders(), 2, patience).await;
    assert_eq!(refused.unwrap_err().class(), &Class::Unavailable);
}

/// Answers whatever it is asked with signatures of another text.
async fn byzantine(test: &TestCluster, place: usize) -> JoinHandle<()> {
    let bus = test.medium.bus();
    let identity = Arc::clone(&test.nodes[place].identity);
    let codec = EnvelopeCodec::new(
        Arc::clone(&identity),
        Arc::clone(&bus),
        Arc::new(SystemEntropy),
    );
    let mut inbox = bus.subscribe(codec.id(), false).await.unwrap();
    tokio::spawn(async move {
        let mut heartbeat = interval(Duration::from_millis(200));
        let header = |kind, session, to| EnvelopeHeader {
            kind,
            sealed: false,
            epoch: 0,
            session,
            attempt: 0,
            round: 0,
            sequence: 0,
            from: to,
            to,
        };
        loop {
            tokio::select! {
                _ = heartbeat.tick() => {
                    let body = announcement("byzantine node", now_ms());
                    let session = SessionId::from_bytes([0; 16]);
                    codec.send(header(EnvelopeKind::Announcement, session, EVERYONE), &body).unwrap();
                }
                message = inbox.next() => {
                    let Ok(envelope) = Envelope::parse(message.unwrap()) else { continue };
                    let EnvelopeHeader { kind, session, from, .. } = envelope.header;
                    if kind != EnvelopeKind::AttestOrder {
                        continue;
                    }
                    let signature = identity.sign(b"covault address statement v1\n");
                    // Reply::Attested.
                    let body = [&[8, 64][..], &signature].concat();
                    codec.send(header(EnvelopeKind::Reply, session, from), &body).unwrap();
                }
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_lies__should_be_left_out() {
    let mut test = TestCluster::start(TestBus::memory(), 3).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    test.stop_node(0).await;
    test.until_live(2).await;
    let byzantine = byzantine(&test, 0).await;
    test.until_live(3).await;
    let made = order(&test, &root, vec![address(&root, Network::Solana, 5, "")]);
    let asked = || AttestOrder {
        session: SessionId::from_random(random_16(&SystemEntropy)),
        ..made.clone()
    };
    for _ in 0..5 {
        let stated = ask(&test, &asked()).await.unwrap();
        let nodes: Vec<NodeId> = stated.iter().map(|(node, _)| *node).collect();
        assert_eq!(nodes.len(), 2);
        assert!(!nodes.contains(&test.holders()[0]));
    }
    // With one honest node there are not enough.
    test.stop_node(1).await;
    test.until_live(2).await;
    let refused = ask(&test, &asked()).await.unwrap_err();
    assert_eq!(refused.class(), &Class::Unavailable);
    byzantine.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_statements__should_be_the_same_of_all_holders_and_follow_the_generations() {
    let mut test = TestCluster::start(TestBus::memory(), 3).await;
    test.until_live(3).await;
    let ecdsa = test.keygen(Curve::Secp256k1, 2).await;
    let eddsa = test.keygen(Curve::Ed25519, 2).await;
    let read = |test: &TestCluster| {
        let of = |place: usize| {
            let node = &test.nodes[place];
            let found = KeyStatements::load(&node.folder, &node.identity.id()).unwrap();
            // Another node's key does not open it.
            let other = test.nodes[(place + 1) % 3].identity.id();
            assert!(KeyStatements::load(&node.folder, &other).is_err());
            let texts = found.keys.into_iter().map(|key| key.statement);
            texts.collect::<Vec<String>>()
        };
        let all = [of(0), of(1), of(2)];
        assert_eq!(all[0], all[1]);
        assert_eq!(all[0], all[2]);
        all[0].clone()
    };
    let made = read(&test);
    assert_eq!(made.len(), 2);
    for root in [&ecdsa, &eddsa] {
        let names_it = |text: &&String| {
            text.contains(&format!("root: {}\n", hex::encode(&root.public_key)))
                && text.contains(&format!("chain code: {}\n", hex::encode(root.chain_code)))
                && text.contains(&format!("vault: {}\n", test.vault))
                && text.contains("threshold: 2\n")
                && text.contains("epoch: 0\n")
        };
        assert_eq!(made.iter().filter(names_it).count(), 1);
    }
    let refresh = test.refresh_order(&eddsa, 0, 2);
    let proof = test.cluster.reshare(&refresh).await.unwrap();
    // What is prepared and not activated is not stated.
    assert_eq!(read(&test), made);
    test.cluster.activate(&refresh, &proof).await.unwrap();
    let refreshed = read(&test);
    let new: Vec<&String> = refreshed
        .iter()
        .filter(|text| !made.contains(text))
        .collect();
    assert_eq!(new.len(), 1);
    assert!(new[0].contains("epoch: 1\n"));
    let transcript = |text: &String| text.lines().last().unwrap().to_owned();
    assert!(!made.iter().any(|old| transcript(old) == transcript(new[0])));

    // A file that was changed, or is gone, is written anew at the next start.
    test.stop_node(0).await;
    let file = test.nodes[0].folder.join("keys.json");
    let changed = std::fs::read_to_string(&file)
        .unwrap()
        .replace("epoch: 1", "epoch: 2");
    std::fs::write(&file, changed).unwrap();
    let node = test.nodes[0].identity.id();
    assert!(KeyStatements::load(&test.nodes[0].folder, &node).is_err());
    test.until_live(2).await;
    test.start_node(0);
    test.until_live(3).await;
    assert_eq!(read(&test), refreshed);
}

/// As deploy/signer-1.toml has it: nodes make keys that two can sign with.
async fn start_with_least_2(nodes: usize) -> TestCluster {
    let mut test = TestCluster::start(TestBus::memory(), nodes).await;
    for place in 0..nodes {
        test.stop_node(place).await;
        test.nodes[place].rules = KeyRules {
            limits: ThresholdLimits {
                least_threshold: Some(2),
                ..ThresholdLimits::default()
            },
            ..KeyRules::default()
        };
        test.start_node(place);
    }
    test.until_live(nodes).await;
    test
}

/// The orchestrator has a second key made for a vault, with so many of its nodes and this threshold, and
/// asks for statements about its address. First nothing was done with the vault's own key; then an
/// address of it was stated; then it signed; and the nodes have started again since.
async fn second_key(
    network: Network,
    uses: &[&str],
    nodes: usize,
    own: u16,
    holders: usize,
    threshold: u16,
) {
    let curve = network.curve();
    let every = u16::try_from(nodes).unwrap();
    let asked_of = |test: &TestCluster, root: &RootKey, index| {
        let mut asked = order(test, root, vec![address(root, network, index, "order 5")]);
        asked.threshold = own;
        asked
    };
    for used in uses.iter().copied() {
        let mut test = start_with_least_2(nodes).await;
        let all = test.holders();
        let vaults_own = test.keygen(curve, own).await;
        // How many nodes do not know yet which key is the vault's.
        let unaware = match used {
            "never" => every,
            "stated" => {
                let asked = asked_of(&test, &vaults_own, 0);
                let stated = test.cluster.attest(&asked, &all, every, PATIENCE).await;
                assert_eq!(stated.unwrap().len(), nodes);
                0
            }
            _ => {
                test.sign_well(&vaults_own, own).await;
                every - own
            }
        };
        for place in 0..nodes {
            test.stop_node(place).await;
        }
        test.until_live(0).await;
        (0..nodes).for_each(|place| test.start_node(place));
        test.until_live(nodes).await;
        let mut second = test.keygen_order(curve, threshold);
        second.signers.truncate(holders);
        let made = test.cluster.keygen(&second).await.unwrap();
        assert_ne!(made.root, vaults_own);
        // What a client of the vault looks for. No node says it.
        let mut asked = asked_of(&test, &made.root, 0);
        asked.confirmed = made.confirmed;
        let wanted = asked.statements().next().unwrap().text();
        let stated = test.cluster.attest(&asked, &all, 1, PATIENCE).await;
        stated.unwrap_err();
        // What is true of that key, of more nodes than do not know better.
        asked.session = SessionId::from_random(random_16(&SystemEntropy));
        asked.threshold = threshold;
        asked.holders = second.signers.clone();
        let least = threshold.max(unaware + 1).min(own);
        let stated = test
            .cluster
            .attest(&asked, &second.signers, least, PATIENCE);
        let stated = stated.await;
        if used == "never" {
            for (node, signatures) in stated.unwrap() {
                assert!(!has_signed(&node, &wanted, &signatures[0]));
            }
            continue;
        }
        let stated = stated.map(|stated| stated.len());
        assert!(stated.is_err(), "{stated:?} nodes state it although {used}");
        // And the vault's own is stated as before.
        let asked = asked_of(&test, &vaults_own, 1);
        let stated = test.cluster.attest(&asked, &all, own, PATIENCE).await;
        assert_eq!(stated.unwrap().len(), usize::from(own));
    }
}

/// A client pins nodes, threshold and vault. The orchestrator, with fewer hostile holders than that
/// threshold, has another key made for the same vault that needs fewer, and its addresses stated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_state_no_address_of_a_key_that_is_weaker_than_the_vaults_own() {
    second_key(Network::Solana, &["never", "stated"], 5, 3, 5, 2).await;
}

/// As above in the sample's 2-of-3: one hostile holder and one honest one make a key that nobody else
/// has a share of, so that the hostile one alone keeps the money that is paid to it for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_state_no_address_of_a_key_that_one_hostile_node_can_hold_back() {
    second_key(Network::Evm, &["never", "stated", "signed"], 3, 2, 2, 2).await;
}

/// The same nodes and the same threshold: nobody is weaker by it, but a vault has one key on a curve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes__should_state_addresses_of_one_key_of_a_vault_on_each_curve() {
    let test = TestCluster::start(TestBus::memory(), 3).await;
    test.until_live(3).await;
    // One that nothing was done with leaves no trace.
    test.keygen(Curve::Ed25519, 2).await;
    let own = test.keygen(Curve::Ed25519, 2).await;
    let ecdsa = test.keygen(Curve::Secp256k1, 2).await;
    let of = |root: &RootKey, network| order(&test, root, vec![address(root, network, 0, "")]);
    let state = async |asked: AttestOrder, least| {
        let all = test.holders();
        test.cluster.attest(&asked, &all, least, PATIENCE).await
    };
    state(of(&own, Network::Solana), 3).await.unwrap();
    state(of(&ecdsa, Network::Evm), 3).await.unwrap();
    let other = test.keygen(Curve::Ed25519, 2).await;
    state(of(&other, Network::Solana), 1).await.unwrap_err();
    state(of(&own, Network::Solana), 3).await.unwrap();
}

/// A hostile orchestrator has the nodes that are about to join a vault state an address of another key
/// first. Their operators give them the vault's own, and nobody knows that orchestrator any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_join__should_state_addresses_of_the_key_that_their_operators_gave_them() {
    let mut test = TestCluster::start(TestBus::memory(), 5).await;
    test.until_live(5).await;
    let ids = test.holders();
    let mut keygen = test.keygen_order(Curve::Ed25519, 2);
    keygen.signers.truncate(3);
    let own = test.cluster.keygen(&keygen).await.unwrap();
    let asked_of =
        |test: &TestCluster, root: &RootKey, holders: &[NodeId], confirmed: &[Vec<u8>]| {
            let mut asked = order(test, root, vec![address(root, Network::Solana, 0, "")]);
            asked.holders = holders.to_vec();
            asked.confirmed = confirmed.to_vec();
            asked
        };
    let asked = asked_of(&test, &own.root, &ids[..3], &own.confirmed);
    let stated = test.cluster.attest(&asked, &ids[..3], 3, PATIENCE).await;
    stated.unwrap();

    let joined = [ids[0], ids[3], ids[4]];
    let mut keygen = test.keygen_order(Curve::Ed25519, 2);
    keygen.signers = joined.to_vec();
    let other = test.cluster.keygen(&keygen).await.unwrap();
    let asked = asked_of(&test, &other.root, &joined, &other.confirmed);
    let stated = test.cluster.attest(&asked, &joined, 2, PATIENCE).await;
    stated.expect("not even tried");

    let mut reshare = test.refresh_order(&own.root, 0, 2);
    reshare.old.holders = ids[..3].to_vec();
    reshare.new.holders = joined.to_vec();
    for place in [3, 4] {
        let permits = PermitStore::of(&test.nodes[place].folder);
        let permitted = permits.grant(&reshare.change(), now_ms() + 600_000);
        permitted.unwrap();
    }
    let proof = test.cluster.reshare(&reshare).await.unwrap();
    test.cluster.activate(&reshare, &proof).await.unwrap();
    for place in [3, 4] {
        test.stop_node(place).await;
        test.start_node(place);
    }
    test.until_live(5).await;
    let mut asked = asked_of(&test, &own.root, &joined, &[]);
    asked.epoch = 1;
    let stated = test.cluster.attest(&asked, &joined, 2, PATIENCE).await;
    assert!(
        stated.is_ok(),
        "no address of the vault's own key is ever proven again: {stated:?}"
    );
}
