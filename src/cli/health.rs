//! `covault health`: whether the process beside it answers, for containers, whose image has no other program to ask with.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};

use super::{CommandFinding, config::CheckedRole, print_line};
use crate::{approving::visible, config::Config, listeners::url_of, tls::pinned_client};

/// Shorter than the patience of those who ask every few seconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ask the process of this configuration, on this machine, whether it is up.
///
/// An orchestrator is asked for /readyz, a signer node for its metrics (signer.metrics_listen). Exit code 0: it works;
/// 6: it answers, and cannot work; 1: it does not answer within 5 s.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The process's configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What runs with it.
    #[arg(long, value_enum, default_value_t = CheckedRole::Serve)]
    role: CheckedRole,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When the process does not answer, and as exit codes.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let (config, listener, path) = match args.role {
        CheckedRole::Serve => {
            let (config, _) = Config::load(args.config.as_deref())?;
            let listener = ("serve.listen", config.serve.listen.clone());
            (config, listener, "/readyz")
        }
        CheckedRole::Signer => {
            let (config, _) = Config::load_for_signer(args.config.as_deref())?;
            let listener = (
                "signer.metrics_listen",
                config.signer.metrics_listen.clone(),
            );
            (config, listener, "/metrics")
        }
    };
    let (setting, listen) = listener;
    let address = address(setting, &listen)?;
    let certificate = &config.tls.certificate_file;
    let tls = !certificate.as_os_str().is_empty();
    // It is on this machine: no proxy in between, and not the name that its certificate is for.
    let builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy();
    let builder = if tls {
        builder.tls_backend_preconfigured(pinned_client(certificate)?)
    } else {
        builder
    };
    let url = format!("{}{path}", url_of(address, tls));
    let asked = builder.build()?.get(&url).timeout(PATIENCE).send().await;
    let answer = asked.with_context(|| format!("{url} does not answer; is the process up?"))?;
    let status = answer.status();
    let print = |up: bool, reason: Option<&str>| {
        if args.json {
            print_line(serde_json::json!({"up": up, "reason": reason}));
        } else if up {
            print_line("it is up");
        }
    };
    if status.is_success() {
        print(true, None);
        return Ok(());
    }
    let said: serde_json::Value = answer.json().await.unwrap_or_default();
    let reason = said.get("reason").and_then(serde_json::Value::as_str);
    let reason = reason.map_or_else(|| format!("{url} answers {status}"), visible);
    print(false, Some(&reason));
    Err(CommandFinding::cannot_sign(reason).into())
}

fn address(setting: &str, listen: &str) -> anyhow::Result<SocketAddr> {
    if listen.is_empty() {
        bail!("{setting} is empty: the process has no listener to be asked at");
    }
    let address: SocketAddr = listen
        .parse()
        .with_context(|| format!("{setting} is {listen}, which is not IP:PORT"))?;
    if address.port() == 0 {
        bail!("{setting} has port 0, and which port that became is not known here");
    }
    Ok(address)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use axum::{Router, http::StatusCode, routing::get};
    use tokio::net::TcpListener;

    use super::*;

    /// A process that answers like this at /readyz and /metrics; its address.
    async fn process(status: StatusCode, body: &'static str) -> SocketAddr {
        let router = Router::new()
            .route("/readyz", get(async move || (status, body)))
            .route("/metrics", get(async || "covault_bus_reachable 1\n"));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        address
    }

    /// What it comes to for a configuration with these settings, as an exit code and a sentence.
    async fn outcome(settings: String, role: CheckedRole) -> Result<(), (u8, String)> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("covault.toml");
        std::fs::write(&config, settings).unwrap();
        let config = Some(config);
        run(Args {
            config,
            role,
            json: false,
        })
        .await
        .map_err(|error| {
            let code = error.downcast_ref().map_or(1, CommandFinding::code);
            (code, format!("{error:#}"))
        })
    }

    #[tokio::test]
    async fn health__should_say_whether_the_process_works() {
        let ready = process(StatusCode::OK, "{\"ready\":true}").await;
        let serve = |address| format!("[serve]\nlisten = \"{address}\"\n");
        assert_eq!(outcome(serve(ready), CheckedRole::Serve).await, Ok(()));
        let body = "{\"ready\":false,\"reason\":\"the bus is away\"}";
        let not_ready = process(StatusCode::SERVICE_UNAVAILABLE, body).await;
        let said = outcome(serve(not_ready), CheckedRole::Serve).await;
        assert_eq!(said, Err((6, "the bus is away".to_owned())));
        // Of a signer node only its metrics can be asked for.
        let signer = |address: &str| format!("[signer]\nmetrics_listen = \"{address}\"\n");
        let said = outcome(signer(&not_ready.to_string()), CheckedRole::Signer).await;
        assert_eq!(said, Ok(()));
    }

    #[tokio::test]
    async fn health__should_name_what_it_cannot_ask() {
        for (settings, role, expected) in [
            ("", CheckedRole::Signer, "signer.metrics_listen is empty"),
            (
                "[serve]\nlisten = \"127.0.0.1:0\"\n",
                CheckedRole::Serve,
                "serve.listen has port 0",
            ),
            // Nobody may listen there.
            (
                "[serve]\nlisten = \"127.0.0.1:1\"\n",
                CheckedRole::Serve,
                "http://127.0.0.1:1/readyz does not answer",
            ),
        ] {
            let (code, said) = outcome(settings.to_owned(), role).await.unwrap_err();
            assert_eq!(code, 1, "{said}");
            assert!(said.contains(expected), "{said}");
        }
    }
}
