//! Key generation and resharing, sealed with keys that live for one run.
//!
//! Envelopes are sealed with the identities of both ends. Who records the bus and steals an
//! identity file later could open them, and with them a share. So the parties of such a run
//! first tell each other an X25519 key made for this run, in a round whose envelopes are signed;
//! all that follows is sealed with those (`crypto_box`), and they are gone when it ends.

use std::collections::BTreeMap;

use covault_core::{fault::Fault, port::Entropy};
use crypto_box::{
    ChaChaBox, PublicKey, SecretKey,
    aead::{Aead as _, generic_array::GenericArray},
};
use zeroize::Zeroizing;

use super::PrimeSource;
use super::{
    Abort, Backend, KeyShare, KeygenSetup, OutgoingMessage, PlainShare, ReshareSetup, Session,
    SignerIndex, StepOutput,
};

/// The round in which the keys are exchanged; the protocol's own rounds follow.
const KEYS: u16 = 1;
const NONCE: usize = 24;

/// A key generation session of `backend` whose messages only the parties of this run can read.
///
/// # Errors
/// As [`Backend::keygen`].
pub fn keygen(
    backend: &dyn Backend,
    setup: KeygenSetup,
    primes: PrimeSource,
) -> Result<Box<dyn Session<KeyShare>>, Fault> {
    let me = setup.me;
    let peers = (1..=setup.parties).filter(|index| *index != me).collect();
    let inner = backend.keygen_with(setup, primes)?;
    Ok(Box::new(EncryptedSession::new(me, peers, inner)))
}

/// A resharing session of `backend` whose messages only the parties of this run can read.
///
/// # Errors
/// As [`Backend::reshare`].
pub fn reshare(
    backend: &dyn Backend,
    setup: ReshareSetup,
    share: Option<PlainShare>,
) -> Result<Box<dyn Session<Option<KeyShare>>>, Fault> {
    let me = setup.me;
    let peers = (1..=setup.parties()).filter(|index| *index != me).collect();
    let inner = backend.reshare(setup, share)?;
    Ok(Box::new(EncryptedSession::new(me, peers, inner)))
}

struct EncryptedSession<T> {
    me: SignerIndex,
    peers: Vec<SignerIndex>,
    inner: Box<dyn Session<T>>,
    /// Ours, until the boxes are made.
    secret: Option<SecretKey>,
    keys: BTreeMap<SignerIndex, [u8; 32]>,
    /// Empty until everyone's key is here.
    boxes: BTreeMap<SignerIndex, ChaChaBox>,
    /// What waits for that.
    outgoing: Vec<OutgoingMessage>,
    incoming: Vec<(SignerIndex, u16, Zeroizing<Vec<u8>>)>,
}

crate::secrets::secret!(EncryptedSession<KeyShare>);

/// One message per direction and round: no nonce comes twice under a key.
fn nonce(from: SignerIndex, to: SignerIndex, round: u16) -> [u8; NONCE] {
    let mut nonce = [0; NONCE];
    let [high, low] = round.to_be_bytes();
    for (place, byte) in nonce.iter_mut().zip([from, to, high, low]) {
        *place = byte;
    }
    nonce
}

impl<T> EncryptedSession<T> {
    fn new(me: SignerIndex, peers: Vec<SignerIndex>, inner: Box<dyn Session<T>>) -> Self {
        Self {
            me,
            peers,
            inner,
            secret: None,
            keys: BTreeMap::new(),
            boxes: BTreeMap::new(),
            outgoing: Vec::new(),
            incoming: Vec::new(),
        }
    }

    fn seal(&self, messages: Vec<OutgoingMessage>) -> Result<Vec<OutgoingMessage>, Abort> {
        messages
            .into_iter()
            .map(|message| {
                let round = message.round.saturating_add(KEYS);
                let nonce = nonce(self.me, message.to, round);
                let body = self
                    .boxes
                    .get(&message.to)
                    .and_then(|peer| {
                        peer.encrypt(GenericArray::from_slice(&nonce), message.body.as_slice())
                            .ok()
                    })
                    .ok_or_else(|| Abort::new("sealing failed"))?;
                Ok(OutgoingMessage {
                    round,
                    body: Zeroizing::new(body),
                    ..message
                })
            })
            .collect()
    }

