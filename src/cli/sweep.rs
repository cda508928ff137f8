//! `covault sweep`: where the deposits and events of sweep tokens go.

use covault_actors::operations::{AddSweepAsset, ConfigureSweep, RemoveSweepAsset, ShowSweep};
use covault_core::schema::admin::{self, SweepNetwork, Token};

use super::{
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
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// The coins and tokens that a sweep token takes.
    #[command(subcommand)]
    Asset(AssetCommand),
    /// Show what a sweep token has configured.
    Show {
        /// The sweep token: its id, or its name.
        #[arg(long, value_name = "TOKEN")]
        token: String,
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
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// Remove a token: its transfers are no longer told. Those of the coin always are.
    Remove {
        #[command(flatten)]
        asset: AssetArgs,
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

impl AssetArgs {
    /// The network and the chain id of the API.
    fn chain(&self) -> (String, String) {
        match self.chain.eq_ignore_ascii_case("TRON") {
            true => ("TRON".to_owned(), String::new()),
            false => ("EVM".to_owned(), self.chain.clone()),
        }
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
            orchestrator,
        }) => {
            let client = orchestrator.client()?;
            let (network, chain_id) = asset.chain();
            let request = admin::AddSweepAssetRequest {
                token: asset.token,
                network,
                chain_id,
                contract: asset.contract,
                minimum,
            };
            let now = client.call::<AddSweepAsset>(&request).await?;
            show(now.token.unwrap_or_default(), &now.networks, &client).await
        }
        Command::Asset(AssetCommand::Remove {
            asset,
            orchestrator,
        }) => {
            let client = orchestrator.client()?;
            let (network, chain_id) = asset.chain();
            let request = admin::RemoveSweepAssetRequest {
                token: asset.token,
                network,
                chain_id,
                contract: asset.contract,
            };
            let now = client.call::<RemoveSweepAsset>(&request).await?;
            show(now.token.unwrap_or_default(), &now.networks, &client).await
        }
        Command::Show {
            token,
            orchestrator,
        } => {
            let client = orchestrator.client()?;
            let request = admin::ShowSweepRequest { token };
            let now = client.call::<ShowSweep>(&request).await?;
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

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

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
