//! Signing in and out, and whose session a request has.

use axum::http::{HeaderValue, StatusCode, header, request::Parts};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_actors::users::{SignInAnswer, SignOut, SignedIn};
use covault_core::{approval::WebAuthnAssertion, fault::Class, user::SESSION_MS};
use serde::Deserialize;
use serde_json::json;
use subtle::ConstantTimeEq as _;

use super::{
    ConsoleCall,
    lockout::TriedSecret,
    response::{self, PageError, PageResponse},
    views,
};

/// `__Host-`: browsers take it with Secure, for this host alone, and from no other host of the same domain.
pub const COOKIE: &str = "__Host-covault-session";
/// What it is given with.
pub const TERMS: &str = "Path=/; Secure; HttpOnly; SameSite=Strict";
/// How long the browser may wait for the person, in milliseconds.
pub const PATIENCE_MS: u64 = 120_000;

/// What `navigator.credentials.get` gives, as the script sends it.
#[derive(Deserialize)]
pub struct PasskeyAssertion {
    id: String,
    response: CredentialResponse,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CredentialResponse {
    authenticator_data: String,
    #[serde(rename = "clientDataJSON")]
    client_data_json: String,
    signature: String,
    #[serde(default)]
    user_handle: Option<String>,
}

impl PasskeyAssertion {
    /// Credential id, assertion and user handle.
    ///
    /// # Errors
    /// When it is not base64url.
    pub fn decode(&self) -> Result<(Vec<u8>, WebAuthnAssertion, Vec<u8>), PageError> {
        let bytes = |text: &str| {
            let decoded = BASE64_URL_SAFE_NO_PAD.decode(text);
            decoded.map_err(|_| {
                PageError::new(
                    StatusCode::BAD_REQUEST,
                    "what the passkey gave is not base64url",
                )
            })
        };
        let assertion = WebAuthnAssertion {
            authenticator_data: bytes(&self.response.authenticator_data)?,
            client_data_json: bytes(&self.response.client_data_json)?,
            signature: bytes(&self.response.signature)?,
        };
        let handle = self.response.user_handle.as_deref().unwrap_or_default();
        Ok((bytes(&self.id)?, assertion, bytes(handle)?))
    }
}

/// The cookie of this name, where there is exactly one.
pub fn cookie_named<'a>(head: &'a Parts, name: &str) -> Option<&'a str> {
    let lines = head.headers.get_all(header::COOKIE).iter();
    let pairs = lines.filter_map(|line| line.to_str().ok());
    let pairs = pairs.flat_map(|line| line.split(';'));
    let mut found = pairs.filter_map(|pair| {
        let (found, value) = pair.trim().split_once('=')?;
        (found == name).then_some(value)
    });
    let cookie = found.next()?;
    found.next().is_none().then_some(cookie)
}

/// The cookie of the session, where there is exactly one.
fn cookie<'a>(call: &'a ConsoleCall<'_>) -> Option<&'a str> {
    cookie_named(call.head, COOKIE)
}

/// Who asks. An open page listens by itself: that keeps no session alive.
///
/// # Errors
/// 401 without a session that holds.
pub async fn signed_in(call: &ConsoleCall<'_>) -> Result<SignedIn, PageError> {
    let cookie = cookie(call).unwrap_or_default();
    let counts = call.head.uri.path() != "/events";
    Ok(call.gateway().accounts().session(cookie, counts).await?)
}

/// Whether they still may.
///
/// # Errors
/// 401 when the session or the account has ended or changed.
pub async fn recheck(call_cookie: &str, console: &super::Console, who: &SignedIn) -> bool {
    let accounts = console.api.gateway.accounts();
    accounts.recheck(who, call_cookie).await.is_ok()
}

/// The cookie, to look again later.
pub fn cookie_of(call: &ConsoleCall<'_>) -> String {
    cookie(call).unwrap_or_default().to_owned()
}

/// Refuses a form that no page of this session has sent.
///
/// # Errors
/// 403.
pub fn check_form(signed_in: &SignedIn, form_token: &str) -> Result<(), PageError> {
    check_form_token(&views::form_token_of(signed_in), form_token)
}

