//! Runs the protocol sessions of one attempt: several inputs in parallel, one envelope slot for
//! each (sender, round, input), identities instead of indices. No I/O.

use std::collections::{BTreeSet, HashMap};

use covault_core::{order::NodeId, port::Entropy, signature::Signature};
use zeroize::Zeroizing;

use crate::{
    backend::{Abort, KeyShare, OutgoingMessage, Session, SignerIndex},
    envelope::SignedHeader,
    evidence::Equivocation,
};

/// Bytes of a view.
const VIEW_LEN: usize = 32;

/// A message to be sent.
pub(crate) struct ProtocolMessage {
    pub to: NodeId,
    pub round: u16,
    pub sequence: u32,
    pub private: bool,
    pub body: Zeroizing<Vec<u8>>,
}

crate::secrets::secret!(ProtocolMessage { body });

/// How a run ended well.
pub(crate) enum Finished {
    /// We are the collector.
    Signed(Vec<Signature>),
    /// Another signer is.
    Contributed,
    /// The key is made.
    KeyMade(KeyShare),
    /// The new share is made; none for who leaves.
    Reshared(Option<KeyShare>),
}

crate::secrets::secret!(Finished);

/// How a run ended badly.
pub(crate) struct RunFailure {
    pub reason: String,
    pub culprits: Vec<NodeId>,
    pub ban: Vec<NodeId>,
    /// What shows that the culprit has said two things.
    pub evidence: Option<Box<Equivocation>>,
}

/// What a step gives.
#[derive(Default)]
pub(crate) struct RunProgress {
    pub send: Vec<ProtocolMessage>,
    pub finished: Option<Finished>,
}

enum RunSessions {
    Signing {
        sessions: Vec<SessionSlot<Option<Signature>>>,
        outcomes: Vec<Option<Signature>>,
        /// The public key that signs.
        root: Vec<u8>,
        /// A hash of what was ordered: all signers say theirs, before each message. Whom an
        /// orchestrator has told something else is not heard here, and not blamed: its messages
        /// would look like those of a cheat.
        view: [u8; VIEW_LEN],
    },
    Keygen(SessionSlot<KeyShare>),
    Reshare(SessionSlot<Option<KeyShare>>),
}

/// The fingerprint of a message, and what shows others who sent it.
type SentAs = ([u8; 32], Option<SignedHeader>);

/// One attempt, as one node sees it.
pub(crate) struct ProtocolRun {
    protocol: RunSessions,
    /// The other parties.
    peers: HashMap<NodeId, SignerIndex>,
    /// The last round that has messages.
    last_round: u16,
    /// What has come, by slot.
    seen: HashMap<(NodeId, u16, u32), SentAs>,
    /// Who was told something else.
    misled: BTreeSet<NodeId>,
}

crate::secrets::secret!(ProtocolRun);

impl ProtocolRun {
    fn new(protocol: RunSessions, peers: HashMap<NodeId, SignerIndex>, last_round: u16) -> Self {
        Self {
            protocol,
            peers,
            last_round,
            seen: HashMap::new(),
            misled: BTreeSet::new(),
        }
    }

    /// Signs one input per session.
    pub(crate) fn signing(
        sessions: Vec<Box<dyn Session<Option<Signature>>>>,
        peers: HashMap<NodeId, SignerIndex>,
        root: Vec<u8>,
        view: [u8; VIEW_LEN],
    ) -> Self {
        let last_round = sessions.iter().map(|it| it.last_round()).max().unwrap_or(0);
        let protocol = RunSessions::Signing {
            outcomes: sessions.iter().map(|_| None).collect(),
            sessions: sessions.into_iter().map(Some).collect(),
            root,
            view,
        };
        Self::new(protocol, peers, last_round)
    }

    /// Makes a key.
    pub(crate) fn keygen(
        session: Box<dyn Session<KeyShare>>,
        peers: HashMap<NodeId, SignerIndex>,
    ) -> Self {
        let last_round = session.last_round();
        Self::new(RunSessions::Keygen(Some(session)), peers, last_round)
    }

    /// Makes a new generation of shares.
    pub(crate) fn reshare(
        session: Box<dyn Session<Option<KeyShare>>>,
        peers: HashMap<NodeId, SignerIndex>,
    ) -> Self {
        let last_round = session.last_round();
        Self::new(RunSessions::Reshare(Some(session)), peers, last_round)
    }

