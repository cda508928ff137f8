//! Tron payload kinds: tronSendNative, tronSendTrc10, tronSendTrc20.

use super::address::{Address, parse_address, parse_asset_id};
use crate::{
    amount::{U256, parse_i64, parse_u256},
    fault::Fault,
    field::{amount, optional_amount, required},
    networks::{
        network::Network,
        payload::{
            NetworkPayload, PayloadKind, WireKind,
            outflow::{Asset, ChainScope, ContentKind, Outflow, Spend},
        },
    },
    schema::wire,
};

/// The highest fee limit that the chain takes, in sun: 15,000 TRX (`getMaxFeeLimit`).
const MOST_FEE_LIMIT: i64 = 15_000_000_000;
/// The fee limit of a tronSendTrc20 that names none, in sun: 100 TRX, as wallets have it. It is a
/// ceiling: several times what the transfer of a usual token burns.
const USUAL_FEE_LIMIT: i64 = 100_000_000;

/// A checked Tron payload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TronPayload {
    /// Sender, base58check.
    pub from: String,
    /// What it does.
    pub action: TronAction,
}

/// What a transaction does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TronAction {
    /// `tronSendNative`: sends TRX. The recipient is not the sender.
    SendNative {
        /// Recipient.
        to: Address,
        /// More than 0.
        sun: i64,
    },
    /// `tronSendTrc10`: sends a TRC-10 asset. The recipient is not the sender.
    SendTrc10 {
        /// Recipient.
        to: Address,
        /// The asset's number, more than 0.
        asset: i64,
        /// In the asset's smallest unit, more than 0.
        amount: i64,
    },
    /// `tronSendTrc20`: calls `transfer` of a TRC-20 contract (TIP-20).
    SendTrc20 {
        /// Recipient of the tokens.
        to: Address,
        /// The contract.
        token: Address,
        /// In the token's smallest unit.
        amount: U256,
        /// The most that the call may burn for energy, in sun: 1 to 15,000,000,000.
        fee_limit: i64,
    },
}

/// Parses a tronSendNative.
pub(in crate::networks) fn send_native(wire: &wire::TronSendNative) -> Result<TronPayload, Fault> {
    Ok(TronPayload {
        from: address("from", &wire.from)?.to_string(),
        action: TronAction::SendNative {
            to: other("to", &wire.to, &wire.from)?,
            sun: positive("value", &wire.value)?,
        },
    })
}

/// Parses a tronSendTrc10.
pub(in crate::networks) fn send_trc10(wire: &wire::TronSendTrc10) -> Result<TronPayload, Fault> {
    let asset = |text| parse_asset_id(text).map_err(|error| Fault::field("assetName", error));
    Ok(TronPayload {
        from: address("from", &wire.from)?.to_string(),
        action: TronAction::SendTrc10 {
            to: other("to", &wire.to, &wire.from)?,
            asset: required("assetName", &wire.asset_name).and_then(asset)?,
            amount: positive("amount", &wire.amount)?,
        },
    })
}

/// Parses a tronSendTrc20. A payload without a fee limit gets the usual one here, so that orders
/// and responses show what is signed.
pub(in crate::networks) fn send_trc20(wire: &wire::TronSendTrc20) -> Result<TronPayload, Fault> {
    Ok(TronPayload {
        from: address("from", &wire.from)?.to_string(),
        action: TronAction::SendTrc20 {
            to: address("to", &wire.to)?,
            token: address("contractAddress", &wire.contract_address)?,
            amount: amount("amount", &wire.amount, parse_u256)?,
            fee_limit: fee_limit(wire.fee_limit.as_deref())?,
        },
    })
}

/// With 0 every call fails.
fn fee_limit(text: Option<&str>) -> Result<i64, Fault> {
    let sun = optional_amount("feeLimit", text, parse_i64)?.unwrap_or(USUAL_FEE_LIMIT);
    if !(1..=MOST_FEE_LIMIT).contains(&sun) {
        return Err(Fault::field(
            "feeLimit",
            format_args!("must be from 1 to {MOST_FEE_LIMIT} sun"),
        ));
    }
    Ok(sun)
}

/// A recipient that is not the sender: nodes refuse such transfers.
fn other(name: &str, text: &str, from: &str) -> Result<Address, Fault> {
    let to = address(name, text)?;
    if text == from {
        return Err(Fault::field(name, "must not be the sender's own address"));
    }
    Ok(to)
}

fn address(name: &str, text: &str) -> Result<Address, Fault> {
    required(name, text)?;
    parse_address(text).map_err(|error| Fault::field(name, error))
}

fn positive(name: &str, text: &str) -> Result<i64, Fault> {
    match amount(name, text, parse_i64)? {
        0 => Err(Fault::field(name, "must be more than 0")),
        amount => Ok(amount),
    }
}

impl NetworkPayload for TronPayload {
    fn kind(&self) -> PayloadKind {
        match self.action {
            TronAction::SendNative { .. } => PayloadKind::TronSendNative,
            TronAction::SendTrc10 { .. } => PayloadKind::TronSendTrc10,
            TronAction::SendTrc20 { .. } => PayloadKind::TronSendTrc20,
        }
    }

    fn from(&self) -> &str {
        &self.from
    }

    /// A token is named by the number of its asset or the address of its contract.
    fn outflow(&self, _wallet: Network) -> Outflow {
        let place = ChainScope::network(Network::Tron);
        let (token, amount, to) = match &self.action {
            TronAction::SendNative { to, sun } => (None, U256::from(sun.unsigned_abs()), to),
            TronAction::SendTrc10 { to, asset, amount } => (
                Some(asset.to_string()),
                U256::from(amount.unsigned_abs()),
                to,
            ),
            TronAction::SendTrc20 {
                to, token, amount, ..
            } => (Some(token.to_string()), *amount, to),
        };
        Outflow {
            nature: ContentKind::Transfer,
            place,
            spends: vec![Spend {
                asset: Asset { place, token },
                amount,
                recipient: Some(to.to_string()),
            }],
        }
    }

    fn chain_id(&self) -> Option<u64> {
        None
    }

    fn is_transaction(&self) -> bool {
        true
    }

    fn to_wire(&self) -> WireKind {
        let from = self.from.clone();
        match &self.action {
            TronAction::SendNative { to, sun } => WireKind::TronSendNative(wire::TronSendNative {
                from,
                to: to.to_string(),
                value: sun.to_string(),
            }),
            TronAction::SendTrc10 { to, asset, amount } => {
                WireKind::TronSendTrc10(wire::TronSendTrc10 {
                    from,
                    to: to.to_string(),
                    asset_name: asset.to_string(),
                    amount: amount.to_string(),
                })
            }
            TronAction::SendTrc20 {
                to,
                token,
                amount,
                fee_limit,
            } => WireKind::TronSendTrc20(wire::TronSendTrc20 {
                from,
                to: to.to_string(),
                contract_address: token.to_string(),
                amount: amount.to_string(),
                fee_limit: Some(fee_limit.to_string()),
            }),
        }
    }
}
