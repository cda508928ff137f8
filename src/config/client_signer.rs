//! What makes a signer node a client signer.

use std::{fmt, path::PathBuf};

use anyhow::{Context as _, bail};
use covault_core::ids::VaultId;
use secrecy::SecretString;
use serde::Deserialize;

use crate::files;

/// How an OpenSSH private key file begins.
const PEM: &str = "-----BEGIN";

#[derive(Clone, Deserialize)]
pub struct ClientSignerSettings {
    vault: String,
    callback_url: String,
    callback_format: CallbackFormat,
    callback_secret_file: PathBuf,
    private_key: String,
    password: String,
    pub health_listen: String,
}

/// In what the callback gets the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CallbackFormat {
    Protobuf,
    Json,
}

/// Which program decides about what.
pub struct CallbackSettings {
    pub vault: VaultId,
    pub url: String,
    pub format: CallbackFormat,
    /// Of the HMAC that receivers may check, as its file has it.
    pub secret: Option<SecretString>,
}

/// Where a client signer's private key is.
pub enum PrivateKey {
    File(PathBuf),
    Text(SecretString),
}

/// Neither the key nor the password; and a URL may hold one.
impl fmt::Debug for ClientSignerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSignerSettings")
            .field("vault", &self.vault)
            .field("callback_format", &self.callback_format)
            .field("health_listen", &self.health_listen)
            .finish_non_exhaustive()
    }
}

impl ClientSignerSettings {
    /// Whether the file that they stand in must be nobody else's to read.
    pub(super) fn holds_secret(&self) -> bool {
        !self.password.is_empty() || self.private_key.trim_start().starts_with(PEM)
    }

    /// The private key, where it is not in the place of every signer node's.
    pub fn private_key(&self) -> Option<PrivateKey> {
        match self.private_key.trim_start() {
            "" => None,
            text if text.starts_with(PEM) => Some(PrivateKey::Text(text.to_owned().into())),
            path => Some(PrivateKey::File(path.trim_end().into())),
        }
    }

    /// What opens it.
    pub fn password(&self) -> Option<SecretString> {
        (!self.password.is_empty()).then(|| self.password.clone().into())
    }

    /// What decides; `None` when this node is no client signer.
    ///
    /// # Errors
    /// When a part is missing, or is wrong.
    pub fn callback(&self) -> anyhow::Result<Option<CallbackSettings>> {
        let url = match (self.vault.as_str(), self.callback_url.as_str()) {
            ("", "") => return Ok(None),
            ("", _) => bail!(
                "vault-uuid (client_signer.vault) is missing: name the only vault that this client signer signs for"
            ),
            (_, "") => bail!(
                "callback-url (client_signer.callback_url) is missing: name the URL that decides about each request"
            ),
            (_, url) => url,
        };
        let vault = self.vault.parse();
        let vault =
            vault.map_err(|_| anyhow::anyhow!("vault-uuid (client_signer.vault) is not a uuid"))?;
        let secret = match self.callback_secret_file.as_os_str().is_empty() {
            true => None,
            false => {
                let secret = files::read_secret(&self.callback_secret_file);
                Some(secret.context("callback-secret-file (client_signer.callback_secret_file)")?)
            }
        };
        Ok(Some(CallbackSettings {
            vault,
            url: url.to_owned(),
            format: self.callback_format,
            secret,
        }))
    }
}
