//! Tests: how many signatures were verified, so that refusals can be shown to cost the same.

use std::cell::Cell;

use super::PasskeyPublicKey;

/// How many signatures of passkeys were verified.
#[derive(Default)]
pub struct VerifiedCounts {
    es256: Cell<usize>,
    ed25519: Cell<usize>,
}

thread_local! {
    /// On this thread.
    pub static VERIFIED: VerifiedCounts = VerifiedCounts::default();
}

impl VerifiedCounts {
    pub(super) fn count(&self, key: &PasskeyPublicKey) {
        let of_kind = match key {
            PasskeyPublicKey::Es256(_) => &self.es256,
            PasskeyPublicKey::Ed25519(_) => &self.ed25519,
        };
        of_kind.set(of_kind.get() + 1);
    }

    /// Of ES256 and of Ed25519 since the last call.
    pub fn take(&self) -> (usize, usize) {
        (self.es256.take(), self.ed25519.take())
    }
}
