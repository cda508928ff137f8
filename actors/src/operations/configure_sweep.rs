use async_trait::async_trait;
use covault_core::{
    audit::AuditChain,
    deposit::{DepositNetwork, SweepRoute, Webhook},
    fault::{Class, Fault},
    ids::VaultId,
    schema::admin,
};
use reqwest::Url;

use super::{Operation, OperationCall};
use crate::{
    audit::{self, AuditActor, AuditNote},
    deposits::{self, sweep_token},
    store::{Batch, CommitError, Precondition, rows},
};

/// Most characters of a webhook's URL.
const MAX_URL: usize = 2_000;

/// Changes what a sweep token has configured for one network.
pub struct ConfigureSweep;

#[async_trait]
impl Operation for ConfigureSweep {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ConfigureSweep";
    type Request = admin::ConfigureSweepRequest;
    type Response = admin::ConfigureSweepResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let services = call.services;
        let admin::ConfigureSweepRequest {
            token,
            network,
            vault_uuid,
            target,
            webhook,
        } = request;
        let network = DepositNetwork::parse(&network)
            .ok_or_else(|| Fault::field("network", "must be EVM or TRON"))?;
        let vault = vault_uuid
            .map(|uuid| uuid.parse::<VaultId>())
            .transpose()
            .map_err(|_| Fault::field("vaultUuid", "is not a uuid"))?;
        let webhook = webhook.map(Webhook);
        let token = sweep_token(services, &token).await?;
        if token.revoked_at_ms.is_some() {
            return Err(Fault::field("token", "was revoked"));
        }
        let key = rows::sweep_route(token.id, network);
        let (mut route, expect) = match services.load::<SweepRoute>(&key).await? {
            Some((route, version)) => (route, Precondition::Version(version)),
            None => (SweepRoute::default(), Precondition::Absent),
        };
        let before = route.clone();
        if let Some(vault) = vault {
            if services.vault(vault).await?.is_none() {
                return Err(Fault::field("vaultUuid", "is not that of a vault"));
            }
            if !token.reaches(vault) {
                return Err(Fault::field(
                    "vaultUuid",
                    "is outside the scope of the token",
                ));
            }
            route.vault = Some(vault);
        }
        if let Some(target) = target {
            let target = network
                .parse_target(&target)
                .map_err(|fault| Fault::field("target", fault.message()))?;
            route.target = Some(target);
        }
        if let Some(webhook) = webhook {
            route.webhook = check_url(webhook)?;
        }
        if route != before {
            let mut batch = Batch::new();
            batch.put(key, expect, rows::encode(&route)?);
            let vault = route.vault.map(|vault| vault.to_string());
            // Of a webhook only that there is one: its URL may hold a key.
            let webhook = route.webhook.is_some();
            AuditNote::new(
                &AuditActor::caller(call.caller),
                audit::token(token.id),
                "SweepConfigured",
            )
            .fact("network", network.name())
            .fact("vault", vault.unwrap_or_default())
            .fact("target", route.target.as_deref().unwrap_or_default())
            .fact("webhook", if webhook { "set" } else { "none" })
            .fact(
                "webhookChanged",
                if route.webhook == before.webhook {
                    "no"
                } else {
                    "yes"
                },
            )
            .add_to(&mut batch, AuditChain::Service, services.now_ms())?;
            match services.store.commit(batch).await {
                Ok(()) => {}
                Err(CommitError::Conflict(_)) => {
                    return Err(Fault::new(
                        Class::Conflict,
                        "the configuration was changed by another call at the same time; read it again",
                    ));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let (token, networks) = deposits::message_of(services, token).await?;
        Ok(admin::ConfigureSweepResponse {
            token: Some(token),
            networks,
        })
    }
}

/// A webhook that events can be sent to; `None` for an empty one.
fn check_url(webhook: Webhook) -> Result<Option<Webhook>, Fault> {
    let refused = |problem: &str| Fault::field("webhook", problem);
    let text = webhook.0;
    if text.is_empty() {
        return Ok(None);
    }
    if text.chars().count() > MAX_URL {
        return Err(refused(&format!("has more than {MAX_URL} characters")));
    }
    let wrong = "must be a URL that begins with https:// or http://";
    let url = Url::parse(&text).map_err(|_| refused(wrong))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err(refused(wrong));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("must not hold a user name or password"));
    }
    if url.fragment().is_some() {
        return Err(refused("must not have a part behind #: it is never sent"));
    }
    Ok(Some(Webhook(url.into())))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<Option<Webhook>, Fault> {
        check_url(Webhook(text.to_owned()))
    }

    #[test]
    fn check_url__should_take_web_addresses_alone() {
        assert_eq!(url("").unwrap(), None);
        for (text, canonical) in [
            ("https://example.com", "https://example.com/"),
            (
                "http://10.0.0.1:8080/hook?key=1",
                "http://10.0.0.1:8080/hook?key=1",
            ),
            ("https://EXAMPLE.com/A", "https://example.com/A"),
        ] {
            assert_eq!(url(text).unwrap(), Some(Webhook(canonical.to_owned())));
        }
        let long = format!("https://example.com/{}", "x".repeat(2_000));
        for text in [
            "example.com",
            "/hook",
            "ftp://example.com",
            "file:///etc/passwd",
            "https://",
            "https://user:hunter2@example.com",
            "https://user@example.com",
            "https://example.com/#part",
            &long,
        ] {
            let fault = url(text).unwrap_err();
            assert!(fault.message().starts_with("webhook: "), "{fault}");
            assert!(!format!("{fault:?}").contains("hunter2"), "{fault:?}");
        }
    }
}
