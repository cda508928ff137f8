//! What a request needs from its chain, and the draft that is built from it.

use std::collections::BTreeSet;

use covault_core::{
    fault::Fault,
    networks::{
        Allocation, ChainData, FeeLevel, Network, Payload, Queries, Resource, Unsigned,
        evm::{self, EvmPayload},
        ton,
    },
    request::{Draft, SigningRequest},
};

use super::reservations;
use crate::{requests::account::ChainAccount, services::Services};

/// What is to be asked before the request can be built.
pub fn queries(services: &Services, network: Network, payload: &Payload) -> Queries {
    let queries = network.rules().queries(payload);
    // A transaction that brings everything has one open point where a node can be asked:
    // whether the chain has a base fee.
    if let (Queries::Nothing, Payload::Evm(EvmPayload::Transaction(transaction))) =
        (&queries, payload)
        && services.chains.get(network, payload.chain_id()).is_some()
    {
        return Queries::Evm(evm::Queries {
            chain_id: transaction.chain_id,
            from: transaction.from.clone(),
            nonce: false,
            fees: None,
            level: FeeLevel::Normal,
        });
    }
    queries
}

/// ChainData that need no node: there is nothing to ask, or only clock and configuration.
pub fn local_chain_data(
    services: &Services,
    payload: &Payload,
    queries: &Queries,
) -> Option<Result<ChainData, Fault>> {
    let (domain, timestamp) = match queries {
        Queries::Nothing => return Some(Ok(ChainData::Nothing)),
        Queries::Ton(ton::Queries::Message { domain, timestamp }) => (*domain, *timestamp),
        _ => return None,
    };
    let configured = &services.settings.message_domain;
    if domain && configured.is_empty() {
        return Some(Err(Fault::field(
            format!("{}.content", payload.kind()),
            "names no domain, and configuration has none (serve.message_domain)",
        )));
    }
    let chain_data = ton::ChainData::Message {
        domain: domain.then(|| configured.clone()),
        timestamp: timestamp.then(|| services.now_ms() / 1000),
    };
    Some(Ok(chain_data.into()))
}

/// The account in whose queue the request waits, when what it builds on depends on the account's
/// other requests.
pub fn account_queue(
    request: &SigningRequest,
    payload: &Payload,
    queries: &Queries,
) -> Option<ChainAccount> {
    let sequenced = request.network.rules().is_sequenced(queries);
    sequenced.then(|| ChainAccount::of(request, payload))
}

/// What the request would use up if no other one held anything: what the nodes offer it. Empty where
/// it cannot be built of that; its turn says why.
pub fn candidate_inputs(
    network: Network,
    payload: &Payload,
    chain_data: &ChainData,
    public_key: &[u8],
) -> Vec<Resource> {
    let candidate_inputs = || {
        let chain = network.rules();
        let chain_data = match chain.allocate(payload, chain_data.clone(), &BTreeSet::new())? {
            Allocation::ChainData(chain_data) => chain_data,
            Allocation::Wait(_) => return Ok(Vec::new()),
        };
        chain.reservations(payload, &build(network, payload, &chain_data, public_key)?)
    };
    let candidate_inputs: Result<_, Fault> = candidate_inputs();
    candidate_inputs.unwrap_or_default()
}

/// What a transaction uses up that its client has built; empty where it cannot be built, which its draft says.
pub fn uses(
    network: Network,
    payload: &Payload,
    chain_data: &ChainData,
    public_key: &[u8],
) -> Vec<Resource> {
    let rules = network.rules();
    let unsigned = build(network, payload, chain_data, public_key);
    let uses = unsigned.and_then(|unsigned| rules.reservations(payload, &unsigned));
    uses.unwrap_or_default()
}

/// What nodes said, with prices at which they take the transaction in the place of those that have its number or
/// the outputs that it names already, where the client named that and no price.
///
/// # Errors
/// When the store cannot be read.
pub async fn outbid(
    services: &Services,
    account: &ChainAccount,
    payload: &Payload,
    public_key: &[u8],
    mut chain_data: ChainData,
) -> Result<ChainData, Fault> {
    let rules = account.network.rules();
    let mut wanted = rules.named_inputs(payload);
    if wanted.is_empty() {
        wanted = candidate_inputs(account.network, payload, &chain_data, public_key);
        wanted.retain(|resource| matches!(resource, Resource::Nonce(_)));
    }
    for resource in wanted {
        for user in reservations::users(services, account, &resource).await? {
            let Some((request, _)) = services.request(user).await? else {
                continue;
            };
            if let Some(signed) = request.state.signed() {
                chain_data = rules.outbid(payload, chain_data, signed)?;
            }
        }
    }
    Ok(chain_data)
}

fn build(
    network: Network,
    payload: &Payload,
    chain_data: &ChainData,
    public_key: &[u8],
) -> Result<Unsigned, Fault> {
    #[cfg(feature = "testing")]
    crate::testing::before_build(payload);
    network.rules().build(payload, chain_data, public_key)
}

/// Builds what the request will sign.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] where payload and chain data contradict each other, and where a replacement
/// costs more than it may.
pub fn draft(
    request: &SigningRequest,
    payload: &Payload,
    chain_data: ChainData,
    broadcast: bool,
    now_ms: u64,
    deadline_ms: u64,
) -> Result<Draft, Fault> {
    let chain = request.network.rules();
    let unsigned = build(request.network, payload, &chain_data, &request.public_key)?;
    if let Some(replaces) = &request.replaces {
        replaces.check_fee(chain.most_fee(&unsigned.bytes)?)?;
    }
    let nonce = chain
        .reservations(payload, &unsigned)?
        .into_iter()
        .find_map(|resource| match resource {
            Resource::Nonce(nonce) => Some(nonce),
            Resource::Object(_) | Resource::TxHash(_) => None,
        });
    Ok(Draft {
        claim: nonce.map(|nonce| ChainAccount::of(request, payload).nonce(nonce)),
        shared: BTreeSet::new(),
        chain_data,
        unsigned,
        broadcast,
        built_at_ms: now_ms,
        deadline_ms,
    })
}
