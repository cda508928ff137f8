//! Calls of operations.

use covault_actors::{
    gateway::Caller,
    operations::{CreateSigningRequest, CreateWallet},
};
use covault_core::schema::wire;

use super::*;
use crate::{
    api::admission::{Admission, AdmissionLimits, CallRate},
    http::tests::routes::{UNLIMITED, both_sides, never, vault},
};

const GZIP_OF_X: &str = "1f8b0800000000000203e362ac00008b9413b503000000";
const GZIP_OF_MANY: &str = "1f8b0800000000000203edc12101000008033087203125de81a8d4406ceb4d0d000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000f0d601b2d91ee8a4860100";

fn text<'a>(status: &'a Status, name: &str) -> Option<&'a str> {
    let value = status.metadata().get(name);
    value.map(|value| value.to_str().expect("text"))
}

fn id(status: &Status) -> &str {
    text(status, "x-request-id").expect("request id")
}

#[tokio::test]
async fn unknown_method__should_be_unimplemented() {
    let server = Server::start(|_| ()).await;
    let path = format!("{PLATFORM}/GetWalletLists");
    let status = send(&server.router, &path, with_token(Bytes::new())).await;
    let status = status.expect_err("no such method");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().ends_with("GetWalletLists") && !id(&status).is_empty());
}

/// Calls with a body of the protocol as it is on the wire.
async fn framed(server: &Server, method: &str, encoding: &str, flag: u8, message: &[u8]) -> Status {
    let mut body = vec![flag];
    body.extend(u32::try_from(message.len()).expect("length").to_be_bytes());
    body.extend(message);
    let request = HttpRequest::post(format!("{PLATFORM}/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("x-mtoken", "platform")
        .header("grpc-encoding", encoding)
        .body(Body::from(body));
    let response = server.router.clone().oneshot(request.expect("request"));
    status_of(&response.await.expect("answers"))
}

#[tokio::test]
async fn compressed_message__should_be_read_up_to_its_limit() {
    let server = Server::start(|_| ()).await;
    let list = "GetSigningRequestDetails";
    // { uuid: "x" }, and 100,000 times "x", as gzip writes them.
    let small = hex::decode(GZIP_OF_X).expect("hex");
    let status = framed(&server, list, "gzip", 1, &small).await;
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "Invalid uuid")
    );
    let large = hex::decode(GZIP_OF_MANY).expect("hex");
    assert!(large.len() < 300);
    let status = framed(&server, list, "gzip", 1, &large).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(
        status.message().starts_with("the message is larger than"),
        "{status}"
    );
    let status = framed(&server, list, "gzip", 1, b"no gzip").await;
    assert_eq!(status.code(), Code::InvalidArgument);
    let status = framed(&server, list, "zstd", 1, &small).await;
    assert_eq!(status.code(), Code::Unimplemented);
}

#[tokio::test]
async fn metadata__should_be_bounded() {
    let server = Server::start(|_| ()).await;
    let path = format!("{PLATFORM}/GetSigningRequestDetails");
    for (count, code) in [(50, Code::InvalidArgument), (64, Code::ResourceExhausted)] {
        let mut request = with_token(Bytes::new());
        for _ in 0..count {
            request
                .metadata_mut()
                .append("x-more", "x".parse().expect("metadata"));
        }
        let status = send(&server.router, &path, request).await;
        assert_eq!(status.expect_err("refused").code(), code);
    }
}

/// A newer or misspelt schema: what it says of money must not be dropped without a word.
#[tokio::test]
async fn unknown_field__should_be_refused_inside_payloads_too() {
    let server = Server::start(|_| ()).await;
    let path = format!("{PLATFORM}/CreateSigningRequest");
    // evmSendNative { chain_id: 1, field 99: 1 }
    let request = Bytes::from_static(&[0x0a, 5, 0x08, 1, 0x98, 0x06, 1]);
    let status = send(&server.router, &path, with_token(request)).await;
    let status = status.expect_err("refused");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "evmSendNative.99: unknown field");
    assert_eq!(text(&status, "covault-field"), Some("evmSendNative.99"));
}

