//! Errors on the wire (contract section 4): one status per class, one shape for all.

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
};
use covault_core::{
    fault::{Class, ExecuteCode, Fault},
    schema::{
        service::{Audience, OperationDescriptor},
        wire,
    },
};
use serde::Serialize;

use crate::{
    api::{self, admission::CallRefusal, headers, overload},
    telemetry::ACCESS,
};

/// Below it, errors have the shape of the sweep API.
const SWEEP: &str = "/v1/sweep";

/// An error of the sweep API.
#[derive(Serialize)]
struct SweepError<'a> {
    code: u16,
    error: &'static str,
    reason: &'a str,
}

/// A fault with the status it is answered with.
#[derive(Debug)]
pub struct HttpError {
    status: StatusCode,
    fault: Fault,
    retry_after: Option<u64>,
}

impl From<Fault> for HttpError {
    fn from(fault: Fault) -> Self {
        CallRefusal::from(fault).into()
    }
}

impl From<CallRefusal> for HttpError {
    fn from(refusal: CallRefusal) -> Self {
        let CallRefusal { fault, retry_after } = refusal;
        Self {
            status: status(fault.class()),
            fault,
            retry_after,
        }
    }
}

impl HttpError {
    /// A refusal of HTTP itself (404, 405, 408, 415, 422, 431), which no class stands for.
    pub fn http(status: StatusCode, public: &str) -> Self {
        Self {
            status,
            fault: Fault::new(Class::Invalid, public),
            retry_after: None,
        }
    }

    /// The status.
    #[cfg(test)]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The answer. `operation` gives the shape; without one only the error is shown.
    pub fn into_response(
        self,
        operation: Option<&OperationDescriptor>,
        request_id: &str,
    ) -> Response<Body> {
        let audience = operation.map(OperationDescriptor::audience);
        if audience == Some(Audience::Sweep) {
            return self.into_sweep_response(request_id);
        }
        let execute = operation.is_some_and(OperationDescriptor::fails_with_execute_code);
        let error = wire::Error {
            message: api::sentence(&self.fault, request_id),
            code: Some(code(self.fault.execute_code(), execute)),
        };
        let body = match audience {
            Some(Audience::Admin) => self.admin_body(&error),
            _ => match operation {
                Some(operation) => operation.failure(&error),
                None => covault_core::schema::json::encode(&error)
                    .map(|error| format!("{{\"error\":{error}}}")),
            },
        };
        let body = body.unwrap_or_else(|fault| {
            tracing::error!(request_id, ?fault, "failed to encode an error");
            String::from("{\"error\":null}")
        });
        self.respond(request_id, body)
    }

    /// Operators' scripts also get what tells one kind of error from another.
    fn admin_body(&self, error: &wire::Error) -> Result<String, Fault> {
        let error = covault_core::schema::json::encode(error)?;
        let mut error: serde_json::Value = serde_json::from_str(&error).map_err(Fault::bug)?;
        if let Some(error) = error.as_object_mut() {
            error.insert("code".to_owned(), self.stable_code().into());
            error.insert("field".to_owned(), self.fault.path().into());
        }
        Ok(serde_json::json!({"error": error}).to_string())
    }

    /// The code that programs go by. HTTP's own refusals have a status that no class stands for.
    fn stable_code(&self) -> &'static str {
        if self.status == status(self.fault.class()) {
            self.fault.stable_code()
        } else {
            "http"
        }
    }

    /// The answer where no operation is known, in the shape of those of the path.
    pub fn into_response_below(self, path: &str, request_id: &str) -> Response<Body> {
        let below = path.strip_prefix(SWEEP);
        if below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
            return self.into_sweep_response(request_id);
        }
        self.into_response(None, request_id)
    }

    /// The answer in the shape of the sweep API.
    pub fn into_sweep_response(self, request_id: &str) -> Response<Body> {
        let reason = match self.fault.class() {
            Class::Bug => "internal server error",
            // Never why: sweep clients compare it.
            Class::Unauthenticated => "unauthenticated",
            _ => self.fault.message(),
        };
        let error = SweepError {
            code: self.status.as_u16(),
            error: self.status.canonical_reason().unwrap_or_default(),
            reason,
        };
        let body = serde_json::to_string(&error).unwrap_or_else(|error| {
            tracing::error!(request_id, %error, "failed to encode an error");
            String::from("{}")
        });
        self.respond(request_id, body)
    }

    fn respond(&self, request_id: &str, body: String) -> Response<Body> {
        self.log(request_id);
        let mut response = json(self.status, body);
        headers::mark_error(&self.fault, self.stable_code(), response.headers_mut());
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    fn log(&self, request_id: &str) {
        let (fault, status) = (&self.fault, self.status.as_u16());
        let (error_code, field) = (fault.stable_code(), fault.path());
        if self.status.is_server_error() && !overload::is_no_trouble(fault) {
            tracing::error!(
                request_id,
                status,
                error_code,
                field,
                ?fault,
                "request failed"
            );
        } else {
            tracing::debug!(
                target: ACCESS,
                request_id,
                status,
                error_code,
                field,
                ?fault,
                "request refused"
            );
        }
    }
}

