//! Runs one of the crate's protocols on a thread of its own, as a session.
//!
//! The crate writes its protocols as futures that cannot move between threads. So each session
//! has a thread, which computes only while its session is being fed: the feeder waits. A
//! panic in the crate ends the thread, and with it the session, and nothing else.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, Sender, channel},
};

use cggmp24::round_based::{
    Incoming, MessageDestination, MessageType,
    state_machine::{ProceedResult, StateMachine},
};
use covault_core::port::Entropy;
use rand_chacha_03::ChaCha20Rng;
use rand_core_06::SeedableRng as _;
use serde::{Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

use crate::backend::{
    Abort, OutgoingMessage, Session, SignerIndex, StepOutput,
    round_collector::{decode, encode},
};

/// A message on its way to the thread.
pub(super) struct InboundMessage {
    pub from: SignerIndex,
    pub round: u16,
    pub body: Zeroizing<Vec<u8>>,
}

crate::secrets::secret!(InboundMessage { body });

/// What the thread says.
enum ThreadEvent<T> {
    Send(Vec<OutgoingMessage>),
    /// It needs one more message.
    Waits,
    Ended(Result<T, Abort>),
}

/// The thread's end.
pub(super) struct ThreadChannel<T> {
    me: SignerIndex,
    /// All others, ascending.
    peers: Vec<SignerIndex>,
    inbox: Receiver<InboundMessage>,
    events: Sender<ThreadEvent<T>>,
    /// Messages of rounds that are not awaited yet.
    early: Vec<InboundMessage>,
}

/// Nobody listens: the session was dropped.
fn dropped<E>(_: E) -> Abort {
    Abort::new("the session was dropped")
}

impl<T> ThreadChannel<T> {
    pub(super) fn peers(&self) -> &[SignerIndex] {
        &self.peers
    }

    pub(super) fn send(&self, messages: Vec<OutgoingMessage>) -> Result<(), Abort> {
        self.events
            .send(ThreadEvent::Send(messages))
            .map_err(dropped)
    }

    pub(super) fn send_to_all(&self, round: u16, private: bool, body: &[u8]) -> Result<(), Abort> {
        let messages = self.peers.iter().map(|to| OutgoingMessage {
            to: *to,
            round,
            private,
            body: Zeroizing::new(body.to_vec()),
        });
        self.send(messages.collect())
    }

    /// The next message of the rounds up to `last`.
    fn next(&mut self, last: u16) -> Result<InboundMessage, Abort> {
        if let Some(place) = self.early.iter().position(|early| early.round <= last) {
            return Ok(self.early.swap_remove(place));
        }
        loop {
            self.events.send(ThreadEvent::Waits).map_err(dropped)?;
            let message = self.inbox.recv().map_err(dropped)?;
            if message.round <= last {
                return Ok(message);
            }
            self.early.push(message);
        }
    }

    /// Waits for everyone's message of the last round, whose content must be `expected`.
    pub(super) fn confirm(&mut self, round: u16, expected: &[u8]) -> Result<(), Abort> {
        for _ in 0..self.peers.len() {
            if self.next(round)?.body.as_slice() != expected {
                return Err(Abort::new(
                    "the parties saw different messages or made different keys",
                ));
            }
        }
        Ok(())
    }
}

/// How a protocol's messages look on the wire.
pub(super) struct WireFormat<M> {
    /// The parties in the protocol's order; a party's place is its index there.
    pub order: Vec<SignerIndex>,
    /// The round of a message.
    pub round: fn(&M) -> u16,
    /// The rounds whose messages go to one party each; the others are broadcasts.
    pub to_one: &'static [u16],
    /// The last round.
    pub last: u16,
    /// Bytes of a message, at most.
    pub max_bytes: fn(u16) -> usize,
    /// Where the messages of the last round go when not to everyone: the party that gives
    /// the outcome. Who is not that party is done when it has sent its own.
    pub collector: Option<SignerIndex>,
}

/// Runs a protocol to its end; `None` when the outcome is the collector's. `sound` sees each message
/// before the protocol does, with its sender's place, and says whether it may.
pub(super) fn drive<S, M, O, E, T>(
    mut machine: S,
    wire: &WireFormat<M>,
    link: &mut ThreadChannel<T>,
    mut sound: impl FnMut(u16, &M) -> bool,
) -> Result<Option<O>, Abort>
where
    S: StateMachine<Output = Result<O, E>, Msg = M>,
    M: Serialize + DeserializeOwned,
    E: std::error::Error,
{
    let mut count = 0;
    loop {
        match machine.proceed() {
            ProceedResult::Yielded => {}
            ProceedResult::SendMsg(outgoing) => {
                let round = (wire.round)(&outgoing.msg);
                let body = encode(&outgoing.msg)?;
                match (outgoing.recipient, wire.collector) {
                    (MessageDestination::OneParty(place), _) => {
                        let to = *wire
                            .order
                            .get(usize::from(place))
                            .ok_or_else(|| Abort::new("a message without a recipient"))?;
                        link.send(vec![OutgoingMessage {
                            to,
                            round,
                            private: true,
                            body,
                        }])?;
                    }
                    (MessageDestination::AllParties, Some(to)) if round == wire.last => {
                        if to == link.me {
                            continue;
                        }
                        link.send(vec![OutgoingMessage {
                            to,
                            round,
                            private: true,
                            body,
                        }])?;
                        return Ok(None);
                    }
                    (MessageDestination::AllParties, _) => link.send_to_all(round, true, &body)?,
                }
            }
            ProceedResult::NeedsOneMoreMessage => {
                let message = link.next(wire.last)?;
                count += 1;
                let incoming = read(wire, &message, count, &mut sound)?;
                machine
                    .received_msg(incoming)
                    .map_err(|_| Abort::new("the protocol takes no message"))?;
            }
            ProceedResult::Output(Ok(outcome)) => return Ok(Some(outcome)),
            ProceedResult::Output(Err(error)) => {
                return Err(failed(&error, &wire.order, link.peers()));
            }
            ProceedResult::Error(error) => return Err(Abort::new(error.to_string())),
        }
    }
}

/// Decodes a message, and asks whether it is sound.
pub(super) fn read<M: DeserializeOwned>(
    wire: &WireFormat<M>,
    message: &InboundMessage,
    id: u64,
    sound: &mut impl FnMut(u16, &M) -> bool,
) -> Result<Incoming<M>, Abort> {
    let incoming = incoming(wire, message, id)?;
    // A panic is the sender's doing, too: the crate's big integers do not like zero.
    let checked = catch_unwind(AssertUnwindSafe(|| sound(incoming.sender, &incoming.msg)));
    if !checked.unwrap_or(false) {
        return Err(Abort::blame(message.from, "a proof or a number is wrong"));
    }
    Ok(incoming)
}

fn incoming<M: DeserializeOwned>(
    wire: &WireFormat<M>,
    message: &InboundMessage,
    id: u64,
) -> Result<Incoming<M>, Abort> {
    let InboundMessage { from, round, body } = message;
    let malformed = || Abort::blame(*from, "malformed message");
    if body.len() > (wire.max_bytes)(*round) {
        return Err(Abort::blame(*from, "a message is too long"));
    }
    // The crate's big integers panic when they are told a radix that cannot be.
    let msg: M =
        catch_unwind(AssertUnwindSafe(|| decode(*from, body))).map_err(|_| malformed())??;
    if (wire.round)(&msg) != *round {
        return Err(malformed());
    }
    let sender = wire
        .order
        .iter()
        .position(|index| index == from)
        .and_then(|place| u16::try_from(place).ok())
        .ok_or_else(|| Abort::blame(*from, "is not one of the parties"))?;
    let msg_type = if wire.to_one.contains(round) {
        MessageType::P2P
    } else {
        MessageType::Broadcast
    };
    Ok(Incoming {
        id,
        sender,
        msg_type,
        msg,
    })
}

/// The crate's errors are opaque, but their debug text names who is to blame.
fn failed(error: &dyn std::error::Error, order: &[SignerIndex], peers: &[SignerIndex]) -> Abort {
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        reason = format!("{reason}: {inner}");
        cause = inner.source();
    }
    let text = format!("{error:?}");
    let mut culprits: Vec<SignerIndex> = if text.contains("NotReliable") {
        // Two saw different broadcasts: who sent them, or who says so, cannot be told.
        Vec::new()
    } else {
        blamed(&text)
            .into_iter()
            .filter_map(|place| order.get(usize::from(place)).copied())
            .filter(|index| peers.contains(index))
            .collect()
    };
    culprits.sort_unstable();
    culprits.dedup();
    if let ([peer], true, true) = (peers, culprits.is_empty(), text.contains("Aborted(")) {
        // With one other party, there is no question.
        culprits.push(*peer);
    }
    Abort {
        reason,
        culprits,
        ban: Vec::new(),
        panicked: false,
    }
}

