//! What a message says. Its text names vault and number of a request, and says neither amounts nor addresses, unless
//! `notify.details` has it say them.

use std::collections::{BTreeMap, BTreeSet};

use covault_core::{
    fault::Fault,
    ids::{RequestId, VaultId},
    moment::utc,
    networks::{Payload, outflow::Spend},
    notification::{
        Notification, NotificationForm, NotificationKind, NotificationSubject, NotificationTarget,
        message_id,
    },
    request::{RequestState, SigningRequest},
    user::User,
    wallet::vault::Vault,
};
use serde_json::{Map, Value, json};

use super::watch::{asked_of, requests};
use crate::{
    lists::READ_CHUNK,
    mail::Mail,
    nodes,
    services::{Services, skip_unreadable},
    store::rows,
    webhooks::{WebhookKeys, WebhookSecret, headers},
};

/// Payments that are listed, with `notify.details`.
const MOST_PAYMENTS: usize = 10;
/// Most characters of a reason, with `notify.details`.
const MOST_REASON: usize = 300;

/// What one message tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotificationContent {
    /// That messages come here from now on.
    Hello,
    /// One thing.
    One(NotificationSubject, NotificationKind),
    /// All of these.
    Several(Vec<(NotificationSubject, NotificationKind)>),
}

impl NotificationContent {
    /// What it tells, thing by thing.
    pub fn parts(&self) -> Vec<(NotificationSubject, NotificationKind)> {
        match self {
            Self::Hello => Vec::new(),
            Self::One(subject, kind) => vec![(*subject, *kind)],
            Self::Several(parts) => parts.clone(),
        }
    }
}

/// A message, as it is sent.
pub enum NotificationMessage {
    /// To a URL.
    Post {
        headers: Vec<(&'static str, String)>,
        body: Vec<u8>,
    },
    /// To an address.
    Mail(Mail),
}

/// Writes messages to one person.
pub struct NotificationWriter<'a> {
    pub services: &'a Services,
    pub user: &'a User,
    pub target: &'a NotificationTarget,
}

