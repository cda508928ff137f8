//! The fee of a sweep's next transaction, and whether it is worth sending; those of TRON: `tron_fees.rs`.

use covault_core::{
    amount::{U256, parse_u256},
    deposit::{
        sweep::{GasCost, PauseReason, SweepEvent, SweepJob},
        transfer::{Account, FollowedChain},
    },
    fault::ExecuteCode,
    networks::{
        ChainData, Network, Payload, Queries, WireKind,
        evm::{self, Fees},
    },
    schema::wire,
    wallet::Wallet,
};

use super::{
    SweptWallet,
    outcome::{self, LostRequest},
    shared::LookAnswers,
};
use crate::{
    chain_rpc::{ChainClient, ChainError, ChainRefusal},
    port::MonotonicClock,
    requests::tx_builder,
};

/// What is to be sent.
pub enum MovePlan {
    /// Nothing yet.
    Nothing,
    /// Nothing until something changes.
    Pause(PauseReason),
    /// Nothing, as something has happened to the sweep.
    Change(SweepEvent),
    /// Nothing: the top-up is gone for good.
    TopUpLost(LostRequest),
    /// Coin from the gas wallet.
    TopUp { payload: Payload, amount: [u8; 32] },
    /// What there is, to the target.
    Move { payload: Payload, amount: [u8; 32] },
}

/// The sweep for which something is to be sent.
pub struct SweepSpending<'a> {
    pub swept: &'a SweptWallet,
    /// The target's address.
    pub target: &'a str,
    pub job: &'a SweepJob,
}

/// What a transfer of the coin to an account without code uses.
const PLAIN_GAS: u64 = 21_000;

/// The most gas that is believed of a transfer: some tokens use 100,000, and one node is enough to name far more.
const MOST_GAS: u64 = 500_000;

