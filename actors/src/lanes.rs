//! Lanes: one queue per account of a chain, in which requests wait for their nonce.
//!
//! A request joins when it is accepted and gets its nonce in the order of joining, so that
//! nonces follow the order of creation although chain nodes are asked concurrently. What is
//! handed out is reserved here until it is on disk or given up. Lanes know no store: the
//! caller looks up which nonces are claimed.

use std::collections::{BTreeMap, HashMap, VecDeque};

use covault_core::{ids::RequestId, network::Network};

/// An account of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    /// The network.
    pub network: Network,
    /// The chain.
    pub chain_id: u64,
    /// The address in canonical form.
    pub address: String,
}

/// A request that wants its nonce now.
#[derive(Debug)]
pub struct Ask<P> {
    /// Who.
    pub request: RequestId,
    /// The nonce that the chain expects next.
    pub floor: u64,
    /// Where the answer goes.
    pub port: P,
}

struct Lane<P> {
    /// Those who have no nonce yet, in order.
    queue: VecDeque<RequestId>,
    asked: HashMap<RequestId, Ask<P>>,
    /// Handed out, not yet on disk.
    reserved: BTreeMap<u64, RequestId>,
}

impl<P> Default for Lane<P> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            asked: HashMap::new(),
            reserved: BTreeMap::new(),
        }
    }
}

/// All lanes of a vault.
pub struct Lanes<P> {
    lanes: HashMap<Account, Lane<P>>,
    member: HashMap<RequestId, Account>,
}

impl<P> Default for Lanes<P> {
    fn default() -> Self {
        Self {
            lanes: HashMap::new(),
            member: HashMap::new(),
        }
    }
}

impl<P> Lanes<P> {
    /// A request queues up for its nonce. Joining twice changes nothing.
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

    /// A request is ready for its nonce. `None` when it is in no lane; then the port is lost.
    pub fn ask(&mut self, ask: Ask<P>) -> Option<Account> {
        let account = self.member.get(&ask.request)?.clone();
        let lane = self.lanes.entry(account.clone()).or_default();
        if !lane.queue.contains(&ask.request) {
            // It had a nonce and never heard of it: first again, and that nonce is free.
            lane.reserved.retain(|_, other| *other != ask.request);
            lane.queue.push_front(ask.request);
        }
        lane.asked.insert(ask.request, ask);
        Some(account)
    }

    /// A request cannot ask now: it goes to the end of the queue when somebody behind it has
    /// asked already, and keeps its place otherwise (a node that is down holds up all alike).
    /// Returns the lane when it went.
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
            return None;
        }
        lane.queue.remove(place);
        lane.queue.push_back(request);
        Some(account.clone())
    }

    /// Takes the first of the lane's queue, when it has asked.
    pub fn next(&mut self, account: &Account) -> Option<Ask<P>> {
        let lane = self.lanes.get_mut(account)?;
        let first = lane.queue.front()?;
        let ask = lane.asked.remove(first)?;
        lane.queue.pop_front();
        Some(ask)
    }

    /// Whether a nonce is handed out and not yet on disk.
    pub fn is_reserved(&self, account: &Account, nonce: u64) -> bool {
        self.lanes
            .get(account)
            .is_some_and(|lane| lane.reserved.contains_key(&nonce))
    }

    /// Keeps a nonce for a request until it leaves.
    pub fn reserve(&mut self, account: &Account, nonce: u64, request: RequestId) {
        if let Some(lane) = self.lanes.get_mut(account) {
            lane.reserved.insert(nonce, request);
        }
    }

    /// The request's claim is on disk, or the request is over: it gives back what it holds
    /// here. Returns its lane, where the next may now be first.
    pub fn leave(&mut self, request: RequestId) -> Option<Account> {
        let account = self.member.remove(&request)?;
        let lane = self.lanes.get_mut(&account)?;
        lane.queue.retain(|other| *other != request);
        lane.asked.remove(&request);
        lane.reserved.retain(|_, other| *other != request);
        if lane.queue.is_empty() && lane.reserved.is_empty() {
            self.lanes.remove(&account);
        }
        Some(account)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn account() -> Account {
        Account {
            network: Network::Evm,
            chain_id: 1,
            address: "0xa".into(),
        }
    }

    fn request(id: u8) -> RequestId {
        RequestId::from_bytes([id; 16])
    }

    fn ask(id: u8) -> Ask<u8> {
        Ask {
            request: request(id),
            floor: 0,
            port: id,
        }
    }

    #[test]
    fn lanes__should_serve_in_the_order_of_joining() {
        let mut lanes = Lanes::default();
        for id in 1..=3 {
            lanes.join(account(), request(id));
        }
        lanes.ask(ask(2)).unwrap();
        assert!(lanes.next(&account()).is_none());
        lanes.ask(ask(1)).unwrap();
        assert_eq!(lanes.next(&account()).unwrap().port, 1);
        assert_eq!(lanes.next(&account()).unwrap().port, 2);
        assert!(lanes.next(&account()).is_none());
    }

    #[test]
    fn lanes__should_serve_again_whoever_never_heard_of_its_nonce() {
        let mut lanes = Lanes::default();
        lanes.join(account(), request(1));
        lanes.join(account(), request(2));
        lanes.ask(ask(1)).unwrap();
        lanes.next(&account()).unwrap();
        lanes.reserve(&account(), 7, request(1));
        lanes.ask(ask(1)).unwrap();
        assert!(!lanes.is_reserved(&account(), 7));
        assert_eq!(lanes.next(&account()).unwrap().port, 1);
    }

    #[test]
    fn lanes__should_let_the_next_go_when_the_first_leaves() {
        let mut lanes = Lanes::default();
        lanes.join(account(), request(1));
        lanes.join(account(), request(2));
        lanes.ask(ask(2)).unwrap();
        assert_eq!(lanes.leave(request(1)), Some(account()));
        assert_eq!(lanes.next(&account()).unwrap().port, 2);
    }

    #[test]
    fn lanes__should_let_those_go_first_who_can() {
        let mut lanes = Lanes::default();
        for id in 1..=3 {
            lanes.join(account(), request(id));
        }
        assert_eq!(lanes.step_back(request(1)), None, "nobody can");
        lanes.ask(ask(2)).unwrap();
        assert_eq!(lanes.step_back(request(3)), None, "nobody waits for it");
        assert_eq!(lanes.step_back(request(1)), Some(account()));
        assert_eq!(lanes.next(&account()).unwrap().port, 2);
        lanes.ask(ask(1)).unwrap();
        lanes.ask(ask(3)).unwrap();
        assert_eq!(lanes.next(&account()).unwrap().port, 3);
        assert_eq!(lanes.next(&account()).unwrap().port, 1);
    }

    #[test]
    fn lanes__should_keep_a_nonce_reserved_until_its_request_leaves() {
        let mut lanes = Lanes::<u8>::default();
        lanes.join(account(), request(1));
        lanes.reserve(&account(), 7, request(1));
        assert!(lanes.is_reserved(&account(), 7));
        lanes.leave(request(1));
        assert!(!lanes.is_reserved(&account(), 7));
        assert_eq!(lanes.leave(request(1)), None);
    }
}
