//! Measuring: every round runs each subject once, in rotated order, so that a busy moment of the machine hits all.
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;

use crate::{
    Mode, Work, apalis_jobs, by_hand_nats, by_hand_postgres, by_hand_redis, by_hand_sqlite, ours,
    server::{Nats, Postgres, Redis},
    streams,
};

/// How long to measure.
#[derive(Clone, Copy)]
pub struct Effort {
    pub rounds: usize,
    pub round: Duration,
}

/// Somebody who can do a work.
pub trait Subject: Send + Sync {
    /// Does whatever must be there before, for so many operations in all: not measured.
    fn prepare(&self, _operations: usize) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Does so many operations, as this one of several callers.
    fn work(self: Arc<Self>, caller: usize, operations: usize) -> BoxFuture<'static, ()>;
}

/// One line: a work in a mode with so many callers.
pub struct Cell {
    work: Work,
    mode: Mode,
    callers: usize,
    /// By subject, operations a second.
    rates: Vec<(&'static str, f64)>,
}

/// Measures one line. A server is private to it.
pub async fn cell(work: Work, mode: Mode, callers: usize, effort: Effort) -> Cell {
    let has_apalis = matches!(work, Work::Send(_) | Work::Take(_));
    let mut subjects: Vec<(&'static str, Arc<dyn Subject>)> = Vec::new();
    // Kept until the line is measured.
    let _place: Box<dyn std::any::Any> = match mode {
        Mode::Memory | Mode::Relaxed | Mode::Durable => {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let at = |name: &str| folder.path().join(name);
            subjects.push(("steadfast", ours::local(work, mode, &at("ours"), false).await));
            if let Work::Forward(_) = work {
                subjects.push(("two steps", ours::local(work, mode, &at("two"), true).await));
            }
            if mode != Mode::Memory {
                subjects.push(("by hand", by_hand_sqlite::subject(work, mode, &at("hand"), false)));
                subjects.push(("blocking", by_hand_sqlite::subject(work, mode, &at("blocking"), true)));
                if has_apalis {
                    subjects.push(("apalis", apalis_jobs::sqlite(work, mode, &at("apalis")).await));
                }
            }
            Box::new(folder)
        }
        Mode::Postgres => {
            let server = Postgres::start();
            server.psql("create schema by_hand");
            server.psql("create database apalis");
            let url = server.url();
            subjects.push(("steadfast", ours::at(work, &url, false).await));
            if let Work::Forward(_) = work {
                subjects.push(("two steps", ours::at(work, &url, true).await));
            }
            subjects.push(("by hand", by_hand_postgres::subject(work, &url).await));
            if has_apalis {
                let url = url.replace("/postgres", "/apalis").replace("//apalis", "//postgres");
                subjects.push(("apalis", apalis_jobs::postgres(work, &url).await));
            }
            Box::new(server)
        }
        Mode::Redis => {
            let server = Redis::durable();
            let url = server.url();
            subjects.push(("steadfast", ours::at(work, &url, false).await));
            if let Work::Forward(_) = work {
                subjects.push(("two steps", ours::at(work, &url, true).await));
            }
            if !matches!(work, Work::Append | Work::Forward(_)) {
                subjects.push(("by hand", by_hand_redis::subject(work, &format!("{url}/2")).await));
            }
            if work.is_queue() || work == Work::Append {
                subjects.push(("raw", streams::subject(work, &format!("{url}/3")).await));
            }
            if has_apalis {
                subjects.push(("apalis", apalis_jobs::redis(work, &format!("{url}/1")).await));
            }
            Box::new(server)
        }
        Mode::Nats => {
            let server = Nats::durable();
            let url = server.url();
            subjects.push(("steadfast", ours::at(work, &url, false).await));
            subjects.push(("by hand", by_hand_nats::subject(work, &url).await));
            Box::new(server)
        }
    };
    let mut counts = Vec::new();
    for (_, subject) in &subjects {
        counts.push(calibrate(subject, callers, effort.round).await);
    }
    let mut samples = vec![Vec::new(); subjects.len()];
    for round in 0..effort.rounds {
        for turn in 0..subjects.len() {
            let i = (round + turn) % subjects.len();
            let took = run(&subjects[i].1, callers, counts[i]).await;
            samples[i].push((counts[i] * callers) as f64 / took.as_secs_f64());
        }
    }
    let median = |mut samples: Vec<f64>| {
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    };
    let rates = subjects.iter().zip(samples).map(|((name, _), samples)| (*name, median(samples))).collect();
    Cell { work, mode, callers, rates }
}

/// How many operations of each caller fill a round.
async fn calibrate(subject: &Arc<dyn Subject>, callers: usize, round: Duration) -> usize {
    let mut operations = 1;
    loop {
        let took = run(subject, callers, operations).await;
        if took > round / 4 {
            let full = operations as f64 * round.as_secs_f64() / took.as_secs_f64();
            return (full as usize).clamp(1, 200_000);
        }
        operations *= 2;
    }
}

async fn run(subject: &Arc<dyn Subject>, callers: usize, operations: usize) -> Duration {
    subject.prepare(callers * operations).await;
    let start = Instant::now();
    let tasks: Vec<_> = (0..callers).map(|i| tokio::spawn(subject.clone().work(i, operations))).collect();
    for task in tasks {
        task.await.expect("a caller");
    }
    start.elapsed()
}

impl Cell {
    fn rate(&self, name: &str) -> Option<f64> {
        self.rates.iter().find(|(n, _)| *n == name).map(|(_, rate)| *rate)
    }

    fn ratio(&self, to: &str) -> Option<f64> {
        Some(self.rate("steadfast")? / self.rate(to)?)
    }

    pub fn head() -> String {
        format!(
            "{:<9} {:<8} {:>7} {:>11} {:>11} {:>6} {:>11} {:>6} {:>11} {:>6} {:>11} {:>6} {:>11} {:>6}   (operations a second; ratio: ours / theirs)",
            "work",
            "mode",
            "callers",
            "steadfast",
            "by hand",
            "ratio",
            "blocking",
            "ratio",
            "apalis",
            "ratio",
            "two steps",
            "ratio",
            "raw",
            "ratio"
        )
    }

    pub fn line(&self) -> String {
        let number = |n: Option<f64>| n.map_or("-".into(), |n| format!("{n:.0}"));
        let ratio = |n: Option<f64>| n.map_or("-".into(), |n| format!("{n:.2}"));
        format!(
            "{:<9} {:<8} {:>7} {:>11} {:>11} {:>6} {:>11} {:>6} {:>11} {:>6} {:>11} {:>6} {:>11} {:>6}",
            self.work.name(),
            self.mode.name(),
            self.callers,
            number(self.rate("steadfast")),
            number(self.rate("by hand")),
            ratio(self.ratio("by hand")),
            number(self.rate("blocking")),
            ratio(self.ratio("blocking")),
            number(self.rate("apalis")),
            ratio(self.ratio("apalis")),
            number(self.rate("two steps")),
            ratio(self.ratio("two steps")),
            number(self.rate("raw")),
            ratio(self.ratio("raw")),
        )
    }

    pub fn json(&self) -> String {
        let number = |n: Option<f64>| n.map_or("null".into(), |n| format!("{n:.3}"));
        format!(
            "{{\"work\":\"{}\",\"mode\":\"{}\",\"callers\":{},\"ours\":{},\"by_hand\":{},\"ratio_by_hand\":{},\"blocking\":{},\"ratio_blocking\":{},\"apalis\":{},\"ratio_apalis\":{},\"two_steps\":{},\"ratio_two_steps\":{},\"raw\":{},\"ratio_raw\":{}}}",
            self.work.name(),
            self.mode.name(),
            self.callers,
            number(self.rate("steadfast")),
            number(self.rate("by hand")),
            number(self.ratio("by hand")),
            number(self.rate("blocking")),
            number(self.ratio("blocking")),
            number(self.rate("apalis")),
            number(self.ratio("apalis")),
            number(self.rate("two steps")),
            number(self.ratio("two steps")),
            number(self.rate("raw")),
            number(self.ratio("raw")),
        )
    }
}
