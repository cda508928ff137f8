//! Signatures, as the orchestrator asks for them: attempts with one set of signers after another, each
//! when its signers have room for it; beside one that takes longer than nearly all do, another one.

mod client_signer;
mod replies;

use std::time::Duration;

use covault_core::{
    fault::{Fault, FaultCode},
    ids::SessionId,
    networks::VerifiedSignatures,
    order::{NodeId, SigningOrder},
    signature::Curve,
    trace::TraceContext,
};
use tokio::time::{Instant, timeout};

use super::{
    CallGuard, ClusterInner, ExpectedReply, POLL_INTERVAL, REPLY_GRACE_MS, SigningTask,
    line::LinePlace,
    node_registry::places::{SigningAsk, SigningSet},
    pace::SchemeTimes,
    select_signers::{AttemptFailures, NoSigningSet},
};
use crate::{
    envelope::EnvelopeKind,
    message::{OrderReply, PreprocessMsg, SKEW_MS, SignOrderMsg, encode},
    meter,
    preprocess::NonceQuery,
    verify::verify,
};

/// Attempts of one request that run at one time, at most: with two of three signers, one that is silent
/// can be in two of them.
const MAX_TEAMS: usize = 3;
/// How often a second team is asked for that there was none for.
const SECOND_TEAM_INTERVAL: Duration = Duration::from_millis(50);
/// So many attempts of a request may fail because of a crowd. More say something about the request, or its signers.
const MAY_FAIL: u32 = 1;
/// A request fails at once when it would be too late even if signers were this many times as fast as now.
const HOPELESS: u32 = 2;

/// How an attempt has ended.
enum AttemptOutcome {
    Signed(VerifiedSignatures),
    /// With the same nodes, but without nonces made ahead, it may go well.
    NoNonces,
    /// A signer has too much to do. Others may not.
    Busy,
    Failed,
}

/// A request on its way to its signatures.
struct SigningRun<'a> {
    order: &'a SigningOrder,
    session: SessionId,
    ask: SigningAsk,
    /// When its last attempt failed, or it began.
    since: Instant,
    deadline_ms: u64,
    call: CallGuard<'a>,
    failures: AttemptFailures,
    /// Its place in line, for all of its attempts.
    place: LinePlace,
    /// Whether nonces made ahead are named.
    preprocess: bool,
    /// Number of the next attempt. Each is claimed by its signers on its own: no two of them share a
    /// nonce.
    next: u32,
    /// Attempts that failed, but for those that were beside others.
    failed: u32,
    running: Vec<RunningAttempt>,
    /// It has only waited for signers with too much to do.
    crowded: bool,
    trace: Option<TraceContext>,
}

/// An attempt that runs.
struct RunningAttempt {
    number: u32,
    /// With their places taken.
    team: SigningSet,
    sent: Instant,
    /// The orchestrator's clock.
    sent_at_ms: u64,
    ends_ms: u64,
    /// Nonces made ahead were named.
    named: bool,
    /// Who has said whom it missed.
    reported: Vec<NodeId>,
}

/// Where a request goes next.
enum Placement {
    Team(SigningSet),
    Signed(VerifiedSignatures),
    None(NoSigningSet),
    /// It would be too late.
    Hopeless(Option<Duration>),
}

