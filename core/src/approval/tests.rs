#![allow(non_snake_case)]

use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};

use super::{
    testing::{TestPasskey, TestSshKey, TestSshKind},
    *,
};
use crate::networks::ChainData;
use crate::{
    amount::U256,
    derive::KeyPath,
    order::{NodeId, SigningOrder},
};

/// An order of which approvals see what they look at, and nothing else is right.
pub(super) fn order() -> SigningOrder {
    SigningOrder {
        request: RequestId::from_bytes([1; 16]),
        vault: VaultId::from_bytes([2; 16]),
        epoch: 0,
        network: Network::Evm,
        root_public_key: vec![3; 33],
        path: KeyPath::of_wallet(Network::Evm, 0).unwrap(),
        public_key: vec![4; 33],
        address: "0x37b5ba07902c51ef69dE0BbEa42A11a1A94e3ff6".to_owned(),
        payload: vec![5; 40],
        chain_data: ChainData::Nothing,
        unsigned: vec![6; 50],
        inputs: Vec::new(),
        recipient_indices: Vec::new(),
        approvals: OrderApprovals {
            most_fee: 1_000,
            valid_until_ms: 5_000,
            given: Vec::new(),
        },
        issued_at_ms: 1_000,
        expires_at_ms: 2_000,
    }
}

#[test]
fn approval__should_have_another_id_when_any_field_is_another() {
    let id = |change: fn(&mut SigningOrder)| {
        let mut order = order();
        change(&mut order);
        order.approval().id().unwrap()
    };
    let ids = [
        id(|_| ()),
        id(|order| order.vault = VaultId::from_bytes([9; 16])),
        id(|order| order.root_public_key[0] ^= 1),
        id(|order| order.request = RequestId::from_bytes([9; 16])),
        id(|order| order.network = Network::Tron),
        id(|order| order.address.push('0')),
        id(|order| order.payload.push(0)),
        id(|order| order.approvals.most_fee += 1),
        id(|order| order.approvals.valid_until_ms += 1),
    ];
    for (place, id) in ids.iter().enumerate() {
        assert!(!ids[..place].contains(id), "{place}");
    }
    // What is known only when the transaction is built is not in it.
    assert_eq!(id(|order| order.unsigned.push(1)), ids[0]);
    // The tag with its length, the version, little-endian.
    assert_eq!(
        hex::encode(&order().approval().canonical_bytes().unwrap()[..19]),
        format!("10{}0100", hex::encode("covault/approval"))
    );
}

#[test]
fn list__should_be_sorted_and_hold_1_to_100_requests_of_which_this_is_one() {
    let ids = |count: u8| (0..count).map(|byte| [byte; 32]).collect::<Vec<_>>();
    for good in [1, 2, 100] {
        list_challenge(&ids(good)).unwrap();
    }
    let problem = |list: &[[u8; 32]]| list_challenge(list).unwrap_err().message().to_owned();
    for bad in [0, 101] {
        assert_eq!(problem(&ids(bad)), "list: must be 1 to 100 requests");
    }
    for bad in [[[2; 32], [1; 32]], [[1; 32], [1; 32]]] {
        assert_eq!(problem(&bad), "list: must be sorted, without repetitions");
    }
    let mut given = TestPasskey::new("treasurer", 1).approve(&order());
    assert_eq!(given.challenge(&[7; 32]), Ok([7; 32]));
    given.list = ids(5);
    assert_eq!(given.challenge(&[4; 32]), list_challenge(&ids(5)));
    let fault = given.challenge(&[5; 32]).unwrap_err();
    assert_eq!(fault.message(), "list: does not have this request");
}

