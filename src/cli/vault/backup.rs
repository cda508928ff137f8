//! `covault vault backup`: every holder's shares, encrypted to recipients that are kept offline.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::bail;
use covault_actors::operations::BackupVault;
use covault_core::{
    order::NodeId,
    schema::admin::{self, ShareBackup},
};
use covault_mpc::shares::backup::check_sealed;

use super::VaultSelector;
use crate::{
    cli::{client::ConnectionArgs, print_line, progress::ProgressSpinner},
    files,
};

/// The orchestrator waits up to 15 seconds for the nodes, and then prints which ones answered.
const TIMEOUT: Duration = Duration::from_secs(90);

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: VaultSelector,
    /// The folder for the backups, one file per node and key.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// age recipients ("age1...") whose identities are kept offline, separated by commas. Every
    /// node's own configuration must name each of them (signer.backup_recipients).
    #[arg(
        long = "recipient",
        value_name = "AGE1...,AGE1...",
        value_delimiter = ',',
        required = true
    )]
    recipients: Vec<String>,
    #[command(flatten)]
    target: ConnectionArgs,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.target.client()?;
    let vault = args.which.find(&client).await?;
    let recipients = args.recipients.len();
    let request = admin::BackupVaultRequest {
        vault_uuid: vault.uuid.clone(),
        recipients: args.recipients,
    };
    let signers = vault.signers.len();
    let what = format!("vault {}: {signers} nodes encrypt their shares", vault.name);
    let progress = ProgressSpinner::start(what);
    let answered = client.call_with_timeout::<BackupVault>(TIMEOUT, &request);
    let backups = answered.await?.backups;
    let made = backups.iter().filter(|it| it.backup.is_some()).count();
    progress.next(format!(
        "vault {}: {made} of {} backups were made",
        vault.name,
        backups.len()
    ));
    drop(progress);
    files::make_folder(&args.out)?;
    // By scheme: how many there are, and how many are needed.
    let mut counts: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    for backup in backups {
        let ShareBackup {
            public_key,
            name,
            scheme,
            epoch,
            threshold,
            backup,
            problem,
        } = backup;
        let (made, _) = counts.entry(scheme.clone()).or_insert((0, threshold));
        let Some(sealed) = backup else {
            eprintln!(
                "no backup of the {scheme} share of {public_key}: {}",
                problem.unwrap_or_default()
            );
            continue;
        };
        if let Err(fault) = check_sealed(&sealed, recipients) {
            eprintln!(
                "no backup of the {scheme} share of {public_key}: {}",
                fault.message()
            );
            continue;
        }
        *made += 1;
        let id = NodeId::parse_openssh_line(&public_key).map_err(crate::wiring::explain)?;
        let file = format!(
            "{}.{scheme}.epoch-{epoch}.{}-{}.age",
            vault.uuid,
            plain(&name),
            hex::encode(id.0.get(..4).unwrap_or_default())
        );
        let path = args.out.join(file);
        files::write_private(&path, &sealed)?;
        print_line(path.display());
    }
    for (scheme, (made, needed)) in &counts {
        if made < needed {
            bail!(
                "{made} backups of {scheme} shares are too few to recover the key: it needs {needed}"
            );
        }
    }
    eprintln!(
        "keep these files apart from each other and from the recipients' identities: any {} of them together with \
         an identity give the keys",
        vault.threshold
    );
    Ok(())
}

/// A node's name as a part of a file name: it is the node that chose it.
fn plain(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let name: String = name.chars().filter(|c| plain(*c)).take(40).collect();
    if name.is_empty() { "node".into() } else { name }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn plain__should_leave_no_way_out_of_the_folder() {
        assert_eq!(plain("signer-1"), "signer-1");
        assert_eq!(plain("../../etc/passwd"), "etcpasswd");
        assert_eq!(plain("\0/."), "node");
        assert_eq!(plain(&"x".repeat(200)).len(), 40);
    }
}
