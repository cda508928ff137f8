//! The line before one chain node: so many calls are in progress at once, and the others wait here, where they cost
//! nothing. Who waits leaves only when its caller does.
//!
//! Calls of the request that was accepted first go first. A request needs several calls one after the other: where each
//! call waited for its turn anew, a crowd would get all its first answers before anybody had its last one, and all of
//! its requests would be late together.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use covault_core::rate::count;
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

/// Calls in progress to begin with.
const FIRST_WINDOW: usize = 16;
/// A node that answers late, but answers, has so many calls nevertheless.
const FEWEST_OF_SLOW: usize = 4;
/// Costly calls get at most one place of so many.
const COSTLY_SHARE: usize = 4;

tokio::task_local! {
    /// When the request was accepted whose calls these are, in milliseconds since the Unix epoch.
    static SINCE: u64;
}

/// Has the calls of `work` go before those of all that was accepted, or came, later than `since_ms`, in milliseconds
/// since the Unix epoch.
pub async fn accepted_at<F: Future>(since_ms: u64, work: F) -> F::Output {
    SINCE.scope(since_ms, work).await
}

/// Whether the present call is one of [`accepted_at`].
pub(super) fn is_of_request() -> bool {
    SINCE.try_with(|_| ()).is_ok()
}

/// Since when the present call is wanted: since now, where it is of no request.
pub(super) fn wanted_since(now_ms: u64) -> u64 {
    SINCE.try_with(|since| *since).unwrap_or(now_ms)
}

/// What a call shows of how much a node can do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
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

/// A place in the line: since when the call is wanted, then the order of coming.
type LinePlace = (u64, u64);
type Waiting = BTreeMap<LinePlace, oneshot::Sender<CallPermit>>;

#[derive(Debug)]
struct LineState {
    window: CallWindow,
    at_work: usize,
    costly_at_work: usize,
    usual: Waiting,
    costly: Waiting,
    came: u64,
}

