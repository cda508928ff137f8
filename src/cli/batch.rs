//! `covault batch`: batch payments, which a person completes.

mod create;

use anyhow::{Context as _, ensure};
use comfy_table::{Table, presets::NOTHING};
use covault_actors::operations::{
    ApproveBatchPayment, GetBatchPayment, ListBatchPayments, RejectBatchPayment, ResumeBatchPayment,
};
use covault_core::{
    amount::parse_u256,
    networks::{
        Network,
        outflow::{Asset, ChainScope},
    },
    schema::admin::{self, BatchPaymentRow, BatchPaymentSummary},
};

use super::{ago, answer_json, client::ConnectionArgs, hint, print_line};
use crate::{approving::visible, units::in_units};

/// Batch payments.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Create(create::CreateArgs),
    /// List the batch payments of a vault, newest first.
    List {
        /// The UUID of the vault.
        #[arg(long, value_name = "UUID")]
        vault: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// Show a batch payment: who is paid how much, and what became of it.
    Show {
        /// The UUID of the batch payment.
        uuid: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// Approve a batch payment: this makes its signing requests. Each of them still needs the approvals that its
    /// vault and the policies of the signers require.
    Approve {
        /// The UUID of the batch payment.
        uuid: String,
        /// The total that you approve, in the smallest unit: refused when the batch pays another.
        #[arg(long, value_name = "AMOUNT")]
        total: String,
        /// The public key of the client signer that decides about its signing requests, as an OpenSSH line. Default: the
        /// approval rule of the vault.
        #[arg(long, value_name = "KEY")]
        client_signer: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// Try a failed batch payment again. Refused unless it is certain that nothing was paid.
    Resume {
        /// The UUID of the batch payment.
        uuid: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// End a batch payment that nobody has approved, or close a failed one. Irreversible.
    Reject {
        /// The UUID of the batch payment.
        uuid: String,
        /// The reason; everyone who can read the batch sees it.
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(args) => create::run(args).await,
        Command::List {
            vault,
            json,
            orchestrator,
        } => list(vault, json, orchestrator).await,
        Command::Show {
            uuid,
            json,
            orchestrator,
        } => {
            let request = admin::GetBatchPaymentRequest { uuid };
            let client = orchestrator.client()?;
            let found = client.call::<GetBatchPayment>(&request).await?;
            if json {
                return answer_json(&found);
            }
            let batch = found.batch_payment.unwrap_or_default();
            print_line(shown(&batch, &found.rows));
            Ok(())
        }
        Command::Approve {
            uuid,
            total,
            client_signer,
            json,
            orchestrator,
        } => {
            let client = orchestrator.client()?;
            let request = admin::GetBatchPaymentRequest { uuid: uuid.clone() };
            let found = client.call::<GetBatchPayment>(&request).await?;
            let batch = found.batch_payment.context("the service shows no batch")?;
            ensure!(
                batch.total == total,
                "the batch pays {} in all, not {total}; `covault batch show {uuid}` shows its rows",
                batch.total
            );
            let request = admin::ApproveBatchPaymentRequest {
                uuid,
                total: Some(total),
                callback_client_signer_public_key: client_signer,
            };
            let approved = client.call::<ApproveBatchPayment>(&request).await?;
            if json {
                return answer_json(&approved);
            }
            print_line(shown(
                &approved.batch_payment.unwrap_or_default(),
                &found.rows,
            ));
            Ok(())
        }
        Command::Resume {
            uuid,
            json,
            orchestrator,
        } => {
            let request = admin::ResumeBatchPaymentRequest { uuid };
            let client = orchestrator.client()?;
            let resumed = client.call::<ResumeBatchPayment>(&request).await?;
            if json {
                return answer_json(&resumed);
            }
            print_line(shown(&resumed.batch_payment.unwrap_or_default(), &[]));
            Ok(())
        }
        Command::Reject {
            uuid,
            reason,
            json,
            orchestrator,
        } => {
            let request = admin::RejectBatchPaymentRequest { uuid, reason };
            let client = orchestrator.client()?;
            let rejected = client.call::<RejectBatchPayment>(&request).await?;
            if json {
                return answer_json(&rejected);
            }
            print_line(shown(&rejected.batch_payment.unwrap_or_default(), &[]));
            Ok(())
        }
    }
}

async fn list(vault_uuid: String, json: bool, orchestrator: ConnectionArgs) -> anyhow::Result<()> {
    let client = orchestrator.client()?;
    let mut all = admin::ListBatchPaymentsResponse::default();
    loop {
        let request = admin::ListBatchPaymentsRequest {
            vault_uuid: vault_uuid.clone(),
            next: all.next.take(),
        };
        let page = client.call::<ListBatchPayments>(&request).await?;
        all.batch_payments.extend(page.batch_payments);
        (all.next, all.now_ms) = (page.next, page.now_ms);
        if all.next.is_none() {
            break;
        }
    }
    if json {
        return answer_json(&all);
    }
    if all.batch_payments.is_empty() {
        hint("the vault has no batch payments");
        return Ok(());
    }
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_header(["AGE", "BATCH", "NAME", "KIND", "ROWS", "TOTAL", "STATE"]);
    for batch in &all.batch_payments {
        table.add_row([
            &ago(all.now_ms.saturating_sub(batch.created_ms)),
            &batch.uuid,
            &visible(&batch.name),
            &batch.kind,
            &batch.recipients.to_string(),
            &batch.total,
            state(batch),
        ]);
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    print_line(lines.collect::<Vec<_>>().join("\n"));
    Ok(())
}

/// Where a batch stands, in words.
fn state(batch: &BatchPaymentSummary) -> &'static str {
    match (batch.status.as_str(), batch.approved, batch.resumable) {
        ("STATUS_PENDING", false, _) => "waits for approval",
        ("STATUS_PENDING", true, _) => "on its way",
        ("STATUS_SUCCEEDED", ..) => "paid",
        (_, _, true) => "failed, can be resumed",
        (_, _, false) => "failed",
    }
}

/// An amount in coins, in brackets; nothing for a token, whose decimals only its contract knows.
fn in_coins(batch: &BatchPaymentSummary, amount: &str) -> String {
    let network = match batch.kind.get(..3) {
        Some("evm") => Network::Evm,
        Some("btc") => Network::Bitcoin,
        Some("sui") => Network::Sui,
        _ => return String::new(),
    };
    let place = ChainScope {
        network,
        chain_id: (batch.chain_id > 0).then_some(batch.chain_id),
    };
    match (parse_u256(amount), batch.token.is_empty()) {
        (Ok(amount), true) => format!(" ({})", in_units(&Asset::coin(place), amount)),
        _ => String::new(),
    }
}

fn shown(batch: &BatchPaymentSummary, rows: &[BatchPaymentRow]) -> String {
    let asset = match batch.token.as_str() {
        "" => "the coin".to_owned(),
        token => format!("token {token}"),
    };
    let mut lines = vec![
        format!("batch   {}", batch.uuid),
        format!("vault   {}", batch.vault_uuid),
        format!("name    {}", visible(&batch.name)),
        format!("kind    {}", batch.kind),
        format!("from    {}", batch.address),
        format!("asset   {asset}"),
        format!(
            "total   {}{} to {} recipients",
            batch.total,
            in_coins(batch, &batch.total),
            batch.recipients
        ),
        format!("state   {}", state(batch)),
    ];
    if batch.chain_id > 0 {
        lines.push(format!("chain   {}", batch.chain_id));
    }
    if !batch.failed_reason.is_empty() {
        lines.push(format!("reason  {}", visible(&batch.failed_reason)));
    }
    let mut requests = batch.requests.iter();
    if batch.status == "STATUS_FAILED" && requests.any(|made| made.stage == "allowance") {
        lines.push(format!(
            "left    {} may still take the total of the token; approve(contract, 0) takes it back",
            batch.batch_contract
        ));
    }
    if !batch.held_up_by.is_empty() {
        lines.push(format!("waits   {}", visible(&batch.held_up_by)));
    }
    if !batch.made_by.is_empty() {
        let revoked = match batch.maker_revoked {
            true => ", which was REVOKED since: check whether it is still wanted",
            false => "",
        };
        lines.push(format!("made by {}{revoked}", visible(&batch.made_by)));
    }
    if !batch.notes.is_empty() {
        lines.push(format!(
            "notes   {}",
            visible(&batch.notes).replace('\n', " ")
        ));
    }
    if !batch.batch_contract.is_empty() {
        lines.push(format!(
            "through {}, the batch contract that is configured",
            batch.batch_contract
        ));
    }
    for request in &batch.requests {
        lines.push(format!("request {} ({})", request.uuid, request.stage));
    }
    for (number, row) in (1_usize..).zip(rows) {
        let mark = if row.duplicate {
            "  paid above already"
        } else {
            ""
        };
        let notes = visible(&row.notes).replace('\n', " ");
        lines.push(format!(
            "{number:>4}  {}  {}{}{mark}  {notes}",
            row.address,
            row.amount,
            in_coins(batch, &row.amount)
        ));
    }
    let lines = lines.iter().map(|line| line.trim_end());
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn shown__should_mark_who_is_paid_twice_and_what_misleads() {
        let batch = BatchPaymentSummary {
            uuid: "0190".into(),
            name: "sal\u{202e}aries".into(),
            total: "12".into(),
            recipients: 2,
            status: "STATUS_FAILED".into(),
            failed_reason: "no outputs".into(),
            resumable: true,
            ..Default::default()
        };
        let row = |amount: &str, duplicate| BatchPaymentRow {
            address: "0xa".into(),
            amount: amount.into(),
            duplicate,
            ..Default::default()
        };
        let text = shown(&batch, &[row("5", false), row("7", true)]);
        let failed = BatchPaymentSummary {
            requests: vec![admin::BatchStageRequest {
                stage: "allowance".into(),
                ..Default::default()
            }],
            made_by: "erp\u{1b}[2J".into(),
            maker_revoked: true,
            held_up_by: "no\u{202e}de".into(),
            ..batch.clone()
        };
        let told = shown(&failed, &[]);
        for part in [
            "left    ",
            "made by erp\\u{1b}[2J, which was REVOKED",
            "waits   no\\u{202e}de",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(text.contains("sal\\u{202e}aries"), "{text}");
        assert!(text.contains("state   failed, can be resumed"), "{text}");
        assert!(text.contains("reason  no outputs"), "{text}");
        assert!(text.contains("   1  0xa  5\n"), "{text}");
        assert!(text.ends_with("   2  0xa  7  paid above already"), "{text}");
    }
}
