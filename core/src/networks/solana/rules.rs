//! How transactions and messages are built, signed and read.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use curve25519_dalek::edwards::CompressedEdwardsY;
use sha2::{Digest as _, Sha256};
use solana_pubkey::Pubkey;

use super::{
    address::parse_key,
    chain_data::{ChainData, ComputeQueries, Queries},
    cost, effect,
    lifetime::TransactionLifetime,
    payload::{SolanaCustom, SolanaPayload},
    token::TokenQueries,
    transfer::{field_key, input, send_native, send_token},
    wire::{self, WireTransaction},
};
use crate::{
    amount::U256,
    fault::{Class, Fault},
    networks::{
        network::Network,
        rules::{NetworkRules, Resource, Signed, Unsigned, unexpected_chain_data},
    },
    signature::Signature,
};

/// 150 slots, of up to a second each, in milliseconds.
const BLOCKHASH_LIFE_MS: u64 = 150_000;

/// The Solana rules.
pub struct Solana;

impl NetworkRules for Solana {
    type Payload = SolanaPayload;
    type Queries = Queries;
    type ChainData = ChainData;

    const NETWORK: Network = Network::Solana;
    /// 0.05 SOL.
    const DEFAULT_MOST_FEE: u64 = 50_000_000;
    const PRICE_UNIT: &'static str = "micro-lamports per unit of computation";
    const ENDS_BY_ITSELF: &'static str = "it expires with its blockhash, about two minutes after it was built, or, \
                                          with a durable nonce, once that nonce is used";

    fn address(&self, public_key: &[u8]) -> Result<String, Fault> {
        let key: [u8; 32] = public_key
            .try_into()
            .map_err(|_| Fault::bug("an Ed25519 public key has 32 bytes"))?;
        // RFC 8032 wants the canonical encoding; a key of small order is nobody's.
        let point = CompressedEdwardsY(key)
            .decompress()
            .filter(|point| point.compress().to_bytes() == key && !point.is_small_order());
        if point.is_none() {
            return Err(Fault::bug("not an Ed25519 public key"));
        }
        Ok(Pubkey::new_from_array(key).to_string())
    }

    fn answers_fit_together(&self) -> bool {
        true
    }

    fn parse_address(&self, text: &str) -> Result<String, Fault> {
        parse_key(text)
            .map(|key| key.to_string())
            .map_err(|error| Fault::new(Class::Invalid, error.to_string()))
    }

    fn queries(&self, payload: &SolanaPayload) -> Option<Queries> {
        match payload {
            SolanaPayload::SendNative(send) => Some(Queries {
                chain_id: send.cluster.chain_id(),
                blockhash: true,
                token: None,
                compute: Some(ComputeQueries {
                    from: send.from.clone(),
                    to: send.to.clone(),
                    amount: send.lamports,
                    level: send.level.unwrap_or_default(),
                }),
            }),
            SolanaPayload::SendToken(send) => Some(Queries {
                chain_id: send.cluster.chain_id(),
                blockhash: true,
                token: Some(TokenQueries {
                    mint: send.mint.clone(),
                    sender: send.from.clone(),
                    recipient: send.to.clone(),
                }),
                compute: Some(ComputeQueries {
                    from: send.from.clone(),
                    to: send.to.clone(),
                    amount: send.amount,
                    level: send.level.unwrap_or_default(),
                }),
            }),
            SolanaPayload::SendCustom(_) | SolanaPayload::Message(_) => None,
        }
    }

    /// The network knows a transaction by its message: two equal transfers with one blockhash are
    /// one transfer.
    fn reservations(
        &self,
        _payload: &SolanaPayload,
        unsigned: &Unsigned,
    ) -> Result<Vec<Resource>, Fault> {
        let whole = unsigned
            .signing
            .iter()
            .map(|input| Resource::TxHash(Sha256::digest(&input.message).into()));
        Ok(whole.collect())
    }

    fn build(
        &self,
        payload: &SolanaPayload,
        chain_data: Option<&ChainData>,
        _public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        match payload {
            SolanaPayload::SendNative(send) => {
                send_native(send, chain_data.ok_or_else(unexpected_chain_data)?)
            }
            SolanaPayload::SendToken(send) => {
                send_token(send, chain_data.ok_or_else(unexpected_chain_data)?)
            }
            SolanaPayload::SendCustom(send) => send_custom(send),
            SolanaPayload::Message(message) => Ok(Unsigned {
                bytes: Vec::new(),
                signing: vec![input(&message.content)],
            }),
        }
    }

    fn quoted_price(&self, _payload: &SolanaPayload, chain_data: &ChainData) -> Option<u128> {
        let compute = chain_data.compute.as_ref()?;
        Some(compute.unit_price.into())
    }

    fn paid_price(&self, unsigned: &[u8]) -> Result<Option<u128>, Fault> {
        let transactions = transactions_of(unsigned)?;
        let prices = transactions
            .iter()
            .map(|transaction| cost::price(transaction.message()));
        Ok(prices.max().map(u128::from))
    }

