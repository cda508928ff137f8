//! The messages of `tron.proto`, and the contracts of a transaction.

use prost::Name;
use prost_types::Any;

include!(concat!(env!("OUT_DIR"), "/protocol.rs"));

/// A message inside a [`TransactionContract`].
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

macro_rules! parameters {
    ($($message:ident $number:literal,)*) => {
        $(
            impl ContractParameter for $message {
                const TYPE: i32 = $number;
            }
        )*
    };
}

parameters! {
    TransferContract 1,
    TransferAssetContract 2,
    TriggerSmartContract 31,
}
