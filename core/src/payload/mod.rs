//! Payload kinds: each is parsed once, from its wire message into a checked type.
//!
//! One file per family of networks.

pub mod aptos;
pub mod bitcoin;
pub mod evm;
mod family;
pub(crate) mod field;
mod kind;
mod opaque;
pub mod outflow;
pub mod raw;
pub mod solana;
pub mod stellar;
pub mod sui;
#[cfg(test)]
mod tests;
pub mod ton;
pub mod tron;

use std::collections::BTreeSet;

use prost::Message as _;

use self::outflow::{AccountChange, Outflow};
pub use self::{family::Family, kind::Kind};
use crate::{
    fault::{Code, Fault},
    network::Network,
    schema::wire,
};

/// The payload kind of a create request, on the wire.
pub type WireKind = wire::create_signing_request_request::Type;
/// The payload kind of a signing request in a response, on the wire.
pub type WireEcho = wire::signing_request::Type;

macro_rules! families {
    ($($variant:ident $module:ident $payload:ident,)*) => {
        /// A checked payload.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Payload {
            $(#[doc = concat!("Any kind of [`", stringify!($module), "`].")] $variant($module::$payload),)*
            /// `rawMessage`, for a wallet of any network.
            Raw(raw::RawPayload),
        }

        impl Payload {
            /// What all families have.
            fn family(&self) -> &dyn Family {
                match self {
                    $(Payload::$variant(payload) => payload,)*
                    Payload::Raw(payload) => payload,
                }
            }
        }

        $(
            impl From<$module::$payload> for Payload {
                fn from(payload: $module::$payload) -> Self {
                    Payload::$variant(payload)
                }
            }

            impl crate::chain::Part<Payload> for $module::$payload {
                fn of(payload: &Payload) -> Option<&Self> {
                    match payload {
                        Payload::$variant(payload) => Some(payload),
                        _ => None,
                    }
                }
            }
        )*
    };
}

families! {
    Evm evm EvmPayload,
    Solana solana SolanaPayload,
    Bitcoin bitcoin BitcoinPayload,
    Tron tron TronPayload,
    Aptos aptos AptosPayload,
    Sui sui SuiPayload,
    Ton ton TonPayload,
    Stellar stellar StellarPayload,
}

/// The EVM chains that are always known (contract section 3): Ethereum, Optimism, BNB Smart
/// Chain, Polygon, Base, Arbitrum One, Avalanche C-Chain.
pub const BUILT_IN_EVM_CHAINS: [u64; 7] = [1, 10, 56, 137, 8453, 42161, 43114];

/// Which EVM chains are known: the built-in ones and those that configuration names.
/// Any other chain id is a custom chain (contract section 3).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct KnownChains {
    /// EVM chain ids named by configuration, beside the built-in ones.
    pub configured: BTreeSet<u64>,
}

impl KnownChains {
    /// Whether the EVM chain is known.
    pub fn contains(&self, chain_id: u64) -> bool {
        BUILT_IN_EVM_CHAINS.contains(&chain_id) || self.configured.contains(&chain_id)
    }
}

impl Payload {
    /// Checks everything about a payload that does not depend on wallet, configuration or chain.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] with the path of the field, e.g. `evmSendNative.to`.
    pub fn parse(kind: &WireKind) -> Result<Self, Fault> {
        parse(kind).map_err(|fault| fault.with_prefix(Kind::of(kind).name()))
    }

    /// Parses the bytes of [`crate::order::SigningOrder::payload`].
    ///
    /// # Errors
    /// As [`Payload::parse`]; also when the bytes are not exactly what [`Payload::encode`]
    /// gives, so that one payload has one encoding.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let request = wire::CreateSigningRequestRequest::decode(bytes).map_err(|error| {
            Fault::field("payload", "cannot be decoded")
                .with_code(Code::Payload)
                .caused_by(error)
        })?;
        let kind = request.r#type.as_ref().ok_or_else(|| {
            Fault::field("payload", "holds no payload kind").with_code(Code::Payload)
        })?;
        let payload = Self::parse(kind)?;
        if payload.encode() != bytes {
            let fault = Fault::field("payload", "is not in its canonical form");
            return Err(fault.with_code(Code::Payload));
        }
        Ok(payload)
    }

    /// The bytes for [`crate::order::SigningOrder::payload`]: a `CreateSigningRequestRequest`
    /// that holds the canonical form of the payload kind and nothing else.
    pub fn encode(&self) -> Vec<u8> {
        wire::CreateSigningRequestRequest {
            r#type: Some(self.to_wire()),
            ..Default::default()
        }
        .encode_to_vec()
    }

    /// The canonical wire form: canonical addresses, message `type` as decided. Parsing it
    /// gives this payload again.
    pub fn to_wire(&self) -> WireKind {
        self.family().to_wire()
    }

    /// The sender's address in canonical form.
    pub fn from(&self) -> &str {
        self.family().from()
    }

    /// The kind's name in JSON, e.g. `evmSendNative`.
    pub fn kind(&self) -> &'static str {
        self.which().name()
    }

    /// The kind.
    pub fn which(&self) -> Kind {
        self.family().kind()
    }

    /// Checks the payload against the wallet it names: network, and for `rawMessage` the curve.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn check_wallet(&self, wallet: Network) -> Result<(), Fault> {
        let kind = self.which();
        if let Some(network) = kind.network()
            && network != wallet
        {
            let problem = format!(
                "is a {} wallet; this kind needs one of {}",
                wallet.name(),
                network.name()
            );
            return Err(Fault::field("from", problem).with_prefix(kind.name()));
        }
        self.family()
            .check_wallet(wallet)
            .map_err(|fault| fault.with_prefix(kind.name()))
    }

    /// Checks what depends on configuration: a custom EVM chain needs `gasFee` and `nonce`.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn screen(&self, known: &KnownChains) -> Result<(), Fault> {
        self.family()
            .screen(known)
            .map_err(|fault| fault.with_prefix(self.kind()))
    }

    /// Whether this kind may be broadcast at all: messages, `rawMessage` and transactions of
    /// custom EVM chains never are.
    pub fn may_broadcast(&self, known: &KnownChains) -> bool {
        self.family().may_broadcast(known)
    }

    /// Whether it makes a transaction; else it is a message, or bytes that may be anything.
    pub fn is_transaction(&self) -> bool {
        self.family().is_transaction()
    }

    /// The chain id that the payload names, where its kind has one.
    pub fn chain_id(&self) -> Option<u64> {
        self.family().chain_id()
    }

    /// What a signature over the payload lets leave a wallet of the network `wallet`.
    pub fn outflow(&self, wallet: Network) -> Outflow {
        self.family().outflow(wallet)
    }

    /// What a signature over the payload changes about who may sign for the wallet.
    pub fn account_changes(&self) -> BTreeSet<AccountChange> {
        self.family().account_changes()
    }

    /// Who is known to get something of it, each once, in canonical form.
    pub fn recipients(&self, wallet: Network) -> BTreeSet<String> {
        let spends = self.outflow(wallet).spends;
        spends
            .into_iter()
            .filter_map(|spend| spend.recipient)
            .collect()
    }

    /// The payload as a response shows it: canonical addresses, message `type` as decided.
    pub fn echo(&self) -> WireEcho {
        kind::echo(self.to_wire())
    }
}

