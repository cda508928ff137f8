//! Pauses between tries.

use std::time::Duration;

/// Pauses that double with every try, from a first one to a longest one.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Pauses from the first to the longest.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The pause after `tries` earlier ones, from 0.
    pub fn pause(&self, tries: u32) -> Duration {
        self.first
            .saturating_mul(1 << tries.min(20))
            .min(self.longest)
    }

    /// The pause that follows one: twice as long, from the first to the longest.
    pub fn after(&self, pause: Duration) -> Duration {
        pause.saturating_mul(2).max(self.first).min(self.longest)
    }

    /// As [`Backoff::pause`], less up to a quarter by a random byte, so that many that failed
    /// together do not come back together.
    pub fn jittered(&self, tries: u32, random: u8) -> Duration {
        let pause = self.pause(tries);
        pause - pause * u32::from(random) / 1024
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn backoff__should_double_up_to_the_longest_less_a_quarter_at_most() {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let pauses = [0, 1, 2, 3, 4, 1_000].map(|tries| backoff.pause(tries).as_millis());
        assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000]);
        let after = [0, 50, 100, 400, 800, 1_000, u64::MAX]
            .map(|pause_ms| backoff.after(Duration::from_millis(pause_ms)).as_millis());
        assert_eq!(after, [100, 100, 200, 800, 1_000, 1_000, 1_000]);
        assert_eq!(backoff.jittered(1, 0), backoff.pause(1));
        let least = backoff.jittered(1, u8::MAX);
        assert!(least > backoff.pause(1) * 3 / 4 && least < backoff.pause(1));
    }
}
