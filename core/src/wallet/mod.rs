//! A wallet: what it is and how its state changes.

pub mod generation;
pub mod vault;

use serde::{Deserialize, Serialize};

use crate::{
    derive::KeyPath,
    fault::Fault,
    ids::{VaultId, WalletId},
    network::Network,
    schema::wire,
    signature::Curve,
};

/// Most characters of a wallet's name.
pub const MAX_NAME: usize = 85;
/// Most characters of a wallet's reference.
pub const MAX_REF: usize = 500;

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
    /// The client's reference; unique when not empty.
    pub reference: String,
    /// Its name.
    pub name: String,
    /// Its state.
    pub status: Status,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: u64,
}

/// The state of a wallet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// In use.
    Active,
    /// Put away.
    Archived,
}

impl Wallet {
    /// The wallet as responses show it.
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
                Status::Active => wire::wallet::Status::Active,
                Status::Archived => wire::wallet::Status::Archived,
            }
            .into(),
            name: self.name.clone(),
        }
    }
}

/// Checks name and reference of a wallet that is to be made. Characters are Unicode scalar
/// values.
///
/// # Errors
/// [`crate::fault::Class::Invalid`] naming the field.
pub fn check_labels(name: &str, reference: &str) -> Result<(), Fault> {
    if name.chars().count() > MAX_NAME {
        return Err(Fault::field(
            "name",
            format!("has more than {MAX_NAME} characters"),
        ));
    }
    if reference.chars().count() > MAX_REF {
        return Err(Fault::field(
            "ref",
            format!("has more than {MAX_REF} characters"),
        ));
    }
    Ok(())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn check_labels__should_count_characters_and_not_bytes() {
        assert!(check_labels(&"ü".repeat(85), &"鍵".repeat(500)).is_ok());
        let name = check_labels(&"ü".repeat(86), "").unwrap_err();
        assert_eq!(name.public(), "name: has more than 85 characters");
        let reference = check_labels("", &"a".repeat(501)).unwrap_err();
        assert_eq!(reference.public(), "ref: has more than 500 characters");
    }
}
