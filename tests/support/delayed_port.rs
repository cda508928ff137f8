//! A way to a port of this machine on which everything takes longer, by a time that can be changed.
//!
//! Shared by tests and benchmarks of several crates.
#![allow(missing_docs, clippy::unwrap_used, reason = "for tests")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::{Instant, sleep_until},
};

pub struct DelayedPort {
    pub port: u16,
    to: u16,
    /// What comes from there is late by so much.
    delay_ms: Arc<AtomicU64>,
    questions: Arc<AtomicU64>,
}

impl DelayedPort {
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let delayed = Self {
            port: listener.local_addr().unwrap().port(),
            to: port,
            delay_ms: Arc::default(),
            questions: Arc::default(),
        };
        let delay_ms = Arc::clone(&delayed.delay_ms);
        let questions = Arc::clone(&delayed.questions);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else {
                    continue;
                };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let (near_reads, near_writes) = near.into_split();
                let (far_reads, far_writes) = far.into_split();
                let (there, back) = (Arc::clone(&questions), Arc::default());
                tokio::spawn(carry(near_reads, far_writes, Arc::default(), there));
                tokio::spawn(carry(far_reads, near_writes, Arc::clone(&delay_ms), back));
            }
        });
        delayed
    }

    pub fn delay_by(&self, milliseconds: u64) {
        self.delay_ms.store(milliseconds, Ordering::Relaxed);
    }

    /// The same URL, through here. It must name the port that this one leads to.
    pub fn url(&self, url: &str) -> String {
        url.replace(&format!(":{}/", self.to), &format!(":{}/", self.port))
    }

    /// How many messages went there so far.
    pub fn questions(&self) -> u64 {
        self.questions.load(Ordering::SeqCst)
    }
}

/// In order, each piece as late as was said when it came.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin + Send + 'static,
    delay_ms: Arc<AtomicU64>,
    pieces_seen: Arc<AtomicU64>,
) {
    let (pieces, mut due) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let writes = tokio::spawn(async move {
        while let Some((when, piece)) = due.recv().await {
            sleep_until(when).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    });
    let mut buffer = vec![0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let delay = Duration::from_millis(delay_ms.load(Ordering::Relaxed));
        let piece = buffer[..length].to_vec();
        pieces_seen.fetch_add(1, Ordering::SeqCst);
        if pieces.send((Instant::now() + delay, piece)).is_err() {
            break;
        }
    }
    drop(pieces);
    let _ = writes.await;
}
