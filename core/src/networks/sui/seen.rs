//! Where a programmable transaction visibly sends money.

use std::collections::{BTreeMap, BTreeSet};

use sui_sdk_types::{
    Address, Argument, Command, Input, ProgrammableTransaction, StructTag, Transaction, TypeTag,
    WithdrawFrom,
};

use super::tx::{program_of, pure};
use crate::amount::U256;

/// Something that is seen to leave the sender. Much that leaves is not seen: what objects are
/// worth, and what functions do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VisibleSpend {
    /// The coin type; `None` for SUI.
    pub token: Option<String>,
    /// In the smallest unit; 0 where something goes whose worth is not seen.
    pub amount: U256,
    /// The recipient of a transfer or the package that is called; `None` where it is not seen,
    /// also where a package of the system passes on what it gets.
    pub to: Option<String>,
}

/// What is seen of a transaction to leave its sender: withdrawals from address balances, the gas coin and SUI
/// that is split off it when they are handed on, objects that are transferred, calls. Of a gas coin that is
/// another's nothing is the sender's.
pub(crate) fn seen(transaction: &Transaction) -> Vec<VisibleSpend> {
    let Some(program) = program_of(transaction) else {
        return Vec::new();
    };
    let owner = transaction.gas_payment.owner;
    let sponsor = (owner != transaction.sender).then_some(owner);
    let withdrawals = program.inputs.iter().filter_map(|input| match input {
        Input::FundsWithdrawal(withdrawal)
            if sponsor.is_some() && withdrawal.source() == WithdrawFrom::Sponsor =>
        {
            None
        }
        Input::FundsWithdrawal(withdrawal) => Some(VisibleSpend {
            token: token(withdrawal.coin_type()),
            // The amount is an option so that other reservations can come.
            amount: withdrawal.amount().map_or(U256::MAX, U256::from),
            to: None,
        }),
        _ => None,
    });
    let mut seen: Vec<VisibleSpend> = withdrawals.collect();
    let mut split = SplitCoin {
        sponsor,
        ..SplitCoin::default()
    };
    for (place, command) in program.commands.iter().enumerate() {
        seen.extend(split.follow(program, transaction.sender, place, command));
    }
    seen
}

/// Whether a transaction sets up which other addresses sign for the sender's
/// (`0x2::address_alias`).
pub(crate) fn sets_alias(transaction: &Transaction) -> bool {
    let commands = program_of(transaction).map(|program| program.commands.as_slice());
    commands.unwrap_or_default().iter().any(|command| {
        matches!(command, Command::MoveCall(call)
            if is_system(&call.package) && call.module.as_str() == "address_alias")
    })
}

#[derive(Default)]
struct SplitCoin {
    /// Whose the gas coin is, where it is not the sender's.
    sponsor: Option<Address>,
    /// SUI that was split off the gas coin, by command and result, and was not handed on yet.
    parts: BTreeMap<(usize, u16), U256>,
    /// Inputs that a function was given: one that takes them by mutable reference changes them for
    /// the commands after it, numbers and addresses too.
    changed: BTreeSet<u16>,
}

impl SplitCoin {
    fn follow(
        &mut self,
        program: &ProgrammableTransaction,
        sender: Address,
        place: usize,
        command: &Command,
    ) -> Option<VisibleSpend> {
        match command {
            Command::SplitCoins(command) => {
                if command.coin != Argument::Gas {
                    return unseen_amount(self.take(&[command.coin]));
                }
                if self.sponsor.is_some() {
                    return None;
                }
                for (index, amount) in (0..).zip(&command.amounts) {
                    // How much a command before has made of it is not known.
                    let amount = self.number(program, amount).map_or(U256::MAX, U256::from);
                    self.parts.insert((place, index), amount);
                }
                None
            }
            Command::MergeCoins(command) => {
                let taken = self.take(&command.coins_to_merge);
                if command.coin == Argument::Gas {
                    // Into another's it is given away.
                    return self.sponsor.map(|to| sui(taken, Some(to)));
                }
                unseen_amount(taken)
            }
            Command::MakeMoveVector(command) => unseen_amount(self.take(&command.elements)),
            Command::TransferObjects(command) => {
                let amount = self.take(&command.objects);
                let to = self
                    .input(program, &command.address)
                    .and_then(|bytes| Address::from_bytes(bytes).ok());
                (to != Some(sender)).then(|| sui(amount, to))
            }
            Command::MoveCall(command) => {
                let amount = self.take(&command.arguments);
                let inputs = command
                    .arguments
                    .iter()
                    .filter_map(|argument| match argument {
                        Argument::Input(input) => Some(*input),
                        _ => None,
                    });
                self.changed.extend(inputs);
                let package = Some(command.package).filter(|package| !is_system(package));
                Some(sui(amount, package))
            }
            // Code that is published, and whatever commands are still to come.
            _ => Some(sui(U256::ZERO, None)),
        }
    }

    /// What stands behind the arguments, each counted once; the gas coin is all that there is.
    fn take(&mut self, arguments: &[Argument]) -> U256 {
        let mut sum = U256::ZERO;
        for argument in arguments {
            let key = match *argument {
                Argument::Result(command) => (usize::from(command), 0),
                Argument::NestedResult(command, index) => (usize::from(command), index),
                Argument::Gas if self.sponsor.is_some() => continue,
                Argument::Gas => return U256::MAX,
                Argument::Input(_) => continue,
            };
            sum = sum.saturating_add(self.parts.remove(&key).unwrap_or_default());
        }
        sum
    }

    /// The bytes of an input, where they still are what the transaction says.
    fn input<'a>(
        &self,
        program: &'a ProgrammableTransaction,
        argument: &Argument,
    ) -> Option<&'a [u8]> {
        match argument {
            Argument::Input(input) if self.changed.contains(input) => None,
            argument => pure(program, argument),
        }
    }

    fn number(&self, program: &ProgrammableTransaction, argument: &Argument) -> Option<u64> {
        let bytes = self.input(program, argument)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

fn sui(amount: U256, to: Option<Address>) -> VisibleSpend {
    VisibleSpend {
        token: None,
        amount,
        to: to.map(|to| to.to_string()),
    }
}

/// SUI that goes where it is not followed.
fn unseen_amount(amount: U256) -> Option<VisibleSpend> {
    (!amount.is_zero()).then(|| sui(amount, None))
}

/// Whether a package is one of the system's, whose addresses are small numbers.
fn is_system(package: &Address) -> bool {
    let (high, _) = package.inner().split_at(Address::LENGTH - 4);
    high.iter().all(|byte| *byte == 0)
}

fn token(coin: &TypeTag) -> Option<String> {
    let is_sui = matches!(coin, TypeTag::Struct(coin) if **coin == StructTag::sui());
    (!is_sui).then(|| coin.to_string())
}
