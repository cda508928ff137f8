//! The life of a root key: which generation of its shares signs, and how the next one comes.
//!
//! ```text
//! Idle -> Wanted -> Preparing -> (Preparing with a new epoch)* -> Idle, one generation further
//!           |          |-> Halted: too many runs failed; -> Wanted when it is asked for again
//!           \__________\-> Idle: cancelled; the old generation was in use all the time
//! ```
//! The commit that takes the proof switches generations. Telling the nodes so ([`Activation`]) is
//! repeated until all have confirmed, and is never rolled back: some may have erased their old
//! shares. Told is anyone who may hold a share of before: old holders, and holders of what runs have
//! prepared that did not succeed. A node that is away for good holds up nothing.

use serde::{Deserialize, Serialize};

use crate::{
    attest::MadeKey,
    derive::RootKey,
    fault::{Class, Fault},
    order::{
        Generation, LaterGenerations, MAX_SIGNERS, NodeId, ProvenGeneration, ReshareOrder,
        ReshareProof, latest_epoch,
    },
};

/// Generations that are kept for nodes that were away for all of them. Who was away for more keeps
/// its old share until its operator permits the change.
pub const MAX_BEFORE: usize = 32;

/// An existing root key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveKey {
    /// The key. It never changes.
    pub root: RootKey,
    /// What shows that its first shares are all on disk ([`MadeKey::confirmed`]).
    pub confirmed: Vec<Vec<u8>>,
    /// The generation of its shares that signs.
    pub generation: Generation,
    /// The lowest epoch that no run was given yet.
    pub next_epoch: u32,
    /// Where the next generation stands.
    pub reshare: ReshareState,
    /// That `generation` is in use, while some nodes may not know it yet.
    pub activation: Option<Activation>,
    /// The nodes that runs since `generation` had, or have, prepare shares for: they may hold such
    /// shares, which work together until the next generation is in use and the nodes know it.
    pub leftover: Vec<NodeId>,
}

/// Where the next generation of a key stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReshareState {
    /// Nobody wants one.
    Idle,
    /// An operator wants one.
    Wanted(ReshareTarget),
    /// A run was claimed; nodes may be at work on it, or have new shares on disk.
    Preparing {
        /// What the operator wants.
        target: ReshareTarget,
        /// The run.
        order: ReshareOrder,
    },
    /// Runs have failed, and another one would only leave more shares behind. An operator repeats
    /// the wish, or drops it.
    Halted {
        /// What the operator wanted.
        target: ReshareTarget,
        /// Why the last run failed.
        reason: String,
    },
}

/// Who is to hold the shares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReshareTarget {
    /// Signers needed.
    pub threshold: u16,
    /// Share holders; the order is that of their indices.
    pub holders: Vec<NodeId>,
    /// Present holders that have lost their share: they deal nothing.
    pub lost: Vec<NodeId>,
}

/// A generation that its holders have on disk, and the proof of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activation {
    /// The run that made it.
    pub order: ReshareOrder,
    /// Its parties' statements.
    pub proof: ReshareProof,
    /// The generations before it that a node of `untold` may not know, oldest first: a node follows
    /// from the one that it knows to this one, proof by proof.
    pub before: Vec<ProvenGeneration>,
    /// The nodes that have not confirmed: the new holders among them may not use their shares yet,
    /// all of them may still have shares of before.
    pub untold: Vec<NodeId>,
    /// Every node that was there has been told once.
    pub asked: bool,
}

impl LiveKey {
    /// What key generation made.
    pub fn new(made: MadeKey, threshold: u16, holders: Vec<NodeId>) -> Self {
        let MadeKey { root, confirmed } = made;
        Self {
            root,
            confirmed,
            generation: Generation {
                epoch: 0,
                threshold,
                holders,
            },
            next_epoch: 1,
            reshare: ReshareState::Idle,
            activation: None,
            leftover: Vec::new(),
        }
    }

    /// Whether every holder of the shares that sign uses them.
    pub fn is_confirmed(&self) -> bool {
        let untold = self.untold();
        !self
            .generation
            .holders
            .iter()
            .any(|node| untold.contains(node))
    }

    /// The nodes that have not confirmed that `generation` is in use.
    pub fn untold(&self) -> &[NodeId] {
        let activation = self.activation.as_ref();
        activation.map_or(&[], |activation| &activation.untold)
    }

