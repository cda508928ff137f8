use std::{
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

impl Drop for Browsers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
