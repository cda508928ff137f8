//! Where the nodes of the chains are: configuration, and the files with their keys.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use covault_actors::chain_rpc::{
    ChainEndpoints, ChainKey, ChainsConfig, FollowPolicy, NodeAuth, NodeEndpoint, SpeedUpPolicy,
};
use covault_core::networks::Network;
use reqwest::Url;
use secrecy::{ExposeSecret as _, SecretString};

use crate::{
    config::{ChainNodes, ChainSettings},
    files,
};

/// Nodes are asked for the next block no more often, in milliseconds.
const LEAST_POLL_MS: u64 = 50;

/// What configuration names.
///
/// # Errors
/// When a file with a key cannot be read, or holds none.
pub fn from_config(config: &ChainSettings) -> anyhow::Result<ChainsConfig> {
    chains(config)?
        .map(|(chain, nodes)| {
            let endpoints = endpoints(chain, nodes).with_context(|| chain.setting())?;
            Ok((chain, endpoints))
        })
        .collect()
}

/// The settings of the chains with one node, whose word alone ends requests and transactions; empty where each has
/// several.
///
/// # Errors
/// When a chain id is invalid.
pub fn with_one_node(config: &ChainSettings) -> anyhow::Result<String> {
    let single = chains(config)?.filter(|(_, nodes)| nodes.rpc.len() == 1);
    let settings: Vec<String> = single.map(|(chain, _)| chain.setting()).collect();
    Ok(settings.join(", "))
}

/// The chains that configuration names.
fn chains(config: &ChainSettings) -> anyhow::Result<impl Iterator<Item = (ChainKey, &ChainNodes)>> {
    let evm = config
        .evm()?
        .into_iter()
        .map(|(id, nodes)| (ChainKey::evm(id), nodes));
    let named = ChainKey::NAMED
        .iter()
        .filter_map(|(name, chain)| Some((*chain, config.named(name)?)));
    Ok(evm.chain(named))
}

fn endpoints(chain: ChainKey, config: &ChainNodes) -> anyhow::Result<ChainEndpoints> {
    let ChainNodes {
        rpc,
        timeout_ms,
        agree,
        most_price,
        speed_up_after_blocks,
        speed_up_most_fee,
        batch_contract,
        deposits,
        confirmations,
        final_after,
        deposit_poll_ms,
        traces,
        receipts,
        header_files,
        login_files,
    } = config;
    if *deposit_poll_ms < LEAST_POLL_MS {
        bail!("deposit_poll_ms must be at least {LEAST_POLL_MS}");
    }
    let given = |number: u64| (number > 0).then_some(number);
    let follow = FollowPolicy {
        confirmations: given(*confirmations),
        final_after: given(*final_after),
        poll_ms: *deposit_poll_ms,
        traces: *traces,
        receipts: *receipts,
    };
    for (name, files) in [("header_files", header_files), ("login_files", login_files)] {
        if files.len() > rpc.len() {
            bail!("{name} names more files than rpc has addresses");
        }
    }
    // Two that are one would be believed like two.
    let urls: Vec<_> = rpc.iter().filter_map(|url| Url::parse(url).ok()).collect();
    for (index, url) in urls.iter().enumerate() {
        if urls.iter().take(index).any(|other| other == url) {
            bail!(
                "rpc names an address twice: the {}th is one of those before it",
                index + 1
            );
        }
    }
    let nodes = rpc
        .iter()
        .enumerate()
        .map(|(index, url)| {
            Ok(NodeEndpoint {
                url: url.clone(),
                access: access(file(header_files, index), file(login_files, index))?,
            })
        })
        .collect::<anyhow::Result<_>>()?;
    Ok(ChainEndpoints {
        nodes,
        timeout_ms: *timeout_ms,
        agree: *agree,
        most_price: most_price_of(most_price)?,
        speed_up: speed_up_of(chain, *speed_up_after_blocks, speed_up_most_fee)?,
        batch_contract: batch_contract_of(chain, batch_contract)?,
        deposits: deposits.then_some(follow),
    })
}

