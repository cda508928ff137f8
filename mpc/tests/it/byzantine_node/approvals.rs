//! Approvals in bad hands: nothing is signed that these people have not approved exactly as it is.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};

use covault_core::{
    approval::{
        ApprovalProof, GivenApproval, list_challenge,
        testing::{TestPasskey, TestSshKey, TestSshKind},
    },
    derive::ChildKey,
    fault::FaultCode,
    networks::VerifiedSignatures,
    order::{Generation, ReshareOrder},
};
use covault_mpc::{mutate::mutations, policy::Spending};
use sha2::{Digest as _, Sha256};

use super::*;
use crate::support::task;

const DAY_MS: u64 = 24 * 3_600_000;
const WANTS: &str = "wants 2 of treasurer, director";

/// The treasurer's two, and the director's.
fn passkeys() -> [TestPasskey; 3] {
    [
        TestPasskey::new("treasurer", 1),
        TestPasskey::new("treasurer", 2),
        TestPasskey::new("director", 1),
    ]
}

async fn world(curve: Curve) -> ByzantineFixture {
    let [one, second, other] = passkeys().map(|passkey| passkey.line().line().unwrap());
    let policy = format!(
        r#"
        [[approver]]
        name = "treasurer"
        keys = ["{one}", "{second}"]
        [[approver]]
        name = "director"
        keys = ["{other}"]
        [[approval]]
        needs = 2
        of = ["treasurer", "director"]
        "#
    );
    ByzantineFixture::start(curve, &policy).await
}

/// Has both people approve the order as it stands.
fn approve(order: &mut SigningOrder) {
    let [one, _, other] = passkeys();
    let given = [one.approve(order), other.approve(order)];
    order.approvals.given = given.into();
}

impl ByzantineFixture {
    /// An order that both have approved.
    fn approved(&self) -> ForgedRequest {
        let mut ask = self.honest();
        ask.order.approvals.most_fee = 10_000_000;
        ask.order.approvals.valid_until_ms = now_ms() + 600_000;
        approve(&mut ask.order);
        ask
    }
}

/// Has both approve another order than the one that is asked.
fn approve_other(ask: &mut ForgedRequest, change: impl FnOnce(&mut SigningOrder)) {
    let mut other = ask.order.clone();
    change(&mut other);
    approve(&mut other);
    ask.order.approvals.given = other.approvals.given;
}

fn first(ask: &mut ForgedRequest) -> &mut GivenApproval {
    &mut ask.order.approvals.given[0]
}

/// The parts of the first approval's proof.
fn proof(ask: &mut ForgedRequest) -> (&mut Vec<u8>, [&mut Vec<u8>; 3]) {
    let ApprovalProof::WebAuthn {
        credential_id,
        assertion,
    } = &mut first(ask).proof
    else {
        unreachable!()
    };
    let parts = [
        &mut assertion.authenticator_data,
        &mut assertion.client_data_json,
        &mut assertion.signature,
    ];
    (credential_id, parts)
}

/// Both approve several requests with one gesture.
fn approve_list(ask: &mut ForgedRequest, mut list: Vec<[u8; 32]>) {
    list.sort_unstable();
    let challenge = list_challenge(&list).unwrap_or([0; 32]);
    let [one, _, other] = passkeys();
    ask.order.approvals.given = [one, other]
        .map(|passkey| GivenApproval {
            list: list.clone(),
            ..passkey.given(passkey.assert(&challenge))
        })
        .into();
}

fn id(ask: &ForgedRequest) -> [u8; 32] {
    ask.order.approval().id().unwrap()
}

const CHALLENGE: &str = "approvals[0].clientDataJSON.challenge: ";

