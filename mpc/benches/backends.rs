//! What keys and signatures cost in CPU time, each backend beside a plain key of the same curve.
//!
//! All parties run one after the other in this process: what is measured is the sum over them, and
//! without network, envelopes and disk. `just bench-mpc`. The table at the end is of medians.

#![allow(missing_docs, clippy::print_stdout)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods
)]

use std::{collections::BTreeMap, hint::black_box, path::PathBuf, sync::Arc, time::Duration};

use covault_core::testing::SystemEntropy;
use covault_core::{
    amount::U256,
    approval::{
        Approval, ApprovalProof, ApprovalTerms, ApproverKey, Approvers, GivenApproval,
        MAX_APPROVALS, OrderApprovals,
        testing::{TestPasskey, TestSshKey, TestSshKind},
    },
    attest::AddressStatement,
    derive::{KeyPath, RootKey},
    ids::{RequestId, VaultId},
    networks::{ChainData, Network, Payload, WireKind, evm},
    order::{NodeId, SigningOrder},
    schema::wire,
    scheme::Scheme,
    signature::{Curve, Signature},
};
use covault_mpc::backend::{
    Commitments, Dealer, KeyShare, KeygenSetup, OutgoingMessage, PreprocessedNonce, ReshareSetup,
    Session, SignSetup, Signer, SignerIndex, of,
};
use covault_mpc::{
    node::{OrderCheck as _, PolicyCheck},
    policy::Policy,
};
use criterion::{
    BatchSize, SamplingMode,
    measurement::{Measurement, ValueFormatter, WallTime},
};
use rustix::time::{ClockId, clock_gettime};
use zeroize::Zeroizing;

/// Measures the CPU time of this process, so that a busy machine does not look like a slow one.
struct CpuTime(WallTime);

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        let now = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(
            now.tv_sec.try_into().unwrap(),
            now.tv_nsec.try_into().unwrap(),
        )
    }

    fn end(&self, began: Duration) -> Duration {
        self.start() - began
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        self.0.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        self.0.formatter()
    }
}

type Criterion = criterion::Criterion<CpuTime>;
type Parties<T> = BTreeMap<SignerIndex, Box<dyn Session<T>>>;

/// The first step of each, where a signature's nonces are made and committed to: what they send,
/// and what comes of those who are done by then.
fn commit<T>(
    parties: &mut Parties<T>,
) -> (
    Vec<(SignerIndex, OutgoingMessage)>,
    BTreeMap<SignerIndex, T>,
) {
    let mut queue = Vec::new();
    let mut outcomes = BTreeMap::new();
    for (me, party) in parties {
        let output = party.start(&SystemEntropy).unwrap();
        queue.extend(output.send.into_iter().map(|message| (*me, message)));
        outcomes.extend(output.done.map(|done| (*me, done)));
    }
    (queue, outcomes)
}

fn finish<T>(mut parties: Parties<T>) -> BTreeMap<SignerIndex, T> {
    let (mut queue, mut outcomes) = commit(&mut parties);
    while !queue.is_empty() {
        for (from, message) in std::mem::take(&mut queue) {
            let to = message.to;
            if outcomes.contains_key(&to) {
                continue;
            }
            let party = parties.get_mut(&to).unwrap();
            let output = party.receive(from, message.round, message.body);
            let output = output.unwrap_or_else(|abort| panic!("{abort:?}"));
            queue.extend(output.send.into_iter().map(|message| (to, message)));
            outcomes.extend(output.done.map(|done| (to, done)));
        }
    }
    assert_eq!(outcomes.len(), parties.len());
    outcomes
}

/// Known to everybody; a fourth and a fifth party use those of the first two again.
fn primes(party: SignerIndex) -> Zeroizing<Vec<u8>> {
    let number = (party - 1) % 3 + 1;
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!(
        "tests/fixtures/cggmp24-primes-for-tests-only-{number}.json"
    ));
    let set = std::fs::read(path).unwrap();
    Zeroizing::new([&[1], set.trim_ascii()].concat())
}

fn keygen(scheme: Scheme, threshold: u8, parties: u8) -> Parties<KeyShare> {
    (1..=parties)
        .map(|me| {
            let setup = KeygenSetup {
                context: [1; 32],
                me,
                threshold,
                parties,
            };
            let primes = Box::new(move || Ok(primes(me)));
            (me, of(scheme).unwrap().keygen_with(setup, primes).unwrap())
        })
        .collect()
}

