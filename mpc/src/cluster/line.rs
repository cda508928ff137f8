//! Which requests wait for signers, and which is next. Pure.
//!
//! Requests of one key's holders and scheme stand in one line: they wait for places among the same
//! signers. In a line each token has its turns, however many vaults it has, and of a token each vault, however much
//! another one has waiting: the next is of the one that got the least while it waited ([`FairTurns`]). Of one vault and
//! token, who was accepted first comes first. Who waited for a third of its time goes before all others, so that turns
//! of others cost nobody its end: of several, the one that has been overdue longest. Those that name a client signer may find no place where others find one: they are
//! passed by then, and counted apart. Lines have turns likewise, and do not wait for each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use covault_core::{
    ids::{TokenId, VaultId},
    order::NodeId,
    scheme::Scheme,
    turns::{FairTurns, RequestTurn},
};

/// Of one line's requests so many that found no place for reasons of their own are passed by, at most, before
/// the line waits.
const PASSED_BY: usize = 16;

/// Whom a request may be signed by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LineKey {
    pub scheme: Scheme,
    pub holders: Vec<NodeId>,
    pub needed: usize,
    /// Who takes part in each team, where the request names one.
    pub client_signer: Option<NodeId>,
}

impl LineKey {
    /// The line of all requests that these may sign, whatever client signer they name.
    fn line(&self) -> Self {
        Self {
            client_signer: None,
            ..self.clone()
        }
    }

    fn with(&self, client_signer: Option<NodeId>) -> Self {
        Self {
            client_signer,
            ..self.clone()
        }
    }
}

/// Whose request it is.
pub(super) type LineParty = (VaultId, TokenId);

/// Where a request stands: who was accepted first comes first, also when it comes late, or once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinePlace {
    accepted_ms: u64,
    arrival: u64,
    party: LineParty,
    /// From then on it goes before all others.
    overdue_ms: u64,
}

/// What a signer could do for the next of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServeResult {
    /// It waits no more.
    Done,
    /// There is no place for it now, for a reason of its own: others may find one.
    PassedBy,
    /// There is no place for anyone of its line now that names the same client signer, or none.
    Full,
    /// Nor for anyone else: what there was is given away.
    NoneLeft,
}

/// Inputs that wait and that signers work on, of those that name the same client signer, or none.
#[derive(Debug, Default)]
struct NamedWork {
    /// All that wait.
    places: BTreeSet<LinePlace>,
    /// The same, each with the time from which on it goes before all others.
    overdue: BTreeSet<(u64, LinePlace)>,
    /// Inputs of those, by token.
    work: usize,
    of_tokens: BTreeMap<TokenId, usize>,
    /// Inputs that signers work on.
    under_way: usize,
}

/// Who of a vault and token waits, naming the same client signer, or none.
#[derive(Debug)]
struct VaultQueue<T> {
    by_place: BTreeMap<LinePlace, (T, usize)>,
    /// Inputs of those.
    work: usize,
}

impl<T> VaultQueue<T> {
    /// Inputs of those before this place. Those behind it are counted instead where they are fewer: who has just come is
    /// near the end, and who comes back near the beginning.
    fn before(&self, place: LinePlace) -> usize {
        let mut earlier = self.by_place.range(..place);
        let mut later = self.by_place.range(place..);
        let (mut before, mut behind) = (0_usize, 0_usize);
        loop {
            match (earlier.next(), later.next()) {
                (None, _) => return before,
                (_, None) => return self.work.saturating_sub(behind),
                (Some((_, (_, one))), Some((_, (_, other)))) => {
                    before = before.saturating_add(*one);
                    behind = behind.saturating_add(*other);
                }
            }
        }
    }
}

/// Those of a token that wait.
#[derive(Debug)]
struct TokenLine<T> {
    vaults: BTreeMap<VaultId, BTreeMap<Option<NodeId>, VaultQueue<T>>>,
    turns: FairTurns<VaultId>,
}

/// What waits, and what is under way, of one line.
#[derive(Debug)]
struct SigningLine<T> {
    tokens: BTreeMap<TokenId, TokenLine<T>>,
    turns: FairTurns<TokenId>,
    named: BTreeMap<Option<NodeId>, NamedWork>,
}

