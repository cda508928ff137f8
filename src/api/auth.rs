//! Tokens: who calls.

use std::net::IpAddr;

use covault_actors::gateway::{AdminCaller, Caller, VaultScope};
use covault_core::{
    fault::{Class, Fault},
    port::Entropy,
    schema::service::Audience,
    token::{self, ApiToken, TokenAccess, TokenHash, TokenKind, TokenVaults},
};
use secrecy::{ExposeSecret as _, SecretString};

use super::{
    Api, Credentials,
    refusals::{KnownToken, OF_THE_FILE, RefusedCall},
};

/// The two tokens of files: the admin token, where it is in use, and the platform token that reaches every vault. Only
/// their hashes are kept. All others are in the store.
#[derive(Clone)]
pub struct Tokens {
    platform: TokenHash,
    admin: Option<TokenHash>,
}

impl Tokens {
    /// Keeps the hashes of the two tokens.
    pub fn new(platform: &SecretString, admin: Option<&SecretString>) -> Self {
        Self {
            platform: TokenHash::of(platform.expose_secret()),
            admin: admin.map(|admin| TokenHash::of(admin.expose_secret())),
        }
    }

    /// What the token of a hash opens; `None` when it is neither of the two.
    fn opens(&self, presented: &TokenHash) -> Option<Audience> {
        // Both are compared, whole, whatever the outcome of the first.
        let platform = presented.matches(&self.platform);
        let admin = (self.admin.as_ref()).is_some_and(|admin| presented.matches(admin));
        match (platform, admin) {
            (true, _) => Some(Audience::Platform),
            (_, true) => Some(Audience::Admin),
            (false, false) => None,
        }
    }
}

/// Who calls. The token is looked at first, then the address.
///
/// # Errors
/// [`Class::Unauthenticated`] without a token that is known and may be used now,
/// [`Class::Forbidden`] for one that does not open it, or not from this address.
pub async fn caller(api: &Api, credentials: Credentials<'_>) -> Result<Caller, Fault> {
    let refused = match find(api, &credentials).await {
        Ok(caller) => return Ok(caller),
        Err(refused) => refused,
    };
    let RefusedToken { fault, known } = refused;
    let is_admin = known.as_ref().is_some_and(|token| token.is_admin);
    if is_admin || credentials.audience == Audience::Admin {
        api.refusals.note(&RefusedCall {
            token: known.as_ref(),
            address: credentials.address,
            operation: credentials.operation,
            request_id: credentials.request_id,
            fault: &fault,
        });
    }
    Err(fault)
}

/// A token that does not open what is asked, and which it is, where that is known.
struct RefusedToken {
    fault: Fault,
    known: Option<KnownToken>,
}

impl From<Fault> for RefusedToken {
    fn from(fault: Fault) -> Self {
        Self { fault, known: None }
    }
}

async fn find(api: &Api, credentials: &Credentials<'_>) -> Result<Caller, RefusedToken> {
    let token = credentials.token.ok_or_else(Fault::unauthenticated)?;
    let hash = TokenHash::of(token);
    if let Some(opens) = api.tokens.opens(&hash) {
        check_audience(opens, credentials.audience).map_err(|fault| RefusedToken {
            fault,
            known: (opens == Audience::Admin).then(|| KnownToken {
                id: hash.id(),
                name: OF_THE_FILE.to_owned(),
                is_admin: true,
            }),
        })?;
        return Ok(Caller {
            token: hash.id(),
            vaults: VaultScope::All,
            access: TokenAccess::Full,
            admin: (opens == Audience::Admin).then(AdminCaller::unnamed),
            request_id: credentials.request_id.to_owned(),
            person: None,
            trace: credentials.trace,
        });
    }
    // What was never one of ours is refused without asking the store.
    if !token::is_token(token) {
        return Err(Fault::unauthenticated().into());
    }
    let record = api.gateway.token(&hash).await?;
    let record = record.ok_or_else(Fault::unauthenticated)?;
    stored(api, &record, credentials).map_err(|fault| RefusedToken {
        fault,
        known: Some(KnownToken {
            id: record.id,
            is_admin: record.kind.role().is_some(),
            name: record.name,
        }),
    })
}

/// Who calls with a token of the store.
fn stored(api: &Api, record: &ApiToken, credentials: &Credentials<'_>) -> Result<Caller, Fault> {
    api.gateway.check_token(record)?;
    let opens = match record.kind {
        TokenKind::Platform => Audience::Platform,
        TokenKind::Sweep => Audience::Sweep,
        TokenKind::Admin(_) => Audience::Admin,
    };
    check_audience(opens, credentials.audience)?;
    if !record.allows(credentials.address) {
        let from = match credentials.address {
            Some(address) => address.to_string(),
            None => "an unknown address".to_owned(),
        };
        let cause = format!("token {} ({:?}) from {from}", record.id, record.name);
        return Err(Fault::new(Class::Forbidden, "IP is not allowed").caused_by(cause));
    }
    Ok(Caller {
        token: record.id,
        vaults: match &record.vaults {
            TokenVaults::All => VaultScope::All,
            TokenVaults::Only(vaults) => VaultScope::Only(vaults.clone()),
        },
        access: record.access,
        admin: record.kind.role().map(|role| AdminCaller {
            role,
            token: Some(record.name.clone()),
        }),
        request_id: credentials.request_id.to_owned(),
        person: None,
        trace: credentials.trace,
    })
}

