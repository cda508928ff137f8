//! What pages of the console read beside what operations answer: names, whom a payment goes to, what a token's contract
//! says of itself. None of it changes anything, and nobody reaches it over the API.

use std::{collections::BTreeSet, time::Duration};

use covault_core::{
    amount::U256,
    fault::Fault,
    ids::{RequestId, VaultId},
    networks::{
        Network, Payload,
        outflow::{Asset, Spend},
    },
    request::{RequestState, SigningRequest},
    schema::{admin, wire::signing_request::Status},
    wallet::vault::Vault,
};

use crate::{
    chain_rpc::{ChainKey, TokenFacts},
    commands::caller::{Caller, VaultScope, in_scope},
    lists::{self, PageRange, READ_CHUNK},
    requests::search_terms,
    services::{Services, skip_unreadable},
    store::{
        Key, KeySpace, Scan,
        rows::{self, TransactionRow},
    },
    vaults::{management, vault::vault_message},
};

pub use search_terms::RequestPlace;

/// Requests of a history that are read at once, and bytes of payloads after which no more are.
const AT_ONCE: usize = 10;
const LOOKED_AT_BYTES: usize = 256 << 10;
/// Rows of an index that are read at once.
const CHUNK: usize = 1_000;
/// How long a contract may take to say what its token is.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a page reads in the name of a person.
pub struct PageReader<'a> {
    services: &'a Services,
    caller: &'a Caller,
}

/// What the contract of a token says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WordOfToken {
    /// Its decimals and its symbol.
    Said(TokenFacts),
    /// Nothing now.
    Silent,
    /// There is nobody to ask: no node of its chain, or none that says such things.
    NotAsked,
}

/// What a vault had to do with an address before, as far as was looked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipientHistory {
    /// Requests that paid it on the asset's chain and were signed, but for those whose transactions came to nothing.
    pub signed: usize,
    /// Of the asset that is asked about, what they paid it together, in the smallest unit.
    pub amount: U256,
    /// When the newest of them was made, in milliseconds since the Unix epoch.
    pub last_at_ms: Option<u64>,
    /// Requests that were to pay it and did not: they wait, or have failed, or their transactions came to nothing.
    pub others: usize,
    /// Requests to it that were looked at, the newest.
    pub looked: usize,
    /// There may be more, which were not looked at.
    pub is_cut: bool,
}

/// A wallet of the service's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnWallet {
    /// Its vault.
    pub vault: VaultId,
    /// What it is called; may be empty.
    pub name: String,
    /// The client's reference; may be empty.
    pub reference: String,
}

/// Who has to agree to one request: the rule of its vault when it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRule {
    /// In words.
    pub words: String,
    /// Who may approve and has not, so that it counts now.
    pub missing: Vec<String>,
    /// Until when signers hold it, in milliseconds since the Unix epoch; 0: they do not.
    pub held_until_ms: u64,
}

impl<'a> PageReader<'a> {
    pub(super) fn new(services: &'a Services, caller: &'a Caller) -> Self {
        Self { services, caller }
    }

