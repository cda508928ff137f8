//! Statements of signer nodes about keys and addresses, in the exact text that they sign.
//!
//! The text is lines, so that a verifier in any language is a few lines too. No field can hold a
//! line break but the reference, which stands there in hexadecimal: a text has one reading only.

use serde::{Deserialize, Serialize};

use crate::{
    derive::{KeyPath, RootKey},
    fault::Fault,
    ids::{SessionId, VaultId},
    networks::Network,
    order::NodeId,
    schema::wire,
    scheme::Scheme,
};

/// Most characters of a wallet's reference.
pub const MAX_REF: usize = 500;
/// Most addresses of one order.
pub const MAX_ADDRESSES: usize = 128;

/// That this address is the vault's, at this path below this root key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressStatement {
    /// The vault.
    pub vault: VaultId,
    /// The vault's root public key on the network's curve.
    pub root_public_key: Vec<u8>,
    /// How many holders of shares of that key sign with it.
    pub threshold: u16,
    /// All holders, in any order.
    pub holders: Vec<NodeId>,
    /// The wallet's key below it.
    pub path: KeyPath,
    /// The network.
    pub network: Network,
    /// The address, in canonical form.
    pub address: String,
    /// The client's reference; may be empty.
    pub reference: String,
}

impl AddressStatement {
    /// What a node signs. Threshold and holders are in it, so that a statement of a key that others
    /// own, or fewer, is none of the key that a client trusts.
    pub fn text(&self) -> String {
        // Destructured without `..`, so that a new field cannot be left out.
        let Self {
            vault,
            root_public_key,
            threshold,
            holders,
            path,
            network,
            address,
            reference,
        } = self;
        let mut holders: Vec<String> = holders.iter().map(|node| hex::encode(node.0)).collect();
        // Who pins them need not know their order.
        holders.sort_unstable();
        format!(
            "covault address statement v1\nvault: {vault}\nroot: {}\nthreshold: {threshold}\nholders: {}\npath: {path}\nnetwork: {}\naddress: {address}\nref: {}\n",
            hex::encode(root_public_key),
            holders.join(" "),
            network.to_wire().as_str_name(),
            hex::encode(reference),
        )
    }

    /// Checks that the address is the one at the path below `root`, and that the reference can be a
    /// client's.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn verify(&self, root: &RootKey) -> Result<(), Fault> {
        if root.public_key != self.root_public_key {
            return Err(Fault::field("rootPublicKey", "is not the vault's root key"));
        }
        if root.curve != self.network.curve() {
            return Err(Fault::field(
                "network",
                "the vault's key has a different curve",
            ));
        }
        self.check_form()?;
        let child = root.child(&self.path)?;
        if self.network.rules().address(&child.public_key)? != self.address {
            return Err(Fault::field(
                "address",
                "is not the one of the vault's key at this path",
            ));
        }
        Ok(())
    }

    /// Checks what can be checked without the chain code: that address and path are of the network.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn check_form(&self) -> Result<(), Fault> {
        self.path.wallet_index(self.network)?;
        if self.network.rules().parse_address(&self.address)? != self.address {
            return Err(Fault::field("address", "is not in canonical form"));
        }
        if self.reference.chars().count() > MAX_REF {
            return Err(Fault::field("ref", "is too long"));
        }
        Ok(())
    }
}

/// What a holder of a share knows of a key: what clients and operators pin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStatement {
    /// The vault.
    pub vault: VaultId,
    /// The scheme.
    pub scheme: Scheme,
    /// The root public key with its chain code.
    pub root: RootKey,
    /// The generation of the shares.
    pub epoch: u32,
    /// Signers needed.
    pub threshold: u16,
    /// Who holds shares, in the order of their indices.
    pub holders: Vec<NodeId>,
    /// Hash of the run that made the shares, and of the public counterparts of all of them: the
    /// same for all holders.
    pub transcript: [u8; 32],
}

