//! Pair keys: two identities agree on a key for each direction, so that messages between them need no signature.
//!
//! Each side makes an X25519 key for this peer alone, keeps it in memory, and signs it together with the peer's
//! newest one that it has heard. A direction's key comes by HKDF-SHA-256 from the four Diffie-Hellman values of
//! the pattern KK (Noise, revision 34, section 7.5): ee, es, se and ss; both identities and both ephemeral keys go in
//! as its context. The signatures make it SIGMA's exchange without hidden identities: who is confirmed has signed
//! the other's fresh key. So an identity that is stolen later opens nothing and forges nothing of the past.
//!
//! A key is used for sending only once the recipient has confirmed that it has both halves, and while it confirms that
//! again each minute: a recipient that was started anew has no key, and the bus may keep that from us. Until then, and
//! whenever a key is missing or too old, messages are signed: nothing waits for an exchange.

use std::{collections::BTreeMap, sync::Arc};

use chacha20poly1305::{
    AeadInPlace as _, KeyInit as _, XChaCha20Poly1305, XNonce, aead::generic_array::GenericArray,
};
use covault_core::{
    order::NodeId,
    port::{Clock, Entropy},
};
use hkdf::Hkdf;
use parking_lot::{Mutex, RwLock};
use sha2::Sha256;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use crate::{
    identity::NodeIdentity,
    message::{KeyExchangeMsg, SKEW_MS},
};

pub(super) const KEY_ID_LEN: usize = 8;
const LABEL: &[u8] = b"covault/pair-key/1";
/// How long a key may be used for sending, in milliseconds since the older half was made.
const LIFETIME_MS: u64 = 3_600_000;
/// At what age of the own half a new one is offered: early enough that it is confirmed before the old one ends.
const RENEW_MS: u64 = 3_000_000;
/// How much longer what was sent with a key is opened: clocks differ by half of it, and messages are on their way.
const GRACE_MS: u64 = 2 * SKEW_MS;
/// How long a confirmation counts, in milliseconds, and for attempts that follow others: those may have failed because the
/// recipient no longer has the key.
pub(super) const CONFIRMED_MS: u64 = 60_000;
pub(super) const CONFIRMED_FOR_RETRIES_MS: u64 = 5_000;
/// At what age of the last confirmation a key that is in use is to be confirmed again.
const ASK_MS: u64 = 20_000;
/// How often the own half is offered when nothing was asked, and while it is renewed, in milliseconds.
const OFFER_MS: u64 = 1_000;
const RENEWAL_OFFER_MS: u64 = 10_000;
/// Answers to one peer at once, and new halves taken of it; one more each second.
const BURST: u64 = 4;
/// Peers, and keys of one peer that open something.
const MAX_PAIRS: usize = 1024;
const MAX_INCOMING: usize = 4;

/// The key of one direction.
pub(super) struct PairKey {
    id: [u8; KEY_ID_LEN],
    cipher: XChaCha20Poly1305,
}

crate::secrets::secret!(PairKey { cipher });

impl PairKey {
    pub(super) fn new(id: [u8; KEY_ID_LEN], key: &[u8; 32]) -> Self {
        let cipher = XChaCha20Poly1305::new(GenericArray::from_slice(key));
        Self { id, cipher }
    }

    /// Names the key to its recipient.
    pub(super) fn id(&self) -> [u8; KEY_ID_LEN] {
        self.id
    }

    /// Encrypts in place; the tag.
    pub(super) fn seal(
        &self,
        header: &[u8],
        nonce: &[u8; 24],
        body: &mut [u8],
    ) -> Option<[u8; 16]> {
        let nonce = XNonce::from_slice(nonce);
        let sealed = self.cipher.encrypt_in_place_detached(nonce, header, body);
        sealed.ok().map(Into::into)
    }

    /// Decrypts in place; `None`, and the body as it was, when something is not as it was sealed.
    pub(super) fn open(
        &self,
        header: &[u8],
        nonce: &[u8; 24],
        tag: &[u8; 16],
        body: &mut [u8],
    ) -> Option<()> {
        let (nonce, tag) = (XNonce::from_slice(nonce), GenericArray::from_slice(tag));
        let opened = self
            .cipher
            .decrypt_in_place_detached(nonce, header, body, tag);
        opened.ok()
    }
}

/// A key, and when it ends, in milliseconds since the Unix epoch.
#[derive(Clone)]
struct TimedKey {
    key: Arc<PairKey>,
    until_ms: u64,
}

struct OwnHalf {
    secret: Zeroizing<StaticSecret>,
    public: [u8; 32],
    made_ms: u64,
}

crate::secrets::secret!(OwnHalf { secret });

struct TheirHalf {
    public: [u8; 32],
    made_ms: u64,
}

