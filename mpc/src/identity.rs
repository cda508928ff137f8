//! A node's identity: an Ed25519 key in an OpenSSH file.
//!
//! The same key signs envelopes and, mapped to X25519 (RFC 7748, the birational map of section
//! 4.1), opens what is sealed for the node and goes into its pair keys.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use covault_core::{
    fault::{Class, Fault},
    order::NodeId,
    port::Entropy,
};
use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use secrecy::{ExposeSecret as _, SecretString};
use ssh_key::{
    LineEnding, PrivateKey,
    private::{Ed25519Keypair, KeypairData},
};
use zeroize::Zeroizing;

/// An identity with its private half. Never printed; zeroized on drop.
pub struct NodeIdentity {
    signing: SigningKey,
    sealing: crypto_box::SecretKey,
}

crate::secrets::secret!(NodeIdentity { signing });

impl NodeIdentity {
    /// A fresh identity.
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut seed = Zeroizing::new([0; 32]);
        entropy.fill(seed.as_mut());
        Self::from_seed(&seed)
    }

    fn from_seed(seed: &[u8; 32]) -> Self {
        let signing = SigningKey::from_bytes(seed);
        let scalar = Zeroizing::new(signing.to_scalar_bytes());
        Self {
            signing,
            sealing: crypto_box::SecretKey::from_bytes(*scalar),
        }
    }

    /// Reads an unencrypted OpenSSH private key file (`-----BEGIN OPENSSH PRIVATE KEY-----`).
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the file when it is missing, readable by others than its
    /// owner, encrypted, or not an Ed25519 key.
    pub fn load(path: &Path) -> Result<Self, Fault> {
        Self::load_encrypted(path, None)
    }

    /// As [`NodeIdentity::load`], of a file that this password opens, where there is one.
    ///
    /// # Errors
    /// As [`NodeIdentity::load`].
    pub fn load_encrypted(path: &Path, password: Option<&SecretString>) -> Result<Self, Fault> {
        use std::{io::Read as _, os::unix::fs::PermissionsExt as _};
        let refuse = |problem: &str| {
            Fault::new(
                Class::Invalid,
                format!("identity file {}: {problem}", path.display()),
            )
        };
        let unreadable = |cause: std::io::Error| {
            refuse(&format!("cannot be read ({})", cause.kind())).caused_by(cause)
        };
        // Opening a pipe would wait for who writes to it.
        if !fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(refuse("is not a regular file"));
        }
        let mut file = fs::File::open(path).map_err(unreadable)?;
        // Of the file that is read.
        let found = file.metadata().map_err(unreadable)?;
        if found.permissions().mode() & 0o077 != 0 {
            return Err(refuse("others can read it; run chmod 600 on it"));
        }
        let mut pem = Zeroizing::new(Vec::new());
        file.read_to_end(&mut pem).map_err(unreadable)?;
        Self::from_openssh(&pem, password).map_err(refuse)
    }

    /// The key in the text of an OpenSSH private key file, which this password opens, where there is one. Or what is wrong
    /// with it.
    ///
    /// # Errors
    /// A sentence without its subject.
    pub fn from_openssh(pem: &[u8], password: Option<&SecretString>) -> Result<Self, &'static str> {
        let key = PrivateKey::from_openssh(pem).map_err(|_| "is not an OpenSSH private key")?;
        let key = match (key.is_encrypted(), password) {
            (true, None) => return Err("is encrypted; use a key without passphrase"),
            (true, Some(password)) => key
                .decrypt(password.expose_secret())
                .map_err(|_| "is encrypted, and the password does not open it")?,
            (false, _) => key,
        };
        let pair = key.key_data().ed25519();
        let pair = pair.ok_or("is not an ssh-ed25519 key")?;
        let seed = Zeroizing::new(pair.private.to_bytes());
        Ok(Self::from_seed(&seed))
    }

    /// Writes the key as an OpenSSH private key file, mode 0600. An existing file is replaced
    /// in one step.
    ///
    /// # Errors
    /// [`Class::Invalid`] naming the file when it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Fault> {
        let seed = Zeroizing::new(self.signing.to_bytes());
        let pair = Ed25519Keypair::from_seed(&seed);
        let pem = PrivateKey::new(KeypairData::Ed25519(pair), "covault")
            .and_then(|key| key.to_openssh(LineEnding::LF))
            .map_err(Fault::bug)?;
        write_private(path, pem.as_bytes()).map_err(|cause| {
            Fault::new(
                Class::Invalid,
                format!("identity file {}: cannot be written", path.display()),
            )
            .caused_by(cause)
        })
    }

    /// The public identity.
    pub fn id(&self) -> NodeId {
        NodeId(self.signing.verifying_key().to_bytes())
    }

    /// The public identity as an OpenSSH line: `ssh-ed25519 AAAA... comment`.
    pub fn openssh_line(&self, comment: &str) -> String {
        self.id().openssh_line(comment)
    }

    /// An Ed25519 signature (RFC 8032) over `message`.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.signing.sign(message).to_bytes()
    }

    /// The identity as an X25519 secret, for pair keys.
    pub(crate) fn agreement_secret(&self) -> x25519_dalek::StaticSecret {
        let scalar = Zeroizing::new(self.signing.to_scalar_bytes());
        x25519_dalek::StaticSecret::from(*scalar)
    }

    /// The box that seals for `peer` and opens what `peer` sealed.
    pub(crate) fn sealing_box(&self, peer: &VerifyingKey) -> crypto_box::ChaChaBox {
        let public = crypto_box::PublicKey::from_bytes(peer.to_montgomery().to_bytes());
        crypto_box::ChaChaBox::new(&public, &self.sealing)
    }
}

