//! Whether signers and chain nodes can keep up with one request more. What they would come to too late is refused before
//! it is accepted, or before the approval that lets it go on is: what is accepted waits on instead
//! (docs/decisions/0045-a-crowd-waits.md).

use std::{sync::Arc, time::Duration};

use covault_core::{
    fault::{Fault, FaultCode},
    ids::TokenId,
    networks::{Network, Payload},
    order::NodeId,
    wallet::vault::Vault,
};

use crate::{
    chain_rpc::{ChainQueue, ChainWait},
    limits::Party,
    services::Services,
};

/// The longest that a client is asked to stay away, in seconds: rates change.
const MOST_RETRY_AFTER: u32 = 60;

/// A request that is to go on now.
pub struct Demand<'a> {
    /// Its vault.
    pub vault: &'a Vault,
    /// Who asked for it.
    pub token: TokenId,
    /// The client signer that takes part, where it names one.
    pub client_signer: Option<NodeId>,
    /// The network of its wallet.
    pub network: Network,
    /// What is to be signed.
    pub payload: &'a Payload,
    /// Whether it has to ask its chain's nodes before it can be built.
    pub asks: bool,
}

impl Demand<'_> {
    /// Refuses what signers or nodes would come to when half of its time is over, or later.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] with [`FaultCode::Busy`], which says when to try again.
    pub fn check(&self, services: &Services) -> Result<(), Fault> {
        if let Some(queue) = self.queue(services) {
            let wait = queue.expected_wait(&self.parties());
            check_wait(services, "nodes of this chain", wait)?;
        }
        let signers = self.signers_wait(services).unwrap_or_default();
        check_wait(services, "signers", Some(signers))
    }

    /// Its place among those that wait for their chain's nodes: from here on the next one waits for it, too.
    pub fn enter(&self, services: &Services) -> Option<Arc<ChainWait>> {
        let queue = self.queue(services)?;
        Some(Arc::new(queue.enter(&self.parties())))
    }

    fn parties(&self) -> [Party; 2] {
        [Party::Token(self.token), Party::Vault(self.vault.id)]
    }

    fn queue<'a>(&self, services: &'a Services) -> Option<&'a Arc<ChainQueue>> {
        let queue = services.chains.queue(self.network, self.payload.chain_id());
        queue.filter(|_| self.asks)
    }

    /// How long the signers need before they come to a request that comes now, where somebody knows.
    fn signers_wait(&self, services: &Services) -> Option<Duration> {
        let unsigned = services.limits.unsigned(self.vault.id);
        let (scheme, of) = self.vault.shares(self.network.curve())?;
        let party = (self.vault.id, self.token);
        let named = self.client_signer;
        let signers = &services.signers;
        signers.expected_wait(scheme, of, party, named, unsigned)
    }
}

/// The second half of its time is for what nobody knows yet, so that what is accepted is signed, however many others
/// come. `None`: nobody knows, and it is too long.
fn check_wait(services: &Services, who: &str, wait: Option<Duration>) -> Result<(), Fault> {
    let half = Duration::from_millis(services.settings.signing_deadline_ms / 2);
    let over = match wait {
        Some(wait) => wait.saturating_sub(half),
        // It may be known in a moment.
        None => Duration::from_secs(1),
    };
    if over.is_zero() {
        return Ok(());
    }
    let seconds = u32::try_from(over.as_millis().div_ceil(1_000)).unwrap_or(u32::MAX);
    let seconds = seconds.clamp(1, MOST_RETRY_AFTER);
    let sentence = format!("the {who} are overloaded; retry in {seconds} seconds");
    Err(Fault::unavailable(sentence).with_code(FaultCode::Busy { seconds }))
}
