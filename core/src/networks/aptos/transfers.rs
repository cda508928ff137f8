//! The framework's functions that send coins: how they are called, and what a call of one moves.

use serde::de::DeserializeOwned;
use sui_sdk_types::{Address, Identifier, StructTag, TypeTag};

use super::{
    move_types::{AptosCoin, special},
    tx::{
        EntryFunction, ModuleId, Multisig, MultisigTransactionPayload, RawTransaction, Script,
        TransactionExecutable, TransactionPayload, TransactionPayloadInner,
    },
};
use crate::networks::payload::outflow::AccountChange;

/// Coins that leave the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CoinTransfer {
    /// The metadata of the fungible asset; `None` for the chain's coin. See [`AptosCoin::metadata`].
    pub asset: Option<Address>,
    /// Recipient.
    pub to: Address,
    /// In the smallest unit.
    pub amount: u64,
}

/// What a function sends.
#[derive(Clone, Copy)]
enum Sends {
    Coin,
    /// The coin of its type argument.
    TypeArgument,
    /// The fungible asset of its first argument.
    FirstArgument,
}

/// A function of the framework, at 0x1.
pub(super) struct KnownFunction {
    module: &'static str,
    function: &'static str,
    sends: Sends,
    /// As the function's ABI has them, without the signer.
    pub(super) params: &'static [&'static str],
    pub(super) type_parameters: u64,
}

const fn known(
    module: &'static str,
    function: &'static str,
    sends: Sends,
    params: &'static [&'static str],
    type_parameters: u64,
) -> KnownFunction {
    KnownFunction {
        module,
        function,
        sends,
        params,
        type_parameters,
    }
}

const METADATA: &str = "0x1::object::Object<0x1::fungible_asset::Metadata>";
const ADDRESSES: &str = "vector<address>";

/// Of aptos_account.move, coin.move and primary_fungible_store.move. The chain lets nobody change
/// the parameters of a published entry function.
#[rustfmt::skip]
const KNOWN: [KnownFunction; 8] = [
    known("aptos_account", "transfer", Sends::Coin, &["address", "u64"], 0),
    known("aptos_account", "transfer_coins", Sends::TypeArgument, &["address", "u64"], 1),
    known("aptos_account", "transfer_fungible_assets", Sends::FirstArgument, &[METADATA, "address", "u64"], 0),
    known("aptos_account", "batch_transfer", Sends::Coin, &[ADDRESSES, "vector<u64>"], 0),
    known("aptos_account", "batch_transfer_coins", Sends::TypeArgument, &[ADDRESSES, "vector<u64>"], 1),
    known("aptos_account", "batch_transfer_fungible_assets", Sends::FirstArgument, &[METADATA, ADDRESSES, "vector<u64>"], 0),
    known("coin", "transfer", Sends::TypeArgument, &["address", "u64"], 1),
    known("primary_fungible_store", "transfer", Sends::FirstArgument, &["0x1::object::Object<T0>", "address", "u64"], 1),
];

/// The function, where it is one of them.
pub(super) fn find(module: &ModuleId, function: &Identifier) -> Option<&'static KnownFunction> {
    KNOWN.iter().find(|known| {
        module.address == special(1) && module.name == *known.module && *function == *known.function
    })
}

/// Functions of the framework that give an account another key, another account a capability of it, or
/// code the right to sign for it: in these modules, all but those that take such things back and
/// those that only make another account.
fn changes_account(module: &ModuleId, function: &Identifier) -> bool {
    let function = function.as_str();
    module.address == special(1)
        && match module.name.as_str() {
            "account" => !function.starts_with("revoke_"),
            "account_abstraction" => !function.starts_with("remove_"),
            "multisig_account" => function.starts_with("create_with_existing_account"),
            _ => false,
        }
}

/// The functions by which a script does what [`changes_account`] says: bytecode names what it calls.
const IN_SCRIPTS: [&[u8]; 6] = [
    b"rotate_authentication_key",
    b"offer_signer_capability",
    b"offer_rotation_capability",
    b"upsert_ed25519_backup_key",
    b"add_authentication_function",
    b"create_with_existing_account",
];

impl RawTransaction {
    /// What it changes about who may sign: for the sender, or for a multisig account that it acts
    /// for.
    pub(crate) fn account_change(&self) -> Option<AccountChange> {
        match &self.payload {
            TransactionPayload::EntryFunction(entry)
            | TransactionPayload::Multisig(Multisig {
                transaction_payload: Some(MultisigTransactionPayload::EntryFunction(entry)),
                ..
            })
            | TransactionPayload::Payload(TransactionPayloadInner::V1 {
                executable: TransactionExecutable::EntryFunction(entry),
                ..
            }) => entry.account_change(),
            TransactionPayload::Script(script)
            | TransactionPayload::Multisig(Multisig {
                transaction_payload: Some(MultisigTransactionPayload::Script(script)),
                ..
            })
            | TransactionPayload::Payload(TransactionPayloadInner::V1 {
                executable: TransactionExecutable::Script(script),
                ..
            }) => script.account_change(),
            TransactionPayload::ModuleBundle(never) => match *never {},
            TransactionPayload::Multisig(Multisig {
                transaction_payload: None,
                ..
            })
            | TransactionPayload::Payload(TransactionPayloadInner::V1 {
                executable: TransactionExecutable::Empty,
                ..
            }) => None,
        }
    }
}

