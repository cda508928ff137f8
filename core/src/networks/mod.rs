//! The networks, and the one exhaustive registry of them.
//!
//! Each network has a folder: its payload kinds (`payload.rs`), and how their transactions are built,
//! signed and read (`rules.rs`: [`NetworkRules`]). Everyone else uses [`Payload`], [`Queries`] and
//! [`ChainData`], which are of any network, with [`Network::rules`].

pub mod aptos;
pub mod bitcoin;
mod dyn_rules;
pub mod evm;
mod fee_level;
mod network;
mod payload;
mod raw;
mod rules;
mod scopes;
pub mod solana;
pub mod stellar;
pub mod sui;
#[cfg(test)]
mod tests;
pub mod ton;
pub mod tron;
mod verified;

use std::collections::BTreeSet;

use prost::Message as _;
use serde::{Deserialize, Serialize};

pub use self::{
    dyn_rules::DynNetworkRules,
    fee_level::FeeLevel,
    network::Network,
    payload::{
        BUILT_IN_EVM_CHAINS, KnownChains, NetworkPayload, PayloadKind, Purpose, WireEcho, WireKind,
        outflow,
    },
    raw::RawPayload,
    rules::{
        Allocation, ChainMoment, NetworkRules, Replacement, Resource, Signed, SigningInput,
        Unsigned,
    },
    verified::VerifiedSignatures,
};
use self::{
    outflow::{AccountChange, Outflow},
    payload::echo,
};
use crate::{
    fault::{Fault, FaultCode},
    schema::wire,
};

macro_rules! networks {
    ($($variant:ident $module:ident $payload:ident,)*) => {
        impl Network {
            /// The network's rules.
            pub fn rules(self) -> &'static dyn DynNetworkRules {
                match self {
                    $(Network::$variant => &$module::$variant,)*
                }
            }
        }

        /// A checked payload.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Payload {
            $(#[doc = concat!("Any kind of [`", stringify!($module), "`].")] $variant($module::$payload),)*
            /// `rawMessage`, for a wallet of any network.
            Raw(RawPayload),
        }

        impl Payload {
            /// What all networks' payloads have.
            fn family(&self) -> &dyn NetworkPayload {
                match self {
                    $(Payload::$variant(payload) => payload,)*
                    Payload::Raw(payload) => payload,
                }
            }
        }

        /// What must be asked of the network's node before a payload can be built.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Queries {
            /// Nothing: a message, or a transaction that brings everything.
            Nothing,
            $(#[doc = concat!("See [`", stringify!($module), "::Queries`].")] $variant($module::Queries),)*
        }

        /// What the network's node answered; stored with the request and shown to the signers.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum ChainData {
            /// Nothing was asked.
            Nothing,
            $(#[doc = concat!("See [`", stringify!($module), "::ChainData`].")] $variant($module::ChainData),)*
        }

        $(
            networks!(part Payload $variant $module::$payload);
            networks!(part Queries $variant $module::Queries);
            networks!(part ChainData $variant $module::ChainData);
        )*
    };
    (part $whole:ident $variant:ident $part:ty) => {
        impl From<$part> for $whole {
            fn from(part: $part) -> Self {
                $whole::$variant(part)
            }
        }

        impl dyn_rules::PartOf<$whole> for $part {
            fn of(whole: &$whole) -> Option<&Self> {
                match whole {
                    $whole::$variant(part) => Some(part),
                    _ => None,
                }
            }
        }
    };
}

// The order is that of the numbers on disk: a new network goes to the end.
networks! {
    Evm evm EvmPayload,
    Solana solana SolanaPayload,
    Bitcoin bitcoin BitcoinPayload,
    Tron tron TronPayload,
    Aptos aptos AptosPayload,
    Sui sui SuiPayload,
    Ton ton TonPayload,
    Stellar stellar StellarPayload,
}

impl Payload {
    /// Checks everything about a payload that does not depend on wallet, configuration or chain.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] with the path of the field, e.g. `evmSendNative.to`.
    pub fn parse(kind: &WireKind) -> Result<Self, Fault> {
        parse(kind).map_err(|fault| fault.with_prefix(PayloadKind::of(kind).name()))
    }

    /// Parses the bytes of [`crate::order::SigningOrder::payload`].
    ///
    /// # Errors
    /// As [`Payload::parse`]; also when the bytes are not exactly what [`Payload::encode`]
    /// gives, so that one payload has one encoding.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let request = wire::CreateSigningRequestRequest::decode(bytes).map_err(|error| {
            Fault::field("payload", "cannot be decoded")
                .with_code(FaultCode::Payload)
                .caused_by(error)
        })?;
        let kind = request.r#type.as_ref().ok_or_else(|| {
            Fault::field("payload", "contains no payload kind").with_code(FaultCode::Payload)
        })?;
        let payload = Self::parse(kind)?;
        if payload.encode() != bytes {
            let fault = Fault::field("payload", "is not in its canonical form");
            return Err(fault.with_code(FaultCode::Payload));
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
        self.payload_kind().name()
    }

    /// The kind.
    pub fn payload_kind(&self) -> PayloadKind {
        self.family().kind()
    }

    /// Checks the payload against the wallet it names: network, and for `rawMessage` the curve.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn check_wallet(&self, wallet: Network) -> Result<(), Fault> {
        let kind = self.payload_kind();
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

    /// Whether the wallet pays the transaction's fee, and not another one who signs it too.
    pub fn pays_fee(&self) -> bool {
        self.family().pays_fee()
    }

    /// Who has to sign the transaction beside the wallet, where that signature is not in the payload: without it
    /// no node takes it.
    pub fn missing_signer(&self) -> Option<String> {
        self.family().missing_signer()
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

    /// What the payload does as one of a wallet of the network `wallet`.
    pub fn purpose(&self, wallet: Network) -> Purpose {
        let own = self.family().purpose();
        Purpose::new(self.from(), own, self.outflow(wallet), &self.encode())
    }

    /// Whether both, of a wallet of the network `wallet`, pay or do the same, whatever number, fee and time each of them has.
    pub fn does_the_same(&self, other: &Self, wallet: Network) -> bool {
        self.purpose(wallet).is_same(&other.purpose(wallet))
    }

    /// As [`Payload::does_the_same`], with memos and comments: one of them in place of the other harms nobody.
    pub fn does_exactly_the_same(&self, other: &Self, wallet: Network) -> bool {
        self.purpose(wallet).is_exactly_same(&other.purpose(wallet))
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
        echo(self.to_wire())
    }
}

