//! `covault status`: whether the service can sign, and what prevents it.

use covault_actors::operations::{ListNodes, ListStuckRequests, ListVaults};
use covault_core::schema::admin::{
    ListNodesRequest, ListNodesResponse, ListStuckRequestsRequest, ListVaultsRequest, Node, Vault,
};
use serde::Serialize;

use super::{CommandFinding, client::ConnectionArgs, print_line};

/// So many vaults are looked at; of more it is said that there are more.
const MOST_VAULTS: usize = 10_000;
/// So many names are printed of each kind.
const MOST_NAMES: usize = 8;

/// Print whether the service can sign, and what prevents it: nodes, vaults, requests (calls a running orchestrator).
///
/// Exit code 0: all is well; 5: it signs, but something needs attention; 6: it cannot sign for some vault, or not at all;
/// 1: it does not answer.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    orchestrator: ConnectionArgs,
}

/// What there is to say.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceStatus {
    /// Why it takes no work; nothing where it does.
    not_ready: Option<String>,
    nodes: usize,
    nodes_away: Vec<String>,
    nodes_halted: Vec<String>,
    /// Nodes that have caught a peer cheating.
    nodes_with_bans: Vec<String>,
    nodes_waiting: usize,
    vaults: usize,
    more_vaults: bool,
    /// With the reason.
    vaults_that_cannot_sign: Vec<String>,
    /// One signer fewer, and they cannot sign.
    vaults_without_spare: Vec<String>,
    requests_stuck: usize,
}

/// Runs the command.
///
/// # Errors
/// When the orchestrator does not answer, and as exit codes.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.orchestrator.client()?;
    let mut status = ServiceStatus {
        not_ready: client.not_ready().await?,
        ..ServiceStatus::default()
    };
    let nodes = client.call::<ListNodes>(&ListNodesRequest {}).await?;
    status.note_nodes(&nodes);
    let mut after = None;
    loop {
        let request = ListVaultsRequest {
            after: after.take(),
        };
        let page = client.call::<ListVaults>(&request).await?.vaults;
        let Some(last) = page.last() else { break };
        after = Some(last.name.clone());
        page.iter().for_each(|vault| status.note_vault(vault));
        if status.vaults >= MOST_VAULTS {
            status.more_vaults = true;
            break;
        }
    }
    let stuck = ListStuckRequestsRequest {};
    let stuck = client.call::<ListStuckRequests>(&stuck).await?;
    status.requests_stuck = stuck.requests.len();
    if args.json {
        print_line(serde_json::to_string_pretty(&status)?);
    } else {
        status.lines().iter().for_each(print_line);
    }
    status
        .finding()
        .map_or(Ok(()), |finding| Err(finding.into()))
}

impl ServiceStatus {
    fn note_nodes(&mut self, response: &ListNodesResponse) {
        self.nodes = response.nodes.len();
        self.nodes_waiting = response.want_to_join.len();
        let names = |is: &dyn Fn(&Node) -> bool| -> Vec<String> {
            let those = response.nodes.iter().filter(|node| is(node));
            those.map(|node| node.name.clone()).collect()
        };
        self.nodes_away = names(&|node| !node.live);
        self.nodes_halted =
            names(&|node| node.live && node.halted.iter().any(|halt| halt != "clientSigner"));
        self.nodes_with_bans = names(&|node| !node.bans.is_empty());
    }

    fn note_vault(&mut self, vault: &Vault) {
        self.vaults += 1;
        let name = &vault.name;
        if !vault.ready {
            let reason = vault.failed_reason.as_ref().or(vault.problem.as_ref());
            let reason = reason.map_or("its keys are being generated", String::as_str);
            self.vaults_that_cannot_sign
                .push(format!("{name}: {reason}"));
            return;
        }
        let shares = vault.keys.iter().filter_map(|key| {
            let shares = key.shares.as_ref()?;
            Some((&key.scheme, shares.available, shares.threshold))
        });
        let mut least_spare = u32::MAX;
        for (scheme, available, threshold) in shares {
            if available < threshold {
                self.vaults_that_cannot_sign.push(format!(
                    "{name}: {available} of {threshold} signers that {scheme} needs are available"
                ));
                return;
            }
            least_spare = least_spare.min(available - threshold);
        }
        if least_spare == 0 {
            self.vaults_without_spare.push(name.clone());
        }
    }

    fn finding(&self) -> Option<CommandFinding> {
        if let Some(reason) = &self.not_ready {
            return Some(CommandFinding::cannot_sign(format!(
                "cannot sign: {reason}"
            )));
        }
        let cannot = self.vaults_that_cannot_sign.len();
        if cannot > 0 {
            let vaults = if cannot == 1 { "vault" } else { "vaults" };
            let sentence = format!("{cannot} {vaults} cannot sign");
            return Some(CommandFinding::cannot_sign(sentence));
        }
        let needs_somebody = !self.nodes_away.is_empty()
            || !self.nodes_halted.is_empty()
            || !self.nodes_with_bans.is_empty()
            || self.requests_stuck > 0;
        needs_somebody
            .then(|| CommandFinding::degraded("it signs, but something needs attention".into()))
    }

