//! Who calls, and what that allows.

use covault_core::{
    fault::{Class, Fault, FaultCode},
    ids::{TokenId, UserId, VaultId},
    schema::service::{Audience, OperationDescriptor},
    token::{AdminRole, TokenAccess, TokenVaults},
    trace::TraceParent,
    user::User,
};

/// Who calls, after authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The token, or the person's id; scope of idempotency keys.
    pub token: TokenId,
    /// What the token may reach.
    pub vaults: VaultScope,
    /// What the token may do.
    pub access: TokenAccess,
    /// What it may do with the admin API: vaults, nodes, tokens. `None`: nothing.
    pub admin: Option<AdminCaller>,
    /// The request id that errors and logs carry.
    pub request_id: String,
    /// Who calls from the console; `None`: a token.
    pub person: Option<Person>,
    /// The span that what is done for the call is part of.
    pub trace: TraceParent,
}

/// Who calls the admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminCaller {
    /// What the caller may do.
    pub role: AdminRole,
    /// The name of the token, for the audit log; `None`: the token of the file, or the service itself, which have no row.
    pub token: Option<String>,
}

impl AdminCaller {
    /// The token of the file, or the service itself.
    pub fn unnamed() -> Self {
        Self {
            role: AdminRole::Operator,
            token: None,
        }
    }
}

/// A person who calls from the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// Who.
    pub id: UserId,
    /// The name, for the audit log.
    pub name: String,
}

impl Caller {
    /// The service itself.
    pub fn service(request_id: &str) -> Self {
        Self {
            token: TokenId::from_bytes([0; 16]),
            vaults: VaultScope::All,
            access: TokenAccess::Full,
            admin: Some(AdminCaller::unnamed()),
            request_id: request_id.to_owned(),
            person: None,
            trace: TraceParent::Unknown,
        }
    }

    /// A person who has signed in to the console. Idempotency keys and shares of limits are the person's own.
    pub fn person(user: &User, request_id: &str) -> Self {
        Self {
            token: TokenId::from_bytes(*user.id.as_bytes()),
            vaults: match &user.vaults {
                TokenVaults::All => VaultScope::All,
                TokenVaults::Only(vaults) => VaultScope::Only(vaults.clone()),
            },
            access: user.role.access(),
            admin: None,
            request_id: request_id.to_owned(),
            person: Some(Person {
                id: user.id,
                name: user.name.clone(),
            }),
            trace: TraceParent::Unknown,
        }
    }
}

/// The vaults that a caller may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VaultScope {
    /// Every vault.
    All,
    /// These.
    Only(Vec<VaultId>),
}

/// The vault of a uuid, when the caller may reach it. Whether another one exists is not told.
pub(crate) fn vault_in_scope(caller: &Caller, uuid: &str) -> Result<VaultId, Fault> {
    let vault: VaultId = uuid.parse()?;
    if !in_scope(caller, vault) {
        return Err(Fault::new(
            Class::Forbidden,
            "the vault is outside the scope of this token",
        ));
    }
    Ok(vault)
}

/// Refuses callers who may only look.
pub(crate) fn full_access(caller: &Caller) -> Result<(), Fault> {
    match caller.access {
        TokenAccess::Full => Ok(()),
        TokenAccess::ReadOnly => Err(Fault::new(Class::Forbidden, "this token is read-only")
            .with_code(FaultCode::ReadOnlyToken)),
    }
}

/// Refuses operations of the admin API to callers without an admin token, but for those that people of the console may
/// call; and the audit log to viewers. A token that reaches every vault is no admin token.
pub(crate) fn admins_only(operation: &OperationDescriptor, caller: &Caller) -> Result<(), Fault> {
    let is_person = caller.person.is_some() && operation.people_may_call();
    if is_person || operation.audience() != Audience::Admin {
        return Ok(());
    }
    let Some(admin) = &caller.admin else {
        return Err(Fault::new(
            Class::Forbidden,
            "only operators may do this: use an admin token",
        ));
    };
    if operation.reads_audit_log() && !admin.role.reads_audit_log() {
        return Err(Fault::new(
            Class::Forbidden,
            "a viewer may not read the audit log: use an admin token with the role auditor or operator",
        ));
    }
    Ok(())
}

pub(crate) fn in_scope(caller: &Caller, vault: VaultId) -> bool {
    match &caller.vaults {
        VaultScope::All => true,
        VaultScope::Only(vaults) => vaults.contains(&vault),
    }
}
