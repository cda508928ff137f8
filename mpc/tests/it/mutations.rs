//! A byzantine orchestrator, whose key every node pins, changes every field of every order and message,
//! one at a time, and every field of the envelopes. The fields are found in the messages themselves.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::life::world::{LifecycleFixture, session};
use crate::support::{SystemEntropy, TestBus, announcement, now_ms, verify};
use crate::words::{self, OrderReply};
use age::x25519::Identity;
use covault_core::{
    attest::{AttestOrder, AttestedAddress},
    derive::{KeyPath, RootKey},
    ids::SessionId,
    networks::Network,
    order::{BackupOrder, NodeId, SigningOrder},
    signature::Curve,
};
use covault_mpc::{
    bus::{Bus, BusAddress, BusError, double::BusDouble, memory::MemoryBus},
    envelope::{EVERYONE, Envelope, EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
    mutate::{Mutation, mutations},
};
use tokio::time::{sleep, timeout};

/// What a node that was told so signs, too: nothing of what is signed, for which key, or by whom it may
/// be, is in these. Whatever comes of them has to be the honest order's signature.
const HARMLESS: [&str; 13] = [
    // Another attempt, or another name for the same request: the digest is the same.
    "envelope.attempt",
    "envelope.round",
    "envelope.sequence",
    "order.request",
    // Times, within what clocks may differ and orders may live.
    "order.issued_at_ms",
    "order.expires_at_ms",
    "sent_at_ms",
    "attempt_ms",
    // Other holders of the key, or in another order, with nonces for them.
    "signers",
    "nonces",
    "nonces.*",
    // What approvals are bounded by, where none is given and these nodes ask for none.
    "order.approvals.most_fee",
    "order.approvals.valid_until_ms",
];

/// Activations that say the same: another time, or the same statements in another order.
const SAME_ACTIVATION: [&str; 2] = ["sent_at_ms", "proof"];

const ORDERS: [EnvelopeKind; 6] = [
    EnvelopeKind::SigningOrder,
    EnvelopeKind::KeygenOrder,
    EnvelopeKind::ReshareOrder,
    EnvelopeKind::Activate,
    EnvelopeKind::BackupOrder,
    EnvelopeKind::AttestOrder,
];

/// A bus that keeps an honest orchestrator's orders back, and notes what nodes answer.
#[derive(Default)]
struct OrderHoldingBus {
    bus: Arc<MemoryBus>,
    holds: Mutex<Option<EnvelopeKind>>,
    held: Mutex<Vec<Envelope>>,
    replies: Mutex<Vec<Envelope>>,
}

impl BusDouble for OrderHoldingBus {
    fn inner(&self) -> &dyn Bus {
        &*self.bus
    }

    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        let envelope = Envelope::parse(message.clone()).unwrap();
        let kind = envelope.header.kind;
        if *self.holds.lock().unwrap() == Some(kind) {
            self.held.lock().unwrap().push(envelope);
            return Ok(());
        }
        if kind == EnvelopeKind::Reply {
            self.replies.lock().unwrap().push(envelope);
        }
        self.bus.publish(to, message)
    }
}

/// An order as the honest orchestrator would have sent it, to whom.
struct HonestOrder {
    header: EnvelopeHeader,
    body: Vec<u8>,
    to: Vec<NodeId>,
}

/// What was sent, by the session that the envelope named.
#[derive(Default)]
struct SentOrders {
    /// The changed field; the honest order, where it was one to sign; what was sent.
    by_session: BTreeMap<SessionId, (String, Option<SigningOrder>, Vec<u8>)>,
    /// Kind and field.
    fields: BTreeSet<(String, String)>,
    messages: usize,
    /// Fields that have one value only.
    without: BTreeSet<(String, String)>,
}

struct MutationAttack {
    life: LifecycleFixture,
    tap: Arc<OrderHoldingBus>,
    codec: EnvelopeCodec,
    sent: SentOrders,
    backups: Identity,
}

/// The outcome.
#[derive(Default)]
struct Findings {
    /// Of something that no honest order says.
    signatures: usize,
    /// Of an honest order, with something changed that does not matter.
    harmless: usize,
    /// Stated, and not the vault's; and keys that the nodes do not agree on.
    addresses: usize,
    /// Addresses that were stated.
    stated: usize,
    shares: usize,
}

type Files = Vec<BTreeMap<String, Vec<u8>>>;

impl MutationAttack {
    async fn start() -> Self {
        let tap = Arc::new(OrderHoldingBus::default());
        let medium = TestBus::Other(Arc::clone(&tap) as Arc<dyn Bus>);
        let mut life = LifecycleFixture::start_on(medium, Curve::Ed25519, 3, 3, 2).await;
        let backups = Identity::generate();
        for place in 0..3 {
            life.test.nodes[place].backup_recipients = vec![backups.to_public().to_string()];
            life.restart(place).await;
        }
        let codec = EnvelopeCodec::new(
            Arc::clone(&life.test.orchestrator),
            Arc::clone(&tap.bus) as Arc<dyn Bus>,
            Arc::new(SystemEntropy),
        );
        Self {
            life,
            tap,
            codec,
            sent: SentOrders::default(),
            backups,
        }
    }

