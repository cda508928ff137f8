//! Listeners to `GET /v1/events`.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::future::join_all;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::ApiClient;

/// A listener that comes back and continues after the last event that it heard.
pub struct Listener {
    http: reqwest::Client,
    /// The last id.
    pub id: Option<String>,
    /// What was heard of each request last, with the number of times.
    pub heard: BTreeMap<String, (Value, usize)>,
    /// How often everything was to be read again.
    pub resets: usize,
    text: String,
    response: Option<reqwest::Response>,
}

impl Listener {
    /// Listens from now on: what happens when this has returned is heard.
    pub async fn new(api: &ApiClient) -> Self {
        let mut listener = Self {
            http: super::http_client(),
            id: None,
            heard: BTreeMap::new(),
            resets: 0,
            text: String::new(),
            response: None,
        };
        listener.connect(api).await;
        while listener.id.is_none() {
            assert!(listener.more().await);
        }
        listener
    }

    /// Connects anew, behind what was heard last.
    pub async fn connect(&mut self, api: &ApiClient) {
        let mut call = self
            .http
            .get(format!("{}/v1/events", api.base))
            .header("x-mtoken", &api.token);
        if let Some(id) = &self.id {
            call = call.header("last-event-id", id);
        }
        let response = call.send().await.unwrap();
        assert_eq!(response.status(), 200);
        self.text.clear();
        self.response = Some(response);
    }

    /// Takes in what comes next; false at the end of the connection.
    pub async fn more(&mut self) -> bool {
        let Some(response) = &mut self.response else {
            return false;
        };
        let Ok(Some(chunk)) = response.chunk().await else {
            self.response = None;
            return false;
        };
        self.text += std::str::from_utf8(&chunk).unwrap();
        while let Some((event, rest)) = self.text.split_once("\n\n") {
            for line in event.lines() {
                match line.split_once(": ") {
                    Some(("id", id)) => self.id = Some(id.to_owned()),
                    Some(("event", "reset")) => self.resets += 1,
                    Some(("data", data)) if data != "{}" => {
                        let data: Value = serde_json::from_str(data).unwrap();
                        let uuid = data["uuid"].as_str().unwrap().to_owned();
                        let heard = self.heard.entry(uuid).or_default();
                        *heard = (data, heard.1 + 1);
                    }
                    _ => {}
                }
            }
            self.text = rest.to_owned();
        }
        true
    }

    /// Listens until all of these were heard of in a status.
    pub async fn until(&mut self, uuids: &[String], status: &str) {
        let missing = |heard: &BTreeMap<String, (Value, usize)>| {
            let is_there = |uuid: &&String| {
                heard
                    .get(*uuid)
                    .is_some_and(|(data, _)| data["status"] == status)
            };
            uuids.iter().filter(|uuid| !is_there(uuid)).count()
        };
        let heard = async {
            while missing(&self.heard) > 0 {
                assert!(self.more().await, "the connection has ended");
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(60), heard).await;
        assert!(in_time.is_ok(), "{} not heard", missing(&self.heard));
    }
}

/// So many connections that listen.
pub struct ManyListeners(Vec<TcpStream>);

impl ManyListeners {
    pub async fn start(api: &ApiClient, count: usize) -> Self {
        raise_limit_of_files();
        let mut streams = Vec::new();
        for number in 0..count {
            let mut stream = connection(api).await;
            let mut head = [0; 1024];
            let read = stream.read(&mut head).await.unwrap();
            let said = String::from_utf8_lossy(&head[..read]);
            assert!(
                said.starts_with("HTTP/1.1 200"),
                "listener {number}: {said}"
            );
            streams.push(stream);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        Self(streams)
    }

    /// Makes a request: when its call was answered, and when each listener heard of it, in ascending order.
    pub async fn hear(&mut self, api: &ApiClient, request: Value) -> (Duration, Vec<Duration>) {
        let began = Instant::now();
        let uuid = api.create(request).await;
        let answered = began.elapsed();
        let waits = std::mem::take(&mut self.0).into_iter().map(|mut stream| {
            let uuid = uuid.clone();
            tokio::spawn(async move {
                let (mut text, mut piece) = (Vec::new(), [0; 4096]);
                loop {
                    let read = stream.read(&mut piece).await.unwrap();
                    assert_ne!(read, 0, "closed");
                    text.extend_from_slice(&piece[..read]);
                    if String::from_utf8_lossy(&text).contains(&uuid) {
                        return (began.elapsed(), stream);
                    }
                }
            })
        });
        let mut heard = Vec::new();
        for waited in join_all(waits).await {
            let (after, stream) = waited.unwrap();
            heard.push(after);
            self.0.push(stream);
        }
        heard.sort_unstable();
        (answered, heard)
    }
}

async fn connection(api: &ApiClient) -> TcpStream {
    let address = api.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET /v1/events HTTP/1.1\r\nhost: x\r\nx-mtoken: {}\r\n\r\n",
        api.token
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// As many files as this process may open.
fn raise_limit_of_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}
