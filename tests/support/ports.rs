//! Ports of servers that tests start, and start again.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    reason = "for tests"
)]

use std::{collections::hash_map::RandomState, hash::BuildHasher as _, net::TcpListener};

/// Below those that Linux gives to connections (32,768 and up): who starts again on its port finds it free.
const PORTS: std::ops::Range<u64> = 10_000..32_000;

/// A port that nothing listens on now, and no connection gets.
pub fn free_port() -> u16 {
    for _ in 0..1_000 {
        let random = RandomState::new().hash_one(PORTS.start);
        let port = PORTS.start + random % (PORTS.end - PORTS.start);
        let port = u16::try_from(port).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port");
}
