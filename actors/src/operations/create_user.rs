use async_trait::async_trait;
use covault_core::{
    audit::AuditChain,
    fault::{Class, Fault},
    ids::{UserId, VaultId},
    port::random_16,
    schema::admin,
    token::{MAX_VAULTS, TokenVaults},
    user::{User, UserRole, check_name},
};

use super::{Operation, OperationCall, link_user::link_message};
use crate::{
    audit::{self, AuditActor, AuditNote},
    store::{CommitError, KeySpace, Precondition, rows},
    users,
};

/// Makes an account of the console, and a link that enrols the person's first passkey. The name is one person's for ever.
pub struct CreateUser;

#[async_trait]
impl Operation for CreateUser {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.CreateUser";
    type Request = admin::CreateUserRequest;
    type Response = admin::CreateUserResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let admin::CreateUserRequest {
            name,
            role,
            vaults,
            all_vaults,
        } = request;
        check_name(&name)?;
        let role = UserRole::parse(&role)
            .ok_or_else(|| Fault::field("role", "must be approver, operator, viewer or auditor"))?;
        let vaults = scope(&call, &vaults, all_vaults).await?;
        if users::all(services).await?.len() >= users::MAX_USERS {
            let problem = format!("there are {} users; no more can be made", users::MAX_USERS);
            return Err(Fault::new(Class::Conflict, problem));
        }
        let now_ms = services.now_ms();
        let mut user = User {
            id: UserId::from_random(random_16(&*services.entropy)),
            name,
            role,
            vaults,
            created_at_ms: now_ms,
            revoked_at_ms: None,
            link: None,
            passkeys: Vec::new(),
        };
        let (secret, mut batch) = users::give_link(services, &mut user, None)?;
        batch.put(
            rows::user_name(&user.name),
            Precondition::Absent,
            rows::encode(&user.id)?,
        );
        // A token that was revoked in between must not leave an account behind.
        call.command_commit.demand(&mut batch);
        let vaults = match &user.vaults {
            TokenVaults::All => "all".to_owned(),
            TokenVaults::Only(vaults) => {
                let vaults = vaults.iter().map(ToString::to_string);
                vaults.collect::<Vec<_>>().join(" ")
            }
        };
        AuditNote::new(
            &AuditActor::caller(call.caller),
            audit::user(&user.name),
            "UserMade",
        )
        .fact("role", user.role.name())
        .fact("vaults", vaults)
        .add_to(&mut batch, AuditChain::Service, now_ms)?;
        let link = link_message(services, &user, &secret)?;
        match services.store.commit(batch).await {
            Ok(()) => Ok(admin::CreateUserResponse {
                link: Some(link),
                user: Some(users::message_of(user, Vec::new(), now_ms)?),
            }),
            Err(CommitError::Conflict(key)) if key.space == KeySpace::UserName => Err(Fault::new(
                Class::Conflict,
                "there is or was a user of this name; `covault user link` gives a link for another passkey",
            )),
            Err(error) => Err(error.into()),
        }
    }
}

/// The vaults that are meant, each of which must be there.
async fn scope(
    call: &OperationCall<'_>,
    vaults: &[String],
    all: bool,
) -> Result<TokenVaults, Fault> {
    match (all, vaults.len()) {
        (true, 0) => return Ok(TokenVaults::All),
        (true, _) => return Err(Fault::field("vaults", "cannot be combined with allVaults")),
        (false, 0) => return Err(Fault::field("vaults", "are required, or allVaults")),
        (false, 1..=MAX_VAULTS) => {}
        (false, _) => {
            let problem = format!("must be at most {MAX_VAULTS}");
            return Err(Fault::field("vaults", problem));
        }
    }
    let mut found = Vec::new();
    for (place, uuid) in vaults.iter().enumerate() {
        let field = || format!("vaults[{place}]");
        let vault: VaultId = uuid.parse().map_err(|fault: Fault| fault.at(field()))?;
        if call.services.vault(vault).await?.is_none() {
            return Err(Fault::field(field(), "is not that of a vault"));
        }
        found.push(vault);
    }
    Ok(TokenVaults::Only(found))
}
