//! A hostile orchestrator together with hostile nodes that the others pin: it gets no share erased,
//! no key made fragile, and no vault for nodes of other vaults.

use std::collections::BTreeMap;

use age::x25519::Identity;
use covault_core::{
    attest::{AttestOrder, AttestedAddress},
    derive::KeyPath,
    fault::Class,
    networks::Network,
    order::{Generation, NodeId, ProvenGeneration, ReshareOrder, ReshareProof},
    signature::Curve,
};
use covault_mpc::{
    attest::has_signed,
    node::{KeyRules, ThresholdLimits},
    permits::PermitStore,
    shares::{ShareStore as _, age_file::AgeShareStore, backup},
};
use secrecy::SecretString;

use crate::{
    life::backup::check_private,
    life::world::{LifecycleFixture, session},
    support::{free, now_ms},
};

/// The statements of the nodes at these places.
fn statements(life: &LifecycleFixture, order: &ReshareOrder, places: &[usize]) -> ReshareProof {
    let statement = order.statement().unwrap();
    let sign = |place: &usize| {
        let identity = &life.test.nodes[*place].identity;
        (identity.id(), identity.sign(&statement).to_vec())
    };
    ReshareProof(places.iter().map(sign).collect())
}

fn permits(life: &LifecycleFixture, place: usize) -> PermitStore {
    PermitStore::of(&life.test.nodes[place].folder)
}

fn grant(life: &LifecycleFixture, order: &ReshareOrder, places: &[usize]) {
    for place in places {
        let until_ms = now_ms() + 600_000;
        permits(life, *place)
            .grant(&order.change(), until_ms)
            .unwrap();
    }
}

/// Whether the share files are as they were: of epoch 0 with the first `count` nodes, none retired.
fn untouched(life: &LifecycleFixture, count: usize) -> bool {
    (0..count).all(|place| life.files(place) == (vec![0], vec![]) && life.retired(place).is_empty())
}

