//! Lists, whatever is in them.

use std::collections::BTreeSet;

use super::*;

/// Someone who approves for a vault, its uuid, and the address of a wallet in it.
async fn with_wallet() -> (World, PersonWithPasskey, String, String) {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    let vault = world
        .vault("treasury", 1, &[("treasurer", &person.line)])
        .await;
    let from = world.wallet(&vault, "cash").await;
    (world, person, vault, from)
}

/// Someone who sees a vault, its uuid, and requests of it that are too large to be listed together.
async fn with_large_requests() -> (World, PersonWithPasskey, String, BTreeSet<String>) {
    let (world, person, vault, from) = with_wallet().await;
    let mut uuids = BTreeSet::new();
    for _ in 0..8 {
        let content = "x".repeat(690_000);
        uuids.insert(world.message(&from, &content, &"n".repeat(1000)).await);
    }
    (world, person, vault, uuids)
}

#[tokio::test]
async fn pages__should_stay_small_whatever_payments_are_in_them() {
    let (world, person, vault, from) = with_wallet().await;
    let mut uuids = Vec::new();
    for to in 1..=5 {
        uuids.push(world.many_payments(&from, to, 2_000).await);
    }
    for path in ["/", "/history"] {
        let page = world.get(path, &person.cookie).await;
        assert_eq!(page.status, 200, "{}", page.text);
        assert!(page.text.len() < 100_000, "{}", page.text.len());
        assert!(page.text.contains("and 1998 more"), "{}", page.text);
    }
    let page = world
        .get(&format!("/requests/{}", uuids[0]), &person.cookie)
        .await;
    assert!(
        page.text.contains("1701 more payments are not listed here"),
        "{}",
        page.text
    );
    assert!(
        page.text.contains("2000 in the smallest unit"),
        "{}",
        page.text
    );
    // Each recipient is looked up once, so none is left out.
    assert!(!page.text.contains("Not checked whether"), "{}", page.text);
    assert_eq!(
        page.text.matches("First payment to this address").count(),
        300
    );
    let path = format!("/requests?uuid={}&uuid={}", uuids[0], uuids[1]);
    let together = world.get(&path, &person.cookie).await.text;
    assert!(together.contains(">4000</td>"), "{together}");
    let csv = world
        .get(&format!("/history.csv?vault={vault}"), &person.cookie)
        .await;
    // With the vault and its two keys.
    assert_eq!(csv.text.lines().count(), 1 + 5 * 301 + 3, "{}", csv.text);
    assert!(csv.text.contains("and 1701 more payments"));
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
async fn inbox__should_list_what_waits_for_this_person_and_all_in_another_view() {
    let world = World::new().await;
    let treasurer = world.person("treasurer", "approver", &[]).await;
    let controller = world.person("controller", "approver", &[]).await;
    let viewer = world.person("viewer", "viewer", &[]).await;
    let named_alone = [("treasurer", treasurer.line.as_str())];
    let vault = world.vault("treasury", 1, &named_alone).await;
    let from = world.wallet(&vault, "cash").await;
    let mut all = BTreeSet::new();
    for text in ["first", "second"] {
        all.insert(world.message(&from, text, "").await);
    }
    let nothing = BTreeSet::new();
    for (person, path, listed, title) in [
        (&treasurer, "/", &all, "<title>(2) Inbox"),
        (&controller, "/", &nothing, "<title>Inbox"),
        (&controller, "/?view=all", &all, "<title>Inbox"),
        // Nothing waits for who only looks.
        (&viewer, "/", &all, "<title>Inbox"),
    ] {
        let page = world.get(path, &person.cookie).await;
        assert_eq!(named(&page, &all), *listed, "{path}: {}", page.text);
        assert!(page.text.contains(title), "{path}: {}", page.text);
        // The page listens to what is in it.
        let events = page.text.contains("data-events=\"/events?view=all\"");
        assert_eq!(events, path.contains("view"), "{}", page.text);
    }
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
async fn history_of_a_status__should_be_pages_of_few_that_leave_nothing_out() {
    let (world, person, vault, from) = with_wallet().await;
    let mut uuids = BTreeSet::new();
    for number in 0..130 {
        uuids.insert(world.message(&from, &format!("{number}"), "").await);
    }
    let mut path = format!("/history?vault={vault}&status=pending");
    let (mut found, mut pages) = (BTreeSet::new(), 0);
    loop {
        let page = world.get(&path, &person.cookie).await;
        let shown = named(&page, &uuids);
        assert!(shown.len() < 100, "{}", shown.len());
        assert!(shown.is_disjoint(&found));
        found.extend(shown);
        pages += 1;
        let next = page.text.split("href=\"").find(|it| it.contains("page="));
        let Some(next) = next else {
            break;
        };
        path = next.split('"').next().unwrap().replace("&amp;", "&");
        path = path.replace("&#38;", "&");
    }
    assert_eq!((found, pages), (uuids, 3));
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

#[tokio::test]
async fn long_lists__should_be_read_one_at_a_time_by_each_person() {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    world
        .vault("treasury", 1, &[("treasurer", &person.line)])
        .await;
    let other = world.person("controller", "approver", &[]).await;
    let cookie = format!("{}={}", sessions::COOKIE, person.cookie);
    let request = Request::builder()
        .uri("/history.csv")
        .header("cookie", cookie)
        .body(Body::empty())
        .unwrap();
    // Nobody reads it yet.
    let download = world.app.clone().oneshot(request).await.unwrap();
    assert_eq!(download.status(), 200);
    let again = world.get("/history.csv", &person.cookie).await;
    assert_eq!(again.status, 503, "{}", again.text);
    assert!(
        again.text.contains("reading a long list already"),
        "{}",
        again.text
    );
    assert_eq!(world.get("/history.csv", &other.cookie).await.status, 200);
    drop(download);
    assert_eq!(world.get("/history.csv", &person.cookie).await.status, 200);
}

/// More than one page looks at, all of which ask others and are due first.
#[tokio::test]
async fn inbox__should_list_what_waits_for_this_person_however_much_waits_for_others() {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    let other = world.person("controller", "approver", &[]).await;
    let vault = world
        .vault("treasury", 1, &[("controller", &other.line)])
        .await;
    let from = world.wallet(&vault, "cash").await;
    for number in 0..1_010 {
        world.message(&from, &number.to_string(), "").await;
    }
    let vault = world
        .vault("other", 1, &[("treasurer", &person.line)])
        .await;
    // Of another network: the signers of these tests have the same keys for each vault.
    let wallet = wire::CreateWalletRequest {
        vault_uuid: vault,
        network_type: wire::NetworkType::Solana.into(),
        ..Default::default()
    };
    let wallet = world.call::<CreateWallet>(&wallet).await.details.unwrap();
    let message = wire::create_signing_request_request::Type::RawMessage(wire::RawMessage {
        from: wallet.address,
        content: b"mine".to_vec(),
        ..Default::default()
    });
    let request = wire::CreateSigningRequestRequest {
        r#type: Some(message),
        ..Default::default()
    };
    let made = world.call::<CreateSigningRequest>(&request).await;
    let mine = made.signing_request.unwrap().uuid;
    for path in ["/", "/?view=all"] {
        let page = world.get(path, &person.cookie).await;
        assert!(!page.text.contains("Nothing waits"), "{}", page.text);
        assert!(page.text.contains("(1) Inbox"), "{}", page.text);
        assert_eq!(path == "/", page.text.contains(&mine), "{}", page.text);
    }
    // An approved one waits for nobody, and a page says so.
    let approved = world.approve(&person, &[&mine]).await;
    assert_eq!(approved.status, 200, "{}", approved.text);
    let page = world.get("/", &person.cookie).await;
    assert!(page.text.contains("Nothing waits for you"), "{}", page.text);
}

#[tokio::test]
async fn history__should_be_read_once_at_a_time_by_each_person_and_keep_no_request_page() {
    let (world, person, vault, uuids) = with_large_requests().await;
    let viewer = world.person("viewer", "viewer", &[]).await;
    let uuid = uuids.first().unwrap();
    let search = format!("/history?vault={vault}&search=nothing");
    let request = format!("/requests/{uuid}");
    let mut searches: Vec<_> = (0..200)
        .map(|_| Box::pin(world.get(&search, &viewer.cookie)))
        .collect();
    // Each of them has come as far as it can by itself.
    for search in &mut searches {
        assert!(futures::poll!(search).is_pending());
    }
    let within = std::time::Duration::from_secs(5);
    let page = tokio::time::timeout(within, world.get(&request, &person.cookie)).await;
    let page = page.expect("a page behind the searches of another person");
    assert_eq!(page.status, 200, "{}", page.text);
    let own = tokio::time::timeout(within, world.get(&search, &person.cookie)).await;
    let own = own.expect("a search behind those of another person");
    assert_eq!(own.status, 200, "{}", own.text);
}