#[tokio::test]
async fn refusals__should_have_the_status_of_their_class() {
    let server = Server::start(|_| ()).await;
    let path = format!("{PLATFORM}/GetSigningRequestDetails");
    let uuid = |uuid: &str| {
        let request = wire::GetSigningRequestDetailsRequest { uuid: uuid.into() };
        Bytes::from(request.encode_to_vec())
    };
    let large = uuid(&"x".repeat(2001));
    let mut named = with("platform", uuid("x"));
    let metadata = named.metadata_mut();
    metadata.insert("x-request-id", "my-id".parse().expect("metadata"));
    let mut hurried = with("platform", uuid("x"));
    let metadata = hurried.metadata_mut();
    metadata.insert("grpc-timeout", "soon".parse().expect("metadata"));
    for (request, code, sentence, stable) in [
        (
            tonic::Request::new(uuid("x")),
            Code::Unauthenticated,
            "unauthenticated",
            "unauthenticated",
        ),
        (
            with("wrong", uuid("x")),
            Code::Unauthenticated,
            "unauthenticated",
            "unauthenticated",
        ),
        (
            with("admin", uuid("x")),
            Code::PermissionDenied,
            "an admin token",
            "forbidden",
        ),
        (
            with("platform", uuid("x")),
            Code::InvalidArgument,
            "Invalid uuid",
            "invalid_uuid",
        ),
        (named, Code::InvalidArgument, "Invalid uuid", "invalid_uuid"),
        (
            with("platform", Bytes::from_static(&[0xff; 9])),
            Code::InvalidArgument,
            "the message cannot be decoded",
            "invalid",
        ),
        (
            with("platform", large),
            Code::ResourceExhausted,
            "the message is larger than 2000 bytes",
            "too_large",
        ),
        (
            hurried,
            Code::InvalidArgument,
            "grpc-timeout: must be",
            "invalid",
        ),
    ] {
        let given = request.metadata().get("x-request-id").cloned();
        let status = send(&server.router, &path, request)
            .await
            .expect_err(sentence);
        assert_eq!(status.code(), code, "{status:?}");
        let field = sentence
            .starts_with("grpc-timeout")
            .then_some("grpc-timeout");
        assert_eq!(text(&status, "covault-code"), Some(stable));
        assert_eq!(text(&status, "covault-field"), field);
        assert!(status.message().starts_with(sentence), "{status:?}");
        match given {
            Some(_) => assert_eq!(id(&status), "my-id"),
            None => assert_eq!(id(&status).len(), 36),
        }
    }
}

#[tokio::test]
async fn what_is_no_grpc__should_be_refused_as_the_protocol_says() {
    let server = Server::start(|_| ()).await;
    for kind in [
        "application/json",
        "application/grpc-web",
        "application/grpc+json",
    ] {
        let mut request = without_end(&format!("{PLATFORM}/GetWalletList"), None);
        let value = HeaderValue::from_static(kind);
        request.headers_mut().insert("content-type", value);
        let response = server
            .router
            .clone()
            .oneshot(request)
            .await
            .expect("answers");
        assert_eq!(response.status(), 415, "{kind}");
    }
}

#[tokio::test]
async fn message_that_is_none__should_be_the_clients_fault() {
    let server = Server::start(|_| ()).await;
    let call = async |path: &str, body: Vec<u8>| {
        let mut request = without_end(&format!("{PLATFORM}/{path}"), None);
        *request.body_mut() = Body::from(body);
        let response = server.router.clone().oneshot(request).await;
        status_of(&response.expect("answers"))
    };
    let message = |length: u8, bytes: usize| [vec![0, 0, 0, 0, length], vec![0; bytes]].concat();
    for body in [
        // Nothing at all; half a head; half a message; an invalid flag.
        vec![],
        vec![0, 0],
        message(9, 4),
        vec![7, 0, 0, 0, 0],
    ] {
        let status = call("GetWalletList", body.clone()).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{body:?}: {status:?}");
        assert_eq!(status.message(), "the message is incomplete", "{body:?}");
    }
    // Compressed, where nothing was agreed on.
    let status = call("GetWalletList", vec![1, 0, 0, 0, 0]).await;
    assert!(
        matches!(status.code(), Code::Unimplemented | Code::InvalidArgument),
        "{status:?}"
    );
    // Messages without end behind the first one.
    let many = message(0, 0).repeat(1000);
    let status = call("GetWalletList", many).await;
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
}

