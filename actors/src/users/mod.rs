//! People who use the console: how they are looked up, enrolled and signed in. Every look-up reads the store, and the
//! commit of a command demands the row that was read: a revocation counts at once, for every process that shares the
//! store.

mod accounts;

use covault_core::{
    audit::AuditChain,
    fault::{Class, Fault},
    ids::UserId,
    port::Entropy,
    schema::admin,
    token::TokenVaults,
    user::{EnrolledPasskey, EnrolmentLink, LINK_MS, SecretHash, Session, User},
};
use zeroize::Zeroizing;

pub(crate) use self::accounts::ConsoleKey;
pub use self::accounts::{
    Accounts, Browser, Enrolment, SIGN_IN_MS, SignInAnswer, SignInChallenge, SignOut, SignedIn,
};
use crate::{
    audit::{self, AuditActor, AuditNote},
    lists::READ_CHUNK,
    services::Services,
    store::{Batch, Key, KeySpace, Precondition, Scan, rows},
};

/// Most accounts, revoked ones too: their names stay taken.
pub const MAX_USERS: usize = 1_000;
/// Most sessions of one person that are listed, and kept.
pub const MAX_SESSIONS: usize = 20;

/// 32 random bytes.
fn secret(entropy: &dyn Entropy) -> Zeroizing<[u8; 32]> {
    let mut secret = Zeroizing::new([0; 32]);
    entropy.fill(secret.as_mut());
    secret
}

/// A person by name, with the version of the row.
///
/// # Errors
/// [`Class::Invalid`] when there is none.
pub async fn find(services: &Services, name: &str) -> Result<(User, u64), Fault> {
    let unknown = || Fault::field("name", "is not that of a user");
    let id = services.load::<UserId>(&rows::user_name(name)).await?;
    let (id, _) = id.ok_or_else(unknown)?;
    services.load(&rows::user(id)).await?.ok_or_else(unknown)
}

/// The row of a person in the version in which the account may be used now.
///
/// # Errors
/// [`Class::Unauthenticated`] when it may not.
pub async fn in_use(services: &Services, id: UserId) -> Result<(Key, u64), Fault> {
    let key = rows::user(id);
    let found = services.load::<User>(&key).await?;
    let active = found.filter(|(user, _)| user.is_active());
    let (_, version) = active.ok_or_else(|| {
        Fault::new(Class::Unauthenticated, "the account was revoked").caused_by(id)
    })?;
    Ok((key, version))
}

/// Gives a person a new link in place of an earlier one, in a batch that begins with the row of its `version` (`None`: a
/// new one). The link's secret.
///
/// # Errors
/// [`Class::Bug`] when a row cannot be serialized.
pub fn give_link(
    services: &Services,
    user: &mut User,
    version: Option<u64>,
) -> Result<(Zeroizing<[u8; 32]>, Batch), Fault> {
    let secret = secret(&*services.entropy);
    let link = EnrolmentLink {
        hash: SecretHash::of(&secret),
        expires_at_ms: services.now_ms().saturating_add(LINK_MS),
    };
    let mut batch = Batch::new();
    let new = rows::user_link(&link.hash);
    if let Some(before) = user.link.replace(link) {
        batch.delete(rows::user_link(&before.hash), Precondition::Any);
    }
    let expected = version.map_or(Precondition::Absent, Precondition::Version);
    batch.put(rows::user(user.id), expected, rows::encode(user)?);
    batch.put(new, Precondition::Absent, rows::encode(&user.id)?);
    Ok((secret, batch))
}

/// The sessions of a person, with the keys of their rows.
///
/// # Errors
/// When the store cannot be read.
pub async fn sessions(services: &Services, user: UserId) -> Result<Vec<(Key, Session)>, Fault> {
    let part = rows::user_sessions(user);
    let scan = Scan::prefix(part.space, &part.bytes, MAX_SESSIONS.saturating_mul(2));
    let rows = services.store.scan(&scan).await?;
    let mut found = Vec::new();
    for (key, row) in rows {
        found.push((key, rows::decode::<Session>(&row.value)?));
    }
    Ok(found)
}

/// Ends sessions of a person, if there are any, with one line of the audit log.
///
/// # Errors
/// When the store cannot be written.
pub async fn end_sessions(
    services: &Services,
    name: &str,
    sessions: Vec<(Key, Session)>,
    by: &AuditActor,
) -> Result<(), Fault> {
    if sessions.is_empty() {
        return Ok(());
    }
    let mut batch = Batch::new();
    AuditNote::new(by, audit::user(name), "SignedOut")
        .fact("sessions", sessions.len())
        .add_to(&mut batch, AuditChain::Service, services.now_ms())?;
    for (key, _) in sessions {
        batch.delete(key, Precondition::Any);
    }
    Ok(services.store.commit(batch).await?)
}

/// All accounts, in the order of their names.
///
/// # Errors
/// When the store cannot be read.
pub async fn all(services: &Services) -> Result<Vec<User>, Fault> {
    let mut found = Vec::new();
    let mut next = Some(Scan::prefix(KeySpace::UserName, &[], READ_CHUNK));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        let mut keys = Vec::new();
        for (_, row) in &page {
            keys.push(rows::user(rows::decode(&row.value)?));
        }
        for user in services.load_all::<User>(&keys).await? {
            found.extend(user?);
        }
        next = scan.rest(&page);
    }
    Ok(found)
}

/// A person as operators see one.
///
/// # Errors
/// [`Class::Bug`] when a line cannot be written.
pub fn message_of(user: User, sessions: Vec<Session>, now_ms: u64) -> Result<admin::User, Fault> {
    let User {
        id: _,
        name,
        role,
        vaults,
        created_at_ms,
        revoked_at_ms,
        link,
        passkeys,
    } = user;
    let (all_vaults, vaults) = match vaults {
        TokenVaults::All => (true, Vec::new()),
        TokenVaults::Only(vaults) => (false, vaults),
    };
    let passkey = |passkey: EnrolledPasskey| {
        Ok::<_, Fault>(admin::UserPasskey {
            line: passkey.line.line()?,
            words: passkey.line.fingerprint()?.join(" "),
            name: passkey.line.passkey.name,
            created_at_ms: passkey.at_ms,
        })
    };
    let sessions = sessions.into_iter().filter(|it| it.holds(now_ms));
    let session = |session: Session| admin::UserSession {
        created_at_ms: session.created_at_ms,
        last_seen_ms: session.seen_at_ms,
        device: session.device,
        address: session.address,
        passkey: session.passkey,
    };
    let link = link.filter(|link| now_ms < link.expires_at_ms);
    Ok(admin::User {
        name,
        role: role.name().to_owned(),
        vaults: vaults.iter().map(ToString::to_string).collect(),
        all_vaults,
        created_at_ms,
        revoked_at_ms,
        passkeys: passkeys
            .into_iter()
            .map(passkey)
            .collect::<Result<_, _>>()?,
        sessions: sessions.map(session).collect(),
        link_expires_at_ms: link.map(|link| link.expires_at_ms),
        notifications: None,
    })
}
