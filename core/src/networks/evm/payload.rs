//! EVM payload kinds: evmSendNative, evmSendErc20, evmSendCustom, evmMessage.

use std::collections::BTreeSet;

use alloy_primitives::{Address, B256, U256, eip191_hash_message};

use super::{
    action::{EvmAction, call, intrinsic_gas},
    address::parse_address,
    chain_data::EvmCall,
    coins::is_coin,
    effect::{self, CallEffect},
    typed_data,
};
use crate::{
    amount::{parse_u64, parse_u128, parse_u256},
    fault::Fault,
    field::{amount, required},
    networks::{
        fee_level::FeeLevel,
        network::Network,
        payload::{
            KnownChains, NetworkPayload, PayloadKind, WireKind, opaque,
            outflow::{AccountChange, Asset, ChainScope, ContentKind, Outflow, Spend},
        },
    },
    schema::wire::{self, evm_message},
};

/// A checked EVM payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvmPayload {
    /// Any kind that makes a transaction.
    Transaction(EvmTransaction),
    /// `evmMessage`.
    Message(EvmMessage),
}

/// A transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EvmTransaction {
    /// The chain (EIP-155), 1 to 2^63 - 1.
    pub chain_id: u64,
    /// Sender, EIP-55.
    pub from: String,
    /// What it does.
    pub action: EvmAction,
    /// Fees, where the request brings them.
    pub gas: Option<EvmGas>,
    /// The sender's nonce, where the request brings one.
    pub nonce: Option<u64>,
}

/// Fees that a request brings, each for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EvmGas {
    /// wei per unit of gas: `maxFeePerGas`, or the gas price of a legacy transaction.
    pub max_fee: Option<u128>,
    /// wei per unit of gas; with `max_fee` alone it is a legacy transaction.
    pub max_priority_fee: Option<u128>,
    /// Units of gas.
    pub gas_limit: Option<u64>,
    /// How soon a block should have it, where the prices are left to the chain's nodes.
    pub level: Option<FeeLevel>,
}

