//! What people have to approve.

use covault_core::approval::{GivenApproval, testing::TestPasskey};
use covault_core::{fault::FaultCode, ids::SessionId};

use super::*;
use crate::claims::{Claim, ClaimError, Claims};

const NODE_PAGE: &str = "https://approve.example.com";

/// The passkeys of the people below.
pub(super) fn passkeys() -> [TestPasskey; 4] {
    [
        TestPasskey::new("treasurer", 1),
        TestPasskey::new("treasurer", 2),
        TestPasskey::new("controller", 1).synced(),
        TestPasskey::new("director", 1).at("approve.example.com", &[NODE_PAGE]),
    ]
}

fn people() -> String {
    let lines = passkeys().map(|passkey| passkey.line().line().unwrap());
    let [treasurer, second, controller, director] = &lines;
    format!(
        r#"
        [[approver]]
        name = "treasurer"
        keys = ["{treasurer}", "{second}"]
        [[approver]]
        name = "controller"
        keys = ["{controller}"]
        [[approver]]
        name = "director"
        keys = ["{director}"]
        "#
    )
}

pub(super) fn rules(rules: &str) -> String {
    format!(
        "version = 2\nraw_signing = true\nnode_origins = [\"{NODE_PAGE}\"]\n{}\n{rules}",
        people()
    )
}

const TWO: &str = r#"
    [[approval]]
    needs = 2
    of = ["treasurer", "controller", "director"]
"#;

/// The order with approvals of these.
fn with(
    (mut order, payload): (SigningOrder, Payload),
    given: &[&TestPasskey],
) -> (SigningOrder, Payload) {
    order.approvals.most_fee = u128::from(u64::MAX);
    order.approvals.valid_until_ms = NOW_MS + 1;
    let given: Vec<GivenApproval> = given.iter().map(|one| one.approve(&order)).collect();
    order.approvals.given = given;
    (order, payload)
}

#[track_caller]
fn wanted(policy: &Policy, (order, payload): (SigningOrder, Payload), sentence: &str) {
    let fault = policy.check(&order, &root(), &payload, NOW_MS).unwrap_err();
    assert_eq!(fault.message(), sentence);
    assert_eq!(fault.code(), FaultCode::ApprovalsMissing);
}

#[test]
fn a_rule__should_want_so_many_different_people() {
    let policy = Policy::parse(&rules(TWO)).unwrap();
    let [one, second, two, three] = &passkeys();
    let asked = || native(1, BOB, 5);
    let all = "wants 2 of treasurer, controller, director";
    wanted(&policy, asked(), all);
    wanted(
        &policy,
        with(asked(), &[one]),
        &format!("{all} (approved: treasurer)"),
    );
    // Two keys of one person, and one key twice.
    wanted(
        &policy,
        with(asked(), &[one, second]),
        &format!("{all} (approved: treasurer)"),
    );
    wanted(
        &policy,
        with(asked(), &[one, one]),
        &format!("{all} (approved: treasurer)"),
    );
    let stranger = &TestPasskey::new("removed", 1);
    let sentence = format!(
        "{all} (approved: treasurer; approvals[1] is signed by a key that no [[approver]] here has)"
    );
    wanted(&policy, with(asked(), &[one, stranger]), &sentence);
    for given in [
        &[one, two][..],
        &[one, three],
        &[one, second, stranger, three],
        &[one, two, three],
    ] {
        allowed(&policy, with(asked(), given));
    }
    // Of another order.
    let (mut order, payload) = with(native(1, BOB, 6), &[one, two]);
    let (right, _) = with(asked(), &[]);
    order.approvals.given.clone_from(
        &with((right, payload.clone()), &[one, two])
            .0
            .approvals
            .given,
    );
    refused(
        &policy,
        (order, payload),
        "approvals[0].clientDataJSON.challenge: ",
    );
    // Nobody asks, so nothing is looked at but how much it is.
    let none = Policy::production();
    let (mut order, payload) = with(asked(), &[one]);
    order.approvals.valid_until_ms = 0;
    allowed(&none, (order.clone(), payload.clone()));
    order.approvals.given = vec![order.approvals.given[0].clone(); 17];
    refused(&none, (order, payload), "approvals: must be at most 16");
}