impl<T> Default for TokenLine<T> {
    fn default() -> Self {
        Self {
            vaults: BTreeMap::new(),
            turns: FairTurns::default(),
        }
    }
}

impl<T> Default for SigningLine<T> {
    fn default() -> Self {
        Self {
            tokens: BTreeMap::new(),
            turns: FairTurns::default(),
            named: BTreeMap::new(),
        }
    }
}

/// Who of a line finds no place now.
#[derive(Default)]
struct SkippedPlaces {
    places: BTreeSet<LinePlace>,
    /// All that name these.
    named: BTreeSet<Option<NodeId>>,
}

impl<T> SigningLine<T> {
    /// Who is next, but for these.
    fn next(&self, now_ms: u64, but: &SkippedPlaces) -> Option<(Option<NodeId>, LinePlace)> {
        let named = self.named.iter();
        let others = named.filter(|(named, _)| !but.named.contains(*named));
        // Not the oldest: that one may have got new time, and be overdue long after others.
        let overdue = others.filter_map(|(named, of)| {
            let mut first = of.overdue.iter();
            let (since_ms, place) = first.find(|(_, place)| !but.places.contains(place))?;
            (*since_ms <= now_ms).then_some((*since_ms, *place, *named))
        });
        if let Some((_, place, named)) = overdue.min() {
            return Some((named, place));
        }
        self.turns.order().iter().find_map(|(_, token)| {
            let of_token = self.tokens.get(token)?;
            of_token.turns.order().iter().find_map(|(_, vault)| {
                let waiting = of_token.vaults.get(vault)?.iter();
                let waiting = waiting.filter(|(named, _)| !but.named.contains(*named));
                let first = waiting.filter_map(|(named, waiting)| {
                    let mut places = waiting.by_place.keys();
                    let first = places.find(|place| !but.places.contains(place))?;
                    Some((*first, *named))
                });
                first.min().map(|(first, named)| (named, first))
            })
        })
    }
}

/// All lines.
#[derive(Debug)]
pub(super) struct WaitingLines<T> {
    /// By their keys without a client signer.
    lines: BTreeMap<LineKey, SigningLine<T>>,
    /// Of lines in which a request waits.
    turns: FairTurns<LineKey>,
    /// How many have come.
    arrivals: u64,
    /// How many wait.
    waiting: usize,
}

impl<T> Default for WaitingLines<T> {
    fn default() -> Self {
        Self {
            lines: BTreeMap::new(),
            turns: FairTurns::default(),
            arrivals: 0,
            waiting: 0,
        }
    }
}

impl<T> WaitingLines<T> {
    /// The place of a request that has come now; kept for all of its waiting.
    pub(super) fn come(&mut self, turn: RequestTurn, party: LineParty) -> LinePlace {
        self.arrivals = self.arrivals.saturating_add(1);
        let RequestTurn {
            accepted_ms,
            overdue_ms,
        } = turn;
        LinePlace {
            accepted_ms,
            arrival: self.arrivals,
            party,
            overdue_ms,
        }
    }

    fn named(&self, key: &LineKey) -> Option<&NamedWork> {
        self.lines.get(&key.line())?.named.get(&key.client_signer)
    }

    /// Waits at this place, to have so many inputs signed.
    pub(super) fn wait(&mut self, key: &LineKey, place: LinePlace, work: usize, who: T) {
        let (vault, token) = place.party;
        let line_key = key.line();
        self.turns.come(&line_key);
        self.waiting = self.waiting.saturating_add(1);
        let line = self.lines.entry(line_key).or_default();
        let named = line.named.entry(key.client_signer).or_default();
        named.work = named.work.saturating_add(work);
        named.places.insert(place);
        named.overdue.insert((place.overdue_ms, place));
        let of_token = named.of_tokens.entry(token).or_default();
        *of_token = of_token.saturating_add(work);
        line.turns.come(&token);
        let of_token = line.tokens.entry(token).or_default();
        of_token.turns.come(&vault);
        let of_vault = of_token.vaults.entry(vault).or_default();
        let waiting = of_vault
            .entry(key.client_signer)
            .or_insert_with(|| VaultQueue {
                by_place: BTreeMap::new(),
                work: 0,
            });
        waiting.work = waiting.work.saturating_add(work);
        waiting.by_place.insert(place, (who, work));
    }

