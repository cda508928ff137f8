//! The vectors of Solana and Sonic SVM.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    networks::{
        ChainData, Payload, Queries, Signed, Unsigned,
        solana::{
            self, SolanaPayload, SolanaTokenTransfer, effect,
            token::{TokenChainData, associated_account},
            wire::{self, WireTransaction},
        },
    },
    signature::Signature,
};
use serde_json::{Map, Value, json};

use super::{Outcome, hex, list, only_known, same, text};

pub struct NetworkVectors;

impl super::NetworkVectors for NetworkVectors {
    fn context_notes(&self) -> &'static [&'static str] {
        &["version"] // of an off-chain message envelope
    }

    /// Still compared, with [`NetworkVectors::signed`].
    fn expected_notes(&self) -> &'static [&'static str] {
        &["signedTxs", "txHashes"]
    }

    fn chain_data(
        &self,
        queries: &Queries,
        payload: &Payload,
        context: &Map<String, Value>,
    ) -> Result<(ChainData, Vec<&'static str>), String> {
        let queries = match queries {
            Queries::Nothing => {
                check_places(payload, context)?;
                return Ok((ChainData::Nothing, vec!["signerIndex"]));
            }
            Queries::Solana(queries) => queries,
            other => return Err(format!("asks {other:?}")),
        };
        // A case that is refused before the blockhash counts has none. Another case without one
        // expects other bytes.
        let recent_blockhash = match context.get("recentBlockhash") {
            Some(_) => text(context, "recentBlockhash")?.to_owned(),
            None => bs58::encode([0; 32]).into_string(),
        };
        let mut known = vec!["recentBlockhash"];
        let token = match (payload, &queries.token) {
            (Payload::Solana(SolanaPayload::SendToken(send)), Some(_)) => {
                known.extend(TOKEN_CONTEXT);
                Some(token_facts(send, context)?)
            }
            _ => None,
        };
        let chain_data = solana::ChainData {
            recent_blockhash,
            token: token.map(Box::new),
            compute: None,
        };
        Ok((ChainData::Solana(chain_data), known))
    }

    fn unsigned(&self, expected: &Map<String, Value>) -> Result<Vec<u8>, String> {
        check_encoding(expected)?;
        base64(text(expected, "unsignedTx")?)
    }

    /// Custom transactions: those of `signedTxs` without the wallet's signatures.
    fn unnamed(&self, unsigned: &Unsigned, expected: &Map<String, Value>) -> Outcome {
        check_encoding(expected)?;
        let mut theirs = Vec::new();
        let signed = texts(expected, "signedTxs")?;
        let signatures = list(expected, "signatures")?;
        same("number of signatures", &signed.len(), &signatures.len())?;
        for (signed, signature) in signed.iter().zip(signatures) {
            let mut bytes = base64(signed)?;
            let signature = super::signature(signature)?.to_bytes();
            let slots = bytes.get_mut(1..).ok_or("a transaction is empty")?;
            let slot = slots
                .chunks_exact_mut(64)
                .find(|slot| **slot == signature)
                .ok_or("a transaction does not hold its signature")?;
            slot.fill(0);
            theirs.extend(bytes);
        }
        same("unsigned bytes", &unsigned.bytes, &theirs)
    }

    fn signed(&self, signed: &Signed, expected: &Map<String, Value>) -> Outcome {
        if expected.contains_key("signedTxs") {
            let (ours, theirs) = (&signed.transaction, texts(expected, "signedTxs")?);
            same("signedTxs", ours.as_str(), theirs.join(",").as_str())?;
            let (ours, theirs) = (&signed.tx_hash, texts(expected, "txHashes")?);
            same("txHashes", ours.as_str(), theirs.join(",").as_str())?;
            // Only a single one is repeated under the other names.
            if !expected.contains_key("signedTx") && !expected.contains_key("txHash") {
                return Ok(());
            }
        }
        same("txHash", signed.tx_hash.as_str(), text(expected, "txHash")?)?;
        same(
            "signedTx",
            signed.transaction.as_str(),
            text(expected, "signedTx")?,
        )?;
        if !expected.contains_key("alternatives") {
            return Ok(());
        }
        let ours = transaction(&signed.transaction)?;
        list(expected, "alternatives")?
            .iter()
            .try_for_each(|other| alternative(&ours, other))
    }

    fn convention(&self, _payload: &Payload, convention: &Value) -> bool {
        *convention == json!("plain ed25519")
            || *convention == json!("content is the kit-compiled envelope")
    }

    fn plain_signature(&self, signature: &Signature, _public_key: &[u8]) -> String {
        bs58::encode(signature.to_bytes()).into_string()
    }

    /// The address is the key.
    fn invalid_key(
        &self,
        payload: &Payload,
        _context: &Map<String, Value>,
    ) -> Result<Vec<u8>, String> {
        bs58::decode(payload.from())
            .into_vec()
            .map_err(|error| error.to_string())
    }
}

