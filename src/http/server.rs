//! The listeners: connections, their number and timeouts, and stopping without cutting anyone off.

use std::{
    convert::Infallible,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    BoxError, Router,
    body::{Body, Bytes, HttpBody},
    http::{Request, Response},
};
use futures::future::BoxFuture;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::{Builder, Connection},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Semaphore, watch},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tower::Service;

use super::{
    peers::{ConnectionsPerAddress, has_room},
    reading::{PiecewiseBody, UnreadAnswers},
    socket::{self, ServerSocket},
};
use crate::{
    api::{
        address::Peer,
        admission::AnswerShare,
        meter::{self, Refused},
    },
    shutdown::{self, StopSignal},
    tls::ServerTls,
};

/// What a connection may hold of headers that are not whole yet, in bytes; more is answered 431.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// HTTP/2: the header list of one request, in bytes.
const MAX_HEADER_LIST_BYTES: u32 = 16 * 1024;
/// HTTP/2: calls at once on one connection.
const MAX_STREAMS: u32 = 256;
/// HTTP/2: bytes of bodies that a client may send ahead of their being read, per call and in all.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// HTTP/2: how often a peer is asked whether it is there, and how long it may take to say so.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, without negotiation.
    Http2,
    /// Either, as the client begins.
    Either,
}

impl HttpVersion {
    /// Its names in ALPN (RFC 7301).
    fn alpn(self) -> &'static [&'static [u8]] {
        match self {
            Self::Http1 => &[b"http/1.1"],
            Self::Http2 => &[b"h2"],
            Self::Either => &[b"h2", b"http/1.1"],
        }
    }

    /// Whether several calls may be in progress on one connection.
    fn is_shared(self) -> bool {
        match self {
            Self::Http1 => false,
            Self::Http2 | Self::Either => true,
        }
    }
}

/// How patient the server is.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// For the headers of a request. HTTP/1.1: also how long an idle connection is kept.
    pub headers: Duration,
    /// How long a connection without a request in progress is kept, up to twice this.
    pub idle: Duration,
    /// How long a client may take to read one answer.
    pub reading: Duration,
    /// For requests in flight once the process should stop.
    pub stopping: Duration,
    /// Connections at once; those beyond are closed as they come.
    pub max_connections: usize,
    /// Of one address, where connections are clients' own; those beyond are closed as they come.
    pub max_per_address: Option<usize>,
}

impl ServerLimits {
    /// Of listeners for an operator's own programs: metrics, health.
    pub const OPERATORS: Self = Self {
        headers: Duration::from_secs(5),
        idle: Duration::from_secs(60),
        reading: Duration::from_secs(5),
        stopping: Duration::from_secs(1),
        max_connections: 100,
        max_per_address: None,
    };
}

/// Serves until `stop`, then lets requests in flight finish. Without `tls` in the clear.
///
/// # Errors
/// When TLS cannot be set up.
pub async fn serve(
    listener: impl Into<ServerSocket>,
    tls: Option<ServerTls>,
    router: Router,
    protocol: HttpVersion,
    patience: ServerLimits,
    mut stop: StopSignal,
) -> anyhow::Result<()> {
    let listener = listener.into();
    let acceptor = tls.map(|tls| tls.acceptor(protocol.alpn())).transpose()?;
    let builder = Arc::new(builder(protocol, &patience));
    let places = patience.max_connections.min(Semaphore::MAX_PERMITS);
    let places = Arc::new(Semaphore::new(places));
    let peers = patience.max_per_address.map(ConnectionsPerAddress::new);
    // Closed when the last connection has ended.
    let (alive, here) = watch::channel(());
    let stop_of_connections = stop.clone();
    let mut stopping = pin!(shutdown::requested(&mut stop));
    let (mut full, mut crowded) = (false, false);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stopping => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely: existing connections must end first.
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let has_room = has_room(
            peer.ip(),
            places.available_permits(),
            patience.max_connections,
        );
        let place = has_room.then(|| Arc::clone(&places).try_acquire_owned());
        let Some(Ok(place)) = place else {
            meter::refused(Refused::Connections);
            if !full {
                let most = patience.max_connections;
                tracing::warn!(most, "too many connections: closing new ones");
            }
            full = true;
            continue;
        };
        full = false;
        let of_peer = match &peers {
            None => None,
            Some(peers) => match peers.enter(peer.ip()) {
                Some(place) => Some(place),
                None => {
                    meter::refused(Refused::Connections);
                    if !crowded {
                        let most = patience.max_per_address;
                        tracing::warn!(%peer, most, "too many connections of one address: closing new ones; logged \
                                                     once");
                    }
                    crowded = true;
                    continue;
                }
            },
        };
        let activity = Arc::new(ConnectionActivity::default());
        let service = TowerToHyperService::new(ConnectionService {
            router: router.clone(),
            peer: Peer(peer),
            activity: Arc::clone(&activity),
        });
        let (builder, acceptor) = (Arc::clone(&builder), acceptor.clone());
        let (mut stop, here) = (stop_of_connections.clone(), here.clone());
        tokio::spawn(async move {
            match acceptor {
                None => {
                    let connection = builder.serve_connection(TokioIo::new(stream), service);
                    drive_connection(connection.into_owned(), &activity, patience, protocol, stop)
                        .await;
                }
                Some(acceptor) => {
                    let shaken = handshake(&acceptor, stream, patience.headers, &mut stop).await;
                    if let Some(stream) = shaken {
                        let connection = builder.serve_connection(TokioIo::new(stream), service);
                        drive_connection(
                            connection.into_owned(),
                            &activity,
                            patience,
                            protocol,
                            stop,
                        )
                        .await;
                    }
                }
            }
            drop((place, of_peer, here));
        });
    }
    drop((listener, here));
    if tokio::time::timeout(patience.stopping, alive.closed())
        .await
        .is_err()
    {
        tracing::warn!("some requests did not finish in time and were cut off");
    }
    Ok(())
}