/// The address of the contract that pays batches, in canonical form.
fn batch_contract_of(chain: ChainKey, text: &str) -> anyhow::Result<Option<String>> {
    if text.is_empty() {
        return Ok(None);
    }
    if chain.network != Network::Evm {
        bail!("batch_contract must be left out: {chain} pays batches without a contract");
    }
    match chain.network.rules().parse_address(text) {
        Ok(address) => Ok(Some(address)),
        Err(problem) => bail!("batch_contract {problem} (docs/batch-payments.md)"),
    }
}

fn most_price_of(text: &str) -> anyhow::Result<Option<u128>> {
    if text.is_empty() {
        return Ok(None);
    }
    let price = text.parse();
    price.map(Some).context(
        "most_price must be a whole number as a text, such as \"500000000000\" (docs/limits.md)",
    )
}

/// The policy of a chain about transactions that no block takes.
fn speed_up_of(
    chain: ChainKey,
    after_blocks: u64,
    most_fee: &str,
) -> anyhow::Result<Option<SpeedUpPolicy>> {
    if after_blocks == 0 {
        return Ok(None);
    }
    if !matches!(
        chain.network,
        Network::Evm | Network::Bitcoin | Network::Aptos
    ) {
        bail!(
            "speed_up_after_blocks must be 0: the service replaces transactions of EVM chains, Bitcoin, Aptos and \
             Movement by itself, not of {chain}"
        );
    }
    let most_fee = most_fee.parse().ok().filter(|most_fee| *most_fee > 0);
    let most_fee = most_fee.context(
        "with speed_up_after_blocks, speed_up_most_fee must be the most that a replacement may cost as fee, in the \
         smallest unit of the coin, as a text such as \"5000000000000000\"",
    )?;
    Ok(Some(SpeedUpPolicy {
        after_blocks,
        most_fee,
    }))
}

/// The file for an address; none where the list ends or is empty.
fn file(files: &[PathBuf], index: usize) -> Option<&Path> {
    files
        .get(index)
        .map(PathBuf::as_path)
        .filter(|path| !path.as_os_str().is_empty())
}

