//! The operations of the schema's services, by descriptor: what a transport needs to answer each
//! of them, also those that are not built.

use prost::Message as _;
use prost_reflect::{DynamicMessage, FieldDescriptor, MessageDescriptor, MethodDescriptor, Value};

use super::{describe, json, reflect, wire};
use crate::fault::Fault;

/// What an operation belongs to: each has tokens and a shape of errors of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Wallets, signing requests, batches.
    Platform,
    /// Deposit and watch addresses.
    Sweep,
}

/// An operation.
#[derive(Clone, Debug)]
pub struct Operation {
    method: MethodDescriptor,
    family: Family,
    name: String,
    path: String,
}

/// Every operation, in the order of the schema.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when the schema cannot be read.
pub fn operations() -> Result<Vec<Operation>, Fault> {
    let mut operations = Vec::new();
    for service in reflect::services()? {
        let family = match service.name() {
            "PlatformAPI" => Family::Platform,
            "SweepAPI" => Family::Sweep,
            other => return Err(Fault::bug(format!("{other} is no service of ours"))),
        };
        for method in service.methods() {
            let name = lower_camel(method.name());
            let path = reflect::http_path(&method)?.unwrap_or_else(|| name.clone());
            operations.push(Operation {
                method,
                family,
                name,
                path,
            });
        }
    }
    Ok(operations)
}

impl Operation {
    /// Its name: `createSigningRequest`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it belongs to.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Its path over REST: `/v1/createSigningRequest`.
    pub fn http_path(&self) -> String {
        format!("/v1/{}", self.path)
    }

    /// Its path over gRPC: `/mpcvault.platform.v1.PlatformAPI/CreateSigningRequest`.
    pub fn grpc_path(&self) -> String {
        let service = self.method.parent_service().full_name();
        format!("/{service}/{}", self.method.name())
    }

    /// What it does, in the words of the schema.
    pub fn description(&self) -> String {
        describe::comment(&self.method)
    }

    /// The message that it takes.
    pub fn request(&self) -> MessageDescriptor {
        self.method.input()
    }

    /// The message that it answers with.
    pub fn response(&self) -> MessageDescriptor {
        self.method.output()
    }

    /// The operation's response with nothing in it but the error, as JSON.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the response has no error field, as in
    /// [`Family::Sweep`].
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

fn response_error(response: &DynamicMessage) -> Result<FieldDescriptor, Fault> {
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