    /// What an honest orchestrator sends, which no node gets.
    async fn honest<T>(&self, kind: EnvelopeKind, doing: impl Future<Output = T>) -> HonestOrder {
        *self.tap.holds.lock().unwrap() = Some(kind);
        let held = async {
            let mut all = Vec::new();
            loop {
                // All go out together.
                sleep(Duration::from_millis(1)).await;
                let held = std::mem::take(&mut *self.tap.held.lock().unwrap());
                if held.is_empty() && !all.is_empty() {
                    return all;
                }
                all.extend(held);
            }
        };
        let held = tokio::select! {
            held = timeout(Duration::from_secs(30), held) => held.unwrap(),
            _ = doing => panic!("it has ended without an order"),
        };
        *self.tap.holds.lock().unwrap() = None;
        let to: BTreeSet<NodeId> = held.iter().map(|envelope| envelope.header.to).collect();
        let header = held[0].header;
        let recipient = self.life.test.nodes.iter();
        let recipient = recipient
            .map(|node| &node.identity)
            .find(|it| it.id() == header.to);
        let reader = EnvelopeCodec::new(
            Arc::clone(recipient.unwrap()),
            MemoryBus::new(),
            Arc::new(SystemEntropy),
        );
        let body = reader.open(&held[0]).unwrap().body.to_vec();
        HonestOrder {
            header,
            body,
            to: to.into_iter().collect(),
        }
    }

    fn send(
        &mut self,
        kind: EnvelopeKind,
        field: &str,
        honest: &HonestOrder,
        header: EnvelopeHeader,
        body: &[u8],
        order: Option<&SigningOrder>,
    ) {
        let known = (field.to_owned(), order.cloned(), body.to_vec());
        self.sent.by_session.insert(header.session, known);
        self.sent
            .fields
            .insert((format!("{kind:?}"), field.to_owned()));
        self.sent.messages += 1;
        for to in &honest.to {
            let to = if field == "envelope.to" {
                header.to
            } else {
                *to
            };
            self.codec
                .send(EnvelopeHeader { to, ..header }, body)
                .unwrap();
        }
    }

    fn bodies(&mut self, honest: &HonestOrder) -> Vec<Mutation> {
        let kind = honest.header.kind;
        let (made, without) = mutations(kind, &honest.body).unwrap();
        let without = without
            .into_iter()
            .map(|field| (format!("{kind:?}"), field));
        self.sent.without.extend(without);
        made
    }

    /// How many ways there are to change such a message.
    fn ways(&mut self, honest: &HonestOrder) -> usize {
        headers(honest).len() + self.bodies(honest).len()
    }

    /// Changes it in the way of this number; false when there are fewer.
    fn change(&mut self, way: usize, honest: &HonestOrder, order: Option<&SigningOrder>) -> bool {
        let kind = honest.header.kind;
        let headers = headers(honest);
        if let Some((field, header)) = headers.get(way) {
            self.send(kind, field, honest, *header, &honest.body, order);
            return true;
        }
        let bodies = self.bodies(honest);
        let Some(Mutation { field, body }) = bodies.get(way - headers.len()) else {
            return false;
        };
        self.send(kind, field, honest, honest.header, body, order);
        true
    }

    fn files(&self) -> Files {
        let nodes = self.life.test.nodes.iter();
        nodes
            .map(|node| {
                let shares = fs::read_dir(node.folder.join("shares")).unwrap();
                let shares = shares.map(|entry| entry.unwrap());
                shares
                    .map(|entry| {
                        let name = entry.file_name().into_string().unwrap();
                        (name, fs::read(entry.path()).unwrap_or_default())
                    })
                    .collect()
            })
            .collect()
    }

    /// How many share files are gone or have changed.
    fn erased(&self, before: &Files) -> usize {
        let now = self.files();
        let nodes = before.iter().zip(&now);
        nodes
            .map(|(before, now)| {
                let gone = before
                    .iter()
                    .filter(|(name, share)| now.get(*name) != Some(share));
                gone.count()
            })
            .sum()
    }

    fn reply(&self, envelope: &Envelope) -> OrderReply {
        let reader = EnvelopeCodec::new(
            Arc::clone(&self.life.test.orchestrator),
            MemoryBus::new(),
            Arc::new(SystemEntropy),
        );
        words::read(&reader.open(envelope).unwrap().body).unwrap()
    }