/// The attack that worked: as many nodes as are needed for nothing but their own statements.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares__should_not_be_retired_on_the_word_of_pinned_nodes_that_have_no_share() {
    // Five hold shares, three are needed. Nodes 5 and 6 are pinned by all and hold none.
    let mut life = LifecycleFixture::start(Curve::Ed25519, 7, 5, 3).await;
    let everybody: Vec<NodeId> = (0..7).map(|place| life.id(place)).collect();
    let mut forged = Vec::new();
    // An order as it would be, and the statements of its new holders; then of hostile old ones, too,
    // fewer than are needed.
    let order = life.order(&[0, 1, 2], &[5, 6], 2);
    forged.push((order.clone(), statements(&life, &order, &[5, 6])));
    let order = life.order(&[2, 3, 4], &[5, 6], 2);
    forged.push((order.clone(), statements(&life, &order, &[5, 6, 3, 4])));
    let mut proof = statements(&life, &order, &[5, 6, 3, 4]);
    proof.0.push((life.id(2), proof.0[0].1.clone()));
    forged.push((order, proof));
    // They call themselves the old holders, so that nothing is missing.
    for old_epoch in [0, 1, 7] {
        let mut order = life.order(&[5, 6], &[5, 6], 2);
        order.old = Generation {
            epoch: old_epoch,
            threshold: 2,
            holders: vec![life.id(5), life.id(6)],
        };
        order.new.epoch = 50 + old_epoch;
        let proof = statements(&life, &order, &[5, 6]);
        forged.push((order, proof));
    }
    let chain: Vec<ProvenGeneration> = forged
        .iter()
        .map(|(order, proof)| ProvenGeneration {
            order: order.clone(),
            proof: proof.clone(),
        })
        .collect();
    for (order, proof) in &forged {
        for before in [&[][..], &chain] {
            let told = life
                .test
                .cluster
                .distribute_activation(order, proof, before, &everybody)
                .await;
            for (node, answer) in &told.unwrap()[..5] {
                assert!(answer.is_err(), "{node:?} has taken {order:?}");
            }
            assert!(untouched(&life, 5), "{order:?}");
        }
    }
    // All five sign; each quorum does.
    for away in [[0, 1], [2, 3], [4, 0]] {
        for place in away {
            life.crash(place).await;
        }
        life.signs().await;
        let live = life.live();
        for place in away {
            life.test.start_node(place);
        }
        life.test.until_live(live + 2).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reshare__should_not_make_a_key_fragile_nor_one_be_made_so() {
    // Node 2 is the orchestrator's. It wants to be needed, and then to fall silent.
    let mut life = LifecycleFixture::start(Curve::Ed25519, 3, 3, 2).await;
    let set = async |life: &mut LifecycleFixture, rules: KeyRules| {
        for place in 0..2 {
            life.test.nodes[place].rules = rules.clone();
            life.restart(place).await;
        }
    };
    let limits = |most_threshold, least_spare| ThresholdLimits {
        least_threshold: None,
        most_threshold,
        least_spare,
    };
    for (permits, limits, says) in [
        (true, ThresholdLimits::default(), "signer.most_threshold"),
        (true, limits(Some(3), None), "signer.least_spare"),
        (true, limits(Some(3), Some(0)), "covault node permit"),
        (false, limits(Some(3), Some(1)), "signer.least_spare"),
    ] {
        let rules = KeyRules {
            limits,
            permits,
            ..KeyRules::default()
        };
        set(&mut life, rules).await;
        for dealers in [[0, 1], [1, 2]] {
            let order = life.order(&dealers, &[0, 1, 2], 3);
            let fault = life.test.cluster.reshare(&order).await.unwrap_err();
            assert!(fault.message().contains(says), "{says}: {fault:?}");
            // Nor do they take the word of node 2 for it.
            let proof = statements(&life, &order, &[2]);
            assert!(life.test.cluster.activate(&order, &proof).await.is_err());
        }
    }
    assert!(untouched(&life, 3));
    life.crash(2).await;
    life.signs().await;
    // A new key is held to the same: no two of two where three have to be needed.
    let three = ThresholdLimits {
        least_threshold: Some(3),
        ..ThresholdLimits::default()
    };
    set(
        &mut life,
        KeyRules {
            limits: three,
            ..free()
        },
    )
    .await;
    let mut order = life.test.keygen_order(Curve::Ed25519, 2);
    order.signers.truncate(2);
    let fault = life.test.cluster.keygen(&order).await.unwrap_err();
    assert!(
        fault.message().contains("signer.least_threshold"),
        "{fault:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permit__should_be_for_one_change_and_used_up_by_it() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 4, 3, 2).await;
    for place in 0..4 {
        life.test.nodes[place].rules.permits = true;
        life.restart(place).await;
    }
    // Who leaves and does not deal is not asked. The others say so together, and keep what it is.
    let order = life.order(&[0, 1], &[0, 1, 3], 2);
    let fault = life.test.cluster.reshare(&order).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Forbidden);
    let code = order.change().code().unwrap();
    for says in [
        "node-1",
        "node-2",
        "node-4",
        &format!("covault node permit {code}"),
    ] {
        assert!(fault.message().contains(says), "{fault:?}");
    }
    for place in [0, 1, 3] {
        assert_eq!(permits(&life, place).asked().unwrap(), [order.change()]);
    }
    // The nodes run all the time. One permit is not enough, and an old one does not count.
    grant(&life, &order, &[0]);
    permits(&life, 1).grant(&order.change(), now_ms()).unwrap();
    let order = life.order(&[0, 1], &[0, 1, 3], 2);
    let fault = life.test.cluster.reshare(&order).await.unwrap_err();
    assert!(!fault.message().contains("node-1"), "{fault:?}");
    assert!(fault.message().contains("node-2"), "{fault:?}");
    grant(&life, &order, &[1, 3]);
    // For this very change only.
    for (holders, threshold) in [(vec![0, 1, 3], 3), (vec![0, 3], 2), (vec![3, 1, 0], 2)] {
        let other = life.order(&[0, 1], &holders, threshold);
        let fault = life.test.cluster.reshare(&other).await.unwrap_err();
        assert_eq!(fault.class(), &Class::Forbidden, "{fault:?}");
    }
    assert!((0..3).all(|place| life.files(place) == (vec![0], vec![])));
    life.reshare(&[0, 1], &[0, 1, 3], 2).await;
    life.signs().await;
    for place in [0, 1, 3] {
        assert!(!permits(&life, place).holds(&order.change(), 0).unwrap());
    }
    // Back, and the same once more: the permit was for then.
    let back = life.order(&[0, 1], &[0, 1, 2], 2);
    grant(&life, &back, &[0, 1, 2]);
    life.reshare(&[0, 1], &[0, 1, 2], 2).await;
    let again = life.order(&[0, 1], &[0, 1, 3], 2);
    let fault = life.test.cluster.reshare(&again).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Forbidden);
    // A refresh needs none, in whatever order.
    life.reshare(&[1, 2], &[2, 1, 0], 2).await;
    life.test.stop_node(0).await;
    life.test.until_live(3).await;
    std::fs::remove_dir_all(life.test.nodes[0].folder.join("shares")).unwrap();
    life.test.start_node(0);
    life.test.until_live(4).await;
    // A lost share does, on its own node: that node no longer knows the key.
    let repair = life.order(&[1, 2], &[2, 1, 0], 2);
    let fault = life.test.cluster.reshare(&repair).await.unwrap_err();
    assert_eq!(fault.class(), &Class::Forbidden);
    let waits = |node| fault.message().contains(node);
    assert!(
        waits("node-1") && !waits("node-2") && !waits("node-3"),
        "{fault:?}"
    );
    grant(&life, &repair, &[0]);
    life.reshare(&[1, 2], &[2, 1, 0], 2).await;
    life.signs().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vault__should_not_fall_to_nodes_that_are_pinned_for_others() {
    // Nodes 3 and 4 are everybody's peers, but not this vault's.
    let mut life = LifecycleFixture::start(Curve::Ed25519, 5, 3, 2).await;
    let own = (0..3).map(|place| life.id(place)).collect();
    let vaults = BTreeMap::from([(life.test.vault, own)]);
    for place in 0..3 {
        life.test.nodes[place].vault_peers.clone_from(&vaults);
        life.restart(place).await;
    }
    for holders in [&[3, 4][..], &[0, 1, 3], &[0, 1, 2, 3, 4]] {
        let order = life.order(&[0, 1], holders, 2);
        let fault = life.test.cluster.reshare(&order).await.unwrap_err();
        assert!(fault.message().contains("signer.vaults."), "{fault:?}");
    }
    // Node 1 deals although it should not, and node 2 has left: it does not give its share up.
    let order = life.order(&[0, 1], &[3, 4], 2);
    let proof = statements(&life, &order, &[0, 1, 3, 4]);
    let told = life
        .distribute_activation(&order, &proof, &[life.id(2)])
        .await;
    let fault = told[0].1.as_ref().unwrap_err();
    assert!(fault.message().contains("signer.vaults."), "{fault:?}");
    assert!(untouched(&life, 3));
    life.signs().await;
    // Another vault may have them.
    let mut other = life.test.keygen_order(Curve::Ed25519, 2);
    other.vault = covault_core::ids::VaultId::from_bytes([9; 16]);
    life.test.cluster.keygen(&other).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retired_shares__should_give_the_key_back_after_a_reshare_that_was_a_mistake() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 5, 3, 2).await;
    for place in 0..3 {
        life.test.nodes[place].rules.permits = true;
        life.restart(place).await;
    }
    // All is permitted, and the new holders are the attacker's: they are gone.
    let first = life.generation.clone();
    let order = life.order(&[0, 1], &[3, 4], 2);
    grant(&life, &order, &[0, 1, 2]);
    life.reshare(&[0, 1], &[3, 4], 2).await;
    for place in [3, 4] {
        life.crash(place).await;
    }
    assert!(life.sign_as(&life.generation, 1_000).await.is_err());
    for place in 0..3 {
        assert_eq!(life.files(place), (vec![], vec![]));
        assert_eq!(life.retired(place), [0]);
    }
    // What is retired does not sign, and deals nothing.
    assert!(life.sign_as(&first, 2_000).await.is_err());
    life.generation = first;
    let order = life.order(&[0, 1], &[0, 1, 2], 2);
    assert!(life.test.cluster.reshare(&order).await.is_err());
    // Two nodes' operators bring the key back, from their folders alone.
    let offline = Identity::generate();
    let recipients = [offline.to_public().to_string()];
    let passphrase = SecretString::from("a passphrase");
    let backups: Vec<_> = [0, 2]
        .iter()
        .map(|place| {
            let node = &life.test.nodes[*place];
            let files = AgeShareStore::open(&node.folder, &passphrase, 2).unwrap();
            let retired = files.retired().unwrap();
            assert!(retired.len() == 1 && retired[0].was_in_use);
            let sealed = backup::of_retired(&retired[0], &node.identity.id(), &recipients);
            backup::open(&sealed.unwrap(), std::slice::from_ref(&offline)).unwrap()
        })
        .collect();
    let key = backup::recover(&backups).unwrap();
    assert_eq!(key.root, life.root);
    check_private(Curve::Ed25519, &key.private_hex(), &life.root.public_key);
    // Until their time is over.
    life.test.nodes[0].rules.keep_retired = std::time::Duration::ZERO;
    life.restart(0).await;
    for _ in 0..100 {
        if life.retired(0).is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(life.retired(0).is_empty() && life.retired(1) == [0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_was_away__should_follow_proof_by_proof_and_no_other_way() {
    // Node 3 is away while it leaves, and while the others go on.
    let mut life = LifecycleFixture::start(Curve::Ed25519, 4, 4, 2).await;
    life.crash(3).await;
    let mut before = Vec::new();
    for _ in 0..3 {
        let order = life.order(&[0, 1], &[0, 1, 2], 2);
        let proof = life.prepare(&order).await;
        let told = life
            .distribute_activation(&order, &proof, &order.new.holders)
            .await;
        assert!(told.iter().all(|(_, answer)| answer.is_ok()), "{told:?}");
        life.generation = order.new.clone();
        before.push(ProvenGeneration { order, proof });
    }
    let last = before.pop().unwrap();
    life.test.start_node(3);
    life.test.until_live(4).await;
    let node = [life.id(3)];
    let cluster = &life.test.cluster;
    for before in [&[][..], &before[..1], &before[1..]] {
        let told = cluster
            .distribute_activation(&last.order, &last.proof, before, &node)
            .await;
        let fault = told.unwrap()[0].1.clone().unwrap_err();
        assert!(fault.message().contains("keeps its share"), "{fault:?}");
        assert_eq!(life.files(3), (vec![0], vec![]));
    }
    let told = cluster
        .distribute_activation(&last.order, &last.proof, &before, &node)
        .await;
    told.unwrap()[0].1.clone().unwrap();
    assert_eq!(life.files(3), (vec![], vec![]));
    assert_eq!(life.retired(3), [0]);
    life.signs().await;
}

/// Nodes 3 and 4 are the orchestrator's: two of five, of whom three are needed (it works just as well when
/// they hold nothing of the vault). They have a key of their own, and have it "refreshed": the others are to have been holders of it before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node__should_take_no_share_of_a_key_that_its_operator_never_permitted() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 5, 5, 3).await;
    let honest = KeyRules {
        limits: ThresholdLimits {
            least_threshold: Some(2),
            most_threshold: None,
            least_spare: Some(1),
        },
        ..KeyRules::default()
    };
    for place in 0..3 {
        life.test.nodes[place].rules = honest.clone();
        life.restart(place).await;
    }
    let mut keygen = life.test.keygen_order(Curve::Ed25519, 2);
    keygen.signers = vec![life.id(3), life.id(4)];
    let theirs = life.test.cluster.keygen(&keygen).await.unwrap().root;
    // They write into their own files whatever they like.
    let holders: Vec<NodeId> = [3, 4, 0, 1, 2].map(|place| life.id(place)).to_vec();
    let passphrase = SecretString::from("a passphrase");
    for place in [3, 4] {
        life.test.stop_node(place).await;
        let folder = life.test.nodes[place].folder.clone();
        let files = AgeShareStore::open(&folder, &passphrase, 2).unwrap();
        let mut record = files.load_all().unwrap().remove(0);
        record.holders.clone_from(&holders);
        std::fs::remove_dir_all(folder.join("shares")).unwrap();
        AgeShareStore::open(&folder, &passphrase, 2)
            .unwrap()
            .save(&record)
            .unwrap();
        life.test.start_node(place);
    }
    life.test.until_live(5).await;
    let generation = |epoch| Generation {
        epoch,
        threshold: 2,
        holders: holders.clone(),
    };
    let mut order = life.order(&[3, 4], &[], 2);
    order.root_public_key.clone_from(&theirs.public_key);
    order.old = generation(0);
    order.new = generation(1);
    order.expires_at_ms = now_ms() + 10_000;
    let Ok(proof) = life.test.cluster.reshare(&order).await else {
        return;
    };
    let told = life.distribute_activation(&order, &proof, &holders).await;
    assert!(told.iter().all(|(_, answer)| answer.is_ok()), "{told:?}");
    // The honest nodes, all holders of the vault's own key, state an address to which nodes 3 and 4 have
    // the key.
    let path = KeyPath::of_wallet(Network::Solana, 0).unwrap();
    let child = theirs.child(&path).unwrap();
    let attest = AttestOrder {
        session: session(),
        vault: life.test.vault,
        epoch: 1,
        root_public_key: theirs.public_key.clone(),
        threshold: 2,
        holders: holders.clone(),
        confirmed: Vec::new(),
        addresses: vec![AttestedAddress {
            address: Network::Solana.rules().address(&child.public_key).unwrap(),
            path,
            network: Network::Solana,
            reference: "order 5".to_owned(),
        }],
    };
    let honest: Vec<NodeId> = (0..3).map(|place| life.id(place)).collect();
    let patience = std::time::Duration::from_secs(5);
    let stated = life
        .test
        .cluster
        .attest(&attest, &honest, 3, patience)
        .await;
    let text = attest.statements().next().unwrap().text();
    let stated = stated.map(|stated| {
        let good = stated
            .iter()
            .filter(|(node, signatures)| has_signed(node, &text, &signatures[0]));
        good.count()
    });
    assert!(
        stated.is_err(),
        "so many honest nodes say that the thieves' address is the vault's: {stated:?}"
    );
}

/// Nodes 3 and 4 are hostile, and call a generation of their own the last one that there can be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_a_share__should_not_be_made_to_refuse_real_epochs() {
    let mut life = LifecycleFixture::start(Curve::Ed25519, 6, 3, 2).await;
    let mut order = life.order(&[3, 4], &[3, 4], 2);
    order.old = Generation {
        epoch: u32::MAX - 1,
        threshold: 2,
        holders: vec![life.id(3), life.id(4)],
    };
    order.new.epoch = u32::MAX;
    let proof = statements(&life, &order, &[3, 4]);
    life.distribute_activation(&order, &proof, &[life.id(5)])
        .await;
    life.reshare(&[0, 1], &[0, 1, 5], 2).await;
    life.signs().await;
}
