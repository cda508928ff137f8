//! Passkeys and SSH keys for tests, whose devices do what they are told.

#![allow(clippy::expect_used, reason = "a test stops at what cannot be")]

use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use p256::ecdsa::signature::Signer as _;
use sha2::{Digest as _, Sha256};

use super::{
    ApprovalProof, ApproverLine, GivenApproval, Passkey, PasskeyPublicKey, SSH_NAMESPACE,
    WebAuthnAssertion,
};
use crate::order::{NodeId, SigningOrder};

/// The rp id and the origin of [`TestPasskey::new`].
pub const RP_ID: &str = "console.example.com";
/// See [`RP_ID`].
pub const ORIGIN: &str = "https://console.example.com";
/// User present and verified.
const FLAGS: u8 = 0b101;

/// A private key.
#[derive(Clone)]
enum TestKey {
    P256(p256::ecdsa::SigningKey),
    Ed25519(ed25519_dalek::SigningKey),
}

impl TestKey {
    fn p256(seed: &[u8]) -> Self {
        Self::P256(p256::ecdsa::SigningKey::from_slice(seed).expect("a key"))
    }

    fn ed25519(seed: &[u8]) -> Self {
        let seed = seed.try_into().expect("32 bytes");
        Self::Ed25519(ed25519_dalek::SigningKey::from_bytes(&seed))
    }

    /// 65 bytes of P-256, 32 of Ed25519.
    fn public(&self) -> Vec<u8> {
        match self {
            Self::P256(key) => {
                let point = key.verifying_key().to_encoded_point(false);
                point.as_bytes().to_vec()
            }
            Self::Ed25519(key) => key.verifying_key().to_bytes().to_vec(),
        }
    }
}

/// A passkey with its private key.
#[derive(Clone)]
pub struct TestPasskey {
    key: TestKey,
    /// What is enrolled.
    pub passkey: Passkey,
}

impl TestPasskey {
    /// One of this name and number, ES256, that no cloud can copy.
    pub fn new(name: &str, number: u8) -> Self {
        let seed = Sha256::digest([name.as_bytes(), &[number]].concat());
        let key = TestKey::p256(&seed);
        let passkey = Passkey {
            name: name.to_owned(),
            rp_id: RP_ID.to_owned(),
            origins: [ORIGIN.to_owned()].into(),
            credential_id: seed.iter().rev().copied().collect(),
            public_key: PasskeyPublicKey::Es256(key.public()),
            backup_eligible: false,
        };
        Self { key, passkey }
    }

    /// One of this name and number, Ed25519, that no cloud can copy.
    pub fn ed25519(name: &str, number: u8) -> Self {
        let mut one = Self::new(name, number);
        one.key = TestKey::ed25519(&Sha256::digest(&one.passkey.credential_id));
        let public = one.key.public().try_into().expect("32 bytes");
        one.passkey.public_key = PasskeyPublicKey::Ed25519(public);
        one
    }

    /// The same, which a cloud can copy.
    #[must_use]
    pub fn synced(mut self) -> Self {
        self.passkey.backup_eligible = true;
        self
    }

    /// The same, of another page.
    #[must_use]
    pub fn at(mut self, rp_id: &str, origins: &[&str]) -> Self {
        self.passkey.rp_id = rp_id.to_owned();
        self.passkey.origins = origins.iter().map(|&origin| origin.to_owned()).collect();
        self
    }

    /// Its private key in PKCS#8, for a browser's virtual authenticator; `None` where it is no ES256 one.
    pub fn pkcs8(&self) -> Option<Vec<u8>> {
        // A key of P-256 (RFC 5915 in RFC 5958) without its public one.
        const HEAD: [u8; 35] = [
            0x30, 0x41, 2, 1, 0, 0x30, 0x13, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 8, 0x2a,
            0x86, 0x48, 0xce, 0x3d, 3, 1, 7, 4, 0x27, 0x30, 0x25, 2, 1, 1, 4, 0x20,
        ];
        match &self.key {
            TestKey::P256(key) => Some([&HEAD, key.to_bytes().as_slice()].concat()),
            TestKey::Ed25519(_) => None,
        }
    }