const TOKEN_CONTEXT: [&str; 5] = [
    "tokenProgram",
    "mintDecimals",
    "recipientAtaExists",
    "sourceAta",
    "destinationAta",
];

/// What the context says about a token. The accounts that it names are those of sender and
/// recipient.
fn token_facts(
    send: &SolanaTokenTransfer,
    context: &Map<String, Value>,
) -> Result<TokenChainData, String> {
    let program = text(context, "tokenProgram")?;
    for (name, owner) in [("sourceAta", &send.from), ("destinationAta", &send.to)] {
        if context.contains_key(name) {
            let account = associated_account(&key(owner)?, &key(&send.mint)?, &key(program)?);
            same(name, account.to_string().as_str(), text(context, name)?)?;
        }
    }
    let decimals = context.get("mintDecimals").and_then(Value::as_u64);
    let exists = context.get("recipientAtaExists").and_then(Value::as_bool);
    let exists = exists.ok_or("recipientAtaExists is not a boolean")?;
    Ok(TokenChainData {
        program: program.to_owned(),
        decimals: decimals
            .and_then(|decimals| u8::try_from(decimals).ok())
            .ok_or("mintDecimals is not a byte")?,
        sender_account_owner: Some(send.from.clone()),
        recipient_account_owner: exists.then(|| send.to.clone()),
        recipient_program: None,
        transfer_fee: None,
    })
}

/// The wallet's places among the signers, where the context names them.
fn check_places(payload: &Payload, context: &Map<String, Value>) -> Outcome {
    if !context.contains_key("signerIndex") {
        return Ok(());
    }
    let Payload::Solana(SolanaPayload::SendCustom(send)) = payload else {
        return Err("signerIndex, and no transactions".into());
    };
    let from = key(&send.from)?;
    let transactions = send.transactions.iter();
    let ours = transactions.map(|transaction| json!(transaction.place_of(&from)));
    let theirs = list(context, "signerIndex")?;
    same("signerIndex", &ours.collect::<Vec<_>>(), theirs)
}

fn check_encoding(expected: &Map<String, Value>) -> Outcome {
    let encoding = text(expected, "encoding")?;
    same("encoding", encoding, "base64 wire transaction")
}

/// The same transaction with its accounts in another order: what differs is nothing but the order,
/// and it is signed by the fee payer.
fn alternative(ours: &WireTransaction, other: &Value) -> Outcome {
    let other = other.as_object().ok_or("an alternative is not an object")?;
    only_known(other, &[&["accountOrder", "message", "signedTx", "txHash"]])?;
    let theirs = transaction(text(other, "signedTx")?)?;
    let message = hex(text(other, "message")?)?;
    same("alternative message", theirs.message_bytes(), &message[..])?;
    let id = theirs.id().ok_or("an alternative is not signed")?;
    let hash = bs58::encode(id).into_string();
    same("alternative txHash", hash.as_str(), text(other, "txHash")?)?;
    let payer = ours.message().static_account_keys().first();
    let payer = payer.ok_or("a transaction has no fee payer")?;
    ed25519_dalek::VerifyingKey::from_bytes(payer.as_array())
        .and_then(|payer| payer.verify_strict(&message, &ed25519_dalek::Signature::from_bytes(&id)))
        .map_err(|error| format!("alternative signature: {error}"))?;
    let difference = effect::difference(ours.message(), theirs.message());
    // Who signs, what is writable, in which order the keys stand: compared by the sorted list.
    same("alternative", &difference, &Some("message"))?;
    same("accounts", &rights(ours), &rights(&theirs))
}

/// The accounts of a transaction with what they may do.
fn rights(transaction: &WireTransaction) -> Vec<(String, bool, bool)> {
    let message = transaction.message();
    let keys = message.static_account_keys().iter().enumerate();
    let mut rights: Vec<_> = keys
        .map(|(index, key)| {
            let header = message.header();
            let signers = usize::from(header.num_required_signatures);
            let writable = if index < signers {
                index < signers - usize::from(header.num_readonly_signed_accounts)
            } else {
                let readonly = usize::from(header.num_readonly_unsigned_accounts);
                index < message.static_account_keys().len() - readonly
            };
            (key.to_string(), index < signers, writable)
        })
        .collect();
    rights.sort_unstable();
    rights
}

fn transaction(text: &str) -> Result<WireTransaction, String> {
    match wire::split(&base64(text)?).as_deref() {
        Some([transaction]) => Ok(transaction.clone()),
        _ => Err("is not one transaction".into()),
    }
}

fn base64(text: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|error| error.to_string())
}

fn key(text: &str) -> Result<solana_pubkey::Pubkey, String> {
    solana::parse_key(text).map_err(|error| error.to_string())
}

fn texts<'a>(object: &'a Map<String, Value>, key: &str) -> Result<Vec<&'a str>, String> {
    let texts = list(object, key)?.iter().map(Value::as_str);
    let texts: Option<Vec<_>> = texts.collect();
    texts.ok_or_else(|| format!("{key} holds something else than texts"))
}
