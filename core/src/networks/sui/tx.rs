//! Programmable transactions, in the very bytes of the TypeScript SDK (@mysten/sui 2).

use sui_sdk_types::{
    Address, Argument, Command, Digest, FundsWithdrawal, GasPayment, Identifier, Input, MergeCoins,
    MoveCall, ObjectReference, ProgrammableTransaction, SplitCoins, StructTag, Transaction,
    TransactionExpiration, TransactionKind, TransferObjects, TypeTag, WithdrawFrom,
};

use super::{
    address::{parse_address, parse_coin_type, parse_digest},
    chain_data::ChainData,
    coins::{CoinObject, is_reservation, sum},
    payment::{MAX_BUDGET, SuiPayment},
};
use crate::{
    fault::{ExecuteCode, Fault},
    networks::rules::unexpected_chain_data,
};

/// The network's `max_tx_size_bytes`.
const MAX_BYTES: usize = 128 * 1024;
/// The network's `max_gas_payment_objects`.
pub(super) const MAX_GAS_OBJECTS: usize = 256;
/// Coins of one MergeCoins, as the SDK has it; the network's `max_arguments` is 512.
const MAX_MERGED: usize = 500;
/// Units of gas that the SDK adds to what a simulation took.
const SAFE_OVERHEAD: u64 = 1000;
/// The network's `max_gas_price`; the price is below it.
const MAX_PRICE: u64 = 100_000;

/// Reads BCS `TransactionData`: a whole programmable transaction in its one encoding.
pub(super) fn decode(bytes: &[u8]) -> Option<Transaction> {
    if bytes.len() > MAX_BYTES {
        return None;
    }
    let transaction: Transaction = bcs::from_bytes(bytes).ok()?;
    program_of(&transaction)?;
    (encode(&transaction).ok()? == bytes).then_some(transaction)
}

/// BCS `TransactionData`.
pub(super) fn encode(transaction: &Transaction) -> Result<Vec<u8>, Fault> {
    let bytes = bcs::to_bytes(transaction).map_err(Fault::bug)?;
    if bytes.len() > MAX_BYTES {
        return Err(Fault::bug("a transaction of more than 128 KiB"));
    }
    Ok(bytes)
}

/// The inputs and commands of a transaction; `None` for those of validators.
pub(super) fn program_of(transaction: &Transaction) -> Option<&ProgrammableTransaction> {
    match &transaction.kind {
        TransactionKind::ProgrammableTransaction(program) => Some(program),
        _ => None,
    }
}

/// Builds a payment.
pub(super) fn payment(payment: &SuiPayment, chain_data: &ChainData) -> Result<Transaction, Fault> {
    chain_data.check(payment)?;
    let (price, budget) = gas(payment, chain_data)?;
    // SUI beyond 64 bits is refused by `allocate`; here it is encoded as it is asked for, as the SDK
    // does.
    if payment.token().is_some() || payment.total().checked_add(budget).is_some() {
        funds(payment, chain_data, budget)?;
    }
    let sender = address(&payment.from)?;
    let program = program(payment, chain_data, sender)?;
    let objects = gas_objects(payment, chain_data, budget, sender)?;
    let expiration = expiration(&program, &objects, chain_data)?;
    Ok(Transaction {
        kind: TransactionKind::ProgrammableTransaction(program),
        sender,
        gas_payment: GasPayment {
            objects,
            owner: sender,
            price,
            budget,
        },
        expiration,
    })
}

/// The payment with the greatest budget and without gas coins, as a node simulates it.
pub(super) fn simulation(
    payment: &SuiPayment,
    chain_data: &ChainData,
) -> Result<Transaction, Fault> {
    chain_data.check(payment)?;
    if payment.token().is_some() {
        enough_tokens(payment, chain_data)?;
    }
    let sender = address(&payment.from)?;
    Ok(Transaction {
        kind: TransactionKind::ProgrammableTransaction(program(payment, chain_data, sender)?),
        sender,
        gas_payment: GasPayment {
            objects: Vec::new(),
            owner: sender,
            price: price(payment, chain_data)?,
            budget: MAX_BUDGET,
        },
        expiration: valid_during(chain_data)?,
    })
}

