//! New generations of a key's shares.
//!
//! A reshare has two halves. The nodes first make new shares and store them beside the old ones,
//! which go on signing; each says so with a signed statement. Then they are shown the statements of
//! all new holders, and only with these do they take the new shares into use and erase the old
//! ones. So nothing that an orchestrator, the bus or a crash does in between loses the key.
//!
//! A pending share is kept until one of a higher epoch is proven: its statement may be shown at any
//! time. And a proof counts only when every node that signed it is one that our configuration pins,
//! or that we share the key with. Therefore, while these are honest, the latest of the proven
//! generations always has all its shares (`docs/decisions/0009-resharing.md`).

mod waiting;

use std::{collections::HashMap, sync::Arc};

use covault_core::{
    fault::{Class, Fault},
    order::{Generation, NodeId, ReshareOrder, ReshareProof},
    scheme::Scheme,
};
use ed25519_dalek::Signature;

pub(super) use waiting::Life;
use waiting::Pending;

use super::{
    Node,
    orders::{MAX_KEYGEN_MS, refused, wrong_epoch},
    sessions::Begin,
};
use crate::{
    backend::{self, Dealer, Index, KeyShare, PlainShare, ReshareSetup, SignSetup, Signer},
    envelope::Header,
    identity::{openssh_line, verifying_key},
    message::{ActivateRequest, Reply, ReshareRequest},
    pool::Lane,
    runner::Run,
    shares::ShareRecord,
};

/// Prepared generations of one key that are kept, until one is activated. An honest orchestrator
/// gives up long before; a hostile one fills no disk.
const MAX_PENDING: usize = 1024;
/// How far a new epoch may be above those that are there: runs that fail use epochs up, and nobody
/// may use up all of them at once.
const MAX_EPOCH_STEP: u32 = 1024;

/// In the place of the signer of a share that was put back from a backup.
pub(super) struct Restored;

impl Signer for Restored {
    fn sign(
        &self,
        _: SignSetup,
    ) -> Result<Box<dyn backend::Session<Option<covault_core::signature::Signature>>>, Fault> {
        Err(refused(
            "this share was restored from a backup: refresh the vault first",
        ))
    }
}

fn index_of(nodes: &[NodeId], node: &NodeId) -> Result<Index, Fault> {
    nodes
        .iter()
        .position(|other| other == node)
        .and_then(|place| Index::try_from(place.checked_add(1)?).ok())
        .ok_or_else(|| refused("a node is not one of the parties, or there are too many"))
}

pub(super) fn stale(epoch: u32) -> Fault {
    refused(format!("the shares are of epoch {epoch}"))
}