/// New shares for the same holders, dealt by the first of them.
fn refresh(
    scheme: Scheme,
    shares: &BTreeMap<SignerIndex, KeyShare>,
    threshold: u8,
) -> Parties<Option<KeyShare>> {
    let backend = of(scheme).unwrap();
    let dealers: Vec<Dealer> = (1..=threshold)
        .map(|index| Dealer {
            party: index,
            old: index,
        })
        .collect();
    shares
        .iter()
        .map(|(me, share)| {
            let setup = ReshareSetup {
                context: [4; 32],
                me: *me,
                root_public_key: share.root.public_key.clone(),
                holders: u8::try_from(shares.len()).unwrap(),
                threshold,
                dealers: dealers.clone(),
            };
            let dealt = (*me <= threshold).then(|| backend.plain(share).unwrap());
            (*me, backend.reshare(setup, dealt).unwrap())
        })
        .collect()
}

type Signers = BTreeMap<SignerIndex, Arc<dyn Signer>>;

fn sign_setup(scheme: Scheme, threshold: u8) -> SignSetup {
    SignSetup {
        context: [2; 32],
        signers: (1..=threshold).collect(),
        path: KeyPath::new(vec![0, 1]).unwrap(),
        message: match scheme.curve() {
            Curve::Secp256k1 => vec![3; 32],
            Curve::Ed25519 => vec![3; 200],
        },
    }
}

fn sign(scheme: Scheme, signers: &Signers, threshold: u8) -> Parties<Option<Signature>> {
    let party = |me| {
        (
            me,
            signers[&me].sign(sign_setup(scheme, threshold)).unwrap(),
        )
    };
    (1..=threshold).map(party).collect()
}

/// What is done when nobody waits for a signature: a nonce of each signer, and everybody's
/// commitments as points.
fn make_ahead(
    signers: &Signers,
    threshold: u8,
) -> (
    Vec<PreprocessedNonce>,
    BTreeMap<SignerIndex, Arc<Commitments>>,
) {
    let made: Vec<PreprocessedNonce> = (1..=threshold)
        .map(|me| signers[&me].make_nonce(&SystemEntropy).unwrap().unwrap())
        .collect();
    let commitments = (1..).zip(&made).map(|(me, nonce)| {
        let commitments = Commitments::parse(nonce.commitments.clone()).unwrap();
        (me, Arc::new(commitments))
    });
    let commitments = commitments.collect();
    (made, commitments)
}

/// A signature in one round, with nonces of [`make_ahead`].
fn sign_preprocessed(
    scheme: Scheme,
    signers: &Signers,
    (made, commitments): (
        Vec<PreprocessedNonce>,
        BTreeMap<SignerIndex, Arc<Commitments>>,
    ),
) -> Parties<Option<Signature>> {
    let threshold = u8::try_from(made.len()).unwrap();
    let party = |(me, own)| {
        let mut peers = commitments.clone();
        peers.remove(&me);
        let session = signers[&me].sign_preprocessed(sign_setup(scheme, threshold), own, peers);
        (me, session.unwrap())
    };
    (1..).zip(made).map(party).collect()
}