impl NotificationWriter<'_> {
    /// The message; `None`: there is nothing to tell any more.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn write(
        &self,
        content: &NotificationContent,
        known: impl Fn(&NotificationSubject) -> Option<Notification>,
        keys: &WebhookKeys,
    ) -> Result<Option<NotificationMessage>, Fault> {
        let id = self.id(content, &known);
        let fields = match content {
            NotificationContent::Hello => Some(self.hello()),
            NotificationContent::One(NotificationSubject::Node(node), kind) => {
                let nodes = nodes::written(self.services).await?;
                let name = nodes.into_iter().find(|it| it.id == *node);
                let line = node.openssh_line("");
                // What a node calls itself could say anything.
                let name = name.filter(|it| it.named && !it.name.is_empty());
                let name = name.map(|it| foreign(&it.name));
                let name = name.unwrap_or_else(|| line.clone());
                let text =
                    format!("signer node {name} is away: it has not announced itself for a minute");
                let mut fields = self.fields(kind.event(), text, "/nodes");
                fields.insert("node".into(), name.into());
                fields.insert("node_key".into(), line.into());
                Some(fields)
            }
            NotificationContent::One(NotificationSubject::Request(request), kind) => {
                let key = rows::request(*request);
                let found = self.services.load::<SigningRequest>(&key);
                let found = skip_unreadable(found.await, format_args!("request {request}"))?;
                let found = found.flatten().map(|(request, _)| request);
                let now_ms = self.services.now_ms();
                let is_asked =
                    |it: &SigningRequest| asked_of(it, &self.user.name, now_ms) == Some(*kind);
                // It may have been approved or ended in between.
                if kind.asks() && !found.as_ref().is_some_and(is_asked) {
                    return Ok(None);
                }
                let vault = known(&NotificationSubject::Request(*request)).and_then(|it| it.vault);
                let vault = self.vault(vault).await?;
                Some(self.request(*kind, &request.to_string(), vault, found.as_ref()))
            }
            NotificationContent::Several(parts) => self.several(parts, known).await?,
        };
        let Some(mut fields) = fields else {
            return Ok(None);
        };
        fields.insert("id".into(), id.clone().into());
        self.sealed(&id, &fields, keys).map(Some)
    }

    /// The id of a message: the same when it is sent again, so that a receiver can tell; another one when the same happens
    /// at another time.
    fn id(
        &self,
        content: &NotificationContent,
        known: impl Fn(&NotificationSubject) -> Option<Notification>,
    ) -> String {
        let parts = content.parts();
        let since = parts
            .iter()
            .filter_map(|(subject, _)| known(subject)?.pending);
        let since_ms = since.map(|(_, since_ms)| since_ms).max();
        let since_ms = since_ms.unwrap_or(self.target.set_at_ms);
        format!("{}-{since_ms}", message_id(self.user.id, &parts))
    }

    fn fields(&self, event: &str, text: String, page: &str) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("event".into(), event.into());
        fields.insert("user".into(), self.user.name.clone().into());
        fields.insert("text".into(), text.into());
        let origin = &self.services.settings.console_origin;
        if !origin.is_empty() {
            fields.insert("url".into(), format!("{origin}{page}").into());
        }
        fields
    }

    fn hello(&self) -> Map<String, Value> {
        let text = format!(
            "{} is told here from now on what Covault has to tell",
            self.user.name
        );
        self.fields("notification.test.v1", text, "/")
    }

    fn request(
        &self,
        kind: NotificationKind,
        uuid: &str,
        vault: Option<(VaultId, String)>,
        request: Option<&SigningRequest>,
    ) -> Map<String, Value> {
        let name = vault.as_ref().map_or("", |(_, name)| name);
        let of = format!("{name}: request {uuid}");
        let until_ms = request
            .map(|it| it.consent.expires_at_ms)
            .unwrap_or_default();
        let until = utc(until_ms);
        let text = match kind {
            NotificationKind::Waits => format!("{of} waits for your approval until {until}"),
            NotificationKind::WaitsAgain => format!(
                "{of} waits for your approval until {until}: what was approved has expired, or a signer wants more"
            ),
            NotificationKind::Signed => format!("{of} was approved and signed"),
            NotificationKind::Failed => format!("{of} has failed"),
            NotificationKind::Held => {
                let held_ms = request.map(|it| it.consent.held_until_ms);
                let held = utc(held_ms.unwrap_or_default());
                format!(
                    "{of} was approved, and signers hold it until {held}: reject it if it is wrong"
                )
            }
            NotificationKind::NodeAway => of,
        };
        let mut fields = self.fields(kind.event(), text, &format!("/requests/{uuid}"));
        fields.insert("request_uuid".into(), uuid.into());
        if let Some((id, name)) = vault {
            fields.insert("vault_uuid".into(), id.to_string().into());
            fields.insert("vault".into(), name.into());
        }
        if kind.asks() {
            fields.insert("expires_at".into(), until_ms.to_string().into());
        }
        if self.services.settings.notify_details
            && let Some(request) = request
        {
            details(request, &mut fields);
        }
        fields
    }

    async fn several(
        &self,
        parts: &[(NotificationSubject, NotificationKind)],
        known: impl Fn(&NotificationSubject) -> Option<Notification>,
    ) -> Result<Option<Map<String, Value>>, Fault> {
        let mut counts: BTreeMap<(Option<VaultId>, NotificationKind), u64> = BTreeMap::new();
        let done = self.done(parts).await?;
        for (subject, kind) in parts {
            if done.contains(subject) {
                continue;
            }
            let vault = known(subject).and_then(|it| it.vault);
            let count = counts.entry((vault, *kind)).or_default();
            *count = count.saturating_add(1);
        }
        if counts.is_empty() {
            return Ok(None);
        }
        let (mut lines, mut listed) = (Vec::new(), Vec::new());
        for ((vault, kind), count) in counts {
            let vault = self.vault(vault).await?;
            let what = match kind {
                NotificationKind::Waits | NotificationKind::WaitsAgain => {
                    "waiting for your approval"
                }
                NotificationKind::Signed => "approved and signed",
                NotificationKind::Failed => "failed",
                NotificationKind::NodeAway => "signer nodes away",
                NotificationKind::Held => "held by signers: reject what is wrong",
            };
            let mut entry = Map::new();
            entry.insert("event".into(), kind.event().into());
            entry.insert("count".into(), count.to_string().into());
            lines.push(match &vault {
                Some((_, name)) => format!("{name}: {count} {what}"),
                None => format!("{count} {what}"),
            });
            if let Some((id, name)) = vault {
                entry.insert("vault_uuid".into(), id.to_string().into());
                entry.insert("vault".into(), name.into());
            }
            listed.push(Value::Object(entry));
        }
        let text = format!("since the last message: {}", lines.join("; "));
        let mut fields = self.fields("notification.digest.v1", text, "/");
        fields.insert("counts".into(), listed.into());
        Ok(Some(fields))
    }

    /// Of these, requests that do not wait for the person any more.
    async fn done(
        &self,
        parts: &[(NotificationSubject, NotificationKind)],
    ) -> Result<BTreeSet<NotificationSubject>, Fault> {
        let asking = parts.iter().filter_map(|(subject, kind)| match subject {
            NotificationSubject::Request(id) if kind.asks() => Some(*id),
            NotificationSubject::Request(_) | NotificationSubject::Node(_) => None,
        });
        let asking: Vec<_> = asking.collect();
        let mut done = BTreeSet::new();
        for part in asking.chunks(READ_CHUNK) {
            let found = requests(self.services, part).await?;
            let now_ms = self.services.now_ms();
            let waits = |id: &RequestId| {
                let request = found.get(id);
                request.is_some_and(|it| asked_of(it, &self.user.name, now_ms).is_some())
            };
            let over = part.iter().filter(|id| !waits(id));
            done.extend(over.map(|id| NotificationSubject::Request(*id)));
        }
        Ok(done)
    }

    /// A vault with its name.
    async fn vault(&self, id: Option<VaultId>) -> Result<Option<(VaultId, String)>, Fault> {
        let Some(id) = id else {
            return Ok(None);
        };
        let vault = self.services.load::<Vault>(&rows::vault(id)).await;
        let vault = skip_unreadable(vault, format_args!("vault {id}"))?.flatten();
        Ok(vault.map(|(vault, _)| (id, foreign(&vault.name))))
    }

    /// In the form of the target.
    fn sealed(
        &self,
        id: &str,
        fields: &Map<String, Value>,
        keys: &WebhookKeys,
    ) -> Result<NotificationMessage, Fault> {
        match &self.target.form {
            NotificationForm::Webhook(secret) => {
                let body = serde_json::to_vec(fields).map_err(Fault::bug)?;
                let secret = WebhookSecret::new(secret.0);
                let headers = headers(keys, &secret, id, self.services.now_ms(), &body)?;
                Ok(NotificationMessage::Post {
                    headers: headers.into(),
                    body,
                })
            }
            NotificationForm::Mail => Ok(NotificationMessage::Mail(Mail {
                id: id.to_owned(),
                subject: field(fields, "text").unwrap_or_default().to_owned(),
                text: format!("{}\n", plain_text(fields)),
                at_ms: self.services.now_ms(),
            })),
            NotificationForm::Slack => {
                let body = json!({
                    "text": slack_text(&plain_text(fields)),
                    "mrkdwn": false,
                    "unfurl_links": false,
                    "unfurl_media": false,
                });
                Ok(NotificationMessage::Post {
                    headers: Vec::new(),
                    body: serde_json::to_vec(&body).map_err(Fault::bug)?,
                })
            }
        }
    }
}

fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    fields.get(name).and_then(Value::as_str)
}

/// All that a person reads of a message, in lines.
fn plain_text(fields: &Map<String, Value>) -> String {
    let mut lines = vec![field(fields, "text").unwrap_or_default().to_owned()];
    let payments = fields.get("payments").and_then(Value::as_array);
    for payment in payments.into_iter().flatten() {
        let of = |name: &str| payment.get(name).and_then(Value::as_str);
        let [amount, asset, to] = ["amount", "asset", "to"].map(of);
        let to = to.unwrap_or("nobody can tell whom");
        let (amount, asset) = (amount.unwrap_or_default(), asset.unwrap_or_default());
        lines.push(format!("{amount} (smallest unit) of {asset} to {to}"));
    }
    let rest = ["reason", "url"].map(|name| field(fields, name));
    lines.extend(rest.into_iter().flatten().map(str::to_owned));
    lines.join("\n")
}

/// What is paid to whom, and why it failed: what the text does not say.
fn details(request: &SigningRequest, fields: &mut Map<String, Value>) {
    fields.insert("from".into(), request.address.clone().into());
    if let Ok(payload) = Payload::decode(&request.payload) {
        fields.insert("kind".into(), payload.kind().into());
        let spends = payload.outflow(request.network).spends;
        let payment = |spend: &Spend| {
            json!({
                "amount": spend.amount.to_string(),
                "asset": spend.asset.to_string(),
                "to": spend.recipient,
            })
        };
        let listed: Vec<_> = spends.iter().take(MOST_PAYMENTS).map(payment).collect();
        let more = spends.len().saturating_sub(listed.len());
        fields.insert("payments".into(), listed.into());
        fields.insert("more_payments".into(), more.to_string().into());
    }
    if let RequestState::Failed { reason, .. } = &request.state {
        let reason: String = foreign(reason).chars().take(MOST_REASON).collect();
        fields.insert("reason".into(), reason.into());
    }
}

