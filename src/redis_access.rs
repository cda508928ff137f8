//! Redis as the settings name it: its URL and certificates, read from their files.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, bail};
use covault_mpc::bus::{
    Bus, BusError,
    redis::RedisBus,
    servers::{RedisServers, RedisTls},
};
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use secrecy::{ExposeSecret as _, SecretString};

use crate::{config::BusSettings, files};

/// Where Redis is, and what of it is this cluster's.
pub struct RedisAccess {
    url: SecretString,
    /// That the URL is from.
    setting: &'static str,
    namespace: String,
    tls: RedisTls,
}

impl RedisAccess {
    /// What the settings name. All files are read here: a signer node reads none of them later.
    ///
    /// # Errors
    /// When one of the files cannot be used, naming the setting.
    pub fn load(settings: &BusSettings) -> anyhow::Result<Self> {
        let (url, setting) = match named(&settings.redis_url_file) {
            Some(file) => {
                let setting = "bus.redis_url_file";
                (files::read_secret(file).context(setting)?, setting)
            }
            None => {
                let url = SecretString::from(settings.redis_url.as_str());
                (url, "bus.redis_url")
            }
        };
        let authorities = named(&settings.ca_file)
            .map(|file| certificates(file).context("bus.ca_file"))
            .transpose()?;
        let client = match (named(&settings.certificate_file), named(&settings.key_file)) {
            (None, None) => None,
            (Some(certificate), Some(key)) => {
                let chain = certificates(certificate).context("bus.certificate_file")?;
                let secret = files::read_secret(key).context("bus.key_file")?;
                let pem = secret.expose_secret().as_bytes();
                let Ok(private) = PrivateKeyDer::from_pem_slice(pem) else {
                    bail!("bus.key_file: {} holds no private key (PEM)", key.display());
                };
                let ders = CertificateDer::pem_slice_iter(chain.as_bytes());
                let ders: Vec<_> = ders.filter_map(Result::ok).collect();
                // The client would find out with its first connection.
                CertifiedKey::from_der(ders, private, &ring::default_provider())
                    .context("bus.certificate_file and bus.key_file do not belong together")?;
                Some((chain, secret))
            }
            _ => bail!("bus.certificate_file and bus.key_file: set both, or neither"),
        };
        Ok(Self {
            url,
            setting,
            namespace: settings.namespace.clone(),
            tls: RedisTls {
                authorities,
                client,
            },
        })
    }

    /// The setting that the URL is from.
    pub fn url_setting(&self) -> &'static str {
        self.setting
    }

    /// What a stream of this cluster is called in Redis (docs/decisions/0001-inbox-streams.md).
    pub fn key(&self, stream: &str) -> String {
        format!("covault:{{{}}}:{stream}", self.namespace)
    }

    /// The server, or the primary that Sentinels name.
    ///
    /// # Errors
    /// When the URL is invalid. It may hold a password, and is not repeated.
    pub fn servers(&self) -> anyhow::Result<RedisServers> {
        let servers = RedisServers::of(self.url.expose_secret(), &self.tls);
        servers.map_err(|error| self.unusable(&error))
    }

    /// The bus of the signer nodes, which need not be there yet.
    ///
    /// # Errors
    /// When the URL is invalid.
    pub fn bus(&self) -> anyhow::Result<Arc<dyn Bus>> {
        self.bus_in(&self.namespace)
    }

    /// The bus on which orchestrators forward commands to each other.
    ///
    /// # Errors
    /// When the URL is invalid.
    pub fn command_bus(&self) -> anyhow::Result<Arc<dyn Bus>> {
        self.bus_in(&commands_namespace(&self.namespace))
    }

    fn bus_in(&self, namespace: &str) -> anyhow::Result<Arc<dyn Bus>> {
        let bus = RedisBus::connect_with(self.url.expose_secret(), namespace, &self.tls);
        Ok(bus.map_err(|error| self.unusable(&error))?)
    }

    fn unusable(&self, error: &BusError) -> anyhow::Error {
        let setting = self.setting;
        let problem = match error {
            BusError::Unreachable(problem) => problem.clone(),
            other => other.to_string(),
        };
        anyhow::anyhow!("{setting}: {problem}; {URL_FORM}")
    }
}

