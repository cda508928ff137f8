//! `covault top`: what `covault status` says, and how many requests a second there are, as it changes.

mod rates;
mod screen;

use std::{io::IsTerminal as _, time::Duration};

use anyhow::Context as _;
use covault_actors::operations::GetStatus;
use covault_core::schema::admin::{GetStatusRequest, GetStatusResponse};
use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyModifiers};
use futures::StreamExt as _;
use ratatui::DefaultTerminal;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval},
};

use self::screen::View;
use super::client::{AdminClient, ConnectionArgs};
use crate::shutdown;

/// How often the service is asked.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Watch the service: whether it signs and what prevents it, nodes, vaults, open requests, requests per second and the last
/// failures, once a second (calls a running orchestrator).
///
/// q, Escape or Ctrl-C leave. It needs a terminal; covault status prints the same once.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    orchestrator: ConnectionArgs,
}

/// Runs the command.
///
/// # Errors
/// Without a terminal, and when the orchestrator does not answer the first time.
pub async fn run(args: Args) -> anyhow::Result<()> {
    if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
        anyhow::bail!(
            "covault top needs a terminal; covault status prints the same once, covault status --json for programs"
        );
    }
    let client = args.orchestrator.client()?;
    let address = client.address().to_owned();
    let mut answers = ask(client);
    // What is wrong from the start is said where it stays.
    let first = answers.recv().await.context("nobody asks")??;
    let mut view = View::new(address, first, Instant::now());
    let mut stop = shutdown::on_signals(|| {})?;
    let mut screen = Screen::take()?;
    let mut events = EventStream::new();
    loop {
        screen.draw(&view)?;
        tokio::select! {
            answer = answers.recv() => view.hear(answer.context("nobody asks")?, Instant::now()),
            event = events.next() => {
                let event = event.transpose().context("the terminal is gone")?;
                if event.is_none_or(|event| leaves(&event)) {
                    return Ok(());
                }
            }
            () = shutdown::requested(&mut stop) => return Ok(()),
        }
    }
}

/// What the service answers, once a second for as long as anyone listens.
fn ask(client: AdminClient) -> mpsc::Receiver<anyhow::Result<GetStatusResponse>> {
    let (sender, answers) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut interval = interval(INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let asked = client.call_with_timeout::<GetStatus>(PATIENCE, &GetStatusRequest {});
            if sender.send(asked.await).await.is_err() {
                return;
            }
        }
    });
    answers
}

/// Whether this is a key to leave with. The terminal sends no signals.
fn leaves(event: &Event) -> bool {
    let Event::Key(KeyEvent {
        code, modifiers, ..
    }) = event
    else {
        return false;
    };
    let is_control = modifiers.contains(KeyModifiers::CONTROL);
    matches!(code, KeyCode::Char('q' | 'Q') | KeyCode::Esc)
        || is_control && *code == KeyCode::Char('c')
}

/// The terminal, which is as it was before once this is gone; after a panic as well.
struct Screen(DefaultTerminal);

impl Screen {
    fn take() -> anyhow::Result<Self> {
        let terminal = ratatui::try_init().context("the terminal cannot be used")?;
        Ok(Self(terminal))
    }

    fn draw(&mut self, view: &View) -> anyhow::Result<()> {
        let drawn = self.0.draw(|frame| view.draw(frame, Instant::now()));
        drawn.map(drop).context("the terminal is gone")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn keys__should_leave_where_people_expect_it() {
        let key = |code, modifiers| leaves(&Event::Key(KeyEvent::new(code, modifiers)));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(key(KeyCode::Esc, KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(!key(KeyCode::Enter, KeyModifiers::NONE));
        assert!(!leaves(&Event::Resize(80, 24)));
    }
}