/// Price and budget: the request's, or what the network says.
pub(super) fn gas(payment: &SuiPayment, chain_data: &ChainData) -> Result<(u64, u64), Fault> {
    let price = price(payment, chain_data)?;
    let absurd = || Fault::field("gasFee", "the chain node's gas is out of range");
    let budget = match (payment.gas.budget, &chain_data.gas_used) {
        (Some(budget), None) => budget,
        (None, Some(used)) => {
            let computation = price
                .checked_mul(SAFE_OVERHEAD)
                .and_then(|overhead| overhead.checked_add(used.computation_cost))
                .ok_or_else(absurd)?;
            let storage = used.storage_cost.saturating_sub(used.storage_rebate);
            computation
                .checked_add(storage)
                .filter(|budget| *budget <= MAX_BUDGET)
                .ok_or_else(absurd)?
        }
        (Some(_), Some(_)) | (None, None) => return Err(unexpected_chain_data()),
    };
    Ok((price, budget))
}

fn price(payment: &SuiPayment, chain_data: &ChainData) -> Result<u64, Fault> {
    match (payment.gas.price, chain_data.reference_gas_price) {
        (Some(price), None) => Ok(price),
        (None, Some(price)) if (1..MAX_PRICE).contains(&price) => Ok(price),
        (None, Some(_)) => Err(Fault::field(
            "gasFee.price",
            "the chain node's gas price is out of range",
        )),
        (Some(_), Some(_)) | (None, None) => Err(unexpected_chain_data()),
    }
}

/// Refuses a payment that the facts cannot pay.
pub(super) fn funds(
    payment: &SuiPayment,
    chain_data: &ChainData,
    budget: u64,
) -> Result<(), Fault> {
    let (budget, address_balance) = (
        u128::from(budget),
        u128::from(chain_data.sui_address_balance),
    );
    let coins = sum(chain_data.gas_coins(payment));
    if payment.token().is_some() {
        enough_tokens(payment, chain_data)?;
        if address_balance < budget && coins < budget {
            let have = coins.max(address_balance);
            return Err(no_gas(format_args!(
                "the wallet has {have} MIST for gas, and the budget is {budget}"
            )));
        }
        return Ok(());
    }
    let (have, need) = (
        coins.saturating_add(address_balance),
        budget.saturating_add(u128::from(payment.total())),
    );
    if have < need {
        let sentence = format_args!(
            "needs {need} MIST including the gas budget; the wallet has {have} that one transaction can spend"
        );
        return Err(Fault::field(payment.amount_field(), sentence)
            .with_execute_code(ExecuteCode::InsufficientFunds));
    }
    Ok(())
}

fn enough_tokens(payment: &SuiPayment, chain_data: &ChainData) -> Result<(), Fault> {
    let have = sum(&chain_data.coins).saturating_add(u128::from(chain_data.coin_address_balance));
    let need = payment.total();
    if have < u128::from(need) {
        let sentence = format_args!("needs {need}, and the wallet has {have}");
        return Err(Fault::field(payment.amount_field(), sentence)
            .with_execute_code(ExecuteCode::InsufficientFunds));
    }
    Ok(())
}

fn no_gas(problem: impl std::fmt::Display) -> Fault {
    Fault::field("gasFee", problem).with_execute_code(ExecuteCode::InsufficientGasFee)
}

impl ChainData {
    /// The SUI coins that a payment's gas may be taken from, in order. Of SUI itself, the address
    /// balance is spent through the gas coin too and takes one of the places.
    fn gas_coins(&self, payment: &SuiPayment) -> &[CoinObject] {
        let reserved = payment.token().is_none() && self.sui_address_balance > 0;
        let room = MAX_GAS_OBJECTS - usize::from(reserved);
        self.sui_coins.get(..room).unwrap_or(&self.sui_coins)
    }
}