/// The one exhaustive match over the kinds: a new one does not compile until it is here.
fn parse(kind: &WireKind) -> Result<Payload, Fault> {
    use solana::SolanaCluster::{Solana, SonicSvm};
    match kind {
        WireKind::EvmSendNative(wire) => evm::payload::send_native(wire).map(Payload::Evm),
        WireKind::EvmSendErc20(wire) => evm::payload::send_erc20(wire).map(Payload::Evm),
        WireKind::EvmSendCustom(wire) => evm::payload::send_custom(wire).map(Payload::Evm),
        WireKind::EvmMessage(wire) => evm::payload::message(wire).map(Payload::Evm),
        WireKind::BtcSendNative(wire) => bitcoin::payload::send_native(wire).map(Payload::Bitcoin),
        WireKind::TronSendNative(wire) => tron::payload::send_native(wire).map(Payload::Tron),
        WireKind::TronSendTrc10(wire) => tron::payload::send_trc10(wire).map(Payload::Tron),
        WireKind::TronSendTrc20(wire) => tron::payload::send_trc20(wire).map(Payload::Tron),
        WireKind::AptosSendNative(wire) => aptos::payload::send_native(wire).map(Payload::Aptos),
        WireKind::AptosSendCoin(wire) => aptos::payload::send_coin(wire).map(Payload::Aptos),
        WireKind::AptosSendCustom(wire) => aptos::payload::send_custom(wire).map(Payload::Aptos),
        WireKind::AptosMessage(wire) => aptos::payload::message(wire).map(Payload::Aptos),
        WireKind::SuiSendNative(wire) => sui::payload::send_native(wire).map(Payload::Sui),
        WireKind::SuiSendCoin(wire) => sui::payload::send_coin(wire).map(Payload::Sui),
        WireKind::SuiSendCustom(wire) => sui::payload::send_custom(wire).map(Payload::Sui),
        WireKind::SuiMessage(wire) => sui::payload::message(wire).map(Payload::Sui),
        WireKind::SolanaSendNative(wire) => {
            solana::payload::send_native(Solana, wire).map(Payload::Solana)
        }
        WireKind::SolanaSendSplToken(wire) => {
            solana::payload::send_token(Solana, wire).map(Payload::Solana)
        }
        WireKind::SolanaSendCustom(wire) => {
            solana::payload::send_custom(Solana, wire).map(Payload::Solana)
        }
        WireKind::SolanaMessage(wire) => solana::payload::message(wire).map(Payload::Solana),
        WireKind::SonicSvmSendNative(wire) => {
            solana::payload::send_native(SonicSvm, wire).map(Payload::Solana)
        }
        WireKind::SonicSvmSendSplToken(wire) => {
            solana::payload::send_token(SonicSvm, wire).map(Payload::Solana)
        }
        WireKind::SonicSvmSendCustom(wire) => {
            solana::payload::send_custom(SonicSvm, wire).map(Payload::Solana)
        }
        WireKind::TonSendNative(wire) => ton::payload::send_native(wire).map(Payload::Ton),
        WireKind::TonSendToken(wire) => ton::payload::send_token(wire).map(Payload::Ton),
        WireKind::TonSendCustom(wire) => ton::payload::send_custom(wire).map(Payload::Ton),
        WireKind::TonMessage(wire) => ton::payload::message(wire).map(Payload::Ton),
        WireKind::StellarSendNative(wire) => {
            stellar::payload::send_native(wire).map(Payload::Stellar)
        }
        WireKind::StellarSendAsset(wire) => {
            stellar::payload::send_asset(wire).map(Payload::Stellar)
        }
        WireKind::StellarSendCustom(wire) => {
            stellar::payload::send_custom(wire).map(Payload::Stellar)
        }
        WireKind::StellarChangeTrust(wire) => {
            stellar::payload::change_trust(wire).map(Payload::Stellar)
        }
        WireKind::RawMessage(wire) => raw::message(wire, canonical_address).map(Payload::Raw),
    }
}

/// The canonical form of an address of whichever network it is. Address forms do not overlap, except
/// those of Aptos and Sui, which have one canonical form.
fn canonical_address(text: &str) -> Option<String> {
    Network::ALL
        .iter()
        .find_map(|network| network.rules().parse_address(text).ok())
}