    fn feed(
        &mut self,
        from: SignerIndex,
        round: u16,
        sealed: &[u8],
    ) -> Result<StepOutput<T>, Abort> {
        let body = self
            .boxes
            .get(&from)
            .and_then(|peer| {
                let nonce = nonce(from, self.me, round);
                peer.decrypt(GenericArray::from_slice(&nonce), sealed).ok()
            })
            .map(Zeroizing::new)
            .ok_or_else(|| Abort::blame(from, "a message does not open"))?;
        let output = self.inner.receive(from, round.saturating_sub(KEYS), body)?;
        Ok(StepOutput {
            send: self.seal(output.send)?,
            done: output.done,
        })
    }

    fn key(&mut self, from: SignerIndex, body: &[u8]) -> Result<StepOutput<T>, Abort> {
        let key: [u8; 32] = body
            .try_into()
            .map_err(|_| Abort::blame(from, "malformed key"))?;
        if !self.peers.contains(&from) || self.keys.insert(from, key).is_some() {
            return Err(Abort::blame(from, "key out of place"));
        }
        if self.keys.len() < self.peers.len() {
            return Ok(StepOutput::wait());
        }
        let secret = self
            .secret
            .take()
            .ok_or_else(|| Abort::new("out of order"))?;
        for (index, key) in &self.keys {
            let peer = ChaChaBox::new(&PublicKey::from_bytes(*key), &secret);
            self.boxes.insert(*index, peer);
        }
        let outgoing = std::mem::take(&mut self.outgoing);
        let mut output = StepOutput::send(self.seal(outgoing)?);
        for (from, round, body) in std::mem::take(&mut self.incoming) {
            let next = self.feed(from, round, &body)?;
            output.send.extend(next.send);
            if next.done.is_some() {
                output.done = next.done;
                break;
            }
        }
        Ok(output)
    }
}

impl<T> Session<T> for EncryptedSession<T> {
    fn start(&mut self, entropy: &dyn Entropy) -> Result<StepOutput<T>, Abort> {
        let mut bytes = Zeroizing::new([0; 32]);
        entropy.fill(bytes.as_mut());
        let secret = SecretKey::from_bytes(*bytes);
        let public = secret.public_key().to_bytes();
        self.secret = Some(secret);
        self.outgoing = self.inner.start(entropy)?.send;
        let send = self.peers.iter().map(|to| OutgoingMessage {
            to: *to,
            round: KEYS,
            private: false,
            body: Zeroizing::new(public.to_vec()),
        });
        Ok(StepOutput::send(send.collect()))
    }

    fn receive(
        &mut self,
        from: SignerIndex,
        round: u16,
        body: Zeroizing<Vec<u8>>,
    ) -> Result<StepOutput<T>, Abort> {
        if round <= KEYS {
            return self.key(from, &body);
        }
        if !self.boxes.is_empty() {
            return self.feed(from, round, &body);
        }
        // Of a later round nobody can have anything to say before we have spoken in the first.
        let early = self.incoming.iter().any(|(sender, ..)| *sender == from);
        if round > KEYS.saturating_add(1) || early {
            return Err(Abort::blame(
                from,
                format!("message of round {round} before its time"),
            ));
        }
        self.incoming.push((from, round, body));
        Ok(StepOutput::wait())
    }

    fn waiting_for(&self) -> Vec<SignerIndex> {
        if self.boxes.is_empty() {
            let missing = |peer: &&SignerIndex| !self.keys.contains_key(*peer);
            return self.peers.iter().filter(missing).copied().collect();
        }
        self.inner.waiting_for()
    }