#[test]
fn bounds__should_hold_for_each_approval_and_for_all() {
    let one = TestPasskey::new("treasurer", 1).approve(&order());
    let check = |count: usize, entries: usize| {
        let mut given = one.clone();
        given.list = vec![[0; 32]; entries];
        let approvals = OrderApprovals {
            given: vec![given; count],
            ..OrderApprovals::default()
        };
        approvals
            .check_bounds()
            .map_err(|fault| fault.message().to_owned())
    };
    assert_eq!(check(0, 0), Ok(()));
    assert_eq!(check(MAX_APPROVALS, 0), Ok(()));
    assert_eq!(check(17, 0), Err("approvals: must be at most 16".into()));
    assert_eq!(check(8, MAX_LIST), Ok(()));
    let each = "approvals[0]: must be at most 4096 bytes";
    assert_eq!(check(1, 129), Err(each.into()));
    let all = "approvals: must be at most 32768 bytes together";
    assert_eq!(check(9, MAX_LIST + 10), Err(all.into()));
}

#[test]
fn line__should_enrol_what_proves_to_be_there() {
    let passkey = TestPasskey::new("treasurer@key-1", 1);
    let line = passkey.line();
    let text = line.line().unwrap();
    assert!(
        text.starts_with("covault-approver1 ") && text.ends_with(" treasurer@key-1"),
        "{text}"
    );
    assert_eq!(ApproverLine::parse(&text), Ok(line.clone()));
    assert_eq!(
        ApproverKey::parse(&text),
        Ok(ApproverKey::Passkey(Box::new(passkey.passkey.clone())))
    );
    // Another name is other words, and no proof.
    let mut other = line.clone();
    other.passkey.name.push('1');
    assert_ne!(other.fingerprint(), line.fingerprint());
    let fault = ApproverLine::parse(&other.line().unwrap()).unwrap_err();
    assert!(
        fault.message().starts_with("clientDataJSON.challenge: "),
        "{fault}"
    );
    // An approval is no enrolment.
    let mut other = line.clone();
    other.possession = passkey.assert(&order().approval().id().unwrap());
    assert!(ApproverLine::parse(&other.line().unwrap()).is_err());
    for bad in [
        "".to_owned(),
        "covault-approver1".to_owned(),
        "covault-approver1 AAAA".to_owned(),
        text.replace("approver1", "approver2"),
        text.replace("= treasurer", "A== treasurer"),
        text.replacen(" ", " A", 1),
    ] {
        assert!(ApproverLine::parse(&bad).is_err(), "{bad}");
    }
}

/// Each approval looks for its key among all of a rule.
#[test]
fn accepted_lines__should_be_read_again_without_checking_another_signature() {
    let mut line = TestPasskey::new("treasurer@key-1", 1).line();
    let key = ApproverKey::parse(&line.line().unwrap()).unwrap();
    line.possession.signature.clear();
    let text = line.line().unwrap();
    ApproverKey::parse(&text).unwrap_err();
    assert_eq!(ApproverKey::reread(&text), Ok(key));
}

#[test]
fn line__should_be_refused_by_the_field_that_cannot_be() {
    let problem = |change: fn(&mut Passkey)| {
        let mut key = TestPasskey::new("treasurer", 1);
        change(&mut key.passkey);
        let line = key.line().line().unwrap();
        let fault = ApproverLine::parse(&line).unwrap_err();
        fault.path().unwrap_or_default().to_owned()
    };
    assert_eq!(problem(|key| key.name.clear()), "name");
    assert_eq!(problem(|key| key.name.push('\n')), "name");
    assert_eq!(problem(|key| key.name.push('\u{202e}')), "name");
    assert_eq!(problem(|key| key.rp_id.clear()), "rpId");
    assert_eq!(problem(|key| key.rp_id = "example.org".into()), "origins");
    assert_eq!(
        problem(|key| key.rp_id = "sole.example.com".into()),
        "origins"
    );
    assert_eq!(problem(|key| key.origins.clear()), "origins");
    for origin in [
        "https://evil.example/.console.example.com",
        "https://evil.example?console.example.com",
        "https://user@a.console.example.com",
        "https://\u{202e}.console.example.com",
        "https://console.example.com:443/evil",
        "https://console.example.com:x",
    ] {
        let mut key = TestPasskey::new("treasurer", 1);
        key.passkey.origins = [origin.to_owned()].into();
        let fault = ApproverLine::parse(&key.line().line().unwrap()).unwrap_err();
        assert_eq!(fault.path(), Some("origins"), "{origin}");
    }
    assert_eq!(
        problem(|key| key.credential_id.truncate(15)),
        "credentialId"
    );
    assert_eq!(
        problem(|key| key.public_key = PasskeyPublicKey::Ed25519([0; 32])),
        "publicKey"
    );
    assert_eq!(
        problem(|key| key.public_key = PasskeyPublicKey::Es256(vec![2; 33])),
        "publicKey"
    );
}

