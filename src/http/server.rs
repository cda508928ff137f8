//! The listener: connections, their timeouts, and stopping without cutting anyone off.

use std::{pin::pin, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::net::TcpListener;

use crate::shutdown::{self, Stop};

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
        let stream = match accepted {
            Ok((stream, _peer)) => stream,
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
        let service = TowerToHyperService::new(router.clone());
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