impl EvmGas {
    /// Whether the chain's nodes need not be asked.
    pub(super) fn is_complete(&self) -> bool {
        self.max_fee.is_some() && self.gas_limit.is_some()
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EvmMessage {
    /// The chain, where the request names one. Typed data for another chain is refused.
    pub chain_id: Option<u64>,
    /// Signer, EIP-55.
    pub from: String,
    /// How it is signed.
    pub form: EvmMessageForm,
    /// The content as it came; of typed data only what is signed.
    pub content: Vec<u8>,
    /// What is signed: 32 bytes.
    pub digest: B256,
}

/// How a message is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvmMessageForm {
    /// EIP-191 version 0x45.
    PersonalSign,
    /// EIP-712, `eth_signTypedData_v4`.
    TypedData,
}

/// Parses an evmSendNative.
pub(in crate::networks) fn send_native(wire: &wire::EvmSendNative) -> Result<EvmPayload, Fault> {
    transaction(
        wire.chain_id,
        &wire.from,
        wire.gas_fee.as_ref(),
        wire.nonce,
        || {
            Ok(EvmAction::SendNative {
                to: parse_field("to", &wire.to)?,
                value: amount("value", &wire.value, parse_u256)?,
            })
        },
    )
}

/// Parses an evmSendErc20.
pub(in crate::networks) fn send_erc20(wire: &wire::EvmSendErc20) -> Result<EvmPayload, Fault> {
    transaction(
        wire.chain_id,
        &wire.from,
        wire.gas_fee.as_ref(),
        wire.nonce,
        || {
            let to = parse_field("to", &wire.to)?;
            let token = parse_field("tokenContractAddress", &wire.token_contract_address)?;
            check_token_recipient("to", to, token)?;
            Ok(EvmAction::SendErc20 {
                to,
                token,
                amount: amount("amount", &wire.amount, parse_u256)?,
            })
        },
    )
}

/// Refuses recipients whom nobody gets a token back from: the zero address and the token itself.
pub(crate) fn check_token_recipient(field: &str, to: Address, token: Address) -> Result<(), Fault> {
    if to.is_zero() {
        return Err(Fault::field(field, "must not be the zero address"));
    }
    if to == token {
        return Err(Fault::field(field, "must not be the token's own contract"));
    }
    Ok(())
}

/// Parses an evmSendCustom. An empty `to` creates a contract, which needs init code: without
/// any the value would go to a contract that cannot give it back.
pub(in crate::networks) fn send_custom(wire: &wire::EvmSendCustom) -> Result<EvmPayload, Fault> {
    transaction(
        wire.chain_id,
        &wire.from,
        wire.gas_fee.as_ref(),
        wire.nonce,
        || {
            let to = match wire.to.as_str() {
                "" if wire.input.is_empty() => {
                    return Err(Fault::field(
                        "to",
                        "is required, unless input holds the init code of a new contract",
                    ));
                }
                "" => None,
                text => Some(parse_field("to", text)?),
            };
            Ok(EvmAction::SendCustom {
                to,
                value: amount("value", &wire.value, parse_u256)?,
                input: wire.input.clone(),
            })
        },
    )
}

fn transaction(
    chain_id: u64,
    from: &str,
    gas_fee: Option<&wire::EvmGas>,
    nonce: Option<i64>,
    action: impl FnOnce() -> Result<EvmAction, Fault>,
) -> Result<EvmPayload, Fault> {
    let chain_id = self::chain_id(chain_id)?
        .ok_or_else(|| Fault::field("chainId", "is required, e.g. 1 for Ethereum"))?;
    let from = parse_field("from", from)?.to_checksum(None);
    let action = action()?;
    let gas = gas_fee.map(|wire| gas(wire, &action)).transpose()?;
    let nonce = nonce
        .map(u64::try_from)
        .transpose()
        .map_err(|_| Fault::field("nonce", "must not be negative"))?;
    Ok(EvmPayload::Transaction(EvmTransaction {
        chain_id,
        from,
        action,
        gas,
        nonce,
    }))
}

fn gas(wire: &wire::EvmGas, action: &EvmAction) -> Result<EvmGas, Fault> {
    let price = |name: &'static str, text: &Option<String>| {
        let text = text.as_ref();
        text.map(|text| amount(name, text, parse_u128)).transpose()
    };
    let (limit, level) = ("gasFee.gasLimit", "gasFee.feeLevel");
    let gas = EvmGas {
        max_fee: price("gasFee.maxFee", &wire.max_fee)?,
        max_priority_fee: price("gasFee.maxPriorityFee", &wire.max_priority_fee)?,
        gas_limit: match &wire.gas_limit {
            Some(text) => Some(amount(limit, text, parse_u64)?),
            None => None,
        },
        level: FeeLevel::parse(level, wire.fee_level)?,
    };
    if gas.level.is_some() && (gas.max_fee.is_some() || gas.max_priority_fee.is_some()) {
        let problem =
            "cannot be combined with maxFee or maxPriorityFee: it leaves them to the chain's nodes";
        return Err(Fault::field(level, problem));
    }
    if let (Some(priority), Some(max)) = (gas.max_priority_fee, gas.max_fee)
        && priority > max
    {
        return Err(Fault::field(
            "gasFee.maxPriorityFee",
            "must not be above maxFee",
        ));
    }
    let intrinsic = intrinsic_gas(action);
    if gas.gas_limit.is_some_and(|limit| limit < intrinsic) {
        return Err(Fault::field(
            limit,
            format_args!("must be at least {intrinsic}, the transaction's intrinsic gas"),
        ));
    }
    Ok(gas)
}

/// Parses an evmMessage. An explicit `type` is obeyed; without one, content that looks like
/// typed data is typed data and is never signed as text.
pub(in crate::networks) fn message(wire: &wire::EvmMessage) -> Result<EvmPayload, Fault> {
    let chain_id = chain_id(wire.chain_id)?;
    let from = parse_field("from", &wire.from)?.to_checksum(None);
    let form = match evm_message::Type::try_from(wire.r#type) {
        Ok(evm_message::Type::PersonalSign) => EvmMessageForm::PersonalSign,
        Ok(evm_message::Type::SignTypedData) => EvmMessageForm::TypedData,
        Ok(evm_message::Type::Unspecified) if typed_data::looks_like(&wire.content) => {
            EvmMessageForm::TypedData
        }
        Ok(evm_message::Type::Unspecified) => EvmMessageForm::PersonalSign,
        Err(_) => {
            return Err(Fault::field(
                "type",
                "must be TYPE_PERSONAL_SIGN, TYPE_SIGN_TYPED_DATA or left out",
            ));
        }
    };
    let mut content = wire.content.clone();
    let digest = match form {
        EvmMessageForm::PersonalSign => eip191_hash_message(&content),
        EvmMessageForm::TypedData => {
            let digest = typed_data::signing_hash(&content, chain_id)?;
            if let Some(signed) = typed_data::without_unsigned(&content)? {
                content = signed;
            }
            digest
        }
    };
    Ok(EvmPayload::Message(EvmMessage {
        chain_id,
        from,
        form,
        content,
        digest,
    }))
}

impl NetworkPayload for EvmPayload {
    fn kind(&self) -> PayloadKind {
        match self {
            EvmPayload::Transaction(transaction) => match transaction.action {
                EvmAction::SendNative { .. } => PayloadKind::EvmSendNative,
                EvmAction::SendErc20 { .. } => PayloadKind::EvmSendErc20,
                EvmAction::SendCustom { .. } => PayloadKind::EvmSendCustom,
            },
            EvmPayload::Message(_) => PayloadKind::EvmMessage,
        }
    }

