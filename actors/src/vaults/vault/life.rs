//! The life of a vault's keys once they are there: refresh, reshare, repair.
//!
//! As with key generation, a run is claimed on disk, asked of the cluster in a task beside the
//! actor, and repeated until it succeeds. The proof that all new holders have their shares on
//! disk is stored before any node is told to use them; from that commit on the new shares sign.
//! Telling the nodes is repeated until all have confirmed, however long one of them is away.
//!
//! A run that fails may leave new shares with some nodes. So runs are not repeated for ever: after
//! a few that failed nothing happens until an operator has looked at why.

mod activation;

use std::{collections::HashMap, sync::Arc, time::Duration};

use covault_core::{
    fault::{Class, Fault},
    ids::SessionId,
    order::{
        Generation, LaterGenerations, NodeId, ReshareOrder, ReshareOutcome, latest_epoch_everywhere,
    },
    scheme::Scheme,
    signature::Curve,
    wallet::{
        generation::{LiveKey, ReshareState, ReshareTarget},
        vault::{KeyState, Vault},
    },
};
use ractor::RpcReplyPort;

use super::{Msg as VaultMsg, VaultState, asking::ask_cluster, progress::with_rounds};
use crate::{
    audit::{self, AuditActor, AuditNote},
    nodes,
    port::{NodeConfirmations, NodeView},
    process::{mailbox::ActorMailbox, tasks::AbortOnDrop},
    services::DEADLINE_GRACE_MS,
};

/// Runs of one reshare request that may fail, while this process runs: because a node refused or cheated (or
/// as many as there are holders: each of them deals in some of these runs only), or for any reason.
const MAX_REFUSED: u32 = 3;
const MAX_FAILED: u32 = 10;

pub enum Msg {
    /// An operator wants new shares.
    Want(
        Box<ReshareRequest>,
        AuditActor,
        RpcReplyPort<Result<Vault, Fault>>,
    ),
    /// An operator cancels them.
    Cancel(AuditActor, RpcReplyPort<Result<Vault, Fault>>),
    /// A run is to be started (again).
    ReshareDue(Scheme),
    /// The cluster answered.
    ReshareEnded(Box<ReshareOrder>, Result<ReshareOutcome, Fault>),
    /// The nodes are to be told (again) to use new shares.
    ActivationDue(Scheme),
    /// They answered.
    ActivationEnded(Box<ReshareOrder>, Result<NodeConfirmations, Fault>),
}

/// What an operator wants of a vault's keys.
#[derive(Clone, Debug)]
pub struct ReshareRequest {
    /// Threshold and holders; `None`: as they are.
    pub to: Option<(u16, Vec<NodeId>)>,
    /// Present holders that have lost their share.
    pub lost: Vec<NodeId>,
    /// The keys; none: every key.
    pub schemes: Vec<Scheme>,
}

/// The shares that sign, by curve: what the actors of requests see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharesInUse(Vec<(Curve, KeyShares)>);

/// The shares of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyShares {
    /// The scheme of the key.
    pub scheme: Scheme,
    /// Who holds them, and how many are needed.
    pub generation: Generation,
    /// Its nodes were told to use them. Before that nobody would sign.
    pub activated: bool,
    /// All of its nodes confirmed.
    pub confirmed: bool,
}

impl SharesInUse {
    /// Those of a curve.
    pub fn of(&self, curve: Curve) -> Option<&KeyShares> {
        let mut shares = self.0.iter();
        shares.find_map(|(other, shares)| (*other == curve).then_some(shares))
    }
}

/// What this process does for one key.
#[derive(Default)]
pub(super) struct ReshareWork {
    run: Option<(SessionId, AbortOnDrop)>,
    /// When the next run is due.
    next_run: Option<AbortOnDrop>,
    /// Tries to start a run or to end one, since the last success.
    tries: u32,
    failed_runs: u32,
    refused_runs: u32,
    activation: Option<AbortOnDrop>,
    /// When the next telling is due.
    next_activation: Option<AbortOnDrop>,
    failed_activations: u32,
    activated: bool,
}

impl ReshareWork {
    /// Whether this is the run that the cluster is asked for.
    pub(super) fn runs(&self, session: &SessionId) -> bool {
        self.run.as_ref().is_some_and(|(run, _)| run == session)
    }

