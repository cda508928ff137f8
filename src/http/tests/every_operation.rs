//! What every operation of the registry inherits: it answers over REST and gRPC, in the shape of its
//! audience, to the tokens that open it; and tokens that may only read change nothing.

use std::time::Duration;

use axum::http::Method;
use covault_actors::operations;
use covault_core::schema::service::{Audience, OperationDescriptor};
use serde_json::{Value, json};
use tokio::sync::watch;
use tonic::Code;

use super::{
    routes::{TestRequest, api_with, never},
    *,
};
use crate::grpc;

/// The tokens of each audience: one that may do everything, and one that may only read.
struct World {
    rest: Router,
    grpc: Router,
    /// Stops nothing before it is dropped.
    _stop: watch::Sender<bool>,
    platform: [String; 2],
    sweep: [String; 2],
}

impl World {
    async fn new() -> Self {
        let api = api_with(|_| ()).await;
        let rest = router(&api, &never()).expect("routes");
        let (stop, stopped) = watch::channel(false);
        let grpc = grpc::router(&api, Duration::from_secs(60), &stopped).expect("routes");
        let made = async |name: &str, kind: &str, access: &str| {
            let body = json!({"name": name, "kind": kind, "allVaults": true, "access": access});
            let (status, body) = ask(&rest, "/admin/v1/createToken", "admin", body).await;
            assert_eq!(status, 200, "{body}");
            body["secret"].as_str().expect("secret").to_owned()
        };
        Self {
            platform: [
                made("a", "platform", "full").await,
                made("b", "platform", "read-only").await,
            ],
            sweep: [
                made("c", "sweep", "full").await,
                made("d", "sweep", "read-only").await,
            ],
            rest,
            grpc,
            _stop: stop,
        }
    }

    /// The token that may do everything, and the one that may only read; operators have no such.
    fn tokens(&self, operation: &OperationDescriptor) -> (&str, Option<&str>) {
        match operation.audience() {
            Audience::Platform => (&self.platform[0], Some(&self.platform[1])),
            Audience::Sweep => (&self.sweep[0], Some(&self.sweep[1])),
            Audience::Admin => ("admin", None),
        }
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
        let (token, _) = world.tokens(operation);
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
        let (token, _) = world.tokens(operation);
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
        let (_, Some(reader)) = world.tokens(operation) else {
            // The tokens of clients do not open it at all.
            for token in world.platform.iter().chain(&world.sweep) {
                let (status, body) = ask(&world.rest, path, token, json!({})).await;
                assert_eq!(status, 403, "{path}: {body}");
                let status = grpc::tests::status(&world.grpc, &grpc_path, token, b"").await;
                assert_eq!(status.code(), Code::PermissionDenied, "{grpc_path}");
            }
            continue;
        };
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
