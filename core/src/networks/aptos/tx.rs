//! Aptos transactions in BCS.
//!
//! The types are those of aptos-core (types/src/transaction), with its names. The order of
//! variants and fields is their encoding.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha3::{Digest as _, Sha3_256};
use sui_sdk_types::{Address, Identifier, TypeTag};

use super::move_types;
use crate::{amount::U256, fault::Fault, networks::rules::Signed};

/// The most bytes of a transaction (`max_transaction_size_in_bytes` of the gas schedule).
pub(crate) const MAX_BYTES: usize = 64 * 1024;
/// Where the variant of the payload stands in a [`RawTransaction`]: after sender and sequence
/// number.
pub(crate) const PAYLOAD_AT: usize = 40;

/// What is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawTransaction {
    /// Whose transaction it is, and who pays unless another one is named.
    pub sender: Address,
    /// The sender's sequence number; 2^64 - 1 in an orderless one.
    pub sequence_number: u64,
    /// What it does.
    pub payload: TransactionPayload,
    /// The most units of gas.
    pub max_gas_amount: u64,
    /// octa per unit of gas.
    pub gas_unit_price: u64,
    /// Seconds since the Unix epoch from which on it is void.
    pub expiration_timestamp_secs: u64,
    /// 1 for Aptos, 126 for Movement.
    pub chain_id: u8,
}

/// What a transaction does. Newer variants (encrypted payloads) do not say, and are not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransactionPayload {
    /// Runs bytecode that it brings.
    Script(Script),
    /// No chain takes it.
    ModuleBundle(Uninhabited),
    /// Calls an entry function.
    EntryFunction(EntryFunction),
    /// Acts for a multisig account.
    Multisig(Multisig),
    /// Any of these in the newer form.
    Payload(TransactionPayloadInner),
}

/// There is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Uninhabited {}

/// A call of an entry function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryFunction {
    /// The module.
    pub module: ModuleId,
    /// The function.
    pub function: Identifier,
    /// Its type arguments.
    pub ty_args: Vec<TypeTag>,
    /// Its arguments without the signer, each in BCS.
    pub args: Vec<Vec<u8>>,
}

/// The name of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleId {
    /// The account that has published it.
    pub address: Address,
    /// Its name there.
    pub name: Identifier,
}

/// Bytecode and its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// Bytecode.
    pub code: Vec<u8>,
    /// Type arguments.
    pub ty_args: Vec<TypeTag>,
    /// Arguments without the signer.
    pub args: Vec<TransactionArgument>,
}

/// An argument of a script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the Move types that they are called after")]
pub enum TransactionArgument {
    U8(u8),
    U64(u64),
    U128(u128),
    Address(Address),
    U8Vector(Vec<u8>),
    Bool(bool),
    U16(u16),
    U32(u32),
    U256([u8; 32]),
    Serialized(Vec<u8>),
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    I128(i128),
    I256([u8; 32]),
}

/// A transaction that is run as a multisig account, of which the sender is an owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Multisig {
    /// The account.
    pub multisig_address: Address,
    /// What is run; `None` when the chain has it.
    pub transaction_payload: Option<MultisigTransactionPayload>,
}

/// What is run as a multisig account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MultisigTransactionPayload {
    /// Calls an entry function.
    EntryFunction(EntryFunction),
    /// Runs bytecode.
    Script(Script),
}

/// The newer form of a payload (AIP-129).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransactionPayloadInner {
    /// Its first version.
    V1 {
        /// What is run.
        executable: TransactionExecutable,
        /// How.
        extra_config: TransactionExtraConfig,
    },
}

/// What is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransactionExecutable {
    /// Bytecode.
    Script(Script),
    /// An entry function.
    EntryFunction(EntryFunction),
    /// What the multisig account has on the chain.
    Empty,
}

/// How it is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransactionExtraConfig {
    /// Its first version.
    V1 {
        /// Run as this multisig account.
        multisig_address: Option<Address>,
        /// Makes the transaction orderless: the nonce takes the place of the sequence number.
        replay_protection_nonce: Option<u64>,
    },
}

/// Proof of who the sender is, and who pays. Others exist; a wallet here has one Ed25519 key.
#[derive(Serialize, Deserialize)]
pub(super) enum TransactionAuthenticator {
    Ed25519 {
        public_key: Vec<u8>,
        signature: Vec<u8>,
    },
    MultiEd25519,
    MultiAgent,
    FeePayer {
        sender: AccountAuthenticator,
        secondary_signer_addresses: Vec<Address>,
        secondary_signers: Vec<AccountAuthenticator>,
        fee_payer_address: Address,
        fee_payer_signer: AccountAuthenticator,
    },
    SingleSender(AccountAuthenticator),
}

