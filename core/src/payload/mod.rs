//! Payload kinds: each is parsed once, from its wire message into a checked type.
//!
//! One file per family of networks. A kind whose network is not built yet is still decoded and
//! its shape validated, and is then refused by name.

mod aptos;
mod bitcoin;
pub mod evm;
mod field;
mod kind;
pub mod outflow;
pub mod raw;
pub mod solana;
mod stellar;
mod sui;
#[cfg(test)]
mod tests;
mod ton;
mod tron;

use std::collections::BTreeSet;

use prost::Message as _;

pub use self::kind::Kind;
use self::outflow::{Nature, Outflow, Place};
use crate::{
    fault::{Class, Fault},
    network::Network,
    schema::wire,
};

/// The payload kind of a create request, on the wire.
pub type WireKind = wire::create_signing_request_request::Type;
/// The payload kind of a signing request in a response, on the wire.
pub type WireEcho = wire::signing_request::Type;

/// A checked payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Any EVM kind.
    Evm(evm::EvmPayload),
    /// Any Solana or Sonic SVM kind.
    Solana(solana::SolanaPayload),
    /// `rawMessage`, for a wallet of any network.
    Raw(raw::RawPayload),
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
    /// [`crate::fault::Class::Invalid`] with the path of the field, e.g. `evmSendNative.to`, or
    /// a sentence that names the kind when its network is not built.
    pub fn parse(kind: &WireKind) -> Result<Self, Fault> {
        let name = Kind::of(kind).name();
        match Shape::of(kind).map_err(|fault| fault.under(name))? {
            Shape::Built(payload) => Ok(payload),
            Shape::NotBuilt(what) => Err(Fault::field(
                name,
                format_args!("{what} is not available in this version of Covault"),
            )),
        }
    }

    /// Parses the bytes of [`crate::order::SigningOrder::payload`].
    ///
    /// # Errors
    /// As [`Payload::parse`]; also when the bytes are not exactly what [`Payload::encode`]
    /// gives, so that one payload has one encoding.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let request = wire::CreateSigningRequestRequest::decode(bytes).map_err(|error| {
            Fault::new(Class::Invalid, "payload: cannot be decoded").caused_by(error)
        })?;
        let kind = request
            .r#type
            .as_ref()
            .ok_or_else(|| Fault::new(Class::Invalid, "payload: holds no payload kind"))?;
        let payload = Self::parse(kind)?;
        if payload.encode() != bytes {
            return Err(Fault::new(
                Class::Invalid,
                "payload: is not in its canonical form",
            ));
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
        match self {
            Payload::Evm(payload) => payload.to_wire(),
            Payload::Solana(payload) => payload.to_wire(),
            Payload::Raw(payload) => payload.to_wire(),
        }
    }

    /// The sender's address in canonical form.
    pub fn from(&self) -> &str {
        match self {
            Payload::Evm(payload) => payload.from(),
            Payload::Solana(payload) => payload.from(),
            Payload::Raw(payload) => &payload.from,
        }
    }

    /// The kind's name in JSON, e.g. `evmSendNative`.
    pub fn kind(&self) -> &'static str {
        self.which().name()
    }

    /// The kind.
    pub fn which(&self) -> Kind {
        match self {
            Payload::Evm(payload) => payload.kind(),
            Payload::Solana(payload) => payload.kind(),
            Payload::Raw(_) => Kind::RawMessage,
        }
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
            return Err(Fault::field("from", problem).under(kind.name()));
        }
        match self {
            Payload::Raw(payload) => payload
                .signing_input(wallet.curve())
                .map(drop)
                .map_err(|fault| fault.under(kind.name())),
            Payload::Evm(_) | Payload::Solana(_) => Ok(()),
        }
    }

    /// Checks what depends on configuration: a custom EVM chain needs `gasFee` and `nonce`.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn screen(&self, known: &KnownChains) -> Result<(), Fault> {
        let Payload::Evm(evm::EvmPayload::Transaction(transaction)) = self else {
            return Ok(());
        };
        if known.contains(transaction.chain_id) {
            return Ok(());
        }
        let missing = match (&transaction.gas, transaction.nonce) {
            (None, _) => "gasFee",
            (Some(_), None) => "nonce",
            (Some(_), Some(_)) => return Ok(()),
        };
        let problem = format!(
            "is required: {} is a custom chain, which Covault cannot ask",
            transaction.chain_id
        );
        Err(Fault::field(missing, problem).under(self.kind()))
    }

    /// Whether this kind may be broadcast at all: messages, `rawMessage` and transactions of
    /// custom EVM chains never are.
    pub fn may_broadcast(&self, known: &KnownChains) -> bool {
        match self {
            Payload::Evm(evm::EvmPayload::Transaction(transaction)) => {
                known.contains(transaction.chain_id)
            }
            Payload::Solana(solana::SolanaPayload::SendNative(_)) => true,
            Payload::Evm(evm::EvmPayload::Message(_))
            | Payload::Solana(solana::SolanaPayload::Message(_))
            | Payload::Raw(_) => false,
        }
    }

    /// The chain id that the payload names, where its kind has one.
    pub fn chain_id(&self) -> Option<u64> {
        match self {
            Payload::Evm(evm::EvmPayload::Transaction(transaction)) => Some(transaction.chain_id),
            Payload::Evm(evm::EvmPayload::Message(message)) => message.chain_id,
            Payload::Solana(solana::SolanaPayload::SendNative(send)) => {
                Some(send.cluster.chain_id())
            }
            Payload::Solana(solana::SolanaPayload::Message(_)) | Payload::Raw(_) => None,
        }
    }

    /// What a signature over the payload lets leave a wallet of the network `wallet`.
    pub fn outflow(&self, wallet: Network) -> Outflow {
        match self {
            Payload::Evm(payload) => payload.outflow(),
            Payload::Solana(payload) => payload.outflow(),
            Payload::Raw(_) => Outflow {
                nature: Nature::Raw,
                place: Place::network(wallet),
                spends: Vec::new(),
            },
        }
    }

    /// The payload as a response shows it: canonical addresses, message `type` as decided.
    pub fn echo(&self) -> WireEcho {
        kind::echo(self.to_wire())
    }
}