impl SweepSpending<'_> {
    /// What is to be sent now.
    ///
    /// # Errors
    /// [`ChainError::Unknown`] when the nodes do not say what is needed, [`ChainError::Refused`] when they say that it
    /// cannot be.
    pub async fn plan(&self) -> Result<MovePlan, ChainError> {
        let chains = &self.swept.services.chains;
        let Some((_, client)) = chains.follow(self.swept.chain) else {
            return Ok(MovePlan::Nothing);
        };
        let there = self.swept.final_balance(self.job.asset).await;
        let there = there.map_err(|fault| ChainError::Unknown(fault.message().to_owned()))?;
        let Some(there) = there else {
            let problem = "the chain's nodes do not report the wallet's balance of it";
            return Ok(paused(problem));
        };
        if there.is_zero() {
            return Ok(MovePlan::Change(SweepEvent::NothingLeft));
        }
        let now = self.own_balance(&*client, self.job.asset).await?;
        // What is on its way in is swept another time, what is on its way out never.
        let amount = there.min(now);
        if amount.is_zero() {
            let problem = "the wallet's balance of it is 0: something else has moved it";
            return Ok(paused(problem));
        }
        match (self.swept.chain, self.job.asset) {
            (FollowedChain::Evm(_), None) => self.plan_coin(&*client, amount).await,
            (FollowedChain::Evm(_), Some(token)) => self.plan_token(&*client, token, amount).await,
            (FollowedChain::Tron, None) => self.plan_trx(&*client, amount).await,
            (FollowedChain::Tron, Some(token)) => self.plan_trc20(&*client, token, amount).await,
        }
    }

    /// All of the coin but the fee, which is known to the last unit because the whole price goes to the block's maker.
    async fn plan_coin(
        &self,
        client: &dyn ChainClient,
        amount: U256,
    ) -> Result<MovePlan, ChainError> {
        let quote = self.quote(client, self.coin(U256::from(1), None)).await?;
        let cost = GasCost {
            limit: quote.fees.estimate_gas,
            price: quote.price(4),
            data_fee: self.data_fee(client).await?,
        };
        if let Some(pause) = self.too_dear(&cost) {
            return Ok(pause);
        }
        let percent = self.swept.rules.max_cost_percent;
        let rest = cost.rest_of(amount);
        let Some(rest) = rest.filter(|rest| !cost.exceeds(percent, *rest)) else {
            return Ok(MovePlan::Pause(PauseReason::Cost));
        };
        let gas = gas(cost.limit, cost.price, cost.price);
        Ok(MovePlan::Move {
            payload: self.parse(self.coin(rest, Some(gas)))?,
            amount: rest.to_be_bytes(),
        })
    }

    /// The whole balance, once the wallet's coin pays the fee.
    async fn plan_token(
        &self,
        client: &dyn ChainClient,
        token: Account,
        amount: U256,
    ) -> Result<MovePlan, ChainError> {
        if let Some(pause) = self.without_ceiling() {
            return Ok(pause);
        }
        let quote = self.quote(client, self.token(token, amount, None)).await?;
        if let Some(reason) = gas_problem(quote.fees.estimate_gas) {
            return Ok(paused(reason));
        }
        let cost = GasCost {
            limit: quote.fees.estimate_gas,
            price: quote.price(8),
            data_fee: self.data_fee(client).await?,
        };
        if let Some(pause) = self.too_dear(&cost) {
            return Ok(pause);
        }
        let coin = self.own_balance(client, None).await?;
        let most = quote.most(self.swept.rules.max_gas_price);
        if let Some(price) = cost.affordable(coin, most) {
            let gas = gas(cost.limit, price, quote.fees.max_priority_fee.min(price));
            return Ok(MovePlan::Move {
                payload: self.parse(self.token(token, amount, Some(gas)))?,
                amount: amount.to_be_bytes(),
            });
        }
        if let Some(plan) = self.topped_up().await? {
            return Ok(plan);
        }
        let Some(missing) = cost.missing(coin) else {
            return Ok(MovePlan::Nothing);
        };
        self.plan_top_up(client, &cost, missing, most).await
    }

    async fn plan_top_up(
        &self,
        client: &dyn ChainClient,
        cost: &GasCost,
        missing: U256,
        most: u128,
    ) -> Result<MovePlan, ChainError> {
        let (missing, gas_wallet) = match self.top_up_of(missing).await? {
            Ok(top_up) => top_up,
            Err(pause) => return Ok(pause),
        };
        // As nodes reckon: anyone who cannot pay the most that is offered is refused.
        let needs = |limit: u64| {
            let own = GasCost {
                limit,
                price: most,
                data_fee: cost.data_fee,
            };
            missing.saturating_add(own.total())
        };
        let there = self.balance(client, &gas_wallet.address, None).await?;
        if there < needs(PLAIN_GAS) {
            return Ok(MovePlan::Pause(PauseReason::GasWalletEmpty));
        }
        let top_up = |gas_fee| {
            WireKind::EvmSendNative(wire::EvmSendNative {
                chain_id: self.chain_id(),
                from: gas_wallet.address.clone(),
                to: self.swept.address(),
                value: missing.to_string(),
                gas_fee,
                nonce: None,
            })
        };
        // More than that of a plain transfer on some chains.
        let quote = self.quote(client, top_up(None)).await?;
        let limit = quote.fees.estimate_gas;
        if let Some(reason) = gas_problem(limit) {
            return Ok(paused(reason));
        }
        // What others have asked it for may not have left it yet.
        let promised = &self.swept.gas_wallets;
        if !promised.reserve(gas_wallet.id, needs(limit), there) {
            return Ok(MovePlan::Pause(PauseReason::GasWalletEmpty));
        }
        let gas = gas(limit, most, quote.fees.max_priority_fee.min(most));
        Ok(MovePlan::TopUp {
            payload: self.parse(top_up(Some(gas)))?,
            amount: missing.to_be_bytes(),
        })
    }

    /// Nothing else holds the fee of a token, which may have been added after the rules were enabled.
    pub(super) fn without_ceiling(&self) -> Option<MovePlan> {
        let is_open = self.swept.rules.max_gas_price.is_none();
        is_open.then(|| paused("maxGasPrice is not set; set it with covault sweep rules"))
    }

    /// What is to be done where the coin does not pay the fee although the wallet was topped up; `None`: it was not.
    pub(super) async fn topped_up(&self) -> Result<Option<MovePlan>, ChainError> {
        let Some(top_up) = self.job.top_up else {
            return Ok(None);
        };
        // It had arrived, and blocks may have been replaced since.
        let lost = outcome::why_lost(self.swept, top_up.request).await;
        let lost = lost.map_err(|fault| ChainError::Unknown(fault.message().to_owned()))?;
        Ok(Some(match lost {
            Some(why) => MovePlan::TopUpLost(why),
            None => MovePlan::Pause(PauseReason::GasTooLow),
        }))
    }

    /// How much coin a wallet that lacks so much gets, and the wallet that pays it; `Err`: none now.
    pub(super) async fn top_up_of(
        &self,
        missing: U256,
    ) -> Result<Result<(U256, Wallet), MovePlan>, ChainError> {
        let Some(limit) = self.swept.rules.max_top_up.map(U256::from) else {
            let problem = "maxTopUp is not set; set it with covault sweep rules";
            return Ok(Err(paused(problem)));
        };
        // Also what one node names of gas and of the fee for data is held by it.
        if missing > limit {
            let wanted = missing.to_be_bytes();
            return Ok(Err(MovePlan::Pause(PauseReason::TopUpTooLarge { wanted })));
        }
        // The same payment as the one that was lost, where it is enough.
        let lost = self.job.lost_top_up.map(U256::from_be_bytes);
        let lost = lost.filter(|lost| (missing..=limit).contains(lost));
        let Some(gas_wallet) = self.swept.rules.gas_wallet else {
            let problem = "no gas wallet is configured; set one with covault sweep rules";
            return Ok(Err(paused(problem)));
        };
        let found = self.swept.services.wallet(gas_wallet).await;
        let (gas_wallet, _) =
            found.map_err(|fault| ChainError::Unknown(fault.message().to_owned()))?;
        // Another vault has other policies, and may belong to another process.
        if gas_wallet.vault != self.swept.vault {
            let problem = "the gas wallet belongs to another vault than the deposit wallet";
            return Ok(Err(paused(problem)));
        }
        Ok(Ok((lost.unwrap_or(missing), gas_wallet)))
    }

    pub(super) fn too_dear(&self, cost: &GasCost) -> Option<MovePlan> {
        let most = self.swept.rules.max_gas_price?;
        let price = cost.price;
        (price > most).then_some(MovePlan::Pause(PauseReason::GasPrice { price }))
    }

    fn chain_id(&self) -> u64 {
        self.swept.chain.chain_id().unwrap_or_default()
    }

    fn coin(&self, amount: U256, gas_fee: Option<wire::EvmGas>) -> WireKind {
        WireKind::EvmSendNative(wire::EvmSendNative {
            chain_id: self.chain_id(),
            from: self.swept.address(),
            to: self.target.to_owned(),
            value: amount.to_string(),
            gas_fee,
            nonce: None,
        })
    }

    fn token(&self, token: Account, amount: U256, gas_fee: Option<wire::EvmGas>) -> WireKind {
        WireKind::EvmSendErc20(wire::EvmSendErc20 {
            chain_id: self.chain_id(),
            from: self.swept.address(),
            to: self.target.to_owned(),
            token_contract_address: token.text(self.swept.chain.network()),
            amount: amount.to_string(),
            gas_fee,
            nonce: None,
        })
    }

    pub(super) fn parse(&self, kind: WireKind) -> Result<Payload, ChainError> {
        Payload::parse(&kind).map_err(|fault| {
            ChainError::Refused(ChainRefusal {
                reason: fault.message().to_owned(),
                code: ExecuteCode::Unspecified,
            })
        })
    }

    /// What the nodes say that it costs.
    async fn quote(
        &self,
        client: &dyn ChainClient,
        kind: WireKind,
    ) -> Result<FeeQuote, ChainError> {
        let payload = self.parse(kind)?;
        let services = &self.swept.services;
        let queries = match tx_builder::queries(services, Network::Evm, &payload) {
            // Its number is asked for when it is made.
            Queries::Evm(queries) => Queries::Evm(evm::Queries {
                nonce: false,
                ..queries
            }),
            queries => queries,
        };
        let all = client.chain_data(&queries, services.now_ms());
        let (said, clock) = (&self.swept.said, &*services.monotonic);
        let chain_data = prices(said, clock, client.gas_of(&queries), all).await?;
        // The request names its own fees, so that nothing looks at the price again after this.
        let problem = services
            .chains
            .price_problem(Network::Evm, &payload, &chain_data);
        if let Some(reason) = problem {
            return Err(ChainError::Refused(ChainRefusal {
                reason,
                code: ExecuteCode::Unspecified,
            }));
        }
        match chain_data {
            ChainData::Evm(data) => {
                let fees = data.fees;
                let fees =
                    fees.ok_or_else(|| ChainError::Unknown("the nodes report no fees".into()))?;
                let has_base_fee = data.eip1559;
                Ok(FeeQuote { fees, has_base_fee })
            }
            _ => Err(ChainError::Unknown("the nodes report no fees".into())),
        }
    }

    /// What the chain takes beside gas, with a quarter more: it changes with each block, and is not part of what is offered.
    async fn data_fee(&self, client: &dyn ChainClient) -> Result<u128, ChainError> {
        let said = &self.swept.said;
        let at_ms = self.swept.services.monotonic.elapsed_ms();
        let fee = match said.data_fee(at_ms) {
            Some(fee) => fee,
            None => {
                let fee = client.data_fee().await?;
                said.learn_data_fee(fee, at_ms);
                fee
            }
        };
        Ok(fee.saturating_add(fee / 4))
    }

    /// What the wallet has in the newest block.
    pub(super) async fn own_balance(
        &self,
        client: &dyn ChainClient,
        asset: Option<Account>,
    ) -> Result<U256, ChainError> {
        let now_ms = self.swept.services.monotonic.elapsed_ms();
        let held = (self.swept.account, asset);
        match self.swept.said.newest(held, now_ms) {
            Some(known) => Ok(known),
            None => self.balance(client, &self.swept.address(), asset).await,
        }
    }

    /// What an address has in the newest block.
    pub(super) async fn balance(
        &self,
        client: &dyn ChainClient,
        address: &str,
        asset: Option<Account>,
    ) -> Result<U256, ChainError> {
        let token = asset.map(|asset| asset.text(self.swept.chain.network()));
        let balance = client.balance(address, token.as_deref()).await?;
        parse_u256(&balance).map_err(|error| ChainError::Unknown(error.to_string()))
    }
}

