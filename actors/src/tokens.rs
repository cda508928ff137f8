//! API tokens: made, listed, revoked and looked up. Every look-up reads the store, and the commit of
//! a command demands the row that was read: a revocation counts at once, for every process that
//! shares the store, also for calls that had begun.

use covault_core::{
    audit::Chain,
    fault::{Class, Fault},
    ids::TokenId,
    token::{self, ApiToken, NewToken, TokenHash, TokenState, Vaults},
};
use secrecy::{ExposeSecret as _, SecretString};

use crate::{
    audit::{self, By, Note},
    context::Context,
    gateway::{Caller, Inner, operators_only},
    rows,
    store::{Batch, CommitError, Expect, Key, Scan, Space},
};

/// Most tokens, revoked ones too: they stay listed.
const MAX_TOKENS: usize = 10_000;

/// A token that was just made. Nothing else ever holds its text.
#[derive(Clone, Debug)]
pub struct MadeToken {
    /// Its text.
    pub secret: SecretString,
    /// What is stored of it.
    pub record: ApiToken,
}

impl Inner {
    pub(crate) async fn create_token(
        &self,
        caller: &Caller,
        new: NewToken,
    ) -> Result<MadeToken, Fault> {
        operators_only(caller)?;
        let context = &self.context;
        let now_ms = context.now_ms();
        new.check(now_ms)?;
        if let Vaults::Only(vaults) = &new.vaults {
            for (index, vault) in vaults.iter().enumerate() {
                if context.vault(*vault).await?.is_none() {
                    let field = format_args!("vaults[{index}]");
                    return Err(Fault::field(field, "is not that of a vault"));
                }
            }
        }
        if all(context).await?.len() >= MAX_TOKENS {
            return Err(Fault::new(
                Class::Conflict,
                format!("there are {MAX_TOKENS} tokens; no more can be made"),
            ));
        }
        let secret = token::make(new.kind, &*context.entropy);
        let record = new.record(TokenHash::of(secret.expose_secret()), now_ms);
        let mut batch = Batch::new();
        batch.put(
            rows::token(record.id),
            Expect::Absent,
            rows::encode(&record)?,
        );
        batch.put(
            rows::token_name(&record.name),
            Expect::Absent,
            rows::encode(&record.id)?,
        );
        let vaults = match &record.vaults {
            Vaults::All => "all".to_owned(),
            Vaults::Only(vaults) => {
                let vaults = vaults.iter().map(ToString::to_string);
                vaults.collect::<Vec<_>>().join(" ")
            }
        };
        let allow = record.allow.iter().map(ToString::to_string);
        let ends = record.expires_at_ms.map(|ends| ends.to_string());
        Note::new(&By::caller(caller), audit::token(record.id), "TokenMade")
            .fact("name", &record.name)
            .fact("kind", record.kind.name())
            .fact("access", record.access.name())
            .fact("vaults", vaults)
            .fact("allow", allow.collect::<Vec<_>>().join(" "))
            .fact("expiresAtMs", ends.unwrap_or_default())
            .add_to(&mut batch, Chain::Service, now_ms)?;
        match context.store.commit(batch).await {
            Ok(()) => Ok(MadeToken { secret, record }),
            Err(CommitError::Conflict(key)) if key.space == Space::TokenName => Err(Fault::new(
                Class::Conflict,
                "a token of this name exists; revoke it first, or choose another name",
            )),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends a token's use, by id or name. Repeating it by id changes nothing.
    pub(crate) async fn revoke_token(
        &self,
        caller: &Caller,
        which: &str,
    ) -> Result<ApiToken, Fault> {
        operators_only(caller)?;
        let context = &self.context;
        let (record, version) = find(context, which).await?;
        if record.revoked_at_ms.is_some() {
            return Ok(record);
        }
        let record = ApiToken {
            revoked_at_ms: Some(context.now_ms()),
            ..record
        };
        let mut batch = Batch::new();
        batch.put(
            rows::token(record.id),
            Expect::Version(version),
            rows::encode(&record)?,
        );
        // Nobody else can have taken the name: it was this token's until now.
        batch.delete(rows::token_name(&record.name), Expect::Any);
        Note::new(&By::caller(caller), audit::token(record.id), "TokenRevoked")
            .fact("name", &record.name)
            .add_to(&mut batch, Chain::Service, context.now_ms())?;
        match context.store.commit(batch).await {
            Ok(()) => Ok(record),
            // Somebody else revoked it at the same time; nothing else changes a token.
            Err(CommitError::Conflict(_)) => Ok(find(context, &record.id.to_string()).await?.0),
            Err(error) => Err(error.into()),
        }
    }
}

/// The token of an id or a name, with the version of its row.
///
/// # Errors
/// [`Class::Invalid`] when there is none.
pub async fn find(context: &Context, which: &str) -> Result<(ApiToken, u64), Fault> {
    let unknown = || Fault::field("token", "is neither the id of a token nor the name of one");
    let id = match which.parse::<TokenId>() {
        Ok(id) => id,
        Err(_) => {
            let named = context.load::<TokenId>(&rows::token_name(which)).await?;
            named.map(|(id, _)| id).ok_or_else(unknown)?
        }
    };
    let found = context.load::<ApiToken>(&rows::token(id)).await?;
    found.ok_or_else(unknown)
}

/// The token of a hash.
///
/// # Errors
/// [`Class::Unauthenticated`] when there is none, or its time is over, or it was revoked: callers
/// cannot tell which.
pub async fn authenticate(context: &Context, hash: &TokenHash) -> Result<ApiToken, Fault> {
    let (record, _) = context
        .load::<ApiToken>(&rows::token(hash.id()))
        .await?
        .filter(|(record, _)| record.hash.matches(hash))
        .ok_or_else(Fault::unauthenticated)?;
    check_active(context, &record)?;
    Ok(record)
}

/// The row of a caller's token, in the version in which it may be used now; `None` for a token of a
/// file, which has no row. A call may have waited since its token was looked up: for its body, for
/// another call, for the end of a request.
///
/// # Errors
/// As [`authenticate`].
pub async fn in_use(context: &Context, caller: &Caller) -> Result<Option<(Key, u64)>, Fault> {
    if caller.operator {
        return Ok(None);
    }
    let key = rows::token(caller.token);
    let Some((record, version)) = context.load::<ApiToken>(&key).await? else {
        return Ok(None);
    };
    check_active(context, &record)?;
    Ok(Some((key, version)))
}

fn check_active(context: &Context, record: &ApiToken) -> Result<(), Fault> {
    match record.state(context.now_ms()) {
        TokenState::Active => Ok(()),
        state => Err(Fault::unauthenticated().caused_by(format_args!(
            "the token {} ({:?}) is {}",
            record.id,
            record.name,
            state.name()
        ))),
    }
}

/// Every token, in the order in which they were made.
///
/// # Errors
/// [`Class::Unavailable`] when the store cannot be read.
pub async fn all(context: &Context) -> Result<Vec<ApiToken>, Fault> {
    let all = Scan::prefix(Space::Token, &[], MAX_TOKENS);
    let rows = context.store.scan(&all).await?;
    let mut tokens = rows
        .iter()
        .map(|(_, row)| rows::decode(&row.value))
        .collect::<Result<Vec<ApiToken>, _>>()?;
    tokens.sort_by_key(|token| (token.created_at_ms, token.id));
    Ok(tokens)
}
