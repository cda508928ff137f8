//! The rows of sweeps, and their keys.

use covault_core::{
    deposit::transfer::{Account, AddressOwner, FollowedChain},
    ids::TokenId,
};
use serde::{Deserialize, Serialize};

use super::{Key, KeySpace};

/// That something final was paid to a deposit wallet since it was last found to have nothing to sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepDueRow {
    /// Whose it is.
    pub owner: AddressOwner,
}

/// What was swept of a coin or token in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepTotalRow {
    /// Sweeps that are over.
    pub sweeps: u64,
    /// What they have moved to the target, in the smallest unit, big-endian.
    pub amount: [u8; 32],
    /// Coin that the gas wallet has sent for their fees, in the smallest unit, big-endian.
    pub top_ups: [u8; 32],
    /// Coin that they have paid as fees, without those of the top-ups, in the smallest unit, big-endian.
    pub fees: [u8; 32],
}

/// [`KeySpace::SweepRules`].
pub fn rules(token: TokenId, chain: FollowedChain) -> Key {
    Key::new(KeySpace::SweepRules, &[token.as_bytes(), &chain.key()])
}

/// The part of [`KeySpace::SweepRules`] that a token has.
pub fn rules_of(token: TokenId) -> Key {
    Key::new(KeySpace::SweepRules, &[token.as_bytes()])
}

/// The token and the chain of a row of [`KeySpace::SweepRules`].
pub fn split_rules(key: &Key) -> Option<(TokenId, FollowedChain)> {
    let (token, chain) = key.bytes.split_first_chunk::<16>()?;
    let chain = FollowedChain::of_key(chain.try_into().ok()?)?;
    Some((TokenId::from_bytes(*token), chain))
}

/// The part of [`KeySpace::SweepDue`] that a chain has.
pub fn due_of(chain: FollowedChain) -> Key {
    Key::new(KeySpace::SweepDue, &[&chain.key()])
}

/// [`KeySpace::SweepDue`].
pub fn due(chain: FollowedChain, account: Account, asset: Option<Account>) -> Key {
    let asset = asset.map(|asset| asset.0);
    let asset = asset.as_ref().map_or(&[] as &[u8], |asset| asset);
    Key::new(KeySpace::SweepDue, &[&chain.key(), &account.0, asset])
}

/// The account and the coin or token of a row of [`KeySpace::SweepDue`].
pub fn split_due(key: &Key) -> Option<(Account, Option<Account>)> {
    let (account, asset) = key.bytes.get(9..)?.split_first_chunk::<20>()?;
    let asset = match asset {
        [] => None,
        asset => Some(Account(asset.try_into().ok()?)),
    };
    Some((Account(*account), asset))
}

/// [`KeySpace::Sweep`].
pub fn sweep(chain: FollowedChain, account: Account) -> Key {
    Key::new(KeySpace::Sweep, &[&chain.key(), &account.0])
}

/// [`KeySpace::SweepTopUp`].
pub fn top_up(chain: FollowedChain, account: Account, amount: &[u8; 32]) -> Key {
    Key::new(KeySpace::SweepTopUp, &[&chain.key(), &account.0, amount])
}

/// The part of [`KeySpace::Transfer`] that a transaction has.
pub fn transfers_of(chain: FollowedChain, tx: &[u8; 32]) -> Key {
    Key::new(KeySpace::Transfer, &[&chain.key(), tx])
}

/// [`KeySpace::SweepTotal`].
pub fn total(token: TokenId, chain: FollowedChain, asset: Option<Account>) -> Key {
    let asset = asset.map(|asset| asset.0);
    let asset = asset.as_ref().map_or(&[] as &[u8], |asset| asset);
    Key::new(
        KeySpace::SweepTotal,
        &[token.as_bytes(), &chain.key(), asset],
    )
}

/// The part of [`KeySpace::SweepTotal`] that a token has on a chain.
pub fn totals_of(token: TokenId, chain: FollowedChain) -> Key {
    total(token, chain, None)
}

