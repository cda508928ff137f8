//! Every page and state of the console, light and dark, wide and narrow, with axe.

use super::*;

/// More than signers let pass at once: they hold it.
pub const HELD_ABOVE: u128 = 5 * ETHER;

/// Routes that show no page of their own: files, streams, what scripts ask, and forms that lead to another page.
const WITHOUT_PAGE: [&str; 15] = [
    "GET /events",
    "GET /history.csv",
    "POST /approve",
    "POST /approve/begin",
    // A file that is refused then is shown as by `/batches/check`.
    "POST /batches",
    "POST /batches/*/*",
    "POST /enrol",
    "POST /enrol/begin",
    "POST /enrol/prove",
    "POST /reject",
    "POST /reject/begin",
    "POST /sign-in",
    "POST /sign-in/begin",
    "POST /sign-out",
    "POST /sign-out/elsewhere",
];

/// Fails where the router has a page that axe has not looked at.
pub fn assert_no_route_was_left_out(people: &mut Browsers) {
    people.assert_looked_at_all("src/console/mod.rs", &WITHOUT_PAGE);
}

/// Before there is anything to see.
pub fn empty(people: &mut Browsers) {
    for (path, name) in [
        ("/", "empty-inbox"),
        ("/history", "empty-history"),
        ("/vaults", "empty-vaults"),
        ("/batches", "empty-batches"),
    ] {
        people.look("treasurer", Some(path), name);
    }
}

/// What signers hold, what they want more for, and what is left out of those that were chosen.
pub async fn waiting(stage: &mut ConsoleStage<'_>, other_vault: &str) {
    let ConsoleStage {
        api, people, from, ..
    } = stage;
    // Two have approved it, and the signers hold it.
    let held = api
        .create(payment(from, HELD_ABOVE + ETHER / 10, "the new office"))
        .await;
    for who in ["treasurer", "controller"] {
        let done = people.ask("approve", who, json!({"uuids": [held], "fee": FEE}));
        assert_eq!(done["said"], "1 of 1 done", "{done}");
    }
    people.look("controller", None, "request-approved");
    let page = format!("/requests/{held}");
    eventually("the signers hold it", async || {
        let details = api.details(&held).await;
        let wanted = details["approvalWanted"].as_str().unwrap();
        (!wanted.is_empty() && details["remainingApprovalCount"] == 0).then_some(())
    })
    .await;
    let shown = people.ask("open", "treasurer", json!({"path": page}));
    let text = shown["text"].as_str().unwrap();
    assert!(
        text.contains("Held:") && text.contains("nothing more: enough have approved"),
        "{text}"
    );
    people.look("treasurer", Some(&page), "request-held");
    people.look("treasurer", Some("/?view=all"), "inbox-with-held");

    // Of another vault, whose rule one person meets, while the signers want two.
    let other = api.wallet(other_vault, "NETWORK_TYPE_EVM").await;
    let wanted = api.create(message(&other, "the small cash box")).await;
    let done = people.ask(
        "approve",
        "treasurer",
        json!({"uuids": [wanted], "fee": ""}),
    );
    assert_eq!(done["said"], "1 of 1 done", "{done}");
    eventually("the signers want one more", async || {
        let said = api.details(&wanted).await["approvalWanted"].to_string();
        said.contains("wants 2 of").then_some(())
    })
    .await;
    let page = format!("/requests/{wanted}");
    let shown = people.ask("open", "treasurer", json!({"path": page}));
    let text = shown["text"].as_str().unwrap();
    assert!(
        text.contains("wants 2 of treasurer, controller, director"),
        "{text}"
    );
    people.look("treasurer", Some(&page), "request-wanted");

    // Chosen together with what nobody can approve now.
    let waits = [
        api.create(payment(from, 11, "the first one")).await,
        api.create(payment(from, 12, "the second one")).await,
    ];
    let path = format!(
        "/requests?uuid={}&uuid={}&uuid={held}&uuid={wanted}",
        waits[0], waits[1]
    );
    let shown = people.ask("open", "controller", json!({"path": path}));
    assert!(
        shown["text"].as_str().unwrap().contains("Left out:"),
        "{shown}"
    );
    people.look("controller", Some(&path), "together-left-out");

    // The hold is there to reject it, by the keyboard alone.
    let ask = json!({"uuid": held, "reason": "not our office"});
    let rejected = people.ask("rejectByKeys", "treasurer", ask);
    assert_eq!(rejected["outcomes"][0], "rejected", "{rejected}");
    let details = api.details(&held).await;
    assert_eq!(
        details["failedReason"],
        "rejected by treasurer (rejectSigningRequest): not our office"
    );
    people.look("treasurer", None, "request-rejected");
}

