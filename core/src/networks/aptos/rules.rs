//! How transactions and messages are built, signed and read.

use std::collections::BTreeSet;

use sha2::{Digest as _, Sha256};
use sui_sdk_types::Address;

use super::{
    address::{parse_address, sender},
    call::JsonCall,
    chain_data::{ChainData, CoinAmount, FunctionName, PlannedCall, Queries, SimulationQuery},
    move_types::AptosCoin,
    payload::{AptosAction, AptosPayload, AptosTransaction, CHAIN_IDS},
    transfers::{self, CoinTransfer},
    tx::{
        self, AccountAuthenticator, RawTransaction, TransactionAuthenticator, TransactionPayload,
    },
};
use crate::{
    amount::U256,
    fault::{Class, ExecuteCode, Fault},
    networks::{
        NetworkPayload as _,
        fee_level::FeeLevel,
        network::Network,
        rules::{
            Allocation, ChainIds, ChainMoment, NetworkRules, Replacement, Resource, Signed,
            SigningInput, Unsigned, lowest_free, unexpected_chain_data,
        },
    },
    signature::{Curve, Signature},
};

/// The most gas that a transaction may name (`maximum_number_of_gas_units` of the gas schedule).
const MAX_GAS: u64 = 2_000_000;

/// The Aptos rules.
pub struct Aptos;

impl NetworkRules for Aptos {
    type Payload = AptosPayload;
    type Queries = Queries;
    type ChainData = ChainData;

    const NETWORK: Network = Network::Aptos;
    const IS_NUMBERED: bool = true;
    /// 1 APT.
    const DEFAULT_MOST_FEE: u64 = 100_000_000;
    const PRICE_UNIT: &'static str = "octa per unit of gas";

    fn address(&self, public_key: &[u8]) -> Result<String, Fault> {
        sender(public_key).map(|address| address.to_string())
    }

    fn parse_address(&self, text: &str) -> Result<String, Fault> {
        parse_address(text)
            .map(|address| address.to_string())
            .map_err(|error| Fault::new(Class::Invalid, error.to_string()))
    }

    /// A coin type, or the metadata address of a fungible asset.
    fn parse_token(&self, text: &str) -> Result<String, Fault> {
        AptosCoin::parse(text)
            .map(|coin| coin.to_string())
            .map_err(|error| Fault::new(Class::Invalid, error.to_string()))
    }

    fn queries(&self, payload: &AptosPayload) -> Option<Queries> {
        match payload {
            AptosPayload::Transaction(transaction) => queries(transaction),
            AptosPayload::Message(_) => None,
        }
    }

    fn counted_token(&self, _chain_id: Option<u64>, token: String) -> Option<String> {
        counted_as(&token)
    }

    fn chain_ids(&self) -> Option<ChainIds> {
        Some(ChainIds {
            contains: |id| CHAIN_IDS.map(u64::from).contains(&id),
            problem: "must be aptos:1 (Aptos) or aptos:126 (Movement)",
            example: "aptos:1",
        })
    }

    fn is_sequenced(&self, queries: &Queries) -> bool {
        queries.sequence_number.is_none()
    }

    /// The lowest sequence number from the account's up that is free, unless the request brings its own.
    fn allocate(
        &self,
        payload: &AptosPayload,
        chain_data: ChainData,
        taken: &BTreeSet<Resource>,
    ) -> Result<Allocation<ChainData>, Fault> {
        if let AptosPayload::Transaction(transaction) = payload
            && transaction.sequence_number.is_some()
        {
            return Ok(Allocation::ChainData(chain_data));
        }
        let sequence_number = lowest_free(chain_data.sequence_number, taken)?;
        let chain_data = ChainData {
            sequence_number,
            ..chain_data
        };
        Ok(Allocation::ChainData(chain_data))
    }

    fn with_next_number(&self, chain_data: ChainData, number: u64) -> Result<ChainData, Fault> {
        Ok(ChainData {
            sequence_number: number,
            ..chain_data
        })
    }

