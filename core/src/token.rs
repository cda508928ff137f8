//! API tokens: what is stored of them, and what they allow. The token itself is never stored.

mod text;

use std::{net::IpAddr, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

pub use self::text::{LENGTH, is_token, make};
use crate::{
    fault::{Class, Fault},
    field,
    ids::{TokenId, VaultId},
};

/// Most characters of a token's name.
pub const MAX_NAME: usize = 64;
/// Most entries of an IP allowlist.
pub const MAX_ALLOW: usize = 100;
/// Most vaults that one token lists.
pub const MAX_VAULTS: usize = 1000;

/// What a token opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenKind {
    /// The platform API.
    Platform,
    /// Deposit and watch addresses.
    Sweep,
    /// The admin API, as far as the role goes.
    Admin(AdminRole),
}

impl TokenKind {
    /// `platform`, `sweep` or `admin`.
    pub fn name(self) -> &'static str {
        match self {
            TokenKind::Platform => "platform",
            TokenKind::Sweep => "sweep",
            TokenKind::Admin(_) => "admin",
        }
    }

    /// The role of an admin token; `None` for the others.
    pub fn role(self) -> Option<AdminRole> {
        match self {
            TokenKind::Platform | TokenKind::Sweep => None,
            TokenKind::Admin(role) => Some(role),
        }
    }

    /// The kind of a name, and of the name of a role: empty but for admin tokens.
    ///
    /// # Errors
    /// [`Class::Invalid`], field `kind` or `role`.
    pub fn parse(name: &str, role: &str) -> Result<Self, Fault> {
        let kind = match name {
            "admin" => {
                let role = AdminRole::parse(role).ok_or_else(|| {
                    Fault::field(
                        "role",
                        "must be operator, auditor or viewer for an admin token",
                    )
                })?;
                return Ok(TokenKind::Admin(role));
            }
            "platform" => TokenKind::Platform,
            "sweep" => TokenKind::Sweep,
            _ => {
                return Err(Fault::field("kind", "must be platform, sweep or admin"));
            }
        };
        if role.is_empty() {
            return Ok(kind);
        }
        Err(Fault::field("role", "is for admin tokens only"))
    }

    /// What its tokens begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            TokenKind::Platform => "cvp_",
            TokenKind::Sweep => "cvs_",
            TokenKind::Admin(_) => "cva_",
        }
    }
}

/// What an admin token may do. Each role may do what the ones after it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminRole {
    /// Everything: changes vaults, nodes, tokens and users, and backs up the store.
    Operator,
    /// Looks, and reads the audit log.
    Auditor,
    /// Looks.
    Viewer,
}

impl AdminRole {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Operator, Self::Auditor, Self::Viewer];

    /// `operator`, `auditor` or `viewer`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Auditor => "auditor",
            Self::Viewer => "viewer",
        }
    }

    /// The role of a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// What operations let it do.
    pub fn access(self) -> TokenAccess {
        match self {
            Self::Operator => TokenAccess::Full,
            Self::Auditor | Self::Viewer => TokenAccess::ReadOnly,
        }
    }

    /// Whether it reads the audit log.
    pub fn reads_audit_log(self) -> bool {
        match self {
            Self::Operator | Self::Auditor => true,
            Self::Viewer => false,
        }
    }
}

/// What a token may do with what it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenAccess {
    /// Everything.
    Full,
    /// Look, and see no signature.
    ReadOnly,
}

impl TokenAccess {
    /// `full` or `read-only`.
    pub fn name(self) -> &'static str {
        match self {
            TokenAccess::Full => "full",
            TokenAccess::ReadOnly => "read-only",
        }
    }

    /// The access of a name.
    pub fn parse(name: &str) -> Option<Self> {
        [TokenAccess::Full, TokenAccess::ReadOnly]
            .into_iter()
            .find(|access| access.name() == name)
    }
}

/// The vaults that a token reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenVaults {
    /// Every vault, also those that are made later.
    All,
    /// These.
    Only(Vec<VaultId>),
}

/// An entry of an IP allowlist: a network in CIDR notation, or one address. IPv4 and IPv6; an IPv4
/// network that is written within IPv6 (`::ffff:192.0.2.0/120`) is the IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr(IpNet);

