//! Entry points for fuzz targets (`mpc/fuzz`, and in short `mpc/tests/fuzz.rs`): bytes of a hostile
//! peer, handed to everything that decodes such bytes. None may panic, whatever the bytes.
//!
//! Behind the feature `simulation`, which no release turns on.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use covault_core::{
    derive::KeyPath, fault::Fault, port::Entropy, scheme::Scheme, signature::Signature,
};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::{
    backend::{self, Abort, Index, KeygenSetup, Outgoing, Session, SignSetup, Signer},
    bus::memory::MemoryBus,
    envelope::{Envelope, Post},
    identity::NodeIdentity,
    message,
    shares::age_file,
};

/// The target's own index; the hostile peer's.
const ME: Index = 1;
const PEER: Index = 2;

/// The same randomness every time, so that a finding can be replayed. Not for keys.
struct Counter(Mutex<(u8, u64)>);

impl Counter {
    fn new(name: u8) -> Self {
        Self(Mutex::new((name, 0)))
    }
}

impl Entropy for Counter {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for chunk in bytes.chunks_mut(32) {
            state.1 = state.1.wrapping_add(1);
            let hash = Sha256::new()
                .chain_update([state.0])
                .chain_update(state.1.to_be_bytes())
                .finalize();
            for (byte, random) in chunk.iter_mut().zip(hash) {
                *byte = random;
            }
        }
    }
}

/// What a target found; the fuzzer and the test stop at it.
pub type Finding = String;

fn finding(what: impl fmt::Display) -> Result<(), Finding> {
    Err(what.to_string())
}

/// Parses and opens an envelope. What parses must be written as it was read, and none may open:
/// the bytes have no signature of anybody's.
///
/// # Errors
/// What should not have happened.
pub fn envelope(data: &[u8]) -> Result<(), Finding> {
    static POST: OnceLock<Post> = OnceLock::new();
    let post = POST.get_or_init(|| {
        let entropy = Arc::new(Counter::new(0));
        let identity = Arc::new(NodeIdentity::generate(&*entropy));
        Post::new(identity, MemoryBus::new(), entropy)
    });
    let Ok(mut envelope) = Envelope::parse(data.to_vec()) else {
        return Ok(());
    };
    if !data.starts_with(&envelope.header.to_bytes()) {
        return finding("the header reads back differently");
    }
    envelope.header.to = post.id();
    if post.open(&envelope).is_ok() {
        return finding("bytes of nobody have a valid signature");
    }
    Ok(())
}

/// Decodes what envelopes carry beside protocol messages, and the plaintext of a share file. The
/// first byte chooses which. What decodes must be written as it was read.
///
/// # Errors
/// What should not have happened.
pub fn messages(data: &[u8]) -> Result<(), Finding> {
    let Some((which, body)) = data.split_first() else {
        return Ok(());
    };
    let again = match which % 5 {
        0 => message::again::<message::SignRequest>(body),
        1 => message::again::<message::KeygenRequest>(body),
        2 => {
            if let Some(reply) = message::decode::<message::Reply>(body) {
                drop(reply.cleaned());
            }
            message::again::<message::Reply>(body)
        }
        3 => message::again::<message::Announcement>(body),
        _ => age_file::again(body),
    };
    match again {
        Some(bytes) if bytes != body => finding("a message reads back differently"),
        _ => Ok(()),
    }
}

/// Messages that wait, and how the party ended, if it did.
struct Party<T> {
    session: Box<dyn Session<T>>,
    over: bool,
}

impl<T> Party<T> {
    fn take(&mut self, from: Index, message: Outgoing) -> Result<Vec<Outgoing>, Abort> {
        if self.over {
            return Ok(Vec::new());
        }
        let turn = self.session.receive(from, message.round, message.body)?;
        self.over = turn.done.is_some();
        Ok(turn.send)
    }
}

