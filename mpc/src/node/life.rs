//! New generations of a key's shares.
//!
//! A reshare has two halves. The nodes first make new shares and store them beside the old ones,
//! which keep signing; each party says with a signed statement that the run has ended well. Then
//! they are shown the statements of all parties ([`activation`]), and only with these do they take
//! the new shares into use and retire the old ones. So nothing that an orchestrator, the bus or a
//! crash does in between loses the key.
//!
//! Among the parties are as many old holders as the old threshold. While fewer of them are hostile,
//! one is honest, and has said so only after a run in which it dealt its own share, and which it
//! allowed by its own rules. A node gives its share up for what is proven to follow the generation of
//! that share, and for nothing else (`docs/decisions/0009-resharing.md`). It keeps the proof, and shows
//! it to the other parties itself ([`gossip`]).

mod activation;
mod gossip;
mod pending_shares;

use std::{collections::HashMap, sync::Arc};

pub(crate) use activation::check_proof;
use covault_core::{
    fault::{Class, Fault},
    ids::VaultId,
    order::{Generation, NodeId, ReshareOrder, latest_epoch},
};
pub(super) use pending_shares::Lifecycle;
use pending_shares::PendingShare;

use super::{
    Node,
    refusals::{refused, wrong_epoch},
    sessions::{MAX_KEYGEN_MS, SessionJob, SessionStart},
};
use crate::{
    backend::{self, Dealer, KeyShare, PlainShare, ReshareSetup, SignerIndex},
    envelope::EnvelopeHeader,
    message::{OrderReply, ReshareOrderMsg},
    meter,
    permits::not_permitted,
    pool::Priority,
    runner::ProtocolRun,
    shares::{ShareLineage, ShareRecord, backup::plain},
};

/// Prepared generations of one key that are kept, until one is activated. An honest orchestrator
/// gives up long before; a hostile one fills no disk.
const MAX_PENDING: usize = 1024;
/// Shares of one key that may be retired at a time: runs that succeed make some, too.
const MAX_RETIRED: usize = 1024;
/// Generations that a share remembers to come from.
const MAX_KNOWN: usize = 64;
/// How often it is looked what may be erased, in milliseconds.
const ERASE_EVERY_MS: u64 = 3_600_000;
/// How long a process has run before it erases anything, in milliseconds: until then its peers have
/// said what they think of its clock, and its operator has seen it.
const ERASE_AFTER_MS: u64 = 3_600_000;

fn index_of(nodes: &[NodeId], node: &NodeId) -> Result<SignerIndex, Fault> {
    nodes
        .iter()
        .position(|other| other == node)
        .and_then(|place| SignerIndex::try_from(place.checked_add(1)?).ok())
        .ok_or_else(|| refused("a node is not one of the parties, or there are too many"))
}

pub(super) fn stale(epoch: u32) -> Fault {
    refused(format!("the shares are of epoch {epoch}"))
}

impl Node {
    /// Makes a new generation of shares. The envelope, and so the order, is the orchestrator's.
    pub(super) fn reshare_order(
        self: &Arc<Self>,
        header: &EnvelopeHeader,
        request: ReshareOrderMsg,
        received_ms: u64,
    ) -> Result<(), Fault> {
        let (from, session) = (header.from, header.session);
        let ReshareOrderMsg { order, sent_at_ms } = request;
        order.check()?;
        if order.session != session {
            return Err(Fault::field("session", "the order is for another session"));
        }
        self.check_own_vault(order.vault)?;
        if header.epoch != order.new.epoch {
            return Err(wrong_epoch());
        }
        let id = order.id()?;
        if self.has_prepared(&order, &id) {
            // It has succeeded before.
            let reply = OrderReply::Prepared(self.statement(&order)?);
            self.reply(from, header.epoch, session, 0, &reply);
            return Ok(());
        }
        if self.sessions.accepted((session, 0)).is_some() {
            // Claimed, running, or just over: the answer is on its way.
            return Ok(());
        }
        self.check_time(sent_at_ms, order.issued_at_ms, order.expires_at_ms)?;
        self.check_not_duplicated()?;
        self.check_peers(order.vault, "new.holders", &order.new.holders)?;
        self.check_peers(order.vault, "dealers", &order.dealers)?;
        let parties = order.parties();
        let me = index_of(&parties, &self.codec.id())?;
        let share = match self.share_for(&order) {
            Ok(share) => share,
            Err(fault) => return self.refuse_reshare(header, &order, fault),
        };
        let dealers = order
            .dealers
            .iter()
            .map(|dealer| {
                Ok(Dealer {
                    party: index_of(&parties, dealer)?,
                    old: index_of(&order.old.holders, dealer)?,
                })
            })
            .collect::<Result<Vec<_>, Fault>>()?;
        let small = |_| refused("too many holders");
        let setup = ReshareSetup {
            context: id,
            me,
            root_public_key: order.root_public_key.clone(),
            holders: SignerIndex::try_from(order.new.holders.len()).map_err(small)?,
            threshold: SignerIndex::try_from(order.new.threshold).map_err(small)?,
            dealers,
        };
        let indices: Vec<SignerIndex> = (1..=setup.parties()).collect();
        let peers: HashMap<NodeId, SignerIndex> = parties
            .iter()
            .copied()
            .zip(indices)
            .filter(|(node, _)| *node != self.codec.id())
            .collect();
        let session_of = backend::private::reshare(backend::of(order.scheme)?, setup, share)?;
        let left_ms = order.expires_at_ms.saturating_sub(sent_at_ms);
        let until_ms = received_ms.saturating_add(left_ms.min(MAX_KEYGEN_MS));
        let room = match self.keys.get(&order.root_public_key) {
            Some(_) => self.quota_tracker.session(from, 0)?,
            // One more key for us, no matter who made it.
            None => self.reserve_for_key(from, order.vault)?,
        };
        if !self.sessions.accept((session, 0), id, until_ms) {
            return Ok(());
        }
        let begin = SessionStart {
            room,
            key: (session, 0),
            run: ProtocolRun::reshare(session_of, peers),
            orchestrator: from,
            epoch: header.epoch,
            until_ms,
            job: SessionJob::Reshare(Box::new(order)),
        };
        self.claim_plain(begin);
        Ok(())
    }