impl KeyStatement {
    /// What a node signs.
    pub fn text(&self) -> String {
        let Self {
            vault,
            scheme,
            root:
                RootKey {
                    curve: _,
                    public_key,
                    chain_code,
                },
            epoch,
            threshold,
            holders,
            transcript,
        } = self;
        let holders: Vec<String> = holders.iter().map(|node| hex::encode(node.0)).collect();
        format!(
            "covault key statement v1\nvault: {vault}\nscheme: {}\nroot: {}\nchain code: {}\nepoch: {epoch}\nthreshold: {threshold}\nholders: {}\ntranscript: {}\n",
            scheme.name(),
            hex::encode(public_key),
            hex::encode(chain_code),
            holders.join(" "),
            hex::encode(transcript),
        )
    }
}

/// A key that was made by key generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeKey {
    /// The key.
    pub root: RootKey,
    /// The signatures of all holders, in the order of their indices, over the [`KeyStatement`]: each
    /// has its share on disk.
    pub confirmed: Vec<Vec<u8>>,
}

/// Asks the holders of a key for statements about addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttestOrder {
    /// The call.
    pub session: SessionId,
    /// The vault.
    pub vault: VaultId,
    /// Generation of the shares that sign; a node that is behind may answer too.
    pub epoch: u32,
    /// The vault's root public key on the networks' curve.
    pub root_public_key: Vec<u8>,
    /// Signers needed.
    pub threshold: u16,
    /// Who holds shares, in the order of their indices.
    pub holders: Vec<NodeId>,
    /// What shows that key generation has given a share to all ([`MadeKey::confirmed`]); of a key
    /// whose shares were made again since then, nobody asks.
    pub confirmed: Vec<Vec<u8>>,
    /// The addresses; at most [`MAX_ADDRESSES`].
    pub addresses: Vec<AttestedAddress>,
}

/// One address of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttestedAddress {
    /// The wallet's key below the root key.
    pub path: KeyPath,
    /// The network.
    pub network: Network,
    /// The address, in canonical form.
    pub address: String,
    /// The client's reference; may be empty.
    pub reference: String,
}

impl AttestOrder {
    /// What the nodes are asked to state, in order.
    pub fn statements(&self) -> impl Iterator<Item = AddressStatement> + '_ {
        self.addresses.iter().map(|of| AddressStatement {
            vault: self.vault,
            root_public_key: self.root_public_key.clone(),
            threshold: self.threshold,
            holders: self.holders.clone(),
            path: of.path.clone(),
            network: of.network,
            address: of.address.clone(),
            reference: of.reference.clone(),
        })
    }
}

/// The signatures of one node over the statements of an order, in order.
pub type NodeStatements = (NodeId, Vec<[u8; 64]>);

/// The statements of a wallet's address, as they are stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressProof {
    /// What was stated.
    pub statement: AddressStatement,
    /// Generation of the shares at that time.
    pub epoch: u32,
    /// Who has stated it: the node and its signature.
    pub statements: Vec<(NodeId, Vec<u8>)>,
}

