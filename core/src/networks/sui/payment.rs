//! A payment of one coin.

use serde::{Deserialize, Serialize};

use super::address::SUI;

/// The network's `max_tx_gas`: 50 SUI, in MIST.
pub(crate) const MAX_BUDGET: u64 = 50_000_000_000;

/// A payment of one coin to one or, in a batch, to many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SuiPayment {
    /// Sender and gas owner, `0x` and 64 hex digits.
    pub from: String,
    /// The type as [`sui::parse_coin_type`] writes it; `None` for `suiSendNative`.
    pub coin_type: Option<String>,
    /// To whom and how much, in order. Never empty; the amounts together fit 64 bits.
    pub outputs: Vec<SuiOutput>,
    /// What the request says about gas.
    pub gas: GasSettings,
}

/// A recipient of a payment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SuiOutput {
    /// Recipient, `0x` and 64 hex digits.
    pub to: String,
    /// In the coin's smallest unit (MIST for SUI).
    pub amount: u64,
}

/// What a request says about gas. What it leaves out is asked of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GasSettings {
    /// The most that the transaction may cost, MIST; 1 to 50 SUI.
    pub budget: Option<u64>,
    /// MIST per unit of gas; more than 0.
    pub price: Option<u64>,
}

impl SuiPayment {
    /// The type of what is paid where it is a token, under whichever kind; `None` for SUI.
    pub fn token(&self) -> Option<&str> {
        self.coin_type.as_deref().filter(|coin| *coin != SUI)
    }

    /// All amounts together.
    pub fn total(&self) -> u64 {
        self.outputs
            .iter()
            .fold(0, |sum, output| sum.saturating_add(output.amount))
    }

    /// The field that says how much is paid.
    pub(crate) fn amount_field(&self) -> &'static str {
        match (self.outputs.len(), &self.coin_type) {
            (1, None) => "value",
            (1, Some(_)) => "amount",
            _ => "recipients",
        }
    }
}
