//! Forwarded commands and answers must be read for ever: a rolling restart has both versions at once.
//! When a sample is missing the test fails and prints what it would hold.

#![allow(non_snake_case)]

use std::{fs, path::PathBuf};

use covault_core::{fault::Class, trace::TraceContext};

use super::*;

/// The bytes are those of the sample, and reading them gives what is written like them again.
fn check(name: &str, bytes: &[u8], again: impl Fn(&[u8]) -> Vec<u8>) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/wire")
        .join(format!("forwarded-command-v1-{name}.hex"));
    let bytes = hex::encode(bytes);
    let sample = fs::read_to_string(&path)
        .unwrap_or_else(|_| panic!("{} is missing; it would hold\n{bytes}", path.display()));
    assert_eq!(sample.trim(), bytes, "{name}: it is written differently");
    let sample = hex::decode(sample.trim()).unwrap();
    assert_eq!(again(&sample), sample, "{name}: it is read differently");
}

#[test]
fn commands__should_load_for_ever() {
    let all = ForwardedCommand {
        recipient_version: 5,
        caller: Caller {
            token: TokenId::from_bytes([9; 16]),
            vaults: VaultScope::All,
            access: TokenAccess::Full,
            admin: Some(AdminCaller::unnamed()),
            request_id: "r".into(),
            person: None,
            trace: TraceParent::Unknown,
        },
        method: "mpcvault.platform.v1.PlatformAPI.CreateWallet".into(),
        request: vec![1, 2, 3],
        key: Some(IdempotencyKey {
            key: "k".into(),
            body_hash: [4; 32],
        }),
    };
    let mut some = all.clone();
    some.caller.vaults = VaultScope::Only(vec![VaultId::from_bytes([7; 16])]);
    some.caller.access = TokenAccess::ReadOnly;
    some.caller.person = Some(Person {
        id: UserId::from_bytes([6; 16]),
        name: "treasurer".into(),
    });
    some.caller.admin = Some(AdminCaller {
        role: AdminRole::Auditor,
        token: Some("anna".into()),
    });
    some.caller.trace = TraceParent::Sampled(TraceContext {
        trace: [13; 16],
        span: [14; 8],
    });
    some.key = None;
    for (name, forwarded) in [("command", all), ("command-in-scope", some)] {
        let bytes = encode_command(&forwarded).unwrap();
        check(name, &bytes, |bytes| {
            encode_command(&decode_command(bytes).unwrap()).unwrap()
        });
    }
}

#[test]
fn outcomes__should_load_for_ever() {
    let done = OperationResponse {
        response: vec![5, 6],
        replayed: true,
        body_mismatch: true,
    };
    let refused = Fault::field("name", "is taken").caused_by("a row");
    for (name, outcome) in [
        ("answer", ForwardOutcome::Done(Box::new(Ok(done)))),
        (
            "answer-refused",
            ForwardOutcome::Done(Box::new(Err(refused))),
        ),
        ("answer-not-done", ForwardOutcome::NotDone),
    ] {
        let bytes = encode_outcome(outcome).unwrap();
        check(name, &bytes, |bytes| {
            encode_outcome(decode_outcome(bytes).unwrap()).unwrap()
        });
    }
}

#[test]
fn what_is_none__should_be_refused() {
    assert!(encode_outcome(ForwardOutcome::NotKnown).is_err());
    for bytes in [&[][..], &[0xff], &[1, 2, 3]] {
        assert_eq!(*decode_command(bytes).unwrap_err().class(), Class::Bug);
        assert_eq!(*decode_outcome(bytes).unwrap_err().class(), Class::Bug);
    }
}
