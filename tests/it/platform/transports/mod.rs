//! Contract sections 3 and 4 over REST and gRPC at once: every operation, every refusal that needs
//! no trouble to be made first (admission.rs, unavailable.rs and broken.rs have the others), and
//! every limit of a text at its edge.

mod edges;
mod refusals;
mod scopes;

use serde_json::{Value, json};
use tonic::Code;

use super::{
    World, assert_keys,
    caller::{ApiCaller, RestResponse, sentence_of},
};
use crate::support::*;

const BOB: &str = "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be";
const TRON: &str = "TJRabPrwbZy45sbavfcjinPJC18kjpRTv8";
/// A known chain whose node is away: what needs it waits.
const AWAY: u64 = 137;

/// What the first part makes and the others ask for.
struct Fixtures {
    /// A request that is signed.
    signed: String,
    /// One that waits for its chain.
    waiting: String,
    batch: String,
    wallet: String,
    sweep: ApiCaller,
}

#[tokio::test]
async fn operations__should_do_and_refuse_the_same_over_rest_and_grpc() {
    let folder = tempfile::tempdir().unwrap();
    let anvil = Anvil::start(folder.path(), 31337).await;
    let away = |chain: &str| format!("{chain}=http://127.0.0.1:{}", free_port());
    let nodes = [
        anvil.chain_argument(),
        away(&AWAY.to_string()),
        away("stellar"),
        away("ton"),
    ];
    let nodes: Vec<_> = nodes.iter().flat_map(|node| ["--chain", node]).collect();
    let world = World::start_with(&nodes).await;
    let caller = world.caller();
    let made = operations(&world, &caller, &anvil).await;
    refusals::check(&world, &caller, &made).await;
    scopes::of_tokens(&world, &caller, &made).await;
    scopes::of_another_vault(&world, &caller, &made).await;
    beside_operations(&world, &caller, &made).await;
    edges::check(&world, &caller, &made).await;
}

fn text(answer: &Value, path: &str) -> String {
    answer.pointer(path).unwrap().as_str().unwrap().to_owned()
}

async fn operations(world: &World, caller: &ApiCaller, anvil: &Anvil) -> Fixtures {
    let vault = &world.dev.vault;
    let wallet = |number: u8| {
        json!({"vaultUuid": vault, "networkType": "NETWORK_TYPE_EVM", "name": "W",
            "ref": format!("both-{number}")})
    };
    let made = caller.each("createWallet", [wallet(1), wallet(2)]).await;
    for (number, wallet) in (1..).zip(&made) {
        assert_eq!(wallet["details"]["ref"], json!(format!("both-{number}")));
        for which in ["address", "ref"] {
            let which = json!({which: wallet["details"][which]});
            assert_eq!(caller.same("getWalletInfo", which).await, *wallet);
        }
    }
    let address = text(&made[0], "/details/address");
    let change =
        |name: &str| json!({"address": address, "name": name, "status": "STATUS_ARCHIVED"});
    let [_, changed] = caller
        .each("updateWallet", [change("A"), change("B")])
        .await;
    assert_eq!(changed["details"]["name"], "B");
    assert_eq!(changed["details"]["status"], "STATUS_ARCHIVED");
    let list = json!({"vaultUuid": vault, "page": 2, "limit": "2"});
    let list = caller.same("getWalletList", list).await;
    let expected = json!([changed["details"], made[1]["details"]]);
    assert_eq!(list["detailsList"], expected);
    let past = json!({"vaultUuid": vault, "page": 9});
    let past = caller.same("getWalletList", past).await;
    assert_eq!(past["detailsList"], json!([]));

    // One of each curve, each signed.
    let other = json!({"solanaMessage": {"from": world.solana, "content": base64("both")}});
    let created = caller
        .each("createSigningRequest", [world.message("both"), other])
        .await;
    let mut signed = String::new();
    for request in &created {
        assert_eq!(request["signingRequest"]["status"], "STATUS_PENDING");
        signed = text(request, "/signingRequest/uuid");
        let one = json!({"uuid": signed});
        let outcome = caller.same("executeSigningRequests", one.clone()).await;
        assert!(first_signature(&outcome).is_object());
        let details = caller.same("getSigningRequestDetails", one.clone()).await;
        assert_eq!(details["signingRequest"]["status"], "STATUS_SUCCEEDED");
        // It needed no approval, and another one changes nothing.
        let done = caller
            .each("approveSigningRequest", [one.clone(), one])
            .await;
        for done in done {
            assert_eq!(done["signingRequest"], details["signingRequest"]);
        }
        let shown = &details["signingRequest"]["signatures"];
        assert_eq!(*shown, outcome["signatures"]);
    }
    let list = json!({"vaultUuid": vault, "sortOrder": 1});
    let list = caller.same("getSigningRequestList", list).await;
    let ids = list["signingRequests"].as_array().unwrap().iter();
    let ids: Vec<_> = ids.map(|request| request["uuid"].clone()).collect();
    let expected = created
        .each_ref()
        .map(|request| request["signingRequest"]["uuid"].clone());
    // The vault itself and its keys come first.
    assert_eq!(ids[3..], expected);

    for vaults in [json!({}), json!({"vaultUuid": vault})] {
        let list = caller.same("getPendingSigningRequests", vaults).await;
        assert_eq!(list["signingRequests"], json!([]));
    }

    let waits =
        || json!({"evmSendNative": {"chainId": AWAY, "from": world.evm, "to": BOB, "value": "1"}});
    let waiting = caller
        .each("createSigningRequest", [waits(), waits()])
        .await
        .map(|request| json!({"uuid": request["signingRequest"]["uuid"]}));
    caller.each("rejectSigningRequest", waiting.clone()).await;
    for one in waiting {
        let outcome = caller.same("executeSigningRequests", one).await;
        let code = "EXECUTE_SIGNING_REQUESTS_ERROR_CODE_ALREADY_DENIED";
        assert_eq!(outcome["error"]["executeSigningRequestsErrorCode"], code);
    }

    let batch = || {
        json!({"name": "wages", "notes": "June", "evmBatchSendNative": {"chainId": 1, "from": world.evm,
            "recipients": [{"address": BOB, "amount": "1000", "notes": "rent"}]}})
    };
    let batches = caller.each("createBatchPayment", [batch(), batch()]).await;
    for batch in &batches {
        let uuid = json!({"uuid": batch["batchPayment"]["uuid"]});
        assert_eq!(caller.same("getBatchPaymentDetails", uuid).await, *batch);
        assert_eq!(batch["batchPayment"]["status"], "STATUS_PENDING");
    }

    anvil.fund(&world.evm, 1_234_567_890_123_456_789).await;
    let balance = json!({"networkType": 1, "chainId": "31337", "walletAddress": world.evm});
    let balance = caller.same("getBalance", balance).await;
    assert_eq!(balance, json!({"balance": "1234567890123456789"}));

    let sweep = world.token(&["--name", "deposits", "--kind", "sweep", "--access", "full"]);
    let sweep = caller.with(&sweep.token);
    for (network, target) in [("EVM", BOB), ("TRON", TRON)] {
        let route = format!(
            "sweep configure --token deposits --network {network} --vault default \
             --target {target} --webhook https://example.com/hook"
        );
        world.command(&route.split_whitespace().collect::<Vec<_>>());
        let order = json!({"network": network, "ref": "order-1"});
        let deposit = sweep.same("sweep/wallets", order).await;
        assert_keys(&deposit, &["address", "network", "ref", "addressProof"]);
    }
    let watch = json!({"network": "TRON", "address": TRON});
    let watch = sweep.same("sweep/addWatchAddress", watch).await;
    assert_keys(&watch, &["uuid", "address", "network"]);

    let waiting = caller.api.create(waits()).await;
    Fixtures {
        signed,
        waiting,
        batch: text(&batches[0], "/batchPayment/uuid"),
        wallet: address,
        sweep,
    }
}