/// What is needed to look again whether a caller may still call. The token itself is not kept.
pub struct CallerRecheck {
    caller: Caller,
    /// `None`: it is in a file, and holds as long as the process runs.
    hash: Option<TokenHash>,
    address: Option<IpAddr>,
}

impl CallerRecheck {
    /// Of a caller who was found with these credentials.
    pub fn new(api: &Api, caller: Caller, credentials: &Credentials<'_>) -> Self {
        let hash = credentials.token.map(TokenHash::of);
        Self {
            caller,
            hash: hash.filter(|hash| api.tokens.opens(hash).is_none()),
            address: credentials.address,
        }
    }

    /// Whether the caller may do today what it could then.
    ///
    /// # Errors
    /// As [`caller`]; [`Class::Forbidden`] when its token opens something else by now.
    pub async fn check(&self, api: &Api, audience: Audience) -> Result<(), Fault> {
        let Some(hash) = &self.hash else {
            return Ok(());
        };
        let credentials = Credentials {
            token: None,
            audience,
            operation: "",
            address: self.address,
            request_id: &self.caller.request_id,
            trace: self.caller.trace,
        };
        let record = api.gateway.token(hash).await?;
        let record = record.ok_or_else(Fault::unauthenticated)?;
        if stored(api, &record, &credentials)? == self.caller {
            return Ok(());
        }
        Err(Fault::new(
            Class::Forbidden,
            "the token was changed during the call",
        ))
    }
}

/// Refuses a token that opens the operations of another audience.
fn check_audience(opens: Audience, asked: Audience) -> Result<(), Fault> {
    let sentence = match (opens, asked) {
        (Audience::Platform, Audience::Platform)
        | (Audience::Sweep, Audience::Sweep)
        | (Audience::Admin, Audience::Admin) => return Ok(()),
        (Audience::Platform | Audience::Admin, Audience::Sweep) => {
            return Err(Fault::unauthenticated());
        }
        (Audience::Admin, Audience::Platform) => {
            "an admin token is not valid for the platform API; use a platform token"
        }
        (Audience::Sweep, Audience::Platform) => {
            "a sweep token is not valid for the platform API; use a platform token"
        }
        (Audience::Platform, Audience::Admin) => {
            "a platform token is not valid for the admin API; use an admin token"
        }
        (Audience::Sweep, Audience::Admin) => {
            "a sweep token is not valid for the admin API; use an admin token"
        }
    };
    Err(Fault::new(Class::Forbidden, sentence))
}

/// A new token for a file: 32 random bytes in hex.
pub fn new_token(entropy: &dyn Entropy) -> SecretString {
    let mut bytes = zeroize::Zeroizing::new([0_u8; 32]);
    entropy.fill(bytes.as_mut());
    SecretString::from(hex::encode(*bytes))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn tokens__should_know_their_own_and_no_others() {
        let tokens = Tokens::new(
            &SecretString::from("platform"),
            Some(&SecretString::from("admin")),
        );
        let opens = |token: &str| tokens.opens(&TokenHash::of(token));
        assert_eq!(opens("platform"), Some(Audience::Platform));
        assert_eq!(opens("admin"), Some(Audience::Admin));
        for token in ["", "platfor", "platform ", "PLATFORM"] {
            assert_eq!(opens(token), None);
        }
        // Turned off: then no text is the admin token.
        let off = Tokens::new(&SecretString::from("platform"), None);
        assert_eq!(off.opens(&TokenHash::of("admin")), None);
        assert_eq!(off.opens(&TokenHash::of("")), None);
    }

    #[test]
    fn check_audience__should_let_tokens_open_only_their_own() {
        use Audience::{Admin, Platform, Sweep};
        for area in [Platform, Sweep, Admin] {
            assert!(check_audience(area, area).is_ok());
        }
        for (opens, area, class) in [
            (Admin, Platform, Class::Forbidden),
            (Sweep, Platform, Class::Forbidden),
            (Platform, Admin, Class::Forbidden),
            (Sweep, Admin, Class::Forbidden),
            (Platform, Sweep, Class::Unauthenticated),
            (Admin, Sweep, Class::Unauthenticated),
        ] {
            let fault = check_audience(opens, area).unwrap_err();
            assert_eq!(fault.class(), &class, "{opens:?} {area:?}");
        }
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
