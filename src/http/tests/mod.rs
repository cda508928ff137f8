#![allow(non_snake_case)]

mod balances;
mod life;
mod routes;

use super::*;

#[test]
fn request_id__should_be_the_clients_when_it_is_sane() {
    for id in ["a", "0af7651916cd43dd8448eb211c80319c", "A-b_c.d:1"] {
        assert!(is_sane(id), "{id}");
    }
    for id in ["", "a b", "a\u{7f}", "a/b", "\u{e9}", &"x".repeat(129)] {
        assert!(!is_sane(id), "{id}");
    }
    assert_ne!(
        new_id(&crate::adapters::OsEntropy),
        new_id(&crate::adapters::OsEntropy)
    );
}

#[test]
fn content_type__should_be_json_whatever_its_parameters() {
    let check = |value: Option<&'static str>| {
        let mut headers = HeaderMap::new();
        if let Some(value) = value {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(value));
        }
        check_content_type(&headers).map_err(|failure| failure.status().as_u16())
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
fn idempotency_key__should_have_1_to_255_characters() {
    let key = |values: &[&str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(
                IDEMPOTENCY_KEY,
                HeaderValue::from_str(value).expect("header"),
            );
        }
        idempotency_key(&headers).map_err(|failure| failure.status().as_u16())
    };
    let longest = "k".repeat(255);
    assert_eq!(key(&[]), Ok(None));
    assert_eq!(key(&[&longest]), Ok(Some(longest.clone())));
    assert_eq!(key(&[""]), Err(400));
    assert_eq!(key(&[&format!("{longest}k")]), Err(400));
    assert_eq!(key(&["a", "b"]), Err(400));
    assert_eq!(key(&["a\tb"]), Err(400));
}

#[tokio::test]
async fn body__should_be_refused_above_the_limit_and_read_on() {
    let body = |chunks: usize| {
        let chunks =
            (0..chunks).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(b"0123456789")));
        Body::from_stream(futures::stream::iter(chunks))
    };
    assert_eq!(read_body(body(10), 0, 100).await.expect("fits").len(), 100);
    let refused = |chunks, announced| async move {
        read_body(body(chunks), announced, 100)
            .await
            .expect_err("too large")
            .class()
            .clone()
    };
    assert_eq!(refused(11, 0).await, Class::TooLarge);
    // Longer than what is read on, and endless in effect.
    assert_eq!(refused(10_000_000, usize::MAX).await, Class::TooLarge);
}
