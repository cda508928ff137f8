//! The nonces of one node: sealed in its claims file, each readable once.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use covault_core::{
    fault::Fault,
    port::{Clock, Entropy},
};
use hkdf::Hkdf;
use parking_lot::{Mutex, MutexGuard};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::{
    seal::NonceSealer,
    table::{NonceRow, NonceSelection, StoredNonces},
};
use crate::{
    backend::PreprocessedNonce,
    claims::{Claim, ClaimError, Claims},
    entropy::EntropyHedge,
    shares::ShareEpoch,
};

/// What a claim took out of the store, still sealed. Opened by [`NonceStore::open`].
pub struct TakenNonces {
    of: Option<ShareEpoch>,
    rows: Vec<NonceRow>,
}

/// Numbers and commitments by shares: what the store holds, to look at without touching it.
type ReadyNonces = BTreeMap<ShareEpoch, BTreeMap<u64, Vec<u8>>>;

/// The nonces of one node.
pub struct NonceStore {
    sealer: NonceSealer,
    hedging: Zeroizing<[u8; 32]>,
    start: u64,
    next: AtomicU64,
    ready: Mutex<ReadyNonces>,
}

impl NonceStore {
    /// Takes charge of what is in `claims`. `secret` seals, and hedges what is drawn: it must come
    /// back at every start, and must be nowhere near the claims file in the clear.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when there is no such cipher.
    pub fn new(secret: &[u8], claims: &Claims) -> Result<Self, Fault> {
        let StoredNonces { next, start, ready } = claims.stored_nonces();
        let sealer = NonceSealer::new(secret).ok_or_else(|| Fault::bug("no key for the nonces"))?;
        let mut hedging = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(None, secret)
            .expand(b"covault/hedge/1", hedging.as_mut_slice())
            .map_err(Fault::bug)?;
        Ok(Self {
            sealer,
            hedging,
            start,
            next: AtomicU64::new(next),
            ready: Mutex::new(ready),
        })
    }

    /// The node's randomness from its start to its end, hedged with a secret made from `secret` and
    /// the number of this start.
    pub(crate) fn hedge(&self, system: Arc<dyn Entropy>, clock: Arc<dyn Clock>) -> EntropyHedge {
        EntropyHedge::new(system, clock, self.hedging.clone(), self.start)
    }

