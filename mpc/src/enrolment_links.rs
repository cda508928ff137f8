//! Links with which an approver enrols a passkey on the page of a signer node.
//!
//! Marks of the node's folder, which only root and the node's user can write to: `enrolment/HASH.ENDS.NAME`, with SHA-256
//! of the link's secret and the name of the passkey in hex, and the end in milliseconds since the Unix epoch. Nothing that
//! comes over the bus makes one. A link enrols nobody by itself: the node's administrator adds the line that the page
//! shows to the policy.

use std::{io, path::Path};

use covault_core::fault::{Class, Fault};
use sha2::{Digest as _, Sha256};

use crate::marks::MarkFolder;

const FOLDER: &str = "enrolment";
/// How long a link can be used, in milliseconds.
pub const LINK_MS: u64 = 15 * 60 * 1000;
/// Most bytes of the name of a passkey: in hex it is part of a file's name.
pub const MAX_NAME: usize = 48;

/// The links of one node.
pub struct EnrolmentLinks(MarkFolder);

/// A link that can be used.
struct PasskeyLink {
    mark: String,
    ends_ms: u64,
    name: String,
}

fn failed(cause: io::Error) -> Fault {
    Fault::unavailable("the enrolment links of this node cannot be read or written")
        .caused_by(cause)
}

fn hash(secret: &[u8; 32]) -> String {
    hex::encode(Sha256::digest(secret))
}

fn no_link() -> Fault {
    let sentence = "this link was used, has expired, or belongs to another node: ask the node's administrator for a \
                    new one";
    Fault::new(Class::Unauthenticated, sentence)
}

impl EnrolmentLinks {
    /// Of the node with this folder, which must be there.
    pub fn of(node_folder: &Path) -> Self {
        Self(MarkFolder::new(node_folder, FOLDER))
    }

    /// Notes a link that enrols one passkey of this name within [`LINK_MS`]. Those that are over are forgotten.
    ///
    /// # Errors
    /// [`Class::Invalid`], field `name`, when it is empty or longer than [`MAX_NAME`] bytes; [`Class::Unavailable`] when
    /// the disk fails.
    pub fn put(&self, secret: &[u8; 32], name: &str, now_ms: u64) -> Result<(), Fault> {
        if name.is_empty() || name.len() > MAX_NAME {
            let sentence = format!("must be 1 to {MAX_NAME} bytes");
            return Err(Fault::field("name", sentence));
        }
        for link in self.all()? {
            if now_ms >= link.ends_ms {
                self.0.take_away(&link.mark).map_err(failed)?;
            }
        }
        let ends_ms = now_ms.saturating_add(LINK_MS);
        let mark = format!("{}.{ends_ms}.{}", hash(secret), hex::encode(name));
        self.0.put_for_the_node(&mark).map_err(failed)
    }

    /// The name of the passkey that the link enrols.
    ///
    /// # Errors
    /// [`Class::Unauthenticated`] when there is no such link, [`Class::Unavailable`] when the disk fails.
    pub fn find(&self, secret: &[u8; 32], now_ms: u64) -> Result<String, Fault> {
        Ok(self.link(secret, now_ms)?.name)
    }

    /// Uses the link up.
    ///
    /// # Errors
    /// As [`EnrolmentLinks::find`]; of two that use one link at a time one gets this.
    pub fn use_up(&self, secret: &[u8; 32], now_ms: u64) -> Result<(), Fault> {
        let link = self.link(secret, now_ms)?;
        match self.0.take_away(&link.mark).map_err(failed)? {
            true => Ok(()),
            false => Err(no_link()),
        }
    }

    fn link(&self, secret: &[u8; 32], now_ms: u64) -> Result<PasskeyLink, Fault> {
        let hash = hash(secret);
        let mut all = self.all()?.into_iter();
        let found = all.find(|link| link.mark.starts_with(&hash) && now_ms < link.ends_ms);
        found.ok_or_else(no_link)
    }

    fn all(&self) -> Result<Vec<PasskeyLink>, Fault> {
        let marks = self.0.all().map_err(failed)?;
        let link = |mark: String| {
            let mut parts = mark.splitn(3, '.').skip(1);
            let ends_ms = parts.next()?.parse().ok()?;
            let name = hex::decode(parts.next()?).ok()?;
            let name = String::from_utf8(name).ok()?;
            Some(PasskeyLink {
                mark,
                ends_ms,
                name,
            })
        };
        Ok(marks.into_iter().filter_map(link).collect())
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn link__should_enrol_once_and_for_a_quarter_of_an_hour() {
        let folder = tempfile::tempdir().unwrap();
        let links = EnrolmentLinks::of(folder.path());
        let class = |fault: Fault| fault.class().clone();
        let missing = |secret, now_ms| class(links.find(secret, now_ms).unwrap_err());
        assert_eq!(missing(&[1; 32], 0), Class::Unauthenticated);
        let long = "x".repeat(MAX_NAME + 1);
        for name in ["", long.as_str()] {
            let fault = links.put(&[1; 32], name, 0).unwrap_err();
            assert_eq!(fault.path(), Some("name"));
        }
        links.put(&[1; 32], "treasurer@key-1", 1_000).unwrap();
        links.put(&[2; 32], "\u{e9}.x", 1_001).unwrap();
        // The secret is nowhere.
        let names = links.0.all().unwrap().concat();
        assert!(!names.contains(&hex::encode([1; 32])));
        assert_eq!(links.find(&[1; 32], 1_000).unwrap(), "treasurer@key-1");
        assert_eq!(links.find(&[2; 32], 1_001).unwrap(), "\u{e9}.x");
        assert_eq!(missing(&[3; 32], 1_000), Class::Unauthenticated);
        assert_eq!(missing(&[1; 32], 1_000 + LINK_MS), Class::Unauthenticated);
        // Root makes links, and the node uses them up.
        let owner = |path: &Path| std::fs::metadata(path).unwrap().uid();
        let marks = folder.path().join(FOLDER);
        assert_eq!(owner(&marks), owner(folder.path()));
        if owner(folder.path()) == 0 {
            std::os::unix::fs::chown(folder.path(), Some(1234), None).unwrap();
            links.put(&[5; 32], "x", 1_000).unwrap();
            assert_eq!(owner(&marks), 1234);
        }
        links.use_up(&[1; 32], 1_000).unwrap();
        let fault = links.use_up(&[1; 32], 1_000).unwrap_err();
        assert_eq!(class(fault), Class::Unauthenticated);
        // Those that are over are forgotten with the next one.
        links.put(&[4; 32], "other", 1_001 + LINK_MS).unwrap();
        assert_eq!(links.0.all().unwrap().len(), 1);
    }
}
