//! A client of the admin API, for the commands that ask a running orchestrator.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use covault_actors::operations::{self, Operation};
use covault_core::schema::{json, service::Audience};
use reqwest::Url;
use secrecy::{ExposeSecret as _, SecretString};

use crate::{
    api::headers::{CODE, IDEMPOTENCY_KEY},
    config::{
        AdminAddress, Config,
        contexts::{Contexts, check_typed},
        credentials::{ADDRESS, service_of_environment},
    },
    files,
    listeners::url_of,
    tls::pinned_client,
    wiring::explain,
};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Where the admin API listens.
const ADMIN_LISTEN: &str = "serve.admin_listen";
/// What the path of a socket is written after.
const UNIX: &str = "unix:";
/// What calls over a socket name as their host, which nobody looks up.
const OVER_SOCKET: &str = "http://localhost";

/// Where the orchestrator is: its configuration file, or the URL of its admin API and an admin token.
#[derive(Debug, clap::Args)]
pub struct ConnectionArgs {
    /// The orchestrator's configuration file, on the machine that it runs on: its admin API (serve.admin_listen) is called.
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    config: Option<PathBuf>,
    /// The orchestrator's admin API: unix:/PATH of its socket, or a URL, e.g. https://10.20.0.21:8083. Where neither this
    /// nor --config is given, COVAULT_ADDR and COVAULT_TOKEN_FILE count, and then the context in use (covault context).
    #[arg(long, value_name = "URL", requires = "token_file", value_parser = admin_url)]
    url: Option<String>,
    /// The file that holds an admin token (covault token create --kind admin). With --config: in place of the token that the
    /// first start has made.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Where the platform API is: the orchestrator's configuration file, or its URL and a token.
#[derive(Debug, clap::Args)]
pub struct PlatformConnectionArgs {
    /// The orchestrator's configuration file, on the machine that it runs on; its first platform token is used.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "token_file"])]
    config: Option<PathBuf>,
    /// The service's URL, e.g. http://127.0.0.1:8080
    #[arg(long, value_name = "URL", requires = "token_file", value_parser = service_url)]
    url: Option<String>,
    /// The file that holds a token of the platform API (covault token create).
    #[arg(long, value_name = "FILE", requires = "url")]
    token_file: Option<PathBuf>,
}

impl PlatformConnectionArgs {
    /// A client for it.
    ///
    /// # Errors
    /// When configuration or token cannot be read.
    pub fn client(self) -> anyhow::Result<AdminClient> {
        if let (Some(url), Some(token_file)) = (self.url, self.token_file) {
            return AdminClient::new(&url, &token_file, client_builder());
        }
        let (config, _) = Config::load(self.config.as_deref())?;
        let listen = ("serve.listen", config.serve.listen.as_str());
        let (base, builder) = on_this_machine(&config, listen)?;
        AdminClient::new(&base, &config.serve.platform_token_file(), builder)
    }
}

/// The API of one orchestrator.
pub struct AdminClient {
    /// What paths are put behind.
    base: String,
    /// The same for people.
    shown: String,
    token: SecretString,
    http: reqwest::Client,
    /// The context in which a person is asked before what cannot be undone.
    confirms: Option<String>,
}

/// Where the API is, and a token of it.
#[derive(Debug, clap::Args)]
pub struct PlatformArgs {
    /// The service's URL, e.g. http://127.0.0.1:8080
    #[arg(long, value_name = "URL", value_parser = service_url)]
    url: String,
    /// The file that holds a token of the platform API (covault token create). It only delivers the signature, and
    /// counts for nothing else.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
}

impl PlatformArgs {
    /// At this URL, with the token of this file.
    pub fn new(url: String, token_file: PathBuf) -> Self {
        Self { url, token_file }
    }

    /// A client for it.
    ///
    /// # Errors
    /// When the token cannot be read.
    pub fn client(self) -> anyhow::Result<AdminClient> {
        AdminClient::new(&self.url, &self.token_file, client_builder())
    }
}

fn client_builder() -> reqwest::ClientBuilder {
    // A redirect would take the token with it.
    reqwest::Client::builder().redirect(reqwest::redirect::Policy::none())
}

impl ConnectionArgs {
    /// The configuration that it names, or would use.
    ///
    /// # Errors
    /// When it cannot be read, or an orchestrator on another machine is named.
    pub fn configuration(&self) -> anyhow::Result<Config> {
        if self.url.is_some() {
            bail!(
                "name the configuration (--config), not a URL: this command opens the store itself"
            );
        }
        Ok(Config::load(self.config.as_deref())?.0)
    }

