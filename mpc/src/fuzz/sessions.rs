//! Targets for the sessions of backends: an honest run, in which one party says the fuzzer's bytes in
//! the place of one message.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use covault_core::{
    derive::{KeyPath, RootKey},
    fault::Fault,
    scheme::Scheme,
    signature::Signature,
};
use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::{CounterEntropy, Finding, finding};
use crate::{
    backend::{
        self, Abort, Backend, Commitments, Dealer, KeyShare, KeygenSetup, OutgoingMessage,
        PreprocessedNonce, ReshareSetup, Session, SignSetup, Signer, SignerIndex,
    },
    verify::verify_one,
};

/// The target's own index; the hostile peer's.
const ME: SignerIndex = 1;
pub(super) const PEER: SignerIndex = 2;

/// An input as a target takes it.
pub type FuzzInput = Vec<u8>;
type Parties<T> = BTreeMap<SignerIndex, Box<dyn Session<T>>>;

fn broken(abort: &Abort) -> Finding {
    format!("the honest run failed: {abort:?}")
}

fn refused(fault: &Fault) -> Finding {
    format!("{fault:?}")
}

/// A run of parties that are fed by hand.
struct FuzzRun<T> {
    parties: Parties<T>,
    queue: VecDeque<(SignerIndex, OutgoingMessage)>,
    done: BTreeMap<SignerIndex, T>,
}

impl<T> FuzzRun<T> {
    fn new(parties: Parties<T>) -> Self {
        Self {
            parties,
            queue: VecDeque::new(),
            done: BTreeMap::new(),
        }
    }

    fn start(&mut self, which: impl Fn(SignerIndex) -> bool) -> Result<(), Abort> {
        for (index, party) in &mut self.parties {
            if which(*index) {
                let output = party.start(&CounterEntropy::new(*index))?;
                let sent = output.send.into_iter().map(|message| (*index, message));
                self.queue.extend(sent);
                self.done.extend(output.done.map(|done| (*index, done)));
            }
        }
        Ok(())
    }

    /// Feeds a party, unless it has ended.
    fn feed(&mut self, from: SignerIndex, message: OutgoingMessage) -> Result<(), Abort> {
        let to = message.to;
        let Some(party) = self.parties.get_mut(&to) else {
            return Ok(());
        };
        if self.done.contains_key(&to) {
            return Ok(());
        }
        let output = party.receive(from, message.round, message.body)?;
        let sent = output.send.into_iter().map(|message| (to, message));
        self.queue.extend(sent);
        self.done.extend(output.done.map(|done| (to, done)));
        Ok(())
    }
}

/// Only the hostile peer may be named, no matter who names it.
fn judge(abort: &Abort) -> Result<(), Finding> {
    let mut named = abort.culprits.iter().chain(&abort.ban);
    if named.any(|index| *index != PEER) {
        return finding(format_args!("an honest party is blamed: {abort:?}"));
    }
    if abort.panicked {
        return finding(format_args!("a protocol panicked: {abort:?}"));
    }
    Ok(())
}

