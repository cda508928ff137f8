//! Mail to people, as a server of mail hears it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use covault_actors::mail::{Mail, MailServer, Mailer, mail_address};
use secrecy::SecretString;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

/// A mail server on this machine that offers no TLS.
pub struct MailDouble {
    pub port: u16,
    /// The lines of each connection that has ended.
    heard: Mutex<Vec<Vec<String>>>,
}

impl MailDouble {
    /// Listens at this address of the machine.
    pub async fn start(address: &str) -> Arc<Self> {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let double = Arc::new(Self {
            port: listener.local_addr().unwrap().port(),
            heard: Mutex::default(),
        });
        let serving = Arc::clone(&double);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let heard = serve(stream).await;
                serving.heard.lock().unwrap().push(heard);
            }
        });
        double
    }

    /// The connections, once so many have ended.
    pub async fn until(&self, count: usize) -> Vec<Vec<String>> {
        for _ in 0..6_000 {
            let heard = self.heard.lock().unwrap().clone();
            if heard.len() >= count {
                return heard;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{:#?}", self.heard.lock().unwrap());
    }
}

async fn serve(stream: TcpStream) -> Vec<String> {
    let mut stream = BufReader::new(stream);
    let (mut heard, mut is_text) = (Vec::new(), false);
    let (mut answer, mut line) = ("220 here\r\n", String::new());
    while stream.write_all(answer.as_bytes()).await.is_ok()
        && stream.read_line(&mut line).await.unwrap_or(0) > 0
    {
        let said = line.trim_end().to_owned();
        line.clear();
        let is_end = said == "QUIT" && !is_text;
        answer = match said.as_str() {
            "." if is_text => "250 taken\r\n",
            _ if is_text => "",
            "DATA" => "354 go on\r\n",
            _ => "250 ok\r\n",
        };
        is_text = said == "DATA" || (is_text && said != ".");
        heard.push(said);
        if is_end {
            break;
        }
    }
    heard
}

fn server(url: &str, from: &str) -> MailServer {
    MailServer {
        url: url.into(),
        account: None,
        from: from.into(),
    }
}

fn mail() -> Mail {
    Mail {
        id: "ntf_1-2".into(),
        subject: "treasury: one waits\r\nBcc: thief@example.com".into(),
        text: "It waits.\r\n.\r\nQUIT\n".into(),
        at_ms: 1_800_000_000_000,
    }
}

#[tokio::test]
async fn mail__should_be_one_message_to_one_address_whatever_its_words() {
    let double = MailDouble::start("127.0.0.1").await;
    let url = format!("smtp://127.0.0.1:{}", double.port);
    let mailer = Mailer::new(&server(&url, "covault@example.com")).unwrap();
    let to = mail_address("mail", "ana@example.org").unwrap();
    mailer.send(&to, &mail()).await.unwrap();
    let heard = double.until(1).await.remove(0);
    let has = |line: &str| heard.iter().filter(|it| *it == line).count();
    assert_eq!(has("EHLO example.com"), 1, "{heard:#?}");
    assert_eq!(has("MAIL FROM:<covault@example.com>"), 1, "{heard:#?}");
    let receivers = heard.iter().filter(|it| it.starts_with("RCPT"));
    assert_eq!(
        receivers.collect::<Vec<_>>(),
        ["RCPT TO:<ana@example.org>"],
        "{heard:#?}"
    );
    assert_eq!(has("Auto-Submitted: auto-generated"), 1, "{heard:#?}");
    assert_eq!(has("Message-ID: <ntf_1-2@example.com>"), 1, "{heard:#?}");
    // Neither a second header nor an end within the text.
    assert!(!heard.iter().any(|it| it.starts_with("Bcc")), "{heard:#?}");
    assert_eq!((has("."), has("..")), (1, 1), "{heard:#?}");
}

#[tokio::test]
async fn mail__should_not_be_sent_without_the_tls_that_it_needs() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Of this machine, but not known for that.
    let double = MailDouble::start("127.0.0.2").await;
    let mailer = Mailer::new(&MailServer {
        account: Some(("covault".into(), SecretString::from("hunter2"))),
        ..server(
            &format!("smtp://127.0.0.2:{}", double.port),
            "covault@example.com",
        )
    });
    let to = mail_address("mail", "ana@example.org").unwrap();
    let problem = mailer.unwrap().send(&to, &mail()).await.unwrap_err();
    assert!(problem.starts_with("the mail server"), "{problem}");
    let heard = double.until(1).await[0].join("\n");
    assert!(heard.contains("EHLO") && !heard.contains("AUTH"), "{heard}");
    assert!(!heard.contains("DATA"), "{heard}");
}

#[test]
fn server__should_be_refused_by_the_setting_that_is_wrong() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let good = "covault@example.com";
    for url in [
        "smtps://mail.example.com",
        "smtp://mail.example.com:2525",
        "smtp://[::1]",
    ] {
        assert!(Mailer::new(&server(url, good)).is_ok(), "{url}");
    }
    let named = "smtps://mail.example.com";
    for (url, from, field) in [
        ("", good, "notify.mail_server"),
        ("https://mail.example.com", good, "notify.mail_server"),
        ("smtp:", good, "notify.mail_server"),
        (
            "smtps://ana:hunter2@mail.example.com",
            good,
            "notify.mail_server",
        ),
        (
            "smtps://mail.example.com/?tls=none",
            good,
            "notify.mail_server",
        ),
        (named, "covault", "notify.mail_from"),
        (named, "a@example.com, b@example.com", "notify.mail_from"),
        (
            named,
            "a@example.com\r\nBcc: b@example.com",
            "notify.mail_from",
        ),
    ] {
        let fault = Mailer::new(&server(url, from)).err().unwrap();
        assert_eq!(fault.path(), Some(field), "{url} {from}");
        assert!(!format!("{fault:?}").contains("hunter2"), "{fault:?}");
    }
}
