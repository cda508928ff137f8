//! Messages that say something else in one field: for tests of what nodes do when an orchestrator that they trust
//! lies. Behind the feature `simulation`.
//!
//! The fields are found in the messages themselves, so that none can be forgotten.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    envelope::EnvelopeKind,
    message::{
        ActivateMsg, Announcement, AttestOrderMsg, BackupOrderMsg, KeyExchangeMsg, KeygenOrderMsg,
        OrderReply, PreprocessMsg, RejectionMsg, ReshareOrderMsg, SignOrderMsg, WitnessMsg, decode,
        encode,
    },
    questions::{NodeAnswer, NodeQuestionMsg},
};

/// A body with one field changed.
pub struct Mutation {
    /// The field's path; `*` stands for a place in a list.
    pub field: String,
    /// The changed body.
    pub body: Vec<u8>,
}

/// Every field of the body of such a message, changed in every way that still is such a message, and
/// the fields for which there is none. `None` when the body is none of these, and for protocol
/// messages, whose bodies are their backend's.
pub fn mutations(kind: EnvelopeKind, body: &[u8]) -> Option<(Vec<Mutation>, Vec<String>)> {
    match kind {
        EnvelopeKind::SigningOrder => of::<SignOrderMsg>(body),
        EnvelopeKind::KeygenOrder => of::<KeygenOrderMsg>(body),
        EnvelopeKind::ReshareOrder => of::<ReshareOrderMsg>(body),
        EnvelopeKind::Activate => of::<ActivateMsg>(body),
        EnvelopeKind::BackupOrder => of::<BackupOrderMsg>(body),
        EnvelopeKind::AttestOrder => of::<AttestOrderMsg>(body),
        EnvelopeKind::Rejection => of::<RejectionMsg>(body),
        EnvelopeKind::Nonces => of::<PreprocessMsg>(body),
        EnvelopeKind::Announcement => of::<Announcement>(body),
        EnvelopeKind::Reply => of::<OrderReply>(body),
        EnvelopeKind::Witness => of::<WitnessMsg>(body),
        EnvelopeKind::Question => of::<NodeQuestionMsg>(body),
        EnvelopeKind::Answer => of::<NodeAnswer>(body),
        EnvelopeKind::KeyExchange => of::<KeyExchangeMsg>(body),
        EnvelopeKind::Protocol => None,
    }
}

fn of<T: Serialize + DeserializeOwned>(body: &[u8]) -> Option<(Vec<Mutation>, Vec<String>)> {
    let message: T = decode(body)?;
    let whole = serde_json::to_value(&message).ok()?;
    let mut places = Vec::new();
    find(&whole, String::new(), &mut places);
    let (mut made, mut without) = (Vec::new(), Vec::new());
    for (place, mut others) in places {
        let field = name(&place);
        let changed = |other: &Value| {
            let mut whole = whole.clone();
            *whole.pointer_mut(&place)? = other.clone();
            Some(serde_json::from_value::<T>(whole))
        };
        // A name of a variant: the refusal of an unknown one lists the others.
        if let Some(Err(refusal)) = changed(&json!("no such variant")) {
            let text = refusal.to_string();
            others.extend(text.split('`').skip(3).step_by(2).map(|name| json!(name)));
        }
        let before = made.len();
        for other in others {
            let Some(Ok(message)) = changed(&other) else {
                continue;
            };
            match encode(&message) {
                Ok(other) if other != body => made.push(Mutation {
                    field: field.clone(),
                    body: other,
                }),
                _ => {}
            }
        }
        if made.len() == before {
            without.push(field);
        }
    }
    Some((made, without))
}

/// All places of a message, and what could stand there instead.
fn find(value: &Value, place: String, places: &mut Vec<(String, Vec<Value>)>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                find(value, format!("{place}/{key}"), places);
            }
        }
        Value::Array(items) => {
            places.push((place.clone(), lists(items)));
            // Bytes are one field.
            if !items.iter().all(Value::is_number) {
                for (number, item) in items.iter().enumerate() {
                    find(item, format!("{place}/{number}"), places);
                }
            }
        }
        Value::Bool(is) => places.push((place, vec![json!(!is)])),
        Value::Number(number) => {
            let number = number.as_u64().unwrap_or_default();
            let others = [
                number.saturating_add(1),
                number.saturating_sub(1),
                0,
                number ^ 0x80,
                u64::from(u32::MAX),
                u64::MAX,
            ];
            places.push((place, others.map(|other| json!(other)).to_vec()));
        }
        Value::String(text) => places.push((place, texts(text))),
        Value::Null => {
            let others = vec![
                json!(1),
                json!("x"),
                json!(true),
                json!([]),
                json!(vec![7; 32]),
            ];
            places.push((place, others));
        }
    }
}

fn lists(items: &[Value]) -> Vec<Value> {
    let mut others = vec![json!([]), json!(items.iter().rev().collect::<Vec<_>>())];
    if let Some((last, before)) = items.split_last() {
        others.push(json!(before));
        others.push(json!([items, std::slice::from_ref(last)].concat()));
        let flipped = |place: usize| {
            let mut items = items.to_vec();
            let item = items.get_mut(place)?;
            *item = json!(item.as_u64()? ^ 1);
            Some(json!(items))
        };
        let places = [0, items.len() / 2, before.len()];
        others.extend(places.into_iter().filter_map(flipped));
    } else {
        // Of whatever it could hold.
        let filled = [json!([7]), json!([[7]]), json!(["x"]), json!([vec![7; 32]])];
        others.extend(filled);
        others.push(json!([[vec![7; 8], vec![7; 32]]]));
        others.push(json!([{ "key": vec![7; 8], "peer": vec![7; 32] }]));
    }
    others
}

fn texts(text: &str) -> Vec<Value> {
    let mut others = vec![json!(""), json!(format!("{text}x"))];
    for place in [0, text.len() / 2, text.len().saturating_sub(1)] {
        for letter in ["0", "1", "a", "B"] {
            let mut other = text.to_owned();
            if other.is_char_boundary(place) && other.is_char_boundary(place.saturating_add(1)) {
                other.replace_range(place..place.saturating_add(1).min(text.len()), letter);
                others.push(json!(other));
            }
        }
    }
    others
}

/// The place without numbers of list items.
fn name(place: &str) -> String {
    let parts = place.split('/').skip(1);
    let parts = parts.map(|part| match part.parse::<usize>() {
        Ok(_) => "*",
        Err(_) => part,
    });
    parts.collect::<Vec<_>>().join(".")
}
