//! Target for what an order carries of approvals, and for lines that enrol.

use std::sync::OnceLock;

use covault_core::{
    amount::U256,
    approval::{
        Approval, ApprovalProof, ApproverKey, ApproverLine, Approvers, GivenApproval,
        OrderApprovals, VerifiedApprovals, list_challenge,
        testing::{TestPasskey, TestSshKey, TestSshKind},
    },
    fault::Fault,
    ids::{RequestId, VaultId},
    networks::Network,
};

use super::{Finding, FuzzInput, finding};
use crate::message;

const NOW_MS: u64 = 1_000;

fn passkeys() -> [TestPasskey; 3] {
    let [one, other] = ["treasurer", "director"].map(|name| TestPasskey::new(name, 1));
    [one, other, TestPasskey::ed25519("auditor", 1)]
}

fn ssh_keys() -> [TestSshKey; 3] {
    let [plain, device, p256] = TestSshKind::ALL;
    [(plain, 1), (device, 2), (p256, 3)].map(|(kind, number)| TestSshKey::new(kind, number))
}

fn approvers() -> &'static Result<Approvers, Fault> {
    static APPROVERS: OnceLock<Result<Approvers, Fault>> = OnceLock::new();
    APPROVERS.get_or_init(|| {
        let mut approvers = Approvers::default();
        for passkey in passkeys() {
            let key = ApproverKey::Passkey(Box::new(passkey.passkey.clone()));
            approvers.add(&passkey.passkey.name, key)?;
        }
        for key in ssh_keys() {
            approvers.add("controller", ApproverKey::parse(&key.line())?)?;
        }
        Ok(approvers)
    })
}

/// What is to be approved, with the two fields that the approvals name.
fn approval_of(request: u8, given: &OrderApprovals) -> Approval {
    Approval {
        vault: VaultId::from_bytes([2; 16]),
        root_public_key: vec![3; 33],
        request: RequestId::from_bytes([request; 16]),
        network: Network::Evm,
        address: "0x37b5ba07902c51ef69dE0BbEa42A11a1A94e3ff6".to_owned(),
        payload_sha256: [5; 32],
        most_fee: given.most_fee,
        valid_until_ms: given.valid_until_ms,
    }
}

fn verify(request: u8, given: &OrderApprovals) -> Result<VerifiedApprovals, Fault> {
    let approvers = approvers().as_ref().map_err(Clone::clone)?;
    approvers.verify(&approval_of(request, given), given, U256::ZERO, NOW_MS)
}

/// Verifies BCS of [`OrderApprovals`] as a signer does: what passes for one request passes for no other. A
/// text is read as a line that enrols.
///
/// # Errors
/// What should not have happened.
pub fn approval(data: &[u8]) -> Result<(), Finding> {
    if let Ok(line) = std::str::from_utf8(data) {
        drop(ApproverKey::parse(line));
        if let Ok(parsed) = ApproverLine::parse(line) {
            let again = parsed.line().and_then(|line| ApproverLine::parse(&line));
            if again.as_ref() != Ok(&parsed) {
                return finding("a line reads otherwise when it was written again");
            }
        }
    }
    let Some(given) = message::decode::<OrderApprovals>(data) else {
        return Ok(());
    };
    let Ok(verified) = verify(1, &given) else {
        return Ok(());
    };
    if !verified.approved.is_empty() && verify(9, &given).is_ok() {
        return finding("approvals pass for another request");
    }
    Ok(())
}

/// What honest people give.
///
/// # Errors
/// [`covault_core::fault::Class::Bug`] when a field cannot be serialized.
pub fn approval_samples() -> Result<Vec<FuzzInput>, Fault> {
    let mut given = OrderApprovals {
        most_fee: 7,
        valid_until_ms: NOW_MS + 1,
        given: Vec::new(),
    };
    let id = approval_of(1, &given).id()?;
    let mut list = vec![[1; 32], id, [0xfe; 32]];
    list.sort_unstable();
    let listed = list_challenge(&list)?;
    let [one, other, third] = passkeys();
    given.given = vec![
        one.given(one.assert(&id)),
        GivenApproval {
            list,
            ..other.given(other.assert(&listed))
        },
        third.given(third.assert(&id)),
    ];
    let mut samples = vec![message::encode(&given)?, one.line().line()?.into_bytes()];
    for key in ssh_keys() {
        let (list, proof) = (Vec::new(), ApprovalProof::Ssh(key.sign(&id)));
        given.given = vec![GivenApproval { list, proof }];
        samples.push(message::encode(&given)?);
        samples.push(key.line().into_bytes());
    }
    Ok(samples)
}
