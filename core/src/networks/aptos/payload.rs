//! Aptos and Movement payload kinds: aptosSendNative, aptosSendCoin, aptosSendCustom,
//! aptosMessage.

use std::collections::BTreeSet;

use sui_sdk_types::Address;

use super::{
    address::parse_address,
    call::JsonCall,
    fee_payer::{self, FeePayer},
    move_types::AptosCoin,
    transfers::{CoinTransfer, transfers},
    tx::{EntryFunction, PAYLOAD_AT, RawTransaction},
};
use crate::{
    amount::{U256, parse_u64},
    fault::Fault,
    field::{amount, default_type, optional_amount, required, required_bytes},
    networks::{
        fee_level::FeeLevel,
        network::Network,
        payload::{
            NetworkPayload, PayloadKind, WireKind, opaque,
            outflow::{AccountChange, Asset, ChainScope, ContentKind, Outflow, Spend},
        },
    },
    schema::wire,
};

/// Aptos and Movement mainnet; testnets are not supported.
pub(crate) const CHAIN_IDS: [u8; 2] = [1, 126];

/// A checked Aptos payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AptosPayload {
    /// Any kind that makes a transaction.
    Transaction(Box<AptosTransaction>),
    /// `aptosMessage`.
    Message(AptosMessage),
}

/// A transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AptosTransaction {
    /// 1 for Aptos, 126 for Movement.
    pub chain_id: u8,
    /// Sender or fee payer, canonical.
    pub from: String,
    /// What it does.
    pub action: AptosAction,
    /// The most units of gas, where the request says; more than 0.
    pub max_gas_amount: Option<u64>,
    /// octa per unit of gas, where the request says.
    pub gas_unit_price: Option<u64>,
    /// The account's number, where the request says.
    pub sequence_number: Option<u64>,
    /// When it becomes void, where the request says: seconds since the Unix epoch.
    pub expiration_timestamp_secs: Option<u64>,
    /// How soon a block should have it, where the request says: never beside a price.
    pub level: Option<FeeLevel>,
    /// Who pays, where that is not the sender: of [`AptosAction::Raw`].
    pub fee_payer: Option<FeePayer>,
}

/// What a request says of a transaction beside what it does.
#[derive(Clone, Copy, Default)]
struct TransactionTerms<'a> {
    gas: Option<&'a wire::AptosGas>,
    sequence_number: Option<u64>,
    expiration_timestamp_secs: Option<u64>,
}

/// What a transaction does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AptosAction {
    /// Sends the chain's coin.
    SendNative {
        /// Recipient.
        to: Address,
        /// Amount.
        octas: u64,
    },
    /// Sends a coin or fungible asset.
    SendCoin {
        /// Recipient.
        to: Address,
        /// Of what.
        coin: AptosCoin,
        /// In its smallest unit.
        amount: u64,
    },
    /// Calls an entry function, with arguments in JSON.
    Call(JsonCall),
    /// A whole transaction, of this sender and chain: gas and sequence number are its own.
    Raw(RawTransaction),
}

/// A message of the wallet standard (`aptos:signMessage`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AptosMessage {
    /// Signer, canonical.
    pub from: String,
    /// Whether the message says the address.
    pub with_address: bool,
    /// The application that asks, where the message says it; one line, not empty.
    pub application: Option<String>,
    /// The chain, where the message says it.
    pub chain_id: Option<u8>,
    /// The text; may be empty and have several lines.
    pub message: String,
    /// Against replays; one line.
    pub nonce: String,
}

impl AptosMessage {
    /// What is signed, in UTF-8. It begins with text, and every transaction with the hash of its
    /// type's name: no message can be one.
    pub fn full_message(&self) -> String {
        let chain_id = self.chain_id.map(|id| id.to_string());
        let lines = [
            ("address", self.with_address.then_some(self.from.as_str())),
            ("application", self.application.as_deref()),
            ("chainId", chain_id.as_deref()),
            ("message", Some(self.message.as_str())),
            ("nonce", Some(self.nonce.as_str())),
        ];
        let mut full = String::from("APTOS");
        for (name, text) in lines {
            if let Some(text) = text {
                full.extend(["\n", name, ": ", text]);
            }
        }
        full
    }
}

