//! People are told what waits for them, each thing once.

use std::collections::BTreeSet;

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use covault_actors::{
    mail::{MailServer, Mailer},
    operations::{CreateUser, ListUsers, NotifyUser, RevokeUser},
    store::{Batch, CommitError},
    testing::StoreDouble,
    webhooks::{WebhookKeys, WebhookSecret, headers},
};
use covault_core::ids::UserId;
use serde_json::Value;

use super::*;
use crate::{
    deposit_chain::{self, Receiver},
    mail::MailDouble,
};

const ORIGIN: &str = "https://console.example.com";

pub fn world() -> World {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut world = deposit_chain::world();
    world.settings.notify_interval_ms = 5;
    world.settings.console_origin = ORIGIN.to_owned();
    world
}

/// A user of the console; the id.
pub async fn user(gateway: &Gateway, world: &World, name: &str, role: &str) -> UserId {
    let request = admin::CreateUserRequest {
        name: name.into(),
        role: role.into(),
        vaults: Vec::new(),
        all_vaults: true,
    };
    call::<CreateUser>(gateway, &admin(), request)
        .await
        .unwrap();
    let all = Scan::prefix(KeySpace::UserName, name.as_bytes(), 1);
    let row = world.store.scan(&all).await.unwrap().remove(0).1.value;
    UserId::from_bytes(*row.last_chunk().unwrap())
}

async fn try_notify(
    gateway: &Gateway,
    name: &str,
    form: &str,
    url: &str,
) -> Result<admin::NotifyUserResponse, Fault> {
    let request = admin::NotifyUserRequest {
        name: name.into(),
        form: form.into(),
        url: url.into(),
    };
    call::<NotifyUser>(gateway, &admin(), request).await
}

/// A person who is told by webhook; the secret.
async fn told_user(
    gateway: &Gateway,
    world: &World,
    name: &str,
    role: &str,
    receiver: &Receiver,
) -> String {
    user(gateway, world, name, role).await;
    let set = try_notify(gateway, name, "webhook", &receiver.url).await;
    set.unwrap().webhook_secret.unwrap()
}

async fn told_at(gateway: &Gateway, name: &str) -> Option<admin::UserNotifications> {
    let request = admin::ListUsersRequest::default();
    let listed = call::<ListUsers>(gateway, &admin(), request).await.unwrap();
    let mut users = listed.users.into_iter();
    users.find(|user| user.name == name).unwrap().notifications
}

