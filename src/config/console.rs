//! Settings of the console.

use serde::Deserialize;

use super::ConfigError;

#[derive(Clone, Debug, Deserialize)]
pub struct ConsoleSettings {
    pub listen: String,
    origin: String,
    trusted_proxies: usize,
}

/// Under what browsers reach pages: those of the console, or of a signer node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOrigin {
    /// As browsers write it: `https://console.example.com`.
    pub origin: String,
    /// The host: the relying party of its passkeys.
    pub rp_id: String,
    /// How many proxies stand between them and it.
    pub trusted_proxies: usize,
}

impl ConsoleSettings {
    /// Of a console for development, which browsers on this machine reach at this port.
    pub fn for_development(listen: String, port: u16) -> Self {
        Self {
            origin: match port {
                80 => "http://localhost".to_owned(),
                port => format!("http://localhost:{port}"),
            },
            listen,
            trusted_proxies: 0,
        }
    }

    /// The origin, where there is one.
    ///
    /// # Errors
    /// [`ConfigError::Value`] when it is none of https, or is missing and the console listens.
    pub fn origin(&self) -> Result<Option<PageOrigin>, ConfigError> {
        let names = ["console.origin", "console.listen"];
        page_origin(names, &self.listen, &self.origin, self.trusted_proxies)
    }
}

/// The origin of pages that listen there, where there is one. The names: of the settings of origin and listener.
///
/// # Errors
/// As [`ConsoleSettings::origin`].
pub(super) fn page_origin(
    [name_of_origin, name_of_listen]: [&str; 2],
    listen: &str,
    origin: &str,
    trusted_proxies: usize,
) -> Result<Option<PageOrigin>, ConfigError> {
    if origin.is_empty() && listen.is_empty() {
        return Ok(None);
    }
    let wrong = |problem: &str| Err(ConfigError::Value(format!("{name_of_origin} {problem}")));
    if origin.is_empty() {
        return wrong(&format!("is required where {name_of_listen} is set"));
    }
    let (secure, host) = match origin.split_once("://") {
        Some(("https", host)) => (true, host),
        Some(("http", host)) => (false, host),
        _ => return wrong("must begin with https://"),
    };
    let (name, port) = match host.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (host, None),
    };
    // As browsers write it: they send it back, and it is compared whole.
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let usual = if secure { 443 } else { 80 };
    let port_fits = port.is_none_or(|port| {
        let number = port.parse::<u16>();
        number.is_ok_and(|number| number.to_string() == port && number != usual && number != 0)
    });
    if name.is_empty() || !name.bytes().all(plain) || !port_fits {
        return wrong(
            "must be written as browsers do: https, a host in lower case, a port only where it is not 443, and no \
             path, such as https://console.example.com",
        );
    }
    // WebAuthn has no addresses for relying parties.
    if name.parse::<std::net::IpAddr>().is_ok() {
        return wrong("must name a host, not an address: passkeys are made for names");
    }
    if !secure && name != "localhost" {
        return wrong("must be https, but on localhost");
    }
    Ok(Some(PageOrigin {
        origin: origin.to_owned(),
        rp_id: name.to_owned(),
        trusted_proxies,
    }))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn origin(listen: &str, origin: &str) -> Result<Option<PageOrigin>, String> {
        let settings = ConsoleSettings {
            listen: listen.to_owned(),
            origin: origin.to_owned(),
            trusted_proxies: 0,
        };
        settings.origin().map_err(|error| error.to_string())
    }

    #[test]
    fn origin__should_be_named_by_the_settings_of_its_page() {
        let names = ["signer.approve_origin", "signer.approve_listen"];
        let origin = |origin: &str| page_origin(names, "127.0.0.1:0", origin, 1);
        for (text, problem) in [
            (
                "",
                "signer.approve_origin is required where signer.approve_listen is set",
            ),
            (
                "http://approve.example.com",
                "signer.approve_origin must be https",
            ),
        ] {
            let error = origin(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        let found = origin("https://approve.example.com").unwrap().unwrap();
        assert_eq!(
            (found.rp_id.as_str(), found.trusted_proxies),
            ("approve.example.com", 1)
        );
    }

    #[test]
    fn origin__should_be_https_and_written_as_browsers_do() {
        assert_eq!(origin("", ""), Ok(None));
        for (text, rp_id) in [
            ("https://console.example.com", "console.example.com"),
            ("https://console.example.com:8443", "console.example.com"),
            ("http://localhost:8082", "localhost"),
            ("http://localhost", "localhost"),
        ] {
            let found = origin("127.0.0.1:0", text).unwrap().unwrap();
            assert_eq!((found.origin.as_str(), found.rp_id.as_str()), (text, rp_id));
        }
        for text in [
            "",
            "console.example.com",
            "http://console.example.com",
            "https://Console.example.com",
            "https://console.example.com/",
            "https://console.example.com:443",
            "https://console.example.com:08443",
            "https://console.example.com:",
            "https://user@console.example.com",
            "https://",
            "https://127.0.0.1",
            "http://localhost:80",
            "http://localhost.example.com",
            "ftp://console.example.com",
        ] {
            let problem = origin("127.0.0.1:0", text).unwrap_err();
            assert!(problem.contains("console.origin"), "{text}: {problem}");
        }
    }
}
