//! TON payload kinds: tonSendNative, tonSendToken, tonSendCustom, tonMessage.

use super::{
    address::{TonAddress, parse_address},
    coins::parse_coins,
    connect::{self, OutMessage},
    jetton,
    message::TonMessageForm,
};
use crate::{
    amount::U256,
    fault::Fault,
    field::{amount, at_most_bytes, decimals, default_type, required, required_bytes},
    networks::{
        network::Network,
        payload::{
            NetworkPayload, PayloadKind, WireKind, opaque,
            outflow::{Asset, ChainScope, ContentKind, Outflow, Spend},
        },
    },
    schema::wire,
};

/// Bytes of a comment in UTF-8 (docs/decisions/0013-ton-comments.md).
const COMMENT_BYTES: usize = 1024;

/// A checked TON payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TonPayload {
    /// `tonSendNative`.
    SendNative(TonTransfer),
    /// `tonSendToken`.
    SendToken(JettonTransfer),
    /// `tonSendCustom`.
    SendCustom(TonCustom),
    /// `tonMessage`.
    Message(TonMessage),
}

/// A transfer of TON.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TonTransfer {
    /// Sender, `UQ...`.
    pub from: String,
    /// Recipient.
    pub to: TonAddress,
    /// nanoton, up to 2^120 - 1.
    pub value: u128,
    /// What the recipient reads; may be empty.
    pub comment: String,
}

/// A transfer of a jetton (TEP-74).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JettonTransfer {
    /// Sender, `UQ...`.
    pub from: String,
    /// Owner of the jetton wallet that receives.
    pub to: TonAddress,
    /// The jetton's master contract.
    pub master: TonAddress,
    /// In the jetton's smallest unit, up to 2^120 - 1.
    pub amount: u128,
    /// What the recipient reads; may be empty.
    pub comment: String,
    /// The jetton's decimals, to be compared with the chain's.
    pub decimals: Option<u8>,
}

/// Messages that the client made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TonCustom {
    /// Sender, `UQ...`.
    pub from: String,
    /// As it came: JSON or a bag of cells.
    pub payload: Vec<u8>,
    /// Until when it is good, in seconds since the Unix epoch, where the payload says it.
    pub valid_until: Option<u32>,
    /// 1 to 255; an older wallet (v4r2) sends at most 4.
    pub messages: Vec<OutMessage>,
}

/// A message. It cannot be taken for a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TonMessage {
    /// Signer, `UQ...`.
    pub from: String,
    /// The content as it came.
    pub content: Vec<u8>,
    /// How it is signed.
    pub form: TonMessageForm,
    /// The domain that it is signed for, where the content says it.
    pub domain: Option<String>,
    /// When it was signed, in seconds since the Unix epoch, where the content says it.
    pub timestamp: Option<u64>,
}

/// Parses a tonSendNative.
pub(in crate::networks) fn send_native(wire: &wire::TonSendNative) -> Result<TonPayload, Fault> {
    let from = address("from", &wire.from)?;
    let to = address("to", &wire.to)?;
    let value = amount("value", &wire.value, parse_coins)?;
    at_most_bytes("comment", &wire.comment, COMMENT_BYTES)?;
    Ok(TonPayload::SendNative(TonTransfer {
        from: from.wallet_form(),
        to,
        value,
        comment: wire.comment.clone(),
    }))
}

/// Parses a tonSendToken.
pub(in crate::networks) fn send_token(wire: &wire::TonSendToken) -> Result<TonPayload, Fault> {
    let from = address("from", &wire.from)?;
    let to = address("to", &wire.to)?;
    let master = address("mintAddress", &wire.mint_address)?;
    let amount = amount("amount", &wire.amount, parse_coins)?;
    at_most_bytes("comment", &wire.comment, COMMENT_BYTES)?;
    decimals(wire.decimals)?;
    Ok(TonPayload::SendToken(JettonTransfer {
        from: from.wallet_form(),
        to,
        master: TonAddress {
            bounce: true,
            ..master
        },
        amount,
        comment: wire.comment.clone(),
        decimals: wire.decimals.and_then(|decimals| decimals.try_into().ok()),
    }))
}

/// Parses a tonSendCustom.
pub(in crate::networks) fn send_custom(wire: &wire::TonSendCustom) -> Result<TonPayload, Fault> {
    let from = address("from", &wire.from)?;
    required_bytes("payload", &wire.payload)?;
    let request = connect::transaction(&wire.payload, &from)?;
    Ok(TonPayload::SendCustom(TonCustom {
        from: from.wallet_form(),
        payload: wire.payload.clone(),
        valid_until: request.valid_until,
        messages: request.messages,
    }))
}

