//! Turns: requests of one account that build on what its other requests use up are settled one
//! after the other, in the order in which they were accepted.

use std::collections::BTreeSet;

use covault_core::{
    fault::{Class, Fault},
    ids::RequestId,
    networks::{Allocation, ChainData, Payload, Resource},
};
use ractor::RpcReplyPort;

use super::{Msg, VaultState};
use crate::{
    process::{mailbox::ActorMailbox, tasks::contained},
    requests::{account::ChainAccount, replacing, reservations, signing::BuildBlocker},
};

/// Most outputs or objects that are looked up at once.
const LOOK_AHEAD: usize = 1_000;

/// Turns that are dealt out before other messages are looked at: each may ask the store.
const AT_ONCE: usize = 16;

/// What a request brings to its turn.
pub struct SlotRequest {
    /// What it wants to sign.
    pub payload: Payload,
    /// Whose transaction it is.
    pub public_key: Vec<u8>,
    /// What the chain said.
    pub chain_data: ChainData,
    /// What it has to get, all of it, or wait for.
    pub demanded: Vec<Resource>,
    /// Where the facts go that it may build on.
    pub reply: RpcReplyPort<Result<ChainData, BuildBlocker>>,
}

/// The outcome of a turn.
enum SlotOutcome {
    /// The facts to build on, what the transaction will use up, and the outputs of those that it replaces.
    Go(ChainData, Vec<Resource>, BTreeSet<Resource>),
    /// There is nothing for it now.
    Wait(String),
    /// What it has to get, as the same payment was refused with it, is in use: it only waits for that.
    WaitForRefused(String),
}

impl VaultState {
    /// The request leaves its account queue.
    pub(super) async fn leave_account_queue(
        &mut self,
        myself: &ActorMailbox<Msg>,
        request: RequestId,
    ) {
        if let Some(account) = self.account_queues.leave(request) {
            self.dispatch(myself, &account).await;
        }
    }

    /// Allocates slots to the requests that are first in the queue and have asked.
    pub(super) async fn dispatch(&mut self, myself: &ActorMailbox<Msg>, account: &ChainAccount) {
        for _ in 0..AT_ONCE {
            let Some((request, wanted)) = self.account_queues.next(account) else {
                return;
            };
            let turn = contained(self.allocate(account, request, &wanted)).await;
            let settled = match turn {
                Ok(SlotOutcome::Go(chain_data, reservations, replaced)) => {
                    self.account_queues.reserve(account, reservations, request);
                    self.keep(request, replaced);
                    Ok(chain_data)
                }
                Ok(SlotOutcome::Wait(reason)) => {
                    self.account_queues.defer(account, request);
                    Err(BuildBlocker::Taken(reason))
                }
                Ok(SlotOutcome::WaitForRefused(reason)) => {
                    self.account_queues.defer(account, request);
                    Err(BuildBlocker::Repeated(reason))
                }
                // The store cannot be read now.
                Err(fault) if *fault.class() == Class::Unavailable => {
                    tracing::warn!(%request, ?fault, "failed to allocate a nonce or inputs for a request");
                    self.account_queues.defer(account, request);
                    Err(BuildBlocker::Taken(fault.message().to_owned()))
                }
                Err(fault) => Err(BuildBlocker::Wrong(fault)),
            };
            if wanted.reply.send(settled).is_err() {
                // It asks again or ends.
                self.account_queues.leave(request);
                self.account_queues.join(account.clone(), request);
            }
        }
        let _ = myself.cast(Msg::SlotsDue(account.clone()));
    }

    /// Keeps others from building on outputs that go with what a request is to replace, also as long as the store does
    /// not say so.
    pub(super) fn keep(&mut self, request: RequestId, replaced: BTreeSet<Resource>) {
        if replaced.is_empty() {
            self.replaced_outputs.remove(&request);
        } else {
            self.replaced_outputs.insert(request, replaced);
        }
    }

    /// Has the network choose, until what it chose is free. What it chose is looked up, and once that
    /// is not free, what the node offered: the node was asked before others paid with it. The rest is
    /// left alone: an account may have used up a million outputs.
    async fn allocate(
        &self,
        account: &ChainAccount,
        request: RequestId,
        wanted: &SlotRequest,
    ) -> Result<SlotOutcome, Fault> {
        let SlotRequest {
            payload,
            public_key,
            chain_data,
            ..
        } = wanted;
        let chain = account.network.rules();
        let mut reserved = self.account_queues.reserved(account);
        // What the client names it may share with a transaction that it is to replace.
        let named = chain.named_inputs(payload);
        let shared = reservations::replaceable(&self.services, account, &named, request).await?;
        let (services, shares) = (&self.services, shared.keys());
        let replaced = replacing::replaced_outputs(services, account, shares, request).await?;
        replacing::refuse_eviction(services, account, &named, &replaced, &reserved).await?;
        // What goes with transactions that others replace is not built on, while nodes still offer it.
        for (other, outputs) in &self.replaced_outputs {
            if *other != request {
                reserved.extend(outputs.iter().map(|output| (output.clone(), *other)));
            }
        }
        if !chain.candidate_inputs(chain_data)?.is_empty() {
            reserved.extend(replacing::outputs_replaced_by_others(services, account).await?);
        }
        let mut taken: BTreeSet<Resource> = reserved.keys().cloned().collect();
        taken.extend(replaced.iter().cloned());
        let mut looked = false;
        loop {
            let chain_data = match chain.allocate(payload, chain_data.clone(), &taken)? {
                Allocation::ChainData(chain_data) => chain_data,
                Allocation::Wait(reason) => return Ok(SlotOutcome::Wait(reason)),
            };
            let unsigned = chain.build(payload, &chain_data, public_key)?;
            let reservations = chain.reservations(payload, &unsigned)?;
            let mut demanded = wanted.demanded.iter();
            if let Some(demanded) = demanded.find(|it| !reservations.contains(it)) {
                let holder = reserved.get(demanded);
                let reason = holder.map(|it| reservations::describe_holder(demanded, *it));
                return Ok(SlotOutcome::WaitForRefused(reason.unwrap_or_else(|| {
                    "the nonce that the same payment was refused with, or what it spends, is in use"
                        .to_owned()
                })));
            }
            let mut held = reservations::held(&self.services, account, &reservations).await?;
            held.extend(reserved.clone());
            held.retain(|resource, _| !shared.contains_key(resource));
            let found = reservations
                .iter()
                .find_map(|resource| Some((resource, *held.get(resource)?)));
            match found {
                None => {
                    let mut reservations = reservations;
                    reservations.retain(|resource| !shared.contains_key(resource));
                    return Ok(SlotOutcome::Go(chain_data, reservations, replaced));
                }
                // It cannot do without: the client wants this very thing.
                Some((resource, holder)) if taken.contains(resource) => {
                    let reason = reservations::describe_holder(resource, holder);
                    return Ok(match wanted.demanded.contains(resource) {
                        true => SlotOutcome::WaitForRefused(reason),
                        false => SlotOutcome::Wait(reason),
                    });
                }
                Some(_) => taken.extend(held.into_keys()),
            }
            if !std::mem::replace(&mut looked, true) {
                let mut candidate_inputs = chain.candidate_inputs(&wanted.chain_data)?;
                candidate_inputs.retain(|resource| !taken.contains(resource));
                candidate_inputs.truncate(LOOK_AHEAD);
                let held = reservations::held(&self.services, account, &candidate_inputs).await?;
                taken.extend(held.into_keys());
            }
        }
    }
}