    /// Signs what is given, whatever it is.
    pub fn sign(
        &self,
        authenticator_data: Vec<u8>,
        client_data_json: Vec<u8>,
    ) -> WebAuthnAssertion {
        let hash = Sha256::digest(&client_data_json);
        let message = [authenticator_data.as_slice(), &hash].concat();
        let signature = match &self.key {
            TestKey::P256(key) => {
                let signature: p256::ecdsa::Signature = key.sign(&message);
                signature.to_der().as_bytes().to_vec()
            }
            TestKey::Ed25519(key) => key.sign(&message).to_bytes().to_vec(),
        };
        WebAuthnAssertion {
            authenticator_data,
            client_data_json,
            signature,
        }
    }

    /// The 37 bytes of a device.
    pub fn authenticator_data(&self) -> Vec<u8> {
        let flags = FLAGS
            | if self.passkey.backup_eligible {
                0b11000
            } else {
                0
            };
        let rp_id = Sha256::digest(&self.passkey.rp_id);
        [rp_id.as_slice(), &[flags], &0_u32.to_be_bytes()].concat()
    }

    /// The JSON of a browser.
    pub fn client_data(&self, challenge: &[u8; 32]) -> String {
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(challenge);
        let origin = self.passkey.origins.first().map_or("", String::as_str);
        format!(
            r#"{{"type":"webauthn.get","challenge":"{challenge}","origin":"{origin}","crossOrigin":false}}"#
        )
    }

    /// A good assertion.
    pub fn assert(&self, challenge: &[u8; 32]) -> WebAuthnAssertion {
        self.sign(
            self.authenticator_data(),
            self.client_data(challenge).into_bytes(),
        )
    }

    /// A good approval of one order.
    pub fn approve(&self, order: &SigningOrder) -> GivenApproval {
        let challenge = order.approval().id().expect("an id");
        self.given(self.assert(&challenge))
    }

    /// An approval with this assertion, of one order.
    pub fn given(&self, assertion: WebAuthnAssertion) -> GivenApproval {
        GivenApproval {
            list: Vec::new(),
            proof: ApprovalProof::WebAuthn {
                credential_id: self.passkey.credential_id.clone(),
                assertion,
            },
        }
    }

    /// The line that enrols it.
    pub fn line(&self) -> ApproverLine {
        let challenge = self.passkey.enrol_challenge().expect("a challenge");
        ApproverLine {
            passkey: self.passkey.clone(),
            possession: self.assert(&challenge),
        }
    }
}

/// The kinds of SSH keys that approve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestSshKind {
    /// `ssh-ed25519`; may be a client signer's node key, too.
    Ed25519,
    /// `sk-ssh-ed25519@openssh.com`.
    DeviceEd25519,
    /// `sk-ecdsa-sha2-nistp256@openssh.com`.
    DeviceP256,
}

impl TestSshKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ed25519, Self::DeviceEd25519, Self::DeviceP256];

    fn name(self) -> &'static str {
        match self {
            Self::Ed25519 => "ssh-ed25519",
            Self::DeviceEd25519 => "sk-ssh-ed25519@openssh.com",
            Self::DeviceP256 => "sk-ecdsa-sha2-nistp256@openssh.com",
        }
    }
}

/// An SSH key with its private key, which signs as `ssh-keygen -Y sign` does (OpenSSH's PROTOCOL.sshsig and
/// PROTOCOL.u2f).
#[derive(Clone)]
pub struct TestSshKey {
    kind: TestSshKind,
    key: TestKey,
    /// The namespace that it signs in.
    pub namespace: String,
    /// Of a key in a device: what it says of its user. The lowest bit: the user has touched it.
    pub flags: u8,
    /// Of a key in a device, `ssh:` as a rule.
    pub application: String,
}

impl TestSshKey {
    /// One of this kind and number.
    pub fn new(kind: TestSshKind, number: u8) -> Self {
        let seed = Sha256::digest([b"ssh".as_slice(), &[number]].concat());
        let key = match kind {
            TestSshKind::DeviceP256 => TestKey::p256(&seed),
            _ => TestKey::ed25519(&seed),
        };
        Self {
            kind,
            key,
            namespace: SSH_NAMESPACE.to_owned(),
            flags: 1,
            application: "ssh:".to_owned(),
        }
    }