impl Cidr {
    /// Whether an address is in it. An IPv4 address within IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Whether every address of another one is in it.
    pub fn covers(&self, other: &Self) -> bool {
        self.0.contains(&other.0)
    }
}

/// Bits before the IPv4 address within an IPv6 one.
const MAPPED_BITS: u8 = 96;

impl FromStr for Cidr {
    type Err = Fault;

    /// # Errors
    /// [`Class::Invalid`] when it is invalid, or has host bits set: address or prefix would be a mistake.
    fn from_str(text: &str) -> Result<Self, Fault> {
        let refused = |problem: &str| Fault::new(Class::Invalid, problem);
        let wrong = || {
            refused(
                "must be an address or a network in CIDR notation, such as 192.0.2.0/24 or 2001:db8::/32",
            )
        };
        let net = match text.parse::<IpNet>() {
            Ok(net) => net,
            Err(_) => IpNet::from(text.parse::<IpAddr>().map_err(|_| wrong())?),
        };
        let net = match (
            net.addr().to_canonical(),
            net.prefix_len().checked_sub(MAPPED_BITS),
        ) {
            (address @ IpAddr::V4(_), Some(prefix)) if net.addr().is_ipv6() => {
                IpNet::new(address, prefix).map_err(|_| wrong())?
            }
            _ => net,
        };
        if net.trunc() != net {
            return Err(refused(&format!(
                "has host bits set; the network is {}",
                net.trunc()
            )));
        }
        Ok(Self(net))
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<String> for Cidr {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self, Fault> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

/// SHA-256 of a whole token. Tokens are 256 random bits: nobody can try them all, so that a slow
/// or salted hash, made for what people choose, would only cost time at every call.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// The hash of a token.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// Whether two are the same, in a time that does not tell where they differ.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// The id of its token: the first half. It is no secret.
    pub fn id(&self) -> TokenId {
        let mut id = [0; 16];
        id.iter_mut()
            .zip(&self.0)
            .for_each(|(to, from)| *to = *from);
        TokenId::from_bytes(id)
    }
}

impl std::fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

/// A token, as it is stored. Times are in milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiToken {
    /// Its id: made of its hash.
    pub id: TokenId,
    /// What operators call it; no two that are not revoked have the same.
    pub name: String,
    /// What it opens.
    pub kind: TokenKind,
    /// The vaults that it reaches.
    pub vaults: TokenVaults,
    /// What it may do.
    pub access: TokenAccess,
    /// Where it may be used from; empty: anywhere.
    pub allow: Vec<Cidr>,
    /// When it was made.
    pub created_at_ms: u64,
    /// From when on it is refused.
    pub expires_at_ms: Option<u64>,
    /// When it was revoked.
    pub revoked_at_ms: Option<u64>,
    /// What it is found again by.
    pub hash: TokenHash,
}

/// Whether a token is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenState {
    /// It is.
    Active,
    /// Its time is over.
    Expired,
    /// An operator has ended it.
    Revoked,
}

impl TokenState {
    /// `active`, `expired` or `revoked`.
    pub fn name(self) -> &'static str {
        match self {
            TokenState::Active => "active",
            TokenState::Expired => "expired",
            TokenState::Revoked => "revoked",
        }
    }
}

impl ApiToken {
    /// Whether it is taken at a time.
    pub fn state(&self, now_ms: u64) -> TokenState {
        match (self.revoked_at_ms, self.expires_at_ms) {
            (Some(_), _) => TokenState::Revoked,
            (None, Some(expires)) if expires <= now_ms => TokenState::Expired,
            (None, _) => TokenState::Active,
        }
    }

    /// Whether it may be used from an address; one that is not known is on no list.
    pub fn allows(&self, address: Option<IpAddr>) -> bool {
        self.allow.is_empty()
            || address.is_some_and(|address| self.allow.iter().any(|cidr| cidr.contains(address)))
    }

    /// Whether it reaches a vault.
    pub fn reaches(&self, vault: VaultId) -> bool {
        match &self.vaults {
            TokenVaults::All => true,
            TokenVaults::Only(vaults) => vaults.contains(&vault),
        }
    }

