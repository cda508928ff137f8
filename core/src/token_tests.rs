#![allow(non_snake_case)]

use std::sync::atomic::{AtomicU8, Ordering};

use proptest::prelude::*;
use secrecy::ExposeSecret as _;

use super::*;
use crate::port::Entropy;

struct Fixed([u8; 32]);

impl Entropy for Fixed {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0[..bytes.len()]);
    }
}

fn token(kind: TokenKind, random: [u8; 32]) -> String {
    make(kind, &Fixed(random)).expose_secret().to_owned()
}

#[test]
fn make__should_write_a_token_that_scanners_know() {
    // Made with Python's integers and zlib.
    let count: [u8; 32] = std::array::from_fn(|byte| byte as u8);
    for (kind, random, expected) in [
        (
            TokenKind::Platform,
            [0; 32],
            "cvp_000000000000000000000000000000000000000000011KG75",
        ),
        (
            TokenKind::Sweep,
            [0xff; 32],
            "cvs_yhjskwdA6OZ1AL1YmHWZWm8LLG7HjnuCA2j5rOw8Xp12zeIR0",
        ),
        (
            TokenKind::Platform,
            count,
            "cvp_003aUlTJC7tjlCTQj2uNU3MFagCXG9LRKRcwGkBIDlf0UQPkl",
        ),
        (
            TokenKind::Admin(AdminRole::Viewer),
            count,
            "cva_003aUlTJC7tjlCTQj2uNU3MFagCXG9LRKRcwGkBIDlf2M03Iz",
        ),
    ] {
        let token = token(kind, random);
        assert_eq!(token, expected);
        assert_eq!((token.len(), is_token(&token)), (LENGTH, true));
    }
}

#[test]
fn make__should_hide_the_token_from_debug() {
    let token = make(TokenKind::Platform, &Fixed([7; 32]));
    let shown = format!("{token:?} {:?}", TokenHash::of(token.expose_secret()));
    assert!(!shown.contains(&token.expose_secret()[4..]), "{shown}");
    assert!(shown.contains("TokenHash(..)"), "{shown}");
}

#[test]
fn is_token__should_refuse_other_texts() {
    let good = token(TokenKind::Platform, [9; 32]);
    for bad in [
        String::new(),
        "cvp_".into(),
        good[..good.len() - 1].to_owned(),
        format!("{good}0"),
        format!(" {good}"),
        good.replace("cvp_", "cvs_"),
        good.replace("cvp_", "cvx_"),
        good.to_lowercase(),
        format!("cvp_{}", "é".repeat(24)) + "0",
        "f".repeat(64),
    ] {
        assert!(!is_token(&bad), "{bad}");
    }
}

proptest! {
    #[test]
    fn tokens__should_be_known_again_and_differ_where_their_randomness_does(
        random in any::<[u8; 32]>(),
        other in any::<[u8; 32]>(),
        at in 0..LENGTH,
        with in "[0-9A-Za-z]",
    ) {
        let text = token(TokenKind::Sweep, random);
        prop_assert_eq!(text.len(), LENGTH);
        prop_assert!(is_token(&text));
        prop_assert_eq!(random == other, text == token(TokenKind::Sweep, other));
        // One wrong character never passes: CRC-32 finds every burst of up to 32 bits.
        let mut wrong = text.clone();
        wrong.replace_range(at..=at, &with);
        prop_assert_eq!(is_token(&wrong), wrong == text);
    }

    #[test]
    fn is_token__should_take_any_text(text in ".{0,80}") {
        prop_assert!(!is_token(&text));
    }
}

