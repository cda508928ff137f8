//! Questions, answered from the store. None waits for a vault; only `Outcome` waits for anything to
//! happen.

use std::{sync::Arc, time::Duration};

use covault_core::{
    fault::{Class, Fault},
    ids::{RequestId, VaultId, WalletId},
    network::Network,
    request::Request,
    schema::wire::{self, get_signing_request_list_request::SortOrder},
    token::Access,
    wallet::Wallet,
};
use tokio::sync::Notify;

use crate::{
    audit::Log,
    backups, balances, batches,
    context::{Context, readable},
    deposits,
    gateway::{
        AuditQuery, AuditView, Caller, Query, Stuck, VaultScope, VaultView, View, full_access,
        in_scope, operators_only, vault_in_scope,
    },
    lists::{self, Page},
    nodes, proofs, rows, simulations,
    store::{Batch, Expect, Key, Scan, Space, Store},
    tokens,
    vault::view as vault,
};

/// How many requests a page has when nobody asks for another number.
const USUAL_REQUESTS: i64 = 10;
/// How long readiness is believed, in milliseconds.
const READY_FOR_MS: u64 = 1_000;
/// After how long who waits for a request looks again at first, where it may end in another process;
/// each time after twice as long.
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// After how long it does in the end, and where no other process can be: the token may have been
/// revoked.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Most vaults that are listed.
const MAX_VAULTS: usize = 100_000;

/// Answers a question. Who may only read gets no signature.
pub async fn view(context: &Context, caller: &Caller, query: Query) -> Result<View, Fault> {
    // The body of the call may have taken its time.
    tokens::in_use(context, caller).await?;
    let view = answer(context, caller, query).await?;
    Ok(match caller.access {
        Access::Full => view,
        Access::ReadOnly => unsigned(view),
    })
}

/// The answer without the bytes of signatures.
fn unsigned(view: View) -> View {
    match view {
        View::SigningRequest(mut request) => {
            request.signatures = None;
            View::SigningRequest(request)
        }
        View::SigningRequests(mut requests) => {
            for request in &mut requests {
                request.signatures = None;
            }
            View::SigningRequests(requests)
        }
        View::BatchPayment(mut batch) => {
            let inner = [
                &mut batch.approval_signing_request,
                &mut batch.send_signing_request,
            ];
            for request in inner.into_iter().flatten() {
                request.signatures = None;
            }
            View::BatchPayment(batch)
        }
        // Not answered to readers: it holds signed transactions too.
        View::Outcome(_) => View::Outcome(Box::default()),
        view @ (View::Wallet(_)
        | View::Wallets(_)
        | View::Balance(_)
        | View::Vault(_)
        | View::Vaults(_)
        | View::Nodes { .. }
        | View::Tokens { .. }
        | View::Token(_)
        | View::Sweep(_)
        | View::Audit(_)
        | View::BackupPart(_)
        | View::ChainNodes(_)
        | View::Stuck(_)
        | View::Ready) => view,
    }
}

