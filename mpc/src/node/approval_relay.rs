//! Between the page of a node, on which people approve, and the orchestrators that the node trusts.
//!
//! It keeps nothing that nobody waits for: few questions at once, one answer of each orchestrator, and each answer is
//! bounded. So whatever an orchestrator tells costs little memory, for seconds.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, OnceLock},
    time::Duration,
};

use covault_core::{
    fault::Fault,
    ids::{RequestId, SessionId, VaultId},
    order::NodeId,
    port::{Clock, Entropy, random_16},
};
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::time_to_announce;
use crate::{
    envelope::{EnvelopeCodec, EnvelopeHeader, EnvelopeKind},
    loaded_keys::LoadedKeys,
    message::{decode, encode},
    questions::{NodeAnswer, NodeOutcome, NodeQuestion, NodeQuestionMsg},
    veto::VetoStore,
};

/// Questions that wait for answers at once.
const MAX_OPEN: usize = 16;
/// How long the first answer may take, the first that says that something is stored, and how long the others after it.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_TO_STORE: Duration = Duration::from_secs(15);
const PATIENCE_FOR_OTHERS: Duration = Duration::from_secs(3);

/// What connects the page of a node with its orchestrators.
#[derive(Default)]
pub struct ApprovalRelay {
    /// Set when the node is open.
    node: OnceLock<RelayParts>,
    open: Mutex<HashMap<SessionId, OpenQuestion>>,
    /// The time of the last question.
    asked_ms: Mutex<u64>,
}

/// What it has of its node.
pub(super) struct RelayParts {
    pub codec: Arc<EnvelopeCodec>,
    pub keys: Arc<LoadedKeys>,
    pub vetoes: Arc<VetoStore>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    pub orchestrators: Vec<NodeId>,
}

struct OpenQuestion {
    /// Who has not answered.
    silent: BTreeSet<NodeId>,
    answers: mpsc::Sender<(NodeId, NodeAnswer)>,
}

/// What orchestrators tell of requests that wait for people.
#[derive(Debug, Default)]
pub struct ToldRequests {
    /// The same told by several orchestrators once.
    pub requests: Vec<ToldRequest>,
    /// More wait than these.
    pub more: bool,
    /// Orchestrators that have not answered in time.
    pub silent: Vec<NodeId>,
}

/// A request, as an orchestrator tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldRequest {
    /// By which orchestrators.
    pub by: Vec<NodeId>,
    /// Protobuf bytes of a `SigningRequest` of the platform schema, which nobody has looked at.
    pub request: Vec<u8>,
}

/// A question that is being asked; forgotten when it is dropped.
struct PendingQuestion<'a> {
    relay: &'a ApprovalRelay,
    session: SessionId,
    answers: mpsc::Receiver<(NodeId, NodeAnswer)>,
    silent: usize,
    /// When nobody waits any longer, however many still answer.
    until: Instant,
}

impl Drop for PendingQuestion<'_> {
    fn drop(&mut self) {
        self.relay.open.lock().remove(&self.session);
    }
}

impl ApprovalRelay {
    pub(super) fn connect(&self, node: RelayParts) {
        // One relay is one node's.
        let _ = self.node.set(node);
    }

    fn node(&self) -> Result<&RelayParts, Fault> {
        let node = self.node.get();
        node.ok_or_else(|| Fault::unavailable("this node is starting; try again in a few seconds"))
    }

    /// Whether the node has a share of this key of the vault. It signs nothing else.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] while the node is starting.
    pub fn holds(&self, vault: VaultId, root_public_key: &[u8]) -> Result<bool, Fault> {
        let key = self.node()?.keys.get(root_public_key);
        Ok(key.is_some_and(|key| key.record().vault == vault))
    }

    /// Whether the node holds a share of a key of this vault.
    ///
    /// # Errors
    /// When the node has stopped.
    pub fn signs_for(&self, vault: VaultId) -> Result<bool, Fault> {
        let keys = self.node()?.keys.all();
        Ok(keys.iter().any(|key| key.record().vault == vault))
    }