#[test]
fn fingerprint__should_be_eight_words_of_the_list() {
    let line = TestPasskey::new("treasurer", 1).line();
    let words = line.fingerprint().unwrap();
    // 88 bits of SHA-256, eleven by eleven.
    let digest = Sha256::digest(bcs::to_bytes(&line).unwrap());
    let bits: String = digest.iter().map(|byte| format!("{byte:08b}")).collect();
    let list = bip39::Language::English.word_list();
    for (place, word) in words.iter().enumerate() {
        let index = usize::from_str_radix(&bits[place * 11..(place + 1) * 11], 2).unwrap();
        assert_eq!(*word, list[index]);
    }
}

#[test]
fn keys__should_be_passkeys_or_ssh_keys_that_can_approve() {
    for line in [
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti user@example.com",
        "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqtiAAAABHNzaDo= user",
    ] {
        let key = ApproverKey::parse(line).unwrap();
        assert!(matches!(key, ApproverKey::Ssh(_)), "{line}");
    }
    for line in [
        "",
        "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQ==",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    ] {
        assert!(ApproverKey::parse(line).is_err(), "{line}");
    }
    // The forms that browsers give.
    let TestPasskey { passkey, .. } = TestPasskey::new("treasurer", 1);
    let PasskeyPublicKey::Es256(point) = &passkey.public_key else {
        unreachable!()
    };
    let key = p256::ecdsa::VerifyingKey::from_sec1_bytes(point).unwrap();
    let prefix = hex::decode("3059301306072a8648ce3d020106082a8648ce3d030107034200").unwrap();
    let spki = [prefix.as_slice(), key.to_encoded_point(false).as_bytes()].concat();
    assert_eq!(
        PasskeyPublicKey::from_spki(&spki).as_ref(),
        Ok(&passkey.public_key)
    );
    let ed25519 = ed25519_dalek::SigningKey::from_bytes(&[7; 32])
        .verifying_key()
        .to_bytes();
    let spki = [
        hex::decode("302a300506032b6570032100").unwrap(),
        ed25519.to_vec(),
    ]
    .concat();
    assert_eq!(
        PasskeyPublicKey::from_spki(&spki),
        Ok(PasskeyPublicKey::Ed25519(ed25519))
    );
    assert!(PasskeyPublicKey::from_spki(&spki[..43]).is_err());
}

#[test]
fn proofs__should_hold_for_their_key_and_challenge_only() {
    use ed25519_dalek::Signer as _;
    let challenge = order().approval().id().unwrap();
    let passkey = TestPasskey::new("treasurer", 1);
    let key = ApproverKey::Passkey(Box::new(passkey.passkey.clone()));
    let given = passkey.approve(&order());
    assert_eq!(given.proof.key_id().unwrap(), key.id());
    assert_eq!(
        key.verify(&given.proof, &challenge),
        Ok(ProofFacts::WebAuthn {
            origin: testing::ORIGIN.to_owned(),
            synced: false
        })
    );
    assert!(key.verify(&given.proof, &[0; 32]).is_err());
    // A client signer's.
    let signer = ed25519_dalek::SigningKey::from_bytes(&[7; 32]);
    let node = NodeId(signer.verifying_key().to_bytes());
    let signature = signer.sign(&ApprovalProof::node_statement(&challenge));
    let proof = ApprovalProof::Node {
        node,
        signature: signature.to_bytes().to_vec(),
    };
    let ssh = ApproverKey::parse(&node.openssh_line("client")).unwrap();
    assert_eq!(proof.key_id().unwrap(), ssh.id());
    assert_eq!(ssh.verify(&proof, &challenge), Ok(ProofFacts::Node));
    assert!(ssh.verify(&proof, &[0; 32]).is_err());
    assert!(ssh.verify(&given.proof, &challenge).is_err());
    assert!(key.verify(&proof, &challenge).is_err());
}

