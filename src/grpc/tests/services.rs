//! Health, reflection, and the real listener.

use covault_core::schema::wire;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use super::*;
use crate::{
    api::admission::{Admission, AdmissionLimits},
    http::{
        server::{self, HttpVersion, ServerLimits},
        tests::routes::UNLIMITED,
    },
};

type Http2 = Client<HttpConnector, tonic::body::Body>;

fn about(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.to_owned(),
    }
}

#[tokio::test]
async fn health__should_be_that_of_readiness_for_every_service() {
    let services = [
        "",
        "mpcvault.platform.v1.PlatformAPI",
        "mpcvault.platform.v1.SweepAPI",
    ];
    for (reachable, expected) in [
        (true, ServingStatus::Serving),
        (false, ServingStatus::NotServing),
    ] {
        let server = Server::with_bus(reachable).await;
        let mut client = HealthClient::new(server.router.clone());
        for service in services {
            let answer = client.check(about(service)).await.expect("answers");
            assert_eq!(answer.get_ref().status(), expected, "{service}");
            assert!(answer.metadata().contains_key("x-request-id"));
        }
        let status = client.check(about("no.Such")).await.expect_err("unknown");
        assert_eq!(status.code(), Code::NotFound);
    }
}

#[tokio::test]
async fn health__should_have_places_for_so_many_who_do_not_ask_to_the_end() {
    let server = Server::start(|_| ()).await;
    let mut waiting = Vec::new();
    for _ in 0..STRANGERS {
        let request = without_end("/grpc.health.v1.Health/Check", None);
        let mut call = Box::pin(server.router.clone().oneshot(request));
        assert!(futures::poll!(&mut call).is_pending());
        waiting.push(call);
    }
    let mut client = HealthClient::new(server.router.clone());
    let status = client.check(about("")).await.expect_err("full");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.metadata().contains_key("x-request-id"));
    waiting.pop();
    client.check(about("")).await.expect("a place is free");
}

#[tokio::test]
async fn health__should_be_told_to_watchers_until_the_end() {
    let server = Server::with_bus(true).await;
    let mut client = HealthClient::new(server.router.clone());
    let mut known = client.watch(about("")).await.expect("watches").into_inner();
    let mut unknown = client
        .watch(about("no.Such"))
        .await
        .expect("watches")
        .into_inner();
    let first = known.message().await.expect("told").expect("status");
    assert_eq!(first.status(), ServingStatus::Serving);
    let first = unknown.message().await.expect("told").expect("status");
    assert_eq!(first.status(), ServingStatus::ServiceUnknown);
    server.stop.send(true).expect("listens");
    let last = known.message().await.expect("told").expect("status");
    assert_eq!(last.status(), ServingStatus::NotServing);
    assert_eq!(known.message().await.expect("ends well"), None);
    assert_eq!(unknown.message().await.expect("ends well"), None);
    let after = client.check(about("")).await.expect("answers");
    assert_eq!(after.get_ref().status(), ServingStatus::NotServing);
}

fn ask(question: MessageRequest) -> ServerReflectionRequest {
    ServerReflectionRequest {
        host: String::new(),
        message_request: Some(question),
    }
}

