//! What `covault top` shows, for a terminal of any size; 80 columns and 24 lines are enough.

use covault_core::schema::admin::{GetStatusResponse, Node, RequestTotals};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Paragraph, Sparkline, Wrap},
};
use tokio::time::Instant;

use super::rates::RequestRates;
use crate::cli::{
    CANNOT_SIGN,
    node::list,
    one_line,
    status::{
        finding, is_halted,
        report::{INDENT, LABEL_WIDTH, Section, sections},
        why_nothing_signs,
    },
};

/// Names of nodes get at most so much room.
const MAX_NAME: usize = 24;
/// Lines for why the service does not answer, or cannot sign.
const PROBLEM: u16 = 3;
/// How wide the bars are.
const BARS: u16 = 24;
const WELL: Color = Color::Green;
const ATTENTION: Color = Color::Yellow;
const ALARM: Color = Color::Red;

/// What is known of the service.
pub struct View {
    address: String,
    status: GetStatusResponse,
    answered: Instant,
    /// Why it has not answered since.
    problem: Option<String>,
    rates: RequestRates,
}

impl View {
    pub fn new(address: String, status: GetStatusResponse, now: Instant) -> Self {
        let mut view = Self {
            address,
            status: GetStatusResponse::default(),
            answered: now,
            problem: None,
            rates: RequestRates::default(),
        };
        view.hear(Ok(status), now);
        view
    }

    /// It has answered, or has not.
    pub fn hear(&mut self, answer: anyhow::Result<GetStatusResponse>, now: Instant) {
        match answer {
            Ok(mut status) => {
                let totals = std::mem::take(&mut status.request_totals);
                self.rates.hear(now, totals);
                self.status = status;
                self.answered = now;
                self.problem = None;
            }
            Err(error) => self.problem = Some(one_line(&format!("{error:#}"))),
        }
    }