    /// The root public key that signs; `None` while a key or its shares are made.
    pub(crate) fn root(&self) -> Option<&[u8]> {
        match &self.protocol {
            RunSessions::Signing { root, .. } => Some(root),
            RunSessions::Keygen(_) | RunSessions::Reshare(_) => None,
        }
    }

    /// Whether its messages must show others who sent them. Where keys and shares are made, what a party said decides
    /// about the key for good, and nothing is in a hurry.
    pub(crate) fn must_be_signed(&self) -> bool {
        match &self.protocol {
            RunSessions::Signing { .. } => false,
            RunSessions::Keygen(_) | RunSessions::Reshare(_) => true,
        }
    }

    /// The last round that has messages.
    pub(crate) fn last_round(&self) -> u16 {
        self.last_round
    }

    /// Whether `node` is one of the other parties.
    pub(crate) fn is_peer(&self, node: &NodeId) -> bool {
        self.peers.contains_key(node)
    }

    /// The other parties.
    pub(crate) fn peers(&self) -> Vec<NodeId> {
        self.peers.keys().copied().collect()
    }

    /// The first step.
    pub(crate) fn start(&mut self, entropy: &dyn Entropy) -> Result<RunProgress, RunFailure> {
        let mut progress = RunProgress::default();
        match &mut self.protocol {
            RunSessions::Signing {
                sessions, outcomes, ..
            } => {
                let slots = sessions.iter_mut().zip(outcomes.iter_mut());
                for (sequence, (slot, outcome)) in (0_u32..).zip(slots) {
                    let Some(session) = slot else { continue };
                    let output = session
                        .start(entropy)
                        .map_err(|abort| fail(&self.peers, abort))?;
                    address(&self.peers, sequence, output.send, &mut progress.send);
                    // With nonces made ahead the first step may be the last.
                    if let Some(signature) = output.done {
                        *slot = None;
                        *outcome = signature;
                    }
                }
                progress.finished = signed(sessions, outcomes);
            }
            RunSessions::Keygen(slot) => {
                start_only(&self.peers, slot, entropy, &mut progress.send)?;
            }
            RunSessions::Reshare(slot) => {
                start_only(&self.peers, slot, entropy, &mut progress.send)?;
            }
        }
        Ok(progress)
    }

    /// What stands before each message that we send: what was ordered of us.
    pub(crate) fn view(&self) -> &[u8] {
        match &self.protocol {
            RunSessions::Signing { view, .. } => view,
            RunSessions::Keygen(_) | RunSessions::Reshare(_) => &[],
        }
    }

    /// Those who were told something else than we were, or say so.
    pub(crate) fn misled(&self) -> &BTreeSet<NodeId> {
        &self.misled
    }

