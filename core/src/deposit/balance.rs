//! The balance that an address must have of a coin or token according to its known transfers, compared with
//! its actual balance.

use alloy_primitives::{U256, U512};
use sha2::{Digest as _, Sha256};

use super::transfer::{Account, FollowedChain, NOBODY, OwnedTransfer, Transfer, TransferIndex};

/// Separates these hashes from all others.
const DOMAIN: &[u8] = b"covault balance transfer 1\0";

/// What came and went. Wide enough for all that a token may say of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    received: U512,
    sent: U512,
}

/// A balance beside its ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The transfers explain it.
    Equal,
    /// The balance is this much higher, big-endian.
    More([u8; 32]),
    /// So much is missing, big-endian; all that fits.
    Less([u8; 32]),
}

fn wide(amount: [u8; 32]) -> U512 {
    U512::from(U256::from_be_bytes(amount))
}

fn narrow(amount: U512) -> [u8; 32] {
    amount.saturating_to::<U256>().to_be_bytes()
}

impl Ledger {
    /// Of an address that had so much.
    pub fn new(balance: [u8; 32]) -> Self {
        let mut ledger = Self::default();
        ledger.add(false, balance);
        ledger
    }

    /// A transfer to the address, or from it.
    pub fn add(&mut self, is_send: bool, amount: [u8; 32]) {
        let side = match is_send {
            true => &mut self.sent,
            false => &mut self.received,
        };
        *side = side.saturating_add(wide(amount));
    }

    /// What the address has by it, big-endian, all that fits; `None` where more went than came: something came unseen.
    pub fn balance(&self) -> Option<[u8; 32]> {
        self.received.checked_sub(self.sent).map(narrow)
    }

    /// How what is there stands to it.
    pub fn compare(&self, balance: [u8; 32]) -> Comparison {
        let there = wide(balance).saturating_add(self.sent);
        if there == self.received {
            Comparison::Equal
        } else if there > self.received {
            Comparison::More(narrow(there.saturating_sub(self.received)))
        } else {
            Comparison::Less(narrow(self.received.saturating_sub(there)))
        }
    }
}

/// What only a balance shows: nobody knows which transaction it was, nor who has sent it. The same finding gets the same
/// id.
pub fn unexplained(
    chain: FollowedChain,
    (account, asset): (Account, Option<Account>),
    block: u64,
    amount: [u8; 32],
) -> Transfer {
    let hash = Sha256::new()
        .chain_update(DOMAIN)
        // The parts have fixed lengths.
        .chain_update(chain.key())
        .chain_update(account.0)
        .chain_update([u8::from(asset.is_some())])
        .chain_update(asset.unwrap_or(NOBODY).0)
        .chain_update(block.to_be_bytes())
        .chain_update(amount)
        .finalize();
    Transfer {
        tx: hash.into(),
        index: TransferIndex::Balance,
        from: NOBODY,
        to: account,
        asset,
        amount,
    }
}

impl OwnedTransfer {
    /// Whether its owner is told: fees are kept for the books alone.
    pub fn is_told(&self) -> bool {
        !matches!(
            self.transfer.index,
            TransferIndex::Fee | TransferIndex::TopUp
        )
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn amount(amount: u64) -> [u8; 32] {
        U256::from(amount).to_be_bytes()
    }

    #[test]
    fn ledger__should_say_what_is_more_and_what_is_missing() {
        let mut ledger = Ledger::new(amount(10));
        ledger.add(false, amount(5));
        ledger.add(true, amount(12));
        assert_eq!(ledger.compare(amount(3)), Comparison::Equal);
        assert_eq!(ledger.balance(), Some(amount(3)));
        assert_eq!(ledger.compare(amount(7)), Comparison::More(amount(4)));
        assert_eq!(ledger.compare(amount(0)), Comparison::Less(amount(3)));
        // A token may say what it likes.
        for _ in 0..3 {
            ledger.add(false, [u8::MAX; 32]);
        }
        assert_eq!(ledger.compare(amount(3)), Comparison::Less([u8::MAX; 32]));
        for _ in 0..3 {
            ledger.add(true, [u8::MAX; 32]);
        }
        assert_eq!(ledger.compare(amount(3)), Comparison::Equal);
        ledger.add(true, amount(4));
        assert_eq!(ledger.balance(), None, "more went than came");
    }

    #[test]
    fn unexplained__should_have_an_id_of_its_own_each() {
        let (one, other) = (Account([1; 20]), Account([2; 20]));
        let evm = FollowedChain::Evm(1);
        let all = [
            unexplained(evm, (one, None), 7, amount(1)),
            unexplained(FollowedChain::Evm(2), (one, None), 7, amount(1)),
            unexplained(evm, (other, None), 7, amount(1)),
            unexplained(evm, (one, Some(other)), 7, amount(1)),
            unexplained(evm, (one, Some(NOBODY)), 7, amount(1)),
            unexplained(evm, (one, None), 8, amount(1)),
            unexplained(evm, (one, None), 7, amount(2)),
        ];
        let ids: BTreeSet<_> = all.iter().map(|transfer| transfer.tx).collect();
        assert_eq!(ids.len(), all.len());
        assert_eq!(all[0], unexplained(evm, (one, None), 7, amount(1)));
    }
}