/// The numbers after `faulty_party: `, and in the list after `parties: [`.
fn blamed(text: &str) -> Vec<u16> {
    let number = |text: &str| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u16>().ok()
    };
    let mut places: Vec<u16> = text
        .split("faulty_party: ")
        .skip(1)
        .filter_map(number)
        .collect();
    for list in text.split("parties: [").skip(1) {
        let list = list.split(']').next().unwrap_or_default();
        places.extend(list.split(", ").map_while(|item| item.parse::<u16>().ok()));
    }
    places
}

type ProtocolFn<T> =
    Box<dyn FnOnce(&mut ChaCha20Rng, &mut ThreadChannel<T>) -> Result<T, Abort> + Send>;

enum State<T> {
    New(ProtocolFn<T>),
    Running(Sender<InboundMessage>, Receiver<ThreadEvent<T>>),
    Finished,
}

/// A session whose protocol runs on a thread.
pub(super) struct ThreadedSession<T> {
    me: SignerIndex,
    peers: Vec<SignerIndex>,
    /// The rounds in which we hear from every peer.
    rounds: Vec<u16>,
    seen: BTreeSet<(u16, SignerIndex)>,
    state: State<T>,
}

crate::secrets::secret!(ThreadedSession<crate::backend::KeyShare>);

impl<T: Send + 'static> ThreadedSession<T> {
    /// `peers` ascending; `rounds` are those in which every peer sends us a message.
    pub(super) fn new(
        me: SignerIndex,
        peers: Vec<SignerIndex>,
        rounds: Vec<u16>,
        body: impl FnOnce(&mut ChaCha20Rng, &mut ThreadChannel<T>) -> Result<T, Abort> + Send + 'static,
    ) -> Self {
        Self {
            me,
            peers,
            rounds,
            seen: BTreeSet::new(),
            state: State::New(Box::new(body)),
        }
    }

    /// Takes what the thread says until it waits or ends.
    fn pump(&mut self) -> Result<StepOutput<T>, Abort> {
        let State::Running(_, events) = &self.state else {
            return Err(Abort::new("the session has ended"));
        };
        let mut output = StepOutput::wait();
        loop {
            match events.recv() {
                Ok(ThreadEvent::Send(messages)) => output.send.extend(messages),
                Ok(ThreadEvent::Waits) => return Ok(output),
                Ok(ThreadEvent::Ended(outcome)) => {
                    self.state = State::Finished;
                    output.done = Some(outcome?);
                    return Ok(output);
                }
                Err(_) => {
                    self.state = State::Finished;
                    return Err(Abort::panicked());
                }
            }
        }
    }
}