/// Refuses a form that has another token than the session's.
///
/// # Errors
/// 403.
pub fn check_form_token(expected: &str, given: &str) -> Result<(), PageError> {
    if bool::from(expected.as_bytes().ct_eq(given.as_bytes())) {
        return Ok(());
    }
    Err(PageError::new(
        StatusCode::FORBIDDEN,
        "this form is of another session: load the page again",
    ))
}

pub async fn page(call: &ConsoleCall<'_>) -> Result<PageResponse, PageError> {
    if signed_in(call).await.is_ok() {
        return Ok(PageResponse::see("/"));
    }
    PageResponse::page(&views::SignInPage {
        shell: views::Shell::outside(),
    })
}

/// What a passkey has to sign. No name is asked for: the passkey says whose it is, so nobody learns who has an account.
pub async fn begin(call: &ConsoleCall<'_>) -> Result<PageResponse, PageError> {
    let accounts = call.gateway().accounts();
    let challenge = accounts.sign_in_challenge(call.origin()).await?;
    Ok(PageResponse::json(&json!({
        "token": challenge.token,
        "publicKey": {
            "challenge": BASE64_URL_SAFE_NO_PAD.encode(challenge.challenge),
            "rpId": call.console.place.rp_id,
            "allowCredentials": [],
            "userVerification": "required",
            "timeout": PATIENCE_MS,
        },
    })))
}

#[derive(Deserialize)]
struct SignInForm {
    token: String,
    credential: PasskeyAssertion,
}

pub async fn sign_in(call: &ConsoleCall<'_>) -> Result<PageResponse, PageError> {
    let form: SignInForm = response::json(call)?;
    let (credential_id, assertion, user_handle) = form.credential.decode()?;
    let accounts = call.gateway().accounts();
    let tried = TriedSecret::passkey(&credential_id);
    let lock_out = &call.console.lock_out;
    lock_out.check(tried, call.address, call.now_ms())?;
    let answer = SignInAnswer {
        token: form.token,
        credential_id,
        user_handle,
        assertion,
    };
    // The session that the browser had ends: what someone else has put there never becomes this one.
    let begun = accounts.sign_in(call.origin(), &answer, cookie(call), call.browser());
    let secret = match begun.await {
        Ok(secret) => secret,
        Err(fault) => {
            if *fault.class() == Class::Unauthenticated {
                call.wrong(tried);
            }
            return Err(fault.into());
        }
    };
    lock_out.right(tried, call.address);
    let seconds = SESSION_MS / 1000;
    let line = format!("{COOKIE}={}; {TERMS}; Max-Age={seconds}", *secret);
    let mut value = HeaderValue::from_str(&line).map_err(covault_core::fault::Fault::bug)?;
    value.set_sensitive(true);
    Ok(PageResponse::json(&json!({"next": "/"})).with_header(header::SET_COOKIE, value))
}

/// Ends all other sessions of the person.
pub async fn sign_out_elsewhere(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    end(call, signed_in, SignOut::Elsewhere).await?;
    Ok(PageResponse::see("/account"))
}

async fn end(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    which: SignOut,
) -> Result<(), PageError> {
    let fields: Vec<_> = form_urlencoded::parse(&call.body).collect();
    let token = fields.iter().find(|(name, _)| name == "form_token");
    check_form(signed_in, token.map_or("", |(_, value)| value))?;
    let (accounts, cookie) = (call.gateway().accounts(), cookie(call).unwrap_or_default());
    let ended = accounts.sign_out(signed_in, cookie, which, call.browser());
    Ok(ended.await?)
}

pub async fn sign_out(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    end(call, signed_in, SignOut::Here).await?;
    let line = format!("{COOKIE}=; {TERMS}; Max-Age=0");
    let value = HeaderValue::from_str(&line).map_err(covault_core::fault::Fault::bug)?;
    Ok(PageResponse::see("/sign-in").with_header(header::SET_COOKIE, value))
}
