//! The OpenAPI document of a side at `/openapi.json` or `/openapi-admin.json`, and for clients at `/docs` a page to read and try it. All that the
//! page needs is in this binary (docs/decisions/0020).

use std::sync::LazyLock;

use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderName, HeaderValue, Response, StatusCode, header},
    routing::get,
};
use covault_core::fault::Fault;

use super::{error, not_get};
use crate::openapi;

const PAGE: &str = include_str!("docs/index.html");
const START: &str = include_str!("docs/start.js");
const SCRIPT: &str = include_str!("docs/swagger-ui/swagger-ui-bundle.js");
const STYLE: &str = include_str!("docs/swagger-ui/swagger-ui.css");

/// Only this service is asked for anything, and nobody else may show the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

static DOCUMENT: LazyLock<Result<Bytes, Fault>> =
    LazyLock::new(|| openapi::document().map(|document| Bytes::from(document.to_string())));
static ADMIN_DOCUMENT: LazyLock<Result<Bytes, Fault>> =
    LazyLock::new(|| openapi::admin_document().map(|document| Bytes::from(document.to_string())));

/// The routes for clients: nobody needs a token for them.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when the schema cannot be read.
pub fn routes() -> Result<Router, Fault> {
    let document = DOCUMENT.as_ref().map_err(Fault::bug)?;
    let file = |kind: &'static str, text: &'static str| {
        get(move || async move { answer(kind, Bytes::from_static(text.as_bytes())) })
            .fallback(not_get)
    };
    Ok(Router::new()
        .route(
            "/openapi.json",
            get(move || async move { error::json(StatusCode::OK, document.clone()) })
                .fallback(not_get),
        )
        .route("/docs", file(HTML, PAGE))
        .route("/docs/start.js", file(JAVASCRIPT, START))
        .route("/docs/swagger-ui-bundle.js", file(JAVASCRIPT, SCRIPT))
        .route("/docs/swagger-ui.css", file(CSS, STYLE)))
}

/// The route for operators, who need no token for it.
///
/// # Errors
/// As [`routes`].
pub fn admin_routes() -> Result<Router, Fault> {
    let document = ADMIN_DOCUMENT.as_ref().map_err(Fault::bug)?;
    let shown = move || async move { error::json(StatusCode::OK, document.clone()) };
    Ok(Router::new().route("/openapi-admin.json", get(shown).fallback(not_get)))
}

fn answer(kind: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another version of the service has another page.
        (header::CACHE_CONTROL, "no-cache"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use axum::http::{Method, Request};
    use tower::ServiceExt as _;

    use super::*;

    async fn call(method: Method, path: &str) -> (StatusCode, Response<Body>) {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::empty()).expect("request");
        let router = routes()
            .expect("routes")
            .layer(axum::Extension(super::super::RequestId("r".to_owned())));
        let response = router.oneshot(request).await.expect("answer");
        (response.status(), response)
    }

    async fn text(path: &str) -> (String, String) {
        let (status, response) = call(Method::GET, path).await;
        assert_eq!(status, 200, "{path}");
        let kind = response.headers()["content-type"]
            .to_str()
            .expect("text")
            .to_owned();
        let body = axum::body::to_bytes(response.into_body(), 1 << 24)
            .await
            .expect("body");
        (kind, String::from_utf8(body.to_vec()).expect("UTF-8"))
    }

    #[tokio::test]
    async fn document__should_be_served_as_it_is_made() {
        let (kind, body) = text("/openapi.json").await;
        assert_eq!(kind, "application/json");
        let served: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(served, openapi::document().expect("document"));
        assert_eq!(call(Method::POST, "/openapi.json").await.0, 405);
    }

    /// Each name of a host that stands in a text, after `//`.
    fn hosts(text: &str) -> Vec<&str> {
        text.split("//")
            .skip(1)
            .filter(|rest| rest.starts_with(|first: char| first.is_ascii_alphanumeric()))
            .collect()
    }

    #[tokio::test]
    async fn page__should_load_nothing_from_elsewhere() {
        let (kind, page) = text("/docs").await;
        assert_eq!(kind, HTML);
        assert!(hosts(&page).is_empty(), "{:?}", hosts(&page));
        let mut loaded = 0;
        for (attribute, from) in [("src=\"", "src"), ("href=\"docs/", "href")] {
            for part in page.split(attribute).skip(1) {
                let path = part.split('"').next().expect("a path");
                let path = path.strip_prefix("docs/").unwrap_or(path);
                let (_, body) = text(&format!("/docs/{path}")).await;
                assert!(!body.is_empty(), "{from} {path}");
                loaded += 1;
            }
        }
        assert_eq!(loaded, 3);
        // A script in the page itself would need a hole in the policy.
        assert!(!page.contains("<script>") && !page.contains("<style"));
        let (_, start) = text("/docs/start.js").await;
        assert!(hosts(&start).is_empty());
        assert!(start.contains("validatorUrl: null"));
    }

    #[tokio::test]
    async fn page__should_forbid_every_other_host() {
        for path in [
            "/docs",
            "/docs/start.js",
            "/docs/swagger-ui-bundle.js",
            "/docs/swagger-ui.css",
        ] {
            let (_, response) = call(Method::GET, path).await;
            let policy = response.headers()["content-security-policy"]
                .to_str()
                .expect("text");
            let mut directives = policy.split(';').map(str::trim);
            assert_eq!(directives.next(), Some("default-src 'none'"));
            for directive in directives {
                let allowed = directive.split(' ').skip(1);
                for source in allowed {
                    assert!(
                        ["'self'", "'none'", "data:"].contains(&source),
                        "{directive}"
                    );
                }
                assert!(!directive.contains("data:") || directive.starts_with("img-src"));
            }
            assert_eq!(response.headers()["x-content-type-options"], "nosniff");
        }
    }
}
