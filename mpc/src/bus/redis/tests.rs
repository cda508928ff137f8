use super::{redis_server::RedisServer, *};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_bus__should_conform() {
    let server = RedisServer::start();
    super::super::conformance::run(|| RedisBus::connect(&server.url(), "one").unwrap()).await;
}

async fn until_received(bus: &RedisBus, id: NodeId, inbox: &mut Subscription, text: &[u8]) {
    // What was sent while Redis was away may be lost; what is sent later may not.
    timeout(Duration::from_secs(20), async {
        loop {
            bus.publish(BusAddress::Inbox(id), text.to_vec()).unwrap();
            match timeout(Duration::from_millis(200), inbox.next()).await {
                Ok(Some(message)) if message == text => return,
                _ => {}
            }
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_bus__should_survive_a_restart_that_loses_everything() {
    let mut server = RedisServer::start();
    let bus = RedisBus::connect(&server.url(), "one").unwrap();
    let id = NodeId([7; 32]);
    let mut inbox = bus.subscribe(id, true).await.unwrap();
    until_received(&bus, id, &mut inbox, b"before").await;
    server.restart();
    until_received(&bus, id, &mut inbox, b"after").await;
    assert!(bus.reachable());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_bus__should_wait_for_a_server_that_comes_later() {
    let mut server = RedisServer::start();
    server.stop();
    let bus = RedisBus::connect(&server.url(), "one").unwrap();
    let id = NodeId([7; 32]);
    let mut inbox = bus.subscribe(id, false).await.unwrap();
    assert!(!bus.reachable());
    server.restart();
    until_received(&bus, id, &mut inbox, b"hello").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_bus__should_trim_behind_the_reader_and_expire_every_key() {
    let server = RedisServer::start();
    let bus = RedisBus::connect(&server.url(), "one").unwrap();
    let id = NodeId([7; 32]);
    let mut inbox = bus.subscribe(id, true).await.unwrap();
    for number in 0..100_u8 {
        bus.publish(BusAddress::Inbox(id), vec![number]).unwrap();
    }
    bus.publish(BusAddress::Announcements, vec![200]).unwrap();
    for _ in 0..101 {
        inbox.next().await.unwrap();
    }
    let mut connection = bus.servers.open(WRITE_TIMEOUT).await.unwrap();
    let key = key(&bus.prefix, BusAddress::Inbox(id));
    timeout(Duration::from_secs(10), async {
        loop {
            let length: usize = redis::cmd("XLEN")
                .arg(&key)
                .query_async(&mut connection)
                .await
                .unwrap();
            if length == 0 {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*")
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(keys.len(), 2);
    for key in keys {
        let left: i64 = redis::cmd("TTL")
            .arg(&key)
            .query_async(&mut connection)
            .await
            .unwrap();
        assert!((1..=3600).contains(&left), "{key}: {left}");
    }
}

/// How often Redis was given a command.
async fn calls(connection: &mut MultiplexedConnection, command: &str) -> u64 {
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(connection)
        .await
        .unwrap();
    let line = format!("cmdstat_{command}:calls=");
    let count = stats.lines().find_map(|it| it.strip_prefix(&line));
    count.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_bus__should_put_off_expiries_now_and_then_and_expire_what_went_and_came_again() {
    let server = RedisServer::start();
    let bus = RedisBus::connect(&server.url(), "one").unwrap();
    let (id, other) = (NodeId([7; 32]), NodeId([8; 32]));
    let mut inbox = bus.subscribe(id, false).await.unwrap();
    let mut connection = bus.servers.open(WRITE_TIMEOUT).await.unwrap();
    for number in 0..50_u8 {
        until_received(&bus, id, &mut inbox, &[number]).await;
    }
    for command in ["expire", "multi", "exec"] {
        assert_eq!(calls(&mut connection, command).await, 1, "{command}");
    }
    assert!(calls(&mut connection, "xadd").await >= 50);
    let key = key(&bus.prefix, BusAddress::Inbox(id));
    for expected in 2..4 {
        redis::cmd("DEL")
            .arg(&key)
            .exec_async(&mut connection)
            .await
            .unwrap();
        // Beside one that is there, too.
        bus.publish(BusAddress::Inbox(other), vec![1]).unwrap();
        until_received(&bus, id, &mut inbox, &[100 + expected]).await;
        let left: i64 = redis::cmd("TTL")
            .arg(&key)
            .query_async(&mut connection)
            .await
            .unwrap();
        assert!((3500..=3600).contains(&left), "{left}");
    }
}

/// Whoever may write to a stream can write the last id that there is.
async fn end(bus: &RedisBus, address: BusAddress) {
    let mut connection = bus.servers.open(WRITE_TIMEOUT).await.unwrap();
    let last = format!("{}-{}", u64::MAX, u64::MAX);
    redis::cmd("XADD")
        .arg(key(&bus.prefix, address))
        .arg(last)
        .arg("m")
        .arg("x")
        .exec_async(&mut connection)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_bus__should_begin_streams_anew_that_have_no_id_left() {
    let server = RedisServer::start();
    let bus = RedisBus::connect(&server.url(), "one").unwrap();
    let id = NodeId([7; 32]);
    let mut inbox = bus.subscribe(id, true).await.unwrap();
    until_received(&bus, id, &mut inbox, b"before").await;
    end(&bus, BusAddress::Inbox(id)).await;
    until_received(&bus, id, &mut inbox, b"after").await;
    end(&bus, BusAddress::Announcements).await;
    timeout(Duration::from_secs(60), async {
        loop {
            bus.publish(BusAddress::Announcements, b"here".to_vec())
                .unwrap();
            match timeout(Duration::from_millis(200), inbox.next()).await {
                Ok(Some(message)) if message == b"here" => return,
                _ => {}
            }
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_bus__should_deliver_to_others_what_one_stream_takes_nothing_of() {
    let server = RedisServer::start();
    let bus = RedisBus::connect(&server.url(), "one").unwrap();
    // Nobody reads it, and so nobody mends it.
    let ended = NodeId([8; 32]);
    end(&bus, BusAddress::Inbox(ended)).await;
    let id = NodeId([7; 32]);
    let mut inbox = bus.subscribe(id, false).await.unwrap();
    for number in 0..100_u8 {
        bus.publish(BusAddress::Inbox(ended), vec![number]).unwrap();
        bus.publish(BusAddress::Inbox(id), vec![number]).unwrap();
    }
    let mut seen = Vec::new();
    timeout(writer::STALE / 2, async {
        while seen.len() < 100 {
            seen.extend(inbox.next().await.unwrap());
        }
    })
    .await
    .unwrap();
    // What was taken beside an error does not come again.
    let again = timeout(Duration::from_secs(1), inbox.next()).await;
    assert!(again.is_err(), "{again:?}");
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<u8>>());
    assert!(bus.reachable());
    // Its owner comes.
    let mut inbox = bus.subscribe(ended, false).await.unwrap();
    until_received(&bus, ended, &mut inbox, b"after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_bus__should_keep_namespaces_apart() {
    let server = RedisServer::start();
    let one = RedisBus::connect(&server.url(), "one").unwrap();
    let two = RedisBus::connect(&server.url(), "two").unwrap();
    let id = NodeId([7; 32]);
    let mut inbox = two.subscribe(id, true).await.unwrap();
    one.publish(BusAddress::Inbox(id), b"from one".to_vec())
        .unwrap();
    until_received(&two, id, &mut inbox, b"from two").await;
    assert!(
        timeout(Duration::from_millis(300), inbox.next())
            .await
            .is_err()
    );
}

fn fixture(name: &str) -> String {
    std::fs::read_to_string(format!(
        "{}/../tests/tls/{name}",
        env!("CARGO_MANIFEST_DIR")
    ))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_bus__should_conform_over_tls_and_trust_only_who_it_is_told_to() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = RedisServer::start_tls();
    let tls = RedisTls {
        authorities: Some(fixture("a.pem")),
        client: Some((fixture("client.pem"), fixture("client.key").into())),
    };
    super::super::conformance::run(|| RedisBus::connect_with(&server.url(), "one", &tls).unwrap())
        .await;
    let refused = async |url: &str, tls: RedisTls| {
        let error = match RedisServers::of(url, &tls)
            .unwrap()
            .open(READ_TIMEOUT)
            .await
        {
            Err(error) => error,
            // A server may refuse a client once that has written.
            Ok(mut connection) => {
                let asked = redis::cmd("PING").exec_async(&mut connection).await;
                asked.unwrap_err()
            }
        };
        error.to_string()
    };
    // Another server's certificate, one that no authority of this machine has made, no client's, another client's, no TLS.
    let other = RedisTls {
        authorities: Some(fixture("b.pem")),
        ..tls.clone()
    };
    let error = refused(&server.url(), other).await;
    assert!(error.contains("certificate"), "{error}");
    let machines = RedisTls {
        authorities: None,
        ..tls.clone()
    };
    let error = refused(&server.url(), machines).await;
    assert!(error.contains("certificate"), "{error}");
    for client in [None, Some((fixture("b.pem"), fixture("b.key").into()))] {
        refused(
            &server.url(),
            RedisTls {
                client,
                ..tls.clone()
            },
        )
        .await;
    }
    let plain = server.url().replace("rediss", "redis");
    refused(&plain, RedisTls::default()).await;
}

/// Whoever is announced and deaf would be chosen to sign, and would not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_bus__should_announce_nobody_who_cannot_read() {
    let server = RedisServer::start();
    let operator = RedisBus::connect(&server.url(), "one").unwrap();
    let mut connection = operator.servers.open(WRITE_TIMEOUT).await.unwrap();
    let mut may = async |rules: &[&str]| {
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg("node");
        rules.iter().for_each(|rule| {
            command.arg(rule);
        });
        command.exec_async(&mut connection).await.unwrap();
    };
    may(&["on", ">secret", "~*", "+@all", "-xread"]).await;
    let url = server.url().replace("//", "//node:secret@");
    let bus = RedisBus::connect(&url, "one").unwrap();
    let (id, other) = (NodeId([7; 32]), NodeId([8; 32]));
    let mut heard = operator.subscribe(other, true).await.unwrap();
    let mut inbox = bus.subscribe(id, true).await.unwrap();
    bus.publish(BusAddress::Announcements, b"here".to_vec())
        .unwrap();
    bus.publish(BusAddress::Inbox(other), b"written".to_vec())
        .unwrap();
    assert_eq!(heard.next().await.unwrap(), b"written");
    assert!(!bus.reachable());
    let silence = timeout(Duration::from_millis(300), heard.next()).await;
    assert!(silence.is_err(), "it was announced");

    may(&["+xread"]).await;
    until_received(&bus, id, &mut inbox, b"read").await;
    assert!(bus.reachable());
    bus.publish(BusAddress::Announcements, b"here".to_vec())
        .unwrap();
    let announced = timeout(Duration::from_secs(20), heard.next()).await;
    assert_eq!(announced.unwrap().unwrap(), b"here");
    // Who has left holds nobody up.
    may(&["-xread"]).await;
    timeout(Duration::from_secs(20), async {
        while bus.reachable() {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    drop(inbox);
    timeout(Duration::from_secs(20), async {
        while bus.deaf.load(Ordering::Relaxed) > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
}

#[test]
fn reasons__should_be_said_once_until_it_works_again() {
    let error = |why| RedisError::from((redis::ErrorKind::Io, why));
    let mut reasons = SaidReasons::default();
    assert!(!reasons.clear());
    for _ in 0..2 {
        assert!(reasons.is_new(&error("away")));
        assert!(!reasons.is_new(&error("away")));
        assert!(reasons.is_new(&error("refused")));
        assert!(!reasons.is_new(&error("away")));
        assert!(reasons.clear());
    }
    let new = (0..100).filter(|number| {
        reasons.is_new(&RedisError::from((
            redis::ErrorKind::Io,
            "",
            number.to_string(),
        )))
    });
    assert_eq!(new.count(), MAX_REASONS);
}
