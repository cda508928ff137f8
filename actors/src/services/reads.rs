//! How rows are read, with the hot rows for commands.

use covault_core::{
    fault::Fault,
    ids::{RequestId, VaultId, WalletId},
    request::SigningRequest,
    wallet::{Wallet, vault::Vault},
};
use serde::de::DeserializeOwned;

use super::Services;
use crate::{
    leases::LeaseScope,
    store::{Key, rows},
};

impl Services {
    /// A value with the version of its row.
    pub async fn load<T: DeserializeOwned>(&self, key: &Key) -> Result<Option<(T, u64)>, Fault> {
        match self.store.get(key).await? {
            Some(row) => Ok(Some((rows::decode(&row.value)?, row.version))),
            None => Ok(None),
        }
    }

    /// Several of one kind, in the order of their keys: `None` where there is none, an error where
    /// one cannot be decoded.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn load_all<T: DeserializeOwned>(
        &self,
        keys: &[Key],
    ) -> Result<Vec<Result<Option<T>, Fault>>, Fault> {
        let found = self.store.get_all(keys).await?;
        let rows = keys.iter().map(|key| found.get(key));
        Ok(rows
            .map(|row| row.map(|row| rows::decode(&row.value)).transpose())
            .collect())
    }

    pub async fn request(&self, id: RequestId) -> Result<Option<(SigningRequest, u64)>, Fault> {
        self.load(&rows::request(id)).await
    }

    pub async fn vault(&self, id: VaultId) -> Result<Option<(Vault, u64)>, Fault> {
        self.load(&rows::vault(id)).await
    }

    /// How often the rule of approval of a vault was changed.
    pub async fn rule_changes(&self, vault: VaultId) -> Result<u64, Fault> {
        let row = self.load(&rows::rule_changes(vault)).await?;
        Ok(row.map_or(0, |(changes, _)| changes))
    }

    /// The wallet that an index row names, with the version of its row.
    pub async fn wallet_by(&self, index: &Key) -> Result<Option<(Wallet, u64)>, Fault> {
        let Some((id, _)) = self.load::<WalletId>(index).await? else {
            return Ok(None);
        };
        self.load(&rows::wallet(id)).await
    }

    /// As [`Services::wallet_by`], for commands: what is known of a wallet whose vault is here is not read again.
    pub async fn hot_wallet_by(&self, index: &Key) -> Result<Option<(Wallet, u64)>, Fault> {
        let hot = &self.held_leases.hot_rows;
        let since = hot.begin();
        let (index_row, known) = match hot.find(index) {
            Some(row) => (row, true),
            None => match self.store.get(index).await? {
                Some(row) => (row, false),
                None => return Ok(None),
            },
        };
        let Some((wallet, version)) = self
            .hot(&rows::wallet(rows::decode(&index_row.value)?), vault_of)
            .await?
        else {
            return Ok(None);
        };
        let lease = self.held_leases.get(LeaseScope::Vault(wallet.vault));
        if let (Some(lease), false) = (lease, known) {
            hot.keep(lease, index, &index_row, since);
        }
        Ok(Some((wallet, version)))
    }

    /// As [`Services::wallet`], for commands.
    pub async fn hot_wallet(&self, id: WalletId) -> Result<(Wallet, u64), Fault> {
        let wallet = self.hot(&rows::wallet(id), vault_of).await?;
        wallet.ok_or_else(|| Fault::bug("no such wallet"))
    }

    /// As [`Services::vault`], for commands.
    pub async fn hot_vault(&self, id: VaultId) -> Result<Option<(Vault, u64)>, Fault> {
        self.hot(&rows::vault(id), |vault: &Vault| vault.id).await
    }

    async fn hot<T: DeserializeOwned>(
        &self,
        key: &Key,
        vault: fn(&T) -> VaultId,
    ) -> Result<Option<(T, u64)>, Fault> {
        let hot = &self.held_leases.hot_rows;
        if let Some(row) = hot.find(key) {
            return Ok(Some((rows::decode(&row.value)?, row.version)));
        }
        let since = hot.begin();
        let Some(row) = self.store.get(key).await? else {
            return Ok(None);
        };
        let value: T = rows::decode(&row.value)?;
        if let Some(lease) = self.held_leases.get(LeaseScope::Vault(vault(&value))) {
            hot.keep(lease, key, &row, since);
        }
        Ok(Some((value, row.version)))
    }

    pub async fn wallet(&self, id: WalletId) -> Result<(Wallet, u64), Fault> {
        let wallet = self.load(&rows::wallet(id)).await?;
        wallet.ok_or_else(|| Fault::bug("no such wallet"))
    }
}

fn vault_of(wallet: &Wallet) -> VaultId {
    wallet.vault
}
