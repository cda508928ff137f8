//! Turns: requests of one account that build on what its other requests use up are settled one
//! after the other, in the order in which they were accepted.

use std::collections::BTreeSet;

use covault_core::{
    chain::{Facts, Resource, Settled},
    fault::{Class, Fault},
    ids::RequestId,
    payload::Payload,
};
use ractor::RpcReplyPort;

use super::Live;
use crate::{
    claims::{self, Account},
    signing::NotYet,
};

/// Most outputs or objects that are looked up at once.
const LOOK_AHEAD: usize = 1_000;

/// What a request brings to its turn.
pub struct Wanted {
    /// What it wants to sign.
    pub payload: Payload,
    /// Whose transaction it is.
    pub public_key: Vec<u8>,
    /// What the chain said.
    pub facts: Facts,
    /// Where the facts go that it may build on.
    pub reply: RpcReplyPort<Result<Facts, NotYet>>,
}

/// What came of a turn.
enum Turn {
    /// The facts to build on, and what the transaction will use up.
    Go(Facts, Vec<Resource>),
    /// There is nothing for it now.
    Wait(String),
}

impl Live {
    /// The request waits for nothing more in its lane.
    pub(super) async fn leave_lane(&mut self, request: RequestId) {
        if let Some(account) = self.lanes.leave(request) {
            self.serve(&account).await;
        }
    }

    /// Settles the facts of those who are first in the lane and have asked.
    pub(super) async fn serve(&mut self, account: &Account) {
        while let Some((request, wanted)) = self.lanes.next(account) {
            let turn = self.settle(account, &wanted).await;
            let settled = match turn {
                Ok(Turn::Go(facts, uses)) => {
                    self.lanes.reserve(account, uses, request);
                    Ok(facts)
                }
                Ok(Turn::Wait(reason)) => {
                    self.lanes.put_off(account, request);
                    Err(NotYet::Taken(reason))
                }
                // The store cannot be read now.
                Err(fault) if *fault.class() == Class::Unavailable => {
                    tracing::warn!(%request, ?fault, "a request's turn came to nothing");
                    self.lanes.put_off(account, request);
                    Err(NotYet::Taken(fault.public().to_owned()))
                }
                Err(fault) => Err(NotYet::Wrong(fault)),
            };
            if wanted.reply.send(settled).is_err() {
                // It asks again or ends.
                self.lanes.leave(request);
                self.lanes.join(account.clone(), request);
            }
        }
    }

    /// Has the network choose, until what it chose is free. What it chose is looked up, and once that
    /// is not free, what the node offered: the node was asked before others paid with it. The rest is
    /// left alone: an account may have used up a million outputs.
    async fn settle(&self, account: &Account, wanted: &Wanted) -> Result<Turn, Fault> {
        let Wanted {
            payload,
            public_key,
            facts,
            ..
        } = wanted;
        let chain = account.network.chain();
        let reserved = self.lanes.reserved(account);
        let mut taken: BTreeSet<Resource> = reserved.keys().cloned().collect();
        let mut looked = false;
        loop {
            let facts = match chain.settle(payload, facts.clone(), &taken)? {
                Settled::Facts(facts) => facts,
                Settled::Wait(reason) => return Ok(Turn::Wait(reason)),
            };
            let unsigned = chain.build(payload, &facts, public_key)?;
            let uses = chain.uses(payload, &unsigned)?;
            let mut held = claims::held(&self.context, account, &uses).await?;
            held.extend(reserved.clone());
            let found = uses
                .iter()
                .find_map(|resource| Some((resource, *held.get(resource)?)));
            match found {
                None => return Ok(Turn::Go(facts, uses)),
                // It cannot do without: the client wants this very thing.
                Some((resource, holder)) if taken.contains(resource) => {
                    return Ok(Turn::Wait(claims::in_words(resource, holder)));
                }
                Some(_) => taken.extend(held.into_keys()),
            }
            if !std::mem::replace(&mut looked, true) {
                let mut offered = chain.offered(&wanted.facts)?;
                offered.retain(|resource| !taken.contains(resource));
                offered.truncate(LOOK_AHEAD);
                let held = claims::held(&self.context, account, &offered).await?;
                taken.extend(held.into_keys());
            }
        }
    }
}