impl EntryFunction {
    /// What it changes about who may sign for the account.
    pub(crate) fn account_change(&self) -> Option<AccountChange> {
        changes_account(&self.module, &self.function).then_some(AccountChange::AptosKeyRotation)
    }

    /// Whether it is one of the framework's functions by which something goes to others, and none of
    /// those that [`transfers`] reads: how much of what is not known. A store may be of any asset, an
    /// object goes with all that it holds.
    pub(crate) fn moves_unread_assets(&self) -> bool {
        let function = self.function.as_str();
        // Deposits and withdrawals for other accounts, accounts that are made with coins in them, offers.
        let for_others = function.contains("transfer")
            || function == "offer_script"
            || function.ends_with("_to")
            || function.ends_with("_and_fund");
        self.publisher().is_none()
            && find(&self.module, &self.function).is_none()
            && for_others
            && !function.starts_with("set_")
    }

    /// Whom the call trusts in addition to those that it plainly sends to: the account that has published
    /// the module, which gets the signature. `None` for the framework, of which everything else would
    /// be trusted too.
    pub(crate) fn publisher(&self) -> Option<Address> {
        let (high, low) = self.module.address.inner().split_at(Address::LENGTH - 1);
        let is_special = high.iter().all(|byte| *byte == 0) && low.iter().all(|byte| *byte < 16);
        (!is_special).then_some(self.module.address)
    }
}

impl Script {
    /// What it plainly changes about who may sign for the account.
    pub(crate) fn account_change(&self) -> Option<AccountChange> {
        let names = |name: &&[u8]| self.code.windows(name.len()).any(|code| code == *name);
        IN_SCRIPTS
            .iter()
            .any(names)
            .then_some(AccountChange::AptosKeyRotation)
    }
}

/// What a call plainly moves. Nothing, where the function is another one or its arguments are
/// not such that the chain would run it.
pub(crate) fn transfers(entry: &EntryFunction) -> Vec<CoinTransfer> {
    find(&entry.module, &entry.function)
        .and_then(|known| read(known, entry))
        .unwrap_or_default()
}

fn read(known: &KnownFunction, entry: &EntryFunction) -> Option<Vec<CoinTransfer>> {
    let mut args = entry.args.iter();
    let coin = match (known.sends, entry.ty_args.as_slice()) {
        (Sends::Coin, []) => None,
        (Sends::TypeArgument, [TypeTag::Struct(tag)]) => {
            AptosCoin::Type((**tag).clone()).metadata()
        }
        (Sends::FirstArgument, _) => AptosCoin::Asset(value(args.next()?)?).metadata(),
        (Sends::Coin | Sends::TypeArgument, _) => return None,
    };
    let (to, amounts) = (args.next()?, args.next()?);
    let (to, amounts) = if known.params.contains(&ADDRESSES) {
        (value(to)?, value(amounts)?)
    } else {
        (vec![value(to)?], vec![value(amounts)?])
    };
    let pairs = (to.len() == amounts.len()).then(|| to.into_iter().zip(amounts))?;
    Some(
        pairs
            .map(|(to, amount)| CoinTransfer {
                asset: coin,
                to,
                amount,
            })
            .collect(),
    )
}

fn value<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    bcs::from_bytes(bytes).ok()
}

/// The call that sends the chain's coin; the recipient's account is made where there is none.
pub(super) fn send_native(to: Address, octas: u64) -> EntryFunction {
    EntryFunction {
        module: framework(const { Identifier::from_static("aptos_account") }),
        function: const { Identifier::from_static("transfer") },
        ty_args: Vec::new(),
        args: vec![address(to), amount(octas)],
    }
}

/// The call that sends any coin.
pub(super) fn send_coin(coin: &AptosCoin, to: Address, units: u64) -> EntryFunction {
    match coin {
        AptosCoin::Type(tag) => EntryFunction {
            module: framework(const { Identifier::from_static("aptos_account") }),
            function: const { Identifier::from_static("transfer_coins") },
            ty_args: vec![tag.clone().into()],
            args: vec![address(to), amount(units)],
        },
        AptosCoin::Asset(metadata) => {
            let object_of = StructTag::new(
                special(1),
                const { Identifier::from_static("fungible_asset") },
                const { Identifier::from_static("Metadata") },
                Vec::new(),
            );
            EntryFunction {
                module: framework(const { Identifier::from_static("primary_fungible_store") }),
                function: const { Identifier::from_static("transfer") },
                ty_args: vec![object_of.into()],
                args: vec![address(*metadata), address(to), amount(units)],
            }
        }
    }
}

fn framework(name: Identifier) -> ModuleId {
    ModuleId {
        address: special(1),
        name,
    }
}

/// In BCS.
fn address(address: Address) -> Vec<u8> {
    address.into_inner().to_vec()
}

/// In BCS.
fn amount(units: u64) -> Vec<u8> {
    units.to_le_bytes().to_vec()
}
