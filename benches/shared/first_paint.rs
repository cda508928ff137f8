//! How soon a person sees something: Chromium on a line of 1 MB/s, which has kept nothing from before.

use serde_json::json;

use crate::{console_person::ConsolePerson, goals::GoalTable, support::Browsers};

/// Bytes per second.
const LINE: u32 = 1_000_000;
/// Of each page.
const TIMES: usize = 20;
/// Milliseconds until something is seen; kilobytes of HTML, CSS and scripts together.
const MOST_MS: f64 = 300.0;
const MOST_KB: f64 = 200.0;

/// Opens these pages as this person, and adds a line of each.
pub fn measure(person: &ConsolePerson, paths: &[&str], table: &mut GoalTable) {
    let mut browser = Browsers::start(person.origin(), "first-paint");
    let passkey = json!({"credential": person.for_a_browser()});
    browser.ask("addPasskey", "reader", passkey);
    browser.ask("signIn", "reader", json!({}));
    for path in paths {
        let how = json!({"path": path, "bytesPerSecond": LINE, "times": TIMES});
        let seen = browser.ask("firstPaint", "reader", how);
        let ms = seen["ms"].as_array().unwrap().iter();
        let mut ms: Vec<f64> = ms.map(|it| it.as_f64().unwrap()).collect();
        ms.sort_by(f64::total_cmp);
        let (middle, last) = (ms[ms.len() / 2], ms[ms.len() - 1]);
        let name = |what: &str| format!("{what} of {path}");
        table.add(&name("first paint, median"), middle, MOST_MS, "ms");
        table.add(&name("first paint, slowest"), last, MOST_MS, "ms");
        let kilobytes = seen["bytes"].as_f64().unwrap() / 1e3;
        table.add(&name("all that is loaded"), kilobytes, MOST_KB, "kB");
    }
}
