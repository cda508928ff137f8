//! People who use the console: what is stored of them, of the links that enrol them, and of their sessions. No secret
//! is stored, only its SHA-256.
//!
//! An account decides what a person sees. It approves nothing: that does the passkey, whose line is in the vault's rule
//! and in the policy files of the signers ([`crate::approval`]).

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::{
    approval::ApproverLine,
    fault::Fault,
    field,
    ids::{UserId, VaultId},
    token::{TokenAccess, TokenVaults},
};

/// Most characters of a name.
pub const MAX_NAME: usize = 48;
/// Most passkeys of one person.
pub const MAX_PASSKEYS: usize = 8;
/// How long a link can be used, in milliseconds.
pub const LINK_MS: u64 = 15 * 60 * 1000;
/// How long a session lasts without a request, in milliseconds.
pub const IDLE_MS: u64 = 30 * 60 * 1000;
/// How long a session lasts at most, in milliseconds.
pub const SESSION_MS: u64 = 12 * 60 * 60 * 1000;
/// How far apart the clocks of two processes may be, in milliseconds: what one of them has made is used at the other.
const CLOCKS_MS: u64 = 2 * 60 * 1000;
/// Most bytes that are kept of what a browser says of itself.
const MAX_DEVICE: usize = 200;

/// What a person sees and may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserRole {
    /// Sees requests, wallets and vaults; approves and rejects with a passkey that the vault's rule names.
    Approver,
    /// Sees the nodes too, and neither approves nor rejects.
    Operator,
    /// Looks, and sees no signature.
    Viewer,
    /// The same, and sees the audit log.
    Auditor,
}

impl UserRole {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Approver, Self::Operator, Self::Viewer, Self::Auditor];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Approver => "approver",
            Self::Operator => "operator",
            Self::Viewer => "viewer",
            Self::Auditor => "auditor",
        }
    }

    /// The role of a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// What operations let such a person do.
    pub fn access(self) -> TokenAccess {
        match self {
            Self::Approver => TokenAccess::Full,
            Self::Operator | Self::Viewer | Self::Auditor => TokenAccess::ReadOnly,
        }
    }
}

/// SHA-256 of a link's or session's secret, which is 256 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// The hash of a secret.
    pub fn of(secret: &[u8; 32]) -> Self {
        Self(Sha256::digest(secret).into())
    }

    /// Whether two are the same, in a time that does not tell where they differ.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// The bytes: what a row is found by.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretHash(..)")
    }
}

/// Proves that a form comes from a page of its session. It opens nothing without the session's own secret.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormToken(pub [u8; 32]);

impl std::fmt::Debug for FormToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FormToken(..)")
    }
}

/// A link that enrols one passkey, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolmentLink {
    /// Of its secret.
    pub hash: SecretHash,
    /// From when on it is refused, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
}

/// A passkey of a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolledPasskey {
    /// The passkey, and the proof that it was there.
    pub line: ApproverLine,
    /// When it was enrolled, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// A person, as stored. Times are in milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The id, which authenticators keep as user handle.
    pub id: UserId,
    /// The name, as rules of approval have it. It is never given to another person.
    pub name: String,
    /// What the person sees.
    pub role: UserRole,
    /// The vaults that the person sees.
    pub vaults: TokenVaults,
    /// When the account was made.
    pub created_at_ms: u64,
    /// From when on it cannot be used.
    pub revoked_at_ms: Option<u64>,
    /// The link that was given last, as long as it was not used.
    pub link: Option<EnrolmentLink>,
    /// The passkeys, the oldest first.
    pub passkeys: Vec<EnrolledPasskey>,
}

impl User {
    /// Whether it can be used.
    pub fn is_active(&self) -> bool {
        self.revoked_at_ms.is_none()
    }

    /// Whether a link of this hash can be used at a time.
    pub fn takes_link(&self, hash: &SecretHash, now_ms: u64) -> bool {
        let link = self.link.as_ref();
        self.is_active()
            && link.is_some_and(|link| link.hash.matches(hash) && now_ms < link.expires_at_ms)
    }

    /// What the next passkey is called: the name, `@key-` and a number that no passkey of the person has.
    pub fn next_key_name(&self) -> String {
        let taken = |name: &String| {
            let mut keys = self.passkeys.iter();
            keys.any(|key| key.line.passkey.name == *name)
        };
        let names = (1..=MAX_PASSKEYS.saturating_add(1)).map(|n| format!("{}@key-{n}", self.name));
        let mut free = names.filter(|name| !taken(name));
        free.next().unwrap_or_default()
    }

    /// The passkey of a credential id.
    pub fn passkey(&self, credential_id: &[u8]) -> Option<&EnrolledPasskey> {
        let mut keys = self.passkeys.iter();
        keys.find(|key| key.line.passkey.credential_id == credential_id)
    }

    /// Whether the person sees a vault.
    pub fn reaches(&self, vault: VaultId) -> bool {
        match &self.vaults {
            TokenVaults::All => true,
            TokenVaults::Only(vaults) => vaults.contains(&vault),
        }
    }
}