impl AddressProof {
    /// The proof as responses show it.
    pub fn to_wire(&self) -> wire::AddressProof {
        let Self {
            statement,
            epoch,
            statements,
        } = self;
        wire::AddressProof {
            vault_uuid: statement.vault.to_string(),
            root_public_key: hex::encode(&statement.root_public_key),
            key_path: statement.path.to_string(),
            network_type: statement.network.to_wire().into(),
            address: statement.address.clone(),
            r#ref: statement.reference.clone(),
            threshold: u32::from(statement.threshold),
            epoch: *epoch,
            statements: statements
                .iter()
                .map(|(node, signature)| wire::AddressStatement {
                    node_key: node.openssh_line(""),
                    signature: signature.clone(),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn statement() -> AddressStatement {
        AddressStatement {
            vault: VaultId::from_bytes([1; 16]),
            root_public_key: vec![2; 33],
            threshold: 2,
            holders: vec![NodeId([6; 32]), NodeId([5; 32])],
            path: KeyPath::new(vec![60, 7]).unwrap(),
            network: Network::Evm,
            address: "0xAb".into(),
            reference: "a\nref: b".into(),
        }
    }

    #[test]
    fn statement__should_be_lines_of_which_each_says_one_thing() {
        let text = statement().text();
        assert_eq!(
            text,
            "covault address statement v1\n\
             vault: 01010101-0101-0101-0101-010101010101\n\
             root: 020202020202020202020202020202020202020202020202020202020202020202\n\
             threshold: 2\n\
             holders: 0505050505050505050505050505050505050505050505050505050505050505 \
             0606060606060606060606060606060606060606060606060606060606060606\n\
             path: m/60/7\n\
             network: NETWORK_TYPE_EVM\n\
             address: 0xAb\n\
             ref: 610a7265663a2062\n"
        );
    }

    #[test]
    fn key_statement__should_name_every_field() {
        let text = KeyStatement {
            vault: VaultId::from_bytes([1; 16]),
            scheme: Scheme::Dkls23,
            root: RootKey {
                curve: Scheme::Dkls23.curve(),
                public_key: vec![2; 2],
                chain_code: [3; 32],
            },
            epoch: 4,
            threshold: 2,
            holders: vec![NodeId([5; 32]), NodeId([6; 32])],
            transcript: [7; 32],
        }
        .text();
        let hash = |byte: &str| byte.repeat(32);
        assert_eq!(
            text,
            format!(
                "covault key statement v1\nvault: 01010101-0101-0101-0101-010101010101\n\
                 scheme: dkls23\nroot: 0202\nchain code: {}\nepoch: 4\nthreshold: 2\n\
                 holders: {} {}\ntranscript: {}\n",
                hash("03"),
                hash("05"),
                hash("06"),
                hash("07")
            )
        );
    }

    #[test]
    fn statement__should_hold_only_for_the_address_at_its_path() {
        for network in Network::ALL {
            let chain_code = [9; 32];
            let (curve, public_key) = match network.curve() {
                crate::signature::Curve::Secp256k1 => (
                    network.curve(),
                    hex::decode(
                        "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798",
                    )
                    .unwrap(),
                ),
                crate::signature::Curve::Ed25519 => (
                    network.curve(),
                    hex::decode("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
                        .unwrap(),
                ),
            };
            let root = RootKey {
                curve,
                public_key,
                chain_code,
            };
            let path = |index| KeyPath::of_wallet(network, index).unwrap();
            let address = |index| {
                let child = root.child(&path(index)).unwrap();
                network.rules().address(&child.public_key).unwrap()
            };
            let good = AddressStatement {
                root_public_key: root.public_key.clone(),
                path: path(5),
                network,
                address: address(5),
                reference: "r".repeat(MAX_REF),
                ..statement()
            };
            good.verify(&root).unwrap();
            let other_root = RootKey {
                chain_code: [8; 32],
                ..root.clone()
            };
            assert!(good.verify(&other_root).is_err(), "{network:?}");
            let mut wrong = vec![
                AddressStatement {
                    path: path(6),
                    ..good.clone()
                },
                AddressStatement {
                    path: KeyPath::new(vec![5]).unwrap(),
                    ..good.clone()
                },
                AddressStatement {
                    address: address(6),
                    ..good.clone()
                },
                AddressStatement {
                    address: format!("{}\nref: ", good.address),
                    ..good.clone()
                },
                AddressStatement {
                    root_public_key: vec![2; 33],
                    ..good.clone()
                },
                AddressStatement {
                    reference: "r".repeat(MAX_REF + 1),
                    ..good.clone()
                },
            ];
            // The very address, where two networks share their form, under the other network's path.
            for other in Network::ALL.into_iter().filter(|other| *other != network) {
                wrong.push(AddressStatement {
                    network: other,
                    ..good.clone()
                });
                let path = KeyPath::of_wallet(other, 5).unwrap();
                wrong.push(AddressStatement {
                    path: path.clone(),
                    ..good.clone()
                });
                // What the key at the other network's path would have here.
                let child = root.child(&path).unwrap();
                wrong.push(AddressStatement {
                    path,
                    address: network.rules().address(&child.public_key).unwrap(),
                    ..good.clone()
                });
            }
            for wrong in wrong {
                assert!(wrong.verify(&root).is_err(), "{wrong:?}");
            }
        }
    }
}