    /// An operator wants a new generation. Repeating the wish changes nothing, unless it was halted.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the field, and [`Class::WrongState`] while another wish is open.
    pub fn want(&mut self, target: ReshareTarget) -> Result<(), Fault> {
        check_set(target.threshold, &target.holders)?;
        let Generation {
            threshold, holders, ..
        } = &self.generation;
        if let Some(stranger) = target.lost.iter().find(|node| !holders.contains(node)) {
            return Err(
                Fault::field("lost", "includes a node that holds no share of the key")
                    .caused_by(format!("{stranger:?}")),
            );
        }
        let left = holders.iter().filter(|node| !target.lost.contains(node));
        if left.count() < usize::from(*threshold) {
            return Err(Fault::field(
                "lost",
                format!(
                    "too few shares remain: {threshold} are required. Restore nodes from their backups"
                ),
            ));
        }
        match &self.reshare {
            ReshareState::Idle | ReshareState::Halted { .. } => {
                self.reshare = ReshareState::Wanted(target);
                Ok(())
            }
            ReshareState::Wanted(open) | ReshareState::Preparing { target: open, .. }
                if *open == target =>
            {
                Ok(())
            }
            ReshareState::Wanted(_) | ReshareState::Preparing { .. } => Err(Fault::new(
                Class::WrongState,
                "another refresh or reshare of this vault is in progress: wait for its end, or cancel it",
            )),
        }
    }

    /// Claims a run.
    ///
    /// # Errors
    /// [`Class::WrongState`] when nobody wants one, and [`Class::Bug`] when the order is not the
    /// one that is wanted.
    pub fn begin(&mut self, order: ReshareOrder) -> Result<(), Fault> {
        let target = match &self.reshare {
            ReshareState::Wanted(target) | ReshareState::Preparing { target, .. } => target.clone(),
            ReshareState::Idle | ReshareState::Halted { .. } => return Err(no_reshare_running()),
        };
        order.check().map_err(Fault::bug)?;
        let sound = order.root_public_key == self.root.public_key
            && order.old == self.generation
            && order.new.threshold == target.threshold
            && order.new.holders == target.holders
            && order.new.epoch >= self.next_epoch
            && !order.dealers.iter().any(|node| target.lost.contains(node));
        let next_epoch = order.new.epoch.checked_add(1);
        match next_epoch {
            Some(next_epoch) if sound => {
                self.next_epoch = next_epoch;
                add(&mut self.leftover, &order.new.holders);
                self.reshare = ReshareState::Preparing { target, order };
                Ok(())
            }
            _ => Err(Fault::bug("unexpected reshare order")),
        }
    }

    /// Takes the generation that the run `order` made: from here on it signs.
    ///
    /// # Errors
    /// [`Class::WrongState`] when another run, or none, is claimed, and [`Class::Bug`] when a
    /// party's statement is missing.
    pub fn prepared(&mut self, order: &ReshareOrder, proof: ReshareProof) -> Result<(), Fault> {
        match &self.reshare {
            ReshareState::Preparing { order: claimed, .. } if claimed == order => {}
            _ => return Err(no_reshare_running()),
        }
        let stated = |holder| proof.0.iter().any(|(node, _)| node == holder);
        if !order.parties().iter().all(stated) {
            return Err(Fault::bug("a party has not confirmed the run"));
        }
        self.reshare = ReshareState::Idle;
        let leftover = std::mem::take(&mut self.leftover);
        self.switch_to(order, proof, &leftover);
        Ok(())
    }

    /// Takes what nodes have shown instead of making what the run `order` was to make: the generations that were
    /// proven to them, and the epochs that were used up, by an orchestrator with another store. The wish stays. What
    /// runs have left is void only with the next generation.
    ///
    /// # Errors
    /// As [`LiveKey::prepared`].
    pub fn learned(&mut self, order: &ReshareOrder, later: LaterGenerations) -> Result<(), Fault> {
        match &self.reshare {
            ReshareState::Preparing {
                order: claimed,
                target,
            } if claimed == order => self.reshare = ReshareState::Wanted(target.clone()),
            _ => return Err(no_reshare_running()),
        }
        for ProvenGeneration { order, proof } in later.proven {
            if order.new.epoch <= self.generation.epoch {
                return Err(Fault::bug("the generation is not newer"));
            }
            self.switch_to(&order, proof, &[]);
        }
        let known = later.epoch.max(self.generation.epoch);
        self.next_epoch = self.next_epoch.max(known.saturating_add(1));
        Ok(())
    }

