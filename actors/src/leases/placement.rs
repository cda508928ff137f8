//! Which orchestrator should own which vault: rendezvous hashing, so that each gets about the same number and
//! few move when one comes or goes.

use covault_core::ids::OrchestratorId;
use sha2::{Digest as _, Sha256};

use super::LeaseScope;

/// The one of `live` that is to have it; the same for all who see the same ones.
pub fn preferred(
    scope: LeaseScope,
    live: impl IntoIterator<Item = OrchestratorId>,
) -> Option<OrchestratorId> {
    let bytes = scope.bytes();
    live.into_iter().max_by_key(|id| {
        let mut hash = Sha256::new_with_prefix(id.as_bytes());
        hash.update(&bytes);
        let hash: [u8; 32] = hash.finalize().into();
        (hash, *id)
    })
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::ids::VaultId;

    use super::*;

    fn id(number: u8) -> OrchestratorId {
        OrchestratorId::from_bytes([number; 16])
    }

    fn vault(number: u16) -> LeaseScope {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        LeaseScope::Vault(VaultId::from_bytes(bytes))
    }

    #[test]
    fn best__should_spread_vaults_and_move_those_alone_whose_orchestrator_went() {
        let all: Vec<_> = (1..=4).map(id).collect();
        let mut counts = [0_usize; 5];
        for number in 0..1000 {
            let before = preferred(vault(number), all.iter().copied()).unwrap();
            counts[usize::from(before.as_bytes()[0])] += 1;
            let after = preferred(vault(number), all.iter().copied().take(3)).unwrap();
            assert!(after == before || before == id(4));
            let reversed = preferred(vault(number), all.iter().rev().copied()).unwrap();
            assert_eq!(reversed, before);
        }
        assert!(
            counts[1..].iter().all(|count| (180..320).contains(count)),
            "{counts:?}"
        );
        assert_eq!(preferred(vault(1), []), None);
    }
}
