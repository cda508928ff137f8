//! `covault approve`, `reject`, `pending`: what people do with requests that wait for them, on their own machines.
//!
//! The service is not believed: what is shown is what was decoded here, of the very bytes that the signature is about.

mod calls;

use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use covault_actors::operations::{GetPendingSigningRequests, GetSigningRequestDetails};
use covault_core::{
    approval::{MAX_LIST, MAX_VALIDITY_MS, SSH_NAMESPACE},
    ids::{RequestId, VaultId},
    networks::evm::{Address, batch::parse_contract},
    port::Clock as _,
    schema::wire,
};

use calls::RejectionSigner;

use super::{
    answer_json,
    client::{AdminClient, PlatformArgs},
    hint, print_line,
};
use crate::{
    adapters::SystemClock,
    approving::{HOUR_MS, USUAL_HOURS, WantedTerms, asked, check_one_coin, gesture},
    wiring::explain,
};

pub(super) use crate::approving::visible;

/// Requests that are listed in one call.
const PENDING_PAGE: i64 = 100;

/// Approve signing requests with your own key.
///
/// Shows what each request does, decoded locally from the bytes that are signed, and asks for confirmation. Then
/// ssh-keygen signs: it asks for the key's passphrase, or for a touch of the security key. One signature covers all
/// requests.
#[derive(Debug, clap::Args)]
pub struct ApproveArgs {
    /// The requests.
    #[arg(value_name = "UUID", required = true)]
    uuids: Vec<String>,
    /// Your private key (ed25519, sk-ed25519, sk-ecdsa), or its .pub file where ssh-agent has it.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The highest network fee that you approve, in the smallest unit of the coin (wei, satoshi, lamport). Default:
    /// what others have approved, and 0 for messages. Required with --yes, but for messages.
    #[arg(long, value_name = "AMOUNT")]
    most_fee: Option<String>,
    /// For how many hours the approval counts; at most 24. Default: as long as what others have approved, else 23.
    #[arg(long, value_name = "HOURS")]
    valid_hours: Option<u64>,
    /// A batch contract whose code you have compared (docs/batch-payments.md), e.g. evm:1:0x and 40 hex digits. Calls of
    /// others are shown as calls that may do anything. Repeatable.
    #[arg(long, value_name = "CONTRACT", value_parser = parse_contract)]
    batch_contract: Vec<(u64, Address)>,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
    /// Print the answers as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: PlatformArgs,
}

/// Reject signing requests: they end for good.
#[derive(Debug, clap::Args)]
pub struct RejectArgs {
    /// The requests. One signature covers up to 100 of one vault.
    #[arg(value_name = "UUID", required = true)]
    uuids: Vec<String>,
    /// Your private key, so that the audit log names you; without it, it names the token.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// First write the signed rejection into this file, for the administrators of signer nodes where the service may not
    /// obey it (covault node veto --rejection). Of up to 100 requests of one vault.
    #[arg(long, value_name = "FILE", requires = "key")]
    out: Option<PathBuf>,
    /// The vault of all the requests. Without it, the service is asked.
    #[arg(long, value_name = "UUID")]
    vault: Option<String>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: PlatformArgs,
}

/// List the signing requests that wait for approval, in order of expiry.
#[derive(Debug, clap::Args)]
pub struct PendingArgs {
    /// Of this vault only.
    #[arg(long, value_name = "UUID")]
    vault: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: PlatformArgs,
}

pub async fn approve(args: ApproveArgs) -> anyhow::Result<()> {
    let client = args.service.client()?;
    let now_ms = SystemClock.now_ms();
    let valid_ms = args
        .valid_hours
        .unwrap_or(USUAL_HOURS)
        .saturating_mul(HOUR_MS);
    ensure!(
        (1..=MAX_VALIDITY_MS).contains(&valid_ms),
        "--valid-hours must be 1 to 24"
    );
    let batch_contracts = args.batch_contract.into_iter().collect();
    let terms = WantedTerms {
        batch_contracts: &batch_contracts,
        most_fee: args.most_fee.as_deref(),
        until_ms: now_ms.saturating_add(valid_ms),
        own_end: args.valid_hours.is_some(),
        confirms: !args.yes,
    };
    let mut all = Vec::new();
    for uuid in &args.uuids {
        let request = details(&client, uuid).await?;
        let asked = asked(&request, terms, now_ms)?;
        eprintln!("{}", asked.shown);
        all.push(asked);
    }
    if args.most_fee.is_some() {
        check_one_coin(&all)?;
    }
    if !args.yes {
        confirm()?;
    }
    let (challenge, list) = gesture(&all).map_err(explain)?;
    let proof = sign(&args.key, &challenge)?;
    let results = calls::approve(&client, &all, &list, &proof, args.json).await?;
    results.end(all.len(), "approved")
}