/// Makes TLS of a connection; `None` when that fails, takes longer than headers may, or the process stops.
async fn handshake(
    acceptor: &TlsAcceptor,
    stream: socket::Connection,
    patience: Duration,
    stop: &mut StopSignal,
) -> Option<TlsStream<socket::Connection>> {
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(patience, acceptor.accept(stream)) => shaken.ok()?,
        () = shutdown::requested(stop) => return None,
    };
    shaken
        .inspect_err(|error| tracing::debug!(%error, "a TLS handshake failed"))
        .ok()
}

fn builder(protocol: HttpVersion, patience: &ServerLimits) -> Builder<TokioExecutor> {
    let builder = Builder::new(TokioExecutor::new());
    let mut builder = match protocol {
        HttpVersion::Http1 => builder.http1_only(),
        HttpVersion::Http2 => builder.http2_only(),
        HttpVersion::Either => builder,
    };
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.headers)
        .max_buf_size(MAX_HEADER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    builder
}

/// Serves one connection until its end, until it is idle for too long, or until the process stops.
async fn drive_connection<S>(
    connection: Connection<
        'static,
        TokioIo<S>,
        TowerToHyperService<ConnectionService>,
        TokioExecutor,
    >,
    activity: &ConnectionActivity,
    patience: ServerLimits,
    protocol: HttpVersion,
    mut stop: StopSignal,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = activity.unread.overdue(patience.reading), if !protocol.is_shared() => {
            tracing::info!("closed a connection whose client did not read the responses");
            return;
        }
        // Behind a proxy, others call on it too.
        () = activity.unread.give_up(patience.reading, || activity.is_idle()), if protocol.is_shared() => {
            tracing::info!("closing a connection whose client does not read the responses");
            None
        }
        () = activity.idle(patience.idle) => None,
        () = shutdown::requested(&mut stop) => None,
    };
    let ended = match ended {
        Some(ended) => Ok(ended),
        // Nothing was asked on it: there is nothing to end, and a peer that has not even greeted
        // cannot be told.
        None if activity.is_new() => return,
        None => {
            connection.as_mut().graceful_shutdown();
            // Who does not read its answers must not keep its place.
            tokio::time::timeout(patience.stopping, connection).await
        }
    };
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection failed"),
        Err(_) => tracing::debug!("closed a connection"),
    }
}

/// What happens on a connection.
#[derive(Default)]
struct ConnectionActivity {
    /// Requests in progress.
    open: AtomicUsize,
    /// Grows with each beginning and end of one.
    transitions: AtomicU64,
    unread: Arc<UnreadAnswers>,
}

impl ConnectionActivity {
    /// Whether there was no request yet.
    fn is_new(&self) -> bool {
        self.transitions.load(Ordering::SeqCst) == 0
    }

    /// Whether no request is in progress.
    fn is_idle(&self) -> bool {
        self.open.load(Ordering::SeqCst) == 0
    }