    /// The sequence number, unless the transaction brings a nonce of its own.
    fn reservations(
        &self,
        payload: &AptosPayload,
        unsigned: &Unsigned,
    ) -> Result<Vec<Resource>, Fault> {
        let (transaction, payer) = tx::built(&unsigned.bytes)?;
        // Who only pays has no number in it.
        let pays_for_other = transaction.sender.to_string() != payload.from();
        Ok(vec![if transaction.is_orderless() || pays_for_other {
            let message = signing_message(&unsigned.bytes, payer);
            Resource::TxHash(Sha256::digest(message).into())
        } else {
            Resource::Nonce(transaction.sequence_number)
        }])
    }

    fn build(
        &self,
        payload: &AptosPayload,
        chain_data: Option<&ChainData>,
        public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        let (transaction, chain_data) = match (payload, chain_data) {
            (AptosPayload::Message(message), None) => {
                return Ok(Unsigned {
                    bytes: Vec::new(),
                    signing: vec![input(message.full_message().into_bytes())],
                });
            }
            (AptosPayload::Transaction(transaction), chain_data) => (transaction, chain_data),
            (AptosPayload::Message(_), Some(_)) => return Err(unexpected_chain_data()),
        };
        let bytes = match (&transaction.action, chain_data) {
            (AptosAction::Raw(raw), None) => match &transaction.fee_payer {
                Some(payer) => tx::message_with_payer(raw, payer.address)?,
                None => raw.encode()?,
            },
            (AptosAction::Raw(_), Some(_)) | (_, None) => return Err(unexpected_chain_data()),
            (_, Some(chain_data)) => raw(transaction, chain_data, sender(public_key)?)?.encode()?,
        };
        if bytes.len() > tx::MAX_BYTES {
            let problem = format_args!(
                "results in a transaction of more than {} bytes",
                tx::MAX_BYTES
            );
            return Err(Fault::field("payload", problem));
        }
        let payer = transaction.fee_payer.as_ref().map(|payer| payer.address);
        Ok(Unsigned {
            signing: vec![input(signing_message(&bytes, payer))],
            bytes,
        })
    }

    /// Mempools take a higher price, whatever it is: an eighth, as elsewhere.
    fn outbid(
        &self,
        payload: &AptosPayload,
        mut chain_data: ChainData,
        replaced: &Signed,
    ) -> Result<ChainData, Fault> {
        let (AptosPayload::Transaction(transaction), Some(price)) =
            (payload, chain_data.gas_unit_price)
        else {
            return Ok(chain_data);
        };
        let (_, replaced) = tx::read_signed(replaced)?;
        if transaction.sequence_number == Some(replaced.sequence_number) {
            chain_data.gas_unit_price = Some(price.max(above(replaced.gas_unit_price)));
        }
        Ok(chain_data)
    }

    /// The same transaction at a higher price: mempools take no other one with its number
    /// (`TransactionStore::insert` of aptos-core wants payload, expiration and gas to be the same).
    fn replacement(
        &self,
        payload: &AptosPayload,
        replaced: &Signed,
        how: Replacement,
    ) -> Result<AptosPayload, Fault> {
        let AptosPayload::Transaction(transaction) = payload else {
            return Err(Fault::bug("a message was sent"));
        };
        let (_, sent) = tx::read_signed(replaced)?;
        let refused = |why: &str| {
            let end_s = sent.expiration_timestamp_secs;
            let sentence = format!(
                "{why}; it cannot be included from second {end_s} since the Unix epoch on: wait until its \
                 transactionState is settled"
            );
            Err(Fault::new(Class::Invalid, sentence))
        };
        if how == Replacement::Cancel {
            return refused(
                "an Aptos transaction cannot be cancelled: nodes accept no other transaction with its sequence \
                 number while it is pending",
            );
        }
        if sent.is_orderless() {
            return refused(
                "the transaction has no sequence number, so that nothing can replace it",
            );
        }
        if transaction.fee_payer.is_some() {
            return refused(
                "another account than the sender pays its fee, so both would have to sign a new one",
            );
        }
        let mut transaction = transaction.clone();
        if let AptosAction::Raw(raw) = &mut transaction.action {
            *raw = RawTransaction {
                gas_unit_price: above(sent.gas_unit_price),
                ..sent
            };
        } else {
            transaction.max_gas_amount = Some(sent.max_gas_amount);
            transaction.gas_unit_price = None;
            transaction.level = Some(FeeLevel::Fast);
            transaction.sequence_number = Some(sent.sequence_number);
            transaction.expiration_timestamp_secs = Some(sent.expiration_timestamp_secs);
        }
        Ok(AptosPayload::Transaction(transaction))
    }

