//! What asking nodes is, whatever the question: made once, where generic code is made anew for every question that there
//! is (docs/decisions/0029-the-release-profile.md). Answers stay where they were read, and go by the numbers of nodes.

use std::{collections::VecDeque, sync::atomic::Ordering, time::Duration};

use futures::future::join_all;
use tokio::time::Instant;

use super::{
    NodeFailure, NodePool, PAUSE_MS, PoolError, ROUNDS, is_of_request,
    submit::{Objection, Objections, Reach},
};
use crate::chain_rpc::{
    exchange::{NodeRequest, NodeResponse, ParsedResponse},
    load,
};

/// Reads the answer of the node with this number, from 0, and keeps what it says.
pub(super) type KeepOf<'a> = dyn Fn(usize, &NodeResponse) -> ParsedResponse<()> + Send + Sync + 'a;
/// Whether two nodes have said the same.
pub(super) type SameOf<'a> = dyn Fn(usize, usize) -> bool + Send + Sync + 'a;
/// What is to be said against a request by what a node has answered.
pub(super) type ObjectionOf<'a> = dyn Fn(usize) -> Option<Objection> + Send + Sync + 'a;

impl NodePool {
    /// As [`NodePool::first`]: which node has answered.
    pub(super) async fn first_of(
        &self,
        call: &NodeRequest,
        keep: &KeepOf<'_>,
    ) -> Result<usize, PoolError> {
        let begun = Instant::now();
        let mut round = 1;
        loop {
            let (_, answer, _) = self.in_turn(call, keep, &|_| None).await;
            // The caller waits no longer than for a node that is silent.
            let again = round < ROUNDS && begun.elapsed() < self.timeout;
            match answer {
                Err(PoolError::Unknown(_) | PoolError::TooLong(_)) if again => {
                    let pause = PAUSE_MS - PAUSE_MS * u64::from(self.dice()) / 1024;
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                    round += 1;
                }
                answer => return answer,
            }
        }
    }

    /// As [`NodePool::query_quorum`]: one of the nodes that have said what counts.
    pub(super) async fn quorum_of(
        &self,
        what: &str,
        call: &NodeRequest,
        keep: &KeepOf<'_>,
        same: &SameOf<'_>,
    ) -> Result<usize, PoolError> {
        let answers = self.gather_of(call, keep, same).await?;
        let voices = |one: usize| answers.iter().filter(|other| same(one, **other)).count();
        let enough = |said: usize| voices(said) >= self.agree();
        let winner = answers.iter().copied().find(|answer| enough(*answer));
        let (against, contested) = match winner {
            Some(winner) => {
                let against = answers.iter().copied();
                let against: Vec<usize> = against.filter(|other| !same(winner, *other)).collect();
                let contested = against.iter().any(|answer| enough(*answer));
                (against, contested)
            }
            None => (Vec::new(), true),
        };
        for node in against.iter().filter_map(|index| self.nodes.get(*index)) {
            node.health.dissented();
        }
        if contested || !against.is_empty() {
            let nodes = against.iter().map(|index| index + 1).collect::<Vec<_>>();
            tracing::warn!(chain = self.chain, what, against = ?nodes, "nodes disagree");
        }
        winner.filter(|_| !contested).ok_or_else(|| {
            load::forget();
            self.unknown(&format!(
                "the nodes disagree about {what}; {} must agree",
                self.agree()
            ))
        })
    }

