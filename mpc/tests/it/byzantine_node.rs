//! An orchestrator that nodes trust, and that lies: whatever it changes, no node uses its share,
//! and the refusal begins with the field.

mod approvals;
mod new_holders;
mod sweeps;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::support::{SystemEntropy, TestBus, TestCluster, now_ms, verify};
use covault_core::{
    approval::OrderApprovals,
    derive::{KeyPath, RootKey},
    fault::{Class, Fault},
    ids::{RequestId, SessionId, VaultId},
    networks::{ChainData, Network, Payload, WireKind, evm, solana},
    order::{KeygenOrder, NodeId, SigningOrder},
    port::random_16,
    schema::wire,
    scheme::Scheme,
    signature::{Curve, Signature},
};
use covault_mpc::{
    bus::{Bus, BusAddress, BusError, Subscription, double::BusDouble, memory::MemoryBus},
    envelope::{Envelope, EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
    identity::NodeIdentity,
    node::{OrderCheck, PolicyCheck},
    policy::Policy,
};
use serde::Deserialize;
use tokio::time::timeout;

const BOB: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
const EVE: &str = "0x37b5ba07902c51ef69dE0BbEa42A11a1A94e3ff6";
const BOB_SOL: &str = "CxvTXCepdDTH4PXUwU2Pf3FBi87L7VwXtzsgeAm1xVsS";
const EVE_SOL: &str = "4Nd1mBQtrMJVYVfKf2PJy9NZUZdTAsp7D4xWLs4gDB4T";
const BLOCKHASH: &str = "B6SMJHxrVJ3t3MXbarfPBmeBKs2k8EtpjZEo2uByrReR";
const PATIENCE: Duration = Duration::from_secs(60);

/// A bus that notes what goes over it.
struct RecordingBus {
    bus: Arc<MemoryBus>,
    sent: Mutex<Vec<(EnvelopeHeader, BusAddress, Vec<u8>)>>,
}

impl BusDouble for RecordingBus {
    fn inner(&self) -> &dyn Bus {
        &*self.bus
    }

    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        let header = Envelope::parse(message.clone()).unwrap().header;
        if header.kind != EnvelopeKind::Announcement {
            let noted = (header, to, message.clone());
            self.sent.lock().unwrap().push(noted);
        }
        self.bus.publish(to, message)
    }
}

impl RecordingBus {
    /// Messages of a kind in a session so far.
    fn count(&self, kind: EnvelopeKind, session: SessionId) -> usize {
        let sent = self.sent.lock().unwrap();
        sent.iter()
            .filter(|(header, ..)| header.kind == kind && header.session == session)
            .count()
    }
}

/// What a node answers, as the wire has it.
#[derive(Debug, Deserialize)]
#[allow(dead_code)]
enum WireReply {
    Signed(Vec<Signature>),
    KeyMade {
        root: RootKey,
        transcript: [u8; 32],
        signature: Vec<u8>,
    },
    Refused(Fault),
    Failed {
        culprits: Vec<NodeId>,
        missing: Vec<NodeId>,
        reason: String,
        evidence: String,
    },
}

/// What the orchestrator sends.
#[derive(Clone)]
struct ForgedRequest {
    order: SigningOrder,
    /// What the envelope says.
    session: SessionId,
    envelope_epoch: u32,
    /// What the order says.
    said_session: SessionId,
    attempt: u32,
    signers: Vec<NodeId>,
    /// Made ahead; empty: none.
    nonces: Vec<Vec<u64>>,
    sent_at_ms: u64,
}

impl ForgedRequest {
    /// The body of the envelope.
    fn body(&self) -> Vec<u8> {
        let fields = (
            &self.order,
            self.said_session,
            &self.signers,
            &self.nonces,
            20_000_u64,
            self.sent_at_ms,
            // Not traced.
            None::<()>,
        );
        bcs::to_bytes(&fields).unwrap()
    }
}

/// Three nodes, a key of theirs, and the identity that they trust in bad hands.
struct ByzantineFixture {
    test: TestCluster,
    tap: Arc<RecordingBus>,
    root: RootKey,
    /// Of the shares in use.
    epoch: u32,
    codec: EnvelopeCodec,
    inbox: Subscription,
}

