//! A real Redis server for tests: a free port, a folder of its own, nothing saved.

use std::{
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

#[path = "../../../tests/support/ports.rs"]
mod ports;

/// A running redis-server; stopped when dropped.
pub struct RedisServer {
    folder: tempfile::TempDir,
    port: u16,
    tls: bool,
    child: Option<Child>,
}

impl RedisServer {
    /// Starts one and waits until it takes connections. Panics when redis-server is not installed.
    pub fn start() -> Self {
        Self::launch(false)
    }

    /// As [`RedisServer::start`]; over TLS, with the certificate tests/tls/a.pem and for tests/tls/client.pem alone.
    #[allow(dead_code)]
    pub fn start_tls() -> Self {
        Self::launch(true)
    }

    fn launch(tls: bool) -> Self {
        let port = ports::free_port();
        let folder = tempfile::tempdir().unwrap();
        let mut server = Self {
            folder,
            port,
            tls,
            child: None,
        };
        server.restart();
        server
    }

    /// `redis://127.0.0.1:port`, or `rediss://` over TLS.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Its process, while it runs.
    #[allow(dead_code)]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Kills it.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Kills it, and starts it again, empty, on the same port.
    #[allow(clippy::disallowed_methods)]
    pub fn restart(&mut self) {
        self.stop();
        let port = self.port.to_string();
        let mut command = Command::new("redis-server");
        if self.tls {
            let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/tls");
            command.args(["--port", "0", "--tls-port", &port]);
            for (setting, file) in [
                ("--tls-cert-file", "a.pem"),
                ("--tls-key-file", "a.key"),
                ("--tls-ca-cert-file", "client.pem"),
            ] {
                command.arg(setting).arg(format!("{fixtures}/{file}"));
            }
        } else {
            command.args(["--port", &port]);
        }
        let child = command
            .args(["--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(self.folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed (apt-get install redis-server)");
        self.child = Some(child);
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        for _ in 0..500 {
            if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("redis-server does not take connections");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop();
    }
}
