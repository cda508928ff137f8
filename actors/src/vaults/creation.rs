//! Making vaults.

use std::sync::Arc;

use covault_core::{
    audit::AuditChain,
    fault::{Class, Fault},
    ids::VaultId,
    order::NodeId,
    request::ApprovalRule,
    scheme::Scheme,
    wallet::vault::Vault,
};
use ractor::RpcReplyPort;
use tokio::sync::Mutex;

use crate::{
    audit::{self, AuditActor, AuditNote},
    leases::{self, Lease, LeaseScope},
    nodes,
    services::Services,
    store::{Batch, CommitError, Precondition, rows},
    vaults::management,
};

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
    /// Who decides about its requests.
    pub approval: ApprovalRule,
    /// Whether a vault of this name that has not all its keys yet makes those that it lacks like
    /// this, whatever it was told before.
    pub replace: bool,
    /// Who asked for it.
    pub by: AuditActor,
    /// Where what was found or made goes.
    pub reply: RpcReplyPort<Result<VaultCreation, Fault>>,
}

/// What there is for a vault that is to be made.
#[derive(Debug)]
pub enum VaultCreation {
    /// It, made now or before.
    Vault(Box<Vault>),
    /// One of its name that has not all its keys yet: its actor is to be asked for others.
    Other(VaultId),
}

/// Makes vaults, one after the other in this process: each writes the rows of its signers ([`nodes::pin_rows`]), so that of
/// several at once all but one would be turned away and begin again.
pub struct VaultMaker {
    services: Arc<Services>,
    turn: Arc<Mutex<()>>,
}

impl VaultMaker {
    pub fn new(services: Arc<Services>) -> Self {
        Self {
            services,
            turn: Arc::default(),
        }
    }

    /// Begins to make a vault, or to find the one of the same name, and does not wait for the end.
    pub fn begin(&self, new: NewVault) {
        let (services, turn) = (Arc::clone(&self.services), Arc::clone(&self.turn));
        // One that ends after this process has given its leases back would make a vault that nobody has for a while.
        self.services.tasks.spawn(async move {
            let _turn = turn.lock_owned().await;
            // Who asked may have stopped waiting before its turn came.
            if !new.reply.is_closed() {
                let made = find_or_create(&services, &new).await;
                let _ = new.reply.send(made);
            }
        });
    }
}

async fn find_or_create(services: &Services, new: &NewVault) -> Result<VaultCreation, Fault> {
    let by_name = rows::vault_name(&new.name);
    loop {
        if let Some((id, _)) = services.load::<VaultId>(&by_name).await? {
            let found = services.vault(id).await?;
            let (vault, _) = found.ok_or_else(|| Fault::bug("a name without a vault"))?;
            return found_by_name(vault, new);
        }
        if let Some(made) = create(services, new).await? {
            return Ok(VaultCreation::Vault(Box::new(made)));
        }
    }
}

/// What a vault of the same name is for whoever asks for this one.
fn found_by_name(vault: Vault, new: &NewVault) -> Result<VaultCreation, Fault> {
    let conflict = |problem: String| Err(Fault::new(Class::Conflict, problem));
    if vault.approval != new.approval {
        return conflict("a vault of this name exists with another approval rule".into());
    }
    if vault.threshold == new.threshold
        && vault.signers == new.signers
        && vault.ecdsa() == new.ecdsa
    {
        return Ok(VaultCreation::Vault(Box::new(vault)));
    }
    if new.replace {
        return Ok(VaultCreation::Other(vault.id));
    }
    let hint = if vault.ready() {
        ""
    } else {
        "; not all of its keys exist yet, and until then covault vault create --replace can change them"
    };
    conflict(format!(
        "a vault of this name exists with another threshold, other signers or another ECDSA backend{hint}"
    ))
}

/// `None`: another call made one of this name, or one of the nodes was changed. It is to be looked at again.
async fn create(services: &Services, new: &NewVault) -> Result<Option<Vault>, Fault> {
    let (id, now_ms) = (services.new_vault_id(), services.now_ms());
    let mut batch = Batch::new();
    nodes::pin_rows(services, &mut batch, "signers", &new.signers).await?;
    let vault = Vault::new(
        id,
        &new.name,
        new.threshold,
        new.signers.clone(),
        new.ecdsa,
        new.approval.clone(),
        now_ms,
    )?;
    batch.put(rows::vault(id), Precondition::Absent, rows::encode(&vault)?);
    let by_name = rows::vault_name(&new.name);
    batch.put(by_name, Precondition::Absent, rows::encode(&id)?);
    management::add_of_new(&mut batch, &vault)?;
    let (lease, mine) = leases::first_lease(services, id).await?;
    let scope = LeaseScope::Vault(id);
    batch.put(scope.key(), Precondition::Absent, rows::encode(&lease)?);
    let chain = AuditChain::Vault(id);
    AuditNote::for_vault(&new.by, id, "VaultMade")
        .fact("name", &new.name)
        .fact("threshold", new.threshold)
        .fact("signers", audit::nodes(&vault.signers))
        .fact("ecdsa", new.ecdsa.name())
        .fact("approvals", new.approval.describe_people())
        .fact("clientSigners", new.approval.describe_client_signers())
        .add_to(&mut batch, chain, now_ms)?;
    audit::note_chain_begin(&new.by, chain, &mut batch, now_ms)?;
    match services.store.commit(batch).await {
        Ok(()) if mine => services.held_leases.begin(Lease::new(scope, 1)),
        Ok(()) => services.held_leases.moved(),
        Err(CommitError::Conflict(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    Ok(Some(vault))
}
