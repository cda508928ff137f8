//! Message to JSON: every field is present. From the bytes of the wire at once, without a message in between.

use std::io::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use prost::{
    bytes::Buf as _,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};

use super::layout::{EnumLayout, FieldLayout, MessageLayout, SchemaLayout, ValueLayout};
use crate::fault::Fault;

/// Deeper nesting than any message of ours has.
const MAX_DEPTH: usize = 100;

/// A value as the wire has it.
#[derive(Clone, Copy)]
enum RawValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Writes messages of a schema.
pub(super) struct JsonWriter<'a> {
    schema: &'a SchemaLayout,
    json: Vec<u8>,
}

impl<'a> JsonWriter<'a> {
    /// The JSON of a message.
    pub(super) fn write(
        schema: &'a SchemaLayout,
        layout: &MessageLayout,
        message: &[u8],
    ) -> Result<Vec<u8>, Fault> {
        let mut writer = Self {
            schema,
            // Names take about as much as values.
            json: Vec::with_capacity(message.len().saturating_mul(2).saturating_add(512)),
        };
        writer.message(layout, message, 0)?;
        Ok(writer.json)
    }

    fn push(&mut self, text: &str) {
        self.json.extend_from_slice(text.as_bytes());
    }

    fn message(&mut self, layout: &MessageLayout, bytes: &[u8], depth: usize) -> Result<(), Fault> {
        if depth > MAX_DEPTH {
            return Err(Fault::bug("a message is nested too deeply"));
        }
        let found = fields(layout, bytes)?;
        let mut left = found.as_slice();
        let mut before = "{";
        for (index, field) in layout.fields.iter().enumerate() {
            let count = left.iter().take_while(|(of, _)| *of == index).count();
            let (values, rest) = left.split_at(count);
            left = rest;
            if let ([], None) = (values, &field.unset) {
                continue;
            }
            self.push(before);
            before = ",";
            self.push(&field.key);
            match (values, &field.unset) {
                ([], unset) => self.push(unset.as_deref().unwrap_or_default()),
                (values, _) if field.is_list => self.list(field, values, depth)?,
                ([(_, value)], _) => self.value(&field.value, *value, depth)?,
                _ => return Err(twice(field)),
            }
        }
        self.push(if before == "{" { "{}" } else { "}" });
        Ok(())
    }