    /// Takes a message of a peer; the sender is certain. A repetition is ignored, a second
    /// different message for the same slot ends the run and names its sender.
    pub(crate) fn receive(
        &mut self,
        from: NodeId,
        round: u16,
        sequence: u32,
        (fingerprint, proof): SentAs,
        mut body: Zeroizing<Vec<u8>>,
    ) -> Result<RunProgress, RunFailure> {
        let mut progress = RunProgress::default();
        let Some(index) = self.peers.get(&from).copied() else {
            return Ok(progress);
        };
        // So much can come, and no more: nothing of a peer is kept without bound.
        let (last_round, sessions) = self.slots();
        if round == 0 || round > last_round || u64::from(sequence) >= sessions {
            return Err(RunFailure {
                reason: format!("no message of round {round} and input {sequence} is due"),
                culprits: vec![from],
                ban: Vec::new(),
                evidence: None,
            });
        }
        match self.seen.get(&(from, round, sequence)) {
            None => {}
            Some((known, _)) if *known == fingerprint => return Ok(progress),
            Some((_, first)) => {
                let both = first.as_ref().zip(proof.as_ref());
                let evidence = both.and_then(|(one, other)| Equivocation::of(one, other));
                // Under a pair key nobody else can have sent it, but that only we know.
                let certain = both.is_none() || evidence.is_some();
                return Err(RunFailure {
                    reason: format!("two different messages for round {round}"),
                    culprits: certain.then_some(from).into_iter().collect(),
                    ban: Vec::new(),
                    evidence: evidence.map(Box::new),
                });
            }
        }
        if proof.is_none() && self.must_be_signed() {
            return Err(RunFailure {
                reason: format!("the message of round {round} is not signed"),
                culprits: vec![from],
                ban: Vec::new(),
                evidence: None,
            });
        }
        self.seen
            .insert((from, round, sequence), (fingerprint, proof));
        if let RunSessions::Signing { view, .. } = &self.protocol {
            match body.split_first_chunk::<VIEW_LEN>() {
                Some((theirs, _)) if theirs == view => drop(body.drain(..VIEW_LEN)),
                Some(_) => {
                    self.misled.insert(from);
                    return Ok(progress);
                }
                // Whatever it was told, it would have said so.
                None => {
                    return Err(RunFailure {
                        reason: format!("the message of round {round} is too short"),
                        culprits: vec![from],
                        ban: Vec::new(),
                        evidence: None,
                    });
                }
            }
        }
        match &mut self.protocol {
            RunSessions::Signing {
                sessions, outcomes, ..
            } => {
                let place = usize::try_from(sequence).unwrap_or(usize::MAX);
                let (Some(slot), Some(outcome)) =
                    (sessions.get_mut(place), outcomes.get_mut(place))
                else {
                    return Ok(progress);
                };
                let Some(session) = slot else {
                    return Ok(progress);
                };
                let output = session
                    .receive(index, round, body)
                    .map_err(|abort| fail(&self.peers, abort))?;
                address(&self.peers, sequence, output.send, &mut progress.send);
                if let Some(signature) = output.done {
                    *slot = None;
                    *outcome = signature;
                    progress.finished = signed(sessions, outcomes);
                }
            }
            RunSessions::Keygen(slot) => {
                let message = (index, round, body);
                let done = feed_only(&self.peers, slot, message, &mut progress.send)?;
                progress.finished = done.map(Finished::KeyMade);
            }
            RunSessions::Reshare(slot) => {
                let message = (index, round, body);
                let done = feed_only(&self.peers, slot, message, &mut progress.send)?;
                progress.finished = done.map(Finished::Reshared);
            }
        }
        Ok(progress)
    }

    /// The last round, and how many sessions there are.
    fn slots(&self) -> (u16, u64) {
        let sessions = match &self.protocol {
            RunSessions::Signing { sessions, .. } => sessions.len(),
            RunSessions::Keygen(_) | RunSessions::Reshare(_) => 1,
        };
        (self.last_round, u64::try_from(sessions).unwrap_or(u64::MAX))
    }

    /// Whose messages are missing.
    pub(crate) fn missing(&self) -> Vec<NodeId> {
        let mut indices: Vec<SignerIndex> = match &self.protocol {
            RunSessions::Signing { sessions, .. } => sessions
                .iter()
                .flatten()
                .flat_map(|session| session.waiting_for())
                .collect(),
            RunSessions::Keygen(slot) => waiting_for(slot),
            RunSessions::Reshare(slot) => waiting_for(slot),
        };
        indices.sort_unstable();
        indices.dedup();
        names(&self.peers, &indices)
    }
}

/// A session, until it is over.
type SessionSlot<T> = Option<Box<dyn Session<T>>>;

/// The first step of a run with one session only.
fn start_only<T>(
    peers: &HashMap<NodeId, SignerIndex>,
    slot: &mut SessionSlot<T>,
    entropy: &dyn Entropy,
    send: &mut Vec<ProtocolMessage>,
) -> Result<(), RunFailure> {
    if let Some(session) = slot {
        let output = session.start(entropy).map_err(|abort| fail(peers, abort))?;
        address(peers, 0, output.send, send);
    }
    Ok(())
}

/// A message for a run with one session only; the outcome, once there is one.
fn feed_only<T>(
    peers: &HashMap<NodeId, SignerIndex>,
    slot: &mut SessionSlot<T>,
    (from, round, body): (SignerIndex, u16, Zeroizing<Vec<u8>>),
    send: &mut Vec<ProtocolMessage>,
) -> Result<Option<T>, RunFailure> {
    let Some(session) = slot else {
        return Ok(None);
    };
    let output = session
        .receive(from, round, body)
        .map_err(|abort| fail(peers, abort))?;
    address(peers, 0, output.send, send);
    if output.done.is_some() {
        *slot = None;
    }
    Ok(output.done)
}