async fn answer(context: &Context, caller: &Caller, query: Query) -> Result<View, Fault> {
    Ok(match query {
        Query::SigningRequest { uuid } => {
            let request = request(context, caller, uuid.parse()?).await?;
            let simulation = simulations::shown(context, request.id).await?;
            View::SigningRequest(Box::new(shown(context, caller, &request, simulation)))
        }
        Query::SigningRequests(request) => {
            View::SigningRequests(requests(context, caller, &request).await?)
        }
        Query::BatchPayment { uuid } => {
            let batch = batches::load(context, caller, uuid.parse()?).await?;
            View::BatchPayment(Box::new(batch.to_wire()))
        }
        Query::Outcome { uuid, timeout_ms } => {
            full_access(caller)?;
            let patience = Duration::from_millis(timeout_ms);
            View::Outcome(Box::new(
                outcome(context, caller, uuid.parse()?, patience).await?,
            ))
        }
        Query::WalletByAddress(address) => {
            let wallet = by_address(context, caller, &address).await?;
            View::Wallet(proofs::shown(context, &wallet).await?)
        }
        Query::WalletByRef(reference) => {
            let wallet = context.wallet_by(&rows::wallet_ref(&reference)).await?;
            let wallet = visible(caller, wallet, "ref")?;
            View::Wallet(proofs::shown(context, &wallet).await?)
        }
        Query::Wallets(request) => View::Wallets(wallets(context, caller, &request).await?),
        Query::Balance(request) => {
            let balance = balances::balance(context, &request).await?;
            // The chain's nodes may have taken their time.
            tokens::in_use(context, caller).await?;
            View::Balance(balance)
        }
        Query::Vault(name) => {
            let unknown = || Fault::new(Class::Invalid, "there is no vault of this name");
            let (id, _) = context
                .load::<VaultId>(&rows::vault_name(&name))
                .await?
                .filter(|(id, _)| in_scope(caller, *id))
                .ok_or_else(unknown)?;
            let (found, _) = context.vault(id).await?.ok_or_else(unknown)?;
            View::Vault(vault::view(context, &found))
        }
        Query::Vaults => View::Vaults(vaults(context, caller).await?),
        Query::Nodes => {
            operators_only(caller)?;
            View::Nodes {
                nodes: nodes::view(context).await?,
                unadmitted: context.signers.unadmitted(),
            }
        }
        Query::Tokens => {
            operators_only(caller)?;
            View::Tokens {
                tokens: tokens::all(context).await?,
                now_ms: context.now_ms(),
            }
        }
        Query::Authenticate(hash) => {
            View::Token(Box::new(tokens::authenticate(context, &hash).await?))
        }
        Query::Sweep(token) => {
            operators_only(caller)?;
            View::Sweep(Box::new(deposits::view(context, &token).await?))
        }
        Query::Audit(query) => {
            operators_only(caller)?;
            View::Audit(audit(&*context.store, query).await?)
        }
        Query::BackupPart(id, number) => {
            operators_only(caller)?;
            View::BackupPart(backups::part(context, id, number).await?)
        }
        Query::ChainNodes => {
            operators_only(caller)?;
            View::ChainNodes(context.chains.health())
        }
        Query::Stuck => {
            operators_only(caller)?;
            View::Stuck(Stuck {
                waiting: context.waiting(),
                forgotten: context.rebroadcast_cache.forgotten(),
            })
        }
        Query::Ready => {
            ready(context).await?;
            View::Ready
        }
    })
}

async fn audit(store: &dyn Store, query: AuditQuery) -> Result<AuditView, Fault> {
    let log = Log(store);
    Ok(match query {
        AuditQuery::Chains(after) => AuditView::Chains(log.chains(after).await?),
        AuditQuery::Entries(chain, from) => {
            let entries = log.entries(chain, from).await?;
            // After them: a head that is behind an entry is wrong then, and not just older.
            let head = log.head(chain).await?;
            AuditView::Entries { entries, head }
        }
        AuditQuery::Older(after) => AuditView::Older(log.older(after).await?),
    })
}

/// A request, when the caller may see it.
pub async fn request(context: &Context, caller: &Caller, id: RequestId) -> Result<Request, Fault> {
    context
        .request(id)
        .await?
        .map(|(request, _)| request)
        .filter(|request| in_scope(caller, request.vault))
        .ok_or_else(Fault::invalid_uuid)
}

/// A request as the caller may see it, with what its transaction would do.
fn shown(
    context: &Context,
    caller: &Caller,
    request: &Request,
    simulation: Option<Vec<u8>>,
) -> wire::SigningRequest {
    let calls = &context.settings.calls;
    let mut shown = request.to_wire(calls, simulation.unwrap_or_default());
    if caller.access == Access::ReadOnly && request.hash_is_signature() {
        shown.tx_hash.clear();
    }
    shown
}

