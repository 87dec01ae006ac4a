//! Misuse of the job: impossible arguments, unwritable files, two runs on one file, signals.
use std::{
    fs,
    path::Path,
    process::{Child, Command, Output},
    time::Duration,
};

use clap::Parser;
use serde_json::Value;
use steadfast::time::Clock;

use crate::{
    args::Args,
    kills::{Kept, start},
    run,
};

fn args(more: &[&str]) -> Result<Args, clap::Error> {
    Args::try_parse_from(["drone_delivery"].iter().chain(more))
}

#[test]
fn arguments_that_cannot_be_met_are_refused_by_the_name_of_their_flag() {
    let max = u64::MAX.to_string();
    for (flag, value, rule) in [
        ("--patience", &*max, "0..=86400"),
        ("--patience", "86401", "0..=86400"),
        ("--patience", "-1", "--patience"),
        ("--spike", &max, "0..=5000000"),
        ("--spike", "5000001", "0..=5000000"),
        ("--requests", &max, "0..=5000000"),
        ("--rate", "4294967295", "0..=1000000"),
        ("--rate", "1000001", "0..=1000000"),
        ("--rate", "NaN", "--rate"),
        ("--ingest-rate", "0", "1..=1000000"),
        ("--ingest-rate", "4294967295", "1..=1000000"),
        ("--concurrency", "-1", "--concurrency"),
        ("--suspend", "a@nan", "between 0 and 86400"),
        ("--suspend", "a@1e300", "between 0 and 86400"),
        ("--add-shard", "@inf", "between 0 and 86400"),
        ("--add-shard", "@-1", "between 0 and 86400"),
    ] {
        let told = args(&[flag, value]).unwrap_err().to_string();
        assert!(told.contains(flag) && told.contains(rule), "{flag} {value}: {told}");
    }
}

#[tokio::test]
#[ignore = "takes seconds: `.ci/run` runs it"]
async fn the_largest_arguments_that_are_taken_work() {
    let most = ["--requests", "20", "--patience", "86400", "--rate", "1000000", "--ingest-rate", "1000000"];
    let report = run(&args(&[&most[..], &["--spike", "5000000", "--concurrency", "10000"]].concat()).unwrap()).await;
    let report = report.unwrap();
    assert!(report.is_sound() && report.input == 20, "{}", report.summary());
}

#[tokio::test]
async fn a_spike_adds_as_many_requests_as_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input.jsonl");
    let lines: Vec<_> = include_str!("deliveries.jsonl").lines().take(4).collect();
    // A file of another system's editor: a byte order mark, CRLF, blank lines.
    fs::write(&input, format!("\u{feff}\r\n{}\r\n\r\n", lines.join("\r\n"))).unwrap();
    for spike in [0, 1, 7, 100] {
        let report = run(&args(&["--input", input.to_str().unwrap(), "--spike", &spike.to_string()]).unwrap()).await;
        let report = report.unwrap();
        assert!(report.is_sound(), "{}", report.summary());
        assert_eq!((report.input, report.scheduled() + report.rejected()), (4 + spike, 4 + spike));
    }
}

#[tokio::test]
async fn what_cannot_be_drawn_or_read_is_refused_before_the_job_starts() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("job.db").display());
    let (here, missing) = (folder.path().display().to_string(), folder.path().join("missing/storm.svg"));
    for (flag, path) in [("--plot", &*missing.display().to_string()), ("--plot", &here), ("--input", &here)] {
        let error = run(&args(&["--store", &store, flag, path]).unwrap()).await.err().unwrap().to_string();
        assert!(error.contains(flag) && error.contains(path), "{error}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was begun");
}

/// Waits until the run has finished this many requests.
async fn reaches(kept: &Kept, run: &mut Child, finished: usize) {
    while kept.finished().await < finished {
        assert_eq!(run.try_wait().unwrap(), None, "it ended too soon");
    }
}

fn ended(run: Child) -> (Option<i32>, String, Value) {
    let Output { status, stdout, .. } = run.wait_with_output().unwrap();
    let text = String::from_utf8(stdout).unwrap();
    let summary = text.lines().find_map(|line| line.strip_prefix("summary: "));
    let summary = summary.map_or(Value::Null, |line| serde_json::from_str(line).unwrap());
    (status.code(), text, summary)
}

#[tokio::test]
#[ignore = "takes seconds: `.ci/run` runs it"]
async fn a_picture_that_cannot_be_written_at_the_end_costs_the_picture_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (file, pictures) = (folder.path().join("job.db"), folder.path().join("pictures"));
    fs::create_dir(&pictures).unwrap();
    let kept = Kept::open(&file, 1);
    let plot = pictures.join("run.svg").display().to_string();
    let mut run = start(&file, &["--rate", "800", "--plot", &plot]);
    reaches(&kept, &mut run, 1).await;
    fs::remove_dir(&pictures).unwrap();
    let (code, text, summary) = ended(run);
    assert_eq!((code, &summary["lost"], &summary["scheduled"]), (Some(1), &0.into(), &1893.into()), "{text}");
}