    /// What nodes have answered: signatures of what no honest order says, addresses that the nodes do
    /// not agree on, and shares in a form that others could read.
    fn judge(&self) -> Findings {
        let mut found = Findings::default();
        let mut roots: BTreeMap<SessionId, RootKey> = BTreeMap::new();
        for envelope in self.tap.replies.lock().unwrap().iter() {
            if envelope.header.to != self.codec.id() {
                // Nodes answer each other, too.
                continue;
            }
            let session = envelope.header.session;
            let Some((field, order, body)) = self.sent.by_session.get(&session) else {
                continue;
            };
            match self.reply(envelope) {
                OrderReply::Signed(signed) => {
                    let harmless = HARMLESS.contains(&field.as_str());
                    match order {
                        Some(order) if harmless => {
                            verify(order, &signed);
                            found.harmless += 1;
                        }
                        _ => {
                            eprintln!("signed with another {field}");
                            found.signatures += 1;
                        }
                    }
                }
                OrderReply::KeyMade { root, .. } => {
                    let known = roots.entry(session).or_insert_with(|| root.clone());
                    found.addresses += usize::from(*known != root);
                }
                OrderReply::Attested(_) => {
                    let (asked, _): (AttestOrder, u64) = bcs::from_bytes(body).unwrap();
                    let vault = self.life.test.vault;
                    for statement in asked.statements() {
                        let derived = statement.verify(&self.life.root).is_ok();
                        let of = &self.life.generation;
                        let same = statement.vault == vault
                            && statement.threshold == of.threshold
                            && statement.holders == of.holders;
                        found.addresses += usize::from(!derived || !same);
                        found.stated += 1;
                    }
                }
                OrderReply::Backup(sealed) => {
                    found.shares += usize::from(age::decrypt(&self.backups, &sealed).is_err());
                }
                _ => {}
            }
        }
        found
    }
}

/// The honest envelope with another value in each field. Who sent it is signed for.
fn headers(honest: &HonestOrder) -> Vec<(String, EnvelopeHeader)> {
    let header = honest.header;
    let mut all: Vec<(&str, EnvelopeHeader)> = Vec::new();
    for kind in ORDERS.into_iter().chain([
        EnvelopeKind::Protocol,
        EnvelopeKind::Nonces,
        EnvelopeKind::Announcement,
    ]) {
        if kind != header.kind {
            all.push(("kind", EnvelopeHeader { kind, ..header }));
        }
    }
    let (epoch, attempt) = (header.epoch + 1, header.attempt + 1);
    let (round, sequence) = (header.round + 1, header.sequence + 1);
    all.push(("epoch", EnvelopeHeader { epoch, ..header }));
    all.push((
        "session",
        EnvelopeHeader {
            session: session(),
            ..header
        },
    ));
    all.push(("attempt", EnvelopeHeader { attempt, ..header }));
    all.push(("round", EnvelopeHeader { round, ..header }));
    all.push(("sequence", EnvelopeHeader { sequence, ..header }));
    let to = honest.to.iter().rev().copied().find(|to| *to != header.to);
    all.push((
        "to",
        EnvelopeHeader {
            to: to.unwrap_or(EVERYONE),
            ..header
        },
    ));
    all.into_iter()
        .map(|(field, header)| (format!("envelope.{field}"), header))
        .collect()
}

