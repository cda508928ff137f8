//! The JSON of a transaction, version 2, as @mysten/sui writes it (`Transaction.toJSON`,
//! `src/transactions/data/v2.ts`) and wallets hand it on.
//!
//! Read only where nothing is left to be resolved: what a builder would look up on the chain is
//! refused by name, since another look-up may find something else.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;
use sui_sdk_types as sdk;

use super::address::parse_digest;
use crate::{amount::parse_u64, fault::Fault};

/// Reads a transaction.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] naming `payload` and what is wrong in it.
pub(super) fn read(text: &[u8]) -> Result<sdk::Transaction, Fault> {
    let mut value: Value = serde_json::from_slice(text)
        .map_err(|error| wrong(format_args!("is not a transaction in JSON: {error}")))?;
    tidy(&mut value);
    if value.get("version") != Some(&Value::from(2)) {
        return Err(wrong(
            "is JSON, but not version 2 of a transaction (Transaction.toJSON of @mysten/sui)",
        ));
    }
    let data = JsonTransaction::deserialize(&value)
        .map_err(|error| wrong(format_args!("is not a transaction in JSON: {error}")))?;
    let digest = data.digest.clone();
    let transaction = data.resolved()?;
    if digest.is_some_and(|digest| digest != transaction.digest().to_base58()) {
        return Err(wrong("has a digest that does not match the transaction"));
    }
    Ok(transaction)
}

fn wrong(problem: impl std::fmt::Display) -> Fault {
    Fault::field("payload", problem)
}

fn unresolved(what: impl std::fmt::Display) -> Fault {
    wrong(format_args!(
        "is not resolved: {what}; build the transaction first"
    ))
}

