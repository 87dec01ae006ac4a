//! The floor plan, held against the code: a room imports lower floors only.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The floors, lowest first. A room may import rooms of lower floors, and of its own floor where it says so.
const FLOORS: &[&[&str]] = &[
    // Values and time.
    &["sync", "time", "entropy"],
    &["config", "striped"],
    &["outcome", "backoff", "window", "observe"],
    // The call seam.
    &["call"],
    // The patterns: none of them imports another.
    &["timeout", "retry", "circuit_breaker", "throttling"],
    // The roof, and the wing for tests.
    &["standard", "testing"],
];

/// Who alone may name what.
const DOORS: &[(&str, &[&str])] = &[
    ("tokio::time", &["time"]),
    ("std::time::Instant", &["time"]),
    ("SystemTime", &["time"]),
    ("quanta::", &["time"]),
    ("rand::", &["entropy"]),
    ("loom::", &["sync", "circuit_breaker/loom_tests.rs", "throttling/loom_tests.rs"]),
    ("tokio::spawn", &[]),
    ("std::thread::spawn", &[]),
    ("lazy_static", &[]),
];

/// No file is longer.
const LINES: usize = 420;

struct File {
    /// Relative to `src`, with `/`.
    path: String,
    text: String,
}

impl File {
    fn room(&self) -> &str {
        self.path.split('/').next().unwrap().trim_end_matches(".rs")
    }

    fn is_test(&self) -> bool {
        self.path.ends_with("tests.rs")
    }

    /// The lines that are neither comments nor documentation.
    fn code(&self) -> String {
        self.text.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
    }
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&room))
}

/// The rooms that a piece of code names after `crate::`.
fn imports(code: &str) -> Vec<String> {
    let word = |s: &str| s.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut rooms = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let Some(group) = rest.strip_prefix('{') else {
            rooms.push(word(rest));
            continue;
        };
        // The names at the top of a group: `{a::{b, c}, d}` names a and d.
        let (mut depth, mut start) = (0, 0);
        for (i, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    rooms.push(word(&group[start..i]));
                    start = i + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    rooms.retain(|room| !room.is_empty());
    rooms
}

/// All that is wrong with these files.
fn faults(files: &[File]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files {
        let (path, room) = (&file.path, file.room());
        if file.text.lines().count() > LINES {
            faults.push(format!("{path}: longer than {LINES} lines"));
        }
        if !file.text.starts_with("//!") {
            faults.push(format!("{path}: its first line does not say what it is"));
        }
        if room == "lib" || room == "_docs" {
            continue;
        }
        let Some(here) = floor(room) else {
            faults.push(format!("{path}: `{room}` is not on the floor plan"));
            continue;
        };
        let code = file.code();
        for import in imports(&code) {
            match floor(&import) {
                Some(there) if import != room && there >= here && !file.is_test() => {
                    faults.push(format!("{path}: `{room}` imports `{import}`, which is not below it"));
                }
                _ => {}
            }
        }
        for (what, allowed) in DOORS {
            let may = allowed.iter().any(|a| room == *a || path == a);
            if code.contains(what) && !may {
                faults.push(format!("{path}: names `{what}`"));
            }
        }
    }
    faults
}

fn read(dir: &Path, root: &Path, files: &mut Vec<File>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            read(&path, root, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let relative = path.strip_prefix(root).unwrap();
            let name = relative.iter().map(|part| part.to_str().unwrap()).collect::<Vec<_>>().join("/");
            files.push(File { path: name, text: fs::read_to_string(&path).unwrap() });
        }
    }
}

fn sources() -> Vec<File> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    read(&src, &src, &mut files);
    files
}

#[test]
fn rooms_import_only_the_rooms_below_them() {
    let faults = faults(&sources());
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn every_room_of_the_plan_is_there() {
    let mut rooms: BTreeMap<&str, usize> =
        FLOORS.iter().flat_map(|floor| floor.iter().map(|room| (*room, 0))).collect();
    let files = sources();
    for file in &files {
        if let Some(lines) = rooms.get_mut(file.room()) {
            *lines += file.text.lines().count();
        }
    }
    let empty: Vec<_> = rooms.iter().filter(|(_, lines)| **lines < 5).collect();
    assert!(empty.is_empty(), "{empty:?}");
}

#[test]
fn the_check_finds_what_it_is_for() {
    let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
    let found = |path: &str, text: &str| faults(&[file(path, text)]).join("\n");
    assert_eq!(
        found("retry/mod.rs", "//! x\nuse crate::{call::{Policy, Attempt}, outcome::Stop};\n// crate::throttling"),
        ""
    );
    assert!(found("retry/mod.rs", "//! x\nuse crate::circuit_breaker::State;").contains("imports `circuit_breaker`"));
    assert!(found("outcome/mod.rs", "//! x\nuse crate::{time::Instant, call::Policy};").contains("imports `call`"));
    assert!(found("retry/mod.rs", "//! x\nlet a = tokio::time::Instant::now();").contains("names `tokio::time`"));
    assert!(found("backoff.rs", "//! x\nrand::random()").contains("names `rand::`"));
    assert!(found("attic/mod.rs", "//! x\n").contains("not on the floor plan"));
    assert!(found("call/mod.rs", "use x;").contains("does not say what it is"));
    assert!(found("call/mod.rs", &"//! x\n".repeat(LINES + 1)).contains("longer"));
}
