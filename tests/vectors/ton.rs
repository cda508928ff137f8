//! The vectors of TON.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    networks::{
        ChainData, DynNetworkRules, Payload, Queries, Signed,
        ton::{self, TonMessageForm, TonPayload, WalletVersion, parse_address},
    },
    signature::Signature,
};
use serde_json::{Map, Value, json};
use tycho_types::{
    boc::{Boc, ser::BocHeader},
    cell::{Cell, CellBuilder},
    models::{IntAddr, MessageLayout, MsgInfo, OwnedMessage},
};

use super::{Outcome, hex, number, only_known, same, text};

pub struct NetworkVectors;

impl super::NetworkVectors for NetworkVectors {
    fn context_notes(&self) -> &'static [&'static str] {
        &[
            "walletVersion", // the address is that of this wallet
            "jettonBody",    // part of unsignedTx, which is compared
            "form",          // of the payload: its first byte tells
            "payloadUtf8",   // the payload again
            "schema",        // of a cell: goes into the content, see below
        ]
    }

    fn expected_notes(&self) -> &'static [&'static str] {
        // Compared in `signed`.
        &["bodyHash", "msgHash", "stateInitAttached"]
    }

    /// The vectors name the form of a message beside its content; here content says it.
    fn input(&self, body: &Map<String, Value>) -> Result<Value, String> {
        let mut input = body.get("input").cloned().unwrap_or_default();
        let context = body.get("context").and_then(Value::as_object);
        let Some(convention) = context.and_then(|context| context.get("convention")) else {
            return Ok(input);
        };
        let content = input
            .get_mut("content")
            .ok_or("a convention without content")?;
        let given = content.as_str().ok_or("content is not a string")?;
        let asked = match convention.as_str() {
            Some("signData:cell") => {
                let schema = context.and_then(|context| context.get("schema"));
                json!({"type": "cell", "schema": schema, "cell": given})
            }
            Some("ton_proof") => {
                let payload = STANDARD.decode(given).map_err(|error| error.to_string())?;
                let payload = String::from_utf8(payload).map_err(|error| error.to_string())?;
                json!({"type": "ton_proof", "payload": payload})
            }
            Some("safeSign") => json!({"type": "safe_sign", "cell": given}),
            _ => return Ok(input),
        };
        *content = json!(STANDARD.encode(asked.to_string()));
        Ok(input)
    }

    fn address(&self, address: &str, expected: &Map<String, Value>) -> Outcome {
        let known = ["result", "address", "bounceable", "raw", "stateInit"];
        only_known(expected, &[&known])?;
        let parsed = parse_address(address).map_err(|error| error.to_string())?;
        let expect = |key: &str, ours: String| same(key, ours.as_str(), text(expected, key)?);
        expect("bounceable", parsed.contract_form())?;
        expect("raw", raw(address)?)?;
        // An address is the hash of the first state.
        let state = cell(text(expected, "stateInit")?)?;
        same("hash of stateInit", &parsed.account, &state.repr_hash().0)
    }

    fn sender(
        &self,
        chain: &dyn DynNetworkRules,
        public_key: &[u8],
        context: &Map<String, Value>,
    ) -> Result<String, String> {
        match context.get("walletVersion").map(Value::as_str) {
            Some(Some("v4r2")) => {
                let key = public_key.try_into().map_err(|_| "not a key")?;
                let address = WalletVersion::V4r2.address(key).map_err(super::public)?;
                Ok(address.wallet_form())
            }
            // New wallets, and messages, which do not say.
            Some(Some("v5r1")) | None => chain.address(public_key).map_err(super::public),
            Some(other) => Err(format!("unknown wallet {other:?}")),
        }
    }

    fn chain_data(
        &self,
        queries: &Queries,
        payload: &Payload,
        context: &Map<String, Value>,
    ) -> Result<(ChainData, Vec<&'static str>), String> {
        same(
            "rawAddress",
            raw(payload.from())?.as_str(),
            text(context, "rawAddress")?,
        )?;
        Ok(match queries {
            Queries::Nothing => (ChainData::Nothing, vec!["rawAddress"]),
            Queries::Ton(ton::Queries::Message { domain, timestamp }) => {
                let chain_data = ton::ChainData::Message {
                    domain: domain
                        .then(|| text(context, "domain").map(Into::into))
                        .transpose()?,
                    timestamp: timestamp
                        .then(|| number(context, "timestamp"))
                        .transpose()?,
                };
                (
                    ChainData::Ton(chain_data),
                    vec!["rawAddress", "domain", "timestamp"],
                )
            }
            Queries::Ton(ton::Queries::Transaction(queries)) => {
                same("asked", queries.from.as_str(), payload.from())?;
                let seqno = number(context, "seqno")?;
                let jetton = match (&queries.jetton, payload) {
                    (None, _) => None,
                    (Some(jetton), Payload::Ton(TonPayload::SendToken(send))) => {
                        Some(ton::JettonChainData {
                            wallet: text(context, "senderJettonWallet")?.to_owned(),
                            master: Some(jetton.master.clone()),
                            decimals: jetton.decimals.then_some(send.decimals).flatten(),
                        })
                    }
                    (Some(_), _) => return Err("asks for a jetton".into()),
                };
                let chain_data = ton::TransactionChainData {
                    seqno,
                    // The conventions: 0 and undeployed.
                    deployed: seqno != 0,
                    valid_until: queries
                        .valid_until
                        .then(|| number(context, "validUntil"))
                        .transpose()?,
                    // The conventions: the address says whether it bounces.
                    recipient_deployed: queries.recipient.is_some().then_some(true),
                    jetton,
                };
                let known = vec!["rawAddress", "seqno", "validUntil", "senderJettonWallet"];
                (
                    ChainData::Ton(ton::ChainData::Transaction(chain_data)),
                    known,
                )
            }
            other => return Err(format!("asks {other:?}")),
        })
    }

    /// The vectors have the body that is signed; ours is the external message around it, which
    /// has the sender and first state of `signedTx`.
    fn unsigned(&self, expected: &Map<String, Value>) -> Result<Vec<u8>, String> {
        same("encoding", text(expected, "encoding")?, "BoC")?;
        let body = hex(text(expected, "unsignedTx")?)?;
        let body = Boc::decode(body).map_err(|error| error.to_string())?;
        let theirs = cell(text(expected, "signedTx")?)?;
        let mut message: OwnedMessage = theirs.parse().map_err(|error| format!("{error}"))?;
        message.body = body.into();
        message.layout = Some(BODY_APART);
        let external = CellBuilder::build_from(message).map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        let writer: BocHeader<'_> = BocHeader::with_root(external.as_ref());
        writer.with_crc(true).encode(&mut bytes);
        Ok(bytes)
    }

    /// Cells are compared by hash, as the conventions say.
    fn signed(&self, signed: &Signed, expected: &Map<String, Value>) -> Outcome {
        same("txHash", signed.tx_hash.as_str(), text(expected, "txHash")?)?;
        let (ours, theirs) = (
            cell(&signed.transaction)?,
            cell(text(expected, "signedTx")?)?,
        );
        same("signedTx", &ours, &theirs)?;
        let hash = |cell: &Cell| ::hex::encode(cell.repr_hash().0);
        same("msgHash", hash(&ours).as_str(), text(expected, "msgHash")?)?;
        let message: OwnedMessage = ours.parse().map_err(|error| format!("{error}"))?;
        same(
            "stateInitAttached",
            &Some(message.init.is_some()),
            &expected.get("stateInitAttached").and_then(Value::as_bool),
        )?;
        // Its own body, in a cell of its own.
        let (range, whole) = &message.body;
        let body = range.apply(whole).map_err(|error| error.to_string())?;
        let body = CellBuilder::build_from(body).map_err(|error| error.to_string())?;
        same(
            "bodyHash",
            hash(&body).as_str(),
            text(expected, "bodyHash")?,
        )?;
        let MsgInfo::ExtIn(info) = &message.info else {
            return Err("is not an external message".into());
        };
        let IntAddr::Std(to) = &info.dst else {
            return Err("is to no account".into());
        };
        same(
            "recipient",
            &raw(text(expected, "address")?)?,
            &to.to_string(),
        )
    }

    fn convention(&self, payload: &Payload, convention: &Value) -> bool {
        let Payload::Ton(TonPayload::Message(message)) = payload else {
            return false;
        };
        *convention
            == match message.form {
                TonMessageForm::Text(_) => json!("signData:text"),
                TonMessageForm::Binary(_) => json!("signData:binary"),
                TonMessageForm::Cell { .. } => json!("signData:cell"),
                TonMessageForm::Proof { .. } => json!("ton_proof"),
                TonMessageForm::SafeSign { .. } => json!("safeSign"),
            }
    }

    fn plain_signature(&self, signature: &Signature, _public_key: &[u8]) -> String {
        STANDARD.encode(signature.to_bytes())
    }
}

const BODY_APART: MessageLayout = MessageLayout {
    init_to_cell: false,
    body_to_cell: true,
};

fn cell(base64: &str) -> Result<Cell, String> {
    Boc::decode_base64(base64).map_err(|error| error.to_string())
}

fn raw(address: &str) -> Result<String, String> {
    let address = parse_address(address).map_err(|error| error.to_string())?;
    let account = ::hex::encode(address.account);
    Ok(format!("{}:{account}", address.workchain))
}
