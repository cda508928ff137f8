//! Transactions that signers may have signed and nobody here has: those of requests that were given up, or that a
//! restored backup shows unsigned. They are only asked for (docs/decisions/0030-doubt-about-a-broadcast.md).
//!
//! Where the hash hangs on the signatures, the chain tells whether what it has is theirs: signatures of the wallet's
//! key over just these bytes are nobody else's.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use covault_core::{
    fault::Fault,
    ids::RequestId,
    networks::{Payload, Signed},
    request::{Inclusion, RequestEvent, RequestState, SigningRequest},
    signature::Signature,
};
use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};

use super::ChainTracker;
use crate::{
    chain_rpc::{ChainClient, TrackedTransaction, TransactionSighting},
    requests::{
        replacing,
        request_store::{self, CommitExtras},
        tracking::TrackedRequest,
    },
    services::Services,
    store::rows::TransactionRow,
};

/// One of them that a final block has.
pub(super) struct FoundTransaction {
    signed: Signed,
    signatures: Vec<Signature>,
    inclusion: Inclusion,
}

/// What a look has come to.
pub(super) enum UnsignedFate {
    Found(FoundTransaction),
    /// It never comes, as this says.
    Never(TransactionSighting),
    /// Nobody can tell now.
    Unknown,
}

/// The looks whose transaction was seen in the place of one: a wallet's history is long, so they are tasks of their own,
/// one at a time.
#[derive(Default)]
pub(super) struct ReplacementChecks {
    wanted: BTreeMap<RequestId, TransactionSighting>,
    pub(super) running: JoinSet<(RequestId, UnsignedFate)>,
}

impl ReplacementChecks {
    /// A look is wanted by what was seen, and no more where that is nothing that ends a transaction.
    pub(super) fn want(&mut self, request: RequestId, sighting: Option<TransactionSighting>) {
        let ends = |sighting: &TransactionSighting| {
            matches!(
                sighting,
                TransactionSighting::Final(_)
                    | TransactionSighting::Replaced(_)
                    | TransactionSighting::Expired
            )
        };
        match sighting.filter(ends) {
            Some(sighting) => self.wanted.insert(request, sighting),
            None => self.wanted.remove(&request),
        };
    }
}

/// What became of a transaction of which another one, or none, was seen in its place.
enum OtherwiseSigned {
    /// It is the one that was seen.
    Found(FoundTransaction),
    /// What was seen is another one, or there is none.
    Not,
    /// Nobody can tell now.
    Unknown,
}

impl ChainTracker {
    /// Begins the next look that is due, where none is running.
    pub(super) fn begin_look(&mut self) {
        let longest = Duration::from_millis(self.services.settings.tracking_most_ms);
        while self.looks.running.is_empty()
            && let Some((request, sighting)) = self.looks.wanted.pop_first()
        {
            let Some(entry) = self.open.get_mut(&request) else {
                continue;
            };
            if !entry.look.begin(longest) {
                continue;
            }
            let look = UnsignedLook {
                services: Arc::clone(&self.services),
                client: Arc::clone(&self.client),
                tracked: entry.tracked.clone(),
            };
            self.looks.running.spawn(async move {
                let fate = look.look(sighting).await.unwrap_or_else(|fault| {
                    tracing::warn!(%request, ?fault, "failed to read what has replaced a transaction");
                    UnsignedFate::Unknown
                });
                (request, fate)
            });
        }
    }

    /// What a look has come to, and the next one.
    pub(super) async fn looked(&mut self, looked: Result<(RequestId, UnsignedFate), JoinError>) {
        match looked {
            Ok((request, UnsignedFate::Found(found))) => self.found(request, found).await,
            Ok((request, fate)) => self.looked_in_vain(request, &fate).await,
            Err(error) => {
                tracing::error!(chain = %self.chain, %error, "looking up a transaction panicked; this is a bug");
            }
        }
        self.begin_look();
    }

    async fn looked_in_vain(&mut self, request: RequestId, fate: &UnsignedFate) {
        let settling = Duration::from_millis(self.services.settings.settling_ms);
        let Some(entry) = self.open.get_mut(&request) else {
            return;
        };
        let never = match fate {
            UnsignedFate::Never(sighting) => Some(sighting),
            UnsignedFate::Found(_) | UnsignedFate::Unknown => None,
        };
        if entry.look.says(never.is_some(), settling)
            && let Some(sighting) = never
        {
            let reason = entry.void_reason(sighting);
            let event = RequestEvent::NeverComes { reason };
            self.end_doubt(request, event, None).await;
        }
    }