    /// Waits no more, if it still does.
    pub(super) fn leave(&mut self, key: &LineKey, place: LinePlace) -> Option<T> {
        let (vault, token) = place.party;
        let line_key = key.line();
        let line = self.lines.get_mut(&line_key)?;
        let of_token = line.tokens.get_mut(&token)?;
        let of_vault = of_token.vaults.get_mut(&vault)?;
        let waiting = of_vault.get_mut(&key.client_signer)?;
        let (who, work) = waiting.by_place.remove(&place)?;
        self.waiting = self.waiting.saturating_sub(1);
        waiting.work = waiting.work.saturating_sub(work);
        if waiting.by_place.is_empty() {
            of_vault.remove(&key.client_signer);
        }
        if of_vault.is_empty() {
            of_token.vaults.remove(&vault);
            of_token.turns.leave(&vault);
        }
        if of_token.vaults.is_empty() {
            line.tokens.remove(&token);
            line.turns.leave(&token);
        }
        if let Some(named) = line.named.get_mut(&key.client_signer) {
            named.places.remove(&place);
            named.overdue.remove(&(place.overdue_ms, place));
            named.work = named.work.saturating_sub(work);
            let left = named.of_tokens.get(&token).copied().unwrap_or_default();
            match left.saturating_sub(work) {
                0 => named.of_tokens.remove(&token),
                left => named.of_tokens.insert(token, left),
            };
        }
        if line.tokens.is_empty() {
            self.turns.leave(&line_key);
        }
        self.tidy(key);
        Some(who)
    }

    /// Whether someone has to be served before who names the same client signer, or none.
    pub(super) fn is_behind(&self, key: &LineKey, place: LinePlace) -> bool {
        let first = self.named(key).and_then(|named| named.places.first());
        first.is_some_and(|first| *first < place)
    }

    /// Signers begin to work on so many inputs of the line, for this place.
    pub(super) fn begin(&mut self, key: &LineKey, (vault, token): &LineParty, work: usize) {
        let line_key = key.line();
        self.turns.get(&line_key, work);
        let line = self.lines.entry(line_key).or_default();
        line.turns.get(token, work);
        if let Some(of_token) = line.tokens.get_mut(token) {
            of_token.turns.get(vault, work);
        }
        let named = line.named.entry(key.client_signer).or_default();
        named.under_way = named.under_way.saturating_add(work);
    }

    /// They are done with them.
    pub(super) fn end(&mut self, key: &LineKey, work: usize) {
        let line = self.lines.get_mut(&key.line());
        if let Some(named) = line.and_then(|line| line.named.get_mut(&key.client_signer)) {
            named.under_way = named.under_way.saturating_sub(work);
        }
        self.tidy(key);
    }

    fn tidy(&mut self, key: &LineKey) {
        let line_key = key.line();
        let Some(line) = self.lines.get_mut(&line_key) else {
            return;
        };
        let is_over = |named: &NamedWork| named.places.is_empty() && named.under_way == 0;
        if line.named.get(&key.client_signer).is_some_and(is_over) {
            line.named.remove(&key.client_signer);
        }
        if line.named.is_empty() {
            self.lines.remove(&line_key);
        }
    }

    /// Whether a request waits there.
    pub(super) fn waits(&self, key: &LineKey) -> bool {
        let named = self.named(key);
        named.is_some_and(|named| !named.places.is_empty())
    }

    /// Inputs that signers of the line work on.
    pub(super) fn under_way(&self, key: &LineKey) -> usize {
        self.named(key).map_or(0, |named| named.under_way)
    }

    /// How many inputs wait in the line, and how many of those are the token's.
    pub(super) fn waiting(&self, key: &LineKey, token: &TokenId) -> (usize, usize) {
        let Some(named) = self.named(key) else {
            return (0, 0);
        };
        let own = named.of_tokens.get(token).copied().unwrap_or_default();
        (named.work, own)
    }

