//! Questions to the nodes of one chain, in the protocol that they speak. A node's refusal is an
//! answer.

use std::{convert::Infallible, sync::Arc};

use covault_core::fault::ExecuteCode;
use futures::future::join_all;

use super::{
    ChainError, ChainRefusal,
    exchange::{NodeRequest, NodeResponse, ParsedResponse},
    health::EndpointHealth,
    pool::{NodePool, Objection, PoolError},
};

tokio::task_local! {
    static EVERYWHERE: ();
}

/// Has what is sent within go to every node, and not to the first one that takes it.
pub async fn everywhere<F: Future>(work: F) -> F::Output {
    EVERYWHERE.scope((), work).await
}

/// What nodes speak, e.g. JSON-RPC 2.0, with its settings.
pub trait Protocol: Send + Sync + 'static {
    /// How a node says no.
    type Refusal: Refusal;
}

/// One question in a protocol, to be put to any number of nodes.
pub trait ChainCall<P: Protocol>: Send + Sync {
    /// What a node says to it.
    type Answer: Send;

    /// What it asks for, for errors: "a balance", "eth_call".
    fn subject(&self) -> &'static str;

    /// The HTTP request.
    fn request(&self, protocol: &P) -> NodeRequest;

    /// What a node's answer says.
    fn read(
        &self,
        protocol: &P,
        response: &NodeResponse,
    ) -> ParsedResponse<Result<Self::Answer, P::Refusal>>;

    /// The same question, of whose answer `take` makes what is wanted, or says why it is none.
    fn reading<T, F>(self, take: F) -> MappedCall<Self, F>
    where
        Self: Sized,
        F: Fn(&Self::Answer) -> ParsedResponse<T> + Send + Sync,
        T: Send,
    {
        MappedCall { call: self, take }
    }

    /// As [`ChainCall::reading`]; where `take` finds nothing, the answer makes no sense.
    fn taking<T: Send>(
        self,
        take: impl Fn(&Self::Answer) -> Option<T> + Send + Sync,
    ) -> MappedCall<Self, impl Fn(&Self::Answer) -> ParsedResponse<T> + Send + Sync>
    where
        Self: Sized,
    {
        let subject = self.subject();
        self.reading(move |answer| ParsedResponse::required(subject, take(answer)))
    }
}

/// As [`ChainCall::reading`].
pub struct MappedCall<C, F> {
    call: C,
    take: F,
}

impl<P, C, F, T> ChainCall<P> for MappedCall<C, F>
where
    P: Protocol,
    C: ChainCall<P>,
    F: Fn(&C::Answer) -> ParsedResponse<T> + Send + Sync,
    T: Send,
{
    type Answer = T;

    fn subject(&self) -> &'static str {
        self.call.subject()
    }

    fn request(&self, protocol: &P) -> NodeRequest {
        self.call.request(protocol)
    }

    fn read(&self, protocol: &P, response: &NodeResponse) -> ParsedResponse<Result<T, P::Refusal>> {
        let answer = self.call.read(protocol, response);
        answer.and_then(|answer| match answer {
            Ok(answer) => (self.take)(&answer).and_then(|taken| ParsedResponse::Value(Ok(taken))),
            Err(refusal) => ParsedResponse::Value(Err(refusal)),
        })
    }
}

/// One that is asked more than once.
impl<P: Protocol, C: ChainCall<P>> ChainCall<P> for &C {
    type Answer = C::Answer;

    fn subject(&self) -> &'static str {
        (**self).subject()
    }

    fn request(&self, protocol: &P) -> NodeRequest {
        (**self).request(protocol)
    }

    fn read(
        &self,
        protocol: &P,
        response: &NodeResponse,
    ) -> ParsedResponse<Result<Self::Answer, P::Refusal>> {
        (**self).read(protocol, response)
    }
}

/// A node's no to a question.
pub trait Refusal: Send {
    /// As a sentence.
    fn words(&self) -> String;

