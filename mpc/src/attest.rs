//! What nodes state about keys and addresses: signatures with their identity keys, and the file
//! that holds a node's statements about its keys.

use std::{fs, io, path::Path};

use covault_core::{attest::KeyStatement, fault::Fault, order::NodeId};
use ed25519_dalek::Signature;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    identity::{NodeIdentity, write_private},
    shares::ShareRecord,
    shares::backup::plain,
};

/// The name of the file in a node's folder.
const FILE: &str = "keys.json";

/// Whether the node has signed this text.
pub fn has_signed(node: &NodeId, text: &str, signature: &[u8]) -> bool {
    Signature::from_slice(signature).is_ok_and(|signature| {
        node.verifying_key()
            .is_ok_and(|key| key.verify_strict(text.as_bytes(), &signature).is_ok())
    })
}

/// A node's statements about its keys, as they lie in its folder. Nothing in it is secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStatements {
    /// The node: an OpenSSH line.
    pub node: String,
    /// One of each key.
    pub keys: Vec<SignedKeyStatement>,
}

/// A statement about a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedKeyStatement {
    /// The text that is signed ([`KeyStatement::text`]).
    pub statement: String,
    /// The node's Ed25519 signature over it, in hexadecimal.
    pub signature: String,
}

/// What the holder of this share states of its key.
pub(crate) fn statement(record: &ShareRecord, transcript: [u8; 32]) -> KeyStatement {
    KeyStatement {
        vault: record.vault,
        scheme: record.scheme,
        root: record.key.root.clone(),
        epoch: record.epoch,
        threshold: record.threshold,
        holders: record.holders.clone(),
        transcript,
    }
}

impl KeyStatements {
    pub(crate) fn sign(identity: &NodeIdentity, keys: &[KeyStatement]) -> Self {
        let mut texts: Vec<String> = keys.iter().map(KeyStatement::text).collect();
        texts.sort_unstable();
        let signed = |statement: String| SignedKeyStatement {
            signature: hex::encode(identity.sign(statement.as_bytes())),
            statement,
        };
        Self {
            node: identity.openssh_line(""),
            keys: texts.into_iter().map(signed).collect(),
        }
    }

    /// Writes the file, unless it says this already.
    pub(crate) fn store(&self, folder: &Path) -> Result<(), Fault> {
        let failed = |cause: io::Error| {
            Fault::unavailable(format!("{FILE} cannot be written")).caused_by(cause)
        };
        let mut text = serde_json::to_string_pretty(self).map_err(Fault::bug)?;
        text.push('\n');
        let path = folder.join(FILE);
        if fs::read(&path).is_ok_and(|found| found == text.as_bytes()) {
            return Ok(());
        }
        write_private(&path, text.as_bytes()).map_err(failed)
    }

    /// Reads the file in a node's folder. It can be read while the node runs.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] when it is missing or damaged, or holds what the node
    /// with this identity has not signed.
    pub fn load(folder: &Path, node: &NodeId) -> Result<Self, Fault> {
        let path = folder.join(FILE);
        let refuse = |problem: &str| {
            Fault::field(
                path.display(),
                format_args!("{problem}; start the node once"),
            )
        };
        let text = fs::read(&path).map_err(|cause| refuse("cannot be read").caused_by(cause))?;
        let found: Self =
            serde_json::from_slice(&text).map_err(|cause| refuse("is damaged").caused_by(cause))?;
        let signed = |key: &SignedKeyStatement| {
            hex::decode(&key.signature)
                .is_ok_and(|signature| has_signed(node, &key.statement, &signature))
        };
        if NodeId::parse_openssh_line(&found.node)? != *node || !found.keys.iter().all(signed) {
            let problem = format!("is not signed by this node, {}", node.openssh_line(""));
            return Err(refuse(&problem));
        }
        Ok(found)
    }
}

/// Names the run that made a share and its outcome: session, order, and the public counterparts of
/// all shares. All holders have the same.
pub(crate) fn transcript(record: &ShareRecord) -> Result<[u8; 32], Fault> {
    let verifying = plain(record)?.verifying.clone();
    let order = record.order.map(|id| id.to_vec()).unwrap_or_default();
    let hash = Sha256::new()
        .chain_update(b"covault/transcript")
        .chain_update(record.session.as_bytes())
        .chain_update([u8::from(record.order.is_some())])
        .chain_update(order);
    Ok(verifying
        .into_iter()
        .fold(hash, |hash, (index, share)| {
            hash.chain_update([index])
                .chain_update(Sha256::digest(share))
        })
        .finalize()
        .into())
}
