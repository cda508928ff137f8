//! Schemas of messages and enums, as requests may hold them and as responses show them.

use std::collections::BTreeSet;

use covault_core::{fault::Fault, schema::describe};
use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

use super::{
    rules::{self, Rule},
    shape::{BASE64, HEX_BYTES, HEX_CALL_DATA, PADDED, described, nullable, reference, with},
};

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageSide {
    /// In a request.
    Request,
    /// In a response.
    Response,
}

/// The schemas that the document refers to.
#[derive(Default)]
pub struct Schemas {
    made: Map<String, Value>,
    /// Messages that were referred to; not all of them are made.
    wanted: Vec<(MessageDescriptor, MessageSide)>,
    seen: BTreeSet<(String, MessageSide)>,
}

impl Schemas {
    /// A reference to the schema of a message.
    pub fn message(&mut self, message: &MessageDescriptor, side: MessageSide) -> Value {
        if self.seen.insert((message.full_name().to_owned(), side)) {
            self.wanted.push((message.clone(), side));
        }
        reference(&name(message, side))
    }

    /// Adds a schema that is no message.
    pub fn add(&mut self, name: &str, schema: Value) -> Value {
        self.made.insert(name.to_owned(), schema);
        reference(name)
    }

    /// All of them.
    pub fn finish(mut self) -> Result<Map<String, Value>, Fault> {
        while let Some((message, side)) = self.wanted.pop() {
            let schema = match side {
                MessageSide::Request => self.accepted(&message)?,
                MessageSide::Response => self.shown(&message)?,
            };
            self.made.insert(name(&message, side), schema);
        }
        Ok(self.made)
    }

    /// A message as the decoder accepts it, and nothing else.
    fn accepted(&mut self, message: &MessageDescriptor) -> Result<Value, Fault> {
        let name = describe::name_in_package(message.full_name()).to_owned();
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for field in message.fields() {
            let rule = rules::rule(&name, field.name());
            let must = rule.required || describe::is_required(&field)?;
            let schema = self.accepted_field(&field, rule)?;
            let schema = if must { schema } else { nullable(schema) };
            let schema = described(schema, &describe::comment(&field));
            properties.insert(field.json_name().to_owned(), schema);
            if must {
                required.push(json!(field.json_name()));
            }
        }
        let mut schema = json!({
            "type": "object",
            "additionalProperties": false,
            "properties": properties,
        });
        let mut across = rules::across(&name);
        for oneof in message.oneofs() {
            across.push(self.exactly_one(oneof.fields()));
        }
        if !required.is_empty() {
            schema = with(schema, json!({"required": required}));
        }
        if !across.is_empty() {
            // Inside `allOf`, so that what makes code of the document still sees one object.
            schema = with(schema, json!({"allOf": across}));
        }
        Ok(described(schema, &describe::comment(message)))
    }

    /// One of the fields is set, that is: given and not `null`. Each option has the whole type: generators of
    /// clients take the type of a field from it.
    fn exactly_one(&mut self, fields: impl Iterator<Item = FieldDescriptor>) -> Value {
        let options: Vec<Value> = fields
            .map(|field| {
                let set = match field.kind() {
                    Kind::Message(message) => self.message(&message, MessageSide::Request),
                    _ => json!({"type": "string"}),
                };
                let name = field.json_name();
                json!({"required": [name], "properties": {name: set}})
            })
            .collect();
        json!({"oneOf": options})
    }

    fn accepted_field(&mut self, field: &FieldDescriptor, rule: Rule) -> Result<Value, Fault> {
        let limits = rule.limits.unwrap_or_else(|| json!({}));
        if field.is_list() {
            let item = self.accepted_value(&field.kind(), false, describe::is_padded(field)?);
            return Ok(with(json!({"type": "array", "items": item}), limits));
        }
        let padded = describe::is_padded(field)?;
        let schema = self.accepted_value(&field.kind(), rule.not_zero, padded);
        Ok(with(schema, limits))
    }

