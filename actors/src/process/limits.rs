//! Limits on the work that this process accepts at once, in total and for one party.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use covault_core::{
    fault::Fault,
    ids::{TokenId, VaultId},
    rate::UnsignedWork,
    signature::Curve,
};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, Semaphore, SemaphorePermit};

pub use crate::process::shares::{LimitedParty, Share, Shares, too_many};
use crate::{chain_rpc::ChainKey, process::appointments::RetrySchedule, settings::Settings};

/// Pages far behind the first that are looked for at once; others wait.
const MAX_FAR_PAGES: usize = 2;
/// Simulations that run at once; beyond it requests go without.
const SIMULATIONS: usize = 128;

/// A permit for each thing that may be taken on.
pub struct Limits {
    /// Live requests that are not signed yet.
    pub live: Arc<Shares<LimitedParty>>,
    /// Inputs of requests that are accepted and not signed, of any number of them: one for each request at first, as
    /// many as it has once it is built.
    pub unsigned: Arc<Shares<SigningParty>>,
    /// Of those, what wants nothing more of its chain's nodes: it can come to signers now.
    pub ready: Arc<Shares<SigningParty>>,
    /// Bytes of live requests.
    pub live_bytes: Arc<Shares<LimitedParty>>,
    /// Pages far behind the first.
    pub far_pages: FarPages,
    /// Simulations of transactions, shared by chains: nodes of one that hang must not take all.
    pub simulations: Arc<Shares<ChainKey>>,
    /// When those may come again whom signers have no time for.
    pub appointments: RetrySchedule,
}

impl Limits {
    /// Those of the settings, with nothing taken on.
    pub fn new(settings: &Settings) -> Self {
        Self {
            live: Shares::new(settings.max_live_requests),
            unsigned: Shares::new(usize::MAX),
            ready: Shares::new(usize::MAX),
            live_bytes: Shares::new(settings.max_live_bytes),
            far_pages: FarPages::default(),
            simulations: Shares::new(SIMULATIONS),
            appointments: RetrySchedule::default(),
        }
    }

    /// What of a vault waits for signatures of a curve, and what of that a token asked for.
    pub fn unsigned(&self, vault: VaultId, curve: Curve, token: TokenId) -> UnsignedWork {
        held(&self.unsigned, SigningParty::of(vault, curve, token))
    }

    /// What of that can come to signers now.
    pub fn ready(&self, vault: VaultId, curve: Curve, token: TokenId) -> UnsignedWork {
        held(&self.ready, SigningParty::of(vault, curve, token))
    }

    /// What of a token, in whatever vaults, can come to signers of a curve now.
    pub fn ready_of_token(&self, vault: VaultId, curve: Curve, token: TokenId) -> usize {
        let [_, _, all] = SigningParty::of(vault, curve, token);
        self.ready.held(&all)
    }
}

fn held(of: &Shares<SigningParty>, [vault, token, _]: [SigningParty; 3]) -> UnsignedWork {
    UnsignedWork {
        of_vault: of.held(&vault),
        of_token: of.held(&token),
    }
}

/// Whose keys sign, and for whom: each curve has a key, and so signers' time, of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SigningParty {
    /// `None`: all vaults.
    vault: Option<VaultId>,
    curve: Curve,
    /// `None`: all tokens.
    token: Option<TokenId>,
}

impl SigningParty {
    /// The vault's, the token's in it, and the token's in all vaults.
    pub fn of(vault: VaultId, curve: Curve, token: TokenId) -> [Self; 3] {
        let (vault, token) = (Some(vault), Some(token));
        [(vault, None), (vault, token), (None, token)].map(|(vault, token)| Self {
            vault,
            curve,
            token,
        })
    }
}

/// Pages far behind the first, which take long to look for: few at once, and one of a token, so that who wants many
/// waits behind itself, and others behind one of it at most.
pub struct FarPages {
    all: Semaphore,
    /// Of tokens that wait for some, or look for one.
    tokens: Mutex<HashMap<TokenId, Weak<AsyncMutex<()>>>>,
}

/// A page may be looked for, until this is dropped.
pub struct FarPage<'a> {
    _place: SemaphorePermit<'a>,
    _own: OwnedMutexGuard<()>,
}

impl Default for FarPages {
    fn default() -> Self {
        Self {
            all: Semaphore::new(MAX_FAR_PAGES),
            tokens: Mutex::default(),
        }
    }
}

impl FarPages {
    /// Waits until the token may look for one.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when the semaphore is closed, which it never is.
    pub async fn turn(&self, token: TokenId) -> Result<FarPage<'_>, Fault> {
        let own = {
            let mut tokens = self.tokens.lock();
            tokens.retain(|_, turn| turn.strong_count() > 0);
            let known = tokens.get(&token).and_then(Weak::upgrade);
            let own = known.unwrap_or_default();
            tokens.insert(token, Arc::downgrade(&own));
            own
        };
        let own = own.lock_owned().await;
        let place = self.all.acquire().await.map_err(Fault::bug)?;
        Ok(FarPage {
            _place: place,
            _own: own,
        })
    }
}

/// As many permits as a semaphore can hold, and hand out at once.
pub fn permits(most: usize) -> usize {
    let at_once = usize::try_from(u32::MAX).unwrap_or(usize::MAX);
    most.min(Semaphore::MAX_PERMITS).min(at_once)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn far_pages__should_be_looked_for_in_turns_of_tokens() {
        let pages = FarPages::default();
        let token = |number: u8| TokenId::from_bytes([number; 16]);
        let first = pages.turn(token(1)).await.unwrap();
        let mut more: Vec<_> = (0..100).map(|_| Box::pin(pages.turn(token(1)))).collect();
        for turn in &mut more {
            assert!(turn.now_or_never().is_none());
        }
        // Another one waits for none of them.
        let other = pages.turn(token(2)).now_or_never().unwrap().unwrap();
        let mut third = Box::pin(pages.turn(token(3)));
        assert!((&mut third).now_or_never().is_none());
        drop(other);
        let third = third.now_or_never().unwrap().unwrap();
        drop((first, third, more));
        drop(pages.turn(token(1)).await.unwrap());
        pages.turn(token(4)).await.map(drop).unwrap();
        assert_eq!(pages.tokens.lock().len(), 1, "nobody is remembered");
    }
}
