//! Who calls, and what that allows.

use covault_core::{
    fault::{Class, Fault, FaultCode},
    ids::{TokenId, UserId, VaultId},
    schema::service::{Audience, OperationDescriptor},
    token::{TokenAccess, TokenVaults},
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
    /// Whether it may do what operators do: vaults, nodes, tokens.
    pub operator: bool,
    /// The request id that errors and logs carry.
    pub request_id: String,
    /// Who calls from the console; `None`: a token.
    pub person: Option<Person>,
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
            operator: true,
            request_id: request_id.to_owned(),
            person: None,
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
            operator: false,
            request_id: request_id.to_owned(),
            person: Some(Person {
                id: user.id,
                name: user.name.clone(),
            }),
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

/// Refuses operations of the admin API to callers who are no operators, but for those that people of the console may
/// call. A token that reaches every vault is not one for that.
pub(crate) fn operators_only(
    operation: &OperationDescriptor,
    caller: &Caller,
) -> Result<(), Fault> {
    let is_person = caller.person.is_some() && operation.people_may_call();
    if caller.operator || is_person || operation.audience() != Audience::Admin {
        return Ok(());
    }
    Err(Fault::new(
        Class::Forbidden,
        "only operators may do this: use the admin token",
    ))
}

pub(crate) fn in_scope(caller: &Caller, vault: VaultId) -> bool {
    match &caller.vaults {
        VaultScope::All => true,
        VaultScope::Only(vaults) => vaults.contains(&vault),
    }
}