    /// A request's transaction is in a final block, no matter who sent it.
    pub(super) async fn found(&mut self, request: RequestId, found: FoundTransaction) {
        let FoundTransaction {
            signed,
            signatures,
            inclusion,
        } = found;
        tracing::warn!(%request, hash = signed.tx_hash, "a final block has the transaction of a request that was given up");
        let row = TransactionRow::settled(inclusion, self.services.now_ms());
        let event = RequestEvent::FoundFinal { signatures, signed };
        self.end_doubt(request, event, Some(&row)).await;
    }

    /// Ends a request in doubt. What cannot be stored now is seen again.
    pub(super) async fn end_doubt(
        &mut self,
        request: RequestId,
        event: RequestEvent,
        settled: Option<&TransactionRow>,
    ) {
        let pause = self.first_pause();
        let services = self.services_of(request);
        let Some(entry) = self.open.get_mut(&request) else {
            return;
        };
        (entry.pause, entry.due) = (pause, Instant::now() + pause);
        let Some(services) = services else {
            return;
        };
        let work = async {
            let Some((found, version)) = services.request(request).await? else {
                return Ok(());
            };
            if !matches!(found.state, RequestState::InDoubt { .. }) {
                return Ok(());
            }
            let extras = CommitExtras {
                settled,
                ..CommitExtras::default()
            };
            let ended = request_store::end(&services, found, version, event, extras).await;
            Ok::<_, Fault>(ended?)
        };
        match work.await {
            Ok(()) => {
                self.open.remove(&request);
            }
            Err(fault) => {
                tracing::warn!(%request, ?fault, "failed to store what became of a transaction");
            }
        }
    }
}

/// One look.
struct UnsignedLook {
    services: Arc<Services>,
    client: Arc<dyn ChainClient>,
    tracked: TrackedRequest,
}

impl UnsignedLook {
    /// What a sighting says once it is known which of our transactions has taken the place of a request's. What nobody
    /// here has comes to an end by what is certain alone: what has used its number may be itself.
    async fn look(&self, sighting: TransactionSighting) -> Result<UnsignedFate, Fault> {
        let tracked = &self.tracked;
        let (services, account) = (&*self.services, &tracked.account);
        let (request, signed) = (tracked.request, &tracked.transaction.signed);
        let uses = tracked.unsigned.as_deref().unwrap_or_default();
        let known = account.network.rules().hash_before_signing();
        let (by, otherwise) = match sighting {
            TransactionSighting::Final(inclusion) if known => {
                let hash = signed.tx_hash.clone();
                // Two requests that ask for the very same have one transaction, and it is that of the one which sent it.
                let other =
                    replacing::user_with_hash(services, request, account, uses, &hash).await?;
                if other.is_some() {
                    let replaced = TransactionSighting::Replaced(Some(hash));
                    return Ok(UnsignedFate::Never(replaced));
                }
                return Ok(UnsignedFate::Found(FoundTransaction {
                    signed: Signed {
                        transaction: String::new(),
                        tx_hash: hash,
                    },
                    signatures: Vec::new(),
                    inclusion,
                }));
            }
            TransactionSighting::Replaced(by) => {
                let rival = replacing::rival(services, request, account, uses).await?;
                let by = match (rival, by) {
                    (rival, by) if known => {
                        let replaced = TransactionSighting::Replaced(by.or(rival));
                        return Ok(UnsignedFate::Never(replaced));
                    }
                    (Some(rival), by) if by.as_ref().is_none_or(|by| *by == rival) => {
                        let replaced = TransactionSighting::Replaced(Some(rival));
                        return Ok(UnsignedFate::Never(replaced));
                    }
                    (_, by) => by,
                };
                let other = match &by {
                    Some(by) => {
                        replacing::user_with_hash(services, request, account, uses, by).await?
                    }
                    None => None,
                };
                match other.map(|other| other.state) {
                    // Nobody here follows it.
                    Some(RequestState::Succeeded { sent: false, .. }) => {
                        return Ok(self.used_by_another(by).await);
                    }
                    // Where that one is the pump that follows it finds out.
                    Some(_) => return Ok(UnsignedFate::Unknown),
                    None => {}
                }
                let otherwise = self.otherwise_signed(by.as_deref()).await?;
                (by, otherwise)
            }
            // Where there are numbers it ended with its own unused.
            TransactionSighting::Expired if !known && tracked.number.is_none() => {
                (None, self.otherwise_signed(None).await?)
            }
            TransactionSighting::Expired => {
                return Ok(UnsignedFate::Never(TransactionSighting::Expired));
            }
            _ => return Ok(UnsignedFate::Unknown),
        };
        Ok(match (otherwise, by) {
            (OtherwiseSigned::Found(found), _) => UnsignedFate::Found(found),
            (OtherwiseSigned::Not, Some(by)) => {
                UnsignedFate::Never(TransactionSighting::Replaced(Some(by)))
            }
            (OtherwiseSigned::Not, None) => UnsignedFate::Never(TransactionSighting::Expired),
            (OtherwiseSigned::Unknown, _) => UnsignedFate::Unknown,
        })
    }

