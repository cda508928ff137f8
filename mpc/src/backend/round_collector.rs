//! Sessions of rounds: collects the messages of each, and takes it when it is complete.

use std::{any::type_name, collections::BTreeMap, io};

use covault_core::port::Entropy;
use parking_lot::Mutex;
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

/// How large messages of a type have been at most, by its name. The first is counted before it is written: for what
/// oblivious transfer sends, counting takes as long as writing.
static SIZES: Mutex<BTreeMap<&'static str, usize>> = Mutex::new(BTreeMap::new());

/// Writes what there is room for: a buffer that grows leaves copies of secrets behind.
struct FixedBuffer<'a>(&'a mut Vec<u8>);

impl io::Write for FixedBuffer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.0.capacity().saturating_sub(self.0.len()) {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Encodes a message; BCS.
pub(super) fn encode<T: Serialize>(message: &T) -> Result<Zeroizing<Vec<u8>>, Abort> {
    let failed = |_| Abort::new("a message could not be encoded");
    let of = type_name::<T>();
    let known = SIZES.lock().get(of).copied();
    let write = |size: usize| {
        let mut body = Zeroizing::new(Vec::with_capacity(size));
        bcs::serialize_into(&mut FixedBuffer(&mut body), message).map(|()| body)
    };
    if let Some(body) = known.and_then(|size| write(size).ok()) {
        return Ok(body);
    }
    let size = bcs::serialized_size(message).map_err(failed)?;
    let body = write(size).map_err(failed)?;
    let mut sizes = SIZES.lock();
    let most = sizes.entry(of).or_default();
    *most = size.max(*most);
    Ok(body)
}

/// Decodes a peer's message, and blames the peer when it cannot.
pub(super) fn decode<T: DeserializeOwned>(from: SignerIndex, body: &[u8]) -> Result<T, Abort> {
    bcs::from_bytes(body).map_err(|_| Abort::blame(from, "malformed message"))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn message__should_be_encoded_without_a_copy_whatever_the_last_one_of_its_type_had() {
        for len in [3, 1, 40, 5, 41] {
            let message = vec![7_u16; len];
            let body = encode(&message).unwrap();
            assert_eq!(*body, bcs::to_bytes(&message).unwrap());
            assert!(body.capacity() <= 83, "{}", body.capacity());
        }
    }
}