/// What pays the gas; nothing where the address balance pays it.
fn gas_objects(
    payment: &SuiPayment,
    chain_data: &ChainData,
    budget: u64,
    sender: Address,
) -> Result<Vec<ObjectReference>, Fault> {
    let balance = chain_data.sui_address_balance;
    let spends_gas_coin = payment.token().is_none();
    if !spends_gas_coin && balance >= budget {
        return Ok(Vec::new());
    }
    let mut objects = Vec::new();
    if spends_gas_coin && balance > 0 {
        let (epoch, chain) = now(chain_data)?;
        let sui = StructTag::sui();
        objects.push(ObjectReference::coin_reservation(
            &sui, balance, epoch, chain, sender,
        ));
    }
    for coin in chain_data.gas_coins(payment) {
        objects.push(coin.reference()?);
    }
    if objects.is_empty() {
        return Err(no_gas("the wallet has no SUI for gas"));
    }
    Ok(objects)
}

/// Without an object whose version changes, only the expiration keeps a transaction from being
/// taken for another, or being replayed. Where there are such objects the SDK sets none.
fn expiration(
    program: &ProgrammableTransaction,
    gas: &[ObjectReference],
    chain_data: &ChainData,
) -> Result<TransactionExpiration, Fault> {
    let spends_coin = gas.iter().any(|object| !is_reservation(object.digest()))
        || program
            .inputs
            .iter()
            .any(|input| matches!(input, Input::ImmutableOrOwned(_)));
    let has_nonce = chain_data
        .validity
        .as_ref()
        .is_some_and(|now| now.nonce.is_some());
    if gas.is_empty() || (!spends_coin && has_nonce) {
        return valid_during(chain_data);
    }
    Ok(TransactionExpiration::None)
}

/// This epoch and the next.
fn valid_during(chain_data: &ChainData) -> Result<TransactionExpiration, Fault> {
    let (epoch, chain) = now(chain_data)?;
    let nonce = chain_data.validity.as_ref().and_then(|now| now.nonce);
    Ok(TransactionExpiration::ValidDuring {
        min_epoch: Some(epoch),
        max_epoch: Some(epoch.saturating_add(1)),
        min_timestamp: None,
        max_timestamp: None,
        chain,
        nonce: nonce.ok_or_else(unexpected_chain_data)?,
    })
}

/// Epoch and chain. The network's own encodings have 32 bits for an epoch.
pub(super) fn now(chain_data: &ChainData) -> Result<(u64, Digest), Fault> {
    let now = chain_data
        .validity
        .as_ref()
        .ok_or_else(unexpected_chain_data)?;
    if u32::try_from(now.epoch).is_err() {
        return Err(unexpected_chain_data());
    }
    let chain = parse_digest(&now.chain_identifier).ok_or_else(unexpected_chain_data)?;
    Ok((now.epoch, chain))
}

#[derive(Default)]
struct ProgramBuilder {
    inputs: Vec<Input>,
    commands: Vec<Command>,
}

impl ProgramBuilder {
    fn input(&mut self, input: Input) -> Result<Argument, Fault> {
        let index = place(self.inputs.len())?;
        self.inputs.push(input);
        Ok(Argument::Input(index))
    }

    fn amount(&mut self, amount: u64) -> Result<Argument, Fault> {
        self.input(Input::Pure(amount.to_le_bytes().to_vec()))
    }

    fn address(&mut self, address: Address) -> Result<Argument, Fault> {
        self.input(Input::Pure(address.as_bytes().to_vec()))
    }

    /// The place of the command's results.
    fn command(&mut self, command: Command) -> Result<u16, Fault> {
        let index = place(self.commands.len())?;
        self.commands.push(command);
        Ok(index)
    }