/// Words of others on one line, without characters that turn or hide text, and without anything that becomes a link.
fn foreign(text: &str) -> String {
    let plain = |letter: char| match letter {
        '\u{ad}'
        | '\u{34f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{e0000}'..='\u{e0fff}' => '?',
        letter if letter.is_control() => ' ',
        letter => letter,
    };
    let mut shown = String::with_capacity(text.len());
    let mut letters = text.chars().map(plain).peekable();
    let mut before = ' ';
    while let Some(letter) = letters.next() {
        // Programs make a link of a name of a host, too; it may have combining letters and signs.
        let next = letters.peek().copied().unwrap_or(' ');
        let is_in_a_name = matches!(letter, '.' | '\u{3002}' | '\u{ff0e}' | '\u{ff61}')
            && !before.is_whitespace()
            && !next.is_whitespace()
            && !matches!(next, '.' | '0'..='9');
        let is_in_a_url = letter == ':' && next == '/';
        if is_in_a_name {
            shown.push(' ');
        }
        shown.push(letter);
        if is_in_a_url {
            shown.push(' ');
        }
        before = letter;
    }
    shown
}

/// Text that Slack shows as it is: no mention, no link with another text.
fn slack_text(text: &str) -> String {
    let text = text.replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn foreign__should_leave_nothing_that_a_program_makes_a_link_of() {
        for (text, shown) in [
            ("https://evil.example/x", "https: //evil .example/x"),
            ("WWW.evil.Example", "WWW .evil .Example"),
            ("covault-login.example/x", "covault-login .example/x"),
            ("b\u{fc}ro\u{3002}example", "b\u{fc}ro \u{3002}example"),
            ("covault-login\u{ad}.com", "covault-login? .com"),
            ("evil.\u{ad}com", "evil .?com"),
            ("e\u{301}.com", "e\u{301} .com"),
            ("\u{2764}\u{fe0f}.ws", "\u{2764}? .ws"),
            ("evil..com, wait... now.", "evil. .com, wait... now."),
            ("rent\n\u{202e}now", "rent ?now"),
            ("1.5 ETH. Paid. 10.0.0.1", "1.5 ETH. Paid. 10.0.0.1"),
        ] {
            assert_eq!(foreign(text), shown);
        }
    }
}
