//! `covault address`: checks what the API says about an address, with pinned keys and nothing else.

use std::{collections::BTreeSet, io::Read as _, path::PathBuf};

use anyhow::{Context as _, bail, ensure};
use covault_core::{
    attest::AddressStatement, derive::RootKey, fault::Fault, networks::Network, order::NodeId,
    schema::wire,
};
use covault_mpc::attest::has_signed;
use serde::Deserialize;
use serde_json::Value;

use super::print_line;
use crate::wiring::explain;

/// Addresses.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Verify(VerifyAddressArgs),
}

/// Check with the keys of its signer nodes that an address belongs to a vault.
///
/// Reads a response of createWallet, getWalletInfo or sweep/wallets, or its `details`, and needs no network. Prints
/// the address, or "refused" and why; one line per response. The exit code is 0 only when at least the threshold of
/// different pinned nodes have signed that the vault has this address, for this reference, with a key that needs this
/// threshold of exactly the pinned nodes. Take the pins from the operators of the nodes (`covault node keys`), never
/// from the orchestrator.
#[derive(Debug, clap::Args)]
pub struct VerifyAddressArgs {
    /// File with the JSON; without it, standard input.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// A file with pins, as docs/verify-address.mjs reads it, instead of the options below; --ref takes precedence
    /// over the file.
    #[arg(long, value_name = "FILE")]
    pins: Option<PathBuf>,
    /// The nodes, all that hold a share: OpenSSH lines ("ssh-ed25519 AAAA..."), or files with such lines.
    #[arg(long = "node", value_name = "KEY", num_args = 1.., required_unless_present = "pins", conflicts_with = "pins")]
    nodes: Vec<String>,
    /// How many of them must have signed: the threshold of the vault's key.
    #[arg(
        long,
        value_name = "NUMBER",
        required_unless_present = "pins",
        conflicts_with = "pins"
    )]
    threshold: Option<u16>,
    /// The vault's UUID.
    #[arg(
        long,
        value_name = "UUID",
        required_unless_present = "pins",
        conflicts_with = "pins"
    )]
    vault: Option<String>,
    /// The reference that the address was requested with. Default: none.
    #[arg(long = "ref", value_name = "TEXT")]
    reference: Option<String>,
    /// The network that it was asked for, e.g. NETWORK_TYPE_EVM. Without it: any.
    #[arg(long, value_name = "NAME", conflicts_with = "pins")]
    network: Option<String>,
    /// The vault's root public key, in hexadecimal. Without it: any that the nodes sign for.
    #[arg(long, value_name = "HEX", conflicts_with = "pins")]
    root_key: Option<String>,
    /// The root key's chain code, in hexadecimal: the address is derived again then.
    #[arg(
        long,
        value_name = "HEX",
        requires = "root_key",
        conflicts_with = "pins"
    )]
    chain_code: Option<String>,
}

/// Pins as a file has them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct PinsFile {
    /// Those of one generation of shares...
    nodes: Vec<String>,
    threshold: Option<u16>,
    /// ... or of several.
    generations: Vec<PinnedNodes>,
    vault: String,
    #[serde(rename = "ref")]
    reference: String,
    network: Option<String>,
    root_key: Option<String>,
    chain_code: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PinnedNodes {
    nodes: Vec<String>,
    threshold: u16,
}

/// Who holds, or has held, the shares of a vault's key.
pub struct PinnedGeneration {
    /// All holders.
    pub nodes: BTreeSet<NodeId>,
    /// How many of them sign, and must have signed.
    pub threshold: u16,
}

/// What a client knows without the orchestrator.
pub struct AddressPins {
    /// A proof is one of a single generation: hostile nodes of several do not add up.
    pub generations: Vec<PinnedGeneration>,
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
    let pins = AddressPins::of(args)?;
    let (mut read, mut refused) = (0_usize, 0_usize);
    for response in serde_json::Deserializer::from_str(&text).into_iter::<Value>() {
        read += 1;
        match verify(&response.context("the input is not JSON")?, &pins) {
            Ok(address) => print_line(one_line(&address)),
            Err(problem) => {
                refused += 1;
                print_line(format_args!(
                    "refused: {}",
                    one_line(&format!("{problem:#}"))
                ));
            }
        }
    }
    ensure!(read > 0, "the input is empty");
    ensure!(refused == 0, "{refused} of {read} addresses are not proven");
    Ok(())
}

