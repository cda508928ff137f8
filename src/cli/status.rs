//! `covault status`: whether the service can sign, and what prevents it.

pub(super) mod report;

use covault_actors::operations::GetStatus;
use covault_core::schema::admin::{
    ChainNodes, GetStatusRequest, GetStatusResponse, Node, VaultCounts,
};

use self::report::{Section, sections, silent_nodes};
use super::{CommandFinding, ago, answer_json, client::ConnectionArgs, one_line, print_line};
use crate::metrics::is_ahead;

/// So many names are printed of each kind.
const MOST_NAMES: usize = 8;
/// What was counted longer ago says nothing of now, in milliseconds.
const OLD_MS: u64 = 30 * 60 * 1000;
/// An older backup is told of, as the alert does (deploy/prometheus/alerts.yaml), in milliseconds.
pub(super) const OLD_BACKUP_MS: u64 = 48 * 3600 * 1000;
/// Nothing is known of nodes that nobody has watched for longer, in milliseconds: several lease times, and clocks may differ.
const UNWATCHED_MS: u64 = 2 * 60 * 1000;
/// From here on nodes refuse orders, in milliseconds.
const CLOCKS_APART_MS: u64 = 60_000;
/// Why a node does not sign that does not count.
const CLIENT_SIGNER: &str = "clientSigner";

/// Print whether the service can sign, and what prevents it: nodes, vaults, requests, chain nodes, store, the last backup and
/// the last failures (calls a running orchestrator).
///
/// Exit code 0: all is well; 5: it signs, but something needs attention; 6: it cannot sign for some vault, or not at all, or
/// nobody watches the signer nodes;
/// 1: it does not answer.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    orchestrator: ConnectionArgs,
}

/// Runs the command.
///
/// # Errors
/// When the orchestrator does not answer, and as exit codes.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.orchestrator.client()?;
    let status = client.call::<GetStatus>(&GetStatusRequest {}).await?;
    if args.json {
        answer_json(&status)?;
    } else {
        lines(&status).iter().for_each(print_line);
    }
    finding(&status).map_or(Ok(()), |finding| Err(finding.into()))
}

/// What is printed of it.
fn lines(status: &GetStatusResponse) -> Vec<String> {
    let sections = sections(status, silent_nodes);
    sections.iter().flat_map(Section::lines).collect()
}

/// Nodes that should sign and do not.
pub(super) fn is_halted(node: &Node) -> bool {
    node.live && node.halted.iter().any(|halt| halt != CLIENT_SIGNER)
}

/// Whether nothing of the node is believed, because of its clock or this one's.
fn is_clock_too_far(node: &Node) -> bool {
    node.halted.iter().any(|halt| halt == "clockTooFar")
}

/// Whether its clock, or the orchestrator's, has to be set.
fn is_clock_off(node: &Node) -> bool {
    let has_said = || node.halted.iter().any(|halt| halt == "clockWrong");
    let is_far = node.clock_skew_ms.unsigned_abs() > CLOCKS_APART_MS;
    is_clock_too_far(node) || node.live && (is_far || has_said())
}

/// Vaults that cannot sign.
pub(super) fn cannot_sign(vaults: &VaultCounts) -> u64 {
    vaults.short.saturating_add(vaults.no_keys)
}

/// Whether the counts say nothing of now.
pub(super) fn is_counted_long_ago(status: &GetStatusResponse, vaults: &VaultCounts) -> bool {
    status.now_ms.saturating_sub(vaults.counted_ms) > OLD_MS
}

fn is_silent(chain: &&ChainNodes) -> bool {
    chain.answering == 0
}

/// Whether the last backup is not too old, nor from a time that has not come: nobody knows how old that one is. Clocks of
/// processes may differ a little.
pub(super) fn is_backed_up(status: &GetStatusResponse) -> bool {
    status.last_backup.as_ref().is_some_and(|backup| {
        let age_ms = status.now_ms.saturating_sub(backup.at_ms);
        age_ms <= OLD_BACKUP_MS && !is_ahead(status.now_ms, backup.at_ms)
    })
}

/// When the last backup was made, in words.
pub(super) fn last_backup(status: &GetStatusResponse) -> String {
    match &status.last_backup {
        None => "none was made (covault backup create)".to_owned(),
        Some(backup) if is_ahead(status.now_ms, backup.at_ms) => {
            "the last one is from a time that has not come: a clock was wrong".to_owned()
        }
        Some(backup) => {
            let bytes = backup.bytes.div_ceil(1024);
            let passed_ms = status.now_ms.saturating_sub(backup.at_ms);
            format!("{}, {bytes} KiB", ago(passed_ms))
        }
    }
}

/// Why what is said of nodes and vaults may have been so long ago.
fn unwatched(status: &GetStatusResponse) -> Option<String> {
    if status.orchestrators == 0 {
        return Some("no process with vaults is alive".to_owned());
    }
    let passed_ms = status
        .nodes_as_of_ms
        .map(|as_of_ms| status.now_ms.saturating_sub(as_of_ms));
    match passed_ms {
        None => Some("no process with vaults watches the signer nodes".to_owned()),
        Some(passed_ms) if passed_ms > UNWATCHED_MS => Some(format!(
            "the process that watches the signer nodes was last there {}",
            ago(passed_ms)
        )),
        Some(_) => None,
    }
}