    /// Refuses an order. An orchestrator whose store knows less than we do, because another one has used
    /// up epochs or had a generation proven to us, is shown that; it could never make new shares else.
    fn refuse_reshare(
        &self,
        header: &EnvelopeHeader,
        order: &ReshareOrder,
        fault: Fault,
    ) -> Result<(), Fault> {
        let Some(key) = self.keys.get(&order.root_public_key) else {
            return Err(fault);
        };
        let record = key.record();
        let highest = self.life.pending_shares().highest(order);
        let epoch = highest.unwrap_or_default().max(record.epoch);
        let later = record.epoch > order.old.epoch;
        if record.vault != order.vault || !(later || epoch >= order.new.epoch) {
            return Err(fault);
        }
        let mut proven = match later {
            true => self.proofs.known(order)?,
            false => Vec::new(),
        };
        let epochs = order.old.epoch..=record.epoch;
        proven.retain(|it| epochs.contains(&it.order.new.epoch));
        tracing::warn!(node = %self.name, session = %order.session, ?fault, "order refused");
        meter::node_refused(&self.name, &fault);
        let reply = OrderReply::Behind {
            fault,
            proven,
            epoch,
        };
        self.reply(header.from, header.epoch, header.session, 0, &reply);
        Ok(())
    }

    /// Our share of the old generation, as [`Node::old_share`], for a generation that may follow it.
    fn share_for(&self, order: &ReshareOrder) -> Result<Option<PlainShare>, Fault> {
        let share = self.old_share(order)?;
        // A dealer that leaves may have cheated: it takes no part in what needs oblivious transfers,
        // and without its share a key that needs all its holders would be lost.
        self.check_not_banned(&order.root_public_key, &order.new.holders)?;
        self.check_new_epoch(order)?;
        Ok(share)
    }

    /// Our share of the old generation; none where we hold none, or one that was left behind.
    fn old_share(&self, order: &ReshareOrder) -> Result<Option<PlainShare>, Fault> {
        let deals = order.dealers.contains(&self.codec.id());
        let limits = self.rules.limits(order.vault);
        let (threshold, holders) = (order.new.threshold, order.new.holders.len());
        let Some(key) = self.keys.get(&order.root_public_key) else {
            self.check_joining(order.vault, &order.new.holders, None)?;
            if deals {
                return Err(refused("no share of this key"));
            }
            limits.check(threshold, holders, None)?;
            self.check_permit(order, None)?;
            return Ok(None);
        };
        let record = key.record();
        self.check_joining(order.vault, &order.new.holders, Some(record))?;
        if record.vault != order.vault {
            return Err(Fault::field("vault", "the key belongs to another vault"));
        }
        if record.scheme != order.scheme {
            return Err(Fault::field("scheme", "the key is of another scheme"));
        }
        limits.check(
            threshold,
            holders,
            Some((record.threshold, record.holders.len())),
        )?;
        if record.epoch < order.old.epoch && !deals {
            if record.restored {
                // From an old backup. Proofs of what followed may be gone: the operator, who has put
                // it back, can tell.
                self.ask_permit(order)?;
            } else {
                // Left behind by a generation that we were away for.
                self.check_permit(order, Some(record))?;
            }
            return Ok(None);
        }
        if record.epoch != order.old.epoch {
            return Err(stale(record.epoch));
        }
        if record.generation() != order.old {
            return Err(Fault::field("old", "is not the generation of our share"));
        }
        self.check_permit(order, Some(record))?;
        let root = &record.key.root;
        let stored = self.shares.load(record.vault, root, record.epoch, false)?;
        plain(&stored).map(Some)
    }

