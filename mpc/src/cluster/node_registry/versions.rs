//! Nodes whose version is too far from this program's: they are heard, and asked for nothing.

use covault_core::{
    order::NodeId,
    version::{self, this_version},
};

/// Whether a version and this program's are near enough.
pub(super) fn works_with_us(other: &str) -> bool {
    version::works_with(this_version(), other)
}

/// Says of a node that is new, or has another version than before, that it does not fit.
pub(super) fn tell(node: &NodeId, name: &str, version: &str) {
    if !works_with_us(version) {
        tracing::warn!(
            name,
            node = %node.openssh_line(""),
            version,
            this = this_version(),
            "a node's version is too far from this program's: it is asked for nothing. Upgrade the older one \
             (docs/upgrading.md)"
        );
    }
}
