//! An HTTP server of a few lines for doubles of chains' nodes: it answers what a closure says, or
//! hangs up.

use std::{future::Future, sync::Arc};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// A request.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    /// The request line and the headers, as they came.
    pub head: String,
    pub body: Vec<u8>,
}

impl HttpRequest {
    /// `GET` or `POST`.
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap()
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }

    /// `null` where there is no body.
    pub fn json(&self) -> Value {
        match self.body.as_slice() {
            [] => Value::Null,
            body => serde_json::from_slice(body).unwrap(),
        }
    }
}

/// An answer.
pub struct HttpResponse {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

impl HttpResponse {
    pub fn json(status: u16, body: &Value) -> Self {
        Self {
            status,
            headers: vec![("content-type", "application/json".into())],
            body: body.to_string().into_bytes(),
        }
    }
}

/// Where nobody listens yet, and its address.
pub async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// Answers until the test's runtime stops; `None` hangs up without an answer.
pub fn serve<F>(listener: TcpListener, answer: impl Fn(HttpRequest) -> F + Send + Sync + 'static)
where
    F: Future<Output = Option<HttpResponse>> + Send + 'static,
{
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(talk(stream, Arc::clone(&answer)));
        }
    });
}

/// A new server. Gives its address.
pub async fn start(
    answer: impl Fn(&HttpRequest) -> Option<HttpResponse> + Send + Sync + 'static,
) -> String {
    let (listener, url) = listen().await;
    serve(listener, move |request| {
        let response = answer(&request);
        async move { response }
    });
    url
}

async fn talk<F>(mut stream: TcpStream, answer: Arc<impl Fn(HttpRequest) -> F>)
where
    F: Future<Output = Option<HttpResponse>>,
{
    let mut buffer = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(count) => buffer.extend_from_slice(&chunk[..count]),
        }
        let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let mut request = HttpRequest {
            head: String::from_utf8_lossy(&buffer[..end]).into_owned(),
            body: Vec::new(),
        };
        let length = request.header("content-length");
        let length = length.map_or(0, |length| length.parse::<usize>().unwrap());
        let Some(body) = buffer.get(end + 4..end + 4 + length) else {
            continue;
        };
        request.body = body.to_vec();
        buffer.drain(..end + 4 + length);
        let Some(response) = answer(request).await else {
            return;
        };
        let mut head = format!("HTTP/1.1 {} So\r\n", response.status);
        for (name, value) in &response.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("content-length: {}\r\n\r\n", response.body.len());
        let whole = [head.as_bytes(), &response.body].concat();
        if stream.write_all(&whole).await.is_err() {
            return;
        }
    }
}
