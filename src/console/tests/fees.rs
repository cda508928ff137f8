//! The highest fee that a person names.

use covault_actors::chain_rpc::ChainKey;

use super::{
    batches::{CHAIN, Chain},
    *,
};

const TO: &str = "0x00000000000000000000000000000000c0ffee19";

/// A payment of a wei on a chain, whose fee is left to its nodes.
async fn payment(world: &World, from: &str, chain_id: u64) -> String {
    payment_with(world, from, chain_id, None).await
}

/// The same with this gas.
async fn payment_with(
    world: &World,
    from: &str,
    chain_id: u64,
    gas_fee: Option<wire::EvmGas>,
) -> String {
    let kind = wire::create_signing_request_request::Type::EvmSendNative(wire::EvmSendNative {
        chain_id,
        from: from.into(),
        to: TO.into(),
        value: "1".into(),
        gas_fee,
        nonce: None,
    });
    let request = wire::CreateSigningRequestRequest {
        r#type: Some(kind),
        ..Default::default()
    };
    let made = world.call::<CreateSigningRequest>(&request).await;
    made.signing_request.unwrap().uuid
}

/// With a chain that asks for 21,000 gwei for a transfer, its wallet, and who approves for it.
async fn with_chain() -> (World, PersonWithPasskey, String) {
    let key = ChainKey::evm(CHAIN);
    let chains = ChainClients::default().with(key, Arc::new(Chain::default()));
    let world = World::with(0, chains).await;
    let person = world.person("treasurer", "approver", &[]).await;
    let named = [("treasurer", person.line.as_str())];
    let vault = world.vault("treasury", 1, &named).await;
    let from = world.wallet(&vault, "cash").await;
    (world, person, from)
}

async fn begin(
    world: &World,
    person: &PersonWithPasskey,
    uuid: &str,
    fee: &str,
    meant: bool,
) -> Said {
    let shown = world.shown(person, uuid).await;
    let body = json!({
        "form_token": person.form_token,
        "items": [{"uuid": uuid, "shown": shown, "fee": fee}],
        "meant": meant,
    });
    world.post("/approve/begin", &person.cookie, &body).await
}

#[tokio::test]
async fn fee__should_be_offered_with_a_margin_and_asked_for_twice_where_it_is_far_above() {
    let (world, person, from) = with_chain().await;
    let uuid = payment(&world, &from, CHAIN).await;
    let page = world
        .get(&format!("/requests/{uuid}"), &person.cookie)
        .await;
    for part in [
        "it may cost about 0.000021 coins of this chain now",
        "data-fee=\"evm:31337\" value=\"0.000042\"",
    ] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    // Up to ten times of it nobody asks.
    for fee in ["0.000042", "0.00021"] {
        let begun = begin(&world, &person, &uuid, fee, false).await;
        assert_eq!(begun.status, 200, "{}", begun.text);
        assert!(begun.json()["publicKey"].is_object(), "{}", begun.text);
    }
    let highest = u128::MAX.to_string();
    let (whole, part) = highest.split_at(highest.len() - 18);
    for fee in ["0.000211", &format!("{whole}.{part}")] {
        let begun = begin(&world, &person, &uuid, fee, false).await.json();
        assert!(begun["publicKey"].is_null(), "{begun}");
        let question = begun["question"].as_str().unwrap();
        let expected = format!("{fee} coins of this chain where about 0.000021");
        assert!(question.contains(&expected), "{question}");
        let meant = begin(&world, &person, &uuid, fee, true).await;
        assert!(meant.json()["publicKey"].is_object(), "{}", meant.text);
    }
    for fee in ["0", "0.0", "0.000000000000000000", ""] {
        let refused = begin(&world, &person, &uuid, fee, true).await;
        assert_eq!(refused.status, 400, "{fee}: {}", refused.text);
        assert!(refused.text.contains("more than 0"), "{}", refused.text);
    }
}

