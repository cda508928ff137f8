//! The state of a sweep token's sweeps, as operators see it.

use std::collections::BTreeSet;

use covault_core::{
    amount::U256,
    deposit::{
        SweepRules,
        sweep::{AssetFailures, SweepJob, SweepState},
        transfer::{Account, FollowedChain},
    },
    fault::Fault,
    ids::TokenId,
    schema::admin,
};

use super::{route, sweep_rules};
use crate::{
    services::{Services, skip_unreadable},
    store::{
        Scan, rows,
        sweep_rows::{self, SweepDueRow, SweepTotalRow},
    },
};

/// Rows that one scan reads.
const PAGE: usize = 1_000;
/// Sweeps that an answer has of one chain.
const MOST: usize = 1_000;

/// Of all chains that have rules.
///
/// # Errors
/// When the store cannot be read.
pub async fn of_token(
    services: &Services,
    token: TokenId,
) -> Result<Vec<admin::SweepStatus>, Fault> {
    let all = sweep_rows::rules_of(token);
    let page = services
        .store
        .scan(&Scan::prefix(all.space, &all.bytes, PAGE))
        .await?;
    let mut chains = Vec::new();
    for (key, row) in page {
        let Some((_, chain)) = sweep_rows::split_rules(&key) else {
            continue;
        };
        let rules = rows::decode::<SweepRules>(&row.value)?;
        let route = route(services, token, chain.network()).await?;
        chains.push(admin::SweepStatus {
            rules: Some(sweep_rules::message_of(services, chain, &rules).await?),
            target: route.target.unwrap_or_default(),
            sweeps: sweeps(services, token, chain).await?,
            totals: totals(services, token, chain).await?,
        });
    }
    Ok(chains)
}

async fn sweeps(
    services: &Services,
    token: TokenId,
    chain: FollowedChain,
) -> Result<Vec<admin::Sweep>, Fault> {
    let all = sweep_rows::due_of(chain);
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let mut next = Some(Scan::prefix(all.space, &all.bytes, PAGE));
    while let Some(scan) = next.filter(|_| found.len() < MOST) {
        let page = services.store.scan(&scan).await?;
        for (key, row) in &page {
            let Some((account, _)) = sweep_rows::split_due(key) else {
                continue;
            };
            let due = rows::decode::<SweepDueRow>(&row.value);
            let due = skip_unreadable(due, "a wallet to be swept")?;
            let Some(SweepDueRow { owner }) = due.filter(|due| due.owner.token == token) else {
                continue;
            };
            if !seen.insert(account) {
                continue;
            }
            let job = services
                .load::<SweepJob>(&sweep_rows::sweep(chain, account))
                .await?;
            let Some((job, _)) = job else { continue };
            let held = job
                .held()
                .map(|of| held(chain, account, &owner.reference, of));
            found.extend(held);
            // What is held is shown as that.
            let is_held = job.may_be_replaced() && job.is_held(job.asset);
            if !job.is_over() && !is_held {
                found.push(message(chain, account, owner.reference, job));
            }
        }
        next = scan.rest(&page);
    }
    found.truncate(MOST);
    Ok(found)
}

/// A coin or token of which nothing is sent until a person says so.
fn held(
    chain: FollowedChain,
    account: Account,
    reference: &str,
    failures: &AssetFailures,
) -> admin::Sweep {
    let AssetFailures { count, reason, .. } = failures;
    admin::Sweep {
        address: account.text(chain.network()),
        r#ref: reference.to_owned(),
        contract: contract(chain, failures.asset),
        state: "held".to_owned(),
        reason: format!(
            "{count} transactions have cost fees and moved nothing; find out why, then run covault sweep retry. The last: {reason}"
        ),
        request_uuid: String::new(),
        paused_since_ms: failures.at_ms,
    }
}

fn message(
    chain: FollowedChain,
    account: Account,
    reference: String,
    job: SweepJob,
) -> admin::Sweep {
    let network = chain.network();
    let (state, reason, request) = match &job.state {
        SweepState::Due => ("due", String::new(), None),
        SweepState::Funding { request } => ("funding", String::new(), Some(request)),
        SweepState::Funded => ("funded", String::new(), None),
        SweepState::Moving { request, .. } => ("moving", String::new(), Some(request)),
        SweepState::Swept { .. } => ("swept", String::new(), None),
        SweepState::Gone => ("gone", String::new(), None),
        SweepState::Paused { reason, .. } => ("paused", reason.to_string(), None),
    };
    admin::Sweep {
        address: account.text(network),
        r#ref: reference,
        contract: contract(chain, job.asset),
        state: state.to_owned(),
        reason,
        request_uuid: request.map(ToString::to_string).unwrap_or_default(),
        paused_since_ms: job.blocked_since_ms.unwrap_or_default(),
    }
}

fn contract(chain: FollowedChain, asset: Option<Account>) -> String {
    asset
        .map(|asset| asset.text(chain.network()))
        .unwrap_or_default()
}

async fn totals(
    services: &Services,
    token: TokenId,
    chain: FollowedChain,
) -> Result<Vec<admin::SweepTotal>, Fault> {
    let all = sweep_rows::totals_of(token, chain);
    let page = services
        .store
        .scan(&Scan::prefix(all.space, &all.bytes, PAGE))
        .await?;
    let mut totals = Vec::new();
    for (key, row) in page {
        let Some(asset) = sweep_rows::asset_of_total(&key) else {
            continue;
        };
        let total = rows::decode::<SweepTotalRow>(&row.value)?;
        let text = |amount: [u8; 32]| U256::from_be_bytes(amount).to_string();
        totals.push(admin::SweepTotal {
            contract: contract(chain, asset),
            sweeps: total.sweeps,
            amount: text(total.amount),
            top_ups: text(total.top_ups),
            fees: text(total.fees),
        });
    }
    Ok(totals)
}
