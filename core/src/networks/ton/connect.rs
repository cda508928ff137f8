//! What TON Connect applications ask for, as JSON: sendTransaction, signData, ton_proof.
//!
//! Fields that are not known here are refused: what they ask for would not be done.

use std::collections::BTreeSet;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use tycho_types::{
    cell::{Cell, CellBuilder},
    models::StateInit,
};

use super::{
    address::{TonAddress, parse_address},
    cells,
    message::{TonMessageForm, is_domain},
    wallet::{WalletOrder, WalletVersion, internal, look},
};
use crate::fault::Fault;

/// A message that a wallet sends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutMessage {
    /// Recipient.
    pub to: TonAddress,
    /// nanoton, up to 2^120 - 1.
    pub value: u128,
    /// Whether it brings a value and nothing else.
    pub is_plain: bool,
    /// Whether it brings the first state of the recipient.
    pub has_init: bool,
    /// The message (TL-B `MessageRelaxed`), as a bag of cells.
    pub boc: Vec<u8>,
}

/// TON Connect's name of mainnet: its global id.
const MAINNET: &str = "-239";
/// The most messages that any wallet sends at once.
const MOST_MESSAGES: usize = 255;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SendTransaction {
    valid_until: Option<u64>,
    network: Option<String>,
    from: Option<String>,
    messages: Vec<MessageItem>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct MessageItem {
    address: String,
    amount: String,
    payload: Option<String>,
    state_init: Option<String>,
}

/// What a tonSendCustom asks for.
pub(crate) struct ConnectRequest {
    /// Unix seconds, where the request says it.
    pub valid_until: Option<u32>,
    /// 1 to 255 messages.
    pub messages: Vec<OutMessage>,
}

/// Reads the payload of a tonSendCustom: a TON Connect sendTransaction, or a bag of cells with one
/// internal message.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] with a path below `payload`.
pub(crate) fn transaction(payload: &[u8], from: &TonAddress) -> Result<ConnectRequest, Fault> {
    let request = if payload.first() == Some(&b'{') {
        from_json(payload, from)?
    } else {
        let cell = cells::read(payload).map_err(|error| Fault::field("payload", error))?;
        ConnectRequest {
            valid_until: None,
            messages: vec![out(&cell, from).map_err(|problem| Fault::field("payload", problem))?],
        }
    };
    // The larger of the two wallets' forms; which one it will be only the key tells.
    let order = WalletOrder {
        wallet: *from,
        version: WalletVersion::V5r1,
        init: Some(WalletVersion::V5r1.state_init(&[0; 32])?),
        valid_until: 0,
        seqno: 0,
        messages: cells_of(&request.messages)?,
    };
    order
        .check_size()
        .map_err(|error| Fault::field("payload", error))?;
    Ok(request)
}

fn from_json(json: &[u8], from: &TonAddress) -> Result<ConnectRequest, Fault> {
    let asked: SendTransaction = serde_json::from_slice(json).map_err(|error| {
        Fault::field(
            "payload",
            "must be the JSON of a TON Connect sendTransaction: messages with address, amount and perhaps payload and stateInit, perhaps valid_until, network and from, and nothing else",
        )
        .caused_by(error)
    })?;
    check_sender(
        "payload",
        asked.network.as_deref(),
        asked.from.as_deref(),
        from,
    )?;
    let valid_until = asked
        .valid_until
        .map(u32::try_from)
        .transpose()
        .map_err(|_| Fault::field("payload.valid_until", "must be in seconds since 1970"))?;
    if !(1..=MOST_MESSAGES).contains(&asked.messages.len()) {
        return Err(Fault::field(
            "payload.messages",
            format_args!("must be 1 to {MOST_MESSAGES}"),
        ));
    }
    let messages = asked
        .messages
        .iter()
        .enumerate()
        .map(|(place, item)| {
            let path = format!("payload.messages[{place}]");
            let cell = message_of(item).map_err(|fault| fault.with_prefix(&path))?;
            out(&cell, from).map_err(|problem| Fault::field(path, problem))
        })
        .collect::<Result<_, _>>()?;
    Ok(ConnectRequest {
        valid_until,
        messages,
    })
}

fn message_of(item: &MessageItem) -> Result<Cell, Fault> {
    let to = parse_address(&item.address).map_err(|error| Fault::field("address", error))?;
    let value = super::parse_coins(&item.amount).map_err(|error| Fault::field("amount", error))?;
    let body = match &item.payload {
        Some(text) => cell("payload", text)?,
        None => Cell::default(),
    };
    let init = match &item.state_init {
        Some(text) => Some(state_init(&cell("stateInit", text)?)?),
        None => None,
    };
    internal(&to, value, init, body).map_err(Fault::bug)
}

/// A state that is read as what it is, with nothing behind it.
fn state_init(cell: &Cell) -> Result<StateInit, Fault> {
    cell.parse::<StateInit>()
        .ok()
        .filter(|init| {
            CellBuilder::build_from(init).is_ok_and(|again| again.repr_hash() == cell.repr_hash())
        })
        .ok_or_else(|| Fault::field("stateInit", "must be a StateInit"))
}

/// The message with what is plain to see in it.
fn out(message: &Cell, from: &TonAddress) -> Result<OutMessage, &'static str> {
    let seen = look(message).ok_or(
        "must be an internal MessageRelaxed as the TON libraries write it, to workchain 0 or -1, without extra currencies and with IHR disabled",
    )?;
    if seen.from.is_some_and(|other| other != from.std()) {
        return Err("is from an account other than the wallet");
    }
    Ok(OutMessage {
        to: seen.to,
        value: seen.value,
        is_plain: !seen.has_init && seen.body.is_empty(),
        has_init: seen.has_init,
        boc: cells::write(message.as_ref()),
    })
}

