//! `covault policy`: what a signer's policy file says.

mod approver;
mod progress;

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use covault_core::{
    amount::{U256, parse_u256},
    fault::Fault,
    ids::VaultId,
    networks::{Network, Payload, WireKind},
    schema::{json, wire},
};
use covault_mpc::policy::{Policy, PolicyRequest, Spending};

use self::progress::FetchedRequest;
use super::{client::PlatformArgs, print_line};
use crate::{files, wiring};

/// The policy file of a signer node.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Check(CheckPolicyArgs),
    Approver(approver::AddApproverArgs),
}

/// Read a policy file and print what it allows and limits: for everything that the signer signs, for each vault, for
/// each wallet. It works offline, and changes nothing.
///
/// With --payload it judges a request by the rules of the file, with the code of the signer, and says "allowed" and
/// what would be counted, or "refused" and why. Only the signer knows what it signed in the last 24 hours and a fee
/// that the payload does not set, so the signer may still refuse. What even the lowest possible fee makes forbidden
/// is refused here too. The exit code is 0 when the file is valid and the request allowed, otherwise 1.
///
/// Examples:
///
///   covault policy check /etc/covault/policy.toml
///
///   covault policy check policy.toml --vault 01890a5d-ac96-774b-bcce-b302099a8057 \
///     --payload '{"evmSendNative": {"chainId": "1", "from": "0x37b5...", "to": "0x78be...",
///     "value": "1000"}}'
///
/// With --request it judges a request that the service has, and says which rules of approval apply to it, who has
/// approved and who is missing. Payload and approvals come from the service; a signer decodes the payload and
/// verifies the approvals itself. The fee is --fee, or the highest approved one.
///
///   covault policy check policy.toml --request 0198f3c2-4ae1-7000-8000-1f0e2d3c4b5a \
///     --url https://covault.example.com --token-file token
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct CheckPolicyArgs {
    /// The policy file (TOML).
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// A request: the JSON body of createSigningRequest, or "@" and a file that holds it, or "-" for
    /// standard input.
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// A signing request of the service.
    #[arg(long, value_name = "UUID", conflicts_with_all = ["payload", "vault", "network"], requires = "url")]
    request: Option<String>,
    /// The service's URL, e.g. http://127.0.0.1:8080
    #[arg(
        long,
        value_name = "URL",
        requires = "token_file",
        requires = "request"
    )]
    url: Option<String>,
    /// The file that holds a token of the platform API; one that may only read is enough.
    #[arg(long, value_name = "FILE", requires = "url")]
    token_file: Option<PathBuf>,
    /// The vault of the wallet. Without it: a vault that the file does not name.
    #[arg(long, value_name = "UUID", requires = "payload")]
    vault: Option<VaultId>,
    #[arg(long, value_name = "NAME", value_parser = network, help = network_help())]
    network: Option<Network>,
    /// The most that the transaction can cost in fees, in the smallest unit of the coin. Default: what the payload
    /// fixes, otherwise the lowest fee that is possible.
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    fee: Option<U256>,
    /// A wallet of the same vault, for own_wallets. May be repeated. A signer derives them itself.
    #[arg(long, value_name = "ADDRESS")]
    own_wallet: Vec<String>,
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    let args = match command {
        Command::Check(args) => args,
        Command::Approver(args) => return approver::add(args),
    };
    // The user who runs this need not be the one that runs the signer.
    if let Err(error) = files::read_trusted(&args.file) {
        let _ = writeln!(
            std::io::stderr(),
            "warning: a signer that runs as this user does not start with this file: {error:#}"
        );
    }
    let policy = Policy::read(&args.file)
        .map_err(wiring::explain)?
        .with_context(|| format!("the policy file {} is missing", args.file.display()))?;
    if let (Some(uuid), Some(url), Some(token_file)) = (&args.request, &args.url, &args.token_file)
    {
        let service = PlatformArgs::new(url.clone(), token_file.clone());
        let stored = FetchedRequest::load(service, uuid).await?;
        return judge(&policy, &stored.asked(&args)?, &stored.approved);
    }
    match &args.payload {
        None => {
            for line in policy.explain() {
                print_line(line);
            }
            Ok(())
        }
        Some(json) => {
            let (payload, network) =
                payload(&text(json)?, args.network).map_err(wiring::explain)?;
            let asked = Asked {
                vault: args.vault.unwrap_or(VaultId::from_bytes([0; 16])),
                fee: args.fee,
                own_wallets: own_wallets(&args, network)?,
                payload: &payload,
                network,
            };
            judge(&policy, &asked, &[])
        }
    }
}

