//! The operations of the schema's service, by descriptor: what a transport needs to answer each
//! of them, also those that are not built.

use prost::Message as _;
use prost_reflect::{DynamicMessage, MethodDescriptor, Value};

use super::{json, reflect, wire};
use crate::fault::Fault;

/// An operation of the platform API.
#[derive(Clone, Debug)]
pub struct Operation {
    method: MethodDescriptor,
    name: String,
}

/// Every operation, in the order of the schema.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when the schema cannot be read.
pub fn operations() -> Result<Vec<Operation>, Fault> {
    Ok(reflect::service()?
        .methods()
        .map(|method| Operation {
            name: lower_camel(method.name()),
            method,
        })
        .collect())
}

impl Operation {
    /// The name in paths: `createSigningRequest`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The operation's response with nothing in it but the error, as JSON.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the response has no error field.
    pub fn failure(&self, error: &wire::Error) -> Result<String, Fault> {
        let mut response = DynamicMessage::new(self.method.output());
        let field = response_error(&response)?;
        let mut shown = DynamicMessage::new(reflect::message("mpcvault.platform.v1.Error")?);
        shown
            .merge(error.encode_to_vec().as_slice())
            .map_err(Fault::bug)?;
        response
            .try_set_field(&field, Value::Message(shown))
            .map_err(Fault::bug)?;
        json::encode_dynamic(&response)
    }
}

fn response_error(response: &DynamicMessage) -> Result<prost_reflect::FieldDescriptor, Fault> {
    use prost_reflect::ReflectMessage as _;
    let descriptor = response.descriptor();
    descriptor
        .get_field_by_name("error")
        .ok_or_else(|| Fault::bug(format!("{} has no error", descriptor.full_name())))
}

fn lower_camel(name: &str) -> String {
    let mut letters = name.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}
