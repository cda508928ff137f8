//! One caller over both transports, who must be told the same by both.

use axum::http::HeaderMap;
use serde_json::{Map, Value, json};
use tonic::{Code, metadata::MetadataMap};

use super::{World, assert_keys};
use crate::support::*;

/// A way to be refused: the status over REST and the code over gRPC.
pub type ExpectedError = (u16, Code);

pub const INVALID: ExpectedError = (400, Code::InvalidArgument);
pub const UNAUTHENTICATED: ExpectedError = (401, Code::Unauthenticated);
pub const FORBIDDEN: ExpectedError = (403, Code::PermissionDenied);
pub const EXISTS: ExpectedError = (409, Code::AlreadyExists);
pub const WRONG_STATE: ExpectedError = (409, Code::FailedPrecondition);
pub const TOO_LARGE: ExpectedError = (413, Code::ResourceExhausted);
pub const LIMITED: ExpectedError = (429, Code::ResourceExhausted);
pub const BUG: ExpectedError = (500, Code::Internal);
pub const UNAVAILABLE: ExpectedError = (503, Code::Unavailable);

/// An answer over REST.
pub struct RestResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

/// A token, and perhaps an address that a proxy vouches for.
#[derive(Clone)]
pub struct ApiCaller {
    pub api: ApiClient,
    grpc: GrpcClient,
    from: Option<String>,
}

impl ApiCaller {
    pub fn new(world: &World, token: &str) -> Self {
        let target = world.dev.info["grpcTarget"].as_str().unwrap();
        Self {
            api: ApiClient::new(&world.dev.api.base, token),
            grpc: GrpcClient::new(target, token),
            from: None,
        }
    }

    /// The same, calling from an address.
    pub fn from(&self, address: &str) -> Self {
        Self {
            from: Some(address.to_owned()),
            ..self.clone()
        }
    }

    /// With another token.
    pub fn with(&self, token: &str) -> Self {
        let (mut api, mut grpc) = (self.api.clone(), self.grpc.clone());
        (api.token, grpc.token) = (token.to_owned(), token.to_owned());
        Self {
            api,
            grpc,
            from: self.from.clone(),
        }
    }

    fn headers<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let from = self.from.iter().map(|from| ("x-forwarded-for", &**from));
        more.iter().copied().chain(from).collect()
    }

    pub async fn rest(&self, operation: &str, body: &Value, more: &[(&str, &str)]) -> RestResponse {
        let response = self
            .api
            .raw(&format!("/v1/{operation}"), |request| {
                let headers = self.headers(more);
                headers
                    .into_iter()
                    .fold(request, |request, (name, value)| {
                        request.header(name, value)
                    })
                    .header("x-mtoken", &self.api.token)
                    .json(body)
            })
            .await;
        RestResponse {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.json().await.unwrap(),
        }
    }

    pub async fn grpc(&self, operation: &str, body: &Value, more: &[(&str, &str)]) -> GrpcResult {
        self.grpc.call(operation, body, &self.headers(more)).await
    }

    /// The gRPC client.
    pub fn bare(&self) -> &GrpcClient {
        &self.grpc
    }

    /// Calls an operation over REST with one body and over gRPC with another, which both must
    /// succeed and have the fields of the schema. Nulls are left out.
    pub async fn each(&self, operation: &str, bodies: [Value; 2]) -> [Value; 2] {
        let [first, second] = bodies;
        let rest = self.rest(operation, &first, &[]).await;
        assert_eq!(rest.status, 200, "{operation} {first}: {}", rest.body);
        assert!(!rest.headers["x-request-id"].is_empty());
        let fields = answer_fields(operation);
        let fields: Vec<_> = fields.iter().map(String::as_str).collect();
        assert_keys(&rest.body, &fields);
        let grpc = self.grpc(operation, &second, &[]).await;
        let (grpc, metadata) = grpc.unwrap_or_else(|status| panic!("{operation}: {status:?}"));
        assert!(metadata.contains_key("x-request-id"));
        let answers = [without_nulls(rest.body), grpc];
        for answer in &answers {
            // The failure of a request is no failure of the call.
            assert!(
                answer.get("error").is_none() || operation == "executeSigningRequests",
                "{operation}: {answer}"
            );
        }
        answers
    }

    /// Calls an operation over both transports with one body, and both must give this answer.
    pub async fn same(&self, operation: &str, body: Value) -> Value {
        let [rest, grpc] = self.each(operation, [body.clone(), body]).await;
        assert_eq!(rest, grpc, "{operation}");
        rest
    }

    /// Both transports refuse it in their own shape, with a sentence that has `part` in it.
    pub async fn refused(&self, operation: &str, body: Value, how: ExpectedError, part: &str) {
        let rest = self.rest(operation, &body, &[]).await;
        let sentence = sentence_of(operation, &rest, how);
        assert!(sentence.contains(part), "{operation} {body}: {sentence}");
        let status = match self.grpc(operation, &body, &[]).await {
            Ok((answer, _)) => panic!("{operation} {body}: {answer}"),
            Err(status) => status,
        };
        let what = format!("{operation} {body:.300}: {status:?}");
        assert_eq!(status.code(), how.1, "{what}");
        assert_metadata(status.metadata(), how);
        // Our own faults name the call, a rate the time, and a body is a message; of everything else
        // both say the same.
        match how {
            BUG => assert!(status.message().starts_with("internal error"), "{what}"),
            LIMITED | TOO_LARGE => assert!(status.message().contains(part), "{what}"),
            _ => assert_eq!(status.message(), sentence, "{what}"),
        }
    }
}