/// What there is with one peer.
#[derive(Default)]
struct Pair {
    own: Option<OwnHalf>,
    theirs: Option<TheirHalf>,
    /// Of both newest halves, for sending once the peer has confirmed ours.
    candidate: Option<TimedKey>,
    outgoing: Option<TimedKey>,
    /// When the peer has last confirmed that it has ours, and when a key was last wanted for sending.
    confirmed_ms: u64,
    used_ms: u64,
    /// The newest is the last.
    incoming: Vec<TimedKey>,
    /// The time of the newest message of the peer that was taken, and of our newest.
    heard_ms: u64,
    said_ms: u64,
    answers: Allowance,
    /// Each costs four key agreements.
    halves: Allowance,
    /// The start of the peer that was announced last.
    start: Option<[u8; 16]>,
}

/// [`BURST`] of something at once, and one more each second.
#[derive(Default)]
struct Allowance {
    left: u64,
    added_ms: u64,
}

impl Allowance {
    fn take(&mut self, now_ms: u64) -> bool {
        let more = now_ms.abs_diff(self.added_ms) / 1_000;
        if more > 0 {
            self.left = self.left.saturating_add(more).min(BURST);
            self.added_ms = now_ms;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

/// The pair keys of one identity.
pub(super) struct PairKeys {
    identity: Arc<NodeIdentity>,
    id: NodeId,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    /// In order: a simulation must renew them in the same order every time.
    pairs: RwLock<BTreeMap<NodeId, Arc<Mutex<Pair>>>>,
}

crate::secrets::secret!(PairKeys);

impl PairKeys {
    pub(super) fn new(
        identity: Arc<NodeIdentity>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self {
            id: identity.id(),
            identity,
            clock,
            entropy,
            pairs: RwLock::default(),
        }
    }

    /// The key to seal for this peer with, in an attempt of this number; `None`: sign.
    pub(super) fn outgoing(&self, peer: &NodeId, attempt: u32) -> Option<Arc<PairKey>> {
        let pair = self.known(peer)?;
        let mut pair = pair.lock();
        let now_ms = self.clock.now_ms();
        pair.used_ms = now_ms;
        let most_ms = match attempt {
            0 => CONFIRMED_MS,
            _ => CONFIRMED_FOR_RETRIES_MS,
        };
        if now_ms.abs_diff(pair.confirmed_ms) >= most_ms {
            pair.outgoing = None;
        }
        let key = pair.outgoing.as_ref()?;
        (now_ms < key.until_ms).then(|| Arc::clone(&key.key))
    }

    /// Whether there is, or is to be, a key with this peer.
    pub(super) fn knows(&self, peer: &NodeId) -> bool {
        self.pairs.read().contains_key(peer)
    }

    /// A peer has announced itself: a new start of it has no key.
    pub(super) fn announced(&self, peer: &NodeId, start: [u8; 16]) {
        if let Some(pair) = self.known(peer) {
            let mut pair = pair.lock();
            if pair
                .start
                .replace(start)
                .is_some_and(|known| known != start)
            {
                pair.outgoing = None;
            }
        }
    }

    /// The key that this peer has sealed with.
    pub(super) fn incoming(&self, peer: &NodeId, id: &[u8; KEY_ID_LEN]) -> Option<Arc<PairKey>> {
        let pair = self.known(peer)?;
        let pair = pair.lock();
        let now_ms = self.clock.now_ms();
        let mut keys = pair.incoming.iter().rev();
        let found = keys.find(|it| it.key.id == *id && now_ms < it.until_ms)?;
        Some(Arc::clone(&found.key))
    }

    /// What to tell a peer that we have no key for, or that uses one which we do not have; at most once a second.
    pub(super) fn offer(&self, peer: &NodeId) -> Option<KeyExchangeMsg> {
        let now_ms = self.clock.now_ms();
        let pair = self.pair(peer)?;
        let mut pair = pair.lock();
        if now_ms.abs_diff(pair.said_ms) < OFFER_MS {
            return None;
        }
        self.make_own(&mut pair, peer, LIFETIME_MS);
        pair.say(now_ms)
    }

    /// Takes what a peer has signed; the answer, where there is one.
    pub(super) fn take(&self, from: &NodeId, said: &KeyExchangeMsg) -> Option<KeyExchangeMsg> {
        let now_ms = self.clock.now_ms();
        let age_ms = said.at_ms.checked_sub(said.made_ms)?;
        if said.at_ms.abs_diff(now_ms) > SKEW_MS || age_ms >= LIFETIME_MS {
            return None;
        }
        let pair = self.pair(from)?;
        let mut pair = pair.lock();
        // What was said before, or comes twice, is not news: it must not bring back a half that is gone.
        if said.at_ms <= pair.heard_ms {
            return None;
        }
        let known = pair.theirs.as_ref().map(|it| it.public);
        let new = known != Some(said.key);
        // It is offered again.
        if new && !pair.halves.take(now_ms) {
            return None;
        }
        pair.heard_ms = said.at_ms;
        self.make_own(&mut pair, from, LIFETIME_MS);
        if new {
            pair.theirs = Some(TheirHalf {
                public: said.key,
                made_ms: said.made_ms,
            });
            self.derive(&mut pair, from);
        }
        let before = pair.is_confirmed();
        let has_ours = pair.own.as_ref().map(|own| own.public) == said.yours;
        if has_ours {
            pair.confirm(said, now_ms);
        } else if new {
            // It has started anew: what it knew of us is gone.
            pair.outgoing = None;
        }
        // It is told once when we send with the new key, so that it lets go of the old one.
        let news = said.wants_answer || !has_ours || !before;
        if !news || !pair.answers.take(now_ms) {
            return None;
        }
        pair.say(now_ms)
    }

    /// Forgets what is too old, offers new halves in time, and has keys confirmed that are in use.
    pub(super) fn renew(&self) -> Vec<(NodeId, KeyExchangeMsg)> {
        let now_ms = self.clock.now_ms();
        let pairs: Vec<_> = {
            let pairs = self.pairs.read();
            pairs
                .iter()
                .map(|(peer, it)| (*peer, Arc::clone(it)))
                .collect()
        };
        let mut said = Vec::new();
        let mut over = false;
        for (peer, pair) in pairs {
            let mut pair = pair.lock();
            pair.forget(now_ms);
            over |= pair.is_empty();
            if pair.outgoing.is_none() {
                continue;
            }
            self.make_own(&mut pair, &peer, RENEW_MS);
            let due = now_ms.abs_diff(pair.said_ms) >= RENEWAL_OFFER_MS;
            let in_use = now_ms.abs_diff(pair.used_ms) < CONFIRMED_MS;
            if due && (!pair.is_confirmed() || (in_use && pair.wants_answer(now_ms))) {
                said.extend(pair.say(now_ms).map(|it| (peer, it)));
            }
        }
        if over {
            self.pairs.write().retain(|_, pair| !pair.lock().is_empty());
        }
        said
    }

    /// Peers, and keys that open what a peer sends.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.pairs.read().len()
    }

    #[cfg(test)]
    pub(super) fn incoming_ids(&self, peer: &NodeId) -> Vec<[u8; KEY_ID_LEN]> {
        let pair = self.known(peer);
        let ids =
            |pair: Arc<Mutex<Pair>>| pair.lock().incoming.iter().map(|it| it.key.id).collect();
        pair.map(ids).unwrap_or_default()
    }

    fn known(&self, peer: &NodeId) -> Option<Arc<Mutex<Pair>>> {
        self.pairs.read().get(peer).map(Arc::clone)
    }

    /// `None` with ourselves, and when there are too many.
    fn pair(&self, peer: &NodeId) -> Option<Arc<Mutex<Pair>>> {
        if *peer == self.id {
            return None;
        }
        if let Some(pair) = self.known(peer) {
            return Some(pair);
        }
        let mut pairs = self.pairs.write();
        if pairs.len() >= MAX_PAIRS && !pairs.contains_key(peer) {
            return None;
        }
        Some(Arc::clone(pairs.entry(*peer).or_default()))
    }

    /// Makes a half of our own where there is none younger than this.
    fn make_own(&self, pair: &mut Pair, peer: &NodeId, age_ms: u64) {
        let now_ms = self.clock.now_ms();
        let young = |own: &OwnHalf| now_ms.abs_diff(own.made_ms) < age_ms;
        if pair.own.as_ref().is_some_and(young) {
            return;
        }
        let mut secret = Zeroizing::new([0; 32]);
        self.entropy.fill(secret.as_mut());
        let secret = StaticSecret::from(*secret);
        pair.own = Some(OwnHalf {
            public: PublicKey::from(&secret).to_bytes(),
            secret: Zeroizing::new(secret),
            made_ms: now_ms,
        });
        self.derive(pair, peer);
    }

    /// The keys of the newest halves.
    fn derive(&self, pair: &mut Pair, peer: &NodeId) {
        pair.candidate = None;
        let (Some(own), Some(theirs)) = (&pair.own, &pair.theirs) else {
            return;
        };
        let Some((outgoing, incoming)) =
            derive(&self.identity, (&self.id, own), (peer, &theirs.public))
        else {
            pair.theirs = None;
            return;
        };
        // Both sides compute this of the same two times.
        let until_ms = own.made_ms.min(theirs.made_ms).saturating_add(LIFETIME_MS);
        pair.candidate = Some(TimedKey {
            key: Arc::new(outgoing),
            until_ms,
        });
        if pair.incoming.len() >= MAX_INCOMING {
            pair.incoming.remove(0);
        }
        pair.incoming.push(TimedKey {
            key: Arc::new(incoming),
            until_ms: until_ms.saturating_add(GRACE_MS),
        });
    }
}

impl Pair {
    /// The peer has shown that it has our newest half.
    fn confirm(&mut self, said: &KeyExchangeMsg, now_ms: u64) {
        self.outgoing.clone_from(&self.candidate);
        self.confirmed_ms = now_ms;
        if said.wants_answer {
            return;
        }
        // It sends with the newest key from now on; what is on its way was sealed with the others.
        let older = self.incoming.iter_mut().rev().skip(1);
        older.for_each(|it| it.until_ms = it.until_ms.min(now_ms.saturating_add(GRACE_MS)));
    }

    /// Whether what we send is sealed with the key of the newest halves.
    fn is_confirmed(&self) -> bool {
        match (&self.outgoing, &self.candidate) {
            (Some(outgoing), Some(candidate)) => Arc::ptr_eq(&outgoing.key, &candidate.key),
            _ => false,
        }
    }

    fn wants_answer(&self, now_ms: u64) -> bool {
        !self.is_confirmed() || now_ms.abs_diff(self.confirmed_ms) >= ASK_MS
    }

    fn say(&mut self, now_ms: u64) -> Option<KeyExchangeMsg> {
        let own = self.own.as_ref()?;
        // It grows always, but not beyond what peers believe.
        self.said_ms = match self.said_ms > now_ms.saturating_add(SKEW_MS) {
            true => now_ms,
            false => now_ms.max(self.said_ms.saturating_add(1)),
        };
        Some(KeyExchangeMsg {
            at_ms: self.said_ms,
            made_ms: own.made_ms.min(self.said_ms),
            key: own.public,
            yours: self.theirs.as_ref().map(|it| it.public),
            wants_answer: self.wants_answer(now_ms),
        })
    }

    fn is_empty(&self) -> bool {
        self.own.is_none() && self.incoming.is_empty()
    }

    fn forget(&mut self, now_ms: u64) {
        self.incoming.retain(|it| now_ms < it.until_ms);
        for key in [&mut self.outgoing, &mut self.candidate] {
            key.take_if(|it| now_ms >= it.until_ms);
        }
        self.own
            .take_if(|own| now_ms.abs_diff(own.made_ms) >= LIFETIME_MS);
    }
}

/// The keys for what we send and for what we get. `None` for a half, or a peer, that is no point of the right order:
/// its values would be known to everyone.
fn derive(
    identity: &NodeIdentity,
    (me, own): (&NodeId, &OwnHalf),
    (peer, theirs): (&NodeId, &[u8; 32]),
) -> Option<(PairKey, PairKey)> {
    let identity_secret = identity.agreement_secret();
    let identity_key = peer.verifying_key().ok()?.to_montgomery().to_bytes();
    let (peer_identity, peer_half) = (PublicKey::from(identity_key), PublicKey::from(*theirs));
    let ephemeral = own.secret.diffie_hellman(&peer_half);
    let ours = own.secret.diffie_hellman(&peer_identity);
    let peers = identity_secret.diffie_hellman(&peer_half);
    let identities = identity_secret.diffie_hellman(&peer_identity);
    let all = [&ephemeral, &ours, &peers, &identities];
    if !all.iter().all(|value| value.was_contributory()) {
        return None;
    }
    let direction = |sender: (&NodeId, &[u8; 32]), recipient: (&NodeId, &[u8; 32]), es, se| {
        // ee, es, se, ss, as the sender of this direction sees them.
        let mut values = Zeroizing::new([0; 128]);
        let values_in_order: [&x25519_dalek::SharedSecret; 4] = [&ephemeral, es, se, &identities];
        for (to, value) in values.chunks_exact_mut(32).zip(values_in_order) {
            to.copy_from_slice(value.as_bytes());
        }
        let mut made = Zeroizing::new([0; 32 + KEY_ID_LEN]);
        let context: [&[u8]; 5] = [LABEL, &sender.0.0, &recipient.0.0, sender.1, recipient.1];
        Hkdf::<Sha256>::new(None, values.as_slice())
            .expand_multi_info(&context, made.as_mut_slice())
            .ok()?;
        let (key, id) = made.split_first_chunk::<32>()?;
        let id = id.try_into().ok()?;
        #[cfg(feature = "simulation")]
        crate::simulated::keep_pair_key((*sender.0, *recipient.0, id), *key);
        Some(PairKey::new(id, key))
    };
    let (ours_of, theirs_of) = ((me, &own.public), (peer, theirs));
    Some((
        direction(ours_of, theirs_of, &ours, &peers)?,
        direction(theirs_of, ours_of, &peers, &ours)?,
    ))
}