/// Brings a run of two to the point where the target waits for the hostile peer's message of the
/// round, hands over the bytes instead, and then all that the peer has to say in later rounds.
fn hostile<T>(
    me: Box<dyn Session<T>>,
    peer: Box<dyn Session<T>>,
    round: u16,
    data: &[u8],
) -> Result<(), Finding> {
    let broken = |abort: Abort| format!("the honest run failed: {abort:?}");
    let (mut me, mut peer) = (
        Party {
            session: me,
            over: false,
        },
        Party {
            session: peer,
            over: false,
        },
    );
    let entropy = Counter::new(ME);
    let mut to_peer = me.session.start(&entropy).map_err(broken)?.send;
    let entropy = Counter::new(PEER);
    let mut to_me = peer.session.start(&entropy).map_err(broken)?.send;
    let mut later = Vec::new();
    loop {
        if let Some(message) = to_peer.pop() {
            to_me.extend(peer.take(ME, message).map_err(broken)?);
        } else if let Some(message) = to_me.pop() {
            if message.round >= round {
                later.push(message);
            } else {
                to_peer.extend(me.take(PEER, message).map_err(broken)?);
            }
        } else {
            break;
        }
    }
    later.retain(|message| message.round > round);
    let hostile = Outgoing {
        to: ME,
        round,
        private: false,
        body: Zeroizing::new(data.to_vec()),
    };
    for message in std::iter::once(hostile).chain(later) {
        match me.take(PEER, message) {
            Ok(_) => {}
            Err(abort) if abort.culprits.contains(&ME) || abort.ban.contains(&ME) => {
                return finding(format_args!("we blame ourselves: {abort:?}"));
            }
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

fn setup(me: Index) -> KeygenSetup {
    KeygenSetup {
        context: [7; 32],
        me,
        threshold: 2,
        parties: 2,
    }
}

/// A hostile message in a key generation of two; the first byte chooses the round.
///
/// # Errors
/// What should not have happened.
pub fn keygen(scheme: Scheme, data: &[u8]) -> Result<(), Finding> {
    let Some((round, body)) = data.split_first() else {
        return Ok(());
    };
    let round = u16::from(round % 5).saturating_add(1);
    let backend = backend::of(scheme).map_err(|fault| format!("{fault:?}"))?;
    let session = |me| {
        backend
            .keygen(setup(me))
            .map_err(|fault| format!("{fault:?}"))
    };
    hostile(session(ME)?, session(PEER)?, round, body)
}

/// As [`keygen`], through the keys that live for one run: the first message is a key, what follows is
/// sealed.
///
/// # Errors
/// What should not have happened.
pub fn sealed_keygen(scheme: Scheme, data: &[u8]) -> Result<(), Finding> {
    let Some((round, body)) = data.split_first() else {
        return Ok(());
    };
    let round = u16::from(round % 3).saturating_add(1);
    let backend = backend::of(scheme).map_err(|fault| format!("{fault:?}"))?;
    let session = |me| {
        let no_primes = Box::new(|| Err(Fault::bug("no primes are needed")));
        backend::private::keygen(backend, setup(me), no_primes)
            .map_err(|fault| format!("{fault:?}"))
    };
    hostile(session(ME)?, session(PEER)?, round, body)
}

/// What a party said, by round.
pub type Said = Vec<(u16, Vec<u8>)>;

/// Runs two honest parties to the end. Gives what the second one said.
fn talk<T>(
    me: Box<dyn Session<T>>,
    peer: Box<dyn Session<T>>,
    mut done: impl FnMut(Index, T),
) -> Result<Said, Finding> {
    let broken = |abort: Abort| format!("the honest run failed: {abort:?}");
    let (mut said, mut queue) = (Vec::new(), Vec::new());
    let mut parties = [(ME, me), (PEER, peer)];
    for (index, party) in &mut parties {
        let turn = party.start(&Counter::new(*index)).map_err(broken)?;
        queue.extend(turn.send);
    }
    while let Some(message) = queue.pop() {
        let from = if message.to == ME { PEER } else { ME };
        if from == PEER {
            said.push((message.round, message.body.to_vec()));
        }
        for (index, party) in &mut parties {
            if *index == message.to {
                let turn = party
                    .receive(from, message.round, message.body.clone())
                    .map_err(broken)?;
                queue.extend(turn.send);
                if let Some(outcome) = turn.done {
                    done(*index, outcome);
                }
            }
        }
    }
    Ok(said)
}

type Signers = (Arc<dyn Signer>, Arc<dyn Signer>);

/// Loaded shares of one key of two, made once.
fn signers(scheme: Scheme) -> Result<Signers, Finding> {
    static MADE: Mutex<Vec<(Scheme, Signers)>> = Mutex::new(Vec::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, signers)) = made.iter().find(|(known, _)| *known == scheme) {
        return Ok(signers.clone());
    }
    let backend = backend::of(scheme).map_err(|fault| format!("{fault:?}"))?;
    let session = |me| {
        backend
            .keygen(setup(me))
            .map_err(|fault| format!("{fault:?}"))
    };
    let mut shares = BTreeMap::new();
    talk(session(ME)?, session(PEER)?, |index, share| {
        shares.insert(index, share);
    })?;
    let mut signers = shares.values().map(|share| backend.open(share));
    let (Some(Ok(me)), Some(Ok(peer))) = (signers.next(), signers.next()) else {
        return Err("no key was made".into());
    };
    made.push((scheme, (Arc::clone(&me), Arc::clone(&peer))));
    Ok((me, peer))
}

/// A signing session that the target collects.
fn signing(signer: &Arc<dyn Signer>) -> Result<Box<dyn Session<Option<Signature>>>, Finding> {
    let path = KeyPath::new(vec![0, 1]).map_err(|fault| format!("{fault:?}"))?;
    let setup = SignSetup {
        context: [8; 32],
        signers: vec![ME, PEER],
        path,
        message: vec![9; 32],
    };
    signer.sign(setup).map_err(|fault| format!("{fault:?}"))
}

/// A hostile message in a signature of two, of which the target collects; the first byte chooses the
/// round.
///
/// # Errors
/// What should not have happened.
pub fn sign(scheme: Scheme, data: &[u8]) -> Result<(), Finding> {
    let Some((round, body)) = data.split_first() else {
        return Ok(());
    };
    let round = u16::from(round % 4).saturating_add(1);
    let (me, peer) = signers(scheme)?;
    hostile(signing(&me)?, signing(&peer)?, round, body)
}

/// What the honest peer says in a key generation and in a signature, as inputs to begin with.
///
/// # Errors
/// What should not have happened.
pub fn samples(scheme: Scheme) -> Result<(Said, Said), Finding> {
    let backend = backend::of(scheme).map_err(|fault| format!("{fault:?}"))?;
    let session = |me| {
        backend
            .keygen(setup(me))
            .map_err(|fault| format!("{fault:?}"))
    };
    let keygen = talk(session(ME)?, session(PEER)?, |_, _| {})?;
    let (me, peer) = signers(scheme)?;
    let sign = talk(signing(&me)?, signing(&peer)?, |_, _| {})?;
    Ok((keygen, sign))
}
