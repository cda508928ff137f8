//! The queue before one chain node: a limited number of calls is in progress at once, and the others wait
//! here, where they cost nothing. A waiting call leaves only when its caller does.
//!
//! Each token has its turns, however many calls of another one wait. Of one token, calls of the request that was accepted
//! first go first. A request needs several calls one after the other: where each call waited for its turn again, a crowd
//! would get all its first answers before anyone had its last one, and all of its requests would be late together. What
//! has waited for long goes before the turns of others. What belongs to no request, such as a balance or the blocks that
//! deposits are looked for in, has a quarter of the calls for itself.

mod waiting;

use std::{future::Future, sync::Arc, time::Duration};

use covault_core::{ids::TokenId, rate::count};
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

use self::waiting::{CallClass, CallQueue, QueuePosition, WaitingCall};

/// Calls in progress to begin with.
const FIRST_WINDOW: usize = 16;
/// A node that answers late, but answers, has so many calls nevertheless.
const FEWEST_OF_SLOW: usize = 4;
/// Costly calls get at most one place of so many.
const COSTLY_SHARE: usize = 4;

tokio::task_local! {
    /// Whose the present calls are.
    static CALLS: CallsOf;
}

/// Whose calls of a node they are. Calls outside of [`of_request`] and [`asked_by`] are the service's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallsOf {
    /// `None`: the service itself.
    token: Option<TokenId>,
    /// Of a request that was accepted then, in milliseconds since the Unix epoch.
    accepted_ms: Option<u64>,
    /// From then on they go before those of others, in milliseconds since the Unix epoch.
    overdue_ms: u64,
}

/// Has the calls of `work` go before those of all that was accepted, or came, later than `accepted_ms`, in milliseconds
/// since the Unix epoch, no matter who asked for that.
pub async fn accepted_at<F: Future>(accepted_ms: u64, work: F) -> F::Output {
    let of = CallsOf {
        token: None,
        accepted_ms: Some(accepted_ms),
        overdue_ms: 0,
    };
    CALLS.scope(of, work).await
}

/// Has the calls of `work` go when it is the token's turn, before those that it asked for later than `accepted_ms`; from
/// `overdue_ms` on as [`accepted_at`] does it. In milliseconds since the Unix epoch.
pub async fn of_request<F: Future>(
    token: TokenId,
    accepted_ms: u64,
    overdue_ms: u64,
    work: F,
) -> F::Output {
    let of = CallsOf {
        token: Some(token),
        accepted_ms: Some(accepted_ms),
        overdue_ms,
    };
    CALLS.scope(of, work).await
}

/// Has the calls of `work`, which belong to no request, go when it is the token's turn.
pub async fn asked_by<F: Future>(token: TokenId, work: F) -> F::Output {
    let of = CallsOf {
        token: Some(token),
        ..CallsOf::SERVICE
    };
    CALLS.scope(of, work).await
}

/// Whether the present call is one of a request.
pub(super) fn is_of_request() -> bool {
    CallsOf::present().accepted_ms.is_some()
}

impl CallsOf {
    const SERVICE: Self = Self {
        token: None,
        accepted_ms: None,
        overdue_ms: u64::MAX,
    };

    /// Whose the present call is.
    pub(super) fn present() -> Self {
        CALLS.try_with(|of| *of).unwrap_or(Self::SERVICE)
    }

    /// Has the calls of `work` be of these, in another task.
    pub(super) fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        CALLS.scope(self, work)
    }

    fn class(&self) -> CallClass {
        match self.accepted_ms {
            Some(_) => CallClass::Request,
            None => CallClass::Read,
        }
    }
}

/// What a call shows of how much a node can do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallPace {
    /// It was answered in good time.
    InTime,
    /// It was answered late.
    Late,
    /// It was not answered, or the node says that it has too much to do.
    TooMuch,
    /// Nothing.
    Unknown,
}