/// The prices of this look, with the `gas` of this transfer, where they still hold once that is said; else `all` anew.
async fn prices(
    said: &LookAnswers,
    clock: &dyn MonotonicClock,
    gas: impl Future<Output = Result<u64, ChainError>>,
    all: impl Future<Output = Result<ChainData, ChainError>>,
) -> Result<ChainData, ChainError> {
    if said.has_prices(clock.elapsed_ms()) {
        let gas = gas.await?;
        if let Some(data) = said.priced(gas, clock.elapsed_ms()) {
            return Ok(ChainData::Evm(data));
        }
    }
    let at_ms = clock.elapsed_ms();
    let data = all.await?;
    if let ChainData::Evm(data) = &data {
        said.learn_prices(data.clone(), at_ms);
    }
    Ok(data)
}

/// What nodes say that a transaction costs.
struct FeeQuote {
    fees: Fees,
    /// Whether blocks have a base fee. Where they have none, the whole price is paid that is offered.
    has_base_fee: bool,
}

impl FeeQuote {
    /// The present price of a unit of gas, with a base fee that has risen by its `part`-th part.
    fn price(&self, part: u128) -> u128 {
        let Fees {
            base_fee,
            max_priority_fee,
            ..
        } = self.fees;
        let rise = match self.has_base_fee {
            true => base_fee.checked_div(part).unwrap_or_default(),
            false => 0,
        };
        base_fee
            .saturating_add(rise)
            .saturating_add(max_priority_fee)
    }