#[tokio::test]
async fn messages__should_have_room_together_with_bodies() {
    let terms = AdmissionLimits {
        max_in_flight_bytes: 10,
        ..UNLIMITED
    };
    let server = Server::start(|api| api.admission = Admission::new(&terms)).await;
    let get = async |uuid: &str| -> Called<wire::GetSigningRequestDetailsResponse> {
        let request = wire::GetSigningRequestDetailsRequest { uuid: uuid.into() };
        server
            .call("GetSigningRequestDetails", with_token(request))
            .await
    };
    let status = get("0123456789").await.expect_err("no room");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(status.metadata().get("retry-after").expect("when"), "1");
    let status = get("0").await.expect_err("no uuid");
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
}

#[tokio::test]
async fn what_reaches_no_operation__should_be_counted() {
    use crate::api::address::Peer;
    let terms = AdmissionLimits {
        per_address: CallRate {
            per_second: 1,
            burst: 2,
        },
        ..UNLIMITED
    };
    for (path, kind, first) in [
        ("/a.B/C", "application/grpc", Some(Code::Unimplemented)),
        (
            "/mpcvault.platform.v1.PlatformAPI/GetBalance",
            "text/html",
            None,
        ),
    ] {
        let server = Server::start(|api| api.admission = Admission::new(&terms)).await;
        for round in 0..3 {
            let mut request = without_end(path, None);
            let kind = HeaderValue::from_static(kind);
            request.headers_mut().insert("content-type", kind);
            let peer = "192.0.2.1:1".parse().expect("peer");
            request.extensions_mut().insert(Peer(peer));
            let response = server.router.clone().oneshot(request).await;
            let response = response.expect("answers");
            let limited = round == 2;
            match first {
                Some(first) => {
                    let code = if limited {
                        Code::ResourceExhausted
                    } else {
                        first
                    };
                    assert_eq!(status_of(&response).code(), code);
                }
                None => {
                    let status = if limited { 429 } else { 415 };
                    assert_eq!(response.status(), status);
                }
            }
            assert!(response.headers().contains_key("x-request-id"));
        }
    }
}

#[tokio::test]
async fn calls__should_be_counted_by_operation_and_code() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new()
        .set_buckets(&[1.0])
        .expect("buckets")
        .build_recorder();
    // The runtime of a test has one thread.
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let server = Server::start(|_| ()).await;
    for method in ["GetWalletList", "NoSuch"] {
        let path = format!("{PLATFORM}/{method}");
        let called = send(&server.router, &path, with_token(Bytes::new())).await;
        called.expect_err("names no vault");
    }
    let text = recorder.handle().render();
    for (operation, code) in [
        ("getWalletList", "INVALID_ARGUMENT"),
        ("none", "UNIMPLEMENTED"),
    ] {
        let labels = format!("transport=\"grpc\",operation=\"{operation}\"");
        for line in [
            format!("covault_api_calls_total{{{labels},code=\"{code}\"}} 1"),
            format!("covault_api_call_seconds_count{{{labels},outcome=\"refused\"}} 1"),
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
    }
}

/// A vault, made over REST: the transports share what they serve.
async fn vault_of(server: &Server) -> String {
    vault(&both_sides(&server.api, &never())).await
}