/// The recipients, `EQ...`, at which a contract must be already, or the message bounces: no message before it brings the
/// first state.
pub(super) fn contracts_of(messages: &[OutMessage]) -> BTreeSet<String> {
    let mut made = BTreeSet::new();
    let mut contracts = BTreeSet::new();
    for message in messages {
        let to = message.to.contract_form();
        if message.has_init {
            made.insert(to);
        } else if message.to.bounce && !made.contains(&to) {
            contracts.insert(to);
        }
    }
    contracts
}

/// The cells of messages that were read before.
pub(super) fn cells_of(messages: &[OutMessage]) -> Result<Vec<Cell>, Fault> {
    messages
        .iter()
        .map(|message| cells::read(&message.boc).map_err(Fault::bug))
        .collect()
}

fn cell(name: &str, text: &str) -> Result<Cell, Fault> {
    let bytes = base64(name, text)?;
    cells::read(&bytes).map_err(|error| Fault::field(name, error))
}

fn base64(name: &str, text: &str) -> Result<Vec<u8>, Fault> {
    STANDARD
        .decode(text)
        .map_err(|_| Fault::field(name, "must be base64 with padding"))
}

fn check_sender(
    field: &str,
    network: Option<&str>,
    named: Option<&str>,
    from: &TonAddress,
) -> Result<(), Fault> {
    if network.is_some_and(|network| network != MAINNET) {
        return Err(Fault::field(
            format_args!("{field}.network"),
            format_args!("must be {MAINNET} (mainnet) or left out"),
        ));
    }
    let is_sender = |text: &str| parse_address(text).is_ok_and(|named| named.is_account(from));
    if named.is_some_and(|named| !is_sender(named)) {
        return Err(Fault::field(
            format_args!("{field}.from"),
            "is not the wallet's address",
        ));
    }
    Ok(())
}

/// The forms that JSON content can ask for, as `type` names them.
const FORMS: [&str; 5] = ["text", "binary", "cell", "ton_proof", "safe_sign"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignData {
    r#type: String,
    text: Option<String>,
    bytes: Option<String>,
    schema: Option<String>,
    cell: Option<String>,
    payload: Option<String>,
    domain: Option<String>,
    timestamp: Option<u64>,
    network: Option<String>,
    from: Option<String>,
}

/// What a tonMessage asks for.
pub(crate) struct MessageContent {
    /// How it is signed.
    pub form: TonMessageForm,
    /// The domain, where the content says it.
    pub domain: Option<String>,
    /// Unix seconds, where the content says it.
    pub timestamp: Option<u64>,
}

/// Reads the content of a tonMessage. A JSON object whose `type` is `text`, `binary`, `cell`
/// (TON Connect's signData), `ton_proof` or `safe_sign` asks for that form; other UTF-8 is signed as a
/// text, other bytes as binary.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] with a path below `content`: JSON that names a form is that
/// form or refused, never signed as a text.
pub(crate) fn content(bytes: &[u8], from: &TonAddress) -> Result<MessageContent, Fault> {
    let named = serde_json::from_slice::<serde_json::Value>(bytes)
        .ok()
        .is_some_and(|json| {
            let form = json.get("type").and_then(serde_json::Value::as_str);
            form.is_some_and(|form| FORMS.contains(&form))
        });
    if !named {
        let form = match std::str::from_utf8(bytes) {
            Ok(text) => TonMessageForm::Text(text.to_owned()),
            Err(_) => TonMessageForm::Binary(bytes.to_vec()),
        };
        return Ok(MessageContent {
            form,
            domain: None,
            timestamp: None,
        });
    }
    let asked: SignData =
        serde_json::from_slice(bytes).map_err(|error| malformed().caused_by(error))?;
    check_sender(
        "content",
        asked.network.as_deref(),
        asked.from.as_deref(),
        from,
    )?;
    let checked = |text: &str| -> Result<Vec<u8>, Fault> {
        let bytes = base64("content.cell", text)?;
        cells::read(&bytes).map_err(|error| Fault::field("content.cell", error))?;
        Ok(bytes)
    };
    let form = match (
        asked.r#type.as_str(),
        asked.text,
        asked.bytes,
        asked.schema,
        asked.cell,
        asked.payload,
    ) {
        ("text", Some(text), None, None, None, None) => TonMessageForm::Text(text),
        ("binary", None, Some(text), None, None, None) => {
            TonMessageForm::Binary(base64("content.bytes", &text)?)
        }
        ("cell", None, None, Some(schema), Some(cell), None) => TonMessageForm::Cell {
            schema,
            cell: checked(&cell)?,
        },
        ("ton_proof", None, None, None, None, Some(payload)) => TonMessageForm::Proof { payload },
        ("safe_sign", None, None, None, Some(cell), None) => TonMessageForm::SafeSign {
            cell: checked(&cell)?,
        },
        _ => return Err(malformed()),
    };
    if !form.has_domain() && (asked.domain.is_some() || asked.timestamp.is_some()) {
        return Err(malformed());
    }
    if asked.domain.as_deref().is_some_and(|text| !is_domain(text)) {
        return Err(Fault::field(
            "content.domain",
            "must be a host name of at most 126 bytes",
        ));
    }
    Ok(MessageContent {
        form,
        domain: asked.domain,
        timestamp: asked.timestamp,
    })
}

fn malformed() -> Fault {
    Fault::field(
        "content",
        "must be what its type says: text with text; binary with bytes; cell with schema and cell; ton_proof with payload, each perhaps with domain, timestamp, network and from; or safe_sign with cell; and nothing else. To have this JSON signed as it stands, give it as the text of type text",
    )
}