    /// Resets the counters of failed runs.
    fn reset_failures(&mut self) {
        (self.run, self.next_run) = (None, None);
        (self.tries, self.failed_runs, self.refused_runs) = (0, 0, 0);
    }
}

pub(super) type ReshareWorks = HashMap<Scheme, ReshareWork>;

/// The shares in use, as the vault and the work of this process have them.
pub(super) fn in_use(vault: &Vault, works: &ReshareWorks) -> SharesInUse {
    let keys = vault.keys.iter();
    SharesInUse(
        keys.filter_map(|key| {
            let KeyState::Ready(live) = &key.state else {
                return None;
            };
            let confirmed = live.is_confirmed();
            let shares = KeyShares {
                scheme: key.scheme,
                generation: live.generation.clone(),
                activated: confirmed
                    || live.activation.as_ref().is_some_and(|it| it.asked)
                    || works.get(&key.scheme).is_some_and(|work| work.activated),
                confirmed,
            };
            Some((key.scheme.curve(), shares))
        })
        .collect(),
    )
}

impl VaultState {
    pub(super) async fn handle_reshare(
        &mut self,
        myself: &ActorMailbox<VaultMsg>,
        message: Msg,
    ) -> Result<(), Fault> {
        match message {
            Msg::Want(reshare_request, by, reply) => {
                let ReshareRequest { to, lost, schemes } = *reshare_request;
                let holders = to.as_ref().map(|(_, holders)| holders.clone());
                let holders = holders.unwrap_or_default();
                let named = nodes::check_admitted(&self.services, "signers", &holders).await;
                if let Err(refusal) = named {
                    let _ = reply.send(Err(refusal));
                    return Ok(());
                }
                let names = schemes.iter().map(|scheme| scheme.name());
                let mut note = AuditNote::for_vault(&by, self.vault.id, "ReshareWanted")
                    .fact("schemes", names.collect::<Vec<_>>().join(" "))
                    .fact("lost", audit::nodes(&lost));
                if let Some((threshold, holders)) = &to {
                    note = note
                        .fact("threshold", threshold)
                        .fact("holders", audit::nodes(holders));
                }
                let to = to.as_ref().map(|(threshold, nodes)| (*threshold, &**nodes));
                let mut vault = self.vault.clone();
                let wanted = vault.want_reshare(to, &lost, &schemes);
                let halted =
                    |it: Option<&ReshareState>| matches!(it, Some(ReshareState::Halted { .. }));
                let again: Vec<Scheme> = vault
                    .keys
                    .iter()
                    .map(|key| key.scheme)
                    .filter(|scheme| halted(reshare_of(&self.vault, *scheme)))
                    .filter(|scheme| !halted(reshare_of(&vault, *scheme)))
                    .collect();
                self.commit_decision(note, wanted.map(|()| vault), &holders, reply)
                    .await?;
                for scheme in again {
                    self.works.entry(scheme).or_default().reset_failures();
                    self.note_problem(scheme, None).await;
                }
                self.resume_reshares(myself);
                Ok(())
            }
            Msg::Cancel(by, reply) => {
                let note = AuditNote::for_vault(&by, self.vault.id, "ReshareCancelled");
                let mut vault = self.vault.clone();
                let cancelled = vault.cancel_reshare();
                self.commit_decision(note, cancelled.map(|()| vault), &[], reply)
                    .await?;
                let schemes: Vec<Scheme> = self.works.keys().copied().collect();
                for scheme in schemes {
                    if reshare_of(&self.vault, scheme) == Some(&ReshareState::Idle) {
                        self.works.entry(scheme).or_default().reset_failures();
                        self.note_problem(scheme, None).await;
                    }
                }
                Ok(())
            }
            Msg::ReshareDue(scheme) => self.start_reshare(myself, scheme).await,
            Msg::ReshareEnded(order, result) => self.reshare_ended(myself, &order, result).await,
            Msg::ActivationDue(scheme) => {
                self.start_activation(myself, scheme);
                Ok(())
            }
            Msg::ActivationEnded(order, result) => {
                self.activation_ended(myself, &order, result).await
            }
        }
    }