/// Parses an aptosSendNative.
pub(in crate::networks) fn send_native(
    wire: &wire::AptosSendNative,
) -> Result<AptosPayload, Fault> {
    let terms = TransactionTerms {
        gas: wire.gas_fee.as_ref(),
        sequence_number: wire.sequence_number,
        expiration_timestamp_secs: wire.expiration_timestamp_secs,
    };
    transaction(wire.chain_id, &wire.from, terms, |_, _| {
        Ok(AptosAction::SendNative {
            to: address("to", &wire.to)?,
            octas: amount("value", &wire.value, parse_u64)?,
        })
    })
}

/// Parses an aptosSendCoin.
pub(in crate::networks) fn send_coin(wire: &wire::AptosSendCoin) -> Result<AptosPayload, Fault> {
    let terms = TransactionTerms {
        gas: wire.gas_fee.as_ref(),
        sequence_number: wire.sequence_number,
        expiration_timestamp_secs: wire.expiration_timestamp_secs,
    };
    transaction(wire.chain_id, &wire.from, terms, |_, _| {
        Ok(AptosAction::SendCoin {
            to: address("to", &wire.to)?,
            coin: AptosCoin::parse(required("coinTag", &wire.coin_tag)?)
                .map_err(|error| Fault::field("coinTag", error))?,
            amount: amount("amount", &wire.amount, parse_u64)?,
        })
    })
}

/// Parses an aptosSendCustom.
pub(in crate::networks) fn send_custom(
    wire: &wire::AptosSendCustom,
) -> Result<AptosPayload, Fault> {
    let terms = TransactionTerms {
        gas: wire.gas_fee.as_ref(),
        sequence_number: wire.sequence_number,
        expiration_timestamp_secs: wire.expiration_timestamp_secs,
    };
    let mut fee_payer = None;
    let mut parsed = transaction(wire.chain_id, &wire.from, terms, |chain_id, from| {
        required_bytes("payload", &wire.payload)?;
        let pays = fee_payer::named(wire).is_some_and(|payer| parse_address(payer) == Ok(from));
        let action = custom(&wire.payload, chain_id, from, pays)?;
        let raw = match &action {
            AptosAction::Raw(raw) => Some(raw),
            _ => None,
        };
        fee_payer = FeePayer::parse(wire, from, raw)?;
        Ok(action)
    })?;
    if let AptosPayload::Transaction(transaction) = &mut parsed {
        transaction.fee_payer = fee_payer;
    }
    Ok(parsed)
}

/// JSON begins with `{`. So does the BCS of one sender in 256, but it has a control character
/// where the payload's variant stands, and JSON has none anywhere.
/// With `pays`, `from` pays the fee of any sender.
fn custom(payload: &[u8], chain_id: u8, from: Address, pays: bool) -> Result<AptosAction, Fault> {
    if payload.starts_with(b"{") && !matches!(payload.get(PAYLOAD_AT), Some(0..=8)) {
        let json = std::str::from_utf8(payload)
            .map_err(|_| Fault::field("payload", "must be JSON in UTF-8, or BCS"))?;
        return JsonCall::parse(json).map(AptosAction::Call);
    }
    let raw = RawTransaction::decode(payload).ok_or_else(|| {
        Fault::field(
            "payload",
            "must be a RawTransaction in BCS that calls an entry function, runs a script or acts \
             for a multisig account, or an entry_function_payload in JSON",
        )
    })?;
    if raw.sender != from && !pays {
        return Err(Fault::field("payload.sender", "must be from"));
    }
    if raw.chain_id != chain_id {
        return Err(Fault::field("payload.chain_id", "must be chainId"));
    }
    Ok(AptosAction::Raw(raw))
}

