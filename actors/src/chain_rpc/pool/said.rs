//! What nodes have said, where the question is asked by code that is made once for all of them.

use parking_lot::Mutex;

use crate::chain_rpc::exchange::ParsedResponse;

/// What each node has said last, by its number.
pub(super) struct Said<T>(Vec<Mutex<Option<T>>>);

impl<T> Said<T> {
    /// Nothing yet, of so many nodes.
    pub(super) fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| Mutex::new(None)).collect())
    }

    /// Keeps what a node says.
    pub(super) fn keep(&self, node: usize, said: ParsedResponse<T>) -> ParsedResponse<()> {
        said.and_then(|value| {
            if let Some(place) = self.0.get(node) {
                *place.lock() = Some(value);
            }
            ParsedResponse::Value(())
        })
    }

    /// What a node has said.
    pub(super) fn take(&self, node: usize) -> Option<T> {
        self.0.get(node)?.lock().take()
    }

    /// Looks at what a node has said.
    pub(super) fn with<R>(&self, node: usize, look: impl FnOnce(&T) -> Option<R>) -> Option<R> {
        self.0.get(node)?.lock().as_ref().and_then(look)
    }

    /// Whether two of them agree, which one does not with itself where its answer is of no use.
    pub(super) fn agree(&self, one: usize, other: usize, same: impl Fn(&T, &T) -> bool) -> bool {
        let agreed = self.with(one, |said| match one == other {
            true => Some(same(said, said)),
            false => self.with(other, |other| Some(same(said, other))),
        });
        agreed.unwrap_or(false)
    }
}
