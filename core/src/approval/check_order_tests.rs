//! In which order what is wrong with an approval is named.

#![allow(non_snake_case)]

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};

use super::{testing::TestPasskey, *};
use crate::amount::U256;

const NOW_MS: u64 = 1_000;

/// An approval with a fee of 5 that is good until 2,000, with which the first things are right, so many, and all others
/// are wrong; and how it is judged, where the transaction can cost 6.
fn judged(right: usize) -> Result<VerifiedApprovals, Fault> {
    let passkey = TestPasskey::new("treasurer", 1);
    let mut approvers = Approvers::default();
    let key = ApproverKey::Passkey(Box::new(passkey.passkey.clone()));
    approvers.add("treasurer", key).unwrap();
    let approval = Approval::new(
        VaultId::from_bytes([2; 16]),
        &[3; 33],
        RequestId::from_bytes([4; 16]),
        Network::Evm,
        "0x5",
        b"payload",
        ApprovalTerms {
            most_fee: 5,
            valid_until_ms: 2_000,
        },
    );
    let mut place = 0;
    let mut is_right = || {
        place += 1;
        right >= place
    };
    let known = is_right();
    let pad = if is_right() { "" } else { &" ".repeat(2_048) };
    let begin = if is_right() { "{" } else { "[" };
    let kind = if is_right() {
        "webauthn.get"
    } else {
        "webauthn.create"
    };
    let challenge = if is_right() {
        approval.id().unwrap()
    } else {
        [0; 32]
    };
    let challenge = BASE64_URL_SAFE_NO_PAD.encode(challenge);
    let origin = if is_right() {
        testing::ORIGIN
    } else {
        "https://example.org"
    };
    let cross = !is_right();
    let top = if is_right() {
        ""
    } else {
        r#","topOrigin":"https://example.org""#
    };
    let client_data = format!(
        r#"{begin}"type":"{kind}","challenge":"{challenge}","origin":"{origin}","crossOrigin":{cross}{top}{pad}}}"#
    );
    let rest: &[u8] = if is_right() { &[] } else { &[0] };
    let rp_id = if is_right() {
        passkey.passkey.rp_id.as_str()
    } else {
        "example.org"
    };
    let mut flags = 0;
    flags |= u8::from(is_right());
    flags |= u8::from(is_right()) << 2;
    flags |= u8::from(!is_right()) << 6;
    flags |= u8::from(!is_right()) << 3;
    // Backed up and not eligible for it.
    flags |= u8::from(!is_right()) << 4;
    let data = [&Sha256::digest(rp_id)[..], &[flags], &[0; 4], rest].concat();
    let mut assertion = passkey.sign(data, client_data.into_bytes());
    if !is_right() {
        *assertion.signature.last_mut().unwrap() ^= 1;
    }
    let credential_id = match known {
        true => passkey.passkey.credential_id.clone(),
        false => vec![9; 16],
    };
    let now_ms = if is_right() { NOW_MS } else { 2_000 };
    let fee = U256::from(if is_right() { 5_u64 } else { 6 });
    let given = OrderApprovals {
        most_fee: 5,
        valid_until_ms: 2_000,
        given: vec![GivenApproval {
            list: Vec::new(),
            proof: ApprovalProof::WebAuthn {
                credential_id,
                assertion,
            },
        }],
    };
    approvers.verify(&approval, &given, fee, now_ms)
}

#[test]
fn checks__should_name_what_is_wrong_in_the_order_that_is_promised() {
    // Of a key that nobody has, nothing else is looked at.
    let unknown = judged(0).unwrap();
    assert_eq!((unknown.approved.len(), unknown.unknown), (0, vec![0]));
    let of = "approvals[0].";
    let client = |name: &str| format!("{of}clientDataJSON{name}");
    let data = |problem: &str| format!("{of}authenticatorData: {problem}");
    let expected = [
        client(": must be at most 2048 bytes"),
        client(": is not a JSON object"),
        client(".type: "),
        client(".challenge: "),
        client(".origin: "),
        client(".crossOrigin: "),
        client(".topOrigin: "),
        data("must be 37 bytes"),
        data("has another rp id"),
        data("the user was not present (flag UP)"),
        data("the device has not verified its user (flag UV)"),
        data("must have neither attested data nor extensions (flags AT, ED)"),
        data("flag BE"),
        data("is backed up, but not eligible"),
        format!("{of}signature: "),
        "approvals.validUntilMs: the approvals have expired".to_owned(),
        "approvals.mostFee: ".to_owned(),
    ];
    for (right, starts) in expected.iter().enumerate() {
        let fault = judged(right + 1).unwrap_err();
        assert!(
            fault.message().starts_with(starts),
            "{fault}, not {starts}, with {} right",
            right + 1
        );
    }
    let verified = judged(expected.len() + 1).unwrap();
    assert_eq!(verified.approved[0].person, "treasurer");
}
