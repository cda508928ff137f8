//! A client that costs little: one connection, kept open, one call at a time.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

/// A connection that was not used for so long is not used again; as clients do that keep theirs.
const IDLE: Duration = Duration::from_secs(5);

/// Of the orchestrator's configuration: the limits of one client are not what is measured.
pub const RATES: &str = "[limits]\nper_token_per_second = 0\nper_ip_per_second = 0\n";

/// Where and as whom.
#[derive(Clone)]
pub struct Target {
    pub address: String,
    pub token: String,
}

pub struct Connection {
    target: Target,
    stream: Option<BufReader<TcpStream>>,
    /// When it was used last.
    used: Option<Instant>,
}

impl Connection {
    pub fn new(target: &Target) -> Self {
        Self {
            target: target.clone(),
            stream: None,
            used: None,
        }
    }

    /// The status, `Retry-After` in seconds, and the body.
    pub async fn post(&mut self, operation: &str, body: &Value) -> (u16, u64, Vec<u8>) {
        let body = body.to_string();
        let Target { address, token } = &self.target;
        let call = format!(
            "POST /v1/{operation} HTTP/1.1\r\nhost: {address}\r\nx-mtoken: {token}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        // Who waits longer than the service keeps an idle connection finds it closed.
        let is_stale = self.used.is_none_or(|used| used.elapsed() > IDLE);
        if self.stream.is_none() || is_stale {
            let stream = TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            self.stream = Some(BufReader::new(stream));
        }
        let stream = self.stream.as_mut().unwrap();
        stream.write_all(call.as_bytes()).await.unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let (mut length, mut retry, mut closes) = (0, 0, false);
        loop {
            line.clear();
            stream.read_line(&mut line).await.unwrap();
            let Some((name, value)) = line.trim().split_once(": ") else {
                break;
            };
            match name {
                "content-length" => length = value.parse().unwrap(),
                "retry-after" => retry = value.parse().unwrap(),
                "connection" => closes = value == "close",
                _ => {}
            }
        }
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer).await.unwrap();
        if closes {
            self.stream = None;
        }
        self.used = Some(Instant::now());
        (status, retry, answer)
    }

    /// The request's uuid, or for how many seconds it is refused.
    pub async fn create(&mut self, body: &Value) -> Result<String, u64> {
        let (status, retry, answer) = self.post("createSigningRequest", body).await;
        match status {
            200 => {
                let answer: Value = serde_json::from_slice(&answer).unwrap();
                let uuid = answer["signingRequest"]["uuid"].as_str();
                Ok(uuid.unwrap_or_else(|| panic!("{answer}")).to_owned())
            }
            503 => Err(retry.max(1)),
            _ => panic!("{status}: {}", String::from_utf8_lossy(&answer)),
        }
    }

    /// Waits until the request has ended; whether it was signed.
    pub async fn signed(&mut self, uuid: &str) -> bool {
        let body = serde_json::json!({"uuid": uuid});
        loop {
            let (status, retry, answer) = self.post("executeSigningRequests", &body).await;
            match status {
                200 => {
                    let answer: Value = serde_json::from_slice(&answer).unwrap();
                    let signed = answer["error"].is_null();
                    if !signed {
                        eprintln!("an accepted request failed: {answer}");
                    }
                    return signed;
                }
                503 => tokio::time::sleep(std::time::Duration::from_secs(retry.max(1))).await,
                _ => panic!("{status}: {}", String::from_utf8_lossy(&answer)),
            }
        }
    }
}
