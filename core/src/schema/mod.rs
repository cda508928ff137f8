//! The schema: wire types made from `proto/platform.proto` and `proto/admin.proto`, and their JSON
//! mapping.

pub mod describe;
pub mod json;
mod path;
mod protobuf;
mod reflect;
pub mod service;

/// The wire types of the platform API, as prost makes them from the schema.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod wire {
    include!(concat!(env!("OUT_DIR"), "/mpcvault.platform.v1.rs"));
}

/// The wire types of the admin API.
pub mod admin {
    use std::fmt;

    pub use self::generated::*;

    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    mod generated {
        include!(concat!(env!("OUT_DIR"), "/covault.admin.v1.rs"));
    }

    // Webhooks have secrets in their URLs.
    macro_rules! debug_without_secrets {
        ($($message:ident: $($field:ident),*;)*) => {$(
            impl fmt::Debug for $message {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.debug_struct(stringify!($message))
                        $(.field(stringify!($field), &self.$field))*
                        .finish_non_exhaustive()
                }
            }
        )*};
    }

    debug_without_secrets! {
        CreateTokenResponse: token;
        ConfigureSweepRequest: token, network, vault_uuid, target;
        SweepNetwork: network, vault_uuid, target;
    }
}

/// The compiled schema with its options and comments (a `google.protobuf.FileDescriptorSet`).
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/schema.fds"));