    /// Refuses a new admin token that could be used for longer than this one, or from elsewhere: who has one must not
    /// get past its limits by making another.
    ///
    /// # Errors
    /// [`Class::Forbidden`] naming the field.
    pub fn check_made(&self, new: &NewToken) -> Result<(), Fault> {
        let refused = |sentence: &str| Err(Fault::new(Class::Forbidden, sentence));
        if new.kind.role().is_none() {
            return Ok(());
        }
        let outlasts = match (self.expires_at_ms, new.expires_at_ms) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(own), Some(new)) => new > own,
        };
        if outlasts {
            return refused(
                "expiresAtMs: an admin token cannot make one that expires later than itself",
            );
        }
        let is_within = |new: &Cidr| self.allow.iter().any(|own| own.covers(new));
        if !self.allow.is_empty() && !new.allow.iter().all(is_within) {
            return refused(
                "allow: an admin token cannot make one that is allowed from more addresses than itself",
            );
        }
        Ok(())
    }
}

/// A token that is to be made, as an operator wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// What to call it: 1 to [`MAX_NAME`] characters, none of which misleads who reads it. It must not look
    /// like an id: tokens are named by both.
    pub name: String,
    /// What it opens.
    pub kind: TokenKind,
    /// The vaults that it reaches; at least one.
    pub vaults: TokenVaults,
    /// What it may do.
    pub access: TokenAccess,
    /// Where it may be used from; empty: anywhere.
    pub allow: Vec<Cidr>,
    /// From when on it is refused, in milliseconds since the Unix epoch.
    pub expires_at_ms: Option<u64>,
}

impl NewToken {
    /// Checks what can be checked without a store.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the field.
    pub fn check(&self, now_ms: u64) -> Result<(), Fault> {
        let characters = self.name.chars().count();
        if !(1..=MAX_NAME).contains(&characters) || self.name.trim() != self.name {
            return Err(Fault::field(
                "name",
                format!("must have 1 to {MAX_NAME} characters, and no space at either end"),
            ));
        }
        field::label("name", &self.name, MAX_NAME)?;
        if self.name.parse::<TokenId>().is_ok() {
            return Err(Fault::field("name", "must not look like a uuid"));
        }
        if let TokenVaults::Only(vaults) = &self.vaults {
            if !(1..=MAX_VAULTS).contains(&vaults.len()) {
                return Err(Fault::field(
                    "vaults",
                    format!("must be 1 to {MAX_VAULTS}, or all"),
                ));
            }
            for (index, vault) in vaults.iter().enumerate() {
                if vaults.iter().take(index).any(|other| other == vault) {
                    let field = format_args!("vaults[{index}]");
                    return Err(Fault::field(field, "is named twice"));
                }
            }
        }
        if self.allow.len() > MAX_ALLOW {
            return Err(Fault::field(
                "allow",
                format!("must have at most {MAX_ALLOW} entries"),
            ));
        }
        if self.expires_at_ms.is_some_and(|expires| expires <= now_ms) {
            return Err(Fault::field("expiresAtMs", "is in the past"));
        }
        if self.kind.role().is_some() {
            // What opens the service is never open to all by having been left out.
            if self.expires_at_ms.is_none() {
                return Err(Fault::field(
                    "expiresAtMs",
                    "is required for an admin token",
                ));
            }
            if self.allow.is_empty() {
                return Err(Fault::field(
                    "allow",
                    "is required for an admin token: the addresses that it may be used from, 127.0.0.1 for the socket of \
                     the admin API",
                ));
            }
        }
        Ok(())
    }

    /// The record of the token with this hash, made now.
    pub fn record(self, hash: TokenHash, now_ms: u64) -> ApiToken {
        ApiToken {
            id: hash.id(),
            name: self.name,
            kind: self.kind,
            vaults: self.vaults,
            access: self.access,
            allow: self.allow,
            created_at_ms: now_ms,
            expires_at_ms: self.expires_at_ms,
            revoked_at_ms: None,
            hash,
        }
    }
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
