//! The one table of payload kinds: name in JSON, network, wire variants.

use super::{WireEcho, WireKind};
use crate::network::Network;

macro_rules! kinds {
    ($($variant:ident $name:literal $network:ident $state:ident,)*) => {
        /// A kind of payload, as `createSigningRequest` takes them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            /// The kind of a wire payload.
            pub fn of(wire: &WireKind) -> Self {
                match wire {
                    $(WireKind::$variant(_) => Kind::$variant,)*
                }
            }

            /// The name in JSON, e.g. `evmSendNative`. A test compares it with the schema.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$variant => $name,)*
                }
            }

            /// The network of the wallets that the kind is for; `None` for `rawMessage`, which
            /// is for all of them.
            pub fn network(self) -> Option<Network> {
                match self {
                    $(Kind::$variant => network!($network),)*
                }
            }

            /// Whether this version of Covault can sign it. A kind that is not built is refused
            /// by name.
            pub fn is_built(self) -> bool {
                match self {
                    $(Kind::$variant => state!($state),)*
                }
            }
        }

        /// The same payload as a response shows it.
        pub(super) fn echo(wire: WireKind) -> WireEcho {
            match wire {
                $(WireKind::$variant(message) => WireEcho::$variant(message),)*
            }
        }
    };
}

macro_rules! network {
    (Any) => {
        None
    };
    ($network:ident) => {
        Some(Network::$network)
    };
}

macro_rules! state {
    (built) => {
        true
    };
    (planned) => {
        false
    };
}

kinds! {
    EvmSendNative "evmSendNative" Evm built,
    EvmSendErc20 "evmSendErc20" Evm built,
    EvmSendCustom "evmSendCustom" Evm built,
    BtcSendNative "btcSendNative" Bitcoin built,
    TronSendNative "tronSendNative" Tron built,
    TronSendTrc10 "tronSendTrc10" Tron built,
    TronSendTrc20 "tronSendTrc20" Tron built,
    AptosSendNative "aptosSendNative" Aptos built,
    AptosSendCoin "aptosSendCoin" Aptos built,
    AptosSendCustom "aptosSendCustom" Aptos built,
    SuiSendNative "suiSendNative" Sui built,
    SuiSendCoin "suiSendCoin" Sui built,
    SuiSendCustom "suiSendCustom" Sui built,
    SolanaSendNative "solanaSendNative" Solana built,
    SolanaSendSplToken "solanaSendSplToken" Solana built,
    EvmMessage "evmMessage" Evm built,
    AptosMessage "aptosMessage" Aptos built,
    SolanaMessage "solanaMessage" Solana built,
    RawMessage "rawMessage" Any built,
    SuiMessage "suiMessage" Sui built,
    TonSendNative "tonSendNative" Ton built,
    TonSendToken "tonSendToken" Ton built,
    TonSendCustom "tonSendCustom" Ton built,
    TonMessage "tonMessage" Ton built,
    SolanaSendCustom "solanaSendCustom" Solana built,
    SonicSvmSendNative "sonicSvmSendNative" Solana built,
    SonicSvmSendSplToken "sonicSvmSendSplToken" Solana built,
    SonicSvmSendCustom "sonicSvmSendCustom" Solana built,
    StellarSendNative "stellarSendNative" Stellar built,
    StellarSendAsset "stellarSendAsset" Stellar built,
    StellarSendCustom "stellarSendCustom" Stellar built,
    StellarChangeTrust "stellarChangeTrust" Stellar built,
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use prost_reflect::DescriptorPool;

    use super::*;
    use crate::schema::DESCRIPTOR_SET;

    #[test]
    fn kind__should_be_named_as_in_the_schema() {
        let pool = DescriptorPool::decode(DESCRIPTOR_SET).unwrap();
        let message = pool
            .get_message_by_name("mpcvault.platform.v1.CreateSigningRequestRequest")
            .unwrap();
        let oneof = message
            .oneofs()
            .find(|oneof| oneof.name() == "type")
            .unwrap();
        let mut fields: Vec<_> = oneof.fields().collect();
        fields.sort_by_key(|field| field.number());
        let schema: Vec<String> = fields
            .iter()
            .map(|field| field.json_name().to_owned())
            .collect();
        let table: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(table, schema);
        assert_eq!(table.len(), 32);
    }
}
