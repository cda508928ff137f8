//! What the next transaction of a sweep pays, and whether it is made.

use covault_core::{
    amount::{U256, parse_u256},
    deposit::{
        sweep::{GasCost, PauseReason, SweepJob},
        transfer::Account,
    },
    fault::ExecuteCode,
    networks::{ChainData, Network, Payload, WireKind, evm::Fees},
    schema::wire,
};

use super::SweptWallet;
use crate::{
    chain_rpc::{ChainClient, ChainError, ChainRefusal},
    requests::tx_builder,
};

/// What is to be sent.
pub enum MovePlan {
    /// Nothing yet.
    Nothing,
    /// Nothing until something changes.
    Pause(PauseReason),
    /// Coin from the gas wallet.
    TopUp { payload: Payload, amount: [u8; 32] },
    /// What there is, to the target.
    Move { payload: Payload, amount: [u8; 32] },
}

/// The sweep for which something is to be sent.
pub struct Spending<'a> {
    pub swept: &'a SweptWallet,
    /// The target's address.
    pub target: &'a str,
    pub job: &'a SweepJob,
}

/// What a transfer of the coin to an account without code uses.
const PLAIN_GAS: u64 = 21_000;

/// The most gas that is believed of a transfer of a token: some use 100,000, and one node is enough to name far more.
const MOST_TOKEN_GAS: u64 = 500_000;