impl LineState {
    fn waiting(&mut self, is_costly: bool) -> &mut Waiting {
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
        let first = |waiting: &Waiting| waiting.first_key_value().map(|(place, _)| *place);
        let has_room = self.window.has_room_for_costly(self.costly_at_work);
        let costly = first(&self.costly).filter(|_| has_room);
        let is_costly = match (first(&self.usual), costly) {
            (None, None) => return None,
            (Some(usual), Some(costly)) => costly < usual,
            (usual, _) => usual.is_none(),
        };
        let (_, waiter) = self.waiting(is_costly).pop_first()?;
        self.begin(is_costly);
        Some((is_costly, waiter))
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
            usual: Waiting::new(),
            costly: Waiting::new(),
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

    /// Waits for a place; `since_ms` as [`wanted_since`] says it.
    pub(super) async fn enter(&self, since_ms: u64, is_costly: bool) -> CallPermit {
        let (mut ticket, placed) = {
            let mut state = self.0.lock();
            state.came = state.came.wrapping_add(1);
            let place = (since_ms, state.came);
            let (sender, placed) = oneshot::channel();
            state.waiting(is_costly).insert(place, sender);
            let ticket = Ticket {
                line: self.clone(),
                is_costly,
                place: Some(place),
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
            pace: Pace::Unknown,
        }
    }
}

/// A place in the line; given up when it is dropped.
struct Ticket {
    line: CallLine,
    is_costly: bool,
    /// `None` once it has been served.
    place: Option<LinePlace>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let left = self.line.0.lock().waiting(self.is_costly).remove(&place);
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
    pace: Pace,
}

impl CallPermit {
    /// What its end shows of the node, after this; `limit` is the time that it had. Costly calls take long for reasons of
    /// their own.
    pub(super) fn ended(&mut self, was_taken: bool, limit: Duration) {
        let is_late = self.sent.elapsed() > limit / 2;
        self.pace = match (was_taken, is_late) {
            (true, false) => Pace::InTime,
            _ if self.is_costly => Pace::Unknown,
            (true, true) => Pace::Late,
            (false, _) => Pace::TooMuch,
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
                Pace::InTime if state.is_full(self.is_costly) => state.window.grow(),
                Pace::Late => state.window.shrink(sent, at_work, FEWEST_OF_SLOW),
                Pace::TooMuch => state.window.shrink(sent, at_work, 1),
                Pace::InTime | Pace::Unknown => {}
            }
            state.end(self.is_costly);
        }
        self.line.serve();
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use futures::{FutureExt as _, future::join_all};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn size(line: &CallLine) -> usize {
        let state = line.0.lock();
        let room = |count: &usize| state.window.has_room(*count);
        (0..1_000).take_while(room).count()
    }

    /// A node that works on so many calls at once, and takes this long for each.
    async fn node_answers(
        line: &CallLine,
        places: &tokio::sync::Semaphore,
        takes: Duration,
    ) -> bool {
        let mut permit = line.enter(0, false).await;
        let answered = tokio::time::timeout(LIMIT, async {
            let _place = places.acquire().await.unwrap();
            tokio::time::sleep(takes).await;
        });
        let is_in_time = answered.await.is_ok();
        permit.ended(is_in_time, LIMIT);
        is_in_time
    }

    #[tokio::test(start_paused = true)]
    async fn line__should_serve_the_request_first_that_was_accepted_first() {
        let line = CallLine::new(1);
        let served = Mutex::new(Vec::new());
        let first = line.enter(0, false).await;
        let call = |since_ms: u64| {
            let (line, served) = (&line, &served);
            async move {
                let _permit = line.enter(since_ms, false).await;
                served.lock().push(since_ms);
            }
        };
        let end = async {
            tokio::time::sleep(LIMIT * 100).await;
            drop(first);
        };
        tokio::join!(join_all([7, 3, 9, 3, 1].map(call)), end);
        // Nobody has left, although it took long.
        assert_eq!(*served.lock(), [1, 3, 3, 7, 9]);
        assert_eq!(line.0.lock().at_work, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn line__should_forget_who_has_left() {
        let line = CallLine::new(1);
        let first = line.enter(0, false).await;
        let mut gone = Box::pin(line.enter(1, false));
        assert!((&mut gone).now_or_never().is_none());
        let mut served = Box::pin(line.enter(2, false));
        assert!((&mut served).now_or_never().is_none());
        drop(gone);
        drop(first);
        assert!((&mut served).now_or_never().is_some());
        // One that has its place, and has not heard of it.
        let first = line.enter(0, false).await;
        let mut told = Box::pin(line.enter(1, false));
        assert!((&mut told).now_or_never().is_none());
        drop(first);
        drop(told);
        assert_eq!(line.0.lock().at_work, 0);
        assert!(line.enter(3, false).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn crowd__should_be_more_the_longer_the_line_is() {
        let (one, other) = (CallLine::new(16), CallLine::new(16));
        let take = |line: &CallLine, count: usize| -> Vec<_> {
            (0..count)
                .map(|_| line.enter(0, false).now_or_never())
                .collect()
        };
        let _held = take(&one, 15);
        assert_eq!(one.crowd(false), 0);
        let _full = (take(&one, 1), take(&other, 16));
        assert_eq!((one.crowd(false), other.crowd(false)), (1_000, 1_000));
        let waits = one.enter(0, false);
        tokio::pin!(waits);
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(one.crowd(false) > other.crowd(false));
    }

    #[tokio::test(start_paused = true)]
    async fn costly_calls__should_get_a_quarter_of_the_places() {
        let line = CallLine::new(16);
        let costly = || line.enter(0, true).now_or_never();
        let held: Vec<_> = std::iter::from_fn(costly).collect();
        assert_eq!(held.len(), 4);
        let usual: Vec<_> = std::iter::from_fn(|| line.enter(9, false).now_or_never()).collect();
        assert_eq!(usual.len(), 12);
        drop((held, usual));
        // Of one place they get that.
        let line = CallLine::new(1);
        assert!(line.enter(0, true).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn costly_calls__should_say_nothing_against_a_node() {
        let line = CallLine::new(16);
        let held: Vec<_> = (0..4)
            .map(|_| line.enter(0, true).now_or_never().unwrap())
            .collect();
        let _usual: Vec<_> = (0..12)
            .map(|_| line.enter(0, false).now_or_never().unwrap())
            .collect();
        for mut permit in held {
            permit.ended(false, LIMIT);
        }
        assert_eq!(size(&line), 16);
    }

    #[tokio::test(start_paused = true)]
    async fn window__should_follow_what_the_node_answers_in_time() {
        let line = CallLine::new(128);
        // 400 a second.
        let fast = tokio::sync::Semaphore::new(40);
        let answers = (0..2_000).map(|_| node_answers(&line, &fast, Duration::from_millis(100)));
        assert!(join_all(answers).await.into_iter().all(|in_time| in_time));
        assert_eq!(size(&line), 128);
        // It becomes slow: two a second. What is in progress is late, and of what follows half as much each time.
        let slow = tokio::sync::Semaphore::new(2);
        let answers = (0..400).map(|_| node_answers(&line, &slow, Duration::from_secs(1)));
        let answers = join_all(answers).await;
        let late = answers.iter().filter(|in_time| !**in_time).count();
        assert!((100..256).contains(&late), "{late}");
        assert!((4..=10).contains(&size(&line)), "{}", size(&line));
        // And fast again.
        let answers = (0..20_000).map(|_| node_answers(&line, &fast, Duration::from_millis(100)));
        join_all(answers).await;
        assert!(size(&line) > 40, "{}", size(&line));
    }

    #[tokio::test(start_paused = true)]
    async fn window__should_not_change_where_nobody_waits() {
        let line = CallLine::new(128);
        for _ in 0..100 {
            for was_taken in [true, false] {
                line.enter(0, false).await.ended(was_taken, LIMIT);
            }
        }
        assert_eq!(size(&line), 16);
    }

    #[tokio::test]
    async fn calls__should_be_wanted_since_their_request_was_accepted() {
        assert_eq!(wanted_since(7), 7);
        assert_eq!(accepted_at(3, async { wanted_since(7) }).await, 3);
    }
}