fn bench(criterion: &mut Criterion, scheme: Scheme, threshold: u8, parties: u8) -> Duration {
    let slow = scheme == Scheme::Cggmp24;
    let cpu = CpuTime(WallTime);
    let began = cpu.start();
    let made = finish(keygen(scheme, threshold, parties));
    let once = cpu.end(began);
    let mut group = criterion.benchmark_group(name(scheme, threshold, parties));
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    if !slow {
        group.bench_function("keygen", |bencher| {
            bencher.iter_batched(
                || keygen(scheme, threshold, parties),
                finish,
                BatchSize::PerIteration,
            );
        });
    }
    // Its shares have no refresh.
    if !slow {
        group.bench_function("refresh", |bencher| {
            bencher.iter_batched(
                || refresh(scheme, &made, threshold),
                finish,
                BatchSize::PerIteration,
            );
        });
    }
    let signers: Signers = made
        .iter()
        .map(|(index, share)| (*index, of(scheme).unwrap().open(share).unwrap()))
        .collect();
    let preprocess = signers[&1].makes_nonces();
    if preprocess {
        group.sample_size(100);
    }
    let fresh = || sign(scheme, &signers, threshold);
    group.bench_function("commit", |bencher| {
        bencher.iter_batched_ref(fresh, commit, BatchSize::PerIteration);
    });
    group.bench_function("sign", |bencher| {
        bencher.iter_batched(fresh, finish, BatchSize::PerIteration);
    });
    if preprocess {
        group.bench_function("make-ahead", |bencher| {
            bencher.iter(|| make_ahead(&signers, threshold));
        });
        group.bench_function("sign-ahead", |bencher| {
            bencher.iter_batched(
                || make_ahead(&signers, threshold),
                |made| finish(sign_preprocessed(scheme, &signers, made)),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
    once
}

fn plain(criterion: &mut Criterion) {
    use ed25519_dalek::Signer as _;
    use k256::ecdsa::signature::hazmat::PrehashSigner as _;
    let mut group = criterion.benchmark_group("plain");
    let key = k256::ecdsa::SigningKey::from_slice(&[7; 32]).unwrap();
    group.bench_function("k256", |bencher| {
        bencher
            .iter(|| -> k256::ecdsa::Signature { key.sign_prehash(black_box(&[3; 32])).unwrap() });
    });
    let key = ed25519_dalek::SigningKey::from_bytes(&[7; 32]);
    group.bench_function("ed25519-dalek", |bencher| {
        bencher.iter(|| key.sign(black_box(&[3; 200])));
    });
    group.finish();
}

/// What a node does for one address: it derives the address itself, and signs for it.
fn addresses(criterion: &mut Criterion) {
    use ed25519_dalek::Signer as _;
    let identity = ed25519_dalek::SigningKey::from_bytes(&[7; 32]);
    let secp256k1 = k256::ecdsa::SigningKey::from_slice(&[7; 32]).unwrap();
    let mut group = criterion.benchmark_group("address");
    for network in Network::ALL {
        let curve = network.curve();
        let root = RootKey {
            curve,
            public_key: match curve {
                Curve::Ed25519 => identity.verifying_key().to_bytes().to_vec(),
                Curve::Secp256k1 => secp256k1.verifying_key().to_sec1_bytes().to_vec(),
            },
            chain_code: [3; 32],
        };
        let path = KeyPath::of_wallet(network, 7).unwrap();
        let child = root.child(&path).unwrap();
        let statement = AddressStatement {
            vault: VaultId::from_random([1; 16]),
            root_public_key: root.public_key.clone(),
            path,
            network,
            address: network.rules().address(&child.public_key).unwrap(),
            reference: "customer 7".to_owned(),
            threshold: 2,
            holders: [1, 2, 3].map(|node| NodeId([node; 32])).to_vec(),
        };
        group.bench_function(network.to_wire().as_str_name(), |bencher| {
            bencher.iter(|| {
                black_box(&statement).verify(&root).unwrap();
                identity.sign(statement.text().as_bytes())
            });
        });
    }
    group.finish();
}

const APPROVERS: [&str; 4] = [
    "passkeys ES256",
    "passkeys Ed25519",
    "sk-ssh-ed25519",
    "sk-ecdsa-sha2-nistp256",
];

const POLICIES: [&str; 2] = ["no approvals", "approvals above more than it is"];

/// What a signer checks of a transfer that needs no approval: with a policy that has no rule of approval, and with one
/// that does not apply. A signature costs its line below besides; the transfer stands for one of either curve.
fn policies(criterion: &mut Criterion) {
    let key = k256::ecdsa::SigningKey::from_slice(&[7; 32]).unwrap();
    let root = RootKey {
        curve: Curve::Secp256k1,
        public_key: key.verifying_key().to_sec1_bytes().to_vec(),
        chain_code: [3; 32],
    };
    let (network, path) = (Network::Evm, KeyPath::of_wallet(Network::Evm, 7).unwrap());
    let child = root.child(&path).unwrap();
    let address = network.rules().address(&child.public_key).unwrap();
    let payload = Payload::parse(&WireKind::EvmSendNative(wire::EvmSendNative {
        chain_id: 1,
        from: address.clone(),
        to: "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be".into(),
        value: "5".into(),
        ..Default::default()
    }))
    .unwrap();
    let chain_data = ChainData::Evm(evm::ChainData {
        nonce: Some(0),
        eip1559: true,
        fees: Some(evm::Fees {
            estimate_gas: 21_000,
            base_fee: 10,
            max_priority_fee: 1,
        }),
    });
    let rules = network.rules();
    let unsigned = rules
        .build(&payload, &chain_data, &child.public_key)
        .unwrap();
    let order = SigningOrder {
        request: RequestId::from_bytes([1; 16]),
        vault: VaultId::from_bytes([2; 16]),
        epoch: 0,
        network,
        root_public_key: root.public_key.clone(),
        path,
        public_key: child.public_key.clone(),
        address,
        payload: payload.encode(),
        chain_data,
        unsigned: unsigned.bytes,
        inputs: unsigned.signing,
        recipient_indices: Vec::new(),
        approvals: OrderApprovals::default(),
        issued_at_ms: 0,
        expires_at_ms: 2_000,
    };
    let mut approvals = String::new();
    for person in ["treasurer", "controller", "director"] {
        let line = TestPasskey::new(person, 1).line().line().unwrap();
        approvals.push_str(&format!(
            "[[approver]]\nname = \"{person}\"\nkeys = [\"{line}\"]\n"
        ));
    }
    approvals.push_str(
        "[[approval]]\nneeds = 2\nof = [\"treasurer\", \"controller\", \"director\"]\nabove = { asset = \"evm:1\", \
         per_request = \"1000000000000000000\", per_day = \"5000000000000000000\" }\n",
    );
    let texts = [
        "version = 2\n".to_owned(),
        format!("version = 2\n{approvals}"),
    ];
    let mut group = criterion.benchmark_group("policy");
    for (name, text) in POLICIES.iter().zip(texts) {
        let check = PolicyCheck(Policy::parse(&text).unwrap());
        group.bench_function(*name, |bencher| {
            bencher.iter(|| {
                check
                    .check(black_box(&order), &root, &child, 1_000)
                    .unwrap()
            });
        });
    }
    group.finish();
}

/// What a signer does with as many approvals as an order can carry, each kind of key alone.
fn approvals(criterion: &mut Criterion) {
    let terms = ApprovalTerms {
        most_fee: 7,
        valid_until_ms: 2_000,
    };
    let (vault, request) = (VaultId::from_bytes([1; 16]), RequestId::from_bytes([2; 16]));
    let network = Network::Evm;
    let approval = Approval::new(vault, &[3; 33], request, network, "a wallet", b"", terms);
    let id = approval.id().unwrap();
    let mut group = criterion.benchmark_group("approvals");
    for name in APPROVERS {
        let mut approvers = Approvers::default();
        let mut given = Vec::new();
        for number in 0..u8::try_from(MAX_APPROVALS).unwrap() {
            let passkey = |key: TestPasskey| {
                let line = key.line().line().unwrap();
                (line, key.given(key.assert(&id)))
            };
            let ssh = |kind| {
                let key = TestSshKey::new(kind, number);
                let (list, proof) = (Vec::new(), ApprovalProof::Ssh(key.sign(&id)));
                (key.line(), GivenApproval { list, proof })
            };
            let (line, one) = match name {
                "passkeys ES256" => passkey(TestPasskey::new("key", number)),
                "passkeys Ed25519" => passkey(TestPasskey::ed25519("key", number)),
                "sk-ssh-ed25519" => ssh(TestSshKind::DeviceEd25519),
                _ => ssh(TestSshKind::DeviceP256),
            };
            let person = format!("person {number}");
            approvers
                .add(&person, ApproverKey::parse(&line).unwrap())
                .unwrap();
            given.push(one);
        }
        let given = OrderApprovals {
            most_fee: terms.most_fee,
            valid_until_ms: terms.valid_until_ms,
            given,
        };
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let verified = approvers.verify(&approval, &given, U256::ZERO, 1_000);
                assert_eq!(black_box(verified).unwrap().approved.len(), MAX_APPROVALS);
            });
        });
    }
    group.finish();
}