/// Proof of who one of those is who sign.
#[derive(Serialize, Deserialize)]
pub(super) enum AccountAuthenticator {
    Ed25519 {
        public_key: Vec<u8>,
        signature: Vec<u8>,
    },
    MultiEd25519,
    SingleKey {
        public_key: AnyPublicKey,
        signature: AnySignature,
    },
    MultiKey,
    /// `NoAccountAuthenticator`.
    None,
}

/// A key of `SingleKey`. Others exist.
#[derive(Serialize, Deserialize)]
pub(super) enum AnyPublicKey {
    Ed25519(Vec<u8>),
}

/// A signature of `SingleKey`. Others exist.
#[derive(Serialize, Deserialize)]
pub(super) enum AnySignature {
    Ed25519(Vec<u8>),
}

/// What nodes take.
#[derive(Serialize, Deserialize)]
struct SignedTransaction {
    raw_txn: RawTransaction,
    authenticator: TransactionAuthenticator,
}

/// `RawTransactionWithData` of aptos-core.
#[derive(Serialize)]
enum RawTransactionWithData<'a> {
    #[expect(dead_code, reason = "keeps its number")]
    MultiAgent,
    MultiAgentWithFeePayer {
        raw_txn: &'a RawTransaction,
        secondary_signer_addresses: Vec<Address>,
        fee_payer_address: Address,
    },
}

/// What both sign, which is also how an unsigned transaction is written here: no [`RawTransaction`] of a wallet
/// begins with the hash of that name.
pub(super) fn message_with_payer(
    raw_txn: &RawTransaction,
    payer: Address,
) -> Result<Vec<u8>, Fault> {
    let with_data = RawTransactionWithData::MultiAgentWithFeePayer {
        raw_txn,
        secondary_signer_addresses: Vec::new(),
        fee_payer_address: payer,
    };
    let bytes = bcs::to_bytes(&with_data).map_err(Fault::bug)?;
    Ok([payer_salt().as_slice(), &bytes].concat())
}

/// Reads what [`message_with_payer`] made. `None` where it is something else.
fn read_message_with_payer(bytes: &[u8]) -> Option<(RawTransaction, Address)> {
    let rest = bytes
        .strip_prefix(payer_salt().as_slice())?
        .strip_prefix(&[1])?;
    let end = rest.len().checked_sub(Address::LENGTH + 1)?;
    let (raw, data) = rest.split_at_checked(end)?;
    let payer = Address::from_bytes(data.strip_prefix(&[0])?).ok()?;
    Some((RawTransaction::decode(raw)?, payer))
}

fn payer_salt() -> [u8; 32] {
    Sha3_256::digest("APTOS::RawTransactionWithData").into()
}

/// Reads BCS in its one form.
pub(super) fn strictly<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let value: T = bcs::from_bytes(bytes).ok()?;
    (bcs::to_bytes(&value).ok()? == bytes).then_some(value)
}

impl RawTransaction {
    /// Reads a transaction; `None` when the bytes are not exactly one that the chain can take.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MAX_BYTES {
            return None;
        }
        let transaction: Self = bcs::from_bytes(bytes).ok()?;
        let fits = transaction.ty_args().iter().all(move_types::fits);
        // What is signed is what was read, byte for byte.
        (fits && bcs::to_bytes(&transaction).ok()? == bytes).then_some(transaction)
    }

    /// Its BCS.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, Fault> {
        bcs::to_bytes(self).map_err(Fault::bug)
    }

    fn ty_args(&self) -> &[TypeTag] {
        use TransactionExecutable as Executable;
        match &self.payload {
            TransactionPayload::Script(script)
            | TransactionPayload::Multisig(Multisig {
                transaction_payload: Some(MultisigTransactionPayload::Script(script)),
                ..
            })
            | TransactionPayload::Payload(TransactionPayloadInner::V1 {
                executable: Executable::Script(script),
                ..
            }) => &script.ty_args,
            TransactionPayload::EntryFunction(entry)
            | TransactionPayload::Multisig(Multisig {
                transaction_payload: Some(MultisigTransactionPayload::EntryFunction(entry)),
                ..
            })
            | TransactionPayload::Payload(TransactionPayloadInner::V1 {
                executable: Executable::EntryFunction(entry),
                ..
            }) => &entry.ty_args,
            TransactionPayload::ModuleBundle(never) => match *never {},
            TransactionPayload::Multisig(Multisig {
                transaction_payload: None,
                ..
            })
            | TransactionPayload::Payload(TransactionPayloadInner::V1 {
                executable: Executable::Empty,
                ..
            }) => &[],
        }
    }

    /// The entry function that is called as the sender, where it is one.
    pub(crate) fn called(&self) -> Option<&EntryFunction> {
        match &self.payload {
            TransactionPayload::EntryFunction(entry)
            | TransactionPayload::Payload(TransactionPayloadInner::V1 {
                executable: TransactionExecutable::EntryFunction(entry),
                extra_config:
                    TransactionExtraConfig::V1 {
                        multisig_address: None,
                        ..
                    },
            }) => Some(entry),
            _ => None,
        }
    }

    /// Whether a nonce of its own takes the place of the sequence number (AIP-123).
    pub(crate) fn is_orderless(&self) -> bool {
        matches!(
            self.payload,
            TransactionPayload::Payload(TransactionPayloadInner::V1 {
                extra_config: TransactionExtraConfig::V1 {
                    replay_protection_nonce: Some(_),
                    ..
                },
                ..
            })
        )
    }

    /// octa, when all its gas is used.
    pub(crate) fn most_fee(&self) -> U256 {
        // 64 and 64 bits: it always fits.
        U256::from(self.max_gas_amount).saturating_mul(U256::from(self.gas_unit_price))
    }
}

