#![allow(non_snake_case)]

mod balances;
mod estimates;
mod events;
mod every_operation;
mod idempotency;
mod lifecycle;
mod limits;
mod metrics;
mod raw;
mod reading;
pub(crate) mod routes;
mod tokens;

use super::*;
use crate::api::admission::{Admission, AdmissionLimits};
use routes::UNLIMITED;

#[test]
fn content_type__should_be_json_whatever_its_parameters() {
    let check = |value: Option<&'static str>| {
        let mut headers = HeaderMap::new();
        if let Some(value) = value {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(value));
        }
        check_content(&headers).map_err(|failure| failure.status().as_u16())
    };
    for value in ["application/json", "Application/JSON; charset=utf-8"] {
        assert_eq!(check(Some(value)), Ok(()));
    }
    for value in [
        None,
        Some("text/plain"),
        Some("application/jsonp"),
        Some(""),
    ] {
        assert_eq!(check(value), Err(415), "{value:?}");
    }
}

#[test]
fn content_encoding__should_be_none() {
    let check = |values: &[&'static str]| {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        for value in values {
            headers.append(header::CONTENT_ENCODING, HeaderValue::from_static(value));
        }
        check_content(&headers).map_err(|failure| failure.status().as_u16())
    };
    assert_eq!(check(&[]), Ok(()));
    assert_eq!(check(&["Identity"]), Ok(()));
    for values in [&["gzip"][..], &["identity", "br"], &["identity, gzip"]] {
        assert_eq!(check(values), Err(415), "{values:?}");
    }
}

#[tokio::test]
async fn body__should_be_refused_above_the_limit_and_read_on() {
    let body = |chunks: usize| {
        let chunks =
            (0..chunks).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(b"0123456789")));
        Body::from_stream(futures::stream::iter(chunks))
    };
    let admission = Admission::new(&AdmissionLimits {
        max_in_flight_bytes: 150,
        ..UNLIMITED
    });
    let first = admission.enter().expect("a place");
    let read = read_body(body(10), 0, 100, &first).await;
    assert_eq!(read.expect("fits").len(), 100);
    let refused = async |chunks, announced| {
        let second = admission.enter().expect("a place");
        let refusal = read_body(body(chunks), announced, 100, &second).await;
        refusal.expect_err("too large").fault.class().clone()
    };
    // Not while the other one is in progress.
    assert_eq!(refused(10, 100).await, Class::Unavailable);
    drop(first);
    assert_eq!(refused(11, 0).await, Class::TooLarge);
    // Longer than what is read on, and endless in effect.
    assert_eq!(refused(10_000_000, usize::MAX).await, Class::TooLarge);
}