#[test]
fn a_rule__should_count_people_whom_it_names_and_ways_that_it_takes() {
    let [one, _, two, three] = &passkeys();
    let asked = || native(1, BOB, 5);
    let rule =
        |more: &str| Policy::parse(&rules(&format!("[[approval]]\nneeds = 1\n{more}"))).unwrap();
    let others = rule(r#"of = ["treasurer", "controller"]"#);
    wanted(
        &others,
        with(asked(), &[three]),
        "wants 1 of treasurer, controller (not counted: director by way of node)",
    );
    let hardware = rule("of = [\"treasurer\", \"controller\"]\nsynced_passkeys = false");
    wanted(
        &hardware,
        with(asked(), &[two]),
        "wants 1 of treasurer, controller, no synced passkeys (not counted: controller by way of console with a \
         synced passkey)",
    );
    allowed(&hardware, with(asked(), &[one]));
    let node = rule("of = [\"treasurer\", \"director\"]\nway = [\"node\", \"ssh\"]");
    wanted(
        &node,
        with(asked(), &[one]),
        "wants 1 of treasurer, director by way of node or ssh (not counted: treasurer by way of console)",
    );
    allowed(&node, with(asked(), &[three]));
    // Each rule by itself; one approval counts for all.
    let both = Policy::parse(&rules(&format!(
        "{TWO}\n[[approval]]\nneeds = 1\nof = [\"director\"]"
    )))
    .unwrap();
    wanted(
        &both,
        with(asked(), &[one, two]),
        "wants 1 of director (not counted: treasurer by way of console; not counted: controller by way of console \
         with a synced passkey)",
    );
    allowed(&both, with(asked(), &[one, three]));
}

#[test]
fn a_rule__should_apply_where_it_says() {
    let one = "[[approval]]\nneeds = 1\nof = [\"treasurer\"]\n";
    let rule = |more: &str| Policy::parse(&rules(&format!("{one}{more}"))).unwrap();
    let asks = |policy: &Policy, (order, payload): &(SigningOrder, Payload)| {
        let fault = policy.check(order, &root(), payload, NOW_MS).err();
        assert!(
            fault.is_none()
                || fault
                    .as_ref()
                    .is_some_and(|fault| fault.code() == FaultCode::ApprovalsMissing),
            "{fault:?}"
        );
        fault.is_some()
    };
    let here = rule(r#"networks = ["evm:1"]"#);
    assert!(asks(&here, &native(1, BOB, 5)));
    assert!(!asks(&here, &native(10, BOB, 5)));
    assert!(!asks(&here, &lamports(SOL, 5)));
    // Good on every chain, so there too.
    assert!(asks(&here, &raw(Network::Evm)));
    let kinds = rule(r#"kinds = ["evmSendErc20", "evmMessage"]"#);
    assert!(asks(&kinds, &token(TOKEN, BOB, 5)));
    assert!(asks(&kinds, &message()));
    assert!(!asks(&kinds, &native(1, BOB, 5)));

    // With the fee, the amount has to be above.
    let most = 1_000_000 + FEE;
    let above = rule(&format!(
        r#"above = {{ asset = "evm:1", per_request = "{most}" }}"#
    ));
    assert!(!asks(&above, &native(1, BOB, 1_000_000)));
    assert!(asks(&above, &native(1, BOB, 1_000_001)));
    assert!(!asks(&above, &native(10, BOB, 5_000_000)));
    assert!(!asks(&above, &lamports(SOL, 5)));
    assert!(!asks(&above, &message()), "a text moves nothing");
    let fee = 1_000_000;
    assert!(!asks(&above, &token(TOKEN, BOB, u64::MAX)), "{fee}");
    // No amount says what these can move.
    for opaque in [
        raw(Network::Evm),
        raw(Network::Tron),
        typed("{}"),
        call(TOKEN, vec![1]),
    ] {
        assert!(asks(&above, &opaque), "{}", opaque.1.kind());
    }
    let listed = format!(
        r#"version = 2
        only_listed_assets = true
        most_fee."evm:1" = "1000000000"
        {}
        [[limits]]
        asset = "evm:1/{TOKEN}"
        per_request = "10"
        [[limits]]
        asset = "evm:1"
        per_request = "10000000"
        {one}
        above = {{ asset = "evm:1", per_request = "{most}" }}"#,
        people()
    );
    let listed = Policy::parse(&listed).unwrap();
    assert!(
        asks(&listed, &token(TOKEN, BOB, 5)),
        "no rule says above how many tokens"
    );
    assert!(!asks(&listed, &native(1, BOB, 1_000_000)));
    // Each vault by itself.
    let vault = VaultId::from_bytes([2; 16]);
    let of_vault = |vault: VaultId| {
        let text = format!(
            "version = 2\n{}\n[[vaults.\"{vault}\".approval]]\nneeds = 1\nof = [\"treasurer\"]",
            people()
        );
        Policy::parse(&text).unwrap()
    };
    assert!(asks(&of_vault(vault), &native(1, BOB, 5)));
    assert!(!asks(
        &of_vault(VaultId::from_bytes([3; 16])),
        &native(1, BOB, 5)
    ));
}

/// Many small ones, each with the day's sum.
#[tokio::test]
async fn a_day__should_be_what_went_without_approval_and_with_it() {
    let most = 3 * (100 + FEE);
    let rule = format!(
        r#"[[approval]]
        needs = 1
        of = ["treasurer"]
        above = {{ asset = "evm:1", per_day = "{most}" }}"#
    );
    let [one, ..] = &passkeys();
    for scope in ["", "each_vault.", "each_wallet."] {
        let rule = rule.replace("[[approval", &format!("[[{scope}approval"));
        let policy = Policy::parse(&rules(&rule)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let claims = Claims::open(&folder.path().join("claims.redb"), true).unwrap();
        let claim = |number: u8, given: Vec<&TestPasskey>, value: u64| {
            let (mut order, payload) = native(1, BOB, value);
            order.request = RequestId::from_bytes([number; 16]);
            let (order, payload) = with((order, payload), &given);
            let spending = policy.check(&order, &root(), &payload, NOW_MS).unwrap();
            let session = (SessionId::from_bytes([number; 16]), 0);
            claims.claim(
                Claim::of_order(session, &order, (spending, !given.is_empty(), None), NOW_MS)
                    .unwrap(),
            )
        };
        let missing = Err(ClaimError::ApprovalsMissing(
            "wants 1 of treasurer".to_owned(),
        ));
        assert_eq!(claim(1, vec![], 100).await, Ok(()));
        assert_eq!(
            claim(2, vec![one], 100).await,
            Ok(()),
            "approved ones count"
        );
        assert_eq!(claim(3, vec![], 101).await, missing);
        assert_eq!(claim(4, vec![], 100).await, Ok(()));
        assert_eq!(claim(5, vec![], 1).await, missing);
        assert_eq!(claim(6, vec![one], 1_000).await, Ok(()));
    }
}

/// People raise no limit: only who writes the policy file does.
#[tokio::test]
async fn limits__should_hold_whoever_has_approved() {
    let most = 100 + FEE;
    let limits = |per: &str, most: u64| {
        let text = format!("{TWO}\n[[limits]]\nasset = \"evm:1\"\n{per} = \"{most}\"\n");
        Policy::parse(&rules(&text)).unwrap()
    };
    let [one, second, two, three] = &passkeys();
    let all = [one, second, two, three];
    for (per, sentence) in [
        (
            "per_request",
            "amount: with the fee, more evm:1 than this signer's policy allows per request",
        ),
        (
            "per_day",
            "amount: with the fee, more evm:1 than this signer's policy allows in 24 hours",
        ),
    ] {
        let policy = limits(per, most);
        allowed(&policy, with(native(1, BOB, 100), &[one, two]));
        refused(&policy, with(native(1, BOB, 101), &all), sentence);
        // It is no matter of approvals that are missing.
        let fault = refused(&policy, native(1, BOB, 101), sentence);
        assert_ne!(fault.code(), FaultCode::ApprovalsMissing);
    }
    // A day's sum of several.
    let policy = limits("per_day", 2 * most);
    let folder = tempfile::tempdir().unwrap();
    let claims = Claims::open(&folder.path().join("claims.redb"), true).unwrap();
    for number in 1..=3 {
        let (mut order, payload) = native(1, BOB, 100);
        order.request = RequestId::from_bytes([number; 16]);
        let (order, payload) = with((order, payload), &all);
        let spending = policy.check(&order, &root(), &payload, NOW_MS).unwrap();
        let session = (SessionId::from_bytes([number; 16]), 0);
        let claim = Claim::of_order(session, &order, (spending, true, None), NOW_MS).unwrap();
        let claimed = claims.claim(claim).await;
        match number {
            3 => assert!(
                matches!(claimed, Err(ClaimError::DailyLimitReached(_))),
                "{claimed:?}"
            ),
            _ => assert_eq!(claimed, Ok(())),
        }
    }
}

/// As many as a policy file is promised to have room for, and an order that as many have approved as it can carry.
#[test]
fn a_thousand_approvers__should_be_read_and_told_apart() {
    const PEOPLE: usize = 1_000;
    let name = |number: usize| format!("person-{number}");
    let passkey = |number: usize| TestPasskey::new(&name(number), 1);
    let (mut text, mut names) = ("version = 2\n".to_owned(), Vec::new());
    for number in 0..PEOPLE {
        let line = passkey(number).line().line().unwrap();
        let name = name(number);
        text.push_str(&format!(
            "[[approver]]\nname = \"{name}\"\nkeys = [\"{line}\"]\n"
        ));
        names.push(name);
    }
    text.push_str(&format!("[[approval]]\nneeds = 16\nof = {names:?}\n"));
    let policy = Policy::parse(&text).unwrap();
    assert_eq!(policy.approvers().people().count(), PEOPLE);
    let signing: Vec<_> = (PEOPLE - 16..PEOPLE).map(passkey).collect();
    let all: Vec<_> = signing.iter().collect();
    allowed(&policy, with(native(1, BOB, 5), &all));
    let fault = refused(&policy, with(native(1, BOB, 5), &all[1..]), "wants 16 of ");
    assert_eq!(fault.code(), FaultCode::ApprovalsMissing);
    let approved = "(approved: person-985, person-986, ";
    assert!(fault.message().contains(approved), "{fault}");
}

/// A claims file, and what asks it under a policy.
struct Day {
    policy: Policy,
    claims: Claims,
    _folder: tempfile::TempDir,
}

impl Day {
    fn new(rules_of: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            policy: Policy::parse(&rules(rules_of)).unwrap(),
            claims: Claims::open(&folder.path().join("claims.redb"), true).unwrap(),
            _folder: folder,
        }
    }

    /// In a session of its own, request `number` of the vault `vault`, which nobody has approved.
    async fn claim(&self, (session, number, vault): (u8, u8, u8), value: u64) -> bool {
        let (mut order, payload) = native(1, BOB, value);
        order.request = RequestId::from_bytes([number; 16]);
        order.vault = VaultId::from_bytes([vault; 16]);
        // One that alone is above the day's sum is refused before it is claimed.
        let Ok(spending) = self.policy.check(&order, &root(), &payload, NOW_MS) else {
            return false;
        };
        let session = (SessionId::from_bytes([session; 16]), 0);
        let claim = Claim::of_order(session, &order, (spending, false, None), NOW_MS).unwrap();
        match self.claims.claim(claim).await {
            Ok(()) => true,
            Err(ClaimError::ApprovalsMissing(_)) => false,
            Err(other) => panic!("{other}"),
        }
    }
}

fn per_day(scope: &str, most: u64) -> String {
    format!(
        "[[{scope}approval]]\nneeds = 1\nof = [\"treasurer\"]\n\
         above = {{ asset = \"evm:1\", per_day = \"{most}\" }}\n"
    )
}

#[tokio::test]
async fn a_day__should_not_be_passed_by_sessions_that_run_at_once() {
    let day = Day::new(&per_day("", 2 * FEE + 150));
    let at_once = (1..=20).map(|number| day.claim((number, number, 2), 100));
    let granted = futures::future::join_all(at_once).await;
    // Each alone is below, two are above.
    assert_eq!(granted.iter().filter(|it| **it).count(), 1);
    // A session that came to nothing still counts, and once: its request is asked again in another one.
    let first = granted.iter().position(|it| *it).unwrap() as u8 + 1;
    assert!(day.claim((30, first, 2), 100).await);
    // What was refused counts nothing.
    assert!(day.claim((31, 31, 2), 50).await);
    assert!(!day.claim((32, 32, 2), 1).await);
}

#[tokio::test]
async fn a_day__should_count_in_every_table_or_in_none() {
    let node = per_day("", 3 * FEE + 300);
    let day = Day::new(&format!("{node}{}", per_day("each_vault.", FEE + 100)));
    assert!(day.claim((1, 1, 2), 100).await);
    // Refused by the vault's rule: the node's sum stays as it is.
    for number in 2..=10 {
        assert!(!day.claim((number, number, 2), 1).await);
    }
    for vault in 3..=4 {
        assert!(day.claim((20 + vault, 20 + vault, vault), 100).await);
    }
    // Now the node's is full, for a vault that has spent nothing.
    assert!(!day.claim((40, 40, 5), 1).await);
}

#[test]
fn bad_rules__should_be_refused_by_name() {
    let [treasurer, ..] = passkeys().map(|passkey| passkey.line().line().unwrap());
    let broken = treasurer.replacen("approver1 ", "approver1 A", 1);
    let node = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti";
    let same = format!("[[approver]]\nname = \"other\"\nkeys = [\"{treasurer}\"]");
    let twice = format!("[[approver]]\nname = \"treasurer\"\nkeys = [\"{node}\"]");
    let approval = |text: &str| format!("[[approval]]\n{text}");
    for (text, starts) in [
        (twice, "approver[3].name: treasurer is already an approver"),
        (same, "approver[3].keys[0]: is already a key of treasurer"),
        (
            "[[approver]]\nname = \"x\"\nkeys = []".to_owned(),
            "approver[3].keys: must name at least one key",
        ),
        (
            "[[approver]]\nname = \"x\"".to_owned(),
            "approver[3].keys: is required",
        ),
        (
            "[[approver]]\nkeys = []".to_owned(),
            "approver[3].name: is required",
        ),
        (
            "[[approver]]\nname = \"a, b\"\nkeys = []".to_owned(),
            "approver[3].name: must be a name without",
        ),
        (
            "[[approver]]\nname = \"a\u{202e}b\"\nkeys = []".to_owned(),
            "approver[3].name: must not have control characters, or characters that change",
        ),
        (
            format!("[[approver]]\nname = \"x\"\nkeys = [\"{broken}\"]"),
            "approver[3].keys[0]: must be a line that begins with covault-approver1",
        ),
        (
            "[[approver]]\nname = \"x\"\nkeys = [\"ssh-rsa AAAA\"]".to_owned(),
            "approver[3].keys[0]: must be an OpenSSH line",
        ),
        (
            "[[approver]]\nname = \"x\"\nkeys = []\nmore = 1".to_owned(),
            "approver[3].keys: must name",
        ),
        (
            format!("[[approver]]\nname = \"x\"\nkeys = [\"{node}\"]\nmore = 1"),
            "approver[3].more: unknown key",
        ),
        (
            approval("of = [\"treasurer\"]"),
            "approval[0].needs: is required",
        ),
        (approval("needs = 1"), "approval[0].of: is required"),
        (
            approval("needs = 0\nof = [\"treasurer\"]"),
            "approval[0].needs: must be a number of people, at least 1",
        ),
        (
            approval("needs = -1\nof = [\"treasurer\"]"),
            "approval[0].needs: must be a number",
        ),
        (
            approval("needs = \"1\"\nof = [\"treasurer\"]"),
            "approval[0].needs: must be a number",
        ),
        (
            approval("needs = 3\nof = [\"treasurer\", \"director\"]"),
            "approval[0].needs: is 3, and only 2",
        ),
        (
            approval("needs = 1\nof = []"),
            "approval[0].needs: is 1, and only 0",
        ),
        (
            approval("needs = 1\nof = [\"nobody\"]"),
            "approval[0].of[0]: nobody is not the name of an [[approver]]",
        ),
        (
            approval("needs = 1\nof = [\"treasurer\", \"treasurer\"]"),
            "approval[0].of[1]: names treasurer twice",
        ),
        // Its only key is a synced passkey of the console.
        (
            approval("needs = 1\nof = [\"controller\"]\nsynced_passkeys = false"),
            "approval[0].needs: is 1, and only 0",
        ),
        (
            approval("needs = 2\nof = [\"controller\", \"director\"]\nway = [\"node\"]"),
            "approval[0].needs: is 2, and only 1",
        ),
        (
            approval("needs = 1\nof = [\"treasurer\"]\nway = [\"mail\"]"),
            "approval[0].way[0]: is not a way to approve",
        ),
        (
            approval("needs = 1\nof = [\"treasurer\"]\nabove = 1"),
            "approval[0].above: must be a table",
        ),
        (
            approval("needs = 1\nof = [\"treasurer\"]\nabove = {}"),
            "approval[0].above.asset: is required",
        ),
        (
            approval("needs = 1\nof = [\"treasurer\"]\nabove = { asset = \"evm:1\" }"),
            "approval[0].above: needs per_request",
        ),
        (
            approval("needs = 1\nof = [\"treasurer\"]\nnetworks = [\"mars\"]"),
            "approval[0].networks[0]: ",
        ),
        // Rules that would never apply.
        (
            approval("needs = 1\nof = [\"treasurer\"]\nnetworks = []"),
            "approval[0].networks: must name at least one",
        ),
        (
            approval("needs = 1\nof = [\"treasurer\"]\nkinds = []"),
            "approval[0].kinds: must name at least one",
        ),
        (
            approval(
                "needs = 1\nof = [\"treasurer\"]\nnetworks = [\"evm:10\"]\n\
                 above = { asset = \"evm:1\", per_day = \"1\" }",
            ),
            "approval[0].above.asset: is on none of the rule's networks",
        ),
        (
            approval("needs = 1\nof = [\"treasurer\"]\nmore = 1"),
            "approval[0].more: unknown key",
        ),
        (
            "approval = 1".to_owned(),
            "approver[2].approval: unknown key",
        ),
    ] {
        let fault = Policy::parse(&rules(&text)).unwrap_err();
        assert!(fault.message().starts_with(starts), "{text}\n{fault}");
    }
}

#[test]
fn rules__should_be_explained() {
    let rule =
        "[[approval]]\nneeds = 1\nof = [\"treasurer\", \"director\"]\nsynced_passkeys = false\n";
    let when = "networks = [\"evm:1\"]\nabove = { asset = \"evm:1\", per_request = \"5\", per_day = \"9\" }";
    let policy = Policy::parse(&rules(&format!("{rule}{when}"))).unwrap();
    let lines = policy.explain();
    let line = "  approvals: 1 of treasurer, director, no synced passkeys: on evm:1 above 5 per request or 9 in any 24 \
                hours of evm:1, with fees, and where no amount is known";
    assert!(lines.iter().any(|it| it == line), "{lines:#?}");
}
