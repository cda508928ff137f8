//! The vectors of EVM chains.

use covault_core::{
    networks::{
        ChainData, Payload, Queries, Signed,
        evm::{self, EvmMessageForm, EvmPayload, calls::AbiTable},
    },
    signature::Signature,
};
use serde_json::{Map, Value, json};

use super::{Outcome, hex, number, same, text};

pub struct NetworkVectors;

impl super::NetworkVectors for NetworkVectors {
    fn context_notes(&self) -> &'static [&'static str] {
        &[
            "decimals",        // of the ERC-20 token; amounts are whole
            "contentUtf8",     // of the typed data
            "domainSeparator", // part of the preimage, which is compared
            "structHash",      // likewise
        ]
    }

    fn chain_data(
        &self,
        queries: &Queries,
        _payload: &Payload,
        context: &Map<String, Value>,
    ) -> Result<(ChainData, Vec<&'static str>), String> {
        let eip1559 = match context.get("eip1559") {
            None => true,
            Some(Value::Bool(eip1559)) => *eip1559,
            Some(_) => return Err("eip1559 is not a boolean".into()),
        };
        Ok(match queries {
            Queries::Nothing if eip1559 => (ChainData::Nothing, vec!["eip1559"]),
            Queries::Nothing => {
                let chain_data = evm::ChainData {
                    nonce: None,
                    eip1559,
                    fees: None,
                };
                (ChainData::Evm(chain_data), vec!["eip1559"])
            }
            Queries::Evm(queries) => {
                let chain_data = evm::ChainData {
                    nonce: queries
                        .nonce
                        .then(|| number(context, "nonce"))
                        .transpose()?,
                    eip1559,
                    fees: match queries.fees {
                        None => None,
                        Some(_) => Some(evm::Fees {
                            estimate_gas: number(context, "estimateGas")?,
                            base_fee: number(context, "baseFee")?,
                            max_priority_fee: number(context, "maxPriorityFeePerGas")?,
                        }),
                    },
                };
                let known = vec![
                    "eip1559",
                    "nonce",
                    "estimateGas",
                    "baseFee",
                    "maxPriorityFeePerGas",
                ];
                (ChainData::Evm(chain_data), known)
            }
            other => return Err(format!("asks {other:?}")),
        })
    }

    fn unsigned(&self, expected: &Map<String, Value>) -> Result<Vec<u8>, String> {
        same(
            "encoding",
            text(expected, "encoding")?,
            "hex (no 0x), EIP-2718/RLP",
        )?;
        hex(text(expected, "unsignedTx")?)
    }

    fn signed(&self, signed: &Signed, expected: &Map<String, Value>) -> Outcome {
        same("txHash", signed.tx_hash.as_str(), text(expected, "txHash")?)?;
        let theirs = format!("0x{}", text(expected, "signedTx")?);
        same("signedTx", signed.transaction.as_str(), theirs.as_str())
    }

    fn expected_notes(&self) -> &'static [&'static str] {
        &["evmInputDataDecode"] // compared in `rest`
    }

    fn rest(&self, payload: &Payload, expected: &Map<String, Value>) -> Outcome {
        let Some(wanted) = expected.get("evmInputDataDecode") else {
            return Ok(());
        };
        let shown = match payload {
            Payload::Evm(payload) => payload.call_data(),
            _ => None,
        };
        let shown = shown
            .and_then(|input| AbiTable::built_in().decode(&input))
            .ok_or("the call is not put into words")?;
        let args: Vec<Value> = shown
            .args
            .iter()
            .map(|arg| json!({"name": arg.name, "type": arg.r#type, "data": arg.data}))
            .collect();
        let mut wanted = wanted.clone();
        if let Some(wanted) = wanted.as_object_mut() {
            wanted.remove("basis");
        }
        same(
            "evmInputDataDecode",
            &json!({"function": shown.function, "args": args}),
            &wanted,
        )
    }

    fn convention(&self, payload: &Payload, convention: &Value) -> bool {
        let Payload::Evm(EvmPayload::Message(message)) = payload else {
            return false;
        };
        *convention
            == match message.form {
                EvmMessageForm::PersonalSign => json!("PERSONAL_SIGN"),
                EvmMessageForm::TypedData => json!("TYPED_DATA_V4"),
            }
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