/// Runs to where the target waits for the hostile peer's message of the round, hands the bytes over
/// instead, and then goes on with all that the peer and the others have to say. `begins` is the first
/// round, `honest` says that the peer has told no lie before; `outcome` judges what the target ends
/// with, if it does.
fn hostile<T>(
    parties: Parties<T>,
    begins: u16,
    honest: bool,
    round: u16,
    data: &[u8],
    outcome: impl FnOnce(T) -> Result<(), Finding>,
) -> Result<(), Finding> {
    let mut run = FuzzRun::new(parties);
    run.start(|index| index == ME)
        .map_err(|abort| broken(&abort))?;
    let (mut begun, mut given, mut next) = (false, false, begins);
    loop {
        if !given && (next >= round || (begun && run.queue.is_empty())) {
            given = true;
            let message = OutgoingMessage {
                to: ME,
                round,
                private: false,
                body: Zeroizing::new(data.to_vec()),
            };
            if let Err(abort) = run.feed(PEER, message) {
                return judge(&abort);
            }
        }
        if !begun {
            // Not before: most inputs end at the first look, and starting costs.
            begun = true;
            run.start(|index| index != ME)
                .map_err(|abort| broken(&abort))?;
        }
        let Some((from, message)) = run.queue.pop_front() else {
            if given {
                break;
            }
            continue;
        };
        let (to, of) = (message.to, message.round);
        let from_peer = (from, to) == (PEER, ME);
        if given && from_peer && of == round {
            continue;
        }
        match run.feed(from, message) {
            Ok(()) if from_peer => next = of.saturating_add(1),
            Ok(()) => {}
            Err(abort) if !given && honest => return Err(broken(&abort)),
            Err(abort) if to == ME => return judge(&abort),
            // The hostile one is not at home; of the others, none blames another.
            Err(abort) => {
                if to != PEER {
                    judge(&abort)?;
                }
                run.parties.remove(&to);
            }
        }
    }
    run.done.remove(&ME).map_or(Ok(()), outcome)
}

/// What the peer says to the target in a key generation that ends for want of primes.
#[cfg(feature = "cggmp24")]
pub(super) fn said_until_it_ends(scheme: Scheme) -> Result<Vec<FuzzInput>, Finding> {
    let mut run = FuzzRun::new(keygen_parties(scheme, 2)?);
    let mut said = Vec::new();
    run.start(|_| true).map_err(|abort| broken(&abort))?;
    while let Some((from, message)) = run.queue.pop_front() {
        if (from, message.to) == (PEER, ME) {
            said.push(copy(&message));
        }
        if run.feed(from, message).is_err() {
            break;
        }
    }
    Ok(as_inputs(said, KEYGEN, 0))
}

#[cfg(feature = "cggmp24")]
type SigningParties = Parties<Option<Signature>>;

/// A signature by parties 1 and 2, and what it is bound to.
#[cfg(feature = "cggmp24")]
fn signature_of_two(
    scheme: Scheme,
    shares: &[KeyShare],
) -> Result<([u8; 32], SigningParties), Finding> {
    let backend = backend::of(scheme).map_err(|fault| refused(&fault))?;
    let mut parties = Parties::new();
    for (me, share) in (ME..).zip(shares) {
        let session = backend
            .open(share)
            .and_then(|signer| signer.sign(sign_setup()?));
        parties.insert(me, session.map_err(|fault| refused(&fault))?);
    }
    let context = sign_setup().map_err(|fault| refused(&fault))?.context;
    Ok((context, parties))
}

/// What the second of two signers says, by round: before it has heard anything, or to the end.
#[cfg(feature = "cggmp24")]
pub(super) fn said_in_signing(
    scheme: Scheme,
    shares: &[KeyShare],
    to_the_end: bool,
) -> Result<([u8; 32], Vec<Vec<u8>>), Finding> {
    let (context, mut parties) = signature_of_two(scheme, shares)?;
    let mut said = if to_the_end {
        exchange(parties)?.0
    } else {
        parties.remove(&ME);
        let mut run = FuzzRun::new(parties);
        run.start(|_| true).map_err(|abort| broken(&abort))?;
        run.queue.into_iter().map(|(_, message)| message).collect()
    };
    said.sort_by_key(|message| message.round);
    let said = said.iter().map(|message| message.body.to_vec()).collect();
    Ok((context, said))
}

fn copy(message: &OutgoingMessage) -> OutgoingMessage {
    OutgoingMessage {
        to: message.to,
        round: message.round,
        private: message.private,
        body: message.body.clone(),
    }
}