/// The one exhaustive match over the kinds: a new one does not compile until it is here.
fn parse(kind: &WireKind) -> Result<Payload, Fault> {
    use solana::Cluster::{Solana, SonicSvm};
    match kind {
        WireKind::EvmSendNative(wire) => evm::send_native(wire).map(Payload::Evm),
        WireKind::EvmSendErc20(wire) => evm::send_erc20(wire).map(Payload::Evm),
        WireKind::EvmSendCustom(wire) => evm::send_custom(wire).map(Payload::Evm),
        WireKind::EvmMessage(wire) => evm::message(wire).map(Payload::Evm),
        WireKind::BtcSendNative(wire) => bitcoin::send_native(wire).map(Payload::Bitcoin),
        WireKind::TronSendNative(wire) => tron::send_native(wire).map(Payload::Tron),
        WireKind::TronSendTrc10(wire) => tron::send_trc10(wire).map(Payload::Tron),
        WireKind::TronSendTrc20(wire) => tron::send_trc20(wire).map(Payload::Tron),
        WireKind::AptosSendNative(wire) => aptos::send_native(wire).map(Payload::Aptos),
        WireKind::AptosSendCoin(wire) => aptos::send_coin(wire).map(Payload::Aptos),
        WireKind::AptosSendCustom(wire) => aptos::send_custom(wire).map(Payload::Aptos),
        WireKind::AptosMessage(wire) => aptos::message(wire).map(Payload::Aptos),
        WireKind::SuiSendNative(wire) => sui::send_native(wire).map(Payload::Sui),
        WireKind::SuiSendCoin(wire) => sui::send_coin(wire).map(Payload::Sui),
        WireKind::SuiSendCustom(wire) => sui::send_custom(wire).map(Payload::Sui),
        WireKind::SuiMessage(wire) => sui::message(wire).map(Payload::Sui),
        WireKind::SolanaSendNative(wire) => solana::send_native(Solana, wire).map(Payload::Solana),
        WireKind::SolanaSendSplToken(wire) => solana::send_token(Solana, wire).map(Payload::Solana),
        WireKind::SolanaSendCustom(wire) => solana::send_custom(Solana, wire).map(Payload::Solana),
        WireKind::SolanaMessage(wire) => solana::message(wire).map(Payload::Solana),
        WireKind::SonicSvmSendNative(wire) => {
            solana::send_native(SonicSvm, wire).map(Payload::Solana)
        }
        WireKind::SonicSvmSendSplToken(wire) => {
            solana::send_token(SonicSvm, wire).map(Payload::Solana)
        }
        WireKind::SonicSvmSendCustom(wire) => {
            solana::send_custom(SonicSvm, wire).map(Payload::Solana)
        }
        WireKind::TonSendNative(wire) => ton::send_native(wire).map(Payload::Ton),
        WireKind::TonSendToken(wire) => ton::send_token(wire).map(Payload::Ton),
        WireKind::TonSendCustom(wire) => ton::send_custom(wire).map(Payload::Ton),
        WireKind::TonMessage(wire) => ton::message(wire).map(Payload::Ton),
        WireKind::StellarSendNative(wire) => stellar::send_native(wire).map(Payload::Stellar),
        WireKind::StellarSendAsset(wire) => stellar::send_asset(wire).map(Payload::Stellar),
        WireKind::StellarSendCustom(wire) => stellar::send_custom(wire).map(Payload::Stellar),
        WireKind::StellarChangeTrust(wire) => stellar::change_trust(wire).map(Payload::Stellar),
        WireKind::RawMessage(wire) => raw::message(wire).map(Payload::Raw),
    }
}
