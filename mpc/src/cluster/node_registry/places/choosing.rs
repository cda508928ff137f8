//! Choosing a team for a request, and serving those that wait.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use covault_core::{order::NodeId, scheme::Scheme};
use tokio::{sync::oneshot, time::Instant};

use super::{
    ChosenSigners, MOST_CREDIT, PlacementResult, SignerWaiter, SigningAsk, SigningSet, at_once,
};
use crate::{
    cluster::{
        line::{LineKey, ServeResult, WaitingLines},
        load::{LineStanding, Overdraft, SignerLoad, slowness},
        node_registry::{NodeRegistry, State, lock},
        select_signers::{AttemptFailures, NoSigningSet, SignerCandidate, pick},
    },
    message::HaltReason,
    meter,
};

/// How suspect a node is that may not sign: more than any other.
const HALTED: u8 = 3;
/// One request in this many tries a slow node, which may be fast again.
const TRY_SLOW: u64 = 50;

impl NodeRegistry {
    /// Gives places to those that wait, as far as there are some: at these nodes for this scheme, or anywhere.
    pub(in crate::cluster) fn serve(self: &Arc<Self>, freed: Option<(Scheme, &[NodeId])>) {
        let mut placed: Vec<(oneshot::Sender<PlacementResult>, PlacementResult)> = Vec::new();
        {
            let mut state = lock(&self.state);
            let mut lines = std::mem::take(&mut state.places.lines);
            let concerns = |key: &LineKey| {
                freed.is_none_or(|(scheme, freed)| {
                    key.scheme == scheme && freed.iter().any(|node| key.holders.contains(node))
                })
            };
            let mut served = BTreeSet::new();
            lines.serve(self.clock.now_ms(), concerns, |lines, key, place| {
                if freed.is_some_and(|(scheme, freed)| state.places.are_full(scheme, freed)) {
                    state.places.were_full(key);
                    return ServeResult::NoneLeft;
                }
                let Some(waiter) = lines.get(key, place) else {
                    return ServeResult::Full;
                };
                let ask = waiter.ask.clone();
                let chosen = self.choose(&mut state, &ask, &waiter.failures, None);
                let outcome = match chosen {
                    Err(NoSigningSet::Full) => {
                        state.places.were_full(key);
                        // Only for this one, maybe, there are fewer signers.
                        return match waiter.failures.is_empty() {
                            true => ServeResult::Full,
                            false => ServeResult::PassedBy,
                        };
                    }
                    // It is told, and comes back.
                    Err(none) => Err(none),
                    Ok(chosen) => Ok(self.begin(&mut state, Some(&mut *lines), &ask, chosen)),
                };
                if let Some(waiter) = lines.leave(key, place) {
                    placed.push((waiter.placed, outcome));
                }
                served.insert(ask.key);
                ServeResult::Done
            });
            if !placed.is_empty() {
                meter::waiting(lines.len());
            }
            state.places.lines = lines;
            for key in &served {
                state.places.note_waiting(key);
            }
        }
        // Who waits no more gives its places back, which takes the lock again.
        for (waiter, outcome) in placed {
            let _ = waiter.send(outcome);
        }
    }

