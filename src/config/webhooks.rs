//! The part of the configuration that says what webhooks are signed with, and where they may go.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::path_or_default;

#[derive(Clone, Debug, Deserialize)]
pub struct WebhookSettings {
    key_file: PathBuf,
    next_key_file: PathBuf,
    pub allow: Vec<String>,
}

impl WebhookSettings {
    /// The key that webhooks are signed with.
    pub fn key_file(&self, data_dir: &Path) -> PathBuf {
        path_or_default(&self.key_file, data_dir, "webhook-key")
    }

    /// The key that is to follow, while keys are changed.
    pub fn next_key_file(&self) -> Option<&Path> {
        let is_set = !self.next_key_file.as_os_str().is_empty();
        is_set.then_some(self.next_key_file.as_path())
    }
}
