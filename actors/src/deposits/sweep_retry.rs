//! Has what is held tried again, as an operator says: coins and tokens of wallets whose transactions have failed too often.
//! It is written beside the rules; the process that has the wallets' vault follows it.

use covault_core::{
    audit::AuditChain,
    deposit::{
        SweepRules,
        sweep::SweepJob,
        transfer::{Account, FollowedChain},
    },
    fault::{Class, Fault},
    ids::TokenId,
    schema::admin,
};

use super::{assets::AssetName, sweep_token};
use crate::{
    audit::{self, AuditActor, AuditNote},
    commands::caller::Caller,
    services::{Services, skip_unreadable},
    store::{
        Batch, CommitError, Precondition, Scan, rows,
        sweep_rows::{self, SweepDueRow},
    },
};

/// Rows that one scan reads.
const PAGE: usize = 1_000;
/// Wallets that are remembered one by one.
const MOST: usize = 1_000;

/// Has what is held of the wallets of a sweep token on one chain tried again; how many coins and tokens that are.
///
/// # Errors
/// [`Class::Invalid`] naming the field, [`Class::Conflict`] when another call changes the rules at the same time.
pub async fn retry(
    services: &Services,
    caller: &Caller,
    request: &admin::RetrySweepsRequest,
) -> Result<u64, Fault> {
    let chain = AssetName::parse(&request.network, &request.chain_id, "")?.chain;
    let network = chain.network();
    let only = match request.address.as_str() {
        "" => None,
        text => {
            let canonical = network.parse_target(text);
            let canonical = canonical.map_err(|fault| Fault::field("address", fault.message()))?;
            Account::parse(network, &canonical)
        }
    };
    let token = sweep_token(services, &request.token).await?;
    let key = sweep_rows::rules(token.id, chain);
    let Some((mut rules, version)) = services.load::<SweepRules>(&key).await? else {
        let problem = "nothing of this token is swept on this chain";
        return Err(Fault::field("token", problem));
    };
    let held = held(services, chain, token.id, only).await?;
    if held == 0 {
        if only.is_some() {
            let problem = "names no deposit wallet of the token of which anything is held";
            return Err(Fault::field("address", problem));
        }
        return Ok(0);
    }
    let now_ms = services.now_ms();
    rules.retries.note(only, MOST);
    let mut batch = Batch::new();
    batch.put(
        key.clone(),
        Precondition::Version(version),
        rows::encode(&rules)?,
    );
    let subject = audit::token(token.id);
    AuditNote::new(&AuditActor::caller(caller), subject, "SweepsRetried")
        .fact("chain", chain)
        .fact("address", &request.address)
        .fact("held", held)
        .add_to(&mut batch, AuditChain::Service, now_ms)?;
    match services.store.commit(batch).await {
        Ok(()) => {
            services.listeners.sweepers.wake(chain);
            Ok(held)
        }
        Err(CommitError::Conflict(_)) => Err(Fault::new(
            Class::Conflict,
            "the rules were changed by another call at the same time; retry",
        )),
        Err(error) => Err(error.into()),
    }
}

/// How many coins and tokens of the deposit wallets of a token are held.
async fn held(
    services: &Services,
    chain: FollowedChain,
    token: TokenId,
    only: Option<Account>,
) -> Result<u64, Fault> {
    let all = sweep_rows::due_of(chain);
    let (mut held, mut last) = (0_u64, None);
    let mut next = Some(Scan::prefix(all.space, &all.bytes, PAGE));
    while let Some(scan) = next {
        let page = services.store.scan(&scan).await?;
        let mut keys = Vec::new();
        for (key, row) in &page {
            let account = sweep_rows::split_due(key).map(|(account, _)| account);
            let Some(account) = account.filter(|of| only.is_none_or(|only| only == *of)) else {
                continue;
            };
            let due = rows::decode::<SweepDueRow>(&row.value);
            let due = skip_unreadable(due, "a wallet to be swept")?;
            // Those of one wallet follow each other.
            if due.is_some_and(|due| due.owner.token == token) && last != Some(account) {
                keys.push(sweep_rows::sweep(chain, account));
                last = Some(account);
            }
        }
        for job in services.load_all::<SweepJob>(&keys).await? {
            let job = skip_unreadable(job, "a sweep")?.flatten();
            let count = job.map_or(0, |job| job.held().count());
            held = held.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        }
        next = scan.rest(&page);
    }
    Ok(held)
}
