//! A node with a share, an identity, and no manners. It runs the real code and changes what that
//! sends, so that its lies come at the moments that matter.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use covault_core::order::NodeId;
use covault_mpc::{
    bus::{Bus, BusAddress, BusError, Subscription, memory::MemoryBus},
    envelope::{Envelope, EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
    identity::NodeIdentity,
};

use crate::world::SeededRng;

/// Keeps what a bus sends, so that another node can send it.
#[derive(Default)]
struct CapturingBus(Mutex<Vec<(BusAddress, Vec<u8>)>>);

#[async_trait]
impl Bus for CapturingBus {
    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        self.0.lock().unwrap().push((to, message));
        Ok(())
    }

    async fn subscribe(&self, me: NodeId, announcements: bool) -> Result<Subscription, BusError> {
        MemoryBus::new().subscribe(me, announcements).await
    }

    fn reachable(&self) -> bool {
        true
    }
}

/// the byzantine node.
pub struct Byzantine {
    rng: Arc<SeededRng>,
    active: AtomicBool,
    outbox: Arc<CapturingBus>,
    codec: EnvelopeCodec,
    /// Opens what it sends, with the recipients' keys: it wrote it, so it knows it.
    readers: BTreeMap<NodeId, EnvelopeCodec>,
    others: Vec<NodeId>,
    /// Bodies that it has sent before.
    said: Mutex<Vec<Vec<u8>>>,
}

impl Byzantine {
    pub fn new(
        rng: Arc<SeededRng>,
        me: &Arc<NodeIdentity>,
        everybody: &[Arc<NodeIdentity>],
    ) -> Arc<Self> {
        let outbox = Arc::new(CapturingBus::default());
        let entropy = Arc::new(SeededRng::new(rng.between(0, u64::MAX), 77));
        let readers = everybody
            .iter()
            .map(|identity| {
                let codec =
                    EnvelopeCodec::new(Arc::clone(identity), MemoryBus::new(), entropy.clone());
                (identity.id(), codec)
            })
            .collect();
        Arc::new(Self {
            rng,
            active: AtomicBool::new(false),
            codec: EnvelopeCodec::new(
                Arc::clone(me),
                Arc::clone(&outbox) as Arc<dyn Bus>,
                entropy.clone(),
            ),
            outbox,
            readers,
            others: everybody
                .iter()
                .map(|other| other.id())
                .filter(|other| *other != me.id())
                .collect(),
            said: Mutex::default(),
        })
    }

    /// From now on it lies.
    pub fn begin(&self) {
        self.active.store(true, Ordering::Relaxed);
    }

    fn say(&self, header: EnvelopeHeader, body: &[u8]) {
        self.codec.send(header, body).unwrap();
    }

    /// What it sends instead of a message that an honest node would send.
    pub fn instead_of(&self, to: BusAddress, message: Vec<u8>) -> Vec<(BusAddress, Vec<u8>)> {
        if !self.active.load(Ordering::Relaxed) {
            return vec![(to, message)];
        }
        let Ok(envelope) = Envelope::parse(message.clone()) else {
            return vec![(to, message)];
        };
        let header = envelope.header;
        let body = self
            .readers
            .get(&header.to)
            .and_then(|reader| reader.open(&envelope).ok())
            .map(|opened| opened.body.to_vec());
        let Some(body) = body else {
            // Announcements: it wants to be asked.
            return vec![(to, message)];
        };
        let mut harmed = body.clone();
        if !harmed.is_empty() {
            let at = self.rng.below(harmed.len());
            harmed[at] ^= 1 << self.rng.below(8);
        }
        match self.rng.below(11) {
            // It behaves, so that it gets far enough to do harm.
            0..=2 => self.say(header, &body),
            // It withholds.
            3 => {}
            // A wrong share, commitment or signature: to everybody, or to some.
            4 => self.say(header, &harmed),
            // Two different messages for one slot.
            5 => {
                self.say(header, &body);
                self.say(header, &harmed);
            }
            6 => {
                let length = self.rng.below(2_000);
                self.say(header, &self.rng.bytes(length));
            }
            // Something from another time.
            7 => {
                let said = self.said.lock().unwrap();
                let old = said.get(self.rng.below(said.len().max(1)));
                self.say(header, old.unwrap_or(&harmed));
            }
            // Another place than it belongs to.
            8 => {
                let mut header = header;
                match self.rng.below(4) {
                    0 => header.epoch += 1,
                    1 => header.round += 1,
                    2 => header.sequence += 1,
                    _ => header.attempt += 1,
                }
                self.say(header, &body);
            }
            // Others are to blame: Reply::Failed { culprits, missing, reason, evidence }.
            9 if header.kind == EnvelopeKind::Reply => {
                let mut body = vec![3];
                let (culprits, missing) = if self.rng.chance(500) {
                    (self.others.clone(), Vec::new())
                } else {
                    (Vec::new(), self.others.clone())
                };
                body.extend(bcs::to_bytes(&(culprits, missing, "it was not me", "")).unwrap());
                self.say(header, &body);
            }
            // An invalid signature: Reply::Signed of one Signature::Ed25519.
            10 if header.kind == EnvelopeKind::Reply => {
                self.say(header, &[&[0, 1, 1][..], &[7; 64]].concat());
            }
            _ => {
                // Many times.
                for _ in 0..self.rng.below(20) {
                    self.say(header, &body);
                }
            }
        }
        let mut said = self.said.lock().unwrap();
        if said.len() < 64 {
            said.push(body);
        }
        drop(said);
        std::mem::take(&mut *self.outbox.0.lock().unwrap())
    }
}