async fn outcome(
    context: &Context,
    caller: &Caller,
    id: RequestId,
    patience: Duration,
) -> Result<wire::ExecuteSigningRequestsResponse, Fault> {
    if let Some(outcome) = request(context, caller, id).await?.outcome() {
        return Ok(outcome);
    }
    // Subscribed before the state is read, so that its end cannot fall between.
    let subscription = Subscription {
        context,
        id,
        notify: Some(context.waiters.subscribe(id)),
    };
    let notify = subscription
        .notify
        .clone()
        .ok_or_else(|| Fault::bug("no subscription"))?;
    let mut ended = std::pin::pin!(notify.notified());
    ended.as_mut().enable();
    let asked = request(context, caller, id).await?;
    if let Some(outcome) = asked.outcome() {
        return Ok(outcome);
    }
    let effect = rows::outbox(asked.vault, id);
    drop(asked);
    let mut left = patience;
    let mut called = context.waiters.closed();
    let mut next = if context.store.exclusive() {
        LOOK_AGAIN
    } else {
        FIRST_LOOK
    };
    loop {
        if !called {
            let pause = left.min(next);
            called = tokio::time::timeout(pause, ended.as_mut()).await.is_ok();
            left = left.saturating_sub(pause);
            next = next.saturating_mul(2).min(LOOK_AGAIN);
        }
        tokens::in_use(context, caller).await?;
        // Whether it was called or not: the store says how things stand. The row of a request may be
        // large; that of its effect is not, and there is none once it has ended.
        let last = called || left.is_zero();
        if (last || context.store.get(&effect).await?.is_none())
            && let Some(outcome) = request(context, caller, id).await?.outcome()
        {
            return Ok(outcome);
        }
        if last {
            return Err(match context.delay(id) {
                None => Fault::unavailable("the request is still pending; ask again"),
                Some(reason) => Fault::unavailable(format!(
                    "the request is still pending ({reason}); ask again"
                )),
            });
        }
    }
}

struct Subscription<'a> {
    context: &'a Context,
    id: RequestId,
    notify: Option<Arc<Notify>>,
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        if let Some(notify) = self.notify.take() {
            self.context.waiters.unsubscribe(self.id, notify);
        }
    }
}

/// The wallet of an address, in whatever form its network takes it, when the caller may see it.
pub async fn by_address(context: &Context, caller: &Caller, text: &str) -> Result<Wallet, Fault> {
    let canonical = Network::ALL
        .iter()
        .find_map(|network| network.rules().parse_address(text).ok())
        .ok_or_else(|| Fault::field("address", "is not an address of any network"))?;
    let wallet = context.wallet_by(&rows::wallet_address(&canonical)).await?;
    visible(caller, wallet, "address")
}

fn visible(caller: &Caller, wallet: Option<(Wallet, u64)>, field: &str) -> Result<Wallet, Fault> {
    wallet
        .map(|(wallet, _)| wallet)
        .filter(|wallet| in_scope(caller, wallet.vault))
        .ok_or_else(|| Fault::field(field, "is not that of a wallet"))
}

/// The requests of a vault by their time of creation; the last one first, unless asked otherwise.
async fn requests(
    context: &Context,
    caller: &Caller,
    request: &wire::GetSigningRequestListRequest,
) -> Result<Vec<wire::SigningRequest>, Fault> {
    if request.vault_uuid.is_empty() {
        return Err(Fault::field("vaultUuid", "is required"));
    }
    let vault = vault_in_scope(caller, &request.vault_uuid)?;
    let page = Page::of(request.page, request.limit, USUAL_REQUESTS)?;
    let reverse = match SortOrder::try_from(request.sort_order) {
        Ok(SortOrder::Desc) => true,
        Ok(SortOrder::Asc) => false,
        Err(_) => {
            let problem = "must be SORT_ORDER_DESC or SORT_ORDER_ASC";
            return Err(Fault::field("sortOrder", problem));
        }
    };
    if context.vault(vault).await?.is_none() {
        return Err(Fault::invalid_uuid());
    }
    let all = rows::requests_of(vault);
    let mut found = Vec::new();
    let page = lists::page(context, &all, reverse, page).await?;
    let ids = page.iter().map(|(key, _)| rows::indexed_request(key));
    let ids: Option<Vec<_>> = ids.collect();
    let ids = ids.ok_or_else(|| Fault::bug("an index without an id"))?;
    for ids in ids.chunks(lists::TOGETHER) {
        let keys = |key: fn(RequestId) -> Key| ids.iter().map(|id| key(*id)).collect::<Vec<_>>();
        let requests = context.load_all::<Request>(&keys(rows::request)).await?;
        let simulations = simulations::all_shown(context, &keys(rows::simulation)).await?;
        for ((id, request), simulation) in ids.iter().zip(requests).zip(simulations) {
            // One that cannot be read must not hide the others of its page.
            let Some(request) = readable(request, format_args!("request {id}"))? else {
                continue;
            };
            let request = request.ok_or_else(|| Fault::bug("an index without a request"))?;
            found.push(shown(context, caller, &request, simulation?));
        }
    }
    Ok(found)
}

