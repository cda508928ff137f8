//! Vaults with their signers and rules, their wallets, and what the chains say that these have.

use std::{collections::HashMap, time::Duration};

use askama::Template;
use covault_actors::{
    chain_rpc::ChainKey,
    operations::{GetBalance, GetWalletInfo, GetWalletList, ListNodes, ListVaults},
    users::SignedIn,
};
use covault_core::{
    amount::U256,
    fault::Fault,
    networks::{Network, outflow::Asset, outflow::ChainScope},
    schema::{admin, wire},
    token::TokenVaults,
    user::UserRole,
};
use futures::{StreamExt as _, stream};

use super::{
    ConsoleCall,
    pages::{halt_in_words, vault_names},
    response::{PageError, PageResponse},
    text::Text,
    views::Shell,
};

use crate::units::in_units;

/// Vaults of a page.
const VAULTS: usize = 50;
/// Wallets of a page, and of one with balances.
const WALLETS: i64 = 100;
const WITH_BALANCES: i64 = 20;
/// Questions to chains at once, for one page.
const AT_ONCE: usize = 8;
/// How long a page waits for them all.
const PATIENCE: Duration = Duration::from_secs(8);

#[derive(Template)]
#[template(path = "vaults.html")]
struct VaultsPage {
    shell: Shell,
    vaults: Vec<VaultView>,
    /// The query of the next page, where there is one.
    next: Option<String>,
}

/// A vault on a list.
struct VaultView {
    uuid: String,
    name: Text,
    threshold: u32,
    signers: usize,
    ready: bool,
    can_sign: bool,
    problem: Text,
    /// `2 of treasurer, controller`
    rule: Text,
}

#[derive(Template)]
#[template(path = "vault.html")]
struct VaultPage {
    shell: Shell,
    vault: VaultView,
    signers: Vec<SignerView>,
    keys: Vec<KeyView>,
    people: Vec<(Text, usize)>,
    /// How long requests wait for people, in hours.
    waits_hours: u64,
    rule_changes: u64,
    wallets: Vec<WalletView>,
    has_balances: bool,
    next: Option<i64>,
}

/// A signer of a vault.
struct SignerView {
    name: Text,
    key: Text,
    /// `live`, `away`, `frozen`, or why it does not sign.
    state: String,
    is_well: bool,
}

/// A root key of a vault.
struct KeyView {
    scheme: Text,
    epoch: u32,
    available: u32,
    threshold: u32,
    holders: usize,
    problem: Text,
}

/// A wallet.
struct WalletView {
    network: Text,
    address: Text,
    path: String,
    name: Text,
    reference: Text,
    status: String,
    proven: bool,
    balances: Vec<BalanceView>,
}

/// What a chain says that a wallet has.
struct BalanceView {
    chain: String,
    /// In coins; in the smallest unit for a token whose decimals are not known.
    amount: String,
    /// Why it is not known; empty otherwise.
    problem: Text,
}

#[derive(Template)]
#[template(path = "wallet.html")]
struct WalletPage {
    shell: Shell,
    wallet: WalletView,
    vault: Text,
    vault_uuid: String,
    key_path: Text,
    /// This person can make batch payments from it.
    pays_many: bool,
    /// The token that is asked about; empty at first.
    token: Text,
    chains: Vec<(String, bool)>,
    of_token: Option<BalanceView>,
}

fn view(vault: &admin::Vault) -> VaultView {
    let rule = vault.approvals.as_ref().map(in_words);
    let problem = vault.failed_reason.as_ref().or(vault.problem.as_ref());
    VaultView {
        name: Text::new(&vault.name),
        threshold: vault.threshold,
        signers: vault.signers.len(),
        ready: vault.ready,
        can_sign: vault.keys.iter().all(|key| {
            let shares = key.shares.as_ref();
            shares.is_some_and(|shares| shares.available >= shares.threshold)
        }),
        problem: Text::new(problem.map(String::as_str).unwrap_or_default()),
        rule: Text::new(rule.unwrap_or_default()),
        uuid: vault.uuid.clone(),
    }
}