    fn list(
        &mut self,
        field: &FieldLayout,
        values: &[(usize, RawValue<'_>)],
        depth: usize,
    ) -> Result<(), Fault> {
        let mut before = "[";
        for (_, value) in values {
            self.push(before);
            before = ",";
            self.value(&field.value, *value, depth)?;
        }
        self.push("]");
        Ok(())
    }

    /// A number on the wire has 64 bits, of which one of 32 has the lower ones.
    fn value(
        &mut self,
        layout: &ValueLayout,
        value: RawValue<'_>,
        depth: usize,
    ) -> Result<(), Fault> {
        let written = match (layout, value) {
            (ValueLayout::Bool, RawValue::Number(number)) => write!(self.json, "{}", number != 0),
            (ValueLayout::Int32, RawValue::Number(number)) => {
                write!(self.json, "{}", number as i32)
            }
            (ValueLayout::Uint32, RawValue::Number(number)) => {
                write!(self.json, "{}", number as u32)
            }
            (ValueLayout::Int64, RawValue::Number(number)) => {
                write!(self.json, "\"{}\"", number as i64)
            }
            (ValueLayout::Uint64, RawValue::Number(number)) => write!(self.json, "\"{number}\""),
            (ValueLayout::Enum(names), RawValue::Number(number)) => {
                self.enumeration(names, number as i32)
            }
            (ValueLayout::String, RawValue::Bytes(bytes)) => {
                let text = std::str::from_utf8(bytes).map_err(Fault::bug)?;
                serde_json::to_writer(&mut self.json, text).map_err(Into::into)
            }
            (ValueLayout::Bytes, RawValue::Bytes(bytes)) => {
                write!(self.json, "\"{}\"", STANDARD.encode(bytes))
            }
            (ValueLayout::Message(index), RawValue::Bytes(bytes)) => {
                let layout = self.schema.message(*index)?;
                return self.message(layout, bytes, depth.saturating_add(1));
            }
            (ValueLayout::Wrapper(inner), RawValue::Bytes(bytes)) => {
                return self.wrapper(inner, bytes, depth);
            }
            _ => return Err(Fault::bug("a value of another type")),
        };
        written.map_err(Fault::bug)
    }

    /// A number that the schema does not name is shown as it is.
    fn enumeration(&mut self, names: &EnumLayout, number: i32) -> std::io::Result<()> {
        match names.name(number) {
            Some(name) => write!(self.json, "{name}"),
            None => write!(self.json, "{number}"),
        }
    }

    fn wrapper(&mut self, inner: &FieldLayout, bytes: &[u8], depth: usize) -> Result<(), Fault> {
        let mut found = None;
        each_field(bytes, |number, value| {
            if number == inner.number && found.replace(value).is_some() {
                return Err(twice(inner));
            }
            Ok(())
        })?;
        match found {
            Some(value) => self.value(&inner.value, value, depth),
            None => {
                self.push(inner.unset.as_deref().unwrap_or("null"));
                Ok(())
            }
        }
    }
}

/// The values of a message's fields with their indexes, in the order of these. What the schema does not have is left
/// out.
fn fields<'a>(
    layout: &MessageLayout,
    bytes: &'a [u8],
) -> Result<Vec<(usize, RawValue<'a>)>, Fault> {
    let mut found = Vec::with_capacity(layout.fields.len());
    let mut chosen: Vec<&str> = Vec::new();
    each_field(bytes, |number, value| {
        let place = layout.index(number);
        let Some((index, field)) = place.and_then(|it| Some((it, layout.fields.get(it)?))) else {
            return Ok(());
        };
        if let Some(oneof) = &field.oneof {
            if chosen.contains(&oneof.as_str()) {
                return Err(twice(field));
            }
            chosen.push(oneof);
        }
        match value {
            // Numbers of a list lie side by side in one value.
            RawValue::Bytes(mut packed) if field.is_list && field.value.is_number() => {
                while packed.has_remaining() {
                    let number = decode_varint(&mut packed).map_err(Fault::bug)?;
                    found.push((index, RawValue::Number(number)));
                }
            }
            value => found.push((index, value)),
        }
        Ok(())
    })?;
    // Members of a oneof stand where its first member would.
    found.sort_by_key(|(index, _)| *index);
    Ok(found)
}

/// Calls `each` with the number and the value of every field.
fn each_field<'a>(
    mut bytes: &'a [u8],
    mut each: impl FnMut(u32, RawValue<'a>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    while bytes.has_remaining() {
        let (number, kind) = decode_key(&mut bytes).map_err(Fault::bug)?;
        match kind {
            WireType::Varint => {
                let value = decode_varint(&mut bytes).map_err(Fault::bug)?;
                each(number, RawValue::Number(value))?;
            }
            WireType::LengthDelimited => {
                let length = decode_varint(&mut bytes).map_err(Fault::bug)?;
                let parts = usize::try_from(length)
                    .ok()
                    .and_then(|it| bytes.split_at_checked(it));
                let (value, rest) = parts.ok_or_else(|| Fault::bug("a message ends too early"))?;
                bytes = rest;
                each(number, RawValue::Bytes(value))?;
            }
            // No field of the schema.
            other => skip_field(other, number, &mut bytes, DecodeContext::default())
                .map_err(Fault::bug)?,
        }
    }
    Ok(())
}

/// No encoder of ours writes that; a decoder would join the two, or take the last.
fn twice(field: &FieldLayout) -> Fault {
    Fault::bug(format!("field {} is in a message twice", field.key))
}