    /// The vaults that the person sees, by their names.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn vault_names(&self) -> Result<Vec<(VaultId, String)>, Fault> {
        let services = self.services;
        let mut found = Vec::new();
        match &self.caller.vaults {
            VaultScope::Only(ids) => {
                let keys: Vec<_> = ids.iter().map(|id| rows::vault(*id)).collect();
                for vault in services.load_all::<Vault>(&keys).await? {
                    found.extend(vault?.map(|vault| (vault.id, vault.name)));
                }
                found.sort_by(|one, other| one.1.cmp(&other.1));
            }
            VaultScope::All => {
                let mut next = Some(Scan::prefix(KeySpace::VaultName, &[], CHUNK));
                while let Some(scan) = next {
                    let page = services.store.scan(&scan).await?;
                    for (key, row) in &page {
                        let name = String::from_utf8_lossy(&key.bytes).into_owned();
                        found.push((rows::decode(&row.value)?, name));
                    }
                    next = scan.rest(&page);
                }
            }
        }
        Ok(found)
    }

    /// A vault that the person sees.
    ///
    /// # Errors
    /// `Invalid uuid` when there is none.
    pub async fn vault(&self, uuid: &str) -> Result<admin::Vault, Fault> {
        let id: VaultId = uuid.parse()?;
        let seen = in_scope(self.caller, id);
        let vault = match seen {
            true => self.services.vault(id).await?,
            false => None,
        };
        let (vault, _) = vault.ok_or_else(Fault::invalid_uuid)?;
        vault_message(self.services, &vault).await
    }

    /// The chains of which nodes are configured.
    pub fn chains(&self) -> Vec<ChainKey> {
        self.services.chains.keys().collect()
    }

    /// The batch contract of an EVM chain, as it is configured.
    pub fn batch_contract(&self, chain_id: u64) -> Option<&str> {
        self.services.chains.batch_contract(ChainKey::evm(chain_id))
    }

    /// The requests of a vault that have one of these words: that pay an address, are signed by the vault's wallet with an
    /// address, or whose transaction has a hash. The newest first, `most` of those that were made before `before`: each page
    /// takes as long, however many there are.
    ///
    /// # Errors
    /// `Invalid uuid` when the person does not see the vault, and when the store cannot be read.
    pub async fn requests_about(
        &self,
        vault: VaultId,
        words: &BTreeSet<String>,
        before: Option<RequestPlace>,
        most: usize,
    ) -> Result<Vec<RequestPlace>, Fault> {
        self.check_sees(vault)?;
        let mut parts = BTreeSet::new();
        for word in words {
            parts.insert(search_terms::requests_with(vault, word));
            let wallet = self.services.wallet_by(&rows::wallet_address(word)).await?;
            let wallet = wallet.filter(|(wallet, _)| wallet.vault == vault);
            parts.extend(wallet.map(|(it, _)| search_terms::requests_of_wallet(vault, it.id)));
        }
        let mut found = BTreeSet::new();
        for part in parts {
            found.extend(self.requests_in(&part, before, most).await?);
        }
        Ok(found.into_iter().rev().take(most).collect())
    }

    /// The newest of a part of the index.
    async fn requests_in(
        &self,
        part: &Key,
        before: Option<RequestPlace>,
        most: usize,
    ) -> Result<Vec<RequestPlace>, Fault> {
        let scan = Scan {
            reverse: true,
            from: before.map(|place| search_terms::key(part, place).bytes),
            // The one that it begins with may be there.
            ..Scan::prefix(part.space, &part.bytes, most.saturating_add(1))
        };
        let page = self.services.store.scan(&scan).await?;
        let places = page
            .iter()
            .filter_map(|(key, _)| search_terms::place(part, key));
        let places = places.filter(|place| before.is_none_or(|before| *place < before));
        Ok(places.take(most).collect())
    }

    fn check_sees(&self, vault: VaultId) -> Result<(), Fault> {
        match in_scope(self.caller, vault) {
            true => Ok(()),
            false => Err(Fault::invalid_uuid()),
        }
    }

    /// Of a page of a vault's requests, the newest first, those that have a status, and how many the page has. Rows alone are
    /// read of the others: most of a large store have another status.
    ///
    /// # Errors
    /// `Invalid uuid` when the person does not see the vault, and when the store cannot be read.
    pub async fn requests_of_status(
        &self,
        vault: VaultId,
        page: (i64, i64),
        status: Status,
    ) -> Result<(Vec<RequestId>, usize), Fault> {
        self.check_sees(vault)?;
        let services = self.services;
        let range = PageRange::of(Some(page.0), Some(page.1), page.1)?;
        let all = rows::requests_of(vault);
        let listed = lists::page((services, self.caller), &all, true, range).await?;
        let ids = listed
            .iter()
            .filter_map(|(key, _)| rows::indexed_request(key));
        let ids: Vec<_> = ids.collect();
        let keys: Vec<_> = ids.iter().map(|id| rows::request(*id)).collect();
        let mut found = Vec::new();
        for (ids, keys) in ids.chunks(READ_CHUNK).zip(keys.chunks(READ_CHUNK)) {
            let requests = services.load_all::<SigningRequest>(keys).await?;
            for (id, request) in ids.iter().zip(requests) {
                let request = skip_unreadable(request, format_args!("request {id}"))?;
                let of_status = match request {
                    Some(Some(request)) => request.status() == status,
                    // What an operator did.
                    Some(None) => {
                        let shown = management::shown(services, *id).await?;
                        shown.is_some_and(|(_, shown)| shown.status() == status)
                    }
                    None => false,
                };
                found.extend(of_status.then_some(*id));
            }
        }
        Ok((found, listed.len()))
    }

    /// What a vault had to do with an address before, by the newest `most` of its requests that pay it; `but` is not
    /// counted, nor what is newer.
    ///
    /// # Errors
    /// As [`PageReader::requests_about`].
    pub async fn history_of(
        &self,
        but: (VaultId, RequestId, u64),
        address: &str,
        asset: &Asset,
        most: usize,
    ) -> Result<RecipientHistory, Fault> {
        let (vault, but, before_ms) = but;
        self.check_sees(vault)?;
        let part = search_terms::requests_with(vault, address);
        let ids = self.requests_in(&part, None, most).await?;
        let ids: Vec<_> = ids.into_iter().map(|(_, id)| id).collect();
        let mut history = RecipientHistory {
            signed: 0,
            amount: U256::ZERO,
            last_at_ms: None,
            others: 0,
            looked: 0,
            is_cut: ids.len() >= most,
        };
        let mut bytes = 0_usize;
        'all: for part in ids.chunks(AT_ONCE) {
            let keys: Vec<_> = part.iter().map(|id| rows::request(*id)).collect();
            let places: Vec<_> = part.iter().map(|id| rows::transaction(*id)).collect();
            let requests = self.services.load_all::<SigningRequest>(&keys).await?;
            let outcomes = self.services.load_all::<TransactionRow>(&places).await?;
            for ((id, found), outcome) in part.iter().zip(requests).zip(outcomes) {
                // One that pays thousands, or has the same bytes for other reasons, takes as long to read as hundreds.
                if bytes >= LOOKED_AT_BYTES {
                    history.is_cut = true;
                    break 'all;
                }
                let found = skip_unreadable(found, format_args!("request {id}"))?;
                let Some(request) = found.flatten() else {
                    continue;
                };
                history.looked = history.looked.saturating_add(1);
                if request.id == but
                    || request.created_at_ms > before_ms
                    || request.network != asset.place.network
                {
                    continue;
                }
                let outcome = skip_unreadable(outcome, format_args!("the transaction of {id}"))?;
                bytes = bytes.saturating_add(request.payload.len());
                let in_vain = outcome.flatten().is_some_and(|it| it.state.is_in_vain());
                let payload = Payload::decode(&request.payload).ok();
                let spends = payload.map(|it| it.outflow(request.network).spends);
                // What cannot be read was a payment of some kind.
                if let Some(spends) = &spends {
                    let here = |it: &Spend| {
                        it.asset.place == asset.place && it.recipient.as_deref() == Some(address)
                    };
                    if !spends.iter().any(here) {
                        continue;
                    }
                }
                if in_vain || !matches!(request.state, RequestState::Succeeded { .. }) {
                    history.others = history.others.saturating_add(1);
                    continue;
                }
                history.signed = history.signed.saturating_add(1);
                history.last_at_ms = history.last_at_ms.max(Some(request.created_at_ms));
                for spend in spends.unwrap_or_default() {
                    if spend.asset == *asset && spend.recipient.as_deref() == Some(address) {
                        history.amount = history.amount.saturating_add(spend.amount);
                    }
                }
            }
            tokio::task::yield_now().await;
        }
        Ok(history)
    }

    /// The wallet that an address is of, where the person sees its vault.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn own_wallet(
        &self,
        network: Network,
        address: &str,
    ) -> Result<Option<OwnWallet>, Fault> {
        let row = rows::wallet_address(address);
        let found = self.services.wallet_by(&row).await?;
        let found = found.map(|(wallet, _)| wallet);
        let seen = found.filter(|it| it.network == network && in_scope(self.caller, it.vault));
        Ok(seen.map(|wallet| OwnWallet {
            vault: wallet.vault,
            name: wallet.name,
            reference: wallet.reference,
        }))
    }

    /// Who has to agree to a request that the person sees; `None` for what no client has asked for.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn rule_of(&self, uuid: &str) -> Result<Option<RequestRule>, Fault> {
        let found = self.services.request(uuid.parse()?).await?;
        let Some((request, _)) = found.filter(|(it, _)| in_scope(self.caller, it.vault)) else {
            return Ok(None);
        };
        let consent = &request.consent;
        let terms = consent.terms(self.services.now_ms());
        let has_given = |name: &str| {
            let counts = terms.iter().flat_map(|terms| consent.under(terms));
            counts.into_iter().any(|it| it.person == name)
        };
        let of = consent.rule.of.iter().map(|it| it.name.clone());
        Ok(Some(RequestRule {
            words: consent.rule.describe(),
            missing: of.filter(|name| !has_given(name)).collect(),
            held_until_ms: consent.held_until_ms,
        }))
    }

    /// What the contract of a token says of it, through the nodes of its chain, which may lie.
    pub async fn token_facts(&self, chain: ChainKey, token: &str) -> WordOfToken {
        let Some(client) = self.services.chains.get(chain.network, chain.chain_id) else {
            return WordOfToken::NotAsked;
        };
        match tokio::time::timeout(PATIENCE, client.token_facts(token)).await {
            Ok(Ok(Some(facts))) => WordOfToken::Said(facts),
            Ok(Ok(None)) => WordOfToken::NotAsked,
            Ok(Err(_)) | Err(_) => WordOfToken::Silent,
        }
    }
}
