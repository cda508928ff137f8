//! API tokens: how they are looked up. Every look-up reads the store, and the commit of
//! a command demands the row that was read: a revocation counts at once, for every process that
//! shares the store, also for calls that had begun.

use covault_core::{
    fault::Fault,
    ids::TokenId,
    schema::admin,
    token::{ApiToken, TokenHash, TokenState, TokenVaults},
};

use crate::{
    commands::caller::Caller,
    lists::READ_CHUNK,
    services::Services,
    store::{Key, KeySpace, Scan, rows},
    users,
};

/// Most tokens, revoked ones too: they stay listed.
pub const MAX_TOKENS: usize = 10_000;

/// The token of an id or a name, with the version of its row.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] when there is none.
pub async fn find(services: &Services, which: &str) -> Result<(ApiToken, u64), Fault> {
    let unknown = || Fault::field("token", "is not the id or name of a token");
    let id = match which.parse::<TokenId>() {
        Ok(id) => id,
        Err(_) => {
            let named = services.load::<TokenId>(&rows::token_name(which)).await?;
            named.map(|(id, _)| id).ok_or_else(unknown)?
        }
    };
    let found = services.load::<ApiToken>(&rows::token(id)).await?;
    found.ok_or_else(unknown)
}

/// The token of a hash, in whatever state.
///
/// # Errors
/// [`covault_core::fault::Class::Unavailable`] when the store cannot be read.
pub async fn of_hash(services: &Services, hash: &TokenHash) -> Result<Option<ApiToken>, Fault> {
    let found = services.load::<ApiToken>(&rows::token(hash.id())).await?;
    Ok(found
        .map(|(record, _)| record)
        .filter(|record| record.hash.matches(hash)))
}

/// The row of a caller's token, or of the person who calls, in the version in which it may be used now; `None` for a token of a
/// file, which has no row. A call may have waited since its token was looked up: for its body, for
/// another call, for the end of a request.
///
/// # Errors
/// As [`check_active`], and when the store cannot be read.
pub async fn in_use(services: &Services, caller: &Caller) -> Result<Option<(Key, u64)>, Fault> {
    if let Some(person) = &caller.person {
        return users::in_use(services, person.id).await.map(Some);
    }
    if (caller.admin.as_ref()).is_some_and(|admin| admin.token.is_none()) {
        return Ok(None);
    }
    let key = rows::token(caller.token);
    let Some((record, version)) = services.load::<ApiToken>(&key).await? else {
        return Ok(None);
    };
    check_active(services, &record)?;
    Ok(Some((key, version)))
}

/// Whether a token may be used now.
///
/// # Errors
/// [`covault_core::fault::Class::Unauthenticated`] when it is expired or revoked: callers cannot tell which.
pub fn check_active(services: &Services, record: &ApiToken) -> Result<(), Fault> {
    match record.state(services.now_ms()) {
        TokenState::Active => Ok(()),
        state => Err(Fault::unauthenticated().caused_by(format_args!(
            "the token {} ({:?}) is {}",
            record.id,
            record.name,
            state.name()
        ))),
    }
}

/// When each token was made, and which it is, in that order. A token may have many kilobytes: they are not kept.
///
/// # Errors
/// [`covault_core::fault::Class::Unavailable`] when the store cannot be read.
pub async fn ages(services: &Services) -> Result<Vec<(u64, TokenId)>, Fault> {
    let mut ages = Vec::new();
    let mut next = Some(Scan::prefix(KeySpace::Token, &[], READ_CHUNK));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        for (_, row) in &page {
            let token: ApiToken = rows::decode(&row.value)?;
            ages.push((token.created_at_ms, token.id));
        }
        next = scan.rest(&page);
    }
    ages.sort_unstable();
    Ok(ages)
}

/// A token as operators see it.
pub fn message_of(record: ApiToken) -> admin::Token {
    let ApiToken {
        id,
        name,
        kind,
        vaults,
        access,
        allow,
        created_at_ms,
        expires_at_ms,
        revoked_at_ms,
        hash: _,
    } = record;
    let (all_vaults, vaults) = match vaults {
        TokenVaults::All => (true, Vec::new()),
        TokenVaults::Only(vaults) => (false, vaults),
    };
    admin::Token {
        id: id.to_string(),
        name,
        kind: kind.name().to_owned(),
        vaults: vaults.iter().map(ToString::to_string).collect(),
        all_vaults,
        // An admin token has a role in place of it.
        access: match kind.role() {
            Some(_) => String::new(),
            None => access.name().to_owned(),
        },
        allow: allow.iter().map(ToString::to_string).collect(),
        created_at_ms,
        expires_at_ms,
        revoked_at_ms,
        role: kind
            .role()
            .map_or_else(String::new, |role| role.name().to_owned()),
    }
}
