//! `covault batch create`: a batch payment of the rows of a file.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use covault_actors::operations::CreateBatchPayment;
use covault_core::{networks::Network, schema::wire};

use crate::{
    approving::visible,
    batch_sheet::{self, PaidAsset, PaymentSheet},
    cli::{answer_json, client::PlatformArgs, print_line},
    units::{coin, in_decimals},
    wiring::explain,
};

/// Make a batch payment of the rows of a CSV file.
///
/// The file begins with the heading recipient,amount,notes: UTF-8, commas or semicolons between cells, a point before
/// decimals, at most 254 rows and 256 KiB. What it pays is printed; a person then completes it (covault batch approve, or
/// the console).
#[derive(Debug, clap::Args)]
pub struct CreateArgs {
    /// The file.
    #[arg(value_name = "FILE.csv")]
    file: PathBuf,
    /// The address of the wallet that pays.
    #[arg(long, value_name = "ADDRESS")]
    from: String,
    /// The network of the wallet.
    #[arg(long, value_parser = ["evm", "bitcoin", "sui"])]
    network: String,
    /// The chain, on EVM.
    #[arg(long, value_name = "ID")]
    chain_id: Option<u64>,
    /// The contract (EVM) or type (Sui) of the token. Default: the chain's coin.
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// How many decimals the amounts of the file have: 18 where 1 is one ether. Default: amounts are in the smallest
    /// unit. Nothing on the chain is asked: look at both amounts that are printed.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u8).range(0..=77))]
    decimals: u8,
    /// The name of the batch.
    #[arg(long, default_value = "", hide_default_value = true)]
    name: String,
    /// Make it although a recipient is paid more than once.
    #[arg(long)]
    duplicates: bool,
    /// Only print what it would pay.
    #[arg(long)]
    dry_run: bool,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: PlatformArgs,
}

pub async fn run(args: CreateArgs) -> anyhow::Result<()> {
    let file = std::fs::read(&args.file);
    let file = file.with_context(|| format!("cannot read {}", args.file.display()))?;
    let mut networks = Network::ALL.into_iter();
    let network = networks.find(|network| network.key() == args.network);
    let paid = PaidAsset {
        network: network.context("unknown network")?,
        chain_id: args.chain_id,
        token: args.token,
    };
    let decimals = args.decimals.into();
    if paid.token.is_none() {
        let (symbol, of_coin) = coin(&paid.asset().place);
        ensure!(
            [0, of_coin].contains(&decimals),
            "--decimals must be {of_coin} for {symbol}, or left out for the smallest unit"
        );
    }
    let sheet = read(&file, &paid, decimals, &args.from, args.duplicates)?;
    eprintln!("{}", in_lines(&sheet, &paid, decimals));
    if args.dry_run {
        return Ok(());
    }
    let kind = paid.kind(&args.from, sheet.recipients()).map_err(explain)?;
    let request = wire::CreateBatchPaymentRequest {
        name: args.name,
        notes: None,
        r#type: Some(kind),
    };
    let client = args.service.client()?;
    let made = client.call::<CreateBatchPayment>(&request).await?;
    if args.json {
        return answer_json(&made);
    }
    print_line(made.batch_payment.unwrap_or_default().uuid);
    Ok(())
}

/// The rows of a file without mistakes.
fn read(
    file: &[u8],
    paid: &PaidAsset,
    decimals: usize,
    from: &str,
    duplicates: bool,
) -> anyhow::Result<PaymentSheet> {
    let mut sheet = batch_sheet::read(file, paid, decimals);
    if sheet.problems.is_empty() {
        let kind = paid.kind(from, sheet.recipients()).map_err(explain)?;
        batch_sheet::check(&mut sheet, &kind).map_err(explain)?;
    }
    let problems = sheet.problems.iter().map(ToString::to_string);
    let problems = problems.collect::<Vec<_>>().join("\n");
    ensure!(problems.is_empty(), "{}", visible(&problems));
    let again = sheet.rows.iter().find_map(|row| Some((row, row.again?)));
    if let (Some((row, first)), false) = (again, duplicates) {
        anyhow::bail!(
            "row {} pays {} once more, as row {first} does: repeat the command with --duplicates if that is intended",
            row.number,
            row.recipient
        );
    }
    Ok(sheet)
}

/// What it pays: each amount as the file has it, and in the smallest unit.
fn in_lines(sheet: &PaymentSheet, paid: &PaidAsset, decimals: usize) -> String {
    let asset = paid.asset();
    let mut lines = Vec::new();
    for row in &sheet.rows {
        let units = row.units.unwrap_or_default();
        let mark = match row.again {
            Some(first) => format!("  paid in row {first} already"),
            None => String::new(),
        };
        lines.push(format!(
            "{:>4}  {}  {} = {units} in the smallest unit{mark}  {}",
            row.number, row.recipient, row.amount, row.notes
        ));
    }
    let total = sheet.total();
    let coins = match paid.token {
        Some(_) => String::new(),
        None => {
            let (symbol, decimals) = coin(&asset.place);
            format!(", which is {} {symbol}", in_decimals(total, decimals))
        }
    };
    lines.push(format!(
        "total {} = {total} in the smallest unit of {asset}{coins}, to {} recipients",
        in_decimals(total, decimals),
        sheet.rows.len()
    ));
    let lines = lines
        .iter()
        .map(|line| visible(line.trim_end()).replace('\n', " "));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    const FROM: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";

    fn ether() -> PaidAsset {
        PaidAsset {
            network: Network::Evm,
            chain_id: Some(1),
            token: None,
        }
    }

    #[test]
    fn create__should_say_what_is_paid_and_refuse_what_is_not_said_to_be_meant() {
        let to = "0x00000000000000000000000000000000000000a1";
        let file = format!("recipient,amount,notes\n{to},0.5,re\u{301}nt\n{to},1,\"two\nlines\"\n");
        let refused = read(file.as_bytes(), &ether(), 18, FROM, false).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.starts_with("row 3 pays 0x"), "{refused}");
        let sheet = read(file.as_bytes(), &ether(), 18, FROM, true).unwrap();
        let text = in_lines(&sheet, &ether(), 18);
        assert!(
            text.contains("0.5 = 500000000000000000 in the smallest unit"),
            "{text}"
        );
        assert!(text.contains("paid in row 2 already  two lines"), "{text}");
        let total = "total 1.5 = 1500000000000000000 in the smallest unit of evm:1, which is 1.5 ETH, to 2 recipients";
        assert!(text.ends_with(total), "{text}");
        // The wrong number of decimals is seen beside the coins.
        let sheet = read(file.replace("0.5", "5").as_bytes(), &ether(), 6, FROM, true).unwrap();
        let text = in_lines(&sheet, &ether(), 6);
        assert!(text.contains("which is 0.000000000006 ETH"), "{text}");
    }

    #[test]
    fn create__should_name_every_mistake_of_the_file() {
        let file = "recipient,amount\n0x1,5\n,0.5\n";
        let refused = read(file.as_bytes(), &ether(), 0, FROM, false).unwrap_err();
        let refused = refused.to_string();
        for part in [
            "row 2, recipient: ",
            "row 3, recipient: is empty",
            "row 3, amount: ",
        ] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
    }
}
