//! What a node says of a wallet's coins, and how a coin object shows its type.

use serde::{Deserialize, Serialize};
use sui_sdk_types::{
    Address, Digest, MoveStruct, Object, ObjectData, ObjectReference, Owner, StructTag,
};

use super::address::{parse_address, parse_digest};
use crate::{fault::Fault, networks::rules::unexpected_chain_data};

/// Coin objects of one type that a node may name. A transaction with so many is far below the
/// network's limits (2048 objects, 128 KiB).
pub const MAX_COINS: usize = 1000;

/// The end of a digest that is no digest but a coin reservation (SIP-58).
const RESERVATION: [u8; 20] = [0xac; 20];

/// A coin object that the wallet owns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoinObject {
    /// `0x` and 64 hex digits.
    pub object_id: String,
    /// The object's present version.
    pub version: u64,
    /// The object's digest, base58.
    pub digest: String,
    /// In the coin's smallest unit.
    pub balance: u64,
    /// What else the digest is made of. Signers want it of tokens ([`CoinObject::is_of`]); of SUI nobody
    /// needs it, since the network itself takes nothing else as gas.
    pub origin: Option<CoinOrigin>,
}

/// What a coin object's digest covers in addition to type, owner, id, version and balance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoinOrigin {
    /// The transaction that made this version, base58.
    pub previous_transaction: String,
    /// MIST that come back when the object is deleted.
    pub storage_rebate: u64,
}

impl CoinObject {
    /// How a transaction names it.
    pub(super) fn reference(&self) -> Result<ObjectReference, Fault> {
        let id = parse_address(&self.object_id).map_err(|_| unexpected_chain_data())?;
        let digest = parse_digest(&self.digest).ok_or_else(unexpected_chain_data)?;
        if is_reservation(&digest) {
            return Err(Fault::bug("a coin reservation among the coin objects"));
        }
        Ok(ObjectReference::new(id, self.version, digest))
    }

    /// The name that [`crate::networks::Resource::Object`] has for it.
    pub(super) fn object_resource(&self) -> Result<String, Fault> {
        self.reference()
            .map(|reference| object_resource(&reference))
    }

    /// Whether the digest shows that this is a coin of that type, owned by that address, with that
    /// balance. The signed bytes contain the digest, and the network refuses another.
    pub(super) fn is_of(&self, coin_type: &StructTag, owner: Address) -> Result<bool, Fault> {
        let Some(origin) = &self.origin else {
            return Ok(false);
        };
        let reference = self.reference()?;
        let previous =
            parse_digest(&origin.previous_transaction).ok_or_else(unexpected_chain_data)?;
        // struct Coin<T> { id: UID, balance: Balance<T> }
        let mut contents = reference.object_id().as_bytes().to_vec();
        contents.extend_from_slice(&self.balance.to_le_bytes());
        let kind = StructTag::coin(coin_type.clone().into());
        let coin = MoveStruct::new(kind, true, self.version, contents)
            .ok_or_else(unexpected_chain_data)?;
        let object = Object::new(
            ObjectData::Struct(coin),
            Owner::Address(owner),
            previous,
            origin.storage_rebate,
        );
        Ok(object.digest() == *reference.digest())
    }
}

/// `objectId:version`: an owned object has each of its versions once.
pub(super) fn object_resource(reference: &ObjectReference) -> String {
    format!("{}:{}", reference.object_id(), reference.version())
}

/// Whether an object reference is a piece of an address balance instead (SIP-58).
pub(super) fn is_reservation(digest: &Digest) -> bool {
    digest.as_bytes().ends_with(&RESERVATION)
}

/// The sum of some coins.
pub(super) fn sum(coins: &[CoinObject]) -> u128 {
    coins.iter().map(|coin| u128::from(coin.balance)).sum()
}