    /// What the node never signs: what is rejected here it obeys at once.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] while the node is starting.
    pub fn vetoes(&self) -> Result<Arc<VetoStore>, Fault> {
        Ok(Arc::clone(&self.node()?.vetoes))
    }

    /// Asks all orchestrators what waits for people in the vaults of this node; with `requests` for these alone.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when none answers within five seconds, or too much is being asked.
    pub async fn pending(&self, requests: &[RequestId]) -> Result<ToldRequests, Fault> {
        let to = self.node()?.orchestrators.clone();
        let question = NodeQuestion::Pending {
            requests: requests.to_vec(),
        };
        let mut silent: BTreeSet<NodeId> = to.iter().copied().collect();
        let questions = to.into_iter().map(|to| (to, question.clone())).collect();
        let mut asking = self.ask(questions, PATIENCE)?;
        let (mut told, mut any) = (ToldRequests::default(), false);
        let mut problem = "no orchestrator of this node answers, or their clocks and this node's are more than a minute apart; try again"
            .to_owned();
        let patience = |any| match any {
            true => PATIENCE_FOR_OTHERS,
            false => PATIENCE,
        };
        while let Some((by, answer)) = asking.next(patience(any)).await {
            match answer {
                NodeAnswer::Pending { requests, more } => {
                    any = true;
                    silent.remove(&by);
                    told.more |= more;
                    for request in requests {
                        let mut all = told.requests.iter_mut();
                        match all.find(|known| known.request == request) {
                            Some(known) if known.by.contains(&by) => {}
                            Some(known) => known.by.push(by),
                            None => told.requests.push(ToldRequest {
                                by: vec![by],
                                request,
                            }),
                        }
                    }
                }
                NodeAnswer::Refused { problem: why } => {
                    problem = format!("the service refused to list what waits: {why}");
                }
                NodeAnswer::Done { .. } => {}
            }
        }
        // Anyone who is quick with nothing must not hide what the others would tell.
        told.more |= !silent.is_empty();
        told.silent = silent.into_iter().collect();
        match any {
            true => Ok(told),
            false => Err(Fault::unavailable(problem)),
        }
    }

    /// Brings approvals or rejections to orchestrators, to each its own. What those say that answer in time: one that says
    /// that nothing is stored keeps nobody from waiting for the others.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when none answers: what was brought may be stored all the same.
    pub async fn act(
        &self,
        questions: Vec<(NodeId, NodeQuestion)>,
    ) -> Result<Vec<(NodeId, NodeAnswer)>, Fault> {
        let mut asking = self.ask(questions, PATIENCE_TO_STORE)?;
        let (mut answers, mut any) = (Vec::new(), false);
        loop {
            let patience = match any {
                true => PATIENCE_FOR_OTHERS,
                false => PATIENCE_TO_STORE,
            };
            let Some((by, answer)) = asking.next(patience).await else {
                break;
            };
            any |= match &answer {
                NodeAnswer::Done { outcomes } => {
                    let mut outcomes = outcomes.iter();
                    outcomes.any(|it| matches!(it, NodeOutcome::Done { .. }))
                }
                NodeAnswer::Pending { .. } | NodeAnswer::Refused { .. } => false,
            };
            answers.push((by, answer));
        }
        if answers.is_empty() {
            let problem =
                "the service does not answer: it may be stored all the same; load the page again";
            return Err(Fault::unavailable(problem));
        }
        Ok(answers)
    }

