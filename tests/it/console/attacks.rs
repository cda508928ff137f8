//! What others try in a browser: with another key, from another site, with a session of their own, and through texts.

use super::*;

/// A text that would be a picture, and turns what follows around.
const SYMBOL: &str = "U<img src=x>\u{202e}SD";

/// A name of the kind that people register for addresses: markup, with letters that nobody sees. What turns text around is
/// refused in names.
pub const EVIL_NAME: &str = "<img src=x onerror=alert(1)>vit\u{200d}kila\u{200b}.eth";
const SHOWN_NAME: &str = "<img src=x onerror=alert(1)>vit\\u{200d}kila\\u{200b}.eth";
/// The same as a reference, out of an attribute and an element.
const EVIL_REF: &str = "\"><script>alert(2)</script>\u{feff}</option></select>'x";
const SHOWN_REF: &str = "\"><script>alert(2)</script>\\u{feff}</option></select>'x";

/// Names, references and notes of others on every page that shows them: `evil_vault` is called so, too.
pub async fn texts(stage: &mut ConsoleStage<'_>, evil_vault: &str) {
    let ConsoleStage {
        api,
        people,
        vault,
        from,
        ..
    } = stage;
    let html = "<img src=x onerror=alert(3)>";
    let noticed = people.ask("provoke", "treasurer", json!({"html": html}));
    assert!(
        noticed["noticed"].to_string().contains("TrustedHTML"),
        "{noticed}"
    );
    let wallet = json!({"vaultUuid": vault, "networkType": "NETWORK_TYPE_EVM", "name": EVIL_NAME, "ref": EVIL_REF});
    let made = api.ok("createWallet", wallet).await;
    let evil = made["details"]["address"].as_str().unwrap();
    let mut pays = payment(from, 13, EVIL_NAME);
    pays["evmSendNative"]["to"] = json!(evil);
    let pays = api.create(pays).await;
    let signs = api.create(message(evil, EVIL_NAME)).await;
    let batch = json!({"name": EVIL_NAME, "notes": EVIL_REF, "evmBatchSendNative": {"chainId": "31337", "from": evil,
        "recipients": [{"address": TO, "amount": "5", "notes": EVIL_REF}]}});
    let batch = api.ok("createBatchPayment", batch).await;
    let batch = batch["batchPayment"]["uuid"].as_str().unwrap();
    let search: String = form_urlencoded::byte_serialize(EVIL_REF.as_bytes()).collect();
    for (name, path, parts) in [
        ("inbox", "/".to_owned(), &[SHOWN_NAME][..]),
        ("request", format!("/requests/{pays}"), &[SHOWN_NAME]),
        ("message", format!("/requests/{signs}"), &[SHOWN_NAME]),
        (
            "together",
            format!("/requests?uuid={pays}&uuid={signs}"),
            &[SHOWN_NAME],
        ),
        ("vaults", "/vaults".to_owned(), &[SHOWN_NAME]),
        ("vault", format!("/vaults/{evil_vault}"), &[SHOWN_NAME]),
        (
            "wallets",
            format!("/vaults/{vault}"),
            &[SHOWN_NAME, SHOWN_REF],
        ),
        (
            "wallet",
            format!("/wallets/{evil}"),
            &[SHOWN_NAME, SHOWN_REF],
        ),
        (
            "history",
            format!("/history?vault={evil_vault}"),
            &[SHOWN_NAME],
        ),
        (
            "found",
            format!("/history?vault={vault}&search={evil}"),
            &[SHOWN_NAME],
        ),
        (
            "search",
            format!("/history?vault={vault}&search={search}"),
            &[SHOWN_REF],
        ),
        ("batches", format!("/batches?vault={vault}"), &[SHOWN_NAME]),
        (
            "batch",
            format!("/batches/{batch}"),
            &[SHOWN_NAME, SHOWN_REF],
        ),
        (
            "batch-new",
            format!("/batches/new?vault={vault}"),
            &[SHOWN_NAME],
        ),
    ] {
        let shown = people.ask("texts", "treasurer", json!({"path": path}));
        let said = format!("{}{}", shown["text"], shown["values"]);
        for part in parts {
            let part = json!(part).to_string();
            assert!(
                said.contains(part.trim_matches('"')),
                "{name}: {part}: {said}"
            );
        }
        let html = shown["html"].as_str().unwrap();
        let hidden = ['\u{200d}', '\u{200b}', '\u{feff}'];
        assert!(!html.contains(hidden), "{name}: {html}");
        assert_eq!(shown["elements"], 0, "{name}: {html}");
        // Nothing was refused, as nothing was tried, and no script has opened a dialog.
        people.look("treasurer", Some(&path), &format!("evil-{name}"));
    }
}

