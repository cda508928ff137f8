//! How much this process takes on at once, and how much of it for one party.

use std::sync::Arc;

use covault_core::ids::VaultId;
use tokio::sync::Semaphore;

use crate::settings::Settings;
pub use crate::shares::{Party, Share, Shares, too_many};

/// Pages far behind the first that are looked for at once; others wait.
const MAX_FAR_PAGES: usize = 2;
/// Simulations that run at once; beyond it requests go without.
const SIMULATIONS: usize = 64;

/// A permit for each thing that may be taken on.
pub struct Limits {
    /// Live requests that are not signed yet.
    pub live: Arc<Shares<Party>>,
    /// Requests from before the start that are not signed, and have no actor yet. There may be any number of them.
    pub unstarted: Arc<Shares<Party>>,
    /// Inputs of requests that are not signed, beyond the one that each of those counts for. A transaction may have
    /// hundreds, and signers sign each.
    pub more_inputs: Arc<Shares<Party>>,
    /// Bytes of live requests.
    pub live_bytes: Arc<Shares<Party>>,
    /// Pages far behind the first.
    pub far_pages: Semaphore,
    /// Simulations of transactions.
    pub simulations: Arc<Semaphore>,
}

impl Limits {
    /// Those of the settings, with nothing taken on.
    pub fn new(settings: &Settings) -> Self {
        Self {
            live: Shares::new(settings.max_live_requests),
            unstarted: Shares::new(usize::MAX),
            more_inputs: Shares::new(usize::MAX),
            live_bytes: Shares::new(settings.max_live_bytes),
            far_pages: Semaphore::new(MAX_FAR_PAGES),
            simulations: Arc::new(Semaphore::new(SIMULATIONS)),
        }
    }

    /// Inputs of a vault's requests that are accepted and not signed; one for each request of which it is not known yet.
    pub fn unsigned(&self, vault: VaultId) -> usize {
        let vault = Party::Vault(vault);
        let requests = self.live.held(&vault);
        let requests = requests.saturating_add(self.unstarted.held(&vault));
        requests.saturating_add(self.more_inputs.held(&vault))
    }
}

/// As many permits as a semaphore can hold, and hand out at once.
pub fn permits(most: usize) -> usize {
    let at_once = usize::try_from(u32::MAX).unwrap_or(usize::MAX);
    most.min(Semaphore::MAX_PERMITS).min(at_once)
}