    fn gap_filler(&self, payload: &AptosPayload) -> Option<AptosPayload> {
        let AptosPayload::Transaction(transaction) = payload else {
            return None;
        };
        let AptosTransaction { chain_id, from, .. } = &**transaction;
        Some(AptosPayload::Transaction(Box::new(AptosTransaction {
            chain_id: *chain_id,
            from: from.clone(),
            // The framework has refused transfers of nothing.
            action: AptosAction::SendNative {
                to: parse_address(from).ok()?,
                octas: 1,
            },
            max_gas_amount: None,
            gas_unit_price: None,
            sequence_number: None,
            expiration_timestamp_secs: None,
            level: None,
            fee_payer: None,
        })))
    }

    fn quoted_price(&self, _payload: &AptosPayload, chain_data: &ChainData) -> Option<u128> {
        chain_data.gas_unit_price.map(u128::from)
    }

    fn paid_price(&self, unsigned: &[u8]) -> Result<Option<u128>, Fault> {
        let (transaction, _) = tx::built(unsigned)?;
        Ok(Some(transaction.gas_unit_price.into()))
    }

    fn default_most_price(&self, _chain_id: Option<u64>) -> u128 {
        10_000
    }

    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault> {
        tx::built(unsigned).map(|(transaction, _)| transaction.most_fee())
    }

    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str> {
        difference(built, shown)
    }

    fn assemble(
        &self,
        payload: &AptosPayload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        public_key: &[u8],
    ) -> Result<Signed, Fault> {
        let ([input], [signature]) = (unsigned.signing.as_slice(), signatures) else {
            return Err(Fault::bug(
                "the payload must have exactly one signing input",
            ));
        };
        let (raw, payer) = tx::built(&unsigned.bytes)?;
        if signing_message(&unsigned.bytes, payer) != input.message {
            return Err(Fault::bug("the signed message is not the transaction"));
        }
        let (public_key, signature) = (public_key.to_vec(), signature.to_bytes().to_vec());
        let named = match payload {
            AptosPayload::Transaction(transaction) => transaction.fee_payer.as_ref(),
            AptosPayload::Message(_) => None,
        };
        if payer != named.map(|named| named.address) {
            return Err(Fault::bug("the transaction names another fee payer"));
        }
        let Some(named) = named else {
            let authenticator = TransactionAuthenticator::Ed25519 {
                public_key,
                signature,
            };
            return tx::assemble(&unsigned.bytes, &authenticator);
        };
        let own = AccountAuthenticator::Ed25519 {
            public_key,
            signature,
        };
        let is_sender = raw.sender.to_string() == payload.from();
        let (sender, fee_payer_signer) = named.authenticators(own, is_sender);
        let authenticator = TransactionAuthenticator::FeePayer {
            sender,
            secondary_signer_addresses: Vec::new(),
            secondary_signers: Vec::new(),
            fee_payer_address: named.address,
            fee_payer_signer,
        };
        let signed = tx::assemble(&raw.encode()?, &authenticator)?;
        // Without the other one's signature it has no name yet.
        let tx_hash = match named.other_signature.is_empty() {
            true => String::new(),
            false => signed.tx_hash,
        };
        Ok(Signed { tx_hash, ..signed })
    }

    /// None of who only pays.
    fn sent_number(&self, signed: &Signed, address: &str) -> Result<Option<u64>, Fault> {
        let (_, transaction) = tx::read_signed(signed)?;
        let is_senders = transaction.sender.to_string() == address && !transaction.is_orderless();
        Ok(is_senders.then_some(transaction.sequence_number))
    }

    /// Its expiration: no block of that second or a later one has it.
    fn valid_until(&self, signed: &Signed) -> Result<Option<ChainMoment>, Fault> {
        let (_, transaction) = tx::read_signed(signed)?;
        let end_s = transaction.expiration_timestamp_secs;
        Ok(Some(ChainMoment::at_ms(end_s.saturating_mul(1_000))))
    }
}

/// The token that stands for `token` (in canonical form) wherever amounts are counted: the
/// fungible asset that it is, `None` for the chain's own coin. See [`AptosCoin::metadata`].
fn counted_as(token: &str) -> Option<String> {
    let coin = AptosCoin::parse(token).ok()?;
    coin.metadata().map(|address| address.to_string())
}

