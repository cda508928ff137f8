//! What every operation of the registry inherits: it answers over REST and gRPC, in the shape of its
//! audience, to the tokens that open it; and tokens that may only read change nothing.

use std::{net::SocketAddr, time::Duration};

use axum::http::Method;
use covault_actors::operations;
use covault_core::schema::service::{Audience, OperationDescriptor};
use serde_json::{Value, json};
use tokio::sync::watch;
use tonic::Code;

use super::{
    routes::{TestRequest, api_with, both_sides, never},
    *,
};
use crate::{
    api::address::Peer,
    grpc::{self, tests::both_grpc_sides},
};

/// The tokens of each audience: one that may do everything, and one that may only read.
struct World {
    rest: Router,
    grpc: Router,
    /// Stops nothing before it is dropped.
    _stop: watch::Sender<bool>,
    platform: [String; 2],
    sweep: [String; 2],
    admin: [String; 2],
}

impl World {
    async fn new() -> Self {
        let api = api_with(|_| ()).await;
        let here = || Extension(Peer(SocketAddr::from(([127, 0, 0, 1], 1))));
        let rest = both_sides(&api, &never()).layer(here());
        let (stop, stopped) = watch::channel(false);
        let grpc = both_grpc_sides(&api, Duration::from_secs(60), &stopped).layer(here());
        let made = async |name: &str, kind: &str, access: &str| {
            let body = json!({"name": name, "kind": kind, "allVaults": true, "access": access});
            let (status, body) = ask(&rest, "/admin/v1/createToken", "admin", body).await;
            assert_eq!(status, 200, "{body}");
            body["secret"].as_str().expect("secret").to_owned()
        };
        let admin = async |role: &str| {
            let body = json!({"name": role, "kind": "admin", "role": role, "allow": ["127.0.0.1"],
                "expiresAtMs": "4000000000000"});
            let (status, body) = ask(&rest, "/admin/v1/createToken", "admin", body).await;
            assert_eq!(status, 200, "{body}");
            body["secret"].as_str().expect("secret").to_owned()
        };
        Self {
            platform: [
                made("a", "platform", "full").await,
                made("b", "platform", "read-only").await,
            ],
            admin: [admin("operator").await, admin("viewer").await],
            sweep: [
                made("c", "sweep", "full").await,
                made("d", "sweep", "read-only").await,
            ],
            rest,
            grpc,
            _stop: stop,
        }
    }

    /// The token that may do everything, and the one that may only read.
    fn tokens(&self, operation: &OperationDescriptor) -> [&str; 2] {
        let tokens = match operation.audience() {
            Audience::Platform => &self.platform,
            Audience::Sweep => &self.sweep,
            Audience::Admin => &self.admin,
        };
        tokens.each_ref().map(String::as_str)
    }
}

async fn ask(rest: &Router, path: &str, token: &str, body: Value) -> (u16, Value) {
    let ask = TestRequest {
        method: Method::POST,
        path,
        headers: vec![("x-mtoken", token), ("content-type", "application/json")],
        body: body.to_string(),
    };
    let (status, _, body) = ask.of(rest).await;
    (status, body)
}

/// What is wrong, in the shape of the operation's errors.
fn problem<'a>(operation: &OperationDescriptor, body: &'a Value) -> &'a str {
    let problem = match operation.audience() {
        Audience::Sweep => &body["reason"],
        Audience::Platform | Audience::Admin => {
            let codes = ["serviceErrorCode", "executeSigningRequestsErrorCode"];
            let codes = codes
                .iter()
                .filter(|code| body["error"].get(**code).is_some());
            assert_eq!(codes.count(), 1, "{body}");
            &body["error"]["message"]
        }
    };
    problem.as_str().expect("what is wrong")
}

fn all() -> impl Iterator<Item = &'static OperationDescriptor> {
    operations::all()
        .expect("operations")
        .map(|operation| operation.descriptor())
}

#[tokio::test]
async fn every_operation__should_answer_over_rest_and_name_a_field_that_it_does_not_know() {
    let world = World::new().await;
    for operation in all() {
        let [token, _] = world.tokens(operation);
        let (path, body) = (operation.http_path(), json!({"noSuchField": 1}));
        let (status, body) = ask(&world.rest, path, token, body).await;
        assert_eq!(status, 400, "{path}: {body}");
        let problem = problem(operation, &body);
        assert_eq!(problem, "noSuchField: unknown field", "{path}");
        let (status, body) = ask(&world.rest, path, "of nobody", json!({})).await;
        assert_eq!(status, 401, "{path}: {body}");
    }
}

#[tokio::test]
async fn every_operation__should_answer_over_grpc_with_a_status_that_says_why() {
    let world = World::new().await;
    for operation in all() {
        let [token, _] = world.tokens(operation);
        let path = operation.grpc_path();
        // Bytes that are no message of any kind: field number 0.
        for (body, readable) in [(&b""[..], true), (&[0x02, 0x00][..], false)] {
            let status = grpc::tests::status(&world.grpc, &path, token, body).await;
            let (code, message) = (status.code(), status.message());
            assert_ne!(code, Code::Unimplemented, "{path}");
            if readable {
                // An empty message is a question too, and what it lacks is named.
                assert!(code == Code::Ok || !message.is_empty(), "{path}: {code:?}");
            } else {
                assert_eq!(code, Code::InvalidArgument, "{path}: {message}");
            }
        }
        let status = grpc::tests::status(&world.grpc, &path, "of nobody", b"").await;
        assert_eq!(status.code(), Code::Unauthenticated, "{path}");
    }
}

