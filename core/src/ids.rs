//! Typed identifiers. Two kinds of id can never be swapped by mistake.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::fault::Fault;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// A UUID; printed in lower case with hyphens.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// An id from 16 random bytes (RFC 9562 version 4).
            pub fn from_random(bytes: [u8; 16]) -> Self {
                Self(uuid::Builder::from_random_bytes(bytes).into_uuid())
            }

            /// The 16 bytes of the id.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// The id made of exactly these 16 bytes.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.as_hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0.as_hyphenated())
            }
        }

        impl FromStr for $name {
            type Err = Fault;

            /// # Errors
            /// `Invalid uuid` when the text is not a UUID.
            fn from_str(text: &str) -> Result<Self, Fault> {
                Uuid::parse_str(text)
                    .map(Self)
                    .map_err(|_| Fault::invalid_uuid())
            }
        }
    };
}

id! {
    /// A signing request.
    RequestId
}
id! {
    /// A vault.
    VaultId
}
id! {
    /// A batch payment.
    BatchId
}
id! {
    /// One run of a protocol between signer nodes: a keygen or a signing attempt.
    SessionId
}
id! {
    /// An API token (never the secret itself).
    TokenId
}
id! {
    /// A wallet.
    WalletId
}
id! {
    /// A process that runs vaults: a new one with each start.
    OrchestratorId
}
id! {
    /// An address that is watched.
    WatchId
}