#[tokio::test]
async fn reflection__should_show_the_services_and_the_whole_schema() {
    let server = Server::start(|_| ()).await;
    let mut client = ServerReflectionClient::new(server.router.clone());
    let questions = [
        MessageRequest::ListServices(String::new()),
        MessageRequest::FileContainingSymbol("mpcvault.platform.v1.SweepAPI".into()),
        MessageRequest::FileByFilename("google/protobuf/wrappers.proto".into()),
    ];
    let questions = futures::stream::iter(questions.map(ask));
    let answers = client.server_reflection_info(questions).await;
    let mut answers = answers.expect("answers").into_inner();
    let mut next = async || {
        let answer = answers.message().await.expect("answers").expect("one each");
        answer.message_response.expect("an answer")
    };
    match next().await {
        MessageResponse::ListServicesResponse(list) => {
            let mut names: Vec<_> = list
                .service
                .into_iter()
                .map(|service| service.name)
                .collect();
            names.sort();
            let expected = [
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "mpcvault.platform.v1.PlatformAPI",
                "mpcvault.platform.v1.SweepAPI",
            ];
            assert_eq!(names, expected);
        }
        other => panic!("{other:?}"),
    }
    for option in [Some("sweep/wallets"), None] {
        match next().await {
            MessageResponse::FileDescriptorResponse(files) => {
                let [file] = &files.file_descriptor_proto[..] else {
                    panic!("one file")
                };
                // The schema's own options are in it.
                let has = |text: &str| file.windows(text.len()).any(|part| part == text.as_bytes());
                assert!(option.is_none_or(has));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn reflection__should_speak_the_old_version_and_end_when_the_process_stops() {
    use futures::StreamExt as _;
    use tonic_reflection::pb::v1alpha as old;
    let server = Server::start(|_| ()).await;
    let router = server.router.clone();
    let mut client = old::server_reflection_client::ServerReflectionClient::new(router);
    let question = old::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            old::server_reflection_request::MessageRequest::ListServices(String::new()),
        ),
    };
    // Its client never says that this was all.
    let questions = futures::stream::iter([question]).chain(futures::stream::pending());
    let answers = client.server_reflection_info(questions).await;
    let mut answers = answers.expect("answers").into_inner();
    assert!(answers.message().await.expect("answers").is_some());
    server.stop.send(true).expect("listens");
    assert_eq!(answers.message().await.expect("ends well"), None);
}

/// Listens with a server's router. A client with one connection to it, that gives answers so much room.
async fn connect(
    server: &Server,
    window: u32,
) -> (tonic::client::Grpc<Http2>, JoinHandle<anyhow::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
    let address = listener.local_addr().expect("address");
    let patience = ServerLimits {
        headers: LONG,
        idle: LONG,
        reading: LONG,
        stopping: LONG,
        max_connections: 10,
        max_per_address: None,
    };
    let stopped = server.stop.subscribe();
    let router = server.router.clone();
    let serving = tokio::spawn(server::serve(
        listener,
        None,
        router,
        HttpVersion::Http2,
        patience,
        stopped,
    ));
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .http2_initial_stream_window_size(window)
        .build_http::<tonic::body::Body>();
    let origin = format!("http://{address}").parse().expect("uri");
    (tonic::client::Grpc::with_origin(client, origin), serving)
}

#[tokio::test]
async fn answers_that_are_not_read__should_count_for_their_token_only() {
    let limits = AdmissionLimits {
        max_unread_bytes: 32 << 10,
        ..UNLIMITED
    };
    let server = Server::start(|api| api.admission = Admission::new(&limits)).await;
    let (mut idler, _serving) = connect(&server, 0).await;
    let path = PathAndQuery::from_static("/covault.admin.v1.AdminAPI/ListVaults");
    let ask = async |client: &mut tonic::client::Grpc<Http2>| {
        client.ready().await.expect("ready");
        let call = client.server_streaming(with("admin", Bytes::new()), path.clone(), RawCodec);
        call.await
    };
    let mut unread = Vec::new();
    let refused = loop {
        match ask(&mut idler).await {
            Ok(answer) => unread.push(answer),
            Err(status) => break status,
        }
        assert!(unread.len() < 20);
    };
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert!(
        refused.message().contains("unread responses"),
        "{refused:?}"
    );
    assert_eq!(refused.metadata().get("retry-after").expect("when"), "1");
    assert!(unread.len() > 10);
    unread.clear();
    // The server has to hear that nobody waits for them.
    for _ in 0..100 {
        if ask(&mut idler).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing was given back");
}

#[tokio::test]
async fn listener__should_serve_over_http2_and_stop_politely() {
    let server = Server::start(|_| ()).await;
    let (mut client, serving) = connect(&server, 1 << 16).await;
    let path = PathAndQuery::from_static("/mpcvault.platform.v1.PlatformAPI/GetWalletList");
    let question = Bytes::from(wire::GetWalletListRequest::default().encode_to_vec());
    for token in ["platform", "wrong"] {
        client.ready().await.expect("ready");
        let answer = client
            .unary(with(token, question.clone()), path.clone(), RawCodec)
            .await;
        if token == "platform" {
            // It names no vault.
            let status = answer.expect_err("no vault");
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.metadata().contains_key("x-request-id"));
        } else {
            assert_eq!(answer.expect_err("refused").code(), Code::Unauthenticated);
        }
    }
    // The client keeps its connection; it is idle, and does not hold the server up.
    server.stop.send(true).expect("listens");
    serving.await.expect("ends").expect("serves");
}
