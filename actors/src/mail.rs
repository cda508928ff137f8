//! Sends mail by the one server that the operator has named.

use std::time::{Duration, SystemTime};

use covault_core::fault::Fault;
use lettre::{
    Address, AsyncSmtpTransport, AsyncTransport as _, Message, Tokio1Executor,
    message::{
        Mailbox,
        header::{ContentType, HeaderName, HeaderValue},
    },
    transport::smtp::{
        authentication::Credentials,
        client::{Tls, TlsParameters},
        extension::ClientId,
    },
};
use reqwest::Url;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::timeout;

/// How long one answer of the server may take, and how long all of them together.
const ANSWER: Duration = Duration::from_secs(10);
const WHOLE: Duration = Duration::from_secs(30);
/// Most characters of an address.
const MAX_ADDRESS: usize = 254;

/// Which server takes mail, as the operator has named it.
pub struct MailServer {
    /// `smtps://HOST[:PORT]` (TLS from the beginning) or `smtp://HOST[:PORT]` (STARTTLS; none on this machine).
    pub url: String,
    /// Who signs in there, and with what.
    pub account: Option<(String, SecretString)>,
    /// Who mail is from.
    pub from: String,
}

/// A mail to one person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// The same when it is sent again.
    pub id: String,
    /// Line without characters that are none.
    pub subject: String,
    /// What it says.
    pub text: String,
    /// When it was written, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// Sends mail.
pub struct Mailer {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Address,
}

/// An address of mail, alone: no name, and no second one.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`], this field.
pub fn mail_address(field: &str, text: &str) -> Result<Address, Fault> {
    let address = text.parse::<Address>().ok();
    let address = address.filter(|_| text.is_ascii() && text.len() <= MAX_ADDRESS);
    address.ok_or_else(|| {
        Fault::field(
            field,
            "must be an address of mail, such as ana@example.com, in ASCII",
        )
    })
}

impl Mailer {
    /// One that this server takes mail from. Nothing is asked of it yet.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`], naming the setting.
    pub fn new(server: &MailServer) -> Result<Self, Fault> {
        let MailServer { url, account, from } = server;
        let from = mail_address("notify.mail_from", from)?;
        let wrong = |problem: &str| Fault::field("notify.mail_server", problem);
        let url =
            Url::parse(url).map_err(|_| wrong("must be a URL such as smtps://mail.example.com"))?;
        let has_more = !matches!(url.path(), "" | "/")
            || url.query().is_some()
            || !url.username().is_empty()
            || url.password().is_some();
        if has_more {
            return Err(wrong(
                "must be a host with or without a port; the account is notify.mail_user and notify.mail_password_file",
            ));
        }
        let host = url.host_str().unwrap_or_default();
        let is_here = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
        let host = host.trim_matches(['[', ']']).to_owned();
        let parameters = || {
            let parameters = TlsParameters::new(host.clone());
            parameters.map_err(Fault::bug)
        };
        let (tls, port) = match url.scheme() {
            _ if host.is_empty() => return Err(wrong("names no host")),
            "smtps" => (Tls::Wrapper(parameters()?), 465),
            "smtp" if is_here => (Tls::None, 25),
            "smtp" => (Tls::Required(parameters()?), 587),
            _ => return Err(wrong("must begin with smtps:// or smtp://")),
        };
        let port = url.port().unwrap_or(port);
        let mut transport = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host)
            .port(port)
            .tls(tls)
            .hello_name(ClientId::Domain(from.domain().to_owned()))
            .timeout(Some(ANSWER));
        if let Some((user, password)) = account {
            let password = password.expose_secret().to_owned();
            transport = transport.credentials(Credentials::new(user.clone(), password));
        }
        Ok(Self {
            transport: transport.build(),
            from,
        })
    }

    /// Sends. It has arrived when the server has taken it.
    ///
    /// # Errors
    /// Why it has failed.
    pub async fn send(&self, to: &Address, mail: &Mail) -> Result<(), String> {
        let message = self.message(to, mail)?;
        match timeout(WHOLE, self.transport.send(message)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("the mail server: {error}")),
            Err(_) => Err("the mail server did not answer in time".to_owned()),
        }
    }

    fn message(&self, to: &Address, mail: &Mail) -> Result<Message, String> {
        let Mail {
            id,
            subject,
            text,
            at_ms,
        } = mail;
        let of = |address: &Address| Mailbox::new(None, address.clone());
        let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(*at_ms));
        // A line is one, whatever is in it.
        let subject: String = subject.replace(char::is_control, " ");
        let automatic = HeaderName::new_from_ascii_str("Auto-Submitted");
        let message = Message::builder()
            .from(of(&self.from))
            .to(of(to))
            .date(at.unwrap_or(SystemTime::UNIX_EPOCH))
            .message_id(Some(format!("<{id}@{}>", self.from.domain())))
            // Nobody's absence answers it.
            .raw_header(HeaderValue::new(automatic, "auto-generated".to_owned()))
            .subject(subject)
            .header(ContentType::TEXT_PLAIN)
            .body(text.clone());
        message.map_err(|error| error.to_string())
    }
}
