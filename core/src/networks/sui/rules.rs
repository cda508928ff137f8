//! How transactions and messages are built, signed and read.

use std::{borrow::Cow, collections::BTreeSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use curve25519_dalek::edwards::CompressedEdwardsY;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use sui_sdk_types::{
    Argument, Command, Ed25519PublicKey, Ed25519Signature, Input, PersonalMessage, SimpleSignature,
    Transaction, UserSignature,
};

use super::{
    address::{SUI, parse_address, parse_coin_type},
    chain_data::{ChainData, Queries, SuiValidity},
    coins::{self, CoinObject},
    payload::SuiPayload,
    selection,
    sent::read_sent,
    tx,
};
use crate::{
    amount::U256,
    fault::{Class, Fault},
    networks::{
        network::Network,
        rules::{
            Allocation, NetworkRules, Resource, Signed, SigningInput, Unsigned, lowest_free,
            objects, unexpected_chain_data,
        },
    },
    signature::{Curve, Signature},
};

/// The transaction to simulate for its gas, BCS `TransactionData`: the payment with the greatest
/// budget and no gas coins, which a node simulates with a coin of its own (gRPC
/// `SimulateTransaction` without gas selection). `chain_data` are all but [`ChainData::gas_used`].
///
/// # Errors
/// [`Class::Invalid`] when the facts cannot pay it, and [`Class::Bug`] when they are not those
/// that were asked for.
pub fn simulation(queries: &Queries, chain_data: &ChainData) -> Result<Vec<u8>, Fault> {
    let chain_data = selection::simulated(&queries.payment, chain_data);
    tx::encode(&tx::simulation(&queries.payment, &chain_data)?)
}

/// Two epochs, and a day more, in milliseconds.
const LONGEST_LIFE_MS: u64 = 3 * 86_400_000;

/// The Sui rules.
pub struct Sui;

impl NetworkRules for Sui {
    type Payload = SuiPayload;
    type Queries = Queries;
    type ChainData = ChainData;

    const NETWORK: Network = Network::Sui;
    const HASH_BEFORE_SIGNING: bool = true;
    /// 1 SUI.
    const DEFAULT_MOST_FEE: u64 = 1_000_000_000;
    const ENDS_BY_ITSELF: &'static str =
        "it expires at the end of the epoch after the one in which it was built";
    const PRICE_UNIT: &'static str = "MIST per unit of gas";

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
    fn is_sequenced(&self, _queries: &Queries) -> bool {
        true
    }

    /// Only the coins that are needed, of those that no other transaction spends, and a nonce that none has.
    fn allocate(
        &self,
        payload: &SuiPayload,
        chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation<ChainData>, Fault> {
        let SuiPayload::Payment(payment) = payload else {
            return Err(unexpected_chain_data());
        };
        chain_data.check(payment)?;
        self.check_chain_data(payload, &chain_data)?;
        let mut left = chain_data.clone();
        left.sui_coins = free(&chain_data.sui_coins, taken)?;
        left.coins = free(&chain_data.coins, taken)?;
        left.validity = chain_data
            .validity
            .as_ref()
            .map(|_| free_validity(&chain_data, taken))
            .transpose()?;
        Ok(match selection::choose(payment, &chain_data, &left)? {
            Some(chosen) => Allocation::ChainData(chosen),
            // Another transaction holds the coins; what it leaves may be enough.
            None => Allocation::Wait(
                "the required coins are reserved by other transactions of this wallet".into(),
            ),
        })
    }

    fn with_inputs(
        &self,
        chain_data: ChainData,
        inputs: &BTreeSet<Resource>,
    ) -> Result<ChainData, Fault> {
        Ok(ChainData {
            required: objects(inputs),
            ..chain_data
        })
    }

    fn candidate_inputs(&self, chain_data: &ChainData) -> Result<Vec<Resource>, Fault> {
        let coins = chain_data.sui_coins.iter().chain(&chain_data.coins);
        coins
            .map(|coin| Ok(Resource::Object(coin.object_resource()?)))
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
        // Of two who sign, each holds what is its own.
        let (gas, inputs) = match payload {
            SuiPayload::Custom(custom) => (custom.is_gas_owner(), custom.is_sender()),
            SuiPayload::Payment(_) | SuiPayload::Message(_) => (true, true),
        };
        let mut reservations = object_resources(&transaction, gas, inputs);
        let nonce = match payload {
            SuiPayload::Payment(_) => tx::nonce(&transaction.expiration),
            SuiPayload::Custom(_) | SuiPayload::Message(_) => None,
        };
        if let Some((epoch, nonce)) = nonce {
            reservations.push(Resource::Nonce(numbered(epoch, nonce)?));
        }
        if reservations.is_empty() {
            let whole = Sha256::digest(transaction.signing_digest());
            reservations.push(Resource::TxHash(whole.into()));
        }
        Ok(reservations)
    }

    /// Every coin object of a token must show its type: nothing else in the signed bytes does.
    fn check_chain_data(&self, payload: &SuiPayload, chain_data: &ChainData) -> Result<(), Fault> {
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
            SuiPayload::Payment(payment) => Cow::Owned(tx::payment(
                payment,
                chain_data.ok_or_else(unexpected_chain_data)?,
            )?),
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
    fn quoted_price(&self, _payload: &SuiPayload, chain_data: &ChainData) -> Option<u128> {
        chain_data.reference_gas_price.map(u128::from)
    }

    fn paid_price(&self, unsigned: &[u8]) -> Result<Option<u128>, Fault> {
        let transaction = tx::decode(unsigned).ok_or_else(unreadable)?;
        Ok(Some(transaction.gas_payment.price.into()))
    }

    fn default_most_price(&self, _chain_id: Option<u64>) -> u128 {
        20_000
    }

    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault> {
        let transaction = tx::decode(unsigned).ok_or_else(unreadable)?;
        Ok(U256::from(transaction.gas_payment.budget))
    }

    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str> {
        tx::difference(built, shown)
    }

    /// As JSON: `{"txBytes": base64, "signatures": [base64]}`, what `ExecuteTransaction` takes. A
    /// signature is flag, signature and public key; the sender's comes first.
    fn assemble(
        &self,
        payload: &SuiPayload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        public_key: &[u8],
    ) -> Result<Signed, Fault> {
        let ([input], [signature]) = (unsigned.signing.as_slice(), signatures) else {
            return Err(Fault::bug("a Sui transaction takes exactly one signature"));
        };
        let transaction = tx::decode(&unsigned.bytes).ok_or_else(unreadable)?;
        if transaction.signing_digest().as_slice() != input.message {
            return Err(Fault::bug("the digest does not match the transaction"));
        }
        let signature = UserSignature::Simple(SimpleSignature::Ed25519 {
            signature: Ed25519Signature::new(signature.to_bytes()),
            public_key: key(public_key)?,
        });
        let mut signatures = vec![signature.to_base64()];
        if let SuiPayload::Custom(custom) = payload {
            let others = custom.other_signatures.iter();
            let place = usize::from(custom.is_sender());
            signatures.splice(place..place, others.map(|other| STANDARD.encode(other)));
        }
        let text = serde_json::to_string(&SignedText {
            tx_bytes: STANDARD.encode(&unsigned.bytes),
            signatures,
        });
        Ok(Signed {
            transaction: text.map_err(Fault::bug)?,
            tx_hash: transaction.digest().to_base58(),
        })
    }

    fn exclusive_inputs(&self, signed: &Signed) -> Result<Vec<Resource>, Fault> {
        let sent = read_sent(&signed.transaction)?;
        let transaction = tx::decode(&sent.transaction).ok_or_else(unreadable)?;
        Ok(object_resources(&transaction, true, true))
    }

    /// Its last epoch is the one after that in which it was built. An epoch takes a day, and may begin late.
    fn longest_life_ms(&self, signed: &Signed) -> Result<Option<u64>, Fault> {
        let sent = read_sent(&signed.transaction)?;
        Ok(sent.last_epoch.map(|_| LONGEST_LIFE_MS))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SignedText {
    tx_bytes: String,
    signatures: Vec<String>,
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
/// commands split, merge, transfer or put into vectors. Of the gas coins and the sender's objects those alone
/// that are wanted.
fn object_resources(transaction: &Transaction, gas: bool, inputs: bool) -> Vec<Resource> {
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
    let gas = transaction.gas_payment.objects.iter().filter(|_| gas);
    let all = program.inputs.iter().enumerate();
    let inputs = all
        .filter(|_| inputs)
        .filter_map(|(index, input)| match input {
            Input::ImmutableOrOwned(object) => owned.contains(&index).then_some(object),
            Input::Receiving(object) => Some(object),
            _ => None,
        });
    let objects: BTreeSet<_> = gas
        .chain(inputs)
        .filter(|object| !coins::is_reservation(object.digest()))
        .map(|object| Resource::Object(coins::object_resource(object)))
        .collect();
    objects.into_iter().collect()
}

fn free(coins: &[CoinObject], taken: &BTreeSet<Resource>) -> Result<Vec<CoinObject>, Fault> {
    let mut free = Vec::with_capacity(coins.len());
    for coin in coins {
        if !taken.contains(&Resource::Object(coin.object_resource()?)) {
            free.push(coin.clone());
        }
    }
    Ok(free)
}

/// The same epoch and chain with the next nonce that is free.
fn free_validity(chain_data: &ChainData, taken: &BTreeSet<Resource>) -> Result<SuiValidity, Fault> {
    let (epoch, chain) = tx::now(chain_data)?;
    let nonce = chain_data.validity.as_ref().and_then(|now| now.nonce);
    let nonce = nonce
        .map(|nonce| {
            let free = lowest_free(numbered(epoch, nonce)?, taken)?;
            let first = numbered(epoch, 0)?;
            let free = match u32::try_from(free - first) {
                Ok(nonce) => nonce,
                // Up to the last one all are taken: begin again.
                Err(_) => u32::try_from(lowest_free(first, taken)? - first)
                    .map_err(|_| Fault::bug("nonces are used up"))?,
            };
            Ok::<u32, Fault>(free)
        })
        .transpose()?;
    Ok(SuiValidity {
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

#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;
