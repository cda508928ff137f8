//! How a node handles orders.

mod keygen;

use std::{
    collections::{HashMap, HashSet},
    fmt::Display,
    sync::Arc,
};

use covault_core::{
    derive::RootKey,
    fault::{Class, Fault, FaultCode},
    ids::SessionId,
    order::NodeId,
    trace::{SpanFact, SpanName, TraceParent, TraceSpan},
};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{
    Node,
    check::CheckedOrder,
    refusals::{refused, wrong_epoch},
    sessions::{MAX_ATTEMPT_MS, SessionJob, SessionSpans, SessionStart},
};
use crate::{
    backend::{PreprocessedNonce, SignSetup, SignerIndex},
    claims::{Claim, ClaimError},
    envelope::{EnvelopeHeader, EnvelopeKind, OpenedEnvelope},
    message::{OrderReply, SKEW_MS, SignOrderMsg, decode, encode},
    meter,
    policy::{SpendingCounter, approvals_missing, held, over_day},
    pool::Priority,
    preprocess::{NamedNonces, NonceLookupError, NonceSelection},
    runner::ProtocolRun,
    shares::ShareRecord,
};

/// An order that has waited here for longer than this part of its time, about what an attempt takes, is
/// not begun: each round would wait as long again.
const BUSY_PART: u64 = 8;

/// Makes a run, of the nonces that were taken out for it.
type RunFactory = Box<dyn FnOnce(Vec<PreprocessedNonce>) -> Result<ProtocolRun, Fault> + Send>;

impl Node {
    /// Stores a new share and takes the key into use.
    pub(super) fn keep(&self, record: ShareRecord) -> Result<RootKey, Fault> {
        self.shares.save(&record)?;
        let root = record.key.root.clone();
        self.keys.insert(record)?;
        self.state_keys();
        tracing::info!(node = %self.name, curve = root.curve.name(), "share stored");
        Ok(root)
    }

    /// Handles an order of a trusted orchestrator, on a pool thread. Its envelope, and so the order,
    /// is signed by the orchestrator.
    pub(super) fn order(
        self: &Arc<Self>,
        header: &EnvelopeHeader,
        opened: &OpenedEnvelope,
        received_ms: u64,
    ) {
        let unreadable = || refused("the order cannot be read; do all nodes run the same version?");
        let outcome = match header.kind {
            EnvelopeKind::SigningOrder => {
                decode(&opened.body)
                    .ok_or_else(unreadable)
                    .map(|request: SignOrderMsg| {
                        let key = self.keys.get(&request.order.root_public_key);
                        let priority = key.map_or(Priority::Signing, |key| {
                            Priority::SigningWith(key.record.scheme)
                        });
                        let (from, size) = (header.from, opened.body.len());
                        // It waits once more, now in the turn of its scheme.
                        if self.admit(from, size).is_err() {
                            // It is good: anyone who sent it must not take this signer for silent.
                            return self
                                .busy(header, "too many messages in its name are queued here");
                        }
                        let (node, header) = (Arc::clone(self), *header);
                        let fingerprint = opened.fingerprint;
                        self.pool.go_on(priority, move || {
                            node.admitted(from, size);
                            let outcome =
                                node.read_order(&header, fingerprint, request, received_ms);
                            node.answer_refusal(&header, outcome);
                        });
                    })
            }
            EnvelopeKind::ReshareOrder => decode(&opened.body)
                .ok_or_else(unreadable)
                .and_then(|request| self.reshare_order(header, request, received_ms)),
            EnvelopeKind::Activate => decode(&opened.body)
                .ok_or_else(unreadable)
                .and_then(|request| self.activate_order(header, request)),
            EnvelopeKind::BackupOrder => decode(&opened.body)
                .ok_or_else(unreadable)
                .and_then(|request| self.backup_order(header, &request)),
            EnvelopeKind::AttestOrder => decode(&opened.body)
                .ok_or_else(unreadable)
                .and_then(|request| self.attest_order(header, &request)),
            _ => decode(&opened.body)
                .ok_or_else(unreadable)
                .and_then(|request| self.keygen_order(header, request, received_ms)),
        };
        self.answer_refusal(header, outcome);
    }

