//! `covault user`: the people who use the console.

use std::{collections::HashMap, path::PathBuf};

use secrecy::ExposeSecret as _;

use comfy_table::{Table, presets::NOTHING};
use covault_actors::operations::{
    CreateUser, LinkUser, ListUsers, NotifyUser, RevokeUser, SignOutUser,
};
use covault_core::schema::admin::{self, ListUsersResponse, User, UserLink};

use super::{
    ago, answer, answer_json,
    client::{AdminClient, ConnectionArgs},
    hint, print_line, vault,
};
use crate::{approving::visible, files};

/// People who use the console.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Create(CreateUserArgs),
    /// Print a new link, with which a person enrols another passkey. An earlier link that was not used ends.
    ///
    /// Give each person two passkeys, so that a lost one stops nobody.
    Link {
        /// The person.
        #[arg(value_name = "NAME")]
        name: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: ConnectionArgs,
    },
    /// List the users, their passkeys and sessions.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: ConnectionArgs,
    },
    Notify(NotifyArgs),
    /// Sign a user out: all sessions end at once. The person can sign in again.
    SignOut {
        /// The person.
        #[arg(value_name = "NAME")]
        name: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: ConnectionArgs,
    },
    /// Revoke a user: all sessions end at once. This cannot be undone, and the name stays taken.
    ///
    /// Keys that approve stay in the rules of vaults and in the policies of signers: take them out there, too.
    Revoke {
        /// The person.
        #[arg(value_name = "NAME")]
        name: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: ConnectionArgs,
    },
}

/// Create a user of the console, and print a link, once, on standard output.
///
/// The first person who opens the link enrols a passkey, within 15 minutes: give the link to the user by a way that
/// nobody else reads. The passkey signs in to the console. To approve, the passkey's line has to be in the vault's
/// rule and in the policies of the signers, too; the page shows it (docs/console.md).
#[derive(Debug, clap::Args)]
pub struct CreateUserArgs {
    /// The name, as rules of approval have it: letters, digits, dots, underscores, hyphens.
    #[arg(value_name = "NAME")]
    name: String,
    /// What the person sees: approver (requests; approves and rejects), operator (the nodes too), viewer, auditor (the
    /// audit log too).
    #[arg(long, value_parser = ["approver", "operator", "viewer", "auditor"])]
    role: String,
    /// A vault that the person sees, by name or uuid. May be repeated.
    #[arg(
        long,
        value_name = "VAULT",
        value_delimiter = ',',
        required_unless_present = "all_vaults"
    )]
    vault: Vec<String>,
    /// The person sees all vaults, including later ones.
    #[arg(long, conflicts_with = "vault")]
    all_vaults: bool,
    /// Print JSON, what is shown once included.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: ConnectionArgs,
}

/// Set where a user is told what waits: approvers of requests, operators of nodes that are away (docs/console.md).
///
/// The first message there says that messages come. `covault user list` says why one did not arrive.
#[derive(Debug, clap::Args)]
#[group(id = "place", required = true, multiple = false)]
pub struct NotifyArgs {
    /// The person.
    #[arg(value_name = "NAME")]
    name: String,
    /// The URL of a webhook (Standard Webhooks). Its secret is printed, once, on standard output.
    #[arg(long, value_name = "URL", group = "place")]
    webhook: Option<String>,
    /// A file with the URL of an incoming webhook of Slack, which is a secret.
    #[arg(long, value_name = "FILE", group = "place")]
    slack_file: Option<PathBuf>,
    /// The person's address of mail. The orchestrators need a mail server (notify.mail_server).
    #[arg(long, value_name = "ADDRESS", group = "place")]
    mail: Option<String>,
    /// Tell the person nothing.
    #[arg(long, group = "place")]
    none: bool,
    /// Print JSON, what is shown once included.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: ConnectionArgs,
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(args) => create(args).await,
        Command::Link { name, json, target } => {
            let request = admin::LinkUserRequest { name };
            let linked = target.client()?.call::<LinkUser>(&request).await?;
            if json {
                return answer_json(&linked);
            }
            print_link(linked.link.unwrap_or_default());
            Ok(())
        }
        Command::List { json, target } => list(json, &target.client()?).await,
        Command::Notify(args) => notify(args).await,
        Command::SignOut { name, json, target } => {
            let request = admin::SignOutUserRequest { name };
            let user = target.client()?.call::<SignOutUser>(&request).await?.user;
            answer(json, &user.unwrap_or_default(), |user| {
                format!("signed {} out", user.name)
            })
        }
        Command::Revoke { name, json, target } => {
            let request = admin::RevokeUserRequest { name };
            let user = target.client()?.call::<RevokeUser>(&request).await?.user;
            answer(json, &user.unwrap_or_default(), |user| {
                format!("revoked {}", user.name)
            })
        }
    }
}