/// People with a passkey each, and an order that all have approved.
fn approved(count: u8) -> (Approvers, SigningOrder) {
    let mut approvers = Approvers::default();
    let mut order = order();
    for number in 0..count {
        let passkey = TestPasskey::new("treasurer", number);
        let key = ApproverKey::Passkey(Box::new(passkey.passkey.clone()));
        approvers.add(&format!("person {number}"), key).unwrap();
        order.approvals.given.push(passkey.approve(&order));
    }
    (approvers, order)
}

fn verify(approvers: &Approvers, order: &SigningOrder) -> Result<VerifiedApprovals, Fault> {
    approvers.verify(
        &order.approval(),
        &order.approvals,
        U256::from(1_000),
        4_999,
    )
}

#[test]
fn approvals__should_be_those_of_people_who_are_known() {
    let (approvers, mut order) = approved(3);
    let verified = verify(&approvers, &order).unwrap();
    let person = |number: u8| Approved {
        person: format!("person {number}"),
        way: ApprovalWay::Console,
        synced: false,
    };
    assert_eq!(verified.approved, [person(0), person(1), person(2)]);
    // Another signer's approver is no fault, and does not count.
    let stranger = TestPasskey::new("stranger", 1).approve(&order);
    order.approvals.given[1] = stranger;
    let verified = verify(&approvers, &order).unwrap();
    assert_eq!(verified.approved, [person(0), person(2)]);
    assert_eq!(verified.unknown, [1]);
    // Nothing of what nobody here has approved is looked at.
    order.approvals.given.swap(0, 1);
    order.approvals.given.truncate(1);
    order.approvals.valid_until_ms = 0;
    assert_eq!(verify(&approvers, &order).unwrap().unknown, [0]);
}

#[test]
fn approvals__should_be_refused_when_anything_that_was_approved_is_another() {
    type Change = fn(&mut SigningOrder);
    let changes: [(&str, Change); 8] = [
        ("vault", |order| order.vault = VaultId::from_bytes([9; 16])),
        ("rootPublicKey", |order| order.root_public_key[0] ^= 1),
        ("request", |order| {
            order.request = RequestId::from_bytes([9; 16])
        }),
        ("network", |order| order.network = Network::Tron),
        ("address", |order| order.address.push('0')),
        ("payload", |order| order.payload[0] ^= 1),
        ("mostFee", |order| order.approvals.most_fee += 1),
        ("validUntilMs", |order| order.approvals.valid_until_ms -= 1),
    ];
    for (what, change) in changes {
        let (approvers, mut order) = approved(1);
        verify(&approvers, &order).unwrap();
        change(&mut order);
        let fault = verify(&approvers, &order).unwrap_err();
        assert_eq!(
            fault.path(),
            Some("approvals[0].clientDataJSON.challenge"),
            "{what}"
        );
    }
    // In a list too.
    let (approvers, mut order) = approved(1);
    let passkey = TestPasskey::new("treasurer", 0);
    let mut list = vec![[1; 32], [0xff; 32], order.approval().id().unwrap()];
    list.sort_unstable();
    order.approvals.given = vec![GivenApproval {
        list: list.clone(),
        ..passkey.given(passkey.assert(&list_challenge(&list).unwrap()))
    }];
    assert_eq!(verify(&approvers, &order).unwrap().approved.len(), 1);
    let problem = |order: &SigningOrder| {
        let fault = verify(&approvers, order).unwrap_err();
        fault.message().to_owned()
    };
    let mut other = order.clone();
    other.payload[0] ^= 1;
    assert_eq!(
        problem(&other),
        "approvals[0].list: does not have this request"
    );
    order.approvals.given[0].list[0][0] ^= 1;
    assert!(problem(&order).starts_with("approvals[0].clientDataJSON.challenge: "));
    order.approvals.given[0].list.reverse();
    assert!(problem(&order).starts_with("approvals[0].list: must be sorted"));
}

