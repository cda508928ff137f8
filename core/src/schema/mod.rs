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

    // Webhooks have secrets in their URLs, and so have links that enrol a passkey.
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
        ConfigureSweepResponse: token, networks;
        SweepNetwork: network, vault_uuid, target;
        UserLink: expires_at_ms;
    }

    #[cfg(test)]
    #[allow(non_snake_case)]
    mod tests {
        use super::*;

        #[test]
        fn configure_sweep_response__should_not_show_the_secret() {
            let network = SweepNetwork {
                webhook: Some("https://example.com/hidden".into()),
                network: "TRON".into(),
                ..SweepNetwork::default()
            };
            let response = ConfigureSweepResponse {
                networks: vec![network],
                webhook_secret: Some("whsec_hidden".into()),
                ..ConfigureSweepResponse::default()
            };
            let text = format!("{response:?}");
            assert!(text.contains("TRON") && !text.contains("hidden"), "{text}");
        }

        #[test]
        fn debug__should_not_show_an_enrolment_link() {
            let link = UserLink {
                url: "https://example.com/enrol#hidden".into(),
                expires_at_ms: 77,
            };
            let created = CreateUserResponse {
                link: Some(link.clone()),
                ..CreateUserResponse::default()
            };
            let linked = LinkUserResponse { link: Some(link) };
            for text in [format!("{created:?}"), format!("{linked:?}")] {
                assert!(text.contains("77") && !text.contains("hidden"), "{text}");
            }
        }
    }
}

/// The compiled schema with its options and comments (a `google.protobuf.FileDescriptorSet`).
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/schema.fds"));
