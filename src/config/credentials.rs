//! Credentials of the service manager.

use std::path::PathBuf;

/// Where the service manager has put credentials for this process (systemd: `LoadCredential=`).
pub fn credentials_folder() -> Option<PathBuf> {
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    folder.filter(|folder| folder.is_absolute())
}
