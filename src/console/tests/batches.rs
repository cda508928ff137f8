//! Batch payments: from a file to signing requests that wait for people.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use covault_actors::{
    chain_rpc::{
        BroadcastOutcome, BroadcastRequest, ChainClient, ChainError, ChainKey, FeeEstimate,
        TokenFacts, TrackedTransaction, TransactionSighting,
    },
    operations::{
        ChangeApprovals, CreateBatchPayment, GetBatchPayment, ListBatchPayments, RejectBatchPayment,
    },
};
use covault_core::networks::{ChainData, Queries};

use super::*;

pub(super) const CHAIN: u64 = 31_337;
pub(super) const CONTRACT: &str = "0xD152f549545093347A162Dce210e7293f1452150";
pub(super) const TOKEN: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
pub(super) const MINT: &str = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v";
/// A token of which nobody is asked.
pub(super) const UNASKED: &str = "0x0000000000000000000000000000000000005678";
const ETHER: &str = "1000000000000000000";

/// A chain with a token of six decimals, and a wallet with one ether and two tokens.
#[derive(Default)]
pub(super) struct Chain {
    /// Questions that it was asked.
    pub asked: AtomicUsize,
}

#[async_trait]
impl ChainClient for Chain {
    async fn chain_data(&self, _: &Queries, _: u64) -> Result<ChainData, ChainError> {
        Err(ChainError::Unknown("not now".into()))
    }

    async fn broadcast(&self, _: &BroadcastRequest) -> BroadcastOutcome {
        BroadcastOutcome::Unknown("not now".into())
    }

    async fn sightings(
        &self,
        transactions: &[TrackedTransaction],
        _: u64,
    ) -> Vec<Result<TransactionSighting, ChainError>> {
        let unknown = |_| Err(ChainError::Unknown("not now".into()));
        transactions.iter().map(unknown).collect()
    }

    async fn balance(&self, _: &str, token: Option<&str>) -> Result<String, ChainError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Ok(token.map_or(ETHER, |_| "2000000").to_owned())
    }

    async fn allowance(&self, _: &str, _: &str, _: &str) -> Result<String, ChainError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Ok("0".to_owned())
    }

    async fn fee_estimates(&self) -> Result<[FeeEstimate; 3], ChainError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let one = || FeeEstimate {
            price: 1_000_000_000,
            most_price: 1_000_000_000,
            priority_price: Some(1),
            transfer_fee: 21_000_000_000_000,
        };
        Ok([one(), one(), one()])
    }

    async fn token_facts(&self, token: &str) -> Result<Option<TokenFacts>, ChainError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match token {
            TOKEN => Ok(Some(TokenFacts {
                decimals: 6,
                symbol: "US\u{202e}DC".into(),
            })),
            MINT => Ok(Some(TokenFacts {
                decimals: 6,
                symbol: String::new(),
            })),
            UNASKED => Ok(None),
            _ => Err(ChainError::Unknown("it says nothing".into())),
        }
    }
}

/// A console with a chain, somebody who approves, and a wallet of the vault, whose rule is this.
pub(super) async fn world(mode: &str) -> (World, PersonWithPasskey, String, String) {
    let chain = ChainKey::evm(CHAIN);
    let chains = ChainClients::default().with(chain, Arc::new(Chain::default()));
    let chains = chains.with_batch_contract(chain, CONTRACT.into());
    let world = World::with(0, chains).await;
    let person = world.person("treasurer", "approver", &[]).await;
    let people = [("treasurer", person.line.as_str())];
    let vault = match mode {
        "manual" => world.vault("treasury", 1, &people).await,
        _ => {
            let vault = world.vault("treasury", 1, &people).await;
            let automatic = world.automatic_vault("fast").await;
            assert_ne!(vault, automatic);
            automatic
        }
    };
    let from = world.wallet(&vault, "cash").await;
    (world, person, vault, from)
}

/// A form as a browser sends it.
pub(super) fn form(fields: &[(&str, &str)], file: Option<&[u8]>) -> (String, String) {
    let mut body = String::new();
    for (name, value) in fields {
        body +=
            &format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    }
    if let Some(file) = file {
        let file = String::from_utf8(file.to_vec()).unwrap();
        body += &format!(
            "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.csv\"\r\nContent-Type: text/csv\r\n\r\n{file}\r\n"
        );
    }
    (
        "multipart/form-data; boundary=x".to_owned(),
        body + "--x--\r\n",
    )
}

