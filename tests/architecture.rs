//! The floor plan as a test: a room imports lower floors only.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
mod sources;

use std::collections::BTreeMap;

/// The folders of `src`, lowest floor first. A room imports rooms of lower floors. Rooms of one floor may import each other
/// without a cycle, except patterns, which never do.
const FLOORS: &[&str] = &["ground", "ports", "call", "work", "patterns", "roof", "wings"];

/// The floors that are one room.
const ROOMS: &[&str] = &["call", "work"];

/// Rooms that may import fewer floors than those below them: backends use the ports and no pattern, and `http` uses
/// verdicts only.
const NARROW: &[(&str, &[&str])] = &[("backend", &["ground", "ports"]), ("http", &["ground"])];

/// The only rooms or files that may name a path.
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
            "ground/time/block_on.rs",
            "patterns/circuit_breaker/loom_tests.rs",
            "patterns/circuit_breaker/loom_parts.rs",
            "patterns/throttling/loom_tests.rs",
            "patterns/throttling/shared/leases.rs",
        ],
    ),
    ("tokio::spawn", &["testing"]),
    ("tokio::runtime::Handle", &["spawn", "time"]),
    ("std::thread::spawn", &[]),
    // A blocking backend has its own thread, and so has a case that may block.
    (
        "std::thread",
        &[
            "backend",
            "patterns/circuit_breaker/permit.rs",
            "wings/metrics/calls.rs",
            "wings/testing/conformance/case.rs",
            "ground/striped/tests.rs",
        ],
    ),
    ("aws_lc_rs", &["ground/token/crypto.rs", "backend"]),
    ("base64", &["ground/sha256.rs", "ground/token/crypto.rs"]),
    ("sha2", &["ground/sha256.rs"]),
    ("jsonwebtoken", &["ground/token/crypto.rs"]),
    ("async_nats", &["backend"]),
    ("redis", &["backend"]),
    ("rusqlite", &["backend"]),
    ("tokio_postgres", &["backend"]),
    ("rustls", &["backend"]),
    ("tokio_rustls", &["backend"]),
    ("rustls_native_certs", &["backend"]),
    ("twox_hash", &["hash"]),
    // Concurrent work: requests to many shards, tags and pending invalidations of a cache, bodies, steps of a saga, partitions,
    // parts of a queue, renewals, wakers of children, checks, probes, questions to sentinels, rows of a write, commits of a refused
    // request, partitions of a view's sources, entries of an index, files of a site.
    (
        "futures_util",
        &[
            "patterns/sharding/fan_out.rs",
            "patterns/cache_aside/many.rs",
            "patterns/cache_aside/many_load.rs",
            "patterns/cache_aside/remote/lookup.rs",
            "patterns/cache_aside/remote/write.rs",
            "patterns/cache_aside/remote/shared.rs",
            "claim_check",
            "flight",
            "patterns/saga/execution.rs",
            "patterns/saga/recover.rs",
            "ports/queue/partitioned.rs",
            "queue_listener",
            "patterns/health/component.rs",
            "patterns/health/prober/ask.rs",
            "patterns/health/prober/mod.rs",
            "index_table",
            "patterns/static_content/publisher.rs",
            "patterns/static_content/prune.rs",
            "patterns/static_content/site.rs",
            "patterns/valet_key/limited.rs",
            "patterns/valet_key/uploads/checks.rs",
            "patterns/valet_key/uploads/sweep.rs",
            "patterns/supervisor/signal.rs",
            "patterns/supervisor/task.rs",
            "roof/event_sourcing/send.rs",
            "roof/event_sourcing/decide.rs",
            "roof/materialized_view/run.rs",
            "roof/materialized_view/view.rs",
            "roof/stream/processor/members.rs",
            "roof/stream/processor/run.rs",
            "roof/stream/processor/state.rs",
            "roof/stream/processor/handlers.rs",
            "wings/console/board.rs",
            // The client's subscriptions are streams.
            "wings/backend/nats/notifier.rs",
            "wings/backend/nats/queue/clean.rs",
            "wings/backend/nats/queue/receive.rs",
            "wings/backend/nats/queue/send.rs",
            "wings/backend/nats/queue/settle.rs",
            "wings/backend/nats/reader.rs",
            "wings/backend/nats/scan.rs",
            "wings/backend/nats/snapshot.rs",
            "wings/backend/nats/store.rs",
            "wings/backend/nats/write.rs",
            "wings/backend/redis/sentinel.rs",
        ],
    ),
    (
        "arc_swap",
        &[
            "hedge",
            "chaos",
            "ground/config/live.rs",
            "patterns/config_store/component.rs",
            "patterns/static_content/site.rs",
        ],
    ),
    ("object_store", &["static_content", "valet_key"]),
    ("quick_cache", &["patterns/cache_aside/local/table.rs", "roof/event_sourcing/aggregates.rs"]),
    (
        "rustix",
        &["wings/backend/sqlite/failure.rs", "wings/backend/sqlite/identity.rs", "wings/backend/sqlite/machine.rs"],
    ),
    ("http", &["console", "http", "tower", "health_http"]),
    ("http_body", &["console", "tower"]),
    ("httpdate", &["wings/http/hints.rs"]),
    ("metrics", &["metrics"]),
    // A probe is a request.
    (
        "reqwest",
        &[
            "patterns/health/prober/ask.rs",
            "patterns/health/prober/mod.rs",
            "patterns/health/prober/target.rs",
            "wings/http/by_reqwest.rs",
        ],
    ),
    ("tonic", &["wings/http/by_tonic.rs"]),
    ("tower_layer", &["tower"]),
    ("tower_service", &["console", "tower"]),
    ("x509_parser", &["patterns/health/prober/ask.rs"]),
    ("lazy_static", &[]),
];