    /// Whether our operator has to permit the order: it changes who holds the key, or how many are
    /// needed, as far as we know it. Who holds nothing knows only what the order says: not even that
    /// the key is the vault's, nor which of its generations is there.
    fn needs_permit(&self, order: &ReshareOrder, record: Option<&ShareRecord>) -> bool {
        let Generation {
            threshold, holders, ..
        } = &order.new;
        let changes = |record: &ShareRecord| !record.generation().is_held_as(*threshold, holders);
        self.rules.permits && record.is_none_or(changes)
    }

    fn check_permit(
        &self,
        order: &ReshareOrder,
        record: Option<&ShareRecord>,
    ) -> Result<(), Fault> {
        if self.needs_permit(order, record) {
            self.ask_permit(order)?;
        }
        Ok(())
    }

    /// Refuses what the operator has not permitted, and keeps it for the operator to look at.
    fn ask_permit(&self, order: &ReshareOrder) -> Result<(), Fault> {
        let change = order.change();
        if self.permits.holds(&change, self.clock.now_ms())? {
            return Ok(());
        }
        self.permits.ask(&change)?;
        Err(not_permitted(&change)?)
    }

    /// Where a new share comes from. What is old by the word of an orchestrator alone is not sure. Of
    /// a key that we have a share of it is: a run that ended well had an honest dealer, which holds
    /// what the order calls old.
    fn lineage(&self, order: &ReshareOrder) -> Result<ShareLineage, Fault> {
        let old = order.old.id()?;
        let key = self.keys.get(&order.root_public_key);
        let record = key.as_ref().map(|key| key.record());
        let mut known = match record {
            Some(record) if record.generation() == order.old => record.lineage.known.clone(),
            other => {
                let permitted = self.permits.holds(&order.change(), self.clock.now_ms())?;
                return Ok(ShareLineage {
                    known: vec![old],
                    sure: permitted || other.is_some() || self.needs_permit(order, other),
                });
            }
        };
        known.push(old);
        let excess = known.len().saturating_sub(MAX_KNOWN);
        known.drain(..excess);
        Ok(ShareLineage { known, sure: true })
    }

    /// Anyone who gets a threshold of shares has the key, and anyone who proves a generation has earlier
    /// ones retired: an orchestrator must do neither with nodes of its own. New holders must be peers
    /// that our configuration pins; without pins, they must hold a share with us already.
    fn check_joining(
        &self,
        vault: VaultId,
        holders: &[NodeId],
        record: Option<&ShareRecord>,
    ) -> Result<(), Fault> {
        let pinned = self.peers.get();
        let allowed = |node: &NodeId| match (pinned.of(vault), record) {
            _ if *node == self.codec.id() => true,
            (Some(peers), _) => peers.contains(node),
            (None, Some(record)) => record.holders.contains(node),
            // What an orchestrator has us prepare with nodes of its own would be worth nothing.
            (None, None) => false,
        };
        match holders.iter().find(|node| !allowed(node)) {
            None => Ok(()),
            Some(stranger) => Err(Fault::field(
                "new.holders",
                format_args!(
                    "name {}, which this node does not know: list it in {} first",
                    stranger.openssh_line(""),
                    pinned.setting(vault)
                ),
            )),
        }
    }

    fn check_not_banned(&self, root: &[u8], parties: &[NodeId]) -> Result<(), Fault> {
        let banned: Vec<String> = parties
            .iter()
            .filter(|party| self.claims.banned(root, party))
            .map(|party| party.openssh_line(""))
            .collect();
        if banned.is_empty() {
            return Ok(());
        }
        let sentence = "a party is banned from this key because it cheated";
        Err(Fault::new(Class::Peer { culprits: banned }, sentence))
    }