/// A text that may come from the response, so that it cannot look like a line of ours.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            ' '..='~' => line.push(letter),
            _ => line.extend(letter.escape_default()),
        }
    }
    line
}

impl AddressPins {
    fn of(args: VerifyAddressArgs) -> anyhow::Result<Self> {
        let file = match &args.pins {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                serde_json::from_str(&text).with_context(|| path.display().to_string())?
            }
            None => PinsFile {
                nodes: args.nodes,
                threshold: args.threshold,
                generations: Vec::new(),
                vault: args.vault.unwrap_or_default(),
                reference: String::new(),
                network: args.network,
                root_key: args.root_key,
                chain_code: args.chain_code,
            },
        };
        let PinsFile {
            nodes,
            threshold,
            mut generations,
            vault,
            reference,
            network,
            root_key,
            chain_code,
        } = file;
        if let Some(threshold) = threshold {
            generations.push(PinnedNodes { nodes, threshold });
        } else {
            ensure!(nodes.is_empty(), "threshold: must be pinned with the nodes");
        }
        ensure!(
            !generations.is_empty(),
            "nodes and threshold must be pinned"
        );
        ensure!(!vault.is_empty(), "vault: must be pinned");
        ensure!(
            chain_code.is_none() || root_key.is_some(),
            "chainCode: requires rootKey"
        );
        let generations = generations.into_iter().map(PinnedGeneration::of);
        let chain_code = chain_code.map(|code| {
            let bytes = hex::decode(code).context("chain code: not hexadecimal")?;
            let bytes: Option<[u8; 32]> = bytes.try_into().ok();
            bytes.context("chain code: not 32 bytes")
        });
        Ok(Self {
            generations: generations.collect::<anyhow::Result<_>>()?,
            vault,
            reference: args.reference.unwrap_or(reference),
            network,
            root_key,
            chain_code: chain_code.transpose()?,
        })
    }
}

impl PinnedGeneration {
    fn of(pinned: PinnedNodes) -> anyhow::Result<Self> {
        let PinnedNodes {
            nodes: keys,
            threshold,
        } = pinned;
        ensure!(threshold > 0, "threshold: must be 1 or more");
        let mut nodes = BTreeSet::new();
        for key in &keys {
            for line in super::public_key(key)?.lines() {
                if !line.trim().is_empty() {
                    nodes.insert(NodeId::parse_openssh_line(line).map_err(explain)?);
                }
            }
        }
        Ok(Self { nodes, threshold })
    }
}

/// The address of a response, when it is what the pins demand.
///
/// # Errors
/// What is wrong with it.
pub fn verify(response: &Value, pins: &AddressPins) -> anyhow::Result<String> {
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
    let mut statement = AddressStatement {
        vault: vault.parse().map_err(explain)?,
        root_public_key: hex::decode(&root).context("rootPublicKey: not hexadecimal")?,
        threshold: 0,
        holders: Vec::new(),
        path: text(proof, "keyPath")?.parse().map_err(explain)?,
        network: wire::NetworkType::from_str_name(&network)
            .and_then(Network::from_wire)
            .with_context(|| format!("unknown network {network}"))?,
        address: address.clone(),
        reference,
    };
    check(&statement, pins).map_err(explain)?;
    let mut signatures = Vec::new();
    let statements = proof["statements"].as_array();
    for one in statements.context("statements are missing")? {
        let node = NodeId::parse_openssh_line(&text(one, "nodeKey")?).map_err(explain)?;
        signatures.push((node, base64(&text(one, "signature")?)?));
    }
    for PinnedGeneration { nodes, threshold } in &pins.generations {
        statement.threshold = *threshold;
        statement.holders = nodes.iter().copied().collect();
        let signed_text = statement.text();
        let mut signed = BTreeSet::new();
        for (node, signature) in &signatures {
            if nodes.contains(node) && has_signed(node, &signed_text, signature) {
                signed.insert(node);
            }
        }
        if signed.len() >= usize::from(*threshold) {
            return Ok(address);
        }
    }
    bail!(
        "too few of the pinned nodes have signed this address as one of a key that they hold, with the \
         pinned threshold"
    );
}

fn check(statement: &AddressStatement, pins: &AddressPins) -> Result<(), Fault> {
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
