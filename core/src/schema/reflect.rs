//! The descriptors of the schema, read once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use prost_reflect::{
    DescriptorPool, DynamicMessage, ExtensionDescriptor, FieldDescriptor, MessageDescriptor,
    MethodDescriptor, ServiceDescriptor, Value,
};

use super::{DESCRIPTOR_SET, wire};
use crate::fault::Fault;

/// The package of the platform API, which also has the options.
pub(super) const PACKAGE: &str = "mpcvault.platform.v1";
/// The package of the admin API.
pub(super) const ADMIN_PACKAGE: &str = "covault.admin.v1";

/// The pool, with the fields and methods that the schema's own options mark.
struct SchemaIndex {
    pool: DescriptorPool,
    /// Full names of the fields with `json_required`.
    required: BTreeSet<String>,
    /// Full names of the fields with `json_padded_base64`.
    padded: BTreeSet<String>,
    /// Full names of the fields with `json_refuses_zero_of`, and the field that it names.
    refuses_zero_of: BTreeMap<String, String>,
    /// Full names of the fields with `hidden_from_readers`.
    hidden: BTreeSet<String>,
    http_path: ExtensionDescriptor,
    takes_idempotency_key: ExtensionDescriptor,
    needs_full_access: ExtensionDescriptor,
    people_may_call: ExtensionDescriptor,
    reads_audit_log: ExtensionDescriptor,
    default_group: ExtensionDescriptor,
    operation_group: ExtensionDescriptor,
    fails_with_execute_code: ExtensionDescriptor,
    leads_to: ExtensionDescriptor,
}

static REFLECTION: LazyLock<Result<SchemaIndex, String>> = LazyLock::new(read);

fn read() -> Result<SchemaIndex, String> {
    let pool = DescriptorPool::decode(DESCRIPTOR_SET).map_err(|error| error.to_string())?;
    let option = |name: &str| {
        pool.get_extension_by_name(&format!("{PACKAGE}.{name}"))
            .ok_or_else(|| format!("the schema has no option {name}"))
    };
    let marked = |name: &str| {
        let extension = option(name)?;
        let names: BTreeSet<String> = pool
            .all_messages()
            .flat_map(|message| message.fields().collect::<Vec<_>>())
            .filter(|field| field.options().get_extension(&extension).as_bool() == Some(true))
            .map(|field| field.full_name().to_owned())
            .collect();
        Ok::<_, String>(names)
    };
    let refuses_zero_of = option("json_refuses_zero_of")?;
    let refuses_zero_of = pool
        .all_messages()
        .flat_map(|message| message.fields().collect::<Vec<_>>())
        .filter_map(|field| {
            let options = field.options();
            let of = options.get_extension(&refuses_zero_of);
            let of = of.as_str().filter(|of| !of.is_empty())?;
            Some((field.full_name().to_owned(), of.to_owned()))
        })
        .collect();
    Ok(SchemaIndex {
        refuses_zero_of,
        required: marked("json_required")?,
        padded: marked("json_padded_base64")?,
        hidden: marked("hidden_from_readers")?,
        http_path: option("http_path")?,
        takes_idempotency_key: option("takes_idempotency_key")?,
        needs_full_access: option("needs_full_access")?,
        people_may_call: option("people_may_call")?,
        reads_audit_log: option("reads_audit_log")?,
        default_group: option("default_group")?,
        operation_group: option("operation_group")?,
        fails_with_execute_code: option("fails_with_execute_code")?,
        leads_to: option("leads_to")?,
        pool,
    })
}

fn reflection() -> Result<&'static SchemaIndex, Fault> {
    REFLECTION.as_ref().map_err(Fault::bug)
}

/// The descriptor of a message by its full name.
pub(super) fn message(full_name: &str) -> Result<MessageDescriptor, Fault> {
    reflection()?
        .pool
        .get_message_by_name(full_name)
        .ok_or_else(|| Fault::bug(format!("{full_name} is not in the schema")))
}

/// The messages of the schema.
pub(super) fn messages() -> Result<Vec<MessageDescriptor>, Fault> {
    let messages = reflection()?.pool.all_messages();
    let ours = messages.filter(|it| matches!(it.package_name(), PACKAGE | ADMIN_PACKAGE));
    Ok(ours.collect())
}

/// The services of the schema.
pub(super) fn services() -> Result<impl Iterator<Item = ServiceDescriptor>, Fault> {
    let services = reflection()?.pool.services();
    Ok(services.filter(|service| matches!(service.package_name(), PACKAGE | ADMIN_PACKAGE)))
}

/// What the options of a method say.
pub(super) struct MethodOptions {
    /// The path over REST, where it is not the method's name.
    pub http_path: Option<String>,
    pub takes_idempotency_key: bool,
    pub needs_full_access: bool,
    pub people_may_call: bool,
    pub reads_audit_log: bool,
    pub fails_with_execute_code: bool,
    pub leads_to: Vec<wire::OperationLink>,
    /// The group, of its own or that of its service.
    pub group: Option<String>,
}

/// The options of a method.
pub(super) fn method_options(method: &MethodDescriptor) -> Result<MethodOptions, Fault> {
    let reflection = reflection()?;
    let options = method.options();
    let is = |extension| options.get_extension(extension).as_bool() == Some(true);
    let text = |options: &DynamicMessage, extension| {
        let given = options.has_extension(extension);
        let value = given.then(|| options.get_extension(extension))?;
        value.as_str().map(ToOwned::to_owned)
    };
    let leads_to = options.get_extension(&reflection.leads_to);
    let leads_to = leads_to.as_list().unwrap_or_default().iter();
    let leads_to = leads_to.filter_map(Value::as_message);
    let leads_to = leads_to.map(DynamicMessage::transcode_to);
    Ok(MethodOptions {
        leads_to: leads_to.collect::<Result<_, _>>().map_err(Fault::bug)?,
        fails_with_execute_code: is(&reflection.fails_with_execute_code),
        http_path: text(&options, &reflection.http_path),
        group: text(&options, &reflection.operation_group).or_else(|| {
            let service = method.parent_service().options();
            text(&service, &reflection.default_group)
        }),
        takes_idempotency_key: is(&reflection.takes_idempotency_key),
        needs_full_access: is(&reflection.needs_full_access),
        people_may_call: is(&reflection.people_may_call),
        reads_audit_log: is(&reflection.reads_audit_log),
    })
}

/// Whether a JSON request must contain the field.
pub(super) fn is_required(field: &FieldDescriptor) -> Result<bool, Fault> {
    Ok(reflection()?.required.contains(field.full_name()))
}

/// Whether a JSON request must pad the field's base64.
pub(super) fn is_padded(field: &FieldDescriptor) -> Result<bool, Fault> {
    Ok(reflection()?.padded.contains(field.full_name()))
}

/// The field of the message in this field that a JSON request must not give as 0.
pub(super) fn refuses_zero_of(field: &FieldDescriptor) -> Result<Option<&'static str>, Fault> {
    let names = &reflection()?.refuses_zero_of;
    Ok(names.get(field.full_name()).map(String::as_str))
}

/// Whether callers that may only read do not get the field.
pub(super) fn is_hidden_from_readers(field: &FieldDescriptor) -> Result<bool, Fault> {
    Ok(reflection()?.hidden.contains(field.full_name()))
}