/// Fewer statements are not the same.
fn says_the_same(honest: &HonestOrder, field: &str, body: &[u8]) -> bool {
    SAME_ACTIVATION.contains(&field) && body.len() >= honest.body.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn byzantine_orchestrator__should_get_nothing_by_changing_any_field_of_any_message() {
    let mut attack = MutationAttack::start().await;
    let before = attack.files();

    // Each order to sign is a new one: a session that was run once would hide what the next could do.
    for way in 0.. {
        let order = attack.life.test.order(&attack.life.root);
        let signing = attack.life.test.sign(&order, 2, 30_000);
        let honest = attack.honest(EnvelopeKind::SigningOrder, signing).await;
        if !attack.change(way, &honest, Some(&order)) {
            break;
        }
    }
    for way in 0.. {
        let order = attack.life.test.keygen_order(Curve::Ed25519, 2);
        let keygen = attack.life.test.cluster.keygen(&order);
        let honest = attack.honest(EnvelopeKind::KeygenOrder, keygen).await;
        if !attack.change(way, &honest, None) {
            break;
        }
    }
    for way in 0.. {
        let order = BackupOrder {
            vault: attack.life.test.vault,
            session: session(),
            root_public_key: attack.life.root.public_key.clone(),
            epoch: 0,
            holders: attack.life.generation.holders.clone(),
            recipients: vec![attack.backups.to_public().to_string()],
            issued_at_ms: now_ms(),
            expires_at_ms: now_ms() + 60_000,
        };
        let backup = attack.life.test.cluster.backup(&order);
        let honest = attack.honest(EnvelopeKind::BackupOrder, backup).await;
        if !attack.change(way, &honest, None) {
            break;
        }
    }
    for way in 0.. {
        let path = KeyPath::of_wallet(Network::Solana, 3).unwrap();
        let child = attack.life.root.child(&path).unwrap();
        let address = Network::Solana.rules().address(&child.public_key).unwrap();
        let order = AttestOrder {
            session: session(),
            vault: attack.life.test.vault,
            epoch: 0,
            root_public_key: attack.life.root.public_key.clone(),
            threshold: 2,
            holders: attack.life.test.holders(),
            confirmed: attack.life.test.confirmed(&attack.life.root),
            addresses: vec![AttestedAddress {
                path,
                network: Network::Solana,
                address,
                reference: "order 5".into(),
            }],
        };
        let holders = attack.life.test.holders();
        let cluster = Arc::clone(&attack.life.test.cluster);
        let attest = cluster.attest(&order, &holders, 2, Duration::from_secs(30));
        let honest = attack.honest(EnvelopeKind::AttestOrder, attest).await;
        if !attack.change(way, &honest, None) {
            break;
        }
    }
    // NonceNews::Ask, and an announcement.
    let ask = (attack.life.root.public_key.clone(), 0_u32);
    let ask = [&[2][..], &bcs::to_bytes(&(ask, 0_u64)).unwrap()].concat();
    let announced = announcement("node-1", now_ms());
    for (kind, body) in [
        (EnvelopeKind::Nonces, ask),
        (EnvelopeKind::Announcement, announced),
    ] {
        let header = EnvelopeHeader::outside_sessions(kind, attack.codec.id(), attack.life.id(0));
        let to = attack.life.test.holders();
        let honest = HonestOrder { header, body, to };
        for way in 0..attack.ways(&honest) {
            attack.change(way, &honest, None);
        }
    }
    for way in 0.. {
        let order = attack.life.order(&[0, 1], &[0, 1, 2], 2);
        let reshare = attack.life.test.cluster.reshare(&order);
        let honest = attack.honest(EnvelopeKind::ReshareOrder, reshare).await;
        if !attack.change(way, &honest, None) {
            break;
        }
    }
    // A generation that is really prepared, and everything that could be said of it but the truth.
    let order = attack.life.order(&[0, 1], &[0, 1, 2], 2);
    let proof = attack.life.prepare(&order).await;
    let prepared = attack.files();
    let activate = attack.life.test.cluster.activate(&order, &proof);
    let honest = attack.honest(EnvelopeKind::Activate, activate).await;
    let same: Vec<Mutation> = attack.bodies(&honest);
    for way in 0..headers(&honest).len() {
        // It names a place among the node's messages alone.
        if ![
            "envelope.attempt",
            "envelope.round",
            "envelope.sequence",
            "envelope.to",
        ]
        .contains(&headers(&honest)[way].0.as_str())
        {
            attack.change(way, &honest, None);
        }
    }
    for Mutation { field, body } in &same {
        if !says_the_same(&honest, field, body) {
            attack.send(
                EnvelopeKind::Activate,
                field,
                &honest,
                honest.header,
                body,
                None,
            );
        }
    }

    // Whatever they do with all this, they have done it by then.
    sleep(Duration::from_secs(5)).await;
    let Findings {
        signatures,
        harmless,
        addresses,
        stated,
        shares,
    } = attack.judge();
    let erasures = attack.erased(&before) + attack.erased(&prepared);
    let SentOrders {
        fields, messages, ..
    } = &attack.sent;
    eprintln!(
        "{} fields changed in {messages} ways: {signatures} signatures, {erasures} erasures, {addresses} \
         false addresses, {shares} shares; {harmless} signatures of honest orders, {stated} addresses \
         stated that are the vault's; fields that have one value only: {:?}",
        fields.len(),
        attack.sent.without
    );
    assert!(fields.len() >= 100, "{fields:?}");
    assert_eq!((signatures, erasures, addresses, shares), (0, 0, 0, 0));
    // An attack in which nothing is ever signed shows nothing.
    assert!(harmless > 5 && stated > 5, "{harmless} {stated}");

    // The nodes live, and it was not for another reason that they refused: the truth is done.
    attack.life.signs().await;
    for Mutation { field, body } in &same {
        if says_the_same(&honest, field, body) {
            attack.send(
                EnvelopeKind::Activate,
                field,
                &honest,
                honest.header,
                body,
                None,
            );
        }
    }
    // What nodes answer to these, of the same session, is no answer to what follows.
    sleep(Duration::from_secs(2)).await;
    attack
        .life
        .test
        .cluster
        .activate(&order, &proof)
        .await
        .unwrap();
    attack.life.generation = order.new;
    attack.life.signs().await;
    assert_eq!(attack.judge().signatures, 0);
}