const URL_FORM: &str = "use redis://[user:password@]host:port, or \
    redis-sentinel://[user:password@]host:port,host:port,host:port/name; over TLS rediss:// and rediss-sentinel://";

/// Separates the keys of the command bus from those of the signers' bus.
pub fn commands_namespace(namespace: &str) -> String {
    format!("{namespace}-commands")
}

fn named(path: &Path) -> Option<&Path> {
    (!path.as_os_str().is_empty()).then_some(path)
}

/// The certificates in a file, of which there must be one.
fn certificates(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(text),
        _ => bail!("{shown} holds no certificate (PEM)"),
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn settings() -> BusSettings {
        crate::config::Config::load_with("test", "").unwrap().0.bus
    }

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/tls")
            .join(name)
    }

    #[test]
    fn redis_access__should_name_the_setting_whose_file_it_cannot_use() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str, text: &str| {
            let path = folder.path().join(name);
            files::write_private(&path, text.as_bytes()).unwrap();
            path
        };
        let key = at("key", &std::fs::read_to_string(fixture("a.key")).unwrap());
        let of_another = at("other", &std::fs::read_to_string(fixture("b.key")).unwrap());
        let url = at("url", "rediss://user:hunter2@localhost:1\n");
        let good = BusSettings {
            redis_url_file: url.clone(),
            ca_file: fixture("a.pem"),
            certificate_file: fixture("a.pem"),
            key_file: key.clone(),
            ..settings()
        };
        let access = RedisAccess::load(&good).unwrap();
        assert!(access.url.expose_secret().ends_with(":1"), "trimmed");
        access.servers().unwrap();
        let public = fixture("a.pem");
        // As umask 022 leaves it.
        let open = folder.path().join("open");
        std::fs::write(&open, "redis://:hunter2@localhost:1").unwrap();
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(&open, readable).unwrap();
        let none = folder.path().join("none");
        for (wrong, words) in [
            (
                BusSettings {
                    redis_url_file: none.clone(),
                    ..good.clone()
                },
                "bus.redis_url_file: cannot read",
            ),
            (
                BusSettings {
                    redis_url_file: open,
                    ..good.clone()
                },
                "chmod 600",
            ),
            (
                BusSettings {
                    ca_file: key.clone(),
                    ..good.clone()
                },
                "bus.ca_file: ",
            ),
            (
                BusSettings {
                    ca_file: none,
                    ..good.clone()
                },
                "bus.ca_file: cannot read",
            ),
            (
                BusSettings {
                    certificate_file: key.clone(),
                    ..good.clone()
                },
                "bus.certificate_file: ",
            ),
            (
                BusSettings {
                    key_file: at("wrong", "hunter2"),
                    ..good.clone()
                },
                "holds no private key",
            ),
            (
                BusSettings {
                    key_file: of_another,
                    ..good.clone()
                },
                "bus.certificate_file and bus.key_file do not belong together",
            ),
            (
                BusSettings {
                    key_file: public,
                    ..good.clone()
                },
                "bus.key_file: ",
            ),
            (
                BusSettings {
                    key_file: PathBuf::new(),
                    ..good.clone()
                },
                "set both, or neither",
            ),
        ] {
            let refused = RedisAccess::load(&wrong).err().unwrap();
            let said = format!("{refused:#}");
            assert!(
                said.contains(words) && !said.contains("hunter2"),
                "{words}: {said}"
            );
        }
        // Certificates for a connection that has none.
        let plain = BusSettings {
            redis_url_file: at("plain", "redis://:hunter2@localhost:1"),
            ..good
        };
        let refused = RedisAccess::load(&plain).unwrap().servers().err().unwrap();
        let said = format!("{refused:#}");
        assert!(
            said.contains("rediss://") && !said.contains("hunter2"),
            "{said}"
        );
    }
}
