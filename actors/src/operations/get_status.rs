use std::collections::BTreeMap;

use async_trait::async_trait;
use covault_core::{fault::Fault, ids::OrchestratorId, schema::admin, version::this_version};

use super::{Operation, OperationCall, list_nodes::nodes_message};
use crate::{
    chain_rpc::EndpointHealth,
    health::Health,
    leases, nodes, overview,
    process::counters::RequestCounts,
    services::{Services, skip_unreadable},
    store::overview_rows::{
        self, BackupRow, FailedRequest, OpenRequestCounts, ServiceCounts, VaultCounts,
    },
};

/// Says whether the service can sign, and what prevents it.
pub struct GetStatus;

#[async_trait]
impl Operation for GetStatus {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.GetStatus";
    type Request = admin::GetStatusRequest;
    type Response = admin::GetStatusResponse;

    async fn run(call: OperationCall<'_>, _: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let health = call.health.look(services).await;
        let said = |part: &Result<(), Fault>| {
            let problem = part.as_ref().err();
            problem.map(|fault| fault.message().to_owned())
        };
        let Health {
            store,
            bus,
            clients,
            ..
        } = &health;
        let eligible = services.held_leases.eligible();
        let orchestrators = eligible.map_or(1, |eligible| eligible.len());
        let (is_readable, own) = (
            store.is_ok(),
            admin::GetStatusResponse {
                now_ms: services.now_ms(),
                version: this_version().to_owned(),
                store_problem: said(store),
                bus_problem: said(bus),
                clients_problem: said(clients),
                orchestrators: small(orchestrators),
                chains: chains(services.chains.health()),
                log_level: services.log.level(),
                configured_log_level: services.log.configured(),
                ..Default::default()
            },
        );
        let own = admin::GetStatusResponse {
            not_ready: said(&health.ready()),
            ..own
        };
        match is_readable {
            true => with_stored(services, own).await,
            false => Ok(own),
        }
    }
}

/// With what every process answers the same.
async fn with_stored(
    services: &Services,
    own: admin::GetStatusResponse,
) -> Result<admin::GetStatusResponse, Fault> {
    let nodes = nodes_message(services).await?;
    let counts = overview::counts(services).await?;
    let backup = overview::last_backup(services).await?;
    let key = overview_rows::failures();
    let failed = services.load::<Vec<FailedRequest>>(&key).await;
    let failed = skip_unreadable(failed, "the last failures")?.flatten();
    let mut failures = Vec::new();
    for failed in failed.into_iter().flat_map(|(failed, _)| failed).rev() {
        failures.push(failure(services, failed).await?);
    }
    let (vaults, requests) = counts.map(counted).unzip();
    let totals = leases::request_totals(services).await?;
    Ok(admin::GetStatusResponse {
        nodes: nodes.nodes,
        want_to_join: nodes.want_to_join,
        nodes_as_of_ms: nodes.as_of_ms,
        vaults,
        requests,
        last_backup: backup.map(|BackupRow { at_ms, bytes }| admin::StoreBackup { at_ms, bytes }),
        failures,
        nodes_that_refuse: refusing(services).await?,
        request_totals: totals.into_iter().map(process_totals).collect(),
        ..own
    })
}

/// Which nodes do not list which processes with vaults, in words. Others send them no orders.
async fn refusing(services: &Services) -> Result<Vec<String>, Fault> {
    let homes = leases::live_homes(services).await?;
    let mut refusing = Vec::new();
    for node in nodes::written(services).await? {
        let missing = homes
            .values()
            .filter(|(_, home)| !node.lists_orchestrator(home));
        refusing.extend(missing.map(|(name, home)| {
            let home = home.openssh_line(name);
            format!("{} does not list {home}", node.name)
        }));
    }
    refusing.truncate(overview::MOST_NAMES);
    Ok(refusing)
}

fn process_totals((process, counts): (OrchestratorId, RequestCounts)) -> admin::RequestTotals {
    let RequestCounts {
        created,
        succeeded,
        failed,
    } = counts;
    admin::RequestTotals {
        process: process.to_string(),
        created,
        succeeded,
        failed,
    }
}

fn counted(counts: ServiceCounts) -> (admin::VaultCounts, admin::OpenRequestCounts) {
    let ServiceCounts {
        at_ms,
        vaults,
        requests,
    } = counts;
    let VaultCounts {
        ready,
        short,
        no_keys,
        cannot_sign,
        no_spare,
        without_spare,
        strangers,
        client_signers_away,
    } = vaults;
    let OpenRequestCounts {
        awaiting,
        unsigned,
        followed,
        stuck,
    } = requests;
    let vaults = admin::VaultCounts {
        counted_ms: at_ms,
        ready,
        short,
        no_keys,
        cannot_sign,
        no_spare,
        without_spare,
        strangers,
        client_signers_away,
    };
    let requests = admin::OpenRequestCounts {
        counted_ms: at_ms,
        awaiting,
        unsigned,
        followed,
        stuck,
    };
    (vaults, requests)
}

