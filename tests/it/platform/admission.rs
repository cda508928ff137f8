//! What is refused because it is too much, too fast or too slow: one service with small limits,
//! behind a proxy that says where calls come from.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use serde_json::{Value, json};
use tonic::Code;

use super::{
    World,
    caller::{ApiCaller, LIMITED, UNAVAILABLE, sentence_of},
};
use crate::support::*;

/// Calls of a token, and of an address, at once; one per second after that.
const BURST: u32 = 40;
const ADDRESS_BURST: u32 = 100;
/// A known chain whose node is away: what needs it waits.
const AWAY: u64 = 137;

#[tokio::test]
async fn admission__should_refuse_too_much_too_fast_and_too_slow() {
    let (burst, address_burst) = (BURST.to_string(), ADDRESS_BURST.to_string());
    let settings = [
        ("COVAULT_LIMITS_PER_TOKEN_PER_SECOND", "1"),
        ("COVAULT_LIMITS_PER_TOKEN_BURST", burst.as_str()),
        ("COVAULT_LIMITS_PER_IP_PER_SECOND", "1"),
        ("COVAULT_LIMITS_PER_IP_BURST", address_burst.as_str()),
        ("COVAULT_SERVE_TRUSTED_PROXIES", "1"),
        ("COVAULT_SERVE_MAX_IN_FLIGHT", "4"),
        // Of which one token and one vault get two.
        ("COVAULT_SERVE_MAX_LIVE_REQUESTS", "3"),
        ("COVAULT_SERVE_HEADER_TIMEOUT_MS", "2000"),
        ("COVAULT_SERVE_BODY_TIMEOUT_MS", "2000"),
        ("COVAULT_IDEMPOTENCY_STRICT", "true"),
    ];
    let node = format!("{AWAY}=http://127.0.0.1:{}", free_port());
    let world = World::start_as(&["--chain", &node], &settings).await;
    let new = |name: &str, kind: &str| {
        let words = ["--name", name, "--kind", kind, "--access", "full"];
        world.caller().with(&world.token(&words).token)
    };
    let shop = new("shop", "platform").from("198.51.100.1");
    let sweep = new("deposits", "sweep").from("198.51.100.2");

    strict_keys(&world, &shop).await;
    unfinished(&world, &shop).await;
    let queue = new("queue", "platform").from("198.51.100.3");
    let other = new("other", "platform").from("198.51.100.4");
    in_work(&world, &queue, &other, &sweep).await;
    let slow = new("slow", "platform");
    tokio::join!(slow_message(&slow), slow_bytes(&world, &slow));
    rate_of_token(&world, &new("fast", "platform"), "getWalletList").await;
    rate_of_token(&world, &sweep, "sweep/wallets").await;
    let guest = new("guest", "platform");
    rate_of_address(&world, &guest).await;
}

fn list(world: &World) -> Value {
    json!({"vaultUuid": world.dev.vault})
}

fn waits(world: &World) -> Value {
    json!({"evmSendNative": {"chainId": AWAY, "from": world.evm, "to": world.evm, "value": "1"}})
}

/// A key that comes again with another body.
async fn strict_keys(world: &World, shop: &ApiCaller) {
    let wallet = |name: &str| json!({"vaultUuid": world.dev.vault, "networkType": 1, "name": name});
    let key = [("idempotency-key", "once")];
    for (body, expected) in [
        (wallet("one"), 200),
        (wallet("one"), 200),
        (wallet("two"), 422),
    ] {
        let rest = shop.rest("createWallet", &body, &key).await;
        assert_eq!(rest.status, expected, "{}", rest.body);
        if expected == 422 {
            let sentence = sentence_of("createWallet", &rest, (422, Code::AlreadyExists));
            let status = shop.grpc("createWallet", &body, &key).await.unwrap_err();
            assert_eq!(status.code(), Code::AlreadyExists);
            assert_eq!(status.message(), sentence);
        }
    }
}

/// More requests that are not finished than there may be.
async fn unfinished(world: &World, shop: &ApiCaller) {
    let mut made = Vec::new();
    for _ in 0..2 {
        made.push(shop.api.create(waits(world)).await);
    }
    let create = "createSigningRequest";
    let part = "too many requests of this token or vault are in progress";
    shop.refused(create, waits(world), UNAVAILABLE, part).await;
    // Who has an end gives its place back.
    for uuid in made {
        let uuid = json!({"uuid": uuid});
        shop.api.ok("rejectSigningRequest", uuid).await;
    }
    let again = eventually("there is a place", async || {
        let (status, answer) = shop.api.post(create, waits(world)).await;
        (status == 200).then(|| json!({"uuid": answer["signingRequest"]["uuid"]}))
    });
    let again = again.await;
    shop.api.ok("rejectSigningRequest", again).await;
}

