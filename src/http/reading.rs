//! Limits on unread answers: what a client requests and does not read must not stay in memory.
//!
//! An answer is handed to the connection in pieces. Each of them counts for its token until it was written, and so
//! does what is not handed over yet.

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Error,
    body::{Body, Bytes, HttpBody},
};
use covault_actors::gateway::Share;
use covault_core::ids::TokenId;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api::admission::AnswerShare;

/// What is handed over at once. One piece of an answer that is given up may stay for as long as its connection does:
/// HTTP/2 keeps it until there is room at the client.
const PIECE: usize = 16 * 1024;
/// How often it is looked whether an answer is being read, in the time that reading may take.
const LOOKS: u32 = 4;

/// The answers on one connection that are not written yet.
pub struct UnreadAnswers {
    /// By number: the oldest first.
    answers: Mutex<BTreeMap<u64, PendingAnswer>>,
    /// When something was last written.
    written: Mutex<Instant>,
}

impl Default for UnreadAnswers {
    fn default() -> Self {
        Self {
            answers: Mutex::default(),
            written: Mutex::new(Instant::now()),
        }
    }
}

struct PendingAnswer {
    since: Instant,
    rest: Weak<Mutex<Option<RemainingAnswer>>>,
}

/// One of them, for as long as any part of it is there.
struct UnreadAnswer {
    all: Arc<UnreadAnswers>,
    number: u64,
}

impl UnreadAnswers {
    fn begin(self: &Arc<Self>, rest: &Arc<Mutex<Option<RemainingAnswer>>>) -> Arc<UnreadAnswer> {
        let mut answers = self.answers.lock();
        let number = answers.last_key_value().map_or(0, |(last, _)| last + 1);
        let unread = PendingAnswer {
            since: Instant::now(),
            rest: Arc::downgrade(rest),
        };
        answers.insert(number, unread);
        Arc::new(UnreadAnswer {
            all: Arc::clone(self),
            number,
        })
    }

    /// Returns once an answer was not read in this time.
    pub async fn overdue(&self, patience: Duration) {
        while !self.is_overdue(patience) {
            tokio::time::sleep(patience / LOOKS).await;
        }
    }

    /// Gives up what is left of answers that were not read in this time: others on the connection continue. Returns once
    /// there are such, nothing at all was written in this time, and nothing `is_idle` else.
    pub async fn give_up(&self, patience: Duration, is_idle: impl Fn() -> bool) {
        loop {
            self.overdue(patience).await;
            if self.written.lock().elapsed() >= patience && is_idle() {
                return;
            }
            let overdue: Vec<_> = {
                let answers = self.answers.lock();
                let overdue = answers.values();
                let overdue = overdue.take_while(|unread| unread.since.elapsed() >= patience);
                overdue.filter_map(|unread| unread.rest.upgrade()).collect()
            };
            for rest in overdue {
                if rest.lock().take().is_some() {
                    tracing::info!("dropped a response that the client did not read");
                }
            }
            tokio::time::sleep(patience / LOOKS).await;
        }
    }

    fn is_overdue(&self, patience: Duration) -> bool {
        let answers = self.answers.lock();
        let oldest = answers.first_key_value();
        oldest.is_some_and(|(_, unread)| unread.since.elapsed() >= patience)
    }
}

impl Drop for UnreadAnswer {
    fn drop(&mut self) {
        self.all.answers.lock().remove(&self.number);
    }
}

/// What is not handed over yet.
struct RemainingAnswer {
    inner: Body,
    frame: Bytes,
    share: Option<AnswerShare>,
}

/// A part of an answer, until it was written.
struct AnswerPart {
    bytes: Bytes,
    of_connection: Arc<UnreadAnswers>,
    _unread: Arc<UnreadAnswer>,
    _share: Option<Share<TokenId>>,
}

impl AsRef<[u8]> for AnswerPart {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for AnswerPart {
    fn drop(&mut self) {
        *self.of_connection.written.lock() = Instant::now();
    }
}

/// An answer in pieces.
pub struct PiecewiseBody {
    /// `None` once it was given up.
    rest: Arc<Mutex<Option<RemainingAnswer>>>,
    unread: Option<Arc<UnreadAnswer>>,
    of_connection: Arc<UnreadAnswers>,
}

impl PiecewiseBody {
    /// An answer on a connection, and what it counts for its token.
    pub fn new(
        inner: Body,
        share: Option<AnswerShare>,
        of_connection: &Arc<UnreadAnswers>,
    ) -> Self {
        let is_empty = inner.is_end_stream();
        let rest = Arc::new(Mutex::new(Some(RemainingAnswer {
            inner,
            frame: Bytes::new(),
            share,
        })));
        Self {
            unread: (!is_empty).then(|| of_connection.begin(&rest)),
            rest,
            of_connection: Arc::clone(of_connection),
        }
    }
}

impl HttpBody for PiecewiseBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.get_mut();
        let mut slot = this.rest.lock();
        let Some(rest) = slot.as_mut() else {
            let given_up = io::Error::from(io::ErrorKind::TimedOut);
            return Poll::Ready(Some(Err(Error::new(given_up))));
        };
        if rest.frame.is_empty() {
            let polled = Pin::new(&mut rest.inner).poll_frame(cx);
            if polled.is_pending() {
                // A stream, of which all was handed over that there is.
                this.unread = None;
            }
            let frame = match ready!(polled) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) => rest.frame = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let bytes = if rest.frame.len() > PIECE {
            // So that a piece that stays does not keep all of it.
            Bytes::copy_from_slice(&rest.frame.split_to(PIECE))
        } else {
            std::mem::take(&mut rest.frame)
        };
        let is_last = rest.frame.is_empty();
        let places = if is_last { usize::MAX } else { bytes.len() };
        let unread = this.unread.take();
        let unread = unread.unwrap_or_else(|| this.of_connection.begin(&this.rest));
        if !is_last || !rest.inner.is_end_stream() {
            this.unread = Some(Arc::clone(&unread));
        }
        let piece = AnswerPart {
            bytes,
            of_connection: Arc::clone(&this.of_connection),
            _unread: unread,
            _share: rest.share.as_ref().map(|share| share.split(places)),
        };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        let rest = self.rest.lock();
        let ended = |rest: &RemainingAnswer| rest.frame.is_empty() && rest.inner.is_end_stream();
        rest.as_ref().is_some_and(ended)
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.lock();
        let Some(rest) = rest.as_ref() else {
            return SizeHint::new();
        };
        let frame = u64::try_from(rest.frame.len()).unwrap_or(u64::MAX);
        let inner = rest.inner.size_hint();
        let mut whole = SizeHint::new();
        if let Some(most) = inner.upper() {
            whole.set_upper(most.saturating_add(frame));
        }
        whole.set_lower(inner.lower().saturating_add(frame));
        whole
    }
}
