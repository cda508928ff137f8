//! A JSON document as it was written: keys in order, also those given twice, which
//! `serde_json::Value` would drop silently.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Deeper nesting than any message of the schema has.
const MAX_DEPTH: usize = 32;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum JsonValue {
    Null,
    Bool(bool),
    /// A number written without fraction or exponent that fits 64 bits.
    Integer(i128),
    /// Any other number.
    Float(f64),
    String(String),
    List(Vec<JsonValue>),
    Object(Vec<(String, JsonValue)>),
}

/// Parses a whole document. The error is a sentence for the client, without line and column.
pub(super) fn parse(json: &[u8]) -> Result<JsonValue, &'static str> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let tree = JsonSeed { depth: 0 }
        .deserialize(&mut deserializer)
        .map_err(|error| sentence(&error))?;
    deserializer
        .end()
        .map_err(|_| "malformed JSON: there is more after the end of the object")?;
    Ok(tree)
}

fn sentence(error: &serde_json::Error) -> &'static str {
    match error.classify() {
        serde_json::error::Category::Eof => "malformed JSON: the body ends too early",
        serde_json::error::Category::Data => "malformed JSON: nested too deeply",
        serde_json::error::Category::Syntax | serde_json::error::Category::Io => "malformed JSON",
    }
}

#[derive(Clone, Copy)]
struct JsonSeed {
    depth: usize,
}

impl JsonSeed {
    fn descend<E: Error>(self) -> Result<Self, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom("nested too deeply"));
        }
        Ok(Self {
            depth: self.depth + 1,
        })
    }
}

impl<'de> DeserializeSeed<'de> for JsonSeed {
    type Value = JsonValue;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<JsonValue, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonSeed {
    type Value = JsonValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<JsonValue, E> {
        Ok(JsonValue::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<JsonValue, E> {
        Ok(JsonValue::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<JsonValue, E> {
        Ok(JsonValue::Integer(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<JsonValue, E> {
        Ok(JsonValue::Integer(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<JsonValue, E> {
        Ok(JsonValue::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<JsonValue, E> {
        Ok(JsonValue::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<JsonValue, E> {
        Ok(JsonValue::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonValue, A::Error> {
        let seed = self.descend()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(seed)? {
            list.push(item);
        }
        Ok(JsonValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<JsonValue, A::Error> {
        let seed = self.descend()?;
        let mut object = Vec::new();
        while let Some(key) = entries.next_key::<String>()? {
            object.push((key, entries.next_value_seed(seed)?));
        }
        Ok(JsonValue::Object(object))
    }
}