/// Runs honest parties to the end. Gives what the peer said to the target, and how all ended.
fn exchange<T>(
    parties: Parties<T>,
) -> Result<(Vec<OutgoingMessage>, BTreeMap<SignerIndex, T>), Finding> {
    let mut run = FuzzRun::new(parties);
    let mut said = Vec::new();
    run.start(|_| true).map_err(|abort| broken(&abort))?;
    while let Some((from, message)) = run.queue.pop_front() {
        if (from, message.to) == (PEER, ME) {
            said.push(copy(&message));
        }
        run.feed(from, message).map_err(|abort| broken(&abort))?;
    }
    if run.done.len() != run.parties.len() {
        return Err("the honest run did not end".into());
    }
    Ok((said, run.done))
}

/// A number below `count` out of what is left of the first byte of an input.
fn choose(rest: &mut u8, count: u8) -> u8 {
    let chosen = *rest % count.max(1);
    *rest /= count.max(1);
    chosen
}

/// What the peer said in a variant of a protocol with so many rounds, as its target takes it.
fn as_inputs(said: Vec<OutgoingMessage>, rounds: u8, variant: u8) -> Vec<FuzzInput> {
    said.into_iter()
        .map(|message| {
            let round = u8::try_from(message.round.saturating_sub(1)).unwrap_or(u8::MAX);
            let first = round.saturating_add(rounds.saturating_mul(variant));
            [&[first], message.body.as_slice()].concat()
        })
        .collect()
}

/// Rounds of key generation, and one that does not exist.
const KEYGEN: u8 = 5;

/// FROST's parties are three, so that slander has somebody to fall on; where a run takes long, two.
fn parties(scheme: Scheme) -> u8 {
    match scheme {
        Scheme::FrostEd25519 => 3,
        Scheme::Dkls23 | Scheme::Cggmp24 => 2,
    }
}

fn keygen_setup(me: SignerIndex, parties: u8) -> KeygenSetup {
    KeygenSetup {
        context: [7; 32],
        me,
        threshold: 2,
        parties,
    }
}

fn keygen_parties(scheme: Scheme, parties: u8) -> Result<Parties<KeyShare>, Finding> {
    let backend = backend::of(scheme).map_err(|fault| refused(&fault))?;
    let session = |me| {
        // A key generation that needs some ends where it asks for them.
        let no_primes = Box::new(|| Err(Fault::bug("there are no primes")));
        backend.keygen_with(keygen_setup(me, parties), no_primes)
    };
    (1..=parties)
        .map(|me| Ok((me, session(me).map_err(|fault| refused(&fault))?)))
        .collect()
}

/// A share that a run ended with can be used.
fn opens(backend: &dyn Backend, share: &KeyShare) -> Result<(), Finding> {
    match backend.open(share) {
        Ok(_) => Ok(()),
        Err(fault) => finding(format_args!(
            "a share was made that does not open: {fault:?}"
        )),
    }
}

/// A hostile message in a key generation; the first byte chooses the round.
///
/// # Errors
/// What should not have happened.
pub fn keygen(scheme: Scheme, data: &[u8]) -> Result<(), Finding> {
    let Some((first, body)) = data.split_first() else {
        return Ok(());
    };
    let round = u16::from(first % KEYGEN).saturating_add(1);
    let backend = backend::of(scheme).map_err(|fault| refused(&fault))?;
    let parties = keygen_parties(scheme, parties(scheme))?;
    hostile(parties, 1, true, round, body, |share| {
        opens(backend, &share)
    })
}

/// What the honest peer says in a key generation.
///
/// # Errors
/// What should not have happened.
pub fn keygen_samples(scheme: Scheme) -> Result<Vec<FuzzInput>, Finding> {
    let (said, _) = exchange(keygen_parties(scheme, parties(scheme))?)?;
    Ok(as_inputs(said, KEYGEN, 0))
}

