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
/// As which version a build for tests passes for.
#[cfg(debug_assertions)]
const VERSION: &str = "COVAULT_VERSION_FOR_TESTS";

/// Whether a variable is for commands or tests, and no setting.
pub(super) fn is_no_setting(variable: &str) -> bool {
    #[cfg(debug_assertions)]
    if variable == VERSION {
        return true;
    }
    [ADDRESS, TOKEN_FILE].contains(&variable)
}

/// Passes for the version that a test names.
#[cfg(debug_assertions)]
#[expect(clippy::disallowed_methods, reason = "this is configuration")]
pub fn pass_for_version() {
    if let Ok(version) = std::env::var(VERSION) {
        covault_core::version::pass_for(version);
    }
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
