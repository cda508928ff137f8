//! What the JSON of each message is made of, worked out once from the descriptors: a call looks nothing up in them.

use std::{collections::HashMap, sync::LazyLock};

use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};

use crate::{fault::Fault, schema::reflect};

/// The value field of a wrapper type, which JSON shows bare.
pub(in crate::schema) fn wrapped(descriptor: &MessageDescriptor) -> Option<FieldDescriptor> {
    let name = descriptor.full_name().strip_prefix("google.protobuf.")?;
    name.ends_with("Value").then(|| descriptor.get_field(1))?
}

/// A message.
pub(super) struct MessageLayout {
    /// By their numbers, in order.
    pub fields: Vec<FieldLayout>,
    /// The numbers of those that a JSON request must have.
    pub required: Vec<u32>,
}

/// A field.
pub(super) struct FieldLayout {
    pub number: u32,
    /// Its name in JSON, in quotes and with a colon.
    pub key: String,
    pub value: ValueLayout,
    pub is_list: bool,
    /// Which oneof of its message it is in.
    pub oneof: Option<String>,
    /// What is shown of it where it is not set; `None`: it is left out.
    pub unset: Option<String>,
}

/// What a value is.
pub(super) enum ValueLayout {
    Bool,
    Int32,
    Uint32,
    Int64,
    Uint64,
    String,
    Bytes,
    Enum(EnumLayout),
    /// By its index.
    Message(usize),
    /// A message of one field, whose value is shown in its place.
    Wrapper(Box<FieldLayout>),
}

/// The names of an enum's numbers, in quotes.
pub(super) struct EnumLayout(HashMap<i32, String>);

impl EnumLayout {
    fn new(descriptor: &EnumDescriptor) -> Self {
        let numbers = descriptor.values().map(|value| value.number());
        let name = |number| Some((number, descriptor.get_value(number)?));
        let named = numbers.filter_map(name);
        Self(
            named
                .map(|(number, value)| (number, format!("\"{}\"", value.name())))
                .collect(),
        )
    }

    pub(super) fn name(&self, number: i32) -> Option<&str> {
        self.0.get(&number).map(String::as_str)
    }
}

/// All messages of the schema.
pub(super) struct SchemaLayout {
    messages: Vec<MessageLayout>,
    by_name: HashMap<String, usize>,
}

static LAYOUT: LazyLock<Result<SchemaLayout, Fault>> = LazyLock::new(SchemaLayout::read);

/// The layout of the schema.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when a field has no JSON mapping; a test proves that each has one.
pub(super) fn schema() -> Result<&'static SchemaLayout, Fault> {
    LAYOUT.as_ref().map_err(Clone::clone)
}

impl SchemaLayout {
    fn read() -> Result<Self, Fault> {
        // Those that are found in others are added on the way.
        let mut found: Vec<MessageDescriptor> = reflect::messages()?;
        let names = found.iter().enumerate();
        let mut by_name: HashMap<_, _> = names
            .map(|(index, it)| (it.full_name().to_owned(), index))
            .collect();
        let mut messages = Vec::with_capacity(found.len());
        while let Some(descriptor) = found.get(messages.len()).cloned() {
            let mut index_of = |inner: MessageDescriptor| {
                let next = found.len();
                let name = inner.full_name().to_owned();
                let index = *by_name.entry(name).or_insert(next);
                if index == next {
                    found.push(inner);
                }
                index
            };
            let mut layout = MessageLayout {
                fields: Vec::new(),
                required: Vec::new(),
            };
            for field in descriptor.fields() {
                layout.fields.push(FieldLayout::new(&field, &mut index_of)?);
                if reflect::is_required(&field)? {
                    layout.required.push(field.number());
                }
            }
            messages.push(layout);
        }
        Ok(Self { messages, by_name })
    }

    /// The message of a full name.
    pub(super) fn named(&self, full_name: &str) -> Result<&MessageLayout, Fault> {
        let index = self.by_name.get(full_name);
        index.map_or_else(
            || Err(Fault::bug(format!("{full_name} is not in the schema"))),
            |index| self.message(*index),
        )
    }

    /// The message of [`ValueLayout::Message`].
    pub(super) fn message(&self, index: usize) -> Result<&MessageLayout, Fault> {
        let message = self.messages.get(index);
        message.ok_or_else(|| Fault::bug("a message without a layout"))
    }
}

impl MessageLayout {
    /// The index of a field.
    pub(super) fn index(&self, number: u32) -> Option<usize> {
        self.fields
            .binary_search_by_key(&number, |field| field.number)
            .ok()
    }
}

impl FieldLayout {
    fn new(
        field: &FieldDescriptor,
        index_of: &mut impl FnMut(MessageDescriptor) -> usize,
    ) -> Result<Self, Fault> {
        let value = ValueLayout::new(field, index_of)?;
        let oneof = field.containing_oneof();
        let unset = if oneof.is_some() {
            None
        } else if field.is_list() {
            Some("[]".to_owned())
        } else if field.supports_presence() {
            Some("null".to_owned())
        } else {
            Some(value.zero(field))
        };
        Ok(Self {
            number: field.number(),
            key: format!("\"{}\":", field.json_name()),
            value,
            is_list: field.is_list(),
            oneof: oneof.map(|oneof| oneof.name().to_owned()),
            unset,
        })
    }
}

impl ValueLayout {
    fn new(
        field: &FieldDescriptor,
        index_of: &mut impl FnMut(MessageDescriptor) -> usize,
    ) -> Result<Self, Fault> {
        Ok(match field.kind() {
            _ if field.is_map() => return Err(unmapped(field)),
            Kind::Bool => Self::Bool,
            Kind::Int32 => Self::Int32,
            Kind::Uint32 => Self::Uint32,
            Kind::Int64 => Self::Int64,
            Kind::Uint64 => Self::Uint64,
            Kind::String => Self::String,
            Kind::Bytes => Self::Bytes,
            Kind::Enum(descriptor) => Self::Enum(EnumLayout::new(&descriptor)),
            Kind::Message(descriptor) => match wrapped(&descriptor) {
                Some(inner) => Self::Wrapper(Box::new(FieldLayout::new(&inner, index_of)?)),
                None => Self::Message(index_of(descriptor)),
            },
            _ => return Err(unmapped(field)),
        })
    }

    /// Whether it is a number on the wire.
    pub(super) fn is_number(&self) -> bool {
        match self {
            Self::Bool
            | Self::Int32
            | Self::Uint32
            | Self::Int64
            | Self::Uint64
            | Self::Enum(_) => true,
            Self::String | Self::Bytes | Self::Message(_) | Self::Wrapper(_) => false,
        }
    }

    /// The JSON of a field that is always there, when it is not on the wire.
    fn zero(&self, field: &FieldDescriptor) -> String {
        match self {
            Self::Bool => "false".to_owned(),
            Self::Int32 | Self::Uint32 => "0".to_owned(),
            Self::Int64 | Self::Uint64 => "\"0\"".to_owned(),
            Self::String | Self::Bytes => "\"\"".to_owned(),
            Self::Enum(names) => {
                let first = field.default_value().as_enum_number().unwrap_or_default();
                names
                    .name(first)
                    .map_or_else(|| first.to_string(), ToOwned::to_owned)
            }
            Self::Message(_) | Self::Wrapper(_) => "null".to_owned(),
        }
    }
}

/// The schema has no such field; a test proves it.
pub(super) fn unmapped(field: &FieldDescriptor) -> Fault {
    Fault::bug(format!(
        "{}: its type has no JSON mapping",
        field.full_name()
    ))
}
