//! API tokens and users, for operators: those that have something to do with the vaults that the operator sees. They are
//! made and revoked with the command line, whose token no browser has.

use std::collections::HashMap;

use askama::Template;
use covault_actors::{
    operations::{ListTokens, ListUsers},
    users::SignedIn,
};
use covault_core::{schema::admin, token::TokenVaults, user::UserRole};

use super::{
    ConsoleCall, forbidden,
    pages::vault_names,
    response::{PageError, PageResponse},
    text::{Text, Time},
    views::Shell,
};

/// Rows of a page.
const PAGE: usize = 100;

#[derive(Template)]
#[template(path = "tokens.html")]
struct TokensPage {
    shell: Shell,
    tokens: Vec<TokenView>,
    /// The last one, where another page follows.
    next: Option<String>,
}

/// An API token, without its secret.
struct TokenView {
    name: Text,
    kind: Text,
    access: Text,
    vaults: Text,
    allow: Text,
    created: Time,
    expires: Option<Time>,
    /// `active`, `expired`, `revoked`
    state: &'static str,
}

#[derive(Template)]
#[template(path = "users.html")]
struct UsersPage {
    shell: Shell,
    users: Vec<UserView>,
    next: Option<String>,
}

/// A user of the console.
struct UserView {
    name: Text,
    role: Text,
    vaults: Text,
    created: Time,
    passkeys: Vec<(Text, Time)>,
    sessions: usize,
    seen: Option<Time>,
    link_until: Option<Time>,
    is_revoked: bool,
}

fn check(signed_in: &SignedIn) -> Result<(), PageError> {
    match signed_in.user.role {
        UserRole::Operator => Ok(()),
        _ => Err(forbidden("only operators see tokens and users")),
    }
}

/// The vaults of a token or user in words; nothing when it has nothing to do with those that the operator sees.
fn reached(
    signed_in: &SignedIn,
    names: &HashMap<String, String>,
    all_vaults: bool,
    vaults: &[String],
) -> Option<Text> {
    if all_vaults {
        return Some(Text::new("all vaults"));
    }
    let mut seen: Vec<_> = vaults.iter().filter_map(|uuid| names.get(uuid)).collect();
    if seen.is_empty() && signed_in.user.vaults != TokenVaults::All {
        return None;
    }
    seen.sort_unstable();
    let mut words: Vec<_> = seen.iter().map(|name| name.as_str()).collect();
    if seen.len() < vaults.len() {
        words.push("others");
    }
    Some(Text::new(words.join(", ")))
}

fn token_view(token: &admin::Token, vaults: Text, now_ms: u64) -> TokenView {
    let is_expired = token.expires_at_ms.is_some_and(|end| end <= now_ms);
    TokenView {
        name: Text::new(&token.name),
        kind: Text::new(&token.kind),
        access: Text::new(&token.access),
        vaults,
        allow: Text::new(token.allow.join(", ")),
        created: Time::new(token.created_at_ms),
        expires: token.expires_at_ms.map(Time::new),
        state: match (token.revoked_at_ms, is_expired) {
            (Some(_), _) => "revoked",
            (None, true) => "expired",
            (None, false) => "active",
        },
    }
}

fn user_view(user: &admin::User, vaults: Text) -> UserView {
    let passkeys = user.passkeys.iter();
    let seen = user.sessions.iter().map(|it| it.last_seen_ms).max();
    UserView {
        name: Text::new(&user.name),
        role: Text::new(&user.role),
        vaults,
        created: Time::new(user.created_at_ms),
        passkeys: passkeys
            .map(|key| (Text::new(&key.name), Time::new(key.created_at_ms)))
            .collect(),
        sessions: user.sessions.len(),
        seen: seen.map(Time::new),
        link_until: user.link_expires_at_ms.map(Time::new),
        is_revoked: user.revoked_at_ms.is_some(),
    }
}

pub async fn tokens(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    check(signed_in)?;
    let names = vault_names(call, signed_in).await?;
    let mut after = Some(call.parameter("after")).filter(|after| !after.is_empty());
    let (mut tokens, mut next) = (Vec::new(), None);
    // The last one that the operator sees: those in between are no business of theirs.
    let mut last = String::new();
    // An answer may be a part of the list.
    'list: loop {
        let request = admin::ListTokensRequest { after };
        let found = call.look_up::<ListTokens>(&request).await?;
        let now_ms = found.now_ms;
        let Some(end) = found.tokens.last().map(|token| token.id.clone()) else {
            break;
        };
        for token in found.tokens {
            let vaults = reached(signed_in, &names, token.all_vaults, &token.vaults);
            let Some(vaults) = vaults else {
                continue;
            };
            if tokens.len() >= PAGE {
                next = Some(last);
                break 'list;
            }
            tokens.push(token_view(&token, vaults, now_ms));
            last = token.id;
        }
        after = Some(end);
    }
    PageResponse::page(&TokensPage {
        shell: Shell::new(signed_in, "tokens"),
        tokens,
        next,
    })
}

pub async fn users(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    check(signed_in)?;
    let names = vault_names(call, signed_in).await?;
    let mut after = Some(call.parameter("after")).filter(|after| !after.is_empty());
    let (mut users, mut next) = (Vec::new(), None);
    let mut last = String::new();
    'list: loop {
        let request = admin::ListUsersRequest { after };
        let found = call.look_up::<ListUsers>(&request).await?.users;
        let Some(end) = found.last().map(|user| user.name.clone()) else {
            break;
        };
        for user in found {
            let vaults = reached(signed_in, &names, user.all_vaults, &user.vaults);
            let Some(vaults) = vaults else {
                continue;
            };
            if users.len() >= PAGE {
                next = Some(last);
                break 'list;
            }
            users.push(user_view(&user, vaults));
            last = user.name;
        }
        after = Some(end);
    }
    PageResponse::page(&UsersPage {
        shell: Shell::new(signed_in, "users"),
        users,
        next,
    })
}