/// What a wire payload turned out to be, once its shape was checked.
enum Shape {
    /// A payload that can be signed.
    Built(Payload),
    /// A well-formed payload of a kind that is not built: what is missing.
    NotBuilt(&'static str),
}

impl Shape {
    /// The one exhaustive match over the kinds: a new one does not compile until it is here.
    fn of(kind: &WireKind) -> Result<Self, Fault> {
        use solana::Cluster::{Solana, SonicSvm};
        const TOKENS: &str = "sending Solana tokens";
        const FOREIGN: &str = "signing Solana transactions made elsewhere";
        const SONIC_TOKENS: &str = "sending Sonic SVM tokens";
        const SONIC_FOREIGN: &str = "signing Sonic SVM transactions made elsewhere";
        let evm = |payload| Self::Built(Payload::Evm(payload));
        let solana = |payload| Self::Built(Payload::Solana(payload));
        let not_built = |what| move |()| Self::NotBuilt(what);
        match kind {
            WireKind::EvmSendNative(wire) => evm::send_native(wire).map(evm),
            WireKind::EvmSendErc20(wire) => evm::send_erc20(wire).map(evm),
            WireKind::EvmSendCustom(wire) => evm::send_custom(wire).map(evm),
            WireKind::EvmMessage(wire) => evm::message(wire).map(evm),
            WireKind::SolanaSendNative(wire) => solana::send_native(Solana, wire).map(solana),
            WireKind::SonicSvmSendNative(wire) => solana::send_native(SonicSvm, wire).map(solana),
            WireKind::SolanaMessage(wire) => solana::message(wire).map(solana),
            WireKind::RawMessage(wire) => {
                raw::message(wire).map(|payload| Self::Built(Payload::Raw(payload)))
            }
            WireKind::SolanaSendSplToken(wire) => {
                solana::send_token(Solana, wire).map(not_built(TOKENS))
            }
            WireKind::SolanaSendCustom(wire) => {
                solana::send_custom(Solana, wire).map(not_built(FOREIGN))
            }
            WireKind::SonicSvmSendSplToken(wire) => {
                solana::send_token(SonicSvm, wire).map(not_built(SONIC_TOKENS))
            }
            WireKind::SonicSvmSendCustom(wire) => {
                solana::send_custom(SonicSvm, wire).map(not_built(SONIC_FOREIGN))
            }
            WireKind::BtcSendNative(wire) => bitcoin::send_native(wire).map(not_built("Bitcoin")),
            WireKind::TronSendNative(wire) => tron::send_native(wire).map(not_built("Tron")),
            WireKind::TronSendTrc10(wire) => tron::send_trc10(wire).map(not_built("Tron")),
            WireKind::TronSendTrc20(wire) => tron::send_trc20(wire).map(not_built("Tron")),
            WireKind::AptosSendNative(wire) => aptos::send_native(wire).map(not_built("Aptos")),
            WireKind::AptosSendCoin(wire) => aptos::send_coin(wire).map(not_built("Aptos")),
            WireKind::AptosSendCustom(wire) => aptos::send_custom(wire).map(not_built("Aptos")),
            WireKind::AptosMessage(wire) => aptos::message(wire).map(not_built("Aptos")),
            WireKind::SuiSendNative(wire) => sui::send_native(wire).map(not_built("Sui")),
            WireKind::SuiSendCoin(wire) => sui::send_coin(wire).map(not_built("Sui")),
            WireKind::SuiSendCustom(wire) => sui::send_custom(wire).map(not_built("Sui")),
            WireKind::SuiMessage(wire) => sui::message(wire).map(not_built("Sui")),
            WireKind::TonSendNative(wire) => ton::send_native(wire).map(not_built("TON")),
            WireKind::TonSendToken(wire) => ton::send_token(wire).map(not_built("TON")),
            WireKind::TonSendCustom(wire) => ton::send_custom(wire).map(not_built("TON")),
            WireKind::TonMessage(wire) => ton::message(wire).map(not_built("TON")),
            WireKind::StellarSendNative(wire) => {
                stellar::send_native(wire).map(not_built("Stellar"))
            }
            WireKind::StellarSendAsset(wire) => stellar::send_asset(wire).map(not_built("Stellar")),
            WireKind::StellarSendCustom(wire) => {
                stellar::send_custom(wire).map(not_built("Stellar"))
            }
            WireKind::StellarChangeTrust(wire) => {
                stellar::change_trust(wire).map(not_built("Stellar"))
            }
        }
    }
}
