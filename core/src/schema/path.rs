//! Where in a request something is.

use std::fmt;

use crate::fault::{Class, Fault};

/// The JSON path of a field: `evmSendNative.gasFee.maxFee`, `recipients[3].amount`.
#[derive(Clone, Copy)]
pub(super) enum FieldPath<'a> {
    Root,
    Field(&'a FieldPath<'a>, &'a str),
    Item(&'a FieldPath<'a>, usize),
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldPath::Root => Ok(()),
            FieldPath::Field(FieldPath::Root, name) => f.write_str(name),
            FieldPath::Field(parent, name) => write!(f, "{parent}.{name}"),
            FieldPath::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

impl FieldPath<'_> {
    /// What is wrong with the field.
    pub(super) fn fault(&self, problem: impl fmt::Display) -> Fault {
        match self {
            FieldPath::Root => Fault::new(Class::Invalid, format!("the body {problem}")),
            _ => Fault::field(self, problem),
        }
    }
}
