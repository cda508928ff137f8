//! The HTTP API of java-tron: each method is a POST of a JSON object.

use std::convert::Infallible;

use serde_json::Value;

use crate::chain_rpc::{
    NodeRequest, NodeRequestBody, NodeResponse,
    client::{ChainCall, Protocol},
    exchange::{ParsedResponse, short},
};

/// The HTTP API.
pub struct TronHttp;

impl Protocol for TronHttp {
    type Refusal = Infallible;
}

/// One method and its parameters.
pub struct TronQuery(NodeRequest);

impl TronQuery {
    /// As [`NodeRequest::costly`].
    #[must_use]
    pub fn costly(self) -> Self {
        Self(self.0.costly())
    }
}

/// Of what the node has, in whatever block.
pub fn post(method: &str, body: Value) -> TronQuery {
    query("wallet", method, body)
}

/// Of what is in solidified blocks.
pub fn solid(method: &str, body: Value) -> TronQuery {
    query("walletsolidity", method, body)
}

fn query(of: &str, method: &str, body: Value) -> TronQuery {
    let path = format!("/{of}/{method}");
    TronQuery(NodeRequest::post(&path, NodeRequestBody::Json(body)))
}

impl TronQuery {
    /// Names what it asks for, for errors.
    pub fn about(self, subject: &'static str) -> Self {
        Self(self.0.about(subject))
    }
}

impl ChainCall<TronHttp> for TronQuery {
    type Answer = Value;

    fn subject(&self) -> &'static str {
        self.0.subject
    }

    fn request(&self, _: &TronHttp) -> NodeRequest {
        self.0.clone()
    }

    fn read(
        &self,
        _: &TronHttp,
        response: &NodeResponse,
    ) -> ParsedResponse<Result<Value, Infallible>> {
        read(response).and_then(|found| ParsedResponse::Value(Ok(found)))
    }
}

/// One whose answer is a list.
pub struct TronListQuery(TronQuery);

impl TronQuery {
    /// Its answer is a list, of what a whole block has.
    pub fn list(self) -> TronListQuery {
        TronListQuery(self.of_blocks())
    }

    /// As [`NodeRequest::of_blocks`].
    #[must_use]
    pub fn of_blocks(self) -> Self {
        Self(self.0.of_blocks())
    }
}

impl ChainCall<TronHttp> for TronListQuery {
    type Answer = Value;

    fn subject(&self) -> &'static str {
        self.0.subject()
    }

    fn request(&self, protocol: &TronHttp) -> NodeRequest {
        self.0.request(protocol)
    }

    fn read(
        &self,
        protocol: &TronHttp,
        response: &NodeResponse,
    ) -> ParsedResponse<Result<Value, Infallible>> {
        match response.json::<Value>().filter(Value::is_array) {
            Some(list) if response.is_success() => ParsedResponse::Value(Ok(list)),
            _ => self.0.read(protocol, response).and_then(|_| {
                ParsedResponse::Malformed("the node's answer is not a JSON list".into())
            }),
        }
    }
}

/// Answers are JSON objects; nodes answer with HTTP 200 also when they cannot.
fn read(answer: &NodeResponse) -> ParsedResponse<Value> {
    match answer.status {
        200..300 => {}
        // No access, too many requests, no such method.
        status @ 400..500 => {
            return ParsedResponse::Busy(format!("the node answered HTTP {status}"));
        }
        status => return ParsedResponse::Malformed(format!("the node answered HTTP {status}")),
    }
    let Some(found) = answer.json::<Value>().filter(Value::is_object) else {
        return ParsedResponse::Malformed("the node's answer is not a JSON object".into());
    };
    match found.get("Error").map(|error| error.as_str().unwrap_or("")) {
        None => ParsedResponse::Value(found),
        Some(error) => {
            let reason = format!("the node said: {}", short(error));
            // Its limit of requests; those it has not looked at.
            if error.contains("lack of computing resources") {
                ParsedResponse::TooMuch(reason)
            } else {
                ParsedResponse::Malformed(reason)
            }
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn http(status: u16, body: &str) -> NodeResponse {
        NodeResponse {
            status,
            body: body.into(),
            ..NodeResponse::default()
        }
    }

    #[test]
    fn read__should_know_what_is_no_answer() {
        assert!(matches!(read(&http(200, "{}")), ParsedResponse::Value(_)));
        for (status, body) in [
            (429, "{}"),
            (403, "{}"),
            (
                200,
                r#"{"Error":"class java.lang.IllegalAccessException : lack of computing resources"}"#,
            ),
        ] {
            assert!(
                matches!(
                    read(&http(status, body)),
                    ParsedResponse::Busy(_) | ParsedResponse::TooMuch(_)
                ),
                "{body}"
            );
        }
        for (status, body) in [
            (502, "{}"),
            (200, "[]"),
            (200, "null"),
            (200, "<html>"),
            (
                200,
                r#"{"Error":"class java.lang.NullPointerException : null"}"#,
            ),
        ] {
            let read = read(&http(status, body));
            assert!(matches!(read, ParsedResponse::Malformed(_)), "{body}");
        }
    }
}