    /// A transfer of a token that opens an account costs 0.004 SOL at most with this, one of the coin
    /// 0.0001.
    fn default_most_price(&self, _chain_id: Option<u64>) -> u128 {
        10_000_000
    }

    /// What all its transactions cost, no matter who pays: bytes do not say whose request they are of.
    /// With deposits of token accounts that are opened.
    fn most_fee(&self, unsigned: &[u8]) -> Result<U256, Fault> {
        let transactions = transactions_of(unsigned)?;
        let costs = transactions
            .iter()
            .map(|transaction| cost::most(transaction.message()));
        Ok(U256::from(costs.fold(0, u128::saturating_add)))
    }

    fn difference(&self, built: &[u8], shown: &[u8]) -> Option<&'static str> {
        let (built, shown) = (wire::split(built)?, wire::split(shown)?);
        if built.len() != shown.len() {
            return Some("transactions");
        }
        let mut pairs = built.iter().zip(&shown);
        pairs.find_map(|(built, shown)| {
            effect::difference(built.message(), shown.message())
                .or_else(|| (built != shown).then_some("signatures"))
        })
    }

    /// The hash of a transaction whose fee payer has yet to sign is empty: nobody can know it.
    fn assemble(
        &self,
        _payload: &SolanaPayload,
        unsigned: &Unsigned,
        signatures: &[Signature],
        public_key: &[u8],
    ) -> Result<Signed, Fault> {
        let key =
            Pubkey::try_from(public_key).map_err(|_| Fault::bug("the public key is invalid"))?;
        let transactions = transactions_of(&unsigned.bytes)?;
        if transactions.len() != signatures.len() || transactions.len() != unsigned.signing.len() {
            return Err(Fault::bug(
                "the number of signatures does not match the number of transactions",
            ));
        }
        let mut texts = Vec::with_capacity(transactions.len());
        let mut hashes = Vec::with_capacity(transactions.len());
        for ((transaction, input), signature) in
            transactions.iter().zip(&unsigned.signing).zip(signatures)
        {
            if transaction.message_bytes() != input.message {
                return Err(Fault::bug("the signed message is not the transaction"));
            }
            let signed = transaction
                .signed(&key, &signature.to_bytes())
                .ok_or_else(|| Fault::bug("the transaction does not require the signature"))?;
            texts.push(STANDARD.encode(signed.bytes()));
            let id = signed.id().map(|id| bs58::encode(id).into_string());
            hashes.push(id.unwrap_or_default());
        }
        Ok(Signed {
            transaction: texts.join(SEPARATOR),
            tx_hash: hashes.join(SEPARATOR),
        })
    }

    /// That of its blockhash; that of a durable nonce has no end.
    fn longest_life_ms(&self, signed: &Signed) -> Result<Option<u64>, Fault> {
        let unreadable = || Fault::bug("the signed transaction cannot be read");
        let mut lives = Vec::new();
        for (text, _) in each(signed).ok_or_else(unreadable)? {
            let bytes = STANDARD.decode(text).map_err(Fault::bug)?;
            let parsed = WireTransaction::parse(&bytes).map_err(Fault::bug)?;
            lives.push(match TransactionLifetime::of(&parsed) {
                TransactionLifetime::Blockhash(_) => Some(BLOCKHASH_LIFE_MS),
                TransactionLifetime::Nonce(_) => None,
            });
        }
        let all = lives.into_iter().collect::<Option<Vec<_>>>();
        Ok(all.and_then(|all| all.into_iter().max()))
    }
}

/// Between the values of several transactions of one request.
const SEPARATOR: &str = ",";

/// The transactions of a request one by one, in order: base64, and the hash, base58. `None` when
/// [`NetworkRules::assemble`] did not make it.
pub fn each(signed: &Signed) -> Option<Vec<(&str, &str)>> {
    let transactions = signed.transaction.split(SEPARATOR);
    let hashes = signed.tx_hash.split(SEPARATOR);
    (transactions.clone().count() == hashes.clone().count())
        .then(|| transactions.zip(hashes).collect())
}

/// The transactions as they came, without a signature of the wallet, back to back.
fn send_custom(send: &SolanaCustom) -> Result<Unsigned, Fault> {
    let from = field_key("from", &send.from)?;
    let mut unsigned = Unsigned {
        bytes: Vec::new(),
        signing: Vec::with_capacity(send.transactions.len()),
    };
    for transaction in &send.transactions {
        let blank = transaction
            .blank(&from)
            .ok_or_else(|| Fault::bug("a transaction does not require the wallet's signature"))?;
        unsigned.bytes.extend_from_slice(blank.bytes());
        unsigned.signing.push(input(blank.message_bytes()));
    }
    Ok(unsigned)
}

fn transactions_of(unsigned: &[u8]) -> Result<Vec<WireTransaction>, Fault> {
    wire::split(unsigned).ok_or_else(|| Fault::bug("the unsigned transaction cannot be read"))
}

#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;
