//! The history as a file for spreadsheets (RFC 4180), one row for each payment of a request.

use std::{collections::HashSet, sync::Arc};

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, Response, header},
};
use covault_actors::{gateway::Caller, users::SignedIn};
use covault_core::fault::Fault;
use futures::stream;

use super::{
    Console, ConsoleCall, LongRead,
    history_filter::{HistoryFilter, goes_on, list},
    listing::shown,
    response::{PageError, PageResponse},
    search::search,
    sessions,
    text::Text,
    views::RequestView,
};

/// Most requests of a file, the newest.
const REQUESTS: usize = 10_000;
/// Requests that are read at once.
const PAGE: i64 = 100;
const COLUMNS: [&str; 18] = [
    "created",
    "uuid",
    "vault",
    "kind",
    "status",
    "network",
    "from",
    "to",
    "amount",
    "amount in the smallest unit",
    "asset",
    "transaction",
    "failed",
    "approved by",
    "notes",
    "replaces",
    "on the chain",
    "replaced by",
];

/// What is left to write.
struct CsvExport {
    console: Arc<Console>,
    caller: Caller,
    who: SignedIn,
    cookie: String,
    filter: HistoryFilter,
    vault: String,
    /// The page that is read next; 0: the head is written first.
    page: i64,
    written: usize,
    /// What was written: a new request shifts those behind it.
    known: HashSet<String>,
    is_over: bool,
    _place: LongRead,
}

/// The requests that the history shows with the same filter, as a download.
pub async fn export(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    let place = call.long_read(signed_in)?;
    let filter = HistoryFilter::of(call, signed_in).await?;
    let body = match (&filter.vault, filter.search.is_empty()) {
        (Some(vault), true) => {
            let export = CsvExport {
                console: Arc::clone(call.console),
                caller: call.caller(signed_in),
                who: signed_in.clone(),
                cookie: sessions::cookie_of(call),
                vault: vault.clone(),
                filter,
                page: 0,
                written: 0,
                known: HashSet::new(),
                is_over: false,
                _place: place,
            };
            Body::from_stream(stream::unfold(export, CsvExport::next))
        }
        _ => {
            let found = search(call, signed_in, &filter).await?;
            let mut text = head();
            found
                .requests
                .iter()
                .for_each(|view| text.push_str(&rows(view)));
            if !found.is_whole {
                text.push_str(&line([found.said.as_str()]));
            }
            Body::from(text)
        }
    };
    let mut response = Response::new(body);
    for (name, value) in [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"requests.csv\"",
        ),
    ] {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    Ok(PageResponse::stream(response))
}

impl CsvExport {
    /// The next part; an error cuts the download off, so that nobody takes a part for the whole.
    async fn next(mut self) -> Option<(Result<Bytes, Fault>, Self)> {
        if self.is_over {
            return None;
        }
        let part = self.part().await;
        self.is_over |= part.is_err();
        Some((part.map(Bytes::from), self))
    }

    async fn part(&mut self) -> Result<String, Fault> {
        if self.page == 0 {
            self.page = 1;
            return Ok(head());
        }
        if !sessions::recheck(&self.cookie, &self.console, &self.who).await {
            return Err(Fault::unauthenticated());
        }
        let gateway = &self.console.api.gateway;
        let now_ms = self.console.api.clock.now_ms();
        let (known, filter, who) = (&mut self.known, &self.filter, &self.who);
        let mut text = String::new();
        let page = (self.page, PAGE);
        let page = list(gateway, &self.caller, &self.vault, page, |request| {
            if known.insert(request.uuid.clone()) && filter.fits(&request) {
                let view = shown(&request, &filter.names, who, now_ms);
                text.push_str(&rows(&view));
            }
        });
        let page = page.await?;
        self.page = self.page.saturating_add(1);
        let before = (self.page.saturating_sub(1)).saturating_mul(PAGE);
        self.is_over = !goes_on(gateway, &self.caller, &self.vault, before).await?;
        self.written = self.written.saturating_add(page.requests);
        if !self.is_over && self.written >= REQUESTS {
            self.is_over = true;
            let said = format!("only the newest {REQUESTS} requests are in this file");
            text.push_str(&line([said.as_str()]));
        }
        Ok(text)
    }
}

fn head() -> String {
    line(COLUMNS)
}

/// One row for each payment; one for a request that pays nobody.
fn rows(view: &RequestView) -> String {
    let row = |payment: [&str; 4]| {
        let [to, amount, smallest, asset] = payment;
        let RequestView {
            uuid,
            vault,
            kind,
            status,
            network,
            wallet,
            notes,
            created,
            tx_hash,
            failed,
            replaces,
            replaced_by,
            on_chain,
            approvals,
            ..
        } = view;
        let approved: Vec<_> = approvals.iter().map(|it| it.person.to_string()).collect();
        let replaced_by: Vec<_> = replaced_by.iter().map(Text::to_string).collect();
        line([
            created.machine.as_str(),
            uuid,
            &vault.to_string(),
            &kind.to_string(),
            status,
            &network.to_string(),
            &wallet.to_string(),
            to,
            amount,
            smallest,
            asset,
            &tx_hash.to_string(),
            &failed.to_string(),
            &approved.join(", "),
            &notes.to_string(),
            &replaces.to_string(),
            on_chain.as_ref().map_or("", |it| it.word),
            &replaced_by.join(", "),
        ])
    };
    if view.spends.is_empty() {
        return row(["", "", "", ""]);
    }
    let spends = view.spends.iter().map(|spend| {
        row([
            &spend.recipient.to_string(),
            &spend.amount,
            &spend.smallest,
            &spend.asset.to_string(),
        ])
    });
    let more = match view.more_spends {
        0 => String::new(),
        more => row([&format!("and {more} more payments"), "", "", ""]),
    };
    spends.chain([more]).collect()
}

/// A line. What a spreadsheet would take for a formula is made a text by an apostrophe.
fn line<'a>(fields: impl IntoIterator<Item = &'a str>) -> String {
    let fields = fields.into_iter().map(|field| {
        // Some spreadsheets take the wide forms of these for the same.
        let is_formula = field
            .trim_start_matches(' ')
            .starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠']);
        let mark = if is_formula { "'" } else { "" };
        format!("\"{mark}{}\"", field.replace('"', "\"\""))
    });
    let fields: Vec<_> = fields.collect();
    format!("{}\r\n", fields.join(","))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn line__should_let_no_text_become_a_formula_or_another_cell() {
        let evil = [
            "=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "＝1", " =1", "a\"b", "a,b\r\nc", "",
        ];
        assert_eq!(
            line(evil),
            "\"'=1+1\",\"'+1\",\"'-1\",\"'@SUM(A1)\",\"'\t=1\",\"'＝1\",\"' =1\",\"a\"\"b\",\"a,b\r\nc\",\"\"\r\n"
        );
        assert_eq!(COLUMNS.len(), head().matches(',').count() + 1);
    }
}