    /// As [`NodePool::gather`]: which nodes have answered.
    pub(super) async fn gather_of(
        &self,
        call: &NodeRequest,
        keep: &KeepOf<'_>,
        same: &SameOf<'_>,
    ) -> Result<Vec<usize>, PoolError> {
        if self.agree() <= 1 {
            return Ok(vec![self.first_of(call, keep).await?]);
        }
        let order = self.order(call.is_costly);
        let patience = self.patience(order.len().saturating_sub(self.agree()));
        let ask = |index: usize| async move {
            let said = self.put_of(index, patience, call, keep).await;
            (index, said)
        };
        let (some, rest) = order.split_at(self.agree().min(order.len()));
        let mut answers = Vec::new();
        let mut trouble = None;
        let mut wrong_chain = None;
        for nodes in [some, rest] {
            for (index, answer) in join_all(nodes.iter().copied().map(ask)).await {
                match answer {
                    Ok(()) => answers.push(index),
                    Err(NodeFailure::WrongChain(reason)) => wrong_chain = Some(reason),
                    Err(failure) => trouble = Some(failure),
                }
            }
            let unanimous = answers
                .iter()
                .all(|one| answers.iter().all(|other| same(*one, *other)));
            if unanimous && answers.len() >= self.agree() {
                break;
            }
        }
        if let (true, None, Some(reason)) = (answers.is_empty(), &trouble, wrong_chain) {
            return Err(PoolError::WrongChain(reason));
        }
        if answers.len() < self.agree() {
            let reason = trouble
                .as_ref()
                .map_or("the others are on another chain", NodeFailure::reason);
            let reason = format!(
                "{} of the {} nodes that have to agree answered; {reason}",
                answers.len(),
                self.agree()
            );
            return Err(self.failed(trouble.as_ref(), &reason));
        }
        Ok(answers)
    }

    /// Asks one node after the other, until one does not object, or enough do. Gives back those that the request did not get
    /// to, none where enough object; which node has said what counts; and how far the request got.
    pub(super) async fn in_turn(
        &self,
        call: &NodeRequest,
        keep: &KeepOf<'_>,
        objection: &ObjectionOf<'_>,
    ) -> (VecDeque<usize>, Result<usize, PoolError>, Reach) {
        let mut trouble = None;
        let mut wrong_chain = None;
        let mut reach = Reach::default();
        let mut objections = Objections::default();
        let needed = self.witnesses_needed();
        let (mut order, mut skipped) = (VecDeque::from(self.order(call.is_costly)), Vec::new());
        while let Some(index) = order.pop_front() {
            let patience = self.patience(order.len());
            let answer = self.put_of(index, patience, call, keep).await;
            reach.add(&answer);
            match answer {
                Ok(()) => {
                    let objects = objection(index).map(|one| (index.saturating_add(1), one));
                    let passes = objects.is_none();
                    objections.0.extend(objects);
                    if passes || objections.count() >= needed {
                        self.preferred.store(index, Ordering::Relaxed);
                        order.extend(skipped);
                        let others = if passes { order } else { VecDeque::new() };
                        return (others, Ok(index), reach);
                    }
                }
                Err(NodeFailure::WrongChain(reason)) => wrong_chain = Some(reason),
                // The caller's patience ends it, where none of them has a place in time.
                Err(NodeFailure::Crowded(_)) if is_of_request() => order.push_back(index),
                Err(failure) => {
                    if !failure.may_have_taken_it() {
                        skipped.push(index);
                    }
                    trouble = Some(failure);
                }
            }
        }
        let why_not = trouble.as_ref().map(|failure| failure.reason().to_owned());
        let why_not = why_not.or_else(|| wrong_chain.clone());
        let error = match (objections.reason(needed, why_not), trouble, wrong_chain) {
            (Some(reason), _, _) => self.unknown(&reason),
            (None, None, Some(reason)) => PoolError::WrongChain(reason),
            (None, trouble, _) => {
                let reason = trouble.as_ref().map_or("", NodeFailure::reason);
                self.failed(trouble.as_ref(), reason)
            }
        };
        (VecDeque::new(), Err(error), reach)
    }

    /// Asks one node, within so long.
    async fn put_of(
        &self,
        index: usize,
        patience: Option<Duration>,
        call: &NodeRequest,
        keep: &KeepOf<'_>,
    ) -> Result<(), NodeFailure> {
        let mut keep = |response: &NodeResponse| keep(index, response);
        self.put(index, patience, call, &mut keep).await
    }
}
