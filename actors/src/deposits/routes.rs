//! The configuration of all sweep tokens, as the followers of chains need it.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{
    amount::{U256, parse_u256},
    deposit::{
        DepositNetwork, SweepRoute, SweepRules,
        transfer::{Account, AddressOwner, FollowedChain},
    },
    fault::Fault,
    ids::TokenId,
};

use crate::{
    services::{Services, skip_unreadable},
    store::{KeySpace, Scan, rows, sweep_rows},
};

/// Rows that one scan reads.
const PAGE: usize = 1_000;

/// The routes of one network, by token.
#[derive(Default)]
pub struct Routes {
    routes: BTreeMap<TokenId, SweepRoute>,
    /// The accounts that pay for sweeps, by chain.
    gas_accounts: BTreeSet<(FollowedChain, Account)>,
    /// Chains with rules that cannot be read: any account may pay for sweeps there.
    unread: BTreeSet<FollowedChain>,
    /// Whose deposits are swept on which chains.
    swept: BTreeSet<(TokenId, FollowedChain)>,
}

impl Routes {
    /// Those that are stored now.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn load(services: &Services, network: DepositNetwork) -> Result<Self, Fault> {
        let mut routes = BTreeMap::new();
        let mut next = Some(Scan::prefix(KeySpace::SweepRoute, &[], PAGE));
        while let Some(scan) = next {
            let page = services.store.scan(&scan).await?;
            for (key, row) in &page {
                let Some((token, of)) = rows::split_sweep_route(key) else {
                    continue;
                };
                if of != network {
                    continue;
                }
                let route = rows::decode::<SweepRoute>(&row.value);
                let route = skip_unreadable(route, format_args!("what token {token} sweeps"))?;
                routes.extend(route.map(|route| (token, route)));
            }
            next = scan.rest(&page);
        }
        let mut all = Self {
            routes,
            ..Self::default()
        };
        all.load_rules(services).await?;
        Ok(all)
    }

    async fn load_rules(&mut self, services: &Services) -> Result<(), Fault> {
        let mut next = Some(Scan::prefix(KeySpace::SweepRules, &[], PAGE));
        while let Some(scan) = next {
            let page = services.store.scan(&scan).await?;
            for (key, row) in &page {
                let Some((token, chain)) = sweep_rows::split_rules(key) else {
                    continue;
                };
                let rules = rows::decode::<SweepRules>(&row.value);
                let rules = skip_unreadable(rules, format_args!("how token {token} sweeps"))?;
                let Some(rules) = rules else {
                    self.unread.insert(chain);
                    continue;
                };
                if rules.enabled {
                    self.swept.insert((token, chain));
                }
                let gas = rules.gas_accounts.into_iter();
                self.gas_accounts
                    .extend(gas.map(|account| (chain, account)));
            }
            next = scan.rest(&page);
        }
        Ok(())
    }

    /// The least amount of a coin or token that is swept from the wallets of an API token; `None`: it is not swept.
    pub fn swept_from(
        &self,
        token: TokenId,
        chain: FollowedChain,
        asset: Option<Account>,
    ) -> Option<U256> {
        if !self.swept.contains(&(token, chain)) {
            return None;
        }
        parse_u256(self.routes.get(&token)?.minimum(chain, asset)?).ok()
    }

    /// Whether an account pays for sweeps on a chain, or has paid: what sweeps have asked it for is no deposit. `None`: rules
    /// that cannot be read may name it.
    pub fn is_gas_account(&self, chain: FollowedChain, account: Account) -> Option<bool> {
        let is_known = self.gas_accounts.contains(&(chain, account));
        (is_known || !self.unread.contains(&chain)).then_some(is_known)
    }

    /// Whether nobody takes deposits.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// The tokens of a chain whose transfers are announced.
    pub fn tokens(&self, chain: FollowedChain) -> BTreeSet<Account> {
        let routes = self.routes.values();
        let named = routes.flat_map(|route| route.tokens(chain));
        named.chain(watched_token(chain)).collect()
    }

    /// The coin, and the tokens of a chain that the wallets of an API token take.
    pub fn assets_of(
        &self,
        token: TokenId,
        chain: FollowedChain,
    ) -> impl Iterator<Item = Option<Account>> + '_ {
        let route = self.routes.get(&token).into_iter();
        let tokens = route.flat_map(move |route| route.tokens(chain)).map(Some);
        std::iter::once(None).chain(tokens)
    }

    /// Whether an owner is told of transfers of this: the coin always; tokens that its API token names, of a watched
    /// address USDT alone.
    pub fn tells(
        &self,
        owner: &AddressOwner,
        chain: FollowedChain,
        asset: Option<Account>,
    ) -> bool {
        let Some(asset) = asset else {
            return true;
        };
        if owner.wallet.is_none() {
            return watched_token(chain) == Some(asset);
        }
        let route = self.routes.get(&owner.token);
        route.is_some_and(|route| route.tokens(chain).any(|token| token == asset))
    }
}

/// USDT on TRON (TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t), of which watched addresses are told.
const USDT_ON_TRON: Account = Account([
    0xa6, 0x14, 0xf8, 0x03, 0xb6, 0xfd, 0x78, 0x09, 0x86, 0xa4, 0x2c, 0x78, 0xec, 0x9c, 0x7f, 0x77,
    0xe6, 0xde, 0xd1, 0x3c,
]);

/// The token that watched addresses of a chain are told of.
fn watched_token(chain: FollowedChain) -> Option<Account> {
    match chain {
        FollowedChain::Tron => Some(USDT_ON_TRON),
        FollowedChain::Evm(_) => None,
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn usdt__should_be_the_one_of_tether() {
        let network = DepositNetwork::Tron;
        assert_eq!(
            USDT_ON_TRON.text(network),
            "TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t"
        );
    }
}
