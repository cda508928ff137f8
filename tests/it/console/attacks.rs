//! What others try in a browser: with another key, from another site, with a session of their own, and through texts.

use super::*;

/// A text that would be a picture, and turns what follows around.
const SYMBOL: &str = "U<img src=x>\u{202e}SD";

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
