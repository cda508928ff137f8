//! How long requests wait for what a chain's nodes say, so that no more are accepted than they can answer.

use std::{sync::Arc, time::Duration};

use covault_core::{
    ids::TokenId,
    rate::{Rate, count},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::process::shares::{LimitedParty, RESERVED, Share, Shares};

/// With as many there is a crowd.
const CROWD: usize = 16;
/// As long as the nodes have answered nobody, no more may wait than this.
const MOST_UNMEASURED: usize = 1_024;
/// So many requests are believed to be answered at once while a crowd has only just come: nodes that were asked for
/// little until then have not shown how much they can do.
const AT_ONCE: usize = 16;
/// So many answers within a crowd say how fast the nodes are. The first ones say more about how long so many requests
/// took to come.
const MEASURES: usize = 8;

/// The requests of one chain that wait for what its nodes say.
pub struct ChainQueue {
    waiting: Arc<Shares<LimitedParty>>,
    progress: Mutex<QueueProgress>,
}

#[derive(Default)]
struct QueueProgress {
    rate: Rate,
    /// Since when a caller waits, and none has been answered.
    unanswered: Option<Instant>,
    /// When one was answered last.
    last: Option<Instant>,
    /// How many were answered in the present crowd.
    in_crowd: usize,
    /// One was answered outside of a crowd, or enough within one.
    measured: bool,
}

/// One request that waits, from when it is accepted until the nodes have said all that it needs, or it ends.
pub struct ChainWait {
    queue: Arc<ChainQueue>,
    since: Instant,
    /// `None` once it is over.
    place: Mutex<Option<Share<LimitedParty>>>,
}

impl Default for ChainQueue {
    fn default() -> Self {
        Self {
            waiting: Shares::new(usize::MAX),
            progress: Mutex::default(),
        }
    }
}

impl ChainQueue {
    /// A request is accepted, or begins to ask again.
    pub fn enter(self: &Arc<Self>, parties: &[LimitedParty]) -> ChainWait {
        let since = Instant::now();
        let place = self.waiting.retake(parties, 1);
        let mut progress = self.progress.lock();
        progress.unanswered.get_or_insert(since);
        self.note(&mut progress, since);
        drop(progress);
        ChainWait {
            queue: Arc::clone(self),
            since,
            place: Mutex::new(Some(place)),
        }
    }

    /// About how long a request of this token waits that comes now: until all are answered that wait, and once more
    /// what the token has waiting, so that who floods is refused before others, also of the same vault. The last
    /// sixteenth of the time is for tokens that have nothing waiting. No time where there is no crowd; `None`: nobody
    /// knows, and more wait than may.
    pub fn expected_wait(&self, token: TokenId) -> Option<Duration> {
        let all = self.waiting.taken();
        if all < CROWD {
            return Some(Duration::ZERO);
        }
        let own = self.waiting.held(&LimitedParty::Token(token));
        let ahead = all.saturating_add(own);
        let now = Instant::now();
        let progress = self.progress.lock();
        let known = progress.rate.time_for(ahead, AT_ONCE, now.into_std());
        let known = known.filter(|_| progress.measured);
        let wait = match (known, progress.unanswered) {
            (Some(wait), _) => wait,
            (None, _) if all >= MOST_UNMEASURED => return None,
            // Nothing was done in this time.
            (None, Some(since)) => scaled(now.saturating_duration_since(since), ahead, CROWD),
            (None, None) => Duration::ZERO,
        };
        Some(match own {
            0 => wait,
            _ => scaled(wait, RESERVED, RESERVED - 1),
        })
    }

    /// The number of those who wait has changed.
    fn note(&self, progress: &mut QueueProgress, now: Instant) {
        let waiting = self.waiting.taken();
        progress.rate.waits(waiting > CROWD, now.into_std());
        if waiting < CROWD {
            progress.in_crowd = 0;
        }
        if waiting == 0 {
            progress.unanswered = None;
        }
    }
}

/// So many times as long, divided by so much.
fn scaled(time: Duration, times: usize, by: usize) -> Duration {
    let seconds = time.as_secs_f64() * count(times) / count(by);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

impl ChainWait {
    /// The nodes have said all that it needs, or that it cannot be. What it waits for from now on is not the nodes.
    pub fn answered(&self) {
        self.end(true);
    }

    /// Whether it waits for the nodes no more.
    pub fn is_over(&self) -> bool {
        self.place.lock().is_none()
    }

    /// Whether the nodes have said all to some request lately: they are there, and come to this one.
    pub fn others_answered_within(&self, patience: Duration) -> bool {
        let last = self.queue.progress.lock().last;
        last.is_some_and(|last| last.elapsed() < patience)
    }

    fn end(&self, answered: bool) {
        let Some(place) = self.place.lock().take() else {
            return;
        };
        drop(place);
        let now = Instant::now();
        let mut progress = self.queue.progress.lock();
        if answered {
            // For how long nodes worked on one: what came before it was answered before.
            let since = progress
                .last
                .map_or(self.since, |last| last.max(self.since));
            let took = now.saturating_duration_since(since);
            let is_crowd = self.queue.waiting.taken() >= CROWD;
            progress.in_crowd = progress.in_crowd.saturating_add(1);
            if !is_crowd || progress.in_crowd > 1 {
                progress.rate.done(1, took, now.into_std());
            }
            (progress.last, progress.unanswered) = (Some(now), None);
            progress.measured |= !is_crowd || progress.in_crowd >= MEASURES;
        }
        self.queue.note(&mut progress, now);
    }
}

impl Drop for ChainWait {
    fn drop(&mut self) {
        self.end(false);
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::collections::VecDeque;

    use covault_core::ids::VaultId;

    use super::*;

    /// A token with a vault of its own.
    fn party(number: u8) -> [LimitedParty; 2] {
        [
            LimitedParty::Token(token(number)),
            LimitedParty::Vault(VaultId::from_bytes([number; 16])),
        ]
    }

    /// A crowd of the party, of which 20 are answered each second.
    async fn crowd(
        party: [LimitedParty; 2],
        size: usize,
    ) -> (Arc<ChainQueue>, VecDeque<ChainWait>) {
        let queue = Arc::new(ChainQueue::default());
        let mut waits: VecDeque<ChainWait> = (0..size).map(|_| queue.enter(&party)).collect();
        for _ in 0..500 {
            tokio::time::advance(Duration::from_millis(50)).await;
            waits.pop_front().unwrap().answered();
            waits.push_back(queue.enter(&party));
        }
        (queue, waits)
    }

    fn token(number: u8) -> TokenId {
        TokenId::from_bytes([number; 16])
    }

    fn seconds(queue: &ChainQueue, number: u8) -> f64 {
        queue.expected_wait(token(number)).unwrap().as_secs_f64()
    }

    #[tokio::test(start_paused = true)]
    async fn queue__should_say_how_long_the_next_one_waits() {
        let (queue, mut waits) = crowd(party(1), 1_000).await;
        let other = seconds(&queue, 2);
        assert!((42.0..52.0).contains(&other), "{other}");
        // What it has waiting counts twice, and the last sixteenth is not for it.
        let own = seconds(&queue, 1);
        assert!(
            (own / other - 2.0 * 16.0 / 15.0).abs() < 0.01,
            "{own} {other}"
        );
        // What ends without an answer is not done.
        waits.truncate(500);
        let half = seconds(&queue, 2);
        assert!((20.0..26.0).contains(&half), "{half}");
        waits.truncate(CROWD - 1);
        assert_eq!(seconds(&queue, 1), 0.0);
    }

    #[tokio::test(start_paused = true)]
    async fn queue__should_keep_some_time_for_parties_that_have_nothing_waiting() {
        let half = Duration::from_secs(30);
        let (queue, mut waits) = crowd(party(0), 200).await;
        // 600 would take all of the time.
        let mut refused = 0;
        for number in (1..=40).cycle().take(4_000) {
            match queue.expected_wait(token(number)).unwrap() > half {
                true => refused += 1,
                false => waits.push_back(queue.enter(&party(number))),
            }
        }
        assert!(refused > 3_000, "{refused}");
        for number in 41..=60 {
            assert!(
                queue.expected_wait(token(number)).unwrap() <= half,
                "{number}"
            );
            waits.push_back(queue.enter(&party(number)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn queue__should_be_careful_before_anything_was_answered() {
        let queue = Arc::new(ChainQueue::default());
        let enter = |_: usize| queue.enter(&party(1));
        let mut waits: Vec<ChainWait> = (0..8 * CROWD).map(enter).collect();
        assert_eq!(seconds(&queue, 2), 0.0);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!((7.0..9.0).contains(&seconds(&queue, 2)));
        waits.extend((8 * CROWD..MOST_UNMEASURED).map(enter));
        assert_eq!(queue.expected_wait(token(2)), None);
        // Another day, of which nobody has waited.
        waits.clear();
        tokio::time::advance(Duration::from_secs(100)).await;
        waits.extend((0..CROWD).map(enter));
        assert_eq!(seconds(&queue, 2), 0.0);
    }

    #[tokio::test(start_paused = true)]
    async fn queue__should_not_take_the_time_in_which_a_crowd_comes_for_that_of_the_nodes() {
        let queue = Arc::new(ChainQueue::default());
        let mut burst: VecDeque<ChainWait> = (0..200).map(|_| queue.enter(&party(1))).collect();
        // In this time the service wrote down that it has them.
        tokio::time::advance(Duration::from_secs(2)).await;
        burst.pop_front().unwrap().answered();
        assert_eq!(seconds(&queue, 1), 0.0);
        for _ in 0..MEASURES {
            tokio::time::advance(Duration::from_millis(10)).await;
            burst.pop_front().unwrap().answered();
        }
        let then = seconds(&queue, 1);
        assert!((10.0..45.0).contains(&then), "{then}");
    }

    #[tokio::test(start_paused = true)]
    async fn queue__should_not_believe_that_nodes_can_do_much_more_than_they_have_shown() {
        let queue = Arc::new(ChainQueue::default());
        // One at a time, as each came: 100 ms for each.
        for _ in 0..50 {
            let wait = queue.enter(&party(1));
            tokio::time::advance(Duration::from_millis(100)).await;
            wait.answered();
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let mut burst: VecDeque<ChainWait> = (0..1_000).map(|_| queue.enter(&party(1))).collect();
        let first = seconds(&queue, 2);
        assert!((6.0..7.0).contains(&first), "{first}");
        // They do 100 a second.
        for _ in 0..200 {
            tokio::time::advance(Duration::from_millis(10)).await;
            burst.pop_front().unwrap().answered();
        }
        let then = seconds(&queue, 2);
        assert!((7.0..9.0).contains(&then), "{then}");
    }

    #[tokio::test(start_paused = true)]
    async fn request__should_not_count_while_it_has_its_answers_and_waits_for_others() {
        let queue = Arc::new(ChainQueue::default());
        let (first, second) = (queue.enter(&party(1)), queue.enter(&party(2)));
        first.answered();
        assert_eq!(queue.waiting.taken(), 1);
        drop((first, second));
        assert_eq!(queue.waiting.taken(), 0);
    }
}
