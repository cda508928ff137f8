//! Vaults, wallets, nodes, the audit log, and the person's own account.

use std::collections::HashMap;

use axum::http::StatusCode;
use covault_actors::{
    operations::{GetWalletList, ListAuditChains, ListAuditEntries, ListNodes, ListVaults},
    users::SignedIn,
};
use covault_core::{
    fault::Fault,
    schema::{admin, wire},
    token::TokenVaults,
    user::UserRole,
};

use super::{
    Call, forbidden,
    response::{Answer, Refused},
    sessions,
    text::{Text, Time},
    views::{
        AccountPage, AuditPage, AuditView, ChoiceView, NodeView, NodesPage, PasskeyView,
        SessionView, Shell, VaultView, VaultsPage, WalletView, WalletsPage,
    },
};

/// Wallets of a page.
const WALLETS: i64 = 100;
/// Entries of a page of the audit log.
const ENTRIES: u64 = 100;
/// The chain of what belongs to no vault.
const SERVICE: &str = "service";

/// The vaults that a person sees.
async fn seen_vaults(call: &Call<'_>, signed_in: &SignedIn) -> Result<Vec<admin::Vault>, Fault> {
    let mut vaults: Vec<admin::Vault> = Vec::new();
    loop {
        let after = vaults.last().map(|vault| vault.name.clone());
        let request = admin::ListVaultsRequest { after };
        let page = call.look_up::<ListVaults>(&request).await?.vaults;
        if page.is_empty() {
            break;
        }
        vaults.extend(page);
    }
    vaults.retain(|vault| {
        let id = vault.uuid.parse();
        id.is_ok_and(|id| signed_in.user.reaches(id))
    });
    Ok(vaults)
}

/// The names of the vaults that a person sees, by uuid.
///
/// # Errors
/// When the store cannot be read.
pub async fn vault_names(
    call: &Call<'_>,
    signed_in: &SignedIn,
) -> Result<HashMap<String, String>, Fault> {
    let vaults = seen_vaults(call, signed_in).await?.into_iter();
    Ok(vaults.map(|vault| (vault.uuid, vault.name)).collect())
}

pub async fn vaults(call: &Call<'_>, signed_in: &SignedIn) -> Result<Answer, Refused> {
    let vaults = seen_vaults(call, signed_in).await?.into_iter();
    let vaults = vaults.map(|vault| VaultView {
        name: Text::new(&vault.name),
        threshold: vault.threshold,
        signers: vault.signers.len(),
        ready: vault.ready,
        problem: Text::new(vault.failed_reason.or(vault.problem).unwrap_or_default()),
        rule: Text::new(
            vault
                .approvals
                .map(|rule| in_words(&rule))
                .unwrap_or_default(),
        ),
        uuid: vault.uuid,
    });
    Answer::page(&VaultsPage {
        shell: Shell::new(signed_in, "vaults"),
        vaults: vaults.collect(),
    })
}

fn in_words(rule: &admin::ApprovalRule) -> String {
    let names: Vec<_> = rule.of.iter().map(|it| it.name.as_str()).collect();
    let names = names.join(", ");
    match (rule.mode.as_str(), names.as_str()) {
        ("manual", _) => format!("{} of {names}", rule.needs),
        (_, "") => {
            "none: requests are signed at once, within the policies of the signers".to_owned()
        }
        (_, _) => format!("none by the vault; {names} approve what signers want approved"),
    }
}