    /// Resumes what the store says is in progress, unless it is already running.
    pub(super) fn resume_reshares(&self, myself: &ActorMailbox<VaultMsg>) {
        for key in &self.vault.keys {
            let KeyState::Ready(live) = &key.state else {
                continue;
            };
            let scheme = key.scheme;
            if matches!(
                live.reshare,
                ReshareState::Wanted(_) | ReshareState::Preparing { .. }
            ) {
                let _ = myself.cast(VaultMsg::Reshare(Msg::ReshareDue(scheme)));
            }
            if live.activation.is_some() {
                let _ = myself.cast(VaultMsg::Reshare(Msg::ActivationDue(scheme)));
            }
        }
    }

    /// Stores what an operator decided, and answers. A refusal is no trouble of the vault's.
    async fn commit_decision(
        &mut self,
        note: AuditNote,
        vault: Result<Vault, Fault>,
        nodes: &[NodeId],
        reply: RpcReplyPort<Result<Vault, Fault>>,
    ) -> Result<(), Fault> {
        let vault = match vault {
            Ok(vault) => vault,
            Err(refusal) => {
                let _ = reply.send(Err(refusal));
                return Ok(());
            }
        };
        let stored = if vault == self.vault {
            Ok(())
        } else {
            self.commit_with_signers(vault, nodes, note).await
        };
        let refused = matches!(&stored, Err(fault) if *fault.class() == Class::Invalid);
        let _ = reply.send(stored.clone().map(|()| self.vault.clone()));
        if refused { Ok(()) } else { stored }
    }

    async fn start_reshare(
        &mut self,
        myself: &ActorMailbox<VaultMsg>,
        scheme: Scheme,
    ) -> Result<(), Fault> {
        let work = self.works.entry(scheme).or_default();
        if work.run.is_some() {
            return Ok(());
        }
        work.next_run = None;
        let (tries, failed_runs) = (work.tries, work.failed_runs);
        let Some(live) = live_key(&self.vault, scheme) else {
            return Ok(());
        };
        let now = self.services.now_ms();
        let deadline = self.services.settings.keygen_deadline_ms;
        // Less than this is not enough to ask anyone anything.
        let least = now.saturating_add(deadline / 4);
        let planned = match &live.reshare {
            ReshareState::Idle | ReshareState::Halted { .. } => return Ok(()),
            // The run before a restart may have succeeded: repeating it gives its proof.
            ReshareState::Preparing { order, .. } if tries == 0 && order.expires_at_ms > least => {
                Ok((order.clone(), true))
            }
            // A run that all nodes refuse would use up one more, and the next one, until there is none for hours.
            _ if live.next_epoch > latest_epoch_everywhere(now) => Err(Fault::unavailable(
                "nodes take one new generation of a key a minute, and those until now are used up: it is tried again",
            )),
            ReshareState::Preparing { target, .. } | ReshareState::Wanted(target) => {
                self.dealers(live, target, failed_runs).map(|dealers| {
                    let new = Generation {
                        epoch: live.next_epoch,
                        threshold: target.threshold,
                        holders: target.holders.clone(),
                    };
                    let order = ReshareOrder {
                        vault: self.vault.id,
                        session: self.services.new_session_id(),
                        scheme,
                        root_public_key: live.root.public_key.clone(),
                        old: live.generation.clone(),
                        dealers,
                        new,
                        issued_at_ms: now,
                        expires_at_ms: now.saturating_add(deadline),
                    };
                    (order, false)
                })
            }
        };
        let (order, claimed) = match planned {
            Ok(planned) => planned,
            Err(problem) => {
                self.try_reshare_later(myself, scheme, &problem).await;
                return Ok(());
            }
        };
        if !claimed {
            let claim = order.clone();
            let note = self
                .note("ReshareClaimed")
                .fact("scheme", scheme.name())
                .fact("session", claim.session)
                .fact("epoch", claim.new.epoch)
                .fact("threshold", claim.new.threshold)
                .fact("holders", audit::nodes(&claim.new.holders))
                .fact("dealers", audit::nodes(&claim.dealers));
            self.update(Some(note), |vault| vault.begin_reshare(claim))
                .await?;
        }
        tracing::info!(vault = %self.vault.id, scheme = scheme.name(), epoch = order.new.epoch, "started resharing");
        let signers = Arc::clone(&self.services.signers);
        let left = order.expires_at_ms.saturating_sub(now);
        let patience = Duration::from_millis(left.saturating_add(DEADLINE_GRACE_MS));
        let session = order.session;
        let (asked, watcher) = (order.clone(), myself.clone());
        let task = ask_cluster(
            myself,
            patience,
            "resharing timed out",
            async move {
                let run = signers.reshare(&asked);
                with_rounds(watcher, Arc::clone(&signers), (scheme, session), run).await
            },
            move |result| VaultMsg::Reshare(Msg::ReshareEnded(Box::new(order), result)),
        );
        self.works.entry(scheme).or_default().run = Some((session, task));
        Ok(())
    }

