//! The tokens that the first start makes, in files.

use std::path::PathBuf;

use anyhow::Context as _;
use secrecy::SecretString;

use crate::{adapters::OsEntropy, api::auth::new_token, config::ServeSettings, files};

/// The tokens of the orchestrator's files, made on first start.
pub struct TokenPair {
    pub platform: SecretString,
    /// `None`: it is turned off.
    pub admin: Option<SecretString>,
}

/// Reads or makes the tokens.
///
/// # Errors
/// When the files can be neither read nor made.
pub fn tokens(serve: &ServeSettings) -> anyhow::Result<TokenPair> {
    let of = |path: PathBuf, setting: &'static str| {
        files::secret_or_new(&path, || new_token(&OsEntropy)).context(setting)
    };
    Ok(TokenPair {
        platform: of(serve.platform_token_file(), PLATFORM_TOKEN)?,
        admin: match serve.admin_file_token {
            true => Some(of(serve.admin_token_file(), ADMIN_TOKEN)?),
            false => None,
        },
    })
}

/// The settings of the files.
pub const PLATFORM_TOKEN: &str = "serve.platform_token_file";
pub const ADMIN_TOKEN: &str = "serve.admin_token_file";
