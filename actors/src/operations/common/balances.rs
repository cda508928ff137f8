//! getBalance: which chain is meant, and what its nodes say.

use std::sync::Arc;

use covault_core::{fault::Fault, networks::Network, schema::wire::GetBalanceRequest};

use crate::{
    chain_rpc::{ChainClient, ChainError, ChainKey},
    services::Services,
};

/// A balance in the smallest unit, decimal.
pub async fn balance(services: &Services, request: &GetBalanceRequest) -> Result<String, Fault> {
    let network = Network::from_wire(request.network_type())
        .ok_or_else(|| Fault::field("networkType", "is required"))?;
    let rules = network.rules();
    let chain = chain(services, network, request.chain_id)?;
    let with_field = |field: &'static str| move |fault: Fault| Fault::field(field, fault.message());
    let owner = rules
        .parse_address(&request.wallet_address)
        .map_err(with_field("walletAddress"))?;
    let token = match request.token_address.as_deref() {
        None | Some("") => None,
        Some(token) => Some(
            rules
                .parse_token(token)
                .map_err(with_field("tokenAddress"))?,
        ),
    }
    // The coin by another name.
    .filter(|token| !rules.is_coin(token));
    let client = client(services, chain)?;
    let refusal = match client.balance(&owner, token.as_deref()).await {
        Ok(balance) => return Ok(balance),
        Err(ChainError::Unknown(reason)) => {
            return Err(Fault::unavailable(format!(
                "no chain node answered; try again: {reason}"
            )));
        }
        Err(ChainError::Refused(refusal) | ChainError::Lacks(refusal)) => refusal.reason,
    };
    // What is refused of the coin too, such as a node of another chain, is not the token's fault.
    if token.is_some() && client.balance(&owner, None).await.is_ok() {
        return Err(Fault::field("tokenAddress", refusal));
    }
    Err(Fault::unavailable(refusal))
}

/// The nodes of a chain.
pub(crate) fn client(services: &Services, chain: ChainKey) -> Result<&Arc<dyn ChainClient>, Fault> {
    let client = services.chains.get(chain.network, chain.chain_id);
    client.ok_or_else(|| {
        let field = chain.chain_id.map_or("networkType", |_| "chainId");
        Fault::field(field, chain.without_node())
    })
}

/// The chain that is meant: EVM requests must name one, Aptos and Solana ones may, and for the
/// others a chain id means nothing. Custom EVM chains have no balances.
pub(crate) fn chain(
    services: &Services,
    network: Network,
    named: Option<i64>,
) -> Result<ChainKey, Fault> {
    let named = named
        .map(|id| u64::try_from(id).map_err(|_| Fault::invalid_chain_id()))
        .transpose();
    let one_of = |id: Option<u64>, chains: [ChainKey; 2]| {
        let [default, _] = chains;
        let wanted = id.map_or(default, |id| ChainKey::of(network, Some(id)));
        chains
            .into_iter()
            .find(|chain| *chain == wanted)
            .ok_or_else(Fault::invalid_chain_id)
    };
    match network {
        Network::Evm => {
            let id = named?
                .ok_or_else(|| Fault::field("chainId", "is required for NETWORK_TYPE_EVM"))?;
            if !services.known.contains(id) {
                return Err(Fault::invalid_chain_id());
            }
            Ok(ChainKey::evm(id))
        }
        Network::Aptos => one_of(named?, [ChainKey::APTOS, ChainKey::MOVEMENT]),
        Network::Solana => one_of(named?, [ChainKey::SOLANA, ChainKey::SONIC]),
        one if one.rules().chain_ids().is_none() => Ok(ChainKey::of(one, None)),
        _ => Err(Fault::bug("a network with several chains needs a chain id")),
    }
}