impl ByzantineFixture {
    async fn start(curve: Curve, policy: &str) -> Self {
        let policy = format!("version = 2\n{policy}");
        let check = PolicyCheck(Policy::parse(&policy).unwrap());
        Self::start_with(curve, 3, Arc::new(check)).await
    }

    /// So many nodes with a key of which two sign.
    async fn start_with(curve: Curve, count: usize, check: Arc<dyn OrderCheck>) -> Self {
        Self::start_among(curve, count, count, check).await
    }

    /// So many nodes, of which the first ones have a key of which two sign.
    async fn start_among(
        curve: Curve,
        count: usize,
        holders: usize,
        check: Arc<dyn OrderCheck>,
    ) -> Self {
        let tap = Arc::new(RecordingBus {
            bus: MemoryBus::new(),
            sent: Mutex::default(),
        });
        let medium = TestBus::Other(Arc::clone(&tap) as Arc<dyn Bus>);
        let test = TestCluster::start_with(medium, count, check).await;
        test.until_live(count).await;
        let mut order = test.keygen_order(curve, 2);
        order.signers.truncate(holders);
        let root = test.cluster.keygen(&order).await.unwrap().root;
        let bus = test.medium.bus();
        let codec = EnvelopeCodec::new(
            Arc::clone(&test.orchestrator),
            Arc::clone(&bus),
            Arc::new(SystemEntropy),
        );
        let inbox = bus.subscribe(codec.id(), false).await.unwrap();
        Self {
            test,
            tap,
            root,
            epoch: 0,
            codec,
            inbox,
        }
    }

    /// Makes a new generation of shares: there is a stale epoch now.
    async fn refresh(&mut self) {
        let order = self.test.refresh_order(&self.root, self.epoch, 2);
        let proof = self.test.cluster.reshare(&order).await.unwrap();
        self.test.cluster.activate(&order, &proof).await.unwrap();
        self.epoch += 1;
    }

    fn network(&self) -> Network {
        match self.root.curve {
            Curve::Secp256k1 => Network::Evm,
            Curve::Ed25519 => Network::Solana,
        }
    }

    fn path(&self) -> KeyPath {
        KeyPath::of_wallet(self.network(), 5).unwrap()
    }

    fn public_key(&self) -> Vec<u8> {
        self.root.child(&self.path()).unwrap().public_key
    }

    fn address(&self) -> String {
        let chain = self.network().rules();
        chain.address(&self.public_key()).unwrap()
    }

    /// A transfer from the wallet; `eve` instead of Bob, of `amount`, on `chain_id` (EVM).
    fn payload(&self, eve: bool, amount: u64, chain_id: u64) -> Payload {
        self.payload_of(&self.address(), eve, amount, chain_id)
    }

    fn payload_of(&self, from: &str, eve: bool, amount: u64, chain_id: u64) -> Payload {
        let (from, value) = (from.to_owned(), amount.to_string());
        let kind = match self.network() {
            Network::Evm => WireKind::EvmSendNative(wire::EvmSendNative {
                chain_id,
                from,
                to: if eve { EVE } else { BOB }.into(),
                value,
                ..Default::default()
            }),
            _ => WireKind::SolanaSendNative(wire::SolanaSendNative {
                from,
                to: if eve { EVE_SOL } else { BOB_SOL }.into(),
                value,
                chain_id: 0,
                ..Default::default()
            }),
        };
        Payload::parse(&kind).unwrap()
    }

    fn chain_data(&self) -> ChainData {
        match self.network() {
            Network::Evm => ChainData::Evm(evm::ChainData {
                nonce: Some(4),
                eip1559: true,
                fees: Some(evm::Fees {
                    estimate_gas: 21_000,
                    base_fee: 10,
                    max_priority_fee: 1,
                }),
            }),
            _ => ChainData::Solana(solana::ChainData {
                recent_blockhash: BLOCKHASH.into(),
                token: None,
                compute: None,
            }),
        }
    }

    /// An honest order for a payload.
    fn order(&self, payload: &Payload, chain_data: ChainData) -> SigningOrder {
        self.order_of(self.network(), self.path(), payload, chain_data)
    }