fn in_words(rule: &admin::ApprovalRule) -> String {
    let names: Vec<_> = rule.of.iter().map(|it| it.name.as_str()).collect();
    let names = names.join(", ");
    let people = match (rule.mode.as_str(), names.as_str()) {
        ("manual", _) => format!("{} of {names}", rule.needs),
        (_, "") => {
            "none: requests are signed at once, within the policies of the signers".to_owned()
        }
        (_, _) => format!("none by the vault; {names} approve what signers want approved"),
    };
    let people = match rule.wallets.as_slice() {
        [] => people,
        wallets => {
            let of = |it: &admin::WalletApprovals| format!("{} from {}", it.needs, it.address);
            let wallets: Vec<_> = wallets.iter().map(of).collect();
            format!(
                "{people}; of {names} as many at least: {}",
                wallets.join(", ")
            )
        }
    };
    match rule.client_signers.len() {
        0 => people,
        1 => format!("{people}; instead of them a client signer, for requests that name it"),
        many => format!(
            "{people}; instead of them one of {many} client signers, for requests that name it"
        ),
    }
}

pub async fn list(call: &ConsoleCall<'_>, signed_in: &SignedIn) -> Result<PageResponse, PageError> {
    let mut after = Some(call.parameter("after")).filter(|after| !after.is_empty());
    let (mut vaults, mut next) = (Vec::new(), None);
    if let TokenVaults::Only(_) = signed_in.user.vaults {
        return few(call, signed_in, after.unwrap_or_default()).await;
    }
    let mut shown = String::new();
    'all: loop {
        let request = admin::ListVaultsRequest { after };
        let page = call.look_up::<ListVaults>(&request).await?.vaults;
        let Some(last) = page.last() else {
            break;
        };
        after = Some(last.name.clone());
        for vault in page {
            let id = vault.uuid.parse();
            if !id.is_ok_and(|id| signed_in.user.reaches(id)) {
                continue;
            }
            if vaults.len() >= VAULTS {
                let mut query = form_urlencoded::Serializer::new(String::new());
                next = Some(query.append_pair("after", &shown).finish());
                break 'all;
            }
            vaults.push(view(&vault));
            shown = vault.name;
        }
    }
    PageResponse::page(&VaultsPage {
        shell: Shell::new(signed_in, "vaults"),
        vaults,
        next,
    })
}

/// The vaults of a person who sees few of them: no others are read.
async fn few(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    after: String,
) -> Result<PageResponse, PageError> {
    let caller = call.caller(signed_in);
    let pages = call.gateway().pages(&caller);
    let names = vault_names(call, signed_in).await?;
    let mut names: Vec<_> = names.into_iter().map(|(uuid, name)| (name, uuid)).collect();
    names.retain(|(name, _)| *name > after);
    names.sort();
    let mut vaults = Vec::new();
    for (_, uuid) in names.iter().take(VAULTS) {
        vaults.push(view(&pages.vault(uuid).await?));
    }
    let last = names.get(VAULTS.saturating_sub(1));
    let last = last.filter(|_| names.len() > VAULTS);
    let next = last.map(|(name, _)| {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("after", name).finish()
    });
    PageResponse::page(&VaultsPage {
        shell: Shell::new(signed_in, "vaults"),
        vaults,
        next,
    })
}

