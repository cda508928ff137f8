//! Which of the addresses that a request pays are wallets of its own vault: signers may have other limits for those.

use std::collections::BTreeMap;

use covault_core::{
    fault::Fault,
    ids::{VaultId, WalletId},
    networks::{Network, Payload},
    request::SigningRequest,
    wallet::Wallet,
};

use crate::{
    services::Services,
    store::{Key, rows},
};

/// Most addresses about which a commit finds out that they are no wallet's.
const IN_COMMIT: usize = 16;

/// The rows of the addresses that a payload pays and about which nothing is known here. Most are strangers': the
/// commit that stores the transaction demands that, which takes no look at the store. Empty where there are too many.
pub fn unknown(services: &Services, network: Network, payload: &Payload) -> Vec<Key> {
    let hot = &services.held_leases.hot_rows;
    let mut rows = rows_of(network, payload);
    rows.retain(|row| hot.find(row).is_none());
    if rows.len() > IN_COMMIT {
        rows.clear();
    }
    rows
}

/// The indices of the wallets of the same vault and network that the request pays. `strangers` are the rows of
/// addresses that were no wallet's when it was built.
///
/// # Errors
/// When the store cannot be read.
pub async fn own(
    services: &Services,
    request: &SigningRequest,
    strangers: &[Key],
) -> Result<Vec<u32>, Fault> {
    let payload = Payload::decode(&request.payload)?;
    let of = (request.vault, request.network);
    let own = own_wallets(services, of, &payload, strangers).await?;
    let indices = own
        .values()
        .map(|wallet| wallet.path.wallet_index(wallet.network));
    Ok(indices.filter_map(Result::ok).collect())
}

/// The wallets of this vault and network that a payload pays, by their addresses. `strangers` as in [`own`].
///
/// # Errors
/// As there.
pub async fn own_wallets(
    services: &Services,
    of: (VaultId, Network),
    payload: &Payload,
    strangers: &[Key],
) -> Result<BTreeMap<String, Wallet>, Fault> {
    let hot = &services.held_leases.hot_rows;
    let mut rows = rows_of(of.1, payload);
    rows.retain(|row| !strangers.contains(row));
    let unknown: Vec<_> = rows.iter().filter(|row| hot.find(row).is_none()).collect();
    let unknown: Vec<Key> = unknown.into_iter().cloned().collect();
    let found = services.load_all::<WalletId>(&unknown).await?;
    for (row, found) in unknown.iter().zip(found) {
        if found?.is_none() {
            rows.retain(|other| other != row);
        }
    }
    let mut own = BTreeMap::new();
    for row in rows {
        let Some((wallet, _)) = services.hot_wallet_by(&row).await? else {
            continue;
        };
        // A node derives no other address of the key than this one.
        let address = wallet.network.rules().address(&wallet.public_key)?;
        if (wallet.vault, wallet.network) == of && rows::wallet_address(&address) == row {
            own.insert(address, wallet);
        }
    }
    Ok(own)
}

fn rows_of(network: Network, payload: &Payload) -> Vec<Key> {
    let recipients = payload.recipients(network);
    recipients
        .iter()
        .map(|recipient| rows::wallet_address(recipient))
        .collect()
}