    fn last_round(&self) -> u16 {
        self.inner.last_round().saturating_add(KEYS)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{scheme::Scheme, signature::Curve};

    use super::*;
    use crate::{backend::of, test_support::SystemEntropy};

    /// Says one thing to everyone, and is done when it has heard it from all.
    struct FixedMessages {
        peers: Vec<SignerIndex>,
        heard: Vec<SignerIndex>,
    }

    const SECRET: &[u8] = b"a fragment of a polynomial";

    impl Session<()> for FixedMessages {
        fn start(&mut self, _: &dyn Entropy) -> Result<StepOutput<()>, Abort> {
            let send = self.peers.iter().map(|to| OutgoingMessage {
                to: *to,
                round: 1,
                private: true,
                body: Zeroizing::new(SECRET.to_vec()),
            });
            Ok(StepOutput::send(send.collect()))
        }

        fn receive(
            &mut self,
            from: SignerIndex,
            round: u16,
            body: Zeroizing<Vec<u8>>,
        ) -> Result<StepOutput<()>, Abort> {
            assert_eq!((round, body.as_slice()), (1, SECRET));
            self.heard.push(from);
            Ok(StepOutput {
                send: Vec::new(),
                done: (self.heard.len() == self.peers.len()).then_some(()),
            })
        }

        fn waiting_for(&self) -> Vec<SignerIndex> {
            Vec::new()
        }

        fn last_round(&self) -> u16 {
            1
        }
    }

    type Parties<T> = BTreeMap<SignerIndex, Box<dyn Session<T>>>;

    fn fixed_parties() -> Parties<()> {
        (1..=3)
            .map(|me| {
                let peers: Vec<SignerIndex> = (1..=3).filter(|index| *index != me).collect();
                let inner = FixedMessages {
                    peers: peers.clone(),
                    heard: Vec::new(),
                };
                let session = EncryptedSession::new(me, peers, Box::new(inner));
                (me, Box::new(session) as Box<dyn Session<()>>)
            })
            .collect()
    }

    /// The last sent comes first: messages overtake the keys that open them.
    fn run<T>(
        mut parties: Parties<T>,
        mut see: impl FnMut(SignerIndex, &mut OutgoingMessage),
    ) -> BTreeMap<SignerIndex, Result<T, Abort>> {
        let mut queue = Vec::new();
        for (me, party) in &mut parties {
            let output = party.start(&SystemEntropy).unwrap();
            queue.extend(output.send.into_iter().map(|message| (*me, message)));
        }
        let mut outcomes = BTreeMap::new();
        while let Some((from, mut message)) = queue.pop() {
            see(from, &mut message);
            let to = message.to;
            if outcomes.contains_key(&to) {
                continue;
            }
            let party = parties.get_mut(&to).unwrap();
            match party.receive(from, message.round, message.body) {
                Ok(output) => {
                    queue.extend(output.send.into_iter().map(|message| (to, message)));
                    outcomes.extend(output.done.map(|done| (to, Ok(done))));
                }
                Err(abort) => {
                    outcomes.insert(to, Err(abort));
                }
            }
        }
        outcomes
    }

    #[test]
    fn private__should_show_nothing_to_who_has_only_the_identities() {
        let mut bodies = Vec::new();
        let outcomes = run(fixed_parties(), |_, message| {
            bodies.push(message.body.to_vec())
        });
        assert_eq!(outcomes.len(), 3);
        assert!(outcomes.values().all(Result::is_ok));
        assert_eq!(bodies.len(), 12);
        let shows = |body: &Vec<u8>| body.windows(SECRET.len()).any(|window| window == SECRET);
        assert!(!bodies.iter().any(shows));
        bodies.sort();
        bodies.dedup();
        // Three keys, sent twice; everything else differs.
        assert_eq!(bodies.len(), 9);
    }

    #[test]
    fn private__should_name_who_sends_what_does_not_open() {
        let outcomes = run(fixed_parties(), |from, message| {
            if (from, message.to, message.round) == (2, 1, 2) {
                message.body[0] ^= 1;
            }
        });
        let abort = outcomes[&1].as_ref().unwrap_err();
        assert_eq!(abort.culprits, [2]);
        assert!(outcomes[&3].is_ok());
    }

    #[test]
    fn private__should_keep_one_early_message_of_each_and_no_more() {
        let mut parties = fixed_parties();
        let party = parties.get_mut(&1).unwrap();
        party.start(&SystemEntropy).unwrap();
        let mut say = |from, round| party.receive(from, round, Zeroizing::new(vec![0; 99]));
        // Nobody's key is here.
        assert!(say(2, 2).is_ok());
        assert!(say(3, 2).is_ok());
        for (from, round) in [(2, 2), (3, 3), (3, u16::MAX)] {
            assert_eq!(say(from, round).err().unwrap().culprits, [from]);
        }
    }

    #[test]
    fn private__should_make_a_key() {
        let parties = (1..=3)
            .map(|me| {
                let setup = KeygenSetup {
                    context: [4; 32],
                    me,
                    threshold: 2,
                    parties: 3,
                };
                let backend = of(Scheme::default_of(Curve::Ed25519)).unwrap();
                let primes = Box::new(|| unreachable!("FROST takes no primes"));
                (me, keygen(backend, setup, primes).unwrap())
            })
            .collect();
        let roots: Vec<_> = run(parties, |_, _| {})
            .into_values()
            .map(|share| share.unwrap().root)
            .collect();
        assert_eq!(roots.len(), 3);
        assert!(roots.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
