//! `covault wallet`: the wallets of a vault.

use anyhow::Context as _;
use covault_actors::operations::{CreateWallet, GetWalletList};
use covault_core::schema::wire::{self, NetworkType, Wallet};

use super::{answer_json, client::PlatformConnectionArgs, hint, one_line, print_line, table};

const PREFIX: &str = "NETWORK_TYPE_";

/// Wallets.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create a wallet and print its address.
    Create {
        /// The vault (covault vault list).
        #[arg(long, value_name = "UUID")]
        vault: String,
        /// The network: evm, bitcoin, solana and so on; another word is answered with all of them. One EVM wallet is for all
        /// EVM chains.
        #[arg(long, value_parser = network)]
        network: NetworkType,
        /// Its name.
        #[arg(long, default_value = "")]
        name: String,
        /// A reference of your own, which no other wallet of the vault has.
        #[arg(long, default_value = "")]
        r#ref: String,
        /// Create nothing unless the signers prove the address now (docs/address-proofs.md).
        #[arg(long)]
        require_proof: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        service: PlatformConnectionArgs,
    },
    /// List a vault's wallets.
    List {
        /// The vault (covault vault list).
        #[arg(long, value_name = "UUID")]
        vault: String,
        /// The page, from 1.
        #[arg(long, value_name = "N", default_value_t = 1)]
        page: i64,
        /// Wallets per page, 1 to 100.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: i64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        service: PlatformConnectionArgs,
    },
}

fn network(name: &str) -> Result<NetworkType, String> {
    let named = NetworkType::from_str_name(&format!("{PREFIX}{}", name.to_ascii_uppercase()));
    match named {
        Some(network) if network != NetworkType::Unknown => Ok(network),
        _ => {
            let all = (1..).map_while(|number| NetworkType::try_from(number).ok());
            let names = all.map(|it| it.as_str_name().trim_start_matches(PREFIX).to_lowercase());
            let names: Vec<_> = names.collect();
            Err(format!("is not one of {}", names.join(", ")))
        }
    }
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create {
            vault,
            network,
            name,
            r#ref,
            require_proof,
            json,
            service,
        } => {
            let request = wire::CreateWalletRequest {
                vault_uuid: vault,
                network_type: network.into(),
                name,
                r#ref,
                require_address_proof: require_proof,
                ..Default::default()
            };
            let made = service.client()?.call::<CreateWallet>(&request).await?;
            if json {
                return answer_json(&made);
            }
            let wallet = made.details.context("the response has no wallet")?;
            print_line(one_line(&wallet.address));
            Ok(())
        }
        Command::List {
            vault,
            page,
            limit,
            json,
            service,
        } => {
            let request = wire::GetWalletListRequest {
                vault_uuid: vault,
                page: Some(page),
                limit: Some(limit),
            };
            let list = service.client()?.call::<GetWalletList>(&request).await?;
            if json {
                return answer_json(&list);
            }
            if list.details_list.is_empty() {
                hint(format_args!(
                    "no wallets on page {page}: covault wallet create --help"
                ));
                return Ok(());
            }
            print_line(wallets(&list.details_list));
            Ok(())
        }
    }
}

fn wallets(list: &[Wallet]) -> String {
    let rows = list.iter().map(|wallet| {
        let network = wallet.network_type().as_str_name();
        let status = match wallet.status() {
            wire::wallet::Status::Active => "active",
            wire::wallet::Status::Archived => "archived",
            wire::wallet::Status::Pending | wire::wallet::Status::Unspecified => "pending",
        };
        let or_dash = |text: &str| match text {
            "" => "-".to_owned(),
            text => one_line(text),
        };
        [
            network.trim_start_matches(PREFIX).to_ascii_lowercase(),
            one_line(&wallet.address),
            status.to_owned(),
            one_line(&wallet.key_path),
            or_dash(&wallet.name),
            or_dash(&wallet.r#ref),
        ]
    });
    table(["NETWORK", "ADDRESS", "STATUS", "KEY", "NAME", "REF"], rows)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn network__should_be_one_that_wallets_have() {
        assert_eq!(network("evm"), Ok(NetworkType::Evm));
        assert_eq!(network("Bitcoin"), Ok(NetworkType::Bitcoin));
        assert!(
            network("x")
                .unwrap_err()
                .starts_with("is not one of evm, bitcoin, ")
        );
        for none in ["", "unknown", "ethereum", "1"] {
            assert!(network(none).is_err(), "{none}");
        }
    }

    #[test]
    fn wallets__should_be_shown_one_a_line() {
        let wallet = Wallet {
            network_type: NetworkType::Ton.into(),
            address: "EQ1".into(),
            status: wire::wallet::Status::Archived.into(),
            key_path: "m/607/1".into(),
            name: "till\n2".into(),
            ..Default::default()
        };
        let shown = wallets(&[wallet.clone(), wallet]);
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines.len(), 3, "{shown}");
        assert!(lines[0].contains("ADDRESS"), "{shown}");
        for words in ["ton", "EQ1", "archived", "m/607/1"] {
            assert!(lines[1].contains(words), "{words}: {shown}");
        }
        assert!(lines[1].ends_with('-'), "{shown}");
    }
}
