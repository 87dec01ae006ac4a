//! Child processes of a test: each runs one test of this program, and says lines until it is killed.
use std::{
    io::{BufRead, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
};

/// Set for a child process: its name, and its file.
const CHILD: &str = "STEADFAST_TEST_CHILD_OF_A_FILE";

/// Returns the name and the file of this process, if it is a child.
pub(crate) fn told() -> Option<(String, String)> {
    let told = std::env::var(CHILD).ok()?;
    told.split_once(' ').map(|(name, path)| (name.to_owned(), path.to_owned()))
}

/// Tells the parent a line.
pub(crate) fn say(line: &str) {
    // One write, so that lines of processes do not mix. A closed pipe means that the parent does not read any more.
    let _ = std::io::stdout().lock().write_all(format!("\nCHILD {line}\n").as_bytes());
}

/// Starts a child process that runs this test, and whose lines arrive in the channel.
pub(crate) fn start(test: &str, name: &str, path: &Path, lines: &mpsc::Sender<String>) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, format!("{name} {}", path.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let (out, lines) = (BufReader::new(child.stdout.take().unwrap()), lines.clone());
    std::thread::spawn(move || {
        for line in out.lines().map(Result::unwrap) {
            if let Some(said) = line.strip_prefix("CHILD ") {
                let _ = lines.send(said.to_owned());
            }
        }
    });
    child
}

/// Kills a child process, which must still run.
pub(crate) fn kill(mut child: Child) {
    assert!(child.try_wait().unwrap().is_none(), "a process ended by itself");
    child.kill().unwrap();
    child.wait().unwrap();
}