#[test]
fn hash__should_match_itself_alone() {
    let (one, two) = (TokenHash::of("a"), TokenHash::of("b"));
    assert!(one.matches(&TokenHash::of("a")));
    assert!(!one.matches(&two));
    assert_ne!(one.id(), two.id());
    // SHA-256 of "a" begins so: ids, and with them idempotency keys, stay for ever.
    assert_eq!(one.id().to_string(), "ca978112-ca1b-bdca-fac2-31b39a23dc4d");
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

#[test]
fn cidr__should_hold_addresses_of_its_family() {
    for (net, inside, outside) in [
        (
            "192.0.2.0/24",
            vec!["192.0.2.0", "192.0.2.255", "::ffff:192.0.2.7"],
            vec!["192.0.3.0", "::192.0.2.7", "2001:db8::1"],
        ),
        ("192.0.2.7", vec!["192.0.2.7"], vec!["192.0.2.8"]),
        (
            "2001:db8::/32",
            vec!["2001:db8::1"],
            vec!["2001:db9::1", "192.0.2.1"],
        ),
        ("2001:db8::1", vec!["2001:db8::1"], vec!["2001:db8::2"]),
        (
            "::ffff:192.0.2.0/120",
            vec!["192.0.2.9", "::ffff:192.0.2.9"],
            vec!["192.0.3.9"],
        ),
        ("::ffff:192.0.2.9", vec!["192.0.2.9"], vec!["192.0.2.8"]),
        ("0.0.0.0/0", vec!["203.0.113.1"], vec!["2001:db8::1"]),
        ("::/0", vec!["2001:db8::1"], vec!["203.0.113.1"]),
    ] {
        for address in inside {
            assert!(
                cidr(net).contains(address.parse().unwrap()),
                "{net} {address}"
            );
        }
        for address in outside {
            assert!(
                !cidr(net).contains(address.parse().unwrap()),
                "{net} {address}"
            );
        }
        let again: Cidr = String::from(cidr(net)).parse().unwrap();
        assert_eq!(again, cidr(net));
    }
}

#[test]
fn cidr__should_refuse_what_is_none() {
    for text in [
        "",
        "192.0.2",
        "192.0.2.0/33",
        "2001:db8::/129",
        "example.com",
        "192.0.2.0/",
        "*",
    ] {
        assert!(text.parse::<Cidr>().is_err(), "{text}");
    }
    let fault = "192.0.2.7/24".parse::<Cidr>().unwrap_err();
    assert!(
        fault.message().ends_with("the network is 192.0.2.0/24"),
        "{fault}"
    );
}

fn new() -> NewToken {
    NewToken {
        name: "shop".into(),
        kind: TokenKind::Platform,
        vaults: TokenVaults::All,
        access: TokenAccess::Full,
        allow: vec![],
        expires_at_ms: None,
    }
}

#[test]
fn check__should_name_the_field_that_is_wrong() {
    let vault = VaultId::from_bytes([1; 16]);
    assert!(new().check(10).is_ok());
    let longest = NewToken {
        name: "ü".repeat(64),
        ..new()
    };
    assert!(longest.check(10).is_ok());
    for (token, start) in [
        (
            NewToken {
                name: String::new(),
                ..new()
            },
            "name: ",
        ),
        (
            NewToken {
                name: "x".repeat(65),
                ..new()
            },
            "name: ",
        ),
        (
            NewToken {
                name: "a\nb".into(),
                ..new()
            },
            "name: ",
        ),
        (
            NewToken {
                name: " a".into(),
                ..new()
            },
            "name: ",
        ),
        (
            NewToken {
                name: vault.to_string(),
                ..new()
            },
            "name: ",
        ),
        (
            NewToken {
                vaults: TokenVaults::Only(vec![]),
                ..new()
            },
            "vaults: ",
        ),
        (
            NewToken {
                vaults: TokenVaults::Only(vec![vault, vault]),
                ..new()
            },
            "vaults[1]: ",
        ),
        (
            NewToken {
                allow: vec![cidr("::/0"); 101],
                ..new()
            },
            "allow: ",
        ),
        (
            NewToken {
                expires_at_ms: Some(10),
                ..new()
            },
            "expiresAtMs: ",
        ),
    ] {
        let fault = token.check(10).unwrap_err();
        assert!(fault.message().starts_with(start), "{start} {fault}");
    }
}

#[test]
fn state__should_follow_time_and_revocation() {
    let record = NewToken {
        expires_at_ms: Some(20),
        ..new()
    }
    .record(TokenHash::of("a"), 10);
    assert_eq!(record.state(19), TokenState::Active);
    assert_eq!(record.state(20), TokenState::Expired);
    let revoked = ApiToken {
        revoked_at_ms: Some(15),
        ..record
    };
    assert_eq!(revoked.state(0), TokenState::Revoked);
}

#[test]
fn allows__should_refuse_addresses_that_are_not_listed_or_not_known() {
    let open = new().record(TokenHash::of("a"), 1);
    assert!(open.allows(None));
    let closed = ApiToken {
        allow: vec![cidr("192.0.2.0/24"), cidr("2001:db8::/32")],
        ..open
    };
    assert!(!closed.allows(None));
    assert!(closed.allows(Some("192.0.2.1".parse().unwrap())));
    assert!(closed.allows(Some("2001:db8::9".parse().unwrap())));
    assert!(!closed.allows(Some("198.51.100.1".parse().unwrap())));
}

#[test]
fn make__should_draw_anew_for_every_token() {
    struct Next(AtomicU8);
    impl Entropy for Next {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(self.0.fetch_add(1, Ordering::SeqCst));
        }
    }
    let next = Next(AtomicU8::new(0));
    let tokens = [make(TokenKind::Sweep, &next), make(TokenKind::Sweep, &next)];
    assert_ne!(tokens[0].expose_secret(), tokens[1].expose_secret());
}

