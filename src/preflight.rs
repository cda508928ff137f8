//! Checks of everything that a process reads, before it makes its first file: a start that fails leaves
//! nothing half made.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use covault_mpc::shares::backup;
use secrecy::{ExposeSecret as _, SecretString};

use crate::{
    abis, bus_check,
    callback::http_url,
    chain_nodes,
    config::{AdminAddress, Config, ServeSettings, StoreKind},
    files,
    http::socket::LocalSocket,
    identities,
    redis_access::RedisAccess,
    sharing,
    token_files::{ADMIN_TOKEN, PLATFORM_TOKEN},
    webhooks::{self, KEY_FILE},
    wiring,
};

/// Where the admin API listens.
const ADMIN_LISTEN: &str = "serve.admin_listen";
/// The shortest token that a person may have put into a file, in bytes.
const LEAST_TOKEN: usize = 16;
/// What is in the folder of a signer node, and of an orchestrator.
const OF_SIGNER: &str = covault_mpc::shares::age_file::KEYRING;
const OF_ORCHESTRATOR: &str = "store.redb";

/// All that `covault serve` reads, and Redis.
///
/// # Errors
/// What cannot be used, with its setting.
pub async fn serve(config: &Config, redis: &RedisAccess) -> anyhow::Result<()> {
    let serve = &config.serve;
    redis.servers()?;
    abis::load(&config.evm)?;
    chain_nodes::from_config(&config.chains)?;
    if !serve.policy_file.as_os_str().is_empty() {
        wiring::check_policy(&serve.policy_file, "serve.policy_file")?;
    }
    webhooks::check(config)?;
    sharing::check(config)?;
    if config.store.kind == StoreKind::Postgres {
        wiring::store_url(&config.store)?;
    }
    let identity = identities::identity_if_made(&serve.identity_file());
    let identity = identity.context("serve.identity_file")?;
    if !serve.init {
        was_made(config, identity.is_some())?;
    }
    tokens(serve)?;
    let socket = admin_socket(config)?;
    let identity_file = serve.identity_file();
    let made = [serve.data_dir.as_path(), &identity_file];
    let admin_token = serve
        .admin_file_token
        .then(|| (ADMIN_TOKEN, serve.admin_token_file()));
    let socket = socket.map(|path| (ADMIN_LISTEN, path));
    for (setting, path) in admin_token.into_iter().chain(socket).chain([
        (PLATFORM_TOKEN, serve.platform_token_file()),
        (KEY_FILE, config.webhooks.key_file(&serve.data_dir)),
    ]) {
        has_folder(setting, &path, &made)?;
    }
    let folder = serve.data_dir.display();
    ensure!(
        !serve.data_dir.join(OF_SIGNER).exists(),
        "serve.data_dir: {folder} is the folder of a signer node; name another, and on another machine: whoever controls \
         both has more than an orchestrator may have"
    );
    // The bus says itself that it is away, and tries again.
    bus_check::check(redis, identity.map(|identity| identity.id())).await?;
    Ok(())
}

/// The socket of the admin API, where it listens on one.
fn admin_socket(config: &Config) -> anyhow::Result<Option<PathBuf>> {
    if !config.cluster.roles.serve_api() {
        return Ok(None);
    }
    let address = config.serve.admin_address();
    match address.map_err(|problem| anyhow::anyhow!("{ADMIN_LISTEN}: {problem}"))? {
        AdminAddress::Network(_) => Ok(None),
        AdminAddress::Socket(path) => {
            // Who else works in the data folder is found by its lock.
            if !path.starts_with(std::path::absolute(&config.serve.data_dir)?) {
                LocalSocket::check(&path).context(ADMIN_LISTEN)?;
            }
            Ok(Some(path))
        }
    }
}

/// Refuses a start by mistake in another folder, or without its disk: a new orchestrator is made on purpose.
fn was_made(config: &Config, has_identity: bool) -> anyhow::Result<()> {
    let folder = config.serve.data_dir.display();
    ensure!(
        has_identity,
        "serve.data_dir: there is no orchestrator in {folder}: {} is missing. If there was one, bring its folder back; to make a \
         new one, start it once with covault serve --init (or set serve.init = true)",
        config.serve.identity_file().display()
    );
    if let Some(store) = wiring::store_file(config) {
        ensure!(
            store.exists(),
            "serve.data_dir: {folder} has the identity of an orchestrator, but its store {} is missing: bring it back, or \
             restore a backup (covault backup restore). covault serve --init makes an empty one, which knows none of \
             its vaults",
            store.display()
        );
    }
    Ok(())
}

