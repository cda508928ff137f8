//! The actor that knows every vault and keeps their actors.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use covault_core::{
    audit::Chain,
    fault::{Class, Fault},
    ids::VaultId,
    order::NodeId,
    scheme::Scheme,
    wallet::vault::Vault,
};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};

use crate::{
    audit::{self, By, Note},
    context::Context,
    gateway::answer,
    nodes, rows,
    store::{Batch, CommitError, Expect, Scan, Space},
    vault::{self, KeyPlan, VaultActor},
};

/// Most vaults of one orchestrator.
const MAX_VAULTS: usize = 100_000;

/// Messages.
pub enum Msg {
    /// Starts the actors of all vaults.
    Resume,
    /// Asks for a vault's actor; `None` when there is no such vault or it is starting again.
    GetVault(VaultId, RpcReplyPort<Option<ActorRef<vault::Msg>>>),
    /// Makes a vault, or finds the one of the same name.
    CreateVault(Box<NewVault>),
    /// Asks a vault for something that needs nodes: none of them is removed meanwhile.
    WithAdmitted(Box<WithAdmitted>),
    /// Admits or removes a signer node.
    ChangeNodes(nodes::Change, By, RpcReplyPort<Result<(), Fault>>),
    /// A vault's actor is to be started again.
    RestartDue(VaultId),
}

/// A vault to be made.
pub struct NewVault {
    /// Its name.
    pub name: String,
    /// Signers needed.
    pub threshold: u16,
    /// The nodes that get a share.
    pub signers: Vec<NodeId>,
    /// The scheme of its ECDSA key.
    pub ecdsa: Scheme,
    /// Whether a vault of this name that has not all its keys yet makes those that it lacks like
    /// this, whatever it was told before.
    pub replace: bool,
    /// Who wants it.
    pub by: By,
    /// Where the vault goes.
    pub reply: RpcReplyPort<Result<Vault, Fault>>,
}

/// What is asked of a vault.
pub type AskVault = Box<dyn FnOnce(RpcReplyPort<Result<Vault, Fault>>) -> vault::Msg + Send>;

/// A question to a vault that names nodes which have to be admitted.
pub struct WithAdmitted {
    /// The vault.
    pub vault: VaultId,
    /// The nodes.
    pub nodes: Vec<NodeId>,
    /// The question.
    pub ask: AskVault,
    /// Where the vault goes.
    pub reply: RpcReplyPort<Result<Vault, Fault>>,
}

/// The actor.
pub struct Directory;

/// Its state.
pub struct Live {
    context: Arc<Context>,
    vaults: HashMap<VaultId, ActorRef<vault::Msg>>,
    ids: HashMap<ActorId, VaultId>,
    failures: HashMap<VaultId, u32>,
}

#[async_trait]
impl Actor for Directory {
    type Msg = Msg;
    type State = Live;
    type Arguments = Arc<Context>;