    /// Begins what a signing order asks for, unless it has waited here for too long.
    fn read_order(
        self: &Arc<Self>,
        header: &EnvelopeHeader,
        fingerprint: [u8; 32],
        request: SignOrderMsg,
        received_ms: u64,
    ) -> Result<(), Fault> {
        let attempt_ms = request.attempt_ms.min(MAX_ATTEMPT_MS);
        let until_ms = received_ms
            .saturating_add(attempt_ms)
            .min(request.order.expires_at_ms);
        let root = request.order.root_public_key.clone();
        let (signers, nonces) = (request.signers.clone(), request.nonces.clone());
        let waited_ms = self.clock.now_ms().saturating_sub(received_ms);
        if waited_ms.saturating_mul(BUSY_PART) > attempt_ms {
            self.busy(header, format_args!("it has waited {waited_ms} ms here"));
            return Ok(());
        }
        let mut span = self.span_of(header, &request);
        self.signing_order(header, fingerprint, request, until_ms, &mut span)
            .inspect_err(|fault| {
                span.fail(fault.class().name());
                self.preprocessor.burn_named(&root, &signers, &nonces);
            })
    }

    /// The node's part of a request that is traced.
    fn span_of(&self, header: &EnvelopeHeader, request: &SignOrderMsg) -> TraceSpan {
        let Some(parent) = request.trace else {
            return TraceSpan::off();
        };
        self.tracer
            .begin(SpanName::Sign, TraceParent::Sampled(parent))
            .with(SpanFact::Request(request.order.request))
            .with(SpanFact::Vault(request.order.vault))
            .with(SpanFact::Network(request.order.network))
            .with(SpanFact::Attempt(header.attempt))
    }

    /// Says why an order is not carried out, where it is not.
    fn answer_refusal(&self, header: &EnvelopeHeader, outcome: Result<(), Fault>) {
        if let Err(fault) = outcome {
            let EnvelopeHeader {
                epoch,
                session,
                attempt,
                from,
                ..
            } = *header;
            if header.kind == EnvelopeKind::ReshareOrder && *fault.class() == Class::Forbidden {
                tracing::warn!(node = %self.name, %session, ?fault, "order refused");
                self.reply(from, epoch, session, attempt, &OrderReply::NotPermitted);
            } else if header.kind == EnvelopeKind::Activate {
                self.refuse_activation(header, fault);
            } else if header.kind == EnvelopeKind::SigningOrder
                && matches!(fault.code(), FaultCode::Busy { .. })
            {
                self.busy(header, fault.message());
            } else {
                self.refuse(from, epoch, session, attempt, fault);
            }
        }
    }

    /// Says that there is too much to do, before anything is done for an order: it would come too late, or there is
    /// no room for it.
    fn busy(&self, header: &EnvelopeHeader, reason: impl Display) {
        let EnvelopeHeader {
            epoch,
            session,
            attempt,
            from,
            ..
        } = *header;
        tracing::debug!(node = %self.name, %session, attempt, %reason, "too busy for an order");
        meter::node_busy(&self.name);
        self.reply(from, epoch, session, attempt, &OrderReply::Busy);
    }

    pub(super) fn refuse(
        &self,
        to: NodeId,
        epoch: u32,
        session: SessionId,
        attempt: u32,
        fault: Fault,
    ) {
        tracing::warn!(node = %self.name, %session, attempt, ?fault, "order refused");
        meter::node_refused(&self.name, &fault);
        self.reply(to, epoch, session, attempt, &OrderReply::Refused(fault));
    }

