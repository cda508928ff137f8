//! The schema: wire types made from `proto/platform.proto`, and their JSON mapping.

pub mod describe;
pub mod json;
mod reflect;
pub mod service;

/// The wire types, as prost makes them from the schema.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod wire {
    include!(concat!(env!("OUT_DIR"), "/mpcvault.platform.v1.rs"));
}

/// The compiled schema with its options and comments (a `google.protobuf.FileDescriptorSet`).
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/platform.fds"));