    /// Whether two nodes say the same.
    fn agrees_with(&self, other: &Self) -> bool;

    /// Whether the node says that there is no such thing.
    fn is_absence(&self) -> bool {
        false
    }
}

/// Where every answer is read by who asks.
impl Refusal for Infallible {
    fn words(&self) -> String {
        match *self {}
    }

    fn agrees_with(&self, _: &Self) -> bool {
        match *self {}
    }
}

/// Why a call gave no result.
#[derive(Clone, Debug, PartialEq)]
pub enum CallError<R> {
    /// No node answered, or they do not agree; ask again.
    Unreachable(String),
    /// The answer is longer than any that is read.
    TooLong(String),
    /// A node refused.
    Node(R),
    /// Every node that answered is on another chain.
    WrongChain(String),
}

impl<R: Refusal> CallError<R> {
    /// Why there was none, in words.
    pub fn into_reason(self) -> String {
        match self {
            Self::Unreachable(reason) | Self::TooLong(reason) | Self::WrongChain(reason) => reason,
            Self::Node(refusal) => refusal.words(),
        }
    }
}

impl<R> From<PoolError> for CallError<R> {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Unknown(reason) => Self::Unreachable(reason),
            PoolError::TooLong(reason) => Self::TooLong(reason),
            PoolError::WrongChain(reason) => Self::WrongChain(reason),
        }
    }
}

/// Another time a node may not refuse.
impl<R: Refusal> From<CallError<R>> for ChainError {
    fn from(error: CallError<R>) -> Self {
        match error {
            CallError::Unreachable(reason) | CallError::TooLong(reason) => Self::Unknown(reason),
            CallError::Node(refusal) => Self::Unknown(refusal.words()),
            CallError::WrongChain(reason) => Self::Refused(ChainRefusal {
                reason,
                code: ExecuteCode::Unspecified,
            }),
        }
    }
}

impl From<PoolError> for ChainError {
    fn from(error: PoolError) -> Self {
        CallError::<Infallible>::from(error).into()
    }
}

/// A client of one chain's nodes.
pub struct Client<P> {
    pool: NodePool,
    protocol: Arc<P>,
}

impl<P: Protocol> Client<P> {
    /// A client. Nothing is asked yet.
    pub fn new(pool: NodePool, protocol: P) -> Self {
        Self {
            pool,
            protocol: Arc::new(protocol),
        }
    }

