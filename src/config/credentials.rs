//! Credentials of the service manager.

use std::path::PathBuf;

/// Where the service manager has put credentials for this process (systemd: `LoadCredential=`).
pub fn credentials_folder() -> Option<PathBuf> {
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    folder.filter(|folder| folder.is_absolute())
}

/// Where commands find the orchestrator that they call, and the file with its admin token.
pub const ADDRESS: &str = "COVAULT_ADDR";
const TOKEN_FILE: &str = "COVAULT_TOKEN_FILE";

/// Whether a variable is for commands, and no setting.
pub(super) fn is_for_commands(variable: &str) -> bool {
    [ADDRESS, TOKEN_FILE].contains(&variable)
}

/// The URL of an orchestrator, and the file with its admin token, as the environment names them.
///
/// # Errors
/// When it names one of them alone.
#[expect(clippy::disallowed_methods, reason = "this is configuration")]
pub fn service_of_environment() -> anyhow::Result<Option<(String, PathBuf)>> {
    let given = |name| {
        let value = std::env::var(name).ok();
        value.filter(|value| !value.is_empty())
    };
    match (given(ADDRESS), given(TOKEN_FILE)) {
        (None, None) => Ok(None),
        (Some(url), Some(file)) => Ok(Some((url, file.into()))),
        _ => anyhow::bail!("{ADDRESS} and {TOKEN_FILE}: set both, or neither"),
    }
}