/// Maximum number of lines of a file.
const LINES: usize = 700;

/// Maximum number of files with inherent implementations of one type.
const FILES: usize = 5;

/// Maximum number of private fields of a struct.
const FIELDS: usize = 16;

struct File {
    /// Relative to `src`, with `/`.
    path: String,
    text: String,
}

impl File {
    /// Returns the floor and the room, such as `patterns` and `retry`. A floor that is one room has the room's name.
    fn place(&self) -> Option<(usize, &str)> {
        let (floor, rest) = self.path.split_once('/')?;
        let room = if ROOMS.contains(&floor) { floor } else { rest.split('/').next()?.trim_end_matches(".rs") };
        FLOORS.iter().position(|name| *name == floor).filter(|_| room != "mod").map(|floor| (floor, room))
    }

    fn is_test(&self) -> bool {
        self.path.ends_with("tests.rs") || self.path.contains("/tests/")
    }

    /// Returns the lines without comments and documentation.
    fn code(&self) -> String {
        let code = |line: &'_ str| line.split(" //").next().unwrap_or_default().to_owned();
        self.text.lines().filter(|l| !l.trim_start().starts_with("//")).map(code).collect::<Vec<_>>().join("\n")
    }
}

/// Returns every path that code names after `root::`, with groups expanded: `root::{a::{b, c}, d}` gives `a::b`, `a::c`
/// and `d`. A macro's `$crate` paths belong to its user, and are public paths.
fn paths(code: &str, root: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, found) in code.match_indices(&format!("{root}::")) {
        if !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$' || c == ':') {
            spell_out(&code[at + found.len()..], String::new(), &mut paths);
        }
    }
    paths
}

