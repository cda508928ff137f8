//! Telling signers of approvals before there is a transaction, so that those that hold the payment for a time begin to
//! count it.

use std::{collections::BTreeSet, time::Duration};

use covault_core::{
    approval::Rejection,
    fault::{Class, Fault, FaultCode},
    ids::SessionId,
    order::{NodeId, SigningOrder},
};
use tokio::time::{Instant, timeout, timeout_at};

use super::{Cluster, ClusterInner, ExpectedReply, POLL_INTERVAL, not_sent};
use crate::{
    envelope::EnvelopeKind,
    message::{OrderReply, RejectionMsg, SignOrderMsg, encode},
};

/// When those that had too much to do are told again, in milliseconds.
const AGAIN_MS: u64 = 200;
/// When those that have not written a rejection down are told for the second time; then after twice as long, and so on.
const TOLD_AGAIN: Duration = Duration::from_millis(25);

/// Until when signers hold a payment, as they say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterHold {
    /// From when on enough of them do not, in milliseconds since the Unix epoch.
    pub until_ms: u64,
    /// The names of those that hold it now.
    pub by: Vec<String>,
}

impl Cluster {
    /// Tells all live `holders` of the approvals that `order` carries, which has no transaction yet
    /// ([`SigningOrder::tells_of_approvals`]). `Some`: fewer than `threshold` of them, or not the one that `must` take
    /// part, would sign it now. Those that are not live are taken to hold nothing: they say so when they are to sign. Those
    /// that have too much to do, or cannot say it now, are told again until `patience` is over.
    ///
    /// # Errors
    /// With [`FaultCode::ApprovalsMissing`] where so many want more approvals, or others, that the rest are too few; but
    /// not where one must take part whose own approval comes when it signs. [`Class::Unavailable`] when nobody could be
    /// asked, or too few said anything to tell.
    pub async fn tell_of_approvals(
        &self,
        order: &SigningOrder,
        session: SessionId,
        holders: &[NodeId],
        (threshold, must): (u16, Option<NodeId>),
        patience: Duration,
    ) -> Result<Option<ClusterHold>, Fault> {
        self.shared
            .tell_of_approvals(order, session, holders, (threshold, must), patience)
            .await
    }

    /// Tells `holders` what a person has rejected, in this session, and those that are live again until they say that it is on
    /// their disks. Nodes verify it themselves; those that are away read it when they are back, as far as the bus keeps it for
    /// them.
    ///
    /// # Errors
    /// [`Class::Unavailable`] when the bus has not taken all of it within `patience`, or a node that is live has not said
    /// that it is on disk.
    pub async fn tell_of_rejection(
        &self,
        rejection: &Rejection,
        session: SessionId,
        holders: &[NodeId],
        patience: Duration,
    ) -> Result<(), Fault> {
        let inner = &self.shared;
        let body = encode(&RejectionMsg {
            rejection: rejection.clone(),
        })?;
        inner.node_registry.want(holders);
        let mut call = inner.call(ExpectedReply::Noted, 0, session, holders)?;
        let mut unsent: BTreeSet<NodeId> = holders.iter().copied().collect();
        let mut silent = unsent.clone();
        silent.retain(|node| inner.node_registry.live(node));
        let ends = Instant::now() + patience;
        let (mut again, mut pause) = (Instant::now(), TOLD_AGAIN);
        loop {
            if unsent.is_empty() && silent.is_empty() {
                return Ok(());
            }
            let now = Instant::now();
            if now >= ends {
                break;
            }
            if now >= again {
                unsent.extend(&silent);
                again = now + pause;
                pause = pause.saturating_mul(2);
            }
            inner.send_to_rest(EnvelopeKind::Rejection, (0, session, 0), &mut unsent, &body)?;
            let until = again.min(ends).min(now + POLL_INTERVAL);
            match timeout_at(until, call.replies.recv()).await {
                Ok(Some((node, 0, OrderReply::Noted { .. }))) => {
                    silent.remove(&node);
                }
                // Not everyone's policy knows the person for one who can reject.
                Ok(Some((node, 0, OrderReply::Refused(fault)))) => {
                    tracing::info!(?node, ?fault, "a node does not take a rejection");
                    silent.remove(&node);
                }
                Ok(None) => return Err(Fault::bug("a call without an end")),
                _ => {}
            }
        }
        if !unsent.is_empty() {
            return Err(not_sent());
        }
        let names: Vec<String> = silent
            .iter()
            .map(|it| inner.node_registry.name(it))
            .collect();
        Err(Fault::unavailable(format!(
            "a rejection is not on the disk of {} yet: repeat it",
            names.join(", ")
        )))
    }
}

