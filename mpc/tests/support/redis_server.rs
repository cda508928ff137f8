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
    child: Option<Child>,
}

impl RedisServer {
    /// Starts one and waits until it takes connections. Panics when redis-server is not installed.
    pub fn start() -> Self {
        let port = ports::free_port();
        let folder = tempfile::tempdir().unwrap();
        let mut server = Self {
            folder,
            port,
            child: None,
        };
        server.restart();
        server
    }

    /// `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
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
        let child = Command::new("redis-server")
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
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
