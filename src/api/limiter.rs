//! How fast callers may call: a rate for each, of as many as are remembered.

use std::{collections::HashMap, hash::Hash, num::NonZeroU32, sync::Arc, time::Duration};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock, Reference},
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{InMemoryState, NotKeyed, StateStore},
};
use parking_lot::Mutex;

/// How many addresses, and how many tokens, are remembered at most, evicted least recently seen first.
/// A key takes about 100 bytes.
const REMEMBERED: usize = 100_000;

/// How fast a client may call.
#[derive(Clone, Copy, Debug)]
pub struct CallRate {
    /// Calls per second for ever; 0: as fast as they can.
    pub per_second: u32,
    /// Calls at once, after a rest.
    pub burst: u32,
}

/// A clock that never goes back.
#[derive(Clone)]
pub struct MonotonicTicks(pub Arc<dyn Fn() -> Duration + Send + Sync>);

impl MonotonicTicks {
    /// The machine's.
    pub fn monotonic() -> Self {
        let clock = DefaultClock::default();
        let began = clock.now();
        Self(Arc::new(move || {
            let since: Nanos = Reference::duration_since(&clock.now(), began);
            since.into()
        }))
    }
}

impl Clock for MonotonicTicks {
    type Instant = Duration;

    fn now(&self) -> Duration {
        (self.0)()
    }
}

/// One rate for each key.
pub struct Limiter<K: Hash + Eq + Clone> {
    cells: RateLimiter<K, RecentCallers<K>, MonotonicTicks, NoOpMiddleware<Duration>>,
    ticks: MonotonicTicks,
}

impl<K: Hash + Eq + Clone> Limiter<K> {
    /// `None`: there is no limit.
    pub fn new(rate: CallRate, ticks: &MonotonicTicks) -> Option<Self> {
        let per_second = NonZeroU32::new(rate.per_second)?;
        let burst = NonZeroU32::new(rate.burst).unwrap_or(NonZeroU32::MIN);
        Some(Self::of(
            Quota::per_second(per_second).allow_burst(burst),
            ticks,
        ))
    }

    /// So many a minute, all of them at once if need be.
    pub fn per_minute(most: NonZeroU32, ticks: &MonotonicTicks) -> Self {
        Self::of(Quota::per_minute(most), ticks)
    }

    fn of(quota: Quota, ticks: &MonotonicTicks) -> Self {
        Self {
            cells: RateLimiter::new(quota, RecentCallers::new(REMEMBERED), ticks.clone()),
            ticks: ticks.clone(),
        }
    }

    /// One call more.
    ///
    /// # Errors
    /// How long to wait for it.
    pub fn check(&self, key: &K) -> Result<(), Duration> {
        self.cells
            .check_key(key)
            .map_err(|until| until.wait_time_from(self.ticks.now()))
    }
}

/// The states of the keys seen last, in two generations: when the young one is full, the old one
/// is forgotten and the young one becomes old. Anyone who calls again is young again; so a spray of
/// addresses cannot make clients that keep calling forgotten, nor the memory grow.
struct RecentCallers<K> {
    generations: Mutex<Generations<K>>,
    /// Keys in one generation.
    most: usize,
}

struct Generations<K> {
    young: HashMap<K, InMemoryState>,
    old: HashMap<K, InMemoryState>,
}

impl<K> RecentCallers<K> {
    fn new(remembered: usize) -> Self {
        Self {
            generations: Mutex::new(Generations {
                young: HashMap::new(),
                old: HashMap::new(),
            }),
            most: (remembered / 2).max(1),
        }
    }
}

impl<K: Hash + Eq + Clone> StateStore for RecentCallers<K> {
    type Key = K;

    fn measure_and_replace<T, F, E>(&self, key: &K, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut guard = self.generations.lock();
        let generations = &mut *guard;
        if !generations.young.contains_key(key) {
            let state = generations.old.remove(key).unwrap_or_default();
            if generations.young.len() >= self.most {
                generations.old = std::mem::take(&mut generations.young);
            }
            generations.young.insert(key.clone(), state);
        }
        generations
            .young
            .entry(key.clone())
            .or_default()
            .measure_and_replace(&NotKeyed::NonKey, f)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn memory__should_stay_bounded_and_keep_who_keeps_calling() {
        let recent = RecentCallers::<u32>::new(100);
        let touch = |key| recent.measure_and_replace(&key, |state| Ok::<_, ()>((state, 7.into())));
        assert_eq!(touch(0), Ok(None));
        for stranger in 1..10_000 {
            assert_eq!(touch(stranger), Ok(None));
            if stranger % 40 == 0 {
                assert_eq!(touch(0), Ok(Some(7.into())), "forgotten at {stranger}");
            }
            let generations = recent.generations.lock();
            assert!(generations.young.len() + generations.old.len() <= 100);
        }
        assert_eq!(touch(1), Ok(None), "long ago");
    }
}