impl Node {
    /// Makes a new generation of shares. The envelope, and so the order, is the orchestrator's.
    pub(super) fn reshare_order(
        self: &Arc<Self>,
        header: &Header,
        request: ReshareRequest,
        received_ms: u64,
    ) -> Result<(), Fault> {
        let (from, session) = (header.from, header.session);
        let ReshareRequest { order, sent_at_ms } = request;
        order.check()?;
        if order.session != session {
            return Err(Fault::field("session", "the order is for another session"));
        }
        if header.epoch != order.new.epoch {
            return Err(wrong_epoch());
        }
        let id = order.id()?;
        if self.has_prepared(&order, &id) {
            // It has succeeded before.
            let reply = Reply::Prepared(self.statement(&order)?);
            self.reply(from, header.epoch, session, 0, &reply);
            return Ok(());
        }
        if self.sessions.accepted((session, 0)).is_some() {
            // Claimed, running, or just over: the answer is on its way.
            return Ok(());
        }
        self.check_time(sent_at_ms, order.issued_at_ms, order.expires_at_ms)?;
        self.check_peers("new.holders", &order.new.holders)?;
        self.check_peers("dealers", &order.dealers)?;
        let parties = order.parties();
        let me = index_of(&parties, &self.post.id())?;
        let share = self.old_share(&order)?;
        // A dealer that leaves may have cheated: it takes no part in what needs oblivious transfers,
        // and without its share a key that needs all its holders would be lost.
        self.check_not_banned(&order.root_public_key, &order.new.holders)?;
        self.check_new_epoch(&order)?;
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
            holders: Index::try_from(order.new.holders.len()).map_err(small)?,
            threshold: Index::try_from(order.new.threshold).map_err(small)?,
            dealers,
        };
        let indices: Vec<Index> = (1..=setup.parties()).collect();
        let peers: HashMap<NodeId, Index> = parties
            .iter()
            .copied()
            .zip(indices)
            .filter(|(node, _)| *node != self.post.id())
            .collect();
        let session_of = backend::private::reshare(backend::of(order.scheme)?, setup, share)?;
        let left_ms = order.expires_at_ms.saturating_sub(sent_at_ms);
        let until_ms = received_ms.saturating_add(left_ms.min(MAX_KEYGEN_MS));
        if !self.sessions.accept((session, 0), id, until_ms) {
            return Ok(());
        }
        let begin = Begin {
            key: (session, 0),
            run: Run::reshare(session_of, peers),
            orchestrator: from,
            epoch: header.epoch,
            until_ms,
            lane: Lane::Keygen,
            record: None,
            reshare: Some(Box::new(order)),
        };
        self.claim_plain(begin);
        Ok(())
    }

    /// Our share of the old generation; none where we hold none, or one that was left behind.
    fn old_share(&self, order: &ReshareOrder) -> Result<Option<PlainShare>, Fault> {
        let deals = order.dealers.contains(&self.post.id());
        let Some(key) = self.keys.get(&order.root_public_key) else {
            self.check_joining(&order.new.holders, None)?;
            return if deals {
                Err(refused("no share of this key"))
            } else {
                Ok(None)
            };
        };
        let record = key.record();
        self.check_joining(&order.new.holders, Some(record))?;
        if record.vault != order.vault {
            return Err(Fault::field("vault", "the key is another vault's"));
        }
        if record.scheme != order.scheme {
            return Err(Fault::field("scheme", "the key is of another scheme"));
        }
        let old = Generation {
            epoch: record.epoch,
            threshold: record.threshold,
            holders: record.holders.clone(),
        };
        if record.epoch < order.old.epoch && !deals {
            // Left behind by a generation that we were away for, or restored from an old backup.
            return Ok(None);
        }
        if record.epoch != order.old.epoch {
            return Err(stale(record.epoch));
        }
        if old != order.old {
            return Err(Fault::field("old", "is not the generation of our share"));
        }
        self.check_threshold(order)?;
        let root = &record.key.root;
        let stored = self.shares.load(record.vault, root, record.epoch, false)?;
        plain(&stored).map(Some)
    }

    /// With a lower threshold fewer nodes have the key: only our own configuration allows that.
    fn check_threshold(&self, order: &ReshareOrder) -> Result<(), Fault> {
        let (present, new) = (order.old.threshold, order.new.threshold);
        let least = self.life.least_threshold.unwrap_or(present).min(present);
        if new >= least {
            return Ok(());
        }
        let sentence = format_args!(
            "may not go from {present} to {new} here: signer.least_threshold of this node does not allow it"
        );
        Err(Fault::field("threshold", sentence))
    }

    /// Whoever gets a threshold of shares has the key, and whoever proves a generation has earlier
    /// ones erased: an orchestrator must do neither with nodes of its own. New holders must be peers
    /// that our configuration pins; without pins, they must hold a share with us already.
    fn check_joining(&self, holders: &[NodeId], record: Option<&ShareRecord>) -> Result<(), Fault> {
        let allowed = |node: &NodeId| match (&self.peers, record) {
            _ if *node == self.post.id() => true,
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
                    "name {}, which this node does not know: list it in signer.peers first",
                    openssh_line(stranger, "")
                ),
            )),
        }
    }

    fn check_not_banned(&self, root: &[u8], parties: &[NodeId]) -> Result<(), Fault> {
        let banned: Vec<String> = parties
            .iter()
            .filter(|party| self.claims.banned(root, party))
            .map(|party| openssh_line(party, ""))
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
        let waiting = self.life.waiting();
        let (highest, new) = (waiting.highest(order), order.new.epoch);
        if let Some(epoch) = highest.filter(|epoch| *epoch >= new) {
            return refused_epoch(format!("must be above {epoch}, which was prepared before"));
        }
        let known = highest.unwrap_or_default().max(order.old.epoch);
        let most = known.saturating_add(MAX_EPOCH_STEP);
        if new > most {
            return refused_epoch(format!(
                "must be at most {most}: {known} is the last one known"
            ));
        }
        let of_key = waiting.shares.iter().filter(|it| it.is_of(order)).count();
        if of_key >= MAX_PENDING {
            return Err(refused(
                "too many generations are prepared and not activated; `covault node forget-prepared --help` tells how to clear them",
            ));
        }
        Ok(())
    }

    /// Whether our share of this very order is on disk.
    fn has_prepared(&self, order: &ReshareOrder, id: &[u8; 32]) -> bool {
        let waiting = self.life.waiting();
        let in_use = self
            .keys
            .get(&order.root_public_key)
            .is_some_and(|key| key.record().order == Some(*id));
        in_use || waiting.shares.iter().any(|it| it.order == *id)
    }

    fn statement(&self, order: &ReshareOrder) -> Result<Vec<u8>, Fault> {
        Ok(self.post.identity().sign(&order.statement()?).to_vec())
    }

    /// Stores what a reshare has made, and says so.
    pub(super) fn prepared(
        &self,
        order: ReshareOrder,
        share: Option<KeyShare>,
    ) -> Result<Reply, Fault> {
        let Some(key) = share else {
            // We leave; our old share works until the activation.
            return Ok(Reply::Prepared(Vec::new()));
        };
        let statement = self.statement(&order)?;
        let id = order.id()?;
        let root = key.root.clone();
        let mut waiting = self.life.waiting();
        let in_use = self.keys.get(&root.public_key);
        let in_use = in_use.map(|key| key.record().epoch);
        if let Some(epoch) = in_use.max(waiting.highest(&order))
            && epoch >= order.new.epoch
        {
            return Err(stale(epoch));
        }
        let record = ShareRecord {
            vault: order.vault,
            epoch: order.new.epoch,
            scheme: order.scheme,
            session: order.session,
            threshold: order.new.threshold,
            holders: order.new.holders,
            order: Some(id),
            restored: false,
            key,
        };
        self.shares.save_pending(&record)?;
        tracing::info!(node = %self.name, epoch = record.epoch, "new share stored, not yet in use");
        waiting.shares.push(Pending {
            vault: record.vault,
            root,
            epoch: record.epoch,
            order: id,
        });
        Ok(Reply::Prepared(statement))
    }

    /// Takes a prepared share into use, or learns that others have one; erases those of before.
    pub(super) fn activate_order(
        self: &Arc<Self>,
        header: &Header,
        request: ActivateRequest,
    ) -> Result<(), Fault> {
        let ActivateRequest {
            order,
            proof,
            sent_at_ms,
        } = request;
        order.check()?;
        if order.session != header.session {
            return Err(Fault::field("session", "the order is for another session"));
        }
        if header.epoch != order.new.epoch {
            return Err(wrong_epoch());
        }
        // Once proven, it never expires: who was away must still learn of it.
        self.check_time(sent_at_ms, order.issued_at_ms, u64::MAX)?;
        check_proof(&order, &proof)?;
        let mut waiting = self.life.waiting();
        let current = self.keys.get(&order.root_public_key);
        let record = current.as_ref().map(|key| key.record());
        if let Some(record) = record {
            if record.vault != order.vault {
                return Err(Fault::field("vault", "the key is another vault's"));
            }
            let again = record.order == Some(order.id()?);
            if record.epoch >= order.new.epoch && !again {
                return Err(stale(record.epoch));
            }
        }
        let prepared = waiting.shares.iter().find(|it| it.is_of(&order));
        let prepared = prepared.map(|it| it.root.clone());
        let stays = order.new.holders.contains(&self.post.id());
        if stays {
            self.take_into_use(&order, &waiting.shares)?;
        } else {
            match self.check_joining(&order.new.holders, record) {
                Ok(()) => waiting.remember(&order),
                // Nothing is here that could be given up.
                Err(_) if record.is_none() && prepared.is_none() => {}
                // On the word of nodes that we do not know, nothing is: not a share in use, and not
                // one that is prepared, which may be the only one there is.
                Err(stranger) => return Err(stranger),
            }
        }
        let root = record.map(|record| record.key.root.clone()).or(prepared);
        if let Some(root) = root {
            self.shares.erase(order.vault, &root, order.new.epoch)?;
        }
        if !stays {
            self.keys.remove(&order.root_public_key);
        }
        // Of the same epoch may be one of another run: its file is still there, and may be needed.
        let id = order.id()?;
        waiting
            .shares
            .retain(|it| !it.is_of(&order) || (it.epoch >= order.new.epoch && it.order != id));
        drop(waiting);
        self.on_epoch_change();
        tracing::info!(node = %self.name, epoch = order.new.epoch, "old shares erased");
        self.reply(
            header.from,
            header.epoch,
            header.session,
            header.attempt,
            &Reply::Activated,
        );
        Ok(())
    }

    fn take_into_use(&self, order: &ReshareOrder, pending: &[Pending]) -> Result<(), Fault> {
        let id = order.id()?;
        let epoch = order.new.epoch;
        if self
            .keys
            .get(&order.root_public_key)
            .is_some_and(|key| key.record().order == Some(id))
        {
            return Ok(());
        }
        let prepared = pending.iter().find(|it| it.order == id);
        let prepared = prepared
            .ok_or_else(|| refused(format!("no share of epoch {epoch} was prepared here")))?;
        let record = self
            .shares
            .load(prepared.vault, &prepared.root, epoch, true)?;
        // Opened first: should it not open, the old one stays.
        let key = super::orders::Keys::open(record)?;
        self.shares
            .activate(prepared.vault, &prepared.root, epoch)?;
        self.keys.put(key);
        Ok(())
    }

    /// The shares of this key are of another epoch from now on. What was made ahead for earlier ones
    /// must not be used any more.
    fn on_epoch_change(self: &Arc<Self>) {
        self.tend(true);
    }
}

