//! One message is lost, and nothing else goes wrong: orders for one session are sent again.

use covault_core::{
    derive::RootKey,
    ids::SessionId,
    order::{Generation, ReshareOrder},
    port::{Clock as _, random_16},
    scheme::Scheme,
};
use covault_mpc::envelope::EnvelopeKind;

use crate::{
    crash::{CrashPair, run},
    support::verify,
};

/// It comes soon: not when the order ends.
const SOON_MS: u64 = 10_000;

/// The next order of this kind is lost; without one: the next answer. Gives the time.
fn lose(pair: &CrashPair, order: Option<EnvelopeKind>) -> u64 {
    match order {
        Some(_) => *pair.lost_orders.lock().unwrap() = order,
        None => *pair.lost_answers.lock().unwrap() = Some(EnvelopeKind::Reply),
    }
    pair.clock.age_ms()
}

/// Something was lost, and not waited for.
fn came_soon(pair: &CrashPair, began_ms: u64) {
    assert!(pair.lost_orders.lock().unwrap().is_none());
    assert!(pair.lost_answers.lock().unwrap().is_none());
    assert!(pair.clock.age_ms() < began_ms + SOON_MS);
}

async fn signs(pair: &CrashPair, root: &RootKey, epoch: u32) {
    let mut order = pair.order(root, b"after all");
    order.epoch = epoch;
    verify(&order, &pair.sign(&order, 20_000).await.unwrap());
}

#[test]
fn keygen__should_send_a_lost_order_again_and_hear_a_lost_answer() {
    for order in [true, false] {
        run(async {
            let pair = CrashPair::new(1).await;
            let (_, _one, _) = pair.start(1);
            let (_, _two, _) = pair.start(2);
            let began_ms = lose(&pair, order.then_some(EnvelopeKind::KeygenOrder));
            let root = pair.keygen().await;
            came_soon(&pair, began_ms);
            signs(&pair, &root, 0).await;
        });
    }
}

#[test]
fn reshare__should_send_a_lost_order_again_and_hear_a_lost_answer() {
    for order in [true, false] {
        run(async {
            let pair = CrashPair::new(2).await;
            let (_, _one, _) = pair.start(1);
            let (_, _two, _) = pair.start(2);
            let root = pair.keygen().await;
            let now_ms = pair.clock.now_ms();
            let generation = |epoch| Generation {
                epoch,
                threshold: 2,
                holders: pair.holders(),
            };
            let refresh = ReshareOrder {
                vault: pair.vault,
                session: SessionId::from_random(random_16(&*pair.rng)),
                scheme: Scheme::FrostEd25519,
                root_public_key: root.public_key.clone(),
                old: generation(0),
                dealers: pair.holders(),
                new: generation(1),
                issued_at_ms: now_ms,
                expires_at_ms: now_ms + 60_000,
            };
            let began_ms = lose(&pair, order.then_some(EnvelopeKind::ReshareOrder));
            let proof = pair.cluster.reshare(&refresh).await.unwrap();
            came_soon(&pair, began_ms);
            let began_ms = lose(&pair, order.then_some(EnvelopeKind::Activate));
            pair.cluster.activate(&refresh, &proof).await.unwrap();
            came_soon(&pair, began_ms);
            signs(&pair, &root, 1).await;
        });
    }
}