#[test]
fn terms__should_be_those_that_were_approved() {
    let (approvers, order) = approved(1);
    let check = |valid_until_ms: u64, fee: u128, now_ms: u64| {
        let mut order = order.clone();
        order.approvals.valid_until_ms = valid_until_ms;
        order.approvals.given = vec![TestPasskey::new("treasurer", 0).approve(&order)];
        approvers
            .verify(&order.approval(), &order.approvals, U256::from(fee), now_ms)
            .map(drop)
            .map_err(|fault| fault.message().to_owned())
    };
    const DAY: u64 = 24 * 3_600_000;
    assert_eq!(check(1_000, 1_000, 999), Ok(()));
    assert_eq!(check(1_000 + DAY, 0, 1_000), Ok(()));
    let expired = "approvals.validUntilMs: the approvals have expired";
    assert_eq!(check(1_000, 0, 1_000), Err(expired.to_owned()));
    let ahead = "approvals.validUntilMs: is more than 24 hours ahead";
    assert_eq!(check(1_001 + DAY, 0, 1_000), Err(ahead.to_owned()));
    assert_eq!(
        check(1_000 + DAY / 24 * 25, 0, 1_000),
        Err(ahead.to_owned())
    );
    let over = check(1_000, 1_001, 999).unwrap_err();
    assert!(
        over.starts_with(
            "approvals.mostFee: the transaction's fee could reach 1001, above the approved 1000 "
        ),
        "{over}"
    );
}

