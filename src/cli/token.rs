//! `covault token`: the tokens that clients of the API show.

use std::collections::HashMap;

use anyhow::{Context as _, bail};
use comfy_table::{Table, presets::NOTHING};
use covault_actors::operations::{CreateToken, ListTokens, RevokeToken};
use covault_core::{
    port::Clock as _,
    schema::admin::{self, ListTokensResponse, Token},
};
use prost_types::Timestamp;

use super::{
    answer, answer_json,
    client::{AdminClient, ConnectionArgs},
    hint, print_line, vault,
};
use crate::adapters::SystemClock;

/// API tokens.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Create(CreateTokenArgs),
    /// List the tokens, including revoked and expired ones. Shows no secret.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: ConnectionArgs,
    },
    /// Revoke a token: its next call is refused. This cannot be undone.
    ///
    /// What it created before (requests in progress, deposit addresses) stays.
    Revoke {
        /// Its id, or its name.
        #[arg(value_name = "TOKEN")]
        token: String,
        /// Do not ask, in a context that asks (covault context).
        #[arg(long)]
        yes: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: ConnectionArgs,
    },
}

/// Create a token, and print it, once, on standard output.
///
/// Only its hash is stored. A token begins with cvp_ (platform), cvs_ (sweep) or cva_ (admin) and ends with a checksum, so
/// that secret scanners recognise it. An admin token has a role in place of vaults and access, and names the addresses that
/// it may be used from and when it expires.
#[derive(Debug, clap::Args)]
pub struct CreateTokenArgs {
    /// Its name: 1 to 64 characters, unique among tokens that are not revoked.
    #[arg(long)]
    name: String,
    /// Its API: the platform API, the sweep API (deposit and watch addresses), or the admin API.
    #[arg(long, value_parser = ["platform", "sweep", "admin"])]
    kind: String,
    /// What an admin token may do: everything, read also the audit log, or read all but that.
    #[arg(
        long,
        value_parser = ["operator", "auditor", "viewer"],
        required_if_eq("kind", "admin"),
        conflicts_with_all = ["vault", "all_vaults", "access"]
    )]
    role: Option<String>,
    /// A vault in its scope, by name or uuid. May be repeated.
    #[arg(
        long,
        value_name = "VAULT",
        value_delimiter = ',',
        required_unless_present_any = ["all_vaults", "role"]
    )]
    vault: Vec<String>,
    /// Its scope is all vaults, including later ones.
    #[arg(long, conflicts_with = "vault")]
    all_vaults: bool,
    /// What it may do: everything, or only read (it sees no signature).
    #[arg(long, value_parser = ["full", "read-only"], required_unless_present = "role")]
    access: Option<String>,
    /// The clients that may use it: an address or a network such as 192.0.2.0/24 or 2001:db8::/32.
    /// May be repeated. Without it: from anywhere. Behind a reverse proxy, set
    /// serve.trusted_proxies. Who uses the socket of the admin API is 127.0.0.1.
    #[arg(
        long,
        value_name = "CIDR",
        value_delimiter = ',',
        required_if_eq("kind", "admin")
    )]
    allow: Vec<String>,
    /// When it expires: after a duration (90d, 12h, 30m), or at a time (2027-01-31T00:00:00Z). Default: never.
    #[arg(long, value_name = "WHEN", required_if_eq("kind", "admin"))]
    expires: Option<String>,
    /// Print JSON, the token itself in "secret".
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: ConnectionArgs,
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(args) => create(args).await,
        Command::List { json, target } => list(json, &target.client()?).await,
        Command::Revoke {
            token,
            yes,
            json,
            target,
        } => {
            let client = target.client()?;
            if client.confirms() && !yes {
                let all = all(&client).await?.tokens;
                let is_it = |it: &&Token| {
                    it.revoked_at_ms.is_none() && (it.id == token || it.name == token)
                };
                let found = all.iter().find(is_it);
                let name = &found
                    .context("there is no such token: covault token list")?
                    .name;
                client.confirm(&format!("token {name} is revoked for ever"), name, yes)?;
            }
            let request = admin::RevokeTokenRequest { token };
            let revoked = client.call::<RevokeToken>(&request).await?;
            answer(json, &revoked.token.unwrap_or_default(), |token| {
                format!("revoked {} ({})", token.id, token.name)
            })
        }
    }
}

