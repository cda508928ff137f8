//! The role of a process in a cluster, and what it shares with the others.

use std::path::PathBuf;

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
pub struct ClusterSettings {
    pub roles: ProcessRole,
    pub name: String,
    secret_file: PathBuf,
}

impl ClusterSettings {
    /// The file with the secret of all processes, where there is one.
    pub fn secret_file(&self) -> Option<&PathBuf> {
        (!self.secret_file.as_os_str().is_empty()).then_some(&self.secret_file)
    }
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ProcessRole {
    /// The API, and vaults
    All,
    /// The API: commands go to an orchestrator, questions are answered from the store
    Http,
    /// Vaults: of the API only /livez and /readyz
    Orchestrator,
}

impl ProcessRole {
    /// Whether the API is served.
    pub fn serve_api(self) -> bool {
        matches!(self, ProcessRole::All | ProcessRole::Http)
    }

    /// Whether vaults run here.
    pub fn run_vaults(self) -> bool {
        matches!(self, ProcessRole::All | ProcessRole::Orchestrator)
    }
}