    /// Uses only nodes of which `wrong` finds nothing, once each, in what they answer to a call;
    /// else it says on which chain the node is. `Err` when the answer makes no sense.
    #[must_use]
    pub fn checked<C: ChainCall<P> + Send + Sync + 'static>(
        mut self,
        call: C,
        wrong: impl Fn(&C::Answer) -> Result<Option<String>, String> + Send + Sync + 'static,
    ) -> Self {
        let protocol = Arc::clone(&self.protocol);
        let request = call.request(&protocol);
        self.pool = self.pool.checked(request, move |response| {
            call.read(&protocol, response).and_then(|answer| {
                match answer.map(|answer| wrong(&answer)) {
                    Ok(Ok(None)) => ParsedResponse::Value(Ok(())),
                    Ok(Ok(Some(reason))) => ParsedResponse::Value(Err(reason)),
                    Ok(Err(reason)) => ParsedResponse::Malformed(reason),
                    Err(refusal) => ParsedResponse::Malformed(refusal.words()),
                }
            })
        });
        self
    }

    /// The chain, for errors.
    pub fn chain(&self) -> &str {
        self.pool.chain()
    }

    /// As [`NodePool::agree`].
    pub fn agree(&self) -> usize {
        self.pool.agree()
    }

    /// Whether all nodes are on this machine.
    pub fn is_local(&self) -> bool {
        self.pool.is_local()
    }

    /// How the nodes are doing.
    pub fn health(&self) -> Vec<EndpointHealth> {
        self.pool.health()
    }

    /// As [`NodePool::take_longest`].
    pub fn take_longest(&self) -> usize {
        self.pool.take_longest()
    }

    /// Random bytes.
    pub fn random<const N: usize>(&self) -> [u8; N] {
        self.pool.random()
    }

    /// Asks: the node that answered last first, then the others.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn ask<C: ChainCall<P>>(&self, call: C) -> Result<C::Answer, CallError<P::Refusal>> {
        let read = |response: &NodeResponse| call.read(&self.protocol, response);
        let answer = self.pool.query(&call.request(&self.protocol), read).await?;
        answer.map_err(CallError::Node)
    }

    /// As [`NodePool::submit`], and within [`everywhere`] as [`NodePool::submit_everywhere`].
    pub async fn submit<C: ChainCall<P>>(
        &self,
        call: C,
        objection: impl Fn(Result<&C::Answer, &P::Refusal>) -> Option<Objection> + Sync,
    ) -> (Result<C::Answer, CallError<P::Refusal>>, bool) {
        let read = |response: &NodeResponse| call.read(&self.protocol, response);
        let request = call.request(&self.protocol);
        let objection = |said: &Result<C::Answer, P::Refusal>| objection(said.as_ref());
        let (answer, lost) = if EVERYWHERE.try_with(|()| ()).is_ok() {
            self.pool.submit_everywhere(&request, read, objection).await
        } else {
            self.pool.submit(&request, read, objection).await
        };
        let answer = answer.map_err(CallError::from);
        (
            answer.and_then(|answer| answer.map_err(CallError::Node)),
            lost,
        )
    }

    /// As [`NodePool::query_best_effort`].
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn query_best_effort<C: ChainCall<P>>(
        &self,
        call: C,
    ) -> Result<C::Answer, CallError<P::Refusal>> {
        let read = |response: &NodeResponse| call.read(&self.protocol, response);
        let request = call.request(&self.protocol);
        let answer = self.pool.query_best_effort(&request, read).await;
        answer
            .map_err(CallError::Unreachable)?
            .map_err(CallError::Node)
    }

    /// As [`NodePool::query_several_best_effort`].
    pub async fn query_several_best_effort<C: ChainCall<P>>(
        &self,
        call: C,
    ) -> Vec<Result<C::Answer, CallError<P::Refusal>>> {
        let read = |response: &NodeResponse| call.read(&self.protocol, response);
        let request = call.request(&self.protocol);
        let answers = self.pool.query_several_best_effort(&request, read).await;
        let answers = answers.into_iter().map(|answer| {
            answer
                .map_err(CallError::Unreachable)?
                .map_err(CallError::Node)
        });
        answers.collect()
    }

    /// The answer of one node, counted from 0.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn at<C: ChainCall<P>>(
        &self,
        node: usize,
        call: C,
    ) -> Result<C::Answer, CallError<P::Refusal>> {
        let read = |response: &NodeResponse| call.read(&self.protocol, response);
        let request = call.request(&self.protocol);
        let answer = self.pool.at(node, &request, read).await?;
        answer.map_err(CallError::Node)
    }

    /// What `ask` gives of each node, by their numbers from 0.
    pub async fn each<F: Future>(&self, ask: impl Fn(usize) -> F) -> Vec<F::Output> {
        join_all((0..self.pool.nodes()).map(ask)).await
    }

    /// As [`Client::each`], where `ask` gives something of as many nodes as have to agree.
    pub async fn witnesses<T, F>(&self, ask: impl Fn(usize) -> F) -> Option<Vec<T>>
    where
        F: Future<Output = Option<T>>,
    {
        let said: Vec<T> = self.each(ask).await.into_iter().flatten().collect();
        (said.len() >= self.pool.agree()).then_some(said)
    }

    /// What nodes say, of as many as have to agree, for answers that are counted by who asks: of all nodes, where those
    /// that are asked first do not say the same.
    ///
    /// # Errors
    /// [`CallError`]; also when fewer answered than have to agree.
    pub async fn voices<C: ChainCall<P>>(
        &self,
        call: C,
        same: impl Fn(&C::Answer, &C::Answer) -> bool + Sync,
    ) -> Result<Vec<Result<C::Answer, P::Refusal>>, CallError<P::Refusal>> {
        let read = |response: &NodeResponse| call.read(&self.protocol, response);
        let request = call.request(&self.protocol);
        let said = self.pool.gather(&request, read, same_word(same)).await?;
        Ok(said.into_iter().map(|(_, said)| said).collect())
    }

    /// What as many of these say as have to agree, where no others say something else.
    pub fn agreed_of<T: PartialEq + Clone>(&self, said: &[T]) -> Option<T> {
        let voices = |one: &T| said.iter().filter(|other| *other == one).count();
        let mut enough = said.iter().filter(|one| voices(one) >= self.agree());
        let first = enough.next()?;
        enough.all(|other| other == first).then(|| first.clone())
    }

    /// What as many nodes say as have to agree, about what not all of them need to have heard of: they are not at the
    /// same block.
    ///
    /// # Errors
    /// [`CallError`]; also when the nodes do not agree.
    pub async fn seconded<C: ChainCall<P>>(
        &self,
        call: C,
    ) -> Result<C::Answer, CallError<P::Refusal>>
    where
        C::Answer: PartialEq + Clone,
    {
        let subject = call.subject();
        let (mut said, mut refusals) = (Vec::new(), Vec::new());
        for answer in self.voices(call, C::Answer::eq).await? {
            match answer {
                Ok(answer) => said.push(answer),
                Err(refusal) => refusals.push(refusal),
            }
        }
        let refusal = refusals.pop().filter(|_| said.is_empty());
        let none = || refusal.map_or_else(|| self.disagree(subject), CallError::Node);
        self.agreed_of(&said).ok_or_else(none)
    }

    /// As [`Client::seconded`], of what some of the nodes may not have yet: nothing then.
    ///
    /// # Errors
    /// As there.
    pub async fn seconded_or_none<C, T>(&self, call: C) -> Result<Option<T>, CallError<P::Refusal>>
    where
        C: ChainCall<P, Answer = Option<T>>,
        T: PartialEq + Clone + Send,
    {
        let subject = call.subject();
        let (mut found, mut is_absent, mut refusal) = (Vec::new(), false, None);
        for answer in self.voices(call, Option::eq).await? {
            match answer {
                Ok(Some(one)) => found.push(one),
                Ok(None) => is_absent = true,
                Err(one) => refusal = Some(one),
            }
        }
        match self.agreed_of(&found) {
            Some(one) => Ok(Some(one)),
            None if is_absent && found.len() < self.agree() => Ok(None),
            None => Err(match refusal.filter(|_| found.is_empty()) {
                Some(refusal) => CallError::Node(refusal),
                None => self.disagree(subject),
            }),
        }
    }

    /// The highest that as many nodes say as have to agree.
    ///
    /// # Errors
    /// [`CallError`]; also when none of them says anything.
    pub async fn highest<C: ChainCall<P>>(
        &self,
        call: C,
    ) -> Result<C::Answer, CallError<P::Refusal>>
    where
        C::Answer: Ord,
    {
        let subject = call.subject();
        let said = self.voices(call, |_, _| true).await?;
        let highest = said.into_iter().flatten().max();
        highest.ok_or_else(|| self.disagree(subject))
    }

    /// The highest that as many nodes reach as have to agree, of what only grows: nodes are at different blocks, and two
    /// questions at different moments.
    ///
    /// # Errors
    /// [`CallError`]; also when too few of them say anything.
    pub async fn reached<C: ChainCall<P>, T: Ord>(
        &self,
        call: C,
        take: impl Fn(&C::Answer) -> Option<T> + Sync,
    ) -> Result<T, CallError<P::Refusal>> {
        let subject = call.subject();
        let (mut said, mut refusal) = (Vec::new(), None);
        let same =
            |one: &C::Answer, other: &C::Answer| take(one).is_some() && take(other).is_some();
        for answer in self.voices(call, same).await? {
            match answer {
                Ok(answer) => said.extend(take(&answer)),
                Err(one) => refusal = Some(one),
            }
        }
        said.sort_unstable_by(|one, other| other.cmp(one));
        let refusal = refusal.filter(|_| said.is_empty());
        let none = || refusal.map_or_else(|| self.disagree(subject), CallError::Node);
        said.into_iter().nth(self.agree() - 1).ok_or_else(none)
    }

    /// That nodes do not agree about something.
    pub fn disagree(&self, subject: &str) -> CallError<P::Refusal> {
        let (chain, agree) = (self.chain(), self.agree());
        CallError::Unreachable(format!(
            "{chain}: the nodes disagree about {subject}; {agree} must agree"
        ))
    }

    /// Asks as many nodes as configuration wants to agree: money depends on the answer. `same` says of two whether
    /// they agree.
    ///
    /// # Errors
    /// [`CallError`]; also when the nodes do not agree.
    pub async fn quorum<C: ChainCall<P>>(
        &self,
        call: C,
        same: impl Fn(&C::Answer, &C::Answer) -> bool + Sync,
    ) -> Result<C::Answer, CallError<P::Refusal>> {
        let read = |response: &NodeResponse| call.read(&self.protocol, response);
        let (subject, request) = (call.subject(), call.request(&self.protocol));
        let said = self
            .pool
            .query_quorum(subject, &request, read, same_word(same));
        said.await?.map_err(CallError::Node)
    }

    /// As [`Client::agreed`], where of each answer only what `take` takes out of it is compared; `None` when the
    /// answer makes no sense.
    ///
    /// # Errors
    /// As there.
    pub async fn query_quorum<C: ChainCall<P>, T: PartialEq + Send>(
        &self,
        call: C,
        take: impl Fn(&C::Answer) -> Option<T> + Send + Sync,
    ) -> Result<T, CallError<P::Refusal>> {
        self.query_quorum_by(call, take, T::eq).await
    }

    /// As [`Client::query_quorum`], where two answers need not be equal to be the same.
    ///
    /// # Errors
    /// As there.
    pub async fn query_quorum_by<C: ChainCall<P>, T: Send>(
        &self,
        call: C,
        take: impl Fn(&C::Answer) -> Option<T> + Send + Sync,
        same: impl Fn(&T, &T) -> bool + Sync,
    ) -> Result<T, CallError<P::Refusal>> {
        let subject = call.subject();
        let take = move |answer: &C::Answer| ParsedResponse::required(subject, take(answer));
        self.quorum(call.reading(take), same).await
    }

    /// Asks every node, one after the other, until `found` is true of an answer; `Err` is a node
    /// that does not know.
    ///
    /// # Errors
    /// When it was true of none and some node of this chain, or every node, did not answer.
    pub async fn any<C: ChainCall<P>>(
        &self,
        call: C,
        found: impl Fn(&C::Answer) -> Result<bool, String>,
    ) -> Result<bool, String> {
        let read = |response: &NodeResponse| call.read(&self.protocol, response);
        let found = |answer: &Result<C::Answer, P::Refusal>| match answer {
            Ok(answer) => found(answer),
            Err(refusal) if refusal.is_absence() => Ok(false),
            Err(refusal) => Err(refusal.words()),
        };
        let request = call.request(&self.protocol);
        self.pool.any(&request, read, found).await
    }
}

/// Whether two nodes say the same: an answer, or the same refusal.
fn same_word<T, R: Refusal>(
    same: impl Fn(&T, &T) -> bool + Sync,
) -> impl Fn(&Result<T, R>, &Result<T, R>) -> bool + Sync {
    move |one, other| match (one, other) {
        (Ok(one), Ok(other)) => same(one, other),
        (Err(one), Err(other)) => one.agrees_with(other),
        _ => false,
    }
}
