//! The headers of a call, which are the same over REST and as metadata of gRPC.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use covault_core::{
    fault::{Class, Fault},
    port::{Entropy, random_16},
    trace::TraceParent,
};

/// The id of a call, the client's or a new one.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The token.
pub const TOKEN: HeaderName = HeaderName::from_static("x-mtoken");
/// The client's span, by W3C Trace Context.
pub const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
/// A client's name for a command that must be done once.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The answer was given before.
pub const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// It was given to another body.
pub const IDEMPOTENCY_MISMATCH: HeaderName = HeaderName::from_static("idempotency-body-mismatch");
/// The stable code of an error (docs/errors.md).
pub const CODE: HeaderName = HeaderName::from_static("covault-code");
/// The path of the field that is wrong, where one is.
pub const FIELD: HeaderName = HeaderName::from_static("covault-field");

const MAX_KEY: usize = 255;
/// The longest path that a header holds: clients make up names of fields, and bound headers.
const MAX_FIELD: usize = 256;
/// Characters of a path that are shown. No path of ours is longer.
const SHOWN: usize = 100;

/// Most headers of a request, and bytes of their names and values together.
const MAX_HEADERS: usize = 64;
const MAX_BYTES: usize = 16 * 1024;
/// What is said of more.
pub const TOO_LARGE: &str =
    "the headers are too many or too large: at most 64, of 16384 bytes together";

/// Whether the headers are as few and small as those of clients and proxies are.
pub fn are_within_limits(headers: &HeaderMap) -> bool {
    let bytes: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    headers.len() <= MAX_HEADERS && bytes <= MAX_BYTES
}

/// The id of the call being served, as an extension of the request.
#[derive(Clone)]
pub struct RequestId(pub String);

/// The client's own id of the call when it is sane, else a new one.
pub fn request_id(headers: &HeaderMap, entropy: &dyn Entropy) -> RequestId {
    let given = headers
        .get(&REQUEST_ID)
        .and_then(|id| id.to_str().ok())
        .filter(|id| is_sane(id));
    RequestId(given.map_or_else(|| new_id(entropy), ToOwned::to_owned))
}

/// An id that a client may choose: it ends up in logs and headers.
fn is_sane(id: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
    (1..=128).contains(&id.len()) && id.bytes().all(plain)
}

fn new_id(entropy: &dyn Entropy) -> String {
    uuid::Builder::from_random_bytes(random_16(entropy))
        .into_uuid()
        .as_hyphenated()
        .to_string()
}

/// The token as it was sent. Of two nobody can say which is meant: a proxy may have looked at the
/// other.
pub fn token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(&TOKEN).iter();
    let token = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(token)
}

/// The span of the client that the call is part of. Of two headers nobody can say which is meant.
pub fn trace_parent(headers: &HeaderMap) -> TraceParent {
    let mut values = headers.get_all(&TRACE_PARENT).iter();
    let value = values.next().filter(|_| values.next().is_none());
    let value = value.and_then(|value| value.to_str().ok());
    value.map_or(TraceParent::Unknown, TraceParent::of_header)
}

/// The path of a request for logs and sentences: what a client makes up is cut off.
pub fn shown_path(uri: &Uri) -> String {
    uri.path().chars().take(SHOWN).collect()
}

/// The idempotency key.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] when it does not have 1 to 255 printable characters,
/// or is given twice.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Fault> {
    let mut values = headers.get_all(&IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let refused = |problem| Fault::field("idempotency-key", problem);
    if values.next().is_some() {
        return Err(refused("is given twice"));
    }
    let key = value
        .to_str()
        .map_err(|_| refused("must be printable ASCII"))?;
    // A tab is fine in a header, but not printable.
    if key.contains('\t') {
        return Err(refused("must be printable ASCII"));
    }
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(refused("must have 1 to 255 characters"));
    }
    Ok(Some(key.to_owned()))
}

/// Says in the headers of an error what programs go by: its code, and the field.
pub fn mark_error(fault: &Fault, code: &'static str, headers: &mut HeaderMap) {
    headers.insert(CODE, HeaderValue::from_static(code));
    let field = fault
        .path()
        .filter(|path| *fault.class() != Class::Bug && path.is_ascii() && path.len() <= MAX_FIELD);
    if let Some(field) = field.and_then(|path| HeaderValue::from_str(path).ok()) {
        headers.insert(FIELD, field);
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;
    use crate::adapters::OsEntropy;

    #[test]
    fn request_id__should_be_the_clients_when_it_is_sane() {
        for id in ["a", "0af7651916cd43dd8448eb211c80319c", "A-b_c.d:1"] {
            assert!(is_sane(id), "{id}");
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_static(id));
            assert_eq!(request_id(&headers, &OsEntropy).0, id);
        }
        for id in ["", "a b", "a\u{7f}", "a/b", "\u{e9}", &"x".repeat(129)] {
            assert!(!is_sane(id), "{id}");
        }
        assert_ne!(new_id(&OsEntropy), new_id(&OsEntropy));
    }

    #[test]
    fn token__should_be_given_once() {
        let token_of = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(TOKEN, HeaderValue::from_bytes(value).expect("header"));
            }
            token(&headers).map(ToOwned::to_owned)
        };
        assert_eq!(token_of(&[b"a"]), Some("a".to_owned()));
        let refused: [&[&[u8]]; 4] = [&[], &[b"a", b"b"], &[b"a", b"a"], &[b"\xe9"]];
        for values in refused {
            assert_eq!(token_of(values), None, "{values:?}");
        }
    }

    #[test]
    fn shown_path__should_be_short() {
        let uri = format!("/{}", "x".repeat(5_000)).parse().expect("uri");
        assert_eq!(shown_path(&uri).len(), SHOWN);
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
            idempotency_key(&headers).map_err(|fault| fault.message().to_owned())
        };
        let longest = "k".repeat(255);
        assert_eq!(key(&[]), Ok(None));
        assert_eq!(key(&[&longest]), Ok(Some(longest.clone())));
        let length = "idempotency-key: must have 1 to 255 characters".to_owned();
        assert_eq!(key(&[""]), Err(length.clone()));
        assert_eq!(key(&[&format!("{longest}k")]), Err(length));
        assert_eq!(
            key(&["a", "b"]),
            Err("idempotency-key: is given twice".to_owned())
        );
        assert_eq!(
            key(&["a\tb"]),
            Err("idempotency-key: must be printable ASCII".to_owned())
        );
    }

    #[test]
    fn error__should_have_a_field_in_its_headers_where_one_fits() {
        let marked = |fault: Fault| {
            let mut headers = HeaderMap::new();
            mark_error(&fault, fault.stable_code(), &mut headers);
            let text = |name| {
                let value: Option<&HeaderValue> = headers.get(name);
                value.map(|value| value.to_str().unwrap().to_owned())
            };
            (text(CODE).unwrap(), text(FIELD))
        };
        let of = |path: &str| Fault::field(path, "unknown field");
        assert_eq!(
            marked(of("signers[0]")),
            ("invalid".into(), Some("signers[0]".into()))
        );
        for path in ["\u{e4}", "a\r\nb: c", &"x".repeat(257)] {
            assert_eq!(marked(of(path)), ("invalid".into(), None), "{path:?}");
        }
        assert_eq!(
            marked(Fault::bug("a cause").at("row")),
            ("bug".into(), None)
        );
        assert_eq!(marked(Fault::invalid_uuid()), ("invalid_uuid".into(), None));
    }
}
