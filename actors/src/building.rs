//! What a request needs from its chain, and the draft that comes of it.

use std::collections::BTreeSet;

use covault_core::{
    chain::{Facts, Needs, Resource, Settled, evm, ton},
    fault::Fault,
    network::Network,
    payload::{Payload, evm::EvmPayload},
    request::{Draft, Request},
};

use crate::{claims::Account, context::Context};

/// What is to be asked before the request can be built.
pub fn needs(context: &Context, network: Network, payload: &Payload) -> Needs {
    let needs = network.chain().needs(payload);
    // A transaction that brings everything has one open point where a node can be asked:
    // whether the chain has a base fee.
    if let (Needs::Nothing, Payload::Evm(EvmPayload::Transaction(transaction))) = (&needs, payload)
        && context.chains.get(network, payload.chain_id()).is_some()
    {
        return Needs::Evm(evm::Needs {
            chain_id: transaction.chain_id,
            from: transaction.from.clone(),
            nonce: false,
            fees: None,
        });
    }
    needs
}

/// Facts that need no node: there is nothing to ask, or only clock and configuration.
pub fn own_facts(
    context: &Context,
    payload: &Payload,
    needs: &Needs,
) -> Option<Result<Facts, Fault>> {
    let (domain, timestamp) = match needs {
        Needs::Nothing => return Some(Ok(Facts::Nothing)),
        Needs::Ton(ton::Needs::Message { domain, timestamp }) => (*domain, *timestamp),
        _ => return None,
    };
    let configured = &context.settings.message_domain;
    if domain && configured.is_empty() {
        return Some(Err(Fault::field(
            format!("{}.content", payload.kind()),
            "names no domain, and configuration has none (serve.message_domain)",
        )));
    }
    let facts = ton::Facts::Message {
        domain: domain.then(|| configured.clone()),
        timestamp: timestamp.then(|| context.now_ms() / 1000),
    };
    Some(Ok(facts.into()))
}

/// The account in whose lane the request waits, when what it builds on depends on the account's
/// other requests.
pub fn lane(request: &Request, payload: &Payload, needs: &Needs) -> Option<Account> {
    let sequenced = request.network.chain().is_sequenced(needs);
    sequenced.then(|| Account::of(request, payload))
}

/// What the request would use up if no other one held anything: what the nodes offer it. Empty where
/// it cannot be built of that; its turn says why.
pub fn offered(
    network: Network,
    payload: &Payload,
    facts: &Facts,
    public_key: &[u8],
) -> Vec<Resource> {
    let offered = || {
        let chain = network.chain();
        let facts = match chain.settle(payload, facts.clone(), &BTreeSet::new())? {
            Settled::Facts(facts) => facts,
            Settled::Wait(_) => return Ok(Vec::new()),
        };
        chain.uses(payload, &chain.build(payload, &facts, public_key)?)
    };
    let offered: Result<_, Fault> = offered();
    offered.unwrap_or_default()
}

/// Builds what the request will sign.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] where payload and facts contradict each other.
pub fn draft(
    request: &Request,
    payload: &Payload,
    facts: Facts,
    broadcast: bool,
    now_ms: u64,
    deadline_ms: u64,
) -> Result<Draft, Fault> {
    let chain = request.network.chain();
    let unsigned = chain.build(payload, &facts, &request.public_key)?;
    let nonce = chain
        .uses(payload, &unsigned)?
        .into_iter()
        .find_map(|resource| match resource {
            Resource::Nonce(nonce) => Some(nonce),
            Resource::Piece(_) | Resource::Whole(_) => None,
        });
    Ok(Draft {
        claim: nonce.map(|nonce| Account::of(request, payload).nonce(nonce)),
        facts,
        unsigned,
        broadcast,
        built_at_ms: now_ms,
        deadline_ms,
    })
}
