//! Pages beside those of gestures: who sees which, and what they say.

use std::collections::BTreeSet;

use covault_actors::operations::CreateToken;

use super::*;

const TO: &str = "0x00000000000000000000000000000000c0ffEE19";

/// Someone who approves, a vault of the name, and a wallet in it.
async fn world(vault: &str) -> (World, PersonWithPasskey, String, String) {
    let world = World::new().await;
    let person = world.person("treasurer", "approver", &[]).await;
    let vault = world.vault(vault, 1, &[("treasurer", &person.line)]).await;
    let from = world.wallet(&vault, "cash").await;
    (world, person, vault, from)
}

#[tokio::test]
async fn operators__should_see_tokens_and_users_of_their_vaults_and_settings_without_secrets() {
    let (world, approver, first, _) = world("first").await;
    let second = world
        .vault("second", 1, &[("treasurer", &approver.line)])
        .await;
    let operator = world.person("operator", "operator", &[]).await;
    let of_second = world.person("of-second", "operator", &[&second]).await;
    world.person("of-first", "viewer", &[&first]).await;
    for (name, vault) in [("first-token", &first), ("second-token", &second)] {
        let request = admin::CreateTokenRequest {
            name: name.into(),
            kind: "platform".into(),
            vaults: vec![vault.clone()],
            access: "full".into(),
            ..Default::default()
        };
        world.call::<CreateToken>(&request).await;
    }
    for path in ["/tokens", "/users", "/settings"] {
        assert_eq!(
            world.get(path, &approver.cookie).await.status,
            403,
            "{path}"
        );
    }
    let tokens = world.get("/tokens", &operator.cookie).await.text;
    assert!(
        tokens.contains("first-token") && tokens.contains("second-token"),
        "{tokens}"
    );
    let tokens = world.get("/tokens", &of_second.cookie).await.text;
    assert!(
        !tokens.contains("first-token") && tokens.contains("second-token"),
        "{tokens}"
    );
    let users = world.get("/users", &operator.cookie).await.text;
    for name in ["treasurer", "operator", "of-second", "of-first"] {
        assert!(
            users.contains(&format!("<bdi>{name}</bdi>")),
            "{name}: {users}"
        );
    }
    let users = world.get("/users", &of_second.cookie).await.text;
    assert!(
        users.contains("of-second") && !users.contains("of-first"),
        "{users}"
    );
    let settings = world.get("/settings", &operator.cookie).await;
    assert_eq!(settings.status, 200);
    for part in [
        "serve.listen",
        "redis://redis:6379/(hidden)",
        "COVAULT_BUS_REDIS_URL",
        "covault.toml",
    ] {
        assert!(settings.text.contains(part), "{part}: {}", settings.text);
    }
    // They are those of the whole service.
    assert_eq!(world.get("/settings", &of_second.cookie).await.status, 403);
}

#[tokio::test]
async fn vault_and_wallet__should_show_signers_rule_and_balances_to_those_who_see_them() {
    let (world, approver, vault, from) = world("treasury").await;
    let other = world
        .vault("other", 1, &[("treasurer", &approver.line)])
        .await;
    let viewer = world.person("viewer", "viewer", &[&other]).await;
    for query in ["", "?balances=1"] {
        let page = world
            .get(&format!("/vaults/{vault}{query}"), &approver.cookie)
            .await;
        assert_eq!(page.status, 200, "{}", page.text);
        for part in ["any 2 of 3", "1 of treasurer", "72 hours", "away", &from] {
            assert!(page.text.contains(part), "{part}: {}", page.text);
        }
    }
    let wallet = world
        .get(&format!("/wallets/{from}"), &approver.cookie)
        .await;
    for part in [
        "treasury",
        &from,
        "cash",
        "No node of its chain is configured",
    ] {
        assert!(wallet.text.contains(part), "{part}: {}", wallet.text);
    }
    let list = world.get("/vaults", &viewer.cookie).await.text;
    assert!(list.contains(&other) && !list.contains(&vault), "{list}");
    for path in [format!("/vaults/{vault}"), format!("/wallets/{from}")] {
        let refused = world.get(&path, &viewer.cookie).await;
        assert_eq!(refused.status, 400, "{path}: {}", refused.text);
    }
}

