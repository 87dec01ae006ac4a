//! The examples as a user runs them; `cargo test` builds them.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Output},
};

fn run(example: &str, args: &[&str]) -> Output {
    let mut path: PathBuf = env::current_exe().unwrap();
    path.pop(); // the test's own name
    path.pop(); // `deps`
    let path = path.join("examples").join(example).with_extension(env::consts::EXE_EXTENSION);
    let run = Command::new(&path).args(args).output();
    run.unwrap_or_else(|e| panic!("{}: {e}; `cargo build --examples` builds it", path.display()))
}

/// Returns the names of all examples, by the files in their folder. `drone_delivery` is built as a test, and tests itself.
fn examples() -> Vec<String> {
    let files =
        fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap().map(|file| file.unwrap().path());
    let is_one = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "rs") || path.join("main.rs").exists();
    let mut names: Vec<_> =
        files.filter(is_one).map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.retain(|name| name != "drone_delivery");
    // Without their feature they are not built.
    names.retain(|name| {
        cfg!(feature = "jwt") || !["federated_identity", "gatekeeper", "valet_key"].contains(&name.as_str())
    });
    names.retain(|name| cfg!(feature = "console") || name != "console");
    names.retain(|name| cfg!(feature = "prober") || name != "prober");
    names.retain(|name| cfg!(feature = "object_store") || !["static_site", "valet_key"].contains(&name.as_str()));
    names.sort();
    names
}

#[test]
fn every_example_has_a_help_text_and_refuses_an_unknown_flag() {
    let examples = examples();
    assert!(examples.len() >= 20, "{examples:?}");
    for example in examples {
        let help = run(&example, &["--help"]);
        let text = String::from_utf8(help.stdout).unwrap();
        assert!(help.status.success() && text.contains(&format!("Usage: {example}")), "{example}: {text}");
        assert!(text.lines().next().unwrap().len() > 20, "{example} does not say what it does: {text}");
        let refused = run(&example, &["--no-such-flag"]);
        let told = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(2) && told.contains("--no-such-flag"), "{example}: {told}");
    }
}

#[test]
fn the_picture_of_a_bill_has_a_title_and_axes_with_units() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("bill.svg");
    let small = ["--rows", "2000", "--item", "100", "--processors", "2", "--idle", "1"];
    let bill = run("billing", &[&small[..], &["--plot", plot.to_str().unwrap()]].concat());
    assert!(bill.status.success(), "{}", String::from_utf8_lossy(&bill.stderr));
    let svg = fs::read_to_string(plot).unwrap();
    assert!(svg.contains("<title>2000 transactions by 2 processes, 0 killed</title>"), "{svg}");
    for title in ["items that wait in the queue", "tasks that handle items", "requests to the queue so far"] {
        assert!(svg.contains(&format!("font-weight='600'>{title}</text>")), "{title}");
    }
    let labels = |anchor: &str| svg.matches(&format!("text-anchor='{anchor}'")).count();
    assert!(labels("end") == 9 && labels("middle") >= 9, "three ticks an axis, and times below each");
    assert!(svg.matches(" s</text>").count() == labels("middle"), "times have a unit");
}

#[test]
fn elections_by_messages_replace_a_leader_that_vanishes_and_have_two_in_a_divided_network() {
    for by in ["bully", "ring"] {
        let shown = run("leader_election", &["--by", by]);
        let told = String::from_utf8(shown.stdout).unwrap();
        let leaders: Vec<_> =
            told.lines().filter_map(|line| Some(line.split_once("leaders ")?.1.split_once("},")?.0)).collect();
        assert_eq!(leaders, ["{5", "{4", "{2, 4", "{4"], "{told}\n{}", String::from_utf8_lossy(&shown.stderr));
        assert!(shown.status.success(), "{told}");
    }
}

#[test]
fn impossible_arguments_of_a_bill_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing/bill.svg");
    let missing = missing.to_str().unwrap();
    for (flag, value, code) in [
        ("--rows", "0", 2),
        ("--item", "0", 2),
        ("--processors", "0", 2),
        ("--idle", "18446744073709551615", 2),
        ("--price", "NaN", 2),
        ("--plot", missing, 1),
        ("--report", missing, 1),
    ] {
        let refused = run("billing", &[flag, value]);
        let told = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(code) && told.contains(flag), "{flag} {value}: {told}");
    }
}

#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn the_judge_of_a_fleet_finds_each_defect_that_is_planted() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("fleet.svg");
    let run_of = ["--seconds", "8", "--kills", "2", "--processes", "3", "--plot", plot.to_str().unwrap()];
    let plants = ["listener", "twice", "cache", "limit", "leader"].map(|plant| ["--plant", plant]).concat();
    let judged = run("fleet", &[&run_of[..], &plants].concat());
    let told = String::from_utf8(judged.stdout).unwrap();
    assert_eq!(judged.status.code(), Some(1), "{told}\n{}", String::from_utf8_lossy(&judged.stderr));
    let summary = told.lines().find_map(|line| line.strip_prefix("summary: ")).unwrap_or_else(|| panic!("{told}"));
    let summary: serde_json::Value = serde_json::from_str(summary).unwrap();
    for found in ["lost", "doubled_unexplained", "late_writes_accepted", "stale_reads", "permits_over"] {
        assert!(summary[found].as_u64() > Some(0), "{found}: {told}");
    }
    assert_eq!(summary["kills"], 2, "{told}");
    let svg = fs::read_to_string(plot).unwrap();
    assert!(svg.contains("<title>3 processes over one file</title>") && svg.contains("orders done a second"), "{svg}");
}

/// Examples of several processes, which share their state on a backend.
const SHARED: [&str; 8] = [
    "leader_election",
    "cache_aside",
    "shared_limit",
    "sharding",
    "billing",
    "fleet",
    "order_service",
    "config_rollout",
];

#[test]
fn processes_that_share_their_state_refuse_the_memory_of_one() {
    for example in SHARED {
        let refused = run(example, &["--backend", "memory"]);
        let told = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(1) && told.contains("--backend: several processes"), "{example}: {told}");
        let refused = run(example, &["--backend", "mongodb://host"]);
        let told = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(2) && told.contains("or the URL of a server"), "{example}: {told}");
    }
}

#[cfg(not(any(feature = "postgres", feature = "redis")))]
#[test]
fn a_server_whose_feature_is_not_compiled_in_is_refused_with_the_command_that_has_it() {
    for example in SHARED {
        for engine in ["postgres", "redis"] {
            let refused = run(example, &["--backend", engine]);
            let told = String::from_utf8(refused.stderr).unwrap();
            let command = format!("cargo run --features {engine} --example {example}");
            assert!(refused.status.code() == Some(1) && told.contains(&command), "{example}: {told}");
            let refused = run(example, &["--backend", &format!("{engine}://user:secret@127.0.0.1")]);
            let told = String::from_utf8(refused.stderr).unwrap();
            let names = told.contains(&format!("needs the feature `{engine}`")) && !told.contains("secret");
            assert!(refused.status.code() == Some(1) && names, "{example}: {told}");
        }
    }
}
