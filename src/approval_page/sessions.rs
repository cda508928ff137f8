//! Signing in to the page with a passkey of the node's policy. Sessions are in memory: a restart ends them.

use std::collections::HashMap;

use askama::Template;
use axum::http::{HeaderValue, header, request::Parts};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_core::{
    approval::{ApprovalProof, ApproverKey, ProofFacts, sign_in_challenge},
    fault::{Class, Fault},
    port::Entropy,
};
use hmac::{Hmac, Mac as _};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::PageCall;
use crate::console::{
    lockout::TriedSecret,
    response::{self, PageError, PageResponse},
    sessions::{PATIENCE_MS, PasskeyAssertion, TERMS, check_form_token, cookie_named},
    views::Shell,
};

/// Another name than the console's: on one host, cookies know no ports.
pub const COOKIE: &str = "__Host-covault-approve";
/// How long a session lasts without a request, and at most, in milliseconds.
const IDLE_MS: u64 = 30 * 60 * 1000;
const LONGEST_MS: u64 = 12 * 60 * 60 * 1000;
/// How long a challenge can be answered, in milliseconds.
const CHALLENGE_MS: u64 = 5 * 60 * 1000;
/// Sessions at once; the one that was used least lately ends for a new one.
const MOST: usize = 256;
/// Bytes of a challenge's token before its mark: a nonce, and when it ends.
const MARKED: usize = 40;

/// The sessions, and what challenges are marked with.
pub struct PageSessions {
    key: Zeroizing<[u8; 32]>,
    state: Mutex<SignInState>,
}

#[derive(Default)]
struct SignInState {
    /// By SHA-256 of the secret.
    sessions: HashMap<[u8; 32], PageSession>,
    /// Nonces that were used, and when they end. Only who has a passkey of the policy uses one.
    used: HashMap<[u8; 32], u64>,
}

/// A person who has signed in.
#[derive(Clone)]
pub struct PageSession {
    /// The name in the policy.
    pub person: String,
    /// What the forms of its pages hold.
    pub form_token: String,
    credential_id: Vec<u8>,
    began_ms: u64,
    seen_ms: u64,
}

fn not_signed_in(cause: &str) -> Fault {
    let sentence = "not signed in: no passkey of this node's policy that was made for this page, or too late; try again";
    Fault::new(Class::Unauthenticated, sentence).caused_by(cause)
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}

fn secret(entropy: &dyn Entropy) -> Zeroizing<String> {
    let mut bytes = Zeroizing::new([0; 32]);
    entropy.fill(&mut *bytes);
    Zeroizing::new(BASE64_URL_SAFE_NO_PAD.encode(*bytes))
}

impl PageSessions {
    /// None yet.
    pub fn new(entropy: &dyn Entropy) -> Self {
        let mut key = Zeroizing::new([0; 32]);
        entropy.fill(&mut *key);
        Self {
            key,
            state: Mutex::default(),
        }
    }

    fn mark(&self, bytes: &[u8]) -> Result<Hmac<Sha256>, Fault> {
        let mut mark = Hmac::<Sha256>::new_from_slice(self.key.as_slice()).map_err(Fault::bug)?;
        mark.update(b"covault/approval-page-challenge");
        mark.update(bytes);
        Ok(mark)
    }

    /// A nonce, and the token that brings it back. Nothing is stored of it.
    fn challenge(&self, entropy: &dyn Entropy, now_ms: u64) -> Result<([u8; 32], String), Fault> {
        let mut nonce = [0; 32];
        entropy.fill(&mut nonce);
        let ends_ms = now_ms.saturating_add(CHALLENGE_MS);
        let mut token = [nonce.as_slice(), &ends_ms.to_be_bytes()].concat();
        let mark = self.mark(&token)?.finalize().into_bytes();
        token.extend_from_slice(&mark);
        Ok((nonce, BASE64_URL_SAFE_NO_PAD.encode(token)))
    }