    /// Who deals: live holders that use their shares, as many as are needed. Which of them failed to
    /// is not known, so each further run takes the next ones: among as many runs as there are holders
    /// are some without any one of them.
    fn dealers(
        &self,
        live: &LiveKey,
        target: &ReshareTarget,
        failed_runs: u32,
    ) -> Result<Vec<NodeId>, Fault> {
        let nodes = self.services.signers.nodes();
        let is_live = |node: &NodeId| nodes.iter().any(|view| view.id == *node && view.live);
        let away = |all: &[NodeId]| {
            let away = all.iter().filter(|node| !is_live(node));
            away.map(|node| self.name(&nodes, node)).collect::<Vec<_>>()
        };
        let missing = away(&target.holders);
        if !missing.is_empty() {
            return Err(Fault::unavailable(format!(
                "nodes that would hold the new shares are offline: {}. Start them, or cancel and reshare to other nodes",
                missing.join(", ")
            )));
        }
        let Generation {
            threshold, holders, ..
        } = &live.generation;
        let able = holders.iter();
        let able = able.filter(|node| is_live(node) && !target.lost.contains(node));
        let able = able.filter(|node| !live.untold().contains(node));
        let mut able: Vec<NodeId> = able.copied().collect();
        let needed = usize::from(*threshold);
        if able.len() < needed {
            let (away, untold) = (away(holders), live.untold().iter());
            let untold = untold.filter(|node| holders.contains(node) && is_live(node));
            let untold: Vec<String> = untold.map(|node| self.name(&nodes, node)).collect();
            let list = |what: &str, names: Vec<String>| match names.as_slice() {
                [] => String::new(),
                names => format!("; {what}: {}", names.join(", ")),
            };
            return Err(Fault::unavailable(format!(
                "too few share holders are online: {} of {needed} that are needed{}{}",
                able.len(),
                list("offline", away),
                list("have not activated their shares yet", untold),
            )));
        }
        let first = usize::try_from(failed_runs)
            .unwrap_or_default()
            .saturating_mul(needed)
            .checked_rem(able.len())
            .unwrap_or_default();
        able.rotate_left(first);
        able.truncate(needed);
        Ok(able)
    }

    async fn reshare_ended(
        &mut self,
        myself: &ActorMailbox<VaultMsg>,
        order: &ReshareOrder,
        result: Result<ReshareOutcome, Fault>,
    ) -> Result<(), Fault> {
        let scheme = order.scheme;
        let work = self.works.entry(scheme).or_default();
        match &work.run {
            Some((session, _)) if *session == order.session => work.run = None,
            // It was cancelled.
            _ => return Ok(()),
        }
        let result = match result {
            Ok(ReshareOutcome::Behind(later)) if work.failed_runs < MAX_FAILED => {
                return self.catch_up(myself, order, later).await;
            }
            // Enough is enough, also of what is new each time.
            Ok(ReshareOutcome::Behind(later)) => Err(later.reason),
            Ok(ReshareOutcome::Made(proof)) => Ok(proof),
            Err(fault) => Err(fault),
        };
        match result {
            Ok(proof) => {
                work.reset_failures();
                work.failed_activations = 0;
                // The activation of an older generation is obsolete.
                work.activation = None;
                work.activated = false;
                let note = self
                    .note("Reshared")
                    .fact("scheme", scheme.name())
                    .fact("epoch", order.new.epoch)
                    .fact("threshold", order.new.threshold)
                    .fact("holders", audit::nodes(&order.new.holders));
                self.update(Some(note), |vault| vault.reshared(order, proof))
                    .await?;
                self.note_problem(scheme, None).await;
                tracing::info!(
                    vault = %self.vault.id,
                    scheme = scheme.name(),
                    epoch = order.new.epoch,
                    "new shares are active"
                );
                self.start_activation(myself, scheme);
            }
            Err(fault) => {
                work.failed_runs = work.failed_runs.saturating_add(1);
                // Operators who have not permitted it yet need their time.
                if !matches!(fault.class(), Class::Unavailable | Class::Forbidden) {
                    work.refused_runs = work.refused_runs.saturating_add(1);
                }
                let holders = u32::try_from(order.old.holders.len()).unwrap_or(MAX_FAILED);
                let refused = work.refused_runs < MAX_REFUSED.max(holders);
                if work.failed_runs < MAX_FAILED.max(holders) && refused {
                    self.try_reshare_later(myself, scheme, &fault).await;
                    return Ok(());
                }
                work.reset_failures();
                tracing::error!(
                    vault = %self.vault.id,
                    scheme = scheme.name(),
                    ?fault,
                    "resharing failed; an operator must ask again"
                );
                self.note_problem(scheme, None).await;
                let reason = fault.message();
                let note = self
                    .note("ReshareHalted")
                    .fact("scheme", scheme.name())
                    .fact("reason", reason);
                self.update(Some(note), |vault| vault.halt_reshare(order, reason))
                    .await?;
            }
        }
        Ok(())
    }

