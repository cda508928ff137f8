//! `covault webhook`: what webhooks are told, and the outcome.

use anyhow::bail;
use covault_actors::operations::{
    GetWebhookEvent, ListWebhookEvents, ReplayWebhookEvent, TestWebhook,
};
use covault_core::schema::admin::{self, WebhookEvent};

use super::{answer, answer_json, client::ConnectionArgs, one_line, print_line, table};

/// Webhooks.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List events, newest first: whether they were delivered, and why not.
    List {
        /// Only those of this sweep token: its id, or its name.
        #[arg(
            long,
            value_name = "TOKEN",
            default_value = "",
            hide_default_value = true
        )]
        token: String,
        /// Only those in this state.
        #[arg(long, value_parser = ["waiting", "delivered", "dead"])]
        state: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// Show one event with its body.
    Show {
        /// The event (`evt_...`).
        id: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// Send a test event (`webhook.test.v1`) to a webhook now, signed as any other, and say what the outcome is.
    Test {
        /// The sweep token: its id, or its name.
        #[arg(long, value_name = "TOKEN")]
        token: String,
        /// The network whose webhook it is.
        #[arg(long, value_parser = ["EVM", "TRON"])]
        network: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
    /// Send an event again that was delivered, or given up.
    Replay {
        /// The event (`evt_...`).
        id: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        orchestrator: ConnectionArgs,
    },
}

pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::List {
            token,
            state,
            json,
            orchestrator,
        } => {
            let request = admin::ListWebhookEventsRequest {
                token,
                state: state.unwrap_or_default(),
            };
            let client = orchestrator.client()?;
            let listed = client.call::<ListWebhookEvents>(&request).await?;
            if json {
                return answer_json(&listed);
            }
            let header = ["EVENT", "TOKEN", "STATE", "TRIES", "PROBLEM"];
            print_line(table(header, listed.events.iter().map(row)));
            Ok(())
        }
        Command::Show {
            id,
            json,
            orchestrator,
        } => {
            let request = admin::GetWebhookEventRequest { id };
            let client = orchestrator.client()?;
            let shown = client.call::<GetWebhookEvent>(&request).await?;
            let event = shown.event.unwrap_or_default();
            if json {
                return answer_json(&event);
            }
            print_line(line(&event));
            print_line(&event.body);
            Ok(())
        }
        Command::Test {
            token,
            network,
            json,
            orchestrator,
        } => {
            let request = admin::TestWebhookRequest { token, network };
            let client = orchestrator.client()?;
            let sent = client.call::<TestWebhook>(&request).await?;
            answer(json, &sent, |sent| match sent.problem.as_str() {
                "" => format!("{}\ndelivered", sent.body),
                _ => sent.body.clone(),
            })?;
            match sent.problem.as_str() {
                "" => Ok(()),
                problem => bail!("not delivered: {problem}"),
            }
        }
        Command::Replay {
            id,
            json,
            orchestrator,
        } => {
            let request = admin::ReplayWebhookEventRequest { id };
            let client = orchestrator.client()?;
            let replayed = client.call::<ReplayWebhookEvent>(&request).await?;
            answer(json, &replayed.event.unwrap_or_default(), line)
        }
    }
}

/// An event as a line of the list.
fn row(event: &WebhookEvent) -> [String; 5] {
    let WebhookEvent {
        id,
        token,
        body: _,
        state,
        attempts,
        problem,
        created_at_ms: _,
    } = event;
    // What a receiver has answered is its own.
    let problem = one_line(problem);
    [
        id.clone(),
        token.clone(),
        state.clone(),
        attempts.to_string(),
        problem,
    ]
}

fn line(event: &WebhookEvent) -> String {
    let [id, token, state, attempts, problem] = row(event);
    let problem = match problem.as_str() {
        "" => String::new(),
        problem => format!("  {problem}"),
    };
    format!("{id}  {token}  {state}  tries {attempts}{problem}")
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn line__should_tell_what_came_of_an_event() {
        let event = WebhookEvent {
            id: "evt_1".into(),
            token: "t".into(),
            state: "waiting".into(),
            attempts: 2,
            problem: "it answered 500,\nand only 200 counts".into(),
            ..Default::default()
        };
        let expected = "evt_1  t  waiting  tries 2  it answered 500, and only 200 counts";
        assert_eq!(line(&event), expected);
    }
}
