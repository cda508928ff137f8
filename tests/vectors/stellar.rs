//! The vectors of Stellar.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    networks::{ChainData, Payload, Queries, Signed, stellar},
    signature::Signature,
};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use stellar_xdr::{Limits, ReadXdr as _, TransactionEnvelope};

use super::{Outcome, hex, list, number, same, text};

pub struct NetworkVectors;

impl super::NetworkVectors for NetworkVectors {
    /// An account exists unless the context says otherwise. The cases that must be refused tell
    /// nothing more: sequence and fee are anything then, which would show in any other case.
    fn chain_data(
        &self,
        queries: &Queries,
        _payload: &Payload,
        context: &Map<String, Value>,
    ) -> Result<(ChainData, Vec<&'static str>), String> {
        let queries = match queries {
            Queries::Nothing => return Ok((ChainData::Nothing, vec![])),
            Queries::Stellar(queries) => queries,
            other => return Err(format!("asks {other:?}")),
        };
        let number_or_1 = |key| match context.get(key) {
            Some(_) => number(context, key),
            None => Ok(1),
        };
        let exists = match context.get("destinationExists") {
            None => true,
            Some(Value::Bool(exists)) => *exists,
            Some(_) => return Err("destinationExists is not a boolean".into()),
        };
        let chain_data = stellar::ChainData {
            sequence: number_or_1("sequence")?,
            base_fee: u32::try_from(number_or_1("baseFee")?).map_err(|error| error.to_string())?,
            max_time: number_or_1("maxTime")?,
            destination_exists: queries.destination.as_ref().map(|_| exists),
        };
        let known = vec!["sequence", "baseFee", "maxTime", "destinationExists"];
        Ok((ChainData::Stellar(chain_data), known))
    }

    fn unsigned(&self, expected: &Map<String, Value>) -> Result<Vec<u8>, String> {
        same(
            "encoding",
            text(expected, "encoding")?,
            "base64 XDR TransactionEnvelope",
        )?;
        STANDARD
            .decode(text(expected, "unsignedTx")?)
            .map_err(|error| error.to_string())
    }

    /// Also the preimage, whose hash is the message that was compared, and the hint of our
    /// signature, which is the last.
    fn signed(&self, signed: &Signed, expected: &Map<String, Value>) -> Outcome {
        same("txHash", signed.tx_hash.as_str(), text(expected, "txHash")?)?;
        same(
            "signedTx",
            signed.transaction.as_str(),
            text(expected, "signedTx")?,
        )?;
        for signing in list(expected, "signing")? {
            let signing = signing.as_object().ok_or("signing holds no object")?;
            same("hash", text(signing, "hash")?, "sha256")?;
            let digest = Sha256::digest(hex(text(signing, "preimage")?)?);
            same(
                "hash of the preimage",
                ::hex::encode(digest).as_str(),
                text(signing, "message")?,
            )?;
        }
        let [signature] = list(expected, "signatures")?.as_slice() else {
            return Err("one signature is expected".into());
        };
        let signature = signature
            .as_object()
            .ok_or("a signature is not an object")?;
        let bytes = STANDARD
            .decode(&signed.transaction)
            .map_err(|error| error.to_string())?;
        let signatures = match TransactionEnvelope::from_xdr(bytes, Limits::none()) {
            Ok(TransactionEnvelope::TxV0(envelope)) => envelope.signatures,
            Ok(TransactionEnvelope::Tx(envelope)) => envelope.signatures,
            Ok(TransactionEnvelope::TxFeeBump(envelope)) => envelope.signatures,
            Err(error) => return Err(error.to_string()),
        };
        let hint = signatures.last().map(|ours| ::hex::encode(ours.hint.0));
        same(
            "hint",
            hint.as_deref().unwrap_or(""),
            text(signature, "hint")?,
        )
    }

    fn plain_signature(&self, signature: &Signature, _public_key: &[u8]) -> String {
        ::hex::encode(signature.to_bytes())
    }

    /// The address is the key.
    fn invalid_key(
        &self,
        payload: &Payload,
        _context: &Map<String, Value>,
    ) -> Result<Vec<u8>, String> {
        stellar_strkey::ed25519::PublicKey::from_string(payload.from())
            .map(|key| key.0.to_vec())
            .map_err(|error| error.to_string())
    }
}
