//! A real PostgreSQL for tests: a cluster of its own in a folder of its own, on a free port of this
//! machine. Who runs the tests as root has it run as the user `postgres`, as it demands.
//!
//! Shared by the tests of several crates; some of them use less than there is.
#![allow(
    dead_code,
    missing_docs,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "for tests"
)]

use std::{
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use super::ports::free_port;

/// The role that owns the databases, and its password.
pub const USER: &str = "covault";
pub const PASSWORD: &str = "pa55-of-the-tests";

/// A running server; it is killed when this is dropped, or its thread ends.
pub struct Postgres {
    folder: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
    databases: AtomicU32,
}

impl Postgres {
    /// Makes a cluster and starts it. Panics when PostgreSQL is not installed.
    pub fn start() -> Self {
        Self::start_in(|_| ())
    }

    /// The same; `prepare` gets the empty folder that all of it will be in.
    pub fn start_in(prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        prepare(folder.path());
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(folder.path()));
        }
        let password = folder.path().join("password");
        fs::write(&password, PASSWORD).unwrap();
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(&password));
        }
        let data = folder.path().join("data");
        let mut initdb = program("initdb");
        initdb
            .args(["--encoding", "UTF8", "--locale", "C", "--username", USER])
            .args(["--auth", "scram-sha-256", "--no-sync", "--pwfile"])
            .arg(&password)
            .arg("--pgdata")
            .arg(&data);
        run(&mut initdb);
        let mut server = Self {
            folder,
            port: free_port(),
            child: None,
            databases: AtomicU32::new(0),
        };
        server.restart();
        server
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A new, empty database: its URL.
    pub fn database(&self) -> String {
        self.database_with("ENCODING 'UTF8'")
    }

    /// The same, made with these options.
    pub fn database_with(&self, options: &str) -> String {
        let number = self.databases.fetch_add(1, Ordering::SeqCst);
        let name = format!("covault_{number}");
        let create = format!("CREATE DATABASE {name} TEMPLATE template0 {options}");
        self.query("postgres", &create);
        self.url(&name)
    }

    /// The URL of a database.
    pub fn url(&self, database: &str) -> String {
        format!(
            "postgres://{USER}:{PASSWORD}@127.0.0.1:{}/{database}",
            self.port
        )
    }

    /// Runs SQL as superuser and gives what it prints, without headers.
    pub fn query(&self, database: &str, sql: &str) -> String {
        let output = self.psql(database, sql);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{sql}: {err}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn psql(&self, database: &str, sql: &str) -> Output {
        Command::new("psql")
            .args(["--no-psqlrc", "--tuples-only", "--no-align", "--quiet"])
            .args(["--set", "ON_ERROR_STOP=1", "--command", sql, "--dbname"])
            .arg(self.url(database))
            .output()
            .expect("psql is installed (apt-get install postgresql)")
    }

    /// Adds a line to postgresql.conf, for the next start.
    pub fn configure(&self, line: &str) {
        let path = self.data().join("postgresql.conf");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}\n{line}\n")).unwrap();
    }

    /// kill -9 of the server: of the one process that all others end with.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// `pg_ctl stop -m fast`: sessions are ended, what is committed is written.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            signal(&child, "INT");
            child.wait().unwrap();
        }
    }

    /// Kills it, and starts it again on the same port and data.
    pub fn restart(&mut self) {
        self.kill();
        for _ in 0..600 {
            let mut child = self.launch();
            if self.comes_up(&mut child) {
                self.child = Some(child);
                return;
            }
            // What is left of the one before still has its memory, or another test the port.
            let _ = child.kill();
            child.wait().unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("PostgreSQL does not start: {}", self.log());
    }

    /// A copy of it on another port, which follows it: from now on commits wait for both.
    pub fn standby(&self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(folder.path()));
        }
        let mut copy = program("pg_basebackup");
        copy.args(["--write-recovery-conf", "--checkpoint", "fast", "--no-sync"])
            .arg("--pgdata")
            .arg(folder.path().join("data"))
            .arg("--dbname")
            .arg(self.url("postgres"));
        run(&mut copy);
        let mut standby = Self {
            folder,
            port: free_port(),
            child: None,
            databases: AtomicU32::new(0),
        };
        standby.restart();
        self.query(
            "postgres",
            "ALTER SYSTEM SET synchronous_standby_names = '*'",
        );
        self.query("postgres", "SELECT pg_reload_conf()");
        for _ in 0..1200 {
            let state = self.query("postgres", "SELECT sync_state FROM pg_stat_replication");
            if state == "sync" {
                return standby;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the standby does not follow: {}", standby.log());
    }

    /// Has a standby take over: it is a primary when this returns.
    pub fn promote(&self) {
        let mut promote = program("pg_ctl");
        promote.args(["promote", "--wait", "--pgdata"]);
        run(promote.arg(self.data()));
    }

    /// Whether it answers.
    pub fn answers(&self) -> bool {
        self.psql("postgres", "SELECT 1").status.success()
    }

    /// Stops every process of it where it is, until [`Postgres::thaw`]: it answers nothing.
    pub fn freeze(&self) {
        self.signal_all("STOP");
    }

    /// See [`Postgres::freeze`].
    pub fn thaw(&self) {
        self.signal_all("CONT");
    }

    /// A copy of the data of a stopped server.
    pub fn save(&self, name: &str) {
        assert!(self.child.is_none(), "stop it first");
        let copy = self.folder.path().join(name);
        run(Command::new("cp").arg("-a").arg(self.data()).arg(copy));
    }

    /// Puts a copy back, of a stopped server.
    pub fn put_back(&self, name: &str) {
        assert!(self.child.is_none(), "stop it first");
        fs::remove_dir_all(self.data()).unwrap();
        let copy = self.folder.path().join(name);
        run(Command::new("cp").arg("-a").arg(copy).arg(self.data()));
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn signal_all(&self, name: &str) {
        let child = self.child.as_ref().expect("it runs");
        let parent = child.id().to_string();
        let children = Command::new("ps")
            .args(["-o", "pid=", "--ppid", &parent])
            .output()
            .unwrap();
        let children = String::from_utf8(children.stdout).unwrap();
        let mut kill = Command::new("kill");
        kill.args(["-s", name, &parent]);
        // One of them may have ended in the meantime.
        let _ = kill
            .args(children.split_whitespace())
            .stderr(Stdio::null())
            .status();
    }

    /// Its data folder.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("postgres.log")
    }

    fn launch(&self) -> Child {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file())
            .unwrap();
        let mut server = program("postgres");
        server
            .arg("-D")
            .arg(self.data())
            .args(["-p", &self.port.to_string(), "-k"])
            .arg(self.folder.path())
            .args(["-c", "listen_addresses=127.0.0.1"])
            .args(["-c", "shared_buffers=32MB", "-c", "max_connections=60"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        server.spawn().expect("PostgreSQL starts")
    }

    fn comes_up(&self, child: &mut Child) -> bool {
        for _ in 0..1200 {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            let listens = TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            if listens && self.psql("postgres", "SELECT 1").status.success() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- PostgreSQL\n{}", self.log());
        }
        if self.child.is_some() {
            self.thaw();
        }
        if let Some(mut child) = self.child.take() {
            // At once, and its children before it: the folder is removed after this.
            signal(&child, "QUIT");
            let _ = child.wait();
        }
    }
}

/// A program of PostgreSQL, as a user that it wants to run as. It ends when this thread does.
fn program(name: &str) -> Command {
    let path = folder_of_programs().join(name);
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if is_root() {
        command.args([
            "--reuid",
            "postgres",
            "--regid",
            "postgres",
            "--init-groups",
        ]);
    }
    command.arg(path);
    // The folder that the tests run in may be one that user cannot read.
    command.current_dir("/");
    command
}

/// Debian has them in a folder per version, outside of PATH.
fn folder_of_programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let folders = versions.map(|version| version.unwrap().path().join("bin"));
    let mut folders: Vec<_> = folders.filter(|bin| bin.join("initdb").exists()).collect();
    folders.sort();
    folders
        .pop()
        .expect("PostgreSQL is installed (apt-get install postgresql)")
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    let sent = Command::new("kill").args(["-s", name, &id]).status();
    assert!(sent.unwrap().success());
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {err}");
}

/// Whether a text holds the password.
pub fn tells_password(text: &str) -> bool {
    text.contains(PASSWORD)
}