/// How many calls may be in progress: one more for each answer that comes in time as long as the node has never had too
/// many, later one more for as many answers as are in progress; half as many where answers do not come in time.
#[derive(Debug)]
struct CallWindow {
    size: f64,
    most: f64,
    /// Below it the window grows fast.
    fast_below: f64,
    /// What was sent before says nothing about the present size.
    shrunk: Option<Instant>,
}

impl CallWindow {
    fn new(most: usize) -> Self {
        let most = most.max(1);
        Self {
            size: count(FIRST_WINDOW.min(most)),
            most: count(most),
            fast_below: f64::INFINITY,
            shrunk: None,
        }
    }

    /// The whole number of them, at least one.
    fn places(&self) -> usize {
        (1..)
            .take_while(|places| count(*places) <= self.size)
            .last()
            .unwrap_or(1)
    }

    fn has_room(&self, at_work: usize) -> bool {
        count(at_work) + 1.0 <= self.size
    }

    fn has_room_for_costly(&self, at_work: usize) -> bool {
        count(at_work) + 1.0 <= (self.size / count(COSTLY_SHARE)).max(1.0)
    }

    fn grow(&mut self) {
        let step = if self.size < self.fast_below {
            1.0
        } else {
            1.0 / self.size
        };
        self.size = (self.size + step).min(self.most);
    }

    fn shrink(&mut self, sent: Instant, at_work: usize, fewest: usize) {
        let is_stale = self.shrunk.is_some_and(|shrunk| sent < shrunk);
        // What has not reached half of it was not too much because of its size.
        if is_stale || count(at_work) * 2.0 <= self.size {
            return;
        }
        let least = self.size.min(count(fewest));
        self.size = (self.size / 2.0).max(least);
        self.fast_below = self.size;
        self.shrunk = Some(Instant::now());
    }
}

#[derive(Debug)]
struct LineState {
    window: CallWindow,
    at_work: usize,
    costly_at_work: usize,
    usual: CallQueue,
    costly: CallQueue,
    came: u64,
}

impl LineState {
    fn waiting(&mut self, is_costly: bool) -> &mut CallQueue {
        match is_costly {
            true => &mut self.costly,
            false => &mut self.usual,
        }
    }

    /// Takes the first that there is room for out of the line, and counts it as begun.
    fn next(&mut self) -> Option<(bool, oneshot::Sender<CallPermit>)> {
        if !self.window.has_room(self.at_work) {
            return None;
        }
        let now = Instant::now();
        let has_room = self.window.has_room_for_costly(self.costly_at_work);
        let usual = self.usual.next(now);
        let costly = self.costly.next(now).filter(|_| has_room);
        let is_costly = match (usual, costly) {
            (Some((_, usual)), Some((_, costly))) => costly < usual,
            (usual, _) => usual.is_none(),
        };
        let (class, place) = if is_costly { costly? } else { usual? };
        let waiter = self.waiting(is_costly).take(class, &place, true)?;
        self.begin(is_costly);
        Some((is_costly, waiter.placed))
    }

    fn begin(&mut self, is_costly: bool) {
        self.at_work = self.at_work.saturating_add(1);
        if is_costly {
            self.costly_at_work = self.costly_at_work.saturating_add(1);
        }
    }

    fn end(&mut self, is_costly: bool) {
        self.at_work = self.at_work.saturating_sub(1);
        if is_costly {
            self.costly_at_work = self.costly_at_work.saturating_sub(1);
        }
    }

    /// Whether the window is what keeps such calls waiting.
    fn is_full(&self, is_costly: bool) -> bool {
        !self.window.has_room(self.at_work)
            || is_costly && !self.window.has_room_for_costly(self.costly_at_work)
    }
}

/// The line before one node. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct CallLine(Arc<Mutex<LineState>>);

