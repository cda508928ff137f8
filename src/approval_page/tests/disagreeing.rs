//! Orchestrators of which one is quicker, says something else, or does not answer.

use super::{
    several::{ETH, SECOND, done},
    *,
};

fn by(number: u8) -> NodeId {
    NodeId([number; 32])
}

/// The payment, as one tells of it that says it has all approvals that it takes.
fn with_approval(mut request: wire::SigningRequest) -> wire::SigningRequest {
    request.approvals.push(wire::GivenApproval {
        person: "treasurer".into(),
        timestamp: NOW_MS,
        most_fee: "1000000000000000".into(),
        valid_until_timestamp: NOW_MS + 20 * 3_600_000,
    });
    request
}

#[tokio::test]
async fn button__should_stay_whatever_the_quickest_says_of_what_is_signed() {
    let world = World::new();
    let true_one = payment(UUID, VAULT, ETH);
    let held = wire::SigningRequest {
        remaining_approval_count: 0,
        approval_wanted: "held until next year".into(),
        ..true_one.clone()
    };
    let session = world.sign_in(&treasurer()).await;
    let path = format!("/requests/{UUID}");
    for lie in [with_approval(true_one.clone()), held] {
        for told in [
            [(7, lie.clone()), (8, true_one.clone())],
            [(8, true_one.clone()), (7, lie.clone())],
        ] {
            world.tell(&told);
            let page = world.get(&path, &session.0).await.text;
            assert!(page.contains("data-approve"), "{page}");
            assert!(!page.contains("different things"), "{page}");
            // It goes to both: they tell the same of what is signed.
            let (_, said) = world
                .gesture(&session, (&path, "/approve"), &treasurer())
                .await;
            assert_eq!(said.status, 200, "{}", said.text);
            let mut to: Vec<_> = world
                .told
                .stored
                .lock()
                .drain(..)
                .map(|(to, _)| to)
                .collect();
            to.sort_unstable();
            assert_eq!(to, [by(7), by(8)]);
        }
        // Where all say so there is nothing to approve.
        world.tell(&[(7, lie.clone()), (8, lie)]);
        let page = world.get(&path, &session.0).await.text;
        assert!(!page.contains("data-approve"), "{page}");
    }
}

#[tokio::test]
async fn gestures__should_reach_those_who_have_not_said_in_time_what_waits() {
    let world = World::new();
    world.tell(&[(7, payment(UUID, VAULT, ETH))]);
    *world.told.silent.lock() = vec![by(8)];
    let session = world.sign_in(&treasurer()).await;
    let path = format!("/requests/{UUID}");
    for (what, text) in [
        (
            "/approve",
            "approved; the service says that enough have approved it by the vault's rule",
        ),
        ("/reject", "rejected, as the service says"),
    ] {
        let (_, said) = world.gesture(&session, (&path, what), &treasurer()).await;
        assert_eq!(done(&said), [(true, text.to_owned())]);
        let mut to: Vec<_> = world
            .told
            .stored
            .lock()
            .drain(..)
            .map(|(to, _)| to)
            .collect();
        to.sort_unstable();
        assert_eq!(to, [by(7), by(8)], "{what}");
    }
    // Nobody is told that something has ended of which someone may still tell.
    let said = world.get(&path, &session.0).await;
    assert_eq!(said.status, 404);
    assert!(
        said.text.contains("not every orchestrator has told all"),
        "{}",
        said.text
    );
    world.told.silent.lock().clear();
    let said = world.get(&path, &session.0).await;
    assert!(
        said.status == 404 && said.text.contains("it may have ended"),
        "{}",
        said.text
    );
}

#[tokio::test]
async fn outcome__should_be_that_of_each_orchestrator() {
    let world = World::new();
    let told = [7, 8].map(|by| (by, payment(UUID, VAULT, ETH)));
    world.tell(&told);
    let session = world.sign_in(&treasurer()).await;
    let path = format!("/requests/{UUID}");
    let refused = NodeAnswer::Refused {
        problem: "the approval is not valid".into(),
    };
    let approve = async || {
        let (_, said) = world
            .gesture(&session, (&path, "/approve"), &treasurer())
            .await;
        done(&said)
    };
    for honest in [7, 8] {
        *world.told.answers.lock() = vec![(by(honest), refused.clone())];
        let results = approve().await;
        let (is_done, text) = &results[0];
        assert!(*is_done && text.starts_with("approved;"), "{results:?}");
        assert!(
            text.ends_with(
                "Another orchestrator has not taken it, it says: the approval is not valid"
            ),
            "{text}"
        );
    }
    // An answer that is none is as good as none.
    let nonsense = NodeAnswer::Done {
        outcomes: Vec::new(),
    };
    *world.told.answers.lock() = vec![(by(8), nonsense)];
    let results = approve().await;
    assert!(
        results[0].0
            && results[0]
                .1
                .ends_with("Another orchestrator does not say what became of it"),
        "{results:?}"
    );

    // One says that it has rejected it, and the other goes on with it.
    *world.told.answers.lock() = vec![(by(8), refused)];
    let reject = async || {
        world.tell(&told);
        let (_, said) = world
            .gesture(&session, (&path, "/reject"), &treasurer())
            .await;
        (said.status, done(&said))
    };
    let (status, results) = reject().await;
    assert!(status == 409 && !results[0].0, "{results:?}");
    assert!(
        results[0]
            .1
            .contains("an orchestrator still tells that it waits"),
        "{results:?}"
    );
    // It stands when none tells of it any longer.
    world.told.answers.lock().clear();
    assert_eq!(
        reject().await,
        (
            200,
            vec![(true, "rejected, as the service says".to_owned())]
        )
    );
}

