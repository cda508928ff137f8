//! Proofs that other programs make.

#![allow(non_snake_case)]

use std::{collections::BTreeMap, fs, process::Command};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;

use super::{
    testing::{TestSshKey, TestSshKind},
    *,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Vector {
    name: String,
    rp_id: String,
    origin: String,
    challenge: String,
    spki: String,
    backup_eligible: bool,
    authenticator_data: String,
    #[serde(rename = "clientDataJSON")]
    client_data_json: String,
    signature: String,
    good: bool,
}

impl Vector {
    /// As a signer judges it.
    fn judge(&self) -> Result<ProofFacts, Fault> {
        let bytes = |text: &str| hex::decode(text).unwrap();
        let credential_id = vec![1; 16];
        let key = ApproverKey::Passkey(Box::new(Passkey {
            name: self.name.clone(),
            rp_id: self.rp_id.clone(),
            origins: [self.origin.clone()].into(),
            credential_id: credential_id.clone(),
            public_key: PasskeyPublicKey::from_spki(&bytes(&self.spki)).unwrap(),
            backup_eligible: self.backup_eligible,
        }));
        let proof = ApprovalProof::WebAuthn {
            credential_id,
            assertion: WebAuthnAssertion {
                authenticator_data: bytes(&self.authenticator_data),
                client_data_json: bytes(&self.client_data_json),
                signature: bytes(&self.signature),
            },
        };
        let challenge: [u8; 32] = bytes(&self.challenge).try_into().unwrap();
        key.verify(&proof, &challenge)
    }
}

fn vectors(text: &str) -> Vec<Vector> {
    serde_json::from_str(text).unwrap()
}

/// Made and judged by python-fido2 2.2.1 (`tests/python/approval_vectors.py`).
#[test]
fn assertions_of_fido2__should_be_taken_when_the_user_was_present_and_verified() {
    let vectors = vectors(include_str!("../../../tests/vectors/approvals/fido2.json"));
    assert_eq!(vectors.len(), 10);
    for vector in vectors {
        let judged = vector.judge();
        assert_eq!(judged.is_ok(), vector.good, "{}: {judged:?}", vector.name);
    }
}

/// Made by passkey-client 0.6.0, or with its key, and judged by webauthn-rs-core 0.6.2
/// (`tests/vectors/approvals/README.md`). We take nothing that it refuses. What we refuse and it takes is listed, with why.
#[test]
fn assertions_of_passkey_client__should_be_judged_as_webauthn_rs_does_or_more_strictly() {
    let vectors = vectors(include_str!(
        "../../../tests/vectors/approvals/passkey-client.json"
    ));
    assert_eq!(vectors.len(), 30);
    let mut stricter = BTreeMap::from([
        ("a byte more", "authenticatorData"),
        ("challenge with padding", "clientDataJSON.challenge"),
        ("crossOrigin true", "clientDataJSON.crossOrigin"),
    ]);
    for vector in vectors {
        let judged = vector.judge();
        let name = vector.name.as_str();
        match stricter.remove(name) {
            Some(field) => {
                assert!(vector.good, "{name}");
                assert_eq!(judged.unwrap_err().path(), Some(field), "{name}");
            }
            None => assert_eq!(judged.is_ok(), vector.good, "{name}: {judged:?}"),
        }
    }
    assert!(stricter.is_empty(), "{stricter:?}");
}

#[test]
fn signatures_of_ssh_keygen__should_be_approvals_in_our_namespace() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new("ssh-keygen");
        let output = command.args(arguments).current_dir(folder.path()).output();
        let output = output.expect("ssh-keygen (Debian: openssh-client)");
        assert!(output.status.success(), "{output:?}");
    };
    run(&[
        "-q",
        "-t",
        "ed25519",
        "-N",
        "",
        "-f",
        "key",
        "-C",
        "treasurer",
    ]);
    let line = fs::read_to_string(folder.path().join("key.pub")).unwrap();
    let key = ApproverKey::parse(&line).unwrap();
    let challenge = [7; 32];
    let sign = |namespace: &str| {
        fs::write(folder.path().join("challenge"), challenge).unwrap();
        let _ = fs::remove_file(folder.path().join("challenge.sig"));
        run(&[
            "-q",
            "-Y",
            "sign",
            "-n",
            namespace,
            "-f",
            "key",
            "challenge",
        ]);
        fs::read_to_string(folder.path().join("challenge.sig")).unwrap()
    };
    let text = sign(SSH_NAMESPACE);
    let proof = ApprovalProof::Ssh(text.clone());
    assert_eq!(proof.key_id().unwrap(), key.id());
    assert_eq!(key.verify(&proof, &challenge), Ok(ProofFacts::Ssh));
    let problem = |text: &str, challenge: &[u8; 32]| {
        let fault = key.verify(&ApprovalProof::Ssh(text.to_owned()), challenge);
        fault.unwrap_err().message().to_owned()
    };
    let other = "signature: is not this key's signature of this approval";
    assert_eq!(problem(&text, &[8; 32]), other);
    let namespace = "signature: must be in the namespace covault-approval";
    assert_eq!(problem(&sign("file"), &challenge), namespace);
    for cut in [text.len() / 2, 0] {
        assert_eq!(
            problem(&text[..cut], &challenge),
            "signature: is not an SSH signature"
        );
    }
}