    fn accepted_value(&mut self, kind: &Kind, not_zero: bool, padded: bool) -> Value {
        match kind {
            Kind::Bool => json!({"type": "boolean"}),
            Kind::String => json!({"type": "string"}),
            Kind::Bytes => {
                let (pattern, hex) = if padded {
                    (PADDED, HEX_CALL_DATA)
                } else {
                    (BASE64, HEX_BYTES)
                };
                json!({
                    "type": "string", "contentEncoding": "base64", "pattern": pattern,
                    "not": {"type": "string", "pattern": hex},
                })
            }
            Kind::Uint64 | Kind::Fixed64 => integer(0, i64::MAX, "^-?(0|[1-9][0-9]{0,18})$"),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
                integer(i64::MIN, i64::MAX, "^-?(0|[1-9][0-9]{0,18})$")
            }
            Kind::Uint32 | Kind::Fixed32 => integer(0, u32::MAX.into(), "^(0|[1-9][0-9]{0,9})$"),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
                integer(i32::MIN.into(), i32::MAX.into(), "^-?(0|[1-9][0-9]{0,9})$")
            }
            Kind::Enum(descriptor) => self.accepted_enum(descriptor, not_zero),
            Kind::Message(message) => match describe::wrapped(message) {
                Some(inner) => self.accepted_value(&inner.kind(), not_zero, padded),
                None => self.message(message, MessageSide::Request),
            },
            // The schema has none; the decoder's tests prove it.
            Kind::Double | Kind::Float => json!({"type": "number"}),
        }
    }

    /// By name or by number.
    fn accepted_enum(&mut self, descriptor: &EnumDescriptor, not_zero: bool) -> Value {
        let least = i32::from(not_zero);
        let numbers: Vec<i32> = descriptor
            .values()
            .map(|value| value.number())
            .filter(|number| *number >= least)
            .collect();
        let names = self.names(descriptor, not_zero);
        json!({"anyOf": [names, {"type": "integer", "enum": numbers}]})
    }

    /// A reference to the names of an enum.
    fn names(&mut self, descriptor: &EnumDescriptor, not_zero: bool) -> Value {
        let values: Vec<_> = descriptor
            .values()
            .filter(|value| !not_zero || value.number() != 0)
            .collect();
        let names: Vec<_> = values.iter().map(|value| value.name().to_owned()).collect();
        let mut text = describe::comment(descriptor);
        for value in &values {
            let comment = describe::comment(value);
            if !comment.is_empty() {
                text = format!("{text}\n- `{}`: {comment}", value.name());
            }
        }
        let name = describe::name_in_package(descriptor.full_name()).replace('.', "");
        let name = if not_zero {
            format!("{name}Input")
        } else {
            name
        };
        let schema = described(json!({"type": "string", "enum": names}), &text);
        self.add(&name, schema)
    }

    /// A message as responses show it: every field, but of a oneof the one that is set.
    fn shown(&mut self, message: &MessageDescriptor) -> Result<Value, Fault> {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for field in message.fields() {
            let comment = describe::comment(&field);
            let schema = described(self.shown_field(&field), &comment);
            properties.insert(field.json_name().to_owned(), schema);
            if field.containing_oneof().is_none() {
                required.push(json!(field.json_name()));
            }
        }
        let mut schema = json!({"type": "object", "properties": properties});
        if !required.is_empty() {
            schema = with(schema, json!({"required": required}));
        }
        Ok(described(schema, &describe::comment(message)))
    }

    /// A field of a response.
    pub fn shown_field(&mut self, field: &FieldDescriptor) -> Value {
        let value = self.shown_value(&field.kind());
        if field.is_list() {
            return json!({"type": "array", "items": value});
        }
        let may_be_null = field.supports_presence() && field.containing_oneof().is_none();
        if may_be_null { nullable(value) } else { value }
    }

    fn shown_value(&mut self, kind: &Kind) -> Value {
        match kind {
            Kind::Bool => json!({"type": "boolean"}),
            Kind::String => json!({"type": "string"}),
            Kind::Bytes => {
                json!({"type": "string", "contentEncoding": "base64", "pattern": PADDED})
            }
            Kind::Uint64 | Kind::Fixed64 => json!({"type": "string", "pattern": "^[0-9]{1,20}$"}),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
                json!({"type": "string", "pattern": "^-?[0-9]{1,19}$"})
            }
            Kind::Uint32 | Kind::Fixed32 => json!({"type": "integer", "minimum": 0}),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => json!({"type": "integer"}),
            Kind::Enum(descriptor) => self.names(descriptor, false),
            Kind::Message(message) => match describe::wrapped(message) {
                Some(inner) => self.shown_value(&inner.kind()),
                None => self.message(message, MessageSide::Response),
            },
            Kind::Double | Kind::Float => json!({"type": "number"}),
        }
    }
}

/// A number, or a string that holds one.
fn integer(least: i64, most: i64, pattern: &str) -> Value {
    json!({
        "type": ["integer", "string"],
        "format": "int64",
        "minimum": least,
        "maximum": most,
        "pattern": pattern,
    })
}

/// The name of a message's schema. Requests and responses of one message differ.
fn name(message: &MessageDescriptor, side: MessageSide) -> String {
    let name = describe::name_in_package(message.full_name()).replace('.', "");
    match (side, name.strip_suffix("Request")) {
        // The whole request of an operation.
        (MessageSide::Request, Some(_)) => name,
        (MessageSide::Request, None) => format!("{name}Input"),
        // Named like a request, and shown in a response.
        (MessageSide::Response, Some(_)) if name != "SigningRequest" => format!("{name}Shown"),
        (MessageSide::Response, _) => name,
    }
}