/// Takes out what the SDK keeps for itself: the names of variants, and the types of inputs.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.remove("$kind");
            if object.contains_key("Input") {
                object.remove("type");
            }
            object.values_mut().for_each(tidy);
        }
        Value::Array(list) => list.iter_mut().for_each(tidy),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonTransaction {
    #[serde(rename = "version")]
    _version: IgnoredAny,
    sender: Option<Address>,
    expiration: Option<Expiration>,
    gas_data: GasData,
    inputs: Vec<CallArg>,
    commands: Vec<JsonCommand>,
    digest: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GasData {
    budget: Option<U64>,
    price: Option<U64>,
    owner: Option<Address>,
    payment: Option<Vec<ObjectRef>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ObjectRef {
    object_id: Address,
    version: U64,
    digest: Digest,
}

#[derive(Deserialize)]
enum Expiration {
    None(bool),
    Epoch(U64),
    ValidDuring(ValidDuring),
    Validity(JsonValidity),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ValidDuring {
    min_epoch: Option<U64>,
    max_epoch: Option<U64>,
    min_timestamp: Option<U64>,
    max_timestamp: Option<U64>,
    chain: Digest,
    nonce: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonValidity {
    min_epoch: Option<U64>,
    max_epoch: Option<U64>,
    min_timestamp: Option<U64>,
    max_timestamp: Option<U64>,
    chain: Digest,
    nonce: u32,
    allowed_proposers: Option<AllowedProposers>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowedProposers {
    epoch: U64,
    proposers: Vec<u32>,
}

#[derive(Deserialize)]
enum CallArg {
    Object(ObjectArg),
    Pure(JsonPure),
    UnresolvedPure(IgnoredAny),
    UnresolvedObject(IgnoredAny),
    FundsWithdrawal(Withdrawal),
}

#[derive(Deserialize)]
enum ObjectArg {
    ImmOrOwnedObject(ObjectRef),
    SharedObject(SharedObject),
    Receiving(ObjectRef),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SharedObject {
    object_id: Address,
    initial_shared_version: U64,
    mutable: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonPure {
    bytes: Base64Bytes,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Withdrawal {
    reservation: Reservation,
    type_arg: WithdrawalType,
    withdraw_from: WithdrawFrom,
}

#[derive(Deserialize)]
enum Reservation {
    MaxAmountU64(U64),
}

#[derive(Deserialize)]
enum WithdrawalType {
    Balance(TypeTag),
}

#[derive(Deserialize)]
enum WithdrawFrom {
    Sender(bool),
    Sponsor(bool),
    SenderAllowance(SenderAllowance),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SenderAllowance {
    funder: Address,
    allowance: Address,
}

#[derive(Clone, Copy, Deserialize)]
enum JsonArgument {
    GasCoin(bool),
    Input(u16),
    Result(u16),
    NestedResult(u16, u16),
}

#[derive(Deserialize)]
enum JsonCommand {
    MoveCall(MoveCall),
    TransferObjects(TransferObjects),
    SplitCoins(SplitCoins),
    MergeCoins(MergeCoins),
    Publish(Publish),
    MakeMoveVec(MakeMoveVec),
    Upgrade(Upgrade),
    #[serde(rename = "$Intent")]
    Intent(IgnoredAny),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MoveCall {
    package: Address,
    module: sdk::Identifier,
    function: sdk::Identifier,
    type_arguments: Vec<TypeTag>,
    arguments: Vec<JsonArgument>,
    /// What the SDK found out about the function.
    #[serde(rename = "_argumentTypes", default)]
    _argument_types: IgnoredAny,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TransferObjects {
    objects: Vec<JsonArgument>,
    address: JsonArgument,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SplitCoins {
    coin: JsonArgument,
    amounts: Vec<JsonArgument>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MergeCoins {
    destination: JsonArgument,
    sources: Vec<JsonArgument>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Publish {
    modules: Vec<Base64Bytes>,
    dependencies: Vec<Address>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MakeMoveVec {
    r#type: Option<TypeTag>,
    elements: Vec<JsonArgument>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Upgrade {
    modules: Vec<Base64Bytes>,
    dependencies: Vec<Address>,
    package: Address,
    ticket: JsonArgument,
}

/// Up to 2^64 - 1, as a number or as digits.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
struct U64(u64);

impl TryFrom<Value> for U64 {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        match &value {
            Value::String(text) => parse_u64(text).ok(),
            Value::Number(number) => number.as_u64(),
            _ => None,
        }
        .map(Self)
        .ok_or_else(|| format!("{value} is not a whole number of at most 64 bits"))
    }
}

/// Hex of at most 32 bytes, with or without `0x`, as the SDK takes it.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Address(sdk::Address);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        sdk::Address::from_hex(&text)
            .map(Self)
            .map_err(|_| format!("{text:?} is not an address or object id"))
    }
}

/// Base58 of 32 bytes.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Digest(sdk::Digest);

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        parse_digest(&text)
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not a digest"))
    }
}

/// Base64.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Base64Bytes(Vec<u8>);

impl TryFrom<String> for Base64Bytes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        STANDARD
            .decode(&text)
            .map(Self)
            .map_err(|_| "bytes are not base64 with padding".to_owned())
    }
}

/// A Move type; a name that only a registry can resolve is refused.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct TypeTag(sdk::TypeTag);

impl TryFrom<String> for TypeTag {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
            .map(Self)
            .map_err(|_| format!("{text:?} is not a Move type"))
    }
}

impl JsonTransaction {
    fn resolved(self) -> Result<sdk::Transaction, Fault> {
        let Address(sender) = self.sender.ok_or_else(|| unresolved("sender is missing"))?;
        let gas = self.gas_data;
        let missing = |field| move || unresolved(format_args!("gasData.{field} is missing"));
        let U64(budget) = gas.budget.ok_or_else(missing("budget"))?;
        let U64(price) = gas.price.ok_or_else(missing("price"))?;
        let payment = gas.payment.ok_or_else(missing("payment"))?;
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for (index, input) in self.inputs.into_iter().enumerate() {
            inputs.push(input.resolved(index)?);
        }
        let mut commands = Vec::with_capacity(self.commands.len());
        for (index, command) in self.commands.into_iter().enumerate() {
            commands.push(command.resolved(index)?);
        }
        let program = sdk::ProgrammableTransaction { inputs, commands };
        Ok(sdk::Transaction {
            kind: sdk::TransactionKind::ProgrammableTransaction(program),
            sender,
            gas_payment: sdk::GasPayment {
                objects: payment.into_iter().map(Into::into).collect(),
                owner: gas.owner.map_or(sender, |Address(owner)| owner),
                price,
                budget,
            },
            expiration: match self.expiration {
                Some(expiration) => expiration.resolved()?,
                None => sdk::TransactionExpiration::None,
            },
        })
    }
}

impl CallArg {
    fn resolved(self, index: usize) -> Result<sdk::Input, Fault> {
        Ok(match self {
            CallArg::Object(ObjectArg::ImmOrOwnedObject(object)) => {
                sdk::Input::ImmutableOrOwned(object.into())
            }
            CallArg::Object(ObjectArg::Receiving(object)) => sdk::Input::Receiving(object.into()),
            CallArg::Object(ObjectArg::SharedObject(shared)) => {
                sdk::Input::Shared(sdk::SharedInput::new(
                    shared.object_id.0,
                    shared.initial_shared_version.0,
                    shared.mutable,
                ))
            }
            CallArg::Pure(pure) => sdk::Input::Pure(pure.bytes.0),
            CallArg::FundsWithdrawal(withdrawal) => {
                let Reservation::MaxAmountU64(U64(amount)) = withdrawal.reservation;
                let WithdrawalType::Balance(TypeTag(coin)) = withdrawal.type_arg;
                let from = match withdrawal.withdraw_from {
                    WithdrawFrom::Sender(true) => sdk::WithdrawFrom::Sender,
                    WithdrawFrom::Sponsor(true) => sdk::WithdrawFrom::Sponsor,
                    WithdrawFrom::SenderAllowance(SenderAllowance { funder, allowance }) => {
                        sdk::WithdrawFrom::SenderAllowance {
                            funder: funder.0,
                            allowance: allowance.0,
                        }
                    }
                    WithdrawFrom::Sender(false) | WithdrawFrom::Sponsor(false) => {
                        return Err(wrong(format_args!(
                            "inputs[{index}].withdrawFrom must be true"
                        )));
                    }
                };
                sdk::Input::FundsWithdrawal(sdk::FundsWithdrawal::new(amount, coin, from))
            }
            CallArg::UnresolvedPure(_) => {
                return Err(unresolved(format_args!(
                    "inputs[{index}] is a value without its bytes"
                )));
            }
            CallArg::UnresolvedObject(_) => {
                return Err(unresolved(format_args!(
                    "inputs[{index}] is an object without its kind, version and digest"
                )));
            }
        })
    }
}

impl JsonCommand {
    fn resolved(self, index: usize) -> Result<sdk::Command, Fault> {
        let one = |argument: JsonArgument| argument.resolved(index);
        let all = |arguments: Vec<JsonArgument>| -> Result<Vec<_>, Fault> {
            arguments.into_iter().map(one).collect()
        };
        let ids = |list: Vec<Address>| list.into_iter().map(|Address(id)| id).collect();
        let code =
            |list: Vec<Base64Bytes>| list.into_iter().map(|Base64Bytes(code)| code).collect();
        Ok(match self {
            JsonCommand::MoveCall(call) => sdk::Command::MoveCall(sdk::MoveCall {
                package: call.package.0,
                module: call.module,
                function: call.function,
                type_arguments: call.type_arguments.into_iter().map(|tag| tag.0).collect(),
                arguments: all(call.arguments)?,
            }),
            JsonCommand::TransferObjects(transfer) => {
                sdk::Command::TransferObjects(sdk::TransferObjects {
                    objects: all(transfer.objects)?,
                    address: one(transfer.address)?,
                })
            }
            JsonCommand::SplitCoins(split) => sdk::Command::SplitCoins(sdk::SplitCoins {
                coin: one(split.coin)?,
                amounts: all(split.amounts)?,
            }),
            JsonCommand::MergeCoins(merge) => sdk::Command::MergeCoins(sdk::MergeCoins {
                coin: one(merge.destination)?,
                coins_to_merge: all(merge.sources)?,
            }),
            JsonCommand::Publish(publish) => sdk::Command::Publish(sdk::Publish {
                modules: code(publish.modules),
                dependencies: ids(publish.dependencies),
            }),
            JsonCommand::MakeMoveVec(vector) => sdk::Command::MakeMoveVector(sdk::MakeMoveVector {
                type_: vector.r#type.map(|TypeTag(tag)| tag),
                elements: all(vector.elements)?,
            }),
            JsonCommand::Upgrade(upgrade) => sdk::Command::Upgrade(sdk::Upgrade {
                modules: code(upgrade.modules),
                dependencies: ids(upgrade.dependencies),
                package: upgrade.package.0,
                ticket: one(upgrade.ticket)?,
            }),
            JsonCommand::Intent(_) => {
                return Err(unresolved(format_args!("commands[{index}] is an intent")));
            }
        })
    }
}

impl JsonArgument {
    fn resolved(self, command: usize) -> Result<sdk::Argument, Fault> {
        Ok(match self {
            JsonArgument::GasCoin(true) => sdk::Argument::Gas,
            JsonArgument::GasCoin(false) => {
                return Err(wrong(format_args!(
                    "commands[{command}]: GasCoin must be true"
                )));
            }
            JsonArgument::Input(index) => sdk::Argument::Input(index),
            JsonArgument::Result(index) => sdk::Argument::Result(index),
            JsonArgument::NestedResult(index, nested) => sdk::Argument::NestedResult(index, nested),
        })
    }
}

impl Expiration {
    fn resolved(self) -> Result<sdk::TransactionExpiration, Fault> {
        let number = |number: Option<U64>| number.map(|U64(number)| number);
        Ok(match self {
            Expiration::None(true) => sdk::TransactionExpiration::None,
            Expiration::None(false) => return Err(wrong("expiration: None must be true")),
            Expiration::Epoch(U64(epoch)) => sdk::TransactionExpiration::Epoch(epoch),
            Expiration::ValidDuring(window) => sdk::TransactionExpiration::ValidDuring {
                min_epoch: number(window.min_epoch),
                max_epoch: number(window.max_epoch),
                min_timestamp: number(window.min_timestamp),
                max_timestamp: number(window.max_timestamp),
                chain: window.chain.0,
                nonce: window.nonce,
            },
            Expiration::Validity(window) => sdk::TransactionExpiration::Validity {
                min_epoch: number(window.min_epoch),
                max_epoch: number(window.max_epoch),
                min_timestamp: number(window.min_timestamp),
                max_timestamp: number(window.max_timestamp),
                chain: window.chain.0,
                nonce: window.nonce,
                allowed_proposers: window
                    .allowed_proposers
                    .map(|allowed| sdk::AllowedProposers {
                        epoch: allowed.epoch.0,
                        proposers: allowed.proposers,
                    }),
            },
        })
    }
}

impl From<ObjectRef> for sdk::ObjectReference {
    fn from(object: ObjectRef) -> Self {
        Self::new(object.object_id.0, object.version.0, object.digest.0)
    }
}
