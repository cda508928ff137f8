//! Enrolment: a link makes a passkey, whose line and eight words the page then shows (docs/approvals.md).

use axum::http::StatusCode;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_core::{
    approval::{ApproverLine, Passkey, PasskeyPublicKey},
    fault::{Class, Fault},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    ConsoleCall,
    lockout::TriedSecret,
    response::{self, PageError, PageResponse},
    sessions::{PATIENCE_MS, PasskeyAssertion},
    views,
};
use crate::config::PageOrigin;

pub fn page() -> Result<PageResponse, PageError> {
    PageResponse::page(&views::EnrolPage {
        shell: views::Shell::outside(),
    })
}

#[derive(Deserialize)]
struct LinkForm {
    link: String,
}

/// Whom the link enrols, and what the browser needs to make the passkey.
pub async fn begin(call: &ConsoleCall<'_>) -> Result<PageResponse, PageError> {
    let form: LinkForm = response::json(call)?;
    let accounts = call.gateway().accounts();
    let enrolment = try_link(call, &form.link, accounts.enrolment(&form.link)).await?;
    let mut challenge = [0; 32];
    // Nothing is concluded from its answer: no attestation is asked for. What proves the passkey comes next.
    call.console.api.entropy.fill(&mut challenge);
    let new = NewCredential {
        challenge,
        user: enrolment.id.as_bytes(),
        key_name: &enrolment.key_name,
        enrolled: &enrolment.enrolled,
    };
    Ok(PageResponse::json(&json!({
        "name": enrolment.name,
        "keyName": enrolment.key_name,
        "publicKey": new.options(&call.console.place),
    })))
}

/// A passkey that a browser is to make.
pub struct NewCredential<'a> {
    pub challenge: [u8; 32],
    /// The user's id.
    pub user: &'a [u8],
    pub key_name: &'a str,
    /// Credential ids of passkeys that the person has: their devices make no second one.
    pub enrolled: &'a [Vec<u8>],
}

impl NewCredential<'_> {
    /// What the browser needs.
    pub fn options(&self, place: &PageOrigin) -> Value {
        let id = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let enrolled = self.enrolled.iter();
        let enrolled: Vec<_> = enrolled
            .map(|known| json!({"type": "public-key", "id": id(known)}))
            .collect();
        json!({
            "challenge": id(&self.challenge),
            "rp": {"id": place.rp_id, "name": "Covault"},
            "user": {
                "id": id(self.user),
                "name": self.key_name,
                "displayName": self.key_name,
            },
            "pubKeyCredParams": [
                {"type": "public-key", "alg": -7},
                {"type": "public-key", "alg": -8},
            ],
            "excludeCredentials": enrolled,
            "authenticatorSelection": {
                "residentKey": "required",
                "requireResidentKey": true,
                "userVerification": "required",
            },
            "attestation": "none",
            "timeout": PATIENCE_MS,
        })
    }
}

/// A passkey that a browser has made.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewPasskey {
    pub key_name: String,
    credential_id: String,
    /// SubjectPublicKeyInfo in DER.
    public_key: String,
    backup_eligible: bool,
}

impl NewPasskey {
    /// As it is enrolled on pages of this place.
    ///
    /// # Errors
    /// 400 naming the field.
    pub fn passkey(&self, place: &PageOrigin) -> Result<Passkey, PageError> {
        let bytes = |name: &str, text: &str| {
            let decoded = BASE64_URL_SAFE_NO_PAD.decode(text);
            decoded.map_err(|_| Fault::field(name, "is not base64url"))
        };
        let passkey = Passkey {
            name: self.key_name.clone(),
            rp_id: place.rp_id.clone(),
            origins: [place.origin.clone()].into(),
            credential_id: bytes("credentialId", &self.credential_id)?,
            public_key: PasskeyPublicKey::from_spki(&bytes("publicKey", &self.public_key)?)?,
            backup_eligible: self.backup_eligible,
        };
        passkey.check()?;
        Ok(passkey)
    }

    /// What it has to sign: every field of its line.
    ///
    /// # Errors
    /// As [`NewPasskey::passkey`].
    pub fn proof_options(&self, place: &PageOrigin) -> Result<PageResponse, PageError> {
        let challenge = self.passkey(place)?.enrol_challenge()?;
        Ok(PageResponse::json(&json!({
            "publicKey": {
                "challenge": BASE64_URL_SAFE_NO_PAD.encode(challenge),
                "rpId": place.rp_id,
                "allowCredentials": [{"type": "public-key", "id": self.credential_id}],
                "userVerification": "required",
                "timeout": PATIENCE_MS,
            },
        })))
    }

    /// Its line, when `proof` is its own.
    ///
    /// # Errors
    /// 400 naming what is wrong.
    pub fn line(
        &self,
        place: &PageOrigin,
        proof: &PasskeyAssertion,
    ) -> Result<ApproverLine, PageError> {
        let passkey = self.passkey(place)?;
        let (credential_id, possession, _) = proof.decode()?;
        if credential_id != passkey.credential_id {
            let problem = "another passkey has signed than was made: begin again";
            return Err(PageError::new(StatusCode::BAD_REQUEST, problem));
        }
        Ok(ApproverLine {
            passkey,
            possession,
        })
    }
}

/// What the new passkey has to sign: every field of its line.
pub fn prove(call: &ConsoleCall<'_>) -> Result<PageResponse, PageError> {
    let new: NewPasskey = response::json(call)?;
    new.proof_options(&call.console.place)
}

#[derive(Deserialize)]
struct EnrolForm {
    link: String,
    passkey: NewPasskey,
    credential: PasskeyAssertion,
}

/// Checks the proof, uses the link up, and tells the line and its words.
pub async fn finish(call: &ConsoleCall<'_>) -> Result<PageResponse, PageError> {
    let form: EnrolForm = response::json(call)?;
    let line = form.passkey.line(&call.console.place, &form.credential)?;
    let shown = (line.line()?, line.fingerprint()?.join(" "));
    let accounts = call.gateway().accounts();
    try_link(
        call,
        &form.link,
        accounts.enrol(&form.link, line, call.browser()),
    )
    .await?;
    Ok(PageResponse::json(
        &json!({"line": shown.0, "words": shown.1}),
    ))
}

/// Counts links that cannot be used.
async fn try_link<T>(
    call: &ConsoleCall<'_>,
    link: &str,
    tried: impl Future<Output = Result<T, Fault>>,
) -> Result<T, PageError> {
    let link = TriedSecret::link(link);
    call.console
        .lock_out
        .check(link, call.address, call.now_ms())?;
    Ok(tried.await.inspect_err(|fault| {
        if *fault.class() == Class::Unauthenticated {
            call.wrong(link);
        }
    })?)
}