/// Checks the shape of a refusal over REST, and gives its sentence.
pub fn sentence_of(operation: &str, rest: &RestResponse, (status, _): ExpectedError) -> String {
    let RestResponse { headers, body, .. } = rest;
    assert_eq!(rest.status, status, "{operation}: {body}");
    assert_eq!(headers["content-type"], "application/json");
    assert!(!headers["x-request-id"].is_empty());
    let comes_again = headers.get("retry-after").map(|value| {
        let seconds: u64 = value.to_str().unwrap().parse().unwrap();
        seconds
    });
    match status {
        429 | 503 => assert!(comes_again >= Some(1), "{operation}: {body}"),
        _ => assert_eq!(comes_again, None, "{operation}: {body}"),
    }
    if operation.starts_with("sweep/") {
        assert_keys(body, &["code", "error", "reason"]);
        assert_eq!(body["code"], json!(status));
        let name = axum::http::StatusCode::from_u16(status).unwrap();
        assert_eq!(body["error"], json!(name.canonical_reason()));
        return body["reason"].as_str().unwrap().to_owned();
    }
    let fields = answer_fields(operation);
    let fields: Vec<_> = fields.iter().map(String::as_str).collect();
    assert_keys(body, &fields);
    let nothing = [Value::Null, json!(""), json!([])];
    for (name, value) in body.as_object().unwrap() {
        assert_eq!(nothing.contains(value), name != "error", "{name}: {body}");
    }
    let code = match operation {
        "executeSigningRequests" => "executeSigningRequestsErrorCode",
        _ => "serviceErrorCode",
    };
    assert_keys(&body["error"], &["message", code]);
    assert!(
        body["error"][code]
            .as_str()
            .unwrap()
            .ends_with("_UNSPECIFIED")
    );
    body["error"]["message"].as_str().unwrap().to_owned()
}

fn assert_metadata(metadata: &MetadataMap, (status, _): ExpectedError) {
    assert!(metadata.contains_key("x-request-id"));
    let comes_again = metadata.get("retry-after").map(|value| {
        let seconds: u64 = value.to_str().unwrap().parse().unwrap();
        seconds
    });
    match status {
        429 | 503 => assert!(comes_again >= Some(1)),
        _ => assert_eq!(comes_again, None),
    }
}

/// As a message without presence is written where unset fields are left out.
pub fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(
                fields
                    .map(|(name, value)| (name, without_nulls(value)))
                    .collect::<Map<_, _>>(),
            )
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}