/// Reads one path or group at the start of `code`; returns the rest.
fn spell_out<'a>(code: &'a str, before: String, paths: &mut Vec<String>) -> &'a str {
    let code = code.trim_start();
    if let Some(mut rest) = code.strip_prefix('{') {
        loop {
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
            rest = spell_out(rest, before.clone(), paths);
            // Skips ` as name` and the comma.
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

/// Returns the rooms that a file names: after `crate::`, or after enough `super::` to leave its room.
fn imports(path: &str, code: &str) -> Vec<String> {
    let deep = path.trim_end_matches("/mod.rs").split('/').count();
    let up = |levels| paths(code, &["super"].repeat(levels).join("::"));
    let is_room = path.split('/').next().is_some_and(|floor| ROOMS.contains(&floor));
    let beside = if is_room || deep < 2 { Vec::new() } else { up(deep - 1) };
    let named = paths(code, "crate").into_iter().chain(up(deep)).chain(beside);
    let room = |path: String| {
        let mut parts = path.split("::").skip_while(|part| !ROOMS.contains(part) && FLOORS.contains(part));
        parts.next().unwrap_or_default().to_owned()
    };
    named.map(room).filter(|room| room != "super").collect()
}

/// Returns the restricted paths that a file names.
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
        "aws_lc_rs",
        "base64",
        "jsonwebtoken",
        "object_store",
        "async_nats",
        "redis",
        "rusqlite",
        "tokio_postgres",
        "rustls",
        "tokio_rustls",
        "rustls_native_certs",
        "rustix",
        "twox_hash",
        "futures_util",
        "http",
        "http_body",
        "httpdate",
        "metrics",
        "reqwest",
        "tonic",
        "tower_layer",
        "tower_service",
        "x509_parser",
    ]
    .into_iter()
    .flat_map(of)
    .collect()
}

/// Returns all violations of the plan in these files. `plan` contains all files of the crate, for the floors of the
/// rooms.
fn faults(files: &[File], plan: &[File]) -> Vec<String> {
    let floors: BTreeMap<&str, usize> =
        plan.iter().filter_map(|file| file.place()).map(|(floor, room)| (room, floor)).collect();
    let mut faults = Vec::new();
    for file in files {
        let path = &file.path;
        if file.text.lines().count() > LINES {
            faults.push(format!("{path}: longer than {LINES} lines"));
        }
        if !file.text.starts_with("//!") {
            faults.push(format!("{path}: its first line does not say what it is"));
        }
        let is_page = path == "lib.rs"
            || path.starts_with("_docs/")
            || path.matches('/').count() == 1 && path.ends_with("/mod.rs");
        let Some((here, room)) = file.place() else {
            if !is_page {
                faults.push(format!("{path}: stands on no floor"));
            }
            continue;
        };
        let narrow = NARROW.iter().find(|(narrow, _)| *narrow == room).map(|(_, floors)| *floors);
        let code = file.code();
        for import in imports(path, &code).into_iter().filter(|import| import != room && !file.is_test()) {
            match floors.get(import.as_str()) {
                None => faults.push(format!("{path}: `{room}` imports `{import}` by the front door")),
                Some(there) if *there > here || *there == here && FLOORS[here] == "patterns" => {
                    faults.push(format!("{path}: `{room}` imports `{import}`, which is not below it"));
                }
                Some(there) if narrow.is_some_and(|narrow| !narrow.contains(&FLOORS[*there])) => {
                    faults.push(format!("{path}: `{room}` imports `{import}`, of which it should know nothing"));
                }
                Some(_) => {}
            }
        }
        // `time::scaled` saturates at the longest duration.
        for panics in
            ["mul_f64(", "mul_f32(", "div_f64(", "div_f32(", "Duration::from_secs_f64(", "Duration::from_secs_f32("]
        {
            if !file.is_test() && code.contains(panics) {
                faults.push(format!("{path}: `{panics}..)` panics beyond the longest duration"));
            }
        }
        let watched = watched(&code);
        for (what, allowed) in DOORS {
            let may = allowed.iter().any(|a| room == *a || path == a);
            let names =
                |path: &String| path.strip_prefix(what).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
            if !may && watched.iter().any(names) {
                faults.push(format!("{path}: names `{what}`"));
            }
        }
    }
    faults
}

fn files() -> Vec<File> {
    sources::texts().into_iter().map(|(path, text)| File { path, text }).collect()
}