    fn switch_to(&mut self, order: &ReshareOrder, proof: ReshareProof, leftover: &[NodeId]) {
        self.generation = order.new.clone();
        let mut untold = order.new.holders.clone();
        add(&mut untold, &order.old.holders);
        add(&mut untold, leftover);
        add(&mut untold, self.untold());
        let mut before = Vec::new();
        if let Some(last) = self.activation.take() {
            before = last.before;
            before.push(ProvenGeneration {
                order: last.order,
                proof: last.proof,
            });
            let excess = before.len().saturating_sub(MAX_BEFORE);
            before.drain(..excess);
        }
        self.activation = Some(Activation {
            order: order.clone(),
            proof,
            before,
            untold,
            asked: false,
        });
    }

    /// The nodes that were there were told of the generation that the run `order` made, and these
    /// have confirmed it.
    ///
    /// # Errors
    /// [`Class::WrongState`] when that is not the one they are told about.
    pub fn confirmed(&mut self, order: &ReshareOrder, nodes: &[NodeId]) -> Result<(), Fault> {
        match &mut self.activation {
            Some(activation) if activation.order == *order => {
                activation.asked = true;
                activation.untold.retain(|node| !nodes.contains(node));
                if activation.untold.is_empty() {
                    self.activation = None;
                }
                Ok(())
            }
            _ => Err(no_reshare_running()),
        }
    }

    /// No further run, until an operator wants one again.
    ///
    /// # Errors
    /// [`Class::WrongState`] when another run than `order`, or none, is claimed.
    pub fn halt(&mut self, order: &ReshareOrder, reason: &str) -> Result<(), Fault> {
        match &self.reshare {
            ReshareState::Preparing {
                target,
                order: claimed,
            } if claimed == order => {
                self.reshare = ReshareState::Halted {
                    target: target.clone(),
                    reason: reason.to_owned(),
                };
                Ok(())
            }
            _ => Err(no_reshare_running()),
        }
    }

    /// It was restored from a backup: see [`super::vault::Vault::restored`].
    pub(super) fn restored(&mut self, epochs: u32, now_ms: u64, reason: &str) {
        // A node whose clock is a minute ahead may have taken the one after the latest.
        let above_used = latest_epoch(now_ms).saturating_add(2);
        let passed = self.next_epoch.saturating_add(epochs).min(above_used);
        self.next_epoch = self.next_epoch.max(passed);
        if let ReshareState::Wanted(target) | ReshareState::Preparing { target, .. } = &self.reshare
        {
            self.reshare = ReshareState::Halted {
                target: target.clone(),
                reason: reason.to_owned(),
            };
        }
    }

    /// A new generation is no longer wanted. What nodes have prepared stays with them
    /// ([`LiveKey::leftover`]), and is void only when a later generation is in use and they know it.
    ///
    /// # Errors
    /// [`Class::WrongState`] when there is nothing, or nothing left, to cancel.
    pub fn cancel(&mut self) -> Result<(), Fault> {
        match &self.reshare {
            ReshareState::Wanted(_)
            | ReshareState::Preparing { .. }
            | ReshareState::Halted { .. } => {
                self.reshare = ReshareState::Idle;
                Ok(())
            }
            ReshareState::Idle => Err(no_reshare_running()),
        }
    }
}

/// Adds those that are not there yet.
fn add(nodes: &mut Vec<NodeId>, more: &[NodeId]) {
    for node in more {
        if !nodes.contains(node) {
            nodes.push(*node);
        }
    }
}

fn no_reshare_running() -> Fault {
    Fault::new(
        Class::WrongState,
        "no such refresh or reshare is in progress; the vault's list of keys shows their state",
    )
}

/// Checks who is to hold the shares of a key.
///
/// # Errors
/// [`Class::Invalid`] naming the field, `signers` or `threshold`.
pub(super) fn check_set(threshold: u16, holders: &[NodeId]) -> Result<(), Fault> {
    if holders.len() > MAX_SIGNERS {
        return Err(Fault::field(
            "signers",
            format!("must be at most {MAX_SIGNERS}"),
        ));
    }
    let mut sorted = holders.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() != holders.len() {
        return Err(Fault::field("signers", "name one node twice"));
    }
    if threshold < 2 || usize::from(threshold) > holders.len() {
        return Err(Fault::field(
            "threshold",
            "must be at least 2 and at most the number of signers",
        ));
    }
    Ok(())
}

#[cfg(test)]
#[path = "generation_tests.rs"]
mod tests;
