//! Command-line arguments.
use std::{path::PathBuf, time::Duration};

use clap::Parser;

use crate::engine::EngineAt;

/// Bills a million transactions: split into work items, handled by several processes on one durable queue, added up to the cent.
#[derive(Parser, Clone, Debug)]
pub(crate) struct Args {
    /// Number of transactions.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) rows: u64,
    /// Rows of a work item.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) item: u64,
    /// Number of processes that handle items.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) processors: u8,
    /// Number of kills of a random process.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000))]
    pub(crate) kill: u64,
    /// Idle time after the work, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub(crate) idle: u64,
    /// Price of a million requests to the queue, in dollars.
    #[arg(long, default_value_t = 0.40, value_parser = price)]
    pub(crate) price: f64,
    /// Seed of the transactions and the kills.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// File for the bill.
    #[arg(long)]
    pub(crate) report: Option<PathBuf>,
    /// File for a plot of depth, tasks and requests over time, as SVG.
    #[arg(long)]
    pub(crate) plot: Option<PathBuf>,
    /// Place of the queues and results: `sqlite:FILE`, the URL of a server (`postgres://..`, `redis://..`, `nats://..`), or
    /// `postgres`, `redis` or `nats` for a server of this run. A temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<EngineAt>,
    #[arg(long, hide = true)]
    pub(crate) processor: Option<PathBuf>,
}

fn price(text: &str) -> Result<f64, String> {
    let price = text.parse().ok().filter(|price: &f64| price.is_finite() && *price >= 0.0);
    price.ok_or_else(|| "must be a number of dollars, at least 0".into())
}

impl Args {
    pub(crate) fn idle(&self) -> Duration {
        Duration::from_secs(self.idle)
    }
}