impl ClusterInner {
    pub(super) async fn sign(
        &self,
        order: &SigningOrder,
        task: SigningTask<'_>,
    ) -> Result<VerifiedSignatures, Fault> {
        let SigningTask {
            scheme,
            session,
            holders,
            threshold,
            deadline_ms,
            token,
            turn,
            client_signer,
            trace,
        } = task;
        let needed = usize::from(threshold);
        let party = (order.vault, token);
        let deadline_ms = deadline_ms.min(order.expires_at_ms);
        let approved = match client_signer {
            Some(signer) => Some(self.ask_client_signer(order, &task, signer).await?),
            None => None,
        };
        let order = approved.as_ref().unwrap_or(order);
        let wanted = ExpectedReply::Signatures(order.inputs.len(), order.network.curve());
        let ask = SigningAsk::new(scheme, holders, needed, party, order.inputs.len());
        let ask = ask.with_client_signer(client_signer);
        let mut run = SigningRun {
            order,
            session,
            since: Instant::now(),
            deadline_ms,
            call: self.call(wanted, order.epoch, session, holders)?,
            failures: AttemptFailures::default(),
            place: self.node_registry.come(&ask, turn),
            ask,
            // The schemes of the other curve make nothing ahead.
            preprocess: order.network.curve() == Curve::Ed25519,
            next: 0,
            failed: 0,
            running: Vec::new(),
            crowded: false,
            trace,
        };
        if run.preprocess {
            self.preprocess
                .want(&order.root_public_key, order.epoch, holders);
        }
        loop {
            let now_ms = self.clock.now_ms();
            if now_ms >= run.deadline_ms {
                return Err(self.not_in_time(&run, run.crowded, client_signer));
            }
            if is_future(order.issued_at_ms, now_ms) {
                // Nobody would take it for as long as that was. An order of now is taken.
                return Err(Fault::unavailable(
                    "the orchestrator's clock was set back during signing",
                ));
            }
            let left = Duration::from_millis(run.deadline_ms.saturating_sub(now_ms));
            let team = match self.place(&mut run, left).await {
                Placement::Team(team) => team,
                Placement::Signed(signatures) => return Ok(signatures),
                Placement::Hopeless(Some(wait)) if run.failures.is_empty() => {
                    return Err(crowded(Some(wait)));
                }
                Placement::Hopeless(_) => {
                    return Err(self.not_in_time(&run, true, client_signer));
                }
                Placement::None(NoSigningSet::Never) => {
                    let signing_for = (order.vault, client_signer);
                    return Err(self.give_up(holders, needed, run.failures, signing_for));
                }
                Placement::None(NoSigningSet::Wait) => {
                    run.crowded = false;
                    match late(order, &mut run.call, POLL_INTERVAL.min(left)).await {
                        Some(signatures) => return Ok(signatures),
                        None => continue,
                    }
                }
                // The time is over.
                Placement::None(NoSigningSet::Full) => continue,
            };
            if !self.begin_attempt(&mut run, team)? {
                // More waits to be sent than the bus takes.
                if let Some(signatures) = late(order, &mut run.call, POLL_INTERVAL).await {
                    return Ok(signatures);
                }
                continue;
            }
            match self.await_attempts(&mut run).await? {
                AttemptOutcome::Signed(signatures) => return Ok(signatures),
                AttemptOutcome::NoNonces | AttemptOutcome::Busy => {}
                AttemptOutcome::Failed => {
                    run.crowded = false;
                    run.failed = run.failed.saturating_add(1);
                    // The second try comes at once; what fails again and again must not spin.
                    if run.failed > 1
                        && let Some(signatures) = late(order, &mut run.call, POLL_INTERVAL).await
                    {
                        return Ok(signatures);
                    }
                }
            }
        }
    }

    /// Why a request is not signed in its time. Signers that failed say more than that it came too late: those of its
    /// own attempts, and where it has only waited in line, those of the line's last attempt. But in a crowd one attempt
    /// may fail because of that: where the line has got on since, it is what the request waits for.
    fn not_in_time(
        &self,
        run: &SigningRun<'_>,
        has_waited: bool,
        client_signer: Option<NodeId>,
    ) -> Fault {
        let too_few = |failures: &AttemptFailures| {
            let (holders, needed) = (run.ask.holders(), run.ask.needed());
            let signing_for = Some((run.order.vault, client_signer));
            self.node_registry
                .too_few(holders, needed, failures, signing_for)
        };
        let gets_on = self.node_registry.gets_on(&run.ask, run.since);
        if has_waited && gets_on && run.failed <= MAY_FAIL {
            return crowded(None);
        }
        if !has_waited || !run.failures.is_empty() {
            return too_few(&run.failures);
        }
        match self.node_registry.silent_in_line(&run.ask) {
            Some(silent) => too_few(&AttemptFailures::of_silent(&silent)),
            None => crowded(None),
        }
    }

