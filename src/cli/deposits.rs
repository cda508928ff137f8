//! `covault deposits`: the blocks that are followed for deposits.

use covault_actors::operations::{ReconcileDeposits, RescanDeposits, RestartDeposits, StopRescan};
use covault_core::schema::admin;

use super::{answer, client::ConnectionArgs};

/// Deposits.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Search final blocks of a chain again, for addresses and tokens that were unknown at the time.
    ///
    /// It runs in the background while no newer block waits. Nothing is announced twice.
    Rescan {
        /// The chain: the id of an EVM chain, or TRON.
        #[arg(long, value_name = "CHAIN")]
        chain: String,
        /// The first block.
        #[arg(long, value_name = "NUMBER", required_unless_present = "stop")]
        from: Option<u64>,
        /// The last block, which must be final.
        #[arg(long, value_name = "NUMBER", required_unless_present = "stop")]
        to: Option<u64>,
        /// End the rescan that is in progress instead, where it is.
        #[arg(long, conflicts_with_all = ["from", "to"])]
        stop: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// Compare the balances of all deposit wallets on a chain with their known transfers now, instead of within the
    /// hour.
    ///
    /// A surplus is announced as a deposit. A deficit is in the log, and in covault_deposits_unexplained.
    Reconcile {
        /// The chain: the id of an EVM chain, or TRON.
        #[arg(long, value_name = "CHAIN")]
        chain: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// Follow a chain again from a block on, after its nodes have replaced blocks that were final.
    ///
    /// Find out first which fork is right. Transfers that were not final are announced as reverted, and those of the
    /// new blocks as usual. What was announced as final stays final: check it yourself.
    Restart {
        /// The chain: the id of an EVM chain, or TRON.
        #[arg(long, value_name = "CHAIN")]
        chain: String,
        /// The block: the first of which the two chains may differ, or one before it; not newer than the newest that was final.
        #[arg(long, value_name = "NUMBER")]
        from: u64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Rescan {
            chain,
            from,
            to,
            stop,
            json,
            orchestrator,
        } => {
            let (network, chain_id) = chain_of(chain);
            if stop {
                let request = admin::StopRescanRequest { network, chain_id };
                let client = orchestrator.client()?;
                let ended = client.call::<StopRescan>(&request).await?;
                return answer(json, &ended, |_| "the rescan has ended");
            }
            let (from, to) = (from.unwrap_or_default(), to.unwrap_or_default());
            let request = admin::RescanDepositsRequest {
                network,
                chain_id,
                from,
                to,
            };
            let client = orchestrator.client()?;
            let begun = client.call::<RescanDeposits>(&request).await?;
            answer(json, &begun, |_| {
                format!("blocks {from} to {to} are being looked through")
            })
        }
        Command::Reconcile {
            chain,
            json,
            orchestrator,
        } => {
            let (network, chain_id) = chain_of(chain);
            let request = admin::ReconcileDepositsRequest { network, chain_id };
            let client = orchestrator.client()?;
            let begun = client.call::<ReconcileDeposits>(&request).await?;
            answer(json, &begun, |_| "the balances are being compared")
        }
        Command::Restart {
            chain,
            from,
            json,
            orchestrator,
        } => {
            let (network, chain_id) = chain_of(chain);
            let request = admin::RestartDepositsRequest {
                network,
                chain_id,
                from,
            };
            let client = orchestrator.client()?;
            let begun = client.call::<RestartDeposits>(&request).await?;
            answer(json, &begun, |_| {
                format!("the chain is followed again from block {from} on")
            })
        }
    }
}

/// The network and chain id of a chain.
fn chain_of(chain: String) -> (String, String) {
    match chain.eq_ignore_ascii_case("TRON") {
        true => ("TRON".to_owned(), String::new()),
        false => ("EVM".to_owned(), chain),
    }
}