    /// Whether the nodes agree that a transaction of another request has used the number, in a final block.
    async fn used_by_another(&self, by: Option<String>) -> UnsignedFate {
        let asked = self
            .client
            .signatures_in_block(&self.tracked.transaction, by.as_deref());
        match asked.await {
            Ok(signatures) if !signatures.is_empty() => {
                UnsignedFate::Never(TransactionSighting::Replaced(by))
            }
            _ => UnsignedFate::Unknown,
        }
    }

    /// Whether a transaction is in a final block with signatures that are not known here: `by`, which has used its
    /// number, or one with the same content.
    async fn otherwise_signed(&self, by: Option<&str>) -> Result<OtherwiseSigned, Fault> {
        let tracked = &self.tracked;
        let request = tracked.request;
        let signatures = match self
            .client
            .signatures_in_block(&tracked.transaction, by)
            .await
        {
            Ok(signatures) => signatures,
            Err(error) => {
                tracing::debug!(%request, ?error, "the nodes do not report which transaction used a nonce");
                return Ok(OtherwiseSigned::Unknown);
            }
        };
        // Its number is used: whose transaction has it must be told.
        if signatures.is_empty() {
            return Ok(match by {
                None if tracked.number.is_none() => OtherwiseSigned::Not,
                _ => OtherwiseSigned::Unknown,
            });
        }
        let Some((stored, _)) = self.services.request(request).await? else {
            return Ok(OtherwiseSigned::Unknown);
        };
        let Some((signed, signatures)) = assembled(&stored, &signatures)? else {
            return Ok(match by {
                Some(_) => OtherwiseSigned::Not,
                None => OtherwiseSigned::Unknown,
            });
        };
        if by.is_some_and(|by| !by.eq_ignore_ascii_case(&signed.tx_hash)) {
            return Ok(OtherwiseSigned::Unknown);
        }
        let transaction = TrackedTransaction {
            signed: signed.clone(),
            ..tracked.transaction.clone()
        };
        let now_ms = self.services.now_ms();
        let sightings = self.client.sightings(&[transaction], now_ms).await;
        Ok(match sightings.as_slice() {
            [Ok(TransactionSighting::Final(inclusion))] => {
                OtherwiseSigned::Found(FoundTransaction {
                    signed,
                    signatures,
                    inclusion: *inclusion,
                })
            }
            _ => OtherwiseSigned::Unknown,
        })
    }
}

/// The transaction of a request in doubt with these signatures, where they are of its key and over just that.
fn assembled(
    request: &SigningRequest,
    signatures: &[Signature],
) -> Result<Option<(Signed, Vec<Signature>)>, Fault> {
    let RequestState::InDoubt { draft, .. } = &request.state else {
        return Ok(None);
    };
    let payload = Payload::decode(&request.payload).map_err(Fault::bug)?;
    let rules = request.network.rules();
    // The other parity, too: nodes write it in several ways.
    let flipped = signatures.iter().map(|signature| match *signature {
        Signature::Ecdsa { r, s, y_parity } => Signature::Ecdsa {
            r,
            s,
            y_parity: y_parity ^ 1,
        },
        Signature::Ed25519 { r, s } => Signature::Ed25519 { r, s },
    });
    for signatures in [signatures.to_vec(), flipped.collect()] {
        let key = &request.public_key;
        if let Ok(Some(signed)) = rules.assemble(&payload, &draft.unsigned, &signatures, key) {
            return Ok(Some((signed, signatures)));
        }
    }
    Ok(None)
}