/// An admin token that is open to nobody in particular.
fn new_admin() -> NewToken {
    NewToken {
        name: "anna".into(),
        kind: TokenKind::Admin(AdminRole::Operator),
        allow: vec![cidr("127.0.0.1"), cidr("192.0.2.0/24")],
        expires_at_ms: Some(100),
        ..new()
    }
}

#[test]
fn kind__should_have_a_role_for_admin_tokens_alone() {
    for role in AdminRole::ALL {
        let kind = TokenKind::parse("admin", role.name()).unwrap();
        assert_eq!((kind.role(), kind.prefix()), (Some(role), "cva_"));
        assert_eq!(
            role.access() == TokenAccess::Full,
            role == AdminRole::Operator
        );
    }
    assert_eq!(TokenKind::parse("sweep", "").unwrap(), TokenKind::Sweep);
    for (kind, role, start) in [
        ("admin", "", "role: must be"),
        ("admin", "root", "role: must be"),
        ("platform", "viewer", "role: is for admin tokens only"),
        ("Admin", "viewer", "kind: must be"),
        ("", "", "kind: must be"),
    ] {
        let fault = TokenKind::parse(kind, role).unwrap_err();
        assert!(fault.message().starts_with(start), "{start} {fault}");
    }
    assert!(!AdminRole::Viewer.reads_audit_log() && AdminRole::Auditor.reads_audit_log());
}

#[test]
fn admin_token__should_say_from_where_and_for_how_long() {
    assert!(new_admin().check(10).is_ok());
    for (token, start) in [
        (
            NewToken {
                expires_at_ms: None,
                ..new_admin()
            },
            "expiresAtMs: is required",
        ),
        (
            NewToken {
                allow: vec![],
                ..new_admin()
            },
            "allow: is required",
        ),
    ] {
        let fault = token.check(10).unwrap_err();
        assert!(fault.message().starts_with(start), "{start} {fault}");
    }
}

#[test]
fn admin_token__should_not_make_one_that_reaches_further() {
    let own = new_admin().record(TokenHash::of("a"), 1);
    let made = |change: fn(&mut NewToken)| {
        let mut token = new_admin();
        change(&mut token);
        own.check_made(&token)
    };
    assert!(made(|_| ()).is_ok());
    let narrower: fn(&mut NewToken) = |new| {
        new.allow = vec![cidr("192.0.2.128/25")];
        new.expires_at_ms = Some(99);
        new.kind = TokenKind::Admin(AdminRole::Viewer);
    };
    assert!(made(narrower).is_ok());
    // Tokens of other APIs are judged by their own rules.
    assert!(
        made(|new| {
            new.kind = TokenKind::Platform;
            new.allow = vec![];
            new.expires_at_ms = None;
        })
        .is_ok()
    );
    type Widen = fn(&mut NewToken);
    let wider: [(Widen, &str); 4] = [
        (|new| new.expires_at_ms = Some(101), "expiresAtMs: "),
        (|new| new.expires_at_ms = None, "expiresAtMs: "),
        (|new| new.allow.push(cidr("192.0.2.0/23")), "allow: "),
        (|new| new.allow.push(cidr("::1")), "allow: "),
    ];
    for (change, start) in wider {
        let fault = made(change).unwrap_err();
        assert_eq!(fault.class(), &Class::Forbidden);
        assert!(fault.message().starts_with(start), "{start} {fault}");
    }
}