    fn lines(&self) -> Vec<String> {
        let service = match &self.not_ready {
            None => "ready".to_owned(),
            Some(reason) => format!("not ready: {reason}"),
        };
        let mut lines = vec![format!("service   {service}")];
        let live = self.nodes - self.nodes_away.len();
        lines.push(format!("nodes     {live} of {} live", self.nodes));
        add(&mut lines, "away", &self.nodes_away);
        add(&mut lines, "does not sign", &self.nodes_halted);
        add(
            &mut lines,
            "has banned a peer that cheated",
            &self.nodes_with_bans,
        );
        if self.nodes_waiting > 0 {
            add(
                &mut lines,
                "want to join (covault node list)",
                &[self.nodes_waiting.to_string()],
            );
        }
        let sign = self.vaults - self.vaults_that_cannot_sign.len();
        let more = if self.more_vaults { "the first " } else { "" };
        lines.push(format!(
            "vaults    {sign} of {more}{} can sign",
            self.vaults
        ));
        add(&mut lines, "cannot", &self.vaults_that_cannot_sign);
        add(&mut lines, "no signer to spare", &self.vaults_without_spare);
        let stuck = match self.requests_stuck {
            0 => "none makes no progress".to_owned(),
            count => format!("{count} make no progress: covault request stuck"),
        };
        lines.push(format!("requests  {stuck}"));
        lines
    }
}

/// A line for each name, as far as they are few.
fn add(lines: &mut Vec<String>, what: &str, names: &[String]) {
    let shown = names.iter().take(MOST_NAMES);
    lines.extend(shown.map(|name| format!("          {what}: {name}")));
    if names.len() > MOST_NAMES {
        let more = names.len() - MOST_NAMES;
        lines.push(format!("          {what}: {more} more"));
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::schema::admin::{Key, Shares, UnadmittedNode};

    use super::*;

    fn node(name: &str, live: bool, halted: &[&str]) -> Node {
        Node {
            name: name.into(),
            live,
            halted: halted.iter().map(|halt| (*halt).to_owned()).collect(),
            ..Default::default()
        }
    }

    fn vault(name: &str, available: &[u32]) -> Vault {
        let key = |available: &u32| Key {
            scheme: "dkls23".into(),
            shares: Some(Shares {
                threshold: 2,
                available: *available,
                ..Default::default()
            }),
            ..Default::default()
        };
        Vault {
            name: name.into(),
            ready: !available.is_empty(),
            keys: available.iter().map(key).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn status__should_say_what_is_in_the_way_and_how_bad_that_is() {
        let mut status = ServiceStatus::default();
        let code = |status: &ServiceStatus| status.finding().map_or(0, |finding| finding.code());
        status.note_nodes(&ListNodesResponse {
            nodes: vec![
                node("vienna", true, &[]),
                node("graz", true, &["clientSigner"]),
            ],
            ..Default::default()
        });
        status.note_vault(&vault("main", &[3, 3]));
        assert_eq!(code(&status), 0);
        assert_eq!(
            status.lines(),
            [
                "service   ready",
                "nodes     2 of 2 live",
                "vaults    1 of 1 can sign",
                "requests  none makes no progress",
            ]
        );

        status.note_nodes(&ListNodesResponse {
            nodes: vec![
                node("vienna", false, &[]),
                node("graz", true, &["clockWrong"]),
            ],
            want_to_join: vec![UnadmittedNode::default()],
            ..Default::default()
        });
        status.note_vault(&vault("tight", &[3, 2]));
        assert_eq!(code(&status), 5);
        status.note_vault(&vault("short", &[3, 1]));
        status.note_vault(&vault("new", &[]));
        status.requests_stuck = 4;
        assert_eq!(code(&status), 6);
        assert_eq!(
            status.lines(),
            [
                "service   ready",
                "nodes     1 of 2 live",
                "          away: vienna",
                "          does not sign: graz",
                "          want to join (covault node list): 1",
                "vaults    2 of 4 can sign",
                "          cannot: short: 1 of 2 signers that dkls23 needs are available",
                "          cannot: new: its keys are being generated",
                "          no signer to spare: tight",
                "requests  4 make no progress: covault request stuck",
            ]
        );
        let away = ServiceStatus {
            not_ready: Some("the bus is away".into()),
            ..ServiceStatus::default()
        };
        assert_eq!(code(&away), 6);
        assert_eq!(away.lines()[0], "service   not ready: the bus is away");
    }
}
