//! Names of vaults and single requests for other pages, the signer nodes, and the person's own account.

use std::collections::HashMap;

use askama::Template;
use covault_actors::{
    operations::{GetSigningRequestDetails, ListNodes},
    users::SignedIn,
};
use covault_core::{
    fault::Fault,
    schema::{admin, wire},
    user::UserRole,
};

use super::{
    ConsoleCall, forbidden,
    response::{PageError, PageResponse},
    sessions,
    text::{Text, Time},
    views::{AccountPage, PasskeyView, SessionView, Shell},
};

/// The names of the vaults that a person sees, by uuid.
///
/// # Errors
/// When the store cannot be read.
pub async fn vault_names(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<HashMap<String, String>, Fault> {
    let caller = call.caller(signed_in);
    let names = call.gateway().pages(&caller).vault_names().await?;
    let names = names.into_iter();
    Ok(names.map(|(id, name)| (id.to_string(), name)).collect())
}

/// A request, as this person may see it.
///
/// # Errors
/// `Invalid uuid` when there is none for this person.
pub async fn details(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    uuid: &str,
) -> Result<wire::SigningRequest, Fault> {
    let request = wire::GetSigningRequestDetailsRequest {
        uuid: uuid.to_owned(),
    };
    let answer = call.operation::<GetSigningRequestDetails>(signed_in, &request);
    answer
        .await?
        .signing_request
        .ok_or_else(Fault::invalid_uuid)
}

#[derive(Template)]
#[template(path = "nodes.html")]
struct NodesPage {
    shell: Shell,
    nodes: Vec<NodeRow>,
    waiting: usize,
    /// When the list was written down; `None`: nobody watches the nodes.
    as_of: Option<Time>,
}

/// A signer node.
struct NodeRow {
    name: Text,
    key: Text,
    live: bool,
    seen: Option<Time>,
    version: Text,
    keys: u32,
    clock: String,
    /// Why it does not sign, in words.
    halted: Vec<String>,
    frozen_vaults: usize,
    bans: usize,
}

/// What a node says of why it does not sign.
pub fn halt_in_words(halt: &str) -> String {
    match halt {
        "runsTwice" => "two processes use its identity: stop one of them",
        "clockWrong" => "its clock is wrong",
        "clockTooFar" => "its clock is too far from the orchestrator's: set it right",
        "claimsMissing" => "entries are missing from its claims file: refresh its vaults",
        "frozen" => "frozen by its administrator",
        "versionTooFar" => {
            "its version and this program's are too far apart: upgrade the older one"
        }
        "clientSigner" => "a client signer: it signs only what names it",
        other => other,
    }
    .to_owned()
}

/// How far a clock is from that of the orchestrator, in milliseconds and exact to a second.
fn clock_in_words(skew_ms: i64) -> String {
    let seconds = skew_ms / 1000;
    match seconds {
        0 => "right".to_owned(),
        ..0 => format!("{} s behind", seconds.unsigned_abs()),
        _ => format!("{seconds} s ahead"),
    }
}

pub async fn nodes(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    if signed_in.user.role != UserRole::Operator {
        return Err(forbidden("only operators see the signer nodes"));
    }
    let found = call
        .look_up::<ListNodes>(&admin::ListNodesRequest {})
        .await?;
    let nodes = found.nodes.into_iter().map(|node| NodeRow {
        name: Text::new(&node.name),
        key: Text::new(&node.public_key),
        live: node.live,
        seen: node.last_seen_ms.map(Time::new),
        version: Text::new(&node.version),
        keys: node.keys,
        clock: clock_in_words(node.clock_skew_ms),
        halted: node.halted.iter().map(|it| halt_in_words(it)).collect(),
        frozen_vaults: node.frozen_vaults.len(),
        bans: node.bans.len(),
    });
    PageResponse::page(&NodesPage {
        shell: Shell::new(signed_in, "nodes"),
        nodes: nodes.collect(),
        waiting: found.want_to_join.len(),
        as_of: found.as_of_ms.map(Time::new),
    })
}

pub async fn account(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    let mut passkeys = Vec::new();
    for enrolled in &signed_in.user.passkeys {
        passkeys.push(PasskeyView {
            name: Text::new(&enrolled.line.passkey.name),
            at: Time::new(enrolled.at_ms),
            line: Text::new(enrolled.line.line()?),
            words: enrolled.line.fingerprint()?.join(" "),
            synced: enrolled.line.passkey.backup_eligible,
        });
    }
    let (accounts, cookie) = (call.gateway().accounts(), sessions::cookie_of(call));
    let known = accounts.sessions(signed_in, &cookie).await?.into_iter();
    PageResponse::page(&AccountPage {
        shell: Shell::new(signed_in, "account"),
        passkeys,
        sessions: known
            .map(|(session, here)| SessionView {
                here,
                began: Time::new(session.created_at_ms),
                seen: Time::new(session.seen_at_ms),
                device: Text::new(&session.device),
                address: Text::new(&session.address),
                passkey: Text::new(&session.passkey),
            })
            .collect(),
    })
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn clock__should_be_said_in_whole_seconds() {
        for (ms, said) in [
            (0, "right"),
            (999, "right"),
            (-999, "right"),
            (1000, "1 s ahead"),
            (-3_600_500, "3600 s behind"),
            (i64::MIN, "9223372036854775 s behind"),
        ] {
            assert_eq!(clock_in_words(ms), said);
        }
    }
}