/// Returns a cycle of rooms that import each other, or `None`.
fn circle(files: &[File]) -> Option<Vec<String>> {
    let mut imported: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| !file.is_test()) {
        if let Some((_, room)) = file.place() {
            let others = imports(&file.path, &file.code()).into_iter().filter(|import| import != room);
            imported.entry(room.to_owned()).or_default().extend(others);
        }
    }
    fn walk(way: &mut Vec<String>, imported: &BTreeMap<String, Vec<String>>, clean: &mut Vec<String>) -> bool {
        let here = way.last().cloned().unwrap();
        for next in imported.get(&here).into_iter().flatten().filter(|next| !clean.contains(next)).collect::<Vec<_>>() {
            let is_closed = way.contains(next);
            way.push(next.clone());
            if is_closed || walk(way, imported, clean) {
                return true;
            }
        }
        clean.push(here);
        way.pop();
        false
    }
    let mut clean = Vec::new();
    imported.keys().find_map(|room| {
        let mut way = vec![room.clone()];
        (!clean.contains(room) && walk(&mut way, &imported, &mut clean)).then_some(way)
    })
}

/// Returns the type of the block of inherent implementations that a line begins. A builder's type has that of its component.
fn inherent(header: &str) -> Option<String> {
    let mut rest = header.strip_prefix("impl")?;
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.char_indices().find(|(at, next)| {
            depth += i32::from(*next == '<') - i32::from(*next == '>' && !rest[..*at].ends_with('-'));
            depth == 0
        });
        rest = &rest[end?.0 + 1..];
    }
    let named = rest.strip_prefix(' ')?;
    let is_of_trait = named.split(" where").next().is_some_and(|named| named.contains(" for "));
    let path = |text: &str| {
        text.split(['<', ' ', '>', ',']).next().map(|path| path.rsplit("::").next().unwrap_or(path).to_owned())
    };
    let name = match named.split_once("Builder<").filter(|(before, _)| before.is_empty() || before.ends_with("::")) {
        Some((_, component)) => format!("Builder<{}>", path(component)?),
        None => path(named)?,
    };
    (!is_of_trait && !name.is_empty()).then_some(name)
}

/// Returns the structs of a file, each with the number of its private fields. All fields of a private struct are private.
fn private_fields(text: &str) -> Vec<(String, usize)> {
    let (mut found, mut inside) = (Vec::<(String, usize)>::new(), None);
    for line in text.lines() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if let Some((end, is_public)) = inside {
            let field = code.strip_prefix("pub(").and_then(|rest| rest.split_once(") ")).map_or(code, |(_, rest)| rest);
            let is_field_of_users = is_public && code.starts_with("pub ");
            let field = field.strip_prefix("pub ").unwrap_or(field);
            let name = field.split_once(':').map_or("", |(name, _)| name);
            let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
            if indent == end + 4 && is_name && !is_field_of_users {
                found.last_mut().unwrap().1 += 1;
            }
            if indent == end && code.starts_with('}') {
                inside = None;
            }
        } else if let Some((before, named)) = code.split_once("struct ").filter(|(before, _)| {
            before.is_empty() || *before == "pub " || before.starts_with("pub(") && before.ends_with(") ")
        }) {
            let name: String = named.chars().take_while(|c| c.is_alphanumeric()).collect();
            // Without a brace at the end of the line it is a tuple, or its bounds follow.
            if !line.ends_with(';') {
                found.push((name, 0));
                inside = Some((indent, before == "pub "));
            }
        }
    }
    found
}

/// Returns the types whose implementations are in too many files, or that have too many fields, each with the measure.
fn too_wide(files: &[File]) -> BTreeMap<String, String> {
    let (mut spread, mut found) = (BTreeMap::<String, Vec<&str>>::new(), BTreeMap::new());
    for file in files.iter().filter(|file| !file.is_test()) {
        let Some((_, room)) = file.place() else { continue };
        for name in file.text.lines().filter_map(inherent) {
            spread.entry(format!("files: {room}::{name}")).or_default().push(&file.path);
        }
        for (name, fields) in private_fields(&file.text).into_iter().filter(|(_, fields)| *fields > FIELDS) {
            found.insert(format!("fields: {room}::{name}"), format!("{fields} fields, in {}", file.path));
        }
    }
    for (name, mut places) in spread {
        places.dedup();
        if places.len() > FILES {
            found.insert(name, format!("{} files: {}", places.len(), places.join(", ")));
        }
    }
    found
}

