//! The identity of a signer node.

use ed25519_dalek::VerifyingKey;
use serde::{Deserialize, Serialize};
use ssh_key::{
    PublicKey,
    public::{Ed25519PublicKey, KeyData},
};

use crate::fault::{Class, Fault};

/// A signer node: its Ed25519 identity key, 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub [u8; 32]);

/// As people know it, also in logs: the OpenSSH line.
impl std::fmt::Debug for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.openssh_line(""))
    }
}

impl NodeId {
    /// Reads `ssh-ed25519 AAAA... comment`, also without its first word; the comment is ignored.
    ///
    /// # Errors
    /// [`Class::Invalid`] when it is not such a line.
    pub fn parse_openssh_line(line: &str) -> Result<Self, Fault> {
        let refuse = || {
            Fault::new(
                Class::Invalid,
                "must be an OpenSSH line: ssh-ed25519 AAAA...",
            )
        };
        let line = line.trim();
        let whole = match line.starts_with("AAAA") {
            true => format!("ssh-ed25519 {line}"),
            false => line.to_owned(),
        };
        let key = PublicKey::from_openssh(&whole).map_err(|cause| refuse().caused_by(cause))?;
        let key = key.key_data().ed25519().ok_or_else(refuse)?;
        let id = Self(key.0);
        id.verifying_key()?;
        Ok(id)
    }

    /// The OpenSSH line; no trailing space when the comment is empty.
    pub fn openssh_line(&self, comment: &str) -> String {
        let key = PublicKey::new(KeyData::Ed25519(Ed25519PublicKey(self.0)), comment);
        // The encoding of 32 bytes and a comment cannot fail but for a comment with a line break.
        key.to_openssh().unwrap_or_else(|_| {
            PublicKey::new(KeyData::Ed25519(Ed25519PublicKey(self.0)), "")
                .to_openssh()
                .unwrap_or_else(|_| hex::encode(self.0))
        })
    }

    /// The key that verifies the node's signatures.
    ///
    /// # Errors
    /// [`Class::Invalid`] when the id is not a point of the curve, or one of small order.
    pub fn verifying_key(&self) -> Result<VerifyingKey, Fault> {
        VerifyingKey::from_bytes(&self.0)
            .ok()
            .filter(|key| !key.is_weak())
            .ok_or_else(|| Fault::new(Class::Invalid, "not an Ed25519 public key"))
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn openssh_line__should_ignore_comments_and_refuse_other_text() {
        // Made by `ssh-keygen -t ed25519`.
        let line = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti user@example.com";
        let id = NodeId::parse_openssh_line(line).unwrap();
        assert_eq!(id.openssh_line("user@example.com"), line);
        assert_eq!(NodeId::parse_openssh_line(&id.openssh_line("")), Ok(id));
        assert!(!id.openssh_line("").ends_with(' '));
        // Logs have the same line.
        assert_eq!(format!("{id:?}"), id.openssh_line(""));
        let other = format!("  {} other comment\n", id.openssh_line(""));
        assert_eq!(NodeId::parse_openssh_line(&other), Ok(id));
        for part in [other.trim(), line, &id.openssh_line("")] {
            let bare = part.trim_start_matches("ssh-ed25519 ");
            assert_eq!(NodeId::parse_openssh_line(bare), Ok(id));
        }
        for text in [
            "",
            "ssh-ed25519",
            "ssh-ed25519 AAAA",
            "AAAA",
            "AAAAB3NzaC1yc2EAAAADAQABAAAAgQ==",
            "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQ==",
        ] {
            assert!(NodeId::parse_openssh_line(text).is_err(), "{text:?}");
        }
    }
}
