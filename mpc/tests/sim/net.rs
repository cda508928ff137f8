//! A bus that does everything a bus may do: it drops, repeats, delays, reorders, cuts off, changes,
//! and delivers messages to the wrong node.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use covault_core::order::NodeId;
use covault_mpc::{
    bus::{Bus, BusAddress, BusError, Subscription, memory::MemoryBus},
    envelope::Envelope,
};
use tokio::time::sleep;

use crate::{
    byzantine::Byzantine,
    oracle::Oracle,
    world::{ProcessLife, SeededRng, Trace, ms},
};

/// How bad it is; rates are of a thousand messages.
#[derive(Clone, Default)]
pub struct NetworkFaults {
    pub drop: u64,
    pub repeat: u64,
    pub corrupt: u64,
    pub replay: u64,
    /// Delays from 0 to this, in milliseconds.
    pub delay_ms: u64,
    /// A node dies instead of sending, or right after it.
    pub die: u64,
    /// Who cannot send to whom. Place 0 is the orchestrator.
    pub cut: BTreeSet<(usize, usize)>,
}

/// The network of one world.
pub struct SimNetwork {
    pub rng: Arc<SeededRng>,
    pub trace: Arc<Trace>,
    pub oracle: Arc<Oracle>,
    pub network_faults: Mutex<NetworkFaults>,
    memory: Arc<MemoryBus>,
    places: HashMap<NodeId, usize>,
    /// What an eavesdropper has kept.
    kept: Mutex<Vec<(BusAddress, Vec<u8>)>>,
}

/// Messages that an eavesdropper keeps.
const KEPT: usize = 64;

impl SimNetwork {
    /// A network of these participants; the orchestrator first.
    pub fn new(
        participants: &[NodeId],
        rng: Arc<SeededRng>,
        trace: Arc<Trace>,
        oracle: Arc<Oracle>,
    ) -> Arc<Self> {
        let places = participants.iter().copied().zip(0..).collect();
        Arc::new(Self {
            rng,
            trace,
            oracle,
            network_faults: Mutex::default(),
            memory: MemoryBus::new(),
            places,
            kept: Mutex::default(),
        })
    }

    fn network_faults(&self) -> NetworkFaults {
        self.network_faults.lock().unwrap().clone()
    }

    fn place(&self, address: BusAddress) -> usize {
        match address {
            // Only the orchestrator listens to announcements.
            BusAddress::Announcements => 0,
            BusAddress::Inbox(id) => self.places.get(&id).copied().unwrap_or(usize::MAX),
        }
    }

    /// Carries a message, or does not.
    pub fn carry(self: &Arc<Self>, from: usize, to: BusAddress, message: Vec<u8>) {
        let network_faults = self.network_faults();
        let place = self.place(to);
        let what = describe(&message);
        if network_faults.cut.contains(&(from, place)) {
            return self.trace.note(format_args!("{from}->{place} cut {what}"));
        }
        if self.rng.chance(network_faults.drop) {
            return self.trace.note(format_args!("{from}->{place} lost {what}"));
        }
        let copies = 1 + u64::from(self.rng.chance(network_faults.repeat));
        for _ in 0..copies {
            let mut message = message.clone();
            if self.rng.chance(network_faults.corrupt) {
                self.spoil(&mut message);
            }
            self.deliver(to, message, self.rng.between(0, network_faults.delay_ms));
        }
        self.trace
            .note(format_args!("{from}->{place} {copies} {what}"));
        if network_faults.replay > 0 {
            let mut kept = self.kept.lock().unwrap();
            let place = self.rng.below(KEPT);
            match kept.get_mut(place) {
                Some(old) => *old = (to, message),
                None => kept.push((to, message)),
            }
            if self.rng.chance(network_faults.replay) {
                let (first, old) = kept[self.rng.below(kept.len())].clone();
                let (other, _) = kept[self.rng.below(kept.len())];
                let to = if self.rng.chance(500) { first } else { other };
                drop(kept);
                self.trace
                    .note(format_args!("replay to {}", self.place(to)));
                self.deliver(to, old, self.rng.between(0, 5_000));
            }
        }
    }

    fn spoil(&self, message: &mut Vec<u8>) {
        if message.is_empty() {
            return;
        }
        let at = self.rng.below(message.len());
        match self.rng.below(3) {
            0 => message.truncate(at),
            1 => message.extend_from_slice(&[0; 7]),
            _ => message[at] ^= 1 << self.rng.below(8),
        }
    }

    fn deliver(self: &Arc<Self>, to: BusAddress, message: Vec<u8>, delay_ms: u64) {
        let net = Arc::clone(self);
        tokio::spawn(async move {
            sleep(ms(delay_ms)).await;
            let reader = match to {
                BusAddress::Inbox(id) => Some(id),
                // Nodes listen there, too: what is meant for one of them reaches it.
                BusAddress::Announcements => Envelope::parse(message.clone())
                    .ok()
                    .map(|envelope| envelope.header.to),
            };
            if let Some(id) = reader {
                net.oracle.delivered(id, &message);
            }
            let _ = net.memory.publish(to, message);
        });
    }
}

fn describe(message: &[u8]) -> String {
    match Envelope::parse(message.to_vec()) {
        Ok(envelope) => {
            let header = envelope.header;
            format!(
                "{:?} {} {} {} {} of {} bytes",
                header.kind,
                header.session,
                header.attempt,
                header.round,
                header.sequence,
                message.len()
            )
        }
        Err(_) => format!("{} bytes of noise", message.len()),
    }
}

/// One participant's place on the network, for one life.
pub struct SimBus {
    pub net: Arc<SimNetwork>,
    pub place: usize,
    pub life: Arc<ProcessLife>,
    /// Changes what is sent.
    pub byzantine: Option<Arc<Byzantine>>,
}

impl SimBus {
    fn die(&self) {
        self.net.trace.note(format_args!("{} dies", self.place));
        if self.net.rng.chance(500) {
            self.life.lose_power();
        } else {
            self.life.end();
        }
    }
}

#[async_trait]
impl Bus for SimBus {
    fn publish(&self, to: BusAddress, message: Vec<u8>) -> Result<(), BusError> {
        if !self.life.alive() {
            return Ok(());
        }
        let rng = &self.net.rng;
        let die = self.net.network_faults.lock().unwrap().die;
        let dies = self.place > 0 && rng.chance(die);
        // Before it is sent, or when it is on its way.
        let before = dies && rng.chance(500);
        if before {
            self.die();
            return Ok(());
        }
        let messages = match &self.byzantine {
            Some(byzantine) => byzantine.instead_of(to, message),
            None => vec![(to, message)],
        };
        for (to, message) in messages {
            self.net.oracle.sent(&message);
            self.net.carry(self.place, to, message);
        }
        if dies {
            self.die();
        }
        Ok(())
    }

    async fn subscribe(&self, me: NodeId, announcements: bool) -> Result<Subscription, BusError> {
        self.net.memory.subscribe(me, announcements).await
    }

    fn reachable(&self) -> bool {
        true
    }
}
