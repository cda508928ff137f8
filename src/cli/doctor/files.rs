//! The machine itself: its disk, its limits, and the files of the process.

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
};

use rustix::process::{Resource, getrlimit};
use tokio::time::Instant;

use super::{super::config::CheckedRole, Check};
use crate::{config::Config, files, sockets::MOST_OF_CHAIN_NODES};

/// A commit waits for one or two of these.
const SLOW_WRITE_MS: u128 = 20;
/// So many are timed; the middle one counts.
const WRITES: usize = 7;
/// Below it the store or the shares may soon be impossible to write, in bytes.
const LOW_SPACE: u64 = 1 << 30;
/// Files that a process needs beside its connections.
const OTHER_FILES: u64 = 256;

pub(super) fn checks(config: &Config, role: CheckedRole) -> Vec<Check> {
    let (serve, signer) = (&config.serve, &config.signer);
    let folder = match role {
        CheckedRole::Serve => &serve.data_dir,
        CheckedRole::Signer => &signer.data_dir,
    };
    let mut checks = vec![disk(folder)];
    checks.extend(space(folder));
    let secrets = match role {
        CheckedRole::Serve => {
            checks.push(open_files(serve.max_connections.get()));
            vec![
                ("identity", serve.identity_file()),
                ("platform token", serve.platform_token_file()),
                ("admin token", serve.admin_token_file()),
            ]
        }
        CheckedRole::Signer => {
            checks.extend(passphrase_apart(config));
            vec![
                ("identity", signer.identity_file()),
                ("passphrase", signer.passphrase_file()),
            ]
        }
    };
    let found = secrets.iter().filter(|(_, path)| path.exists());
    checks.extend(found.map(|(what, path)| secret(what, path)));
    if role == CheckedRole::Signer {
        checks.push(match signer.check_secure() {
            Ok(()) if signer.development => Check::warn(
                "policy",
                "signer.development is on: the node obeys anyone whom it is told of",
                "turn it off where money is at stake",
            ),
            Ok(()) => Check::ok("policy", "the node names its peers and has a policy file"),
            Err(error) => Check::fail("policy", error.to_string(), ""),
        });
    }
    checks
}

/// Whether the folder can be written, and how long a commit to its disk takes.
fn disk(folder: &Path) -> Check {
    let what = format!("disk of {}", folder.display());
    if !folder.exists() {
        return Check::warn(
            &what,
            "the folder does not exist yet",
            "the first start makes it; for a signer covault node init does",
        );
    }
    let path = folder.join(".doctor");
    let timed = (|| -> std::io::Result<u128> {
        let mut file = File::create(&path)?;
        let mut times = Vec::new();
        for _ in 0..WRITES {
            let begun = Instant::now();
            file.write_all(&[0; 4096 / WRITES])?;
            file.sync_data()?;
            times.push(begun.elapsed().as_millis());
        }
        times.sort_unstable();
        Ok(times.get(WRITES / 2).copied().unwrap_or_default())
    })();
    let _ = fs::remove_file(&path);
    match timed {
        Ok(time_ms) if time_ms > SLOW_WRITE_MS => Check::warn(
            &what,
            format!("a write takes {time_ms} ms to be on it"),
            "each signature waits for such writes: use an SSD with power-loss protection, and nothing else on it",
        ),
        Ok(time_ms) => Check::ok(what, format!("a write takes {time_ms} ms to be on it")),
        Err(error) => Check::fail(
            &what,
            format!("it cannot be written: {error}"),
            "run this as the user of the process; else fix the disk or the folder's owner",
        ),
    }
}

fn space(folder: &Path) -> Option<Check> {
    let space = rustix::fs::statvfs(folder).ok()?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let found = format!("{} MiB are free", free >> 20);
    let what = format!("space in {}", folder.display());
    Some(if free < LOW_SPACE {
        Check::warn(
            &what,
            found,
            "free some space: with a full disk it accepts no work",
        )
    } else {
        Check::ok(what, found)
    })
}

/// Two listeners, and calls to chain nodes.
fn open_files(connections: usize) -> Check {
    let most = getrlimit(Resource::Nofile).maximum;
    let clients = connections.saturating_mul(2);
    let wanted = clients.saturating_add(clients.min(MOST_OF_CHAIN_NODES));
    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
    let wanted = wanted.saturating_add(OTHER_FILES);
    let Some(most) = most.filter(|most| *most < wanted) else {
        return Check::ok("open files", "enough for serve.max_connections");
    };
    Check::warn(
        "open files",
        format!("{most} at most, and serve.max_connections = {connections} takes {wanted}"),
        format!(
            "LimitNOFILE={wanted} (systemd), or ulimit -Hn {wanted}; else fewer connections are accepted"
        ),
    )
}

fn secret(what: &str, path: &Path) -> Check {
    match files::read_token(path) {
        Ok(_) => Check::ok(what, format!("only its owner can read {}", path.display())),
        Err(error) => Check::fail(what, format!("{error:#}"), ""),
    }
}

/// Who copies the folder must not have the passphrase of its shares.
fn passphrase_apart(config: &Config) -> Option<Check> {
    let signer = &config.signer;
    let path = signer.passphrase_file();
    let (path, folder) = (
        fs::canonicalize(&path).ok()?,
        fs::canonicalize(&signer.data_dir).ok()?,
    );
    Some(if path.starts_with(&folder) {
        Check::warn(
            "passphrase",
            "its file is in the folder of the shares: who has a copy of the folder has both",
            "signer.passphrase_file elsewhere, or a systemd credential (deploy/covault-signer.service)",
        )
    } else {
        Check::ok("passphrase", "its file is apart from the shares")
    })
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn disk__should_be_written_and_left_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let check = disk(folder.path());
        assert_ne!(check.state, State::Fail, "{check:?}");
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 0);
        let missing = disk(&folder.path().join("none"));
        assert_eq!(missing.state, State::Warn);
    }

    #[test]
    fn secrets__should_be_nobody_elses() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        files::write_private(&path, b"token").expect("written");
        assert_eq!(secret("token", &path).state, State::Ok);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
        let check = secret("token", &path);
        assert_eq!(check.state, State::Fail);
        assert!(check.found.contains("chmod 600"), "{check:?}");
    }

    #[test]
    fn passphrase__should_be_apart_from_the_shares() {
        let folder = tempfile::tempdir().expect("a folder");
        let shares = folder.path().join("signer");
        fs::create_dir(&shares).expect("made");
        let state = |place: &Path| {
            let file = place.join("passphrase");
            fs::write(&file, "secret").expect("written");
            let text = format!("[signer]\ndata_dir = {shares:?}\npassphrase_file = {file:?}");
            let (config, _) = Config::load_with("test", &text).expect("loads");
            passphrase_apart(&config).expect("both are there").state
        };
        assert_eq!(state(folder.path()), State::Ok);
        assert_eq!(state(&shares), State::Warn);
    }
}
