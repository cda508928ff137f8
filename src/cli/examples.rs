//! The examples at the end of each command's `--help`: a test runs the parser over each of them, and misses none.

use clap::{Command, CommandFactory as _, FromArgMatches as _};

use super::{Cli, EXIT_CODES};

/// Commands by their whole names, with what is typed behind `covault`.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "address verify",
        &["address verify wallet.json --pins nodes.pins"],
    ),
    (
        "approve",
        &[
            "approve 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f --key ~/.ssh/id_ed25519 --url https://covault.example.com \
           --token-file token",
        ],
    ),
    ("audit export", &["audit export --out audit.jsonl"]),
    (
        "audit verify",
        &[
            "audit verify",
            "audit verify --file audit.jsonl --expect heads-of-may.txt",
        ],
    ),
    (
        "backup create",
        &[
            "backup create --out covault-2026-11-27.backup --recipient age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p",
        ],
    ),
    (
        "backup restore",
        &["backup restore covault.backup --identity age.key --config serve.toml"],
    ),
    ("backup resume", &["backup resume"]),
    (
        "backup verify",
        &["backup verify covault.backup --identity age.key"],
    ),
    (
        "batch approve",
        &["batch approve 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f --total 2500000"],
    ),
    (
        "batch create",
        &[
            "batch create salaries.csv --from 0xd8dA6BF26964aF9D7eEd9e03E53415D37aA96045 --network evm --chain-id 1 --url \
           https://covault.example.com --token-file token --dry-run",
        ],
    ),
    (
        "batch list",
        &["batch list --vault 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f"],
    ),
    (
        "batch reject",
        &["batch reject 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f --reason 'paid by hand'"],
    ),
    (
        "batch resume",
        &["batch resume 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f"],
    ),
    (
        "batch show",
        &["batch show 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f"],
    ),
    ("chain list", &["chain list --config serve.toml"]),
    (
        "client-signer",
        &["client-signer --config client-signer.yml"],
    ),
    ("completions", &["completions bash", "completions zsh"]),
    (
        "config check",
        &[
            "config check serve.toml",
            "config check --role signer signer.toml",
        ],
    ),
    ("config show", &["config show serve.toml"]),
    ("context list", &["context list"]),
    ("context use", &["context use prod", "context use --none"]),
    ("deposits reconcile", &["deposits reconcile --chain 1"]),
    (
        "deposits rescan",
        &["deposits rescan --chain 1 --from 21000000 --to 21000500"],
    ),
    (
        "deposits restart",
        &["deposits restart --chain 1 --from 21000000"],
    ),
    ("dev", &["dev", "dev --data ./dev --listen 127.0.0.1:8080"]),
    (
        "doctor",
        &[
            "doctor --config serve.toml",
            "doctor --role signer --config signer.toml --json",
        ],
    ),
    (
        "health",
        &[
            "health --config serve.toml",
            "health --role signer --config signer.toml",
        ],
    ),
    (
        "load",
        &["load --vault 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f --clients 32 --seconds 60"],
    ),
    (
        "log-level",
        &[
            "log-level",
            "log-level debug",
            "log-level info,covault_mpc=trace",
        ],
    ),
    ("man", &["man /usr/local/share/man/man1"]),
    ("node admit", &["node admit vienna.pub --name vienna"]),
    (
        "node approver-link",
        &["node approver-link anna --config signer.toml"],
    ),
    (
        "node clear-unused",
        &["node clear-unused --older-than 30 --config signer.toml"],
    ),
    ("node evidence", &["node evidence evidence-0001.bin"]),
    (
        "node forget-prepared",
        &[
            "node forget-prepared --vault 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f --scheme dkls23 --in-use 3 --config \
           signer.toml",
        ],
    ),
    (
        "node freeze",
        &[
            "node freeze --config signer.toml",
            "node freeze --vault 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f --config signer.toml",
        ],
    ),
    (
        "node init",
        &["node init --name vienna --config signer.toml"],
    ),
    ("node keys", &["node keys --config signer.toml"]),
    ("node list", &["node list"]),
    (
        "node permit",
        &[
            "node permit --config signer.toml",
            "node permit order.json --days 2 --config signer.toml",
        ],
    ),
    (
        "node primes",
        &["node primes --count 2 --config signer.toml"],
    ),
    ("node remove", &["node remove vienna.pub"]),
    (
        "node restore",
        &["node restore --backup vienna-dkls23.age --identity age.key --config signer.toml"],
    ),
    ("node retired", &["node retired --config signer.toml"]),
    ("node thaw", &["node thaw --config signer.toml"]),
    (
        "node veto",
        &["node veto 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f --config signer.toml"],
    ),
    ("openapi", &["openapi", "openapi --admin"]),
    (
        "pending",
        &["pending --url https://covault.example.com --token-file token"],
    ),
    (
        "policy approver",
        &["policy approver policy.toml 'covault-approver1 ...' --name anna"],
    ),
    ("policy check", &["policy check policy.toml"]),
    (
        "recover",
        &["recover --backup vienna.age --backup graz.age --identity age.key"],
    ),
    (
        "redis-acl",
        &[
            "redis-acl --passwords ./redis-passwords --signer vienna=vienna.pub --orchestrator one=identity.pub",
        ],
    ),
    (
        "reject",
        &[
            "reject 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f --url https://covault.example.com --token-file token",
        ],
    ),
    (
        "request forget-refused",
        &["request forget-refused 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f"],
    ),
    (
        "request list",
        &["request list --vault 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f --limit 50"],
    ),
    (
        "request show",
        &["request show 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f --config serve.toml"],
    ),
    ("request stuck", &["request stuck"]),
    (
        "request watch",
        &["request watch 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f --config serve.toml"],
    ),
    (
        "serve",
        &[
            "serve --init --config serve.toml",
            "serve --config serve.toml",
        ],
    ),
    ("signer", &["signer --config signer.toml"]),
    (
        "status",
        &[
            "status",
            "status --url https://10.20.0.21:8083 --token-file admin-token --json",
        ],
    ),
    (
        "sweep asset add",
        &["sweep asset add --token shop --chain 1 --minimum 50000000000000000"],
    ),
    (
        "sweep asset remove",
        &["sweep asset remove --token shop --chain 1"],
    ),
    (
        "sweep configure",
        &["sweep configure --token shop --network EVM --webhook https://shop.example.com/deposits"],
    ),
    (
        "sweep retry",
        &[
            "sweep retry --token shop --chain 1 --address 0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
        ],
    ),
    (
        "sweep rules",
        &["sweep rules --token shop --chain 1 --enabled true"],
    ),
    ("sweep show", &["sweep show --token shop"]),
    ("sweep status", &["sweep status --token shop"]),
    (
        "token create",
        &[
            "token create --name shop --kind platform --all-vaults --access full",
            "token create --name anna --kind admin --role viewer --allow 127.0.0.1 --expires 90d",
        ],
    ),
    ("token list", &["token list"]),
    ("token revoke", &["token revoke shop"]),
    (
        "top",
        &[
            "top --config serve.toml",
            "top --url https://10.20.0.21:8083 --token-file admin-token",
        ],
    ),
    (
        "user create",
        &["user create anna --role approver --all-vaults"],
    ),
    ("user link", &["user link anna"]),
    ("user list", &["user list"]),
    ("user notify", &["user notify anna --mail anna@example.com"]),
    ("user revoke", &["user revoke anna"]),
    ("user sign-out", &["user sign-out anna"]),
    (
        "vault approvals apply",
        &[
            "vault approvals apply rule.json --signature rule.json.anna.sig --signature rule.json.ben.sig",
        ],
    ),
    (
        "vault approvals propose",
        &[
            "vault approvals propose --name treasury --approvals manual --approver anna=anna.pub --approver ben=ben.pub \
           --needs 2 --out rule.json",
        ],
    ),
    (
        "vault approvals sign",
        &["vault approvals sign rule.json --key ~/.ssh/id_ed25519 --out rule.json.anna.sig"],
    ),
    (
        "vault backup",
        &["vault backup --name treasury --out ./shares --recipient \
           age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"],
    ),
    (
        "vault create",
        &[
            "vault create --name treasury --threshold 2 --signers vienna.pub,graz.pub,linz.pub --approvals manual \
           --approver anna=anna.pub",
        ],
    ),
    ("vault list", &["vault list"]),
    ("vault refresh", &["vault refresh --name treasury"]),
    (
        "vault reshare",
        &[
            "vault reshare --name treasury --threshold 3 --signers vienna.pub,graz.pub,linz.pub,wels.pub,bregenz.pub",
        ],
    ),
    ("vault show", &["vault show --name treasury"]),
    (
        "wallet create",
        &[
            "wallet create --vault 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f --network evm --name payouts",
        ],
    ),
    (
        "wallet list",
        &["wallet list --vault 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f"],
    ),
    (
        "webhook list",
        &["webhook list", "webhook list --state dead"],
    ),
    (
        "webhook replay",
        &["webhook replay 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f"],
    ),
    (
        "webhook show",
        &["webhook show 0190f3c6-5b4e-7cc3-98c4-dc0c0c07398f"],
    ),
    ("webhook test", &["webhook test --token shop --network EVM"]),
];
/// What `covault --help` begins with, and most examples of a group.
const FIRST: [&str; 3] = ["dev", "serve --init --config serve.toml", "status"];
const MOST: usize = 3;

