//! `covault address`: checks what the API says about an address, with pinned keys and nothing else.

use std::{collections::BTreeSet, io::Read as _, path::PathBuf};

use anyhow::{Context as _, bail, ensure};
use covault_core::{
    attest::AddressStatement, derive::RootKey, fault::Fault, network::Network, order::NodeId,
    schema::wire,
};
use covault_mpc::{attest::has_signed, identity::parse_openssh_line};
use serde_json::Value;

use super::answer;
use crate::wiring::explain;

/// Addresses.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Verify(Verify),
}

/// Check that an address is a vault's, with the keys of its signer nodes.
///
/// Reads what createWallet, getWalletInfo or sweep/wallets answered, or the `details` of it, and asks
/// nobody. Prints the address, or "refused" and why; of several answers, a line for each. Ends with 0
/// only when at least the threshold of different pinned nodes have signed that the vault has this
/// address, for this reference. Take the pins from the operators of the nodes (`covault node keys`),
/// never from the orchestrator.
#[derive(Debug, clap::Args)]
pub struct Verify {
    /// File with the JSON; without it, standard input.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The nodes: OpenSSH lines ("ssh-ed25519 AAAA..."), or files with such lines.
    #[arg(long = "node", value_name = "KEY", num_args = 1.., required = true)]
    nodes: Vec<String>,
    /// How many of them must have signed: the threshold of the vault's key.
    #[arg(long, value_name = "NUMBER")]
    threshold: usize,
    /// The vault's UUID.
    #[arg(long, value_name = "UUID")]
    vault: String,
    /// The reference that the address was asked for; without it: none.
    #[arg(long = "ref", value_name = "TEXT", default_value = "")]
    reference: String,
    /// The network that it was asked for, e.g. NETWORK_TYPE_EVM. Without it: any.
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// The vault's root public key, in hexadecimal. Without it: any that the nodes sign for.
    #[arg(long, value_name = "HEX")]
    root_key: Option<String>,
    /// The root key's chain code, in hexadecimal: the address is derived again then.
    #[arg(long, value_name = "HEX", requires = "root_key")]
    chain_code: Option<String>,
}

/// What a client knows without the orchestrator.
pub struct Pins {
    /// The nodes.
    pub nodes: BTreeSet<NodeId>,
    /// How many of them must have signed.
    pub threshold: usize,
    /// The vault.
    pub vault: String,
    /// The reference that was asked for.
    pub reference: String,
    /// The network that was asked for, unless any will do.
    pub network: Option<String>,
    /// The vault's root public key in hexadecimal, unless any will do.
    pub root_key: Option<String>,
    /// With it the address is derived again.
    pub chain_code: Option<[u8; 32]>,
}

pub fn run(command: Command) -> anyhow::Result<()> {
    let Command::Verify(args) = command;
    let text = match &args.file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?,
        None => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            text
        }
    };
    let mut nodes = BTreeSet::new();
    for key in &args.nodes {
        for line in super::public_key(key)?.lines() {
            if !line.trim().is_empty() {
                nodes.insert(parse_openssh_line(line).map_err(explain)?);
            }
        }
    }
    let chain_code = match &args.chain_code {
        None => None,
        Some(code) => {
            let bytes = hex::decode(code).context("--chain-code: not hexadecimal")?;
            let bytes = bytes
                .try_into()
                .ok()
                .context("--chain-code: not 32 bytes")?;
            Some(bytes)
        }
    };
    let pins = Pins {
        nodes,
        threshold: args.threshold,
        vault: args.vault,
        reference: args.reference,
        network: args.network,
        root_key: args.root_key,
        chain_code,
    };
    let (mut read, mut refused) = (0_usize, 0_usize);
    for response in serde_json::Deserializer::from_str(&text).into_iter::<Value>() {
        read += 1;
        match verify(&response.context("the input is not JSON")?, &pins) {
            Ok(address) => answer(address),
            Err(problem) => {
                refused += 1;
                answer(format_args!("refused: {problem:#}"));
            }
        }
    }
    ensure!(read > 0, "the input is empty");
    ensure!(refused == 0, "{refused} of {read} addresses are not proven");
    Ok(())
}

/// The address of a response, when it is what the pins demand.
///
/// # Errors
/// What is wrong with it.
pub fn verify(response: &Value, pins: &Pins) -> anyhow::Result<String> {
    ensure!(pins.threshold > 0, "--threshold: must be 1 or more");
    let details = match response.get("details") {
        Some(details) if details.is_object() => details,
        _ => response,
    };
    let proof = &details["addressProof"];
    ensure!(proof.is_object(), "the response has no address proof");
    let text = |of: &Value, field: &str| {
        let value = of[field].as_str().map(str::to_owned);
        value.with_context(|| format!("{field} is missing"))
    };
    let address = text(details, "address")?;
    let (vault, root) = (text(proof, "vaultUuid")?, text(proof, "rootPublicKey")?);
    let (network, reference) = (text(proof, "networkType")?, text(proof, "ref")?);
    ensure!(
        text(proof, "address")? == address,
        "the proof is of another address"
    );
    ensure!(
        vault == pins.vault,
        "the proof is of another vault, {vault}"
    );
    ensure!(
        reference == pins.reference,
        "the proof is of another reference, {reference:?}"
    );
    if let Some(wanted) = &pins.network {
        ensure!(&network == wanted, "the proof is of {network}");
    }
    if let Some(wanted) = &pins.root_key {
        ensure!(
            root.eq_ignore_ascii_case(wanted),
            "the proof is of another root key, {root}"
        );
    }
    let statement = AddressStatement {
        vault: vault.parse().map_err(explain)?,
        root_public_key: hex::decode(&root).context("rootPublicKey: not hexadecimal")?,
        path: text(proof, "keyPath")?.parse().map_err(explain)?,
        network: wire::NetworkType::from_str_name(&network)
            .and_then(Network::from_wire)
            .with_context(|| format!("unknown network {network}"))?,
        address: address.clone(),
        reference,
    };
    check(&statement, pins).map_err(explain)?;
    let signed_text = statement.text();
    let statements = proof["statements"].as_array();
    let mut signed = BTreeSet::new();
    for one in statements.context("statements are missing")? {
        let node = parse_openssh_line(&text(one, "nodeKey")?).map_err(explain)?;
        let signature = base64(&text(one, "signature")?)?;
        if pins.nodes.contains(&node) && has_signed(&node, &signed_text, &signature) {
            signed.insert(node);
        }
    }
    if signed.len() < pins.threshold {
        bail!(
            "only {} of the pinned nodes have signed this address; {} must",
            signed.len(),
            pins.threshold
        );
    }
    Ok(address)
}

fn check(statement: &AddressStatement, pins: &Pins) -> Result<(), Fault> {
    match pins.chain_code {
        None => statement.check_form(),
        Some(chain_code) => statement.verify(&RootKey {
            curve: statement.network.curve(),
            public_key: statement.root_public_key.clone(),
            chain_code,
        }),
    }
}

fn base64(text: &str) -> anyhow::Result<Vec<u8>> {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(text);
    bytes.context("signature: not base64")
}
