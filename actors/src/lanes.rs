//! Lanes: one queue per account of a chain, in which requests wait for their turn.
//!
//! A request joins when it is accepted and gets its number, outputs or objects in the order of
//! joining, so that these follow the order of creation although chain nodes are asked
//! concurrently. What is handed out is reserved here until it is on disk or given up. Lanes know
//! no store: the caller looks up what is claimed.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use covault_core::{chain::Resource, ids::RequestId};

use crate::claims::Account;

struct Lane<A> {
    /// Those whose turn has not come yet, in order.
    queue: VecDeque<RequestId>,
    /// What those who are ready want.
    asked: HashMap<RequestId, A>,
    /// Their turn came and there was nothing for them.
    put_off: HashSet<RequestId>,
    /// They could not ask while others behind them could.
    passed: HashSet<RequestId>,
    /// Handed out; of what is on disk too, no numbers.
    reserved: BTreeMap<Resource, RequestId>,
}

impl<A> Default for Lane<A> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            asked: HashMap::new(),
            put_off: HashSet::new(),
            passed: HashSet::new(),
            reserved: BTreeMap::new(),
        }
    }
}

/// All lanes of a vault; `A` is what a request asks for in its turn.
pub struct Lanes<A> {
    lanes: HashMap<Account, Lane<A>>,
    member: HashMap<RequestId, Account>,
}

impl<A> Default for Lanes<A> {
    fn default() -> Self {
        Self {
            lanes: HashMap::new(),
            member: HashMap::new(),
        }
    }
}

impl<A> Lanes<A> {
    /// A request queues up. Joining twice changes nothing.
    pub fn join(&mut self, account: Account, request: RequestId) {
        if self.member.contains_key(&request) {
            return;
        }
        self.member.insert(request, account.clone());
        self.lanes
            .entry(account)
            .or_default()
            .queue
            .push_back(request);
    }

    /// A request is ready for its turn. `None` when it is in no lane; then the ask is lost.
    pub fn ask(&mut self, request: RequestId, ask: A) -> Option<Account> {
        let account = self.member.get(&request)?.clone();
        let lane = self.lanes.entry(account.clone()).or_default();
        lane.passed.remove(&request);
        if lane.put_off.remove(&request) {
            lane.queue.push_back(request);
        } else if !lane.queue.contains(&request) {
            // It had its turn and never heard of it: first again, and what it got is free.
            lane.reserved.retain(|_, other| *other != request);
            lane.queue.push_front(request);
        }
        lane.asked.insert(request, ask);
        Some(account)
    }

    /// A request cannot ask now: it goes to the end of the queue when somebody behind it had asked
    /// the last time already, and keeps its place otherwise. A node that is down holds up all alike,
    /// and what others are told while this one is being refused says nothing of this one: it tries
    /// once more. Returns the lane when it went.
    pub fn step_back(&mut self, request: RequestId) -> Option<Account> {
        let account = self.member.get(&request)?;
        let lane = self.lanes.get_mut(account)?;
        let place = lane.queue.iter().position(|other| *other == request)?;
        if lane.asked.contains_key(&request)
            || !lane
                .queue
                .iter()
                .skip(place)
                .any(|other| lane.asked.contains_key(other))
        {
            lane.passed.remove(&request);
            return None;
        }
        if lane.passed.insert(request) {
            return None;
        }
        lane.passed.remove(&request);
        lane.queue.remove(place);
        lane.queue.push_back(request);
        Some(account.clone())
    }

    /// Takes the first of the lane's queue, when it has asked.
    pub fn next(&mut self, account: &Account) -> Option<(RequestId, A)> {
        let lane = self.lanes.get_mut(account)?;
        let first = *lane.queue.front()?;
        let ask = lane.asked.remove(&first)?;
        lane.queue.pop_front();
        Some((first, ask))
    }

    /// There was nothing for a request whose turn came: others go on, and it queues up again when
    /// it asks again.
    pub fn put_off(&mut self, account: &Account, request: RequestId) {
        if let Some(lane) = self.lanes.get_mut(account) {
            lane.put_off.insert(request);
        }
    }

    /// What is handed out.
    pub fn reserved(&self, account: &Account) -> BTreeMap<Resource, RequestId> {
        self.lanes
            .get(account)
            .map(|lane| lane.reserved.clone())
            .unwrap_or_default()
    }