#[tokio::test]
async fn audit_log__should_be_checked_by_auditors_alone() {
    let (world, approver, vault, _) = world("treasury").await;
    let auditor = world.person("auditor", "auditor", &[]).await;
    for chain in ["service".to_owned(), format!("vault:{vault}")] {
        let path = format!("/audit/verify?chain={chain}");
        let page = world.get(&path, &auditor.cookie).await;
        assert_eq!(page.status, 200, "{}", page.text);
        assert!(page.text.contains("is the last one"), "{}", page.text);
        assert_eq!(world.get(&path, &approver.cookie).await.status, 403);
        let whole = page.text;
        let dd = |text: &str| {
            let found = whole.split_once(text).unwrap().1.split_once("<dd").unwrap();
            let (_, rest) = found.1.split_once('>').unwrap();
            rest.split('<').next().unwrap().to_owned()
        };
        let (last, hash): (u64, _) = (dd("Number</dt>").parse().unwrap(), dd("Hash</dt>"));
        // Neither an alarm nor a good word can be made with a link.
        for (from, hash) in [
            (2, "ab".repeat(32)),
            (last + 1, hash),
            (u64::MAX, "ab".repeat(32)),
        ] {
            let link = format!("{path}&from={from}&hash={hash}");
            let page = world.get(&link, &auditor.cookie).await;
            assert_eq!(page.status, 400, "{}", page.text);
            for part in ["changed", "does not follow", "fit together"] {
                assert!(!page.text.contains(part), "{}", page.text);
            }
        }
    }
    // One that is not seen is no other one.
    let few = world.person("few", "auditor", &[&vault]).await;
    for chain in ["service", "vault:00000000-0000-4000-8000-000000000000"] {
        for page in ["/audit", "/audit/verify"] {
            let page = world
                .get(&format!("{page}?chain={chain}"), &few.cookie)
                .await;
            assert_eq!(page.status, 404, "{}", page.text);
        }
    }
    let page = world.get("/audit/verify", &few.cookie).await.text;
    assert!(
        page.contains("of <bdi>vault treasury</bdi> fit together"),
        "{page}"
    );
}

