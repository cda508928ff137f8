//! Tokens: who calls.

use covault_actors::gateway::{Caller, VaultScope};
use covault_core::{
    fault::{Class, Fault},
    ids::TokenId,
    port::Entropy,
    schema::service::Family,
};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// What a token opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// `/v1`, the platform API.
    Platform,
    /// `/v1/sweep`.
    Sweep,
    /// `/admin/v1`.
    Admin,
}

impl Area {
    /// What the operations of a family belong to.
    pub fn of(family: Family) -> Self {
        match family {
            Family::Platform => Self::Platform,
            Family::Sweep => Self::Sweep,
        }
    }
}

/// The tokens of this service; only their SHA-256 is kept.
#[derive(Clone)]
pub struct Tokens {
    platform: [u8; 32],
    admin: [u8; 32],
}

impl Tokens {
    /// Keeps the hashes of the two tokens.
    pub fn new(platform: &SecretString, admin: &SecretString) -> Self {
        Self {
            platform: hash(platform.expose_secret()),
            admin: hash(admin.expose_secret()),
        }
    }

    /// The caller that `token` (the header `x-mtoken`) stands for.
    ///
    /// # Errors
    /// [`Class::Unauthenticated`] without a known token, [`Class::Forbidden`] when the token
    /// is for the other area.
    pub fn caller(
        &self,
        token: Option<&str>,
        area: Area,
        request_id: &str,
    ) -> Result<Caller, Fault> {
        let presented = hash(token.unwrap_or_default());
        // Both are compared, whole, whatever the outcome of the first.
        let platform = presented.ct_eq(&self.platform);
        let admin = presented.ct_eq(&self.admin);
        let found = match (bool::from(platform), bool::from(admin)) {
            (true, _) => Area::Platform,
            (_, true) => Area::Admin,
            (false, false) => return Err(Fault::new(Class::Unauthenticated, "unauthenticated")),
        };
        if found != area {
            let sentence = match area {
                Area::Platform => {
                    "the admin token does not open the platform API; use the platform token"
                }
                Area::Sweep => return Err(Fault::new(Class::Unauthenticated, "unauthenticated")),
                Area::Admin => {
                    "the platform token does not open the admin API; use the admin token"
                }
            };
            return Err(Fault::new(Class::Forbidden, sentence));
        }
        Ok(Caller {
            token: token_id(&presented),
            vaults: VaultScope::All,
            request_id: request_id.to_owned(),
        })
    }
}

/// The service itself, for its own questions.
pub fn internal(request_id: &str) -> Caller {
    Caller {
        token: TokenId::from_bytes([0; 16]),
        vaults: VaultScope::All,
        request_id: request_id.to_owned(),
    }
}

/// A new token: 32 random bytes in hex.
pub fn new_token(entropy: &dyn Entropy) -> SecretString {
    let mut bytes = zeroize::Zeroizing::new([0_u8; 32]);
    entropy.fill(bytes.as_mut());
    SecretString::from(hex::encode(*bytes))
}

/// Stable across restarts, so that idempotency keys keep their scope.
fn token_id(hash: &[u8; 32]) -> TokenId {
    let mut id = [0; 16];
    id.iter_mut().zip(hash).for_each(|(to, from)| *to = *from);
    TokenId::from_bytes(id)
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn tokens() -> Tokens {
        Tokens::new(
            &SecretString::from("platform"),
            &SecretString::from("admin"),
        )
    }

    fn class(token: Option<&str>, area: Area) -> Class {
        tokens()
            .caller(token, area, "r")
            .expect_err("refused")
            .class()
            .clone()
    }

    #[test]
    fn tokens__should_know_their_own_and_no_others() {
        let caller = tokens()
            .caller(Some("platform"), Area::Platform, "r-1")
            .expect("known");
        assert_eq!(caller.request_id, "r-1");
        let again = tokens()
            .caller(Some("platform"), Area::Platform, "r-2")
            .expect("known");
        assert_eq!(caller.token, again.token);
        let admin = tokens()
            .caller(Some("admin"), Area::Admin, "r")
            .expect("known");
        assert_ne!(admin.token, caller.token);
        for token in [
            None,
            Some(""),
            Some("platfor"),
            Some("platform "),
            Some("PLATFORM"),
        ] {
            assert_eq!(class(token, Area::Platform), Class::Unauthenticated);
            assert_eq!(class(token, Area::Admin), Class::Unauthenticated);
        }
    }

    #[test]
    fn tokens__should_open_only_their_own_area() {
        assert_eq!(class(Some("admin"), Area::Platform), Class::Forbidden);
        assert_eq!(class(Some("platform"), Area::Admin), Class::Forbidden);
    }

    #[test]
    fn new_token__should_be_256_bits_in_hex() {
        let (one, two) = (
            new_token(&crate::adapters::OsEntropy),
            new_token(&crate::adapters::OsEntropy),
        );
        assert_eq!(one.expose_secret().len(), 64);
        assert_ne!(one.expose_secret(), two.expose_secret());
    }
}