    /// Keeps something for a request until it leaves.
    pub fn reserve(&mut self, account: &Account, uses: Vec<Resource>, request: RequestId) {
        if let Some(lane) = self.lanes.get_mut(account) {
            let uses = uses.into_iter().map(|resource| (resource, request));
            lane.reserved.extend(uses);
        }
    }

    /// The request's claims are on disk: it needs no turn any more. Numbers are looked up there
    /// from now on, so that one that is given up is free at once. The rest stays here too until it
    /// leaves: it need not be looked up piece by piece. Returns its lane, where the next may now
    /// be first.
    pub fn claimed(&mut self, request: RequestId) -> Option<Account> {
        let account = self.member.get(&request)?.clone();
        let lane = self.lanes.get_mut(&account)?;
        lane.reserved
            .retain(|resource, other| *other != request || !matches!(resource, Resource::Nonce(_)));
        if !lane.reserved.values().any(|other| *other == request) {
            return self.leave(request);
        }
        lane.queue.retain(|other| *other != request);
        lane.asked.remove(&request);
        Some(account)
    }

    /// Takes out a request that is to be ended, unless something is handed out to it: what comes after
    /// it in the lane may build on that. True when nothing is, from now on nothing will be either.
    pub fn withdraw(&mut self, request: RequestId) -> (bool, Option<Account>) {
        let account = self.member.get(&request);
        let lane = account.and_then(|account| self.lanes.get(account));
        let holds = |lane: &Lane<A>| lane.reserved.values().any(|other| *other == request);
        if lane.is_some_and(holds) {
            return (false, None);
        }
        (true, self.leave(request))
    }