    pub(super) fn check_time(
        &self,
        sent_at_ms: u64,
        issued_at_ms: u64,
        expires_at_ms: u64,
    ) -> Result<(), Fault> {
        let wrong = |field: &str, problem: &str| {
            Err(Fault::field(field, problem).with_code(FaultCode::Time))
        };
        let now_ms = self.clock.now_ms();
        if sent_at_ms.abs_diff(now_ms) > SKEW_MS {
            return wrong(
                "sentAtMs",
                "the clocks of this node and of the orchestrator are more than a minute apart; check \
                 the clocks",
            );
        }
        if now_ms >= expires_at_ms {
            return wrong("expiresAtMs", "the order has expired");
        }
        if issued_at_ms > now_ms.saturating_add(SKEW_MS) {
            return wrong(
                "issuedAtMs",
                "the order is from the future; check the clocks",
            );
        }
        if issued_at_ms > expires_at_ms {
            return wrong("issuedAtMs", "is after expiresAtMs");
        }
        Ok(())
    }

    fn signing_order(
        self: &Arc<Self>,
        header: &EnvelopeHeader,
        fingerprint: [u8; 32],
        request: SignOrderMsg,
        until_ms: u64,
        span: &mut TraceSpan,
    ) -> Result<(), Fault> {
        let (session, attempt, orchestrator) = (header.session, header.attempt, header.from);
        if self.sessions.accepted((session, attempt)) == Some(fingerprint) {
            // The bus has delivered it twice.
            return Ok(());
        }
        self.check_request(session, &request)?;
        self.check_own_vault(request.order.vault)?;
        if request.signers.is_empty() && request.order.tells_of_approvals() {
            return self.told_of_approvals(header, &request);
        }
        if let Some(client) = &self.client {
            let forgotten_ms = self.claims.age().forgotten_ms;
            if !client.has_approved(&request.order, self.clock.now_ms(), forgotten_ms)? {
                return self.ask_callback(client, header, request.order);
            }
        }
        let inputs = request.order.inputs.len();
        let room = self.quota_tracker.session(orchestrator, inputs)?;
        if self.clock.now_ms() >= until_ms {
            // It waited too long here; the orchestrator asks others by now.
            return Ok(());
        }
        if header.epoch != request.order.epoch {
            return Err(wrong_epoch());
        }
        let CheckedOrder {
            key,
            indices,
            spending,
            approved,
            hold,
        } = self.check_order(&request.order, Some(&request.signers))?;
        let SignOrderMsg {
            order,
            signers,
            nonces,
            ..
        } = request;

        // Told to use these nonces, a peer that was told to use others sees something else.
        let named = Sha256::digest(encode(&nonces)?);
        let order_id = order.id()?;
        let view: [u8; 32] = Sha256::new()
            .chain_update(b"covault/view")
            .chain_update(order_id)
            .chain_update(session.as_bytes())
            .chain_update(attempt.to_be_bytes())
            .chain_update(named)
            .chain_update(Sha256::digest(encode(&signers)?))
            .finalize()
            .into();
        let setups = (0_u32..).zip(&order.inputs).map(|(input, what)| SignSetup {
            context: Sha256::new()
                .chain_update(b"covault/sign")
                .chain_update(order_id)
                .chain_update(session.as_bytes())
                .chain_update(attempt.to_be_bytes())
                .chain_update(named)
                .chain_update(input.to_be_bytes())
                .finalize()
                .into(),
            signers: indices.clone(),
            path: order.path.clone(),
            message: what.message.clone(),
        });
        let parts = (signers.as_slice(), indices.as_slice());
        let preprocess = match self.preprocessor.find_named(
            &key,
            parts,
            order.inputs.len(),
            &nonces,
        ) {
            Ok(preprocess) => preprocess,
            Err(NonceLookupError::Misfit) => {
                return Err(Fault::field(
                    "nonces",
                    "do not fit the signers and the inputs",
                ));
            }
            Err(NonceLookupError::Of(of)) => {
                tracing::info!(node = %self.name, %session, attempt, ?of, "preprocessed nonces are missing");
                self.preprocessor
                    .burn_named(&order.root_public_key, &signers, &nonces);
                let reply = OrderReply::NoNonces { of };
                self.reply(orchestrator, order.epoch, session, attempt, &reply);
                return Ok(());
            }
        };
        let peers = self.peers(&signers, &indices);
        let root = order.root_public_key.clone();
        let (take, run): (_, RunFactory) = match preprocess {
            None => {
                let sessions = setups
                    .map(|setup| key.signer.sign(setup))
                    .collect::<Result<Vec<_>, Fault>>()?;
                let run = ProtocolRun::signing(sessions, peers, root, view);
                (None, Box::new(move |_| Ok(run)))
            }
            Some(NamedNonces { take, peers: made }) => {
                let setups: Vec<SignSetup> = setups.collect();
                let signer = Arc::clone(&key.signer);
                let run = move |own: Vec<PreprocessedNonce>| {
                    let parts = setups.into_iter().zip(own).zip(made);
                    let sessions = parts
                        .map(|((setup, own), made)| signer.sign_preprocessed(setup, own, made))
                        .collect::<Result<Vec<_>, Fault>>()?;
                    Ok(ProtocolRun::signing(sessions, peers, root, view))
                };
                (Some(take), Box::new(run))
            }
        };
        let now_ms = self.clock.now_ms();
        let claim = Claim::of_order(
            (session, attempt),
            &order,
            (spending, approved, hold),
            now_ms,
        )?;
        if !self
            .sessions
            .accept((session, attempt), fingerprint, until_ms)
        {
            return Ok(());
        }
        let (epoch, scheme) = (order.epoch, key.record.scheme);
        let claiming = span.child(SpanName::Claim);
        let job = SessionJob::Sign {
            vault: order.vault,
            request: order.request,
            scheme,
            spans: SessionSpans::new(std::mem::take(span)),
        };
        let begin = move |own| {
            Ok(SessionStart {
                room,
                key: (session, attempt),
                run: run(own)?,
                orchestrator,
                epoch,
                until_ms,
                job,
            })
        };
        let uses = Some(order.root_public_key);
        self.claim_then_begin(
            (claim, claiming),
            take,
            uses,
            orchestrator,
            (epoch, Priority::SigningWith(scheme)),
            begin,
        );
        Ok(())
    }