async fn create(args: CreateTokenArgs) -> anyhow::Result<()> {
    let CreateTokenArgs {
        name,
        kind,
        role,
        vault,
        all_vaults,
        access,
        allow,
        expires,
        json,
        target,
    } = args;
    let expires_at_ms = expires
        .map(|when| expiry(&when, SystemClock.now_ms()))
        .transpose()?;
    let client = target.client()?;
    let vaults = if vault.is_empty() {
        Vec::new()
    } else {
        vault::uuids(&client, &vault).await?
    };
    let request = admin::CreateTokenRequest {
        name,
        kind,
        vaults,
        all_vaults,
        access: access.unwrap_or_default(),
        allow,
        expires_at_ms,
        role: role.unwrap_or_default(),
    };
    let made = client.call::<CreateToken>(&request).await?;
    if json {
        return answer_json(&made);
    }
    let token = made.token.unwrap_or_default();
    eprintln!(
        "token {} ({}), for the header x-mtoken. Keep it now: it is not shown again.",
        token.id, token.name
    );
    if token.kind == "sweep" {
        hint(format_args!(
            "next: covault sweep configure --token {} --help",
            token.id
        ));
    }
    print_line(made.secret);
    Ok(())
}

async fn all(client: &AdminClient) -> anyhow::Result<ListTokensResponse> {
    let mut tokens = ListTokensResponse::default();
    loop {
        let after = tokens.tokens.last().map(|token| token.id.clone());
        let request = admin::ListTokensRequest { after };
        let page = client.call::<ListTokens>(&request).await?;
        tokens.now_ms = page.now_ms;
        if page.tokens.is_empty() {
            return Ok(tokens);
        }
        tokens.tokens.extend(page.tokens);
    }
}

async fn list(json: bool, client: &AdminClient) -> anyhow::Result<()> {
    let tokens = all(client).await?;
    if json {
        return answer_json(&tokens);
    }
    if tokens.tokens.is_empty() {
        hint("no tokens yet: covault token create --help");
        return Ok(());
    }
    let names = vault::vaults(client).await?;
    let names = names
        .into_iter()
        .map(|vault| (vault.uuid, vault.name))
        .collect();
    print_line(table(&tokens, &names));
    Ok(())
}

/// `vaults` gives names to uuids.
fn table(response: &ListTokensResponse, vaults: &HashMap<String, String>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "STATE", "NAME", "KIND", "ACCESS", "VAULTS", "ALLOW", "EXPIRES", "ID",
    ]);
    for token in &response.tokens {
        let vault = |uuid: &String| vaults.get(uuid).unwrap_or(uuid).clone();
        let listed: Vec<String> = token.vaults.iter().map(vault).collect();
        table.add_row([
            state(token, response.now_ms).to_owned(),
            token.name.clone(),
            token.kind.clone(),
            or(
                Some(token.role.clone()).filter(|role| !role.is_empty()),
                || token.access.clone(),
            ),
            or(scope(token), || listed.join(",")),
            or(token.allow.is_empty().then(|| "any".to_owned()), || {
                token.allow.join(",")
            }),
            token.expires_at_ms.map_or_else(|| "never".to_owned(), time),
            token.id.clone(),
        ]);
    }
    table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The vaults of a token whose vaults are not listed; an admin token is for none.
fn scope(token: &Token) -> Option<String> {
    match (token.kind.as_str(), token.all_vaults) {
        ("admin", _) => Some("-".to_owned()),
        (_, true) => Some("all".to_owned()),
        (_, false) => None,
    }
}

fn or(first: Option<String>, other: impl FnOnce() -> String) -> String {
    first.unwrap_or_else(other)
}

fn state(token: &Token, now_ms: u64) -> &'static str {
    match (token.revoked_at_ms, token.expires_at_ms) {
        (Some(_), _) => "revoked",
        (None, Some(expires)) if expires <= now_ms => "expired",
        (None, _) => "active",
    }
}

