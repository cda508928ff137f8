//! Sessions of rounds: collects the messages of each, and takes it when it is complete.

use std::collections::BTreeMap;

use covault_core::port::Entropy;
use serde::{Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

use super::{Abort, OutgoingMessage, Session, SignerIndex, StepOutput};

/// One message of each peer.
pub type RoundMessages = BTreeMap<SignerIndex, Zeroizing<Vec<u8>>>;

/// Messages by round and sender. Early ones wait.
pub struct RoundCollector {
    peers: Vec<SignerIndex>,
    /// The round we wait for; 0 before the start and after the end.
    round: u16,
    last: u16,
    bodies: BTreeMap<u16, RoundMessages>,
}

impl RoundCollector {
    /// For a session with these other parties, of rounds 1 to `last`.
    pub(super) fn new(peers: Vec<SignerIndex>, last: u16) -> Self {
        Self {
            peers,
            round: 0,
            last,
            bodies: BTreeMap::new(),
        }
    }

    pub(super) fn peers(&self) -> &[SignerIndex] {
        &self.peers
    }

    /// From now on this round is awaited.
    pub(super) fn wait_for(&mut self, round: u16) {
        self.round = round;
    }

    /// Keeps a message.
    pub(super) fn put(
        &mut self,
        from: SignerIndex,
        round: u16,
        body: Zeroizing<Vec<u8>>,
    ) -> Result<(), Abort> {
        if !self.peers.contains(&from) || round == 0 || round > self.last {
            return Err(Abort::blame(
                from,
                format!("message of round {round} out of place"),
            ));
        }
        if round < self.round
            || self
                .bodies
                .entry(round)
                .or_default()
                .insert(from, body)
                .is_some()
        {
            return Err(Abort::blame(
                from,
                format!("second message of round {round}"),
            ));
        }
        Ok(())
    }

    /// The messages of the awaited round, once they are complete; the round is over then.
    pub(super) fn complete(&mut self) -> Option<(u16, RoundMessages)> {
        let round = self.round;
        if round == 0 || self.bodies.get(&round).map_or(0, BTreeMap::len) < self.peers.len() {
            return None;
        }
        self.round = 0;
        self.bodies.remove(&round).map(|bodies| (round, bodies))
    }

    pub(super) fn missing(&self) -> Vec<SignerIndex> {
        if self.round == 0 {
            return Vec::new();
        }
        let here = self.bodies.get(&self.round);
        let missing = |peer: &&SignerIndex| !here.is_some_and(|bodies| bodies.contains_key(*peer));
        self.peers.iter().filter(missing).copied().collect()
    }

    /// The same message for every peer.
    pub(super) fn to_all(&self, round: u16, private: bool, body: &[u8]) -> Vec<OutgoingMessage> {
        self.peers
            .iter()
            .map(|to| OutgoingMessage {
                to: *to,
                round,
                private,
                body: Zeroizing::new(body.to_vec()),
            })
            .collect()
    }
}

/// A session whose rounds are each complete before the next begins.
pub trait RoundProtocol: Send {
    /// What it ends with.
    type Outcome;

    /// Where its messages are collected.
    fn round_collector(&self) -> &RoundCollector;

    /// The same, to change.
    fn round_collector_mut(&mut self) -> &mut RoundCollector;

    /// What is sent at the start; says with [`RoundCollector::wait_for`] which round comes first.
    fn begin(&mut self, entropy: &dyn Entropy) -> Result<StepOutput<Self::Outcome>, Abort>;

    /// Refuses what is out of place in this session, though it has such a round.
    fn admit(&self, _from: SignerIndex, _round: u16) -> Result<(), Abort> {
        Ok(())
    }

    /// Takes a round that is complete. The next one is awaited then.
    fn take(
        &mut self,
        round: u16,
        bodies: RoundMessages,
    ) -> Result<StepOutput<Self::Outcome>, Abort>;
}

impl<R: RoundProtocol> Session<R::Outcome> for R {
    fn start(&mut self, entropy: &dyn Entropy) -> Result<StepOutput<R::Outcome>, Abort> {
        self.begin(entropy)
    }

    fn receive(
        &mut self,
        from: SignerIndex,
        round: u16,
        body: Zeroizing<Vec<u8>>,
    ) -> Result<StepOutput<R::Outcome>, Abort> {
        self.admit(from, round)?;
        self.round_collector_mut().put(from, round, body)?;
        let mut output = StepOutput::wait();
        // Messages of the next round may have come early.
        while let Some((round, bodies)) = self.round_collector_mut().complete() {
            let next = self.take(round, bodies)?;
            output.send.extend(next.send);
            if next.done.is_some() {
                output.done = next.done;
                return Ok(output);
            }
            self.round_collector_mut().wait_for(round.saturating_add(1));
        }
        Ok(output)
    }

    fn waiting_for(&self) -> Vec<SignerIndex> {
        self.round_collector().missing()
    }

    fn last_round(&self) -> u16 {
        self.round_collector().last
    }
}

/// Encodes a message; BCS.
pub(super) fn encode<T: Serialize>(message: &T) -> Result<Zeroizing<Vec<u8>>, Abort> {
    let failed = |_| Abort::new("a message could not be encoded");
    // Of its final size: a buffer that grows leaves copies of secrets behind.
    let size = bcs::serialized_size(message).map_err(failed)?;
    let mut body = Zeroizing::new(Vec::with_capacity(size));
    bcs::serialize_into(&mut *body, message).map_err(failed)?;
    Ok(body)
}

/// Decodes a peer's message, and blames the peer when it cannot.
pub(super) fn decode<T: DeserializeOwned>(from: SignerIndex, body: &[u8]) -> Result<T, Abort> {
    bcs::from_bytes(body).map_err(|_| Abort::blame(from, "malformed message"))
}
