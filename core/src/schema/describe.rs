//! What the schema says of its own parts, for documents that are made from it: comments and the
//! rules of the JSON mapping.

use prost_reflect::{
    EnumDescriptor, EnumValueDescriptor, FieldDescriptor, FileDescriptor, MessageDescriptor,
    MethodDescriptor, ServiceDescriptor,
};

use super::{json, reflect};
use crate::fault::Fault;

/// A part of the schema that can have a comment.
pub trait Commented {
    /// Its file, and where in it the part is.
    fn place(&self) -> (FileDescriptor, &[i32]);
}

macro_rules! commented {
    ($($descriptor:ty: $file:expr;)*) => {$(
        impl Commented for $descriptor {
            fn place(&self) -> (FileDescriptor, &[i32]) {
                let file: fn(&$descriptor) -> FileDescriptor = $file;
                (file(self), self.path())
            }
        }
    )*};
}

commented! {
    MessageDescriptor: |it| it.parent_file();
    FieldDescriptor: |it| it.parent_message().parent_file();
    EnumDescriptor: |it| it.parent_file();
    EnumValueDescriptor: |it| it.parent_enum().parent_file();
    ServiceDescriptor: |it| it.parent_file();
    MethodDescriptor: |it| it.parent_service().parent_file();
}

/// The comment above a part of the schema, on one line; empty when there is none.
pub fn comment(part: &impl Commented) -> String {
    let (file, path) = part.place();
    file.file_descriptor_proto()
        .source_code_info
        .iter()
        .flat_map(|info| &info.location)
        .find(|location| location.path == path)
        .map(|location| {
            let words: Vec<&str> = location.leading_comments().split_whitespace().collect();
            words.join(" ")
        })
        .unwrap_or_default()
}

/// Whether a JSON request must contain the field, even if with an empty value.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when the schema cannot be read.
pub fn is_required(field: &FieldDescriptor) -> Result<bool, Fault> {
    reflect::is_required(field)
}

/// Whether a JSON request must pad the field's base64.
///
/// # Errors
/// As [`is_required`].
pub fn is_padded(field: &FieldDescriptor) -> Result<bool, Fault> {
    reflect::is_padded(field)
}

/// The value field of a wrapper type, which JSON shows bare.
pub fn wrapped(message: &MessageDescriptor) -> Option<FieldDescriptor> {
    json::wrapped(message)
}

/// A message of the platform API by its name in the package, e.g. `Wallet`.
///
/// # Errors
/// [`crate::fault::Class::Bug`] when there is none.
pub fn message(name: &str) -> Result<MessageDescriptor, Fault> {
    reflect::message(&format!("{}.{name}", reflect::PACKAGE))
}

/// The name of a message or an enum below its package: `Wallet.Status`.
pub fn name_in_package(full_name: &str) -> &str {
    [reflect::PACKAGE, reflect::ADMIN_PACKAGE]
        .into_iter()
        .find_map(|package| full_name.strip_prefix(package)?.strip_prefix('.'))
        .unwrap_or(full_name)
}