/// Each change of an assertion, and the field that the refusal names.
#[test]
fn assertions__should_be_refused_by_the_field_that_is_wrong() {
    let (approvers, order) = approved(1);
    let passkey = TestPasskey::new("treasurer", 0);
    let challenge = order.approval().id().unwrap();
    let json = passkey.client_data(&challenge);
    let judged = |authenticator_data: Vec<u8>, json: &str| {
        let mut order = order.clone();
        order.approvals.given = vec![passkey.given(passkey.sign(authenticator_data, json.into()))];
        verify(&approvers, &order).map(drop).map_err(|fault| {
            let path = fault.path().unwrap_or_default();
            path.trim_start_matches("approvals[0].").to_owned()
        })
    };
    let data = passkey.authenticator_data();
    let json_as = |from: &str, to: &str| {
        assert!(json.contains(from));
        judged(data.clone(), &json.replacen(from, to, 1))
    };
    let wrong = |field: &str| Err(field.to_owned());
    assert_eq!(judged(data.clone(), &json), Ok(()));
    // What the standard lets browsers do.
    assert_eq!(json_as(r#","crossOrigin":false"#, ""), Ok(()));
    assert_eq!(
        json_as(
            "{",
            r#"{"other_keys_can_be_added_here":"x","tokenBinding":{"status":"s"},"#
        ),
        Ok(())
    );
    assert_eq!(json_as("{", " \n{"), Ok(()));

    assert_eq!(
        json_as("webauthn.get", "webauthn.create"),
        wrong("clientDataJSON.type")
    );
    let encoded = BASE64_URL_SAFE_NO_PAD.encode(challenge);
    assert_eq!(
        json_as(&encoded, &format!("{encoded}=")),
        wrong("clientDataJSON.challenge")
    );
    let standard = BASE64_STANDARD.encode(challenge);
    assert_eq!(
        json_as(&encoded, &standard),
        wrong("clientDataJSON.challenge")
    );
    assert_eq!(json_as(&encoded, ""), wrong("clientDataJSON.challenge"));
    for other in [
        "https://console.example.com/",
        "https://console.example.com:8443",
        "https://console.example.com.evil.example",
        "http://console.example.com",
        "https://Console.example.com",
    ] {
        let judged = json_as(testing::ORIGIN, other);
        assert_eq!(judged, wrong("clientDataJSON.origin"), "{other}");
    }
    assert_eq!(
        json_as("false", "true"),
        wrong("clientDataJSON.crossOrigin")
    );
    assert_eq!(
        json_as("false", r#"false,"topOrigin":"https://a.example""#),
        wrong("clientDataJSON.topOrigin")
    );
    // There, with whatever value.
    for value in ["null", r#""""#, "false", "[[1]]"] {
        let judged = json_as("false", &format!(r#"false,"topOrigin":{value}"#));
        assert_eq!(judged, wrong("clientDataJSON.topOrigin"), "{value}");
    }
    // The values without their names.
    let list = format!(
        r#"["webauthn.get","{encoded}","{}",false]"#,
        testing::ORIGIN
    );
    for list in [
        list.clone(),
        format!(" \n{list}"),
        list.replace("]", ",null]"),
    ] {
        assert_eq!(
            judged(data.clone(), &list),
            wrong("clientDataJSON"),
            "{list}"
        );
    }
    for (from, to) in [
        // Twice the same key, also when it is written otherwise.
        ("{", r#"{"type":"webauthn.get","#),
        ("{", r#"{"typ\u0065":"webauthn.get","#),
        ("{", r#"{"crossOrigin":false,"#),
        (r#""type":"webauthn.get","#, ""),
        (r#""webauthn.get""#, "1"),
        ("false", "null"),
        ("}", "}}"),
        ("}", ",}"),
        ("{", "[{"),
        ("{", "\u{feff}{"),
        ("false", "0"),
    ] {
        assert_eq!(json_as(from, to), wrong("clientDataJSON"), "{to}");
    }
    let long = |length: usize| {
        let fill = length - json.len() - r#""x":"","#.len();
        json.replacen('{', &format!(r#"{{"x":"{}","#, "y".repeat(fill)), 1)
    };
    assert_eq!(judged(data.clone(), &long(2_048)), Ok(()));
    assert_eq!(judged(data.clone(), &long(2_049)), wrong("clientDataJSON"));
    assert_eq!(judged(data.clone(), &long(2_150)), wrong("clientDataJSON"));

    let data_as = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut data = data.clone();
        change(&mut data);
        judged(data, &json)
    };
    assert_eq!(data_as(&|data| data[33] = 0xff), Ok(()), "the counter");
    for (what, change) in [
        (
            "rp id",
            &(|data: &mut Vec<u8>| data[0] ^= 1) as &dyn Fn(&mut Vec<u8>),
        ),
        ("UP", &|data| data[32] &= !1),
        ("UV", &|data| data[32] &= !4),
        ("BE", &|data| data[32] |= 8),
        ("BS without BE", &|data| data[32] |= 16),
        ("AT", &|data| data[32] |= 64),
        ("ED", &|data| data[32] |= 128),
        ("36 bytes", &|data| data.truncate(36)),
        ("38 bytes", &|data| data.push(0)),
        ("none", &|data| data.clear()),
    ] {
        assert_eq!(data_as(change), wrong("authenticatorData"), "{what}");
    }
    // A passkey that a cloud can copy says so each time, whether or not it was copied.
    let synced = TestPasskey::new("treasurer", 7).synced();
    let key = ApproverKey::Passkey(Box::new(synced.passkey.clone()));
    for (flags, good) in [
        (0b11101, true),
        (0b01101, true),
        (0b00101, false),
        (0b10101, false),
    ] {
        let mut data = synced.authenticator_data();
        data[32] = flags;
        let given = synced.given(synced.sign(data, synced.client_data(&challenge).into_bytes()));
        assert_eq!(
            key.verify(&given.proof, &challenge).is_ok(),
            good,
            "{flags:b}"
        );
    }
}

/// Authenticators make high and low `s`; some libraries make invalid DER.
#[test]
fn signatures__should_be_strict_der_with_a_high_or_low_s() {
    let (approvers, order) = approved(1);
    let judged = |change: &dyn Fn(&[u8]) -> Vec<u8>| {
        let mut order = order.clone();
        let ApprovalProof::WebAuthn { assertion, .. } = &mut order.approvals.given[0].proof else {
            unreachable!()
        };
        assertion.signature = change(&assertion.signature);
        verify(&approvers, &order).map(drop).map_err(|fault| {
            assert_eq!(fault.path(), Some("approvals[0].signature"));
        })
    };
    let parse = |der: &[u8]| p256::ecdsa::Signature::from_der(der).unwrap();
    let negated = |der: &[u8]| {
        let (r, s) = parse(der).split_scalars();
        let other = p256::ecdsa::Signature::from_scalars(r.to_bytes(), (-s).to_bytes());
        other.unwrap().to_der().as_bytes().to_vec()
    };
    assert_eq!(judged(&<[u8]>::to_vec), Ok(()));
    assert_eq!(judged(&negated), Ok(()));
    for change in [
        &(|der: &[u8]| parse(der).to_vec()) as &dyn Fn(&[u8]) -> Vec<u8>,
        &|der| [der, &[0]].concat(),
        &|der| der[..der.len() - 1].to_vec(),
        // The length in two bytes.
        &|der| [&[0x30, 0x81], &der[1..]].concat(),
        // A zero more in front of r.
        &|der| {
            let length = [der[1] + 1, 0x02, der[3] + 1, 0];
            [&[0x30], length.as_slice(), &der[4..]].concat()
        },
        &|_| Vec::new(),
        &|der| {
            let mut der = der.to_vec();
            der[10] ^= 1;
            der
        },
    ] {
        assert_eq!(judged(change), Err(()));
    }
}

#[test]
fn keys__should_be_one_persons() {
    let passkey = TestPasskey::new("treasurer", 1);
    let key = || ApproverKey::Passkey(Box::new(passkey.passkey.clone()));
    let mut approvers = Approvers::default();
    approvers.add("treasurer", key()).unwrap();
    let fault = approvers.add("director", key()).unwrap_err();
    assert_eq!(fault.message(), "is already a key of treasurer");
    assert!(approvers.knows("treasurer") && !approvers.knows("director"));
    // The owner of one private key is one person, whatever the key is called: under another credential id, as
    // another kind of key, for another application.
    let mut renamed = passkey.clone();
    renamed.passkey.credential_id = vec![1; 16];
    let renamed = ApproverKey::parse(&renamed.line().line().unwrap()).unwrap();
    approvers.add("director", renamed).unwrap_err();
    let ssh = |kind| TestSshKey::new(kind, 1);
    let [plain, mut device, mut p256] = TestSshKind::ALL.map(ssh);
    let mut approvers = Approvers::default();
    for (one, person) in [(&plain, "a"), (&p256, "b")] {
        let key = ApproverKey::parse(&one.line()).unwrap();
        approvers.add(person, key).unwrap();
    }
    device.application = "ssh:other".to_owned();
    p256.application = "ssh:other".to_owned();
    for (one, owner) in [(&device, "a"), (&p256, "b")] {
        let key = ApproverKey::parse(&one.line()).unwrap();
        let fault = approvers.add("director", key).unwrap_err();
        assert_eq!(fault.message(), format!("is already a key of {owner}"));
    }
}

#[test]
fn ways__should_go_by_the_origin_of_the_page() {
    let node = "https://approve.example.com";
    let mut approvers = Approvers::with_node_origins([node.to_owned()].into());
    let passkey = TestPasskey::new("treasurer", 1).at("example.com", &[node, testing::ORIGIN]);
    let key = ApproverKey::Passkey(Box::new(passkey.passkey.clone()));
    assert_eq!(
        approvers.ways_of(&key),
        [ApprovalWay::Console, ApprovalWay::Node].into()
    );
    approvers.add("treasurer", key).unwrap();
    for (origin, way) in [
        (node, ApprovalWay::Node),
        (testing::ORIGIN, ApprovalWay::Console),
    ] {
        let mut order = order();
        let challenge = order.approval().id().unwrap();
        let json = passkey.client_data(&challenge).replace(node, origin);
        let assertion = passkey.sign(passkey.authenticator_data(), json.into_bytes());
        order.approvals.given = vec![passkey.given(assertion)];
        assert_eq!(verify(&approvers, &order).unwrap().approved[0].way, way);
    }
}
