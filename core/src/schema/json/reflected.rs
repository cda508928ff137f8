//! Message to JSON by the descriptors, field by field: slow, and plain to see. `encode` must write the same.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, ReflectMessage as _, Value};
use serde::ser::{Error as _, Serialize, SerializeMap as _, SerializeSeq as _, Serializer};

use super::layout::wrapped;

/// A message as responses show it, by its descriptor.
pub(super) struct ShownMessage<'a>(pub(super) &'a DynamicMessage);

impl Serialize for ShownMessage<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let descriptor = self.0.descriptor();
        let mut map = serializer.serialize_map(None)?;
        for field in descriptor.fields() {
            let is_set = self.0.has_field(&field);
            if field.containing_oneof().is_some() && !is_set {
                continue;
            }
            let value = self.0.get_field(&field);
            let value = (is_set || !field.supports_presence()).then_some(value.as_ref());
            map.serialize_entry(
                field.json_name(),
                &FieldValue {
                    field: &field,
                    value,
                },
            )?;
        }
        map.end()
    }
}

/// The value of a field; `None` is an unset message or wrapper.
struct FieldValue<'a> {
    field: &'a FieldDescriptor,
    value: Option<&'a Value>,
}

impl Serialize for FieldValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let field = self.field;
        match self.value {
            None => serializer.serialize_none(),
            Some(Value::List(items)) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(&FieldValue {
                        field,
                        value: Some(item),
                    })?;
                }
                list.end()
            }
            Some(Value::Bool(value)) => serializer.serialize_bool(*value),
            Some(Value::I32(value)) => serializer.serialize_i32(*value),
            Some(Value::U32(value)) => serializer.serialize_u32(*value),
            Some(Value::I64(value)) => serializer.collect_str(value),
            Some(Value::U64(value)) => serializer.collect_str(value),
            Some(Value::String(text)) => serializer.serialize_str(text),
            Some(Value::Bytes(bytes)) => serializer.serialize_str(&STANDARD.encode(bytes)),
            Some(Value::EnumNumber(number)) => match field.kind() {
                // A number that the schema does not name is shown as it is.
                Kind::Enum(descriptor) => match descriptor.get_value(*number) {
                    Some(value) => serializer.serialize_str(value.name()),
                    None => serializer.serialize_i32(*number),
                },
                _ => Err(S::Error::custom(
                    "an enum number in a field of another type",
                )),
            },
            Some(Value::Message(message)) => match wrapped(&message.descriptor()) {
                Some(inner) => {
                    let value = message.get_field(&inner);
                    FieldValue {
                        field: &inner,
                        value: Some(value.as_ref()),
                    }
                    .serialize(serializer)
                }
                None => ShownMessage(message).serialize(serializer),
            },
            Some(Value::F32(_) | Value::F64(_) | Value::Map(_)) => Err(S::Error::custom(format!(
                "{}: no JSON mapping",
                field.full_name()
            ))),
        }
    }
}