fn transaction(
    chain_id: u64,
    from: &str,
    terms: TransactionTerms<'_>,
    action: impl FnOnce(u8, Address) -> Result<AptosAction, Fault>,
) -> Result<AptosPayload, Fault> {
    let chain_id = known_chain(chain_id)
        .ok_or_else(|| Fault::field("chainId", "must be 1 (Aptos) or 126 (Movement)"))?;
    let from = address("from", from)?;
    let action = action(chain_id, from)?;
    let mut gas = gas(terms.gas)?;
    let (number, end) = (terms.sequence_number, terms.expiration_timestamp_secs);
    // That of transactions without one (AIP-123).
    if number == Some(u64::MAX) {
        return Err(Fault::field("sequenceNumber", "is out of range"));
    }
    if end == Some(0) {
        return Err(Fault::field(
            "expirationTimestampSecs",
            "must be more than 0",
        ));
    }
    if matches!(action, AptosAction::Raw(_)) {
        for (name, given) in [("sequenceNumber", number), ("expirationTimestampSecs", end)] {
            if given.is_some() {
                return Err(Fault::field(
                    name,
                    "cannot be combined with a RawTransaction, which has its own",
                ));
            }
        }
        if gas.level.is_some() {
            let problem = "must not be given: a RawTransaction has a price of its own";
            return Err(Fault::field(LEVEL, problem));
        }
        // It has its own, and nothing else is shown.
        gas = AptosGas::default();
    }
    let AptosGas {
        max_gas_amount,
        gas_unit_price,
        level,
    } = gas;
    Ok(AptosPayload::Transaction(Box::new(AptosTransaction {
        chain_id,
        from: from.to_string(),
        action,
        max_gas_amount,
        gas_unit_price,
        sequence_number: number,
        expiration_timestamp_secs: end,
        level,
        fee_payer: None,
    })))
}

const LEVEL: &str = "gasFee.feeLevel";

/// The fees that a request brings.
#[derive(Default)]
struct AptosGas {
    max_gas_amount: Option<u64>,
    gas_unit_price: Option<u64>,
    level: Option<FeeLevel>,
}

fn gas(wire: Option<&wire::AptosGas>) -> Result<AptosGas, Fault> {
    let Some(wire) = wire else {
        return Ok(AptosGas::default());
    };
    let (limit, price) = ("gasFee.maxGasAmount", "gasFee.gasUnitPrice");
    let max_gas_amount = optional_amount(limit, wire.max_gas_amount.as_deref(), parse_u64)?;
    if max_gas_amount == Some(0) {
        return Err(Fault::field(limit, "must be more than 0"));
    }
    let gas_unit_price = optional_amount(price, wire.gas_unit_price.as_deref(), parse_u64)?;
    let level = FeeLevel::parse(LEVEL, wire.fee_level)?;
    if level.is_some() && gas_unit_price.is_some() {
        let problem =
            "cannot be combined with gasUnitPrice: it leaves the price to the chain's nodes";
        return Err(Fault::field(LEVEL, problem));
    }
    Ok(AptosGas {
        max_gas_amount,
        gas_unit_price,
        level,
    })
}

fn known_chain(id: u64) -> Option<u8> {
    CHAIN_IDS.into_iter().find(|known| u64::from(*known) == id)
}