    /// Calls a function of `0x2::coin` with one type.
    fn coin_call(
        &mut self,
        function: &'static str,
        coin: &TypeTag,
        arguments: Vec<Argument>,
    ) -> Result<u16, Fault> {
        self.command(Command::MoveCall(MoveCall {
            package: Address::TWO,
            module: Identifier::from_static("coin"),
            function: Identifier::new(function).map_err(Fault::bug)?,
            type_arguments: vec![coin.clone()],
            arguments,
        }))
    }

    fn transfer(&mut self, object: Argument, address: Argument) -> Result<(), Fault> {
        self.command(Command::TransferObjects(TransferObjects {
            objects: vec![object],
            address,
        }))?;
        Ok(())
    }
}

fn place(index: usize) -> Result<u16, Fault> {
    u16::try_from(index).map_err(Fault::bug)
}

fn address(text: &str) -> Result<Address, Fault> {
    parse_address(text).map_err(Fault::bug)
}

fn program(
    payment: &SuiPayment,
    chain_data: &ChainData,
    sender: Address,
) -> Result<ProgrammableTransaction, Fault> {
    let mut program = ProgramBuilder::default();
    match payment.token() {
        None => pay_sui(&mut program, payment)?,
        Some(coin) => {
            let coin = parse_coin_type(coin).map_err(Fault::bug)?.into();
            pay_token(&mut program, payment, chain_data, sender, &coin)?;
        }
    }
    let ProgramBuilder { inputs, commands } = program;
    Ok(ProgrammableTransaction { inputs, commands })
}

/// Splits the gas coin.
fn pay_sui(program: &mut ProgramBuilder, payment: &SuiPayment) -> Result<(), Fault> {
    let mut amounts = Vec::with_capacity(payment.outputs.len());
    for output in &payment.outputs {
        amounts.push(program.amount(output.amount)?);
    }
    let mut addresses = Vec::with_capacity(payment.outputs.len());
    for output in &payment.outputs {
        addresses.push(program.address(address(&output.to)?)?);
    }
    let split = program.command(Command::SplitCoins(SplitCoins {
        coin: Argument::Gas,
        amounts,
    }))?;
    transfer_split(program, split, addresses)
}

/// Gathers the coins of a type and splits what is paid off.
fn pay_token(
    program: &mut ProgramBuilder,
    payment: &SuiPayment,
    chain_data: &ChainData,
    sender: Address,
    coin: &TypeTag,
) -> Result<(), Fault> {
    let mut addresses = Vec::with_capacity(payment.outputs.len());
    for output in &payment.outputs {
        addresses.push(program.address(address(&output.to)?)?);
    }
    let total = payment.total();
    if let ([to], 0) = (addresses.as_slice(), total) {
        let zero = program.coin_call("zero", coin, Vec::new())?;
        return program.transfer(Argument::Result(zero), *to);
    }

    let mut sources = Vec::new();
    let mut there: u128 = 0;
    if chain_data.coin_address_balance < total {
        for coin in &chain_data.coins {
            sources.push(program.input(Input::ImmutableOrOwned(coin.reference()?))?);
        }
        there = sum(&chain_data.coins);
    }
    let missing = u128::from(total).saturating_sub(there);
    if missing > 0 {
        let missing = u64::try_from(missing).map_err(Fault::bug)?;
        let withdrawal = FundsWithdrawal::new(missing, coin.clone(), WithdrawFrom::Sender);
        let withdrawal = program.input(Input::FundsWithdrawal(withdrawal))?;
        let redeemed = program.coin_call("redeem_funds", coin, vec![withdrawal])?;
        sources.push(Argument::Result(redeemed));
    }
    let (purse, rest) = sources
        .split_first()
        .ok_or_else(|| Fault::bug("no coin to pay from"))?;
    for coins in rest.chunks(MAX_MERGED) {
        program.command(Command::MergeCoins(MergeCoins {
            coin: *purse,
            coins_to_merge: coins.to_vec(),
        }))?;
    }
    let mut amounts = Vec::with_capacity(payment.outputs.len());
    for output in &payment.outputs {
        amounts.push(program.amount(output.amount)?);
    }
    let split = program.command(Command::SplitCoins(SplitCoins {
        coin: *purse,
        amounts,
    }))?;
    if missing > 0 {
        let sender = program.address(sender)?;
        program.coin_call("send_funds", coin, vec![*purse, sender])?;
    } else if there == u128::from(total) {
        program.coin_call("destroy_zero", coin, vec![*purse])?;
    }
    transfer_split(program, split, addresses)
}