#[tokio::test]
#[ignore = "takes seconds: `.ci/run` runs it"]
async fn a_second_run_on_a_file_is_refused_while_the_first_goes_on_undisturbed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.db");
    let kept = Kept::open(&file, 1);
    let mut first = start(&file, &["--rate", "600"]);
    reaches(&kept, &mut first, 1).await;
    let aside = folder.path().join("by another name");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&file, &aside).unwrap();
    let roundabout = folder.path().join("../").join(folder.path().file_name().unwrap()).join("job.db");
    let names: &[&Path] = if cfg!(unix) { &[&file, &roundabout, &aside] } else { &[&file, &roundabout] };
    for name in names {
        let (code, text, _) = ended(start(name, &["--rate", "600"]));
        let told = format!("error: --store: another run (process {}) is at work on it", first.id());
        assert!(code == Some(1) && text.contains(&told), "{code:?} {text}");
    }
    let (code, text, _) = ended(first);
    let summary = text.lines().find_map(|line| line.strip_prefix("summary: ")).unwrap();
    kept.assert_whole(summary).await;
    assert_eq!(code, Some(0));
}

fn try_signal(run: &Child, name: &str) -> bool {
    let kill = format!("kill {name} {} 2>/dev/null", run.id());
    Command::new("sh").args(["-c", &kill]).status().unwrap().success()
}

fn signal(run: &Child, name: &str) {
    assert!(try_signal(run, name));
}

/// Ends a run by this signal after some requests, and lets another run finish the rest.
async fn is_drained_by(name: &str, code: i32, shards: u32, more: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.db");
    let kept = Kept::open(&file, shards);
    let shards = shards.to_string();
    let more = [more, &["--shards", &shards]].concat();
    let mut run = start(&file, &more);
    reaches(&kept, &mut run, 200).await;
    signal(&run, name);
    let (ended_with, text, summary) = ended(run);
    assert_eq!(
        (ended_with, &summary["interrupted"]),
        (Some(code), &Value::from(format!("SIG{}", &name[1..]))),
        "{text}"
    );
    let of = |class: &str| summary[class].as_u64().unwrap();
    let classes = ["scheduled", "rejected", "duplicates", "dead_lettered", "lost", "unfinished"];
    assert_eq!((classes.map(of).iter().sum::<u64>(), of("lost"), of("violations")), (2000, 0, 0), "{text}");
    assert!(of("unfinished") > 0 && of("scheduled") >= 150, "{text}");
    assert!(text.contains("start again on the same file to finish them"), "{text}");
    let (code, text, _) = ended(start(&file, &more));
    kept.assert_whole(text.lines().find_map(|line| line.strip_prefix("summary: ")).unwrap()).await;
    assert_eq!(code, Some(0));
}

#[cfg(unix)]
#[tokio::test]
#[ignore = "takes seconds: `.ci/run` runs it"]
async fn ctrl_c_finishes_what_is_worked_on_reports_it_and_leaves_the_rest_to_another_run() {
    is_drained_by("-INT", 130, 1, &["--rate", "600"]).await;
}

#[cfg(unix)]
#[tokio::test]
#[ignore = "takes seconds: `.ci/run` runs it"]
async fn so_does_sigterm_with_shards() {
    is_drained_by("-TERM", 143, 4, &["--rate", "600"]).await;
}

#[cfg(unix)]
#[tokio::test]
#[ignore = "takes seconds: `.ci/run` runs it"]
async fn a_second_signal_ends_a_run_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.db");
    let kept = Kept::open(&file, 1);
    // Calls without a time-out may hang, so a single signal would have to wait.
    let mut run = start(&file, &["--faults", "storm", "--unprotected"]);
    reaches(&kept, &mut run, 100).await;
    signal(&run, "-INT");
    while run.try_wait().unwrap().is_none() {
        Clock::tokio().sleep(Duration::from_millis(20)).await;
        try_signal(&run, "-TERM");
    }
    let (code, text, _) = ended(run);
    assert!(matches!(code, Some(130 | 143)), "{code:?} {text}");
}

#[test]
fn the_job_explains_itself_and_refuses_a_flag_that_it_does_not_know() {
    let help = args(&["--help"]).unwrap_err();
    let text = help.to_string();
    assert!(help.exit_code() == 0 && text.contains("Usage: drone_delivery"), "{text}");
    let refused = args(&["--no-such-flag"]).unwrap_err();
    assert!(refused.exit_code() == 2 && refused.to_string().contains("--no-such-flag"), "{refused}");
}