/// `2027-01-31T00:00:00Z`.
fn time(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    Timestamp { seconds, nanos: 0 }.to_string()
}

/// When a token ends, in milliseconds since the Unix epoch: `90d` from now, or a time.
fn expiry(when: &str, now_ms: u64) -> anyhow::Result<u64> {
    let wrong = || {
        format!(
            "--expires {when:?}: use a duration, such as 90d, 12h or 30m, or a time, such as 2027-01-31T00:00:00Z"
        )
    };
    for (unit, minutes) in [("d", 24 * 60), ("h", 60), ("m", 1)] {
        let Some(number) = when.strip_suffix(unit) else {
            continue;
        };
        let number: u64 = number.parse().ok().with_context(wrong)?;
        return number
            .checked_mul(minutes * 60_000)
            .and_then(|ms| ms.checked_add(now_ms))
            .with_context(wrong);
    }
    let time: Timestamp = when.parse().ok().with_context(wrong)?;
    let seconds = u64::try_from(time.seconds).ok().with_context(wrong)?;
    let ms = seconds.checked_mul(1000).with_context(wrong)?;
    if ms <= now_ms {
        bail!("--expires {when:?} is in the past");
    }
    Ok(ms)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn expiry__should_take_a_while_or_a_time() {
        const DAY: u64 = 86_400_000;
        for (when, expected) in [
            ("90d", 1_000 + 90 * DAY),
            ("24h", 1_000 + DAY),
            ("5m", 301_000),
            ("1970-01-02T00:00:00Z", DAY),
            ("1970-01-02T02:00:00+02:00", DAY),
        ] {
            assert_eq!(expiry(when, 1_000).unwrap(), expected, "{when}");
        }
        for when in [
            "",
            "d",
            "-1d",
            "1.5h",
            "90",
            "soon",
            "99999999999999999999d",
            "300000000000d",
        ] {
            let problem = expiry(when, 1_000).unwrap_err().to_string();
            assert!(problem.contains("such as 90d"), "{when}: {problem}");
        }
        let problem = expiry("1970-01-01T00:00:00Z", 1_000)
            .unwrap_err()
            .to_string();
        assert!(problem.contains("in the past"), "{problem}");
    }

    #[test]
    fn table__should_show_each_token_without_a_secret() {
        let token = |name: &str| Token {
            id: "7c9e6679-7425-40de-944b-e07fc1f90ae7".into(),
            name: name.into(),
            kind: "platform".into(),
            vaults: vec!["u-1".into(), "u-2".into()],
            all_vaults: false,
            access: "read-only".into(),
            allow: vec!["192.0.2.0/24".into()],
            created_at_ms: 1,
            expires_at_ms: Some(1_000),
            revoked_at_ms: None,
            role: String::new(),
        };
        let tokens = ListTokensResponse {
            tokens: vec![
                token("shop"),
                Token {
                    expires_at_ms: None,
                    all_vaults: true,
                    vaults: vec![],
                    allow: vec![],
                    ..token("bank")
                },
                Token {
                    revoked_at_ms: Some(5),
                    ..token("old")
                },
                Token {
                    kind: "admin".into(),
                    role: "auditor".into(),
                    access: String::new(),
                    all_vaults: true,
                    ..token("anna")
                },
            ],
            now_ms: 1_000,
        };
        let names = HashMap::from([("u-1".to_owned(), "main".to_owned())]);
        let table = table(&tokens, &names);
        let rows: Vec<&str> = table.lines().collect();
        assert_eq!(rows.len(), 5, "{table}");
        for word in [
            "expired",
            "shop",
            "read-only",
            "main,u-2",
            "192.0.2.0/24",
            "1970-01-01T00:00:01Z",
            "7c9e",
        ] {
            assert!(rows[1].contains(word), "{word}: {table}");
        }
        for word in ["active", "bank", "all", "any", "never"] {
            assert!(rows[2].contains(word), "{word}: {table}");
        }
        assert!(rows[3].contains("revoked"), "{table}");
        let words: Vec<_> = rows[4].split_whitespace().collect();
        assert_eq!(words[1..5], ["anna", "admin", "auditor", "-"], "{table}");
    }
}