fn waiting_for<T>(slot: &SessionSlot<T>) -> Vec<SignerIndex> {
    slot.as_ref()
        .map(|session| session.waiting_for())
        .unwrap_or_default()
}

/// How a signing run has ended, once every session has.
fn signed<T>(sessions: &[Option<T>], outcomes: &[Option<Signature>]) -> Option<Finished> {
    if sessions.iter().any(Option::is_some) {
        return None;
    }
    // All inputs have the same collector.
    let signatures: Vec<_> = outcomes.iter().flatten().cloned().collect();
    Some(if signatures.len() == outcomes.len() {
        Finished::Signed(signatures)
    } else {
        Finished::Contributed
    })
}

fn address(
    peers: &HashMap<NodeId, SignerIndex>,
    sequence: u32,
    outgoing: Vec<OutgoingMessage>,
    send: &mut Vec<ProtocolMessage>,
) {
    for OutgoingMessage {
        to,
        round,
        private,
        body,
    } in outgoing
    {
        if let Some((node, _)) = peers.iter().find(|(_, index)| **index == to) {
            send.push(ProtocolMessage {
                to: *node,
                round,
                sequence,
                private,
                body,
            });
        }
    }
}

fn names(peers: &HashMap<NodeId, SignerIndex>, indices: &[SignerIndex]) -> Vec<NodeId> {
    let mut names: Vec<NodeId> = peers
        .iter()
        .filter(|(_, index)| indices.contains(index))
        .map(|(node, _)| *node)
        .collect();
    names.sort_unstable();
    names
}

