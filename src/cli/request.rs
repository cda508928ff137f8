//! `covault request`: signing requests, as operators look after them.

use std::time::Duration;

use anyhow::Context as _;
use covault_actors::operations::{
    ForgetRefusedTransaction, GetSigningRequestList, ListStuckRequests,
};
use covault_core::{
    moment,
    schema::{
        admin::{self, ListStuckRequestsResponse},
        json,
        wire::{
            self, SigningRequest, get_signing_request_list_request::SortOrder,
            signing_request::Status, transaction_state,
        },
    },
};
use serde_json::Value;

use super::{
    CommandFinding, ago, answer, answer_json,
    approve::{details, visible},
    client::{ConnectionArgs, PlatformConnectionArgs},
    hint, one_line, print_line, table,
};
use crate::wiring::explain;

/// How often a request that is watched is asked for.
const WATCH: Duration = Duration::from_secs(1);
/// Fields with messages of their own that are not the payload.
const OTHER_MESSAGES: [&str; 5] = [
    "evmInputDataDecode",
    "signatures",
    "source",
    "transactionState",
    "approvalSubject",
];

/// Signing requests.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List a vault's requests, the newest first.
    List {
        /// The vault (covault vault list).
        #[arg(long, value_name = "UUID")]
        vault: String,
        /// The page, from 1.
        #[arg(long, value_name = "N", default_value_t = 1)]
        page: i64,
        /// Requests per page, 1 to 100.
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: i64,
        /// The oldest first.
        #[arg(long)]
        oldest: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        service: PlatformConnectionArgs,
    },
    /// Show a request: its status, what it waits for, and its transaction.
    Show {
        /// The request.
        #[arg(value_name = "UUID")]
        uuid: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        service: PlatformConnectionArgs,
    },
    /// Show a request whenever it changes, until it has succeeded or failed. A transaction may then still fail on its
    /// chain.
    ///
    /// Exit code 0: it succeeded; 7: it failed; anything else says nothing about it: ask again before you pay again.
    Watch {
        /// The request.
        #[arg(value_name = "UUID")]
        uuid: String,
        /// Print the request as JSON at its end, and nothing before.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        service: PlatformConnectionArgs,
    },
    /// List requests and transactions that make no progress: waiting requests and unmined transactions, the oldest
    /// first, with the reason.
    /// docs/stuck-transactions.md says what to do.
    Stuck {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// Forget the refused transaction of a request, so that the same payment is signed again. If that transaction comes after
    /// all, both are paid: look its hash up at a node that you trust first. Where several of the same payment were refused, each
    /// is forgotten by itself. All requests that wait for the last one are signed then, each a payment of its own.
    ForgetRefused {
        /// UUID of the request that failed because the chain's nodes refused its transaction.
        uuid: String,
        /// How many older ones of the same payment are not kept, where the reason of what waits names any: one of them may
        /// have come. Look up what has used their nonce or outputs first.
        #[arg(long, value_name = "NUMBER", default_value_t = 0)]
        older: u64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::List {
            vault,
            page,
            limit,
            oldest,
            json,
            service,
        } => {
            let order = if oldest {
                SortOrder::Asc
            } else {
                SortOrder::Desc
            };
            let request = wire::GetSigningRequestListRequest {
                vault_uuid: vault,
                page: Some(page),
                limit: Some(limit),
                sort_order: order.into(),
            };
            let client = service.client()?;
            let list = client.call::<GetSigningRequestList>(&request).await?;
            if json {
                return answer_json(&list);
            }
            if list.signing_requests.is_empty() {
                hint(format_args!("no requests on page {page}"));
                return Ok(());
            }
            print_line(requests(&list.signing_requests));
            Ok(())
        }
        Command::Show {
            uuid,
            json,
            service,
        } => {
            let request = details(&service.client()?, &uuid).await?;
            if json {
                return answer_json(&request);
            }
            lines(&request)?.into_iter().for_each(print_line);
            Ok(())
        }
        Command::Watch {
            uuid,
            json,
            service,
        } => watch(&service.client()?, &uuid, json).await,
        Command::Stuck { json, orchestrator } => {
            let request = admin::ListStuckRequestsRequest {};
            let client = orchestrator.client()?;
            let stuck = client.call::<ListStuckRequests>(&request).await?;
            if json {
                return answer_json(&stuck);
            }
            if stuck.requests.is_empty() {
                hint("no request is stuck");
                return Ok(());
            }
            print_line(stuck_requests(&stuck));
            Ok(())
        }
        Command::ForgetRefused {
            uuid,
            older,
            json,
            orchestrator,
        } => {
            let request = admin::ForgetRefusedTransactionRequest { uuid, older };
            let client = orchestrator.client()?;
            let forgotten = client.call::<ForgetRefusedTransaction>(&request).await?;
            answer(json, &forgotten, |forgotten| {
                format!("forgot {}", forgotten.tx_hashes.join(", "))
            })
        }
    }
}