    /// Another orchestrator, or this one before its store was put back, has gone on with the key: what the
    /// nodes have shown of that is stored, and new shares are made from there.
    async fn catch_up(
        &mut self,
        myself: &ActorMailbox<VaultMsg>,
        order: &ReshareOrder,
        later: LaterGenerations,
    ) -> Result<(), Fault> {
        let scheme = order.scheme;
        let work = self.works.entry(scheme).or_default();
        work.failed_runs = work.failed_runs.saturating_add(1);
        let reason = later.reason.clone();
        let known = later.proven.last().map(|it| it.order.new.clone());
        if known.is_some() {
            work.activation = None;
            (work.activated, work.failed_activations) = (false, 0);
        }
        let mut note = self
            .note("SharesLearned")
            .fact("scheme", scheme.name())
            .fact("session", order.session);
        if let Some(known) = &known {
            note = note
                .fact("epoch", known.epoch)
                .fact("threshold", known.threshold)
                .fact("holders", audit::nodes(&known.holders));
        }
        self.update(Some(note), |vault| vault.learned(order, later))
            .await?;
        if known.is_some() {
            self.start_activation(myself, scheme);
        }
        self.try_reshare_later(myself, scheme, &reason).await;
        Ok(())
    }

    async fn try_reshare_later(
        &mut self,
        myself: &ActorMailbox<VaultMsg>,
        scheme: Scheme,
        fault: &Fault,
    ) {
        tracing::warn!(vault = %self.vault.id, scheme = scheme.name(), ?fault, "resharing failed; retrying");
        let work = self.works.entry(scheme).or_default();
        work.tries = work.tries.saturating_add(1);
        let pause = self.services.backoff(work.tries);
        let due = move || VaultMsg::Reshare(Msg::ReshareDue(scheme));
        let timer = myself.send_after(pause, due);
        work.next_run = Some(AbortOnDrop(timer.abort_handle()));
        let problem = fault.message().to_owned();
        self.note_problem(scheme, Some(problem)).await;
    }

    /// A node as an operator knows it: the name it announced, and its key.
    fn name(&self, nodes: &[NodeView], node: &NodeId) -> String {
        let line = node.openssh_line("");
        match nodes.iter().find(|view| view.id == *node) {
            Some(view) if !view.name.is_empty() => format!("{} ({line})", view.name),
            _ => line,
        }
    }

    /// Lets the actors of requests see which shares sign.
    pub(super) fn publish_shares(&self) {
        self.in_use.send_replace(in_use(&self.vault, &self.works));
    }
}

fn live_key(vault: &Vault, scheme: Scheme) -> Option<&LiveKey> {
    vault.keys.iter().find_map(|key| match &key.state {
        KeyState::Ready(live) if key.scheme == scheme => Some(live),
        _ => None,
    })
}

fn reshare_of(vault: &Vault, scheme: Scheme) -> Option<&ReshareState> {
    live_key(vault, scheme).map(|live| &live.reshare)
}