fn access(header: Option<&Path>, login: Option<&Path>) -> anyhow::Result<NodeAuth> {
    match (header, login) {
        (None, None) => Ok(NodeAuth::Open),
        (Some(path), None) => {
            let line = files::read_secret(path).context("header_files")?;
            // What the file holds is not repeated.
            let (name, value) = line.expose_secret().split_once(':').with_context(|| {
                format!("{} must hold one line, \"Name: value\"", path.display())
            })?;
            Ok(NodeAuth::Header {
                name: name.trim().to_owned(),
                value: SecretString::from(value.trim()),
            })
        }
        (None, Some(path)) => {
            let login = files::read_secret(path).context("login_files")?;
            if !login.expose_secret().contains(':') {
                bail!("{} must hold \"user:password\"", path.display());
            }
            Ok(NodeAuth::Login(login))
        }
        (Some(_), Some(_)) => {
            bail!("header_files and login_files both name a file for one address")
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn every_chain_with_a_name__should_be_in_configuration() {
        let (mut config, _) = Config::load_with("test", "").unwrap();
        for (name, chain) in ChainKey::NAMED {
            config.chains.add(name, "http://n").unwrap();
            assert!(
                from_config(&config.chains).unwrap().contains_key(&chain),
                "{name}"
            );
        }
        assert_eq!(
            from_config(&config.chains).unwrap().len(),
            ChainKey::NAMED.len()
        );
    }

    #[test]
    fn endpoints__should_refuse_an_address_that_is_named_twice() {
        let chains = |rpc: &str| {
            let text = format!("[chains.evm.1]\nrpc = [{rpc}]");
            let (config, _) = Config::load_with("test", &text).unwrap();
            from_config(&config.chains).map(|chains| chains.len())
        };
        assert!(chains(r#""http://a:1", "http://b:1", "http://a:2""#).is_ok());
        for twice in [
            r#""http://a", "http://b", "http://a/""#,
            r#""http://A:80", "http://a""#,
        ] {
            let problem = format!("{:#}", chains(twice).unwrap_err());
            assert!(
                problem.contains("chains.evm.1: rpc names an address twice"),
                "{problem}"
            );
        }
    }

    #[test]
    fn with_one_node__should_name_the_chains_whose_only_node_is_believed() {
        let single = |text: &str| {
            let (config, _) = Config::load_with("test", text).unwrap();
            with_one_node(&config.chains).unwrap()
        };
        assert_eq!(single(""), "");
        let two = "rpc = [\"http://a\", \"http://b\"]";
        let one = "rpc = [\"http://a\"]";
        assert_eq!(
            single(&format!("[chains.evm.1]\n{two}\n[chains.ton]\n{two}")),
            ""
        );
        assert_eq!(
            single(&format!(
                "[chains.evm.1]\n{one}\n[chains.evm.10]\n{two}\n[chains.ton]\n{one}"
            )),
            "chains.evm.1, chains.ton"
        );
    }

    #[test]
    fn speed_up__should_be_off_and_need_a_cap() {
        let policy = |chain: &str, more: &str| {
            let text = format!("[chains.{chain}]\nrpc = [\"http://n\"]\n{more}");
            let (config, _) = Config::load_with("test", &text).unwrap();
            let found = from_config(&config.chains).map_err(|error| format!("{error:#}"))?;
            Ok::<_, String>(found.into_values().next().unwrap().speed_up)
        };
        let (after, most) = ("speed_up_after_blocks = 5", "speed_up_most_fee = \"7\"");
        for chain in ["evm.1", "bitcoin", "aptos", "movement", "tron"] {
            assert_eq!(policy(chain, ""), Ok(None));
            // The cap alone switches nothing on.
            assert_eq!(policy(chain, most), Ok(None));
        }
        for chain in ["evm.1", "bitcoin", "aptos", "movement"] {
            let expected = SpeedUpPolicy {
                after_blocks: 5,
                most_fee: 7,
            };
            assert_eq!(
                policy(chain, &format!("{after}\n{most}")),
                Ok(Some(expected))
            );
            for wrong in ["", "0", "-7", "7.5", "much"] {
                let text = format!("{after}\nspeed_up_most_fee = \"{wrong}\"");
                let refusal = policy(chain, &text).unwrap_err();
                assert!(
                    refusal.starts_with(&format!("chains.{chain}: ")),
                    "{refusal}"
                );
                assert!(refusal.contains("speed_up_most_fee must be"), "{refusal}");
            }
            assert!(policy(chain, after).is_err());
        }
        // What ends by itself and cannot be replaced.
        for (chain, name) in [
            ("tron", "Tron"),
            ("solana", "Solana"),
            ("sui", "Sui"),
            ("stellar", "Stellar"),
            ("ton", "TON"),
        ] {
            let refusal = policy(chain, &format!("{after}\n{most}")).unwrap_err();
            assert!(refusal.contains(&format!("not of {name}")), "{refusal}");
        }
    }

    #[test]
    fn access__should_come_from_files_that_are_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            files::write_private(&path, text.as_bytes()).unwrap();
            path
        };
        let header = write("header", "X-API-Key: secret\n");
        let login = write("login", "user:secret\n");
        let bad = write("bad", "secret");
        match access(Some(&header), None).unwrap() {
            NodeAuth::Header { name, value } => {
                assert_eq!(
                    (name.as_str(), value.expose_secret()),
                    ("X-API-Key", "secret")
                );
            }
            _ => panic!("not a header"),
        }
        assert!(matches!(
            access(None, Some(&login)).unwrap(),
            NodeAuth::Login(login) if login.expose_secret() == "user:secret"
        ));
        for refusal in [
            access(Some(&bad), None),
            access(None, Some(&bad)),
            access(Some(&header), Some(&login)),
        ] {
            let refusal = format!("{:?}", refusal.err().unwrap());
            assert!(!refusal.contains("secret"), "{refusal}");
        }
        let nodes = ChainNodes {
            rpc: vec!["http://a".into(), "http://b".into()],
            header_files: vec![PathBuf::new(), header],
            ..ChainNodes::default()
        };
        let found = endpoints(ChainKey::evm(1), &nodes).unwrap().nodes;
        assert!(matches!(found[0].access, NodeAuth::Open));
        assert!(matches!(found[1].access, NodeAuth::Header { .. }));
    }
}
