//! Lists, whatever is in them.

use std::collections::BTreeSet;

use super::*;

/// Someone who sees a vault, its uuid, and requests of it that are too large to be listed together.
async fn with_large_requests() -> (World, PersonWithPasskey, String, BTreeSet<String>) {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    let vault = world
        .vault("treasury", 1, &[("treasurer", &person.line)])
        .await;
    let from = world.wallet(&vault, "cash").await;
    let mut uuids = BTreeSet::new();
    for _ in 0..8 {
        let content = "x".repeat(690_000);
        uuids.insert(world.message(&from, &content, &"n".repeat(1000)).await);
    }
    (world, person, vault, uuids)
}

fn named(page: &Said, uuids: &BTreeSet<String>) -> BTreeSet<String> {
    let shown = |uuid: &&String| page.text.contains(&format!("/requests/{uuid}\""));
    uuids.iter().filter(shown).cloned().collect()
}

#[tokio::test]
async fn inbox__should_go_on_behind_a_page_that_large_requests_have_cut_short() {
    let (world, person, _, uuids) = with_large_requests().await;
    let (mut path, mut found) = ("/".to_owned(), BTreeSet::new());
    for _ in 0..8 {
        let page = world.get(&path, &person.cookie).await;
        assert_eq!(page.status, 200, "{}", page.text);
        // Whatever texts are in it.
        assert!(page.text.len() < 100_000, "{}", page.text.len());
        assert!(page.text.contains("open it to read all"));
        found.extend(named(&page, &uuids));
        let Some((_, next)) = page.text.split_once("href=\"/?after=") else {
            break;
        };
        path = format!("/?after={}", next.split('"').next().unwrap());
    }
    assert_eq!(found, uuids);
    assert_ne!(path, "/");
}

#[tokio::test]
async fn history__should_show_a_vault_with_large_requests() {
    let (world, person, vault, uuids) = with_large_requests().await;
    for search in ["", "treasury-nothing", "nnn"] {
        let path = format!("/history?vault={vault}&search={search}");
        let page = world.get(&path, &person.cookie).await;
        assert_eq!(page.status, 200, "{}", page.text);
        assert!(page.text.len() < 100_000, "{}", page.text.len());
        let expected = if search.starts_with('t') {
            0
        } else {
            uuids.len()
        };
        assert_eq!(named(&page, &uuids).len(), expected, "{search}");
    }
}

#[tokio::test]
async fn search__should_end_behind_large_requests_and_say_how_many_it_has_looked_at() {
    let (world, person, vault, _) = with_large_requests().await;
    let from = world.wallet(&vault, "more").await;
    for _ in 0..100 {
        world.message(&from, "small", "").await;
    }
    for _ in 0..26 {
        world.message(&from, &"x".repeat(690_000), "").await;
    }
    let path = format!("/history?vault={vault}&search=nothing-of-it");
    let page = world.get(&path, &person.cookie).await;
    assert_eq!(page.status, 200, "{}", page.text);
    // The first hundred are 18 MB: nothing behind them is read.
    assert!(
        page.text.contains("the newest 100 requests"),
        "{}",
        page.text
    );
    assert!(page.text.len() < 20_000);
}
