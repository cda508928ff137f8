//! Sui payload kinds.

use std::collections::BTreeSet;

use sui_sdk_types::Transaction;

use super::{
    address::{parse_address, parse_coin_type},
    custom::read_custom,
    payment::{GasSettings, MAX_BUDGET, SuiOutput, SuiPayment},
    seen::{VisibleSpend, seen, sets_alias},
    sponsor,
};
use crate::{
    amount::{U256, parse_u64},
    fault::Fault,
    field::{
        amount, default_type, only_recipients, optional_amount, recipients_in_range, required,
        required_bytes,
    },
    networks::{
        network::Network,
        payload::{
            NetworkPayload, PayloadKind, WireKind, opaque,
            outflow::{AccountChange, Asset, ChainScope, ContentKind, Outflow, Spend},
        },
    },
    schema::wire,
};

/// A checked Sui payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuiPayload {
    /// `suiSendNative`, `suiSendCoin`, and the batch payments.
    Payment(SuiPayment),
    /// `suiSendCustom`.
    Custom(SuiCustom),
    /// `suiMessage`.
    Message(SuiMessage),
}

/// A programmable transaction made elsewhere, signed as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuiCustom {
    /// Sender, gas owner or both, `0x` and 64 hex digits.
    pub from: String,
    /// The transaction, BCS `TransactionData`.
    pub bytes: Vec<u8>,
    /// The same, read.
    pub transaction: Box<Transaction>,
    /// Where sender and gas owner are two: the verified signature of the other one, serialized, if it is there.
    pub other_signatures: Vec<Vec<u8>>,
}

impl SuiCustom {
    /// Whether it is a transaction of `from`, and not only at its cost.
    pub(super) fn is_sender(&self) -> bool {
        self.transaction.sender.to_string() == self.from
    }

    /// Whether `from` pays the gas.
    pub(super) fn is_gas_owner(&self) -> bool {
        self.transaction.gas_payment.owner.to_string() == self.from
    }
}

/// A personal message (the wallet standard's `sui:signPersonalMessage`). Its intent byte keeps it
/// from being a transaction, whatever it says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuiMessage {
    /// Signer, `0x` and 64 hex digits.
    pub from: String,
    /// The message; may be empty.
    pub content: Vec<u8>,
}

impl SuiPayment {
    /// The same payment with the gas of a request, for batches, whose messages have none.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming `gasFee.budget` or `gasFee.price`.
    pub fn with_gas(self, gas_fee: Option<&wire::SuiGas>) -> Result<Self, Fault> {
        Ok(Self {
            gas: gas(gas_fee)?,
            ..self
        })
    }
}

/// Parses a suiSendNative.
pub(in crate::networks) fn send_native(wire: &wire::SuiSendNative) -> Result<SuiPayload, Fault> {
    Ok(SuiPayload::Payment(SuiPayment {
        from: address("from", &wire.from)?,
        coin_type: None,
        outputs: one_or_many((&wire.to, "value", &wire.value), &wire.recipients)?,
        gas: gas(wire.gas_fee.as_ref())?,
    }))
}

/// Parses a suiSendCoin.
pub(in crate::networks) fn send_coin(wire: &wire::SuiSendCoin) -> Result<SuiPayload, Fault> {
    Ok(SuiPayload::Payment(SuiPayment {
        from: address("from", &wire.from)?,
        outputs: one_or_many((&wire.to, "amount", &wire.amount), &wire.recipients)?,
        coin_type: Some(coin_type(&wire.coin_tag)?),
        gas: gas(wire.gas_fee.as_ref())?,
    }))
}

/// Parses a suiBatchSendNative: one transaction for all recipients.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] naming the field, relative to the message.
pub fn batch_native(wire: &wire::SuiBatchSendNative) -> Result<SuiPayment, Fault> {
    Ok(SuiPayment {
        from: address("from", &wire.from)?,
        coin_type: None,
        outputs: outputs(&wire.recipients)?,
        gas: GasSettings::default(),
    })
}

/// Parses a suiBatchSendCoin: one transaction for all recipients.
///
/// # Errors
/// As [`batch_native`].
pub fn batch_coin(wire: &wire::SuiBatchSendCoin) -> Result<SuiPayment, Fault> {
    Ok(SuiPayment {
        from: address("from", &wire.from)?,
        coin_type: Some(coin_type(&wire.coin_tag)?),
        outputs: outputs(&wire.recipients)?,
        gas: GasSettings::default(),
    })
}