fn sealed_parties(scheme: Scheme) -> Result<Parties<KeyShare>, Finding> {
    let backend = backend::of(scheme).map_err(|fault| refused(&fault))?;
    (1..=2)
        .map(|me| {
            let no_primes = Box::new(|| Err(Fault::bug("no primes are needed")));
            let session = backend::private::keygen(backend, keygen_setup(me, 2), no_primes);
            Ok((me, session.map_err(|fault| refused(&fault))?))
        })
        .collect()
}

/// As [`keygen`], through the keys that live for one run: the first message is a key, what follows is
/// sealed.
///
/// # Errors
/// What should not have happened.
pub fn sealed_keygen(scheme: Scheme, data: &[u8]) -> Result<(), Finding> {
    let Some((first, body)) = data.split_first() else {
        return Ok(());
    };
    let round = u16::from(first % KEYGEN).saturating_add(1);
    hostile(sealed_parties(scheme)?, 1, true, round, body, |_| Ok(()))
}

/// As [`keygen_samples`], sealed.
///
/// # Errors
/// What should not have happened.
pub fn sealed_keygen_samples(scheme: Scheme) -> Result<Vec<FuzzInput>, Finding> {
    let (said, _) = exchange(sealed_parties(scheme)?)?;
    Ok(as_inputs(said, KEYGEN, 0))
}

/// A 2-of-2 key and its loaded shares.
pub(super) struct FuzzKey {
    pub root: RootKey,
    pub shares: BTreeMap<SignerIndex, KeyShare>,
    signers: BTreeMap<SignerIndex, Arc<dyn Signer>>,
}

/// One key per scheme, made once.
pub(super) fn key(scheme: Scheme) -> Result<Arc<FuzzKey>, Finding> {
    static MADE: Mutex<Vec<(Scheme, Arc<FuzzKey>)>> = Mutex::new(Vec::new());
    let mut made = MADE.lock();
    if let Some((_, key)) = made.iter().find(|(known, _)| *known == scheme) {
        return Ok(Arc::clone(key));
    }
    let backend = backend::of(scheme).map_err(|fault| refused(&fault))?;
    let (_, shares) = exchange(keygen_parties(scheme, 2)?)?;
    let mut signers = BTreeMap::new();
    for (index, share) in &shares {
        signers.insert(
            *index,
            backend.open(share).map_err(|fault| refused(&fault))?,
        );
    }
    let root = shares.values().next().map(|share| share.root.clone());
    let key = Arc::new(FuzzKey {
        root: root.ok_or("no key was made")?,
        shares,
        signers,
    });
    made.push((scheme, Arc::clone(&key)));
    Ok(key)
}

/// Rounds of signing, and one that does not exist.
const SIGN: u8 = 4;
const MESSAGE: [u8; 32] = [9; 32];

fn sign_setup() -> Result<SignSetup, Fault> {
    Ok(SignSetup {
        context: [8; 32],
        signers: vec![ME, PEER],
        path: KeyPath::new(vec![0, 1])?,
        message: MESSAGE.to_vec(),
    })
}

fn sign_parties(key: &FuzzKey) -> Result<Parties<Option<Signature>>, Finding> {
    let mut parties = Parties::new();
    for (index, signer) in &key.signers {
        let session = sign_setup().and_then(|setup| signer.sign(setup));
        parties.insert(*index, session.map_err(|fault| refused(&fault))?);
    }
    Ok(parties)
}

/// What the collector gives verifies.
fn verifies(key: &FuzzKey, signature: Option<Signature>) -> Result<(), Finding> {
    let Some(signature) = signature else {
        return finding("the collector gave no signature");
    };
    let child = sign_setup().and_then(|setup| key.root.child(&setup.path));
    let child = child.map_err(|fault| refused(&fault))?;
    match verify_one(&child.public_key, &MESSAGE, &signature) {
        Ok(()) => Ok(()),
        Err(_) => finding("a signature was given that does not verify"),
    }
}