/// What [`super::Aptos`] has built, and who pays where that is not the sender.
pub(super) fn built(unsigned: &[u8]) -> Result<(RawTransaction, Option<Address>), Fault> {
    let with_payer = || {
        let (raw, payer) = read_message_with_payer(unsigned)?;
        Some((raw, Some(payer)))
    };
    with_payer()
        .or_else(|| Some((RawTransaction::decode(unsigned)?, None)))
        .ok_or_else(|| Fault::bug("the unsigned transaction cannot be read"))
}

/// Reads what `assemble` made: the bytes that nodes take, and the transaction in them.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when it is something else.
pub fn read_signed(signed: &Signed) -> Result<(Vec<u8>, RawTransaction), Fault> {
    let read = || {
        let bytes = hex::decode(signed.transaction.strip_prefix("0x")?).ok()?;
        let read: SignedTransaction = strictly(&bytes)?;
        Some((bytes, read.raw_txn))
    };
    read().ok_or_else(|| Fault::bug("the signed transaction cannot be read"))
}

/// The bytes that are signed: the hash of a type's name (`CryptoHasher` of aptos-core), then the
/// transaction.
pub(super) fn signing_message(unsigned: &[u8]) -> Vec<u8> {
    [
        Sha3_256::digest("APTOS::RawTransaction").as_slice(),
        unsigned,
    ]
    .concat()
}

/// Puts the signature to the transaction: `0x` and hex of the BCS that nodes take
/// (`application/x.aptos.signed_transaction+bcs`).
pub(super) fn assemble(
    unsigned: &[u8],
    authenticator: &TransactionAuthenticator,
) -> Result<Signed, Fault> {
    let signed = with_authenticator(unsigned, authenticator)?;
    // Variant 0 of `Transaction`: one of a user.
    let hash = Sha3_256::new()
        .chain_update(Sha3_256::digest("APTOS::Transaction"))
        .chain_update([0])
        .chain_update(&signed)
        .finalize();
    Ok(Signed {
        transaction: format!("0x{}", hex::encode(signed)),
        tx_hash: format!("0x{}", hex::encode(hash)),
    })
}

/// An unsigned transaction as nodes simulate it: with a placeholder signature. Without a key, older nodes refuse it.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when it cannot be serialized.
pub fn to_simulate(unsigned: &[u8], public_key: Option<&[u8]>) -> Result<Vec<u8>, Fault> {
    if read_message_with_payer(unsigned).is_some() {
        return Err(Fault::bug("the fee is paid by another account"));
    }
    let authenticator = match public_key {
        Some(public_key) => TransactionAuthenticator::Ed25519 {
            public_key: public_key.to_vec(),
            signature: vec![0; 64],
        },
        None => TransactionAuthenticator::SingleSender(AccountAuthenticator::None),
    };
    with_authenticator(unsigned, &authenticator)
}

fn with_authenticator(
    unsigned: &[u8],
    authenticator: &TransactionAuthenticator,
) -> Result<Vec<u8>, Fault> {
    let authenticator = bcs::to_bytes(authenticator).map_err(Fault::bug)?;
    Ok([unsigned, &authenticator].concat())
}