    /// The most that is offered for a unit of gas: a base fee that has doubled, and no more than the rules allow.
    fn most(&self, allowed: Option<u128>) -> u128 {
        self.price(1).min(allowed.unwrap_or(u128::MAX))
    }
}

/// Nothing is sent for this reason.
pub(super) fn paused(reason: impl Into<String>) -> MovePlan {
    MovePlan::Pause(PauseReason::Unavailable(reason.into()))
}

/// Why the estimate of a transfer is not believed; `None`: it is.
pub(super) fn gas_problem(limit: u64) -> Option<String> {
    (limit > MOST_GAS).then(|| {
        format!("the transfer would use {limit} gas, above the accepted maximum of {MOST_GAS}")
    })
}

fn gas(limit: u64, max_fee: u128, max_priority_fee: u128) -> wire::EvmGas {
    wire::EvmGas {
        max_fee: Some(max_fee.to_string()),
        max_priority_fee: Some(max_priority_fee.to_string()),
        gas_limit: Some(limit.to_string()),
        ..Default::default()
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{networks::evm, testing::ManualClock};

    use super::{ChainData, FeeQuote, Fees, LookAnswers, MonotonicClock as _, gas_problem, prices};

    #[tokio::test]
    async fn prices__should_be_asked_for_anew_where_they_grew_old_while_the_gas_was_asked_for() {
        let fees = |base_fee| Fees {
            estimate_gas: 65_000,
            base_fee,
            max_priority_fee: 3,
        };
        let of = |base_fee| evm::ChainData {
            nonce: None,
            eip1559: true,
            fees: Some(fees(base_fee)),
        };
        for (takes_ms, expected) in [
            (
                1_999,
                Fees {
                    estimate_gas: 7,
                    ..fees(80)
                },
            ),
            (2_000, fees(100)),
        ] {
            let (said, clock) = (LookAnswers::default(), ManualClock::default());
            said.learn_prices(of(80), clock.elapsed_ms());
            let gas = async {
                clock.advance(takes_ms);
                Ok(7)
            };
            let all = async { Ok(ChainData::Evm(of(100))) };
            let ChainData::Evm(data) = prices(&said, &clock, gas, all).await.unwrap() else {
                panic!("of EVM");
            };
            assert_eq!(data.fees, Some(expected));
            assert!(said.has_prices(clock.elapsed_ms()));
        }
    }

    #[test]
    fn move__should_never_offer_more_than_max_gas_price() {
        let quote = |has_base_fee| FeeQuote {
            fees: Fees {
                estimate_gas: 21_000,
                base_fee: 80,
                max_priority_fee: 3,
            },
            has_base_fee,
        };
        assert_eq!((quote(true).price(8), quote(true).most(None)), (93, 163));
        assert_eq!(quote(true).most(Some(100)), 100);
        assert_eq!(quote(true).most(Some(200)), 163);
        // All that is offered is paid there.
        assert_eq!((quote(false).price(8), quote(false).most(None)), (83, 83));
    }

    #[test]
    fn gas_of_a_token__should_not_be_believed_beyond_a_limit() {
        assert_eq!(gas_problem(500_000), None);
        let problem = gas_problem(30_000_000).unwrap();
        assert!(problem.contains("30000000 gas"), "{problem}");
    }
}
