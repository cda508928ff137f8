//! What the log says of other orchestrators, and of vaults that go from one to another.

use std::collections::BTreeSet;

use covault_core::{
    ids::{OrchestratorId, VaultId},
    version,
    wallet::vault::Vault,
};

use super::{LeaseScope, MemberRow};
use crate::{services::Services, store::rows};

/// Other orchestrators that cannot work with this one, as far as the log has said so.
#[derive(Default)]
pub(super) struct ToldMisfits(BTreeSet<OrchestratorId>);

impl ToldMisfits {
    /// Says once of each of these what keeps it and this orchestrator apart.
    pub fn tell<'a>(
        &mut self,
        own: &MemberRow,
        others: impl Iterator<Item = (OrchestratorId, &'a MemberRow)>,
    ) {
        for (id, other) in others {
            let Some(problem) = misfit(own, other) else {
                continue;
            };
            if self.0.insert(id) {
                tracing::error!(orchestrator = %id, name = %other.name, "{problem}");
            }
        }
    }
}

/// What keeps two orchestrators of one store apart.
fn misfit(own: &MemberRow, other: &MemberRow) -> Option<String> {
    if !version::works_with(&own.version, &other.version) {
        return Some(format!(
            "another orchestrator of this store runs version {}, too far from {}: stop one of them and upgrade the older \
             one (docs/upgrading.md)",
            other.version, own.version
        ));
    }
    if own.secret_fingerprint != other.secret_fingerprint {
        return Some(
            "another orchestrator of this store has another cluster secret: neither can send the other commands, so calls \
             fail for the vaults that the other one has. Give all the same cluster.secret_file, and start them again"
                .to_owned(),
        );
    }
    None
}

/// Most vaults that one line names.
const MOST_NAMED: usize = 8;

/// What has become of some vaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VaultMove {
    /// They are here now.
    TakenOver,
    /// Others may have them.
    HandedOver,
}

/// Writes one line about the vaults among these scopes: how many, and the names of the first.
pub(super) async fn tell(services: &Services, moved: VaultMove, scopes: &[LeaseScope]) {
    let vaults: Vec<_> = scopes
        .iter()
        .filter_map(|scope| match scope {
            LeaseScope::Vault(vault) => Some(*vault),
            LeaseScope::Maintenance | LeaseScope::Chain(_) | LeaseScope::Webhooks => None,
        })
        .collect();
    if vaults.is_empty() {
        return;
    }
    let first: Vec<_> = vaults.iter().take(MOST_NAMED).collect();
    let keys: Vec<_> = first.iter().map(|vault| rows::vault(**vault)).collect();
    // A store that does not answer now costs the line its names, and no more.
    let found = services.store.get_all(&keys).await;
    let found = found.unwrap_or_default();
    let name = |vault: &VaultId| {
        let row = found.get(&rows::vault(*vault))?;
        Some(rows::decode::<Vault>(&row.value).ok()?.name)
    };
    let names: Vec<_> = first
        .iter()
        .map(|vault| name(vault).unwrap_or_else(|| vault.to_string()))
        .collect();
    let (names, count) = (named(&names, vaults.len()), vaults.len());
    match moved {
        VaultMove::TakenOver => tracing::info!(count, names, "took over vaults"),
        VaultMove::HandedOver => {
            tracing::info!(count, names, "gave up vaults to other orchestrators")
        }
    }
}

/// `treasury, payroll and 3 more`.
fn named(names: &[String], count: usize) -> String {
    let listed = names.join(", ");
    match count.saturating_sub(names.len()) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

#[cfg(test)]
#[allow(non_snake_case, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn orchestrators__should_be_told_apart_by_version_and_secret() {
        let row = |version: &str, secret| MemberRow {
            version: version.to_owned(),
            secret_fingerprint: secret,
            ..MemberRow::default()
        };
        let own = row("0.1.0", Some([1; 8]));
        assert_eq!(misfit(&own, &row("0.2.4", Some([1; 8]))), None);
        for (other, words) in [
            (
                row("0.3.0", Some([1; 8])),
                "runs version 0.3.0, too far from 0.1.0",
            ),
            (row("0.1.0", Some([2; 8])), "another cluster secret"),
            (row("0.1.0", None), "another cluster secret"),
        ] {
            let problem = misfit(&own, &other).expect(words);
            assert!(problem.contains(words), "{problem}");
        }
    }

    #[test]
    fn vaults_that_move__should_be_named_as_far_as_a_line_goes() {
        let names = ["treasury".to_owned(), "payroll".to_owned()];
        assert_eq!(named(&names, 2), "treasury, payroll");
        assert_eq!(named(&names, 5), "treasury, payroll and 3 more");
    }
}