/// Signing in: with another key, the passkey of another site, and a session that somebody has planted.
pub fn signing_in(cluster: &TestCluster, people: &mut Browsers, origin: &str) {
    for name in ["clerk", "mallory"] {
        let link = create(cluster, name, "viewer");
        people.ask("enrol", name, json!({"link": link}));
    }
    // A page of another site gets no passkey of this one, and this one none of another's.
    people.ask(
        "forge",
        "thief",
        json!({"of": "clerk", "rpId": "evil.localhost"}),
    );
    let refused = people.ask("refusedSignIn", "thief", json!({}));
    let said = refused["said"].as_str().unwrap();
    assert!(said.contains("none that fits"), "{refused}");
    let elsewhere = origin.replace("localhost", "evil.localhost");
    let refused = people.ask("refusedSignIn", "clerk", json!({"at": elsewhere}));
    let said = refused["said"].as_str().unwrap();
    assert!(
        said.contains("did not come from a page of this service"),
        "{refused}"
    );

    // A session that was in the browser before is neither the person's afterwards nor anybody's.
    people.ask("signIn", "mallory", json!({}));
    let planted = people.ask("signInPlanted", "clerk", json!({"from": "mallory"}));
    assert_eq!(planted["planted"].as_array().unwrap().len(), 1, "{planted}");
    assert_eq!(planted["now"].as_array().unwrap().len(), 1, "{planted}");
    assert_ne!(planted["planted"], planted["now"], "it was taken over");
    let whose = people.ask("open", "clerk", json!({"path": "/account"}));
    assert!(
        whose["text"].as_str().unwrap().contains("clerk@key-1"),
        "{whose}"
    );
    let ended = people.ask("open", "mallory", json!({"path": "/account"}));
    assert!(
        ended["url"].as_str().unwrap().ends_with("/sign-in"),
        "{ended}"
    );
    // What was on the screen does not come back with the button.
    let back = people.ask("backAfterSignOut", "clerk", json!({"path": "/account"}));
    assert!(
        back["url"].as_str().unwrap().ends_with("/sign-in")
            && !back["text"].as_str().unwrap().contains("clerk@key-1"),
        "{back}"
    );

    // Five tries with another key, and then the right one has to wait, too.
    people.ask("forge", "thief", json!({"of": "clerk"}));
    for number in 1..=5 {
        let refused = people.ask("refusedSignIn", "thief", json!({}));
        assert_eq!(
            refused["said"], "this passkey did not sign you in",
            "{number}"
        );
    }
    for who in ["thief", "clerk"] {
        let locked = people.ask("refusedSignIn", who, json!({}));
        assert_eq!(
            locked["said"], "too many wrong tries: wait 15 minutes",
            "{who}"
        );
    }
    people.look("clerk", None, "locked-out");
    // Other people at the same address are not affected.
    people.ask("signIn", "mallory", json!({}));
}

/// A token whose contract says of itself what a page must not believe: the request that pays it.
pub async fn token_with_an_evil_symbol(anvil: &Anvil, api: &ApiClient, from: &str) -> String {
    let token = "0x00000000000000000000000000000000e711ba00";
    anvil
        .call("anvil_setCode", json!([token, evil_token()]))
        .await;
    let transfer = json!({"evmSendErc20": {"chainId": "31337", "from": from, "to": TO,
        "tokenContractAddress": token, "amount": "1500000"}});
    api.create(transfer).await
}

/// Answers `symbol()` with a text, and every other call with 6.
fn evil_token() -> String {
    let text = SYMBOL.as_bytes();
    let mut answer = vec![0; 96];
    answer[31] = 32;
    answer[63] = u8::try_from(text.len()).unwrap();
    answer[64..64 + text.len()].copy_from_slice(text);
    // Compares the selector, and jumps to 0x19 where it is that of symbol(); the answer begins at 0x26.
    let (begin, six) = ("60003560e01c6395d89b4114601957", "600660005260206000f3");
    let symbol = "5b6060602660003960606000f3";
    format!("0x{begin}{six}{symbol}{}", hex::encode(answer))
}

/// The page of such a request.
pub fn symbols(people: &mut Browsers, uuid: &str) {
    let path = format!("/requests/{uuid}");
    let shown = people.ask("open", "treasurer", json!({"path": path}));
    let text = shown["text"].as_str().unwrap();
    assert!(
        text.contains("1.5 \u{201c}U<img src=x>\\u{202e}SD\u{201d}"),
        "{text}"
    );
    assert!(!text.contains('\u{202e}'), "{text}");
    // Nothing was loaded for it, and no script ran: the browser would have said so.
    people.look("treasurer", Some(&path), "evil-symbol");
}