pub async fn wallets(call: &Call<'_>, signed_in: &SignedIn, uuid: &str) -> Result<Answer, Refused> {
    let names = vault_names(call, signed_in).await?;
    let name = names.get(uuid).ok_or_else(Fault::invalid_uuid)?;
    let page: i64 = call
        .parameter("page")
        .parse()
        .unwrap_or(1)
        .clamp(1, 1_000_000);
    let request = wire::GetWalletListRequest {
        vault_uuid: uuid.to_owned(),
        page: Some(page),
        limit: Some(WALLETS),
    };
    let found = call.operation::<GetWalletList>(signed_in, &request).await?;
    let found = found.details_list;
    let is_full = i64::try_from(found.len()).is_ok_and(|found| found >= WALLETS);
    let wallets = found.into_iter().map(|wallet| {
        let network = wallet.network_type().as_str_name();
        let status = wallet.status().as_str_name();
        WalletView {
            network: Text::new(network.trim_start_matches("NETWORK_TYPE_")),
            status: status.trim_start_matches("STATUS_").to_ascii_lowercase(),
            address: Text::new(&wallet.address),
            name: Text::new(&wallet.name),
            reference: Text::new(&wallet.r#ref),
            proven: wallet.address_proof.is_some(),
        }
    });
    Answer::page(&WalletsPage {
        shell: Shell::new(signed_in, "vaults"),
        vault: Text::new(name),
        vault_uuid: uuid.to_owned(),
        wallets: wallets.collect(),
        next: is_full.then(|| page.saturating_add(1)),
    })
}

pub async fn nodes(call: &Call<'_>, signed_in: &SignedIn) -> Result<Answer, Refused> {
    if signed_in.user.role != UserRole::Operator {
        return Err(forbidden("only operators see the signer nodes"));
    }
    let found = call
        .look_up::<ListNodes>(&admin::ListNodesRequest {})
        .await?;
    let nodes = found.nodes.into_iter().map(|node| NodeView {
        name: Text::new(&node.name),
        key: Text::new(&node.public_key),
        live: node.live,
        seen: node.last_seen_ms.map(Time::new),
        version: Text::new(&node.version),
        keys: node.keys,
        clock_ms: node.clock_skew_ms,
        halted: Text::new(node.halted.join(", ")),
        frozen_vaults: node.frozen_vaults.len(),
    });
    Answer::page(&NodesPage {
        shell: Shell::new(signed_in, "nodes"),
        nodes: nodes.collect(),
        waiting: found.want_to_join.len(),
    })
}

/// One chain of the audit log, the newest entries first.
pub async fn audit(call: &Call<'_>, signed_in: &SignedIn) -> Result<Answer, Refused> {
    if signed_in.user.role != UserRole::Auditor {
        return Err(forbidden("only auditors see the audit log"));
    }
    let names = vault_names(call, signed_in).await?;
    let mut chains: Vec<_> = names
        .iter()
        .map(|(uuid, name)| (format!("vault:{uuid}"), format!("vault {name}")))
        .collect();
    chains.sort_by(|one, other| one.1.cmp(&other.1));
    // What belongs to no vault is for those who see all of them.
    if signed_in.user.vaults == TokenVaults::All {
        chains.insert(0, (SERVICE.to_owned(), "the service".to_owned()));
    }
    let wanted = call.parameter("chain");
    let chosen = chains.iter().find(|(chain, _)| *chain == wanted);
    let Some((chain, name)) = chosen.or_else(|| chains.first()).cloned() else {
        return Err(Refused::new(
            StatusCode::NOT_FOUND,
            "there is no vault that you see",
        ));
    };
    let head = head(call, &chain).await?;
    let before = call.parameter("before").parse();
    let end: u64 = before.unwrap_or_else(|_| head.saturating_add(1));
    let from = end.saturating_sub(ENTRIES);
    let request = admin::ListAuditEntriesRequest {
        chain: chain.clone(),
        from,
    };
    let found = call.look_up::<ListAuditEntries>(&request).await?.entries;
    let found = found.into_iter().filter(|entry| entry.at < end);
    let mut entries: Vec<_> = found
        .map(|entry| {
            let event = entry.event.unwrap_or_default();
            AuditView {
                number: entry.at,
                at: Time::new(event.at_ms),
                by: Text::new(&event.by),
                event: Text::new(&event.event),
                subject: Text::new(&event.subject),
                facts: event
                    .facts
                    .iter()
                    .map(|fact| (Text::new(&fact.name), Text::new(&fact.value)))
                    .collect(),
            }
        })
        .collect();
    entries.reverse();
    Answer::page(&AuditPage {
        shell: Shell::new(signed_in, "audit"),
        chains: chains
            .into_iter()
            .map(|(uuid, name)| ChoiceView {
                chosen: uuid == chain,
                uuid,
                name: Text::new(name),
            })
            .collect(),
        entries,
        older: (from > 0).then_some(from),
        chain: Text::new(name),
    })
}

/// The number of the last entry of a chain.
async fn head(call: &Call<'_>, chain: &str) -> Result<u64, Fault> {
    let mut after = None;
    loop {
        let request = admin::ListAuditChainsRequest { after };
        let page = call.look_up::<ListAuditChains>(&request).await?.chains;
        let Some(last) = page.last() else {
            return Ok(0);
        };
        after = Some(last.chain.clone());
        if let Some(found) = page.iter().find(|it| it.chain == chain) {
            return Ok(found.head.as_ref().map_or(0, |head| head.number));
        }
    }
}

pub async fn account(call: &Call<'_>, signed_in: &SignedIn) -> Result<Answer, Refused> {
    let mut passkeys = Vec::new();
    for enrolled in &signed_in.user.passkeys {
        passkeys.push(PasskeyView {
            name: Text::new(&enrolled.line.passkey.name),
            at: Time::new(enrolled.at_ms),
            line: Text::new(enrolled.line.line()?),
            words: enrolled.line.fingerprint()?.join(" "),
            synced: enrolled.line.passkey.backup_eligible,
        });
    }
    let (accounts, cookie) = (call.gateway().accounts(), sessions::cookie_of(call));
    let known = accounts.sessions(signed_in, &cookie).await?.into_iter();
    Answer::page(&AccountPage {
        shell: Shell::new(signed_in, "account"),
        passkeys,
        sessions: known
            .map(|(session, here)| SessionView {
                here,
                began: Time::new(session.created_at_ms),
                seen: Time::new(session.seen_at_ms),
                device: Text::new(&session.device),
                address: Text::new(&session.address),
                passkey: Text::new(&session.passkey),
            })
            .collect(),
    })
}
