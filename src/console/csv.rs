//! The history as a file for spreadsheets (RFC 4180), one row for each payment of a request.

use std::{collections::HashSet, sync::Arc};

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, Response, header},
};
use covault_actors::{
    gateway::{Caller, RequestPlace},
    users::SignedIn,
};
use covault_core::fault::Fault;
use futures::stream;

use super::{
    Console, ConsoleCall,
    history_filter::{HistoryFilter, goes_on, list},
    listing::shown,
    reader_places::ReaderPlace,
    response::{PageError, PageResponse},
    search::{SEARCH_PAGE, Search, ShownRequests},
    sessions,
    text::Text,
    views::RequestView,
};
use crate::batch_sheet::is_formula;

/// Most requests of a file, the newest.
const REQUESTS: usize = 10_000;
/// Requests that are read at once.
const PAGE: i64 = 100;
/// Requests that are looked through for a text, the newest, and bytes of them behind which that does not continue: some are
/// nearly a MiB.
const SEARCHED: i64 = 500;
const SEARCHED_BYTES: usize = 16 << 20;
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

/// What is written next.
#[derive(Clone, Copy)]
enum CsvPart {
    Head,
    /// A page of a vault's requests.
    Newest(i64),
    /// What an index has for the search, behind a request.
    Indexed(Option<RequestPlace>),
    /// A page of a vault's requests that may have the text, and the bytes of those before.
    Texts(i64, usize),
    End,
}

/// What is left to write.
struct CsvExport {
    console: Arc<Console>,
    caller: Caller,
    who: SignedIn,
    cookie: String,
    filter: HistoryFilter,
    vault: String,
    next: CsvPart,
    /// Requests that were read.
    read: usize,
    /// What was written: a new request shifts those behind it.
    known: HashSet<String>,
    _place: ReaderPlace,
}

