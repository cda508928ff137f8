//! How much is sent to one receiver at a time: much to one that answers, one thing at a time to one that does not, and
//! slowly more again once it is back. Each has its own, so that a dead one costs the others nothing.

/// Most that is on its way to one receiver.
const MOST: usize = 16;
/// After so many failures in a row a receiver gets one thing at a time.
const FAILURES: u32 = 10;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryBudget {
    allowed: usize,
    on_the_way: usize,
    failures: u32,
}

impl Default for DeliveryBudget {
    fn default() -> Self {
        Self {
            allowed: MOST,
            on_the_way: 0,
            failures: 0,
        }
    }
}

impl DeliveryBudget {
    /// How much more may be sent now.
    pub fn free(&self) -> usize {
        self.allowed.saturating_sub(self.on_the_way)
    }

    /// How much is on its way.
    pub fn on_the_way(&self) -> usize {
        self.on_the_way
    }

    /// Something is sent.
    pub fn begin(&mut self) {
        self.on_the_way = self.on_the_way.saturating_add(1);
    }

    /// Something has come to its end; `None`: it was not sent after all.
    pub fn end(&mut self, success: Option<bool>) {
        self.on_the_way = self.on_the_way.saturating_sub(1);
        match success {
            Some(true) => {
                self.failures = 0;
                self.allowed = self.allowed.saturating_mul(2).min(MOST);
            }
            Some(false) => {
                self.failures = self.failures.saturating_add(1);
                if self.failures >= FAILURES {
                    self.allowed = 1;
                }
            }
            None => {}
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn budget__should_probe_a_dead_receiver_and_ramp_up_when_it_is_back() {
        let mut budget = DeliveryBudget::default();
        for _ in 0..MOST {
            budget.begin();
        }
        assert_eq!(budget.free(), 0);
        for failed in 1..=MOST {
            budget.end(Some(false));
            let expected = if failed < 10 {
                failed
            } else {
                usize::from(failed == MOST)
            };
            assert_eq!(budget.free(), expected, "{failed}");
        }
        let mut free = Vec::new();
        for _ in 0..6 {
            budget.begin();
            budget.end(Some(true));
            free.push(budget.free());
        }
        assert_eq!(free, [2, 4, 8, 16, 16, 16]);
        // What was not sent says nothing.
        budget.begin();
        budget.end(None);
        assert_eq!(budget, DeliveryBudget::default());
    }
}