impl ClusterInner {
    async fn tell_of_approvals(
        &self,
        order: &SigningOrder,
        session: SessionId,
        holders: &[NodeId],
        (threshold, must): (u16, Option<NodeId>),
        patience: Duration,
    ) -> Result<Option<ClusterHold>, Fault> {
        self.node_registry.want(holders);
        let mut call = self.call(ExpectedReply::Noted, order.epoch, session, holders)?;
        let mut silent: BTreeSet<NodeId> = holders.iter().copied().collect();
        silent.retain(|node| self.node_registry.live(node));
        let mut unsent = silent.clone();
        // They are told again.
        let mut busy: BTreeSet<NodeId> = BTreeSet::new();
        let began_ms = self.clock.now_ms();
        let mut again_ms = began_ms;
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let ends_ms = began_ms.saturating_add(patience_ms);
        let mut held: Vec<(u64, NodeId)> = Vec::new();
        let mut free: BTreeSet<NodeId> = BTreeSet::new();
        let mut wants: Vec<String> = Vec::new();
        let mut refused = 0_usize;
        let needed = usize::from(threshold);
        let too_few =
            |wants: &[String]| must.is_none() && holders.len().saturating_sub(wants.len()) < needed;
        while !silent.is_empty() {
            let is_enough = free.len() >= needed && must.is_none_or(|node| free.contains(&node));
            if unsent.is_empty() && (is_enough || too_few(&wants)) {
                // The rest have been told as well.
                break;
            }
            let now_ms = self.clock.now_ms();
            let left_ms = ends_ms.saturating_sub(now_ms);
            if left_ms == 0 {
                break;
            }
            if now_ms >= again_ms {
                again_ms = now_ms.saturating_add(AGAIN_MS);
                unsent.append(&mut busy);
            }
            if !unsent.is_empty() {
                let body = encode(&SignOrderMsg {
                    order: order.clone(),
                    session,
                    signers: Vec::new(),
                    nonces: Vec::new(),
                    attempt_ms: patience_ms,
                    sent_at_ms: now_ms,
                    trace: None,
                })?;
                let place = (order.epoch, session, 0);
                self.send_to_rest(EnvelopeKind::SigningOrder, place, &mut unsent, &body)?;
            }
            let wait = POLL_INTERVAL.min(Duration::from_millis(left_ms));
            match timeout(wait, call.replies.recv()).await {
                Ok(Some((node, 0, OrderReply::Noted { held_until_ms })))
                    if silent.remove(&node) =>
                {
                    match held_until_ms > now_ms {
                        true => held.push((held_until_ms, node)),
                        false => {
                            free.insert(node);
                        }
                    }
                }
                Ok(Some((node, 0, OrderReply::Busy))) if silent.contains(&node) => {
                    busy.insert(node);
                }
                Ok(Some((node, 0, OrderReply::Refused(fault))))
                    if silent.contains(&node) && *fault.class() == Class::Unavailable =>
                {
                    busy.insert(node);
                }
                Ok(Some((node, 0, OrderReply::Refused(fault)))) if silent.remove(&node) => {
                    // It says so again when it is to sign; others may sign without it.
                    tracing::info!(?node, ?fault, "a node does not store approvals");
                    refused = refused.saturating_add(1);
                    wants.extend(self.wanted_approvals(&node, &fault));
                }
                Ok(None) => return Err(Fault::bug("a call without an end")),
                _ => {}
            }
        }
        if too_few(&wants) {
            let missing = Fault::of_several(Class::Invalid, wants);
            return Err(missing.with_code(FaultCode::ApprovalsMissing));
        }
        // Who refuses it signs it at no time.
        let rest = holders.len().saturating_sub(refused);
        let hold = self.hold_of(held, rest, needed, must);
        let is_certain = free.len() >= needed && must.is_none_or(|node| !silent.contains(&node));
        if hold.is_none() && !is_certain && !silent.is_empty() {
            // The one transaction that the request can sign would be built before it is known whether it is held.
            let names = silent.iter().map(|node| self.node_registry.name(node));
            let names: Vec<String> = names.collect();
            return Err(Fault::unavailable(format!(
                "signers could not be told of the approvals: no answer from {}",
                names.join(", ")
            )));
        }
        Ok(hold)
    }

    /// When enough of `all` holders sign of which these hold the payment until then.
    fn hold_of(
        &self,
        mut held: Vec<(u64, NodeId)>,
        all: usize,
        threshold: usize,
        must: Option<NodeId>,
    ) -> Option<ClusterHold> {
        held.sort_unstable();
        let free = all.saturating_sub(held.len());
        // So many of those that hold it are needed, and the first ones to let go are those.
        let needed = threshold.saturating_sub(free);
        let of_rest = needed.checked_sub(1).and_then(|last| held.get(last));
        let of_must = held.iter().find(|(_, node)| Some(*node) == must);
        let until_ms = [of_rest, of_must].into_iter().flatten();
        let until_ms = until_ms.map(|(until_ms, _)| *until_ms).max()?;
        let by = held.iter().map(|(_, node)| self.node_registry.name(node));
        Some(ClusterHold {
            until_ms,
            by: by.collect(),
        })
    }
}
