//! The vectors of Tron.

use alloy_primitives::keccak256;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    networks::{ChainData, Payload, Queries, Signed, tron},
    signature::Signature,
};
use serde_json::{Map, Value, json};

use super::{Outcome, hex, list, member, number, only_known, same, text};

/// Not a kind of the API: a client that wants such a signature hashes the message itself and has
/// the digest signed by a rawMessage.
pub const TIP_191: &str = "tronMessage(TIP-191)";

pub struct NetworkVectors;

impl super::NetworkVectors for NetworkVectors {
    fn context_notes(&self) -> &'static [&'static str] {
        &["decimals"] // of the TRC-20 token; amounts are whole
    }

    fn expected_notes(&self) -> &'static [&'static str] {
        &[
            "oracle",       // what made the case
            "signedTxJson", // compared with the transaction that it describes, below
        ]
    }

    fn input(&self, body: &Map<String, Value>) -> Result<Value, String> {
        if text(body, "kind")? != TIP_191 {
            return Ok(body.get("input").cloned().unwrap_or_default());
        }
        let input = member(body, "input")?;
        only_known(input, &[&["from", "content"]])?;
        let content = STANDARD
            .decode(text(input, "content")?)
            .map_err(|error| error.to_string())?;
        let mut preimage = format!("\x19TRON Signed Message:\n{}", content.len()).into_bytes();
        preimage.extend(content);
        if let [signing] = list(member(body, "expected")?, "signing")?.as_slice() {
            let signing = signing.as_object().ok_or("signing holds no object")?;
            same("hash", "keccak256", text(signing, "hash")?)?;
            same("preimage", &preimage, &hex(text(signing, "preimage")?)?)?;
        }
        Ok(json!({
            "from": text(input, "from")?,
            "content": STANDARD.encode(keccak256(preimage)),
            "ecdsaHashFunction": "ECDSA_HASH_FUNCTION_USE_MESSAGE_DIRECTLY",
        }))
    }

    fn address(&self, address: &str, expected: &Map<String, Value>) -> Outcome {
        only_known(expected, &[&["result", "address", "addressHex"]])?;
        let ours = tron::parse_address(address).map_err(|error| error.to_string())?;
        let theirs = hex(text(expected, "addressHex")?)?;
        same("addressHex", &ours.to_bytes()[..], &theirs[..])
    }

    fn chain_data(
        &self,
        queries: &Queries,
        _payload: &Payload,
        context: &Map<String, Value>,
    ) -> Result<(ChainData, Vec<&'static str>), String> {
        match queries {
            Queries::Nothing => Ok((ChainData::Nothing, vec![])),
            Queries::Tron(_) => {
                let block = member(context, "block")?;
                only_known(block, &[&["number", "blockID", "timestamp"]])?;
                let block = tron::Block {
                    number: number(block, "number")?,
                    id: hex(text(block, "blockID")?)?
                        .try_into()
                        .map_err(|_| "blockID is not 32 bytes")?,
                    timestamp_ms: number(block, "timestamp")?,
                };
                Ok((ChainData::Tron(block.into()), vec!["block"]))
            }
            other => Err(format!("asks {other:?}")),
        }
    }

    fn unsigned(&self, expected: &Map<String, Value>) -> Result<Vec<u8>, String> {
        same("encoding", text(expected, "encoding")?, "hex protobuf")?;
        let unsigned = text(expected, "unsignedTx")?;
        for signing in list(expected, "signing")? {
            let signing = signing.as_object().ok_or("signing holds no object")?;
            same("hash", "sha256", text(signing, "hash")?)?;
            same("preimage", unsigned, text(signing, "preimage")?)?;
        }
        hex(unsigned)
    }

    fn signed(&self, signed: &Signed, expected: &Map<String, Value>) -> Outcome {
        let transaction = text(expected, "signedTx")?;
        same("txHash", signed.tx_hash.as_str(), text(expected, "txHash")?)?;
        same("signedTx", signed.transaction.as_str(), transaction)?;
        let Some(Value::Object(body)) = expected.get("signedTxJson") else {
            return Ok(()); // TronWeb, whose numbers end at 2^53, makes none for larger amounts
        };
        // raw_data says in words what raw_data_hex is.
        only_known(
            body,
            &[&["visible", "txID", "raw_data_hex", "raw_data", "signature"]],
        )?;
        same("visible", &Some(&json!(false)), &body.get("visible"))?;
        same("txID", signed.tx_hash.as_str(), text(body, "txID")?)?;
        let raw = text(body, "raw_data_hex")?;
        same("raw_data_hex", text(expected, "unsignedTx")?, raw)?;
        let [Value::String(signature)] = list(body, "signature")?.as_slice() else {
            return Err("signedTxJson holds not one signature".into());
        };
        // Field 2 of the transaction, 65 bytes; TronWeb writes the last of them in capitals.
        let end = format!("1241{}", signature.to_lowercase());
        same("signature", &true, &transaction.ends_with(&end))
    }

    fn convention(&self, payload: &Payload, convention: &Value) -> bool {
        matches!(payload, Payload::Raw(_))
            && *convention == json!("TIP-191 signMessageV2; informational, no API kind")
    }

    /// As wallets show it: v of 27 or 28.
    fn plain_signature(&self, signature: &Signature, _public_key: &[u8]) -> String {
        let v = match signature {
            Signature::Ecdsa { y_parity, .. } => 27 + y_parity,
            Signature::Ed25519 { .. } => 0,
        };
        format!("0x{}{v:02x}", ::hex::encode(signature.to_bytes()))
    }
}