/// The plain share in a stored record.
pub(super) fn plain(record: &ShareRecord) -> Result<PlainShare, Fault> {
    if record.restored {
        return PlainShare::decode(&record.key.root, &record.key.secret);
    }
    backend::of(record.scheme)?.plain(&record.key)
}

/// Every new holder says that its share is on disk. An order that is none, without holders say, can
/// have no proof.
pub(crate) fn check_proof(order: &ReshareOrder, proof: &ReshareProof) -> Result<(), Fault> {
    order.check()?;
    let statement = order.statement()?;
    for holder in &order.new.holders {
        let missing = || {
            Fault::field(
                "proof",
                format_args!("lacks the statement of {}", openssh_line(holder, "")),
            )
        };
        let mut of_holder = proof.0.iter().filter(|(node, _)| node == holder);
        let (_, signature) = of_holder.next().ok_or_else(missing)?;
        Signature::from_slice(signature)
            .ok()
            .filter(|signature| {
                verifying_key(holder)
                    .is_ok_and(|key| key.verify_strict(&statement, signature).is_ok())
            })
            .ok_or_else(missing)?;
    }
    Ok(())
}

/// The scheme's signer, or the stand-in for a share that must not sign.
pub(super) fn signer(record: &ShareRecord) -> Result<Arc<dyn Signer>, Fault> {
    if record.restored {
        // Damaged or not, now is the time to know.
        PlainShare::decode(&record.key.root, &record.key.secret)?;
        return Ok(Arc::new(Restored));
    }
    let scheme: Scheme = record.scheme;
    backend::of(scheme)?.open(&record.key)
}
