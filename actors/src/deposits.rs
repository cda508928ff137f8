//! Deposit wallets, watch addresses, and the configuration of sweep tokens.

use covault_core::{
    audit::Chain,
    deposit::{self, Deposit, DepositCall, DepositNetwork, Route, Watch, WatchCall, Webhook},
    fault::{Class, Fault},
    ids::{TokenId, VaultId, WatchId},
    port::random_16,
    schema::wire,
    token::{ApiToken, Kind},
    wallet::{Status, Wallet},
};
use reqwest::Url;

use crate::{
    audit::{self, By, Note},
    command_commit::CommandCommit,
    context::Context,
    gateway::{Caller, Inner, answer, in_scope, operators_only},
    proofs, rows,
    store::{Batch, CommitError, Expect},
    tokens,
    vault::{self, NewWallet},
    wallets::Plan,
};

/// Most characters of a webhook's URL.
const MAX_URL: usize = 2_000;

/// A change of a sweep token's configuration for one network. What is `None` stays as it is.
#[derive(Clone, Debug)]
pub struct Configure {
    /// The token: its id, or its name.
    pub token: String,
    /// The network.
    pub network: DepositNetwork,
    /// The vault of new deposit wallets; those that are there stay where they are.
    pub vault: Option<VaultId>,
    /// The address that deposits are swept to.
    pub target: Option<String>,
    /// Where events go; empty: nowhere.
    pub webhook: Option<Webhook>,
}

/// What a sweep token has configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepView {
    /// The token.
    pub token: ApiToken,
    /// Per network, where anything is configured.
    pub routes: Vec<(DepositNetwork, Route)>,
}

impl Inner {
    /// The deposit wallet of (token, network, ref): makes it, or finds it.
    pub(crate) async fn create_deposit_wallet(
        &self,
        caller: &Caller,
        request: &wire::CreateDepositWalletRequest,
        command_commit: CommandCommit,
    ) -> Result<wire::CreateDepositWalletResponse, Fault> {
        let call = DepositCall::parse(request)?;
        let context = &self.context;
        let key = rows::deposit(caller.token, call.network, &call.reference);
        // One at a time, so that repeated calls use up no key paths. What holds between processes
        // is that the row must be absent when the wallet is stored.
        let _turn = self.in_work.turn(&key).await;
        if let Some(wallet) = deposit_wallet(context, &call, caller.token).await? {
            return shown(context, call, &wallet).await;
        }
        let route = route(context, caller.token, call.network).await?;
        let vault = route.deposit_vault()?;
        if !in_scope(caller, vault) {
            return Err(Fault::bug("a sweep token whose vault is outside its scope"));
        }
        let actor = self.vault(vault).await?;
        let message = |reply| {
            let plan = Plan {
                network: call.network.network(),
                name: String::new(),
                reference: String::new(),
                deposit: Some(key),
                proven_reference: call.reference.clone(),
                require_proof: call.require_proof,
                command_commit,
            };
            vault::Msg::CreateWallet(Box::new(NewWallet { plan, reply }))
        };
        let made = answer(actor.call(message, context.call_timeout()).await)?;
        match made {
            Ok(wallet) => Ok(response(call, wallet.address, wallet.address_proof)),
            Err(fault) if *fault.class() == Class::Conflict => {
                match deposit_wallet(context, &call, caller.token).await? {
                    Some(wallet) => shown(context, call, &wallet).await,
                    None => Err(fault),
                }
            }
            Err(fault) => Err(fault),
        }
    }