    /// An epoch is never used twice, and they do not run out.
    fn check_new_epoch(&self, order: &ReshareOrder) -> Result<(), Fault> {
        let refused_epoch = |problem| Err(Fault::field("new.epoch", problem));
        let key = self.keys.get(&order.root_public_key);
        let mut pending_shares = self.life.pending_shares();
        if key.is_none() {
            // Our operator has permitted what the order calls old. What others have shown us of a key
            // that we know nothing of counts no more: they could make us refuse every real epoch.
            pending_shares.forget(order);
        }
        let (highest, new) = (pending_shares.highest(order), order.new.epoch);
        if let Some(epoch) = highest.filter(|epoch| *epoch >= new) {
            return refused_epoch(format!("must be above {epoch}, which was prepared before"));
        }
        let latest = latest_epoch(self.clock.now_ms());
        if new > latest {
            return refused_epoch(format!(
                "must be at most {latest}, one for each minute since 1970: wait, then ask again"
            ));
        }
        let of_key = pending_shares
            .shares
            .iter()
            .filter(|it| it.is_of(order))
            .count();
        if of_key >= MAX_PENDING {
            return Err(refused(
                "too many generations are prepared and not activated; `covault node forget-prepared --help` tells how to clear them",
            ));
        }
        if let Some(key) = key
            && self
                .shares
                .count_retired(order.vault, &key.record().key.root)?
                >= MAX_RETIRED
        {
            return Err(refused(
                "too many shares of this key are retired; `covault node retired --help` tells how to clear them",
            ));
        }
        Ok(())
    }

    /// Whether this very run has ended well here, and our new share is on disk if we get one.
    fn has_prepared(&self, order: &ReshareOrder, id: &[u8; 32]) -> bool {
        let pending_shares = self.life.pending_shares();
        let in_use = self
            .keys
            .get(&order.root_public_key)
            .is_some_and(|key| key.record().order == Some(*id));
        in_use
            || pending_shares.has_dealt(id)
            || pending_shares.shares.iter().any(|it| it.order == *id)
    }

    fn statement(&self, order: &ReshareOrder) -> Result<Vec<u8>, Fault> {
        Ok(self.codec.identity().sign(&order.statement()?).to_vec())
    }

    /// Stores the result of a reshare, and confirms it.
    pub(super) fn prepared(
        &self,
        order: ReshareOrder,
        share: Option<KeyShare>,
    ) -> Result<OrderReply, Fault> {
        let statement = self.statement(&order)?;
        let id = order.id()?;
        let mut pending_shares = self.life.pending_shares();
        let in_use = self.keys.get(&order.root_public_key);
        let in_use = in_use.map(|key| key.record().epoch);
        if let Some(epoch) = in_use.max(pending_shares.highest(&order))
            && epoch >= order.new.epoch
        {
            return Err(stale(epoch));
        }
        let Some(key) = share else {
            // We leave; our old share works until the activation.
            pending_shares.dealt(id);
            return Ok(OrderReply::Prepared(statement));
        };
        let lineage = self.lineage(&order)?;
        let record = ShareRecord {
            vault: order.vault,
            epoch: order.new.epoch,
            scheme: order.scheme,
            session: order.session,
            threshold: order.new.threshold,
            holders: order.new.holders,
            order: Some(id),
            lineage,
            restored: false,
            key,
        };
        self.shares.save_pending(&record)?;
        tracing::info!(node = %self.name, epoch = record.epoch, "new share stored, not yet in use");
        pending_shares.shares.extend(PendingShare::of(&record)?);
        Ok(OrderReply::Prepared(statement))
    }

    /// Erases what has been retired for long enough, by a clock that nobody disputes. Looks now and
    /// then. While a share of the key is prepared, the retired ones may be all that can be gone back to.
    pub(super) fn erase_retired(self: &Arc<Self>) {
        let steady_ms = self.steady_ms();
        let keep_ms = self.rules.keep_retired_ms;
        if !self.life.is_due(steady_ms, ERASE_EVERY_MS.min(keep_ms / 4)) {
            return;
        }
        if steady_ms < keep_ms.min(ERASE_AFTER_MS) || !self.is_clock_undisputed() {
            return;
        }
        let before_ms = self.clock.now_ms().saturating_sub(keep_ms);
        let pending_shares = self.life.prepared_keys();
        let node = Arc::clone(self);
        self.pool.spawn(Priority::Keygen, move || {
            match node.shares.erase_retired(before_ms, &pending_shares) {
                Ok(0) => {}
                Ok(erased) => {
                    tracing::info!(node = %node.name, erased, "retired shares erased: their retention time is over");
                }
                Err(fault) => {
                    tracing::warn!(node = %node.name, ?fault, "failed to erase retired shares");
                }
            }
        });
    }

    /// The shares of this key are of another epoch from now on. What was made ahead for earlier ones
    /// must no longer be used.
    fn on_epoch_change(self: &Arc<Self>) {
        self.preprocessor.replenish(true);
    }
}
