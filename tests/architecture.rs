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
    &["sync", "time", "entropy", "race"],
    &["config", "striped", "hash"],
    &["outcome", "backoff", "window", "observe"],
    &["budget"],
    // The ports, and first what they share. A lease can be kept in any store.
    &["port"],
    &["store", "queue", "notify"],
    &["lease", "flight"],
    // The call seam; the backends, which implement the ports and know no pattern; the edge to HTTP, which knows the verdict alone.
    &["call", "backend", "http"],
    // The patterns: none of them imports another.
    &[
        "timeout",
        "retry",
        "circuit_breaker",
        "throttling",
        "coalesce",
        "hedge",
        "fallback",
        "chaos",
        "cache_aside",
        "claim_check",
        "leader_election",
        "queue_listener",
        "sharding",
    ],
    // The roof, and the wings: for tests, around services.
    &["standard", "journal", "testing", "tower"],
    // What looks at all of them.
    &["metrics"],
];

/// Who alone may name what.
const DOORS: &[(&str, &[&str])] = &[
    ("tokio::time", &["time"]),
    ("std::time::Instant", &["time"]),
    ("std::time::SystemTime", &["time"]),
    ("quanta", &["time"]),
    ("rand", &["entropy"]),
    (
        "loom",
        &[
            "sync",
            "circuit_breaker/loom_tests.rs",
            "circuit_breaker/loom_parts.rs",
            "throttling/loom_tests.rs",
            "throttling/shared/leases.rs",
        ],
    ),
    ("tokio::spawn", &["testing"]),
    ("std::thread::spawn", &[]),
    // A backend that blocks has a thread of its own.
    ("std::thread", &["backend", "circuit_breaker/permit.rs", "metrics/calls.rs", "striped/tests.rs"]),
    ("rusqlite", &["backend"]),
    ("twox_hash", &["hash.rs"]),
    // What goes side by side: requests to many shards, marks and debts of a cache, bodies, parts of a queue, renewals.
    (
        "futures_util",
        &[
            "sharding/fan_out.rs",
            "cache_aside/remote.rs",
            "cache_aside/remote_change.rs",
            "cache_aside/shared.rs",
            "claim_check",
            "queue/partitioned.rs",
            "queue_listener",
        ],
    ),
    ("arc_swap", &["hedge", "chaos"]),
    ("quick_cache", &["cache_aside/local.rs"]),
    ("rustix", &["time", "backend/sqlite/failure.rs", "backend/sqlite/identity.rs"]),
    ("http", &["http", "tower"]),
    ("httpdate", &["http/hints.rs"]),
    ("metrics", &["metrics"]),
    ("reqwest", &["http/by_reqwest.rs"]),
    ("tonic", &["http/by_tonic.rs"]),
    ("tower_layer", &["tower"]),
    ("tower_service", &["tower"]),
    ("lazy_static", &[]),
];

/// No file is longer.
const LINES: usize = 400;

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
        self.path.ends_with("tests.rs") || self.path.contains("/tests/")
    }

    /// The lines without comments and documentation.
    fn code(&self) -> String {
        let code = |line: &'_ str| line.split(" //").next().unwrap_or_default().to_owned();
        self.text.lines().filter(|l| !l.trim_start().starts_with("//")).map(code).collect::<Vec<_>>().join("\n")
    }
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&room))
}

/// Every path that a piece of code names after `root::`, with groups spelt out: `root::{a::{b, c}, d}` gives `a::b`, `a::c` and
/// `d`. What a macro names by `$crate` is its user's, and goes by the front door.
fn paths(code: &str, root: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, found) in code.match_indices(&format!("{root}::")) {
        if !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
            spell_out(&code[at + found.len()..], String::new(), &mut paths);
        }
    }
    paths
}

/// Reads one path or group at the start of `code`; gives what follows it.
fn spell_out<'a>(code: &'a str, before: String, paths: &mut Vec<String>) -> &'a str {
    let code = code.trim_start();
    if let Some(mut rest) = code.strip_prefix('{') {
        loop {
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
            rest = spell_out(rest, before.clone(), paths);
            // Over ` as name` and the comma.
            let Some(next) = rest.find([',', '}']) else { return "" };
            rest = rest[next..].trim_start_matches(',');
        }
    }
    let end = code.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(code.len());
    let path = if before.is_empty() { code[..end].to_owned() } else { format!("{before}::{}", &code[..end]) };
    match code[end..].strip_prefix("::") {
        Some(rest) => spell_out(rest, path, paths),
        None => {
            paths.push(path);
            &code[end..]
        }
    }
}