/// More calls in progress than there may be: those that wait for an outcome are.
async fn in_work(world: &World, queue: &ApiCaller, other: &ApiCaller, sweep: &ApiCaller) {
    let uuid = json!({"uuid": queue.api.create(waits(world)).await});
    let mut waiting = Vec::new();
    // One token alone does not get all places.
    for caller in [queue, queue, other, other] {
        let (api, uuid) = (caller.api.clone(), uuid.clone());
        let wait = async move {
            loop {
                // The question below may have had the last place.
                let answer = api.post("executeSigningRequests", uuid.clone()).await;
                if answer.0 != 503 {
                    return answer;
                }
            }
        };
        waiting.push(tokio::spawn(wait));
    }
    eventually("all places are taken", async || {
        let rest = other.rest("getSigningRequestDetails", &uuid, &[]).await;
        (rest.status == 503).then_some(())
    })
    .await;
    let part = "too many requests";
    for (who, operation) in [
        (queue, "getWalletList"),
        (queue, "executeSigningRequests"),
        (sweep, "sweep/wallets"),
    ] {
        who.refused(operation, json!({}), UNAVAILABLE, part).await;
    }
    // Health checks get an answer, and a client that hangs up frees its place.
    assert_eq!(queue.api.get("/readyz").await, 200);
    waiting.pop().unwrap().abort();
    eventually("there is a place", async || {
        let rest = other.rest("rejectSigningRequest", &uuid, &[]).await;
        (rest.status == 200).then_some(())
    })
    .await;
    for outcome in waiting {
        let (status, outcome) = outcome.await.unwrap();
        let code = "EXECUTE_SIGNING_REQUESTS_ERROR_CODE_ALREADY_DENIED";
        assert_eq!(status, 200, "{outcome}");
        assert_eq!(outcome["error"]["executeSigningRequestsErrorCode"], code);
    }
}

/// A message that never arrives.
async fn slow_message(slow: &ApiCaller) {
    let status = slow.bare().call_without_end("getWalletList", &[]).await;
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    assert_eq!(status.message(), "the message did not arrive in time");
}

/// Headers, and a body, that never become whole.
async fn slow_bytes(world: &World, slow: &ApiCaller) {
    let place = world.dev.api.base.trim_start_matches("http://").to_owned();
    let begin = format!(
        "POST /v1/getWalletList HTTP/1.1\r\nhost: {place}\r\nx-mtoken: {}\r\n",
        slow.api.token
    );
    let ask = |text: String| {
        let place = place.clone();
        tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(place).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            let mut answer = String::new();
            // Until the service hangs up.
            stream.read_to_string(&mut answer).unwrap();
            answer
        })
    };
    let body = "content-type: application/json\r\ncontent-length: 99\r\nconnection: close\r\n\r\n{";
    let (headers, body) = tokio::join!(ask(begin.clone()), ask(begin + body));
    let headers = headers.unwrap();
    assert!(
        headers.is_empty() || headers.starts_with("HTTP/1.1 408"),
        "{headers}"
    );
    let body = body.unwrap();
    assert!(body.starts_with("HTTP/1.1 408"), "{body}");
    let (head, body) = body.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("x-request-id: "), "{head}");
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["error"]["message"], "the body did not arrive in time");
    assert_eq!(body["detailsList"], json!([]));
}

/// Calls until both transports have said that they come too fast.
async fn until_limited(who: impl Fn(u32) -> ApiCaller, operation: &str, part: &str) -> u32 {
    let mut admitted = 0;
    let (mut rest_said, mut grpc_said) = (false, false);
    // It takes a call less than a second, or the patience of nextest.
    for number in 0.. {
        let who = who(number);
        let rest = who.rest(operation, &json!({}), &[]).await;
        if rest.status == 429 {
            let sentence = sentence_of(operation, &rest, LIMITED);
            assert!(sentence.contains(part), "{sentence}");
            rest_said = true;
        } else {
            admitted += 1;
        }
        let status = who.grpc(operation, &json!({}), &[]).await.unwrap_err();
        if status.code() == Code::ResourceExhausted {
            assert!(status.message().contains(part), "{status:?}");
            let again = status.metadata().get("retry-after").unwrap();
            assert!(again.to_str().unwrap().parse::<u64>().unwrap() >= 1);
            grpc_said = true;
        } else {
            admitted += 1;
        }
        if rest_said && grpc_said {
            break;
        }
    }
    admitted
}

/// Whatever address it calls from.
async fn rate_of_token(world: &World, fast: &ApiCaller, operation: &str) {
    let from = |number: u32| fast.from(&format!("203.0.{}.{}", number / 200 % 200, number % 200));
    let part = "too many requests with this token";
    let admitted = until_limited(from, operation, part).await;
    assert!(admitted >= BURST, "{admitted}");
    // Others are not in its way, and it comes in again.
    let neighbour = world.caller().from("203.0.0.1");
    neighbour.same("getWalletList", list(world)).await;
    eventually("its time has come", async || {
        let rest = fast.rest(operation, &json!({}), &[]).await;
        (rest.status != 429).then_some(())
    })
    .await;
}

/// Whatever token it calls with; one that nobody knows weighs more.
async fn rate_of_address(world: &World, guest: &ApiCaller) {
    let (here, part) = ("192.0.2.1", "too many requests from this address");
    let guess = guest.with("nonsense").from(here);
    let admitted = until_limited(|_| guess.clone(), "getWalletList", part).await;
    assert!(admitted < ADDRESS_BURST / 2, "{admitted}");
    // What was guessed before is counted against a good token too, here and nowhere else.
    let good = guest.from(here);
    let sentence = eventually("the good token is refused", async || {
        guess.rest("getWalletList", &json!({}), &[]).await;
        let rest = good.rest("getWalletList", &list(world), &[]).await;
        (rest.status == 429).then(|| sentence_of("getWalletList", &rest, LIMITED))
    })
    .await;
    assert!(sentence.starts_with(part), "{sentence}");
    let elsewhere = guest.from("192.0.2.2");
    elsewhere.same("getWalletList", list(world)).await;
    // It learns nothing of paths either, and health is for all.
    let response = guest.api.raw("/v1/noSuchOperation", |request| {
        request.header("x-forwarded-for", here).body("{}")
    });
    let status = response.await.status().as_u16();
    assert!([404, 429].contains(&status), "{status}");
    assert_eq!(guest.api.get("/livez").await, 200);
}
