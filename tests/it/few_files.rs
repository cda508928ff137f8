//! A service that may open few files.

use std::{
    net::{IpAddr, SocketAddr},
    process::Command,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::support::*;

fn covault_with_few_files() -> Command {
    let mut command = Command::new("sh");
    let script = "ulimit -n 400 && exec \"$0\" \"$@\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_covault")]);
    command
}

/// A chain's node that says which chain it is on, and nothing else.
async fn say_which_chain(mut connection: TcpStream) {
    let mut asked = vec![0; 4096];
    while let Ok(read @ 1..) = connection.read(&mut asked).await {
        if String::from_utf8_lossy(&asked[..read]).contains("eth_chainId") {
            let body = json!({"jsonrpc": "2.0", "id": 0, "result": "0x89"}).to_string();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            let answer = head + &body;
            connection.write_all(answer.as_bytes()).await.unwrap();
        }
    }
}

/// An address of this machine that is not loopback; `None` where it has no network.
fn own_address() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    // Nothing is sent.
    socket.connect("198.51.100.1:9").ok()?;
    let address = socket.local_addr().unwrap().ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// Whether a connection is still there after a moment in which nothing is said.
async fn is_open(connection: &mut TcpStream) -> bool {
    let moment = Duration::from_millis(300);
    let said = connection.read_u8();
    !matches!(tokio::time::timeout(moment, said).await, Ok(Err(_)))
}

#[tokio::test]
async fn one_address__should_not_take_all_connections_of_a_service_with_few_files() {
    let Some(address) = own_address() else {
        eprintln!("this machine has no address of which it can call itself");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--grpc-listen", "0.0.0.0:0"];
    let data = folder.path().join("dev");
    let dev = DevProcess::start_by(covault_with_few_files, &data, &arguments, &[]).await;
    let here: SocketAddr = dev.info["grpcTarget"].as_str().unwrap().parse().unwrap();
    let mut idle = Vec::new();
    for _ in 0..60 {
        idle.push(TcpStream::connect((address, here.port())).await.unwrap());
    }
    let count = async |idle: &mut Vec<TcpStream>| {
        let open = stream::iter(idle).map(is_open).buffer_unordered(60);
        open.filter(|open| std::future::ready(*open)).count().await
    };
    // A quarter of the 36 that there are. A busy machine needs a while to close the others.
    let open = eventually("connections of one address are closed", async || {
        Some(count(&mut idle).await).filter(|open| *open <= 9)
    });
    open.await;
    assert_eq!(count(&mut idle).await, 9);
    let mut operator = TcpStream::connect(here).await.unwrap();
    assert!(is_open(&mut operator).await);
}

#[tokio::test]
async fn a_service_with_few_files__should_take_connections_although_a_chain_hangs() {
    let node = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let chain = format!("137=http://{}", node.local_addr().unwrap());
    let hanging = tokio::spawn(async move {
        loop {
            let (connection, _) = node.accept().await.unwrap();
            tokio::spawn(say_which_chain(connection));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("dev");
    let arguments = ["--chain", chain.as_str()];
    let dev = DevProcess::start_by(covault_with_few_files, &data, &arguments, &[]).await;
    let from = dev.api.wallet(&dev.vault, "NETWORK_TYPE_EVM").await;
    let transfer =
        json!({"evmSendNative": {"chainId": 137, "from": from, "to": from, "value": "1"}});
    // Each of them asks the chain. They have few connections to the service. It may say in the end that the chain does
    // nothing.
    let made = stream::iter(0..600).map(|_| dev.api.post("createSigningRequest", transfer.clone()));
    let begun = Instant::now();
    let made: Vec<_> = made.buffer_unordered(10).collect().await;
    let accepted = made.iter().filter(|(status, _)| *status == 200).count();
    assert!(accepted >= 32, "{accepted}");
    for (status, answer) in made {
        assert!([200, 503].contains(&status), "{status}: {answer}");
    }
    for _ in 0..20 {
        let new = ApiClient::new(&dev.api.base, &dev.api.token);
        let answered = tokio::time::timeout(Duration::from_secs(2), new.get("/livez")).await;
        assert_eq!(answered, Ok(200), "after {:?}", begun.elapsed());
    }
    assert!(!dev.process.log().contains("failed to accept a connection"));
    hanging.abort();
}
