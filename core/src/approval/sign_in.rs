//! The answer of a passkey that is to sign a person in, which may be nobody's. A refusal is the same work whatever is wrong:
//! how long it takes tells nobody which passkeys have accounts.

use std::{collections::BTreeSet, hint::black_box};

use super::{Passkey, PasskeyPublicKey, WebAuthnAssertion};
use crate::fault::{Class, Fault};

/// The base point of Ed25519. Who has signed with it is nobody.
const ED25519: [u8; 32] = {
    let mut point = [0x66; 32];
    point[0] = 0x58;
    point
};
/// The base point of P-256.
const ES256: [u8; 65] = *b"\x04\
    \x6b\x17\xd1\xf2\xe1\x2c\x42\x47\xf8\xbc\xe6\xe5\x63\xa4\x40\xf2\
    \x77\x03\x7d\x81\x2d\xeb\x33\xa0\xf4\xa1\x39\x45\xd8\x98\xc2\x96\
    \x4f\xe3\x42\xe2\xfe\x1a\x7f\x9b\x8e\xe7\xeb\x4a\x7c\x0f\x9e\x16\
    \x2b\xce\x33\x57\x6b\x31\x5e\xce\xcb\xb6\x40\x68\x37\xbf\x51\xf5";

/// Checks that a passkey has signed `challenge`. A signature of each algorithm is verified in any case; where there is no
/// passkey, with keys that are nobody's, and for nothing.
///
/// # Errors
/// [`Class::Invalid`]; naming the field, where there is a passkey.
pub fn verify_sign_in(
    found: Option<&Passkey>,
    assertion: &WebAuthnAssertion,
    challenge: &[u8; 32],
) -> Result<(), Fault> {
    let nobodys = nobodys_passkey();
    let passkey = found.unwrap_or(&nobodys);
    let other = match passkey.public_key {
        PasskeyPublicKey::Es256(_) => PasskeyPublicKey::Ed25519(ED25519),
        PasskeyPublicKey::Ed25519(_) => PasskeyPublicKey::Es256(ES256.to_vec()),
    };
    let checked = assertion.verify(passkey, challenge);
    let _ = black_box(assertion.is_signed_by(&other));
    match found {
        Some(_) => checked.map(drop),
        None => Err(Fault::new(Class::Invalid, "there is no such passkey")),
    }
}

fn nobodys_passkey() -> Passkey {
    Passkey {
        name: String::new(),
        rp_id: String::new(),
        origins: BTreeSet::new(),
        credential_id: Vec::new(),
        public_key: PasskeyPublicKey::Es256(ES256.to_vec()),
        backup_eligible: false,
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;
    use crate::approval::{testing::TestPasskey, verified::VERIFIED};

    #[test]
    fn refusals__should_each_verify_a_signature_of_each_algorithm() {
        let challenge = [7; 32];
        let one = TestPasskey::new("treasurer@key-1", 1);
        let another = TestPasskey::new("treasurer@key-1", 2);
        let good = one.assert(&challenge);
        let synced = Passkey {
            backup_eligible: true,
            ..one.passkey.clone()
        };
        let ed25519 = Passkey {
            public_key: PasskeyPublicKey::Ed25519(ED25519),
            ..one.passkey.clone()
        };
        // They are points of their curves: refused is a signature, and not the key.
        for stand_in in [&nobodys_passkey().public_key, &ed25519.public_key] {
            let named = Passkey {
                public_key: stand_in.clone(),
                ..one.passkey.clone()
            };
            named.check().unwrap();
        }
        VERIFIED.with(|counts| counts.take());
        for (found, challenge, is_good) in [
            (Some(&one.passkey), challenge, true),
            (Some(&one.passkey), [8; 32], false),
            (Some(&another.passkey), challenge, false),
            (Some(&synced), challenge, false),
            (Some(&ed25519), challenge, false),
            (None, challenge, false),
            (None, [8; 32], false),
        ] {
            let checked = verify_sign_in(found, &good, &challenge);
            assert_eq!(checked.is_ok(), is_good, "{checked:?}");
            assert_eq!(VERIFIED.with(|counts| counts.take()), (1, 1), "{found:?}");
        }
    }
}