#[tokio::test]
async fn sums__should_say_what_is_not_in_them() {
    let world = World::new();
    let call = wire::create_signing_request_request::Type::EvmSendCustom(wire::EvmSendCustom {
        chain_id: 1,
        from: FROM.into(),
        to: TO.into(),
        value: "1".into(),
        input: vec![1, 2, 3, 4],
        ..Default::default()
    });
    let mut custom = payment(SECOND, VAULT, ETH);
    custom.approval_subject.as_mut().unwrap().payload = Payload::parse(&call).unwrap().encode();
    let session = world.sign_in(&treasurer()).await;
    let path = format!("/requests?uuid={UUID}&uuid={SECOND}");
    let may_move = "One of these requests may move more than that";
    for (second, is_said) in [(payment(SECOND, VAULT, ETH), false), (custom, true)] {
        world.tell(&[(7, payment(UUID, VAULT, ETH)), (7, second)]);
        let page = world.get(&path, &session.0).await.text;
        assert!(page.contains("Together"), "{page}");
        assert_eq!(page.contains(may_move), is_said, "{page}");
    }
}

/// Who tells a request of another vault under the id of one takes no button away.
#[tokio::test]
async fn rejection__should_be_possible_of_each_vault_that_an_id_is_told_of() {
    let world = World::new();
    world.policy.replace(holding_policy());
    let told = [
        (7, payment(UUID, VAULT, ETH)),
        (8, payment(UUID, OTHER, "9")),
    ];
    let session = world.sign_in(&treasurer()).await;
    let path = format!("/requests/{UUID}");
    for vault in [VAULT, OTHER] {
        world.tell(&told);
        let page = world.get(&path, &session.0).await.text;
        assert!(page.contains(&format!("data-reject=\"{vault}\"")), "{page}");
        assert!(!page.contains("data-approve"), "{page}");
        // What the script sends for this button.
        let of_vault = page.split("data-request=\"").skip(1);
        let mut of_vault = of_vault.filter(|it| it.contains(&format!("data-vault=\"{vault}\"")));
        let shown = between(of_vault.next().unwrap(), "data-shown=\"");
        let items = json!([{"uuid": UUID, "shown": shown, "fee": ""}]);
        let form = json!({"form_token": session.1, "items": items, "reason": ""});
        let begun = world.post("/reject/begin", &session.0, &form).await;
        assert_eq!(begun.status, 200, "{}", begun.text);
        let begun = begun.json();
        assert_eq!(begun["form"]["vault"], vault);
        let mut form = begun["form"].clone();
        form["form_token"] = json!(session.1);
        form["credential"] = answer(&treasurer(), &begun);
        world.post("/reject", &session.0, &form).await;
        let store = VetoStore::of(world.folder.path());
        let veto = store.of_request(vault.parse().unwrap(), UUID.parse().unwrap());
        assert_eq!(veto.unwrap(), Some(covault_mpc::veto::Veto::Person));
    }
}

#[tokio::test]
async fn rejection__should_be_obeyed_and_not_look_kept_where_the_node_cannot_write_it_down() {
    let world = World::new();
    world.policy.replace(holding_policy());
    world.tell(&[(7, payment(UUID, VAULT, ETH))]);
    // Not a folder.
    std::fs::write(world.folder.path().join("rejected"), b"").unwrap();
    let session = world.sign_in(&treasurer()).await;
    let path = format!("/requests/{UUID}");
    let (_, said) = world
        .gesture(&session, (&path, "/reject"), &treasurer())
        .await;
    let results = done(&said);
    assert!(
        results[0].0 && results[0].1.contains("could not write that down yet"),
        "{results:?}"
    );
    let vetoes = world.told.vetoes.get().unwrap();
    let veto = vetoes.of_request(VAULT.parse().unwrap(), UUID.parse().unwrap());
    assert_eq!(veto.unwrap(), Some(covault_mpc::veto::Veto::Person));
}
