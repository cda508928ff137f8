//! The vectors of Sui.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    fault::Fault,
    networks::{
        ChainData, Payload, Queries, Signed, WireKind,
        sui::{
            ChainData as SuiChainData, CoinObject, GasUsed, SuiPayload, SuiPayment, SuiValidity,
            batch_coin, batch_native,
        },
    },
    schema::{json, wire},
    signature::Signature,
};
use serde_json::{Map, Value, json};

use super::{Outcome, hex, list, member, number, only_known, same, text};

pub struct NetworkVectors;

/// Fields of a context, where something is paid.
const CONTEXT: [&str; 8] = [
    "suiCoins",
    "suiAddressBalance",
    "coins",
    "coinAddressBalance",
    "epoch",
    "chainIdentifier",
    "expiration",
    "referenceGasPrice",
];

impl super::NetworkVectors for NetworkVectors {
    fn expected_notes(&self) -> &'static [&'static str] {
        &["unsignedTxHex", "decoded"] // compared in `unsigned`
    }

    fn chain_data(
        &self,
        queries: &Queries,
        payload: &Payload,
        context: &Map<String, Value>,
    ) -> Result<(ChainData, Vec<&'static str>), String> {
        let queries = match queries {
            Queries::Nothing => {
                if let (Some(form), Payload::Sui(SuiPayload::Custom(_))) =
                    (context.get("form"), payload)
                {
                    same("form", form, &json!("BCS TransactionData"))?;
                }
                return Ok((ChainData::Nothing, vec!["form"]));
            }
            Queries::Sui(queries) => queries,
            other => return Err(format!("asks {other:?}")),
        };
        let optional = |key| match context.get(key) {
            None => Ok(0),
            Some(_) => number(context, key),
        };
        let is_token = queries.payment.token().is_some();
        let chain_data = SuiChainData {
            reference_gas_price: queries
                .price
                .then(|| number(context, "referenceGasPrice"))
                .transpose()?,
            gas_used: queries
                .simulation
                .then(|| gas_used(member(context, "gasUsed")?).map(Box::new))
                .transpose()?,
            sui_coins: coins(context, "suiCoins")?,
            sui_address_balance: optional("suiAddressBalance")?,
            coins: if is_token {
                coins(context, "coins")?
            } else {
                Vec::new()
            },
            coin_address_balance: if is_token {
                optional("coinAddressBalance")?
            } else {
                0
            },
            required: Vec::new(),
            validity: validity(context)?,
        };
        Ok((
            ChainData::Sui(chain_data),
            [&CONTEXT[..], &["gasUsed"]].concat(),
        ))
    }

    fn unsigned(&self, expected: &Map<String, Value>) -> Result<Vec<u8>, String> {
        same("encoding", text(expected, "encoding")?, "base64 BCS")?;
        let bytes = STANDARD
            .decode(text(expected, "unsignedTx")?)
            .map_err(|error| error.to_string())?;
        same(
            "unsignedTxHex",
            &hex(text(expected, "unsignedTxHex")?)?,
            &bytes,
        )?;
        for signing in list(expected, "signing")? {
            let preimage = signing.get("preimage").and_then(Value::as_str);
            let intent = format!("000000{}", ::hex::encode(&bytes));
            same("preimage", &preimage, &Some(intent.as_str()))?;
        }
        same("decoded", &from_json(member(expected, "decoded")?)?, &bytes)?;
        Ok(bytes)
    }

    fn signed(&self, signed: &Signed, expected: &Map<String, Value>) -> Outcome {
        same("txHash", signed.tx_hash.as_str(), text(expected, "txHash")?)?;
        let ours: Value =
            serde_json::from_str(&signed.transaction).map_err(|error| error.to_string())?;
        let theirs = expected.get("signedTx").cloned().unwrap_or_default();
        same("signedTx", &ours, &theirs)
    }

    fn convention(&self, payload: &Payload, convention: &Value) -> bool {
        matches!(payload, Payload::Sui(SuiPayload::Message(_)))
            && *convention == json!("PersonalMessage intent")
    }

    /// Flag 0 (Ed25519), signature, public key.
    fn plain_signature(&self, signature: &Signature, public_key: &[u8]) -> String {
        STANDARD.encode([&[0], &signature.to_bytes()[..], public_key].concat())
    }

    fn batch(&self, kind: &str, input: &Value) -> Option<Result<Payload, Fault>> {
        if !["suiBatchSendNative", "suiBatchSendCoin"].contains(&kind) {
            return None;
        }
        Some(batch(kind, input).map_err(|fault| fault.with_prefix(kind)))
    }
}