    async fn pre_start(
        &self,
        myself: ActorRef<Msg>,
        context: Arc<Context>,
    ) -> Result<Live, ActorProcessingErr> {
        myself.cast(Msg::Resume)?;
        Ok(Live {
            context,
            vaults: HashMap::new(),
            ids: HashMap::new(),
            failures: HashMap::new(),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        live: &mut Live,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Msg::Resume => {
                // Before any vault may ask a signer.
                nodes::tell(&live.context).await?;
                let all = Scan::prefix(Space::Vault, &[], MAX_VAULTS);
                for (_, row) in live.context.store.scan(&all).await? {
                    // One that cannot be read must not stop the others.
                    match rows::decode::<Vault>(&row.value) {
                        Ok(vault) => live.start(&myself, vault.id).await,
                        Err(fault) => tracing::error!(?fault, "a stored vault cannot be read"),
                    }
                }
            }
            Msg::GetVault(id, reply) => {
                let _ = reply.send(live.vaults.get(&id).cloned());
            }
            Msg::CreateVault(new) => {
                let (made, reply) = live.create(*new).await;
                if let Ok(vault) = &made {
                    live.start(&myself, vault.id).await;
                }
                let _ = reply.send(made);
            }
            Msg::WithAdmitted(question) => {
                let WithAdmitted {
                    vault,
                    nodes,
                    ask,
                    reply,
                } = *question;
                let _ = reply.send(live.ask(vault, &nodes, ask).await);
            }
            Msg::ChangeNodes(change, by, reply) => {
                let _ = reply.send(nodes::change(&live.context, change, &by).await);
            }
            Msg::RestartDue(vault) => live.start(&myself, vault).await,
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Msg>,
        event: SupervisionEvent,
        live: &mut Live,
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
        if let Some(vault) = live.ids.remove(&actor.get_id()) {
            tracing::error!(%vault, error, "the actor of a vault ended; it starts again from the store");
            live.vaults.remove(&vault);
            live.restart_later(&myself, vault);
        }
        Ok(())
    }
}

impl Live {
    /// Starts the actor of a vault, unless one lives: two would undo each other's work.
    async fn start(&mut self, myself: &ActorRef<Msg>, vault: VaultId) {
        if self.vaults.contains_key(&vault) {
            return;
        }
        let args = (Arc::clone(&self.context), vault);
        match Actor::spawn_linked(None, VaultActor, args, myself.get_cell()).await {
            Ok((actor, _)) => {
                self.ids.insert(actor.get_id(), vault);
                self.vaults.insert(vault, actor);
            }
            Err(error) => {
                tracing::error!(%vault, %error, "the actor of a vault does not start");
                self.restart_later(myself, vault);
            }
        }
    }

    fn restart_later(&mut self, myself: &ActorRef<Msg>, vault: VaultId) {
        let failures = self.failures.entry(vault).or_default();
        *failures = failures.saturating_add(1);
        myself.send_after(self.context.pause(*failures), move || {
            Msg::RestartDue(vault)
        });
    }

    /// Asks a vault. Its actor never asks the directory, so this does not go in a circle.
    async fn ask(&self, vault: VaultId, nodes: &[NodeId], ask: AskVault) -> Result<Vault, Fault> {
        nodes::check_admitted(&self.context, "signers", nodes).await?;
        let actor = self
            .vaults
            .get(&vault)
            .ok_or_else(|| Fault::unavailable("the vault is starting again; repeat the command"))?;
        answer(actor.call(ask, self.context.call_timeout()).await)?
    }

    async fn create(
        &self,
        new: NewVault,
    ) -> (Result<Vault, Fault>, RpcReplyPort<Result<Vault, Fault>>) {
        let NewVault {
            name,
            threshold,
            signers,
            ecdsa,
            replace,
            by,
            reply,
        } = new;
        let plan = (threshold, signers, ecdsa);
        (self.create_or_find(&name, plan, replace, by).await, reply)
    }

    async fn create_or_find(
        &self,
        name: &str,
        (threshold, signers, ecdsa): (u16, Vec<NodeId>, Scheme),
        replace: bool,
        by: By,
    ) -> Result<Vault, Fault> {
        let by_name = rows::vault_name(name);
        if let Some((id, _)) = self.context.load::<VaultId>(&by_name).await? {
            let (vault, _) = self
                .context
                .vault(id)
                .await?
                .ok_or_else(|| Fault::bug("a name without a vault"))?;
            if vault.threshold == threshold && vault.signers == signers && vault.ecdsa() == ecdsa {
                return Ok(vault);
            }
            if !replace {
                let hint = if vault.ready() {
                    ""
                } else {
                    "; not all of its keys are made yet, and until then it can be given these \
                     instead (covault vault create --replace)"
                };
                return Err(Fault::new(
                    Class::Conflict,
                    format!(
                        "a vault of this name exists with another threshold, other signers or \
                         another ECDSA backend{hint}"
                    ),
                ));
            }
            let nodes = signers.clone();
            let ask: AskVault = Box::new(move |reply| {
                vault::Msg::MakeKeysWith(Box::new(KeyPlan {
                    threshold,
                    signers,
                    ecdsa,
                    by,
                    reply,
                }))
            });
            return self.ask(id, &nodes, ask).await;
        }
        nodes::check_admitted(&self.context, "signers", &signers).await?;
        let id = self.context.new_vault_id();
        let vault = Vault::new(id, name, threshold, signers, ecdsa, self.context.now_ms())?;
        let mut batch = Batch::new();
        batch.put(rows::vault(id), Expect::Absent, rows::encode(&vault)?);
        batch.put(by_name, Expect::Absent, rows::encode(&id)?);
        let chain = Chain::Vault(id);
        Note::of_vault(&by, id, "VaultMade")
            .fact("name", name)
            .fact("threshold", threshold)
            .fact("signers", audit::nodes(&vault.signers))
            .fact("ecdsa", ecdsa.name())
            .add_to(&mut batch, chain, vault.created_at_ms)?;
        audit::tell_of(&by, chain, &mut batch, vault.created_at_ms)?;
        match self.context.store.commit(batch).await {
            Ok(()) => Ok(vault),
            Err(CommitError::Conflict(_)) => {
                Err(Fault::new(Class::Conflict, "a vault of this name exists"))
            }
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