    /// Returns once nothing has happened, and nothing been in progress, for `patience`.
    async fn idle(&self, patience: Duration) {
        let mut seen = self.transitions.load(Ordering::SeqCst);
        loop {
            tokio::time::sleep(patience).await;
            let transitions = self.transitions.load(Ordering::SeqCst);
            if transitions == seen && self.is_idle() {
                return;
            }
            seen = transitions;
        }
    }
}

/// A request in progress: while it is there, its connection is not idle. An extension of every
/// request, for those whose answer is a stream.
#[derive(Clone)]
pub struct RequestGuard(#[expect(dead_code, reason = "is only held")] Arc<ActivityGuard>);

struct ActivityGuard(Arc<ConnectionActivity>);

impl RequestGuard {
    fn begin(activity: &Arc<ConnectionActivity>) -> Self {
        activity.open.fetch_add(1, Ordering::SeqCst);
        activity.transitions.fetch_add(1, Ordering::SeqCst);
        Self(Arc::new(ActivityGuard(Arc::clone(activity))))
    }
}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        self.0.transitions.fetch_add(1, Ordering::SeqCst);
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The router, for the requests of one connection.
#[derive(Clone)]
struct ConnectionService {
    router: Router,
    peer: Peer,
    activity: Arc<ConnectionActivity>,
}

impl<B> Service<Request<B>> for ConnectionService
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A router always is.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let request_guard = RequestGuard::begin(&self.activity);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.peer);
        request.extensions_mut().insert(request_guard.clone());
        let answer = self.router.call(request);
        let unread = Arc::clone(&self.activity.unread);
        Box::pin(async move {
            let answer = answer.await;
            drop(request_guard);
            answer.map(|mut answer| {
                let share = answer.extensions_mut().remove::<AnswerShare>();
                answer.map(|body| Body::new(PiecewiseBody::new(body, share, &unread)))
            })
        })
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{net::SocketAddr, sync::Arc};

    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
        sync::{Notify, watch},
        task::JoinHandle,
    };

    use super::*;

    struct Server {
        address: SocketAddr,
        stop: watch::Sender<bool>,
        served: JoinHandle<()>,
    }

    async fn start(router: Router, patience: ServerLimits) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let served = tokio::spawn(async move {
            serve(
                listener,
                None,
                router,
                HttpVersion::Http1,
                patience,
                stopped,
            )
            .await
            .unwrap();
        });
        Server {
            address,
            stop,
            served,
        }
    }

    const PATIENT: ServerLimits = ServerLimits {
        headers: Duration::from_secs(60),
        idle: Duration::from_secs(60),
        reading: Duration::from_secs(60),
        stopping: Duration::from_secs(60),
        max_connections: 100,
        max_per_address: Some(1),
    };

    /// Ends only because the server closes.
    async fn until_closed(client: &mut TcpStream) -> Vec<u8> {
        let mut answer = Vec::new();
        // What the server did not read may make it an error.
        let _ = client.read_to_end(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn stopping__should_finish_requests_in_flight_and_take_no_more() {
        let (arrived, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (inner_arrived, inner_release) = (Arc::clone(&arrived), Arc::clone(&release));
        let slow = move || {
            let (arrived, release) = (Arc::clone(&inner_arrived), Arc::clone(&inner_release));
            async move {
                arrived.notify_one();
                release.notified().await;
                "done"
            }
        };
        let server = start(Router::new().route("/", get(slow)), PATIENT).await;
        let mut client = TcpStream::connect(server.address).await.unwrap();
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        arrived.notified().await;
        server.stop.send(true).unwrap();
        // The listener is gone once a connection is refused; the request is still in flight.
        while TcpStream::connect(server.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(!server.served.is_finished());
        release.notify_one();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("done"),
            "{answer}"
        );
        server.served.await.unwrap();
    }

    #[tokio::test]
    async fn slow_headers__should_end_the_connection() {
        let patience = ServerLimits {
            headers: Duration::from_millis(20),
            ..PATIENT
        };
        let server = start(Router::new(), patience).await;
        let mut client = TcpStream::connect(server.address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
        let answer = until_closed(&mut client).await;
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
        drop(server.stop);
    }

    #[tokio::test]
    async fn headers_without_end__should_be_refused() {
        let server = start(Router::new(), PATIENT).await;
        let mut client = TcpStream::connect(server.address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let line = format!("x-much: {}\r\n", "x".repeat(1000));
        // The server may close before everything is sent.
        for _ in 0..2 * MAX_HEADER_BYTES / 1000 {
            if client.write_all(line.as_bytes()).await.is_err() {
                break;
            }
        }
        let answer = until_closed(&mut client).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431"),
            "{answer}"
        );
        drop(server.stop);
    }

    #[tokio::test]
    async fn idle_connections__should_be_closed() {
        let idle = ServerLimits {
            idle: Duration::from_millis(20),
            ..PATIENT
        };
        for protocol in [HttpVersion::Http1, HttpVersion::Http2] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (stop, stopped) = watch::channel(false);
            let router = Router::new();
            tokio::spawn(serve(listener, None, router, protocol, idle, stopped));
            let mut client = TcpStream::connect(address).await.unwrap();
            // Says nothing at all.
            until_closed(&mut client).await;
            drop(stop);
        }
    }

    #[tokio::test]
    async fn requests_in_work__should_keep_a_connection_however_long_they_take() {
        let slow = || async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            "done"
        };
        let patience = ServerLimits {
            idle: Duration::from_millis(20),
            ..PATIENT
        };
        let server = start(Router::new().route("/", get(slow)), patience).await;
        let mut client = TcpStream::connect(server.address).await.unwrap();
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        // Then it is idle.
        let answer = until_closed(&mut client).await;
        assert!(answer.ends_with(b"done"));
        drop(server.stop);
    }

    #[tokio::test]
    async fn answers_that_nobody_reads__should_end_the_connection() {
        const LENGTH: usize = 32 << 20;
        let answers = Arc::new(());
        let held = Arc::clone(&answers);
        let long = move || {
            // Is there as long as the answer is.
            let body = Long(Bytes::from(vec![7; LENGTH]), Arc::clone(&held));
            async move { Bytes::from_owner(body) }
        };
        let patience = ServerLimits {
            reading: Duration::from_millis(400),
            ..PATIENT
        };
        let server = start(Router::new().route("/", get(long)), patience).await;
        let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let mut reader = TcpStream::connect(server.address).await.unwrap();
        reader.write_all(request).await.unwrap();
        let answer = until_closed(&mut reader).await;
        assert!(answer.len() > LENGTH, "who reads it gets all of it");
        let mut idler = TcpStream::connect(server.address).await.unwrap();
        idler.write_all(request).await.unwrap();
        while Arc::strong_count(&answers) < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let begun = tokio::time::Instant::now();
        while Arc::strong_count(&answers) > 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert!(until_closed(&mut idler).await.len() < LENGTH);
        drop(server.stop);
    }

    struct Long(Bytes, #[expect(dead_code, reason = "is only held")] Arc<()>);

    impl AsRef<[u8]> for Long {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    #[tokio::test]
    async fn many_connections__should_be_closed_beyond_the_limit() {
        let patience = ServerLimits {
            max_connections: 3,
            ..PATIENT
        };
        let server = start(Router::new().route("/", get(|| async { "here" })), patience).await;
        let ask = async |client: &mut TcpStream| -> String {
            let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
            let mut answer = [0; 1000];
            match client.write_all(request).await {
                Ok(()) => {
                    let read = client.read(&mut answer).await.unwrap_or(0);
                    String::from_utf8_lossy(&answer[..read]).into_owned()
                }
                Err(_) => String::new(),
            }
        };
        let mut clients = Vec::new();
        for _ in 0..3 {
            let mut client = TcpStream::connect(server.address).await.unwrap();
            assert!(ask(&mut client).await.ends_with("here"));
            clients.push(client);
        }
        let mut beyond = TcpStream::connect(server.address).await.unwrap();
        assert_eq!(until_closed(&mut beyond).await, b"");
        // Those that are there are served on, and a place that is free is taken.
        assert!(ask(&mut clients[0]).await.ends_with("here"));
        drop(clients.pop());
        loop {
            let mut next = TcpStream::connect(server.address).await.unwrap();
            if ask(&mut next).await.ends_with("here") {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(server.stop);
    }

    #[tokio::test]
    async fn requests__should_know_their_peer() {
        let whoami = |axum::Extension(Peer(peer)): axum::Extension<Peer>| async move {
            peer.port().to_string()
        };
        let server = start(Router::new().route("/", get(whoami)), PATIENT).await;
        let mut client = TcpStream::connect(server.address).await.unwrap();
        let port = client.local_addr().unwrap().port().to_string();
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let answer = until_closed(&mut client).await;
        assert!(answer.ends_with(port.as_bytes()));
        drop(server.stop);
    }
}