    /// The line of its `.pub` file.
    pub fn line(&self) -> String {
        let key = BASE64_STANDARD.encode(self.public());
        format!("{} {key} treasurer", self.kind.name())
    }

    fn public(&self) -> Vec<u8> {
        let name = string(self.kind.name().as_bytes());
        let key = string(&self.key.public());
        match self.kind {
            TestSshKind::Ed25519 => [name, key].concat(),
            TestSshKind::DeviceEd25519 => [name, key, string(self.application.as_bytes())].concat(),
            TestSshKind::DeviceP256 => {
                let curve = string(b"nistp256");
                [name, curve, key, string(self.application.as_bytes())].concat()
            }
        }
    }

    /// Signs a challenge; the text of the signature.
    pub fn sign(&self, challenge: &[u8]) -> String {
        let namespace = self.namespace.as_bytes();
        let hash = Sha256::digest(challenge);
        let parts = [namespace, b"", b"sha256", &hash].map(string).concat();
        let signed = [b"SSHSIG".as_slice(), &parts].concat();
        let trailer = [[self.flags].as_slice(), &[0, 0, 0, 9]].concat();
        let device = [
            Sha256::digest(&self.application).as_slice(),
            &trailer,
            &Sha256::digest(&signed),
        ]
        .concat();
        let (message, trailer) = match self.kind {
            TestSshKind::Ed25519 => (signed, Vec::new()),
            _ => (device, trailer),
        };
        let signature = match &self.key {
            TestKey::Ed25519(key) => key.sign(&message).to_bytes().to_vec(),
            TestKey::P256(key) => {
                let signature: p256::ecdsa::Signature = key.sign(&message);
                let (r, s) = signature.split_bytes();
                [number(&r), number(&s)].concat()
            }
        };
        let name = string(self.kind.name().as_bytes());
        let signature = [name, string(&signature), trailer].concat();
        let blob = [
            b"SSHSIG".as_slice(),
            &1_u32.to_be_bytes(),
            &string(&self.public()),
            &[namespace, b"", b"sha256"].map(string).concat(),
            &string(&signature),
        ]
        .concat();
        let base64 = BASE64_STANDARD.encode(blob);
        let lines: Vec<&str> = base64
            .as_bytes()
            .chunks(70)
            .map(|line| std::str::from_utf8(line).expect("base64"))
            .collect();
        let lines = lines.join("\n");
        format!("-----BEGIN SSH SIGNATURE-----\n{lines}\n-----END SSH SIGNATURE-----\n")
    }

    /// A good approval of one order.
    pub fn approve(&self, order: &SigningOrder) -> GivenApproval {
        let challenge = order.approval().id().expect("an id");
        GivenApproval {
            list: Vec::new(),
            proof: ApprovalProof::Ssh(self.sign(&challenge)),
        }
    }

    /// The same, as a client signer's. Of `ssh-ed25519` alone.
    pub fn approve_as_node(&self, order: &SigningOrder) -> GivenApproval {
        let challenge = order.approval().id().expect("an id");
        let TestKey::Ed25519(key) = &self.key else {
            unreachable!("a node's key is Ed25519");
        };
        let signature = key.sign(&ApprovalProof::node_statement(&challenge));
        GivenApproval {
            list: Vec::new(),
            proof: ApprovalProof::Node {
                node: NodeId(key.verifying_key().to_bytes()),
                signature: signature.to_bytes().to_vec(),
            },
        }
    }
}

/// A string of SSH: its length, then itself.
fn string(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("short");
    [&length.to_be_bytes(), bytes].concat()
}

/// A number of SSH, which is signed.
fn number(bytes: &[u8]) -> Vec<u8> {
    let begin = bytes.iter().take_while(|byte| **byte == 0).count();
    let (_, bytes) = bytes.split_at(begin);
    match bytes.first() {
        Some(first) if *first >= 0x80 => string(&[&[0], bytes].concat()),
        _ => string(bytes),
    }
}
