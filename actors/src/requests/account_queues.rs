//! One queue per account of a chain, in which requests wait for their turn.
//!
//! A request joins when it is accepted and gets its number, outputs or objects in the order of
//! joining, so that these follow the order of creation although chain nodes are asked
//! concurrently. What is handed out is reserved here until it is on disk or given up. Lanes know
//! no store: the caller looks up what is claimed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use covault_core::{ids::RequestId, networks::Resource};

use crate::requests::account::ChainAccount;

/// Requests in order: none is looked for among the others, of which there may be a hundred thousand.
#[derive(Default)]
struct Order {
    by_place: BTreeMap<i64, RequestId>,
    places: HashMap<RequestId, i64>,
}

impl Order {
    fn push_back(&mut self, request: RequestId) {
        let last = self.by_place.last_key_value();
        let place = last.map_or(0, |(place, _)| place.saturating_add(1));
        self.put(place, request);
    }

    fn push_front(&mut self, request: RequestId) {
        let first = self.by_place.first_key_value();
        let place = first.map_or(0, |(place, _)| place.saturating_sub(1));
        self.put(place, request);
    }

    fn put(&mut self, place: i64, request: RequestId) {
        self.by_place.insert(place, request);
        self.places.insert(request, place);
    }

    fn remove(&mut self, request: RequestId) -> Option<i64> {
        let place = self.places.remove(&request)?;
        self.by_place.remove(&place);
        Some(place)
    }

    fn place(&self, request: RequestId) -> Option<i64> {
        self.places.get(&request).copied()
    }

    fn first(&self) -> Option<RequestId> {
        self.by_place.values().next().copied()
    }

    /// Those before a place, the last one first.
    fn before(&self, place: i64) -> impl Iterator<Item = &RequestId> {
        self.by_place
            .range(..place)
            .rev()
            .map(|(_, request)| request)
    }

    fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }
}

struct AccountQueue<A> {
    /// Those whose turn has not come yet.
    waiting: Order,
    /// What those of them want who are ready.
    asked: HashMap<RequestId, A>,
    /// Where these are.
    asked_at: BTreeSet<i64>,
    /// Their turn came and there was nothing for them.
    deferred: HashSet<RequestId>,
    /// They could not ask while others behind them could.
    passed: HashSet<RequestId>,
    /// Handed out; of what is on disk too, no numbers.
    reserved: BTreeMap<Resource, RequestId>,
}

impl<A> Default for AccountQueue<A> {
    fn default() -> Self {
        Self {
            waiting: Order::default(),
            asked: HashMap::new(),
            asked_at: BTreeSet::new(),
            deferred: HashSet::new(),
            passed: HashSet::new(),
            reserved: BTreeMap::new(),
        }
    }
}

impl<A> AccountQueue<A> {
    /// A request is ready.
    fn ask(&mut self, request: RequestId, ask: A) {
        self.asked.insert(request, ask);
        self.asked_at.extend(self.waiting.place(request));
    }

    /// Takes out a request, and what it wants.
    fn take(&mut self, request: RequestId) -> Option<A> {
        if let Some(place) = self.waiting.remove(request) {
            self.asked_at.remove(&place);
        }
        self.asked.remove(&request)
    }
}

/// All account queues of a vault; `A` is what a request asks for in its turn.
pub struct AccountQueues<A> {
    queues: HashMap<ChainAccount, AccountQueue<A>>,
    member: HashMap<RequestId, ChainAccount>,
}

impl<A> Default for AccountQueues<A> {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            member: HashMap::new(),
        }
    }
}

impl<A> AccountQueues<A> {
    /// A request queues up. Joining twice changes nothing.
    pub fn join(&mut self, account: ChainAccount, request: RequestId) {
        if self.member.contains_key(&request) {
            return;
        }
        self.member.insert(request, account.clone());
        self.queues
            .entry(account)
            .or_default()
            .waiting
            .push_back(request);
    }