/// The requests that the history shows with the same filter, as a download.
pub async fn export(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
) -> Result<PageResponse, PageError> {
    let place = call.console.long_reads.take(signed_in.user.id)?;
    let filter = HistoryFilter::of(call, signed_in).await?;
    let body = match &filter.vault {
        Some(vault) => {
            let export = CsvExport {
                console: Arc::clone(call.console),
                caller: call.caller(signed_in),
                who: signed_in.clone(),
                cookie: sessions::cookie_of(call),
                vault: vault.clone(),
                filter,
                next: CsvPart::Head,
                read: 0,
                known: HashSet::new(),
                _place: place,
            };
            Body::from_stream(stream::unfold(export, CsvExport::next))
        }
        None => {
            let caller = call.caller(signed_in);
            let search = Search::of(call, signed_in, &caller, &filter);
            let found = search.in_every_vault().await?;
            let mut text = head();
            let views = found.found.values().rev();
            views.for_each(|view| text.push_str(&rows(view)));
            if !found.is_whole {
                text.push_str(&line([found.said("").as_str()]));
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
        let part = match self.next {
            CsvPart::End => return None,
            CsvPart::Head => {
                self.next = match self.filter.search.is_empty() {
                    true => CsvPart::Newest(1),
                    false => CsvPart::Indexed(None),
                };
                return Some((Ok(Bytes::from(head())), self));
            }
            part => self.part(part).await,
        };
        let text = match part {
            Ok((text, next)) => {
                self.next = next;
                Ok(Bytes::from(text))
            }
            Err(fault) => {
                self.next = CsvPart::End;
                Err(fault)
            }
        };
        Some((text, self))
    }

    /// The text of a part, and what follows.
    async fn part(&mut self, part: CsvPart) -> Result<(String, CsvPart), Fault> {
        if !sessions::recheck(&self.cookie, &self.console, &self.who).await {
            return Err(Fault::unauthenticated());
        }
        match part {
            CsvPart::Newest(page) => self.newest(page).await,
            CsvPart::Indexed(before) => self.indexed(before).await,
            CsvPart::Texts(page, bytes) => self.texts(page, bytes).await,
            CsvPart::Head | CsvPart::End => Ok((String::new(), CsvPart::End)),
        }
    }

    async fn newest(&mut self, number: i64) -> Result<(String, CsvPart), Fault> {
        let gateway = &self.console.api.gateway;
        let now_ms = self.console.api.clock.now_ms();
        let (known, filter, who) = (&mut self.known, &self.filter, &self.who);
        let mut text = String::new();
        let page = (number, PAGE);
        let page = list(gateway, &self.caller, &self.vault, page, |request| {
            if known.insert(request.uuid.clone()) && filter.fits(&request) {
                let view = shown(&request, &filter.names, who, now_ms);
                text.push_str(&rows(&view));
            }
        });
        self.read = self.read.saturating_add(page.await?.requests);
        let before = number.saturating_mul(PAGE);
        let goes_on = goes_on(gateway, &self.caller, &self.vault, before).await?;
        if goes_on && self.read >= REQUESTS {
            let said = format!("only the newest {REQUESTS} requests are in this file");
            text.push_str(&line([said.as_str()]));
        } else if goes_on {
            return Ok((text, CsvPart::Newest(number.saturating_add(1))));
        }
        Ok((text, CsvPart::End))
    }

    fn search(&self) -> Search<'_> {
        Search {
            gateway: &self.console.api.gateway,
            caller: &self.caller,
            who: &self.who,
            filter: &self.filter,
            now_ms: self.console.api.clock.now_ms(),
        }
    }

    async fn indexed(&mut self, before: Option<RequestPlace>) -> Result<(String, CsvPart), Fault> {
        let search = self.search();
        let page = search.in_vault(&self.vault, before).await?;
        let mut text = self.unwritten(&page.found);
        self.read = self.read.saturating_add(page.read);
        match page.next {
            Some(_) if self.read >= REQUESTS => {
                let said = format!("only the newest {REQUESTS} that were found are in this file");
                text.push_str(&line([said.as_str()]));
                Ok((text, CsvPart::End))
            }
            Some(next) => Ok((text, CsvPart::Indexed(Some(next)))),
            None => Ok((text, CsvPart::Texts(1, 0))),
        }
    }

    async fn texts(&mut self, number: i64, bytes: usize) -> Result<(String, CsvPart), Fault> {
        let mut found = ShownRequests::new();
        let search = self.search();
        let page = search.with_text((&self.vault, number), &mut found).await?;
        let bytes = bytes.saturating_add(page.bytes);
        let mut text = self.unwritten(&found);
        let before = number.saturating_mul(SEARCH_PAGE);
        let gateway = &self.console.api.gateway;
        if !goes_on(gateway, &self.caller, &self.vault, before).await? {
            return Ok((text, CsvPart::End));
        }
        if before >= SEARCHED || bytes >= SEARCHED_BYTES {
            let said = format!("texts were looked for in the newest {before} requests alone");
            text.push_str(&line([said.as_str()]));
            return Ok((text, CsvPart::End));
        }
        Ok((text, CsvPart::Texts(number.saturating_add(1), bytes)))
    }

    /// The rows of those that were not written yet, the newest first.
    fn unwritten(&mut self, found: &ShownRequests) -> String {
        let mut text = String::new();
        for ((_, uuid), view) in found.iter().rev() {
            if self.known.insert(uuid.clone()) {
                text.push_str(&rows(view));
            }
        }
        text
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

/// A line. What a spreadsheet would take for a formula is made a text by an apostrophe, wherever one that separates cells
/// by something else than a comma would begin a cell.
fn line<'a>(fields: impl IntoIterator<Item = &'a str>) -> String {
    let fields = fields.into_iter().map(|field| {
        let parts = field.split_inclusive([';', ',', '\t', '\r', '\n']);
        let parts = parts.enumerate().map(|(place, part)| {
            let is_text = place == 0 || !part.trim().is_empty();
            let mark = if is_text && is_formula(part) { "'" } else { "" };
            format!("{mark}{}", part.replace('"', "\"\""))
        });
        format!("\"{}\"", parts.collect::<String>())
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
            "=1+1",
            "+1",
            "-1",
            "@SUM(A1)",
            "\t=1",
            "＝1",
            " =1",
            "a\"b",
            "a,b\r\nc",
            "",
            "x;=1+1",
            "x\t@A1",
            "x\n=1",
            "x;\"=1",
            "x, +1;y-1",
        ];
        assert_eq!(
            line(evil),
            "\"'=1+1\",\"'+1\",\"'-1\",\"'@SUM(A1)\",\"'\t'=1\",\"'＝1\",\"' =1\",\"a\"\"b\",\"a,b\r\nc\",\"\",\
             \"x;'=1+1\",\"x\t'@A1\",\"x\n'=1\",\"x;'\"\"=1\",\"x,' +1;y-1\"\r\n"
        );
        assert_eq!(COLUMNS.len(), head().matches(',').count() + 1);
    }
}
