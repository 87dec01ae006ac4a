//! What the user asked for.
use std::{path::PathBuf, str::FromStr, time::Duration};

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::ledger::StoreAt;

/// The most requests of one run, and of one spike: what there is to do lies in memory.
const MOST_REQUESTS: u64 = 5_000_000;
/// The highest rate that can be asked for, per second.
const FASTEST: i64 = 1_000_000;

/// Schedules drone deliveries by calling five services over HTTP, which it starts itself and may make misbehave.
#[derive(Debug, Clone, Parser)]
#[command(name = "drone_delivery", allow_negative_numbers = true)]
pub struct Args {
    /// The requests, as JSON Lines. By default the 2,000 that come with the example.
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,

    /// How the services misbehave.
    #[arg(long, value_enum, default_value_t = Faults::None)]
    pub faults: Faults,

    /// What the faults are drawn from: the same seed, the same faults.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// How many requests in all: the input is repeated under new ids, or cut off.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=MOST_REQUESTS))]
    pub requests: Option<u64>,

    /// How many requests are worked on at once.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub concurrency: u32,

    /// How many requests are started in a second; each service gets at most twice as many calls. 0 is without limit. By
    /// default 300 where there are faults, so that there is work to do through all of them, and without limit where there
    /// are none.
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(..=FASTEST))]
    pub rate: Option<u32>,

    /// How many requests arrive in a second. All at once by default. They are accepted into a queue, whether or not the services keep up.
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..=FASTEST))]
    pub ingest_rate: Option<u32>,

    /// So many more requests arrive in one moment, in the middle of the others.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=MOST_REQUESTS))]
    pub spike: u64,

    /// How long one request may be put back and tried again before it counts as lost, in seconds;
    /// at most a day.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub patience: u64,

    /// Suspends an owner while the job runs, this many seconds after its start: `tenant-0001@0.5`. Accounts are looked up through a
    /// cache, so that is honoured within a bound, which the report states.
    #[arg(long, value_name = "OWNER@SECONDS")]
    pub suspend: Option<Suspend>,

    /// Calls the services bare: no time-out, no retry, no breaker, no cache, nothing put back.
    #[arg(long)]
    pub unprotected: bool,

    /// Where the state of the requests and the services' books are kept: `memory`, or `sqlite:FILE` (feature `sqlite`). A run
    /// that was killed goes on where it stopped when it is started again on the same file.
    #[arg(long, value_name = "STORE", default_value = "memory")]
    pub store: StoreAt,

    /// In how many shards the records of the requests lie, each a store of its own, with a circuit breaker of its own: with `--store
    /// sqlite:FILE` the files `FILE.shard-0000` and so on. One shard is the job's own store.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub shards: u32,

    /// Adds a shard this many seconds after the start, and moves its share of the records there while the job runs: `@1.5`. A run that was
    /// killed meanwhile goes on with it, too.
    #[arg(long, value_name = "@SECONDS")]
    pub add_shard: Option<AddShard>,

    /// Draws throughput, latency and breaker states over time.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// When a shard is added.
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

/// Who is suspended, and when.
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

/// How the services misbehave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Faults {
    /// Not at all.
    None,
    /// Now and then: slow answers, 503s, resets, a hang.
    Flaky,
    /// All of that more often; one service crashes for some seconds, another fails most calls for some, and one of several shards is cut
    /// off for one.
    Storm,
}

impl Args {
    /// The rate in force; `None` is without limit.
    pub fn rate(&self) -> Option<u32> {
        match self.rate {
            Some(0) => None,
            Some(rate) => Some(rate),
            None => (self.faults != Faults::None).then_some(300),
        }
    }
}
