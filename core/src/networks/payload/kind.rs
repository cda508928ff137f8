//! The one table of payload kinds: name in JSON, network, wire variants.

use super::{WireEcho, WireKind};
use crate::networks::network::Network;

macro_rules! kinds {
    ($($variant:ident $name:literal $network:ident,)*) => {
        /// A kind of payload, as `createSigningRequest` takes them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum PayloadKind {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl PayloadKind {
            /// All kinds.
            pub const ALL: &'static [PayloadKind] = &[$(PayloadKind::$variant,)*];

            /// The kind of a wire payload.
            pub fn of(wire: &WireKind) -> Self {
                match wire {
                    $(WireKind::$variant(_) => PayloadKind::$variant,)*
                }
            }

            /// The name in JSON, e.g. `evmSendNative`. A test compares it with the schema.
            pub fn name(self) -> &'static str {
                match self {
                    $(PayloadKind::$variant => $name,)*
                }
            }

            /// The network of the wallets that the kind is for; `None` for `rawMessage`, which
            /// is for all of them.
            pub fn network(self) -> Option<Network> {
                match self {
                    $(PayloadKind::$variant => network!($network),)*
                }
            }
        }

        /// The same payload as a response shows it.
        pub(in crate::networks) fn echo(wire: WireKind) -> WireEcho {
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

kinds! {
    EvmSendNative "evmSendNative" Evm,
    EvmSendErc20 "evmSendErc20" Evm,
    EvmSendCustom "evmSendCustom" Evm,
    BtcSendNative "btcSendNative" Bitcoin,
    TronSendNative "tronSendNative" Tron,
    TronSendTrc10 "tronSendTrc10" Tron,
    TronSendTrc20 "tronSendTrc20" Tron,
    AptosSendNative "aptosSendNative" Aptos,
    AptosSendCoin "aptosSendCoin" Aptos,
    AptosSendCustom "aptosSendCustom" Aptos,
    SuiSendNative "suiSendNative" Sui,
    SuiSendCoin "suiSendCoin" Sui,
    SuiSendCustom "suiSendCustom" Sui,
    SolanaSendNative "solanaSendNative" Solana,
    SolanaSendSplToken "solanaSendSplToken" Solana,
    EvmMessage "evmMessage" Evm,
    AptosMessage "aptosMessage" Aptos,
    SolanaMessage "solanaMessage" Solana,
    RawMessage "rawMessage" Any,
    SuiMessage "suiMessage" Sui,
    TonSendNative "tonSendNative" Ton,
    TonSendToken "tonSendToken" Ton,
    TonSendCustom "tonSendCustom" Ton,
    TonMessage "tonMessage" Ton,
    SolanaSendCustom "solanaSendCustom" Solana,
    SonicSvmSendNative "sonicSvmSendNative" Solana,
    SonicSvmSendSplToken "sonicSvmSendSplToken" Solana,
    SonicSvmSendCustom "sonicSvmSendCustom" Solana,
    StellarSendNative "stellarSendNative" Stellar,
    StellarSendAsset "stellarSendAsset" Stellar,
    StellarSendCustom "stellarSendCustom" Stellar,
    StellarChangeTrust "stellarChangeTrust" Stellar,
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
        let table: Vec<&str> = PayloadKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(table, schema);
        assert_eq!(table.len(), 32);
    }
}
