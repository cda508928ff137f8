//! Sui.
//!
//! Payments are programmable transactions as the TypeScript SDK makes them. Money lies in coin
//! objects and in address balances (SIP-58); both are spent. A payment takes all coin objects that
//! the facts name, so that what is left comes back as one coin.

mod coins;
mod json;
mod seen;
mod sent;
#[cfg(test)]
mod tests;
mod tx;

use std::{borrow::Cow, collections::BTreeSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use curve25519_dalek::edwards::CompressedEdwardsY;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sui_sdk_types::{
    Address, Argument, Command, Digest, Ed25519PublicKey, Ed25519Signature, Input, PersonalMessage,
    SimpleSignature, StructTag, Transaction, UserSignature,
};

pub use self::coins::{Coin, MAX_COINS, Origin};
pub(crate) use self::seen::{Seen, seen, sets_alias};
pub use self::sent::{Owned, Sent, read_sent};
use crate::{
    amount::U256,
    chain::{Allocation, NetworkRules, Resource, Signed, SigningInput, Unsigned, rules::not_those},
    fault::{Class, Fault},
    network::Network,
    payload::sui::{Payment, SuiPayload},
    signature::{Curve, Signature},
};

/// The type of SUI as [`parse_coin_type`] writes it.
pub const SUI: &str =
    "0x0000000000000000000000000000000000000000000000000000000000000002::sui::SUI";

/// Bytes of a coin type's text; far more than any that is in use.
const MAX_TYPE_BYTES: usize = 2048;

/// What a Sui node must be asked: always the sender's SUI coins and SUI address balance, those of
/// the type that is paid where it is a token, the epoch and the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queries {
    /// What is to be paid.
    pub payment: Payment,
    /// Whether the reference gas price is wanted (the request brings no `gasFee.price`).
    pub price: bool,
    /// Whether the gas that [`simulation`] takes is wanted (the request brings no
    /// `gasFee.budget`). It is asked last: the simulated transaction is made of the other facts.
    pub simulation: bool,
}

/// What a Sui node said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainData {
    /// The epoch's reference gas price, MIST per unit, where it was asked for.
    pub reference_gas_price: Option<u64>,
    /// The gas that the simulation took, where it was asked for. (In a box so that facts of other
    /// networks need not have the size of these.)
    pub gas_used: Option<Box<GasUsed>>,
    /// Coin objects of SUI that the sender's address owns; at most [`MAX_COINS`]. The first 256
    /// pay.
    pub sui_coins: Vec<Coin>,
    /// The sender's SUI that lies in no coin object (SIP-58), MIST.
    pub sui_address_balance: u64,
    /// Coin objects of the token that is paid; at most [`MAX_COINS`]. Empty for SUI.
    pub coins: Vec<Coin>,
    /// The token that lies in no coin object (SIP-58), in its smallest unit; 0 for SUI.
    pub coin_address_balance: u64,
    /// Epoch and chain, for what is paid out of address balances. A node is always asked.
    pub validity: Option<Validity>,
}

/// What a simulated transaction took, in MIST (`effects.gasUsed`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GasUsed {
    /// Computation.
    pub computation_cost: u64,
    /// Storage that is bought.
    pub storage_cost: u64,
    /// Storage that is given back.
    pub storage_rebate: u64,
}

/// Where and when a transaction without coin objects is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validity {
    /// The present epoch. Such a transaction is valid in this one and the next.
    pub epoch: u64,
    /// The digest of the chain's genesis checkpoint, base58.
    pub chain_identifier: String,
    /// What tells two equal transactions apart: any number, best a random one. `allocate` moves it
    /// on to one that is free.
    pub nonce: Option<u32>,
}

/// Why a text is not a Sui address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not `0x` and 64 hex digits. Short forms are of system objects, and a typo away from money
    /// lost.
    #[error("must be a Sui address: 0x and 64 hex digits")]
    Form,
}

/// Why a text is not a coin type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoinTypeError {
    /// Not a Move struct.
    #[error("must be a coin type, e.g. 0x2::sui::SUI")]
    Form,
}

/// Parses `0x` and 64 hex digits.
///
/// # Errors
/// See [`AddressError`].
pub fn parse_address(text: &str) -> Result<Address, AddressError> {
    let mut bytes = [0; Address::LENGTH];
    text.strip_prefix("0x")
        .and_then(|digits| hex::decode_to_slice(digits, &mut bytes).ok())
        .map(|()| Address::new(bytes))
        .ok_or(AddressError::Form)
}

