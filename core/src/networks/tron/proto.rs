//! The messages of Tron's protocol that are used here, by field number (java-tron,
//! `protocol/src/main/protos/core`: `Tron.proto`, `contract/*.proto`).
//!
//! Fields that Covault never sets are left out. Decoding drops them, so the decoder must
//! compare what encoding gives with the bytes it had.

use prost::{Message, Name};
use prost_types::Any;

/// `SignedTransaction`, signed.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SignedTransaction {
    /// The encoded [`TransactionRaw`]: what was signed is what is sent, byte for byte.
    #[prost(bytes = "vec", tag = "1")]
    pub raw_data: Vec<u8>,
    /// r, s, v: 65 bytes each.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub signature: Vec<Vec<u8>>,
}

/// `SignedTransaction.raw`: what is signed.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TransactionRaw {
    /// Low 2 bytes of the reference block's number.
    #[prost(bytes = "vec", tag = "1")]
    pub ref_block_bytes: Vec<u8>,
    /// Bytes 8 to 16 of the reference block's id.
    #[prost(bytes = "vec", tag = "4")]
    pub ref_block_hash: Vec<u8>,
    /// ms since the Unix epoch.
    #[prost(int64, tag = "8")]
    pub expiration: i64,
    /// Exactly one.
    #[prost(message, repeated, tag = "11")]
    pub contract: Vec<TransactionContract>,
    /// ms since the Unix epoch.
    #[prost(int64, tag = "14")]
    pub timestamp: i64,
    /// sun.
    #[prost(int64, tag = "18")]
    pub fee_limit: i64,
}

/// `SignedTransaction.Contract`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TransactionContract {
    /// `ContractType`.
    #[prost(int32, tag = "1")]
    pub r#type: i32,
    /// One of the contracts below.
    #[prost(message, optional, tag = "2")]
    pub parameter: Option<Any>,
}

/// A message that stands in a [`TransactionContract`].
pub(super) trait ContractParameter: Name + Default {
    /// Its number in `ContractType`.
    const TYPE: i32;

    /// The contract around it.
    fn contract(&self) -> TransactionContract {
        TransactionContract {
            r#type: Self::TYPE,
            parameter: Some(Any {
                type_url: Self::type_url(),
                value: self.encode_to_vec(),
            }),
        }
    }

    /// Reads it from the contract around it, when [`ContractParameter::contract`] made that.
    fn from_contract(contract: &TransactionContract) -> Option<Self> {
        let value = &contract.parameter.as_ref()?.value;
        let parameter = Self::decode(value.as_slice()).ok()?;
        (parameter.contract() == *contract).then_some(parameter)
    }
}

/// Sends TRX.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TransferContract {
    #[prost(bytes = "vec", tag = "1")]
    pub owner_address: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub to_address: Vec<u8>,
    /// sun.
    #[prost(int64, tag = "3")]
    pub amount: i64,
}

/// Sends a TRC-10 asset.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TransferAssetContract {
    /// The asset's number in ASCII digits.
    #[prost(bytes = "vec", tag = "1")]
    pub asset_name: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub owner_address: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub to_address: Vec<u8>,
    /// In the asset's smallest unit.
    #[prost(int64, tag = "4")]
    pub amount: i64,
}

/// Calls a contract, and sends it nothing.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TriggerSmartContract {
    #[prost(bytes = "vec", tag = "1")]
    pub owner_address: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub contract_address: Vec<u8>,
    /// Call data.
    #[prost(bytes = "vec", tag = "4")]
    pub data: Vec<u8>,
}

macro_rules! parameters {
    ($($message:ident $name:literal $number:literal,)*) => {
        $(
            impl Name for $message {
                const NAME: &'static str = $name;
                const PACKAGE: &'static str = "protocol";

                fn type_url() -> String {
                    format!("type.googleapis.com/{}", Self::full_name())
                }
            }

            impl ContractParameter for $message {
                const TYPE: i32 = $number;
            }
        )*
    };
}

parameters! {
    TransferContract "TransferContract" 1,
    TransferAssetContract "TransferAssetContract" 2,
    TriggerSmartContract "TriggerSmartContract" 31,
}
