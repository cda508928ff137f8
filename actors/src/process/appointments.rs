//! When refused callers may come again: one after the other, as far apart as there is room for them, instead
//! of all of them a second later, again and again. It reserves no place for anyone.

use std::{collections::HashMap, time::Duration};

use covault_core::{
    ids::{TokenId, VaultId},
    signature::Curve,
};
use parking_lot::Mutex;

/// The furthest that anyone is sent away: who floods does not come back, and others ought not to wait for that.
const FURTHEST_MS: u64 = 15_000;
/// From so many on, those that are over are forgotten.
const MANY: usize = 1_024;

/// Whose requests are signed one after the other.
type QueueOwner = (VaultId, Curve, TokenId);

/// The latest time that a refused caller was told to come back.
#[derive(Default)]
pub struct RetrySchedule {
    /// In microseconds of the steady clock.
    last: Mutex<HashMap<QueueOwner, u64>>,
}

impl RetrySchedule {
    /// How long to stay away: at least so long, and behind those that were sent away before.
    pub fn next(&self, who: QueueOwner, now_ms: u64, least: Duration, apart: Duration) -> Duration {
        let now = now_ms.saturating_mul(1_000);
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let mut last = self.last.lock();
        if last.len() >= MANY {
            last.retain(|_, at| *at > now);
        }
        let at = last.entry(who).or_default();
        let first = now.saturating_add(micros(least));
        let furthest = now.saturating_add(FURTHEST_MS * 1_000).max(first);
        *at = first.max(at.saturating_add(micros(apart))).min(furthest);
        Duration::from_micros(*at - now)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    const APART: Duration = Duration::from_millis(10);

    fn who(token: u128) -> QueueOwner {
        let vault = VaultId::from_bytes([1; 16]);
        (
            vault,
            Curve::Ed25519,
            TokenId::from_bytes(token.to_be_bytes()),
        )
    }

    #[test]
    fn who_is_refused__should_come_again_when_those_before_have_had_room() {
        let appointments = RetrySchedule::default();
        let mut away = (0..1_000).map(|_| appointments.next(who(1), 0, APART, APART));
        assert_eq!(away.next(), Some(APART));
        assert_eq!(away.nth(98), Some(100 * APART));
        assert_eq!(away.last(), Some(1_000 * APART));
        // Nobody else stands behind them.
        assert_eq!(appointments.next(who(2), 0, APART, APART), APART);
        // They come, and are not counted twice.
        assert_eq!(appointments.next(who(1), 20_000, APART, APART), APART);
    }

    #[test]
    fn nobody__should_be_sent_away_for_longer_because_of_a_flood() {
        let appointments = RetrySchedule::default();
        let furthest = Duration::from_millis(FURTHEST_MS);
        for _ in 0..100_000 {
            assert!(appointments.next(who(1), 0, APART, APART) <= furthest);
        }
        assert_eq!(appointments.next(who(1), 0, APART, APART), furthest);
        // What is known to take longer is said as it is.
        assert_eq!(
            appointments.next(who(1), 0, 2 * furthest, APART),
            2 * furthest
        );
    }

    #[test]
    fn appointments__should_be_forgotten_when_they_are_over() {
        let appointments = RetrySchedule::default();
        for token in 0..5_000 {
            appointments.next(who(token), u64::try_from(token).unwrap(), APART, APART);
        }
        assert!(appointments.last.lock().len() <= MANY);
    }
}