/// Writes a file that only its owner reads: temporary file, fsync, rename, fsync of the folder.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    let temporary = folder.join(name);
    // What an interrupted write left behind is incomplete and nobody's.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    fs::File::open(&folder)?.sync_all()
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::test_support::SystemEntropy;

    #[test]
    fn identity__should_survive_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("id");
        let identity = NodeIdentity::generate(&SystemEntropy);
        identity.save(&path).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(NodeIdentity::load(&path).unwrap().id(), identity.id());
        // Saving again replaces it.
        let other = NodeIdentity::generate(&SystemEntropy);
        other.save(&path).unwrap();
        assert_eq!(NodeIdentity::load(&path).unwrap().id(), other.id());
    }

    #[test]
    fn identity__should_be_refused_when_others_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("id");
        NodeIdentity::generate(&SystemEntropy).save(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let fault = NodeIdentity::load(&path).err().unwrap();
        assert!(fault.message().contains("chmod 600"), "{fault:?}");
        assert!(NodeIdentity::load(&folder.path().join("none")).is_err());
    }

    /// Made by `ssh-keygen -t ed25519 -N hunter2`.
    const ENCRYPTED: &str = "-----BEGIN OPENSSH PRIVATE KEY-----\n\
        b3BlbnNzaC1rZXktdjEAAAAACmFlczI1Ni1jdHIAAAAGYmNyeXB0AAAAGAAAABAXTs+Cm4\n\
        5KulmC1AkVjQcqAAAAEAAAAAEAAAAzAAAAC3NzaC1lZDI1NTE5AAAAIOhntggBARCOEK0/\n\
        IDH/35vnkPh83mVPYohCxLaa1wF6AAAAkIcmYYmbGXXzxjl9zWddbU/+blB8FLe72xDRXh\n\
        qD0V9oR1u4iDpepfiNRuFqbGeDJOkeZG+gIMQUeeTlqhfKvy53cmJDI43gG41e8Hvmd7aK\n\
        GBNKVVeGcBTPc5hfYxwhVzdzkM4utWzyYhRPLRYCKJQE3vyqJ1VtDIukSbYO2Efc2vDz3r\n\
        5LcNApkAXaEdDFDw==\n\
        -----END OPENSSH PRIVATE KEY-----\n";

    #[test]
    fn identity__should_be_opened_by_its_password_alone() {
        let id = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOhntggBARCOEK0/IDH/35vnkPh83mVPYohCxLaa1wF6";
        let open = |password: Option<&str>| {
            let password = password.map(SecretString::from);
            NodeIdentity::from_openssh(ENCRYPTED.as_bytes(), password.as_ref())
        };
        assert_eq!(open(Some("hunter2")).ok().unwrap().openssh_line(""), id);
        let problem = open(Some("hunter3")).err().unwrap();
        assert_eq!(problem, "is encrypted, and the password does not open it");
        assert_eq!(
            open(None).err().unwrap(),
            "is encrypted; use a key without passphrase"
        );
        // A password for a key that needs none does no harm.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("id");
        let identity = NodeIdentity::generate(&SystemEntropy);
        identity.save(&path).unwrap();
        let loaded = NodeIdentity::load_encrypted(&path, Some(&"x".into())).unwrap();
        assert_eq!(loaded.id(), identity.id());
    }
}