impl<T: Send + 'static> Session<T> for ThreadedSession<T> {
    fn start(&mut self, entropy: &dyn Entropy) -> Result<StepOutput<T>, Abort> {
        let State::New(body) = std::mem::replace(&mut self.state, State::Finished) else {
            return Err(Abort::new("the session has ended"));
        };
        let mut seed = Zeroizing::new([0; 32]);
        entropy.fill(seed.as_mut());
        let (send, inbox) = channel();
        let (events, heard) = channel();
        let mut link = ThreadChannel {
            me: self.me,
            peers: self.peers.clone(),
            inbox,
            events,
            early: Vec::new(),
        };
        std::thread::Builder::new()
            .name("cggmp24".to_owned())
            .spawn(move || {
                let mut rng = ChaCha20Rng::from_seed(*seed);
                let outcome = body(&mut rng, &mut link);
                // The session may be gone.
                let _ = link.events.send(ThreadEvent::Ended(outcome));
            })
            .map_err(|error| Abort::new(format!("no thread for the protocol: {error}")))?;
        self.state = State::Running(send, heard);
        self.pump()
    }

    fn receive(
        &mut self,
        from: SignerIndex,
        round: u16,
        body: Zeroizing<Vec<u8>>,
    ) -> Result<StepOutput<T>, Abort> {
        if !self.peers.contains(&from) || !self.rounds.contains(&round) {
            return Err(Abort::blame(
                from,
                format!("message of round {round} out of place"),
            ));
        }
        if !self.seen.insert((round, from)) {
            return Err(Abort::blame(
                from,
                format!("second message of round {round}"),
            ));
        }
        let State::Running(send, _) = &self.state else {
            return Err(Abort::new("the session has ended"));
        };
        // A thread that is gone says nothing more: the pump finds out.
        let _ = send.send(InboundMessage { from, round, body });
        self.pump()
    }

    fn waiting_for(&self) -> Vec<SignerIndex> {
        let missing = |round: &u16| -> Vec<SignerIndex> {
            let absent = |peer: &&SignerIndex| !self.seen.contains(&(*round, **peer));
            self.peers.iter().filter(absent).copied().collect()
        };
        self.rounds
            .iter()
            .map(missing)
            .find(|peers| !peers.is_empty())
            .unwrap_or_default()
    }

    fn last_round(&self) -> u16 {
        self.rounds.iter().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn blamed__should_find_the_names_in_the_crates_texts() {
        let blame = "Aborted { parties: [AbortBlame { faulty_party: 2, data_message: 7 }] }";
        assert_eq!(blamed(blame), [2]);
        assert_eq!(
            blamed("FeldmanVerificationFailed { parties: [0, 12] }"),
            [0, 12]
        );
        assert!(blamed("MismatchedDelta").is_empty());
    }
}