/// A batch payment by the keyboard alone: its file, the check, and both approvals; and one whose request is rejected.
pub async fn batches_by_keys(stage: &mut ConsoleStage<'_>) {
    let ConsoleStage {
        anvil,
        api,
        people,
        vault,
        from: _,
    } = stage;
    let recipient = "0x00000000000000000000000000000000000ba7c2";
    let file = format!(
        "recipient,amount,notes\n{recipient},0.125,salary\n{TO},0.25,rent\n{TO},0.25,rent again\n"
    );
    for (name, is_paid) in [("paid", true), ("failed", false)] {
        let ask = json!({"vault": vault, "file": file, "duplicates": true});
        let made = people.ask("batchByKeys", "treasurer", ask);
        assert!(
            made["checked"]
                .as_str()
                .unwrap()
                .contains("0.625 coins of this chain"),
            "{made}"
        );
        let (path, request) = (
            made["path"].as_str().unwrap(),
            made["request"].as_str().unwrap(),
        );
        let uuid = path.rsplit('/').next().unwrap();
        if is_paid {
            for who in ["treasurer", "controller"] {
                let ask = json!({"uuid": request, "fee": ""});
                let done = people.ask("approveByKeys", who, ask);
                assert_eq!(done["said"], "1 of 1 done", "{done}");
            }
            let outcome = api.execute(request).await;
            assert_eq!(outcome["error"], Value::Null, "{outcome}");
        } else {
            let ask = json!({"uuid": request, "reason": "paid in cash"});
            let done = people.ask("rejectByKeys", "controller", ask);
            assert_eq!(done["outcomes"][0], "rejected", "{done}");
        }
        let ends = if is_paid {
            "STATUS_SUCCEEDED"
        } else {
            "STATUS_FAILED"
        };
        eventually("the batch ends", async || {
            anvil.call("anvil_mine", json!(["0x46"])).await;
            let found = api
                .ok("getBatchPaymentDetails", json!({"uuid": uuid}))
                .await;
            (found["batchPayment"]["status"] == ends).then_some(())
        })
        .await;
        people.look("treasurer", Some(path), &format!("batch-{name}"));
        if is_paid {
            assert_eq!(anvil.balance(recipient).await, ETHER / 8);
        }
    }
    let failed = format!("/batches?vault={vault}&state=failed");
    people.look("treasurer", Some(&failed), "batches-failed");
}

/// The rest of the pages.
pub fn all(people: &mut Browsers, vault: &str, pages: &[(&str, &str, &str)]) {
    for (who, path, name) in pages {
        people.look(who, Some(path), name);
    }
    for (who, path, name) in [
        ("treasurer", "/?view=all", "inbox-all"),
        ("treasurer", "/nowhere", "not-found"),
        ("treasurer", "/nodes", "forbidden"),
        (
            "treasurer",
            &format!("/history?vault={vault}&search=nothing-of-it"),
            "history-empty",
        ),
        (
            "treasurer",
            &format!("/history?vault={vault}&status=failed"),
            "history-failed",
        ),
        ("treasurer", "/vaults", "vaults"),
        ("treasurer", &format!("/batches?vault={vault}"), "batches"),
        ("treasurer", "/account", "account"),
        ("treasurer", "/enrol", "enrol"),
        ("operator", "/nodes", "nodes"),
        ("operator", "/tokens", "tokens"),
        ("operator", "/users", "users"),
        ("operator", "/settings", "settings"),
        ("auditor", "/audit", "audit"),
        ("auditor", "/audit/verify?chain=service", "verify"),
        (
            "auditor",
            &format!(
                "/audit/verify?chain=service&from=2&hash={}",
                "ab".repeat(32)
            ),
            "verify-other-log",
        ),
        ("stranger", "/sign-in", "sign-in"),
    ] {
        people.look(who, Some(path), name);
    }
}