/// Transfers each result of a split to its address.
fn transfer_split(
    program: &mut ProgramBuilder,
    split: u16,
    addresses: Vec<Argument>,
) -> Result<(), Fault> {
    for (index, address) in addresses.into_iter().enumerate() {
        program.transfer(Argument::NestedResult(split, place(index)?), address)?;
    }
    Ok(())
}

/// The name of the first thing in which a transaction differs from another.
pub(super) fn difference(built: &[u8], shown: &[u8]) -> Option<&'static str> {
    let (built, shown) = (decode(built)?, decode(shown)?);
    let (ours, theirs) = (program_of(&built)?, program_of(&shown)?);
    let (gas, other_gas) = (&built.gas_payment, &shown.gas_payment);
    let fee = |gas: &GasPayment| (gas.owner, gas.price, gas.budget);
    let differs = [
        ("from", built.sender != shown.sender),
        ("recipient", recipients(ours) != recipients(theirs)),
        ("amount", amounts(ours) != amounts(theirs)),
        ("coinTag", types(ours) != types(theirs)),
        ("coins", ours.inputs != theirs.inputs),
        ("commands", ours.commands != theirs.commands),
        ("gasPayment", gas.objects != other_gas.objects),
        ("gasFee", fee(gas) != fee(other_gas)),
        (
            "nonce",
            nonce(&built.expiration) != nonce(&shown.expiration),
        ),
        ("expiration", built.expiration != shown.expiration),
    ];
    differs
        .into_iter()
        .find_map(|(name, differs)| differs.then_some(name))
}

/// The plain value behind an argument.
pub(super) fn pure<'a>(
    program: &'a ProgrammableTransaction,
    argument: &Argument,
) -> Option<&'a [u8]> {
    let Argument::Input(index) = argument else {
        return None;
    };
    match program.inputs.get(usize::from(*index))? {
        Input::Pure(bytes) => Some(bytes),
        _ => None,
    }
}

fn recipients(program: &ProgrammableTransaction) -> Vec<Option<&[u8]>> {
    let to = |command: &Command| match command {
        Command::TransferObjects(transfer) => Some(pure(program, &transfer.address)),
        _ => None,
    };
    program.commands.iter().filter_map(to).collect()
}

fn amounts(program: &ProgrammableTransaction) -> Vec<Option<&[u8]>> {
    let split = |command: &'_ Command| match command {
        Command::SplitCoins(split) => split
            .amounts
            .iter()
            .map(|amount| pure(program, amount))
            .collect(),
        _ => Vec::new(),
    };
    program.commands.iter().flat_map(split).collect()
}

fn types(program: &ProgrammableTransaction) -> Vec<&TypeTag> {
    let withdrawn = program.inputs.iter().filter_map(|input| match input {
        Input::FundsWithdrawal(withdrawal) => Some(withdrawal.coin_type()),
        _ => None,
    });
    let called = program.commands.iter().filter_map(|command| match command {
        Command::MoveCall(call) => Some(&call.type_arguments),
        _ => None,
    });
    withdrawn.chain(called.flatten()).collect()
}

/// What tells a transaction apart that uses up no object: its first epoch and the nonce.
pub(super) fn nonce(expiration: &TransactionExpiration) -> Option<(u64, u32)> {
    match expiration {
        TransactionExpiration::ValidDuring {
            min_epoch, nonce, ..
        }
        | TransactionExpiration::Validity {
            min_epoch, nonce, ..
        } => Some((min_epoch.unwrap_or(0), *nonce)),
        _ => None,
    }
}
