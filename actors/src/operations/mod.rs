//! The operations of the platform, sweep and admin APIs: one file of this folder each, and the registry that finds
//! them by the name of their method in the schema. Transports, forwarding and idempotency go by the
//! registry: nothing else knows an operation.

mod common;

use std::{collections::BTreeMap, marker::PhantomData, sync::LazyLock};

use async_trait::async_trait;
use covault_core::{
    fault::{Class, Fault},
    ids::VaultId,
    schema::service,
};
use prost::Message;
use ractor::RpcReplyPort;

use self::common::{admin, batch, lookup, person, several};
use crate::{
    backup::live::BackupSlot,
    commands::{caller::Caller, command_commit::CommandCommit, idempotency::KeyLocks},
    deposits::start::NotedChains,
    health::HealthCheck,
    process::{mailbox::ActorMailbox, waiters::CompletionWaiters},
    services::Services,
    vaults::{
        directory,
        vault_actors::{VaultActors, answer},
    },
};

macro_rules! operations {
    ($($module:ident::$operation:ident,)*) => {
        $(pub use self::$module::$operation;)*

        static REGISTRY: LazyLock<Result<BTreeMap<String, RegisteredOperation>, Fault>> =
            LazyLock::new(|| OperationRegistry::default()$(.with::<$operation>())*.finish());
    };
}

// The modules of the other files of this folder, and `operations!` with the operation of each: build.rs lists them. A test
// finds a method of the schema that has none.
include!(concat!(env!("OUT_DIR"), "/operations.rs"));

/// An operation. What else there is to say of it stands in the schema, as options of its method: who
/// may call it, whether it changes anything, whether it takes an idempotency key.
#[async_trait]
pub trait Operation: Send + Sync + 'static {
    /// The full name of its method: `mpcvault.platform.v1.PlatformAPI.CreateWallet`.
    const METHOD: &'static str;
    /// The message that it takes.
    type Request: Message + prost::Name + Default;
    /// The message that it answers with.
    type Response: Message + prost::Name + Default;

    /// Where a command runs. What is wrong with the request is left to [`Operation::run`].
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn home(_lookup: &HomeLookup<'_>, _request: &Self::Request) -> Result<Home, Fault> {
        Ok(Home::AnyProcess)
    }

    /// Runs it. A command is durable when this returns.
    ///
    /// # Errors
    /// Any class; nothing was changed then, unless the store failed while it wrote.
    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault>;
}

/// Where a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In any process: the versions of its rows guard it.
    AnyProcess,
    /// In any process that runs vaults.
    AnyOrchestrator,
    /// Where this vault runs.
    Vault(VaultId),
}

impl From<Option<VaultId>> for Home {
    fn from(vault: Option<VaultId>) -> Self {
        vault.map_or(Home::AnyProcess, Home::Vault)
    }
}

/// What [`Operation::home`] can look up.
pub struct HomeLookup<'a> {
    pub(crate) services: &'a Services,
    pub(crate) caller: &'a Caller,
}

/// A call of an operation, of a caller who may make it.
pub struct OperationCall<'a> {
    pub(crate) vaults: &'a VaultActors,
    pub(crate) key_locks: &'a KeyLocks,
    pub(crate) backups: &'a BackupSlot,
    pub(crate) health: &'a HealthCheck,
    pub(crate) noted_chains: &'a NotedChains,
    pub(crate) waiters: &'a CompletionWaiters,
    pub(crate) services: &'a Services,
    pub(crate) caller: &'a Caller,
    /// Goes into the commit of a command.
    pub(crate) command_commit: CommandCommit,
}

impl OperationCall<'_> {
    /// Asks an actor.
    async fn ask<M: Send + 'static, T: Send + 'static>(
        &self,
        actor: &ActorMailbox<M>,
        message: impl FnOnce(RpcReplyPort<T>) -> M,
    ) -> Result<T, Fault> {
        answer(actor.call(message, self.services.call_timeout()).await)
    }

    /// Asks the directory of vaults.
    async fn ask_directory<T: Send + 'static>(
        &self,
        message: impl FnOnce(RpcReplyPort<T>) -> directory::Msg,
    ) -> Result<T, Fault> {
        let directory = self.vaults.directory()?;
        answer(directory.call(message, self.services.call_timeout()).await)
    }
}

