//! What is wrong with a configuration is said before anything is made: a table of wrong ones, each run with the program
//! as an operator runs it. It ends by itself with exit code 1, without a panic, with a sentence that names the setting
//! (with its file or variable, where it has a wrong value), the value unless it is secret, and what to do; and it leaves
//! nothing half made behind.

mod neighbours;
mod serve;
mod signer;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::support::*;

/// Stands for the row's own folder.
const DIR: &str = "DIR";
/// In every secret of these tests.
const SECRET: &str = "hunter2";
/// A user that nothing here belongs to.
const NOBODY: u32 = 65_532;
/// A user that is somebody else.
const STRANGER: u32 = 65_533;
/// Processes at once.
const AT_ONCE: usize = 6;
const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIATYzVGZwQXzIfcOOC0V5ekNGKX66oOtqEt2vGT4pTF5 orchestrator";
const PEER: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFBohAerFjs7GKtFmN8K3/1oeJqtKQfx9am202JT5Kr/ peer";

/// What the rows have around them.
struct Surroundings {
    /// Redis with a password, and one over TLS.
    redis: Redis,
    redis_tls: Redis,
    postgres: postgres::Postgres,
    /// An address that something listens on.
    used: String,
    _listener: std::net::TcpListener,
    /// The folder of a signer node.
    node: PathBuf,
    folder: tempfile::TempDir,
}

impl Surroundings {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        mode(folder.path(), 0o755);
        // It ends with the thread that starts it.
        let postgres = tokio::task::block_in_place(postgres::Postgres::start);
        let at = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let redis = Redis::start(&at("redis")).await;
        redis.cli(&[
            "ACL",
            "SETUSER",
            "narrow",
            "on",
            &format!(">{SECRET}"),
            "~other*",
            "+@all",
        ]);
        redis.cli(&[
            "ACL",
            "SETUSER",
            "default",
            "resetpass",
            &format!(">{SECRET}"),
        ]);
        let redis_tls = Redis::start_tls(&at("redis-tls")).await;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let made = at("node");
        let node = made.join("data");
        let file = made.join("signer.toml");
        let text = format!(
            "[signer]\ndata_dir = {node:?}\ndevelopment = true\ngenerate_passphrase = true\n"
        );
        fs::write(&file, text).unwrap();
        let mut init = covault();
        let (done, _, err) = outcome_of(init.args(["node", "init", "--config"]).arg(&file));
        assert!(done, "{err}");
        Self {
            redis,
            redis_tls,
            postgres,
            used: listener.local_addr().unwrap().to_string(),
            _listener: listener,
            node,
            folder,
        }
    }

    /// The bus of the rows, with its password.
    fn redis_url(&self) -> String {
        self.redis
            .url()
            .replace("redis://", &format!("redis://:{SECRET}@"))
    }
}

type Preparation = Box<dyn Fn(&Path) + Send + Sync>;

/// A wrong configuration.
struct Row {
    name: &'static str,
    command: Vec<String>,
    /// In place of what is right.
    settings: Vec<(String, String)>,
    variables: Vec<(&'static str, String)>,
    prepare: Vec<Preparation>,
    run_by_nobody: bool,
    code: i32,
    says: Vec<String>,
}

impl Row {
    fn of(role: &str, name: &'static str) -> Self {
        Self {
            name,
            command: [role, "--config", "DIR/conf.toml"]
                .map(str::to_owned)
                .into(),
            settings: Vec::new(),
            variables: Vec::new(),
            prepare: Vec::new(),
            run_by_nobody: false,
            code: 1,
            says: Vec::new(),
        }
    }

    /// A setting, and its value as TOML has it; empty: it is not set.
    fn set(mut self, setting: &str, value: impl Into<String>) -> Self {
        self.settings.push((setting.to_owned(), value.into()));
        self
    }

    /// A setting that is a text.
    fn text(self, setting: &str, value: &str) -> Self {
        self.set(setting, format!("{value:?}"))
    }