    /// The request is over, or starts again: it gives back what it holds here. Returns its lane,
    /// where the next may now be first.
    pub fn leave(&mut self, request: RequestId) -> Option<Account> {
        let account = self.member.remove(&request)?;
        let lane = self.lanes.get_mut(&account)?;
        lane.queue.retain(|other| *other != request);
        lane.asked.remove(&request);
        lane.put_off.remove(&request);
        lane.passed.remove(&request);
        lane.reserved.retain(|_, other| *other != request);
        if lane.queue.is_empty() && lane.put_off.is_empty() && lane.reserved.is_empty() {
            self.lanes.remove(&account);
        }
        Some(account)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::network::Network;

    use super::*;

    fn account() -> Account {
        Account {
            network: Network::Evm,
            chain_id: Some(1),
            address: "0xa".into(),
        }
    }

    fn request(id: u8) -> RequestId {
        RequestId::from_bytes([id; 16])
    }

    #[test]
    fn lanes__should_let_go_of_those_alone_who_hold_nothing() {
        let mut lanes = Lanes::default();
        for id in 1..=2 {
            lanes.join(account(), request(id));
            lanes.ask(request(id), ()).unwrap();
        }
        lanes.next(&account()).unwrap();
        lanes.reserve(&account(), vec![Resource::Nonce(7)], request(1));
        assert_eq!(lanes.withdraw(request(1)), (false, None));
        assert_eq!(lanes.withdraw(request(2)), (true, Some(account())));
        assert!(lanes.next(&account()).is_none());
        // Nothing is handed out to it any more.
        assert!(lanes.ask(request(2), ()).is_none());
        assert_eq!(lanes.withdraw(request(2)), (true, None));
    }

    #[test]
    fn lanes__should_serve_in_the_order_of_joining() {
        let mut lanes = Lanes::default();
        for id in 1..=3 {
            lanes.join(account(), request(id));
        }
        lanes.ask(request(2), 2).unwrap();
        assert!(lanes.next(&account()).is_none());
        lanes.ask(request(1), 1).unwrap();
        assert_eq!(lanes.next(&account()).unwrap().1, 1);
        assert_eq!(lanes.next(&account()).unwrap().1, 2);
        assert!(lanes.next(&account()).is_none());
    }

    #[test]
    fn lanes__should_serve_again_whoever_never_heard_of_its_nonce() {
        let mut lanes = Lanes::default();
        lanes.join(account(), request(1));
        lanes.join(account(), request(2));
        lanes.ask(request(1), 1).unwrap();
        lanes.next(&account()).unwrap();
        lanes.reserve(&account(), vec![Resource::Nonce(7)], request(1));
        lanes.ask(request(1), 1).unwrap();
        assert!(lanes.reserved(&account()).is_empty());
        assert_eq!(lanes.next(&account()).unwrap().1, 1);
    }

    #[test]
    fn lanes__should_let_the_next_go_when_the_first_leaves() {
        let mut lanes = Lanes::default();
        lanes.join(account(), request(1));
        lanes.join(account(), request(2));
        lanes.ask(request(2), 2).unwrap();
        assert_eq!(lanes.leave(request(1)), Some(account()));
        assert_eq!(lanes.next(&account()).unwrap().1, 2);
    }

    #[test]
    fn lanes__should_let_those_go_first_who_can() {
        let mut lanes = Lanes::default();
        for id in 1..=3 {
            lanes.join(account(), request(id));
        }
        assert_eq!(lanes.step_back(request(1)), None, "nobody can");
        lanes.ask(request(2), 2).unwrap();
        for _ in 0..2 {
            assert_eq!(lanes.step_back(request(3)), None, "nobody waits for it");
        }
        // Its try may have begun before the node answered the second.
        assert_eq!(lanes.step_back(request(1)), None);
        assert!(lanes.next(&account()).is_none());
        assert_eq!(lanes.step_back(request(1)), Some(account()));
        assert_eq!(lanes.next(&account()).unwrap().1, 2);
        lanes.ask(request(1), 1).unwrap();
        lanes.ask(request(3), 3).unwrap();
        assert_eq!(lanes.next(&account()).unwrap().1, 3);
        assert_eq!(lanes.next(&account()).unwrap().1, 1);
    }

    #[test]
    fn lanes__should_keep_the_place_of_whoever_asks_after_all() {
        let mut lanes = Lanes::default();
        for id in 1..=2 {
            lanes.join(account(), request(id));
        }
        lanes.ask(request(2), 2).unwrap();
        assert_eq!(lanes.step_back(request(1)), None);
        lanes.ask(request(1), 1).unwrap();
        assert_eq!(lanes.next(&account()).unwrap().1, 1);
        assert_eq!(lanes.next(&account()).unwrap().1, 2);
    }

    #[test]
    fn lanes__should_keep_a_nonce_reserved_until_its_request_leaves() {
        let mut lanes = Lanes::<u8>::default();
        lanes.join(account(), request(1));
        lanes.reserve(&account(), vec![Resource::Nonce(7)], request(1));
        assert!(lanes.reserved(&account()).contains_key(&Resource::Nonce(7)));
        lanes.leave(request(1));
        assert!(lanes.reserved(&account()).is_empty());
        assert_eq!(lanes.leave(request(1)), None);
    }

    #[test]
    fn lanes__should_keep_outputs_but_no_numbers_of_whoever_has_claimed() {
        let mut lanes = Lanes::<u8>::default();
        let (nonce, piece) = (Resource::Nonce(7), Resource::Piece("a:0".into()));
        lanes.join(account(), request(1));
        lanes.reserve(&account(), vec![nonce, piece.clone()], request(1));
        assert_eq!(lanes.claimed(request(1)), Some(account()));
        assert_eq!(lanes.reserved(&account()), [(piece, request(1))].into());
        assert_eq!(lanes.leave(request(1)), Some(account()));
        assert!(lanes.reserved(&account()).is_empty());
        lanes.join(account(), request(2));
        assert_eq!(lanes.claimed(request(2)), Some(account()));
        assert_eq!(lanes.leave(request(2)), None);
    }

    #[test]
    fn lanes__should_let_others_go_on_when_there_is_nothing_for_one() {
        let mut lanes = Lanes::default();
        for id in 1..=3 {
            lanes.join(account(), request(id));
        }
        lanes.ask(request(1), 1).unwrap();
        assert_eq!(lanes.next(&account()).unwrap().1, 1);
        lanes.put_off(&account(), request(1));
        lanes.ask(request(2), 2).unwrap();
        assert_eq!(lanes.next(&account()).unwrap().1, 2);
        lanes.ask(request(1), 1).unwrap();
        assert!(lanes.next(&account()).is_none(), "the third was before it");
        lanes.ask(request(3), 3).unwrap();
        assert_eq!(lanes.next(&account()).unwrap().1, 3);
        assert_eq!(lanes.next(&account()).unwrap().1, 1);
    }
}
