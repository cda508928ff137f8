//! Limits of a day after the shares of a key have gone to others.

use super::{approvals::sign_with, *};

const WHY: &str = "and does not know what the holders before it have signed, so its limits of a day count as used up until ";

/// Six nodes, a key of the first three, and room for two payments a day.
async fn world() -> ByzantineFixture {
    let policy = "version = 2\n[[each_vault.limits]]\nasset = \"solana\"\nper_day = \"11000\"\n";
    let check = Arc::new(PolicyCheck(Policy::parse(policy).unwrap()));
    ByzantineFixture::start_among(Curve::Ed25519, 6, 3, check).await
}

/// Gives the key to these nodes.
async fn reshare(world: &mut ByzantineFixture, holders: &[NodeId]) {
    let mut order = world.test.refresh_order(&world.root, 0, 2);
    order.old.holders = world.test.holders()[..3].to_vec();
    order.new.holders = holders.to_vec();
    let proof = world.test.cluster.reshare(&order).await.unwrap();
    world.test.cluster.activate(&order, &proof).await.unwrap();
    world.epoch = 1;
}

async fn pays(world: &ByzantineFixture, signers: &[NodeId], patience_ms: u64) -> Result<(), Fault> {
    let mut order = world.transfer(false, 5, 1);
    order.epoch = world.epoch;
    let signed = sign_with(world, &order, signers, patience_ms).await?;
    verify(&order, &signed);
    Ok(())
}

/// The shares of a key go to nodes that have counted nothing of it yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_a_day__should_not_begin_anew_with_new_holders() {
    let mut world = world().await;
    let ids = world.test.holders();
    for _ in 0..2 {
        pays(&world, &ids[..2], 60_000).await.unwrap();
    }
    pays(&world, &ids[..2], 8_000).await.unwrap_err();
    reshare(&mut world, &ids[3..]).await;
    let refused = |outcome: Result<(), Fault>| {
        let fault = outcome.expect_err("the limit of a day was good twice");
        assert!(fault.message().contains(WHY), "{fault:?}");
    };
    refused(pays(&world, &ids[3..5], 8_000).await);
    for place in 3..5 {
        world.test.stop_node(place).await;
        world.test.start_node(place);
    }
    world.test.until_live(6).await;
    refused(pays(&world, &ids[3..5], 20_000).await);
}

/// Those who stay have counted what they signed, and go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_a_day__should_go_on_with_the_holders_that_stay() {
    let mut world = world().await;
    let ids = world.test.holders();
    pays(&world, &ids[..2], 60_000).await.unwrap();
    reshare(&mut world, &ids[1..4]).await;
    let fault = pays(&world, &ids[2..4], 8_000).await.unwrap_err();
    assert!(fault.message().contains(WHY), "{fault:?}");
    pays(&world, &ids[1..3], 60_000).await.unwrap();
    // Node 1 has signed two by now.
    let fault = pays(&world, &ids[1..3], 8_000).await.unwrap_err();
    let over = "amount: with the fee, more solana than this signer's policy (vault ";
    assert!(fault.message().contains(over), "{fault:?}");
}
