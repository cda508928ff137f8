use async_trait::async_trait;
use covault_core::{
    audit::AuditChain,
    fault::{Class, Fault},
    ids::VaultId,
    schema::admin,
    token::{
        self, AdminRole, ApiToken, Cidr, NewToken, TokenAccess, TokenHash, TokenKind, TokenVaults,
    },
};
use secrecy::ExposeSecret as _;

use super::{Operation, OperationCall};
use crate::{
    audit::{self, AuditActor, AuditNote},
    commands::tokens,
    store::{Batch, CommitError, KeySpace, Precondition, rows},
};

/// Makes an API token. Its name is its key: a second one of the name is refused.
pub struct CreateToken;

#[async_trait]
impl Operation for CreateToken {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.CreateToken";
    type Request = admin::CreateTokenRequest;
    type Response = admin::CreateTokenResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let new = parse(request)?;
        let now_ms = services.now_ms();
        new.check(now_ms)?;
        if let Some((own, _)) = (services.load::<ApiToken>(&rows::token(call.caller.token))).await?
        {
            own.check_made(&new)?;
        }
        if let TokenVaults::Only(vaults) = &new.vaults {
            for (index, vault) in vaults.iter().enumerate() {
                if services.vault(*vault).await?.is_none() {
                    let field = format_args!("vaults[{index}]");
                    return Err(Fault::field(field, "is not that of a vault"));
                }
            }
        }
        if tokens::ages(services).await?.len() >= tokens::MAX_TOKENS {
            return Err(Fault::new(
                Class::Conflict,
                format!(
                    "there are {} tokens; no more can be made",
                    tokens::MAX_TOKENS
                ),
            ));
        }
        let secret = token::make(new.kind, &*services.entropy);
        let record = new.record(TokenHash::of(secret.expose_secret()), now_ms);
        let mut batch = Batch::new();
        batch.put(
            rows::token(record.id),
            Precondition::Absent,
            rows::encode(&record)?,
        );
        batch.put(
            rows::token_name(&record.name),
            Precondition::Absent,
            rows::encode(&record.id)?,
        );
        // A token that was revoked in between must not leave another one behind.
        call.command_commit.demand(&mut batch);
        let vaults = match &record.vaults {
            TokenVaults::All => "all".to_owned(),
            TokenVaults::Only(vaults) => {
                let vaults = vaults.iter().map(ToString::to_string);
                vaults.collect::<Vec<_>>().join(" ")
            }
        };
        let allow = record.allow.iter().map(ToString::to_string);
        let ends = record.expires_at_ms.map(|ends| ends.to_string());
        AuditNote::new(
            &AuditActor::caller(call.caller),
            audit::token(record.id),
            "TokenMade",
        )
        .fact("name", &record.name)
        .fact("kind", record.kind.name())
        .fact("role", record.kind.role().map_or("", AdminRole::name))
        .fact("access", record.access.name())
        .fact("vaults", vaults)
        .fact("allow", allow.collect::<Vec<_>>().join(" "))
        .fact("expiresAtMs", ends.unwrap_or_default())
        .add_to(&mut batch, AuditChain::Service, now_ms)?;
        match services.store.commit(batch).await {
            Ok(()) => Ok(admin::CreateTokenResponse {
                secret: secret.expose_secret().to_owned(),
                token: Some(tokens::message_of(record)),
            }),
            Err(CommitError::Conflict(key)) if key.space == KeySpace::TokenName => Err(Fault::new(
                Class::Conflict,
                "a token of this name exists; revoke it first, or choose another name",
            )),
            Err(error) => Err(error.into()),
        }
    }
}

fn parse(request: admin::CreateTokenRequest) -> Result<NewToken, Fault> {
    let admin::CreateTokenRequest {
        name,
        kind,
        vaults,
        all_vaults,
        access,
        allow,
        expires_at_ms,
        role,
    } = request;
    let kind = TokenKind::parse(&kind, &role)?;
    let allow = each("allow", &allow, str::parse::<Cidr>)?;
    if let Some(role) = kind.role() {
        let of_others = [
            ("access", !access.is_empty()),
            ("vaults", !vaults.is_empty()),
            ("allVaults", all_vaults),
        ];
        if let Some((field, _)) = of_others.into_iter().find(|(_, is_given)| *is_given) {
            return Err(Fault::field(
                field,
                "is not for an admin token, which has a role",
            ));
        }
        return Ok(NewToken {
            name,
            kind,
            vaults: TokenVaults::All,
            access: role.access(),
            allow,
            expires_at_ms,
        });
    }
    let access = TokenAccess::parse(&access)
        .ok_or_else(|| Fault::field("access", "must be full or read-only"))?;
    let vaults = match (all_vaults, vaults.is_empty()) {
        (true, true) => TokenVaults::All,
        (true, false) => {
            return Err(Fault::field("vaults", "cannot be combined with allVaults"));
        }
        (false, true) => {
            return Err(Fault::field("vaults", "are required, or allVaults"));
        }
        (false, false) => TokenVaults::Only(each("vaults", &vaults, str::parse::<VaultId>)?),
    };
    Ok(NewToken {
        name,
        kind,
        vaults,
        access,
        allow,
        expires_at_ms,
    })
}

fn each<T>(
    field: &str,
    texts: &[String],
    parse: impl Fn(&str) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let parsed = texts.iter().enumerate().map(|(index, text)| {
        parse(text).map_err(|fault| Fault::field(format_args!("{field}[{index}]"), fault.message()))
    });
    parsed.collect()
}