    /// Signers that have room for it: now, or when its turn has come.
    async fn place(&self, run: &mut SigningRun<'_>, left: Duration) -> Placement {
        let SigningRun { ask, failures, .. } = run;
        match self.node_registry.take_place(ask, run.place, failures) {
            Ok(team) => return Placement::Team(team),
            Err(NoSigningSet::Full) => {}
            Err(none) => return Placement::None(none),
        }
        if let Some(wait) = self.node_registry.expected_wait(ask, run.place)
            && wait / HOPELESS > left
        {
            return Placement::Hopeless(Some(wait));
        }
        run.crowded = true;
        let began_ms = self.clock.now_ms();
        let mut ticket = self.node_registry.wait(ask, run.place, failures);
        // There may have been a place in between.
        self.node_registry
            .serve(Some((run.ask.scheme(), run.ask.holders())));
        let placed = tokio::select! {
            biased;
            placed = &mut ticket.placed => placed,
            signed = late(run.order, &mut run.call, left) => {
                return match signed {
                    Some(signatures) => Placement::Signed(signatures),
                    None => Placement::None(NoSigningSet::Full),
                };
            }
        };
        let waited_ms = self.clock.now_ms().saturating_sub(began_ms);
        let left = left.saturating_sub(Duration::from_millis(waited_ms));
        match placed {
            // What is begun and cannot be ended takes the place of others.
            Ok(Ok(_)) if self.node_registry.pace(&run.ask, SchemeTimes::average) > Some(left) => {
                Placement::Hopeless(None)
            }
            Ok(Ok(team)) => Placement::Team(team),
            Ok(Err(none)) => Placement::None(none),
            Err(_) => Placement::None(NoSigningSet::Full),
        }
    }

    /// Sends the order to a team. False when the bus cannot take it now.
    fn begin_attempt(&self, run: &mut SigningRun<'_>, team: SigningSet) -> Result<bool, Fault> {
        let (order, number) = (run.order, run.next);
        run.next = number
            .checked_add(1)
            .ok_or_else(|| Fault::bug("too many attempts"))?;
        let now_ms = self.clock.now_ms();
        let unmeasured = self.attempt;
        let allowed = self
            .node_registry
            .pace(&run.ask, |paces, class| paces.allowance(class, unmeasured));
        // What is slow, a backend or a machine, gets more time after two tries.
        let longer = 1 << (run.failed / 2).min(3);
        let allowed_ms = u64::try_from(allowed.as_millis())
            .unwrap_or(u64::MAX)
            .saturating_mul(longer);
        let nonces = if run.preprocess {
            self.name_nonces(order, &team.signers)
        } else {
            Vec::new()
        };
        let request = SignOrderMsg {
            order: order.clone(),
            session: run.session,
            signers: team.signers.clone(),
            nonces,
            attempt_ms: allowed_ms.min(run.deadline_ms.saturating_sub(now_ms)),
            sent_at_ms: now_ms,
            trace: run.trace,
        };
        let body = encode(&request)?;
        for signer in &team.signers {
            let place = (order.epoch, run.session, number);
            if !self.try_send(EnvelopeKind::SigningOrder, place, *signer, &body)? {
                run.crowded = true;
                return Ok(false);
            }
        }
        run.crowded = false;
        run.running.push(RunningAttempt {
            number,
            team,
            sent: Instant::now(),
            sent_at_ms: now_ms,
            ends_ms: now_ms.saturating_add(request.attempt_ms),
            named: !request.nonces.is_empty(),
            reported: Vec::new(),
        });
        Ok(true)
    }