/// The coin or token of a row of [`KeySpace::SweepTotal`].
pub fn asset_of_total(key: &Key) -> Option<Option<Account>> {
    match key.bytes.get(16 + 9..)? {
        [] => Some(None),
        asset => Some(Some(Account(asset.try_into().ok()?))),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{
        deposit::{
            SweepRetries, SweepRules,
            sweep::{AssetFailures, PauseReason, SweepJob, SweepState, TopUp},
        },
        ids::{RequestId, VaultId, WalletId},
    };

    use super::*;
    use crate::store::rows::tests::check;

    #[test]
    fn rows_of_sweeps__should_load_for_ever() {
        check(
            "sweep-rules-v1",
            &SweepRules {
                enabled: true,
                gas_wallet: Some(WalletId::from_bytes([1; 16])),
                gas_accounts: vec![Account([2; 20])],
                max_cost_percent: 3,
                max_gas_price: Some(4),
                max_top_up: Some(6),
                max_wait_s: 5,
                every_s: 7,
                retries: SweepRetries {
                    last: 11,
                    all: 8,
                    some: [(Account([9; 20]), 10)].into(),
                },
            },
        );
        let owner = AddressOwner {
            token: TokenId::from_bytes([1; 16]),
            reference: "order-1".into(),
            wallet: Some((WalletId::from_bytes([2; 16]), VaultId::from_bytes([3; 16]))),
            since_ms: 4,
        };
        check("sweep-due-v1", &SweepDueRow { owner });
        let request = RequestId::from_bytes([6; 16]);
        let amount = [7; 32];
        let paused = |reason| SweepState::Paused {
            reason,
            retry_at_ms: 8,
        };
        for (name, state) in [
            ("due", SweepState::Due),
            ("funding", SweepState::Funding { request }),
            ("funded", SweepState::Funded),
            ("moving", SweepState::Moving { request, amount }),
            ("swept", SweepState::Swept { amount }),
            ("gone", SweepState::Gone),
            ("paused-price", paused(PauseReason::GasPrice { price: 9 })),
            ("paused-cost", paused(PauseReason::Cost)),
            ("paused-gas-wallet", paused(PauseReason::GasWalletEmpty)),
            ("paused-gas", paused(PauseReason::GasTooLow)),
            ("paused-unexplained", paused(PauseReason::Unexplained)),
            (
                "paused-failed",
                paused(PauseReason::RequestFailed("no".into())),
            ),
            (
                "paused-unavailable",
                paused(PauseReason::Unavailable("no".into())),
            ),
            (
                "paused-top-up",
                paused(PauseReason::TopUpTooLarge { wanted: amount }),
            ),
        ] {
            let job = SweepJob {
                number: 1,
                asset: Some(Account([2; 20])),
                began_at_ms: 3,
                requests: 4,
                top_up: Some(TopUp {
                    request,
                    amount: [5; 32],
                    asset: Some(Account([10; 20])),
                }),
                lost_top_up: Some([9; 32]),
                since_ms: 8,
                blocked_since_ms: Some(6),
                pauses: 7,
                round_since_ms: 11,
                swept: vec![None, Some(Account([2; 20]))],
                failures: vec![AssetFailures {
                    asset: Some(Account([2; 20])),
                    count: 3,
                    reason: "no".into(),
                    at_ms: 12,
                    after: 13,
                }],
                state,
            };
            check(&format!("sweep-v1-{name}"), &job);
        }
        check(
            "sweep-total-v1",
            &SweepTotalRow {
                sweeps: 1,
                amount: [2; 32],
                top_ups: [3; 32],
                fees: [4; 32],
            },
        );
    }

    #[test]
    fn keys__should_be_read_as_they_are_written() {
        let (chain, account) = (FollowedChain::Evm(7), Account([1; 20]));
        let token = TokenId::from_bytes([3; 16]);
        assert_eq!(split_rules(&rules(token, chain)), Some((token, chain)));
        for asset in [None, Some(Account([2; 20]))] {
            let key = due(chain, account, asset);
            assert!(key.bytes.starts_with(&due_of(chain).bytes));
            assert_eq!(split_due(&key), Some((account, asset)));
            let key = total(token, chain, asset);
            assert!(key.bytes.starts_with(&totals_of(token, chain).bytes));
            assert_eq!(asset_of_total(&key), Some(asset));
        }
    }
}