/// The command line with its examples.
pub fn command() -> Command {
    let whole = with_examples(Cli::command(), "");
    let text = format!("{}\n\n{EXIT_CODES}", shown(FIRST));
    whole.after_long_help(text)
}

/// What was typed; ends the process where that is nothing, or help is wanted.
pub fn parse() -> Cli {
    let typed = command().get_matches();
    Cli::from_arg_matches(&typed).unwrap_or_else(|error| error.exit())
}

fn with_examples(mut command: Command, name: &str) -> Command {
    let below: Vec<String> = command
        .get_subcommands()
        .map(|it| it.get_name().to_owned())
        .collect();
    for sub in below {
        let whole = format!("{name} {sub}");
        command = command.mut_subcommand(&sub, |sub| with_examples(sub, whole.trim()));
    }
    let examples = examples_of(name);
    match examples.is_empty() {
        true => command,
        false => command.after_long_help(shown(examples)),
    }
}

/// Those of a command; of a group, the first of some of its commands.
fn examples_of(name: &str) -> Vec<&'static str> {
    if let Some((_, examples)) = EXAMPLES.iter().find(|(of, _)| *of == name) {
        return examples.to_vec();
    }
    let group = format!("{name} ");
    let in_group = EXAMPLES.iter().filter(|(of, _)| of.starts_with(&group));
    in_group
        .filter_map(|(_, examples)| examples.first().copied())
        .take(MOST)
        .collect()
}

