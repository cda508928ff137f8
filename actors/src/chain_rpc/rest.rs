//! REST over HTTP, to several nodes of one chain. An HTTP status is an answer.

use covault_core::fault::ExecuteCode;
use serde::de::DeserializeOwned;

use super::{
    ChainError, Refusal,
    health::EndpointHealth,
    jsonrpc::short,
    pool::{Answer, Call, Pool, Read, Trouble},
};

/// Statuses by which a node says that it is not the request that is wrong: no access, too many
/// requests, not now.
pub(super) const NOT_ABOUT_THE_REQUEST: [u16; 6] = [401, 403, 407, 408, 425, 429];

/// A client of one chain's nodes.
pub struct Rest {
    pool: Pool,
    is_answer: fn(&Answer) -> bool,
}

impl Rest {
    /// A client. Every status below 500 is an answer, but those that are not about the request.
    pub fn new(pool: Pool) -> Self {
        Self {
            pool,
            is_answer: |answer| {
                answer.status < 500 && !NOT_ABOUT_THE_REQUEST.contains(&answer.status)
            },
        }
    }

    /// Says itself what is an answer. The others mean that the node cannot now.
    #[must_use]
    pub fn answers_when(mut self, is_answer: fn(&Answer) -> bool) -> Self {
        self.is_answer = is_answer;
        self
    }

    /// Uses only nodes of which `wrong` finds nothing, once each, in what they answer to a call;
    /// else it says on which chain the node is. `Err` when the answer makes no sense.
    #[must_use]
    pub fn checked(
        mut self,
        call: Call,
        wrong: impl Fn(&Answer) -> Result<Option<String>, &'static str> + Send + Sync + 'static,
    ) -> Self {
        self.pool = self.pool.checked(call, move |answer| {
            if !answer.is_success() {
                return Read::Busy(format!("the node answered HTTP {}", answer.status));
            }
            match wrong(answer) {
                Ok(None) => Read::RpcResult(Ok(())),
                Ok(Some(reason)) => Read::RpcResult(Err(reason)),
                Err(reason) => Read::Garbled(reason.into()),
            }
        });
        self
    }

    /// The chain, for errors.
    pub fn name(&self) -> &str {
        self.pool.chain()
    }

    /// How the nodes are doing.
    pub fn health(&self) -> Vec<EndpointHealth> {
        self.pool.health()
    }

    /// Asks: the node that answered last first, then the others.
    ///
    /// # Errors
    /// [`ChainError`] when no node answered.
    pub async fn ask(&self, call: &Call) -> Result<Answer, ChainError> {
        Ok(self.pool.first(call, |answer| self.whole(answer)).await?)
    }

    /// Asks as many nodes as configuration wants to agree: money depends on the answer. Of each
    /// only what `read` takes out of it is compared; `None` when the answer makes no sense. `what`
    /// names the question in errors.
    ///
    /// # Errors
    /// [`ChainError`] when too few nodes answered, or do not agree.
    pub async fn query_quorum<T: PartialEq>(
        &self,
        what: &str,
        call: &Call,
        read: impl Fn(&Answer) -> Option<T>,
    ) -> Result<T, ChainError> {
        self.agreed_by(what, call, read, T::eq).await
    }

    /// As [`Rest::query_quorum`], where two answers need not be equal to be the same.
    ///
    /// # Errors
    /// As there.
    pub async fn agreed_by<T>(
        &self,
        what: &str,
        call: &Call,
        read: impl Fn(&Answer) -> Option<T>,
        same: impl Fn(&T, &T) -> bool,
    ) -> Result<T, ChainError> {
        let read = |answer: &Answer| match self.whole(answer) {
            Read::RpcResult(answer) => match read(&answer) {
                Some(said) => Read::RpcResult(said),
                None => Read::Garbled(format!("the node's answer about {what} makes no sense")),
            },
            Read::Busy(reason) => Read::Busy(reason),
            Read::Garbled(reason) => Read::Garbled(reason),
        };
        Ok(self.pool.query_quorum(what, call, read, same).await?)
    }

    /// As [`Pool::query_best_effort`]; `None` when the node gave no answer.
    pub async fn query_best_effort(&self, call: &Call) -> Option<Answer> {
        let answer = self
            .pool
            .query_best_effort(call, |answer| self.whole(answer))
            .await;
        answer.ok()
    }

    /// Sends: as [`Rest::ask`], in one round; also says whether a node may have taken it before and
    /// its answer was lost.
    pub async fn send(&self, call: &Call) -> (Result<Answer, ChainError>, bool) {
        let (answer, doubt) = self
            .pool
            .query_once(call, |answer| self.whole(answer))
            .await;
        (answer.map_err(ChainError::from), doubt)
    }

    /// Asks every node until `found` is true of an answer; `Err` is a node that does not know.
    ///
    /// # Errors
    /// When it was true of none and some node did not answer.
    pub async fn any(
        &self,
        call: &Call,
        found: impl Fn(&Answer) -> Result<bool, String>,
    ) -> Result<bool, String> {
        self.pool
            .any(call, |answer| self.whole(answer), found)
            .await
    }

    fn whole(&self, answer: &Answer) -> Read<Answer> {
        if (self.is_answer)(answer) {
            return Read::RpcResult(answer.clone());
        }
        let reason = format!("the node answered HTTP {}", answer.status);
        if NOT_ABOUT_THE_REQUEST.contains(&answer.status) {
            Read::Busy(reason)
        } else {
            Read::Garbled(reason)
        }
    }
}

impl Answer {
    /// Whether the status is one of success.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body, as JSON of this form.
    pub fn json<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.body).ok()
    }

    /// The body as text, cut to what fits a sentence.
    pub fn words(&self) -> String {
        short(&String::from_utf8_lossy(&self.body))
    }
}

impl From<Trouble> for ChainError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Unknown(reason) => ChainError::Unknown(reason),
            Trouble::WrongChain(reason) => ChainError::Refused(Refusal {
                reason,
                code: ExecuteCode::Unspecified,
            }),
        }
    }
}
