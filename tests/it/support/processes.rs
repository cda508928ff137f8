//! Real processes: covault in each of its roles, Redis, anvil. All end with their guard.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{ApiClient, outcome_of, ports::free_port};

/// How long anything may take to come up on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Writes a file that its owner alone may read.
pub fn write_secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Waits until `ready` gives something; fails with `what` otherwise.
pub async fn eventually<T>(what: &str, mut ready: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = ready().await {
            return value;
        }
        assert!(started.elapsed() < PATIENCE, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A process that is killed with its guard.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output in `log` (appended: a restarted process goes on).
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        Self {
            child,
            log: log.to_owned(),
        }
    }

    /// As [`Process::start`], for a program that ends when its standard input does.
    pub fn start_on_leash(command: &mut Command, log: &Path) -> (Self, Option<ChildStdin>) {
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let leash = child.stdin.take();
        let process = Self {
            child,
            log: log.to_owned(),
        };
        (process, leash)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// kill -9.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops it in the middle of whatever it does, until [`Process::thaw`].
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Sends a signal, e.g. STOP.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args(["-s", name, &self.pid().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    }

    /// From now on no file that it writes may become longer, in bytes ("unlimited": as before).
    pub fn limit_files(&self, most: &str) {
        let limited = Command::new("prlimit")
            .args(["--pid", &self.pid().to_string()])
            .arg(format!("--fsize={most}:"))
            .status()
            .unwrap();
        assert!(limited.success());
    }

    /// SIGTERM, and the exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        self.signal("TERM");
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("does not end on SIGTERM; its log:\n{}", self.log());
    }

    /// Whether it has ended, by itself or not.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub fn assert_running(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("ended with {status}; its log:\n{}", self.log());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
    }
}

/// The binary under test.
pub fn covault() -> Command {
    Command::new(env!("CARGO_BIN_EXE_covault"))
}

/// The same, where a file that cannot grow is an error and not the end of the process: what a shell
/// ignores its programs ignore too.
pub fn covault_on_small_disks() -> Command {
    let mut command = Command::new("sh");
    let script = "trap '' XFSZ; exec \"$0\" \"$@\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_covault")]);
    command
}

/// A file or program of tests/node.
pub fn node_tool(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/node")
        .join(path);
    assert!(
        path.exists(),
        "{} is missing: run `bash tests/run` once",
        path.display()
    );
    path
}

