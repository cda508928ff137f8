//! Whether signers and chain nodes can keep up with one request more. What they would come to too late is refused before
//! it is accepted, or before the approval that lets it continue is: what is accepted waits on instead
//! (docs/decisions/0045-a-crowd-waits.md).

use std::{sync::Arc, time::Duration};

use covault_core::{
    fault::{Fault, FaultCode},
    ids::TokenId,
    networks::{Network, Payload},
    order::NodeId,
    rate::UnsignedWork,
    wallet::vault::Vault,
};

use crate::{
    chain_rpc::{ChainQueue, ChainWait},
    process::limits::LimitedParty,
    services::Services,
};

/// The longest that a client is asked to stay away, in seconds: rates change.
const MOST_RETRY_AFTER: u32 = 60;

/// How much of its time a request may have to wait for signers, in eighths.
const NEW: u64 = 4;
const AGREED: u64 = 5;

/// Fewer inputs of a token than these, in whatever vaults, are no crowd: they are refused for what half of their time is
/// too short for, and not because signers are slow, or others have much to sign.
const FEW: usize = 64;

/// A request that is to continue now.
pub struct CapacityDemand<'a> {
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

impl CapacityDemand<'_> {
    /// Refuses what signers would come to later than anyone should wait, or nodes when half of its time is over.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] with [`FaultCode::Busy`], which says when to try again.
    pub fn check(&self, services: &Services) -> Result<(), Fault> {
        self.check_within(services, NEW)
    }

    /// The same for a request that people have agreed to: as what they have done is not to be refused for what the same
    /// token creates in the meantime, there may be a quarter more before it at the signers.
    ///
    /// # Errors
    /// As [`CapacityDemand::check`].
    pub fn check_agreed(&self, services: &Services) -> Result<(), Fault> {
        self.check_within(services, AGREED)
    }

    fn check_within(&self, services: &Services, eighths: u64) -> Result<(), Fault> {
        let settings = &services.settings;
        // The rest of its time is for what nobody knows yet, so that what is accepted is signed, however many others
        // come.
        let part_ms = settings.signing_deadline_ms.saturating_mul(eighths) / 8;
        if let Some(queue) = self.queue(services) {
            let wait = queue.expected_wait(self.token);
            let over = beyond(wait, settings.signing_deadline_ms / 2);
            over.map_or(Ok(()), |over| Err(overloaded("nodes of this chain", over)))?;
        }
        let (vault, curve, token) = (self.vault.id, self.network.curve(), self.token);
        let limits = &services.limits;
        let signers = |unsigned| self.signers_wait(services, unsigned).unwrap_or_default();
        let all = limits.unsigned(vault, curve, token);
        if let Some(over) = self.beyond_signers(services, all, signers(all), part_ms) {
            return Err(overloaded("signers", over));
        }
        if limits.ready_of_token(vault, curve, token) < FEW {
            return Ok(());
        }
        // Only what they could sign now: a chain that hangs must not keep others of the vault from signers.
        let soon = limits.ready(vault, curve, token);
        let most_ms = settings.most_wait_ms.saturating_mul(eighths) / NEW;
        let most_ms = part_ms.min(most_ms);
        match self.beyond_signers(services, soon, signers(soon), most_ms) {
            Some(over) => Err(overloaded("signers", over)),
            None => Ok(()),
        }
    }

    /// For how long to stay away where signers come to it later than that.
    fn beyond_signers(
        &self,
        services: &Services,
        before: UnsignedWork,
        wait: Duration,
        most_ms: u64,
    ) -> Option<Duration> {
        let over = beyond(Some(wait), most_ms)?;
        // Who has nothing in line is behind nobody of its own.
        if before.of_token == 0 {
            return Some(over);
        }
        let inputs = u32::try_from(before.of_vault.max(before.of_token)).unwrap_or(u32::MAX);
        let apart = (wait / inputs).min(over);
        let who = (self.vault.id, self.network.curve(), self.token);
        let now_ms = services.monotonic.elapsed_ms();
        let appointments = &services.limits.appointments;
        Some(appointments.next(who, now_ms, over, apart))
    }

    /// Its place among those that wait for their chain's nodes: from here on the next one waits for it, too.
    pub fn enter(&self, services: &Services) -> Option<Arc<ChainWait>> {
        let queue = self.queue(services)?;
        Some(Arc::new(queue.enter(&self.parties())))
    }

    fn parties(&self) -> [LimitedParty; 2] {
        [
            LimitedParty::Token(self.token),
            LimitedParty::Vault(self.vault.id),
        ]
    }

    fn queue<'a>(&self, services: &'a Services) -> Option<&'a Arc<ChainQueue>> {
        let queue = services.chains.queue(self.network, self.payload.chain_id());
        queue.filter(|_| self.asks)
    }

    /// How long the signers need before they come to a request that comes now, after so much of its vault, where
    /// someone knows.
    fn signers_wait(&self, services: &Services, unsigned: UnsignedWork) -> Option<Duration> {
        let (scheme, of) = self.vault.shares(self.network.curve())?;
        let party = (self.vault.id, self.token);
        let named = self.client_signer;
        let signers = &services.signers;
        signers.expected_wait(scheme, of, party, named, unsigned)
    }
}

/// How much longer than that it is. `None`: nobody knows, and it is too long.
fn beyond(wait: Option<Duration>, most_ms: u64) -> Option<Duration> {
    let over = match wait {
        Some(wait) => wait.saturating_sub(Duration::from_millis(most_ms)),
        // It may be known in a moment.
        None => Duration::from_secs(1),
    };
    (!over.is_zero()).then_some(over)
}

fn overloaded(who: &str, away: Duration) -> Fault {
    let seconds = u32::try_from(away.as_millis().div_ceil(1_000)).unwrap_or(u32::MAX);
    let seconds = seconds.clamp(1, MOST_RETRY_AFTER);
    let sentence = format!("the {who} are overloaded; retry in {seconds} seconds");
    Fault::unavailable(sentence).with_code(FaultCode::Busy { seconds })
}