async fn wallets(
    context: &Context,
    caller: &Caller,
    request: &wire::GetWalletListRequest,
) -> Result<Vec<wire::Wallet>, Fault> {
    if request.vault_uuid.is_empty() {
        return Err(Fault::field("vaultUuid", "is required"));
    }
    let vault = vault_in_scope(caller, &request.vault_uuid)?;
    let page = Page::of(request.page, request.limit, lists::MAX_PAGE)?;
    if context.vault(vault).await?.is_none() {
        return Err(Fault::invalid_uuid());
    }
    let all = Key::new(Space::WalletIndex, &[vault.as_bytes()]);
    let mut found = Vec::new();
    let page = lists::page(context, &all, false, page).await?;
    let ids = page
        .iter()
        .map(|(_, row)| rows::decode::<WalletId>(&row.value));
    let ids = ids.collect::<Result<Vec<_>, _>>()?;
    for ids in ids.chunks(lists::TOGETHER) {
        let keys: Vec<_> = ids.iter().map(|id| rows::wallet(*id)).collect();
        let wallets = context.load_all::<Wallet>(&keys).await?;
        let mut together = Vec::with_capacity(ids.len());
        for (id, wallet) in ids.iter().zip(wallets) {
            let Some(wallet) = readable(wallet, format_args!("wallet {id}"))? else {
                continue;
            };
            let wallet = wallet.ok_or_else(|| Fault::bug("an index without a wallet"))?;
            together.push(wallet);
        }
        found.extend(proofs::shown_all(context, &together).await?);
    }
    Ok(found)
}

async fn vaults(context: &Context, caller: &Caller) -> Result<Vec<VaultView>, Fault> {
    let ids = match &caller.vaults {
        VaultScope::Only(ids) => ids.clone(),
        VaultScope::All => {
            let all = Scan::prefix(Space::VaultName, &[], MAX_VAULTS);
            let rows = context.store.scan(&all).await?;
            rows.iter()
                .map(|(_, row)| rows::decode(&row.value))
                .collect::<Result<Vec<_>, _>>()?
        }
    };
    let mut found = Vec::new();
    for id in ids {
        if let Some((one, _)) = context.vault(id).await? {
            found.push(vault::view(context, &one));
        }
    }
    Ok(found)
}

/// Whether the store can be written and the signers be reached. Found out once in
/// [`READY_FOR_MS`], however many ask.
async fn ready(context: &Context) -> Result<(), Fault> {
    let mut last = context.readiness.lock().await;
    if let Some((at_ms, found)) = &*last
        && context.now_ms().abs_diff(*at_ms) < READY_FOR_MS
    {
        return found.clone();
    }
    let found = probe(context).await;
    if let Err(fault) = &found {
        tracing::warn!(?fault, "not ready");
    }
    *last = Some((context.now_ms(), found.clone()));
    found
}

async fn probe(context: &Context) -> Result<(), Fault> {
    let mut probe = Batch::new();
    probe.put(Key::new(Space::Probe, &[]), Expect::Any, Vec::new());
    context.store.commit(probe).await?;
    let nodes = context.signers.nodes();
    if !nodes.is_empty() && !nodes.iter().any(|node| node.live) {
        return Err(Fault::unavailable("no signer node can be reached"));
    }
    Ok(())
}