/// A hostile message in a signature of two, of which the target collects; the first byte chooses the
/// round.
///
/// # Errors
/// What should not have happened.
pub fn sign(scheme: Scheme, data: &[u8]) -> Result<(), Finding> {
    let Some((first, body)) = data.split_first() else {
        return Ok(());
    };
    let round = u16::from(first % SIGN).saturating_add(1);
    let key = key(scheme)?;
    hostile(sign_parties(&key)?, 1, true, round, body, |signature| {
        verifies(&key, signature)
    })
}

/// What the honest peer says in a signature.
///
/// # Errors
/// What should not have happened.
pub fn sign_samples(scheme: Scheme) -> Result<Vec<FuzzInput>, Finding> {
    let (said, _) = exchange(sign_parties(&*key(scheme)?)?)?;
    Ok(as_inputs(said, SIGN, 0))
}

/// The nonces of both, made ahead: the same ones every time. Nothing of these keys is worth hiding.
fn nonces(key: &FuzzKey) -> Result<BTreeMap<SignerIndex, PreprocessedNonce>, Finding> {
    let mut nonces = BTreeMap::new();
    for (index, signer) in &key.signers {
        let made = signer.make_nonce(&CounterEntropy::new(*index));
        let made = made.ok_or("the scheme makes no nonces ahead")?;
        nonces.insert(*index, made.map_err(|fault| refused(&fault))?);
    }
    Ok(nonces)
}

fn ahead_parties(
    key: &FuzzKey,
    told: Vec<u8>,
) -> Result<Option<Parties<Option<Signature>>>, Finding> {
    let mut nonces = nonces(key)?;
    let mine = nonces.get(&ME).map(|nonce| nonce.commitments.clone());
    let theirs = Commitments::parse(told);
    let (Some(mine), Some(theirs)) = (mine.and_then(Commitments::parse), theirs) else {
        return Ok(None);
    };
    let heard = [(ME, PEER, theirs), (PEER, ME, mine)];
    let mut parties = Parties::new();
    for (me, peer, commitments) in heard {
        let (Some(signer), Some(own)) = (key.signers.get(&me), nonces.remove(&me)) else {
            return Err("a signer is missing".into());
        };
        let peers = BTreeMap::from([(peer, Arc::new(commitments))]);
        let session = sign_setup().and_then(|setup| signer.sign_preprocessed(setup, own, peers));
        parties.insert(me, session.map_err(|fault| refused(&fault))?);
    }
    Ok(Some(parties))
}

/// A signature with nonces made ahead. The first byte chooses the round of the message; the second
/// says how many of the next bytes are the commitments that the peer told us, none for its own; what
/// follows is its message.
///
/// # Errors
/// What should not have happened.
pub fn preprocess(data: &[u8]) -> Result<(), Finding> {
    let [first, length, rest @ ..] = data else {
        return Ok(());
    };
    let round = u16::from(first % SIGN).saturating_add(1);
    let Some((told, body)) = rest.split_at_checked(usize::from(*length)) else {
        return Ok(());
    };
    let key = key(Scheme::FrostEd25519)?;
    let own = nonces(&key)?.remove(&PEER).map(|nonce| nonce.commitments);
    let (told, honest) = match (told, own) {
        ([], Some(own)) => (own, true),
        (told, own) => (told.to_vec(), own.as_deref() == Some(told)),
    };
    let Some(parties) = ahead_parties(&key, told)? else {
        return Ok(());
    };
    // There is no round of commitments.
    hostile(parties, 2, honest, round, body, |signature| {
        verifies(&key, signature)
    })
}

