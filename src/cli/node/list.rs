//! `covault node list`.

use comfy_table::{Table, presets::NOTHING};
use covault_actors::operations::ListNodes;
use covault_core::schema::admin::{self, ListNodesResponse, Node};

use super::{super::client::ConnectionArgs, print_line};
use crate::cli::{ago, answer_json, hint};

/// After so long without an orchestrator that watches the nodes it is said, in milliseconds: clocks differ.
const STALE_MS: u64 = 60_000;

pub async fn run(json: bool, target: ConnectionArgs) -> anyhow::Result<()> {
    let request = admin::ListNodesRequest {};
    let nodes = target.client()?.call::<ListNodes>(&request).await?;
    if json {
        return answer_json(&nodes);
    }
    if nodes.nodes.is_empty() && nodes.want_to_join.is_empty() {
        hint("no signer node yet: covault node init --help, covault signer --help");
    }
    if !nodes.nodes.is_empty() {
        print_line(table(&nodes));
    }
    for line in notes(&nodes) {
        print_line(line);
    }
    Ok(())
}

fn table(response: &ListNodesResponse) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "STATE",
        "NAME",
        "LAST SEEN",
        "VERSION",
        "KEYS",
        "CLOCK",
        "PUBLIC KEY",
    ]);
    for node in &response.nodes {
        let seen = node.last_seen_ms.is_some();
        let or_dash = |text: String| if seen { text } else { "-".to_owned() };
        table.add_row([
            state(node).to_owned(),
            node.name.clone(),
            node.last_seen_ms.map_or_else(
                || "never".to_owned(),
                |ms| ago(response.now_ms.saturating_sub(ms)),
            ),
            or_dash(node.version.clone()),
            or_dash(node.keys.to_string()),
            or_dash(skew(node.clock_skew_ms)),
            node.public_key.clone(),
        ]);
    }
    table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect::<Vec<_>>()
        .join("\n")
}

/// What it does now, in a word.
pub(in crate::cli) fn state(node: &Node) -> &'static str {
    match node.live {
        false if is_clock_too_far(node) => "clock off",
        false => "offline",
        true if node.halted.is_empty() => "live",
        true if node.halted.iter().all(|halt| halt == "clientSigner") => "client signer",
        true if node.halted.iter().any(|halt| halt == "frozen") => "frozen",
        true => "halted",
    }
}

/// Whether it is not live for its clock alone.
fn is_clock_too_far(node: &Node) -> bool {
    node.halted.iter().any(|halt| halt == "clockTooFar")
}

/// What to do about a node that does not sign.
fn advice(halted: &str) -> &'static str {
    match halted {
        "clockWrong" => {
            "does not sign: its clock was moved, or differs from those of its peers. Correct it."
        }
        "claimsMissing" => {
            "does not sign with some shares: claims are missing from its claims file, an older copy of which was \
             restored. Find out why, then refresh its vaults (covault vault refresh)."
        }
        "runsTwice" => {
            "runs twice: two processes have its identity (a copied folder, or a cloned machine), and \
             sign nothing. Stop one of them, start the other again, then refresh its vaults (covault \
             vault refresh)."
        }
        "frozen" => {
            "signs nothing: its operator has frozen it (covault node freeze), and thaws it on its machine \
             with covault node thaw."
        }
        "clientSigner" => {
            "is a client signer: it signs what names it as callbackClientSignerPublicKey, and nothing else."
        }
        "versionTooFar" => {
            "is asked for nothing: its version and that of the orchestrator are too far apart. Upgrade the older one \
             (docs/upgrading.md)."
        }
        "clockTooFar" => {
            "is asked for nothing: its clock is too far from the orchestrator's, or its messages arrive so late. Set \
             the clock that is wrong."
        }
        _ => "does not sign, for a reason that this version does not know.",
    }
}

/// What does not fit into the table: why nodes do not sign, bans, and nodes that want to join.
fn notes(response: &ListNodesResponse) -> Vec<String> {
    let name = |line: &str| {
        let key = |line: &str| line.split(' ').nth(1).map(str::to_owned);
        let known = |node: &&Node| key(&node.public_key) == key(line);
        match response.nodes.iter().find(known) {
            Some(node) => node.name.clone(),
            None => line.to_owned(),
        }
    };
    let mut lines = Vec::new();
    for node in &response.nodes {
        for halted in &node.halted {
            lines.push(format!("{} {}", node.name, advice(halted)));
        }
        for vault in &node.frozen_vaults {
            lines.push(format!(
                "{} signs nothing for the vault {vault}: its operator has frozen it (covault node thaw \
                 --vault {vault}, on its machine).",
                node.name
            ));
        }
        for ban in &node.bans {
            lines.push(format!(
                "{} has banned {} from the key {}..: it cheated in signing. Find out why, and replace it.",
                node.name,
                name(&ban.peer),
                ban.key
            ));
        }
    }
    let age_ms = response
        .as_of_ms
        .map(|ms| response.now_ms.saturating_sub(ms));
    if age_ms.is_none_or(|age_ms| age_ms > STALE_MS) {
        let last = age_ms.map_or_else(|| "long ago".to_owned(), ago);
        lines.push(format!(
            "No orchestrator watches the nodes: this is how they were when one last did, {last}."
        ));
    }
    if !response.want_to_join.is_empty() {
        lines.push(
            "\nThese nodes are not admitted, and are ignored (anyone can announce any name: compare the key):"
                .to_owned(),
        );
    }
    for node in &response.want_to_join {
        lines.push(format!(
            "  covault node admit '{}'   (calls itself {:?})",
            node.public_key, node.name
        ));
    }
    lines
}

