//! What a request needs from its chain, and the draft that comes of it.

use covault_core::{
    chain::{Chain, Facts, Needs, evm},
    fault::Fault,
    network::Network,
    payload::{Payload, evm::EvmPayload},
    request::{Draft, NonceClaim, Request},
};

use crate::{context::Context, lanes::Account};

/// The rules of a request's network.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`]: no request is accepted for a network that is not built.
pub fn chain(network: Network) -> Result<&'static dyn Chain, Fault> {
    network
        .chain()
        .ok_or_else(|| Fault::bug("a request of a network that is not built"))
}

/// What is to be asked before the request can be built.
pub fn needs(context: &Context, network: Network, payload: &Payload) -> Result<Needs, Fault> {
    let needs = chain(network)?.needs(payload);
    // A transaction that brings everything has one open point where a node can be asked:
    // whether the chain has a base fee.
    if let (Needs::Nothing, Payload::Evm(EvmPayload::Transaction(transaction))) = (&needs, payload)
        && context.chains.get(network, payload.chain_id()).is_some()
    {
        return Ok(Needs::Evm(evm::Needs {
            chain_id: transaction.chain_id,
            from: transaction.from.clone(),
            nonce: false,
            fees: None,
        }));
    }
    Ok(needs)
}

/// The account whose next nonce the request wants, where it wants one.
pub fn account(request: &Request, needs: &Needs) -> Option<Account> {
    match needs {
        Needs::Evm(needs) if needs.nonce => Some(Account {
            network: request.network,
            chain_id: needs.chain_id,
            address: request.address.clone(),
        }),
        _ => None,
    }
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
    let unsigned = chain(request.network)?.build(payload, &facts, &request.public_key)?;
    Ok(Draft {
        claim: claim_of(request, payload, &facts),
        facts,
        unsigned,
        broadcast,
        built_at_ms: now_ms,
        deadline_ms,
    })
}

/// The nonce that a built transaction holds.
fn claim_of(request: &Request, payload: &Payload, facts: &Facts) -> Option<NonceClaim> {
    let assigned = match facts {
        Facts::Evm(facts) => facts.nonce,
        _ => None,
    };
    Some(NonceClaim {
        network: request.network,
        chain_id: payload.chain_id()?,
        address: request.address.clone(),
        nonce: assigned.or_else(|| chosen_nonce(payload))?,
    })
}

/// The nonce that the client chose.
fn chosen_nonce(payload: &Payload) -> Option<u64> {
    match payload {
        Payload::Evm(EvmPayload::Transaction(transaction)) => transaction.nonce,
        _ => None,
    }
}
