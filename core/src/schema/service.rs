//! The operations of the schema's services, by descriptor: what a transport needs to answer each
//! of them, also those that are not built.

use prost::Message as _;
use prost_reflect::{DynamicMessage, MessageDescriptor, MethodDescriptor, Value};
use prost_types::method_options::IdempotencyLevel;

use super::{describe, json, protobuf, reflect, wire};
use crate::fault::Fault;

/// Who calls an operation: each has tokens, a path and a shape of errors of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Backends of the platform API: wallets, signing requests, batches.
    Platform,
    /// Backends of the sweep API: deposit and watch addresses.
    Sweep,
    /// Operators.
    Admin,
}

impl Audience {
    /// Where its operations are over REST.
    fn path(self) -> &'static str {
        match self {
            Self::Platform | Self::Sweep => "/v1/",
            Self::Admin => "/admin/v1/",
        }
    }
}

/// An operation, as its descriptor tells it.
#[derive(Clone, Debug)]
pub struct OperationDescriptor {
    method: MethodDescriptor,
    audience: Audience,
    name: String,
    path: String,
    group: String,
    takes_idempotency_key: bool,
    needs_full_access: bool,
    people_may_call: bool,
    reads_audit_log: bool,
    fails_with_execute_code: bool,
    leads_to: Vec<wire::OperationLink>,
}

/// Every operation, in the order of the schema.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when the schema cannot be read.
pub fn operations() -> Result<Vec<OperationDescriptor>, Fault> {
    let mut operations = Vec::new();
    for service in reflect::services()? {
        let audience = match service.name() {
            "PlatformAPI" => Audience::Platform,
            "SweepAPI" => Audience::Sweep,
            "AdminAPI" => Audience::Admin,
            other => return Err(Fault::bug(format!("unknown service {other}"))),
        };
        for method in service.methods() {
            let name = lower_camel(method.name());
            let options = reflect::method_options(&method)?;
            let path = options.http_path.unwrap_or_else(|| name.clone());
            let group = options.group;
            let group = group.ok_or_else(|| Fault::bug(format!("{name} is in no group")))?;
            operations.push(OperationDescriptor {
                group,
                takes_idempotency_key: options.takes_idempotency_key,
                people_may_call: options.people_may_call,
                reads_audit_log: options.reads_audit_log,
                fails_with_execute_code: options.fails_with_execute_code,
                leads_to: options.leads_to,
                needs_full_access: options.needs_full_access || !has_no_effect(&method),
                method,
                audience,
                path: format!("{}{path}", audience.path()),
                name,
            });
        }
    }
    Ok(operations)
}

fn has_no_effect(method: &MethodDescriptor) -> bool {
    let options = method.method_descriptor_proto().options.as_ref();
    options.is_some_and(|options| options.idempotency_level() == IdempotencyLevel::NoSideEffects)
}

impl OperationDescriptor {
    /// Its name: `createSigningRequest`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who calls it.
    pub fn audience(&self) -> Audience {
        self.audience
    }

    /// Whether it changes something. One that does not is answered from the store.
    pub fn is_command(&self) -> bool {
        !has_no_effect(&self.method)
    }

    /// Whether a call takes an idempotency key.
    pub fn takes_idempotency_key(&self) -> bool {
        self.takes_idempotency_key
    }

    /// Whether tokens that may only read are refused.
    pub fn needs_full_access(&self) -> bool {
        self.needs_full_access
    }

    /// Whether people of the console may call it, although it is for operators.
    pub fn people_may_call(&self) -> bool {
        self.people_may_call
    }

    /// Whether it reads the audit log, which not every admin token may.
    pub fn reads_audit_log(&self) -> bool {
        self.reads_audit_log
    }

    /// Whether its error says why a signing request failed, and has the code for that.
    pub fn fails_with_execute_code(&self) -> bool {
        self.fails_with_execute_code
    }

    /// What can be called next, with what it answered.
    pub fn leads_to(&self) -> &[wire::OperationLink] {
        &self.leads_to
    }

    /// The group of operations in which the OpenAPI document lists it.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Its name in the schema: `mpcvault.platform.v1.PlatformAPI.CreateSigningRequest`.
    pub fn full_name(&self) -> &str {
        self.method.full_name()
    }

    /// Its path over REST: `/v1/createSigningRequest`.
    pub fn http_path(&self) -> &str {
        &self.path
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

    /// The request message in protobuf, of its JSON.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] with the path of the field.
    pub fn request_of_json(&self, json: &[u8]) -> Result<Vec<u8>, Fault> {
        Ok(json::decode_dynamic(&self.method.input(), json)?.encode_to_vec())
    }

    /// Checks a request message in protobuf as strictly as its JSON: what the schema does not have is refused.
    ///
    /// # Errors
    /// As [`OperationDescriptor::request_of_json`].
    pub fn check_protobuf(&self, request: &[u8]) -> Result<(), Fault> {
        protobuf::check(&self.method.input(), request)
    }

    /// The JSON of a response message: every field present.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when it is not this operation's.
    pub fn response_to_json(&self, response: &[u8]) -> Result<Vec<u8>, Fault> {
        json::encode_wire(self.method.output().full_name(), response)
    }

    /// A response without what callers that may only read do not get.
    ///
    /// # Errors
    /// As [`OperationDescriptor::response_to_json`].
    pub fn response_for_readers(&self, response: &[u8]) -> Result<Vec<u8>, Fault> {
        let mut response = self.dynamic_response(response)?;
        hide_from_readers(&mut response)?;
        Ok(response.encode_to_vec())
    }

    fn dynamic_response(&self, response: &[u8]) -> Result<DynamicMessage, Fault> {
        DynamicMessage::decode(self.method.output(), response).map_err(Fault::bug)
    }

    /// The operation's response with nothing in it but the error, as JSON.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the response has no error field: those of
    /// [`Audience::Platform`] have one.
    pub fn failure(&self, error: &wire::Error) -> Result<String, Fault> {
        let response = self.method.output();
        let field = response.get_field_by_name("error");
        let without = || Fault::bug(format!("{} has no error", response.full_name()));
        let mut message = Vec::new();
        let number = field.ok_or_else(without)?.number();
        prost::encoding::message::encode(number, error, &mut message);
        String::from_utf8(self.response_to_json(&message)?).map_err(Fault::bug)
    }
}

fn hide_from_readers(message: &mut DynamicMessage) -> Result<(), Fault> {
    let mut hidden = Vec::new();
    for (field, value) in message.fields_mut() {
        if reflect::is_hidden_from_readers(&field)? {
            hidden.push(field);
            continue;
        }
        match value {
            Value::Message(inner) => hide_from_readers(inner)?,
            Value::List(items) => {
                for item in items {
                    if let Value::Message(inner) = item {
                        hide_from_readers(inner)?;
                    }
                }
            }
            _ => {}
        }
    }
    for field in hidden {
        message.clear_field(&field);
    }
    Ok(())
}

fn lower_camel(name: &str) -> String {
    let mut letters = name.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}