/// Asks tests/node/outside.mjs.
pub fn outside(ask: &str, mut question: Value) -> Value {
    use std::io::Write as _;
    node_tool("node_modules/ethers");
    question["ask"] = json!(ask);
    let mut child = Command::new("node")
        .arg(node_tool("outside.mjs"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(question.to_string().as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "outside library refused {question}"
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `covault dev`.
pub struct DevProcess {
    pub process: Process,
    pub api: ApiClient,
    pub vault: String,
    pub info: Value,
    data: PathBuf,
    program: fn() -> Command,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
}

impl DevProcess {
    /// On a folder that has a vault and keys: see [`copy_folder_with_keys`].
    pub async fn start(data: &Path, arguments: &[&str]) -> Self {
        Self::start_with(data, arguments, &[]).await
    }

    /// The same, with environment variables.
    pub async fn start_with(data: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_by(covault, data, arguments, variables).await
    }

    /// The same, by a program that starts the binary.
    pub async fn start_by(
        program: fn() -> Command,
        data: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        copy_folder_with_keys(data).await;
        Self::start_anew(program, data, arguments, variables).await
    }

    /// The first start on a folder: the vault is made, and its keys.
    pub async fn start_first(data: &Path, arguments: &[&str]) -> Self {
        Self::start_anew(covault, data, arguments, &[]).await
    }

    async fn start_anew(
        program: fn() -> Command,
        data: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
        let variables: Vec<_> = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let (process, api, info) = Self::launch(program(), data, &arguments, &variables).await;
        Self {
            process,
            api,
            vault: info["vaultUuid"].as_str().unwrap().to_owned(),
            info,
            data: data.to_owned(),
            program,
            arguments,
            variables,
        }
    }

    async fn launch(
        mut command: Command,
        data: &Path,
        arguments: &[String],
        variables: &[(String, String)],
    ) -> (Process, ApiClient, Value) {
        fs::create_dir_all(data).unwrap();
        let log = data.with_extension("log");
        command
            .args(["dev", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)));
        let mut process = Process::start(&mut command, &log);
        let pid = process.pid();
        let info = eventually("covault dev writes dev.json", async || {
            process.assert_running();
            let text = fs::read_to_string(data.join("dev.json")).ok()?;
            let info: Value = serde_json::from_str(&text).unwrap();
            (info["pid"] == json!(pid)).then_some(info)
        })
        .await;
        let api = ApiClient::new(
            info["baseUrl"].as_str().unwrap(),
            info["platformToken"].as_str().unwrap(),
        );
        (process, api, info)
    }

    /// Runs a command of an operator: whether it succeeded, standard output, standard error.
    pub fn ask(&self, arguments: &[&str]) -> (bool, String, String) {
        let admin = self.data.with_extension("admin-token");
        write_secret(&admin, self.info["adminToken"].as_str().unwrap());
        let mut command = covault();
        command.args(arguments);
        command.args(["--url", self.admin_url(), "--token-file"]);
        outcome_of(command.arg(admin))
    }

    /// Where its admin API is.
    pub fn admin_url(&self) -> &str {
        self.info["adminUrl"].as_str().unwrap()
    }

    /// Calls an operation of the admin API: the status, and the answer.
    pub async fn admin(&self, operation: &str, body: &Value) -> (u16, Value) {
        let token = self.info["adminToken"].as_str().unwrap();
        call_admin(self.admin_url(), token, operation, body).await
    }

    /// One that must succeed; gives what it prints.
    pub fn command(&self, arguments: &[&str]) -> String {
        let (done, out, err) = self.ask(arguments);
        assert!(done, "{arguments:?}: {out}\n{err}");
        out
    }

    /// The API with a new token, made as `covault token create` says.
    pub fn token(&self, arguments: &[&str]) -> ApiClient {
        let token = self.command(&[&["token", "create"], arguments].concat());
        ApiClient::new(&self.api.base, token.trim())
    }

    /// The file of its store.
    pub fn store(&self) -> PathBuf {
        self.data.join("orchestrator/store.redb")
    }

    /// Starts again on the same folder.
    pub async fn restart(&mut self) {
        let command = (self.program)();
        let (process, api, info) =
            Self::launch(command, &self.data, &self.arguments, &self.variables).await;
        self.process = process;
        self.api = api;
        self.info = info;
    }
}

/// Calls an operation of the admin API on its socket: the status, and the answer.
pub async fn call_admin(url: &str, token: &str, operation: &str, body: &Value) -> (u16, Value) {
    let socket = url.strip_prefix("unix:").unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().unix_socket(socket).build();
    let request = client
        .unwrap()
        .post(format!("http://localhost/admin/v1/{operation}"))
        .header("x-mtoken", token)
        .json(body);
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap())
}

/// Makes `data` a copy of a folder on which `covault dev` was started once. Keys take five seconds of both cores: the
/// first test of a build that wants them has them made for all.
async fn copy_folder_with_keys(data: &Path) {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dev-with-keys");
    fs::create_dir_all(&all).unwrap();
    let lock = fs::File::create(all.join("lock")).unwrap();
    lock.lock().unwrap();
    let binary = fs::metadata(env!("CARGO_BIN_EXE_covault")).unwrap();
    let built = binary.modified().unwrap();
    let built = built.duration_since(std::time::UNIX_EPOCH).unwrap();
    let of_this_build = all.join(built.as_nanos().to_string());
    if !of_this_build.exists() {
        for old in fs::read_dir(&all).unwrap() {
            let old = old.unwrap().path();
            if old.is_dir() {
                fs::remove_dir_all(old).unwrap();
            }
        }
        let begun = all.join("begun");
        let (mut process, _, _) = DevProcess::launch(covault(), &begun, &[], &[]).await;
        assert_eq!(process.terminate(), Some(0), "{}", process.log());
        fs::rename(begun, &of_this_build).unwrap();
    }
    let copy = Command::new("cp")
        .arg("-aT")
        .arg(&of_this_build)
        .arg(data)
        .status();
    assert!(copy.unwrap().success());
}

/// A real Redis, without persistence: what it holds is lost when it stops.
pub struct Redis {
    process: Process,
    port: u16,
    tls: bool,
    folder: PathBuf,
}

impl Redis {
    #[allow(dead_code, reason = "benches count its CPU time")]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub async fn start(folder: &Path) -> Self {
        Self::start_with(folder, false).await
    }

    /// Over TLS, with the certificate tests/tls/a.pem and for tests/tls/client.pem alone.
    pub async fn start_tls(folder: &Path) -> Self {
        Self::start_with(folder, true).await
    }

    async fn start_with(folder: &Path, tls: bool) -> Self {
        let port = free_port();
        let process = Self::launch(folder, port, tls).await;
        Self {
            process,
            port,
            tls,
            folder: folder.to_owned(),
        }
    }

    async fn launch(folder: &Path, port: u16, tls: bool) -> Process {
        let mut command = Command::new("redis-server");
        let number = port.to_string();
        if tls {
            command.args(["--port", "0", "--tls-port", &number]);
            for (setting, file) in [
                ("--tls-cert-file", "a.pem"),
                ("--tls-key-file", "a.key"),
                ("--tls-ca-cert-file", "client.pem"),
            ] {
                command.arg(setting).arg(tls_fixture(file));
            }
        } else {
            command.args(["--port", &number]);
        }
        let mut process = Process::start(
            command
                .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
                .arg("--dir")
                .arg(folder),
            &folder.join("redis.log"),
        );
        eventually("redis-server listens", async || {
            process.assert_running();
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()
        })
        .await;
        process
    }

    /// kill -9; [`Redis::restart`] starts it again.
    pub fn stop(&mut self) {
        self.process.kill();
    }

    pub async fn restart(&mut self) {
        self.stop();
        self.process = Self::launch(&self.folder, self.port, self.tls).await;
    }

    pub fn url(&self) -> String {
        let scheme = if self.tls { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// What `redis-cli` prints.
    pub fn cli(&self, words: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        if self.tls {
            command.args(["--tls", "--cacert", &tls_fixture("a.pem")]);
            command.args(["--cert", &tls_fixture("client.pem")]);
            command.args(["--key", &tls_fixture("client.key")]);
        }
        let (done, out, err) = outcome_of(command.args(words));
        assert!(done, "{words:?}: {err}");
        out
    }
}

fn tls_fixture(name: &str) -> String {
    format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A real EVM node.
pub struct Anvil {
    process: Process,
    pub url: String,
    pub chain_id: u64,
    http: reqwest::Client,
}

impl Anvil {
    pub async fn start(folder: &Path, chain_id: u64) -> Self {
        let port = free_port();
        let program = node_tool("node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil");
        let process = Process::start(
            Command::new(program).args([
                "--port",
                &port.to_string(),
                "--chain-id",
                &chain_id.to_string(),
            ]),
            &folder.join("anvil.log"),
        );
        let mut anvil = Self {
            process,
            url: format!("http://127.0.0.1:{port}"),
            chain_id,
            http: super::http_client(),
        };
        eventually("anvil answers", async || {
            anvil.process.assert_running();
            anvil.try_call("eth_chainId", json!([])).await
        })
        .await;
        anvil
    }

    async fn try_call(&self, method: &str, params: Value) -> Option<Value> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.http
            .post(&self.url)
            .json(&body)
            .send()
            .await
            .ok()?
            .json()
            .await
            .ok()
    }

    pub async fn call(&self, method: &str, params: Value) -> Value {
        let answer = self.try_call(method, params).await.unwrap();
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    pub async fn fund(&self, address: &str, wei: u128) {
        self.call("anvil_setBalance", json!([address, format!("{wei:#x}")]))
            .await;
    }

    pub async fn balance(&self, address: &str) -> u128 {
        hex_number(
            &self
                .call("eth_getBalance", json!([address, "latest"]))
                .await,
        )
    }

    /// The receipt of a transaction, once mined.
    pub async fn receipt(&self, hash: &str) -> Value {
        eventually("the transaction is mined", async || {
            let receipt = self.call("eth_getTransactionReceipt", json!([hash])).await;
            (!receipt.is_null()).then_some(receipt)
        })
        .await
    }

    /// `--chain` for covault.
    pub fn chain_argument(&self) -> String {
        format!("{}={}", self.chain_id, self.url)
    }
}

/// A JSON-RPC quantity.
pub fn hex_number(value: &Value) -> u128 {
    u128::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}
