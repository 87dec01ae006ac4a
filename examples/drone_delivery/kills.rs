//! Kills: the job runs as a separate process, is killed at chosen points of its progress, and is started again.
use std::{
    collections::HashSet,
    env,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use clap::Parser;
use serde_json::Value;
use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    sharding::{ShardDirectory, ShardDirectoryConfig, ShardId, ShardMap},
    store::{Scan, StoreExt},
};

use crate::{
    args::Args,
    ledger::{State, shard_file},
    services::EFFECTS,
};

const ARGS: &str = "DRONE_DELIVERY_ARGS";

/// The entry point of the processes below; not a test by itself.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the tests of kills"]
async fn as_a_process() {
    let Ok(args) = env::var(ARGS) else { return };
    let args = Args::try_parse_from(args.split('\n')).unwrap_or_else(|error| error.exit());
    println!("started");
    let ran = crate::run(&args).await;
    if let Err(error) = &ran {
        println!("\nerror: {error}");
    }
    std::process::exit(crate::conclude(&args, ran).into());
}

pub(crate) fn start(file: &Path, more: &[&str]) -> Child {
    let args = ["drone_delivery", "--store", &format!("sqlite:{}", file.display())].map(str::to_owned);
    let args: Vec<String> = args.into_iter().chain(more.iter().map(|arg| (*arg).to_owned())).collect();
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "kills::as_a_process", "--ignored", "--nocapture"])
        .env(ARGS, args.join("\n"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn output(child: Child, line: &str) -> String {
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    output.lines().find_map(|l| l.strip_prefix(line)).unwrap_or_else(|| panic!("no {line:?} in {output}")).to_owned()
}

/// Files of a job: its own, and those of its shards.
pub(crate) struct Kept {
    own: Sqlite,
    shards: Vec<Sqlite>,
}

impl Kept {
    pub(crate) fn open(file: &Path, shards: u32) -> Self {
        let open = |file: &Path| Sqlite::open(SqliteConfig::at(file)).unwrap();
        let own = open(file);
        let shards = match shards {
            1 => vec![own.clone()],
            _ => (0..shards).map(|id| open(&shard_file(file, ShardId(id)))).collect(),
        };
        Self { own, shards }
    }

    /// Returns each request's records and their shards; during a move some exist twice.
    async fn records(&self) -> Vec<(usize, String, State)> {
        let mut records = Vec::new();
        for (shard, sqlite) in self.shards.iter().enumerate() {
            let rows = sqlite.store().scan_all(Scan::partition("requests").limit(1000)).await.unwrap();
            records.extend(rows.into_iter().map(|row| (shard, row.row, serde_json::from_slice(&row.value).unwrap())));
        }
        records
    }

    /// Returns the number of finished requests according to the files.
    pub(crate) async fn finished(&self) -> usize {
        let ended = |(_, row, state)| matches!(state, State::Scheduled | State::Rejected).then_some(row);
        self.records().await.into_iter().filter_map(ended).collect::<HashSet<_>>().len()
    }

    /// Returns the current shard map.
    async fn map(&self) -> Option<Arc<ShardMap>> {
        let directory =
            ShardDirectory::builder(Arc::new(self.own.store()), "deliveries", ShardDirectoryConfig::default())
                .open()
                .await
                .ok()?;
        Some(directory.map())
    }

    /// Asserts that each record exists once, at its place by the map, and that each scheduled request has one drone;
    /// `summary` must agree.
    pub(crate) async fn assert_whole(&self, summary: &str) -> Value {
        let summary: Value = serde_json::from_str(summary).unwrap();
        let figures = ["input", "scheduled", "rejected", "duplicates", "dead_lettered", "lost", "violations"];
        assert_eq!(figures.map(|name| summary[name].as_u64().unwrap()), [2000, 1893, 48, 28, 31, 0, 0], "{summary}");
        let none = ["half_done", "double_reservations", "left_reservations"];
        assert_eq!(none.map(|name| summary[name].as_u64().unwrap()), [0; 3], "{summary}");
        let (records, map) = (self.records().await, self.map().await.unwrap());
        assert!(map.moving().is_none() && records.len() == 2000, "{}", records.len());
        for (shard, row, _) in records {
            assert_eq!(map.shard_of(&row).map(|id| id.0 as usize), Some(shard), "{row}");
        }
        assert_eq!(summary["shards"].as_u64(), Some(map.shards().len() as u64));
        assert_eq!(self.finished().await, 1941);
        // Checks the books themselves: one drone for each scheduled request.
        let drones =
            self.own.store().scan_all(Scan::partition("books of drone").prefix(EFFECTS).limit(1000)).await.unwrap();
        let mut flown: Vec<_> = drones.iter().map(|row| row.value.clone()).collect();
        flown.sort();
        flown.dedup();
        assert_eq!((drones.len(), flown.len()), (1893, 1893));
        summary
    }
}

fn kill(mut run: Child) {
    run.kill().unwrap(); // SIGKILL
    assert!(!run.wait().unwrap().success());
}

/// Kills the job at each of these numbers of finished requests; then lets it finish, and compares the summary
/// with the input. The rate gives a busy machine time to see a number before the end.
async fn killed_at(points: &[usize], shards: u32, more: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.db");
    let kept = Kept::open(&file, shards);
    let shards = shards.to_string();
    let more: Vec<&str> = more.iter().copied().chain(["--shards", &shards]).collect();
    for point in points {
        let mut run = start(&file, &more);
        while kept.finished().await < *point {
            assert_eq!(run.try_wait().unwrap(), None, "it ended before it could be killed at {point}");
        }
        kill(run);
    }
    let before = kept.finished().await;
    assert!(before >= *points.last().unwrap() && before < 1941, "{before}");
    // A call in flight at a kill may have had its effect: it is repeated, without a second effect.
    let summary = kept.assert_whole(&output(start(&file, &more), "summary: ")).await;
    assert_eq!(summary["resumed"], before);
}

#[tokio::test]
async fn a_job_that_is_killed_in_the_middle_is_finished_with_nothing_scheduled_twice() {
    killed_at(&[0, 1, 400, 900, 1500], 1, &["--rate", "400"]).await;
}

#[tokio::test]
#[ignore = "takes seconds: `.ci/run` runs it"]
async fn so_is_one_whose_records_lie_in_shards() {
    killed_at(&[0, 1, 500, 1200], 4, &["--rate", "400"]).await;
}

#[tokio::test]
#[ignore = "takes seconds: `.ci/run` runs it"]
async fn so_is_one_that_is_killed_in_a_storm_that_cuts_off_a_shard() {
    killed_at(&[150, 700], 4, &["--faults", "storm"]).await;
}

/// Each change of the map is a step of a move. The job is killed after these steps, and must still move the same
/// records.
#[tokio::test]
#[ignore = "takes seconds: `.ci/run` runs it"]
async fn a_job_that_is_killed_while_its_records_are_moved_finishes_the_move() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.db");
    let kept = Kept::open(&file, 5);
    let more = ["--rate", "250", "--shards", "4", "--add-shard", "@0.2"];
    let mut in_a_move = 0;
    for version in [2, 3, 4, 5, 8, 10, 13, 17] {
        let mut run = start(&file, &more);
        while kept.map().await.is_none_or(|map| map.version() < version) {
            assert_eq!(run.try_wait().unwrap(), None, "it ended before version {version} of the map");
        }
        kill(run);
        in_a_move += u32::from(kept.map().await.unwrap().moving().is_some());
    }
    assert!(in_a_move > 0);
    let summary = kept.assert_whole(&output(start(&file, &more), "summary: ")).await;
    let first = ShardMap::hashed(4_096, &[0, 1, 2, 3].map(ShardId)).unwrap();
    let moved =
        kept.records().await.into_iter().filter(|(shard, row, _)| first.shard_of(row) != Some(ShardId(*shard as u32)));
    assert_eq!((&summary["shards"], &summary["records_moved"]), (&5.into(), &moved.count().into()), "{summary}");
    // With or without kills, a fifth of the records has moved.
    assert!((350..450).contains(&summary["records_moved"].as_u64().unwrap()), "{summary}");
}

#[tokio::test]
async fn a_file_of_another_job_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.db");
    output(start(&file, &["--requests", "20"]), "summary: ");
    let others: [&[&str]; 3] =
        [&["--requests", "21"], &["--requests", "20", "--seed", "2"], &["--requests", "20", "--shards", "2"]];
    for other in others {
        let error = output(start(&file, other), "error: ");
        assert!(error.contains("it belongs to another job: 20 requests"), "{error}");
    }
    let again: Value = serde_json::from_str(&output(start(&file, &["--requests", "20"]), "summary: ")).unwrap();
    assert_eq!((&again["resumed"], &again["calls"]), (&again["scheduled"], &0.into()));
}