    /// The nonce of a token of ours, and when it ends.
    fn nonce(&self, token: &str, now_ms: u64) -> Result<([u8; 32], u64), Fault> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(token);
        let bytes = bytes.map_err(|_| not_signed_in("the challenge is not base64"))?;
        let split = bytes.split_at_checked(MARKED);
        let (marked, mark) = split.ok_or_else(|| not_signed_in("the challenge is too short"))?;
        let genuine = self.mark(marked)?.verify_slice(mark);
        genuine.map_err(|_| not_signed_in("the challenge was not issued here"))?;
        let split = marked.split_first_chunk::<32>();
        let (nonce, ends) = split.ok_or_else(|| Fault::bug("a challenge without a nonce"))?;
        let ends_ms = u64::from_be_bytes(ends.try_into().map_err(Fault::bug)?);
        if now_ms >= ends_ms {
            return Err(not_signed_in("the challenge has expired"));
        }
        Ok((*nonce, ends_ms))
    }

    /// Uses a nonce up.
    fn use_up(&self, nonce: [u8; 32], ends_ms: u64, now_ms: u64) -> Result<(), Fault> {
        let mut state = self.state.lock();
        state.used.retain(|_, ends_ms| now_ms < *ends_ms);
        match state.used.insert(nonce, ends_ms) {
            None => Ok(()),
            Some(_) => Err(not_signed_in("the challenge was used before")),
        }
    }

    fn begin(&self, secret: &str, session: PageSession, before: Option<&str>) {
        let mut state = self.state.lock();
        let sessions = &mut state.sessions;
        if let Some(before) = before {
            sessions.remove(&hash(before));
        }
        if sessions.len() >= MOST {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.seen_ms);
            if let Some(oldest) = oldest.map(|(hash, _)| *hash) {
                sessions.remove(&oldest);
            }
        }
        sessions.insert(hash(secret), session);
    }

    /// The session of a secret, while it lasts.
    fn find(&self, secret: &str, now_ms: u64) -> Option<PageSession> {
        let mut state = self.state.lock();
        let lasts = |session: &PageSession| {
            now_ms.saturating_sub(session.seen_ms) < IDLE_MS
                && now_ms.saturating_sub(session.began_ms) < LONGEST_MS
        };
        state.sessions.retain(|_, session| lasts(session));
        let session = state.sessions.get_mut(&hash(secret))?;
        session.seen_ms = now_ms;
        Some(session.clone())
    }

    fn end(&self, secret: &str) {
        self.state.lock().sessions.remove(&hash(secret));
    }
}

/// Who asks.
///
/// # Errors
/// 401 without a session that holds, and when the passkey is in the policy no longer.
pub fn signed_in(call: &PageCall<'_>) -> Result<PageSession, PageError> {
    let page = call.page;
    let found = || {
        let session = page
            .sessions
            .find(cookie_named(call.head, COOKIE)?, call.now_ms())?;
        let (owner, _) = page.people.find(&session.credential_id)?;
        (owner == session.person).then_some(session)
    };
    let session = found();
    Ok(session.ok_or_else(|| Fault::new(Class::Unauthenticated, "sign in again"))?)
}

/// Whether a request has a session's cookie.
pub fn is_known(page: &super::ApprovalPage, head: &Parts) -> bool {
    let state = page.sessions.state.lock();
    let cookie = cookie_named(head, COOKIE);
    cookie.is_some_and(|secret| state.sessions.contains_key(&hash(secret)))
}

/// Refuses a form that no page of this session has sent.
///
/// # Errors
/// 403.
pub fn check_form(session: &PageSession, given: &str) -> Result<(), PageError> {
    check_form_token(&session.form_token, given)
}

#[derive(Template)]
#[template(path = "node-sign-in.html")]
struct NodeSignInPage {
    shell: Shell,
}

pub fn page(call: &PageCall<'_>) -> Result<PageResponse, PageError> {
    if signed_in(call).is_ok() {
        return Ok(PageResponse::see("/"));
    }
    let shell = call.outside();
    PageResponse::page(&NodeSignInPage { shell })
}

