//! Keeps a process's secrets inside it: no core dumps, no debugger of the same user, nothing in swap, and for
//! a signer node no files but its own.
//!
//! Landlock and the rest of what holds for one thread and those that it starts are set before there
//! are others.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
    RulesetError, RulesetStatus, path_beneath_rules,
};
use rustix::{
    mm::{MlockAllFlags, mlockall},
    process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit},
    thread::set_no_new_privs,
};

/// What landlock is asked for; older kernels do what they can of it.
const LANDLOCK: ABI = ABI::V5;
/// What a signer node reads beside its folder: how the system finds hosts, what time it is, how many
/// cores there are. Where such a file is replaced, its folder has to be here.
const SYSTEM: &[&str] = &[
    "/etc",
    "/usr",
    "/lib",
    "/lib64",
    "/nix/store",
    "/proc",
    "/sys/fs/cgroup",
    "/sys/devices/system/cpu",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/dev/random",
    "/dev/urandom",
];

/// What is in force, in words for the log.
pub struct ProcessProtection {
    core_dumps: String,
    debuggers: String,
    privileges: String,
    memory: String,
    files: String,
}

/// Protects the memory of this process. Call it before a thread is started or a secret is read.
pub fn memory() -> ProcessProtection {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let outcome = |done: rustix::io::Result<()>, good: &str| match done {
        Ok(()) => good.to_owned(),
        Err(error) => format!("NOT {good}: {error}"),
    };
    ProcessProtection {
        core_dumps: outcome(setrlimit(Resource::Core, none), "off"),
        debuggers: outcome(
            set_dumpable_behavior(DumpableBehavior::NotDumpable),
            "kept out",
        ),
        privileges: outcome(set_no_new_privs(true), "never more"),
        memory: "not locked".to_owned(),
        files: "all that its user may open".to_owned(),
    }
}

impl ProcessProtection {
    /// Keeps the memory of this process out of swap. Only where there is no limit to what may be
    /// locked: with one, the process would end when it reaches it.
    pub fn lock(mut self) -> Self {
        let unlimited = Rlimit {
            current: None,
            maximum: None,
        };
        // What is never touched takes no memory.
        let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
        self.memory = match setrlimit(Resource::Memlock, unlimited).and_then(|()| mlockall(all)) {
            Ok(()) => "locked".to_owned(),
            Err(error) => format!(
                "NOT locked: {error} (LimitMEMLOCK=infinity of systemd, or ulimit -l unlimited, \
                 allows it)"
            ),
        };
        self
    }

    /// From now on this thread, and those that it starts, write nowhere but in `folder`, read beside
    /// it what belongs to the system, what is in the folders of `files`, and `others` only, and start no program.
    pub fn confine(mut self, folder: &Path, files: &[&Path], others: &[PathBuf]) -> Self {
        // What it says in words is read from its source's folder in debug builds: now, or never.
        let _ = age::DecryptError::DecryptionFailed.to_string();
        let others = [named_roots().as_slice(), others].concat();
        self.files = match confine(folder, files, &others) {
            Ok(RulesetStatus::FullyEnforced) => "its own only (landlock)".to_owned(),
            Ok(RulesetStatus::PartiallyEnforced) => {
                "its own only, as far as this old kernel can (landlock)".to_owned()
            }
            Ok(RulesetStatus::NotEnforced) => {
                "NOT confined: this kernel has no landlock".to_owned()
            }
            Err(error) => format!("NOT confined: {error}"),
        };
        self
    }

    /// Says in the log what is in force.
    pub fn log(&self) {
        let Self {
            core_dumps,
            debuggers,
            privileges,
            memory,
            files,
        } = self;
        tracing::info!(
            core_dumps,
            debuggers,
            privileges,
            memory,
            files,
            "this process protects itself"
        );
    }
}

/// The certificates of roots that the environment names: public, and read by whatever asks over https.
fn named_roots() -> Vec<PathBuf> {
    let file = env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let folders = env::var_os("SSL_CERT_DIR").unwrap_or_default();
    let named = file.into_iter().chain(env::split_paths(&folders));
    named.filter(|path| !path.as_os_str().is_empty()).collect()
}

