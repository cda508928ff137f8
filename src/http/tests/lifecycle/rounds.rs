//! How far keys and new shares are.

use serde_json::{Value, json};

use super::{World, work};

/// The rounds of the runs for each key, or null.
fn rounds(vault: &Value) -> Vec<Value> {
    let keys = vault["keys"].as_array().expect("keys").iter();
    keys.map(|key| key["round"].clone()).collect()
}

#[tokio::test]
async fn keys_and_new_shares__should_tell_their_rounds_while_they_are_made() {
    let world = World::new().await;
    let (third, none) = (json!({"round": 3, "of": 5}), vec![Value::Null; 2]);
    let third = vec![third; 2];
    let uuid = world.create().await;
    world.until(|vault| rounds(vault) == third).await;
    world.keys.send_replace(true);
    let ready = world.until(|vault| vault["ready"] == true).await;
    assert_eq!(rounds(&ready), none, "{ready}");
    world
        .vault("reshareVault", json!({"vaultUuid": uuid}))
        .await;
    let resharing = world.until(|vault| rounds(vault) == third).await;
    assert_eq!(work(&resharing), ["preparing", "preparing"]);
    world.shares.send_replace(true);
    world
        .until(|vault| rounds(vault) == none && work(vault) == none)
        .await;
}