#[tokio::test]
async fn every_operation__should_let_readers_read_and_change_nothing() {
    let world = World::new().await;
    let (mut commands, mut queries) = (0, 0);
    for operation in all() {
        let (path, grpc_path) = (operation.http_path(), operation.grpc_path());
        let [_, reader] = world.tokens(operation);
        if operation.audience() == Audience::Admin {
            // The tokens of clients do not open it at all.
            for token in world.platform.iter().chain(&world.sweep) {
                let (status, body) = ask(&world.rest, path, token, json!({})).await;
                assert_eq!(status, 403, "{path}: {body}");
                let status = grpc::tests::status(&world.grpc, &grpc_path, token, b"").await;
                assert_eq!(status.code(), Code::PermissionDenied, "{grpc_path}");
            }
        }
        let (status, body) = ask(&world.rest, path, reader, json!({})).await;
        let over_grpc = grpc::tests::status(&world.grpc, &grpc_path, reader, b"").await;
        if operation.is_command() || operation.needs_full_access() {
            commands += 1;
            assert_eq!(status, 403, "{path}: {body}");
            assert_eq!(
                problem(operation, &body),
                "this token is read-only",
                "{path}"
            );
            assert_eq!(over_grpc.code(), Code::PermissionDenied, "{grpc_path}");
            assert_eq!(
                over_grpc.message(),
                "this token is read-only",
                "{grpc_path}"
            );
        } else if operation.reads_audit_log() {
            assert_eq!(status, 403, "{path}: {body}");
            let problem = problem(operation, &body);
            assert!(problem.starts_with("a viewer may not read"), "{problem}");
        } else {
            queries += 1;
            assert_ne!(status, 403, "{path}: {body}");
            let code = over_grpc.code();
            assert_ne!(code, Code::PermissionDenied, "{grpc_path}");
            assert_ne!(code, Code::Unauthenticated, "{grpc_path}");
        }
    }
    assert!(commands > 5 && queries > 5, "{commands} {queries}");
}

#[test]
fn transports__should_name_no_operation() {
    fn check(folder: &std::path::Path, names: &[String]) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("a file").path();
            let name = path.file_stem().and_then(|name| name.to_str());
            if name == Some("tests") {
                continue;
            }
            if path.is_dir() {
                check(&path, names);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path).expect("text");
                let code = text.split("\nmod tests {").next().unwrap_or_default();
                let lines = code
                    .lines()
                    .filter(|line| !line.trim_start().starts_with("//"));
                for line in lines {
                    let named = names.iter().find(|name| line.contains(name.as_str()));
                    assert_eq!(named, None, "{}: {line}", path.display());
                }
            }
        }
    }
    let all = operations::all().expect("a registry");
    let names: Vec<String> = all
        .map(|it| format!("\"{}\"", it.descriptor().name()))
        .collect();
    for room in ["http", "grpc", "api", "openapi"] {
        let room = format!("{}/src/{room}", env!("CARGO_MANIFEST_DIR"));
        check(room.as_ref(), &names);
    }
}

#[tokio::test]
async fn each_listener__should_have_the_operations_of_its_side_alone() {
    let api = api_with(|_| ()).await;
    for (side, token) in [
        (ApiSide::Clients, "admin"),
        (ApiSide::Operators, "platform"),
    ] {
        let rest = router(&api, side, &never()).expect("routes");
        let grpc = grpc::router(&api, side, Duration::from_secs(60), &never()).expect("routes");
        for operation in all() {
            let (path, grpc_path) = (operation.http_path(), operation.grpc_path());
            let (status, body) = ask(&rest, path, token, json!({})).await;
            let over_grpc = grpc::tests::status(&grpc, &grpc_path, token, b"").await;
            // Of those of its own side, the token opens none.
            let is_there = side.has(operation.audience());
            assert_eq!(status == 404, !is_there, "{path}: {status} {body}");
            let code = over_grpc.code();
            assert_eq!(code == Code::Unimplemented, !is_there, "{path}: {code:?}");
        }
    }
    // One listener of operators speaks both, and believes no proxy.
    let all = operators_router(&api, Duration::from_secs(60), &never()).expect("routes");
    let all = all.layer(Extension(Peer(SocketAddr::from(([192, 0, 2, 9], 1)))));
    let body = json!({"name": "anna", "kind": "admin", "role": "viewer", "allow": ["127.0.0.1"],
        "expiresAtMs": "4000000000000"});
    let (status, made) = ask(&all, "/admin/v1/createToken", "admin", body).await;
    assert_eq!(status, 200, "{made}");
    let elsewhere = TestRequest {
        method: Method::POST,
        path: "/admin/v1/listVaults",
        headers: vec![
            ("x-mtoken", made["secret"].as_str().expect("secret")),
            ("content-type", "application/json"),
            ("x-forwarded-for", "127.0.0.1"),
        ],
        body: "{}".to_owned(),
    };
    let (status, _, body) = elsewhere.of(&all).await;
    assert_eq!(status, 403, "{body}");
    assert_eq!(body["error"]["message"], "IP is not allowed");
    let path = "/covault.admin.v1.AdminAPI/ListVaults";
    let over_grpc = grpc::tests::status(&all, path, "admin", b"").await;
    assert_eq!(over_grpc.code(), Code::Ok, "{over_grpc:?}");
}