#[test]
fn a_type_is_implemented_in_five_files_at_most_and_has_sixteen_private_fields_at_most() {
    let found = too_wide(&files());
    assert!(found.is_empty(), "divide them into parts with names:\n{found:#?}");
}

#[test]
fn the_check_of_types_finds_what_it_is_for() {
    for (header, name) in [
        ("impl RunState {", Some("RunState")),
        ("impl<T: Fn() -> u8, const N: usize> crate::saga::Saga<T> {", Some("Saga")),
        ("impl<K, V> Builder<CacheAside<K, V>>", Some("Builder<CacheAside>")),
        ("impl<'a, P> Pipeline<'a, P> where for<'b> &'b P: Copy {", Some("Pipeline")),
        ("impl Policy for Retry {", None),
        ("impl<T> From<T> for Saga<T> {", None),
        ("    impl Inner {", None),
    ] {
        assert_eq!(inherent(header).as_deref(), name, "{header}");
    }
    let text = "pub(super) struct A<T>\nwhere\n    T: Copy,\n{\n    /// b: c\n    pub(super) a: T,\n    b: Vec<\n        u8,\n    >,\n}\n\
        pub struct B {\n    pub a: u8,\n    b: u8,\n}\nstruct C(u8);\nstruct D;";
    let counts: Vec<_> = private_fields(text).into_iter().filter(|(_, fields)| *fields > 0).collect();
    assert_eq!(counts, [("A".to_owned(), 3), ("B".to_owned(), 1)], "a bound counts, too: there are few");
    let implemented =
        |n| File { path: format!("patterns/retry/part{n}.rs"), text: "//! x\nimpl Retry {\n}\nimpl Retry {".into() };
    let spread: Vec<_> = (0..6).map(implemented).collect();
    assert!(too_wide(&spread).contains_key("files: retry::Retry") && too_wide(&spread[1..]).is_empty());
    let wide = format!("//! x\nstruct Wide {{\n{}}}", "    a: u8,\n".repeat(FIELDS + 1));
    assert!(
        too_wide(&[File { path: "patterns/retry/wide.rs".into(), text: wide }]).contains_key("fields: retry::Wide")
    );
}

/// Features that are groups of rooms, as Cargo.toml names them.
fn groups() -> Vec<String> {
    let manifest: toml::Table = include_str!("../Cargo.toml").parse().unwrap();
    let groups = manifest["features"]["default"].as_array().unwrap();
    groups.iter().map(|group| group.as_str().unwrap().to_owned()).collect()
}

/// Returns the gates of groups that stand elsewhere than before a module or a re-export of a floor or a wing.
fn misplaced_gates(path: &str, text: &str, groups: &[String]) -> Vec<String> {
    let is_floor =
        path == "lib.rs" || path.matches('/').count() == 1 && path.ends_with("/mod.rs") && !path.starts_with("call/");
    let may = is_floor || path.starts_with("wings/") && path.ends_with("/mod.rs");
    let lines: Vec<_> = text.lines().collect();
    let is_gate = |line: &str| {
        let is_code = !line.trim_start().starts_with("//");
        is_code && line.contains("feature") && groups.iter().any(|group| line.contains(&format!("\"{group}\"")))
    };
    let gates = (0..lines.len()).filter(|at| is_gate(lines[*at]));
    let is_misplaced = |at: &usize| {
        // Behind comments, further attributes and their lines.
        let is_passed = |line: &&&str| line.starts_with(['#', '/', ' ', ')']);
        let next = lines[at + 1..].iter().find(|line| !is_passed(line)).unwrap_or(&"");
        let is_item =
            ["mod ", "pub mod ", "pub(crate) mod ", "pub use ", "use "].iter().any(|item| next.starts_with(item));
        // Without a group, what it alone uses of a lower floor is no mistake.
        let allows = lines[*at].starts_with("#[cfg_attr(") || *at > 0 && lines[at - 1] == "#[cfg_attr(";
        !(may && (is_item && lines[*at].starts_with("#[cfg(") || allows))
    };
    gates.filter(is_misplaced).map(|at| format!("{path}:{}: {}", at + 1, lines[at].trim())).collect()
}