/// One vault: its signers, keys and rule, and a page of its wallets.
pub async fn page(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    uuid: &str,
) -> Result<PageResponse, PageError> {
    let caller = call.caller(signed_in);
    let pages = call.gateway().pages(&caller);
    let vault = pages.vault(uuid).await?;
    let has_balances = call.parameter("balances") == "1";
    let limit = if has_balances { WITH_BALANCES } else { WALLETS };
    let page: i64 = call
        .parameter("page")
        .parse()
        .unwrap_or(1)
        .clamp(1, 1_000_000);
    let request = wire::GetWalletListRequest {
        vault_uuid: uuid.to_owned(),
        page: Some(page),
        limit: Some(limit),
    };
    let found = call.operation::<GetWalletList>(signed_in, &request).await?;
    let found = found.details_list;
    let is_full = i64::try_from(found.len()).is_ok_and(|found| found >= limit);
    let chains = pages.chains();
    let asked: Vec<_> = found
        .iter()
        .enumerate()
        .filter(|_| has_balances)
        .flat_map(|(place, wallet)| {
            let of = chains_of(wallet, &chains);
            of.map(move |chain| (place, wallet, chain))
        })
        .collect();
    let mut wallets: Vec<_> = found.iter().map(wallet_view).collect();
    for (place, balance) in balances(call, signed_in, &asked).await {
        if let Some(wallet) = wallets.get_mut(place) {
            wallet.balances.push(balance);
        }
    }
    let nodes = call.look_up::<ListNodes>(&admin::ListNodesRequest {});
    let nodes = nodes.await?.nodes.into_iter();
    let nodes: HashMap<_, _> = nodes.map(|it| (it.public_key.clone(), it)).collect();
    let signers = vault.signers.iter();
    let keys = vault.keys.iter();
    let rule = vault.approvals.clone().unwrap_or_default();
    PageResponse::page(&VaultPage {
        shell: Shell::new(signed_in, "vaults"),
        signers: signers
            .map(|key| signer(key, nodes.get(key), &vault.uuid))
            .collect(),
        keys: keys.map(key_view).collect(),
        people: rule
            .of
            .iter()
            .map(|it| (Text::new(&it.name), it.keys.len()))
            .collect(),
        waits_hours: rule.expires_ms.div_ceil(3_600_000),
        rule_changes: vault.approval_changes,
        vault: view(&vault),
        wallets,
        has_balances,
        next: is_full.then(|| page.saturating_add(1)),
    })
}

fn signer(key: &str, node: Option<&admin::Node>, vault: &str) -> SignerView {
    let (state, is_well) = match node {
        None => ("not admitted".to_owned(), false),
        Some(node) if !node.live => ("away".to_owned(), false),
        Some(node) => match node.halted.first() {
            Some(halt) => (halt_in_words(halt), false),
            None if node.frozen_vaults.iter().any(|it| it == vault) => {
                ("its administrator has frozen this vault".to_owned(), false)
            }
            None => ("live".to_owned(), true),
        },
    };
    SignerView {
        name: Text::new(node.map(|node| node.name.as_str()).unwrap_or_default()),
        key: Text::new(key),
        state,
        is_well,
    }
}

fn key_view(key: &admin::Key) -> KeyView {
    let shares = key.shares.clone().unwrap_or_default();
    let work = key.work.as_ref();
    let problem = match (&key.problem, work) {
        (Some(problem), _) => problem.clone(),
        (None, Some(work)) if !work.reason.is_empty() => {
            format!("reshare {}: {}", work.step, work.reason)
        }
        (None, Some(work)) => format!("reshare: {}", work.step),
        (None, None) => String::new(),
    };
    KeyView {
        scheme: Text::new(&key.scheme),
        epoch: shares.epoch,
        available: shares.available,
        threshold: shares.threshold,
        holders: shares.holders.len(),
        problem: Text::new(problem),
    }
}

fn wallet_view(wallet: &wire::Wallet) -> WalletView {
    let network = wallet.network_type().as_str_name();
    let status = wallet.status().as_str_name();
    let path = form_urlencoded::byte_serialize(wallet.address.as_bytes()).collect();
    WalletView {
        network: Text::new(network.trim_start_matches("NETWORK_TYPE_")),
        status: status.trim_start_matches("STATUS_").to_ascii_lowercase(),
        address: Text::new(&wallet.address),
        path,
        name: Text::new(&wallet.name),
        reference: Text::new(&wallet.r#ref),
        proven: wallet.address_proof.is_some(),
        balances: Vec::new(),
    }
}

/// The configured chains on which a wallet can have something.
fn chains_of<'a>(
    wallet: &wire::Wallet,
    chains: &'a [ChainKey],
) -> impl Iterator<Item = ChainKey> + use<'a> {
    let network = Network::from_wire(wallet.network_type());
    let chains = chains.iter().copied();
    chains.filter(move |chain| Some(chain.network) == network)
}

/// `evm:1`, `bitcoin`
fn name_of(chain: ChainKey) -> String {
    let ChainKey { network, chain_id } = chain;
    ChainScope { network, chain_id }.to_string()
}