    pub fn draw(&self, frame: &mut Frame<'_>, now: Instant) {
        let (words, color) = self.state(now);
        let is_long = Line::raw(words.as_str()).width() > usize::from(frame.area().width);
        let [title, state, rates, body, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(if is_long { PROBLEM } else { 1 }),
            Constraint::Length(if self.problem.is_some() { PROBLEM } else { 1 }),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_ends(frame, title, &self.title(), &self.clock());
        let style = Style::new().fg(color).add_modifier(Modifier::REVERSED);
        let words = Paragraph::new(words).wrap(Wrap { trim: false });
        frame.render_widget(words.style(style), state);
        match &self.problem {
            Some(problem) => {
                let words = Paragraph::new(problem.as_str()).wrap(Wrap { trim: true });
                frame.render_widget(words, rates);
            }
            None => self.draw_rates(frame, rates),
        }
        let lines = self.lines(body.height.into());
        frame.render_widget(Paragraph::new(lines).style(self.age()), body);
        self.draw_ends(frame, foot, "q leaves", &self.address);
    }

    /// What was said before the service fell silent stands back.
    fn age(&self) -> Style {
        match self.problem {
            None => Style::new(),
            Some(_) => Style::new().add_modifier(Modifier::DIM),
        }
    }

    fn draw_ends(&self, frame: &mut Frame<'_>, area: Rect, left: &str, right: &str) {
        let width = |text: &str| u16::try_from(Line::raw(text).width()).unwrap_or(u16::MAX);
        let start = Constraint::Length(width(left).saturating_add(1));
        let [start, end] = Layout::horizontal([start, Constraint::Fill(1)]).areas(area);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        frame.render_widget(Paragraph::new(left).style(bold), start);
        frame.render_widget(Paragraph::new(right).right_aligned(), end);
    }

    fn title(&self) -> String {
        let status = &self.status;
        format!(
            "Covault {}, orchestrators: {}",
            one_line(&status.version),
            status.orchestrators
        )
    }

    /// The time of the service.
    fn clock(&self) -> String {
        let seconds = self.status.now_ms / 1000;
        let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
        format!("{hours:02}:{minutes:02}:{:02} UTC", seconds % 60)
    }

    /// How it is, as the exit code of `covault status` says it.
    fn state(&self, now: Instant) -> (String, Color) {
        if self.problem.is_some() {
            let seconds = now.duration_since(self.answered).as_secs();
            return (format!(" NO ANSWER for {seconds} s"), ALARM);
        }
        let Some(finding) = finding(&self.status) else {
            return (" WELL: it signs".to_owned(), WELL);
        };
        if finding.code() != CANNOT_SIGN {
            return (format!(" DEGRADED: {finding}"), ATTENTION);
        }
        let why = why_nothing_signs(&self.status).unwrap_or_else(|| finding.to_string());
        (format!(" CANNOT SIGN: {why}"), ALARM)
    }

    fn draw_rates(&self, frame: &mut Frame<'_>, area: Rect) {
        let shown = |count: fn(&RequestTotals) -> u64| {
            let rate = self.rates.per_second(count);
            rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"))
        };
        let words = format!(
            "{} accepted, {} succeeded, {} failed",
            shown(|it| it.created),
            shown(|it| it.succeeded),
            shown(|it| it.failed)
        );
        let [text, bars] =
            Layout::horizontal([Constraint::Fill(1), Constraint::Length(BARS)]).areas(area);
        let line = Line::from(vec![label("per sec."), Span::raw(words)]);
        frame.render_widget(Paragraph::new(line), text);
        let rates = self.rates.bars();
        let older = rates.len().saturating_sub(bars.width.into());
        let bars_of = Sparkline::default().data(rates.into_iter().skip(older));
        frame.render_widget(bars_of, bars);
    }

    /// The sections, in at most so many lines.
    fn lines(&self, height: usize) -> Vec<Line<'static>> {
        let mut nodes: Vec<&Node> = self.status.nodes.iter().collect();
        nodes.sort_by_key(|node| !needs_attention(node));
        let calm = nodes.iter().filter(|node| !needs_attention(node)).count();
        let calm = nodes.len().saturating_sub(calm)..nodes.len();
        let mut sections = sections(&self.status, |_| node_lines(&nodes));
        // Its first line and its state are on top of the screen.
        sections.retain(|section| section.label != "service");
        let shown = shares(&sections, height);
        let mut lines = Vec::new();
        for (section, shown) in sections.iter().zip(shown) {
            let head = Span::raw(section.head.clone());
            lines.push(Line::from(vec![label(section.label), head]));
            let missing = section.details.len().saturating_sub(shown);
            let whole = if missing > 0 {
                shown.saturating_sub(1)
            } else {
                shown
            };
            for (place, detail) in section.details.iter().take(whole).enumerate() {
                let is_calm = match section.label {
                    "nodes" => calm.contains(&place),
                    label => label == "failures",
                };
                let style = if is_calm {
                    Style::new()
                } else {
                    Style::new().fg(ATTENTION)
                };
                lines.push(Line::styled(format!("{INDENT}{detail}"), style));
            }
            if shown > whole {
                let more = section.details.len().saturating_sub(whole);
                lines.push(Line::raw(format!("{INDENT}... {more} more lines")));
            }
        }
        lines
    }
}

fn needs_attention(node: &Node) -> bool {
    !node.live || is_halted(node) || !node.bans.is_empty()
}

fn label(text: &str) -> Span<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Span::styled(format!("{text:<LABEL_WIDTH$}"), bold)
}

/// A line for each node: what it does, its clock, keys and version.
fn node_lines(nodes: &[&Node]) -> Vec<String> {
    let name = |node: &Node| {
        one_line(&node.name)
            .chars()
            .take(MAX_NAME)
            .collect::<String>()
    };
    let width = nodes.iter().map(|node| name(node).chars().count()).max();
    let width = width.unwrap_or_default();
    let line = |node: &&Node| {
        let (name, state) = (name(node), list::state(node));
        if node.last_seen_ms.is_none() {
            return format!("{name:<width$}  {state:<13}  never seen");
        }
        let (clock, keys) = (list::skew(node.clock_skew_ms), node.keys);
        let version = one_line(&node.version);
        format!("{name:<width$}  {state:<13}  clock {clock:<8}  keys {keys:<6}  {version}")
    };
    nodes.iter().map(line).collect()
}