    /// Names nonces that were made ahead, if every signer has some, and asks those who have none.
    fn name_nonces(&self, order: &SigningOrder, signers: &[NodeId]) -> Vec<Vec<u64>> {
        let root = &order.root_public_key;
        let (nonces, asks) = self.preprocess.name(root, signers, order.inputs.len());
        self.ask(root, order.epoch, asks);
        nonces
    }

    pub(super) fn ask(&self, root: &[u8], epoch: u32, asks: impl IntoIterator<Item = NonceQuery>) {
        for NonceQuery { node, spent_below } in asks {
            let of = (root.to_vec(), epoch);
            let sent = encode(&PreprocessMsg::Ask { of, spent_below }).and_then(|body| {
                self.send(
                    EnvelopeKind::Nonces,
                    (epoch, SessionId::from_bytes([0; 16]), 0),
                    node,
                    &body,
                )
            });
            if let Err(fault) = sent {
                tracing::warn!(?fault, "cannot ask for nonces");
            }
        }
    }

    /// Waits for the signatures of the attempts that run, and begins another one when they take long. When
    /// all have failed, the run's failures say why.
    async fn await_attempts(&self, run: &mut SigningRun<'_>) -> Result<AttemptOutcome, Fault> {
        loop {
            while let Some((place, silent)) = self.expired(run) {
                // That a node is gone says nothing of the others, with which the next one may go well.
                if let Some(silent) = silent {
                    self.node_registry.line_failed(&run.ask, &silent);
                }
                self.end_attempt(run, place, true);
            }
            if run.running.is_empty() {
                return Ok(AttemptOutcome::Failed);
            }
            let second = self.second_team(run)?;
            let now_ms = self.clock.now_ms();
            let ends = run.running.iter().map(|attempt| {
                let left_ms = attempt.ends_ms.saturating_add(REPLY_GRACE_MS);
                Duration::from_millis(left_ms.saturating_sub(now_ms).max(1))
            });
            let patience = ends.chain(second).min().unwrap_or(POLL_INTERVAL);
            let reply = timeout(patience.min(POLL_INTERVAL), run.call.replies.recv()).await;
            let Ok(Some(reply)) = reply else {
                continue;
            };
            let number = reply.1;
            match self.take_reply(run, reply) {
                None => {}
                Some(AttemptOutcome::Signed(signatures)) => {
                    self.note_signed(run, number);
                    return Ok(AttemptOutcome::Signed(signatures));
                }
                Some(outcome) => {
                    if let Some(place) = run.place_of(number) {
                        let failed = matches!(outcome, AttemptOutcome::Failed);
                        self.end_attempt(run, place, failed);
                    }
                    if run.running.is_empty() {
                        return Ok(outcome);
                    }
                }
            }
        }
    }

    /// Begins an attempt beside those that run, when they have taken longer than nearly all do. How long it
    /// is until then, if it may be.
    fn second_team(&self, run: &mut SigningRun<'_>) -> Result<Option<Duration>, Fault> {
        let Some(last) = run.running.last() else {
            return Ok(None);
        };
        if run.running.len() >= MAX_TEAMS || run.ask.holders().len() <= run.ask.needed() {
            return Ok(None);
        }
        let of_last = (last.team.signers.as_slice(), last.sent);
        let due = self
            .node_registry
            .second_after(&run.ask, self.attempt, of_last);
        let left = due.saturating_sub(last.sent.elapsed());
        if !left.is_zero() {
            // What others sign in the meantime may make it sooner.
            return Ok(Some(left.min(SECOND_TEAM_INTERVAL)));
        }
        let at_work: Vec<&[NodeId]> = run
            .running
            .iter()
            .map(|attempt| attempt.team.signers.as_slice())
            .collect();
        let team = self
            .node_registry
            .second_team(&run.ask, &at_work, last.sent, &run.failures);
        let Some(team) = team else {
            return Ok(Some(SECOND_TEAM_INTERVAL));
        };
        tracing::info!(
            session = %run.session,
            first = ?at_work,
            second = ?team,
            "slow signing attempt: starting a second one in parallel"
        );
        let is_free = team.is_free;
        if !self.begin_attempt(run, team)? {
            return Ok(Some(SECOND_TEAM_INTERVAL));
        }
        if !is_free {
            self.node_registry.second_team_sent(&run.ask);
        }
        meter::second_team();
        Ok(None)
    }