    /// The same, of the key at a path as if it were a wallet of a network.
    fn order_of(
        &self,
        network: Network,
        path: KeyPath,
        payload: &Payload,
        chain_data: ChainData,
    ) -> SigningOrder {
        let public_key = self.root.child(&path).unwrap().public_key;
        let chain = network.rules();
        let unsigned = chain.build(payload, &chain_data, &public_key).unwrap();
        SigningOrder {
            request: RequestId::from_random(random_16(&SystemEntropy)),
            vault: self.test.vault,
            epoch: self.epoch,
            network,
            root_public_key: self.root.public_key.clone(),
            path,
            address: chain.address(&public_key).unwrap(),
            public_key,
            payload: payload.encode(),
            chain_data,
            unsigned: unsigned.bytes,
            inputs: unsigned.signing,
            recipient_indices: Vec::new(),
            approvals: OrderApprovals::default(),
            issued_at_ms: now_ms(),
            expires_at_ms: now_ms() + 600_000,
        }
    }

    fn transfer(&self, eve: bool, amount: u64, chain_id: u64) -> SigningOrder {
        self.order(&self.payload(eve, amount, chain_id), self.chain_data())
    }

    fn ask(&self, order: SigningOrder) -> ForgedRequest {
        let session = SessionId::from_random(random_16(&SystemEntropy));
        ForgedRequest {
            envelope_epoch: order.epoch,
            order,
            session,
            said_session: session,
            attempt: 0,
            signers: self.test.holders()[..2].to_vec(),
            nonces: Vec::new(),
            sent_at_ms: now_ms(),
        }
    }

    fn honest(&self) -> ForgedRequest {
        self.ask(self.transfer(false, 5, 1))
    }

    /// Sends to the first two nodes, no matter which ones the order names.
    fn send(&self, ask: &ForgedRequest) {
        self.send_body(ask, &ask.body());
    }

    fn send_body(&self, ask: &ForgedRequest, body: &[u8]) {
        for to in &self.test.holders()[..2] {
            let header = EnvelopeHeader {
                kind: EnvelopeKind::SigningOrder,
                sealed: true,
                epoch: ask.envelope_epoch,
                session: ask.session,
                attempt: ask.attempt,
                round: 0,
                sequence: 0,
                from: self.codec.id(),
                to: *to,
            };
            self.codec.send(header, body).unwrap();
        }
    }

    /// Sends an order for a key to the first node.
    fn order_key(&self, session: SessionId, order: &KeygenOrder) {
        let header = EnvelopeHeader {
            kind: EnvelopeKind::KeygenOrder,
            sealed: true,
            epoch: 0,
            session,
            attempt: 0,
            round: 0,
            sequence: 0,
            from: self.codec.id(),
            to: self.test.holders()[0],
        };
        let body = bcs::to_bytes(&(order, now_ms())).unwrap();
        self.codec.send(header, &body).unwrap();
    }

    /// The next answer in the session.
    async fn reply(&mut self, session: SessionId) -> (NodeId, WireReply) {
        loop {
            let message = timeout(PATIENCE, self.inbox.next()).await.unwrap().unwrap();
            let envelope = Envelope::parse(message).unwrap();
            let EnvelopeHeader { kind, from, .. } = envelope.header;
            if kind != EnvelopeKind::Reply || envelope.header.session != session {
                continue;
            }
            let opened = self.codec.open(&envelope).unwrap();
            // Which round a run is in is told beside it.
            if let Ok(reply) = bcs::from_bytes(&opened.body) {
                return (from, reply);
            }
        }
    }

