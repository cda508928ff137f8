//! How many connections each address has: one of them alone must not take all places.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use crate::api::address::network;
use parking_lot::Mutex;

/// The connections that are open, by address.
pub struct ConnectionsPerAddress {
    max_per_address: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// A connection; dropped when it has ended.
pub struct PeerConnection {
    peers: Arc<ConnectionsPerAddress>,
    address: IpAddr,
}

impl ConnectionsPerAddress {
    /// At most this many connections for each address.
    pub fn new(max_per_address: usize) -> Arc<Self> {
        Arc::new(Self {
            max_per_address,
            open: Mutex::default(),
        })
    }

    /// Takes a place for a connection from an address, when it has not too many. IPv6 addresses of
    /// one /64 are one. This machine has as many as there are: a proxy may stand here.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Option<PeerConnection> {
        let address = network(address);
        let mut open = self.open.lock();
        let here = open.entry(address).or_default();
        // One that has none is not left behind here: 0 is below every limit.
        if *here >= self.max_per_address.max(1) && !is_this_machine(address) {
            return None;
        }
        *here += 1;
        Some(PeerConnection {
            peers: Arc::clone(self),
            address,
        })
    }
}

/// One in this many places of a listener is reserved for this machine, so that its operator gets through.
const KEPT_FOR_THIS_MACHINE: usize = 16;

/// Whether one of the `free` places of a listener, of `max_connections` in all, is there for an address.
pub fn has_room(address: IpAddr, free: usize, max_connections: usize) -> bool {
    let kept = if is_this_machine(network(address)) {
        0
    } else {
        max_connections / KEPT_FOR_THIS_MACHINE
    };
    free > kept
}

fn is_this_machine(network_of: IpAddr) -> bool {
    // ::1 is the only address of its /64 that anything comes from.
    network_of.is_loopback() || network_of == network(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST))
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        let open = &self.peers.open;
        let mut open = open.lock();
        if let Some(here) = open.get_mut(&self.address) {
            *here = here.saturating_sub(1);
            if *here == 0 {
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn connections__should_be_bounded_for_each_address() {
        let peers = ConnectionsPerAddress::new(2);
        for (one, same, other) in [
            ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
            ("2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"),
        ] {
            let first = peers.enter(address(one)).expect("a place");
            let _second = peers.enter(address(same)).expect("a place");
            assert!(peers.enter(address(one)).is_none(), "{one}");
            assert!(peers.enter(address(other)).is_some());
            drop(first);
            assert!(peers.enter(address(same)).is_some());
        }
    }

    #[test]
    fn connections__should_leave_nothing_behind() {
        let peers = ConnectionsPerAddress::new(0);
        let places: Vec<_> = (0..9_u8)
            .filter_map(|last| peers.enter(IpAddr::from([192, 0, 2, last])))
            .collect();
        assert_eq!(places.len(), 9);
        drop(places);
        assert!(peers.open.lock().is_empty());
    }

    #[test]
    fn some_places__should_be_kept_for_this_machine() {
        for (text, here) in [("127.0.0.1", true), ("::1", true), ("192.0.2.1", false)] {
            let address = address(text);
            assert!(has_room(address, 12, 192 - 1), "{text}");
            assert_eq!(has_room(address, 12, 192), here, "{text}");
            assert_eq!(has_room(address, 1, 192), here, "{text}");
            assert!(!has_room(address, 0, 192), "{text}");
            assert!(has_room(address, 1, 3), "{text}");
        }
    }

    #[test]
    fn this_machine__should_have_all_places() {
        let peers = ConnectionsPerAddress::new(1);
        for text in ["127.0.0.1", "127.8.0.1", "::1"] {
            let places: Vec<_> = (0..5).filter_map(|_| peers.enter(address(text))).collect();
            assert_eq!(places.len(), 5, "{text}");
        }
    }
}
