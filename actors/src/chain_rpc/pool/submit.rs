//! Sends transactions to nodes, and decides when their refusals count.

use std::sync::Arc;

use futures::future::join_all;

use super::{NodeFailure, NodePool, PoolError, PoolNode, UNREAD, said::Said};
use crate::chain_rpc::{
    exchange::{NodeRequest, NodeResponse, ParsedResponse},
    line::CallsOf,
    tries,
};

/// What is passed on waits for its turn at a node so many times as long as a call takes at most.
const PASSED_ON_PATIENCE: u32 = 3;

/// Why a node does not take what is sent to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objection {
    kind: ObjectionKind,
    /// The node's words.
    words: String,
}

/// What a node has against what is sent to it. Some of it passes, so that one node that lies must not make something
/// else of it: only nodes that have the same against it say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectionKind {
    /// The rules of the network or of the node are against it, or its sender cannot pay.
    Refused,
    /// What it uses is used, perhaps by itself.
    Used,
    /// The node lacks what it builds on, or lacks it yet.
    Missing,
    /// Its time is over.
    Over,
}

impl Objection {
    /// An objection of this kind, in the node's words.
    pub fn new(kind: ObjectionKind, words: impl Into<String>) -> Self {
        let words = words.into();
        Self { kind, words }
    }
}

/// The nodes that do not take something, by their numbers from 1, and what they have against it.
#[derive(Default)]
pub(super) struct Objections(pub(super) Vec<(usize, Objection)>);

impl Objections {
    /// How many of them say the same as the last one.
    pub(super) fn count(&self) -> usize {
        let last = self.0.last().map(|(_, objection)| objection.kind);
        let same = |(_, objection): &&(usize, Objection)| Some(objection.kind) == last;
        self.0.iter().filter(same).count()
    }

    /// Why it is not over yet, although these do not take it; `None` where there are none.
    pub(super) fn reason(&self, needed: usize, trouble: Option<String>) -> Option<String> {
        let said = self.0.iter();
        let said = said.map(|(node, objection)| format!("node {node}: {}", objection.words));
        let said: Vec<String> = said.collect();
        let trouble = trouble.unwrap_or_else(|| "the others say something else".into());
        (!said.is_empty()).then(|| {
            format!(
                "a node refuses it ({}), and {needed} nodes must refuse it before that counts; {trouble}",
                said.join("; ")
            )
        })
    }
}

/// How far something got that was sent.
#[derive(Clone, Copy, Default)]
pub(super) struct Reach {
    /// A node may have taken it, and its answer was lost.
    pub(super) is_lost: bool,
    /// A node got it, whatever it answered: it may have kept it.
    pub(super) is_out: bool,
}

impl Reach {
    /// Adds what sending it to one more node came to.
    pub(super) fn add<T>(&mut self, answer: &Result<T, NodeFailure>) {
        let failure = answer.as_ref().err();
        self.is_lost |= failure.is_some_and(NodeFailure::may_have_taken_it);
        self.is_out |= failure.is_none_or(NodeFailure::may_have_got_it);
    }
}

impl PoolNode {
    /// Until the tracker sends it, only the node that took a transaction has it. Told less and less often.
    fn note_left_out(&self) {
        let count = self.health.left_out();
        if count.is_power_of_two() {
            let (chain, node) = (&self.chain, self.number);
            tracing::warn!(%chain, node, count, "a chain node is too slow to receive a transaction that others \
                accepted at once; the tracker sends it later");
        }
    }
}

impl NodePool {
    /// As [`NodePool::first`], without a second round; also says whether a node may have taken the request before and
    /// its answer was lost. `objection` says what a node has against it by what it answers: the next node is asked
    /// then, until as many have said the same as it takes to end something for good
    /// ([`NodePool::witnesses_needed`]). One that lies must not end what others take, and may have kept it. What one does
    /// not object to all others get.
    pub async fn submit<T: Send>(
        &self,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T> + Sync,
        objection: impl Fn(&T) -> Option<Objection> + Sync,
    ) -> (Result<T, PoolError>, bool) {
        let answers = Said::new(self.nodes.len());
        let keep = |node, response: &NodeResponse| answers.keep(node, read(response));
        let objects = |node| answers.with(node, &objection);
        let (others, node, reach) = self.in_turn(call, &keep, &objects).await;
        let said = node.and_then(|node| answers.take(node).ok_or_else(|| self.unknown(UNREAD)));
        tries::note(reach.is_out);
        if said.is_ok() {
            self.pass_on(others, call);
        }
        (said, reach.is_lost)
    }

    /// Sends to the others, too, what a node did not object to, in tasks of their own and in the place of its request: that one
    /// may keep it to itself, and deny it or call it final until it is too late. What the others say changes nothing. One that
    /// is slow is left out while so much waits for it; what it does not get the tracker sends.
    fn pass_on(&self, others: impl IntoIterator<Item = usize>, call: &NodeRequest) {
        let patience = Some(self.timeout.saturating_mul(PASSED_ON_PATIENCE));
        for index in others {
            let Some(node) = self.nodes.get(index).map(Arc::clone) else {
                continue;
            };
            let Ok(place) = Arc::clone(&node.passed_on).try_acquire_owned() else {
                node.note_left_out();
                continue;
            };
            let (call, check) = (call.clone(), self.check.clone());
            let work = async move {
                if node.on_this_chain(check.as_ref()).await.is_ok() {
                    let said = node
                        .exchange(patience, &call, &mut |_| ParsedResponse::Value(()))
                        .await;
                    if let Err(NodeFailure::Crowded(_)) = said {
                        node.note_left_out();
                    }
                }
                drop(place);
            };
            tokio::spawn(CallsOf::present().scope(work));
        }
    }

    /// As [`NodePool::submit`], to every node at once: one that took it before and passed it on to nobody must not be the
    /// only one that has it. The answer is that of a node that takes it, where there is one.
    pub async fn submit_everywhere<T: Send>(
        &self,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> ParsedResponse<T> + Sync,
        objection: impl Fn(&T) -> Option<Objection>,
    ) -> (Result<T, PoolError>, bool) {
        let (read, patience, needed) = (&read, self.patience(1), self.witnesses_needed());
        let ask = |index: usize| async move {
            let said = self.ask_within(index, patience, call, read);
            (index, said.await)
        };
        let order = self.order(call.is_costly);
        let (mut trouble, mut taken, mut refused) = (None, None, None);
        let mut reach = Reach::default();
        let mut objections = Objections::default();
        for (index, answer) in join_all(order.into_iter().map(ask)).await {
            reach.add(&answer);
            match answer {
                Ok(said) => match objection(&said) {
                    Some(one) => {
                        objections.0.push((index.saturating_add(1), one));
                        let is_enough = objections.count() >= needed;
                        refused = refused.or(is_enough.then_some(said));
                    }
                    None => taken = taken.or(Some(said)),
                },
                Err(failure) => trouble = Some(failure.reason().to_owned()),
            }
        }
        tries::note(reach.is_out);
        if let Some(said) = taken.or(refused) {
            return (Ok(said), reach.is_lost);
        }
        let reason = objections.reason(needed, trouble.clone()).or(trouble);
        let reason = reason.unwrap_or_else(|| "too few nodes answered".into());
        (Err(self.unknown(&reason)), reach.is_lost)
    }
}