/// The rooms that a file names: after `crate::`, or after as many `super::` as lead out of its room.
fn imports(path: &str, code: &str) -> Vec<String> {
    let deep = path.trim_end_matches("/mod.rs").split('/').count();
    let outside = ["super"].repeat(deep).join("::");
    let named = paths(code, "crate").into_iter().chain(paths(code, &outside));
    named.map(|path| path.split("::").next().unwrap_or_default().to_owned()).filter(|room| room != "super").collect()
}

/// What a file names of the crates whose doors are watched, as whole paths.
fn watched(code: &str) -> Vec<String> {
    let of = |root: &'static str| paths(code, root).into_iter().map(move |path| format!("{root}::{path}"));
    [
        "tokio",
        "std",
        "quanta",
        "rand",
        "loom",
        "lazy_static",
        "quick_cache",
        "arc_swap",
        "rusqlite",
        "rustix",
        "twox_hash",
        "futures_util",
        "http",
        "httpdate",
        "metrics",
        "reqwest",
        "tonic",
        "tower_layer",
        "tower_service",
    ]
    .into_iter()
    .flat_map(of)
    .collect()
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
        for import in imports(path, &code) {
            match floor(&import) {
                None if !file.is_test() => {
                    faults.push(format!("{path}: `{room}` imports `{import}` by the front door"))
                }
                Some(there) if import != room && there >= here && !file.is_test() => {
                    faults.push(format!("{path}: `{room}` imports `{import}`, which is not below it"));
                }
                _ => {}
            }
        }
        // `time::scaled` stops at the longest duration.
        for panics in
            ["mul_f64(", "mul_f32(", "div_f64(", "div_f32(", "Duration::from_secs_f64(", "Duration::from_secs_f32("]
        {
            if !file.is_test() && code.contains(panics) {
                faults.push(format!("{path}: `{panics}..)` panics beyond the longest duration"));
            }
        }
        for (what, allowed) in DOORS {
            let may = allowed.iter().any(|a| room == *a || path == a);
            let names = |path: &String| *path == *what || path.starts_with(&format!("{what}::"));
            if !may && watched(&code).iter().any(names) {
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
    assert!(found("backoff.rs", "//! x\nrand::random()").contains("names `rand`"));
    // However it is written.
    for text in [
        "use tokio::{sync::Mutex, time::{self, sleep}};",
        "use std::time::{Duration, Instant as Now};",
        "use std::{fmt, time::{Duration, SystemTime}};",
        "fn f() { std::thread::spawn(f); }",
    ] {
        assert!(found("retry/mod.rs", &format!("//! x\n{text}")).contains("names `"), "{text}");
    }
    assert_eq!(found("retry/mod.rs", "//! x\nuse std::time::Duration; use operand::x; // rand::random()"), "");
    for (path, text) in [
        ("retry/policy.rs", "use super::super::throttling::Quota;"),
        ("retry/mod.rs", "use super::{call, throttling};"),
        ("backoff.rs", "use super::throttling;"),
        ("retry/a/b.rs", "use crate::{call as c, throttling::{Quota as Q, x}};"),
    ] {
        assert!(found(path, &format!("//! x\n{text}")).contains("imports `throttling`"), "{path}: {text}");
    }
    assert_eq!(found("retry/policy.rs", "//! x\nuse super::{throttling};"), "", "a file of its own");
    assert!(found("retry/mod.rs", "//! x\nuse crate::Rejected;").contains("by the front door"));
    assert!(found("retry/mod.rs", "//! x\nlet wait = d.mul_f64(1.2);").contains("panics beyond the longest duration"));
    assert_eq!(found("retry/mod.rs", "//! x\nDuration::try_from_secs_f64(1.2)"), "");
    assert!(found("attic/mod.rs", "//! x\n").contains("not on the floor plan"));
    assert!(found("call/mod.rs", "use x;").contains("does not say what it is"));
    assert!(found("call/mod.rs", &"//! x\n".repeat(LINES + 1)).contains("longer"));
}
