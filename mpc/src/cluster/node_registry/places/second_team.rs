//! Teams beside attempts that take long.

use std::{sync::Arc, time::Duration};

use covault_core::order::NodeId;
use tokio::time::Instant;

use super::{SECOND_TEAM, SignerPlaces, SigningAsk, SigningSet, at_once};
use crate::cluster::{
    load::Overdraft,
    node_registry::{NodeRegistry, lock},
    select_signers::AttemptFailures,
};

impl SignerPlaces {
    /// Whether one of a team seems to have stopped: it has signed nothing that was sent since then, and nothing at all for
    /// so long, and enough others have signed in half of the time what was sent later. Who still signs what came before is
    /// only behind: in a crowd all signers are, in turns.
    fn has_stopped(
        &self,
        ask: &SigningAsk,
        (team, sent): (&[NodeId], Instant),
        quiet: Duration,
    ) -> bool {
        let is_quiet = |node: &NodeId| {
            let load = self.loads.get(&(*node, ask.key.scheme));
            load.is_none_or(|load| load.is_quiet_for(quiet))
        };
        let signs_since = |node: &NodeId, since| {
            let load = self.loads.get(&(*node, ask.key.scheme));
            load.is_some_and(|load| load.has_signed_since(since))
        };
        let middle = sent + sent.elapsed() / 2;
        let others = ask.key.holders.iter();
        let others = others.filter(|node| signs_since(node, middle)).count();
        let stopped = |node: &NodeId| !signs_since(node, sent) && is_quiet(node);
        others >= ask.key.needed && team.iter().any(stopped)
    }
}

impl NodeRegistry {
    /// Another team, beside those that are at work, the last since `sent`: none of them, and only if not too
    /// many attempts have had one lately, or only signers of this one have signed since. It may go beyond the windows:
    /// by half where attempts that were sent later are done, which shows that only this one is stuck; else by one
    /// session, so that signers that all become slow do not get more to do.
    pub(in crate::cluster) fn second_team(
        self: &Arc<Self>,
        ask: &SigningAsk,
        at_work: &[&[NodeId]],
        sent: Instant,
        failures: &AttemptFailures,
    ) -> Option<SigningSet> {
        let mut failures = failures.clone();
        let sorted = |team: &[NodeId]| {
            let mut team = team.to_vec();
            team.sort_unstable();
            team
        };
        for team in at_work {
            failures.failed(team);
        }
        let mut state = lock(&self.state);
        let group = state.places.group(&ask.key);
        let credit = group.credit;
        let overdraft = match group.newest_done.is_some_and(|done| done > sent) {
            true => Overdraft::Half,
            false => Overdraft::One,
        };
        let beside = (overdraft, sent);
        let chosen = self.choose(&mut state, ask, &failures, Some(beside));
        let chosen = chosen.ok()?;
        let signers = sorted(&chosen.signers);
        if at_work.iter().any(|team| sorted(team) == signers) {
            return None;
        }
        let loads = &state.places.loads;
        let has_signed = |node: &NodeId| {
            let load = loads.get(&(*node, ask.key.scheme));
            load.is_some_and(|load| load.has_signed_since(sent))
        };
        // What makes all slow makes no such difference between signers.
        let is_free = signers.iter().all(has_signed)
            && at_work.iter().all(|team| !team.iter().all(has_signed));
        if !is_free && credit < SECOND_TEAM {
            return None;
        }
        let mut set = self.begin(&mut state, None, ask, chosen);
        set.is_free = is_free;
        // First attempts earn second teams; these earn none.
        state.places.group(&ask.key).credit = credit;
        Some(set)
    }

    /// A second team was sent its order: it is charged now, as one that could not be sent costs nothing.
    pub(in crate::cluster) fn second_team_sent(&self, ask: &SigningAsk) {
        let mut state = lock(&self.state);
        let group = state.places.group(&ask.key);
        group.credit = group.credit.saturating_sub(SECOND_TEAM);
    }

    /// When a second team begins beside this one, which has not answered, as it is now. `unmeasured`: what an attempt has
    /// that nothing is known of.
    pub(in crate::cluster) fn second_after(
        &self,
        ask: &SigningAsk,
        unmeasured: Duration,
        of_last: (&[NodeId], Instant),
    ) -> Duration {
        let mut state = lock(&self.state);
        let at_once = at_once(&state.places.lines, ask);
        let paces = &state.places.group(&ask.key).paces;
        let usual = paces.second_after(ask.class, unmeasured, at_once);
        let after_stop = paces.second_after_stop(ask.class, unmeasured);
        match state.places.has_stopped(ask, of_last, after_stop) {
            true => usual.min(after_stop),
            false => usual,
        }
    }
}
