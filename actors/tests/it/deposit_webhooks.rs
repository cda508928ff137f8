//! Webhooks of deposits when the store has what cannot be read, keys are changed and clocks jump.

use std::{collections::BTreeMap, sync::Arc};

use covault_actors::{
    operations::{GetWebhookEvent, TestWebhook},
    store::{Batch, Key, KeySpace, Precondition, Scan},
    webhooks::WebhookKeys,
};
use covault_core::{
    fault::Class,
    ids::TokenId,
    schema::admin::{GetWebhookEventRequest, TestWebhookRequest},
};
use serde_json::Value;

use crate::{
    deposit_chain::{Receiver, Shop, confirmed, finalized, node, pay, value},
    world::{admin, call},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_cannot_be_read__should_not_hold_up_the_others() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let token: TokenId = shop.token.parse().unwrap();
    let mut batch = Batch::new();
    for number in 0..40_u8 {
        let id = [number; 16];
        let at_ms = u64::from(number).to_be_bytes();
        let due = Key::new(KeySpace::NoticeDue, &[token.as_bytes(), &[1], &at_ms, &id]);
        batch.put(due, Precondition::Any, vec![]);
        let notice = Key::new(KeySpace::TransferNotice, &[&id]);
        batch.put(notice, Precondition::Any, vec![0xff; 3]);
    }
    shop.world.store.commit(batch).await.unwrap();
    let hash = pay(&anvil, &shop.address, 5).await;
    anvil.mine(10).await;
    shop.until("it is final", async |_| receiver.events().len() >= 2)
        .await;
    let expected = vec![confirmed(), finalized()];
    assert_eq!(
        receiver.stages(),
        BTreeMap::from([(value(&hash), expected)])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys__should_not_be_shown_any_more_once_they_were_changed() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let mut shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let old = WebhookKeys::new(&[7; 32], None).public();
    let next = WebhookKeys::new(&[8; 32], None);
    let new = next.public();
    let stored = Scan::prefix(KeySpace::WebhookKey, &[], 10);
    let rows = async |shop: &Shop| shop.world.store.scan(&stored).await.unwrap().len();
    shop.until("it is stored", async |shop| rows(shop).await == 1)
        .await;
    assert_eq!(shop.gateway.webhook_keys().await.unwrap(), old);
    shop.world.webhooks.keys = Some(Arc::new(next));
    shop.restart(&[&anvil.url]).await;
    // Receivers may get what was signed with the old one just now.
    shop.until("the new one is shown", async |shop| {
        let shown = shop.gateway.webhook_keys().await.unwrap();
        shown.contains(&new[0]) && shown.contains(&old[0])
    })
    .await;
    shop.world.pass(60 * 60 * 1_000);
    shop.restart(&[&anvil.url]).await;
    shop.until("the old one is gone", async |shop| {
        shop.gateway.webhook_keys().await.unwrap() == new
    })
    .await;
    shop.until("nothing is left of it", async |shop| rows(shop).await == 1)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_that_jumps__should_not_give_events_up() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    receiver.answer(500);
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    pay(&anvil, &shop.address, 5).await;
    anvil.mine(3).await;
    shop.until("it is tried", async |_| !receiver.requests().is_empty())
        .await;
    shop.world.pass(4 * 24 * 60 * 60 * 1_000);
    let before = receiver.requests().len();
    shop.until("it is tried again", async |_| {
        receiver.requests().len() >= before + 2
    })
    .await;
    // A busy machine may have let many tries pass by now.
    let dead = shop.events("dead").await;
    assert!(
        dead.is_empty() || receiver.requests().len() >= 20,
        "{dead:?}"
    );
    // It is given up in the end.
    shop.until("it is given up", async |shop| {
        shop.events("dead").await.len() == 1
    })
    .await;
    assert!(receiver.requests().len() >= 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn show__should_find_an_event_that_is_not_among_the_newest() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    pay(&anvil, &shop.address, 5).await;
    anvil.mine(2).await;
    shop.until("it is confirmed", async |shop| {
        shop.events("delivered").await.len() == 1
    })
    .await;
    let all = Scan::prefix(KeySpace::TransferNotice, &[], 10);
    let stored = shop.world.store.scan(&all).await.unwrap().remove(0);
    let mut batch = Batch::new();
    for number in 0..1_000_u16 {
        let id = [&[0_u8; 14] as &[u8], &number.to_be_bytes()].concat();
        let notice = Key::new(KeySpace::TransferNotice, &[&id]);
        batch.put(notice, Precondition::Absent, stored.1.value.clone());
    }
    shop.world.store.commit(batch).await.unwrap();
    let id = format!("evt_{}", hex::encode(&stored.0.bytes));
    assert!(shop.events("").await.iter().all(|event| event.id != id));
    let show = async |id: &str| {
        let request = GetWebhookEventRequest { id: id.to_owned() };
        call::<GetWebhookEvent>(&shop.gateway, &admin(), request).await
    };
    let shown = show(&id).await.unwrap().event.unwrap();
    assert_eq!((shown.id, shown.state.as_str()), (id, "delivered"));
    for unknown in ["evt_1", "evt_ffffffffffffffffffffffffffffffff"] {
        let fault = show(unknown).await.unwrap_err();
        assert_eq!((fault.class(), fault.path()), (&Class::Invalid, Some("id")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_event__should_be_signed_and_sent_at_once() {
    let (anvil, receiver) = (node().await, Receiver::start().await);
    let shop = Shop::open(&receiver, &[&anvil.url], 1).await;
    let test = async |network: &str| {
        let request = TestWebhookRequest {
            token: shop.token.clone(),
            network: network.to_owned(),
        };
        call::<TestWebhook>(&shop.gateway, &admin(), request).await
    };
    let sent = test("EVM").await.unwrap();
    assert_eq!(sent.problem, "");
    let got = receiver.requests().remove(0);
    assert_eq!(
        got.json(),
        serde_json::from_str::<Value>(&sent.body).unwrap()
    );
    assert_eq!(got.json()["event"], "webhook.test.v1");
    assert_eq!(got.header("webhook-id"), got.json()["id"].as_str());
    for header in ["Signature", "webhook-timestamp", "webhook-signature"] {
        assert!(got.header(header).is_some(), "{header}");
    }
    receiver.answer(500);
    let refused = test("EVM").await.unwrap();
    assert!(refused.problem.contains("500"), "{}", refused.problem);
    for network in ["TRON", "SOLANA"] {
        let fault = test(network).await.unwrap_err();
        assert_eq!(fault.path(), Some("network"), "{fault}");
    }
    assert_eq!(receiver.requests().len(), 2);
}
