//! Work done ahead: a node fills its pools of nonces when it has nothing else to do, tells those
//! who need to know, and finds what a request names.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Weak},
};

use covault_core::{fault::Fault, order::NodeId, port::Clock};
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;

use super::{
    MAX_POOL_SIZE, Watermarks,
    peer_nonces::PeerNonces,
    store::{NonceStore, TakenNonces},
    table::NonceSelection,
};
use crate::{
    backend::{Commitments, PreprocessedNonce, SignerIndex},
    claims::{Claim, ClaimError, Claims},
    entropy::EntropyHedge,
    envelope::{EnvelopeCodec, EnvelopeHeader, EnvelopeKind, OpenedEnvelope},
    loaded_keys::{LoadedKey, LoadedKeys},
    message::{MAX_INPUTS, PreprocessMsg, decode, encode},
    pool::{CpuPool, Priority},
    shares::ShareEpoch,
};

/// Nonces made in one go: about a millisecond of CPU.
const CHUNK: usize = 16;
/// Nonces that share one commit and one message.
const BATCH: usize = 64;
/// How often the pools are looked at, in milliseconds.
const REPLENISH_MS: u64 = 1_000;
/// How often one peer is asked or answered about one key, in milliseconds.
const MIN_SEND_INTERVAL_MS: u64 = 250;

/// What of its node a [`Preprocessor`] works with.
pub(crate) struct NodeServices {
    /// The node's name, for logs.
    pub name: String,
    pub codec: Arc<EnvelopeCodec>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<EntropyHedge>,
    pub pool: Arc<CpuPool>,
    pub runtime: Handle,
    pub claims: Arc<Claims>,
    pub keys: Arc<LoadedKeys>,
    /// Those that may name nonces.
    pub orchestrators: Vec<NodeId>,
}

/// The pools of a node.
pub(crate) struct Preprocessor {
    node: NodeServices,
    store: NonceStore,
    peers: PeerNonces,
    watermarks: Watermarks,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    replenished_ms: u64,
    /// The shares in use, as last seen.
    current: Vec<ShareEpoch>,
    /// Pools that are being filled. See [`FillGuard`].
    filling: HashSet<ShareEpoch>,
    /// Peers whose commitments are being parsed. See [`ParseGuard`].
    parsing: HashSet<(ShareEpoch, NodeId)>,
    /// When a peer was last asked (true) or answered (false).
    last_sent: HashMap<(ShareEpoch, NodeId, bool), u64>,
}

/// Work on one pool: nobody else begins with it until this is dropped, however it ends.
struct FillGuard {
    preprocessor: Weak<Preprocessor>,
    key: Arc<LoadedKey>,
    of: ShareEpoch,
}

impl Drop for FillGuard {
    fn drop(&mut self) {
        if let Some(preprocessor) = self.preprocessor.upgrade() {
            preprocessor.lock().filling.remove(&self.of);
        }
    }
}

/// The same for what one peer has committed to.
struct ParseGuard {
    preprocessor: Weak<Preprocessor>,
    of: ShareEpoch,
    peer: NodeId,
}

impl Drop for ParseGuard {
    fn drop(&mut self) {
        if let Some(preprocessor) = self.preprocessor.upgrade() {
            let place = (self.of.clone(), self.peer);
            preprocessor.lock().parsing.remove(&place);
        }
    }
}

/// Nonces that a request names, found.
pub(crate) struct NamedNonces {
    /// Ours, to be taken out with the claim.
    pub take: NonceSelection,
    /// The other signers' commitments, per input.
    pub peers: Vec<BTreeMap<SignerIndex, Arc<Commitments>>>,
}

/// Why the nonces of a request cannot be used.
pub(crate) enum NonceLookupError {
    /// They do not fit signers and inputs.
    Misfit,
    /// This node's: ours are gone, or a peer's are not known.
    Of(NodeId),
}

/// Why a message about nonces is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NonceMessageError {
    Unreadable,
    /// The sender holds no share of the key.
    NoHolder,
}