async fn create(args: CreateUserArgs) -> anyhow::Result<()> {
    let CreateUserArgs {
        name,
        role,
        vault,
        all_vaults,
        json,
        target,
    } = args;
    let client = target.client()?;
    let vaults = match all_vaults {
        true => Vec::new(),
        false => vault::uuids(&client, &vault).await?,
    };
    let request = admin::CreateUserRequest {
        name,
        role,
        vaults,
        all_vaults,
    };
    let made = client.call::<CreateUser>(&request).await?;
    if json {
        return answer_json(&made);
    }
    print_link(made.link.unwrap_or_default());
    Ok(())
}

async fn notify(args: NotifyArgs) -> anyhow::Result<()> {
    let NotifyArgs {
        name,
        webhook,
        slack_file,
        mail,
        none: _,
        json,
        target,
    } = args;
    let (form, url) = match (webhook, slack_file, mail) {
        (Some(url), ..) => ("webhook", url),
        (None, Some(file), _) => {
            let url = files::read_secret(&file)?;
            ("slack", url.expose_secret().to_owned())
        }
        (None, None, Some(address)) => ("mail", address),
        (None, None, None) => ("none", String::new()),
    };
    let request = admin::NotifyUserRequest {
        name,
        form: form.to_owned(),
        url,
    };
    let told = target.client()?.call::<NotifyUser>(&request).await?;
    if json {
        return answer_json(&told);
    }
    let user = told.user.unwrap_or_default();
    match user.notifications {
        Some(place) => hint(format!("{} is told at {}", user.name, place.host)),
        None => print_line(format_args!("{} is told nothing", user.name)),
    }
    if let Some(secret) = told.webhook_secret {
        eprintln!("the secret of the webhook, which is not shown again:");
        print_line(secret);
    }
    Ok(())
}

fn print_link(link: UserLink) {
    eprintln!("this link enrols one passkey within 15 minutes, and is not shown again:");
    print_line(link.url);
}

async fn list(json: bool, client: &AdminClient) -> anyhow::Result<()> {
    let mut all = ListUsersResponse::default();
    loop {
        let after = all.users.last().map(|user| user.name.clone());
        let page = client
            .call::<ListUsers>(&admin::ListUsersRequest { after })
            .await?;
        all.now_ms = page.now_ms;
        if page.users.is_empty() {
            break;
        }
        all.users.extend(page.users);
    }
    if json {
        return answer_json(&all);
    }
    if all.users.is_empty() {
        hint("no users yet: covault user create --help");
        return Ok(());
    }
    let vaults = vault::vaults(client).await?.into_iter();
    let names = vaults.map(|vault| (vault.uuid, vault.name)).collect();
    print_line(table(&all, &names));
    Ok(())
}

/// `vaults` gives names to uuids.
fn table(response: &ListUsersResponse, vaults: &HashMap<String, String>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "STATE",
        "NAME",
        "ROLE",
        "VAULTS",
        "PASSKEYS",
        "SESSIONS",
        "LAST SEEN",
        "TOLD AT",
    ]);
    for user in &response.users {
        let vault = |uuid: &String| vaults.get(uuid).unwrap_or(uuid).clone();
        let listed: Vec<String> = user.vaults.iter().map(vault).collect();
        let last = user.sessions.iter().map(|it| it.last_seen_ms).max();
        let last = last.map(|at| ago(response.now_ms.saturating_sub(at)));
        table.add_row([
            state(user).to_owned(),
            user.name.clone(),
            user.role.clone(),
            match user.all_vaults {
                true => "all".to_owned(),
                false => listed.join(","),
            },
            user.passkeys.len().to_string(),
            user.sessions.len().to_string(),
            last.unwrap_or_default(),
            user.notifications.as_ref().map(place).unwrap_or_default(),
        ]);
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

fn place(place: &admin::UserNotifications) -> String {
    let admin::UserNotifications { host, problem, .. } = place;
    match problem {
        None => host.clone(),
        Some(problem) => format!("{host}: {}", visible(problem)),
    }
}

fn state(user: &User) -> &'static str {
    match (
        user.revoked_at_ms,
        user.link_expires_at_ms,
        user.passkeys.len(),
    ) {
        (Some(_), _, _) => "revoked",
        (None, _, 1..) => "active",
        (None, Some(_), 0) => "invited",
        (None, None, 0) => "link expired",
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn table__should_show_who_is_there_and_no_secret() {
        let user = |name: &str, passkeys, link_expires_at_ms, revoked_at_ms| User {
            name: name.into(),
            role: "approver".into(),
            vaults: vec!["uuid".into()],
            passkeys: vec![admin::UserPasskey::default(); passkeys],
            link_expires_at_ms,
            revoked_at_ms,
            ..User::default()
        };
        let response = ListUsersResponse {
            users: vec![
                user("a", 1, None, None),
                user("b", 0, Some(1), None),
                user("c", 0, None, None),
                user("d", 2, None, Some(1)),
            ],
            now_ms: 1,
        };
        let names = HashMap::from([("uuid".to_owned(), "treasury".to_owned())]);
        let text = table(&response, &names);
        let states: Vec<_> = text
            .lines()
            .skip(1)
            .map(|line| line.split("  ").next().unwrap().trim().to_owned())
            .collect();
        assert_eq!(states, ["active", "invited", "link expired", "revoked"]);
        assert!(text.contains("treasury"), "{text}");
    }
}
