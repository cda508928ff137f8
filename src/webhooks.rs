//! What webhooks and mail are sent with: the service's key, the networks that are open to webhooks, and the mail server.

use std::sync::Arc;

use anyhow::{Context as _, anyhow, ensure};
use covault_actors::{
    mail::{MailServer, Mailer},
    webhooks::{TargetRules, WebhookKeys, WebhookParts},
};
use covault_core::port::Entropy as _;
use secrecy::{ExposeSecret as _, SecretString};
use zeroize::Zeroizing;

use crate::{
    adapters::OsEntropy,
    config::{Config, NotifySettings},
    files,
};

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
        mailer: mailer(config)?.map(Arc::new),
    })
}

/// What sends mail, where a server is named.
fn mailer(config: &Config) -> anyhow::Result<Option<Mailer>> {
    let NotifySettings {
        details: _,
        mail_server,
        mail_user,
        mail_password_file,
        mail_from,
    } = &config.notify;
    let has_file = !mail_password_file.as_os_str().is_empty();
    if mail_server.is_empty() {
        let is_empty = mail_user.is_empty() && !has_file && mail_from.is_empty();
        ensure!(
            is_empty,
            "notify.mail_server: is required with notify.mail_from, mail_user or mail_password_file"
        );
        return Ok(None);
    }
    ensure!(
        mail_user.is_empty() != has_file,
        "notify.mail_user and notify.mail_password_file: set both or neither"
    );
    let password = || files::read_secret(mail_password_file).context("notify.mail_password_file");
    let account = has_file.then(password).transpose()?;
    let server = MailServer {
        url: mail_server.clone(),
        account: account.map(|password| (mail_user.clone(), password)),
        from: mail_from.clone(),
    };
    Mailer::new(&server)
        .map(Some)
        .map_err(|fault| anyhow!("{fault}"))
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
    mailer(config)?;
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
            (
                "[notify]\nmail_server = \"http://secret/\"\nmail_from = \"a@example.com\"".to_owned(),
                "notify.mail_server",
            ),
            (
                "[notify]\nmail_server = \"smtps://mail.example.com\"".to_owned(),
                "notify.mail_from",
            ),
            (
                "[notify]\nmail_from = \"a@example.com\"".to_owned(),
                "notify.mail_server: is required",
            ),
            (
                "[notify]\nmail_server = \"smtps://mail.example.com\"\nmail_from = \"a@example.com\"\nmail_user = \"a\"".to_owned(),
                "set both or neither",
            ),
        ] {
            let error = from_config(&config(folder.path(), &more)).err().unwrap();
            let text = format!("{error:#}");
            assert!(text.contains(setting), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
