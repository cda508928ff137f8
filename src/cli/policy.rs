//! `covault policy`: what a signer's policy file says.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use covault_core::{
    amount::{U256, parse_u256},
    fault::Fault,
    ids::VaultId,
    networks::{Network, Payload, WireKind},
    schema::{json, wire},
};
use covault_mpc::policy::{Policy, PolicyRequest, Spending};

use super::print_line;
use crate::{files, wiring};

/// The policy file of a signer node.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Check(CheckPolicyArgs),
}

/// Read a policy file and say in plain words what it allows and limits: for all that the signer
/// signs, for each vault, for each wallet. Asks nobody, and changes nothing.
///
/// With --payload it judges a request by the rules of the file, with the code of the signer, and says
/// "allowed" and what would be counted, or "refused" and why. What was signed in the last 24 hours
/// is known to the signer alone, so that a limit may still be reached, and so is a fee that the
/// payload does not fix: what the least fee makes forbidden is refused here too. The exit code is 0 when
/// the file is good and the request allowed, otherwise 1.
///
/// Examples:
///
///   covault policy check /etc/covault/policy.toml
///
///   covault policy check policy.toml --vault 01890a5d-ac96-774b-bcce-b302099a8057 \
///     --payload '{"evmSendNative": {"chainId": "1", "from": "0x37b5...", "to": "0x78be...",
///     "value": "1000"}}'
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
    /// The vault of the wallet. Without it: a vault that the file does not name.
    #[arg(long, value_name = "UUID", requires = "payload")]
    vault: Option<VaultId>,
    /// The network of the wallet, for a rawMessage: evm, bitcoin, tron, aptos, sui, solana, ton or
    /// stellar. Every other payload says it itself.
    #[arg(long, value_name = "NAME", value_parser = network, requires = "payload")]
    network: Option<Network>,
    /// The most that the transaction can cost in fees, in the smallest unit of the coin. Without it:
    /// what the payload itself fixes; where it does not, the least that there can be.
    #[arg(long, value_name = "AMOUNT", value_parser = amount, requires = "payload")]
    fee: Option<U256>,
    /// A wallet of the same vault, for own_wallets. May be repeated. A signer derives them itself.
    #[arg(long, value_name = "ADDRESS", requires = "payload")]
    own_wallet: Vec<String>,
}

pub fn run(command: Command) -> anyhow::Result<()> {
    let Command::Check(args) = command;
    // Whoever may run this need not be who runs the signer.
    if let Err(error) = files::read_trusted(&args.file) {
        let _ = writeln!(
            std::io::stderr(),
            "warning: a signer that runs as this user does not start with this file: {error:#}"
        );
    }
    let policy = Policy::read(&args.file)
        .map_err(wiring::explain)?
        .with_context(|| format!("the policy file {} is missing", args.file.display()))?;
    match &args.payload {
        None => {
            for line in policy.explain() {
                print_line(line);
            }
            Ok(())
        }
        Some(json) => judge(&policy, &text(json)?, &args),
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

fn judge(policy: &Policy, json: &str, args: &CheckPolicyArgs) -> anyhow::Result<()> {
    let (payload, network) = payload(json, args.network).map_err(wiring::explain)?;
    let own_wallets = args
        .own_wallet
        .iter()
        .map(|address| network.rules().parse_address(address))
        .collect::<Result<BTreeSet<_>, Fault>>()
        .map_err(|fault| wiring::explain(Fault::field("--own-wallet", fault.message())))?;
    let known = args.fee.or_else(|| network.rules().fixed_fee(&payload));
    let asked = PolicyRequest {
        vault: args.vault.unwrap_or(VaultId::from_bytes([0; 16])),
        network,
        payload: &payload,
        fee: known.unwrap_or_default(),
        price: None,
        own_wallets: &own_wallets,
    };
    // No transaction costs nothing, so what no fee makes allowed is never signed.
    let least = PolicyRequest {
        fee: known.unwrap_or(U256::from(payload.is_transaction())),
        ..asked
    };
    match policy
        .evaluate(&least)
        .and_then(|_| policy.evaluate(&asked))
    {
        Ok(spending) => {
            print_line("allowed");
            for line in spending.iter().filter_map(describe_count) {
                print_line(line);
            }
            if known.is_none() {
                print_line(
                    "  the fee is not counted here, as the payload does not fix it: give it with \
                     --fee",
                );
            }
            Ok(())
        }
        Err(fault) => bail!("refused: {}", fault.message()),
    }
}

/// What is counted where there is a limit.
fn describe_count(spending: &Spending) -> Option<String> {
    let Spending {
        counter,
        amount,
        most_per_day,
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

fn amount(text: &str) -> Result<U256, String> {
    parse_u256(text).map_err(|error| error.to_string())
}
