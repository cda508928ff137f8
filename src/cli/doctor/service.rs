//! The service as a running orchestrator knows it: the versions of its nodes, and its backup.

use std::{error::Error, io, path::PathBuf};

use covault_actors::operations::GetStatus;
use covault_core::{
    schema::admin::{GetStatusRequest, GetStatusResponse, Node},
    version::{this_version, works_with},
};
use rustix::io::Errno;

use super::{
    super::{
        ago,
        client::ConnectionArgs,
        status::{cannot_sign, is_backed_up, is_counted_long_ago, last_backup, why_nothing_signs},
    },
    Check, within,
};

const ORCHESTRATOR: &str = "orchestrator";
const NODES: &str = "signer nodes";
const VAULTS: &str = "vaults";
const UNCOUNTED: &str = "the vaults were not counted yet";
const LISTS: &str = "who lists whom";
const VERSIONS: &str = "versions";
const BACKUP: &str = "backup of the store";

/// What the orchestrator of this configuration says, where it runs.
pub(super) async fn checks(config: Option<PathBuf>, token_file: Option<PathBuf>) -> Vec<Check> {
    let is_own_token = token_file.is_none();
    let asked = within(async {
        // Not the one of a context: it is this machine that is looked at.
        let asked = async {
            let client = ConnectionArgs::configured(config.as_deref(), token_file)?;
            client.call::<GetStatus>(&GetStatusRequest {}).await
        };
        Ok(asked.await)
    });
    match asked.await {
        Ok(Ok(status)) => found(&status),
        Ok(Err(error)) => {
            let is_nobody = error.chain().any(|cause| is_nobody(cause, is_own_token));
            vec![unasked(&format!("{error:#}"), is_nobody)]
        }
        Err(reason) => vec![unasked(&reason, false)],
    }
}