fn shown(examples: impl IntoIterator<Item = &'static str>) -> String {
    let lines = examples
        .into_iter()
        .map(|example| format!("\n  covault {example}"));
    format!("Examples:{}", lines.collect::<String>())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    /// The commands that have none below them, by their whole names.
    fn leaves(command: &Command, name: &str) -> Vec<String> {
        if !command.has_subcommands() {
            return vec![name.to_owned()];
        }
        let below = command.get_subcommands();
        below
            .flat_map(|sub| leaves(sub, format!("{name} {}", sub.get_name()).trim()))
            .collect()
    }

    /// As a shell reads it, as far as the examples need one.
    fn words(line: &str) -> Vec<String> {
        let parts = line.split('\'').enumerate();
        parts
            .flat_map(|(number, part)| match number % 2 {
                0 => part.split_whitespace().map(str::to_owned).collect(),
                _ => vec![part.to_owned()],
            })
            .collect()
    }

    fn missing(command: &Command) -> Vec<String> {
        let mut found: Vec<String> = command.get_subcommands().flat_map(missing).collect();
        let help = command.get_after_long_help().map(ToString::to_string);
        if !help.unwrap_or_default().contains("Examples:\n  covault ") {
            found.push(command.get_name().to_owned());
        }
        found
    }

    #[test]
    fn help__should_have_examples_for_each_command() {
        let command = command();
        assert_eq!(missing(&command), Vec::<String>::new());
        let mut leaves = leaves(&Cli::command(), "");
        leaves.sort();
        let named: Vec<_> = EXAMPLES
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .collect();
        assert_eq!(named, leaves);
        let help = command.get_after_long_help().map(ToString::to_string);
        assert!(help.is_some_and(|help| help.ends_with(EXIT_CODES)));
    }

    #[test]
    fn examples__should_be_what_the_command_line_takes() {
        for (name, examples) in EXAMPLES {
            for example in *examples {
                assert!(example.starts_with(name), "{example}");
                let typed = [vec!["covault".to_owned()], words(example)].concat();
                if let Err(error) = Cli::command().try_get_matches_from(typed) {
                    panic!("covault {example}: {error}");
                }
            }
        }
        for example in FIRST {
            let typed = [vec!["covault".to_owned()], words(example)].concat();
            assert!(
                Cli::command().try_get_matches_from(typed).is_ok(),
                "{example}"
            );
        }
    }
}