    /// The watch of (token, address): makes it, or finds it.
    pub(crate) async fn add_watch_address(
        &self,
        caller: &Caller,
        request: &wire::AddWatchAddressRequest,
        command_commit: &CommandCommit,
    ) -> Result<wire::AddWatchAddressResponse, Fault> {
        let call = WatchCall::parse(request)?;
        let context = &self.context;
        let key = rows::watch(caller.token, call.network, &call.address);
        let watch = match context.load::<Watch>(&key).await? {
            Some((watch, _)) => watch,
            None => {
                let route = route(context, caller.token, call.network).await?;
                route.check_webhook()?;
                let watch = Watch {
                    id: WatchId::from_random(random_16(&*context.entropy)),
                    created_at_ms: context.now_ms(),
                };
                let mut batch = Batch::new();
                batch.put(key.clone(), Expect::Absent, rows::encode(&watch)?);
                let subject = format!("watch:{}", watch.id);
                Note::new(command_commit.by(), subject, "WatchAdded")
                    .fact("network", call.network.name())
                    .fact("address", &call.address)
                    .add_to(&mut batch, Chain::Service, watch.created_at_ms)?;
                command_commit.demand(&mut batch);
                match context.store.commit(batch).await {
                    Ok(()) => watch,
                    // Another call was faster.
                    Err(CommitError::Conflict(conflict)) if conflict == key => context
                        .load::<Watch>(&key)
                        .await?
                        .map(|(watch, _)| watch)
                        .ok_or_else(|| Fault::bug("a watch that is there and is not"))?,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        Ok(wire::AddWatchAddressResponse {
            uuid: watch.id.to_string(),
            address: call.address,
            network: call.network.name().to_owned(),
        })
    }

    /// Changes what a sweep token has configured for one network.
    pub(crate) async fn configure_sweep(
        &self,
        caller: &Caller,
        change: Configure,
    ) -> Result<SweepView, Fault> {
        operators_only(caller)?;
        let context = &self.context;
        let Configure {
            token,
            network,
            vault,
            target,
            webhook,
        } = change;
        let token = sweep_token(context, &token).await?;
        if token.revoked_at_ms.is_some() {
            return Err(Fault::field("token", "was revoked"));
        }
        let key = rows::sweep_route(token.id, network);
        let (mut route, expect) = match context.load::<Route>(&key).await? {
            Some((route, version)) => (route, Expect::Version(version)),
            None => (Route::default(), Expect::Absent),
        };
        let before = route.clone();
        if let Some(vault) = vault {
            if context.vault(vault).await?.is_none() {
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
            Note::new(
                &By::caller(caller),
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
            .add_to(&mut batch, Chain::Service, context.now_ms())?;
            match context.store.commit(batch).await {
                Ok(()) => {}
                Err(CommitError::Conflict(_)) => {
                    return Err(Fault::new(
                        Class::Conflict,
                        "the configuration was changed by somebody else at the same time; look again",
                    ));
                }
                Err(error) => return Err(error.into()),
            }
        }
        view_of(context, token).await
    }
}

/// What a sweep token has configured, by its id or name.
///
/// # Errors
/// [`Class::Invalid`] when it is none.
pub async fn view(context: &Context, token: &str) -> Result<SweepView, Fault> {
    let token = sweep_token(context, token).await?;
    view_of(context, token).await
}

async fn view_of(context: &Context, token: ApiToken) -> Result<SweepView, Fault> {
    let mut routes = Vec::new();
    for network in DepositNetwork::ALL {
        let route = route(context, token.id, network).await?;
        if route != Route::default() {
            routes.push((network, route));
        }
    }
    Ok(SweepView { token, routes })
}

async fn sweep_token(context: &Context, which: &str) -> Result<ApiToken, Fault> {
    let (token, _) = tokens::find(context, which).await?;
    if token.kind != Kind::Sweep {
        return Err(Fault::field(
            "token",
            "is not a sweep token: make one with covault token create --kind sweep",
        ));
    }
    Ok(token)
}

async fn route(context: &Context, token: TokenId, network: DepositNetwork) -> Result<Route, Fault> {
    let found = context.load(&rows::sweep_route(token, network)).await?;
    Ok(found.map(|(route, _)| route).unwrap_or_default())
}

/// The wallet of a deposit that is there.
async fn deposit_wallet(
    context: &Context,
    call: &DepositCall,
    token: TokenId,
) -> Result<Option<Wallet>, Fault> {
    let key = rows::deposit(token, call.network, &call.reference);
    let Some((deposit, _)) = context.load::<Deposit>(&key).await? else {
        return Ok(None);
    };
    let wallet = context
        .load::<Wallet>(&rows::wallet(deposit.wallet))
        .await?;
    let (wallet, _) = wallet.ok_or_else(|| Fault::bug("a deposit without a wallet"))?;
    Ok(Some(wallet))
}

async fn shown(
    context: &Context,
    call: DepositCall,
    wallet: &Wallet,
) -> Result<wire::CreateDepositWalletResponse, Fault> {
    if wallet.status == Status::Archived {
        return Err(deposit::wallet_disabled());
    }
    let proof = proofs::of(context, wallet.id).await?;
    if proof.is_none() && call.require_proof {
        return Err(proofs::missing());
    }
    Ok(response(call, wallet.address.clone(), proof))
}

fn response(
    call: DepositCall,
    address: String,
    address_proof: Option<wire::AddressProof>,
) -> wire::CreateDepositWalletResponse {
    wire::CreateDepositWalletResponse {
        address,
        network: call.network.name().to_owned(),
        r#ref: call.reference,
        address_proof,
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