/// Parses a tonMessage.
pub(in crate::networks) fn message(wire: &wire::TonMessage) -> Result<TonPayload, Fault> {
    let from = address("from", &wire.from)?;
    default_type(wire.r#type)?;
    let content = connect::content(&wire.content, &from)?;
    Ok(TonPayload::Message(TonMessage {
        from: from.wallet_form(),
        content: wire.content.clone(),
        form: content.form,
        domain: content.domain,
        timestamp: content.timestamp,
    }))
}

impl NetworkPayload for TonPayload {
    /// A signature is good on every TON network (v4r2 says nothing of it), so all of TON is one
    /// place.
    ///
    /// A jetton transfer is signed as an order to the sender's jetton wallet, which is one of the
    /// facts: of which jetton it is only the chain can tell. So it is a call whose contract is not
    /// named here, and the coin that pays for it goes nobody knows where.
    fn outflow(&self, _wallet: Network) -> Outflow {
        let place = ChainScope::network(Network::Ton);
        let coin = |amount: u128, to: Option<&TonAddress>| Spend {
            asset: Asset::coin(place),
            amount: U256::from(amount),
            recipient: to.map(TonAddress::wallet_form),
        };
        let (nature, spends) = match self {
            TonPayload::SendNative(send) => (
                ContentKind::Transfer,
                vec![coin(send.value, Some(&send.to))],
            ),
            TonPayload::SendToken(send) => {
                let token = Spend {
                    asset: Asset {
                        place,
                        token: Some(send.master.contract_form()),
                    },
                    amount: U256::from(send.amount),
                    recipient: Some(send.to.wallet_form()),
                };
                (
                    ContentKind::Custom,
                    vec![coin(jetton::ATTACHED, None), token],
                )
            }
            TonPayload::SendCustom(send) => {
                let spends = send
                    .messages
                    .iter()
                    .map(|message| coin(message.value, Some(&message.to)))
                    .collect();
                let nature = match send.messages.iter().all(|message| message.is_plain) {
                    true => ContentKind::Transfer,
                    false => ContentKind::Custom,
                };
                (nature, spends)
            }
            TonPayload::Message(message) => {
                let outflow = match &message.form {
                    TonMessageForm::Text(text) => opaque::outflow(text.as_bytes(), place),
                    TonMessageForm::Binary(bytes) => opaque::outflow(bytes, place),
                    // Its payload is a value that a service has drawn, and no contract reads it.
                    TonMessageForm::Proof { .. } => Outflow::of_text(place),
                    TonMessageForm::Cell { .. } | TonMessageForm::SafeSign { .. } => {
                        Outflow::of_typed_data(place)
                    }
                };
                (outflow.nature, outflow.spends)
            }
        };
        Outflow {
            nature,
            place,
            spends,
        }
    }

    fn purpose(&self) -> Option<Vec<u8>> {
        match self {
            TonPayload::SendNative(send) => {
                let purpose = (send.to.wallet_form(), send.value, &send.comment);
                Some(format!("{purpose:?}").into_bytes())
            }
            TonPayload::SendToken(send) => {
                let (to, master) = (send.to.wallet_form(), send.master.contract_form());
                let purpose = (to, master, send.amount, &send.comment);
                Some(format!("{purpose:?}").into_bytes())
            }
            TonPayload::SendCustom(send) => Some(format!("{:?}", send.messages).into_bytes()),
            TonPayload::Message(_) => None,
        }
    }

    fn kind(&self) -> PayloadKind {
        match self {
            TonPayload::SendNative(_) => PayloadKind::TonSendNative,
            TonPayload::SendToken(_) => PayloadKind::TonSendToken,
            TonPayload::SendCustom(_) => PayloadKind::TonSendCustom,
            TonPayload::Message(_) => PayloadKind::TonMessage,
        }
    }

    fn from(&self) -> &str {
        match self {
            TonPayload::SendNative(send) => &send.from,
            TonPayload::SendToken(send) => &send.from,
            TonPayload::SendCustom(send) => &send.from,
            TonPayload::Message(message) => &message.from,
        }
    }

    fn chain_id(&self) -> Option<u64> {
        None
    }

    fn is_transaction(&self) -> bool {
        !matches!(self, TonPayload::Message(_))
    }

    fn to_wire(&self) -> WireKind {
        match self {
            TonPayload::SendNative(send) => WireKind::TonSendNative(wire::TonSendNative {
                from: send.from.clone(),
                to: send.to.to_string(),
                value: send.value.to_string(),
                comment: send.comment.clone(),
            }),
            TonPayload::SendToken(send) => WireKind::TonSendToken(wire::TonSendToken {
                from: send.from.clone(),
                to: send.to.to_string(),
                mint_address: send.master.to_string(),
                amount: send.amount.to_string(),
                comment: send.comment.clone(),
                decimals: send.decimals.map(Into::into),
            }),
            TonPayload::SendCustom(send) => WireKind::TonSendCustom(wire::TonSendCustom {
                from: send.from.clone(),
                payload: send.payload.clone(),
            }),
            TonPayload::Message(message) => WireKind::TonMessage(wire::TonMessage {
                from: message.from.clone(),
                r#type: wire::ton_message::Type::Default.into(),
                content: message.content.clone(),
            }),
        }
    }
}

fn address(name: &str, text: &str) -> Result<TonAddress, Fault> {
    required(name, text)?;
    parse_address(text).map_err(|error| Fault::field(name, error))
}
