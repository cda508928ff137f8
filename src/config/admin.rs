//! Where the admin API listens.

use std::path::{Path, PathBuf};

use super::check::is_address;

/// The longest path of a socket, in bytes (sun_path of unix(7), without its end).
const MOST_SOCKET_PATH: usize = 107;
/// What a path of a socket is written after.
const UNIX: &str = "unix:";
/// The socket where no other address is set, in the data folder.
const DEFAULT_SOCKET: &str = "admin.sock";
/// What the path of a socket needs beyond its own length while it is made.
const ROOM_TO_MAKE: usize = ".new/s".len();

/// Where the admin API listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// A socket that only the process's user may open.
    Socket(PathBuf),
    /// `IP:PORT`, or a name in place of the address.
    Network(String),
}

impl AdminAddress {
    /// Of the setting; empty: the socket in the data folder.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &str, data_dir: &Path) -> Result<Self, String> {
        let path = match text.strip_prefix(UNIX) {
            None if text.is_empty() => {
                let path = data_dir.join(DEFAULT_SOCKET);
                // Commands are told of it, and may run elsewhere.
                std::path::absolute(&path).unwrap_or(path)
            }
            None if is_address(text) => return Ok(Self::Network(text.to_owned())),
            None => {
                return Err(format!(
                    "{text:?} is not an address; use unix:/PATH, or IP:PORT, such as 127.0.0.1:8083"
                ));
            }
            Some(path) if Path::new(path).is_absolute() => PathBuf::from(path),
            Some(path) => {
                return Err(format!(
                    "{path:?} is not the whole path of a socket; use unix:/PATH"
                ));
            }
        };
        let length = path.as_os_str().len();
        if length.saturating_add(ROOM_TO_MAKE) > MOST_SOCKET_PATH {
            let most = MOST_SOCKET_PATH.saturating_sub(ROOM_TO_MAKE);
            return Err(format!(
                "the path {} of the socket has {length} bytes, more than the {most} that the system can take; name a shorter \
                 one, such as unix:/run/covault/admin.sock",
                path.display()
            ));
        }
        Ok(Self::Socket(path))
    }
}

impl std::fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "{UNIX}{}", path.display()),
            Self::Network(address) => f.write_str(address),
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn admin_address__should_be_a_socket_that_only_this_user_opens_unless_one_is_named() {
        let parse = |text: &str| AdminAddress::parse(text, Path::new("/var/lib/covault"));
        let socket = |path: &str| Ok(AdminAddress::Socket(path.into()));
        assert_eq!(parse(""), socket("/var/lib/covault/admin.sock"));
        assert_eq!(parse("unix:/run/a.sock"), socket("/run/a.sock"));
        for address in ["127.0.0.1:8083", "[::1]:0", "admin.internal:8083"] {
            let network = AdminAddress::Network(address.to_owned());
            assert_eq!(parse(address), Ok(network));
        }
        let long = format!("unix:/{}", "x".repeat(110));
        for (text, words) in [
            ("unix:a.sock", "is not the whole path"),
            ("unix:", "is not the whole path"),
            ("/run/a.sock", "is not an address; use unix:/PATH"),
            ("8083", "is not an address"),
            (long.as_str(), "the path"),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(problem.contains(words), "{text}: {problem}");
        }
        let shown = parse("").map(|address| address.to_string());
        assert_eq!(shown.as_deref(), Ok("unix:/var/lib/covault/admin.sock"));
    }
}
