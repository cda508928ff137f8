//! The descriptors of the schema, read once.

use std::{collections::BTreeSet, sync::LazyLock};

use prost_reflect::{
    DescriptorPool, FieldDescriptor, MessageDescriptor, MethodDescriptor, ServiceDescriptor,
};

use super::DESCRIPTOR_SET;
use crate::fault::Fault;

/// The package of the schema.
pub(super) const PACKAGE: &str = "mpcvault.platform.v1";

/// The pool, and the fields with the JSON rules that the schema's own options express.
struct Reflection {
    pool: DescriptorPool,
    /// Full names of the fields with `json_required`.
    required: BTreeSet<String>,
    /// Full names of the fields with `json_padded_base64`.
    padded: BTreeSet<String>,
}

static REFLECTION: LazyLock<Result<Reflection, String>> = LazyLock::new(read);

fn read() -> Result<Reflection, String> {
    let pool = DescriptorPool::decode(DESCRIPTOR_SET).map_err(|error| error.to_string())?;
    let marked = |option: &str| {
        let extension = pool
            .get_extension_by_name(&format!("{PACKAGE}.{option}"))
            .ok_or_else(|| format!("the schema has no option {option}"))?;
        let names: BTreeSet<String> = pool
            .all_messages()
            .flat_map(|message| message.fields().collect::<Vec<_>>())
            .filter(|field| field.options().get_extension(&extension).as_bool() == Some(true))
            .map(|field| field.full_name().to_owned())
            .collect();
        Ok::<_, String>(names)
    };
    let (required, padded) = (marked("json_required")?, marked("json_padded_base64")?);
    Ok(Reflection {
        pool,
        required,
        padded,
    })
}

fn reflection() -> Result<&'static Reflection, Fault> {
    REFLECTION.as_ref().map_err(Fault::bug)
}

/// The descriptor of a message by its full name.
pub(super) fn message(full_name: &str) -> Result<MessageDescriptor, Fault> {
    reflection()?
        .pool
        .get_message_by_name(full_name)
        .ok_or_else(|| Fault::bug(format!("{full_name} is not in the schema")))
}

/// The services of the schema.
pub(super) fn services() -> Result<impl Iterator<Item = ServiceDescriptor>, Fault> {
    let services = reflection()?.pool.services();
    Ok(services.filter(|service| service.package_name() == PACKAGE))
}

/// The path of a method over REST, where it has one that is not its name.
pub(super) fn http_path(method: &MethodDescriptor) -> Result<Option<String>, Fault> {
    let extension = reflection()?
        .pool
        .get_extension_by_name(&format!("{PACKAGE}.http_path"))
        .ok_or_else(|| Fault::bug("the schema has no option http_path"))?;
    let options = method.options();
    Ok(options
        .has_extension(&extension)
        .then(|| options.get_extension(&extension))
        .and_then(|path| path.as_str().map(ToOwned::to_owned)))
}

/// Whether a JSON request must contain the field.
pub(super) fn is_required(field: &FieldDescriptor) -> Result<bool, Fault> {
    Ok(reflection()?.required.contains(field.full_name()))
}

/// Whether a JSON request must pad the field's base64.
pub(super) fn is_padded(field: &FieldDescriptor) -> Result<bool, Fault> {
    Ok(reflection()?.padded.contains(field.full_name()))
}
