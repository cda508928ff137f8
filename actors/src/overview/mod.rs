//! How the service is as a whole. It is counted in the background and written down, so that nobody who asks has to wait until
//! all vaults were read, and every process answers the same.

pub mod observer;

use std::collections::BTreeMap;

use covault_core::{
    fault::Fault,
    ids::VaultId,
    order::{Generation, NodeId},
    wallet::vault::{KeyState, Vault},
};

use crate::{
    leases::{self, LeaseRow, LeaseScope},
    nodes,
    port::NodeView,
    requests::stuck,
    services::{Services, skip_unreadable},
    store::{
        KeySpace, Scan,
        overview_rows::{self, BackupRow, OpenRequestCounts, ServiceCounts},
        rows,
    },
    vaults::vault::why_no_keys,
};

/// Rows that one scan reads.
const PAGE: usize = 256;
/// So many rows are counted when someone asks, for an answer that is never old.
const FRESH: usize = 1_000;
/// So many groups of nodes are looked at for one key.
const MOST_GROUPS: usize = 10_000;
/// So many names are kept of each kind.
pub(crate) const MOST_NAMES: usize = 50;

/// What a look at everything has found.
#[derive(Default)]
pub struct Census {
    /// How many there are.
    pub counts: ServiceCounts,
    /// The vaults that have keys and too few signers, with their names.
    pub short: BTreeMap<VaultId, String>,
}

/// How many vaults can sign and what is on its way: as it is now where that is little, else as it was when it was last
/// counted. `None`: it is much, and was not counted yet.
///
/// # Errors
/// When the store cannot be read.
pub async fn counts(services: &Services) -> Result<Option<ServiceCounts>, Fault> {
    let written = written_counts(services).await?;
    let OpenRequestCounts {
        awaiting,
        unsigned,
        followed,
        ..
    } = written
        .as_ref()
        .map_or_else(Default::default, |it| it.requests.clone());
    let vaults = written.as_ref().map_or(0, |it| it.vaults.all());
    let rows = [vaults, awaiting, unsigned, followed];
    let rows = rows.into_iter().fold(0, u64::saturating_add);
    // What is counted now is no newer than what is known of the nodes.
    if usize::try_from(rows).is_ok_and(|rows| rows <= FRESH)
        && let Some(watched_ms) = leases::watched_ms(services).await?
        && let Some(now) = census(services, FRESH).await?
    {
        let at_ms = now.counts.at_ms.min(watched_ms);
        return Ok(Some(ServiceCounts {
            at_ms,
            ..now.counts
        }));
    }
    Ok(written)
}

/// What was counted last.
///
/// # Errors
/// When the store cannot be read.
pub async fn written_counts(services: &Services) -> Result<Option<ServiceCounts>, Fault> {
    let row = services
        .load::<ServiceCounts>(&overview_rows::counts())
        .await;
    Ok(skip_unreadable(row, "the counts of the service")?
        .flatten()
        .map(|(counts, _)| counts))
}

/// The last backup.
///
/// # Errors
/// When the store cannot be read.
pub async fn last_backup(services: &Services) -> Result<Option<BackupRow>, Fault> {
    let row = services.load::<BackupRow>(&overview_rows::backup()).await;
    Ok(skip_unreadable(row, "when the last backup was made")?
        .flatten()
        .map(|(backup, _)| backup))
}

/// Looks at all vaults and at what is on its way. `None` where that is more than `most` rows of a kind.
///
/// # Errors
/// When the store cannot be read.
async fn census(services: &Services, most: usize) -> Result<Option<Census>, Fault> {
    let nodes = nodes::written(services).await?;
    let nodes = nodes.into_iter().map(|node| (node.id, node)).collect();
    let homes = leases::live_homes(services).await?;
    let mut census = Census {
        counts: ServiceCounts {
            at_ms: services.now_ms(),
            ..ServiceCounts::default()
        },
        short: BTreeMap::new(),
    };
    let (mut read, mut next) = (0, all(KeySpace::Vault));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        read += page.len();
        if read > most {
            return Ok(None);
        }
        let mut vaults: Vec<Vault> = Vec::with_capacity(page.len());
        for (_, row) in &page {
            vaults.extend(skip_unreadable(rows::decode(&row.value), "a vault")?);
        }
        let leases = vaults.iter().map(|vault| LeaseScope::Vault(vault.id).key());
        let leases = leases.collect::<Vec<_>>();
        let leases = services.load_all::<LeaseRow>(&leases).await?;
        for (vault, lease) in vaults.iter().zip(leases) {
            let owner = lease.ok().flatten().and_then(|lease| lease.owner);
            let home = owner.and_then(|owner| homes.get(&owner));
            let home = home.map(|(_, home)| home);
            census.add_vault(services, vault, &nodes, home).await?;
        }
        next = scan.rest(&page);
        // Others are not to wait for it.
        tokio::task::yield_now().await;
    }
    let requests = &mut census.counts.requests;
    let (mut read, mut next) = (0, all(KeySpace::Outbox));
    while let Some(scan) = next {
        let (open, rest) = stuck::page(services, scan).await?;
        read += open.unsigned + open.followed;
        if read > most {
            return Ok(None);
        }
        requests.unsigned += count(open.unsigned);
        requests.followed += count(open.followed);
        requests.stuck += count(open.stuck.len());
        next = rest;
        tokio::task::yield_now().await;
    }
    let mut next = all(KeySpace::Awaiting);
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        requests.awaiting += count(page.len());
        if requests.awaiting > count(most) {
            return Ok(None);
        }
        next = scan.rest(&page);
        tokio::task::yield_now().await;
    }
    Ok(Some(census))
}