fn name(scheme: Scheme, threshold: u8, parties: u8) -> String {
    format!("{}_{threshold}of{parties}", scheme.name())
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("criterion")
}

/// The median that criterion has just stored, in milliseconds.
fn median(group: &str, function: &str) -> Option<f64> {
    let path = folder()
        .join(group)
        .join(function)
        .join("new/estimates.json");
    let estimates: serde_json::Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    Some(estimates["median"]["point_estimate"].as_f64()? / 1e6)
}

fn main() {
    // Of an earlier run: they would look like this one's.
    let _ = std::fs::remove_dir_all(folder());
    let mut criterion = criterion::Criterion::default()
        .with_measurement(CpuTime(WallTime))
        .output_directory(&folder())
        .without_plots()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    plain(&mut criterion);
    addresses(&mut criterion);
    policies(&mut criterion);
    approvals(&mut criterion);
    let mut rows = Vec::new();
    for scheme in Scheme::ALL {
        if let Err(fault) = of(scheme) {
            println!("without {}: {}", scheme.name(), fault.message());
            continue;
        }
        for (threshold, parties) in [(2, 3), (3, 5)] {
            let once = bench(&mut criterion, scheme, threshold, parties);
            rows.push((scheme, threshold, parties, once));
        }
    }
    println!(
        "\nCPU over all parties, milliseconds; in brackets: as many plain signatures of that curve"
    );
    println!(
        "{:<24}{:>22}{:>22}{:>22}{:>22}{:>22}",
        "", "keygen", "refresh", "commit", "sign", "sign, made ahead"
    );
    for curve in ["k256", "ed25519-dalek"] {
        let ms = median("plain", curve).unwrap_or(f64::NAN);
        let (name, cell) = (format!("plain {curve}"), format!("{ms:.3} (1)"));
        println!("{name:<24}{:>22}{:>22}{:>22}{cell:>22}", "", "", "");
    }
    for network in Network::ALL {
        let name = network.to_wire().as_str_name();
        let plain = median("plain", "ed25519-dalek").unwrap_or(f64::NAN);
        let ms = median("address", name).unwrap_or(f64::NAN);
        let cell = format!("{ms:.3} ({:.1})", ms / plain);
        println!(
            "{:<46}{cell:>22}",
            format!("address of {name}, stated by a node")
        );
    }
    let without = median("policy", POLICIES[0]).unwrap_or(f64::NAN);
    for name in POLICIES {
        let ms = median("policy", name).unwrap_or(f64::NAN);
        let cell = format!("{ms:.4} ({:+.2} us)", (ms - without) * 1e3);
        println!("{:<52}{cell:>22}", format!("checks of a transfer, {name}"));
    }
    // What the goal is about: as much of a signer's part of a signature, whose CPU time two parties share.
    let more = median("policy", POLICIES[1]).unwrap_or(f64::NAN) - without;
    for (scheme, how) in [
        (Scheme::Dkls23, "sign"),
        (Scheme::FrostEd25519, "sign"),
        (Scheme::FrostEd25519, "sign-ahead"),
    ] {
        let Some(signature) = median(&name(scheme, 2, 3), how) else {
            continue;
        };
        let percent = more / (without + signature / 2.0) * 100.0;
        let row = format!("needs no approval, {} {how}", scheme.name());
        println!(
            "{row:<52}{:>22}",
            format!("{percent:+.2} % (goal: 1 at most)")
        );
    }
    for name in APPROVERS {
        let ms = median("approvals", name).unwrap_or(f64::NAN);
        let name = format!("{MAX_APPROVALS} approvals, {name}");
        println!("{name:<46}{:>22}", format!("{ms:.3}"));
    }
    for (scheme, threshold, parties, once) in rows {
        let plain = match scheme.curve() {
            Curve::Secp256k1 => "k256",
            Curve::Ed25519 => "ed25519-dalek",
        };
        let one = median("plain", plain).unwrap_or(f64::NAN);
        let group = name(scheme, threshold, parties);
        let cell = |function| match median(&group, function) {
            Some(ms) => format!("{ms:.3} ({:.0})", ms / one),
            // Too slow for ten of them.
            None if function == "keygen" => {
                let ms = once.as_secs_f64() * 1e3;
                format!("{ms:.0} ({:.0}), once", ms / one)
            }
            None => "-".to_owned(),
        };
        println!(
            "{:<24}{:>22}{:>22}{:>22}{:>22}{:>22}",
            format!("{} {threshold}-of-{parties}", scheme.name()),
            cell("keygen"),
            cell("refresh"),
            cell("commit"),
            cell("sign"),
            cell("sign-ahead")
        );
    }
}