impl Preprocessor {
    pub(crate) fn new(node: NodeServices, store: NonceStore, watermarks: Watermarks) -> Arc<Self> {
        let high = watermarks.high.min(MAX_POOL_SIZE);
        let watermarks = Watermarks {
            low: watermarks.low.min(high),
            high,
        };
        Arc::new(Self {
            node,
            store,
            peers: PeerNonces::default(),
            watermarks,
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether it is time to ask or answer again; notes that it is done.
    fn may_send(&self, of: &ShareEpoch, peer: NodeId, ask: bool, now_ms: u64) -> bool {
        let mut state = self.lock();
        let last = state.last_sent.entry((of.clone(), peer, ask)).or_insert(0);
        if *last > 0 && now_ms.abs_diff(*last) < MIN_SEND_INTERVAL_MS {
            return false;
        }
        *last = now_ms;
        true
    }

    /// How many nonces are ready, of all keys.
    pub(crate) fn ready_count(&self) -> usize {
        self.store.levels().iter().map(|(_, level)| level).sum()
    }

    /// As [`NonceStore::claim`].
    pub(crate) async fn claim(
        &self,
        claim: Claim,
        take: Option<NonceSelection>,
    ) -> Result<TakenNonces, ClaimError> {
        self.store.claim(&self.node.claims, claim, take).await
    }

    /// As [`NonceStore::open`].
    pub(crate) fn open(&self, taken: TakenNonces) -> Result<Vec<PreprocessedNonce>, Fault> {
        self.store.open(taken)
    }

    /// Looks after the pools: those of shares that are no longer in use are burned, new ones
    /// are made known, low ones are filled. Called now and then; `at_once` when keys have changed.
    pub(crate) fn replenish(self: &Arc<Self>, at_once: bool) {
        let now_ms = self.node.clock.now_ms();
        let keys: Vec<(ShareEpoch, Arc<LoadedKey>)> = {
            let mut state = self.lock();
            if !at_once && now_ms.abs_diff(state.replenished_ms) < REPLENISH_MS {
                return;
            }
            state.replenished_ms = now_ms;
            drop(state);
            let keys = self.node.keys.all().into_iter();
            let mut keys: Vec<_> = keys
                .filter(|key| key.signer.makes_nonces() && !key.record.restored)
                .map(|key| (share_epoch(&key), key))
                .collect();
            keys.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
            keys
        };
        let current: Vec<ShareEpoch> = keys.iter().map(|(of, _)| of.clone()).collect();
        let before = {
            let mut state = self.lock();
            if state.current != current {
                state.last_sent.retain(|(of, _, _), _| current.contains(of));
            }
            std::mem::replace(&mut state.current, current.clone())
        };
        if before != current {
            self.peers.retain(&current);
            let this = Arc::clone(self);
            self.node.runtime.spawn(async move {
                let burned = this.store.burn_others(&this.node.claims, &current);
                if let Err(error) = burned.await {
                    tracing::error!(node = %this.node.name, %error, "failed to burn old nonces");
                }
            });
        }
        for (of, key) in keys {
            if !before.contains(&of) {
                // We may have been away, and they too.
                self.broadcast_nonces(&key, &of, self.store.ready(&of));
                for holder in key.record.holders.iter().copied() {
                    if holder != self.node.codec.id() {
                        self.ask(&of, holder);
                    }
                }
            }
            self.fill_if_low(key, of);
        }
    }

    /// Starts to fill a pool that is low, unless that is in progress.
    fn fill_if_low(self: &Arc<Self>, key: Arc<LoadedKey>, of: ShareEpoch) {
        let level = self.store.level(&of);
        let Watermarks { low, high } = self.watermarks;
        let begin = level < low.max(1).min(high);
        if begin && self.lock().filling.insert(of.clone()) {
            // A node that has ended is not kept alive for this.
            let preprocessor = Arc::downgrade(self);
            self.fill(
                FillGuard {
                    preprocessor,
                    key,
                    of,
                },
                Vec::new(),
            );
        }
    }

    /// One chunk, then the next: each is begun only when nothing else waits.
    fn fill(self: &Arc<Self>, filling: FillGuard, mut made: Vec<PreprocessedNonce>) {
        self.node.pool.spawn(Priority::Idle, move || {
            let Some(this) = filling.preprocessor.upgrade() else {
                return;
            };
            let level = this.store.level(&filling.of);
            let wanted = this.watermarks.high.saturating_sub(level).min(BATCH);
            let chunk = wanted.saturating_sub(made.len()).min(CHUNK);
            let entropy = this.node.entropy.preprocess(&filling.of);
            for _ in 0..chunk {
                match filling.key.signer.make_nonce(&entropy) {
                    Some(Ok(nonce)) => made.push(nonce),
                    Some(Err(fault)) => {
                        tracing::error!(node = %this.node.name, ?fault, "failed to preprocess a nonce");
                        break;
                    }
                    None => break,
                }
            }
            if chunk == CHUNK && made.len() < wanted {
                return this.fill(filling, made);
            }
            let runtime = this.node.runtime.clone();
            runtime.spawn(async move { this.store(filling, made).await });
        });
    }

    async fn store(self: &Arc<Self>, filling: FillGuard, made: Vec<PreprocessedNonce>) {
        let some = !made.is_empty();
        let (key, of) = (&filling.key, &filling.of);
        let nonces = &self.store;
        let kept = nonces
            .keep(&self.node.claims, of, made, &*self.node.entropy)
            .await;
        let (in_use, enough) = {
            let state = self.lock();
            let enough = nonces.level(of) >= self.watermarks.high;
            (state.current.contains(of), enough)
        };
        match kept {
            Ok(batch) if in_use => self.broadcast_nonces(key, of, batch),
            Ok(_) => {
                // Burned while they were made.
                if let Err(error) = nonces.burn_epoch(&self.node.claims, of, None).await {
                    tracing::error!(node = %self.node.name, %error, "failed to burn old nonces");
                }
            }
            Err(error) => {
                tracing::warn!(node = %self.node.name, %error, "failed to store nonces")
            }
        }
        if some && in_use && !enough {
            self.fill(filling, Vec::new());
        }
    }

    /// Tells the other holders the commitments, and the orchestrators the numbers.
    fn broadcast_nonces(&self, key: &LoadedKey, of: &ShareEpoch, batch: Vec<(u64, Vec<u8>)>) {
        if batch.is_empty() {
            return;
        }
        let ids = batch.iter().map(|(id, _)| *id).collect();
        let made = self.made(of, batch);
        // Holders first: who is told a number soon uses it.
        for holder in key.record.holders.iter().copied() {
            if holder != self.node.codec.id() {
                self.send_preprocess_msg(holder, &made);
            }
        }
        let ready = self.ready(of, ids);
        for orchestrator in self.node.orchestrators.iter().copied() {
            self.send_preprocess_msg(orchestrator, &ready);
        }
    }

    fn made(&self, of: &ShareEpoch, nonces: Vec<(u64, Vec<u8>)>) -> PreprocessMsg {
        // Some more, for sessions that we have begun and our peers have not.
        let lowest = self.store.lowest(of).unwrap_or(0);
        let slack = u64::try_from(self.watermarks.high).unwrap_or(u64::MAX);
        PreprocessMsg::Made {
            of: (of.root.clone(), of.epoch),
            floor: lowest.saturating_sub(slack),
            nonces,
        }
    }

    fn ready(&self, of: &ShareEpoch, ids: Vec<u64>) -> PreprocessMsg {
        PreprocessMsg::Ready {
            of: (of.root.clone(), of.epoch),
            floor: self.store.lowest(of).unwrap_or(0),
            ids,
        }
    }

    fn ask(&self, of: &ShareEpoch, peer: NodeId) {
        if self.may_send(of, peer, true, self.node.clock.now_ms()) {
            let news = PreprocessMsg::Ask {
                of: (of.root.clone(), of.epoch),
                spent_below: 0,
            };
            self.send_preprocess_msg(peer, &news);
        }
    }

    fn send_preprocess_msg(&self, to: NodeId, news: &PreprocessMsg) {
        let header = EnvelopeHeader {
            epoch: news.epoch(),
            ..EnvelopeHeader::outside_sessions(EnvelopeKind::Nonces, self.node.codec.id(), to)
        };
        let sent = encode(news).and_then(|body| self.node.codec.send(header, &body));
        if let Err(fault) = sent {
            tracing::warn!(node = %self.node.name, ?fault, "failed to announce nonces");
        }
    }

    /// Takes a message about nonces, whose sender is certain, on a pool thread.
    pub(crate) fn on_message(
        self: &Arc<Self>,
        from: NodeId,
        opened: &OpenedEnvelope,
    ) -> Result<(), NonceMessageError> {
        let Some(news) = decode::<PreprocessMsg>(&opened.body) else {
            return Err(NonceMessageError::Unreadable);
        };
        let (PreprocessMsg::Made { of, .. }
        | PreprocessMsg::Ready { of, .. }
        | PreprocessMsg::Ask { of, .. }) = &news;
        let of = ShareEpoch {
            root: of.0.clone(),
            epoch: of.1,
        };
        let Some(key) = self
            .node
            .keys
            .get(&of.root)
            .filter(|key| key.record.epoch == of.epoch)
        else {
            tracing::debug!(node = %self.node.name, ?from, "nonces of shares that we do not use");
            return Ok(());
        };
        let holder = key.record.index_of(&from).is_some();
        let trusted = self.node.orchestrators.contains(&from);
        match news {
            PreprocessMsg::Made { floor, nonces, .. } if holder => {
                self.peers.heard(of.clone(), from, floor, nonces);
                self.parse(of, from);
            }
            PreprocessMsg::Ask { spent_below, .. } if holder || trusted => {
                if !self.may_send(&of, from, false, self.node.clock.now_ms()) {
                    return Ok(());
                }
                if !trusted {
                    let nonces = self.store.ready(&of);
                    if !nonces.is_empty() {
                        self.send_preprocess_msg(from, &self.made(&of, nonces));
                    }
                    return Ok(());
                }
                let this = Arc::clone(self);
                self.node.runtime.spawn(async move {
                    let nonces = &this.store;
                    // What it named and nobody used would lie here for ever.
                    let burned = nonces.burn_epoch(&this.node.claims, &of, Some(spent_below));
                    if let Err(error) = burned.await {
                        tracing::error!(node = %this.node.name, %error, "failed to burn nonces");
                    }
                    let ids: Vec<u64> = nonces.ready(&of).into_iter().map(|(id, _)| id).collect();
                    if !ids.is_empty() {
                        this.send_preprocess_msg(from, &this.ready(&of, ids));
                    }
                    this.fill_if_low(key, of);
                });
            }
            _ => return Err(NonceMessageError::NoHolder),
        }
        Ok(())
    }

    /// Parses what a peer has committed to, while nothing else waits.
    fn parse(self: &Arc<Self>, of: ShareEpoch, peer: NodeId) {
        let begin = (of.clone(), peer);
        if self.lock().parsing.insert(begin) {
            let preprocessor = Arc::downgrade(self);
            self.parse_on(ParseGuard {
                preprocessor,
                of,
                peer,
            });
        }
    }

    fn parse_on(self: &Arc<Self>, parsing: ParseGuard) {
        self.node.pool.spawn(Priority::Idle, move || {
            let Some(this) = parsing.preprocessor.upgrade() else {
                return;
            };
            let peers = &this.peers;
            if peers.parse_some(&parsing.of, parsing.peer) {
                this.parse_on(parsing);
            }
        });
    }

    /// Finds the nonces that a request names; `None` when it names none.
    pub(crate) fn find_named(
        self: &Arc<Self>,
        key: &LoadedKey,
        (signers, indices): (&[NodeId], &[SignerIndex]),
        inputs: usize,
        nonces: &[Vec<u64>],
    ) -> Result<Option<NamedNonces>, NonceLookupError> {
        if nonces.is_empty() {
            return Ok(None);
        }
        let complete = nonces.iter().all(|ids| ids.len() == inputs);
        if nonces.len() != signers.len() || !complete || !key.signer.makes_nonces() {
            return Err(NonceLookupError::Misfit);
        }
        let (of, me) = (share_epoch(key), self.node.codec.id());
        let mut own = None;
        let mut peers: Vec<BTreeMap<SignerIndex, Arc<Commitments>>> = vec![BTreeMap::new(); inputs];
        for ((signer, index), ids) in signers.iter().zip(indices).zip(nonces) {
            if *signer == me {
                let take = NonceSelection {
                    of: of.clone(),
                    ids: ids.clone(),
                };
                if !self.store.has(&take) {
                    return Err(NonceLookupError::Of(me));
                }
                own = Some(take);
                continue;
            }
            let Some(found) = self.peers.take(&of, *signer, ids) else {
                self.ask(&of, *signer);
                return Err(NonceLookupError::Of(*signer));
            };
            for (input, commitments) in peers.iter_mut().zip(found) {
                input.insert(*index, commitments);
            }
        }
        let take = own.ok_or(NonceLookupError::Misfit)?;
        Ok(Some(NamedNonces { take, peers }))
    }

    /// Our nonces that a request names will not be named again, whatever becomes of it: when it is
    /// refused they are burned.
    pub(crate) fn burn_named(
        self: &Arc<Self>,
        root: &[u8],
        signers: &[NodeId],
        nonces: &[Vec<u64>],
    ) {
        let me = self.node.codec.id();
        let named = signers.iter().zip(nonces);
        let ids: Vec<u64> = named
            .filter(|(signer, _)| **signer == me)
            .flat_map(|(_, ids)| ids.iter().copied())
            .take(MAX_INPUTS)
            .collect();
        let Some(key) = self.node.keys.get(root).filter(|_| !ids.is_empty()) else {
            return;
        };
        let (this, of) = (Arc::clone(self), share_epoch(&key));
        self.node.runtime.spawn(async move {
            if let Err(error) = this.store.burn(&this.node.claims, &of, ids).await {
                tracing::error!(node = %this.node.name, %error, "failed to burn nonces");
            }
            this.fill_if_low(key, of);
        });
    }

    /// After a session has taken its nonces.
    pub(crate) fn refill(self: &Arc<Self>, of: ShareEpoch) {
        if let Some(key) = self.node.keys.get(&of.root) {
            self.fill_if_low(key, of);
        }
    }
}

fn share_epoch(key: &LoadedKey) -> ShareEpoch {
    ShareEpoch {
        root: key.record.key.root.public_key.clone(),
        epoch: key.record.epoch,
    }
}