/// How far its clock is off: "+1.5 s", and "ok" for what heartbeats cannot tell from their own delay.
pub(in crate::cli) fn skew(ms: i64) -> String {
    let tenths = ms / 100;
    match tenths {
        -9..=9 => "ok".to_owned(),
        _ => format!(
            "{}{}.{} s",
            if tenths < 0 { "-" } else { "+" },
            tenths.unsigned_abs() / 10,
            tenths.unsigned_abs() % 10
        ),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;
    use covault_core::schema::admin::{Ban, UnadmittedNode};

    fn nodes() -> ListNodesResponse {
        let node = |name: &str, key: &str| Node {
            public_key: format!("ssh-ed25519 {key}"),
            name: name.to_owned(),
            live: true,
            last_seen_ms: Some(99_000),
            version: "0.1.0".into(),
            keys: 2,
            bans: Vec::new(),
            clock_skew_ms: 0,
            halted: Vec::new(),
            frozen_vaults: Vec::new(),
        };
        ListNodesResponse {
            nodes: vec![
                Node {
                    bans: vec![Ban {
                        key: "02ab".into(),
                        peer: "ssh-ed25519 BBBB".into(),
                    }],
                    clock_skew_ms: -61_530,
                    halted: vec!["runsTwice".into(), "claimsMissing".into()],
                    ..node("vienna", "AAAA")
                },
                Node {
                    live: false,
                    last_seen_ms: None,
                    ..node("graz", "BBBB")
                },
                Node {
                    live: false,
                    clock_skew_ms: 180_012,
                    halted: vec!["clockTooFar".into()],
                    ..node("linz", "DDDD")
                },
            ],
            want_to_join: vec![UnadmittedNode {
                public_key: "ssh-ed25519 CCCC".into(),
                name: "new".into(),
            }],
            now_ms: 100_000,
            as_of_ms: Some(99_900),
        }
    }

    #[test]
    fn list__should_show_state_clock_bans_and_who_wants_to_join() {
        let nodes = nodes();
        let table = table(&nodes);
        let rows: Vec<&str> = table.lines().collect();
        assert_eq!(rows.len(), 4, "{table}");
        for word in ["halted", "vienna", "1 s ago", "0.1.0", "-61.5 s", "AAAA"] {
            assert!(rows[1].contains(word), "{table}");
        }
        for word in ["offline", "graz", "never", "BBBB"] {
            assert!(rows[2].contains(word), "{table}");
        }
        for word in ["clock off", "linz", "+180.0 s", "DDDD"] {
            assert!(rows[3].contains(word), "{table}");
        }
        let told = notes(&nodes).join("\n");
        assert!(told.contains("linz is asked for nothing: its clock is too far"));
        assert!(!told.contains("No orchestrator"), "{told}");
        for (as_of_ms, last) in [(Some(80_000), "2 min ago"), (None, "long ago")] {
            let stale = ListNodesResponse {
                now_ms: 200_000,
                as_of_ms,
                ..nodes.clone()
            };
            let told = notes(&stale).join("\n");
            assert!(told.contains(&format!("last did, {last}.")), "{told}");
        }
        let notes = told;
        for halted in ["vienna runs twice", "vienna does not sign with some shares"] {
            assert!(notes.contains(halted), "{notes}");
        }
        assert!(
            notes.contains("vienna has banned graz from the key 02ab"),
            "{notes}"
        );
        assert!(
            notes.contains("covault node admit 'ssh-ed25519 CCCC'   (calls itself \"new\")"),
            "{notes}"
        );
    }

    #[test]
    fn times__should_be_short() {
        for (ms, text) in [
            (999, "0 s ago"),
            (119_000, "119 s ago"),
            (120_000, "2 min ago"),
            (7_200_000, "2 h ago"),
            (172_800_000, "2 days ago"),
        ] {
            assert_eq!(ago(ms), text);
        }
        assert_eq!(
            (skew(999), skew(-1_250), skew(60_000)),
            ("ok".into(), "-1.2 s".into(), "+60.0 s".into())
        );
    }
}