    /// Whether anything is named.
    pub fn is_named(&self) -> bool {
        self.config.is_some() || self.url.is_some()
    }

    /// The configuration file, where that is what is named.
    pub fn config_file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// A client for it.
    ///
    /// # Errors
    /// When configuration or token cannot be read.
    pub fn client(mut self) -> anyhow::Result<AdminClient> {
        if !self.is_named()
            && let Some((url, token_file)) = service_of_environment()?
        {
            self.url = Some(admin_url(&url).map_err(|problem| anyhow!("{ADDRESS}: {problem}"))?);
            self.token_file.get_or_insert(token_file);
        }
        if !self.is_named()
            && let Some((name, context)) = Contexts::of_this_person()?.in_use()?
        {
            let url = admin_url(&context.addr);
            let url = url.map_err(|problem| anyhow!("context {name}: addr: {problem}"))?;
            let token_file = self.token_file.as_ref().unwrap_or(&context.token_file);
            let mut client = AdminClient::new(&url, token_file, client_builder())?;
            client.confirms = context.confirm.then(|| name.to_owned());
            return Ok(client);
        }
        match (self.url, self.token_file) {
            (Some(url), Some(token_file)) => AdminClient::new(&url, &token_file, client_builder()),
            (_, token_file) => Self::configured(self.config.as_deref(), token_file),
        }
    }

    /// A client of the orchestrator that has this configuration, on this machine.
    ///
    /// # Errors
    /// When configuration or token cannot be read.
    pub fn configured(
        config: Option<&Path>,
        token_file: Option<PathBuf>,
    ) -> anyhow::Result<AdminClient> {
        let (config, _) = Config::load(config)?;
        let serve = &config.serve;
        let token_file = match token_file {
            Some(file) => file,
            None if serve.admin_file_token => serve.admin_token_file(),
            None => bail!(
                "serve.admin_file_token is false: name the file of your admin token with --token-file (covault token create \
                 --kind admin)"
            ),
        };
        let address = serve.admin_address();
        match address.map_err(|problem| anyhow!("{ADMIN_LISTEN}: {problem}"))? {
            socket @ AdminAddress::Socket(_) => {
                AdminClient::new(&socket.to_string(), &token_file, client_builder())
            }
            AdminAddress::Network(listen) => {
                let (base, builder) = on_this_machine(&config, (ADMIN_LISTEN, &listen))?;
                AdminClient::new(&base, &token_file, builder)
            }
        }
    }
}

/// The URL of a listener of this machine, by its setting, and a client for it.
fn on_this_machine(
    config: &Config,
    (setting, listen): (&str, &str),
) -> anyhow::Result<(String, reqwest::ClientBuilder)> {
    let certificate = &config.tls.certificate_file;
    let tls = !certificate.as_os_str().is_empty();
    let base = local_url(setting, listen, tls)?;
    // It is on this machine: no proxy in between, and not the name that its certificate is for.
    let builder = client_builder().no_proxy();
    let builder = if tls {
        builder.tls_backend_preconfigured(pinned_client(certificate)?)
    } else {
        builder
    };
    Ok((base, builder))
}

/// Where the admin API is, as an argument: the URL of a service, or `unix:` and the path of a socket.
fn admin_url(text: &str) -> Result<String, String> {
    match text.strip_prefix(UNIX) {
        Some(path) if Path::new(path).is_absolute() => Ok(text.to_owned()),
        Some(_) => Err("the path of the socket is not whole; use unix:/PATH".to_owned()),
        None => service_url(text).map_err(|problem| format!("{problem}, or unix:/PATH")),
    }
}

/// The URL of a service, as an argument.
fn service_url(text: &str) -> Result<String, String> {
    let url = Url::parse(text).ok();
    let is_url = url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    if is_url {
        return Ok(text.trim_end_matches('/').to_owned());
    }
    Err("it is not a URL; use http://HOST:PORT or https://HOST".to_owned())
}

fn local_url(setting: &str, listen: &str, tls: bool) -> anyhow::Result<String> {
    let address: SocketAddr = listen.parse().with_context(|| {
        format!("{setting} is {listen}; name the orchestrator with --url and --token-file")
    })?;
    if address.port() == 0 {
        bail!("{setting} has port 0; name the orchestrator with --url and --token-file");
    }
    Ok(url_of(address, tls))
}

/// What the service says is wrong, in an answer that it has refused.
pub fn sentence_of(answer: &[u8]) -> Option<String> {
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    Some(answer.pointer("/error/message")?.as_str()?.to_owned())
}

impl AdminClient {
    /// A client of the service at `url`: `unix:/PATH`, or a URL.
    fn new(url: &str, token_file: &Path, builder: reqwest::ClientBuilder) -> anyhow::Result<Self> {
        let (base, builder) = match url.strip_prefix(UNIX) {
            Some(path) => (OVER_SOCKET, builder.no_proxy().unix_socket(path)),
            None => (url.trim_end_matches('/'), builder),
        };
        Ok(Self {
            base: base.to_owned(),
            shown: url.to_owned(),
            token: files::read_token(token_file)?,
            http: builder.build()?,
            confirms: None,
        })
    }

