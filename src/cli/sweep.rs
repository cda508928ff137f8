//! `covault sweep`: where the deposits and events of sweep tokens go.

use covault_actors::operations::{
    AddSweepAsset, ConfigureSweep, GetSweepStatus, RemoveSweepAsset, RetrySweeps, SetSweepRules,
    ShowSweep,
};
use covault_core::schema::admin::{self, SweepNetwork, Token};

use super::{
    answer, answer_json,
    client::{AdminClient, ConnectionArgs},
    print_line, vault,
};

/// Sweep configuration.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Configure a sweep token for one network, fully or field by field; prints the resulting configuration.
    ///
    /// Deposit wallets need a vault and a target, watch addresses a webhook on TRON. Existing deposit wallets stay in
    /// their vault when you set another.
    Configure {
        /// The sweep token: its id, or its name.
        #[arg(long, value_name = "TOKEN")]
        token: String,
        /// The network: EVM (one address for all EVM chains) or TRON.
        #[arg(long, value_parser = ["EVM", "TRON"], ignore_case = true)]
        network: String,
        /// The vault for new deposit wallets, by name or uuid. It must be in the token's scope.
        #[arg(long, value_name = "VAULT")]
        vault: Option<String>,
        /// The address that deposits are swept to.
        #[arg(long, value_name = "ADDRESS")]
        target: Option<String>,
        /// The URL that events are posted to: https://..., or http:// in a private network (`webhooks.allow`). Empty: no
        /// events. The first one makes the secret of the token's webhooks, which is printed once.
        #[arg(long, value_name = "URL")]
        webhook: Option<String>,
        /// Make a new secret for the webhooks of the token, and print it. The old one is void at once.
        #[arg(long)]
        new_webhook_secret: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// The coins and tokens that a sweep token takes.
    #[command(subcommand)]
    Asset(AssetCommand),
    /// Set whether and how deposits on one chain are swept; prints the rules. What you leave out stays as it is.
    Rules {
        /// The sweep token: its id, or its name.
        #[arg(long, value_name = "TOKEN")]
        token: String,
        /// The chain: the id of an EVM chain, or TRON.
        #[arg(long, value_name = "CHAIN")]
        chain: String,
        /// Sweep the deposits, or stop beginning new sweeps.
        #[arg(long, value_name = "true|false")]
        enabled: Option<bool>,
        /// The wallet that pays the fees of tokens, by address. It must be a wallet of the deposit wallets' vault; keep it
        /// for this alone.
        #[arg(long, value_name = "ADDRESS")]
        gas_wallet: Option<String>,
        /// The most that a fee may be of an amount of the coin, in percent (5).
        #[arg(long, value_name = "PERCENT")]
        max_cost_percent: Option<u32>,
        /// The most that a unit of gas may cost, in wei; on TRON of energy, in sun. Empty: any price.
        #[arg(long, value_name = "PRICE")]
        max_gas_price: Option<String>,
        /// The most coin that the gas wallet sends to a deposit wallet for a fee, in wei or sun. Empty: no top-ups are
        /// made.
        #[arg(long, value_name = "AMOUNT")]
        max_top_up: Option<String>,
        /// For how many seconds a sweep may wait before the log warns (86400).
        #[arg(long, value_name = "SECONDS")]
        max_wait: Option<u32>,
        /// Sweep the coin and each token of a wallet at most once in so many seconds (0: as soon as a deposit is final).
        #[arg(long, value_name = "SECONDS")]
        every: Option<u32>,
        /// How fees of tokens are paid: topup.
        #[arg(long, value_name = "METHOD")]
        method: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// Show where the sweeps of a sweep token stand, and what was swept.
    Status {
        /// The sweep token: its id, or its name.
        #[arg(long, value_name = "TOKEN")]
        token: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// Try again what is held: of which transactions have cost fees and moved nothing three times.
    ///
    /// Find out first why, or the fees are paid three more times.
    Retry {
        /// The sweep token: its id, or its name.
        #[arg(long, value_name = "TOKEN")]
        token: String,
        /// The chain: the id of an EVM chain, or TRON.
        #[arg(long, value_name = "CHAIN")]
        chain: String,
        /// The deposit wallet. Without it: all.
        #[arg(
            long,
            value_name = "ADDRESS",
            default_value = "",
            hide_default_value = true
        )]
        address: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// Show what a sweep token has configured.
    Show {
        /// The sweep token: its id, or its name.
        #[arg(long, value_name = "TOKEN")]
        token: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
}

/// Coins and tokens.
#[derive(Debug, clap::Subcommand)]
pub enum AssetCommand {
    /// Add a token, or set its minimum; without a contract: the coin of the chain.
    Add {
        #[command(flatten)]
        asset: AssetArgs,
        /// The least amount that is swept, in the smallest unit.
        #[arg(long, value_name = "AMOUNT")]
        minimum: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// Remove a token: its transfers are no longer announced. Those of the coin always are.
    Remove {
        #[command(flatten)]
        asset: AssetArgs,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
}

/// Names a coin or token of a chain.
#[derive(Debug, clap::Args)]
pub struct AssetArgs {
    /// The sweep token: its id, or its name.
    #[arg(long, value_name = "TOKEN")]
    token: String,
    /// The chain: the id of an EVM chain, or TRON.
    #[arg(long, value_name = "CHAIN")]
    chain: String,
    /// The contract of the token. Without it: the coin of the chain.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "",
        hide_default_value = true
    )]
    contract: String,
}

/// The network and the chain id of the API, for the id of an EVM chain or `TRON`.
fn network_and_chain(chain: String) -> (String, String) {
    match chain.eq_ignore_ascii_case("TRON") {
        true => ("TRON".to_owned(), String::new()),
        false => ("EVM".to_owned(), chain),
    }
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Configure {
            token,
            network,
            vault,
            target,
            webhook,
            new_webhook_secret,
            json,
            orchestrator,
        } => {
            let client = orchestrator.client()?;
            let vault_uuid = match vault {
                Some(vault) => vault::uuids(&client, &[vault]).await?.pop(),
                None => None,
            };
            let request = admin::ConfigureSweepRequest {
                token,
                network: network.to_ascii_uppercase(),
                vault_uuid,
                target,
                webhook,
                new_webhook_secret,
            };
            let now = client.call::<ConfigureSweep>(&request).await?;
            if json {
                return answer_json(&now);
            }
            show(now.token.unwrap_or_default(), &now.networks, &client).await?;
            if let Some(secret) = now.webhook_secret {
                print_line("The secret of the token's webhooks; it is not shown again:");
                print_line(secret);
            }
            Ok(())
        }
        Command::Asset(AssetCommand::Add {
            asset,
            minimum,
            json,
            orchestrator,
        }) => {
            let client = orchestrator.client()?;
            let (network, chain_id) = network_and_chain(asset.chain);
            let request = admin::AddSweepAssetRequest {
                token: asset.token,
                network,
                chain_id,
                contract: asset.contract,
                minimum,
            };
            let now = client.call::<AddSweepAsset>(&request).await?;
            if json {
                return answer_json(&now);
            }
            show(now.token.unwrap_or_default(), &now.networks, &client).await
        }
        Command::Asset(AssetCommand::Remove {
            asset,
            json,
            orchestrator,
        }) => {
            let client = orchestrator.client()?;
            let (network, chain_id) = network_and_chain(asset.chain);
            let request = admin::RemoveSweepAssetRequest {
                token: asset.token,
                network,
                chain_id,
                contract: asset.contract,
            };
            let now = client.call::<RemoveSweepAsset>(&request).await?;
            if json {
                return answer_json(&now);
            }
            show(now.token.unwrap_or_default(), &now.networks, &client).await
        }
        Command::Rules {
            token,
            chain,
            enabled,
            gas_wallet,
            max_cost_percent,
            max_gas_price,
            max_top_up,
            max_wait,
            every,
            method,
            json,
            orchestrator,
        } => {
            let client = orchestrator.client()?;
            let (network, chain_id) = network_and_chain(chain);
            let request = admin::SetSweepRulesRequest {
                token,
                network,
                chain_id,
                enabled,
                gas_wallet,
                max_cost_percent,
                max_gas_price,
                max_wait_seconds: max_wait,
                method,
                max_top_up,
                every_seconds: every,
            };
            let now = client.call::<SetSweepRules>(&request).await?;
            answer(json, &now.rules.unwrap_or_default(), rules_text)
        }
        Command::Status {
            token,
            json,
            orchestrator,
        } => {
            let client = orchestrator.client()?;
            let request = admin::GetSweepStatusRequest { token };
            let status = client.call::<GetSweepStatus>(&request).await?;
            if json {
                return answer_json(&status);
            }
            print_line(status_text(&status));
            Ok(())
        }
        Command::Retry {
            token,
            chain,
            address,
            json,
            orchestrator,
        } => {
            let client = orchestrator.client()?;
            let (network, chain_id) = network_and_chain(chain);
            let request = admin::RetrySweepsRequest {
                token,
                network,
                chain_id,
                address,
            };
            let done = client.call::<RetrySweeps>(&request).await?;
            answer(json, &done, |done| {
                format!("{} held: tried again", done.retried)
            })
        }
        Command::Show {
            token,
            json,
            orchestrator,
        } => {
            let client = orchestrator.client()?;
            let request = admin::ShowSweepRequest { token };
            let now = client.call::<ShowSweep>(&request).await?;
            if json {
                return answer_json(&now);
            }
            show(now.token.unwrap_or_default(), &now.networks, &client).await
        }
    }
}

async fn show(token: Token, networks: &[SweepNetwork], client: &AdminClient) -> anyhow::Result<()> {
    let vaults = vault::vaults(client).await?;
    let name = |uuid: &str| {
        let found = vaults.iter().find(|vault| vault.uuid == uuid);
        found.map_or_else(|| uuid.to_owned(), |vault| vault.name.clone())
    };
    print_line(text(&token, networks, name));
    Ok(())
}

fn text(token: &Token, networks: &[SweepNetwork], vault: impl Fn(&str) -> String) -> String {
    let mut lines = vec![format!("{}  {}", token.id, token.name)];
    if networks.is_empty() {
        lines.push("  nothing is configured: covault sweep configure --help".to_owned());
    }
    for network in networks {
        let missing = || "-".to_owned();
        lines.push(format!("  {}", network.network));
        for (what, value) in [
            ("vault", network.vault_uuid.as_deref().map(&vault)),
            ("target", network.target.clone()),
            ("webhook", network.webhook.clone()),
        ] {
            lines.push(format!("    {what:<8} {}", value.unwrap_or_else(missing)));
        }
        for asset in &network.assets {
            let chain = match asset.chain_id.as_str() {
                "" => String::new(),
                id => format!("chain {id}, "),
            };
            let name = match asset.contract.as_str() {
                "" => "coin",
                contract => contract,
            };
            lines.push(format!(
                "    asset    {chain}{name}, at least {}",
                asset.minimum
            ));
        }
    }
    lines.join("\n")
}

fn rules_text(rules: &admin::SweepRules) -> String {
    let or_none = |text: &str, none: &str| match text {
        "" => none.to_owned(),
        text => text.to_owned(),
    };
    let every = match rules.every_seconds {
        0 => "as soon as deposits are final".to_owned(),
        seconds => format!("{seconds} s"),
    };
    format!(
        "{}: {}\n  gas wallet      {}\n  most of the coin {} %\n  most per gas    {}\n  most per top-up {}\n  warns after     {} s\n  every           {every}\n  method          {}",
        match rules.chain_id.as_str() {
            "" => rules.network.clone(),
            id => format!("chain {id}"),
        },
        if rules.enabled { "swept" } else { "not swept" },
        or_none(&rules.gas_wallet, "-"),
        rules.max_cost_percent,
        or_none(&rules.max_gas_price, "any price"),
        or_none(&rules.max_top_up, "-"),
        rules.max_wait_seconds,
        rules.method,
    )
}

fn status_text(status: &admin::GetSweepStatusResponse) -> String {
    if status.chains.is_empty() {
        return "nothing is swept: covault sweep rules --help".to_owned();
    }
    let name = |contract: &str| match contract {
        "" => "coin".to_owned(),
        contract => contract.to_owned(),
    };
    let mut lines = Vec::new();
    for chain in &status.chains {
        lines.push(rules_text(&chain.rules.clone().unwrap_or_default()));
        lines.push(format!("  target          {}", chain.target));
        for total in &chain.totals {
            lines.push(format!(
                "  {}: {} sweeps, {} at the target, {} paid as fees, {} sent by the gas wallet",
                name(&total.contract),
                total.sweeps,
                total.amount,
                total.fees,
                total.top_ups,
            ));
        }
        for sweep in &chain.sweeps {
            let reason = match sweep.reason.as_str() {
                "" => String::new(),
                reason => format!(": {reason}"),
            };
            let of = name(&sweep.contract);
            let line = format!("  {} ({}) {of} {}", sweep.address, sweep.r#ref, sweep.state);
            lines.push(line + &reason);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn status__should_tell_what_waits_and_what_was_swept() {
        let none = admin::GetSweepStatusResponse::default();
        assert!(status_text(&none).contains("nothing is swept"));
        let status = admin::GetSweepStatusResponse {
            chains: vec![admin::SweepStatus {
                rules: Some(admin::SweepRules {
                    chain_id: "1".into(),
                    enabled: true,
                    max_cost_percent: 5,
                    method: "topup".into(),
                    ..Default::default()
                }),
                target: "0xcc".into(),
                sweeps: vec![admin::Sweep {
                    address: "0xaa".into(),
                    r#ref: "order-1".into(),
                    state: "paused".into(),
                    reason: "the gas wallet is empty".into(),
                    ..Default::default()
                }],
                totals: vec![admin::SweepTotal {
                    contract: "0xbb".into(),
                    sweeps: 2,
                    amount: "800".into(),
                    fees: "7".into(),
                    top_ups: "9".into(),
                }],
            }],
        };
        let text = status_text(&status);
        for line in [
            "chain 1: swept",
            "  0xbb: 2 sweeps, 800 at the target, 7 paid as fees, 9 sent by the gas wallet",
            "  0xaa (order-1) coin paused: the gas wallet is empty",
        ] {
            assert!(text.lines().any(|one| one == line), "{text}");
        }
    }

    #[test]
    fn show__should_tell_what_is_missing() {
        let token = Token {
            id: "id-1".into(),
            name: "shop".into(),
            ..Token::default()
        };
        let shown = |networks: &[SweepNetwork]| text(&token, networks, |_| "main".to_owned());
        assert!(shown(&[]).contains("nothing is configured"));
        let network = SweepNetwork {
            network: "TRON".into(),
            vault_uuid: Some("u".into()),
            target: None,
            webhook: Some("https://example.com/".into()),
            assets: vec![
                admin::SweepAsset {
                    minimum: "7".into(),
                    ..Default::default()
                },
                admin::SweepAsset {
                    chain_id: "1".into(),
                    contract: "0xaa".into(),
                    minimum: "5".into(),
                },
            ],
        };
        let expected = "id-1  shop\n  TRON\n    vault    main\n    target   -\n    webhook  https://example.com/\n    \
                        asset    coin, at least 7\n    asset    chain 1, 0xaa, at least 5";
        assert_eq!(shown(&[network]), expected);
    }
}
