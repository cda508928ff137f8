//! What a node's own configuration says of the keys that it holds shares of.

use std::{collections::HashMap, time::Duration};

use covault_core::{fault::Fault, ids::VaultId};

/// How long a share is kept after a later generation has replaced it.
const KEEP_RETIRED: Duration = Duration::from_secs(30 * 24 * 3600);

/// How many shares a key may need, and have to spare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThresholdLimits {
    /// The lowest threshold. `None`: for an existing key, the present one.
    pub least_threshold: Option<u16>,
    /// The highest threshold. `None`: for an existing key, the present one.
    pub most_threshold: Option<u16>,
    /// How many more holders than the threshold there must be. `None`: for an existing key, as many as now.
    pub least_spare: Option<u16>,
}

impl ThresholdLimits {
    /// Checks a generation to be made. A floor above what a key has `now` (its threshold and number
    /// of holders) does not keep it from being refreshed.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming the setting.
    pub(super) fn check(
        self,
        threshold: u16,
        holders: usize,
        now: Option<(u16, usize)>,
    ) -> Result<(), Fault> {
        let spare_of = |threshold: u16, holders: usize| {
            let holders = u16::try_from(holders).unwrap_or(u16::MAX);
            holders.saturating_sub(threshold)
        };
        let floor = |setting: Option<u16>, present: Option<u16>| match (setting, present) {
            (setting, Some(present)) => setting.unwrap_or(present).min(present),
            (setting, None) => setting.unwrap_or_default(),
        };
        let present = now.map(|(threshold, _)| threshold);
        let least = floor(self.least_threshold, present);
        if threshold < least {
            let sentence = format_args!(
                "may not be {threshold} here: signer.least_threshold of this node keeps it at {least} or more"
            );
            return Err(Fault::field("threshold", sentence));
        }
        let most = match (self.most_threshold, present) {
            (setting, Some(present)) => setting.unwrap_or(present).max(present),
            (setting, None) => setting.unwrap_or(u16::MAX),
        };
        if threshold > most {
            let sentence = format_args!(
                "may not be {threshold} here: signer.most_threshold of this node keeps it at {most} or less"
            );
            return Err(Fault::field("threshold", sentence));
        }
        let spare = spare_of(threshold, holders);
        let least = floor(
            self.least_spare,
            now.map(|(threshold, holders)| spare_of(threshold, holders)),
        );
        if spare < least {
            let sentence = format_args!(
                "leaves {spare} holders to spare: signer.least_spare of this node asks for {least} or more, so that \
                 the key survives nodes that are lost or stop answering"
            );
            return Err(Fault::field("threshold", sentence));
        }
        Ok(())
    }
}

/// What a node lets an orchestrator make of keys.
#[derive(Clone, Debug)]
pub struct KeyRules {
    /// For all vaults.
    pub limits: ThresholdLimits,
    /// For some vaults. What is `None` there is as for all.
    pub vaults: HashMap<VaultId, ThresholdLimits>,
    /// Whether its operator has to permit other holders or another threshold of a key, change by
    /// change ([`crate::permits`]). `false` is for development and tests.
    pub permits: bool,
    /// How long it keeps shares that a later generation has replaced.
    pub keep_retired: Duration,
}

impl Default for KeyRules {
    fn default() -> Self {
        Self {
            limits: ThresholdLimits::default(),
            vaults: HashMap::new(),
            permits: true,
            keep_retired: KEEP_RETIRED,
        }
    }
}

/// The same, as the node looks at it.
pub(super) struct EffectiveKeyRules {
    limits: ThresholdLimits,
    vaults: HashMap<VaultId, ThresholdLimits>,
    pub(super) permits: bool,
    pub(super) keep_retired_ms: u64,
}

impl EffectiveKeyRules {
    pub(super) fn new(rules: KeyRules) -> Self {
        Self {
            limits: rules.limits,
            vaults: rules.vaults,
            permits: rules.permits,
            keep_retired_ms: u64::try_from(rules.keep_retired.as_millis()).unwrap_or(u64::MAX),
        }
    }

    pub(super) fn limits(&self, vault: VaultId) -> ThresholdLimits {
        let ThresholdLimits {
            least_threshold,
            most_threshold,
            least_spare,
        } = self.vaults.get(&vault).copied().unwrap_or_default();
        ThresholdLimits {
            least_threshold: least_threshold.or(self.limits.least_threshold),
            most_threshold: most_threshold.or(self.limits.most_threshold),
            least_spare: least_spare.or(self.limits.least_spare),
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn limits__should_keep_a_key_as_safe_as_it_is_unless_configured() {
        let check = |limits: ThresholdLimits, new: (u16, usize), now| {
            limits.check(new.0, new.1, now).is_ok()
        };
        let none = ThresholdLimits::default();
        let now = Some((2, 3));
        assert!(check(none, (2, 3), now) && check(none, (2, 5), now));
        // Fewer are enough; more are needed; none is left to spare.
        for (new, now) in [
            ((2, 5), Some((3, 5))),
            ((3, 5), now),
            ((2, 2), now),
            ((3, 3), now),
        ] {
            assert!(!check(none, new, now), "{new:?} {now:?}");
        }
        let set = ThresholdLimits {
            least_threshold: Some(2),
            most_threshold: Some(3),
            least_spare: Some(1),
        };
        assert!(check(set, (2, 3), Some((3, 5))) && check(set, (3, 4), now));
        assert!(!check(set, (2, 2), now) && !check(set, (4, 6), now));
        // What a key has already is no reason against a refresh of it.
        assert!(check(set, (4, 4), Some((4, 4))));
        // A new key has nothing to compare with.
        assert!(check(none, (2, 2), None));
        assert!(check(set, (2, 3), None) && !check(set, (2, 2), None) && !check(set, (4, 5), None));
        let three = ThresholdLimits {
            least_threshold: Some(3),
            ..none
        };
        assert!(!check(three, (2, 2), None) && check(three, (3, 3), None));
    }
}