    /// How many inputs of a vault wait in lines of the same keys, for another client signer, or for none.
    pub(super) fn waiting_elsewhere(&self, key: &LineKey, vault: VaultId) -> usize {
        let Some(line) = self.lines.get(&key.line()) else {
            return 0;
        };
        let of_vault = line.tokens.values().filter_map(|of| of.vaults.get(&vault));
        let others = of_vault.flatten();
        let others = others.filter(|(named, _)| **named != key.client_signer);
        others.map(|(_, waiting)| waiting.work).sum()
    }

    /// About how many inputs are signed before those of this place: of its vault and token those that came before,
    /// and as much of each other vault of the token; then as much of each other token.
    pub(super) fn before(&self, key: &LineKey, place: LinePlace) -> usize {
        let Some(line) = self.lines.get(&key.line()) else {
            return 0;
        };
        let (vault, token) = place.party;
        let of_token = line.tokens.get(&token).into_iter();
        let of_token = of_token.flat_map(|of_token| &of_token.vaults);
        let waiting =
            of_token.filter_map(|(of, waiting)| Some((of, waiting.get(&key.client_signer)?)));
        let (own, beside): (Vec<_>, Vec<_>) = waiting.partition(|(of, _)| **of == vault);
        let own = own.into_iter().map(|(_, own)| own.before(place));
        let own: usize = own.sum();
        let turn = own.saturating_add(1);
        let beside: usize = beside
            .into_iter()
            .map(|(_, other)| other.work.min(turn))
            .sum();
        let own = own.saturating_add(beside);
        let turn = own.saturating_add(1);
        let others = line.named.get(&key.client_signer).into_iter();
        let others = others.flat_map(|named| &named.of_tokens);
        let others = others.filter(|(other, _)| **other != token);
        let others: usize = others.map(|(_, work)| (*work).min(turn)).sum();
        own.saturating_add(others)
    }

    /// How many wait, in all lines.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Serves anyone who waits in lines that `concerns`, each when it is next. Who finds no place keeps the
    /// rest of its own line waiting, and no other. Each line is come to once, and again after it was served: what a
    /// line got moves it back, and never to where others were.
    pub(super) fn serve(
        &mut self,
        now_ms: u64,
        concerns: impl Fn(&LineKey) -> bool,
        mut serve: impl FnMut(&mut Self, &LineKey, LinePlace) -> ServeResult,
    ) {
        let mut passed: BTreeMap<LineKey, SkippedPlaces> = BTreeMap::new();
        let none = SkippedPlaces::default();
        let mut from = Bound::Unbounded;
        loop {
            let mut lines = self.turns.order().range((from, Bound::Unbounded));
            let Some(turn) = lines.find(|(_, key)| concerns(key)).cloned() else {
                return;
            };
            let key = &turn.1;
            let line = self.lines.get(key);
            let next = line.and_then(|line| line.next(now_ms, passed.get(key).unwrap_or(&none)));
            let Some((named, place)) = next else {
                from = Bound::Excluded(turn);
                continue;
            };
            let served = serve(self, &key.with(named), place);
            match served {
                ServeResult::NoneLeft => return,
                ServeResult::Done => {}
                ServeResult::Full => {
                    let passed = passed.entry(key.clone()).or_default();
                    passed.named.insert(named);
                }
                ServeResult::PassedBy => {
                    let passed = passed.entry(key.clone()).or_default();
                    // The same one again: nothing would change.
                    if !passed.places.insert(place) || passed.places.len() >= PASSED_BY {
                        passed.named.insert(named);
                    }
                }
            }
            from = Bound::Included(turn);
        }
    }

    /// Who waits there.
    pub(super) fn get(&self, key: &LineKey, place: LinePlace) -> Option<&T> {
        let (vault, token) = place.party;
        let of_token = self.lines.get(&key.line())?.tokens.get(&token)?;
        let waiting = of_token.vaults.get(&vault)?.get(&key.client_signer)?;
        let (who, _) = waiting.by_place.get(&place)?;
        Some(who)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests;