#[tokio::test]
async fn request_page__should_say_whether_the_recipient_was_paid_before_and_who_it_is() {
    let (world, approver, vault, from) = world("treasury").await;
    let own = world.wallet(&vault, "savings").await;
    let page = async |uuid: &str| {
        let path = format!("/requests/{uuid}");
        world.get(&path, &approver.cookie).await.text
    };
    let first = world.payment(&from, TO, 5, "").await;
    let shown = page(&first).await;
    for part in [
        "First payment to this address: this vault has signed none.",
        "1 of treasurer",
        "May still approve",
        "any 2 of:",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // A failed or waiting one is no payment.
    let second = world.payment(&from, TO, 5, "").await;
    let shown = page(&second).await;
    assert!(
        shown.contains("Not paid so far: 1 more request to pay it"),
        "{shown}"
    );
    let third = world.payment(&from, &own, 5, "").await;
    let shown = page(&third).await;
    assert!(
        shown.contains("of vault treasury: the wallet that is called \u{201c}savings\u{201d}"),
        "{shown}"
    );
    // Several together say it, too.
    let path = format!("/requests?uuid={first}&uuid={third}");
    let shown = world.get(&path, &approver.cookie).await.text;
    assert_eq!(
        shown.matches("First payment to this address").count(),
        2,
        "{shown}"
    );
}

#[tokio::test]
async fn search__should_find_by_address_and_uuid_behind_any_number_of_newer_requests() {
    let (world, approver, vault, from) = world("treasury").await;
    let other = world
        .vault("other", 1, &[("treasurer", &approver.line)])
        .await;
    let viewer = world.person("viewer", "viewer", &[&other]).await;
    let uuid = world.payment(&from, TO, 5, "rent of March").await;
    for number in 0..501 {
        world.message(&from, &format!("message {number}"), "").await;
    }
    let finds = async |query: &str, cookie: &str| {
        let page = world.get(&format!("/history?{query}"), cookie).await;
        // A vault that somebody does not see is none to them.
        let is_hidden = query.contains(&vault) && cookie == viewer.cookie;
        assert_eq!(
            page.status,
            if is_hidden { 404 } else { 200 },
            "{}",
            page.text
        );
        page.text.contains(&format!("/requests/{uuid}\""))
    };
    for search in [TO, &TO.to_lowercase(), &uuid, &uuid.to_uppercase()] {
        for chosen in [vault.as_str(), "every"] {
            let query = format!("vault={chosen}&search={search}");
            assert!(finds(&query, &approver.cookie).await, "{query}");
            assert!(!finds(&query, &viewer.cookie).await, "{query}");
        }
        let failed = format!("vault={vault}&status=failed&search={search}");
        assert!(!finds(&failed, &approver.cookie).await);
        let elsewhere = format!("vault={other}&search={search}");
        // A uuid names one request, wherever it is.
        assert_eq!(
            finds(&elsewhere, &approver.cookie).await,
            !search.starts_with("0x")
        );
    }
    // Notes are looked for a hundred requests a page, and the page says so; by and by in all of them.
    let path = format!("/history?vault={vault}&search=rent");
    let page = world.get(&path, &approver.cookie).await.text;
    assert!(
        page.contains("Found 0.") && page.contains("the newest 100 requests"),
        "{page}"
    );
    let (mut next, mut pages) = (page, 1);
    while let Some((_, rest)) = next.split_once("page=") {
        let number: u32 = rest.split('"').next().unwrap().parse().unwrap();
        let path = format!("{path}&page={number}");
        next = world.get(&path, &approver.cookie).await.text;
        pages += 1;
    }
    let found = next.contains(&format!("/requests/{uuid}\""));
    assert!(found && pages == 6, "{pages}: {next}");
}

#[tokio::test]
async fn search__should_list_what_a_wallet_signs_and_is_paid_behind_any_number_of_others() {
    let (world, approver, vault, cash) = world("treasury").await;
    let savings = world.wallet(&vault, "savings").await;
    let mut of_savings = BTreeSet::new();
    for number in 0..250 {
        of_savings.insert(world.message(&savings, &format!("{number}"), "").await);
    }
    of_savings.insert(world.payment(&cash, &savings, 5, "").await);
    for number in 0..120 {
        world.message(&cash, &format!("message {number}"), "").await;
    }
    for chosen in [savings.clone(), savings.to_lowercase()] {
        let mut path = format!("/history?vault={vault}&search={chosen}");
        let (mut found, mut pages) = (BTreeSet::new(), 0);
        loop {
            let page = world.get(&path, &approver.cookie).await.text;
            let shown = named_in(&page, &of_savings);
            if shown.is_empty() {
                break;
            }
            // A page of a hundred has no others, and nothing twice.
            assert_eq!(page.matches("<td data-label=\"What\"").count(), shown.len());
            assert!(shown.is_disjoint(&found));
            found.extend(shown);
            pages += 1;
            let next = page.split("href=\"").find(|it| it.contains("before="));
            let Some(next) = next else {
                break;
            };
            path = next.split('"').next().unwrap().replace("&#38;", "&");
        }
        assert_eq!((found.len(), pages), (251, 3), "{chosen}");
    }
    // In every vault, and as a file.
    let path = format!("/history?vault=every&search={savings}");
    let page = world.get(&path, &approver.cookie).await.text;
    assert!(!named_in(&page, &of_savings).is_empty(), "{page}");
    let path = format!("/history.csv?vault={vault}&search={savings}");
    let file = world.get(&path, &approver.cookie).await.text;
    assert_eq!(file.lines().count(), 1 + 251, "{file}");
    let all = of_savings.iter().all(|uuid| file.contains(uuid));
    assert!(all && !file.contains("message 1"), "{file}");
}

fn named_in(page: &str, uuids: &BTreeSet<String>) -> BTreeSet<String> {
    let shown = |uuid: &&String| page.contains(&format!("/requests/{uuid}\""));
    uuids.iter().filter(shown).cloned().collect()
}

#[tokio::test]
async fn export__should_be_whole_and_hold_no_formula() {
    let (world, approver, vault, from) = world("treasury").await;
    let uuid = world
        .payment(
            &from,
            TO,
            1_500_000_000_000_000_000,
            "=HYPERLINK(\"http://evil\")",
        )
        .await;
    for number in 0..120 {
        world.message(&from, "hello", &format!("+{number}")).await;
    }
    let file = world
        .get(&format!("/history.csv?vault={vault}"), &approver.cookie)
        .await;
    assert_eq!(file.status, 200);
    assert_eq!(file.headers["content-type"], "text/csv; charset=utf-8");
    let disposition = file.headers["content-disposition"].to_str().unwrap();
    assert!(disposition.starts_with("attachment"), "{disposition}");
    let lines: Vec<_> = file.text.lines().collect();
    // The head; then the requests, and with them the vault and its two keys.
    assert_eq!(lines.len(), 1 + 121 + 3, "{}", file.text);
    let payment = lines.iter().find(|line| line.contains(&uuid)).unwrap();
    for part in [
        TO,
        "\"1500000000000000000\"",
        "\"'=HYPERLINK(\"\"http://evil\"\")\"",
        "\"treasury\"",
    ] {
        assert!(payment.contains(part), "{part}: {payment}");
    }
    assert_eq!(file.text.matches("\"'+").count(), 120);
    // The same filter as the page.
    let path = format!("/history.csv?vault={vault}&search={TO}");
    let file = world.get(&path, &approver.cookie).await;
    assert_eq!(file.text.lines().count(), 2, "{}", file.text);
    let none = world.get("/history.csv", "").await;
    assert_eq!(none.status, 303);
}

#[tokio::test]
async fn request_page__should_say_which_function_of_a_contract_is_called_with_what() {
    let (world, approver, _, from) = world("treasury").await;
    let data = format!("a9059cbb{:0>64}{:064x}", TO.trim_start_matches("0x"), 7);
    let kind = wire::create_signing_request_request::Type::EvmSendCustom(wire::EvmSendCustom {
        chain_id: 987_654_321,
        from: from.clone(),
        to: "0xdAC17F958D2ee523a2206206994597C13D831ec7".into(),
        value: "0".into(),
        input: hex::decode(data).unwrap(),
        gas_fee: Some(wire::EvmGas {
            max_fee: Some("100".into()),
            max_priority_fee: Some("1".into()),
            gas_limit: Some("90000".into()),
            ..Default::default()
        }),
        nonce: Some(0),
    });
    let request = wire::CreateSigningRequestRequest {
        r#type: Some(kind),
        ..Default::default()
    };
    let made = world.call::<CreateSigningRequest>(&request).await;
    let uuid = made.signing_request.unwrap().uuid;
    let path = format!("/requests/{uuid}");
    let page = world.get(&path, &approver.cookie).await.text;
    for part in ["Call of a contract", "transfer(", "uint256"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[tokio::test]
async fn empty_pages__should_say_what_to_do() {
    let world = World::new().await;
    let approver = world.person("treasurer", "approver", &[]).await;
    let operator = world.person("operator", "operator", &[]).await;
    for (path, person, says) in [
        (
            "/",
            &approver,
            "Nothing waits for you. What clients ask for appears here",
        ),
        (
            "/",
            &operator,
            "Nothing waits for approval. What clients ask for appears here",
        ),
        ("/history", &approver, "covault vault create"),
        ("/vaults", &approver, "covault vault create"),
        ("/batches", &approver, "covault vault create"),
        ("/nodes", &operator, "covault node admit"),
        ("/users", &operator, "covault user create"),
    ] {
        let page = world.get(path, &person.cookie).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text);
        assert!(page.text.contains(says), "{path}: {}", page.text);
    }
}

#[test]
fn script__should_be_one_file_that_a_person_can_read() {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/console/static"));
    let names = files.unwrap().map(|file| file.unwrap().file_name());
    let mut scripts: Vec<_> = names.filter(|name| name != "console.css").collect();
    assert_eq!(scripts.pop().unwrap(), "console.js");
    assert!(scripts.is_empty(), "{scripts:?}");
    let lines = assets::SCRIPT.text.lines();
    assert!(lines.clone().count() <= 150);
    assert!(lines.into_iter().all(|line| line.len() <= 140));
}

#[tokio::test]
async fn pages__should_be_small() {
    let (world, approver, vault, from) = world("treasury").await;
    for number in 1..=60 {
        world.payment(&from, TO, number, "for the office").await;
    }
    let kept = assets::STYLE.text.len() + assets::SCRIPT.text.len();
    for path in ["/".to_owned(), format!("/history?vault={vault}")] {
        let page = world.get(&path, &approver.cookie).await.text;
        assert!(
            page.len() + kept < 200_000,
            "{path}: {} and {kept}",
            page.len()
        );
    }
}

#[tokio::test]
async fn message_that_is_no_text__should_be_shown_as_hex_and_not_as_a_payment() {
    let (world, approver, _, from) = world("treasury").await;
    let made = async |content: Vec<u8>| {
        let kind = wire::create_signing_request_request::Type::EvmMessage(wire::EvmMessage {
            chain_id: 1,
            from: from.clone(),
            content,
            r#type: Default::default(),
        });
        let request = wire::CreateSigningRequestRequest {
            r#type: Some(kind),
            ..Default::default()
        };
        let made = world.call::<CreateSigningRequest>(&request).await;
        made.signing_request.unwrap().uuid
    };
    let text = "Sign in to example.com, please: 1";
    let hash = made(vec![0xab; 32]).await;
    let letters = made(text.as_bytes()[..32].to_vec()).await;
    let plain = made(text.into()).await;
    for (uuid, parts) in [
        (
            &hash,
            vec![
                "The content is no text; as hex it is:".to_owned(),
                format!("0x{}", "ab".repeat(32)),
            ],
        ),
        (
            &letters,
            vec![
                "<bdi>Sign in to example.com, please: </bdi>".to_owned(),
                format!("0x{}", hex::encode(&text[..32])),
            ],
        ),
        (&plain, vec![format!("<bdi>{text}</bdi>")]),
    ] {
        for path in [format!("/requests/{uuid}"), "/".to_owned()] {
            let page = world.get(&path, &approver.cookie).await.text;
            for part in &parts {
                assert!(
                    path == "/" && part.starts_with("The") || page.contains(part),
                    "{part}: {page}"
                );
            }
            assert!(
                !page.contains("0 coins") && !page.contains("nobody can tell"),
                "{page}"
            );
        }
    }
    let page = world
        .get(&format!("/requests/{plain}"), &approver.cookie)
        .await
        .text;
    assert!(!page.contains(&hex::encode(text)), "{page}");
}
