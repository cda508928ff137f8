//! `covault chain`: the chains of a configuration.

use std::path::PathBuf;

use serde_json::json;

use super::{
    CommandFinding,
    doctor::neighbours::{self, ChainNodeState},
    hint, one_line, print_line, table,
};
use crate::config::Config;

/// Chains.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the chains that have nodes, and ask each node: whether it answers, for this chain, and where it is. At most
    /// five seconds.
    ///
    /// Exit code 0: all nodes answer; 5: at least one node of each chain answers; 6: no node of some chain answers.
    List {
        /// The orchestrator's configuration file. Without it: the defaults, and COVAULT_ variables.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    let Command::List { config, json } = command;
    let (config, _) = Config::load(config.as_deref())?;
    let nodes = neighbours::ask_nodes(&config).await?;
    if json {
        let nodes: Vec<_> = nodes.iter().map(as_json).collect();
        print_line(format_args!("{:#}", json!({"nodes": nodes})));
    } else if nodes.is_empty() {
        hint("no chain has nodes: name some in [chains] of the configuration");
    } else {
        print_line(shown(&nodes));
    }
    finding(&nodes).map_or(Ok(()), |finding| Err(finding.into()))
}

fn as_json(node: &ChainNodeState) -> serde_json::Value {
    json!({
        "chain": node.chain.to_string(),
        "setting": node.chain.setting(),
        "chainId": node.chain.chain_id,
        "node": node.number,
        "host": node.host,
        "answers": node.answer.is_ok(),
        // It may be looked at on a terminal.
        "said": one_line(node.answer.as_ref().unwrap_or_else(|error| error)),
    })
}

fn shown(nodes: &[ChainNodeState]) -> String {
    let rows = nodes.iter().map(|node| {
        let (state, said) = match &node.answer {
            Ok(said) => ("ok", said),
            Err(error) => ("FAIL", error),
        };
        [
            node.chain.to_string(),
            node.number.to_string(),
            one_line(&node.host),
            state.to_owned(),
            one_line(said),
        ]
    });
    table(["CHAIN", "NODE", "HOST", "STATE", "ANSWER"], rows)
}

fn finding(nodes: &[ChainNodeState]) -> Option<CommandFinding> {
    let silent = nodes.iter().filter(|node| node.answer.is_err());
    let count = silent.clone().count();
    let answers = |chain| {
        nodes
            .iter()
            .any(|node| node.chain == chain && node.answer.is_ok())
    };
    let sentence = format!("{count} of {} chain nodes do not answer", nodes.len());
    if silent.clone().any(|node| !answers(node.chain)) {
        return Some(CommandFinding::cannot_sign(sentence));
    }
    (count > 0).then(|| CommandFinding::degraded(sentence))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_actors::chain_rpc::ChainKey;

    use super::*;

    fn node(chain: ChainKey, number: usize, answers: bool) -> ChainNodeState {
        let said = "at block 7".to_owned();
        ChainNodeState {
            chain,
            number,
            host: "node.example".to_owned(),
            answer: if answers {
                Ok(said)
            } else {
                Err("refused".to_owned())
            },
        }
    }

    #[test]
    fn chains__should_be_shown_with_what_each_node_answers() {
        let (one, two) = (ChainKey::evm(1), ChainKey::evm(10));
        let nodes = [node(one, 1, true), node(one, 2, false), node(two, 1, true)];
        let text = shown(&nodes);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].contains("HOST"), "{text}");
        assert!(
            lines[1].contains("ok") && lines[1].ends_with("at block 7"),
            "{text}"
        );
        assert!(
            lines[2].contains("FAIL") && lines[2].ends_with("refused"),
            "{text}"
        );
        let code = |nodes: &[ChainNodeState]| finding(nodes).map_or(0, |finding| finding.code());
        assert_eq!(code(&[]), 0);
        assert_eq!(code(&nodes), 5);
        assert_eq!(code(&[node(one, 1, true), node(two, 1, false)]), 6);
        let json = as_json(&nodes[1]);
        assert_eq!(json["answers"], false);
        assert_eq!(
            (&json["chainId"], &json["setting"]),
            (&1.into(), &"chains.evm.1".into())
        );
    }
}