fn all(space: KeySpace) -> Option<Scan> {
    Some(Scan::prefix(space, &[], PAGE))
}

fn count(rows: usize) -> u64 {
    u64::try_from(rows).unwrap_or(u64::MAX)
}

/// How many holders can sign together: those that are available, take the orders of the vault's orchestrator, and list each
/// other. A client signer that requests may name counts.
fn signing_together(
    vault: &Vault,
    generation: &Generation,
    nodes: &BTreeMap<NodeId, NodeView>,
    home: Option<&NodeId>,
) -> usize {
    let may_be_named = &vault.approval.client_signers;
    let views = generation.holders.iter();
    let views = views.filter_map(|holder| nodes.get(holder));
    let views = views.filter(|node| match may_be_named.contains(&node.id) {
        true => node.can_sign_when_named(vault.id),
        false => node.can_sign(vault.id),
    });
    let views = views.filter(|node| home.is_none_or(|home| node.lists_orchestrator(home)));
    let mut groups = MOST_GROUPS;
    most_together(&views.collect::<Vec<_>>(), &mut groups)
}

/// The largest group of nodes that all list each other. Once no more `groups` may be looked at, all are taken for one.
fn most_together(nodes: &[&NodeView], groups: &mut usize) -> usize {
    let Some((first, others)) = nodes.split_first() else {
        return 0;
    };
    let Some(left) = groups.checked_sub(1) else {
        return nodes.len();
    };
    *groups = left;
    let each = |peer: &&NodeView| first.lists_peer(&peer.id) && peer.lists_peer(&first.id);
    let peers: Vec<&NodeView> = others.iter().copied().filter(each).collect();
    let with_first = most_together(&peers, groups).saturating_add(1);
    match peers.len() == others.len() {
        true => with_first,
        false => with_first.max(most_together(others, groups)),
    }
}

impl Census {
    /// Nodes that hold one key, or are to make it, and do not list each other: what one asks of another is refused.
    fn add_strangers(&mut self, vault: &Vault, nodes: &BTreeMap<NodeId, NodeView>) {
        let told = &mut self.counts.vaults.strangers;
        for key in &vault.keys {
            let holders = match &key.state {
                KeyState::Ready(live) => &live.generation.holders,
                _ => &vault.signers,
            };
            let holders = holders.iter().filter_map(|holder| nodes.get(holder));
            let holders: Vec<&NodeView> = holders.collect();
            for node in &holders {
                let strangers = holders.iter().filter(|peer| !node.lists_peer(&peer.id));
                for peer in strangers.filter(|peer| peer.id != node.id) {
                    let words = format!("{} does not list {} (signer.peers)", node.name, peer.name);
                    if told.len() < MOST_NAMES && !told.contains(&words) {
                        told.push(words);
                    }
                }
            }
        }
    }

    fn add_client_signers(&mut self, vault: &Vault, nodes: &BTreeMap<NodeId, NodeView>) {
        let told = &mut self.counts.vaults.client_signers_away;
        for signer in &vault.approval.client_signers {
            let node = nodes.get(signer);
            if told.len() < MOST_NAMES && !node.is_some_and(|it| it.can_sign_when_named(vault.id)) {
                let name = node.map_or_else(|| signer.openssh_line(""), |it| it.name.clone());
                told.push(format!("{name}, for vault {}", vault.name));
            }
        }
    }