/// Parses base58 of exactly 32 bytes ([`Digest::from_base58`] takes fewer too).
fn parse_digest(text: &str) -> Option<Digest> {
    let mut bytes = [0; Digest::LENGTH];
    let length = bs58::decode(text).onto(&mut bytes).ok()?;
    (length == Digest::LENGTH).then(|| Digest::new(bytes))
}

/// Parses a coin type, `package::module::Name`, maybe with type arguments. Addresses in it may be
/// short; printed, it has them in full.
///
/// # Errors
/// See [`CoinTypeError`].
pub fn parse_coin_type(text: &str) -> Result<StructTag, CoinTypeError> {
    if text.len() > MAX_TYPE_BYTES {
        return Err(CoinTypeError::Form);
    }
    let coin: StructTag = text.parse().map_err(|_| CoinTypeError::Form)?;
    // What is printed has to be read again.
    if coin.to_string().len() > MAX_TYPE_BYTES {
        return Err(CoinTypeError::Form);
    }
    Ok(coin)
}

/// The transaction to simulate for its gas, BCS `TransactionData`: the payment with the greatest
/// budget and no gas coins, which a node simulates with a coin of its own (gRPC
/// `SimulateTransaction` without gas selection). `chain_data` are all but [`ChainData::gas_used`].
///
/// # Errors
/// [`Class::Invalid`] when the facts cannot pay it, and [`Class::Bug`] when they are not those
/// that were asked for.
pub fn simulation(queries: &Queries, chain_data: &ChainData) -> Result<Vec<u8>, Fault> {
    tx::encode(&tx::simulation(&queries.payment, chain_data)?)
}

/// Reads what a suiSendCustom brings: BCS `TransactionData`, or the JSON of @mysten/sui. Both in
/// their BCS form.
///
/// # Errors
/// [`Class::Invalid`] naming `payload`.
pub(crate) fn read_custom(payload: &[u8]) -> Result<(Vec<u8>, Transaction), Fault> {
    let wrong = |problem: &str| Fault::field("payload", problem);
    // TransactionData begins with its version, 0.
    let bytes = match payload.trim_ascii_start().first() {
        Some(b'{') => Cow::Owned(
            tx::encode(&json::read(payload)?)
                .map_err(|_| wrong("is too long: at most 128 KiB in BCS"))?,
        ),
        _ => Cow::Borrowed(payload),
    };
    let transaction = tx::decode(&bytes).ok_or_else(|| {
        wrong(
            "must be a programmable transaction: BCS TransactionData, or the JSON of \
             Transaction.toJSON of @mysten/sui",
        )
    })?;
    Ok((bytes.into_owned(), transaction))
}

/// The Sui rules.
pub struct Sui;

impl NetworkRules for Sui {
    type Payload = SuiPayload;
    type Queries = Queries;
    type ChainData = ChainData;

    const NETWORK: Network = Network::Sui;

    /// BLAKE2b-256 over the scheme's flag (0 for Ed25519) and the key.
    fn address(&self, public_key: &[u8]) -> Result<String, Fault> {
        Ok(key(public_key)?.derive_address().to_string())
    }

    fn parse_address(&self, text: &str) -> Result<String, Fault> {
        parse_address(text)
            .map(|address| address.to_string())
            .map_err(|error| Fault::new(Class::Invalid, error.to_string()))
    }

    fn parse_token(&self, text: &str) -> Result<String, Fault> {
        parse_coin_type(text)
            .map(|coin| coin.to_string())
            .map_err(|error| Fault::new(Class::Invalid, error.to_string()))
    }

    fn is_coin(&self, token: &str) -> bool {
        token == SUI
    }

    fn queries(&self, payload: &SuiPayload) -> Option<Queries> {
        match payload {
            SuiPayload::Payment(payment) => Some(Queries {
                payment: payment.clone(),
                price: payment.gas.price.is_none(),
                simulation: payment.gas.budget.is_none(),
            }),
            SuiPayload::Custom(_) | SuiPayload::Message(_) => None,
        }
    }

    /// Every payment takes coins, or needs a nonce of its own.
    fn is_sequenced(&self, queries: &super::Queries) -> bool {
        matches!(queries, super::Queries::Sui(_))
    }

