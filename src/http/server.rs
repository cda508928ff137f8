//! The listener: connections, their timeouts, and stopping without cutting anyone off.

use std::{pin::pin, time::Duration};

use axum::{Extension, Router};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::net::TcpListener;

use crate::{
    api::address::Peer,
    shutdown::{self, Stop},
};

/// How patient the server is.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the headers of a request; also how long an idle connection is kept.
    pub headers: Duration,
    /// For requests in flight once the process should stop.
    pub stopping: Duration,
}

/// Serves until `stop`, then lets requests in flight finish.
pub async fn serve(listener: TcpListener, router: Router, patience: Patience, mut stop: Stop) {
    let connections = GracefulShutdown::new();
    let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.headers);
    let mut stopping = pin!(shutdown::requested(&mut stop));
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stopping => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok((stream, peer)) => (stream, peer),
            Err(error) => {
                // Out of file descriptors, most likely: existing connections must end first.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY");
        }
        let service = TowerToHyperService::new(router.clone().layer(Extension(Peer(peer))));
        let connection = builder
            .serve_connection(TokioIo::new(stream), service)
            .into_owned();
        let watched = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = watched.await {
                tracing::debug!(%error, "a connection ended badly");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(patience.stopping, connections.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("some requests did not finish in time and were cut off");
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{net::SocketAddr, sync::Arc};

    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
        sync::{Notify, watch},
        task::JoinHandle,
    };

    use super::*;

    struct Server {
        address: SocketAddr,
        stop: watch::Sender<bool>,
        served: JoinHandle<()>,
    }

    async fn start(router: Router, patience: Patience) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let served = tokio::spawn(serve(listener, router, patience, stopped));
        Server {
            address,
            stop,
            served,
        }
    }

    const PATIENT: Patience = Patience {
        headers: Duration::from_secs(60),
        stopping: Duration::from_secs(60),
    };

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
        let patience = Patience {
            headers: Duration::from_millis(20),
            ..PATIENT
        };
        let server = start(Router::new(), patience).await;
        let mut client = TcpStream::connect(server.address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
        let mut answer = Vec::new();
        // Ends only because the server closes.
        let _ = client.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
        drop(server.stop);
    }
}