impl World {
    /// What a browser posts without a script.
    pub(super) async fn send_form(
        &self,
        path: &str,
        cookie: &str,
        (kind, body): (String, String),
    ) -> Said {
        let cookie = format!("{}={cookie}", sessions::COOKIE);
        let headers = [
            ("cookie", cookie.as_str()),
            ("origin", ORIGIN),
            ("sec-fetch-site", "same-origin"),
            ("content-type", kind.as_str()),
        ];
        self.send("POST", path, &headers, body).await
    }

    pub(super) async fn act(&self, person: &PersonWithPasskey, path: &str, more: &str) -> Said {
        let body = format!("form_token={}{more}", person.form_token);
        let kind = "application/x-www-form-urlencoded".to_owned();
        self.send_form(path, &person.cookie, (kind, body)).await
    }

    /// A vault whose requests nobody approves.
    async fn automatic_vault(&self, name: &str) -> String {
        let request = admin::CreateVaultRequest {
            name: name.into(),
            threshold: 2,
            signers: (1..=3).map(|seed| signer(seed).openssh_line("")).collect(),
            approvals: Some(admin::ApprovalRule {
                mode: "automatic".into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        loop {
            let vault = self.call::<CreateVault>(&request).await.vault.unwrap();
            if vault.ready {
                return vault.uuid;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn batches_of(&self, vault: &str) -> usize {
        let request = admin::ListBatchPaymentsRequest {
            vault_uuid: vault.into(),
            next: None,
        };
        self.call::<ListBatchPayments>(&request)
            .await
            .batch_payments
            .len()
    }

    /// Of an API client.
    pub(super) async fn batch(&self, from: &str, amounts: &[&str], token: Option<&str>) -> String {
        let recipients = (0_u64..)
            .zip(amounts)
            .map(|(row, amount)| wire::BatchPaymentRecipient {
                address: format!("0x{:040x}", 0xa000 + row),
                amount: (*amount).into(),
                notes: Some("=<script>alert(1)</script>".into()),
            });
        let (recipients, from) = (recipients.collect(), from.to_owned());
        let kind = match token {
            None => wire::create_batch_payment_request::Type::EvmBatchSendNative(
                wire::EvmBatchSendNative {
                    chain_id: CHAIN,
                    from,
                    recipients,
                },
            ),
            Some(token) => wire::create_batch_payment_request::Type::EvmBatchSendErc20(
                wire::EvmBatchSendErc20 {
                    chain_id: CHAIN,
                    from,
                    token_contract_address: token.into(),
                    recipients,
                },
            ),
        };
        let request = wire::CreateBatchPaymentRequest {
            name: "salaries".into(),
            notes: None,
            r#type: Some(kind),
        };
        let made = self.call::<CreateBatchPayment>(&request).await;
        made.batch_payment.unwrap().uuid
    }
}

#[tokio::test]
async fn file__should_become_a_batch_whose_requests_wait_for_people() {
    let (world, person, vault, from) = world("manual").await;
    let page = world.get("/batches/new", &person.cookie).await;
    assert_eq!(page.status, 200, "{}", page.text);
    assert!(
        page.text.contains(&from) && page.text.contains("31337"),
        "{}",
        page.text
    );
    let fields = |text: &'static str| {
        let known = [
            ("form_token", person.form_token.as_str()),
            ("from", from.as_str()),
            ("chain", "31337"),
            ("token", ""),
            ("unit", "whole"),
            ("name", "May"),
            ("text", text),
            ("key", "0190aaaa-0000-7000-8000-000000000001"),
        ];
        known.to_vec()
    };
    // All that is wrong is named, and the rows are there to be mended.
    let bad = "recipient,amount,notes\n0x00000000000000000000000000000000c0ffee19,0.25,rent\n0x12,1,\n               0x00000000000000000000000000000000c0ffee19,\"1,5\",=1+1\n";
    let said = world
        .send_form("/batches/check", &person.cookie, form(&fields(bad), None))
        .await;
    assert_eq!(said.status, 422, "{}", said.text);
    for part in [
        "2 mistakes",
        "Row 3, recipient: ",
        "Row 4, amount: <bdi>has a comma",
        "paid in row 2 already",
        "(text, no formula)",
        "0.25 coins of this chain",
        "250000000000000000",
        "0x12,1,",
    ] {
        assert!(said.text.contains(part), "{part}: {}", said.text);
    }
    assert!(
        !said.text.contains("Make the batch payment"),
        "{}",
        said.text
    );
    // Nor is anything made of it by who goes on all the same.
    let said = world
        .send_form("/batches", &person.cookie, form(&fields(bad), None))
        .await;
    assert_eq!((said.status, world.batches_of(&vault).await), (422, 0));
    // The mended file: it counts before the text of the page.
    let good = "\u{feff}recipient;amount;notes\r\n0x00000000000000000000000000000000c0ffee19;0.25;rent\r\n                0x00000000000000000000000000000000c0ffee19;0.25;again";
    let said = world
        .send_form(
            "/batches/check",
            &person.cookie,
            form(&fields(bad), Some(good.as_bytes())),
        )
        .await;
    assert_eq!(said.status, 200, "{}", said.text);
    assert!(
        said.text
            .contains("<strong>0.5 coins of this chain</strong> to 2 recipients"),
        "{}",
        said.text
    );
    assert_eq!(world.batches_of(&vault).await, 0);
    // The page has the one form that makes what it shows, and says who pays where.
    assert_eq!(said.text.matches("<form").count(), 2, "{}", said.text);
    for part in [
        "name=\"total\" value=\"500000000000000000\"",
        "name=\"read_with\" value=\"18\"",
        "<dt>Vault</dt><dd><bdi>treasury</bdi>",
        "<dt>Chain</dt><dd>evm:31337</dd>",
    ] {
        assert!(said.text.contains(part), "{part}: {}", said.text);
    }
    let summary = said.text.split("<table>").next().unwrap();
    assert!(summary.contains(&from), "{summary}");
    // Who is paid twice must be meant to be.
    let mut shown = fields(bad);
    shown.extend([("total", "500000000000000000"), ("read_with", "18")]);
    let said = world
        .send_form(
            "/batches",
            &person.cookie,
            form(&shown, Some(good.as_bytes())),
        )
        .await;
    assert_eq!(
        (said.status, world.batches_of(&vault).await),
        (422, 0),
        "{}",
        said.text
    );
    let mut meant = shown;
    meant.push(("duplicates", "yes"));
    let mut made = Vec::new();
    for _ in 0..2 {
        let form = form(&meant, Some(good.as_bytes()));
        let said = world.send_form("/batches", &person.cookie, form).await;
        assert_eq!(said.status, 303, "{}", said.text);
        made.push(said.headers["location"].to_str().unwrap().to_owned());
    }
    // The form makes one batch however often it is sent.
    assert_eq!((&made[0], world.batches_of(&vault).await), (&made[1], 1));

    let page = world.get(&made[0], &person.cookie).await;
    assert_eq!(page.status, 200, "{}", page.text);
    for part in [
        "waits for approval",
        "by <bdi>treasurer</bdi>",
        "One row pays a recipient",
        "paid above already",
        "<dt>Balance in coins</dt><dd>1 coins of this chain",
        "<dt>Fee, about</dt><dd>0.00014 coins of this chain at most",
        CONTRACT,
        "Approve the batch",
    ] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    let approve = format!("{}/approve", made[0]);
    // Another total than the page has shown.
    let said = world.act(&person, &approve, "&total=1").await;
    assert_eq!(said.status, 409, "{}", said.text);
    let said = world
        .act(&person, &approve, "&total=500000000000000000")
        .await;
    assert_eq!(said.status, 303, "{}", said.text);
    assert_eq!(said.headers["location"], made[0].as_str());
    let again = world
        .act(&person, &approve, "&total=500000000000000000")
        .await;
    assert_eq!(again.status, 409, "{}", again.text);
    let page = world.get(&made[0], &person.cookie).await;
    assert!(
        page.text.contains("on its way") && page.text.contains("waits for approval"),
        "{}",
        page.text
    );
    // Its request says which batch it is of, and that the contract is the right one.
    let request = page.text.split_once("href=\"/requests/").unwrap().1;
    let request = request.split('"').next().unwrap();
    let shown = world
        .get(&format!("/requests/{request}"), &person.cookie)
        .await;
    for part in [
        format!("href=\"{}\"", made[0]),
        "which this service is configured with as batch contract".to_owned(),
        "Notes of this service".to_owned(),
        "0.25 coins of this chain".to_owned(),
    ] {
        assert!(shown.text.contains(&part), "{part}: {}", shown.text);
    }
    assert!(
        !shown.text.contains("it may do more than what is listed"),
        "{}",
        shown.text
    );
    let list = world.get("/batches?state=on+its+way", &person.cookie).await;
    assert!(
        list.text.contains(&made[0]) && list.text.contains("Found 1 among 1"),
        "{}",
        list.text
    );
    let list = world.get("/batches?state=paid", &person.cookie).await;
    assert!(!list.text.contains(&made[0]), "{}", list.text);
}

#[tokio::test]
async fn client__should_not_pass_its_own_call_off_as_a_batch_payment() {
    let (world, person, _, from) = world("manual").await;
    let uuid = world.batch(&from, &["5", "7"], None).await;
    // The batch's rows, in a call of somebody else's contract, or of the batch contract.
    for (to, expected) in [
        (TOKEN, "which is NOT the batch contract"),
        (CONTRACT, "made it for no batch payment"),
    ] {
        let mut data = hex::decode("e63d38ed").unwrap();
        let word = |number: u64| U256::from(number).to_be_bytes::<32>();
        for number in [64, 160, 2, 0xa000, 0xa001, 2, 5, 7] {
            data.extend(word(number));
        }
        let kind = wire::create_signing_request_request::Type::EvmSendCustom(wire::EvmSendCustom {
            chain_id: CHAIN,
            from: from.clone(),
            to: to.into(),
            value: "12".into(),
            input: data,
            ..Default::default()
        });
        let request = wire::CreateSigningRequestRequest {
            notes: Some(format!("batch payment {uuid}: pays")),
            r#type: Some(kind),
            ..Default::default()
        };
        let made = world
            .call::<CreateSigningRequest>(&request)
            .await
            .signing_request
            .unwrap();
        assert_eq!(made.batch_payment_uuid, "");
        let shown = world
            .get(&format!("/requests/{}", made.uuid), &person.cookie)
            .await;
        assert!(shown.text.contains(expected), "{expected}: {}", shown.text);
        assert!(
            shown.text.contains("Notes of the requester"),
            "{}",
            shown.text
        );
        assert!(!shown.text.contains("href=\"/batches/"), "{}", shown.text);
    }
}

#[tokio::test]
async fn batch__should_be_started_by_no_session_alone() {
    let (world, person, vault, from) = world("automatic").await;
    let uuid = world.batch(&from, &["5", "7"], None).await;
    let path = format!("/batches/{uuid}");
    let page = world.get(&path, &person.cookie).await;
    assert!(page.text.contains("covault batch approve"), "{}", page.text);
    assert!(!page.text.contains("Approve the batch"), "{}", page.text);
    // Texts of others are shown as texts.
    assert!(page.text.contains("=&#60;script&#62;"), "{}", page.text);
    let said = world
        .act(&person, &format!("{path}/approve"), "&total=12")
        .await;
    assert_eq!(said.status, 403, "{}", said.text);
    // Who may only look sees it, and can do nothing.
    for role in ["viewer", "operator"] {
        let other = world.person(role, role, &[]).await;
        let page = world.get(&path, &other.cookie).await;
        assert_eq!(page.status, 200, "{}", page.text);
        assert!(!page.text.contains("Reject it"), "{}", page.text);
        for action in ["approve", "resume", "reject"] {
            let said = world
                .act(&other, &format!("{path}/{action}"), "&total=12")
                .await;
            assert_eq!(said.status, 403, "{role} {action}: {}", said.text);
        }
        assert_eq!(world.get("/batches/new", &other.cookie).await.status, 403);
    }
    let elsewhere = world
        .vault("elsewhere", 1, &[("treasurer", &person.line)])
        .await;
    let stranger = world.person("stranger", "approver", &[&elsewhere]).await;
    assert_eq!(world.get(&path, &stranger.cookie).await.status, 400);
    let list = format!("/batches?vault={vault}");
    assert_eq!(world.get(&list, &stranger.cookie).await.status, 404);
    for (action, more) in [("approve", "&total=12"), ("reject", "")] {
        let said = world
            .act(&stranger, &format!("{path}/{action}"), more)
            .await;
        assert_eq!(said.status, 400, "{}", said.text);
    }
    // Another session's form, another site, no kind.
    let said = world
        .send_form(
            &format!("{path}/reject"),
            &person.cookie,
            (
                "application/x-www-form-urlencoded".into(),
                "form_token=x".into(),
            ),
        )
        .await;
    assert_eq!(said.status, 403, "{}", said.text);
    let (_, body) = form(&[("form_token", &person.form_token)], None);
    let said = world
        .send_form("/batches", &person.cookie, ("text/plain".into(), body))
        .await;
    assert_eq!(said.status, 415, "{}", said.text);
    // It is not the person's, and the rule names nobody.
    assert!(!page.text.contains("Reject it"), "{}", page.text);
    let said = world
        .act(&person, &format!("{path}/reject"), "&reason=wrong+month")
        .await;
    assert_eq!(said.status, 403, "{}", said.text);
    let request = admin::RejectBatchPaymentRequest {
        uuid: uuid.clone(),
        reason: "wrong month".into(),
    };
    world.call::<RejectBatchPayment>(&request).await;
    let page = world.get(&path, &person.cookie).await;
    assert!(page.text.contains("rejected: wrong month"), "{}", page.text);

    // Where people approve the requests of its wallet alone, they start it.
    let rule = admin::ApprovalRule {
        mode: "automatic".into(),
        of: vec![admin::Approver {
            name: "treasurer".into(),
            keys: vec![person.line.clone()],
        }],
        wallets: vec![admin::WalletApprovals {
            address: from.clone(),
            needs: 1,
        }],
        ..Default::default()
    };
    let request = admin::ChangeApprovalsRequest {
        vault_uuid: vault.clone(),
        approvals: Some(rule),
        ..Default::default()
    };
    world.call::<ChangeApprovals>(&request).await;
    let uuid = world.batch(&from, &["5", "7"], None).await;
    let path = format!("/batches/{uuid}");
    let page = world.get(&path, &person.cookie).await;
    assert!(page.text.contains("Approve the batch"), "{}", page.text);
    let other = world.wallet(&vault, "other").await;
    let uuid = world.batch(&other, &["5"], None).await;
    let page = world.get(&format!("/batches/{uuid}"), &person.cookie).await;
    assert!(!page.text.contains("Approve the batch"), "{}", page.text);
}

#[tokio::test]
async fn token_amounts__should_be_shown_beside_the_smallest_unit_and_what_is_missing_said() {
    let (world, person, _, from) = world("manual").await;
    let fields =
        |token: &'static str, unit: &'static str, decimals: &'static str, text: &'static str| {
            form(
                &[
                    ("form_token", person.form_token.as_str()),
                    ("from", from.as_str()),
                    ("chain", "31337"),
                    ("token", token),
                    ("unit", unit),
                    ("decimals", decimals),
                    ("text", text),
                ],
                None,
            )
        };
    let rows = "recipient,amount\n0x00000000000000000000000000000000c0ffee19,2.5\n";
    let check = async |form| {
        world
            .send_form("/batches/check", &person.cookie, form)
            .await
    };
    let said = check(fields(TOKEN, "whole", "6", rows)).await;
    assert_eq!(said.status, 200, "{}", said.text);
    for part in [
        "2500000",
        "2.5 \u{201c}US\\u{202e}DC\u{201d}",
        "<th>By the token",
        "6 decimals, as you say",
    ] {
        assert!(said.text.contains(part), "{part}: {}", said.text);
    }
    // A contract decides about no amount: the person says the decimals, and another number is refused.
    for (decimals, expected) in [
        ("", "say how many decimals the token has"),
        ("18", "find out which is right"),
        ("78", "say how many decimals the token has"),
    ] {
        let said = check(fields(TOKEN, "whole", decimals, rows)).await;
        assert_eq!(said.status, 422, "{}", said.text);
        assert!(said.text.contains(expected), "{expected}: {}", said.text);
        assert!(
            said.text.contains("its contract says 6") || decimals == "18",
            "{}",
            said.text
        );
        assert!(said.text.contains("c0ffee19,2.5"), "{}", said.text);
    }
    let said = check(fields(CONTRACT, "whole", "6", rows)).await;
    assert_eq!(said.status, 200, "{}", said.text);
    assert!(
        said.text.contains("its contract does not say"),
        "{}",
        said.text
    );
    let units = "recipient,amount\n0x00000000000000000000000000000000c0ffee19,2500000\n";
    let said = check(fields(CONTRACT, "smallest", "", units)).await;
    assert_eq!(said.status, 200, "{}", said.text);
    let uuid = world.batch(&from, &["2500000", "1"], Some(TOKEN)).await;
    let page = world.get(&format!("/batches/{uuid}"), &person.cookie).await;
    for part in [
        "2500001 of <bdi class=\"address\">evm:31337/",
        "2.500001 \u{201c}US\\u{202e}DC\u{201d}",
        "<th>By the token",
        "The wallet lacks 500001 of the token, in the smallest unit.",
    ] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    let found = admin::GetBatchPaymentRequest { uuid };
    let found = world
        .call::<GetBatchPayment>(&found)
        .await
        .batch_payment
        .unwrap();
    assert_eq!(
        (found.total.as_str(), found.batch_contract.as_str()),
        ("2500001", CONTRACT)
    );
}

#[tokio::test]
async fn upload__should_be_bounded_and_254_rows_soon_checked() {
    let (world, person, _, from) = world("manual").await;
    let form_of = |file: String| {
        let known = [
            ("form_token", person.form_token.as_str()),
            ("from", from.as_str()),
            ("chain", "31337"),
            ("unit", "smallest"),
        ];
        form(&known, Some(file.as_bytes()))
    };
    let notes = "n".repeat(500);
    let rows = (0..254).map(|row| format!("0x{:040x},7,{notes}\n", 0xa000 + row));
    let file = format!("recipient,amount,notes\n{}", rows.collect::<String>());
    let said = world
        .send_form("/batches/check", &person.cookie, form_of(file))
        .await;
    assert_eq!(said.status, 200, "{}", said.text);
    assert!(
        said.text.contains(
            "<strong>0.000000000000001778 coins of this chain</strong> to 254 recipients"
        )
    );
    let file = format!("recipient,amount\n{}", "x".repeat(256 << 10));
    let said = world
        .send_form("/batches/check", &person.cookie, form_of(file))
        .await;
    assert_eq!(said.status, 422, "{}", said.status);
    assert!(said.text.contains("is larger than 256 KiB"));
    let file = "x".repeat(700 << 10);
    let said = world
        .send_form("/batches/check", &person.cookie, form_of(file))
        .await;
    assert_eq!(said.status, 413, "{}", said.text);
    // What a browser sends with a mended file of the largest size: the text of before, with line ends of its own.
    let old = format!("recipient,amount\r\n{}", "x\r\n".repeat(80 << 10));
    let known = [
        ("form_token", person.form_token.as_str()),
        ("from", from.as_str()),
        ("chain", "31337"),
        ("unit", "smallest"),
        ("text", old.as_str()),
    ];
    let notes = "n".repeat(480);
    let rows = (0..254).map(|row| format!("0x{:040x},7,{notes}\n", 0xa000 + row));
    let mended = format!("recipient,amount,notes\n{}", rows.collect::<String>());
    let mended = mended.as_bytes();
    let said = world
        .send_form("/batches/check", &person.cookie, form(&known, Some(mended)))
        .await;
    assert_eq!(said.status, 200, "{}", said.status);
    // A file at the limit comes back from the text field with longer line ends.
    let lines = (256 << 10) / 8;
    let text = format!("recipient,amount\n{}", "\n".repeat(lines)).replace('\n', "\r\n");
    let room = "y".repeat((256 << 10) - lines - 20);
    let text = text + &room;
    let known = [
        ("form_token", person.form_token.as_str()),
        ("from", from.as_str()),
        ("chain", "31337"),
        ("text", text.as_str()),
    ];
    let said = world
        .send_form("/batches/check", &person.cookie, form(&known, None))
        .await;
    assert_eq!(said.status, 422, "{}", said.status);
    assert!(!said.text.contains("is larger than 256 KiB"));
    let many = vec![("a", "b"); 30];
    let said = world
        .send_form("/batches/check", &person.cookie, form(&many, None))
        .await;
    assert_eq!(said.status, 400, "{}", said.text);
}

#[tokio::test]
async fn batch__should_be_made_with_the_amounts_that_were_shown() {
    let (world, person, vault, from) = world("manual").await;
    let text = "recipient,amount\n0x00000000000000000000000000000000c0ffee19,2.5\n";
    let make = async |total: &str, read_with: &str, decimals: &str| {
        let fields = [
            ("form_token", person.form_token.as_str()),
            ("from", from.as_str()),
            ("chain", "31337"),
            ("token", TOKEN),
            ("unit", "whole"),
            ("decimals", decimals),
            ("text", text),
            ("total", total),
            ("read_with", read_with),
        ];
        world
            .send_form("/batches", &person.cookie, form(&fields, None))
            .await
    };
    for (total, read_with) in [("2500000000000000000", "6"), ("2500000", "18"), ("", "")] {
        let said = make(total, read_with, "6").await;
        assert_eq!(said.status, 409, "{}", said.text);
        assert!(
            said.text.contains("no longer those that were checked"),
            "{}",
            said.text
        );
        assert_eq!(world.batches_of(&vault).await, 0);
    }
    // A node that says another number than the person does not decide.
    assert_eq!(make("2500000000000000000", "18", "18").await.status, 422);
    assert_eq!(make("2500000", "6", "6").await.status, 303);
    assert_eq!(world.batches_of(&vault).await, 1);
}

#[tokio::test]
async fn empty_file__should_not_mean_the_rows_before() {
    let (world, person, _, from) = world("manual").await;
    let rows = "recipient,amount\n0x00000000000000000000000000000000c0ffee19,7\n";
    let fields = [
        ("form_token", person.form_token.as_str()),
        ("from", from.as_str()),
        ("chain", "31337"),
        ("text", rows),
    ];
    let said = world
        .send_form("/batches/check", &person.cookie, form(&fields, Some(b"")))
        .await;
    assert_eq!(said.status, 422, "{}", said.text);
    assert!(
        said.text.contains("file: is empty") && !said.text.contains("c0ffee19"),
        "{}",
        said.text
    );
    // Of none that was chosen a browser says an empty name.
    let (kind, body) = form(&fields, Some(b""));
    let body = body.replace("filename=\"a.csv\"", "filename=\"\"");
    let said = world
        .send_form("/batches/check", &person.cookie, (kind, body))
        .await;
    assert_eq!(said.status, 200, "{}", said.text);
    // A row to the batch contract is named before anything is made; nobody's address is marked.
    let rows = format!("recipient,amount\n{CONTRACT},1\n0x{:040},1\n{from},1\n", 0);
    let fields = [
        ("form_token", person.form_token.as_str()),
        ("from", from.as_str()),
        ("chain", "31337"),
        ("text", rows.as_str()),
    ];
    let said = world
        .send_form("/batches/check", &person.cookie, form(&fields, None))
        .await;
    assert_eq!(said.status, 422, "{}", said.text);
    for part in [
        "Row 2, recipient: <bdi>is the batch contract",
        "it is lost",
        "the wallet that pays</strong>",
    ] {
        assert!(said.text.contains(part), "{part}: {}", said.text);
    }
}

#[tokio::test]
async fn wallet_that_is_in_no_list__should_stay_chosen() {
    let (world, person, vault, _) = world("manual").await;
    let other = world
        .vault("other", 1, &[("treasurer", &person.line)])
        .await;
    let elsewhere = world.wallet(&vault, "second").await;
    let path = format!("/batches/new?vault={other}&from={elsewhere}");
    let page = world.get(&path, &person.cookie).await;
    let chosen = format!("value=\"{elsewhere}\" selected");
    assert!(page.text.contains(&chosen), "{}", page.text);
}

#[test]
fn notes_of_a_speed_up_of_a_batch__should_be_the_clients() {
    let page = |replaces: &str| {
        let earlier = ("0190aaaa-0000-7000-8000-000000000003", "failed");
        let request = wire::SigningRequest {
            batch_payment_uuid: "0190aaaa-0000-7000-8000-000000000001".into(),
            replaces_uuid: replaces.into(),
            notes: Some("Approve any fee".into()),
            ..Default::default()
        };
        let page = views::RequestsPage {
            shell: views::Shell::outside(),
            requests: vec![views::RequestView {
                earlier_try: views::EarlierTry::Made {
                    uuid: earlier.0.into(),
                    status: earlier.1.into(),
                },
                ..requests::view(&request, "treasury", "treasurer", 0)
            }],
            has_totals: false,
            unsummed: 0,
            fee_places: Vec::new(),
            totals: Vec::new(),
            left_out: Vec::new(),
            can_approve: false,
            is_again: false,
            can_reject: false,
        };
        askama::Template::render(&page).unwrap()
    };
    assert!(page("").contains("Notes of this service"));
    assert!(page("").contains("00000000003</a> (failed) was to pay the same. Look on the chain"));
    let speed_up = page("0190aaaa-0000-7000-8000-000000000002");
    assert!(speed_up.contains("Notes of the requester"), "{speed_up}");
    assert!(!speed_up.contains("Notes of this service"), "{speed_up}");
}

#[tokio::test]
async fn request_of_a_batch__should_list_exactly_the_rows_of_its_batch() {
    let chain = ChainKey::evm(CHAIN);
    let chains = ChainClients::default().with(chain, Arc::new(Chain::default()));
    // Where a chain may have a part of itself: what a call there does nobody knows, unless it is the batch contract.
    let contract = "0x00000000000000000000000000000000000000C0";
    let chains = chains.with_batch_contract(chain, contract.into());
    let world = World::with(0, chains).await;
    let person = world.person("treasurer", "approver", &[]).await;
    let vault = world
        .vault("treasury", 1, &[("treasurer", &person.line)])
        .await;
    let from = world.wallet(&vault, "cash").await;
    let uuid = world.batch(&from, &["5", "7"], None).await;
    let said = world
        .act(&person, &format!("/batches/{uuid}/approve"), "&total=12")
        .await;
    assert_eq!(said.status, 303, "{}", said.text);
    let page = world.get(&format!("/batches/{uuid}"), &person.cookie).await;
    let request = page.text.split_once("href=\"/requests/").unwrap().1;
    let request = request.split('"').next().unwrap();
    let page = world
        .get(&format!("/requests/{request}"), &person.cookie)
        .await;
    assert_eq!(
        page.text.matches("class=\"spend\"").count(),
        2,
        "{}",
        page.text
    );
    assert!(!page.text.contains("nobody can tell whom"), "{}", page.text);
}

#[tokio::test]
async fn batch__should_be_started_and_closed_by_its_maker_and_whom_the_rule_names_alone() {
    let (world, person, _, from) = world("manual").await;
    let stranger = world.person("stranger", "approver", &[]).await;
    let path = format!("/batches/{}", world.batch(&from, &["5", "7"], None).await);
    let page = world.get(&path, &stranger.cookie).await.text;
    assert!(page.contains("whom the vault&#39;s rule names"), "{page}");
    assert!(
        !page.contains("Reject it") && !page.contains("Approve the batch"),
        "{page}"
    );
    for action in ["approve", "resume", "reject"] {
        let said = world
            .act(&stranger, &format!("{path}/{action}"), "&total=12&reason=x")
            .await;
        let status = if action == "resume" { 409 } else { 403 };
        assert_eq!(said.status, status, "{action}: {}", said.text);
    }
    let said = world
        .act(&person, &format!("{path}/reject"), "&reason=x")
        .await;
    assert_eq!(said.status, 303, "{}", said.text);
}
