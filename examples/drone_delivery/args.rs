//! Command-line arguments.
use std::{path::PathBuf, str::FromStr, time::Duration};

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::ledger::StoreAt;

/// Maximum of requests of a run, and of a spike: the work is kept in memory.
const MOST_REQUESTS: u64 = 5_000_000;
/// Maximum rate, per second.
const FASTEST: i64 = 1_000_000;

/// Schedules drone deliveries by calling five services over HTTP, which it starts itself, with or without faults.
#[derive(Debug, Clone, Parser)]
#[command(name = "drone_delivery", allow_negative_numbers = true)]
pub struct Args {
    /// File of requests, as JSON Lines. Default: the 2,000 of the example.
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,

    /// Faults of the services.
    #[arg(long, value_enum, default_value_t = Faults::None)]
    pub faults: Faults,

    /// Seed of the faults: the same seed makes the same faults.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Number of requests: the input is repeated under new ids, or truncated.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=MOST_REQUESTS))]
    pub requests: Option<u64>,

    /// Number of calls of the services at once. A request that waits for a service makes none.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub concurrency: u32,

    /// Requests started per second; each service gets at most twice as many calls. 0 means no limit. Default: 300
    /// with faults, so that work lasts through all of them, and no limit without faults; with `--stream` 240.
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(..=FASTEST))]
    pub rate: Option<u32>,

    /// Requests that arrive per second. Default: all at once. They are accepted into a queue, even if the services
    /// cannot keep up.
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..=FASTEST))]
    pub ingest_rate: Option<u32>,

    /// Additional requests that arrive at one moment, in the middle of the others.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=MOST_REQUESTS))]
    pub spike: u64,

    /// Seconds for which a request is deferred and retried before it is compensated and counts as lost; at most a day.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub patience: u64,

    /// Suspends an owner this many seconds after the start: `tenant-0001@0.5`. Accounts are read through a cache, so
    /// the suspension takes effect within a bound, which the report states.
    #[arg(long, value_name = "OWNER@SECONDS")]
    pub suspend: Option<Suspend>,

    /// Calls the services without protection: no time-out, retry, breaker, cache or deferral.
    #[arg(long)]
    pub unprotected: bool,

    /// Store of the requests' state and the services' books: `memory`, `sqlite:FILE` (feature `sqlite`), or the URL of a
    /// server, `postgres://..`, `redis://..` or `nats://..` (features `postgres`, `redis`, `nats`). A killed run continues
    /// when it is started again on the same file or server. `postgres`, `redis` or `nats` alone starts a server for this
    /// run, and `nats:3` a cluster of three.
    #[arg(long, visible_alias = "backend", value_name = "STORE", default_value = "memory")]
    pub store: StoreAt,

    /// Number of shards for the requests' records, each with its own store and circuit breaker; with `--store
    /// sqlite:FILE` the files `FILE.shard-0000` and so on, on a server the name spaces `steadfast-shard-0000` and so on.
    /// A single shard is the job's own store.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub shards: u32,

    /// Adds a shard this many seconds after the start, and moves its share of the records there during the job:
    /// `@1.5`. A killed run continues the move, too.
    #[arg(long, value_name = "@SECONDS")]
    pub add_shard: Option<AddShard>,

    /// Accepts requests into a topic with so many partitions, whose deliveries several processes schedule, and kills
    /// these processes. The state is in a file of the run, unless `--store` names another place.
    #[arg(long, value_name = "PARTITIONS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub stream: Option<u16>,

    /// Number of processes that schedule, with `--stream`.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=26))]
    pub processes: u32,

    /// Seconds for which requests arrive, with `--stream`: `--ingest-rate` each second, 10,000 by default.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,

    /// Requests that arrive per second in the middle of the time, with `--stream`.
    #[arg(long, value_name = "PER_SECOND", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(..=FASTEST))]
    pub spike_rate: u32,

    /// Seconds of that spike.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=86_400))]
    pub spike_seconds: u32,

    /// Number of processes that are killed while requests arrive, with `--stream`. Each comes back two seconds later.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(..=1000))]
    pub kills: u32,

    /// Maximum seconds for which deliveries are scheduled behind the last arrival, with `--stream`. What waits longer
    /// stays in the topic.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=86_400))]
    pub drain: u32,

    /// Writes the owner and the lag of each partition in each second, with `--stream`.
    #[arg(long, value_name = "FILE.csv")]
    pub lag: Option<PathBuf>,

    /// Draws throughput, latency and breaker states over time.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// Time at which a shard is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddShard {
    pub at: Duration,
}

impl FromStr for AddShard {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let seconds = text.strip_prefix('@').ok_or("must be `@` and seconds, as in `@1.5`")?;
        Ok(Self { at: seconds_of(seconds).ok_or("the seconds must be a number between 0 and 86400")? })
    }
}

fn seconds_of(text: &str) -> Option<Duration> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|seconds| *seconds <= Duration::from_secs(86_400))
}

/// The suspended owner, and the time of the suspension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspend {
    pub owner: String,
    pub at: Duration,
}

impl FromStr for Suspend {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (owner, at) = text.rsplit_once('@').ok_or("must be an owner and seconds, as in `tenant-0001@0.5`")?;
        match seconds_of(at) {
            Some(at) if !owner.is_empty() => Ok(Self { owner: owner.to_owned(), at }),
            Some(_) => Err("the owner must not be empty"),
            None => Err("the seconds must be a number between 0 and 86400"),
        }
    }
}

/// Faults of the services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Faults {
    /// No faults.
    None,
    /// Occasional slow answers, 503s, resets, hangs.
    Flaky,
    /// More frequent faults; one service crashes for some seconds, another fails most calls for some seconds, and one
    /// of several shards is cut off for one second.
    Storm,
}

impl Args {
    /// Returns the effective rate; `None` means no limit.
    pub fn rate(&self) -> Option<u32> {
        match self.rate {
            Some(0) => None,
            Some(rate) => Some(rate),
            None => (self.faults != Faults::None).then_some(300),
        }
    }
}