async fn watch(client: &super::client::AdminClient, uuid: &str, json: bool) -> anyhow::Result<()> {
    let (mut last, mut was_seen, mut is_away) = (String::new(), false, false);
    loop {
        let request = match details(client, uuid).await {
            Ok(request) => request,
            // The request continues whether someone answers here or not.
            Err(error) if was_seen => {
                if !is_away {
                    eprintln!("{}; asking on", one_line(&format!("{error:#}")));
                }
                is_away = true;
                tokio::time::sleep(WATCH).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        (was_seen, is_away) = (true, false);
        let ended = match request.status() {
            Status::Succeeded => Some(Ok(())),
            Status::Failed => {
                let reason = visible(&request.failed_reason);
                let failed =
                    CommandFinding::request_failed(format!("the request failed: {reason}"));
                Some(Err(failed.into()))
            }
            Status::Pending | Status::Unspecified => None,
        };
        let now = state(&request);
        if !json && now != last {
            print_line(format_args!("{}  {now}", visible(&request.uuid)));
            last = now;
        }
        if let Some(ended) = ended {
            if json {
                answer_json(&request)?;
            }
            return ended;
        }
        tokio::time::sleep(WATCH).await;
    }
}

/// Status, and what is waited for.
fn state(request: &SigningRequest) -> String {
    let missing = request.remaining_approval_count;
    let chain = request.transaction_state.as_ref();
    match request.status() {
        Status::Pending if !request.approval_wanted.is_empty() => {
            format!("pending: {}", one_line(&request.approval_wanted))
        }
        Status::Pending if missing > 0 => format!("pending: {missing} more to approve"),
        Status::Pending | Status::Unspecified => "pending".to_owned(),
        Status::Failed => "failed".to_owned(),
        Status::Succeeded => match chain.map(|state| on_chain(state.status())) {
            Some(state) => format!("succeeded: {state}"),
            None => "succeeded".to_owned(),
        },
    }
}

fn on_chain(status: transaction_state::Status) -> &'static str {
    use transaction_state::Status;
    match status {
        Status::Unspecified => "unknown",
        Status::Pending => "in no block yet",
        Status::Mined => "in a block",
        Status::Final => "final",
        Status::Replaced => "replaced by another transaction",
        Status::Dropped => "expired",
        Status::Partial => "in part on the chain",
    }
}

/// Its payload as JSON, and the name of that.
fn payload(request: &SigningRequest) -> anyhow::Result<(String, Value)> {
    let shown: Value = serde_json::from_str(&json::encode(request).map_err(explain)?)?;
    let fields = shown.as_object().into_iter().flatten();
    let mut messages = fields
        .filter(|(name, value)| value.is_object() && !OTHER_MESSAGES.contains(&name.as_str()));
    let (name, payload) = messages.next().context("the request shows no payload")?;
    Ok((name.clone(), payload.clone()))
}

fn requests(list: &[SigningRequest]) -> String {
    let rows = list.iter().map(|request| {
        [
            moment::utc(request.creation_timestamp),
            one_line(&request.uuid),
            payload(request).map_or_else(|_| "-".to_owned(), |(kind, _)| kind),
            state(request),
            match request.tx_hash.as_str() {
                "" => "-".to_owned(),
                hash => one_line(hash),
            },
        ]
    });
    table(
        ["CREATED", "REQUEST", "KIND", "STATUS", "TRANSACTION"],
        rows,
    )
}

/// A request for a person, a line for each thing there is to say.
fn lines(request: &SigningRequest) -> anyhow::Result<Vec<String>> {
    let (kind, payload) = payload(request)?;
    let approvals = request.approvals.iter().map(|it| it.person.as_str());
    let list = |words: Vec<&str>| words.join(", ");
    let fields = [
        ("request", request.uuid.clone()),
        ("kind", kind),
        ("status", state(request)),
        ("reason", request.failed_reason.clone()),
        ("created", moment::utc(request.creation_timestamp)),
        ("vault", request.vault_uuid.clone().unwrap_or_default()),
        ("transaction", request.tx_hash.clone()),
        ("replaces", request.replaces_uuid.clone()),
        ("replaced by", request.replaced_by_uuids.join(", ")),
        ("approved by", list(approvals.collect())),
        ("notes", request.notes.clone().unwrap_or_default()),
    ];
    let set = fields.into_iter().filter(|(_, value)| !value.is_empty());
    let mut lines: Vec<String> = set
        .map(|(name, value)| format!("{name:<12} {}", one_line(&value)))
        .collect();
    lines.push(visible(&format!("{:<12} {payload}", "payload")));
    Ok(lines)
}

fn stuck_requests(response: &ListStuckRequestsResponse) -> String {
    let rows = response.requests.iter().map(|request| {
        let hash = match request.tx_hash.as_str() {
            "" => "not sent",
            hash => hash,
        };
        [
            ago(response.now_ms.saturating_sub(request.created_ms)),
            one_line(&request.uuid),
            one_line(&request.network),
            one_line(&request.address),
            one_line(hash),
            one_line(&request.reason),
        ]
    });
    table(
        [
            "AGE",
            "REQUEST",
            "NETWORK",
            "ADDRESS",
            "TRANSACTION",
            "REASON",
        ],
        rows,
    )
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn stuck_requests__should_say_what_is_stuck_and_why() {
        let request = |tx_hash: &str, reason: &str| admin::StuckRequest {
            uuid: "0190".into(),
            network: "EVM".into(),
            address: "0xa".into(),
            created_ms: 1_000,
            tx_hash: tx_hash.into(),
            reason: reason.into(),
            ..Default::default()
        };
        let shown = stuck_requests(&ListStuckRequestsResponse {
            requests: vec![
                request("", "no chain node answered"),
                request("0x12", "no node\n\u{1b}[2J has it"),
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
            lines[2].contains("0x12") && lines[2].contains("no node ") && !shown.contains('\u{1b}'),
            "{shown}"
        );
    }

    #[test]
    fn requests__should_be_shown_with_kind_and_state_and_nothing_that_moves_a_terminal() {
        let payment = SigningRequest {
            uuid: "0190".into(),
            status: Status::Succeeded.into(),
            creation_timestamp: 1_700_000_000_000,
            tx_hash: "0x12".into(),
            r#type: Some(wire::signing_request::Type::EvmSendNative(
                wire::EvmSendNative::default(),
            )),
            transaction_state: Some(wire::TransactionState {
                status: transaction_state::Status::Mined.into(),
                ..Default::default()
            }),
            notes: Some("for \u{1b}[2Jrent\nstatus       failed".into()),
            ..Default::default()
        };
        let waiting = SigningRequest {
            uuid: "0191".into(),
            status: Status::Pending.into(),
            remaining_approval_count: 2,
            r#type: Some(wire::signing_request::Type::VaultCreation(
                wire::VaultCreation::default(),
            )),
            ..Default::default()
        };
        let shown = requests(&[payment.clone(), waiting]);
        let rows: Vec<_> = shown.lines().collect();
        assert!(rows[0].trim_start().starts_with("CREATED"), "{shown}");
        for words in [
            "2023-11-14 22:13 UTC",
            "evmSendNative",
            "succeeded: in a block",
            "0x12",
        ] {
            assert!(rows[1].contains(words), "{words}: {shown}");
        }
        for words in ["vaultCreation", "pending: 2 more to approve"] {
            assert!(rows[2].contains(words), "{words}: {shown}");
        }
        let shown = lines(&payment).unwrap().join("\n");
        assert!(shown.contains("kind         evmSendNative"), "{shown}");
        assert!(shown.contains("notes        for "), "{shown}");
        assert!(!shown.contains("\nstatus       failed"), "{shown}");
        assert!(
            !shown.contains('\u{1b}') && !shown.contains("reason"),
            "{shown}"
        );
    }
}
