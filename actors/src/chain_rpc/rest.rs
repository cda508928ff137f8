//! REST over HTTP. Every status that is about the request is an answer.

use std::convert::Infallible;

use super::{
    client::{ChainCall, Protocol},
    exchange::{NOT_ABOUT_THE_REQUEST, NodeRequest, NodeResponse, ParsedResponse},
};

/// REST over HTTP. What is no answer means that the node cannot now.
pub struct Rest {
    /// Which responses are answers.
    pub is_answer: fn(&NodeResponse) -> bool,
}

/// Every status below 500 is an answer, but those that are not about the request.
impl Default for Rest {
    fn default() -> Self {
        Self {
            is_answer: |response| {
                response.status < 500 && !NOT_ABOUT_THE_REQUEST.contains(&response.status)
            },
        }
    }
}

impl Protocol for Rest {
    type Refusal = Infallible;
}

impl ChainCall<Rest> for NodeRequest {
    type Answer = NodeResponse;

    fn subject(&self) -> &'static str {
        self.subject
    }

    fn request(&self, _: &Rest) -> NodeRequest {
        self.clone()
    }

    fn read(
        &self,
        protocol: &Rest,
        response: &NodeResponse,
    ) -> ParsedResponse<Result<NodeResponse, Infallible>> {
        if (protocol.is_answer)(response) {
            return ParsedResponse::Value(Ok(response.clone()));
        }
        let reason = format!("the node answered HTTP {}", response.status);
        if NOT_ABOUT_THE_REQUEST.contains(&response.status) {
            ParsedResponse::Busy(reason)
        } else {
            ParsedResponse::Malformed(reason)
        }
    }
}
