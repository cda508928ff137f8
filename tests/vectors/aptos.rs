//! The vectors of Aptos and Movement.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    networks::{
        ChainData, Payload, Queries, Signed,
        aptos::{self, AptosAction, AptosPayload},
    },
    signature::Signature,
};
use serde_json::{Map, Value};

use super::{Outcome, hex, number, same, text};

pub struct NetworkVectors;

impl super::NetworkVectors for NetworkVectors {
    fn chain_data(
        &self,
        queries: &Queries,
        payload: &Payload,
        context: &Map<String, Value>,
    ) -> Result<(ChainData, Vec<&'static str>), String> {
        let mut known = check(payload, context)?;
        let chain_data = match queries {
            Queries::Nothing => ChainData::Nothing,
            Queries::Aptos(queries) => {
                // Of no use where the request brings its own.
                known.extend(["simulatedGasUsed", "gasEstimate"]);
                known.extend(["sequenceNumber", "expirationTimestampSecs"]);
                let price = queries
                    .gas_unit_price
                    .then(|| number(context, "gasEstimate"));
                let gas = queries.simulate.as_ref();
                let gas = gas.map(|_| number(context, "simulatedGasUsed"));
                ChainData::Aptos(aptos::ChainData {
                    sequence_number: number(context, "sequenceNumber")?,
                    expiration_timestamp_secs: number(context, "expirationTimestampSecs")?,
                    gas_unit_price: price.transpose()?,
                    gas_used: gas.transpose()?,
                    abi: match queries.abi {
                        Some(_) => {
                            known.push("abi");
                            Some(abi(context)?)
                        }
                        None => None,
                    },
                })
            }
            other => return Err(format!("asks {other:?}")),
        };
        Ok((chain_data, known))
    }

    fn unsigned(&self, expected: &Map<String, Value>) -> Result<Vec<u8>, String> {
        same("encoding", text(expected, "encoding")?, "hex BCS")?;
        hex(text(expected, "unsignedTx")?)
    }

    fn expected_notes(&self) -> &'static [&'static str] {
        &["signedTxBase64"] // compared with the signed transaction below
    }

    fn signed(&self, signed: &Signed, expected: &Map<String, Value>) -> Outcome {
        same("txHash", signed.tx_hash.as_str(), text(expected, "txHash")?)?;
        let theirs = text(expected, "signedTx")?;
        let in_hex = format!("0x{theirs}");
        same("signedTx", signed.transaction.as_str(), in_hex.as_str())?;
        match expected.get("signedTxBase64") {
            None => Ok(()),
            Some(in_base64) => same(
                "signedTxBase64",
                &Value::String(STANDARD.encode(hex(theirs)?)),
                in_base64,
            ),
        }
    }

    fn plain_signature(&self, signature: &Signature, _public_key: &[u8]) -> String {
        ::hex::encode(signature.to_bytes())
    }
}

/// Compares what the context says of the payload itself; the names of those fields.
fn check(payload: &Payload, context: &Map<String, Value>) -> Result<Vec<&'static str>, String> {
    let Payload::Aptos(payload) = payload else {
        return Ok(Vec::new());
    };
    let transaction = match payload {
        AptosPayload::Message(message) => {
            let full = message.full_message();
            same("fullMessage", full.as_str(), text(context, "fullMessage")?)?;
            return Ok(vec!["fullMessage"]);
        }
        AptosPayload::Transaction(transaction) => transaction,
    };
    let form = match &transaction.action {
        AptosAction::SendNative { .. } | AptosAction::SendCoin { .. } => return Ok(Vec::new()),
        AptosAction::Call(call) => {
            same(
                "payloadUtf8",
                call.json.as_str(),
                text(context, "payloadUtf8")?,
            )?;
            "JSON entry_function_payload"
        }
        AptosAction::Raw(_) => "BCS RawTransaction",
    };
    same("form", form, text(context, "form")?)?;
    Ok(vec!["form", "payloadUtf8"])
}

fn abi(context: &Map<String, Value>) -> Result<aptos::Abi, String> {
    let abi = super::member(context, "abi")?;
    super::only_known(abi, &[&["params", "genericTypeParams"]])?;
    let params = super::list(abi, "params")?.iter();
    Ok(aptos::Abi {
        params: params
            .map(|param| param.as_str().map(Into::into))
            .collect::<Option<_>>()
            .ok_or("a parameter is no text")?,
        type_parameters: abi
            .get("genericTypeParams")
            .and_then(Value::as_u64)
            .ok_or("genericTypeParams is no number")?,
    })
}