    /// A request is ready for its turn. `None` when it is in no lane; then the ask is lost.
    pub fn mark_ready(&mut self, request: RequestId, ask: A) -> Option<ChainAccount> {
        let account = self.member.get(&request)?.clone();
        let queue = self.queues.entry(account.clone()).or_default();
        queue.passed.remove(&request);
        if queue.deferred.remove(&request) {
            queue.waiting.push_back(request);
        } else if queue.waiting.place(request).is_none() {
            // It had its turn and never heard of it: first again, and what it got is free.
            queue.reserved.retain(|_, other| *other != request);
            queue.waiting.push_front(request);
        }
        queue.ask(request, ask);
        Some(account)
    }

    /// A request cannot ask now: it goes to the end of the queue when a request behind it had asked
    /// the last time already, and keeps its place otherwise. A node that is down holds up all alike,
    /// and what others are told while this one is being refused says nothing of this one: it tries
    /// once more. Returns the lane when it went.
    pub fn move_to_back(&mut self, request: RequestId) -> Option<ChainAccount> {
        let account = self.member.get(&request)?;
        let queue = self.queues.get_mut(account)?;
        let place = queue.waiting.place(request)?;
        let is_ready = queue.asked.contains_key(&request);
        if is_ready || queue.asked_at.range(place..).next().is_none() {
            queue.passed.remove(&request);
            return None;
        }
        if queue.passed.insert(request) {
            return None;
        }
        queue.passed.remove(&request);
        queue.waiting.remove(request);
        queue.waiting.push_back(request);
        Some(account.clone())
    }

    /// Whether a request that is ready has to wait for one of which this is true.
    pub fn is_behind(&self, request: RequestId, is: impl Fn(&RequestId) -> bool) -> bool {
        let account = self.member.get(&request);
        let Some(queue) = account.and_then(|account| self.queues.get(account)) else {
            return false;
        };
        let place = match queue.waiting.place(request) {
            Some(place) => place,
            None if queue.deferred.contains(&request) => i64::MAX,
            None => i64::MIN,
        };
        // Those at the front have had their actors for longest.
        queue.waiting.before(place).any(is)
    }

    /// Takes the first of the queue, when it has asked.
    pub fn next(&mut self, account: &ChainAccount) -> Option<(RequestId, A)> {
        let queue = self.queues.get_mut(account)?;
        let first = queue.waiting.first()?;
        if !queue.asked.contains_key(&first) {
            return None;
        }
        Some((first, queue.take(first)?))
    }

    /// There was nothing for a request whose turn came: others continue, and it queues up again when
    /// it asks again.
    pub fn defer(&mut self, account: &ChainAccount, request: RequestId) {
        if let Some(queue) = self.queues.get_mut(account) {
            queue.deferred.insert(request);
        }
    }

    /// What is handed out.
    pub fn reserved(&self, account: &ChainAccount) -> BTreeMap<Resource, RequestId> {
        self.queues
            .get(account)
            .map(|queue| queue.reserved.clone())
            .unwrap_or_default()
    }

    /// Whether a request has still to get its number, or has got this one and that is not on disk yet.
    pub fn may_take(&self, account: &ChainAccount, number: u64) -> bool {
        self.queues.get(account).is_some_and(|queue| {
            !queue.waiting.is_empty()
                || !queue.deferred.is_empty()
                || queue.reserved.contains_key(&Resource::Nonce(number))
        })
    }

    /// Keeps something for a request until it leaves.
    pub fn reserve(
        &mut self,
        account: &ChainAccount,
        reservations: Vec<Resource>,
        request: RequestId,
    ) {
        if let Some(queue) = self.queues.get_mut(account) {
            let reservations = reservations.into_iter().map(|resource| (resource, request));
            queue.reserved.extend(reservations);
        }
    }

    /// The request's claims are on disk: it needs no turn. Numbers are looked up there
    /// from now on, so that one that is given up is free at once. The rest stays here too until it
    /// leaves: it need not be looked up piece by piece. Returns its lane, where the next may now
    /// be first.
    pub fn claimed(&mut self, request: RequestId) -> Option<ChainAccount> {
        let account = self.member.get(&request)?.clone();
        let queue = self.queues.get_mut(&account)?;
        queue
            .reserved
            .retain(|resource, other| *other != request || !matches!(resource, Resource::Nonce(_)));
        if !queue.reserved.values().any(|other| *other == request) {
            return self.leave(request);
        }
        queue.take(request);
        Some(account)
    }

