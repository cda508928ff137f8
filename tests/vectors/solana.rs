//! The vectors of Solana and Sonic SVM.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    chain::{Facts, Needs, Signed, solana},
    payload::Payload,
    signature::Signature,
};
use serde_json::{Map, Value, json};

use super::{Outcome, same, text};

pub struct Dialect;

impl super::Dialect for Dialect {
    fn context_notes(&self) -> &'static [&'static str] {
        &["version"] // of an off-chain message envelope
    }

    fn facts(
        &self,
        needs: &Needs,
        _payload: &Payload,
        context: &Map<String, Value>,
    ) -> Result<(Facts, Vec<&'static str>), String> {
        Ok(match needs {
            Needs::Nothing => (Facts::Nothing, vec![]),
            Needs::Solana(_) => {
                let facts = solana::Facts {
                    recent_blockhash: text(context, "recentBlockhash")?.to_owned(),
                };
                (Facts::Solana(facts), vec!["recentBlockhash"])
            }
            other => return Err(format!("asks {other:?}")),
        })
    }

    fn unsigned(&self, expected: &Map<String, Value>) -> Result<Vec<u8>, String> {
        same(
            "encoding",
            text(expected, "encoding")?,
            "base64 wire transaction",
        )?;
        STANDARD
            .decode(text(expected, "unsignedTx")?)
            .map_err(|error| error.to_string())
    }

    fn signed(&self, signed: &Signed, expected: &Map<String, Value>) -> Outcome {
        same("txHash", signed.tx_hash.as_str(), text(expected, "txHash")?)?;
        same(
            "signedTx",
            signed.transaction.as_str(),
            text(expected, "signedTx")?,
        )
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