/// The status of a class.
pub fn status(class: &Class) -> StatusCode {
    match class {
        Class::Invalid => StatusCode::BAD_REQUEST,
        Class::Unauthenticated => StatusCode::UNAUTHORIZED,
        Class::Forbidden => StatusCode::FORBIDDEN,
        Class::Conflict | Class::WrongState => StatusCode::CONFLICT,
        Class::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Class::Limited => StatusCode::TOO_MANY_REQUESTS,
        Class::Unavailable | Class::Peer { .. } => StatusCode::SERVICE_UNAVAILABLE,
        Class::Bug => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Exactly one of the two codes: the execute code on executeSigningRequests, and where a request is refused for what
/// would end it there; else the service code.
fn code(code: ExecuteCode, execute: bool) -> wire::error::Code {
    if !execute && code == ExecuteCode::Unspecified {
        return wire::error::Code::ServiceErrorCode(wire::ServiceErrorCode::Unspecified.into());
    }
    let code = match code {
        ExecuteCode::Unspecified => wire::ExecuteSigningRequestsErrorCode::Unspecified,
        ExecuteCode::InsufficientFunds => wire::ExecuteSigningRequestsErrorCode::InsufficientFunds,
        ExecuteCode::AlreadyDenied => wire::ExecuteSigningRequestsErrorCode::AlreadyDenied,
        ExecuteCode::InsufficientGasFee => {
            wire::ExecuteSigningRequestsErrorCode::InsufficientGasFee
        }
        ExecuteCode::AddressNotInWhitelist => {
            wire::ExecuteSigningRequestsErrorCode::AddressNotInWhitelist
        }
    };
    wire::error::Code::ExecuteSigningRequestsErrorCode(code.into())
}

/// A JSON answer.
pub fn json(status: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    async fn body(response: Response<Body>) -> serde_json::Value {
        let bytes = axum::body::to_bytes(response.into_body(), 10_000)
            .await
            .expect("body");
        serde_json::from_slice(&bytes).expect("JSON")
    }

    fn operation(name: &str) -> OperationDescriptor {
        let operations = covault_core::schema::service::operations().expect("service");
        operations
            .into_iter()
            .find(|operation| operation.name() == name)
            .expect(name)
    }

    #[test]
    fn status__should_follow_the_class() {
        for (class, expected) in [
            (Class::Invalid, 400),
            (Class::Unauthenticated, 401),
            (Class::Forbidden, 403),
            (Class::Conflict, 409),
            (Class::WrongState, 409),
            (Class::TooLarge, 413),
            (Class::Limited, 429),
            (Class::Unavailable, 503),
            (
                Class::Peer {
                    culprits: vec!["key".into()],
                },
                503,
            ),
            (Class::Bug, 500),
        ] {
            assert_eq!(status(&class).as_u16(), expected, "{class:?}");
        }
    }

    #[tokio::test]
    async fn failure__should_have_the_shape_of_its_operation() {
        let failure = HttpError::from(Fault::field("evmSendNative.to", "is not an address"));
        let response = failure.into_response(Some(&operation("createSigningRequest")), "r-1");
        assert_eq!(response.status(), 400);
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(
            body(response).await,
            serde_json::json!({
                "signingRequest": null,
                "error": {
                    "message": "evmSendNative.to: is not an address",
                    "serviceErrorCode": "SERVICE_ERROR_CODE_UNSPECIFIED",
                },
            })
        );
    }

    #[tokio::test]
    async fn failure__should_carry_the_execute_code_on_execute() {
        let fault = Fault::new(Class::Invalid, "no funds")
            .with_execute_code(ExecuteCode::InsufficientFunds);
        let response =
            HttpError::from(fault).into_response(Some(&operation("executeSigningRequests")), "r-1");
        let error = &body(response).await["error"];
        assert_eq!(
            *error,
            serde_json::json!({
                "message": "no funds",
                "executeSigningRequestsErrorCode":
                    "EXECUTE_SIGNING_REQUESTS_ERROR_CODE_INSUFFICIENT_FUNDS",
            })
        );
    }

    #[tokio::test]
    async fn failure__should_carry_the_code_that_a_request_would_end_with() {
        let fault = Fault::field("recipient", "is not in the list")
            .with_execute_code(ExecuteCode::AddressNotInWhitelist);
        let response =
            HttpError::from(fault).into_response(Some(&operation("createSigningRequest")), "r-1");
        assert_eq!(response.status(), 400);
        let error = &body(response).await["error"];
        assert_eq!(
            *error,
            serde_json::json!({
                "message": "recipient: is not in the list",
                "executeSigningRequestsErrorCode":
                    "EXECUTE_SIGNING_REQUESTS_ERROR_CODE_ADDRESS_NOT_IN_WHITELIST",
            })
        );
    }

    #[tokio::test]
    async fn failure__should_have_code_and_field_in_the_body_of_the_admin_api_and_only_there() {
        let moving = || Fault::field("signers[0]", "is not admitted");
        for (fault, code, field) in [
            (moving(), "invalid", serde_json::json!("signers[0]")),
            (
                Fault::invalid_uuid(),
                "invalid_uuid",
                serde_json::Value::Null,
            ),
        ] {
            let answer = |name| {
                let failure = HttpError::from(fault.clone());
                body(failure.into_response(Some(&operation(name)), "r-1"))
            };
            let error = &answer("createVault").await["error"];
            assert_eq!((&error["code"], &error["field"]), (&code.into(), &field));
            assert_eq!(error["message"], fault.message());
            assert_eq!(error["serviceErrorCode"], "SERVICE_ERROR_CODE_UNSPECIFIED");
            let error = &answer("createWallet").await["error"];
            assert_eq!(error.as_object().map(serde_json::Map::len), Some(2));
            for name in ["createVault", "createWallet", "addWatchAddress"] {
                let failure = HttpError::from(fault.clone());
                let response = failure.into_response(Some(&operation(name)), "r-1");
                let header = |name| response.headers().get(name).map(|value| value.as_bytes());
                assert_eq!(header("covault-code"), Some(code.as_bytes()));
                assert_eq!(header("covault-field"), field.as_str().map(str::as_bytes));
            }
        }
        let failure = HttpError::http(StatusCode::REQUEST_TIMEOUT, "too late");
        let response = failure.into_response(Some(&operation("createVault")), "r-1");
        assert_eq!(response.headers()["covault-code"], "http");
        assert_eq!(body(response).await["error"]["code"], "http");
    }

    #[tokio::test]
    async fn failure__should_hide_the_cause_of_our_own_faults() {
        let response =
            HttpError::from(Fault::bug("table wallets is broken")).into_response(None, "r-7");
        assert_eq!(response.status(), 500);
        assert_eq!(
            body(response).await["error"]["message"],
            "internal error, see request id r-7"
        );
    }

    #[test]
    fn failure__should_say_when_to_try_again() {
        let limited = HttpError::from(Fault::new(Class::Limited, "too many requests"));
        assert_eq!(
            limited.into_response(None, "r").headers()["retry-after"],
            "1"
        );
        let away = HttpError::from(Fault::unavailable("no signers"));
        assert_eq!(away.into_response(None, "r").headers()["retry-after"], "1");
        let later = HttpError::from(CallRefusal {
            fault: Fault::new(Class::Limited, "too many requests"),
            retry_after: Some(17),
        });
        assert_eq!(
            later.into_response(None, "r").headers()["retry-after"],
            "17"
        );
        let wrong = HttpError::from(Fault::invalid_uuid()).into_response(None, "r");
        assert!(!wrong.headers().contains_key("retry-after"));
    }

    #[tokio::test]
    async fn failure__should_have_the_shape_of_sweep_on_sweep() {
        let operation = operation("addWatchAddress");
        for (failure, status, error, reason) in [
            (
                Fault::new(Class::Invalid, "network unsupported").into(),
                400,
                "Bad Request",
                "network unsupported",
            ),
            (
                Fault::new(Class::Unauthenticated, "the token has expired").into(),
                401,
                "Unauthorized",
                "unauthenticated",
            ),
            (
                Fault::new(Class::Forbidden, "IP is not allowed").into(),
                403,
                "Forbidden",
                "IP is not allowed",
            ),
            (
                Fault::new(Class::Conflict, "wallet address conflict; retry").into(),
                409,
                "Conflict",
                "wallet address conflict; retry",
            ),
            (
                Fault::bug("table deposits is broken").into(),
                500,
                "Internal Server Error",
                "internal server error",
            ),
            (
                HttpError::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong content type"),
                415,
                "Unsupported Media Type",
                "wrong content type",
            ),
        ] {
            let response = failure.into_response(Some(&operation), "r-1");
            assert_eq!(response.status(), status);
            assert_eq!(response.headers()["content-type"], "application/json");
            assert_eq!(
                body(response).await,
                serde_json::json!({"code": status, "error": error, "reason": reason})
            );
        }
    }
}
