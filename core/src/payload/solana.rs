//! Solana and Sonic SVM payload kinds. Built: sending the native coin, messages. The others are
//! checked in shape and refused.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{
    Family, Kind, WireKind,
    field::{amount, decimals, default_type, not_built, required},
    outflow::{Asset, Nature, Outflow, Place, Spend},
};
use crate::{
    amount::{U256, parse_u64},
    chain::solana::{is_transaction_message, parse_key},
    fault::Fault,
    network::Network,
    schema::wire,
};

/// Transactions of one solanaSendCustom.
const MAX_TRANSACTIONS: usize = 5;

/// Which network of the family. Testnets are not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// Solana mainnet.
    Solana,
    /// Sonic SVM mainnet.
    SonicSvm,
}

impl Cluster {
    /// The chain id of the API: 101 and 0.
    pub fn chain_id(self) -> u64 {
        match self {
            Cluster::Solana => 101,
            Cluster::SonicSvm => 0,
        }
    }
}

/// A checked Solana payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SolanaPayload {
    /// `solanaSendNative` and `sonicSvmSendNative`.
    SendNative(SendNative),
    /// `solanaMessage`.
    Message(SolanaMessage),
}

/// A transfer of the native coin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendNative {
    /// The network.
    pub cluster: Cluster,
    /// Sender and fee payer, base58.
    pub from: String,
    /// Recipient, base58.
    pub to: String,
    /// Amount.
    pub lamports: u64,
}

/// A message that is signed as it is (the wallet standard's `solana:signMessage`). It is not a
/// transaction message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SolanaMessage {
    /// Signer, base58.
    pub from: String,
    /// What is signed; may be empty.
    pub content: Vec<u8>,
}

/// Parses a solanaSendNative or sonicSvmSendNative.
pub(super) fn send_native(
    cluster: Cluster,
    wire: &wire::SolanaSendNative,
) -> Result<SolanaPayload, Fault> {
    chain_id(cluster, wire.chain_id)?;
    Ok(SolanaPayload::SendNative(SendNative {
        cluster,
        from: address("from", &wire.from)?,
        to: address("to", &wire.to)?,
        lamports: amount("value", &wire.value, parse_u64)?,
    }))
}

/// Parses a solanaMessage.
pub(super) fn message(wire: &wire::SolanaMessage) -> Result<SolanaPayload, Fault> {
    let from = address("from", &wire.from)?;
    default_type(wire.r#type)?;
    if is_transaction_message(&wire.content) {
        return Err(Fault::field(
            "content",
            "is a transaction message; signing it would sign the transaction: use solanaSendNative, solanaSendSplToken or solanaSendCustom",
        ));
    }
    Ok(SolanaPayload::Message(SolanaMessage {
        from,
        content: wire.content.clone(),
    }))
}

/// Checks a solanaSendSplToken or sonicSvmSendSplToken.
fn check_send_token(cluster: Cluster, wire: &wire::SolanaSendSplToken) -> Result<(), Fault> {
    chain_id(cluster, wire.chain_id)?;
    address("from", &wire.from)?;
    address("to", &wire.to)?;
    address("mintAddress", &wire.mint_address)?;
    amount("amount", &wire.amount, parse_u64)?;
    decimals(wire.decimals)
}

/// Checks a solanaSendCustom or sonicSvmSendCustom.
fn check_send_custom(cluster: Cluster, wire: &wire::SolanaSendCustom) -> Result<(), Fault> {
    chain_id(cluster, wire.chain_id)?;
    address("from", &wire.from)?;
    if !(1..=MAX_TRANSACTIONS).contains(&wire.tx_base64.len()) {
        return Err(Fault::field(
            "txBase64",
            format_args!("must hold 1 to {MAX_TRANSACTIONS} transactions"),
        ));
    }
    for (index, text) in wire.tx_base64.iter().enumerate() {
        let name = format!("txBase64[{index}]");
        required(&name, text)?;
        STANDARD
            .decode(text)
            .map_err(|_| Fault::field(&name, "must be base64 with padding"))?;
    }
    Ok(())
}

impl Family for SolanaPayload {
    /// Nothing that is signed tells Solana from Sonic SVM (a blockhash is just a number to who
    /// has not seen the chain), so their coins count as one.
    fn outflow(&self, _wallet: Network) -> Outflow {
        let place = Place::network(Network::Solana);
        let (nature, spends) = match self {
            SolanaPayload::SendNative(send) => {
                let spend = Spend {
                    asset: Asset::coin(place),
                    amount: U256::from(send.lamports),
                    recipient: Some(send.to.clone()),
                };
                (Nature::Transfer, vec![spend])
            }
            SolanaPayload::Message(_) => (Nature::Message, Vec::new()),
        };
        Outflow {
            nature,
            place,
            spends,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            SolanaPayload::SendNative(send) => match send.cluster {
                Cluster::Solana => Kind::SolanaSendNative,
                Cluster::SonicSvm => Kind::SonicSvmSendNative,
            },
            SolanaPayload::Message(_) => Kind::SolanaMessage,
        }
    }

    fn from(&self) -> &str {
        match self {
            SolanaPayload::SendNative(send) => &send.from,
            SolanaPayload::Message(message) => &message.from,
        }
    }

    fn chain_id(&self) -> Option<u64> {
        match self {
            SolanaPayload::SendNative(send) => Some(send.cluster.chain_id()),
            SolanaPayload::Message(_) => None,
        }
    }

    fn is_transaction(&self) -> bool {
        !matches!(self, SolanaPayload::Message(_))
    }

    fn to_wire(&self) -> WireKind {
        match self {
            SolanaPayload::SendNative(send) => {
                let wire = wire::SolanaSendNative {
                    from: send.from.clone(),
                    to: send.to.clone(),
                    value: send.lamports.to_string(),
                    chain_id: send.cluster.chain_id(),
                };
                match send.cluster {
                    Cluster::Solana => WireKind::SolanaSendNative(wire),
                    Cluster::SonicSvm => WireKind::SonicSvmSendNative(wire),
                }
            }
            SolanaPayload::Message(message) => WireKind::SolanaMessage(wire::SolanaMessage {
                from: message.from.clone(),
                r#type: wire::solana_message::Type::Default.into(),
                content: message.content.clone(),
            }),
        }
    }
}

/// 0 is also what the wire shows when the field is left out, which means the kind's own network.
fn chain_id(cluster: Cluster, given: u64) -> Result<(), Fault> {
    if given == 0 || given == cluster.chain_id() {
        return Ok(());
    }
    Err(Fault::field(
        "chainId",
        match cluster {
            Cluster::Solana => "must be 101 (Solana mainnet) or left out",
            Cluster::SonicSvm => "must be 0 (Sonic SVM mainnet) or left out",
        },
    ))
}

fn address(name: &str, text: &str) -> Result<String, Fault> {
    required(name, text)?;
    parse_key(text)
        .map(|key| key.to_string())
        .map_err(|error| Fault::field(name, error))
}

pub(super) fn send_token(
    cluster: Cluster,
    wire: &wire::SolanaSendSplToken,
) -> Result<SolanaPayload, Fault> {
    check_send_token(cluster, wire)?;
    Err(not_built("sending Solana tokens"))
}

pub(super) fn send_custom(
    cluster: Cluster,
    wire: &wire::SolanaSendCustom,
) -> Result<SolanaPayload, Fault> {
    check_send_custom(cluster, wire)?;
    Err(not_built("signing Solana transactions made elsewhere"))
}