#[test]
fn groups_of_rooms_are_gated_in_lib_and_in_the_floors_and_wings_alone() {
    let groups = groups();
    assert!(groups.len() >= 4, "{groups:?}");
    let found: Vec<_> = files().iter().flat_map(|file| misplaced_gates(&file.path, &file.text, &groups)).collect();
    assert!(found.is_empty(), "a room is compiled whole or not at all:\n{}", found.join("\n"));
    // Each group is in the table of `lib.rs`.
    let page = include_str!("../src/lib.rs");
    let missing: Vec<_> = groups.iter().filter(|group| !page.contains(&format!("//! | `{group}` |"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn gates_inside_a_room_are_found() {
    let groups = ["data".to_owned(), "work".to_owned()];
    let found = |path: &str, text: &str| misplaced_gates(path, text, &groups).len();
    let gate = "#[cfg(feature = \"data\")]\n";
    for path in ["lib.rs", "patterns/mod.rs", "wings/metrics/measured/mod.rs"] {
        assert_eq!(found(path, &format!("{gate}// why\npub mod cache_aside;")), 0, "{path}");
        assert_eq!(found(path, &format!("{gate}fn inside() {{}}")), 1, "{path}");
    }
    assert_eq!(found("patterns/retry/mod.rs", &format!("{gate}mod cached;")), 1);
    assert_eq!(found("wings/metrics/registry.rs", "    #[cfg(any(feature = \"work\", unix))]"), 1);
    assert_eq!(found("call/mod.rs", &format!("{gate}mod cached;")), 1);
    assert_eq!(found("patterns/retry/mod.rs", "#[cfg(feature = \"testing\")]\nmod x;\n// cfg(feature = \"data\")"), 0);
}

#[test]
fn rooms_import_only_the_rooms_below_them() {
    let files = files();
    let faults = faults(&files, &files);
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn no_two_rooms_import_each_other() {
    assert_eq!(circle(&files()), None);
}

/// Names of engines, which only the wings know.
const ENGINES: [&str; 4] = ["postgres", "redis", "nats", "sqlite"];

/// Returns the words of engines in the code of a file below the wings. Documentation may name them.
fn engines_in(file: &File) -> Vec<&'static str> {
    let is_below = file.place().is_some_and(|(floor, _)| FLOORS[floor] != "wings");
    let code = if is_below { file.code().to_lowercase() } else { String::new() };
    let named = |engine: &str| code.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == engine);
    ENGINES.into_iter().filter(|engine| named(engine)).collect()
}

#[test]
fn no_engine_is_named_below_the_wings() {
    for file in files() {
        assert!(engines_in(&file).is_empty(), "{} names {:?}", file.path, engines_in(&file));
    }
    let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
    assert_eq!(engines_in(&file("ports/gather.rs", "//! On postgres.\nf(\"Redis: full\");")), ["redis"]);
    assert_eq!(engines_in(&file("ground/wire.rs", "#[cfg(feature = \"nats\")]\nfn f() {}")), ["nats"]);
    assert!(engines_in(&file("wings/backend/open.rs", "f(\"sqlite\");")).is_empty());
}

#[test]
fn the_check_finds_violations() {
    let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
    let found = |path: &str, text: &str| faults(&[file(path, text)], &files()).join("\n");
    assert_eq!(
        found(
            "patterns/retry/mod.rs",
            "//! x\nuse crate::{call::{Policy, Attempt}, outcome::StopReason};\n// crate::throttling"
        ),
        ""
    );
    assert!(
        found("patterns/retry/mod.rs", "//! x\nuse crate::circuit_breaker::State;")
            .contains("imports `circuit_breaker`")
    );
    assert!(
        found("ground/outcome/mod.rs", "//! x\nuse crate::{time::Instant, call::Policy};").contains("imports `call`")
    );
    assert!(
        found("patterns/retry/mod.rs", "//! x\nlet a = tokio::time::Instant::now();").contains("names `tokio::time`")
    );
    assert!(found("ground/backoff.rs", "//! x\nrand::random()").contains("names `rand`"));
    // In every notation.
    for text in [
        "use tokio::{sync::Mutex, time::{self, sleep}};",
        "use std::time::{Duration, Instant as Now};",
        "use std::{fmt, time::{Duration, SystemTime}};",
        "use tokio::runtime::{Builder, Handle};",
        "fn f() { std::thread::spawn(f); }",
    ] {
        assert!(found("patterns/retry/mod.rs", &format!("//! x\n{text}")).contains("names `"), "{text}");
    }
    assert_eq!(found("patterns/retry/mod.rs", "//! x\nuse std::time::Duration; use operand::x; // rand::random()"), "");
    for (path, text) in [
        ("patterns/retry/policy.rs", "use super::super::throttling::Quota;"),
        ("patterns/retry/policy.rs", "use super::super::super::throttling::Quota;"),
        ("patterns/retry/mod.rs", "use super::{hedge, throttling};"),
        ("patterns/retry/mod.rs", "use super::super::patterns::throttling;"),
        ("call/boxed.rs", "use super::super::throttling;"),
        ("ground/backoff.rs", "use super::super::throttling;"),
        ("patterns/retry/a/b.rs", "use crate::{call as c, throttling::{Quota as Q, x}};"),
    ] {
        assert!(found(path, &format!("//! x\n{text}")).contains("imports `throttling`"), "{path}: {text}");
    }
    assert_eq!(found("patterns/retry/policy.rs", "//! x\nuse super::{throttling};"), "", "a file of its own");
    assert!(found("patterns/retry/mod.rs", "//! x\nuse crate::Rejected;").contains("by the front door"));
    assert!(
        found("patterns/retry/mod.rs", "//! x\nlet wait = d.mul_f64(1.2);")
            .contains("panics beyond the longest duration")
    );
    assert_eq!(found("patterns/retry/mod.rs", "//! x\nDuration::try_from_secs_f64(1.2)"), "");
    assert!(found("attic/room/mod.rs", "//! x\n").contains("stands on no floor"));
    assert!(found("attic.rs", "//! x\n").contains("stands on no floor"));
    assert!(found("wings/http/mod.rs", "//! x\nuse crate::queue::Queue;").contains("should know nothing"));
    let (lower, upper) = ("//! x\nuse crate::time::Clock;", "//! x\nuse crate::config::Name;");
    let two = [file("ground/config/mod.rs", lower), file("ground/time/mod.rs", upper)];
    assert_eq!(circle(&two).unwrap().len(), 3);
    assert_eq!(circle(&two[..1]), None);
    assert!(found("call/mod.rs", "use x;").contains("does not say what it is"));
    assert!(found("call/mod.rs", &"//! x\n".repeat(LINES + 1)).contains("longer"));
}

/// Calls that let a test sleep in real time, or read a real clock to measure with it. Those of this crate's clocks are
/// methods: `clock.sleep`, `clock.now`.
const REAL_TIME: &[&str] = &[
    "sleep(",
    "sleep_until(",
    "sleep_ms(",
    "interval(",
    "park_timeout(",
    "Instant::now",
    "SystemTime::now",
    ".elapsed(",
];

/// Files and folders of tests that may, each with the reason: on a real server or thread, which no clock of ours moves.
const REAL_TESTS: &[(&str, &str)] = &[
    ("tests/architecture.rs", "names the calls"),
    (
        "tests/engines/server/",
        "starts real servers, and waits until they are ready; all other tests of engines wait by it",
    ),
    ("tests/engines/faults/", "notes when real servers were killed and were there again"),
    ("tests/engines/nats/fail_over.rs", "prints the time of a fail-over of real servers, and bounds the waits for it"),
    ("tests/engines/nats/backlog.rs", "prints the rate of a real server"),
    (
        "tests/engines/redis/queue/cost.rs",
        "measures that a message of a real server arrives long before its receiver looks by itself",
    ),
    (
        "tests/engines/postgres/connections.rs",
        "measures that requests to a server that is lost or silent end long before their time limits add up",
    ),
    ("tests/engines/postgres/queue_backlog.rs", "prints the rate of a real server, and ends parts that take too long"),
    ("tests/it/call/blocking.rs", "asks whether an interval of a paused runtime ticks"),
    ("tests/ports/main.rs", "waits between two looks at a file that a thread of the backend changes"),
    ("tests/simulation/listener_world.rs", "waits for a thread of the backend before it moves the manual clock"),
];

/// Returns the calls of real time in a line of a test.
fn real_time_in(line: &str) -> Vec<&'static str> {
    let code = line.split("//").next().unwrap_or_default();
    let names = |call: &&&str| {
        code.match_indices(**call).any(|(at, _)| {
            let before = &code[..at];
            // A method of one of our clocks, a function with a longer name, or its definition.
            let is_other =
                before.ends_with(|c: char| c == '.' || c == '_' || c.is_alphanumeric()) || before.ends_with("fn ");
            let is_ours = call.starts_with("Instant") && before.ends_with("steadfast::time::");
            call.starts_with('.') || !is_other && !is_ours
        })
    };
    REAL_TIME.iter().filter(names).copied().collect()
}

#[test]
fn no_test_but_those_on_a_real_server_or_thread_sleeps_or_measures_in_real_time() {
    let mut files: Vec<_> =
        sources::texts_of("tests").into_iter().map(|(path, text)| (format!("tests/{path}"), text)).collect();
    let of_src =
        sources::texts().into_iter().filter(|(path, _)| path.ends_with("tests.rs") || path.contains("/tests/"));
    files.extend(of_src.map(|(path, text)| (format!("src/{path}"), text)));
    let (mut found, mut used) = (Vec::new(), std::collections::BTreeSet::new());
    for (path, text) in files.iter().filter(|(path, _)| !path.starts_with("tests/zz_")) {
        let allowed = REAL_TESTS.iter().find(|(place, _)| path.starts_with(place));
        for (number, line) in (1..).zip(text.lines()) {
            for call in real_time_in(line) {
                match allowed {
                    Some((place, _)) => drop(used.insert(*place)),
                    None => found.push(format!("{path}:{number}: `{call}`: {}", line.trim())),
                }
            }
        }
    }
    assert!(found.is_empty(), "use the manual clock, or wait for a fact:\n{}", found.join("\n"));
    let unused: Vec<_> = REAL_TESTS.iter().filter(|(place, _)| !used.contains(place)).collect();
    assert!(unused.is_empty(), "they are no longer needed: {unused:?}");
}

#[test]
fn real_time_is_found_in_every_notation() {
    for line in [
        "tokio::time::sleep(MS(3)).await;",
        "std::thread::sleep(S(1));",
        "sleep(MS(3)).await;",
        "let began = std::time::Instant::now();",
        "let began = Instant::now();",
        "assert!(began.elapsed() < S(5));",
    ] {
        assert!(!real_time_in(line).is_empty(), "{line}");
    }
    for line in [
        "clock.sleep(MS(3)).await;",
        "// sleep(MS(3))",
        "fn sleep(time: Duration) {",
        "let now = clock.now();",
        "config.scan_interval(MS(2))",
    ] {
        assert_eq!(real_time_in(line), Vec::<&str>::new(), "{line}");
    }
}