    fn lock(&self) -> MutexGuard<'_, ReadyNonces> {
        self.ready.lock()
    }

    /// How many are ready for these shares.
    pub fn level(&self, of: &ShareEpoch) -> usize {
        self.lock().get(of).map_or(0, BTreeMap::len)
    }

    /// The lowest number that is ready for these shares.
    pub fn lowest(&self, of: &ShareEpoch) -> Option<u64> {
        let ready = self.lock();
        let (id, _) = ready.get(of)?.first_key_value()?;
        Some(*id)
    }

    /// How many are ready, by shares.
    pub fn levels(&self) -> Vec<(ShareEpoch, usize)> {
        let ready = self.lock();
        ready
            .iter()
            .map(|(of, nonces)| (of.clone(), nonces.len()))
            .collect()
    }

    /// Number and commitments of what is ready for these shares.
    pub fn ready(&self, of: &ShareEpoch) -> Vec<(u64, Vec<u8>)> {
        let ready = self.lock();
        let nonces = ready.get(of).into_iter().flatten();
        nonces
            .map(|(id, commitments)| (*id, commitments.clone()))
            .collect()
    }

    /// Whether all of these are ready, none of them named twice.
    pub fn has(&self, take: &NonceSelection) -> bool {
        let mut ids = take.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        let ready = self.lock();
        ids.len() == take.ids.len()
            && ready
                .get(&take.of)
                .is_some_and(|nonces| ids.iter().all(|id| nonces.contains_key(id)))
    }

    /// Stores what was made; on disk when it returns. Gives number and commitments of each.
    ///
    /// # Errors
    /// [`ClaimError::Store`].
    pub async fn keep(
        &self,
        claims: &Claims,
        of: &ShareEpoch,
        made: Vec<PreprocessedNonce>,
        entropy: &dyn Entropy,
    ) -> Result<Vec<(u64, Vec<u8>)>, ClaimError> {
        let count = u64::try_from(made.len()).unwrap_or(u64::MAX);
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        let rows: Option<Vec<NonceRow>> = (first..)
            .zip(made)
            .map(|(id, nonce)| {
                let PreprocessedNonce {
                    commitments,
                    secret,
                } = nonce;
                let sealed = self.sealer.seal(of, id, &commitments, &secret, entropy)?;
                Some(NonceRow {
                    id,
                    commitments,
                    sealed,
                })
            })
            .collect();
        let rows = rows.ok_or_else(|| ClaimError::Store("a nonce cannot be sealed".into()))?;
        let batch: Vec<_> = rows
            .iter()
            .map(|row| (row.id, row.commitments.clone()))
            .collect();
        claims.keep_nonces(of.clone(), rows).await?;
        let mut ready = self.lock();
        ready
            .entry(of.clone())
            .or_default()
            .extend(batch.iter().cloned());
        Ok(batch)
    }

    /// Claims a session, and takes out the nonces it is to use, if any, in one batch; both
    /// are on disk when it returns. Also when it refuses, the nonces are gone.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub async fn claim(
        &self,
        claims: &Claims,
        claim: Claim,
        take: Option<NonceSelection>,
    ) -> Result<TakenNonces, ClaimError> {
        let named = take.clone();
        let rows = claims.claim_with(claim, take).await;
        if let Some(NonceSelection { of, ids }) = &named {
            self.forget(of, ids);
        }
        Ok(TakenNonces {
            of: named.map(|take| take.of),
            rows: rows?,
        })
    }

    /// Opens what a claim took out.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when it is damaged, or was sealed by another
    /// keyring.
    pub fn open(&self, taken: TakenNonces) -> Result<Vec<PreprocessedNonce>, Fault> {
        let TakenNonces { of, rows } = taken;
        let Some(of) = of else { return Ok(Vec::new()) };
        rows.into_iter()
            .map(|row| {
                let secret = self
                    .sealer
                    .open(&of, row.id, &row.commitments, &row.sealed)
                    .ok_or_else(|| Fault::unavailable("a stored nonce does not open"))?;
                Ok(PreprocessedNonce {
                    commitments: row.commitments,
                    secret,
                })
            })
            .collect()
    }

    fn forget(&self, of: &ShareEpoch, ids: &[u64]) {
        if let Some(nonces) = self.lock().get_mut(of) {
            nonces.retain(|id, _| !ids.contains(id));
        }
    }

    /// Deletes some of them, unused; on disk when it returns.
    ///
    /// # Errors
    /// [`ClaimError::Store`].
    pub async fn burn(
        &self,
        claims: &Claims,
        of: &ShareEpoch,
        ids: Vec<u64>,
    ) -> Result<(), ClaimError> {
        self.forget(of, &ids);
        claims.burn_nonces(of.clone(), ids).await
    }

    /// Deletes all of them, or those with a number below `below`; on disk when it returns.
    ///
    /// # Errors
    /// [`ClaimError::Store`].
    pub async fn burn_epoch(
        &self,
        claims: &Claims,
        of: &ShareEpoch,
        below: Option<u64>,
    ) -> Result<(), ClaimError> {
        let below = below.unwrap_or(u64::MAX);
        let ids: Vec<u64> = match self.lock().get(of) {
            Some(nonces) => nonces.range(..below).map(|(id, _)| *id).collect(),
            None => return Ok(()),
        };
        if !ids.is_empty() {
            self.burn(claims, of, ids).await?;
        }
        let mut ready = self.lock();
        if ready.get(of).is_some_and(BTreeMap::is_empty) {
            ready.remove(of);
        }
        Ok(())
    }

    /// Deletes everything, and numbers from `number` on, or from where it was if that is higher; on
    /// disk when it returns. For the start of a node: nobody can tell it from the start of a copy.
    ///
    /// # Errors
    /// [`ClaimError::Store`].
    pub async fn begin_anew(&self, claims: &Claims, number: u64) -> Result<(), ClaimError> {
        self.next.fetch_max(number, Ordering::Relaxed);
        self.burn_others(claims, &[]).await
    }

    /// Deletes everything that is not for one of these shares; with none named: everything.
    ///
    /// # Errors
    /// [`ClaimError::Store`].
    pub async fn burn_others(
        &self,
        claims: &Claims,
        current: &[ShareEpoch],
    ) -> Result<(), ClaimError> {
        let old: Vec<ShareEpoch> = {
            let ready = self.lock();
            let old = ready.keys().filter(|of| !current.contains(of));
            old.cloned().collect()
        };
        for of in old {
            self.burn_epoch(claims, &of, None).await?;
            tracing::info!(epoch = of.epoch, "old nonces burned");
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests;