    fn ask(
        &self,
        questions: Vec<(NodeId, NodeQuestion)>,
        patience: Duration,
    ) -> Result<PendingQuestion<'_>, Fault> {
        let node = self.node()?;
        let session = SessionId::from_random(random_16(&*node.entropy));
        let (sender, answers) = mpsc::channel(questions.len().max(1));
        {
            let mut open = self.open.lock();
            if open.len() >= MAX_OPEN {
                return Err(Fault::unavailable(
                    "too many requests on this page; try again in a few seconds",
                ));
            }
            let silent = questions.iter().map(|(to, _)| *to).collect();
            let answers = sender;
            open.insert(session, OpenQuestion { silent, answers });
        }
        let mut asking = PendingQuestion {
            relay: self,
            session,
            answers,
            silent: 0,
            until: Instant::now() + patience,
        };
        // They go out in the order of their times: an older one would count for nothing.
        let mut last_ms = self.asked_ms.lock();
        let at_ms = time_to_announce(node.clock.now_ms(), *last_ms);
        *last_ms = at_ms;
        let mut unsent = None;
        for (to, question) in questions {
            let body = encode(&NodeQuestionMsg { at_ms, question })?;
            let header = EnvelopeHeader {
                session,
                ..EnvelopeHeader::outside_sessions(EnvelopeKind::Question, node.codec.id(), to)
            };
            // One that cannot be sent to keeps the question from no other.
            match node.codec.send(header, &body) {
                Ok(()) => asking.silent += 1,
                Err(fault) => unsent = Some(fault),
            }
        }
        match unsent {
            Some(fault) if asking.silent == 0 => Err(fault),
            _ => Ok(asking),
        }
    }

    /// Whether a caller waits for this answer.
    pub(super) fn expects(&self, from: &NodeId, session: &SessionId) -> bool {
        let open = self.open.lock();
        let question = open.get(session);
        question.is_some_and(|question| question.silent.contains(from))
    }

    /// Takes an answer whose sender is certain; one of each.
    pub(super) fn heard(&self, from: NodeId, session: &SessionId, body: &[u8]) {
        let answer = decode::<NodeAnswer>(body).and_then(NodeAnswer::sanitized);
        let mut open = self.open.lock();
        if let (Some(question), Some(answer)) = (open.get_mut(session), answer)
            && question.silent.remove(&from)
        {
            // There is room for one of each.
            let _ = question.answers.try_send((from, answer));
        }
    }
}

