//! Errors on the wire (contract section 4): one code per class.

use axum::http::HeaderMap;
use covault_core::fault::Class;
use tonic::{Code, Status, metadata::MetadataMap};

use crate::{
    api::{self, admission::CallRefusal, headers, overload},
    telemetry::ACCESS,
};

/// The status of a call that was refused or failed, which the log gets too.
pub fn of(refusal: impl Into<CallRefusal>, request_id: &str) -> Status {
    let CallRefusal { fault, retry_after } = refusal.into();
    let code = code(fault.class());
    let (error_code, field) = (fault.stable_code(), fault.path());
    let is_of_server = matches!(code, Code::Internal | Code::Unavailable);
    if is_of_server && !overload::is_no_trouble(&fault) {
        tracing::error!(request_id, ?code, error_code, field, ?fault, "call failed");
    } else {
        tracing::debug!(target: ACCESS, request_id, ?code, error_code, field, ?fault, "call refused");
    }
    let mut metadata = HeaderMap::new();
    headers::mark_error(&fault, error_code, &mut metadata);
    let metadata = MetadataMap::from_headers(metadata);
    let mut status = Status::with_metadata(code, api::sentence(&fault, request_id), metadata);
    if let Some(seconds) = retry_after {
        status.metadata_mut().insert("retry-after", seconds.into());
    }
    status
}

fn code(class: &Class) -> Code {
    match class {
        Class::Invalid => Code::InvalidArgument,
        Class::Unauthenticated => Code::Unauthenticated,
        Class::Forbidden => Code::PermissionDenied,
        Class::Conflict => Code::AlreadyExists,
        Class::WrongState => Code::FailedPrecondition,
        Class::TooLarge | Class::Limited => Code::ResourceExhausted,
        Class::Unavailable | Class::Peer { .. } => Code::Unavailable,
        Class::Bug => Code::Internal,
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::fault::Fault;

    use super::*;

    #[test]
    fn status__should_follow_the_class() {
        let culprits = vec!["key".into()];
        for (class, expected) in [
            (Class::Invalid, Code::InvalidArgument),
            (Class::Unauthenticated, Code::Unauthenticated),
            (Class::Forbidden, Code::PermissionDenied),
            (Class::Conflict, Code::AlreadyExists),
            (Class::WrongState, Code::FailedPrecondition),
            (Class::TooLarge, Code::ResourceExhausted),
            (Class::Limited, Code::ResourceExhausted),
            (Class::Unavailable, Code::Unavailable),
            (Class::Peer { culprits }, Code::Unavailable),
        ] {
            let status = of(Fault::new(class.clone(), "sentence"), "r-1");
            assert_eq!((status.code(), status.message()), (expected, "sentence"));
            let again = matches!(
                class,
                Class::Limited | Class::Unavailable | Class::Peer { .. }
            );
            assert_eq!(status.metadata().get("retry-after").is_some(), again);
            assert_eq!(status.metadata().get("covault-code").unwrap(), class.name());
        }
    }

    #[test]
    fn status__should_hide_the_cause_of_our_own_faults() {
        let status = of(Fault::bug("table wallets is broken"), "r-7");
        assert_eq!(status.code(), Code::Internal);
        assert_eq!(status.message(), "internal error, see request id r-7");
    }
}