/// Checks a person's name: letters, digits, `.`, `_` and `-`, as it is part of the names of keys and of lines of the
/// audit log.
///
/// # Errors
/// [`crate::fault::Class::Invalid`], field `name`.
pub fn check_name(name: &str) -> Result<(), Fault> {
    field::required("name", name)?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.len() > MAX_NAME || !name.bytes().all(fits) || name.parse::<UserId>().is_ok() {
        return Err(Fault::field(
            "name",
            format_args!(
                "must be 1 to {MAX_NAME} letters, digits, dots, underscores or hyphens, and no uuid"
            ),
        ));
    }
    Ok(())
}

/// A session, as stored. Times are in milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Whose it is.
    pub user: UserId,
    /// What its forms hold.
    pub form_token: FormToken,
    /// When it began.
    pub created_at_ms: u64,
    /// When it was used last, to the minute.
    pub seen_at_ms: u64,
    /// What the browser said of itself.
    pub device: String,
    /// Where it was begun from; empty: not known.
    pub address: String,
    /// The name of the passkey that began it.
    pub passkey: String,
}

impl Session {
    /// Whether it holds at a time.
    pub fn holds(&self, now_ms: u64) -> bool {
        // A clock that was set back must not make it longer.
        let age_ms = now_ms.saturating_sub(self.created_at_ms);
        let idle_ms = now_ms.saturating_sub(self.seen_at_ms);
        let has_begun = now_ms.saturating_add(CLOCKS_MS) >= self.created_at_ms;
        has_begun && age_ms < SESSION_MS && idle_ms < IDLE_MS
    }
}

/// What a browser says of itself, as far as it is kept.
pub fn device(user_agent: &str) -> String {
    let plain = user_agent
        .chars()
        .filter(|it| it.is_ascii_graphic() || *it == ' ');
    plain.take(MAX_DEVICE).collect()
}

/// The challenges that a person has signed to sign in, so that none is taken twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedChallenges {
    /// Their nonces, and when each would be refused anyway, in milliseconds since the Unix epoch.
    pub used: Vec<([u8; 32], u64)>,
}

impl UsedChallenges {
    /// The same with one more, without those whose time is over by every clock; `None` when it was there.
    pub fn with(&self, nonce: [u8; 32], expires_at_ms: u64, now_ms: u64) -> Option<Self> {
        let used = self.used.iter();
        let is_open = |at: u64| at.saturating_add(CLOCKS_MS) > now_ms;
        let mut used: Vec<_> = used.filter(|(_, at)| is_open(*at)).copied().collect();
        if used.iter().any(|(known, _)| *known == nonce) {
            return None;
        }
        used.push((nonce, expires_at_ms));
        Some(Self { used })
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn name__should_be_one_that_keys_and_logs_can_have() {
        for name in ["treasurer", "a.b_c-9", "X"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let long = "x".repeat(MAX_NAME + 1);
        let uuid = "00000000-0000-4000-8000-000000000000";
        for name in [
            "",
            "a b",
            "a@b",
            "é",
            "a\u{202e}",
            "<b>",
            "a/b",
            &long,
            uuid,
        ] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn session__should_end_when_it_is_idle_or_old_whatever_the_clock_does() {
        let session = |created_at_ms, seen_at_ms| Session {
            user: UserId::from_bytes([1; 16]),
            form_token: FormToken([7; 32]),
            created_at_ms,
            seen_at_ms,
            device: String::new(),
            address: String::new(),
            passkey: String::new(),
        };
        let began = 1_000;
        assert!(session(began, began).holds(began));
        assert!(session(began, began).holds(began + IDLE_MS - 1));
        assert!(!session(began, began).holds(began + IDLE_MS));
        let busy = |now| session(began, now).holds(now);
        assert!(busy(began + SESSION_MS - 1) && !busy(began + SESSION_MS));
        // Another process has begun it, whose clock is a little ahead.
        let ahead = began + CLOCKS_MS;
        assert!(session(ahead, ahead).holds(began));
        assert!(!session(ahead + 1, ahead + 1).holds(began));
        assert!(format!("{:?}", session(0, 0)).contains("form_token: FormToken(..)"));
    }

    #[test]
    fn challenge__should_be_taken_once() {
        let first = UsedChallenges::default().with([1; 32], 10, 0).unwrap();
        assert_eq!(first.with([1; 32], 10, 9), None);
        // A process whose clock is behind would still take it.
        assert_eq!(first.with([1; 32], 10, 9 + CLOCKS_MS), None);
        let second = first.with([2; 32], 20, 10 + CLOCKS_MS).unwrap();
        assert_eq!(second.used, [([2; 32], 20)]);
    }

    #[test]
    fn device__should_be_short_and_plain() {
        assert_eq!(device("Mozilla\u{202e}\n<b>"), "Mozilla<b>");
        assert_eq!(device(&"x".repeat(1000)).len(), MAX_DEVICE);
    }
}