    /// A team: live nodes, those that are suspect last, then those that are slow, then those beyond their windows, the
    /// least busy first. `beside`: how far it may go beyond windows to stand beside an attempt that was sent then; of
    /// its signers one may have stopped, so those that have signed since go before the others that stand alike.
    pub(super) fn choose(
        &self,
        state: &mut State,
        ask: &SigningAsk,
        failures: &AttemptFailures,
        beside: Option<(Overdraft, Instant)>,
    ) -> Result<ChosenSigners, NoSigningSet> {
        #[cfg(test)]
        {
            state.places.choices += 1;
        }
        let (key, class, vault) = (&ask.key, ask.class, ask.party.0);
        let (now_ms, now) = (self.clock.now_ms(), Instant::now());
        let overdraft = beside.map_or(Overdraft::None, |(overdraft, _)| overdraft);
        state.mistrusted_pairs.retain(|_, until| now_ms < *until);
        for node in &key.holders {
            // Who has not announced itself is not asked, and may have any number of threads.
            if let Some(known) = state.known.get(node) {
                let threads = usize::from(known.threads);
                let load = state.places.loads.entry((*node, key.scheme));
                load.or_insert_with(|| SignerLoad::new(threads));
            }
        }
        // So that it has a number.
        let group = state.places.group(key);
        let of = Some(LineStanding {
            line: group.number,
            is_failing: group.is_failing,
        });
        let state = &*state;
        let places = &state.places;
        let load = |node: &NodeId| places.loads.get(&(*node, key.scheme));
        let group = places.groups.get(key);
        let tries_slow = group.is_some_and(|group| group.attempts % TRY_SLOW == TRY_SLOW - 1);
        let is_live = |node: &NodeId, halted: &[HaltReason]| {
            let known = state.known.get(node);
            known.is_some_and(|known| self.is_live(known) && !known.is_frozen(vault))
                && halted.iter().all(|halt| match halt {
                    HaltReason::Claims | HaltReason::ClientSigner => true,
                    HaltReason::Clock
                    | HaltReason::Twice
                    | HaltReason::Frozen
                    | HaltReason::Version
                    | HaltReason::ClockTooFar => false,
                })
        };
        // A client signer that is not named is not waited for either.
        let stands_aside = |node: &NodeId, halted: &[HaltReason]| {
            key.client_signer != Some(*node) && halted.contains(&HaltReason::ClientSigner)
        };
        let halted: Vec<Vec<HaltReason>> = key
            .holders
            .iter()
            .map(|node| self.halted(state, node))
            .collect();
        // Who is away is no measure for the others.
        let answers: Vec<Option<Duration>> = key
            .holders
            .iter()
            .zip(&halted)
            .map(|(node, halted)| {
                let load = load(node).filter(|_| !stands_aside(node, halted));
                load.filter(|_| is_live(node, halted))?.answer(class)
            })
            .collect();
        let count = key.holders.len().max(1);
        let slowness = slowness(&answers);
        let mistrusted_pairs: BTreeSet<(NodeId, NodeId)> =
            state.mistrusted_pairs.keys().copied().collect();
        let pick = |tries_slow: bool| {
            let holders = key.holders.iter().enumerate().zip(&halted).zip(&slowness);
            let holders = holders.filter(|(((_, node), halted), _)| !stands_aside(node, halted));
            let candidates = holders.map(|(((place, node), halted), slow)| {
                let suspect = state.suspect_until.get(node);
                let suspect = suspect.filter(|(until, _)| now_ms < *until);
                // Shares of other keys may be good: it is asked last.
                let level = match halted.contains(&HaltReason::Claims) {
                    true => HALTED,
                    false => suspect.map_or(0, |(_, level)| *level),
                };
                let slow = match tries_slow {
                    true => u8::from(*slow == 0),
                    false => *slow,
                };
                SignerCandidate {
                    node: *node,
                    required: key.client_signer == Some(*node),
                    live: is_live(node, halted),
                    free: load(node).is_some_and(|load| load.has_room(now, overdraft, of)),
                    avoided: load(node).is_some_and(|load| load.is_avoided(now)),
                    standing: (level, slow),
                    turn: (
                        beside.is_some_and(|(_, sent)| {
                            load(node).is_none_or(|load| !load.has_signed_since(sent))
                        }),
                        load(node).is_none_or(|load| !load.has_room(now, Overdraft::None, of))
                            && overdraft != Overdraft::None,
                        places.sessions.get(node).copied().unwrap_or(0),
                        // Equals take turns, the last one first.
                        place.wrapping_add(places.turn).wrapping_add(1) % count,
                    ),
                }
            });
            let candidates = candidates.collect();
            let signers = pick(candidates, key.needed, failures, &mistrusted_pairs)?;
            let slow = |(node, slow): (&NodeId, &u8)| *slow > 0 && signers.contains(node);
            Ok(ChosenSigners {
                tries_slow: tries_slow && key.holders.iter().zip(&slowness).any(slow),
                signers,
            })
        };
        match pick(tries_slow) {
            // Nobody waits for a try.
            Err(NoSigningSet::Full) if tries_slow => pick(false),
            picked => picked,
        }
    }

    /// Takes the places of the signers.
    pub(super) fn begin(
        self: &Arc<Self>,
        state: &mut State,
        lines: Option<&mut WaitingLines<SignerWaiter>>,
        ask: &SigningAsk,
        ChosenSigners {
            signers,
            tries_slow,
        }: ChosenSigners,
    ) -> SigningSet {
        let (key, work) = (&ask.key, ask.work);
        let places = &mut state.places;
        places.turn = places.turn.wrapping_add(1);
        places.attempts = places.attempts.wrapping_add(1);
        let attempt = places.attempts;
        let line = places.group(key).number;
        let (now, of) = (Instant::now(), (line, ask.class, work));
        let mut held = Vec::with_capacity(signers.len());
        for node in &signers {
            if let Some(load) = places.loads.get_mut(&(*node, key.scheme)) {
                held.push((*node, load.begin(now, attempt, of)));
            }
            let sessions = places.sessions.entry(*node).or_default();
            *sessions = sessions.saturating_add(1);
        }
        let group = places.group(key);
        group.attempts = group.attempts.wrapping_add(1);
        group.credit = group.credit.saturating_add(1).min(MOST_CREDIT);
        let lines = lines.unwrap_or(&mut places.lines);
        lines.begin(key, &ask.party, work);
        SigningSet {
            signers,
            tries_slow,
            is_free: false,
            at_once: at_once(lines, ask),
            registry: Arc::clone(self),
            key: key.clone(),
            work,
            held,
        }
    }
}
