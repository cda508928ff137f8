//! Requests as bytes, over the real listener: what no client library would send.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::{
    routes::app,
    server::{self, HttpVersion, ServerLimits},
};

const SERVER_LIMITS: ServerLimits = ServerLimits {
    headers: Duration::from_secs(60),
    idle: Duration::from_secs(60),
    reading: Duration::from_secs(60),
    stopping: Duration::from_secs(60),
    max_connections: 100,
    max_per_address: None,
};

struct Response {
    status: u16,
    head: String,
    body: String,
}

/// One request on a connection of its own.
async fn ask(address: SocketAddr, request: &[u8]) -> Response {
    let mut client = TcpStream::connect(address).await.expect("connects");
    client.write_all(request).await.expect("sent");
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.expect("answered");
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let head = head.to_ascii_lowercase();
    let status = head.split(' ').nth(1).expect("status");
    Response {
        status: status.parse().expect("status"),
        head: head.clone(),
        body: body.to_owned(),
    }
}

/// A request of a method, a target and a body, with the platform token.
fn request(line: &str, more: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-mtoken: platform\r\n\
         content-type: application/json\r\n{more}\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn with_length(line: &str, body: &[u8]) -> Vec<u8> {
    request(line, &format!("content-length: {}\r\n", body.len()), body)
}

#[tokio::test]
async fn odd_requests__should_be_answered_in_the_shape_of_the_api() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
    let address = listener.local_addr().expect("address");
    let (_stop, stopped) = watch::channel(false);
    let router = app().await;
    tokio::spawn(server::serve(
        listener,
        None,
        router,
        HttpVersion::Http1,
        SERVER_LIMITS,
        stopped,
    ));
    let list = "POST /v1/getWalletList";
    let empty = "vaultUuid: is required";
    let cases: Vec<(Vec<u8>, u16, &str)> = vec![
        // Admitted: it names no vault.
        (with_length(list, b"{}"), 400, empty),
        (
            with_length("POST http://elsewhere/v1/getWalletList", b"{}"),
            400,
            empty,
        ),
        (
            with_length("POST /v1/getWalletList?x-mtoken=wrong", b"{}"),
            400,
            empty,
        ),
        (
            request(
                list,
                "transfer-encoding: chunked\r\n",
                b"1\r\n{\r\n1\r\n}\r\n0\r\nx-mtoken: admin\r\n\r\n",
            ),
            400,
            empty,
        ),
        (with_length(list, b""), 400, "malformed JSON: the body ends"),
        (with_length(list, b"\xef\xbb\xbf{}"), 400, "malformed JSON"),
        (with_length(list, b"{\"\xff\": 1}"), 400, "malformed JSON"),
        (with_length(list, b"{}{}"), 400, "malformed JSON"),
        (with_length(list, b"{}\0"), 400, "malformed JSON"),
        (
            with_length("POST /v1/getWalletList/", b"{}"),
            404,
            "unknown path /v1/getWalletList/",
        ),
        (
            with_length("POST //v1/getWalletList", b"{}"),
            404,
            "unknown path",
        ),
        (
            with_length("POST /v1/%67etWalletList", b"{}"),
            404,
            "unknown path",
        ),
        (
            with_length("POST /v1/sweep%2Fwallets", b"{}"),
            404,
            "unknown path",
        ),
        (
            with_length("POST /v1/x/../getWalletList", b"{}"),
            404,
            "unknown path",
        ),
        (request("OPTIONS *", "", b""), 404, "unknown path"),
        (request("CONNECT x:80", "", b""), 404, "unknown path"),
        (
            request("OPTIONS /v1/getWalletList", "", b""),
            405,
            "wrong method",
        ),
        (
            request("BREW /v1/getWalletList", "", b""),
            405,
            "wrong method",
        ),
        (
            with_length("GET /v1/getWalletList", b"{}"),
            405,
            "wrong method",
        ),
    ];
    for (request, status, message) in cases {
        let shown = String::from_utf8_lossy(&request).into_owned();
        let said = ask(address, &request).await;
        assert_eq!(said.status, status, "{shown}: {}", said.body);
        assert!(said.head.contains("x-request-id: "), "{shown}");
        assert!(said.head.contains("content-type: application/json"));
        let body: serde_json::Value = serde_json::from_str(&said.body).expect(&shown);
        let given = body["error"]["message"].as_str().expect("message");
        assert!(given.starts_with(message), "{shown}: {given}");
    }
    for (line, status) in [("HEAD /livez", 200), ("HEAD /v1/getWalletList", 405)] {
        let said = ask(address, &request(line, "", b"")).await;
        assert_eq!((said.status, said.body.as_str()), (status, ""), "{line}");
        assert!(said.head.contains("x-request-id: "), "{line}");
    }
}
