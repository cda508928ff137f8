//! What webhooks are sent with: the service's key, and the networks that are open to them.

use std::sync::Arc;

use anyhow::Context as _;
use covault_actors::webhooks::{TargetRules, WebhookKeys, WebhookParts};
use covault_core::port::Entropy as _;
use secrecy::{ExposeSecret as _, SecretString};
use zeroize::Zeroizing;

use crate::{adapters::OsEntropy, config::Config, files};

/// The setting of the key.
pub const KEY_FILE: &str = "webhooks.key_file";

/// What webhooks are sent with. The key is made on first start.
///
/// # Errors
/// When a key or a network cannot be used.
pub fn from_config(config: &Config) -> anyhow::Result<WebhookParts> {
    let rules = rules(config)?;
    let new = || {
        let mut seed = Zeroizing::new([0; 32]);
        OsEntropy.fill(&mut *seed);
        SecretString::from(hex::encode(*seed))
    };
    let path = config.webhooks.key_file(&config.serve.data_dir);
    let present = files::secret_or_new(&path, new);
    let present = present
        .and_then(|present| seed(&present))
        .context(KEY_FILE)?;
    let next = next_seed(config)?;
    Ok(WebhookParts {
        keys: Some(Arc::new(WebhookKeys::new(&present, next.as_deref()))),
        rules,
    })
}

/// Reads what is there, and makes nothing.
///
/// # Errors
/// As [`from_config`].
pub fn check(config: &Config) -> anyhow::Result<()> {
    rules(config)?;
    let path = config.webhooks.key_file(&config.serve.data_dir);
    if path.exists() {
        files::read_secret(&path)
            .and_then(|present| seed(&present))
            .context(KEY_FILE)?;
    }
    next_seed(config).map(|_| ())
}

fn rules(config: &Config) -> anyhow::Result<TargetRules> {
    let network = |text: &String| {
        let network = text.parse();
        network.with_context(|| {
            format!("webhooks.allow: {text:?} is not a network such as 10.1.0.0/16")
        })
    };
    let allow = config
        .webhooks
        .allow
        .iter()
        .map(network)
        .collect::<anyhow::Result<_>>()?;
    Ok(TargetRules { allow })
}

fn next_seed(config: &Config) -> anyhow::Result<Option<Zeroizing<[u8; 32]>>> {
    let next = config.webhooks.next_key_file();
    let read = next.map(|path| files::read_secret(path).and_then(|next| seed(&next)));
    read.transpose().context("webhooks.next_key_file")
}

/// What a file with a key holds. It is not repeated when it is wrong.
fn seed(text: &SecretString) -> anyhow::Result<Zeroizing<[u8; 32]>> {
    let mut seed = Zeroizing::new([0; 32]);
    hex::decode_to_slice(text.expose_secret(), &mut *seed)
        .ok()
        .context("must hold 64 hex digits")?;
    Ok(seed)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn config(folder: &std::path::Path, more: &str) -> Config {
        let text = format!("[serve]\ndata_dir = {folder:?}\n[webhooks]\n{more}");
        Config::load_with("test", &text).unwrap().0
    }

    #[test]
    fn key__should_be_made_once_and_another_be_taken_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = from_config(&config(folder.path(), "")).unwrap();
        let again = from_config(&config(folder.path(), "allow = [\"10.0.0.0/8\"]")).unwrap();
        let public = |parts: &WebhookParts| parts.keys.as_ref().unwrap().public();
        assert_eq!(public(&first), public(&again));
        assert_eq!(again.rules.allow.len(), 1);
        let next = folder.path().join("next");
        files::write_private(&next, "07".repeat(32).as_bytes()).unwrap();
        let both =
            from_config(&config(folder.path(), &format!("next_key_file = {next:?}"))).unwrap();
        assert_eq!(public(&both).len(), 2);
        assert_eq!(public(&both)[0], public(&first)[0]);
    }

    #[test]
    fn what_is_wrong__should_name_its_setting_and_show_no_key() {
        let folder = tempfile::tempdir().unwrap();
        let bad = folder.path().join("bad");
        files::write_private(&bad, b"secret").unwrap();
        for (more, setting) in [
            (format!("key_file = {bad:?}"), "webhooks.key_file"),
            (format!("next_key_file = {bad:?}"), "webhooks.next_key_file"),
            ("allow = [\"10.0.0.1/99\"]".to_owned(), "webhooks.allow"),
        ] {
            let error = from_config(&config(folder.path(), &more)).err().unwrap();
            let text = format!("{error:#}");
            assert!(text.contains(setting), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