fn text(argument: &str) -> anyhow::Result<String> {
    match (argument, argument.strip_prefix('@')) {
        ("-", _) => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .context("standard input cannot be read")?;
            Ok(text)
        }
        (_, Some(path)) => std::fs::read_to_string(Path::new(path))
            .with_context(|| format!("the payload file {path} cannot be read")),
        (json, None) => Ok(json.to_owned()),
    }
}

/// What is to be judged.
struct Asked<'a> {
    vault: VaultId,
    network: Network,
    payload: &'a Payload,
    /// The most that it can cost in fees, where given.
    fee: Option<U256>,
    own_wallets: BTreeSet<String>,
}

fn own_wallets(args: &CheckPolicyArgs, network: Network) -> anyhow::Result<BTreeSet<String>> {
    args.own_wallet
        .iter()
        .map(|address| network.rules().parse_address(address))
        .collect::<Result<BTreeSet<_>, Fault>>()
        .map_err(|fault| wiring::explain(Fault::field("--own-wallet", fault.message())))
}

/// Judges what is asked, when these people have approved.
fn judge(policy: &Policy, asked: &Asked<'_>, approved: &[String]) -> anyhow::Result<()> {
    let Asked {
        vault,
        network,
        payload,
        fee,
        own_wallets,
    } = asked;
    let known = fee.or_else(|| network.rules().fixed_fee(payload));
    let asked = PolicyRequest {
        vault: *vault,
        network: *network,
        payload,
        fee: U256::ZERO,
        price: None,
        own_price: None,
        own_wallets,
    };
    match policy.foresee(&asked, known) {
        Ok(verdict) => {
            print_line(if verdict.wanted().is_empty() {
                "allowed"
            } else {
                "allowed with approvals"
            });
            for rule in verdict.progress(approved) {
                print_line(format!("  {}", rule.wants));
                for line in progress::lines(&rule, approved) {
                    print_line(format!("    {line}"));
                }
            }
            for line in verdict.spending.iter().filter_map(describe_count) {
                print_line(line);
            }
            if known.is_none() {
                print_line(
                    "  the fee is not counted, because the payload does not set it: give it with --fee",
                );
            }
            Ok(())
        }
        Err(fault) => Err(wiring::explain(fault).context("refused")),
    }
}

/// What is counted where there is a limit.
fn describe_count(spending: &Spending) -> Option<String> {
    let Spending {
        counter,
        amount,
        most_per_day,
        unapproved: _,
    } = spending;
    let most = (*most_per_day)?;
    Some(format!(
        "  counts {amount} of the {most} {} that {} allows in any 24 hours",
        counter.asset, counter.scope
    ))
}

fn payload(json: &str, named: Option<Network>) -> Result<(Payload, Network), Fault> {
    let request: wire::CreateSigningRequestRequest = json::decode(json.as_bytes())?;
    let kind: &WireKind = request
        .r#type
        .as_ref()
        .ok_or_else(|| Fault::field("payload", "contains no payload kind, e.g. evmSendNative"))?;
    let payload = Payload::parse(kind)?;
    let network = payload.payload_kind().network().or(named).ok_or_else(|| {
        Fault::field(
            "--network",
            "is required for a rawMessage: the network of the wallet, e.g. evm",
        )
    })?;
    payload.check_wallet(network)?;
    Ok((payload, network))
}

fn network(text: &str) -> Result<Network, String> {
    let known = || Network::ALL.map(Network::key).join(", ");
    Network::ALL
        .into_iter()
        .find(|network| network.key() == text)
        .ok_or_else(|| format!("must be one of {}", known()))
}

fn network_help() -> String {
    let known = Network::ALL.map(Network::key).join(", ");
    format!(
        "The network of the wallet, for a rawMessage: {known}. Every other payload says it itself"
    )
}

fn amount(text: &str) -> Result<U256, String> {
    parse_u256(text).map_err(|error| error.to_string())
}
