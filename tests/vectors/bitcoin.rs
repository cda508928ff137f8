//! The vectors of Bitcoin.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bitcoin::{
    Address, Network, Psbt, Transaction, TxOut, consensus::deserialize, consensus::encode,
};
use covault_core::{
    fault::Fault,
    networks::{
        ChainData, DynNetworkRules as _, Payload, Queries, Signed, Unsigned,
        bitcoin::{self as rules, Bitcoin, UnspentOutput, batch},
    },
    schema::{json, wire},
    signature::Signature,
};
use k256::ecdsa::{RecoveryId, VerifyingKey};
use serde_json::{Map, Value, json};

use super::{Outcome, hex, list, number, only_known, same, text};

const BATCH: &str = "btcBatchSendNative";

pub struct NetworkVectors;

impl super::NetworkVectors for NetworkVectors {
    fn expected_notes(&self) -> &'static [&'static str] {
        &[
            // Compared in `unsigned`.
            "psbt",
            "selectedInputs",
            "outputs",
            "fee",
            "estimatedVsize",
            // Compared in `rest`.
            "change",
            // Compared in `signed`.
            "wtxid",
        ]
    }

    fn address(&self, address: &str, expected: &Map<String, Value>) -> Outcome {
        only_known(expected, &[&["result", "address", "scriptPubKey"]])?;
        let address = rules::parse_address(address).map_err(|error| error.to_string())?;
        same(
            "scriptPubKey",
            address.script_pubkey().to_hex_string().as_str(),
            text(expected, "scriptPubKey")?,
        )
    }

    /// The vectors name the fee rate in the batch, whose message has no field for it.
    fn batch(&self, kind: &str, input: &Value) -> Option<Result<Payload, Fault>> {
        (kind == BATCH).then(|| {
            let mut input = input.clone();
            let rate = input
                .as_object_mut()
                .and_then(|input| input.remove("networkFee"))
                .and_then(|rate| match rate {
                    Value::String(text) => text.parse().ok(),
                    rate => rate.as_u64(),
                })
                .ok_or_else(|| Fault::field("networkFee", "is not a number"))?;
            let request = json!({"name": "a batch", BATCH: input}).to_string();
            let request: wire::CreateBatchPaymentRequest = json::decode(request.as_bytes())?;
            match request.r#type {
                Some(wire::create_batch_payment_request::Type::BtcBatchSendNative(wire)) => {
                    batch(&wire, rate).map(Payload::Bitcoin)
                }
                _ => Err(Fault::bug("no batch")),
            }
        })
    }

    fn chain_data(
        &self,
        queries: &Queries,
        payload: &Payload,
        context: &Map<String, Value>,
    ) -> Result<(ChainData, Vec<&'static str>), String> {
        let Queries::Bitcoin(queries) = queries else {
            return Err(format!("asks {queries:?}"));
        };
        same(
            "the address that is asked for",
            queries.from.as_str(),
            payload.from(),
        )?;
        let outputs = list(context, "utxos")?
            .iter()
            .map(|utxo| {
                let utxo = utxo.as_object().ok_or("utxos holds no object")?;
                only_known(utxo, &[&["txid", "vout", "value"]])?;
                let vout = utxo.get("vout").and_then(Value::as_u64).ok_or("no vout")?;
                Ok(UnspentOutput {
                    txid: text(utxo, "txid")?.to_owned(),
                    vout: u32::try_from(vout).map_err(|error| error.to_string())?,
                    value: number(utxo, "value")?,
                })
            })
            .collect::<Result<_, String>>()?;
        Ok((
            ChainData::Bitcoin(rules::ChainData {
                outputs,
                ..Default::default()
            }),
            vec!["utxos"],
        ))
    }

    /// Our unsigned bytes are the PSBT. The transaction in it, and all that is said about it, is
    /// compared here.
    fn unsigned(&self, expected: &Map<String, Value>) -> Result<Vec<u8>, String> {
        same("encoding", text(expected, "encoding")?, "hex")?;
        let bytes = STANDARD
            .decode(text(expected, "psbt")?)
            .map_err(|error| error.to_string())?;
        let psbt = Psbt::deserialize(&bytes).map_err(|error| error.to_string())?;
        let transaction = &psbt.unsigned_tx;
        same(
            "unsignedTx",
            encode::serialize_hex(transaction).as_str(),
            text(expected, "unsignedTx")?,
        )?;
        let inputs: Vec<String> = transaction
            .input
            .iter()
            .map(|input| input.previous_output.to_string())
            .collect();
        same(
            "selectedInputs",
            &json!(inputs),
            &Value::from(list(expected, "selectedInputs")?.clone()),
        )?;
        let outputs = transaction
            .output
            .iter()
            .map(shown)
            .collect::<Result<Vec<_>, String>>()?;
        same("outputs", &outputs, list(expected, "outputs")?)?;
        let fee = Bitcoin.most_fee(&bytes).map_err(super::public)?;
        same("fee", fee.to_string().as_str(), text(expected, "fee")?)?;
        // By the formula of the conventions.
        let outputs: u64 = transaction
            .output
            .iter()
            .map(|output| 4 * (8 + 1 + output.script_pubkey.len() as u64))
            .sum();
        let weight = 42 + 272 * inputs.len() as u64 + outputs;
        same(
            "estimatedVsize",
            &json!(weight.div_ceil(4)),
            expected.get("estimatedVsize").ok_or("no estimatedVsize")?,
        )?;
        Ok(bytes)
    }

    /// DER as well as r and s; they name no parity, so it is found by the key.
    fn signatures(
        &self,
        expected: &Map<String, Value>,
        unsigned: &Unsigned,
        public_key: &[u8],
    ) -> Result<Vec<Signature>, String> {
        let signatures = list(expected, "signatures")?;
        same("signatures", &signatures.len(), &unsigned.signing.len())?;
        signatures
            .iter()
            .zip(&unsigned.signing)
            .map(|(signature, input)| {
                let signature = signature
                    .as_object()
                    .ok_or("a signature is not an object")?;
                only_known(signature, &[&["r", "s", "der"]])?;
                let half = |key| -> Result<[u8; 32], String> {
                    hex(text(signature, key)?)?
                        .try_into()
                        .map_err(|_| format!("{key} is not 32 bytes"))
                };
                let (r, s) = (half("r")?, half("s")?);
                let ecdsa = k256::ecdsa::Signature::from_scalars(r, s)
                    .map_err(|error| error.to_string())?;
                let y_parity = [0, 1]
                    .into_iter()
                    .find(|parity| {
                        let id = RecoveryId::new(*parity == 1, false);
                        VerifyingKey::recover_from_prehash(&input.message, &ecdsa, id)
                            .is_ok_and(|key| key.to_sec1_point(true).as_bytes() == public_key)
                    })
                    .ok_or("a signature is not the key's")?;
                let der = ::hex::encode(ecdsa.to_der().as_bytes()) + "01";
                same("der", der.as_str(), text(signature, "der")?)?;
                Ok(Signature::Ecdsa { r, s, y_parity })
            })
            .collect()
    }

    fn signed(&self, signed: &Signed, expected: &Map<String, Value>) -> Outcome {
        same("txHash", signed.tx_hash.as_str(), text(expected, "txHash")?)?;
        same(
            "signedTx",
            signed.transaction.as_str(),
            text(expected, "signedTx")?,
        )?;
        let transaction: Transaction =
            deserialize(&hex(&signed.transaction)?).map_err(|error| error.to_string())?;
        same(
            "wtxid",
            transaction.compute_wtxid().to_string().as_str(),
            text(expected, "wtxid")?,
        )
    }

    /// The outputs, which are compared elsewhere, are those of the payload and then change.
    fn rest(&self, payload: &Payload, expected: &Map<String, Value>) -> Outcome {
        let Payload::Bitcoin(payload) = payload else {
            return Err("not a Bitcoin payload".into());
        };
        let entry =
            |address: &str, value: u64| json!({"address": address, "value": value.to_string()});
        let payment = payload.payment();
        let mut outputs: Vec<Value> = payment
            .outputs
            .iter()
            .map(|output| entry(&output.to.to_string(), output.satoshi))
            .collect();
        match number(expected, "change")? {
            0 => {}
            change => outputs.push(entry(text(expected, "address")?, change)),
        }
        same("outputs with change", &outputs, list(expected, "outputs")?)
    }

    fn plain_signature(&self, signature: &Signature, _public_key: &[u8]) -> String {
        ::hex::encode(signature.to_bytes())
    }
}

fn shown(output: &TxOut) -> Result<Value, String> {
    let address = Address::from_script(&output.script_pubkey, Network::Bitcoin)
        .map_err(|error| error.to_string())?;
    Ok(json!({
        "address": address.to_string(),
        "value": output.value.to_sat().to_string(),
    }))
}