    /// Where the service is, for people.
    pub fn address(&self) -> &str {
        &self.shown
    }

    /// Whether this is a context in which a person is asked before what cannot be undone.
    pub fn confirms(&self) -> bool {
        self.confirms.is_some()
    }

    /// Has a person type a name before `deed`, in a context that wants that.
    ///
    /// # Errors
    /// When another name is typed, or nothing.
    pub fn confirm(&self, deed: &str, name: &str, yes: bool) -> anyhow::Result<()> {
        let Some(context) = self.confirms.as_ref().filter(|_| !yes) else {
            return Ok(());
        };
        eprint!("context {context}: {deed}. Type {name:?} to go on: ");
        let mut typed = String::new();
        std::io::stdin().read_line(&mut typed)?;
        check_typed(&typed, name)
    }

    /// Why the service takes no work; nothing where it does.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn not_ready(&self) -> anyhow::Result<Option<String>> {
        let asked = self.http.get(format!("{}/readyz", self.base));
        let response = asked.timeout(TIMEOUT).send().await;
        let response = response.with_context(|| self.is_silent())?;
        if response.status().is_success() {
            return Ok(None);
        }
        let said: serde_json::Value = response.json().await.unwrap_or_default();
        let reason = said.get("reason").and_then(serde_json::Value::as_str);
        Ok(Some(reason.unwrap_or("it does not say why").to_owned()))
    }

    /// Calls an operation, and returns the answer as it is.
    ///
    /// # Errors
    /// When the call cannot be made, or nothing answers in time.
    pub async fn post<O: Operation>(
        &self,
        request: &O::Request,
        idempotency_key: Option<&str>,
        timeout: Duration,
    ) -> anyhow::Result<reqwest::Response> {
        let operation = operations::find(O::METHOD).map_err(explain)?.descriptor();
        let body = json::encode(request).map_err(explain)?;
        let mut token = reqwest::header::HeaderValue::from_str(self.token.expose_secret())
            .context("the token file does not contain a token")?;
        token.set_sensitive(true);
        let mut call = self
            .http
            .post(format!("{}{}", self.base, operation.http_path()))
            .timeout(timeout)
            .header("x-mtoken", token)
            .header("content-type", "application/json");
        if let Some(key) = idempotency_key {
            call = call.header(IDEMPOTENCY_KEY, key);
        }
        let sent = call.body(body).send().await;
        sent.with_context(|| self.is_silent())
    }

    fn is_silent(&self) -> String {
        format!(
            "the orchestrator at {} does not answer; is it running?",
            self.shown
        )
    }

    /// Calls an operation that the token opens.
    ///
    /// # Errors
    /// The orchestrator's own message when it refuses.
    pub async fn call<O: Operation>(&self, request: &O::Request) -> anyhow::Result<O::Response> {
        self.call_with_timeout::<O>(TIMEOUT, request).await
    }