/// What `covault signer` reads beside its policy and its folder, and Redis.
///
/// # Errors
/// What cannot be used, with its setting.
pub async fn signer(config: &Config, redis: &RedisAccess) -> anyhow::Result<()> {
    let signer = &config.signer;
    ensure!(
        !signer.data_dir.join(OF_ORCHESTRATOR).exists(),
        "signer.data_dir: {} is the folder of an orchestrator; name another",
        signer.data_dir.display()
    );
    if let Some(callback) = config.client_signer.callback()? {
        http_url(&callback.url).context("client_signer.callback_url")?;
    }
    backup::recipients(&signer.backup_recipients)
        .map_err(wiring::explain)
        .context("signer.backup_recipients")?;
    let identity = match config.client_signer.private_key() {
        None => identities::identity_if_made(&signer.identity_file()),
        Some(_) => Ok(None),
    };
    let identity = identity.context("signer.identity_file")?;
    // The bus says itself that it is away, and tries again.
    bus_check::check(redis, identity.map(|identity| identity.id())).await?;
    Ok(())
}

/// The tokens that are there.
fn tokens(serve: &ServeSettings) -> anyhow::Result<()> {
    let read = |path: PathBuf, setting: &'static str| -> anyhow::Result<Option<SecretString>> {
        if !path.exists() {
            return Ok(None);
        }
        let token = files::read_secret(&path).context(setting)?;
        // It is not repeated.
        ensure!(
            token.expose_secret().len() >= LEAST_TOKEN,
            "{setting}: the token in {} is shorter than {LEAST_TOKEN} characters and could be guessed; remove the file, \
             and the next start makes a new one",
            path.display()
        );
        Ok(Some(token))
    };
    let platform = read(serve.platform_token_file(), PLATFORM_TOKEN)?;
    if !serve.admin_file_token {
        return Ok(());
    }
    let admin = read(serve.admin_token_file(), ADMIN_TOKEN)?;
    if serve.platform_token_file() == serve.admin_token_file() {
        bail!(
            "{PLATFORM_TOKEN} and {ADMIN_TOKEN} name one file; name two: clients would have the admin token"
        );
    }
    if let (Some(platform), Some(admin)) = (platform, admin)
        && platform.expose_secret() == admin.expose_secret()
    {
        bail!(
            "{PLATFORM_TOKEN} and {ADMIN_TOKEN} hold the same token; remove the second, and the next start makes a new one: \
             clients would have the admin token"
        );
    }
    Ok(())
}

/// A file that is to be made needs its folder.
/// The start makes the folders on the way to those that are `made`.
fn has_folder(setting: &str, path: &Path, made: &[&Path]) -> anyhow::Result<()> {
    let Some(folder) = path.parent() else {
        return Ok(());
    };
    let here = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let made = made.iter().any(|path| here(path).starts_with(here(folder)));
    let is_made = folder.as_os_str().is_empty() || made;
    ensure!(
        is_made || path.exists() || folder.is_dir(),
        "{setting}: the folder {} is missing; make it, or name a file elsewhere",
        folder.display()
    );
    Ok(())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn tokens__should_be_two_that_cannot_be_guessed() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str, text: &str| {
            let path = folder.path().join(name);
            files::write_private(&path, text.as_bytes()).expect("written");
            path
        };
        let (long, other) = (
            at("long", &"hunter2".repeat(9)),
            at("other", &"x".repeat(16)),
        );
        let same = at("same", &"hunter2".repeat(9));
        let (short, none) = (at("short", "hunter2"), folder.path().join("none"));
        let judge = |platform: &Path, admin: &Path| {
            let text = format!(
                "[serve]\nplatform_token_file = {platform:?}\nadmin_token_file = {admin:?}"
            );
            let config = Config::load_with("test", &text).expect("loads").0;
            tokens(&config.serve).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(judge(&long, &other), Ok(()));
        assert_eq!(judge(&none, &other), Ok(()), "the next start makes it");
        for (platform, admin, words) in [
            (&long, &same, "hold the same token"),
            (&none, &none, "name one file"),
            (&short, &other, "serve.platform_token_file: the token in"),
            (&other, &short, "serve.admin_token_file: the token in"),
        ] {
            let problem = judge(platform, admin).expect_err(words);
            assert!(problem.contains(words), "{problem}");
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
