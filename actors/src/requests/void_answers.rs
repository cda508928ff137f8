//! Answers that a transaction can never be mined count only when nodes keep giving them: the nodes that
//! answer now may all be behind the one that has it.

use std::time::Duration;

use tokio::time::Instant;

/// So many of them, one after the other and each a part of that time after the one before, it takes at least.
const MIN_ANSWERS: u32 = 4;
/// After so long without one it begins again: what was said in between nobody here has heard.
const MOST_PAUSE: Duration = Duration::from_secs(600);

/// Answers that say, one after the other, that a transaction never comes.
#[derive(Clone, Copy)]
pub struct VoidAnswers {
    since: Instant,
    last: Instant,
    /// When the last one came that counts.
    counted: Instant,
    count: u32,
}

impl VoidAnswers {
    /// None yet.
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            since: now,
            last: now,
            counted: now,
            count: 0,
        }
    }

    /// One more. True when they count by now: they have said so for `settling_ms`, at several times. Those that come at
    /// once, as several requests ask, are one.
    pub fn add(&mut self, settling_ms: u64) -> bool {
        let settling = Duration::from_millis(settling_ms);
        self.last = Instant::now();
        if self.count == 0 || self.counted.elapsed() >= settling / MIN_ANSWERS {
            self.counted = self.last;
            self.count = self.count.saturating_add(1);
        }
        self.count >= MIN_ANSWERS && self.since.elapsed() >= settling
    }

    /// Nobody has said so for so long that it begins again.
    pub fn are_forgotten(&self) -> bool {
        self.last.elapsed() >= MOST_PAUSE
    }
}