const LIES: &[(&str, Forgery)] = &[
    // Each field of what was approved.
    (CHALLENGE, |ask, _| {
        approve_other(ask, |order| order.vault = VaultId::from_bytes([9; 16]));
    }),
    (CHALLENGE, |ask, _| {
        approve_other(ask, |order| order.root_public_key[7] ^= 1);
    }),
    (CHALLENGE, |ask, _| {
        approve_other(ask, |order| order.request = RequestId::from_bytes([9; 16]));
    }),
    (CHALLENGE, |ask, _| {
        approve_other(ask, |order| order.network = Network::Ton);
    }),
    (CHALLENGE, |ask, _| {
        approve_other(ask, |order| order.address = EVE.into());
    }),
    (CHALLENGE, |ask, world| {
        let payload = world.payload(true, 5, 1).encode();
        approve_other(ask, |order| order.payload = payload);
    }),
    (CHALLENGE, |ask, world| {
        let payload = world.payload(false, 4, 1).encode();
        approve_other(ask, |order| order.payload = payload);
    }),
    // The same payment on another chain.
    (CHALLENGE, |ask, world| {
        let payload = world.payload(false, 5, 137).encode();
        approve_other(ask, |order| match order.network {
            Network::Evm => order.payload = payload,
            _ => order.network = Network::Tron,
        });
    }),
    (CHALLENGE, |ask, _| {
        approve_other(ask, |order| order.approvals.most_fee += 1);
    }),
    (CHALLENGE, |ask, _| {
        approve_other(ask, |order| order.approvals.valid_until_ms += 1);
    }),
    // The same, changed in the order.
    (CHALLENGE, |ask, _| {
        ask.order.request = RequestId::from_random(random_16(&SystemEntropy));
    }),
    (CHALLENGE, |ask, world| {
        let given = ask.order.approvals.clone();
        ask.order = world.transfer(true, 5, 1);
        ask.order.approvals = given;
    }),
    (CHALLENGE, |ask, _| ask.order.approvals.most_fee += 1),
    (CHALLENGE, |ask, _| ask.order.approvals.most_fee = u128::MAX),
    (CHALLENGE, |ask, _| ask.order.approvals.valid_until_ms += 1),
    // Bounds of what was approved.
    (
        "approvals.validUntilMs: the approvals have expired",
        |ask, _| {
            ask.order.approvals.valid_until_ms = now_ms();
            approve(&mut ask.order);
        },
    ),
    ("approvals.validUntilMs: is more than 24 hours", |ask, _| {
        ask.order.approvals.valid_until_ms = now_ms() + DAY_MS / 24 * 25;
        approve(&mut ask.order);
    }),
    ("approvals.mostFee: ", |ask, _| {
        let rules = ask.order.network.rules();
        let fee = rules.most_fee(&ask.order.unsigned).unwrap();
        ask.order.approvals.most_fee = fee.to::<u128>() - 1;
        approve(&mut ask.order);
    }),
    // Each field of the proof.
    (WANTS, |ask, _| proof(ask).0[3] ^= 1),
    ("approvals[0].clientDataJSON.challenge: ", |ask, _| {
        // Signed by the second key of the same person, and for something else.
        let second = &passkeys()[1];
        *first(ask) = second.given(second.assert(&[7; 32]));
    }),
    ("approvals[0].signature: ", |ask, _| {
        let second = &passkeys()[1];
        *proof(ask).0 = second.passkey.credential_id.clone();
    }),
    ("approvals[0].authenticatorData: ", |ask, _| {
        proof(ask).1[0][0] ^= 1;
    }),
    ("approvals[0].signature: ", |ask, _| {
        // The counter, which nothing but the signature binds.
        proof(ask).1[0][36] ^= 1;
    }),
    ("approvals[0].authenticatorData: ", |ask, _| {
        let challenge = id(ask);
        let one = &passkeys()[0];
        let mut data = one.authenticator_data();
        data[32] &= !4;
        *first(ask) = one.given(one.sign(data, one.client_data(&challenge).into()));
    }),
    ("approvals[0].clientDataJSON: ", |ask, _| {
        proof(ask).1[1].push(b'}')
    }),
    ("approvals[0].signature: ", |ask, _| {
        proof(ask).1[1].push(b' ')
    }),
    ("approvals[0].clientDataJSON.type: ", |ask, _| {
        let challenge = id(ask);
        let one = &passkeys()[0];
        let json = one
            .client_data(&challenge)
            .replace("webauthn.get", "webauthn.create");
        *first(ask) = one.given(one.sign(one.authenticator_data(), json.into()));
    }),
    ("approvals[0].clientDataJSON.origin: ", |ask, _| {
        let one = TestPasskey::new("treasurer", 1)
            .at("console.example.com", &["https://console.example.co"]);
        *first(ask) = one.approve(&ask.order);
    }),
    (
        "approvals[0].authenticatorData: has another rp id",
        |ask, _| {
            let one = TestPasskey::new("treasurer", 1)
                .at("example.com", &["https://console.example.com"]);
            *first(ask) = one.approve(&ask.order);
        },
    ),
    ("approvals[0].signature: ", |ask, _| {
        proof(ask).1[2][20] ^= 1
    }),
    ("approvals[0].signature: ", |ask, _| proof(ask).1[2].push(0)),
    ("approvals[0].signature: ", |ask, _| proof(ask).1[2].clear()),
    ("approvals[0].signature: ", |ask, _| {
        // The director's, over the very same.
        let other = passkeys()[2].approve(&ask.order);
        let ApprovalProof::WebAuthn { assertion, .. } = other.proof else {
            unreachable!()
        };
        *proof(ask).1[2] = assertion.signature;
    }),
    ("approvals[0].signature: ", |ask, _| {
        first(ask).proof = ApprovalProof::Ssh("-----BEGIN SSH SIGNATURE-----".into());
    }),
    (WANTS, |ask, _| {
        first(ask).proof = ApprovalProof::Node {
            node: NodeId([3; 32]),
            signature: vec![0; 64],
        };
    }),
    // Lists.
    ("approvals[0].list: does not have this request", |ask, _| {
        let ids = (0..3_u8).map(|byte| [byte; 32]).collect();
        approve_list(ask, ids);
    }),
    ("approvals[0].list: must be 1 to 100", |ask, _| {
        let others = (0..100_u8)
            .map(|byte| [byte; 32])
            .chain([id(ask)])
            .collect();
        approve_list(ask, others);
    }),
    (CHALLENGE, |ask, _| {
        let list = vec![[1; 32], id(ask)];
        approve_list(ask, list);
        first(ask).list[0][0] ^= 2;
        first(ask).list.sort_unstable();
    }),
    (CHALLENGE, |ask, _| {
        let list = vec![id(ask)];
        approve_list(ask, list);
        first(ask).list.clear();
    }),
    // How many, and who.
    (WANTS, |ask, _| ask.order.approvals.given.clear()),
    (WANTS, |ask, _| ask.order.approvals.given.truncate(1)),
    (WANTS, |ask, _| {
        let [one, second, _] = passkeys();
        ask.order.approvals.given = vec![one.approve(&ask.order), second.approve(&ask.order)];
    }),
    (WANTS, |ask, _| {
        let [one, ..] = passkeys();
        ask.order.approvals.given = vec![one.approve(&ask.order); 2];
    }),
    (WANTS, |ask, _| {
        ask.order.approvals.given[1] = TestPasskey::new("removed", 1).approve(&ask.order);
    }),
    ("approvals: must be at most 16", |ask, _| {
        let one = first(ask).clone();
        ask.order.approvals.given.resize(17, one);
    }),
    ("approvals[0]: must be at most 4096 bytes", |ask, _| {
        proof(ask).1[1].resize(4_000, b' ');
    }),
];