    /// The signers' indices. We must be one of them, none may be banned.
    pub(super) fn indices(
        &self,
        record: &ShareRecord,
        signers: &[NodeId],
    ) -> Result<Vec<SignerIndex>, Fault> {
        let refused = |problem| Fault::field("signers", problem);
        if signers.len() != usize::from(record.threshold) || !signers.contains(&self.codec.id()) {
            return Err(refused("the order names other signers than needed"));
        }
        let distinct: HashSet<&NodeId> = signers.iter().collect();
        if distinct.len() != signers.len() {
            return Err(refused("a node is named twice"));
        }
        let root = &record.key.root.public_key;
        let banned: Vec<String> = signers
            .iter()
            .filter(|signer| self.claims.banned(root, signer))
            .map(|signer| signer.openssh_line(""))
            .collect();
        if !banned.is_empty() {
            let sentence = "a signer is banned from this key because it cheated";
            return Err(Fault::new(Class::Peer { culprits: banned }, sentence));
        }
        signers
            .iter()
            .map(|signer| {
                record
                    .index_of(signer)
                    .ok_or_else(|| refused("a signer holds no share of the key"))
            })
            .collect()
    }

    fn peers(&self, signers: &[NodeId], indices: &[SignerIndex]) -> HashMap<NodeId, SignerIndex> {
        let pairs = signers.iter().copied().zip(indices.iter().copied());
        pairs
            .filter(|(signer, _)| *signer != self.codec.id())
            .collect()
    }

    /// As [`Node::claim_then_begin`], for a run that uses no nonces and spends nothing.
    pub(super) fn claim_plain(self: &Arc<Self>, begin: SessionStart) {
        let (session, attempt) = begin.key;
        let claim = Claim {
            session,
            attempt,
            digest: None,
            transaction: None,
            spending: Vec::new(),
            now_ms: self.clock.now_ms(),
            root: Vec::new(),
            approved_until_ms: None,
            hold: None,
        };
        let (orchestrator, place) = (begin.orchestrator, (begin.epoch, begin.job.priority()));
        let claim = (claim, TraceSpan::off());
        self.claim_then_begin(claim, None, None, orchestrator, place, move |_| Ok(begin));
    }