/// How many lines of details each section gets: all their first ones, then all second ones, as long as there is room.
fn shares(sections: &[Section], height: usize) -> Vec<usize> {
    let mut left = height.saturating_sub(sections.len());
    let mut shares = vec![0_usize; sections.len()];
    loop {
        let before = left;
        for (share, section) in shares.iter_mut().zip(sections) {
            if left > 0 && *share < section.details.len() {
                *share = share.saturating_add(1);
                left = left.saturating_sub(1);
            }
        }
        if left == before {
            return shares;
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::time::Duration;

    use covault_core::schema::admin::{
        ChainNodes, FailedRequest, OpenRequestCounts, StoreBackup, VaultCounts,
    };
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;

    const NOW_MS: u64 = 36_000_000;

    fn node(name: &str, live: bool) -> Node {
        Node {
            name: name.into(),
            live,
            last_seen_ms: Some(NOW_MS),
            keys: 2,
            version: "1.2.3".into(),
            ..Node::default()
        }
    }

    fn well() -> GetStatusResponse {
        GetStatusResponse {
            now_ms: NOW_MS,
            version: "1.2.3".into(),
            orchestrators: 2,
            nodes_as_of_ms: Some(NOW_MS),
            nodes: ["vienna", "graz", "linz"]
                .map(|name| node(name, true))
                .into(),
            vaults: Some(VaultCounts {
                counted_ms: NOW_MS,
                ready: 1,
                ..VaultCounts::default()
            }),
            requests: Some(OpenRequestCounts {
                awaiting: 3,
                ..OpenRequestCounts::default()
            }),
            request_totals: vec![RequestTotals {
                process: "one".into(),
                created: 100,
                succeeded: 90,
                failed: 1,
            }],
            last_backup: Some(StoreBackup {
                at_ms: NOW_MS,
                bytes: 4_097,
            }),
            ..GetStatusResponse::default()
        }
    }

    /// Many things at once, so that not all of it fits.
    fn bad() -> GetStatusResponse {
        let failed = FailedRequest {
            at_ms: NOW_MS - 60_000,
            uuid: "0192f3c6-5b4e-7cc3-98c4-dc0c0c07398f".into(),
            vault: "main".into(),
            kind: "evmSendNative".into(),
            class: "insufficient_funds".into(),
            during: "Preparing".into(),
            reason: "too little\u{1b}[2J\nok".into(),
        };
        GetStatusResponse {
            nodes: vec![
                node("graz", true),
                node("vienna", false),
                node("linz", true),
            ],
            vaults: Some(VaultCounts {
                counted_ms: NOW_MS,
                ready: 61,
                short: 1,
                cannot_sign: vec!["till: 1 of 2 signers that dkls23 needs are available".into()],
                no_spare: 60,
                without_spare: vec!["tight".into(); 50],
                ..VaultCounts::default()
            }),
            chains: vec![ChainNodes {
                chain: "TON".into(),
                answering: 0,
                nodes: 2,
            }],
            failures: vec![failed; 10],
            ..well()
        }
    }

    fn view(status: GetStatusResponse) -> (View, Instant) {
        let now = Instant::now();
        (View::new("unix:/run/covault".into(), status, now), now)
    }

    fn shown(view: &View, now: Instant, (width, height): (u16, u16)) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame, now)).unwrap();
        let cells = terminal.backend().buffer().content();
        let lines = cells.chunks(usize::from(width).max(1));
        let line = |cells: &[ratatui::buffer::Cell]| {
            let line: String = cells.iter().map(|cell| cell.symbol()).collect();
            line.trim_end().to_owned()
        };
        lines.map(line).collect()
    }

    #[test]
    fn screen__should_fit_into_80_by_24_when_all_is_well() {
        let (mut view, now) = view(well());
        let now = now + Duration::from_secs(2);
        let more = GetStatusResponse {
            request_totals: vec![RequestTotals {
                process: "one".into(),
                created: 125,
                succeeded: 114,
                failed: 1,
            }],
            ..well()
        };
        view.hear(Ok(more), now);
        let blank = String::new();
        let mut wanted = [
            "Covault 1.2.3, orchestrators: 2                                     10:00:00 UTC",
            " WELL: it signs",
            "per sec.  12.5 accepted, 12.0 succeeded, 0.0 failed     █",
            "nodes     3 of 3 live",
            "          vienna  live           clock ok        keys 2       1.2.3",
            "          graz    live           clock ok        keys 2       1.2.3",
            "          linz    live           clock ok        keys 2       1.2.3",
            "vaults    1 of 1 can sign",
            "requests  3 wait for people",
            "store     ok",
            "bus       ok",
            "backup    0 s ago, 5 KiB",
            "failures  none",
        ]
        .map(str::to_owned)
        .to_vec();
        wanted.resize(23, blank);
        wanted.push(
            "q leaves                                                       unix:/run/covault"
                .to_owned(),
        );
        assert_eq!(shown(&view, now, (80, 24)), wanted);
    }

    #[test]
    fn screen__should_show_the_worst_first_and_how_much_it_leaves_out() {
        let (view, now) = view(bad());
        assert_eq!(
            shown(&view, now, (80, 24))[1..23],
            [
                " CANNOT SIGN: 1 vault cannot sign",
                "per sec.  - accepted, - succeeded, - failed",
                "nodes     2 of 3 live",
                "          vienna  offline        clock ok        keys 2       1.2.3",
                "          graz    live           clock ok        keys 2       1.2.3",
                "          linz    live           clock ok        keys 2       1.2.3",
                "vaults    61 of 62 can sign",
                "          cannot: till: 1 of 2 signers that dkls23 needs are available",
                "          no signer to spare: tight",
                "          no signer to spare: tight",
                "          ... 7 more lines",
                "requests  3 wait for people",
                "chains    0 of 2 nodes answer",
                "          silent: TON: 0 of 2 answer",
                "store     ok",
                "bus       ok",
                "backup    0 s ago, 5 KiB",
                "failures  the last ones:",
                "          60 s ago, vault main, evmSendNative, insufficient_funds (Preparing)",
                "            0192f3c6-5b4e-7cc3-98c4-dc0c0c07398f: too little\\u{1b}[2J ok",
                "          60 s ago, vault main, evmSendNative, insufficient_funds (Preparing)",
                "          ... 17 more lines",
            ]
        );
        let wide = shown(&view, now, (160, 60)).join("\n");
        assert!(wide.contains("too little\\u{1b}[2J ok"), "{wide}");
        assert!(!wide.contains("more lines"), "{wide}");
    }

    #[test]
    fn screen__should_say_all_of_why_nothing_signs() {
        let why = "the bus cannot be reached: rediss://bus.internal.example.com:6379/: the certificate has expired on \
                   2026-11-27";
        let (view, now) = view(GetStatusResponse {
            not_ready: Some(why.into()),
            ..well()
        });
        let shown = shown(&view, now, (80, 24));
        let said = shown[1..4].concat();
        let letters = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(letters(&said), letters(&format!("CANNOT SIGN: {why}")));
        assert!(shown[4].starts_with("per sec."), "{shown:?}");
    }

    #[test]
    fn screen__should_say_for_how_long_nothing_has_answered() {
        let (mut view, now) = view(well());
        let silence = anyhow::anyhow!("connection refused").context("it does not answer");
        view.hear(Err(silence), now);
        let now = now + Duration::from_secs(12);
        assert_eq!(
            shown(&view, now, (80, 24))[1..3],
            [
                " NO ANSWER for 12 s",
                "it does not answer: connection refused"
            ]
        );
        view.hear(Ok(well()), now);
        assert_eq!(shown(&view, now, (80, 24))[1], " WELL: it signs");
    }

    #[test]
    fn state__should_be_that_of_the_exit_code() {
        let state = |status| {
            let (view, now) = view(status);
            view.state(now)
        };
        assert_eq!(state(well()).1, WELL);
        let unsaved = GetStatusResponse {
            last_backup: None,
            ..well()
        };
        let (words, color) = state(unsaved);
        assert_eq!(
            (words.as_str(), color),
            (
                " DEGRADED: it signs, but something needs attention",
                ATTENTION
            )
        );
        let away = GetStatusResponse {
            not_ready: Some("the bus is away".into()),
            store_problem: Some("the store is away".into()),
            ..well()
        };
        let (words, color) = state(away);
        assert_eq!(
            (words.as_str(), color),
            (" CANNOT SIGN: the bus is away", ALARM)
        );
    }

    #[test]
    fn terminal__should_have_any_size() {
        for size in [(1, 1), (3, 2), (20, 5), (40, 8), (300, 3), (500, 200)] {
            for status in [well(), bad(), GetStatusResponse::default()] {
                let (view, now) = view(status);
                shown(&view, now, size);
            }
        }
    }
}