impl PendingQuestion<'_> {
    /// The next answer, when one comes in time.
    async fn next(&mut self, patience: Duration) -> Option<(NodeId, NodeAnswer)> {
        self.silent = self.silent.checked_sub(1)?;
        let until = self.until.min(Instant::now() + patience);
        timeout_at(until, self.answers.recv()).await.ok().flatten()
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{path::Path, sync::atomic::Ordering};

    use async_trait::async_trait;
    use covault_core::{fault::Class, testing::ManualClock};

    use super::*;
    use crate::{
        bus::{Bus, BusAddress, BusError, Subscription, memory::MemoryBus},
        identity::NodeIdentity,
        questions::MAX_PENDING,
        test_support::SystemEntropy,
    };

    const STRANGER: NodeId = NodeId([1; 32]);

    fn relay() -> Arc<ApprovalRelay> {
        relay_at(Arc::new(ManualClock::at(1_000_000)))
    }

    fn relay_at(clock: Arc<ManualClock>) -> Arc<ApprovalRelay> {
        relay_on(MemoryBus::new(), clock)
    }

    fn relay_on(bus: Arc<dyn Bus>, clock: Arc<ManualClock>) -> Arc<ApprovalRelay> {
        let relay = ApprovalRelay::default();
        let identity = || Arc::new(NodeIdentity::generate(&SystemEntropy));
        let codec = EnvelopeCodec::new(identity(), bus, Arc::new(SystemEntropy));
        relay.connect(RelayParts {
            codec: Arc::new(codec),
            keys: Arc::new(LoadedKeys::load(Vec::new()).unwrap()),
            vetoes: Arc::new(VetoStore::of(Path::new("/nowhere"))),
            clock,
            entropy: Arc::new(SystemEntropy),
            orchestrators: vec![identity().id(), identity().id()],
        });
        Arc::new(relay)
    }

    fn pending(requests: Vec<Vec<u8>>) -> Vec<u8> {
        let more = false;
        encode(&NodeAnswer::Pending { requests, more }).unwrap()
    }

    /// The question that is being asked.
    async fn asked(relay: &ApprovalRelay) -> SessionId {
        loop {
            if let Some(session) = relay.open.lock().keys().next() {
                return *session;
            }
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers__should_be_taken_once_of_those_that_were_asked_and_merged() {
        let relay = relay();
        let told = tokio::spawn({
            let relay = Arc::clone(&relay);
            async move { relay.pending(&[]).await }
        });
        let session = asked(&relay).await;
        let [one, two] =
            <[NodeId; 2]>::try_from(relay.node().unwrap().orchestrators.clone()).unwrap();
        assert!(relay.expects(&one, &session) && !relay.expects(&STRANGER, &session));
        assert!(!relay.expects(&one, &SessionId::from_bytes([9; 16])));
        relay.heard(STRANGER, &session, &pending(vec![vec![9]]));
        // Neither can be an answer, and the place is not lost.
        relay.heard(one, &session, b"x");
        relay.heard(one, &session, &pending(vec![vec![7]; MAX_PENDING + 1]));
        relay.heard(one, &session, &pending(vec![vec![1], vec![2]]));
        relay.heard(one, &session, &pending(vec![vec![3]]));
        relay.heard(two, &session, &pending(vec![vec![2], vec![4]]));
        let told = told.await.unwrap().unwrap();
        let told: Vec<_> = told
            .requests
            .into_iter()
            .map(|it| (it.by, it.request))
            .collect();
        let expected = [
            (vec![one], vec![1]),
            (vec![one, two], vec![2]),
            (vec![two], vec![4]),
        ];
        assert_eq!(told, expected);
        assert!(relay.open.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn questions__should_be_few_at_once_and_forgotten_when_nobody_answers() {
        let relay = relay();
        let ask = || {
            let relay = Arc::clone(&relay);
            tokio::spawn(async move { relay.pending(&[]).await })
        };
        let asking: Vec<_> = (0..MAX_OPEN).map(|_| ask()).collect();
        while relay.open.lock().len() < MAX_OPEN {
            tokio::task::yield_now().await;
        }
        let fault = relay.pending(&[]).await.unwrap_err();
        assert!(
            fault.message().contains("too many requests on this page"),
            "{fault:?}"
        );
        for asking in asking {
            let fault = asking.await.unwrap().unwrap_err();
            assert!(fault.message().contains("no orchestrator"), "{fault:?}");
        }
        assert!(relay.open.lock().is_empty());
        let starting = ApprovalRelay::default().pending(&[]).await.unwrap_err();
        assert!(starting.message().contains("is starting"), "{starting:?}");
    }

    /// A bus that takes nothing for some.
    #[derive(Default)]
    struct UnevenBus {
        taken: Mutex<Vec<BusAddress>>,
        refuses: Mutex<Vec<BusAddress>>,
    }

    #[async_trait]
    impl Bus for UnevenBus {
        fn publish(&self, to: BusAddress, _: Vec<u8>) -> Result<(), BusError> {
            if self.refuses.lock().contains(&to) {
                return Err(BusError::Full("too many messages wait"));
            }
            self.taken.lock().push(to);
            Ok(())
        }

        async fn subscribe(&self, _: NodeId, _: bool) -> Result<Subscription, BusError> {
            Err(BusError::Refused("nobody listens"))
        }

        fn reachable(&self) -> bool {
            true
        }
    }

    #[tokio::test(start_paused = true)]
    async fn questions__should_reach_the_others_when_one_cannot_be_sent_to() {
        let bus = Arc::new(UnevenBus::default());
        let clock = Arc::new(ManualClock::at(1_000_000));
        let relay = relay_on(Arc::clone(&bus) as _, clock);
        let [one, two] =
            <[NodeId; 2]>::try_from(relay.node().unwrap().orchestrators.clone()).unwrap();
        bus.refuses.lock().push(BusAddress::Inbox(one));
        let told = tokio::spawn({
            let relay = Arc::clone(&relay);
            async move { relay.pending(&[]).await }
        });
        let session = asked(&relay).await;
        let began = Instant::now();
        relay.heard(two, &session, &pending(vec![vec![1]]));
        let told = told.await.unwrap().unwrap();
        assert_eq!(*bus.taken.lock(), [BusAddress::Inbox(two)]);
        // Nobody waits for whom it did not reach, and what that one would tell may be missing.
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(
            (told.requests.len(), told.more, told.silent),
            (1, true, vec![one])
        );
        bus.refuses.lock().push(BusAddress::Inbox(two));
        let fault = relay.pending(&[]).await.unwrap_err();
        assert_eq!(*fault.class(), Class::Unavailable, "{fault:?}");
        assert!(relay.open.lock().is_empty());
    }

    /// One who says at once that nothing is stored must not hide what the other stores.
    #[tokio::test(start_paused = true)]
    async fn act__should_wait_for_those_who_store_what_others_refuse() {
        let relay = relay();
        let [one, two] =
            <[NodeId; 2]>::try_from(relay.node().unwrap().orchestrators.clone()).unwrap();
        let act = || {
            let relay = Arc::clone(&relay);
            let question = NodeQuestion::Reject {
                requests: vec![RequestId::from_bytes([1; 16])],
                reason: String::new(),
                proof: covault_core::approval::ApprovalProof::Ssh(String::new()),
            };
            let questions = vec![(one, question.clone()), (two, question)];
            tokio::spawn(async move { relay.act(questions).await })
        };
        let refused = NodeAnswer::Refused {
            problem: "no".into(),
        };
        let done = NodeAnswer::Done {
            outcomes: vec![NodeOutcome::Done { missing: 0 }],
        };
        let acting = act();
        let session = asked(&relay).await;
        relay.heard(one, &session, &encode(&refused).unwrap());
        tokio::time::sleep(PATIENCE_TO_STORE - Duration::from_secs(1)).await;
        relay.heard(two, &session, &encode(&done).unwrap());
        let answers = acting.await.unwrap().unwrap();
        assert_eq!(answers, [(one, refused), (two, done.clone())]);
        // Once it is stored, nobody waits long for the others.
        let acting = act();
        let session = asked(&relay).await;
        relay.heard(two, &session, &encode(&done).unwrap());
        tokio::time::sleep(PATIENCE_FOR_OTHERS + Duration::from_secs(1)).await;
        assert!(acting.is_finished());
        assert_eq!(acting.await.unwrap().unwrap(), [(two, done)]);
        let fault = act().await.unwrap().unwrap_err();
        assert!(fault.message().contains("may be stored"), "{fault:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn pending__should_end_when_the_time_is_over_however_many_refuse_before() {
        let relay = relay();
        let one = relay.node().unwrap().orchestrators[0];
        let began = Instant::now();
        let asking = tokio::spawn({
            let relay = Arc::clone(&relay);
            async move { relay.pending(&[]).await }
        });
        let session = asked(&relay).await;
        tokio::time::sleep(PATIENCE - Duration::from_millis(100)).await;
        let problem = "not now".into();
        let refused = encode(&NodeAnswer::Refused { problem }).unwrap();
        relay.heard(one, &session, &refused);
        let fault = asking.await.unwrap().unwrap_err();
        assert!(fault.message().contains("not now"), "{fault:?}");
        assert!(began.elapsed() <= PATIENCE + Duration::from_millis(10));
    }

    #[tokio::test(start_paused = true)]
    async fn questions__should_be_of_this_time_again_after_a_clock_that_was_far_ahead() {
        let clock = Arc::new(ManualClock::at(1_000_000));
        let relay = relay_at(Arc::clone(&clock));
        let asked_ms = || *relay.asked_ms.lock();
        let _ = relay.ask(Vec::new(), PATIENCE).unwrap();
        let _ = relay.ask(Vec::new(), PATIENCE).unwrap();
        assert_eq!(asked_ms(), 1_000_001);
        clock.0.store(900_000_000, Ordering::Relaxed);
        let _ = relay.ask(Vec::new(), PATIENCE).unwrap();
        clock.0.store(2_000_000, Ordering::Relaxed);
        let _ = relay.ask(Vec::new(), PATIENCE).unwrap();
        assert_eq!(asked_ms(), 2_000_000);
    }
}
