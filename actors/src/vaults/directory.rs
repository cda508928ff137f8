//! The actor that keeps the actors of the vaults that this orchestrator has, and has vaults made.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use async_trait::async_trait;
use covault_core::{fault::Fault, ids::VaultId};
use ractor::{
    Actor, ActorId, ActorProcessingErr, ActorRef, ActorRuntime, RpcReplyPort, SupervisionEvent,
};

use crate::{
    leases::LeaseScope,
    nodes,
    process::{
        mailbox::{ActorMailbox, MailboxDepth},
        tasks::contained,
    },
    requests::refused::RefusedLooks,
    services::Services,
    vaults::{
        creation::{NewVault, VaultMaker},
        unfinished,
        vault::{self, VaultActor, VaultArgs},
    },
};

/// Where the directory can be found; `None` while it starts again.
pub type DirectoryAddress = Option<ActorRef<Msg>>;

/// Where a vault's actor goes; `None` when it is not here, or starting again.
pub type VaultReply = RpcReplyPort<Option<ActorMailbox<vault::Msg>>>;

/// Messages.
pub enum Msg {
    /// Starts the actors of all vaults that are here.
    Resume,
    /// Asks for a vault's actor; `None` when it is not here, or starting again.
    GetVault(VaultId, VaultReply),
    /// Makes a vault, or finds the one of the same name.
    CreateVault(Box<NewVault>),
    /// A vault's actor is to be started again.
    RestartDue(VaultId),
    /// It is time to look which vaults that came here have something to go on with.
    LookDue,
    /// Which of these have, or why the store could not say.
    Looked(BTreeSet<VaultId>, Result<BTreeSet<VaultId>, Fault>),
    /// A vault has come here, or gone.
    LeaseChanged(VaultId),
    /// Answers once the actor of a vault that has gone has ended.
    Ended(VaultId, RpcReplyPort<()>),
    /// The actor of a vault has begun, or could not.
    Started(VaultId, ActorId, Result<(), String>),
}

/// Actors that begin at the same time: each reads the store. Callers need not wait until all others have begun, and when
/// they ask for very many at once, those of the first ones are not as late as those of the last ones.
const STARTING_AT_ONCE: usize = 32;
const STARTING_FOR_CALLERS: usize = 2 * STARTING_AT_ONCE;
/// Vaults of which it is looked at once what they have to go on with.
const LOOKED_AT_ONCE: usize = 200;

pub struct VaultDirectory;

pub struct DirectoryState {
    services: Arc<Services>,
    /// With the version of the lease under which each runs.
    vaults: HashMap<VaultId, (ActorMailbox<vault::Msg>, u64)>,
    ids: HashMap<ActorId, VaultId>,
    /// Who waits for the end of an actor.
    ended: HashMap<VaultId, Vec<RpcReplyPort<()>>>,
    failures: HashMap<VaultId, u32>,
    /// Those that came here with too many others for all to begin. An actor is to begin where there is something to go on
    /// with.
    unseen: BTreeSet<VaultId>,
    /// Some of them are being looked at, or will be after a pause.
    is_looking: bool,
    /// How often in a row that failed.
    failed_looks: u32,
    /// Whose actors are to begin, in this order; some may have by now, or be gone.
    due: VecDeque<VaultId>,
    /// Callers whose vaults have no actor yet, in this order.
    asked: VecDeque<(VaultId, VaultReply)>,
    /// Whose actors have not begun yet.
    starting: HashSet<ActorId>,
    /// What is in memory of refused transactions, of all vaults.
    refused_looks: Arc<RefusedLooks>,
    maker: VaultMaker,
}