#[tokio::test]
async fn idempotency_key__should_give_the_first_answer_again() {
    for strict in [false, true] {
        let server = Server::start(|api| api.strict_idempotency = strict).await;
        let vault = vault_of(&server).await;
        let create = async |key: &'static str, name: &str| -> Called<wire::CreateWalletResponse> {
            let mut request = with_token(wire::CreateWalletRequest {
                vault_uuid: vault.clone(),
                network_type: wire::NetworkType::Evm.into(),
                name: name.into(),
                ..Default::default()
            });
            let key = tonic::metadata::MetadataValue::from_static(key);
            request.metadata_mut().insert("idempotency-key", key);
            server.call("CreateWallet", request).await
        };
        let first = create("a", "one").await.expect("made");
        assert!(!first.metadata().contains_key("idempotency-replayed"));
        let again = create("a", "one").await.expect("replayed");
        assert_eq!(again.get_ref(), first.get_ref());
        assert_eq!(
            again.metadata().get("idempotency-replayed").expect("said"),
            "true"
        );
        assert!(!again.metadata().contains_key("idempotency-body-mismatch"));
        let other = create("a", "two").await;
        if strict {
            assert_eq!(other.expect_err("strict").code(), Code::AlreadyExists);
        } else {
            let other = other.expect("the letter");
            assert_eq!(other.get_ref(), first.get_ref());
            let said = other.metadata().get("idempotency-body-mismatch");
            assert_eq!(said.expect("said"), "true");
        }
        let refused = create("", "one").await.expect_err("empty");
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn idempotency_key__should_hold_over_both_transports() {
    let server = Server::start(|api| api.strict_idempotency = true).await;
    let vault_uuid = vault_of(&server).await;
    let rest = both_sides(&server.api, &never());
    let body =
        format!("{{\"vaultUuid\": \"{vault_uuid}\", \"networkType\": 1, \"name\": \"one\"}}");
    let request = HttpRequest::post("/v1/createWallet")
        .header("x-mtoken", "platform")
        .header("content-type", "application/json")
        .header("idempotency-key", "k")
        .body(Body::from(body))
        .expect("request");
    let first = rest.oneshot(request).await.expect("answers");
    assert_eq!(first.status(), 200);
    let first = axum::body::to_bytes(first.into_body(), 1 << 20).await;
    let first: wire::CreateWalletResponse =
        covault_core::schema::json::decode(&first.expect("body")).expect("of the schema");

    let mut request = with_token(wire::CreateWalletRequest {
        vault_uuid,
        network_type: wire::NetworkType::Evm.into(),
        name: "one".into(),
        ..Default::default()
    });
    let metadata = request.metadata_mut();
    metadata.insert("idempotency-key", "k".parse().expect("metadata"));
    let again: tonic::Response<wire::CreateWalletResponse> = server
        .call("CreateWallet", request)
        .await
        .expect("the same");
    assert!(again.metadata().contains_key("idempotency-replayed"));
    assert_eq!(again.into_inner(), first);
}

#[tokio::test]
async fn nonce__should_be_0_when_it_is_there_and_0() {
    let server = Server::start(|_| ()).await;
    let vault_uuid = vault_of(&server).await;
    let wallet: tonic::Response<wire::CreateWalletResponse> = server
        .call(
            "CreateWallet",
            with_token(wire::CreateWalletRequest {
                vault_uuid,
                network_type: wire::NetworkType::Evm.into(),
                ..Default::default()
            }),
        )
        .await
        .expect("made");
    let from = wallet.into_inner().details.expect("wallet").address;
    let create = async |nonce: Option<i64>| -> Called<wire::CreateSigningRequestResponse> {
        use wire::create_signing_request_request::Type;
        let send = wire::EvmSendNative {
            // No chain that is known: the nonce has to be given.
            chain_id: 987_654_321,
            to: from.clone(),
            from: from.clone(),
            value: "1".into(),
            gas_fee: Some(wire::EvmGas {
                max_fee: Some("100".into()),
                max_priority_fee: Some("1".into()),
                gas_limit: Some("21000".into()),
                ..Default::default()
            }),
            nonce,
        };
        let request = wire::CreateSigningRequestRequest {
            r#type: Some(Type::EvmSendNative(send)),
            ..Default::default()
        };
        server
            .call("CreateSigningRequest", with_token(request))
            .await
    };
    let made = create(Some(0)).await.expect("made").into_inner();
    let request = made.signing_request.expect("request");
    assert_eq!(
        request.status,
        i32::from(wire::signing_request::Status::Pending)
    );
    match request.r#type.expect("kind") {
        wire::signing_request::Type::EvmSendNative(send) => assert_eq!(send.nonce, Some(0)),
        other => panic!("{other:?}"),
    }
    let status = create(None).await.expect_err("no nonce");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("nonce"), "{status:?}");
}