    /// Takes out a request that is to be ended, unless something is handed out to it: what comes after
    /// it in the lane may build on that. True when nothing is, from now on nothing will be either.
    pub fn withdraw(&mut self, request: RequestId) -> (bool, Option<ChainAccount>) {
        let account = self.member.get(&request);
        let queue = account.and_then(|account| self.queues.get(account));
        let holds =
            |queue: &AccountQueue<A>| queue.reserved.values().any(|other| *other == request);
        if queue.is_some_and(holds) {
            return (false, None);
        }
        (true, self.leave(request))
    }

    /// The request is over, or starts again: it gives back what it holds here. Returns its lane,
    /// where the next may now be first.
    pub fn leave(&mut self, request: RequestId) -> Option<ChainAccount> {
        let account = self.member.remove(&request)?;
        let queue = self.queues.get_mut(&account)?;
        queue.take(request);
        queue.deferred.remove(&request);
        queue.passed.remove(&request);
        queue.reserved.retain(|_, other| *other != request);
        if queue.waiting.is_empty() && queue.deferred.is_empty() && queue.reserved.is_empty() {
            self.queues.remove(&account);
        }
        Some(account)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::networks::Network;

    use super::*;

    fn account() -> ChainAccount {
        ChainAccount {
            network: Network::Evm,
            chain_id: Some(1),
            address: "0xa".into(),
        }
    }

    fn request(id: u8) -> RequestId {
        RequestId::from_bytes([id; 16])
    }

    /// Where each was looked for among all others, this took minutes.
    #[test]
    fn account_queues__should_not_look_for_a_request_among_all_others() {
        let mut queues = AccountQueues::default();
        let id = |number: u32| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&number.to_be_bytes());
            RequestId::from_bytes(id)
        };
        let all = 0..40_000;
        all.clone().for_each(|it| queues.join(account(), id(it)));
        for number in all.clone().rev() {
            assert_eq!(queues.move_to_back(id(number)), None, "at first");
            queues.mark_ready(id(number), number).unwrap();
        }
        for number in all.clone().take(20_000) {
            assert_eq!(queues.next(&account()).unwrap().1, number);
            queues.reserve(&account(), vec![Resource::Nonce(7)], id(number));
            queues.claimed(id(number));
        }
        all.skip(20_000).rev().for_each(|it| {
            queues.leave(id(it));
        });
        assert!(queues.queues.is_empty() && queues.member.is_empty());
    }

    #[test]
    fn account_queues__should_let_go_of_those_alone_who_hold_nothing() {
        let mut queues = AccountQueues::default();
        for id in 1..=2 {
            queues.join(account(), request(id));
            queues.mark_ready(request(id), ()).unwrap();
        }
        queues.next(&account()).unwrap();
        queues.reserve(&account(), vec![Resource::Nonce(7)], request(1));
        assert_eq!(queues.withdraw(request(1)), (false, None));
        assert_eq!(queues.withdraw(request(2)), (true, Some(account())));
        assert!(queues.next(&account()).is_none());
        // Nothing is handed out to it.
        assert!(queues.mark_ready(request(2), ()).is_none());
        assert_eq!(queues.withdraw(request(2)), (true, None));
    }

    #[test]
    fn account_queues__should_serve_in_the_order_of_joining() {
        let mut queues = AccountQueues::default();
        for id in 1..=3 {
            queues.join(account(), request(id));
        }
        queues.mark_ready(request(2), 2).unwrap();
        assert!(queues.next(&account()).is_none());
        queues.mark_ready(request(1), 1).unwrap();
        assert_eq!(queues.next(&account()).unwrap().1, 1);
        assert_eq!(queues.next(&account()).unwrap().1, 2);
        assert!(queues.next(&account()).is_none());
    }

    #[test]
    fn account_queues__should_serve_again_whoever_never_heard_of_its_nonce() {
        let mut queues = AccountQueues::default();
        queues.join(account(), request(1));
        queues.join(account(), request(2));
        queues.mark_ready(request(1), 1).unwrap();
        queues.next(&account()).unwrap();
        queues.reserve(&account(), vec![Resource::Nonce(7)], request(1));
        queues.mark_ready(request(1), 1).unwrap();
        assert!(queues.reserved(&account()).is_empty());
        assert_eq!(queues.next(&account()).unwrap().1, 1);
    }

    #[test]
    fn account_queues__should_let_the_next_go_when_the_first_leaves() {
        let mut queues = AccountQueues::default();
        queues.join(account(), request(1));
        queues.join(account(), request(2));
        queues.mark_ready(request(2), 2).unwrap();
        assert_eq!(queues.leave(request(1)), Some(account()));
        assert_eq!(queues.next(&account()).unwrap().1, 2);
    }

    #[test]
    fn account_queues__should_let_those_go_first_who_can() {
        let mut queues = AccountQueues::default();
        for id in 1..=3 {
            queues.join(account(), request(id));
        }
        assert_eq!(queues.move_to_back(request(1)), None, "nobody can");
        queues.mark_ready(request(2), 2).unwrap();
        for _ in 0..2 {
            assert_eq!(queues.move_to_back(request(3)), None, "nobody waits for it");
        }
        // Its try may have begun before the node answered the second.
        assert_eq!(queues.move_to_back(request(1)), None);
        assert!(queues.next(&account()).is_none());
        assert_eq!(queues.move_to_back(request(1)), Some(account()));
        assert_eq!(queues.next(&account()).unwrap().1, 2);
        queues.mark_ready(request(1), 1).unwrap();
        queues.mark_ready(request(3), 3).unwrap();
        assert_eq!(queues.next(&account()).unwrap().1, 3);
        assert_eq!(queues.next(&account()).unwrap().1, 1);
    }

    #[test]
    fn account_queues__should_keep_the_place_of_whoever_asks_after_all() {
        let mut queues = AccountQueues::default();
        for id in 1..=2 {
            queues.join(account(), request(id));
        }
        queues.mark_ready(request(2), 2).unwrap();
        assert_eq!(queues.move_to_back(request(1)), None);
        queues.mark_ready(request(1), 1).unwrap();
        assert_eq!(queues.next(&account()).unwrap().1, 1);
        assert_eq!(queues.next(&account()).unwrap().1, 2);
    }

    #[test]
    fn account_queues__should_keep_a_nonce_reserved_until_its_request_leaves() {
        let mut queues = AccountQueues::<u8>::default();
        queues.join(account(), request(1));
        queues.reserve(&account(), vec![Resource::Nonce(7)], request(1));
        assert!(
            queues
                .reserved(&account())
                .contains_key(&Resource::Nonce(7))
        );
        queues.leave(request(1));
        assert!(queues.reserved(&account()).is_empty());
        assert_eq!(queues.leave(request(1)), None);
    }

    #[test]
    fn account_queues__should_keep_outputs_but_no_numbers_of_whoever_has_claimed() {
        let mut queues = AccountQueues::<u8>::default();
        let (nonce, piece) = (Resource::Nonce(7), Resource::Object("a:0".into()));
        queues.join(account(), request(1));
        queues.reserve(&account(), vec![nonce, piece.clone()], request(1));
        assert_eq!(queues.claimed(request(1)), Some(account()));
        assert_eq!(queues.reserved(&account()), [(piece, request(1))].into());
        assert_eq!(queues.leave(request(1)), Some(account()));
        assert!(queues.reserved(&account()).is_empty());
        queues.join(account(), request(2));
        assert_eq!(queues.claimed(request(2)), Some(account()));
        assert_eq!(queues.leave(request(2)), None);
    }

    #[test]
    fn account_queues__should_let_others_go_on_when_there_is_nothing_for_one() {
        let mut queues = AccountQueues::default();
        for id in 1..=3 {
            queues.join(account(), request(id));
        }
        queues.mark_ready(request(1), 1).unwrap();
        assert_eq!(queues.next(&account()).unwrap().1, 1);
        queues.defer(&account(), request(1));
        queues.mark_ready(request(2), 2).unwrap();
        assert_eq!(queues.next(&account()).unwrap().1, 2);
        queues.mark_ready(request(1), 1).unwrap();
        assert!(queues.next(&account()).is_none(), "the third was before it");
        queues.mark_ready(request(3), 3).unwrap();
        assert_eq!(queues.next(&account()).unwrap().1, 3);
        assert_eq!(queues.next(&account()).unwrap().1, 1);
    }
}