/// An operation in the registry.
pub struct RegisteredOperation {
    descriptor: service::OperationDescriptor,
    handler: Box<dyn OperationHandler>,
}

impl RegisteredOperation {
    /// What the schema says of it.
    pub fn descriptor(&self) -> &service::OperationDescriptor {
        &self.descriptor
    }

    /// The request in its one form: the same message may come with fields in another order.
    ///
    /// # Errors
    /// [`Class::Invalid`] when it is no such message.
    pub(crate) fn canonical(&self, request: &[u8]) -> Result<Vec<u8>, Fault> {
        self.handler.canonical(request)
    }

    pub(crate) async fn home(
        &self,
        lookup: &HomeLookup<'_>,
        request: &[u8],
    ) -> Result<Home, Fault> {
        self.handler.home(lookup, request).await
    }

    pub(crate) async fn run(
        &self,
        call: OperationCall<'_>,
        request: &[u8],
    ) -> Result<Vec<u8>, Fault> {
        self.handler.run(call, request).await
    }
}

/// All operations, by the full name of their method.
///
/// # Errors
/// [`Class::Bug`] when the schema cannot be read.
pub fn all() -> Result<impl Iterator<Item = &'static RegisteredOperation>, Fault> {
    Ok(registry()?.values())
}

/// The operation of a method.
///
/// # Errors
/// [`Class::Bug`] when there is none.
pub fn find(method: &str) -> Result<&'static RegisteredOperation, Fault> {
    registry()?
        .get(method)
        .ok_or_else(|| Fault::bug(format!("no operation {method}")))
}

fn registry() -> Result<&'static BTreeMap<String, RegisteredOperation>, Fault> {
    REGISTRY.as_ref().map_err(Clone::clone)
}

/// An operation without its types.
#[async_trait]
trait OperationHandler: Send + Sync {
    fn canonical(&self, request: &[u8]) -> Result<Vec<u8>, Fault>;
    async fn home(&self, lookup: &HomeLookup<'_>, request: &[u8]) -> Result<Home, Fault>;
    async fn run(&self, call: OperationCall<'_>, request: &[u8]) -> Result<Vec<u8>, Fault>;
}

struct TypedHandler<O>(PhantomData<fn() -> O>);

#[async_trait]
impl<O: Operation> OperationHandler for TypedHandler<O> {
    fn canonical(&self, request: &[u8]) -> Result<Vec<u8>, Fault> {
        Ok(decode::<O::Request>(request)?.encode_to_vec())
    }

    async fn home(&self, lookup: &HomeLookup<'_>, request: &[u8]) -> Result<Home, Fault> {
        O::home(lookup, &decode(request)?).await
    }

    async fn run(&self, call: OperationCall<'_>, request: &[u8]) -> Result<Vec<u8>, Fault> {
        Ok(O::run(call, decode(request)?).await?.encode_to_vec())
    }
}

fn decode<M: Message + Default>(message: &[u8]) -> Result<M, Fault> {
    M::decode(message).map_err(|error| {
        Fault::new(Class::Invalid, "the message cannot be decoded").caused_by(error)
    })
}

#[derive(Default)]
struct OperationRegistry(BTreeMap<&'static str, Box<dyn OperationHandler>>);

impl OperationRegistry {
    fn with<O: Operation>(mut self) -> Self {
        self.0
            .insert(O::METHOD, Box::new(TypedHandler::<O>(PhantomData)));
        self
    }

    fn finish(mut self) -> Result<BTreeMap<String, RegisteredOperation>, Fault> {
        let mut registered = BTreeMap::new();
        for descriptor in service::operations()? {
            let method = descriptor.full_name().to_owned();
            let handler = self
                .0
                .remove(method.as_str())
                .ok_or_else(|| Fault::bug(format!("{method} has no operation")))?;
            registered.insert(
                method,
                RegisteredOperation {
                    descriptor,
                    handler,
                },
            );
        }
        match self.0.keys().next() {
            None => Ok(registered),
            Some(method) => Err(Fault::bug(format!("{method} is not in the schema"))),
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn registry__should_have_every_method_of_the_schema() {
        let registered = all().unwrap().count();
        assert_eq!(registered, service::operations().unwrap().len());
    }
}
