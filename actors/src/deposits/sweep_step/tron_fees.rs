//! The fee of a sweep's next transaction on TRON: coin that is burnt for energy and for bytes.

use covault_core::{
    amount::U256,
    deposit::{
        sweep::{GasCost, PauseReason},
        transfer::Account,
    },
    networks::{Payload, WireKind},
    schema::wire,
};

use super::fees::{MovePlan, SweepSpending, gas_problem, paused};
use crate::chain_rpc::{ChainClient, ChainError, TransferBurn};

/// After so many pauses two minutes have passed at least since a top-up was lost. A transaction lives for a minute from its
/// block, whose time may be half a minute ahead.
const PAUSES_OF_A_LIFETIME: u32 = 2;

impl SweepSpending<'_> {
    /// All of the TRX but what the transfer burns.
    pub(super) async fn plan_trx(
        &self,
        client: &dyn ChainClient,
        amount: U256,
    ) -> Result<MovePlan, ChainError> {
        let some = self.trx(&self.swept.address(), self.target, U256::from(1))?;
        let cost = cost(&client.transfer_burn(&some).await?);
        let percent = self.swept.rules.max_cost_percent;
        let rest = cost.rest_of(amount);
        let Some(rest) = rest.filter(|rest| !cost.exceeds(percent, *rest)) else {
            return Ok(MovePlan::Pause(PauseReason::Cost));
        };
        Ok(MovePlan::Move {
            payload: self.trx(&self.swept.address(), self.target, rest)?,
            amount: rest.to_be_bytes(),
        })
    }

    /// The whole balance, once the wallet's TRX pays what the call burns.
    pub(super) async fn plan_trc20(
        &self,
        client: &dyn ChainClient,
        token: Account,
        amount: U256,
    ) -> Result<MovePlan, ChainError> {
        if let Some(pause) = self.without_ceiling() {
            return Ok(pause);
        }
        let payload = self.trc20(token, amount, None)?;
        let burn = client.transfer_burn(&payload).await?;
        if let Some(reason) = gas_problem(burn.energy) {
            return Ok(paused(reason));
        }
        let cost = cost(&burn);
        if let Some(pause) = self.too_dear(&cost) {
            return Ok(pause);
        }
        let coin = self.own_balance(client, None).await?;
        let missing = reserve(&burn).saturating_sub(coin);
        // What it was topped up with may be enough for less than twice of what is needed by now.
        let is_ready = self.job.top_up.is_some() && coin >= cost.total();
        if !missing.is_zero() && !is_ready {
            return match self.topped_up().await? {
                Some(plan) => Ok(plan),
                None => self.plan_trx_top_up(client, missing).await,
            };
        }
        Ok(MovePlan::Move {
            payload: self.trc20(token, amount, Some(fee_limit(&burn)))?,
            amount: amount.to_be_bytes(),
        })
    }

    /// A wallet that got only tokens is not activated: the transfer of TRX does that, and the gas wallet pays for it once more.
    async fn plan_trx_top_up(
        &self,
        client: &dyn ChainClient,
        missing: U256,
    ) -> Result<MovePlan, ChainError> {
        let (amount, gas_wallet) = match self.top_up_of(missing).await? {
            Ok(top_up) => top_up,
            Err(pause) => return Ok(pause),
        };
        let lost = self.job.lost_top_up.map(U256::from_be_bytes);
        if lost.is_some_and(|lost| lost != amount) && self.job.pauses < PAUSES_OF_A_LIFETIME {
            return Ok(paused(
                "a top-up of another amount was lost, and it is not certain yet that no block takes it",
            ));
        }
        let payload = self.trx(&gas_wallet.address, &self.swept.address(), amount)?;
        let there = self.balance(client, &gas_wallet.address, None).await?;
        let burn = cost(&client.transfer_burn(&payload).await?);
        let needs = amount.saturating_add(burn.total());
        // What others have asked it for may not have left it yet.
        let promised = &self.swept.gas_wallets;
        if !promised.reserve(gas_wallet.id, needs, there) {
            return Ok(MovePlan::Pause(PauseReason::GasWalletEmpty));
        }
        Ok(MovePlan::TopUp {
            payload,
            amount: amount.to_be_bytes(),
        })
    }

    fn trx(&self, from: &str, to: &str, amount: U256) -> Result<Payload, ChainError> {
        self.parse(WireKind::TronSendNative(wire::TronSendNative {
            from: from.to_owned(),
            to: to.to_owned(),
            value: amount.to_string(),
        }))
    }

    fn trc20(
        &self,
        token: Account,
        amount: U256,
        fee_limit: Option<u64>,
    ) -> Result<Payload, ChainError> {
        self.parse(WireKind::TronSendTrc20(wire::TronSendTrc20 {
            from: self.swept.address(),
            to: self.target.to_owned(),
            contract_address: token.text(self.swept.chain.network()),
            amount: amount.to_string(),
            fee_limit: fee_limit.map(|sun| sun.to_string()),
        }))
    }
}

fn cost(burn: &TransferBurn) -> GasCost {
    GasCost {
        limit: burn.burnt_energy,
        price: burn.energy_price.into(),
        data_fee: burn.on_top.into(),
    }
}

/// What a wallet is to have before its call is sent: no more is burnt than the call needs, and the rest stays.
fn reserve(burn: &TransferBurn) -> U256 {
    let energy = U256::from(with_room(burn.burnt_energy));
    let burnt = energy.saturating_mul(U256::from(burn.energy_price));
    burnt.saturating_add(U256::from(burn.on_top))
}

/// What the call may burn.
fn fee_limit(burn: &TransferBurn) -> u64 {
    with_room(burn.energy).saturating_mul(burn.energy_price)
}

/// More than twice the energy that a call uses now. It doubles where the target has none of the token by the time that a
/// block takes it, and a call that ends for want of energy has burnt all of it.
fn with_room(energy: u64) -> u64 {
    energy.saturating_mul(21) / 10
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn cost__should_be_what_is_burnt_and_the_limit_enough_for_a_target_without_the_token() {
        let burn = TransferBurn {
            energy: 64_285,
            burnt_energy: 64_285,
            energy_price: 100,
            on_top: 350_000,
        };
        let sun = |amount: u64| U256::from(amount);
        assert_eq!(cost(&burn).total(), sun(6_778_500));
        // 64,285 energy at 100 sun, 2.1 times, and the bytes.
        assert_eq!(reserve(&burn), sun(13_849_800));
        assert_eq!(fee_limit(&burn), 13_499_800);
        assert!(fee_limit(&burn) > 130_285 * 100);
        // Energy of its own, or that others have lent it.
        let own = TransferBurn {
            burnt_energy: 0,
            on_top: 0,
            ..burn
        };
        assert_eq!(reserve(&own), sun(0));
        assert_eq!(fee_limit(&own), 13_499_800);
    }
}