/// What is asked about a transaction; `None` when it brings everything.
fn queries(transaction: &AptosTransaction) -> Option<Queries> {
    let (call, abi) = match &transaction.action {
        AptosAction::SendNative { to, octas } => (
            PlannedCall::Entry(transfers::send_native(*to, *octas)),
            None,
        ),
        AptosAction::SendCoin { to, coin, amount } => (
            PlannedCall::Entry(transfers::send_coin(coin, *to, *amount)),
            None,
        ),
        AptosAction::Call(call) => {
            let target = &call.target;
            let abi = FunctionName {
                address: target.module.address.to_string(),
                module: target.module.name.to_string(),
                name: target.function.to_string(),
            };
            (PlannedCall::Json(call.json.clone()), Some(abi))
        }
        AptosAction::Raw(_) => return None,
    };
    let pays = match &transaction.action {
        AptosAction::SendNative { octas, .. } => Some((None, *octas)),
        AptosAction::SendCoin { coin, amount, .. } => Some((Some(coin.to_string()), *amount)),
        AptosAction::Call(_) | AptosAction::Raw(_) => None,
    };
    let pays = pays.filter(|_| transaction.max_gas_amount.is_some());
    let price = transaction.gas_unit_price;
    Some(Queries {
        pays: pays.map(|(coin, amount)| CoinAmount { coin, amount }),
        chain_id: transaction.chain_id,
        from: transaction.from.clone(),
        gas_unit_price: price.is_none(),
        level: transaction.level.unwrap_or_default(),
        simulate: transaction
            .max_gas_amount
            .is_none()
            .then_some(SimulationQuery {
                call,
                gas_unit_price: price,
            }),
        abi,
        sequence_number: transaction.sequence_number,
        expiration_timestamp_secs: transaction.expiration_timestamp_secs,
    })
}

/// A price that nodes take instead of another one, in octa per unit of gas.
fn above(price: u64) -> u64 {
    price.saturating_add(price.div_ceil(8).max(1))
}

/// The transaction that is signed.
fn raw(
    transaction: &AptosTransaction,
    chain_data: &ChainData,
    sender: Address,
) -> Result<RawTransaction, Fault> {
    let entry = match (&transaction.action, &chain_data.abi) {
        (AptosAction::SendNative { to, octas }, None) => transfers::send_native(*to, *octas),
        (AptosAction::SendCoin { to, coin, amount }, None) => {
            transfers::send_coin(coin, *to, *amount)
        }
        (AptosAction::Call(call), Some(abi)) => call.encode(abi)?,
        _ => return Err(unexpected_chain_data()),
    };
    let max_gas_amount = match (transaction.max_gas_amount, chain_data.gas_used) {
        (Some(limit), None) => limit,
        (None, Some(0)) => {
            let problem = "cannot be determined: the chain node reports zero gas";
            return Err(Fault::field("gasFee.maxGasAmount", problem));
        }
        // One and a half times as much, rounded up.
        (None, Some(used)) => used.checked_add(used.div_ceil(2)).ok_or_else(|| {
            let problem = "cannot be determined: the chain node's gas is out of range";
            Fault::field("gasFee.maxGasAmount", problem)
        })?,
        (Some(_), Some(_)) | (None, None) => return Err(unexpected_chain_data()),
    };
    let gas_unit_price = match (transaction.gas_unit_price, chain_data.gas_unit_price) {
        (Some(price), None) | (None, Some(price)) => price,
        (Some(_), Some(_)) | (None, None) => return Err(unexpected_chain_data()),
    };
    let (number, end) = (
        chain_data.sequence_number,
        chain_data.expiration_timestamp_secs,
    );
    if transaction.sequence_number.is_some_and(|own| own != number)
        || transaction
            .expiration_timestamp_secs
            .is_some_and(|own| own != end)
    {
        return Err(unexpected_chain_data());
    }
    Ok(RawTransaction {
        sender,
        sequence_number: number,
        payload: TransactionPayload::EntryFunction(entry),
        max_gas_amount,
        gas_unit_price,
        expiration_timestamp_secs: end,
        chain_id: transaction.chain_id,
    })
}

