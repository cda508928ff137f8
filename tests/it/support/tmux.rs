use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::{covault, eventually};

/// A shell in a terminal of 80 columns and 24 lines, as people have it: tmux.
pub struct Terminal {
    socket: PathBuf,
    pictures: PathBuf,
}

impl Terminal {
    /// With the program in its path; what it shows is kept in a folder of this name.
    pub fn start(folder: &Path, pictures: &str) -> Self {
        let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join(pictures);
        fs::create_dir_all(&pictures).unwrap();
        let socket = folder.join("tmux");
        let terminal = Self { socket, pictures };
        let program = covault().get_program().to_owned();
        let bin = Path::new(&program).parent().unwrap().display().to_string();
        let path = format!("PATH={bin}:/usr/bin:/bin:/usr/sbin:/sbin");
        let begin = ["-u", "-f", "/dev/null", "new-session", "-d"];
        let size = ["-x", "80", "-y", "24"];
        // As words of a command: no shell of tmux's comes before, which would set them anew.
        let shell = ["env", &path, "PS1=$ ", "sh"];
        terminal.tmux(&[&begin[..], &size, &shell].concat());
        terminal
    }

    fn tmux(&self, words: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).args(words);
        let Output {
            status,
            stdout,
            stderr,
        } = command.env_remove("TMUX").output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        assert!(status.success(), "{words:?}: {}", text(stderr));
        text(stdout)
    }

    /// Types a line.
    pub fn line(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.key("Enter");
    }

    /// Presses a key, by tmux's name.
    pub fn key(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// What is on the screen.
    pub fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// A format of tmux, such as `#{alternate_on}`.
    pub fn shown(&self, format: &str) -> String {
        self.tmux(&["display-message", "-p", format])
            .trim()
            .to_owned()
    }

    /// Waits until the screen shows all of these words.
    pub async fn until(&self, words: &[&str]) -> String {
        let mut seen = String::new();
        eventually(&format!("the screen shows {words:?}"), async || {
            seen = self.screen();
            let all = words.iter().all(|word| seen.contains(word));
            all.then(|| seen.clone())
        })
        .await
    }

    /// Keeps the screen, as text and with its colours.
    pub fn keep(&self, name: &str) {
        let all = ["capture-pane", "-p", "-S", "-"];
        for (kind, more) in [("txt", &[][..]), ("ansi", &["-e"])] {
            let shown = self.tmux(&[&all, more].concat());
            fs::write(self.pictures.join(format!("{name}.{kind}")), shown).unwrap();
        }
    }

    /// Runs a command on an empty screen, and waits for its exit code.
    pub async fn run(&self, command: &str) -> (String, String) {
        self.tmux(&["send-keys", "-R"]);
        self.tmux(&["clear-history"]);
        self.line(&format!("{command}; echo \"exit code $?.\""));
        let what = format!("{command} ends");
        let ended = eventually(&what, async || {
            let shown = self.tmux(&["capture-pane", "-p", "-J", "-S", "-"]);
            let (_, code) = shown.rsplit_once("exit code ")?;
            let (code, _) = code.split_once('.')?;
            let code = code.to_owned();
            code.parse::<u8>().ok()?;
            Some((code, shown))
        });
        ended.await
    }

    /// The process that is in front in the terminal.
    pub fn process(&self) -> u32 {
        let shell = self.shown("#{pane_pid}");
        let stat = fs::read_to_string(format!("/proc/{shell}/stat")).unwrap();
        // Behind the name: state, parent, group, session, terminal, its group in front.
        let (_, rest) = stat.rsplit_once(')').unwrap();
        rest.split_whitespace().nth(5).unwrap().parse().unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let kill = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .arg("kill-server")
            .output();
        drop(kill);
    }
}
