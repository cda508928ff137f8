//! `covault node veto`: requests that a node never signs, no matter who has approved them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use covault_core::{
    approval::Rejection,
    ids::{RequestId, VaultId},
};
use covault_mpc::{policy::Policy, veto::VetoStore};

use super::print_line;
use crate::{
    config::Config,
    wiring::{explain, policy},
};

/// Make this node never sign these requests, whatever people have approved.
///
/// For a payment that the node holds (hold_hours in its policy) when the orchestrator may not obey `covault reject`. Run
/// it on the node's own machine, as root or as the node's user; the node may be running. It is in force as soon as the
/// command returns, survives restarts, and cannot be undone: create the request again instead. Other nodes are
/// unaffected: veto it on as many nodes that the rest are fewer than the vault's threshold, or freeze nodes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node's configuration file. Without it: the defaults, and COVAULT_ variables.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The file of a person's signed rejection (covault reject --out): the requests are vetoed only if it is of all of them,
    /// by someone who could reject them by this node's policy, and for the vault that was signed with them. Without it, nothing
    /// is checked.
    #[arg(long, value_name = "FILE")]
    rejection: Option<PathBuf>,
    /// The requests.
    #[arg(value_name = "UUID", required = true)]
    requests: Vec<String>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let requests = args.requests.iter().map(|uuid| {
        let request: Result<RequestId, _> = uuid.parse();
        request.with_context(|| format!("{uuid} is not a uuid"))
    });
    let requests: Vec<RequestId> = requests.collect::<anyhow::Result<_>>()?;
    let (config, _) = Config::load_for_signer(args.config.as_deref())?;
    let folder = &config.signer.data_dir;
    ensure!(
        folder.is_dir(),
        "there is no folder {}: name the node's configuration file with --config",
        folder.display()
    );
    let store = VetoStore::of(folder);
    if let Some(file) = &args.rejection {
        let policy = policy(&config.signer)?;
        let (person, vault) = rejected_by(&policy, file, &requests)?;
        let outcome = store.reject(vault, &person, &requests);
        store.write(|_| ()).map_err(explain)?;
        for request in requests {
            ensure!(
                !outcome.no_room.contains(&request),
                "this node keeps no more rejections of the vault {vault} by {person}: veto {request} without --rejection"
            );
            print_line(format_args!(
                "{person} has rejected the request {request} of the vault {vault}: this node never signs it"
            ));
        }
        return Ok(());
    }
    for request in requests {
        store.veto(request).map_err(explain)?;
        print_line(format_args!(
            "vetoed: this node never signs the request {request}"
        ));
    }
    Ok(())
}

/// Who has signed the rejection in a file and of which vault, when that is of all these requests, by someone who can reject
/// them.
fn rejected_by(
    policy: &Policy,
    file: &Path,
    requests: &[RequestId],
) -> anyhow::Result<(String, VaultId)> {
    let of = || format!("{} is no person's rejection", file.display());
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let rejection: Rejection = serde_json::from_str(&text).with_context(of)?;
    for request in requests {
        ensure!(
            rejection.requests.contains(request),
            "{} does not reject {request}",
            file.display()
        );
    }
    let person = policy.rejected_by(&rejection);
    let person = person.map_err(explain).with_context(of)?;
    Ok((person, rejection.vault))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::approval::{
        ApprovalProof, rejections_challenge,
        testing::{TestSshKey, TestSshKind},
    };

    use super::*;

    #[test]
    fn rejection__should_be_of_each_request_and_of_somebody_who_can_reject_it() {
        let key = |number| TestSshKey::new(TestSshKind::Ed25519, number);
        let text = format!(
            "version = 2\n[[approver]]\nname = \"treasurer\"\nkeys = [\"{}\"]\n[[approval]]\nneeds = 1\n\
             of = [\"treasurer\"]\nhold_hours = 1\n",
            key(1).line()
        );
        let policy = Policy::parse(&text).unwrap();
        let vault = VaultId::from_bytes([2; 16]);
        let ids = [1, 2, 3].map(|number| RequestId::from_bytes([number; 16]));
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |number| {
            let rejection = Rejection {
                vault,
                requests: ids[..2].to_vec(),
                proof: ApprovalProof::Ssh(
                    key(number).sign(&rejections_challenge(vault, &ids[..2]).unwrap()),
                ),
            };
            std::fs::write(file.path(), serde_json::to_string(&rejection).unwrap()).unwrap();
        };
        let refused = |ids: &[RequestId]| {
            let problem = rejected_by(&policy, file.path(), ids).unwrap_err();
            format!("{problem:#}")
        };
        write(1);
        for asked in [&ids[..1], &ids[..2]] {
            assert_eq!(
                rejected_by(&policy, file.path(), asked).unwrap(),
                ("treasurer".to_owned(), vault)
            );
        }
        assert!(refused(&ids).contains("does not reject 03030303-"));
        write(4);
        assert!(refused(&ids[..1]).contains("proof: is not from a person"));
        std::fs::write(file.path(), "{}").unwrap();
        assert!(refused(&ids[..1]).contains("is no person's rejection"));
    }
}