/// Whether it was never started, or is stopped: nobody listens, or there is not even the token that it makes.
fn is_nobody(cause: &(dyn Error + 'static), is_own_token: bool) -> bool {
    let errno = cause.downcast_ref::<Errno>();
    if errno == Some(&Errno::NOENT) {
        return is_own_token;
    }
    let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(
        kind,
        Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
    )
}

fn unasked(reason: &str, is_nobody: bool) -> Check {
    let found = format!("it was not asked for its nodes and its backup: {reason}");
    // It may be looked at before its first start.
    if is_nobody {
        return Check::ok(ORCHESTRATOR, found);
    }
    let mend =
        "see its log; --token-file names an admin token where serve.admin_file_token is false";
    Check::warn(ORCHESTRATOR, found, mend)
}

fn found(status: &GetStatusResponse) -> Vec<Check> {
    let mut checks = vec![match &status.not_ready {
        None => Check::ok(ORCHESTRATOR, "it runs, and takes requests"),
        Some(reason) => Check::fail(ORCHESTRATOR, reason.as_str(), "covault status says more"),
    }];
    if status.store_problem.is_some() {
        return checks;
    }
    checks.push(nodes(&status.nodes));
    checks.push(vaults(status));
    checks.push(lists(status));
    checks.push(versions(status));
    checks.push(backup(status));
    checks
}

fn nodes(nodes: &[Node]) -> Check {
    let away: Vec<&str> = nodes
        .iter()
        .filter(|node| !node.live)
        .map(|node| node.name.as_str())
        .collect();
    if away.is_empty() {
        return Check::ok(NODES, format!("all of {} announce themselves", nodes.len()));
    }
    Check::warn(
        NODES,
        format!("away: {}", away.join(", ")),
        "start them, and see whether they reach the bus (covault doctor --role signer on their machines)",
    )
}

fn vaults(status: &GetStatusResponse) -> Check {
    if let Some(reason) = why_nothing_signs(status) {
        let found = format!("none can sign, as far as is known: {reason}");
        return Check::fail(VAULTS, found, "covault status says more");
    }
    let Some(vaults) = &status.vaults else {
        return Check::warn(VAULTS, UNCOUNTED, "ask again in a minute");
    };
    let cannot = cannot_sign(vaults);
    if cannot > 0 {
        let named = vaults.cannot_sign.join("; ");
        let more =
            cannot.saturating_sub(u64::try_from(vaults.cannot_sign.len()).unwrap_or(u64::MAX));
        let more = match more {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let mend = "start their signer nodes, or finish their keys (covault status says more)";
        return Check::fail(VAULTS, format!("{cannot} cannot sign: {named}{more}"), mend);
    }
    let found = format!("all of {} can sign", vaults.ready);
    if is_counted_long_ago(status, vaults) {
        let passed_ms = status.now_ms.saturating_sub(vaults.counted_ms);
        let found = format!("{found}, as they were {}", ago(passed_ms));
        return Check::warn(VAULTS, found, "see the logs of the processes with vaults");
    }
    Check::ok(VAULTS, found)
}

/// Whether processes list each other as they must.
fn lists(status: &GetStatusResponse) -> Check {
    let refused = status.nodes_that_refuse.iter();
    let refused = refused.map(|words| format!("{words} (signer.orchestrators)"));
    let strangers = status.vaults.as_ref().map(|vaults| vaults.strangers.iter());
    if status.vaults.is_none() && status.nodes_that_refuse.is_empty() {
        return Check::warn(LISTS, UNCOUNTED, "ask again in a minute");
    }
    let words: Vec<String> = refused
        .chain(strangers.into_iter().flatten().cloned())
        .collect();
    if words.is_empty() {
        return Check::ok(
            LISTS,
            "nodes list the orchestrators, and those that hold shares together each other",
        );
    }
    Check::fail(
        LISTS,
        words.join("; "),
        "add the public key to that setting of that node, and start it again",
    )
}

/// What was never heard has no version.
fn versions(status: &GetStatusResponse) -> Check {
    let of_nodes = status.nodes.iter().filter(|node| !node.version.is_empty());
    let of_nodes = of_nodes.map(|node| (node.name.as_str(), node.version.as_str()));
    let all = of_nodes.chain([
        (ORCHESTRATOR, status.version.as_str()),
        ("this program", this_version()),
    ]);
    let all: Vec<_> = all.collect();
    let words: Vec<_> = all
        .iter()
        .map(|(who, version)| format!("{who} {version}"))
        .collect();
    let words = words.join(", ");
    let first = status.version.as_str();
    if all.iter().all(|(_, version)| *version == first) {
        return Check::ok(VERSIONS, format!("all are {first}"));
    }
    let mend = "upgrade the others, signer nodes first (docs/upgrading.md)";
    match all.iter().all(|(_, version)| works_with(first, version)) {
        true => Check::warn(VERSIONS, format!("they differ: {words}"), mend),
        false => Check::fail(
            VERSIONS,
            format!("some do not work together: {words}"),
            mend,
        ),
    }
}

fn backup(status: &GetStatusResponse) -> Check {
    let found = last_backup(status);
    if is_backed_up(status) {
        return Check::ok(BACKUP, found);
    }
    let mend = "covault backup create, each day (docs/backup-of-the-store.md)";
    Check::warn(BACKUP, found, mend)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::schema::admin::{StoreBackup, VaultCounts};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::{
        super::{super::status::OLD_BACKUP_MS, State},
        *,
    };
    use crate::files;

    fn node(name: &str, version: &str, live: bool) -> Node {
        Node {
            name: name.into(),
            version: version.into(),
            live,
            ..Node::default()
        }
    }

    fn states(status: &GetStatusResponse) -> Vec<(String, State)> {
        let checks = found(status).into_iter();
        checks.map(|check| (check.what, check.state)).collect()
    }

    #[test]
    fn service__should_be_looked_at_as_a_whole() {
        let mut status = GetStatusResponse {
            now_ms: OLD_BACKUP_MS + 1_000,
            version: this_version().into(),
            orchestrators: 1,
            nodes_as_of_ms: Some(OLD_BACKUP_MS),
            nodes: vec![node("vienna", this_version(), true), node("graz", "", true)],
            vaults: Some(VaultCounts {
                counted_ms: OLD_BACKUP_MS,
                ..VaultCounts::default()
            }),
            last_backup: Some(StoreBackup {
                at_ms: 1_000,
                bytes: 1,
            }),
            ..GetStatusResponse::default()
        };
        assert!(states(&status).iter().all(|(_, state)| *state == State::Ok));
        status.now_ms += 1;
        status.nodes.push(node("linz", "0.0.9", false));
        let of = |status: &GetStatusResponse, what: &str| {
            let found = states(status).into_iter().find(|(name, _)| name == what);
            found.map(|(_, state)| state)
        };
        assert_eq!(of(&status, BACKUP), Some(State::Warn));
        status.now_ms = 0;
        assert_eq!(of(&status, BACKUP), Some(State::Ok), "a second ahead");
        if let Some(backup) = &mut status.last_backup {
            backup.at_ms = 365 * 24 * 3600 * 1000;
        }
        assert_eq!(of(&status, BACKUP), Some(State::Warn));
        assert_eq!(of(&status, NODES), Some(State::Warn));
        assert_eq!(of(&status, VERSIONS), Some(State::Warn));
        status.nodes.push(node("wels", "9.0.0", true));
        assert_eq!(of(&status, VERSIONS), Some(State::Fail));
        status.last_backup = None;
        assert_eq!(of(&status, BACKUP), Some(State::Warn));
        status
            .nodes_that_refuse
            .push("wels does not list one".into());
        assert_eq!(of(&status, LISTS), Some(State::Fail));
        status.not_ready = Some("no signer node can be reached".into());
        assert_eq!(of(&status, ORCHESTRATOR), Some(State::Fail));
        status.store_problem = Some("it cannot be reached".into());
        assert_eq!(states(&status).len(), 1);
    }

    #[test]
    fn vaults__should_be_said_to_sign_only_where_that_is_known_of_now() {
        let now_ms = OLD_BACKUP_MS;
        let mut counts = VaultCounts {
            counted_ms: now_ms,
            ready: 12,
            ..VaultCounts::default()
        };
        let status = |counts: &VaultCounts| GetStatusResponse {
            now_ms,
            orchestrators: 1,
            nodes_as_of_ms: Some(now_ms),
            vaults: Some(counts.clone()),
            ..GetStatusResponse::default()
        };
        let said = |status: &GetStatusResponse| {
            let check = vaults(status);
            (check.state, check.found)
        };
        let ok = (State::Ok, "all of 12 can sign".to_owned());
        assert_eq!(said(&status(&counts)), ok);
        let dead = GetStatusResponse {
            orchestrators: 0,
            ..status(&counts)
        };
        let words = "none can sign, as far as is known: no process with vaults is alive";
        assert_eq!(said(&dead), (State::Fail, words.to_owned()));
        let uncounted = GetStatusResponse {
            vaults: None,
            ..status(&counts)
        };
        assert_eq!(said(&uncounted), (State::Warn, UNCOUNTED.to_owned()));
        counts.counted_ms = now_ms - 31 * 60 * 1000;
        let words = "all of 12 can sign, as they were 31 min ago";
        assert_eq!(said(&status(&counts)), (State::Warn, words.to_owned()));
        counts.short = 3;
        counts.cannot_sign = vec!["main: 1 of 2 signers".into()];
        let words = "3 cannot sign: main: 1 of 2 signers; and 2 more";
        assert_eq!(said(&status(&counts)), (State::Fail, words.to_owned()));
    }

    #[tokio::test]
    async fn orchestrator__should_count_as_not_started_only_where_nobody_listens() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().expect("a folder");
        let (file, token) = (
            folder.path().join("serve.toml"),
            folder.path().join("token"),
        );
        files::write_private(&token, b"secret").expect("written");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let text = format!("[serve]\nadmin_listen = \"{address}\"\nadmin_file_token = false\n");
        std::fs::write(&file, text).expect("written");
        let state = async |token: Option<&PathBuf>| {
            let found = checks(Some(file.clone()), token.cloned()).await;
            (found[0].state, found[0].found.clone())
        };
        let (without_token, why) = state(None).await;
        assert_eq!(without_token, State::Warn, "{why}");
        let answers = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a call");
                let _ = stream.read(&mut [0; 4096]).await;
                let text =
                    "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(text.as_bytes()).await;
            }
        });
        let (refused, why) = state(Some(&token)).await;
        assert_eq!(refused, State::Warn, "{why}");
        answers.abort();
        let _ = answers.await;
        let (gone, why) = state(Some(&token)).await;
        assert_eq!(gone, State::Ok, "{why}");
        let text = format!(
            "[serve]\nadmin_listen = \"unix:{}/none\"\n",
            folder.path().display()
        );
        std::fs::write(&file, text).expect("written");
        let (no_socket, why) = state(Some(&token)).await;
        assert_eq!(no_socket, State::Ok, "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn orchestrator_that_never_answers__should_be_told() {
        let silent = within(std::future::pending::<Result<(), String>>());
        let reason = silent.await.expect_err("it never answers");
        assert_eq!(unasked(&reason, false).state, State::Warn);
    }
}