impl Spending<'_> {
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
            return Ok(MovePlan::Nothing);
        };
        let now = self
            .balance(&*client, &self.address(), self.job.asset)
            .await?;
        // What is on its way in is swept another time, what is on its way out never.
        let amount = there.min(now);
        if amount.is_zero() {
            let problem = "the wallet has nothing of it; something else has sent it away";
            return Ok(MovePlan::Pause(PauseReason::Unavailable(problem.into())));
        }
        match self.job.asset {
            None => self.plan_coin(&*client, amount).await,
            Some(token) => self.plan_token(&*client, token, amount).await,
        }
    }

    /// All of the coin but the fee, which is known to the last unit because the whole price goes to the block's maker.
    async fn plan_coin(
        &self,
        client: &dyn ChainClient,
        amount: U256,
    ) -> Result<MovePlan, ChainError> {
        let fees = self.fees(client, self.coin(U256::from(1), None)).await?;
        let cost = GasCost {
            limit: fees.estimate_gas,
            price: dearer(&fees, 4),
            data_fee: data_fee(client).await?,
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
        let fees = self.fees(client, self.token(token, amount, None)).await?;
        if let Some(reason) = gas_problem(fees.estimate_gas) {
            return Ok(MovePlan::Pause(PauseReason::Unavailable(reason)));
        }
        let cost = GasCost {
            limit: fees.estimate_gas,
            price: dearer(&fees, 8),
            data_fee: data_fee(client).await?,
        };
        if let Some(pause) = self.too_dear(&cost) {
            return Ok(pause);
        }
        let coin = self.balance(client, &self.address(), None).await?;
        let most = fees
            .base_fee
            .saturating_mul(2)
            .saturating_add(fees.max_priority_fee);
        if let Some(price) = cost.affordable(coin, most) {
            let gas = gas(cost.limit, price, fees.max_priority_fee.min(price));
            return Ok(MovePlan::Move {
                payload: self.parse(self.token(token, amount, Some(gas)))?,
                amount: amount.to_be_bytes(),
            });
        }
        if self.job.top_up.is_some() {
            return Ok(MovePlan::Pause(PauseReason::GasTooLow));
        }
        let Some(missing) = cost.missing(coin) else {
            return Ok(MovePlan::Nothing);
        };
        self.plan_top_up(client, &cost, missing).await
    }

    async fn plan_top_up(
        &self,
        client: &dyn ChainClient,
        cost: &GasCost,
        missing: U256,
    ) -> Result<MovePlan, ChainError> {
        let Some(gas_wallet) = self.swept.rules.gas_wallet else {
            let problem = "no gas wallet is configured; set one with covault sweep rules";
            return Ok(MovePlan::Pause(PauseReason::Unavailable(problem.into())));
        };
        let found = self.swept.services.wallet(gas_wallet).await;
        let (gas_wallet, _) =
            found.map_err(|fault| ChainError::Unknown(fault.message().to_owned()))?;
        // Another vault has other policies, and may belong to another process.
        if gas_wallet.vault != self.swept.vault {
            let problem = "the gas wallet is of another vault than the deposit wallet";
            return Ok(MovePlan::Pause(PauseReason::Unavailable(problem.into())));
        }
        let own = GasCost {
            limit: PLAIN_GAS,
            ..*cost
        };
        let there = self.balance(client, &gas_wallet.address, None).await?;
        if there < missing.saturating_add(own.total()) {
            return Ok(MovePlan::Pause(PauseReason::GasWalletEmpty));
        }
        let payload = self.parse(WireKind::EvmSendNative(wire::EvmSendNative {
            chain_id: self.chain_id(),
            from: gas_wallet.address,
            to: self.address(),
            value: missing.to_string(),
            gas_fee: None,
            nonce: None,
        }))?;
        Ok(MovePlan::TopUp {
            payload,
            amount: missing.to_be_bytes(),
        })
    }

    fn too_dear(&self, cost: &GasCost) -> Option<MovePlan> {
        let most = self.swept.rules.max_gas_price?;
        let price = cost.price;
        (price > most).then_some(MovePlan::Pause(PauseReason::GasPrice { price }))
    }

    fn address(&self) -> String {
        self.swept.account.text(self.swept.chain.network())
    }

    fn chain_id(&self) -> u64 {
        self.swept.chain.chain_id().unwrap_or_default()
    }

    fn coin(&self, amount: U256, gas_fee: Option<wire::EvmGas>) -> WireKind {
        WireKind::EvmSendNative(wire::EvmSendNative {
            chain_id: self.chain_id(),
            from: self.address(),
            to: self.target.to_owned(),
            value: amount.to_string(),
            gas_fee,
            nonce: None,
        })
    }

    fn token(&self, token: Account, amount: U256, gas_fee: Option<wire::EvmGas>) -> WireKind {
        WireKind::EvmSendErc20(wire::EvmSendErc20 {
            chain_id: self.chain_id(),
            from: self.address(),
            to: self.target.to_owned(),
            token_contract_address: token.text(self.swept.chain.network()),
            amount: amount.to_string(),
            gas_fee,
            nonce: None,
        })
    }

    fn parse(&self, kind: WireKind) -> Result<Payload, ChainError> {
        Payload::parse(&kind).map_err(|fault| {
            ChainError::Refused(ChainRefusal {
                reason: fault.message().to_owned(),
                code: ExecuteCode::Unspecified,
            })
        })
    }

    /// What the nodes say that it costs.
    async fn fees(&self, client: &dyn ChainClient, kind: WireKind) -> Result<Fees, ChainError> {
        let payload = self.parse(kind)?;
        let services = &self.swept.services;
        let queries = tx_builder::queries(services, Network::Evm, &payload);
        let chain_data = client.chain_data(&queries, services.now_ms()).await?;
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
            ChainData::Evm(data) => data
                .fees
                .ok_or_else(|| ChainError::Unknown("the nodes name no fees".into())),
            _ => Err(ChainError::Unknown("the nodes name no fees".into())),
        }
    }

    /// What an address has in the newest block.
    async fn balance(
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

/// The present price of a unit of gas, with a base fee that has risen by its `part`-th part.
fn dearer(fees: &Fees, part: u128) -> u128 {
    let rise = fees.base_fee.checked_div(part).unwrap_or_default();
    let base_fee = fees.base_fee.saturating_add(rise);
    base_fee.saturating_add(fees.max_priority_fee)
}

/// Why the estimate of a token's transfer is not believed; `None`: it is.
fn gas_problem(limit: u64) -> Option<String> {
    (limit > MOST_TOKEN_GAS).then(|| {
        format!(
            "a transfer of the token would use {limit} gas, and {MOST_TOKEN_GAS} is the most that is believed"
        )
    })
}

/// What the chain takes beside gas, with a quarter more: it changes with each block, and is not part of what is offered.
async fn data_fee(client: &dyn ChainClient) -> Result<u128, ChainError> {
    let fee = client.data_fee().await?;
    Ok(fee.saturating_add(fee / 4))
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
    use super::gas_problem;

    #[test]
    fn gas_of_a_token__should_not_be_believed_beyond_a_limit() {
        assert_eq!(gas_problem(500_000), None);
        let problem = gas_problem(30_000_000).unwrap();
        assert!(problem.contains("30000000 gas"), "{problem}");
    }
}
