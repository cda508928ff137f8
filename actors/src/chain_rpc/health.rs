//! The health of a chain's nodes, as far as their answers show it.

use std::time::Duration;

use covault_core::backoff::Backoff;
use parking_lot::Mutex;

/// How long a node that fails is left alone while others answer.
const COOLDOWN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// After so many calls in a row without a word a node gets one call at a time, until it says something.
const MOST_SILENCE: u32 = 3;

/// How one node of a chain is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointHealth {
    /// The chain.
    pub chain: String,
    /// Which of its nodes, in the order of configuration, from 1. Its address may hold a key.
    pub node: usize,
    /// Failures since its last answer; 0: it is well.
    pub failures: u32,
    /// Answers since the start.
    pub answers: u64,
    /// Failures since the start: no answer in time, none that can be read, overload, another chain.
    pub errors: u64,
    /// Answers that money depends on and in which it stood against others.
    pub dissents: u64,
    /// Transactions that another node took and that were not passed on to it at once: it was too slow.
    pub left_out: u64,
}

/// What is known of one node.
#[derive(Debug, Default)]
pub struct NodeHealth(Mutex<HealthCounters>);

#[derive(Debug, Default)]
struct HealthCounters {
    failures: u32,
    cool_until_ms: u64,
    answers: u64,
    errors: u64,
    dissents: u64,
    left_out: u64,
    /// Calls in a row without a word.
    silence: u32,
    /// The one call that a silent node gets is in progress.
    tried: bool,
}

impl HealthCounters {
    fn is_silent(&self) -> bool {
        self.silence >= MOST_SILENCE
    }
}

/// A call in progress.
pub struct CallTurn<'a> {
    health: &'a NodeHealth,
    trial: bool,
}

impl CallTurn<'_> {
    /// Whether it is the one call that a silent node gets.
    pub fn is_trial(&self) -> bool {
        self.trial
    }
}

/// Also where nobody waits for its end.
impl Drop for CallTurn<'_> {
    fn drop(&mut self) {
        if self.trial {
            self.health.with(|known| known.tried = false);
        }
    }
}

impl NodeHealth {
    fn with<T>(&self, look: impl FnOnce(&mut HealthCounters) -> T) -> T {
        look(&mut self.0.lock())
    }

    /// It answered. Returns how often in a row it had not.
    pub fn answered(&self) -> u32 {
        self.with(|known| {
            known.answers += 1;
            known.silence = 0;
            known.cool_until_ms = 0;
            std::mem::take(&mut known.failures)
        })
    }

    /// It failed; `random` shortens the pause by up to a quarter, so that nodes that failed together
    /// are not all tried again together. `silent` is a failure without a word. Returns how often in a row it has.
    pub fn failed(&self, now_ms: u64, random: u8, silent: bool) -> u32 {
        self.with(|known| {
            known.errors += 1;
            known.silence = match silent {
                true => known.silence.saturating_add(1),
                false => 0,
            };
            known.failures = known.failures.saturating_add(1);
            let pause = COOLDOWN.jittered(known.failures - 1, random).as_millis();
            let pause_ms = u64::try_from(pause).unwrap_or(u64::MAX);
            known.cool_until_ms = now_ms.saturating_add(pause_ms);
            known.failures
        })
    }

    /// Whether it gets one call at a time.
    pub fn is_silent(&self) -> bool {
        self.with(|known| known.is_silent())
    }

    /// Whether it is silent and has the one call that it gets.
    pub fn is_tried(&self) -> bool {
        self.with(|known| known.is_silent() && known.tried)
    }

    /// A call begins; `None` where the node is silent and has the one that it gets.
    pub fn enter(&self) -> Option<CallTurn<'_>> {
        let trial = self.with(|known| match known.is_silent() {
            false => Some(false),
            true => (!std::mem::replace(&mut known.tried, true)).then_some(true),
        })?;
        Some(CallTurn {
            health: self,
            trial,
        })
    }

    /// It stood against the others.
    pub fn dissented(&self) {
        self.with(|known| known.dissents += 1);
    }

    /// A transaction was not passed on to it. Returns how often that was so.
    pub fn left_out(&self) -> u64 {
        self.with(|known| {
            known.left_out += 1;
            known.left_out
        })
    }

    /// When it may be asked again although others answer; 0: now.
    pub fn cool_until_ms(&self, now_ms: u64) -> u64 {
        self.with(|known| match known.cool_until_ms {
            until if until > now_ms => until,
            _ => 0,
        })
    }

    /// How it is doing, as this node (from 1) of a chain.
    pub fn view(&self, chain: &str, node: usize) -> EndpointHealth {
        self.with(|known| EndpointHealth {
            chain: chain.to_owned(),
            node,
            failures: known.failures,
            answers: known.answers,
            errors: known.errors,
            dissents: known.dissents,
            left_out: known.left_out,
        })
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_fails__should_be_left_alone_longer_each_time() {
        let health = NodeHealth::default();
        assert_eq!(health.cool_until_ms(5), 0);
        for (failures, pause) in [(1, 1_000), (2, 2_000), (3, 4_000)] {
            assert_eq!(health.failed(10, 0, false), failures);
            assert_eq!(health.cool_until_ms(10), 10 + pause);
            assert_eq!(health.cool_until_ms(10 + pause), 0);
        }
        for _ in 0..100 {
            health.failed(10, 255, false);
        }
        let most = u64::try_from(COOLDOWN.jittered(u32::MAX, 255).as_millis()).unwrap();
        assert_eq!(health.cool_until_ms(10), 10 + most);
        assert_eq!(health.answered(), 103);
        assert_eq!(health.cool_until_ms(10), 0);
        let view = health.view("Bitcoin", 2);
        assert_eq!((view.node, view.failures), (2, 0));
        assert_eq!((view.answers, view.errors), (1, 103));
    }

    #[test]
    fn a_silent_node__should_get_one_call_at_a_time() {
        let health = NodeHealth::default();
        for _ in 0..MOST_SILENCE {
            let (one, other) = (health.enter().unwrap(), health.enter().unwrap());
            assert!(!one.is_trial() && !other.is_trial());
            health.failed(10, 0, true);
        }
        let trial = health.enter().unwrap();
        assert!(trial.is_trial() && health.is_tried() && health.enter().is_none());
        drop(trial);
        assert!(!health.is_tried());
        let trial = health.enter().unwrap();
        // Any word will do.
        health.failed(10, 0, false);
        assert!(!health.enter().unwrap().is_trial());
        drop(trial);
        assert!(!health.enter().unwrap().is_trial());
    }
}