#[tokio::test]
async fn a_damaged_file_is_an_error_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.db");
    std::fs::write(&file, "no database, but long enough to be taken for one").unwrap();
    let error = output(start(&file, &[]), "error: ");
    assert!(error.starts_with("--store: ") && error.contains("not a database"), "{error}");
    assert!(std::fs::read(&file).unwrap().starts_with(b"no database"));
}

#[test]
fn a_shard_is_added_at_a_second() {
    let args = |more: &[&str]| Args::try_parse_from(["drone_delivery"].iter().chain(more));
    assert_eq!(args(&["--add-shard", "@1.5"]).unwrap().add_shard.unwrap().at, std::time::Duration::from_millis(1500));
    for wrong in
        [["--add-shard", "1.5"], ["--add-shard", "@"], ["--add-shard", "@-1"], ["--shards", "0"], ["--shards", "x"]]
    {
        assert!(args(&wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn where_to_keep_it_is_memory_a_file_or_servers() {
    use crate::ledger::StoreAt;
    assert_eq!("memory".parse(), Ok(StoreAt::Memory));
    assert_eq!("sqlite:a:b.db".parse(), Ok(StoreAt::Sqlite("a:b.db".into())));
    assert_eq!("nats:3".parse(), Ok(StoreAt::Private("nats:3")));
    for wrong in ["", "sqlite", "sqlite:", "memory:", "postgres:x", "nats:", "nats:5", "redis:3"] {
        assert!(wrong.parse::<StoreAt>().is_err(), "{wrong}");
    }
}