/// What the honest peer says in a signature with nonces made ahead.
///
/// # Errors
/// What should not have happened.
pub fn ahead_samples() -> Result<Vec<FuzzInput>, Finding> {
    let key = key(Scheme::FrostEd25519)?;
    let told = nonces(&key)?.remove(&PEER).ok_or("no nonce")?.commitments;
    let length = u8::try_from(told.len()).map_err(|error| error.to_string())?;
    let parties = ahead_parties(&key, told.clone())?.ok_or("commitments cannot be read")?;
    let (said, _) = exchange(parties)?;
    let inputs = said.into_iter().flat_map(|message| {
        let round = u8::try_from(message.round.saturating_sub(1)).unwrap_or(u8::MAX);
        let honest = [&[round, 0], message.body.as_slice()].concat();
        let told = [&[round, length], told.as_slice(), message.body.as_slice()].concat();
        [honest, told]
    });
    Ok(inputs.collect())
}

/// Rounds of a resharing, and one that does not exist.
const RESHARE: u8 = 9;

/// Who holds a share of the next generation, and deals, as (party, old index).
const RESHARES: [(u8, &[(SignerIndex, SignerIndex)]); 3] = [
    // A refresh: everybody knows who may deal what.
    (2, &[(1, 1), (2, 2)]),
    // The target is new and knows nothing; a dealer leaves.
    (2, &[(2, 1), (3, 2)]),
    // A third joins.
    (3, &[(1, 1), (2, 2)]),
];

fn reshare_parties(scheme: Scheme, variant: u8) -> Result<Parties<Option<KeyShare>>, Finding> {
    let key = key(scheme)?;
    let backend = backend::of(scheme).map_err(|fault| refused(&fault))?;
    let (holders, dealers) = RESHARES
        .get(usize::from(variant))
        .ok_or("no such variant")?;
    let dealers = dealers.iter().map(|(party, old)| Dealer {
        party: *party,
        old: *old,
    });
    let mut setup = ReshareSetup {
        context: [6; 32],
        me: ME,
        root_public_key: key.root.public_key.clone(),
        holders: *holders,
        threshold: 2,
        dealers: dealers.collect(),
    };
    let mut parties = Parties::new();
    for me in 1..=setup.parties() {
        setup.me = me;
        let dealt = setup.dealers.iter().find(|dealer| dealer.party == me);
        let share = match dealt.and_then(|dealer| key.shares.get(&dealer.old)) {
            Some(share) => Some(backend.plain(share).map_err(|fault| refused(&fault))?),
            None => None,
        };
        let session = backend.reshare(setup.clone(), share);
        parties.insert(me, session.map_err(|fault| refused(&fault))?);
    }
    Ok(parties)
}

fn reshare_variants(scheme: Scheme) -> u8 {
    match scheme {
        Scheme::FrostEd25519 => 3,
        // The refresh of three takes long, and tells nothing new.
        Scheme::Dkls23 | Scheme::Cggmp24 => 2,
    }
}

/// A hostile message in a resharing; the first byte chooses round and who takes part.
///
/// # Errors
/// What should not have happened.
pub fn reshare(scheme: Scheme, data: &[u8]) -> Result<(), Finding> {
    let Some((first, body)) = data.split_first() else {
        return Ok(());
    };
    let mut rest = *first;
    let round = u16::from(choose(&mut rest, RESHARE)).saturating_add(1);
    let variant = choose(&mut rest, reshare_variants(scheme));
    let key = key(scheme)?;
    let backend = backend::of(scheme).map_err(|fault| refused(&fault))?;
    hostile(
        reshare_parties(scheme, variant)?,
        1,
        true,
        round,
        body,
        |share| {
            let share = share.ok_or("a new holder got no share")?;
            if share.root != key.root {
                return finding("the key is another one");
            }
            opens(backend, &share)
        },
    )
}

/// What the honest peer says in resharings.
///
/// # Errors
/// What should not have happened.
pub fn reshare_samples(scheme: Scheme) -> Result<Vec<FuzzInput>, Finding> {
    let mut samples = Vec::new();
    for variant in 0..reshare_variants(scheme) {
        let (said, _) = exchange(reshare_parties(scheme, variant)?)?;
        samples.extend(as_inputs(said, RESHARE, variant));
    }
    Ok(samples)
}