#[tokio::test]
async fn fee__should_be_named_once_for_all_payments_on_a_chain() {
    let (world, person, from) = with_chain().await;
    let mut query = String::new();
    for _ in 0..3 {
        query += &format!("uuid={}&", payment(&world, &from, CHAIN).await);
    }
    // One of a chain whose nodes are not known, alone there, names its own.
    query += &format!("uuid={}", world.payment(&from, TO, 5, "").await);
    let page = world
        .get(&format!("/requests?{query}"), &person.cookie)
        .await;
    assert_eq!(
        page.text.matches("data-fee-all=").count(),
        1,
        "{}",
        page.text
    );
    for part in [
        "each of the 3 payments on evm:31337",
        "data-fee=\"evm:987654321\" value=\"\"",
        "The nodes of its chain do not say now what it may cost",
    ] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    assert_eq!(page.text.matches("value=\"0.000042\"").count(), 3);
    // What one press approves.
    let total = "as others have approved or as is offered here";
    assert_eq!(page.text.matches(total).count(), 1, "{}", page.text);
    let sum = "0.000126 coins of this chain";
    assert!(page.text.contains(sum), "{}", page.text);
}

#[tokio::test]
async fn fee__should_be_marked_where_the_request_makes_it_far_more_than_the_others() {
    let (world, person, from) = with_chain().await;
    let price = |max_fee: &str| {
        Some(wire::EvmGas {
            max_fee: Some(max_fee.into()),
            max_priority_fee: Some("1".into()),
            gas_limit: Some("21000".into()),
            ..Default::default()
        })
    };
    let mut query = String::new();
    for max_fee in ["400000000", "400000000", "400000000", "10000000000"] {
        let gas = price(max_fee);
        let uuid = payment_with(&world, &from, CHAIN, gas).await;
        query += &format!("uuid={uuid}&");
    }
    let path = format!("/requests?{query}");
    let page = world.get(&path, &person.cookie).await.text;
    let mark = "more than ten times that of most others here";
    assert_eq!(page.matches(mark).count(), 1, "{page}");
}

#[tokio::test]
async fn fee__should_be_asked_for_twice_where_nobody_says_what_it_may_cost() {
    let (world, person, from) = with_chain().await;
    let uuid = world.payment(&from, TO, 5, "").await;
    let page = world
        .get(&format!("/requests/{uuid}"), &person.cookie)
        .await;
    let field = "data-fee=\"evm:987654321\" value=\"\"";
    assert!(page.text.contains(field), "{}", page.text);
    let fee = "0.0000000000021";
    let begun = begin(&world, &person, &uuid, fee, false).await.json();
    assert!(begun["publicKey"].is_null(), "{begun}");
    let question = begun["question"].as_str().unwrap();
    for part in ["Nobody says what 1 of these transactions may cost", fee] {
        assert!(question.contains(part), "{part}: {question}");
    }
    let meant = begin(&world, &person, &uuid, fee, true).await.json();
    assert!(meant["publicKey"].is_object(), "{meant}");
}

#[tokio::test]
async fn fee__should_not_be_offered_for_gas_that_is_far_above_what_is_usual() {
    let (world, person, from) = with_chain().await;
    let gas = |limit: &str| {
        Some(wire::EvmGas {
            gas_limit: Some(limit.into()),
            ..Default::default()
        })
    };
    let modest = payment_with(&world, &from, CHAIN, gas("50000")).await;
    let greedy = payment_with(&world, &from, CHAIN, gas("30000000")).await;
    let page = async |uuid: &str| {
        let path = format!("/requests/{uuid}");
        world.get(&path, &person.cookie).await.text
    };
    let (modest, text) = (page(&modest).await, page(&greedy).await);
    assert!(modest.contains("value=\"0.0001\""), "{modest}");
    assert!(!modest.contains("so much gas"), "{modest}");
    for part in [
        "data-fee=\"evm:31337\" value=\"\"",
        "it may cost about 0.03 coins of this chain now",
        "more than ten times what is usual, about 0.000021 coins of this chain",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Whoever names as much all the same is asked, although it is what the request's gas may cost.
    let begun = begin(&world, &person, &greedy, "0.06", false).await.json();
    let question = begun["question"].as_str().unwrap();
    assert!(question.contains("0.000021"), "{question}");
}
