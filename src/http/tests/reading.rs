//! Answers that nobody reads.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Extension, body::Body};
use http_body::Body as _;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    time::Instant,
};

use super::*;
use crate::{
    api::address::Peer,
    http::server::{HttpVersion, ServerLimits, serve},
};

/// How long an answer may take to be read.
const READING: Duration = Duration::from_millis(400);
const LENGTH: usize = 4 << 20;

struct Server {
    address: SocketAddr,
    _stop: watch::Sender<bool>,
    /// As many as there are long answers, and one.
    answers: Arc<()>,
    release: Arc<Notify>,
}

/// `/long` and `/short` are answered at once, the latter with the number of the connection; `/slow` once it is released.
async fn start() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let (answers, release) = (Arc::new(()), Arc::new(Notify::new()));
    let (held, released) = (Arc::clone(&answers), Arc::clone(&release));
    let long = move || {
        let body = Long(vec![7; LENGTH], Arc::clone(&held));
        async move { Bytes::from_owner(body) }
    };
    let slow = move || {
        let released = Arc::clone(&released);
        async move {
            released.notified().await;
            "done"
        }
    };
    let short = |Extension(Peer(peer)): Extension<Peer>| async move { peer.port().to_string() };
    let router = Router::new()
        .route("/long", get(long))
        .route("/short", get(short))
        .route("/slow", get(slow));
    let limits = ServerLimits {
        headers: Duration::from_secs(60),
        idle: Duration::from_secs(60),
        reading: READING,
        stopping: READING,
        max_connections: 100,
        max_per_address: None,
    };
    tokio::spawn(serve(
        listener,
        None,
        router,
        HttpVersion::Http2,
        limits,
        stopped,
    ));
    Server {
        address,
        _stop: stop,
        answers,
        release,
    }
}

struct Long(
    Vec<u8>,
    #[expect(dead_code, reason = "is only held")] Arc<()>,
);

impl AsRef<[u8]> for Long {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A client with one connection, that has room for so many bytes of each answer that it does not read.
fn client(window: u32) -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new())
        .http2_only(true)
        .http2_initial_stream_window_size(window)
        .http2_initial_connection_window_size(1 << 30)
        .build_http()
}

async fn ask(client: &Client<HttpConnector, Body>, server: &Server, path: &str) -> Response<Body> {
    let uri = format!("http://{}{path}", server.address).parse().unwrap();
    client.get(uri).await.unwrap().map(Body::new)
}

async fn text(response: Response<Body>) -> String {
    let body = axum::body::to_bytes(response.into_body(), LENGTH).await;
    String::from_utf8(body.unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn an_answer_that_nobody_reads__should_be_given_up_and_cut_nobody_off() {
    for window in [0, 1, 70_000] {
        let server = start().await;
        let client = client(window);
        let unread = ask(&client, &server, "/long").await;
        let client_of_slow = client.clone();
        let uri = format!("http://{}/slow", server.address).parse().unwrap();
        let slow = tokio::spawn(async move { client_of_slow.get(uri).await.unwrap() });
        let began = Instant::now();
        while Arc::strong_count(&server.answers) > 2 {
            // Never, where it is not given up.
            assert!(began.elapsed() < 100 * READING, "window {window}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(2 * READING).await;
        server.release.notify_one();
        let answer = slow.await.unwrap().map(Body::new);
        // Its body is read, so there is room for it.
        if window > 0 {
            assert_eq!(text(answer).await, "done", "window {window}");
        }
        // A reader learns now that the body is incomplete.
        let end = axum::body::to_bytes(unread.into_body(), LENGTH).await;
        assert!(window == 0 || end.is_err(), "window {window}");
    }
}

#[tokio::test]
async fn a_long_answer__should_be_read_whole() {
    let server = start().await;
    let client = client(1 << 16);
    let answer = ask(&client, &server, "/long").await;
    assert_eq!(answer.body().size_hint().exact(), Some(LENGTH as u64));
    let body = axum::body::to_bytes(answer.into_body(), LENGTH).await;
    assert_eq!(body.unwrap(), vec![7; LENGTH]);
    while Arc::strong_count(&server.answers) > 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, stream];
    frame.extend_from_slice(payload);
    frame
}

/// Asks for `/short`, with room for so many bytes of the answer, and gives no more.
async fn ask_and_read_no_more(server: &Server, window: u8) -> TcpStream {
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    let settings = [0, 4, 0, 0, 0, window];
    // GET, http, :path, :authority (RFC 7541).
    let head = [&[0x82, 0x86, 0x04, 6][..], b"/short", &[0x01, 1], b"x"].concat();
    let sent = [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        &frame(4, 0, 0, &settings),
        &frame(1, 5, 1, &head),
    ];
    connection.write_all(&sent.concat()).await.unwrap();
    connection
}

#[tokio::test]
async fn a_connection_of_which_nothing_is_read__should_be_closed() {
    let server = start().await;
    let reader = client(1 << 16);
    let before = text(ask(&reader, &server, "/short").await).await;
    for window in [0, 1] {
        let mut idler = ask_and_read_no_more(&server, window).await;
        let mut said = Vec::new();
        let closed = tokio::time::timeout(100 * READING, idler.read_to_end(&mut said));
        closed.await.expect("it is closed").unwrap();
    }
    let mut idle = ask_and_read_no_more(&server, 100).await;
    let mut said = Vec::new();
    let closed = tokio::time::timeout(4 * READING, idle.read_to_end(&mut said));
    closed.await.expect_err("everything was read");
    let after = text(ask(&reader, &server, "/short").await).await;
    assert_eq!(before, after, "who reads keeps its connection");
}