    /// Without the coins that other transactions spend, and with a nonce that none has.
    fn allocate(
        &self,
        payload: &SuiPayload,
        chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation, Fault> {
        let SuiPayload::Payment(payment) = payload else {
            return Err(not_those());
        };
        chain_data.check(payment)?;
        self.vouch(payload, &chain_data)?;
        let (_, budget) = tx::gas(payment, &chain_data)?;
        let mut left = chain_data.clone();
        left.sui_coins = free(&chain_data.sui_coins, taken)?;
        left.coins = free(&chain_data.coins, taken)?;
        left.validity = chain_data
            .validity
            .as_ref()
            .map(|_| free_validity(&chain_data, taken))
            .transpose()?;
        match tx::funds(payment, &left, budget) {
            Ok(()) => Ok(Allocation::ChainData(left.into())),
            // Another transaction holds the coins; what it leaves may be enough.
            Err(_) if tx::funds(payment, &chain_data, budget).is_ok() => Ok(Allocation::Wait(
                "other transactions of the wallet hold the coins that it needs; they are free \
                 again once those are done"
                    .into(),
            )),
            Err(short) => Err(short),
        }
    }

    fn candidate_inputs(&self, chain_data: &ChainData) -> Result<Vec<Resource>, Fault> {
        let coins = chain_data.sui_coins.iter().chain(&chain_data.coins);
        coins
            .map(|coin| Ok(Resource::Object(coin.piece()?)))
            .collect()
    }

    /// The owned objects at their versions; two transactions with one of them lock it for the
    /// rest of the epoch. Where there are none, the nonce or the whole transaction.
    ///
    /// Objects that only functions take are left out: they may be immutable, and such a one has
    /// its one version for all transactions.
    fn reservations(
        &self,
        payload: &SuiPayload,
        unsigned: &Unsigned,
    ) -> Result<Vec<Resource>, Fault> {
        let transaction = tx::decode(&unsigned.bytes).ok_or_else(unreadable)?;
        let mut reservations = pieces(&transaction);
        let nonce = match payload {
            SuiPayload::Payment(_) => tx::nonce(&transaction.expiration),
            SuiPayload::Custom(_) | SuiPayload::Message(_) => None,
        };
        if let Some((epoch, nonce)) = nonce {
            reservations.push(Resource::Nonce(numbered(epoch, nonce)?));
        }
        if reservations.is_empty() {
            let whole = Sha256::digest(transaction.signing_digest());
            reservations.push(Resource::Whole(whole.into()));
        }
        Ok(reservations)
    }

    /// Every coin object of a token must show its type: nothing else in the signed bytes does.
    fn vouch(&self, payload: &SuiPayload, chain_data: &ChainData) -> Result<(), Fault> {
        let SuiPayload::Payment(payment) = payload else {
            return Ok(());
        };
        let Some(token) = payment.token() else {
            return Ok(());
        };
        let token = parse_coin_type(token).map_err(Fault::bug)?;
        let owner = parse_address(&payment.from).map_err(Fault::bug)?;
        for coin in &chain_data.coins {
            if !coin.is_of(&token, owner)? {
                let sentence = format_args!(
                    "do not show that {} is a coin of {token} that the wallet owns",
                    coin.object_id
                );
                return Err(Fault::field("chainData", sentence));
            }
        }
        Ok(())
    }

    fn build(
        &self,
        payload: &SuiPayload,
        chain_data: Option<&ChainData>,
        _public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        let transaction = match payload {
            SuiPayload::Payment(payment) => {
                Cow::Owned(tx::payment(payment, chain_data.ok_or_else(not_those)?)?)
            }
            SuiPayload::Custom(custom) => Cow::Borrowed(&*custom.transaction),
            SuiPayload::Message(message) => {
                let message = PersonalMessage(Cow::Borrowed(&message.content));
                return Ok(Unsigned {
                    bytes: Vec::new(),
                    signing: vec![input(message.signing_digest())],
                });
            }
        };
        Ok(Unsigned {
            bytes: tx::encode(&transaction)?,
            signing: vec![input(transaction.signing_digest())],
        })
    }

    /// The gas budget.
    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault> {
        let transaction = tx::decode(unsigned).ok_or_else(unreadable)?;
        Ok(U256::from(transaction.gas_payment.budget))
    }

    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str> {
        tx::difference(built, shown)
    }

    /// As JSON: `{"txBytes": base64, "signatures": [base64]}`, what `ExecuteTransaction` takes. A
    /// signature is flag, signature and public key.
    fn assemble(
        &self,
        _payload: &SuiPayload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        public_key: &[u8],
    ) -> Result<Signed, Fault> {
        let ([input], [signature]) = (unsigned.signing.as_slice(), signatures) else {
            return Err(Fault::bug("a Sui transaction takes exactly one signature"));
        };
        let transaction = tx::decode(&unsigned.bytes).ok_or_else(unreadable)?;
        if transaction.signing_digest().as_slice() != input.message {
            return Err(Fault::bug("the digest is not that of the transaction"));
        }
        let signature = UserSignature::Simple(SimpleSignature::Ed25519 {
            signature: Ed25519Signature::new(signature.to_bytes()),
            public_key: key(public_key)?,
        });
        let text = serde_json::to_string(&SignedText {
            tx_bytes: STANDARD.encode(&unsigned.bytes),
            signatures: [signature.to_base64()],
        });
        Ok(Signed {
            transaction: text.map_err(Fault::bug)?,
            tx_hash: transaction.digest().to_base58(),
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SignedText {
    tx_bytes: String,
    signatures: [String; 1],
}

/// A public key as RFC 8032 encodes it; one of small order is nobody's.
fn key(public_key: &[u8]) -> Result<Ed25519PublicKey, Fault> {
    let bytes: [u8; 32] = public_key
        .try_into()
        .map_err(|_| Fault::bug("an Ed25519 public key has 32 bytes"))?;
    CompressedEdwardsY(bytes)
        .decompress()
        .filter(|point| point.compress().to_bytes() == bytes && !point.is_small_order())
        .map(|_| Ed25519PublicKey::new(bytes))
        .ok_or_else(|| Fault::bug("not an Ed25519 public key"))
}

/// What is signed is the digest of intent and transaction or message.
fn input(digest: [u8; 32]) -> SigningInput {
    SigningInput {
        curve: Curve::Ed25519,
        message: digest.to_vec(),
    }
}

fn unreadable() -> Fault {
    Fault::bug("the unsigned transaction cannot be read")
}

/// Objects that a transaction uses up for certain: gas coins, what it receives, and what its
/// commands split, merge, transfer or put into vectors.
fn pieces(transaction: &Transaction) -> Vec<Resource> {
    let Some(program) = tx::program_of(transaction) else {
        return Vec::new();
    };
    let mut owned = BTreeSet::new();
    for command in &program.commands {
        let arguments: Vec<Argument> = match command {
            Command::TransferObjects(command) => command.objects.clone(),
            Command::SplitCoins(command) => vec![command.coin],
            Command::MergeCoins(command) => {
                let mut all = command.coins_to_merge.clone();
                all.push(command.coin);
                all
            }
            Command::MakeMoveVector(command) => command.elements.clone(),
            _ => Vec::new(),
        };
        owned.extend(arguments.into_iter().filter_map(|argument| match argument {
            Argument::Input(index) => Some(usize::from(index)),
            _ => None,
        }));
    }
    let gas = transaction.gas_payment.objects.iter();
    let inputs = program
        .inputs
        .iter()
        .enumerate()
        .filter_map(|(index, input)| match input {
            Input::ImmutableOrOwned(object) => owned.contains(&index).then_some(object),
            Input::Receiving(object) => Some(object),
            _ => None,
        });
    let objects: BTreeSet<_> = gas
        .chain(inputs)
        .filter(|object| !coins::is_reservation(object.digest()))
        .map(|object| Resource::Object(coins::piece(object)))
        .collect();
    objects.into_iter().collect()
}

fn free(coins: &[Coin], taken: &BTreeSet<Resource>) -> Result<Vec<Coin>, Fault> {
    let mut free = Vec::with_capacity(coins.len());
    for coin in coins {
        if !taken.contains(&Resource::Object(coin.piece()?)) {
            free.push(coin.clone());
        }
    }
    Ok(free)
}

/// The same epoch and chain with the next nonce that is free.
fn free_validity(chain_data: &ChainData, taken: &BTreeSet<Resource>) -> Result<Validity, Fault> {
    let (epoch, chain) = tx::now(chain_data)?;
    let nonce = chain_data.validity.as_ref().and_then(|now| now.nonce);
    let nonce = nonce
        .map(|nonce| {
            let free = super::lowest_free(numbered(epoch, nonce)?, taken)?;
            let first = numbered(epoch, 0)?;
            let free = match u32::try_from(free - first) {
                Ok(nonce) => nonce,
                // Up to the last one all are taken: begin anew.
                Err(_) => u32::try_from(super::lowest_free(first, taken)? - first)
                    .map_err(|_| Fault::bug("nonces are used up"))?,
            };
            Ok::<u32, Fault>(free)
        })
        .transpose()?;
    Ok(Validity {
        epoch,
        chain_identifier: chain.to_base58(),
        nonce,
    })
}

/// A nonce and the epoch that it belongs to, as one number.
fn numbered(epoch: u64, nonce: u32) -> Result<u64, Fault> {
    let epoch = u32::try_from(epoch).map_err(|_| Fault::bug("an epoch beyond 32 bits"))?;
    Ok(u64::from(epoch) << 32 | u64::from(nonce))
}
