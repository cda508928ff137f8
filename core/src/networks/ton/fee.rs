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

use tycho_types::{
    boc::Boc,
    cell::{Cell, CellTreeStats},
    models::{GasLimitsPrices, MsgForwardPrices},
};

use super::{
    cells::MOST_CELLS,
    wallet::{WalletOrder, look},
};

/// nanoton per unit of gas in the base chain.
const GAS_PRICE: u128 = 400;
/// Gas that a v5r1 wallet takes to send one message.
pub const TRANSFER_GAS: u128 = 4_939;
/// What is carried of a plain transfer: a message to the wallet and one to the recipient, with so many bits and cells
/// together that are charged.
const TRANSFER_MESSAGES: u128 = 2;
const TRANSFER_BITS: u128 = 1_800;
const TRANSFER_CELLS: u128 = 2;
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

/// What validators charge for a plain transfer in the base chain, in nanoton.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferPrices {
    /// Per unit of gas, of which it takes [`TRANSFER_GAS`].
    pub gas: u128,
    /// For all that is carried.
    pub carriage: u128,
}

impl TransferPrices {
    /// Those of mainnet.
    pub const MAINNET: Self = Self::new(GAS_PRICE, &BASE);

    const fn new(gas: u128, carriage: &ForwardingFee) -> Self {
        let ForwardingFee {
            lump,
            per_bit,
            per_cell,
        } = carriage;
        Self {
            gas,
            carriage: TRANSFER_MESSAGES * *lump
                + TRANSFER_BITS * *per_bit
                + TRANSFER_CELLS * *per_cell,
        }
    }

    /// Reads the parameters 21 and 25 of the chain's configuration, each a bag of cells in base64. `None` where they are
    /// something else.
    pub fn read(gas: &str, carriage: &str) -> Option<Self> {
        let gas: GasLimitsPrices = Boc::decode_base64(gas).ok()?.parse().ok()?;
        let carriage: MsgForwardPrices = Boc::decode_base64(carriage).ok()?.parse().ok()?;
        // Of each price 1/65536 is meant; a part of a nanoton is charged as one.
        let whole = |price: u64| u128::from(price).div_ceil(1 << 16);
        Some(Self::new(
            whole(gas.gas_price),
            &ForwardingFee {
                lump: carriage.lump_price.into(),
                per_bit: whole(carriage.bit_price),
                per_cell: whole(carriage.cell_price),
            },
        ))
    }

    /// All of it.
    pub const fn transfer(&self) -> u128 {
        self.gas * TRANSFER_GAS + self.carriage
    }

    /// Whether they are within what the highest fee of a transaction is reckoned with.
    pub fn is_credible(&self) -> bool {
        let most = Self::MAINNET;
        self.gas <= MARGIN * most.gas && self.carriage <= MARGIN * most.carriage
    }
}

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

/// nanoton; `None` when the order is not one that Covault builds.
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
