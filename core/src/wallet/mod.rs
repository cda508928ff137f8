//! A wallet: what it is and how its state changes.

pub mod generation;
pub mod management;
pub mod vault;

use serde::{Deserialize, Serialize};

use crate::{
    attest::MAX_REF,
    derive::KeyPath,
    fault::{Class, Fault},
    field::label,
    ids::{VaultId, WalletId},
    networks::Network,
    schema::wire,
    signature::Curve,
};

/// Most characters of a wallet's name.
pub const MAX_NAME: usize = 85;

/// A wallet: one child key of a vault, on one network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wallet {
    /// The wallet.
    pub id: WalletId,
    /// Its vault.
    pub vault: VaultId,
    /// Its network.
    pub network: Network,
    /// Where its key is below the vault's root key.
    pub path: KeyPath,
    /// Its public key (33 bytes secp256k1, 32 bytes Ed25519).
    pub public_key: Vec<u8>,
    /// Its address in canonical form.
    pub address: String,
    /// The client's reference; unique in the whole store when not empty: a deployment is one
    /// organisation, and a reference is unique among those of the organisation.
    pub reference: String,
    /// Its name.
    pub name: String,
    /// Its state.
    pub status: WalletStatus,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: u64,
}

/// The state of a wallet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WalletStatus {
    /// In use.
    Active,
    /// Put away: it signs nothing, and is shown as before.
    Archived,
}

/// What updateWallet changes; `None` stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalletChange {
    /// The new name, 1 to [`MAX_NAME`] characters.
    pub name: Option<String>,
    /// The new state.
    pub status: Option<WalletStatus>,
}

impl WalletChange {
    /// The change that an updateWallet asks for; an empty field means no change.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field, and where nothing is to change.
    pub fn parse(name: &str, status: &str) -> Result<Self, Fault> {
        check_labels(name, "")?;
        let status = match status {
            "" => None,
            "STATUS_ACTIVE" => Some(WalletStatus::Active),
            "STATUS_ARCHIVED" => Some(WalletStatus::Archived),
            _ => {
                return Err(Fault::field(
                    "status",
                    "must be STATUS_ACTIVE, STATUS_ARCHIVED or left out",
                ));
            }
        };
        let name = (!name.is_empty()).then(|| name.to_owned());
        if name.is_none() && status.is_none() {
            return Err(Fault::new(
                Class::Invalid,
                "nothing to change: give name, status or both",
            ));
        }
        Ok(Self { name, status })
    }

    /// The wallet with the change made.
    #[must_use]
    pub fn applied_to(&self, wallet: &Wallet) -> Wallet {
        Wallet {
            name: self.name.clone().unwrap_or_else(|| wallet.name.clone()),
            status: self.status.unwrap_or(wallet.status),
            ..wallet.clone()
        }
    }
}

impl Wallet {
    /// The wallet as responses show it, but for the proof of its address.
    pub fn to_wire(&self) -> wire::Wallet {
        wire::Wallet {
            vault_uuid: self.vault.to_string(),
            key_type: match self.network.curve() {
                Curve::Secp256k1 => wire::KeyType::EccSecp256k1,
                Curve::Ed25519 => wire::KeyType::EccEd25519,
            }
            .into(),
            key_path: self.path.to_string(),
            public_key: self.public_key.clone(),
            network_type: self.network.to_wire().into(),
            address: self.address.clone(),
            r#ref: self.reference.clone(),
            status: match self.status {
                WalletStatus::Active => wire::wallet::Status::Active,
                WalletStatus::Archived => wire::wallet::Status::Archived,
            }
            .into(),
            name: self.name.clone(),
            address_proof: None,
        }
    }
}

/// Checks name and reference of a wallet that is to be made. Characters are Unicode scalar
/// values.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] naming the field.
pub fn check_labels(name: &str, reference: &str) -> Result<(), Fault> {
    label("name", name, MAX_NAME)?;
    label("ref", reference, MAX_REF)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn check_labels__should_count_characters_and_not_bytes() {
        assert!(check_labels(&"ü".repeat(85), &"鍵".repeat(500)).is_ok());
        let name = check_labels(&"ü".repeat(86), "").unwrap_err();
        assert_eq!(name.message(), "name: has more than 85 characters");
        let reference = check_labels("", &"a".repeat(501)).unwrap_err();
        assert_eq!(reference.message(), "ref: has more than 500 characters");
    }

    #[test]
    fn change__should_say_what_is_wrong_with_it() {
        let refused = |name: &str, status: &str| {
            let fault = WalletChange::parse(name, status).unwrap_err();
            assert_eq!(fault.class(), &Class::Invalid);
            fault.message().to_owned()
        };
        assert_eq!(
            refused("", ""),
            "nothing to change: give name, status or both"
        );
        assert_eq!(
            refused(&"ü".repeat(86), "STATUS_ACTIVE"),
            "name: has more than 85 characters"
        );
        for status in ["STATUS_PENDING", "ACTIVE", "status_active", "3", " "] {
            assert_eq!(
                refused("n", status),
                "status: must be STATUS_ACTIVE, STATUS_ARCHIVED or left out"
            );
        }
        let change = WalletChange::parse(&"ü".repeat(85), "").unwrap();
        assert_eq!((change.name.is_some(), change.status), (true, None));
        let change = WalletChange::parse("", "STATUS_ARCHIVED").unwrap();
        assert_eq!(
            (change.name, change.status),
            (None, Some(WalletStatus::Archived))
        );
    }

    #[test]
    fn change__should_leave_everything_else_as_it_was() {
        let wallet = Wallet {
            id: WalletId::from_bytes([1; 16]),
            vault: VaultId::from_bytes([2; 16]),
            network: Network::Evm,
            path: KeyPath::of_wallet(Network::Evm, 5).unwrap(),
            public_key: vec![6; 33],
            address: "address".into(),
            reference: "ref".into(),
            name: "name".into(),
            status: WalletStatus::Active,
            created_at_ms: 10,
        };
        let renamed = WalletChange::parse("new", "").unwrap().applied_to(&wallet);
        let expected = Wallet {
            name: "new".into(),
            ..wallet.clone()
        };
        assert_eq!(renamed, expected);
        let archived = WalletChange::parse("", "STATUS_ARCHIVED")
            .unwrap()
            .applied_to(&wallet);
        let expected = Wallet {
            status: WalletStatus::Archived,
            ..wallet
        };
        assert_eq!(archived, expected);
    }
}