#[test]
fn keys_in_devices__should_approve_when_they_were_touched() {
    let challenge = [7; 32];
    for kind in [TestSshKind::DeviceEd25519, TestSshKind::DeviceP256] {
        // Numbers with and without a zero in front.
        for number in 0..8 {
            let mut device = TestSshKey::new(kind, number);
            let key = ApproverKey::parse(&device.line()).unwrap();
            for (flags, good) in [(1, true), (5, true), (4, false), (0, false)] {
                device.flags = flags;
                let proof = ApprovalProof::Ssh(device.sign(&challenge));
                assert_eq!(proof.key_id().unwrap(), key.id());
                let judged = key.verify(&proof, &challenge);
                assert_eq!(judged.is_ok(), good, "{kind:?} {flags}: {judged:?}");
                assert!(key.verify(&proof, &[8; 32]).is_err());
                // ssh-key, which verifies them by other code.
                let ApprovalProof::Ssh(text) = &proof else {
                    unreachable!()
                };
                let oracle = ssh_key::PublicKey::from_openssh(&device.line()).unwrap();
                let signature = text.parse().unwrap();
                oracle
                    .verify(SSH_NAMESPACE, &challenge, &signature)
                    .unwrap();
            }
        }
    }
}

/// Whatever is changed in the signature of a key in a device: ssh-key says the same as our own code.
#[test]
fn signatures_of_devices__should_be_judged_as_ssh_key_does() {
    let challenge = [7; 32];
    let device = TestSshKey::new(TestSshKind::DeviceP256, 1);
    let key = ApproverKey::parse(&device.line()).unwrap();
    let oracle = ssh_key::PublicKey::from_openssh(&device.line()).unwrap();
    let text = device.sign(&challenge);
    let base64: String = text.lines().filter(|line| !line.starts_with('-')).collect();
    let blob = BASE64_STANDARD.decode(base64).unwrap();
    let mut read = 0;
    for place in 0..blob.len() {
        for change in [1, 0x80, 0xff] {
            let mut blob = blob.clone();
            blob[place] ^= change;
            let base64 = BASE64_STANDARD.encode(blob);
            let lines: Vec<String> = base64
                .as_bytes()
                .chunks(70)
                .map(|line| String::from_utf8_lossy(line).into_owned())
                .collect();
            let lines = lines.join("\n");
            let text =
                format!("-----BEGIN SSH SIGNATURE-----\n{lines}\n-----END SSH SIGNATURE-----\n");
            let ours = key
                .verify(&ApprovalProof::Ssh(text.clone()), &challenge)
                .is_ok();
            let theirs = text.parse().is_ok_and(|signature| {
                read += 1;
                let judged = oracle.verify(SSH_NAMESPACE, &challenge, &signature);
                judged.is_ok()
            });
            // Theirs takes a version 0 too.
            let version = 6..10;
            assert!(
                ours == theirs || !ours && version.contains(&place),
                "{place} {change}"
            );
        }
    }
    assert!(read > 100, "{read}");
}