async fn failure(
    services: &Services,
    failed: FailedRequest,
) -> Result<admin::FailedRequest, Fault> {
    let FailedRequest {
        at_ms,
        request,
        vault,
        kind,
        class,
        during,
        reason,
    } = failed;
    let found = skip_unreadable(services.vault(vault).await, "a vault")?.flatten();
    Ok(admin::FailedRequest {
        at_ms,
        uuid: request.to_string(),
        vault: found.map_or_else(|| vault.to_string(), |(vault, _)| vault.name),
        kind,
        class,
        during,
        reason,
    })
}

fn chains(nodes: Vec<EndpointHealth>) -> Vec<admin::ChainNodes> {
    let mut chains: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for node in nodes {
        let (answering, all) = chains.entry(node.chain).or_default();
        *answering += usize::from(node.failures == 0);
        *all += 1;
    }
    let chains = chains.into_iter();
    let message = |(chain, (answering, all))| admin::ChainNodes {
        chain,
        answering: small(answering),
        nodes: small(all),
    };
    chains.map(message).collect()
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::sync::Arc;

    use covault_core::{
        order::{ListedNodes, NodeId},
        testing::{ConstantEntropy, ManualClock},
    };

    use super::*;
    use crate::{
        leases::{MemberRow, member},
        nodes::{AdmittedNode, status::NodeStatusRow},
        port::NodeView,
        services::Listeners,
        settings::{OrchestratorParts, OrchestratorSharing},
        store::{Batch, Precondition, Store as _, memory::MemoryStore, rows},
        testing::orchestrator_parts,
    };

    fn process(store: &Arc<MemoryStore>, home: u8, runs_vaults: bool) -> Services {
        let parts = OrchestratorParts {
            entropy: Arc::new(ConstantEntropy(home)),
            sharing: OrchestratorSharing {
                home: Some([home; 32]),
                runs_vaults,
                ..OrchestratorSharing::default()
            },
            ..orchestrator_parts(Arc::clone(store) as _, Arc::new(ManualClock::at(1)))
        };
        Services::new(parts, Listeners::none())
    }

    #[tokio::test]
    async fn nodes__should_list_the_processes_with_vaults_and_no_others() {
        let store = Arc::new(MemoryStore::new());
        let (node, mut batch) = (NodeId([9; 32]), Batch::new());
        let admitted = AdmittedNode {
            id: node,
            name: "graz".into(),
            at_ms: 1,
        };
        let nobody = None::<[&NodeId; 0]>;
        let seen = NodeStatusRow {
            at_ms: 1,
            node: NodeView {
                listed: Some(ListedNodes::new([&NodeId([1; 32])], nobody)),
                ..NodeView::unseen(node)
            },
        };
        let [one, two, dead] = [1, 2, 3].map(|id| OrchestratorId::from_bytes([id; 16]));
        for (id, home) in [(one, 1), (two, 2), (dead, 3)] {
            let row = MemberRow {
                name: format!("process{home}"),
                home: Some([home; 32]),
                ..MemberRow::default()
            };
            let row = rows::encode(&row).unwrap();
            batch.put(member(id), Precondition::Absent, row);
        }
        let row = rows::encode(&admitted).unwrap();
        batch.put(rows::node(node), Precondition::Absent, row);
        let row = rows::encode(&seen).unwrap();
        batch.put(rows::node_status(node), Precondition::Absent, row);
        store.commit(batch).await.unwrap();

        let (http, with_vaults) = (process(&store, 7, false), process(&store, 1, true));
        http.held_leases.set_eligible(vec![one]);
        assert!(refusing(&http).await.unwrap().is_empty());
        for services in [&http, &with_vaults] {
            services.held_leases.set_eligible(vec![one, two]);
            let two = NodeId([2; 32]).openssh_line("process2");
            let words = format!("graz does not list {two}");
            assert_eq!(refusing(services).await.unwrap(), [words]);
        }
    }

    #[tokio::test]
    async fn requests__should_be_those_of_all_processes_that_are_alive() {
        let store = Arc::new(MemoryStore::new());
        let services = process(&store, 1, true);
        let me = services.held_leases.me();
        let [one, two, dead] = [1, 2, 3].map(|id| OrchestratorId::from_bytes([id; 16]));
        let mut batch = Batch::new();
        // Its own row is older than what it knows.
        for (id, created) in [(me, 1), (one, 10), (two, 20), (dead, 40)] {
            let requests = RequestCounts {
                created,
                ..RequestCounts::default()
            };
            let row = MemberRow {
                requests,
                ..MemberRow::default()
            };
            let row = rows::encode(&row).unwrap();
            batch.put(member(id), Precondition::Absent, row);
        }
        store.commit(batch).await.unwrap();
        let created = async || {
            let totals = leases::request_totals(&services).await.unwrap();
            let created = totals.into_iter().map(|(id, counts)| (id, counts.created));
            created.collect::<Vec<_>>()
        };
        for kind in ["evmMessage", "rawMessage"] {
            services
                .counters
                .request(kind, |counts| counts.created += 1);
        }
        assert_eq!(created().await, [(me, 2)], "nobody else is there");
        for eligible in [vec![one, two], vec![one, two, me]] {
            services.held_leases.set_eligible(eligible);
            let mut wanted = [(one, 10), (two, 20), (me, 2)];
            wanted.sort();
            assert_eq!(created().await, wanted);
        }
    }
}
