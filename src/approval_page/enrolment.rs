//! Enrolment for the page: a link of the node's administrator makes a passkey, whose line and eight words the page shows.
//! The line enrols nobody before the administrators have added it to the policy.

use askama::Template;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use covault_core::{
    fault::{Class, Fault},
    port::random_16,
};
use serde::Deserialize;
use serde_json::json;

use super::PageCall;
use crate::console::{
    enrolment::{NewCredential, NewPasskey},
    lockout::TriedSecret,
    response::{self, PageError, PageResponse},
    sessions::PasskeyAssertion,
    views::Shell,
};

#[derive(Template)]
#[template(path = "node-enrol.html")]
struct NodeEnrolPage {
    shell: Shell,
}

pub fn page(call: &PageCall<'_>) -> Result<PageResponse, PageError> {
    let shell = call.outside();
    PageResponse::page(&NodeEnrolPage { shell })
}

#[derive(Deserialize)]
struct NodeLinkForm {
    link: String,
}

/// What the browser needs to make the passkey.
pub fn begin(call: &PageCall<'_>) -> Result<PageResponse, PageError> {
    let form: NodeLinkForm = response::json_of(call.head, &call.body)?;
    let page = call.page;
    let key_name = try_link(call, &form.link, || {
        page.links.find(&secret(&form.link)?, call.now_ms())
    })?;
    let mut challenge = [0; 32];
    page.entropy.fill(&mut challenge);
    // As `covault policy approver` takes it.
    let person = key_name.split('@').next().unwrap_or_default();
    let new = NewCredential {
        challenge,
        user: &random_16(page.entropy.as_ref()),
        key_name: &key_name,
        enrolled: &page.people.passkeys_of(person),
    };
    Ok(PageResponse::json(&json!({
        "keyName": key_name,
        "publicKey": new.options(&page.place),
    })))
}

/// What the new passkey has to sign.
pub fn prove(call: &PageCall<'_>) -> Result<PageResponse, PageError> {
    let new: NewPasskey = response::json_of(call.head, &call.body)?;
    new.proof_options(&call.page.place)
}

#[derive(Deserialize)]
struct NodeEnrolForm {
    link: String,
    passkey: NewPasskey,
    credential: PasskeyAssertion,
}

/// Checks the proof, uses the link up, and tells the line and its words.
pub fn finish(call: &PageCall<'_>) -> Result<PageResponse, PageError> {
    let form: NodeEnrolForm = response::json_of(call.head, &call.body)?;
    let page = call.page;
    // Before the signature: who has no link costs nothing, and is locked out.
    try_link(call, &form.link, || {
        page.links.find(&secret(&form.link)?, call.now_ms())
    })?;
    let line = form.passkey.line(&page.place, &form.credential)?;
    line.check()?;
    let words = line.fingerprint()?.join(" ");
    let key_name = try_link(call, &form.link, || {
        let secret = secret(&form.link)?;
        let key_name = page.links.find(&secret, call.now_ms())?;
        if key_name != form.passkey.key_name {
            return Err(Fault::field("keyName", "is not the link's"));
        }
        page.links.use_up(&secret, call.now_ms())?;
        Ok(key_name)
    })?;
    tracing::info!(
        key_name,
        words,
        "a passkey was made on this node's page: the administrators compare the words"
    );
    Ok(PageResponse::json(
        &json!({"line": line.line()?, "words": words}),
    ))
}

fn secret(link: &str) -> Result<[u8; 32], Fault> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(link);
    let bytes = bytes.ok().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| Fault::new(Class::Unauthenticated, "this is not a link of this node"))
}

/// Counts links that cannot be used.
fn try_link<T>(
    call: &PageCall<'_>,
    link: &str,
    tried: impl FnOnce() -> Result<T, Fault>,
) -> Result<T, PageError> {
    let lock_out = &call.page.lock_out;
    let link = TriedSecret::link(link);
    lock_out.check(link, call.address, call.now_ms())?;
    Ok(tried().inspect_err(|fault| {
        if *fault.class() == Class::Unauthenticated {
            lock_out.wrong(link, call.address, call.now_ms());
        }
    })?)
}