pub async fn reject(args: RejectArgs) -> anyhow::Result<()> {
    let client = args.service.client()?;
    let mut vaults: BTreeMap<VaultId, Vec<RequestId>> = BTreeMap::new();
    for uuid in &args.uuids {
        let vault = match &args.vault {
            Some(vault) => vault.clone(),
            None => details(&client, uuid).await?.vault_uuid.unwrap_or_default(),
        };
        let vault = vault.parse().map_err(explain)?;
        let id = uuid.parse().map_err(explain)?;
        vaults.entry(vault).or_default().push(id);
    }
    let out = args.out.as_deref();
    if out.is_some() {
        let of_one_call = vaults.len() == 1 && args.uuids.len() <= MAX_LIST;
        ensure!(
            of_one_call,
            "--out takes up to {MAX_LIST} requests of one vault"
        );
    }
    let by = RejectionSigner {
        key: args.key.as_deref(),
        out,
    };
    let results = calls::reject(&client, &vaults, &by, args.json).await?;
    results.end(args.uuids.len(), "rejected")
}

pub async fn pending(args: PendingArgs) -> anyhow::Result<()> {
    let mut request = wire::GetPendingSigningRequestsRequest {
        vault_uuid: args.vault.unwrap_or_default(),
        limit: Some(PENDING_PAGE),
        ..Default::default()
    };
    let client = args.service.client()?;
    let mut answer = wire::GetPendingSigningRequestsResponse::default();
    loop {
        let page = client.call::<GetPendingSigningRequests>(&request).await?;
        answer.signing_requests.extend(page.signing_requests);
        if page.next.is_empty() {
            break;
        }
        request.after = page.next;
    }
    if args.json {
        return answer_json(&answer);
    }
    if answer.signing_requests.is_empty() {
        hint("no request is waiting for approval");
    }
    for request in answer.signing_requests {
        let given: Vec<_> = request
            .approvals
            .iter()
            .map(|it| it.person.as_str())
            .collect();
        let given = match given.join(", ") {
            names if names.is_empty() => "nobody yet".to_owned(),
            names => names,
        };
        print_line(visible(&format!(
            "{}  {} more to approve; approved by {given}  {}",
            request.uuid,
            request.remaining_approval_count,
            request.approval_wanted.replace('\n', "; ")
        )));
    }
    Ok(())
}

pub(super) async fn details(
    client: &AdminClient,
    uuid: &str,
) -> anyhow::Result<wire::SigningRequest> {
    let request = wire::GetSigningRequestDetailsRequest {
        uuid: uuid.to_owned(),
    };
    let answer = client.call::<GetSigningRequestDetails>(&request).await?;
    let request = answer
        .signing_request
        .context("the response has no request")?;
    // What is signed must be about what was asked for.
    ensure!(
        request.uuid.eq_ignore_ascii_case(uuid),
        "the response shows another request"
    );
    Ok(request)
}

pub(super) fn confirm() -> anyhow::Result<()> {
    ensure!(
        std::io::stdin().is_terminal(),
        "standard input is not a terminal: --yes approves what is shown"
    );
    eprint!("Approve? Type yes: ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    ensure!(answer.trim() == "yes", "not approved");
    Ok(())
}

fn sign(key: &Path, challenge: &[u8; 32]) -> anyhow::Result<wire::PersonProof> {
    let signature = ssh_signature(key, challenge)?;
    Ok(wire::PersonProof {
        r#type: Some(wire::person_proof::Type::Ssh(signature)),
    })
}

/// Has ssh-keygen sign.
pub(super) fn ssh_signature(key: &Path, challenge: &[u8; 32]) -> anyhow::Result<String> {
    let mut child = Command::new("ssh-keygen")
        .args(["-q", "-Y", "sign", "-n", SSH_NAMESPACE, "-f"])
        .arg(key)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("ssh-keygen (OpenSSH 8.2 or later) could not be started")?;
    let mut input = child.stdin.take().context("no input of ssh-keygen")?;
    input.write_all(challenge)?;
    drop(input);
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "ssh-keygen did not sign with {}",
        key.display()
    );
    Ok(String::from_utf8(output.stdout)?)
}