    fn variable(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    fn command(mut self, words: &[&str]) -> Self {
        self.command = words.iter().map(ToString::to_string).collect();
        self
    }

    fn prepare(mut self, prepare: impl Fn(&Path) + Send + Sync + 'static) -> Self {
        self.prepare.push(Box::new(prepare));
        self
    }

    /// A file in the row's folder.
    fn file(self, name: &'static str, text: &str, file_mode: u32) -> Self {
        let text = text.to_owned();
        self.prepare(move |folder| {
            let path = folder.join(name);
            fs::write(&path, &text).unwrap();
            mode(&path, file_mode);
        })
    }

    /// A file that only its owner can read.
    fn private(self, name: &'static str, text: &str) -> Self {
        self.file(name, text, 0o600)
    }

    /// A folder in the row's folder, and whose it is.
    fn folder(self, name: &'static str, folder_mode: u32, owner: Option<u32>) -> Self {
        self.prepare(move |folder| {
            let path = folder.join(name);
            fs::create_dir_all(&path).unwrap();
            mode(&path, folder_mode);
            if let Some(owner) = owner {
                std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
            }
        })
    }

    /// It runs as a user that is not root.
    fn run_by_nobody(mut self) -> Self {
        self.run_by_nobody = true;
        self
    }

    /// Its exit code, where that is not 1.
    fn code(mut self, code: i32) -> Self {
        self.code = code;
        self
    }

    /// What its sentence must say.
    fn says(mut self, words: &[&str]) -> Self {
        self.says = words.iter().map(ToString::to_string).collect();
        self
    }

    /// As [`Row::says`], of a value in the file.
    fn says_of_file(self, words: &[&str]) -> Self {
        self.says(&[&["DIR/conf.toml: "], words].concat())
    }

    /// Runs it; gives what is wrong with what it does.
    fn judge(&self, number: usize, around: &Surroundings) -> Option<String> {
        let folder = around.folder.path().join(format!("row-{number}"));
        fs::create_dir(&folder).unwrap();
        let mine = |text: &str| text.replace(DIR, folder.to_str().unwrap());
        let mut settings = Vec::new();
        match self.command.first().map(String::as_str) {
            Some("signer") => signer::good(around, &folder, &mut settings),
            _ => serve::good(around, &mut settings),
        }
        for (setting, value) in &self.settings {
            settings.retain(|(name, _)| name != setting);
            if !value.is_empty() {
                settings.push((setting.clone(), value.clone()));
            }
        }
        let mut text = String::new();
        for (setting, value) in settings {
            writeln!(text, "{setting} = {}", mine(&value)).unwrap();
        }
        let file = folder.join("conf.toml");
        fs::write(&file, text).unwrap();
        mode(&file, 0o644);
        self.prepare.iter().for_each(|prepare| prepare(&folder));
        let before = entries(&folder);
        let (code, said, took) = self.run(&folder, &mine);
        let after = entries(&folder);
        let had_folder = before.contains(Path::new("data"));
        let made: Vec<_> = after
            .difference(&before)
            // Whose folder it is must be known before what is in it is looked at.
            .filter(|made| !(had_folder && made.as_path() == Path::new("data/lock")))
            .collect();
        let mut wrong = Vec::new();
        if code != Some(self.code) {
            wrong.push(format!("exit code {code:?}"));
        }
        let missing = self.says.iter().map(|words| mine(words));
        let missing: Vec<_> = missing.filter(|words| !said.contains(words)).collect();
        if !missing.is_empty() {
            wrong.push(format!("does not say {missing:?}"));
        }
        for words in ["panicked", "is up", " ERROR ", SECRET, postgres::PASSWORD] {
            if said.contains(words) {
                wrong.push(format!("says {words:?}"));
            }
        }
        if !made.is_empty() {
            wrong.push(format!("leaves {made:?}"));
        }
        (!wrong.is_empty()).then(|| {
            let wrong = wrong.join("; ");
            format!("{} ({} ms): {wrong}\n{said}", self.name, took.as_millis())
        })
    }

    /// The exit code, none where it had to be ended; what it said, and how long it took.
    fn run(
        &self,
        folder: &Path,
        mine: &impl Fn(&str) -> String,
    ) -> (Option<i32>, String, Duration) {
        let program = env!("CARGO_BIN_EXE_covault");
        let mut command = match self.run_by_nobody {
            false => Command::new(program),
            true => {
                let user = NOBODY.to_string();
                let mut command = Command::new("setpriv");
                command.args([
                    "--reuid",
                    &user,
                    "--regid",
                    &user,
                    "--clear-groups",
                    program,
                ]);
                command
            }
        };
        let said = folder.with_extension("said");
        let output = fs::File::create(&said).unwrap();
        command
            .args(self.command.iter().map(|word| mine(word)))
            .envs(
                self.variables
                    .iter()
                    .map(|(name, value)| (name, mine(value))),
            )
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        let begun = Instant::now();
        let mut child = command.spawn().unwrap();
        let code = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status.code();
            }
            // Far more than the ten seconds that it may take where nothing else runs.
            if begun.elapsed() > PATIENCE {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = fs::read(&said).unwrap();
        (
            code,
            String::from_utf8_lossy(&text).into_owned(),
            begun.elapsed(),
        )
    }
}

/// All that is in a folder.
fn entries(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path.clone());
            }
            found.insert(path.strip_prefix(folder).unwrap().to_owned());
        }
    }
    found
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A key or certificate of the tests.
fn tls_fixture(name: &str) -> String {
    format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn tls_text(name: &str) -> String {
    fs::read_to_string(tls_fixture(name)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_configuration__should_end_with_a_sentence_and_leave_nothing_behind() {
    let around = Surroundings::start().await;
    let mut rows = serve::rows(&around);
    rows.extend(neighbours::rows(&around));
    rows.extend(signer::rows(&around));
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    // Who is not root can be nobody else.
    rows.retain(|row| is_root || !row.run_by_nobody);
    let free_ports = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    if free_ports.is_ok_and(|first| first.trim().parse::<u16>().unwrap() <= 443) {
        rows.retain(|row| row.name != serve::PORT_OF_ROOT);
    }
    assert!(rows.len() >= 100, "only {}", rows.len());
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(row) = rows.get(number) else { break };
                        if let Some(problem) = row.judge(number, &around) {
                            wrong.lock().unwrap().push(problem);
                        }
                    }
                });
            }
        });
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(
        wrong.is_empty(),
        "{} of {} rows:\n\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}