    /// `home`: what nodes must list of the process that has the vault, where that is known.
    async fn add_vault(
        &mut self,
        services: &Services,
        vault: &Vault,
        nodes: &BTreeMap<NodeId, NodeView>,
        home: Option<&NodeId>,
    ) -> Result<(), Fault> {
        self.add_strangers(vault, nodes);
        self.add_client_signers(vault, nodes);
        let counts = &mut self.counts.vaults;
        let name = || vault.name.clone();
        if !vault.ready() {
            counts.no_keys += 1;
            if counts.cannot_sign.len() < MOST_NAMES {
                let reason = why_no_keys(services, vault).await?;
                counts.cannot_sign.push(format!("{}: {reason}", vault.name));
            }
            return Ok(());
        }
        let mut least_spare = usize::MAX;
        for key in &vault.keys {
            let KeyState::Ready(live) = &key.state else {
                continue;
            };
            let can_sign = signing_together(vault, &live.generation, nodes, home);
            let Some(spare) = can_sign.checked_sub(live.generation.threshold.into()) else {
                counts.short += 1;
                if counts.cannot_sign.len() < MOST_NAMES {
                    counts.cannot_sign.push(format!(
                        "{}: {can_sign} of {} signers that {} needs are available",
                        vault.name,
                        live.generation.threshold,
                        key.scheme.name()
                    ));
                }
                self.short.insert(vault.id, name());
                return Ok(());
            };
            least_spare = least_spare.min(spare);
        }
        let counts = &mut self.counts.vaults;
        counts.ready += 1;
        if least_spare == 0 {
            counts.no_spare += 1;
            if counts.without_spare.len() < MOST_NAMES {
                counts.without_spare.push(name());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::{order::ListedNodes, request::ApprovalRule, scheme::Scheme};

    use super::*;
    use crate::port::NodeHalt;

    fn node(id: u8, orchestrators: &[u8], peers: Option<&[u8]>) -> NodeView {
        let ids = |of: &[u8]| of.iter().map(|id| NodeId([*id; 32])).collect::<Vec<_>>();
        let peers = peers.map(ids);
        NodeView {
            live: true,
            listed: Some(ListedNodes::new(&ids(orchestrators), peers.as_ref())),
            ..NodeView::unseen(NodeId([id; 32]))
        }
    }

    fn vault(client_signers: &[u8]) -> Vault {
        let signers = [1, 2, 3].map(|id| NodeId([id; 32])).to_vec();
        let id = VaultId::from_bytes([1; 16]);
        let rule = ApprovalRule::automatic();
        let made = Vault::new(id, "main", 2, signers, Scheme::Dkls23, rule, 7).unwrap();
        let client_signers = client_signers.iter().map(|id| NodeId([*id; 32])).collect();
        let approval = ApprovalRule {
            client_signers,
            ..made.approval
        };
        Vault { approval, ..made }
    }

    fn together_of(vault: &Vault, nodes: Vec<NodeView>) -> usize {
        let generation = Generation {
            epoch: 0,
            threshold: 2,
            holders: nodes.iter().map(|node| node.id).collect(),
        };
        let nodes = nodes.into_iter().map(|node| (node.id, node)).collect();
        signing_together(vault, &generation, &nodes, Some(&NodeId([9; 32])))
    }

    fn together(nodes: Vec<NodeView>) -> usize {
        together_of(&vault(&[]), nodes)
    }

    #[test]
    fn holders__should_count_as_available_where_they_may_work_together() {
        let all = |id| node(id, &[9], Some(&[1, 2, 3]));
        assert_eq!(together(vec![all(1), all(2), all(3)]), 3);
        let refuses = |id| node(id, &[8], Some(&[1, 2, 3]));
        assert_eq!(together(vec![all(1), refuses(2), refuses(3)]), 1);
        let alone = node(2, &[9], Some(&[2]));
        assert_eq!(together(vec![all(1), alone.clone()]), 1);
        assert_eq!(together(vec![all(1), alone, all(3)]), 2);
        let any = |id| node(id, &[9], None);
        assert_eq!(together(vec![any(1), any(2)]), 2);
        // However many there are, and whomever they list.
        let odd = |id: u8| node(id, &[9], Some(&[1, id ^ 1, id ^ 2, id ^ 4, id ^ 64]));
        assert!(together((0..=254).map(odd).collect()) >= 2);
    }

    #[test]
    fn client_signers__should_count_where_requests_may_name_them() {
        let client = NodeView {
            halted: vec![NodeHalt::ClientSigner],
            ..node(3, &[9], None)
        };
        let away = NodeView {
            live: false,
            ..client.clone()
        };
        let other = |id| node(id, &[9], None);
        assert_eq!(together(vec![other(2), client.clone()]), 1);
        let vault = vault(&[3]);
        assert_eq!(together_of(&vault, vec![other(2), client.clone()]), 2);
        for (client, told) in [(client, 0), (away, 1)] {
            let mut census = Census::default();
            let nodes = [other(1), other(2), client].map(|node| (node.id, node));
            census.add_client_signers(&vault, &nodes.into());
            assert_eq!(census.counts.vaults.client_signers_away.len(), told);
        }
    }

    #[test]
    fn signers_of_a_key_that_is_to_be_made__should_be_told_when_they_do_not_list_each_other() {
        let mut census = Census::default();
        let nodes = [
            node(1, &[9], Some(&[2, 3])),
            node(2, &[9], Some(&[1])),
            node(3, &[9], None),
        ];
        let nodes = nodes.map(|node| (node.id, node));
        census.add_strangers(&vault(&[]), &nodes.into());
        assert_eq!(census.counts.vaults.strangers.len(), 1);
    }
}
