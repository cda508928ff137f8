//! The identities of this machine's processes: OpenSSH keys in files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::anyhow;
use covault_mpc::identity::NodeIdentity;
use secrecy::ExposeSecret as _;

use crate::{
    adapters::OsEntropy,
    config::{Config, PrivateKey, credentials::credentials_folder},
    files,
    wiring::explain,
};

/// Loads an identity, or makes it on first start; its public half is next to it.
///
/// # Errors
/// When the files can be neither read nor made.
pub fn identity(path: &Path, comment: &str) -> anyhow::Result<Arc<NodeIdentity>> {
    if let Some(folder) = path.parent() {
        files::make_folder(folder)?;
    }
    let identity = if path.exists() {
        load_identity(path)?
    } else {
        let identity = NodeIdentity::generate(&OsEntropy);
        identity.save(path).map_err(explain)?;
        tracing::info!(path = %path.display(), "created a new identity");
        identity
    };
    let (public, key) = (public_key_path(path), identity.openssh_line(""));
    // One that is there may lie where nothing can be written, with a comment of its operator's own.
    if !std::fs::read_to_string(&public).is_ok_and(|there| there.starts_with(key.trim_end())) {
        let line = format!("{}\n", identity.openssh_line(comment));
        files::write_public(&public, line.as_bytes())?;
    }
    Ok(Arc::new(identity))
}

/// The identity of a signer node: a client signer's key is where its configuration has it, and is not made.
///
/// # Errors
/// When it cannot be read or made.
pub fn signer_identity(config: &Config, name: &str) -> anyhow::Result<Arc<NodeIdentity>> {
    match config.client_signer.private_key() {
        None => identity(&config.signer.identity_file(), name),
        Some(_) => existing_identity(config).map(Arc::new),
    }
}

/// The same, which is not made in any case.
///
/// # Errors
/// When it cannot be read.
pub fn existing_identity(config: &Config) -> anyhow::Result<NodeIdentity> {
    let password = config.client_signer.password();
    match config.client_signer.private_key() {
        None => load_identity(&config.signer.identity_file()),
        Some(PrivateKey::File(path)) => {
            NodeIdentity::load_encrypted(&path, password.as_ref()).map_err(explain)
        }
        Some(PrivateKey::Text(pem)) => {
            let pem = pem.expose_secret().as_bytes();
            NodeIdentity::from_openssh(pem, password.as_ref())
                .map_err(|problem| anyhow!("ssh.private-key (client_signer.private_key) {problem}"))
        }
    }
}

/// The identity of a process that has one already; none is made.
///
/// # Errors
/// When the file cannot be read, or is not one.
pub fn identity_if_made(path: &Path) -> anyhow::Result<Option<NodeIdentity>> {
    path.exists().then(|| load_identity(path)).transpose()
}

/// Loads an existing identity.
///
/// # Errors
/// When the file is missing, readable by others, or none. Who reads what the service manager hands over is its business.
fn load_identity(path: &Path) -> anyhow::Result<NodeIdentity> {
    if !credentials_folder().is_some_and(|folder| path.starts_with(folder)) {
        return NodeIdentity::load(path).map_err(explain);
    }
    let pem = files::read_secret(path)?;
    NodeIdentity::from_openssh(pem.expose_secret().as_bytes(), None)
        .map_err(|problem| anyhow!("identity file {} {problem}", path.display()))
}

/// `identity` -> `identity.pub`.
pub fn public_key_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".pub");
    PathBuf::from(name)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn public_half__should_be_written_once_and_keep_its_comment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("identity");
        let public = public_key_path(&path);
        let first = identity(&path, "made").unwrap();
        assert_eq!(
            fs::read_to_string(&public).unwrap(),
            format!("{}\n", first.openssh_line("made"))
        );
        let of_operator = format!("{}\n", first.openssh_line("rack 7"));
        fs::write(&public, &of_operator).unwrap();
        assert_eq!(identity(&path, "made").unwrap().id(), first.id());
        assert_eq!(fs::read_to_string(&public).unwrap(), of_operator);
        // Of another key, or of none.
        for wrong in [
            NodeIdentity::generate(&OsEntropy).openssh_line("made"),
            String::new(),
        ] {
            fs::write(&public, wrong).unwrap();
            identity(&path, "made").unwrap();
            assert_eq!(
                fs::read_to_string(&public).unwrap(),
                format!("{}\n", first.openssh_line("made"))
            );
        }
    }
}
