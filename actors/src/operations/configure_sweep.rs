use async_trait::async_trait;
use covault_core::{
    audit::AuditChain,
    deposit::{
        DepositNetwork, SweepRoute, SweepRules, Webhook,
        transfer::{Account, DepositAddress},
    },
    fault::{Class, Fault},
    ids::{TokenId, VaultId},
    schema::admin,
};
use reqwest::Url;
use secrecy::ExposeSecret as _;

use super::{Operation, OperationCall};
use crate::{
    audit::{self, AuditActor, AuditNote},
    deposits::{self, sweep_token},
    services::Services,
    store::{
        Batch, CommitError, KeySpace, Precondition, Scan,
        deposit_rows::{self, WebhookSecretRow},
        rows, sweep_rows,
    },
    webhooks::{TargetRules, WebhookSecret},
};

/// Most characters of a webhook's URL.
const MAX_URL: usize = 2_000;
/// Rows that one scan reads.
const PAGE: usize = 100;

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
            new_webhook_secret,
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
            check_target(services, token.id, network, &target).await?;
            route.target = Some(target);
        }
        if let Some(webhook) = webhook {
            route.webhook = check_url("webhook", webhook, &services.webhooks.rules)?;
        }
        let secret = secret(services, token.id, &route, new_webhook_secret).await?;
        if route != before || secret.is_some() {
            let mut batch = Batch::new();
            batch.put(key, expect, rows::encode(&route)?);
            call.command_commit.demand(&mut batch);
            if let Some((secret, expect)) = &secret {
                let key = deposit_rows::webhook_secret(token.id);
                batch.put(key, *expect, rows::encode(secret)?);
            }
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
            .fact("webhookSecret", if secret.is_some() { "new" } else { "" })
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
                // The chains of a first token may be followed from now on.
                Ok(()) => services
                    .listeners
                    .followers
                    .wake_all(services.chains.followed()),
                Err(CommitError::Conflict(key)) if key.space != KeySpace::Token => {
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
            webhook_secret: secret.map(|(row, _)| {
                let text = WebhookSecret::new(row.secret).text();
                text.expose_secret().to_owned()
            }),
        })
    }
}

/// Refuses a target from which it would be swept again, or which pays for the sweeps.
async fn check_target(
    services: &Services,
    token: TokenId,
    network: DepositNetwork,
    target: &str,
) -> Result<(), Fault> {
    let account = Account::parse(network, target);
    let account = account.ok_or_else(|| Fault::bug("a target that cannot be read"))?;
    let key = deposit_rows::deposit_address(network, account);
    let known = services.load::<DepositAddress>(&key).await?;
    let owners = known.map(|(known, _)| known.owners).unwrap_or_default();
    // One that is only watched may be.
    if owners.iter().any(|owner| owner.wallet.is_some()) {
        return Err(Fault::field("target", "is a deposit wallet"));
    }
    let all = sweep_rows::rules_of(token);
    let mut next = Some(Scan::prefix(all.space, &all.bytes, PAGE));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        for (key, row) in &page {
            let chain = sweep_rows::split_rules(key).map(|(_, chain)| chain);
            let Some(chain) = chain.filter(|chain| chain.network() == network) else {
                continue;
            };
            let rules = rows::decode::<SweepRules>(&row.value)?;
            let Some(gas_wallet) = rules.gas_wallet else {
                continue;
            };
            if services.wallet(gas_wallet).await?.0.address == target {
                let problem = format!("is the gas wallet of the sweeps on {chain}");
                return Err(Fault::field("target", problem));
            }
        }
        next = scan.rest(&page);
    }
    Ok(())
}

/// A secret for the webhooks of the token, when it has none and needs one, or wants another.
async fn secret(
    services: &Services,
    token: TokenId,
    route: &SweepRoute,
    new: bool,
) -> Result<Option<(WebhookSecretRow, Precondition)>, Fault> {
    let key = deposit_rows::webhook_secret(token);
    let expect = match services.load::<WebhookSecretRow>(&key).await? {
        Some(_) if !new => return Ok(None),
        Some((_, version)) => Precondition::Version(version),
        None if route.webhook.is_none() => return Ok(None),
        None => Precondition::Absent,
    };
    let mut secret = [0; 32];
    services.entropy.fill(&mut secret);
    let row = WebhookSecretRow {
        secret,
        created_at_ms: services.now_ms(),
    };
    Ok(Some((row, expect)))
}

/// A webhook that events can be sent to; `None` for an empty one.
///
/// # Errors
/// [`Class::Invalid`] naming the field.
pub(super) fn check_url(
    field: &str,
    webhook: Webhook,
    rules: &TargetRules,
) -> Result<Option<Webhook>, Fault> {
    let refused = |problem: &str| Fault::field(field, problem);
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
    let checked = rules.check_url(&url);
    checked.map_err(|refusal| refused(&refusal.to_string()))?;
    Ok(Some(Webhook(url.into())))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<Option<Webhook>, Fault> {
        let rules = TargetRules {
            allow: vec!["10.0.0.0/8".parse().unwrap()],
        };
        check_url("webhook", Webhook(text.to_owned()), &rules)
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
            "http://169.254.169.254/latest/meta-data",
            "http://2130706433/",
            "http://[::1]:8080/",
            "http://192.168.0.1/",
            &long,
        ] {
            let fault = url(text).unwrap_err();
            assert!(fault.message().starts_with("webhook: "), "{fault}");
            assert!(!format!("{fault:?}").contains("hunter2"), "{fault:?}");
        }
    }
}
