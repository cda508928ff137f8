//! REST over HTTP, to several nodes of one chain. An HTTP status is an answer.

use covault_core::fault::ExecuteCode;
use serde::de::DeserializeOwned;

use super::{
    ChainError, ChainRefusal,
    health::EndpointHealth,
    jsonrpc::short,
    pool::{NodePool, NodeRequest, NodeResponse, ParsedResponse, PoolError},
};

/// Statuses by which a node says that it is not the request that is wrong: no access, too many
/// requests, not now.
pub(super) const NOT_ABOUT_THE_REQUEST: [u16; 6] = [401, 403, 407, 408, 425, 429];

/// A client of one chain's nodes.
pub struct RestClient {
    pool: NodePool,
    is_answer: fn(&NodeResponse) -> bool,
}

impl RestClient {
    /// A client. Every status below 500 is an answer, but those that are not about the request.
    pub fn new(pool: NodePool) -> Self {
        Self {
            pool,
            is_answer: |answer| {
                answer.status < 500 && !NOT_ABOUT_THE_REQUEST.contains(&answer.status)
            },
        }
    }

    /// Says itself what is an answer. The others mean that the node cannot now.
    #[must_use]
    pub fn answers_when(mut self, is_answer: fn(&NodeResponse) -> bool) -> Self {
        self.is_answer = is_answer;
        self
    }

    /// Uses only nodes of which `wrong` finds nothing, once each, in what they answer to a call;
    /// else it says on which chain the node is. `Err` when the answer makes no sense.
    #[must_use]
    pub fn checked(
        mut self,
        call: NodeRequest,
        wrong: impl Fn(&NodeResponse) -> Result<Option<String>, &'static str> + Send + Sync + 'static,
    ) -> Self {
        self.pool = self.pool.checked(call, move |answer| {
            if !answer.is_success() {
                return ParsedResponse::Busy(format!("the node answered HTTP {}", answer.status));
            }
            match wrong(answer) {
                Ok(None) => ParsedResponse::Value(Ok(())),
                Ok(Some(reason)) => ParsedResponse::Value(Err(reason)),
                Err(reason) => ParsedResponse::Malformed(reason.into()),
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
    pub async fn ask(&self, call: &NodeRequest) -> Result<NodeResponse, ChainError> {
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
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> Option<T>,
    ) -> Result<T, ChainError> {
        self.query_quorum_by(what, call, read, T::eq).await
    }

    /// As [`RestClient::query_quorum`], where two answers need not be equal to be the same.
    ///
    /// # Errors
    /// As there.
    pub async fn query_quorum_by<T>(
        &self,
        what: &str,
        call: &NodeRequest,
        read: impl Fn(&NodeResponse) -> Option<T>,
        same: impl Fn(&T, &T) -> bool,
    ) -> Result<T, ChainError> {
        let read = |answer: &NodeResponse| match self.whole(answer) {
            ParsedResponse::Value(answer) => match read(&answer) {
                Some(said) => ParsedResponse::Value(said),
                None => ParsedResponse::Malformed(format!(
                    "the node's answer about {what} makes no sense"
                )),
            },
            ParsedResponse::Busy(reason) => ParsedResponse::Busy(reason),
            ParsedResponse::Malformed(reason) => ParsedResponse::Malformed(reason),
        };
        Ok(self.pool.query_quorum(what, call, read, same).await?)
    }

    /// As [`NodePool::query_best_effort`]; `None` when the node gave no answer.
    pub async fn query_best_effort(&self, call: &NodeRequest) -> Option<NodeResponse> {
        let answer = self
            .pool
            .query_best_effort(call, |answer| self.whole(answer))
            .await;
        answer.ok()
    }

    /// Sends: as [`RestClient::ask`], in one round; also says whether a node may have taken it before and
    /// its answer was lost.
    pub async fn send(&self, call: &NodeRequest) -> (Result<NodeResponse, ChainError>, bool) {
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
        call: &NodeRequest,
        found: impl Fn(&NodeResponse) -> Result<bool, String>,
    ) -> Result<bool, String> {
        self.pool
            .any(call, |answer| self.whole(answer), found)
            .await
    }

    fn whole(&self, answer: &NodeResponse) -> ParsedResponse<NodeResponse> {
        if (self.is_answer)(answer) {
            return ParsedResponse::Value(answer.clone());
        }
        let reason = format!("the node answered HTTP {}", answer.status);
        if NOT_ABOUT_THE_REQUEST.contains(&answer.status) {
            ParsedResponse::Busy(reason)
        } else {
            ParsedResponse::Malformed(reason)
        }
    }
}

impl NodeResponse {
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

impl From<PoolError> for ChainError {
    fn from(trouble: PoolError) -> Self {
        match trouble {
            PoolError::Unknown(reason) => ChainError::Unknown(reason),
            PoolError::WrongChain(reason) => ChainError::Refused(ChainRefusal {
                reason,
                code: ExecuteCode::Unspecified,
            }),
        }
    }
}