    fn from(&self) -> &str {
        match self {
            EvmPayload::Transaction(transaction) => &transaction.from,
            EvmPayload::Message(message) => &message.from,
        }
    }

    fn outflow(&self, _wallet: Network) -> Outflow {
        match self {
            EvmPayload::Transaction(transaction) => transaction.outflow(),
            EvmPayload::Message(message) => message.outflow(),
        }
    }

    fn purpose(&self) -> Option<Vec<u8>> {
        let EvmPayload::Transaction(transaction) = self else {
            return None;
        };
        let call = call(&transaction.action);
        let purpose = (transaction.chain_id, call.to, call.value, call.data);
        Some(format!("{purpose:?}").into_bytes())
    }

    fn account_changes(&self) -> BTreeSet<AccountChange> {
        let EvmPayload::Transaction(transaction) = self else {
            return BTreeSet::new();
        };
        let adds_proxy = match &transaction.action {
            EvmAction::SendCustom {
                to: Some(to),
                input,
                ..
            } => effect::adds_proxy(transaction.chain_id, *to, input),
            _ => false,
        };
        let change = adds_proxy.then_some(AccountChange::EvmAddProxy);
        change.into_iter().collect()
    }

    fn chain_id(&self) -> Option<u64> {
        match self {
            EvmPayload::Transaction(transaction) => Some(transaction.chain_id),
            EvmPayload::Message(message) => message.chain_id,
        }
    }

    fn is_transaction(&self) -> bool {
        matches!(self, EvmPayload::Transaction(_))
    }

    /// A custom chain cannot be asked: the request has to bring fees and nonce.
    fn screen(&self, known: &KnownChains) -> Result<(), Fault> {
        let EvmPayload::Transaction(transaction) = self else {
            return Ok(());
        };
        if known.contains(transaction.chain_id) {
            return Ok(());
        }
        let missing = match (&transaction.gas, transaction.nonce) {
            (None, _) => "gasFee",
            (Some(gas), _) if gas.max_fee.is_none() => "gasFee.maxFee",
            (Some(gas), _) if gas.gas_limit.is_none() => "gasFee.gasLimit",
            (Some(_), None) => "nonce",
            (Some(_), Some(_)) => return Ok(()),
        };
        let problem = format!(
            "is required: {} is a custom chain, which Covault cannot query",
            transaction.chain_id
        );
        Err(Fault::field(missing, problem))
    }

    fn may_broadcast(&self, known: &KnownChains) -> bool {
        matches!(self, EvmPayload::Transaction(transaction) if known.contains(transaction.chain_id))
    }

    fn to_wire(&self) -> WireKind {
        match self {
            EvmPayload::Transaction(transaction) => transaction.to_wire(),
            EvmPayload::Message(message) => WireKind::EvmMessage(wire::EvmMessage {
                chain_id: message.chain_id.unwrap_or(0),
                from: message.from.clone(),
                r#type: match message.form {
                    EvmMessageForm::PersonalSign => evm_message::Type::PersonalSign,
                    EvmMessageForm::TypedData => evm_message::Type::SignTypedData,
                }
                .into(),
                content: message.content.clone(),
            }),
        }
    }
}

impl EvmPayload {
    /// The call data of a transaction that calls a contract.
    pub fn call_data(&self) -> Option<Vec<u8>> {
        let EvmPayload::Transaction(transaction) = self else {
            return None;
        };
        let call = call(&transaction.action);
        (call.to.is_some() && !call.data.is_empty()).then_some(call.data)
    }

    /// The call by which an evmSendErc20 pays.
    pub fn token_transfer(&self) -> Option<EvmCall> {
        match self {
            EvmPayload::Transaction(EvmTransaction {
                action: action @ EvmAction::SendErc20 { .. },
                ..
            }) => Some(call(action)),
            EvmPayload::Transaction(_) | EvmPayload::Message(_) => None,
        }
    }

    /// Whether nodes are asked neither for gas nor for prices: nobody estimates then whether it passes.
    pub fn brings_gas(&self) -> bool {
        let EvmPayload::Transaction(transaction) = self else {
            return false;
        };
        transaction.gas.as_ref().is_some_and(EvmGas::is_complete)
    }
}

impl EvmMessage {
    /// The chain that the request names is not signed, that of the domain is.
    fn outflow(&self) -> Outflow {
        let everywhere = ChainScope::network(Network::Evm);
        if self.form == EvmMessageForm::PersonalSign {
            return opaque::outflow(&self.content, everywhere);
        }
        let chain = typed_data::domain_chain(&self.content);
        let place = chain.map_or(everywhere, ChainScope::evm);
        match typed_data::permits(&self.content) {
            Some(effects) => Outflow {
                nature: ContentKind::TypedData,
                place,
                spends: Spend::of_effects(place, effects),
            },
            None => Outflow::of_typed_data(place),
        }
    }
}