/// The message has no gas; the vectors give it beside the message.
fn batch(kind: &str, input: &Value) -> Result<Payload, Fault> {
    use wire::create_batch_payment_request::Type;
    let mut input = input.clone();
    let gas = input
        .as_object_mut()
        .and_then(|input| input.remove("gasFee"))
        .map(|gas| {
            let part = |key| gas.get(key).and_then(Value::as_str).map(Into::into);
            wire::SuiGas {
                budget: part("budget"),
                price: part("price"),
            }
        });
    let request = json!({ kind: input }).to_string();
    let request: wire::CreateBatchPaymentRequest = json::decode(request.as_bytes())?;
    let payment: SuiPayment = match &request.r#type {
        Some(Type::SuiBatchSendNative(wire)) => batch_native(wire)?,
        Some(Type::SuiBatchSendCoin(wire)) => batch_coin(wire)?,
        _ => return Err(Fault::bug("not a batch of Sui")),
    };
    Ok(SuiPayload::Payment(payment.with_gas(gas.as_ref())?).into())
}

fn coins(context: &Map<String, Value>, key: &str) -> Result<Vec<CoinObject>, String> {
    let one = |coin: &Value| {
        let coin = coin.as_object().ok_or("a coin is not an object")?;
        only_known(coin, &[&["objectId", "version", "digest", "balance"]])?;
        Ok(CoinObject {
            object_id: text(coin, "objectId")?.to_owned(),
            version: number(coin, "version")?,
            digest: text(coin, "digest")?.to_owned(),
            balance: number(coin, "balance")?,
            origin: None,
        })
    };
    list(context, key)?.iter().map(one).collect()
}

fn gas_used(used: &Map<String, Value>) -> Result<GasUsed, String> {
    only_known(
        used,
        &[&[
            "computationCost",
            "storageCost",
            "storageRebate",
            "nonRefundableStorageFee", // a part of the rebate
        ]],
    )?;
    Ok(GasUsed {
        computation_cost: number(used, "computationCost")?,
        storage_cost: number(used, "storageCost")?,
        storage_rebate: number(used, "storageRebate")?,
    })
}

fn validity(context: &Map<String, Value>) -> Result<Option<SuiValidity>, String> {
    if !context.contains_key("epoch") {
        return Ok(None);
    }
    let nonce = match context.get("expiration") {
        None => None,
        Some(expiration) => {
            let nonce = expiration
                .pointer("/ValidDuring/nonce")
                .and_then(Value::as_u64);
            Some(
                nonce
                    .and_then(|nonce| u32::try_from(nonce).ok())
                    .ok_or("an expiration without a nonce")?,
            )
        }
    };
    Ok(Some(SuiValidity {
        epoch: number(context, "epoch")?,
        chain_identifier: text(context, "chainIdentifier")?.to_owned(),
        nonce,
    }))
}

/// The BCS that a suiSendCustom makes of the same transaction in JSON.
fn from_json(decoded: &Map<String, Value>) -> Result<Vec<u8>, String> {
    only_known(decoded, &[&["sender", "expiration", "gasData", "kind"]])?;
    let program = decoded
        .get("kind")
        .and_then(|kind| kind.get("ProgrammableTransaction"))
        .ok_or("decoded is no programmable transaction")?;
    let transaction = json!({
        "version": 2,
        "sender": decoded.get("sender"),
        "expiration": decoded.get("expiration"),
        "gasData": decoded.get("gasData"),
        "inputs": program.get("inputs"),
        "commands": program.get("commands"),
    });
    let payload = Payload::parse(&WireKind::SuiSendCustom(wire::SuiSendCustom {
        from: text(decoded, "sender")?.to_owned(),
        payload: transaction.to_string().into_bytes(),
        other_signatures: Vec::new(),
    }))
    .map_err(|fault| format!("decoded: {fault:?}"))?;
    match payload.to_wire() {
        WireKind::SuiSendCustom(custom) => Ok(custom.payload),
        other => Err(format!("decoded became {other:?}")),
    }
}