/// Parses a suiSendCustom: BCS `TransactionData`, or the JSON of @mysten/sui (version 2) of a
/// transaction in which everything is resolved.
pub(in crate::networks) fn send_custom(wire: &wire::SuiSendCustom) -> Result<SuiPayload, Fault> {
    let from = address("from", &wire.from)?;
    required_bytes("payload", &wire.payload)?;
    let (bytes, transaction) = read_custom(&wire.payload)?;
    let signer = parse_address(&from).map_err(Fault::bug)?;
    if transaction.sender != signer {
        if transaction.gas_payment.owner != signer {
            return Err(Fault::field(
                "payload",
                "is not a transaction of `from`: it is neither its sender nor its gas owner",
            ));
        }
        sponsor::check_as_gas_owner(&transaction)?;
    }
    sponsor::check_signatures(&transaction, signer, &wire.other_signatures)?;
    Ok(SuiPayload::Custom(SuiCustom {
        from,
        bytes,
        transaction: Box::new(transaction),
        other_signatures: wire.other_signatures.clone(),
    }))
}

/// Parses a suiMessage.
pub(in crate::networks) fn message(wire: &wire::SuiMessage) -> Result<SuiPayload, Fault> {
    let from = address("from", &wire.from)?;
    default_type(wire.r#type)?;
    Ok(SuiPayload::Message(SuiMessage {
        from,
        content: wire.content.clone(),
    }))
}

impl NetworkPayload for SuiPayload {
    /// Nothing that every transaction binds tells mainnet from a testnet.
    fn outflow(&self, _wallet: Network) -> Outflow {
        let place = ChainScope::network(Network::Sui);
        let asset = |token: Option<&str>| Asset {
            place,
            token: token.map(Into::into),
        };
        let (nature, spends) = match self {
            // The signed bytes do not contain the type of a coin object, but its digest, which covers the type: see
            // `Rules::check_chain_data`.
            SuiPayload::Payment(payment) => {
                let spend = |output: &SuiOutput| Spend {
                    asset: asset(payment.token()),
                    amount: U256::from(output.amount),
                    recipient: Some(output.to.clone()),
                };
                let spends = payment.outputs.iter().map(spend).collect();
                (ContentKind::Transfer, spends)
            }
            SuiPayload::Custom(custom) => {
                let spend = |seen: VisibleSpend| Spend {
                    asset: asset(seen.token.as_deref()),
                    amount: seen.amount,
                    recipient: seen.to,
                };
                // Another one's transaction takes nothing of its gas owner but the fee.
                let seen = match custom.is_sender() {
                    true => seen(&custom.transaction),
                    false => Vec::new(),
                };
                (ContentKind::Custom, seen.into_iter().map(spend).collect())
            }
            SuiPayload::Message(message) => {
                return opaque::outflow(&message.content, place);
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
            // What it costs and until when it is good stand beside it.
            SuiPayload::Custom(custom) => {
                Some(format!("{:?}", custom.transaction.kind).into_bytes())
            }
            SuiPayload::Payment(_) | SuiPayload::Message(_) => None,
        }
    }

    fn account_changes(&self) -> BTreeSet<AccountChange> {
        match self {
            SuiPayload::Custom(custom) if custom.is_sender() && sets_alias(&custom.transaction) => {
                BTreeSet::from([AccountChange::SuiAddressAlias])
            }
            _ => BTreeSet::new(),
        }
    }

    /// A batch has the kind of its single payment.
    fn kind(&self) -> PayloadKind {
        match self {
            SuiPayload::Payment(payment) => match payment.coin_type {
                None => PayloadKind::SuiSendNative,
                Some(_) => PayloadKind::SuiSendCoin,
            },
            SuiPayload::Custom(_) => PayloadKind::SuiSendCustom,
            SuiPayload::Message(_) => PayloadKind::SuiMessage,
        }
    }

    fn from(&self) -> &str {
        match self {
            SuiPayload::Payment(payment) => &payment.from,
            SuiPayload::Custom(custom) => &custom.from,
            SuiPayload::Message(message) => &message.from,
        }
    }

    fn chain_id(&self) -> Option<u64> {
        None
    }

    fn is_transaction(&self) -> bool {
        !matches!(self, SuiPayload::Message(_))
    }

    fn pays_fee(&self) -> bool {
        match self {
            SuiPayload::Custom(custom) => custom.is_gas_owner(),
            SuiPayload::Payment(_) | SuiPayload::Message(_) => true,
        }
    }

    fn missing_signer(&self) -> Option<String> {
        match self {
            SuiPayload::Custom(custom) if custom.other_signatures.is_empty() => {
                let from = parse_address(&custom.from).ok()?;
                sponsor::other(&custom.transaction, from).map(|other| other.to_string())
            }
            _ => None,
        }
    }

    fn to_wire(&self) -> WireKind {
        match self {
            SuiPayload::Payment(payment) => payment.to_wire(),
            SuiPayload::Custom(custom) => WireKind::SuiSendCustom(wire::SuiSendCustom {
                from: custom.from.clone(),
                payload: custom.bytes.clone(),
                other_signatures: custom.other_signatures.clone(),
            }),
            SuiPayload::Message(message) => WireKind::SuiMessage(wire::SuiMessage {
                from: message.from.clone(),
                r#type: wire::sui_message::Type::Default.into(),
                content: message.content.clone(),
            }),
        }
    }
}

impl SuiPayment {
    fn to_wire(&self) -> WireKind {
        let from = self.from.clone();
        let (to, amount, recipients) = match self.outputs.as_slice() {
            [output] => (output.to.clone(), output.amount.to_string(), vec![]),
            several => (
                String::new(),
                String::new(),
                several.iter().map(recipient).collect(),
            ),
        };
        let GasSettings { budget, price } = self.gas;
        let gas_fee = (budget.is_some() || price.is_some()).then(|| wire::SuiGas {
            budget: budget.map(|budget| budget.to_string()),
            price: price.map(|price| price.to_string()),
        });
        match &self.coin_type {
            None => WireKind::SuiSendNative(wire::SuiSendNative {
                from,
                to,
                value: amount,
                gas_fee,
                recipients,
            }),
            Some(coin_type) => WireKind::SuiSendCoin(wire::SuiSendCoin {
                from,
                to,
                coin_tag: coin_type.clone(),
                amount,
                gas_fee,
                recipients,
            }),
        }
    }
}

fn address(name: &str, text: &str) -> Result<String, Fault> {
    required(name, text)?;
    parse_address(text)
        .map(|address| address.to_string())
        .map_err(|error| Fault::field(name, error))
}

fn coin_type(text: &str) -> Result<String, Fault> {
    required("coinTag", text)?;
    parse_coin_type(text)
        .map(|coin| coin.to_string())
        .map_err(|error| Fault::field("coinTag", error))
}

fn gas(gas: Option<&wire::SuiGas>) -> Result<GasSettings, Fault> {
    let Some(gas) = gas else {
        return Ok(GasSettings::default());
    };
    let more_than_zero =
        |name: &str, text: Option<&str>| match optional_amount(name, text, parse_u64)? {
            Some(0) => Err(Fault::field(name, "must be more than 0")),
            value => Ok(value),
        };
    let budget = more_than_zero("gasFee.budget", gas.budget.as_deref())?;
    if budget.is_some_and(|budget| budget > MAX_BUDGET) {
        return Err(Fault::field(
            "gasFee.budget",
            format_args!("must be at most {MAX_BUDGET} MIST, the network's limit"),
        ));
    }
    let price = more_than_zero("gasFee.price", gas.price.as_deref())?;
    Ok(GasSettings { budget, price })
}

fn recipient(output: &SuiOutput) -> wire::BatchPaymentRecipient {
    wire::BatchPaymentRecipient {
        address: output.to.clone(),
        amount: output.amount.to_string(),
        notes: None,
    }
}

/// A single recipient with the name of its amount's field, or several.
fn one_or_many(
    (to, name, text): (&str, &str, &str),
    recipients: &[wire::BatchPaymentRecipient],
) -> Result<Vec<SuiOutput>, Fault> {
    if recipients.is_empty() {
        let to = address("to", to)?;
        let amount = amount(name, text, parse_u64)?;
        return Ok(vec![SuiOutput { to, amount }]);
    }
    only_recipients(&[("to", to), (name, text)], recipients)?;
    outputs(recipients)
}

fn outputs(recipients: &[wire::BatchPaymentRecipient]) -> Result<Vec<SuiOutput>, Fault> {
    recipients_in_range(recipients.len())?;
    let mut total: u64 = 0;
    let mut outputs = Vec::with_capacity(recipients.len());
    for (index, recipient) in recipients.iter().enumerate() {
        let name = |field: &str| format!("recipients[{index}].{field}");
        let to = address(&name("address"), &recipient.address)?;
        let amount = amount(&name("amount"), &recipient.amount, parse_u64)?;
        if amount == 0 {
            return Err(Fault::field(name("amount"), "must be more than 0"));
        }
        total = total
            .checked_add(amount)
            .ok_or_else(|| Fault::field("recipients", "total exceeds 64 bits"))?;
        outputs.push(SuiOutput { to, amount });
    }
    Ok(outputs)
}
