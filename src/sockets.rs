//! How many sockets this process may open, and for whom: if clients or chain nodes take the last one, nobody
//! else can be answered.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kept for what needs few: the store, the bus, metrics, files.
const KEPT: usize = 256;
/// More than this all chain nodes together do not need: 64 nodes with as many calls as one of them is ever given.
pub const MOST_OF_CHAIN_NODES: usize = 64 * 128;

/// Whose sockets they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketShares {
    /// Connections of clients, on each of two listeners.
    pub per_listener: usize,
    /// Connections to all chain nodes.
    pub chain_nodes: usize,
}

impl SocketShares {
    /// Of as many files as this process may open (`ulimit -n`), after that was raised as far as it may be.
    pub fn of_this_process() -> Self {
        let limits = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: limits.maximum,
            maximum: limits.maximum,
        };
        let most = match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limits.maximum,
            Err(_) => limits.current,
        };
        Self::of(most.map_or(usize::MAX, |most| {
            usize::try_from(most).unwrap_or(usize::MAX)
        }))
    }

    fn of(most: usize) -> Self {
        // Where there is next to nothing, something is left for each of them.
        let left = most.saturating_sub(KEPT).max(most / 4);
        let chain_nodes = (left / 2).min(MOST_OF_CHAIN_NODES);
        Self {
            per_listener: (left.saturating_sub(chain_nodes) / 2).max(1),
            chain_nodes: chain_nodes.max(1),
        }
    }

    /// How many calls to each of this many chain nodes may be in progress at once.
    pub fn per_chain_node(&self, nodes: usize) -> usize {
        (self.chain_nodes / nodes.max(1)).max(1)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn shares__should_be_less_than_there_is_together() {
        for most in [16, 64, 256, 300, 1024, 65_536, usize::MAX] {
            let shares = SocketShares::of(most);
            let together = shares.per_listener.saturating_mul(2) + shares.chain_nodes;
            assert!(together <= most - KEPT.min(most / 2), "{most}");
            assert!(shares.per_listener > 0 && shares.per_chain_node(1_000_000) > 0);
        }
        let usual = SocketShares::of(1024);
        assert_eq!((usual.per_listener, usual.chain_nodes), (192, 384));
        assert_eq!(usual.per_chain_node(12), 32);
        // Beyond what chain nodes need, all of it is for clients: 5,000 that listen to events are no more than a listener has.
        let large = SocketShares::of(20_000);
        assert_eq!((large.per_listener, large.chain_nodes), (5_776, 8_192));
    }

    #[test]
    fn limit__should_be_raised_as_far_as_it_may_be() {
        let shares = SocketShares::of_this_process();
        let limits = getrlimit(Resource::Nofile);
        assert_eq!(limits.current, limits.maximum);
        assert_eq!(shares, SocketShares::of_this_process());
    }
}
