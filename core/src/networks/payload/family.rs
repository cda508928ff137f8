//! What the payload kinds of one family of networks have in common.

use std::collections::BTreeSet;

use super::{
    KnownChains, PayloadKind, WireKind,
    outflow::{AccountChange, Outflow},
};
use crate::{fault::Fault, networks::network::Network};

/// The checked payload kinds of a family.
pub trait NetworkPayload {
    /// The kind.
    fn kind(&self) -> PayloadKind;

    /// The sender's address in canonical form.
    fn from(&self) -> &str;

    /// The canonical wire form.
    fn to_wire(&self) -> WireKind;

    /// What a signature lets leave a wallet of the network `wallet`.
    fn outflow(&self, wallet: Network) -> Outflow;

    /// What the transaction does, whatever its number, fee and time are: two with the same do it twice. `None` where
    /// [`NetworkPayload::outflow`] says all that it does, and of messages.
    fn purpose(&self) -> Option<Vec<u8>> {
        None
    }

    /// What a signature changes about who may sign for the wallet.
    fn account_changes(&self) -> BTreeSet<AccountChange> {
        BTreeSet::new()
    }

    /// The chain id that the payload names, where its kind has one.
    fn chain_id(&self) -> Option<u64>;

    /// Whether it makes a transaction; else it is a message.
    fn is_transaction(&self) -> bool;

    /// Checks what depends on the wallet, whose network fits the kind.
    ///
    /// # Errors
    /// As [`NetworkPayload::screen`].
    fn check_wallet(&self, _wallet: Network) -> Result<(), Fault> {
        Ok(())
    }

    /// Checks what depends on configuration.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field, relative to the payload.
    fn screen(&self, _known: &KnownChains) -> Result<(), Fault> {
        Ok(())
    }

    /// Whether the wallet pays the transaction's fee. It does, unless the kind says otherwise.
    fn pays_fee(&self) -> bool {
        true
    }

    /// Who has to sign beside the wallet, where that signature is not in the payload.
    /// Nobody, unless the kind says otherwise.
    fn missing_signer(&self) -> Option<String> {
        None
    }

    /// Whether it may be sent by Covault.
    fn may_broadcast(&self, _known: &KnownChains) -> bool {
        self.is_transaction() && self.missing_signer().is_none()
    }
}