fn names(receiver: &Receiver) -> Vec<String> {
    let events = receiver.events().into_iter();
    let name = |event: Value| event["event"].as_str().unwrap_or_default().to_owned();
    events.map(name).collect()
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = tokio::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until nothing more is sent: by now it would have come.
async fn quiet(world: &World, gateway: &Gateway) {
    until("all was told", || {
        gateway.notification_counts().waiting == Some(0)
    })
    .await;
    let sent = || {
        let counts = gateway.notification_counts();
        (counts.delivered, counts.failed)
    };
    let mut before = None;
    while before != Some(sent()) {
        before = Some(sent());
        let pause = 20 * world.settings.notify_interval_ms;
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people__should_be_told_once_what_waits_for_them_and_what_became_of_it() {
    let world = world();
    let gateway = world.start().await;
    let [first, second, other] = [
        Receiver::start().await,
        Receiver::start().await,
        Receiver::start().await,
    ];
    let vault = manual_vault(&gateway).await;
    let from = evm_wallet(&gateway, vault).await;
    let secret = told_user(&gateway, &world, "treasurer", "approver", &first).await;
    told_user(&gateway, &world, "controller", "approver", &second).await;
    // No rule names this one.
    told_user(&gateway, &world, "clerk", "approver", &other).await;
    for receiver in [&first, &second, &other] {
        until("hello", || names(receiver) == ["notification.test.v1"]).await;
    }
    let uuid = create(&gateway, send(&from)).await.uuid;
    let waiting = ["notification.test.v1", "request.waiting.v1"];
    for receiver in [&first, &second] {
        until("it waits", || names(receiver) == waiting).await;
    }
    let event = first.events()[1].clone();
    let shown = waits(&gateway, &uuid).await;
    assert_eq!(
        (event["request_uuid"].as_str(), event["vault"].as_str()),
        (Some(uuid.as_str()), Some("manual"))
    );
    assert_eq!(event["vault_uuid"], vault.to_string());
    assert_eq!(
        event["expires_at"],
        shown.approval_expiry_timestamp.to_string()
    );
    assert_eq!(event["url"], format!("{ORIGIN}/requests/{uuid}"));
    let said = first.requests()[1].clone();
    let text = String::from_utf8(said.body.clone()).unwrap();
    assert!(!text.to_lowercase().contains("0x"), "no address: {text}");
    assert!(text.contains("waits for your approval until "), "{text}");

    // As published verifiers check it.
    let secret = BASE64_STANDARD.decode(secret.strip_prefix("whsec_").unwrap());
    let secret = WebhookSecret::new(secret.unwrap().try_into().unwrap());
    let seconds: u64 = said.header("webhook-timestamp").unwrap().parse().unwrap();
    let (id, keys) = (
        event["id"].as_str().unwrap(),
        WebhookKeys::new(&[7; 32], None),
    );
    let expected = headers(&keys, &secret, id, seconds * 1_000, &said.body).unwrap();
    let signature = expected
        .iter()
        .find(|(name, _)| *name == "webhook-signature");
    assert_eq!(
        said.header("webhook-signature"),
        signature.map(|(_, it)| it.as_str())
    );

    // One approval, a restart: nobody is told anything again.
    let [treasurer, controller, _] = persons();
    let hour = world.clock_ms() + HOUR;
    approve(&gateway, &uuid, treasurer.approval(&shown, FEE, hour))
        .await
        .unwrap();
    gateway.stop().await;
    let gateway = world.start().await;
    quiet(&world, &gateway).await;
    assert_eq!((first.requests().len(), second.requests().len()), (2, 2));

    approve(&gateway, &uuid, controller.approval(&shown, FEE, hour))
        .await
        .unwrap();
    assert_eq!(outcome(&gateway, &uuid).await.error, None);
    let signed = [&waiting[..], &["request.signed.v1"]].concat();
    for receiver in [&first, &second] {
        until("it was signed", || names(receiver) == signed).await;
    }
    // The other end.
    let uuid = create(&gateway, send(&from)).await.uuid;
    waits(&gateway, &uuid).await;
    until("the next one waits", || {
        names(&first).len() == 4 && names(&second).len() == 4
    })
    .await;
    reject(&gateway, &uuid, None).await.unwrap();
    let all = [&signed[..], &["request.waiting.v1", "request.failed.v1"]].concat();
    for receiver in [&first, &second] {
        until("it failed", || names(receiver) == all).await;
    }
    quiet(&world, &gateway).await;
    assert_eq!(names(&other), ["notification.test.v1"]);
    assert_eq!((first.requests().len(), second.requests().len()), (5, 5));
    assert_eq!(
        rows(&world, KeySpace::Notification).await,
        0,
        "nothing is left behind"
    );
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiver_that_is_away__should_get_it_later_and_cost_others_nothing() {
    let world = world();
    let gateway = world.start().await;
    let (away, here) = (Receiver::start().await, Receiver::start().await);
    away.answer(503);
    let vault = manual_vault(&gateway).await;
    let from = evm_wallet(&gateway, vault).await;
    told_user(&gateway, &world, "treasurer", "approver", &away).await;
    told_user(&gateway, &world, "controller", "approver", &here).await;
    let [one, two] = [
        create(&gateway, send(&from)).await.uuid,
        create(&gateway, send(&from)).await.uuid,
    ];
    until("the other one is told", || names(&here).len() == 3).await;
    until("it is tried again", || away.requests().len() >= 3).await;
    let problem = told_at(&gateway, "treasurer").await.unwrap();
    assert_eq!(
        (problem.form.as_str(), problem.host.as_str()),
        ("webhook", "127.0.0.1")
    );
    assert!(problem.problem.unwrap().contains("503"));
    assert_eq!(told_at(&gateway, "controller").await.unwrap().problem, None);
    // One has ended by the time that the receiver is back: its end is told, and not that it waits.
    reject(&gateway, &one, None).await.unwrap();
    until("the end is told", || names(&here).len() == 4).await;
    away.answer(200);
    until("it is told", || names(&away).len() == 3).await;
    quiet(&world, &gateway).await;
    let told: Vec<_> = away
        .events()
        .iter()
        .skip(1)
        .map(|it| {
            let of = |name: &str| it[name].as_str().unwrap().to_owned();
            (of("event"), of("request_uuid"))
        })
        .collect();
    let expected = [("request.waiting.v1", &two), ("request.failed.v1", &one)];
    let expected = expected.map(|(event, uuid)| (event.to_owned(), uuid.clone()));
    assert_eq!(
        told.into_iter().collect::<BTreeSet<_>>(),
        expected.into_iter().collect::<BTreeSet<_>>()
    );
    assert_eq!(told_at(&gateway, "treasurer").await.unwrap().problem, None);
    // A revoked user is told nothing.
    let request = admin::RevokeUserRequest {
        name: "treasurer".into(),
    };
    call::<RevokeUser>(&gateway, &admin(), request)
        .await
        .unwrap();
    let before = away.requests().len();
    create(&gateway, send(&from)).await;
    until("the other one is told", || names(&here).len() == 5).await;
    quiet(&world, &gateway).await;
    assert_eq!(away.requests().len(), before);
    assert_eq!(told_at(&gateway, "treasurer").await, None);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_twenty_in_an_hour__should_be_told_as_one() {
    let world = world();
    let gateway = world.start().await;
    let receiver = Receiver::start().await;
    let vault = manual_vault(&gateway).await;
    let from = evm_wallet(&gateway, vault).await;
    told_user(&gateway, &world, "treasurer", "approver", &receiver).await;
    let mut uuids = Vec::new();
    for _ in 0..24 {
        uuids.push(create(&gateway, send(&from)).await.uuid);
    }
    until("twenty messages", || receiver.requests().len() == 20).await;
    until("the rest waits", || {
        gateway.notification_counts().waiting == Some(5)
    })
    .await;
    // One of the rest ends in between.
    let told: BTreeSet<_> = receiver
        .events()
        .iter()
        .skip(1)
        .map(|it| it["request_uuid"].as_str().unwrap().to_owned())
        .collect();
    let rest: Vec<_> = uuids.iter().filter(|uuid| !told.contains(*uuid)).collect();
    assert_eq!(rest.len(), 5);
    reject(&gateway, rest[0], None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(receiver.requests().len(), 20, "it is quiet");
    world.pass(HOUR);
    until("the rest came", || receiver.requests().len() == 21).await;
    let digest = receiver.events()[20].clone();
    assert_eq!(digest["event"], "notification.digest.v1");
    let counts: BTreeSet<_> = digest["counts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| {
            let of = |name: &str| it[name].as_str().unwrap().to_owned();
            (of("event"), of("vault"), of("count"))
        })
        .collect();
    let of = |event: &str, count: &str| (event.to_owned(), "manual".to_owned(), count.to_owned());
    let expected = [of("request.waiting.v1", "4"), of("request.failed.v1", "1")];
    assert_eq!(counts, expected.into_iter().collect());
    quiet(&world, &gateway).await;
    // One at a time again.
    create(&gateway, send(&from)).await;
    until("the next one", || receiver.requests().len() == 22).await;
    assert_eq!(receiver.events()[21]["event"], "request.waiting.v1");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slack__should_get_text_and_details_only_where_they_are_wanted() {
    for details in [false, true] {
        let mut world = world();
        world.settings.notify_details = details;
        let gateway = world.start().await;
        let receiver = Receiver::start().await;
        let vault = manual_vault(&gateway).await;
        let from = evm_wallet(&gateway, vault).await;
        user(&gateway, &world, "treasurer", "approver").await;
        let set = try_notify(&gateway, "treasurer", "slack", &receiver.url)
            .await
            .unwrap();
        assert_eq!(set.webhook_secret, None);
        let uuid = create(&gateway, send(&from)).await.uuid;
        until("both came", || receiver.requests().len() == 2).await;
        let body = receiver.requests()[1].json();
        let text = body["text"].as_str().unwrap();
        let fields: BTreeSet<_> = body
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(
            fields,
            ["mrkdwn", "text", "unfurl_links", "unfurl_media"].into()
        );
        assert!(
            text.starts_with(&format!("manual: request {uuid} waits")),
            "{text}"
        );
        assert!(
            text.ends_with(&format!("\n{ORIGIN}/requests/{uuid}")),
            "{text}"
        );
        let payment = format!(
            "\n5 (smallest unit) of evm:{CHAIN} to 0x00000000000000000000000000000000000000"
        );
        assert_eq!(text.contains(&payment), details, "{text}");
        assert_eq!(text.to_lowercase().contains("0x"), details, "{text}");
        gateway.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mail__should_name_vault_and_number_and_details_only_where_they_are_wanted() {
    for details in [false, true] {
        let mut world = world();
        world.settings.notify_details = details;
        let double = MailDouble::start("127.0.0.1").await;
        let server = MailServer {
            url: format!("smtp://127.0.0.1:{}", double.port),
            account: None,
            from: "covault@example.com".into(),
        };
        world.webhooks.mailer = Some(Arc::new(Mailer::new(&server).unwrap()));
        let gateway = world.start().await;
        let vault = manual_vault(&gateway).await;
        let from = evm_wallet(&gateway, vault).await;
        user(&gateway, &world, "treasurer", "approver").await;
        for wrong in ["", "treasurer", "a@example.org,b@example.org"] {
            let fault = try_notify(&gateway, "treasurer", "mail", wrong).await;
            assert_eq!(fault.unwrap_err().path(), Some("url"), "{wrong}");
        }
        let set = try_notify(&gateway, "treasurer", "mail", "ana@example.org").await;
        let place = set.unwrap().user.unwrap().notifications.unwrap();
        assert_eq!(
            (place.form.as_str(), place.host.as_str()),
            ("mail", "ana@example.org")
        );
        let uuid = create(&gateway, send(&from)).await.uuid;
        let heard = double.until(2).await.remove(1);
        assert!(heard.contains(&"RCPT TO:<ana@example.org>".to_owned()));
        // Long lines are folded and end in "=".
        let text = heard.join("\n").replace("=\n", "").replace("\n ", " ");
        let subject = format!("Subject: manual: request {uuid} waits");
        assert!(text.contains(&subject), "{text}");
        assert!(
            text.contains(&format!("{ORIGIN}/requests/{uuid}")),
            "{text}"
        );
        let subject = text.lines().find(|it| it.starts_with("Subject: ")).unwrap();
        assert!(!subject.to_lowercase().contains("0x"), "{subject}");
        assert_eq!(text.to_lowercase().contains("0x"), details, "{text}");
        gateway.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator__should_be_told_of_a_node_that_stays_away() {
    let world = world();
    let gateway = world.start().await;
    let receiver = Receiver::start().await;
    assert!(admit(&gateway).await);
    told_user(&gateway, &world, "night-shift", "operator", &receiver).await;
    until("hello", || names(&receiver).len() == 1).await;
    let away = |is_away: bool| {
        let mut away = world.signers.away.lock().unwrap();
        match is_away {
            true => away.insert(node(2)),
            false => away.remove(&node(2)),
        };
    };
    // Once, then again once it was back: nobody is told before it has been away for a minute.
    for told in [2, 3] {
        away(true);
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(names(&receiver).len(), told - 1);
        until("it is told", || {
            world.pass(10_000);
            names(&receiver).len() == told
        })
        .await;
        let event = receiver.events()[told - 1].clone();
        assert_eq!(event["event"], "node.away.v1");
        assert_eq!(event["node_key"], node(2).openssh_line(""));
        quiet(&world, &gateway).await;
        away(false);
        let row = async || rows(&world, KeySpace::Notification).await;
        while row().await != 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    gateway.stop().await;
}

/// A store that writes nothing of what was told while it is asked not to.
struct ForgetfulStore {
    inner: Arc<dyn Store>,
    forgets: std::sync::atomic::AtomicBool,
    refused: std::sync::atomic::AtomicUsize,
}

#[async_trait]
impl StoreDouble for ForgetfulStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let mut writes = batch.writes().iter();
        let is_told = writes.any(|write| write.key.space == KeySpace::NotificationTarget);
        if is_told && self.forgets.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(CommitError::Unavailable("no power".into()));
        }
        self.inner.commit(batch).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message__should_not_be_sent_again_because_it_could_not_be_written_down() {
    let world = world();
    let store = Arc::new(ForgetfulStore {
        inner: Arc::clone(&world.store),
        forgets: false.into(),
        refused: 0.into(),
    });
    let gateway = world.start_on(Arc::clone(&store) as _).await;
    let receiver = Receiver::start().await;
    let vault = manual_vault(&gateway).await;
    let from = evm_wallet(&gateway, vault).await;
    told_user(&gateway, &world, "treasurer", "approver", &receiver).await;
    until("hello", || names(&receiver).len() == 1).await;
    quiet(&world, &gateway).await;
    store.forgets.store(true, Ordering::SeqCst);
    create(&gateway, send(&from)).await;
    until("it is told", || receiver.requests().len() == 2).await;
    until("it is tried to be written", || {
        store.refused.load(Ordering::SeqCst) >= 5
    })
    .await;
    assert_eq!(receiver.requests().len(), 2);
    // A process that was killed now tells it once more, under the same id, and no other one after it.
    gateway.stop().await;
    store.forgets.store(false, Ordering::SeqCst);
    let gateway = world.start_on(Arc::clone(&store) as _).await;
    until("it is told once more", || receiver.requests().len() == 3).await;
    quiet(&world, &gateway).await;
    let all = receiver.requests();
    let (one, two) = (&all[1], &all[2]);
    assert_eq!(one.header("webhook-id"), two.header("webhook-id"));
    gateway.stop().await;
    let gateway = world.start_on(store as _).await;
    quiet(&world, &gateway).await;
    assert_eq!(receiver.requests().len(), 3);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notify__should_refuse_what_cannot_be_told() {
    let world = world();
    let gateway = world.start().await;
    user(&gateway, &world, "treasurer", "approver").await;
    user(&gateway, &world, "reader", "viewer").await;
    user(&gateway, &world, "gone", "approver").await;
    let request = admin::RevokeUserRequest {
        name: "gone".into(),
    };
    call::<RevokeUser>(&gateway, &admin(), request)
        .await
        .unwrap();
    let good = "https://hooks.example.com/x";
    for (name, form, url, path, class) in [
        ("nobody", "webhook", good, Some("name"), Class::Invalid),
        ("reader", "webhook", good, Some("name"), Class::Invalid),
        ("gone", "webhook", good, None, Class::WrongState),
        ("treasurer", "fax", good, Some("form"), Class::Invalid),
        // No mail server is named here.
        (
            "treasurer",
            "mail",
            "ana@example.org",
            None,
            Class::Unavailable,
        ),
        ("treasurer", "webhook", "", Some("url"), Class::Invalid),
        (
            "treasurer",
            "slack",
            "http://10.0.0.1/",
            Some("url"),
            Class::Invalid,
        ),
        (
            "treasurer",
            "slack",
            "ftp://example.com/",
            Some("url"),
            Class::Invalid,
        ),
        (
            "treasurer",
            "webhook",
            "https://a:hunter2@example.com/",
            Some("url"),
            Class::Invalid,
        ),
        ("treasurer", "none", good, Some("url"), Class::Invalid),
    ] {
        let fault = try_notify(&gateway, name, form, url).await.unwrap_err();
        assert_eq!(
            (fault.class(), fault.path()),
            (&class, path),
            "{name} {form} {url}"
        );
        assert!(!format!("{fault:?}").contains("hunter2"));
    }
    assert_eq!(rows(&world, KeySpace::NotificationTarget).await, 0);
    let set = try_notify(&gateway, "treasurer", "slack", good)
        .await
        .unwrap();
    let place = set.user.unwrap().notifications.unwrap();
    assert_eq!(
        (place.form.as_str(), place.host.as_str()),
        ("slack", "hooks.example.com")
    );
    let off = try_notify(&gateway, "treasurer", "none", "").await.unwrap();
    assert_eq!(off.user.unwrap().notifications, None);
    gateway.stop().await;
}