fn fail(peers: &HashMap<NodeId, SignerIndex>, abort: Abort) -> RunFailure {
    RunFailure {
        culprits: names(peers, &abort.culprits),
        ban: names(peers, &abort.ban),
        reason: abort.reason,
        evidence: None,
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;
    use crate::{backend::StepOutput, test_support::SystemEntropy};

    /// Counts what it is given; done after two messages.
    struct CounterSession(usize);

    impl<T> Session<Option<T>> for CounterSession {
        fn start(&mut self, _: &dyn Entropy) -> Result<StepOutput<Option<T>>, Abort> {
            let body = Zeroizing::new(vec![1]);
            let send = vec![OutgoingMessage {
                to: 2,
                round: 1,
                private: true,
                body,
            }];
            Ok(StepOutput { send, done: None })
        }

        fn receive(
            &mut self,
            from: SignerIndex,
            _: u16,
            _: Zeroizing<Vec<u8>>,
        ) -> Result<StepOutput<Option<T>>, Abort> {
            assert_eq!(from, 2);
            self.0 += 1;
            Ok(StepOutput {
                send: Vec::new(),
                done: (self.0 == 2).then_some(None),
            })
        }

        fn waiting_for(&self) -> Vec<SignerIndex> {
            vec![2]
        }

        fn last_round(&self) -> u16 {
            2
        }
    }

    const PEER: NodeId = NodeId([2; 32]);
    const VIEWED: [u8; VIEW_LEN] = [7; VIEW_LEN];

    fn run() -> ProtocolRun {
        let sessions = (0..2)
            .map(|_| Box::new(CounterSession(0)) as Box<dyn Session<_>>)
            .collect();
        ProtocolRun::signing(sessions, HashMap::from([(PEER, 2)]), vec![1], VIEWED)
    }

    fn feed(
        run: &mut ProtocolRun,
        from: NodeId,
        slot: (u16, u32),
        print: u8,
    ) -> Result<RunProgress, RunFailure> {
        feed_viewed(run, from, slot, print, VIEWED)
    }

    /// A message as the sender of that number signs it.
    fn feed_viewed(
        run: &mut ProtocolRun,
        from: NodeId,
        (round, sequence): (u16, u32),
        print: u8,
        view: [u8; VIEW_LEN],
    ) -> Result<RunProgress, RunFailure> {
        let body = Zeroizing::new([&view[..], &[print]].concat());
        let signed = SignedHeader::sample(round, sequence, print);
        run.receive(from, round, sequence, ([print; 32], Some(signed)), body)
    }

    #[test]
    fn run__should_end_when_every_input_is_done() {
        let mut run = run();
        let progress = run.start(&SystemEntropy).ok().unwrap();
        let sent: Vec<_> = progress
            .send
            .iter()
            .map(|message| (message.to, message.round, message.sequence))
            .collect();
        assert_eq!(sent, [(PEER, 1, 0), (PEER, 1, 1)]);
        assert_eq!(run.missing(), [PEER]);
        for (slot, last) in [
            ((1, 0), false),
            ((2, 0), false),
            ((1, 1), false),
            ((2, 1), true),
        ] {
            let progress = feed(&mut run, PEER, slot, 1).ok().unwrap();
            assert_eq!(
                matches!(progress.finished, Some(Finished::Contributed)),
                last,
                "{slot:?}"
            );
        }
        assert!(run.missing().is_empty());
    }

    #[test]
    fn run__should_ignore_repetitions_and_unadmitted_nodes() {
        let mut run = run();
        for _ in 0..3 {
            assert!(feed(&mut run, PEER, (1, 0), 1).is_ok());
            assert!(feed(&mut run, NodeId([9; 32]), (2, 0), 1).is_ok());
        }
        let RunSessions::Signing { sessions, .. } = &run.protocol else {
            panic!("not signing")
        };
        assert!(
            sessions.iter().all(Option::is_some),
            "nothing was counted twice"
        );
    }

    #[test]
    fn run__should_name_who_sends_two_messages_for_one_slot() {
        let mut run = run();
        assert!(feed(&mut run, PEER, (1, 0), 1).is_ok());
        let failed = feed(&mut run, PEER, (1, 0), 2).err().unwrap();
        assert_eq!(failed.culprits.len(), 1);
        assert!(failed.evidence.is_some());
    }

    #[test]
    fn run__should_name_who_says_two_things_under_a_pair_key() {
        for signed in [false, true] {
            let mut run = run();
            let mut say = |print: u8, signed: bool| {
                let body = Zeroizing::new([&VIEWED[..], &[print]].concat());
                let proof = signed.then(|| SignedHeader::sample(1, 0, print));
                run.receive(PEER, 1, 0, ([print; 32], proof), body)
            };
            assert!(say(1, signed).is_ok());
            assert!(say(1, signed).is_ok());
            let failed = say(2, !signed).err().unwrap();
            assert_eq!(failed.culprits, [PEER]);
            assert!(failed.evidence.is_none());
        }
    }

    #[test]
    fn run__should_take_nothing_unsigned_where_keys_are_made() {
        let peers = HashMap::from([(PEER, 2)]);
        let mut run = ProtocolRun::reshare(Box::new(CounterSession(0)), peers);
        let body = || Zeroizing::new(vec![1]);
        let failed = run.receive(PEER, 1, 0, ([1; 32], None), body()).err();
        assert_eq!(failed.unwrap().culprits, [PEER]);
        let signed = Some(SignedHeader::sample(1, 0, 1));
        assert!(run.receive(PEER, 1, 0, ([1; 32], signed), body()).is_ok());
    }

    #[test]
    fn run__should_blame_nobody_who_was_told_something_else() {
        let mut run = run();
        assert!(run.start(&SystemEntropy).is_ok());
        assert_eq!(run.view(), VIEWED);
        for slot in [(1, 0), (2, 0), (1, 1), (2, 1)] {
            let progress = feed_viewed(&mut run, PEER, slot, 1, [8; VIEW_LEN])
                .ok()
                .unwrap();
            assert!(progress.finished.is_none());
        }
        assert_eq!(run.misled().iter().copied().collect::<Vec<_>>(), [PEER]);
        assert_eq!(run.missing(), [PEER]);
    }

    #[test]
    fn run__should_keep_nothing_that_no_round_or_input_has() {
        for slot in [(0, 0), (3, 0), (u16::MAX, 0), (1, 2), (1, u32::MAX)] {
            let mut run = run();
            let failed = feed(&mut run, PEER, slot, 1).err().unwrap();
            assert_eq!(failed.culprits, [PEER], "{slot:?}");
            assert!(run.seen.is_empty());
        }
    }
}