    /// Nothing of the share is used before the claim is on disk, and with it the deletion of the
    /// nonces that the session is to use; nor before the key that it `uses` is noted as one that signs.
    fn claim_then_begin(
        self: &Arc<Self>,
        (claim, mut span): (Claim, TraceSpan),
        take: Option<NonceSelection>,
        uses: Option<Vec<u8>>,
        orchestrator: NodeId,
        (epoch, priority): (u32, Priority),
        begin: impl FnOnce(Vec<PreprocessedNonce>) -> Result<SessionStart, Fault> + Send + 'static,
    ) {
        let node = Arc::clone(self);
        let (session, attempt) = (claim.session, claim.attempt);
        let of = take.as_ref().map(|take| take.of.clone());
        self.runtime.spawn(async move {
            let began = Instant::now();
            let mut claimed = node.preprocessor.claim(claim, take).await;
            if let (Ok(_), Some(root)) = (&claimed, uses)
                && let Err(error) = node.note_used(&root).await
            {
                claimed = Err(error);
            }
            meter::claimed(&node.name, began.elapsed());
            if claimed.is_err() {
                span.fail("not_claimed");
            }
            drop(span);
            match claimed {
                Ok(taken) => {
                    let pool = Arc::clone(&node.pool);
                    pool.spawn(priority, move || {
                        match node.preprocessor.open(taken).and_then(begin) {
                            Ok(begin) => node.begin(begin),
                            Err(fault) => {
                                node.refuse(orchestrator, epoch, session, attempt, fault);
                            }
                        }
                        if let Some(of) = of {
                            node.preprocessor.refill(of);
                        }
                    });
                }
                Err(ClaimError::NonceMissing) => {
                    tracing::warn!(node = %node.name, %session, attempt, "a nonce was asked for twice");
                    let of = node.codec.id();
                    node.reply(orchestrator, epoch, session, attempt, &OrderReply::NoNonces { of });
                }
                Err(error) => {
                    if let ClaimError::Held(held) = &error {
                        node.log_held(held);
                    }
                    let fault = refused_claim(&error).caused_by(&error);
                    node.refuse(orchestrator, epoch, session, attempt, fault);
                }
            }
        });
    }
}

const SPENDING_UNKNOWN: &str = "claims of this node were missing from its claims file less than a day ago, so its \
                                limits and approvals count as used up";

pub(super) fn refused_claim(error: &ClaimError) -> Fault {
    match error {
        ClaimError::SessionUsed => {
            Fault::new(Class::WrongState, "this session was run before").at("session")
        }
        ClaimError::OtherDigest => Fault::new(
            Class::WrongState,
            "request: this request has already claimed another digest, and can sign no other",
        ),
        ClaimError::OtherAmounts => Fault::new(
            Class::WrongState,
            "chainData: other amounts were shown for the inputs of this transaction before; if those were \
             wrong, ask for another amount or fee, which makes another transaction",
        ),
        ClaimError::DailyLimitReached(SpendingCounter { scope, asset }) => over_day(scope, asset),
        ClaimError::ApprovalsMissing(wants) => approvals_missing(wants),
        ClaimError::Held(until) => held(until),
        ClaimError::TooManyHeld => Fault::unavailable(
            "a signer already holds the maximum number of payments that the same people approved",
        ),
        ClaimError::SpentElsewhere(known_ms) => Fault::field(
            "policy",
            format_args!(
                "this node got its share of the key by a reshare and does not know what the holders before it have \
                 signed, so its limits of a day count as used up until {known_ms} (milliseconds since the Unix epoch)"
            ),
        ),
        ClaimError::SpendingUnknown => Fault::field("policy", SPENDING_UNKNOWN),
        ClaimError::NonceMissing | ClaimError::Store(_) => {
            Fault::unavailable("a signer's disk failed")
        }
    }
}