impl Asset {
    /// The coin, or the token of a contract.
    pub(super) fn of_evm(place: ChainScope, token: Option<Address>) -> Self {
        if token == Some(effect::SOME_TOKEN) {
            return Self::some_token(place);
        }
        let token = token.filter(|token| !is_coin(place.chain_id, token));
        Self {
            place,
            token: token.map(|token| token.to_checksum(None)),
        }
    }
}

impl Spend {
    fn of_effects(place: ChainScope, effects: Vec<CallEffect>) -> Vec<Self> {
        let spend = |effect: CallEffect| Self {
            asset: Asset::of_evm(place, effect.token),
            amount: effect.amount,
            recipient: effect.to.map(|to| to.to_checksum(None)),
        };
        effects.into_iter().map(spend).collect()
    }
}

impl EvmTransaction {
    fn outflow(&self) -> Outflow {
        let place = ChainScope::evm(self.chain_id);
        let coin = |amount: &U256, to: Option<&Address>| Spend {
            asset: Asset::coin(place),
            amount: *amount,
            recipient: to.map(|to| to.to_checksum(None)),
        };
        let tokens = |token: &Address, amount: U256, to: &Address| Spend {
            asset: Asset::of_evm(place, Some(*token)),
            amount,
            recipient: Some(to.to_checksum(None)),
        };
        let (nature, spends) = match &self.action {
            EvmAction::SendNative { to, value } => {
                (ContentKind::Transfer, vec![coin(value, Some(to))])
            }
            EvmAction::SendErc20 { to, token, amount } => {
                (ContentKind::Transfer, vec![tokens(token, *amount, to)])
            }
            EvmAction::SendCustom {
                to: Some(to),
                value,
                input,
            } if input.is_empty() => (ContentKind::Transfer, vec![coin(value, Some(to))]),
            // What is plain to see counts, whatever the contract makes of the rest.
            EvmAction::SendCustom {
                to: Some(to),
                value,
                input,
            } => (
                ContentKind::Custom,
                Spend::of_effects(place, effect::effects(self.chain_id, *to, *value, input)),
            ),
            EvmAction::SendCustom {
                to: None, value, ..
            } => (ContentKind::Custom, vec![coin(value, None)]),
        };
        Outflow {
            nature,
            place,
            spends,
        }
    }

    fn to_wire(&self) -> WireKind {
        let (chain_id, from) = (self.chain_id, self.from.clone());
        let gas_fee = self.gas.as_ref().map(|gas| wire::EvmGas {
            max_fee: gas.max_fee.map(|fee| fee.to_string()),
            max_priority_fee: gas.max_priority_fee.map(|fee| fee.to_string()),
            gas_limit: gas.gas_limit.map(|limit| limit.to_string()),
            fee_level: FeeLevel::to_wire(gas.level),
        });
        // Parsed from an i64, so it fits.
        let nonce = self.nonce.map(|nonce| i64::try_from(nonce).unwrap_or(-1));
        match &self.action {
            EvmAction::SendNative { to, value } => WireKind::EvmSendNative(wire::EvmSendNative {
                chain_id,
                from,
                to: to.to_checksum(None),
                value: value.to_string(),
                gas_fee,
                nonce,
            }),
            EvmAction::SendErc20 { to, token, amount } => {
                WireKind::EvmSendErc20(wire::EvmSendErc20 {
                    chain_id,
                    from,
                    to: to.to_checksum(None),
                    token_contract_address: token.to_checksum(None),
                    amount: amount.to_string(),
                    gas_fee,
                    nonce,
                })
            }
            EvmAction::SendCustom { to, value, input } => {
                WireKind::EvmSendCustom(wire::EvmSendCustom {
                    chain_id,
                    from,
                    to: to.map(|to| to.to_checksum(None)).unwrap_or_default(),
                    value: value.to_string(),
                    input: input.clone(),
                    gas_fee,
                    nonce,
                })
            }
        }
    }
}

/// 0 is what the wire shows when the field is left out.
pub(crate) fn chain_id(given: u64) -> Result<Option<u64>, Fault> {
    if i64::try_from(given).is_err() {
        return Err(Fault::field("chainId", "is out of range"));
    }
    Ok((given != 0).then_some(given))
}

/// An address that must be there.
pub(crate) fn parse_field(name: &str, text: &str) -> Result<Address, Fault> {
    required(name, text)?;
    parse_address(text).map_err(|error| Fault::field(name, error))
}