/// Where a file lies, and where it is when that is a link. Who changes it puts another one in its place, which a rule for
/// the file alone would not let a node read: it would go on with what it was told before. Never the whole system.
fn folders_of(file: &Path) -> Vec<PathBuf> {
    let real = fs::canonicalize(file).ok();
    let named = std::path::absolute(file).ok();
    let folders = [real, named].into_iter().flatten();
    let folders = folders.filter_map(|path| path.parent().map(Path::to_owned));
    folders.filter(|folder| folder.parent().is_some()).collect()
}

fn confine(
    folder: &Path,
    files: &[&Path],
    others: &[PathBuf],
) -> Result<RulesetStatus, RulesetError> {
    let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    // On systems that have it elsewhere.
    let resolver = fs::canonicalize("/etc/resolv.conf").ok();
    let resolver = resolver.as_deref().and_then(Path::parent);
    let system = SYSTEM.iter().map(Path::new).chain(resolver);
    let folders = files.iter().flat_map(|file| folders_of(file));
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .create()?
        .add_rules(path_beneath_rules(system, read))?
        .add_rules(path_beneath_rules(files, read))?
        .add_rules(path_beneath_rules(folders, AccessFs::ReadFile))?
        .add_rules(path_beneath_rules(others, read))?
        .add_rules(path_beneath_rules(
            ["/dev/null"],
            read | AccessFs::WriteFile,
        ))?
        .add_rules(path_beneath_rules(
            [folder],
            AccessFs::from_all(LANDLOCK) & !BitFlags::from(AccessFs::Execute),
        ))?
        .restrict_self()?;
    Ok(status.ruleset)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{io::ErrorKind, process::Command, sync::mpsc, thread};

    use super::*;

    /// Landlock holds for a thread and those that it starts: the other tests are not confined.
    #[test]
    fn confine__should_leave_a_thread_its_own_folder_and_the_systems_files() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (folder.path().join("own"), folder.path().join("other"));
        for path in [&own, &other] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("secret"), "x").unwrap();
        }
        let shown = other.join("rules/shown");
        fs::create_dir(other.join("rules")).unwrap();
        fs::write(&shown, "before").unwrap();
        fs::write(other.join("roots.pem"), "r").unwrap();
        let (confined_now, is_confined) = mpsc::channel();
        let (replaced_now, is_replaced) = mpsc::channel();
        let to_replace = shown.clone();
        let confined = thread::spawn(move || {
            let roots = [other.join("roots.pem")];
            let status = confine(&own, &[&shown], &roots).unwrap();
            confined_now.send(()).unwrap();
            let inner = thread::spawn(move || {
                is_replaced.recv().unwrap();
                fs::write(own.join("new"), "y").unwrap();
                fs::create_dir(own.join("folder")).unwrap();
                fs::rename(own.join("new"), own.join("folder/old")).unwrap();
                assert_eq!(fs::read(own.join("folder/old")).unwrap(), b"y");
                fs::remove_file(own.join("secret")).unwrap();
                fs::read("/etc/passwd").unwrap();
                assert_eq!(fs::read(&shown).unwrap(), b"after");
                assert_eq!(fs::read(other.join("roots.pem")).unwrap(), b"r");
                [
                    fs::write(&shown, "z"),
                    fs::remove_file(&shown),
                    fs::read(other.join("secret")).map(|_| ()),
                    fs::write(other.join("secret"), "z"),
                    fs::remove_file(other.join("secret")),
                    fs::write(other.with_file_name("beside"), "z"),
                    Command::new("/bin/true").status().map(|_| ()),
                ]
            });
            (status, inner.join().unwrap())
        });
        // As editors and `covault policy approver` do it.
        is_confined.recv().unwrap();
        fs::write(to_replace.with_extension("new"), "after").unwrap();
        fs::rename(to_replace.with_extension("new"), &to_replace).unwrap();
        replaced_now.send(()).unwrap();
        let (status, reached) = confined.join().unwrap();
        if status == RulesetStatus::NotEnforced {
            return eprintln!("this kernel has no landlock: a node says so, and is not confined");
        }
        for outcome in reached {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
    }
}