async fn approvals(curve: Curve) {
    let mut world = world(curve).await;
    for (starts, lie) in LIES {
        let mut ask = world.approved();
        lie(&mut ask, &world);
        world.refused(&ask, &Class::Invalid, starts).await;
    }
    // What is approved is signed, and nothing of the above has claimed anything.
    let ask = world.approved();
    world.signed(&ask).await;
    // In a list of a hundred, too.
    let mut ask = world.approved();
    let list = (0..99_u8).map(|byte| Sha256::digest([byte]).into());
    let list = list.chain([id(&ask)]).collect();
    approve_list(&mut ask, list);
    world.signed(&ask).await;
    // The same approvals, for another transaction of the same payload: the request has its digest.
    let mut other = ask.clone();
    let payload = Payload::decode(&ask.order.payload).unwrap();
    let chain_data = match world.chain_data() {
        ChainData::Evm(chain_data) => ChainData::Evm(evm::ChainData {
            nonce: Some(5),
            ..chain_data
        }),
        _ => ChainData::Solana(solana::ChainData {
            recent_blockhash: BOB_SOL.into(),
            token: None,
            compute: None,
        }),
    };
    let built = world.order(&payload, chain_data);
    other.order = SigningOrder {
        request: ask.order.request,
        approvals: ask.order.approvals.clone(),
        ..built
    };
    let other = world.ask(other.order);
    world.refused(&other, &Class::WrongState, "request: ").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orchestrator__should_get_nothing_that_people_have_not_approved_ecdsa() {
    approvals(Curve::Secp256k1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orchestrator__should_get_nothing_that_people_have_not_approved_ed25519() {
    approvals(Curve::Ed25519).await;
}

/// An honest orchestrator learns who is missing, and the same request is signed afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster__should_say_whose_approval_a_signer_wants() {
    let world = world(Curve::Ed25519).await;
    let mut order = world.approved().order;
    let approvals = std::mem::take(&mut order.approvals);
    let sign = async |order: &SigningOrder| {
        let session = SessionId::from_random(random_16(&SystemEntropy));
        let scheme = Scheme::default_of(Curve::Ed25519);
        let cluster = &world.test.cluster;
        let holders = world.test.holders();
        let task = crate::support::task(scheme, session, &holders, 2, now_ms() + 30_000);
        cluster.sign(order, task).await
    };
    let fault = sign(&order).await.unwrap_err();
    assert_eq!(fault.code(), FaultCode::ApprovalsMissing, "{fault:?}");
    assert!(fault.message().contains(WANTS), "{fault:?}");
    let named = fault
        .message()
        .split("; ")
        .all(|part| part.ends_with(WANTS));
    assert!(named, "{fault:?}");
    // Each in a line of its own, for people.
    let lines = fault.lines();
    assert!(lines.lines().count() > 1, "{lines}");
    assert!(lines.lines().all(|it| it.ends_with(WANTS)), "{lines}");
    order.approvals = approvals;
    let signatures = sign(&order).await.unwrap();
    verify(&order, &signatures);
}

/// Six people, each with a key of another kind, all of whom have to approve.
async fn every_kind() -> ByzantineFixture {
    let passkeys = every_passkey().map(|passkey| passkey.line().line().unwrap());
    let keys = every_ssh_key().map(|key| key.line());
    let lines = passkeys.into_iter().chain(keys).enumerate();
    let people = lines.map(|(number, line)| {
        format!("[[approver]]\nname = \"person {number}\"\nkeys = [\"{line}\"]\n")
    });
    let people: String = people.collect();
    let names: Vec<String> = (0..6)
        .map(|number| format!("\"person {number}\""))
        .collect();
    let rule = format!("[[approval]]\nneeds = 6\nof = [{}]", names.join(", "));
    ByzantineFixture::start(Curve::Ed25519, &format!("{people}{rule}")).await
}

fn every_passkey() -> [TestPasskey; 2] {
    [TestPasskey::new("one", 1), TestPasskey::ed25519("other", 1)]
}

/// The last one is a client signer's.
fn every_ssh_key() -> [TestSshKey; 4] {
    let [plain, device, p256] = TestSshKind::ALL;
    // A key is one person's, whatever kind it is of.
    [(plain, 1), (device, 2), (p256, 3), (plain, 4)]
        .map(|(kind, number)| TestSshKey::new(kind, number))
}

/// Fields of approvals whose order, or repetition, says nothing else.
const SAME: [&str; 1] = ["order.approvals.given"];

/// Every field of every kind of proof, found in the order itself and changed in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orchestrator__should_get_nothing_by_changing_any_field_of_any_kind_of_approval() {
    let mut world = every_kind().await;
    let mut ask = world.honest();
    ask.order.approvals.most_fee = 10_000_000;
    ask.order.approvals.valid_until_ms = now_ms() + 600_000;
    let [one, other] = every_passkey();
    let [plain, device, p256, node] = every_ssh_key();
    // One of them approves others with the same gesture.
    let mut list = vec![[1; 32], [0xee; 32], id(&ask)];
    list.sort_unstable();
    let listed = other.assert(&list_challenge(&list).unwrap());
    let order = &ask.order;
    let given = vec![
        one.approve(order),
        GivenApproval {
            list,
            ..other.given(listed)
        },
        plain.approve(order),
        device.approve(order),
        p256.approve(order),
        node.approve_as_node(order),
    ];
    ask.order.approvals.given = given;
    let (changed, _) = mutations(EnvelopeKind::SigningOrder, &ask.body()).unwrap();
    let mut fields = BTreeSet::new();
    let of_approvals = changed.iter().filter(|it| {
        it.field.starts_with("order.approvals.") && !SAME.contains(&it.field.as_str())
    });
    let mut count = 0;
    for mutation in of_approvals {
        let said = world
            .refused_body(&ask, &mutation.body, &mutation.field)
            .await;
        for fault in said {
            assert_eq!(
                *fault.class(),
                Class::Invalid,
                "{}: {fault:?}",
                mutation.field
            );
        }
        fields.insert(mutation.field.clone());
        count += 1;
    }
    let proof = "order.approvals.given.*.proof";
    for field in [
        "order.approvals.most_fee".to_owned(),
        "order.approvals.valid_until_ms".to_owned(),
        "order.approvals.given.*.list".to_owned(),
        "order.approvals.given.*.list.*".to_owned(),
        format!("{proof}.WebAuthn.credential_id"),
        format!("{proof}.WebAuthn.assertion.authenticator_data"),
        format!("{proof}.WebAuthn.assertion.client_data_json"),
        format!("{proof}.WebAuthn.assertion.signature"),
        format!("{proof}.Ssh"),
        format!("{proof}.Node.node"),
        format!("{proof}.Node.signature"),
    ] {
        assert!(fields.contains(&field), "{field}: {fields:?}");
    }
    assert!(count > 120, "{count}");
    // Five of the six, no matter which one is missing.
    for missing in 0..6 {
        let mut five = ask.clone();
        five.order.approvals.given.remove(missing);
        let starts = "wants 6 of person 0, person 1";
        world.refused(&five, &Class::Invalid, starts).await;
    }
    world.signed(&ask).await;
}

/// A policy that has payments approved from some moment on.
struct LaterPolicy {
    begun: AtomicBool,
    check: PolicyCheck,
}

impl OrderCheck for LaterPolicy {
    fn check(
        &self,
        order: &SigningOrder,
        root: &RootKey,
        child: &ChildKey,
        now_ms: u64,
    ) -> Result<Vec<Spending>, Fault> {
        self.check.check(order, root, child, now_ms)
    }

    fn asks_approvals(&self, vault: VaultId) -> bool {
        self.begun.load(Ordering::Relaxed) && self.check.asks_approvals(vault)
    }
}

/// One approval would be good for two transactions, of two sets of signers without a node in common.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approvals__should_not_be_taken_where_two_sets_of_signers_could_use_one() {
    let line = passkeys()[0].line().line().unwrap();
    let policy = format!(
        "version = 2\nraw_signing = true\n[[approver]]\nname = \"treasurer\"\nkeys = [\"{line}\"]\n\
         [[approval]]\nneeds = 1\nof = [\"treasurer\"]\nkinds = [\"solanaSendNative\"]"
    );
    let check = Arc::new(LaterPolicy {
        begun: AtomicBool::new(false),
        check: PolicyCheck(Policy::parse(&policy).unwrap()),
    });
    let later = Arc::clone(&check) as Arc<dyn OrderCheck>;
    let mut world = ByzantineFixture::start_with(Curve::Ed25519, 4, later).await;
    check.begun.store(true, Ordering::Relaxed);
    let why = "threshold: with 2 of 4 signers one approval could be used for two transactions";
    // Seen as soon as one is wanted, and when it is there.
    let mut ask = world.honest();
    world.refused(&ask, &Class::Invalid, why).await;
    ask.order.approvals.valid_until_ms = now_ms() + 600_000;
    ask.order.approvals.most_fee = 10_000_000;
    ask.order.approvals.given = vec![passkeys()[0].approve(&ask.order)];
    world.refused(&ask, &Class::Invalid, why).await;
    // No such key is made, and what nobody has to approve is signed.
    let order = world.test.keygen_order(Curve::Secp256k1, 2);
    let fault = world.test.cluster.keygen(&order).await.unwrap_err();
    assert!(fault.message().contains(why), "{fault:?}");
    let free = world
        .test
        .raw_message(&world.root, 5, b"what nobody approves");
    let free = world.ask(free);
    world.signed(&free).await;
}