/// What the chains say of the coins of wallets, each by its place. Those that say nothing in time are left with that.
async fn balances(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    asked: &[(usize, &wire::Wallet, ChainKey)],
) -> Vec<(usize, BalanceView)> {
    let end = tokio::time::Instant::now() + PATIENCE;
    let mut each = Vec::new();
    for (place, wallet, chain) in asked.iter().copied() {
        let balance = balance(call, signed_in, wallet, chain, None, end);
        each.push(async move { (place, balance.await) });
    }
    stream::iter(each).buffered(AT_ONCE).collect().await
}

async fn balance(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    wallet: &wire::Wallet,
    chain: ChainKey,
    token: Option<&str>,
    end: tokio::time::Instant,
) -> BalanceView {
    let request = wire::GetBalanceRequest {
        network_type: wallet.network_type,
        chain_id: chain.chain_id.and_then(|id| id.try_into().ok()),
        wallet_address: wallet.address.clone(),
        token_address: token.map(str::to_owned),
    };
    let asked = call.operation::<GetBalance>(signed_in, &request);
    let late = || Fault::unavailable("the chain's nodes did not answer in time");
    let said = tokio::time::timeout_at(end, asked).await;
    let said = said.unwrap_or_else(|_| Err(late()));
    let amount = said.and_then(|said| said.balance.parse::<U256>().map_err(Fault::bug));
    let place = ChainScope {
        network: chain.network,
        chain_id: chain.chain_id,
    };
    let (amount, problem) = match (amount, token) {
        (Ok(amount), None) => (in_units(&Asset::coin(place), amount), String::new()),
        (Ok(amount), Some(token)) => {
            let facts = super::facts::token(call, signed_in, chain, token).await;
            let units = facts.map(|facts| facts.in_units(amount));
            let smallest = || format!("{amount} in the smallest unit");
            (units.unwrap_or_else(smallest), String::new())
        }
        (Err(fault), _) => (String::new(), crate::api::sentence(&fault, call.id)),
    };
    BalanceView {
        chain: name_of(chain),
        amount,
        problem: Text::new(problem),
    }
}

/// One wallet, with its coins on each configured chain, and a token that is asked for.
pub async fn wallet(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    address: &str,
) -> Result<PageResponse, PageError> {
    // As the link has it: addresses of some networks have characters that paths do not.
    let address = form_urlencoded::parse(format!("a={address}").as_bytes())
        .next()
        .map(|(_, address)| address.into_owned())
        .unwrap_or_default();
    let request = wire::GetWalletInfoRequest {
        wallet: Some(wire::get_wallet_info_request::Wallet::Address(address)),
    };
    let found = call.operation::<GetWalletInfo>(signed_in, &request).await?;
    let found = found.details.ok_or_else(Fault::invalid_uuid)?;
    let caller = call.caller(signed_in);
    let chains = call.gateway().pages(&caller).chains();
    let chains: Vec<_> = chains_of(&found, &chains).collect();
    let asked: Vec<_> = chains.iter().map(|chain| (0, &found, *chain)).collect();
    let mut shown = wallet_view(&found);
    let balances = balances(call, signed_in, &asked).await;
    shown.balances = balances.into_iter().map(|(_, balance)| balance).collect();
    let (token, chain) = (call.parameter("token"), call.parameter("chain"));
    let token = token.trim();
    let mut of_token = None;
    let named = chains.iter().find(|known| name_of(**known) == chain);
    if let (false, Some(chain)) = (token.is_empty(), named.or(chains.first())) {
        let end = tokio::time::Instant::now() + PATIENCE;
        of_token = Some(balance(call, signed_in, &found, *chain, Some(token), end).await);
    }
    let names = vault_names(call, signed_in).await?;
    PageResponse::page(&WalletPage {
        shell: Shell::new(signed_in, "vaults"),
        vault: Text::new(names.get(&found.vault_uuid).cloned().unwrap_or_default()),
        vault_uuid: found.vault_uuid.clone(),
        key_path: Text::new(&found.key_path),
        pays_many: signed_in.user.role == UserRole::Approver
            && matches!(
                Network::from_wire(found.network_type()),
                Some(Network::Evm | Network::Bitcoin | Network::Sui)
            ),
        wallet: shown,
        chains: chains
            .into_iter()
            .map(|known| (name_of(known), name_of(known) == chain))
            .collect(),
        token: Text::new(token),
        of_token,
    })
}