impl CallLine {
    /// That of a node which may have so many calls in progress at most.
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(LineState {
            window: CallWindow::new(most),
            at_work: 0,
            costly_at_work: 0,
            usual: CallQueue::default(),
            costly: CallQueue::default(),
            came: 0,
        })))
    }

    /// How many times its window a node has to do before such a call that comes now, in thousandths; 0 where that would
    /// begin at once.
    pub(super) fn crowd(&self, is_costly: bool) -> usize {
        let mut state = self.0.lock();
        let waiting = state.waiting(is_costly).len();
        if waiting == 0 && !state.is_full(is_costly) {
            return 0;
        }
        let (at_work, share) = match is_costly {
            true => (state.costly_at_work, COSTLY_SHARE),
            false => (state.at_work, 1),
        };
        let ahead = at_work.saturating_add(waiting).saturating_mul(1_000);
        ahead.saturating_mul(share) / state.window.places()
    }

    /// Waits for a place. `now_ms`: in milliseconds since the Unix epoch.
    pub(super) async fn enter(&self, of: CallsOf, now_ms: u64, is_costly: bool) -> CallPermit {
        let (mut ticket, placed) = {
            let mut state = self.0.lock();
            state.came = state.came.wrapping_add(1);
            // What belongs to no request is wanted since now.
            let (class, since_ms) = (of.class(), of.accepted_ms.unwrap_or(now_ms));
            let place = (since_ms, state.came);
            let left = Duration::from_millis(of.overdue_ms.saturating_sub(now_ms));
            let (sender, placed) = oneshot::channel();
            let waiter = WaitingCall {
                token: of.token,
                overdue: Instant::now().checked_add(left),
                overdue_ms: of.overdue_ms.max(since_ms),
                placed: sender,
            };
            state.waiting(is_costly).come(class, place, waiter);
            let ticket = LineTicket {
                line: self.clone(),
                is_costly,
                place: Some((class, place)),
            };
            (ticket, placed)
        };
        self.serve();
        let permit = placed.await;
        ticket.place = None;
        // Without a line there is nobody to wait for.
        permit.unwrap_or_else(|_| self.permit(is_costly))
    }

    /// Gives places to those that wait, as far as there are some.
    fn serve(&self) {
        while let Some((is_costly, waiter)) = {
            let mut state = self.0.lock();
            state.next()
        } {
            // One whose caller has just gone gives it back here.
            let _ = waiter.send(self.permit(is_costly));
        }
    }

    /// A place that is counted already.
    fn permit(&self, is_costly: bool) -> CallPermit {
        CallPermit {
            line: self.clone(),
            is_costly,
            sent: Instant::now(),
            pace: CallPace::Unknown,
        }
    }
}

/// A place in the line; given up when it is dropped.
struct LineTicket {
    line: CallLine,
    is_costly: bool,
    /// `None` once it has been served.
    place: Option<(CallClass, QueuePosition)>,
}

impl Drop for LineTicket {
    fn drop(&mut self) {
        if let Some((class, place)) = self.place {
            let mut state = self.line.0.lock();
            let left = state.waiting(self.is_costly).take(class, &place, false);
            drop(state);
            drop(left);
        }
    }
}

/// A call in progress, until it is dropped.
#[derive(Debug)]
pub(super) struct CallPermit {
    line: CallLine,
    is_costly: bool,
    sent: Instant,
    pace: CallPace,
}

impl CallPermit {
    /// What its end shows of the node, after this; `limit` is the time that it had. Costly calls take long for reasons of
    /// their own.
    pub(super) fn ended(&mut self, was_taken: bool, limit: Duration) {
        let is_late = self.sent.elapsed() > limit / 2;
        self.pace = match (was_taken, is_late) {
            (true, false) => CallPace::InTime,
            _ if self.is_costly => CallPace::Unknown,
            (true, true) => CallPace::Late,
            (false, _) => CallPace::TooMuch,
        };
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        {
            let mut state = self.line.0.lock();
            let (sent, at_work) = (self.sent, state.at_work);
            match self.pace {
                // Else the window is large enough.
                CallPace::InTime if state.is_full(self.is_costly) => state.window.grow(),
                CallPace::Late => state.window.shrink(sent, at_work, FEWEST_OF_SLOW),
                CallPace::TooMuch => state.window.shrink(sent, at_work, 1),
                CallPace::InTime | CallPace::Unknown => {}
            }
            state.end(self.is_costly);
        }
        self.line.serve();
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests;