    /// As [`AdminClient::call`], with so much time for the answer.
    ///
    /// # Errors
    /// As there.
    pub async fn call_with_timeout<O: Operation>(
        &self,
        timeout: Duration,
        request: &O::Request,
    ) -> anyhow::Result<O::Response> {
        let operation = operations::find(O::METHOD).map_err(explain)?.descriptor();
        let response = self.post::<O>(request, None, timeout).await?;
        let status = response.status();
        let code = response.headers().get(&CODE);
        let code = code
            .and_then(|code| code.to_str().ok())
            .map(|code| format!(" [{code}]"));
        let text = response
            .text()
            .await
            .context("the orchestrator's response is incomplete")?;
        if !status.is_success() {
            let sentence = sentence_of(text.as_bytes()).unwrap_or(text);
            let is_admin = operation.audience() == Audience::Admin;
            let hint = if is_admin && status == reqwest::StatusCode::NOT_FOUND {
                "; the admin API has an address of its own (serve.admin_listen)"
            } else {
                ""
            };
            bail!(
                "{}: {sentence} (HTTP {}){}{hint}",
                operation.name(),
                status.as_u16(),
                code.unwrap_or_default()
            );
        }
        json::decode(text.as_bytes())
            .map_err(explain)
            .with_context(|| format!("{} does not answer as an orchestrator", self.shown))
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::schema::admin::ListVaultsRequest;

    use super::*;

    #[test]
    fn local_url__should_reach_a_wildcard_listener_on_loopback() {
        assert_eq!(
            local_url("serve.listen", "127.0.0.1:8080", false).unwrap(),
            "http://127.0.0.1:8080"
        );
        assert_eq!(
            local_url("serve.listen", "0.0.0.0:81", false).unwrap(),
            "http://127.0.0.1:81"
        );
        assert_eq!(
            local_url("serve.listen", "[::]:82", false).unwrap(),
            "http://[::1]:82"
        );
        assert_eq!(
            local_url("serve.listen", "0.0.0.0:81", true).unwrap(),
            "https://127.0.0.1:81"
        );
        assert!(local_url("serve.listen", "127.0.0.1:0", false).is_err());
        assert!(local_url("serve.listen", "localhost", false).is_err());
    }

    /// What a client says when it is answered with this.
    async fn problem_of(answer: &'static str) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = AdminClient {
            base: url_of(listener.local_addr().unwrap(), false),
            shown: String::new(),
            token: SecretString::from("token"),
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            confirms: None,
        };
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let nothing = ListVaultsRequest::default();
        let answered = client.call::<operations::ListVaults>(&nothing).await;
        format!("{:#}", answered.unwrap_err())
    }

    #[tokio::test]
    async fn error__should_end_with_the_code_of_the_service() {
        let problem = problem_of(
            "HTTP/1.1 400 Bad Request\r\ncovault-code: invalid_uuid\r\ncontent-length: 37\r\nconnection: close\r\n\r\n{\"error\":{\"message\":\"Invalid uuid\"}} ",
        );
        assert_eq!(
            problem.await,
            "listVaults: Invalid uuid (HTTP 400) [invalid_uuid]"
        );
        // A proxy in between has none.
        let problem = problem_of(
            "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 3\r\nconnection: close\r\n\r\nbad",
        );
        assert_eq!(problem.await, "listVaults: bad (HTTP 502)");
    }

    #[tokio::test]
    async fn client__should_not_take_its_token_elsewhere() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        files::write_private(&token_file, b"token").unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let target = ConnectionArgs {
            config: None,
            url: Some(url.clone()),
            token_file: Some(token_file),
        };
        let answering = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let text = format!(
                "HTTP/1.1 307 Temporary Redirect\r\nlocation: {url}/other\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(text.as_bytes()).await.unwrap();
            drop(stream);
            // A repeated call would wait forever.
            listener
        });
        let client = target.client().unwrap();
        let nothing = ListVaultsRequest::default();
        let asked = client.call::<operations::ListVaults>(&nothing);
        let problem = asked.await.unwrap_err().to_string();
        assert!(problem.contains("307"), "{problem}");
        drop(answering);
    }

    #[tokio::test]
    async fn call__should_wait_as_long_as_it_is_told_to() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = AdminClient {
            base: url_of(listener.local_addr().unwrap(), false),
            shown: String::new(),
            token: SecretString::from("token"),
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            confirms: None,
        };
        // Answers nothing before it is told to.
        let answering = tokio::sync::watch::channel(false);
        let (answer, answers) = answering;
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut answers = answers.clone();
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    let _ = stream.read(&mut request).await;
                    let _ = answers.wait_for(|now| *now).await;
                    let text =
                        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
                    let _ = stream.write_all(text.as_bytes()).await;
                });
            }
        });
        let nothing = ListVaultsRequest::default();
        let call = |timeout| client.call_with_timeout::<operations::ListVaults>(timeout, &nothing);
        let problem = call(Duration::from_millis(50)).await.unwrap_err();
        assert!(problem.to_string().contains("does not answer"), "{problem}");
        let (answered, ()) = tokio::join!(call(Duration::from_secs(60)), async {
            answer.send_replace(true);
        });
        assert!(answered.unwrap().vaults.is_empty());
    }
}