/// The bytes for `POST /transactions/simulate` (content type `application/x.aptos.signed_transaction+bcs`; no
/// `estimate_...` parameters): a transaction with a placeholder signature and all the gas that the sender can pay, up
/// to what the chain allows. Nobody can send it.
///
/// `chain_data` are the other answers, with the account's own sequence number and no `gas_used`.
/// `balance` is what the sender has of the chain's coin, in octa. With the sender's public key
/// (32 bytes) all nodes simulate it; without, only those that have AIP-92.
///
/// # Errors
/// [`Class::Invalid`] when it can never be simulated, e.g. when the sender cannot pay any gas, and
/// [`Class::Bug`] when nothing to simulate or other facts are there than `queries` names.
pub fn simulation(
    queries: &Queries,
    chain_data: &ChainData,
    balance: u64,
    public_key: Option<&[u8]>,
) -> Result<Vec<u8>, Fault> {
    let Some(SimulationQuery {
        call,
        gas_unit_price,
    }) = &queries.simulate
    else {
        return Err(Fault::bug("nothing to simulate"));
    };
    let gas_unit_price = match (gas_unit_price, chain_data.gas_unit_price) {
        (Some(price), None) => *price,
        (None, Some(price)) => price,
        (Some(_), Some(_)) | (None, None) => return Err(unexpected_chain_data()),
    };
    let max_gas_amount = balance
        .checked_div(gas_unit_price)
        .map_or(MAX_GAS, |units| units.min(MAX_GAS));
    if max_gas_amount == 0 {
        return Err(Fault::field("from", "has no coins to pay the fee with")
            .with_execute_code(ExecuteCode::InsufficientGasFee));
    }
    let entry = match (call, &chain_data.abi) {
        (PlannedCall::Entry(entry), None) => entry.clone(),
        (PlannedCall::Json(json), Some(abi)) => JsonCall::parse(json)?.encode(abi)?,
        (PlannedCall::Entry(_), Some(_)) | (PlannedCall::Json(_), None) => {
            return Err(unexpected_chain_data());
        }
    };
    let transaction = RawTransaction {
        sender: parse_address(&queries.from).map_err(Fault::bug)?,
        sequence_number: chain_data.sequence_number,
        payload: TransactionPayload::EntryFunction(entry),
        max_gas_amount,
        gas_unit_price,
        expiration_timestamp_secs: chain_data.expiration_timestamp_secs,
        chain_id: queries.chain_id,
    };
    tx::to_simulate(&transaction.encode()?, public_key)
}

/// What is signed of a built transaction: where another one pays it is written as that.
fn signing_message(unsigned: &[u8], payer: Option<Address>) -> Vec<u8> {
    match payer {
        Some(_) => unsigned.to_vec(),
        None => tx::signing_message(unsigned),
    }
}

fn input(message: Vec<u8>) -> SigningInput {
    SigningInput {
        curve: Curve::Ed25519,
        message,
    }
}

/// The name of the first thing in which a transaction differs from another.
fn difference(built: &[u8], shown: &[u8]) -> Option<&'static str> {
    let ((built, payer), (shown, other_payer)) = (tx::built(built).ok()?, tx::built(shown).ok()?);
    if built.chain_id != shown.chain_id {
        return Some("chainId");
    }
    if built.sender != shown.sender {
        return Some("from");
    }
    if payer != other_payer {
        return Some("feePayer");
    }
    if built.payload != shown.payload {
        let moved = |transaction: &RawTransaction| {
            transaction
                .called()
                .map(transfers::transfers)
                .unwrap_or_default()
        };
        let (built, shown) = (moved(&built), moved(&shown));
        let to = |moved: &CoinTransfer| moved.to;
        let amount = |moved: &CoinTransfer| moved.amount;
        return Some(if built.is_empty() || shown.is_empty() {
            "payload"
        } else if !built.iter().map(to).eq(shown.iter().map(to)) {
            "recipient"
        } else if !built.iter().map(amount).eq(shown.iter().map(amount)) {
            "amount"
        } else {
            "payload"
        });
    }
    if built.sequence_number != shown.sequence_number {
        return Some("sequenceNumber");
    }
    if built.expiration_timestamp_secs != shown.expiration_timestamp_secs {
        return Some("expiration");
    }
    (built != shown).then_some("gasFee")
}

#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;
