//! Typed identifiers. Two kinds of id can never be swapped by mistake.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid, Variant, Version};

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
                Self(Builder::from_random_bytes(bytes).into_uuid())
            }

            /// An id from a time, in milliseconds since the Unix epoch, and 16 random bytes, of which
            /// the time takes the place of the first 6 (RFC 9562 version 7). Ids of what is kept for
            /// ever: what was made together lies together in the store.
            pub fn from_time(time_ms: u64, mut bytes: [u8; 16]) -> Self {
                let [_, _, time @ ..] = time_ms.to_be_bytes();
                for (place, byte) in bytes.iter_mut().zip(time) {
                    *place = byte;
                }
                let id = Builder::from_bytes(bytes)
                    .with_variant(Variant::RFC4122)
                    .with_version(Version::SortRand);
                Self(id.into_uuid())
            }

            /// When an id of [`Self::from_time`] was made, in milliseconds since the Unix epoch.
            pub fn time_ms(&self) -> u64 {
                let [a, b, c, d, e, f, ..] = *self.as_bytes();
                u64::from_be_bytes([0, 0, a, b, c, d, e, f])
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
    /// A person who uses the console.
    UserId
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

/// What a request is a step of whose id is derived, so that it is made once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DerivedFrom {
    /// A change of a vault by an operator; nothing is signed.
    Management,
    /// The sweep of a deposit wallet.
    Sweep,
    /// A batch payment.
    BatchPayment,
}

impl DerivedFrom {
    const ALL: [Self; 3] = [Self::Management, Self::Sweep, Self::BatchPayment];

    /// What it is in an id.
    fn number(self) -> u8 {
        match self {
            Self::Management => 1,
            Self::Sweep => 2,
            Self::BatchPayment => 3,
        }
    }
}

impl RequestId {
    /// The id of a step of something, from the first bytes of a hash (RFC 9562 version 8): the same for the same step.
    /// The four bits behind the version say what it is a step of.
    pub fn derived(from: DerivedFrom, hash: [u8; 32]) -> Self {
        let mut bytes = [0; 16];
        for (place, byte) in bytes.iter_mut().zip(hash) {
            *place = byte;
        }
        if let Some(version) = bytes.get_mut(VERSION) {
            *version = from.number();
        }
        Self(Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// What the request is a step of; `None` for one that a client asked for.
    pub fn derived_from(&self) -> Option<DerivedFrom> {
        let number = self.as_bytes().get(VERSION)? & 0x0f;
        let is_derived = self.0.get_version_num() == 8;
        let mut known = DerivedFrom::ALL.into_iter();
        known.find(|from| is_derived && from.number() == number)
    }
}

/// The byte of an id whose upper half is its version.
const VERSION: usize = 6;

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn derived_ids__should_say_of_what_they_are_a_step() {
        for hash in [[0; 32], [0xff; 32], [0x82; 32]] {
            let each = DerivedFrom::ALL.map(|from| (from, RequestId::derived(from, hash)));
            for (from, id) in each {
                assert_eq!(id.derived_from(), Some(from));
                assert_eq!(id.to_string().parse(), Ok(id));
                let same = each.iter().filter(|(_, other)| *other == id);
                assert_eq!(same.count(), 1);
            }
        }
        // Whatever a client's ids look like.
        for id in [
            RequestId::from_random([0x82; 16]),
            RequestId::from_time(1, [0x82; 16]),
        ] {
            assert_eq!(id.derived_from(), None);
        }
    }

    #[test]
    fn ids__should_begin_with_their_time_and_keep_what_is_random() {
        // The example of RFC 9562, appendix A.6.
        let example = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f";
        let random = *example.parse::<RequestId>().unwrap().as_bytes();
        let mut other = random;
        other[..6].fill(0xff);
        // Version and variant are set whatever is there.
        other[6] |= 0xf0;
        other[8] |= 0xc0;
        let id = RequestId::from_time(0x017f_22e2_79b0, other);
        assert_eq!(id.as_bytes()[..8], random[..8]);
        assert_eq!(id.as_bytes()[8] >> 6, 0b10);
        assert_eq!(id.as_bytes()[9..], random[9..]);
        assert_eq!(id.to_string().as_bytes()[14], b'7');
        assert_eq!(id.time_ms(), 0x017f_22e2_79b0);

        // A later one comes later, whatever is random.
        let (early, late) = ([0xff; 16], [0; 16]);
        assert!(WalletId::from_time(255, early) < WalletId::from_time(256, late));
        assert_ne!(BatchId::from_time(1, early), BatchId::from_time(1, late));
    }
}
