//! One POST to a receiver.

use std::{sync::Arc, time::Duration};

use covault_core::fault::Fault;
use reqwest::{StatusCode, Url, header::CONTENT_TYPE, redirect::Policy};

use super::guard::{GuardedResolver, TargetRules};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(3);
/// How long all of it may take.
const WHOLE: Duration = Duration::from_secs(10);
/// So much of an answer is read, so that its connection can be used again, and nothing is kept.
const MAX_ANSWER: usize = 16 << 10;
/// Connections to one receiver that are kept for later.
const IDLE: usize = 16;

/// Sends webhooks.
pub struct WebhookSender {
    http: reqwest::Client,
    rules: TargetRules,
}

impl WebhookSender {
    /// One that sends to what the rules allow.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Bug`] when the TLS provider is missing.
    pub fn new(rules: TargetRules) -> Result<Self, Fault> {
        let http = reqwest::Client::builder()
            // Whoever else it leads to, or goes through, was not checked.
            .redirect(Policy::none())
            .no_proxy()
            .dns_resolver(Arc::new(GuardedResolver::new(rules.clone())))
            .connect_timeout(CONNECT)
            .timeout(WHOLE)
            .pool_max_idle_per_host(IDLE)
            .user_agent("Covault-Webhooks/1")
            .build()
            .map_err(Fault::bug)?;
        Ok(Self { http, rules })
    }

    /// Sends. Only 200 is a yes.
    ///
    /// # Errors
    /// Why it has failed, without the URL, which may hold a key.
    pub async fn send(
        &self,
        url: &Url,
        headers: &[(&'static str, String)],
        body: Vec<u8>,
    ) -> Result<(), String> {
        // Literal addresses do not get to the resolver.
        let checked = self.rules.check_url(url);
        checked.map_err(|refused| refused.to_string())?;
        let mut post = self
            .http
            .post(url.clone())
            .header(CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            post = post.header(*name, value);
        }
        let answered = post.body(body).send().await;
        let mut answer = answered.map_err(|error| describe(&error.without_url()))?;
        let status = answer.status();
        let mut read = 0_usize;
        while read < MAX_ANSWER {
            match answer.chunk().await {
                Ok(Some(chunk)) => read = read.saturating_add(chunk.len()),
                // The status has been said.
                Ok(None) | Err(_) => break,
            }
        }
        match status {
            StatusCode::OK => Ok(()),
            status => Err(format!(
                "it answered {}, and only 200 counts",
                status.as_u16()
            )),
        }
    }
}

/// What went wrong, down to its first cause.
fn describe(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it did not answer in time".into();
    }
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| {
        error.source()
    });
    let causes: Vec<_> = causes.map(ToString::to_string).collect();
    causes.join(": ")
}