/// What each transport has of its own: no such operation, another method, another content, and
/// deadlines.
async fn beside_operations(world: &World, caller: &ApiCaller, made: &Fixtures) {
    let api = &caller.api;
    for (path, token, shape) in [
        ("/v1/noSuchOperation", &api.token, ["error"].as_slice()),
        ("/", &api.token, &["error"]),
        (
            "/v1/sweep/nothing",
            &made.sweep.api.token,
            &["code", "error", "reason"],
        ),
    ] {
        let response = api
            .raw(path, |request| {
                request.header("x-mtoken", token).json(&json!({}))
            })
            .await;
        assert_eq!(response.status().as_u16(), 404, "{path}");
        assert!(!response.headers()["x-request-id"].is_empty());
        assert_keys(&response.json().await.unwrap(), shape);
    }
    for (operation, who) in [
        ("getWalletList", caller),
        ("executeSigningRequests", caller),
        ("sweep/wallets", &made.sweep),
    ] {
        let path = format!("/v1/{operation}");
        let url = format!("{}{path}", api.base);
        let read = async |response: reqwest::Response| RestResponse {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.json().await.unwrap(),
        };
        let got = read(http_client().get(&url).send().await.unwrap()).await;
        let sentence = sentence_of(operation, &got, (405, Code::Ok));
        assert!(sentence.contains("POST"), "{sentence}");
        assert_eq!(got.headers["allow"], "POST");
        let plain = api.raw(&path, |request| {
            request.header("x-mtoken", &who.api.token).body("{}")
        });
        let plain = read(plain.await).await;
        let sentence = sentence_of(operation, &plain, (415, Code::Ok));
        assert!(sentence.contains("application/json"), "{sentence}");
    }
    for probe in ["/livez", "/readyz"] {
        assert_eq!(api.get(probe).await, 200);
    }

    let grpc = caller.bare();
    for (method, bytes, code) in [
        ("GetWalletLists", b"".as_slice(), Code::Unimplemented),
        ("GetWalletList", &[0xff; 9], Code::InvalidArgument),
    ] {
        let status = grpc.call_with_bytes(method, bytes).await;
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.metadata().contains_key("x-request-id"));
    }
    let body = json!({"uuid": made.waiting});
    let late = caller.grpc("executeSigningRequests", &body, &[("grpc-timeout", "100m")]);
    let late = late.await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late:?}");
    assert!(late.message().contains("it may still be done"), "{late:?}");
    assert!(grpc.is_serving().await);

    // The client's own id comes back over both.
    let id = [("x-request-id", "my-1")];
    let body = json!({"vaultUuid": world.dev.vault});
    let rest = caller.rest("getWalletList", &body, &id).await;
    assert_eq!(rest.headers["x-request-id"], "my-1");
    let (_, metadata) = caller.grpc("getWalletList", &body, &id).await.unwrap();
    assert_eq!(metadata.get("x-request-id").unwrap(), "my-1");
}
