//! What a process of several is, and shares with the others.

use std::path::PathBuf;

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
pub struct Cluster {
    pub roles: Roles,
    pub name: String,
    secret_file: PathBuf,
}

impl Cluster {
    /// The file with the secret of all processes, where there is one.
    pub fn secret_file(&self) -> Option<&PathBuf> {
        (!self.secret_file.as_os_str().is_empty()).then_some(&self.secret_file)
    }
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Roles {
    /// The API, and vaults
    All,
    /// The API: commands go to an orchestrator, questions are answered from the store
    Http,
    /// Vaults: of the API only /livez and /readyz
    Orchestrator,
}

impl Roles {
    /// Whether the API is served.
    pub fn serve_api(self) -> bool {
        matches!(self, Roles::All | Roles::Http)
    }

    /// Whether vaults run here.
    pub fn run_vaults(self) -> bool {
        matches!(self, Roles::All | Roles::Orchestrator)
    }
}