/// What a passkey has to sign.
pub fn begin(call: &PageCall<'_>) -> Result<PageResponse, PageError> {
    let page = call.page;
    let (nonce, token) = page
        .sessions
        .challenge(page.entropy.as_ref(), call.now_ms())?;
    let challenge = sign_in_challenge(&page.place.origin, &nonce)?;
    Ok(PageResponse::json(&json!({
        "token": token,
        "publicKey": {
            "challenge": BASE64_URL_SAFE_NO_PAD.encode(challenge),
            "rpId": page.place.rp_id,
            "allowCredentials": [],
            "userVerification": "required",
            "timeout": PATIENCE_MS,
        },
    })))
}

#[derive(Deserialize)]
struct NodeSignInForm {
    token: String,
    credential: PasskeyAssertion,
}

pub fn sign_in(call: &PageCall<'_>) -> Result<PageResponse, PageError> {
    let form: NodeSignInForm = response::json_of(call.head, &call.body)?;
    let (page, now_ms) = (call.page, call.now_ms());
    let (credential_id, assertion, _) = form.credential.decode()?;
    let tried = TriedSecret::passkey(&credential_id);
    page.lock_out.check(tried, call.address, now_ms)?;
    let try_it = || -> Result<String, Fault> {
        let (nonce, ends_ms) = page.sessions.nonce(&form.token, now_ms)?;
        let found = page.people.find(&credential_id);
        let (person, passkey) = found.ok_or_else(|| not_signed_in("unknown passkey"))?;
        let challenge = sign_in_challenge(&page.place.origin, &nonce)?;
        let proof = ApprovalProof::WebAuthn {
            credential_id: credential_id.clone(),
            assertion,
        };
        let facts = ApproverKey::Passkey(Box::new(passkey)).verify(&proof, &challenge);
        let facts = facts.map_err(|fault| not_signed_in(fault.message()))?;
        // The passkey may have been enrolled with other pages, too.
        if !matches!(facts, ProofFacts::WebAuthn { origin, .. } if origin == page.place.origin) {
            return Err(not_signed_in("signed on another page"));
        }
        page.sessions.use_up(nonce, ends_ms, now_ms)?;
        Ok(person)
    };
    let person = try_it().inspect_err(|fault| {
        if *fault.class() == Class::Unauthenticated {
            page.lock_out.wrong(tried, call.address, now_ms);
        }
    })?;
    page.lock_out.right(tried, call.address);
    tracing::info!(person, "signed in to this node's page");
    let secret = secret(page.entropy.as_ref());
    let session = PageSession {
        person,
        form_token: self::secret(page.entropy.as_ref()).to_string(),
        credential_id,
        began_ms: now_ms,
        seen_ms: now_ms,
    };
    // What someone else has put into the browser never becomes this session.
    let before = cookie_named(call.head, COOKIE);
    page.sessions.begin(&secret, session, before);
    let seconds = LONGEST_MS / 1000;
    let line = format!("{COOKIE}={}; {TERMS}; Max-Age={seconds}", *secret);
    let mut value = HeaderValue::from_str(&line).map_err(Fault::bug)?;
    value.set_sensitive(true);
    Ok(PageResponse::json(&json!({"next": "/"})).with_header(header::SET_COOKIE, value))
}

pub fn sign_out(call: &PageCall<'_>, session: &PageSession) -> Result<PageResponse, PageError> {
    let fields: Vec<_> = form_urlencoded::parse(&call.body).collect();
    let token = fields.iter().find(|(name, _)| name == "form_token");
    check_form(session, token.map_or("", |(_, value)| value))?;
    call.page
        .sessions
        .end(cookie_named(call.head, COOKIE).unwrap_or_default());
    let line = format!("{COOKIE}=; {TERMS}; Max-Age=0");
    let value = HeaderValue::from_str(&line).map_err(Fault::bug)?;
    Ok(PageResponse::see("/sign-in").with_header(header::SET_COOKIE, value))
}