#[async_trait]
impl Actor for VaultDirectory {
    type Msg = Msg;
    type State = DirectoryState;
    type Arguments = Arc<Services>;

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        services: Arc<Services>,
    ) -> Result<DirectoryState, ActorProcessingErr> {
        let directory = myself.clone();
        let changed = move |vault| {
            // A restarted one begins with everything stored.
            let _ = directory.cast(Msg::LeaseChanged(vault));
        };
        services.held_leases.on_change(Box::new(changed));
        myself.cast(Msg::Resume)?;
        Ok(DirectoryState {
            maker: VaultMaker::new(Arc::clone(&services)),
            services,
            vaults: HashMap::new(),
            ids: HashMap::new(),
            ended: HashMap::new(),
            failures: HashMap::new(),
            unseen: BTreeSet::new(),
            is_looking: false,
            failed_looks: 0,
            due: VecDeque::new(),
            asked: VecDeque::new(),
            starting: HashSet::new(),
            refused_looks: Arc::default(),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut DirectoryState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::Resume => {
                // Before any vault may ask a signer.
                nodes::sync_admitted(&state.services).await?;
                for lease in state.services.held_leases.all() {
                    if let LeaseScope::Vault(vault) = lease.scope() {
                        state.reconcile(&myself, vault);
                    }
                }
            }
            Msg::GetVault(id, reply) => {
                let is_here = state
                    .services
                    .held_leases
                    .get(LeaseScope::Vault(id))
                    .is_some();
                let has_actor = state.vaults.contains_key(&id) || state.failures.contains_key(&id);
                if is_here && !has_actor {
                    state.asked.push_back((id, reply));
                    state.start_asked(&myself);
                } else {
                    state.tell(&myself, id, reply);
                }
            }
            Msg::CreateVault(new) => state.maker.begin(*new),
            Msg::LeaseChanged(vault) => state.reconcile(&myself, vault),
            Msg::RestartDue(vault) => {
                state.due.push_back(vault);
                state.start_due(&myself);
            }
            Msg::LookDue => {
                state.is_looking = false;
                state.look(&myself);
            }
            Msg::Looked(vaults, found) => state.looked(&myself, vaults, found),
            Msg::Ended(vault, reply) => {
                if state.vaults.contains_key(&vault) {
                    state.ended.entry(vault).or_default().push(reply);
                } else {
                    let _ = reply.send(());
                }
            }
            Msg::Started(vault, actor, outcome) => {
                state.starting.remove(&actor);
                if let Err(error) = outcome {
                    tracing::error!(%vault, error, "vault actor failed to start");
                    state.ended(&myself, actor);
                }
                state.start_due(&myself);
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Msg>,
        event: SupervisionEvent,
        state: &mut DirectoryState,
    ) -> Result<(), ActorProcessingErr> {
        let (actor, error) = match event {
            SupervisionEvent::ActorTerminated(actor, _, reason) => {
                (actor, reason.unwrap_or_default())
            }
            SupervisionEvent::ActorFailed(actor, error) => (actor, error.to_string()),
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {
                return Ok(());
            }
        };
        if let Some(vault) = state.ended(&myself, actor.get_id()) {
            tracing::error!(%vault, error, "vault actor failed; restarting it from the store");
        }
        Ok(())
    }
}

impl DirectoryState {
    /// Has the actor of a vault run where the vault is here, and only under the present lease: two
    /// would undo each other's work.
    fn reconcile(&mut self, myself: &ActorRef<Msg>, vault: VaultId) {
        let lease = self.services.held_leases.get(LeaseScope::Vault(vault));
        if lease.is_none() {
            self.failures.remove(&vault);
            self.unseen.remove(&vault);
        }
        if let Some((actor, version)) = self.vaults.get(&vault) {
            if lease.as_ref().map(|lease| lease.version()) != Some(*version) {
                // Its work has no effect. The next one starts after its end.
                actor.actor().kill();
            }
        } else if self.starting.len() < STARTING_AT_ONCE && self.due.is_empty() {
            self.start(myself, vault);
        } else if lease.is_some() {
            self.unseen.insert(vault);
            self.look(myself);
        }
    }

    /// Finds out which of those that came here together have something to go on with.
    fn look(&mut self, myself: &ActorRef<Msg>) {
        if self.is_looking || self.unseen.is_empty() {
            return;
        }
        self.is_looking = true;
        let rest = match self.unseen.iter().nth(LOOKED_AT_ONCE).copied() {
            Some(first) => self.unseen.split_off(&first),
            None => BTreeSet::new(),
        };
        let vaults = std::mem::replace(&mut self.unseen, rest);
        let (services, directory) = (Arc::clone(&self.services), myself.clone());
        tokio::spawn(async move {
            let found = contained(unfinished::among(&*services.store, &vaults)).await;
            let _ = directory.cast(Msg::Looked(vaults, found));
        });
    }

    fn looked(
        &mut self,
        myself: &ActorRef<Msg>,
        vaults: BTreeSet<VaultId>,
        found: Result<BTreeSet<VaultId>, Fault>,
    ) {
        match found {
            Ok(found) => {
                self.failed_looks = 0;
                self.is_looking = false;
                self.due.extend(found);
                self.start_due(myself);
                self.look(myself);
            }
            Err(fault) => {
                // Once an outage is enough.
                if self.failed_looks == 0 {
                    tracing::warn!(
                        ?fault,
                        "failed to read what vaults have to go on with; all of these begin"
                    );
                }
                self.failed_looks = self.failed_looks.saturating_add(1);
                // What cannot be read of one of them must not hold up the others, nor those behind them.
                self.due.extend(vaults);
                self.start_due(myself);
                let pause = self.services.backoff(self.failed_looks);
                myself.send_after(pause, || Msg::LookDue);
            }
        }
    }

    /// Tells a caller of the actor of a vault, which begins where there is none.
    fn tell(&mut self, myself: &ActorRef<Msg>, id: VaultId, reply: VaultReply) {
        if !self.failures.contains_key(&id) {
            self.start(myself, id);
        }
        let lease = self.services.held_leases.get(LeaseScope::Vault(id));
        let here = |version| lease.is_some_and(|lease| lease.version() == version);
        let found = self.vaults.get(&id);
        let found = found.filter(|(_, version)| here(*version));
        let _ = reply.send(found.map(|(actor, _)| actor.clone()));
    }

    /// Has actors begin that callers wait for.
    fn start_asked(&mut self, myself: &ActorRef<Msg>) {
        while self.starting.len() < STARTING_FOR_CALLERS
            && let Some((id, reply)) = self.asked.pop_front()
        {
            // Who asked may have stopped waiting.
            if !reply.is_closed() {
                self.tell(myself, id, reply);
            }
        }
    }

    /// Has the next ones begin.
    fn start_due(&mut self, myself: &ActorRef<Msg>) {
        self.start_asked(myself);
        while self.starting.len() < STARTING_AT_ONCE
            && let Some(vault) = self.due.pop_front()
        {
            self.start(myself, vault);
        }
    }

    /// Has the actor of a vault begin, where the vault is here and has none.
    fn start(&mut self, myself: &ActorRef<Msg>, vault: VaultId) {
        let lease = self.services.held_leases.get(LeaseScope::Vault(vault));
        let (Some(lease), false) = (lease, self.vaults.contains_key(&vault)) else {
            return;
        };
        let version = lease.version();
        let depth = MailboxDepth::new(&self.services.counters.vault_mailboxes);
        let args = VaultArgs {
            depth: Arc::clone(&depth),
            services: Arc::new(self.services.with_lease(lease)),
            vault,
            refused_looks: Arc::clone(&self.refused_looks),
        };
        // What it reads first is not waited for: others begin at the same time.
        let spawned = ActorRuntime::spawn_linked_instant(None, VaultActor, args, myself.get_cell());
        match spawned {
            Ok((actor, begun)) => {
                let (directory, id) = (myself.clone(), actor.get_id());
                self.starting.insert(id);
                self.ids.insert(id, vault);
                self.vaults
                    .insert(vault, (ActorMailbox::new(actor, depth), version));
                tokio::spawn(async move {
                    let outcome = match begun.await {
                        Ok(Ok(_)) => Ok(()),
                        Ok(Err(error)) => Err(error.to_string()),
                        Err(error) => Err(error.to_string()),
                    };
                    let _ = directory.cast(Msg::Started(vault, id, outcome));
                });
            }
            Err(error) => {
                tracing::error!(%vault, %error, "vault actor failed to start");
                self.restart_later(myself, vault);
            }
        }
    }

    /// The actor of a vault has ended; it starts again where the vault is here. Which vault it was that is to go
    /// on.
    fn ended(&mut self, myself: &ActorRef<Msg>, actor: ActorId) -> Option<VaultId> {
        let vault = self.ids.remove(&actor)?;
        self.starting.remove(&actor);
        self.vaults.remove(&vault);
        for waiting in self.ended.remove(&vault).into_iter().flatten() {
            let _ = waiting.send(());
        }
        self.services.held_leases.get(LeaseScope::Vault(vault))?;
        self.restart_later(myself, vault);
        Some(vault)
    }

    fn restart_later(&mut self, myself: &ActorRef<Msg>, vault: VaultId) {
        let failures = self.failures.entry(vault).or_default();
        *failures = failures.saturating_add(1);
        myself.send_after(self.services.backoff(*failures), move || {
            Msg::RestartDue(vault)
        });
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
