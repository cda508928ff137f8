//! Payments that are held after their approvals.

use std::{path::PathBuf, time::Duration};

use covault_core::{
    approval::testing::TestPasskey,
    fault::{Fault, FaultCode},
    ids::SessionId,
};

use super::{
    approvals::{passkeys, rules},
    *,
};
use crate::{
    claims::{Claim, ClaimError, Claims},
    policy::held,
};

const HOUR_MS: u64 = 3_600_000;
/// 2023-11-14 22:13:20 UTC.
const BEGIN_MS: u64 = 1_700_000_000_000;
const TWO_HELD: &str = "[[approval]]\nneeds = 2\nof = [\"treasurer\", \"controller\", \"director\"]\nhold_hours = 12\n";

/// A node's policy and claims, which can be closed and opened again.
struct HoldingNode {
    policy: Policy,
    claims: Option<Claims>,
    path: PathBuf,
    session: u8,
    _folder: tempfile::TempDir,
}

impl HoldingNode {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claims.redb");
        Self {
            policy: Policy::parse(&rules(text)).unwrap(),
            claims: Some(Claims::open(&path, true).unwrap()),
            path,
            session: 0,
            _folder: folder,
        }
    }

    async fn restart(&mut self) {
        self.claims = None;
        for _ in 0..500 {
            if let Ok(claims) = Claims::open(&self.path, false) {
                self.claims = Some(claims);
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the claims file stays locked");
    }

    /// Until when it is held; `None`: it is signed.
    async fn sign(
        &mut self,
        (order, payload): &(SigningOrder, Payload),
        now_ms: u64,
    ) -> Option<u64> {
        self.session += 1;
        let spending = self.policy.check(order, &root(), payload, now_ms).unwrap();
        let hold = self.policy.hold(order, &root(), payload, now_ms).unwrap();
        let session = (SessionId::from_bytes([self.session; 16]), 0);
        let claim = Claim::of_order(session, order, (spending, true, hold), now_ms).unwrap();
        self.until(self.claims.as_ref().unwrap().claim(claim).await)
    }

    /// The same before there is a transaction.
    async fn tell(&self, of: &(SigningOrder, Payload), now_ms: u64) -> Option<u64> {
        self.until(self.note(of, now_ms).await)
    }

    async fn note(
        &self,
        (order, payload): &(SigningOrder, Payload),
        now_ms: u64,
    ) -> Result<(), ClaimError> {
        let mut told = order.clone();
        (told.unsigned, told.inputs) = (Vec::new(), Vec::new());
        told.chain_data = ChainData::Nothing;
        assert!(told.tells_of_approvals());
        let hold = self.policy.hold(&told, &root(), payload, now_ms).unwrap();
        let claims = self.claims.as_ref().unwrap();
        match hold {
            Some(hold) => claims.note_approvals(hold, now_ms).await,
            None => Ok(()),
        }
    }

    fn until(&self, outcome: Result<(), ClaimError>) -> Option<u64> {
        match outcome {
            Ok(()) => None,
            Err(ClaimError::Held(held)) => Some(held.until_ms),
            Err(other) => panic!("{other}"),
        }
    }
}

/// The request of this number, approved by these at this time, for the longest that an approval can be valid.
fn approved(
    number: u8,
    (mut order, payload): (SigningOrder, Payload),
    given: &[&TestPasskey],
    at_ms: u64,
) -> (SigningOrder, Payload) {
    order.request = RequestId::from_bytes([number; 16]);
    order.approvals.most_fee = u128::from(u64::MAX);
    order.approvals.valid_until_ms = at_ms + 24 * HOUR_MS;
    order.approvals.given = given.iter().map(|one| one.approve(&order)).collect();
    (order, payload)
}

#[tokio::test]
async fn a_payment__should_be_held_from_the_approval_that_completes_it_over_restarts_and_wrong_clocks()
 {
    let mut node = HoldingNode::new(TWO_HELD);
    let [one, second, two, three] = &passkeys();
    let pays =
        |number, given: &[&TestPasskey], at_ms| approved(number, native(1, BOB, 5), given, at_ms);
    let until = BEGIN_MS + 13 * HOUR_MS;
    // One person is too few, also with two keys.
    let wants =
        "wants 2 of treasurer, controller, director, held for 12 hours (approved: treasurer)";
    assert_eq!(
        node.note(&pays(1, &[one, second], BEGIN_MS), BEGIN_MS)
            .await,
        Err(ClaimError::ApprovalsMissing(wants.to_owned()))
    );
    let complete_ms = BEGIN_MS + HOUR_MS;
    let both = pays(1, &[one, two], BEGIN_MS);
    assert_eq!(node.tell(&both, complete_ms).await, Some(until));
    assert_eq!(node.sign(&both, complete_ms + 1).await, Some(until));
    node.restart().await;
    assert_eq!(node.sign(&both, until - 1).await, Some(until));
    // A clock that was set back, and approvals that are given once more, change nothing.
    assert_eq!(node.sign(&both, BEGIN_MS).await, Some(until));
    let again = pays(1, &[two, one], until - HOUR_MS);
    assert_eq!(node.sign(&again, until - HOUR_MS).await, Some(until));
    // With a third person it is not held from anew; another request is.
    assert_eq!(
        node.sign(&pays(1, &[one, two, three], complete_ms), until - 2)
            .await,
        Some(until)
    );
    let other = pays(2, &[one, two], complete_ms);
    assert_eq!(node.tell(&other, complete_ms).await, Some(until));
    assert_eq!(
        node.tell(&pays(3, &[one, two], until), until).await,
        Some(until + 12 * HOUR_MS)
    );
    // Nothing was counted or claimed: it is signed once, and then again in another session.
    assert_eq!(node.sign(&both, until).await, None);
    assert_eq!(node.sign(&both, until + 1).await, None);
    // The claim of a clock that was ahead ends no other hold; a new one begins no earlier than that.
    assert_eq!(node.sign(&other, until + HOUR_MS).await, None);
    assert_eq!(
        node.tell(&pays(4, &[one, two], BEGIN_MS), BEGIN_MS).await,
        Some(until + 13 * HOUR_MS)
    );
    // Where the claims are lost the time begins anew.
    let mut node = HoldingNode::new(TWO_HELD);
    assert_eq!(node.sign(&both, until).await, Some(until + 12 * HOUR_MS));
}

#[tokio::test]
async fn a_hold__should_be_refused_in_words_that_say_until_when_and_who_can_reject_it() {
    let node = HoldingNode::new(TWO_HELD);
    let [one, _, two, _] = &passkeys();
    let both = approved(1, native(1, BOB, 5), &[one, two], BEGIN_MS);
    let hold = node
        .policy
        .hold(&both.0, &root(), &both.1, BEGIN_MS)
        .unwrap()
        .unwrap();
    let error = node
        .claims
        .as_ref()
        .unwrap()
        .note_approvals(hold, BEGIN_MS)
        .await;
    let Err(ClaimError::Held(until)) = error else {
        panic!("{error:?}");
    };
    let fault: Fault = held(&until);
    assert_eq!(
        fault.message(),
        "holds this payment until 2023-11-15 10:13 UTC, 12 hours after it first verified enough approvals: until then \
         treasurer, controller, director can reject it"
    );
    let until_ms = BEGIN_MS + 12 * HOUR_MS;
    assert_eq!(fault.code(), FaultCode::Held { until_ms });
    // An approval that is not valid is none that time runs from.
    let mut forged = both.clone();
    forged.0.approvals.valid_until_ms += 1;
    assert!(
        node.policy
            .hold(&forged.0, &root(), &forged.1, BEGIN_MS)
            .is_err()
    );
    let late_ms = BEGIN_MS + 24 * HOUR_MS;
    assert!(
        node.policy
            .hold(&both.0, &root(), &both.1, late_ms)
            .is_err()
    );
    assert!(
        Policy::production()
            .hold(&both.0, &root(), &both.1, BEGIN_MS)
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn more_people__should_be_wanted_before_there_is_a_transaction_where_no_fee_makes_it_less() {
    let above = |amount| {
        format!(
            "[[approval]]\nneeds = 2\nof = [\"treasurer\", \"controller\"]\nabove = {{ asset = \"evm:1\", {amount} }}\n"
        )
    };
    let [one, _, two, _] = &passkeys();
    let pays = |number, value, given: &[&TestPasskey]| {
        approved(number, native(1, BOB, value), given, BEGIN_MS)
    };
    let wants = Err(ClaimError::ApprovalsMissing(
        "wants 2 of treasurer, controller (approved: treasurer)".to_owned(),
    ));
    for amount in ["per_request = \"100\"", "per_day = \"100\""] {
        let node = HoldingNode::new(&above(amount));
        assert_eq!(node.note(&pays(1, 101, &[one]), BEGIN_MS).await, wants);
        assert_eq!(
            node.note(&pays(1, 101, &[one, two]), BEGIN_MS).await,
            Ok(())
        );
        // It is above it by the highest fee alone, and the real one may be less: its signer says so then.
        assert_eq!(node.note(&pays(2, 100, &[one]), BEGIN_MS).await, Ok(()));
    }
    // A day's sum that has come above it.
    let mut node = HoldingNode::new(&above(&format!("per_day = \"{}\"", FEE + 100)));
    assert_eq!(node.note(&pays(1, 60, &[one]), BEGIN_MS).await, Ok(()));
    assert_eq!(node.sign(&pays(1, 60, &[one]), BEGIN_MS).await, None);
    assert_eq!(node.note(&pays(2, 60, &[one]), BEGIN_MS).await, wants);
}

#[tokio::test]
async fn new_recipients__should_be_known_once_a_payment_that_was_held_is_signed() {
    let always = "[[approval]]\nneeds = 1\nof = [\"treasurer\", \"controller\"]\nhold_hours = 5\nhold_only_new_recipients = true\n";
    let large = format!(
        "{always}above = {{ asset = \"evm:1\", per_request = \"{}\" }}\n",
        FEE + 100
    );
    let [one, _, two, _] = &passkeys();
    let until = Some(BEGIN_MS + 5 * HOUR_MS);
    let mut node = HoldingNode::new(always);
    let to = |number, to, given| approved(number, native(1, to, 5), &[given], BEGIN_MS);
    assert_eq!(node.sign(&to(1, BOB, one), BEGIN_MS).await, until);
    assert_eq!(
        node.sign(&to(2, BOB, one), BEGIN_MS).await,
        until,
        "nothing was signed yet"
    );
    assert_eq!(
        node.sign(&to(1, BOB, one), BEGIN_MS + 5 * HOUR_MS).await,
        None
    );
    node.restart().await;
    let later_ms = BEGIN_MS + 6 * HOUR_MS;
    assert_eq!(node.sign(&to(3, BOB, two), later_ms).await, None);
    assert_eq!(
        node.sign(&to(4, EVE, one), later_ms).await,
        Some(later_ms + 5 * HOUR_MS)
    );
    // In another vault, on another chain, or in bytes that do not say it, he is nobody who is known.
    let mut of_other = to(5, BOB, one);
    of_other.0.vault = VaultId::from_bytes([9; 16]);
    of_other = approved(5, of_other, &[one], BEGIN_MS);
    assert!(node.sign(&of_other, later_ms).await.is_some());
    let elsewhere = approved(6, native(10, BOB, 5), &[one], BEGIN_MS);
    assert!(node.sign(&elsewhere, later_ms).await.is_some());
    let bytes = approved(7, raw(Network::Evm), &[one], BEGIN_MS);
    assert!(node.sign(&bytes, later_ms).await.is_some());

    // A little that nobody has to approve makes nobody known.
    let mut node = HoldingNode::new(&large);
    let pays = |number, value, given: &[&TestPasskey]| {
        approved(number, native(1, EVE, value), given, BEGIN_MS)
    };
    assert_eq!(node.sign(&pays(1, 1, &[]), BEGIN_MS).await, None);
    assert_eq!(node.sign(&pays(2, 500, &[one]), BEGIN_MS).await, until);
    // Of people who are not asked by the rule neither.
    let director = &passkeys()[3];
    assert_eq!(node.sign(&pays(3, 1, &[director]), BEGIN_MS).await, None);
    assert_eq!(node.sign(&pays(4, 500, &[one]), BEGIN_MS).await, until);
    // Nor does a little that they have approved: who deceives or robs them begins with that.
    assert_eq!(node.sign(&pays(5, 1, &[two]), BEGIN_MS).await, None);
    assert_eq!(node.sign(&pays(6, 500, &[one]), BEGIN_MS).await, until);
    // What the rule held makes him known, and that for this rule.
    let later_ms = BEGIN_MS + 5 * HOUR_MS;
    assert_eq!(node.sign(&pays(6, 500, &[one]), later_ms).await, None);
    assert_eq!(node.sign(&pays(7, 500, &[two]), later_ms).await, None);
    node.policy = Policy::parse(&rules(&large.replace("needs = 1", "needs = 2"))).unwrap();
    assert_eq!(
        node.sign(&pays(8, 500, &[one, two]), later_ms).await,
        Some(later_ms + 5 * HOUR_MS)
    );
}

#[tokio::test]
async fn a_hold__should_not_begin_with_approvals_that_were_told_one_by_one() {
    let mut node = HoldingNode::new(TWO_HELD);
    let [one, _, two, three] = &passkeys();
    let pays = |given: &[&TestPasskey]| approved(1, native(1, BOB, 5), given, BEGIN_MS);
    // Nobody could see these: they are too few each time.
    for given in [one, two] {
        let told = node.note(&pays(&[given]), BEGIN_MS).await;
        assert!(matches!(told, Err(ClaimError::ApprovalsMissing(_))));
    }
    let later_ms = BEGIN_MS + 13 * HOUR_MS;
    let until = Some(later_ms + 12 * HOUR_MS);
    assert_eq!(node.sign(&pays(&[one, two]), later_ms).await, until);
    // From then on it is the payment's time, whoever approves it again.
    let again = approved(1, native(1, BOB, 5), &[two, three], later_ms + 12 * HOUR_MS);
    assert_eq!(node.sign(&again, later_ms + 12 * HOUR_MS).await, None);
}

#[tokio::test]
async fn a_days_sum__should_begin_a_hold_only_from_when_it_is_above_the_rule() {
    let rule = format!(
        "[[approval]]\nneeds = 1\nof = [\"treasurer\"]\nhold_hours = 1\n\
         above = {{ asset = \"evm:1\", per_day = \"{}\" }}\n",
        FEE + 150
    );
    let mut node = HoldingNode::new(&rule);
    let one = &passkeys()[0];
    let pays = |number| {
        let (mut order, payload) = approved(number, native(1, BOB, 75), &[], BEGIN_MS);
        order.approvals.most_fee = u128::from(FEE);
        order.approvals.given = vec![one.approve(&order)];
        (order, payload)
    };
    // Nobody is told of a time that begins while nothing holds it.
    assert_eq!(node.tell(&pays(2), BEGIN_MS).await, None);
    assert_eq!(node.sign(&pays(1), BEGIN_MS).await, None);
    let later_ms = BEGIN_MS + 2 * HOUR_MS;
    assert_eq!(
        node.sign(&pays(2), later_ms).await,
        Some(later_ms + HOUR_MS)
    );
}

#[tokio::test]
async fn a_policy_that_is_reread__should_not_sign_what_both_hold() {
    let held = "[[approval]]\nneeds = 1\nof = [\"treasurer\"]\nhold_hours = 12\n";
    let node = HoldingNode::new(held);
    let [one, second, ..] = &passkeys();
    let (order, payload) = approved(1, native(1, BOB, 5), &[one], BEGIN_MS);
    let spending = node.policy.check(&order, &root(), &payload, BEGIN_MS);
    // The treasurer's key was stolen, and is taken out.
    let [stolen, kept] = [one, second].map(|key| key.line().line().unwrap());
    let text = rules(held);
    let reread = text.replace(&format!("\"{stolen}\", \"{kept}\""), &format!("\"{kept}\""));
    assert_ne!(text, reread);
    let without = Policy::parse(&reread).unwrap();
    let hold = without.hold(&order, &root(), &payload, BEGIN_MS).unwrap();
    let session = (SessionId::from_bytes([1; 16]), 0);
    let claim =
        Claim::of_order(session, &order, (spending.unwrap(), true, hold), BEGIN_MS).unwrap();
    let refused = node.claims.as_ref().unwrap().claim(claim).await;
    assert!(
        matches!(refused, Err(ClaimError::ApprovalsMissing(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_days_sum__should_be_held_from_where_it_is_above_the_rule() {
    let rule = format!(
        "[[approval]]\nneeds = 1\nof = [\"treasurer\"]\nhold_hours = 1\n\
         above = {{ asset = \"evm:1\", per_day = \"{}\" }}\n",
        2 * FEE + 150
    );
    let mut node = HoldingNode::new(&rule);
    let one = &passkeys()[0];
    let pays =
        |number, given: &[&TestPasskey]| approved(number, native(1, BOB, 75), given, BEGIN_MS);
    for number in 1..=2 {
        assert_eq!(
            node.sign(&pays(number, &[one]), BEGIN_MS).await,
            None,
            "{number}"
        );
    }
    let until_ms = BEGIN_MS + HOUR_MS;
    for _ in 0..3 {
        assert_eq!(node.sign(&pays(3, &[one]), BEGIN_MS).await, Some(until_ms));
    }
    assert_eq!(node.sign(&pays(3, &[one]), until_ms).await, None);
    // Without an approval that is what is missing.
    let (order, payload) = pays(4, &[]);
    let spending = node
        .policy
        .check(&order, &root(), &payload, BEGIN_MS)
        .unwrap();
    let hold = node
        .policy
        .hold(&order, &root(), &payload, BEGIN_MS)
        .unwrap();
    let session = (SessionId::from_bytes([99; 16]), 0);
    let claim = Claim::of_order(session, &order, (spending, false, hold), until_ms).unwrap();
    let refused = node.claims.as_ref().unwrap().claim(claim).await;
    assert!(
        matches!(refused, Err(ClaimError::ApprovalsMissing(_))),
        "{refused:?}"
    );
}

#[test]
fn hold_hours__should_be_checked_and_explained() {
    let rule = |text: &str| {
        rules(&format!(
            "[[approval]]\nneeds = 1\nof = [\"treasurer\"]\n{text}"
        ))
    };
    let hours = "approval[0].hold_hours: must be a whole number of hours, 1 to 168";
    for (text, starts) in [
        ("hold_hours = 0", hours),
        ("hold_hours = 169", hours),
        ("hold_hours = -1", hours),
        ("hold_hours = 1.5", hours),
        ("hold_hours = \"1\"", hours),
        (
            "hold_only_new_recipients = true",
            "approval[0].hold_only_new_recipients: says nothing without hold_hours",
        ),
        (
            "hold_hours = 1\nhold_only_new_recipients = 1",
            "approval[0].hold_only_new_recipients: must be true or false",
        ),
        (
            "hold_hours = 1\nway = [\"client\"]",
            "approval[0].hold_hours: cannot hold what only client signers approve",
        ),
    ] {
        let fault = Policy::parse(&rule(text)).unwrap_err();
        assert!(fault.message().starts_with(starts), "{text}\n{fault}");
    }
    for (text, line) in [
        (
            "hold_hours = 168",
            "  approvals: 1 of treasurer, held for 168 hours: always",
        ),
        (
            "hold_hours = 12\nhold_only_new_recipients = true",
            "  approvals: 1 of treasurer, held for 12 hours where a recipient is new: always",
        ),
    ] {
        let lines = Policy::parse(&rule(text)).unwrap().explain();
        assert!(lines.iter().any(|it| it == line), "{lines:#?}");
    }
}

/// Claims of a release are read by the next one: with other ids all holds would begin anew.
#[test]
fn a_rule__should_be_known_by_what_its_file_says() {
    let id = |text: &str| {
        let policy = Policy::parse(&rules(text)).unwrap();
        let [one, ..] = &passkeys();
        let (order, payload) = approved(1, native(1, BOB, 500), &[one], BEGIN_MS);
        let hold = policy.hold(&order, &root(), &payload, BEGIN_MS).unwrap();
        hex::encode(hold.unwrap().rules[0].id)
    };
    let rule = "[[approval]]\nneeds = 1\nof = [\"treasurer\", \"controller\"]\nnetworks = [\"evm:1\"]\nway = [\"console\", \
                \"node\"]\nabove = { asset = \"evm:1\", per_request = \"100\", per_day = \"200\" }\n";
    let known = id(&format!("{rule}hold_hours = 12\n"));
    assert_eq!(
        known,
        "6eb0a230b6fa2461a479ab58d6ee299b3438244c4546aaebcaea7f78c09724a0"
    );
    assert_eq!(id(&format!("{rule}hold_hours = 24\n")), known);
    for (from, to) in [
        ("needs = 1", "needs = 2"),
        ("\"100\"", "\"101\""),
        (", \"controller\"", ""),
        ("evm:1\"]", "evm\"]"),
    ] {
        let other = rule.replace(from, to);
        assert_ne!(other, rule);
        assert_ne!(id(&format!("{other}hold_hours = 12\n")), known, "{to}");
    }
}