    async fn signed(&mut self, ask: &ForgedRequest) {
        self.send(ask);
        match self.reply(ask.session).await {
            (_, WireReply::Signed(signatures)) => verify(&ask.order, &signatures),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until both nodes have heard what their peers know of them: before that, a node that has
    /// started signs nothing.
    async fn settled(&mut self, order: &SigningOrder) {
        let mut unsettled = true;
        while unsettled {
            let ask = self.ask(order.clone());
            self.send(&ask);
            unsettled = false;
            for _ in 0..2 {
                if let (_, WireReply::Refused(fault)) = self.reply(ask.session).await {
                    unsettled |= *fault.class() == Class::Unavailable;
                }
            }
        }
    }

    /// Both nodes refuse, and neither says a word to the other.
    async fn refused(&mut self, ask: &ForgedRequest, class: &Class, starts: &str) {
        for fault in self.refused_body(ask, &ask.body(), starts).await {
            assert_eq!(fault.class(), class, "{starts}: {fault:?}");
            assert!(fault.message().starts_with(starts), "{starts}: {fault:?}");
        }
    }

    /// The same, of these bytes as the body of the order. What both say.
    async fn refused_body(&mut self, ask: &ForgedRequest, body: &[u8], what: &str) -> Vec<Fault> {
        let before = self.tap.count(EnvelopeKind::Protocol, ask.session);
        self.send_body(ask, body);
        let mut refusals = BTreeMap::new();
        while refusals.len() < 2 {
            match self.reply(ask.session).await {
                (node, WireReply::Refused(fault)) => refusals.insert(node, fault),
                (_, other) => panic!("{what}: {other:?}"),
            };
        }
        let after = self.tap.count(EnvelopeKind::Protocol, ask.session);
        assert_eq!(before, after, "{what}: a share was used");
        refusals.into_values().collect()
    }
}

type Forgery = fn(&mut ForgedRequest, &ByzantineFixture);

/// Shows another payload than the transaction is built from.
fn show(ask: &mut ForgedRequest, payload: &Payload) {
    ask.order.payload = payload.encode();
}

/// Asks for another transaction than the payload shows.
fn exchange(ask: &mut ForgedRequest, other: SigningOrder) {
    ask.order.unsigned = other.unsigned;
    ask.order.inputs = other.inputs;
}

/// Asks for a transfer of the key at another path, which is what it says in all else.
fn lead(ask: &mut ForgedRequest, world: &ByzantineFixture, indices: &[u32]) {
    let path = KeyPath::new(indices.to_vec()).unwrap();
    let network = world.network();
    let public_key = world.root.child(&path).unwrap().public_key;
    let address = network.rules().address(&public_key).unwrap();
    ask.order = world.order_of(
        network,
        path,
        &world.payload_of(&address, false, 5, 1),
        world.chain_data(),
    );
}

fn epoch(ask: &mut ForgedRequest, epoch: u32) {
    ask.order.epoch = epoch;
    ask.envelope_epoch = epoch;
}

const LIES: &[(&str, Forgery)] = &[
    // digest
    ("inputs[0].message: ", |ask, _| {
        ask.order.inputs[0].message[0] ^= 1
    }),
    ("inputs[0].message: ", |ask, world| {
        ask.order.inputs = world.transfer(true, 5, 1).inputs;
    }),
    ("inputs: ", |ask, _| {
        ask.order.inputs.push(ask.order.inputs[0].clone())
    }),
    ("inputs: ", |ask, _| ask.order.inputs.clear()),
    ("inputs[0].curve: ", |ask, _| {
        ask.order.inputs[0].curve = match ask.order.inputs[0].curve {
            Curve::Secp256k1 => Curve::Ed25519,
            Curve::Ed25519 => Curve::Secp256k1,
        };
    }),
    // recipient
    ("unsigned.recipient: ", |ask, world| {
        show(ask, &world.payload(true, 5, 1))
    }),
    ("unsigned.recipient: ", |ask, world| {
        exchange(ask, world.transfer(true, 5, 1))
    }),
    // amount
    ("unsigned.amount: ", |ask, world| {
        show(ask, &world.payload(false, 4, 1))
    }),
    ("unsigned.amount: ", |ask, world| {
        exchange(ask, world.transfer(false, 500, 1))
    }),
    // derivation path
    ("path: ", |ask, _| {
        ask.order.path = KeyPath::of_wallet(ask.order.network, 6).unwrap();
    }),
    // The root key, a key between, and keys behind the wallet's, each with its own address.
    ("path: ", |ask, world| lead(ask, world, &[])),
    ("path: ", |ask, world| lead(ask, world, &[5])),
    ("path: ", |ask, world| lead(ask, world, &[0, 5])),
    ("path: ", |ask, world| lead(ask, world, &[44, 60, 5])),
    ("path: ", |ask, world| {
        let path = world.path();
        lead(ask, world, &[path.indices(), &[0]].concat());
    }),
    ("path: ", |ask, world| {
        let path = world.path();
        lead(ask, world, &path.indices()[..1]);
    }),
    // vault, key, wallet
    ("vault: ", |ask, _| {
        ask.order.vault = VaultId::from_bytes([9; 16])
    }),
    ("rootPublicKey: ", |ask, _| {
        ask.order.root_public_key[7] ^= 1
    }),
    ("publicKey: ", |ask, world| {
        let other = KeyPath::of_wallet(world.network(), 6).unwrap();
        ask.order.public_key = world.root.child(&other).unwrap().public_key;
    }),
    ("address: ", |ask, _| ask.order.address.push('0')),
    // Another network of the same curve has keys of its own.
    ("path: ", |ask, world| {
        ask.order.network = match world.network() {
            Network::Evm => Network::Tron,
            _ => Network::Stellar,
        };
    }),
    ("network: ", |ask, world| {
        ask.order.network = match world.network() {
            Network::Evm => Network::Solana,
            _ => Network::Evm,
        };
    }),
    // epoch
    // epoch: a stale one, one to come, and the envelope's
    ("epoch: ", |ask, _| epoch(ask, 0)),
    ("epoch: ", |ask, _| epoch(ask, 2)),
    ("epoch: ", |ask, _| epoch(ask, u32::MAX)),
    ("epoch: ", |ask, _| ask.order.epoch = 0),
    ("epoch: ", |ask, _| ask.envelope_epoch = 0),
    ("epoch: ", |ask, _| ask.envelope_epoch = 2),
    // session
    ("session: ", |ask, _| {
        ask.said_session = SessionId::from_bytes([9; 16]);
    }),
    ("session: ", |ask, _| {
        ask.session = SessionId::from_random(random_16(&SystemEntropy));
    }),
    // what is shown
    ("payload: ", |ask, _| ask.order.payload.push(1)),
    ("payload: ", |ask, _| ask.order.payload.clear()),
    ("unsigned: ", |ask, _| ask.order.unsigned.push(0)),
    ("unsigned: ", |ask, _| ask.order.unsigned.clear()),
    ("chainData: ", |ask, _| {
        ask.order.chain_data = ChainData::Nothing
    }),
    // times
    ("issuedAtMs: ", |ask, _| {
        ask.order.issued_at_ms = now_ms() + 300_000
    }),
    ("issuedAtMs: ", |ask, _| {
        ask.order.issued_at_ms = now_ms() + 20_000;
        ask.order.expires_at_ms = now_ms() + 10_000;
    }),
    ("expiresAtMs: ", |ask, _| {
        ask.order.expires_at_ms = now_ms() - 1
    }),
    ("sentAtMs: ", |ask, _| ask.sent_at_ms = now_ms() - 120_000),
    ("sentAtMs: ", |ask, _| ask.sent_at_ms = now_ms() + 120_000),
    // signers
    ("signers: ", |ask, _| ask.signers.truncate(1)),
    ("signers: ", |ask, _| ask.signers.clear()),
    ("signers: ", |ask, _| ask.signers.push(ask.signers[0])),
    ("signers: ", |ask, world| {
        ask.signers = world.test.holders();
    }),
    ("signers: ", |ask, _| ask.signers[1] = NodeId([3; 32])),
    // nonces made ahead: of one signer, of none, for other inputs
    ("nonces: ", |ask, _| ask.nonces = vec![vec![1]]),
    ("nonces: ", |ask, _| ask.nonces = vec![Vec::new(); 2]),
    ("nonces: ", |ask, _| {
        ask.nonces = vec![vec![1, 2], vec![1, 2]]
    }),
];

const EVM_LIES: &[(&str, Forgery)] = &[
    // chain id
    ("unsigned.chainId: ", |ask, world| {
        show(ask, &world.payload(false, 5, 10))
    }),
    ("unsigned.chainId: ", |ask, world| {
        exchange(ask, world.transfer(false, 5, 10))
    }),
    ("payload.evmSendNative.from: ", |ask, world| {
        let kind = WireKind::EvmSendNative(wire::EvmSendNative {
            chain_id: 1,
            from: EVE.into(),
            to: world.address(),
            value: "5".into(),
            ..Default::default()
        });
        show(ask, &Payload::parse(&kind).unwrap());
    }),
    ("unsigned.nonce: ", |ask, _| {
        let ChainData::Evm(chain_data) = &mut ask.order.chain_data else {
            unreachable!()
        };
        chain_data.nonce = Some(3);
    }),
    ("unsigned.gasFee: ", |ask, _| {
        let ChainData::Evm(chain_data) = &mut ask.order.chain_data else {
            unreachable!()
        };
        chain_data.fees.as_mut().unwrap().max_priority_fee += 1;
    }),
];

const SOLANA_LIES: &[(&str, Forgery)] = &[
    // chain id: the last byte of the payload
    ("payload.solanaSendNative.chainId: ", |ask, _| {
        let last = ask.order.payload.last_mut().unwrap();
        assert_eq!(*last, 101);
        *last = 102;
    }),
    ("payload.solanaSendNative.from: ", |ask, world| {
        let kind = WireKind::SolanaSendNative(wire::SolanaSendNative {
            from: EVE_SOL.into(),
            to: world.address(),
            value: "5".into(),
            chain_id: 0,
            ..Default::default()
        });
        show(ask, &Payload::parse(&kind).unwrap());
    }),
    ("unsigned.recentBlockhash: ", |ask, _| {
        ask.order.chain_data = ChainData::Solana(solana::ChainData {
            recent_blockhash: BOB_SOL.into(),
            token: None,
            compute: None,
        });
    }),
    ("chainData: ", |ask, _| {
        ask.order.chain_data = ChainData::Solana(solana::ChainData {
            recent_blockhash: "no".into(),
            token: None,
            compute: None,
        });
    }),
];

/// Every lie, one at a time, on an order that would be signed without it.
async fn lies(curve: Curve, more: &[(&str, Forgery)]) {
    let mut world = ByzantineFixture::start(curve, "").await;
    world.refresh().await;
    for (starts, lie) in LIES.iter().chain(more) {
        let mut ask = world.honest();
        lie(&mut ask, &world);
        world.refused(&ask, &Class::Invalid, starts).await;
    }
    // What is not changed is signed, by the same way: and none of the above has claimed anything.
    let ask = world.honest();
    world.signed(&ask).await;
    assert!(world.tap.count(EnvelopeKind::Protocol, ask.session) > 0);
    replays(&mut world, ask).await;
}

/// What was signed once.
async fn replays(world: &mut ByzantineFixture, signed: ForgedRequest) {
    // The very same envelopes: not a word.
    let replayed: Vec<_> = {
        let sent = world.tap.sent.lock().unwrap();
        sent.iter()
            .filter(|(header, ..)| {
                header.kind == EnvelopeKind::SigningOrder && header.session == signed.session
            })
            .map(|(_, to, message)| (*to, message.clone()))
            .collect()
    };
    assert_eq!(replayed.len(), 2);
    let answers = |world: &ByzantineFixture| {
        world.tap.count(EnvelopeKind::Protocol, signed.session)
            + world.tap.count(EnvelopeKind::Reply, signed.session)
    };
    let before = answers(world);
    for (to, message) in replayed {
        world.tap.bus.publish(to, message).unwrap();
    }
    // By the time this is signed the replay has been looked at.
    let next = world.honest();
    world.signed(&next).await;
    assert_eq!(answers(world), before);

    // The same session, sealed anew.
    world
        .refused(&signed, &Class::WrongState, "session: ")
        .await;
    // Another session for the same digest: a request may be tried again.
    let again = world.ask(signed.order.clone());
    world.signed(&again).await;
    // The request with another digest.
    let mut other = world.transfer(false, 6, 1);
    other.request = signed.order.request;
    let other = world.ask(other);
    world.refused(&other, &Class::WrongState, "request: ").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orchestrator__should_get_nothing_for_a_lie_in_any_field_ecdsa() {
    lies(Curve::Secp256k1, EVM_LIES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orchestrator__should_get_nothing_for_a_lie_in_any_field_ed25519() {
    lies(Curve::Ed25519, SOLANA_LIES).await;
}

type KeygenForgery = fn(&mut KeygenOrder);

const KEYGEN_LIES: &[(&str, KeygenForgery)] = &[
    ("session: ", |order| {
        order.session = SessionId::from_bytes([9; 16])
    }),
    ("threshold: ", |order| order.threshold = 0),
    ("threshold: ", |order| order.threshold = 1),
    ("threshold: ", |order| order.threshold = 4),
    ("threshold: ", |order| order.threshold = u16::MAX),
    ("signers: ", |order| order.signers[2] = order.signers[0]),
    ("signers: ", |order| order.signers[2] = NodeId([3; 32])),
    ("signers: ", |order| {
        order.signers = vec![NodeId([3; 32]); 300]
    }),
    ("issuedAtMs: ", |order| {
        order.issued_at_ms = now_ms() + 300_000
    }),
    ("expiresAtMs: ", |order| order.expires_at_ms = now_ms() - 1),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orchestrator__should_get_no_key_for_a_lie_in_any_field() {
    let mut world = ByzantineFixture::start(Curve::Ed25519, "").await;
    for (starts, lie) in KEYGEN_LIES {
        let mut order = world.test.keygen_order(Curve::Ed25519, 2);
        let session = order.session;
        lie(&mut order);
        world.order_key(session, &order);
        match world.reply(session).await {
            (_, WireReply::Refused(fault)) => {
                assert!(fault.message().starts_with(starts), "{starts}: {fault:?}");
            }
            (_, other) => panic!("{starts}: {other:?}"),
        }
        assert_eq!(
            world.tap.count(EnvelopeKind::Protocol, session),
            0,
            "{starts}"
        );
    }
    // A session that has made a key makes no other.
    let order = world.test.keygen_order(Curve::Ed25519, 2);
    world.test.cluster.keygen(&order).await.unwrap();
    let before = world.tap.count(EnvelopeKind::Protocol, order.session);
    let others: [(&str, KeygenForgery); 4] = [
        ("vault: ", |order| {
            order.vault = VaultId::from_bytes([9; 16])
        }),
        ("scheme: ", |order| order.scheme = Scheme::Dkls23),
        ("threshold: ", |order| order.threshold = 3),
        ("signers: ", |order| order.signers.swap(0, 1)),
    ];
    for (starts, lie) in others {
        let mut other = order.clone();
        lie(&mut other);
        world.order_key(order.session, &other);
        loop {
            // The answers of the key generation itself may still be there.
            match world.reply(order.session).await {
                (_, WireReply::KeyMade { .. }) => {}
                (_, WireReply::Refused(fault)) => {
                    assert!(fault.message().starts_with(starts), "{starts}: {fault:?}");
                    break;
                }
                (_, other) => panic!("{starts}: {other:?}"),
            }
        }
    }
    assert_eq!(
        world.tap.count(EnvelopeKind::Protocol, order.session),
        before
    );
}

/// Orders that are what they say, and that the nodes' policy forbids.
async fn policy(curve: Curve) {
    let mut world = ByzantineFixture::start(
        curve,
        &format!(
            "networks = [\"evm:1\", \"solana\"]\n\
             recipients.evm = [\"{BOB}\"]\nrecipients.solana = [\"{BOB_SOL}\"]\n\
             most_fee.evm = \"441000\"\nmost_fee.solana = \"5000\"\n\
             [[limits]]\nasset = \"evm:1\"\nper_request = \"441005\"\nper_day = \"900000\"\n\
             [[limits]]\nasset = \"solana\"\nper_request = \"5005\"\nper_day = \"11000\"\n"
        ),
    )
    .await;
    let mut raw = world.test.raw_message(&world.root, 1, &[7; 32]);
    raw.vault = world.test.vault;
    let mut forbidden = vec![
        ("recipient: ", world.transfer(true, 5, 1)),
        ("amount: ", world.transfer(false, 6, 1)),
        ("kind: raw signing", raw),
    ];
    if curve == Curve::Secp256k1 {
        forbidden.push(("network: ", world.transfer(false, 5, 10)));
        let mut dear = world.chain_data();
        if let ChainData::Evm(chain_data) = &mut dear {
            chain_data.fees.as_mut().unwrap().base_fee += 1;
        }
        forbidden.push(("fee: ", world.order(&world.payload(false, 5, 1), dear)));
    }
    for (starts, order) in forbidden {
        let ask = world.ask(order);
        world.refused(&ask, &Class::Invalid, starts).await;
    }
    // Two requests fill the 24 hours. A second attempt for one of them counts nothing.
    for _ in 0..2 {
        let ask = world.honest();
        world.signed(&ask).await;
        let again = world.ask(ask.order);
        world.signed(&again).await;
    }
    let third = world.honest();
    let over = "amount: with the fee, more ";
    world.refused(&third, &Class::Invalid, over).await;
    // Also after a restart.
    for place in 0..2 {
        world.test.stop_node(place).await;
    }
    world.test.until_live(1).await;
    for place in 0..2 {
        world.test.start_node(place);
    }
    world.test.until_live(3).await;
    world.settled(&third.order).await;
    let third = world.ask(third.order);
    world.refused(&third, &Class::Invalid, over).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy__should_hold_for_orders_that_are_true_ecdsa() {
    policy(Curve::Secp256k1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy__should_hold_for_orders_that_are_true_ed25519() {
    policy(Curve::Ed25519).await;
}

/// What one vault spends, or has tried to, takes nothing of another vault's limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy__should_keep_the_limits_of_vaults_apart() {
    let limits = "[[each_vault.limits]]\nasset = \"evm:1\"\nper_day = \"900000\"\n";
    let mut world = ByzantineFixture::start(Curve::Secp256k1, limits).await;
    // Requests of the first vault that fail: each node claims one, and waits for a node that nobody
    // has asked.
    let holders = world.test.holders().to_vec();
    for place in 0..2 {
        for _ in 0..2 {
            let mut failing = world.honest();
            failing.signers = vec![holders[place], holders[2]];
            let other = holders[1 - place];
            world.send(&failing);
            match world.reply(failing.session).await {
                (node, WireReply::Refused(_)) if node == other => {}
                (_, other) => panic!("{other:?}"),
            }
            while world.tap.count(EnvelopeKind::Protocol, failing.session) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    let over = "amount: with the fee, more evm:1 than this signer's policy (vault ";
    let third = world.honest();
    world.refused(&third, &Class::Invalid, over).await;

    // Another vault of the same nodes, with a key of its own, pays as if nothing had been.
    world.test.vault = VaultId::from_random(random_16(&SystemEntropy));
    world.root = world.test.keygen(Curve::Secp256k1, 2).await;
    for _ in 0..2 {
        let ask = world.honest();
        world.signed(&ask).await;
    }
    let third = world.honest();
    world.refused(&third, &Class::Invalid, over).await;
}

/// Keeps what is logged.
struct LogBuffer(Arc<Mutex<String>>);

impl tracing::Subscriber for LogBuffer {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Line<'a>(&'a mut String);
        impl tracing::field::Visit for Line<'_> {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                write!(self.0, "{}={value:?} ", field.name()).unwrap();
            }
        }
        let mut log = self.0.lock().unwrap();
        event.record(&mut Line(&mut log));
        log.push('\n');
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stranger__should_get_silence_and_a_line_in_the_log() {
    let log = Arc::new(Mutex::new(String::new()));
    // Of this process; with nextest each test has one.
    let _ = tracing::subscriber::set_global_default(LogBuffer(Arc::clone(&log)));
    let mut world = ByzantineFixture::start(Curve::Ed25519, "").await;
    let stranger = Arc::new(NodeIdentity::generate(&SystemEntropy));
    let line = stranger.openssh_line("");
    let trusted = std::mem::replace(
        &mut world.codec,
        EnvelopeCodec::new(stranger, world.test.medium.bus(), Arc::new(SystemEntropy)),
    );
    let ask = world.honest();
    world.send(&ask);
    world.codec = trusted;
    // By the time this is signed the stranger's order has been looked at.
    let next = world.honest();
    world.signed(&next).await;
    assert_eq!(world.tap.count(EnvelopeKind::SigningOrder, ask.session), 2);
    assert_eq!(world.tap.count(EnvelopeKind::Protocol, ask.session), 0);
    assert_eq!(world.tap.count(EnvelopeKind::Reply, ask.session), 0);
    let log = log.lock().unwrap();
    let lines = log
        .lines()
        .filter(|logged| logged.contains("order ignored") && logged.contains(&line));
    assert_eq!(lines.count(), 2, "{log}");
}
