//! Payload kinds: each is parsed once, from its wire message into a checked type.
//!
//! One file per family of networks. A kind whose network is not built yet is still decoded and
//! its shape validated, and is then refused by name.

pub mod evm;
pub mod raw;
pub mod solana;

use crate::{chain::Chain as _, fault::Fault, network::Network, schema::wire};

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

/// Which EVM chains are known: the built-in ones and those that configuration names.
/// Any other chain id is a custom chain (contract section 3).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct KnownChains {
    /// EVM chain ids named by configuration, beside the built-in ones.
    pub configured: std::collections::BTreeSet<u64>,
}

impl Payload {
    /// Checks everything about a payload that does not depend on wallet, configuration or chain.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] with the path of the field, e.g. `evmSendNative.to`, or
    /// a sentence that names the kind when its network is not built.
    pub fn parse(kind: &WireKind) -> Result<Self, Fault> {
        let _ = kind;
        todo!()
    }

    /// Parses the bytes of [`crate::order::SigningOrder::payload`].
    ///
    /// # Errors
    /// As [`Payload::parse`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let _ = bytes;
        todo!()
    }

    /// The bytes for [`crate::order::SigningOrder::payload`]: a `CreateSigningRequestRequest`
    /// that holds the canonical form of the payload kind and nothing else.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }

    /// The sender's address in canonical form.
    pub fn from(&self) -> &str {
        todo!()
    }

    /// The kind's name in JSON, e.g. `evmSendNative`.
    pub fn kind(&self) -> &'static str {
        todo!()
    }

    /// Checks the payload against the wallet it names: network, and for `rawMessage` the curve.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn check_wallet(&self, wallet: Network) -> Result<(), Fault> {
        let _ = wallet;
        todo!()
    }

    /// Checks what depends on configuration: a custom EVM chain needs `gasFee` and `nonce`.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn screen(&self, known: &KnownChains) -> Result<(), Fault> {
        let _ = known;
        todo!()
    }

    /// Whether this kind may be broadcast at all: messages, `rawMessage` and transactions of
    /// custom EVM chains never are.
    pub fn may_broadcast(&self, known: &KnownChains) -> bool {
        let _ = known;
        todo!()
    }

    /// The chain id that the payload names, where its kind has one.
    pub fn chain_id(&self) -> Option<u64> {
        todo!()
    }

    /// The payload as a response shows it: canonical addresses, message `type` as decided.
    pub fn echo(&self) -> WireEcho {
        todo!()
    }
}