#[tokio::test]
async fn deadlines__should_end_a_call() {
    let path = format!("{PLATFORM}/GetWalletList");
    let short = Duration::from_millis(10);
    // The client's, the server's, and that of a message on its way.
    for (timeout, longest, body, sentence) in [
        (Some("10m"), LONG, LONG, "the call was not answered"),
        (None, short, LONG, "the call was not answered"),
        (Some("1H"), short, LONG, "the call was not answered"),
        (None, LONG, short, "the message did not arrive"),
    ] {
        let server = Server::patient(longest, |api| api.body_timeout = body).await;
        let request = without_end(&path, timeout);
        let response = server
            .router
            .clone()
            .oneshot(request)
            .await
            .expect("answers");
        let status = status_of(&response);
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(status.message().starts_with(sentence), "{status:?}");
        // Its place is free again.
        assert!(response.headers().contains_key("x-request-id"));
    }
}

#[test]
fn our_own_fault__should_say_nothing_but_how_to_find_it() {
    let status = status::of(Fault::bug("a secret of ours"), "r-9");
    assert_eq!(status.code(), Code::Internal);
    assert_eq!(status.message(), "internal error, see request id r-9");
}

#[tokio::test]
async fn operation__should_have_the_time_that_its_message_has_not() {
    let server = Server::start(|api| api.body_timeout = Duration::from_millis(10)).await;
    let http = both_sides(&server.api, &never());
    let vault_uuid = vault(&http).await;
    let (gateway, caller) = (&server.api.gateway, Caller::service("test"));
    let wallet = wire::CreateWalletRequest {
        vault_uuid,
        network_type: wire::NetworkType::Evm.into(),
        ..wire::CreateWalletRequest::default()
    };
    let wallet = gateway
        .call_typed::<CreateWallet>(&caller, &wallet, None)
        .await;
    let wallet = wallet.expect("a wallet").0.details.expect("a wallet");
    let message = wire::RawMessage {
        from: wallet.address,
        content: b"hello".to_vec(),
        ecdsa_hash_function: wire::EcdsaHashFunction::Sha256.into(),
    };
    let request = wire::CreateSigningRequestRequest {
        r#type: Some(wire::create_signing_request_request::Type::RawMessage(
            message,
        )),
        ..wire::CreateSigningRequestRequest::default()
    };
    let request = gateway
        .call_typed::<CreateSigningRequest>(&caller, &request, None)
        .await;
    let request = request.expect("a request").0.signing_request;
    let uuid = request.expect("a request").uuid;
    // It ends after longer than its message may take to arrive.
    let execute = || with_token(wire::ExecuteSigningRequestsRequest { uuid: uuid.clone() });
    let mut hurried = execute();
    hurried.set_timeout(Duration::from_millis(20));
    let waited: Called<wire::ExecuteSigningRequestsResponse> =
        server.call("ExecuteSigningRequests", hurried).await;
    assert_eq!(waited.expect_err("late").code(), Code::DeadlineExceeded);
    let waited: Called<wire::ExecuteSigningRequestsResponse> =
        server.call("ExecuteSigningRequests", execute()).await;
    assert!(waited.expect("its outcome").into_inner().error.is_some());
}

#[tokio::test]
async fn limits__should_be_those_of_rest() {
    let terms = AdmissionLimits {
        max_in_flight: 1,
        per_token: CallRate {
            per_second: 1,
            burst: 2,
        },
        ..UNLIMITED
    };
    let server = Server::start(|api| api.admission = Admission::new(&terms)).await;
    let list = async || -> Called<wire::GetWalletListResponse> {
        let request = with_token(wire::GetWalletListRequest::default());
        server.call("GetWalletList", request).await
    };
    let never = without_end(&format!("{PLATFORM}/GetWalletList"), None);
    let mut never = Box::pin(server.router.clone().oneshot(never));
    assert!(futures::poll!(&mut never).is_pending());
    let status = list().await.expect_err("full");
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.metadata().get("retry-after").expect("when"), "1");
    drop(never);
    // There is a place, and it is the second call of the token; it names no vault.
    let status = list().await.expect_err("no vault");
    assert_eq!(status.code(), Code::InvalidArgument);
    let status = list().await.expect_err("too fast");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.metadata().get("retry-after").expect("when"), "1");
}
