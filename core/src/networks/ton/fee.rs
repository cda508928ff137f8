//! The most that a transaction can cost.
//!
//! A TON transaction names no highest fee: validators charge by the network's configuration. So
//! this is a bound by the prices of mainnet (parameters 20, 21, 24 and 25 of the configuration, as
//! they have been since 2024-06), doubled, for the validators can vote for others.
//!
//! It holds because the wallet's code is known: what the wallet does with a body that was built
//! here, and the gas that it takes, is the same every time. What contracts charge for what they are
//! asked comes out of the value that is sent to them. Rent for the storage of the wallet, which is
//! due whether or not it sends, is not in it.

use tycho_types::cell::{Cell, CellTreeStats};

use super::{
    cells::MOST_CELLS,
    wallet::{WalletOrder, look},
};

/// nanoton per unit of gas in the base chain.
const GAS_PRICE: u128 = 400;
/// The most gas that a transaction gets.
const MOST_GAS: u128 = 1_000_000;
/// Gas that a wallet takes without its messages: four times what v5r1 takes with one (4,939;
/// v4r2 takes 3,308).
const WALLET_GAS: u128 = 20_000;
/// Gas per message: more than three times what v5r1 takes for each further one (717 with 255 of
/// them; v4r2 takes 642).
const MESSAGE_GAS: u128 = 2_500;
/// Room for other prices.
const MARGIN: u128 = 2;

/// What it costs to carry a message.
struct ForwardingFee {
    /// nanoton.
    lump: u128,
    /// nanoton.
    per_bit: u128,
    /// nanoton.
    per_cell: u128,
}

/// Between accounts of the base chain.
const BASE: ForwardingFee = ForwardingFee {
    lump: 400_000,
    per_bit: 400,
    per_cell: 40_000,
};
/// To the masterchain.
const MASTER: ForwardingFee = ForwardingFee {
    lump: 10_000_000,
    per_bit: 10_000,
    per_cell: 1_000_000,
};

impl ForwardingFee {
    /// The root is counted here; the network does not charge for it.
    fn cost(&self, message: &Cell) -> Option<u128> {
        let CellTreeStats {
            bit_count,
            cell_count,
        } = message.compute_unique_stats(MOST_CELLS)?;
        Some(
            self.lump
                + self.per_bit * u128::from(bit_count)
                + self.per_cell * u128::from(cell_count),
        )
    }
}

/// nanoton; `None` when the order is none that is built here.
pub(super) fn most_fee(order: &WalletOrder) -> Option<u128> {
    let external = order.sign(&[0; 64]).ok()?.message;
    let mut cost = BASE.cost(&external)?;
    let mut gas = WALLET_GAS;
    for message in &order.messages {
        let carriage = match look(message)?.to.workchain {
            0 => BASE,
            _ => MASTER,
        };
        cost = cost.checked_add(carriage.cost(message)?)?;
        gas += MESSAGE_GAS;
    }
    (cost + gas.min(MOST_GAS) * GAS_PRICE).checked_mul(MARGIN)
}