    /// An attempt whose time is over, and who of it said nothing; `None` instead of those where some of its signers
    /// are gone.
    fn expired(&self, run: &mut SigningRun<'_>) -> Option<(usize, Option<Vec<NodeId>>)> {
        let now_ms = self.clock.now_ms();
        let live = |node: &NodeId| self.node_registry.live(node);
        let over = |attempt: &RunningAttempt| {
            is_future(attempt.sent_at_ms, now_ms)
                || now_ms >= attempt.ends_ms.saturating_add(REPLY_GRACE_MS)
        };
        let place = run
            .running
            .iter()
            .position(|attempt| over(attempt) || !attempt.team.signers.iter().all(live))?;
        let attempt = run.running.get(place)?;
        let signers = attempt.team.signers.as_slice();
        let gone: Vec<NodeId> = signers.iter().filter(|node| !live(node)).copied().collect();
        if !gone.is_empty() {
            // Do not penalise signers that are still live.
            self.suspect(&gone, &mut run.failures);
            return Some((place, None));
        }
        // With nonces made ahead only the collector has anything to say: the others are done once
        // they have sent their shares.
        let speakers = match attempt.named {
            true => signers.get(..1).unwrap_or_default(),
            false => signers,
        };
        let silent: Vec<NodeId> = speakers
            .iter()
            .filter(|node| !attempt.reported.contains(node))
            .copied()
            .collect();
        self.failed(signers, &silent, &mut run.failures);
        // With those whom others have missed.
        let mut silent = run.failures.silent();
        silent.retain(|node| signers.contains(node));
        Some((place, Some(silent)))
    }

    /// An attempt has ended without signatures: its places are free. `failed`: its team does not work.
    fn end_attempt(&self, run: &mut SigningRun<'_>, place: usize, failed: bool) {
        meter::attempted(false);
        let attempt = run.running.remove(place);
        if failed {
            run.since = Instant::now();
            run.failures.failed(&attempt.team.signers);
        }
    }
}

impl SigningRun<'_> {
    fn place_of(&self, number: u32) -> Option<usize> {
        let mut running = self.running.iter();
        running.position(|attempt| attempt.number == number)
    }
}

/// Nothing is wrong, and there is too much to do. `wait`: how long it would be until it is done.
fn crowded(wait: Option<Duration>) -> Fault {
    let sentence = match wait {
        Some(wait) => format!(
            "signers overloaded: earlier requests take about {} s more, and this request has less time",
            wait.as_secs()
        ),
        None => {
            "signers overloaded: the deadline of the request has passed, or is too near".to_owned()
        }
    };
    let seconds = wait.map_or(1, |wait| wait.as_secs().clamp(1, 60));
    Fault::unavailable(sentence).with_code(FaultCode::Busy {
        seconds: u32::try_from(seconds).unwrap_or(1),
    })
}

/// Whether a moment that was the present can no longer be: the clock was set back since.
fn is_future(at_ms: u64, now_ms: u64) -> bool {
    at_ms > now_ms.saturating_add(SKEW_MS)
}

/// Waits while there is nobody to ask, and takes the signatures of an earlier attempt if they come.
async fn late(
    order: &SigningOrder,
    call: &mut CallGuard<'_>,
    patience: Duration,
) -> Option<VerifiedSignatures> {
    let signed = async {
        loop {
            match call.replies.recv().await {
                Some((_, _, OrderReply::Signed(signatures))) => {
                    if let Ok(verified) = verify(order, signatures) {
                        return verified;
                    }
                }
                Some(_) => {}
                None => return std::future::pending().await,
            }
        }
    };
    timeout(patience, signed).await.ok()
}