/// Parses an aptosMessage. An optional field that is empty is left out of the message.
pub(in crate::networks) fn message(wire: &wire::AptosMessage) -> Result<AptosPayload, Fault> {
    let from = address("from", &wire.from)?;
    default_type(wire.r#type)?;
    let content = wire
        .content
        .as_ref()
        .ok_or_else(|| Fault::field("content", "is required"))?;
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let named = given(&content.address);
    if let Some(named) = &named
        && address("content.address", named)? != from
    {
        return Err(Fault::field("content.address", "must be from"));
    }
    let chain_id = content.chain_id.map(|id| {
        u64::try_from(id)
            .ok()
            .and_then(known_chain)
            .ok_or_else(|| Fault::field("content.chainId", "must be 1 (Aptos) or 126 (Movement)"))
    });
    let application = given(&content.application);
    one_line(
        "content.application",
        application.as_deref().unwrap_or_default(),
    )?;
    one_line("content.nonce", &content.nonce)?;
    Ok(AptosPayload::Message(AptosMessage {
        from: from.to_string(),
        with_address: named.is_some(),
        application,
        chain_id: chain_id.transpose()?,
        message: content.message.clone(),
        nonce: content.nonce.clone(),
    }))
}

/// A line break would forge other lines of the message. So would what is taken for one.
fn one_line(name: &str, text: &str) -> Result<(), Fault> {
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    if text.contains(breaks) {
        let problem = "must be one line without control characters";
        return Err(Fault::field(name, problem));
    }
    Ok(())
}

fn address(name: &str, text: &str) -> Result<Address, Fault> {
    required(name, text)?;
    parse_address(text).map_err(|error| Fault::field(name, error))
}

impl NetworkPayload for AptosPayload {
    fn kind(&self) -> PayloadKind {
        match self {
            AptosPayload::Transaction(transaction) => match transaction.action {
                AptosAction::SendNative { .. } => PayloadKind::AptosSendNative,
                AptosAction::SendCoin { .. } => PayloadKind::AptosSendCoin,
                AptosAction::Call(_) | AptosAction::Raw(_) => PayloadKind::AptosSendCustom,
            },
            AptosPayload::Message(_) => PayloadKind::AptosMessage,
        }
    }

    fn from(&self) -> &str {
        match self {
            AptosPayload::Transaction(transaction) => &transaction.from,
            AptosPayload::Message(message) => &message.from,
        }
    }

    fn outflow(&self, _wallet: Network) -> Outflow {
        match self {
            AptosPayload::Transaction(transaction) => transaction.outflow(),
            // What chain the text names binds nobody.
            AptosPayload::Message(message) => opaque::outflow(
                message.message.as_bytes(),
                ChainScope::network(Network::Aptos),
            ),
        }
    }

    fn purpose(&self) -> Option<Vec<u8>> {
        let AptosPayload::Transaction(transaction) = self else {
            return None;
        };
        let AptosTransaction {
            chain_id,
            from,
            action,
            ..
        } = &**transaction;
        let action = match action {
            AptosAction::Raw(raw) => AptosAction::Raw(RawTransaction {
                sequence_number: 0,
                max_gas_amount: 0,
                gas_unit_price: 0,
                expiration_timestamp_secs: 0,
                ..raw.clone()
            }),
            // Its JSON may be written in several ways.
            AptosAction::Call(call) => {
                let purpose = (chain_id, from, &call.target, &call.arguments);
                return Some(format!("{purpose:?}").into_bytes());
            }
            action => action.clone(),
        };
        Some(format!("{chain_id} {from} {action:?}").into_bytes())
    }

    fn account_changes(&self) -> BTreeSet<AccountChange> {
        let AptosPayload::Transaction(transaction) = self else {
            return BTreeSet::new();
        };
        let change = match &transaction.action {
            AptosAction::SendNative { .. } | AptosAction::SendCoin { .. } => None,
            AptosAction::Call(call) => call.target.account_change(),
            // Who pays is no signer in it.
            AptosAction::Raw(_) if !transaction.is_sender() => None,
            AptosAction::Raw(raw) => raw.account_change(),
        };
        change.into_iter().collect()
    }

    fn chain_id(&self) -> Option<u64> {
        match self {
            AptosPayload::Transaction(transaction) => Some(transaction.chain_id.into()),
            AptosPayload::Message(_) => None,
        }
    }

    fn is_transaction(&self) -> bool {
        matches!(self, AptosPayload::Transaction(_))
    }

    fn pays_fee(&self) -> bool {
        match self {
            AptosPayload::Transaction(transaction) => {
                transaction.fee_payer.is_none() || !transaction.is_sender()
            }
            AptosPayload::Message(_) => true,
        }
    }

    fn missing_signer(&self) -> Option<String> {
        let AptosPayload::Transaction(transaction) = self else {
            return None;
        };
        let payer = transaction.fee_payer.as_ref();
        let payer = payer.filter(|payer| payer.other_signature.is_empty())?;
        match &transaction.action {
            AptosAction::Raw(raw) if !transaction.is_sender() => Some(raw.sender.to_string()),
            _ => Some(payer.address.to_string()),
        }
    }

    fn to_wire(&self) -> WireKind {
        match self {
            AptosPayload::Transaction(transaction) => transaction.to_wire(),
            AptosPayload::Message(message) => WireKind::AptosMessage(wire::AptosMessage {
                from: message.from.clone(),
                r#type: wire::aptos_message::Type::Default.into(),
                content: Some(wire::aptos_message::Message {
                    address: message.with_address.then(|| message.from.clone()),
                    application: message.application.clone(),
                    chain_id: message.chain_id.map(i64::from),
                    message: message.message.clone(),
                    nonce: message.nonce.clone(),
                }),
            }),
        }
    }
}

impl AptosTransaction {
    /// Whether it is a transaction of `from`, and not only at its cost.
    fn is_sender(&self) -> bool {
        match &self.action {
            AptosAction::Raw(raw) => raw.sender.to_string() == self.from,
            AptosAction::SendNative { .. }
            | AptosAction::SendCoin { .. }
            | AptosAction::Call(_) => true,
        }
    }

    /// The chain's id is signed.
    fn outflow(&self) -> Outflow {
        let place = ChainScope::aptos(self.chain_id.into());
        let spend = |transfer: CoinTransfer| Spend {
            asset: Asset {
                place,
                token: transfer.asset.map(|metadata| metadata.to_string()),
            },
            amount: U256::from(transfer.amount),
            recipient: Some(transfer.to.to_string()),
        };
        // What is plain to see counts, whatever else a function does.
        let custom = |target: Option<&EntryFunction>, known: Option<&EntryFunction>| {
            let moved: Vec<Spend> = known.into_iter().flat_map(transfers).map(spend).collect();
            if !moved.is_empty() {
                return (ContentKind::Custom, moved);
            }
            let called = target.and_then(EntryFunction::publisher);
            let called = Spend {
                recipient: called.map(|publisher| publisher.to_string()),
                ..Spend::unseen(place)
            };
            if target.is_some_and(EntryFunction::moves_unread_assets) {
                let all = |asset| Spend {
                    asset,
                    amount: U256::MAX,
                    recipient: None,
                };
                let assets = [Asset::coin(place), Asset::some_token(place)];
                return (ContentKind::Custom, assets.map(all).to_vec());
            }
            (ContentKind::Custom, vec![called])
        };
        let (nature, spends) = match &self.action {
            AptosAction::SendNative { to, octas } => {
                let (to, amount) = (*to, *octas);
                let asset = None;
                let moved = spend(CoinTransfer { asset, to, amount });
                (ContentKind::Transfer, vec![moved])
            }
            AptosAction::SendCoin { to, coin, amount } => {
                let (to, amount, asset) = (*to, *amount, coin.metadata());
                let moved = spend(CoinTransfer { asset, to, amount });
                (ContentKind::Transfer, vec![moved])
            }
            AptosAction::Call(call) => custom(Some(&call.target), call.known.as_ref()),
            // Nothing goes from who pays but the fee.
            AptosAction::Raw(_) if !self.is_sender() => (ContentKind::Custom, Vec::new()),
            AptosAction::Raw(raw) => custom(raw.called(), raw.called()),
        };
        Outflow {
            nature,
            place,
            spends,
        }
    }

    fn to_wire(&self) -> WireKind {
        let (chain_id, from) = (self.chain_id.into(), self.from.clone());
        let (limit, price, level) = (self.max_gas_amount, self.gas_unit_price, self.level);
        let (sequence_number, expiration_timestamp_secs) =
            (self.sequence_number, self.expiration_timestamp_secs);
        let is_given = limit.is_some() || price.is_some() || level.is_some();
        let gas_fee = is_given.then(|| wire::AptosGas {
            max_gas_amount: limit.map(|limit| limit.to_string()),
            gas_unit_price: price.map(|price| price.to_string()),
            fee_level: FeeLevel::to_wire(level),
        });
        let payload = match &self.action {
            AptosAction::SendNative { to, octas } => {
                return WireKind::AptosSendNative(wire::AptosSendNative {
                    chain_id,
                    from,
                    to: to.to_string(),
                    value: octas.to_string(),
                    gas_fee,
                    sequence_number,
                    expiration_timestamp_secs,
                });
            }
            AptosAction::SendCoin { to, coin, amount } => {
                return WireKind::AptosSendCoin(wire::AptosSendCoin {
                    chain_id,
                    from,
                    to: to.to_string(),
                    coin_tag: coin.to_string(),
                    amount: amount.to_string(),
                    gas_fee,
                    sequence_number,
                    expiration_timestamp_secs,
                });
            }
            AptosAction::Call(call) => call.json.clone().into_bytes(),
            // It came out of bytes, so it goes into them.
            AptosAction::Raw(raw) => raw.encode().unwrap_or_default(),
        };
        WireKind::AptosSendCustom(wire::AptosSendCustom {
            chain_id,
            from,
            payload,
            gas_fee,
            sequence_number,
            expiration_timestamp_secs,
            fee_payer: self
                .fee_payer
                .as_ref()
                .map(|payer| payer.address.to_string()),
            other_signature: self
                .fee_payer
                .as_ref()
                .map(|payer| payer.other_signature.clone())
                .unwrap_or_default(),
        })
    }
}
