//! `covault deposits`: the blocks that are followed for deposits.

use covault_actors::operations::RescanDeposits;
use covault_core::schema::admin;

use super::{client::ConnectionArgs, print_line};

/// Deposits.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Look through final blocks of a chain again, for addresses and tokens that were not known then.
    ///
    /// It goes on in the background, when no newer block is to be followed. What was told is not told again.
    Rescan {
        /// The chain: the id of an EVM chain, or TRON.
        #[arg(long, value_name = "CHAIN")]
        chain: String,
        /// The first block.
        #[arg(long, value_name = "NUMBER")]
        from: u64,
        /// The last block, which must be final.
        #[arg(long, value_name = "NUMBER")]
        to: u64,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    let Command::Rescan {
        chain,
        from,
        to,
        orchestrator,
    } = command;
    let (network, chain_id) = match chain.eq_ignore_ascii_case("TRON") {
        true => ("TRON", String::new()),
        false => ("EVM", chain),
    };
    let request = admin::RescanDepositsRequest {
        network: network.to_owned(),
        chain_id,
        from,
        to,
    };
    orchestrator
        .client()?
        .call::<RescanDeposits>(&request)
        .await?;
    print_line(format_args!(
        "blocks {from} to {to} are being looked through"
    ));
    Ok(())
}