/// Has the cluster sign with these nodes only.
pub(super) async fn sign_with(
    world: &ByzantineFixture,
    order: &SigningOrder,
    signers: &[NodeId],
    patience_ms: u64,
) -> Result<VerifiedSignatures, Fault> {
    let session = SessionId::from_random(random_16(&SystemEntropy));
    let scheme = Scheme::default_of(world.root.curve);
    let deadline_ms = now_ms() + patience_ms;
    let task = task(scheme, session, signers, 2, deadline_ms);
    world.test.cluster.sign(order, task).await
}

/// New holders do not know what the old ones have signed. Of nodes 0 to 2 the first two sign an approved payment, and node
/// 3 takes the place of node 0: nodes 2 and 3 have signed nothing yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approvals__should_not_be_taken_again_by_the_holders_after_a_reshare() {
    let line = passkeys()[0].line().line().unwrap();
    let policy = format!(
        "version = 2\n[[approver]]\nname = \"treasurer\"\nkeys = [\"{line}\"]\n\
         [[approval]]\nneeds = 1\nof = [\"treasurer\"]"
    );
    let check = Arc::new(PolicyCheck(Policy::parse(&policy).unwrap()));
    let mut world = ByzantineFixture::start_among(Curve::Ed25519, 4, 3, check).await;
    let ids = world.test.holders();
    let approved = |world: &ByzantineFixture, valid_ms: u64| {
        let mut order = world.transfer(false, 5, 1);
        order.approvals.most_fee = 10_000_000;
        order.approvals.valid_until_ms = now_ms() + valid_ms;
        order.approvals.given = vec![passkeys()[0].approve(&order)];
        order
    };
    let first = approved(&world, DAY_MS - 60_000);
    let signed = sign_with(&world, &first, &ids[..2], 60_000).await;
    verify(&first, &signed.unwrap());

    let mut reshare = world.test.refresh_order(&world.root, 0, 2);
    reshare.old.holders = ids[..3].to_vec();
    reshare.new.holders = ids[1..].to_vec();
    let proof = world.test.cluster.reshare(&reshare).await.unwrap();
    world.test.cluster.activate(&reshare, &proof).await.unwrap();
    world.epoch = 1;

    // The same approved payment, as another transaction.
    let mut second = first.clone();
    let blockhash = ChainData::Solana(solana::ChainData {
        recent_blockhash: EVE_SOL.into(),
        token: None,
        compute: None,
    });
    let other = world.order(&world.payload(false, 5, 1), blockhash);
    second.chain_data = other.chain_data;
    second.unsigned = other.unsigned;
    second.inputs = other.inputs;
    second.epoch = 1;
    let refused = |outcome: Result<VerifiedSignatures, Fault>| {
        let fault = outcome.expect_err("one approval was good for two transactions");
        assert_eq!(fault.code(), FaultCode::ApprovalsMissing, "{fault:?}");
        let why = "wants approvals that are valid until ";
        assert!(fault.message().contains(why), "{fault:?}");
    };
    refused(sign_with(&world, &second, &ids[2..], 8_000).await);
    // Also after a restart, and for what is approved today but not for long enough.
    for place in 2..4 {
        world.test.stop_node(place).await;
        world.test.start_node(place);
    }
    world.test.until_live(4).await;
    let short = approved(&world, DAY_MS - 60_000);
    refused(sign_with(&world, &short, &ids[2..], 20_000).await);

    // A refresh changes nothing about it.
    let generation = |epoch| Generation {
        epoch,
        ..reshare.new.clone()
    };
    let refresh = ReshareOrder {
        session: SessionId::from_random(random_16(&SystemEntropy)),
        old: generation(1),
        dealers: ids[2..].to_vec(),
        new: generation(2),
        issued_at_ms: now_ms(),
        expires_at_ms: now_ms() + 120_000,
        ..reshare.clone()
    };
    let proof = world.test.cluster.reshare(&refresh).await.unwrap();
    world.test.cluster.activate(&refresh, &proof).await.unwrap();
    second.epoch = 2;
    refused(sign_with(&world, &second, &ids[2..], 8_000).await);
}
