//! `covault request`: signing requests, as operators look after them.

use comfy_table::{Table, presets::NOTHING};
use covault_actors::operations::ListStuckRequests;
use covault_core::schema::admin::{self, ListStuckRequestsResponse};

use super::{ago, answer_json, client::ConnectionArgs, print_line};

/// Signing requests.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List what makes no progress: waiting requests and unmined transactions, the oldest first, with the reason.
    /// docs/stuck-transactions.md says what to do.
    Stuck {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    let Command::Stuck { json, orchestrator } = command;
    let request = admin::ListStuckRequestsRequest {};
    let client = orchestrator.client()?;
    let stuck = client.call::<ListStuckRequests>(&request).await?;
    if json {
        return answer_json(&stuck);
    }
    if stuck.requests.is_empty() {
        eprintln!("no request is stuck");
        return Ok(());
    }
    print_line(table(&stuck));
    Ok(())
}

fn table(response: &ListStuckRequestsResponse) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "AGE",
        "REQUEST",
        "NETWORK",
        "ADDRESS",
        "TRANSACTION",
        "REASON",
    ]);
    for request in &response.requests {
        let hash = match request.tx_hash.as_str() {
            "" => "not sent",
            hash => hash,
        };
        table.add_row([
            &ago(response.now_ms.saturating_sub(request.created_ms)),
            &request.uuid,
            &request.network,
            &request.address,
            hash,
            &request.reason,
        ]);
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn table__should_say_what_is_stuck_and_why() {
        let request = |tx_hash: &str, reason: &str| admin::StuckRequest {
            uuid: "0190".into(),
            network: "EVM".into(),
            address: "0xa".into(),
            created_ms: 1_000,
            tx_hash: tx_hash.into(),
            reason: reason.into(),
            ..Default::default()
        };
        let shown = table(&ListStuckRequestsResponse {
            requests: vec![
                request("", "no chain node answered"),
                request("0x12", "no node has it"),
            ],
            now_ms: 61_000,
        });
        let lines: Vec<_> = shown.lines().collect();
        assert!(lines[0].contains("REASON"), "{shown}");
        assert!(
            lines[1].contains("not sent") && lines[1].ends_with("no chain node answered"),
            "{shown}"
        );
        assert!(
            lines[2].contains("0x12") && lines[2].ends_with("no node has it"),
            "{shown}"
        );
    }
}
