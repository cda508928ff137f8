use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::{Value, json};

use super::node_tool;

/// Browsers of several people: tests/node/console.mjs.
pub struct Browsers {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Browsers {
    /// Of the pages at this origin; pictures go into a folder of this name.
    pub fn start(origin: &str, pictures: &str) -> Self {
        let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join(pictures);
        node_tool("node_modules/playwright-core");
        let mut child = Command::new(node_tool("node_modules/node/bin/node"))
            .arg(node_tool("console.mjs"))
            .arg(origin)
            .arg(pictures)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (asks, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self {
            child,
            asks,
            answers: BufReader::new(answers),
        }
    }

    /// Has somebody do something.
    pub fn ask(&mut self, ask: &str, who: &str, mut more: Value) -> Value {
        more["ask"] = json!(ask);
        more["who"] = json!(who);
        writeln!(self.asks, "{more}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let answer: Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("{more}: {line}"));
        assert_eq!(answer["error"], Value::Null, "{more}: {answer}");
        answer
    }

    /// Looks at a page, or without a path at the one that is open: in light and dark, wide and narrow, nothing is wider than
    /// the window, axe finds nothing hard to use, and scripts have said nothing.
    pub fn look(&mut self, who: &str, path: Option<&str>, name: &str) {
        let looked = self.ask("picture", who, json!({"path": path, "name": name}));
        assert_eq!(looked["wider"], json!([]), "{name}");
        assert_eq!(looked["serious"], json!([]), "{name}");
        // What was refused on purpose is a line of the browser, too.
        let problems = looked["problems"].as_array().unwrap().iter();
        let problems: Vec<_> = problems
            .filter(|it| !it.as_str().unwrap().contains("Failed to load resource"))
            .collect();
        assert!(problems.is_empty(), "{name}: {problems:?}");
    }
}

impl Browsers {
    /// Fails where a router, as its source has it, has a page that axe has not looked at: but for those routes that show none.
    pub fn assert_looked_at_all(&mut self, router: &str, without_page: &[&str]) {
        let mut routes = routes_of(router);
        for route in without_page {
            assert!(routes.remove(*route), "{route} is not in {router}");
        }
        assert!(routes.len() >= 5, "{router} was read: {routes:?}");
        let looked = self.ask("inspected", "", json!({}));
        let looked = looked["paths"].as_array().unwrap().iter();
        let looked: Vec<Vec<&str>> = looked
            .map(|path| path.as_str().unwrap().split('/').collect())
            .collect();
        routes.retain(|route| {
            let (_, path) = route.split_once(' ').unwrap();
            let parts: Vec<_> = path.split('/').collect();
            !looked.iter().any(|seen| is_at(seen, &parts))
        });
        assert!(routes.is_empty(), "axe has not looked at {routes:?}");
    }
}

/// Whether a path is one of a route. `/batches/new` is not the page of a batch.
fn is_at(path: &[&str], route: &[&str]) -> bool {
    let fits = |(seen, part): (&&str, &&str)| match *part {
        "*" => seen.len() >= 36,
        part => *seen == part,
    };
    path.len() == route.len() && path.iter().zip(route).all(fits)
}

/// The routes of a router: `GET /requests/*`.
fn routes_of(router: &str) -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(router);
    let source = fs::read_to_string(source).unwrap();
    let route = |line: &str| {
        let line = line.trim();
        let (method, rest) = match line.strip_prefix("(true, [") {
            Some(rest) => ("GET", rest),
            None => ("POST", line.strip_prefix("(false, [")?),
        };
        let (parts, _) = rest.split_once("]) =>")?;
        let parts = parts.split(", ").map(|part| match part.strip_prefix('"') {
            Some(text) => text.trim_end_matches('"'),
            // A uuid, or an address.
            None => "*",
        });
        let parts: Vec<_> = parts.collect();
        Some(format!("{method} /{}", parts.join("/")))
    };
    source.lines().filter_map(route).collect()
}

impl Drop for Browsers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
