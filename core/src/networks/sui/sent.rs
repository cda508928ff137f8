//! What a signed transaction says to its sender.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use sui_sdk_types::{Input, Transaction, TransactionExpiration};

use super::{coins::is_reservation, tx};
use crate::fault::Fault;

/// A signed transaction on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentTransaction {
    /// BCS `TransactionData`.
    pub transaction: Vec<u8>,
    /// Flag, signature and public key, each.
    pub signatures: Vec<Vec<u8>>,
    /// The last epoch in which it is valid; `None`: in all.
    pub last_epoch: Option<u64>,
    /// The objects that it names at a version: gas coins, inputs, what it receives. An immutable
    /// one keeps its version.
    pub objects: Vec<OwnedObject>,
}

/// An object at one of its versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedObject {
    /// `0x` and 64 hex digits.
    pub object_id: String,
    /// The version that the transaction wants it at.
    pub version: u64,
}

impl SentTransaction {
    /// The version that the transaction gives all objects that it changes, where none of them is
    /// shared: one more than the latest of them. With shared ones it is at least this.
    pub fn next_version(&self) -> u64 {
        let latest = self.objects.iter().map(|object| object.version).max();
        latest.unwrap_or(0).saturating_add(1)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SentText {
    tx_bytes: String,
    signatures: Vec<String>,
}

/// Reads what [`crate::networks::DynNetworkRules::assemble`] made.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when it is something else.
pub fn read_sent(text: &str) -> Result<SentTransaction, Fault> {
    let unreadable = || Fault::bug("the signed transaction cannot be read");
    let text: SentText = serde_json::from_str(text).map_err(|_| unreadable())?;
    let bytes = |text: &String| STANDARD.decode(text).map_err(|_| unreadable());
    let bytes_of_all = bytes(&text.tx_bytes)?;
    let transaction = tx::decode(&bytes_of_all).ok_or_else(unreadable)?;
    Ok(SentTransaction {
        signatures: text
            .signatures
            .iter()
            .map(bytes)
            .collect::<Result<_, _>>()?,
        last_epoch: last_epoch(&transaction.expiration),
        objects: objects(&transaction),
        transaction: bytes_of_all,
    })
}

fn last_epoch(expiration: &TransactionExpiration) -> Option<u64> {
    match expiration {
        TransactionExpiration::Epoch(epoch) => Some(*epoch),
        TransactionExpiration::ValidDuring { max_epoch, .. }
        | TransactionExpiration::Validity { max_epoch, .. } => *max_epoch,
        _ => None,
    }
}

fn objects(transaction: &Transaction) -> Vec<OwnedObject> {
    let inputs = tx::program_of(transaction).map(|program| program.inputs.as_slice());
    let inputs = inputs
        .unwrap_or_default()
        .iter()
        .filter_map(|input| match input {
            Input::ImmutableOrOwned(object) | Input::Receiving(object) => Some(object),
            _ => None,
        });
    let gas = transaction.gas_payment.objects.iter();
    gas.chain(inputs)
        .filter(|object| !is_reservation(object.digest()))
        .map(|object| OwnedObject {
            object_id: object.object_id().to_string(),
            version: object.version(),
        })
        .collect()
}
