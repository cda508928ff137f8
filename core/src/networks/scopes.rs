//! Reads chain scopes and assets as policy files and clients name them.

use super::{
    Network,
    outflow::{Asset, ChainScope},
};
use crate::{
    amount::parse_u64,
    fault::{Class, Fault},
};

impl ChainScope {
    /// Reads `evm`, `evm:1`, `aptos:126`, `solana`. Only EVM and Aptos signatures name their chain:
    /// one for Solana is good on Sonic SVM too, so those cannot be told apart.
    ///
    /// # Errors
    /// [`Class::Invalid`] with a sentence without a field.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let (name, chain) = match text.split_once(':') {
            Some((name, chain)) => (name, Some(chain)),
            None => (text, None),
        };
        let network = Network::ALL
            .into_iter()
            .find(|network| network.key() == name)
            .ok_or_else(|| {
                let known = Network::ALL.map(Network::key).join(", ");
                invalid(format!("is not a network: use one of {known}, or evm:1"))
            })?;
        let Some(chain) = chain else {
            return Ok(Self::network(network));
        };
        let Some(chains) = network.rules().chain_ids() else {
            return Err(invalid(format!(
                "cannot name a chain: a signature of a {} wallet is good on every chain of \
                 the network; write {name}",
                network.name()
            )));
        };
        let chain_id = parse_u64(chain)
            .ok()
            .filter(|id| (chains.contains)(*id))
            .ok_or_else(|| invalid(chains.problem.to_owned()))?;
        Ok(Self {
            network,
            chain_id: Some(chain_id),
        })
    }
}

impl Asset {
    /// Reads what [`Asset`] prints; addresses in any form, and a coin also by the names that it has as
    /// a token. A token that cannot be determined counts as no token.
    ///
    /// # Errors
    /// [`Class::Invalid`] with a sentence without a field.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let (place, token) = match text.split_once('/') {
            Some((place, token)) => (ChainScope::parse(place)?, Some(token)),
            None => (ChainScope::parse(text)?, None),
        };
        let rules = place.network.rules();
        if place.chain_id.is_none()
            && let Some(chains) = rules.chain_ids()
        {
            let problem = format!("must name its chain, e.g. {}", chains.example);
            return Err(invalid(problem));
        }
        let token = token.map(|token| rules.parse_token(token)).transpose()?;
        let token = token.and_then(|token| rules.counted_token(place.chain_id, token));
        Ok(Self { place, token })
    }
}

fn invalid(sentence: String) -> Fault {
    Fault::new(Class::Invalid, sentence)
}

#[cfg(test)]
#[path = "scopes_tests.rs"]
mod tests;
