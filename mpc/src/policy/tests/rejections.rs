//! People's rejections of what is held.

use covault_core::approval::{
    ApprovalProof, Rejection, rejections_challenge,
    testing::{TestPasskey, TestSshKey, TestSshKind},
};

use super::{
    approvals::{passkeys, rules},
    *,
};

/// A rejection of the requests of these numbers of a vault, signed with a passkey.
fn rejected(vault: u8, numbers: &[u8], by: &TestPasskey) -> Rejection {
    let vault = VaultId::from_bytes([vault; 16]);
    let requests: Vec<_> = numbers
        .iter()
        .map(|number| RequestId::from_bytes([*number; 16]))
        .collect();
    let challenge = rejections_challenge(vault, &requests).unwrap();
    let proof = by.given(by.assert(&challenge)).proof;
    Rejection {
        vault,
        requests,
        proof,
    }
}

#[test]
fn rejections__should_be_taken_of_those_alone_who_can_reject_what_is_held_in_the_vault() {
    let text = r#"
        [[approval]]
        needs = 1
        of = ["controller"]
        [[vaults."02020202-0202-0202-0202-020202020202".approval]]
        needs = 2
        of = ["treasurer", "director"]
        hold_hours = 12
        [[vaults."03030303-0303-0303-0303-030303030303".approval]]
        needs = 1
        of = ["controller"]
        hold_hours = 12
    "#;
    let policy = Policy::parse(&rules(text)).unwrap();
    let [one, second, controller, director] = &passkeys();
    for (by, name) in [
        (one, "treasurer"),
        (second, "treasurer"),
        (director, "director"),
    ] {
        for numbers in [&[7][..], &[7, 8, 9]] {
            let person = policy.rejected_by(&rejected(2, numbers, by)).unwrap();
            assert_eq!(person, name);
        }
    }
    let of_three = policy.rejected_by(&rejected(3, &[7], controller)).unwrap();
    assert_eq!(of_three, "controller");
    let refused = |rejection: Rejection, starts: &str| {
        let fault = policy.rejected_by(&rejection).unwrap_err();
        assert!(fault.message().starts_with(starts), "{fault}, not {starts}");
    };
    let nobody = "proof: is not from a person named by a rule with hold_hours for this vault";
    // An approver whose rule holds nothing, one of another vault, a stranger, and where nothing is held.
    refused(rejected(2, &[7], controller), nobody);
    refused(rejected(3, &[7], one), nobody);
    refused(rejected(2, &[7], &TestPasskey::new("stranger", 5)), nobody);
    refused(rejected(4, &[7], one), nobody);
    // What was signed of another vault, of another request, or of more of them.
    let good = rejected(2, &[7], one);
    for other in [
        rejected(3, &[7], one),
        rejected(2, &[8], one),
        rejected(2, &[7, 8], one),
    ] {
        let proof = other.proof;
        refused(
            Rejection {
                proof,
                ..good.clone()
            },
            "proof.clientDataJSON.challenge: ",
        );
    }
    // An approval of the payment is no rejection of it.
    let (order, _) = native(1, BOB, 5);
    let proof = one.approve(&order).proof;
    refused(
        Rejection {
            proof,
            requests: vec![order.request],
            vault: VaultId::from_bytes([2; 16]),
        },
        "proof.clientDataJSON.challenge: ",
    );
    refused(
        Rejection {
            requests: Vec::new(),
            ..good.clone()
        },
        "requests: must be 1 to 100",
    );
    let request = good.requests[0];
    refused(
        Rejection {
            requests: vec![request; 101],
            ..good.clone()
        },
        "requests: must be 1 to 100",
    );
    refused(
        Rejection {
            proof: ApprovalProof::Ssh("x".repeat(4097)),
            ..good
        },
        "proof: must be at most 4096 bytes",
    );
    // With an SSH key, as on the person's own machine.
    let key = TestSshKey::new(TestSshKind::Ed25519, 1);
    let text = format!(
        "version = 2\n[[approver]]\nname = \"a\"\nkeys = [\"{}\"]\n[[approval]]\nneeds = 1\nof = [\"a\"]\nhold_hours = 1\n",
        key.line()
    );
    let policy = Policy::parse(&text).unwrap();
    let vault = VaultId::from_bytes([2; 16]);
    let challenge = rejections_challenge(vault, &[request]).unwrap();
    let signed = Rejection {
        vault,
        requests: vec![request],
        proof: ApprovalProof::Ssh(key.sign(&challenge)),
    };
    assert_eq!(policy.rejected_by(&signed).unwrap(), "a");
}
