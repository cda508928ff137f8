//! How actors are found and asked.

use std::sync::Arc;

use covault_core::{fault::Fault, ids::VaultId};
use ractor::{ActorRef, rpc::CallResult};
use tokio::sync::watch;

use crate::{
    process::mailbox::ActorMailbox,
    services::Services,
    vaults::directory::DirectoryAddress,
    vaults::{directory, vault},
};

/// Finds the actors of vaults.
#[derive(Clone)]
pub struct VaultActors {
    pub services: Arc<Services>,
    pub directory: watch::Receiver<DirectoryAddress>,
}

impl VaultActors {
    /// The directory of vaults, once it has started.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] before.
    pub fn directory(&self) -> Result<ActorRef<directory::Msg>, Fault> {
        self.directory.borrow().clone().ok_or_else(starting)
    }

    /// The actor of a vault.
    ///
    /// # Errors
    /// `Invalid uuid`, and [`covault_core::fault::Class::Unavailable`] while it starts.
    pub async fn vault(&self, id: VaultId) -> Result<ActorMailbox<vault::Msg>, Fault> {
        let directory = match self.directory() {
            Ok(directory) => directory,
            Err(_) if self.services.vault(id).await?.is_none() => {
                return Err(Fault::invalid_uuid());
            }
            Err(starting) => return Err(starting),
        };
        let message = |reply| directory::Msg::GetVault(id, reply);
        let found = directory.call(message, self.services.call_timeout()).await;
        // Nothing was asked of the vault yet.
        let Ok(CallResult::Success(found)) = found else {
            return Err(starting());
        };
        match found {
            Some(vault) => Ok(vault),
            None if self.services.vault(id).await?.is_some() => Err(starting()),
            None => Err(Fault::invalid_uuid()),
        }
    }
}

/// What an actor answered.
///
/// # Errors
/// [`covault_core::fault::Class::Unavailable`] when it did not.
pub fn answer<T, M>(result: Result<CallResult<T>, ractor::MessagingErr<M>>) -> Result<T, Fault> {
    match result {
        Ok(CallResult::Success(answer)) => Ok(answer),
        // The actor had the message: what it was doing may still reach the disk.
        Ok(CallResult::Timeout | CallResult::SenderError) => Err(Fault::unavailable(
            "the outcome is not known: repeat the call with the same idempotency key, or read the state before retrying",
        )),
        Err(_) => Err(starting()),
    }
}

fn starting() -> Fault {
    Fault::unavailable("this part of the service is starting; try again")
}