/// Why no vault can sign, or nobody knows of any; `None`: each stands for itself.
pub(super) fn why_nothing_signs(status: &GetStatusResponse) -> Option<String> {
    let not_ready = status.not_ready.as_deref().map(one_line);
    not_ready.or_else(|| unwatched(status))
}

/// What is not well, if anything.
pub(super) fn finding(status: &GetStatusResponse) -> Option<CommandFinding> {
    if let Some(reason) = why_nothing_signs(status) {
        let sentence = format!("cannot sign: {reason}");
        return Some(CommandFinding::cannot_sign(sentence));
    }
    let cannot = status.vaults.as_ref().map_or(0, cannot_sign);
    if cannot > 0 {
        let vaults = if cannot == 1 { "vault" } else { "vaults" };
        let sentence = format!("{cannot} {vaults} cannot sign");
        return Some(CommandFinding::cannot_sign(sentence));
    }
    let needs_attention =
        |node: &Node| !node.live || is_halted(node) || is_clock_off(node) || !node.bans.is_empty();
    let has_vaults = |it: &VaultCounts| it.ready > 0;
    let is_unsafe = status.vaults.as_ref().is_some_and(has_vaults) && !is_backed_up(status);
    let is_degraded = is_unsafe
        || status.nodes.iter().any(needs_attention)
        || !status.nodes_that_refuse.is_empty()
        || status.vaults.as_ref().is_none_or(|it| {
            is_counted_long_ago(status, it)
                || !it.strangers.is_empty()
                || !it.client_signers_away.is_empty()
        })
        || status.requests.as_ref().is_some_and(|it| it.stuck > 0)
        || status.chains.iter().any(|chain| is_silent(&chain));
    is_degraded.then(|| CommandFinding::degraded("it signs, but something needs attention".into()))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::schema::admin::{
        FailedRequest, OpenRequestCounts, StoreBackup, UnadmittedNode,
    };

    use super::*;

    const NOW_MS: u64 = 10_000_000;

    fn node(name: &str, live: bool, halted: &[&str]) -> Node {
        Node {
            name: name.into(),
            live,
            halted: halted.iter().map(|halt| (*halt).to_owned()).collect(),
            ..Default::default()
        }
    }

    fn well() -> GetStatusResponse {
        GetStatusResponse {
            now_ms: NOW_MS,
            version: "1.2.3".into(),
            orchestrators: 1,
            nodes_as_of_ms: Some(NOW_MS - UNWATCHED_MS),
            nodes: vec![
                node("vienna", true, &[]),
                node("graz", true, &[CLIENT_SIGNER]),
            ],
            vaults: Some(VaultCounts {
                counted_ms: NOW_MS - 2_000,
                ready: 1,
                ..Default::default()
            }),
            requests: Some(OpenRequestCounts::default()),
            log_level: "info".into(),
            configured_log_level: "info".into(),
            last_backup: Some(StoreBackup {
                at_ms: NOW_MS - 7_200_000,
                bytes: 4_097,
            }),
            ..Default::default()
        }
    }

    fn code(status: &GetStatusResponse) -> u8 {
        finding(status).map_or(0, |finding| finding.code())
    }

    #[test]
    fn status__should_say_when_all_is_well() {
        let status = well();
        assert_eq!(code(&status), 0);
        assert_eq!(
            lines(&status),
            [
                "service   ready (Covault 1.2.3, 1 orchestrator)",
                "nodes     2 of 2 live",
                "vaults    1 of 1 can sign",
                "requests  none is open",
                "store     ok",
                "bus       ok",
                "backup    2 h ago, 5 KiB",
                "failures  none",
            ]
        );
    }

    #[test]
    fn status__should_say_what_is_in_the_way_and_how_bad_that_is() {
        let chain = |chain: &str, answering| ChainNodes {
            chain: chain.into(),
            answering,
            nodes: 2,
        };
        let mut status = GetStatusResponse {
            orchestrators: 2,
            nodes: vec![
                node("vienna", false, &[]),
                Node {
                    clock_skew_ms: 61_000,
                    ..node("graz", true, &["clockWrong"])
                },
                Node {
                    clock_skew_ms: -180_020,
                    ..node("linz", false, &["clockTooFar"])
                },
            ],
            want_to_join: vec![UnadmittedNode::default()],
            chains: vec![chain("EVM chain 1", 2), chain("TON", 1)],
            failures: vec![FailedRequest {
                at_ms: NOW_MS - 60_000,
                uuid: "0192".into(),
                vault: "main".into(),
                kind: "evmSendNative".into(),
                class: "insufficient_funds".into(),
                during: "Preparing".into(),
                reason: "too\nlittle".into(),
            }],
            ..well()
        };
        assert_eq!(code(&status), 5);
        status.vaults = Some(VaultCounts {
            ready: 61,
            short: 1,
            no_keys: 1,
            cannot_sign: vec!["short: 1 of 2".into(), "new: no keys".into()],
            no_spare: 60,
            without_spare: vec!["tight".into(); 50],
            strangers: vec!["graz does not list linz (signer.peers)".into()],
            client_signers_away: vec!["phone, for vault tight".into()],
            counted_ms: NOW_MS,
        });
        status.log_level = "off".into();
        status.requests = Some(OpenRequestCounts {
            awaiting: 3,
            followed: 2,
            stuck: 1,
            ..Default::default()
        });
        assert_eq!(code(&status), 6);
        let spare = "          no signer to spare: tight";
        assert_eq!(
            lines(&status),
            [
                "service   ready (Covault 1.2.3, 2 orchestrators)",
                "nodes     1 of 3 live",
                "          away: vienna",
                "          clock to be set: graz (+61.0 s from here)",
                "          clock to be set: linz (-180.0 s from here)",
                "          does not sign: graz",
                "          peers: graz does not list linz (signer.peers)",
                "          want to join (covault node list): 1",
                "vaults    61 of 63 can sign",
                "          client signer that cannot sign: phone, for vault tight",
                "          cannot: short: 1 of 2",
                "          cannot: new: no keys",
                spare,
                spare,
                spare,
                spare,
                spare,
                spare,
                spare,
                spare,
                "          no signer to spare: 52 more",
                "requests  3 wait for people, 2 are sent and not final, 1 make no progress (covault request stuck)",
                "chains    3 of 4 nodes answer",
                "          silent: TON: 1 of 2 answer",
                "store     ok",
                "bus       ok",
                "log       off, until this process ends; its configuration says info",
                "backup    2 h ago, 5 KiB",
                "failures  the last ones:",
                "          60 s ago, vault main, evmSendNative, insufficient_funds (Preparing)",
                "            0192: too little",
            ]
        );
    }

    #[test]
    fn status__should_not_take_what_is_old_or_unknown_for_well() {
        let away = GetStatusResponse {
            not_ready: Some("the store cannot be reached".into()),
            store_problem: Some("the store cannot be reached".into()),
            ..well()
        };
        assert_eq!(code(&away), 6);
        assert!(lines(&away)[0].starts_with("service   not ready: the store cannot be reached"));
        assert!(!lines(&away).iter().any(|line| line.starts_with("vaults")));
        let uncounted = GetStatusResponse {
            vaults: None,
            ..well()
        };
        assert_eq!(code(&uncounted), 5);
        let mut old = well();
        old.now_ms += OLD_MS;
        assert_eq!(code(&old), 6);
        old.nodes_as_of_ms = Some(old.now_ms);
        assert_eq!(code(&old), 5);
        assert!(
            lines(&old)[2].ends_with("as they were 30 min ago"),
            "{:?}",
            lines(&old)
        );
        let dead = GetStatusResponse {
            orchestrators: 0,
            ..well()
        };
        let unwatched = GetStatusResponse {
            nodes_as_of_ms: None,
            ..well()
        };
        for (status, words) in [
            (dead, "no process with vaults is alive"),
            (unwatched, "watches the signer nodes"),
        ] {
            assert_eq!(code(&status), 6);
            assert!(lines(&status)[1].contains(words), "{:?}", lines(&status));
        }
        let silent = GetStatusResponse {
            chains: vec![ChainNodes {
                chain: "TON".into(),
                answering: 0,
                nodes: 2,
            }],
            ..well()
        };
        assert_eq!(code(&silent), 5);
        // Orders are refused, and nodes do not know why: the clock that is wrong is the orchestrator's.
        let mut late = well();
        late.nodes[0].clock_skew_ms = 60_001;
        assert_eq!(code(&late), 5);
        assert_eq!(
            lines(&late)[2],
            "          clock to be set: vienna (+60.0 s from here)"
        );
        let refused = GetStatusResponse {
            nodes_that_refuse: vec!["graz does not list ssh-ed25519 AAAA one".into()],
            ..well()
        };
        assert_eq!(code(&refused), 5);
        let line = "          signer.orchestrators: graz does not list ssh-ed25519 AAAA one";
        assert_eq!(lines(&refused)[2], line);
        let unsaved = GetStatusResponse {
            last_backup: None,
            ..well()
        };
        let mut ahead = well();
        ahead.last_backup = ahead.last_backup.map(|backup| StoreBackup {
            at_ms: NOW_MS + OLD_BACKUP_MS,
            ..backup
        });
        for status in [unsaved, ahead] {
            assert_eq!(code(&status), 5);
            let empty = GetStatusResponse {
                vaults: Some(VaultCounts {
                    counted_ms: NOW_MS,
                    ..Default::default()
                }),
                ..status
            };
            assert_eq!(code(&empty), 0, "there is nothing to lose");
        }
        let mut strangers = well();
        if let Some(vaults) = &mut strangers.vaults {
            vaults
                .strangers
                .push("graz does not list linz (signer.peers)".into());
        }
        assert_eq!(code(&strangers), 5);
    }
}
